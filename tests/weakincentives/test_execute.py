"""One pipeline for every call: its order, its outcomes, what the model reads of each, and what is recorded."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest

from weakincentives.clock import FakeClock
from weakincentives.dbc import ensure, require
from weakincentives.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    FencedWriteError,
    PromptEvaluationError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, BudgetTracker, Deadline, Heartbeat
from weakincentives.prompt import (
    Changes,
    MarkdownSection,
    PolicyDecision,
    Prompt,
    PromptTemplate,
    RunContext,
    Tool,
    ToolContext,
    ToolProgress,
    ToolResult,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.resources import Scope as Lifetime
from weakincentives.runtime import (
    Replace,
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    aexecute_tool,
    execute_tool,
)

WAIT = 20.0


@dataclass(frozen=True, slots=True)
class Search:
    query: str = "tea"
    limit: int = 10


@dataclass(frozen=True, slots=True)
class Note:
    text: str


def ok(params: Any, *, context: Any) -> ToolResult[str]:
    return ToolResult.ok("found", "Done.")


def tool_of(handler: Callable[..., Any] | None = ok, name: str = "search", **options: Any) -> Tool[Search, str]:
    return Tool[Search, str](name=name, description="Searches.", handler=handler, **options)


def prompt_of(
    *tools: Tool[Any, Any], policies: Sequence[Any] = (), resources: dict[Any, Any] | None = None
) -> Prompt[Any]:
    section = MarkdownSection(title="T", template="t", tools=list(tools))
    return Prompt(PromptTemplate(sections=[section], policies=list(policies))).bind(resources=resources or {})


def run_sync(call: ToolCall, **keywords: Any) -> ToolOutcome:
    return execute_tool(call, **keywords)


def run_async(call: ToolCall, **keywords: Any) -> ToolOutcome:
    return asyncio.run(aexecute_tool(call, **keywords))


both = pytest.mark.parametrize("run", [run_sync, run_async])
Run = Callable[..., ToolOutcome]


class Here:
    """A session, and one call in it."""

    def __init__(self, run: Run = run_sync, **session: Any) -> None:
        self.run = run
        self.session = Session(**session)

    def call(self, handler: Any, arguments: Any = None, **keywords: Any) -> ToolOutcome:
        tool = handler if isinstance(handler, Tool) else tool_of(handler)
        keywords.setdefault("prompt", prompt_of(tool))
        return self.run(ToolCall(tool.name, {} if arguments is None else arguments), session=self.session, **keywords)

    @property
    def event(self) -> ToolInvoked:
        [event] = self.session[ToolInvoked].all()
        return event


# -- the order of one call (S1) ------------------------------------------------------------------------------------------


@both
def test_a_call_goes_through_its_stations_in_order(run: Run) -> None:
    """S1: parse, policies, deadline, snapshot, handler, render, reducers, on_result, commit, close, record."""
    seen: list[str] = []

    @dataclass(frozen=True)
    class Found:
        text: str

        def render(self) -> str:
            seen.append("render")
            return self.text

    class Handle:
        def close(self) -> None:
            seen.append("close")

    class Box:
        def snapshot(self) -> int:
            seen.append("snapshot")
            return 0

        def restore(self, snapshot: int) -> None:
            seen.append("restore")

    class Policy:
        def check(self, tool: Any, params: Any, *, context: Any) -> None:
            seen.append("check")
            context.resources.get(Handle)

        def on_result(self, tool: Any, params: Any, result: Any, *, context: Any) -> None:
            seen.append("on_result")

    class Clock(FakeClock):
        def now(self) -> float:
            if seen and seen[-1] == "check":
                seen.append("deadline")
            return super().now()

    def handler(params: Search, *, context: Any) -> ToolResult[Found]:
        seen.append("handler")
        return ToolResult.ok(Found("x"))

    session = Session()

    def reduce(view: Any, event: Found, *, context: Any) -> Any:
        seen.append("reduce")
        return Replace((event,))

    session[Found].register(Found, reduce)
    session.dispatcher.subscribe(ToolInvoked, lambda event: seen.append("delivered"))
    tool = Tool[Search, Found](name="search", description="Searches.", handler=handler)
    resources = {Handle: Binding(Handle, lambda _: Handle(), scope=Lifetime.TOOL_CALL), Box: Box()}
    prompt = prompt_of(tool, policies=[Policy()], resources=resources)
    run(ToolCall("search", {}), prompt=prompt, session=session, deadline=Deadline.after(5, Clock()))
    assert seen == [
        "check",
        "deadline",
        "snapshot",
        "handler",
        "render",
        "reduce",
        "on_result",
        "close",
        "delivered",
    ]


@both
@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (ToolCall("unknown", {}), "unknown_tool"),
        (ToolCall("search", {"limit": "x"}), "invalid_params"),
        (ToolCall("search", {"query": "denied"}), "denied"),
    ],
)
def test_unknown_invalid_and_denied_calls_open_no_transaction(run: Run, call: ToolCall, outcome: str) -> None:
    """Neither handler nor snapshot is reached."""
    reached: list[str] = []

    class Box:
        def snapshot(self) -> None:
            reached.append("snapshot")

        def restore(self, snapshot: None) -> None:
            reached.append("restore")

    class Policy:
        def check(self, tool: Any, params: Search, *, context: Any) -> str | None:
            return "no" if params.query == "denied" else None

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        reached.append("handler")
        return ToolResult.ok("x")

    prompt = prompt_of(tool_of(handler), policies=[Policy()], resources={Box: Box()})
    session = Session()
    assert run(call, prompt=prompt, session=session).outcome == outcome
    assert reached == []
    assert [event.outcome for event in session[ToolInvoked].all()] == [outcome]


# -- success -------------------------------------------------------------------------------------------------------------


@both
def test_a_success_is_told_to_caller_model_and_log(run: Run) -> None:
    """S45, S52: ToolOutcome and ToolInvoked agree field by field."""
    clock = FakeClock(1_000.0)
    here = Here(run, clock=clock, session_id="s1")

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        clock.advance(2)
        context.session[Note].append(Note(params.query))
        context.filesystem.write("a/b.txt", "x")
        return ToolResult.ok("found", "Done.")

    tool, context = tool_of(handler), RunContext(run_id="r", attempt=2)
    prompt = prompt_of(tool, resources={Filesystem: InMemoryFilesystem()})
    call = ToolCall("search", '{"query": "x"}', "id-1")
    outcome = run(call, prompt=prompt, session=here.session, run_context=context)
    result = ToolResult.ok("found", "Done.")
    changes = Changes(slices=("Note",), files=("a/b.txt",))
    params = Search("x")
    assert outcome == ToolOutcome(call, tool, params, result, "Done.\n\nfound", "ok", 2.0, changes, "id-1")
    assert (outcome.success, outcome.message, outcome.value) == (True, "Done.", "found")
    assert here.event == ToolInvoked(
        "search", params, result, True, 1_000.0, 2.0, "ok", False, "id-1", "Done.\n\nfound", changes, "s1", context
    )
    assert (here.event.value, here.event.message) == ("found", "Done.")


@both
def test_a_failed_result_keeps_its_value_for_the_log_alone(run: Run) -> None:
    """S22: the model reads the message; the value is in the event; nothing is kept."""
    here = Here(run)

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("x"))
        return ToolResult("Nothing found.", "details", success=False)

    outcome = here.call(handler)
    assert (outcome.outcome, outcome.text) == ("failed", "Nothing found.")
    assert here.event.value == "details"
    assert here.event.changes == Changes()
    assert here.event.retryable
    assert here.session[Note].all() == ()


@both
def test_a_successful_value_is_offered_to_its_reducers_inside_the_transaction(run: Run) -> None:
    """S22: only for a type with reducers, only on success, rolled back with the rest."""
    here = Here(run)
    here.session[Note].register(Note, lambda view, event, *, context: Replace((event,)))

    class Refusing:
        name = "refusing"

        def check(self, tool: Any, params: Any, *, context: Any) -> None:
            return None

        def on_result(self, tool: Any, params: Search, result: Any, *, context: Any) -> None:
            if params.query == "refuse":
                raise RuntimeError("not this one")

    def handler(params: Search, *, context: Any) -> ToolResult[Note]:
        return ToolResult.ok(Note(params.query)) if params.query != "fail" else ToolResult("m", Note("x"), False)

    tool = Tool[Search, Note](name="search", description="Searches.", handler=handler)
    prompt = prompt_of(tool, policies=[Refusing()])
    for query in ("kept", "fail", "refuse"):
        here.call(tool, {"query": query}, prompt=prompt)
    assert here.session[Note].all() == (Note("kept"),)
    last = here.session[ToolInvoked].latest()
    assert last is not None
    assert last.rendered_output == "Internal error: tool 'search' succeeded but refusing failed: not this one"


# -- failures, in words (S10-S23) ----------------------------------------------------------------------------------------


@both
def test_an_unknown_tool_reads_the_names_nearest_first(run: Run) -> None:
    """S10."""
    prompt = prompt_of(tool_of(name="write_file"), tool_of(name="list_things"), tool_of(name="read_file"))
    session = Session()
    outcome = run(ToolCall("read_fil", {"path": "x"}), prompt=prompt, session=session)
    assert outcome.text == "Unknown tool 'read_fil'\nAvailable tools: read_file, write_file, list_things"
    assert (outcome.outcome, outcome.tool, outcome.params) == ("unknown_tool", None, None)
    [event] = session[ToolInvoked].all()
    assert (event.tool_name, event.params, event.retryable) == ("read_fil", {"path": "x"}, True)


def test_an_unknown_tool_where_there_are_none() -> None:
    """S10, without a prompt or with an empty one."""
    session = Session()
    expected = "Unknown tool 'x'\nThere are no tools to call here."
    assert execute_tool(ToolCall("x", {}), prompt=prompt_of(), session=session).text == expected
    assert execute_tool(ToolCall("x", {}), session=session).text == expected


@pytest.mark.parametrize("name", [["x"], {"a": 1}, 5, None, "\ud800", "x" * 1_000_000, ""])
def test_names_of_any_kind_are_unknown_tools(name: Any) -> None:
    """S3: what a model sends as a name never raises, and a long one is not echoed whole."""
    session = Session()
    outcome = execute_tool(ToolCall(name, {}), prompt=prompt_of(tool_of()), session=session)
    assert outcome.outcome == "unknown_tool"
    assert len(outcome.text) < 300
    assert [event.outcome for event in session[ToolInvoked].all()] == ["unknown_tool"]


class Stage(Enum):
    DEVELOPMENT = "development"
    PRODUCTION = "production"


@dataclass(frozen=True, slots=True)
class Item:
    name: str


@dataclass(frozen=True, slots=True)
class Deploy:
    environment: Literal["development", "staging", "production"]
    items: tuple[Item, ...] = ()
    limit: int = 0
    stage: Stage = Stage.DEVELOPMENT

    def __post_init__(self) -> None:
        if self.limit > 100:
            raise ValueError("limit must be at most 100")


@both
@pytest.mark.parametrize(
    ("arguments", "details"),
    [
        (
            {"environment": "moon", "limit": "10", "items": [{"name": "a"}, {"name": 3}, {}], "more": 1},
            {
                "environment": "environment must be one of: development, staging, production",
                "limit": "Expected type integer, got string '10'",
                "items[1].name": "Expected type string, got integer 3",
                "items[2].name": None,
                "more": None,
            },
        ),
        ({"environment": "staging", "stage": "moon"}, {"stage": "stage must be one of: development, production"}),
        ({"environment": "staging", "limit": 101}, {"$": None}),
        ("{", {"$": None}),
        ("[1]", {"$": "Expected type object, got array"}),
        (17, {"$": "Expected type object, got integer 17"}),
        ({}, {"environment": None}),
    ],
)
def test_invalid_arguments_read_every_problem_at_its_place(run: Run, arguments: Any, details: dict[str, Any]) -> None:
    """S11-S13: one JSON object, one entry per bad field, all at once."""
    tool = Tool[Deploy, str](name="deploy", description="Deploys.", handler=ok)
    session = Session()
    outcome = run(ToolCall("deploy", arguments), prompt=prompt_of(tool), session=session)
    told = json.loads(outcome.text)
    assert told["error"] == "Invalid parameters for tool 'deploy'"
    assert told["details"].keys() == details.keys()
    for place, text in details.items():
        assert text is None or told["details"][place] == text
    assert (outcome.outcome, outcome.params) == ("invalid_params", None)
    [event] = session[ToolInvoked].all()
    assert (event.params, event.retryable, event.rendered_output) == (arguments, True, outcome.text)


def test_the_arguments_in_the_log_are_not_the_callers_to_change() -> None:
    """What could not be parsed is recorded as it was sent."""
    here, arguments = Here(), {"limit": "x"}
    here.call(ok, arguments)
    arguments["limit"] = "changed"
    assert here.event.params == {"limit": "x"}


def test_a_tool_without_a_handler_says_so() -> None:
    """S25: shown to the model, not run here."""
    here = Here()
    outcome = here.call(tool_of(None))
    assert (outcome.outcome, outcome.text) == ("failed", "Tool 'search' has no handler here and cannot be run.")
    assert not here.event.retryable


class Denying:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, tool: Any, params: Any, *, context: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@both
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (PolicyDecision.deny("Not today.\nCome back."), "Not today.\nCome back."),
        ("plainly no", "plainly no"),
        (
            RuntimeError("broken"),
            "Policy 'Denying' failed: broken. The call was denied and cannot succeed until the policy is fixed.",
        ),
        (
            42,
            "Policy 'Denying' gave no usable decision: expected PolicyDecision, str or None, got int. "
            "The call was denied and cannot succeed until the policy is fixed.",
        ),
    ],
)
def test_a_denial_is_read_word_for_word_and_fails_closed(run: Run, answer: Any, text: str) -> None:
    """S14."""
    here = Here(run)
    outcome = here.call(ok, prompt=prompt_of(tool_of(), policies=[Denying(answer)]))
    assert (outcome.outcome, outcome.text) == ("denied", text)
    assert here.event.policy == "Denying"


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say")


@require(lambda params: params.limit > 0, "limit must be positive")
def needs_limit(params: Search, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok("x")


@ensure(lambda result: result.value == "y", "must be y")
def promises_y(params: Search, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok("x")


@require(lambda n: n > 0, "n must be positive")
def helper(n: int) -> int:
    return n


def raising(error: BaseException) -> Callable[..., Any]:
    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("x"))
        raise error

    return handler


def calls_helper(params: Search, *, context: Any) -> ToolResult[str]:
    return ToolResult.ok(str(helper(0)))


def escapes(params: Search, *, context: Any) -> ToolResult[str]:
    return ToolResult.ok(InMemoryFilesystem().read("missing.txt"))


@both
@pytest.mark.parametrize(
    ("handler", "text", "level"),
    [
        (raising(ToolValidationError("Give a longer query.")), "Give a longer query.", logging.INFO),
        (raising(ValueError("bad value")), "bad value", logging.INFO),
        (raising(ValueError()), "ValueError", logging.INFO),
        (escapes, None, logging.INFO),
        (needs_limit, "Precondition failed: limit must be positive", None),
        (promises_y, "Postcondition failed: must be y", None),
        (calls_helper, "Precondition failed: n must be positive", logging.INFO),
        (raising(TypeError("wrong")), "Tool 'search' raised TypeError: wrong", logging.ERROR),
        (raising(RuntimeError("broken")), "Internal error: broken", logging.ERROR),
        (raising(RuntimeError()), "Internal error: RuntimeError", logging.ERROR),
        (raising(Wordless()), "Internal error: Wordless", logging.ERROR),
        (raising(StopIteration("stop")), None, logging.ERROR),
        (raising(ExceptionGroup("several", [KeyError("a")])), None, logging.ERROR),
    ],
)
def test_what_a_handler_raises_is_a_failed_result(
    run: Run, handler: Any, text: str | None, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """S15-S18: the text by the kind of exception, rolled back, logged at its level."""
    here = Here(run)
    with caplog.at_level(logging.INFO, logger="weakincentives"):
        outcome = here.call(handler, {"limit": 0})
    assert outcome.outcome == "failed"
    if text is not None:
        assert outcome.text == text
    assert outcome.text
    assert here.event.rendered_output == outcome.text
    assert here.session[Note].all() == ()
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


def returning(value: Any) -> Callable[..., Any]:
    def handler(params: Search, *, context: Any) -> Any:
        context.session[Note].append(Note("x"))
        return value

    return handler


@dataclass(frozen=True)
class Unrenderable:
    text: str = ""

    def render(self) -> str:
        raise RuntimeError("cannot render")


@dataclass(frozen=True)
class RendersNumbers:
    def render(self) -> str:
        return 5  # pyright: ignore[reportReturnType]


@both
@pytest.mark.parametrize(
    ("result_type", "value", "text"),
    [
        (str, "text", "Internal error: tool 'search' must return a ToolResult, got str"),
        (str, None, "Internal error: tool 'search' must return a ToolResult, got NoneType"),
        (str, ToolResult.ok(5), "Internal error: tool 'search' must return a value of type str, got int"),
        (
            Unrenderable,
            ToolResult.ok(Unrenderable()),
            "Internal error: tool 'search' succeeded but render() failed: cannot render",
        ),
        (
            RendersNumbers,
            ToolResult.ok(RendersNumbers()),
            "Internal error: tool 'search' succeeded but render() failed: "
            "RendersNumbers.render() must return text, got int",
        ),
    ],
)
def test_a_broken_result_is_an_internal_error_and_rolled_back(
    run: Run, result_type: Any, value: Any, text: str
) -> None:
    """S19: it names what was expected."""
    here = Here(run)
    tool = Tool[Search, result_type](name="search", description="Searches.", handler=returning(value))
    outcome = here.call(tool)
    assert (outcome.outcome, outcome.text) == ("failed", text)
    assert here.session[Note].all() == ()
    assert not here.event.retryable


@both
def test_a_reducer_that_refuses_the_value_fails_the_call(run: Run) -> None:
    """S19, S22: what cannot be recorded did not happen."""
    here = Here(run)

    def refuse(view: Any, event: Note, *, context: Any) -> Any:
        raise RuntimeError("full")

    here.session[Note].register(Note, refuse)
    tool = Tool[Search, Note](
        name="search", description="S.", handler=lambda params, *, context: ToolResult.ok(Note("x"))
    )
    assert here.call(tool).text == "Internal error: tool 'search' succeeded but a reducer failed: full"


@both
def test_a_passed_deadline_stops_the_run_before_the_handler(run: Run) -> None:
    """S20: raised unchanged, recorded `deadline`."""
    here, clock = Here(run), FakeClock()
    with pytest.raises(DeadlineExceededError) as caught:
        here.call(raising(AssertionError("ran")), deadline=Deadline.after(0, clock))
    assert isinstance(caught.value, PromptEvaluationError)
    assert (here.event.outcome, here.event.retryable) == ("deadline", False)
    assert here.event.rendered_output == str(caught.value)


@both
def test_a_used_up_budget_stops_the_run_before_the_handler(run: Run) -> None:
    """S20: raised unchanged, recorded `budget`; given by hand or bound as a resource."""
    tracker = BudgetTracker(Budget(max_total_tokens=10))
    tracker.add(10)
    here = Here(run)
    with pytest.raises(BudgetExceededError):
        here.call(raising(AssertionError("ran")), budget_tracker=tracker)
    assert here.event.outcome == "budget"
    bound = Here(run)
    with pytest.raises(BudgetExceededError):
        bound.call(ok, prompt=prompt_of(tool_of(), resources={BudgetTracker: tracker}))
    assert bound.event.outcome == "budget"


@both
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PromptEvaluationError("stop"), "interrupted"),
        (VisibilityExpansionRequired(section_keys=("a",)), "interrupted"),
        (DeadlineExceededError("late"), "deadline"),
        (BudgetExceededError("spent"), "budget"),
    ],
)
def test_errors_that_end_the_run_pass_through_after_the_rollback(run: Run, error: Exception, outcome: str) -> None:
    """S21: the very same exception, after everything was taken back."""
    here = Here(run)
    with pytest.raises(type(error)) as caught:
        here.call(raising(error))
    assert caught.value is error
    assert here.session[Note].all() == ()
    assert (here.event.outcome, here.event.success) == (outcome, False)


@both
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interrupts_pass_through_after_the_rollback(run: Run, error: type[BaseException]) -> None:
    """S4: recorded `cancelled`, with what stopped it."""
    here = Here(run)
    with pytest.raises(error):
        here.call(raising(error("now")))
    assert here.session[Note].all() == ()
    assert here.event.outcome == "cancelled"
    assert here.event.message.startswith("The call was cancelled: ")
    with here.session.transaction():
        pass


def sleeper(gate: threading.Event, over: threading.Event, late: list[str]) -> Callable[..., Any]:
    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        try:
            context.session[Note].append(Note("early"))
            gate.wait(WAIT)
            context.session[Note].append(Note("late"))
        except FencedWriteError:
            late.append("fenced" if context.cancelled else "?")
        finally:
            over.set()
        return ToolResult.ok("too late")

    return handler


@both
@pytest.mark.parametrize(
    ("effects", "text", "retryable"),
    [
        ("local", "Tool 'search' timed out after 0.02 seconds. Nothing it did was kept; retry with less work.", True),
        (
            "external",
            "Tool 'search' timed out after 0.02 seconds. What it did outside may have happened; "
            "check before you call it again.",
            False,
        ),
    ],
)
def test_a_sync_handler_that_takes_too_long_is_left_behind_fenced(
    run: Run, effects: Any, text: str, retryable: bool
) -> None:
    """S9, S23: the model reads what happened and whether to retry; late writes are refused."""
    gate, over, late, here = threading.Event(), threading.Event(), list[str](), Here(run)
    outcome = here.call(tool_of(sleeper(gate, over, late), timeout=0.02, effects=effects))
    assert (outcome.outcome, outcome.text) == ("timeout", text)
    assert here.event.retryable is retryable
    assert here.session[Note].all() == ()
    gate.set()
    assert over.wait(WAIT)
    assert late == ["fenced"]
    assert here.session[Note].all() == ()


@both
@pytest.mark.parametrize("stubborn", [False, True])
def test_an_async_handler_that_takes_too_long_is_cancelled_or_left_behind(run: Run, stubborn: bool) -> None:
    """S23: a handler that swallows its cancellation is not waited for."""
    here, told = Here(run), threading.Event()

    async def handler(params: Search, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("early"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            if not stubborn:
                raise
        return ToolResult.ok("too late")

    outcome = here.call(tool_of(handler, timeout=0.02))
    assert outcome.outcome == "timeout"
    assert here.session[Note].all() == ()
    assert told.wait(WAIT)


# -- every way to run (S28) ----------------------------------------------------------------------------------------------


async def async_handler(params: Search, *, context: Any) -> ToolResult[str]:
    await asyncio.sleep(0)
    context.session[Note].append(Note(params.query))
    return ToolResult.ok("async")


class CallableHandler:
    async def __call__(self, params: Search, *, context: Any) -> ToolResult[str]:
        return await async_handler(params, context=context)


@both
@pytest.mark.parametrize(
    "handler",
    [
        async_handler,
        CallableHandler(),
        functools.partial(async_handler),
        lambda params, *, context: async_handler(params, context=context),
    ],
)
@pytest.mark.parametrize("timeout", [None, 30])
def test_async_handlers_of_every_kind_run_everywhere(run: Run, handler: Any, timeout: float | None) -> None:
    """With and without a loop, with and without a timeout; writes belong to the call."""
    here = Here(run)
    assert here.call(tool_of(handler, timeout=timeout), {"query": "q"}).value == "async"
    assert here.session[Note].all() == (Note("q"),)


def test_a_sync_call_of_an_async_handler_works_inside_a_running_loop() -> None:
    """`execute_tool` in a coroutine: the handler runs on another loop."""
    here = Here()

    async def main() -> ToolOutcome:
        return here.call(async_handler)

    assert asyncio.run(main()).value == "async"


def test_a_sync_handler_never_blocks_the_loop() -> None:
    """It waits in a thread for something that only the loop can do."""
    here, gate = Here(), threading.Event()

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok("met" if gate.wait(WAIT) else "blocked")

    async def main() -> ToolOutcome:
        call = asyncio.create_task(
            aexecute_tool(ToolCall("search", {}), prompt=prompt_of(tool_of(handler)), session=here.session)
        )
        await asyncio.sleep(0)
        gate.set()
        return await call

    assert asyncio.run(main()).value == "met"


@both
def test_async_policies_and_renderers_are_awaited(run: Run) -> None:
    """S28."""

    class Slow:
        async def check(self, tool: Any, params: Search, *, context: Any) -> str | None:
            await asyncio.sleep(0)
            return None if params.query == "tea" else "only tea"

        async def on_result(self, tool: Any, params: Any, result: Any, *, context: Any) -> None:
            await asyncio.sleep(0)
            context.session[Note].append(Note("told"))

    @dataclass(frozen=True)
    class Later:
        async def render(self) -> str:
            await asyncio.sleep(0)
            return "rendered"

    here = Here(run)
    tool = Tool[Search, Later](
        name="search", description="S.", handler=lambda params, *, context: ToolResult.ok(Later())
    )
    prompt = prompt_of(tool, policies=[Slow()])
    assert here.call(tool, prompt=prompt).text == "rendered"
    assert here.call(tool, {"query": "x"}, prompt=prompt).text == "only tea"
    assert here.session[Note].all() == (Note("told"),)


def test_async_resources_of_a_call_are_closed_on_the_callers_loop() -> None:
    """S41: what was opened on a loop is closed on it, before the call is recorded."""
    loops: list[Any] = []

    class Connection:
        async def aclose(self) -> None:
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())

    async def handler(params: Search, *, context: Any) -> ToolResult[str]:
        context.resources.get(Connection)
        return ToolResult.ok("x")

    async def main() -> None:
        resources = {Connection: Binding(Connection, lambda _: Connection(), scope=Lifetime.TOOL_CALL)}
        prompt = prompt_of(tool_of(handler), resources=resources)
        await aexecute_tool(ToolCall("search", {}), prompt=prompt, session=Session())
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


# -- tools called from Python, contexts made by hand (S25, S40, S52) -----------------------------------------------------


def test_a_tool_called_from_a_handler_is_part_of_its_call() -> None:
    """`tool(params, context=context)`: the whole pipeline, one event of its own, one fate."""
    here = Here()
    inner = Tool[Search, str](name="inner", description="S.", handler=returning(ToolResult.ok("inner")))

    def outer(params: Search, *, context: Any) -> ToolResult[str]:
        result = inner(Search("x"), context=context)
        assert result == ToolResult.ok("inner")
        return ToolResult.ok("o") if params.query == "keep" else ToolResult.error("no")

    tool = tool_of(outer)
    here.call(tool, {"query": "drop"}, prompt=prompt_of(tool, inner))
    assert here.session[Note].all() == ()
    here.call(tool, {"query": "keep"}, prompt=prompt_of(tool, inner))
    assert here.session[Note].all() == (Note("x"),)
    names = [(event.tool_name, event.outcome) for event in here.session[ToolInvoked].all()]
    assert names == [("inner", "ok"), ("search", "failed"), ("inner", "ok"), ("search", "ok")]


def test_a_tool_called_from_python_stands_under_the_same_policies() -> None:
    """Also with another description, and though its section is hidden."""
    tool = tool_of()
    hidden = MarkdownSection(title="H", key="h", template="t", tools=[tool], enabled=lambda _: False)
    for prompt in (
        prompt_of(tool, policies=[Denying("no")]),
        Prompt(PromptTemplate(sections=[hidden], policies=[Denying("no")])),
    ):
        context = ToolContext(session=Session(), prompt=prompt)
        assert tool(Search(), context=context) == ToolResult.error("no")
        assert tool.with_description("Other words.")(Search(), context=context) == ToolResult.error("no")


@pytest.mark.parametrize("form", ["registry", "open", "mapping"])
def test_a_context_made_by_hand_needs_only_session_and_resources(form: str) -> None:
    """S40: resources in every form; the fields that were not given are None."""
    session, files = Session(), InMemoryFilesystem({"a": "x"})
    registry = ResourceRegistry.of(Binding.instance(Filesystem, files))
    resources = {"registry": registry, "open": registry.open(), "mapping": {Filesystem: files}}[form]
    context = ToolContext(session=session, resources=resources)
    assert context.filesystem is files
    assert context.resources.get(Filesystem) is files
    assert context.prompt is context.rendered_prompt is context.adapter is context.deadline is None
    assert context.heartbeat is context.run_context is context.budget_tracker is None
    assert not context.cancelled
    outcome = execute_tool(ToolCall("search", {}), context=context, prompt=prompt_of(tool_of()))
    assert outcome.success
    assert len(session[ToolInvoked]) == 1


def test_the_context_of_a_call_knows_its_surroundings() -> None:
    """S40: what was given to the run is there in the handler; beats and progress reach those who listen."""
    seen: dict[str, Any] = {}
    heartbeat, beats = Heartbeat(), list[int]()
    heartbeat.add_callback(lambda: beats.append(1))
    deadline, run_context = Deadline.after(60), RunContext("r")

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        names = (
            "prompt",
            "rendered_prompt",
            "adapter",
            "deadline",
            "heartbeat",
            "run_context",
            "call_id",
            "idempotency_key",
        )
        seen.update({name: getattr(context, name) for name in names})
        context.beat()
        context.progress("half", fraction=0.5)
        return ToolResult.error("failed all the same")

    here, heard = Here(session_id="s"), list[ToolProgress]()
    here.session.dispatcher.subscribe(ToolProgress, heard.append)
    prompt = prompt_of(tool_of(handler))
    execute_tool(
        ToolCall("search", {}, "c1"),
        prompt=prompt,
        session=here.session,
        deadline=deadline,
        heartbeat=heartbeat,
        run_context=run_context,
        adapter="adapter",
        rendered_prompt="rendered",
    )
    key = seen.pop("idempotency_key")
    assert seen == {
        "prompt": prompt,
        "rendered_prompt": "rendered",
        "adapter": "adapter",
        "deadline": deadline,
        "heartbeat": heartbeat,
        "run_context": run_context,
        "call_id": "c1",
    }
    assert len(key) == 32
    assert len(beats) == 2
    assert heard == [ToolProgress("search", "c1", "half", 0.5, "s")]
    assert len(here.session[ToolProgress]) == 0


def test_the_idempotency_key_is_the_same_for_the_same_call_of_the_same_session() -> None:
    """S5: derived from session and call, whatever characters the provider's id has."""

    def key(session_id: str, call_id: str) -> str:
        keys: list[str] = []

        def handler(params: Search, *, context: Any) -> ToolResult[str]:
            keys.append(context.idempotency_key)
            return ToolResult.ok("x")

        session = Session(session_id=session_id)
        execute_tool(ToolCall("search", {}, call_id), prompt=prompt_of(tool_of(handler)), session=session)
        return keys[0]

    assert key("s", "1") == key("s", "1")
    assert len({key("s", "1"), key("s", "2"), key("t", "1"), key("s", "\ud800")}) == 4


