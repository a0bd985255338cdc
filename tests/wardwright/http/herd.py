"""Processes that do what a test tells them by a socket, kept by the gateway's supervisor. Run as a program with the test's port, their
number and the seconds of a beat."""

from __future__ import annotations

import os
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


if __name__ == "__main__":
    logs.set_up("info")
    supervise(work, int(sys.argv[1]), (), int(sys.argv[2]), 0.0, beat=float(sys.argv[3]))
