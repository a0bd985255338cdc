"""HTTP/1.1 on sockets: bytes to an ASGI application and back. The outermost part of the gateway, paid by every request.

Invariants (tests cite the numbers):
 W1. Requests of one connection are answered one after the other, in their order; where bytes were cut on the way changes nothing.
 W2. Where a request ends is never guessed: what two readers could read differently is refused, and the connection ends with it.
 W3. Nothing is buffered without bound: heads are limited, reading pauses while a body waits for its reader or a request for its turn,
     and whoever sends waits while the caller does not read.
 W4. Nobody is waited for without end: each state of a connection but that of an application at work has its number of ticks. As long as
     something is left to be read by the caller, only those count in which he took nothing.
 W5. An answer that did not come whole never looks as if it did.
 W6. An answer whose body is known goes out in one write, and its head never before its first piece.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, NoReturn, cast
from urllib.parse import unquote

import httptools

from wardwright.errors import GovernanceUnavailable, raised_at
from wardwright.http.app import CALLER, AsgiApp, Scope

HEAD_BYTES: Final = 128 * 1024

HIGH_WATER: Final = 256 * 1024
"""Bytes of a body that wait for their reader before reading pauses."""

WAITING: Final = 64
"""Requests of one connection that wait for their turn before what came behind them is left unread."""

STEP: Final = 8 * 1024
"""What is read at once, as long as nobody knows how many requests are in it."""

JOIN_BYTES: Final = 64 * 1024
"""Bodies up to this are copied behind their head."""

PATH_BYTES: Final = 256
"""Longer ones are not remembered."""

BACKLOG: Final = 2048

CANCEL_SECONDS: Final = 5.0
"""For what was cancelled to end."""


log = logging.getLogger("wardwright")

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_PHRASES: Final = {one.value: one.phrase.encode() for one in HTTPStatus}
_STATUS: Final = {code: b"HTTP/1.1 %d %b" % (code, _PHRASES.get(code, b"")) for code in range(100, 600)}
_line: Final = b": ".join
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST: Final = b"0\r\n\r\n"
_ODD: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that mean something to whoever reads the request, other than its length …"""
_NOTED: Final = _ODD | {b"connection", b"proxy-connection"}
"""… and those that say whether the connection is kept."""
_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Headers that say how an answer ends; an application sets none of them but its length."""
_BODILESS: Final = frozenset({*range(100, 200), 204, 304})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller may ask of a server. Times are ticks, and a tick is a second unless a test says otherwise."""

    head_bytes: int = HEAD_BYTES
    """Of a request line and headers; an application may have narrower ones, and words for them."""
    headers: int = 256
    head: int = 30
    """For the whole of a head, from its first byte."""
    idle: int = 75
    """Between two requests, and before the first."""
    body: int = 60
    """Between two pieces of a body that an application waits for; how long all of it may take is the application's to say."""
    rest: int = 30
    """For the rest of a body whose request was answered already."""
    stalled: int = 120
    """For a caller who takes nothing of what is written; whoever goes on reading, however slowly, may take his time."""
    linger: int = 2
    """For a caller who may still be sending, after he was sent why he is refused."""
    tick: float = 1.0


