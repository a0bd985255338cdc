"""MCP servers behind the gateway: tools are listed as policy shows them, calls judged before they go out, results before they come in.

Streamable HTTP, one message at a time: what is sent on is what was read, written anew. A tool `f` of server `s` is `mcp__s__f` to
policy, the name under which models know it elsewhere. Refusals are JSON-RPC errors over 200, denied calls results with `isError`
(G27, G34); an outage is a 503 and lets nothing pass. Server-sent requests reach the client only inside the answer to its own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from wardwright import approvals, receipts
from wardwright.alerts import Alerts, alert_of
from wardwright.approvals import Held
from wardwright.catalog import Catalog, fold, redacted
from wardwright.deployment import Deployment, McpServer, ModelSettings
from wardwright.errors import GovernanceUnavailable, ProviderFailed, SealedMissing, WardwrightError, WireError
from wardwright.gates import Gates, Kept, Verdict
from wardwright.gateway import passes
from wardwright.history import ReceiptRow, scope_key
from wardwright.http.auth import Authenticator
from wardwright.keys import Keyring
from wardwright.metrics import Metrics
from wardwright.overlay import Overlay
from wardwright.policy.arbitrate import transformed
from wardwright.policy.rules import ArgumentSchema, Ruling
from wardwright.providers import Client
from wardwright.providers.url import parse_url
from wardwright.receipts import Judged, Outcome
from wardwright.wire import mcp
from wardwright.wire.body import read_any, write
from wardwright.wire.mcp import Asked, Message, MessageId
from wardwright.wire.refusal import Refusal, RefusalKind
from wardwright.wire.sse import EventReader
from wardwright.wire.turn import Caller, CallItem, DeclaredTool, ResultItem, TextItem, Turn

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Object: TypeAlias = dict[str, Any]

PREFIX: Final = "/mcp/"
TIMEOUT_S: Final = 300.0
"""Until a server begins to answer; tools may take their time."""
IDLE_S: Final = 120.0
POLICY: Final = -32003
UPSTREAM: Final = -32002
UNAVAILABLE: Final = -32001
INVALID: Final = -32600
UNREADABLE: Final = -32700
MAX_LISTED: Final = 4096
"""Definitions remembered of one server."""
MAX_PAGES: Final = 32
_SESSION: Final = "mcp-session-id"
_VERSION: Final = "mcp-protocol-version"
_SENT_ON: Final = (_SESSION, _VERSION)
_METHOD: Final = "mcp-method"
_NAME: Final = "mcp-name"
_PARAM: Final = "mcp-param-"
_NAMED: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Newer clients say in headers what stands in the message too; a server may go by either."""
_WORD: Final = re.compile(r"[\x21-\x7e]{1,512}")
_FIXED: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_WORDS: Final = frozenset({"jsonrpc", "id", "type", "role", "mimeType", "data", "blob", "uri"})
_HIDDEN: Final = "There is no such tool here."
_HELD: Final = "This call waits for an operator's approval ({handle}). Make the same call again once it is approved."
_REJECTED: Final = "An operator has rejected this call. Do something else."


class Hub(Protocol):
    """What all exchanges share."""

    @property
    def gates(self) -> Gates: ...

    @property
    def keyring(self) -> Keyring: ...

    @property
    def overlay(self) -> Overlay: ...

    @property
    def alerts(self) -> Alerts: ...

    @property
    def metrics(self) -> Metrics: ...


class Service(Protocol):
    """The running gateway, as the proxy sees it."""

    @property
    def deployment(self) -> Deployment: ...

    @property
    def authenticator(self) -> Authenticator: ...

    @property
    def gateway(self) -> Hub: ...

    @property
    def client(self) -> Client: ...

    @property
    def environ(self) -> Mapping[str, str]: ...

    @property
    def now_ms(self) -> Callable[[], int]: ...


