"""Results in the form of MCP: a server's answer as a `ToolResult`, an outcome of ours as an answer, result types as schemas.

Decides what a model reads of a stranger's content blocks and what a client gets beside the text. Sends nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from .. import serde
from ..errors import PromptValidationError
from ..prompt import FileBlock, ImageBlock, TextBlock, Tool, ToolResult
from ..prompt.result_type import dataclasses_in, strip
from ..prompt.tool_result import ContentBlock, content_blocks
from ..runtime import ToolOutcome
from . import mcp_sdk

NOTHING: Final = "The tool returned nothing."

# --- what a server answers --------------------------------------------------------------------------------------------


def result_of(tool_name: str, answer: Any) -> ToolResult[Any]:
    """What a server's answer means here. Structured content is the value; the model reads the blocks beside it."""
    try:
        blocks = [_block(given) for given in answer.content]
    except (binascii.Error, ValueError):
        return ToolResult.error(
            f"Tool '{tool_name}' returned data that is not valid base64. Do not retry the same call."
        )
    text = "\n".join(block.render() for block in blocks)
    if answer.is_error:
        return ToolResult.error(text.strip() or f"Tool '{tool_name}' failed without saying why.")
    if any(not isinstance(block, TextBlock) for block in blocks):
        return ToolResult.ok(tuple(blocks))
    structured = answer.structured_content
    if structured is not None:
        # WHY NOT both in the text: the blocks of a well-behaved server hold the same once more, as JSON.
        return ToolResult(text, structured, exclude_value_from_context=bool(text))
    return ToolResult.ok(text) if text else ToolResult.ok(None, NOTHING)


def _block(given: Any) -> ContentBlock:
    match given.type:
        case "text":
            return TextBlock(given.text)
        case "image":
            return ImageBlock(_bytes(given.data), media_type=given.mime_type)
        case "audio":
            return FileBlock(_bytes(given.data), media_type=given.mime_type, name="audio")
        case "resource_link":
            media_type = given.mime_type or "application/octet-stream"
            return FileBlock(url=str(given.uri), media_type=media_type, name=given.name or "")
        case "resource":
            resource = given.resource
            if hasattr(resource, "text"):
                return TextBlock(f"[{resource.uri}]\n{resource.text}")
            media_type = resource.mime_type or "application/octet-stream"
            return FileBlock(_bytes(resource.blob), media_type=media_type, name=str(resource.uri))
        case kind:
            return TextBlock(f"[{kind}: cannot be shown here]")


def _bytes(data: str) -> bytes:
    return base64.b64decode(data, validate=True)


# --- what a client of ours gets ---------------------------------------------------------------------------------------


def answer_of(outcome: ToolOutcome) -> Any:
    """An outcome as the answer to `tools/call`: our text, pictures and files as they are, the value as structured data."""
    types = mcp_sdk.load().types
    result = outcome.result
    shown = result.success and not result.exclude_value_from_context
    blocks = content_blocks(result.value) if shown else ()
    if any(not isinstance(block, TextBlock) for block in blocks):
        content = [types.TextContent(type="text", text=result.message)] if result.message else []
        content += [_content(types, block) for block in blocks]
    else:
        content = [types.TextContent(type="text", text=outcome.text)]
    structured: Any = None
    form = OutputForm.of(outcome.tool) if result.success and outcome.tool is not None else None
    if form is not None:
        structured = form.dump(result.value if shown else None)
    return types.CallToolResult(content=content, structured_content=structured, is_error=not result.success)


def failure(text: str) -> Any:
    """An answer that says what went wrong."""
    types = mcp_sdk.load().types
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _content(types: Any, block: ContentBlock) -> Any:
    if isinstance(block, TextBlock):
        return types.TextContent(type="text", text=block.text)
    if block.data is None:
        name = block.name if isinstance(block, FileBlock) and block.name else "image"
        return types.ResourceLink(type="resource_link", name=name, uri=block.url, mime_type=block.media_type)
    data = base64.b64encode(block.data).decode()
    if isinstance(block, ImageBlock):
        return types.ImageContent(type="image", data=data, mime_type=block.media_type)
    uri = f"file:///{block.name or 'file'}"
    resource = types.BlobResourceContents(uri=uri, blob=data, mime_type=block.media_type)
    return types.EmbeddedResource(type="resource", resource=resource)


class OutputForm:
    """How the values of one tool are told as structured data: a JSON object, whatever they are here.

    A tool may always return no value, or keep one from the model; then the object is empty. So nothing at its top is
    required, and what is no object itself stands under `result`.
    """

    __slots__ = ("_wraps", "schema")

    def __init__(self, schema: dict[str, Any], *, wraps: bool) -> None:
        self.schema = schema
        self._wraps = wraps

    @staticmethod
    def of(tool: Tool[Any, Any]) -> OutputForm | None:
        """None for tools whose results are text or content blocks, for those that do not say what they return, and for
        those whose text is cut: the whole would stand beside it."""
        if tool not in _forms:
            _forms[tool] = OutputForm._made(tool)
        return _forms[tool]

    @staticmethod
    def _made(tool: Tool[Any, Any]) -> OutputForm | None:
        declared = strip(tool.result_type)
        if (
            tool.output_limit is not None
            or declared in (None, str, Any, object)
            or any(issubclass(cls, TextBlock | ImageBlock | FileBlock) for cls in dataclasses_in(declared))
        ):
            return None
        try:
            schema = serde.schema(declared)
        except (PromptValidationError, TypeError, ValueError):
            return None  # what cannot be described is told as text alone
        if schema.get("type") == "object":
            schema.pop("required", None)
            return OutputForm(schema, wraps=False)
        definitions = schema.pop("$defs", None)
        wrapped: dict[str, Any] = {"type": "object", "properties": {"result": schema}, "additionalProperties": False}
        if definitions is not None:
            wrapped["$defs"] = definitions
        return OutputForm(wrapped, wraps=True)

    def dump(self, value: object) -> Mapping[str, Any]:
        if value is None:
            return {}
        plain = serde.dump(value, redact=True)
        return {"result": plain} if self._wraps else cast("Mapping[str, Any]", plain)


_forms: WeakKeyDictionary[Tool[Any, Any], OutputForm | None] = WeakKeyDictionary()


# --- what clients are told of a tool ----------------------------------------------------------------------------------


def listed(tools: Sequence[Tool[Any, Any]]) -> list[Any]:
    """The tools as `tools/list` tells them."""
    types = mcp_sdk.load().types
    return [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.schema(),
            output_schema=None if (form := OutputForm.of(tool)) is None else form.schema,
            annotations=types.ToolAnnotations(**_HINTS[tool.effects]),
        )
        for tool in tools
    ]


# What is not known is told as the worse: a tool that writes here may overwrite.
_HINTS: Final[Mapping[str, Mapping[str, bool]]] = {
    "none": {"read_only_hint": True, "destructive_hint": False, "idempotent_hint": True},
    "local": {
        "read_only_hint": False,
        "destructive_hint": True,
        "idempotent_hint": False,
        "open_world_hint": False,
    },
    "external": {
        "read_only_hint": False,
        "destructive_hint": True,
        "idempotent_hint": False,
        "open_world_hint": True,
    },
}