class _Request:
    """One request and its answer. Made when its head is there; lives until the application has done with it."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_chunked",
        "_left",
        "_on_hang_up",
        "_silent",
        "_start",
        "_taken",
        "_told",
        "connection",
        "cut",
        "done",
        "expects",
        "head",
        "keep",
        "pieces",
        "scope",
        "size",
        "task",
        "waiters",
        "whole",
    )

    def __init__(self, connection: _Connection, scope: Scope, head: int, keep: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.head = head
        self.keep = keep
        """Another request may follow on this connection."""
        self.cut = False
        """Its body will never be whole: the caller is gone, or sent what is no body."""
        self.done = False
        """The answer is whole."""
        self.whole = False
        """So is the request."""
        self.size = 0
        """Of what came of its body."""
        self.expects = False
        """Its caller waits to be told before he sends the body."""
        self._taken = 0
        """Of that, what the application has."""
        self._told = False
        self._on_hang_up: Callable[[], None] | None = None
        self._start: Any = None
        self._begun = False
        self._chunked = False
        self._left: int | None = None
        """Bytes of the body that the head promised and that have not come; None: until the connection ends."""
        self._silent = scope["method"] == "HEAD"
        """The body of the answer is not sent, whatever the application says."""
        self.pieces: list[bytes] = []
        self.waiters: list[asyncio.Future[None]] | None = None
        self.task: asyncio.Task[None] | None = None

    # For the connection.

    def break_off(self) -> None:
        """Nothing more will come of it, and nothing after it."""
        self.cut = True
        self.keep = False
        if self.waiters:
            self.wake()
        if self._on_hang_up is not None and not self.done:
            self._on_hang_up()

    def waits(self) -> bool:
        """So much of it waits for the application that no more is read."""
        return self.size - self._taken > HIGH_WATER and not self.done

    def due(self) -> int:
        """Bytes of its body that are still to come, as its head said them; 0 if that did not."""
        for name, value in self.scope["headers"]:
            if name == b"content-length":
                return int(value) - self.size
        return 0

    async def run(self, server: Server) -> None:
        """Has the application answer it."""
        try:
            await server.application(self.scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001
            # INVARIANT: one request that fails ends alone. Its error may repeat what the caller sent, and is not told.
            log.error("request failed", extra={"error": type(error).__name__, "where": raised_at(error)})
        finally:
            server.running.discard(self)
            if not self.done:
                self._abandon()
            # Both lead back here; what nobody holds need not be collected.
            self._on_hang_up = None
            self.scope.pop("extensions", None)
            if server.ending is not None:
                server.look_for_end()

    # For an application that knows `Caller`.

    def body(self) -> bytes | None:
        if not self.whole or self._told or self._taken:
            return None
        self._told = True
        pieces, self.pieces = self.pieces, []
        if self.size > HIGH_WATER:
            self.connection.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_hang_up(self, tell: Callable[[], None]) -> None:
        self._on_hang_up = tell
        if self.cut:
            self.connection.loop.call_soon(tell)

    def answer(self, status: int, lines: bytes, body: bytes) -> bool:
        connection = self.connection
        if (
            self._start is not None
            or self.done
            or connection.full
            or connection.gone
            or not self.keep
            or self.expects
            or self._silent
            or status in _BODILESS
            or len(body) > JOIN_BYTES
        ):
            return False
        # W6
        connection.transport.write(b"%b\r\n%b\r\n%b\r\n%b" % (_STATUS[status], connection.server.date, lines, body))
        self.done = True
        if self.waiters:
            self.wake()
        connection.answered(self)
        return True

    # For the application.

    async def receive(self) -> dict[str, Any]:
        while True:
            if self.done or (self.cut and not self.whole):
                return {"type": "http.disconnect"}
            whole = self.whole
            pieces = self.pieces
            if pieces or (whole and not self._told):
                self._told = whole
                if pieces:
                    self.pieces = []
                    paused = self.waits()
                    self._taken = self.size
                    if paused:
                        self.connection.resume()
                body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                return {"type": "http.request", "body": body, "more_body": not whole}
            if self.cut:
                return {"type": "http.disconnect"}
            if self.expects and not self._begun:
                self.expects = False
                self.connection.transport.write(_CONTINUE)
            waiter = self.connection.loop.create_future()
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(waiter)
            try:
                await waiter
            finally:
                self.waiters.remove(waiter)

    async def send(self, message: Any) -> None:
        start = self._start
        if start is None:
            if message["type"] != "http.response.start":
                raise RuntimeError("an answer begins with its head")
            self._start = message
            return
        if message["type"] != "http.response.body" or self.done:
            raise RuntimeError("an answer has one head and one end")
        body = message.get("body", b"")
        more = message.get("more_body", False)
        connection = self.connection
        if connection.full:
            await connection.drained()  # W3: also behind the answer before this one
        if connection.gone or self.done:
            self.done = self.done or not more
            return
        if self._begun:
            self._write(b"", body, more)
        else:
            # W6
            self._write(self._head(start["status"], start.get("headers", ()), len(body), more), body, more)
            self._begun = True
        if not more:
            self.done = True
            if self.waiters:
                self.wake()
            connection.answered(self)

    def _head(self, status: int, headers: Sequence[tuple[bytes, bytes]], size: int, more: bool) -> bytes:
        promised: bytes | None = None
        lines = [_STATUS[status], self.connection.server.date]
        refused = False
        for header in headers:
            name, value = header
            if name in _FRAMING:
                if name == b"content-length":
                    promised = value
                else:
                    refused = True
            lines.append(_line(header))
        # Names are the application's own; a value may be somebody's who would like to end the line. All of them are looked at together,
        # for LF, CR and NUL as numbers: to look for bytes in bytes costs ten times as much.
        told = b"".join(lines)
        if refused or 10 in told or 13 in told or 0 in told:
            raise RuntimeError("the headers of the answer cannot be sent")
        if promised is not None and self.keep and status not in _BODILESS and not self.expects and not self._silent:
            self._left = int(promised)
        else:
            lines += self._framing(status, promised, None if more else size)
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    def _framing(self, status: int, promised: bytes | None, size: int | None) -> tuple[bytes, ...]:
        """What the application did not say of how the answer ends."""
        further: tuple[bytes, ...] = ()
        bodiless = status in _BODILESS
        self._silent = self._silent or bodiless
        if self.expects and not self.whole:
            self.keep = False  # who was not told to go on may send a body or none
        if promised is not None:
            self._left = int(promised)
        elif size is not None and not bodiless:
            self._left = size
            further = (b"content-length: %d" % size,)
        elif self._silent:
            self._left = 0
        elif self.scope["http_version"] == "1.1":
            self._chunked = True
            further = (b"transfer-encoding: chunked",)
        else:
            self.keep = False  # of HTTP/1.0: its end is the end of the connection
        return further if self.keep else (*further, b"connection: close")

    def _write(self, head: bytes, body: bytes, more: bool) -> None:
        """The next piece; behind the head, if that is not out yet."""
        if self._chunked:
            if body:
                head += b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                head += _LAST
            body = b""
        elif self._silent:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer is not as long as its head says")
        if len(body) <= JOIN_BYTES:
            head += body
            if head:
                self.connection.transport.write(head)
        else:
            self.connection.transport.writelines((head, body))

    def _abandon(self) -> None:
        """W5: the application has left without a whole answer."""
        connection = self.connection
        self.done = True
        self.keep = False
        if connection.gone:
            return
        if not self._begun:
            told = _plain(400 if self.cut else 500, connection.server.date)
            if self.scope["method"] == "HEAD":
                told = told[: told.index(b"\r\n\r\n") + 4]
            connection.transport.write(told)
            connection.answered(self)
        elif self._left is None and not self._chunked:
            connection.reset()
        else:
            connection.close()  # its end is missing, and whoever reads it sees that

    def wake(self) -> None:
        for waiter in self.waiters or ():
            if not waiter.done():
                waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection of a caller. Made when it is accepted."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.full = False
        """More is written than the caller has read."""
        self.gone = False
        self._paused = False
        self._denied = 0
        """The status with which nothing more is read."""
        self._length = b""
        """Where an upgrade was asked for that nobody gives: how long the body is."""
        self._url = b""
        self._plain = b"/"
        """The last short one that is its own path; a caller asks for the same again and again."""
        self._path = "/"
        self._held = b""
        """What came and is not read yet, behind as many requests as may wait; from `_at` on."""
        self._at = 0
        self._unread = 0
        """By the caller, of what was written, at the last tick."""
        self._stalled = 0
        """Ticks since that became less."""
        self.loop = server.loop
        self._limits = server.limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        """None: nothing more is read. A cycle, cut then or in connection_lost."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        """That came and gave nothing yet: a part of a head, of a chunk's size or of trailers."""
        self._step = 0
        """What is read just now, in bytes …"""
        self._came = 0
        """… and that with all that was read since, when a request began: its head has no more."""
        self._current: _Request | None = None
        """The one that is answered, or whose body is still read away."""
        self._incoming: _Request | None = None
        """The one whose body comes."""
        self._queue: deque[_Request] = deque()
        self._drained: list[asyncio.Future[None]] = []
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        # W4
        self._patience = server.limits.idle
        self._age = 0

    # What the loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self.server.connections.add(self)
        if self.server.ending is not None:
            self.close()  # it was accepted when the server had no time any more

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # whatever it was
        self.gone = True
        self._parser = None
        self._held = b""
        self.server.connections.discard(self)
        self._queue.clear()
        if self._current is not None:
            self._current.break_off()
            self._current = None
        self._incoming = None
        self._flow()
        if self.server.ending is not None:
            self.server.look_for_end()

    def data_received(self, data: bytes) -> None:
        if len(data) > STEP or self._held:
            self._held += data
            self._read_on()
        else:
            self._feed(data)

    def _read_on(self) -> None:
        """W3: reads what came head by head and body by body, until too many requests wait. A body comes in one piece where it can."""
        held, at = self._held, self._at
        size = len(held)
        view = memoryview(held)
        while at < size and self._parser is not None and len(self._queue) < WAITING:
            if self._incoming is not None:
                step = self._incoming.due() or STEP
            elif (end := held.find(b"\r\n\r\n", at, at + STEP)) != -1:
                step = max(end + 4 - at, 64)
            else:
                step = STEP
            self._feed(view[at : at + step])
            at += step
        if at < size and self._parser is not None:
            self._at = at
        else:
            self._held, self._at = b"", 0
            self.resume()

    def _feed(self, data: bytes | memoryview) -> None:
        parser = self._parser
        if parser is None:
            return  # of whom nothing more is read
        self._step = size = len(data)
        self._bytes += size
        self._came += size
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._length:
                self._go_on(bytes(data[cast("int", upgrade.args[0]) :]))
            else:
                self._refuse()
            return
        except httptools.HttpParserError:
            self._refuse()
            return
        if self._bytes > self._limits.head_bytes:
            self._denied = 431
            self._refuse()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self._flow()

    # What the parser tells it.

    def on_message_begin(self) -> None:
        self._came = self._step
        self._headers = []
        if self._current is None:
            self._age = 0
            self._patience = self._limits.head

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser: Any = self._parser
        if parser is None:
            raise _Denied  # behind the last one
        limits = self._limits
        headers, self._headers = self._headers, []  # whatever comes now is a trailer
        url, self._url = self._url, b""  # W3: a caller who waits has none of it kept
        if len(headers) > limits.headers:
            self._deny(431)
        if self._bytes > limits.head_bytes and _size(url, headers) > limits.head_bytes:
            self._deny(431)  # what came with it may be its body
        self._bytes = 0
        if url == self._plain:
            path, query = self._path, b""
        elif 63 in url or 37 in url or 35 in url or not url.startswith(b"/"):  # ? % #
            path, url, query = self._target(url)
        else:
            path, query = url.decode(), b""
            if len(url) <= PATH_BYTES:
                self._plain, self._path = url, path
        keep: bool = parser.should_keep_alive()
        odd = told = False
        for name, _ in headers:
            if name in _NOTED:
                if name in _ODD:
                    odd = True
                else:
                    told = True
        # To ask for it is dear. Of those that say nothing of their connection, the parser keeps those of HTTP/1.1 and no other.
        version: str = "1.1" if keep and not told else parser.get_http_version()
        method: str = parser.get_method().decode()
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": url,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._client,
            "server": self._server,
        }
        request = _Request(self, scope, self._came, keep)
        if odd or version != "1.1" or method == "CONNECT":
            self._odd(request, dict(headers))
        scope["extensions"] = {CALLER: request}
        self._incoming = request
        if self._current is None:
            self._run(request)
        else:
            # W1, W3: it waits for its turn, and whatever is behind it with the caller.
            self._queue.append(request)
            self._pause()

    def on_body(self, data: bytes) -> None:
        self._bytes = 0
        request = self._incoming
        if request is None:
            return
        request.size += len(data)
        if request.done:
            return  # nobody wants it; W4: nor does it buy time
        self._age = 0
        request.pieces.append(data)
        if request.waiters:
            request.wake()
        if request.size > HIGH_WATER and request.waits():
            self._pause()

    def on_message_complete(self) -> None:
        request = self._incoming
        if request is None or self._length:
            return
        self._incoming = None
        request.whole = True
        if request.waiters:
            request.wake()
        if request.done:
            self._next(request)

    def _target(self, url: bytes) -> tuple[str, bytes, bytes]:
        """Path, path as it was sent, and query."""
        try:
            parsed = httptools.parse_url(url)
            raw = parsed.path
            if not raw.startswith(b"/"):
                self._deny(400)
            path = raw.decode("ascii")
        except (httptools.HttpParserInvalidURLError, AttributeError, UnicodeDecodeError):
            self._deny(400)
        return (unquote(path) if "%" in path else path), raw, parsed.query or b""

    def _odd(self, request: _Request, named: dict[bytes, bytes]) -> None:
        """What is not in every request."""
        parser = cast("httptools.HttpRequestParser", self._parser)
        version = request.scope["http_version"]
        coding = named.get(b"transfer-encoding")
        if version not in ("1.0", "1.1"):
            self._deny(505)
        # W2: behind the head of a tunnel there is no request, and of several codings only the last would be looked at.
        names = [name for name, _ in request.scope["headers"]]
        if request.scope["method"] == "CONNECT" or names.count(b"transfer-encoding") > 1:
            self._deny(400)
        if coding is not None and (version == "1.0" or coding.strip().lower() != b"chunked"):
            self._deny(400)  # W2
        if version == "1.0":
            request.keep = False
        elif named.get(b"expect", b"").lower() == b"100-continue":
            request.expects = True
        if parser.should_upgrade():
            # Nobody changes to another protocol here: it is read as if that had not been said, and is the last on this connection.
            request.keep = False
            length = b"content-length: %b" % named.get(b"content-length", b"0")
            self._length = length if coding is None else b"transfer-encoding: chunked"

    def _deny(self, status: int) -> NoReturn:
        self._denied = status
        raise _Denied

    def _go_on(self, rest: bytes) -> None:
        """Reads the body of a request that asked for an upgrade: the parser takes everything behind such a head for another protocol's."""
        head = b"POST / HTTP/1.1\r\nconnection: close\r\n%b\r\n\r\n" % self._length
        self._length = b""
        reader = SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
        self._parser = httptools.HttpRequestParser(reader)
        self._parser.feed_data(head)
        if rest:
            self._feed(rest)

    # Requests, one after the other.

    def _run(self, request: _Request) -> None:
        self._current = request
        self._patience = self._age = 0
        server = self.server
        server.running.add(request)
        request.task = asyncio.Task(
            request.run(server), loop=self.loop, name="request"
        )  # a name of its own is made up dearly

    def answered(self, request: _Request) -> None:
        """The answer is whole; what is left of the request is read away."""
        if request.whole or request.cut:
            self._next(request)
        elif request.expects:
            self.close()
        else:
            self._age = 0
            self._patience = self._limits.rest
            self.resume()

    def _next(self, request: _Request) -> None:
        """A request is done with."""
        self._current = None
        self._stalled = 0  # more was written; who reads none of it finds no room for much more of it
        if not request.keep:
            self.close()
        elif self._queue:
            self._run(self._queue.popleft())
            self.resume()
        elif self._denied:
            self._tell()
        else:
            self._age = 0
            self._patience = self._limits.idle
            self.resume()

    def _refuse(self) -> None:
        """W2: nothing more is read from this caller. What came whole before is still answered."""
        if self._parser is None:
            return
        self._parser = None
        self._denied = self._denied or 400
        broken = self._incoming
        last = self._queue[-1] if self._queue else self._current
        if broken is not None:
            self._incoming = None
            broken.break_off()
            if broken.done:
                self._next(broken)
        elif last is None:
            self._tell()
        # Otherwise its turn comes; behind a request that is the last by its own words nothing is answered.

    def _tell(self) -> None:
        self.transport.write(_plain(self._denied, self.server.date))
        self.close()

    def finish(self) -> None:
        """The server ends: what is under way may end, nothing else begins."""
        current = self._current
        if current is None or current.done:
            self.close()
            return
        current.keep = False
        self._queue.clear()
        if current is not self._incoming:
            self._held, self._at = b"", 0  # else its body is in there

    # Bytes, and time.

    def close(self) -> None:
        """What was written is sent first. A caller who may still be sending is listened to a little longer, or the network would take
        his own unread bytes for a reason to throw away our last words."""
        self._age = 0
        self._patience = self._limits.stalled
        if self.transport.is_closing():
            return  # W4: he has ended his side, and may read nothing of what is still to be sent
        sending = self._parser is None or self._incoming is not None or self._paused
        self._parser = self._incoming = None
        self._queue.clear()
        self._held, self._at = b"", 0
        if sending:
            self._patience = self._limits.linger
            self.resume()
            self.transport.write_eof()
        else:
            self.transport.close()

    def reset(self) -> None:
        """Ends it so that nobody takes it for an end in order."""
        underlying: socket.socket = self.transport.get_extra_info("socket")
        underlying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def abort(self) -> None:
        self.transport.abort()

    def _pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Reads on, if nothing stands against it."""
        if not self._paused or self._queue or self.transport.is_closing():
            return
        if self._held:
            self.loop.call_soon(self._read_on)  # not within the parser, which may have called
        elif self._incoming is None or not self._incoming.waits():
            self._paused = False
            self.transport.resume_reading()

    async def drained(self) -> None:
        """W3: waits until the caller has read."""
        while self.full and not self.gone:
            waiter = self.loop.create_future()
            self._drained.append(waiter)
            try:
                await waiter
            finally:
                self._drained.remove(waiter)

    def _flow(self) -> None:
        self.full = False
        self._stalled = 0
        for waiter in self._drained:
            if not waiter.done():
                waiter.set_result(None)

    def tick(self) -> None:
        """W4."""
        if self.gone:
            return
        patience = self._patience
        if (patience or self.full) and self._left():
            self._stalled += 1
            if self._stalled > self._limits.stalled:
                self.abort()
        elif patience:
            self._age += 1
            if self._age > patience:
                self.abort()
        current = self._current
        if not patience and current is not None and current is self._incoming and current.waiters:
            self._age += 1
            if self._age > self._limits.body:
                self._refuse()  # as if he had left

    def _left(self) -> int:
        """What the caller has not read of what was written while nothing more is; sees whether he goes on reading."""
        left = self.transport.get_write_buffer_size()
        if left or self._parser is None:
            # The network's part: of a long one it tells only when a third of it is free. Whoever is refused loses it with the connection.
            left += _unsent(self.transport.get_extra_info("socket"))
        if left < self._unread:
            self._stalled = 0
        self._unread = left
        return left


class _Denied(Exception):
    """Something in a request that is not read any further."""


class Server:
    """An application on sockets, for as long as it serves. Made in the event loop that runs it."""

    def __init__(self, application: AsgiApp, limits: Limits | None = None) -> None:
        self.application = application
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.connections: set[_Connection] = set()
        self.running: set[_Request] = set()
        self.ending: asyncio.Future[None] | None = None
        """Done when nothing is under way any more; None while it serves."""
        self.date = b""
        """As a header, a tick old at most."""
        self._stop: asyncio.Future[None] = self.loop.create_future()
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stopping(self) -> bool:
        return self._stop.done()

    def stop(self) -> None:
        """No new connections; what is under way may end."""
        if not self._stop.done():
            self._stop.set_result(None)

    def end(self) -> None:
        """At once, whatever is under way."""
        self.stop()
        self._ended = True
        if self.ending is not None and not self.ending.done():
            self.ending.set_result(None)

    async def serve(self, sockets: Sequence[socket.socket], *, drain: float, ready: Callable[[], None]) -> None:
        """Until it is stopped, and at most `drain` seconds longer. GovernanceUnavailable when the application does not start."""
        life = _Life(self.application, self.loop)
        await life.begin()
        listening = [
            await self.loop.create_server(lambda: _Connection(self), sock=one, backlog=BACKLOG) for one in sockets
        ]
        self._tick()
        ready()
        try:
            await self._stop
        finally:
            for one in listening:
                one.close()
            await self._drain(drain)
            if self._timer is not None:
                self._timer.cancel()
        if not self._ended:
            await life.end()
        log.info("stopped", extra={"worker": os.getpid(), "in_order": not self._ended})

    def look_for_end(self) -> None:
        """Whether anything is still under way, after `stop`."""
        if self.ending is not None and not (self.running or self.connections or self.ending.done()):
            self.ending.set_result(None)

    async def _drain(self, seconds: float) -> None:
        self.ending = self.loop.create_future()
        # The first words after a signal: somebody waits, and wants to know for what.
        log.info("draining", extra={"worker": os.getpid(), "running": len(self.running), "seconds_at_most": seconds})
        for connection in tuple(self.connections):
            connection.finish()
        self.look_for_end()
        if not self._ended:
            try:
                async with asyncio.timeout(seconds):
                    await self.ending
            except TimeoutError:
                log.warning("requests cancelled", extra={"running": len(self.running)})
        tasks = [request.task for request in self.running if request.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for connection in tuple(self.connections):
            connection.abort()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self.limits.tick, self._tick)
        self.date = b"date: %b" % formatdate(usegmt=True).encode()
        for connection in self.connections:
            self.loop.call_soon(connection.tick)  # an error in one stops neither the clock nor the others


class _Life:
    """The application's own beginning and end, by the lifespan protocol."""

    def __init__(self, application: AsgiApp, loop: asyncio.AbstractEventLoop) -> None:
        self._asked: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._task = loop.create_task(self._live(application))

    async def begin(self) -> None:
        self._asked.put_nowait({"type": "lifespan.startup"})
        said = await self._said.get()
        if said["type"] != "lifespan.startup.complete":
            await self._task
            raise GovernanceUnavailable(said.get("message") or "The application did not start.")

    async def end(self) -> None:
        self._asked.put_nowait({"type": "lifespan.shutdown"})
        await self._task

    async def _live(self, application: AsgiApp) -> None:
        try:
            await application({"type": "lifespan", "asgi": _ASGI}, self._asked.get, self._said.put)
        finally:
            self._said.put_nowait({"type": "over"})


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets at every address of `host`, which do not listen yet. OSError says what is wrong."""
    bound: list[socket.socket] = []
    failed: OSError | None = None
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError as error:
                failed = error  # a kind of address that this machine does not have
                continue
            bound.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0 the first one chooses for all.
            one.bind((address[0], bound[0].getsockname()[1] or port, *address[2:]))
    except OSError as error:
        for one in bound:
            one.close()
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    if not bound:
        raise OSError(f"cannot listen at {host}:{port}: {failed}")
    return bound


def _unsent(written: socket.socket) -> int:
    """Bytes that the other side has not acknowledged; 0 where nobody knows."""
    try:
        return int.from_bytes(fcntl.ioctl(written.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _address(given: Any) -> tuple[str, int] | None:
    return given[:2] if isinstance(given, tuple) else None  # pyright: ignore[reportUnknownVariableType]


def _size(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _plain(status: int, date: bytes) -> bytes:
    """An answer that the application has no part in; the last on its connection."""
    text = _PHRASES[status]
    return b"\r\n".join(
        (
            _STATUS[status],
            date,
            b"content-type: text/plain; charset=utf-8",
            b"content-length: %d" % len(text),
            b"connection: close",
            b"",
            text,
        )
    )
