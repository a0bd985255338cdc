"""What a plan cannot see: where its rules have nothing to go by, and what no gateway can know. Told before somebody relies on it.

Read off the compiled plan: the catalog, the rules and the targets' capability records. Judges no traffic and promises nothing: a
line that is missing here is no proof (`prove` is for that). Every line says what, why, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

from wardwright.catalog import PLACEHOLDER, Entry, Identity, compile_glob, default_entries, fold
from wardwright.facts import ToolFact
from wardwright.policy.compile import ModelPlan, Plan
from wardwright.policy.matching import still_fits
from wardwright.policy.rules import (
    AllowedTools,
    ArgumentProvenance,
    Budget,
    HistoryThreshold,
    Intent,
    LoopThreshold,
    Matcher,
    Rule,
    TextRule,
    ToolSelector,
    ToolSequence,
    Window,
)
from wardwright.projection import project_model

BlindKind: TypeAlias = Literal[
    "tools_unlabelled",
    "fields_unlabelled",
    "arguments_unlabelled",
    "effects_unlabelled",
    "unguarded",
    "hosted",
    "never_fires",
    "observes",
    "session",
    "no_user",
    "expires",
    "words",
    "pasted",
    "limit",
]
"""tools_unlabelled: nothing is known of their risk
fields_unlabelled: what they return is text to every rule
arguments_unlabelled: what goes into them is not known
effects_unlabelled: what they do is not known
unguarded: it cannot be undone, and nothing asks anybody
hosted: the provider runs it, and shows it afterwards or not at all
never_fires: a rule, or a part of it, that nothing fits
observes: a rule that finds and does nothing
session: a rule that remembers one session, and callers may begin another
no_user: a place without the user's words
expires: what a rule holds can be waited out, or flushed
words: a rule that reads words, not meaning
pasted: text in the user's role that no user wrote
limit: what no gateway can know"""

MANY: Final = 12
"""Names listed on one line; the rest is counted."""
REFUSING: Final = frozenset({"block", "deny_call", "require_approval"})
FINAL: Final = frozenset({"irreversible", "external_side_effect"})
_NOBODY: Final = "\ue000"
"""A name that no catalog has."""


@dataclass(frozen=True, slots=True)
class Blind:
    """One thing that is not seen."""

    kind: BlindKind
    what: str
    why: str
    remedy: str
    """What to do about it."""
    model: str = ""
    """Empty: of every plan."""
    rules: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "what": self.what,
            "why": self.why,
            "do": self.remedy,
            "model": self.model,
            "rules": list(self.rules),
            "tools": list(self.tools),
        }


def blind(plan: Plan) -> tuple[Blind, ...]:
    """Everything that is known not to be seen: of each model, then what holds for all."""
    found = [line for part in plan.models.values() for line in _model(part)]
    found.extend(
        Blind(
            "never_fires",
            f"what {problem.path} asks for (line {problem.line})",
            problem.message.removeprefix("can never match: "),
            "correct the rule, or take it out",
        )
        for problem in plan.warnings
        if problem.message.startswith("can never match: ")
    )
    found.extend(_limits(any(_provenance(part) for part in plan.models.values())))
    return tuple(found)


def _model(part: ModelPlan) -> Iterator[Blind]:
    rules = _rules(part)
    tools = tuple(_tools(part))
    yield from _labels(part, rules, tools)
    yield from _unguarded(part, rules, tools)
    yield from _hosted(part, rules)
    yield from _idle(part, rules)
    yield from _sessions(part, rules)
    yield from _users(part, rules)
    yield from _expiring(part, rules)
    yield from _texts(part, rules)


def _rules(part: ModelPlan) -> tuple[Rule, ...]:
    return tuple(rule for ruleset in (part.rules, *part.bundles.values()) for rule in ruleset.rules)


def _enforced(rules: Iterable[Rule]) -> Iterator[Rule]:
    return (rule for rule in rules if rule.mode == "enforce")


def _provenance(part: ModelPlan) -> bool:
    return any(isinstance(rule, (ArgumentProvenance, Intent)) for rule in _rules(part))


# the catalog


@dataclass(frozen=True, slots=True)
class _Tool:
    """A tool, or a pattern of tools, that the operator's own catalog names."""

    shown: str
    identity: Identity


