"""Claims about the loop every adapter runs: turns, calls, limits, output, steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, PromptResponse, ProviderAdapter, ScriptedAdapter, Turn
from weakincentives.clock import FakeClock
from weakincentives.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    VisibilityExpansionRequired,
)
from weakincentives.limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage
from weakincentives.prompt import (
    ApprovalPolicy,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RunContext,
    SectionVisibility,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import Binding
from weakincentives.runtime import Session, ToolCall, ToolInvoked, execute_tool, workers


@dataclass(frozen=True)
class Amount:
    n: int


@dataclass(frozen=True)
class Saved:
    n: int


@dataclass(frozen=True)
class Total:
    total: int


class Service:
    """A resource that knows whether it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def save(params: Amount, *, context: ToolContext) -> ToolResult[str]:
    context.session[Saved].append(Saved(params.n))
    if params.n < 0:
        return ToolResult.error("n cannot be negative; retry with 0 or more")
    return ToolResult.ok("kept", f"saved {params.n}")


def look(params: Amount, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(f"saw {params.n}")


SAVE = Tool[Amount, str](name="save", description="Save.", handler=save)
LOOK = Tool[Amount, str](name="look", description="Look.", handler=look, effects="none")


def prompt_of(*tools: Tool[Any, Any], **options: Any) -> Prompt[Any]:
    section = MarkdownSection(title="Work", template="Do the work.", tools=tools or (SAVE, LOOK))
    return Prompt(PromptTemplate(sections=[section], **options))


def total_prompt() -> Prompt[Total]:
    return Prompt(PromptTemplate[Total](sections=[MarkdownSection(title="Sum", template="Add.", tools=[SAVE])]))


def saved(n: int) -> ToolCall:
    return ToolCall("save", {"n": n})


def texts(messages: Sequence[Message], role: str) -> list[str]:
    return [message.text for message in messages if message.role == role]


Evaluate = Callable[..., PromptResponse[Any]]


@pytest.fixture(params=["sync", "async"])
def evaluate(request: pytest.FixtureRequest) -> Evaluate:
    """Both ways to run the loop."""
    if request.param == "sync":
        return lambda adapter, *args, **options: adapter.evaluate(*args, **options)
    return lambda adapter, *args, **options: asyncio.run(adapter.aevaluate(*args, **options))


# -- turns and calls ---------------------------------------------------------------------------------------------------


def test_an_answer_ends_the_run(evaluate: Evaluate) -> None:
    """A reply without calls is the answer."""
    response = evaluate(ScriptedAdapter(["Done."]), prompt_of(), Session())

    assert (response.text, response.output, response.stop_reason, response.turns) == ("Done.", None, "end_turn", 1)


def test_the_prompt_comes_first(evaluate: Evaluate) -> None:
    """The model is sent the rendered prompt before anything else."""
    adapter = ScriptedAdapter(["Done."])
    evaluate(adapter, prompt_of(), Session())

    assert adapter.messages[0] == Message("system", "# Work\n\nDo the work.")


def test_calls_are_run_and_their_texts_sent_back(evaluate: Evaluate) -> None:
    """The model reads of each call what the pipeline says (S24)."""
    session, adapter = Session(), ScriptedAdapter([saved(1), "Done."])
    evaluate(adapter, prompt_of(), session)

    assert session[Saved].all() == (Saved(1),)
    assert texts(adapter.messages, "tool") == ["saved 1\n\nkept"]


def test_a_call_and_its_result_have_the_same_id(evaluate: Evaluate) -> None:
    """A call that came without an id gets one before it is written down."""
    session, adapter = Session(), ScriptedAdapter([[saved(1), ToolCall("save", {"n": 2}, "given")], "Done."])
    evaluate(adapter, prompt_of(), session)

    asked = [call.call_id for call in adapter.messages[1].tool_calls]
    assert asked[0]
    assert asked[1] == "given"
    assert [message.call_id for message in adapter.messages[2:4]] == asked
    assert [event.call_id for event in session[ToolInvoked].all()] == asked


def test_two_calls_never_share_an_id_or_a_key(evaluate: Evaluate) -> None:
    """S5: servers begin anew with every reply; in one reply, in one run and in the next each call is known by its own."""
    keys: list[str] = []

    def pay(params: Amount, *, context: ToolContext) -> ToolResult[str]:
        keys.append(context.idempotency_key)
        return ToolResult.ok("paid")

    session, prompt = Session(), prompt_of(Tool[Amount, str](name="pay", description="Pay.", handler=pay))
    paying = ToolCall("pay", {"n": 1}, "call-1")
    for turns in ([[paying, paying], paying, "Done."], [paying, "Done."]):
        adapter = ScriptedAdapter(turns)
        evaluate(adapter, prompt, session)
        asked = [call.call_id for message in adapter.messages for call in message.tool_calls]
        assert asked == [message.call_id for message in adapter.messages if message.role == "tool"]

    assert len(set(keys)) == 4
    ids = [event.call_id for event in session[ToolInvoked].all()]
    assert (len(set(ids)), ids[0]) == (4, "call-1")


def test_a_stored_session_knows_the_ids_of_an_earlier_process(evaluate: Evaluate, tmp_path: Path) -> None:
    """S5: what was called before the restart is not called again under the same key."""
    for _ in range(2):
        with Session.open(tmp_path / "session") as session:
            evaluate(ScriptedAdapter([ToolCall("save", {"n": 1}, "c"), "Done."]), prompt_of(), session)
            ids = [event.call_id for event in session[ToolInvoked].all()]

    assert ids[0] == "c"
    assert len(set(ids)) == 2


def test_a_sub_agents_call_has_another_key_than_the_call_around_it(evaluate: Evaluate) -> None:
    """S5: the outer call is not recorded yet when the inner one takes the same id."""
    keys: list[str] = []

    def nest(params: Amount, *, context: ToolContext) -> ToolResult[str]:
        keys.append(context.idempotency_key)
        if params.n:
            context.adapter.evaluate(prompt, context.session)
        return ToolResult.ok("done")

    prompt = prompt_of(Tool[Amount, str](name="nest", description="Nest.", handler=nest))
    turns = [ToolCall("nest", {"n": 1}, "c"), ToolCall("nest", {"n": 0}, "c"), "Inner.", "Outer."]
    evaluate(ScriptedAdapter(turns), prompt, Session())

    assert len(set(keys)) == 2


def test_a_call_of_a_step_keeps_its_key_when_it_is_run_again() -> None:
    """S5: whoever recorded a call and runs it again passes the same key on."""
    keys: list[str] = []

    def pay(params: Amount, *, context: ToolContext) -> ToolResult[str]:
        keys.append(context.idempotency_key)
        return ToolResult.error("no answer; retry")

    session, prompt = Session(), prompt_of(Tool[Amount, str](name="pay", description="Pay.", handler=pay))
    step = ScriptedAdapter([ToolCall("pay", {"n": 1}, "c")]).stepwise().evaluate(prompt, session)
    for _ in range(2):
        execute_tool(step.tool_calls[0], session=session)

    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_message_that_answers_no_call_has_no_call_id() -> None:
    """Only tool messages name a call."""
    assert Message("user", "Hello").call_id == ""


def test_results_come_in_the_order_of_the_calls(evaluate: Evaluate) -> None:
    """Calls that ran at the same time are answered as they were asked (S6)."""
    adapter = ScriptedAdapter([[ToolCall("look", {"n": n}) for n in (1, 2)] + [saved(3)], "Done."])
    evaluate(adapter, prompt_of(), Session())

    assert texts(adapter.messages, "tool") == ["saw 1", "saw 2", "saved 3\n\nkept"]


def test_reads_of_one_turn_run_at_the_same_time(evaluate: Evaluate) -> None:
    """Two read-only calls meet; one after the other they would wait for ever (S6)."""
    meeting = threading.Barrier(2, timeout=20)

    def meet(params: Amount, *, context: ToolContext) -> ToolResult[str]:
        meeting.wait()
        return ToolResult.ok("met")

    tool = Tool[Amount, str](name="meet", description="Meet.", handler=meet, effects="none")
    adapter = ScriptedAdapter([[ToolCall("meet", {"n": n}) for n in (1, 2)], "Done."])
    evaluate(adapter, prompt_of(tool), Session())

    assert texts(adapter.messages, "tool") == ["met", "met"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall("sav", {"n": 1}), "Unknown tool 'sav'\nAvailable tools: save, look"),
        (
            ToolCall("save", '{"n": "1"}'),
            '{"error": "Invalid parameters for tool \'save\'", '
            '"details": {"n": "Expected type integer, got string \'1\'"}}',
        ),
        (saved(-1), "n cannot be negative; retry with 0 or more"),
    ],
)
def test_nothing_a_model_sends_ends_the_run(evaluate: Evaluate, call: ToolCall, text: str) -> None:
    """The model reads what was wrong and goes on; nothing of the call is kept (S3)."""
    session, adapter = Session(), ScriptedAdapter([call, saved(2), "Done."])
    response = evaluate(adapter, prompt_of(), session)

    assert texts(adapter.messages, "tool") == [text, "saved 2\n\nkept"]
    assert session[Saved].all() == (Saved(2),)
    assert response.text == "Done."


