"""A compiled plan as nodes people can look at: per rule its state scope, phases, matchers, reads, writes, effects and conflicts.

Made from the rules the engine itself judges by, never from YAML, and from the tables that say what a gate permits. Tests hold it
against what `govern` does: no finding, no register and no conflict that its node does not announce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations, permutations
from typing import Any, Final, Literal, TypeAlias

from wardwright.policy.compile import ROUTING, ModelPlan, Plan
from wardwright.policy.rules import (
    AllowedTools,
    ArgumentProvenance,
    ArgumentSchema,
    Budget,
    HistoryThreshold,
    Intent,
    LoopThreshold,
    Matcher,
    Rule,
    StructuredOutput,
    TextRule,
    ToolSelector,
    ToolSequence,
    Window,
)
from wardwright.wire.turn import Gate

ConflictKind: TypeAlias = Literal["routes", "preference", "transition"]
"""routes: both at once leave no model that may answer, which blocks
preference: one prefers a model that the other does not allow, so the preference is ignored
transition: both move the same machine to different states; the higher priority wins, then the first declared"""

RegionLabel: TypeAlias = Literal["controllable", "observable", "opaque"]
"""controllable: it can be bounded, hidden or refused before it runs
observable: the provider runs it and reports it; rules see it afterwards
opaque: nothing of it is seen"""

_GATES: Final[tuple[Gate, ...]] = ("request", "reply", "result")
_KEYS: Final = (
    "namespace",
    "name",
    "risk_class",
    "phase",
    "source",
    "result_status",
    "confidence",
    "execution_location",
    "mark",
    "trust",
)


@dataclass(frozen=True, slots=True)
class Node:
    """One rule as the engine has it."""

    id: str
    kind: str
    order: int
    bundle: str
    mode: str
    priority: int
    severity: str
    owner: str
    line: int
    key: str
    """What its registers are kept under."""
    scope: str
    """Whose history it counts in."""
    machine: str
    state_scope: tuple[str, ...]
    """Acts only in these states of `machine`; empty: in all."""
    gates: tuple[Gate, ...]
    """Where it can act. A counting rule counts at every gate its facts appear at."""
    phases: tuple[str, ...]
    """Phases it names; empty: all."""
    matchers: Mapping[str, Mapping[str, Any]]
    """Part (tool, after, then, until, allowed …) → what must hold, as compiled: defaults filled in."""
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    effects: Mapping[str, tuple[str, ...]]
    """Gate → effects it can ask for there. A rule that raises blocks, whatever stands here."""
    conflicts: tuple[str, ...] = ()
    """Ids of the rules it can come into conflict with."""

    def as_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class PossibleConflict:
    """Rules that can match at the same gate and then contradict each other."""

    kind: ConflictKind
    rules: tuple[str, ...]
    """Two; more where only all of them together leave no model."""
    gates: tuple[Gate, ...]
    message: str


@dataclass(frozen=True, slots=True)
class MachineNode:
    """One state machine, with who moves it and who looks at it."""

    id: str
    scope: str
    initial_state: str
    states: tuple[str, ...]
    moved_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """State → rules that enter it."""
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of tools at one target, and how far it can be governed there (G26)."""

    target: str
    tools: str
    """Namespace: `*` for tools that callers and the gateway run, `provider.<kind>` for hosted ones, `provider.*` for the rest of these."""
    label: RegionLabel
    events: bool
    controls: tuple[str, ...] = ()
    """What can be set before the call."""
    unset: tuple[str, ...] = ()
    """Rules that set a control which this target does not take: they do nothing here."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One model's plan, laid out."""

    model_id: str
    plan_hash: str
    targets: tuple[str, ...]
    machines: tuple[MachineNode, ...]
    nodes: tuple[Node, ...]
    conflicts: tuple[PossibleConflict, ...]
    regions: tuple[Region, ...] = ()

    def node(self, rule_id: str) -> Node:
        return next(node for node in self.nodes if node.id == rule_id)

    def as_json(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "plan_hash": self.plan_hash,
            "targets": list(self.targets),
            "machines": [
                {name: _plain(getattr(one, name)) for name in one.__dataclass_fields__} for one in self.machines
            ],
            "nodes": [node.as_json() for node in self.nodes],
            "conflicts": [
                {"kind": one.kind, "rules": list(one.rules), "gates": list(one.gates), "message": one.message}
                for one in self.conflicts
            ],
            "regions": [
                {name: _plain(getattr(one, name)) for name in one.__dataclass_fields__} for one in self.regions
            ],
        }


