"""Starting: from a file, an address and a store to a process (or several) that serves.

The first process takes the address before it does anything else, and alone makes the keys and tells the admin token, before any other
starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from wardwright.config import Config, Problems, load_config
from wardwright.deployment import compile_store
from wardwright.errors import WardwrightError
from wardwright.http import logs
from wardwright.http.admin import admin_app
from wardwright.http.front import Front
from wardwright.http.mcp import mcp_app
from wardwright.http.pages import pages_app
from wardwright.http.server import HEAD_BYTES, Limits, Server, bind
from wardwright.http.service import Service, embedded
from wardwright.http.workers import BEAT_SECONDS, live, supervise

DATABASE: Final = "wardwright.db"
NOT_STARTED: Final = 3
"""How a process ends that could not start."""

log = logging.getLogger("wardwright")


@dataclass(frozen=True, slots=True)
class Start:
    """What a process serves, and where."""

    config: str = ""
    """Path of a file; empty: the embedded example."""
    database: str = ""
    """A file or an address; empty: what the config says, else a file in this folder."""
    host: str = "127.0.0.1"
    port: int = 8787
    workers: int = 1
    log_level: str = "info"
    sessions: str = ""
    """A folder of durable sessions for the pages; empty: what the config says."""

    def load(self) -> Config:
        return load_config(Path(self.config)) if self.config else embedded()

    def service(self) -> Service:
        config = self.load()
        return Service(config, self.database or database_of(config), self.host, sessions=self.sessions)


def database_of(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """Where a config says that state lies; what is wrong with it is told when all of it is compiled."""
    return compile_store(config.deployment.get("store"), Problems(config.file)).read(environ) or DATABASE


def create_app(
    config: Config | str | os.PathLike[str] | None = None,
    database: str = "",
    *,
    host: str = "127.0.0.1",
    environ: Mapping[str, str] | None = None,
) -> Front:
    """The gateway as an ASGI application, for any server that speaks the lifespan protocol. `database` is what `serve --db` takes.
    `host` is where it will be reached: an address that others can reach needs authentication."""
    if config is None:
        found = embedded()
    else:
        found = config if isinstance(config, Config) else load_config(config)
    return front(Service(found, database or database_of(found, environ), host, environ=environ))


def front(service: Service) -> Front:
    """The application of an opened service."""
    admin = admin_app(service)
    return Front(service, admin, mcp_app(service), pages_app(service, admin))


def serve(start: Start, tell: Callable[[Service, int], None]) -> None:
    """Serves until it is told to stop; streams under way end first. `tell` is called once, before the first request, with the port:
    the one that was found where any would do."""
    logs.set_up(start.log_level)
    sockets = bind(start.host, start.port)
    try:
        service = start.service()
        tell(service, sockets[0].getsockname()[1])
        drain = service.deployment.limits.drain_ms / 1000
        if start.workers == 1:
            _loop(_serve(service, sockets))
        else:
            service.store.close()
            supervise(work, start, sockets, start.workers, drain)
    finally:
        for one in sockets:
            one.close()


def work(start: Start, sockets: Sequence[socket.socket], said: Connection) -> None:
    """One of several processes. Tells by `said` that it serves, and then that it lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.set_up(start.log_level)
    try:
        _loop(_serve(start.service(), sockets, said))
    except (WardwrightError, OSError) as error:
        log.error("not started", extra={"reason": str(error) or type(error).__name__})
        raise SystemExit(NOT_STARTED) from None


def _loop(serving: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":
        asyncio.run(serving)
    else:
        import uvloop

        uvloop.run(serving)


async def _serve(service: Service, sockets: Sequence[socket.socket], said: Connection | None = None) -> None:
    loop = asyncio.get_running_loop()
    limits = service.deployment.limits
    server = Server(front(service).answer, Limits(head_bytes=max(HEAD_BYTES, 2 * limits.header_bytes)))

    def stop() -> None:
        """The first signal lets streams end, the second does not."""
        if server.stopping:
            server.end()
        else:
            server.stop()

    def beat(said: Connection) -> None:
        """From the event loop, so that one that is blocked is noticed."""
        loop.call_later(BEAT_SECONDS, beat, said)
        live(said)

    def ready() -> None:
        if said is not None:
            beat(said)
        elif sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(service.reload_safely()))

    if said is not None:
        # SIGTERM may come twice, from whoever stops the first process and from that one.
        loop.add_signal_handler(signal.SIGTERM, server.stop)
        first = parent_process()
        if first is not None:
            loop.add_reader(first.sentinel, partial(_orphaned, server, loop, first.sentinel))
    elif sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
    await server.serve(sockets, drain=limits.drain_ms / 1000, ready=ready)


def _orphaned(server: Server, loop: asyncio.AbstractEventLoop, sentinel: int) -> None:
    """Whoever started this process is gone, and nobody would end it."""
    loop.remove_reader(sentinel)
    server.stop()
