"""Processes that do what a test tells them by a socket, kept by the gateway's supervisor. Run as a program with the test's port, their
number, the seconds of a beat, and how many signals come while one is started, of which the last ends it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection

from wardwright.http import logs
from wardwright.http.workers import live, supervise

BEAT = 0.02


def work(port: int, sockets: Sequence[socket.socket], said: Connection) -> None:
    assert not sockets
    with socket.create_connection(("127.0.0.1", port)) as test:
        test.sendall(b"%d\n" % os.getpid())
        while order := test.recv(1):
            match order:
                case b"s":  # it serves
                    live(said)
                case b"l":  # and lives
                    threading.Thread(target=go_on, args=(said,), daemon=True).start()
                case b"c":  # it has nothing more to say
                    said.close()
                case _:
                    os._exit(7)


def go_on(said: Connection) -> None:
    never = threading.Event()
    while not never.wait(BEAT):
        live(said)


class Drowning(int):
    """The test's port; whoever sends it to a process gets signals."""

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        for _ in range(int(sys.argv[4])):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        return int, (int(self),)


if __name__ == "__main__":
    logs.set_up("info")
    port = (Drowning if int(sys.argv[4]) else int)(sys.argv[1])
    supervise(work, port, (), int(sys.argv[2]), 0.0, beat=float(sys.argv[3]))
