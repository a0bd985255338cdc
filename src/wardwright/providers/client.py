"""HTTP/1.1 to providers: one request, one answer, connections kept for the next. The hottest part of the gateway.

Invariants (tests cite the numbers):
 C1. A kept connection that turns out to be closed before any byte of an answer came costs nothing: the request goes out once more, on
     a new connection, once. On a new connection, and after the first byte, nothing is repeated here.
 C2. A connection is kept only after a whole answer with nothing behind it; whatever comes unasked closes it.
 C3. Nothing is buffered without bound: headers are limited, and reading pauses while the reader of a body lags.
 C4. No redirect is followed, nothing is decompressed, no connection goes anywhere but to the address it was given.
 C5. Time limits hold without a timer per request: each connection has one, which looks at what is due when it fires.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, Literal, TypeAlias, cast

import httptools

from wardwright.errors import ProviderFailed
from wardwright.providers.url import Url

HEADER_BYTES: Final = 64 * 1024
"""Of one answer, trailers and interim answers included."""

HIGH_WATER: Final = 256 * 1024
"""Bytes of a body that wait for their reader before reading pauses."""

KEEP_SECONDS: Final = 15.0
"""How long an idle connection is kept. Less than what most servers do, so that few requests meet a closed one."""

JOIN_BYTES: Final = 256 * 1024
"""Bodies up to this are written together with their head, in one go."""

End: TypeAlias = Literal["complete", "broken", "closed"]
"""How the body of an answer ended; `closed`: by us, before its end."""

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\x80-\xff]*")
_OURS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "expect"}
)


def render_headers(headers: Sequence[tuple[str, str]]) -> bytes:
    """Headers as they go over the wire. ValueError for what would end the line, or is the client's own to say."""
    lines: list[str] = []
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        if name.lower() in _OURS:
            raise ValueError(f"the header '{name}' is set by the client itself")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header '{name}' holds what cannot be sent")
        lines.append(f"{name}: {value.strip()}\r\n")
    return "".join(lines).encode("latin-1")


