"""The gateway's own server on a free port of loopback, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from queue import Queue

from wardwright.http.app import AsgiApp
from wardwright.http.server import Server, bind


@contextmanager
def standing(application: AsgiApp) -> Generator[int]:
    """The port on which it is served while the block lasts."""
    sockets = bind("127.0.0.1", 0)
    port: int = sockets[0].getsockname()[1]
    begun: Queue[Callable[[], object] | BaseException] = Queue()

    async def serve() -> None:
        loop, server = asyncio.get_running_loop(), Server(application)
        stop = partial(loop.call_soon_threadsafe, server.stop)
        try:
            await server.serve(sockets, drain=5, ready=lambda: begun.put(stop))
        except BaseException as error:
            begun.put(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    stop = begun.get(timeout=30)
    if isinstance(stop, BaseException):
        raise stop
    try:
        yield port
    finally:
        stop()
        thread.join(30)
        assert not thread.is_alive()
