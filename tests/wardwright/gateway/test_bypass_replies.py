"""Replies as no honest provider writes them: calls in odd places and pieces, streams that are cut, broken or go on for too long."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from wardwright.wire.turn import WireName

from .arena import CANARY, PATH, Arena, Raw, asked, calls_of, opened, refused, said, silent, whole
from .loopback import streamed

CONFIG = """
limits: {held_bytes: 20000}
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models:
  - model_id: deny
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance: [{id: the-rule, kind: tool_selector, action: deny_call, tool: {name: wipe, source: assistant_tool_call}}]
  - model_id: block
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance: [{id: the-rule, kind: tool_selector, action: block, tool: {name: wipe, source: assistant_tool_call}}]
"""
MODELS = ("deny", "block")


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("replies"), CONFIG) as gateway:
        yield gateway


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


def bad(wire: WireName, text: str = "") -> dict[str, Any]:
    """A reply with an allowed call and a denied one."""
    return said(wire, text, ("good", "look", {"x": "1"}), ("bad", "wipe", {"x": CANARY}))


def pieces_of(wire: WireName, reply: dict[str, Any]) -> list[bytes]:
    return list(streamed(PATH[wire], reply, {}))


def without_it(arena: Arena, wire: WireName, model: str, stream: bool, *script: Any) -> None:
    """Whatever comes of it: nothing of the call, a proper end or a proper error, and one receipt."""
    session = arena.session()
    arena.says(*script)
    answer = arena.post(wire, asked(wire, "hi", ["look", "wipe"], stream=stream, model=model), session)
    silent(answer)
    if answer.status == 200 and b"error" not in answer.body:
        assert "wipe" not in calls_of(wire, whole(wire, answer))
    else:
        refused(wire, answer)
        assert answer.status in (200, 403, 502)
    assert arena.count(session) == 1


# Whole replies


def chat(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    reply = bad("chat_completions")
    change(reply["choices"][0]["message"])
    return reply


ARGUMENTS = json.dumps({"x": CANARY})
FUNCTION = {"name": "wipe", "arguments": ARGUMENTS}

ODD_CHAT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "legacy": lambda m: (m.pop("tool_calls"), m.update(function_call=FUNCTION)),
    "legacy-beside": lambda m: m.update(function_call=FUNCTION),
    "custom": lambda m: m["tool_calls"].append(
        {"id": "c", "type": "custom", "custom": {"name": "wipe", "input": CANARY}}
    ),
    "untyped": lambda m: m["tool_calls"][1].pop("type"),
    "both": lambda m: m["tool_calls"][0].update(custom={"name": "wipe", "input": CANARY}),
    "object": lambda m: m["tool_calls"][1]["function"].update(arguments={"x": CANARY}),
    "no-id": lambda m: m["tool_calls"][1].pop("id"),
    "same-id": lambda m: m["tool_calls"][1].update(id="good"),
    "number-id": lambda m: m["tool_calls"][1].update(id=7),
    "no-json": lambda m: m["tool_calls"][1]["function"].update(arguments=f"{{{CANARY}"),
    "words-of-it": lambda m: m["tool_calls"].append(
        {"id": "w", "type": "wipe", "wipe": {"name": "wipe", "arguments": CANARY}}
    ),
    "not-a-list": lambda m: m.update(tool_calls=m["tool_calls"][1]),
    "content-block": lambda m: m.update(content=[{"type": "tool_use", "name": "wipe", "input": {"x": CANARY}}]),
    "beside": lambda m: m.update(native_tool_calls=[FUNCTION]),
    "in-function": lambda m: m["tool_calls"][0]["function"].update(more=FUNCTION),
    "in-call": lambda m: m["tool_calls"][0].update(extra_content={"call": FUNCTION}),
    "role": lambda m: m.update(role="tool"),
    "last": lambda m: m["tool_calls"].reverse(),
    "twice": lambda m: m["tool_calls"].append(copy.deepcopy(m["tool_calls"][1])),
}


@pytest.mark.parametrize("odd", ODD_CHAT)
def test_an_odd_chat_message(arena: Arena, model: str, odd: str) -> None:
    """However a message says its calls, the denied one is found or the reply is not believed."""
    without_it(arena, "chat_completions", model, False, chat(ODD_CHAT[odd]))


def block(change: Callable[[list[Any]], Any]) -> dict[str, Any]:
    reply = bad("anthropic")
    change(reply["content"])
    return reply


ODD_BLOCKS: dict[str, Callable[[list[Any]], Any]] = {
    "text-input": lambda c: c[1].update(input=ARGUMENTS),
    "no-id": lambda c: c[1].pop("id"),
    "same-id": lambda c: c[1].update(id="good"),
    "unknown": lambda c: c[1].update(type="future_tool_use"),
    "in-block": lambda c: c[0].update(more={"name": "wipe", "input": {"x": CANARY}}),
    "in-text": lambda c: c.insert(0, {"type": "text", "text": "hm", "call": {"name": "wipe", "input": {"x": CANARY}}}),
    "nested": lambda c: c.insert(0, {"type": "text", "text": "hm", "content": [c[1]]}),
    "result": lambda c: c.append({"type": "tool_result", "tool_use_id": "bad", "content": [c[1]]}),
    "reversed": lambda c: c.reverse(),
}


@pytest.mark.parametrize("odd", ODD_BLOCKS)
def test_odd_message_blocks(arena: Arena, model: str, odd: str) -> None:
    """The same for the blocks of Messages."""
    without_it(arena, "anthropic", model, False, block(ODD_BLOCKS[odd]))


def items(change: Callable[[list[Any]], Any]) -> dict[str, Any]:
    reply = bad("responses")
    change(reply["output"])
    return reply


ODD_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "custom": lambda o: o.__setitem__(
        1, {"type": "custom_tool_call", "id": "c", "call_id": "bad", "name": "wipe", "input": CANARY}
    ),
    "object": lambda o: o[1].update(arguments={"x": CANARY}),
    "no-id": lambda o: (o[1].pop("id"), o[1].pop("call_id")),
    "same-id": lambda o: o[1].update(call_id="good", id="fc_good"),
    "namespace": lambda o: o[1].update(namespace="other"),
    "unknown": lambda o: o[1].update(type="future_call"),
    "in-item": lambda o: o[0].update(more=FUNCTION),
    "in-message": lambda o: o.insert(
        0,
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hm", "annotations": [], "call": FUNCTION}],
        },
    ),
    "in-reasoning": lambda o: o.insert(0, {"type": "reasoning", "id": "r", "summary": [], "call": FUNCTION}),
    "in-progress": lambda o: o[1].update(status="in_progress"),
    "reversed": lambda o: o.reverse(),
}


@pytest.mark.parametrize("odd", ODD_ITEMS)
def test_odd_response_items(arena: Arena, model: str, odd: str) -> None:
    """The same for the items of Responses."""
    without_it(arena, "responses", model, False, items(ODD_ITEMS[odd]))


def test_a_call_repeated_beside_the_reply(arena: Arena, wire: WireName, model: str) -> None:
    """What is nobody's field is nobody's: a denied call does not pass in a copy of it."""
    reply = bad(wire)
    reply["raw_calls"] = [FUNCTION]
    without_it(arena, wire, model, False, reply)


def test_log_probabilities_do_not_tell_a_denied_call(arena: Arena, model: str) -> None:
    """The tokens of a call are the call."""
    reply = bad("chat_completions", "hm")
    reply["choices"][0]["logprobs"] = {
        "content": [{"token": ARGUMENTS, "logprob": 0, "bytes": None, "top_logprobs": []}]
    }
    without_it(arena, "chat_completions", model, False, reply)


def test_a_call_in_another_choice(arena: Arena, model: str, stream: bool) -> None:
    """n > 1: every choice is read."""
    reply = said("chat_completions", "One.")
    reply["choices"].append({**bad("chat_completions")["choices"][0], "index": 1})
    session = arena.session()
    arena.says(reply)
    body = asked("chat_completions", "hi", ["look", "wipe"], stream=stream, model=model, n=2)
    answer = arena.post("chat_completions", body, session)
    silent(answer)
    assert arena.count(session) == 1
    if model == "deny":
        assert calls_of("chat_completions", whole("chat_completions", answer)) == ["look"]
    else:
        assert refused("chat_completions", answer)["rule_id"] == "the-rule"


@pytest.mark.parametrize("order", [("look", "wipe"), ("wipe", "look")])
def test_a_key_that_comes_twice(arena: Arena, wire: WireName, model: str, order: tuple[str, str]) -> None:
    """What was judged is what is written: a client that reads the other one of two keys finds no other."""
    written = orjson.dumps(said(wire, "", ("bad", "NAME", {"x": CANARY if order[1] == "wipe" else "1"})))
    first, last = (f'"name":"{name}"'.encode() for name in order)
    raw = written.replace(b'"name":"NAME"', first + b"," + last)
    assert raw != written
    session = arena.session()
    arena.says(Raw([raw]))
    answer = arena.post(wire, asked(wire, "hi", ["look", "wipe"], model=model), session)
    silent(answer)
    if order[1] == "look":
        assert calls_of(wire, whole(wire, answer)) == ["look"] and b"wipe" not in answer.body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"not json",
        b'"\xff\xfe"',
        b'{"content": null, "output": null}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
    ids=["empty", "null", "list", "object", "text", "bytes", "nulls", "deep", "deeper"],
)
def test_a_reply_that_is_none(arena: Arena, wire: WireName, stream: bool, raw: bytes) -> None:
    """It is a bad gateway, in the wire's own shape, with a receipt."""
    session = arena.session()
    data = b"data: " + raw + b"\n\n" if stream else raw
    arena.says(Raw([data]))
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model="deny"), session)
    assert answer.status == 502, answer.body
    refused(wire, answer)
    assert arena.last(answer)["final"]["status"] == "failed"
    assert arena.count(session) == 1