class NetworkResponse:
    """One answer from the network. Made by a pool when the headers are there; lets go of its connection at its end by itself."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_failure",
        "_fields",
        "_headers",
        "_idle",
        "_limit",
        "_on_end",
        "_pieces",
        "_size",
        "_until",
        "_waiter",
        "complete",
        "content_encoding",
        "status",
    )

    def __init__(self, connection: _Connection, until: float, idle: float, deadline: float | None) -> None:
        self._connection: _Connection | None = connection
        self._until = until
        self._idle = idle
        self._deadline = deadline
        self.status = 0
        self.content_encoding = b""
        self._on_end: Callable[[End], None] | None = None
        self._fields: Sequence[tuple[bytes, bytes]] = ()
        self._headers: dict[str, str] | None = None
        self._size = 0
        self._limit = -1
        self.complete = False
        """All of it is here."""
        self._failure: ProviderFailed | None = None
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] = connection.loop.create_future()

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names; a repeated header is one, its values joined by commas."""
        found = self._headers
        if found is None:
            found = self._headers = {
                name.decode("latin-1"): value.decode("latin-1").strip() for name, value in _joined(self._fields).items()
            }
        return found

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    def watch(self, on_end: Callable[[End], None]) -> None:
        """Calls `on_end` once, when the body has ended, now if it has."""
        if self.complete:
            on_end("complete")
        elif self._failure is not None:
            on_end("broken")
        else:
            self._on_end = on_end

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ProviderFailed when it is longer than `limit`, or breaks off."""
        while not self.complete:
            if self._failure is not None:
                raise self._failure
            if self._size > limit:
                break
            self._limit = limit
            await self._more()
        if self._size > limit:
            self.close()
            raise ProviderFailed("broken", f"the answer has more than {limit} bytes", retryable=False, repeatable=False)
        pieces = self._pieces
        self._pieces = []
        self._size = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def hurry(self, seconds: float) -> None:
        """The rest of the body must come within `seconds`, whatever else was allowed."""
        connection = self._connection
        if connection is not None:
            deadline = connection.loop.time() + seconds
            if self._deadline is None or deadline < self._deadline:
                self._deadline = deadline
                connection.due(deadline)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they come, cut anywhere. Raises ProviderFailed where it breaks off."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            pieces = self._pieces
            if pieces:
                self._pieces = []
                self._size = 0
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self.complete:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            await self._more()

    def close(self) -> None:
        """Lets go of an answer that is not wanted any more. After its end this does nothing."""
        connection = self._connection
        self._pieces = []
        if connection is not None:
            self._fail(ProviderFailed("broken", "the answer was closed before its end"), "closed")
            connection.abort()

    async def _more(self) -> None:
        """Waits for what comes next: the headers, a piece, the end."""
        connection = self._connection
        if connection is None:
            return
        if connection.paused:
            connection.resume()
        self._waiter = waiter = connection.loop.create_future()
        await waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if not waiter.done():
            waiter.set_result(None)

    def _end(self) -> None:
        """The whole answer is here."""
        self.complete = True
        self._connection = None
        self._wake()
        if self._on_end is not None:
            self._on_end("complete")
            self._on_end = None

    def _fail(self, failure: ProviderFailed, end: End = "broken") -> None:
        """It will never be whole. What came before stays readable."""
        if self.complete or self._failure is not None:
            return
        self._failure = failure
        self._connection = None
        self._wake()
        if self._on_end is not None:
            self._on_end(end)
            self._on_end = None


class _Connection(asyncio.Protocol):
    """One connection. Lives in its pool between answers; carries one at a time."""

    __slots__ = (
        "_arrived",
        "_due_at",
        "_fields",
        "_finished",
        "_header_bytes",
        "_idle_since",
        "_interim",
        "_junk",
        "_keep",
        "_last",
        "_parser",
        "_pool",
        "_response",
        "_timer",
        "_trailing",
        "_transport",
        "_unread_bytes",
        "loop",
        "on_body",
        "paused",
        "received",
        "reused",
        "stale",
    )

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.paused = False
        self.received = False
        """Some byte of the answer came."""
        self.reused = False
        self.stale = False
        """It was lost before any byte of an answer came; its place in the pool is kept for the repeated request."""
        self._pool = pool
        self._arrived: list[bytes] = []
        # Called by the parser for every chunk of a body, which may be a few bytes: nothing is looked at before all of a read is here.
        self.on_body = self._arrived.append
        # A cycle, cut in connection_lost.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: NetworkResponse | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._trailing = False
        """The headers are there: further ones are trailers, and mean nothing to us."""
        self._header_bytes = 0
        """Of interim answers, then of trailers."""
        self._unread_bytes = 0
        """That came since the headers or a piece of the body were there; a single header may go on for ever."""
        self._interim = False
        self._finished = False
        self._junk = False
        self._keep = False
        self._last = 0.0
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = inf

    # What the pool asks of it.

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def gone(self) -> bool:
        return self._transport is None

    def send(self, head: bytes, body: bytes, response: NetworkResponse) -> None:
        """Writes a request, on a connection that is usable; `response` gets what comes back."""
        transport: Any = self._transport
        self._response = response
        self._header_bytes = self._unread_bytes = 0
        self._finished = self._trailing = self.received = False
        if response._until < self._due_at:
            self.due(response._until)
        size = len(body)
        if size <= JOIN_BYTES:
            transport.write(b"%b%d\r\n\r\n%b" % (head, size, body))
        else:
            transport.write(b"%b%d\r\n\r\n" % (head, size))
            transport.write(body)

    def park(self) -> None:
        """Idle since the last byte came."""
        self._idle_since = self._last
        due = self._last + self._pool.keep
        if due < self._due_at:
            self.due(due)

    def resume(self) -> None:
        """The reader caught up."""
        self.paused = False
        self._last = self.loop.time()  # time the reader took is not the provider's
        if self.usable:
            cast("asyncio.Transport", self._transport).resume_reading()

    def abort(self) -> None:
        """Gives the connection up, whatever it carries."""
        self._response = None
        if self._transport is not None:
            self._transport.abort()

    def shut(self) -> None:
        """Closes an idle connection in order."""
        if self._transport is not None:
            self._transport.close()

    # What the loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        response = self._response
        self._response = None
        self.stale = self.reused and not self.received and response is not None
        if response is not None:
            if response.status and exc is None and _SIZED.isdisjoint(response.headers):
                response._end()  # its end is the end of the connection
            else:
                response._fail(_broken(response))
        self._pool.lost(self, keep_place=self.stale)

    def data_received(self, data: bytes) -> None:
        response = self._response
        parser = self._parser
        if response is None or parser is None:
            self.abort()  # C2: unasked
            return
        self.received = True
        self._last = self.loop.time()
        self._unread_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up(response, "the provider wants to speak another protocol")
            return
        except httptools.HttpParserError:
            if not self._finished:
                if self._arrived:
                    self._hand_on(response)
                # Not by the error's context: that is whatever exception was being handled where the loop was started.
                self._give_up(
                    response, _TOO_LONG if self._header_bytes > HEADER_BYTES else "the provider's answer is not HTTP"
                )
                return
            self._junk = True
        if self._finished:
            self._release(response)
        elif self._arrived:
            self._hand_on(response)
        elif self._unread_bytes > HEADER_BYTES:
            self._give_up(response, _TOO_LONG)

    # What the parser tells it.

    def on_message_begin(self) -> None:
        if self._finished:
            self._junk = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._trailing:
            self._count(len(name) + len(value) + 4)
        else:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None or self._finished:
            return
        parser: Any = self._parser
        fields, self._fields = self._fields, []
        status = parser.get_status_code()
        if status < 200 or self._unread_bytes > HEADER_BYTES:
            self._count(sum(len(name) + len(value) + 4 for name, value in fields))
            if status < 200:
                self._interim = True
                return
        self._trailing = True
        self._header_bytes = self._unread_bytes = 0
        self._keep = parser.should_keep_alive()
        response.status = status
        response._fields = fields
        for name, _ in fields:
            # Providers send dozens; this is the only one that every answer is asked for.
            if len(name) == _ENCODING and name.lower() == b"content-encoding":
                response.content_encoding = _joined(fields)[b"content-encoding"].lower()
                break
        due = self._last + response._idle
        if due < self._due_at:
            self.due(due)
        waiter = response._waiter
        if not waiter.done():
            waiter.set_result(None)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._finished:
            self._finished = True
            if self._arrived and self._response is not None:
                self._take(self._response)  # what comes behind it is not its own

    def _take(self, response: NetworkResponse) -> int:
        """What the parser found of the body in what has just been read; how much now waits for its reader."""
        arrived = self._arrived
        data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
        arrived.clear()
        self._unread_bytes = 0
        response._pieces.append(data)
        response._size = size = response._size + len(data)
        return size

    def _hand_on(self, response: NetworkResponse) -> None:
        """The next piece of the body."""
        size = self._take(response)
        limit = response._limit
        if size <= limit:
            return  # the reader wants it whole
        if limit < 0 and size > HIGH_WATER and not self.paused and self._transport is not None:
            self.paused = True
            self._transport.pause_reading()
        waiter = response._waiter
        if not waiter.done():
            waiter.set_result(None)

    # Ends.

    def _count(self, more: int) -> None:
        """C3: bytes of headers beside those of the answer itself."""
        self._header_bytes += more
        if self._header_bytes > HEADER_BYTES:
            raise _Refused(_TOO_LONG)

    def _release(self, response: NetworkResponse) -> None:
        """The answer is whole: it has its bytes, the connection is free."""
        transport = self._transport
        self._response = None
        if self._arrived:
            self._arrived.clear()
        response._end()
        if transport is None:
            return
        if not self._keep or self._junk or transport.get_write_buffer_size():
            transport.close()
            return
        if self.paused:
            self.paused = False
            transport.resume_reading()
        self.reused = True
        self._pool.give_back(self)

    def _give_up(self, response: NetworkResponse, message: str) -> None:
        response._fail(ProviderFailed("broken", message))
        self.abort()

    # Time.

    def due(self, due: float) -> None:
        """Looks at the time limits then at the latest."""
        if due >= self._due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due
        self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        """C5: what is due, if anything; else the timer is set to when something may be."""
        self._timer = None
        self._due_at = inf
        now = self.loop.time()
        response = self._response
        end: End = "broken"
        if response is None:
            due, message = self._idle_since + self._pool.keep, ""
        elif not response.status:
            due, message = response._until, _LATE
        else:
            due, message = self._last + response._idle, "the provider stopped in the middle of its answer"
            if self.paused:
                due = now + response._idle
            if response._deadline is not None and response._deadline <= due:
                due, message = response._deadline, "the provider's answer took too long"
                end = "closed"  # our limit, not the provider's failure
        if now < due:
            self.due(due)
        elif response is None:
            self._pool.retire(self)
        else:
            response._fail(ProviderFailed("timeout", message), end)
            self.abort()


_ENCODING: Final = len(b"content-encoding")
_LATE: Final = "the provider did not answer in time"
_NO_ANSWER: Final = "the provider closed the connection without an answer"
_SIZED: Final = frozenset({"content-length", "transfer-encoding"})
_TOO_LONG: Final = f"the headers of the provider's answer are longer than {HEADER_BYTES} bytes"


class _Refused(Exception):
    """Something in an answer that is not read any further."""


def _broken(response: NetworkResponse) -> ProviderFailed:
    if response.status:
        return ProviderFailed("broken", "the connection broke in the middle of the provider's answer")
    return ProviderFailed("broken", _NO_ANSWER)


def _joined(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; those that came more than once are one."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        found.setdefault(name.lower(), []).append(value.strip())
    return {name: b", ".join(values) for name, values in found.items()}


def _sooner(instant: float, deadline: float | None) -> float:
    return instant if deadline is None or instant < deadline else deadline


class Pool:
    """Connections to one address. Lives as long as its client, within one event loop."""

    def __init__(
        self, url: Url, *, connections: int, connect_timeout: float, keep: float, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        self.url = url
        self.keep = keep
        self._connections = connections
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._count = 0
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()
        self._closed = self._aborted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def count(self) -> int:
        """Connections that are open or being opened."""
        return self._count

    async def request(
        self,
        method: str,
        path: str,
        headers: bytes,
        body: bytes,
        *,
        timeout: float,
        idle: float,
        deadline: float | None = None,
    ) -> NetworkResponse:
        """The answer, when its headers are there. `headers` come from `render_headers`; times are seconds, `deadline` an instant of
        the loop's clock. `timeout`: from sending to the headers, and no longer for a free connection; `idle`: between two pieces of
        the body; `deadline`: for all of it."""
        return await self.ask(self.head(method, path, headers), body, timeout, idle, deadline)

    def head(self, method: str, path: str, headers: bytes) -> bytes:
        """What all requests to a path begin with, up to the number that tells the length of the body."""
        said = f"{method} {path} HTTP/1.1\r\nhost: {self.url.authority}\r\n".encode()
        return said + headers + b"accept-encoding: identity\r\ncontent-length: "

    async def ask(
        self, head: bytes, body: bytes, timeout: float, idle: float, deadline: float | None
    ) -> NetworkResponse:
        """As `request`; `head` comes from there."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        connection = self._kept() or await self._acquire(timeout, deadline, loop)
        while True:
            until = loop.time() + timeout
            if deadline is not None and deadline < until:
                until = deadline
            response = NetworkResponse(connection, until, idle, deadline)
            connection.send(head, body, response)
            try:
                await response._waiter
            except BaseException:
                # Cancelled while waiting: what may still come belongs to nobody. An answer that is whole has let go of its connection,
                # which may carry somebody else's by now.
                if not response.complete:
                    connection.abort()
                    if connection.stale:
                        self._freed()
                raise
            failure = response._failure
            if failure is None or response.status:
                return response
            if not connection.stale:
                raise failure
            # C1: on none of those that are kept, they are as old or older. A new one is never stale.
            connection = await self._connect(deadline, loop, counted=True)

    def _kept(self) -> _Connection | None:
        """The connection that was used last: the others may then be given up for being idle."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            transport = connection._transport
            if transport is not None and not transport.is_closing():
                return connection
        return None

    async def _acquire(self, timeout: float, deadline: float | None, loop: asyncio.AbstractEventLoop) -> _Connection:
        """A new connection, or one that another request has done with."""
        until = _sooner(loop.time() + timeout, deadline)
        while self._count >= self._connections:
            waiter: asyncio.Future[_Connection | None] = loop.create_future()
            self._waiting.append(waiter)
            try:
                async with asyncio.timeout_at(until):
                    connection = await waiter
            except BaseException as error:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on(waiter.result())
                elif waiter in self._waiting:
                    self._waiting.remove(waiter)
                if isinstance(error, TimeoutError):
                    message = f"all {self._connections} connections to the provider are busy"
                    raise ProviderFailed("busy", message) from None
                raise
            if connection is None:
                return await self._connect(deadline, loop, counted=True)
            if connection.usable:
                return connection
            # It was closed on the way here, and its place goes to whoever waits first. Meanwhile another may have come free.
            kept = self._kept()
            if kept is not None:
                return kept
        return await self._connect(deadline, loop)

    async def _connect(
        self, deadline: float | None, loop: asyncio.AbstractEventLoop, *, counted: bool = False
    ) -> _Connection:
        """A new connection. `counted`: its place is taken already."""
        if not counted:
            self._count += 1
        url = self.url
        try:
            if self._aborted:
                raise ProviderFailed("connect", "the gateway is closing", retryable=False, repeatable=False)
            options: dict[str, Any] = {"ssl": self._tls(), "server_hostname": url.host} if url.tls else {}
            async with asyncio.timeout_at(_sooner(loop.time() + self._connect_timeout, deadline)):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, loop), url.host, url.port, **options
                )
            if connection.gone:
                raise ProviderFailed("broken", _NO_ANSWER)
        except BaseException as error:
            self._freed()
            if isinstance(error, ssl.SSLError | ssl.CertificateError):
                why = getattr(error, "verify_message", "") or "no secure connection could be made"
                raise ProviderFailed("connect", f"{url.authority}: {why}") from error
            if isinstance(error, TimeoutError):
                if deadline is not None and loop.time() >= deadline:
                    raise ProviderFailed("timeout", _LATE) from None
                raise ProviderFailed("connect", f"{url.authority} did not accept a connection in time") from None
            if isinstance(error, OSError):
                raise ProviderFailed("connect", f"{url.authority} cannot be reached") from error
            raise
        self._open.add(connection)
        return connection

    def give_back(self, connection: _Connection) -> None:
        """A connection that can carry the next request."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self._closed:
            connection.shut()
            return
        self._idle.append(connection)
        connection.park()

    def retire(self, connection: _Connection) -> None:
        """An idle connection has been kept long enough."""
        if connection in self._idle:
            self._idle.remove(connection)
        connection.shut()

    def lost(self, connection: _Connection, *, keep_place: bool) -> None:
        """A connection is gone."""
        if connection in self._open:
            self._open.remove(connection)
            if not keep_place:
                self._freed()
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Closes what is idle and keeps nothing from now on; what is under way ends by itself."""
        self._closed = True
        for connection in self._idle:
            connection.shut()
        self._idle.clear()

    def abort(self) -> None:
        """Gives up what is still open, and opens nothing any more."""
        self.close()
        self._aborted = True
        for connection in tuple(self._open):
            connection.abort()

    def _freed(self) -> None:
        """There is room for one more."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # it takes over the place
                return
        self._count -= 1

    def _pass_on(self, connection: _Connection | None) -> None:
        if connection is None:
            self._freed()
        elif connection.usable:
            self.give_back(connection)


