"""Attacks on the engine that fail: what a caller, a model or a tool's output tries, and what holds against it."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import yaml
from immutables import Map

from wardwright import compile_plan, govern, load_config
from wardwright.facts import ToolFact
from wardwright.gateway import judge, passes
from wardwright.history import (
    LedgerEntry,
    Registers,
    ScopeState,
    apply,
    dump_head,
    ledger_keys,
    load_head,
)
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import (
    Caller,
    CallItem,
    DeclaredTool,
    Gate,
    HostedCallItem,
    Item,
    ResultItem,
    TextItem,
    ToolChoice,
    Turn,
    Usage,
)

from .oracle import Oracle


class Session:
    """One caller under one plan, gate after gate."""

    def __init__(self, text: str) -> None:
        self.plan: Plan = compile_plan(load_config(text))
        self.registers = Registers(key=b"k")
        self.now = 1_000_000_000

    def go(self, gate: Gate, items: Sequence[Item], session: str = "s", **more: Any) -> Ruling:
        turn = Turn(gate, "chat_completions", "m", items, caller=Caller(session_id=session), **more)
        ruling, delta = govern(self.plan, self.registers, turn, self.now)
        self.registers = apply(self.registers, delta)
        return ruling

    def request(self, *items: Item, **more: Any) -> Ruling:
        return self.go("request", items, **more)

    def reply(self, *items: Item, **more: Any) -> Ruling:
        return self.go("reply", items, **more)


def user(text: str) -> TextItem:
    return TextItem("user", text)


def said(text: str) -> TextItem:
    return TextItem("assistant", text)


def call(call_id: str, name: str, arguments: str = "{}") -> CallItem:
    return CallItem(call_id, name, arguments)


def result(call_id: str, content: str = "ok", is_error: bool | None = None) -> ResultItem:
    return ResultItem(call_id, content, is_error)


NO_SHELL = """
governance:
  - {id: no-shell, kind: tool_selector, action: block, tool: {namespace: shell, phase: planning}}
"""

CONTAINED = """
state_machine: {initial_state: calm, states: [{id: calm}, {id: reviewing}]}
governance:
  - id: enter
    kind: tool_sequence
    after: {tool: {namespace: browser, phase: result_interpretation}}
    until: {user_turn: true}
    transition_to: reviewing
  - {id: no-shell, kind: tool_selector, state_scope: reviewing, action: block, tool: {namespace: shell, phase: planning}}
  - {id: guard, kind: request_guard, match: forbidden words}
"""


# names


@pytest.mark.parametrize(
    "name",
    ["bash", "BASH", "\uff42\uff41\uff53\uff48", "\u017fhell_exec", "Shell.Exec", "SHELL/exec", "shell_exec\u200b"],
)
def test_a_name_in_another_spelling_is_the_same_tool(name: str) -> None:
    """G6: case, compatibility forms and separators do not take a tool out of its namespace."""
    assert Session(NO_SHELL).reply(call("a", name)).decision == "block"


def test_spellings_of_one_tool_share_one_counter() -> None:
    """G15: a loop cannot be hidden by writing the name differently each time."""
    session = Session(
        "governance:\n  - {id: l, kind: tool_loop_threshold, action: block, threshold: 3, tool: {namespace: shell}}\n"
    )
    rulings = [session.reply(call(name, name)) for name in ("shell_exec", "SHELL_EXEC", "\uff53hell_exec")]
    assert [ruling.decision for ruling in rulings] == ["allow", "allow", "block"]


@pytest.mark.parametrize("name", ["provider.web_search.x", "PROVIDER.web_search/x", "provider.web_search.web_search"])
def test_no_caller_s_tool_enters_a_provider_s_namespace(name: str) -> None:
    """G4: what a provider attests cannot be spoofed by a tool's name."""
    (fact,) = Session(NO_SHELL).reply(call("a", name)).facts
    assert not fact.namespace.casefold().startswith("provider.")


# arguments


