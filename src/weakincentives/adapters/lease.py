"""Who is alive: a lock per worker that ends with its process, so that nobody has to guess from silence.

Decides how a lock is held: as a file beside an embedded database, as an advisory lock in PostgreSQL. Never waits for a
timeout: what a dead process held is free at once, what a living one holds is never taken, however slow it is.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
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
        path = self._path(name)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if _is_at(descriptor, path):
                self._held[name] = descriptor
                return True
            os.close(descriptor)  # given back and removed between the two: a lock on it holds nobody off

    def give_back(self, name: str) -> None:
        descriptor = self._held.pop(name, None)
        if descriptor is not None:
            os.unlink(self._path(name))
            os.close(descriptor)

    def refresh(self) -> None:
        """The kernel takes nothing away."""

    def close(self) -> None:
        for name in tuple(self._held):
            self.give_back(name)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(name.encode()).hexdigest()[:32])


def _is_at(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


class PostgresLease:
    """Advisory locks of one connection, which the server frees when the connection ends.

    CAUTION: a pooler that shares connections between clients would share the locks; connect to the server itself.
    """

    def __init__(self, address: str) -> None:
        self._address = address.replace("postgresql+psycopg://", "postgresql://", 1)
        self._held: set[str] = set()
        self._lost: set[str] = set()
        self._connection = self._connect()

    def take(self, name: str) -> bool:
        if self._ask("SELECT pg_try_advisory_lock(%s)", name):
            self._held.add(name)
            return True
        return False

    def give_back(self, name: str) -> None:
        self._lost.discard(name)
        if name in self._held:
            self._held.discard(name)
            self._ask("SELECT pg_advisory_unlock(%s)", name)

    def refresh(self) -> None:
        if self._connection.closed:
            self._connection = self._connect()
            self._lost |= self._held
            self._held = set()
        for name in tuple(self._lost):  # somebody may hold it just now, to take over what seemed left behind
            if self.take(name):
                self._lost.discard(name)
        self._connection.execute("SELECT 1")  # a connection that is gone is only noticed when it is used

    def close(self) -> None:
        import psycopg

        self._held.clear()
        self._lost.clear()
        with suppress(psycopg.OperationalError):
            # The server frees them with the connection, but only some time after it was closed here.
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._address, autocommit=True, application_name="weakincentives lease")

    def _ask(self, query: str, name: str) -> bool:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        row = self._connection.execute(query, (number,)).fetchone()
        return bool(row and row[0])
