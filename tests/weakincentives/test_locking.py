"""Turn-taking: one writer or several readers per session, first come first served, and no wait that could never end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from weakincentives.errors import WouldDeadlockError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.runtime import (
    Replace,
    Session,
    ToolCall,
    ToolInvoked,
    aexecute_tool,
    execute_tool,
)
from weakincentives.transaction import WriterLock

WAIT = 20.0
"""Only a broken lock waits so long."""


class Caller:
    """A logical call as the lock sees it; says when it has been queued."""

    nested = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.queued = threading.Event()
        self._waits: Sequence[WriterLock] = ()

    @property
    def waits(self) -> Sequence[WriterLock]:
        return self._waits

    @waits.setter
    def waits(self, locks: Sequence[WriterLock]) -> None:
        self._waits = locks
        if locks:
            self.queued.set()


class InThread:
    """A caller that waits in a thread of its own and notes when it got its turn."""

    def __init__(self, lock: WriterLock, name: str, order: list[str], *, shared: bool = False) -> None:
        self.caller = Caller(name)
        self.entered = threading.Event()

        def run() -> None:
            lock.acquire(self.caller, shared=shared)
            order.append(name)
            self.entered.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def wait_queued(self) -> InThread:
        assert self.caller.queued.wait(WAIT)
        return self

    def wait_entered(self) -> None:
        assert self.entered.wait(WAIT)


def test_a_free_lock_is_taken_at_once_and_entering_again_is_free() -> None:
    """The owner is the call: entering twice says False the second time and needs one release."""
    lock, call = WriterLock(), Caller("a")
    assert lock.acquire(call, shared=False) is True
    assert lock.acquire(call, shared=False) is False
    lock.release(call)
    assert lock.acquire(Caller("b"), shared=False) is True


def test_releasing_what_one_does_not_hold_is_harmless() -> None:
    """A release by a stranger takes nothing from the holder."""
    lock, holder = WriterLock(), Caller("holder")
    lock.acquire(holder, shared=False)
    lock.release(Caller("stranger"))
    order: list[str] = []
    waiting = InThread(lock, "next", order).wait_queued()
    assert order == []
    lock.release(holder)
    waiting.wait_entered()


def test_writers_get_their_turn_in_the_order_they_came() -> None:
    """First come, first served, for threads."""
    lock, holder = WriterLock(), Caller("holder")
    lock.acquire(holder, shared=False)
    order: list[str] = []
    queue = [InThread(lock, str(number), order).wait_queued() for number in range(8)]
    lock.release(holder)
    for waiting in queue:
        waiting.wait_entered()
        lock.release(waiting.caller)
    assert order == [str(number) for number in range(8)]


def test_any_thread_of_a_call_may_release_its_lock() -> None:
    """The lock belongs to a logical call, not to the thread that took it."""
    lock, call = WriterLock(), Caller("a")
    lock.acquire(call, shared=False)
    thread = threading.Thread(target=lock.release, args=(call,))
    thread.start()
    thread.join()
    assert lock.acquire(Caller("b"), shared=False) is True


def test_readers_share_and_a_writer_waits_for_all_of_them() -> None:
    """Two readers hold it together; the writer behind them enters after the last has left."""
    lock, first, second = WriterLock(), Caller("r1"), Caller("r2")
    assert lock.acquire(first, shared=True)
    assert lock.acquire(second, shared=True)
    order: list[str] = []
    writer = InThread(lock, "w", order).wait_queued()
    lock.release(first)
    assert order == []
    lock.release(second)
    writer.wait_entered()


def test_a_reader_does_not_overtake_a_waiting_writer() -> None:
    """A stream of readers cannot starve a writer."""
    lock, reader = WriterLock(), Caller("r1")
    lock.acquire(reader, shared=True)
    order: list[str] = []
    writer = InThread(lock, "w", order).wait_queued()
    late = InThread(lock, "r2", order, shared=True).wait_queued()
    lock.release(reader)
    writer.wait_entered()
    lock.release(writer.caller)
    late.wait_entered()
    assert order == ["w", "r2"]


def test_neighbouring_readers_in_the_queue_enter_together() -> None:
    """When a writer leaves, all readers up to the next writer get in at once."""
    lock, holder = WriterLock(), Caller("holder")
    lock.acquire(holder, shared=False)
    order: list[str] = []
    readers = [InThread(lock, f"r{number}", order, shared=True).wait_queued() for number in range(3)]
    writer = InThread(lock, "w", order).wait_queued()
    lock.release(holder)
    for reader in readers:
        reader.wait_entered()
    assert "w" not in order
    for reader in readers:
        lock.release(reader.caller)
    writer.wait_entered()


def test_tasks_and_threads_stand_in_one_queue() -> None:
    """Order holds across event loop and threads."""
    lock, holder = WriterLock(), Caller("holder")
    lock.acquire(holder, shared=False)
    order: list[str] = []

    async def main() -> None:
        async def enter(caller: Caller) -> None:
            await lock.acquire_async(caller, shared=False)
            order.append(caller.name)
            lock.release(caller)

        first, third = Caller("task 1"), Caller("task 3")
        tasks = [asyncio.create_task(enter(first))]
        await asyncio.sleep(0)
        second = InThread(lock, "thread 2", order).wait_queued()
        tasks.append(asyncio.create_task(enter(third)))
        await asyncio.sleep(0)
        lock.release(holder)
        await tasks[0]
        await asyncio.to_thread(second.wait_entered)
        lock.release(second.caller)
        await tasks[1]

    asyncio.run(main())
    assert order == ["task 1", "thread 2", "task 3"]


def test_a_cancelled_waiter_leaves_the_queue_and_those_behind_move_up() -> None:
    """Cancelling a writer in the queue lets the readers behind it join the readers that are in."""
    lock, reader = WriterLock(), Caller("r1")

    async def main() -> bool:
        lock.acquire(reader, shared=True)
        writer = asyncio.create_task(lock.acquire_async(Caller("w"), shared=False))
        late = asyncio.create_task(lock.acquire_async(Caller("r2"), shared=True))
        await asyncio.sleep(0)
        writer.cancel()
        return await late

    assert asyncio.run(main()) is True


def test_a_waiter_whose_loop_was_closed_holds_nobody_up() -> None:
    """A loop that ended with somebody in the queue: the lock goes to the next one all the same."""
    lock, holder = WriterLock(), Caller("holder")
    lock.acquire(holder, shared=False)
    loop = asyncio.new_event_loop()
    gone = loop.create_task(lock.acquire_async(Caller("gone"), shared=False))
    loop.run_until_complete(asyncio.sleep(0))
    gone.cancel()
    loop.run_until_complete(asyncio.gather(gone, return_exceptions=True))
    loop.close()
    order: list[str] = []
    waiting = InThread(lock, "next", order).wait_queued()
    lock.release(holder)
    waiting.wait_entered()


# -- through the pipeline ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    count: int


@dataclass(frozen=True, slots=True)
class Bump:
    pass


def prompt_of(*tools: Tool[Any, Any]) -> Prompt[Any]:
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="T", template="t", tools=list(tools))]))


def tool_of(
    name: str, handler: Callable[..., Any], effects: Literal["none", "local", "external"] = "local"
) -> Tool[Step, str]:
    return Tool[Step, str](name=name, description="A step.", handler=handler, effects=effects)


def bump(params: Step, *, context: Any) -> ToolResult[str]:
    slice_ = context.session[Tally]
    before = slice_.latest()
    slice_.seed(Tally(before.count + 1))
    return ToolResult.ok("bumped")


async def bump_slowly(params: Step, *, context: Any) -> ToolResult[str]:
    before = context.session[Tally].latest()
    await asyncio.sleep(0)
    context.session[Tally].seed(Tally(before.count + 1))
    return ToolResult.ok("bumped")


def in_threads(count: int, run: Callable[[int], object]) -> None:
    problems: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not problems


def test_ten_threads_of_a_hundred_increments_lose_none() -> None:
    """Read, add one, write, in a handler: 10 x 100 calls make 1000."""
    session, prompt = Session(), prompt_of(tool_of("bump", bump))
    session[Tally].seed(Tally(0))

    def run(_: int) -> None:
        for _ in range(100):
            assert execute_tool(ToolCall("bump", {}), prompt=prompt, session=session).success

    in_threads(10, run)
    assert session[Tally].latest() == Tally(1000)
    assert len(session[ToolInvoked]) == 1000


def test_ten_tasks_of_thirty_increments_lose_none() -> None:
    """The same on one event loop, with a handler that suspends between reading and writing."""
    session, prompt = Session(), prompt_of(tool_of("bump", bump_slowly))
    session[Tally].seed(Tally(0))

    async def run() -> None:
        for _ in range(30):
            await aexecute_tool(ToolCall("bump", {}), prompt=prompt, session=session)

    async def main() -> None:
        await asyncio.gather(*(run() for _ in range(10)))

    asyncio.run(main())
    assert session[Tally].latest() == Tally(300)


def test_threads_and_two_loops_on_one_session_lose_no_update() -> None:
    """Sync callers, async callers of several loops and bystanders that dispatch all count."""
    session = Session()
    prompt = prompt_of(tool_of("bump", bump), tool_of("slow", bump_slowly))
    session[Tally].seed(Tally(0))

    @dataclass(frozen=True, slots=True)
    class Seen:
        count: int

    def seen(view: Any, event: Bump, *, context: Any) -> Any:
        latest = view.latest()
        return Replace((Seen((latest.count if latest else 0) + 1),))

    session[Seen].register(Bump, seen)

    async def tasks() -> None:
        await asyncio.gather(*(aexecute_tool(ToolCall("slow", {}), prompt=prompt, session=session) for _ in range(25)))

    def run(number: int) -> None:
        match number % 3:
            case 0:
                for _ in range(25):
                    execute_tool(ToolCall("bump", {}), prompt=prompt, session=session)
            case 1:
                asyncio.run(tasks())
            case _:
                for _ in range(25):
                    session.dispatch(Bump())

    in_threads(6, run)
    assert session[Tally].latest() == Tally(100)
    assert session[Seen].latest() == Seen(50)


def test_calls_of_many_tasks_run_in_the_order_they_asked() -> None:
    """FIFO through the pipeline: tasks started in order finish in order."""
    session, ran = Session(), list[str]()

    async def note(params: Step, *, context: Any) -> ToolResult[str]:
        await asyncio.sleep(0)
        ran.append(params.name)
        return ToolResult.ok("noted")

    prompt = prompt_of(tool_of("note", note))

    async def main() -> None:
        await asyncio.gather(
            *(aexecute_tool(ToolCall("note", {"name": str(n)}), prompt=prompt, session=session) for n in range(20))
        )

    asyncio.run(main())
    assert ran == [str(n) for n in range(20)]
    assert [event.params.name for event in session[ToolInvoked].all()] == ran


def test_blocking_a_loop_on_a_call_that_needs_it_is_refused() -> None:
    """A sync call on an event loop where another call holds the session says so instead of hanging."""
    session = Session()
    inside, finish = asyncio.Event(), asyncio.Event()

    async def hold(params: Step, *, context: Any) -> ToolResult[str]:
        inside.set()
        await finish.wait()
        return ToolResult.ok("held")

    prompt = prompt_of(tool_of("hold", hold), tool_of("bump", bump))

    async def main() -> None:
        holder = asyncio.create_task(aexecute_tool(ToolCall("hold", {}), prompt=prompt, session=session))
        await inside.wait()
        with pytest.raises(WouldDeadlockError) as caught:
            execute_tool(ToolCall("bump", {}), prompt=prompt, session=session)
        assert str(caught.value) == (
            "Another call on this event loop holds the session; blocking the loop would wait for ever. "
            "Use aexecute_tool, or `async with session.transaction()`, in async code."
        )
        with pytest.raises(WouldDeadlockError), session.transaction():
            pass
        finish.set()
        assert (await holder).success

    asyncio.run(main())


def test_two_calls_that_wait_for_each_others_session_are_refused() -> None:
    """A holds one session and wants the other, B the reverse: the second to ask is told, the first goes on."""
    one, two = Session(), Session()
    meet = threading.Barrier(2)
    texts: list[str] = []

    def cross(params: Step, *, context: Any) -> ToolResult[str]:
        meet.wait(WAIT)
        other = two if context.session == one else one
        try:
            execute_tool(ToolCall("nothing", {}), prompt=prompt, session=other)
        except WouldDeadlockError as error:
            texts.append(str(error))
        return ToolResult.ok("crossed")

    def nothing(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok("nothing")

    prompt = prompt_of(tool_of("cross", cross), tool_of("nothing", nothing))
    in_threads(2, lambda n: execute_tool(ToolCall("cross", {}), prompt=prompt, session=(one, two)[n]))
    assert texts == [
        "Two calls hold one session each and wait for the other's. Cannot go on; run them one after the other."
    ]
    for session in (one, two):
        with session.transaction():
            pass


def test_nested_writing_calls_at_the_same_time_run_one_after_the_other() -> None:
    """A handler that gathers writing calls gets them in turn, each seeing what the one before wrote."""
    session = Session()
    session[Tally].seed(Tally(0))

    async def gather(params: Step, *, context: Any) -> ToolResult[str]:
        calls = (aexecute_tool(ToolCall("slow", {}), context=context) for _ in range(10))
        outcomes = await asyncio.gather(*calls)
        assert all(outcome.success for outcome in outcomes)
        return ToolResult.ok("gathered")

    prompt = prompt_of(tool_of("slow", bump_slowly), tool_of("gather", gather))
    assert asyncio.run(aexecute_tool(ToolCall("gather", {}), prompt=prompt, session=session)).success
    assert session[Tally].latest() == Tally(10)


def test_nested_calls_from_the_handlers_own_threads_join_its_transaction() -> None:
    """Threads a handler starts may call tools through its context: serialised, and rolled back with it."""
    session = Session()
    session[Tally].seed(Tally(0))
    seen: list[Tally] = []

    def spread(params: Step, *, context: Any) -> ToolResult[str]:
        in_threads(4, lambda _: execute_tool(ToolCall("bump", {}), context=context))
        seen.append(context.session[Tally].latest())
        return ToolResult.ok("spread") if params.name == "keep" else ToolResult.error("dropped")

    prompt = prompt_of(tool_of("bump", bump), tool_of("spread", spread))
    assert not execute_tool(ToolCall("spread", {}), prompt=prompt, session=session).success
    assert session[Tally].latest() == Tally(0)
    assert execute_tool(ToolCall("spread", {"name": "keep"}), prompt=prompt, session=session).success
    assert session[Tally].latest() == Tally(4)
    assert seen == [Tally(4), Tally(4)]


def test_a_reader_cancelled_in_the_instant_of_its_turn_takes_nothing_from_its_sibling() -> None:
    """Two readers of one call get another session together; cancelling one must not let a writer in beside the other."""
    home, other = Session(), Session()

    async def main() -> None:
        released, inside, finish = asyncio.Event(), asyncio.Event(), asyncio.Event()
        reading: list[str] = []
        beside: list[list[str]] = []

        async def hold(params: Step, *, context: Any) -> ToolResult[str]:
            inside.set()
            await released.wait()
            return ToolResult.ok("held")

        async def read(params: Step, *, context: Any) -> ToolResult[str]:
            reading.append(params.name)
            await finish.wait()
            reading.remove(params.name)
            return ToolResult.ok("read")

        async def write(params: Step, *, context: Any) -> ToolResult[str]:
            beside.append(list(reading))
            return ToolResult.ok("written")

        parts: list[asyncio.Task[Any]] = []

        async def both(params: Step, *, context: Any) -> ToolResult[str]:
            for name in ("one", "two"):
                call = aexecute_tool(ToolCall("read", {"name": name}), prompt=prompt, session=other)
                parts.append(asyncio.create_task(call))
            await asyncio.gather(*parts, return_exceptions=True)
            return ToolResult.ok("both")

        prompt = prompt_of(
            tool_of("hold", hold), tool_of("read", read, "none"), tool_of("write", write), tool_of("both", both)
        )
        holder = asyncio.create_task(aexecute_tool(ToolCall("hold", {}), prompt=prompt, session=other))
        await inside.wait()
        caller = asyncio.create_task(aexecute_tool(ToolCall("both", {}), prompt=prompt, session=home))
        while len(parts) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        released.set()
        await holder
        parts[0].cancel()
        await asyncio.sleep(0)
        writer = asyncio.create_task(aexecute_tool(ToolCall("write", {}), prompt=prompt, session=other))
        for _ in range(10):
            await asyncio.sleep(0)
        assert reading in (["two"], ["one", "two"])
        finish.set()
        await asyncio.gather(caller, writer)
        assert beside == [[]]

    asyncio.run(main())


def test_a_nested_call_that_comes_too_late_takes_no_lock_with_it() -> None:
    """A timed-out handler's nested call gets its turn after the end: refused, and both sessions stay usable."""
    home, other = Session(), Session()
    taken, hold, over = threading.Event(), threading.Event(), threading.Event()
    refusals: list[str] = []

    def keep_busy() -> None:
        with other.transaction():
            taken.set()
            hold.wait(WAIT)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    assert taken.wait(WAIT)

    def late(params: Step, *, context: Any) -> ToolResult[str]:
        try:
            execute_tool(ToolCall("bump", {}), prompt=prompt, session=other)
        except Exception as error:
            refusals.append(type(error).__name__)
        over.set()
        return ToolResult.ok("late")

    prompt = prompt_of(
        tool_of("bump", bump), Tool[Step, str](name="late", description="Late.", handler=late, timeout=0.02)
    )
    assert execute_tool(ToolCall("late", {}), prompt=prompt, session=home).outcome == "timeout"
    hold.set()
    busy.join()
    assert over.wait(WAIT)
    assert refusals == ["FencedWriteError"]
    for session in (home, other):
        with session.transaction():
            pass


