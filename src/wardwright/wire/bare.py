"""A reply without what its wire does not have. Used where a call was taken out of one: no copy of it may stay in a field that
nobody reads. A reply that passes as it came keeps whatever its provider added. What hosted tools left is the provider's record, and
stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from wardwright.wire.body import Json, Object

_COMPLETION: Final = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"}
)
# Log probabilities are of all tokens, those of calls among them.
_CHOICE: Final = frozenset({"index", "message", "finish_reason"})
_CHAT_MESSAGE: Final = frozenset(
    {
        "annotations", "audio", "content", "function_call", "name", "parsed", "reasoning", "reasoning_content", "reasoning_details",
        "refusal", "role", "tool_calls",
    }
)  # fmt: skip
_CHAT_CALL: Final = frozenset({"id", "type", "function", "custom", "index"})
_DEFINED: Final = frozenset({"name", "arguments", "input"})
_CHAT_PART: Final = frozenset({"type", "text", "refusal"})

_MESSAGE: Final = frozenset(
    {
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "stop_details", "usage", "container",
        "context_management", "diagnostics",
    }
)  # fmt: skip
_BLOCKS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input", "caller", "toolset_name"}),
}

RESPONSE: Final = frozenset(
    {
        "background", "billing", "completed_at", "conversation", "created_at", "error", "frequency_penalty", "id",
        "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation", "object",
        "output", "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "status", "store",
        "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "user",
    }
)  # fmt: skip
"""Fields of a response."""
_CALLED: Final = frozenset({"type", "id", "call_id", "name", "namespace", "status", "caller", "created_by"})
_ITEMS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"content", "id", "phase", "role", "status", "type"}),
    "reasoning": frozenset({"content", "encrypted_content", "id", "status", "summary", "type"}),
    "function_call": _CALLED | {"arguments"},
    "custom_tool_call": _CALLED | {"input"},
}
_ITEM_PART: Final = frozenset({"annotations", "logprobs", "refusal", "text", "type"})


def completion(reply: Object) -> None:
    """Chat Completions."""
    _only(reply, _COMPLETION)
    for choice in _objects(reply.get("choices")):
        _only(choice, _CHOICE)
        message = choice.get("message")
        if not isinstance(message, dict):
            continue
        _only(message, _CHAT_MESSAGE)
        for part in _objects(message.get("content")):
            _only(part, _CHAT_PART)
        for call in _objects(message.get("tool_calls")):
            _only(call, _CHAT_CALL)
            for key in ("function", "custom"):
                _inner(call, key)
        _inner(message, "function_call")


def message(reply: Object) -> None:
    """Messages."""
    _only(reply, _MESSAGE)
    for block in _objects(reply.get("content")):
        _known(block, _BLOCKS)


def response(reply: Object) -> None:
    """Responses."""
    _only(reply, RESPONSE)
    for item in _objects(reply.get("output")):
        _known(item, _ITEMS)
        if item.get("type") in ("message", "reasoning"):
            for key in ("content", "summary"):
                for part in _objects(item.get(key)):
                    _only(part, _ITEM_PART)


def _known(fields: Object, kinds: Mapping[str, frozenset[str]]) -> None:
    known = kinds.get(str(fields.get("type")))
    if known is not None:
        _only(fields, known)


def _inner(fields: Object, key: str) -> None:
    inner = fields.get(key)
    if isinstance(inner, dict):
        _only(inner, _DEFINED)


def _only(fields: Object, known: Collection[str]) -> None:
    for key in [key for key in fields if key not in known]:
        del fields[key]


def _objects(value: Json) -> list[Object]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