class Client:
    """All connections of one process to the outside. Made in the event loop that uses it, closed with it."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, keep: float = KEEP_SECONDS) -> None:
        self._context = tls
        self._keep = keep
        self._pools: list[Pool] = []
        self._by_origin: dict[tuple[bool, str, int], Pool] = {}

    def pool(self, url: Url, *, connections: int = 100, connect_timeout: float = 5.0) -> Pool:
        """A pool of its own for whoever talks to `url`."""
        made = Pool(url, connections=connections, connect_timeout=connect_timeout, keep=self._keep, tls=self._tls)
        self._pools.append(made)
        return made

    def drop(self, pool: Pool) -> None:
        """A pool that nobody will use again: what is idle is closed, what is under way ends by itself."""
        pool.close()
        if pool in self._pools:
            self._pools.remove(pool)

    async def request(
        self,
        method: str,
        url: Url,
        headers: bytes | Sequence[tuple[str, str]],
        body: bytes = b"",
        *,
        timeout: float = 60.0,
        idle: float = 60.0,
        deadline: float | None = None,
    ) -> NetworkResponse:
        """One request over the pool that all who call this share for one origin."""
        origin = url[:3]
        pool = self._by_origin.get(origin)
        if pool is None:
            pool = self._by_origin[origin] = self.pool(url)
        rendered = headers if isinstance(headers, bytes) else render_headers(headers)
        return await pool.request(
            method, url.path or "/", rendered, body, timeout=timeout, idle=idle, deadline=deadline
        )

    async def close(self) -> None:
        """Closes every connection, also those that carry an answer."""
        for pool in self._pools:
            pool.abort()
        # Two rounds of the loop: transports tell of their end in the next one.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context
