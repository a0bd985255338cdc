"""Fail the n-th effect of a call, for every n: state, files and resources are as before, or as after the finished call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weakincentives.errors import RollbackError, SessionStorageError, TransactionError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Tool, ToolResult
from weakincentives.runtime import Session, ToolCall, ToolInvoked, TransactionRolledBack, aexecute_tool, execute_tool
from weakincentives.transaction import current_scope

from .faults import Faults, Line, Order, Total, World, finished_state, sweep

ERRORS: list[Callable[[str], BaseException]] = [
    RuntimeError,
    ValueError,
    KeyboardInterrupt,
    asyncio.CancelledError,
    SystemExit,
]
EFFECTS = {
    "policy.check",
    "counter.snapshot",
    "database.begin",
    "handler.begin",
    "handle.build",
    "handle.post_construct",
    "counter.add",
    "late.build",
    "reducer.line",
    "reducer.total",
    "file.before",
    "file.after",
    "database.insert",
    "handler.end",
    "render",
    "policy.on_result",
    "database.prepare",
    "database.commit",
    "handle.close",
    "subscriber",
    "subscriber.call",
}
CALL = ToolCall("order", {"item": "tea"})


def run_sync(world: World, **surroundings: Any) -> None:
    execute_tool(CALL, prompt=world.prompt, session=world.session, **surroundings)


def run_async(world: World) -> None:
    asyncio.run(aexecute_tool(CALL, prompt=world.prompt, session=world.session))


def run_in_thread(world: World) -> None:
    """The handler has a timeout, so it runs in a kept thread."""
    tool = Tool[Order, Any](name="order", description="Order.", handler=world._order, timeout=30)
    world.prompt = world._prompt(tool)
    run_sync(world)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("run", [run_sync, run_async, run_in_thread])
def test_a_call_whose_nth_effect_fails_changes_nothing_or_everything(
    run: Callable[[World], None], error: Callable[[str], BaseException]
) -> None:
    """Whatever fails, the world equals its start or the finished call, with one event that says which."""
    interrupts = not issubclass(error, Exception)  # pyright: ignore[reportArgumentType]

    def once(faults: Faults) -> None:
        world = World(faults)
        start = world.state()
        raised: BaseException | None = None
        try:
            run(world)
        except BaseException as problem:
            raised = problem
        faults.armed = False
        [event] = world.events()
        kept = event.outcome == "ok"
        assert world.state() == (finished_state() if kept else start), faults.fired
        assert kept or not world.heard, f"an event of a rolled-back call was delivered ({faults.fired})"
        assert event.result is None or event.result.success is kept
        if not interrupts:
            assert raised is None, faults.fired
        elif faults.fired:
            assert raised is not None, faults.fired
            assert event.outcome in ("ok", "cancelled"), faults.fired
        world.check_usable()

    assert set(sweep(error, once)) == EFFECTS


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_durable_session_holds_after_a_restart_what_it_held_in_memory(
    blocks: bool, error: Callable[[str], BaseException], tmp_path: Path
) -> None:
    """Whatever failed, the file says the same as the memory did: slices, events, and the next call works on both."""
    numbers = itertools.count()

    def once(faults: Faults) -> None:
        path = tmp_path / f"{next(numbers)}.wink"
        with Session.open(path) as session:
            world = World(faults, session=session)
            session.attach("files", world.files)
            with contextlib.suppress(error):
                if blocks:
                    with session.transaction(world.prompt.resources):
                        run_sync(world)
                else:
                    run_sync(world)
            faults.armed = False
            lines, totals, events = session[Line].all(), session[Total].all(), world.events()
            files = world.state()["files"]
            world.check_usable()
        with Session.open(path) as again:
            stored = InMemoryFilesystem()
            again.attach("files", stored)
            assert (again[Line].all(), again[Total].all()) == (lines, totals), faults.fired
            assert again[ToolInvoked].all() == events, faults.fired
            assert {name: stored.read(name) for name in stored.glob("**/*")} == files, faults.fired

    assert set(sweep(error, once)) >= EFFECTS


@pytest.mark.parametrize("blocks", [False, True])
def test_a_disk_that_is_full_at_the_nth_write_leaves_memory_and_file_agreeing(
    blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not committed means not in the file and not in memory; with room again, the session goes on."""
    write = os.pwrite

    def full_at(number: int) -> bool:
        path = tmp_path / f"{number}.wink"
        left = [number]

        def limited(*arguments: Any) -> int:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*arguments)

        with Session.open(path) as session:
            world = World(Faults(), session=session)
            session.attach("files", world.files)
            start = world.state()
            kept = False
            monkeypatch.setattr(os, "pwrite", limited)
            try:
                if blocks:
                    with session.transaction(world.prompt.resources):
                        outcome = execute_tool(CALL, prompt=world.prompt, session=session)
                else:
                    outcome = execute_tool(CALL, prompt=world.prompt, session=session)
                kept = outcome.success
            except SessionStorageError as error:
                assert "No space left on device. Nothing was committed." in str(error)
            monkeypatch.undo()
            if not kept:
                assert world.state() == start, number
                assert not world.heard
                taken_back = {call for event in session[TransactionRolledBack].all() for call in event.call_ids}
                assert {event.call_id for event in world.events() if event.outcome == "ok"} <= taken_back
            assert execute_tool(CALL, prompt=world.prompt, session=session).success
            lines, events = session[Line].all(), world.events()
        with Session.open(path) as again:
            assert (again[Line].all(), again[ToolInvoked].all()) == (lines, events)
        return left[0] <= 0

    number = 1
    while full_at(number):
        number += 1
    assert number > 3


