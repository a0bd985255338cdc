"""Claims about bodies nobody meant: whatever comes, the answer is a turn or a wire error, never another exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright.errors import WireError
from wardwright.wire import anthropic, chat_completions, mcp, responses

from .conversations import WIRES, conversation

ASKED: dict[str | int, mcp.Asked] = {
    number: mcp.Asked(method)
    for number, method in enumerate(mcp.METHODS)
    if not mcp.METHODS[method].startswith("refused")
}

# Words that open doors: names of fields, and values that choose a way through the code.
NAMES = sorted(
    {
        "type", "role", "content", "text", "messages", "input", "output", "tools", "tool_calls", "function", "custom", "name", "id",
        "arguments", "call_id", "tool_call_id", "tool_use_id", "choices", "message", "delta", "index", "output_index",
        "content_index", "content_block", "item", "response", "usage", "error", "tool_choice", "response_format", "metadata",
        "tool_context", "source", "data", "system", "summary", "action", "queries", "results", "outputs", "environment", "format",
        "schema", "json_schema", "parameters", "input_schema", "mcp_servers", "container", "skills", "configs", "definition",
        "tool", "jsonrpc", "method", "params", "result", "contents", "structuredContent", "is_error", "isError", "server_label",
        "actions", "sources", "url", "finish_reason", "reasoning_details", "prediction", "partial_json", "citation", "operation",
        "status", "thinking", "tool_changes", "allowed_tools", "mode", "model", "stream", "approve", "toolset_name", "functions",
        "part", "audio", "transcript", "namespace", "output_config", "function_call", "inputRequests", "further",
    }
)  # fmt: skip
VALUES = sorted(
    {
        *responses.ITEMS,
        *(block.replace("*", "web_search") for block in anthropic.BLOCKS),
        *mcp.METHODS,
        "function", "custom", "text", "input_text", "output_text", "system", "user", "assistant", "tool", "developer", "auto", "any",
        "allowed_tools", "web_search", "web_search_20250305", "mcp", "mcp_toolset", "namespace", "browser_toolset_20260801",
        "json_schema", "text_delta", "input_json_delta", "citations_delta", "message_start", "message_delta", "message_stop",
        "content_block_start", "content_block_delta", "content_block_stop", "response.created", "response.completed",
        "response.output_item.added", "response.output_item.done", "response.output_text.delta", "response.output_text.done",
        "response.function_call_arguments.delta", "response.content_part.added", "response.content_part.done", "refusal", "error", "2.0", "completed", "failed", "local", "client", "{}", "",
    }
)  # fmt: skip

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(VALUES),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)),
    max_leaves=25,
)


def lists(*names: str) -> Callable[[Any], Any]:
    """Puts a value where a wire expects its list."""

    def place(value: Any) -> Any:
        return {names[0]: value if isinstance(value, list) else [value], **dict.fromkeys(names[1:], value)}

    return place


# Things of a known type, so that the code behind each type is reached.
things = st.tuples(st.sampled_from(VALUES), st.dictionaries(st.sampled_from(NAMES), values, max_size=5)).map(
    lambda pair: {"type": pair[0], "role": "user", "name": "n", **pair[1]}
)
bodies = st.one_of(
    values,
    st.lists(things, max_size=3).map(lambda given: {"input": given}),
    st.lists(things, max_size=3).map(lambda given: {"output": given}),
    st.lists(things, max_size=3).map(lambda given: {"content": given}),
    st.lists(things, max_size=3).map(lambda given: {"messages": [{"role": "assistant", "content": given}]}),
    things.map(lambda thing: {"messages": [], "input": [], "tools": [thing], "tool_choice": thing}),
    things.map(lambda thing: {"choices": [{"message": {"content": [thing], "tool_calls": [thing]}}]}),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=8),
    values.map(lists("messages", "tools")),
    values.map(lists("input", "tools", "tool_choice")),
    values.map(lists("output")),
    values.map(lists("content")),
    values.map(lists("messages", "system", "mcp_servers", "container")),
    values.map(lambda value: {"choices": [{"message": value, "delta": value}]}),
    st.tuples(st.sampled_from(sorted(mcp.METHODS)), values).map(
        lambda pair: {"jsonrpc": "2.0", "id": 1, "method": pair[0], "params": pair[1]}
    ),
    st.tuples(st.sampled_from(sorted(ASKED, key=str)), values).map(
        lambda pair: {"jsonrpc": "2.0", "id": pair[0], "result": pair[1]}
    ),
)

PARSERS: tuple[Callable[[bytes], Any], ...] = (
    chat_completions.parse_request,
    chat_completions.parse_reply,
    responses.parse_request,
    responses.parse_reply,
    anthropic.parse_request,
    anthropic.parse_reply,
    lambda raw: mcp.parse_messages(raw, ASKED),
)


@settings(max_examples=400)
@given(bodies)
def test_any_json_is_a_turn_or_a_wire_error(body: Any) -> None:
    """A parser answers any JSON with what it means, or with a wire error."""
    raw = orjson.dumps(body)
    for parse in PARSERS:
        with suppress(WireError):
            assert parse(raw) is not None


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_turn_or_a_wire_error(raw: bytes) -> None:
    """A parser answers any bytes with what they mean, or with a wire error."""
    for parse in PARSERS:
        with suppress(WireError):
            assert parse(raw) is not None


@settings(max_examples=150)
@given(st.lists(st.one_of(things, values), max_size=5))
def test_any_events_are_a_turn_or_a_wire_error(events: list[Any]) -> None:
    """A stream of any JSON assembles to what it means, or to a wire error."""
    data = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    for module in (chat_completions, responses, anthropic):
        assembler = module.StreamAssembler()
        with suppress(WireError):
            assembler.feed(data)
            assembler.close()
            assert assembler.turn().gate == "reply"
    messages = mcp.StreamAssembler(ASKED)
    with suppress(WireError):
        messages.feed(data)
        assert isinstance(messages.messages(), tuple)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_damaged_conversation_is_a_turn_or_a_wire_error(wire: Any) -> None:
    """A real request or reply with one value replaced lowers, or is a wire error."""
    module = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}[wire.name]
    junk: tuple[Any, ...] = (None, 0, 1.5, True, "", "x", [], {}, [[]], [{}], {"type": "text"}, ["x"])
    seen = 0
    for number in range(150):
        dice = random.Random(number)
        talk = conversation(number)
        upto = len(talk.rounds) - 1
        for body, parse in (
            (wire.request(talk, upto, dice), module.parse_request),
            (wire.reply(talk, upto, dice), module.parse_reply),
        ):
            for _ in range(6):
                copy: Any = orjson.loads(orjson.dumps(body))
                spot = copy
                while True:
                    key = dice.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
                    if isinstance(spot[key], (dict, list)) and spot[key] and dice.random() < 0.8:
                        spot = spot[key]
                        continue
                    spot[key] = dice.choice(junk)
                    break
                with suppress(WireError):
                    parse(copy)
                    seen += 1
    assert seen > 0
