"""What is new, what is current: retries meet the same ruling and count once, however a transcript is cut into requests."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.facts import stored
from wardwright.history import Registers, apply, ledger_keys, scope_key
from wardwright.policy.compile import Plan
from wardwright.wire import Caller, CallItem, DeclaredTool, Item, ResultItem, TextItem, ToolChoice, Turn

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


@settings(max_examples=100)
@given(transcripts(), transcripts())
def test_the_named_ledger_entries_are_enough(first: list[Item], second: list[Item]) -> None:
    """G31: a store that loads only what `ledger_keys` names serves the same ruling as one that loads all."""
    registers = Registers(key=b"k")
    registers = apply(registers, govern(EMPTY, registers, request(first), 1)[1])
    scope = scope_key("session_id", CALLER)
    state = registers.scopes[scope]
    asked = request(second, tools=[DeclaredTool("a.x")], tool_choice=ToolChoice("tool", ("a.x",)))
    wanted = set(ledger_keys(asked, b"k", state.head))
    sparse = state.ledger.mutate()
    for name in state.ledger:
        if name not in wanted:
            sparse.pop(name)
    partly = Registers({scope: state._replace(ledger=sparse.finish())}, b"k")
    whole, delta = govern(EMPTY, registers, asked, 2)
    part, other = govern(EMPTY, partly, asked, 2)
    assert [stored(fact) for fact in part.facts] == [stored(fact) for fact in whole.facts]
    assert (part.notes, other.scopes[0].head, other.scopes[0].ledger) == (
        whole.notes,
        delta.scopes[0].head,
        delta.scopes[0].ledger,
    )
