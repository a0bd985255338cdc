"""Claims about streams that are translated on their way: the client's wire says what the provider's said, as it comes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.streaming import StreamTranslator, relay_for
from wardwright.wire import CallItem, Item, TextItem, translate

from ..conversations import WIRES, Wire, conversation
from .rulings import assembled, cut, events, fed, rulings, sse

REPLIES = 40
PAIRS = [(source, to) for source in WIRES for to in WIRES if source is not to]
EVERY_PAIR = pytest.mark.parametrize(
    ("source", "to"), PAIRS, ids=[f"{source.name} to {to.name}" for source, to in PAIRS]
)


def streams(wire: Wire) -> list[tuple[random.Random, dict[str, Any], bytes]]:
    """Replies that every wire can carry: nothing that the provider ran itself."""
    made: list[tuple[random.Random, dict[str, Any], bytes]] = []
    for number in range(REPLIES):
        dice, talk = random.Random(number), conversation(number)
        for one in talk.rounds:
            one.said.searches = []
        reply = wire.reply(talk, dice.randrange(len(talk.rounds)), dice)
        made.append((dice, reply, wire.stream(reply, dice)))
    return made


def translated(source: Wire, to: Wire, pieces: list[bytes]) -> bytes:
    one = StreamTranslator(source.name, to.name)  # type: ignore[arg-type]
    return b"".join(one.feed(piece) for piece in pieces) + one.close()


def items(found: Any) -> list[Item]:
    """With arguments written alike: wires write the same JSON in several ways."""
    return [
        replace(item, arguments=orjson.dumps(orjson.loads(item.arguments)).decode())
        if isinstance(item, CallItem)
        else item
        for item in found
    ]


@EVERY_PAIR
def test_a_translated_stream_is_the_translated_reply(source: Wire, to: Wire) -> None:
    """G24: put together, what comes out is what `translate.reply` makes of the whole reply, cut anywhere."""
    for dice, _, data in streams(source):
        body = assembled(source.name, data).body()
        ours = assembled(to.name, translated(source, to, cut(data, dice)))
        assert ours.complete
        theirs = translate.reply(body, source.name, to.name)  # type: ignore[arg-type]
        assert _plain(ours.body()) == _plain(theirs)


def _plain(value: Any) -> Any:
    """Without ids and times, which are made anew, and without the empty fields that only pieces have."""
    if isinstance(value, dict):
        gone = ("id", "created", "created_at", "logprobs", "annotations")
        return {key: _plain(one) for key, one in value.items() if key not in gone and one not in (None, "")}
    return [_plain(one) for one in value] if isinstance(value, list) else value


@EVERY_PAIR
def test_a_relay_reads_translated_streams(source: Wire, to: Wire) -> None:
    """Behind the translation stands the relay of the client's wire, and the items are still those of the provider."""
    for dice, _, data in streams(source):
        one = relay_for(to.name, hold_text=False)  # type: ignore[arg-type]
        out = fed(one, cut(translated(source, to, cut(data, dice)), dice))
        out += one.release(rulings(one.turn()))
        assert items(assembled(to.name, out).turn().items) == items(assembled(source.name, data).turn().items)


@EVERY_PAIR
def test_bytes_out_do_not_depend_on_how_bytes_came_in(source: Wire, to: Wire) -> None:
    """Cut anywhere, the same comes out."""
    for dice, _, data in streams(source)[:15]:
        whole = assembled(to.name, translated(source, to, [data]))
        assert _plain(assembled(to.name, translated(source, to, cut(data, dice))).body()) == _plain(whole.body())


@EVERY_PAIR
def test_a_stream_that_broke_off_has_no_end(source: Wire, to: Wire) -> None:
    """What is missing upstream is not made up."""
    _, _, data = streams(source)[0]
    one = StreamTranslator(source.name, to.name)  # type: ignore[arg-type]
    out = one.feed(data[: len(data) // 2]) + one.close()
    assert not assembled(to.name, out).complete


ERRORS = {
    "chat_completions": {"error": {"message": "overloaded"}},
    "responses": {"type": "error", "message": "overloaded"},
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}},
}


