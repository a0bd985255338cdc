"""The search: every way a session can go under a plan, gate by gate, the shortest first, each step ruled by `govern` itself.

Two sessions that the engine cannot tell apart from here on are one place of the search (`_Place`). What tells them apart is
read from the registers: ages instead of positions, counts up to their thresholds, times by the windows they are in. Nothing here
decides about a tool.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from wardwright.catalog import fold
from wardwright.facts import ToolFact
from wardwright.gateway import govern, passes
from wardwright.history import EMPTY_SCOPE, Registers, RegisterValue, ScopeState, apply, scope_key
from wardwright.history.requests import REQUESTS, find
from wardwright.policy.compile import ModelPlan, Plan
from wardwright.policy.matching import fits
from wardwright.policy.rules import (
    Budget,
    HistoryThreshold,
    LoopThreshold,
    Matcher,
    Rule,
    Ruling,
    ToolSequence,
    Window,
)
from wardwright.policy.states import enter, holding
from wardwright.policy.windows import Position, within
from wardwright.prove.alphabet import Alphabet, Letter, make_alphabet
from wardwright.prove.leniency import lenient
from wardwright.prove.question import Question
from wardwright.wire.turn import (
    Caller,
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    Turn,
)

Verdict: TypeAlias = Literal["holds", "counter_example", "unknown"]
"""holds: it cannot happen
counter_example: it can; the steps show how
unknown: no way was found, and not every way could be tried"""

START_MS: Final = 1_000_000_000_000
"""When every session begins; a policy case begins then too."""
CALLER: Final = Caller(session_id="case")
KEY: Final = b"case"
LIMIT: Final = 20_000
"""Gates that one question may ask."""

LEFT_OUT: Final = frozenset({"surface", "texts", "provenance"})
"""Registers that never repeat: what rules find by them is said to be in doubt, or does not change."""

Mode: TypeAlias = Literal["idle", "asked", "refused"]
"""idle: the client has the last reply
asked: a request has passed and waits for its reply
refused: the client has got a refusal, and may send the same again"""


@dataclass(frozen=True, slots=True)
class Step:
    """One gate on the way, and how long nothing happened before it."""

    gate: Literal["request", "reply"]
    at_ms: int
    """Since the session began."""
    waited_ms: int
    items: tuple[Item, ...]
    """Request: the whole transcript. Reply: what the model answered."""
    target: str
    ruling: Ruling
    news: tuple[str, ...]
    """What is new, in words."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to one question."""

    question: Question
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why it is unknown."""
    assumes: tuple[str, ...] = ()
    """What the answer is about: what else clients and models might do was not asked."""
    steps: tuple[Step, ...] = ()
    """The shortest way there, for a counter-example."""
    notes: tuple[str, ...] = ()
    places: int = 0
    gates: int = 0
    model: str = ""
    tools: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "question": self.question.text,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "assumes": list(self.assumes),
            "notes": list(self.notes),
            "places": self.places,
            "gates": self.gates,
            "steps": [
                {
                    "gate": step.gate,
                    "at_ms": step.at_ms,
                    "waited_ms": step.waited_ms,
                    "what": list(step.news),
                    "decision": step.ruling.decision,
                    "rules": sorted({finding.rule_id for finding in step.ruling.findings if finding.enforced}),
                    "states": dict(step.ruling.states),
                }
                for step in self.steps
            ],
            "case": self.case(),
        }

    def case(self) -> dict[str, Any] | None:
        """The counter-example as a policy case that must end the same way; None when there is none."""
        if not self.steps:
            return None
        last = self.steps[-1].ruling
        given: dict[str, Any] = {"model": self.model}
        if self.tools:
            given["tools"] = list(self.tools)
        given["steps"] = [_case_step(step) for step in self.steps]
        expect: dict[str, Any] = {"ruling": last.decision, "state": dict(last.states)}
        if last.calls:
            expect["calls"] = {call.call_id: call.status for call in last.calls}
        return {"case": self.question.text, "given": given, "expect": expect}

    def case_yaml(self) -> str:
        """The same as an entry of a case file; empty when there is none."""
        case = self.case()
        if case is None:
            return ""
        given = case["given"]
        lines = [f"- case: {_json(case['case'])}", "  given:"]
        lines.extend(f"    {key}: {_json(value)}" for key, value in given.items() if key != "steps")
        lines.append("    steps:")
        for step in given["steps"]:
            for number, (key, value) in enumerate(step.items()):
                lines.append(f"      {'  ' if number else '- '}{key}: {_json(value)}")
        lines.append(f"  expect: {_json(case['expect'])}")
        return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _case_step(step: Step) -> dict[str, Any]:
    if step.gate == "request":
        return {"transcript": _messages(step.items), "at": step.at_ms}
    given: dict[str, Any] = {"reply": _message(step.items), "at": step.at_ms}
    if step.target:
        given["target"] = step.target
    return given


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    reply: list[Item] = []
    for item in (*items, None):
        if isinstance(item, (CallItem, HostedCallItem, HostedResultItem)) or (
            isinstance(item, TextItem) and item.role == "assistant"
        ):
            reply.append(item)
            continue
        if reply:
            messages.append({"role": "assistant", **_message(reply)})
            reply = []
        if isinstance(item, TextItem):
            messages.append({"role": item.role, "content": item.text})
        elif isinstance(item, ResultItem):
            result: dict[str, Any] = {"role": "tool", "tool_call_id": item.call_id, "content": item.content}
            if item.is_error is not None:
                result["is_error"] = item.is_error
            messages.append(result)
    return messages


def _message(items: Sequence[Item]) -> dict[str, Any]:
    said = "".join(item.text for item in items if isinstance(item, TextItem))
    calls = [{"id": one.id, "name": one.name, "arguments": one.arguments} for one in items if isinstance(one, CallItem)]
    hosted = [{"id": one.id, "kind": one.kind} for one in items if isinstance(one, HostedCallItem)]
    shown = [
        {"id": one.call_id, "kind": one.kind, "content": one.content}
        for one in items
        if isinstance(one, HostedResultItem)
    ]
    fields = {"content": said, "tool_calls": calls, "hosted": hosted, "hosted_results": shown}
    return {key: value for key, value in fields.items() if value}


# the search


def prove(
    plan: Plan, question: Question, *, model: str = "", limit: int = LIMIT, stop: Callable[[], bool] = bool
) -> Proof:
    """Answers a question about one model's plan (the first, unless it is named). Asks little more than `limit` gates, or half as
    many again where rules have to be left out; and none any more once `stop` says so."""
    part = plan.model(model or next(iter(plan.models)))
    if part is None:
        return Proof(question, "unknown", (f"no plan governs model '{model}'",))
    search = _Search(plan, part, question, limit, stop)
    # With doubts the answer can be a way, but never "holds": whether it holds without them is asked first, and soon known.
    proof = None if search.doubts else search.answer()
    if proof is not None and proof.verdict != "unknown":
        return proof
    spent = 0
    for easier, fewer, left_out in lenient(plan, part, question):
        again = _Search(easier, fewer, question, max(1, limit // 4), stop).answer()
        spent += again.gates
        if again.verdict == "holds":
            names = ", ".join(f"'{rule}'" for rule in left_out)
            notes = (*again.notes, f"holds even without {names}, which can only refuse")
            return replace(again, notes=notes, gates=search.gates + spent)
    proof = proof or search.answer()
    return replace(proof, gates=proof.gates + spent)


@dataclass(slots=True, eq=False)
class _Place:
    """Where a session can be."""

    mode: Mode
    registers: Registers
    items: tuple[Item, ...]
    """The transcript the client holds, or has sent."""
    now: int
    since: Position | None
    """When what the question waits for last happened; None: it has not, or something ended it."""
    due: tuple[tuple[str, Letter, str], ...] = ()
    """Calls the client has yet to answer: id, letter and raw name."""
    tail: tuple[object, ...] = ()
    """What was new in the request that was refused, or waits …"""
    told: bool = False
    """… and whether a request with it has passed: sent again it has not happened again."""
    request: str = ""
    target: str = ""
    count: int = 0
    """Numbers given so far."""
    clocks: tuple[int, ...] = ()
    before: _Place | None = None
    step: Step | None = None
    waited: int = 0


class _Search:
    def __init__(self, plan: Plan, part: ModelPlan, question: Question, limit: int, stop: Callable[[], bool]) -> None:
        self.plan = plan
        self.part = part
        self.question = question
        self.limit = limit
        self.stop = stop
        self.alphabet: Alphabet = make_alphabet(part, question)
        self.tools = [DeclaredTool(name) for name in self.alphabet.tools]
        self.view = _View(part, question, self.alphabet)
        self.session = scope_key("session_id", CALLER)
        self.doubts: list[str] = list(self.alphabet.doubts)
        self.gates = 0
        self.ran = False
        """Something that fits `run` was released at all …"""
        self.began = question.after is None
        """… and what it is asked after has happened."""

    def answer(self) -> Proof:
        question, alphabet = self.question, self.alphabet
        first = _Place(
            "idle",
            Registers(key=KEY),
            (),
            START_MS,
            Position(0, 0, START_MS) if question.after is None else None,
        )
        seen = {self.view.look(first, self.session)}
        waiting = deque([first])
        found: _Place | None = None
        bounded = stopped = False
        while waiting and found is None:
            place = waiting.popleft()
            for after, hit in self.next(place):
                if hit:
                    found = after
                    break
                key = self.view.look(after, self.session)
                if key not in seen:
                    seen.add(key)
                    waiting.append(after)
                if stopped := self.stop():
                    break
            if stopped or self.gates >= self.limit:
                bounded = found is None and (stopped or bool(waiting))
                break
        if self.view.crowded:
            self.doubts.append("times stood too close together to try all orders of them")
        if bounded:
            self.doubts.append(f"stopped after {self.gates} gates{': no time was left' if stopped else ''}")
        steps = self.path(found)
        verdict: Verdict = "counter_example" if steps else "unknown" if self.doubts else "holds"
        notes: list[str] = []
        if not steps and not self.began:
            notes.append("what it is asked after never happens")
        if not steps and not self.ran:
            notes.append("no call of the tool asked about is ever released")
        return Proof(
            question,
            verdict,
            tuple(dict.fromkeys(self.doubts)) if verdict == "unknown" else (),
            alphabet.assumes,
            steps,
            tuple(notes),
            len(seen),
            self.gates,
            self.part.model_id,
            alphabet.tools,
        )

    def path(self, place: _Place | None) -> tuple[Step, ...]:
        steps: list[Step] = []
        while place is not None:
            if place.step is not None:
                steps.append(place.step)
            place = place.before
        return tuple(reversed(steps))

    def next(self, place: _Place) -> Iterator[tuple[_Place, bool]]:
        """Where it can go from here, and whether that answers the question."""
        if place.mode == "asked":
            yield from self.replies(place)
        else:
            yield from self.requests(place)
        if not place.waited:
            for wait in self.view.waits(place):
                yield self.wait(place, wait), False

    def wait(self, place: _Place, wait: int) -> _Place:
        return _Place(
            place.mode,
            place.registers,
            place.items,
            place.now + wait,
            place.since,
            place.due,
            place.tail,
            place.told,
            place.request,
            place.target,
            place.count,
            before=place,
            waited=wait,
        )

    # what the client does

    def requests(self, place: _Place) -> Iterator[tuple[_Place, bool]]:
        alphabet = self.alphabet
        words: tuple[str | None, ...] = (None,)
        if place.mode == "idle" and not place.due:
            words = alphabet.words
        elif alphabet.heard:
            words = (None, *alphabet.words)
        answers: Sequence[Sequence[tuple[bool | None, str]]] = [
            alphabet.results[letter.raw_name] for _, letter, _ in place.due
        ]
        for statuses in itertools.product(*answers):
            for word in words:
                yield self.request(place, statuses, word)

    def request(
        self, place: _Place, statuses: Sequence[tuple[bool | None, str]], word: str | None
    ) -> tuple[_Place, bool]:
        count = place.count
        new: list[Item] = []
        news: list[str] = []
        tail: tuple[object, ...] = place.tail
        for (call_id, letter, name), (flag, content) in zip(place.due, statuses, strict=True):
            new.append(ResultItem(call_id, content, flag))
            status = "" if flag is None else " fails" if flag else ""
            news.append(f"{name}{status or ' answers'}")
            if (letter.raw_name, flag, content) in self.alphabet.heeded:
                tail = (*tail, (letter, flag, content))
            elif self.alphabet.phases:
                tail = (*tail, None)  # a list of allowed tools is about those that nothing names, too
        if word is not None:
            count += 1
            new.append(TextItem("user", word or f"Word {count}."))
            news.append(f"the user says {_json(word)}" if word else "the user speaks")
            if word not in tail:
                tail = (*tail, word)
        items = (*place.items, *new)
        turn = Turn("request", "chat_completions", self.part.model_id, items, self.tools, caller=CALLER)
        ruling, registers = self.gate(place, turn)
        let = passes(ruling)
        since = place.since
        if let:
            since = self.follow(place, ruling, since, None)[0]
            spoken = word is not None or (not place.told and any(isinstance(one, str) for one in tail))
            if spoken and self.question.without_user and self.question.after is not None:
                since = None
        if not news:
            news.append("the same request again")
        step = self.step(place, "request", items, "", ruling, news)
        after = _Place(
            "asked" if let else "refused",
            registers,
            items,
            place.now,
            since,
            (),
            tail,
            let or place.told,
            ruling.request,
            self.route(ruling) if let else "",
            count,
            before=place,
            step=step,
        )
        return after, False

    # what the model does

    def replies(self, place: _Place) -> Iterator[tuple[_Place, bool]]:
        alphabet = self.alphabet
        for said in alphabet.says:
            if alphabet.turns or said:
                yield self.reply(place, (), said or "Well.")
            for size in range(1, self.question.calls + 1):
                for letters in itertools.product(alphabet.letters, repeat=size):
                    yield self.reply(place, letters, said)

    def reply(self, place: _Place, letters: Sequence[Letter], said: str) -> tuple[_Place, bool]:
        items: list[Item] = [TextItem("assistant", said)] if said else []
        count = place.count
        called: dict[int, tuple[str, Letter, str]] = {}
        news = [f"the model says {_json(said)}"] if said else []
        for letter in letters:
            count += 1
            call_id, name, text = f"c{count}", letter.name(count), letter.text(count)
            if letter.hosted:
                items.append(HostedCallItem(call_id, letter.hosted))
                items.append(HostedResultItem(call_id, letter.hosted, "done"))
                news.append(f"the provider runs {letter.hosted}")
                continue
            called[len(items)] = (call_id, letter, name)
            items.append(CallItem(call_id, name, text))
            news.append(f"the model calls {name}" + ("" if text == "{}" else f" {text}"))
        turn = Turn(
            "reply",
            "chat_completions",
            self.part.model_id,
            items,
            self.tools,
            caller=CALLER,
            target=place.target,
            request=place.request,
        )
        ruling, registers = self.gate(place, turn)
        step = self.step(place, "reply", tuple(items), place.target, ruling, news)
        if not passes(ruling):
            again = ruling.reask or (
                ruling.decision == "deny_call" and all(call.status != "require_approval" for call in ruling.calls)
            )
            refused = _Place(
                "asked" if again else "refused",
                registers,
                place.items,
                place.now,
                place.since,
                (),
                place.tail,
                True,
                place.request,
                self.route(ruling) if ruling.reask else place.target,
                count,
                before=place,
                step=step,
            )
            return refused, False
        statuses = {call.item: call.status for call in ruling.calls}
        since, hit = self.follow(place, ruling, place.since, statuses)
        kept = [item for index, item in enumerate(items) if statuses.get(index, "allow") == "allow"]
        due = tuple(one for index, one in called.items() if statuses.get(index) == "allow")
        after = _Place(
            "idle", registers, (*place.items, *kept), place.now, since, due, count=count, before=place, step=step
        )
        return after, hit

    # what comes of it

    def gate(self, place: _Place, turn: Turn) -> tuple[Ruling, Registers]:
        self.gates += 1
        ruling, delta = govern(self.plan, place.registers, turn, place.now)
        self.view.learn(turn, ruling)
        return ruling, apply(place.registers, delta)

    def step(
        self, place: _Place, gate: Literal["request", "reply"], items: tuple[Item, ...], target: str, ruling: Ruling,
        news: Sequence[str],
    ) -> Step:  # fmt: skip
        return Step(gate, place.now - START_MS, place.waited, items, target, ruling, tuple(news))

    def follow(
        self, place: _Place, ruling: Ruling, since: Position | None, statuses: Mapping[int, str] | None
    ) -> tuple[Position | None, bool]:
        """Reads the question along the facts of a gate that passed: where it stands then, and whether it is answered."""
        question = self.question
        head = place.registers.scopes.get(self.session, EMPTY_SCOPE).head
        hit = False
        event = head.event
        for fact in ruling.facts:
            if fact.source == "declared_tool" or (statuses is not None and statuses.get(fact.item, "allow") != "allow"):
                event = fact.ordinal or event
                continue
            event = fact.ordinal or event
            at = Position(head.turn, event, place.now)
            if statuses is not None and fact.phase != "result_interpretation" and _fits(question.run, fact, False):
                self.ran = True
                hit = hit or (since is not None and within(question.within, since, at))
            if question.after is None or (statuses is None and fact.repeat and place.told):
                continue
            if question.without is not None and _fits(question.without, fact, True):
                since = None
            if _fits(question.after, fact, False):
                self.began = True
                since = at
        return since, hit

    def route(self, ruling: Ruling) -> str:
        """The model that routing would ask."""
        route = ruling.route
        if route.model:
            return route.model
        known = [target.model for target in self.part.targets]
        options = [*route.prefer, *known]
        if route.allowed is not None:
            options = [one for one in options if one in route.allowed] or list(route.allowed)
        return options[0] if options else ""


def _fits(matcher: Matcher, fact: ToolFact, doubt: bool) -> bool:
    """Doubt about what a fact is answers no question, and clears what was begun."""
    return fits(matcher, fact, doubt, inner=True)


# what is remembered of a session


@dataclass(slots=True)
class _View:
    """What the engine can still tell of a session's past."""

    part: ModelPlan
    question: Question
    alphabet: Alphabet
    by_key: dict[str, list[Rule]] = field(default_factory=dict[str, "list[Rule]"])
    again: set[str] = field(default_factory=set[str])
    """Tools and digests of arguments that are used more than once; nothing else can be counted as the same again."""
    crowded: bool = False
    heeded: frozenset[str] = frozenset()
    """Tools some answer of which matters."""

    def __post_init__(self) -> None:
        self.heeded = frozenset(raw for raw, _, _ in self.alphabet.heeded)
        for rules in (self.part.rules, *self.part.bundles.values()):
            for rule in rules.rules:
                self.by_key.setdefault(rule.key, []).append(rule)

    def learn(self, turn: Turn, ruling: Ruling) -> None:
        """Notes what comes again: letters that are always the same."""
        if turn.gate != "reply":
            return
        fixed = {letter.raw_name for letter in self.alphabet.letters if not letter.fresh_name}
        texts = {letter.arguments for letter in self.alphabet.letters if not letter.fresh_arguments}
        for fact in ruling.facts:
            if fact.raw_name in fixed or fact.source == "provider_event":
                self.again.add(f"{fold(fact.namespace)}\x1f{fold(fact.name)}")
            if fact.arguments is None or fact.arguments in texts or fact.source == "provider_event":
                self.again.add(fact.arguments_digest)

    def look(self, place: _Place, session: str) -> tuple[object, ...]:
        """Equal for places from which everything goes the same way. Leaves the place's running clocks on it."""
        clocks: list[int] = []
        words: list[int] = []
        due = tuple([letter if letter.raw_name in self.heeded else None for _, letter, _ in place.due])
        seen: list[object] = [place.mode, place.tail, place.told, due, place.target]
        for key in sorted(place.registers.scopes):
            self._scope(place, place.registers.scopes[key], key == session, seen, clocks, words)
        head = place.registers.scopes.get(session, EMPTY_SCOPE).head
        if place.since is not None:
            kept = self._age(self.question.within, place.since, Position(head.turn, head.event, place.now), clocks)
            if kept is None:
                place.since = None
            seen.append(kept)
        else:
            seen.append(None)
        place.clocks = tuple(clocks)
        unit = self.alphabet.unit_ms
        parts = sorted({clock % unit for clock in clocks} - {0}) if unit > 1 else []
        seen.extend((clock // unit, parts.index(clock % unit) + 1 if clock % unit else 0) for clock in clocks)
        ranks = {number: rank for rank, number in enumerate(sorted(set(words)))}
        seen.append(tuple([ranks[number] for number in words]))
        return tuple(seen)

    def waits(self, place: _Place) -> Iterator[int]:
        """How long to wait for the time to mean something else."""
        unit = self.alphabet.unit_ms
        if not unit or not place.clocks:
            return
        borders = {0}
        for clock in place.clocks:
            borders.update(range(clock, 0, -unit))
        ordered = sorted(borders)
        standing = any(clock % unit == 0 for clock in place.clocks)
        for before, border in itertools.pairwise(ordered):
            if unit > 1 and (before or standing):
                if border - before < 2:
                    self.crowded = True
                else:
                    yield before + (border - before) // 2
            yield border
        yield ordered[-1] + 1

    def _scope(
        self,
        place: _Place,
        scope: ScopeState,
        session: bool,
        seen: list[object],
        clocks: list[int],
        words: list[int],
    ) -> None:
        head = scope.head
        at = Position(head.turn, head.event, place.now)
        seen.append(bool(head.turn))
        if session:
            known = any(name[0] == "c" and entry.status == "passed" for name, entry in scope.ledger.items())
            seen.extend(
                (
                    known,
                    head.phase if self.alphabet.phases else "",
                    head.repairing,
                    head.bundles,
                    head.text_hits,
                    head.surface_digest,
                )
            )
            if self.alphabet.heard:
                words.extend((head.user_turns, head.spoken))
        for key in sorted(scope.registers):
            value = scope.registers[key]
            kept = self._register(place, key, value, at, clocks, words)
            if kept is not None:
                seen.append((key, kept))

    def _register(
        self,
        place: _Place,
        key: tuple[str, str],
        value: RegisterValue,
        at: Position,
        clocks: list[int],
        words: list[int],
    ) -> object:
        name, sub = key
        if name.startswith("state:"):
            return self._state(name[6:], value, at, clocks, words)
        if key == REQUESTS:
            record = find(value, place.request) if place.mode != "idle" else None
            if record is None:
                return None
            if self.alphabet.heard:
                words.extend((record.words, record.first_word))
            phase = record.phase if self.alphabet.phases else ""
            return (record.flags, phase, record.bundles, record.repairing, record.stripped)
        if name in LEFT_OUT:
            return None
        rules = self.by_key.get(name)
        if not rules:
            return value
        rule = rules[0]
        if isinstance(rule, ToolSequence):
            return self._sequence(rule, value, at, clocks, words)
        if isinstance(rule, (LoopThreshold, HistoryThreshold)):
            most = max(one.threshold for one in rules if isinstance(one, (LoopThreshold, HistoryThreshold)))
            return self._count(rule, sub, value, at, clocks, most)
        if isinstance(rule, Budget) and sub == "calls" and rule.window is None:
            return min(cast("float", value[0]), max(one.limits["calls"] for one in rules if isinstance(one, Budget)))
        return value

    def _state(
        self, machine_id: str, value: RegisterValue, at: Position, clocks: list[int], words: list[int]
    ) -> object:
        machine = self.part.machines.get(machine_id)
        if machine is None:
            return value
        now = holding(machine, value, at)
        if now.lapsed:
            # As the next gate will write it down.
            value = enter(machine, now.state, now.since)
        state, _, _, _, until_turn, until_event, until_ms, by, clean, word, _ = value
        if until_turn is until_event is until_ms is word is None and not clean and state == machine.initial_state:
            return None
        if word is not None:
            words.append(cast("int", word))
        if until_ms is not None:
            clocks.append(max(0, cast("int", until_ms) - at.ms))
        return (
            state,
            None if until_turn is None else cast("int", until_turn) - at.turn,
            None if until_event is None else cast("int", until_event) - at.event,
            until_ms is not None,
            by,
            min(2, at.turn - cast("int", value[1])) if clean else None,
            word is not None,
        )

    def _sequence(
        self, rule: ToolSequence, value: RegisterValue, at: Position, clocks: list[int], words: list[int]
    ) -> object:
        start = Position(*cast("tuple[int, int, int]", value[:3]))
        until = rule.until
        if until is not None and until.clean_turn and at.turn - start.turn > 1:
            return None
        kept = self._age(rule.window, start, at, clocks)
        if kept is None:
            return None
        if until is not None and until.user_turn:
            words.append(cast("int", value[3]))
        return (*kept, at.turn - start.turn if until is not None and until.clean_turn else 0)

    def _count(
        self,
        rule: LoopThreshold | HistoryThreshold,
        sub: str,
        value: RegisterValue,
        at: Position,
        clocks: list[int],
        most: int,
    ) -> object:
        if sub == "@":
            return None
        if sub == "!":
            tripped: list[object] = []
            for one in range(0, len(value), 5):
                threshold, total, *place = cast("tuple[int, ...]", value[one : one + 5])
                kept = self._age(rule.window, Position(*place), at, clocks)
                if kept is not None:
                    tripped.append((threshold, min(total, most), kept))
            return tuple(tripped) or None
        if sub:
            namespace, name, *digests = sub.split("\x1f")
            if f"{namespace}\x1f{name}" not in self.again or (digests and digests[0] not in self.again):
                return None
        if rule.window is None:
            return min(cast("int", value[0]), most)
        places = [Position(*cast("tuple[int, int, int]", value[one : one + 3])) for one in range(0, len(value), 3)]
        ages = [self._age(rule.window, place, at, clocks) for place in places]
        return tuple([age for age in ages if age is not None]) or None

    def _age(self, window: Window | None, start: Position, at: Position, clocks: list[int]) -> tuple[int, int] | None:
        """How old something is, by the windows that look at it; None: too old for all that follows."""
        if not within(window, start, at):
            return None
        if window is None:
            return (0, 0)
        if window.ms is not None:
            clocks.append(window.ms - (at.ms - start.ms))
        return (
            0 if window.turns is None else at.turn - start.turn,
            0 if window.events is None else at.event - start.event,
        )
