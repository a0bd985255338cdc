"""A receipt in words: what was decided, because of what, using which facts; and what came of it.

Pure, and careful: a receipt may be redacted or written by another version, so whatever is not as expected is left out, never an error.
Says only what the receipt says; the same words as YAML and receipts use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from wardwright.receipts import note_words

Tone: TypeAlias = Literal["good", "bad", "warn", "note", ""]
"""How a page shows it: passed, refused, waiting or worth a look, informative, neither."""

_NOTHING: Final[Mapping[str, Any]] = {}
_ACTIVE: Final = ("block", "deny_call", "require_approval")


@dataclass(frozen=True, slots=True)
class Badge:
    """One word, and how it is meant."""

    word: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class FindingWords:
    """What one rule did."""

    rule_id: str
    kind: str
    effect: str
    badge: Badge
    sentence: str
    message: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GateWords:
    """One gate: what it ruled and why."""

    gate: str
    at_ms: int
    badge: Badge
    sentence: str
    phase: str
    elapsed_us: int
    facts: tuple[str, ...]
    findings: tuple[FindingWords, ...]
    quiet: tuple[str, ...]
    """Rules that looked and did not match."""
    states: tuple[tuple[str, str], ...]
    conflicts: tuple[str, ...]
    withheld: tuple[str, ...]
    route: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegionWords:
    """How much of a tool's life rules can reach (G26)."""

    tool: str
    label: Literal["controllable", "observable", "opaque"]
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A whole receipt, ready to be read."""

    badge: Badge
    because: str
    """One sentence: `Blocked because …`."""
    facts: tuple[str, ...]
    """The facts that the deciding rule used."""
    message: str
    """What the caller was told; where an answer went out, what the rule says."""
    gates: tuple[GateWords, ...] = ()
    attempts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    mediation: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    regions: tuple[RegionWords, ...] = ()
    ending: str = ""
    states: tuple[str, ...] = ()
    """After the gate that decided."""


_STATUS: Final[Mapping[str, Badge]] = {
    "open": Badge("open", "note"),
    "released": Badge("released", "good"),
    "blocked": Badge("blocked", "bad"),
    "held": Badge("held", "warn"),
    "failed": Badge("failed", "bad"),
    "unavailable": Badge("unavailable", "bad"),
    "done": Badge("done", "note"),
}
_DECISION: Final[Mapping[str, Badge]] = {
    "allow": Badge("allow", "good"),
    "block": Badge("block", "bad"),
    "deny_call": Badge("deny_call", "bad"),
    "require_approval": Badge("require_approval", "warn"),
}
_GATE: Final[Mapping[str, str]] = {"request": "request", "reply": "model's reply", "result": "tool result"}
_SOURCE: Final[Mapping[str, str]] = {
    "declared_tool": "the request offers {tool}",
    "tool_choice": "the request forces {tool}",
    "assistant_tool_call": "the model called {tool}",
    "tool_result": "{tool} answered",
    "caller_metadata": "the caller attests {tool}",
    "inferred": "the gateway concluded that {tool} is in use",
    "provider_event": "the provider reports {tool}",
}
_MARK: Final[Mapping[str, str]] = {
    "definition_changed": "its definition has changed",
    "altered": "it came back altered",
    "forged": "it never passed here",
    "result_for_denied_call": "it answers a call that was denied",
    "session_rotated": "it belongs to another session",
    "claim_contradicted": "the caller claims less than was seen",
    "undeclared": "the request did not declare it",
}
_EFFECT: Final[Mapping[str, str]] = {
    "block": "blocks",
    "deny_call": "denies",
    "require_approval": "asks for an approval of",
    "strip_tools": "takes away",
    "restrict_routes": "limits the models for",
    "switch_model": "switches the model for",
    "reroute": "prefers another model for",
    "transform": "changes text of",
    "inject_reminder": "adds a reminder to",
    "set_controls": "bounds",
    "alert_async": "tells somebody about",
    "annotate": "notes",
    "transition": "moves a state on",
}
_LOCATION: Final[Mapping[str, str]] = {
    "client": "the caller runs it, and its calls pass here",
    "wardwright": "the gateway runs it",
    "remote_mcp": "a remote MCP server runs it, and its calls pass here",
    "provider": "the provider runs it",
    "unknown": "nobody can say who runs it",
}
_SKIPPED: Final[Mapping[str, str]] = {
    "route": "the ruling does not allow it",
    "context_window": "the request is longer than it can read",
    "tools": "it cannot use tools",
    "breaker_open": "its provider failed too often and rests",
}
_CLAIM: Final = "claim_refused:"
_ATTESTATION: Final = "attestation_refused:"


# one word


def status_badge(receipt: Mapping[str, Any]) -> Badge:
    """What became of it: the status, or `denied` when an answer went out without some of its calls."""
    status = text(part(receipt, "final").get("status"))
    if status == "released" and denied_calls(receipt):
        return Badge("denied", "bad")
    return _STATUS.get(status, Badge(status or "unknown"))


def decision_badge(decision: str) -> Badge:
    return _DECISION.get(decision, Badge(decision or "unknown"))


def denied_calls(receipt: Mapping[str, Any]) -> int:
    """Calls of the model's replies that did not pass."""
    return sum(
        call.get("status") in ("deny_call", "block")
        for gate in parts(part(receipt, "decision").get("gates"))
        for call in parts(gate.get("calls"))
    )


