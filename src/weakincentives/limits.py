"""How long and how much a run may take: deadline, token budget, heartbeat.

Each limit decides whether it is used up and says so in one error; what to do about it is the caller's business.
Reading a limit never takes a lock, so it may stand on the path of every call.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from .clock import SYSTEM_CLOCK, Clock
from .errors import BudgetExceededError, DeadlineExceededError
from .frozen import frozen

_log: Final = logging.getLogger(__name__)


def _seconds(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} takes a number of seconds, got {type(value).__name__}.")
    if not math.isfinite(value):
        raise ValueError(f"{name} takes a finite number of seconds, got {value!r}.")
    return float(value)


def _whole(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


class Deadline:
    """A moment of wall time after which a run must not go on. Immutable; compares by that moment."""

    __slots__ = ("_clock", "_timestamp")

    def __init__(self, at: datetime | float, clock: Clock = SYSTEM_CLOCK) -> None:
        if isinstance(at, datetime):
            if at.utcoffset() is None:
                raise ValueError(
                    f"Deadline needs a time zone: {at.isoformat()} is naive. "
                    "Pass an aware datetime, such as datetime.now(timezone.utc) + timedelta(minutes=5)."
                )
            timestamp = at.timestamp()
        else:
            timestamp = _seconds("Deadline", at)
        try:
            datetime.fromtimestamp(timestamp, UTC)
        except (OverflowError, ValueError, OSError) as error:
            raise ValueError(
                f"Deadline is out of range: {at!r}. Pass seconds since the epoch or a datetime."
            ) from error
        self._timestamp = timestamp
        self._clock = clock

    @classmethod
    def after(cls, span: timedelta | float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """The deadline `span` (seconds or timedelta) from now; nothing or less is a deadline already passed."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else _seconds("Deadline.after", span)
        return cls(clock.now() + seconds, clock)

    @property
    def at(self) -> datetime:
        """The moment itself, in UTC."""
        return datetime.fromtimestamp(self._timestamp, UTC)

    @property
    def timestamp(self) -> float:
        """The moment itself, comparable with `time.time()`."""
        return self._timestamp

    @property
    def remaining_seconds(self) -> float:
        """Seconds left, never below zero, so it can be passed on as a timeout."""
        left = self._timestamp - self._clock.now()
        return left if left > 0.0 else 0.0

    def remaining(self) -> timedelta:
        """Time left, never below zero."""
        return timedelta(seconds=self.remaining_seconds)

    @property
    def expired(self) -> bool:
        """Whether the moment has come."""
        return self._clock.now() >= self._timestamp

    def check(self) -> None:
        """Raise DeadlineExceededError once the moment has come."""
        late = self._clock.now() - self._timestamp
        if late >= 0.0:
            raise DeadlineExceededError(
                f"Deadline exceeded: the run had to end by {self.at.isoformat(timespec='milliseconds')}, "
                f"{late:.3f} s ago. It cannot go on; start a new run with a later deadline."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadline) and self._timestamp == other._timestamp

    def __hash__(self) -> int:
        return hash(self._timestamp)

    def __repr__(self) -> str:
        return f"Deadline({self.at.isoformat()})"


@frozen
class TokenUsage:
    """Tokens that were used. `cached_tokens` is the part of the input that came from a cache, not an addition to it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        _whole("TokenUsage.input_tokens", self.input_tokens, least=0)
        _whole("TokenUsage.output_tokens", self.output_tokens, least=0)
        _whole("TokenUsage.cached_tokens", self.cached_tokens, least=0)

    @property
    def total_tokens(self) -> int:
        """Input plus output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


_NO_USAGE: Final = TokenUsage()


@frozen
class Budget:
    """What a run may use up. A limit left out is no limit."""

    deadline: Deadline | None = None
    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            raise TypeError(f"Budget.deadline must be a Deadline, got {type(self.deadline).__name__}.")
        if self.max_total_tokens is not None:
            _whole("Budget.max_total_tokens", self.max_total_tokens, least=1)
        if self.max_input_tokens is not None:
            _whole("Budget.max_input_tokens", self.max_input_tokens, least=1)
        if self.max_output_tokens is not None:
            _whole("Budget.max_output_tokens", self.max_output_tokens, least=1)