@pytest.mark.parametrize("error", ERRORS)
def test_a_transaction_whose_nth_effect_fails_keeps_all_calls_or_none(error: Callable[[str], BaseException]) -> None:
    """Two calls in one block: whatever fails in either, or at the commit of the block, both are kept or neither."""

    def once(faults: Faults) -> None:
        world = World(faults)
        start = world.state()
        kept = False
        outcomes: list[str] = []
        try:
            with world.session.transaction(world.prompt.resources):
                for _ in range(2):
                    outcomes.append(execute_tool(CALL, prompt=world.prompt, session=world.session).outcome)
                    if outcomes[-1] != "ok":
                        raise LookupError("one of the calls failed")
            kept = True
        except BaseException:
            # A subscriber is told when all is kept already; its interrupt changes nothing.
            kept = faults.fired.startswith("subscriber") and len(outcomes) == 2
        faults.armed = False
        events = world.events()
        if kept:
            assert world.session[ToolInvoked].all()[-1].outcome == "ok"
            assert world.state()["rows"] == ("tea", "tea")
            assert world.state()["counter"] == 2
            assert len(world.state()["lines"]) == 5  # pyright: ignore[reportArgumentType]
        else:
            assert world.state() == start, faults.fired
            assert not world.heard, faults.fired
            taken_back = {call_id for event in world.session[TransactionRolledBack].all() for call_id in event.call_ids}
            assert taken_back >= {event.call_id for event in events if event.outcome == "ok"}, faults.fired
        assert len(events) == len({event.call_id for event in events})
        world.check_usable()

    fired = sweep(error, once)
    assert set(fired) >= EFFECTS
    assert "database.savepoint" in fired


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("swallow", [False, True])
def test_a_nested_call_whose_nth_effect_fails_is_a_savepoint(
    swallow: bool, error: Callable[[str], BaseException]
) -> None:
    """An outer handler that survives the failure of an inner call keeps its own writes and nothing of the inner's."""

    def once(faults: Faults) -> None:
        world = World(faults)
        inner = Tool[Order, Any](name="order", description="Order.", handler=world._order)

        def outer(params: Order, *, context: Any) -> ToolResult[str]:
            faults.armed = False
            context.session[Order].append(Order("outer"))
            faults.armed = True
            try:
                result = inner(Order("tea"), context=context)
            except BaseException:
                if not swallow:
                    raise
                return ToolResult.ok("went on")
            if not result.success and not swallow:
                return ToolResult.error("gave up")
            return ToolResult.ok("done")

        world.prompt = world._prompt(inner, Tool[Order, str](name="outer", description="Outer.", handler=outer))
        start = world.state()
        raised: BaseException | None = None
        try:
            execute_tool(ToolCall("outer", {}), prompt=world.prompt, session=world.session)
        except BaseException as problem:
            raised = problem
        faults.armed = False
        by_name = {event.tool_name: event for event in world.events()}
        assert len(world.events()) == len(by_name)
        outer_kept = by_name["outer"].outcome == "ok"
        inner_kept = outer_kept and "order" in by_name and by_name["order"].outcome == "ok"
        assert world.state() == (finished_state() if inner_kept else start), faults.fired
        assert world.session[Order].all() == ((Order("outer"),) if outer_kept else ()), faults.fired
        assert raised is None or not isinstance(raised, TransactionError), faults.fired
        world.check_usable()

    assert set(sweep(error, once)) >= EFFECTS - {"counter.snapshot", "database.begin"}


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("waiting", [False, True])
def test_a_task_cancelled_at_any_tick_of_the_loop_changes_nothing_or_everything(
    waiting: bool, timeout: float | None
) -> None:
    """Cancellation in the queue, in a policy, in the handler or in an async close leaves no lock and no half call."""

    async def cancelled_after(ticks: int) -> bool:
        world = World(Faults())

        async def order(params: Order, *, context: Any) -> ToolResult[Any]:
            await asyncio.sleep(0)
            result = world._order(params, context=context)
            await asyncio.sleep(0)
            return result

        tool = Tool[Order, Any](name="order", description="Order.", handler=order, timeout=timeout)
        world.prompt = world._prompt(tool)
        start = world.state()
        ahead = world.session.transaction()
        if waiting:
            await asyncio.create_task(ahead.__aenter__())
        task = asyncio.create_task(aexecute_tool(CALL, prompt=world.prompt, session=world.session))
        for tick in range(ticks):
            await asyncio.sleep(0)
            if waiting and tick == 2:
                await asyncio.create_task(ahead.__aexit__(None, None, None))
        was_running = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if waiting and ticks < 3:
            await asyncio.create_task(ahead.__aexit__(None, None, None))
        await asyncio.sleep(0)
        outcomes = [event.outcome for event in world.events()]
        # A task cancelled before its first step never began: there is no call to record.
        assert outcomes in ([["cancelled"], []] if ticks == 0 else [["cancelled"], ["ok"]]), ticks
        assert world.state() == (finished_state() if outcomes == ["ok"] else start), ticks
        world.check_usable()
        return was_running

    async def sweep_ticks() -> int:
        ticks = 0
        while await cancelled_after(ticks):
            ticks += 1
        return ticks

    assert asyncio.run(sweep_ticks()) >= 3