def test_arguments_that_are_no_json_do_not_end_the_run(evaluate: Evaluate) -> None:
    """Broken JSON is an invalid call like any other (S3)."""
    session = Session()
    evaluate(ScriptedAdapter([ToolCall("save", '{"n": '), "Sorry."]), prompt_of(), session)

    assert [event.outcome for event in session[ToolInvoked].all()] == ["invalid_params"]


def test_the_model_reads_a_denial_and_recovers(evaluate: Evaluate) -> None:
    """A policy's reason reaches the model word by word (S14)."""
    policy = SequentialDependencyPolicy({"save": {"look"}})
    adapter = ScriptedAdapter([saved(1), ToolCall("look", {"n": 1}), saved(1), "Done."])
    evaluate(adapter, prompt_of(policies=[policy]), Session())

    assert texts(adapter.messages, "tool") == [
        "Cannot call 'save' - missing required tools: look\nCall these tools first, then retry save.",
        "saw 1",
        "saved 1\n\nkept",
    ]


def test_an_error_of_the_provider_reaches_the_caller(evaluate: Evaluate) -> None:
    """What `send` raises is not dressed up."""

    def broken(messages: Sequence[Message]) -> str:
        raise ConnectionError("no route")

    with pytest.raises(ConnectionError, match="no route"):
        evaluate(ScriptedAdapter([broken]), prompt_of(), Session())


