"""Sessions for operators: what is remembered of one, and the audited release of one that is stuck.

Shows facts as receipts hold them, states and counters; never what anybody said. A release takes away exactly what it names, against
the version it was decided on, together with its receipt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wardwright import receipts
from wardwright.errors import VersionConflict
from wardwright.gateway import scopes_of
from wardwright.history import Delta, Head, RegisterKey, RegisterValue, ScopeDelta, ScopeState, scope_key
from wardwright.http.route import (
    NOTE,
    TEXT,
    WHOLE,
    Ask,
    BadRequest,
    Conflict,
    NotFound,
    Parameter,
    Route,
    Schema,
    object_schema,
)
from wardwright.overlay import NotStopped, Stop
from wardwright.policy.compile import ModelPlan
from wardwright.policy.evaluate import BOUND
from wardwright.policy.rules import Rule
from wardwright.policy.states import holding
from wardwright.policy.windows import Position
from wardwright.receipts import Receipt, rules_of
from wardwright.store import ReceiptPage, ReceiptQuery
from wardwright.ui import words
from wardwright.wire.turn import Caller, Turn

_TRIES: Final = 8
_UNNAMED: Final = 200
_REGISTERS: Final = 500
"""Shown of one scope; the rest is counted."""


class _Session:
    """One session as the store knows it now."""

    def __init__(self, ask: Ask, tenant: str | None, exchanges: int = 1) -> None:
        session_id = ask.path["session_id"]
        tags = {"session_id": (session_id,), "kind": ("exchange",)}
        if tenant:
            tags["tenant"] = (tenant,)
        page = ask.gateway.store.receipts(ReceiptQuery(tags, limit=exchanges))
        found = _loaded(page, tenant)
        if len(found) < len(page.receipts) < _UNNAMED:
            # A tenant without a name leaves no tag: its exchanges are picked out of the newest ones.
            page = ask.gateway.store.receipts(ReceiptQuery(tags, limit=_UNNAMED))
            found = _loaded(page, tenant)[:exchanges]
        self.exchanges: list[Receipt] = found
        self.next_before = page.next_before
        if not self.exchanges:
            raise NotFound(f"There is no session '{session_id[:80]}'.")
        newest = self.exchanges[0]
        kept = words.part(newest, "caller")
        self.caller = Caller(**{name: kept[name] for name in Caller.__dataclass_fields__ if name in kept})
        self.model = words.text(words.part(newest, "request").get("model"))
        self.part = ask.gateway.plan.model(self.model)
        self.key = scope_key("session_id", self.caller)
        turn = Turn("request", "chat_completions", self.model, caller=self.caller)
        self.scopes = (self.key,) if self.part is None else scopes_of(ask.gateway.plan, turn)
        self.states = ask.gateway.store.load(self.scopes, _nothing)

    @property
    def state(self) -> ScopeState:
        return self.states[self.key]


def _loaded(page: ReceiptPage, tenant: str | None) -> list[Receipt]:
    """Those that are there, and of a tenant without a name only its own."""
    found = [receipts.load(one.row.body) for one in page.receipts if one.row.body]
    return found if tenant != "" else [one for one in found if not words.part(one, "caller").get("tenant")]


def _nothing(_: Head) -> Iterable[str]:
    return ()


def show_session(ask: Ask) -> Any:
    found = _Session(ask, ask.query["tenant"], ask.query["limit"])
    head = found.state.head
    now_ms = ask.gateway.now_ms()
    return {
        "session_id": found.caller.session_id,
        "tenant": found.caller.tenant,
        "caller": {name: value for name in Caller.__dataclass_fields__ if (value := getattr(found.caller, name))},
        "model": found.model,
        "stopped": ask.gateway.overlay.stopped(found.caller),
        "turn": head.turn,
        "events": head.event,
        "phase": head.phase,
        "since_ms": head.since_ms,
        "plan_hash": head.plan_hash,
        "bundles": list(head.bundles),
        "states": [] if found.part is None else list(_states(found, found.part, now_ms)),
        "bound_routes": BOUND in found.state.registers,
        "scopes": [_scope(key, found.states[key], found.part) for key in found.scopes],
        "exchanges": [_exchange(one) for one in found.exchanges],
        "next_before": found.next_before,
    }


def _states(found: _Session, part: ModelPlan, now_ms: int) -> Iterator[dict[str, Any]]:
    session = found.state.head
    rules = {rule.key: rule.id for rule in rules_of(part).values()}
    for machine in part.machines.values():
        state = found.states[scope_key(machine.scope, found.caller)]
        at = Position(state.head.turn, state.head.event, now_ms)
        value = state.registers.get((f"state:{machine.id}", ""))
        holds = holding(machine, value, at, session.user_turns, found.key)
        yield {
            "machine": machine.id,
            "scope": machine.scope,
            "state": holds.state,
            "initial": holds.state == machine.initial_state,
            "since_ms": holds.since.ms or None,
            "by": rules.get(holds.by, holds.by) or None,
        }


def _scope(key: str, state: ScopeState, part: ModelPlan | None) -> dict[str, Any]:
    names: dict[str, list[str]] = {}
    for rule in () if part is None else rules_of(part).values():
        names.setdefault(rule.key, []).append(rule.id)
    known = [(one, value) for one, value in state.registers.items() if one[0] in names]
    known.sort(key=lambda entry: entry[0])
    return {
        "kind": key.split("\x1f", 1)[0],
        "version": state.version,
        "turn": state.head.turn,
        "events": state.head.event,
        "windows": [
            {"rules": names[rule_key], "of": sub, "value": list(value)} for (rule_key, sub), value in known[:_REGISTERS]
        ],
        "further": len(state.registers) - len(known[:_REGISTERS]),
    }


def _exchange(receipt: Receipt) -> dict[str, Any]:
    decision = words.part(receipt, "decision")
    return {
        "receipt_id": receipt["id"],
        "at_ms": receipt["at_ms"],
        "status": words.text(words.part(receipt, "final").get("status")),
        "decision": words.text(decision.get("decision")),
        "rule_id": words.text(decision.get("rule_id")),
        "facts": [fact for gate in words.parts(decision.get("gates")) for fact in words.parts(gate.get("facts"))],
    }


def release_session(ask: Ask) -> Any:
    body = ask.body
    tenant: str | None = body.get("tenant")
    for _ in range(_TRIES):
        found = _Session(ask, tenant)
        machines, rules = _named(found, body)
        changes = dict[RegisterKey, RegisterValue | None](
            _changes(found, machines, rules, whole=not {"rules", "machines"} & body.keys())
        )
        now_ms = ask.gateway.now_ms()
        receipt_id = receipts.receipt_id(now_ms, os.urandom(10))
        told = {
            "machines": sorted(name for name in machines if (f"state:{name}", "") in changes),
            "rules": sorted(rules),
            "routes": BOUND in changes,
            "registers": len(changes),
            "note": body["note"],
        }
        caller = Caller(tenant=found.caller.tenant, session_id=found.caller.session_id, principal=ask.operator)
        receipt = receipts.build_admin(receipt_id, now_ms, caller, "release_session", found.caller.session_id, told)
        moved = ScopeDelta(found.key, "session_id", found.state.version, found.state.head, changes)
        try:
            ask.gateway.store.commit(Delta(now_ms, (moved,) if changes else ()), receipts.record(receipt))
        except VersionConflict:
            continue  # the session goes on meanwhile
        return {
            "receipt_id": receipt_id,
            **told,
            "stops": _unstop(ask, found.caller, now_ms) if body.get("stop") else 0,
        }
    raise Conflict("The session never stood still. Stop it first, then release it.")


def _named(found: _Session, body: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """The machines and rules to release; all machines of the session when neither is said."""
    own = (
        list[str]()
        if found.part is None
        else [one.id for one in found.part.machines.values() if one.scope == "session_id"]
    )
    known = dict[str, Rule]() if found.part is None else rules_of(found.part)
    machines: Sequence[str] = body.get("machines", own if "rules" not in body else ())
    rules: Sequence[str] = body.get("rules", ())
    problems = [f"'{name}' is no state machine of the session's own" for name in machines if name not in own]
    problems += [f"'{name}' is no rule of this model" for name in rules if name not in known]
    if problems:
        raise BadRequest(f"This cannot be released: {'; '.join(problems)}.")
    return machines, rules


def _changes(
    found: _Session, machines: Sequence[str], rules: Sequence[str], *, whole: bool
) -> Iterator[tuple[RegisterKey, None]]:
    registers = found.state.registers
    known = dict[str, Rule]() if found.part is None else rules_of(found.part)
    keys = {known[name].key for name in rules}
    for name in machines:
        if (f"state:{name}", "") in registers:
            yield (f"state:{name}", ""), None
    for register in registers:
        if register[0] in keys:
            yield register, None
    if whole and BOUND in registers:
        yield BOUND, None


def _unstop(ask: Ask, caller: Caller, now_ms: int) -> int:
    gone = 0
    for tenant in (None, caller.tenant):
        try:
            stop = Stop("session", caller.session_id, tenant)
            ask.gateway.overlay.clear_stop(stop, ask.operator, ask.body["note"], now_ms)
            gone += 1
        except NotStopped:
            continue
    return gone


_NAMES: Final[Schema] = {"type": "array", "items": TEXT, "maxItems": 100}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/wardwright/sessions/{session_id*}/release",
        "operator",
        "Release a session that is stuck: its states, routes it is bound to, what rules have counted",
        release_session,
        object_schema(
            ("receipt_id", "machines", "rules", "routes", "registers", "note", "stops"),
            receipt_id={"type": "string"},
            machines=_NAMES,
            rules=_NAMES,
            routes={"type": "boolean"},
            registers=WHOLE,
            note={"type": "string"},
            stops={**WHOLE, "description": "Emergency stops of the session that were released too."},
        ),
        body=object_schema(
            ("note",),
            note={**NOTE, "minLength": 1},
            tenant={"type": "string", "maxLength": 512},
            machines={
                **_NAMES,
                "description": "State machines to put back; all when neither these nor rules are given.",
            },
            rules={**_NAMES, "description": "Rules whose counters of this session begin anew."},
            stop={"type": "boolean", "description": "Release the session's emergency stop too."},
        ),
        errors=(404, 409),
    ),
    Route(
        "GET",
        "/v1/wardwright/sessions/{session_id*}",
        "viewer",
        "What is remembered of a session: facts, states, counters",
        show_session,
        {
            "type": "object",
            "required": ["session_id", "tenant", "caller", "model", "states", "scopes", "exchanges", "next_before"],
        },
        query=(
            Parameter(
                "tenant",
                {"type": "string", "maxLength": 512},
                "When several tenants have such a session; empty: the one without a name.",
            ),
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 200}, "At most so many exchanges.", 20),
        ),
        errors=(404,),
    ),
)
