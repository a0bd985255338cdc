"""The official clients read what a relay gives out, and raise where it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import orjson
import pytest

from wardwright.streaming import StreamTranslator, relay_for, render
from wardwright.wire.refusal import Refusal

from ..conversations import (
    anthropic_reply,
    anthropic_stream,
    chat_reply,
    chat_stream,
    conversation,
    responses_reply,
    responses_stream,
)
from .rulings import cut, fed, rulings

REFUSAL = Refusal(403, "policy_violation", "tool_denied", "ask the owner of the plan", "no-shell", "rcp_1", ("shell",))
REPLIES = 12


class Pieces(httpx2.SyncByteStream):
    """A body that arrives in pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield from cut(self._data, random.Random(len(self._data)))


def transport(data: bytes) -> httpx2.MockTransport:
    """A server that answers everything with this stream."""
    headers = {"content-type": "text/event-stream"}
    return httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, stream=Pieces(data)))


def open_ai(data: bytes) -> openai.OpenAI:
    http = httpx2.Client(transport=transport(data))
    return openai.OpenAI(api_key="key", base_url="http://gateway.test/v1", http_client=http, max_retries=0)


def claude(data: bytes) -> anthropic.Anthropic:
    http = httpx2.Client(transport=transport(data))
    return anthropic.Anthropic(api_key="key", base_url="http://gateway.test", http_client=http, max_retries=0)


def relayed(wire: Any, number: int, reply: Any, stream: Any, refusal: Refusal | None = None) -> tuple[list[Any], bytes]:
    """Two rounds of one answer; of the calls of the second, some are denied. Also: the calls that are left."""
    dice = random.Random(number)
    one = relay_for(wire, hold_text=number % 2 == 1)
    first, second = conversation(number), conversation(number + 1)
    out = fed(one, cut(stream(reply(first, 0, dice), dice), dice))
    one.next_round()
    out += fed(one, cut(stream(reply(second, 0, dice), dice), dice))
    turn = one.turn()
    judged = rulings(turn, lambda _: dice.random() < 0.7, "ww_")
    out += one.release(judged) if refusal is None else one.refuse(refusal)
    left = [
        (ruling.call_id, ruling.name, orjson.loads(turn.items[ruling.item].arguments))  # type: ignore[union-attr]
        for ruling in judged
        if ruling.status == "allow"
    ]
    return left, out


@pytest.mark.parametrize("number", range(REPLIES))
def test_chat_client_reads_released_calls(number: int) -> None:
    """The accumulating helper of the client has every released call, once, and a finish reason that fits."""
    left, out = relayed("chat_completions", number, chat_reply, chat_stream)
    with open_ai(out).chat.completions.stream(model="m", messages=[]) as stream:
        for _ in stream:
            pass
        done = stream.get_final_completion()
    calls = done.choices[0].message.tool_calls or []
    assert [(call.id, call.function.name, orjson.loads(call.function.arguments)) for call in calls] == left
    assert done.choices[0].finish_reason == ("tool_calls" if left else "stop")
    assert done.usage is not None and done.usage.total_tokens == 84


@pytest.mark.parametrize("number", range(REPLIES))
def test_responses_client_reads_released_calls(number: int) -> None:
    """The client's own checks of numbers and identities hold, and its final response has the released calls alone."""
    left, out = relayed("responses", number, responses_reply, responses_stream)
    items: dict[int, Any] = {}
    with open_ai(out).responses.stream(model="m", input="x") as stream:
        for expected, event in enumerate(stream):
            assert event.sequence_number == expected
            if event.type == "response.output_item.done":
                items[event.output_index] = event.item
        done = stream.get_final_response()
    assert sorted(items) == list(range(len(done.output)))
    assert [item.type for _, item in sorted(items.items())] == [item.type for item in done.output]
    calls = [item for item in done.output if item.type == "function_call"]
    assert [(call.call_id, call.name, orjson.loads(call.arguments)) for call in calls] == left
    assert done.usage is not None and done.usage.total_tokens == 84


