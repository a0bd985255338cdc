"""Anthropic Messages: JSON and event streams to `Turn`.

Fields, blocks and tools are each on one list: read here, passed on, or refused with a reason; what is on no list is refused. What
the provider's servers run becomes hosted calls and results; what it only describes (bash, computer, browser, memory) is the
client's call like any other. A transcript or a choice of model that stays with the provider is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import length_hint
from typing import Any, Final, cast

import orjson

from wardwright.errors import WireError
from wardwright.wire.body import (
    MAX_KIND,
    Declared,
    Json,
    KnownTools,
    Object,
    check_fields,
    claims_of,
    defined,
    dumped,
    forcing,
    joined,
    list_of,
    listed,
    named,
    object_of,
    read,
    rest,
    schema_of,
    settled,
    text_of,
    unknown,
    usage_of,
    wrong,
)
from wardwright.wire.sse import Event, ReplyAssembler
from wardwright.wire.turn import (
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    Role,
    TextItem,
    ToolChoice,
    ToolChoiceMode,
    Turn,
)

READ: Final = frozenset(
    {
        "container",
        "mcp_servers",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "stream",
        "system",
        "tool_choice",
        "tools",
    }
)

PASSED: Final = frozenset(
    {
        "cache_control",
        "compaction",
        "context_management",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "service_tier",
        "speed",
        "stop_sequences",
        "temperature",
        "thinking",
        "top_k",
        "top_p",
        "user_profile_id",
        "workspace_id",
    }
)

REFUSED: Final[Mapping[str, str]] = {
    "betas": "it is a client library's word for a header; send the header",
    "fallback_credit_token": "the provider would choose another model; routes are chosen here",
    "fallbacks": "the provider would choose another model; routes are chosen here",
    "thread": "the transcript would stay with the provider, unseen; send the messages themselves",
}

BLOCKS: Final[Mapping[str, str]] = {
    "*_tool_result": "read: what a hosted tool returned (web_search, web_fetch, code_execution, tool_search, advisor …)",
    "compaction": "read: hosted compaction, its readable summary, and tools it declares",
    "container_upload": "passed: a file",
    "document": "read: its text, if it has any",
    "fallback": "passed",
    "image": "passed: nothing a rule could read",
    "mcp_tool_listing": "read: declared tools",
    "mcp_tool_result": "read: what a tool of a provider-side MCP server returned",
    "mcp_tool_use": "read: hosted mcp",
    "redacted_thinking": "passed: sealed by the provider",
    "search_result": "read: text",
    "server_tool_use": "read: a hosted call",
    "text": "read: text",
    "thinking": "read in a request (text), passed in a reply",
    "tool_addition": "read: declared tools",
    "tool_removal": "passed: tools stay declared",
    "tool_result": "read: a client's result",
    "tool_use": "read: a client's call",
}
"""Every block that may stand in a message, and what becomes of it."""

_REQUEST_FIELDS: Final = READ | PASSED
_MESSAGE_FIELDS: Final = frozenset({"role", "content", "clear_at", "output_config"})

# All fields a block of a known type may have. One list for all types: none of them means something else in another type.
_BLOCK_FIELDS: Final = frozenset(
    {
        "cache_control", "caller", "citations", "content", "context", "data", "encrypted_content", "file_id", "from", "id",
        "input", "is_error", "mcp_server_name", "name", "server_name", "signature", "source", "text", "thinking", "title", "to",
        "tool", "tool_changes", "tool_use_id", "tools", "toolset_name", "transformations", "trigger", "type",
    }
)  # fmt: skip

_DEFINITION_FIELDS: Final = frozenset(
    {
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_examples",
        "input_schema",
        "name",
        "strict",
        "type",
    }
)

_HOSTED: Final = frozenset({"web_search", "web_fetch", "code_execution", "advisor", "tool_search"})
_CLIENT: Final = frozenset({"bash", "text_editor", "computer", "memory"})
_KINDS: Final[Mapping[str, str]] = {
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
    "tool_search_tool": "tool_search",
    "tool_search_tool_bm25": "tool_search",
    "tool_search_tool_regex": "tool_search",
}
"""One hosted tool may answer under several names."""

TOOLSETS: Final[Mapping[str, tuple[str, ...]]] = {
    "browser": (
        "navigate", "list_tabs", "new_tab", "switch_tab", "close_tab", "read_page", "get_page_text", "read_console",
        "read_network", "find", "form_input", "file_upload", "scroll_to", "screenshot", "zoom", "left_click", "right_click",
        "middle_click", "double_click", "triple_click", "hover", "left_click_drag", "left_mouse_down", "left_mouse_up",
        "mouse_move", "scroll", "type", "key", "hold_key", "wait", "javascript_exec",
    ),
    "computer": (
        "key", "hold_key", "type", "cursor_position", "mouse_move", "left_mouse_down", "left_mouse_up", "left_click",
        "left_click_drag", "right_click", "middle_click", "double_click", "triple_click", "scroll", "wait", "screenshot", "zoom",
    ),
}  # fmt: skip
"""Tools that one declaration stands for; each is declared as `<set>.<member>`, the name its calls get too."""

_CHOICE_FIELDS: Final = frozenset({"type", "name", "toolset_name", "disable_parallel_tool_use"})
_ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_MODES: Final[Mapping[str, ToolChoiceMode]] = {"auto": "auto", "any": "required", "none": "none"}
_NO_CONTROLS: Final = frozenset({"type", "name", "cache_control"})
_SECRETS: Final = frozenset({"type", "name", "authorization_token"})
_TOOLSET_FIELDS: Final = frozenset({"type", "mcp_server_name", "cache_control", "configs", "default_config", "tools"})
_VERSION: Final = re.compile(r"_\d{8}\Z")
_MAX_DEPTH: Final = 32

# Words in what a hosted tool returned, in the order they are told.
_WORDS: Final = (
    "title",
    "url",
    "text",
    "stdout",
    "stderr",
    "lines",
    "tool_name",
    "tool_references",
    "error_code",
    "content",
)


def parse_request(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a request body. `passing`: names of further fields the operator lets through, wherever they stand."""
    fields: Object = body if isinstance(body, dict) else read(body)
    if not _REQUEST_FIELDS.issuperset(fields):
        check_fields(fields, _REQUEST_FIELDS, REFUSED, passing, "")
    if fields.get("mcp_servers") is None and fields.get("container") is None:
        lowering = _Lowering(passing, True, _KNOWN.read(fields.get("tools"), passing))
    else:
        lowering = _Lowering(passing, True, _all_tools(fields, passing))
    system = fields.get("system")
    if system is not None:
        lowering.message("system", system, "system")
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise wrong("messages", "a list", messages)
    form = lowering.transcript(messages, _response_format(fields))
    tools = lowering.tools.all()
    return settled(
        Turn(
            "request",
            "anthropic",
            text_of(fields, "model", ""),
            lowering.items,
            tools,
            _tool_choice(fields, tools, passing),
            stream=fields.get("stream") is True,
            claims=claims_of(fields),
            response_format=form,
        )
    )


