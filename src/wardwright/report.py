"""What each rule did to the people it governs, from receipts: whether it earns its keep.

Per rule: fired, would have fired, retries that then passed, time added, sessions abandoned. Reads receipts in the order they were
written; judges nothing anew and never guesses at what a receipt does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wardwright.policy.compile import Plan
from wardwright.receipts import Receipt, rules_of

REFUSING: Final = frozenset({"block", "deny_call", "require_approval"})
QUIET_MS: Final = 900_000
"""A session that says nothing for a quarter of an hour after a refusal counts as abandoned."""
TOOLS: Final = 50
"""Tools told apart per rule; callers choose names, so the rest is counted together."""
OTHERS: Final = "<others>"
EXAMPLES: Final = 5


@dataclass(slots=True)
class RuleReport:
    """One rule over all receipts read."""

    rule_id: str
    kind: str = ""
    mode: str = ""
    owner: str = ""
    considered: int = 0
    """Gates at which it was a candidate."""
    fired: int = 0
    """Gates at which it acted."""
    would_have_fired: int = 0
    """Gates at which it would have, in observe mode."""
    would_have_refused: int = 0
    """Those of them at which it would have blocked, denied or held something."""
    lifted: int = 0
    """Gates at which an approval or an exception stood against it."""
    failed: int = 0
    """Gates at which it raised, which blocks."""
    refused: int = 0
    """Gates at which it blocked, denied or held something."""
    retries_passed: int = 0
    """Refusals after which the same session got the same tool, or its next message, through."""
    waited_ms: int = 0
    """Latency added: from a refusal to the try that passed, all of those together."""
    gate_us: int = 0
    """Time ruling took at the gates that considered it. A gate is timed whole: rules share this time."""
    sessions: int = 0
    """Sessions in which it refused something."""
    sessions_abandoned: int = 0
    """Sessions whose last word was its refusal."""
    tools: dict[str, int] = field(default_factory=dict[str, int])
    """Tool → gates at which it acted on it, or would have; `<request>` and the like: on the message as a whole."""
    examples: list[str] = field(default_factory=list[str])
    """Ids of the latest receipts in which it acted, or would have; newest first."""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Report:
    """All rules, those that acted most first."""

    receipts: int
    gates: int
    sessions: int
    since_ms: int
    until_ms: int
    rules: tuple[RuleReport, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "receipts": self.receipts,
            "gates": self.gates,
            "sessions": self.sessions,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "rules": [rule.as_json() for rule in self.rules],
        }


@dataclass(slots=True)
class _Session:
    """What is still open in one session."""

    last_ms: int = 0
    refused_by: tuple[str, ...] = ()
    """The rules that refused at the last gate; empty when it passed."""
    waiting: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(rule, tool, or a whole message) → when it was refused and has not passed since."""
    troubled: set[str] = field(default_factory=set[str])


def report(
    recorded: Iterable[Receipt], *, plan: Plan | None = None, now_ms: int | None = None, quiet_ms: int = QUIET_MS
) -> Report:
    """The report over receipts. With a plan, rules that never came up are listed too; `now_ms` defaults to the last receipt."""
    reader = _Reader(plan)
    for receipt in recorded:
        if receipt.get("kind") == "exchange":
            reader.read(receipt)
    return reader.close(now_ms, quiet_ms)


