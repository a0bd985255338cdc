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
        "_complete",
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
        "content_encoding",
        "status",
    )

    def __init__(self, connection: _Connection, until: float, idle: float, deadline: float | None) -> None:
        self.status: int = 0
        self.content_encoding: bytes = b""
        self._on_end: Callable[[End], None] | None = None
        self._connection: _Connection | None = connection
        self._until = until
        self._idle = idle
        self._deadline = deadline
        self._fields: list[tuple[bytes, bytes]] = []
        self._headers: dict[str, str] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._limit = -1
        self._complete = False
        self._failure: ProviderFailed | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names; a repeated header is one, its values joined by commas."""
        found = self._headers
        if found is None:
            found = self._headers = {}
            for name, value in self._fields:
                key, said = name.decode("latin-1").lower(), value.decode("latin-1").strip()
                found[key] = f"{found[key]}, {said}" if key in found else said
        return found

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    def watch(self, on_end: Callable[[End], None]) -> None:
        """Calls `on_end` once, when the body has ended, now if it has."""
        if self._complete:
            on_end("complete")
        elif self._failure is not None:
            on_end("broken")
        else:
            self._on_end = on_end

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ProviderFailed when it is longer than `limit`, or breaks off."""
        while not self._complete:
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
            if self._complete:
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
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _end(self) -> None:
        """The whole answer is here."""
        self._complete = True
        self._connection = None
        self._wake()
        if self._on_end is not None:
            self._on_end("complete")
            self._on_end = None

    def _fail(self, failure: ProviderFailed, end: End = "broken") -> None:
        """It will never be whole. What came before stays readable."""
        if self._complete or self._failure is not None:
            return
        self._failure = failure
        self._connection = None
        self._wake()
        if self._on_end is not None:
            self._on_end(end)
            self._on_end = None


class _Stale(Exception):
    """A kept connection was closed before any byte of an answer came."""


class _Connection(asyncio.Protocol):
    """One connection. Lives in its pool between answers; carries one at a time."""

    __slots__ = (
        "_due_at",
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
        "_transport",
        "_unread_bytes",
        "loop",
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
        # A cycle, cut in connection_lost.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: NetworkResponse | None = None
        self._header_bytes = 0
        self._unread_bytes = 0
        """Of headers whose end has not come, as they came; a single one may go on for ever."""
        self._interim = False
        self._finished = False
        self._junk = False
        self._keep = False
        self._last = 0.0
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    # What the pool asks of it.

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def gone(self) -> bool:
        return self._transport is None

    def send(self, head: bytes, body: bytes, response: NetworkResponse) -> None:
        """Writes a request; `response` gets what comes back."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ProviderFailed("broken", _NO_ANSWER)
        self._response = response
        self._header_bytes = self._unread_bytes = 0
        self._finished = self.received = False
        self.due(response._until)
        if len(body) <= JOIN_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def park(self) -> None:
        """Idle from now on."""
        self._idle_since = now = self.loop.time()
        self.due(now + self._pool.keep)

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
            if response.status and exc is None and not _SIZED & response.headers.keys():
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
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up(response, "the provider wants to speak another protocol")
            return
        except httptools.HttpParserError:
            if not self._finished:
                # Not by the error's context: that is whatever exception was being handled where the loop was started.
                self._give_up(
                    response, _TOO_LONG if self._header_bytes > HEADER_BYTES else "the provider's answer is not HTTP"
                )
                return
            self._junk = True
        if self._finished:
            self._release()
        elif not response.status:
            self._unread_bytes += len(data)
            if self._unread_bytes > HEADER_BYTES:
                self._give_up(response, _TOO_LONG)

    # What the parser tells it.

    def on_message_begin(self) -> None:
        if self._finished:
            self._junk = True

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or self._finished:
            return
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > HEADER_BYTES:
            raise _Refused(_TOO_LONG)
        if response.status:
            return  # trailers mean nothing to us
        response._fields.append((name, value))
        if len(name) == 16 and name.lower() == b"content-encoding":
            response.content_encoding = value.lower()

    def on_headers_complete(self) -> None:
        response = self._response
        parser = self._parser
        if response is None or parser is None or self._finished:
            return
        status = parser.get_status_code()
        if status < 200:
            self._interim = True
            response._fields = []
            response.content_encoding = b""
            return
        self._keep = parser.should_keep_alive()
        self._header_bytes = 0  # from here on those of trailers
        response.status = status
        self.due(self._last + response._idle)
        waiter = response._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None or self._finished:
            return
        response._pieces.append(data)
        response._size += len(data)
        limit = response._limit
        if limit >= 0:
            if response._size <= limit:
                return  # the reader wants it whole
        elif response._size > HIGH_WATER and not self.paused and self._transport is not None:
            self.paused = True
            self._transport.pause_reading()
        waiter = response._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self._finished = True

    # Ends.

    def _release(self) -> None:
        """The answer is whole: it has its bytes, the connection is free."""
        response = self._response
        transport = self._transport
        self._response = None
        if response is not None:
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
        if self._timer is not None:
            if self._due_at <= due:
                return
            self._timer.cancel()
        self._due_at = due
        self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        """C5: what is due, if anything; else the timer is set to when something may be."""
        self._timer = None
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
        self._authority = url.authority.encode()
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
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%baccept-encoding: identity\r\ncontent-length: %d\r\n\r\n" % (
            method.encode(),
            path.encode(),
            self._authority,
            headers,
            len(body),
        )
        connection = self._kept() or await self._acquire(timeout, deadline, loop)
        try:
            return await self._exchange(connection, head, body, timeout, idle, deadline)
        except _Stale:
            # C1: on none of those that are kept, they are as old or older.
            connection = await self._connect(deadline, loop, counted=True)
            return await self._exchange(connection, head, body, timeout, idle, deadline)

    async def _exchange(
        self, connection: _Connection, head: bytes, body: bytes, timeout: float, idle: float, deadline: float | None
    ) -> NetworkResponse:
        response = NetworkResponse(connection, _sooner(connection.loop.time() + timeout, deadline), idle, deadline)
        connection.send(head, body, response)
        try:
            await response._more()
        except BaseException:
            # Cancelled while waiting: what may still come belongs to nobody.
            connection.abort()
            if connection.stale:
                self._freed()
            raise
        failure = response._failure
        if failure is not None and not response.status:
            raise _Stale if connection.stale else failure
        return response

    def _kept(self) -> _Connection | None:
        """The connection that was used last: the others may then be given up for being idle."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
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
