"""A run as it happens: words as the model says them, calls as they are made and as they end, the answer last.

Decides how events get from a run to whoever listens, and what becomes of a run that nobody listens to any more: it
stops before its next word or call. Knows nothing of models; the loop tells it what to run.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..frozen import frozen
from ..runtime import ToolCall, ToolOutcome, workers

ResponseT = TypeVar("ResponseT")


@frozen
class TextDelta:
    """The next words of the model. A model that does not stream says a turn's text in one piece."""

    text: str


@frozen
class ToolCalled:
    """A call is about to run."""

    call: ToolCall


@frozen
class ToolFinished:
    """A call has ended, one way or another. The outcomes of one reply come together, in the order of its calls."""

    outcome: ToolOutcome


@frozen
class Answered(Generic[ResponseT]):
    """The end of the run; always the last event."""

    response: ResponseT


StreamEvent = TextDelta | ToolCalled | ToolFinished
Emit = Callable[[StreamEvent], None]


class StreamClosed(BaseException):
    """Raised inside a run that nobody listens to any more. Not an `Exception`: no handler is meant to survive it."""


class _Failed:
    """How a run says that it raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def listen(run: Callable[[Emit], ResponseT]) -> Generator[StreamEvent | Answered[ResponseT], None, None]:
    """The events of `run`, which works on a kept thread and is never ahead of its listener: it goes on when the next event
    is asked for. Closing the generator stops the run, and waits for it."""
    events: SimpleQueue[Any] = SimpleQueue()
    asked = threading.Semaphore(0)
    closed = threading.Event()

    def emit(event: StreamEvent) -> None:
        if not closed.is_set():
            events.put(event)
            asked.acquire()
        if closed.is_set():
            raise StreamClosed

    def work() -> None:
        try:
            events.put(Answered(run(emit)))
        except BaseException as error:  # noqa: BLE001  INVARIANT: what the run raised is raised to whoever listens
            events.put(_Failed(error))

    job = workers.submit(work)
    try:
        while True:
            event: Any = events.get()
            if isinstance(event, _Failed):
                raise event.error
            yield event
            if isinstance(event, Answered):
                return
            asked.release()
    finally:
        closed.set()
        asked.release()
        job.wait(None)


async def alisten(
    run: Callable[[Emit], Awaitable[ResponseT]],
) -> AsyncGenerator[StreamEvent | Answered[ResponseT], None]:
    """The same on an event loop: the run is a task, which may be ahead of its listener; closing the generator cancels it."""
    loop = asyncio.get_running_loop()
    here = threading.get_ident()
    events: asyncio.Queue[Any] = asyncio.Queue()
    said: deque[Any] = deque()
    closed = threading.Event()

    def hand_on() -> None:
        while said:
            events.put_nowait(said.popleft())

    def emit(event: Any) -> None:
        said.append(event)
        if threading.get_ident() == here:
            hand_on()  # words that a thread has said and the loop has not heard yet go before it
        elif closed.is_set():
            raise StreamClosed  # a sync client that was left behind need not read on
        else:  # a sync client speaks from a thread of its own
            loop.call_soon_threadsafe(hand_on)

    async def work() -> None:
        try:
            emit(Answered(await run(emit)))
        except BaseException as error:  # noqa: BLE001  INVARIANT: what the run raised is raised to whoever listens
            emit(_Failed(error))

    task = asyncio.create_task(work())
    try:
        while True:
            event = await events.get()
            if isinstance(event, _Failed):
                raise event.error
            yield event
            if isinstance(event, Answered):
                return
    finally:
        closed.set()
        task.cancel()
        await asyncio.wait([task])
