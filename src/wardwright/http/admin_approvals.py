"""Approvals for operators: what waits, with the arguments an approver must see; approve or reject it. Never releases anything."""

from __future__ import annotations

from typing import Any, Final

from wardwright import approvals
from wardwright.approvals import Held, Verdict
from wardwright.http.route import NOTE, TEXT, WHOLE, Ask, NotFound, Parameter, Route, Schema, object_schema

_STRING: Final[Schema] = {"type": "string"}
_HELD: Final = object_schema(
    ("handle", "digest", "session_id", "calls", "expires_at_ms"),
    handle=_STRING,
    digest={**_STRING, "description": "Say it back as `seen`: what is decided is exactly what was shown."},
    tenant=_STRING,
    session_id=_STRING,
    gate=_STRING,
    wire=_STRING,
    model=_STRING,
    stream={"type": "boolean"},
    principal={**_STRING, "description": "Whose key asked; that one may not decide."},
    message=_STRING,
    calls={"type": "array", "items": {"type": "object"}},
    plan_hash=_STRING,
    receipt_id=_STRING,
    held_at_ms=WHOLE,
    expires_at_ms=WHOLE,
)


def list_approvals(ask: Ask) -> Any:
    limit = ask.query["limit"]
    gateway = ask.gateway
    found = approvals.pending(gateway.store, gateway.keyring, gateway.now_ms(), limit, ask.query["after"])
    return {
        "approvals": [shown(one) for one in sorted(found, key=lambda one: one.held_at_ms)],
        "next_after": found[-1].handle if len(found) == limit else None,
    }


def show_approval(ask: Ask) -> Any:
    handle = ask.path["handle"]
    gateway = ask.gateway
    found = approvals.waiting(gateway.store, gateway.keyring, handle, gateway.now_ms())
    if found is None:
        raise NotFound(f"Nothing waits under {handle[:80]}: it was decided or has expired.")
    return shown(found)


def approve(ask: Ask) -> Any:
    return _decide(ask, True)


def reject(ask: Ask) -> Any:
    return _decide(ask, False)


def _decide(ask: Ask, approved: bool) -> Any:
    gateway, handle = ask.gateway, ask.path["handle"]
    made = approvals.decide(
        gateway.store,
        gateway.keyring,
        handle,
        approved,
        ask.operator,
        ask.body.get("note", ""),
        gateway.now_ms(),
        seen=ask.body["seen"],
    )
    return told(handle, made)


def told(handle: str, made: Verdict) -> dict[str, Any]:
    """What was decided."""
    return {
        "handle": handle,
        "status": made.status,
        "operator": made.operator,
        "note": made.note,
        "decided_at_ms": made.decided_at_ms,
    }


def shown(held: Held) -> dict[str, Any]:
    """What an approver must see of it."""
    return {
        "handle": held.handle,
        "digest": held.digest,
        "tenant": held.tenant,
        "session_id": held.session_id,
        "gate": held.gate,
        "wire": held.wire,
        "model": held.model,
        "stream": held.stream,
        "principal": held.principal,
        "message": held.message,
        "calls": [dict(one) for one in held.calls],
        "plan_hash": held.plan_hash,
        "receipt_id": held.receipt_id,
        "held_at_ms": held.held_at_ms,
        "expires_at_ms": held.expires_at_ms,
    }


_VERDICT: Final = object_schema(
    ("handle", "status", "operator", "note", "decided_at_ms"),
    handle=_STRING,
    status={"type": "string", "enum": ["approved", "rejected"]},
    operator=_STRING,
    note=_STRING,
    decided_at_ms=WHOLE,
)
_DECISION: Final = object_schema(("seen",), seen={**TEXT, "description": "`digest` of what was looked at."}, note=NOTE)

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/wardwright/approvals",
        "approver",
        "What waits for an approval, oldest first within a page",
        list_approvals,
        object_schema(
            ("approvals", "next_after"),
            approvals={"type": "array", "items": _HELD},
            next_after={"type": ["string", "null"]},
        ),
        query=(
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "At most so many.", 100),
            Parameter("after", TEXT, "Go on after this handle.", ""),
        ),
    ),
    Route(
        "GET",
        "/v1/wardwright/approvals/{handle}",
        "approver",
        "One of them",
        show_approval,
        _HELD,
        errors=(404,),
    ),
    Route(
        "POST",
        "/v1/wardwright/approvals/{handle}/approve",
        "approver",
        "Approve it: the same request then gets this very reply",
        approve,
        _VERDICT,
        body=_DECISION,
        errors=(404, 409),
    ),
    Route(
        "POST",
        "/v1/wardwright/approvals/{handle}/reject",
        "approver",
        "Reject it",
        reject,
        _VERDICT,
        body=_DECISION,
        errors=(404, 409),
    ),
)
