"""The typed plan: rule kinds, actions, matchers; and what evaluating it gives: `Finding` and `Ruling`.

Only `compile` makes rules, only `evaluate` makes findings, only `arbitrate` makes rulings. Words are the same here, in YAML
and on receipts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from immutables import Map

from wardwright.facts import Phase, ToolFact
from wardwright.history import ScopeKind
from wardwright.policy.intent import Lexicon
from wardwright.policy.values import Atom
from wardwright.wire.turn import Gate, Role

NO_LEXICON: Final = Lexicon({})
EMPTY: Final[Map[str, Any]] = Map()

ActionName: TypeAlias = Literal[
    "block",
    "deny_call",
    "strip_tools",
    "restrict_routes",
    "switch_model",
    "reroute",
    "require_approval",
    "transform",
    "inject_reminder",
    "set_controls",
    "alert_async",
    "annotate",
    "transition",
]
"""block: the whole request, reply or result is refused
deny_call: this call gets an error for an answer; at the result gate the result is replaced by one
strip_tools: the matched tools are taken from what the provider sees
restrict_routes: only these models may answer (several rules intersect)
switch_model: this model must answer
reroute: this model is preferred
require_approval: held until an operator approves
transform: text is replaced in what passes
inject_reminder: a text is put before the model
set_controls: parameters of hosted tools are clamped, only towards stricter
alert_async: an alert is sent, off the path
annotate: a note on the receipt
transition: a state machine moves"""

GATES: Final[Mapping[ActionName, frozenset[Gate]]] = {
    "block": frozenset({"request", "reply", "result"}),
    "deny_call": frozenset({"reply", "result"}),
    "strip_tools": frozenset({"request"}),
    "restrict_routes": frozenset({"request", "reply"}),
    "switch_model": frozenset({"request", "reply"}),
    "reroute": frozenset({"request", "reply"}),
    "require_approval": frozenset({"request", "reply"}),
    "transform": frozenset({"request", "reply", "result"}),
    "inject_reminder": frozenset({"request"}),
    "set_controls": frozenset({"request"}),
    "alert_async": frozenset({"request", "reply", "result"}),
    "annotate": frozenset({"request", "reply", "result"}),
    "transition": frozenset({"request", "reply", "result"}),
}
"""Where an action can be taken (G12). A rule is judged only at gates that its kind and its action share."""

DENYING: Final[frozenset[ActionName]] = frozenset({"block", "deny_call", "require_approval", "strip_tools"})
"""Actions for which doubt counts as a match: unknown phase, unreadable predicate."""

Mode: TypeAlias = Literal["enforce", "observe"]
Severity: TypeAlias = Literal["info", "low", "medium", "high", "critical"]

RuleKind: TypeAlias = Literal[
    "allowed_tools",
    "tool_selector",
    "tool_loop_threshold",
    "tool_sequence",
    "argument_schema",
    "argument_provenance",
    "intent",
    "budget",
    "route_gate",
    "request_guard",
    "history_threshold",
    "stream_guard",
    "structured_output",
    "alert",
]


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule does when it matches; only the fields its name uses are set."""

    name: ActionName
    routes: tuple[str, ...] = ()
    target_model: str = ""
    bundle: str = ""
    """`attach_policy_bundle`."""
    text: str = ""
    """inject_reminder: the text; transform: the replacement."""
    pattern: str = ""
    """transform: what is replaced (linear-time regex, `.` matches a line break too); empty replaces the whole text."""
    controls: Mapping[str, Any] = field(default_factory=dict[str, Any])
    channel: str = ""
    """alert_async: a word that goes with the alert, for whoever sorts them."""
    transition_to: str = ""
    """Any action may also move the rule's machine."""
    strip: tuple[Matcher, ...] = ()
    """strip_tools: which declared tools, when others than those that matched."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on the arguments. `test` gives None when the value cannot be read."""

    pointer: str
    words: str
    """As written, for receipts."""
    test: Callable[[Any], bool | None] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Matcher:
    """All given keys must match; within a key any value does. Empty tuple: key not given."""

    namespace: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    risk_class: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    result_status: tuple[str, ...] = ()
    confidence: tuple[str, ...] = ()
    execution_location: tuple[str, ...] = ()
    mark: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    arguments: tuple[Predicate, ...] = ()
    negated: Matcher | None = None
    """`not:` these keys must not all match."""
    described: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """As written, for receipts."""


