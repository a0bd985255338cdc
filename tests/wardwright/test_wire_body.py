"""Claims about reading a body: limits, encodings, repeated keys."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.wire import CallItem, anthropic, body, chat_completions, responses


def test_an_object_is_read() -> None:
    """Bytes with a JSON object give that object."""
    assert body.read(b'{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": 1e999}'])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    """Broken JSON, broken UTF-8, half of a surrogate pair and numbers that are none are wire errors that say where."""
    with pytest.raises(WireError, match=r"^the body is not JSON in valid UTF-8: line 1, column \d+$"):
        body.read(raw)


def test_what_is_no_object_is_refused() -> None:
    """A body is one object."""
    with pytest.raises(WireError) as caught:
        body.read(b"[]")
    assert str(caught.value) == "expected an object, got a list"


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_what_cannot_be_read_for_depth_is_refused() -> None:
    """A body with thousands of levels is no JSON here."""
    with pytest.raises(WireError, match=r"^the body is not JSON in valid UTF-8: line 1, column \d+$"):
        body.read(nested(5_000))


def test_what_cannot_be_written_again_is_refused() -> None:
    """A body that could be read but not be sent on is refused when it is written."""
    assert body.write(body.read(nested(254))) == nested(254)
    with pytest.raises(WireError) as caught:
        body.write(body.read(nested(300)))
    assert str(caught.value) == "nested too deeply, or not JSON"


@pytest.mark.parametrize(
    "request_body",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": orjson.loads(nested(300))}}]},
        {"metadata": {"tool_context": orjson.loads(nested(300))}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": orjson.loads(nested(300))}}},
    ],
    ids=["tool", "claim", "format"],
)
def test_what_a_turn_carries_can_always_be_hashed(request_body: dict[str, Any]) -> None:
    """A schema nested too deeply is the caller's error, not a failure of the engine."""
    with pytest.raises(WireError) as caught:
        chat_completions.parse_request(orjson.dumps({"model": "m", "messages": []})[:-1] + b"," + written(request_body))
    assert str(caught.value) == "a tool, an output format or a claim is nested too deeply, or not JSON"


def written(value: Any) -> bytes:
    """JSON of any depth, without the opening bracket."""
    return json.dumps(value).encode()[1:]


@pytest.mark.interpreted
def test_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than are ever read are refused before they are parsed."""
    monkeypatch.setattr(body, "MAX_BYTES", 10)
    with pytest.raises(WireError) as caught:
        body.read(b'{"a": "bcdef"}')
    assert str(caught.value) == "the body has 14 bytes; at most 10 are read"


def test_a_repeated_key_shows_the_policy_what_is_forwarded() -> None:
    """The last value counts, and it is the only one left in what is written again."""
    raw = b'{"model": "a", "messages": [], "messages": [{"role": "user", "content": "x"}], "model": "b"}'
    turn = chat_completions.parse_request(raw)
    assert (turn.model, len(turn.items)) == ("b", 1)
    assert body.write(body.read(raw)) == b'{"model":"b","messages":[{"role":"user","content":"x"}]}'


TWICE = b'{"name": "shell_exec", "name": "ok", "arguments": "{}"}'
CALL = b'{"id": "a", "type": "function", "function": ' + TWICE + b"}"


def test_a_repeated_key_in_a_reply_shows_the_policy_what_is_forwarded() -> None:
    """The call that is judged is the only one left in what is written again, deep inside a reply too."""
    raw = (
        b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [' + CALL + b"]}}]}"
    )
    assert list(chat_completions.parse_reply(raw).items) == [CallItem("a", "ok", "{}")]
    assert b"shell_exec" not in body.write(body.read(raw))


def test_a_repeated_key_in_a_stream_shows_the_policy_what_is_forwarded() -> None:
    """What a stream was put together to holds what was judged, and nothing beside it."""
    assembler = chat_completions.StreamAssembler()
    delta = b'{"choices": [{"index": 0, "delta": {"tool_calls": [' + CALL + b']}, "finish_reason": "tool_calls"}]}'
    assembler.feed(b"data: " + delta + b"\n\ndata: [DONE]\n\n")
    assert list(assembler.turn().items) == [CallItem("a", "ok", "{}")]
    assert b"shell_exec" not in body.write(assembler.body())


@pytest.mark.parametrize(
    ("parse", "fields"),
    [
        (responses.parse_request, {"input": ""}),
        (anthropic.parse_request, {"messages": []}),
        (chat_completions.parse_request, {"messages": []}),
    ],
)
def test_a_refused_body_leaves_nothing_behind(parse: Any, fields: dict[str, Any]) -> None:
    """Whoever may send bodies may not fill the memory with names of tools that nobody knows."""
    tracemalloc.start()
    for number in range(8):
        with pytest.raises(WireError):
            parse(orjson.dumps({"model": "m", **fields, "tools": [{"type": f"{number}" * 1_000_000}]}))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2_000_000


def test_a_value_of_the_wrong_type_is_told_with_its_path() -> None:
    """The complaint names what was expected, what came and where."""
    with pytest.raises(WireError) as caught:
        chat_completions.parse_request({"model": "m", "messages": [{"role": "user", "content": 5}]})
    assert str(caught.value) == "expected a string or a list of parts, got a number - at `$.messages[0].content`"


def test_tools_that_are_written_equally_long_are_told_apart() -> None:
    """What is known of one list of tools is never taken for another's, though they differ in one letter."""
    asked = [{"type": "function", "function": {"name": name}} for name in ("search_a", "search_b", "search_a")]
    turns = [chat_completions.parse_request({"model": "m", "messages": [], "tools": [tool]}) for tool in asked]
    assert [turn.tools[0].name for turn in turns] == ["search_a", "search_b", "search_a"]


@pytest.mark.parametrize("odd", [True, 1.0])
def test_tools_that_are_only_equal_to_python_are_told_apart(odd: object) -> None:
    """`1`, `1.0` and `true` are different words on the wire."""
    bodies = [
        {
            "model": "m",
            "messages": [],
            "tools": [{"type": "function", "function": {"name": "f", "format": {"a": value}}}],
        }
        for value in (1, odd)
    ]
    first, second = (chat_completions.parse_request(one).tools[0].further for one in bodies)
    assert (repr(first), repr(second)) == ("{'format': {'a': 1}}", f"{{'format': {{'a': {odd!r}}}}}")