def tool_of(fact: Mapping[str, Any]) -> str:
    """`shell.exec`, or as the wire names it."""
    name = text(fact.get("name")) or text(fact.get("raw_name")) or "a tool"
    namespace = text(fact.get("namespace"))
    return f"{namespace}.{name}" if namespace else name


def fact_words(fact: Mapping[str, Any]) -> str:
    """A fact as a sentence without its full stop: `the model called shell.exec (irreversible, planning)`."""
    source = text(fact.get("source"))
    said = _SOURCE.get(source, "{tool} was seen").replace("{tool}", tool_of(fact))
    status = text(fact.get("result_status"))
    if source == "tool_result" and status and status != "unknown":
        said += f" with {status}"
    about = [text(fact.get("risk_class")), text(fact.get("phase"))]
    if source == "tool_result":
        about.append(text(fact.get("trust")))
    if (confidence := text(fact.get("confidence"))) and confidence not in ("exact", "inferred"):
        about.append(f"{confidence} name")
    if fact.get("repeat"):
        about.append("seen before")
    shown = ", ".join(one for one in about if one and one != "unknown")
    if shown:
        said += f" ({shown})"
    marks = [_MARK.get(mark, mark) for mark in texts(fact.get("marks"))]
    return said + "".join(f"; {mark}" for mark in marks)


# one sentence


def headline(receipt: Mapping[str, Any]) -> str:
    """What happened and why, in one sentence."""
    if receipt.get("kind") == "admin":
        return _admin(receipt)
    final = part(receipt, "final")
    status = text(final.get("status"))
    gate, finding = _deciding(receipt)
    reason = "" if finding is None else _reason(finding, gate)
    if not reason and (rule := text(part(receipt, "decision").get("rule_id"))):
        reason = f"rule {rule} says so"
    error = text(final.get("error")).removesuffix(".")
    match status:
        case "blocked" if error:
            # An operator's stop or verdict, which rules know nothing of.
            return f"Blocked: {error}."
        case "blocked":
            return f"Blocked because {reason or 'policy refused it'}."
        case "held":
            # What has become of it since is on other receipts.
            return f"Held for an approval because {reason or 'a rule asks for one'}."
        case "failed":
            return f"Failed: {error or 'the provider gave no answer'}."
        case "unavailable":
            return f"Refused because nothing could be judged or recorded{f' ({error})' if error else ''}."
        case "open":
            return "The request passed; there is no answer yet."
        case "released" if count := denied_calls(receipt):
            calls = "a call" if count == 1 else f"{count} calls"
            return f"Released without {calls} because {reason or 'policy denied it'}."
        case "released":
            model = text(final.get("selected_model"))
            acted = _acted(receipt)
            said = f"Released, answered by {model}" if model else "Released"
            return f"{said}; {acted}." if acted else f"{said}; no rule stood against it."
        case _:
            return f"Ended as {status or 'nothing that is told'}."


def _admin(receipt: Mapping[str, Any]) -> str:
    admin, caller = part(receipt, "admin"), part(receipt, "caller")
    who = text(caller.get("principal")) or "an operator"
    action = text(admin.get("action")).replace("_", " ") or "did something"
    target = text(admin.get("target"))
    note = text(part(admin, "details").get("note"))
    return f"{who}: {action}{f' {target}' if target else ''}{f', because: {note}' if note else ''}."


def _acted(receipt: Mapping[str, Any]) -> str:
    """What rules did to something that passed."""
    enforced: dict[str, None] = {}
    would: dict[str, None] = {}
    lifted: dict[str, dict[str, None]] = {}
    for gate in parts(part(receipt, "decision").get("gates")):
        for finding in parts(gate.get("findings")):
            rule = text(finding.get("rule_id"))
            if not finding.get("enforced", True):
                would[rule] = None
            elif by := text(finding.get("lifted")):
                lifted.setdefault(by, {})[rule] = None
            else:
                enforced[rule] = None
    said: list[str] = []
    if enforced:
        said.append(f"{_rules(enforced)} acted without refusing anything")
    said += [f"{_rules(rules)} stood against it, lifted by {by}" for by, rules in lifted.items()]
    if would:
        said.append(f"{_rules(would)} would have acted (observe)")
    return "; ".join(said)


