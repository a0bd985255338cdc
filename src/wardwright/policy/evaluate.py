"""Facts against rules: what each gate's facts mean under one plan, as findings and as changes to registers.

Invariants (tests cite the numbers):
 E1. Equal inputs, equal findings and changes. Nothing here reads a clock, a random source or the outside.
 E2. Every finding names a rule.
 E3. A rule that raises is a finding with effect `block`, by name; the others are judged as if it had not been there.
 E4. Counting does not depend on state: a state-scoped rule counts everything it matches and acts only in its states.
 E5. A repeated fact is judged again and counted never. It can start a sequence or enter a state anew: what it says is being read now.
 E6. A sequence starts after the event that started it has been judged, and never with a call that was refused. Only what took place
     ends one (or a state), and never by a refused request or reply; a call does not free the calls beside it.
 E7. Transitions of a fact take effect for the next fact, also when the fact was refused; of several for one machine the highest
     priority wins, then the first declared.
 E8. A rule in observe mode finds and counts, and changes nothing else.
 E9. Work per fact depends on the rules that can match it, not on how much the scope has seen.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any, Final, TypeAlias, cast

import orjson

from wardwright.catalog import compile_glob, fold
from wardwright.facts import ToolFact, text_digest, tool_context
from wardwright.history import EMPTY_SCOPE, Observed, RegisterKey, RegisterValue, ScopeState, scope_key
from wardwright.history.observer import kept_name
from wardwright.history.requests import EVERY_TOOL
from wardwright.policy.compile import (
    AFTER,
    ASKED_FOR,
    CALLS,
    HISTORY,
    LOOP,
    PROVENANCE,
    ROUTING,
    SCHEMA,
    SELECT,
    THEN,
    UNTIL,
    Candidates,
    ModelPlan,
    Op,
    RuleSet,
    TextSet,
    tables_of,
)
from wardwright.policy.intent import needed, told
from wardwright.policy.matching import UNREADABLE, arguments_of, fits
from wardwright.policy.provenance import Shelves, carry, hear, refusals, see, wanted_effects
from wardwright.policy.rules import (
    Action,
    ActionName,
    AllowedTools,
    ArgumentProvenance,
    ArgumentSchema,
    Budget,
    Finding,
    HistoryThreshold,
    Intent,
    LoopThreshold,
    Machine,
    Matcher,
    Rule,
    StructuredOutput,
    ToolSequence,
)
from wardwright.policy.states import Holding, enter, holding, successor
from wardwright.policy.values import argument_leaves
from wardwright.policy.windows import Position, count, push, reached, within, without_last
from wardwright.wire.schema import check_text
from wardwright.wire.turn import CallItem, Gate, ResultItem, TextItem, Turn, Usage

MAX_KEYS: Final = 256
"""Different keys a loop counts per scope. The rest share one counter: overflow errs towards denying."""
MAX_ARGUMENT_KEYS: Final = 1024
"""The same for a loop that tells calls apart by their arguments and has no window to forget them by."""
BUCKETS: Final = 8
"""A budget's window is kept in this many parts; it forgets late rather than early."""
RESERVATION_MS: Final = 600_000
"""How long a request may hold what it set aside without a reply."""
MAX_RESERVATIONS: Final = 64
MAX_ROW: Final = 64
"""Messages of one role in a row that are read again together with a new one."""
HEARD: Final = -2
"""In place of a fact: changes that hold once a reply to the user's words is released."""
CROWD: Final = "*"
MAX_TRIPPED: Final = 7
"""Other thresholds over one register that are remembered as crossed."""