HEART = ("transaction/lock.py", "transaction/scope.py", "session/session.py", "session/log.py", "runtime/execute.py")


class CtrlC:
    """Raises KeyboardInterrupt at the n-th place in the heart where CPython may deliver a signal.

    Those places are the entry of a Python function and the return of a C function.
    """

    def __init__(self, place: int) -> None:
        self._left = place
        self.fired = ""

    def __enter__(self) -> CtrlC:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # An exception in a generator expression that `all` or `any` has done with is dropped by Python itself.
        if event not in ("call", "c_return") or not code.co_filename.endswith(HEART) or code.co_name == "<genexpr>":
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.fired = f"{code.co_name}:{frame.f_lineno} {event} {getattr(argument, '__name__', '')}"
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # struck before the pipeline was begun
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("nested", [False, True])
def test_ctrl_c_at_any_place_in_the_heart_leaves_no_lock_and_no_half_call(success: bool, nested: bool) -> None:
    """Invariant 5 to the letter: wherever the signal strikes, also in the clean-up of another failure."""

    def interrupted_at(place: int) -> bool:
        world = World(Faults())
        start = world.state()

        def order(params: Order, *, context: Any) -> ToolResult[Any]:
            result = world._order(params, context=context)
            return result if success else ToolResult.error("failed on purpose")

        def outer(params: Order, *, context: Any) -> ToolResult[str]:
            inner(params, context=context)
            return ToolResult.ok("went on")

        inner = Tool[Order, Any](name="order", description="Order.", handler=order)
        world.prompt = world._prompt(inner, Tool[Order, str](name="outer", description="Outer.", handler=outer))
        call = ToolCall("outer" if nested else "order", {})
        with contextlib.suppress(KeyboardInterrupt), CtrlC(place) as signal:
            execute_tool(call, prompt=world.prompt, session=world.session)
        fired = signal.fired
        assert current_scope() is None, fired
        outcomes = {event.tool_name: event.outcome for event in world.events()}
        assert len(outcomes) == len(world.events()) <= 1 + nested, fired
        # Before a call has begun there is nothing to record; from then on there is one event.
        assert outcomes or world.state() == start, fired
        kept = outcomes.get("order") == "ok" and (not nested or outcomes.get("outer") == "ok")
        assert world.state() == (finished_state() if kept else start), fired
        world.check_usable()
        return bool(fired)

    place = 1
    while interrupted_at(place):
        place += 1
    assert place > 100


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_restore_that_fails_stops_no_other_and_closes_the_session(error: type[BaseException]) -> None:
    """Invariant 4: every restore is tried, the causes come as one group, and the session refuses further writes."""

    class Broken:
        def snapshot(self) -> int:
            return 0

        def restore(self, snapshot: int) -> None:
            raise error("no")

    class BrokenToo(Broken):
        pass

    world = World(Faults())

    def handler(params: Order, *, context: Any) -> ToolResult[str]:
        context.resources.get(type(world.counter)).add()
        context.filesystem.write("kept.txt", "changed")
        return ToolResult.error("failed on purpose")

    prompt = world._prompt(Tool[Order, str](name="fail", description="Fails.", handler=handler))
    prompt = prompt.bind(resources={Broken: Broken(), BrokenToo: BrokenToo()})
    start = world.state()
    with pytest.raises(RollbackError, match="the session refuses further writes") as caught:
        execute_tool(ToolCall("fail", {}), prompt=prompt, session=world.session)
    assert len(caught.value.exceptions) == 2
    assert world.state() == start
    [event] = world.events()
    assert event.outcome == "failed"
    with pytest.raises(
        TransactionError, match="The session refuses writes: an earlier rollback could not restore everything"
    ):
        world.session[Order].append(Order())
    with pytest.raises(TransactionError, match="Open a new session"):
        run_sync(world)