def test_calls_of_a_refused_reply_are_not_run(evaluate: Evaluate) -> None:
    """A refusal ends the run; fragments of calls in it count for nothing."""
    session = Session()
    response = evaluate(ScriptedAdapter([ModelReply("No.", (saved(1),), "refusal")]), prompt_of(), session)

    assert (response.stop_reason, response.tool_calls, session[Saved].all()) == ("refusal", (), ())


def test_a_provider_gets_its_own_form_of_a_reply_back(evaluate: Evaluate) -> None:
    """What an adapter attaches to a reply stands in the conversation."""
    adapter = ScriptedAdapter([ModelReply("", (saved(1),), raw={"signature": "s"}), "Done."])
    evaluate(adapter, prompt_of(), Session())

    assert adapter.messages[1].raw == {"signature": "s"}


def test_the_response_holds_the_conversation(evaluate: Evaluate) -> None:
    """Whoever evaluated can read all of it afterwards."""
    response = evaluate(ScriptedAdapter([saved(1), "Done."]), prompt_of(), Session())

    assert [message.role for message in response.messages] == ["system", "assistant", "tool", "assistant"]


def test_calls_that_wait_for_approval_are_in_the_response(evaluate: Evaluate) -> None:
    """The caller sees what somebody has to decide (S36)."""
    prompt = prompt_of(policies=[ApprovalPolicy(tools=["save"])])
    response = evaluate(ScriptedAdapter([saved(1), saved(1), "I wait."]), prompt, Session())

    assert [(outcome.outcome, outcome.call.name) for outcome in response.pending] == [("pending", "save")]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_section_that_opens_during_the_run_is_shown_with_its_tools(evaluate: Evaluate) -> None:
    """The prompt is rendered for each turn, so the model is shown what it can call (invariant 2)."""

    def has_saved(*, session: Session) -> bool:
        return session[Saved].latest() is not None

    first = MarkdownSection(title="Work", template="Do it.", tools=[SAVE])
    later = MarkdownSection(title="Later", template="Now look.", tools=[LOOK], enabled=has_saved)
    adapter = ScriptedAdapter([saved(1), ToolCall("look", {"n": 1}), "Done."])
    evaluate(adapter, Prompt(PromptTemplate(sections=[first, later])), Session())

    assert texts(adapter.messages, "system") == ["# Work\n\nDo it.\n\n# Later\n\nNow look."]
    assert adapter.last_turn is not None
    assert adapter.last_turn.tools == (SAVE, LOOK)
    assert texts(adapter.messages, "tool")[1] == "saw 1"


def test_a_turn_tells_the_provider_of_its_tools() -> None:
    """The specs are those of the tools, made once as long as the tools stay the same."""
    told: list[list[dict[str, Any]]] = []

    class Telling(ScriptedAdapter):
        def send(self, turn: Turn) -> ModelReply:
            told.append(turn.tool_specs)
            return super().send(turn)

    Telling([saved(1), "Done."]).evaluate(prompt_of(), Session())

    assert told[0] == [SAVE.spec(), LOOK.spec()]
    assert told[1] is told[0]


def test_each_message_is_translated_once() -> None:
    """An adapter sees a message once, and turns share one list: a turn costs the same at any length (invariant 1)."""
    lists: list[object] = []

    class Translating(ScriptedAdapter):
        def send(self, turn: Turn) -> ModelReply:
            lists.append(turn.messages)
            turn.conversation.wire += [message.role for message in turn.conversation.untranslated()]
            assert turn.conversation.untranslated() == []
            return super().send(turn)

    adapter = Translating([saved(1), [saved(2), saved(3)], "Done."])
    adapter.evaluate(prompt_of(), Session())

    assert adapter.last_turn is not None
    assert adapter.last_turn.conversation.wire == ["assistant", "tool", "assistant", "tool", "tool"]
    assert all(messages is lists[0] for messages in lists)


def test_a_handler_knows_its_run(evaluate: Evaluate) -> None:
    """The context of a call has all that the run was given (S40)."""
    seen: list[ToolContext] = []

    def note(params: None, *, context: ToolContext) -> ToolResult[None]:
        seen.append(context)
        return ToolResult.ok(None, "noted")

    prompt = prompt_of(Tool[None, None](name="note", description="Note.", handler=note))
    session, adapter = Session(), ScriptedAdapter([ToolCall("note"), "Done."])
    deadline, tracker, heartbeat = Deadline.after(60), BudgetTracker(Budget()), Heartbeat()
    limits = {"deadline": deadline, "budget": tracker, "heartbeat": heartbeat}
    evaluate(adapter, prompt, session, **limits, run_context=RunContext("run-1"))

    context = seen[0]
    assert adapter.last_turn is not None
    assert (context.prompt, context.adapter, context.session) == (prompt, adapter, session)
    assert context.rendered_prompt is adapter.last_turn.rendered
    assert (context.deadline, context.budget_tracker, context.heartbeat) == (deadline, tracker, heartbeat)
    assert context.run_context == RunContext("run-1")