@EVERY_PAIR
def test_an_error_stays_an_error(source: Wire, to: Wire) -> None:
    """The relay behind the translation hears what the provider said of itself."""
    one = StreamTranslator(source.name, to.name)  # type: ignore[arg-type]
    out = one.feed(sse(ERRORS[source.name])) + one.close()
    assert assembled(to.name, out).errors[0]["message"] == "overloaded"


WORDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "chat_completions": ([], {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hello"}}]}),
    "responses": (
        [
            {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "message", "id": "i", "role": "assistant", "content": []},
            },
        ],
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "i", "delta": "Hello"},
    ),
    "anthropic": (
        [
            {"type": "message_start", "message": {"id": "a", "type": "message", "role": "assistant", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ],
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    ),
}


@EVERY_PAIR
def test_words_pass_with_the_event_that_brings_them(source: Wire, to: Wire) -> None:
    """The first text is not held until the reply is whole, and every piece of it comes on its own."""
    opening, word = WORDS[source.name]
    one = StreamTranslator(source.name, to.name)  # type: ignore[arg-type]
    assert one.feed(sse(*opening)) == b""
    assert b"Hello" in one.feed(sse(word))
    assert [b"Hello" in one.feed(sse(word)) for _ in range(3)] == [True, True, True]


def test_thoughts_behind_words_come_behind_them() -> None:
    """Some providers think again after they spoke; on wires with an order that is told in this order."""
    chunks = [{"reasoning_content": "a"}, {"content": "x"}, {"reasoning_content": "b"}, {"content": "y"}]
    said = [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in chunks]
    said.append({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    one = StreamTranslator("chat_completions", "anthropic")
    out = one.feed(sse(*said) + b"data: [DONE]\n\n") + one.close()
    blocks = assembled("anthropic", out).body()["content"]
    assert [(block["type"], block.get("text", block.get("thinking"))) for block in blocks] == [
        ("thinking", "a"),
        ("text", "xy"),
        ("thinking", "b"),
    ]


@pytest.mark.parametrize("to", ["chat_completions", "responses"])
def test_a_refusal_that_shows_at_the_end_keeps_its_words(to: Any) -> None:
    """Words that passed stay words when the model turns out to have refused, and the end is that of a refusal."""
    opening, word = WORDS["anthropic"]
    ends = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "refusal"}},
        {"type": "message_stop"},
    ]
    data = sse(*opening, word, *ends)
    one = StreamTranslator("anthropic", to)
    ours = assembled(to, one.feed(data)).body()
    theirs = translate.reply(assembled("anthropic", data).body(), "anthropic", to)
    assert assembled(to, translated(WIRES[2], WIRES[0 if to == "chat_completions" else 1], [data])).turn().items == [
        TextItem("assistant", "Hello")
    ]
    assert ours.get("status") == theirs.get("status")
    assert [choice["finish_reason"] for choice in ours.get("choices", ())] == [
        choice["finish_reason"] for choice in theirs.get("choices", ())
    ]


def test_what_cannot_be_carried_is_refused_by_name() -> None:
    """A field that the client's wire cannot say stops the stream."""
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    one = StreamTranslator("anthropic", "chat_completions")
    with pytest.raises(WireError, match="server_tool_use"):
        one.feed(
            sse(
                WORDS["anthropic"][0][0],
                {"type": "content_block_start", "index": 0, "content_block": search},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
                {"type": "message_stop"},
            )
        )


@pytest.mark.parametrize("pair", [("mcp", "anthropic"), ("anthropic", "in_process")])
def test_wires_without_streamed_replies_are_not_translated(pair: Any) -> None:
    """Only three wires have them."""
    with pytest.raises(WireError, match="are not translated"):
        StreamTranslator(*pair)


def test_a_translated_call_is_told_once() -> None:
    """The other wire has each call once, whole."""
    source, to = WIRES[0], WIRES[1]
    for _, reply, data in streams(source)[:10]:
        out = translated(source, to, [data])
        calls = [
            event["item"]["call_id"]
            for event in events(out)
            if event["type"].endswith("item.done") and "call_id" in event["item"]
        ]
        assert calls == [call["id"] for call in reply["choices"][0]["message"].get("tool_calls", [])]
