"""Reads a JSON body once, within limits, and words every complaint about one.

What is forwarded is what was read, written again by `write`, never the bytes that came in: so a repeated key cannot show one value
to the policy and another to the provider. Holds what all wires share, nothing of one provider.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import orjson

from wardwright.errors import WireError
from wardwright.wire.turn import DeclaredTool, ToolChoice, ToolChoiceMode, Turn, Usage

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Object: TypeAlias = dict[str, Json]

MAX_BYTES: Final = 32 * 1024 * 1024
"""Of one body, and of one stream in all."""

MAX_KNOWN_BYTES: Final = 4_000_000
"""Of declared tools that are kept, as they were written; none bigger than a twentieth of it."""

MAX_COUNT: Final = 2**53
"""Of tokens; what is not below it was no count."""

MAX_KIND: Final = 64
"""Characters of a tool's type that is looked up, and of an unknown word that is told; none that exists is longer."""

_TOO_DEEP: Final = "a tool, an output format or a claim is nested too deeply, or not JSON"

_OF_TOOLS: Final = frozenset({"function", "input_schema", "name", "parameters"})
"""Where the three wires differ about a tool."""
_TOLD_ELSEWHERE: Final = frozenset(
    {"type", "name", "description", "cache_control", "defer_loading", "eager_input_streaming", "strict"}
)
"""Of a caller's tool: told by other means, or nothing that the model reads. All else is pinned with the definition."""

_LISTED_ELSEWHERE: Final = frozenset({"name", "description"})

_MODES: Final[Mapping[str, ToolChoiceMode]] = {"auto": "auto", "none": "none", "required": "required"}

_WORDS: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def read(body: bytes | bytearray | memoryview | str | dict[str, Any]) -> Object:
    """The JSON object in `body`; an object already read passes as it is."""
    if isinstance(body, bytes) and len(body) <= MAX_BYTES:
        try:
            value: Json = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise _no_json(error) from None
    else:
        value = read_any(body)
    if isinstance(value, dict):
        return value
    raise wrong("", "an object", value)


def read_any(body: bytes | bytearray | memoryview | str | dict[str, Any] | list[Any]) -> Json:
    """The JSON value in `body` (a batch is a list); a value already read passes as it is."""
    if not isinstance(body, bytes) and isinstance(body, (dict, list)):
        return body
    if len(body) > MAX_BYTES:
        raise WireError(f"the body has {len(body)} bytes; at most {MAX_BYTES} are read")
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _no_json(error) from None
    return value


def _no_json(error: orjson.JSONDecodeError) -> WireError:
    return WireError(f"the body is not JSON in valid UTF-8: line {error.lineno}, column {error.colno}")


def write(value: Json) -> bytes:
    """`value` as JSON bytes. More levels can be read (1,024) than written (254): the rest is refused here."""
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError):
        raise WireError("nested too deeply, or not JSON") from None


def settled(turn: Turn) -> Turn:
    """`turn`, unless a schema or control in it is nested too deeply to be hashed; all else in a turn is flat.

    Tools in a tuple come from `KnownTools`, which has looked already.
    """
    tools = () if isinstance(turn.tools, tuple) else turn.tools
    if tools or turn.claims is not None or turn.response_format is not None:
        # WHY NOT the tools themselves: slotted dataclasses take five times as long.
        schemas = [(tool.schema, tool.controls, tool.further) for tool in tools]
        try:
            orjson.dumps((schemas, turn.claims, turn.response_format))
        except (orjson.JSONEncodeError, RecursionError):
            raise WireError(_TOO_DEEP) from None
    return turn


class KnownTools:
    """Declared tools by what the request says of them: an agent sends the same list with every request, and it is read once.

    Made once per wire, holds a bounded number of bytes. What it gives out is shared by all requests that declare the same.
    """

    __slots__ = ("_known", "_read", "_room")

    def __init__(self, read: Callable[[list[Json], Collection[str]], list[DeclaredTool]]) -> None:
        self._read = read
        # By length, and then compared: to hash all that was written would take longer than to write it.
        self._known: dict[int, tuple[bytes, tuple[DeclaredTool, ...]]] = {}
        self._room = MAX_KNOWN_BYTES

    def read(self, declared: Json, passing: Collection[str]) -> tuple[DeclaredTool, ...]:
        """The tools in the field `tools` of a request."""
        if declared is None:
            return ()
        if not isinstance(declared, list):
            raise wrong("tools", "a list", declared)
        try:
            written = orjson.dumps(declared)
        except (orjson.JSONEncodeError, RecursionError):
            raise WireError(_TOO_DEEP) from None
        if passing:  # what passes for one operator may not for another
            return tuple(self._read(declared, passing))
        size = len(written)
        known = self._known.get(size)
        if known is not None and known[0] == written:
            return known[1]
        # From what was written, not from the body: whoever changes the body later must not change what is known.
        tools = tuple(self._read(cast("list[Json]", orjson.loads(written)), passing))
        if size * 20 <= MAX_KNOWN_BYTES:
            if known is None:
                if size > self._room:
                    self._known.clear()
                    self._room = MAX_KNOWN_BYTES
                self._room -= size
            self._known[size] = (written, tools)
        return tools


