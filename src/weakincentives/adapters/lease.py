"""Who is alive: a lock per worker that ends with its process, so that nobody has to guess from silence.

Decides how a lock is held: as a file beside an embedded database, as an advisory lock in PostgreSQL. Never waits for a
timeout: what a dead process held is free at once, what a living one holds is never taken, however slow it is.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Protocol

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None


class Lease(Protocol):
    """Names that one process at a time can hold."""

    def take(self, name: str) -> bool:
        """Hold the name until it is given back or this process ends. False: another process holds it."""
        ...

    def give_back(self, name: str) -> None: ...

    def refresh(self) -> None:
        """Take anew what was lost behind our back, when a connection broke."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class FileLease:
    """Locks on files in one folder, for processes of one machine."""

    def __init__(self, folder: str) -> None:
        if fcntl is None:  # pragma: no cover
            raise RuntimeError("Durable runs need file locks, which this system does not have.")
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._held: dict[str, int] = {}

    def take(self, name: str) -> bool:
        assert fcntl is not None
        descriptor = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held[name] = descriptor
        return True

    def give_back(self, name: str) -> None:
        descriptor = self._held.pop(name, None)
        if descriptor is not None:
            # Names are never used again, so nobody can be waiting for this very file.
            os.unlink(self._path(name))
            os.close(descriptor)

    def refresh(self) -> None:
        """The kernel takes nothing away."""

    def close(self) -> None:
        for name in tuple(self._held):
            self.give_back(name)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(name.encode()).hexdigest()[:32])


class PostgresLease:
    """Advisory locks of one connection, which the server frees when the connection ends.

    CAUTION: a pooler that shares connections between clients would share the locks; connect to the server itself.
    """

    def __init__(self, address: str) -> None:
        self._address = address.replace("postgresql+psycopg://", "postgresql://", 1)
        self._held: set[str] = set()
        self._connection = self._connect()

    def take(self, name: str) -> bool:
        if self._ask("SELECT pg_try_advisory_lock(%s)", name):
            self._held.add(name)
            return True
        return False

    def give_back(self, name: str) -> None:
        if name in self._held:
            self._held.discard(name)
            self._ask("SELECT pg_advisory_unlock(%s)", name)

    def refresh(self) -> None:
        if self._connection.closed or self._connection.broken:
            self._connection = self._connect()
            held, self._held = self._held, set()
            for name in held:
                self.take(name)
        self._connection.execute("SELECT 1")

    def close(self) -> None:
        self._held.clear()
        self._connection.close()

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._address, autocommit=True, application_name="weakincentives lease")

    def _ask(self, query: str, name: str) -> bool:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        row = self._connection.execute(query, (number,)).fetchone()
        return bool(row and row[0])