@dataclass(frozen=True, slots=True)
class Window:
    """Three different windows; each given one must hold."""

    turns: int | None = None
    events: int | None = None
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """What clears a sequence. Any of the given ones does."""

    state: str = ""
    tool: Matcher | None = None
    user_turn: bool = False
    clean_turn: bool = False


@dataclass(frozen=True, slots=True)
class Exemption:
    """An entry of `exceptions`: who or what a rule does not govern, until when."""

    expires_at_ms: int
    tool: Matcher | None = None
    caller: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What every kind has. `key` is the hash of what the rule counts, so that registers survive edits that do not matter."""

    id: str
    kind: RuleKind
    key: str
    order: int
    action: Action
    gates: frozenset[Gate]
    state_scope: tuple[str, ...] = ()
    machine: str = "default"
    scope: ScopeKind = "session_id"
    """`cache_scope`."""
    mode: Mode = "enforce"
    priority: int = 0
    owner: str = ""
    severity: Severity = "medium"
    message: str = ""
    exceptions: tuple[Exemption, ...] = ()
    bundle: str = ""
    """Set for a rule that counts only while its bundle is attached."""
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class ToolSelector(Rule):
    tool: Matcher = field(default_factory=Matcher)


@dataclass(frozen=True, slots=True)
class AllowedTool:
    namespace: str
    """Empty: any."""
    name: str
    risk_class: str


@dataclass(frozen=True, slots=True)
class AllowedTools(Rule):
    phases: tuple[str, ...] = ()
    surface: Literal["block", "filter", "deny_call"] = "block"
    """The YAML key is `mode`."""
    allowed: tuple[AllowedTool, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopThreshold(Rule):
    tool: Matcher = field(default_factory=Matcher)
    threshold: int = 1
    equal: Literal["tool", "tool+arguments", "tool+arguments+result"] = "tool"
    window: Window | None = None
    kept: int = 0
    """Positions its windowed register keeps …"""
    shared: bool = False
    """… and whether another rule counts into it too."""


@dataclass(frozen=True, slots=True)
class ToolSequence(Rule):
    """Without `then` it moves the machine when `after` happens; with it, it acts on a later event."""

    after: Matcher = field(default_factory=Matcher)
    then: Matcher | None = None
    window: Window | None = None
    until: Until | None = None


@dataclass(frozen=True, slots=True)
class ArgumentSchema(Rule):
    tool: Matcher = field(default_factory=Matcher)
    schema: Mapping[str, Any] | None = None
    """None: the schema the request declares."""


@dataclass(frozen=True, slots=True)
class ArgumentProvenance(Rule):
    """What a call's arguments hold must come from where their sinks take it from."""

    tool: Matcher = field(default_factory=Matcher)
    accepts: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Sink type → classes, where the rule says other than the default."""
    own: frozenset[Atom] = frozenset()
    """The principal's own identifiers, in normal form."""
    protected: tuple[str, ...] = ()
    """Globs of paths that need the user's literal."""
    untrusted: tuple[str, ...] = ()
    """Patterns: a text in the user's role that matches is no word of the user."""


@dataclass(frozen=True, slots=True)
class Intent(Rule):
    """What a tool does must have been asked for by the user."""

    tool: Matcher = field(default_factory=Matcher)
    lexicon: Lexicon = field(default_factory=lambda: NO_LEXICON)


@dataclass(frozen=True, slots=True)
class Budget(Rule):
    tool: Matcher | None = None
    """Which calls count for `calls`; None: all."""
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """calls, tokens, seconds, price."""
    window: Window | None = None
    reserve: Mapping[str, float] = field(default_factory=dict[str, float])
    """What a request sets aside until its reply settles it."""


@dataclass(frozen=True, slots=True)
class TextRule(Rule):
    """route_gate, request_guard, stream_guard, and an alert on text."""

    match: str = ""
    roles: tuple[Role, ...] = ()
    ignore_case: bool = True


@dataclass(frozen=True, slots=True)
class HistoryThreshold(Rule):
    """Counts matching facts all together (a loop counts equal ones)."""

    tool: Matcher = field(default_factory=Matcher)
    threshold: int = 1
    window: Window | None = None
    kept: int = 0
    shared: bool = False
    """As for a loop."""


@dataclass(frozen=True, slots=True)
class StructuredOutput(Rule):
    schema: Mapping[str, Any] | None = None
    """None: the schema the request asked for."""