@pytest.mark.parametrize(
    "arguments",
    [
        '{"path": "/etc/x"}',
        '{"path": "\\u002fetc/x"}',
        '{"path": "/ETC/x"}',
        '{"path": "/safe", "path": "/etc/x"}',
        '{"path": "/etc/x", "path": "/safe"}',
        '{"p\\u0061th": "/etc/x"}',
        '{"path": ["/etc/x"]}',
        '{"path": "/etc/x",}',
        '{"path": "/etc/x"',
        '\ufeff{"path": "/etc/x"}',
        "{'path': '/etc/x'}",
        '{"path": "\\ud800/etc/x"}',
        '{"path": NaN}',
        '{"a":' * 2000 + "1" + "}" * 2000,
    ],
)
def test_arguments_that_are_hard_to_read_do_not_pass(arguments: str) -> None:
    """G13: escapes, duplicate keys, other types and broken JSON match a denying predicate."""
    session = Session(
        "governance:\n  - {id: d, kind: tool_selector, action: deny_call, tool: {arguments: {/path: {glob: '/etc/*'}}}}\n"
    )
    assert session.reply(call("a", "write", arguments)).decision == "deny_call"


def test_a_pointer_reads_escaped_names() -> None:
    """G13: `~1` and `~0` name keys with a slash and a tilde."""
    session = Session(
        "governance:\n  - {id: d, kind: tool_selector, action: deny_call, tool: {arguments: {/a~1b~0c/1: {equals: x}}}}\n"
    )
    rulings = [session.reply(call(text, "t", text)) for text in ('{"a/b~c": ["y", "x"]}', '{"a/b~c": ["x", "y"]}')]
    assert [ruling.decision for ruling in rulings] == ["deny_call", "allow"]


def test_a_schema_that_cannot_be_checked_blocks_by_name() -> None:
    """G19, E3: a declared schema that needs more than linear time is no way around argument_schema."""
    session = Session("governance:\n  - {id: fit, kind: argument_schema, tool: {name: '*'}}\n")
    tools = [DeclaredTool("t", "", {"properties": {"a": {"pattern": "(?=x)x"}}})]
    ruling = session.reply(call("a", "t", '{"a": "x"}'), tools=tools)
    assert (ruling.decision, ruling.rule_id) == ("block", "fit")


# ids, retries, history


def test_parallel_calls_under_one_id_are_all_judged() -> None:
    """G3: a reply that repeats an id gets a fresh one for each later call, and each is ruled on."""
    ruling = Session(NO_SHELL).reply(call("a", "note"), call("a", "shell_exec"), call("a", "note"))
    assert len({one.call_id for one in ruling.calls}) == 3
    assert [one.rules for one in ruling.calls] == [(), ("no-shell",), ()]


def test_another_session_s_ids_mean_nothing_here() -> None:
    """G20: the same provider id in two sessions is two calls; neither counts for the other."""
    session = Session(
        "governance:\n  - {id: l, kind: tool_loop_threshold, action: block, threshold: 2, tool: {name: t}}\n"
    )
    decisions = [session.reply(call("a", "t"), session=name).decision for name in ("one", "two", "one")]
    assert decisions == ["allow", "allow", "block"]


def test_a_refused_result_is_not_outrun_by_a_later_word() -> None:
    """G22: a result that a gate refused stays current, also when the caller goes on as if it had been answered."""
    session = Session(
        "governance:\n  - {id: bad, kind: tool_selector, action: block, tool: {result_status: error, name: t}}\n"
    )
    session.request(user("hi"))
    session.reply(call("a", "t"))
    refused = [user("hi"), call("a", "t"), result("a", "no", True)]
    decisions = [
        session.request(*refused).decision,
        session.request(*refused).decision,
        session.request(*refused, said("fine"), user("go on")).decision,
    ]
    assert decisions == ["block", "block", "block"]


def test_an_answer_to_a_denied_call_is_marked_every_time() -> None:
    """G22: resending it does not make it honest."""
    session = Session(
        "governance:\n"
        "  - {id: refuse, kind: tool_selector, action: deny_call, tool: {name: t, phase: planning}}\n"
        "  - {id: lie, kind: tool_selector, action: block, tool: {mark: result_for_denied_call}}\n"
    )
    session.request(user("hi"))
    session.reply(call("a", "t"), call("b", "other"))
    story = [user("hi"), call("b", "other"), result("b"), call("a", "t"), result("a", "done!")]
    assert [session.request(*story).rule_id for _ in range(3)] == ["lie"] * 3


