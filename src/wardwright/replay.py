"""Stored receipts under another plan: what each gate would have been ruled, from the facts it kept.

Every gate is judged as if all before it had happened as recorded; what rules count is counted anew under the plan. A rule that
needs something no receipt keeps (text, arguments that were not captured, schemas …) is left out and named, never guessed at.
Must be given the receipts in the order they were written, from something that can be read twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from wardwright.catalog import look_up, parse_pointer
from wardwright.errors import GovernanceUnavailable, ToolNameCollision
from wardwright.facts import STORED_FIELDS, VISIBILITY, ToolFact, canonical
from wardwright.gateway import judge, scopes_of
from wardwright.history import EMPTY_LEDGER, EMPTY_SCOPE, Registers, ScopeState, apply
from wardwright.policy.compile import ModelPlan, Plan, RuleSet
from wardwright.policy.matching import reads_arguments, still_fits
from wardwright.policy.rules import (
    ArgumentProvenance,
    ArgumentSchema,
    Budget,
    Finding,
    Intent,
    Matcher,
    Predicate,
    Route,
    Rule,
    Ruling,
    StructuredOutput,
    TextRule,
    ToolSequence,
)
from wardwright.receipts import Receipt
from wardwright.wire.turn import Caller, DeclaredTool, ToolChoice, Turn, Usage

Verdict: TypeAlias = Literal["same", "changed", "unknown"]
"""same: the plan rules as was recorded
changed: it rules otherwise
unknown: it would, but for a rule that acted then and cannot be replayed"""

_SILENT: Final = frozenset({"alert_async", "annotate", "transition", "transform", "inject_reminder"})
"""Effects that change neither what passes nor who answers."""


@dataclass(frozen=True, slots=True)
class Unreplayable:
    """A rule that was left out, and the fact that was not kept."""

    rule_id: str
    kind: str
    missing: str
    model: str
    changed: bool = True
    """Of a diff: the rule differs between the plans. One that does not can hardly make a difference."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of one gate, as far as two rulings can differ for those outside."""

    decision: str
    rule_id: str = ""
    calls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Call id → allow, deny_call, require_approval or block."""
    allowed_routes: tuple[str, ...] | None = None
    model: str = ""
    prefer: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    """Declared tools that the provider did not see."""

    def outcome(self) -> tuple[Any, ...]:
        """Everything but who is to blame."""
        return (
            self.decision,
            sorted(self.calls.items()),
            None if self.allowed_routes is None else sorted(self.allowed_routes),
            self.model,
            self.prefer,
            self.withheld,
        )


Because: TypeAlias = Literal["rule_added", "rule_removed", "rule_changed", "facts_changed", ""]
"""rule_added, rule_removed: only one of the plans has the rule
rule_changed: both have it, and it says something else
facts_changed: the rule is the same; what it looks at (the catalog's word, a state, a count) is not
empty: the record does not tell"""

CHANGES: Final = 1_000
"""Changed gates that are listed; all are counted."""
FLIPS: Final = 16
"""Rules and calls listed per changed gate."""
FACTS: Final = 8
"""Facts listed per rule and call."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A rule that acts otherwise on the two sides, and the facts that made the difference, as receipts have them."""

    rule_id: str
    kind: str
    before: str
    """What it did on that side; empty: nothing."""
    after: str
    because: Because = ""
    tool: str = ""
    """Empty: the message as a whole."""
    call_id: str = ""
    facts: tuple[Mapping[str, Any], ...] = ()
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])
    """What the two sides make of it, where that differs: `risk_class`, `state`, `observed_count`, `threshold` …"""
    left_off: int = 0
    """Facts that are not listed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One gate that is ruled otherwise."""

    receipt_id: str
    session_id: str
    at_ms: int
    gate: str
    before: Decided
    after: Decided
    flipped: tuple[Flip, ...]
    verdict: Verdict = "changed"
    left_off: int = 0
    """Flips that are not listed."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a plan makes of recorded receipts. In a diff, `before` is the other plan instead of the record."""

    plan_hash: str
    receipts: int
    gates: int
    counts: Mapping[Verdict, int]
    changes: tuple[Change, ...]
    """Changed and unknown gates, in the order they were recorded; the first of them, where there are many."""
    unreplayable: tuple[Unreplayable, ...]
    fired: Mapping[str, tuple[int, int]]
    """Rule → at how many gates it acted before, and after."""
    notes: tuple[str, ...] = ()
    left_off: int = 0
    """Changes that are not listed."""

    def as_json(self) -> dict[str, Any]:
        return {
            "plan_hash": self.plan_hash,
            "receipts": self.receipts,
            "gates": self.gates,
            "counts": dict(self.counts),
            "changes": [_change_json(change) for change in self.changes],
            "left_off": self.left_off,
            "unreplayable": [
                {
                    "rule_id": one.rule_id,
                    "kind": one.kind,
                    "missing": one.missing,
                    "model": one.model,
                    "changed": one.changed,
                }
                for one in self.unreplayable
            ],
            "fired": {rule: {"before": before, "after": after} for rule, (before, after) in self.fired.items()},
            "notes": list(self.notes),
        }


