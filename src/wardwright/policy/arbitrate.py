"""Findings to one ruling: deny overrides, routes intersect, and every refusal says by which rule and what a person can do.

Invariants (tests cite the numbers):
 A1. Equal inputs, equal `Ruling`; the order in which findings arrive does not matter.
 A2. Deny overrides: block > deny_call > require_approval > route constraints > strip and transform > alerts > notes. Adding an
     enforced finding never makes a ruling more permissive.
 A3. Route constraints intersect. An empty intersection, or two hard switches to different models, blocks and names the rules.
 A4. An approval or an exception lifts its own finding and no other.
 A5. A finding in observe mode changes nothing.
 A6. Routing and mediation see the `Ruling` and nothing else of policy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from wardwright.facts import ToolFact
from wardwright.policy.evaluate import Run
from wardwright.policy.matching import still_fits
from wardwright.policy.rules import CallRuling, CallStatus, Conflict, Decision, Finding, Route, Ruling
from wardwright.wire.linear import compile_pattern
from wardwright.wire.turn import CallItem

STRENGTH: Final[Mapping[str, int]] = {
    "block": 0,
    "deny_call": 1,
    "require_approval": 2,
    "switch_model": 3,
    "restrict_routes": 3,
    "reroute": 4,
    "strip_tools": 5,
    "set_controls": 5,
    "transform": 5,
    "inject_reminder": 5,
    "transition": 6,
    "alert_async": 7,
    "annotate": 8,
}
"""Smaller is stronger."""


def _rank(finding: Finding) -> tuple[int, int, int, str, tuple[int, ...]]:
    return STRENGTH[finding.effect], -finding.priority, finding.order, finding.rule_id, finding.facts


def arbitrate(run: Run) -> Ruling:
    """The ruling of one gate."""
    gate, observed, findings = run.gate, run.observed, run.findings
    # Set one by one: a class that is called with keywords takes several times as long.
    ruling = Ruling(gate, "allow", run.plan.plan_hash, observed.phase)
    ruling.facts = run.facts
    if run.considered:
        ruling.considered = tuple(run.considered)
    if observed.notes:
        ruling.notes = tuple(observed.notes)
    if run.attached:
        ruling.bundles = run.attached
    effective = _weigh(run, ruling) if findings else findings
    if gate != "request":
        ruling.calls = _calls(run, ruling, effective)
        if effective and run.plan.approval == "tool_error":
            _ask_aside(run, ruling, effective)
    return ruling


def _weigh(run: Run, ruling: Ruling) -> list[Finding]:
    """What the findings say of the gate as a whole. Returns those that have effect, the strongest first."""
    findings = run.findings
    findings.sort(key=_rank)
    ruling.findings = tuple(findings)
    effective = [finding for finding in findings if finding.enforced and not finding.lifted]
    if effective and effective[0].effect == "annotate":
        effective = []  # the strongest of them is a note: none asks for anything
    conflicts: list[Conflict] = []
    if effective:
        _routes(run, ruling, effective, conflicts)
        _changes(run, ruling, effective)
        strongest = next((finding for finding in effective if finding.effect in _DECISIONS), None)
        if strongest is not None and ruling.decision != "block":
            ruling.decision = _DECISIONS[strongest.effect]
            ruling.rule_id = strongest.rule_id
            ruling.message = explain(run, strongest)
            ruling.blocked_tools = _tools(run, [one for one in effective if one.effect == strongest.effect])
    if ruling.decision == "block":
        ruling.reask = ruling.binds_next = False  # refused is refused: nothing is asked again
    if run.clashes:
        why = "Two rules move the same machine; the first by priority and order won."
        conflicts.extend([Conflict(rules, why) for rules in run.clashes])
    if conflicts:
        ruling.conflicts = tuple(conflicts)
    return effective


_DECISIONS: Final[Mapping[str, Decision]] = {
    "block": "block",
    "deny_call": "deny_call",
    "require_approval": "require_approval",
}


def _routes(run: Run, ruling: Ruling, effective: Sequence[Finding], conflicts: list[Conflict]) -> None:
    """A3. At the reply, a constraint the answering target meets is met; else the reply is asked again, or the next request bound."""
    allowed: set[str] | None = None
    order: list[str] = []
    hard = ""
    prefer: list[str] = []
    involved: list[str] = []
    broken = ""
    for finding in effective:
        action = finding.action
        if finding.effect == "restrict_routes":
            involved.append(finding.rule_id)
            routes = set(action.routes)
            allowed = routes if allowed is None else allowed & routes
            order = order or list(action.routes)
        elif finding.effect == "switch_model":
            involved.append(finding.rule_id)
            if hard and hard != action.target_model:
                broken = "rules switch to different models"
            hard = hard or action.target_model
        elif finding.effect == "reroute" and action.target_model not in prefer:
            prefer.append(action.target_model)
    if not involved and not prefer:
        return
    if not broken and allowed is not None and (not allowed or (hard and hard not in allowed)):
        broken = "rules leave no model that all of them allow"
    if broken:
        names = tuple(dict.fromkeys(involved))
        conflicts.append(Conflict(names, f"Blocked: {broken}."))
        ruling.decision = "block"
        ruling.rule_id = names[0]
        ruling.message = (
            f"No route: {broken} ({', '.join(names)}). Split the request, or ask the operator to reconcile the rules."
        )
        return
    permitted = [one for one in prefer if (allowed is None or one in allowed) and (not hard or one == hard)]
    if len(permitted) != len(prefer):
        conflicts.append(
            Conflict(tuple(dict.fromkeys(involved)), "A preferred model is outside the allowed routes; ignored.")
        )
    ordered = None if allowed is None else tuple(one for one in order if one in allowed)
    ruling.route = Route(ordered, hard, tuple(permitted))
    if run.gate == "reply":
        target = run.turn.target
        met = (allowed is None or target in allowed) and (not hard or target == hard)
        if not met and not run.turn.released:
            ruling.reask = True
        elif not met or (permitted and target not in permitted):
            ruling.binds_next = True


def _changes(run: Run, ruling: Ruling, effective: Sequence[Finding]) -> None:
    """What mediation will do: tools taken away, parameters clamped, text changed; and what is sent aside."""
    stripped: dict[str, None] = {}
    withheld: dict[str, None] = {}
    limits: dict[str, dict[str, Any]] = {}
    transforms: list[Finding] = []
    reminders: dict[str, None] = {}
    alerts: list[Finding] = []
    surface = run.observed.surface
    for finding in effective:
        effect = finding.effect
        if effect == "strip_tools":
            if finding.kind == "allowed_tools":
                stripped.update(dict.fromkeys(one["raw_name"] for one in finding.evidence["blocked_tools"]))
                withheld.update(dict.fromkeys(finding.evidence["withheld_server_tools"]))
            elif finding.action.strip:
                for fact in surface.facts:
                    if any(still_fits(matcher, fact, inner=True) is not False for matcher in finding.action.strip):
                        stripped[fact.raw_name] = None
            else:
                stripped.update(dict.fromkeys(run.facts[index].raw_name for index in finding.facts))
        elif effect == "set_controls":
            for index in finding.facts:
                raw = run.facts[index].raw_name
                tool = surface.by_name.get(raw)
                if tool is not None and tool.hosted is not None:
                    current = limits.setdefault(raw, dict(tool.controls or {}))
                    for key, limit in finding.action.controls.items():
                        clamped = clamp(key, current.get(key), limit)
                        if clamped == []:
                            stripped[raw] = None  # an empty list often means "no limit" to a provider
                        current[key] = clamped
        elif effect == "transform":
            transforms.append(finding)
        elif effect == "inject_reminder":
            reminders[finding.action.text] = None
        elif effect == "alert_async":
            alerts.append(finding)
    ruling.stripped = tuple(stripped)
    ruling.withheld_server_tools = tuple(withheld)
    ruling.controls = {raw: controls for raw, controls in limits.items() if raw not in stripped}
    ruling.transforms = tuple(transforms)
    ruling.reminders = tuple(reminders)
    ruling.alerts = tuple(alerts)


def clamp(key: str, current: Any, limit: Any) -> Any:
    """The stricter of what a caller set and what a rule allows."""
    if isinstance(limit, bool):
        return limit
    if isinstance(limit, (int, float)):
        # Less than nothing is "no limit" to some providers.
        ok = isinstance(current, (int, float)) and not isinstance(current, bool) and current >= 0
        # As it is: said to be a `float`, a whole number would become one in the compiled build.
        return min(current, limit) if ok else limit
    wanted = list(limit)
    if not isinstance(current, (list, tuple)):
        return wanted
    given = list(cast("Sequence[Any]", current))
    if key.startswith(("blocked", "excluded", "denied", "disallowed")):
        return [*given, *(one for one in wanted if one not in given)]
    return [one for one in given if one in wanted]


def transformed(ruling: Ruling, item: int, text: str) -> str:
    """What the text of an item becomes under the transforms that are about it. Whoever changes a text changes it with this."""
    for finding in ruling.transforms:
        if finding.facts and all(ruling.facts[index].item != item for index in finding.facts):
            continue
        action = finding.action
        text = compile_pattern(action.pattern).sub(action.text, text) if action.pattern else action.text
    return text


_CALL_STATUS: Final[Mapping[str, CallStatus]] = {
    "block": "block",
    "deny_call": "deny_call",
    "require_approval": "require_approval",
}


def _calls(run: Run, ruling: Ruling, effective: Sequence[Finding]) -> tuple[CallRuling, ...]:
    """Per call (or per result) the strongest finding about it; a blocked gate blocks them all."""
    facts = run.observed.facts
    if not facts:
        return ()
    wanted = "assistant_tool_call" if run.gate == "reply" else "tool_result"
    items = run.turn.items
    size = len(items)
    usual: CallStatus = "block" if ruling.decision == "block" else "allow"
    calls: list[CallRuling] = []
    for fact in facts:
        if fact.source == wanted:
            at = fact.item
            call_id = provider_id = fact.tool_call_id
            if 0 <= at < size and type(item := items[at]) is CallItem:
                provider_id = item.id
            # Filled by hand: a class that is called takes twice as long.
            call = CallRuling.__new__(CallRuling)
            call.item = at
            call.call_id = call_id
            call.provider_id = provider_id
            call.name = fact.raw_name
            call.status = usual
            call.message = call.approval = ""
            call.rules = ()
            calls.append(call)
    if effective:
        by_fact: dict[int, list[Finding]] = {}
        for finding in effective:
            if finding.effect in _CALL_STATUS:
                for index in finding.facts:
                    by_fact.setdefault(index, []).append(finding)
        judged = [index for index, fact in enumerate(facts) if fact.source == wanted]
        for index, call in zip(judged, calls, strict=True):
            if index in by_fact:
                found = by_fact[index]
                if usual == "allow":
                    call.status = _CALL_STATUS[found[0].effect]
                call.message = explain(run, found[0])
                call.rules = tuple(dict.fromkeys(one.rule_id for one in found))
    return tuple(calls)


_TALKS: Final = frozenset({"chat_completions", "responses", "anthropic"})
"""Wires in which a model reads the error of a call. Where there is one call and its answer the handle is in that already."""


def _ask_aside(run: Run, ruling: Ruling, effective: Sequence[Finding]) -> None:
    """Calls that need an approval are denied with a handle, and the rest of the reply goes on; unless something else than a
    call needs one too: then all of it waits."""
    if run.gate != "reply" or run.turn.wire not in _TALKS or ruling.decision == "block" or ruling.reask:
        return
    asking: dict[str, list[Finding]] = {call.call_id: [] for call in ruling.calls}
    for finding in effective:
        if finding.effect == "require_approval":
            if finding.call_id not in asking:
                return
            asking[finding.call_id].append(finding)
    for call in ruling.calls:
        if call.status == "require_approval":
            found = asking[call.call_id]
            parts = (run.turn.caller.principal, *sorted(one.key for one in found))
            digest = hashlib.blake2b(
                "\x1f".join(parts).encode("utf-8", "surrogatepass"), key=run.secret, digest_size=16
            )
            call.status, call.approval = "deny_call", f"apr_{digest.hexdigest()}"
            call.message = explain(run, found[0], call.approval)
    if ruling.decision == "require_approval":
        ruling.decision = "deny_call"


def _name(fact: ToolFact) -> str:
    return f"{fact.namespace}.{fact.name}"


def _tools(run: Run, findings: Sequence[Finding]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for finding in findings:
        for blocked in finding.evidence.get("blocked_tools", ()):
            names[f"{blocked['namespace']}.{blocked['name']}"] = None
        for index in finding.facts:
            names[_name(run.facts[index])] = None
    return tuple(names)


_UNASKED: Final[Mapping[str | bool, str]] = {
    "argument_provenance": "would use a value that does not come from where it has to",
    "intent": "does something that the user did not ask for",
    True: "Ask an operator for approval, then send the same request again; or ask the user to say it.",
    "aside": "Or ask the user to say it.",
    False: "Ask the user to say it, or ask the operator for an exception.",
}


WAITS: Final = "This call waits for an operator as {handle}: say so, go on without it, and make the very same call again once it is approved."
"""What a model is told of a call that was taken out of its reply until somebody approves it."""


def explain(run: Run, finding: Finding, handle: str = "") -> str:
    """What a person, or the model, can do about a refusal. The rule's own message comes first. `handle`: of an approval that the
    call itself waits for."""
    waits = f" {WAITS.format(handle=handle)}" if handle else ""
    problems = finding.evidence.get("problems")
    details = f" Problems: {'; '.join(problems)}." if problems else ""
    if finding.evidence.get("overflow"):
        details += " (Too many different calls to tell apart: this one was counted together with others.)"
    if finding.message:
        return finding.message + details + waits
    tools = ", ".join(_tools(run, [finding]))
    what = f"Tool {tools}" if tools else "This request" if run.gate == "request" else "This answer"
    rule = f"rule '{finding.rule_id}'"
    count, threshold = finding.evidence.get("observed_count"), finding.evidence.get("threshold")
    if finding.kind in ("argument_provenance", "intent") and problems:
        unasked = f"{what} {_UNASKED[finding.kind]} ({rule}).{details}"
        if waits:
            return f"{unasked}{waits} {_UNASKED['aside']}"
        return f"{unasked} {_UNASKED[finding.effect == 'require_approval']}"
    if waits:
        return f"{what} needs an operator's approval ({rule}).{waits}"
    if finding.effect == "require_approval":
        return f"{what} needs an operator's approval ({rule}). Ask for it, then send the same request again."
    if problems:
        return f"{what} has arguments or output that do not fit ({rule}).{details} Correct them and try again."
    if "dimension" in finding.evidence:
        used, limit = finding.evidence["used"], finding.evidence["limit"]
        return (
            f"The budget of {finding.evidence['dimension']} is used up: {used:g} of {limit:g} ({rule}). "
            "Wait for it to renew, or ask the operator for more."
        )
    if count is not None:
        return (
            f"{what} was seen {count} times, the limit is {threshold} ({rule}). "
            f"Do something else, or ask the operator to raise the limit.{details}"
        )
    if finding.kind == "allowed_tools":
        return f"{what} is not on the list of allowed tools ({rule}). Leave it out, or ask the operator to list it."
    if finding.effect == "deny_call":
        return f"{what} is not allowed here ({rule}). Use another tool, or ask the operator for an exception."
    return f"{what} was blocked by {rule}. Change what it asks for, or ask the operator for an exception."
