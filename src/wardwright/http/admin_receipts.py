"""Receipts for operators: list, one, export, verify; and the questions that are answered from them: simulate, replay, diff, report.

The same answers as the command line gives with `--json`. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from wardwright import receipts
from wardwright.archive import StoredArchive, session_caller, session_registers
from wardwright.history import Head, scope_key
from wardwright.http.route import (
    INSTANT,
    MAX_INT,
    SOURCE,
    TEXT,
    WHOLE,
    Ask,
    BadRequest,
    Gone,
    Lines,
    NotFound,
    Parameter,
    Route,
    Schema,
    object_schema,
)
from wardwright.policy.compile import Plan
from wardwright.receipts import FILTERS, explain
from wardwright.replay import diff, replay
from wardwright.report import QUIET_MS, report
from wardwright.simulate import WIRES, Surface, read_transcript, simulate
from wardwright.store import ReceiptQuery, StoredReceipt, export, verify
from wardwright.wire.turn import Caller, WireName

_FILTERS: Final = tuple(
    Parameter(name, TEXT, "May be repeated: any of the values. Different names: all of them.", repeated=True)
    for name in FILTERS
)
_SINCE: Final = Parameter("since", INSTANT, "From this time on.")
_UNTIL: Final = Parameter("until", INSTANT, "Before this time.")
_CHAIN: Final = object_schema(
    ("writer", "sequence", "previous_hash", "hash"),
    writer={"type": "string"},
    sequence=WHOLE,
    previous_hash={"type": "string"},
    hash={"type": "string"},
)
_RECEIPT: Final[Schema] = {"type": "object", "description": "A receipt, as it is stored."}
_REPLAY: Final[Schema] = {
    "type": "object",
    "required": ["plan_hash", "receipts", "gates", "counts", "changes", "unreplayable", "fired", "notes"],
}


def list_receipts(ask: Ask) -> Any:
    query = ask.query
    page = ask.gateway.store.receipts(
        ReceiptQuery(_tags(ask), ask.instant("since"), ask.instant("until"), query["before"], query["limit"])
    )
    return {
        "receipts": [
            {"cursor": stored.cursor, "receipt": receipts.load(stored.row.body)}
            for stored in page.receipts
            if stored.row.body
        ],
        "next_before": page.next_before,
    }


def _tags(ask: Ask) -> Mapping[str, tuple[str, ...]]:
    return {name: values for name in FILTERS if (values := ask.query[name])}


def export_receipts(ask: Ask) -> Lines:
    return Lines(export(ask.gateway.store, ReceiptQuery(_tags(ask), ask.instant("since"), ask.instant("until"))))


def show_receipt(ask: Ask) -> Any:
    stored = _stored(ask)
    body = receipts.load(stored.row.body)
    link = stored.link
    return {
        "receipt": body,
        "explanation": explain(body),
        "cursor": stored.cursor,
        "chain": {
            "writer": link.writer,
            "sequence": link.sequence,
            "previous_hash": link.previous_hash,
            "hash": link.hash,
        },
    }


def _stored(ask: Ask) -> StoredReceipt:
    receipt_id = ask.path["receipt_id"]
    stored = ask.gateway.store.receipt(receipt_id)
    if stored is None:
        raise NotFound(f"There is no receipt '{receipt_id[:80]}'.")
    if not stored.row.body:
        raise Gone(f"The receipt was erased; its hash was {stored.erased_hash}.")
    return stored


def verify_receipts(ask: Ask) -> Any:
    found = verify(ask.gateway.store, ask.gateway.keyring.signing_keys, anchor=ask.query["anchor"])
    return {
        "ok": found.good,
        "receipts": found.receipts,
        "erased": found.erased,
        "chains": found.chains,
        "checkpoints": found.checkpoints,
        "flaws": [
            {"kind": flaw.kind, "writer": flaw.writer, "sequence": flaw.sequence, "message": flaw.message}
            for flaw in found.flaws
        ],
    }


def _plan(ask: Ask, name: str = "source") -> Plan:
    """The plan of a text in the body, or the one in force."""
    source: str | None = ask.body.get(name)
    return ask.gateway.plan if source is None else ask.gateway.compile(source.encode("utf-8", "surrogatepass"))


def run_simulation(ask: Ask) -> Any:
    gateway, body = ask.gateway, ask.body
    plan = _plan(ask)
    talk = read_transcript(body["transcript"], cast("WireName | None", body.get("wire")))
    model: str = body.get("model", "")
    for turn in talk.turns:
        if plan.model(model or turn.model) is None:
            raise BadRequest(f"The plan has no model '{(model or turn.model)[:80]}'. Known: {', '.join(plan.models)}.")
    caller, registers = Caller(session_id="simulation"), None
    if "session_id" in body:
        caller = session_caller(gateway.store, body["session_id"])
        turns = [replace(turn, model=model or turn.model) for turn in talk.turns]
        scope = scope_key("session_id", caller)
        # The key of when the session began: digests may have been replaced since.
        key = gateway.keyring.session_key(scope, gateway.store.load([scope], _nothing)[scope].head.since_ms)
        registers = session_registers(gateway.store, plan, turns, caller, key)
    return simulate(
        plan,
        talk,
        registers=registers,
        caller=caller,
        model=model,
        now=gateway.now_ms(),
        step_ms=int(body.get("step_ms", 0)),
        surface=cast("Surface | None", body.get("surface")),
        as_recorded=body.get("as_recorded", False),
    ).as_json()


def _nothing(_: Head) -> tuple[str, ...]:
    return ()


def _archive(ask: Ask) -> StoredArchive:
    session: str = ask.query.get("session_id") or ask.body.get("session_id", "")
    return StoredArchive(ask.gateway.store, session_id=session, until_ms=ask.instant("until"))


def run_replay(ask: Ask) -> Any:
    return replay(_plan(ask), _archive(ask), since_ms=ask.instant("since") or 0).as_json()


def run_diff(ask: Ask) -> Any:
    before, after = _plan(ask, "before"), _plan(ask, "after")
    return diff(before, after, _archive(ask), since_ms=ask.instant("since") or 0).as_json()


def run_report(ask: Ask) -> Any:
    return report(_archive(ask), plan=ask.gateway.plan, quiet_ms=ask.query["quiet_ms"]).as_json()


_SELECTION: Final[Mapping[str, Schema]] = {
    "session_id": {**TEXT, "description": "Only this session."},
    "since": INSTANT,
    "until": INSTANT,
}

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/receipts",
        "viewer",
        "List receipts, newest first",
        list_receipts,
        object_schema(
            ("receipts", "next_before"),
            receipts={
                "type": "array",
                "items": object_schema(("cursor", "receipt"), cursor=WHOLE, receipt=_RECEIPT),
            },
            next_before={"type": ["integer", "null"], "description": "For `before`; null when there are no more."},
        ),
        query=(
            *_FILTERS,
            _SINCE,
            _UNTIL,
            Parameter("before", WHOLE, "Go on after this cursor."),
            Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "At most so many.", 50),
        ),
    ),
    Route(
        "GET",
        "/v1/receipts/export",
        "viewer",
        "Receipts as lines of JSON, newest first, byte for byte as stored",
        export_receipts,
        {"type": "string"},
        query=(*_FILTERS, _SINCE, _UNTIL),
    ),
    Route(
        "GET",
        "/v1/receipts/verify",
        "viewer",
        "Walk every chain of receipts and tell what was changed, removed, moved, hidden or cut off",
        verify_receipts,
        object_schema(
            ("ok", "receipts", "erased", "chains", "checkpoints", "flaws"),
            ok={"type": "boolean"},
            receipts=WHOLE,
            erased=WHOLE,
            chains=WHOLE,
            checkpoints=WHOLE,
            flaws={"type": "array", "items": {"type": "object"}},
        ),
        query=(Parameter("anchor", TEXT, "The mark of a checkpoint that must still be there.", ""),),
        heavy=True,
    ),
    Route(
        "GET",
        "/v1/receipts/{receipt_id}",
        "viewer",
        "One receipt, and what it says in words",
        show_receipt,
        object_schema(
            ("receipt", "explanation", "cursor", "chain"),
            receipt=_RECEIPT,
            explanation={"type": "string"},
            cursor=WHOLE,
            chain=_CHAIN,
        ),
        errors=(404, 410),
    ),
    Route(
        "POST",
        "/v1/wardwright/simulate",
        "viewer",
        "Run a recorded conversation through the gates; nothing is executed, sent, used up or kept",
        run_simulation,
        {"type": "object", "required": ["plan_hash", "decisions", "unreached", "blocked_calls", "states", "steps"]},
        body=object_schema(
            ("transcript",),
            transcript={
                "type": ["array", "object"],
                "description": "A request body of any wire, or a list of messages.",
            },
            wire={"type": "string", "enum": list(WIRES)},
            model=TEXT,
            source={**SOURCE, "description": "Another plan than the one in force."},
            session_id={**TEXT, "description": "Go on from what is remembered of this session."},
            step_ms={"type": "integer", "minimum": 0, "maximum": MAX_INT},
            surface={"type": "string", "enum": ["all", "phase"]},
            as_recorded={"type": "boolean"},
        ),
        heavy=True,
        errors=(404, 422),
    ),
    Route(
        "POST",
        "/v1/wardwright/replay",
        "viewer",
        "Judge stored receipts again, by another plan or by the one in force",
        run_replay,
        _REPLAY,
        body=object_schema((), source=SOURCE, **_SELECTION),
        heavy=True,
        errors=(422,),
    ),
    Route(
        "POST",
        "/v1/wardwright/diff",
        "viewer",
        "What would change for recorded receipts if one plan took the place of another",
        run_diff,
        _REPLAY,
        body=object_schema(
            ("after",),
            before={**SOURCE, "description": "Instead of the plan in force."},
            after=SOURCE,
            **_SELECTION,
        ),
        heavy=True,
        errors=(422,),
    ),
    Route(
        "GET",
        "/v1/wardwright/report",
        "viewer",
        "What each rule did: fired, would have, retries that passed, time added, sessions abandoned",
        run_report,
        {"type": "object", "required": ["receipts", "gates", "sessions", "since_ms", "until_ms", "rules"]},
        query=(
            Parameter("session_id", TEXT, "Only this session.", ""),
            _UNTIL,
            Parameter(
                "quiet_ms",
                {"type": "integer", "minimum": 1, "maximum": MAX_INT},
                "A session that says nothing for so long after a refusal is abandoned.",
                QUIET_MS,
            ),
        ),
        heavy=True,
    ),
)
