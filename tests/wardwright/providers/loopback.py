"""A server on the loopback that says exactly the bytes a test wants, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from wardwright.providers.url import Url, parse_url


@dataclass
class Asked:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection of the server it came on, from 1."""


@dataclass
class Talk:
    """One connection, seen from the server."""

    server: Loopback
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def asked(self) -> Asked | None:
        """The next request; None when the client closed instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *rest = head.decode("latin-1").strip().split("\r\n")
        headers = dict(one.split(": ", 1) for one in rest)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        found = Asked(line, headers, body, self.number)
        self.server.asked.append(found)
        return found

    async def say(self, *pieces: bytes) -> None:
        """Sends the pieces, each on its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def closed(self) -> bool:
        """Waits until the client has closed."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Breaks the connection off instead of closing it."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Talk], Awaitable[Any]]


@dataclass
class Loopback:
    """`behave` is called for each connection, which is closed when it returns."""

    behave: Behaviour
    options: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, **self.options)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> Url:
        scheme = "https" if "ssl" in self.options else "http"
        return parse_url(f"{scheme}://127.0.0.1:{self.port}/v1/ask")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self.behave(Talk(self, self.connections, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def answer(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer with its length."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    """An answer in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


def always(*pieces: bytes) -> Behaviour:
    """Gives the same answer to every request."""

    async def behave(talk: Talk) -> None:
        while await talk.asked() is not None:
            await talk.say(*pieces)

    return behave


def in_turn(*answers: bytes) -> Behaviour:
    """Gives the answers one after the other, whatever the connection, then keeps to the last."""
    left = list(answers)

    async def behave(talk: Talk) -> None:
        while await talk.asked() is not None:
            await talk.say(left.pop(0) if len(left) > 1 else left[0])

    return behave
