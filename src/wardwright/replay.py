"""Stored receipts under another plan: what each gate would have been ruled, from the facts it kept.

Every gate is judged as if all before it had happened as recorded; what rules count is counted anew under the plan. A rule that
needs something no receipt keeps (text, arguments that were not captured, schemas …) is left out and named, never guessed at.
Must be given the receipts in the order they were written, from something that can be read twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast

from wardwright.errors import GovernanceUnavailable, ToolNameCollision
from wardwright.facts import STORED_FIELDS, VISIBILITY, ToolFact
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


@dataclass(frozen=True, slots=True)
class Flip:
    """A rule that acted on one side only, and the facts it acted on."""

    rule_id: str
    effect: str
    fires: Literal["before", "after"]
    facts: tuple[Mapping[str, Any], ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Change:
    """One gate that is ruled otherwise."""

    receipt_id: str
    session_id: str
    at_ms: int
    gate: str
    before: Decided
    after: Decided
    flips: tuple[Flip, ...]
    verdict: Verdict = "changed"


@dataclass(frozen=True, slots=True)
class Replay:
    """What a plan makes of recorded receipts. In a diff, `before` is the other plan instead of the record."""

    plan_hash: str
    receipts: int
    gates: int
    counts: Mapping[Verdict, int]
    changes: tuple[Change, ...]
    """Changed and unknown gates, in the order they were recorded."""
    unreplayable: tuple[Unreplayable, ...]
    fired: Mapping[str, tuple[int, int]]
    """Rule → at how many gates it acted before, and after."""
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "plan_hash": self.plan_hash,
            "receipts": self.receipts,
            "gates": self.gates,
            "counts": dict(self.counts),
            "changes": [_change_json(change) for change in self.changes],
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


def replay(plan: Plan, recorded: Iterable[Receipt], *, since_ms: int = 0) -> Replay:
    """The record against what `plan` would have ruled. Gates before `since_ms` are counted, not compared."""
    player = _Player(plan, recorded)
    tally = _Tally(since_ms)
    left_out = {one.rule_id for one in player.unreplayable}
    for place in _gates(recorded, tally):
        ruling = player.play(place)
        if ruling is None:
            continue
        before, after = _recorded(place.gate), _ruled(ruling)
        acted = _acted_then(place.gate)
        doubtful = any(effect not in _SILENT for rule, effect in acted if rule in left_out)
        tally.compare(
            place, before, after, _flips(_recorded_flips(place.gate), _ruled_flips(ruling)), doubtful=doubtful
        )
    return tally.close(plan.plan_hash, player.unreplayable, player.notes)


def diff(before: Plan, after: Plan, recorded: Iterable[Receipt], *, since_ms: int = 0) -> Replay:
    """What changes when `after` takes the place of `before`, over the same recorded facts."""
    old, new = _Player(before, recorded), _Player(after, recorded)
    tally = _Tally(since_ms)
    for place in _gates(recorded, tally):
        was, now = old.play(place), new.play(place)
        if was is not None and now is not None:
            tally.compare(place, _ruled(was), _ruled(now), _flips(_ruled_flips(was), _ruled_flips(now)))
    known: dict[tuple[str, str, str], Unreplayable] = {}
    for one in (*old.unreplayable, *new.unreplayable):
        changed = old.shape(one) != new.shape(one)
        known.setdefault((one.model, one.rule_id, one.missing), replace(one, changed=changed))
    return tally.close(after.plan_hash, tuple(known.values()), tuple(dict.fromkeys((*old.notes, *new.notes))))


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

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.receipts = 0
        self.gates = 0
        self.counts: dict[Verdict, int] = {"same": 0, "changed": 0, "unknown": 0}
        self.changes: list[Change] = []
        self.fired: dict[str, list[int]] = {}

    def compare(self, place: _Place, before: Decided, after: Decided, flips: _Flips, *, doubtful: bool = False) -> None:
        at_ms = int(place.gate["at_ms"])
        if at_ms < self.since_ms:
            return
        self.gates += 1
        for side, rules in enumerate((flips.before, flips.after)):
            for rule in rules:
                self.fired.setdefault(rule, [0, 0])[side] += 1
        verdict: Verdict = "same"
        if before.outcome() != after.outcome():
            verdict = "unknown" if doubtful else "changed"
            receipt = place.receipt
            self.changes.append(
                Change(
                    receipt["id"],
                    str(receipt.get("caller", {}).get("session_id", "")),
                    at_ms,
                    place.gate["gate"],
                    before,
                    after,
                    flips.flips,
                    verdict,
                )
            )
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


_Side: TypeAlias = dict[str, tuple[str, tuple[Mapping[str, Any], ...], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Flips:
    before: tuple[str, ...]
    after: tuple[str, ...]
    flips: tuple[Flip, ...]


def _flips(before: _Side, after: _Side) -> _Flips:
    flips: list[Flip] = []
    for rule, (effect, facts, evidence) in before.items():
        if rule not in after or after[rule][0] != effect:
            flips.append(Flip(rule, effect, "before", facts, evidence))
    for rule, (effect, facts, evidence) in after.items():
        if rule not in before or before[rule][0] != effect:
            flips.append(Flip(rule, effect, "after", facts, evidence))
    return _Flips(tuple(before), tuple(after), tuple(flips))


def _acted_then(gate: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (one["rule_id"], one["effect"])
        for one in gate.get("findings", ())
        if one.get("enforced", True) and not one.get("lifted")
    ]


def _recorded_flips(gate: Mapping[str, Any]) -> _Side:
    facts: Sequence[Mapping[str, Any]] = gate.get("facts", ())
    side: _Side = {}
    for one in gate.get("findings", ()):
        if one.get("enforced", True) and not one.get("lifted"):
            places = cast("Sequence[int]", one.get("facts", ()))
            used = tuple(_brief(facts[place]) for place in places if place < len(facts))
            side.setdefault(one["rule_id"], (one["effect"], used, one.get("evidence", {})))
    return side


def _ruled_flips(ruling: Ruling) -> _Side:
    side: _Side = {}
    for one in ruling.findings:
        if one.enforced and not one.lifted:
            used = tuple(_brief_fact(ruling.facts[place]) for place in one.facts)
            side.setdefault(one.rule_id, (one.effect, used, dict(one.evidence)))
    return side


_BRIEF: Final = (
    "namespace",
    "name",
    "risk_class",
    "phase",
    "source",
    "tool_call_id",
    "result_status",
    "marks",
    "ordinal",
)


def _brief(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: fact[name] for name in _BRIEF if fact.get(name)}


def _brief_fact(fact: ToolFact) -> Mapping[str, Any]:
    found: dict[str, Any] = {name: getattr(fact, name) for name in _BRIEF if getattr(fact, name)}
    if fact.marks:
        found["marks"] = list(fact.marks)
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
        "flips": [
            {
                "rule_id": flip.rule_id,
                "effect": flip.effect,
                "fires": flip.fires,
                "facts": [dict(fact) for fact in flip.facts],
                "evidence": {key: value for key, value in flip.evidence.items() if key != "tool_context"},
            }
            for flip in change.flips
        ],
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

    def shape(self, one: Unreplayable) -> object:
        """What a rule is, wherever it stands in the file; None when this plan has no such rule."""
        part = self.whole.models.get(one.model) or self.whole.model(one.model)
        rule = None if part is None else _rules(part).get(one.rule_id)
        return None if rule is None else replace(rule, line=0, column=0, order=0)

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
