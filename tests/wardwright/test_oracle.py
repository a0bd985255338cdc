"""The engine and a naive oracle agree on random plans, histories and events; and the promises of arbitration hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright import compile_plan
from wardwright.config import parse_config
from wardwright.facts import ToolFact
from wardwright.gateway import govern, judge, passes
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import Caller, CallItem, ResultItem, TextItem, Turn

from .oracle import Oracle

NAMESPACES, NAMES = ("a", "b"), ("x", "y")
STATES = ("calm", "alert", "locked")
CALL, RESULT = "assistant_tool_call", "result_interpretation"
PHASES = ("planning", "argument_repair", "result_interpretation")

some = st.sampled_from
plain = some(
    [
        {"namespace": "a"},
        {"namespace": "b"},
        {"name": "x"},
        {"namespace": "*", "name": "y"},
        {"namespace": "a", "phase": "planning"},
        {"name": "?", "phase": "result_interpretation"},
        {"phase": ["planning", "result_interpretation"]},
    ]
)
picky = st.fixed_dictionaries(
    {},
    optional={
        "namespace": some(["a", ["a", "b"], "A"]),
        "name": some(["x", "y", ["x", "z"]]),
        "phase": some(PHASES),
        "risk_class": some(["write", ["write", "unknown"]]),
        "source": some(["assistant_tool_call", "tool_result", "inferred", ["tool_choice", "provider_event"]]),
        "result_status": some(["error", ["success", "unknown"]]),
    },
).filter(bool)
matchers = st.one_of(plain, plain, plain, picky)
windows = st.one_of(
    st.fixed_dictionaries({"ms": some([1, 3])}),
    st.fixed_dictionaries(
        {}, optional={"turns": st.integers(1, 2), "events": st.integers(1, 4), "ms": some([1, 3, 6])}
    ).filter(bool),
)
actions = some(
    [
        {"action": "block"},
        {"action": "deny_call"},
        {"action": "annotate"},
        {"action": "annotate", "transition_to": "alert"},
        {"action": "require_approval"},
        {"action": "restrict_routes", "routes": ["m1", "m2"]},
        {"action": "restrict_routes", "routes": ["m2", "m3"]},
        {"action": "restrict_routes", "routes": ["m3"]},
        {"action": "switch_model", "target_model": "m1"},
        {"action": "switch_model", "target_model": "m2"},
        {"action": "alert_async"},
        {"action": "annotate"},
        {"action": "transition", "transition_to": "alert"},
        {"action": "block", "transition_to": "locked"},
        {"action": "annotate", "transition_to": "calm"},
    ]
)
common = st.fixed_dictionaries(
    {},
    optional={
        "state_scope": some(["calm", ["alert", "locked"], "locked"]),
        "mode": some(["enforce", "observe"]),
        "priority": st.integers(-2, 2),
    },
)
untils = st.fixed_dictionaries(
    {},
    optional={"tool": matchers, "user_turn": st.just(True), "clean_turn": st.just(True)},
).filter(bool)


def merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda dicts: {key: value for one in dicts for key, value in one.items()})


def kind(name: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(name), **fields})


maybe_window = st.one_of(st.just({}), windows.map(lambda window: {"within": window}))
maybe_until = st.one_of(st.just({}), untils.map(lambda until: {"until": until}))
state_until = some([{"until": {"state": "alert"}}, {"until": {"state": "calm", "user_turn": True}}])
# Rules that meet often: what moves one machine at once, and what lasts until a clean turn.
broad = some([{"name": "*"}, {"namespace": "a"}])
clean = st.just({"until": {"clean_turn": True}})
movers = merged(
    kind("tool_selector", tool=broad, action=st.just("transition"), transition_to=some(STATES)),
    st.fixed_dictionaries({"priority": st.integers(-2, 2)}),
)
lasting = merged(kind("tool_sequence", after=broad.map(lambda m: {"tool": m}), transition_to=some(STATES[1:])), clean)
pairs = merged(
    kind("tool_sequence", after=plain.map(lambda m: {"tool": m}), before=broad.map(lambda m: {"tool": m})),
    st.just({"action": "annotate"}),
    clean,
)
usual = st.one_of(
    merged(kind("tool_selector", tool=matchers), actions, common),
    merged(
        kind(
            "tool_loop_threshold",
            tool=matchers,
            threshold=st.integers(1, 4),
            equal=some(["tool", "tool+arguments", "tool+arguments+result"]),
        ),
        actions,
        common,
        maybe_window,
    ),
    merged(kind("history_threshold", tool=matchers, threshold=st.integers(1, 4)), actions, common, maybe_window),
    merged(
        kind("tool_sequence", after=matchers.map(lambda m: {"tool": m}), before=matchers.map(lambda m: {"tool": m})),
        actions,
        common,
        maybe_window,
        st.one_of(maybe_until, state_until),
    ),
    merged(
        kind("tool_sequence", after=matchers.map(lambda m: {"tool": m}), transition_to=some(STATES)),
        common,
        maybe_window,
        maybe_until,
    ),
    merged(
        kind(
            "allowed_tools",
            phase=some([["planning"], ["planning", "result_interpretation"], ["result_interpretation"]]),
            allowed_tools=some([[{"name": "x"}], [{"namespace": "a", "name": "y"}, {"namespace": "b", "name": "x"}]]),
        ),
        st.just({"mode": "deny_call"}),
        st.fixed_dictionaries({}, optional={"state_scope": some(["calm", "locked"])}),
    ),
)


rules = st.one_of(usual, usual, movers, lasting, pairs)


@st.composite
def plans(draw: st.DrawFn) -> str:
    drawn = draw(st.lists(rules, min_size=1, max_size=4))
    document = {
        "state_machine": {"initial_state": "calm", "states": [{"id": state} for state in STATES]},
        "governance": [{"id": f"r{number}", **rule} for number, rule in enumerate(drawn)],
    }
    return yaml.safe_dump(document)


@st.composite
def facts(draw: st.DrawFn, reply: bool) -> ToolFact:
    source = draw(
        some(["assistant_tool_call", "assistant_tool_call", "provider_event"])
        if reply
        else some(
            ["assistant_tool_call", "tool_result", "tool_choice", "provider_event", "inferred", "caller_metadata"]
        )
    )
    phase = draw(some(["planning", "planning", "planning", *PHASES, "unknown"]))
    return ToolFact(
        draw(some(NAMESPACES)),
        draw(some(NAMES)),
        "raw",
        draw(some(["write", "unknown"])),
        phase,
        source,
        result_status=draw(some(["error", "success", "unknown"])),
        arguments_digest=draw(some(["1", "2"])),
        result_digest=draw(some(["", "9"])),
        repeat=draw(some([False, False, False, True])),
    )


@st.composite
def gates(draw: st.DrawFn) -> tuple[str, list[ToolFact], list[int], int]:
    gate = draw(some(["request", "reply", "reply"]))
    events = draw(st.lists(facts(reply=gate == "reply"), max_size=4))
    users = draw(st.lists(st.integers(0, 3), max_size=1)) if gate == "request" else []
    return gate, events, [user for user in users if user < len(events)], draw(some([0, 1, 1, 3]))


stories = st.lists(gates(), min_size=3, max_size=9)


def ask(
    plan: Plan, registers: Registers, gate: str, events: list[ToolFact], users: list[int], now: int
) -> tuple[Ruling, Registers]:
    turn = Turn(gate, "chat_completions", "m", caller=Caller(session_id="s"))  # pyright: ignore[reportArgumentType]
    for number, fact in enumerate(events):
        fact.tool_call_id = f"{now}-{number}"
    ruling, delta = judge(plan, registers, turn, events, now, user_turns=users)
    return ruling, apply(registers, delta)


def fired(ruling: Ruling) -> set[tuple[str, str, tuple[int, ...], bool]]:
    return {(one.rule_id, one.effect, one.facts, one.enforced) for one in ruling.findings}


def told(ruling: Ruling) -> tuple[set[tuple[str, str, tuple[int, ...], bool]], str, list[str], str]:
    return fired(ruling), ruling.decision, [call.status for call in ruling.calls], ruling.states["default"]


@settings(max_examples=400)
@given(plans(), stories)
def test_engine_and_oracle_agree(text: str, story: list[tuple[str, list[ToolFact], list[int], int]]) -> None:
    """E1–E8, A1–A3: the incremental engine rules as full recomputation does, gate after gate."""
    plan = compile_plan(parse_config(text))
    part = plan.model("m")
    assert part is not None
    oracle, registers, now = Oracle(part.rules.rules, part.machines["default"]), Registers(key=b"k"), 1000
    for gate, events, users, step in story:
        now += step
        ruling, registers = ask(plan, registers, gate, events, users, now)
        assert told(ruling) == oracle.judge(gate, events, users, now)


STRICTNESS = {"allow": 0, "require_approval": 1, "deny_call": 2, "block": 3}
still_rules = st.one_of(usual, pairs).filter(lambda rule: "transition_to" not in rule and "priority" not in rule)


def document(drawn: list[dict[str, Any]]) -> Plan:
    machine = {"initial_state": "calm", "states": [{"id": state} for state in STATES]}
    return compile_plan(parse_config(yaml.safe_dump({"state_machine": machine, "governance": drawn})))


@settings(max_examples=60)
@given(st.lists(still_rules, min_size=2, max_size=5), stories, st.randoms(use_true_random=False))
def test_declaration_order_does_not_matter(
    drawn: list[dict[str, Any]], story: list[tuple[str, list[ToolFact], list[int], int]], shuffler: Any
) -> None:
    """A1: without transitions and priorities, shuffling the rules changes no decision, no call and no route."""
    named = [{"id": f"r{number}", **rule} for number, rule in enumerate(drawn)]
    shuffled = list(named)
    shuffler.shuffle(shuffled)
    plain, other = document(named), document(shuffled)
    left = right = Registers(key=b"k")
    now = 1000
    for gate, events, users, step in story:
        now += step
        one, left = ask(plain, left, gate, events, users, now)
        two, right = ask(other, right, gate, events, users, now)
        assert one.decision == two.decision
        assert [call.status for call in one.calls] == [call.status for call in two.calls]
        assert set(one.route.allowed or ()) == set(two.route.allowed or ())
        assert fired(one) == fired(two)


@settings(max_examples=80)
@given(st.lists(rules, max_size=4), rules, gates())
def test_one_more_rule_never_permits_more(
    drawn: list[dict[str, Any]], extra: dict[str, Any], event: tuple[str, list[ToolFact], list[int], int]
) -> None:
    """A2: deny overrides; a further rule can only make the ruling of a gate stricter."""
    gate, events, users, now = event
    named = [{"id": f"r{number}", **rule} for number, rule in enumerate(drawn)]
    still = {key: value for key, value in extra.items() if key != "transition_to"}
    if still.get("action") == "transition" or (extra["kind"] == "tool_sequence" and "action" not in extra):
        still = {"kind": "tool_selector", "action": "annotate", "tool": {"namespace": "a"}}
    before, _ = ask(document(named), Registers(key=b"k"), gate, events, users, now)
    after, _ = ask(document([*named, {"id": "extra", **still}]), Registers(key=b"k"), gate, events, users, now)
    assert STRICTNESS[after.decision] >= STRICTNESS[before.decision]
    for one, two in zip(before.calls, after.calls, strict=True):
        assert STRICTNESS[two.status] >= STRICTNESS[one.status]


@st.composite
def talks(draw: st.DrawFn) -> list[tuple[list[tuple[str, str, str]], bool]]:
    """Per round: the calls of the reply (name, arguments, result), and whether the request comes twice."""
    call = st.tuples(some(["a.x", "a.y", "b.x"]), some(["{}", '{"n":1}']), some(["1", "2"]))
    return draw(st.lists(st.tuples(st.lists(call, max_size=3), st.booleans()), min_size=1, max_size=5))


def naive(source: str, phase: str, name: str, arguments: str, result: str = "", *, repeat: bool = False) -> ToolFact:
    namespace, tool = name.split(".")
    fact = ToolFact(namespace, tool, name, "unknown", phase, source, repeat=repeat)  # pyright: ignore[reportArgumentType]
    fact.arguments_digest, fact.result_digest = arguments, result
    return fact


@settings(max_examples=200)
@given(plans(), talks())
def test_engine_and_oracle_agree_on_raw_conversations(
    text: str, talk: list[tuple[list[tuple[str, str, str]], bool]]
) -> None:
    """E1–E8: from the words of a conversation, with retries and refusals, the engine rules as a naive reader does."""
    plan = compile_plan(parse_config(text))
    part = plan.model("m")
    assert part is not None
    caller, registers = Caller(session_id="s"), Registers(key=b"k")
    oracle, now, number = Oracle(part.rules.rules, part.machines["default"]), 1000, 0
    items: list[Any] = [TextItem("user", "0")]
    news: list[ToolFact] = []
    for calls, again in talk:
        for repeat in (False, True)[: 1 + again]:
            now += 3
            ruling, delta = govern(
                plan, registers, Turn("request", "chat_completions", "m", list(items), caller=caller), now
            )
            registers = apply(registers, delta)
            seen = [replace(fact, repeat=repeat) for fact in news]
            assert told(ruling) == oracle.judge("request", seen, [], now)
            assert [fact.phase for fact in ruling.facts] == [fact.phase for fact in news]
        if not passes(ruling):
            return
        now += 3
        made = [CallItem(f"c{number + index}", name, words) for index, (name, words, _) in enumerate(calls)]
        number += len(calls)
        reply: list[Any] = [*made, *([] if made else [TextItem("assistant", "done")])]
        ruling, delta = govern(plan, registers, Turn("reply", "chat_completions", "m", reply, caller=caller), now)
        registers = apply(registers, delta)
        assert told(ruling) == oracle.judge("reply", [naive(CALL, "planning", *one[:2]) for one in calls], [], now)
        if not passes(ruling):
            return
        let = [index for index, call in enumerate(ruling.calls) if call.status == "allow"]
        items += [made[index] for index in let] if made else reply
        items += [ResultItem(made[index].id, calls[index][2]) for index in let]
        news = [naive("tool_result", RESULT, *calls[index]) for index in let]