def test_calls_without_an_id_get_one_of_their_own() -> None:
    """Unique in the session."""
    here = Here()
    ids = {here.call(ok).call_id for _ in range(3)}
    assert len(ids) == 3
    assert {event.call_id for event in here.session[ToolInvoked].all()} == ids


def test_a_call_may_bring_its_prompt() -> None:
    """S52: a call handed out by `stepwise()` knows where its tool is."""
    prompt = prompt_of(tool_of())
    assert execute_tool(ToolCall("search", {}, prompt=prompt), session=Session()).success


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        (b'{"a": 1}', {"a": 1}),
        ("[1]", {}),
        ("{", {}),
        (None, {}),
        ("", {}),
    ],
)
def test_a_call_shows_its_arguments_as_a_mapping(arguments: Any, params: dict[str, Any]) -> None:
    """S52: `.params`."""
    assert ToolCall("x", arguments).params == params


def test_misuse_of_the_entry_points_is_a_type_error() -> None:
    """Programmer errors are exceptions, said at once."""
    with pytest.raises(TypeError, match=r"execute_tool needs session= \(with prompt=\), or context=\."):
        execute_tool(ToolCall("x"))
    with pytest.raises(TypeError, match="Pass either context or session and its surroundings, not both"):
        execute_tool(ToolCall("x"), context=ToolContext(), session=Session())


