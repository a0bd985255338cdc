"""Windows over three different clocks: turns, events and milliseconds; and counters that stay small whatever they count.

A window of n holds at distance n and no further. A windowed counter keeps its last `threshold` positions: older ones cannot
change whether the threshold is reached (`kept` of several rules that share a counter is the largest).
"""

from __future__ import annotations

from typing import NamedTuple, cast

from wardwright.history import RegisterValue
from wardwright.policy.rules import Window


class Position(NamedTuple):
    """A place in a scope's life."""

    turn: int
    event: int
    ms: int


def within(window: Window | None, start: Position, at: Position) -> bool:
    """Whether `start` is still inside the window at `at`. Without a window nothing ever leaves."""
    if window is None:
        return True
    if window.turns is not None and at.turn - start.turn > window.turns:
        return False
    if window.events is not None and at.event - start.event > window.events:
        return False
    return window.ms is None or at.ms - start.ms <= window.ms


def count(value: RegisterValue | None, window: Window | None, at: Position) -> int:
    """How many counted events are in the window now."""
    if value is None:
        return 0
    if window is None:
        return cast("int", value[0])
    # Positions only grow, so those inside are the last ones.
    low, high = 0, len(value) // 3
    while low < high:
        middle = (low + high) // 2
        if within(window, _position(value, middle), at):
            high = middle
        else:
            low = middle + 1
    return len(value) // 3 - low


def reached(value: RegisterValue | None, window: Window | None, threshold: int, at: Position) -> bool:
    """Whether `threshold` counted events are in the window now. Positions only grow, so one of them tells."""
    if value is None:
        return False
    if window is None:
        return cast("int", value[0]) >= threshold
    if len(value) < 3 * threshold:
        return False
    return within(window, _position(value, len(value) // 3 - threshold), at)


def _position(value: RegisterValue, number: int) -> Position:
    return Position(*cast("tuple[int, int, int]", value[3 * number : 3 * number + 3]))


def push(value: RegisterValue | None, window: Window | None, kept: int, at: Position) -> RegisterValue:
    """The counter with one more event at `at`; of a windowed one the last `kept`."""
    if window is None:
        return (1,) if value is None else (cast("int", value[0]) + 1,)
    if value is not None and cast("int", value[-1]) > at.ms:
        at = at._replace(ms=cast("int", value[-1]))  # a clock that went back: positions only grow
    return (*(value or ())[-3 * (kept - 1) or len(value or ()) :], *at)


def without_last(value: RegisterValue) -> RegisterValue:
    """A windowed counter without its last event."""
    return value[:-3]
