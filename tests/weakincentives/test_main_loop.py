"""Claims about the main loop: what it prepares, opens, closes, bounds and tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RunContext,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import (
    EventBus,
    MainLoop,
    MainLoopConfig,
    RunFailed,
    RunFinished,
    RunStarted,
    Session,
    ToolCall,
    ToolInvoked,
)


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Answer:
    text: str


class Service:
    """A resource with a name that knows whether it is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Other(Service):
    pass


def use(params: None, *, context: ToolContext) -> ToolResult[str]:
    other = context.resources.get_optional(Other)
    return ToolResult.ok(" ".join(s.name for s in (context.resources.get(Service), other) if s is not None))


USE = Tool[None, str](name="use", description="Use the service.", handler=use)
ASK = MarkdownSection[Question](title="Ask", key="ask", template="${text}", tools=[USE])
TEMPLATE = PromptTemplate(sections=[ASK])


class Loop(MainLoop[Question, None]):
    """Asks what it is asked, in a new session."""

    def prepare(self, request: Question) -> Prompt[None]:
        return Prompt(TEMPLATE).bind(request)


class Prepared(MainLoop[Any, Any]):
    """Runs what it is given."""

    def prepare(self, request: Any) -> Any:
        return request


QUESTION = Question("Why?")
Execute = Callable[..., tuple[Any, Session]]


@pytest.fixture(params=["sync", "async"])
def execute(request: pytest.FixtureRequest) -> Execute:
    """Both ways to run a request."""
    if request.param == "sync":
        return lambda loop, *args, **options: loop.execute(*args, **options)
    return lambda loop, *args, **options: asyncio.run(loop.aexecute(*args, **options))


def heard(bus: EventBus) -> list[object]:
    """What subscribers of run events are told."""
    events: list[object] = []
    for kind in (RunStarted, RunFinished, RunFailed):
        bus.subscribe(kind, events.append)
    return events


def told(adapter: ScriptedAdapter) -> list[str]:
    return [message.text for message in adapter.messages if message.role == "tool"]


# -- what is prepared --------------------------------------------------------------------------------------------------


def test_a_request_becomes_an_answer(execute: Execute) -> None:
    """The prompt is made of the request; response and session come back (S46)."""
    adapter = ScriptedAdapter(["Because."])
    response, session = execute(Loop(adapter=adapter), QUESTION)

    assert response.text == "Because."
    assert adapter.messages[0].text == "# Ask\n\nWhy?"
    assert isinstance(session, Session)


def test_the_answer_can_have_a_type(execute: Execute) -> None:
    """A template's output type is the response's."""
    prompt = Prompt(PromptTemplate[Answer](sections=[MarkdownSection(title="Ask")]))
    response, _ = execute(Prepared(adapter=ScriptedAdapter(['{"text": "So."}'])), prompt)

    assert response.output == Answer("So.")


def test_each_request_has_a_session_of_its_own(execute: Execute) -> None:
    """With a prompt alone nothing is shared between requests."""
    loop = Loop(adapter=ScriptedAdapter(["One.", "Two."]))

    assert execute(loop, QUESTION)[1] != execute(loop, QUESTION)[1]


def test_prepare_may_bring_a_session(execute: Execute) -> None:
    """The run goes on in the session that was given (S46)."""
    session = Session()
    prompt = Prompt(TEMPLATE).bind(QUESTION)

    assert execute(Prepared(adapter=ScriptedAdapter(["So."])), (prompt, session))[1] is session


def test_prepare_may_be_async(execute: Execute) -> None:
    """A loop may have to fetch what a request is about."""

    class Fetching(MainLoop[Question, None]):
        async def prepare(self, request: Question) -> Prompt[None]:
            await asyncio.sleep(0)
            return Prompt(TEMPLATE).bind(request)

    assert execute(Fetching(adapter=ScriptedAdapter(["So."])), QUESTION)[0].text == "So."


@pytest.mark.parametrize("wrong", [None, "text", (1, 2)])
def test_prepare_must_answer_a_prompt(execute: Execute, wrong: Any) -> None:
    """The error says what is expected of a subclass."""
    with pytest.raises(TypeError) as caught:
        execute(Prepared(adapter=ScriptedAdapter([])), wrong)
    assert str(caught.value) == (f"Prepared.prepare must return a Prompt, or a Prompt and a Session, got {wrong!r}.")


# -- resources ---------------------------------------------------------------------------------------------------------


def test_resources_of_the_loop_reach_the_handlers(execute: Execute) -> None:
    """They are built for the request and closed after it."""
    built: list[Service] = []

    def build(_: object) -> Service:
        built.append(Service("loop's"))
        return built[-1]

    adapter = ScriptedAdapter([ToolCall("use"), "So.", ToolCall("use"), "So."])
    loop = Loop(adapter=adapter, config=MainLoopConfig(resources={Service: Binding(Service, build)}))
    execute(loop, QUESTION)
    execute(loop, QUESTION)

    assert [service.closed for service in built] == [True, True]
    assert told(adapter) == ["loop's"]


