"""A circuit breaker: after enough failures on end, requests are held back for a while, then one is let through to see.

Decides from what it is told; knows nothing of HTTP, and takes the time as an argument.
"""

from __future__ import annotations

from typing import Final

TRIAL_SECONDS: Final = 120.0
"""A trial that nobody ends is over after this, so that a lost one does not keep the breaker open for ever."""


class Breaker:
    """One per provider and model. Lives as long as its provider."""

    __slots__ = ("_limit", "_open_seconds", "_open_until", "_trial_since", "failures")

    def __init__(self, failures: int, open_seconds: float) -> None:
        self._limit = failures
        self._open_seconds = open_seconds
        self.failures = 0
        """On end. While there are none, whoever enters or succeeds need not say so: nothing would change."""
        self._open_until = 0.0
        self._trial_since: float | None = None

    def blocked(self, now: float) -> bool:
        """Whether a request would be held back. Changes nothing."""
        if self.failures < self._limit:
            return False
        trial = self._trial_since
        return now < self._open_until or (trial is not None and now < trial + TRIAL_SECONDS)

    def wait(self, now: float) -> float:
        """Seconds until a request may be let through again."""
        return max(0.0, self._open_until - now)

    def enter(self, now: float) -> bool:
        """Lets a request through, or not. Whoever entered tells how it went."""
        if self.failures < self._limit:
            return True
        if self.blocked(now):
            return False
        self._trial_since = now
        return True

    def answered(self) -> None:
        """An answer has begun. A trial ends well with that; the next failure opens again."""
        if self._trial_since is not None:
            self._trial_since = None
            self.failures = self._limit - 1

    def succeed(self) -> None:
        self.failures = 0
        self._trial_since = None

    def fail(self, now: float) -> None:
        self.failures = min(self.failures + 1, self._limit)
        self._trial_since = None
        if self.failures >= self._limit:
            self._open_until = now + self._open_seconds

    def leave(self) -> None:
        """It ended without saying anything about the provider: cancelled, or the caller's own fault."""
        self._trial_since = None