def replay(plan: Plan, recorded: Iterable[Receipt], *, since_ms: int = 0, limit: int = CHANGES) -> Replay:
    """The record against what `plan` would have ruled. Gates before `since_ms` are counted, not compared; `limit` changes listed."""
    player = _Player(plan, recorded)
    tally = _Tally(since_ms, limit)
    left_out = {one.rule_id for one in player.unreplayable}
    for place in _gates(recorded, tally):
        ruling = player.play(place)
        if ruling is None:
            continue
        before, after = _Side.recorded(place.gate), _Side.ruled(ruling, player, place)
        doubtful = any(one.effect not in _SILENT for one in before.acted.values() if one.rule_id in left_out)
        tally.compare(place, before, after, doubtful=doubtful)
    return tally.close(plan.plan_hash, player.unreplayable, player.notes)


def diff(before: Plan, after: Plan, recorded: Iterable[Receipt], *, since_ms: int = 0, limit: int = CHANGES) -> Replay:
    """What changes when `after` takes the place of `before`, over the same recorded facts."""
    old, new = _Player(before, recorded), _Player(after, recorded)
    tally = _Tally(since_ms, limit)
    for place in _gates(recorded, tally):
        was, now = old.play(place), new.play(place)
        if was is not None and now is not None:
            tally.compare(place, _Side.ruled(was, old, place), _Side.ruled(now, new, place))
    known: dict[tuple[str, str, str], Unreplayable] = {}
    for one in (*old.unreplayable, *new.unreplayable):
        changed = old.shape(one.model, one.rule_id) != new.shape(one.model, one.rule_id)
        known.setdefault((one.model, one.rule_id, one.missing), replace(one, changed=changed))
    return tally.close(after.plan_hash, tuple(known.values()), tuple(dict.fromkeys((*old.notes, *new.notes))))


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded gate, judged again, and everything that is remembered after it."""

    receipt: Receipt
    gate: Mapping[str, Any]
    ruling: Ruling | None
    """None: the plan could not judge it; a note says why."""
    same: bool
    """The plan rules as was recorded."""
    scopes: Mapping[str, ScopeState]
    """By scope key, as they were after this gate."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Recorded gates one by one, under a plan."""

    steps: tuple[Step, ...]
    unreplayable: tuple[Unreplayable, ...]
    notes: tuple[str, ...]


def walk(plan: Plan, recorded: Sequence[Receipt]) -> Walk:
    """What states, windows and counters were at each gate of a few receipts, counted from the first of them on."""
    player = _Player(plan, recorded)
    steps: list[Step] = []
    for place in _gates(recorded, _Tally(0, 0)):
        ruling = player.play(place)
        same = ruling is not None and _ruled(ruling).outcome() == _recorded(place.gate).outcome()
        steps.append(Step(place.receipt, place.gate, ruling, same, dict(player.scopes)))
    return Walk(tuple(steps), player.unreplayable, player.notes)


