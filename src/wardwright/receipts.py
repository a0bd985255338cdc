"""The receipt: everything needed to explain a ruling and to make it again, and nothing a caller wrote.

`build` makes it from what was judged, `record` makes the row a store chains, `tags` is the one place that says what a filter finds,
`explain` says it in words. Pure: ids, times and keys are given in. Empty values are left out, so an absent name means empty.
Arguments and results are digests; their text is here only when a model's operator asked for capture. Problems of arguments are told
by place and kind, names nobody declared as digests; of controls only what a rule set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from wardwright.catalog import Catalog, redacted
from wardwright.facts import ToolFact, text_digest
from wardwright.history import ReceiptRow, scope_key
from wardwright.policy.compile import ModelPlan
from wardwright.policy.rules import AllowedTools, CallRuling, Finding, Matcher, Rule, Ruling
from wardwright.wire.turn import Caller, Turn

Receipt: TypeAlias = dict[str, Any]
"""Plain JSON values. Treat as read-only once built."""

Status: TypeAlias = Literal["open", "released", "blocked", "held", "failed", "unavailable", "done"]
"""open: the request passed, no answer yet
released: an answer reached the caller, perhaps without the calls that were denied
blocked: policy refused it
held: it waits for an approval
failed: the provider failed
unavailable: the engine or the store failed, so nothing passed
done: an operator's action (kind `admin`)"""

ToolPolicyStatus: TypeAlias = Literal[
    "blocked", "denied", "held", "routed", "stripped", "changed", "alerted", "noted", "lifted", "observed", "passed"
]
"""What a tool rule did, strongest first.
blocked, denied, held: it refused the message or the call, or asked for an approval
routed, stripped, changed: it constrained the models, took tools away, or changed text or controls
alerted, noted: it told somebody, or moved a state
lifted: an approval or an exception stood against it
observed: it would have acted, in observe mode
passed: it looked and did not match"""

_STATUS_OF: Final[Mapping[str, ToolPolicyStatus]] = {
    "block": "blocked",
    "deny_call": "denied",
    "require_approval": "held",
    "restrict_routes": "routed",
    "switch_model": "routed",
    "reroute": "routed",
    "strip_tools": "stripped",
    "transform": "changed",
    "inject_reminder": "changed",
    "set_controls": "changed",
    "alert_async": "alerted",
    "annotate": "noted",
    "transition": "noted",
}
_STRENGTH: Final[tuple[ToolPolicyStatus, ...]] = (
    "blocked",
    "denied",
    "held",
    "routed",
    "stripped",
    "changed",
    "alerted",
    "noted",
    "lifted",
    "observed",
    "passed",
)
_TEXT_KINDS: Final = frozenset({"route_gate", "request_guard", "stream_guard", "structured_output", "alert"})
"""Kinds that read text, not tools. Every other kind is a tool rule, one that is added later too."""

FILTERS: Final[tuple[str, ...]] = (
    "tool_namespace",
    "tool_name",
    "tool_phase",
    "tool_risk_class",
    "tool_source",
    "tool_call_id",
    "tool_policy_status",
    "tenant",
    "application",
    "agent",
    "user",
    "session_id",
    "run_id",
    "principal",
    "model",
    "selected_model",
    "status",
    "rule",
    "kind",
)
"""Names that a query may filter by. Time is a range of its own."""

CALLER_TAGS: Final = ("tenant", "application", "agent", "user", "session_id", "run_id", "principal")
_NEVER_REDACTED: Final = frozenset({"", "*", "id", "at_ms", "kind", "version", "caller", "caller.*", "caller.tenant"})


@dataclass(slots=True, eq=False)
class Judged:
    """One gate of an exchange: what came, and what was ruled. Each is itself alone, so that a list can give one back at once."""

    turn: Turn
    ruling: Ruling
    at_ms: int
    elapsed_us: int = 0
    """Time the ruling took. `govern` is pure, so its caller holds the watch, and it times the gate, not each rule."""


@dataclass(slots=True)
class Outcome:
    """What came of it, as far as the gateway knows."""

    status: Status
    http_status: int = 0
    selected_model: str = ""
    attempts: Sequence[Mapping[str, Any]] = ()
    """Every target tried or skipped: model, provider, status, reason, elapsed_ms."""
    server_tools: Sequence[Mapping[str, Any]] = ()
    """One per run: call id, name, engine, timing, digests, `receipt_metadata`. Never the result itself."""
    mediation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Mode, rules applied, schema hashes before and after."""
    error: str = ""


def receipt_id(at_ms: int, entropy: bytes) -> str:
    """An id that sorts by time, so that a store's index of ids grows at its end. Give ten random bytes."""
    return "rcpt_" + (at_ms.to_bytes(6, "big") + entropy).hex()


