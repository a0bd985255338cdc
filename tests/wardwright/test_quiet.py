"""Quiet receipts: the quick way writes what the long way does, whatever came before it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final, cast

import pytest

from wardwright import compile_plan, load_config, quiet, receipts
from wardwright.facts import PHASES, RISK_CLASSES, SOURCES, STORED_FIELDS, Phase, RiskClass, Source, ToolFact
from wardwright.history import ReceiptRow
from wardwright.policy.rules import Action, CallRuling, Conflict, Finding, Route, Ruling
from wardwright.receipts import Judged, Outcome, Rules
from wardwright.wire.turn import Caller, Gate, ToolChoice, Turn, Usage

KEY = b"session key"
PLAN = """
model_id: coding
targets:
  - {model: managed/write, provider: scripted, context_window: 128000, tools: true}
governance:
  - {id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell, phase: planning}}
  - {id: "odd \\"id\\"", kind: tool_loop_threshold, action: block, threshold: 2, tool: {name: read}}
  - {id: private, kind: route_gate, action: restrict_routes, match: "secret", routes: ["managed/write"]}
"""


def rules() -> Rules:
    model = compile_plan(load_config(PLAN)).model("coding")
    assert model is not None
    return receipts.rules_of(model)


WORDS = ("", "a", "é", "shell", 'quo"te', "back\\slash", "line\nbreak", "\x00\x7f", "\u2028🙂", "\ud800")
IDS = ("no-shell", 'odd "id"', "private", "gone")
LOUD: Final[tuple[tuple[str, Any], ...]] = (
    ("decision", "block"),
    ("rule_id", "no-shell"),
    ("message", "No."),
    ("blocked_tools", ("x",)),
    ("stripped", ("x",)),
    ("withheld_server_tools", ("x",)),
    ("reask", True),
    ("binds_next", True),
    ("conflicts", (Conflict(("a", "b"), "They differ."),)),
    ("findings", (Finding("no-shell", "tool_selector", Action("deny_call"), "deny_call", "No.", facts=(0,)),)),
    ("route", Route(model="managed/write")),
    ("route", Route(allowed=("managed/write",))),
    ("route", Route(prefer=("managed/write",))),
    ("controls", {"web_search": {"max_uses": 1}}),
)


SHAPES: Final = (
    (object(), ToolFact("files", "read", "read_file", "unknown", "planning", "assistant_tool_call")),
    (object(), ToolFact("files", "read", "read_file", "unknown", "result_interpretation", "tool_result")),
    (object(), ToolFact("shell", "run", 'ru"n', "write", "planning", "assistant_tool_call", effects=("sends",))),
)


class Chance(Random):
    """Exchanges as they come: most are quiet, some are not, names are odd."""

    def word(self) -> str:
        # Half of all texts with a lone surrogate in one of them would test the long way alone.
        return self.choice(WORDS if self.rarely() else WORDS[:-1])

    def rarely(self) -> bool:
        return self.random() < 0.04

    def fact(self) -> ToolFact:
        choose, word = self.choice, self.word
        return ToolFact(
            word(),
            word(),
            word(),
            cast("RiskClass", choose(RISK_CLASSES)),
            cast("Phase", choose(PHASES)),
            cast("Source", choose([source for source in SOURCES if source != "declared_tool"])),
            word(),
            marks=choose([(), (), ("forged", "altered")]),
            effects=choose([(), (), ("sends",)]),
            arguments_digest=word(),
            result_digest=word(),
            definition_hash=choose(["", "", "hash"]),
            repeat=choose([False, True]),
            ordinal=self.randrange(4),
        )

    def shaped(self) -> ToolFact:
        """A fact of one of a few kinds, as the observer makes them: what its kind says, and what is its own."""
        kind, shape = self.choice(SHAPES)
        fact = replace(shape, tool_call_id=self.word(), arguments_digest=self.word(), result_digest=self.word())
        fact.ordinal, fact.repeat, fact.kind = self.randrange(4), self.rarely(), kind
        if self.rarely():
            fact.marks, fact.kind = ("altered",), None
        return fact

    def facts(self) -> tuple[ToolFact, ...]:
        events = [self.choice((self.fact, self.shaped))() for _ in range(self.randrange(3))]
        declared = [replace(self.fact(), source="declared_tool") for _ in range(self.randrange(3))]
        facts = [*events, *declared]
        if self.rarely():
            self.shuffle(facts)
        return tuple(facts)

    def call(self) -> CallRuling:
        call = CallRuling(0, self.word(), self.word(), self.word(), "allow")
        if self.rarely():
            call.rules, call.approval = ("no-shell",), "apr_1"
        return call

    def gate(self, gate: Gate, caller: Caller) -> Judged:
        choose = self.choice
        facts = self.facts()
        turn = Turn(
            gate,
            "chat_completions",
            self.word(),
            (),
            caller=caller,
            stream=choose([False, True]),
            target=self.word(),
            usage=choose([None, Usage(1, 2), Usage(1, 2, 1e-7), Usage(1, 2, 1e22), Usage(1, 2, 0), Usage(2**64, -1)]),
            tool_choice=choose([None, ToolChoice(), ToolChoice("tool", ("a", "é"))]),
            approvals=("apr_1",) if self.rarely() else (),
            claims={"a": 1} if self.rarely() else None,
        )
        looked = sum(fact.source != "declared_tool" for fact in facts)
        ruling = Ruling(
            gate,
            "allow",
            "" if self.rarely() else "plan",
            phase=cast("Phase", choose(PHASES)),
            facts=facts,
            considered=tuple(tuple(self.sample(IDS, self.randrange(3))) for _ in range(looked)),
            calls=tuple(self.call() for _ in range(self.randrange(3))),
            notes=choose([(), (), ("unseen_prefix",)]),
            bundles=choose([(), (), ("a", "b")]),
            states=choose([dict[str, str](), {"z": "on", "a": "öff"}]),
        )
        if self.rarely():
            name, value = choose(LOUD)
            if name != "findings" or facts:
                setattr(ruling, name, value)
        return Judged(turn, ruling, self.randrange(2**41), self.randrange(99))

    def exchange(self) -> tuple[list[Judged], Outcome]:
        caller = Caller(*(self.word() for _ in range(8)))
        gates: tuple[Gate, ...] = ("request", "reply", "reply")
        judged = [self.gate(gate, caller) for gate in gates[: self.randrange(1, 4)]]
        attempts = self.choice([(), ({"status": "answered", "model": "é"},), ({"b": 1, "a": 2}, {"a": 0.5})])
        outcome = Outcome("released", self.choice([0, 200]), self.word(), attempts)
        if self.rarely():
            outcome.error = "It broke."
        if self.rarely():
            outcome.server_tools = ({"tool": "x", "at": 2**70},)
        if self.rarely():
            outcome.mediation = {"mode": "x"}
        return judged, outcome


def long_way(judged: list[Judged], outcome: Outcome, rules: Rules) -> ReceiptRow:
    return receipts.record(receipts.build("rcpt_1", judged, outcome, rules, KEY))


def test_the_quick_way_writes_what_the_long_way_does() -> None:
    """Body, tags and scope of a row are those of the built receipt, whatever exchanges were written before it."""
    chance, known = Chance(1), rules()
    for _ in range(2_000):
        judged, outcome = chance.exchange()
        row = quiet.row("rcpt_1", judged, outcome, known, KEY)
        assert row == long_way(judged, outcome, known)
        assert row.joined in (None, [f"{name}={value}" for name, value in row.tags])


def exchange(*facts: ToolFact, considered: tuple[tuple[str, ...], ...] = ()) -> list[Judged]:
    turn = Turn("request", "chat_completions", "coding", (), caller=Caller("acme", session_id="s1"))
    return [Judged(turn, Ruling("request", "allow", "plan", facts=facts, considered=considered), 1)]


def test_tools_that_look_alike_are_not_mixed_up() -> None:
    """A surface that shares its first tool with another one is told with its own tools."""
    shared, one, other = (
        ToolFact("files", name, name, "unknown", "planning", "declared_tool") for name in ("read", "write", "list")
    )
    known = rules()
    for facts in ((shared, one), (shared, other), (shared, one), (shared,)):
        judged = exchange(*facts)
        assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)


def test_an_event_behind_declared_tools_is_no_lesson() -> None:
    """Rules that looked at facts in an unusual order teach nothing about those in the usual one."""
    event = ToolFact("files", "read", "read", "unknown", "planning", "assistant_tool_call", "c1")
    tool = ToolFact("files", "read", "read", "unknown", "planning", "declared_tool")
    known, considered = rules(), (("no-shell",), ("no-shell",))
    for facts in ((tool, event), (event, tool), (event, event, tool)):
        judged = exchange(*facts, considered=considered)
        assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)


def test_captured_texts_are_told_the_long_way() -> None:
    """Where an operator asked for the texts, they are in the row."""
    fact = ToolFact("files", "read", "read", "unknown", "planning", "assistant_tool_call", "c1", arguments='{"a":1}')
    row = quiet.row("rcpt_1", exchange(fact), Outcome("open"), rules(), KEY, capture=True)

    assert b'"captured":{"arguments":"{\\"a\\":1}"}' in row.body


def test_callers_are_remembered_within_bounds() -> None:
    """Of many callers those of before are forgotten, one with a long name is never kept, and each is told as it is."""
    known = rules()
    for number, kept in ((1_099, 76), (0, 76)):
        for one in range(number + 1):
            session = f"s{one}" if number else "s" * 2_000
            judged = exchange()
            judged[0].turn.caller = Caller("acme", session_id=session, principal=f"p{one}")
            row = quiet.row("rcpt_1", judged, Outcome("open"), known, KEY)
            assert row == long_way(judged, Outcome("open"), known)
        assert isinstance(known.memo, quiet.Memo)
        assert len(known.memo.callers) == kept


CALLER: Final = ("tenant", "application", "agent", "user", "session_id", "run_id", "principal", "claimed_session_id")


@pytest.mark.parametrize("name", CALLER)
def test_callers_that_differ_in_one_thing_are_not_mixed_up(name: str) -> None:
    """Whoever asked is told as he is, though another one who differs in one name was told before."""
    known = rules()
    for other in ("b", "", "a"):
        judged = exchange()
        judged[0].turn.caller = replace(Caller(*"aaaaaaaa"), **{name: other})
        assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)


def test_exchanges_that_differ_in_one_thing_are_not_mixed_up() -> None:
    """Model, plan, wire, stream and outcome are told as they were, though others were told before."""
    known = rules()
    for field, value in (
        ("model", "m"), ("stream", True), ("wire", "anthropic"), ("target", "t"), ("plan_hash", "p"), ("status", "held"),
        ("http_status", 403), ("selected_model", "s"), ("", ""),
    ):  # fmt: skip
        judged, outcome = exchange(), Outcome("open")
        one: object
        for one in (judged[0].turn, judged[0].ruling, outcome):
            if hasattr(one, field):
                setattr(one, field, value)
        assert quiet.row("rcpt_1", judged, outcome, known, KEY) == long_way(judged, outcome, known)


def test_what_is_remembered_is_bounded() -> None:
    """Callers choose names, however many and however long: old ones are forgotten, and long ones never kept."""
    known = rules()
    for number in range(1_100):
        name = f"tool{number}"
        fact = ToolFact("files", name, name, "unknown", "planning", "assistant_tool_call", "c1")
        tool = ToolFact("files", name, name, "unknown", "planning", "declared_tool")
        quiet.row("rcpt_1", exchange(fact, tool, considered=((name,),)), Outcome("open"), known, KEY)
    before = known.memo
    assert isinstance(before, quiet.Memo)
    assert (len(before.kinds), len(before.surfaces), len(before.looks)) == (76, 12, 76)
    long = ToolFact("files", "x" * 2_000, "x", "unknown", "planning", "assistant_tool_call", "c1")
    quiet.row("rcpt_1", exchange(long), Outcome("open"), known, KEY)
    assert len(before.kinds) == 76


def test_kinds_and_models_are_remembered_within_bounds() -> None:
    """Whoever makes a kind for every fact, or asks for many models, is told right, and of before only so much is kept."""
    known = rules()
    for number in range(1_100):
        kind, name = object(), f"tool{number % 3}"
        for result in ("", "r", ""):
            fact = ToolFact(
                "files", name, name, "unknown", "planning", "assistant_tool_call", "c1", arguments_digest="d"
            )
            fact.result_digest, fact.kind = result, kind
            judged = exchange(fact)
            judged[0].turn.model = f"m{number}" if number % 2 else "m" * 2_000
            row = quiet.row("rcpt_1", judged, Outcome("open"), known, KEY)
            if number % 50 == 0:
                assert row == long_way(judged, Outcome("open"), known)
    assert isinstance(known.memo, quiet.Memo)
    assert (len(known.memo.kinds), len(known.memo.shapes), len(known.memo.frames)) == (6, 77, 38)


def test_tools_with_large_schemas_are_not_remembered() -> None:
    """A remembered surface keeps its tools, schemas too, which callers write: one that is too large is told, not kept."""
    known = rules()
    for size, kept in ((100, 1), (300_000, 1), (200, 2)):
        schema = {"description": "x" * size}
        judged = exchange(ToolFact("files", "read", "read", "unknown", "planning", "declared_tool", schema=schema))
        row = quiet.row("rcpt_1", judged, Outcome("open"), known, KEY)
        assert row == long_way(judged, Outcome("open"), known)
        assert isinstance(known.memo, quiet.Memo)
        assert len(known.memo.surfaces) == kept


def test_what_many_surfaces_hold_together_is_bounded() -> None:
    """Surfaces that are large enough to be kept each are forgotten when they are too large together."""
    known, most = rules(), 0
    for number in range(40):
        schema = {"description": "x" * 190_000, "title": str(number)}
        fact = ToolFact("files", "read", "read", "unknown", "planning", "declared_tool", schema=schema)
        quiet.row("rcpt_1", exchange(fact), Outcome("open"), known, KEY)
        assert isinstance(known.memo, quiet.Memo)
        most = max(most, len(known.memo.surfaces))
    assert most == 4_000_000 // 190_100


OTHERWISE: Final[dict[str, Any]] = {
    "risk_class": "irreversible",
    "phase": "argument_repair",
    "source": "tool_result",
    "result_status": "error",
    "confidence": "inferred",
    "execution_location": "provider",
    "visibility_level": "opaque",
    "marks": ("forged",),
    "trust": "trusted",
    "effects": ("sends",),
    "definition_hash": "h",
    "repeat": True,
    "ordinal": 7,
}
"""Another value of what is no free text."""


@pytest.mark.parametrize("name", STORED_FIELDS)
def test_events_that_differ_in_one_thing_are_not_mixed_up(name: str) -> None:
    """Whatever is kept of an event is told as it was, though another one that differs in nothing else was told before."""
    event = ToolFact(
        "files",
        "read",
        "read",
        "unknown",
        "planning",
        "assistant_tool_call",
        "c1",
        arguments_digest="d",
        result_digest="r",
    )
    other = replace(event, **{name: OTHERWISE.get(name, "")})
    assert other != event
    for first, second in ((event, other), (other, event)):
        known = rules()
        for fact in (first, second):
            judged = exchange(fact)
            assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)


def test_rules_that_looked_at_other_facts_are_no_lesson() -> None:
    """The same rules looked at as many facts, but of other kinds and in another order: each exchange is told by its own."""
    event = ToolFact("files", "read", "read", "unknown", "planning", "assistant_tool_call", "c1")
    tool = ToolFact("files", "read", "read", "unknown", "planning", "declared_tool")
    known, considered = rules(), (("no-shell",), ("no-shell",))
    for facts in ((event, event), (event, tool), (event, tool, event), (tool, event), (event,), (event, event, tool)):
        judged = exchange(*facts, considered=considered)
        assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)


def test_an_event_between_declared_tools_is_told() -> None:
    """Facts in an unusual order are told the long way: no event is taken for a tool that was declared."""
    event = ToolFact("files", "read", "read", "unknown", "planning", "assistant_tool_call", "c1")
    tool = ToolFact("files", "read", "read", "unknown", "planning", "declared_tool")
    known = rules()
    for facts in ((tool,), (tool, event), (tool, tool), (tool, event, tool)):
        judged = exchange(*facts)
        assert quiet.row("rcpt_1", judged, Outcome("open"), known, KEY) == long_way(judged, Outcome("open"), known)
