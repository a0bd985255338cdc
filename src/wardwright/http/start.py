"""Starting: from a file, an address and a store to a process (or several) that serves.

Several processes are given what they need by the environment, because each of them is a new interpreter. The first process alone
makes the keys and tells the admin token, before any other starts.
"""

from __future__ import annotations

import os
import signal
import sys
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wardwright.config import Config, Problems, load_config
from wardwright.deployment import compile_store
from wardwright.http import logs
from wardwright.http.admin import admin_app
from wardwright.http.front import Front
from wardwright.http.mcp import mcp_app
from wardwright.http.pages import pages_app
from wardwright.http.service import Service, embedded

DATABASE: Final = "wardwright.db"
_PREFIX: Final = "WARDWRIGHT_SERVE_"


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


def worker() -> Front:
    """One of several processes."""
    given = os.environ
    names = ("CONFIG", "DATABASE", "HOST", "SESSIONS")
    config, database, host, sessions = (given[_PREFIX + name] for name in names)
    start = Start(config, database, host, sessions=sessions)
    logs.set_up(given[f"{_PREFIX}LOG_LEVEL"])
    return front(start.service())


def serve(start: Start, tell: Callable[[Service], None]) -> None:
    """Serves until it is told to stop; streams under way end first. `tell` is called once, before the first request."""
    import uvicorn

    logs.set_up(start.log_level)
    service = start.service()
    tell(service)
    drain = service.deployment.limits.drain_ms // 1000
    if start.workers > 1:
        service.store.close()
        for name, value in (
            ("CONFIG", start.config),
            ("DATABASE", start.database),
            ("HOST", start.host),
            ("SESSIONS", start.sessions),
            ("LOG_LEVEL", start.log_level),
        ):
            os.environ[_PREFIX + name] = value
        uvicorn.run(f"{__name__}:worker", factory=True, workers=start.workers, **_server(start, drain))
        return
    # The server drains, then raises the signal once more for whoever was there before it: here that was the end, and it went well.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)
    uvicorn.Server(uvicorn.Config(_reloading(front(service)), **_server(start, drain))).run()


def _ended(number: int, frame: object) -> None:
    """Nothing is left to do."""
    del number, frame


def _reloading(application: Front) -> Front:
    """SIGHUP reads the file again. A server with several processes has its own use for that signal, so only for one."""
    opened = application.open

    async def open_and_listen() -> None:
        await opened()
        loop = get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(application.service.reload_safely()))

    application.open = open_and_listen
    return application


def _server(start: Start, drain: int) -> dict[str, Any]:
    return {
        "host": start.host,
        "port": start.port,
        "loop": "uvloop" if sys.platform != "win32" else "auto",
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": drain,
    }
