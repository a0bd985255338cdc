"""W1–W3: a conversation that goes on is read by what it adds, and as if all of it had been read."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from wardwright.errors import WireError
from wardwright.wire import chat_completions
from wardwright.wire.body import MAX_BYTES
from wardwright.wire.growth import APIECE, PARSED, Transcripts
from wardwright.wire.turn import Turn

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": 'Say "no" to ]} and to \\ and to ,null'}
USER = {"role": "user", "content": "Fix it."}


def call(number: int) -> dict[str, Any]:
    function = {"name": "read_file", "arguments": '{"path": "a]}.py"}'}
    return {
        "role": "assistant",
        "content": "Next.",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": '"]}'}


def as_whole(raw: bytes) -> tuple[Turn | str, Any]:
    """What reading all of it gives: the turn and the fields, or the refusal."""
    try:
        return chat_completions.parse_request(raw), orjson.loads(raw)
    except WireError as error:
        return str(error), None


def as_grown(transcripts: Transcripts, raw: bytes) -> tuple[Turn | str, Any]:
    """The same through the memory of conversations; the provider's bytes and the caller's own must agree."""
    try:
        given, turn = transcripts.read("somebody", raw)
    except WireError as error:
        return str(error), None
    sent = orjson.loads(given.written("double"))
    fields = given.own()
    assert sent == {**fields, "model": "double"}
    assert given.head == {name: value for name, value in fields.items() if name != "messages"}
    return turn, fields


def body(messages: list[Any], order: str = "model messages tools", **style: Any) -> bytes:
    fields = {"model": "m", "messages": messages, "tools": TOOLS, "stream": False}
    return json.dumps({name: fields[name] for name in order.split()}, **style).encode()


@pytest.mark.parametrize("order", ["messages", "model messages", "messages model tools stream", "tools model messages"])
@pytest.mark.parametrize(
    "style",
    [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}],
    ids=["wide", "tight", "lines", "utf8"],
)
def test_every_request_of_a_conversation_is_read_as_if_it_were_the_only_one(order: str, style: dict[str, Any]) -> None:
    """W1: whatever the order of the fields and however they are laid out."""
    transcripts, messages = Transcripts(), [SYSTEM, USER]
    for number in range(6):
        raw = body(messages, order, **style)
        assert as_grown(transcripts, raw) == as_whole(raw)
        messages = [*messages, call(number), result(number)]


def test_only_what_is_new_is_lowered() -> None:
    """The items before are the very ones that were read before."""
    transcripts = Transcripts()
    _, first = transcripts.read("somebody", body([SYSTEM, USER]))
    _, second = transcripts.read("somebody", body([SYSTEM, USER, call(1), result(1)]))
    _, third = transcripts.read("somebody", body([SYSTEM, USER, call(1), result(1), call(2), result(2)]))
    assert [one is other for one, other in zip(first.items, third.items, strict=False)] == [True, True]
    assert [one is other for one, other in zip(second.items, third.items, strict=False)] == [True] * 5


def test_an_exchange_that_writes_into_its_turn_and_body_changes_no_later_one() -> None:
    """What an exchange does to its own does not reach the next request."""
    transcripts = Transcripts()
    given, turn = transcripts.read("somebody", body([SYSTEM, USER]))
    turn.model, turn.approvals = "another", ("lifted",)
    given.own()["messages"].clear()
    raw = body([SYSTEM, USER, call(1)])
    assert as_grown(transcripts, raw) == as_whole(raw)


def test_what_is_changed_deep_in_a_body_reaches_neither_a_second_provider_nor_the_next_request() -> None:
    """W1: a tool that was described anew for one target is the caller's own for the next target, and in the next request."""
    transcripts = Transcripts()
    given, _ = transcripts.read("somebody", body([SYSTEM, USER]))
    changed: Any = given.own()
    changed["tools"][0]["function"]["description"] = "Never run this."
    assert orjson.loads(given.written("m"))["tools"] == TOOLS
    raw = body([SYSTEM, USER, call(1)])
    assert as_grown(transcripts, raw) == as_whole(raw)


def nested(depth: int) -> bytes:
    return b'{"role": "assistant", "content": "x", "annotations": %b%b}' % (b"[" * depth, b"]" * depth)


@pytest.mark.parametrize("depth", [240, 260, 1_015, 1_021, 1_022, 1_023])
@pytest.mark.parametrize("before", [1, 400], ids=["flat", "deep"])
def test_a_message_that_is_nested_too_deeply_for_its_body_is_refused_as_in_the_whole(before: int, depth: int) -> None:
    """W1: alone it has a level less."""
    transcripts = Transcripts()
    transcripts.read("somebody", b'{"model": "m", "messages": [%b]}' % nested(before))
    raw = b'{"model": "m", "messages": [%b,%b]}' % (nested(before), nested(depth))
    said = expected = ""
    try:
        transcripts.read("somebody", raw)
    except WireError as error:
        said = str(error)
    try:
        chat_completions.parse_request(raw)
    except WireError as error:
        expected = str(error)
    assert said == expected