# reading receipts


@dataclass(slots=True)
class _Place:
    """One recorded gate."""

    receipt: Receipt
    gate: Mapping[str, Any]
    last_reply: bool


def _gates(recorded: Iterable[Receipt], tally: _Tally) -> Iterator[_Place]:
    seen: dict[str, Sequence[Any]] = {}
    for receipt in recorded:
        if receipt.get("kind") != "exchange":
            continue
        tally.receipts += 1
        session = str(receipt.get("caller", {}).get("session_id", ""))
        gates: list[Any] = receipt["decision"]["gates"]
        earlier = seen.pop(session, ())
        if receipt["final"]["status"] == "open":
            seen[session] = gates
        replies = [index for index, gate in enumerate(gates) if gate["gate"] == "reply"]
        for index, gate in enumerate(gates):
            # An exchange may be on record twice: when its request passed, and when it ended.
            if gate not in earlier:
                yield _Place(receipt, gate, bool(replies) and index == replies[-1])


class _Tally:
    """What was compared so far."""

    def __init__(self, since_ms: int, limit: int) -> None:
        self.since_ms = since_ms
        self.limit = limit
        self.receipts = 0
        self.gates = 0
        self.counts: dict[Verdict, int] = {"same": 0, "changed": 0, "unknown": 0}
        self.changes: list[Change] = []
        self.left_off = 0
        self.fired: dict[str, list[int]] = {}

    def compare(self, place: _Place, before: _Side, after: _Side, *, doubtful: bool = False) -> None:
        at_ms = int(place.gate["at_ms"])
        if at_ms < self.since_ms:
            return
        self.gates += 1
        for number, side in enumerate((before, after)):
            for rule in dict.fromkeys(one.rule_id for one in side.acted.values()):
                self.fired.setdefault(rule, [0, 0])[number] += 1
        verdict: Verdict = "same"
        if before.decided.outcome() != after.decided.outcome():
            verdict = "unknown" if doubtful else "changed"
            if len(self.changes) < self.limit:
                self.changes.append(_change(place, at_ms, before, after, verdict))
            else:
                self.left_off += 1
        self.counts[verdict] += 1

    def close(self, plan_hash: str, unreplayable: Sequence[Unreplayable], notes: Sequence[str]) -> Replay:
        return Replay(
            plan_hash,
            self.receipts,
            self.gates,
            self.counts,
            tuple(self.changes),
            tuple(unreplayable),
            {rule: (counts[0], counts[1]) for rule, counts in sorted(self.fired.items())},
            tuple(notes),
            self.left_off,
        )


def _change(place: _Place, at_ms: int, before: _Side, after: _Side, verdict: Verdict) -> Change:
    flipped = [
        flip
        for key in dict.fromkeys((*before.acted, *after.acted))
        if (flip := _flip(before.acted.get(key), after.acted.get(key), before, after)) is not None
    ]
    receipt = place.receipt
    return Change(
        receipt["id"],
        str(receipt.get("caller", {}).get("session_id", "")),
        at_ms,
        place.gate["gate"],
        before.decided,
        after.decided,
        tuple(flipped[:FLIPS]),
        verdict,
        max(0, len(flipped) - FLIPS),
    )


def _recorded(gate: Mapping[str, Any]) -> Decided:
    route: Mapping[str, Any] = gate.get("route", {})
    allowed = route.get("allowed")
    return Decided(
        gate["decision"],
        gate.get("rule_id", ""),
        {call["call_id"]: call["status"] for call in gate.get("calls", ())},
        None if allowed is None else tuple(allowed),
        route.get("model", ""),
        tuple(route.get("prefer", ())),
        tuple(sorted(one["name"] for one in gate.get("withheld", ()))),
    )


def _ruled(ruling: Ruling) -> Decided:
    route: Route = ruling.route
    return Decided(
        ruling.decision,
        ruling.rule_id,
        {call.call_id: call.status for call in ruling.calls},
        # A receipt leaves out what is empty, so an empty list and none are one.
        route.allowed or None,
        route.model,
        route.prefer,
        tuple(sorted((*ruling.stripped, *ruling.withheld_server_tools))),
    )


