"""The pieces that both of OpenAI's forms are made of: schemas, arguments, pictures and files, token counts, faults.

Decides when a schema may be called strict, what a call looks like when it is sent back, and which faults of a provider
pass by themselves. Knows no client and sends nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast

from ..errors import PromptEvaluationError, ThrottledError
from ..limits import TokenUsage
from ..prompt import FileBlock, ImageBlock
from ..prompt.tool_result import content_blocks
from ..runtime import ToolCall
from .core import Message, Turn, output_instructions

T = TypeVar("T")

PromptRole = Literal["system", "developer", "user"]
"""Who is said to speak the prompt."""
StructuredOutput = Literal[
    "schema",  # the provider is told the JSON Schema and keeps the model to it
    "json",  # the provider keeps the model to JSON objects; the prompt's text says the schema
    "text",  # the prompt's text says the schema, and nobody keeps the model to it
]

SHORTEST_KEY: Final = 8
"""Shorter API keys are words like "none" that stand for one, and stand in other words too."""

# --- schemas ----------------------------------------------------------------------------------------------------------

# What OpenAI's strict mode takes. Anything else is sent as it is, not strict: our own parser judges the arguments anyway.
_STRICT_WORDS: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs"),
        *("title", "description", "pattern", "format", "multipleOf", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_STRICT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_SAYS_WHAT: Final = frozenset({"type", "anyOf", "enum", "const", "$ref"})
_DEEPEST: Final = 10


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI's strict mode takes the schema: every object closed and every field of it required."""
    return schema.get("type") == "object" and "anyOf" not in schema and _is_strict(schema, 0)


