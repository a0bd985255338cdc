"""The pages of the area Receipts: search with every filter, one receipt in words with its place in the chain, a session replayed.

Pages by cursor and never counts everything. A replay rebuilds what was remembered from the exchanges before a step, as far back as
`REBUILT` of them, and says when that is not all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args
from urllib.parse import urlencode

from wardwright import receipts, ui
from wardwright.errors import ConfigError
from wardwright.facts import PHASES, RISK_CLASSES, SOURCES
from wardwright.history import ChainLink, ScopeState, scope_key
from wardwright.http.page_live import events_of, session_address, tenant_of
from wardwright.http.route import BadRequest, NotFound, dump
from wardwright.http.visit import Answer, Page, Visit
from wardwright.policy.compile import ModelPlan, Plan
from wardwright.policy.windows import Position
from wardwright.projection import project_model
from wardwright.receipts import FILTERS, Receipt, Status, ToolPolicyStatus
from wardwright.replay import Step, walk
from wardwright.store import ReceiptQuery, StoredReceipt
from wardwright.ui import words
from wardwright.ui.chain import check_link
from wardwright.ui.memory import Kept, remembered
from wardwright.wire.turn import Caller

LISTED: Final = 50
RAW: Final = 200_000
"""Characters of a receipt that are shown within its page."""
REBUILT: Final = 300
"""Exchanges before a step that its counters are rebuilt from."""
WHOLE: Final = 20_000
"""Receipts that are verified while somebody waits for the page …"""
NEWEST: Final = 2_000
"""… and of each chain when there are more."""
CHAINS: Final = 8
_PLANS: Final = 100
"""Former plans that are looked through for the one of a receipt."""
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "tool_phase": PHASES,
    "tool_risk_class": RISK_CLASSES,
    "tool_source": SOURCES,
    "tool_policy_status": get_args(ToolPolicyStatus),
    "status": get_args(Status),
    "kind": ("exchange", "admin"),
}
_TOOL: Final = tuple(name for name in FILTERS if name.startswith("tool_"))
_OUTCOME: Final = ("status", "rule", "model", "selected_model", "kind")
_TIMES: Final = ("since", "until")
_CALLER: Final = tuple(name for name in FILTERS if name not in (*_TOOL, *_OUTCOME))


# search


def search(visit: Visit) -> Answer:
    query = {name: visit.query[name].strip() for name in (*FILTERS, *_TIMES) if visit.query.get(name, "").strip()}
    wanted = visit.query.get("q", "").strip()
    if wanted:
        return visit.redirect(_found(visit, wanted))
    problem = ""
    found: dict[str, Any] = {"receipts": [], "next_before": None}
    before = visit.query.get("before")
    try:
        found = visit.ask("GET", "/v1/receipts", {**query, "before": before, "limit": LISTED})
    except BadRequest as error:
        problem = str(error)
    return visit.page(
        "receipts.html",
        status=400 if problem else 200,
        problem=problem,
        query=query,
        groups=(
            ("Tool", _fields(visit, _TOOL)),
            ("Outcome and time", _fields(visit, (*_OUTCOME, *_TIMES))),
            ("Caller", _fields(visit, _CALLER)),
        ),
        rows=[_row(one["receipt"]) for one in found["receipts"]],
        before=before,
        first="/receipts?" + urlencode(query),
        older=None
        if found["next_before"] is None
        else "/receipts?" + urlencode({**query, "before": found["next_before"]}),
    )


def _fields(visit: Visit, names: Iterable[str]) -> list[tuple[str, str, Sequence[str]]]:
    """Name, what was typed, and what there is to choose from."""
    return [(name, visit.query.get(name, ""), _CHOICES.get(name, ())) for name in names]


def _found(visit: Visit, wanted: str) -> str:
    """Where one word leads: a receipt, a session, a call; else a search for a tool of that name."""
    store = visit.gateway.store
    if store.receipt(wanted) is not None:
        return f"/receipts/{wanted}"
    for name in ("session_id", "tool_call_id", "rule"):
        if store.receipts(ReceiptQuery({name: (wanted,)}, limit=1)).receipts:
            return "/receipts?" + urlencode({name: wanted})
    namespace, dot, name = wanted.rpartition(".")
    tool = {"tool_namespace": namespace, "tool_name": name} if dot and namespace else {"tool_name": wanted}
    return "/receipts?" + urlencode(tool)


def _row(receipt: Receipt) -> dict[str, Any]:
    caller, decision = words.part(receipt, "caller"), words.part(receipt, "decision")
    session, tenant = words.text(caller.get("session_id")), words.text(caller.get("tenant"))
    return {
        "id": receipt["id"],
        "at_ms": receipt["at_ms"],
        "kind": receipt["kind"],
        "badge": words.status_badge(receipt),
        "headline": words.headline(receipt),
        "tools": list(dict.fromkeys(event.tool for event in events_of(receipt))),
        "rule": words.text(decision.get("rule_id")),
        "model": words.text(words.part(receipt, "request").get("model")),
        "session": session,
        "session_address": session_address(session, tenant) if session else "",
        "principal": words.text(caller.get("principal")),
    }


# one receipt


def show_receipt(visit: Visit) -> Answer:
    found = visit.ask("GET", f"/v1/receipts/{visit.path['receipt_id']}")
    receipt: Receipt = found["receipt"]
    caller = words.part(receipt, "caller")
    session, tenant = words.text(caller.get("session_id")), words.text(caller.get("tenant"))
    before, stored, after = _neighbours(visit, receipt["id"])
    checks = check_link(stored, before, after)
    return visit.page(
        "receipt.html",
        receipt=receipt,
        told=words.explain(receipt, _labels(visit, receipt)),
        chain=found["chain"],
        checks=checks,
        holds=all(check.holds for check in checks),
        before=None if before is None else before.row.id,
        after=None if after is None else after.row.id,
        caller=[(name, words.text(value)) for name, value in caller.items()],
        session=session,
        session_address=session_address(session, tenant) if session else "",
        replay=_address(session, tenant, found["cursor"]) if session and receipt["kind"] == "exchange" else "",
        admin=words.part(receipt, "admin"),
        raw=text if len(text := ui.pretty(receipt)) <= RAW else "",
    )


def show_json(visit: Visit) -> Answer:
    found = visit.ask("GET", f"/v1/receipts/{visit.path['receipt_id']}")
    return Answer(dump(found), kind=b"application/json")


def _neighbours(visit: Visit, receipt_id: str) -> tuple[StoredReceipt | None, StoredReceipt, StoredReceipt | None]:
    store = visit.gateway.store
    stored = store.receipt(receipt_id)
    if stored is None:
        raise NotFound(f"There is no receipt '{receipt_id[:80]}'.")
    sequence = stored.link.sequence
    near = {one.link.sequence: one for one in store.chain(stored.link.writer, max(0, sequence - 2), 3)}
    return near.get(sequence - 1), stored, near.get(sequence + 1)


def _labels(visit: Visit, receipt: Receipt) -> dict[str, str]:
    """How much of a provider's own tools can be reached, as the plan in force knows the target that answered."""
    part = visit.gateway.plan.model(words.text(words.part(receipt, "request").get("model")))
    target = words.text(words.part(receipt, "final").get("selected_model"))
    if part is None:
        return {}
    return {region.tools: region.label for region in project_model(part).regions if region.target == target}