def project(plan: Plan) -> tuple[Projection, ...]:
    """Every model of a plan, in the order of the file."""
    return tuple(project_model(part) for part in plan.models.values())


def project_model(part: ModelPlan) -> Projection:
    rules = [rule for ruleset in (part.rules, *part.bundles.values()) for rule in ruleset.rules]
    conflicts = tuple(_conflicts(rules))
    against: dict[str, dict[str, None]] = {}
    for one in conflicts:
        for left, right in permutations(one.rules, 2):
            against.setdefault(left, {})[right] = None
    nodes = tuple(_node(rule, part, tuple(against.get(rule.id, ()))) for rule in rules)
    return Projection(
        part.model_id,
        part.plan_hash,
        tuple(target.model for target in part.targets),
        tuple(_machines(part, rules, nodes)),
        nodes,
        conflicts,
        tuple(_regions(part, rules)),
    )


def _regions(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Region]:
    """Of every target that can use tools. What no record mentions is opaque, whatever the provider may do."""
    for target in part.targets:
        if not target.tools:
            continue
        yield Region(target.model, "*", "controllable", events=True)
        for kind, known in target.capabilities.items():
            namespace = f"provider.{kind}"
            label: RegionLabel = "controllable" if known.controls else "observable" if known.events else "opaque"
            unset = tuple(
                rule.id
                for rule in rules
                if rule.action.name == "set_controls"
                and not set(rule.action.controls) <= set(known.controls)
                and any(_names(matcher, namespace) for _, matcher in _parts(rule))
            )
            yield Region(target.model, namespace, label, known.events, known.controls, unset)
        yield Region(target.model, "provider.*", "opaque", events=False)


def _names(matcher: Matcher, namespace: str) -> bool:
    return not matcher.namespace or any(fnmatchcase(namespace, one.lower()) for one in matcher.namespace)


def _node(rule: Rule, part: ModelPlan, conflicts: tuple[str, ...]) -> Node:
    return Node(
        rule.id,
        rule.kind,
        rule.order,
        rule.bundle,
        rule.mode,
        rule.priority,
        rule.severity,
        rule.owner,
        rule.line,
        rule.key,
        rule.scope,
        rule.machine,
        rule.state_scope,
        tuple(gate for gate in _GATES if gate in rule.gates),
        tuple(dict.fromkeys(phase for phases in _phases(rule) for phase in phases)),
        dict(_matchers(rule)),
        tuple(dict.fromkeys(_reads(rule, part))),
        tuple(dict.fromkeys(_writes(rule, part))),
        {gate: effects for gate in _GATES if gate in rule.gates and (effects := _effects(rule, gate))},
        conflicts,
    )


def _phases(rule: Rule) -> Iterator[tuple[str, ...]]:
    if isinstance(rule, AllowedTools):
        yield rule.phases
    for _, matcher in _parts(rule):
        yield matcher.phase


def _parts(rule: Rule) -> Iterator[tuple[str, Matcher]]:
    if isinstance(rule, ToolSequence):
        yield "after", rule.after
        if rule.then is not None:
            yield "then", rule.then
        if rule.until is not None and rule.until.tool is not None:
            yield "until", rule.until.tool
    elif isinstance(
        rule, (ToolSelector, LoopThreshold, HistoryThreshold, ArgumentSchema, ArgumentProvenance, Intent, Budget)
    ):
        matcher = rule.tool
        if matcher is not None:
            yield "tool", matcher


def _matchers(rule: Rule) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, matcher in _parts(rule):
        yield name, _described(matcher)
    if isinstance(rule, AllowedTools):
        yield (
            "allowed",
            {
                "tools": [
                    {"namespace": tool.namespace or "*", "name": tool.name, "risk_class": tool.risk_class or "*"}
                    for tool in rule.allowed
                ]
            },
        )
    if isinstance(rule, TextRule):
        yield "text", {"match": rule.match, "roles": list(rule.roles), "ignore_case": rule.ignore_case}
    for index, matcher in enumerate(rule.action.strip):
        yield f"strip[{index}]", _described(matcher)
    for index, exemption in enumerate(rule.exceptions):
        described: dict[str, Any] = {"expires_at_ms": exemption.expires_at_ms, "caller": dict(exemption.caller)}
        if exemption.tool is not None:
            described["tool"] = _described(exemption.tool)
        yield f"exception[{index}]", described


