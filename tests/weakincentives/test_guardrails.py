"""Claims about guards: feedback while the model works, completion checks when it wants to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import (
    ApprovalPolicy,
    CompletionChecked,
    Feedback,
    FeedbackGiven,
    GuardContext,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall, execute_tool

HEAD = "Feedback on the work so far (from the runtime, not from the user):"
NOT_COMPLETE = (
    "The task is not complete:\n- {}\n\n"
    "Do what is missing, then give your final answer again. If it cannot be done, say in the answer what and why."
)


@dataclass(frozen=True)
class Mark:
    n: int = 0


@dataclass(frozen=True)
class Total:
    total: int


def _mark(params: Mark, *, context: ToolContext) -> ToolResult[None]:
    context.session[Mark].append(params)
    return ToolResult.ok(None, "marked")


def _look(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.ok(None, "looked")


def _fail(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.error("no")


TOOLS: tuple[Tool[Any, Any], ...] = (
    Tool[Mark, None](name="mark", description="Mark.", handler=_mark),
    Tool[None, None](name="look", description="Look.", handler=_look),
    Tool[None, None](name="fail", description="Fail.", handler=_fail),
)
LOOK = ToolCall("look", {})


@dataclass
class Seen:
    """A guard that says what it is told to and remembers what it saw."""

    says: str | None = None
    contexts: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, context: GuardContext) -> str | None:
        self.contexts.append((context.turns, context.calls, context.idle_calls, context.failed_calls))
        return self.says


def prompt_of(**options: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="Work", template="Do it.", tools=TOOLS)], **options))


def run(prompt: Prompt[Any], turns: Sequence[Any], session: Session | None = None, **limits: Any) -> Any:
    with ScriptedAdapter(turns) as adapter:
        return adapter.evaluate(prompt, Session() if session is None else session, **limits)


def told(response: Any) -> list[str]:
    """What the model read that was neither the prompt nor a tool's result."""
    return [message.text for message in response.messages if message.role == "user"]


# -- feedback ----------------------------------------------------------------------------------------------------------


def test_feedback_is_told_to_the_model_after_the_results_of_its_calls() -> None:
    """It stands behind the last result, in words that say whom it is from."""
    heard: list[Message] = []

    def answer(messages: Sequence[Message]) -> str:
        heard.extend(messages)
        return "done"

    run(prompt_of(feedback=[lambda context: "Look closer."]), [LOOK, answer])
    assert [(message.role, message.text) for message in heard[-2:]] == [
        ("tool", "looked"),
        ("user", f"{HEAD}\n\nLook closer."),
    ]


def test_what_several_guards_say_is_one_message() -> None:
    """Those of sections first, in document order, then the prompt's; nothing from those who are silent."""
    section = MarkdownSection(title="Work", tools=TOOLS, feedback=[lambda context: "One."])
    silent = MarkdownSection(title="More", feedback=[lambda context: None])
    prompt = Prompt(PromptTemplate(sections=[silent, section], feedback=[lambda context: " Two.\n"]))
    assert told(run(prompt, [LOOK, "done"])) == [f"{HEAD}\n\nOne.\n\nTwo."]


def test_feedback_is_recorded_once_with_its_place() -> None:
    """The log says which guard spoke, when, and what it said."""
    clock = FakeClock()
    session = Session(clock=clock)

    def nag(context: GuardContext) -> str:
        return "Hurry."

    run(prompt_of(feedback=[nag]), [LOOK, LOOK, "done"], session)
    assert session[FeedbackGiven].all() == (FeedbackGiven("nag#0", "Hurry.", 1, clock.now(), session.session_id),)


def test_a_guard_without_interval_says_the_same_thing_once() -> None:
    """It is asked after every turn, but the model reads only what is new."""
    guard = Seen("Look closer.")
    response = run(prompt_of(feedback=[guard]), [LOOK, LOOK, LOOK, "done"])
    assert len(guard.contexts) == 3
    assert told(response) == [f"{HEAD}\n\nLook closer."]


def test_what_became_true_again_is_said_again() -> None:
    """A guard that had nothing to say in between does not repeat itself."""
    words = iter(["Wait.", None, "Wait."])
    assert len(told(run(prompt_of(feedback=[lambda context: next(words)]), [LOOK, LOOK, LOOK, "done"]))) == 2


def test_an_interval_of_calls_counts_calls_not_turns() -> None:
    """It is asked when enough calls were made since it was asked last, and may repeat itself."""
    guard = Seen("Still there?")
    prompt = prompt_of(feedback=[Feedback(guard, every_calls=3)])
    response = run(prompt, [LOOK, [LOOK, LOOK], LOOK, [LOOK, LOOK, LOOK], "done"])
    assert [calls for _, calls, _, _ in guard.contexts] == [3, 7]
    assert told(response) == [f"{HEAD}\n\nStill there?"] * 2