@dataclass(frozen=True, slots=True)
class _Acted:
    """One finding that took effect."""

    rule_id: str
    kind: str
    effect: str
    call_id: str
    places: tuple[int, ...]
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Side:
    """What was ruled at one gate, by the record or by a plan, and what it was ruled from."""

    decided: Decided
    acted: Mapping[tuple[str, str], _Acted]
    """(rule, call) → what it did."""
    facts: Sequence[ToolFact | Mapping[str, Any]]
    states: Mapping[str, str]
    player: _Player | None = None
    model: str = ""
    known: frozenset[str] = frozenset()
    """Of a record: the rules that were candidates."""

    @staticmethod
    def recorded(gate: Mapping[str, Any]) -> _Side:
        acted: dict[tuple[str, str], _Acted] = {}
        for one in gate.get("findings", ()):
            if one.get("enforced", True) and not one.get("lifted"):
                call, used = one.get("call_id", ""), tuple(one.get("facts", ()))
                found = _Acted(one["rule_id"], one.get("kind", ""), one["effect"], call, used, one.get("evidence", {}))
                acted.setdefault((found.rule_id, call), found)
        known = frozenset(one["rule_id"] for one in gate.get("candidates", ()))
        return _Side(_recorded(gate), acted, gate.get("facts", ()), gate.get("states", {}), known=known)

    @staticmethod
    def ruled(ruling: Ruling, player: _Player, place: _Place) -> _Side:
        acted: dict[tuple[str, str], _Acted] = {}
        for one in ruling.findings:
            if one.enforced and not one.lifted:
                found = _Acted(one.rule_id, one.kind, one.effect, one.call_id, one.facts, one.evidence)
                acted.setdefault((one.rule_id, one.call_id), found)
        model = place.receipt["request"].get("model", "")
        return _Side(_ruled(ruling), acted, ruling.facts, ruling.states, player, model)

    def rule(self, rule_id: str) -> Rule | None:
        return None if self.player is None else self.player.rule(self.model, rule_id)

    def fact(self, place: int) -> Mapping[str, Any]:
        return _brief(self.facts[place]) if place < len(self.facts) else {}

    def same(self, other: Mapping[str, Any]) -> Mapping[str, Any]:
        """What this side makes of a fact of the other."""
        for place in range(len(self.facts)):
            fact = self.fact(place)
            if all(fact.get(name) == other.get(name) for name in _IDENTITY):
                return fact
        return {}


def _flip(was: _Acted | None, now: _Acted | None, before: _Side, after: _Side) -> Flip | None:
    one = now or was
    if one is None or (was is not None and now is not None and was.effect == now.effect):
        return None
    side, other = (after, before) if now is not None else (before, after)
    rules = before.rule(one.rule_id), after.rule(one.rule_id)
    used = [side.fact(place) for place in one.places[:FACTS]]
    values: dict[str, tuple[Any, Any]] = {}

    def differ(name: str, mine: Any, its: Any) -> None:
        if mine != its:
            values.setdefault(name, (its, mine) if side is after else (mine, its))

    for fact in used:
        seen = other.same(fact)
        for name in _NAMED if seen else ():
            differ(name, fact.get(name), seen.get(name))
    for name in ("threshold", "limits") if before.player is not None else ():
        mine, its = (getattr(rule, name, None) for rule in (rules if side is before else reversed(rules)))
        differ(name, mine, its)
    if "observed_count" in one.evidence:
        counted = was.evidence.get("observed_count") if was is not None and now is not None else None
        differ("observed_count", one.evidence["observed_count"], counted)
    machine = next((rule.machine for rule in rules if rule is not None and _reads_state(rule)), "")
    if machine and side.states.get(machine) and other.states.get(machine):
        differ("state", side.states[machine], other.states[machine])
    shown = tuple({**fact, **_arguments(rules, side, place)} for fact, place in zip(used, one.places, strict=False))
    tool = next((f"{fact.get('namespace', '')}.{fact.get('name', '')}" for fact in used), "")
    return Flip(
        one.rule_id,
        one.kind,
        "" if was is None else was.effect,
        "" if now is None else now.effect,
        _because(one.rule_id, before, after),
        tool,
        one.call_id,
        shown,
        values,
        max(0, len(one.places) - FACTS),
    )


