"""Time as a value one can pass in. The only importer of `time`.

`now` is wall time, comparable with `time.time()`; `monotonic` measures spans and never steps back.
Nothing here knows about deadlines.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the runtime asks of time."""

    def now(self) -> float:
        """Wall seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        ...

    async def asleep(self, seconds: float) -> None:
        """Suspend this task."""
        ...


class SystemClock:
    """The machine's clock. Holds nothing; one instance serves everybody."""

    __slots__ = ()

    # The C functions themselves: a Python wrapper around them would double the price of a call.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspend this task."""
        import asyncio

        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that moves only when told, by `advance` or by sleeping on it. Safe to share between threads."""

    __slots__ = ("_elapsed", "_lock", "_start")

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Wall seconds: the start plus everything advanced so far."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        if not seconds >= 0:
            raise ValueError(f"A clock cannot go back: advance({seconds!r}). Pass zero or more seconds.")
        with self._lock:
            self._elapsed += seconds

    def sleep(self, seconds: float) -> None:
        """Advance instead of waiting."""
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """Advance instead of waiting, and let other tasks run once as a real sleep would."""
        import asyncio

        self.advance(seconds)
        await asyncio.sleep(0)


SYSTEM_CLOCK = SystemClock()