class _Http(Exception):
    """Ends a request with a status of HTTP: whoever sent it speaks to the gateway, not yet to a server."""

    def __init__(self, status: int, code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


class McpApp:
    """An ASGI application for `/mcp/{server}`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._under_way = 0
        self._listed: dict[str, dict[str, DeclaredTool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        status = 499
        try:
            answer = await self._answer(request)
            status = answer.status_code
        except _Http as told:
            answer = _refused(told)
            status = told.status
        except WireError as error:
            answer = _refused(_Http(400, INVALID, str(error)))
            status = 400
        except WardwrightError as error:
            message = f"Nothing passes while the policy engine cannot rule: {error}"
            answer = _refused(_Http(503, UNAVAILABLE, message))
            status = 503
        except ClientDisconnect:
            return
        finally:
            self._service.gateway.metrics.answered("mcp", status)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        service = self._service
        if request.method not in ("POST", "DELETE"):
            raise _Http(405, INVALID, "Send messages with POST.", {"allow": "POST, DELETE"})
        headers = dict(request.headers.items())
        principal = service.authenticator.authenticate(headers, request.client.host if request.client else "")
        if isinstance(principal, Refusal):
            raise _told(principal)
        deployment = service.deployment
        name = request.scope["path"].removeprefix(PREFIX)
        server = deployment.mcp_servers.get(name)
        if server is None or not principal.may_use(server.model):
            raise _Http(404, INVALID, f"There is no MCP server '{name[:80]}' here.")
        caller = service.authenticator.caller_for(principal, headers)
        if isinstance(caller, Refusal):
            raise _told(caller)
        passed = {key: headers[key] for key in _SENT_ON if key in headers}
        mirrored = {key: value for key, value in headers.items() if key in (_METHOD, _NAME) or key.startswith(_PARAM)}
        if any(_WORD.fullmatch(value) is None for value in passed.values()):
            raise _Http(400, INVALID, f"{_SESSION} and {_VERSION} are words of printable ASCII.")
        if not caller.session_id:
            # A session of the server's, else one for all that this key does there: leaving a header out escapes nothing.
            caller.session_id = f"mcp:{name}:{principal.id}:{passed.get(_SESSION, '')}"
        visit = _Visit(service, deployment, server, caller, passed, mirrored, self._listed.setdefault(server.url, {}))
        if request.method == "DELETE":
            return await visit.end()
        if self._under_way >= deployment.limits.concurrency:
            raise _Http(429, UNAVAILABLE, "Too many requests are under way. Try again.", {"retry-after": "1"})
        self._under_way += 1
        try:
            value = await self._body(request, deployment)
            if isinstance(value, list):
                return await self._batch(visit, cast("list[Any]", value))
            return await self._single(visit, cast("Object", value), "text/event-stream" in headers.get("accept", ""))
        finally:
            self._under_way -= 1

    @staticmethod
    async def _body(request: Request, deployment: Deployment) -> Any:
        limits = deployment.limits
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise _Http(415, UNREADABLE, "Send JSON, with the header Content-Type: application/json.")
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_ms / 1000):
                async for piece in request.stream():
                    size += len(piece)
                    if size > limits.body_bytes:
                        raise _Http(413, UNREADABLE, f"The body is longer than {limits.body_bytes} bytes.")
                    pieces.append(piece)
        except TimeoutError:
            raise _Http(408, UNREADABLE, f"The body took longer than {limits.body_ms / 1000:g} s.") from None
        try:
            return read_any(b"".join(pieces))
        except WireError as error:
            raise _Http(400, UNREADABLE, str(error)) from None

    async def _single(self, visit: _Visit, value: Object, streams: bool) -> Response:
        """One message. A server's stream is passed on as one, if the client reads streams."""
        (message,) = mcp.parse_messages(value, _answering([value]))
        answers = visit.answers(value, message)
        async for answer, last in answers:
            if last or not streams:
                if not last:
                    continue
                return _json(answer, visit)
            return StreamingResponse(
                _events(answer, answers),
                200,
                {**_FIXED, **visit.headers(), "content-type": "text/event-stream"},
            )
        return Response(b"", 202, {**_FIXED, **visit.headers()})

    async def _batch(self, visit: _Visit, values: Sequence[Any]) -> Response:
        """Several messages, one after the other; what they are answered with comes together."""
        found: list[Object] = []
        for value, message in zip(values, mcp.parse_messages(list(values), _answering(values)), strict=True):
            async for answer, last in visit.answers(value, message):
                if last:
                    found.append(answer)
        return _json(found, visit) if found else Response(b"", 202, {**_FIXED, **visit.headers()})


def mcp_app(service: Service) -> McpApp:
    """The proxy for all servers of `mcp_servers`. Host and Origin are checked by whoever calls it."""
    return McpApp(service)


@dataclass(slots=True)
class _Visit:
    """One request of a client to one server."""

    service: Service
    deployment: Deployment
    server: McpServer
    caller: Caller
    sent: Mapping[str, str]
    """Headers of the protocol, passed on as they came."""
    mirrored: Mapping[str, str]
    """Headers that repeat parts of the message; made anew from what was judged."""
    listed: dict[str, DeclaredTool]
    """Definitions that the server gave, by raw name: calls are checked against them."""
    receipt_id: str = ""
    session: str = ""
    """The session that the server gave with its answer."""
    judged: list[Judged] = field(default_factory=list[Judged])
    open: bool = False
    """A call has gone out, and its receipt is still to be written."""

    def headers(self) -> dict[str, str]:
        found = {"x-wardwright-receipt-id": self.receipt_id} if self.receipt_id else {}
        return {**found, _SESSION: self.session} if self.session else found

    # one message

    async def answers(self, value: Object, message: Message) -> AsyncIterator[tuple[Object, bool]]:
        """What the client gets for a message, each with whether it is the last. Raises for what is no answer of a server."""
        self._check_mirrored(value)
        if message.kind != "request" or message.id is None:
            await self._notify(value)
            return
        self.judged, self.open = [], False
        self.receipt_id = receipts.receipt_id(self.service.now_ms(), os.urandom(10))
        asked = Asked(message.method)
        if message.turn is not None:
            gate = await self._called(message.id, message.method, message.turn)
            if not isinstance(gate, Asked):
                yield gate, True
                return
            asked = gate
            self.open = True
        try:
            async for found, parsed in self._ask(value, message.id, asked):
                if parsed.id == message.id and parsed.kind in ("answer", "error"):
                    yield await self._returned(found, parsed, asked), True
                    return
                yield found, False
            raise ProviderFailed("broken", "it ended without an answer")
        except (ProviderFailed, WireError) as error:
            why = f"The MCP server '{self.server.name}' failed: {error}"
            await self._failed(why)
            yield _error(message.id, UPSTREAM, why, {"receipt_id": self.receipt_id} if self.judged else None), True
        except WardwrightError as error:
            await self._failed(str(error))
            raise
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.shield(self._failed("The caller went away."))
            raise

    # a call on its way out

    async def _called(self, number: MessageId, method: str, turn: Turn) -> Asked | Object:
        """What to remember of a call that may go on, or what is answered instead."""
        call = cast("CallItem", turn.items[0])
        raw = call.name
        turn = self._turn(
            turn, items=[CallItem("", self._name(raw), call.arguments)], tools=await self._definition(raw)
        )
        stop = self.service.gateway.overlay.stopped(self.caller, (raw, self._name(raw)))
        hidden = stop is None and self._hidden(raw)
        held, said = await self._held(turn)
        verdict = await self._judge_call(turn, stop, hidden, held, said)
        ruling = verdict.ruling
        if stop is not None:
            return self._refusal(number, "policy_violation", "emergency_stop", stop)
        if hidden:
            return self._denied(number, method, ruling, _HIDDEN)
        if passes(ruling) and ruling.calls[0].status == "allow":
            return Asked(method, self._name(raw), ruling.calls[0].call_id, call.arguments)
        status = ruling.calls[0].status if ruling.calls and ruling.decision != "block" else ruling.decision
        if status == "require_approval":
            text = _REJECTED if said == "rejected" else _HELD.format(handle=self._handle(turn))
            return self._denied(number, method, ruling, text, code=f"approval_{said or 'required'}")
        message = ruling.message or "This was refused by policy."
        if status == "deny_call":
            return self._denied(number, method, ruling, ruling.calls[0].message or message)
        return self._refusal(number, "policy_violation", "policy_violation", message, ruling)

    async def _judge_call(self, turn: Turn, stop: str | None, hidden: bool, held: Held | None, said: str) -> Verdict:
        def keep(verdict: Verdict) -> Kept:
            ruling = verdict.ruling
            self.judged = [Judged(turn, ruling, verdict.at_ms, verdict.elapsed_us)]
            if stop is not None or hidden:
                return Kept(self._receipt(verdict, "blocked"))
            if passes(ruling) and ruling.calls[0].status == "allow":
                return Kept(unseal=approvals.used(held) if held is not None and turn.approvals else ())
            waits = any(call.status == "require_approval" for call in ruling.calls)
            if ruling.decision != "block" and (waits or ruling.decision == "require_approval"):
                seal = () if said == "rejected" else approvals.rows(self._keyring, self._hold(turn, verdict))
                return Kept(self._receipt(verdict, "held"), seal=seal)
            return Kept(self._receipt(verdict, "blocked"))

        try:
            return await self._judge(turn, keep)
        except SealedMissing:
            # Somebody else has just used the approval up: this call waits for its own.
            turn.approvals = ()
            return await self._judge(turn, keep)

    async def _judge(self, turn: Turn, keep: Callable[[Verdict], Kept]) -> Verdict:
        hub = self.service.gateway
        verdict = await hub.gates.judge(self.deployment.plan, turn, keep)
        hub.metrics.decided(verdict.ruling.gate, verdict.ruling.decision, verdict.elapsed_us)
        for finding in verdict.ruling.alerts:
            hub.alerts.emit(alert_of(finding, verdict.ruling, turn, verdict.at_ms, self.receipt_id))
        return verdict

    # approvals

    @property
    def _keyring(self) -> Keyring:
        return self.service.gateway.keyring

    def _digest(self, turn: Turn) -> str:
        call = cast("CallItem", turn.items[0])
        # Of this principal: what was approved for one is not done for another.
        plain = orjson.dumps([self.caller.principal, self.server.name, call.name, call.arguments])
        return hmac.digest(self._keyring.stable_key("request"), plain, "sha256").hex()[:32]

    def _handle(self, turn: Turn) -> str:
        return approvals.handle_of(self._keyring, scope_key("session_id", self.caller), self._digest(turn))

    async def _held(self, turn: Turn) -> tuple[Held | None, str]:
        """What was held of just this call, and what was decided about it; an approval is put on the turn."""
        if self.server.model not in self.deployment.approving:
            return None, ""
        gates, scope = self.service.gateway.gates, scope_key("session_id", self.caller)
        handle, now = self._handle(turn), self.service.now_ms()
        held = await gates.ask(approvals.find, gates.store, self._keyring, scope, handle, now)
        if held is None or held.plan_hash != self.deployment.plan.plan_hash:
            return None, ""  # under another plan it was not approved
        made = await gates.ask(approvals.verdict, gates.store, self._keyring, scope, handle, now, held)
        if made.status == "approved":
            turn.approvals = held.keys
        return held, made.status

    def _hold(self, turn: Turn, verdict: Verdict) -> Held:
        ruling, call = verdict.ruling, cast("CallItem", turn.items[0])
        asking = [
            one for one in ruling.findings if one.effect == "require_approval" and one.enforced and not one.lifted
        ]
        return Held(
            self._handle(turn),
            scope_key("session_id", self.caller),
            "mcp",
            self.server.model,
            False,
            self._digest(turn),
            ruling.plan_hash,
            self.caller.principal,
            tuple(dict.fromkeys(one.key for one in asking)),
            (
                {
                    "name": call.name,
                    "arguments": redacted(self._catalog.resolve(call.name).redact, call.arguments),
                    "rule_id": asking[0].rule_id if asking else ruling.rule_id,
                    "message": approvals.unsaid(self._catalog, ruling, ruling.message),
                },
            ),
            None,
            self.receipt_id,
            verdict.at_ms + self.deployment.limits.approval_expiry_ms,
            held_at_ms=verdict.at_ms,
            message=approvals.unsaid(self._catalog, ruling, ruling.message),
        )

    # to the server and back

    async def _send(self, method: str, value: Object | None) -> Any:
        try:
            url = parse_url(self.server.url)
            headers = [("accept", "application/json, text/event-stream"), ("content-type", "application/json")]
            headers += [*self.sent.items(), *self._mirrors(value or {})]
            body = b"" if value is None else write(value)
            for header, name in self.server.headers_env.items():
                if name not in self.service.environ:
                    raise ProviderFailed("connect", f"the environment variable {name} is not set")
                headers.append((header, self.service.environ[name]))
            return await self.service.client.request(method, url, headers, body, timeout=TIMEOUT_S, idle=IDLE_S)
        except WireError:
            raise
        except ValueError as error:
            raise ProviderFailed("connect", str(error)) from None

    def _mirrors(self, value: Object) -> list[tuple[str, str]]:
        if not self.mirrored or "method" not in value:
            return []
        method, params = value["method"], cast("Object", value.get("params") or {})
        found = [(_METHOD, method)]
        if method in _NAMED and _NAMED[method] in params:
            found.append((_NAME, _encoded(str(params[_NAMED[method]]))))
        if method == "tools/call" and params.get("name"):
            said = set(_scalars(params.get("arguments")))
            found += [
                (name, given)
                for name, given in self.mirrored.items()
                if name.startswith(_PARAM) and _decoded(given) in said
            ]
        return found

    def _check_mirrored(self, value: Object) -> None:
        """What headers say is what the message says, or nothing goes on: rules have read the message alone."""
        wrong = self.mirrored.keys() - {name for name, _ in self._mirrors(value)}
        truth = dict(self._mirrors(value))
        wrong |= {name for name in (_METHOD, _NAME) if name in self.mirrored and self.mirrored[name] != truth.get(name)}
        if wrong:
            raise WireError(f"the header '{sorted(wrong)[0]}' says something else than the message")

    async def _notify(self, value: Object) -> None:
        try:
            response = await self._send("POST", value)
        except ProviderFailed as error:
            raise _Http(502, UPSTREAM, f"The MCP server '{self.server.name}' failed: {error}") from None
        response.close()
        self._check(response.status)

    def _check(self, status: int) -> None:
        if status == 404 and _SESSION in self.sent:
            raise _Http(404, UPSTREAM, "The server has ended this session. Begin a new one.")
        if status >= 300:
            raise _Http(502, UPSTREAM, f"The MCP server '{self.server.name}' answered with status {status}.")

    async def _ask(self, value: Object, number: MessageId, asked: Asked) -> AsyncIterator[tuple[Object, Message]]:
        """Every message of the server's answer, in order."""
        response = await self._send("POST", value)
        limit = self.deployment.limits.held_bytes
        known = {number: asked}
        try:
            if response.status == 404 and _SESSION in self.sent:
                await self._failed("The server has ended this session.")
                self._check(404)
            if 400 <= response.status < 500 and not response.streamed:
                for found in _each(await response.read(limit)):
                    parsed = _parsed(found, known)
                    if parsed.kind == "error" and parsed.id == number:
                        yield found, parsed
                        return
            if response.status != 200:
                raise ProviderFailed("status", f"it answered with status {response.status}")
            self.session = session if _WORD.fullmatch(session := response.headers.get(_SESSION, "")) else ""
            if not response.streamed:
                for found in _each(await response.read(limit)):
                    yield found, _parsed(found, known)
                return
            reader = EventReader()
            size = 0
            async for piece in response.chunks():
                size += len(piece)
                if size > limit:
                    raise ProviderFailed("broken", f"the answer has more than {limit} bytes")
                for event in reader.feed(piece):
                    if event.data.strip():
                        for found in _each(event.data):
                            yield found, _parsed(found, known)
        finally:
            response.close()

    async def end(self) -> Response:
        """The client ends the server's session."""
        try:
            response = await self._send("DELETE", None)
        except ProviderFailed as error:
            raise _Http(502, UPSTREAM, f"The MCP server '{self.server.name}' failed: {error}") from None
        response.close()
        if response.status == 405:
            raise _Http(405, INVALID, "The server does not let sessions be ended.", {"allow": "POST"})
        self._check(response.status)
        return Response(b"", 204, _FIXED)

    # an answer on its way in

    async def _returned(self, value: Object, message: Message, asked: Asked) -> Object:
        """The answer as policy lets it pass."""
        if message.turn is None:
            return value
        turn, number = message.turn, cast("MessageId", message.id)
        if turn.gate == "request":
            return await self._described(value, number, turn)
        turn = self._turn(turn, tools=self.judged[0].turn.tools if self.judged else ())

        def keep(verdict: Verdict) -> Kept:
            judged = Judged(turn, verdict.ruling, verdict.at_ms, verdict.elapsed_us)
            self.judged = [*self.judged[:1], judged]
            return Kept(self._receipt(verdict, "blocked" if verdict.ruling.decision == "block" else "released"))

        ruling = (await self._judge(turn, keep)).ruling
        self.open = False
        if ruling.decision == "block":
            why = ruling.message or "The result was refused by policy."
            return self._refusal(number, "policy_violation", "policy_violation", why, ruling)
        if ruling.calls and ruling.calls[0].status != "allow":
            text = ruling.calls[0].message or "The result was withheld."
            return self._denied(number, asked.method, ruling, text)
        result = cast("ResultItem", turn.items[-1])
        if not ruling.transforms:
            return value

        def change(text: str) -> str:
            return transformed(ruling, len(turn.items) - 1, text)

        text, whole = change(result.content), "".join(result.parts)
        if change(whole) != whole:
            text = change(whole)  # words that only blocks read on end make
        elif text == result.content:
            return value
        # In place where that leaves nothing to change, so that a structured result keeps its structure.
        kept = cast("Object", _mapped(value, change))
        again = cast("Turn", _parsed(kept, {number: asked}).turn).items[-1]
        if isinstance(again, ResultItem) and all(change(one) == one for one in (again.content, "".join(again.parts))):
            return kept
        return _rewritten(value, number, asked.method, text, result.is_error)

    async def _described(self, value: Object, number: MessageId, turn: Turn) -> Object:
        """What a server says of itself: its tools, or its instructions."""
        self._remember(turn.tools)
        turn = self._turn(turn, tools=[replace(tool, name=self._name(tool.name)) for tool in turn.tools])

        def keep(verdict: Verdict) -> Kept:
            self.judged = [Judged(turn, verdict.ruling, verdict.at_ms, verdict.elapsed_us)]
            return Kept(self._receipt(verdict, "released" if passes(verdict.ruling) else "blocked"))

        ruling = (await self._judge(turn, keep)).ruling
        if not passes(ruling):
            message = ruling.message or "This was refused by policy."
            return self._refusal(number, "policy_violation", "policy_violation", message, ruling)
        result: Object = dict(value["result"])
        if turn.items and ruling.transforms:
            said = cast("TextItem", turn.items[0])
            result["instructions"] = transformed(ruling, 0, said.text)
        if "tools" in result and turn.tools:
            tools = cast("list[Object]", result["tools"])
            names = [tool.get("name", "") for tool in tools]
            stopped = self.service.gateway.overlay.stopped_tools(
                self.caller, (*names, *(self._name(name) for name in names))
            )
            gone = {*ruling.stripped, *stopped}
            result["tools"] = [
                tool
                for tool, name in zip(tools, names, strict=True)
                if name not in gone and self._name(name) not in gone and not self._hidden(name)
            ]
        return {**value, "result": result}

    # definitions

    def _remember(self, tools: Sequence[DeclaredTool]) -> None:
        for tool in tools:
            self.listed.pop(tool.name, None)
            self.listed[tool.name] = replace(tool, name=self._name(tool.name))
        while len(self.listed) > MAX_LISTED:
            del self.listed[next(iter(self.listed))]

    async def _definition(self, raw: str) -> tuple[DeclaredTool, ...]:
        """How the server declares a tool. It is asked only where a rule needs it and no client of this process has."""
        if raw not in self.listed and any(
            isinstance(rule, ArgumentSchema) and rule.schema is None
            for rule in self.deployment.rules[self.server.model].values()
        ):
            try:
                await self._list()
            except (ProviderFailed, WireError):
                return ()  # then nothing is known of it, which no rule takes for good
        found = self.listed.get(raw)
        return () if found is None else (found,)

    async def _list(self) -> None:
        params: Object = {}
        for page in range(MAX_PAGES):
            number = f"wardwright-{page}"
            asking = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": params}
            async for value, message in self._ask(asking, number, Asked("tools/list")):
                if message.id == number and message.kind == "answer":
                    self._remember(() if message.turn is None else message.turn.tools)
                    params = {"cursor": value["result"].get("nextCursor")}
            if not params.get("cursor"):
                return

    # parts

    def _name(self, raw: str) -> str:
        return f"mcp__{self.server.name}__{raw}"

    def _turn(self, turn: Turn, **changes: Any) -> Turn:
        return replace(turn, model=self.server.model, caller=self.caller, **changes)

    @property
    def _settings(self) -> ModelSettings:
        return self.deployment.models[self.server.model]

    @property
    def _catalog(self) -> Catalog:
        return self.deployment.plan.models[self.server.model].catalog

    def _hidden(self, raw: str) -> bool:
        """Whether mediation hides the tool, under either of its names."""
        mediation = self._settings.mediation
        if mediation.mode != "patch":
            return False
        names = (fold(raw), fold(self._name(raw)))
        return any(rule.action == "hide" and any(map(rule.fits, names)) for rule in mediation.rules)

    def _receipt(self, verdict: Verdict, status: receipts.Status) -> ReceiptRow:
        return self._built(status, verdict.key, "")

    def _built(self, status: receipts.Status, key: bytes, error: str) -> ReceiptRow:
        rules = self.deployment.rules[self.server.model]
        outcome = Outcome(status, 200, f"mcp:{self.server.name}", error=error)
        built = receipts.build(
            self.receipt_id, self.judged, outcome, rules, key, capture=self._settings.capture, catalog=self._catalog
        )
        return receipts.record(built)

    async def _failed(self, why: str) -> None:
        """What went out and then came to nothing is recorded all the same."""
        if not self.open:
            return
        self.open = False
        key = self._keyring.session_key(scope_key("session_id", self.caller))
        try:
            await self.service.gateway.gates.record(Kept(self._built("failed", key, why)))
        except GovernanceUnavailable as error:
            self.service.gateway.metrics.failed(error)

    def _refusal(
        self, number: MessageId, kind: RefusalKind, code: str, message: str, ruling: Ruling | None = None
    ) -> Object:
        self.service.gateway.metrics.refused(kind)
        data: Object = {"type": kind, "code": code, "receipt_id": self.receipt_id}
        if ruling is not None:
            data |= {"rule_id": ruling.rule_id, "blocked_tools": list(ruling.blocked_tools)}
        return _error(number, POLICY, message, data)

    def _denied(
        self, number: MessageId, method: str, ruling: Ruling, text: str, *, code: str = "policy_violation"
    ) -> Object:
        """A denied call is a failed result, so that the model reads why; what has no such result is refused."""
        kind: RefusalKind = "policy_violation" if code == "policy_violation" else "approval_required"
        if method != "tools/call":
            return self._refusal(number, kind, code, text, ruling)
        self.service.gateway.metrics.refused(kind)
        meta = {"wardwright/code": code, "wardwright/receipt_id": self.receipt_id, "wardwright/rule_id": ruling.rule_id}
        result = {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}
        return {"jsonrpc": "2.0", "id": number, "result": result}


def _answering(values: Sequence[Any]) -> dict[MessageId, Asked]:
    """A client answers what a server asked it: nothing of that is the model's, so any such answer passes."""
    found: dict[MessageId, Asked] = {}
    for value in values:
        if isinstance(value, dict) and "method" not in value:
            number: Any = cast("Object", value).get("id")
            if isinstance(number, (str, int)):
                found[number] = Asked("elicitation/create")
    return found


def _scalars(value: Any) -> Iterator[str]:
    """Every plain value of a call's arguments, as a header would say it."""
    if isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, (str, int, float)):
        yield str(value)
    elif isinstance(value, dict):
        for inner in cast("Object", value).values():
            yield from _scalars(inner)