def offer_verify(visit: Visit) -> Answer:
    return visit.page("verify.html", found=None, newest=None, whole=WHOLE, part=NEWEST)


def verify(visit: Visit) -> Answer:
    """All of it while that takes seconds; of a long archive the newest of each chain, for the rest there is a command."""
    heads = visit.gateway.store.heads()
    if sum(head.sequence for head in heads) <= WHOLE:
        found = visit.ask("GET", "/v1/receipts/verify")
        return visit.page("verify.html", found=found, newest=None, whole=WHOLE, part=NEWEST)
    newest = [_newest(visit, head) for head in heads[:CHAINS]]
    return visit.page("verify.html", found=None, newest=newest, whole=WHOLE, part=NEWEST)


def _newest(visit: Visit, head: ChainLink) -> dict[str, Any]:
    """The end of one chain, link by link."""
    links = visit.gateway.store.chain(head.writer, max(0, head.sequence - NEWEST), NEWEST)
    wrong: list[tuple[StoredReceipt, str]] = []
    for place, stored in enumerate(links):
        before = links[place - 1] if place else None
        after = links[place + 1] if place + 1 < len(links) else None
        wrong += [(stored, check.says) for check in check_link(stored, before, after) if not check.holds]
    return {"writer": head.writer, "looked": len(links), "of": head.sequence, "wrong": wrong}


# a session, step by step


def _address(session: str, tenant: str, cursor: int | None = None) -> str:
    at = {} if cursor is None else {"at": cursor}
    return "/replay?" + urlencode({"id": session, **({"tenant": tenant} if tenant else {}), **at})


def show_step(visit: Visit) -> Answer:
    """One exchange of a session, gate by gate, with what was remembered after each."""
    session = visit.query.get("id", "")
    tenant = tenant_of(visit, session)
    steps = _Steps(visit, session, tenant)
    at = visit.query.get("at", "")
    cursor = int(at) if at.isascii() and at.isdecimal() and len(at) <= 15 else None
    window = steps.up_to(cursor)
    if not window:
        raise NotFound(f"There is no session '{session[:80]}'.")
    here = window[0]
    receipt = receipts.load(here.row.body)
    plan, exact = _plan_of(visit, words.text(receipt.get("plan_hash")))
    played = walk(plan, [receipts.load(one.row.body) for one in reversed(window)])
    own = [step for step in played.steps if step.receipt["id"] == receipt["id"]]
    following = steps.after(here.cursor)
    return visit.page(
        "replay.html",
        session=session,
        session_address=session_address(session, tenant),
        receipt=receipt,
        badge=words.status_badge(receipt),
        headline=words.headline(receipt),
        number=None if steps.cut else len(window),
        cut=steps.cut,
        gates=[_gate(step, plan, index) for index, step in enumerate(own, 1)],
        exact=exact,
        left_out=played.unreplayable,
        notes=played.notes,
        first=_address(session, tenant, steps.after(0)),
        previous=_address(session, tenant, window[1].cursor) if len(window) > 1 else "",
        next=_address(session, tenant, following) if following is not None else "",
        last=_address(session, tenant),
        rebuilt=len(window),
    )


