"""A config to a typed plan. Anything doubtful refuses activation, with every problem at once; what is merely odd is a warning.

The key tables below are the contract of each rule kind: what it requires, what it may have, which actions and gates. Nothing else in
the engine reads YAML.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import orjson

from wardwright.catalog import (
    MEMO_LENGTH,
    Catalog,
    Entry,
    compile_catalog,
    compile_glob,
    compile_regex,
    compile_value_glob,
    default_entries,
    fold,
    parse_pointer,
)
from wardwright.config import Config, ModelConfig, Node, Problems, kind_of, nearest, parse_yaml
from wardwright.errors import ConfigError, Problem
from wardwright.facts import (
    CONFIDENCES,
    EXECUTION_LOCATIONS,
    MARKS,
    PHASES,
    RESULT_STATUSES,
    RISK_CLASSES,
    SOURCES,
    ToolFact,
)
from wardwright.history import SCOPE_KINDS, Observer, RegisterKey, ScopeKind
from wardwright.history.observer import kept_name
from wardwright.policy.intent import Lexicon, default_lexicon, read_lexicon
from wardwright.policy.matching import WITHOUT_ARGUMENTS, argument_test, at_pointer, equal, one_of, still_fits
from wardwright.policy.provenance import ACCEPTS, CLASSES, Watch
from wardwright.policy.rules import (
    DENYING,
    GATES,
    Action,
    ActionName,
    AllowedTool,
    AllowedTools,
    Approval,
    ArgumentProvenance,
    ArgumentSchema,
    Budget,
    Exemption,
    HistoryThreshold,
    Intent,
    LoopThreshold,
    Machine,
    Matcher,
    Predicate,
    Rule,
    RuleKind,
    Severity,
    State,
    StructuredOutput,
    TextRule,
    ToolSelector,
    ToolSequence,
    Until,
    Window,
)
from wardwright.policy.values import Atom, plain, typed_as_whole, words
from wardwright.wire.linear import BadPattern, PatternSet, compile_pattern
from wardwright.wire.schema import examine
from wardwright.wire.turn import Gate, Role

ROLES: Final[tuple[Role, ...]] = ("system", "developer", "user", "assistant", "tool")
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "low", "medium", "high", "critical")
NARROW: Final[frozenset[str]] = frozenset({"session_id", "run_id"})
ROUTING: Final[frozenset[str]] = frozenset({"restrict_routes", "switch_model", "reroute"})
BUDGET_DIMENSIONS: Final[tuple[str, ...]] = ("calls", "tokens", "seconds", "price")
MEMO_LIMIT: Final = 8192

COMMON_KEYS: Final[tuple[str, ...]] = (
    "id",
    "kind",
    "action",
    "state_scope",
    "state_machine_id",
    "cache_scope",
    "mode",
    "enforcement",
    "priority",
    "owner",
    "severity",
    "message",
    "exceptions",
    "attach_policy_bundle",
    "transition_to",
    "description",
)

ACTION_KEYS: Final[Mapping[ActionName, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "block": ((), ()),
    "deny_call": ((), ()),
    "strip_tools": ((), ("strip",)),
    "restrict_routes": (("routes",), ()),
    "switch_model": (("target_model",), ()),
    "reroute": (("target_model",), ()),
    "require_approval": ((), ()),
    "transform": (("replacement",), ("pattern",)),
    "inject_reminder": (("text",), ()),
    "set_controls": (("controls",), ()),
    "alert_async": ((), ("channel",)),
    "annotate": ((), ()),
    "transition": (("transition_to",), ()),
}
"""Keys an action requires and may have, beside the rule's own."""

ALL_GATES: Final[frozenset[Gate]] = frozenset({"request", "reply", "result"})
COUNTING: Final[tuple[ActionName, ...]] = (
    "block",
    "deny_call",
    "require_approval",
    "restrict_routes",
    "switch_model",
    "reroute",
    "inject_reminder",
    "alert_async",
    "annotate",
    "transition",
)


@dataclass(frozen=True, slots=True)
class KindSpec:
    """The key table of one kind; the documentation prints it."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    actions: tuple[ActionName, ...]
    default_action: ActionName | None
    gates: frozenset[Gate]


KINDS: Final[Mapping[RuleKind, KindSpec]] = {
    "tool_selector": KindSpec(("tool",), (), tuple(GATES), None, ALL_GATES),
    "allowed_tools": KindSpec(
        ("phase", "allowed_tools"), (), ("block", "deny_call"), "block", frozenset({"request", "reply"})
    ),
    "tool_loop_threshold": KindSpec(("tool", "threshold"), ("equal", "within"), COUNTING, None, ALL_GATES),
    "tool_sequence": KindSpec(("after",), ("before", "then", "within", "until"), COUNTING, "transition", ALL_GATES),
    "argument_schema": KindSpec(
        ("tool",),
        ("schema",),
        (
            "block",
            "deny_call",
            "require_approval",
            "restrict_routes",
            "switch_model",
            "reroute",
            "alert_async",
            "annotate",
            "transition",
        ),
        "deny_call",
        frozenset({"reply"}),
    ),
    "argument_provenance": KindSpec(
        ("tool",),
        ("accept", "self", "protected_paths", "untrusted_text"),
        ("block", "deny_call", "require_approval", "alert_async", "annotate", "transition"),
        "require_approval",
        frozenset({"reply"}),
    ),
    "intent": KindSpec(
        ("tool",),
        ("lexicon",),
        ("block", "deny_call", "require_approval", "alert_async", "annotate", "transition"),
        "require_approval",
        frozenset({"reply"}),
    ),
    "budget": KindSpec(("limits",), ("tool", "within", "reserve"), COUNTING, "block", frozenset({"request", "reply"})),
    "route_gate": KindSpec(
        ("match",), ("roles", "case"), ("restrict_routes", "switch_model", "reroute"), None, frozenset({"request"})
    ),
    "request_guard": KindSpec(
        ("match",),
        ("roles", "case"),
        ("block", "require_approval", "transform", "inject_reminder", "alert_async", "annotate", "transition"),
        "block",
        frozenset({"request"}),
    ),
    "history_threshold": KindSpec(("tool", "threshold"), ("within",), COUNTING, None, frozenset({"request", "reply"})),
    "stream_guard": KindSpec(
        ("match",),
        ("case",),
        ("block", "require_approval", "transform", "alert_async", "annotate", "transition"),
        "block",
        frozenset({"reply"}),
    ),
    "structured_output": KindSpec(
        (),
        ("schema",),
        (
            "block",
            "require_approval",
            "restrict_routes",
            "switch_model",
            "reroute",
            "alert_async",
            "annotate",
            "transition",
        ),
        "block",
        frozenset({"reply"}),
    ),
    "alert": KindSpec((), ("tool", "match", "roles", "case"), ("alert_async", "annotate"), "alert_async", ALL_GATES),
}
"""Every kind this build knows. A further kind is one entry here, one compile function in `_READERS` and one judge in `evaluate`."""

TOOL_KEYS: Final[tuple[str, ...]] = (
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
    "arguments",
    "not",
)
PREDICATE_KEYS: Final[tuple[str, ...]] = (
    "equals",
    "one_of",
    "glob",
    "regex",
    "min_length",
    "max_length",
    "minimum",
    "maximum",
)

ASKED: Final[frozenset[str]] = frozenset({"declared_tool", "tool_choice", "caller_metadata", "inferred"})
"""Sources of events that only a request has."""
ASKED_MARKS: Final[frozenset[str]] = frozenset(
    {"definition_changed", "forged", "altered", "session_rotated", "claim_contradicted"}
)
"""Marks of such events."""

MARKED: Final[Mapping[str, frozenset[str]]] = {
    "definition_changed": frozenset({"declared_tool"}),
    "forged": frozenset({"assistant_tool_call", "tool_result", "provider_event"}),
    "altered": frozenset({"assistant_tool_call", "tool_result", "provider_event"}),
    "result_for_denied_call": frozenset({"tool_result"}),
    "session_rotated": frozenset({"inferred"}),
    "claim_contradicted": frozenset({"caller_metadata"}),
}
"""Sources of the events that can bear a mark."""
_DOT_ALL: Final = "(?s)"
"""In a plan's patterns `.` matches a line break too, as `*` of a glob does: whoever writes a text chooses its lines."""

# What a fact can be to a rule.
SELECT, LOOP, AFTER, THEN, UNTIL, SCHEMA, CALLS, HISTORY, PROVENANCE, ASKED_FOR = range(10)
OF_CALLS: Final[frozenset[int]] = frozenset({SCHEMA, PROVENANCE, ASKED_FOR})
"""Roles that only a call of a reply can play."""


class Op:
    """One part a fact can play in one rule, with what is left to test about it."""

    __slots__ = ("acts", "role", "rule", "states", "test", "tool")

    def __init__(self, role: int, rule: Rule, acts: bool, test: Callable[[ToolFact], bool] | None, tool: str) -> None:
        self.role = role
        self.rule: Any = rule
        """Of the kind that has this role."""
        self.acts = acts
        """The rule can take its action at this gate; else it only keeps count."""
        self.test = test
        self.states: tuple[str, ...] = rule.state_scope if role == SELECT else ()
        """States outside of which there is nothing to do; empty when there always is."""
        self.tool = tool
        """The tool's folded name, as counters key it: of bounded length."""


class Candidates:
    """The rules that can match one kind of fact at one gate."""

    __slots__ = ("ids", "ops")

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self.ops = ops
        self.ids = tuple(dict.fromkeys(op.rule.id for op in ops))