def _because(rule_id: str, before: _Side, after: _Side) -> Because:
    now = after.rule(rule_id)
    if before.player is None:
        # The plan of the record is not at hand: what is known is which rules were candidates then.
        had = rule_id in before.known or any(one.rule_id == rule_id for one in before.acted.values())
        return "rule_removed" if had and now is None else ""
    was = before.rule(rule_id)
    if was is None or now is None:
        return "rule_added" if was is None else "rule_removed"
    return "facts_changed" if _shape(was) == _shape(now) else "rule_changed"


def _arguments(rules: Sequence[Rule | None], side: _Side, place: int) -> dict[str, Any]:
    """What the rule read of captured arguments, as far as the receipt has them."""
    fact = side.facts[place] if place < len(side.facts) else None
    text = fact.arguments if isinstance(fact, ToolFact) else None
    pointers = {one.pointer for rule in rules if rule is not None for part in _matchers(rule) for one in part.arguments}
    if not text or not pointers:
        return {}
    _, value = canonical(text)
    found = {
        pointer: _clipped(held) for pointer in sorted(pointers) if pointer and (held := _at(value, pointer)) is not None
    }
    return {"arguments": found} if found else {}


def _at(value: Any, pointer: str) -> Any:
    parts = parse_pointer(pointer)
    return None if parts is None else look_up(value, parts)[1]


def _clipped(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"


_BRIEF: Final = (
    "namespace",
    "name",
    "risk_class",
    "phase",
    "source",
    "tool_call_id",
    "result_status",
    "execution_location",
    "marks",
    "trust",
    "effects",
    "arguments_digest",
    "result_digest",
    "raw_name",
    "ordinal",
)


_IDENTITY: Final = ("source", "tool_call_id", "ordinal", "raw_name")
"""What makes two facts the same event, whatever the catalog calls it."""
_NAMED: Final = ("namespace", "name", "risk_class", "effects", "trust", "phase", "result_status", "execution_location")
"""What a catalog says of an event."""


_USUAL: Final[Mapping[str, Any]] = {"result_status": "unknown", "execution_location": "client", "trust": "untrusted"}


def _brief(fact: ToolFact | Mapping[str, Any]) -> Mapping[str, Any]:
    """A fact as receipts have it, without what goes without saying."""
    found: dict[str, Any] = {}
    for name in _BRIEF:
        value = getattr(fact, name) if isinstance(fact, ToolFact) else fact.get(name)
        if value and value != _USUAL.get(name):
            found[name] = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
    return found


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "receipt_id": change.receipt_id,
        "session_id": change.session_id,
        "at_ms": change.at_ms,
        "gate": change.gate,
        "verdict": change.verdict,
        "before": _decided_json(change.before),
        "after": _decided_json(change.after),
        "flipped": [
            {
                "rule_id": flip.rule_id,
                "kind": flip.kind,
                "tool": flip.tool,
                "call_id": flip.call_id,
                "from": flip.before,
                "to": flip.after,
                "because": flip.because,
                "values": {name: {"from": was, "to": now} for name, (was, now) in flip.values.items()},
                "facts": [dict(fact) for fact in flip.facts],
                "left_off": flip.left_off,
            }
            for flip in change.flipped
        ],
        "left_off": change.left_off,
    }


def _decided_json(decided: Decided) -> dict[str, Any]:
    return {
        "decision": decided.decision,
        "rule_id": decided.rule_id,
        "calls": dict(decided.calls),
        "allowed_routes": None if decided.allowed_routes is None else list(decided.allowed_routes),
        "model": decided.model,
        "prefer": list(decided.prefer),
        "withheld": list(decided.withheld),
    }


