"""The calls of one model turn: readers side by side, writers alone and in order, results in call order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from weakincentives.clock import FakeClock
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    QuotaPolicy,
    RateLimitPolicy,
    Tool,
    ToolResult,
)
from weakincentives.runtime import (
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    aexecute_tool,
    aexecute_tools,
    execute_tool,
    execute_tools,
)

WAIT = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    name: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    name: str


def prompt_of(*tools: Tool[Any, Any], policies: Sequence[Any] = ()) -> Prompt[Any]:
    section = MarkdownSection(title="T", template="t", tools=list(tools))
    return Prompt(PromptTemplate(sections=[section], policies=list(policies)))


def tool_of(
    name: str, handler: Callable[..., Any], effects: Literal["none", "local", "external"] = "local"
) -> Tool[Step, str]:
    return Tool[Step, str](name=name, description="A step.", handler=handler, effects=effects)


def write(params: Step, *, context: Any) -> ToolResult[str]:
    context.session[Done].append(Done(params.name))
    return ToolResult.ok(params.name)


def run_sync(calls: Sequence[ToolCall], **keywords: Any) -> list[ToolOutcome]:
    return execute_tools(calls, **keywords)


def run_async(calls: Sequence[ToolCall], **keywords: Any) -> list[ToolOutcome]:
    return asyncio.run(aexecute_tools(calls, **keywords))


both = pytest.mark.parametrize("run", [run_sync, run_async])
Run = Callable[..., list[ToolOutcome]]


@both
def test_neighbouring_readers_run_at_the_same_time(run: Run) -> None:
    """Three read-only calls meet inside their handlers: only calls that run together can."""
    meeting = threading.Barrier(3, timeout=WAIT)

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        meeting.wait()
        return ToolResult.ok(params.name)

    calls = [ToolCall("read", {"name": name}) for name in "abc"]
    outcomes = run(calls, prompt=prompt_of(tool_of("read", read, "none")), session=Session())
    assert [outcome.value for outcome in outcomes] == ["a", "b", "c"]


@both
def test_results_come_back_in_call_order_however_the_readers_end(run: Run) -> None:
    """The first reader ends last; its result is first all the same."""
    last = threading.Event()

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        if params.name == "slow":
            assert last.wait(WAIT)
        else:
            last.set()
        return ToolResult.ok(params.name)

    calls = [ToolCall("read", {"name": "slow"}), ToolCall("read", {"name": "fast"})]
    outcomes = run(calls, prompt=prompt_of(tool_of("read", read, "none")), session=Session())
    assert [outcome.value for outcome in outcomes] == ["slow", "fast"]
    assert [outcome.call for outcome in outcomes] == calls


@both
def test_a_call_that_can_write_is_a_barrier(run: Run) -> None:
    """Readers before it see nothing of its write, readers behind it see all of it, and writers keep their order."""

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok(",".join(done.name for done in context.session[Done].all()))

    prompt = prompt_of(tool_of("read", read, "none"), tool_of("write", write))
    names = ["read", "read", "write", "read", "write", "write", "read", "read"]
    calls = [ToolCall(name, {"name": str(place)}) for place, name in enumerate(names)]
    session = Session()
    outcomes = run(calls, prompt=prompt, session=session)
    assert [outcome.value for outcome in outcomes] == ["", "", "2", "2", "4", "5", "2,4,5", "2,4,5"]
    assert session[Done].all() == (Done("2"), Done("4"), Done("5"))


@both
def test_a_batch_goes_on_after_failed_unknown_and_invalid_calls(run: Run) -> None:
    """Nothing the model sends ends the turn: every call has its outcome, its place and its event."""

    def fail(params: Step, *, context: Any) -> ToolResult[str]:
        raise KeyError("lost")

    prompt = prompt_of(tool_of("fail", fail), tool_of("write", write))
    calls = [
        ToolCall("fail", {}),
        ToolCall("nope", {}),
        ToolCall("write", "{not json"),
        ToolCall(["write"], {}),  # pyright: ignore[reportArgumentType]
        ToolCall("write", {"name": "kept"}),
    ]
    session = Session()
    outcomes = run(calls, prompt=prompt, session=session)
    expected = ["failed", "unknown_tool", "invalid_params", "unknown_tool", "ok"]
    assert [outcome.outcome for outcome in outcomes] == expected
    assert [event.outcome for event in session[ToolInvoked].all()] == expected
    assert session[Done].all() == (Done("kept"),)


@both
def test_an_empty_turn_is_no_work(run: Run) -> None:
    """No calls, no outcomes, no events."""
    session = Session()
    assert run([], prompt=prompt_of(), session=session) == []
    assert len(session[ToolInvoked]) == 0


@both
@pytest.mark.parametrize("error", [PromptEvaluationError, KeyboardInterrupt, SystemExit])
def test_calls_that_never_started_are_recorded_as_cancelled(run: Run, error: type[BaseException]) -> None:
    """S2: an aborted turn leaves one event per call, and nothing of the aborting call."""

    def stop(params: Step, *, context: Any) -> ToolResult[str]:
        write(params, context=context)
        raise error("stop here")

    prompt = prompt_of(tool_of("write", write), tool_of("stop", stop))
    calls = [ToolCall(name, {"name": name}) for name in ("write", "stop", "write", "nope")]
    session = Session()
    with pytest.raises(error):
        run(calls, prompt=prompt, session=session)
    events = session[ToolInvoked].all()
    stopped = "interrupted" if error is PromptEvaluationError else "cancelled"
    assert [event.outcome for event in events] == ["ok", stopped, "cancelled", "cancelled"]
    assert [event.tool_name for event in events] == ["write", "stop", "write", "nope"]
    assert events[2].message == "The call was not started: an earlier call of the same turn ended the run."
    assert not events[2].retryable
    assert session[Done].all() == (Done("write"),)


@both
def test_a_deadline_that_passes_in_the_middle_of_a_turn_cancels_the_rest(run: Run) -> None:
    """The call that finds the deadline gone is recorded `deadline`; those behind it `cancelled`."""
    clock = FakeClock()

    def late(params: Step, *, context: Any) -> ToolResult[str]:
        clock.advance(10)
        return ToolResult.ok("late")

    prompt = prompt_of(tool_of("late", late))
    session = Session()
    with pytest.raises(DeadlineExceededError):
        run([ToolCall("late", {})] * 3, prompt=prompt, session=session, deadline=Deadline.after(5, clock))
    assert [event.outcome for event in session[ToolInvoked].all()] == ["ok", "deadline", "cancelled"]


def test_cancelling_a_turn_of_readers_records_each_of_them() -> None:
    """A cancelled task takes its readers with it and waits until each is recorded."""
    session = Session()

    async def read(params: Step, *, context: Any) -> ToolResult[str]:
        started.append(params.name)
        await asyncio.Event().wait()
        return ToolResult.ok("never")

    started: list[str] = []
    prompt = prompt_of(tool_of("read", read, "none"), tool_of("write", write))

    async def main() -> None:
        calls = [ToolCall("read", {"name": "a"}), ToolCall("read", {"name": "b"}), ToolCall("write", {"name": "c"})]
        turn = asyncio.create_task(aexecute_tools(calls, prompt=prompt, session=session))
        while len(started) < 2:
            await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    asyncio.run(main())
    assert [event.outcome for event in session[ToolInvoked].all()] == ["cancelled"] * 3
    assert {event.tool_name for event in session[ToolInvoked].all()} == {"read", "write"}
    with session.transaction():
        assert session[Done].all() == ()


@both
def test_a_read_only_handler_that_writes_is_refused_and_told_why(run: Run) -> None:
    """`effects="none"` gets read-only views: session and files say what to declare instead."""
    prompt = prompt_of(tool_of("read", write, "none"))
    session = Session()
    [first, second] = run([ToolCall("read", {})] * 2, prompt=prompt, session=session)
    assert first.text == second.text
    assert first.text == (
        'Internal error: Cannot write to the slices: this tool is declared effects="none". '
        'Declare effects="local" to let it write.'
    )
    assert session[Done].all() == ()


@both
def test_a_quota_of_five_lets_exactly_five_of_twenty_readers_run(run: Run) -> None:
    """Reserved atomically: a parallel batch of 20 under a quota of 5 runs 5 handlers."""
    ran: list[str] = []

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        ran.append(params.name)
        return ToolResult.ok("read")

    prompt = prompt_of(tool_of("read", read, "none"), policies=[QuotaPolicy(5)])
    session = Session()
    outcomes = run([ToolCall("read", {})] * 20, prompt=prompt, session=session)
    assert len(ran) == 5
    assert sorted(outcome.outcome for outcome in outcomes) == ["denied"] * 15 + ["ok"] * 5
    assert {outcome.text for outcome in outcomes if not outcome.success} == {"Quota exceeded: 5/5 calls used"}


@both
def test_a_quota_of_five_lets_the_first_five_of_twenty_writers_run(run: Run) -> None:
    """In order, since writers run in order."""
    prompt = prompt_of(tool_of("write", write), policies=[QuotaPolicy(5, tools=["write"])])
    session = Session()
    outcomes = run([ToolCall("write", {"name": str(n)}) for n in range(20)], prompt=prompt, session=session)
    assert [outcome.outcome for outcome in outcomes] == ["ok"] * 5 + ["denied"] * 15
    assert session[Done].all() == tuple(Done(str(n)) for n in range(5))


@pytest.mark.parametrize("effects", ["none", "local"])
@pytest.mark.parametrize("policy", [QuotaPolicy(5), RateLimitPolicy(5)])
def test_twenty_threads_under_a_limit_of_five_run_five(policy: Any, effects: Any) -> None:
    """Exact under concurrency, whether the calls take turns or run side by side."""
    ran: list[str] = []

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        ran.append(params.name)
        return ToolResult.error("counts all the same: the handler started")

    prompt = prompt_of(tool_of("h", handler, effects), policies=[policy])
    session = Session(clock=FakeClock())
    start = threading.Barrier(20, timeout=WAIT)

    def run() -> None:
        start.wait()
        execute_tool(ToolCall("h", {}), prompt=prompt, session=session)

    threads = [threading.Thread(target=run) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(ran) == 5
    assert sorted(event.outcome for event in session[ToolInvoked].all()) == ["denied"] * 15 + ["failed"] * 5


def test_twenty_tasks_under_a_quota_of_five_run_five() -> None:
    """The same for tasks of one loop whose handlers suspend."""
    ran: list[str] = []

    async def handler(params: Step, *, context: Any) -> ToolResult[str]:
        await asyncio.sleep(0)
        ran.append(params.name)
        return ToolResult.ok("ran")

    prompt = prompt_of(tool_of("h", handler, "none"), policies=[QuotaPolicy(5)])
    session = Session()

    async def main() -> list[ToolOutcome]:
        calls = (aexecute_tool(ToolCall("h", {}), prompt=prompt, session=session) for _ in range(20))
        return await asyncio.gather(*calls)

    outcomes = asyncio.run(main())
    assert len(ran) == 5
    assert sum(outcome.success for outcome in outcomes) == 5


def test_readers_side_by_side_all_keep_what_their_policies_noted() -> None:
    """Parallel commits of policy records lose none: each reader's tool counts afterwards."""
    from weakincentives.prompt import SequentialDependencyPolicy

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        meeting.wait()
        return ToolResult.ok("read")

    meeting = threading.Barrier(6, timeout=WAIT)
    readers = [tool_of(f"read{n}", read, "none") for n in range(6)]
    needs = SequentialDependencyPolicy({"write": [tool.name for tool in readers]})
    prompt = prompt_of(*readers, tool_of("write", write), policies=[needs])
    session = Session()
    assert execute_tool(ToolCall("write", {}), prompt=prompt, session=session).outcome == "denied"
    assert all(
        o.success for o in execute_tools([ToolCall(t.name, {}) for t in readers], prompt=prompt, session=session)
    )
    assert execute_tool(ToolCall("write", {}), prompt=prompt, session=session).success