NO_CANDIDATES: Final = Candidates(())


@dataclass(slots=True)
class TextSet:
    """Text rules that read the same roles at the same gate, searched in one pass."""

    roles: frozenset[str]
    rules: tuple[TextRule, ...]
    patterns: PatternSet


class RuleSet:
    """Rules that are judged together: the plan's own, or those of one bundle."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.by_id = {rule.id: rule for rule in rules}
        self.allowed = tuple(rule for rule in rules if isinstance(rule, AllowedTools))
        self.budgets = tuple(rule for rule in rules if isinstance(rule, Budget))
        self.thresholds = tuple(rule for rule in rules if isinstance(rule, HistoryThreshold))
        self.outputs = tuple(rule for rule in rules if isinstance(rule, StructuredOutput))
        self.sticky = tuple(rule for rule in rules if isinstance(rule, LoopThreshold) and rule.action.name in ROUTING)
        """Loops that choose a route: they bind every later request while the count stands."""
        self.until_states: dict[tuple[str, str], list[ToolSequence]] = {}
        for rule in rules:
            if isinstance(rule, ToolSequence) and rule.then is not None and rule.until is not None and rule.until.state:
                self.until_states.setdefault((rule.machine, rule.until.state), []).append(rule)
        texts = [rule for rule in rules if isinstance(rule, TextRule)]
        self.request_texts = _text_sets([rule for rule in texts if "request" in rule.gates])
        self.reply_texts = _text_sets([rule for rule in texts if rule.kind == "stream_guard"])
        self.text_hash = _hash([[rule.key for rule in one.rules] for one in self.request_texts])
        self.apart = bool(self.allowed or self.budgets or self.thresholds or self.outputs)
        """Some rule is judged once per gate, after the facts."""
        self._roles: list[tuple[int, Rule, Matcher, bool]] = []
        for rule in rules:
            self._roles.extend((role, rule, matcher, denying) for role, matcher, denying in _roles_of(rule))
        self._by_namespace: dict[str, list[int]] = {}
        self._anywhere: list[int] = []
        for index, (_, _, matcher, _) in enumerate(self._roles):
            if matcher.namespace and not any("*" in glob or "?" in glob for glob in matcher.namespace):
                for namespace in {fold(glob) for glob in matcher.namespace}:
                    self._by_namespace.setdefault(namespace, []).append(index)
            else:
                self._anywhere.append(index)
        self._memo: dict[tuple[object, ...], Candidates] = {}
        self.known: Mapping[Gate, dict[object, Candidates]] = {"request": {}, "reply": {}, "result": {}}
        """The same by `ToolFact.kind`: one step instead of a dozen, for each fact."""

    def candidates(self, gate: Gate, fact: ToolFact) -> Candidates:
        """Memoised by everything a matcher can ask but the arguments; bounded, because callers choose names."""
        key = (
            gate,
            fact.namespace,
            fact.name,
            fact.risk_class,
            fact.phase,
            fact.source,
            fact.result_status,
            fact.confidence,
            fact.execution_location,
            fact.marks,
            fact.trust,
        )
        found = self._memo.get(key)
        if found is None:
            found = self._find(gate, fact)
            if len(fact.namespace) + len(fact.name) > MEMO_LENGTH:
                return found
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[key] = found
        if fact.kind is not None:
            known = self.known[gate]
            if len(known) >= MEMO_LIMIT:
                known.clear()
            known[fact.kind] = found
        return found

    def _find(self, gate: Gate, fact: ToolFact) -> Candidates:
        ops: list[Op] = []
        tool = kept_name(f"{fold(fact.namespace)}\x1f{fold(fact.name)}")
        for index in sorted([*self._by_namespace.get(fold(fact.namespace), ()), *self._anywhere]):
            role, rule, matcher, denying = self._roles[index]
            acts = gate in rule.gates
            if not acts and (role == SELECT or role in OF_CALLS):
                continue
            if role in OF_CALLS and fact.source != "assistant_tool_call":
                continue
            still = still_fits(matcher, fact)
            if still is False or (still is None and not denying):
                continue
            ops.append(Op(role, rule, acts, argument_test(matcher, still, denying), tool))
        return Candidates(tuple(ops)) if ops else NO_CANDIDATES


Tables: TypeAlias = tuple[tuple[RuleSet, dict[object, Candidates]], ...]
"""Rules, and which of them can match what kind of fact (`RuleSet.known`)."""


def tables_of(rulesets: Iterable[RuleSet], gate: Gate) -> Tables:
    return tuple([(rules, rules.known[gate]) for rules in rulesets])


def _roles_of(rule: Rule) -> Iterable[tuple[int, Matcher, bool]]:
    """The matchers of a rule, the part each plays, and whether doubt is a match there."""
    denying = rule.action.name in DENYING
    if isinstance(rule, ToolSelector):
        yield SELECT, rule.tool, denying
    elif isinstance(rule, LoopThreshold):
        yield LOOP, rule.tool, denying
    elif isinstance(rule, HistoryThreshold):
        yield HISTORY, rule.tool, denying
    elif isinstance(rule, ArgumentSchema):
        yield SCHEMA, rule.tool, denying
    elif isinstance(rule, ArgumentProvenance):
        yield PROVENANCE, rule.tool, denying
    elif isinstance(rule, Intent):
        yield ASKED_FOR, rule.tool, denying
    elif isinstance(rule, Budget):
        if "calls" in rule.limits:
            yield CALLS, rule.tool or ANY_CALL, denying
    elif isinstance(rule, ToolSequence):
        # THEN before AFTER: the current event never starts what it is judged by. UNTIL between them: what ends a
        # sequence and starts it anew has started it.
        if rule.then is not None:
            yield THEN, rule.then, denying
        if rule.until is not None and rule.until.tool is not None:
            yield UNTIL, rule.until.tool, False
        yield AFTER, rule.after, denying


ANY_CALL: Final = Matcher(source=("assistant_tool_call", "provider_event"), phase=("planning",))


def _text_sets(rules: Sequence[TextRule]) -> tuple[TextSet, ...]:
    groups: dict[frozenset[str], list[TextRule]] = {}
    for rule in rules:
        groups.setdefault(frozenset(rule.roles), []).append(rule)
    return tuple(
        TextSet(roles, tuple(group), PatternSet([(_DOT_ALL + rule.match, rule.ignore_case) for rule in group]))
        for roles, group in groups.items()
    )


@dataclass(frozen=True, slots=True)
class Capability:
    """What a provider lets others see and set of one hosted tool (G26)."""

    events: bool
    """It reports the tool's calls and results."""
    controls: tuple[str, ...]
    """Parameters that can be set before the call."""


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens, in the deployment's currency."""

    input: float
    output: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """What a reply costs."""
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    model: str
    provider: str
    context_window: int | None
    tools: bool
    capabilities: Mapping[str, Capability] = field(default_factory=dict[str, "Capability"])
    """Hosted tool → what its provider lets us see and set."""
    upstream_model: str = ""
    """How the provider calls the model; a compiled target always says it."""
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """All that governs one model. Immutable but for bounded memos."""

    model_id: str
    plan_hash: str
    targets: tuple[Target, ...]
    catalog: Catalog
    observer: Observer
    machines: Mapping[str, Machine]
    rules: RuleSet
    bundles: Mapping[str, RuleSet]
    scopes: tuple[ScopeKind, ...]
    """The scopes to load; the session first."""
    retention_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    require_session: bool = False
    approval: Approval = "refuse"
    """What becomes of a call that needs an operator's approval."""
    watch: Watch | None = None
    """What has to be indexed as it is seen; None when no rule asks where values came from or what the user wants."""

    # What every gate would otherwise work out of these anew.
    wider: tuple[ScopeKind, ...] = field(init=False, repr=False, compare=False)
    """The scopes beside the session's."""
    initial: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Machine → the state it begins in."""
    holders: tuple[tuple[str, ScopeKind, RegisterKey], ...] = field(init=False, repr=False, compare=False)
    """Machine, and the scope and register that hold its state once it has left that one."""
    alone: tuple[RuleSet, ...] = field(init=False, repr=False, compare=False)
    """The rules without any bundle …"""
    tables: Mapping[Gate, Tables] = field(init=False, repr=False, compare=False)
    """… and what they know of facts, by gate."""
    reserves: bool = field(init=False, repr=False, compare=False)
    """Some budget sets aside what a request may use."""

    def __post_init__(self) -> None:
        machines, everything = self.machines, (self.rules, *self.bundles.values())
        for name, value in (
            ("wider", self.scopes[1:]),
            ("initial", {one: machine.initial_state for one, machine in machines.items()}),
            ("holders", tuple((one, machine.scope, (f"state:{one}", "")) for one, machine in machines.items())),
            ("alone", (self.rules,)),
            ("tables", {gate: tables_of((self.rules,), gate) for gate in self.rules.known}),
            ("reserves", any(rule.reserve for rules in everything for rule in rules.budgets)),
        ):
            object.__setattr__(self, name, value)

    @property
    def reads_replies(self) -> bool:
        """Whether some rule must read the text of a reply before it is released."""
        return any(rules.reply_texts or rules.outputs for rules in (self.rules, *self.bundles.values()))


@dataclass(frozen=True, slots=True)
class Plan:
    """What `govern` rules by. One per config; a turn's model chooses within it."""

    plan_hash: str
    models: Mapping[str, ModelPlan]
    warnings: tuple[Problem, ...] = ()

    def model(self, model_id: str) -> ModelPlan | None:
        """The plan for a model; a file with one artifact governs whatever it is asked for."""
        found = self.models.get(model_id)
        if found is None and len(self.models) == 1:
            found = next(iter(self.models.values()))
        return found