def defined(
    tool: Json,
    schema: str,
    fields: Collection[str],
    passing: Collection[str],
    path: str,
    namespace: str = "",
    shape: str = "",
) -> DeclaredTool:
    """A caller's own tool. `schema`: the field with its schema; `fields`: those it may have; `shape`: how this wire writes one."""
    if not isinstance(tool, dict):
        raise wrong(path, "an object", tool)
    check_fields(tool, fields, {}, passing, path, shape)
    name = named(tool, path)
    parameters = None if tool.get(schema) is None else object_of(tool, schema, path)
    further = rest(tool, _TOLD_ELSEWHERE, schema)
    return DeclaredTool(
        f"{namespace}.{name}" if namespace else name, text_of(tool, "description", path), parameters, further=further
    )


def listed(tool: Json, schema: str, server: str | None, path: str) -> DeclaredTool:
    """A tool as an MCP server lists it; `server`: its label, when the provider's side calls it. All it says is pinned."""
    if not isinstance(tool, dict):
        raise wrong(path, "an object", tool)
    return DeclaredTool(
        named(tool, path),
        text_of(tool, "description", path),
        object_of(tool, schema, path),
        None if server is None else "mcp",
        None,
        server,
        rest(tool, _LISTED_ELSEWHERE, schema),
    )


def rest(tool: Object, told: Collection[str], schema: str = "") -> Mapping[str, Any] | None:
    """What a definition says beyond the fields `told` and `schema`; None when that is nothing."""
    further = {key: value for key, value in tool.items() if value is not None and key not in told and key != schema}
    return further or None


def named(fields: Object, path: str) -> str:
    """The name of a tool, which must be there."""
    name = fields.get("name")
    if isinstance(name, str):
        return name
    raise wrong(f"{path}.name" if path else "name", "a string", name)


class Declared:
    """The tools of one body: those of the field `tools`, then those that items or messages bring."""

    __slots__ = ("_by_name", "_more", "_tools")

    def __init__(self, tools: Sequence[DeclaredTool] = ()) -> None:
        self._tools = tools
        self._more: list[DeclaredTool] = []
        self._by_name: dict[tuple[str, str | None], DeclaredTool] = {}

    def once(self, tool: DeclaredTool) -> None:
        """A tool that a message brings: declared already, word for word, it is no second declaration."""
        if not self._by_name:
            self._by_name = {(known.name, known.server): known for known in self._tools}
        if self._by_name.get((tool.name, tool.server)) != tool:
            self._by_name[tool.name, tool.server] = tool
            self._more.append(tool)

    def all(self) -> Sequence[DeclaredTool]:
        return [*self._tools, *self._more] if self._more else self._tools


def forcing(choice: ToolChoice, tools: Sequence[DeclaredTool]) -> ToolChoice:
    """`choice`, unless some tool is required and there is only one: then that one is forced, however it was worded."""
    if choice.mode != "required":
        return choice
    names = set(choice.names) or {tool.name if tool.server is None else f"{tool.name}:{tool.server}" for tool in tools}
    return ToolChoice("tool", tuple(names)) if len(names) == 1 else choice


def mode_of(word: str, path: str) -> ToolChoiceMode:
    """The mode that OpenAI's wires name by this word."""
    mode = _MODES.get(word)
    if mode is None:
        raise unknown(path, "tool choice", word)
    return mode


def allowed_choice(allowed: Object, path: str, name_of: Callable[[Object, str], str]) -> ToolChoice:
    """A permitted subset: `mode` and `tools`, as Chat Completions and Responses both write it."""
    mode = mode_of(text_of(allowed, "mode", path), f"{path}.mode")
    if mode == "none":
        raise unknown(f"{path}.mode", "tool choice", mode)
    names: list[str] = []
    for index, tool in enumerate(list_of(allowed, "tools", path)):
        if not isinstance(tool, dict):
            raise wrong(f"{path}.tools[{index}]", "an object", tool)
        names.append(name_of(tool, f"{path}.tools[{index}]"))
    return ToolChoice(mode, tuple(names))