def parse_reply(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a reply body. `tools` holds only what the reply itself shows (a server's list); thinking is not the answer."""
    fields: Object = body if isinstance(body, dict) else read(body)
    content = fields.get("content")
    if not isinstance(content, list):
        raise wrong("content", "a list", content)
    lowering = _Lowering(passing, False)
    lowering.message("assistant", content, "content")
    return settled(
        Turn(
            "reply",
            "anthropic",
            text_of(fields, "model", ""),
            lowering.items,
            lowering.tools.all(),
            # Tokens read from or written to a cache are not among `input_tokens` here; other wires count them in.
            usage=usage_of(
                fields, "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"
            ),
        )
    )


class _Lowering:
    """Collects the items and tools of one body, in wire order."""

    __slots__ = ("_called", "_passing", "_request", "_role", "_texts", "items", "tools")

    def __init__(self, passing: Collection[str], request: bool, tools: Sequence[DeclaredTool] = ()) -> None:
        self._passing = passing
        self._request = request
        self._role: Role = "user"
        self._texts: list[str] = []
        """Text blocks that stand next to each other; they become one item."""
        self._called: dict[str, tuple[str, str]] = {}
        """Calls on provider-side MCP servers: id -> server and tool."""
        self.items: list[Item] = []
        self.tools = Declared(tools)

    def transcript(self, messages: list[Any], form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The messages of a request. Gives back the format it asks for in the end; `form`: the one it asked for at first."""
        left = iter(messages)
        for message in left:
            try:
                speaker = _ROLES[message["role"]]
                content = message["content"]
                if len(message) == 2:  # and no other key
                    if isinstance(content, str):
                        if content:
                            self.items.append(TextItem(speaker, content))
                        continue
                    made = _usual(speaker, content)
                    if made is not None:
                        self.items += made
                        continue
            except (KeyError, TypeError):
                pass  # another shape, or no message
            index = len(messages) - 1 - length_hint(left)
            if not isinstance(message, dict):
                raise wrong(f"messages[{index}]", "an object", message)
            form = self._odd_message(cast("Object", message), f"messages[{index}]") or form
        return form

    def _odd_message(self, message: Object, path: str) -> Mapping[str, Any] | None:
        """A message of any shape. Gives back the format that it asks for from here on, if it does."""
        if not _MESSAGE_FIELDS.issuperset(message):
            check_fields(message, _MESSAGE_FIELDS, {}, self._passing, path)
        form = _configured(message, f"{path}.output_config") if "output_config" in message else None
        role = message.get("role")
        speaker = _ROLES.get(role) if isinstance(role, str) else None
        if speaker is None:
            raise unknown(f"{path}.role", "role", str(role))
        self.message(speaker, message.get("content"), f"{path}.content")
        return form

    def message(self, role: Role, content: Json, path: str) -> None:
        if isinstance(content, str):
            if content:
                self.items.append(TextItem(role, content))
            return
        if content is None:
            return
        if not isinstance(content, list):
            raise wrong(path, "a string or a list of blocks", content)
        made = _usual(role, content)
        if made is not None:
            self.items += made
            return
        self._role = role
        texts = self._texts
        for index, block in enumerate(content):
            if not isinstance(block, dict):
                raise wrong(f"{path}[{index}]", "an object", block)
            if not _BLOCK_FIELDS.issuperset(block) and self._request:
                check_fields(block, _BLOCK_FIELDS, {}, self._passing, f"{path}[{index}]")
            kind = block.get("type")
            if kind == "text":
                text = block.get("text")
                if not isinstance(text, str):
                    text = text_of(block, "text", f"{path}[{index}]")
                if text:
                    texts.append(text)
                continue
            if not isinstance(kind, str):
                raise wrong(f"{path}[{index}].type", "a string", kind)
            lower = _LOWER.get(kind)
            if lower is not None:
                lower(self, block, f"{path}[{index}]")
            elif kind.endswith("_tool_result"):
                self.hosted_result(block, f"{path}[{index}]")
            else:
                raise unknown(f"{path}[{index}].type", "block", kind)
        if texts:
            self._end_text()

    def _end_text(self) -> None:
        if self._texts:
            self.items.append(_said(self._role, self._texts))
            self._texts.clear()

    # Text

    def nothing(self, block: Object, path: str) -> None:
        """Carries no tool and no words that a rule could read."""

    def document(self, block: Object, path: str) -> None:
        self._texts += _document(block, path)

    def search_result(self, block: Object, path: str) -> None:
        self._texts += _words(block, path, 0)

    def thinking(self, block: Object, path: str) -> None:
        if self._request:
            self._end_text()
            text = text_of(block, "thinking", path)
            if text:
                self.items.append(TextItem("assistant", text))

    def compaction(self, block: Object, path: str) -> None:
        self._end_text()
        self.items.append(HostedCallItem(text_of(block, "id", path), "compaction"))
        text = text_of(block, "content", path)
        if text:
            self.items.append(TextItem("assistant", text))
        for index, change in enumerate(list_of(block, "tool_changes", path)):
            if not isinstance(change, dict):
                raise wrong(f"{path}.tool_changes[{index}]", "an object", change)
            if change.get("type") == "tool_addition":
                self.tool_addition(change, f"{path}.tool_changes[{index}]")

    # Calls and results

    def tool_use(self, block: Object, path: str) -> None:
        if self._texts:
            self._end_text()
        name = named(block, path)
        call_id = block.get("id")
        if not isinstance(call_id, str):
            call_id = text_of(block, "id", path)
        if "toolset_name" in block:
            toolset = text_of(block, "toolset_name", path)
            name = f"{toolset}.{name}" if toolset else name
        self.items.append(CallItem(call_id, name, _arguments(block, path)))

    def tool_result(self, block: Object, path: str) -> None:
        if self._texts:
            self._end_text()
        content = block.get("content")
        parts: tuple[str, ...] = ()
        if not isinstance(content, str):
            content, parts = joined(_result_texts(content, f"{path}.content"))
        call_id = block.get("tool_use_id")
        if not isinstance(call_id, str):
            call_id = text_of(block, "tool_use_id", path)
        self.items.append(ResultItem(call_id, content, block.get("is_error") is True, "", parts))

    def server_tool_use(self, block: Object, path: str) -> None:
        self._end_text()
        kind = kind_of(text_of(block, "name", path))
        self.items.append(HostedCallItem(text_of(block, "id", path), kind, _arguments(block, path)))

    def hosted_result(self, block: Object, path: str) -> None:
        self._end_text()
        kind = kind_of(text_of(block, "type", path).removesuffix("_tool_result"))
        content = block.get("content")
        failed = False
        if isinstance(content, dict):
            failed = text_of(content, "type", f"{path}.content").endswith("_error")
            failed = failed or content.get("return_code", 0) != 0
        words = "\n".join(_words(content, f"{path}.content", 0))
        self.items.append(HostedResultItem(text_of(block, "tool_use_id", path), kind, words, failed))

    def mcp_tool_use(self, block: Object, path: str) -> None:
        self._end_text()
        call_id = text_of(block, "id", path)
        server, name = text_of(block, "server_name", path), text_of(block, "name", path)
        self._called[call_id] = (server, name)
        self.items.append(HostedCallItem(call_id, "mcp", _arguments(block, path), server, name))

    def mcp_tool_result(self, block: Object, path: str) -> None:
        self._end_text()
        call_id = text_of(block, "tool_use_id", path)
        server, name = self._called.get(call_id, (None, ""))
        content = "\n".join(_result_texts(block.get("content"), f"{path}.content"))
        self.items.append(HostedResultItem(call_id, "mcp", content, block.get("is_error") is True, server, name))

    # Declared tools

    def mcp_tool_listing(self, block: Object, path: str) -> None:
        for tool in _listed(block, text_of(block, "mcp_server_name", path), path):
            self.tools.once(tool)

    def tool_addition(self, block: Object, path: str) -> None:
        change = object_of(block, "tool", path)
        kind = text_of(change, "type", f"{path}.tool")
        if kind == "tool_definition":
            definition = object_of(change, "definition", f"{path}.tool")
            for tool in _declared(definition, self._passing, f"{path}.tool.definition"):
                self.tools.once(tool)
        elif kind not in {"tool_reference", "mcp_tool_reference", "mcp_toolset_reference"}:
            raise unknown(f"{path}.tool.type", "tool change", kind)


_LOWER: Final[Mapping[str, Callable[[_Lowering, Object, str], None]]] = {
    "compaction": _Lowering.compaction,
    "container_upload": _Lowering.nothing,
    "document": _Lowering.document,
    "fallback": _Lowering.nothing,
    "image": _Lowering.nothing,
    "mcp_tool_listing": _Lowering.mcp_tool_listing,
    "mcp_tool_result": _Lowering.mcp_tool_result,
    "mcp_tool_use": _Lowering.mcp_tool_use,
    "redacted_thinking": _Lowering.nothing,
    "search_result": _Lowering.search_result,
    "server_tool_use": _Lowering.server_tool_use,
    "thinking": _Lowering.thinking,
    "tool_addition": _Lowering.tool_addition,
    "tool_removal": _Lowering.nothing,
    "tool_result": _Lowering.tool_result,
    "tool_use": _Lowering.tool_use,
}


def _usual(role: Role, content: list[Any]) -> list[Item] | None:
    """The items of a message of texts, calls and results in their usual shapes. None: it is none, and nobody has complained yet.

    An agent sends its whole transcript with every request, so these are read in few steps.
    """
    if not isinstance(content, list):
        return None
    items: list[Item] = []
    texts: list[str] = []
    try:
        for block in content:
            kind = block["type"]
            if kind == "text":
                text = block["text"]
                if not isinstance(text, str) or (len(block) > 2 and not _BLOCK_FIELDS.issuperset(block)):
                    return None
                if text:
                    texts.append(text)
                continue
            if texts:
                items.append(_said(role, texts))
                texts = []
            if kind == "tool_result":
                call_id = block["tool_use_id"]
                said = block["content"]
                if not isinstance(call_id, str) or (len(block) > 3 and not _BLOCK_FIELDS.issuperset(block)):
                    return None
                # Filled by hand, here and below: a transcript has many, and a class that is called takes twice as long.
                result = ResultItem.__new__(ResultItem)
                result.call_id = call_id
                if isinstance(said, str):
                    result.content = said
                    result.parts = ()
                else:
                    result.content, result.parts = joined(_result_texts(said, ""))
                result.is_error = "is_error" in block and block["is_error"] is True
                result.name = ""
                items.append(result)
            elif kind == "tool_use":
                call_id = block["id"]
                name = block["name"]
                given = block["input"]
                if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(given, dict):
                    return None
                if len(block) > 4 and ("toolset_name" in block or not _BLOCK_FIELDS.issuperset(block)):
                    return None
                call = CallItem.__new__(CallItem)
                call.id = call_id
                call.name = name
                call.arguments = orjson.dumps(given).decode()
                items.append(call)
            else:
                return None
    except (KeyError, TypeError, RecursionError, WireError):
        return None
    if texts:
        items.append(_said(role, texts))
    return items


def _said(role: Role, texts: list[str]) -> TextItem:
    """Text blocks that stand next to each other, as one item."""
    item = TextItem.__new__(TextItem)
    item.role = role
    if len(texts) == 1:
        item.text = texts[0]
        item.parts = ()
    else:
        item.text, item.parts = joined(texts)
    return item


def kind_of(tool_type: str) -> str:
    """A hosted tool's kind: its type or name without the version (`web_search_20250305` is `web_search`)."""
    # WHY NOT every type: callers choose them, and refused ones would stay in memory.
    return _plain(tool_type) if len(tool_type) <= MAX_KIND else tool_type


@lru_cache(maxsize=256)
def _plain(tool_type: str) -> str:
    plain = _VERSION.sub("", tool_type)
    return _KINDS.get(plain, plain)


def _all_tools(fields: Object, passing: Collection[str]) -> list[DeclaredTool]:
    """Those in `tools`, and what servers and containers bring."""
    servers: dict[str, Object] = {}
    for index, server in enumerate(list_of(fields, "mcp_servers", "")):
        if not isinstance(server, dict):
            raise wrong(f"mcp_servers[{index}]", "an object", server)
        name = text_of(server, "name", f"mcp_servers[{index}]")
        if name in servers:
            raise WireError(f"two MCP servers have the name {name!r} - at `$.mcp_servers[{index}]`")
        servers[name] = {key: value for key, value in server.items() if key not in _SECRETS}
    tools = _tools(list_of(fields, "tools", ""), passing, servers)
    told = {tool.server for tool in tools}
    tools += [DeclaredTool("mcp", "", None, "mcp", servers[name], name) for name in servers if name not in told]
    container = fields.get("container")
    if isinstance(container, dict):
        skills = list_of(container, "skills", "container")
        if skills:
            tools.append(DeclaredTool("skills", hosted="skills", controls={"skills": skills}))
    return tools


def _tools(
    declared: list[Json], passing: Collection[str], servers: Mapping[str, Object] | None = None
) -> list[DeclaredTool]:
    tools: list[DeclaredTool] = []
    for index, tool in enumerate(declared):
        if not isinstance(tool, dict):
            raise wrong(f"tools[{index}]", "an object", tool)
        if tool.get("type") != "mcp_toolset":
            tools += _declared(tool, passing, f"tools[{index}]")
            continue
        server = text_of(tool, "mcp_server_name", f"tools[{index}]")
        controls = dict((servers or {}).get(server, {}))
        controls.update((key, tool[key]) for key in ("configs", "default_config") if tool.get(key) is not None)
        tools.append(DeclaredTool("mcp", "", None, "mcp", controls, server, rest(tool, _TOOLSET_FIELDS)))
        tools += _listed(tool, server, f"tools[{index}]")
    return tools


_KNOWN: Final = KnownTools(_tools)


_SHAPE: Final = '{"name": …, "input_schema": {…}}'


def _declared(tool: Object, passing: Collection[str], path: str) -> list[DeclaredTool]:
    """What one definition declares: a tool, or all those of a set."""
    kind = tool.get("type")
    if kind is None or kind == "custom":
        return [defined(tool, "input_schema", _DEFINITION_FIELDS, passing, path, shape=_SHAPE)]
    if not isinstance(kind, str):
        raise wrong(f"{path}.type", "a string", kind)
    plain = kind_of(kind)
    toolset = plain.removesuffix("_toolset")
    if plain in _HOSTED:
        controls = {key: value for key, value in tool.items() if key not in _NO_CONTROLS}
        return [DeclaredTool(plain, hosted=plain, controls=controls)]
    further = rest(tool, _NO_CONTROLS, "configs")
    if plain in _CLIENT:
        return [DeclaredTool(text_of(tool, "name", path) or plain, further=further)]
    if toolset == plain or toolset not in TOOLSETS:
        raise unknown(f"{path}.type", "kind of tool", kind, _SHAPE)
    tools: list[DeclaredTool] = []
    configs = object_of(tool, "configs", path)
    for member in TOOLSETS[toolset]:
        config = object_of(configs, member, f"{path}.configs")
        if config.get("enabled") is not False:
            more = further if not config else {**(further or {}), "config": config}
            tools.append(DeclaredTool(f"{toolset}.{member}", further=more))
    return tools


def _listed(listing: Object, server: str, path: str) -> list[DeclaredTool]:
    """The tools of a provider-side MCP server, as it listed them."""
    tools = list_of(listing, "tools", path)
    return [listed(tool, "input_schema", server, f"{path}.tools[{index}]") for index, tool in enumerate(tools)]


def _arguments(block: Object, path: str) -> str:
    """The input as JSON text. A stream that was cut may leave text that is no JSON: it stays as it is."""
    given = block.get("input")
    if isinstance(given, str):
        return given
    return "" if given is None else dumped(given, f"{path}.input")


def _result_texts(content: Json, path: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise wrong(path, "a string or a list of blocks", content)
    texts: list[str] = []
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise wrong(f"{path}[{index}]", "an object", block)
        kind = block.get("type")
        if kind == "text":
            text = block.get("text")
            if not isinstance(text, str):
                text = text_of(block, "text", f"{path}[{index}]")
            if text:
                texts.append(text)
        elif kind == "document":
            texts += _document(block, f"{path}[{index}]")
        elif kind == "search_result" or kind == "tool_reference":
            texts += _words(block, f"{path}[{index}]", 0)
        elif kind == "browser_state":
            # Titles and addresses of pages: words of strangers.
            texts.append(dumped({key: value for key, value in block.items() if key != "cache_control"}, path))
        elif kind != "image":
            raise unknown(f"{path}[{index}].type", "block", str(kind))
    return texts


def _document(block: Object, path: str) -> list[str]:
    """The words of a document; of a PDF only those that stand around it."""
    texts = [text_of(block, "title", path), text_of(block, "context", path)]
    source = object_of(block, "source", path)
    if source.get("type") == "text":
        texts.append(text_of(source, "data", f"{path}.source"))
    elif source.get("type") == "content":
        texts += _result_texts(source.get("content"), f"{path}.source.content")
    return [text for text in texts if text]


def _words(value: Json, path: str, depth: int) -> list[str]:
    """Everything readable in what a hosted tool returned, in a fixed order."""
    if depth > _MAX_DEPTH:
        raise WireError(f"nested too deeply - at `$.{path}`")
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for entry in value for text in _words(entry, path, depth + 1)]
    if isinstance(value, dict):
        if value.get("type") == "document":
            return _document(value, path)
        return [text for name in _WORDS for text in _words(value.get(name), path, depth + 1)]
    return []


def _tool_choice(fields: Object, tools: Sequence[DeclaredTool], passing: Collection[str]) -> ToolChoice | None:
    if fields.get("tool_choice") is None:
        return None
    choice = object_of(fields, "tool_choice", "")
    check_fields(choice, _CHOICE_FIELDS, {}, passing, "tool_choice")
    kind = text_of(choice, "type", "tool_choice")
    if kind == "tool":
        name, toolset = named(choice, "tool_choice"), text_of(choice, "toolset_name", "tool_choice")
        return ToolChoice("tool", (f"{toolset}.{name}" if toolset else name,))
    mode = _MODES.get(kind)
    if mode is None:
        raise unknown("tool_choice.type", "tool choice", kind)
    return forcing(ToolChoice(mode), tools)


def _response_format(fields: Object) -> Mapping[str, Any] | None:
    configured = _configured(fields, "output_config")
    if fields.get("output_format") is None:
        return configured
    form = schema_of(object_of(fields, "output_format", ""), "output_format")
    if configured is not None and configured != form:
        raise WireError("'output_format' and 'output_config' ask for different formats; send one of them")
    return form


def _configured(fields: Object, path: str) -> Mapping[str, Any] | None:
    if fields.get("output_config") is None:
        return None
    config = object_of(fields, "output_config", path.removesuffix("output_config").removesuffix("."))
    return schema_of(object_of(config, "format", path), f"{path}.format")


# Streams

# Delta -> (the block's field that grows, the delta's field with the piece).
_PIECES: Final[Mapping[str, tuple[str, str]]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
    "compaction_delta": ("content", "content"),
}


# Delta -> how the type of its block ends. Some clients show every piece of text, whatever it is a piece of.
_FITS: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
    "compaction_delta": "compaction",
}


_NOTHING_GROWS: Final[tuple[int, str, str, list[str]]] = (-1, "", "", [])


class StreamAssembler(ReplyAssembler):
    """Puts a streamed reply together again: `body` and `turn` are those of the same reply sent whole. Lives one reply."""

    __slots__ = ("_blocks", "_citations", "_ended", "_growing", "_message", "_open", "_passing", "_pieces")

    def __init__(self, *, passing: Collection[str] = ()) -> None:
        super().__init__()
        self._passing = passing
        self._message: Object = {}
        self._blocks: dict[int, Object] = {}
        self._open: set[int] = set()
        self._pieces: dict[int, dict[str, list[str]]] = {}
        self._citations: dict[int, list[Json]] = {}
        self._growing: tuple[int, str, str, list[str]] = _NOTHING_GROWS
        """What grew last: the index of its block, the kind of delta, its field with the piece, and all pieces."""
        self._ended = False

    @property
    def complete(self) -> bool:
        """The stream said that it ended, every block did, and no error came."""
        return self._ended and not self._open and not self.errors

    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece, as far as it came."""
        content: list[Json] = [self._block(index) for index in sorted(self._blocks)]
        return {**self._message, "content": content}

    def turn(self) -> Turn:
        return parse_reply(self.body(), passing=self._passing)

    def _block(self, index: int) -> Json:
        block = dict(self._blocks[index])
        if index in self._citations:
            block["citations"] = self._citations[index]
        for key, pieces in self._pieces.get(index, {}).items():
            text = "".join(pieces)
            if key != "input":
                block[key] = text_of(block, key, f"content[{index}]") + text
            elif text:
                try:
                    whole = cast("Json", orjson.loads(text))
                except orjson.JSONDecodeError:
                    whole = text
                if block.get(key) and block[key] != whole:
                    raise WireError("the pieces of 'input' and the whole of it disagree")
                block[key] = whole
        return block

    def _take(self, event: Event) -> None:
        said = read(event.data)
        kind = self._kind(event, said)
        if kind == "ping":
            return
        if self._ended:
            raise WireError("the stream went on after its end")
        if kind == "content_block_delta":
            if not self._goes_on(said):
                self._grow(self._index(said, True), object_of(said, "delta", ""))
        elif kind == "content_block_start":
            index = self._index(said, False)
            self._blocks[index] = object_of(said, "content_block", "")
            self._open.add(index)
        elif kind == "content_block_stop":
            self._open.discard(self._index(said, True))
            self._growing = _NOTHING_GROWS
        elif kind == "message_start":
            if self._message or self._blocks:
                raise WireError("the message began twice")
            self._message = self._without_content(object_of(said, "message", ""), kind)
        elif kind == "message_delta":
            self._message.update(self._without_content(object_of(said, "delta", ""), kind))
            usage = object_of(said, "usage", "")
            total = dict(object_of(self._message, "usage", ""))
            total.update((key, value) for key, value in usage.items() if value is not None)
            self._message["usage"] = total
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._failed(said.get("error"), said)
            return
        elif kind not in self._passing:
            raise unknown("type", "event", kind)
        self._hear(event, said)

    def _without_content(self, message: Object, kind: str) -> Object:
        """Clients may start from what stands there, and it would be in no block."""
        if message.get("content"):
            raise WireError(f"{kind!r} already holds content, which only blocks may bring")
        return dict(message)

    def _goes_on(self, said: Object) -> bool:
        """Adds one more piece to what grew last. False: it is none, or shaped otherwise."""
        index, kind, source, pieces = self._growing
        delta = said.get("delta")
        # Not `==`: another number may be equal to it.
        if said.get("index") is index and isinstance(delta, dict) and delta.get("type") == kind:
            text = delta.get(source)
            if isinstance(text, str):
                pieces.append(text)
                return True
        return False

    def _grow(self, index: int, delta: Object) -> None:
        kind = text_of(delta, "type", "delta")
        block = text_of(self._blocks[index], "type", "content_block")
        if kind in _FITS and not block.endswith(_FITS[kind]):
            raise WireError(f"block {index} is {block!r}, so {kind!r} may not add to it")
        if kind == "citations_delta":
            self._citations.setdefault(index, []).append(delta.get("citation"))
            return
        piece = _PIECES.get(kind)
        if piece is None:
            raise unknown("delta.type", "delta", kind)
        key, source = piece
        pieces = self._pieces.setdefault(index, {}).setdefault(key, [])
        pieces.append(text_of(delta, source, "delta"))
        self._growing = (index, kind, source, pieces)

    def _index(self, event: Object, begun: bool) -> int:
        index = event.get("index")
        if not isinstance(index, int):
            raise wrong("index", "a number", index)
        if begun and index not in self._open:
            raise WireError(f"block {index} is not open")
        if not begun and index in self._blocks:
            raise WireError(f"block {index} began twice")
        return index