def _hash(value: Any) -> str:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def compile_plan(config: Config, now_ms: int | None = None) -> Plan:
    """The plan of a config, or ConfigError with all its problems in file order. Given the time, it tells what has run out."""
    problems = Problems(config.file)
    problems.found.extend(config.problems)
    plan_hash = _hash(
        {"config": config.content_hash, "catalog": _hash([_entry(e) for e in default_entries()]), "engine": 1}
    )
    shared_catalog = _catalog(config.deployment["catalog"], problems) if "catalog" in config.deployment else ()
    shared_scopes = _scopes(config.deployment["scopes"], problems) if "scopes" in config.deployment else {}
    _shapes(config.deployment, problems)
    providers = _provider_names(config.deployment.get("providers"))
    models: dict[str, ModelPlan] = {}
    for model in config.models:
        _shapes(model.sections, problems)
        compiler = _Compiler(config, model, problems, plan_hash, now_ms)
        models[model.model_id] = compiler.compile(shared_catalog, shared_scopes, {*providers, "scripted"})
    errors = sorted(set(problems.errors), key=lambda problem: (problem.line, problem.column))
    if errors:
        raise ConfigError(errors)
    warnings = sorted(set(problems.warnings), key=lambda problem: (problem.line, problem.column))
    return Plan(plan_hash, models, tuple(warnings))


SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
    "providers": ("a mapping", "a list"),
    "snippets": ("a mapping",),
    "auth": ("a mapping",),
    "store": ("a mapping", "text"),
    "alerts": ("a mapping", "a list"),
    "retention": ("a mapping", "text", "number"),
    "limits": ("a mapping",),
    "mcp_servers": ("a mapping",),
    "workbench": ("a mapping",),
    "server_tools": ("a list",),
    "tool_mediation": ("a mapping",),
    "tool_advertisement": ("a mapping",),
    "capture": ("a mapping", "text", "true", "false"),
    "description": ("text",),
}
"""The form of sections that others read. Their content is theirs to judge; a section of another form is nobody's."""


def _shapes(sections: Mapping[str, Node], problems: Problems) -> None:
    for name, node in sections.items():
        if name not in SHAPES:
            continue
        wanted = SHAPES[name]
        got = kind_of(node)
        if not got.startswith(wanted):
            problems.error(node, f"expected {' or '.join(wanted)}, got {got}")
            continue
        if name in ("server_tools", "providers", "alerts"):
            for child in (*node.entries(), *(node.items().values() if name == "providers" else ())):
                if not isinstance(child.value, dict) or not child.value:
                    problems.error(
                        child, f"expected a mapping, got {kind_of(child) if child.value != {} else 'an empty one'}"
                    )


def _provider_names(node: Node | None) -> set[str]:
    """Names under `providers`: the keys of a mapping, or `name` (or `id`) of list entries."""
    if node is None:
        return set()
    names = set(node.items())
    for child in node.entries():
        for key in ("name", "id"):
            named = child.items().get(key)
            if named is not None and isinstance(named.value, str):
                names.add(named.value)
    return names


def _catalog(node: Node, problems: Problems) -> tuple[Entry, ...]:
    """The operator's entries. None may give a caller's tool the namespace of those that a provider runs."""
    for child in node.entries():
        given = child.items()
        named = given.get("namespace")
        if "match" not in given or named is None or not isinstance(named.value, str):
            continue
        if fold(named.value) == "provider" or fold(named.value).startswith("provider."):
            problems.error(named, "'provider' is the namespace of tools that providers run; choose another one")
    return compile_catalog(node, problems)


def _entry(entry: Entry) -> list[Any]:
    return [entry.match, entry.namespace, entry.name, {key: repr(value) for key, value in entry.attributes.items()}]


def _scopes(node: Node, problems: Problems) -> dict[str, int]:
    """`scopes: {user: {retention: 30d, purpose: …}}` → retention per scope kind."""
    found: dict[str, int] = {}
    for kind, child in problems.mapping(node, (), SCOPE_KINDS).items():
        given = problems.mapping(child, ("retention", "purpose"), ())
        if "purpose" in given:
            problems.text(given["purpose"])
        if "retention" in given:
            found[kind] = problems.duration_ms(given["retention"])
    return found


@lru_cache(maxsize=1)
def builtin_bundles() -> Mapping[str, Node]:
    """The bundles that ship."""
    text = importlib.resources.files("wardwright").joinpath("builtin_bundles.yaml").read_text("utf-8")
    problems = Problems("builtin_bundles.yaml")
    node = parse_yaml(text, problems)
    if problems.found:
        raise AssertionError("\n".join(str(problem) for problem in problems.found))
    return node.items()