def _described(matcher: Matcher) -> dict[str, Any]:
    """What the engine tests, not what the author wrote."""
    found: dict[str, Any] = {key: list(getattr(matcher, key)) for key in _KEYS if getattr(matcher, key)}
    if matcher.arguments:
        found["arguments"] = [predicate.words for predicate in matcher.arguments]
    if matcher.negated is not None:
        found["not"] = _described(matcher.negated)
    return found


def _fields(matcher: Matcher) -> Iterator[str]:
    for key in _KEYS:
        if getattr(matcher, key):
            yield f"fact.{key}"
    for predicate in matcher.arguments:
        yield f"arguments:{predicate.pointer or '/'}"
    if matcher.negated is not None:
        yield from _fields(matcher.negated)


def _reads(rule: Rule, part: ModelPlan) -> Iterator[str]:
    for _, matcher in _parts(rule):
        yield from _fields(matcher)
    for exemption in rule.exceptions:
        yield "clock"
        yield from (f"caller.{name}" for name in exemption.caller)
        if exemption.tool is not None:
            yield from _fields(exemption.tool)
    if rule.state_scope:
        yield f"state:{rule.machine}"
    if isinstance(rule, AllowedTools):
        yield from ("declared_tools", "fact.namespace", "fact.name", "phase")
        if any(tool.risk_class for tool in rule.allowed):
            yield "fact.risk_class"
        if rule.surface == "filter":
            yield "server_tools"
    elif isinstance(rule, TextRule):
        yield from (f"text:{role}" for role in rule.roles)
    elif isinstance(rule, StructuredOutput):
        yield "text:assistant"
        if rule.schema is None:
            yield "response_format"
    elif isinstance(rule, ArgumentSchema):
        yield "arguments:/"
        if rule.schema is None:
            yield "declared_tools"
    elif isinstance(rule, ArgumentProvenance):
        yield from ("arguments:/", "text:user", "results")
    elif isinstance(rule, Intent):
        yield from ("fact.effects", "text:user")
    elif isinstance(rule, Budget):
        yield from (f"usage.{name}" for name in rule.limits if name != "calls")
    if isinstance(rule, LoopThreshold):
        yield from ("fact.namespace", "fact.name")
        if rule.equal != "tool":
            yield "fact.arguments_digest"
        if rule.equal == "tool+arguments+result":
            yield "fact.result_digest"
    if isinstance(rule, ToolSequence) and rule.until is not None:
        if rule.until.state:
            yield f"state:{rule.machine}"
        if rule.until.user_turn:
            yield "text:user"
    if _counts(rule):
        yield f"register:{rule.key}"
    if isinstance(rule, ToolSequence) or (isinstance(rule, Budget) and "calls" in rule.limits):
        # A call that any rule refused starts, ends and spends nothing.
        yield "refusals"
    window: Window | None = getattr(rule, "window", None)
    machine = part.machines[rule.machine]
    expires = machine.expires_ms is not None or any(state.expires_ms is not None for state in machine.states.values())
    if (window is not None and window.ms is not None) or (rule.state_scope and expires):
        yield "clock"
    if rule.action.name == "require_approval":
        yield "approvals"
    if rule.action.name in ROUTING and "reply" in rule.gates:
        yield "target"


def _counts(rule: Rule) -> bool:
    return isinstance(rule, (LoopThreshold, HistoryThreshold, Budget)) or (
        isinstance(rule, ToolSequence) and rule.then is not None
    )


def _writes(rule: Rule, part: ModelPlan) -> Iterator[str]:
    if _counts(rule):
        yield f"register:{rule.key}"
    moves = bool(rule.action.transition_to)
    # In observe mode a rule finds and counts, and changes nothing else.
    if rule.mode == "enforce":
        if moves:
            yield f"state:{rule.machine}"
            yield from _ended(rule.machine, part)
        if rule.action.name in ROUTING and "reply" in rule.gates:
            yield "bind"
        if rule.action.bundle:
            yield f"bundle:{rule.action.bundle}"
    if isinstance(rule, ToolSequence) and rule.then is None and rule.until is not None:
        yield f"state:{rule.machine}"
        yield from _ended(rule.machine, part)
    if isinstance(rule, TextRule) and "request" in rule.gates:
        yield "text_hits"


def _ended(machine: str, part: ModelPlan) -> Iterator[str]:
    """Entering a state ends the sequences that wait for it."""
    for ruleset in (part.rules, *part.bundles.values()):
        for (name, _), waiting in ruleset.until_states.items():
            if name == machine:
                yield from (f"register:{rule.key}" for rule in waiting)


