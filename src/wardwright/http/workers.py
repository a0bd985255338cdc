"""Several processes that serve on the same sockets: started, replaced when they die or hang, ended together. Decides nothing about
requests.

Each is a new interpreter. They are told to end by SIGTERM alone: a terminal's Ctrl-C reaches all of them at once, and only the first
process passes it on.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, Final, cast

from wardwright.errors import GovernanceUnavailable

GRACE_SECONDS: Final = 10.0
"""For a process to end after its answers have."""

BEAT_SECONDS: Final = 1.0
"""Between two signs of life of a process."""

SILENT: Final = 60
"""Beats without a sign of life after which a process hangs: nothing that it does by itself takes its event loop that long."""

AGAIN: Final = 5
"""Beats before another process is tried in the place of one that did not start."""

log = logging.getLogger("wardwright")


@dataclass(eq=False, slots=True)
class _Worker:
    process: BaseProcess
    said: Connection | None
    """Where it tells that it serves, and then that it lives; None once it has closed it."""
    serves: bool = False
    old: bool = False
    """Another one shall take its place."""
    leaving: bool = False
    silent: int = 0
    """Beats since it was heard."""

    def leave(self) -> None:
        self.leaving = True
        self.process.terminate()


def live(said: Connection) -> None:
    """What a process that serves calls at every beat, and when it begins to."""
    with suppress(OSError):  # whoever does not listen now will, or is gone, which is seen elsewhere
        os.set_blocking(said.fileno(), False)
        said.send_bytes(b"alive")


def supervise(
    work: Callable[[Any, Sequence[socket.socket], Connection], None],
    given: object,
    sockets: Sequence[socket.socket],
    count: int,
    drain: float,
    *,
    beat: float = BEAT_SECONDS,
) -> None:
    """Keeps `count` processes that run `work(given, sockets, said)` until this one is told to end; each calls `live(said)` when it serves
    and at every beat from then on. SIGHUP replaces them one by one. A second signal, or time, ends those that have not ended.
    GovernanceUnavailable when one does not start and there were never enough, or none is left."""
    bell, ringing = socket.socketpair()
    ringing.setblocking(False)
    signal.set_wakeup_fd(ringing.fileno(), warn_on_full_buffer=False)  # a bell that rings need not be rung
    supervisor = _Supervisor(work, (given, sockets), sockets, count, drain, beat)
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if sys.platform != "win32" else [])]
    for number in numbers:
        signal.signal(number, supervisor.note)
    try:
        supervisor.run(bell)
    finally:
        supervisor.kill()
        signal.set_wakeup_fd(-1)
        bell.close()
        ringing.close()


class _Supervisor:
    """Lives as long as the processes do. What happens to them is noted first; then `_settle` starts and lets go as many as it takes."""

    def __init__(
        self,
        work: Callable[..., None],
        given: tuple[Any, ...],
        sockets: Sequence[socket.socket],
        count: int,
        drain: float,
        beat: float,
    ) -> None:
        self._context = get_context("spawn")
        self._work = work
        self._given = given
        self._sockets = sockets
        self._count = count
        self._beat = beat
        self._workers: list[_Worker] = []
        self._begun = False
        """All of them have served once."""
        self._pause = 0
        """Beats before the next one is started."""
        self._patience = math.ceil((drain + GRACE_SECONDS) / beat)
        """Beats that are left when it ends."""
        self._ending = False
        self._failed = False
        self._signals: Counter[int] = Counter()
        """That came and are not looked at yet. Not what the bell was rung for: it takes some hundred, and any more would be lost."""

    def note(self, number: int, frame: object) -> None:
        """A signal, in the middle of anything."""
        del frame
        self._signals[number] += 1

    def run(self, bell: socket.socket) -> None:
        self._settle()
        due = monotonic() + self._beat
        while self._workers:
            waited: list[Any] = [one.process.sentinel for one in self._workers]
            waited += [one.said for one in self._workers if one.said is not None]
            told = wait([bell, *waited], max(0.0, due - monotonic()))
            if bell in told:
                bell.recv(4096)
            came, self._signals = self._signals, Counter()
            for number in came.elements():
                self._signalled(number)
            for one in tuple(self._workers):
                if one.said in told:
                    self._heard(one)
                if one.process.sentinel in told:
                    self._died(one)
            if monotonic() >= due:
                due = monotonic() + self._beat
                self._tick()
            if not self._ending:
                self._settle()
        if self._failed:
            raise GovernanceUnavailable("A process did not start; the log says why.")

    def _settle(self) -> None:
        """As many as there shall be, and one more while old ones are replaced: who leaves has a successor that serves."""
        here = [one for one in self._workers if not one.leaving]
        serving = [one for one in here if one.serves]
        self._begun = self._begun or len(serving) >= self._count
        if len(serving) > self._count:
            one = next((one for one in serving if one.old), serving[0])
            one.leave()
            here.remove(one)
            serving.remove(one)
        if len(here) < self._count:
            for _ in range(0 if self._pause else self._count - len(here)):
                self._start()
        elif len(here) == len(serving) == self._count and any(one.old for one in here):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._work, args=(*self._given, theirs))
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, cast("Connection", ours)))

    def _signalled(self, number: int) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT):
            for one in self._workers:
                one.old = True  # also those that start: they may have read the file before it changed
        elif self._ending:
            self.kill()
        else:
            self._end()

    def _heard(self, one: _Worker) -> None:
        """It serves, it lives, or it will never say anything again."""
        assert one.said is not None
        try:
            one.said.recv_bytes()
        except (EOFError, OSError):
            one.said.close()
            one.said = None
            return
        one.serves = True
        one.silent = 0

    def _died(self, one: _Worker) -> None:
        self._workers.remove(one)
        one.process.join()
        if one.said is not None:
            one.said.close()
        if one.leaving or self._ending:
            return
        log.error("process died", extra={"worker": one.process.pid, "code": one.process.exitcode})
        if one.serves:
            return
        # Nor would others start now: those that are there go on.
        self._pause = AGAIN
        for other in self._workers:
            other.old = False
        if not self._begun or not any(other.serves and not other.leaving for other in self._workers):
            self._failed = True
            self._end()

    def _tick(self) -> None:
        self._pause = max(0, self._pause - 1)
        for one in self._workers:
            if not one.serves and one.said is not None:
                continue  # it starts, which takes what it takes
            one.silent += 1
            if one.silent == SILENT:
                log.error("process hangs", extra={"worker": one.process.pid})
                one.process.kill()
        if self._ending:
            self._patience -= 1
            if self._patience == 0:
                self.kill()

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
