"""Small named values that a rollback does not touch: counters, reservations, approvals.

`session.reset()` clears them, a durable session keeps them. Values must be JSON-like.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

A = TypeVar("A")


class Registers:
    """One per session. `update` is atomic: two calls never take the same last seat."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self._mutex = threading.RLock()
        self._values: dict[str, Any] = dict(values or {})
        self.keep: Callable[[str, Any], None] | None = None
        """Set by a durable session: called with each change before it is made."""

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def update(self, key: str, fn: Callable[[Any], tuple[Any, A]]) -> A:
        """Replace the value by the first of what `fn` makes of it, and answer the second. None removes it."""
        with self._mutex:
            old = self._values.get(key)
            new, answer = fn(old)
            if new is not old:
                if self.keep is not None:
                    self.keep(key, new)
                if new is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = new
            return answer

    def take(self, key: str, limit: int) -> int:
        """Count one up unless the count has reached `limit`: -1 when taken, else the count."""
        with self._mutex:
            count: int = self._values.get(key, 0)
            if count >= limit:
                return count
            if self.keep is not None:
                self.keep(key, count + 1)
            self._values[key] = count + 1
            return -1

    def clear(self) -> None:
        """Forget everything; `keep` is not asked: the reset of a durable session says it in its own record."""
        with self._mutex:
            self._values.clear()

    def copy(self) -> dict[str, Any]:
        with self._mutex:
            return dict(self._values)
