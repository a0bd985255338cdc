"""Several processes that serve on the same sockets: started, replaced when they die, ended together. Decides nothing about requests.

Each is a new interpreter. They are told to end by SIGTERM alone: a terminal's Ctrl-C reaches all of them at once, and only the first
process passes it on.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, cast

from wardwright.errors import GovernanceUnavailable

GRACE_SECONDS: Final = 10.0
"""For a process to end after its answers have."""

log = logging.getLogger("wardwright")


@dataclass(eq=False, slots=True)
class _Worker:
    process: BaseProcess
    said: Connection | None
    """Where it will tell that it serves; None once it has."""
    before: _Worker | None = None
    """The one whose place it takes when it serves."""
    leaving: bool = False

    def leave(self) -> None:
        self.leaving = True
        self.process.terminate()


def supervise(
    work: Callable[[Any, Sequence[socket.socket], Connection], None],
    given: object,
    sockets: Sequence[socket.socket],
    count: int,
    drain: float,
) -> None:
    """Keeps `count` processes that run `work(given, sockets, said)` until this one is told to end; each says something when it serves.
    SIGHUP replaces them one by one. A second signal, or time, ends those that have not ended. GovernanceUnavailable when one does not
    start."""
    bell, ringing = socket.socketpair()
    ringing.setblocking(False)
    signal.set_wakeup_fd(ringing.fileno())
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if sys.platform != "win32" else [])]
    for number in numbers:
        signal.signal(number, _ring)
    supervisor = _Supervisor(work, (given, sockets), sockets, drain)
    try:
        supervisor.run(bell, count)
    finally:
        supervisor.kill()
        signal.set_wakeup_fd(-1)
        bell.close()
        ringing.close()


def _ring(number: int, frame: object) -> None:
    """The number goes to the bell."""
    del number, frame


class _Supervisor:
    """Lives as long as the processes do."""

    def __init__(
        self, work: Callable[..., None], given: tuple[Any, ...], sockets: Sequence[socket.socket], drain: float
    ) -> None:
        self._context = get_context("spawn")
        self._work = work
        self._given = given
        self._sockets = sockets
        self._drain = drain
        self._workers: list[_Worker] = []
        self._to_replace: list[_Worker] = []
        self._ending = False
        self._failed = False

    def run(self, bell: socket.socket, count: int) -> None:
        for _ in range(count):
            self._start()
        while self._workers:
            waited: list[Any] = [one.process.sentinel for one in self._workers]
            waited += [one.said for one in self._workers if one.said is not None]
            told = wait([bell, *waited], self._drain + GRACE_SECONDS if self._ending else None)
            if not told:
                self.kill()
            if bell in told:
                for number in bell.recv(64):
                    self._signalled(number)
            for one in tuple(self._workers):
                if one.said in told:
                    self._heard(one)
                if one.process.sentinel in told:
                    self._died(one)
        if self._failed:
            raise GovernanceUnavailable("A process did not start; the log says why.")

    def _start(self, before: _Worker | None = None) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._work, args=(*self._given, theirs))
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, cast("Connection", ours), before))

    def _signalled(self, number: int) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT):
            if not self._ending and not self._to_replace:
                self._to_replace = [one for one in self._workers if not one.leaving]
                self._replace()
        elif self._ending:
            self.kill()
        else:
            self._end()

    def _heard(self, one: _Worker) -> None:
        """It serves, or will never: then it is dead as well."""
        assert one.said is not None
        try:
            one.said.recv_bytes()
        except EOFError:
            return
        one.said.close()
        one.said = None
        if one.before is not None:
            one.before.leave()
            one.before = None
            self._replace()

    def _died(self, one: _Worker) -> None:
        self._workers.remove(one)
        one.process.join()
        if one.leaving or self._ending:
            return
        log.error("process died", extra={"worker": one.process.pid, "code": one.process.exitcode})
        if one.said is None:
            self._start()
        elif one.before is not None:
            self._to_replace = []  # those that are there go on
        else:
            self._failed = True
            self._end()

    def _replace(self) -> None:
        """The next one whose time has come."""
        while self._to_replace:
            one = self._to_replace.pop(0)
            if one in self._workers and not one.leaving:
                self._start(before=one)
                return

    def _end(self) -> None:
        self._ending = True
        for one in self._workers:
            one.leave()
        for listening in self._sockets:
            listening.close()  # or callers would wait where nobody answers

    def kill(self) -> None:
        """Nothing that was answered is lost by it."""
        for one in self._workers:
            one.process.kill()