def _is_strict(schema: object, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return False
    words = cast("Mapping[str, Any]", schema)
    if not _STRICT_WORDS.issuperset(words) or _SAYS_WHAT.isdisjoint(words):
        return False
    if "$ref" in words and len(words) > 1:
        return False
    if words.get("format", "date") not in _STRICT_FORMATS:
        return False
    kinds = words.get("type", ())
    if "object" in ([kinds] if isinstance(kinds, str) else kinds):
        fields = words.get("properties", {})
        if words.get("additionalProperties") is not False or set(words.get("required", ())) != set(fields):
            return False
    if kinds == "array" and "items" not in words:
        return False
    inner = [*words.get("properties", {}).values(), *words.get("anyOf", ())]
    if "items" in words:
        inner.append(words["items"])
    return all(_is_strict(each, depth + 1) for each in inner) and all(
        _is_strict(each, 0) for each in words.get("$defs", {}).values()
    )


def prompt_text(turn: Turn, how: StructuredOutput) -> str:
    """The prompt, with what the provider is not told of the answer's form."""
    schema = turn.output_schema
    if schema is None or (how == "schema" and is_object(schema)):
        return turn.system
    return f"{turn.system}\n\n{output_instructions(schema)}" if turn.system else output_instructions(schema)


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether an answer of this form is a JSON object; providers keep a model to no others."""
    return schema.get("type") == "object"


# --- calls and results ------------------------------------------------------------------------------------------------


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as they are sent back to the model that wrote them."""
    arguments = call.arguments
    if isinstance(arguments, Mapping):
        return json.dumps(dict(arguments), ensure_ascii=False)
    text = arguments.decode("utf-8", "replace") if isinstance(arguments, bytes) else arguments or "{}"
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    # WHY NOT as they were: servers that parse the history (vLLM, llama.cpp) refuse the whole request for it, and what a
    # model writes must not end a run.
    return json.dumps({"invalid_json": text}, ensure_ascii=False)


def sendable(item: T) -> T:
    """A piece of a conversation as it can be sent: halves of characters, which JSON may hold and no wire, are replaced."""
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.loads(json.dumps(item, ensure_ascii=False).encode("utf-8", "replace"))
    return item


def media_of(message: Message) -> Iterator[ImageBlock | FileBlock]:
    """The pictures and files of a result that the model may see; their places in its text are marked."""
    if message.outcome is None:
        return
    result = message.outcome.result
    if result.success and not result.exclude_value_from_context:
        for block in content_blocks(result.value):
            if isinstance(block, ImageBlock | FileBlock):
                yield block


def address_of(block: ImageBlock | FileBlock) -> str:
    """Where a picture or file is: its own address, or one that holds its bytes."""
    if block.data is None:
        return block.url or ""
    return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"


def file_name(block: FileBlock) -> str:
    return block.name or f"file.{block.media_type.rpartition('/')[2]}"


# --- what a provider sends --------------------------------------------------------------------------------------------


def objects_of(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The JSON objects of a list; servers send null for an empty one."""
    given = body.get(name)
    if not isinstance(given, Sequence) or isinstance(given, str):
        return []
    return [cast("dict[str, Any]", each) for each in cast("Sequence[object]", given) if isinstance(each, dict)]


def object_of(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = body.get(name)
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def text_of(body: Mapping[str, Any], name: str) -> str:
    given = body.get(name)
    return given if isinstance(given, str) else ""


def usage_of(body: Mapping[str, Any], sent: str, answered: str) -> TokenUsage:
    """The tokens of a reply; `sent` and `answered` are what the form calls the two counts."""
    usage = object_of(body, "usage")
    cached = _count(object_of(usage, f"{sent}_details"), "cached_tokens")
    return TokenUsage(_count(usage, sent), _count(usage, answered), cached)


def _count(body: Mapping[str, Any], name: str) -> int:
    given = body.get(name)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0


# --- faults -----------------------------------------------------------------------------------------------------------

_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})
_PASSING_CODES: Final = frozenset({"rate_limit_exceeded", "server_error", "overloaded_error", "vector_store_timeout"})
_LASTING_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_LONGEST: Final = 600

Fault = PromptEvaluationError | ThrottledError


def fault(
    said: str,
    *,
    status: int | None = None,
    code: str | None = None,
    retry_after: float | None = None,
    passes: bool | None = None,
) -> Fault:
    """The error for what a provider said instead of an answer; `passes`: what it says itself about trying again."""
    said = _sentence(said)
    shown = code if status is None else str(status)
    where = f" ({shown})" if shown else ""
    if passes is None:
        passes = code in _PASSING_CODES if status is None else status in _PASSING_STATUS or status >= 500
    if passes and code not in _LASTING_CODES:
        return ThrottledError(f"The model's provider cannot answer now{where}: {said} Retry later.", retry_after)
    return PromptEvaluationError(
        f"The model's provider refused the request{where}: {said}{_advice(said, status, code)}"
    )


def fault_in(error: object) -> Fault:
    """The error for an error object of the provider, sent where an answer was due."""
    if not isinstance(error, Mapping):
        return fault(str(error))
    body = cast("Mapping[str, Any]", error)
    code = body.get("code")
    said = text_of(body, "message") or "no reason was given"
    if isinstance(code, int):
        return fault(said, status=code)
    return fault(said, code=code if isinstance(code, str) else text_of(body, "type") or None)


def broken_off() -> ThrottledError:
    return ThrottledError("The model's provider broke off in the middle of its reply. Retry later.")


def not_understood(answer: object) -> PromptEvaluationError:
    shown = " ".join(str(answer).split())
    shown = f"{shown[:80]}…" if len(shown) > 80 else shown
    return PromptEvaluationError(
        f"The server answered with something that is no model's reply: {shown!r}. "
        "Check base_url (it usually ends in /v1) and api, then retry."
    )


def _advice(said: str, status: int | None, code: str | None) -> str:
    if code in _LASTING_CODES:
        return " The account has no credit left; trying again cannot help."
    if code == "context_length_exceeded" or "context length" in said:
        return " The conversation is too long for the model; start a new run with less in it."
    if status in (401, 403):
        return " Check the API key."
    if status == 404:
        return " Check model, base_url and api."
    if "ncrypted content" in said:
        return " Pass include=[] for this model."
    if "response_format" in said or "json_schema" in said or "text.format" in said:
        return ' A server that takes no schema for the answer needs structured_output="text".'
    return ""


def _sentence(said: str) -> str:
    said = " ".join(said.split()) or "no reason was given"
    said = f"{said[:_LONGEST]}…" if len(said) > _LONGEST else said
    return said if said[-1] in ".!?…" else f"{said}."