def test_a_turn_of_very_many_readers_needs_no_thread_for_each() -> None:
    """What a model sends does not decide how many threads there are."""
    alive = threading.active_count()
    most = [0]

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        most[0] = max(most[0], threading.active_count() - alive)
        return ToolResult.ok("read")

    prompt = prompt_of(tool_of("read", read, "none"))
    outcomes = execute_tools([ToolCall("read", {})] * 1000, prompt=prompt, session=Session())
    assert all(outcome.success for outcome in outcomes)
    assert most[0] < 200


@both
def test_a_batch_inside_a_handler_is_part_of_its_call(run: Run) -> None:
    """What the batch wrote goes when the handler fails."""

    def outer(params: Step, *, context: Any) -> ToolResult[str]:
        outcomes = run([ToolCall("write", {"name": "x"}), ToolCall("read", {}), ToolCall("read", {})], context=context)
        assert [outcome.outcome for outcome in outcomes] == ["ok", "ok", "ok"]
        assert context.session[Done].all() == (Done("x"),)
        return ToolResult.error("no")

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok(str(len(context.session[Done])))

    prompt = prompt_of(tool_of("write", write), tool_of("read", read, "none"), tool_of("outer", outer))
    session = Session()
    execute_tool(ToolCall("outer", {}), prompt=prompt, session=session)
    assert session[Done].all() == ()
    outcomes = {event.tool_name: event.outcome for event in session[ToolInvoked].all()}
    assert outcomes == {"write": "ok", "read": "ok", "outer": "failed"}