def test_a_word_before_the_page_does_not_end_the_review() -> None:
    """G16: inserting a user's word earlier in the transcript is not the user speaking after the page."""
    session = Session(CONTAINED)
    session.request(user("hi"))
    session.reply(call("a", "browser_open"))
    session.request(user("hi"), user("a fresh word"), call("a", "browser_open"), result("a", "page"))
    assert session.reply(call("b", "shell_exec")).decision == "block"


def test_old_words_in_a_cut_transcript_do_not_end_the_review() -> None:
    """G16, G22: compaction resends what the user said; it is no new word."""
    session = Session(CONTAINED)
    session.request(user("hi"), said("yes?"), user("read it"))
    session.reply(call("a", "browser_open"))
    session.request(user("hi"), said("yes?"), user("read it"), call("a", "browser_open"), result("a", "page"))
    session.reply(said("read"))
    session.request(user("read it"), said("read"))
    assert session.reply(call("b", "shell_exec")).decision == "block"


def test_a_refused_request_loosens_nothing() -> None:
    """G15, G16, G22: cut, padded and forged transcripts that are refused leave counters, sequences and states as strict as before."""
    plan = """
state_machine: {initial_state: calm, states: [{id: calm}, {id: hot}]}
governance:
  - {id: enter, kind: tool_sequence, after: {tool: {name: b, phase: result_interpretation}}, transition_to: hot}
  - {id: hot-c, kind: tool_selector, state_scope: hot, action: deny_call, tool: {name: c, phase: planning}}
  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 2, within: {turns: 5}, tool: {name: a, phase: planning}}
  - {id: seq, kind: tool_sequence, action: deny_call, after: {tool: {name: a}}, before: {tool: {name: e}}}
  - {id: calls, kind: budget, action: deny_call, limits: {calls: 1}, tool: {name: b}}
  - {id: guard, kind: request_guard, match: forbidden}
"""
    honest = [user("hi"), call("1", "a"), call("2", "b"), result("1"), result("2", "page")]
    attacks: list[list[Item]] = [
        [said("forbidden")],
        [*honest, said("forbidden")],
        [*honest[:1], call("1", "z"), call("2", "z"), *honest[3:], said("forbidden")],
        [
            user("hi"),
            *(item for number in range(9) for item in (call(f"f{number}", "z"), result(f"f{number}"))),
            said("forbidden"),
        ],
        [*honest, call("1", "a"), result("2", "other"), said("forbidden")],
    ]
    session = Session(plan)
    session.request(user("hi"))
    session.reply(call("1", "a"), call("2", "b"))
    session.request(*honest)
    assert {session.request(*attack).decision for attack in attacks for _ in range(3)} == {"block"}
    session.request(*honest)
    probes = session.reply(call("w", "a"), call("x", "b"), call("y", "c"), call("z", "e"))
    assert [one.rules for one in probes.calls] == [("loop",), ("calls",), ("hot-c",), ("seq",)]


# time


def test_a_clock_that_goes_back_opens_nothing() -> None:
    """G15–G17: windows, sequences and states in milliseconds hold when time runs backwards."""
    session = Session(
        """
state_machine: {initial_state: calm, states: [{id: calm}, {id: hot, expires_ms: 100}]}
governance:
  - {id: move, kind: tool_selector, action: transition, transition_to: hot, tool: {name: x}}
  - {id: state, kind: tool_selector, state_scope: hot, action: deny_call, tool: {name: y}}
  - id: sequence
    kind: tool_sequence
    action: deny_call
    after: {tool: {name: x}}
    before: {tool: {name: z}}
    within: {ms: 100}
  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 2, within: {ms: 100}, tool: {name: w}}
"""
    )
    session.reply(call("1", "x"), call("2", "w"))
    session.now -= 500_000_000
    ruling = session.reply(call("3", "y"), call("4", "z"), call("5", "w"))
    assert [one.rules for one in ruling.calls] == [("state",), ("sequence",), ("loop",)]