class Rules(dict[str, Rule]):
    """A model's rules by id. What a receipt says of a rule is the same every time, so it is made once."""

    __slots__ = ("memo", "selectors")

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        super().__init__(rules)
        self.selectors: dict[tuple[str, ToolPolicyStatus], dict[str, Any]] = {}
        self.memo: object = None
        """Scratch for who writes receipts."""


def rules_of(plan: ModelPlan) -> Rules:
    """A model's rules by id, those of its bundles too. Costs as much as the plan is long: make it once per plan."""
    return Rules({rule.id: rule for rules in (plan.rules, *plan.bundles.values()) for rule in rules.rules})


def build(
    receipt_id: str,
    judged: Sequence[Judged],
    outcome: Outcome,
    rules: Mapping[str, Rule],
    key: bytes,
    *,
    capture: bool = False,
    catalog: Catalog | None = None,
) -> Receipt:
    """The receipt of one exchange: its gates in the order they were judged. `rules` are those of `rules_of`. `capture`: the texts of
    arguments and results are kept too, but for what the catalog says nobody is shown."""
    # What is empty is not even looked at twice: this is on the path of every exchange.
    first, last = judged[0], _deciding(judged)
    hidden = False
    for one in judged:
        if one.ruling.findings:
            hidden = hidden or _hides(one.ruling, capture, catalog)
    gates: list[dict[str, Any]] = []
    asked: dict[str, Any] = {}
    decided: dict[str, Any] = {}
    message = last.ruling.message
    for one in judged:
        shown = _Shown(one, judged, rules, key) if hidden else None
        gate, context = _gate(one, shown, capture, catalog)
        gates.append(gate)
        if one is first:
            asked = context
        if one is last:
            decided = context
            if shown is not None:
                message = shown.message(message)
    selectors = _selectors(judged, gates, rules)
    ruling = last.ruling
    decision: dict[str, Any] = {
        "decision": ruling.decision,
        "gate": ruling.gate,
        "gates": gates,
        "tool_context": decided,
    }
    if ruling.rule_id:
        decision["rule_id"] = ruling.rule_id
    if message:
        decision["message"] = message
    if selectors:
        decision["tool_policy_selectors"] = selectors
    receipt: Receipt = {
        "at_ms": judged[-1].at_ms,
        "caller": caller_kept(first.turn.caller),
        "decision": decision,
        "final": _final(outcome, judged, selectors, rules),
        "id": receipt_id,
        "kind": "exchange",
        "plan_hash": ruling.plan_hash,
        "request": _request(first.turn, asked, key),
        "version": 1,
    }
    return receipt if receipt["caller"] and ruling.plan_hash else _kept(receipt)


def _request(turn: Turn, context: dict[str, Any], key: bytes) -> dict[str, Any]:
    request: dict[str, Any] = {"stream": turn.stream, "tool_context": context, "wire": turn.wire}
    if turn.model:
        request["model"] = turn.model
    if turn.tool_choice is not None:
        request["tool_choice"] = fields_kept(turn.tool_choice)
    if turn.claims is not None:
        # That a caller claimed something, and whether it was believed; never what it said.
        request["claims"] = {
            "trusted": turn.claims_trusted,
            "digest": text_digest(key, canonical(turn.claims).decode()),
        }
    return request


def _final(
    outcome: Outcome, judged: Sequence[Judged], selectors: Sequence[Mapping[str, Any]], rules: Mapping[str, Rule]
) -> dict[str, Any]:
    final: dict[str, Any] = {"http_status": outcome.http_status, "status": outcome.status}
    if outcome.selected_model:
        final["selected_model"] = outcome.selected_model
    if outcome.attempts:
        final["attempts"] = list(map(dict, outcome.attempts))
    for one in reversed(judged):
        usage = one.turn.usage
        if usage is not None:
            final["usage"] = {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "price": usage.price,
            }
            break
    if selectors:
        final["tool_policy"] = _tool_policy(judged, selectors, rules)
    if outcome.server_tools or outcome.mediation:
        final["provider_metadata"] = _kept(
            {
                "wardwright_server_tools": [dict(run) for run in outcome.server_tools],
                "wardwright_tool_mediation": dict(outcome.mediation),
            }
        )
    if outcome.error:
        final["error"] = outcome.error
    return final


