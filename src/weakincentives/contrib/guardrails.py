"""Ready-made guards: time and tokens running out, files missing, work that goes in circles.

Each is a function of a `GuardContext` that says what is wrong or nothing, so each serves as feedback and as completion
check alike. What they say changes in steps, not with every second: unasked-for repetition is left to intervals. None
keeps state: one object may serve many runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PromptValidationError
from ..filesystem import normalize
from ..prompt import GuardContext

__all__ = ["BudgetNear", "DeadlineNear", "RepeatedFailures", "RequiredFiles", "Stalled"]


class DeadlineNear:
    """Says that the run must end soon, once for each of these spans."""

    def __init__(self, seconds: Sequence[float] = (300, 60)) -> None:
        if not seconds or any(isinstance(span, bool) or not span > 0 for span in seconds):
            raise PromptValidationError(f"DeadlineNear takes spans above 0 seconds, got {tuple(seconds)!r}.")
        self._spans = sorted(seconds)

    def __call__(self, context: GuardContext) -> str | None:
        if context.deadline is None:
            return None
        left = context.deadline.remaining_seconds
        span = next((span for span in self._spans if left <= span), None)
        if span is None:
            return None
        return (
            f"Less than {_span_text(span)} left before this run must end. Finish what matters most, leave the rest, "
            "and give your final answer in time."
        )


class BudgetNear:
    """Says that the tokens of the run are nearly used up, once for each of these parts of the budget."""

    def __init__(self, parts: Sequence[float] = (0.75, 0.9)) -> None:
        if not parts or any(isinstance(part, bool) or not 0 < part < 1 for part in parts):
            raise PromptValidationError(f"BudgetNear takes parts between 0 and 1, got {tuple(parts)!r}.")
        self._parts = sorted(parts, reverse=True)

    def __call__(self, context: GuardContext) -> str | None:
        tracker = context.budget_tracker
        if tracker is None:
            return None
        budget, used = tracker.budget, tracker.consumed
        limits = (
            (used.total_tokens, budget.max_total_tokens),
            (used.input_tokens, budget.max_input_tokens),
            (used.output_tokens, budget.max_output_tokens),
        )
        most = max((spent / limit for spent, limit in limits if limit is not None), default=0.0)
        part = next((part for part in self._parts if most >= part), None)
        if part is None:
            return None
        return (
            f"More than {part:.0%} of the tokens of this run are used up. Finish what matters most, read only what you "
            "need, and give your final answer in time."
        )


class RequiredFiles:
    """Says which of these files are missing; with `allow_empty=False`, or have nothing in them."""

    def __init__(self, *paths: str, allow_empty: bool = False) -> None:
        if not paths:
            raise PromptValidationError("RequiredFiles takes at least one path.")
        self._paths = tuple(dict.fromkeys(map(normalize, paths)))
        self._allow_empty = allow_empty

    def __call__(self, context: GuardContext) -> str | None:
        fs = context.filesystem
        if fs is None:
            raise LookupError("RequiredFiles needs a Filesystem: bind one to the prompt.")
        missing: list[str] = []
        empty: list[str] = []
        for path in self._paths:
            if not fs.is_file(path):
                missing.append(path)
            elif not self._allow_empty and fs.stat(path).size == 0:
                empty.append(path)
        said: list[str] = []
        if missing:
            said.append(f"Required files are missing: {', '.join(missing)}. Write them.")
        if empty:
            said.append(f"Required files are empty: {', '.join(empty)}. Fill them.")
        return " ".join(said) or None


class Stalled:
    """Says that many calls in a row changed nothing: no slice and no file. Again whenever as many more did."""

    def __init__(self, calls: int = 12) -> None:
        self._calls = _at_least_two("Stalled", calls)

    def __call__(self, context: GuardContext) -> str | None:
        rounds = context.idle_calls // self._calls
        if not rounds:
            return None
        return (
            f"The last {rounds * self._calls} calls changed nothing. If you know enough, act on it; "
            "if you cannot go on, say so in your final answer."
        )


class RepeatedFailures:
    """Says that several calls in a row failed. Again whenever as many more did."""

    def __init__(self, calls: int = 3) -> None:
        self._calls = _at_least_two("RepeatedFailures", calls)

    def __call__(self, context: GuardContext) -> str | None:
        rounds = context.failed_calls // self._calls
        if not rounds:
            return None
        return (
            f"The last {rounds * self._calls} calls failed. Do not repeat them: read what the errors say, "
            "and try another way."
        )


def _at_least_two(name: str, calls: int) -> int:
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 2:
        raise PromptValidationError(f"{name} takes a number of calls of 2 or more, got {calls!r}.")
    return calls


def _span_text(seconds: float) -> str:
    if seconds >= 60 and seconds % 60 == 0:
        minutes = int(seconds // 60)
        return "1 minute is" if minutes == 1 else f"{minutes} minutes are"
    return "1 second is" if seconds == 1 else f"{seconds:g} seconds are"