def test_an_interval_of_seconds_goes_by_the_clock_of_the_session() -> None:
    """The first one begins with the run."""
    clock = FakeClock()
    guard = Seen("Time.")

    def later(seconds: float) -> Any:
        def turn(messages: Sequence[Message]) -> ToolCall:
            clock.advance(seconds)
            return LOOK

        return turn

    prompt = prompt_of(feedback=[Feedback(guard, every_seconds=60)])
    run(prompt, [later(59), later(1), later(59), later(2), "done"], Session(clock=clock))
    assert [turns for turns, *_ in guard.contexts] == [2, 4]


def test_a_guard_sees_how_far_the_run_has_come() -> None:
    """Turns, calls, calls that changed nothing since the last change, failures in a row."""
    guard = Seen()
    run(prompt_of(feedback=[guard]), [ToolCall("mark", {"n": 1}), [LOOK, ToolCall("fail", {})], LOOK, "done"])
    assert guard.contexts == [(1, 1, 0, 0), (2, 3, 2, 1), (3, 4, 3, 0)]


def test_a_guard_reads_session_files_and_outcomes() -> None:
    """It has what a handler has, and the outcomes of the last turn."""
    seen: list[object] = []

    def look(context: GuardContext) -> None:
        assert context.filesystem is not None
        seen.extend((context.filesystem.read("a.txt"), context.session[Mark].latest(), context.outcomes[0].text))

    prompt = prompt_of(feedback=[look]).bind(resources={Filesystem: InMemoryFilesystem({"a.txt": "hello"})})
    run(prompt, [ToolCall("mark", {"n": 7}), "done"])
    assert seen == ["hello", Mark(7), "marked"]


def test_a_guard_cannot_write(caplog: pytest.LogCaptureFixture) -> None:
    """Neither to the session nor to files; trying is logged as its failure."""
    fs = InMemoryFilesystem()
    session = Session()

    def slice_writer(context: GuardContext) -> None:
        context.session[Mark].append(Mark(9))

    def file_writer(context: GuardContext) -> None:
        assert context.filesystem is not None
        context.filesystem.write("a.txt", "x")

    prompt = prompt_of(feedback=[slice_writer, file_writer]).bind(resources={Filesystem: fs})
    run(prompt, [LOOK, "done"], session)
    assert session[Mark].all() == ()
    assert not fs.exists("a.txt")
    assert [record.getMessage() for record in caplog.records] == [
        "Feedback slice_writer#0 failed",
        "Feedback file_writer#1 failed",
    ]


def test_a_guard_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The others still speak, and the run ends as it would have."""

    def broken(context: GuardContext) -> str:
        raise RuntimeError("boom")

    response = run(prompt_of(feedback=[broken, lambda context: 5, lambda context: "Fine."]), [LOOK, "done"])
    assert response.text == "done"
    assert told(response) == [f"{HEAD}\n\nFine."]
    assert "Feedback broken#0 failed" in caplog.messages


def test_an_async_guard_is_waited_for_with_and_without_a_loop() -> None:
    """Both ways of running a prompt ask it."""

    async def guard(context: GuardContext) -> str:
        await asyncio.sleep(0)
        return "Async."

    prompt = prompt_of(feedback=[guard], completion=[guard], max_reminders=1)
    turns = [LOOK, "early", "done"]
    sync = run(prompt, turns)
    aside = asyncio.run(ScriptedAdapter(turns).aevaluate(prompt, Session()))
    assert told(sync) == told(aside) == [f"{HEAD}\n\nAsync.", NOT_COMPLETE.format("Async.")]


def test_the_guards_of_a_disabled_section_are_not_asked() -> None:
    """Those of a folded one are: what they guard goes on."""
    off, folded = Seen("off"), Seen("folded")
    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(title="Work", tools=TOOLS),
                MarkdownSection(title="Off", enabled=lambda: False, feedback=[off], completion=[off]),
                MarkdownSection(
                    title="Folded", summary="More.", visibility=SectionVisibility.SUMMARY, feedback=[folded]
                ),
            ]
        )
    )
    run(prompt, [LOOK, "done"])
    assert (len(off.contexts), len(folded.contexts)) == (0, 1)


def test_sections_that_are_bound_bring_their_guards() -> None:
    """It makes no difference whether a section stands in the template or is bound, and the template's stay."""
    bound = MarkdownSection(title="Bound", feedback=[lambda context: "bound"])
    prompt = prompt_of(feedback=[lambda context: "own"]).bind(sections=[bound])
    assert told(run(prompt, [LOOK, "done"])) == [f"{HEAD}\n\nbound\n\nown"]


def test_very_long_feedback_is_cut() -> None:
    """A guard cannot flood the conversation."""
    response = run(prompt_of(feedback=[lambda context: "x" * 5_000]), [LOOK, "done"])
    assert told(response) == [f"{HEAD}\n\n{'x' * 4_000} [cut: 4000 of 5000 characters]"]