# one plan over all receipts


class _Player:
    """A plan without the rules it cannot replay, and what its other rules have counted so far."""

    def __init__(self, plan: Plan, recorded: Iterable[Receipt]) -> None:
        self.whole = plan
        gaps = _Gaps(plan)
        for receipt in recorded:
            gaps.look(receipt)
        self.unreplayable = tuple(gaps.close())
        left_out = {(one.model, one.rule_id) for one in self.unreplayable}
        self.plan = replace(plan, models={name: _without(part, left_out) for name, part in plan.models.items()})
        self.scopes: dict[str, ScopeState] = {}
        self.notes: tuple[str, ...] = ()

    def rule(self, model: str, rule_id: str) -> Rule | None:
        """The rule of that name; None when this plan has none."""
        part = self.whole.models.get(model) or self.whole.model(model)
        return None if part is None else _rules(part).get(rule_id)

    def shape(self, model: str, rule_id: str) -> object:
        rule = self.rule(model, rule_id)
        return None if rule is None else _shape(rule)

    def play(self, place: _Place) -> Ruling | None:
        receipt, gate = place.receipt, place.gate
        turn = _turn(receipt, gate, last_reply=place.last_reply)
        part = self.plan.model(turn.model)
        if part is None:
            self._note(f"No plan governs model '{turn.model}'.")
            return None
        at_ms = int(gate["at_ms"])
        facts = [_fact(one, part) for one in gate.get("facts", ()) if one["source"] != "declared_tool"]
        try:
            registers = Registers(
                {key: self.scopes.get(key, EMPTY_SCOPE) for key in scopes_of(self.plan, turn)}, b"replay"
            )
            ruling, delta = judge(self.plan, registers, turn, facts, at_ms, phase=gate.get("phase"))
            approved = _approved(gate, ruling.findings)
            if approved:
                turn.approvals = approved
                ruling, delta = judge(self.plan, registers, turn, facts, at_ms, phase=gate.get("phase"))
        except ToolNameCollision as error:
            self._note(f"Receipt {receipt['id']}: {error}")
            return None
        except GovernanceUnavailable as error:
            self._note(f"Receipt {receipt['id']}: {error}")
            return None
        learnt = {change.scope: change.ledger for change in delta.scopes}
        for key, state in apply(registers, delta).scopes.items():
            # Of calls only those that never passed here are remembered, for results that answer them later; the others happened
            # as recorded, whatever this plan makes of them.
            ledger = registers.scopes[key].ledger if key in registers.scopes else EMPTY_LEDGER
            for name, entry in learnt.get(key, {}).items():
                if entry.status == "observed":
                    ledger = ledger.set(name, entry)
            self.scopes[key] = state._replace(ledger=ledger)
        return ruling

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes = (*self.notes, note)


def _without(part: ModelPlan, left_out: set[tuple[str, str]]) -> ModelPlan:
    def kept(rules: RuleSet) -> RuleSet:
        return RuleSet([rule for rule in rules.rules if (part.model_id, rule.id) not in left_out])

    return replace(part, rules=kept(part.rules), bundles={name: kept(bundle) for name, bundle in part.bundles.items()})


def _approved(gate: Mapping[str, Any], findings: Sequence[Finding]) -> tuple[str, ...]:
    """An operator's approval stays given: the findings that one lifted then are lifted again."""
    lifted = {
        (one["rule_id"], one.get("call_id", "")) for one in gate.get("findings", ()) if one.get("lifted") == "approval"
    }
    return tuple(one.key for one in findings if one.key and (one.rule_id, one.call_id) in lifted)