def _own(part: ModelPlan) -> Sequence[Entry]:
    """The operator's entries: all but the layer that ships, which comes last."""
    return part.catalog.entries[: len(part.catalog.entries) - len(default_entries())]


def _tools(part: ModelPlan) -> Iterator[_Tool]:
    for entry in _own(part):
        if entry.match is None or entry.unwrap:
            continue
        if any(one in entry.match for one in "*?{"):
            name = PLACEHOLDER.sub(_NOBODY, entry.name) or _NOBODY
            namespace = PLACEHOLDER.sub(_NOBODY, entry.namespace) or "unknown"
            yield _Tool(entry.match, part.catalog.identify(namespace, name, entry.attributes, "inferred"))
        else:
            yield _Tool(entry.match, part.catalog.resolve(entry.match))


def _labels(part: ModelPlan, rules: Sequence[Rule], tools: Sequence[_Tool]) -> Iterator[Blind]:
    model = part.model_id
    unknown = [tool.shown for tool in tools if tool.identity.risk_class == "unknown"]
    if unknown:
        yield Blind(
            "tools_unlabelled",
            f"the risk of {_some(unknown)}",
            "the catalog names them and says no risk_class, so a rule that asks for one sees 'unknown'",
            "give each a risk_class; rules that refuse should list 'unknown' too",
            model,
            tools=tuple(unknown),
        )
    stranger = _call(part.catalog.resolve(_NOBODY))
    if not _guards(part, rules, stranger):
        yield Blind(
            "tools_unlabelled",
            "tools that nobody described",
            "a tool that stands in no catalog has risk 'unknown', and no rule refuses or holds that in every state",
            "add 'unknown' to risk_class of a rule that refuses, or list what is allowed with allowed_tools",
            model,
        )
    if any(isinstance(rule, ArgumentProvenance) for rule in rules):
        reading = [one.shown for one in tools if one.identity.risk_class == "read_only" and not one.identity.fields]
        if reading:
            yield Blind(
                "fields_unlabelled",
                f"which fields of {_some(reading)} can be trusted",
                "no 'fields': all that they return counts as text that anybody may have written",
                "say the class of each field (system, directory, payee, label, text, …); what is left out stays text",
                model,
                tools=tuple(reading),
            )
        writing = [one.shown for one in tools if one.identity.risk_class != "read_only" and not one.identity.sinks]
        if writing:
            yield Blind(
                "arguments_unlabelled",
                f"what goes into the arguments of {_some(writing)}",
                "no 'arguments': each takes only what the user said, and everything else is held",
                "say the sink of each argument (address, payee, url_post, object, text, …)",
                model,
                tools=tuple(writing),
            )
    if any(isinstance(rule, Intent) for rule in rules):
        doing = [one.shown for one in tools if one.identity.risk_class != "read_only" and not one.identity.effects]
        if doing:
            yield Blind(
                "effects_unlabelled",
                f"what {_some(doing)} would do",
                "no 'effects': a rule on intent cannot tell which words ask for it, and refuses it",
                "say what each does (send, pay, delete, …), or an instrumental effect such as draft",
                model,
                tools=tuple(doing),
            )


