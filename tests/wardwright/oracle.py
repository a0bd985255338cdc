"""A second opinion on the engine: no indexes, no registers, everything recomputed from the full log of facts every time.

Takes compiled rules and observed facts; decides matching, counting, sequences, states and arbitration by itself. Bundles, text
rules, schemas, budgets and exceptions are left to the cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from wardwright.facts import ToolFact
from wardwright.policy import rules as r

DENY = {"block", "deny_call", "require_approval", "strip_tools"}
ONCE = {"alert_async", "annotate"}
ROUTES = {"restrict_routes", "switch_model"}
USUAL = {"assistant_tool_call", "tool_choice", "tool_result", "provider_event", "caller_metadata"}
ORDER = ("block", "deny_call", "require_approval", "allow")
RESULT = "result_interpretation"
At = tuple[int, int, int]


@dataclass
class Entry:
    """One line of the log: a fact, a user turn (neither fact nor state), or a move of a machine."""

    at: At
    fact: ToolFact | None = None
    refused: bool = False
    held: bool = False
    state: str = ""
    rule: r.Rule | None = None
    lapse: bool = False


class Verdict(NamedTuple):
    fired: set[tuple[str, str, tuple[int, ...], bool]]
    decision: str
    calls: list[str]
    state: str


def fits(m: r.Matcher, f: ToolFact, denying: bool) -> bool:
    repair = f.phase == "argument_repair" and "argument_repair" in m.phase
    if f.source not in m.source if m.source else f.source not in USUAL and not (f.source == "inferred" and repair):
        return False
    for globs, value in ((m.namespace, f.namespace), (m.name, f.name)):
        if globs and not any(fnmatchcase(value.lower(), glob.lower()) for glob in globs):
            return False
    for words, value in ((m.risk_class, f.risk_class), (m.result_status, f.result_status)):
        if words and value not in words:
            return False
    if not m.phase or f.phase in m.phase:
        return True
    if f.phase == "unknown":
        return denying
    return f.phase == "argument_repair" and "planning" in m.phase and f.source != "inferred"


def ends(until: r.Until, f: ToolFact) -> bool:
    happened = f.source in ("assistant_tool_call", "tool_result", "provider_event")
    return until.tool is not None and fits(until.tool, f, False) and (happened or bool(until.tool.source))


def counts(rule: Any, f: ToolFact) -> bool:
    return not f.repeat and (f.source != "tool_choice" or bool(rule.tool.source))


def inside(window: r.Window | None, start: At, at: At) -> bool:
    limits = (None, None, None) if window is None else (window.turns, window.events, window.ms)
    return all(limit is None or now - then <= limit for limit, then, now in zip(limits, start, at, strict=True))


class Oracle:
    """One session under one plan with one machine."""

    def __init__(self, rules: tuple[r.Rule, ...], machine: r.Machine) -> None:
        self.rules, self.initial = rules, machine.initial_state
        self.log: list[Entry] = []
        self.turn = self.event = self.fresh = 0
        self.phase = "planning"

    def of(self, kind: type) -> list[Any]:
        return [rule for rule in self.rules if isinstance(rule, kind)]

    def state(self, at: At, log: list[Entry]) -> tuple[str, str, bool]:
        """(state, key of the rule that put it there, came by itself)"""
        moves = [e for e in log if e.state]
        if not moves:
            return self.initial, "", False
        last = moves[-1]
        if isinstance(last.rule, r.ToolSequence) and last.rule.then is None:
            until = last.rule.until
            stale = until is not None and until.clean_turn and at[0] - last.at[0] > 1
            if stale or not inside(last.rule.window, last.at, at):
                return self.initial, "", True
        return last.state, last.rule.key if last.rule is not None else "", False

    def key(self, rule: Any, f: ToolFact) -> Any:
        parts = (f.namespace.lower(), f.name.lower(), f.arguments_digest, f.result_digest)
        return parts[: len(rule.equal.split("+")) + 1] if isinstance(rule, r.LoopThreshold) else None

    def count(self, rule: Any, key: Any, at: At, log: list[Entry]) -> int:
        facts = [e.fact for e in log if e.fact is not None and inside(rule.window, e.at, at) and counts(rule, e.fact)]
        return sum(fits(rule.tool, f, rule.action.name in DENY) and self.key(rule, f) == key for f in facts)

    def tripped(self, rule: r.LoopThreshold, at: At) -> bool:
        last = None
        for n, e in enumerate(self.log):
            if e.fact is not None and counts(rule, e.fact) and fits(rule.tool, e.fact, False):
                over = self.count(rule, self.key(rule, e.fact), e.at, self.log[: n + 1]) >= rule.threshold
                last = e.at if over else last
        return last is not None and inside(rule.window, last, at)

    def started(self, rule: r.ToolSequence, at: At) -> bool:
        start, until = None, rule.until or r.Until()
        for n, e in enumerate(self.log):
            if e.state:
                clears = until.state == e.state
            elif e.fact is None:
                clears = until.user_turn
            else:
                clears = not e.refused and not e.held and n < self.fresh and ends(until, e.fact)
            start = None if clears else start
            if e.fact is not None and not e.refused and fits(rule.after, e.fact, rule.action.name in DENY):
                start = e.at
        stale = start is not None and until.clean_turn and at[0] - start[0] > 1
        return start is not None and inside(rule.window, start, at) and not stale

    def judge(self, gate: str, facts: list[ToolFact], user_turns: list[int], now: int) -> Verdict:
        fired: set[tuple[str, str, tuple[int, ...], bool]] = set()
        begin = list(self.log)
        self.fresh = len(begin) if gate == "reply" else 10**9
        places = [(self.turn, self.event + sum(not f.repeat for f in facts[: i + 1]), now) for i in range(len(facts))]
        end = places[-1] if places else (self.turn, self.event, now)
        moves: list[tuple[int, int, r.Rule, At]] = []
        refused: set[int] = set()

        def act(rule: r.Rule, index: int, at: At) -> None:
            if gate not in rule.gates or (rule.state_scope and self.state(at, self.log)[0] not in rule.state_scope):
                return
            hosted = index >= 0 and facts[index].source == "provider_event"
            name = "block" if rule.action.name == "deny_call" and hosted else rule.action.name
            live = rule.mode == "enforce"
            fired.add((rule.id, name, () if index < 0 else (index,), live))
            if live and rule.action.transition_to:
                moves.append((-rule.priority, rule.order, rule, at))
            if live and name in ("block", "deny_call", "require_approval") and index >= 0:
                refused.add(index)

        def move() -> None:
            for _, _, rule, at in sorted(moves, key=lambda one: one[:2])[:1]:
                self.log.append(Entry(at, state=rule.action.transition_to, rule=rule))
            moves.clear()

        def leave(at: At, ends: Any) -> None:
            for rule in self.of(r.ToolSequence):
                if rule.then is None and rule.until and ends(rule.until) and self.state(at, self.log)[1] == rule.key:
                    self.log.append(Entry(at, state=self.initial))

        def pass_time(at: At) -> None:
            if self.state(at, self.log)[2]:
                self.log.append(Entry(at, state=self.initial, lapse=True))

        pass_time(places[0] if places else end)
        for rule in self.of(r.LoopThreshold):
            if gate == "request" and rule.action.name in ROUTES and self.tripped(rule, end):
                act(rule, -1, end)
        move()
        for i, (f, at) in enumerate(zip(facts, places, strict=True)):
            if i in user_turns:
                self.log.append(Entry(at))
                pass_time(at)
                leave(at, lambda until: until.user_turn)
            pass_time(at)
            for rule in self.rules:
                denying = rule.action.name in DENY
                if isinstance(rule, r.ToolSelector):
                    hit = fits(rule.tool, f, denying)
                elif isinstance(rule, r.LoopThreshold):
                    before = self.count(rule, self.key(rule, f), at, self.log)
                    late = rule.action.name in ONCE and before >= rule.threshold
                    hit = fits(rule.tool, f, denying) and before + counts(rule, f) >= rule.threshold and not late
                elif isinstance(rule, r.ToolSequence):
                    later = rule.then is not None and fits(rule.then, f, denying) and self.started(rule, at)
                    hit = later if rule.then is not None else fits(rule.after, f, denying)
                elif isinstance(rule, r.AllowedTools):
                    named = [t for t in rule.allowed if t.namespace in ("", f.namespace) and t.name == f.name]
                    phases = {*rule.phases, "unknown", *(["argument_repair"] if "planning" in rule.phases else [])}
                    hit = gate == "reply" and not named and f.phase != RESULT and bool({f.phase, self.phase} & phases)
                else:
                    continue
                if hit:
                    act(rule, i, at)
            if i not in refused and gate != "reply":
                leave(at, lambda until, f=f: ends(until, f))
            move()
            self.log.append(Entry(at, f, i in refused))
        pass_time(end)
        for rule in self.of(r.HistoryThreshold):
            if self.count(rule, None, end, self.log) >= rule.threshold:
                fresh = self.count(rule, None, (self.turn, self.event, now), begin) < rule.threshold
                hits = [-1] if fresh or rule.action.name not in ONCE else []
                if rule.action.name == "deny_call":
                    hits = [i for i, f in enumerate(facts) if fits(rule.tool, f, True)]
                for i in hits:
                    act(rule, i, end)
        move()
        # What the calls of a reply end, they end when it is over, and nothing that was begun since.
        place = len(begin)
        for i, (f, at) in enumerate(zip(facts, places, strict=True) if gate == "reply" else []):
            for rule in self.of(r.ToolSequence) if i not in refused else []:
                ours = rule.then is None and rule.until and ends(rule.until, f)
                if ours and not any(e.state for e in self.log[place:]) and self.state(end, self.log)[1] == rule.key:
                    self.log.insert(place, Entry(at, state=self.initial))
            place = next(n for n, e in enumerate(self.log) if e.fact is f) + 1
        # What the findings come to.
        live = [(self.rules[int(one[0][1:])].action, one[1], one[2]) for one in fired if one[3]]
        effects = {effect for _, effect, _ in live}
        hard = {action.target_model for action, effect, _ in live if effect == "switch_model"}
        routes = [set(action.routes) for action, effect, _ in live if effect == "restrict_routes"]
        allowed = set.intersection(*routes) if routes else hard
        broken = len(hard) > 1 or (bool(routes) and (not allowed or bool(hard - allowed)))
        decision = "block" if broken else next(word for word in ORDER if word in effects or word == "allow")
        calls: list[str] = []
        for i in [i for i, f in enumerate(facts) if gate == "reply" and f.source == "assistant_tool_call"]:
            about = {effect for _, effect, which in live if i in which} | {"allow"}
            calls.append("block" if decision == "block" else next(word for word in ORDER if word in about))
        partly = decision == "deny_call" and "allow" in calls and "require_approval" not in calls
        through = (decision == "allow" or partly) and not (gate == "reply" and (hard or routes))
        new = [e for e in self.log[len(begin) :] if through or e.fact or e.lapse or e.rule]
        self.log = begin + new
        for i, e in enumerate([e for e in new if e.fact is not None]):
            e.held = not through
            e.refused = e.refused or (gate == "reply" and (not through or i in refused))
        self.event = end[1]
        verdict = Verdict(fired, decision, calls, self.state(end, self.log)[0])
        if through and gate == "reply":
            self.turn += 1
        elif through:
            self.phase = RESULT if [f.phase for f in facts if f.source != "inferred"][-1:] == [RESULT] else "planning"
        return verdict