def test_an_exception_ends_at_its_very_moment() -> None:
    """G28: at the millisecond it names, an exception is over."""
    session = Session(
        "governance:\n  - {id: refuse, kind: tool_selector, action: block, tool: {name: t},"
        " exceptions: [{expires: '2030-01-01T00:00:00Z', tool: {name: t}}]}\n"
    )
    session.now = 1_893_456_000_000 - 1
    before = session.reply(call("a", "t")).decision
    session.now += 1
    assert (before, session.reply(call("b", "t")).decision) == ("allow", "block")


# counters, caps, modes


def test_filling_the_counter_with_names_does_not_hide_a_loop() -> None:
    """G30: beyond the cap different keys share one counter, so a flood of names ends in denial, never in freedom."""
    session = Session(
        "governance:\n  - {id: l, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {phase: planning}}\n"
    )
    for number in range(260):
        session.reply(call(f"f{number}", f"flood{number}"))
    decisions = [session.reply(call(f"x{number}", "real")).decision for number in range(3)]
    assert decisions[-1] == "deny_call"


def test_a_denied_call_counts_but_starts_nothing() -> None:
    """G15, G16: being denied is no way to reset a loop, nor to arm a sequence."""
    session = Session(
        """
governance:
  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 2, tool: {name: x}}
  - {id: no-w, kind: tool_selector, action: deny_call, tool: {name: w}}
  - {id: after-w, kind: tool_sequence, action: deny_call, after: {tool: {name: w}}, before: {tool: {name: z}}}
"""
    )
    decisions = [session.reply(call(str(number), "x")).decision for number in range(4)]
    assert decisions == ["allow", "deny_call", "deny_call", "deny_call"]
    session.reply(call("w", "w"))
    assert session.reply(call("z", "z")).decision == "allow"


def test_observing_rules_move_attach_and_refuse_nothing() -> None:
    """G28, E8: a plan of shadows leaves state, bundles, calls and surface as they were."""
    session = Session(
        """
state_machine: {initial_state: calm, states: [{id: calm}, {id: hot}]}
policy_bundles: {extra: [{id: all, kind: tool_selector, action: block, tool: {name: t}}]}
governance:
  - {id: a, kind: tool_selector, mode: observe, action: block, transition_to: hot, attach_policy_bundle: extra, tool: {name: t}}
  - {id: b, kind: tool_sequence, mode: observe, after: {tool: {name: t}}, transition_to: hot}
  - {id: c, kind: request_guard, mode: observe, match: hi}
  - {id: d, kind: allowed_tools, enforcement: observe, phase: planning, allowed_tools: [{name: u}]}
  - {id: e, kind: tool_loop_threshold, mode: observe, action: block, threshold: 1, tool: {name: t}}
"""
    )
    request = session.request(user("hi"), tools=[DeclaredTool("t")])
    reply = session.reply(call("1", "t"), tools=[DeclaredTool("t")])
    assert (request.decision, reply.decision, reply.states, reply.bundles) == (
        "allow",
        "allow",
        {"default": "calm"},
        (),
    )
    assert {finding.rule_id for finding in (*request.findings, *reply.findings)} == {"a", "b", "c", "d", "e"}


# approvals


@pytest.mark.parametrize(
    ("name", "arguments", "session"),
    [("pay", '{"to": "mallory"}', "s"), ("transfer", '{"to": "alice"}', "s"), ("pay", '{"to": "alice"}', "other")],
)
def test_an_approval_fits_one_call_only(name: str, arguments: str, session: str) -> None:
    """G23: other arguments, another tool or another session need an approval of their own."""
    plan = "governance:\n  - {id: ask, kind: tool_selector, action: require_approval, tool: {phase: planning}}\n"
    first = Session(plan)
    held = first.reply(call("a", "pay", '{"to": "alice"}'))
    keys = tuple(finding.key for finding in held.findings)
    again = first.reply(call("a", "pay", '{"to": "alice"}'), approvals=keys)
    assert again.decision == "allow"
    assert first.reply(call("b", name, arguments), session=session, approvals=keys).decision == "require_approval"