def test_every_turn_is_a_sign_of_life(evaluate: Evaluate) -> None:
    """The heartbeat beats before the model is asked."""
    beats: list[int] = []
    heartbeat = Heartbeat()
    heartbeat.add_callback(lambda: beats.append(1))
    evaluate(ScriptedAdapter([saved(1), "Done."]), prompt_of(), Session(), heartbeat=heartbeat)

    assert len(beats) == 2


def test_opening_a_section_is_left_to_the_caller(evaluate: Evaluate) -> None:
    """The request to open sections comes out of the run, recorded as an interrupted call (S21)."""
    folded = MarkdownSection(title="More", tools=[SAVE], summary="Saving.", visibility=SectionVisibility.SUMMARY)
    session = Session()
    adapter = ScriptedAdapter([ToolCall("open_sections", {"section_keys": ["more"]})])

    with pytest.raises(VisibilityExpansionRequired) as caught:
        evaluate(adapter, Prompt(PromptTemplate(sections=[folded])), session)
    assert caught.value.section_keys == ("more",)
    assert [event.outcome for event in session[ToolInvoked].all()] == ["interrupted"]


# -- resources ---------------------------------------------------------------------------------------------------------


def test_resources_are_open_for_the_run(evaluate: Evaluate) -> None:
    """Nobody needs to open the prompt's resources; what was built is closed at the end (S42)."""
    used: list[Service] = []

    def use(params: None, *, context: ToolContext) -> ToolResult[None]:
        used.append(context.resources.get(Service))
        return ToolResult.ok(None, "used")

    prompt = prompt_of(Tool[None, None](name="use", description="Use.", handler=use))
    prompt = prompt.bind(resources={Service: Binding(Service, lambda r: Service())})
    evaluate(ScriptedAdapter([ToolCall("use"), ToolCall("use"), "Done."]), prompt, Session())

    assert used[0] is used[1]
    assert used[0].closed
    assert not prompt.resources.is_open


def test_resources_that_were_open_stay_open(evaluate: Evaluate) -> None:
    """A block around several evaluations keeps the resources between them (S42)."""
    prompt = prompt_of().bind(resources={Service: Binding(Service, lambda r: Service())})

    with prompt.resources:
        service = prompt.resources.get(Service)
        evaluate(ScriptedAdapter(["One."]), prompt, Session())
        evaluate(ScriptedAdapter(["Two."]), prompt, Session())
        assert not service.closed
    assert service.closed


def test_resources_are_closed_when_the_run_fails(evaluate: Evaluate) -> None:
    """A run that raises leaves nothing open."""
    prompt = prompt_of().bind(resources={Service: Binding(Service, lambda r: Service(), eager=True)})

    with pytest.raises(PromptEvaluationError):
        evaluate(ScriptedAdapter([]), prompt, Session())
    assert not prompt.resources.is_open


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_run_has_a_largest_number_of_turns(evaluate: Evaluate) -> None:
    """A model that never answers is stopped, with all it did kept."""
    session = Session()

    with pytest.raises(PromptEvaluationError) as caught:
        evaluate(ScriptedAdapter([saved(n) for n in range(9)], max_turns=2), prompt_of(), session)
    assert str(caught.value) == (
        "The model did not come to an answer within 2 turns. "
        "The run cannot go on; start a new one with a smaller task or a larger max_turns."
    )
    assert len(session[Saved]) == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_turns": 0}, "max_turns must be 1 or more, or None for no limit, got 0."),
        ({"max_output_retries": -1}, "max_output_retries must be 0 or more, got -1."),
    ],
)
def test_limits_that_make_no_sense_are_refused(options: dict[str, int], text: str) -> None:
    """An adapter that could never answer cannot be built."""
    with pytest.raises(ValueError, match=text):
        ScriptedAdapter([], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"deadline": 5}, "deadline must be a Deadline, got int: Deadline.after(seconds)."),
        ({"budget": 5}, "budget must be a Budget or a BudgetTracker, got int: Budget(max_total_tokens=...)."),
    ],
)
def test_limits_of_another_type_are_refused(evaluate: Evaluate, limits: dict[str, Any], text: str) -> None:
    """Before the model is asked, and with the way to write them."""
    with pytest.raises(TypeError) as caught, ScriptedAdapter([]) as adapter:
        evaluate(adapter, prompt_of(), Session(), **limits)

    assert str(caught.value) == text


def test_a_retry_of_another_type_is_refused() -> None:
    """A number of attempts is not enough."""
    given: Any = 3
    with pytest.raises(TypeError, match=r"^retry must be a Retry, got int: Retry\(attempts=\.\.\.\)\.$"):
        SilentAdapter(retry=given)


