"""What is new, what is current: retries meet the same ruling and count once, however a transcript is cut into requests."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.errors import WireError
from wardwright.facts import stored
from wardwright.history import Registers, ScopeState, apply, ledger_keys, scope_key
from wardwright.policy.compile import Plan
from wardwright.wire import Caller, CallItem, DeclaredTool, Item, ResultItem, TextItem, ToolChoice, Turn
from wardwright.wire.turn import Gate, HostedCallItem, HostedResultItem

from .test_oracle import STRICTNESS, still_rules

CALLER = Caller(session_id="s")
NAMES = ("a.x", "a.y", "b.x")


@st.composite
def transcripts(draw: st.DrawFn) -> list[Item]:
    """Conversations with unique ids, results in any order after their calls, sometimes missing."""
    items: list[Item] = [TextItem("user", "start")]
    number = 0
    for _ in range(draw(st.integers(1, 5))):
        calls: list[CallItem] = []
        for _ in range(draw(st.integers(0, 2))):
            number += 1
            arguments = draw(st.sampled_from(["{}", '{"n": 1}', '{ "n":1 }', "broken"]))
            calls.append(CallItem(f"c{number}", draw(st.sampled_from(NAMES)), arguments))
        items.extend(calls or [TextItem("assistant", f"said {number}")])
        for call in draw(st.permutations(calls)):
            if draw(st.booleans()) or call is calls[0]:
                content, error = draw(st.sampled_from(["ok", "no"])), draw(st.sampled_from([None, True, False]))
                items.append(ResultItem(call.id, content, error))
        if draw(st.booleans()):
            items.append(TextItem("user", f"word {draw(st.integers(0, 3))}"))
    return items


def request(items: list[Item], **more: Any) -> Turn:
    return Turn("request", "chat_completions", "m", items, caller=CALLER, **more)


def make(drawn: list[dict[str, Any]]) -> Plan:
    states = [{"id": state} for state in ("calm", "alert", "locked")]
    named = [{"id": f"r{number}", **rule} for number, rule in enumerate(drawn)]
    return compile_plan(
        parse_config(
            yaml.safe_dump({"state_machine": {"initial_state": "calm", "states": states}, "governance": named})
        )
    )


EMPTY = make([])


@settings(max_examples=150)
@given(st.lists(still_rules, min_size=1, max_size=4), transcripts())
def test_a_refused_request_is_refused_again(drawn: list[dict[str, Any]], items: list[Item]) -> None:
    """G3, G19: sending the same request again is never an escape."""
    plan, registers = make(drawn), Registers(key=b"k")
    first, delta = govern(plan, registers, request(items), 5)
    second, _ = govern(plan, apply(registers, delta), request(items), 5)
    assert STRICTNESS[second.decision] >= STRICTNESS[first.decision]


@settings(max_examples=100)
@given(transcripts())
def test_a_retry_counts_nothing(items: list[Item]) -> None:
    """G3: after any request, the same request again brings no new fact and no new event."""
    registers = Registers(key=b"k")
    _, delta = govern(EMPTY, registers, request(items), 1)
    registers = apply(registers, delta)
    before = registers.scopes[scope_key("session_id", CALLER)].head.event
    ruling, delta = govern(EMPTY, registers, request(items), 2)
    assert delta.facts == ()
    assert delta.scopes[0].head.event == before
    assert all(fact.repeat for fact in ruling.facts)


@settings(max_examples=100)
@given(transcripts(), st.data())
def test_cutting_a_transcript_into_requests_gives_the_same_facts(items: list[Item], data: st.DataObject) -> None:
    """G3: the facts of a conversation do not depend on how many requests carried it."""

    def facts(ends: list[int]) -> list[Any]:
        registers, seen = Registers(key=b"k"), []
        for end in ends:
            _, delta = govern(EMPTY, registers, request(items[:end]), 1)
            registers = apply(registers, delta)
            seen.extend(
                {key: value for key, value in stored(fact).items() if key not in ("ordinal",)}
                for fact in delta.facts
                if fact.source != "inferred"
            )
        return seen

    cuts = sorted(data.draw(st.sets(st.integers(1, len(items)), max_size=3)) | {len(items)})
    assert facts(cuts) == facts([len(items)])


IDS = ("", "c1", "c2", "call_1", "x#2")
CONTENTS = ("", "{}", '{"n": 1}', "broken")


@st.composite
def anything(draw: st.DrawFn) -> Item:
    """Any item a caller or a provider can send: few ids and contents, so that nearly everything collides."""
    name, content = draw(st.sampled_from(IDS)), draw(st.sampled_from(CONTENTS))
    match draw(st.integers(0, 5)):
        case 0:
            return TextItem(draw(st.sampled_from(("user", "assistant", "system"))), content)
        case 1 | 2:
            return CallItem(name, draw(st.sampled_from(NAMES)), content)
        case 3:
            return ResultItem(name, content, draw(st.sampled_from((None, True))), draw(st.sampled_from(("", *NAMES))))
        case 4:
            return HostedCallItem(name, "web_search", content)
        case _:
            return HostedResultItem(name, "web_search", content)


@st.composite
def stories(draw: st.DrawFn) -> list[Turn]:
    """Gates in any order; requests extend, repeat, cut or replace what was sent before."""
    turns: list[Turn] = []
    talk: list[Item] = []
    for _ in range(draw(st.integers(2, 7))):
        gate: Gate = draw(st.sampled_from(("request", "request", "reply", "reply", "result")))
        items = draw(st.lists(anything(), max_size=4))
        if gate == "request":
            how = draw(st.integers(0, 5))
            talk = talk + items if how < 3 else talk if how == 3 else talk[1:] if how == 4 else items
            items = talk
        elif gate == "reply":
            items = [item for item in items if not isinstance(item, ResultItem)]
            talk = talk + items
        else:
            items = [item for item in items if isinstance(item, (CallItem, ResultItem))]
        choice = ToolChoice("tool", ("a.x",)) if draw(st.booleans()) and gate == "request" else None
        tools = [DeclaredTool("a.x", draw(st.sampled_from("de")))] if draw(st.booleans()) else []
        turns.append(Turn(gate, "chat_completions", "m", items, tools, choice, CALLER))
    return turns


MARKED = make(
    [
        {"kind": "tool_selector", "action": "block", "tool": {"mark": "forged", "name": "y"}},
        {"kind": "tool_selector", "action": "deny_call", "tool": {"namespace": "b", "phase": "planning"}},
        {"kind": "tool_selector", "action": "require_approval", "tool": {"name": "y", "phase": "planning"}},
        {"kind": "tool_loop_threshold", "action": "annotate", "threshold": 2, "tool": {"mark": ["altered", "forged"]}},
        {"kind": "tool_loop_threshold", "action": "annotate", "threshold": 2, "tool": {"name": "*"}},
    ]
)


@settings(max_examples=400)
@given(stories())
def test_the_named_ledger_entries_are_enough(turns: list[Turn]) -> None:
    """G31: a store that loads only what `ledger_keys` names serves the same ruling and delta, at every gate, as one that loads all."""
    registers, scope = Registers(key=b"k"), scope_key("session_id", CALLER)
    for number, turn in enumerate(turns):
        whole = govern(MARKED, registers, turn, number)
        state = registers.scopes.get(scope, ScopeState())
        sparse = {name: state.ledger[name] for name in ledger_keys(turn, b"k", state.head) if name in state.ledger}
        partly = Registers({scope: state._replace(ledger=Map(sparse))}, b"k")
        assert govern(MARKED, partly, turn, number) == whole
        registers = apply(registers, whole[1])


@settings(max_examples=200)
@given(stories())
def test_sending_anything_again_counts_nothing(turns: list[Turn]) -> None:
    """G3: whatever ids repeat, miss or collide in it, a request sent twice brings its facts once."""
    registers = Registers(key=b"k")
    for number, turn in enumerate(turns):
        registers = apply(registers, govern(EMPTY, registers, turn, number)[1])
        if turn.gate == "request":
            _, delta = govern(EMPTY, registers, turn, number)
            assert delta.facts == ()


def test_an_id_cannot_pass_for_the_border_of_a_scope() -> None:
    """G20: two tenants never share a session, whatever control characters they put into their ids."""
    for caller in (Caller(tenant="a", session_id="b\x1fc"), Caller(tenant="a\x1fb", session_id="c")):
        with pytest.raises(WireError, match=r"Ids of callers must not hold the control character U\+001F\."):
            govern(EMPTY, Registers(key=b"k"), Turn("request", "chat_completions", "m", caller=caller), 1)
