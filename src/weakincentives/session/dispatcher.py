"""Who hears of events: subscribers by type. A raising subscriber is logged and changes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_logger = logging.getLogger(__name__)

E = TypeVar("E")


class EventBus:
    """Delivers each event to those who subscribed to its type or to a base of it. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._subscribers: dict[type, tuple[Callable[[Any], object], ...]] = {}
        self._routes: dict[type, tuple[Callable[[Any], object], ...]] = {}

    def subscribe(self, event_type: type[E], fn: Callable[[E], object]) -> Callable[[], None]:
        """Call `fn` with every such event from now on; the returned function ends it."""
        with self._mutex:
            self._subscribers[event_type] = (*self._subscribers.get(event_type, ()), fn)
            self._routes = {}

        def unsubscribe() -> None:
            with self._mutex:
                left = list(self._subscribers.get(event_type, ()))
                if fn in left:
                    left.remove(fn)
                    self._subscribers[event_type] = tuple(left)
                    self._routes = {}

        return unsubscribe

    def dispatch(self, event: object) -> None:
        """Tell everybody who subscribed, in the order they did."""
        self.deliver(event)

    def deliver(self, event: object) -> None:
        cls = type(event)
        route = self._routes.get(cls)
        if route is None:
            with self._mutex:
                route = tuple(fn for base in cls.__mro__ for fn in self._subscribers.get(base, ()))
                self._routes = {**self._routes, cls: route}
        for fn in route:
            try:
                fn(event)
            except Exception:
                _logger.exception("A subscriber of %s failed", cls.__qualname__)