class _Compiler:
    """Compiles one model artifact."""

    def __init__(
        self, config: Config, model: ModelConfig, problems: Problems, plan_hash: str, now_ms: int | None
    ) -> None:
        self.config = config
        self.now_ms = now_ms
        self.model = model
        self.problems = problems
        self.plan_hash = plan_hash
        self.targets: tuple[Target, ...] = ()
        self.machines: dict[str, Machine] = {}
        self.retention: dict[str, int] = {}
        self.bundle_nodes: dict[str, Node] = {}
        self.entered: set[tuple[str, str]] = set()
        self.unchecked = False
        self.catalog = Catalog([default_entries()])

    def compile(
        self, shared_catalog: Sequence[Entry], shared_scopes: Mapping[str, int], providers: set[str]
    ) -> ModelPlan:
        sections, problems = self.model.sections, self.problems
        own = _catalog(sections["catalog"], problems) if "catalog" in sections else ()
        layers = [own, shared_catalog, default_entries()]
        self.catalog = Catalog(layers)
        if "targets" in sections:
            self.targets = self._targets(sections["targets"], providers)
        self.retention = {**shared_scopes, **(_scopes(sections["scopes"], problems) if "scopes" in sections else {})}
        self._state_machines(sections)
        for section in (self.config.deployment.get("policy_bundles"), sections.get("policy_bundles")):
            if section is not None:
                if not isinstance(section.value, dict):
                    problems.error(section, "expected a mapping of bundle names to lists of rules")
                for name, node in section.items().items():
                    problems.name(Node(name, node.line, node.column, node.path))
                    self.bundle_nodes[name] = node
        rules = self._rules(sections["governance"], "") if "governance" in sections else []
        bundles: dict[str, RuleSet] = {}
        wanted = {rule.action.bundle for rule in rules if rule.action.bundle}
        for name, node in self.bundle_nodes.items():
            bundle = self._rules(node, name)
            for rule in bundle:
                if rule.action.bundle:
                    problems.error(node, f"rule '{rule.id}' attaches a bundle; bundles do not nest")
            if name in wanted and not problems.errors:
                bundles[name] = RuleSet(bundle)
        for name in sorted(wanted - set(self.bundle_nodes)):
            node = builtin_bundles().get(name)
            if node is not None:
                bundles[name] = RuleSet(self._rules(node, name))
        self._unreachable_states()
        self._route_conflicts(rules)
        self._unlabelled([*rules, *(rule for one in bundles.values() for rule in one.rules)], own, shared_catalog)
        everything = [*rules, *(rule for bundle in bundles.values() for rule in bundle.rules)]
        used: set[str] = {rule.scope for rule in everything} | {machine.scope for machine in self.machines.values()}
        scopes = cast(
            "tuple[ScopeKind, ...]", tuple(kind for kind in SCOPE_KINDS if kind == "session_id" or kind in used)
        )
        require = problems.boolean(sections["require_session"]) if "require_session" in sections else False
        ruleset = RuleSet(rules) if not problems.errors else RuleSet(())
        return ModelPlan(
            self.model.model_id,
            self.plan_hash,
            self.targets,
            self.catalog,
            Observer(self.catalog),
            self.machines,
            ruleset,
            bundles,
            scopes,
            self.retention,
            require,
            self._approval(sections.get("approval")),
            self._watch(everything),
        )

    def _approval(self, node: Node | None) -> Approval:
        if node is None:
            return "refuse"
        return cast("Approval", self.problems.choice(node, get_args(Approval)))

    def _watch(self, rules: Sequence[Rule]) -> Watch | None:
        asking = [rule for rule in rules if isinstance(rule, (ArgumentProvenance, Intent))]
        if not asking:
            return None
        lexicons: dict[str, Lexicon] = {}
        untrusted: dict[str, None] = {}
        for rule in asking:
            if isinstance(rule, Intent):
                lexicons[rule.lexicon.name] = rule.lexicon
            else:
                untrusted.update(dict.fromkeys(rule.untrusted))
        patterns = tuple(compile_pattern(one, dot_nl=True) for one in untrusted)
        common = default_lexicon().common.union(*(lexicon.common for lexicon in lexicons.values()))
        return Watch(self.catalog, tuple(lexicons.values()), patterns, common)

    # targets, machines

    def _targets(self, node: Node, providers: set[str]) -> tuple[Target, ...]:
        problems = self.problems
        targets: list[Target] = []
        seen: dict[str, int] = {}
        for child in problems.sequence(node):
            given = problems.mapping(
                child,
                ("model",),
                ("provider", "context_window", "tools", "price", "capabilities", "upstream_model"),
            )
            if "model" not in given:
                continue
            model = problems.name(given["model"])
            if model in seen:
                problems.error(given["model"], f"target '{model}' is already used at line {seen[model]}")
            seen[model] = child.line
            provider = problems.text(given["provider"]) if "provider" in given else "scripted"
            if provider and provider not in providers:
                problems.error(
                    given["provider"],
                    f"unknown provider '{provider}'{nearest(provider, providers) or '; declare it under providers'}",
                )
            window = problems.integer(given["context_window"], 1) if "context_window" in given else None
            tools = problems.boolean(given["tools"]) if "tools" in given else True
            known = self._capabilities(given["capabilities"]) if "capabilities" in given else {}
            upstream = problems.name(given["upstream_model"]) if "upstream_model" in given else model
            price = self._price(given["price"]) if "price" in given else None
            targets.append(Target(model, provider, window, tools, known, upstream, price))
        if not targets and isinstance(node.value, tuple):
            problems.error(node, "must not be an empty list")
        return tuple(targets)

    def _price(self, node: Node) -> Price:
        given = self.problems.mapping(node, ("input", "output"), ())
        return Price(*(self.problems.number(given[key], 0) if key in given else 0.0 for key in ("input", "output")))

    def _capabilities(self, node: Node) -> dict[str, Capability]:
        problems = self.problems
        known: dict[str, Capability] = {}
        if not isinstance(node.value, dict):
            problems.error(node, "expected a mapping of hosted tools to `events` and `controls`")
        for kind, child in node.items().items():
            given = problems.mapping(child, (), ("events", "controls"))
            events = problems.boolean(given["events"]) if "events" in given else False
            controls = problems.texts(given["controls"], empty=True) if "controls" in given else ()
            known[kind] = Capability(events, controls)
        return known

    def _state_machines(self, sections: Mapping[str, Node]) -> None:
        problems = self.problems
        if "state_machine" in sections:
            machine = self._machine(sections["state_machine"], named=False)
            self.machines[machine.id] = machine
        if "state_machines" in sections:
            for child in problems.sequence(sections["state_machines"]):
                machine = self._machine(child, named=True)
                if machine.id in self.machines:
                    problems.error(child, f"state machine '{machine.id}' is declared twice")
                self.machines[machine.id] = machine
        if "default" not in self.machines:
            self.machines["default"] = Machine("default", "session_id", "active", {"active": State("active")})

    def _machine(self, node: Node, *, named: bool) -> Machine:
        problems = self.problems
        required = ("id", "initial_state", "states") if named else ("initial_state", "states")
        optional = ("scope", "expires_ms", "expires_to") if named else ("id", "scope", "expires_ms", "expires_to")
        given = problems.mapping(node, required, optional)
        machine_id = problems.name(given["id"]) if "id" in given else "default"
        scope = self._scope(given["scope"]) if "scope" in given else "session_id"
        states: dict[str, State] = {}
        raw: list[tuple[Node, dict[str, Node]]] = []
        for child in problems.sequence(given["states"]) if "states" in given else ():
            if isinstance(child.value, str):
                name = problems.name(child)
                if name in states:
                    problems.error(child, f"state '{name}' is declared twice")
                states[name] = State(name)
                continue
            fields = problems.mapping(child, ("id",), ("expires_ms", "expires_to", "description"))
            if "id" in fields:
                state_id = problems.name(fields["id"])
                if state_id in states:
                    problems.error(fields["id"], f"state '{state_id}' is declared twice")
                life = problems.integer(fields["expires_ms"], 1) if "expires_ms" in fields else None
                if life is not None:
                    self._fits_retention(fields["expires_ms"], life, scope)
                elif "expires_to" in fields and "expires_ms" not in given:
                    problems.warn(fields["expires_to"], f"state '{state_id}' has no expires_ms: it never expires")
                goes_to = problems.text(fields["expires_to"]) if "expires_to" in fields else ""
                states[state_id] = State(state_id, life, goes_to)
                raw.append((child, fields))
        if "states" in given and not states:
            problems.error(given["states"], "a machine needs at least one state")
        initial = problems.text(given["initial_state"]) if "initial_state" in given else next(iter(states), "active")
        to = problems.text(given["expires_to"]) if "expires_to" in given else ""
        self._known_state(initial, states, given.get("initial_state"))
        self._known_state(to, states, given.get("expires_to"))
        for _, fields in raw:
            if "expires_to" in fields:
                self._known_state(problems.text(fields["expires_to"]), states, fields["expires_to"])
            if "expires_ms" in fields and "id" in fields and fields["id"].value == initial:
                problems.warn(
                    fields["expires_ms"],
                    "an initial state expires only after a rule has entered it, not from the start of a session",
                )
        states.setdefault(initial, State(initial))
        life = problems.integer(given["expires_ms"], 1) if "expires_ms" in given else None
        if life is not None:
            self._fits_retention(given["expires_ms"], life, scope)
        return Machine(machine_id, scope, initial, states, life, to if to in states else "")

    def _known_state(self, state: str, states: Mapping[str, State], node: Node | None) -> bool:
        if node is None or not state or state in states:
            return True
        declared = f"; declared: {', '.join(states)}" if states else ""
        self.problems.error(node, f"unknown state '{state}'{nearest(state, states) or declared}")
        return False

    def _scope(self, node: Node) -> ScopeKind:
        scope = cast("ScopeKind", self.problems.choice(node, SCOPE_KINDS))
        if scope not in NARROW and scope not in self.retention:
            self.problems.error(
                node, f"scope '{scope}' is wider than a run: declare retention and purpose under scopes.{scope}"
            )
        return scope

    def _fits_retention(self, node: Node, ms: int, scope: str) -> None:
        kept = self.retention.get(scope)
        if kept is not None and ms > kept:
            self.problems.error(node, f"a window of {ms} ms is longer than the retention of {scope} ({kept} ms)")

    # rules

    def _rules(self, node: Node, bundle: str) -> list[Rule]:
        problems = self.problems
        rules: list[Rule] = []
        seen: dict[str, int] = {}
        for order, child in enumerate(problems.sequence(node)):
            before = len(problems.errors)
            rule = self._rule(child, order, bundle)
            named = child.items().get("id")
            if named is not None and isinstance(named.value, str):
                if not bundle and "/" in named.value:
                    name, rest = self._bundle_of(named.value)
                    if name:
                        problems.error(named, f"'{named.value}' is how rule '{rest}' of bundle '{name}' is called")
                if named.value in seen:
                    problems.error(child, f"rule id '{named.value}' is already used at line {seen[named.value]}")
                seen.setdefault(named.value, child.line)
            if rule is not None and len(problems.errors) == before:
                rules.append(rule)
        return _sharing(rules)

    def _bundle_of(self, rule_id: str) -> tuple[str, str]:
        """The bundle and the rule in it that this id would name on a receipt."""
        for name, node in {**builtin_bundles(), **self.bundle_nodes}.items():
            rest = rule_id.removeprefix(f"{name}/")
            if rest != rule_id and any(
                (one := child.items().get("id")) is not None and one.value == rest for child in node.entries()
            ):
                return name, rest
        return "", ""

    def _rule(self, node: Node, order: int, bundle: str) -> Rule | None:
        problems = self.problems
        if not isinstance(node.value, dict):
            problems.error(node, "expected a rule: a mapping with id and kind")
            return None
        kind_node = node.value.get("kind")
        if kind_node is None:
            problems.error(node, "missing key 'kind'")
            if "id" not in node.value:
                problems.error(node, "missing key 'id'")
            return None
        kind = problems.text(kind_node)
        if kind not in KINDS:
            problems.error(kind_node, f"unknown kind '{kind}'{nearest(kind, KINDS)}; known: {', '.join(KINDS)}")
            return None
        spec = KINDS[kind]
        action_name = self._action_name(node.value, kind, spec)
        needs, may = ACTION_KEYS[action_name]
        then = node.value.get("then")
        inside = set(then.items()) if kind == "tool_sequence" and then is not None else set[str]()
        required = ("id", "kind", *spec.required, *(key for key in needs if key not in inside))
        optional = (*(key for key in COMMON_KEYS if key not in required), *spec.optional, *may)
        given = problems.mapping(node, required, optional)
        if kind == "tool_sequence" and then is not None:
            given = {**given, **{key: child for key, child in then.items().items() if key not in ("tool",)}}
        rule_id = problems.name(given["id"]) if "id" in given else ""
        if "," in rule_id:
            problems.error(given["id"], "must hold no comma: notes list several rules with commas between them")
        machine_id = problems.text(given["state_machine_id"]) if "state_machine_id" in given else "default"
        machine = self.machines.get(machine_id)
        if machine is None:
            problems.error(
                given["state_machine_id"], f"unknown state machine '{machine_id}'{nearest(machine_id, self.machines)}"
            )
            machine = self.machines["default"]
        scope = self._scope(given["cache_scope"]) if "cache_scope" in given else "session_id"
        states = problems.texts(given["state_scope"]) if "state_scope" in given else ()
        for index, state in enumerate(states):
            place = given["state_scope"]
            self._known_state(state, machine.states, place.entries()[index] if place.entries() else place)
        mode = "enforce"
        if "enforcement" in given:
            mode = problems.choice(given["enforcement"], ("enforce", "observe"))
        if "mode" in given and kind != "allowed_tools":
            mode = problems.choice(given["mode"], ("enforce", "observe"))
        action = self._action(action_name, given, machine)
        gates = spec.gates & GATES[action_name]
        if not gates:
            place = given.get("action", node)
            problems.error(place, f"action '{action_name}' cannot be taken at any gate that kind '{kind}' looks at")
        shared: dict[str, Any] = {
            "id": f"{bundle}/{rule_id}" if bundle else rule_id,
            "kind": kind,
            "key": "",
            "order": order,
            "action": action,
            "gates": gates,
            "state_scope": states,
            "machine": machine.id,
            "scope": scope,
            "mode": mode,
            "priority": problems.integer(given["priority"]) if "priority" in given else 0,
            "owner": problems.text(given["owner"]) if "owner" in given else "",
            "severity": problems.choice(given["severity"], SEVERITIES) if "severity" in given else "medium",
            "message": problems.text(given["message"]) if "message" in given else "",
            "exceptions": self._exceptions(given["exceptions"]) if "exceptions" in given else (),
            "bundle": bundle,
            "line": node.line,
            "column": node.column,
        }
        rule = _READERS[kind](self, node, given, shared)
        if rule is None:
            return None
        self._idle_exceptions(rule, given)
        return replace(rule, key=_hash(_counted(rule)))

    def _action_name(self, rule: Mapping[str, Node], kind: RuleKind, spec: KindSpec) -> ActionName:
        problems = self.problems
        then = rule.get("then")
        node = rule.get("action")
        if kind == "tool_sequence" and then is not None and "action" in then.items():
            if node is not None:
                problems.error(node, "the action is given twice: here and under 'then'")
            node = then.items()["action"]
        if node is None:
            if kind == "allowed_tools" and "mode" in rule and rule["mode"].value in ("filter", "deny_call"):
                return "deny_call"
            if kind == "tool_sequence" and (then is not None or "before" in rule):
                problems.error(next(iter(rule.values())), "missing key 'action': what happens to the later event")
                return "block"
            if spec.default_action is None:
                problems.error(rule["kind"], f"missing key 'action': kind '{kind}' has no default")
                return spec.actions[0]
            return spec.default_action
        name = problems.text(node)
        if name not in GATES:
            problems.error(node, f"unknown action '{name}'{nearest(name, GATES)}")
            return spec.default_action or spec.actions[0]
        if name not in spec.actions:
            problems.error(node, f"kind '{kind}' cannot have action '{name}'; it can have {', '.join(spec.actions)}")
            return spec.default_action or spec.actions[0]
        return name

    def _action(self, name: ActionName, given: Mapping[str, Node], machine: Machine) -> Action:
        problems = self.problems
        routes = problems.texts(given["routes"]) if "routes" in given else ()
        known = [target.model for target in self.targets]
        if known:
            for index, route in enumerate(routes):
                if route not in known:
                    place = given["routes"].entries()[index] if given["routes"].entries() else given["routes"]
                    problems.error(place, f"unknown model '{route}'{nearest(route, known)}: not among targets")
        target = problems.text(given["target_model"]) if "target_model" in given else ""
        named = target or next(iter(routes), "")
        if not known and named and not self.unchecked:
            self.unchecked = True
            problems.warn(
                given["target_model" if target else "routes"],
                f"nobody can tell whether '{named}' exists: this artifact has no 'targets'",
            )
        if known and target and target not in known:
            problems.error(
                given["target_model"], f"unknown model '{target}'{nearest(target, known)}: not among targets"
            )
        bundle = problems.text(given["attach_policy_bundle"]) if "attach_policy_bundle" in given else ""
        if bundle and bundle not in self.bundle_nodes and bundle not in builtin_bundles():
            words = [*self.bundle_nodes, *builtin_bundles()]
            problems.error(given["attach_policy_bundle"], f"unknown policy bundle '{bundle}'{nearest(bundle, words)}")
            bundle = ""
        to = problems.text(given["transition_to"]) if "transition_to" in given else ""
        if to:
            if self._known_state(to, machine.states, given["transition_to"]):
                self.entered.add((machine.id, to))
            else:
                to = ""
        text, pattern = "", ""
        if "text" in given:
            text = problems.text(given["text"])
        if "replacement" in given:
            text = problems.text(given["replacement"], empty=True)
        if "pattern" in given:
            pattern = problems.text(given["pattern"])
            compile_regex(given["pattern"], problems)
        controls: dict[str, Any] = {}
        if "controls" in given:
            controls = given["controls"].plain() if isinstance(given["controls"].value, dict) else {}
            if not controls:
                problems.error(given["controls"], "expected a mapping of hosted-tool parameters to their limits")
            for key, child in given["controls"].items().items():
                if not isinstance(child.value, (int, float, tuple)) or (isinstance(child.value, bool) and child.value):
                    problems.error(child, f"'{key}' cannot be clamped: give a number, a list, or false")
                elif isinstance(child.value, (int, float)) and child.value < 0:
                    problems.error(child, f"must be at least 0, got {child.value}: providers take less for no limit")
        strip: tuple[Matcher, ...] = ()
        if "strip" in given:
            strip = tuple(self._matcher(child, source=False) for child in problems.sequence(given["strip"]))
            if not strip:
                problems.error(given["strip"], "must not be an empty list")
        channel = problems.text(given["channel"]) if "channel" in given else ""
        return Action(name, routes, target, bundle, text, pattern, controls, channel, to, strip)

    def _idle_exceptions(self, rule: Rule, given: Mapping[str, Node]) -> None:
        """An exception by tool lifts findings about that tool; what is found about a whole gate stands."""
        if isinstance(rule, (TextRule, StructuredOutput)) or (isinstance(rule, Budget) and "calls" not in rule.limits):
            message = "has no effect: this rule is about no single tool; except a caller instead"
        elif isinstance(rule, LoopThreshold) and rule.action.name in ROUTING:
            message = "does not lift the route of later requests while the count stands; except the tool, or the caller, alone"
        else:
            return
        for child in given["exceptions"].entries() if "exceptions" in given else ():
            alone = "caller" not in child.items() and isinstance(rule, LoopThreshold)
            if "tool" in child.items() and not alone:
                self.problems.warn(child.items()["tool"], message)

    def _exceptions(self, node: Node) -> tuple[Exemption, ...]:
        problems = self.problems
        found: list[Exemption] = []
        if node.value == ():
            problems.error(node, "must not be an empty list")
        for child in problems.sequence(node):
            given = problems.mapping(child, ("expires",), ("tool", "caller", "reason"))
            if "tool" not in given and "caller" not in given:
                problems.error(child, "an exception needs 'tool' or 'caller'")
            caller: dict[str, str] = {}
            if "caller" in given:
                words = ("tenant", "application", "agent", "user", "session_id", "run_id", "principal")
                caller = {key: problems.text(one) for key, one in problems.mapping(given["caller"], (), words).items()}
                if not caller:
                    problems.error(given["caller"], "must not be empty")
                for key, value in caller.items():
                    if "*" in value or "?" in value:
                        problems.warn(given["caller"].items()[key], f"'{value}' is compared as it stands: not a glob")
            expires = problems.instant_ms(given["expires"]) if "expires" in given else 0
            if self.now_ms is not None and "expires" in given and expires <= self.now_ms:
                problems.warn(given["expires"], "has already expired: the exception has no effect")
            found.append(
                Exemption(
                    expires,
                    self._matcher(given["tool"], source=False) if "tool" in given else None,
                    caller,
                    problems.text(given["reason"]) if "reason" in given else "",
                )
            )
        return tuple(found)

    # matchers

    def _matcher(self, node: Node, *, source: bool = True, inner: bool = False) -> Matcher:
        problems = self.problems
        words = tuple(key for key in TOOL_KEYS if (source or key != "source") and not (inner and key == "not"))
        given = problems.mapping(node, (), words, example="{name: read_file}")
        if isinstance(node.value, dict) and not node.value:
            problems.error(node, "an empty matcher would match every tool; say what it matches")
        values: dict[str, Any] = {"described": node.plain() if isinstance(node.value, dict) else {}}
        for key in ("namespace", "name"):
            if key in given:
                values[key] = problems.texts(given[key])
        for key, allowed in (
            ("risk_class", RISK_CLASSES),
            ("phase", PHASES),
            ("source", SOURCES),
            ("result_status", RESULT_STATUSES),
            ("confidence", CONFIDENCES),
            ("execution_location", EXECUTION_LOCATIONS),
            ("mark", MARKS),
            ("trust", ("untrusted", "trusted")),
        ):
            if key in given:
                values[key] = problems.choices(given[key], allowed)
        if "arguments" in given:
            values["arguments"] = self._predicates(given["arguments"])
        if "not" in given:
            values["negated"] = self._matcher(given["not"], inner=True)
        matcher = Matcher(**values)
        self._impossible(node, matcher)
        return matcher

    def _impossible(self, node: Node, matcher: Matcher) -> None:
        results = {"tool_result", "provider_event", "caller_metadata"}
        if matcher.phase == ("loop_governance",) and matcher.source != ("caller_metadata",):
            self.problems.warn(node, "can never match: only a loop rule looks at phase loop_governance")
        only_results = set(matcher.phase) == {"result_interpretation"}
        not_results = bool(matcher.phase) and not {"result_interpretation", "unknown"} & set(matcher.phase)
        if only_results and matcher.source and not results & set(matcher.source):
            self.problems.warn(node, "can never match: no event of that source has phase result_interpretation")
        if set(matcher.source) == {"tool_result"} and not_results:
            self.problems.warn(node, "can never match: a tool_result has phase result_interpretation")
        if matcher.arguments and matcher.source and set(matcher.source) <= WITHOUT_ARGUMENTS:
            self.problems.warn(node, f"can never match: no {' or '.join(matcher.source)} has arguments yet")
        sources = set(matcher.source)
        no_results = bool(sources) and sources <= {"declared_tool", "tool_choice", "assistant_tool_call"}
        if matcher.result_status and "unknown" not in matcher.result_status and (not_results or no_results):
            self.problems.warn(node, "can never match: only results have a result_status")
        if sources and matcher.mark and all(one in MARKED and not sources & MARKED[one] for one in matcher.mark):
            self.problems.warn(
                node, f"can never match: no {' or '.join(matcher.source)} is ever {' or '.join(matcher.mark)}"
            )
        hosted = [fold(one).startswith("provider.") for one in matcher.namespace]
        if hosted and all(hosted) and sources and sources <= {"assistant_tool_call", "tool_result"}:
            self.problems.warn(node, "can never match: what a provider runs is a provider_event")
        if matcher.negated is not None and _swallowed(matcher, matcher.negated):
            self.problems.warn(node, "can never match: 'not' takes away all that is left")

    def _crowded(self, node: Node, window: Window | None, threshold: int) -> None:
        """A window of n events holds the current one and n before it."""
        if window is not None and window.events is not None and threshold > window.events + 1:
            self.problems.warn(
                node,
                f"can never match: a window of {window.events} events holds {window.events + 1}, not {threshold}",
            )

    def warn_idle(self, node: Node, matcher: Matcher, action: Action) -> None:
        """An action that comes too early or too late for all that the matcher looks at."""
        if action.name == "deny_call":
            if matcher.source and set(matcher.source) <= ASKED:
                what = " or ".join(matcher.source)
                self.problems.warn(
                    node, f"never acts: deny_call answers calls, a {what} comes with a request; use block"
                )
            elif matcher.mark and set(matcher.mark) <= ASKED_MARKS:
                what = " or ".join(matcher.mark)
                self.problems.warn(
                    node, f"never acts: deny_call answers calls, what is {what} comes with a request; use block"
                )
        if action.name == "require_approval" and matcher.source == ("tool_result",):
            self.problems.warn(
                node,
                "results of tools that the gateway runs are not held: approval is asked when a request carries them",
            )

    def _predicates(self, node: Node) -> tuple[Predicate, ...]:
        problems = self.problems
        if not isinstance(node.value, dict) or not node.value:
            problems.error(node, "expected a mapping of JSON pointers to conditions")
            return ()
        found: list[Predicate] = []
        for pointer, child in node.value.items():
            parts = parse_pointer(pointer)
            if parts is None:
                hint = "after '~' comes 0 or 1" if pointer.startswith("/") else f"write '/{pointer}'"
                problems.error(child, f"'{pointer}' is not a JSON pointer; {hint}")
                continue
            given = problems.mapping(child, (), PREDICATE_KEYS)
            if not given:
                if isinstance(child.value, dict) and not child.value:
                    problems.error(child, f"needs one of {', '.join(PREDICATE_KEYS)}")
                continue
            tests = [self._predicate(key, one) for key, one in given.items()]
            options = [given["equals"].plain()] if "equals" in given else []
            options += [one.plain() for one in given["one_of"].entries()] if "one_of" in given else []
            if options and all(any(test(value) is not True for test in tests) for value in options):
                problems.warn(child, "can never match: no value holds under all of these conditions")
            for low, high in (("minimum", "maximum"), ("min_length", "max_length")):
                least, most = (given[key].value if key in given else None for key in (low, high))
                if isinstance(least, (int, float)) and isinstance(most, (int, float)) and least > most:
                    problems.error(given[high], f"no value can hold: {low} is {least}, {high} is {most}")
            words = orjson.dumps({pointer: child.plain()}, option=orjson.OPT_SORT_KEYS).decode()
            found.append(Predicate(pointer, words, at_pointer(parts, tests)))
        return tuple(found)

    def _predicate(self, key: str, node: Node) -> Callable[[Any], bool | None]:
        problems = self.problems
        if key == "equals":
            wanted = node.plain()
            return lambda value: equal(value, wanted)
        if key == "one_of":
            options = [child.plain() for child in problems.sequence(node)]
            if not options:
                problems.error(node, "must not be an empty list")
            return lambda value: one_of(value, options)
        if key == "glob":
            globs = [compile_value_glob(glob) for glob in problems.texts(node)]
            if len(globs) == 1:
                (only,) = globs
                return lambda value: only(value) if isinstance(value, str) else None
            return lambda value: any(fits(value) for fits in globs) if isinstance(value, str) else None
        if key == "regex":
            pattern = compile_regex(node, problems)
            if pattern is not None:
                pattern = compile_pattern(problems.text(node), dot_nl=True)
            return lambda value: (
                pattern.search(value) is not None if isinstance(value, str) and pattern is not None else None
            )
        if key in ("min_length", "max_length"):
            bound = problems.integer(node, 0)
            longer = key == "min_length"

            def measure(value: Any) -> bool | None:
                if not isinstance(value, (str, list, dict)):
                    return None
                size = len(cast("str", value))
                return size >= bound if longer else size <= bound

            return measure
        limit = problems.number(node)
        above = key == "minimum"

        def compare(value: Any) -> bool | None:
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                return None
            return value >= limit if above else value <= limit

        return compare

    def _window(self, node: Node, scope: str) -> Window:
        problems = self.problems
        given = problems.mapping(node, (), ("turns", "events", "ms", "milliseconds"), example="{ms: 3600000}")
        if isinstance(node.value, dict) and not node.value:
            problems.error(node, "an empty window; give turns, events or milliseconds")
        if "ms" in given and "milliseconds" in given:
            problems.error(given["ms"], "'ms' and 'milliseconds' are the same; give one")
        ms_node = given.get("ms") or given.get("milliseconds")
        ms = problems.integer(ms_node, 1) if ms_node is not None else None
        if ms is not None and ms_node is not None:
            self._fits_retention(ms_node, ms, scope)
        return Window(
            problems.integer(given["turns"], 1) if "turns" in given else None,
            problems.integer(given["events"], 1) if "events" in given else None,
            ms,
        )

    # warnings about the whole

    def _unreachable_states(self) -> None:
        for machine in self.machines.values():
            reached = {machine.initial_state, machine.expires_to}
            reached |= {state.expires_to for state in machine.states.values()}
            for state in machine.states:
                if state not in reached and (machine.id, state) not in self.entered:
                    key = (
                        "state_machine"
                        if machine.id == "default" and "state_machine" in self.model.sections
                        else "state_machines"
                    )
                    place = self.model.sections.get(key, self.model.node)
                    self.problems.warn(place, f"state '{state}' of machine '{machine.id}' is never entered by a rule")

    def _unlabelled(self, rules: Sequence[Rule], *layers: Sequence[Entry]) -> None:
        """Tools of the operator's catalog that rules on provenance and intent know too little of: what is unlabelled is refused."""
        provenance = any(isinstance(rule, ArgumentProvenance) for rule in rules)
        lexicons = [rule.lexicon for rule in rules if isinstance(rule, Intent)]
        if not provenance and not lexicons:
            return
        for layer in layers:
            for index, entry in enumerate(layer):
                if entry.match is None or entry.unwrap:
                    continue
                literal = "*" not in entry.match and "?" not in entry.match and "{" not in entry.match
                tool = (
                    self.catalog.resolve(entry.match)
                    if literal
                    else self.catalog.identify(entry.namespace, entry.name, entry.attributes, "inferred")
                )
                place = Node(None, entry.line, 1, f"catalog[{index}]")
                reads = tool.risk_class == "read_only"
                if provenance and reads and not tool.fields:
                    self.problems.warn(place, f"'{entry.match}' has no 'fields': all that it returns counts as text")
                if provenance and not reads and not tool.sinks:
                    self.problems.warn(place, f"'{entry.match}' has no 'arguments': they take only what the user says")
                if lexicons and not reads and not tool.effects:
                    self.problems.warn(place, f"'{entry.match}' has no 'effects': a rule on intent refuses it")
                for effect in tool.effects:
                    if not all(lexicon.knows(effect) for lexicon in lexicons):
                        known = [name for lexicon in lexicons for name in lexicon.effects]
                        self.problems.warn(
                            place,
                            f"no words ask for effect '{effect}' of '{entry.match}'{nearest(effect, known)}: a rule on intent refuses it",
                        )

    def _route_conflicts(self, rules: Sequence[Rule]) -> None:
        routing = [rule for rule in rules if rule.action.name in ("restrict_routes", "switch_model")]
        reported = 0
        for index, left in enumerate(routing):
            for right in routing[index + 1 :]:
                if reported >= 100:
                    return
                a = set(left.action.routes) or {left.action.target_model}
                b = set(right.action.routes) or {right.action.target_model}
                if a & b or _apart(left, right):
                    continue
                reported += 1
                place = Node(None, right.line, right.column, f"governance[{right.order}]")
                self.problems.warn(
                    place,
                    f"possible route conflict: '{right.id}' and '{left.id}' allow no model together; when both match, the request is blocked",
                )

    def warn_escape(self, node: Node, matcher: Matcher, action: Action) -> None:
        """Tools the catalog knows no risk of would slip past a rule that asks for one."""
        if not matcher.risk_class or "unknown" in matcher.risk_class:
            return
        if action.name not in DENYING and action.name not in ROUTING:
            return
        for namespace in matcher.namespace or ("\ue000",):
            for name in matcher.name or ("\ue000",):
                sample = self.catalog.identify(
                    namespace.replace("*", "\ue000"), name.replace("*", "\ue000"), {}, "ambiguous"
                )
                if sample.risk_class == "unknown":
                    self.problems.warn(
                        node,
                        "tools whose risk_class the catalog does not know escape this rule; add 'unknown', or label them",
                    )
                    return


