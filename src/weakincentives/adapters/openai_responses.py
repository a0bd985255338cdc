"""A conversation in the form of OpenAI's Responses, and replies of that form, whole or in pieces.

Decides how messages, tools and the answer's form are written. What the model put out goes back item by item as it came,
sealed reasoning too; nothing is left with the provider unless the user says `store=True`. Knows no client. What was
written once stays in `conversation.wire`; only the client, which must send all of it, walks it again.
"""

from __future__ import annotations

import re
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

_REASONS: Final[Mapping[str, StopReason]] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
_SEALED: Final = "reasoning.encrypted_content"
# Models that reason seal it when asked; others refuse the question. `include=` decides where the name misleads.
_REASONS_BY_NAME: Final = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")


class ResponsesWire:
    """How one adapter writes Responses. Holds no conversation."""

    reserved: Final = frozenset(
        {"model", "input", "instructions", "tools", "stream", "previous_response_id", "conversation", "prompt"}
        | {"background"}
    )
    """Options of a request that are not the user's to set."""
    grown: Final = ("input", "tools")
    """The parts of a request that can be long."""

    def __init__(
        self, *, prompt_role: PromptRole = "system", structured_output: StructuredOutput = "schema", media: bool = True
    ) -> None:
        self._prompt_role = prompt_role
        self._structured_output: StructuredOutput = structured_output
        self._media = media
        self._tools: WeakKeyDictionary[Tool[Any, Any], dict[str, Any]] = WeakKeyDictionary()

    def defaults(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent unless the user says otherwise."""
        defaults: dict[str, Any] = {"store": False}
        if not options.get("store") and _REASONS_BY_NAME.match(model):
            defaults["include"] = [_SEALED]
        return {**defaults, **options}

    def request(self, turn: Turn, options: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request, all but the model's name."""
        request = {**options, "input": self._input(turn, kept=bool(options.get("store")))}
        if turn.tools:
            request["tools"] = self._told(turn)
        else:  # without tools there is nothing to choose, and providers say so
            request.pop("tool_choice", None)
            request.pop("parallel_tool_calls", None)
        form = self._form(turn)
        if form is not None:
            request["text"] = {**object_of(request, "text"), "format": form}
        if turn.say is None:
            request.pop("stream_options", None)
        else:
            request["stream"] = True
        return request

    def reply(self, body: Mapping[str, Any]) -> ModelReply:
        """What the model said; raises what the provider said instead."""
        if body.get("error"):
            raise fault_in(body["error"])
        if not isinstance(body.get("output"), list):
            raise not_understood(dict(body))
        if body.get("status") in ("failed", "cancelled"):
            raise broken_off()
        items = objects_of(body, "output")
        calls = [
            ToolCall(text_of(item, "name"), text_of(item, "arguments"), text_of(item, "call_id") or None)
            for item in items
            if item.get("type") == "function_call"
        ]
        spoken = [item for item in items if item.get("type") == "message"]
        # A model that comments on its work marks its last words; the comments are not part of the answer.
        final = [item for item in spoken if item.get("phase") == "final_answer"] or spoken
        parts = [part for item in final for part in objects_of(item, "content")]
        text = "".join(text_of(part, "text") for part in parts if part.get("type") == "output_text")
        refusal = "".join(text_of(part, "refusal") for part in parts if part.get("type") == "refusal")
        cut = _REASONS.get(text_of(object_of(body, "incomplete_details"), "reason"))
        if cut is None and body.get("status") == "incomplete":
            cut = "max_tokens"  # for a reason that is not known here; an answer it is not
        usage = usage_of(body, "input_tokens", "output_tokens")
        return ModelReply(text or refusal, calls, "refusal" if refusal else cut, usage, items)

    def reader(self) -> ResponsesReader:
        return ResponsesReader()

    def _input(self, turn: Turn, *, kept: bool) -> list[dict[str, Any]]:
        wire = turn.conversation.wire
        prompt = prompt_text(turn, self._structured_output)
        # WHY NOT `instructions`: a request must have input, and the first one has nothing but the prompt.
        if not wire or wire[0]["content"] != prompt:
            wire[:1] = [sendable({"type": "message", "role": self._prompt_role, "content": prompt})]
        for message in turn.conversation.untranslated():
            wire += map(sendable, self._items(message, kept=kept))
        return wire

    def _items(self, message: Message, *, kept: bool) -> list[dict[str, Any]]:
        if message.role == "tool":
            return [{"type": "function_call_output", "call_id": message.call_id, "output": self._output(message)}]
        if message.role == "assistant":
            return _said(message, kept=kept)
        return [{"type": "message", "role": message.role, "content": message.text}]

    def _output(self, message: Message) -> str | list[dict[str, Any]]:
        parts = [_part(block) for block in media_of(message)] if self._media else []
        return [{"type": "input_text", "text": message.text}, *parts] if parts else message.text

    def _told(self, turn: Turn) -> list[dict[str, Any]]:
        if any(tool not in self._tools for tool in turn.tools):
            for tool, spec in zip(turn.tools, turn.tool_specs, strict=True):
                function = {name: spec[name] for name in ("name", "description", "parameters")}
                # Said either way: left out, this form takes it for granted and rewrites the schema.
                self._tools[tool] = {"type": "function", **function, "strict": is_strict(spec["parameters"])}
        return [self._tools[tool] for tool in turn.tools]

    def _form(self, turn: Turn) -> dict[str, Any] | None:
        schema = turn.output_schema
        if schema is None or self._structured_output == "text" or not is_object(schema):
            return None
        if self._structured_output == "json":
            return {"type": "json_object"}
        return {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}


class ResponsesReader:
    """Waits for the end of a streamed reply, which holds all of it. Lives one reply."""

    def __init__(self) -> None:
        self._body: dict[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Take the next event; what it says for people to read is returned."""
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                return text_of(event, "delta")
            case "response.completed" | "response.incomplete" | "response.failed":
                self._body = object_of(event, "response")
            case "error":
                raise fault_in(event)
            case _:
                pass
        return ""

    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece."""
        if self._body is None:
            raise broken_off()
        return self._body


def _said(message: Message, *, kept: bool) -> list[dict[str, Any]]:
    """What the model put out, as items: its own, or written anew when the reply came from elsewhere. `kept`: the
    provider has them too, and knows them by their ids."""
    calls = [
        {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": arguments_text(call),
        }
        for call in message.tool_calls
    ]
    if not isinstance(message.raw, list):
        words = [{"type": "message", "role": "assistant", "content": message.text}] if message.text else []
        return [*words, *calls]
    items: list[dict[str, Any]] = []
    own = iter(calls)
    lost = False
    for item in cast("list[dict[str, Any]]", message.raw):
        if item.get("type") == "function_call":
            call = next(own, None)
            if call is not None:  # else the reply was refused, and its calls are nobody's
                items.append({**item, **call})
        elif item.get("type") == "reasoning" and not (kept or item.get("encrypted_content") or item.get("content")):
            lost = True
        else:
            items.append(item)
    if lost:
        # Reasoning that was neither sealed nor kept cannot be given back, and what followed must not refer to it.
        items = [{name: value for name, value in item.items() if name != "id"} for item in items]
    return items


def _part(block: ImageBlock | FileBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "input_image", "image_url": address_of(block), "detail": "auto"}
    if block.data is None:
        return {"type": "input_file", "file_url": address_of(block)}
    return {"type": "input_file", "filename": file_name(block), "file_data": address_of(block)}
