"""G22, W1: what is remembered of a conversation's earlier items changes nothing that is judged, only what it costs."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright import compile_plan, load_config
from wardwright.gateway import govern
from wardwright.history import EMPTY_SCOPE, Registers, apply, scope_key
from wardwright.wire import Caller, CallItem, Turn, chat_completions
from wardwright.wire.growth import Transcripts

PLAN = compile_plan(
    load_config("""
model_id: m
governance:
  - {id: loop, kind: tool_loop_threshold, action: deny_call, equal: tool+arguments, threshold: 3, tool: {name: ping}}
  - {id: order, kind: tool_sequence, action: block, after: {tool: {name: ping}}, then: {tool: {name: push}}, within: {turns: 3}}
  - {id: words, kind: request_guard, action: block, match: forbidden}
""")
)
NOW = 1_700_000_000_000
CALLER = Caller("t", session_id="s")
SCOPE = scope_key("session_id", CALLER)

IDS = st.sampled_from(["a", "b", "c", "d", "e", "", "x" * 300])
NAMES = st.sampled_from(["ping", "push", "read"])
ARGUMENTS = st.sampled_from(["{}", '{"n": 1}', "no json"])
CALLS = st.lists(st.tuples(IDS, NAMES, ARGUMENTS), min_size=1, max_size=2)
WORDS = st.sampled_from(["hello", "forbidden", "", "again"])
USERS = st.builds(lambda text: {"role": "user", "content": text}, WORDS)
RESULTS = st.builds(lambda one, text: {"role": "tool", "tool_call_id": one, "content": text}, IDS, WORDS)
ANSWERS = st.builds(
    lambda calls, text: {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in calls
        ],
    },
    CALLS,
    WORDS,
)
MESSAGES = st.one_of(USERS, RESULTS, ANSWERS)


def judged(registers: Registers, turn: Turn) -> tuple[Any, Registers]:
    turn.caller = CALLER
    ruling, delta = govern(PLAN, registers, turn, NOW)
    return (ruling, delta), apply(registers, delta)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_conversation_is_judged_as_if_every_request_were_read_alone(data: st.DataObject) -> None:
    """Same rulings, same facts, same ledger: whether a conversation goes on, is edited, repeats itself or its ids, or is judged twice."""
    transcripts = Transcripts()
    one = other = Registers({SCOPE: EMPTY_SCOPE}, b"k" * 32)
    messages: list[Any] = data.draw(st.lists(MESSAGES, min_size=1, max_size=2))
    for _ in range(5):
        raw = json.dumps({"model": "m", "messages": messages}).encode()
        _, turn = transcripts.read("somebody", raw)
        if data.draw(st.booleans()):
            govern(PLAN, one, _called(turn), NOW)  # judged, and in vain: another process was first
        said, one = judged(one, turn)
        expected, other = judged(other, chat_completions.parse_request(raw))
        assert said == expected
        if data.draw(st.booleans()):
            answer = data.draw(ANSWERS)
            reply = {"choices": [{"index": 0, "message": answer}]}
            answered = chat_completions.parse_reply(json.dumps(reply).encode())
            answered.repeated = turn.repeated
            said, one = judged(one, answered)
            expected, other = judged(other, chat_completions.parse_reply(json.dumps(reply).encode()))
            assert said == expected
            if data.draw(st.booleans()):
                messages = [*messages, answer]  # as an agent does
        if data.draw(st.integers(0, 3)) == 0 and len(messages) > 1:
            messages = messages[:-1]
        messages = [*messages, *data.draw(st.lists(MESSAGES, max_size=3))]


def _called(turn: Turn) -> Turn:
    turn.caller = CALLER
    return turn


def test_little_is_remembered_of_what_a_reply_said() -> None:
    """W3: arguments of any length pass, and only short ones are kept until the next request shows them again."""
    transcripts, registers = Transcripts(), Registers({SCOPE: EMPTY_SCOPE}, b"k" * 32)
    _, turn = transcripts.read("somebody", b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}')
    _, registers = judged(registers, turn)
    texts = ["{}", json.dumps({"text": "x" * 300}), json.dumps({"text": "y" * 300})]
    calls = [CallItem(f"id{index}", "ping", text) for index, text in enumerate(texts)]
    answered = Turn("reply", "chat_completions", "m", calls)
    answered.repeated = turn.repeated
    judged(registers, answered)
    assert turn.repeated is not None
    assert list(turn.repeated.said) == texts[:2]


def test_what_a_reply_said_under_one_key_is_not_used_under_another() -> None:
    """G22: a conversation that goes on in another session, or after its key was changed, is digested anew."""
    transcripts, registers = Transcripts(), Registers({SCOPE: EMPTY_SCOPE}, b"k" * 32)
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    _, turn = transcripts.read("somebody", json.dumps({"model": "m", "messages": messages}).encode())
    _, registers = judged(registers, turn)
    answered = Turn("reply", "chat_completions", "m", [CallItem("a", "ping", '{"n": 1}')])
    answered.repeated = turn.repeated
    judged(registers, answered)
    function = {"name": "ping", "arguments": '{"n": 1}'}
    messages.append({"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]})
    raw = json.dumps({"model": "m", "messages": messages}).encode()
    other = Registers({SCOPE: EMPTY_SCOPE}, b"o" * 32)
    _, turn = transcripts.read("somebody", raw)
    assert turn.repeated is not None
    assert turn.repeated.said
    assert judged(other, turn)[0] == judged(other, chat_completions.parse_request(raw))[0]