class BudgetTracker:
    """Counts usage against one budget. Lives as long as the run, shared by its threads and sub-agents."""

    __slots__ = ("_consumed", "_lock", "_sources", "budget")

    def __init__(self, budget: Budget) -> None:
        self.budget: Final = budget
        self._lock = threading.Lock()
        self._consumed = _NO_USAGE
        self._sources: dict[str, TokenUsage] = {}

    @property
    def consumed(self) -> TokenUsage:
        """Everything counted so far."""
        return self._consumed

    def add(self, input_tokens: int = 0, output_tokens: int = 0, cached_tokens: int = 0) -> None:
        """Count further tokens."""
        usage = TokenUsage(input_tokens, output_tokens, cached_tokens)
        with self._lock:
            self._consumed += usage

    def record(self, source: str, usage: TokenUsage) -> None:
        """Note the running total of one source; only its growth is counted, so a repeated report is harmless."""
        with self._lock:
            before = self._sources.get(source, _NO_USAGE)
            # The larger figure wins: reports of one source may arrive out of order.
            latest = TokenUsage(
                max(before.input_tokens, usage.input_tokens),
                max(before.output_tokens, usage.output_tokens),
                max(before.cached_tokens, usage.cached_tokens),
            )
            self._sources[source] = latest
            self._consumed += TokenUsage(
                latest.input_tokens - before.input_tokens,
                latest.output_tokens - before.output_tokens,
                latest.cached_tokens - before.cached_tokens,
            )

    @property
    def exhausted(self) -> bool:
        """Whether `check` would raise."""
        deadline = self.budget.deadline
        return (deadline is not None and deadline.expired) or bool(self._reached())

    def check(self) -> None:
        """Raise BudgetExceededError when a token limit is used up, DeadlineExceededError when time is."""
        reached = self._reached()
        if reached:
            raise BudgetExceededError(
                f"Token budget used up: {', '.join(reached)}. "
                "The run cannot go on; start a new one with a larger budget."
            )
        if self.budget.deadline is not None:
            self.budget.deadline.check()

    def _reached(self) -> list[str]:
        budget, used = self.budget, self._consumed
        reached: list[str] = []
        if budget.max_total_tokens is not None and used.total_tokens >= budget.max_total_tokens:
            reached.append(f"{used.total_tokens} of {budget.max_total_tokens} total tokens")
        if budget.max_input_tokens is not None and used.input_tokens >= budget.max_input_tokens:
            reached.append(f"{used.input_tokens} of {budget.max_input_tokens} input tokens")
        if budget.max_output_tokens is not None and used.output_tokens >= budget.max_output_tokens:
            reached.append(f"{used.output_tokens} of {budget.max_output_tokens} output tokens")
        return reached


class Heartbeat:
    """Sign of life of a long run; whoever holds a lease on it listens by a callback. Starts alive."""

    __slots__ = ("_callbacks", "_clock", "_lock", "_marks")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._marks = (clock.now(), clock.monotonic())

    @property
    def last_beat(self) -> float:
        """Wall time of the last beat, or of the start when there was none."""
        return self._marks[0]

    def elapsed(self) -> float:
        """Seconds since the last beat; a step of the wall clock does not show in it."""
        return self._clock.monotonic() - self._marks[1]

    def beat(self) -> None:
        """Note a sign of life and tell every callback, on this thread."""
        with self._lock:
            self._marks = (self._clock.now(), self._clock.monotonic())
            callbacks = tuple(self._callbacks.values())
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001
                # INVARIANT: a broken listener neither stops the work that beats nor hides the beat from the others.
                _log.exception("A heartbeat callback failed: %r", callback)

    def add_callback(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` at every beat until the returned function is called."""
        token = object()
        with self._lock:
            self._callbacks[token] = callback

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(token, None)

        return remove