ONCE: Final[frozenset[ActionName]] = frozenset({"alert_async", "annotate"})
"""Actions taken once per crossing of a threshold; and for new text only."""
IDLE: Final[frozenset[ActionName]] = frozenset({*ONCE, "transition"})
"""Actions that constrain nothing. All others are taken while a machine holds a state that the plan does not know."""
REFUSING: Final[frozenset[str]] = frozenset({"block", "deny_call", "require_approval"})
HAPPENED: Final[frozenset[str]] = frozenset({"assistant_tool_call", "tool_result", "provider_event"})
"""Events that can end a sequence or a state unless `source` names others."""
MADE_UP: Final[frozenset[str]] = frozenset({"forged", "altered", "result_for_denied_call"})
UNSEEN: Final[re.Pattern[str]] = re.compile(
    "[\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164"
    "\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufff8\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
"""Characters that Unicode calls default-ignorable: between the letters of a word they are not seen."""
TRIPPED: Final = "!"
OVERFLOW: Final = "*"
META: Final = "@"
BOUND: Final[RegisterKey] = ("bind", "")
NOTHING: Final[frozenset[str]] = frozenset()


class ScopeRun:
    """One scope while a gate is judged: the loaded state under the changes so far."""

    __slots__ = ("changes", "event", "head", "key", "ledger", "registers", "turn", "version")

    def __init__(self, key: str, state: ScopeState) -> None:
        self.key = key
        self.version, head, self.registers, self.ledger = state
        self.head = head
        self.turn = head.turn
        self.event = head.event
        self.changes: dict[RegisterKey, RegisterValue | None] = {}

    def get(self, key: RegisterKey) -> RegisterValue | None:
        changes = self.changes
        if changes and key in changes:
            return changes[key]
        return self.registers.get(key)

    def put(self, key: RegisterKey, value: RegisterValue | None) -> None:
        self.changes[key] = value


NONE_REFUSED: Final[frozenset[int]] = frozenset()


class Seldom:
    """What most gates never need: it is as it stands here until a run needs one of its own."""

    asked: dict[tuple[str, ...], int] | None = None
    """How often an approval of the same was asked for."""
    clashes: list[tuple[str, str]] | None = None
    """Rules that would move one machine to different states."""
    counted: set[tuple[RegisterKey, int]] | None = None
    """Registers that have been counted up, each with the fact it was for."""
    history_hits: dict[str, list[int]] | None = None
    indexed: Shelves | None = None
    offsets: list[int] | None = None
    """Events of this gate before its first fact, and up to each fact."""
    shown: dict[str, Any] | None = None
    started: dict[RegisterKey, list[int]] | None = None
    """Sequences and states begun by calls of a reply: what came before does not end them."""
    text_hits: tuple[str, ...] = ()


class Run(Seldom):
    """One gate being judged. Made by `gateway.govern`, read by `arbitrate`, thrown away."""

    __slots__ = (
        "active",
        "attached",
        "bound",
        "conditional",
        "considered",
        "ending",
        "endings",
        "events",
        "facts",
        "findings",
        "first_word",
        "gate",
        "issued",
        "moves",
        "now",
        "observed",
        "plan",
        "refused",
        "scopes",
        "secret",
        "session",
        "settling",
        "touched",
        "turn",
        "words",
    )

    active: tuple[RuleSet, ...]
    """The rules that are judged: the plan's own, and of every bundle that is attached."""
    attached: tuple[str, ...]
    """The names of the bundles."""
    bound: bool
    """Request: a reply has bound its routes. Nothing binds or frees them here."""
    facts: tuple[ToolFact, ...]
    """The current events, then the declared tools."""
    ending: list[ToolSequence]
    """What the fact being judged ends …"""
    settling: list[ToolSequence | Budget]
    """… and what it starts or uses, unless it is refused."""
    endings: list[tuple[int, ToolSequence]] | None
    """What calls of a reply end once the reply is over: a call does not free the calls beside it."""
    conditional: list[tuple[int, ScopeRun, RegisterKey, RegisterValue | None, RegisterValue | None]]
    """Changes that hold only if their call passes: (fact, scope, register, value before, value put)."""
    refused: set[int] | frozenset[int]
    """Facts that some rule refuses."""
    touched: frozenset[str]
    """Machines that have left their initial state."""
    words: int
    """Number of the user's last word that counts here …"""
    issued: int
    """… the last number given to any, so that what begins now is ended by none that was said before …"""
    first_word: int
    """… and of the first word that is new here, or was in the request that a reply answers."""
    events: int
    """How many this gate has."""

    def __init__(
        self,
        plan: ModelPlan,
        loaded: Mapping[str, ScopeState],
        secret: bytes,
        turn: Turn,
        observed: Observed,
        now: int,
        key: str,
    ) -> None:
        """`loaded`: what the scopes are, by their keys; `key`: the session's."""
        self.plan = plan
        self.turn = turn
        self.gate: Gate = turn.gate
        self.observed = observed
        self.now = now
        self.secret = secret
        self.session = session = ScopeRun(key, loaded.get(key, EMPTY_SCOPE))
        self.scopes: dict[str, ScopeRun] = {"session_id": session}
        if plan.wider:
            for kind in plan.wider:
                key = scope_key(kind, turn.caller)
                self.scopes[kind] = ScopeRun(key, loaded.get(key, EMPTY_SCOPE))
        self.findings: list[Finding] = []
        self.active = plan.alone
        self.attached = ()
        self.moves: list[tuple[int, int, Rule, int]] = []
        self.ending = []
        self.settling = []
        self.conditional = []
        self.endings = None
        self.touched = NOTHING
        self.refused = NONE_REFUSED
        if plan.holders:
            for machine_id, scope, register in plan.holders:
                if self.scopes[scope].registers.get(register) is not None:
                    self.touched |= {machine_id}
        head = session.head
        self.words = head.user_turns
        self.issued = spoken = head.spoken
        if observed.answers:
            record = observed.answers[-1]
            self.first_word = record.first_word
            if record.words > self.words:
                self.words = record.words
        else:
            self.first_word = spoken + 1
        facts = observed.facts
        self.considered: list[tuple[str, ...]] = [()] * len(facts)
        event = session.event
        offset = 1 if observed.surface_changed else 0
        for fact in facts:
            if not fact.repeat:
                offset += 1
                fact.ordinal = event + offset
        self.events = offset
        if self.gate == "request":
            self.bound = session.registers.get(BOUND) is not None
            self.facts = tuple(facts) + (_surface(observed) if observed.changed else observed.surface.facts)
        else:
            self.bound = False
            self.facts = tuple(facts)
            for name in observed.bundles:
                if name in plan.bundles:
                    self.attached += (name,)
                    self.active += (plan.bundles[name],)

    # where we are

    def at(self, scope: ScopeRun, index: int) -> Position:
        """Position of a fact in a scope; a negative index is the end of the gate."""
        return Position(scope.turn, scope.event + self.counted_up_to(index), self.now)

    def counted_up_to(self, index: int) -> int:
        """Events of this gate up to a fact; a negative index is the end of the gate."""
        facts = self.observed.facts
        if not 0 <= index < len(facts):
            return self.events
        if self.offsets is None:
            first = 1 if self.observed.surface_changed else 0
            self.offsets = list(accumulate([not fact.repeat for fact in facts], initial=first))
        return self.offsets[index + 1]

    def state(self, machine_id: str, index: int) -> str:
        if machine_id not in self.touched:
            return self.plan.initial[machine_id]
        machine = self.plan.machines[machine_id]
        scope = self.scopes[machine.scope]
        value = scope.get((f"state:{machine_id}", ""))
        if value is None:
            self.touched -= {machine_id}
            return machine.initial_state
        return self.holding(machine, scope, value, index).state

    def holding(self, machine: Machine, scope: ScopeRun, value: RegisterValue | None, index: int) -> Holding:
        return holding(machine, value, self.at(scope, index), self.words, self.session.key)

    def unknown(self, machine_id: str, state: str) -> bool:
        """Whether a machine holds a state that this plan does not have: another plan knew why, so whatever constrains acts."""
        return state not in self.plan.machines[machine_id].states

    def first(self, key: RegisterKey, index: int = -1) -> bool:
        """Whether this is the first time at this gate that a register is counted for a fact: rules that count the same share one."""
        done = (key, index)
        if self.counted is None:
            self.counted = {done}
            return True
        if done in self.counted:
            return False
        self.counted.add(done)
        return True

    def shelves(self) -> Shelves:
        """The session's index of values, opened once per gate."""
        if self.indexed is None:
            self.indexed = Shelves(self.session, self.secret)
        return self.indexed

    def context(self) -> dict[str, Any]:
        """The gate's `tool_context`, made once however many findings show it."""
        if self.shown is None:
            self.shown = tool_context(self.facts, self.observed.phase)
        return self.shown

    # findings

    def act(
        self,
        rule: Rule,
        index: int,
        evidence: Mapping[str, Any] | None = None,
        effect: ActionName | None = None,
        bound: bool = False,
    ) -> bool:
        """One finding, if the rule's states hold and no exception lifts it. Whether it has effect."""
        if rule.state_scope and not bound:
            state = self.state(rule.machine, index)
            if state not in rule.state_scope and not (
                (rule.action.name not in IDLE or rule.action.bundle) and self.unknown(rule.machine, state)
            ):
                return False
        action = rule.action
        name: str = effect or action.name
        call_id = ""
        key = ""
        fact: ToolFact | None = None
        if 0 <= index < len(self.facts):
            fact = self.facts[index]
            if self.gate != "request":
                call_id = fact.tool_call_id
                if name == "deny_call" and fact.source == "provider_event":
                    name = "block"  # it already ran: only the whole reply can be refused
        lifted = ""
        if rule.exceptions:
            lifted = self.exempt(rule, fact)
        if name == "require_approval":
            key = self.approval_key(rule, fact)
            if not lifted and key in self.turn.approvals:
                lifted = "approval"
        enforced = rule.mode == "enforce"
        self.findings.append(
            Finding(
                rule.id,
                rule.kind,
                action,
                name,
                rule.message,
                rule.priority,
                rule.order,
                () if index < 0 else (index,),
                call_id,
                evidence or {},
                enforced,
                lifted,
                "",
                key,
                rule.bundle,
            )
        )
        if not enforced or lifted == "exception":
            return False
        if action.transition_to:
            self.moves.append((-rule.priority, rule.order, rule, index))
        if action.bundle and action.bundle not in self.attached:
            self.attached += (action.bundle,)
        if lifted:
            return False
        if name in REFUSING and index >= 0:
            self.refuse(index)
        return True

    def refuse(self, index: int) -> None:
        if isinstance(self.refused, set):
            self.refused.add(index)
        else:
            self.refused = {index}

    def fail(self, rule: Rule, index: int, error: Exception) -> None:
        """E3: a rule that raised."""
        call_id = ""
        if self.gate != "request" and 0 <= index < len(self.observed.facts):
            call_id = self.observed.facts[index].tool_call_id
        self.findings.append(
            Finding(
                rule.id,
                rule.kind,
                rule.action,
                "block",
                f"Rule '{rule.id}' failed, so nothing passes. Ask the operator to look at it.",
                rule.priority,
                rule.order,
                () if index < 0 else (index,),
                call_id,
                {},
                rule.mode == "enforce",
                "",
                f"{type(error).__name__}: {error}",
                "",
                rule.bundle,
            )
        )
        if rule.mode == "enforce" and index >= 0:
            self.refuse(index)

    def exempt(self, rule: Rule, fact: ToolFact | None) -> str:
        caller = self.turn.caller
        for exemption in rule.exceptions:
            if self.now >= exemption.expires_at_ms:
                continue
            if exemption.tool is not None and (fact is None or not fits(exemption.tool, fact, False, inner=True)):
                continue
            if all(getattr(caller, name) == value for name, value in exemption.caller.items()):
                return "exception"
        return ""

    def approval_key(self, rule: Rule, fact: ToolFact | None) -> str:
        """What an approval is bound to: rule, session, tool, definition, arguments and plan; without a fact, all the turn says.
        Of several equal calls in one reply each needs its own."""
        parts = [rule.id, rule.key, self.session.key, self.plan.plan_hash]
        if fact is None:
            parts.append(self.content().content_digest)
        else:
            parts.extend((fact.namespace, fact.name, fact.arguments_digest, fact.result_digest, fact.definition_hash))
            if self.asked is None:
                self.asked = {}
            number = self.asked[tuple(parts)] = self.asked.get(tuple(parts), 0) + 1
            if number > 1:
                parts.append(str(number))
        return hashlib.blake2b("\x1f".join(parts).encode(), key=self.secret, digest_size=16).hexdigest()

    def content(self) -> Observed:
        """What was observed, its calls under the ids the caller sees: a reply that was held comes back with those."""
        observed, turn = self.observed, self.observed.turn
        if self.gate == "request" or turn is None:
            return observed
        items = list(turn.items)
        for fact in observed.facts:
            item = items[fact.item] if 0 <= fact.item < len(items) else None
            if isinstance(item, CallItem):
                items[fact.item] = CallItem(fact.tool_call_id, item.name, item.arguments)
        return observed.with_items(turn, items)

    def spoken_since(self, scope: ScopeRun, value: RegisterValue) -> bool:
        """Whether the user has spoken since a sequence began, in the session that began it."""
        return cast("int", value[3]) < self.words and (scope is self.session or value[4] == self.session.key)

    # settling

    def settle(self, index: int) -> None:
        """After a fact was judged: what it ends, its transitions, then what it starts if it was not refused (E6, E7)."""
        passed = index not in self.refused
        if self.ending:
            ending, self.ending = self.ending, []
            for rule in ending if passed else ():
                if self.gate == "reply":
                    if self.endings is None:
                        self.endings = []
                    self.endings.append((index, rule))
                else:
                    self.end(rule, index)
        if self.moves:
            self.move()
        if self.settling:
            settling, self.settling = self.settling, []
            if not passed:
                return
            now, session, offset = self.now, self.session, self.counted_up_to(index)
            deferred = self.gate == "reply" and index < len(self.observed.facts)
            for rule in settling:
                scope = self.scopes[rule.scope]
                if isinstance(rule, Budget):
                    key: RegisterKey = (rule.key, "calls")
                    if not self.first(key, index):
                        continue
                    value = spend(scope.get(key), rule, 1, now)
                else:
                    key = (rule.key, "")
                    value = (scope.turn, scope.event + offset, now, self.issued)
                    if scope is not session:
                        value = (*value, session.key)  # the user of another session does not end it
                    if deferred:
                        self.start(key, index)
                if deferred:
                    self.conditional.append((index, scope, key, scope.get(key), value))
                scope.changes[key] = value

    def end(self, rule: ToolSequence, index: int) -> None:
        """Ends the sequence, or the state that this very rule entered; on condition that the gate lets the fact through."""
        machine = self.plan.machines[rule.machine]
        key: RegisterKey = (rule.key, "") if rule.then is not None else (f"state:{machine.id}", "")
        if self.begun_since(key, index):
            return
        if rule.then is not None:
            self.clear(rule, index, index)
            return
        scope = self.scopes[machine.scope]
        value = scope.get(key)
        if value is None:
            return
        now = self.holding(machine, scope, value, index)
        if now.by == rule.key:
            self.enter(machine.id, successor(machine, now.state), index, None, condition=index)

    def start(self, key: RegisterKey, index: int) -> None:
        """In a reply: notes that a call has begun it."""
        if self.started is None:
            self.started = {}
        self.started.setdefault(key, []).append(index)

    def begun_since(self, key: RegisterKey, index: int) -> bool:
        """In a reply: whether a later call has begun it anew. A refused one has moved states, but begun no sequence."""
        if self.started is None:
            return False
        moved = key[0].startswith("state:")
        # The last one decides nearly always; they stand in the order of the calls, once per pass over the facts.
        return any(one >= index and (moved or one not in self.refused) for one in reversed(self.started.get(key, ())))

    def clear(self, rule: ToolSequence, index: int, condition: int | None, word: int | None = None) -> None:
        """Ends a sequence; but none that began after the word of the user that does it."""
        scope = self.scopes[rule.scope]
        key: RegisterKey = (rule.key, "")
        value = scope.get(key)
        if value is None or (condition is not None and self.begun_since(key, index)):
            return
        if word is not None and cast("int", value[3]) >= word:
            return
        if condition is not None:
            self.conditional.append((condition, scope, key, value, None))
        scope.put(key, None)

    def move(self) -> None:
        taken: dict[str, tuple[Rule, int]] = {}
        for _, _, rule, index in sorted(self.moves, key=lambda move: move[:2]):
            first = taken.setdefault(rule.machine, (rule, index))[0]
            if first.action.transition_to != rule.action.transition_to:
                if self.clashes is None:
                    self.clashes = []
                self.clashes.append((first.id, rule.id))
        self.moves.clear()
        for machine_id, (rule, index) in taken.items():
            self.enter(machine_id, rule.action.transition_to, index, rule)

    def enter(
        self,
        machine_id: str,
        state: str,
        index: int,
        rule: Rule | None,
        since_ms: int | None = None,
        condition: int | None = None,
        word: int | None = None,
    ) -> None:
        """Enters a state; on condition that this fact (or HEARD) is let through, if one is given."""
        machine = self.plan.machines[machine_id]
        scope = self.scopes[machine.scope]
        at = self.at(scope, index)
        if since_ms is not None:
            at = at._replace(ms=since_ms)
        key: RegisterKey = (f"state:{machine_id}", "")
        window, until = None, None
        if isinstance(rule, ToolSequence) and rule.then is None:
            window, until = rule.window, rule.until
        self.touched |= {machine_id}
        by = "" if rule is None else rule.key
        clean = until is not None and until.clean_turn
        begun = self.issued if until is not None and until.user_turn else None
        session = "" if begun is None or scope is self.session else self.session.key
        before, value = scope.get(key), enter(machine, state, at, window, by, clean, begun, session)
        if condition is not None:
            self.conditional.append((condition, scope, key, before, value))
        elif self.gate == "reply":
            self.start(key, index)
        scope.put(key, value)
        for ruleset in (self.plan.rules, *self.plan.bundles.values()):
            for waiting in ruleset.until_states.get((machine_id, state), ()):
                self.clear(waiting, index, condition, word)

    def hear(self, index: int) -> None:
        """A new word of the user, before the fact at `index`."""
        self.words = self.issued = self.issued + 1
        if self.touched:
            self.pass_time(index)

    def pass_time(self, index: int) -> None:
        """Writes down the successors of states that have run out, or that ended because the user spoke."""
        for machine_id, machine in self.plan.machines.items():
            if machine_id not in self.touched:
                continue
            scope = self.scopes[machine.scope]
            value = scope.get((f"state:{machine_id}", ""))
            if value is None:
                self.touched -= {machine_id}
                continue
            now = self.holding(machine, scope, value, index)
            if now.lapsed:
                self.enter(machine_id, now.state, index, None, now.since.ms)
            elif now.heard:
                word = max(cast("int", value[9]) + 1, self.first_word)
                self.enter(machine_id, now.state, index, None, condition=HEARD, word=word)


def evaluate(run: Run) -> None:
    """Judges everything at this gate. Findings and changes are left on `run`."""
    watch = run.plan.watch
    if watch is not None and run.gate != "reply":
        _index(run)
    if run.touched:
        run.pass_time(0 if run.observed.facts else -1)
    judged = run.active
    _judge(run, judged, True)
    if run.attached:
        bundles = run.plan.bundles
        fresh = tuple([bundles[name] for name in run.attached if bundles[name] not in judged])
        if fresh:
            run.active += fresh
            _judge(run, fresh, False)
    if run.endings is not None:
        for index, rule in run.endings:
            if index not in run.refused:
                run.end(rule, index)
    if watch is not None and run.gate == "reply":
        for index, fact in enumerate(run.facts):
            if fact.source == "assistant_tool_call" and not fact.repeat and index not in run.refused:
                carry(run.shelves(), watch, fact)


def _index(run: Run) -> None:
    """What is seen for the first time is indexed in the order in which it stands, before anything is judged by it."""
    watch, observed = run.plan.watch, run.observed
    if watch is None:
        return
    shelves = run.shelves()
    items = run.turn.items
    results = {
        fact.item: fact
        for fact in observed.facts
        if fact.content is not None
        and not fact.repeat
        and (fact.source == "tool_result" or fact.phase == "result_interpretation")
    }
    first = observed.words_from if run.gate == "request" and observed.user_turns else len(items)
    for place in sorted({*results, *range(first, len(items))}):
        if place in results:
            see(shelves, watch, results[place])
            continue
        item = items[place]
        if isinstance(item, TextItem) and item.role == "user" and item.text:
            # As the observer told words of the user from old ones.
            name = f"u:{text_digest(observed.key, item.text)}"
            entry = observed.ledger.get(name) or run.session.ledger.get(name)
            if entry is not None and entry.turn >= run.session.turn:
                hear(shelves, watch, item.text)


def _surface(observed: Observed) -> tuple[ToolFact, ...]:
    """The declared tools, those that have changed with their mark."""
    changed = {fact.raw_name: fact for fact in observed.changed}
    return tuple([changed.get(fact.raw_name, fact) for fact in observed.surface.facts])


def unwind(run: Run, released: bool) -> None:
    """E6: what a fact changed on condition is taken back when it was refused, or nothing of its gate was let through. What a
    word of the user ended at a request has ended once a reply to it is released; until then a retry finds what it found."""
    asked = run.gate == "request"
    for index, scope, key, before, put in reversed(run.conditional):
        # What something else has changed since stays.
        if (not released or index in run.refused or (asked and index == HEARD)) and scope.get(key) == put:
            scope.put(key, before)


def answered(run: Run) -> None:
    """A released reply has answered the user's words: what they ended in wider scopes is written down for other sessions."""
    if run.words == run.session.head.user_turns or len(run.scopes) == 1:
        return
    for rules in (run.plan.rules, *run.plan.bundles.values()):
        for rule in rules.rules:
            if isinstance(rule, ToolSequence) and rule.until is not None and rule.until.user_turn:
                scope = run.scopes[rule.scope]
                value = None if scope is run.session else scope.get((rule.key, ""))
                if value is not None and run.spoken_since(scope, value):
                    scope.put((rule.key, ""), None)


def _judge(run: Run, rulesets: tuple[RuleSet, ...], first: bool) -> None:
    """`first`: the plan's own rules are among them."""
    plan, gate, observed = run.plan, run.gate, run.observed
    allowed: tuple[AllowedTools, ...] = ()
    withdrawn: Withdrawn | None = None
    if gate == "request":
        if first and run.bound:
            _bound(run, plan.rules)
        for rules in rulesets:
            if rules.request_texts:
                _texts(run, rules)
            if observed.surface.quiet is not rules or observed.changed:
                _declared(run, rules)
            for rule in rules.sticky:
                if "request" in rule.gates:
                    _guarded(run, rule, -1, _tripped)
    elif gate == "reply":
        for rules in rulesets:
            if rules.reply_texts:
                _reply_texts(run, rules)
            allowed += rules.allowed
        if first and observed.stripped:
            withdrawn = Withdrawn(plan, observed)
    if run.moves:
        run.move()
    words = list(observed.user_turns[::-1]) if first and observed.user_turns else []
    if observed.facts:
        considered = run.considered
        tables = plan.tables[gate] if rulesets is plan.alone else tables_of(rulesets, gate)
        for index, fact in enumerate(observed.facts):
            while words and words[-1] <= index:
                words.pop()
                run.hear(index)
            if run.touched:
                run.pass_time(index)
            for rules, known in tables:
                found = known.get(fact.kind)
                if found is None:
                    found = rules.candidates(gate, fact)
                if not found.ops:
                    continue
                considered[index] += found.ids
                for op in found.ops:
                    rule = op.rule
                    try:
                        if op.states:
                            state = run.state(rule.machine, index)
                            if state not in op.states and not run.unknown(rule.machine, state):
                                continue
                        if op.test is None or op.test(fact):
                            role = op.role
                            if role == SELECT:
                                run.act(rule, index)
                            elif role == AFTER and rule.then is not None:
                                run.settling.append(rule)
                            else:
                                _ROLES[role](run, op, index, fact)
                    except Exception as error:  # noqa: BLE001
                        # INVARIANT: E3, a rule that raises blocks, by name.
                        run.fail(rule, index, error)
            if allowed and fact.phase != "result_interpretation":
                for rule in allowed:
                    _guarded(run, rule, index, _allowed_call)
            if withdrawn is not None and fact.source in HAPPENED:
                rule_id = withdrawn.rule(fact)
                if rule_id is not None:
                    _withdrawn(run, rule_id, index)
            if run.settling or run.moves or run.ending:
                run.settle(index)
    while words:
        words.pop()
        run.hear(-1)
    if run.touched:
        run.pass_time(-1)
    for rules in rulesets:
        if rules.apart:
            _judge_whole(run, rules)
    if run.moves:
        run.move()


def _judge_whole(run: Run, rules: RuleSet) -> None:
    """The rules about a gate as a whole, after its facts."""
    gate = run.gate
    if gate == "request":
        for rule in rules.allowed:
            _guarded(run, rule, -1, _allowed_surface)
    if gate != "result":
        for rule in rules.thresholds:
            _guarded(run, rule, -1, _threshold)
    for rule in rules.budgets:
        _guarded(run, rule, -1, _budget)
    if gate == "reply":
        for rule in rules.outputs:
            _guarded(run, rule, -1, _output)


def _guarded(run: Run, rule: Rule, index: int, judge: Any) -> None:
    try:
        judge(run, rule, index)
    except Exception as error:  # noqa: BLE001
        # INVARIANT: E3, a rule that raises blocks, by name.
        run.fail(rule, index, error)


# text


def _readable(items: Sequence[Any], start: int) -> list[tuple[str, str]]:
    """What there is to read from `start` on: (role, text). Parts of one message, and messages of one role in a row, are read on
    end as well, because that is how models read them: a word may be split between them."""
    texts: list[tuple[str, str]] = []
    row: list[str] = []
    role = ""
    first = start
    if start and type(items[start - 1]) is TextItem:
        first = _row_start(items, start)
    known = start - first  # items that have been read before: they only begin the row
    for item in items[first:] if first else items:
        kind = type(item)  # pyright: ignore[reportUnknownVariableType]
        if kind is TextItem:
            parts, said = item.parts, item.text
            text = "".join(parts) if parts else said
            if item.role != role:
                if row:
                    if _blank(text):
                        # It says nothing, so it stands between nothing.
                        if known:
                            known -= 1
                        else:
                            texts.append((item.role, said))
                        continue
                    if len(row) > 1:
                        texts.append((role, "".join(row)))
                role, row = item.role, [text]
            else:
                row.append(text)
            if known:
                known -= 1
                continue
            texts.append((role, said))
            if parts:
                texts.append((role, text))
            continue
        if row:
            if len(row) > 1:
                texts.append((role, "".join(row)))
            role, row = "", []
        if kind is ResultItem:
            texts.append(("tool", item.content))
            if item.parts:
                texts.append(("tool", "".join(item.parts)))
        elif kind is CallItem:
            said = item.arguments
            texts.append(("assistant", _decoded(said) if "\\" in said else said))
        else:
            texts.append(("tool", getattr(item, "content", "") or _decoded(getattr(item, "arguments", ""))))
    if len(row) > 1:
        texts.append((role, "".join(row)))
    return texts


def _row_start(items: Sequence[Any], start: int) -> int:
    """Where the messages of one role begin that run on over `start`; not without end."""
    first = said = start
    while said < len(items) and isinstance(items[said], TextItem) and _blank(items[said].text):
        said += 1
    if said < len(items) and isinstance(items[said], TextItem):
        role = items[said].role
        while first and start - first < MAX_ROW and isinstance(items[first - 1], TextItem):
            if items[first - 1].role != role and not _blank(items[first - 1].text):
                break
            first -= 1
    return first


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _decoded(arguments: str) -> str:
    """Arguments, and behind them what their escapes stand for, where they have some."""
    if "\\" not in arguments:
        return arguments
    try:
        waiting: list[Any] = [orjson.loads(arguments)]
    except (ValueError, RecursionError):
        return arguments
    texts = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            waiting.extend(reversed(cast("list[Any]", value)))
        elif isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            waiting.extend(one for pair in reversed(entries.items()) for one in reversed(pair))
    return "\n".join(texts)


def _as_read(text: str) -> str:
    """A text as it reads: compatibility forms made plain, characters that show nothing left out."""
    plain = unicodedata.normalize("NFKC", text)
    return UNSEEN.sub("", plain) if UNSEEN.search(plain) else plain


def _texts(run: Run, rules: RuleSet) -> None:
    """Text rules at the request: hits of the unchanged prefix are remembered, the rest is scanned."""
    head, observed = run.session.head, run.observed
    main = rules is run.plan.rules
    known = 0
    before: Sequence[str] = ()
    if observed.known:
        if main:
            if head.text_rules == rules.text_hash:
                known, before = observed.known, head.text_hits
        else:
            # A bundle remembers by itself what it has read, while it is attached to request after request.
            digest, *hits_before = run.session.get(("texts", rules.text_hash)) or ("",)
            if digest == head.prefix_digest:
                known, before = observed.known, cast("list[str]", hits_before)
    texts = _readable(run.turn.items, known)
    old = set(before) if before else NOTHING
    hits: list[str] = []
    for one in rules.request_texts:
        for rule in _search(run, one, texts):
            hits.append(rule.key)
            if rule.action.name in ONCE or rule.action.name == "transition":
                if not observed.retry:
                    _guarded(run, rule, -1, _plain)
            elif rule.key not in old:
                _guarded(run, rule, -1, _plain)
        if old:
            for rule in one.rules:
                if rule.key in old and rule.action.name not in ONCE and rule.action.name != "transition":
                    _guarded(run, rule, -1, _plain)
    kept = tuple(sorted(old.union(hits))) if hits or old else ()
    if main:
        if kept:
            run.text_hits = kept
    else:
        run.session.put(("texts", rules.text_hash), (observed.transcript_digest, *kept))


def _search(run: Run, one: TextSet, texts: Sequence[tuple[str, str]]) -> Sequence[Any]:
    """The rules of a set that occur in what they read: in a text as it is written, or as it reads."""
    roles = one.roles
    forms: list[str] = []
    plain = True
    try:
        for role, text in texts:
            if role in roles:
                forms.append(text)
                if not text.isascii():
                    plain = False
        if not plain:
            forms += [read for text in forms if not text.isascii() and (read := _as_read(text)) != text]
        found = one.patterns.search_all(forms)
    except Exception as error:  # noqa: BLE001
        # INVARIANT: E3, a search that fails blocks, naming every rule it was for.
        for rule in one.rules:
            run.fail(rule, -1, error)
        return ()
    return [one.rules[index] for index in sorted(found)] if found else ()


def _reply_texts(run: Run, rules: RuleSet) -> None:
    blocks = [item for item in run.turn.items if isinstance(item, TextItem)]
    texts = [("assistant", item.text) for item in blocks]
    if len(blocks) > 1 or (blocks and blocks[0].parts):
        # Blocks of one answer, and their parts, are read on end: a word may be split between them.
        texts.append(("assistant", "".join(["".join(item.parts) if item.parts else item.text for item in blocks])))
    for one in rules.reply_texts:
        for rule in _search(run, one, texts):
            _guarded(run, rule, -1, _plain)


def _plain(run: Run, rule: Rule, index: int) -> None:
    run.act(rule, index)


# declared tools and allow-lists


def _declared(run: Run, rules: RuleSet) -> None:
    observed = run.observed
    surface = observed.surface
    memo = surface.judged.get("ops")
    first = len(observed.facts)
    if observed.changed:
        pairs = [
            (first + number, fact, rules.candidates("request", fact)) for number, fact in enumerate(run.facts[first:])
        ]
    else:
        if memo is None or memo[0] is not rules:
            found = [(number, fact, rules.candidates("request", fact)) for number, fact in enumerate(surface.facts)]
            memo = (rules, [entry for entry in found if entry[2].ops])
            surface.judged["ops"] = memo
        known = cast("list[tuple[int, ToolFact, Candidates]]", memo[1])
        if not known:
            surface.quiet = rules
            return
        pairs = [(first + number, fact, candidates) for number, fact, candidates in known]
    for index, fact, candidates in pairs:
        for op in candidates.ops:
            try:
                if op.test is None or op.test(fact):
                    if op.role == SELECT:
                        run.act(op.rule, index)
                    elif observed.surface_changed and op.role in (AFTER, UNTIL):
                        _ROLES[op.role](run, op, index, fact)
            except Exception as error:  # noqa: BLE001
                # INVARIANT: E3, a rule that raises blocks, by name.
                run.fail(op.rule, index, error)
        if run.settling or run.moves or run.ending:
            run.settle(index)


def listed(rule: AllowedTools, fact: ToolFact) -> bool:
    """Whether an allow-list names this tool."""
    namespace, name = fold(fact.namespace), fold(fact.name)
    for tool in rule.allowed:
        if (
            (not tool.namespace or compile_glob(tool.namespace)(namespace))
            and compile_glob(tool.name)(name)
            and (not tool.risk_class or tool.risk_class == fact.risk_class)
        ):
            return True
    return False


def _unlisted(run: Run, rule: AllowedTools) -> list[ToolFact]:
    """Declared tools that the list does not name; memoised with the surface."""
    judged = run.observed.surface.judged
    memo = judged.get(rule.id)
    if memo is None or memo[0] is not rule:
        memo = (rule, [fact for fact in run.observed.surface.facts if not listed(rule, fact)])
        judged[rule.id] = memo
    return memo[1]


def phase_covers(phases: tuple[str, ...], phase: str) -> bool:
    return phase in phases or phase == "unknown" or (phase == "argument_repair" and "planning" in phases)


def _evidence(run: Run, rule: AllowedTools, blocked: Sequence[ToolFact]) -> dict[str, Any]:
    return {
        "allowed_tools": [
            {"namespace": tool.namespace, "name": tool.name, "risk_class": tool.risk_class} for tool in rule.allowed
        ],
        "blocked_tools": [
            {"namespace": fact.namespace, "name": fact.name, "raw_name": fact.raw_name} for fact in blocked
        ],
        "allowed_tool_phase": list(rule.phases),
        "state_scope": list(rule.state_scope),
        "tool_context": run.context(),
    }


def _allowed_surface(run: Run, rule: AllowedTools, _index: int) -> None:
    observed = run.observed
    phase = observed.phase
    repair = bool(observed.repairing) and "argument_repair" in rule.phases
    if not phase_covers(rule.phases, phase) and not repair:
        return
    blocked = list(_unlisted(run, rule))
    if rule.surface == "block":
        blocked.extend(
            fact
            for fact in observed.facts
            if fact.source != "inferred"
            and (fact.source == "tool_choice" or phase_covers(rule.phases, fact.phase))
            and not listed(rule, fact)
        )
    if rule.exceptions:
        blocked = [fact for fact in blocked if not run.exempt(rule, fact)]
    if rule.surface == "block":
        if blocked:
            run.act(rule, -1, _evidence(run, rule, blocked), "block")
    elif rule.surface == "filter":
        withheld = [name for name in sorted(run.turn.server_tools) if not _server_listed(run, rule, name)]
        if blocked or withheld:
            evidence = _evidence(run, rule, blocked)
            evidence["withheld_server_tools"] = withheld
            run.act(rule, -1, evidence, "strip_tools")


def _server_listed(run: Run, rule: AllowedTools, raw_name: str) -> bool:
    identity = run.plan.catalog.resolve(raw_name)
    fact = ToolFact(identity.namespace, identity.name, raw_name, identity.risk_class, "planning", "declared_tool")
    return listed(rule, fact)


def _allowed_call(run: Run, rule: AllowedTools, index: int) -> None:
    """A list governs a call by the call's own phase, and by the phase of the request it answers."""
    fact = run.observed.facts[index]
    if not phase_covers(rule.phases, fact.phase) and not any(
        phase_covers(rule.phases, one) for one in run.observed.phases
    ):
        return
    if not listed(rule, fact):
        run.act(rule, index, _evidence(run, rule, [fact]), "block" if rule.surface == "block" else "deny_call")


class Withdrawn:
    """The tools that were taken from the request a reply answers, known under every name that means them."""

    def __init__(self, plan: ModelPlan, observed: Observed) -> None:
        surface = observed.surface
        self._catalog = plan.catalog
        self._every = observed.stripped.get(EVERY_TOOL)
        self._names = {fold(name): rule_id for name, rule_id in observed.stripped.items()}
        self._tools: dict[tuple[str, str], str] = {}
        self._hosted: dict[str, str] = {}
        """Namespaces that the provider itself serves."""
        for name, rule_id in observed.stripped.items():
            tool = surface.by_name.get(name)
            if tool is None or tool.hosted is None:
                identity = plan.catalog.resolve(name)
                self._tools[fold(identity.namespace), fold(identity.name)] = rule_id
            else:
                self._hosted[plan.catalog.resolve_hosted(tool.hosted, tool.server, tool.name).namespace] = rule_id
        for fact in surface.facts:
            if self._hosted and fact.raw_name not in observed.stripped:
                self._hosted.pop(fact.namespace, None)
        self._left = {kept for raw, kept in surface.kept.items() if raw not in observed.stripped}
        """What the provider was shown: another name of the same tool that stayed may be called."""

    def rule(self, fact: ToolFact) -> str | None:
        """The rule that took away what this call asks for."""
        if fact.source != "assistant_tool_call":
            return self._every or self._hosted.get(fact.namespace) if fact.source == "provider_event" else None
        found = self._every or self._names.get(fold(fact.raw_name))
        if found is None:
            found = self._tools.get((fold(fact.namespace), fold(fact.name)))
            if found is not None and kept_name(self._catalog.resolve(fact.raw_name).plain) in self._left:
                return None
        return found


def _withdrawn(run: Run, rule_id: str, index: int) -> None:
    """A call to a tool that was taken from the request: a model may know the name from elsewhere."""
    if any(finding.rule_id == rule_id and index in finding.facts for finding in run.findings):
        return
    found = [one.by_id[rule_id] for one in (run.plan.rules, *run.plan.bundles.values()) if rule_id in one.by_id]
    fact = run.observed.facts[index]
    finding = Finding(rule_id, "tool_selector", Action("strip_tools"), "deny_call", "", facts=(index,))
    if found:
        rule = found[0]
        finding.kind, finding.action, finding.message = rule.kind, rule.action, rule.message
        finding.priority, finding.order, finding.bundle = rule.priority, rule.order, rule.bundle
    if fact.source == "provider_event":
        finding.effect = "block"  # it already ran: only the whole reply can be refused
    finding.call_id = fact.tool_call_id
    finding.evidence = {"withdrawn": True}
    run.findings.append(finding)
    run.refuse(index)


# counting


def _loop(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: LoopThreshold = op.rule
    scope = run.scopes[rule.scope]
    window = rule.window
    equal, name = rule.equal, op.tool
    if equal == "tool+arguments":
        name = f"{name}\x1f{fact.arguments_digest}"
    elif equal != "tool":
        name = f"{name}\x1f{fact.arguments_digest}\x1f{fact.result_digest}"
    key: RegisterKey = (rule.key, name)
    changes = scope.changes
    value: Any = changes[key] if changes and key in changes else scope.registers.get(key)
    counts = not fact.repeat and (fact.source != "tool_choice" or bool(rule.tool.source))
    if value is None:
        meta: Any = scope.get((rule.key, META))
        limit = MAX_KEYS if equal == "tool" or window is not None else MAX_ARGUMENT_KEYS
        if meta is not None and meta[1] >= limit:
            meta = _sweep(run, rule, scope, meta, index)
        if meta is not None and meta[1] >= limit:
            key = (rule.key, OVERFLOW)
            value = scope.get(key)
        elif counts:
            head = scope.head
            since = head.plan_since_ms if head.plan_hash == run.plan.plan_hash else run.now
            scope.put((rule.key, META), (since, 1) if meta is None else (meta[0], meta[1] + 1, *meta[2:]))
    fresh = counts and (not rule.shared or run.first(key, index))
    if window is None:
        total = (0 if value is None else value[0]) + fresh
        if fresh:
            changes[key] = (total,)
        if total < rule.threshold:
            return
        earlier = total - counts >= rule.threshold
        at = run.at(scope, index)
    else:
        at = run.at(scope, index)
        old = without_last(value) if counts and not fresh and value is not None else value
        earlier = reached(old, window, rule.threshold, at)
        if fresh:
            value = push(value, window, rule.kept or rule.threshold, at)
            changes[key] = value
        if not reached(value, window, rule.threshold, at):
            return
        total = count(value, window, at)
    if rule.action.name in ONCE and earlier:
        return
    if op.acts:
        meta = scope.get((rule.key, META))
        evidence: dict[str, Any] = {
            "observed_count": total,
            "threshold": rule.threshold,
            "scope": rule.scope,
            "equal": equal,
            "counting_since_ms": None if meta is None else meta[0],
        }
        if key[1] == OVERFLOW:
            evidence["overflow"] = True
        run.act(rule, index, evidence)
    if counts and rule.action.name in ROUTING and not (rule.exceptions and _excepted(run, rule, fact)):
        flat = scope.get((rule.key, TRIPPED)) or ()
        others = [flat[one : one + 5] for one in range(0, len(flat), 5) if flat[one] != rule.threshold]
        kept = [scalar for one in others[-MAX_TRIPPED:] for scalar in one]
        scope.put((rule.key, TRIPPED), (*kept, rule.threshold, total, *at))


def _excepted(run: Run, rule: Rule, fact: ToolFact) -> bool:
    """Whether an exception by tool alone stands: then this count binds no later request, which has no tool to except."""
    return any(
        one.tool is not None
        and not one.caller
        and run.now < one.expires_at_ms
        and fits(one.tool, fact, False, inner=True)
        for one in rule.exceptions
    )


def _sweep(run: Run, rule: LoopThreshold, scope: ScopeRun, meta: RegisterValue, index: int) -> RegisterValue:
    """Forgets keys that no longer count for anything, when there are too many; seldom enough that its cost spreads thin."""
    at = run.at(scope, index)
    if rule.window is None or (len(meta) > 2 and at.event - cast("int", meta[2]) < MAX_KEYS // 4):
        return meta
    gone = [
        key
        for key, value in scope.registers.items()
        if key[0] == rule.key
        and key[1] not in (META, TRIPPED, OVERFLOW)
        and key not in scope.changes
        and not count(value, rule.window, at)
    ]
    for key in gone:
        scope.put(key, None)
    since, keys = cast("tuple[int, int]", meta[:2])
    swept: RegisterValue = (since, keys - len(gone), at.event)
    scope.put((rule.key, META), swept)
    return swept


def bound_routes(session: ScopeRun) -> dict[str, tuple[Any, ...]]:
    """What replies have bound: rule id → effect, model, routes."""
    flat = cast("tuple[Any, ...]", session.get(BOUND) or ())
    bound: dict[str, tuple[Any, ...]] = {}
    at = 0
    while at < len(flat):
        rule_id, size = flat[at : at + 2]
        bound[rule_id] = flat[at + 2 : at + 2 + size]
        at += 2 + size
    return bound


def _bound(run: Run, rules: RuleSet) -> None:
    """Routes that replies asked for when it was too late to ask again."""
    evidence = {"bound_by": "previous reply"}
    for rule_id, (effect, model, *routes) in bound_routes(run.session).items():
        named = [one.by_id[rule_id] for one in (rules, *run.plan.bundles.values()) if rule_id in one.by_id]
        found = [rule for rule in named if rule.action.name in ROUTING]
        for rule in found:
            # A loop keeps choosing by itself, unless it counts something else since.
            if rule not in rules.sticky or run.scopes[rule.scope].get((rule.key, TRIPPED)) is None:
                run.act(rule, -1, evidence, bound=True)
        if not found:
            # Renamed or removed since: what it bound is bound all the same.
            action = Action(effect, tuple(routes), model)
            run.findings.append(Finding(rule_id, "tool_selector", action, effect, "", evidence=evidence))


def _tripped(run: Run, rule: LoopThreshold, index: int) -> None:
    """A loop that chose a route keeps choosing it while its count stands."""
    scope = run.scopes[rule.scope]
    flat = scope.get((rule.key, TRIPPED)) or ()
    total = 0
    for one in range(0, len(flat), 5):
        _, seen, *place = cast("tuple[int, ...]", flat[one : one + 5])
        if seen >= rule.threshold and within(rule.window, Position(*place), run.at(scope, -1)):
            total = max(total, seen)
    if total:
        run.act(rule, index, {"observed_count": total, "threshold": rule.threshold, "scope": rule.scope})


def _history(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: HistoryThreshold = op.rule
    key: RegisterKey = (rule.key, "")
    counts = not fact.repeat and (fact.source != "tool_choice" or bool(rule.tool.source))
    if counts and (not rule.shared or run.first(key, index)):
        scope = run.scopes[rule.scope]
        scope.put(key, push(scope.get(key), rule.window, rule.kept or rule.threshold, run.at(scope, index)))
    if run.history_hits is None:
        run.history_hits = {}
    run.history_hits.setdefault(rule.id, []).append(index)


def _threshold(run: Run, rule: HistoryThreshold, _index: int) -> None:
    if run.gate not in rule.gates:
        return
    scope = run.scopes[rule.scope]
    key: RegisterKey = (rule.key, "")
    at = run.at(scope, -1)
    if not reached(scope.get(key), rule.window, rule.threshold, at):
        return
    total = count(scope.get(key), rule.window, at)
    evidence = {"observed_count": total, "threshold": rule.threshold, "scope": rule.scope}
    hits = () if run.history_hits is None else run.history_hits.get(rule.id, ())
    if rule.action.name in ONCE:
        start = Position(scope.turn, scope.event, run.now)
        if not reached(scope.registers.get(key), rule.window, rule.threshold, start):
            run.act(rule, -1, evidence)
    elif rule.action.name == "deny_call":
        for hit in hits:
            run.act(rule, hit, evidence)
    else:
        run.act(rule, -1, evidence)


# sequences


def _after(run: Run, op: Op, index: int, _fact: ToolFact) -> None:
    rule: ToolSequence = op.rule
    if rule.then is None:
        if op.acts:
            run.act(rule, index)
    else:
        run.settling.append(rule)


def _until(run: Run, op: Op, _index: int, fact: ToolFact) -> None:
    rule: ToolSequence = op.rule
    wanted = None if rule.until is None else rule.until.tool
    if wanted is not None and _happened(run, rule, wanted, fact):
        run.ending.append(rule)


def _happened(run: Run, rule: ToolSequence, wanted: Matcher, fact: ToolFact) -> bool:
    """Whether an event can end something: it took place, as far as we know. What a caller made up or merely asks for frees nothing;
    what it brings with the history of a new session frees at most what that same history began."""
    if any(mark in MADE_UP and mark not in wanted.mark for mark in fact.marks):
        return False
    if fact.source not in HAPPENED:
        return bool(wanted.source)
    if run.gate != "request":
        return True
    if fact.source == "tool_result":
        name = f"c:{fact.tool_call_id}"
        entry = run.observed.ledger.get(name) or run.session.ledger.get(name)
        if entry.status == "passed" if entry is not None else fact.item < 0:
            return True
    # A call, or a provider's event, that a request shows for the first time was in no reply that passed here.
    return not run.session.turn and not _held_before(run, rule)


def _held_before(run: Run, rule: ToolSequence) -> bool:
    """Whether the sequence, or the machine's state, began before this request."""
    if rule.then is not None:
        scope = run.scopes[rule.scope]
        value = scope.registers.get((rule.key, ""))
        if value is None:
            return False
        start = Position(*cast("tuple[int, int, int]", value[:3]))
        return within(rule.window, start, Position(scope.turn, scope.event, run.now))
    machine = run.plan.machines[rule.machine]
    scope = run.scopes[machine.scope]
    value = scope.registers.get((f"state:{machine.id}", ""))
    before = holding(machine, value, Position(scope.turn, scope.event, run.now))
    return before.state != machine.initial_state


def _then(run: Run, op: Op, index: int, _fact: ToolFact) -> None:
    rule: ToolSequence = op.rule
    if not op.acts:
        return
    scope = run.scopes[rule.scope]
    value = scope.get((rule.key, ""))
    if value is None:
        return
    start = Position(*cast("tuple[int, int, int]", value[:3]))
    at = run.at(scope, index)
    if not within(rule.window, start, at):
        return
    until = rule.until
    if until is not None:
        if until.clean_turn and at.turn - start.turn > 1:
            return
        if until.user_turn and run.spoken_since(scope, value):
            return
    run.act(
        rule,
        index,
        {
            "after": {"turn": start.turn, "event": start.event, "ms": start.ms},
            "distance": {"turns": at.turn - start.turn, "events": at.event - start.event, "ms": at.ms - start.ms},
            "scope": rule.scope,
        },
    )


# arguments, budgets, output


def _schema(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: ArgumentSchema = op.rule
    schema: Any = rule.schema
    if schema is None:
        if fact.raw_name not in run.observed.surface.by_name:
            problems = [f"$: tool '{fact.raw_name}' was not declared"]
            run.act(rule, index, {"problems": problems})
            return
        schema = True if fact.schema is None else fact.schema
    problems = check_text(fact.arguments or "", schema)
    if not problems and fact.arguments and arguments_of(fact) is UNREADABLE:
        problems = ["$: a key is given twice"]
    if problems:
        fact.invalid_arguments = True
        run.act(rule, index, {"problems": problems})


def _provenance(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: ArgumentProvenance = op.rule
    watch = run.plan.watch
    arguments = arguments_of(fact)
    if watch is None:
        raise AssertionError("a plan with this rule watches")
    found = refusals(
        run.shelves(),
        watch,
        fact.raw_name,
        None if arguments is UNREADABLE else argument_leaves(arguments),
        rule.accepts,
        rule.own,
        rule.protected,
    )
    if found:
        shown = [
            {"argument": one.argument, "sink": one.sink, "classes": list(one.classes), "seen_in": one.origin}
            for one in found
        ]
        run.act(rule, index, {"problems": [one.sentence() for one in found], "arguments": shown})


def _asked_for(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: Intent = op.rule
    lexicon = rule.lexicon
    if not fact.effects:
        run.act(rule, index, {"problems": ["the catalog does not say what this tool does"], "effects": []})
        return
    wanted = wanted_effects(run.session, lexicon)
    missing = [effect for effect in needed(fact.effects, lexicon) if effect not in wanted]
    if missing:
        why = [told(effect, lexicon)["why"] for effect in missing]
        run.act(rule, index, {"problems": why, "effects": missing})


Number: TypeAlias = int | float
"""WHY NOT `float`: what is said to be one becomes one in the compiled build, and receipts would tell of 3.0 calls."""


def spent(value: RegisterValue | None, rule: Budget, now: int) -> Number:
    """What a budget has used in its window."""
    if value is None:
        return 0.0
    if rule.window is None or rule.window.ms is None:
        return cast("Number", value[0])
    bucket = now // max(1, rule.window.ms // BUCKETS)
    first = cast("int", value[0])
    numbers = cast("tuple[Number, ...]", value[1:])
    return sum(amount for offset, amount in enumerate(numbers) if bucket - (first + offset) <= BUCKETS)


def spend(value: RegisterValue | None, rule: Budget, amount: Number, now: int) -> RegisterValue:
    """The register after using `amount` more."""
    if rule.window is None or rule.window.ms is None:
        return (amount + (0 if value is None else cast("Number", value[0])),)
    bucket = now // max(1, rule.window.ms // BUCKETS)
    kept: dict[int, Number] = {}
    if value is not None:
        first = cast("int", value[0])
        # A clock that went back spends in the newest part: the register stays small and forgets nothing early.
        bucket = max(bucket, first + len(value) - 2)
        for offset, number in enumerate(cast("tuple[Number, ...]", value[1:])):
            if bucket - (first + offset) <= BUCKETS:
                kept[first + offset] = number
    kept[bucket] = kept.get(bucket, 0) + amount
    return (min(kept), *(kept.get(one, 0) for one in range(min(kept), bucket + 1)))


def _calls(run: Run, op: Op, index: int, fact: ToolFact) -> None:
    rule: Budget = op.rule
    if fact.repeat and run.gate != "reply":
        return
    scope = run.scopes[rule.scope]
    used = spent(scope.get((rule.key, "calls")), rule, run.now)
    if used + 1 > rule.limits["calls"] and op.acts and run.gate == "reply":
        run.act(rule, index, {"dimension": "calls", "used": used, "limit": rule.limits["calls"], "scope": rule.scope})
    run.settling.append(rule)


def reserved(value: RegisterValue | None, name: str, now: int) -> float:
    """What other requests have set aside and not settled."""
    total = 0.0
    flat = value or ()
    for index in range(0, len(flat), 3):
        if flat[index] != name and now - cast("int", flat[index + 2]) <= RESERVATION_MS:
            total += cast("float", flat[index + 1])
    return total


def reserve(value: RegisterValue | None, name: str, amount: float, now: int) -> RegisterValue | None:
    """The register with a request's reservation replaced by `amount`; 0 takes it back."""
    flat = value or ()
    kept: list[Any] = []
    crowd: tuple[Any, ...] = ()
    for index in range(0, len(flat), 3):
        if flat[index] != name and now - cast("int", flat[index + 2]) <= RESERVATION_MS:
            if flat[index] == CROWD:
                crowd = flat[index : index + 3]
            else:
                kept.extend(flat[index : index + 3])
    if amount and len(kept) < 3 * MAX_RESERVATIONS:
        kept.extend((name, amount, now))
    elif amount:
        # Too many at once: these are added up under a name nobody settles, and run out. Errs towards denying.
        crowd = (CROWD, amount + (crowd[1] if crowd else 0), now)
    return (*kept, *crowd) or None


def _reservation(run: Run, value: RegisterValue | None) -> tuple[str, float]:
    """The name under which this request (or the one a reply answers) sets aside, and how much it has."""
    session, flat = run.session.key, value or ()
    held = {cast("str", one): cast("float", amount) for one, amount in zip(flat[::3], flat[1::3], strict=True)}
    asked = run.observed.transcript_digest if run.gate == "request" else run.turn.request
    name = f"{session}\x1f{asked}"
    if run.gate != "request" and name not in held:
        # Nobody said which request it was: the oldest that waits.
        name = next((one for one in held if one.startswith(f"{session}\x1f")), name)
    return name, held.get(name, 0.0)


def _budget(run: Run, rule: Budget, _index: int) -> None:
    scope = run.scopes[rule.scope]
    if run.gate == "request":
        for dimension, limit in rule.limits.items():
            if dimension == "calls":
                continue
            used = spent(scope.get((rule.key, dimension)), rule, run.now)
            wanted = rule.reserve.get(dimension, 0.0)
            value = scope.get((rule.key, f"reserve:{dimension}:{rule.id}")) if wanted else None
            held = reserved(value, _reservation(run, value)[0], run.now) if value is not None else 0.0
            if used >= limit or used + held + wanted > limit:
                run.act(
                    rule,
                    -1,
                    {"dimension": dimension, "used": used, "reserved": held, "limit": limit, "scope": rule.scope},
                )
        return
    reply = run.gate == "reply"
    usage = run.turn.usage
    for dimension in rule.limits:
        if dimension == "calls":
            continue
        set_aside = 0.0
        if reply and rule.reserve.get(dimension):
            held_key: RegisterKey = (rule.key, f"reserve:{dimension}:{rule.id}")
            value = scope.get(held_key)
            if value is not None:
                name, set_aside = _reservation(run, value)
                scope.put(held_key, reserve(value, name, 0, run.now))
        amount = 0.0
        if dimension == "seconds":
            amount = run.turn.elapsed_ms / 1000
        elif not reply:
            continue
        else:
            known, amount = _used(usage, dimension)
            if not known:
                # A provider that does not say what it used has used what was set aside, or more if that is what it says;
                # an approved reply was paid for before.
                amount = max(amount, set_aside or (0.0 if run.turn.approvals else rule.reserve.get(dimension, 0.0)))
        if amount > 0 and run.first((rule.key, dimension)):
            key: RegisterKey = (rule.key, dimension)
            scope.put(key, spend(scope.get(key), rule, amount, run.now))


def _used(usage: Usage | None, dimension: str) -> tuple[bool, float]:
    """Whether a provider says what it used, in numbers that can be true; and how much. No answer uses no tokens at all."""
    if usage is None:
        return False, 0.0
    sent, made, price = usage.input_tokens, usage.output_tokens, usage.price
    known = sent >= 0 and made >= 0 and sent + made > 0
    if dimension == "tokens":
        return known, float(max(sent, 0) + max(made, 0))
    readable = isfinite(price) and price >= 0
    return known and readable, price if readable else 0.0


def set_aside(run: Run) -> None:
    """The reservations of a request that passes."""
    for rules in run.active:
        for rule in rules.budgets:
            scope = run.scopes[rule.scope]
            for dimension, amount in rule.reserve.items():
                key: RegisterKey = (rule.key, f"reserve:{dimension}:{rule.id}")
                value = scope.get(key)
                scope.put(key, reserve(value, _reservation(run, value)[0], amount, run.now))


def _output(run: Run, rule: StructuredOutput, _index: int) -> None:
    schema: Any = rule.schema if rule.schema is not None else run.turn.response_format
    if schema is None:
        return
    text = "".join(item.text for item in run.turn.items if isinstance(item, TextItem))
    if not text.strip() and any(isinstance(item, CallItem) for item in run.turn.items):
        return
    problems = check_text(text, schema) if text.strip() else ["$: the answer is empty"]
    if problems:
        run.act(rule, -1, {"problems": problems})


def _select(run: Run, op: Op, index: int, _fact: ToolFact) -> None:
    run.act(op.rule, index)


_ROLES: Final = {
    SELECT: _select,
    LOOP: _loop,
    AFTER: _after,
    THEN: _then,
    UNTIL: _until,
    SCHEMA: _schema,
    CALLS: _calls,
    HISTORY: _history,
    PROVENANCE: _provenance,
    ASKED_FOR: _asked_for,
}
