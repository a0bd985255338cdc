"""The door: from an ASGI scope to one exchange. Decides by path which wire speaks, who asks and how much is read; rules on nothing.

On the path of a model's request there is no framework and no middleware; everything else goes to the operators' application.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

import orjson

from wardwright.errors import WireError, raised_at
from wardwright.exchange import FAILED, Exchange, Header
from wardwright.http import auth, guard
from wardwright.http.auth import Principal
from wardwright.http.service import Service
from wardwright.metrics import Metrics
from wardwright.wire import anthropic, body, edit, responses
from wardwright.wire.growth import Given, Transcripts
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import WireName

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CALLER: Final = "wardwright.caller"


class Caller(Protocol):
    """Whoever sent a request, as our own server has it among the `extensions` of a scope: what is known is told without a wait, a
    timer or a task that listens."""

    head: int
    """At most as many bytes has the head of his request."""

    def body(self) -> bytes | None:
        """The body, when all of it is here and none of it was received; None: it must be received."""
        ...

    def on_hang_up(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the caller leaves before his answer is whole; soon, if he has left already."""
        ...

    def answer(self, status: int, lines: bytes, body: bytes) -> bool:
        """All of the answer. `lines` are its headers as they go over the wire, the length of the body among them. False: it is not
        taken, and must be sent as any other."""
        ...