def _unguarded(part: ModelPlan, rules: Sequence[Rule], tools: Sequence[_Tool]) -> Iterator[Blind]:
    """What cannot be undone and passes without anybody being asked, in some state at least."""
    shipped = [
        _Tool(entry.match, part.catalog.resolve(entry.match))
        for entry in default_entries()
        if entry.match is not None and not entry.unwrap and not any(one in entry.match for one in "*?{")
    ]
    open_ones = [
        one.shown
        for one in (*tools, *shipped)
        if one.identity.risk_class in FINAL and not _guards(part, rules, _call(one.identity))
    ]
    open_ones = list(dict.fromkeys(open_ones))
    if open_ones:
        yield Blind(
            "unguarded",
            f"whether anybody wants {_some(open_ones)}",
            "they cannot be undone or reach outside, and no rule refuses them, holds them for approval or asks for the user's words "
            "in every state",
            "add a tool_selector with require_approval for risk_class [irreversible, external_side_effect, unknown], or intent",
            part.model_id,
            tools=tuple(open_ones),
        )
    asks = any(rule.action.name == "require_approval" for rule in _enforced(rules))
    if not asks:
        yield Blind(
            "unguarded",
            "a person's judgement",
            "no rule holds anything for an approval: what the rules let pass, passes",
            "use require_approval where a refusal would be too much and passing too little",
            part.model_id,
        )


def _call(identity: Identity) -> ToolFact:
    return ToolFact(
        identity.namespace,
        identity.name,
        identity.name,
        identity.risk_class,
        "planning",
        "assistant_tool_call",
        confidence=identity.confidence,
        effects=identity.effects,
        trust=identity.trust,
    )


def _guards(part: ModelPlan, rules: Sequence[Rule], call: ToolFact) -> bool:
    """Whether some rule refuses such a call, or asks somebody, whatever its arguments, in every state of some machine."""
    states: dict[str, set[str]] = {}
    for rule in _enforced(rules):
        if rule.bundle or not _refuses(rule, call):
            continue
        if not rule.state_scope:
            return True
        states.setdefault(rule.machine, set()).update(rule.state_scope)
    return any(covered >= set(part.machines[machine].states) for machine, covered in states.items())


def _refuses(rule: Rule, call: ToolFact) -> bool:
    if isinstance(rule, AllowedTools):
        listed = any(
            (not one.namespace or compile_glob(one.namespace)(fold(call.namespace)))
            and compile_glob(one.name)(fold(call.name))
            and (not one.risk_class or one.risk_class == call.risk_class)
            for one in rule.allowed
        )
        return "planning" in rule.phases and not listed
    if rule.action.name not in REFUSING:
        return False
    if isinstance(rule, Intent):
        return still_fits(rule.tool, call) is not False
    return (
        isinstance(rule, ToolSelector)
        and not rule.tool.arguments
        and (rule.tool.negated is None or not rule.tool.negated.arguments)
        and still_fits(rule.tool, call) is not False
    )


# what runs elsewhere


