"""The turn-taking of calls on one session: one writer, or several readers, first come first served.

Decides who may run now, for threads and for tasks alike; refuses a wait that could never end. Never knows what is
written. docs/decisions/0002-transactions.md says why the lock is owned by a logical call and not by a thread.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import WouldDeadlockError


class Loop(Protocol):
    """What the lock asks of an event loop."""

    def create_future(self) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


def _find_running_loop() -> Loop | None:
    """The event loop of this thread. A program that has not loaded asyncio runs none, and need not load it for us."""
    global _running_loop  # from then on asyncio answers by itself
    find: Callable[[], Loop | None] | None = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    if find is None:
        return None
    _running_loop = find
    return find()


_running_loop: Callable[[], Loop | None] = _find_running_loop


class Owner(Protocol):
    """A logical call as the lock sees it."""

    @property
    def nested(self) -> bool: ...

    waits: Sequence[WriterLock]
    """The locks that parts of this call wait for at the moment."""


class WriterLock:
    """One writer, or any number of readers, first come first served; for threads and for tasks.

    Owned by a logical call, not by a thread: any thread of the call may release it, and the call may enter again.
    """

    __slots__ = ("_holders", "_mutex", "_queue", "_writing")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._holders: dict[Owner, Loop | None] = {}
        self._writing = False

    def acquire(self, owner: Owner, *, shared: bool) -> bool:
        """Block this thread until `owner` holds the lock; False when it did so already."""
        loop = _running_loop()
        with self._mutex:
            if not self._holders and not self._queue:  # nobody here: the way of almost every call
                self._holders[owner] = loop
                self._writing = not shared
                return True
            admitted = self._admit(owner, loop, shared)
        if admitted is not None:
            return admitted
        waiter = _ThreadWaiter(owner, shared, loop)
        if not self._enqueue(waiter):
            return waiter.fresh
        try:
            waiter.gate.acquire()
        except BaseException:
            self._abandon(waiter)
            raise
        finally:
            owner.waits = [lock for lock in owner.waits if lock is not self]
        return waiter.fresh

    async def acquire_async(self, owner: Owner, *, shared: bool) -> bool:
        """Wait without blocking the event loop until `owner` holds the lock; False when it did so already."""
        loop = _running_loop()
        if loop is None:
            raise RuntimeError("no running event loop")
        with self._mutex:
            admitted = self._admit(owner, loop, shared)
        if admitted is not None:
            return admitted
        waiter = _TaskWaiter(owner, shared, loop)
        if not self._enqueue(waiter):
            return waiter.fresh
        try:
            await waiter.future
        except BaseException:
            self._abandon(waiter)
            raise
        finally:
            owner.waits = [lock for lock in owner.waits if lock is not self]
        return waiter.fresh

    def release(self, owner: Owner) -> None:
        """Give the lock back; harmless when `owner` does not hold it."""
        with self._mutex:
            self._holders.pop(owner, None)
            if self._queue:
                self._grant()

    def _admit(self, owner: Owner, loop: Loop | None, shared: bool) -> bool | None:
        """True: taken. False: the owner has it. None: wait."""
        holders = self._holders
        if owner in holders:
            return False
        if self._queue or (holders and (self._writing or not shared)):
            return None
        holders[owner] = loop
        self._writing = not shared
        return True

    def _enqueue(self, waiter: _Waiter) -> bool:
        """Queue the waiter unless the lock came free meanwhile; refuse a wait that could never end."""
        with _graph, self._mutex:
            admitted = self._admit(waiter.owner, waiter.loop, waiter.shared)
            if admitted is not None:
                waiter.fresh = admitted
                return False
            self._refuse_deadlock(waiter)
            self._queue.append(waiter)
            waiter.owner.waits = [*waiter.owner.waits, self]
            return True

    def _grant(self) -> None:
        """Hand the lock to the first waiter, and with a reader to the readers right behind it."""
        while self._queue:
            waiter = self._queue[0]
            if waiter.owner not in self._holders:
                if self._holders and (self._writing or not waiter.shared):
                    break
                self._holders[waiter.owner] = waiter.loop
                self._writing = not waiter.shared
                waiter.fresh = True
            self._queue.popleft()
            waiter.granted = True
            waiter.wake()
        # Parallel parts of one call may queue for one session; what one part got, all have.
        for waiter in [w for w in self._queue if w.owner in self._holders]:
            self._queue.remove(waiter)
            waiter.granted = True
            waiter.wake()

    def _abandon(self, waiter: _Waiter) -> None:
        """A waiter was interrupted. If it was granted the lock in the same instant, its owner has it, and gives it
        back when it leaves: other parts of the same call may already rely on it."""
        with self._mutex:
            if not waiter.granted:
                self._queue.remove(waiter)
                self._grant()

    def _refuse_deadlock(self, waiter: _Waiter) -> None:
        # A thread that blocks its own event loop waits for ever if a call ahead of it needs that loop to go on.
        if isinstance(waiter, _ThreadWaiter) and waiter.loop is not None:
            ahead = [*self._holders.values(), *(w.loop for w in self._queue)]
            if waiter.loop in ahead:
                raise WouldDeadlockError(
                    "Another call on this event loop holds the session; blocking the loop would wait for ever. "
                    "Use aexecute_tool, or `async with session.transaction()`, in async code."
                )
        if waiter.owner.nested:
            return  # siblings of one call: their common parent is not waiting
        # Two calls that each hold a session and wait for the other's would never end.
        seen: set[WriterLock] = set()
        frontier: list[WriterLock] = [self]
        while frontier:
            lock = frontier.pop()
            if lock in seen:
                continue
            seen.add(lock)
            for holder in tuple(lock._holders):
                if holder is waiter.owner:
                    raise WouldDeadlockError(
                        "Two calls hold one session each and wait for the other's. Cannot go on; run them one after the other."
                    )
                frontier.extend(holder.waits)


_graph = threading.Lock()
"""Taken only by calls that must wait: makes enqueueing and the search for circular waits one step."""


class _Waiter:
    __slots__ = ("fresh", "granted", "loop", "owner", "shared")

    def __init__(self, owner: Owner, shared: bool, loop: Loop | None) -> None:
        self.owner = owner
        self.shared = shared
        self.loop = loop
        self.granted = False
        self.fresh = False

    def wake(self) -> None:
        raise AssertionError("each kind of waiter wakes in its own way")


class _ThreadWaiter(_Waiter):
    __slots__ = ("gate",)

    def __init__(self, owner: Owner, shared: bool, loop: Loop | None) -> None:
        super().__init__(owner, shared, loop)
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        self.gate.release()


class _TaskWaiter(_Waiter):
    __slots__ = ("future",)

    def __init__(self, owner: Owner, shared: bool, loop: Loop) -> None:
        super().__init__(owner, shared, loop)
        self.future = loop.create_future()

    def wake(self) -> None:
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop was closed under the waiter: nobody waits there any more
            self.future.cancel()

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