def _apart(left: Rule, right: Rule) -> bool:
    """Whether two rules provably never match the same request."""
    scoped = left.machine == right.machine and left.state_scope and right.state_scope
    if scoped and not set(left.state_scope) & set(right.state_scope):
        return True
    return left.action.name == right.action.name == "switch_model" and left.action == right.action


def _swallowed(matcher: Matcher, negated: Matcher) -> bool:
    """Whether `not` provably holds for whatever the rest of a matcher lets through. Phases and arguments may be in doubt."""
    if negated.phase or negated.arguments:
        return False
    pairs = [
        (matcher.risk_class, negated.risk_class),
        (matcher.source, negated.source),
        (matcher.result_status, negated.result_status),
        (matcher.confidence, negated.confidence),
        (matcher.execution_location, negated.execution_location),
        (matcher.trust, negated.trust),
    ]
    for given, taken in pairs:
        if taken and (not given or not set(given) <= set(taken)):
            return False
    # One event may bear several marks.
    if negated.mark and (len(matcher.mark) != 1 or matcher.mark[0] not in negated.mark):
        return False
    for given, taken in ((matcher.namespace, negated.namespace), (matcher.name, negated.name)):
        globs = [compile_glob(one) for one in taken]
        folded = {fold(one) for one in taken}
        for one in given or (("*",) if taken else ()):
            literal = "*" not in one and "?" not in one
            if taken and fold(one) not in folded and not (literal and any(fits(fold(one)) for fits in globs)):
                return False
    return True


