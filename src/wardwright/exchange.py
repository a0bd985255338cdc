"""One exchange: a request judged, sent on, its reply judged and released. The only place where the gateway's effects happen, in order.

    gate(request) → splice → route → mediate → provider → gate(reply) → server tools, gate(result) → again, or release

Invariants (tests cite the numbers):
 X1. Nothing reaches a provider before the request's ruling is committed, nothing of a reply that policy may refuse reaches the
     caller before the reply's ruling is: text passes at once only if no rule reads it, calls never do.
 X2. Every exchange that was judged ends in exactly one receipt, committed before the caller's answer ends.
 X3. What is sent on is what was read, written anew; never the caller's bytes.
 X4. A provider that fails is replaced within the ruling, and only while nothing has been released.
 X5. A refusal after the first released byte is an error event of the caller's wire, and the end.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import orjson

from wardwright import approvals, mediation, quiet, receipts, routing
from wardwright.alerts import Alerts, alert_of
from wardwright.approvals import Held, unsaid
from wardwright.catalog import redacted
from wardwright.deployment import Deployment, ModelSettings
from wardwright.errors import (
    GovernanceUnavailable,
    ProviderFailed,
    SealedMissing,
    StoreUnavailable,
    WardwrightError,
    WireError,
    raised_at,
)
from wardwright.gates import NOTHING, TRIES, Gates, Keep, Kept, Verdict
from wardwright.gateway import passes
from wardwright.history import EMPTY_SCOPE, ReceiptRow, RegisterKey, scope_key
from wardwright.keys import Keyring, SealBroken
from wardwright.metrics import Metrics
from wardwright.overlay import Overlay
from wardwright.policy.arbitrate import transformed
from wardwright.policy.compile import ModelPlan, Target
from wardwright.policy.rules import CallRuling, Finding, Route, Ruling
from wardwright.providers import Provider, Response
from wardwright.receipts import Judged, Outcome
from wardwright.server_tools import ServerContext, ServerTools
from wardwright.sessions import Sessions
from wardwright.store import SealedRow
from wardwright.streaming import Relay, StreamTranslator, relay_for, render
from wardwright.wire import anthropic, body, chat_completions, edit, responses, translate
from wardwright.wire.edit import Change, Splice, SplicedCall, ToolAnswer
from wardwright.wire.growth import Given
from wardwright.wire.refusal import Refusal, RefusalKind
from wardwright.wire.turn import Caller, CallItem, ResultItem, TextItem, Turn, WireName

log = logging.getLogger("wardwright")

SPLICES: Final[RegisterKey] = ("gateway", "splices")
"""The session's register that names its splices: a call of each released reply that others were taken out of."""
HELD: Final[RegisterKey] = ("gateway", "held")
"""Handles of what the session has waiting, so that a session without any looks for none."""
ANYWHERE: Final = Route()
_UNMEDIATED: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_NAMES: Final[frozenset[str]] = frozenset()
MAX_SPLICES: Final = 64
MAX_HELD: Final = 16
MAX_ASIDE: Final = 16
"""Calls of one reply that may begin to wait for an approval each of its own."""
MAX_SHOWN: Final = 4_000
"""Characters of a request that an approver sees."""

_WIRES: Final[Mapping[str, Any]] = {
    "chat_completions": chat_completions,
    "responses": responses,
    "anthropic": anthropic,
}

_UNDECIDED: Final[Mapping[str, str]] = {
    "pending": "This still waits for an operator's approval. Send the same request again later.",
    "rejected": "This was rejected by an operator. Do something else.",
}

REJECTED_CALL: Final = "An operator rejected this call. Do not make it again; do something else."
TOO_MANY_CALLS: Final = "Too many calls of this answer need an operator's approval. Make fewer at once."

_USED: Final = (
    "Nothing is held for this request any more: it was released just now. Send it without the handle to ask anew."
)
FAILED: Final = "The gateway failed, so nothing passes. Its operator finds the reason in the log."

_NAME: Final = attrgetter("name")

Header: TypeAlias = tuple[bytes, bytes]
Next: TypeAlias = Literal["release", "again", "reask", "hold", "refuse"]


class Sink(Protocol):
    """Where the answer goes: the HTTP layer's side of one request."""

    open: bool
    """Until its end has been sent."""

    def put(self, lines: bytes, data: bytes) -> bool:
        """All of what passed, without a wait; `lines` are headers as they go over the wire. False: nothing was done, answer it."""
        ...

    async def answer(self, status: int, headers: Sequence[Header], data: bytes) -> None:
        """All of it at once."""
        ...

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """A stream begins."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Live:
    """What is in force. Replaced whole, so that an exchange sees one state from its begin to its end."""

    deployment: Deployment
    providers: Mapping[str, Provider]
    server_tools: Mapping[str, ServerTools]


@dataclass(slots=True)
class Gateway:
    """What all exchanges share."""

    live: Live
    gates: Gates
    sessions: Sessions
    keyring: Keyring
    overlay: Overlay
    alerts: Alerts
    metrics: Metrics
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]


class Refused(Exception):
    """Ends an exchange: what the caller is told, and what its receipt says."""

    def __init__(self, refusal: Refusal, status: receipts.Status, error: str = "") -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.status: receipts.Status = status
        self.error = error or refusal.message


class _Lifted(Exception):
    """The request that waits has been approved."""

    def __init__(self, held: Held) -> None:
        super().__init__(held.handle)
        self.held = held


class _Granted(Exception):
    """Calls of a reply have been approved, each by itself."""

    def __init__(self, held: Sequence[Held]) -> None:
        super().__init__(*(one.handle for one in held))
        self.held = tuple(held)


@dataclass(slots=True)
class _Round:
    """A reply that was answered by us: what the next request to a provider repeats."""

    reply: dict[str, Any]
    answers: Mapping[int, ToolAnswer]
    change: Change | None
    """What its texts become before the caller sees them."""


class _Reply:
    """What a provider said, in the caller's wire."""

    __slots__ = ("_said", "elapsed_ms", "held", "target", "turn")

    def __init__(
        self, said: dict[str, Any] | Relay, turn: Turn, target: Target, elapsed_ms: int, held: Held | None = None
    ) -> None:
        self._said = said
        self.turn = turn
        self.target = target
        self.elapsed_ms = elapsed_ms
        self.held = held
        """The approval it was held for, which has come; nobody was asked again."""

    @property
    def body(self) -> dict[str, Any]:
        """The whole of it, to be changed. Of a stream it is put together only if somebody wants it."""
        said = self._said
        if not isinstance(said, dict):
            said = self._said = said.body()
        return said


