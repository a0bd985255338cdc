"""Claims about Messages streams: order and numbers of blocks, thinking, and the end."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.errors import WireError
from wardwright.streaming import Relay, relay_for, render
from wardwright.wire import CallItem, TextItem

from .rulings import assembled, events, fed, rulings, sse

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 1},
    },
}


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *words: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": word} for word in words))


def thinking(index: int) -> list[dict[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "EqQB"},
    )


def tool(index: int, name: str, *pieces: str) -> list[dict[str, Any]]:
    begun = {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}
    return block(index, begun, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str, **more: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}, **more}, {"type": "message_stop"}]


def relay(hold_text: bool = False, **more: Any) -> Relay:
    return relay_for("anthropic", hold_text=hold_text, **more)


def blocks(data: bytes) -> list[dict[str, Any]]:
    return assembled("anthropic", data).body()["content"]


def test_words_pass_with_the_event_that_brings_them() -> None:
    """The message begins with its first words, and not before."""
    one = relay()
    assert one.feed(sse(START, {"type": "ping"})) == b""
    first, word, stop = text(0, "Hi")
    assert events(one.feed(sse(first))) == [START, first]
    assert events(one.feed(sse(word))) == [word]
    assert events(one.feed(sse(stop))) == [stop]


def test_events_have_their_names() -> None:
    """The official client goes by the name of an event, not by its type."""
    one = relay()
    out = fed(one, sse(START, *text(0, "Hi"), *end("end_turn"))) + one.release([])
    for written in out.strip().split(b"\n\n"):
        name, data = written.split(b"\n")
        assert b'"type":"' + name.removeprefix(b"event: ") + b'"' in data


def test_a_call_holds_what_stands_behind_it() -> None:
    """Order means something: a text behind a call comes after it, or after the place where it was."""
    one = relay()
    data = sse(START, *text(0, "a"), *tool(1, "shell", '{"x"', ":1}"), *text(2, "b"), *end("tool_use"))
    assert events(fed(one, data)) == [START, *text(0, "a")]
    out = events(one.release(rulings(one.turn())))
    assert out[:3] == tool(1, "shell", '{"x":1}')
    assert out[3:6] == text(2, "b")


def test_numbers_have_no_gap_where_a_call_was() -> None:
    """G2: the block behind a denied call takes its number."""
    one = relay()
    data = sse(START, *tool(0, "shell", "{}"), *text(1, "b"), *tool(2, "read", "{}"), *end("tool_use"))
    out = fed(one, data)
    out += one.release(rulings(one.turn(), lambda call: call.name == "read", "ww_"))
    assert [event["index"] for event in events(out) if event["type"] == "content_block_start"] == [0, 1]
    assert b"shell" not in out
    assert [each.get("id") for each in blocks(out)] == [None, "ww_toolu_read"]


def test_thinking_passes_at_once_and_untouched() -> None:
    """G2: thinking and signature arrive as the provider signed them, also while text is held."""
    one = relay(hold_text=True)
    data = sse(START, *thinking(0), *text(1, "secret"), *tool(2, "shell", "{}"), *end("tool_use"))
    assert events(fed(one, data)) == [START, *thinking(0)]
    out = events(one.release([], lambda index, words: "[gone]"))
    assert out[:3] == text(1, "[gone]")
    assert out[3]["delta"]["stop_reason"] == "end_turn"


def test_thinking_between_held_blocks_keeps_its_signature() -> None:
    """Thinking behind a call is held with it and told again with its signature."""
    one = relay()
    out = fed(one, sse(START, *tool(0, "shell", "{}"), *thinking(1), *text(2, "b"), *end("end_turn")))
    assert out == b""
    assert blocks(one.release([]))[0] == {"type": "thinking", "thinking": "hm", "signature": "EqQB"}


def test_redacted_thinking_is_whole_from_its_start() -> None:
    """Sealed thinking has no pieces."""
    sealed = block(0, {"type": "redacted_thinking", "data": "sealed"})
    one = relay()
    assert events(fed(one, sse(START, *sealed, *end("end_turn")))) == [START, *sealed]


def test_the_end_tells_the_whole_usage() -> None:
    """What the beginning and the end of each round count is summed, for a client that reads the last count only."""
    one = relay()
    fed(one, sse(START, *tool(0, "search", "{}"), *end("tool_use")))
    one.next_round()
    second = {**START, "message": {**START["message"], "id": "msg_2"}}
    out = fed(one, sse(second, *text(0, "b"), *end("end_turn"))) + one.release([])
    assert events(out)[0]["message"]["id"] == "msg_1"
    assert events(out)[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": 14, "cache_read_input_tokens": 4, "output_tokens": 18},
    }


def test_rounds_go_on_counting_blocks() -> None:
    """G41: blocks of a later round are numbered behind those of the earlier one."""
    one = relay()
    out = fed(one, sse(START, *text(0, "a"), *tool(1, "search", "{}"), *end("tool_use")))
    one.next_round()
    out += fed(one, sse(START, *thinking(0), *text(1, "b"), *end("end_turn"))) + one.release([])
    assert [event["index"] for event in events(out) if event["type"] == "content_block_start"] == [0, 1, 2]
    assert [event["type"] for event in events(out)].count("message_start") == 1


def test_held_rounds_come_out_in_order() -> None:
    """What a round said that was held comes before what a later round says, and all of it at the end."""
    one = relay(hold_text=True)
    out = fed(one, sse(START, *text(0, "a"), *tool(1, "search", "{}"), *end("tool_use")))
    one.next_round()
    out += fed(one, sse(START, *thinking(0), *text(1, "b"), *end("end_turn")))
    assert out == b""
    assert [each["type"] for each in blocks(one.release([]))] == ["text", "thinking", "text"]


def test_what_the_provider_ran_waits_with_the_calls() -> None:
    """A hosted search is a call too; an operator without rules on it may let it pass."""
    search = block(
        0,
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"query":"x"}'},
    )
    found = block(1, {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []})
    data = sse(START, *search, *found, *text(2, "b"), *end("end_turn"))
    held, passing = relay(), relay(hold_hosted=False)
    assert fed(held, data) == b""
    assert events(fed(passing, data)) == [START, *search, *found, *text(2, "b")]
    assert assembled("anthropic", held.release([])).turn() == assembled("anthropic", data).turn()


def test_citations_are_told_again() -> None:
    """A held text keeps what it cites."""
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0}
    one = relay(hold_text=True)
    words = block(
        0,
        {"type": "text", "text": "", "citations": []},
        {"type": "citations_delta", "citation": cited},
        {"type": "text_delta", "text": "b"},
    )
    fed(one, sse(START, *words, *end("end_turn")))
    assert blocks(one.release([])) == [{"type": "text", "text": "b", "citations": [cited]}]


def test_an_input_that_is_no_json_passes_as_it_was_written() -> None:
    """A call cut short by the token limit keeps its broken arguments; that is for the client to judge."""
    one = relay()
    out = fed(one, sse(START, *tool(0, "shell", '{"x": '), *end("max_tokens")))
    out += one.release(rulings(one.turn()))
    assert assembled("anthropic", out).turn().items == [CallItem("toolu_shell", "shell", '{"x": ')]


def test_what_the_end_says_beside_its_reason_is_kept() -> None:
    """Stop sequence, container and context edits reach the client; a field nobody knows does not."""
    one = relay()
    last: list[dict[str, Any]] = end("stop_sequence", context_management={"applied_edits": []}, echo="shell")
    last[0]["delta"] |= {"stop_sequence": "###", "container": {"id": "c"}, "echo": "shell"}
    out = fed(one, sse(START, *text(0, "a"), *last)) + one.release([])
    assert events(out)[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "stop_sequence", "stop_sequence": "###", "container": {"id": "c"}},
        "context_management": {"applied_edits": []},
        "usage": {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 9},
    }


def test_an_answer_of_nothing_has_a_beginning_and_an_end() -> None:
    """All calls denied and no text: a message without blocks."""
    one = relay()
    fed(one, sse(START, *tool(0, "shell", "{}"), *end("tool_use")))
    assert [event["type"] for event in events(one.release([]))] == ["message_start", "message_delta", "message_stop"]


def test_an_unnamed_event_gets_its_name() -> None:
    """Providers that leave out an event's name are read by its type, and the name is written for the client."""
    one = relay()
    out = one.feed(sse(START, *text(0, "a")).replace(b"event: message_start\n", b""))
    assert out.startswith(b"event: message_start\n")


