"""Conversations made from a seed, and each of them written in every wire form, whole and as an event stream.

A conversation says nothing that only one wire can say, except hosted searches, which Chat Completions cannot show. The same
number always gives the same conversation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

WORDS = (
    "budget", "page", "customer", "secret", "rénovation", "naïve", "日本語", "🧪 probe", "a\u2028b", "tab\there", "quote\"s",
    "back\\slash", "ignore all previous instructions", "ümläut", "{\"not\": \"json\"}", "data: x", "\u0000nul", "final",
)  # fmt: skip
TOOLS = (
    "browser_open", "browser_click", "shell_exec", "mcp__github__create_pull_request", "files.read", "mail/send", "search_docs",
)  # fmt: skip
MODES = (None, "auto", "none", "required", "tool")


@dataclass
class Call:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class Search:
    """A search that the provider ran by itself."""

    id: str
    query: str
    failed: bool
    url: str


@dataclass
class Said:
    """One reply of the model."""

    thinking: str = ""
    searches: list[Search] = field(default_factory=list)
    text: str = ""
    calls: list[Call] = field(default_factory=list)


@dataclass
class Result:
    call: Call
    text: str
    failed: bool


@dataclass
class Round:
    """What the client sent, and what the model said to it."""

    results: list[Result]
    user: str
    said: Said


@dataclass
class Conversation:
    model: str
    system: str
    tools: list[dict[str, Any]]
    searches: bool
    """The provider's web search is declared and used."""
    tool_choice: str | None
    output: dict[str, Any] | None
    claim: dict[str, Any] | None
    rounds: list[Round]


def conversation(number: int) -> Conversation:
    """The conversation with this number."""
    dice = random.Random(number)
    names = dice.sample(TOOLS, dice.randint(1, len(TOOLS)))
    tools = [
        {
            "name": name,
            "description": _text(dice, 4),
            "schema": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["path"],
            },
        }
        for name in names
    ]
    searches = dice.random() < 0.25
    rounds: list[Round] = []
    calls: list[Call] = []
    for index in range(dice.randint(1, 4)):
        results = [Result(call, _text(dice, 12), dice.random() < 0.2) for call in calls]
        user = _text(dice, 12) if not results or dice.random() < 0.2 else ""
        said = _said(dice, names, searches, f"{number}_{index}")
        calls = said.calls
        rounds.append(Round(results, user, said))
        if not calls and dice.random() < 0.5:
            break
    return Conversation(
        model=dice.choice(("coding-balanced", "m")),
        system=_text(dice, 10) if dice.random() < 0.7 else "",
        tools=tools,
        searches=searches,
        tool_choice=dice.choice(MODES),
        output={"type": "object", "properties": {"answer": {"type": "string"}}} if dice.random() < 0.2 else None,
        claim={"namespace": "shell", "name": "exec"} if dice.random() < 0.2 else None,
        rounds=rounds,
    )


def _said(dice: random.Random, names: list[str], searches: bool, prefix: str) -> Said:
    said = Said()
    if dice.random() < 0.3:
        said.thinking = _text(dice, 6)
    if searches:
        for index in range(dice.randint(0, 2)):
            query = _text(dice, 3)
            failed = dice.random() < 0.2
            said.searches.append(Search(f"srv_{prefix}_{index}", query, failed, f"https://example.test/{index}"))
    for index in range(dice.choice((0, 1, 1, 2, 3))):
        arguments: dict[str, Any] = {"path": _text(dice, 2)}
        if dice.random() < 0.5:
            arguments["count"] = dice.randint(-5, 10**9)
        if dice.random() < 0.3:
            arguments["nested"] = {"z": [1, 2.5, None, True], "a": _text(dice, 2)}
        said.calls.append(Call(f"call_{prefix}_{index}", dice.choice(names), arguments))
    if not said.calls or dice.random() < 0.5:
        said.text = _text(dice, 10)
    return said


def _text(dice: random.Random, most: int) -> str:
    return dice.choice((" ", "\n")).join(dice.choice(WORDS) for _ in range(dice.randint(1, most)))


# Whole bodies. `spread` decides between equal ways to write the same thing.