def test_stepwise_conversations_are_guarded_too() -> None:
    """Feedback comes with the tool results, an early end is sent back."""
    prompt = prompt_of(
        feedback=[lambda context: "Look closer."], completion=[lambda c: None if c.calls > 1 else "Look."]
    )
    session = Session()
    steps = ScriptedAdapter([LOOK, "early", LOOK, "done"]).stepwise()
    first = steps.evaluate(prompt, session)
    second = steps.evaluate(prompt, session, tool_results=[execute_tool(first.tool_calls[0], session=session)])
    assert second.stop_reason == "tool_use"
    last = steps.evaluate(prompt, session, tool_results=[execute_tool(second.tool_calls[0], session=session)])
    assert told(last) == [f"{HEAD}\n\nLook closer.", NOT_COMPLETE.format("Look.")]


# -- completion --------------------------------------------------------------------------------------------------------


def test_a_model_that_ends_too_early_is_told_what_is_missing_and_goes_on() -> None:
    """The run ends when the checks are content."""
    check = [lambda context: None if context.session[Mark].latest() else "Nothing is marked. Call mark."]
    response = run(prompt_of(completion=check), ["early", ToolCall("mark", {"n": 1}), "done"])
    assert (response.text, response.unfinished, response.turns) == ("done", (), 3)
    assert told(response) == [NOT_COMPLETE.format("Nothing is marked. Call mark.")]


def test_all_checks_are_asked_and_all_that_is_missing_is_told() -> None:
    """The model needs one more turn, not one for each."""
    response = run(prompt_of(completion=[lambda c: "A", lambda c: "B"], max_reminders=1), ["early", "done"])
    assert told(response) == [NOT_COMPLETE.format("A\n- B")]


def test_the_model_is_sent_back_a_bounded_number_of_times() -> None:
    """Then its answer is taken, and says what is unfinished."""
    response = run(prompt_of(completion=[lambda context: "Never."], max_reminders=2), ["a", "b", "c"])
    assert (response.text, response.unfinished) == ("c", ("Never.",))


def test_three_reminders_are_the_default() -> None:
    """Enough for a model that forgot something."""
    response = run(prompt_of(completion=[lambda context: "Never."]), ["a", "b", "c", "d"])
    assert response.text == "d"


def test_without_reminders_the_checks_only_look() -> None:
    """Whoever runs the prompt reads what is unfinished."""
    response = run(prompt_of(completion=[lambda context: "No."], max_reminders=0), ["a"])
    assert (told(response), response.unfinished) == ([], ("No.",))


def test_each_check_of_an_answer_is_recorded() -> None:
    """What was missing, whether the model was told, and in the end that it was complete."""
    clock = FakeClock()
    session = Session(clock=clock)
    check = [lambda context: None if context.answer == "done" else "Say done."]
    run(prompt_of(completion=check), ["early", "done"], session)
    now, sid = clock.now(), session.session_id
    assert session[CompletionChecked].all() == (
        CompletionChecked(False, ("Say done.",), (), True, 1, now, sid),
        CompletionChecked(True, (), (), False, 2, now, sid),
    )


def test_a_check_sees_the_answer_and_its_output() -> None:
    """It may judge what the model says, not only what it did."""
    prompt = Prompt(
        PromptTemplate[Total](completion=[lambda c: None if c.output.total > 5 else f"{c.answer} is too little."])
    )
    response = run(prompt, ['{"total": 1}', '{"total": 6}'])
    assert response.output == Total(6)
    assert told(response) == [NOT_COMPLETE.format('{"total": 1} is too little.')]