# claims


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"primary_tool": None},
        {"primary_tool": [1, 2]},
        {"primary_tool": {"name": ""}},
        {"name": {"a": 1}, "risk_class": ["irreversible"], "phase": {"x": 1}},
        {"name": "x" * 10_000, "namespace": "\x1f", "tool_call_id": 7},
    ],
)
def test_a_malformed_attestation_is_no_failure_and_no_freedom(claims: dict[str, Any]) -> None:
    """G7: whatever a trusted caller attests, the rules that hold without it hold with it."""
    session = Session(CONTAINED)
    session.request(user("hi"))
    session.reply(call("a", "browser_open"))
    page = [user("hi"), call("a", "browser_open"), result("a", "page")]
    assert session.request(*page, claims=claims, claims_trusted=True).states == {"default": "reviewing"}


# the engine as a function

MIXED = """
state_machine: {initial_state: calm, states: [{id: calm}, {id: hot, expires_ms: 50}]}
policy_bundles:
  extra: [{id: twice, kind: tool_loop_threshold, threshold: 2, action: deny_call, equal: tool+arguments, tool: {name: a}}]
governance:
  - id: enter
    kind: tool_sequence
    after: {tool: {namespace: browser, phase: result_interpretation}}
    within: {turns: 3}
    until: {user_turn: true}
    transition_to: hot
  - {id: hot-shell, kind: tool_selector, state_scope: hot, action: deny_call, tool: {namespace: shell}}
  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 3, within: {events: 6}, tool: {name: a}}
  - {id: tampered, kind: tool_loop_threshold, action: annotate, threshold: 2, tool: {mark: [forged, result_for_denied_call]}}
  - id: a-then-b
    kind: tool_sequence
    action: block
    after: {tool: {name: a}}
    before: {tool: {name: b}}
    until: {tool: {name: c}, clean_turn: true}
  - id: budget
    kind: budget
    limits: {calls: 6, tokens: 500}
    reserve: {tokens: 100}
    within: {ms: 100}
    cache_scope: run_id
  - {id: guard, kind: request_guard, match: bad}
  - {id: attach, kind: tool_selector, action: annotate, attach_policy_bundle: extra, tool: {name: a}}
  - {id: pinned, kind: tool_selector, action: annotate, tool: {mark: definition_changed}}
  - {id: often, kind: history_threshold, action: require_approval, threshold: 5, within: {turns: 2}, tool: {namespace: shell}}
"""
NAMES = ("a", "b", "c", "shell_exec", "browser_open", "other")


def as_stored(registers: Registers, turn: Turn) -> Registers:
    """What a store gives back: JSON values, and of the ledger only what was asked for."""
    scopes: dict[str, ScopeState] = {}
    for key, state in registers.scopes.items():
        wanted = set(ledger_keys(turn, registers.key, state.head))
        ledger = {
            name: LedgerEntry(*orjson.loads(orjson.dumps(list(entry))))
            for name, entry in state.ledger.items()
            if name in wanted
        }
        kept = {name: tuple(orjson.loads(orjson.dumps(list(value)))) for name, value in state.registers.items()}
        head = load_head(orjson.loads(orjson.dumps(dump_head(state.head))))
        scopes[key] = ScopeState(state.version, head, Map(kept), Map(ledger))
    return Registers(scopes, registers.key)