def _normal(matcher: Matcher | None) -> Any:
    """What a matcher asks for, however it was written."""
    if matcher is None:
        return None
    words = [
        sorted({fold(glob) for glob in matcher.namespace}),
        sorted({fold(glob) for glob in matcher.name}),
        *(
            sorted(set(given))
            for given in (
                matcher.risk_class,
                matcher.phase,
                matcher.source,
                matcher.result_status,
                matcher.confidence,
                matcher.execution_location,
                matcher.mark,
                matcher.trust,
            )
        ),
    ]
    return [words, sorted(predicate.words for predicate in matcher.arguments), _normal(matcher.negated)]


def _counted(rule: Rule) -> list[Any]:
    """What a rule's registers depend on: not its id, message, action, priority or threshold."""
    shared: list[Any] = [rule.kind, rule.scope, rule.bundle]
    if isinstance(rule, LoopThreshold):
        return [*shared, _normal(rule.tool), rule.equal, _windowed(rule.window)]
    if isinstance(rule, HistoryThreshold):
        return [*shared, _normal(rule.tool), _windowed(rule.window)]
    if isinstance(rule, ToolSequence):
        until = rule.until
        ends = None if until is None else [until.state, _normal(until.tool), until.user_turn, until.clean_turn]
        return [*shared, _normal(rule.after), _normal(rule.then), rule.machine, ends]
    if isinstance(rule, Budget):
        return [*shared, _normal(rule.tool), sorted(rule.limits), _windowed(rule.window)]
    if isinstance(rule, TextRule):
        return [*shared, rule.match, sorted(rule.roles), rule.ignore_case]
    return [*shared, rule.id]


