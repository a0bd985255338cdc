"""A second opinion on the engine: no indexes, no registers, everything recomputed from the full log of facts every time.

It takes compiled rules and facts; `test_oracle` also feeds it facts read naively off raw conversations. What it cannot see:
how wires and catalogs make facts, forged or altered transcripts, bundles, text rules, schemas, budgets and exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from wardwright.facts import ToolFact
from wardwright.policy import rules as r

DENY = {"block", "deny_call", "require_approval", "strip_tools"}
ONCE, ROUTES = {"alert_async", "annotate"}, {"restrict_routes", "switch_model"}
USUAL = {"assistant_tool_call", "tool_choice", "tool_result", "provider_event", "caller_metadata"}
ORDER, RESULT = ("block", "deny_call", "require_approval", "allow"), "result_interpretation"
At = tuple[int, int, int]
Fired = set[tuple[str, str, tuple[int, ...], bool]]


@dataclass
class Entry:  # One line of the log: a fact, a user turn (neither fact nor state), or a move of a machine.
    at: At
    fact: ToolFact | None = None
    refused: bool = False
    held: bool = False
    state: str = ""
    rule: r.Rule | None = None
    word: bool = False  # the user spoke, or it ended because of that, and no released reply has answered it yet
    void: bool = False  # no reply ever answered it
    proven: bool = True
    gate: int = 0  # where its gate began in the log …
    since: At = (0, 0, 0)  # … and when


def fits(m: r.Matcher, f: ToolFact, denying: bool) -> bool:
    repair = f.source == "inferred" and f.phase == "argument_repair" and "argument_repair" in m.phase
    source = f.source in m.source if m.source else f.source in USUAL or repair
    globs = ((m.namespace, f.namespace.lower()), (m.name, f.name.lower()))
    words = ((m.risk_class, f.risk_class), (m.result_status, f.result_status))
    named = all(not some or any(fnmatchcase(value, one.lower()) for one in some) for some, value in globs)
    planned = f.phase == "argument_repair" and "planning" in m.phase and f.source != "inferred"
    phase = not m.phase or f.phase in m.phase or planned or (f.phase == "unknown" and denying)
    return source and named and phase and all(not some or value in some for some, value in words)


HAPPENED = ("assistant_tool_call", "tool_result", "provider_event")


def ends(until: r.Until, f: ToolFact) -> bool:
    return until.tool is not None and fits(until.tool, f, False) and (f.source in HAPPENED or bool(until.tool.source))


def counts(rule: Any, f: ToolFact) -> bool:
    return not f.repeat and (f.source != "tool_choice" or bool(rule.tool.source))


def inside(window: r.Window | None, start: At, at: At) -> bool:
    limits = (None, None, None) if window is None else (window.turns, window.events, window.ms)
    return all(limit is None or now - then <= limit for limit, then, now in zip(limits, start, at, strict=True))


class Oracle:  # One session under one plan with one machine.
    def __init__(self, rules: tuple[r.Rule, ...], machine: r.Machine) -> None:
        self.rules, self.initial = rules, machine.initial_state
        self.log: list[Entry] = []
        self.turn, self.event, self.fresh, self.phase = 0, 0, 0, "planning"

    def of(self, kind: type) -> list[Any]:
        return [rule for rule in self.rules if isinstance(rule, kind)]

    def state(self, at: At, log: list[Entry]) -> tuple[str, str, bool]:
        """(state, key of the rule that put it there, came by itself)"""
        last = next((e for e in reversed(log) if e.state and not e.void), Entry(at, state=self.initial))
        if isinstance(last.rule, r.ToolSequence) and last.rule.then is None:
            stale = last.rule.until is not None and last.rule.until.clean_turn and at[0] - last.at[0] > 1
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
        seen = [(n, e.at, e.fact) for n, e in enumerate(self.log) if e.fact is not None and counts(rule, e.fact)]
        ours = [(n, then, self.key(rule, f)) for n, then, f in seen if fits(rule.tool, f, False)]
        over = [then for n, then, key in ours if self.count(rule, key, then, self.log[: n + 1]) >= rule.threshold]
        return bool(over) and inside(rule.window, over[-1], at)

    def started(self, rule: r.ToolSequence, at: At) -> bool:
        start, until = None, rule.until or r.Until()
        starts: list[At | None] = []
        for n, e in enumerate(self.log):
            starts.append(start)
            if e.void:
                continue
            ended = e.fact is not None and not e.refused and not e.held and n < self.fresh and ends(until, e.fact)
            if ended and not e.proven:  # a history that a new session brings ends what it began itself
                before = starts[e.gate]
                ended = e.since[0] == 0 and (before is None or not inside(rule.window, before, e.since))
            clears = until.state == e.state if e.state else until.user_turn if e.fact is None else ended
            start = None if clears else start
            if e.fact is not None and not e.refused and fits(rule.after, e.fact, rule.action.name in DENY):
                start = e.at
        stale = start is not None and until.clean_turn and at[0] - start[0] > 1
        return start is not None and inside(rule.window, start, at) and not stale

    def judge(self, gate: str, facts: list[ToolFact], users: list[int], now: int) -> tuple[Fired, str, list[str], str]:
        fired: Fired = set()
        for e in self.log if gate == "request" else []:
            e.void = e.void or e.word  # no reply has answered those words
        begin, since = list(self.log), (self.turn, self.event, now)
        self.fresh = len(begin) if gate == "reply" else 10**9
        places = [(self.turn, self.event + sum(not f.repeat for f in facts[: i + 1]), now) for i in range(len(facts))]
        end = places[-1] if places else (self.turn, self.event, now)
        moves: list[tuple[int, int, r.Rule, At]] = []
        refused: set[int] = set()

        def act(rule: r.Rule, index: int, at: At) -> None:
            if gate not in rule.gates or (rule.state_scope and self.state(at, self.log)[0] not in rule.state_scope):
                return
            hosted, live = index >= 0 and facts[index].source == "provider_event", rule.mode == "enforce"
            name = "block" if rule.action.name == "deny_call" and hosted else rule.action.name
            fired.add((rule.id, name, () if index < 0 else (index,), live))
            if live and rule.action.transition_to:
                moves.append((-rule.priority, rule.order, rule, at))
            if live and name in ("block", "deny_call", "require_approval") and index >= 0:
                refused.add(index)

        def move() -> None:
            for _, _, rule, at in sorted(moves, key=lambda one: one[:2])[:1]:
                self.log.append(Entry(at, state=rule.action.transition_to, rule=rule))
            moves.clear()

        def leave(at: At, ends: Any, word: bool = False) -> None:
            for rule in self.of(r.ToolSequence):
                if rule.then is None and rule.until and ends(rule.until) and self.state(at, self.log)[1] == rule.key:
                    self.log.append(Entry(at, state=self.initial, word=word))

        def proven(f: ToolFact) -> bool:  # what a request shows for the first time never passed, but for results
            return gate != "request" or f.source == "tool_result" or f.source not in HAPPENED

        def pass_time(at: At) -> None:
            self.log.extend([Entry(at, held=True, state=self.initial)] if self.state(at, self.log)[2] else [])

        pass_time(places[0] if places else end)
        for rule in self.of(r.LoopThreshold):
            if gate == "request" and rule.action.name in ROUTES and self.tripped(rule, end):
                act(rule, -1, end)
        move()
        for i, (f, at) in enumerate(zip(facts, places, strict=True)):
            pass_time(at)
            if i in users:
                self.log.append(Entry(at, word=True))
                leave(at, lambda until: until.user_turn, word=True)
            for rule in self.rules:
                denying, hit = rule.action.name in DENY, False
                if isinstance(rule, r.ToolSelector):
                    hit = fits(rule.tool, f, denying)
                elif isinstance(rule, r.LoopThreshold):
                    before = self.count(rule, self.key(rule, f), at, self.log)
                    late = rule.action.name in ONCE and before >= rule.threshold
                    hit = fits(rule.tool, f, denying) and before + counts(rule, f) >= rule.threshold and not late
                elif isinstance(rule, r.ToolSequence):
                    hit = fits(rule.then or rule.after, f, denying) and (rule.then is None or self.started(rule, at))
                elif isinstance(rule, r.AllowedTools):
                    named = any(t.namespace in ("", f.namespace) and t.name == f.name for t in rule.allowed)
                    phases = {*rule.phases, "unknown", *(["argument_repair"] if "planning" in rule.phases else [])}
                    hit = gate == "reply" and not named and f.phase != RESULT and bool({f.phase, self.phase} & phases)
                if hit:
                    act(rule, i, at)
            own = self.turn == 0 and self.state(since, begin)[0] == self.initial
            if i not in refused and gate != "reply" and (proven(f) or own):
                leave(at, lambda until, f=f: ends(until, f))
            move()
            self.log.append(Entry(at, f, i in refused, proven=proven(f), gate=len(begin), since=since))
        pass_time(end)
        for rule in self.of(r.HistoryThreshold):
            if self.count(rule, None, end, self.log) >= rule.threshold:
                fresh = self.count(rule, None, (self.turn, self.event, now), begin) < rule.threshold
                whole = [-1] if fresh or rule.action.name not in ONCE else []
                each = [i for i, f in enumerate(facts) if fits(rule.tool, f, True)]
                for i in each if rule.action.name == "deny_call" else whole:
                    act(rule, i, end)
        move()
        place = len(begin)  # What the calls of a reply end, they end when it is over, and nothing that was begun since.
        for i, (f, at) in enumerate(zip(facts, places, strict=True) if gate == "reply" else []):
            for rule in self.of(r.ToolSequence) if i not in refused else []:
                ours = rule.then is None and rule.until and ends(rule.until, f)
                if ours and not any(e.state for e in self.log[place:]) and self.state(end, self.log)[1] == rule.key:
                    self.log.insert(place, Entry(at, state=self.initial))
            place = next(n for n, e in enumerate(self.log) if e.fact is f) + 1
        live = [(self.rules[int(one[0][1:])].action, one[1], one[2]) for one in fired if one[3]]
        effects = {effect for _, effect, _ in live}
        hard = {action.target_model for action, effect, _ in live if effect == "switch_model"}
        routes = [set(action.routes) for action, effect, _ in live if effect == "restrict_routes"]
        allowed = set.intersection(*routes) if routes else hard
        broken = len(hard) > 1 or (bool(routes) and (not allowed or bool(hard - allowed)))
        decision = "block" if broken else next(word for word in ORDER if word in effects or word == "allow")
        about = [{"allow", *(effect for _, effect, which in live if i in which)} for i in range(len(facts))]
        ruled = [decision if decision == "block" else next(word for word in ORDER if word in one) for one in about]
        own = [i for i, f in enumerate(facts) if gate == "reply" and f.source == "assistant_tool_call"]
        calls = [ruled[i] for i in own]
        partly = decision == "deny_call" and "allow" in calls and "require_approval" not in calls
        through = (decision == "allow" or partly) and not (gate == "reply" and (hard or routes))
        self.log[len(begin) :] = [e for e in self.log[len(begin) :] if through or e.fact or e.held or e.rule]
        for i, e in enumerate([e for e in self.log[len(begin) :] if e.fact is not None]):
            e.held, e.refused = not through, i in refused or (gate == "reply" and not through)
        for e in self.log if gate == "reply" and through else []:
            e.word = e.word and e.void
        state, self.event = self.state(end, self.log)[0], end[1]
        self.turn += through and gate == "reply"
        if through and gate == "request":
            self.phase = RESULT if [f.phase for f in facts if f.source != "inferred"][-1:] == [RESULT] else "planning"
        return fired, decision, calls, state