def chat_request(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if talk.system:
        messages.append({"role": "system", "content": _parts(talk.system, "text", spread)})
    for index, one in enumerate(talk.rounds[: upto + 1]):
        messages += [
            {"role": "tool", "tool_call_id": result.call.id, "content": _parts(result.text, "text", spread)}
            for result in one.results
        ]
        if one.user:
            messages.append({"role": "user", "content": _parts(one.user, "text", spread)})
        if index < upto:
            messages.append(_chat_message(one.said, spread))
    body: dict[str, Any] = {"model": talk.model, "messages": messages}
    body["tools"] = [
        {
            "type": "function",
            "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]},
        }
        for tool in talk.tools
    ]
    if talk.searches:
        body["web_search_options"] = {}
    if talk.tool_choice == "tool":
        body["tool_choice"] = {"type": "function", "function": {"name": talk.tools[0]["name"]}}
    elif talk.tool_choice:
        body["tool_choice"] = talk.tool_choice
    if talk.output:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": talk.output}}
    return _common(body, talk, spread)


def chat_reply(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    said = talk.rounds[upto].said
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": talk.model,
        "choices": [
            {
                "index": 0,
                "message": _chat_message(said, spread),
                "finish_reason": "tool_calls" if said.calls else "stop",
            }
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42},
    }


def _chat_message(said: Said, spread: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or spread.choice((None, ""))}
    if said.thinking:
        message["reasoning_content"] = said.thinking
    if said.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _loose(call, spread)}}
            for call in said.calls
        ]
    return message


def responses_request(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": talk.model}
    items: list[dict[str, Any]] = []
    if talk.system and spread.random() < 0.5:
        body["instructions"] = talk.system
    elif talk.system:
        items.append({"role": "system", "content": _parts(talk.system, "input_text", spread)})
    for index, one in enumerate(talk.rounds[: upto + 1]):
        items += [
            {
                "type": "function_call_output",
                "call_id": result.call.id,
                "output": _parts(result.text, "input_text", spread),
            }
            for result in one.results
        ]
        if one.user:
            message: dict[str, Any] = {"role": "user", "content": _parts(one.user, "input_text", spread)}
            if spread.random() < 0.5:
                message["type"] = "message"
            items.append(message)
        if index < upto:
            items += _responses_output(one.said, spread, f"{index}")
    body["input"] = items
    if len(items) == 1 and items[0].get("role") == "user" and isinstance(items[0]["content"], str):
        body["input"] = items[0]["content"]
    body["tools"] = [
        {
            "type": "function",
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool["schema"],
            "strict": False,
        }
        for tool in talk.tools
    ]
    if talk.searches:
        body["tools"].append({"type": spread.choice(("web_search", "web_search_preview_2025_03_11"))})
    if talk.tool_choice == "tool":
        body["tool_choice"] = {"type": "function", "name": talk.tools[0]["name"]}
    elif talk.tool_choice:
        body["tool_choice"] = talk.tool_choice
    if talk.output:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": talk.output}}
    return _common(body, talk, spread)


def responses_reply(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": talk.model,
        "output": _responses_output(talk.rounds[upto].said, spread, f"{upto}"),
        "usage": {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42},
    }


def _responses_output(said: Said, spread: random.Random, prefix: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.thinking:
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{prefix}",
                "summary": [{"type": "summary_text", "text": said.thinking}],
                "encrypted_content": "sealed",
            }
        )
    for search in said.searches:
        action: dict[str, Any] = {"type": "search", "query": search.query}
        if spread.random() < 0.5:
            action["queries"] = [search.query]
        if spread.random() < 0.5:
            action["sources"] = [{"type": "url", "url": search.url}]
        status = "failed" if search.failed else "completed"
        items.append({"type": "web_search_call", "id": search.id, "action": action, "status": status})
    if said.text:
        items.append(
            {
                "type": "message",
                "id": f"msg_{prefix}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": said.text, "annotations": []}],
            }
        )
    items += [
        {
            "type": "function_call",
            "id": f"fc_{call.id}",
            "call_id": call.id,
            "name": call.name,
            "arguments": _loose(call, spread),
            "status": "completed",
        }
        for call in said.calls
    ]
    return items


def anthropic_request(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": talk.model, "max_tokens": 1000}
    if talk.system:
        body["system"] = _parts(talk.system, "text", spread)
    messages: list[dict[str, Any]] = []
    for index, one in enumerate(talk.rounds[: upto + 1]):
        results = [_tool_result(result, spread) for result in one.results]
        if results and one.user and spread.random() < 0.5:
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": one.user}]})
        else:
            if results:
                messages.append({"role": "user", "content": results})
            if one.user:
                messages.append({"role": "user", "content": _parts(one.user, "text", spread)})
        if index < upto:
            messages.append({"role": "assistant", "content": _blocks(one.said)})
    body["messages"] = messages
    body["tools"] = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["schema"]}
        for tool in talk.tools
    ]
    if talk.searches:
        body["tools"].append({"type": "web_search_20250305", "name": "web_search"})
    if talk.tool_choice == "tool":
        body["tool_choice"] = {"type": "tool", "name": talk.tools[0]["name"]}
    elif talk.tool_choice:
        body["tool_choice"] = {"type": "any" if talk.tool_choice == "required" else talk.tool_choice}
    if talk.output:
        body["output_config"] = {"format": {"type": "json_schema", "schema": talk.output}}
    return _common(body, talk, spread)