class SilentAdapter(ProviderAdapter):
    """Says nothing."""

    def send(self, turn: Turn) -> ModelReply:
        return ModelReply()


def test_a_passed_deadline_asks_nobody(evaluate: Evaluate) -> None:
    """The model is not asked once the time is over (S20)."""
    adapter = ScriptedAdapter(["Done."])

    with pytest.raises(DeadlineExceededError):
        evaluate(adapter, prompt_of(), Session(), deadline=Deadline.after(0))
    assert adapter.last_turn is None


def test_a_deadline_that_passes_while_the_model_thinks_stops_its_calls(evaluate: Evaluate) -> None:
    """The call is recorded as too late and did not run (S20)."""
    clock = FakeClock()
    session = Session()

    def think(messages: Sequence[Message]) -> ToolCall:
        clock.advance(60)
        return saved(1)

    with pytest.raises(DeadlineExceededError):
        evaluate(ScriptedAdapter([think]), prompt_of(), session, deadline=Deadline.after(60, clock))
    assert [event.outcome for event in session[ToolInvoked].all()] == ["deadline"]
    assert session[Saved].all() == ()


def test_a_model_that_does_not_reply_in_time_is_given_up() -> None:
    """On an event loop the deadline ends the wait itself."""

    class Silent(ScriptedAdapter):
        async def asend(self, turn: Turn) -> ModelReply:
            await asyncio.Event().wait()
            raise AssertionError

    clock = FakeClock(start=0.0)
    with pytest.raises(DeadlineExceededError) as caught:
        asyncio.run(Silent([]).aevaluate(prompt_of(), Session(), deadline=Deadline.after(0.001, clock)))
    assert str(caught.value) == (
        "Deadline exceeded: the run had to end by 1970-01-01T00:00:00.001+00:00, and the model had not replied. "
        "It cannot go on; start a new run with a later deadline."
    )


def test_a_timeout_of_the_provider_is_not_the_deadline() -> None:
    """A client's own TimeoutError reaches the caller as it is."""

    class Slow(ScriptedAdapter):
        async def asend(self, turn: Turn) -> ModelReply:
            raise TimeoutError("read timed out")

    with pytest.raises(TimeoutError, match="read timed out") as caught:
        asyncio.run(Slow([]).aevaluate(prompt_of(), Session(), deadline=Deadline.after(60)))
    assert type(caught.value) is TimeoutError


def test_usage_of_all_turns_is_added_up(evaluate: Evaluate) -> None:
    """The response says what the whole run used."""
    turns = [ModelReply("", (saved(1),), usage=TokenUsage(10, 2, 1)), ModelReply("Done.", usage=TokenUsage(20, 3))]

    assert evaluate(ScriptedAdapter(turns), prompt_of(), Session()).usage == TokenUsage(30, 5, 1)


def test_a_used_up_budget_stops_the_calls(evaluate: Evaluate) -> None:
    """Once the tokens are gone no handler starts (S20)."""
    session = Session()
    adapter = ScriptedAdapter([ModelReply("", (saved(1),), usage=TokenUsage(90, 10))])

    with pytest.raises(BudgetExceededError):
        evaluate(adapter, prompt_of(), session, budget=Budget(max_total_tokens=100))
    assert [event.outcome for event in session[ToolInvoked].all()] == ["budget"]


def test_an_answer_that_uses_up_the_budget_is_an_answer(evaluate: Evaluate) -> None:
    """What was paid for is handed over."""
    adapter = ScriptedAdapter([ModelReply("Done.", usage=TokenUsage(90, 10))])

    assert evaluate(adapter, prompt_of(), Session(), budget=Budget(max_total_tokens=100)).text == "Done."


def test_a_tracker_counts_over_several_evaluations(evaluate: Evaluate) -> None:
    """Passing a tracker shares one budget; a run that finds it used up asks nobody."""
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    evaluate(ScriptedAdapter([ModelReply("One.", usage=TokenUsage(90, 10))]), prompt_of(), Session(), budget=tracker)
    adapter = ScriptedAdapter(["Two."])

    with pytest.raises(BudgetExceededError):
        evaluate(adapter, prompt_of(), Session(), budget=tracker)
    assert adapter.last_turn is None


def test_a_tracker_bound_as_a_resource_counts(evaluate: Evaluate) -> None:
    """The budget a prompt brings along holds without being passed."""
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    prompt = prompt_of().bind(resources={BudgetTracker: tracker})
    evaluate(ScriptedAdapter([ModelReply("Done.", usage=TokenUsage(5, 5))]), prompt, Session())

    assert tracker.consumed == TokenUsage(5, 5)


@pytest.mark.parametrize(("deadline", "of_budget"), [(30, 60), (60, 30)])
def test_the_earlier_deadline_counts(evaluate: Evaluate, deadline: float, of_budget: float) -> None:
    """A budget's deadline and the run's hold both."""
    adapter, clock = ScriptedAdapter(["Done."]), FakeClock(start=0.0)
    budget = Budget(deadline=Deadline(of_budget, clock))
    evaluate(adapter, prompt_of(), Session(), deadline=Deadline(deadline, clock), budget=budget)

    assert adapter.last_turn is not None
    assert adapter.last_turn.deadline == Deadline(30.0)