def _hosted(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    """Opaque and merely reported regions, by the capability records of the targets, unless a rule takes the tools away."""
    model = part.model_id
    if not part.targets:
        left = [one for one in _hosted_kinds() if not _taken_away(part, rules, one)]
        if left:
            yield Blind(
                "hosted",
                f"what a provider runs by itself ({_some(left)})",
                "the plan names no targets, so whether a provider reports it, and what can be set, is not known",
                "name your targets with their capabilities, or take hosted tools away: strip_tools on namespace 'provider.*'",
                model,
                tools=tuple(left),
            )
        return
    for region in project_model(part).regions:
        if region.tools == "*" or _taken_away(part, rules, region.tools):
            continue
        rest = region.tools == "provider.*"
        shown = "hosted tools that no capability record names" if rest else f"'{region.tools}'"
        if region.label == "opaque":
            why = (
                "what no record mentions may run unseen"
                if rest
                else "its record says neither events nor controls: it is not reported, and nothing of it can be set"
            )
            remedy = "take it away (strip_tools), or say in the target's capabilities what the provider shows and takes"
        elif not region.events:
            why = f"it can be bounded before the call ({', '.join(region.controls)}), but its calls and results are not reported"
            remedy = "bound it with set_controls; rules that count or wait for its results never see any"
        elif not region.controls:
            why = "the provider reports it after it ran; nothing of it can be set before"
            remedy = "take it away (strip_tools) where seeing it afterwards is too late"
        else:
            continue
        yield Blind("hosted", f"{shown} at '{region.target}'", why, remedy, model, tools=(region.tools,))
        if region.unset:
            yield Blind(
                "never_fires",
                f"controls that {_some(region.unset)} would set on '{region.tools}' at '{region.target}'",
                "the target does not take them, so the rule does nothing there",
                "route such requests to a target that takes them, or take the tool away",
                model,
                rules=region.unset,
                tools=(region.tools,),
            )


def _hosted_kinds() -> Iterator[str]:
    """Those that the shipped catalog knows, and all others."""
    yield from dict.fromkeys(
        entry.namespace
        for entry in default_entries()
        if entry.match is None and entry.namespace.startswith("provider.")
    )
    yield "provider.*"


def _taken_away(part: ModelPlan, rules: Sequence[Rule], namespace: str) -> bool:
    """Whether a rule takes the hosted tool away before the call, always."""
    kind = namespace.removeprefix("provider.").replace("*", _NOBODY)
    identity = part.catalog.resolve_hosted(kind)
    fact = ToolFact(
        identity.namespace,
        identity.name,
        identity.name,
        identity.risk_class,
        "planning",
        "declared_tool",
        execution_location="provider",
    )
    for rule in _enforced(rules):
        if rule.state_scope or rule.bundle or not isinstance(rule, ToolSelector):
            continue
        if rule.action.name in ("strip_tools", "block") and not rule.action.strip and not rule.tool.arguments:
            offered = "declared_tool" in rule.tool.source or (
                not rule.tool.source and rule.action.name == "strip_tools"
            )
            if offered and still_fits(rule.tool, fact, inner=True) is not False:
                return True
    return False


# rules that do nothing


def _idle(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    model = part.model_id
    watching = [rule for rule in rules if rule.mode == "observe"]
    if watching:
        yield Blind(
            "observes",
            f"what {_some([rule.id for rule in watching])} would refuse passes all the same",
            "mode: observe finds and counts, and lets everything pass",
            "read what they would have done (wardwright report), then set mode: enforce",
            model,
            rules=tuple(rule.id for rule in watching),
        )
    entered = _entered(part, rules)
    known = tuple(_namespaces(part))
    for rule in rules:
        never = [state for state in rule.state_scope if state not in entered.get(rule.machine, ())]
        if rule.state_scope and len(never) == len(rule.state_scope):
            yield Blind(
                "never_fires",
                f"rule '{rule.id}'",
                f"it acts only in state {_some(never)}, which nothing enters",
                "let a rule enter the state (transition_to), or leave out state_scope",
                model,
                rules=(rule.id,),
            )
        for part_name, matcher in _matchers(rule):
            nobody = [one for one in matcher.namespace if not any(_overlap(fold(one), other) for other in known)]
            if nobody:
                some = "" if len(nobody) == len(matcher.namespace) else "a part of "
                yield Blind(
                    "never_fires",
                    f"{some}what '{part_name}' of rule '{rule.id}' waits for",
                    f"no entry of the catalog gives a tool the namespace {_some(nobody)}; only a tool that a caller names so fits",
                    "name your tools so in the catalog, or correct the rule",
                    model,
                    rules=(rule.id,),
                )


def _entered(part: ModelPlan, rules: Sequence[Rule]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for machine in part.machines.values():
        states = {machine.initial_state, machine.expires_to, *(one.expires_to for one in machine.states.values())}
        found[machine.id] = {state for state in states if state}
    for rule in _enforced(rules):
        if rule.action.transition_to:
            found.setdefault(rule.machine, set()).add(rule.action.transition_to)
    return found


def _namespaces(part: ModelPlan) -> Iterator[str]:
    """Globs of the namespaces that some entry gives; a raw name that brings its own (`x.y`) is left out."""
    yield "provider.*"
    yield "wardwright"
    yield "unknown"
    for entry in part.catalog.entries:
        if entry.match is not None and not entry.unwrap and entry.namespace:
            yield fold(PLACEHOLDER.sub("*", entry.namespace))


def _overlap(one: str, other: str) -> bool:
    """Whether two globs share a name, as far as a look tells: in doubt, they do."""
    return (
        fnmatchcase(one.replace("*", "x"), other)
        or fnmatchcase(other.replace("*", "x"), one)
        or ("*" in one and "*" in other)
    )


def _matchers(rule: Rule) -> Iterator[tuple[str, Matcher]]:
    for name in ("tool", "after", "then"):
        matcher: object = getattr(rule, name, None)
        if isinstance(matcher, Matcher):
            yield name, matcher
    if isinstance(rule, ToolSequence) and rule.until is not None and rule.until.tool is not None:
        yield "until", rule.until.tool


# memory


def _sessions(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    counting = [
        rule.id
        for rule in rules
        if isinstance(rule, (LoopThreshold, HistoryThreshold, Budget, ToolSequence)) and _narrow(rule.scope)
    ]
    moved = [machine.id for machine in part.machines.values() if len(machine.states) > 1 and _narrow(machine.scope)]
    if counting or moved:
        about = _some([*counting, *(f"machine {name}" for name in moved)])
        named = "; sessions must be named here, but callers choose the names" if part.require_session else ""
        yield Blind(
            "session",
            f"what happened in another session of the same caller ({about})",
            f"they remember one session; who begins a new one, without known call ids, starts from nothing{named}",
            "where that matters: cache_scope (or a machine's scope) user, agent, application or tenant, which the key of a caller pins; "
            "declare retention and purpose under scopes",
            part.model_id,
            rules=tuple(counting),
        )


def _narrow(scope: str) -> bool:
    return scope in ("session_id", "run_id")


def _expiring(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    model = part.model_id
    for rule in _enforced(rules):
        window: object = getattr(rule, "window", None)
        if isinstance(window, Window) and (rule.action.name in REFUSING or rule.action.transition_to):
            sizes = [
                text
                for text, given in (
                    (f"{window.turns} turns", window.turns),
                    (f"{window.events} events", window.events),
                    (_duration(window.ms or 0), window.ms),
                )
                if given is not None
            ]
            flushed = window.turns is not None or window.events is not None
            yield Blind(
                "expires",
                f"what '{rule.id}' saw longer ago than {' or '.join(sizes)}",
                "a window can be flushed by harmless calls" if flushed else "a window can be waited out",
                "if that matters use a state that only 'until' ends, or a longer window",
                model,
                rules=(rule.id,),
            )
        if isinstance(rule, ToolSequence) and rule.until is not None and rule.until.user_turn:
            yield Blind(
                "expires",
                f"what '{rule.id}' saw before the last text in the user's role",
                "any such text ends it, also a note that a client puts there by itself",
                "if your client does that, let a tool end it: until: {tool: …}",
                model,
                rules=(rule.id,),
            )
        for exemption in rule.exceptions:
            who = ", ".join(f"{name} {value}" for name, value in exemption.caller.items())
            yield Blind(
                "expires",
                f"what rule '{rule.id}' would find" + (f" of {who}" if who else " of the tools its exception names"),
                "an exception lets it pass until its date",
                "take the exception out when its reason is gone",
                model,
                rules=(rule.id,),
            )
    for machine in part.machines.values():
        for state in machine.states.values():
            after = state.expires_ms or (machine.expires_ms if state.id != machine.initial_state else None)
            if after:
                yield Blind(
                    "expires",
                    f"that state '{state.id}' was entered longer than {_duration(after)} ago",
                    f"it ends by itself, in '{state.expires_to or machine.expires_to or machine.initial_state}'",
                    "if the state holds something back, let only 'until' or a rule end it",
                    model,
                )


def _duration(ms: int) -> str:
    for size, word in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {word}"
    return f"{ms} ms"


# words


def _users(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    listening = [
        rule.id
        for rule in rules
        if isinstance(rule, (ArgumentProvenance, Intent))
        or (isinstance(rule, TextRule) and "user" in rule.roles and rule.kind != "stream_guard")
        or (isinstance(rule, ToolSequence) and rule.until is not None and rule.until.user_turn)
    ]
    if listening:
        yield Blind(
            "no_user",
            f"the user's words on MCP, and in process unless they are given ({_some(listening)})",
            "MCP carries calls and results only: rules that wait for the user's words never hear any there",
            "let these rules judge at the model's gate, or give the words in process (GovernancePolicy.user_turn)",
            part.model_id,
            rules=tuple(listening),
        )


def _texts(part: ModelPlan, rules: Sequence[Rule]) -> Iterator[Blind]:
    model = part.model_id
    reading = [rule.id for rule in rules if isinstance(rule, TextRule)]
    if reading:
        yield Blind(
            "words",
            f"the same thing said in other words, another language or an encoding ({_some(reading)})",
            "these rules look for a pattern in the text",
            "use them for fixed forms (keys, names); for tools use rules on tools, provenance and intent",
            model,
            rules=tuple(reading),
        )
    provenance = [rule for rule in rules if isinstance(rule, ArgumentProvenance)]
    unmarked = tuple(rule.id for rule in provenance if not rule.untrusted)
    if unmarked:
        yield Blind(
            "pasted",
            "summaries, retrieved documents and tool results that a client pastes into the user's role",
            "what stands there counts as the user's own words",
            "name the look of such texts: untrusted_text of the rule",
            model,
            rules=unmarked,
        )
    ownerless = tuple(rule.id for rule in provenance if not rule.own)
    if ownerless and not any(label.field_class == "self" for tool in _tools(part) for label in tool.identity.fields):
        yield Blind(
            "pasted",
            "which addresses and accounts are the principal's own",
            "neither 'self' of the rule nor a field of class 'self' says so: they are held like a stranger's",
            "list them under self",
            model,
            rules=ownerless,
        )


_LIMITS: Final[Sequence[tuple[str, str, str]]] = (
    (
        "an answer that misleads in words only",
        "no tool is called, so there is nothing to judge",
        "tell people where an answer comes from; stream_guard finds fixed forms only",
    ),
    (
        "harm in 'do what that text says'",
        "the user has asked for it, in so many words",
        "require approval for what cannot be undone",
    ),
    (
        "a target that exists only in text that outsiders can write",
        "nothing else says whose it is, so it can be refused or held, not told right from wrong",
        "keep contacts and payees in a directory that the catalog labels",
    ),
    (
        "the same effect on another object of the owner's",
        "it is the owner's too, and the words fit both",
        "name records in the catalog (names), so that words choose one of them",
    ),
)
_CLIENT: Final = Blind(
    "limit",
    "whether a client's tool did what its result says",
    "it runs at the client; the result is the client's word, and untrusted",
    "let tools that matter run here (server_tools), or behind the MCP proxy",
)


def _limits(provenance: bool) -> Iterator[Blind]:
    for what, why, remedy in _LIMITS:
        yield Blind(
            "limit",
            what,
            why,
            remedy if provenance or "catalog" not in remedy else f"{remedy} (rules argument_provenance and intent)",
        )
    yield _CLIENT


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:MANY])
    return shown if len(names) <= MANY else f"{shown} and {len(names) - MANY} more"


def as_json(lines: Iterable[Blind]) -> list[Mapping[str, Any]]:
    """Plain values, in the same order."""
    return [line.as_json() for line in lines]


__all__ = ["Blind", "BlindKind", "as_json", "blind"]