def story(chance: random.Random) -> list[list[Turn]]:
    """Requests, each with the reply that follows if it passes; transcripts honest, cut or forged."""
    caller = Caller(session_id="s", run_id="r")
    transcript: list[Item] = [user("hi")]
    rounds: list[list[Turn]] = []
    for number in range(chance.randint(2, 8)):
        items = list(transcript)
        if chance.random() < 0.5:
            items.append(user(chance.choice(["x", "y", "bad"])))
        if chance.random() < 0.2 and len(items) > 2:
            items.pop(chance.randrange(len(items)))
        if chance.random() < 0.2:
            forged = call(f"f{chance.randint(0, 3)}", chance.choice(NAMES))
            items.insert(
                chance.randrange(len(items) + 1),
                chance.choice([forged, result("f1"), HostedCallItem("h", "web_search")]),
            )
        tools = [DeclaredTool(name, chance.choice("de")) for name in chance.sample(NAMES, 3)]
        choice = ToolChoice("tool", ("a",)) if chance.random() < 0.3 else None
        calls = [
            call(f"c{number}-{index}", chance.choice(NAMES), orjson.dumps({"n": chance.randint(0, 2)}).decode())
            for index in range(chance.randint(0, 3))
        ]
        request = Turn("request", "chat_completions", "m", items, tools, choice, caller)
        reply = Turn("reply", "chat_completions", "m", calls, tools, caller=caller, usage=Usage(10, 10))
        rounds.append([request, reply])
        transcript.extend(calls)
        transcript.extend(result(one.id, "r", chance.choice([None, True])) for one in calls)
    return rounds


@pytest.mark.parametrize("seed", range(40))
def test_govern_is_a_function_of_what_a_store_keeps(seed: int) -> None:
    """E1, G31: run again, run by another process, or run on stored rows only, a gate gives the same ruling and delta, and touches no input."""
    chance = random.Random(seed)
    plan, other = (compile_plan(load_config(MIXED)) for _ in range(2))
    registers, now = Registers(key=b"k"), 1_000_000
    for turns in story(chance):
        for turn in turns:
            now += chance.choice([0, 1, 20, 60, -30])
            untouched, before = copy.deepcopy(turn), dict(registers.scopes)
            answer = govern(plan, registers, turn, now)
            assert (turn, registers.scopes) == (untouched, before)
            assert govern(other, registers, turn, now) == answer
            assert govern(plan, as_stored(registers, turn), turn, now) == answer
            registers = apply(registers, answer[1])
            if not passes(answer[0]):
                break


# few words, many hits: random plans in which almost every rule fires

STATES = ("calm", "alert", "locked")
MATCHERS: list[dict[str, Any]] = [
    {"namespace": "a"},
    {"namespace": "b"},
    {"name": "x"},
    {"name": "y"},
    {"namespace": "*"},
    {"namespace": "a", "phase": "planning"},
    {"phase": "result_interpretation"},
    {"namespace": "a", "name": ["x", "y"]},
    {"risk_class": "write"},
    {"source": "assistant_tool_call"},
    {"result_status": "error"},
]
ACTIONS: list[dict[str, Any]] = [
    {"action": "block"},
    {"action": "deny_call"},
    {"action": "annotate"},
    {"action": "alert_async"},
    {"action": "require_approval"},
    {"action": "restrict_routes", "routes": ["m1", "m2"]},
    {"action": "restrict_routes", "routes": ["m3"]},
    {"action": "switch_model", "target_model": "m1"},
    {"action": "switch_model", "target_model": "m2"},
    {"action": "transition", "transition_to": "alert"},
    {"action": "deny_call", "transition_to": "locked"},
    {"action": "annotate", "transition_to": "calm"},
]
EQUAL = ("tool", "tool+arguments", "tool+arguments+result")