# -- output ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        '{"total": 3}',
        ' {"total": 3.0}\n',
        '```json\n{"total": 3}\n```',
        '```\n{"total": 3}```',
        'Here you are:\n\n~~~json\n{"total": 3}\n~~~\nAnything else?',
    ],
)
def test_the_answer_becomes_the_output(evaluate: Evaluate, answer: str) -> None:
    """`PromptTemplate[Total]` gives a Total, also out of a code fence."""
    response = evaluate(ScriptedAdapter([saved(3), answer]), total_prompt(), Session())

    assert (response.output, response.text) == (Total(3), answer)


@pytest.mark.parametrize("answer", ['{"total": 3}{"total": 4}', '```\n{"total": 3}\n```\nor\n```\n{"total": 4}\n```'])
def test_two_answers_are_none(evaluate: Evaluate, answer: str) -> None:
    """Nobody knows which is meant, so the model is asked."""
    response = evaluate(ScriptedAdapter([answer, '{"total": 4}']), total_prompt(), Session())

    assert (response.output, response.turns) == (Total(4), 2)


def test_a_fence_inside_an_answer_is_part_of_it(evaluate: Evaluate) -> None:
    """Only what stands around JSON is taken off."""
    prompt = Prompt(PromptTemplate[list[str]](sections=[MarkdownSection(title="Code", template="Write.")]))
    answer = '["a",\n"```\\nb\\n```"\n]'

    assert evaluate(ScriptedAdapter([answer]), prompt, Session()).output == ["a", "```\nb\n```"]
    assert evaluate(ScriptedAdapter([f"```json\n{answer}\n```"]), prompt, Session()).output == ["a", "```\nb\n```"]


def test_the_prompt_says_what_the_answer_must_be() -> None:
    """An adapter without a way of its own to pass the schema has it in the text."""
    adapter = ScriptedAdapter(['{"total": 3}'])
    adapter.evaluate(total_prompt(), Session())

    assert adapter.messages[0].text == (
        "# Sum\n\nAdd.\n\nGive your final answer as one JSON value that fits this JSON Schema, and nothing else:\n"
        '{"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"], '
        '"additionalProperties": false}'
    )


def test_an_adapter_that_passes_the_schema_on_leaves_the_prompt_alone() -> None:
    """The schema is in the turn, and not in the text as well."""

    class Native(ScriptedAdapter):
        sends_output_schema = True

    adapter = Native(['{"total": 3}'])
    adapter.evaluate(total_prompt(), Session())

    assert adapter.last_turn is not None
    assert adapter.last_turn.system == "# Sum\n\nAdd."
    assert adapter.last_turn.output_schema is not None
    assert adapter.last_turn.output_schema["required"] == ["total"]


def test_a_wrong_answer_is_told_what_is_wrong(evaluate: Evaluate) -> None:
    """The model reads every problem and may answer again."""
    adapter = ScriptedAdapter(['{"total": "3"}', '{"total": 3}'])
    response = evaluate(adapter, total_prompt(), Session())

    assert texts(adapter.messages, "user") == [
        '{"error": "The final answer does not have the form that was asked for", '
        '"details": {"total": "Expected type integer, got string \'3\'"}}\n'
        "Answer again with one JSON value that fits the schema, and nothing else."
    ]
    assert (response.output, response.turns) == (Total(3), 2)


def test_an_answer_that_was_cut_off_is_told_so(evaluate: Evaluate) -> None:
    """Half an answer is not parsed by luck; the model is asked to be brief."""
    adapter = ScriptedAdapter([ModelReply('{"total": 3', stop_reason="max_tokens"), '{"total": 3}'])
    evaluate(adapter, total_prompt(), Session())

    assert texts(adapter.messages, "user")[0].splitlines()[1:] == [
        "It was cut off because it was too long; be brief.",
        "Answer again with one JSON value that fits the schema, and nothing else.",
    ]


def test_a_model_that_cannot_answer_in_form_ends_the_run(evaluate: Evaluate) -> None:
    """The number of attempts is bounded, and the error says what was wrong."""
    adapter = ScriptedAdapter(['{"total": "3"}'] * 2, max_output_retries=1)

    with pytest.raises(PromptEvaluationError) as caught:
        evaluate(adapter, total_prompt(), Session())
    assert str(caught.value) == (
        "The final answer is no Total after 2 attempts: total: Expected type integer, got string '3'"
    )


def test_a_refusal_has_no_output(evaluate: Evaluate) -> None:
    """A model that will not answer is not asked again."""
    response = evaluate(ScriptedAdapter([ModelReply("No.", stop_reason="refusal")]), total_prompt(), Session())

    assert (response.stop_reason, response.output, response.text) == ("refusal", None, "No.")


def test_free_text_that_was_cut_off_is_handed_over(evaluate: Evaluate) -> None:
    """Without a form to fit, the caller decides what half an answer is worth."""
    response = evaluate(ScriptedAdapter([ModelReply("Once", stop_reason="max_tokens")]), prompt_of(), Session())

    assert (response.stop_reason, response.text) == ("max_tokens", "Once")