def test_resources_of_the_request_are_merged_over_the_loops(execute: Execute) -> None:
    """What the request brings replaces the loop's; the rest of the loop's stays (S43)."""
    adapter = ScriptedAdapter([ToolCall("use"), "So."])
    config = MainLoopConfig(resources={Service: Service("loop's"), Other: Other("other")})
    execute(Loop(adapter=adapter, config=config), QUESTION, resources={Service: Service("request's")})

    assert told(adapter) == ["request's other"]


def test_resources_of_the_loop_are_bound_over_the_prompts(execute: Execute) -> None:
    """Whoever runs a prompt has the last word on what it runs with."""
    adapter = ScriptedAdapter([ToolCall("use"), "So."])
    prompt = Prompt(TEMPLATE).bind(QUESTION, resources={Service: Service("prompt's")})
    registry = ResourceRegistry.of(Binding.instance(Service, Service("loop's")))
    execute(Prepared(adapter=adapter, config=MainLoopConfig(resources=registry)), prompt)

    assert told(adapter) == ["loop's"]


def test_instances_that_were_passed_in_are_not_closed(execute: Execute) -> None:
    """What somebody else built somebody else closes (S41)."""
    service = Service("kept")
    execute(Loop(adapter=ScriptedAdapter([ToolCall("use"), "So."])), QUESTION, resources={Service: service})

    assert not service.closed


def test_resources_are_closed_when_the_run_fails(execute: Execute) -> None:
    """Closing does not depend on an answer."""
    service = Service("eager")
    config = MainLoopConfig(resources={Service: Binding(Service, lambda r: service, eager=True)})

    with pytest.raises(PromptEvaluationError):
        execute(Loop(adapter=ScriptedAdapter([]), config=config), QUESTION)
    assert service.closed


# -- limits ------------------------------------------------------------------------------------------------------------


def deadline_of(adapter: ScriptedAdapter) -> Deadline | None:
    assert adapter.last_turn is not None
    return adapter.last_turn.deadline


def test_a_deadline_of_the_loop_holds_for_requests(execute: Execute) -> None:
    """A request that says nothing has the loop's."""
    adapter = ScriptedAdapter(["So."])
    deadline = Deadline.after(60)
    execute(Loop(adapter=adapter, config=MainLoopConfig(deadline=deadline)), QUESTION)

    assert deadline_of(adapter) == deadline


@pytest.mark.parametrize("timeout", [30, timedelta(seconds=30)])
def test_a_timeout_begins_with_each_request(execute: Execute, timeout: Any) -> None:
    """It is counted on the session's clock; the earlier of it and the deadline holds."""
    clock, adapter = FakeClock(start=0.0), ScriptedAdapter(["So.", "So."])
    loop = Prepared(adapter=adapter, config=MainLoopConfig(timeout=timeout, deadline=Deadline(100, clock)))
    prompt = Prompt(TEMPLATE).bind(QUESTION)

    execute(loop, (prompt, Session(clock=clock)))
    assert deadline_of(adapter) == Deadline(30.0)
    clock.advance(90)
    execute(loop, (prompt, Session(clock=clock)))
    assert deadline_of(adapter) == Deadline(100.0)


def test_a_deadline_of_the_request_replaces_the_loops(execute: Execute) -> None:
    """The request has the last word, also with more time."""
    adapter, deadline = ScriptedAdapter(["So."]), Deadline.after(60)
    config = MainLoopConfig(deadline=Deadline.after(30), timeout=10)
    execute(Loop(adapter=adapter, config=config), QUESTION, deadline=deadline)

    assert deadline_of(adapter) == deadline


def test_a_passed_deadline_fails_the_request(execute: Execute) -> None:
    """The model is not asked (S20)."""
    with pytest.raises(DeadlineExceededError):
        execute(Loop(adapter=ScriptedAdapter([])), QUESTION, deadline=Deadline.after(0))


def test_a_budget_of_the_loop_counts_for_each_request(execute: Execute) -> None:
    """One request cannot use up another's tokens."""
    adapter = ScriptedAdapter([ModelReply("So.", usage=TokenUsage(90, 10))] * 2)
    loop = Loop(adapter=adapter, config=MainLoopConfig(budget=Budget(max_total_tokens=100)))

    assert [execute(loop, QUESTION)[0].usage.total_tokens for _ in range(2)] == [100, 100]


