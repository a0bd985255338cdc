"""Feedback: words for the model while it works, after its tool calls, when a guard has something to say.

Decides how often a guard is asked and when it would repeat itself. Never decides what the model may do: that is a
policy's part, and never when it is done: that is `completion`.
"""

from __future__ import annotations

import math

from ..errors import PromptValidationError
from ..frozen import frozen
from ..session import log_slice
from .guard import Guard, name_of, refuse_non_guard


@frozen
class Feedback:
    """A guard and how often it is asked. Without either interval it is asked after every turn that made calls, and the
    same words are then said once, until they change or there was nothing to say in between."""

    guard: Guard
    every_calls: int | None = None
    """Ask when so many calls were made since it was last asked; what it says may be a repetition."""
    every_seconds: float | None = None
    """Ask when so much time has passed since it was last asked; with both intervals, whichever is over first."""

    def __post_init__(self) -> None:
        refuse_non_guard(self.guard, "Feedback", "guard")
        calls, seconds = self.every_calls, self.every_seconds
        if calls is not None and (isinstance(calls, bool) or not isinstance(calls, int) or calls < 1):
            raise PromptValidationError(f"Feedback: every_calls must be an integer of 1 or more, got {calls!r}.")
        if seconds is not None and (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not math.isfinite(seconds)
            or seconds <= 0
        ):
            raise PromptValidationError(f"Feedback: every_seconds must be a number above 0, got {seconds!r}.")

    @property
    def name(self) -> str:
        return name_of(self.guard)

    @property
    def repeats(self) -> bool:
        """Whether it may say the same again."""
        return self.every_calls is not None or self.every_seconds is not None

    def is_due(self, calls: int, seconds: float) -> bool:
        """Whether to ask, so many calls and seconds after it was last asked or the run began."""
        if not self.repeats:
            return True
        by_calls = self.every_calls is not None and calls >= self.every_calls
        return by_calls or (self.every_seconds is not None and seconds >= self.every_seconds)


def as_feedback(given: Guard | Feedback, called: str) -> Feedback:
    """A guard that stands for itself is asked after every turn."""
    if isinstance(given, Feedback):
        return given
    refuse_non_guard(given, called, "feedback")
    return Feedback(given)


@log_slice
@frozen
class FeedbackGiven:
    """A guard spoke and the model was told."""

    guard: str
    """Where the guard stands and what it is called: `section/path/name#index`."""
    text: str
    turn: int
    """How often the model had been asked by then."""
    timestamp: float
    session_id: str