def test_an_output_of_text_is_the_text(evaluate: Evaluate) -> None:
    """`PromptTemplate[str]` asks for no JSON."""
    adapter = ScriptedAdapter(["Plain words."])
    prompt = Prompt(PromptTemplate[str](sections=[MarkdownSection(title="Say", template="Speak.")]))

    assert evaluate(adapter, prompt, Session()).output == "Plain words."
    assert adapter.messages[0].text == "# Say\n\nSpeak."


def test_an_output_can_be_a_list(evaluate: Evaluate) -> None:
    """Any type the parser knows can be asked for."""
    prompt: Prompt[Any] = Prompt(PromptTemplate[list[Total]](sections=[MarkdownSection(title="Sum")]))

    assert evaluate(ScriptedAdapter(['[{"total": 1}]']), prompt, Session()).output == [Total(1)]


# -- adapters of all kinds ---------------------------------------------------------------------------------------------


def test_a_sync_adapter_does_not_block_the_event_loop() -> None:
    """An adapter that only writes `send` is asked on another thread."""
    asked_on: list[int] = []

    class Blocking(ProviderAdapter):
        def send(self, turn: Turn) -> ModelReply:
            asked_on.append(threading.get_ident())
            return ModelReply("Done.")

    response = asyncio.run(Blocking().aevaluate(prompt_of(), Session()))

    assert response.text == "Done."
    assert asked_on != [threading.get_ident()]


def test_an_async_adapter_serves_sync_callers() -> None:
    """An adapter with an async client runs it from sync code, inside a running loop too."""

    class Async(ProviderAdapter):
        def send(self, turn: Turn) -> ModelReply:
            return workers.wait_for(self.asend(turn))

        async def asend(self, turn: Turn) -> ModelReply:
            return ModelReply("Done.")

    async def inside_a_loop() -> PromptResponse[Any]:
        return Async().evaluate(prompt_of(), Session())

    assert asyncio.run(inside_a_loop()).text == "Done."


def test_one_adapter_serves_many_runs_at_once() -> None:
    """An adapter holds no run: conversations do not mix."""

    class Echo(ProviderAdapter):
        def send(self, turn: Turn) -> ModelReply:
            return ModelReply(turn.messages[-1].text) if turn.number > 1 else ModelReply("", (saved(len(turn.system)),))

    adapter = Echo()
    prompts = [Prompt(PromptTemplate(sections=[MarkdownSection(template="x" * n, tools=[SAVE])])) for n in (1, 2, 3)]

    async def together() -> list[str]:
        runs = [adapter.aevaluate(prompt, Session()) for prompt in prompts]
        return [response.text for response in await asyncio.gather(*runs)]

    assert asyncio.run(together()) == ["saved 1\n\nkept", "saved 2\n\nkept", "saved 3\n\nkept"]


def test_a_sub_agent_is_part_of_the_call_that_runs_it(evaluate: Evaluate) -> None:
    """When the call fails, what its sub-agent did is taken back with it (S7)."""
    inner = prompt_of(SAVE)

    def delegate(params: None, *, context: ToolContext) -> ToolResult[str]:
        answer = context.adapter.evaluate(inner, context.session)
        return ToolResult.error(f"the sub-agent said: {answer.text}")

    session = Session()
    adapter = ScriptedAdapter([ToolCall("delegate"), saved(1), "Inner done.", "Outer done."])
    outer = prompt_of(Tool[None, str](name="delegate", description="Delegate.", handler=delegate))
    response = evaluate(adapter, outer, session)

    assert texts(response.messages, "tool") == ["the sub-agent said: Inner done."]
    assert session[Saved].all() == ()
    assert [event.outcome for event in session[ToolInvoked].all()] == ["ok", "failed"]


# -- one step at a time ------------------------------------------------------------------------------------------------


def test_a_step_stops_at_the_calls() -> None:
    """Nothing is run; the response says what the model wants (S47)."""
    session = Session()
    response = ScriptedAdapter([saved(1)]).stepwise().evaluate(prompt_of(), session=session)

    assert response.stop_reason == "tool_use"
    assert [(call.name, dict(call.params)) for call in response.tool_calls] == [("save", {"n": 1})]
    assert session[ToolInvoked].all() == ()


def test_a_call_of_a_step_knows_its_prompt() -> None:
    """`execute_tool` needs the session alone (S52)."""
    session = Session()
    response = ScriptedAdapter([saved(1)]).stepwise().evaluate(prompt_of(), session=session)

    assert execute_tool(response.tool_calls[0], session=session).text == "saved 1\n\nkept"