def _turn(receipt: Receipt, gate: Mapping[str, Any], *, last_reply: bool) -> Turn:
    request: Mapping[str, Any] = receipt["request"]
    context: Mapping[str, Any] = request.get("tool_context", {})
    choice: Mapping[str, Any] | None = request.get("tool_choice")
    usage: Mapping[str, Any] | None = receipt["final"].get("usage")
    caller = {name: value for name, value in receipt.get("caller", {}).items() if name in Caller.__dataclass_fields__}
    return Turn(
        gate["gate"],
        request["wire"],
        request.get("model", ""),
        (),
        [_declared(tool) for tool in context.get("available_tools", ())],
        None if choice is None else ToolChoice(choice.get("mode", "auto"), tuple(choice.get("names", ()))),
        Caller(**caller),
        Usage(**usage) if usage is not None and last_reply and gate["gate"] == "reply" else None,
        target=gate.get("target", ""),
        released=bool(gate.get("binds_next")),
    )


def _declared(tool: Mapping[str, Any]) -> DeclaredTool:
    raw: str = tool.get("raw_name") or f"{tool.get('namespace', '')}.{tool.get('name', '')}"
    namespace: str = tool.get("namespace", "")
    if not namespace.startswith("provider."):
        return DeclaredTool(raw)
    kind, _, server = namespace.removeprefix("provider.").partition(".")
    return DeclaredTool(raw.removesuffix(f":{server}") if server else raw, hosted=kind, server=server or None)


_RENAMED: Final = frozenset({"tool_choice", "assistant_tool_call", "tool_result", "inferred"})


def _fact(kept: Mapping[str, Any], part: ModelPlan) -> ToolFact:
    """A fact as it was kept, named anew by the plan's own catalog."""
    values: dict[str, Any] = {name: kept[name] for name in STORED_FIELDS if name in kept}
    for name in ("marks", "effects"):
        values[name] = tuple(values.get(name, ()))
    for name in ("namespace", "name", "raw_name", "risk_class", "phase", "source"):
        values.setdefault(name, "")
    captured: Mapping[str, Any] = kept.get("captured", {})
    fact = ToolFact(**values, arguments=captured.get("arguments"), content=captured.get("content"))
    if fact.source in _RENAMED and fact.execution_location != "provider" and fact.namespace != "wardwright":
        identity = part.catalog.resolve(fact.raw_name)
        fact.namespace, fact.name = identity.namespace, identity.name
        fact.risk_class, fact.effects, fact.trust = identity.risk_class, identity.effects, identity.trust
        if fact.source != "inferred":
            fact.confidence = identity.confidence
        if identity.execution_location:
            fact.execution_location = cast("Any", identity.execution_location)
            fact.visibility_level = VISIBILITY[identity.execution_location]
    return fact


def _shape(rule: Rule) -> object:
    """What a rule is, wherever it stands in the file."""
    return replace(rule, line=0, column=0, order=0)


def _rules(part: ModelPlan) -> dict[str, Rule]:
    return {rule.id: rule for rules in (part.rules, *part.bundles.values()) for rule in rules.rules}


# what receipts do not keep