# Streams


def test_a_stream_in_single_bytes(arena: Arena, wire: WireName, model: str) -> None:
    """However the bytes are cut, the call does not pass."""
    data = b"".join(pieces_of(wire, bad(wire, "Words first.")))
    without_it(arena, wire, model, True, Raw([data[at : at + 1] for at in range(len(data))]))


@pytest.mark.parametrize("broken", [False, True], ids=["ended", "broken"])
def test_a_stream_that_is_cut_anywhere(arena: Arena, wire: WireName, model: str, broken: bool) -> None:
    """At every event and in the middle of each: never a call, never a proper end, always one receipt."""
    pieces = pieces_of(wire, bad(wire, "Words first."))
    for number in range(len(pieces)):
        for part in (b"", pieces[number][: len(pieces[number]) // 2]):
            session = arena.session()
            arena.says(Raw([*pieces[:number], part], broken))
            answer = arena.post(wire, asked(wire, "hi", ["look", "wipe"], stream=True, model=model), session)
            silent(answer)
            assert arena.count(session) == 1
            if not broken and answer.status == 200 and b"error" not in answer.body:
                # Only what closes an answer that was whole may be missing.
                assert number == len(pieces) - 1
                assert calls_of(wire, whole(wire, answer)) == ["look"]
            else:
                refused(wire, answer)


ERRORS: dict[str, bytes] = {
    "chat_completions": b'data: {"error": {"message": "Overloaded", "type": "server_error"}}\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n',
    "responses": b'event: error\ndata: {"type": "error", "code": "server_error", "message": "Overloaded", "param": null}\n\n',
}


def test_an_error_anywhere_in_a_stream(arena: Arena, wire: WireName, model: str) -> None:
    """A provider's error event ends the answer with an error; what was held stays here."""
    pieces = pieces_of(wire, bad(wire, "Words first."))
    for number in range(1, len(pieces)):
        session = arena.session()
        arena.says(Raw([*pieces[:number], ERRORS[wire], *pieces[number:]]))
        answer = arena.post(wire, asked(wire, "hi", ["look", "wipe"], stream=True, model=model), session)
        silent(answer)
        refused(wire, answer)
        assert arena.count(session) == 1


def test_nothing_passes_behind_the_end(arena: Arena, wire: WireName, model: str) -> None:
    """A second reply behind the first is not read as part of it."""
    first, second = pieces_of(wire, said(wire, "Words.")), pieces_of(wire, bad(wire))
    without_it(arena, wire, model, True, Raw([*first, *second]))


def test_a_stream_longer_than_what_is_held(arena: Arena, wire: WireName) -> None:
    """A call of any length is held, up to the budget; over it the answer is refused."""
    session = arena.session()
    arena.says(said(wire, "", ("bad", "wipe", {"x": CANARY, "y": "z" * 50_000})))
    answer = arena.post(wire, asked(wire, "hi", ["wipe"], stream=True, model="deny"), session)
    silent(answer, CANARY, "z" * 100)
    assert refused(wire, answer)["code"] == "held_too_long"
    assert arena.count(session) == 1


def data(*events: Any) -> list[bytes]:
    return [b"data: " + orjson.dumps(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


def chunk(delta: Any, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]}


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **fields}]}