class _Reader:
    def __init__(self, plan: Plan | None) -> None:
        self.rules: dict[str, RuleReport] = {}
        self.sessions: dict[tuple[str, str], _Session] = {}
        self.open: dict[tuple[str, str], list[Any]] = {}
        self.receipts = 0
        self.gates = 0
        self.first_ms: int | None = None
        self.last_ms = 0
        for part in plan.models.values() if plan is not None else ():
            for rule_id, rule in rules_of(part).items():
                self.rules[rule_id] = RuleReport(rule_id, rule.kind, rule.mode, rule.owner)

    def rule(self, rule_id: str, kind: str = "") -> RuleReport:
        found = self.rules.get(rule_id)
        if found is None:
            found = self.rules[rule_id] = RuleReport(rule_id)
        found.kind = found.kind or kind
        return found

    def read(self, receipt: Receipt) -> None:
        caller: Mapping[str, Any] = receipt.get("caller", {})
        key = (str(caller.get("tenant", "")), str(caller.get("session_id", "")))
        session = self.sessions.setdefault(key, _Session())
        gates: list[Any] = receipt["decision"]["gates"]
        # An exchange may be on record twice: when its request passed, and when it ended.
        earlier = self.open.pop(key, [])
        if receipt["final"]["status"] == "open":
            self.open[key] = gates
        self.receipts += 1
        for gate in gates:
            if gate not in earlier:
                self.gate(gate, session, str(receipt["id"]))

    def gate(self, gate: Mapping[str, Any], session: _Session, receipt_id: str) -> None:
        self.gates += 1
        at_ms = int(gate["at_ms"])
        self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
        self.last_ms = max(self.last_ms, at_ms)
        session.last_ms = at_ms
        for candidate in gate.get("candidates", ()):
            one = self.rule(candidate["rule_id"])
            one.considered += 1
            one.gate_us += int(gate.get("elapsed_us", 0))
        refusals: dict[str, set[str]] = {}
        for rule_id, findings in _by_rule(gate).items():
            one = self.rule(rule_id, findings[0].get("kind", ""))
            acting = [finding for finding in findings if finding["enforced"] and not finding.get("lifted")]
            observed = [finding for finding in findings if not finding["enforced"] and not finding.get("lifted")]
            one.would_have_fired += bool(observed)
            one.would_have_refused += any(finding["effect"] in REFUSING for finding in observed)
            one.lifted += any(bool(finding.get("lifted")) for finding in findings)
            one.failed += any(bool(finding.get("error")) for finding in findings)
            one.fired += bool(acting)
            if acting or observed:
                _remember(one, receipt_id, {tool for part in (*acting, *observed) for tool in _tools(gate, part)})
            tools = {tool for finding in acting if finding["effect"] in REFUSING for tool in _tools(gate, finding)}
            if tools:
                one.refused += 1
                refusals[rule_id] = tools
        self._passed(gate, session, refusals, at_ms)
        for rule_id, tools in refusals.items():
            session.troubled.add(rule_id)
            for tool in tools:
                session.waiting.setdefault((rule_id, tool), at_ms)
        through = gate["decision"] == "allow" or any(call["status"] == "allow" for call in gate.get("calls", ()))
        session.refused_by = () if through else tuple(refusals)

    def _passed(self, gate: Mapping[str, Any], session: _Session, refusals: Mapping[str, set[str]], at_ms: int) -> None:
        """What now gets through that was refused before."""
        if not session.waiting:
            return
        through: set[str] = set()
        if gate["decision"] == "allow":
            through.add(_whole(gate))
        allowed = {call["call_id"] for call in gate.get("calls", ()) if call["status"] == "allow"}
        for fact in gate.get("facts", ()):
            if fact["source"] == "assistant_tool_call" and fact.get("tool_call_id") in allowed:
                through.add(_tool(fact))
        for rule_id, tool in list(session.waiting):
            if tool in through and tool not in refusals.get(rule_id, ()):
                one = self.rule(rule_id)
                one.retries_passed += 1
                one.waited_ms += max(0, at_ms - session.waiting.pop((rule_id, tool)))

    def close(self, now_ms: int | None, quiet_ms: int) -> Report:
        end = self.last_ms if now_ms is None else now_ms
        for session in self.sessions.values():
            for rule_id in session.troubled:
                self.rules[rule_id].sessions += 1
            if session.refused_by and end - session.last_ms >= quiet_ms:
                for rule_id in session.refused_by:
                    self.rules[rule_id].sessions_abandoned += 1
        for one in self.rules.values():
            one.tools = dict(sorted(one.tools.items(), key=lambda pair: (-pair[1], pair[0])))
        ordered = sorted(self.rules.values(), key=lambda one: (-one.fired, -one.would_have_fired, one.rule_id))
        return Report(self.receipts, self.gates, len(self.sessions), self.first_ms or 0, end, tuple(ordered))


def _remember(one: RuleReport, receipt_id: str, tools: Iterable[str]) -> None:
    for tool in tools:
        name = tool if tool in one.tools or len(one.tools) < TOOLS else OTHERS
        one.tools[name] = one.tools.get(name, 0) + 1
    if one.examples[:1] != [receipt_id]:
        one.examples = [receipt_id, *one.examples[: EXAMPLES - 1]]


def _by_rule(gate: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for finding in gate.get("findings", ()):
        found.setdefault(finding["rule_id"], []).append(finding)
    return found


def _tools(gate: Mapping[str, Any], finding: Mapping[str, Any]) -> set[str]:
    """The tools a refusal was about; at the request, or without a fact, the message as a whole."""
    if gate["gate"] == "request":
        return {_whole(gate)}
    facts = gate.get("facts", ())
    named = {_tool(facts[place]) for place in finding.get("facts", ()) if place < len(facts)}
    return named or {_whole(gate)}


def _whole(gate: Mapping[str, Any]) -> str:
    """Stands for a message that was refused as a whole; no tool has such a name."""
    return f"<{gate['gate']}>"


def _tool(fact: Mapping[str, Any]) -> str:
    return f"{fact.get('namespace', '')}.{fact['name']}"