@dataclass(frozen=True, slots=True)
class State:
    id: str
    expires_ms: int | None = None
    expires_to: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    id: str
    scope: ScopeKind
    initial_state: str
    states: Mapping[str, State]
    expires_ms: int | None = None
    expires_to: str = ""


@dataclass(slots=True)
class Finding:
    """One rule matched (or failed). Never without a rule's name."""

    rule_id: str
    kind: str
    action: Action
    effect: str
    """What it asks for at this gate: an action name; `block` for a rule that raised."""
    message: str
    priority: int = 0
    order: int = 0
    facts: tuple[int, ...] = ()
    """Indexes into `Ruling.facts`."""
    call_id: str = ""
    """The call it is about; empty: the whole gate."""
    evidence: Mapping[str, Any] = EMPTY
    enforced: bool = True
    """False in observe mode: a would-have."""
    lifted: str = ""
    """Why an enforced finding has no effect: `approval` or `exception`."""
    error: str = ""
    """Set when the rule raised."""
    key: str = ""
    """Identity of what an operator approves: rule content, tool, argument digest, session."""
    bundle: str = ""


Approval: TypeAlias = Literal["refuse", "tool_error"]
"""refuse: a reply with a call that needs an approval is held whole, and the caller is refused with a handle
tool_error: the call alone is taken out; the model reads an error with a handle, and may call again once it is approved"""

CallStatus: TypeAlias = Literal["allow", "deny_call", "require_approval", "block"]


@dataclass(slots=True)
class CallRuling:
    """What happens to one call of a reply, or to one tool result."""

    item: int
    """Index in `Turn.items`."""
    call_id: str
    """The id the caller sees."""
    provider_id: str
    """The id the provider gave."""
    name: str
    status: CallStatus
    message: str = ""
    """What the model reads as the error of a denied call; what a person reads for an approval."""
    rules: tuple[str, ...] = ()
    approval: str = ""
    """Handle under which an operator may approve a denied call; empty: nobody is asked."""


@dataclass(frozen=True, slots=True)
class Route:
    """What routing may choose from. Empty and None: no constraint."""

    allowed: tuple[str, ...] | None = None
    model: str = ""
    """Hard."""
    prefer: tuple[str, ...] = ()


@dataclass(slots=True)
class Conflict:
    rules: tuple[str, ...]
    message: str


Decision: TypeAlias = Literal["allow", "block", "deny_call", "require_approval"]
"""allow: it passes, perhaps changed or routed (see also `Ruling.reask`)
block: nothing of it passes
deny_call: it passes but for the denied calls; calls that wait for an approval hold the rest (see `CallRuling.status`)
require_approval: it is held"""


@dataclass(slots=True)
class Ruling:
    """The outcome of one gate, with its reasons. Equal inputs give equal rulings."""

    gate: Gate
    decision: Decision
    plan_hash: str
    phase: Phase = "planning"
    rule_id: str = ""
    """The determining rule when the decision is not allow."""
    message: str = ""
    """What a person can do."""
    blocked_tools: tuple[str, ...] = ()
    calls: tuple[CallRuling, ...] = ()
    route: Route = Route()
    reask: bool = False
    """Reply only: ask the target that `route` names instead; nothing of this reply is released."""
    binds_next: bool = False
    """Reply only: too late to ask again; the next request of this session is bound by `route`."""
    stripped: tuple[str, ...] = ()
    """Raw names the provider must not see."""
    withheld_server_tools: tuple[str, ...] = ()
    """Raw names of server tools that must not be injected."""
    transforms: tuple[Finding, ...] = ()
    reminders: tuple[str, ...] = ()
    controls: Mapping[str, Mapping[str, Any]] = EMPTY
    """Hosted kind → clamped parameters."""
    alerts: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """unseen_prefix, omitted, branched, refused claims …"""
    findings: tuple[Finding, ...] = ()
    """All of them, strongest first, observed and lifted ones too."""
    conflicts: tuple[Conflict, ...] = ()
    bundles: tuple[str, ...] = ()
    states: Mapping[str, str] = EMPTY
    """Machine → state after this gate."""
    facts: tuple[ToolFact, ...] = ()
    considered: tuple[tuple[str, ...], ...] = ()
    """Per event fact (declared tools come after them in `facts`), the ids of the candidate rules; every other tool rule of the
    plan could not match it. Rules about text, surfaces and budgets are always judged."""
    request: str = ""
    """Request only: its name, for the turn of the reply (`Turn.request`)."""
