"""The pages of the area Live: sessions as they run, what waits for an approval, what is stopped; and the forms that decide.

Looks at the newest exchanges only, so that a page costs the same at a thousand and at a million receipts. Decides nothing itself:
every form is one question of the admin API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from wardwright import receipts
from wardwright.errors import WardwrightError
from wardwright.http.admin import told
from wardwright.http.route import BadRequest, NotFound
from wardwright.http.visit import Answer, Page, Visit
from wardwright.overlay import STOP_KINDS
from wardwright.policy.windows import Position
from wardwright.receipts import Receipt
from wardwright.store import ReceiptQuery
from wardwright.ui import words
from wardwright.ui.memory import Kept, remembered
from wardwright.ui.words import Badge, Tone

LOOKED: Final = 200
"""Exchanges that one view of Live looks at."""
CARDS: Final = 10
"""Sessions shown with everything that is remembered of them."""
EVENTS: Final = 24
WAITING: Final = 20
STEPS: Final = 200
_STALE_MS: Final = 15_000
"""A page that nothing has happened to is still drawn anew after this: it tells how long things wait."""
_TENANTS: Final = 20
_ADMIN: Final = "/v1/wardwright"


@dataclass(frozen=True, slots=True)
class Event:
    """One tool event of a session's timeline."""

    tool: str
    what: str
    tone: Tone
    rules: tuple[str, ...]
    receipt_id: str


@dataclass(slots=True)
class Card:
    """One session, as far as its newest exchanges tell."""

    session_id: str
    tenant: str
    newest: Receipt
    badge: Badge
    headline: str
    exchanges: int = 0
    refused: int = 0
    events: list[Event] = field(default_factory=list[Event])
    detail: Mapping[str, Any] | None = None
    counters: Sequence[Kept] = ()
    waits: bool = False

    @property
    def address(self) -> str:
        return session_address(self.session_id, self.tenant)

    @property
    def urgent(self) -> bool:
        return self.waits or self.badge.tone in ("bad", "warn")


def session_address(session_id: str, tenant: str) -> str:
    return "/live/session?" + urlencode({"id": session_id, **({"tenant": tenant} if tenant else {})})


# what is shown


def show_live(visit: Visit) -> Answer:
    return visit.page("live.html", tag=_tag(visit), kinds=STOP_KINDS, **_live(visit))


def live_part(visit: Visit) -> Answer:
    """What the script asks for every two seconds; nothing when nothing has changed."""
    tag = _tag(visit)
    if visit.headers.get("if-none-match") == tag:
        return Answer(b"", 304, ((b"etag", tag.encode()),))
    answer = visit.fragment("live_part.html", **_live(visit))
    return Answer(answer.body, 200, ((b"etag", tag.encode()),))


def _tag(visit: Visit) -> str:
    """Whatever happens leaves a receipt."""
    newest = visit.gateway.store.receipts(ReceiptQuery(limit=1)).receipts
    now = visit.gateway.now_ms() // _STALE_MS
    plain = f"{newest[0].cursor if newest else 0}/{now}/{visit.csrf}/{visit.role}/{visit.query.get('before', '')}"
    return f'"{hashlib.sha256(plain.encode()).hexdigest()[:16]}"'


def _live(visit: Visit) -> dict[str, Any]:
    before = _cursor(visit.query.get("before", ""))
    page = visit.gateway.store.receipts(ReceiptQuery({"kind": ("exchange",)}, before=before, limit=LOOKED))
    waiting = _waiting(visit, WAITING)
    cards = _cards(receipts.load(one.row.body) for one in page.receipts if one.row.body)
    held = {(one["tenant"], one["session_id"]) for one in waiting["approvals"]}
    for card in cards:
        card.waits = (card.tenant, card.session_id) in held
    cards.sort(key=lambda card: (not card.waits, not card.urgent, -words.number(card.newest.get("at_ms"))))
    for card in cards[:CARDS]:
        _remember(visit, card)
    return {
        "waiting": waiting["approvals"],
        "more_waiting": waiting["next_after"],
        "stops": visit.ask("GET", f"{_ADMIN}/stops")["stops"],
        "cards": cards[:CARDS],
        "further": cards[CARDS:],
        "looked": len(page.receipts),
        "older": page.next_before,
        "before": before,
        "now_ms": visit.gateway.now_ms(),
        "base": _base(visit),
        "models": list(visit.gateway.plan.models),
    }


def _base(visit: Visit) -> str:
    """Where the visitor reaches the gateway; a proxy that speaks TLS for it says so."""
    scheme = "https" if visit.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{visit.headers.get('host', '')}"