def test_a_body_that_grows_too_long_to_be_read_is_refused() -> None:
    """W1: though what it adds would not be."""
    transcripts = Transcripts()
    first = body([{"role": "user", "content": "a" * (MAX_BYTES // 2)}])
    transcripts.read("somebody", first)
    more = b'{"role": "user", "content": "%b"}' % (b"b" * (MAX_BYTES // 2))
    with pytest.raises(WireError, match="at most"):
        transcripts.read("somebody", first.replace(b"}],", b"}, %b]," % more, 1))


def test_a_message_that_cannot_be_read_is_refused_as_in_the_whole_body() -> None:
    """W1: the refusal names the place where the message stands."""
    transcripts = Transcripts()
    transcripts.read("somebody", body([SYSTEM, USER]))
    with pytest.raises(WireError, match=r"messages\[2\]"):
        transcripts.read("somebody", body([SYSTEM, USER, {"role": "nobody", "content": ""}]))


def test_what_was_refused_is_no_beginning_of_anything() -> None:
    """The conversation goes on from the last request that could be read, or from none."""
    transcripts = Transcripts()
    transcripts.read("somebody", body([USER]))
    with pytest.raises(WireError):
        transcripts.read("somebody", b'{"messages": [')
    raw = body([USER, call(1)])
    assert as_grown(transcripts, raw) == as_whole(raw)


def test_a_body_that_is_nested_too_deeply_to_be_compared_is_read() -> None:
    """W1: more levels can be read than compared; such a body is read as a whole."""
    transcripts, deep = Transcripts(), b"[" * 1_010 + b"]" * 1_010
    for count in (1, 2, 3):
        raw = b'{"stop": %b, "messages": %b}' % (deep, orjson.dumps([USER] * count))
        assert transcripts.read("somebody", raw)[1] == chat_completions.parse_request(raw)


def test_what_is_remembered_is_bounded() -> None:
    """W3: who was not heard of for longest is read as a whole again."""
    raw = body([SYSTEM, USER])
    transcripts = Transcripts(room=2 * ((1 + PARSED) * len(raw) + APIECE))
    before = {name: transcripts.read(name, raw)[1] for name in "abc"}
    longer = body([SYSTEM, USER, call(1)])
    after = {name: transcripts.read(name, longer)[1] for name in "ca"}
    assert after["c"].items[0] is before["c"].items[0]
    assert after["a"].items[0] is not before["a"].items[0]


def test_what_is_kept_as_it_was_parsed_counts_more() -> None:
    """W3: a list of empty lists takes many times its bytes in memory, so a body with one is forgotten sooner."""
    raw = orjson.dumps({"stop": [[]] * 5_000, "messages": [USER]})
    transcripts = Transcripts(room=2 * len(raw) + APIECE)
    _, first = transcripts.read("somebody", raw)
    _, second = transcripts.read("somebody", orjson.dumps({"stop": [[]] * 5_000, "messages": [USER, USER]}))
    assert second.items[0] is not first.items[0]


def test_a_body_that_is_longer_than_what_may_be_remembered_is_read() -> None:
    """W3: it is forgotten at once, and read all the same."""
    transcripts = Transcripts(room=10)
    for messages in ([USER], [USER, call(1)]):
        raw = body(messages)
        assert as_grown(transcripts, raw) == as_whole(raw)


# Fields that stand twice, brackets and quotes inside of strings, lists that are no transcript: wherever bytes are put in.
WORDS = st.text(alphabet='a"\\]}[{,:n', max_size=6)
MESSAGES = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, WORDS),
    st.builds(lambda text: {"role": "assistant", "content": text}, WORDS),
    st.sampled_from([call(1), result(1), {"role": "user"}]),
)
LISTS = st.lists(MESSAGES, max_size=3).map(json.dumps)
FIELDS = st.one_of(
    st.tuples(st.just("messages"), LISTS),
    st.tuples(st.just("mess\\u0061ges"), LISTS),
    st.tuples(st.sampled_from(["stop", "user", "tools"]), LISTS),
    st.tuples(st.sampled_from(["stop", "model", "user"]), WORDS.map(json.dumps)),
)


def written(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields) + "}"


@drawn(st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_is_put_into_a_body_is_read_as_in_the_whole(data: st.DataObject) -> None:
    """W1, W2: bytes that are put in anywhere, twice, change what is read exactly as they change the whole body."""
    transcripts = Transcripts()
    raw = written(data.draw(st.lists(FIELDS, max_size=4)))
    piece = st.one_of(
        LISTS.map(lambda listed: "," + listed[1:-1]),
        st.sampled_from(
            [",", ",null", "]", '"', ',{"role":"user","content":"x"}', '],"user":["x"', ' ,{"role":"user"}']
        ),
        WORDS,
    )
    for _ in range(3):
        assert as_grown(transcripts, raw.encode()) == as_whole(raw.encode())
        places = [place for place, sign in enumerate(raw) if sign in ']}"'] or [len(raw)]
        place = data.draw(st.sampled_from(places))
        raw = raw[:place] + data.draw(piece) + raw[place:]