class Exchange:
    """Lives one request."""

    __slots__ = (
        "approval",
        "asked",
        "attempts",
        "caller",
        "claims_trusted",
        "decided",
        "forwarded",
        "gateway",
        "given",
        "granted",
        "held",
        "hidden",
        "injected",
        "judged",
        "kept",
        "key",
        "lifted",
        "live",
        "loop",
        "mediated",
        "notes",
        "part",
        "receipt_id",
        "relay",
        "reply",
        "request_digest",
        "rounds",
        "route",
        "runs",
        "selected",
        "session",
        "settings",
        "shown",
        "sink",
        "splices",
        "started",
        "step",
        "stopped",
        "turn",
        "wire",
    )

    def __init__(
        self,
        gateway: Gateway,
        live: Live,
        part: ModelPlan,
        loop: asyncio.AbstractEventLoop,
        sink: Sink,
        wire: WireName,
        given: Given,
        turn: Turn,
        caller: Caller,
        claims_trusted: bool,
        approval: str,
        notes: tuple[str, ...],
        forwarded: tuple[tuple[str, str], ...],
    ) -> None:
        self.gateway = gateway
        self.live = live
        self.part = part
        self.loop = loop
        self.sink = sink
        # The request, read and authenticated.
        self.wire: WireName = wire
        self.given = given
        self.turn = turn
        """As the wire said it; then with its caller."""
        self.caller = caller
        """With what the key pins and the headers may say; `session_id` as claimed, or empty."""
        self.claims_trusted = claims_trusted
        self.approval = approval
        """Handle of a held reply."""
        self.notes = notes
        """Claims that were not believed."""
        self.forwarded = forwarded
        """Headers that a provider of the same wire may need; never credentials."""
        self.settings = live.deployment.models[part.model_id]
        self.receipt_id = ""
        self.started = False
        """Something was sent: a refusal can only be an event now."""
        self.judged: list[Judged] = []
        self.attempts: list[Mapping[str, Any]] = []
        self.runs: list[Mapping[str, Any]] = []
        self.rounds: list[_Round] = []
        self.mediated: Mapping[str, Any] = _UNMEDIATED
        self.selected = ""
        self.kept = NOTHING
        """The last that was made with a receipt: committed or not, it says."""
        self.relay: Relay | None = None
        self.injected = self.hidden = self.shown = _NO_NAMES
        self.splices: tuple[Splice, ...] = ()
        self.request_digest = ""
        self.key = b""
        """The session's digest key."""
        self.decided = ""
        """What an operator said to this request when it came before: pending or rejected."""
        self.stopped = ""
        """Why an operator's stop refuses what is judged."""
        self.session = EMPTY_SCOPE
        """What it was before this request."""
        self.route = ANYWHERE
        """Within which targets are chosen: what the request's ruling allows, and every reply's since."""
        self.asked = 0
        """How often a provider was asked."""
        self.lifted: Held | None = None
        """What waited for just this request, and was approved."""
        self.held: Held | None = None
        """The reply that waited for it, and was approved."""
        self.granted: tuple[Held, ...] = ()
        """Calls of the reply that were approved each by itself."""
        self.reply: _Reply | None = None
        """The one that is judged …"""
        self.step: Next = "refuse"
        """… and what follows from its ruling."""

    # the main sequence

    async def run(self) -> None:
        """Answers the request. Raises nothing but cancellation."""
        self.receipt_id = receipts.receipt_id(self.gateway.now_ms(), os.urandom(10))
        refused: Refused | None = None
        turn = self.turn
        try:
            try:
                self._identify(turn, await self.gateway.sessions.join(self.caller, turn))
                request = await self._gate_request(turn)
                registers = self.session.registers
                if self.approval or (registers and HELD in registers):
                    self.held = await self._held_reply(turn)
                if registers and SPLICES in registers:
                    await self._read_splices(turn)
                self.route = request.route
                reply = await self._ask(turn) if self.held is None else self._approved(turn, self.held)
                while True:
                    ruling = await self._gate_reply(turn, request, reply)
                    if self.step == "release":
                        await self._release(reply, ruling)
                        break
                    if self.step == "again":
                        await self._go_on(turn, request, reply, ruling)
                    else:
                        self.route = cast("Route", routing.narrowed(self.route, ruling.route))
                    reply = await self._ask(turn)
            except Exception as error:  # noqa: BLE001
                # INVARIANT: G19, whatever fails here lets nothing pass, and is told.
                refused = self._why(error)
            if refused is not None:
                await self._refuse(refused)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandoned())
            raise

    def _why(self, error: Exception) -> Refused:
        """What the caller is told of what ended the exchange; of what failed inside, that it is an outage."""
        if isinstance(error, Refused):
            return error.with_traceback(None)  # which leads back to whoever holds it
        if isinstance(error, WireError):
            return Refused(self._refusal(error.status, "invalid_request_error", error.code, str(error)), "failed")
        if isinstance(error, SealedMissing):
            return Refused(self._refusal(410, "approval_required", "sealed_missing", _USED), "blocked")
        self._failed(error)
        told = _told(error) if isinstance(error, WardwrightError) else FAILED
        return Refused(self._refusal(503, "governance_unavailable", "governance_unavailable", told), "unavailable")

    def _failed(self, error: Exception) -> None:
        """For the operator: what failed and where; what it says only if it is ours, since it may hold what a caller wrote."""
        self.gateway.metrics.failed(error)
        said = str(error) if isinstance(error, WardwrightError) else ""
        told = {"receipt_id": self.receipt_id, "error": type(error).__name__, "where": raised_at(error), "reason": said}
        log.error("exchange failed", extra=told)

    # who, and may they

    def _identify(self, turn: Turn, caller: Caller) -> None:
        """Says in the turn who asks, in which session, and with which tools of ours."""
        part = self.part
        if part.require_session and not self.caller.session_id and caller.session_id.startswith("ses_"):
            message = (
                "This model needs a session: send the header X-Wardwright-Session-Id, the same for one conversation."
            )
            raise Refused(self._refusal(400, "invalid_request_error", "session_required", message), "failed")
        turn.caller = caller
        turn.claims_trusted = self.claims_trusted
        if self.settings.server_tools:
            names = frozenset(spec.name for spec in self._server_tools().specs())
            turn.server_tools = names - self.gateway.overlay.off(part.model_id)
            turn.remote_tools = self._remote()
            if turn.server_tools and _choices(self.given.head) > 1:
                raise WireError("'n' above 1 cannot be used with server tools; ask for one choice")

    def _server_tools(self) -> ServerTools:
        return self.live.server_tools[self.part.model_id]

    # the request's gate

    async def _gate_request(self, turn: Turn) -> Ruling:
        self.stopped = self.gateway.overlay.stopped(turn.caller, map(_NAME, turn.tools)) or ""
        plan = self.live.deployment.plan
        try:
            verdict = await self.gateway.gates.judge(plan, turn, self._keep_request)
        except _Lifted as found:
            # Somebody has approved just this request, or the reply it got when it had been: it is judged again, knowing that.
            self._unjudge(turn)
            lifted = self.lifted = found.held
            turn.approvals = lifted.keys if lifted.gate == "request" else tuple(lifted.further["lifted"])
            ruling = await self._judge(turn, self._keep_request)
        except Exception:
            self._unjudge(turn)
            raise
        else:
            ruling = self._ruled(turn, verdict)
        if self.stopped:
            refusal = self._refusal(403, "policy_violation", "emergency_stop", self.stopped)
            raise Refused(refusal, "blocked")
        if not passes(ruling):
            raise self._denied(turn, ruling)
        return ruling

    def _keep_request(self, verdict: Verdict) -> Kept:
        """What is kept of the request's ruling."""
        turn, ruling = self.turn, verdict.ruling
        self._note(turn, verdict)
        if self.notes:
            ruling.notes = (*ruling.notes, *self.notes)
        self.session, self.key = verdict.session, verdict.key
        used: Sequence[tuple[str, str]] = ()
        if self.lifted is not None and self.lifted.gate == "request":
            used = approvals.used(self.lifted)
        if not self.stopped:
            if passes(ruling):
                return Kept(unseal=used) if used else NOTHING
            if ruling.decision == "require_approval":
                return self._with_receipt(self._hold_request(turn, verdict))
        return self._with_receipt(Kept(self._receipt("blocked", 403, self.stopped), unseal=used))

    async def _judge(self, turn: Turn, keep: Keep) -> Ruling:
        """The committed ruling on a turn. `keep` notes the verdict first. What every request waits for is asked for without this."""
        try:
            verdict = await self.gateway.gates.judge(self.live.deployment.plan, turn, keep)
        except Exception:
            self._unjudge(turn)
            raise
        return self._ruled(turn, verdict)

    def _ruled(self, turn: Turn, verdict: Verdict) -> Ruling:
        """What follows from a committed ruling, whatever it was."""
        gateway, ruling = self.gateway, verdict.ruling
        gateway.metrics.decided(ruling.gate, ruling.decision, verdict.elapsed_us)
        for finding in ruling.alerts:
            gateway.alerts.emit(alert_of(finding, ruling, turn, verdict.at_ms, self.receipt_id))
        return ruling

    def _note(self, turn: Turn, verdict: Verdict) -> None:
        """Before the commit, so that whoever is cut off during it has on its receipt what was committed."""
        if self.judged:
            self._unjudge(turn)  # it may be judged again: then the first time was not committed
        self.judged.append(Judged(turn, verdict.ruling, verdict.at_ms, verdict.elapsed_us))

    def _unjudge(self, turn: Turn) -> None:
        """Forgets a judgement that was not committed."""
        # In place: a gate's thread may be noting another turn of this exchange meanwhile.
        for one in [*self.judged]:
            if one.turn is turn:
                self.judged.remove(one)

    def _with_receipt(self, kept: Kept) -> Kept:
        """What holds the receipt of this exchange, and will say whether it was committed."""
        self.kept = kept
        return kept

    # approvals

    def _hold_request(self, turn: Turn, verdict: Verdict) -> Kept:
        """A request that must be approved: held anew, still waiting, rejected; or approved, then it is judged again."""
        found = self._find(turn)
        if found is None or turn.approvals:
            return self._hold(turn, verdict, None)
        said = self._verdict(found)
        if said == "approved":
            raise _Lifted(found)
        self.decided = said
        return Kept(self._receipt("held" if said == "pending" else "blocked", 403))

    def _find(self, turn: Turn) -> Held | None:
        """What waits for just this request."""
        gateway = self.gateway
        scope = scope_key("session_id", turn.caller)
        held = approvals.find(gateway.gates.store, gateway.keyring, scope, self._handle(turn), gateway.now_ms())
        # Under another plan it was not approved: it is judged, and held, anew.
        return held if held is not None and held.plan_hash == self.part.plan_hash else None

    async def _held_reply(self, turn: Turn) -> Held | None:
        """The reply that was held for just this request, if somebody has approved it."""
        sent, names = self.approval, self.session.registers.get(HELD, ())
        handle = self._handle(turn)
        if sent and sent != handle:
            message = (
                "This approval is not for this request: it has expired, was used, or belongs to another one. "
                "Send the request that was held, unchanged and in the same session."
            )
            raise Refused(self._refusal(403, "approval_required", "approval_mismatch", message), "blocked")
        held = await self.gateway.gates.ask(self._find, turn) if sent or handle in names else None
        if held is None:
            if sent and not turn.approvals:
                message = "Nothing is held under this handle any more. Send the request without it."
                raise Refused(self._refusal(410, "approval_required", "sealed_missing", message), "blocked")
            return None
        if held.gate != "reply":
            return None
        said = await self.gateway.gates.ask(self._verdict, held)
        if said == "approved":
            return held
        refusal = self._refusal(403, "approval_required", f"approval_{said}", _UNDECIDED[said])
        refusal.approval = held.handle
        raise Refused(refusal, "held" if said == "pending" else "blocked")

    def _digest(self) -> str:
        """Name of this request of this principal, whatever its layout: what was approved for one is not given to another."""
        if not self.request_digest:
            read = body.read(self.given.raw)
            written = orjson.dumps([self.caller.principal, read], option=orjson.OPT_SORT_KEYS)
            self.request_digest = hmac.digest(self.gateway.keyring.stable_key("request"), written, "sha256").hex()[:32]
        return self.request_digest

    def _handle(self, turn: Turn) -> str:
        return approvals.handle_of(self.gateway.keyring, scope_key("session_id", turn.caller), self._digest())

    def _verdict(self, held: Held) -> str:
        gateway = self.gateway
        store, now = gateway.gates.store, gateway.now_ms()
        return approvals.verdict(store, gateway.keyring, held.scope, held.handle, now, held).status

    def _approved(self, request: Turn, held: Held) -> _Reply:
        wire = _WIRES[self.wire]
        if self.turn.stream:
            self.relay = self._new_relay()
        assert held.reply is not None
        turn: Turn = wire.parse_reply(held.reply)
        target = self._target(str(held.further.get("target", "")))
        self.selected = target.model
        # Nobody is asked, but which tools are hidden and which are ours must be known as if somebody were.
        self._build(request, target, self.live.providers[target.provider])
        return _Reply(held.reply, turn, target, 0, held)

    def _target(self, model: str) -> Target:
        part = self.part
        return next((one for one in part.targets if one.model == model), part.targets[0])

    def _hold(self, turn: Turn, verdict: Verdict, reply: dict[str, Any] | None) -> Kept:
        ruling, at_ms, session = verdict.ruling, verdict.at_ms, verdict.session
        keys = tuple(dict.fromkeys(one.key for one in ruling.findings if _asks(one)))
        waiting: list[dict[str, str]] = []
        for call in ruling.calls:
            item = turn.items[call.item] if 0 <= call.item < len(turn.items) else None
            if call.status == "require_approval" and isinstance(item, CallItem):
                waiting.append(
                    {
                        "name": call.name,
                        "arguments": redacted(self.part.catalog.resolve(call.name).redact, item.arguments),
                        "rule_id": call.rules[0] if call.rules else ruling.rule_id,
                        "message": self._unsaid(ruling, call.message),
                    }
                )
        request = self.judged[0].turn
        if reply is None:
            # Of a request an approver must see what was asked last.
            asked = next((one.text for one in reversed(turn.items) if isinstance(one, TextItem)), "")
            waiting.append(
                {"name": "", "arguments": asked[:MAX_SHOWN], "rule_id": ruling.rule_id, "message": ruling.message}
            )
        held = Held(
            handle=self._handle(request),
            scope=scope_key("session_id", request.caller),
            wire=self.wire,
            model=request.model,
            stream=request.stream,
            request_digest=self._digest(),
            plan_hash=ruling.plan_hash,
            principal=request.caller.principal,
            keys=keys,
            calls=tuple(waiting),
            reply=reply,
            receipt_id=self.receipt_id,
            expires_at_ms=at_ms + self.live.deployment.limits.approval_expiry_ms,
            gate=ruling.gate,
            held_at_ms=at_ms,
            message=self._unsaid(ruling, ruling.message),
            further={"target": self.selected, "lifted": request.approvals},
        )
        kept = Kept(self._receipt("held", 403), seal=approvals.rows(self.gateway.keyring, held))
        if reply is not None:
            names = session.registers.get(HELD, ())
            kept.registers = {HELD: (*(name for name in names if name != held.handle), held.handle)[-MAX_HELD:]}
        return kept

    def _ask_aside(self, turn: Turn, verdict: Verdict) -> tuple[SealedRow, ...]:
        """The calls of a reply that wait each by itself: what operators will see of those that nobody has seen yet. Raises
        _Granted when some have been approved."""
        gateway, ruling = self.gateway, verdict.ruling
        store, keyring, now = gateway.gates.store, gateway.keyring, gateway.now_ms()
        scope = scope_key("session_id", turn.caller)
        approved: list[Held] = []
        asked: list[SealedRow] = []
        begun = 0
        for call in ruling.calls:
            if not call.approval:
                continue
            held = approvals.find(store, keyring, scope, call.approval, now)
            if held is None:
                begun += 1
                if begun > MAX_ASIDE:
                    call.message, call.approval = TOO_MANY_CALLS, ""
                else:
                    asked += approvals.rows(keyring, self._held_call(turn, verdict, call, scope))
                continue
            said = self._verdict(held)
            if said == "approved":
                approved.append(held)
            elif said == "rejected":
                call.message, call.approval = REJECTED_CALL, ""
        if approved:
            raise _Granted(approved)
        return tuple(asked)

    def _held_call(self, turn: Turn, verdict: Verdict, call: CallRuling, scope: str) -> Held:
        """One call that waits by itself. The next reply of this session with the same call finds it by its handle."""
        ruling = verdict.ruling
        keys = tuple(dict.fromkeys(one.key for one in ruling.findings if _asks(one) and one.call_id == call.call_id))
        item = cast("CallItem", turn.items[call.item])
        shown = {
            "name": call.name,
            "arguments": redacted(self.part.catalog.resolve(call.name).redact, item.arguments),
            "rule_id": call.rules[0] if call.rules else ruling.rule_id,
            "message": self._unsaid(ruling, call.message),
        }
        return Held(
            handle=call.approval,
            scope=scope,
            wire=self.wire,
            model=turn.model,
            stream=turn.stream,
            request_digest="",
            plan_hash=ruling.plan_hash,
            principal=turn.caller.principal,
            keys=keys,
            calls=(shown,),
            reply=None,
            receipt_id=self.receipt_id,
            expires_at_ms=verdict.at_ms + self.live.deployment.limits.approval_expiry_ms,
            held_at_ms=verdict.at_ms,
            message=shown["message"],
            further={"alone": True},
        )

    def _unsaid(self, ruling: Ruling, message: str) -> str:
        """A message for an approver: what is wrong with arguments that nobody is shown may repeat them."""
        return unsaid(self.part.catalog, ruling, message)

    # asking a provider

    async def _ask(self, turn: Turn) -> _Reply:
        """A reply in the caller's wire, from the first target that gives one."""
        gateway, part = self.gateway, self.part
        self.asked += 1
        tokens = routing.estimate(len(self.given.raw))
        selection = routing.choose(part.targets, self.route, bool(turn.tools), tokens, self._resting)
        if selection.skipped:
            self.attempts += selection.skipped
        failed: ProviderFailed | None = None
        for target in selection.order:
            began = gateway.monotonic()
            tried: list[ProviderFailed] = []
            upstream = self.live.providers[target.provider]
            try:
                wire, sent = self._build(turn, target, upstream)
                sent_ns = perf_counter_ns()
                try:
                    response = await upstream.send(
                        wire,
                        sent,
                        stream=turn.stream,
                        model=target.model,
                        deadline=self.loop.time() + self.live.deployment.limits.exchange_ms / 1000,
                        headers=self.forwarded if wire == self.wire else (),
                        tried=tried,
                    )
                finally:
                    if tried:
                        self._retried(target, tried)
                try:
                    self.selected = target.model
                    said: dict[str, Any] | Relay
                    if turn.stream:
                        said, parsed = await self._relay_reply(response, wire)
                    else:
                        said, parsed = self._whole_reply(await response.read(body.MAX_BYTES), wire)
                finally:
                    response.close()
                reply = _Reply(said, parsed, target, (perf_counter_ns() - sent_ns) // 1_000_000)
            except ProviderFailed as error:
                failed = error
                self._attempted(target, "failed", began, reason=_noted(error))
                if not error.retryable or (self.relay is not None and self.relay.released):
                    break  # X4
                continue
            self._attempted(target, "answered", began)
            return reply
        if failed is None:
            reasons = "; ".join(f"{one['model']}: {one['reason']}" for one in selection.skipped) or "no target is left"
            refusal = self._refusal(503, "upstream_error", "no_target", f"No model can take this request ({reasons}).")
            raise Refused(refusal, "failed")
        # A request that the provider calls wrong is for the caller to mend; everything else is a bad gateway.
        status = failed.status if failed.kind != "status" or not failed.retryable else 502
        refusal = self._refusal(status, "upstream_error", f"provider_{failed.kind}", str(failed))
        raise Refused(refusal, "failed", _noted(failed))

    def _resting(self, target: Target) -> bool:
        return self.live.providers[target.provider].blocked(target.model)

    def _retried(self, target: Target, tried: Sequence[ProviderFailed]) -> None:
        for failed in tried:
            self.attempts.append(
                {"model": target.model, "provider": target.provider, "status": "retried", "reason": str(failed)}
            )

    def _attempted(self, target: Target, status: str, began: float, reason: str = "") -> None:
        elapsed = self.gateway.monotonic() - began
        self.gateway.metrics.upstream(target.provider, status, elapsed)
        attempt: dict[str, Any] = {
            "model": target.model,
            "provider": target.provider,
            "status": status,
            "elapsed_ms": int(elapsed * 1000),
        }
        if reason:
            attempt["reason"] = reason
        self.attempts.append(attempt)

    def _build(self, turn: Turn, target: Target, upstream: Provider) -> tuple[WireName, bytes]:
        """What this target is sent: the request mediated, with the rounds before it, in the provider's wire."""
        part, settings, ruling, given, ours = self.part, self.settings, self.judged[0].ruling, self.given, self.wire
        wire, model = upstream.wire_for(ours), target.upstream_model or target.model
        # Only on this wire a stream tells its usage if it is asked to.
        metered = turn.stream and wire == "chat_completions" and part.model_id in self.live.deployment.metered
        mediates = ruling.transforms or _mediates(settings, ruling)
        as_it_is = not (mediates or metered or self.splices or self.rounds)
        if as_it_is and wire == ours == "chat_completions" and not upstream.ids(given.ids):
            return wire, given.written(model)
        edits, request = edit.of(ours), given.own()
        edits.forget(request)
        if mediates:
            prepared = mediation.prepare(
                request,
                ours,
                turn,
                ruling,
                mediation=settings.mediation,
                tools_ok=target.tools,
                server_tools=self._server_tools().specs() if settings.server_tools else (),
                off=self.gateway.overlay.off(part.model_id),
                remote=self._remote(),
                unavailable=self._server_tools().unavailable if settings.server_tools else {},
                advertised=self._advertised(),
            )
            request, self.injected = prepared.body, prepared.injected
            self.hidden, self.shown = prepared.hidden, prepared.shown
            self.mediated = prepared.record
        # After what the ruling changes: it knows items by their numbers in the request as it came.
        if self.splices:
            edits.splice(request, self.splices)
        for one in self.rounds:
            request = edits.answered(request, one.reply, one.answers)
            edits.relax(request)
        if wire != ours:
            request = translate.request(request, ours, wire)
            edits = edit.of(wire)
        names = list(given.ids)
        names += [call.id for one in self.splices for call in one.calls]
        names += [answer.call_id for one in self.rounds for answer in one.answers.values()]
        renamed = upstream.ids(names)
        if renamed:
            edits.rename_ids(request, renamed)
        edits.set_model(request, model)
        if metered:
            options = request.get("stream_options")
            request["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return wire, body.write(request)

    def _remote(self) -> frozenset[str]:
        """Server tools that run on somebody else's MCP server."""
        if not self.settings.server_tools:
            return frozenset()
        tools = self._server_tools()
        return frozenset(name for name in tools.names if tools.location(name) == "remote_mcp")

    def _advertised(self) -> mediation.Advertised | None:
        settings = self.settings
        if not settings.server_tools:
            return None
        names = [spec.name for spec in self._server_tools().specs()]
        return mediation.advertise(settings.advertisement, names, [target.tools for target in self.part.targets])

    def _whole_reply(self, said: bytes, wire: WireName) -> tuple[dict[str, Any], Turn]:
        try:
            given = body.read(said)
            if wire == "chat_completions" and given.get("choices") == []:
                raise WireError("it holds no answer - at `$.choices`")  # clients look at the first one
            if wire != self.wire:
                given = translate.reply(given, wire, self.wire)
            return given, _WIRES[self.wire].parse_reply(given)
        except WireError as error:
            raise ProviderFailed("broken", f"The provider's reply cannot be read: {error}") from error

    def _new_relay(self) -> Relay:
        hold_text = self.part.model_id in self.live.deployment.holding
        return relay_for(self.wire, hold_text=hold_text, head=self._repeated(), usage=self._wants_usage())

    def _wants_usage(self) -> bool:
        options = self.given.head.get("stream_options")
        return isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("include_usage"))

    def _repeated(self) -> dict[str, Any]:
        """What a reply repeats of its request, as the caller wrote it: no tool and no instruction that is not the caller's own."""
        if self.wire != "responses" or not _mediates(self.settings, self.judged[0].ruling):
            return {}
        said: dict[str, Any] = dict.fromkeys(("instructions", "tools", "tool_choice"))
        edit.of(self.wire).echo(said, body.read(self.given.raw))
        del said["model"]
        return said

    async def _relay_reply(self, response: Response, wire: WireName) -> tuple[Relay, Turn]:
        limits = self.live.deployment.limits
        relay = self.relay
        if relay is None or (not self.rounds and not relay.released):
            relay = self.relay = self._new_relay()
        else:  # whatever came of this round from another target is no part of the answer
            relay.restart()
        translator = None if wire == self.wire else StreamTranslator(wire, self.wire)
        try:
            if not response.streamed:
                # Some answer a request for a stream in one piece.
                given, _ = self._whole_reply(await response.read(body.MAX_BYTES), wire)
                await self._send(relay.feed(render(self.wire, given)) + relay.close())
                return relay, relay.turn()
            async for chunk in response.chunks():
                data = chunk if translator is None else translator.feed(chunk)
                shown = relay.feed(data)
                if shown:
                    await self._send(shown)
                if relay.held_bytes > limits.held_bytes:
                    message = "The reply is longer than what can be held until it is judged. Ask for less at once."
                    raise Refused(self._refusal(403, "policy_violation", "held_too_long", message), "blocked")
            shown = relay.feed(translator.close()) if translator is not None else b""
            shown += relay.close()
            if shown:
                await self._send(shown)
            if not relay.complete:
                said = relay.errors[0].get("message", "") if relay.errors else "it ended before its end"
                raise ProviderFailed("broken", f"The provider's stream broke: {said}")
            return relay, relay.turn()
        except WireError as error:
            raise ProviderFailed("broken", f"The provider's stream cannot be read: {error}") from error

    # the reply's gate

    async def _gate_reply(self, request_turn: Turn, request: Ruling, reply: _Reply) -> Ruling:
        """The committed ruling on a reply; `step` then says what follows from it."""
        turn = reply.turn
        turn.model, turn.caller, turn.tools = request_turn.model, request_turn.caller, request_turn.tools
        turn.stream, turn.target, turn.elapsed_ms = request_turn.stream, reply.target.model, reply.elapsed_ms
        turn.request, turn.server_tools, turn.remote_tools = request.request, self.injected, request_turn.remote_tools
        turn.response_format, turn.repeated = request_turn.response_format, request_turn.repeated
        turn.released = self.relay is not None and self.relay.released
        turn.claims = None
        if turn.usage is not None and reply.target.price is not None:
            turn.usage.price = reply.target.price.of(turn.usage.input_tokens, turn.usage.output_tokens)
        lifted = reply.held.keys if reply.held is not None else ()
        turn.approvals = lifted
        self.reply = reply
        self.granted = ()
        gates, plan = self.gateway.gates, self.live.deployment.plan
        for left in range(TRIES, -1, -1):
            try:
                verdict = await gates.judge(plan, turn, self._keep_reply)
                break
            except _Granted as found:
                self._unjudge(turn)
                self.granted = (*self.granted, *found.held)
            except SealedMissing:
                # Somebody else has just used an approval up: this call waits for its own.
                self._unjudge(turn)
                if not self.granted or not left:
                    raise
                self.granted = ()
            except Exception:
                self._unjudge(turn)
                raise
            turn.approvals = (*lifted, *(key for one in self.granted for key in one.keys))
        else:
            raise GovernanceUnavailable("The session is busy; try again.")
        ruling = self._ruled(turn, verdict)
        if self.stopped:
            refusal = self._refusal(403, "policy_violation", "emergency_stop", self.stopped)
            raise Refused(refusal, "blocked")
        if self.step in ("hold", "refuse"):
            raise self._denied(request_turn, ruling)
        return ruling

    def _keep_reply(self, verdict: Verdict) -> Kept:
        """What is kept of the ruling on a reply, and what follows from it."""
        reply, ruling = self.reply, verdict.ruling
        assert reply is not None
        turn, held = reply.turn, reply.held
        self._note(turn, verdict)
        mediated = self.hidden or self.settings.mediation.rules
        if mediated:
            ruling.calls = mediation.deny_hidden(
                ruling.calls,
                self.hidden,
                catalog=self.part.catalog,
                shown=self.shown,
                mediation=self.settings.mediation,
            )
        calls = ruling.calls
        # A stop may have come while the provider was at work.
        self.stopped = self.gateway.overlay.stopped(turn.caller, map(_NAME, calls)) or ""
        as_it_is = not self.injected and _all_pass(calls)
        step = self.step = "refuse" if self.stopped else self._next(ruling, as_it_is)
        unseal = approvals.used(held) if held is not None else ()
        waiting: tuple[SealedRow, ...] = ()
        if step in ("release", "again"):
            for call in calls:
                if call.approval:
                    waiting = self._ask_aside(turn, verdict)
                    break
            for one in self.granted:
                if _serves(one, ruling):
                    unseal = (*unseal, *approvals.used(one))
        denied: tuple[str, ...] = ()
        if mediated:
            denied = tuple(call.call_id for call in calls if "tool_mediation" in call.rules)
        if step == "release":
            if as_it_is:
                kept = self.kept = Kept(self._receipt("released", 200))
                if not (unseal or denied or waiting or held is not None):
                    return kept  # as it usually is
            else:
                kept = self._splice_rows(turn, ruling, {}, verdict)
                if not self._ours(ruling):
                    kept.receipt = self._receipt("released", 200)
                    self.kept = kept
            if waiting:
                kept.seal = (*kept.seal, *waiting)
            kept.unseal, kept.denied = unseal, denied
            if held is not None:
                left = tuple(name for name in verdict.session.registers.get(HELD, ()) if name != held.handle)
                kept.registers = {**kept.registers, HELD: left or None}
            return kept
        if step == "hold":
            return self._with_receipt(self._hold(turn, verdict, reply.body))
        if step == "refuse":
            return self._with_receipt(Kept(self._receipt("blocked", 403, self.stopped), unseal=unseal))
        return Kept(seal=waiting, unseal=unseal, denied=denied)

    def _next(self, ruling: Ruling, as_it_is: bool) -> Next:
        """What follows from a reply's ruling. Pure, so that it can be asked before the commit. `as_it_is`: every call is the caller's,
        and passes."""
        if ruling.decision == "block":
            return "refuse"
        calls = ruling.calls
        if as_it_is and not (ruling.reask or ruling.decision == "require_approval"):
            return "release" if calls or passes(ruling) else "refuse"
        statuses = {call.status for call in calls}
        more = self.asked <= self.live.deployment.limits.rounds
        if ruling.reask:
            return "reask" if more and routing.narrowed(self.route, ruling.route) is not None else "refuse"
        if ruling.decision == "require_approval" or "require_approval" in statuses:
            return "hold"
        if "allow" in statuses:
            if any(call.status == "allow" and call.name not in self.injected for call in ruling.calls):
                return "release"
            return "again" if more else "refuse"
        if ruling.calls:
            return "again" if more else "refuse"
        return "release" if passes(ruling) else "refuse"

    def _ours(self, ruling: Ruling) -> list[CallRuling]:
        """Calls of a reply that this gateway runs."""
        if not self.injected:
            return []
        return [call for call in ruling.calls if call.status == "allow" and call.name in self.injected]

    async def _go_on(self, request_turn: Turn, request: Ruling, reply: _Reply, ruling: Ruling) -> None:
        """Every call of a reply that none is left for the caller of: run here, or answered with why not. Then the model goes on."""
        answers = await self._answers(request_turn, request, reply, ruling)
        named = tuple(replace(call, status="allow") for call in ruling.calls)
        edit.of(self.wire).keep_calls(reply.body, named)
        self.rounds.append(_Round(reply.body, answers, _change(ruling)))
        relay = self.relay
        if relay is not None:
            if reply.held is not None:  # nobody has streamed it: it is a round like any other from here on
                held_round = relay.feed(render(self.wire, reply.body))
                await self._send(held_round + relay.close())
            relay.next_round(_change(ruling))

    async def _answers(
        self, request_turn: Turn, request: Ruling, reply: _Reply, ruling: Ruling
    ) -> dict[int, ToolAnswer]:
        answers = {
            call.item: ToolAnswer(call.call_id, call.message or "This call was denied.", True)
            for call in ruling.calls
            if call.status != "allow"
        }
        ours = self._ours(ruling)
        runs = [self._run_tool(request_turn, request, reply, call) for call in ours]
        # Whatever becomes of one, the others come to their end: nothing of an exchange goes on behind its receipt.
        for call, answer in zip(ours, await asyncio.gather(*runs, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            answers[call.item] = answer
        return answers

    async def _run_tool(self, request_turn: Turn, request: Ruling, reply: _Reply, call: CallRuling) -> ToolAnswer:
        """Runs a server tool and judges its result."""
        gateway = self.gateway
        item = reply.turn.items[call.item]
        assert isinstance(item, CallItem)
        context = ServerContext(request_turn.caller, request_turn.model, self._report, self.key)
        began = gateway.monotonic()
        run = await self._server_tools().run(call.call_id, call.name, item.arguments, context)
        self.runs.append(run.record)
        gateway.metrics.server_tool(call.name, "error" if run.is_error else "ok")
        result = Turn(
            "result",
            self.wire,
            request_turn.model,
            (
                CallItem(call.call_id, call.name, item.arguments),
                ResultItem(call.call_id, run.text, run.is_error, call.name),
            ),
            tools=request_turn.tools,
            caller=request_turn.caller,
            elapsed_ms=int((gateway.monotonic() - began) * 1000),
            server_tools=self.injected,
            remote_tools=request_turn.remote_tools,
            request=request.request,
        )

        def keep(verdict: Verdict) -> Kept:
            self._note(result, verdict)
            return NOTHING

        ruling = await self._judge(result, keep)
        if ruling.decision == "block":
            raise Refused(self._policy(ruling), "blocked")
        judged = ruling.calls[0] if ruling.calls else None
        if judged is not None and judged.status != "allow":
            return ToolAnswer(call.call_id, judged.message or "The result was withheld.", True)
        return ToolAnswer(call.call_id, transformed(ruling, 1, run.text), run.is_error)

    def _report(self) -> Mapping[str, Any]:
        """What a caller may know of its own session: states and counts, nothing of anybody else."""
        request = self.judged[0]
        return {
            "session_id": request.turn.caller.session_id,
            "states": dict(request.ruling.states),
            "plan_hash": request.ruling.plan_hash,
            "turn": self.session.head.turn,
        }

    # splices: what we took out of a reply and put back into the next request

    def _splice_rows(self, turn: Turn, ruling: Ruling, answers: Mapping[int, ToolAnswer], verdict: Verdict) -> Kept:
        """Remembers the calls that the caller will not see, beside one that it will."""
        kept = [call for call in ruling.calls if call.status == "allow" and call.name not in self.injected]
        gone = [call for call in ruling.calls if call not in kept]
        if not gone or not kept:
            return Kept()
        names = verdict.session.registers.get(SPLICES, ())
        names = (*names, kept[0].call_id)[-MAX_SPLICES:]
        sealed = () if self._ours(ruling) and not answers else (self._splice_row(turn, ruling, answers, verdict.at_ms),)
        return Kept(seal=sealed, registers={SPLICES: names})

    def _splice_row(self, turn: Turn, ruling: Ruling, answers: Mapping[int, ToolAnswer], at_ms: int) -> SealedRow:
        gone: list[dict[str, Any]] = []
        siblings: list[str] = []
        for call in ruling.calls:
            if call.status == "allow" and call.name not in self.injected:
                siblings.append(call.call_id)
                continue
            item = cast("CallItem", turn.items[call.item])
            answer = answers.get(call.item) or ToolAnswer(call.call_id, call.message or "This call was denied.", True)
            gone.append(
                {
                    "id": call.call_id,
                    "name": call.name,
                    "arguments": item.arguments,
                    "result": answer.text,
                    "is_error": answer.is_error,
                }
            )
        scope = scope_key("session_id", turn.caller)
        name = f"splice:{siblings[0]}"
        plain = orjson.dumps({"siblings": siblings, "calls": gone})
        sealed = self.gateway.keyring.seal(plain, f"{scope}\n{name}".encode())
        return SealedRow(scope, name, at_ms + self.live.deployment.limits.splice_expiry_ms, sealed)

    async def _read_splices(self, turn: Turn) -> None:
        names = self.session.registers[SPLICES]
        present = set(self.given.ids)
        scope = scope_key("session_id", turn.caller)
        found: list[Splice] = []
        for name in names:
            if name not in present:
                continue
            try:
                row = await self.gateway.gates.ask(
                    self.gateway.gates.store.sealed, scope, f"splice:{name}", self.gateway.now_ms()
                )
                plain = self.gateway.keyring.unseal(row.body, f"{scope}\nsplice:{name}".encode())
            except (SealedMissing, SealBroken):
                continue  # expired, or its key was retired: the provider sees the reply as the caller does
            said = orjson.loads(plain)
            found.append(Splice(tuple(said["siblings"]), tuple(SplicedCall(**call) for call in said["calls"])))
        self.splices = tuple(found)

    # ends

    async def _release(self, reply: _Reply, ruling: Ruling) -> None:
        """The reply, without what was denied or run here, to the caller."""
        calls = ruling.calls
        ours = self._ours(ruling) if self.injected else ()
        if ours:
            # Mixed: ours have run before the caller sees theirs, and their results wait for the next request.
            request_turn, request = self.judged[0].turn, self.judged[0].ruling
            answers = await self._answers(request_turn, request, reply, ruling)
            seal = (self._splice_row(reply.turn, ruling, answers, self.gateway.now_ms()),)
            await self._record(Kept(self._receipt("released", 200), seal=seal))
            calls = tuple(replace(call, status="deny_call") if call in ours else call for call in calls)
        if calls:
            caller = self.judged[0].turn.caller
            passed = [call.call_id for call in calls if call.status == "allow"]
            self.gateway.sessions.remember(caller.tenant, caller.session_id, passed)
        change = _change(ruling)
        edits = edit.of(self.wire)
        if self.relay is not None:
            if reply.held is not None:
                edits.keep_calls(reply.body, calls, change=change)
                reply.body.update(self._repeated())
                await self._send(render(self.wire, reply.body, usage=self._wants_usage()))
            else:
                await self._send(self.relay.release(calls, change))
            await self.sink.finish()
            return
        answer = reply.body
        edits.keep_calls(answer, calls, change=change)
        if self.rounds:
            for one in reversed(self.rounds):
                if one.change is not None:
                    edits.rewrite(one.reply, one.change)
                answer = edits.join(one.reply, answer)
        if self.wire == "responses":
            answer.update(self._repeated())
        try:
            written = body.write(answer)
        except WireError as error:  # more levels can be read than written
            message = f"The provider's reply cannot be passed on: {error}"
            raise Refused(self._refusal(502, "upstream_error", "provider_broken", message), "failed") from error
        self.started = True
        lines = self._lines()
        if not (lines and self.sink.put(lines, written)):
            await self.sink.answer(200, self._headers(), written)

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        if not self.started:
            self.started = True
            await self.sink.start(200, self._headers())
        await self.sink.write(data)

    async def keep_alive(self) -> None:
        """A comment, so that nobody between here and the caller hangs up while a reply is held."""
        relay = self.relay
        if relay is not None and self.sink.open:
            await self._send(relay.keep_alive())

    def _headers(self) -> list[Header]:
        found = [(b"x-wardwright-receipt-id", self.receipt_id.encode())]
        if self.selected:
            found.append((b"x-wardwright-selected-model", self.selected.encode()))
        if session := self.turn.caller.session_id:
            found.append((b"x-wardwright-session-id", session.encode()))
        return found

    def _lines(self) -> bytes:
        """The same as lines, as nearly every answer has them; nothing where one is missing, or may not stand in a line."""
        model, session = self.selected, self.turn.caller.session_id
        if not (model and session and f"{model}{session}".isprintable()):
            return b""
        return (
            f"x-wardwright-receipt-id: {self.receipt_id}\r\n"
            f"x-wardwright-selected-model: {model}\r\n"
            f"x-wardwright-session-id: {session}\r\n"
        ).encode()

    async def _refuse(self, refused: Refused) -> None:
        """Tells the caller; commits the receipt first where the ruling's commit did not hold it."""
        refusal = refused.refusal
        refusal.receipt_id = refusal.receipt_id or self.receipt_id
        if self.judged and not self.kept.committed:
            try:
                await self._record(Kept(self._receipt(refused.status, refusal.status, refused.error)))
            except Exception as error:  # noqa: BLE001
                # INVARIANT: G19, what cannot be recorded is an outage, and the caller is told so.
                self._failed(error)
                refusal = self._refusal(503, "governance_unavailable", "governance_unavailable", FAILED)
        self.gateway.metrics.refused(refusal.kind)
        wire = self.wire
        if self.started:
            relay = self.relay
            await self.sink.write(b"" if relay is None else relay.refuse(refusal))
            await self.sink.finish()
            return
        await self.sink.answer(refusal.status, self._headers(), orjson.dumps(edit.of(wire).refusal(refusal)))

    async def _record(self, kept: Kept) -> None:
        self.kept = kept
        await self.gateway.gates.record(kept)

    async def _abandoned(self) -> None:
        """The caller went away: what was judged is recorded all the same, unless it was before."""

        def last() -> Kept:
            if not self.judged or self.kept.committed:
                return NOTHING
            return Kept(self._receipt("failed", 499, "The caller went away."))

        try:
            await self.gateway.gates.record(last)
        except Exception as error:  # noqa: BLE001
            # INVARIANT: nobody is left who could be told.
            self._failed(error)

    def _receipt(self, status: receipts.Status, http_status: int, error: str = "") -> ReceiptRow:
        outcome = Outcome(
            status,
            http_status,
            self.selected,
            tuple(self.attempts),
            tuple(self.runs),
            self.mediated,
            error,
        )
        rules = self.live.deployment.rules[self.part.model_id]
        return quiet.row(
            self.receipt_id, self.judged, outcome, rules, self.key, self.settings.capture, self.part.catalog
        )

    def _refusal(self, status: int, kind: RefusalKind, code: str, message: str) -> Refusal:
        return Refusal(status, kind, code, message, receipt_id=self.receipt_id)

    def _policy(self, ruling: Ruling) -> Refusal:
        return Refusal(
            403,
            "policy_violation",
            "policy_violation",
            ruling.message or "This was refused by policy.",
            ruling.rule_id,
            self.receipt_id,
            ruling.blocked_tools,
        )

    def _denied(self, turn: Turn, ruling: Ruling) -> Refused:
        """The refusal of a ruling whose receipt is committed."""
        refusal = self._policy(ruling)
        waits = any(call.status == "require_approval" for call in ruling.calls)
        if ruling.decision != "block" and (waits or ruling.decision == "require_approval"):
            refusal.kind, refusal.code = "approval_required", "approval_required"
            refusal.approval = self._handle(turn)
            if self.decided:
                refusal.code, refusal.message = f"approval_{self.decided}", _UNDECIDED[self.decided]
            return Refused(refusal, "held")
        if ruling.reask or (ruling.decision != "block" and not ruling.message):
            refusal.message = "The model kept asking for what is not allowed. Ask for something else."
        return Refused(refusal, "blocked")


def _mediates(settings: ModelSettings, ruling: Ruling) -> bool:
    """Whether tools or instructions of a request are other for the provider than for its caller."""
    return bool(
        settings.server_tools or settings.mediation.rules or ruling.stripped or ruling.controls or ruling.reminders
    )


def _noted(error: ProviderFailed) -> str:
    """What a receipt says of it: not the provider's sentence, which may repeat what it was sent (G8)."""
    if error.kind in ("status", "broken"):
        return f"{error.kind} {error.status} {error.reason}".rstrip()
    return str(error)


def _asks(finding: Finding) -> bool:
    """Whether an approval is what it needs."""
    return finding.effect == "require_approval" and finding.enforced and not finding.lifted


def _all_pass(calls: Sequence[CallRuling]) -> bool:
    for call in calls:  # noqa: SIM110 - the frame of a generator costs more than what it does
        if call.status != "allow":
            return False
    return True


def _serves(held: Held, ruling: Ruling) -> bool:
    """Whether a call passes because this was approved."""
    passing = {call.call_id for call in ruling.calls if call.status == "allow"}
    return any(one.lifted == "approval" and one.key in held.keys and one.call_id in passing for one in ruling.findings)


def _told(error: WardwrightError) -> str:
    if isinstance(error, StoreUnavailable):
        return "Nothing passes while what happens cannot be recorded. Try again soon; the gateway's log says why."
    if isinstance(error, GovernanceUnavailable):
        return f"Nothing passes while the policy engine cannot rule: {error}"
    return str(error)


def _change(ruling: Ruling) -> Change | None:
    """What a ruling makes of the texts of a reply; None: they stay."""
    return partial(transformed, ruling) if ruling.transforms else None


def _choices(request: Mapping[str, Any]) -> int:
    asked = request.get("n")
    return asked if isinstance(asked, int) else 1
