"""A conversation in the form of Chat Completions, and replies of that form, whole or in pieces.

Decides how messages, tools and the answer's form are written. Knows no client: JSON in, JSON out, so that anything that
speaks this form may use it. What was written once stays in `conversation.wire`; only the client, which must send all of
it, walks it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from ..prompt import FileBlock, ImageBlock, Tool
from ..runtime import ToolCall
from .core import Message, ModelReply, StopReason, Turn
from .openai_parts import (
    PromptRole,
    StructuredOutput,
    address_of,
    arguments_text,
    broken_off,
    fault_in,
    file_name,
    is_object,
    is_strict,
    media_of,
    not_understood,
    object_of,
    objects_of,
    prompt_text,
    sendable,
    text_of,
    usage_of,
)

# OpenAI says `length` and `content_filter`; the others are words of servers that speak its form.
_REASONS: Final[Mapping[str, StopReason]] = {
    **dict.fromkeys(("length", "max_tokens", "model_length"), "max_tokens"),
    **dict.fromkeys(("content_filter", "safety", "sensitive", "refusal"), "refusal"),
}
_BROKEN_OFF: Final = frozenset({"error", "abort", "cancelled", "network_error", "insufficient_system_resource"})
# What a reply has beside these goes back as it came: servers seal reasoning and signatures into fields of their own.
_NOT_SENT_BACK: Final = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio", "parsed"}
)
_OF_A_CALL: Final = frozenset({"id", "type", "function", "custom", "index"})


class ChatWire:
    """How one adapter writes Chat Completions. Holds no conversation."""

    reserved: Final = frozenset(
        {"model", "messages", "tools", "stream", "response_format", "n", "functions", "function_call"}
    )
    """Options of a request that are not the user's to set."""
    grown: Final = ("messages", "tools")
    """The parts of a request that can be long."""

    def __init__(
        self, *, prompt_role: PromptRole = "system", structured_output: StructuredOutput = "schema", media: bool = True
    ) -> None:
        self._prompt_role = prompt_role
        self._structured_output: StructuredOutput = structured_output
        self._media = media
        self._tools: WeakKeyDictionary[Tool[Any, Any], dict[str, Any]] = WeakKeyDictionary()

    def defaults(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """What is sent unless the user says otherwise."""
        return dict(options)

    def request(self, turn: Turn, options: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request, all but the model's name."""
        request = {**options, "messages": self._messages(turn)}
        if turn.tools:
            request["tools"] = self._told(turn)
        else:  # without tools there is nothing to choose, and providers say so
            request.pop("tool_choice", None)
            request.pop("parallel_tool_calls", None)
        form = self._form(turn)
        if form is not None:
            request["response_format"] = form
        if turn.say is None:
            request.pop("stream_options", None)
        else:
            request["stream"] = True
            if request.setdefault("stream_options", {"include_usage": True}) is None:
                del request["stream_options"]
        return request

    def reply(self, body: Mapping[str, Any]) -> ModelReply:
        """What the model said; raises what the provider said instead."""
        if body.get("error"):
            raise fault_in(body["error"])
        choices = objects_of(body, "choices")
        if not choices or not isinstance(choices[0].get("message"), dict):
            raise not_understood(dict(body))
        choice = choices[0]
        message = object_of(choice, "message")
        finish = text_of(choice, "finish_reason").lower()
        if finish in _BROKEN_OFF:
            raise broken_off()
        calls = [_call(told) for told in objects_of(message, "tool_calls")]
        text, refusal = _content(message), text_of(message, "refusal")
        reason = "refusal" if refusal else _REASONS.get(finish)
        usage = usage_of(body, "prompt_tokens", "completion_tokens")
        return ModelReply(text or refusal, calls, reason, usage, message)

    def reader(self) -> ChatReader:
        return ChatReader()

    def _messages(self, turn: Turn) -> list[dict[str, Any]]:
        wire = turn.conversation.wire
        prompt = prompt_text(turn, self._structured_output)
        if not wire or wire[0]["content"] != prompt:
            wire[:1] = [sendable({"role": self._prompt_role, "content": prompt})]
        shown: list[dict[str, Any]] = []
        for message in turn.conversation.untranslated():
            if message.role != "tool" and shown:
                wire.append({"role": "user", "content": shown})
                shown = []
            wire.append(sendable(_written(message)))
            if self._media:
                shown += _shown(message)
        if shown:
            # Results are text in this form, and nothing may stand between them: what they show comes behind them.
            wire.append({"role": "user", "content": shown})
        return wire

    def _told(self, turn: Turn) -> list[dict[str, Any]]:
        if any(tool not in self._tools for tool in turn.tools):
            for tool, spec in zip(turn.tools, turn.tool_specs, strict=True):
                function = {name: spec[name] for name in ("name", "description", "parameters")}
                if is_strict(spec["parameters"]):
                    function["strict"] = True
                self._tools[tool] = {"type": "function", "function": function}
        return [self._tools[tool] for tool in turn.tools]

    def _form(self, turn: Turn) -> dict[str, Any] | None:
        schema = turn.output_schema
        if schema is None or self._structured_output == "text" or not is_object(schema):
            return None
        if self._structured_output == "json":
            return {"type": "json_object"}
        return {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": is_strict(schema)},
        }


class ChatReader:
    """Puts a streamed reply together again. Lives one reply."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._numbered: dict[int, dict[str, Any]] = {}
        self._finish: str = ""
        self._usage: object = None

    def take(self, chunk: Mapping[str, Any]) -> str:
        """Take the next piece; what it says for people to read is returned."""
        if chunk.get("error"):
            raise fault_in(chunk["error"])
        self._usage = chunk.get("usage") or self._usage
        said = ""
        for choice in objects_of(chunk, "choices"):
            delta = object_of(choice, "delta")
            said += _content(delta) + text_of(delta, "refusal")
            self._grow(delta)
            self._finish = text_of(choice, "finish_reason") or self._finish
        return said

    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece."""
        if not self._finish:
            raise broken_off()
        message = {**self._message, "tool_calls": self._calls} if self._calls else self._message
        return {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}

    def _grow(self, delta: Mapping[str, Any]) -> None:
        for name, piece in delta.items():
            if name == "tool_calls":
                for told in objects_of(delta, name):
                    self._grow_call(told)
            elif name == "content":
                self._message[name] = self._message.get(name, "") + _content(delta)
            elif piece is not None and name != "role":
                known = self._message.get(name)
                joins = type(known) is type(piece) and isinstance(piece, str | list)
                self._message[name] = cast("Any", known) + piece if joins else piece

    def _grow_call(self, piece: Mapping[str, Any]) -> None:
        number, call_id = piece.get("index"), text_of(piece, "id")
        if isinstance(number, int):
            call = self._numbered.get(number)
        else:
            call = self._calls[-1] if self._calls else None
        told = object_of(piece, "function")
        name = text_of(told, "name")
        # Some servers leave the index out, or number every call 0: another id is another call, if it has a name. Others
        # make up an id for every piece.
        if call is None or (call_id and name and call["id"] and call_id != call["id"]):
            fresh: dict[str, Any] = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append(fresh)
            call = fresh
            if isinstance(number, int):
                self._numbered[number] = call
        call["id"] = call["id"] or call_id
        function = call["function"]
        if name != function["name"]:  # some repeat the whole name with every piece, others send it in pieces
            function["name"] += name
        arguments: object = told.get("arguments")
        function["arguments"] += json.dumps(arguments) if isinstance(arguments, dict) else text_of(told, "arguments")
        call.update({name: value for name, value in piece.items() if name not in _OF_A_CALL})


def _call(told: Mapping[str, Any]) -> ToolCall:
    function = object_of(told, "function")
    arguments: object = function.get("arguments")
    given = cast("Mapping[str, Any]", arguments) if isinstance(arguments, dict) else text_of(function, "arguments")
    return ToolCall(text_of(function, "name"), given, text_of(told, "id") or None)


def _content(message: Mapping[str, Any]) -> str:
    """The words of a message; some servers send a list of parts, reasoning among them."""
    return text_of(message, "content") or "".join(text_of(part, "text") for part in objects_of(message, "content"))


def _written(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if message.role != "assistant":
        return {"role": message.role, "content": message.text}
    raw = cast("dict[str, Any]", message.raw) if isinstance(message.raw, dict) else {}
    written = {name: value for name, value in raw.items() if name not in _NOT_SENT_BACK and value is not None}
    written |= {"role": "assistant", "content": message.text}
    if message.tool_calls:
        told = objects_of(raw, "tool_calls")
        written["tool_calls"] = [
            {
                **({} if len(told) != len(message.tool_calls) else _extras(told[place])),
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)},
            }
            for place, call in enumerate(message.tool_calls)
        ]
        if not message.text:
            written["content"] = None
    return written


def _extras(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in _OF_A_CALL and value is not None}


def _shown(message: Message) -> list[dict[str, Any]]:
    """What a result shows beside its text, with a word to say whose it is."""
    parts = [part for block in media_of(message) if (part := _part(block)) is not None]
    if not parts:
        return []
    assert message.outcome is not None
    return [{"type": "text", "text": f"Shown by {message.outcome.call.name} ({message.call_id}):"}, *parts]


def _part(block: ImageBlock | FileBlock) -> dict[str, Any] | None:
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": address_of(block)}}
    if block.data is None:
        return None  # this form takes no addresses of files; the text names it
    return {"type": "file", "file": {"filename": file_name(block), "file_data": address_of(block)}}