PATHS: Final[Mapping[str, WireName]] = {
    "/v1/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}
_PARSE: Final[Mapping[WireName, Callable[[dict[str, Any]], Any]]] = {
    "responses": responses.parse_request,
    "anthropic": anthropic.parse_request,
}
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_WHOLE: Final = b"".join(
    [*(b"%b: %b\r\n" % one for one in (_JSON, (b"content-length", b"%d"), *guard.API_HEADERS)), b"%b"]
)
"""The headers of a whole answer, as lines: its length, and what is its own."""
_APPROVAL: Final = "x-wardwright-approval"
_BEGINNING: Final = 1024

_BETA: Final = "anthropic-beta"

log = logging.getLogger("wardwright")


_NAMES: Final[Mapping[bytes, str]] = {name.encode(): name for name in (*auth.HEADERS, *guard.HEADERS, _APPROVAL, _BETA)}
"""The headers that are read as text; a client sends many more."""


class Sink:
    """The caller's side of one exchange: what he is sent, and whether he still waits for it. When the server tells that he hung up,
    the exchange ends."""

    __slots__ = ("_caller", "_further", "_gone", "_send", "_task", "began", "open", "status")

    def __init__(self, send: Send, caller: Caller | None, further: Sequence[Header] = ()) -> None:
        self._send = send
        self._caller = caller
        self._further = further
        self._task: asyncio.Task[Any] | None = None
        self._gone = False
        self.status = 0
        self.open = True
        self.began: float | None = None
        """When the first byte of a stream went out."""

    def put(self, lines: bytes, data: bytes) -> bool:
        caller = self._caller
        if caller is None or self._further or not caller.answer(200, _WHOLE % (len(data), lines), data):
            return False
        self.open = False
        self.status = 200
        return True

    async def answer(self, status: int, headers: Sequence[Header], data: bytes) -> None:
        self.open = False
        self.status = status
        sent = [_JSON, (b"content-length", b"%d" % len(data)), *guard.API_HEADERS, *self._further, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": data})

    # Whether he is there.

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """The exchange begins, in the task that runs this."""
        self._task = asyncio.current_task(loop)
        if self._caller is not None:
            self._caller.on_hang_up(self.leave)

    def left(self) -> bool:
        """Whether the exchange was cancelled because he left, which ends here; else it is somebody else's to know."""
        if not self._gone or self._task is None:
            return False
        self._task.uncancel()
        return True

    def ended(self) -> None:
        """The exchange has ended."""
        self._task = None  # who leaves now leaves nothing behind

    def leave(self) -> None:
        if self._task is not None and not self._gone:
            self._gone = True
            self._task.cancel()

    # A comment may be due while the answer ends: nothing begins or follows then.

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        if self.open:
            self.began = monotonic()
            self.status = status
            sent = [_EVENTS, *guard.API_HEADERS, *self._further, *headers]
            await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def write(self, data: bytes) -> None:
        if not self.open:
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        if self.open:
            self.open = False
            await self._send({"type": "http.response.body", "body": b""})


class App:
    """The ASGI application. `others` serves whatever is no model's request. Made in the event loop that runs it."""

    def __init__(self, service: Service, others: AsgiApp) -> None:
        self.service = service
        self.gateway = service.gateway
        self._others = others
        self._under_way = 0
        self._of_principal: dict[str, int] = {}
        self._transcripts = Transcripts()
        self._loop = asyncio.get_running_loop()  # asking for it is a system call

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        wire = PATHS.get(scope["path"]) if scope["type"] == "http" else None
        if wire is None:
            return self._others(scope, receive, send)
        return self._model(wire, scope, receive, send)

    async def _model(self, wire: WireName, scope: Scope, receive: Receive, send: Send) -> None:
        service, metrics = self.service, self.gateway.metrics
        sent: dict[bytes, bytes] = dict(scope["headers"])
        headers: dict[str, str] = {}
        for header, value in scope["headers"]:
            if header in _NAMES:
                headers[_NAMES[header]] = value.decode("latin-1")
        if scope["method"] == "OPTIONS":
            await preflight(send, headers, service.hosts)
            return
        extensions = scope.get("extensions")  # another server may have none, and say so
        sender: Caller | None = extensions.get(CALLER) if extensions else None
        sink = Sink(send, sender, guard.cors(headers, service.hosts) if "origin" in headers else ())
        principal = self._admitted(scope, sent, sender, headers)
        if isinstance(principal, Refusal):
            await self._told(wire, sink, principal)
            return
        name, under_way = principal.id, self._of_principal
        self._under_way += 1
        under_way[name] = under_way.get(name, 0) + 1
        since = monotonic()
        try:
            raw = None if sender is None else sender.body()
            if raw is None:
                limits = self.gateway.live.deployment.limits
                declared = sent.get(b"content-length", b"")
                raw = await read_body(receive, declared, limits.body_bytes, limits.body_ms / 1000)
            exchange = raw if isinstance(raw, Refusal) else self._read(wire, scope, sink, headers, principal, raw)
            if isinstance(exchange, Refusal):
                await self._told(wire, sink, exchange)
                return
            sink.attend(self._loop)
            attendance: _Attendance | None = None
            if sender is None or exchange.turn.stream:
                attendance = _Attendance(exchange, receive, sender, sink, self._loop, metrics)
            try:
                await exchange.run()
            except asyncio.CancelledError:
                if not sink.left():
                    raise
            finally:
                sink.ended()
                if attendance is not None:
                    attendance.end()
        except Exception as error:
            # INVARIANT: G19, what fails before anything is judged passes nothing, and is told as an outage.
            metrics.failed(error)
            if sink.status:
                raise  # the server ends what was begun
            log.error("request failed", extra={"error": type(error).__name__, "where": raised_at(error)})
            await self._told(wire, sink, Refusal(503, "governance_unavailable", "governance_unavailable", FAILED))
        finally:
            self._under_way -= 1
            left = under_way[name] - 1
            if left:
                under_way[name] = left
            else:
                del under_way[name]
            metrics.answered(wire, sink.status, monotonic() - since)
            if sink.began is not None:
                metrics.first_byte(wire, sink.began - since)

    def _admitted(
        self, scope: Scope, sent: Mapping[bytes, bytes], sender: Caller | None, headers: Mapping[str, str]
    ) -> Principal | Refusal:
        """Who asks, or why nothing more of it is read."""
        service, limits = self.service, self.gateway.live.deployment.limits
        size = limits.header_bytes + 1 if sender is None else sender.head
        if size > limits.header_bytes:  # it may be less: what came with the head may be counted
            size = guard.size(scope["headers"])
        refusal = guard.check_sized(scope, sent, size, service.hosts, limits.header_bytes, False)
        if refusal is not None:
            return refusal
        if scope["method"] != "POST":
            return Refusal(405, "invalid_request_error", "method_not_allowed", "Send this with POST.")
        principal = service.authenticator.authenticate(headers, _peer(scope))
        if isinstance(principal, Refusal):
            return principal
        most = principal.concurrency
        if self._under_way >= limits.concurrency or (most and self._of_principal.get(principal.id, 0) >= most):
            message = "Too many requests are under way. Try again in a moment."
            return Refusal(429, "rate_limit_error", "too_many_requests", message)
        return principal

    def _read(
        self, wire: WireName, scope: Scope, sink: Sink, headers: Mapping[str, str], principal: Principal, raw: bytes
    ) -> Exchange | Refusal:
        """The exchange that a body asks for, or why there is none."""
        gateway, authenticator = self.gateway, self.service.authenticator
        live = gateway.live
        if len(raw) > live.deployment.limits.body_bytes:
            return _too_long(live.deployment.limits.body_bytes)
        caller = authenticator.caller_for(principal, headers)
        if isinstance(caller, Refusal):
            return caller
        try:
            if wire == "chat_completions":
                # Of those who do not name their session: that of another conversation that begins alike is only looked at in vain.
                given, turn = self._transcripts.read((principal.id, caller.session_id or raw[:_BEGINNING]), raw)
            else:
                read = body.read(raw)
                turn = _PARSE[wire](read)
                given = Given.whole(raw, read, turn.items)
        except WireError as error:
            return Refusal(error.status, "invalid_request_error", error.code, str(error))
        part = live.deployment.plan.model(turn.model)
        if part is None or not principal.may_use(turn.model):
            known = sorted(name for name in live.deployment.plan.models if principal.may_use(name))
            message = f"There is no model '{turn.model[:64]}' here. Known: {', '.join(known) or 'none'}."
            return Refusal(404, "not_found_error", "model_not_found", message)
        notes = authenticator.refused_claims(principal, headers) if principal.refused else ()
        trusted = False
        if turn.claims is not None:
            trust = authenticator.trust(principal, headers, raw, _peer(scope))
            trusted = trust.trusted
            if trust.refused:
                notes = (*notes, trust.refused)
        forwarded: tuple[tuple[str, str], ...] = ()
        if wire == "anthropic" and (beta := headers.get(_BETA)) is not None:
            # What it switches on stands in the body, field by field, and was read there.
            forwarded = ((_BETA, beta),)
        approval = headers.get(_APPROVAL, "")
        return Exchange(
            gateway, live, part, self._loop, sink, wire, given, turn, caller, trusted, approval, notes, forwarded
        )

    async def _told(self, wire: WireName, sink: Sink, refusal: Refusal) -> None:
        self.gateway.metrics.refused(refusal.kind)
        headers = [(b"retry-after", b"1")] if refusal.status == 429 else []
        await sink.answer(refusal.status, headers, orjson.dumps(edit.of(wire).refusal(refusal)))


async def preflight(send: Send, headers: Mapping[str, str], hosts: guard.Hosts) -> None:
    """Answers a browser that asks whether a page may ask."""
    allowed = guard.preflight(headers, hosts)
    sent = [*guard.API_HEADERS, *(allowed or ())]
    await send({"type": "http.response.start", "status": 204 if allowed is not None else 403, "headers": sent})
    await send({"type": "http.response.body", "body": b""})


async def read_body(receive: Receive, declared: bytes, limit: int, seconds: float) -> bytes | Refusal:
    """The body, or why it is not read: too long (as far as its length was declared, at once), too slow, or gone."""
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        return _too_long(limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while (message := await receive())["type"] == "http.request":
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limit:
                    return _too_long(limit)
                if not message.get("more_body"):
                    return b"".join(pieces)
    except TimeoutError:
        return Refusal(408, "invalid_request_error", "body_too_slow", f"The body took longer than {seconds:g} s.")
    return Refusal(400, "invalid_request_error", "body_cut", "The connection ended before the body did.")


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _too_long(limit: int) -> Refusal:
    message = f"The body is longer than {limit} bytes. Send less, or ask the operator to raise limits.body_bytes."
    return Refusal(413, "invalid_request_error", "body_too_large", message)


class _Attendance:
    """One who waits for a stream, and is told that it lives when nothing comes; or whose server cannot tell of hanging up, and is asked:
    for a whole answer only once it takes long."""

    __slots__ = (
        "_comment",
        "_exchange",
        "_loop",
        "_metrics",
        "_quiet",
        "_receive",
        "_sink",
        "_stream",
        "_timer",
        "_watching",
    )

    def __init__(
        self,
        exchange: Exchange,
        receive: Receive,
        sender: Caller | None,
        sink: Sink,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
    ) -> None:
        self._sink = sink
        self._exchange = exchange
        self._receive = receive
        self._loop = loop
        self._metrics = metrics
        self._quiet = exchange.live.deployment.limits.keep_alive_ms / 1000
        self._stream = exchange.turn.stream
        self._watching: asyncio.Task[None] | None = None
        self._comment: asyncio.Task[None] | None = None
        if self._stream:
            metrics.stream_opened()
            if sender is None:
                self._watching = loop.create_task(self._watch())
        self._timer = loop.call_later(self._quiet, self._remind)

    def end(self) -> None:
        """The exchange has ended."""
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # its end leads back here; what nobody holds need not be collected
        if self._comment is not None:
            self._comment.cancel()  # it may wait for a caller who reads nothing
        if self._stream:
            self._metrics.stream_closed()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._sink.leave()

    def _remind(self) -> None:
        if not self._stream:
            self._watching = self._loop.create_task(self._watch())
            return
        if self._comment is None or self._comment.done():  # whoever reads nothing needs no second one
            self._comment = self._loop.create_task(self._exchange.keep_alive())
        self._timer = self._loop.call_later(self._quiet, self._remind)


__all__ = ["CALLER", "PATHS", "App", "AsgiApp", "Caller", "Sink", "read_body"]
