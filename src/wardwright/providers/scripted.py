"""The built-in provider: answers from a script, at once and without network, in every wire, whole and as a stream.

Deterministic: equal requests get equal bytes. It is what a fresh installation talks to, and what simulations and demonstrations use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import orjson

from wardwright.errors import ProviderFailed, WireError
from wardwright.providers.response import Canned, Response
from wardwright.providers.script import Said, speak
from wardwright.providers.settings import WIRES, ProviderConfig
from wardwright.providers.upstream import remapped
from wardwright.wire import anthropic, chat_completions, responses
from wardwright.wire.body import read
from wardwright.wire.turn import Turn, WireName

CREATED: Final = 1_700_000_000
"""When every scripted reply was made."""

_WORDS: Final = re.compile(r"\s*\S+\s*|\s+")

Call: TypeAlias = tuple[str, str, str]
"""id, name, arguments"""


class Scripted:
    """A provider that follows a script. Lives as long as the deployment that declares it; holds nothing of a request."""

    def __init__(self, config: ProviderConfig, *, passing: Collection[str] = ()) -> None:
        self.config = config
        self._passing = passing

    @property
    def name(self) -> str:
        return self.config.name

    def wire_for(self, wire: WireName) -> WireName:
        return wire if wire in WIRES else "chat_completions"

    def blocked(self, model: str) -> bool:  # noqa: ARG002 - nothing to be held back from
        return False

    def ids(self, call_ids: Iterable[str]) -> dict[str, str]:
        return remapped(self.config, call_ids)

    async def send(
        self,
        wire: WireName,
        body: bytes,
        *,
        stream: bool,
        model: str,
        deadline: float | None = None,  # noqa: ARG002 - it answers at once
        headers: Sequence[tuple[str, str]] = (),  # noqa: ARG002
        tried: list[ProviderFailed] | None = None,  # noqa: ARG002
    ) -> Response:
        """The answer to `body`, which is written in `wire`."""
        parse, whole, events = _WIRES[wire]
        try:
            request = read(body)
            turn = parse(request, passing=self._passing)
        except WireError as error:
            raise ProviderFailed("status", str(error), status=error.status, retryable=False) from None
        said = speak(self.config.script, turn)
        if said.status != 200:
            retryable = said.status in (401, 402, 403, 404, 408, 409, 429) or said.status >= 500
            raise ProviderFailed("status", said.text, status=said.status, retryable=retryable)
        reply = _Reply(body, request, turn, said, model)
        if stream:
            return Canned(200, "text/event-stream; charset=utf-8", events(reply))
        return Canned(200, "application/json", (orjson.dumps(whole(reply)),))

    def close(self) -> None:
        """Nothing to let go of."""


class _Reply:
    """What is said, and what the request wants to know beside it."""

    __slots__ = ("calls", "digest", "input_tokens", "model", "output_tokens", "request", "text")

    def __init__(self, body: bytes, request: Mapping[str, Any], turn: Turn, said: Said, model: str) -> None:
        self.request = request
        self.model = turn.model or model
        self.digest = hashlib.blake2b(body, digest_size=12).hexdigest()
        self.text = said.text
        prefix = "toolu_" if turn.wire == "anthropic" else "call_"
        self.calls: list[Call] = [
            (call.id or f"{prefix}{self.digest[:16]}{index:02}", call.name, call.arguments)
            for index, call in enumerate(said.calls)
        ]
        self.input_tokens = len(body) // 4 + 1
        self.output_tokens = sum(len(call[2]) for call in self.calls) // 4 + len(self.text) // 4 + 1

    def pieces(self) -> list[str]:
        """The text, cut as a model would give it out."""
        return _WORDS.findall(self.text)


def _event(data: Mapping[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


# Chat Completions


def _chat_choices(reply: _Reply) -> int:
    """How many answers were asked for. All are the same."""
    wanted = reply.request.get("n")
    return wanted if isinstance(wanted, int) and 1 <= wanted <= 128 else 1


def _chat_usage(reply: _Reply) -> dict[str, Any]:
    output = reply.output_tokens * _chat_choices(reply)
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": output,
        "total_tokens": reply.input_tokens + output,
    }


def _chat_calls(reply: _Reply) -> tuple[str, Any]:
    """The field that carries calls, and what stands in it; requests with `functions` get the old form."""
    functions = [{"name": name, "arguments": arguments} for _, name, arguments in reply.calls]
    if reply.request.get("functions") and not reply.request.get("tools"):
        return "function_call", functions[0]
    return "tool_calls", [
        {"id": call[0], "type": "function", "function": function}
        for call, function in zip(reply.calls, functions, strict=True)
    ]


def _chat_finish(reply: _Reply) -> str:
    return "stop" if not reply.calls else "function_call" if _chat_calls(reply)[0] == "function_call" else "tool_calls"


def _chat(reply: _Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        field, calls = _chat_calls(reply)
        message[field] = calls
    elif not reply.text:
        message["content"] = ""
    return {
        "id": f"chatcmpl-{reply.digest}",
        "object": "chat.completion",
        "created": CREATED,
        "model": reply.model,
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": _chat_finish(reply)}
            for index in range(_chat_choices(reply))
        ],
        "usage": _chat_usage(reply),
    }


def _chat_stream(reply: _Reply) -> Iterator[bytes]:
    options: Any = reply.request.get("stream_options")
    usage = isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True

    def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
        said: dict[str, Any] = {
            "id": f"chatcmpl-{reply.digest}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": reply.model,
            "choices": choices,
        }
        if usage:
            said["usage"] = None
        return _event({**said, **more})

    for index in range(_chat_choices(reply)):

        def part(delta: dict[str, Any], finish: str | None = None, index: int = index) -> bytes:
            return chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}])

        yield part({"role": "assistant", "content": "" if reply.text or not reply.calls else None})
        for piece in reply.pieces():
            yield part({"content": piece})
        if reply.calls:
            field, calls = _chat_calls(reply)
            if field == "function_call":
                yield part({"function_call": {"name": calls["name"], "arguments": ""}})
                yield part({"function_call": {"arguments": calls["arguments"]}})
            else:
                for number, call in enumerate(calls):
                    opening = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
                    yield part({"tool_calls": [opening]})
                    arguments = {"arguments": call["function"]["arguments"]}
                    yield part({"tool_calls": [{"index": number, "function": arguments}]})
        yield part({}, _chat_finish(reply))
    if usage:
        yield chunk([], usage=_chat_usage(reply))
    yield b"data: [DONE]\n\n"


# Responses


def _output(reply: _Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part: dict[str, Any] = {"type": "output_text", "text": reply.text, "annotations": []}
        message = {"id": f"msg_{reply.digest}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    for index, (call_id, name, arguments) in enumerate(reply.calls):
        call = {"id": f"fc_{reply.digest}{index:02}", "type": "function_call", "status": "completed"}
        items.append({**call, "call_id": call_id, "name": name, "arguments": arguments})
    return items


def _responses(reply: _Reply) -> dict[str, Any]:
    asked = reply.request
    return {
        "id": f"resp_{reply.digest}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata") or {},
        "model": reply.model,
        "output": _output(reply),
        "parallel_tool_calls": True,
        "temperature": asked.get("temperature"),
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "top_p": asked.get("top_p"),
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def _responses_stream(reply: _Reply) -> Iterator[bytes]:
    whole = _responses(reply)
    sequence = -1

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal sequence
        sequence += 1
        return _event({"type": kind, "sequence_number": sequence, **fields}, kind)

    begun: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        if item["type"] == "message":
            part = item["content"][0]
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            opening: dict[str, Any] = {**item, "status": "in_progress", "content": []}
            yield event("response.output_item.added", output_index=index, item=opening)
            yield event("response.content_part.added", **place, part={**part, "text": ""})
            for piece in reply.pieces():
                yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
            yield event("response.output_text.done", **place, text=reply.text, logprobs=[])
            yield event("response.content_part.done", **place, part=part)
        else:
            place = {"item_id": item["id"], "output_index": index}
            opening = {**item, "status": "in_progress", "arguments": ""}
            yield event("response.output_item.added", output_index=index, item=opening)
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield event(
                "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
            )
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=whole)


# Messages


def _input(arguments: str) -> Any:
    """Arguments as Messages carries them: an object, whatever the script wrote."""
    try:
        value: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {"text": arguments}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value}


def _messages(reply: _Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        content.append({"type": "text", "text": reply.text})
    for call_id, name, arguments in reply.calls:
        content.append({"type": "tool_use", "id": call_id, "name": name, "input": _input(arguments)})
    return {
        "id": f"msg_{reply.digest}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
    }


def _messages_stream(reply: _Reply) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    whole = _messages(reply)
    usage = {"input_tokens": reply.input_tokens, "output_tokens": 1}
    yield event("message_start", message={**whole, "content": [], "stop_reason": None, "usage": usage})
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for piece in reply.pieces():
                yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            written = orjson.dumps(block["input"]).decode()
            yield event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": written})
        yield event("content_block_stop", index=index)
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ending, usage={"output_tokens": reply.output_tokens})
    yield event("message_stop")


_WIRES: Final[
    Mapping[
        WireName,
        tuple[Callable[..., Turn], Callable[[_Reply], dict[str, Any]], Callable[[_Reply], Iterator[bytes]]],
    ]
] = {
    "chat_completions": (chat_completions.parse_request, _chat, _chat_stream),
    "responses": (responses.parse_request, _responses, _responses_stream),
    "anthropic": (anthropic.parse_request, _messages, _messages_stream),
}
