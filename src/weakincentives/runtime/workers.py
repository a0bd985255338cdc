"""Threads kept for handlers that may not run on the caller's: those with a timeout, and sync ones on an event loop.

WHY NOT a ThreadPoolExecutor: handing over to a kept thread costs two thirds of it, and a thread that is stuck in a
timed-out handler must be left behind, not waited for.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Job:
    """One piece of work handed to a kept thread."""

    __slots__ = ("_done", "_fn", "_loop_future", "context", "error", "result")

    def __init__(self, fn: Callable[[], Any], context: contextvars.Context) -> None:
        self._fn = fn
        self.context = context
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self._loop_future: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def run(self) -> None:
        try:
            self.result = self.context.run(self._fn)
        except BaseException as error:  # noqa: BLE001  INVARIANT: whatever the handler raised is raised by whoever waits
            self.error = error
        self._done.release()
        waiting = self._loop_future
        if waiting is not None:
            loop, future = waiting
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                return  # that loop is closed: nobody waits there any more

    def wait(self, timeout: float | None) -> bool:
        """Block until the work is done; False when it is not done in time."""
        return self._done.acquire(timeout=-1 if timeout is None else timeout)

    async def wait_async(self, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._loop_future = (loop, future)
        if self._done.acquire(blocking=False):
            return True
        timer = None if timeout is None else loop.call_later(timeout, _resolve, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
        return self._done.acquire(blocking=False)

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


async def run_aside(fn: Callable[[], T]) -> T:
    """Run something slow in a kept thread while the event loop goes on. Who is cancelled leaves it behind."""
    job = submit(fn)
    await job.wait_async(None)
    return job.value()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Worker(threading.Thread):
    def __init__(self, idle: list[_Worker]) -> None:
        super().__init__(name="weakincentives-worker", daemon=True)
        self._idle = idle
        self._gate = threading.Lock()
        self._gate.acquire()
        self._job: Job | None = None

    def give(self, job: Job) -> None:
        self._job = job
        self._gate.release()

    def run(self) -> None:
        while True:
            self._gate.acquire()
            job, self._job = self._job, None
            assert job is not None
            job.run()
            del job
            # A thread comes back only when its work is done, so a stuck one is simply never seen again.
            self._idle.append(self)


_idle: list[_Worker] = []


def submit(fn: Callable[[], T]) -> Job:
    """Run `fn` on a kept thread, in a copy of this context."""
    job = Job(fn, contextvars.copy_context())
    try:
        worker = _idle.pop()  # atomic; the most recently used thread is the warmest
    except IndexError:
        worker = _Worker(_idle)
        worker.start()
    worker.give(job)
    return job


class _LoopThread(threading.Thread):
    """An event loop on which a sync caller runs async code. Kept, so that async clients find their loop again."""

    def __init__(self) -> None:
        super().__init__(name="weakincentives-loop", daemon=True)
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_idle_loops: list[_LoopThread] = []


def wait_for(awaitable: Awaitable[T]) -> T:
    """Run async code from sync code, with or without a running loop in this thread.

    One caller at a time has a loop to itself: async code may call sync code that comes here again without waiting for
    itself. A single caller always gets the same loop.
    """
    try:
        thread = _idle_loops.pop()
    except IndexError:
        thread = _LoopThread()
        thread.start()
    # The task copies the context it is made in, so it is made in the caller's.
    future = contextvars.copy_context().run(asyncio.run_coroutine_threadsafe, _awaited(awaitable), thread.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # does nothing when the work is done; else the caller was interrupted: stop it there too
        raise
    finally:
        _idle_loops.append(thread)


def _forget_threads() -> None:
    """The child of a fork has none of its parent's threads."""
    _idle.clear()
    _idle_loops.clear()


os.register_at_fork(after_in_child=_forget_threads)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