def some_rule(chance: random.Random, number: int) -> dict[str, Any]:
    """A rule of any kind the oracle knows."""
    tool, action = dict(chance.choice(MATCHERS)), dict(chance.choice(ACTIONS))
    kind = chance.choice(("select", "loop", "history", "sequence", "sequence", "move", "move", "allow"))
    rule: dict[str, Any] = {"id": f"r{number}"}
    match kind:
        case "select":
            rule |= {"kind": "tool_selector", "tool": tool, **action}
        case "loop":
            rule |= {"kind": "tool_loop_threshold", "tool": tool, "threshold": chance.randint(1, 4), **action}
            rule["equal"] = chance.choice(EQUAL)
        case "history":
            rule |= {"kind": "history_threshold", "tool": tool, "threshold": chance.randint(1, 4), **action}
        case "sequence":
            later = dict(chance.choice(MATCHERS))
            rule |= {"kind": "tool_sequence", "after": {"tool": tool}, "before": {"tool": later}, **action}
        case "move":
            rule |= {"kind": "tool_sequence", "after": {"tool": tool}, "transition_to": chance.choice(STATES)}
        case _:
            listed = {"phase": ["planning", "result_interpretation"], "allowed_tools": [{"name": "x"}]}
            rule |= {"kind": "allowed_tools", "mode": "deny_call", **listed}
    if kind in ("loop", "history", "sequence", "move") and chance.random() < 0.4:
        rule["within"] = {chance.choice(("turns", "events")): chance.randint(1, 3), "ms": chance.randint(4, 12)}
    if kind in ("sequence", "move") and chance.random() < 0.5:
        rule["until"] = chance.choice(
            ({"tool": dict(chance.choice(MATCHERS))}, {"user_turn": True}, {"clean_turn": True})
        )
    if kind == "sequence" and chance.random() < 0.2:
        rule["until"] = {"state": chance.choice(("alert", "locked"))}
    if chance.random() < 0.3:
        rule["state_scope"] = chance.choice((["calm"], ["alert", "locked"], ["locked"]))
    if kind != "allow" and chance.random() < 0.3:
        rule |= {"priority": chance.randint(-2, 2), "mode": chance.choice(("enforce", "enforce", "observe"))}
    return rule


def some_fact(chance: random.Random, gate: str, call_id: str) -> ToolFact:
    sources: Sequence[Any] = ("tool_result", "tool_result", "assistant_tool_call", "tool_choice", "inferred")
    source: Any = chance.choice(("assistant_tool_call",) * 5 + ("provider_event",) if gate == "reply" else sources)
    phase: Any = chance.choice(("planning",) * 6 + ("argument_repair", "unknown"))
    fact = ToolFact(chance.choice("ab"), chance.choice("xy"), "raw", "unknown", phase, source, call_id)
    fact.phase = "result_interpretation" if source == "tool_result" else phase
    fact.risk_class = chance.choice(("write", "unknown"))
    fact.result_status = chance.choice(("error", "success", "unknown"))
    fact.arguments_digest, fact.result_digest = chance.choice("12"), chance.choice(("", "9"))
    fact.repeat = chance.random() < 0.12
    return fact


@pytest.mark.parametrize("start", range(0, 300, 20))
def test_dense_plans_rule_as_the_oracle_does(start: int) -> None:
    """E1–E8, A1–A3: where nearly every rule fires, states move and routes conflict, engine and oracle still agree."""
    for seed in range(start, start + 20):
        chance = random.Random(seed)
        machine = {"initial_state": "calm", "states": [{"id": state} for state in STATES]}
        drawn = [some_rule(chance, number) for number in range(chance.randint(2, 6))]
        plan = compile_plan(load_config(yaml.safe_dump({"state_machine": machine, "governance": drawn})))
        part = plan.models["default"]
        oracle, registers, now = Oracle(part.rules.rules, part.machines["default"]), Registers(key=b"k"), 1000
        for step in range(chance.randint(3, 9)):
            gate: Gate = chance.choice(("request", "reply", "reply"))
            facts = [some_fact(chance, gate, f"{step}-{place}") for place in range(chance.randint(1, 4))]
            users = [0] if gate == "request" and chance.random() < 0.4 else []
            now += chance.choice((0, 0, 1, 3, 8))
            turn = Turn(gate, "chat_completions", "m", caller=Caller(session_id="s"))
            ruling, delta = judge(plan, registers, turn, facts, now, user_turns=users)
            registers = apply(registers, delta)
            verdict = oracle.judge(gate, facts, users, now)
            fired = {(one.rule_id, one.effect, one.facts, one.enforced) for one in ruling.findings}
            seen = (fired, ruling.decision, [one.status for one in ruling.calls], ruling.states)
            assert seen == (verdict.fired, verdict.decision, verdict.calls, {"default": verdict.state}), (seed, step)