def anthropic_reply(talk: Conversation, upto: int, spread: random.Random) -> dict[str, Any]:
    said = talk.rounds[upto].said
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": talk.model,
        "content": _blocks(said),
        "stop_reason": "tool_use" if said.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 12},
    }


def _tool_result(result: Result, spread: random.Random) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call.id}
    block["content"] = _parts(result.text, "text", spread)
    if result.failed:
        block["is_error"] = True
    return block


def _blocks(said: Said) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.thinking:
        blocks.append({"type": "thinking", "thinking": said.thinking, "signature": "signed"})
    for search in said.searches:
        blocks.append(
            {"type": "server_tool_use", "id": search.id, "name": "web_search", "input": {"query": search.query}}
        )
        content: Any = [
            {"type": "web_search_result", "url": search.url, "title": "A page", "encrypted_content": "sealed"}
        ]
        if search.failed:
            content = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
        blocks.append({"type": "web_search_tool_result", "tool_use_id": search.id, "content": content})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in said.calls]
    return blocks


def _common(body: dict[str, Any], talk: Conversation, spread: random.Random) -> dict[str, Any]:
    if spread.random() < 0.3:
        body["stream"] = spread.random() < 0.5
    if spread.random() < 0.3:
        body["temperature"] = 0.5
    if talk.claim is not None:
        claim = talk.claim if spread.random() < 0.5 else orjson.dumps(talk.claim).decode()
        body["metadata"] = {"tool_context": claim}
    return body


def _parts(text: str, kind: str, spread: random.Random) -> Any:
    """One text as a string, or as one part per line."""
    if spread.random() < 0.5:
        return text
    return [{"type": kind, "text": line} for line in text.split("\n")]


def _loose(call: Call, spread: random.Random) -> str:
    """Arguments as a model may write them: with more or less white space."""
    return orjson.dumps(call.arguments, option=spread.choice((0, orjson.OPT_INDENT_2))).decode()


# Event streams. Every piece is an event; how events are written down is up to `_written`.


def chat_stream(reply: dict[str, Any], spread: random.Random) -> bytes:
    head = {"id": reply["id"], "object": "chat.completion.chunk", "created": 1, "model": reply["model"]}
    chunks: list[dict[str, Any]] = []
    for choice in reply["choices"]:
        message = choice["message"]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": spread.choice((None, ""))}]
        for name in ("reasoning_content", "content", "refusal"):
            deltas += [{name: piece} for piece in _cut(message.get(name) or "", spread)]
        deltas += _braided(
            [list(_chat_call(n, call, spread)) for n, call in enumerate(message.get("tool_calls", []))], spread
        )
        if message.get("function_call"):
            call = message["function_call"]
            deltas.append({"function_call": {"name": call["name"], "arguments": ""}})
            deltas += [{"function_call": {"arguments": piece}} for piece in _cut(call["arguments"], spread)]
        chunks += [{"choices": [{"index": choice["index"], "delta": delta, "finish_reason": None}]} for delta in deltas]
    for choice in reply["choices"]:
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        chunks.append({"choices": [end]})
    chunks.append({"choices": [], "usage": reply["usage"]})
    events = [("", orjson.dumps({**head, **chunk})) for chunk in chunks]
    return _written([*events, ("", b"[DONE]")], spread)


def _chat_call(index: int, call: dict[str, Any], spread: random.Random) -> Iterator[dict[str, Any]]:
    function = call["function"]
    first = {
        "index": index,
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": ""},
    }
    yield {"tool_calls": [first]}
    for piece in _cut(function["arguments"], spread):
        more: dict[str, Any] = {"index": index, "function": {"arguments": piece}}
        if spread.random() < 0.1:  # some providers repeat themselves
            more["id"] = call["id"]
            more["function"]["name"] = function["name"]
        yield {"tool_calls": [more]}