def build_admin(
    receipt_id: str, at_ms: int, caller: Caller, action: str, target: str, details: Mapping[str, Any] | None = None
) -> Receipt:
    """What an operator did: in the same chain as what was ruled."""
    return _kept(
        {
            "version": 1,
            "kind": "admin",
            "id": receipt_id,
            "at_ms": at_ms,
            "caller": caller_kept(caller),
            "admin": _kept({"action": action, "target": target, "details": dict(details or {})}),
            "final": {"status": "done"},
        }
    )


def record(receipt: Receipt) -> ReceiptRow:
    """The row a store commits and chains."""
    named = _mapping(receipt.get("caller"))
    scope = scope_key("session_id", Caller(named.get("tenant", ""), session_id=named.get("session_id", "")))
    return ReceiptRow(receipt["id"], receipt["at_ms"], scope, canonical(receipt), tags(receipt))


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """Keys sorted, no white space, one line: equal receipts, equal bytes."""
    try:
        return orjson.dumps(receipt, None, orjson.OPT_SORT_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        # Lone surrogates and integers beyond 64 bits, which a caller inside the process may have.
        return json.dumps(receipt, sort_keys=True, separators=(",", ":")).encode()


def load(body: bytes) -> Receipt:
    """A stored body, as `canonical` wrote it."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def tags(receipt: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What filters find this receipt by: its tool events, the declared tools a rule acted on, rules, caller, model, status.

    A pure function of the receipt, so that `verify` can tell tags somebody changed.
    """
    # A dict, because it keeps the order and a receipt has few tags. Name by name: every exchange comes through here.
    found: dict[tuple[str, str], None] = {("kind", receipt["kind"]): None}
    caller = _mapping(receipt.get("caller"))
    for name in CALLER_TAGS:
        if name in caller and (value := caller[name]):
            found[name, value] = None
    decision = _mapping(receipt.get("decision"))
    for gate in _mappings(decision.get("gates")):
        for fact in _mappings(gate.get("facts")):
            if value := fact.get("namespace"):
                found["tool_namespace", value] = None
            if value := fact.get("name"):
                found["tool_name", value] = None
            if value := fact.get("phase"):
                found["tool_phase", value] = None
            if value := fact.get("risk_class"):
                found["tool_risk_class", value] = None
            if value := fact.get("source"):
                found["tool_source", value] = None
            if value := fact.get("tool_call_id"):
                found["tool_call_id", value] = None
        if "findings" not in gate:
            continue
        for finding in _mappings(gate["findings"]):
            found["rule", finding["rule_id"]] = None
            # A tool that was only declared leaves no event; it is findable when a rule took offence at it.
            for tool in _mappings(_mapping(finding.get("evidence")).get("blocked_tools")):
                found["tool_namespace", tool["namespace"]] = None
                found["tool_name", tool["name"]] = None
    for selector in _mappings(decision.get("tool_policy_selectors")):
        if selector["matched"]:
            found["tool_policy_status", selector["status"]] = None
    final = _mapping(receipt.get("final"))
    if value := _mapping(final.get("tool_policy")).get("status"):
        found["tool_policy_status", value] = None
    if value := _mapping(receipt.get("request")).get("model"):
        found["model", value] = None
    if value := final.get("selected_model"):
        found["selected_model", value] = None
    if value := final.get("status"):
        found["status", value] = None
    return tuple(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    """A part of a receipt; redaction may have put a word in its place. JSON objects are dicts, and nothing is asked sooner."""
    return value if value.__class__ is dict else _NOTHING


def _mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    """A list of such parts."""
    if value.__class__ is not list:
        return ()
    for one in value:
        if one.__class__ is not dict:
            return [one for one in value if one.__class__ is dict]
    return value


def check_fields(fields: Iterable[str]) -> None:
    """ValueError for a path that cannot be redacted because the chain, erasure or retention needs what it names."""
    for path in fields:
        if path in _NEVER_REDACTED or any(not part for part in path.split(".")):
            raise ValueError(f"{path!r} cannot be redacted")


def redact(receipt: Receipt, fields: Sequence[str], key: bytes) -> Receipt:
    """A copy with these fields (dotted paths, `*` for every key or item) replaced by keyed digests.

    Equal values keep equal digests, so that filters and counts still work; without the key a digest says nothing.
    """
    check_fields(fields)
    redacted = receipt
    for path in fields:
        redacted = _redacted(redacted, path.split("."), key)
    return redacted


def _redacted(value: Any, path: Sequence[str], key: bytes) -> Any:
    if not path:
        if value is None or value == "" or (isinstance(value, str) and value.startswith("redacted:")):
            return value
        plain = value if isinstance(value, str) else canonical(value).decode()
        return f"redacted:{text_digest(key, plain)}"
    name, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        values = cast("Mapping[str, Any]", value)
        return {
            known: _redacted(inner, rest, key) if name in ("*", known) else inner for known, inner in values.items()
        }
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _redacted(inner, rest, key) if name in ("*", str(place)) else inner for place, inner in enumerate(items)
        ]
    return value


def explain(receipt: Mapping[str, Any]) -> str:
    """The receipt in words: what was asked, what each gate ruled and why, what came of it."""
    caller = _mapping(receipt.get("caller"))
    who = ", ".join(f"{name} {caller[name]}" for name in CALLER_TAGS if caller.get(name)) or "an unnamed caller"
    lines = [f"Receipt {receipt['id']} for {who}."]
    if receipt["kind"] == "admin":
        admin = _mapping(receipt.get("admin"))
        lines.append(f"An operator's action: {admin.get('action', '')} {admin.get('target', '')}".rstrip() + ".")
        return "\n".join(lines)
    request, final = _mapping(receipt.get("request")), _mapping(receipt.get("final"))
    lines.append(
        f"It asked for {request.get('model', 'no model')} over {request.get('wire', 'an unknown wire')}, "
        f"plan {receipt.get('plan_hash', '')}."
    )
    for gate in _mappings(_mapping(receipt.get("decision")).get("gates")):
        lines.extend(_explain_gate(gate))
    ending = f"In the end: {final.get('status', 'not said')}"
    if model := final.get("selected_model"):
        ending += f", answered by {model}"
    if error := final.get("error"):
        ending += f" ({error})"
    lines.append(ending + ".")
    return "\n".join(lines)


_DECIDED: Final[Mapping[str, str]] = {
    "allow": "let it pass",
    "block": "blocked it",
    "deny_call": "denied some calls",
    "require_approval": "held it for an approval",
}


def _explain_gate(gate: Mapping[str, Any]) -> list[str]:
    ruling = f"The {gate.get('gate', '')} gate {_DECIDED.get(gate.get('decision', ''), 'decided')}"
    if rule := gate.get("rule_id"):
        ruling += f" by rule {rule}"
    lines = [ruling + (f": {gate['message']}" if gate.get("message") else ".")]
    facts = _mappings(gate.get("facts"))
    for finding in _mappings(gate.get("findings")):
        used: Sequence[int] = finding.get("facts", ())
        about = ", ".join(_named(facts[place]) for place in used if place < len(facts))
        line = f"  - {finding['rule_id']} ({finding['kind']}): {finding['effect']}"
        line += f" on {about}" if about else ""
        if finding.get("error"):
            line += f"; the rule failed, which blocks: {finding['error']}"
        elif finding.get("lifted"):
            line += f"; lifted by {finding['lifted']}"
        elif not finding["enforced"]:
            line += "; only observed"
        lines.append(line)
    quiet = [one["rule_id"] for one in _mappings(gate.get("candidates")) if one["verdict"] == "no_match"]
    if quiet:
        lines.append(f"  - looked and did not match: {', '.join(quiet)}")
    lines.extend(
        f"  - conflict between {', '.join(one['rules'])}: {one['message']}" for one in _mappings(gate.get("conflicts"))
    )
    lines.extend(
        f"  - withheld {one['name']}" + (f" by {', '.join(one['rules'])}" if one.get("rules") else "")
        for one in _mappings(gate.get("withheld"))
    )
    lines.extend(f"  - note: {note_words(note)}" for note in gate.get("notes", ()))
    return lines


_NOTES: Final[Mapping[str, str]] = {
    "unseen_prefix": "the transcript has calls from before this gateway saw the session; nobody here judged them",
    "omitted": "the transcript leaves out calls that passed here, as after a compaction; they still count",
    "branched": "the transcript goes on from an earlier point, as after an edit or in a sub-agent; what passed since still counts",
    "claim_refused": "what the caller says of its tools was not believed, because nobody trusted vouches for it",
    "claim_unreadable": "what the caller says of its tools could not be read",
}
_REFUSED: Final[Mapping[str, str]] = {
    "claim_refused": "the caller's word for this was not taken, because its key says another",
    "attestation_refused": "the attestation does not hold, for this reason",
}


def note_words(note: str) -> str:
    """A note and what it means."""
    kind, colon, _ = note.partition(":")
    meaning = _REFUSED.get(kind) if colon else _NOTES.get(note)
    return f"{note} ({meaning})" if meaning else note


def _named(fact: Mapping[str, Any]) -> str:
    name = fact.get("name", "a tool")
    return f"{fact['namespace']}.{name}" if fact.get("namespace") else name


def _deciding(judged: Sequence[Judged]) -> Judged:
    """The gate the decision is about: the first that did not simply allow, else the last."""
    for one in judged:
        if one.ruling.decision != "allow":
            return one
    return judged[-1]


def _hides(ruling: Ruling, capture: bool, catalog: Catalog | None) -> bool:
    """Whether words of its findings must be taken out."""
    if capture and not any(_redact(catalog, fact) for fact in ruling.facts):
        return False
    return any(_tells(finding) for finding in ruling.findings)


def _tells(finding: Finding) -> bool:
    """Whether its words repeat what a model or a caller wrote."""
    return bool(finding.error) or "problems" in finding.evidence


class _Shown:
    """What may be told of the findings of one gate: the same words as the model reads, but for what it or the caller wrote."""

    __slots__ = ("_key", "_told")

    def __init__(self, gate: Judged, judged: Sequence[Judged], rules: Mapping[str, Rule], key: bytes) -> None:
        self._key = key
        self._told: dict[tuple[str, ...], list[str]] = {}
        """Problems as the model reads them, and as they are kept."""
        for finding in gate.ruling.findings:
            problems = finding.evidence.get("problems")
            if problems:
                called = {gate.ruling.facts[place].raw_name for place in finding.facts}
                schemas = [tool.schema for one in judged for tool in one.turn.tools if tool.name in called]
                names = _declared([getattr(rules.get(finding.rule_id), "schema", None), *schemas])
                self._told[tuple(problems)] = [_problem(one, names, key) for one in problems]

    def message(self, message: str) -> str:
        for problems, told in self._told.items():
            message = message.replace("; ".join(problems), "; ".join(told))
        return message

    def evidence(self, finding: Finding) -> dict[str, Any]:
        evidence = dict(finding.evidence)
        if evidence.get("problems"):
            evidence["problems"] = self._told[tuple(evidence["problems"])]
        return evidence

    def error(self, error: str) -> str:
        """The kind of failure; its text may repeat anything."""
        return f"{error.partition(':')[0]} ({_hidden(error, self._key)})" if error else ""


def _declared(schemas: Sequence[Any]) -> set[str]:
    """The names of arguments that these schemas know."""
    names: set[str] = set()
    left = list(schemas)
    for _ in range(_SCHEMA_STEPS):
        if not left:
            break
        part = left.pop()
        if isinstance(part, Mapping):
            values = cast("Mapping[str, Any]", part)
            properties = values.get("properties")
            if isinstance(properties, Mapping):
                names.update(cast("Mapping[str, Any]", properties))
            required = values.get("required")
            if isinstance(required, list):
                names.update(one for one in cast("list[Any]", required) if isinstance(one, str))
            left.extend(values.values())
        elif isinstance(part, list):
            left.extend(cast("list[Any]", part))
    return names


def _problem(problem: str, names: set[str], key: bytes) -> str:
    """`$.path: kind of problem`. INVARIANT: only declared names, words of ours and digests, however the model named its arguments."""
    place, _, rest = problem.partition(": ")
    parts: list[str] = []
    for part in place.removeprefix("$").split("."):
        name, bracket, index = part.partition("[")
        known = not name or name in names
        safe = not bracket or index.replace("][", "").removesuffix("]").isdecimal()
        parts.append(part if known and safe else _hidden(part, key))
    word = next((one for one in _WRONG if rest.startswith(one)), "does not fit")
    if rest.startswith("expected ") and set(rest.replace(",", "").split()) <= _TYPE_WORDS:
        word = rest
    elif word in ("missing", "unknown"):
        name = rest[len(word) + 2 : -1]
        word = f"{word} '{name if name in names else _hidden(name, key)}'"
    return f"${'.'.join(parts)}: {word}"


def _hidden(text: str, key: bytes) -> str:
    return f"~{text_digest(key, text)[:12]}"


_SCHEMA_STEPS: Final = 5_000
_WRONG: Final = (
    "missing",
    "unknown",
    "must be one of",
    "must be at least",
    "must be at most",
    "must be greater",
    "must be less",
    "must be a multiple",
    "must be",
    "must fit exactly one of the permitted forms",
    "fits none of the permitted forms",
    "has a form that is not allowed",
    "needs at least",
    "at most",
    "does not match",
    "items must differ from each other",
    "does not contain what it must",
    "not valid JSON",
    "a key is given twice",
    "the answer is empty",
)
"""How problems begin."""
_TYPE_WORDS: Final = frozenset(
    {"expected", "got", "or", "array", "boolean", "integer", "null", "number", "object", "string"}
)


def _controls(ruling: Ruling) -> dict[str, dict[str, Any]]:
    """What rules set. The rest of a tool's controls came with the request: addresses, tokens, anything."""
    kept: dict[str, dict[str, Any]] = {}
    for finding in ruling.findings:
        if finding.effect != "set_controls" or not finding.enforced or finding.lifted:
            continue
        for raw in {ruling.facts[place].raw_name for place in finding.facts} & ruling.controls.keys():
            values = kept.setdefault(raw, {})
            for name, limit in finding.action.controls.items():
                value = ruling.controls[raw][name]
                if isinstance(value, list):
                    # A list of what is refused holds the caller's own entries too.
                    before = values.get(name, [])
                    value = [*before, *(one for one in cast("list[Any]", value) if one in limit and one not in before)]
                values[name] = value
    return kept


def _gate(
    judged: Judged, shown: _Shown | None, capture: bool, catalog: Catalog | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is kept of a gate, and its tool context: the last event among its facts, and the tools declared."""
    ruling, turn = judged.ruling, judged.turn
    findings = ruling.findings
    gate: dict[str, Any] = {
        "at_ms": judged.at_ms,
        "decision": ruling.decision,
        "elapsed_us": judged.elapsed_us,
        "gate": ruling.gate,
        "phase": ruling.phase,
    }
    context: dict[str, Any] = {"phase": ruling.phase}
    # Of the declared tools only those that a finding is about.
    used: Collection[int] = {place for finding in findings for place in finding.facts} if findings else ()
    facts: list[dict[str, Any]] = []
    surface: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    for place, fact in enumerate(ruling.facts):
        if fact.source != "declared_tool":
            kept = context["primary_tool"] = fact_kept(fact)
        else:
            surface.append(tool_kept(fact))
            if place not in used:
                continue
            kept = fact_kept(fact)
        places[place] = len(facts)
        facts.append(_captured(kept, fact, catalog) if capture else kept)
    if surface:
        context["available_tools"] = surface
    if facts:
        gate["facts"] = facts
    if turn.target:
        gate["target"] = turn.target
    if ruling.rule_id:
        gate["rule_id"] = ruling.rule_id
    if ruling.message:
        gate["message"] = ruling.message if shown is None else shown.message(ruling.message)
    if findings or any(ruling.considered):
        gate["candidates"] = _candidates(ruling, places)
    if findings:
        gate["findings"] = [_finding(finding, places, shown) for finding in findings]
    if ruling.conflicts:
        gate["conflicts"] = [{"rules": list(one.rules), "message": one.message} for one in ruling.conflicts]
    if ruling.calls:
        gate["calls"] = [call_kept(call) for call in ruling.calls]
    if ruling.blocked_tools:
        gate["blocked_tools"] = list(ruling.blocked_tools)
    if ruling.stripped or ruling.withheld_server_tools:
        gate["withheld"] = _withheld(ruling)
    route = ruling.route
    if route.model or route.allowed or route.prefer:
        gate["route"] = fields_kept(route)
    if ruling.reask:
        gate["reask"] = True
    if ruling.binds_next:
        gate["binds_next"] = True
    if ruling.controls and (controls := _controls(ruling)):
        gate["controls"] = controls
    if ruling.bundles:
        gate["bundles"] = list(ruling.bundles)
    if ruling.states:
        gate["states"] = dict(ruling.states)
    if turn.approvals:
        gate["approvals"] = list(turn.approvals)
    if ruling.notes:
        gate["notes"] = list(ruling.notes)
    return gate, context


def tool_kept(fact: ToolFact) -> dict[str, Any]:
    """What is kept of a declared tool. The raw name is what a replay under another catalog needs."""
    return {
        "name": fact.name,
        "namespace": fact.namespace,
        "raw_name": fact.raw_name,
        "risk_class": fact.risk_class,
    }


def fact_kept(fact: ToolFact) -> dict[str, Any]:
    """What may be kept of a fact. Field by field: a receipt holds many facts. In the order they are written."""
    values: dict[str, Any] = {
        "arguments_digest": fact.arguments_digest,
        "confidence": fact.confidence,
        "execution_location": fact.execution_location,
        "name": fact.name,
        "namespace": fact.namespace,
        "ordinal": fact.ordinal,
        "phase": fact.phase,
        "raw_name": fact.raw_name,
        "repeat": fact.repeat,
        "result_status": fact.result_status,
        "risk_class": fact.risk_class,
        "source": fact.source,
        "tool_call_id": fact.tool_call_id,
        "trust": fact.trust,
        "visibility_level": fact.visibility_level,
    }
    if not (fact.arguments_digest and fact.name and fact.namespace and fact.raw_name and fact.tool_call_id):
        values = _kept(values)
    if fact.result_digest:
        values["result_digest"] = fact.result_digest
    if fact.definition_hash:
        values["definition_hash"] = fact.definition_hash
    if fact.marks:
        values["marks"] = list(fact.marks)
    if fact.effects:
        values["effects"] = list(fact.effects)
    return values


def _captured(kept: dict[str, Any], fact: ToolFact, catalog: Catalog | None) -> dict[str, Any]:
    """With the texts; under other names where something was taken out, so that nobody judges by what is left."""
    paths = _redact(catalog, fact)
    captured: dict[str, Any] = {}
    for name, text in (("arguments", fact.arguments), ("content", fact.content)):
        if text:
            shown = redacted(paths, text) if paths else text
            captured[name if shown == text else f"redacted_{name}"] = shown
    return {**kept, "captured": captured} if captured else kept


def _redact(catalog: Catalog | None, fact: ToolFact) -> tuple[str, ...]:
    if catalog is None:
        return ()
    if fact.source == "provider_event":
        return catalog.identify(fact.namespace, fact.name, {}, "exact").redact
    return catalog.resolve(fact.raw_name).redact


def call_kept(call: CallRuling) -> dict[str, Any]:
    """What is kept of what was ruled about a call."""
    kept: dict[str, Any] = {"status": call.status}
    if call.call_id:
        kept["call_id"] = call.call_id
    if call.provider_id:
        kept["provider_id"] = call.provider_id
    if call.name:
        kept["name"] = call.name
    if call.rules:
        kept["rules"] = list(call.rules)
    if call.approval:
        kept["approval"] = call.approval
    return kept


def _candidates(ruling: Ruling, places: Mapping[int, int]) -> list[dict[str, Any]]:
    """Every rule that could have matched, its verdict, and the facts it looked at. All other rules are implied by the plan."""
    looked: dict[str, dict[str, Any]] = {}
    for place, rule_ids in enumerate(ruling.considered):
        for rule_id in rule_ids:
            entry = looked.get(rule_id)
            if entry is None:
                entry = looked[rule_id] = {"rule_id": rule_id, "verdict": "no_match"}
            if place in places:
                entry.setdefault("facts", []).append(places[place])
    for finding in ruling.findings:
        entry = looked.setdefault(finding.rule_id, {"rule_id": finding.rule_id, "verdict": "no_match"})
        if entry["verdict"] != "matched":
            entry["verdict"] = _verdict(finding)
    return list(looked.values())


def _verdict(finding: Finding) -> str:
    if finding.error:
        return "raised"
    if finding.lifted:
        return "lifted"
    return "matched" if finding.enforced else "observed"


def _finding(finding: Finding, places: Mapping[int, int], shown: _Shown | None) -> dict[str, Any]:
    record = _kept(
        {
            "rule_id": finding.rule_id,
            "kind": finding.kind,
            "action": finding.action.name,
            "effect": finding.effect,
            "message": finding.message,
            "facts": [places[place] for place in finding.facts if place in places],
            "call_id": finding.call_id,
            "evidence": dict(finding.evidence) if shown is None else shown.evidence(finding),
            "lifted": finding.lifted,
            "error": finding.error if shown is None else shown.error(finding.error),
            "bundle": finding.bundle,
        }
    )
    record["enforced"] = finding.enforced
    return record


def _withheld(ruling: Ruling) -> list[dict[str, Any]]:
    """Tools the provider does not see, each with the rules that took it away."""
    by_rule: dict[str, list[str]] = {}
    for finding in ruling.findings:
        if finding.enforced and not finding.lifted and finding.effect not in ("alert_async", "annotate", "transition"):
            names = [ruling.facts[place].raw_name for place in finding.facts if place < len(ruling.facts)]
            names.extend(tool["raw_name"] for tool in finding.evidence.get("blocked_tools", ()))
            names.extend(finding.evidence.get("withheld_server_tools", ()))
            for name in names:
                by_rule.setdefault(name, []).append(finding.rule_id)
    return [
        _kept({"name": name, "rules": list(dict.fromkeys(by_rule.get(name, ())))})
        for name in (*ruling.stripped, *ruling.withheld_server_tools)
    ]


def _status(finding: Finding) -> ToolPolicyStatus:
    if finding.lifted:
        return "lifted"
    if not finding.enforced:
        return "observed"
    return _STATUS_OF.get(finding.effect, "blocked")


def _selectors(
    judged: Sequence[Judged], gates: Sequence[Mapping[str, Any]], rules: Mapping[str, Rule]
) -> list[dict[str, Any]]:
    """Every tool rule that was a candidate at any gate, in the order first met, with the strongest thing it did."""
    met: dict[str, ToolPolicyStatus] = {}
    for place, gate in enumerate(gates):
        if "candidates" not in gate:
            continue
        for candidate in gate["candidates"]:
            if candidate["rule_id"] not in met:
                met[candidate["rule_id"]] = "passed"
        for finding in judged[place].ruling.findings:
            status = _status(finding)
            before = met.get(finding.rule_id, "passed")
            met[finding.rule_id] = status if _STRENGTH.index(status) < _STRENGTH.index(before) else before
    known = rules.selectors if isinstance(rules, Rules) else {}
    selectors: list[dict[str, Any]] = []
    for rule_id, status in met.items():
        selector = known.get((rule_id, status))
        if selector is None:
            rule = rules.get(rule_id)
            if rule is None or rule.kind in _TEXT_KINDS:
                continue
            selector = known[rule_id, status] = {
                "action": rule.action.name,
                "id": rule_id,
                "kind": rule.kind,
                "matched": status != "passed",
                "matcher": _matcher(rule),
                "status": status,
                "target": rule.action.target_model or list(rule.action.routes) or None,
            }
        selectors.append(selector)
    return selectors


def _matcher(rule: Rule) -> dict[str, Any]:
    """The rule's tool matchers as its author wrote them."""
    if isinstance(rule, AllowedTools):
        return {"phase": list(rule.phases), "allowed_tools": [fields_kept(tool) for tool in rule.allowed]}
    described: dict[str, Any] = {}
    for name in ("tool", "after", "then"):
        matcher = getattr(rule, name, None)
        if isinstance(matcher, Matcher):
            described[name] = dict(matcher.described)
    return described["tool"] if list(described) == ["tool"] else described


def _tool_policy(
    judged: Sequence[Judged], selectors: Sequence[Mapping[str, Any]], rules: Mapping[str, Rule]
) -> dict[str, Any]:
    """The strongest thing any tool rule did, with what it counted."""
    strongest: Mapping[str, Any] | None = None
    for selector in selectors:
        if not selector["matched"]:
            continue
        if strongest is None or _STRENGTH.index(selector["status"]) < _STRENGTH.index(strongest["status"]):
            strongest = selector
    if strongest is None:
        return {"status": "passed"}
    rule = rules[strongest["id"]]
    evidence: Mapping[str, Any] = next(
        (
            finding.evidence
            for one in judged
            for finding in one.ruling.findings
            if finding.rule_id == rule.id and _status(finding) == strongest["status"]
        ),
        cast("Mapping[str, Any]", {}),
    )
    return {
        "status": strongest["status"],
        "rule_id": rule.id,
        "observed_count": evidence.get("observed_count"),
        "threshold": evidence.get("threshold", getattr(rule, "threshold", None)),
        "scope": evidence.get("scope", rule.scope),
    }


_NUMBERS: Final = frozenset({bool, int, float})
_NOTHING: Final[Mapping[str, Any]] = {}


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty. False and 0 stay: they say something."""
    return {name: value for name, value in values.items() if value or value.__class__ in _NUMBERS}


def caller_kept(caller: Caller) -> dict[str, str]:
    """What is known of who asked."""
    kept: dict[str, str] = {}
    if caller.agent:
        kept["agent"] = caller.agent
    if caller.application:
        kept["application"] = caller.application
    if caller.claimed_session_id:
        kept["claimed_session_id"] = caller.claimed_session_id
    if caller.principal:
        kept["principal"] = caller.principal
    if caller.run_id:
        kept["run_id"] = caller.run_id
    if caller.session_id:
        kept["session_id"] = caller.session_id
    if caller.tenant:
        kept["tenant"] = caller.tenant
    if caller.user:
        kept["user"] = caller.user
    return kept


def fields_kept(value: Any) -> dict[str, Any]:
    """A flat value as JSON values. Not `asdict`, which copies deeply and costs more than the ruling did."""
    return {
        name: list(cast("tuple[Any, ...]", part)) if isinstance(part, tuple) else part
        for name in value.__dataclass_fields__
        if (part := getattr(value, name)) or part.__class__ in _NUMBERS
    }