def _effects(rule: Rule, gate: Gate) -> tuple[str, ...]:
    if isinstance(rule, AllowedTools):
        if gate == "request":
            return {"block": ("block",), "filter": ("strip_tools",), "deny_call": ()}[rule.surface]
        return ("block",) if rule.surface == "block" else ("deny_call", "block")
    if isinstance(rule, (TextRule, StructuredOutput)):
        return (rule.action.name,)
    if isinstance(rule, (ArgumentSchema, ArgumentProvenance, Intent)):
        return (rule.action.name,)
    if rule.action.name == "deny_call" and gate == "reply":
        # What a provider already ran cannot be denied any more: the whole reply is.
        return ("deny_call", "block")
    return (rule.action.name,)


def _machines(part: ModelPlan, rules: Sequence[Rule], nodes: Sequence[Node]) -> Iterator[MachineNode]:
    for machine in part.machines.values():
        moved: dict[str, tuple[str, ...]] = {}
        for rule in rules:
            if rule.machine == machine.id and rule.action.transition_to and rule.mode == "enforce":
                moved[rule.action.transition_to] = (*moved.get(rule.action.transition_to, ()), rule.id)
        readers = tuple(node.id for node in nodes if f"state:{machine.id}" in node.reads)
        yield MachineNode(machine.id, machine.scope, machine.initial_state, tuple(machine.states), moved, readers)


# conflicts

_TOGETHER: Final = 4
"""So many route rules at most are looked at together; larger knots still block at run time, and say so on the receipt."""


def _conflicts(rules: Sequence[Rule]) -> Iterator[PossibleConflict]:
    acting = [rule for rule in rules if rule.mode == "enforce"]
    moving: set[tuple[str, Gate]] = {
        (rule.machine, gate) for rule in acting if rule.action.transition_to for gate in rule.gates
    }
    yield from _route_conflicts([rule for rule in acting if rule.action.name in ROUTING], moving)
    for left, right in combinations([rule for rule in acting if rule.action.transition_to], 2):
        gates = _shared_gates((left, right))
        to = (left.action.transition_to, right.action.transition_to)
        if left.machine == right.machine and to[0] != to[1] and gates and not _never_together(left, right):
            message = f"Both move machine '{left.machine}': to '{to[0]}' and to '{to[1]}'."
            yield PossibleConflict("transition", (left.id, right.id), gates, message)


def _route_conflicts(routing: Sequence[Rule], moving: set[tuple[str, Gate]]) -> Iterator[PossibleConflict]:
    hard = [rule for rule in routing if rule.action.name != "reroute"]
    found: list[frozenset[str]] = []
    for size in range(2, _TOGETHER + 1):
        for group in combinations(hard, size):
            ids = frozenset(rule.id for rule in group)
            gates = _meeting(group, moving)
            if not gates or any(known <= ids for known in found):
                continue
            left_over = _permitted(group[0])
            for rule in group[1:]:
                left_over = left_over & _permitted(rule)
            if not left_over:
                found.append(ids)
                message = "Together they leave no model that may answer, which blocks."
                yield PossibleConflict("routes", tuple(rule.id for rule in group), gates, message)
    for rule in routing:
        if rule.action.name != "reroute":
            continue
        for other in hard:
            gates = _meeting((rule, other), moving)
            if gates and not _permitted(rule) & _permitted(other):
                message = "One prefers a model that the other does not allow; the preference is ignored."
                yield PossibleConflict("preference", (rule.id, other.id), gates, message)


def _shared_gates(group: Sequence[Rule]) -> tuple[Gate, ...]:
    return tuple(gate for gate in _GATES if all(gate in rule.gates for rule in group))


def _meeting(group: Sequence[Rule], moving: set[tuple[str, Gate]]) -> tuple[Gate, ...]:
    """Gates at which all of them can match. Rules in different states meet where the state can change between two events."""
    apart = {left.machine for left, right in combinations(group, 2) if _never_together(left, right)}
    return tuple(gate for gate in _shared_gates(group) if all((machine, gate) in moving for machine in apart))


def _never_together(left: Rule, right: Rule) -> bool:
    """Never on one and the same event: they act in different states of one machine."""
    return (
        left.machine == right.machine
        and bool(left.state_scope)
        and bool(right.state_scope)
        and not set(left.state_scope) & set(right.state_scope)
    )


def _permitted(rule: Rule) -> set[str]:
    return set(rule.action.routes) if rule.action.name == "restrict_routes" else {rule.action.target_model}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value
