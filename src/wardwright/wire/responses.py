"""OpenAI Responses: JSON and event streams to `Turn`.

Fields, items and tools are each on one list: read here, passed on, or refused with a reason; what is on no list is refused. Tools
that the provider runs become hosted calls and results; tools it only describes (computer, local shell, patches) are the client's
calls like any other. A transcript that stays with the provider is refused, because it would pass unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import length_hint
from typing import Any, Final

from wardwright.errors import WireError
from wardwright.wire.body import (
    MAX_KIND,
    Declared,
    Json,
    KnownTools,
    Object,
    allowed_choice,
    check_fields,
    claims_of,
    defined,
    dumped,
    forcing,
    joined,
    list_of,
    listed,
    mode_of,
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
from wardwright.wire.sse import DONE, Event, ReplyAssembler
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
    Turn,
)

READ: Final = frozenset(
    {"input", "instructions", "metadata", "model", "stream", "text", "tool_choice", "tools"},
)

PASSED: Final = frozenset(
    {
        "context_management",
        "image",
        "include",
        "max_output_tokens",
        "max_tool_calls",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "temperature",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    }
)

REFUSED: Final[Mapping[str, str]] = {
    "access_programs": "it changes what the provider permits, and no rule can judge that",
    "background": "the answer would be fetched past this gate; ask without it, or stream",
    "conversation": "the transcript would stay with the provider, unseen; send the items themselves",
    "previous_response_id": "the transcript would stay with the provider, unseen; send the items themselves",
    "prompt": "a stored prompt stays with the provider, unseen; send its text as instructions and input",
}

ITEMS: Final[Mapping[str, str]] = {
    "additional_tools": "read: declared tools",
    "apply_patch_call": "read: a client's call of apply_patch",
    "apply_patch_call_output": "read: its result",
    "code_interpreter_call": "read: hosted code_interpreter",
    "compaction": "read: hosted compaction; its content is sealed by the provider",
    "compaction_trigger": "passed",
    "computer_call": "read: a client's call of computer",
    "computer_call_output": "read: its result",
    "configuration_update": "read: the output format",
    "custom_tool_call": "read: a client's call",
    "custom_tool_call_output": "read: its result",
    "file_search_call": "read: hosted file_search",
    "function_call": "read: a client's call",
    "function_call_output": "read: its result",
    "image_generation_call": "read: hosted image_generation",
    "item_reference": "refused: the item stays with the provider, unseen; send the item itself",
    "local_shell_call": "read: a client's call of local_shell",
    "local_shell_call_output": "read: its result",
    "mcp_approval_request": "read: a hosted mcp call that waits for the client",
    "mcp_approval_response": "read: a refusal is the call's failed result",
    "mcp_call": "read: hosted mcp",
    "mcp_list_tools": "read: declared tools",
    "message": "read: text",
    "program": "read: hosted programmatic_tool_calling",
    "program_output": "read: its result",
    "reasoning": "read in a request (text), passed in a reply",
    "shell_call": "read: a client's call of shell, hosted shell in a container",
    "shell_call_output": "read: its result",
    "tool_search_call": "read: hosted tool_search, or a client's call of it",
    "tool_search_output": "read: its result, and declared tools",
    "web_search_call": "read: hosted web_search",
}
"""Every item that may stand in `input` or `output`, and what becomes of it."""

_REQUEST_FIELDS: Final = READ | PASSED

# All fields an item of a known type may have. One list for all types: none of them means something else in another type.
_ITEM_FIELDS: Final = frozenset(
    {
        "acknowledged_safety_checks", "action", "actions", "approval_request_id", "approve", "arguments", "async", "background",
        "call_id", "caller", "code", "commands", "container_id", "content", "created_by", "encrypted_content", "environment",
        "error", "execution", "fingerprint", "id", "input", "max_output_length", "name", "namespace", "operation", "output",
        "output_format", "outputs", "partial_images", "pending_safety_checks", "phase", "quality", "queries", "reason",
        "reasoning", "result", "results", "revised_prompt", "role", "server_label", "size", "status", "summary", "svg_usage",
        "text", "tools", "type",
    }
)  # fmt: skip

_PARTS: Final[Mapping[str, tuple[frozenset[str], str | None]]] = {
    "input_text": (frozenset({"type", "text", "prompt_cache_breakpoint"}), "text"),
    "output_text": (frozenset({"type", "text", "annotations", "logprobs", "parsed"}), "text"),
    "text": (frozenset({"type", "text"}), "text"),
    "summary_text": (frozenset({"type", "text"}), "text"),
    "reasoning_text": (frozenset({"type", "text"}), "text"),
    "refusal": (frozenset({"type", "refusal"}), "refusal"),
    "input_image": (frozenset({"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"}), None),
    "computer_screenshot": (frozenset({"type", "image_url", "file_id", "detail"}), None),
    "input_file": (
        frozenset({"type", "file_id", "file_data", "file_url", "filename", "detail", "prompt_cache_breakpoint"}),
        None,
    ),
    "input_audio": (frozenset({"type", "input_audio"}), None),
}

_DEFINITION_FIELDS: Final = frozenset(
    {
        "allowed_callers",
        "async",
        "defer_loading",
        "description",
        "format",
        "name",
        "output_schema",
        "parameters",
        "strict",
        "type",
    }
)

_CHOICE_FIELDS: Final = frozenset({"type", "name", "namespace", "server_label", "mode", "tools"})

_HOSTED: Final = frozenset(
    {"web_search", "file_search", "code_interpreter", "image_generation", "programmatic_tool_calling"}
)
_CLIENT: Final = frozenset({"computer", "local_shell", "apply_patch"})
_SECRETS: Final = frozenset({"authorization", "headers", "type", "server_label"})
"""Never among the controls: they would reach receipts (or are told elsewhere)."""

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_FAILED: Final[Mapping[str, bool]] = {"completed": False, "failed": True}
_VERSION: Final = re.compile(r"(?:_preview)?(?:_\d{4}_\d{2}_\d{2})?\Z")


def parse_request(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a request body. `passing`: names of further fields the operator lets through, wherever they stand."""
    fields: Object = body if isinstance(body, dict) else read(body)
    if not _REQUEST_FIELDS.issuperset(fields):
        check_fields(fields, _REQUEST_FIELDS, REFUSED, passing, "")
    lowering = _Lowering(passing, True, _KNOWN.read(fields.get("tools"), passing))
    items = lowering.items
    instructions = text_of(fields, "instructions", "")
    if instructions:
        items.append(TextItem("system", instructions))
    given = fields.get("input")
    if isinstance(given, str):
        if given:
            items.append(TextItem("user", given))
    elif isinstance(given, list):
        lowering.add(given, "input")
    elif given is not None:
        raise wrong("input", "a string or a list of items", given)
    form = lowering.form
    if form is None and fields.get("text") is not None:
        form = schema_of(object_of(object_of(fields, "text", ""), "format", "text"), "text.format")
    tools = lowering.tools.all()
    return settled(
        Turn(
            "request",
            "responses",
            text_of(fields, "model", ""),
            items,
            tools,
            _tool_choice(fields.get("tool_choice"), tools, passing),
            stream=fields.get("stream") is True,
            claims=claims_of(fields),
            response_format=form,
        )
    )