def _encoded(text: str) -> str:
    """Text as the value of a header, as the protocol writes what a header cannot hold."""
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _decoded(value: str) -> str | None:
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _each(data: bytes) -> list[Object]:
    value = read_any(data)
    return cast("list[Object]", value if isinstance(value, list) else [value])


def _parsed(value: Object, asked: Mapping[MessageId, Asked]) -> Message:
    (message,) = mcp.parse_messages(value, asked)
    return message


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """With every text in it changed, but for words of the protocol."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("Object", value).items()
        return {name: inner if name in _WORDS else _mapped(inner, change) for name, inner in entries}
    return value


def _rewritten(value: Object, number: MessageId, method: str, text: str, failed: bool | None) -> Object:
    """The answer with other words: all of them in one place, so that nothing of the old ones is left in another."""
    if "error" in value:
        return _error(number, value["error"].get("code", UPSTREAM), text)
    block = {"type": "text", "text": text}
    if method == "tools/call":
        result: Object = {"content": [block], "isError": bool(failed)}
    elif method == "prompts/get":
        result = {"messages": [{"role": "user", "content": block}]}
    else:
        uris = [str(one.get("uri", "")) for one in value["result"].get("contents", ())]
        result = {"contents": [{"uri": uris[0] if uris else "", "text": text}]}
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _error(number: MessageId | None, code: int, message: str, data: Object | None = None) -> Object:
    error: Object = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": number, "error": error if data is None else {**error, "data": data}}


def _told(refusal: Refusal) -> _Http:
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    return _Http(refusal.status, UNAVAILABLE, refusal.message, headers)


def _refused(told: _Http) -> Response:
    body = orjson.dumps(_error(None, told.code, told.message))
    return Response(body, told.status, {**_FIXED, **told.headers, "content-type": "application/json"})


def _json(value: Any, visit: _Visit) -> Response:
    try:
        body = write(value)
    except WireError as error:
        raise _Http(502, UPSTREAM, f"The MCP server '{visit.server.name}' failed: {error}") from None
    return Response(body, 200, {**_FIXED, **visit.headers(), "content-type": "application/json"})


async def _events(first: Object, rest: AsyncIterator[tuple[Object, bool]]) -> AsyncIterator[bytes]:
    try:
        yield _event(first)
        async for answer, _ in rest:
            yield _event(answer)
    except WardwrightError as error:
        # Headers are out: the stream ends with an error that answers nothing.
        yield _event(_error(None, UNAVAILABLE, f"This was cut short: {error}"))


def _event(value: Object) -> bytes:
    return b"event: message\ndata: " + write(value) + b"\n\n"