class _Gaps:
    """Which rules need something that these receipts did not keep."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.missing: dict[tuple[str, str], str] = {}
        self.arguments: dict[str, list[tuple[Rule, Matcher]]] = {}
        """Model → matchers that read arguments, until a fact is found without any."""
        self.statuses: dict[str, list[tuple[Rule, Matcher]]] = {}
        for model, part in plan.models.items():
            for rule in _rules(part).values():
                reason = _never_kept(rule)
                if reason:
                    self.missing[model, rule.id] = reason
                    continue
                for matcher in _matchers(rule):
                    if reads_arguments(matcher):
                        self.arguments.setdefault(model, []).append((rule, matcher))
                    if matcher.result_status or "argument_repair" in matcher.phase:
                        self.statuses.setdefault(model, []).append((rule, matcher))

    def look(self, receipt: Receipt) -> None:
        if receipt.get("kind") != "exchange" or not (self.arguments or self.statuses):
            return
        part = self.plan.model(receipt["request"].get("model", ""))
        if part is None:
            return
        waiting, read = self.arguments.get(part.model_id, []), self.statuses.get(part.model_id, [])
        for gate in receipt["decision"]["gates"] if waiting or read else ():
            for kept in gate.get("facts", ()):
                captured: Mapping[str, Any] = kept.get("captured", {})
                if not captured.get("arguments") and kept.get("arguments_digest"):
                    fact = _fact(kept, part)
                    for rule, matcher in waiting:
                        if still_fits(replace(matcher, arguments=(), negated=None), fact) is not False:
                            self.missing.setdefault((part.model_id, rule.id), "arguments were not captured")
                if kept["source"] == "tool_result" and not captured.get("content"):
                    fact = _fact(kept, part)
                    if part.catalog.resolve(fact.raw_name).status_tests:
                        for rule, matcher in read:
                            plain = replace(matcher, result_status=(), phase=(), arguments=(), negated=None)
                            if still_fits(plain, fact) is not False:
                                self.missing.setdefault(
                                    (part.model_id, rule.id),
                                    "the catalog reads the status from results, and their content was not captured",
                                )

    def close(self) -> Iterator[Unreplayable]:
        """Also what depends on a rule that was left out: states it moves, bundles it attaches."""
        for model, part in self.plan.models.items():
            rules = _rules(part)
            spread = True
            while spread:
                spread = False
                gone = [rules[rule_id] for name, rule_id in self.missing if name == model]
                moved = {rule.machine: rule.id for rule in gone if rule.action.transition_to}
                attached = {rule.action.bundle: rule.id for rule in gone if rule.action.bundle}
                for rule in rules.values():
                    if (model, rule.id) in self.missing:
                        continue
                    reason = ""
                    if _reads_state(rule) and rule.machine in moved:
                        reason = f"its state is moved by '{moved[rule.machine]}', which cannot be replayed"
                    elif rule.bundle and rule.bundle in attached:
                        reason = f"its bundle is attached by '{attached[rule.bundle]}', which cannot be replayed"
                    if reason:
                        self.missing[model, rule.id] = reason
                        spread = True
            for rule_id, rule in rules.items():
                if (model, rule_id) in self.missing:
                    yield Unreplayable(rule_id, rule.kind, self.missing[model, rule_id], model)


def _reads_state(rule: Rule) -> bool:
    return bool(rule.state_scope) or (
        isinstance(rule, ToolSequence) and rule.until is not None and bool(rule.until.state)
    )


def _never_kept(rule: Rule) -> str:
    """What a rule needs that no receipt holds; empty when there is nothing of the kind."""
    if isinstance(rule, (TextRule, StructuredOutput)):
        return "text is not kept"
    if isinstance(rule, (ArgumentProvenance, Intent)):
        return "what users and tools said is not kept"
    if isinstance(rule, ArgumentSchema) and rule.schema is None:
        return "the declared schema is not kept"
    if rule.action.name == "set_controls":
        return "the controls of declared tools are not kept"
    if isinstance(rule, Budget) and "seconds" in rule.limits:
        return "the time a provider took is not kept"
    if isinstance(rule, ToolSequence):
        if rule.until is not None and rule.until.user_turn:
            return "user turns are not kept"
        parts = (rule.after, *(() if rule.until is None or rule.until.tool is None else (rule.until.tool,)))
        if any("declared_tool" in matcher.source for matcher in parts):
            return "changes of the declared tools are not kept"
    if any("definition_changed" in matcher.mark for matcher in _matchers(rule)):
        return "tool definitions are not kept"
    return ""


_ANY_ARGUMENT: Final = Predicate("", "any", lambda _: True)


def _matchers(rule: Rule) -> Iterator[Matcher]:
    """All matchers of a rule, those of its exceptions too."""
    for name in ("tool", "after", "then"):
        matcher = getattr(rule, name, None)
        if isinstance(matcher, Matcher):
            yield matcher
    if isinstance(rule, ArgumentSchema):
        # It reads the arguments of whatever it matches.
        yield replace(rule.tool, arguments=(*rule.tool.arguments, _ANY_ARGUMENT))
    if isinstance(rule, ToolSequence) and rule.until is not None and rule.until.tool is not None:
        yield rule.until.tool
    for exemption in rule.exceptions:
        if exemption.tool is not None:
            yield exemption.tool