# -- recording -----------------------------------------------------------------------------------------------------------


@both
def test_a_call_is_recorded_after_its_rollback_and_then_told(run: Run) -> None:
    """S2: a subscriber of ToolInvoked sees the state that stays, and the event in the log."""
    here, seen = Here(run), list[tuple[int, int]]()
    here.session.dispatcher.subscribe(
        ToolInvoked, lambda event: seen.append((len(here.session[Note]), len(here.session[ToolInvoked])))
    )
    here.call(raising(RuntimeError("x")))
    assert seen == [(0, 1)]


@both
def test_a_failing_close_is_logged_and_changes_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """S1: close errors never change the outcome."""

    class Stuck:
        def close(self) -> None:
            raise OSError("stuck")

    def handler(params: Search, *, context: Any) -> ToolResult[str]:
        context.resources.get(Stuck)
        return ToolResult.ok("x")

    resources = {Stuck: Binding(Stuck, lambda _: Stuck(), scope=Lifetime.TOOL_CALL)}
    here = Here(run)
    assert here.call(handler, prompt=prompt_of(tool_of(handler), resources=resources)).success
    assert here.event.outcome == "ok"
    assert "Closing the resources of tool search failed" in caplog.text


def test_a_telemetry_event_is_recorded_once_in_its_own_session() -> None:
    """S44: a nested call of another session is that session's event."""
    home, other = Session(), Session()
    inner = tool_of(name="inner")

    def outer(params: Search, *, context: Any) -> ToolResult[str]:
        execute_tool(ToolCall("inner", {}), prompt=prompt_of(inner), session=other)
        return ToolResult.ok("x")

    execute_tool(ToolCall("search", {}), prompt=prompt_of(tool_of(outer)), session=home)
    assert [event.tool_name for event in home[ToolInvoked].all()] == ["search"]
    assert [event.tool_name for event in other[ToolInvoked].all()] == ["inner"]
    assert other[ToolInvoked].all()[0].session_id == other.session_id


def test_two_prompts_on_one_session_at_the_same_time_keep_apart() -> None:
    """Each call runs under its own prompt, whatever runs beside it."""
    session = Session()
    prompts = [prompt_of(tool_of(name=name)) for name in ("left", "right")]
    outcomes: list[bool] = []

    def run(number: int) -> None:
        name = ("left", "right")[number]
        calls = [ToolCall(name, {})] * 300
        outcomes.extend(execute_tool(call, prompt=prompts[number], session=session).success for call in calls)

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 600


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """A process that forks after its first timed call can run timed and async tools in the child too."""

    def timed(params: None, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok("done")

    async def later(params: None, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok("done")

    tools = [
        Tool[None, str](name="timed", description="Runs in a kept thread.", handler=timed, timeout=5),
        Tool[None, str](name="later", description="Runs on a kept loop.", handler=later),
    ]
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="T", template="", tools=tools)]))
    names = ("timed", "later")
    assert [execute_tool(ToolCall(name), prompt=prompt, session=Session()).outcome for name in names] == ["ok", "ok"]
    child = os.fork()
    if child == 0:
        done = all(execute_tool(ToolCall(name), prompt=prompt, session=Session()).success for name in names)
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