def _cursor(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _waiting(visit: Visit, limit: int, after: str | None = None) -> Mapping[str, Any]:
    if not visit.may("approver"):
        return {"approvals": [], "next_after": None}
    found = visit.ask("GET", f"{_ADMIN}/approvals", {"limit": limit, "after": after})
    return {**found, "approvals": [_held(one) for one in found["approvals"]]}


def _held(one: Mapping[str, Any]) -> dict[str, Any]:
    """What waits, with a place for everything that is shown of it."""
    return {
        **one,
        "calls": [{"name": "", "arguments": "", "rule_id": "", "message": "", **call} for call in one["calls"]],
    }


def _cards(newest_first: Iterable[Receipt]) -> list[Card]:
    cards: dict[tuple[str, str], Card] = {}
    seen: set[str] = set()
    for receipt in newest_first:
        caller = words.part(receipt, "caller")
        name = words.text(caller.get("tenant")), words.text(caller.get("session_id"))
        # An exchange may be on record twice: when its request passed, and when it ended.
        if receipt["id"] in seen:
            continue
        seen.add(receipt["id"])
        badge = words.status_badge(receipt)
        card = cards.get(name)
        if card is None:
            card = cards[name] = Card(name[1], name[0], receipt, badge, words.headline(receipt))
        card.exchanges += 1
        card.refused += badge.tone == "bad"
        if len(card.events) < EVENTS:
            card.events[:0] = events_of(receipt)
    for card in cards.values():
        del card.events[:-EVENTS]
    return list(cards.values())


def events_of(receipt: Receipt) -> list[Event]:
    """The tool events of one exchange, in order."""
    found: list[Event] = []
    for gate in words.parts(words.part(receipt, "decision").get("gates")):
        calls = {words.text(call.get("call_id")): call for call in words.parts(gate.get("calls"))}
        blocked = gate.get("decision") == "block"
        for fact in words.parts(gate.get("facts")):
            source = words.text(fact.get("source"))
            if source == "declared_tool" or fact.get("repeat"):
                continue
            call = calls.get(words.text(fact.get("tool_call_id")), {})
            what, tone = _what(source, fact, "block" if blocked else words.text(call.get("status")))
            rules = tuple(words.texts(call.get("rules"))) or ((words.text(gate.get("rule_id")),) if blocked else ())
            found.append(Event(words.tool_of(fact), what, tone, rules, receipt["id"]))
    return found


def _what(source: str, fact: Mapping[str, Any], status: str) -> tuple[str, Tone]:
    if source == "tool_result":
        said = words.text(fact.get("result_status"))
        what = "result" if said in ("", "unknown") else f"result: {said}"
        return (what, "bad" if status in ("deny_call", "block") else "warn" if said in ("error", "timeout") else "")
    what = {"assistant_tool_call": "call", "tool_choice": "forced", "provider_event": "hosted"}.get(source, source)
    match status:
        case "deny_call":
            return f"{what} denied", "bad"
        case "block":
            return f"{what} blocked", "bad"
        case "require_approval":
            return f"{what} held", "warn"
        case _:
            return what, "good" if status == "allow" else ""


def _remember(visit: Visit, card: Card) -> None:
    try:
        detail = visit.ask("GET", f"{_ADMIN}/sessions/{card.session_id}", {"tenant": card.tenant, "limit": 1})
    except LookupError:
        return  # erased since, or no name that an address can have
    card.detail, card.counters = detail, counters(visit, detail)


def counters(visit: Visit, detail: Mapping[str, Any]) -> list[Kept]:
    """Counters and open windows of a session, from what the admin API tells of it."""
    model = visit.gateway.plan.model(detail["model"])
    if model is None:
        return []
    rules, now = receipts.rules_of(model), visit.gateway.now_ms()
    return [
        kept
        for scope in detail["scopes"]
        for one in scope["windows"]
        for kept in remembered(
            rules, one["rules"], one["of"], one["value"], Position(scope["turn"], scope["events"], now)
        )
    ]


# one session


def show_session(visit: Visit) -> Answer:
    session = visit.query.get("id", "")
    if not session.isprintable() or not session:
        raise NotFound("The address names no session.")
    tenant = tenant_of(visit, session)
    detail = visit.ask("GET", f"{_ADMIN}/sessions/{session}", {"tenant": tenant, "limit": 1})
    page = visit.ask(
        "GET",
        "/v1/receipts",
        {
            "session_id": session,
            "tenant": tenant or None,
            "before": visit.query.get("before"),
            "limit": STEPS,
        },
    )
    return visit.page(
        "session.html",
        session=detail,
        address=session_address(session, tenant),
        tenant=tenant,
        counters=counters(visit, detail),
        steps=list(_steps(page["receipts"], tenant)),
        older=page["next_before"],
        before=visit.query.get("before"),
        note=visit.form.get("note", ""),
    )


def tenant_of(visit: Visit, session: str) -> str:
    """Whose session it is: as the address says; else the one without a tenant's name, else the newest of that name."""
    if "tenant" in visit.query:
        return visit.query["tenant"]
    query = ReceiptQuery({"session_id": (session,), "kind": ("exchange",)}, limit=_TENANTS)
    found = [receipts.load(one.row.body) for one in visit.gateway.store.receipts(query).receipts if one.row.body]
    tenants = [words.text(words.part(one, "caller").get("tenant")) for one in found]
    return "" if "" in tenants or not tenants else tenants[0]


def _steps(listed: Iterable[Mapping[str, Any]], tenant: str) -> Iterator[dict[str, Any]]:
    for one in listed:
        receipt: Receipt = one["receipt"]
        # A tenant of no name cannot be filtered by.
        if words.text(words.part(receipt, "caller").get("tenant")) == tenant:
            yield {
                "id": receipt["id"],
                "at_ms": receipt["at_ms"],
                "badge": words.status_badge(receipt),
                "headline": words.headline(receipt),
                "events": events_of(receipt),
            }


# approvals


def list_approvals(visit: Visit) -> Answer:
    found = _waiting(visit, 100, visit.query.get("after"))
    return visit.page(
        "approvals.html",
        waiting=found["approvals"],
        after=found["next_after"],
        now_ms=visit.gateway.now_ms(),
    )


def show_approval(visit: Visit) -> Answer:
    return _approval(visit, visit.path["handle"])


def _approval(visit: Visit, handle: str, problem: WardwrightError | None = None) -> Answer:
    """What waits, to be decided; with what was typed when deciding did not work."""
    status, message = 200, ""
    if problem is not None:
        status, _, message = told(problem)
    return visit.page(
        "approval.html",
        status=status,
        held=_held(visit.ask("GET", f"{_ADMIN}/approvals/{handle}")),
        problem=message,
        note=visit.form.get("note", ""),
        now_ms=visit.gateway.now_ms(),
    )


def decide(visit: Visit) -> Answer:
    handle, form = visit.path["handle"], visit.form
    action = form.get("decision", "")
    try:
        if action not in ("approve", "reject"):
            raise BadRequest("Nothing was decided: choose Approve or Reject.")
        made = visit.ask(
            "POST",
            f"{_ADMIN}/approvals/{handle}/{action}",
            body={"seen": form.get("seen", ""), "note": form.get("note", "")},
        )
    except WardwrightError as error:
        try:
            return _approval(visit, handle, error)
        except WardwrightError:
            raise error from None  # nothing waits any more
    return visit.redirect("/live", f"{handle} is {made['status']}.")


# stops


def stop(visit: Visit) -> Answer:
    form = visit.form
    body: dict[str, Any] = {"kind": form.get("kind", ""), "name": form.get("name", ""), "note": form.get("note", "")}
    if form.get("tenant"):
        body["tenant"] = form["tenant"]
    made = visit.ask("POST", f"{_ADMIN}/stops", body=body)
    return visit.redirect(_back(form), f"Stopped: {made['kind']} {made['name']}. Recorded as {made['receipt_id']}.")


def unstop(visit: Visit) -> Answer:
    form = visit.form
    query = {
        "kind": form.get("kind", ""),
        "name": form.get("name", ""),
        "tenant": form.get("tenant") if form.get("of_tenant") else None,
        "note": form.get("note") or None,
    }
    made = visit.ask("DELETE", f"{_ADMIN}/stops", query)
    return visit.redirect(_back(form), f"Released: {made['kind']} {made['name']}. Recorded as {made['receipt_id']}.")


def release(visit: Visit) -> Answer:
    """Puts a session's states back, or begins counters anew: exactly what is ticked; states and routes when nothing is."""
    form = visit.form
    session, tenant = form.get("session_id", ""), form.get("tenant", "")
    body: dict[str, Any] = {"note": form.get("note", ""), **({"tenant": tenant} if tenant else {})}
    for kind in ("machine", "rule"):
        names = [name.removeprefix(f"{kind}:") for name in form if name.startswith(f"{kind}:")]
        if names:
            body[f"{kind}s"] = names
    if form.get("stop"):
        body["stop"] = True
    made = visit.ask("POST", f"{_ADMIN}/sessions/{session}/release", body=body)
    told = f"Released session {session}: {len(made['machines'])} states, {len(made['rules'])} counters."
    return visit.redirect(session_address(session, tenant), f"{told} Recorded as {made['receipt_id']}.")


def _back(form: Mapping[str, str]) -> str:
    return session_address(form["name"], form.get("tenant", "")) if form.get("back") == "session" else "/live"


PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/live", "viewer", show_live),
    Page("GET", "/live/part", "viewer", live_part),
    Page("GET", "/live/session", "viewer", show_session),
    Page("POST", "/live/stop", "operator", stop),
    Page("POST", "/live/unstop", "operator", unstop),
    Page("POST", "/live/release", "operator", release),
    Page("GET", "/approvals", "approver", list_approvals),
    Page("GET", "/approvals/{handle}", "approver", show_approval),
    Page("POST", "/approvals/{handle}", "approver", decide),
)