def test_steps_go_on_with_the_results() -> None:
    """The model reads the failure, corrects its call and answers, all in one conversation (S47)."""
    session, prompt = Session(), prompt_of()
    adapter = ScriptedAdapter([saved(-1), saved(1), "Done."])
    steps = adapter.stepwise()

    first = steps.evaluate(prompt, session=session)
    failed = execute_tool(first.tool_calls[0], session=session)
    second = steps.evaluate(prompt, session=session, tool_results=[failed])
    done = execute_tool(second.tool_calls[0], session=session)
    third = steps.evaluate(prompt, session=session, tool_results=[done])

    assert not failed.success
    assert done.success
    assert (third.stop_reason, third.text, third.turns, third.tool_calls) == ("end_turn", "Done.", 3, ())
    assert texts(adapter.messages, "tool") == ["n cannot be negative; retry with 0 or more", "saved 1\n\nkept"]


def test_a_step_that_could_not_reach_the_model_can_be_tried_again() -> None:
    """The same results are given again and stand in the conversation once."""

    def unreachable(messages: Sequence[Message]) -> str:
        raise ConnectionError("no route")

    session, prompt = Session(), prompt_of()
    adapter = ScriptedAdapter([saved(1), unreachable, "Done."])
    steps = adapter.stepwise()
    outcome = execute_tool(steps.evaluate(prompt, session).tool_calls[0], session=session)

    with pytest.raises(ConnectionError):
        steps.evaluate(prompt, session, tool_results=[outcome])
    assert steps.evaluate(prompt, session, tool_results=[outcome]).text == "Done."
    assert texts(adapter.messages, "tool") == ["saved 1\n\nkept"]


def test_steps_work_on_an_event_loop() -> None:
    """`aevaluate` is the async twin."""
    session, prompt = Session(), prompt_of()
    steps = ScriptedAdapter([saved(1), "Done."]).stepwise()

    async def both() -> str:
        first = await steps.aevaluate(prompt, session)
        outcome = execute_tool(first.tool_calls[0], session=session)
        return (await steps.aevaluate(prompt, session, tool_results=[outcome])).text

    assert asyncio.run(both()) == "Done."


def test_a_step_without_results_begins_anew() -> None:
    """A new conversation knows nothing of the one before."""
    steps = (adapter := ScriptedAdapter([saved(1), "Done."])).stepwise()
    steps.evaluate(prompt_of(), Session())
    response = steps.evaluate(prompt_of(), Session())

    assert response.turns == 1
    assert [message.role for message in adapter.messages] == ["system", "assistant"]


def test_a_step_asks_again_for_an_answer_in_form() -> None:
    """Only calls and answers end a step; a wrong answer is the loop's business."""
    response = ScriptedAdapter(["three", '{"total": 3}']).stepwise().evaluate(total_prompt(), Session())

    assert (response.output, response.turns) == (Total(3), 2)


def test_results_must_answer_the_calls_in_order() -> None:
    """A missing or swapped result is the caller's mistake, said at once."""
    session, prompt = Session(), prompt_of()
    steps = ScriptedAdapter([[ToolCall("save", {"n": n}, f"c{n}") for n in (1, 2)]]).stepwise()
    calls = steps.evaluate(prompt, session).tool_calls
    outcomes = [execute_tool(call, session=session) for call in calls]

    with pytest.raises(ValueError, match=r"^tool_results must answer the calls c1, c2 in this order, got c2, c1\.$"):
        steps.evaluate(prompt, session, tool_results=outcomes[::-1])
    with pytest.raises(ValueError, match=r"^tool_results must answer the calls c1, c2 in this order, got none\.$"):
        steps.evaluate(prompt, session, tool_results=[])


def test_results_without_calls_are_refused() -> None:
    """There is nothing to answer before the first step, nor after the last."""
    steps = ScriptedAdapter(["Done."]).stepwise()
    refused = "^No tool call waits for a result here. Leave tool_results out to begin a conversation.$"

    with pytest.raises(ValueError, match=refused):
        steps.evaluate(prompt_of(), Session(), tool_results=[])
    steps.evaluate(prompt_of(), Session())
    with pytest.raises(ValueError, match=refused):
        steps.evaluate(prompt_of(), Session(), tool_results=[])


def test_steps_keep_their_prompt_and_session() -> None:
    """Going on with another session would mix two stories."""
    session, prompt = Session(), prompt_of()
    steps = ScriptedAdapter([saved(1)]).stepwise()
    outcome = execute_tool(steps.evaluate(prompt, session).tool_calls[0], session=session)

    refused = "^This conversation has another prompt or session. Go on with the same ones.$"
    with pytest.raises(ValueError, match=refused):
        steps.evaluate(prompt, Session(), tool_results=[outcome])
    with pytest.raises(ValueError, match=refused):
        steps.evaluate(prompt_of(), session, tool_results=[outcome])


def test_a_budget_of_the_first_step_holds_for_the_later_ones() -> None:
    """Limits are the conversation's."""
    session, prompt = Session(), prompt_of()
    steps = ScriptedAdapter([ModelReply("", (saved(1),), usage=TokenUsage(90, 10)), "Done."]).stepwise()
    first = steps.evaluate(prompt, session, budget=Budget(max_total_tokens=100))
    outcome = execute_tool(first.tool_calls[0], session=session)

    with pytest.raises(BudgetExceededError):
        steps.evaluate(prompt, session, tool_results=[outcome])