class _Steps:
    """The exchanges of one session, by their cursors."""

    def __init__(self, visit: Visit, session: str, tenant: str) -> None:
        self._store = visit.gateway.store
        self._tenant = tenant
        tags: dict[str, tuple[str, ...]] = {"session_id": (session,), "kind": ("exchange",)}
        if tenant:
            tags["tenant"] = (tenant,)
        self._query = ReceiptQuery(tags)
        self.cut = False

    def up_to(self, cursor: int | None) -> list[StoredReceipt]:
        """The one at the cursor (the last when none is given) and those before it, newest first."""
        query = replace(self._query, before=None if cursor is None else cursor + 1, limit=REBUILT)
        page = self._store.receipts(query)
        self.cut = page.next_before is not None
        # A tenant of no name cannot be filtered by.
        return [one for one in page.receipts if one.row.body and self._own(one)]

    def after(self, cursor: int) -> int | None:
        """The cursor of the next one. Stores list newest first, so it is found by halving: twenty looks at a million."""
        newest = self._last_before(None)
        if newest is None or newest <= cursor:
            return None
        low, high = cursor, newest  # nothing in (cursor, low], something in (cursor, high]
        while high - low > 1:
            middle = (low + high) // 2
            found = self._last_before(middle + 1)
            if found is not None and found > cursor:
                high = found
            else:
                low = middle
        return high

    def _last_before(self, before: int | None) -> int | None:
        found = self._store.receipts(replace(self._query, before=before, limit=1)).receipts
        return found[0].cursor if found else None

    def _own(self, stored: StoredReceipt) -> bool:
        return bool(self._tenant) or stored.row.scope.split("\x1f", 2)[1:2] == [""]


def _plan_of(visit: Visit, plan_hash: str) -> tuple[Plan, bool]:
    """The plan that ruled then, if it is still known; else the one in force."""
    gateway = visit.gateway
    if gateway.plan.plan_hash == plan_hash:
        return gateway.plan, True
    for epoch in gateway.store.plan_epochs(_PLANS):
        if epoch.plan_hash == plan_hash:
            try:
                return gateway.compile(epoch.source), True
            except ConfigError:
                break  # written for another version
    return gateway.plan, False


def _gate(step: Step, plan: Plan, number: int) -> dict[str, Any]:
    told = words.gate_words(step.gate)
    part = plan.model(words.text(words.part(step.receipt, "request").get("model")))
    return {
        "number": number,
        "words": told,
        "counters": [] if part is None else list(_counters(step, part)),
        "same": step.same,
        "judged": step.ruling is not None,
        "now": "" if step.ruling is None else step.ruling.decision,
    }


def _counters(step: Step, part: ModelPlan) -> Iterator[Kept]:
    """Everything that rules had counted after a gate, in the scopes of the step's own caller."""
    rules = receipts.rules_of(part)
    names: dict[str, list[str]] = {}
    for rule in rules.values():
        names.setdefault(rule.key, []).append(rule.id)
    kept = words.part(step.receipt, "caller")
    caller = Caller(**{name: kept[name] for name in Caller.__dataclass_fields__ if name in kept})
    at_ms = words.number(step.gate.get("at_ms"))
    seen: set[tuple[str, str, str]] = set()
    for kind in ("session_id", "run_id", "agent", "user", "application", "tenant"):
        state: ScopeState | None = step.scopes.get(scope_key(kind, caller))
        if state is None:
            continue
        at = Position(state.head.turn, state.head.event, at_ms)
        for (rule_key, of), value in sorted(state.registers.items(), key=lambda entry: entry[0]):
            for one in remembered(rules, names.get(rule_key, ()), of, value, at):
                if (one.rule_id, one.of, one.says) not in seen:
                    seen.add((one.rule_id, one.of, one.says))
                    yield one


PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/receipts", "viewer", search),
    Page("GET", "/receipts/verify", "viewer", offer_verify),
    Page("POST", "/receipts/verify", "viewer", verify, heavy=True),
    Page("GET", "/receipts/{receipt_id}", "viewer", show_receipt),
    Page("GET", "/receipts/{receipt_id}/json", "viewer", show_json),
    Page("GET", "/replay", "viewer", show_step, heavy=True),
)
