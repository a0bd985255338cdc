"""Windows over three different clocks: turns, events and milliseconds; and counters that stay small whatever they count.

A window of n holds at distance n and no further. A windowed counter keeps its last `threshold` positions: older ones cannot
change whether the threshold is reached.
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
    numbers = cast("tuple[int, ...]", value)
    return sum(
        1
        for index in range(0, len(numbers), 3)
        if within(window, Position(numbers[index], numbers[index + 1], numbers[index + 2]), at)
    )


def push(value: RegisterValue | None, window: Window | None, threshold: int, at: Position) -> RegisterValue:
    """The counter with one more event at `at`."""
    if window is None:
        return (1,) if value is None else (cast("int", value[0]) + 1,)
    kept = (*(value or ()), *at)
    return kept[-3 * threshold :]