def test_a_bad_event_stops_what_follows() -> None:
    """What came before it passes however the bytes were cut; what comes after it is never looked at."""
    one = relay()
    with pytest.raises(WireError, match="block 7 is not open"):
        one.feed(sse(START, *text(0, "a"), {"type": "content_block_stop", "index": 7}, *text(1, "b")))
    assert events(one.close()) == [START, *text(0, "a")]


def test_a_rendered_reply_counts_no_output_before_it_came() -> None:
    """The beginning of a rendered message says nothing of its end."""
    reply: dict[str, Any] = {
        **START["message"],
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 9},
    }
    first = events(render("anthropic", reply))[0]["message"]
    assert (first["stop_reason"], first["usage"]) == (None, {"input_tokens": 7, "output_tokens": 0})
    assert assembled("anthropic", render("anthropic", reply)).turn().items == [TextItem("assistant", "a")]


def test_no_event_tells_a_call_beside_what_it_says() -> None:
    """A call in a field where no event has one, in the beginning, in blocks and in pieces, is not passed on."""
    start = {**START, "message": {**START["message"], "echo": "shell"}}
    words = block(
        0,
        {"type": "text", "text": "", "name": "shell", "input": {}},
        {"type": "text_delta", "text": "a", "partial_json": "shell"},
        {"type": "text_delta", "partial_json": "shell"},
    )
    one = relay()
    out = fed(one, sse(start, *({**event, "echo": "shell"} for event in words), *end("end_turn"))) + one.release([])
    assert b"shell" not in out and b"null}}" not in out
    assert blocks(out) == [{"type": "text", "text": "a"}]


def test_a_change_goes_by_the_items_of_the_whole_reply() -> None:
    """What passed before the held text counts as items too."""
    search = block(0, {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}})
    found = block(1, {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []})
    one = relay(hold_text=True, hold_hosted=False)
    out = fed(one, sse(START, *search, *found, *text(2, "b"), *tool(3, "read", "{}"), *end("tool_use")))
    assert events(out) == [START, *search, *found]
    out = one.release(rulings(one.turn()), lambda index, words: f"{index} {words}")
    assert events(out)[:6] == [*text(2, "2 b"), *tool(3, "read", "{}")]