def test_a_check_that_raises_does_not_stop_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The model is not bothered with it; the response and the record name it."""
    session = Session()

    def broken(context: GuardContext) -> str:
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR):
        response = run(prompt_of(completion=[broken]), ["done"], session)
    why = "Completion check broken#0 raised RuntimeError: boom"
    assert (response.text, response.unfinished) == ("done", (why,))
    checked = session[CompletionChecked].latest()
    assert checked is not None
    assert (checked.complete, checked.failures) == (False, (why,))


def test_a_refusal_is_not_sent_back() -> None:
    """A model that will not go on is not asked to."""
    guard = Seen("More.")
    response = run(prompt_of(completion=[guard]), [ModelReply("I will not.", stop_reason="refusal")])
    assert (response.stop_reason, guard.contexts) == ("refusal", [])


def test_a_run_that_waits_for_approval_is_not_sent_back() -> None:
    """The model can do nothing more until somebody has decided."""
    guard = Seen("More.")
    prompt = prompt_of(completion=[guard], policies=[ApprovalPolicy(tools=["look"])])
    response = run(prompt, [LOOK, "waiting"])
    assert (len(response.pending), guard.contexts) == (1, [])


@pytest.mark.parametrize("limit", ["turns", "deadline", "budget"])
def test_an_answer_is_not_lost_to_a_limit(limit: str) -> None:
    """When no further turn is possible, the answer is taken with what is unfinished."""
    clock = FakeClock()
    adapter = ScriptedAdapter(
        [ModelReply("early", usage=TokenUsage(10, 10))], max_turns=1 if limit == "turns" else None
    )

    def check(context: GuardContext) -> str:
        clock.advance(100)
        return "More."

    limits: dict[str, Any] = {}
    if limit == "deadline":
        limits["deadline"] = Deadline.after(100, clock)
        clock.advance(99.5)
        adapter = ScriptedAdapter([lambda messages: clock.advance(1) or "early"])
    elif limit == "budget":
        limits["budget"] = Budget(max_total_tokens=20)
    response = adapter.evaluate(prompt_of(completion=[check]), Session(clock=clock), **limits)
    assert (response.text, response.unfinished) == ("early", ("More.",))


def test_a_durable_session_keeps_what_was_said(tmp_path: Path) -> None:
    """Feedback and checks are history, as calls are."""
    prompt = prompt_of(feedback=[lambda context: "Look closer."], completion=[lambda context: "More."], max_reminders=0)
    with Session.open(tmp_path / "session") as session:
        run(prompt, [LOOK, "done"], session)
        before = (session[FeedbackGiven].all(), session[CompletionChecked].all())
    with Session.open(tmp_path / "session") as session:
        assert (session[FeedbackGiven].all(), session[CompletionChecked].all()) == before
        assert [len(events) for events in before] == [1, 1]


def test_what_was_said_outlives_a_rollback_around_the_run() -> None:
    """The model has read it, whatever becomes of its work."""
    session = Session()
    with pytest.raises(RuntimeError), session.transaction():
        run(prompt_of(feedback=[lambda context: "Look closer."]), [ToolCall("mark", {"n": 1}), "done"], session)
        raise RuntimeError
    assert (len(session[Mark]), len(session[FeedbackGiven])) == (0, 1)


def test_a_sub_agent_inside_a_read_only_tool_is_guarded() -> None:
    """Its run may not write, but what it was told is recorded."""
    session = Session()
    inner = prompt_of(feedback=[lambda context: "Look closer."], completion=[lambda context: None])

    def ask(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None, ScriptedAdapter([LOOK, "inner"]).evaluate(inner, context.session).text)

    tool = Tool[None, None](name="ask", description="Ask.", handler=ask, effects="none")
    outcome = execute_tool(
        ToolCall("ask", {}), prompt=Prompt(PromptTemplate()).bind(extra_tools=[tool]), session=session
    )
    assert (outcome.text, len(session[FeedbackGiven])) == ("inner", 1)


def test_an_unguarded_prompt_records_nothing() -> None:
    """Who declares no guard pays for none."""
    session = Session()
    assert run(prompt_of(), [LOOK, "done"], session).unfinished == ()
    assert session[CompletionChecked].all() == session[FeedbackGiven].all() == ()


# -- declaring them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"every_calls": 0}, "Feedback: every_calls must be an integer of 1 or more, got 0."),
        ({"every_calls": True}, "Feedback: every_calls must be an integer of 1 or more, got True."),
        ({"every_seconds": 0}, "Feedback: every_seconds must be a number above 0, got 0."),
        ({"every_seconds": float("nan")}, "Feedback: every_seconds must be a number above 0, got nan."),
    ],
)
def test_intervals_that_mean_nothing_are_refused(options: dict[str, Any], why: str) -> None:
    """At once, not in the middle of a run."""
    with pytest.raises(PromptValidationError) as caught:
        Feedback(lambda context: None, **options)
    assert str(caught.value) == why


@pytest.mark.parametrize("word", ["feedback", "completion"])
def test_what_is_no_function_is_refused(word: str) -> None:
    """Also a class that somebody forgot to make an instance of."""
    says = f"{{}}: {word}= takes functions of a GuardContext that return text or None, got {{}}."
    with pytest.raises(PromptValidationError) as caught:
        PromptTemplate(**{word: [Seen]})
    assert str(caught.value) == says.format("PromptTemplate", "the class Seen")
    with pytest.raises(PromptValidationError) as caught:
        MarkdownSection(title="Work", **{word: ["x"]})
    assert str(caught.value) == says.format("Section 'Work'", "str")


def test_a_negative_number_of_reminders_is_refused() -> None:
    """Zero is fine: the checks then only look."""
    with pytest.raises(PromptValidationError) as caught:
        PromptTemplate(max_reminders=-1)
    assert str(caught.value) == "PromptTemplate: max_reminders must be 0 or more, got -1."