def parse_reply(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a reply body. `tools` holds only what the reply itself shows (a server's list); reasoning is not the answer."""
    fields: Object = body if isinstance(body, dict) else read(body)
    output = fields.get("output")
    if not isinstance(output, list):
        raise wrong("output", "a list", output)
    lowering = _Lowering(passing, False)
    lowering.add(output, "output")
    return settled(
        Turn(
            "reply",
            "responses",
            text_of(fields, "model", ""),
            lowering.items,
            lowering.tools.all(),
            usage=usage_of(fields, "input_tokens", "output_tokens"),
        )
    )


class _Lowering:
    """Collects the items and tools of one body, in wire order."""

    __slots__ = ("_asked", "_hosted", "_passing", "_request", "form", "items", "tools")

    def __init__(self, passing: Collection[str], request: bool, tools: Sequence[DeclaredTool] = ()) -> None:
        self._passing = passing
        self._request = request
        self._hosted: set[str] = set()
        """Call ids of shells in the provider's containers; their outputs do not say so themselves."""
        self._asked: dict[str, tuple[str, str]] = {}
        """Approval request -> server and tool."""
        self.items: list[Item] = []
        self.tools = Declared(tools)
        self.form: Mapping[str, Any] | None = None

    def add(self, given: list[Any], path: str) -> None:
        """The items of a request or a reply. An agent sends its whole transcript with every request, so calls, results and texts in
        their usual shapes are read here, in few steps; any other shape raises or falls through."""
        items = self.items
        left = iter(given)
        for item in left:
            try:
                if _ITEM_FIELDS.issuperset(item):
                    kind = item.get("type", "message")
                    if kind == "function_call":
                        call_id = item["call_id"]
                        name = item["name"]
                        arguments = item["arguments"]
                        if (
                            isinstance(call_id, str)
                            and isinstance(name, str)
                            and isinstance(arguments, str)
                            and "namespace" not in item
                        ):
                            # Filled by hand, here and below: a transcript has many, and a class that is called takes twice as long.
                            call = CallItem.__new__(CallItem)
                            call.id = call_id
                            call.name = name
                            call.arguments = arguments
                            items.append(call)
                            continue
                    elif kind == "function_call_output":
                        call_id = item["call_id"]
                        output = item["output"]
                        if isinstance(call_id, str) and isinstance(output, str) and "name" not in item:
                            result = ResultItem.__new__(ResultItem)
                            result.call_id = call_id
                            result.content = output
                            result.is_error = None
                            result.name = ""
                            result.parts = ()
                            items.append(result)
                            continue
                    elif kind == "message":
                        speaker = _ROLES[item["role"]]
                        content: list[Any] | str = item["content"]
                        if isinstance(content, list) and len(content) == 1:
                            part = content[0]
                            fields, key = _PARTS[part["type"]]
                            content = part[key] if fields.issuperset(part) else content
                        if isinstance(content, str):
                            if content:
                                text = TextItem.__new__(TextItem)
                                text.role = speaker
                                text.text = content
                                text.parts = ()
                                items.append(text)
                            continue
            except (AttributeError, KeyError, TypeError):
                pass  # another shape, or no item at all
            self._odd(item, f"{path}[{len(given) - 1 - length_hint(left)}]")

    def _odd(self, item: Json, path: str) -> None:
        """An item of any shape."""
        if not isinstance(item, dict):
            raise wrong(path, "an object", item)
        if not _ITEM_FIELDS.issuperset(item) and self._request:
            check_fields(item, _ITEM_FIELDS, {}, self._passing, path)
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference"
        if not isinstance(kind, str):
            raise wrong(f"{path}.type", "a string", kind)
        lower = _LOWER.get(kind)
        if lower is None:
            raise unknown(f"{path}.type", "item", kind)
        lower(self, item, path)

    # Text

    def message(self, item: Object, path: str) -> None:
        role = item.get("role")
        speaker = _ROLES.get(role) if isinstance(role, str) else None
        if speaker is None:
            raise unknown(f"{path}.role", "role", str(role))
        text, parts = joined(self._texts(item.get("content"), f"{path}.content"))
        if text:
            self.items.append(TextItem(speaker, text, parts))

    def reasoning(self, item: Object, path: str) -> None:
        if not self._request:
            return
        texts = [text for name in ("summary", "content") for text in self._texts(item.get(name), f"{path}.{name}")]
        if texts:
            self.items.append(TextItem("assistant", *joined(texts)))

    def compaction(self, item: Object, path: str) -> None:
        self.items.append(HostedCallItem(text_of(item, "id", path), "compaction"))

    def nothing(self, item: Object, path: str) -> None:
        """Carries no tool and no words for the model."""

    def reference(self, item: Object, path: str) -> None:
        kind = item.get("type", "an item without type or role")
        raise WireError(f"{kind!r} is {ITEMS['item_reference']} - at `$.{path}`")

    def configuration(self, item: Object, path: str) -> None:
        text = object_of(item, "text", path)
        if text.get("format") is not None:
            self.form = schema_of(object_of(text, "format", f"{path}.text"), f"{path}.text.format")

    # The client's calls

    def function_call(self, item: Object, path: str) -> None:
        self._call(item, path, "arguments")

    def _call(self, item: Object, path: str, key: str) -> None:
        name = named(item, path)
        namespace = text_of(item, "namespace", path)
        arguments = item.get(key)
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = dumped(arguments, f"{path}.{key}")
        self.items.append(
            CallItem(text_of(item, "call_id", path), f"{namespace}.{name}" if namespace else name, arguments)
        )

    def custom_call(self, item: Object, path: str) -> None:
        self._call(item, path, "input")

    def call_output(self, item: Object, path: str) -> None:
        output = item.get("output")
        content, parts = joined(self._texts(output, f"{path}.output"))
        name = text_of(item, "name", path)
        namespace = text_of(item, "namespace", path)
        self.items.append(
            ResultItem(
                text_of(item, "call_id", path),
                content,
                None,
                f"{namespace}.{name}" if name and namespace else name,
                parts,
            )
        )

    def computer_call(self, item: Object, path: str) -> None:
        action = item.get("actions") if item.get("actions") is not None else item.get("action")
        self._described(item, "computer", action, f"{path}.action", path)

    def computer_output(self, item: Object, path: str) -> None:
        output = object_of(item, "output", path)
        content = joined(self._texts([output], f"{path}.output"))[0]
        self.items.append(ResultItem(text_of(item, "call_id", path), content))

    def local_shell_call(self, item: Object, path: str) -> None:
        self._described(item, "local_shell", item.get("action"), f"{path}.action", path)

    def local_shell_output(self, item: Object, path: str) -> None:
        call_id = text_of(item, "call_id", path) or text_of(item, "id", path)
        self.items.append(ResultItem(call_id, text_of(item, "output", path)))

    def patch_call(self, item: Object, path: str) -> None:
        self._described(item, "apply_patch", item.get("operation"), f"{path}.operation", path)

    def patch_output(self, item: Object, path: str) -> None:
        failed = _FAILED.get(text_of(item, "status", path))
        self.items.append(ResultItem(text_of(item, "call_id", path), text_of(item, "output", path), failed))

    def shell_call(self, item: Object, path: str) -> None:
        environment = object_of(item, "environment", path)
        if environment.get("type", "local") == "local":
            self._described(item, "shell", item.get("action"), f"{path}.action", path)
            return
        call_id = text_of(item, "call_id", path)
        self._hosted.add(call_id)
        self.items.append(HostedCallItem(call_id, "shell", dumped(item.get("action"), f"{path}.action")))

    def shell_output(self, item: Object, path: str) -> None:
        call_id = text_of(item, "call_id", path)
        texts: list[str] = []
        failed = False
        for index, output in enumerate(list_of(item, "output", path)):
            if not isinstance(output, dict):
                raise wrong(f"{path}.output[{index}]", "an object", output)
            texts += [text_of(output, name, f"{path}.output[{index}]") for name in ("stdout", "stderr")]
            outcome = object_of(output, "outcome", f"{path}.output[{index}]")
            failed = failed or outcome.get("type") == "timeout" or outcome.get("exit_code", 0) != 0
        content, parts = joined([text for text in texts if text])
        if call_id in self._hosted or not self._request:
            self.items.append(HostedResultItem(call_id, "shell", content, failed))
        else:
            self.items.append(ResultItem(call_id, content, failed, "", parts))

    def _described(self, item: Object, name: str, arguments: Json, arguments_path: str, path: str) -> None:
        text = "" if arguments is None else dumped(arguments, arguments_path)
        self.items.append(CallItem(text_of(item, "call_id", path), name, text))

    # Tools the provider runs

    def _ran(self, item: Object, path: str, kind: str, arguments: Json, content: str) -> None:
        """One call; and its result, when the item says how it ended."""
        item_id = text_of(item, "id", path)
        self.items.append(HostedCallItem(item_id, kind, dumped(arguments, path)))
        status = text_of(item, "status", path) or "completed"
        if status in _FAILED or status == "incomplete" or content:
            self.items.append(HostedResultItem(item_id, kind, content, _FAILED.get(status)))

    def web_search(self, item: Object, path: str) -> None:
        action = dict(object_of(item, "action", path))
        sources = action.pop("sources", None)
        # A plain search says only what was looked for, as other wires do; other actions keep their type.
        if action.get("type", "search") == "search":
            action.pop("type", None)
            queries = action.get("queries")
            if isinstance(queries, list) and len(queries) == 1 and action.get("query", queries[0]) == queries[0]:
                action = {"query": queries[0]}
        urls: list[str] = []
        if isinstance(sources, list):
            urls = [text_of(source, "url", f"{path}.action.sources") for source in sources if isinstance(source, dict)]
        self._ran(item, path, "web_search", action, "\n".join(url for url in urls if url))

    def file_search(self, item: Object, path: str) -> None:
        texts: list[str] = []
        for index, result in enumerate(list_of(item, "results", path)):
            if not isinstance(result, dict):
                raise wrong(f"{path}.results[{index}]", "an object", result)
            texts.append(text_of(result, "text", f"{path}.results[{index}]"))
        queries = list_of(item, "queries", path)
        self._ran(item, path, "file_search", {"queries": queries}, "\n".join(text for text in texts if text))

    def code_interpreter(self, item: Object, path: str) -> None:
        texts: list[str] = []
        for index, output in enumerate(list_of(item, "outputs", path)):
            if not isinstance(output, dict):
                raise wrong(f"{path}.outputs[{index}]", "an object", output)
            texts.append(text_of(output, "logs", f"{path}.outputs[{index}]"))
        code: Object = {"code": text_of(item, "code", path)}
        self._ran(item, path, "code_interpreter", code, "\n".join(text for text in texts if text))

    def image_generation(self, item: Object, path: str) -> None:
        prompt: Object = {"prompt": text_of(item, "revised_prompt", path)}
        self._ran(item, path, "image_generation", prompt, "")

    def program(self, item: Object, path: str) -> None:
        code: Object = {"code": text_of(item, "code", path)}
        self.items.append(
            HostedCallItem(text_of(item, "call_id", path), "programmatic_tool_calling", dumped(code, path))
        )

    def program_output(self, item: Object, path: str) -> None:
        failed = _FAILED.get(text_of(item, "status", path))
        self.items.append(
            HostedResultItem(
                text_of(item, "call_id", path), "programmatic_tool_calling", text_of(item, "result", path), failed
            )
        )

    def tool_search(self, item: Object, path: str) -> None:
        arguments = item.get("arguments")
        text = arguments if isinstance(arguments, str) else dumped(arguments, f"{path}.arguments")
        call_id = text_of(item, "call_id", path) or text_of(item, "id", path)
        if item.get("execution") == "client":
            self.items.append(CallItem(call_id, "tool_search", text))
        else:
            self.items.append(HostedCallItem(call_id, "tool_search", text))

    def tool_search_output(self, item: Object, path: str) -> None:
        call_id = text_of(item, "call_id", path) or text_of(item, "id", path)
        names = "\n".join(tool.name for tool in self._found(list_of(item, "tools", path), f"{path}.tools"))
        if item.get("execution") == "client":
            self.items.append(ResultItem(call_id, names))
        else:
            failed = _FAILED.get(text_of(item, "status", path))
            self.items.append(HostedResultItem(call_id, "tool_search", names, failed))

    def mcp_call(self, item: Object, path: str) -> None:
        # A call that was asked for first is the same call: it keeps the id of the question.
        call_id = text_of(item, "approval_request_id", path) or text_of(item, "id", path)
        server, name = text_of(item, "server_label", path), text_of(item, "name", path)
        self.items.append(HostedCallItem(call_id, "mcp", text_of(item, "arguments", path), server, name))
        error = item.get("error")
        if error is not None:
            text = error if isinstance(error, str) else dumped(error, f"{path}.error")
            self.items.append(HostedResultItem(call_id, "mcp", text, True, server, name))
            return
        status, output = text_of(item, "status", path), text_of(item, "output", path)
        if status in _FAILED or item.get("output") is not None:
            failed = status == "failed"
            self.items.append(HostedResultItem(call_id, "mcp", output, failed, server, name))

    def mcp_approval_request(self, item: Object, path: str) -> None:
        call_id = text_of(item, "id", path)
        server, name = text_of(item, "server_label", path), text_of(item, "name", path)
        self._asked[call_id] = (server, name)
        self.items.append(HostedCallItem(call_id, "mcp", text_of(item, "arguments", path), server, name))

    def mcp_approval_response(self, item: Object, path: str) -> None:
        if item.get("approve") is True:
            return
        call_id = text_of(item, "approval_request_id", path)
        server, name = self._asked.get(call_id, (None, ""))
        self.items.append(HostedResultItem(call_id, "mcp", text_of(item, "reason", path), True, server, name))

    # Declared tools

    def more_tools(self, item: Object, path: str) -> None:
        self._found(list_of(item, "tools", path), f"{path}.tools")

    def _found(self, tools: list[Json], path: str) -> list[DeclaredTool]:
        """Tools that an item brings: those declared already, word for word, are no second declaration."""
        found = _tools(tools, self._passing if self._request else None, path)
        for tool in found:
            self.tools.once(tool)
        return found

    def listed_tools(self, item: Object, path: str) -> None:
        server = text_of(item, "server_label", path)
        for index, tool in enumerate(list_of(item, "tools", path)):
            self.tools.once(listed(tool, "input_schema", server, f"{path}.tools[{index}]"))

    def _texts(self, content: Json, path: str) -> list[str]:
        if content is None:
            return []
        if isinstance(content, str):
            return [content]
        if not isinstance(content, list):
            raise wrong(path, "a string or a list of parts", content)
        texts: list[str] = []
        for index, part in enumerate(content):
            if not isinstance(part, dict):
                raise wrong(f"{path}[{index}]", "an object", part)
            kind = part.get("type")
            if not isinstance(kind, str):
                raise wrong(f"{path}[{index}].type", "a string", kind)
            entry = _PARTS.get(kind)
            if entry is None:
                raise unknown(f"{path}[{index}].type", "content part", kind)
            fields, key = entry
            if not fields.issuperset(part) and self._request:
                check_fields(part, fields, {}, self._passing, f"{path}[{index}]")
            if key is not None:
                text = part.get(key)
                if text is not None and not isinstance(text, str):
                    raise wrong(f"{path}[{index}].{key}", "a string", text)
                if text:
                    texts.append(text)
        return texts


_LOWER: Final[Mapping[str, Callable[[_Lowering, Object, str], None]]] = {
    "additional_tools": _Lowering.more_tools,
    "apply_patch_call": _Lowering.patch_call,
    "apply_patch_call_output": _Lowering.patch_output,
    "code_interpreter_call": _Lowering.code_interpreter,
    "compaction": _Lowering.compaction,
    "compaction_trigger": _Lowering.nothing,
    "computer_call": _Lowering.computer_call,
    "computer_call_output": _Lowering.computer_output,
    "configuration_update": _Lowering.configuration,
    "custom_tool_call": _Lowering.custom_call,
    "custom_tool_call_output": _Lowering.call_output,
    "file_search_call": _Lowering.file_search,
    "function_call": _Lowering.function_call,
    "function_call_output": _Lowering.call_output,
    "image_generation_call": _Lowering.image_generation,
    "item_reference": _Lowering.reference,
    "local_shell_call": _Lowering.local_shell_call,
    "local_shell_call_output": _Lowering.local_shell_output,
    "mcp_approval_request": _Lowering.mcp_approval_request,
    "mcp_approval_response": _Lowering.mcp_approval_response,
    "mcp_call": _Lowering.mcp_call,
    "mcp_list_tools": _Lowering.listed_tools,
    "message": _Lowering.message,
    "program": _Lowering.program,
    "program_output": _Lowering.program_output,
    "reasoning": _Lowering.reasoning,
    "shell_call": _Lowering.shell_call,
    "shell_call_output": _Lowering.shell_output,
    "tool_search_call": _Lowering.tool_search,
    "tool_search_output": _Lowering.tool_search_output,
    "web_search_call": _Lowering.web_search,
}


def _tools(declared: list[Json], passing: Collection[str] | None, path: str = "tools") -> list[DeclaredTool]:
    """The tools in a list of definitions. `passing` None: in a reply, where no further field is refused."""
    tools: list[DeclaredTool] = []
    for index, tool in enumerate(declared):
        if not isinstance(tool, dict):
            raise wrong(f"{path}[{index}]", "an object", tool)
        kind = tool.get("type")
        if kind == "function" or kind == "custom":
            tools.append(_definition(tool, passing, f"{path}[{index}]"))
        elif kind == "namespace":
            namespace = text_of(tool, "name", f"{path}[{index}]")
            about = rest(tool, {"type", "name", "tools"})
            for position, member in enumerate(list_of(tool, "tools", f"{path}[{index}]")):
                one = _definition(member, passing, f"{path}[{index}].tools[{position}]", namespace)
                if about is not None:  # the model reads it with every tool of the namespace
                    one.further = {**(one.further or {}), "namespace": about}
                tools.append(one)
        elif isinstance(kind, str):
            tools.append(_special(tool, kind, f"{path}[{index}]"))
        elif kind is None:
            raise WireError(f"a tool is {_SHAPE} here; this one has no type - at `$.{path}[{index}]`")
        else:
            raise wrong(f"{path}[{index}].type", "a string", kind)
    return tools


_SHAPE: Final = '{"type": "function", "name": …, "parameters": {…}}'


_KNOWN: Final = KnownTools(_tools)


def _definition(tool: Json, passing: Collection[str] | None, path: str, namespace: str = "") -> DeclaredTool:
    fields = tool if passing is None and isinstance(tool, dict) else _DEFINITION_FIELDS
    return defined(tool, "parameters", fields, passing or (), path, namespace, _SHAPE)


def _special(tool: Object, kind: str, path: str) -> DeclaredTool:
    """A tool of a type that OpenAI gives meaning to."""
    plain = kind_of(kind)
    if plain == "mcp":
        controls = {name: value for name, value in tool.items() if name not in _SECRETS}
        server = text_of(tool, "server_label", path)
        return DeclaredTool("mcp", text_of(tool, "server_description", path), None, "mcp", controls, server)
    if plain == "shell":
        environment = object_of(tool, "environment", path)
        if environment.get("type", "local") != "local":
            further = rest(tool, {"type", "environment"})
            return DeclaredTool("shell", hosted="shell", controls={"environment": environment}, further=further)
    elif plain == "tool_search":
        description = text_of(tool, "description", path)
        further = rest(tool, {"type", "description", "execution", "parameters"})
        schema = object_of(tool, "parameters", path) or None
        if tool.get("execution") == "client":
            return DeclaredTool(plain, description, schema, further=further)
        return DeclaredTool(plain, description, None, plain, {}, further=further)
    elif plain in _HOSTED:
        controls = {name: value for name, value in tool.items() if name != "type"}
        return DeclaredTool(plain, hosted=plain, controls=controls)
    elif plain not in _CLIENT:
        raise unknown(f"{path}.type", "kind of tool", kind)
    return DeclaredTool(plain, further=rest(tool, {"type"}))


def kind_of(tool_type: str) -> str:
    """A tool's type without its version (`web_search_preview_2025_03_11` is `web_search`)."""
    # WHY NOT every type: callers choose them, and refused ones would stay in memory.
    return _plain(tool_type) if len(tool_type) <= MAX_KIND else tool_type


@lru_cache(maxsize=256)
def _plain(tool_type: str) -> str:
    plain = _VERSION.sub("", tool_type)
    return "computer" if plain == "computer_use" else plain


def _tool_choice(choice: Json, tools: Sequence[DeclaredTool], passing: Collection[str]) -> ToolChoice | None:
    """`tools`: as declared, because a tool of a provider-side server can be chosen by name only where it was listed."""
    if choice is None:
        return None
    if isinstance(choice, str):
        return forcing(ToolChoice(mode_of(choice, "tool_choice")), tools)
    if not isinstance(choice, dict):
        raise wrong("tool_choice", "a string or an object", choice)
    check_fields(choice, _CHOICE_FIELDS, {}, passing, "tool_choice")
    known = {(tool.name, tool.server) for tool in tools if tool.server is not None}

    def chosen(one: Object, path: str) -> str:
        return _chosen(one, known, path)

    if choice.get("type") == "allowed_tools":
        return forcing(allowed_choice(choice, "tool_choice", chosen), tools)
    return ToolChoice("tool", (chosen(choice, "tool_choice"),))


def _chosen(choice: Object, known: set[tuple[str, str]], path: str) -> str:
    kind = text_of(choice, "type", path)
    plain = kind_of(kind)
    if plain == "mcp":
        server, name = text_of(choice, "server_label", path), text_of(choice, "name", path)
        return f"{name}:{server}" if (name, server) in known else f"mcp:{server}"
    if plain in _HOSTED or plain in _CLIENT or plain == "shell" or plain == "tool_search":
        return plain
    if plain == "function" or plain == "custom":
        name, namespace = named(choice, path), text_of(choice, "namespace", path)
        return f"{namespace}.{name}" if namespace else name
    raise unknown(f"{path}.type", "tool choice", kind)


# Streams

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_WHOLE: Final = frozenset({"response.created", "response.in_progress", "response.queued"})

# Event -> (the item's field that grows, the event's field with the piece or the whole).
_PIECES: Final[Mapping[str, tuple[str, str]]] = {
    "response.function_call_arguments.delta": ("arguments", "delta"),
    "response.mcp_call_arguments.delta": ("arguments", "delta"),
    "response.custom_tool_call_input.delta": ("input", "delta"),
    "response.output_text.delta": ("text", "delta"),
    "response.refusal.delta": ("refusal", "delta"),
    "response.code_interpreter_call_code.delta": ("code", "delta"),
}
_WHOLES: Final[Mapping[str, tuple[str, str]]] = {
    "response.function_call_arguments.done": ("arguments", "arguments"),
    "response.mcp_call_arguments.done": ("arguments", "arguments"),
    "response.custom_tool_call_input.done": ("input", "input"),
    "response.output_text.done": ("text", "text"),
    "response.refusal.done": ("refusal", "refusal"),
    "response.code_interpreter_call_code.done": ("code", "code"),
}

# Events that add nothing to what the item or the final response says.
_PROGRESS: Final = frozenset(
    {
        "keepalive",
        "response.code_interpreter_call.completed",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call.interpreting",
        "response.compaction.compacting",
        "response.file_search_call.completed",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.image_generation_call.completed",
        "response.image_generation_call.generating",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.partial_image",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
        "response.mcp_call.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed",
        "response.mcp_list_tools.in_progress",
        "response.output_text.annotation.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.shell_call_command.added",
        "response.shell_call_command.delta",
        "response.shell_call_command.done",
        "response.shell_call_output_content.delta",
        "response.shell_call_output_content.done",
        "response.web_search_call.completed",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
    }
)


_PART_EVENTS: Final = frozenset({"response.content_part.added", "response.content_part.done"})
# Part -> its field with words of the answer.
_ANSWERS: Final[Mapping[str, str]] = {"output_text": "text", "refusal": "refusal"}

# What an item says when it begins must be what it says when it ends: some clients act on the first, some on the last.
_SAME: Final = ("type", "role", "name", "call_id", "namespace", "server_label", "arguments", "input")


class StreamAssembler(ReplyAssembler):
    """Puts a streamed reply together again: `body` and `turn` are those of the same reply sent whole. Lives one reply.

    A client may act on the pieces, on the finished items or on the final response. Where they disagree, the reply is refused.
    """

    __slots__ = ("_end", "_growing", "_head", "_passing")

    def __init__(self, *, passing: Collection[str] = ()) -> None:
        super().__init__()
        self._passing = passing
        self._growing: dict[int, _Growing] = {}
        self._head: Object = {}
        self._end = ""

    @property
    def complete(self) -> bool:
        """The final response came, it did not fail, and no error came."""
        return self._end in {"response.completed", "response.incomplete"} and not self.errors

    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece, as far as it came."""
        streamed: list[Json] = [growing.item() for _, growing in sorted(self._growing.items())]
        final = self._head.get("output")
        if not self._end or not isinstance(final, list) or not final:
            return {**self._head, "output": streamed}
        if streamed:
            ours, theirs = _Lowering(self._passing, False), _Lowering(self._passing, False)
            ours.add(streamed, "output")
            theirs.add(final, "output")
            if _said(ours) != _said(theirs):
                raise WireError("the streamed items and the final response disagree")
        return self._head

    def turn(self) -> Turn:
        return parse_reply(self.body(), passing=self._passing)

    def _take(self, event: Event) -> None:
        data = event.data
        if data.strip() == DONE:
            return
        if self._end:
            raise WireError("the stream went on after its end")
        said = read(data)
        kind = self._kind(event, said)
        grows = _PIECES.get(kind)
        if grows is not None:
            key, source = grows
            text = said.get(source)
            self._at(said).piece(key, _part(said), text if isinstance(text, str) else text_of(said, source, ""))
        elif kind in _WHOLES:
            key, source = _WHOLES[kind]
            growing = self._at(said)
            growing.called(text_of(said, "name", ""))
            growing.whole(key, _part(said), text_of(said, source, ""))
        elif kind in _PART_EVENTS:
            self._content_part(said, kind == "response.content_part.done")
        elif kind == "response.output_item.added":
            self._at(said).start(object_of(said, "item", ""))
        elif kind == "response.output_item.done":
            self._at(said).finish(object_of(said, "item", ""))
        elif kind in _WHOLE or kind in _ENDS:
            self._head = object_of(said, "response", "")
            if kind in _ENDS:
                self._end = kind
                error = self._head.get("error")
                if error is not None:
                    self._failed(error, {"message": error})
            elif self._head.get("output"):
                # Some clients start from it; what it holds would be in no item and in no final response.
                raise WireError(f"{kind!r} already holds output, which only items and the final response may bring")
        elif kind == "error":
            self._failed(said.get("error"), said)
            return
        elif kind not in _PROGRESS and kind not in self._passing:
            raise unknown("type", "event", kind)
        self._hear(event, said)

    def _content_part(self, said: Object, done: bool) -> None:
        """A part begins, perhaps with words already, or is told once more as a whole."""
        part = object_of(said, "part", "")
        kind = text_of(part, "type", "part")
        if kind not in _PARTS:
            raise unknown("part.type", "content part", kind)
        if not done:
            self._at(said).begin_part(part, _part(said))
        elif kind in _ANSWERS:
            key = _ANSWERS[kind]
            self._at(said).whole(key, _part(said), text_of(part, key, "part"))

    def _at(self, said: Object) -> _Growing:
        index = said.get("output_index")
        if index is None and len(self._growing) <= 1:
            index = said["output_index"] = next(iter(self._growing), 0)
        if not isinstance(index, int):
            raise wrong("output_index", "a number", index)
        growing = self._growing.get(index)
        if growing is None:
            growing = self._growing[index] = _Growing(index)
        return growing


class _Growing:
    """One output item, as it grows."""

    __slots__ = ("_begun", "_finished", "_index", "_item", "_name", "_pieces")

    def __init__(self, index: int) -> None:
        self._index = index
        self._item: Object = {}
        self._begun = False
        self._finished = False
        self._name = ""
        self._pieces: dict[tuple[str, int], list[str]] = {}

    def start(self, item: Object) -> None:
        if self._begun or self._finished:
            raise WireError(f"output item {self._index} began twice")
        self._begun = True
        self._item = item
        self._named(item)
        for index, part in enumerate(list_of(item, "content", "item")):
            if isinstance(part, dict):
                self.begin_part(part, index)

    def begin_part(self, part: Object, index: int) -> None:
        """A part that begins with words: what is said later is said after them."""
        key = _ANSWERS.get(text_of(part, "type", "part"), "")
        text = text_of(part, key, "part") if key else ""
        if text:
            self.piece(key, index, text)

    def piece(self, key: str, part: int, text: str) -> None:
        self._open()
        self._pieces.setdefault((key, part), []).append(text)

    def called(self, name: str) -> None:
        """An event that names the tool once more, for clients that wait for nothing else."""
        if name:
            self._named({"name": name})
            self._name = name
            if self._begun:
                self._named(self._item)

    def _named(self, item: Object) -> None:
        if self._name and item.get("name") != self._name:
            raise WireError(f"output item {self._index} has another 'name' than an event gives it")

    def whole(self, key: str, part: int, text: str) -> None:
        self._open()
        self._agree(key, part, text)
        self._pieces[key, part] = [text]

    def finish(self, item: Object) -> None:
        self._open()
        self._finished = True
        self._named(item)
        for key in _SAME:
            begun = self._item.get(key)
            if begun and begun != item.get(key):
                raise WireError(f"output item {self._index} began with another {key!r} than it ended with")
        self._item = item
        for key, part in self._pieces:
            if key in {"text", "refusal"}:
                content = item.get("content")
                entry = content[part] if isinstance(content, list) and 0 <= part < len(content) else None
                text = entry.get(key) if isinstance(entry, dict) else None
            else:
                text = item.get(key)
            self._agree(key, part, text if isinstance(text, str) else "")

    def _open(self) -> None:
        if self._finished:
            raise WireError(f"output item {self._index} went on after its end")

    def item(self) -> Object:
        if self._finished or not self._pieces:
            return self._item
        item = dict(self._item)
        parts: list[Json] = []
        for (key, _), pieces in sorted(self._pieces.items(), key=lambda entry: entry[0][1]):
            text = "".join(pieces)
            if key == "text":
                parts.append({"type": "output_text", "text": text})
            elif key == "refusal":
                parts.append({"type": "refusal", "refusal": text})
            else:
                item[key] = text
        if parts:
            if item.setdefault("type", "message") != "message":
                raise WireError(f"output item {self._index} is no message, so text may not add to it")
            item.setdefault("role", "assistant")
            item["content"] = parts
        return item

    def _agree(self, key: str, part: int, text: str) -> None:
        pieces = self._pieces.get((key, part))
        if pieces is not None and "".join(pieces) != text:
            raise WireError(f"the pieces of {key!r} and the whole of it disagree")


def _said(lowering: _Lowering) -> tuple[Any, ...]:
    """All that rules see of an output, with the cuts between parts of a text, which items do not compare."""
    cuts = [item.parts for item in lowering.items if isinstance(item, (TextItem, ResultItem))]
    return lowering.items, list(lowering.tools.all()), cuts


def _part(event: Object) -> int:
    index = event.get("content_index", 0)
    return index if isinstance(index, int) else 0
