"""How long to wait before asking a provider again that was too busy to answer."""

from __future__ import annotations

import random

from ..frozen import frozen


@frozen
class Retry:
    """Waits that double, each cut at random so that many clients do not come back at the same moment."""

    attempts: int = 4
    """How often to ask again; 0 gives up at once."""
    first: float = 1.0
    """Seconds of the first wait, at most."""
    longest: float = 60.0
    """Seconds of any wait, at most; a provider that asks for more is not asked again."""

    def __post_init__(self) -> None:
        for name in ("attempts", "first", "longest"):
            if getattr(self, name) < 0:
                raise ValueError(f"Retry.{name} must be 0 or more, got {getattr(self, name)}.")

    def pause(self, attempt: int, asked_for: float | None = None) -> float | None:
        """Seconds to wait before the attempt of that number, counted from 1; None: give up.

        A provider that says how long (`asked_for`) gets at least that.
        """
        if attempt > self.attempts or (asked_for is not None and asked_for > self.longest):
            return None
        most = min(self.longest, self.first * 2 ** (attempt - 1))
        return max(asked_for or 0.0, random.uniform(most / 2, most))