def test_a_budget_of_the_request_replaces_the_loops(execute: Execute) -> None:
    """A tracker can be passed to count several requests together."""
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    adapter = ScriptedAdapter([ModelReply("So.", usage=TokenUsage(90, 10)), "So."])
    loop = Loop(adapter=adapter, config=MainLoopConfig(budget=Budget(max_total_tokens=1_000)))
    execute(loop, QUESTION, budget=tracker)

    with pytest.raises(BudgetExceededError):
        execute(loop, QUESTION, budget=tracker)


def test_the_heartbeat_beats_while_a_request_runs(execute: Execute) -> None:
    """The request's heartbeat replaces the loop's."""
    loops, requests = Heartbeat(), Heartbeat()
    beats: list[str] = []
    loops.add_callback(lambda: beats.append("loop"))
    requests.add_callback(lambda: beats.append("request"))
    loop = Loop(adapter=ScriptedAdapter(["So.", "So."]), config=MainLoopConfig(heartbeat=loops))

    execute(loop, QUESTION)
    execute(loop, QUESTION, heartbeat=requests)
    assert beats == ["loop", "request"]


# -- opening sections --------------------------------------------------------------------------------------------------


def noop(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.ok(None, "nothing")


NOOP = Tool[None, None](name="noop", description="Do nothing.", handler=noop)


FOLDED = MarkdownSection(
    title="More", template="All of it.", tools=[USE], summary="A part.", visibility=SectionVisibility.SUMMARY
)
OPEN = ToolCall("open_sections", {"section_keys": ["more"]})


def test_the_loop_opens_the_sections_a_model_asks_for(execute: Execute) -> None:
    """The prompt is evaluated anew with the section in full, and its tools there."""
    prompt = Prompt(PromptTemplate(sections=[FOLDED]))
    with ScriptedAdapter([OPEN, ToolCall("use"), "So."]) as adapter:
        response, _ = execute(Prepared(adapter=adapter), prompt, resources={Service: Service("mine")})

    assert response.text == "So."
    assert adapter.messages[0].text == "# More\n\nAll of it."
    assert told(adapter) == ["mine"]


def test_resources_live_through_opened_sections(execute: Execute) -> None:
    """Starting over is still the same request."""
    built: list[Service] = []

    def build(_: object) -> Service:
        built.append(Service("one"))
        return built[-1]

    more = MarkdownSection(title="More", summary="x", tools=[NOOP], visibility=SectionVisibility.SUMMARY)
    sections = [MarkdownSection(title="Base", tools=[USE]), more]
    adapter = ScriptedAdapter([ToolCall("use"), OPEN, ToolCall("use"), "So."])
    binding = {Service: Binding(Service, build)}
    execute(Prepared(adapter=adapter), Prompt(PromptTemplate(sections=sections)), resources=binding)

    assert len(built) == 1


def test_the_budget_counts_through_opened_sections(execute: Execute) -> None:
    """Starting over does not give the tokens back."""
    adapter = ScriptedAdapter(
        [
            ModelReply("", (OPEN,), usage=TokenUsage(60, 0)),
            ModelReply("", (ToolCall("use"),), usage=TokenUsage(60, 0)),
        ]
    )
    loop = Prepared(adapter=adapter, config=MainLoopConfig(budget=Budget(max_total_tokens=100)))

    with pytest.raises(BudgetExceededError):
        execute(loop, Prompt(PromptTemplate(sections=[FOLDED])))


def test_opening_sections_is_bounded(execute: Execute) -> None:
    """A model that opens and opens is stopped, and told apart from other failures."""
    sections = [
        MarkdownSection(title=name, summary="x", tools=tools, visibility=SectionVisibility.SUMMARY)
        for name, tools in (("One", [USE]), ("Two", [NOOP]))
    ]
    turns = [ToolCall("open_sections", {"section_keys": [key]}) for key in ("one", "two")]
    loop = Prepared(adapter=ScriptedAdapter(turns), config=MainLoopConfig(max_visibility_expansions=1))

    with pytest.raises(PromptEvaluationError) as caught:
        execute(loop, Prompt(PromptTemplate(sections=sections)))
    assert str(caught.value) == (
        "The model opened sections 1 times and wants more: Sections to open: two. "
        "The run cannot go on; show these sections from the start or raise max_visibility_expansions."
    )


def test_a_bound_below_zero_is_refused() -> None:
    """A loop that could not run once cannot be configured."""
    with pytest.raises(ValueError, match=r"^MainLoopConfig.max_visibility_expansions must be 0 or more, got -1\.$"):
        MainLoopConfig(max_visibility_expansions=-1)


# -- what is told ------------------------------------------------------------------------------------------------------


def contexts(session: Session) -> list[RunContext | None]:
    return [event.run_context for event in session[ToolInvoked].all()]


def test_every_call_of_a_request_has_its_run_context(execute: Execute) -> None:
    """Run, request, session and attempt are known to every recorded call."""
    bus = EventBus()
    events = heard(bus)
    loop = Loop(adapter=ScriptedAdapter([ToolCall("use"), "So."]), bus=bus)
    _, session = execute(loop, QUESTION, resources={Service: Service("s")})

    context = contexts(session)[0]
    assert context is not None
    assert context.run_id
    assert context.request_id
    assert (context.session_id, context.attempt) == (session.session_id, 1)
    assert isinstance(events[0], RunStarted)
    assert events[0].run_context == context


def test_a_given_run_context_is_filled_in(execute: Execute) -> None:
    """Whoever queues requests names them and counts attempts."""
    loop = Loop(adapter=ScriptedAdapter([ToolCall("use"), "So."]))
    given = RunContext(request_id="r-7", attempt=3, trace_id="t")
    _, session = execute(loop, QUESTION, resources={Service: Service("s")}, run_context=given)

    context = contexts(session)[0]
    assert context is not None
    assert (context.request_id, context.attempt, context.trace_id) == ("r-7", 3, "t")
    assert context.run_id


def test_two_requests_have_two_run_ids(execute: Execute) -> None:
    """No two runs are mistaken for one."""
    bus = EventBus()
    events = heard(bus)
    loop = Loop(adapter=ScriptedAdapter(["So.", "So."]), bus=bus)
    execute(loop, QUESTION)
    execute(loop, QUESTION)

    started = [event.run_context for event in events if isinstance(event, RunStarted)]
    assert len({context.run_id for context in started}) == len({context.request_id for context in started}) == 2


def test_the_bus_hears_of_start_and_end(execute: Execute) -> None:
    """One start and one end per request, with what subscribers need."""
    bus, clock = EventBus(), FakeClock(start=5.0)
    events = heard(bus)

    def think(messages: Sequence[Message]) -> str:
        clock.advance(2)
        return "So."

    request = (Prompt(TEMPLATE).bind(QUESTION), Session(clock=clock))
    response, _ = execute(Prepared(adapter=ScriptedAdapter([think]), bus=bus), request)

    started, finished = events
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert (started.request, started.timestamp) == (request, 5.0)
    assert finished == RunFinished(started.run_context, response, 0, 2.0)


def test_the_end_says_how_often_sections_were_opened(execute: Execute) -> None:
    """Starting over is told with the answer."""
    bus = EventBus()
    events = heard(bus)
    execute(Prepared(adapter=ScriptedAdapter([OPEN, "So."]), bus=bus), Prompt(PromptTemplate(sections=[FOLDED])))

    assert [event.expansions for event in events if isinstance(event, RunFinished)] == [1]


@pytest.mark.parametrize("error", [ConnectionError("gone"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_the_bus_hears_of_a_failure(error: BaseException) -> None:
    """Whatever ended the run is told, and raised."""
    bus = EventBus()
    events = heard(bus)

    def fail(messages: Sequence[Message]) -> str:
        raise error

    with pytest.raises(type(error)):
        Loop(adapter=ScriptedAdapter([fail]), bus=bus).execute(QUESTION)
    assert [type(event) for event in events] == [RunStarted, RunFailed]
    assert isinstance(events[1], RunFailed)
    assert events[1].error is error


def test_calls_of_new_sessions_are_heard_on_the_bus(execute: Execute) -> None:
    """Sessions the loop makes report to its bus."""
    bus = EventBus()
    calls: list[str] = []
    bus.subscribe(ToolInvoked, lambda event: calls.append(event.tool_name))
    loop = Loop(adapter=ScriptedAdapter([ToolCall("use"), "So."]), bus=bus)
    execute(loop, QUESTION, resources={Service: Service("s")})

    assert calls == ["use"]


def test_a_subscriber_that_raises_changes_nothing(execute: Execute) -> None:
    """Telling is not asking (S44)."""
    bus = EventBus()

    def broken(event: RunStarted) -> None:
        raise RuntimeError("broken")

    bus.subscribe(RunStarted, broken)

    assert execute(Loop(adapter=ScriptedAdapter(["So."]), bus=bus), QUESTION)[0].text == "So."


def test_requests_run_side_by_side() -> None:
    """A loop holds no request."""

    def echo(messages: Sequence[Message]) -> str:
        return messages[0].text

    loop = Loop(adapter=ScriptedAdapter([echo] * 3))

    async def together() -> set[str]:
        runs = [loop.aexecute(Question(text)) for text in ("a", "b", "c")]
        return {response.text for response, _ in await asyncio.gather(*runs)}

    assert asyncio.run(together()) == {"# Ask\n\na", "# Ask\n\nb", "# Ask\n\nc"}