WIPE = {"name": "wipe", "arguments": ARGUMENTS}
CHAT_STREAMS: dict[str, list[bytes]] = {
    "name-in-pieces": data(
        chunk(call(id="a", type="function", function={"name": "wi", "arguments": ""})),
        chunk(call(function={"name": "pe", "arguments": ARGUMENTS})),
        chunk({}, "tool_calls"),
    ),
    "two-at-one-index": data(
        chunk(call(id="a", function={"name": "look", "arguments": "{}"})),
        chunk(call(id="b", function=WIPE)),
        chunk({}, "tool_calls"),
    ),
    "no-index": data(chunk({"tool_calls": [{"id": "a", "function": WIPE}]}), chunk({}, "tool_calls")),
    "finish-stop": data(chunk(call(id="a", function=WIPE)), chunk({}, "stop")),
    "with-words": data(chunk({"content": "hm", **call(id="a", function=WIPE)}), chunk({}, "stop")),
    "with-the-end": data(chunk({"content": "hm", **call(id="a", function=WIPE)}, "stop")),
    "after-the-end": data(chunk({"content": "hm"}, "stop"), chunk(call(id="a", function=WIPE))),
    "in-message": data(chunk({"content": "hm"}, "stop", message={"tool_calls": [{"id": "a", "function": WIPE}]})),
    "in-choice": data(chunk({"content": "hm"}, "stop", tool_calls=[{"id": "a", "function": WIPE}])),
    "in-chunk": data({**chunk({"content": "hm"}, "stop"), "tool_calls": [{"id": "a", "function": WIPE}]}),
    "legacy": data(chunk({"function_call": WIPE}), chunk({}, "function_call")),
    "legacy-in-pieces": data(
        chunk({"function_call": {"name": "wipe", "arguments": ""}}),
        chunk({"function_call": {"arguments": ARGUMENTS}}),
        chunk({}, "function_call"),
    ),
    "unknown-field": data(chunk({"content": "hm", "native": WIPE}), chunk({}, "stop")),
    "log-probabilities": data(
        chunk({"content": "hm", **call(id="a", function=WIPE)}, logprobs={"content": [{"token": ARGUMENTS}]}),
        chunk({}, "tool_calls"),
    ),
    "other-choice": data(chunk({"content": "hm"}), chunk(call(id="a", function=WIPE), index=3), chunk({}, "stop")),
    "negative-choice": data(chunk({"content": "hm"}, "stop"), chunk(call(id="a", function=WIPE), "stop", index=-1)),
    "whole-reply": data({**bad("chat_completions")}),
    "named-event": [b"event: done\n" + one for one in data(chunk(call(id="a", function=WIPE)), chunk({}, "stop"))],
    "lines": [
        b'data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":\ndata: [{"index":0,"id":"a","function":'
        + orjson.dumps(WIPE)
        + b'}]},\ndata: "finish_reason":"tool_calls"}]}\n\n',
        b"data: [DONE]\n\n",
    ],
    "carriage-returns": [
        one.replace(b"\n", b"\r") for one in data(chunk(call(id="a", function=WIPE)), chunk({}, "tool_calls"))
    ],
    "byte-order-mark": [b"\xef\xbb\xbf", *data(chunk(call(id="a", function=WIPE)), chunk({}, "tool_calls"))],
}