def joined(texts: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The parts of one message as one text, and again as parts when there are several."""
    return ("\n".join(texts), tuple(texts)) if len(texts) > 1 else (texts[0] if texts else "", ())


def is_json(data: bytes) -> bool:
    """Tells a whole value from one that was cut."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def dumped(value: Json, path: str) -> str:
    """`value` as JSON text."""
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise WireError(f"nested too deeply, or not JSON{_at(path)}") from None


def wrong(path: str, expected: str, value: object) -> WireError:
    """A value of another type than the wire has there."""
    return WireError(f"expected {expected}, got {_WORDS.get(type(value), type(value).__name__)}{_at(path)}")


def unknown(path: str, what: str, value: str, shape: str = "") -> WireError:
    """A word that is on no list: it may not pass, because nobody can say what it does. `shape`: how this wire writes a tool, told
    if the word is from the way in which another one does."""
    shown = value if len(value) <= MAX_KIND else value[: MAX_KIND - 3] + "..."
    instead = f"; a tool is {shape} here" if shape and value in _OF_TOOLS else ""
    return WireError(f"{what} {shown!r} is not known here, so it may not pass{instead}{_at(path)}")


def check_fields(
    fields: Object,
    known: Collection[str],
    refused: Mapping[str, str],
    passing: Collection[str],
    path: str,
    shape: str = "",
) -> None:
    """Refuses the first field that is on the refused list with a value, or on no list at all. `shape`: as for `unknown`."""
    for name, value in fields.items():
        if name in known or name in passing:
            continue
        reason = refused.get(name)
        if reason is None:
            raise unknown(path, "field", str(name), shape)
        if value is not None and value is not False:
            raise WireError(f"{name!r} is refused: {reason}{_at(path)}")


def text_of(fields: Object, name: str, path: str) -> str:
    """A string field; empty when it is missing or null."""
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise wrong(f"{path}.{name}" if path else name, "a string", value)


def object_of(fields: Object, name: str, path: str) -> Object:
    """An object field; empty when it is missing or null."""
    value = fields.get(name)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise wrong(f"{path}.{name}" if path else name, "an object", value)


def list_of(fields: Object, name: str, path: str) -> list[Json]:
    """A list field; empty when it is missing or null."""
    value = fields.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise wrong(f"{path}.{name}" if path else name, "a list", value)


def usage_of(reply: Object, read: str, wrote: str, *more: str) -> Usage | None:
    """What the reply says it used: the counts `read` (with `more`, which may be missing) and `wrote`.

    None when a count cannot be read, or when nothing was used at all: unknown is not nothing, and no reply costs nothing.
    """
    usage = reply.get("usage")
    if not isinstance(usage, dict):
        return None
    sent, written = usage.get(read), usage.get(wrote)
    if type(sent) is not int or type(written) is not int or not 0 <= sent < MAX_COUNT or not 0 <= written < MAX_COUNT:
        sent, written = _count(sent), _count(written)
        if sent is None or written is None:
            return None
    for name in more:
        if usage.get(name) is not None:
            count = _count(usage[name])
            if count is None:
                return None
            sent += count
    if not sent and not written:
        return None
    total = usage.get("total_tokens")
    if total is not None and total != sent + written:
        # Some providers count thinking in the total alone.
        written = max(written, (_count(total) or 0) - sent)
    used = Usage.__new__(Usage)
    used.input_tokens = sent
    used.output_tokens = written
    used.price = 0.0
    return used


def _count(value: Json) -> int | None:
    """A whole number that is not negative, also when it is written `900.0`."""
    if type(value) is not int:  # nor a boolean, which is one to `isinstance`
        if not isinstance(value, float) or not value.is_integer():
            return None
        value = int(value)
    return value if 0 <= value < MAX_COUNT else None


def claims_of(fields: Object) -> Mapping[str, Any] | None:
    """What the caller says of its own tools (`metadata.tool_context`): an object, or its JSON text."""
    metadata = fields.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise wrong("metadata", "an object", metadata)
    claim = metadata.get("tool_context")
    if isinstance(claim, str):
        try:
            claim = cast("Json", orjson.loads(claim))
        except orjson.JSONDecodeError:
            raise wrong("metadata.tool_context", "an object or its JSON text", claim) from None
    if claim is None or isinstance(claim, dict):
        return claim
    raise wrong("metadata.tool_context", "an object or its JSON text", claim)


def schema_of(form: Object, path: str) -> Mapping[str, Any] | None:
    """The schema of a structured output; `form` holds `type` and, for json_schema, `schema`."""
    kind = form.get("type", "text")
    if kind == "json_schema":
        return object_of(form, "schema", path)
    if kind == "json_object":
        return {"type": "object"}
    if kind in ("text", None):
        return None
    raise unknown(f"{path}.type", "output format", str(kind))


def _at(path: str) -> str:
    return f" - at `$.{path}`" if path else ""