def _rules(names: Mapping[str, None]) -> str:
    return f"rule {next(iter(names))}" if len(names) == 1 else f"the rules {', '.join(names)}"


def _deciding(receipt: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The gate that decided, and the finding that its decision is by."""
    decision = part(receipt, "decision")
    gates = parts(decision.get("gates"))
    gate = next((one for one in gates if one.get("decision") in _ACTIVE), _NOTHING)
    findings = [one for one in parts(gate.get("findings")) if one.get("enforced", True) and not one.get("lifted")]
    rule = text(gate.get("rule_id")) or text(decision.get("rule_id"))
    found = next((one for one in findings if one.get("rule_id") == rule and one.get("effect") in _ACTIVE), None)
    return gate, found or next((one for one in findings if one.get("effect") in _ACTIVE), None)


def _reason(finding: Mapping[str, Any], gate: Mapping[str, Any]) -> str:
    """Why a rule acts, by its kind: the part after `because`."""
    rule = text(finding.get("rule_id")) or "a rule"
    evidence = part(finding, "evidence")
    used = _used(finding, gate)
    tools = ", ".join(dict.fromkeys(tool_of(fact) for fact in used))
    about = tools or "this"
    if finding.get("error"):
        return f"rule {rule} failed, and a rule that fails blocks"
    problems = "; ".join(texts(evidence.get("problems")))
    match text(finding.get("kind")):
        case "tool_loop_threshold":
            count, threshold = evidence.get("observed_count"), evidence.get("threshold")
            equal = {"tool": "calls of", "tool+arguments": "equal calls of"}.get(
                text(evidence.get("equal")), "equal calls and results of"
            )
            return f"rule {rule} counted {count} {equal} {about}, and acts from {threshold} on"
        case "history_threshold":
            count, threshold = evidence.get("observed_count"), evidence.get("threshold")
            return f"rule {rule} counted {count} matching events, and acts from {threshold} on"
        case "tool_sequence":
            distance = part(evidence, "distance")
            before = f", {_distance(distance)} after what began it" if distance else ""
            return f"rule {rule} stands against {about} now{before}"
        case "allowed_tools":
            blocked = ", ".join(tool_of(one) for one in parts(evidence.get("blocked_tools"))) or about
            return f"rule {rule} allows other tools only, not {blocked}"
        case "argument_schema":
            return f"rule {rule} finds the arguments of {about} wrong{f': {problems}' if problems else ''}"
        case "argument_provenance":
            return f"rule {rule} does not take the arguments of {about} from there{f': {problems}' if problems else ''}"
        case "intent":
            return f"rule {rule} finds that the user did not ask for {about}{f': {problems}' if problems else ''}"
        case "structured_output":
            return f"rule {rule} finds the answer wrong{f': {problems}' if problems else ''}"
        case "budget":
            spent, limit = evidence.get("used"), evidence.get("limit")
            what = text(evidence.get("dimension")) or "of it"
            return f"rule {rule} allows {limit} {what}, and {spent} are used"
        case "route_gate" | "request_guard" | "stream_guard" | "alert":
            return f"rule {rule} found in the text what it looks for"
        case _:
            return f"rule {rule} {_EFFECT.get(text(finding.get('effect')), 'acts on')} {about}"


def _distance(distance: Mapping[str, Any]) -> str:
    turns, events = distance.get("turns"), distance.get("events")
    said = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((turns, "turn"), (events, "event"))
        if isinstance(count, int)
    ]
    return " and ".join(said) or "some time"


def _used(finding: Mapping[str, Any], gate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    facts = parts(gate.get("facts"))
    places = cast("Sequence[Any]", finding.get("facts")) if isinstance(finding.get("facts"), list) else ()
    return [facts[place] for place in places if isinstance(place, int) and 0 <= place < len(facts)]


# all of it


def explain(receipt: Mapping[str, Any], labels: Mapping[str, str] = _NOTHING) -> Explanation:
    """The receipt in words. `labels`: namespace of a provider's own tool → how much of it can be reached, as the plan knows it."""
    gate, finding = _deciding(receipt)
    final, decision = part(receipt, "final"), part(receipt, "decision")
    used = [] if finding is None else _used(finding, gate)
    facts = [fact_words(fact) for fact in used]
    # As the deciding gate left them; a receipt does not say which of them the rule has read.
    states = part(gate, "states") if finding is not None else _NOTHING
    all_gates = parts(decision.get("gates"))
    metadata = part(final, "provider_metadata")
    return Explanation(
        status_badge(receipt),
        headline(receipt),
        tuple(facts),
        _said(final, decision),
        tuple(gate_words(one) for one in all_gates),
        tuple(_attempt(one) for one in parts(final.get("attempts"))),
        tuple(_run(one) for one in parts(metadata.get("wardwright_server_tools"))),
        tuple(_mediation(part(metadata, "wardwright_tool_mediation"))),
        tuple(_withheld(all_gates)),
        tuple(_claims(receipt, all_gates)),
        tuple(_regions(all_gates, labels)),
        _ending(final),
        tuple(f"machine {machine} was in state {state}" for machine, state in sorted(states.items())),
    )


def _said(final: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    stopped = text(final.get("error")) if final.get("status") == "blocked" else ""
    return stopped or text(decision.get("message"))


def gate_words(gate: Mapping[str, Any]) -> GateWords:
    """One gate of a receipt."""
    kind = text(gate.get("gate"))
    decision = text(gate.get("decision"))
    rule = text(gate.get("rule_id"))
    place = _GATE.get(kind, kind or "gate")
    said = {
        "allow": f"The {place} passed",
        "block": f"The {place} was blocked",
        "deny_call": f"Calls of the {place} were denied",
        "require_approval": f"The {place} was held for an approval",
    }.get(decision, f"The {place} was judged")
    findings = tuple(_finding(one, gate) for one in parts(gate.get("findings")))
    return GateWords(
        kind,
        number(gate.get("at_ms")),
        decision_badge(decision),
        f"{said}{f' by rule {rule}' if rule else ''}.",
        text(gate.get("phase")),
        number(gate.get("elapsed_us")),
        tuple(fact_words(fact) for fact in parts(gate.get("facts"))),
        findings,
        tuple(text(one.get("rule_id")) for one in parts(gate.get("candidates")) if one.get("verdict") == "no_match"),
        tuple(sorted((str(machine), text(state)) for machine, state in part(gate, "states").items())),
        tuple(
            f"{', '.join(texts(one.get('rules')))}: {text(one.get('message'))}" for one in parts(gate.get("conflicts"))
        ),
        tuple(_withheld([gate])),
        _route(gate),
        tuple(note_words(note) for note in texts(gate.get("notes")) if not note.startswith((_CLAIM, _ATTESTATION))),
    )


def _finding(finding: Mapping[str, Any], gate: Mapping[str, Any]) -> FindingWords:
    effect = text(finding.get("effect"))
    if finding.get("error"):
        badge = Badge("failed", "bad")
    elif lifted := text(finding.get("lifted")):
        badge = Badge(f"lifted by {lifted}", "note")
    elif not finding.get("enforced", True):
        badge = Badge("observed", "note")
    else:
        badge = Badge(effect or "acted", "bad" if effect in ("block", "deny_call") else "warn")
    reason = _reason(finding, gate)
    if by := text(finding.get("lifted")):
        reason += f"; lifted by {by}"
    elif not finding.get("enforced", True):
        reason = f"were it enforced: {reason}"
    return FindingWords(
        text(finding.get("rule_id")),
        text(finding.get("kind")),
        effect,
        badge,
        f"{reason[:1].upper()}{reason[1:]}.",
        text(finding.get("message")),
        tuple(fact_words(fact) for fact in _used(finding, gate)),
    )


def _route(gate: Mapping[str, Any]) -> str:
    route = part(gate, "route")
    said: list[str] = []
    if model := text(route.get("model")):
        said.append(f"only {model} may answer")
    elif allowed := texts(route.get("allowed")):
        said.append(f"only {', '.join(allowed)} may answer")
    if prefer := texts(route.get("prefer")):
        said.append(f"{', '.join(prefer)} first")
    if gate.get("reask"):
        said.append("another model is asked")
    if gate.get("binds_next"):
        said.append("it binds the next request")
    return "; ".join(said)


def _attempt(attempt: Mapping[str, Any]) -> str:
    model, provider = text(attempt.get("model")) or "a target", text(attempt.get("provider"))
    status, reason = text(attempt.get("status")), text(attempt.get("reason"))
    if not status:
        return f"{model} was left out: {_SKIPPED.get(reason, reason or 'not said why')}."
    took = attempt.get("elapsed_ms")
    said = f"{model}{f' at {provider}' if provider else ''}: {status}"
    return f"{said}{f' after {took} ms' if isinstance(took, int) else ''}{f' ({reason})' if reason else ''}."


def _run(run: Mapping[str, Any]) -> str:
    name, engine = text(run.get("name")) or "a server tool", text(run.get("engine"))
    took, status = run.get("elapsed_ms"), text(run.get("status"))
    said = f"{name}{f' (engine {engine})' if engine else ''} ran"
    said += f" for {took} ms" if isinstance(took, int) else ""
    return f"{said}{f': {status}' if status else ''}."


def _mediation(record: Mapping[str, Any]) -> Iterator[str]:
    if not record:
        return
    if mode := text(record.get("mode")):
        done = "is done" if mode == "patch" else "is only recorded"
        yield f"Mode {mode}: what rules say of tools {done}."
    for rule in parts(record.get("rules")):
        tools = ", ".join(texts(rule.get("tools"))) or ", ".join(texts(rule.get("names")))
        yield f"Rule {text(rule.get('id')) or '?'}: {text(rule.get('action'))}{f' {tools}' if tools else ''}."
    before, after = text(record.get("original_hash")), text(record.get("final_hash"))
    if before or after:
        same = before == after
        yield (
            "The provider saw the tools as they were declared."
            if same
            else (f"The provider saw other tools than were declared: {before[:12]} became {after[:12]}.")
        )
    for name, why in part(record, "not_injected").items():
        yield f"Server tool {name} was not offered: {why}."
    for name, why in part(record, "unavailable").items():
        yield f"MCP server {name} was not there: {why}."
    shown = part(record, "advertisement")
    if shown:
        yield (
            f"Advertised by {text(shown.get('mode'))}: {number(shown.get('guaranteed'))} guaranteed, "
            f"{number(shown.get('conditional'))} conditional."
        )


def _withheld(gates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for gate in gates:
        for one in parts(gate.get("withheld")):
            rules = ", ".join(texts(one.get("rules")))
            yield f"{text(one.get('name'))}{f' by {rules}' if rules else ''}"


def _claims(receipt: Mapping[str, Any], gates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    claims = part(part(receipt, "request"), "claims")
    if claims:
        believed = "It was believed." if claims.get("trusted") else "It was not believed."
        yield f"The caller said something about its tools. {believed}"
    for note in dict.fromkeys(note for gate in gates for note in texts(gate.get("notes"))):
        if note.startswith(_CLAIM):
            yield f"The caller's word for its {note.removeprefix(_CLAIM)} was not taken: its key says another."
        elif note.startswith(_ATTESTATION):
            yield f"An attestation was refused: {note.removeprefix(_ATTESTATION)}."


def _regions(gates: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Iterator[RegionWords]:
    seen: set[str] = set()
    for fact in (fact for gate in gates for fact in parts(gate.get("facts"))):
        tool = tool_of(fact)
        if tool in seen:
            continue
        seen.add(tool)
        location = text(fact.get("execution_location"))
        label: Any = "controllable"
        if location == "provider":
            attested = fact.get("visibility_level") == "provider_attested"
            known = labels.get(text(fact.get("namespace")))
            label = known or ("observable" if attested else "opaque")
        elif location not in ("client", "wardwright", "remote_mcp"):
            label = "opaque"
        yield RegionWords(tool, label, _LOCATION.get(location, _LOCATION["unknown"]))


def _ending(final: Mapping[str, Any]) -> str:
    said = [f"Status {text(final.get('status')) or 'unknown'}"]
    if code := number(final.get("http_status")):
        said.append(f"HTTP {code}")
    usage = part(final, "usage")
    if usage:
        said.append(f"{number(usage.get('input_tokens'))} tokens in, {number(usage.get('output_tokens'))} out")
    return ", ".join(said) + "."


# reading what may be anything


def part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part that is an object; nothing when it is something else, such as the word that redaction left."""
    found = value.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else _NOTHING


def parts(value: Any) -> Sequence[Mapping[str, Any]]:
    """The objects of a list."""
    if not isinstance(value, list):
        return ()
    return [cast("Mapping[str, Any]", one) for one in cast("list[Any]", value) if isinstance(one, dict)]


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def texts(value: Any) -> list[str]:
    return [one for one in cast("list[Any]", value) if isinstance(one, str)] if isinstance(value, list) else []


def number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


__all__ = [
    "Badge",
    "Explanation",
    "FindingWords",
    "GateWords",
    "RegionWords",
    "Tone",
    "decision_badge",
    "denied_calls",
    "explain",
    "fact_words",
    "gate_words",
    "headline",
    "number",
    "part",
    "parts",
    "status_badge",
    "text",
    "texts",
    "tool_of",
]