@pytest.mark.parametrize("number", range(REPLIES))
def test_messages_client_reads_released_calls(number: int) -> None:
    """The client's message has the released calls, whole thinking with its signature, and a stop reason that fits."""
    left, out = relayed("anthropic", number, anthropic_reply, anthropic_stream)
    with claude(out).messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream:
        done = stream.get_final_message()
    calls = [block for block in done.content if block.type == "tool_use"]
    assert [(call.id, call.name, call.input) for call in calls] == left
    assert done.stop_reason == ("tool_use" if left else "end_turn")
    assert all(block.signature == "signed" for block in done.content if block.type == "thinking")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (20, 24)


@pytest.mark.parametrize("number", range(6))
def test_chat_client_raises_on_a_refusal(number: int) -> None:
    """G34: the error has the message and the fields that tell who refused."""
    _, out = relayed("chat_completions", number, chat_reply, chat_stream, REFUSAL)
    with pytest.raises(openai.APIError, match="ask the owner of the plan") as caught:
        list(open_ai(out).chat.completions.create(model="m", messages=[], stream=True))
    assert caught.value.code == "tool_denied"
    assert caught.value.type == "policy_violation"
    assert isinstance(caught.value.body, dict) and caught.value.body["rule_id"] == "no-shell"


@pytest.mark.parametrize("number", range(6))
def test_responses_client_raises_on_a_refusal(number: int) -> None:
    """G34: the error event is an error to the client, in its helper too."""
    _, out = relayed("responses", number, responses_reply, responses_stream, REFUSAL)
    with pytest.raises(openai.APIError, match="ask the owner of the plan") as caught:
        list(open_ai(out).responses.create(model="m", input="x", stream=True))
    assert caught.value.code == "tool_denied"
    with (
        pytest.raises(openai.APIError, match="ask the owner of the plan"),
        open_ai(out).responses.stream(model="m", input="x") as stream,
    ):
        stream.until_done()


@pytest.mark.parametrize("number", range(6))
def test_messages_client_raises_on_a_refusal(number: int) -> None:
    """G34: the error event becomes the client's exception, with our fields in its body."""
    _, out = relayed("anthropic", number, anthropic_reply, anthropic_stream, REFUSAL)
    with (
        pytest.raises(anthropic.APIStatusError, match="ask the owner of the plan") as caught,
        claude(out).messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream,
    ):
        stream.until_done()
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["rule_id"] == "no-shell"


@pytest.mark.parametrize("number", range(6))
def test_chat_client_reads_a_translated_provider(number: int) -> None:
    """Behind the gateway stands another provider's wire, and the client notices nothing."""
    dice, talk = random.Random(number), conversation(number)
    said = talk.rounds[0].said
    said.searches = []
    translator, one = StreamTranslator("anthropic", "chat_completions"), relay_for("chat_completions", hold_text=False)
    out = b""
    for piece in cut(anthropic_stream(anthropic_reply(talk, 0, dice), dice), dice):
        out += one.feed(translator.feed(piece))
    out += one.feed(translator.close()) + one.close() + one.release(rulings(one.turn()))
    with open_ai(out).chat.completions.stream(model="m", messages=[]) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = [(call.id, call.function.name, orjson.loads(call.function.arguments)) for call in message.tool_calls or []]
    assert calls == [(call.id, call.name, call.arguments) for call in said.calls]
    assert (message.content or "") == said.text


@pytest.mark.parametrize("number", range(6))
def test_clients_read_rendered_replies(number: int) -> None:
    """A reply that was held whole reads the same as one that came in a stream."""
    dice, talk = random.Random(number), conversation(number)
    said = talk.rounds[0].said
    expected = [(call.id, call.name, call.arguments) for call in said.calls]
    data = render("chat_completions", chat_reply(talk, 0, dice))
    with open_ai(data).chat.completions.stream(model="m", messages=[]) as chat:
        message = chat.get_final_completion().choices[0].message
    assert [
        (call.id, call.function.name, orjson.loads(call.function.arguments)) for call in message.tool_calls or []
    ] == expected
    assert (message.content or "") == said.text
    data = render("responses", responses_reply(talk, 0, dice))
    with open_ai(data).responses.stream(model="m", input="x") as stream:
        response = stream.get_final_response()
    assert response.output_text == said.text
    data = render("anthropic", anthropic_reply(talk, 0, dice))
    with claude(data).messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events:
        blocks = events.get_final_message().content
    assert [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"] == expected
    assert "".join(block.text for block in blocks if block.type == "text") == said.text