def test_sync_calls_whose_async_handlers_call_each_others_sessions_do_not_hang() -> None:
    """An async handler that calls synchronously into a session held by another async handler ends, one way or the other."""
    one, two = Session(), Session()
    inside, go = threading.Event(), threading.Event()

    async def wait(params: Step, *, context: Any) -> ToolResult[str]:
        inside.set()
        while not go.is_set():
            await asyncio.sleep(0)
        return ToolResult.ok("waited")

    async def cross(params: Step, *, context: Any) -> ToolResult[str]:
        go.set()
        return ToolResult.ok(execute_tool(ToolCall("nothing", {}), prompt=prompt, session=two).outcome)

    def nothing(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok("nothing")

    prompt = prompt_of(tool_of("wait", wait), tool_of("cross", cross), tool_of("nothing", nothing))

    def run(number: int) -> None:
        if number == 0:
            execute_tool(ToolCall("wait", {}), prompt=prompt, session=two)
        else:
            assert inside.wait(WAIT)
            execute_tool(ToolCall("cross", {}), prompt=prompt, session=one)

    in_threads(2, run)
    assert [event.tool_name for event in one[ToolInvoked].all()] == ["cross"]


def test_a_bystanders_write_never_waits_for_a_call() -> None:
    """The page writes while a handler runs: at once, and the call's rollback leaves it alone."""
    session = Session()

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        context.session[Step].append(Step("mine"))
        contextvars.Context().run(session[Step].append, Step("bystander's"))
        return ToolResult.error("failed")

    execute_tool(ToolCall("h", {}), prompt=prompt_of(tool_of("h", handler)), session=session)
    assert session[Step].all() == (Step("bystander's"),)