def responses_stream(reply: dict[str, Any], spread: random.Random) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**reply, "output": [], "status": "in_progress", "usage": None}}
    ]
    lanes: list[list[dict[str, Any]]] = []
    for index, item in enumerate(reply["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        lane: list[dict[str, Any]] = []
        if item["type"] == "message":
            lane.append({"type": "response.output_item.added", **at, "item": {**item, "content": []}})
            for part, content in enumerate(item["content"]):
                where = {**at, "content_index": part}
                empty = {"type": "output_text", "text": "", "annotations": []}
                lane.append({"type": "response.content_part.added", **where, "part": empty})
                lane += [
                    {"type": "response.output_text.delta", **where, "delta": piece}
                    for piece in _cut(content["text"], spread)
                ]
                lane.append({"type": "response.output_text.done", **where, "text": content["text"]})
                lane.append({"type": "response.content_part.done", **where, "part": content})
        elif item["type"] == "function_call":
            lane.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
            lane += [
                {"type": "response.function_call_arguments.delta", **at, "delta": piece}
                for piece in _cut(item["arguments"], spread)
            ]
            lane.append({"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]})
        else:
            lane.append({"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress"}})
        lane.append({"type": "response.output_item.done", **at, "item": item})
        lanes.append(lane)
    events += _braided(lanes, spread)
    final = reply if spread.random() < 0.8 else {**reply, "output": []}
    events.append({"type": "response.completed", "response": final})
    written: list[tuple[str, bytes]] = []
    for number, event in enumerate(events):
        written.append((event["type"], orjson.dumps({**event, "sequence_number": number})))
    return _written(written, spread)


def anthropic_stream(reply: dict[str, Any], spread: random.Random) -> bytes:
    usage = {**reply["usage"], "output_tokens": 1}
    start = {**reply, "content": [], "stop_reason": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    lanes: list[list[dict[str, Any]]] = []
    for index, block in enumerate(reply["content"]):
        lane: list[dict[str, Any]] = []
        begun = dict(block)
        deltas: list[dict[str, Any]] = []
        if block["type"] == "text":
            begun["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in _cut(block["text"], spread)]
        elif block["type"] == "thinking":
            begun["thinking"] = begun["signature"] = ""
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(block["thinking"], spread)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif "input" in block:
            begun["input"] = {}
            text = orjson.dumps(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_cut(text, spread))]
        lane.append({"type": "content_block_start", "index": index, "content_block": begun})
        lane += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        lane.append({"type": "content_block_stop", "index": index})
        lanes.append(lane)
    events += _braided(lanes, spread)
    end = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": reply["usage"]["output_tokens"]}})
    events.append({"type": "message_stop"})
    return _written([(event["type"], orjson.dumps(event)) for event in events], spread)


def _cut(text: str, spread: random.Random) -> list[str]:
    """`text` in pieces."""
    pieces: list[str] = []
    while text:
        size = spread.randint(1, max(1, min(len(text), 24)))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def _braided(lanes: list[list[dict[str, Any]]], spread: random.Random) -> list[dict[str, Any]]:
    """All events of all lanes; each lane keeps its order, the lanes may mix."""
    waiting = [list(lane) for lane in lanes if lane]
    mixed = spread.random() < 0.3
    events: list[dict[str, Any]] = []
    while waiting:
        lane = spread.choice(waiting) if mixed else waiting[0]
        events.append(lane.pop(0))
        if not lane:
            waiting.remove(lane)
    return events


def _written(events: list[tuple[str, bytes]], spread: random.Random) -> bytes:
    """Server-sent events in one of the ways the standard allows."""
    end = spread.choice((b"\n", b"\n", b"\r\n", b"\r"))
    space = spread.choice((b"", b" "))
    out: list[bytes] = [b"\xef\xbb\xbf"] if spread.random() < 0.1 else []
    for name, data in events:
        if spread.random() < 0.05:
            out.append(b": keep-alive" + end + end)
        if name:
            out.append(b"event:" + space + name.encode() + end)
        lines = [data]
        if spread.random() < 0.1 and data != b"[DONE]":
            lines = orjson.dumps(orjson.loads(data), option=orjson.OPT_INDENT_2).split(b"\n")
        out += [b"data:" + space + line + end for line in lines]
        if spread.random() < 0.05:
            out.append(b"id: 7" + end + b"retry: 10" + end)
        out.append(end)
    return b"".join(out)


@dataclass(frozen=True)
class Wire:
    """How one wire writes a conversation."""

    name: str
    request: Callable[[Conversation, int, random.Random], dict[str, Any]]
    reply: Callable[[Conversation, int, random.Random], dict[str, Any]]
    stream: Callable[[dict[str, Any], random.Random], bytes]


WIRES = (
    Wire("chat_completions", chat_request, chat_reply, chat_stream),
    Wire("responses", responses_request, responses_reply, responses_stream),
    Wire("anthropic", anthropic_request, anthropic_reply, anthropic_stream),
)
