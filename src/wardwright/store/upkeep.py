"""A thread that does a store's work off the path: it sleeps until enough was committed, then calls `maintain` once.

Nothing may depend on it: a store without it gives the same answers, later work is then done by whoever asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wardwright.errors import StoreUnavailable


class Upkeep:
    """Lives as long as its store. The thread starts with the first work, so opening a store starts none."""

    def __init__(self, maintain: Callable[[], None], every: int) -> None:
        self._maintain = maintain
        self._every = every
        self._committed = 0
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def committed(self, count: int) -> None:
        """Told after every commit; under the store's lock, so a plain counter does."""
        self._committed += count
        if self._committed < self._every or self._stopped:
            return
        self._committed = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wardwright-store-upkeep", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Returns when no work is under way any more."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopped:
                return
            try:
                self._maintain()
            except StoreUnavailable:
                # The next commit or query meets the same outage and reports it to somebody who can act.
                continue