def _sharing(rules: Sequence[Rule]) -> list[Rule]:
    """Rules that count the same share one register, counted once; it keeps what the most demanding of them needs.

    Doubt counts for those that deny only, so beside such a rule the others count for themselves."""
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(rule.key, []).append(rule)
    found: list[Rule] = []
    for rule in rules:
        group = groups[rule.key]
        denying = rule.action.name in DENYING
        alike = [one for one in group if (one.action.name in DENYING) == denying]
        key = rule.key if denying or len(alike) == len(group) else f"{rule.key}~"
        if isinstance(rule, (LoopThreshold, HistoryThreshold)):
            demands = [one.threshold for one in alike if isinstance(one, (LoopThreshold, HistoryThreshold))]
            # One more than the largest, so that the count before the last event can be told too.
            rule = replace(rule, kept=max(demands) + (len(alike) > 1), shared=len(alike) > 1)
        found.append(replace(rule, key=key))
    return found


def _windowed(window: Window | None) -> list[int | None] | None:
    return None if window is None else [window.turns, window.events, window.ms]


# One reader per kind.


def _read_selector(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    if "tool" not in given:
        return None
    matcher = c._matcher(given["tool"])
    action: Action = shared["action"]
    if action.name in ("strip_tools", "set_controls") and not matcher.source and not action.strip:
        matcher = replace(matcher, source=("declared_tool",))
    c.warn_escape(given["tool"], matcher, action)
    c.warn_idle(given["tool"], matcher, action)
    return ToolSelector(**shared, tool=matcher)


def _read_allowed(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    if "mode" in given and given["mode"].value in ("enforce", "observe"):
        problems.error(
            given["mode"], "here 'mode' is block, filter or deny_call; use 'enforcement: observe' to only watch"
        )
    surface = cast(
        "Literal['block', 'filter', 'deny_call']",
        problems.choice(given["mode"], ("block", "filter", "deny_call")) if "mode" in given else "block",
    )
    if "action" in given and given["action"].value == "deny_call" and surface == "block":
        problems.error(given["action"], "say 'mode: deny_call' instead")
    if "action" in given and given["action"].value == "block" and surface != "block":
        problems.error(given["action"], f"'mode: {surface}' blocks nothing; leave the action out, or say 'mode: block'")
    phases = problems.choices(given["phase"], PHASES) if "phase" in given else ()
    if phases and set(phases) <= {"loop_governance", "unknown"}:
        problems.warn(given["phase"], f"can never match: no tool is offered or called in phase {' or '.join(phases)}")
    allowed: list[AllowedTool] = []
    if "allowed_tools" in given:
        for child in problems.sequence(given["allowed_tools"]):
            one = problems.mapping(child, ("name",), ("namespace", "risk_class"), example="{name: read_file}")
            if "name" in one:
                allowed.append(
                    AllowedTool(
                        problems.text(one["namespace"]) if "namespace" in one else "",
                        problems.text(one["name"]),
                        problems.choice(one["risk_class"], RISK_CLASSES) if "risk_class" in one else "",
                    )
                )
        if isinstance(given["allowed_tools"].value, tuple) and not given["allowed_tools"].value:
            problems.error(
                given["allowed_tools"], "must not be an empty list; to allow nothing, block with a tool_selector"
            )
    action: Action = shared["action"]
    if surface != "block":
        # Filtering happens at the request, denying at the reply; the action named on findings is deny_call.
        action = replace(action, name="deny_call")
    merged: dict[str, Any] = {**shared, "action": action, "gates": frozenset[Gate](("request", "reply"))}
    return AllowedTools(**merged, phases=phases, surface=surface, allowed=tuple(allowed))


def _counting_matcher(c: _Compiler, node: Node, equal: str) -> Matcher:
    """Unless the rule says otherwise, an occurrence is counted once: at its call, or at its result when results are compared."""
    quiet = Problems(c.problems.file)
    kept, c.problems = c.problems, quiet
    matcher = c._matcher(node)
    c.problems = kept
    kept.found.extend(
        problem
        for problem in quiet.found
        if not (problem.severity == "warning" and "only a loop rule" in problem.message)
    )
    phases = matcher.phase
    if "loop_governance" in phases:
        phases = tuple(
            dict.fromkeys((*(one for one in phases if one != "loop_governance"), "planning", "argument_repair"))
        )
        matcher = replace(matcher, phase=phases)
    if not phases and not matcher.source:
        if equal == "tool+arguments+result":
            matcher = replace(matcher, phase=("result_interpretation",))
        elif not matcher.result_status and not matcher.mark and not matcher.trust:
            matcher = replace(matcher, phase=("planning", "argument_repair"))
    return matcher


def _read_loop(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    if "tool" not in given or "threshold" not in given:
        return None
    equal = (
        problems.choice(given["equal"], ("tool", "tool+arguments", "tool+arguments+result"))
        if "equal" in given
        else "tool"
    )
    window = c._window(given["within"], shared["scope"]) if "within" in given else None
    threshold = problems.integer(given["threshold"], 1)
    if window is not None and threshold > 1000:
        problems.error(given["threshold"], "a threshold inside a window can be 1000 at most")
    matcher = _counting_matcher(c, given["tool"], equal)
    c._crowded(given["threshold"], window, threshold)
    c.warn_escape(given["tool"], matcher, shared["action"])
    c.warn_idle(given["tool"], matcher, shared["action"])
    return LoopThreshold(
        **shared,
        tool=matcher,
        threshold=threshold,
        equal=cast("Literal['tool', 'tool+arguments', 'tool+arguments+result']", equal),
        window=window,
    )


def _read_history(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    if "tool" not in given or "threshold" not in given:
        return None
    window = c._window(given["within"], shared["scope"]) if "within" in given else None
    threshold = c.problems.integer(given["threshold"], 1)
    if window is not None and threshold > 1000:
        c.problems.error(given["threshold"], "a threshold inside a window can be 1000 at most")
    c._crowded(given["threshold"], window, threshold)
    return HistoryThreshold(
        **shared, tool=_counting_matcher(c, given["tool"], "tool"), threshold=threshold, window=window
    )


def _tool_of(c: _Compiler, node: Node, extra: tuple[str, ...] = ()) -> Matcher | None:
    given = c.problems.mapping(node, ("tool",), extra)
    return c._matcher(given["tool"]) if "tool" in given else None


def _read_sequence(c: _Compiler, node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    if "after" not in given:
        return None
    after = _tool_of(c, given["after"], ("within",))
    nested = given["after"].items().get("within")
    if nested is not None and "within" in given:
        problems.error(nested, "'within' is given twice")
    window_node = given.get("within") or nested
    window = c._window(window_node, shared["scope"]) if window_node is not None else None
    then: Matcher | None = None
    later = node.items().get("then")
    if later is not None:
        action_keys = {key for required, optional in ACTION_KEYS.values() for key in (*required, *optional)}
        inside = problems.mapping(later, (), ("tool", "action", "attach_policy_bundle", *sorted(action_keys)))
        if "tool" in inside:
            then = c._matcher(inside["tool"])
    if "before" in given:
        if then is not None:
            problems.error(given["before"], "the later event is given twice: 'before' and 'then.tool'")
        then = _tool_of(c, given["before"])
    if later is not None and then is None:
        problems.error(later, "missing key 'tool': which later event")
    action: Action = shared["action"]
    if then is None and action.name != "transition":
        problems.error(node, f"action '{action.name}' needs a later event: 'then.tool' or 'before.tool'")
    if then is None and not action.transition_to:
        problems.error(node, "needs 'transition_to', or a later event under 'then'")
    until: Until | None = None
    if "until" in given:
        parts = problems.mapping(given["until"], (), ("state", "tool", "user_turn", "clean_turn"))
        if not parts and isinstance(given["until"].value, dict):
            problems.error(given["until"], "must not be empty: state, tool, user_turn or clean_turn")
        state = problems.text(parts["state"]) if "state" in parts else ""
        if state:
            c._known_state(state, c.machines[shared["machine"]].states, parts["state"])
            if then is None:
                problems.error(
                    parts["state"], "'until.state' clears a sequence with a later event; a state ends by itself"
                )
        for key in ("user_turn", "clean_turn"):
            if key in parts and not problems.boolean(parts[key]):
                problems.error(parts[key], "can only be true")
        if "user_turn" in parts and (action.name in DENYING or action.transition_to):
            problems.warn(
                parts["user_turn"],
                "any text in the user's role clears it, also a note that a client puts behind the result itself",
            )
        until = Until(
            state,
            c._matcher(parts["tool"]) if "tool" in parts else None,
            "user_turn" in parts,
            "clean_turn" in parts,
        )
    if window is not None and (action.name in DENYING or action.transition_to):
        problems.warn(
            window_node or node,
            "a window can be flushed by waiting or by harmless calls; a state cleared by 'until' alone cannot",
        )
    if after is None:
        return None
    if then is not None:
        c.warn_escape(node, then, action)
        c.warn_idle(node, then, action)
    return ToolSequence(**shared, after=after, then=then, window=window, until=until)


def _read_schema(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    if "tool" not in given:
        return None
    schema = _schema(c, given)
    matcher = c._matcher(given["tool"])
    c.warn_escape(given["tool"], matcher, shared["action"])
    if matcher.source and "assistant_tool_call" not in matcher.source:
        c.problems.warn(given["tool"], "can never match: only an assistant_tool_call is checked against a schema")
    return ArgumentSchema(**shared, tool=matcher, schema=schema)


def _read_provenance(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    if "tool" not in given:
        return None
    matcher = _calls_matcher(c, given["tool"], shared["action"])
    accepts: dict[str, frozenset[str]] = {}
    if "accept" in given:
        for sink, child in problems.mapping(given["accept"], (), tuple(ACCEPTS)).items():
            if sink in ("any", "date", "text"):
                problems.error(child, f"what '{sink}' takes is fixed; give the argument another sink in the catalog")
            accepts[sink] = frozenset(problems.choices(child, CLASSES))
            for word in sorted({"text", "unknown", "echo"} & accepts[sink]):
                problems.warn(child, f"'{word}' lets an outsider choose what goes into '{sink}'")
    own: set[Atom] = set()
    for one in problems.texts(given["self"]) if "self" in given else ():
        own.add(("w", words(one)))
        own.update(typed_as_whole(plain(one)))
    protected = problems.texts(given["protected_paths"]) if "protected_paths" in given else ()
    untrusted = problems.texts(given["untrusted_text"]) if "untrusted_text" in given else ()
    if "untrusted_text" in given:
        node = given["untrusted_text"]
        for child in node.entries() or (node,):
            compile_regex(child, problems)
    return ArgumentProvenance(
        **shared, tool=matcher, accepts=accepts, own=frozenset(own), protected=protected, untrusted=untrusted
    )


def _read_intent(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    if "tool" not in given:
        return None
    matcher = _calls_matcher(c, given["tool"], shared["action"])
    lexicon = default_lexicon()
    if "lexicon" in given:
        lexicon = read_lexicon(given["lexicon"], c.problems, lexicon)
    return Intent(**shared, tool=matcher, lexicon=lexicon)


def _calls_matcher(c: _Compiler, node: Node, action: Action) -> Matcher:
    matcher = c._matcher(node)
    c.warn_escape(node, matcher, action)
    if matcher.source and "assistant_tool_call" not in matcher.source:
        c.problems.warn(node, "can never match: only an assistant_tool_call is judged")
    return matcher


def _schema(c: _Compiler, given: Mapping[str, Node]) -> Mapping[str, Any] | None:
    if "schema" not in given:
        return None
    if not isinstance(given["schema"].value, dict):
        c.problems.error(given["schema"], "expected a JSON Schema")
        return None
    schema = given["schema"].plain()
    for keys, message in examine(schema):
        place = given["schema"]
        for key in keys:
            inside = place.entries()
            place = inside[int(key)] if inside else place.items().get(key, place)
        c.problems.error(place, message)
    return schema


def _read_budget(c: _Compiler, node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    limits: dict[str, float] = {}
    if "limits" in given:
        for key, child in problems.mapping(given["limits"], (), BUDGET_DIMENSIONS).items():
            if key == "calls":
                limits[key] = float(problems.integer(child, 1))
            elif key == "tokens":
                limits[key] = float(problems.integer(child, 0))
            else:
                limits[key] = problems.number(child, 0)
        if not limits and isinstance(given["limits"].value, dict):
            problems.error(given["limits"], f"needs one of {', '.join(BUDGET_DIMENSIONS)}")
    reserve: dict[str, float] = {}
    if "reserve" in given:
        for key, child in problems.mapping(given["reserve"], (), ("tokens", "seconds", "price")).items():
            reserve[key] = problems.number(child, 0)
            if key not in limits:
                problems.error(child, f"'{key}' has no limit to reserve from")
            elif reserve[key] > limits[key]:
                problems.error(child, f"more than the limit of {limits[key]:g}: every request would be refused")
    window = c._window(given["within"], shared["scope"]) if "within" in given else None
    if window is not None and (window.turns is not None or window.events is not None):
        problems.error(given["within"], "a budget's window is in milliseconds")
    matcher = None
    if "tool" in given:
        matcher = c._matcher(given["tool"])
        if "calls" not in limits:
            problems.error(given["tool"], "'tool' chooses the calls that count, but there is no limit on calls")
        if not matcher.source:
            matcher = replace(
                matcher, source=("assistant_tool_call", "provider_event"), phase=matcher.phase or ("planning",)
            )
    if shared["action"].name == "deny_call" and set(limits) != {"calls"}:
        problems.error(node, "deny_call fits a budget of calls only; use block for tokens, seconds and price")
    return Budget(**shared, tool=matcher, limits=limits, window=window, reserve=reserve)


def _read_text(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    problems = c.problems
    if "match" not in given:
        return None
    text = problems.text(given["match"])
    ignore = problems.choice(given["case"], ("insensitive", "sensitive")) == "insensitive" if "case" in given else True
    try:
        compile_pattern(text, ignore_case=ignore)
        if text and compile_pattern(_DOT_ALL + text, ignore_case=ignore).fullmatch(""):
            problems.error(given["match"], f"'{text}' matches everything")
    except BadPattern as error:
        problems.error(given["match"], f"bad regular expression '{text}': {error}")
    roles: tuple[Role, ...] = ROLES
    if shared["kind"] == "stream_guard":
        roles = ("assistant",)
    elif "roles" in given:
        roles = cast("tuple[Role, ...]", problems.choices(given["roles"], ROLES))
    return TextRule(**shared, match=text, roles=roles, ignore_case=ignore)


def _read_output(c: _Compiler, _node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    return StructuredOutput(**shared, schema=_schema(c, given))


def _read_alert(c: _Compiler, node: Node, given: Mapping[str, Node], shared: dict[str, Any]) -> Rule | None:
    if ("tool" in given) == ("match" in given):
        c.problems.error(node, "an alert needs either 'tool' or 'match'")
        return None
    if "tool" in given:
        return _read_selector(c, node, given, shared)
    return _read_text(c, node, given, {**shared, "gates": frozenset({"request"})})


_READERS: Final[Mapping[RuleKind, Callable[[_Compiler, Node, Mapping[str, Node], dict[str, Any]], Rule | None]]] = {
    "tool_selector": _read_selector,
    "allowed_tools": _read_allowed,
    "tool_loop_threshold": _read_loop,
    "tool_sequence": _read_sequence,
    "argument_schema": _read_schema,
    "argument_provenance": _read_provenance,
    "intent": _read_intent,
    "budget": _read_budget,
    "route_gate": _read_text,
    "request_guard": _read_text,
    "history_threshold": _read_history,
    "stream_guard": _read_text,
    "structured_output": _read_output,
    "alert": _read_alert,
}