@pytest.mark.parametrize("odd", CHAT_STREAMS)
def test_an_odd_chat_stream(arena: Arena, model: str, odd: str) -> None:
    """A call in pieces, in wrong places or twice: found, or the stream is not believed."""
    without_it(arena, "chat_completions", model, True, Raw(CHAT_STREAMS[odd]))


def events(*given: dict[str, Any]) -> list[bytes]:
    return [b"event: " + one["type"].encode() + b"\ndata: " + orjson.dumps(one) + b"\n\n" for one in given]


START = {"type": "message_start", "message": {**said("anthropic"), "content": [], "stop_reason": None}}
END = (
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
)


def begins(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": piece}


def stops(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


MESSAGE_STREAMS: dict[str, list[bytes]] = {
    "all-at-once": events(START, begins(0, type="tool_use", id="a", name="wipe", input={"x": CANARY}), stops(0), *END),
    "pieces-in-a-text": events(
        START,
        begins(0, type="text", text=""),
        delta(0, type="input_json_delta", partial_json=ARGUMENTS),
        stops(0),
        *END,
    ),
    "words-in-a-call": events(
        START,
        begins(0, type="tool_use", id="a", name="wipe", input={}),
        delta(0, type="text_delta", text=ARGUMENTS),
        stops(0),
        *END,
    ),
    "one-index-twice": events(
        START,
        begins(0, type="text", text=""),
        delta(0, type="text_delta", text="hm"),
        begins(0, type="tool_use", id="a", name="wipe", input={"x": CANARY}),
        stops(0),
        *END,
    ),
    "no-stop": events(START, begins(0, type="tool_use", id="a", name="wipe", input={"x": CANARY}), *END),
    "no-start": events(begins(0, type="tool_use", id="a", name="wipe", input={"x": CANARY}), stops(0), *END),
    "in-the-start": events(
        {**START, "message": {**bad("anthropic"), "stop_reason": None}},
        begins(0, type="text", text="hm"),
        stops(0),
        *END,
    ),
    "in-the-delta": events(
        START,
        begins(0, type="text", text="hm"),
        stops(0),
        {**END[0], "delta": {"stop_reason": "end_turn", "content": bad("anthropic")["content"]}},
        END[1],
    ),
    "in-the-event": events(
        START, {**begins(0, type="text", text="hm"), "call": {"name": "wipe", "input": {"x": CANARY}}}, stops(0), *END
    ),
    "in-the-piece": events(
        START, begins(0, type="text", text=""), delta(0, type="text_delta", text="hm", call=WIPE), stops(0), *END
    ),
    "in-the-text": events(START, begins(0, type="text", text="hm", call=WIPE), stops(0), *END),
    "unknown-event": events(START, {"type": "tool_call", "name": "wipe", "input": {"x": CANARY}}, *END),
    "unknown-delta": events(
        START, begins(0, type="text", text=""), delta(0, type="call_delta", call=WIPE), stops(0), *END
    ),
    "name-of-another": [
        one.replace(b"event: content_block_start", b"event: ping")
        for one in events(START, begins(0, type="tool_use", id="a", name="wipe", input={"x": CANARY}), stops(0), *END)
    ],
    "behind-words": events(
        START,
        begins(0, type="text", text="hm"),
        stops(0),
        begins(1, type="tool_use", id="a", name="wipe", input={}),
        delta(1, type="input_json_delta", partial_json=ARGUMENTS[:9]),
        delta(1, type="input_json_delta", partial_json=ARGUMENTS[9:]),
        stops(1),
        begins(2, type="text", text="more"),
        stops(2),
        *END,
    ),
    "out-of-order": events(
        START,
        begins(1, type="tool_use", id="a", name="wipe", input={"x": CANARY}),
        stops(1),
        begins(0, type="text", text="hm"),
        stops(0),
        *END,
    ),
}


@pytest.mark.parametrize("odd", MESSAGE_STREAMS)
def test_an_odd_message_stream(arena: Arena, model: str, odd: str) -> None:
    """The same for the events of Messages."""
    without_it(arena, "anthropic", model, True, Raw(MESSAGE_STREAMS[odd]))


ITEM = bad("responses")["output"][1]
MESSAGE = said("responses", "hm")["output"][0]
CREATED = {"type": "response.created", "response": {**said("responses"), "status": "in_progress", "output": []}}


def added(index: int, item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item, **more}


def done(index: int, item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item, **more}


def completed(*output: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {**said("responses"), "output": list(output), **more}}


RESPONSE_STREAMS: dict[str, list[bytes]] = {
    "only-at-the-end": events(CREATED, completed(MESSAGE, ITEM)),
    "only-in-the-stream": events(
        CREATED, added(0, MESSAGE), done(0, MESSAGE), added(1, ITEM), done(1, ITEM), completed(MESSAGE)
    ),
    "another-at-the-end": events(
        CREATED, added(0, {**ITEM, "name": "look"}), done(0, {**ITEM, "name": "look"}), completed(ITEM)
    ),
    "another-in-the-stream": events(CREATED, added(0, ITEM), done(0, ITEM), completed({**ITEM, "name": "look"})),
    "at-a-message": events(
        CREATED,
        added(0, MESSAGE),
        {
            "type": "response.function_call_arguments.done",
            "output_index": 0,
            "item_id": "msg_1",
            "name": "wipe",
            "arguments": ARGUMENTS,
        },
        done(0, MESSAGE),
        completed(MESSAGE),
    ),
    "message-becomes-a-call": events(CREATED, added(0, MESSAGE), done(0, ITEM), completed(ITEM)),
    "call-becomes-a-message": events(CREATED, added(0, ITEM), done(0, MESSAGE), completed(MESSAGE)),
    "in-created": events(
        {**CREATED, "response": {**CREATED["response"], "output": [ITEM]}},
        added(0, MESSAGE),
        done(0, MESSAGE),
        completed(MESSAGE),
    ),
    "beside-the-item": events(CREATED, added(0, MESSAGE, call=WIPE), done(0, MESSAGE, call=WIPE), completed(MESSAGE)),
    "in-the-item": events(
        CREATED,
        added(0, {**MESSAGE, "call": WIPE}),
        done(0, {**MESSAGE, "call": WIPE}),
        completed({**MESSAGE, "call": WIPE}),
    ),
    "beside-the-response": events(CREATED, added(0, MESSAGE), done(0, MESSAGE), completed(MESSAGE, calls=[WIPE])),
    "unknown-event": events(
        CREATED, {"type": "response.tool.call", "output_index": 0, "call": WIPE}, completed(MESSAGE)
    ),
    "no-created": events(added(0, ITEM), done(0, ITEM), completed(ITEM)),
    "incomplete": events(
        CREATED,
        added(0, ITEM),
        done(0, ITEM),
        {"type": "response.incomplete", "response": {**said("responses"), "status": "incomplete", "output": [ITEM]}},
    ),
    "failed": events(
        CREATED,
        added(0, ITEM),
        done(0, ITEM),
        {
            "type": "response.failed",
            "response": {
                **said("responses"),
                "status": "failed",
                "output": [ITEM],
                "error": {"code": "x", "message": "no"},
            },
        },
    ),
    "no-index": events(CREATED, {"type": "response.output_item.done", "item": ITEM}, completed(MESSAGE)),
    "arguments-alone": events(
        CREATED,
        added(0, {**ITEM, "arguments": ""}),
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 0,
            "item_id": ITEM["id"],
            "delta": ARGUMENTS,
        },
        completed(),
    ),
}


@pytest.mark.parametrize("odd", RESPONSE_STREAMS)
def test_an_odd_response_stream(arena: Arena, model: str, odd: str) -> None:
    """The same for the events of Responses."""
    without_it(arena, "responses", model, True, Raw(RESPONSE_STREAMS[odd]))


def test_a_reply_with_more_calls_than_are_judged(arena: Arena, wire: WireName, stream: bool) -> None:
    """What is too much to judge, or too much to hold until it is, does not pass unjudged."""
    session = arena.session()
    calls = [(f"{session}-{number}", "look", {"x": "1"}) for number in range(1_001)]
    arena.says(said(wire, "", *calls, ("bad", "wipe", {"x": CANARY})))
    answer = arena.post(wire, asked(wire, "hi", ["look", "wipe"], stream=stream, model="deny"), session)
    silent(answer)
    refused(wire, answer)
    assert arena.count(session) == 1
