"""Edits of Anthropic Messages bodies: see `Edits` for what each one does.

Walks a body as `anthropic` does when it makes a turn of it, so that both number its items alike.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wardwright.wire import bare
from wardwright.wire.anthropic import TOOLSETS, parse_reply, parse_request
from wardwright.wire.body import Json, Object
from wardwright.wire.edits import (
    EVERYTHING,
    NO_RENAMES,
    Change,
    JudgedCall,
    Splice,
    SplicedCall,
    ToolAnswer,
    ToolSpec,
    changed,
    described,
    forget,
    kept_ids,
    nothing_to_do,
    objects,
    parsed_arguments,
    renamed,
    schema_for,
    set_model,
    summed,
    told,
    word,
)
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import DeclaredTool, ResultItem, TextItem

_TYPES: Final[Mapping[str, str]] = {
    "policy_violation": "permission_error",
    "approval_required": "permission_error",
    "governance_unavailable": "api_error",
    "upstream_error": "api_error",
}
"""Anthropic's clients know its own types only; all other kinds are among them."""

# Blocks that give no item and end no text.
_SILENT: Final = frozenset(
    {"container_upload", "fallback", "image", "mcp_tool_listing", "redacted_thinking", "tool_addition", "tool_removal"}
)
_OF_TOOLSET: Final = frozenset({"configs", "default_config"})
_WORDY: Final = frozenset({"text", "document", "search_result"})


def refusal(refusal: Refusal) -> Object:
    kind = "request_too_large" if refusal.status == 413 else _TYPES.get(refusal.kind, refusal.kind)
    return {"type": "error", "error": {"type": kind, **told(refusal)}}


# Tools


def drop_tools(body: Object, names: Collection[str]) -> None:
    if not names:
        return
    tools = [kept for tool in objects(body.get("tools")) if (kept := _without_members(tool, names)) is not None]
    _set_list(body, "tools", tools)
    _set_list(body, "mcp_servers", [one for one in objects(body.get("mcp_servers")) if not _server_gone(one, names)])
    container = body.get("container")
    if "skills" in names and isinstance(container, dict):
        body["container"] = {key: value for key, value in container.items() if key != "skills"}
    for message in objects(body.get("messages")):
        content = message.get("content")
        if isinstance(content, list):
            left = [block for block in objects(content) if not _brings(block, names)]
            if len(left) < len(content):
                message["content"] = list(left)
                _without_empty(body)
    _mend_choice(body)


def _set_list(body: Object, field: str, entries: Sequence[Object]) -> None:
    if entries:
        body[field] = list(entries)
    else:
        body.pop(field, None)


def _server_gone(server: Object, names: Collection[str]) -> bool:
    return f"mcp:{word(server, 'name')}" in names


def _without_members(tool: Object, names: Collection[str]) -> Object | None:
    """What is left of a declaration; None: nothing."""
    kind, declared = word(tool, "type"), _names(tool)
    gone = [name for name in declared if name in names]
    if not gone:
        return tool
    if kind == "mcp_toolset":
        server = f":{word(tool, 'mcp_server_name')}"
        return None if f"mcp{server}" in names else _switched_off(tool, [name.removesuffix(server) for name in gone])
    if len(gone) == len(declared):
        return None
    return _switched_off(tool, [name.partition(".")[2] for name in gone])


def _switched_off(tool: Object, members: Sequence[str]) -> Object:
    configs = tool.get("configs")
    configs = dict(configs) if isinstance(configs, dict) else {}
    for member in members:
        config = configs.get(member)
        configs[member] = {**(config if isinstance(config, dict) else {}), "enabled": False}
    kept: Object = {**tool, "configs": configs}
    if "tools" in tool:  # as the server listed them
        kept["tools"] = [one for one in objects(tool["tools"]) if word(one, "name") not in members]
    return kept


def _declared(tool: Object) -> Sequence[DeclaredTool]:
    """What one declaration of a type with a meaning declares."""
    return parse_request({"messages": [], "tools": [tool]}, passing=EVERYTHING).tools


def _names(tool: Object) -> list[str]:
    """What a declaration declares, by raw names."""
    if tool.get("type") in (None, "custom"):
        return [word(tool, "name")]
    return [one.name if one.server is None else f"{one.name}:{one.server}" for one in _declared(tool)]


def _brings(block: Object, names: Collection[str]) -> bool:
    """Whether a block declares one of these tools and nothing else; one that declares others too is left with those."""
    tool, kind = block.get("tool"), block.get("type")
    definition = tool.get("definition") if isinstance(tool, dict) else None
    if kind == "tool_addition" and isinstance(definition, dict):
        return any(name in names for name in _names(definition))
    if kind == "mcp_tool_listing":
        server = word(block, "mcp_server_name")
        block["tools"] = [one for one in objects(block.get("tools")) if f"{word(one, 'name')}:{server}" not in names]
    elif kind == "compaction" and block.get("tool_changes"):
        block["tool_changes"] = [one for one in objects(block["tool_changes"]) if not _brings(one, names)]
    return False


def _mend_choice(body: Object) -> None:
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return
    declared = parse_request({**body, "tool_choice": None}, passing=EVERYTHING).tools
    if not declared:
        del body["tool_choice"]
    elif choice.get("type") == "tool":
        toolset = word(choice, "toolset_name")
        name = f"{toolset}.{word(choice, 'name')}" if toolset else word(choice, "name")
        # Hosted tools are declared by their kind and chosen by their name.
        if name not in {*(one.name for one in declared), *(word(tool, "name") for tool in objects(body.get("tools")))}:
            _free(body, choice)


def _free(body: Object, choice: Object) -> None:
    body["tool_choice"] = {"type": "auto"}
    if choice.get("disable_parallel_tool_use") is not None:
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": choice["disable_parallel_tool_use"]}


def set_controls(body: Object, controls: Mapping[str, Mapping[str, Any]]) -> None:
    tools: list[Json] = []
    for tool in objects(body.get("tools")):
        limits: Mapping[str, Any] = {}
        if tool.get("type") == "mcp_toolset":
            given = controls.get(f"mcp:{word(tool, 'mcp_server_name')}", {})
            limits = {key: value for key, value in given.items() if key in _OF_TOOLSET}
        elif tool.get("type") not in (None, "custom"):
            limits = controls.get(next((one.name for one in _declared(tool) if one.hosted is not None), ""), {})
        tools.append({**tool, **limits} if limits else tool)
    if tools:
        body["tools"] = tools
    if body.get("mcp_servers"):
        body["mcp_servers"] = [
            {**one, **{key: value for key, value in limits.items() if key not in _OF_TOOLSET}}
            for one in objects(body["mcp_servers"])
            for limits in (controls.get(f"mcp:{word(one, 'name')}", {}),)
        ]
    container = body.get("container")
    if isinstance(container, dict) and "skills" in controls:
        body["container"] = {**container, **controls["skills"]}


def add_tools(body: Object, tools: Sequence[ToolSpec]) -> None:
    if tools:
        body["tools"] = [*objects(body.get("tools")), *map(_definition, tools)]


def _definition(tool: ToolSpec) -> Object:
    return {"name": tool.name, "description": tool.description, "input_schema": schema_for(tool.parameters)}


def replace_tool(body: Object, name: str, tool: ToolSpec) -> None:
    if "tools" not in body:
        return
    body["tools"] = [_definition(tool) if _names(one) == [name] else one for one in objects(body["tools"])]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") == name:
        body["tool_choice"] = {**choice, "name": tool.name}


def describe_tool(body: Object, name: str, append: str, parameters: Mapping[str, Any] | None = None) -> None:
    for tool in objects(body.get("tools")):
        if tool.get("type") in (None, "custom") and tool.get("name") == name:
            described(tool, append, parameters, "input_schema")


def relax(body: Object) -> None:
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        _free(body, choice)


# Texts


def remind(body: Object, texts: Sequence[str]) -> None:
    if not texts:
        return
    system, reminder = body.get("system"), "\n\n".join(texts)
    if isinstance(system, list):
        body["system"] = [*system, {"type": "text", "text": reminder}]
    else:
        body["system"] = f"{system}\n\n{reminder}" if system else reminder


class _Text(NamedTuple):
    """One text or result of a body, and where it stands."""

    item: int
    texts: Sequence[str]
    """What it was joined from."""
    holder: Object
    """What holds the content."""
    key: str
    blocks: Sequence[Object]
    """Those of the content that say it; none: the content is the text."""


class _Call(NamedTuple):
    item: int
    block: Object


def _walk(body: Object) -> Iterator[_Text | _Call]:
    """The texts, results and calls of a request or a reply, as its turn numbers them."""
    if "messages" not in body:
        yield from _content(body, "content", 0, False)
        return
    item = yield from _content(body, "system", 0, True)
    for message in objects(body["messages"]):
        item = yield from _content(message, "content", item, True)


def _content(holder: Object, key: str, item: int, request: bool) -> Generator[_Text | _Call, None, int]:
    """Ends with the number of the item behind it."""
    content = holder.get(key)
    if isinstance(content, str):
        if content:
            yield _Text(item, (content,), holder, key, ())
        return item + bool(content)
    texts: list[str] = []
    blocks: list[Object] = []
    for block in objects(content):
        kind = word(block, "type")
        if kind in _WORDY:
            more = _words(block)
            if more:
                texts += more
                blocks.append(block)
            continue
        if kind in _SILENT or (kind == "thinking" and not request):
            continue
        if texts:
            yield _Text(item, texts, holder, key, blocks)
            item += 1
            texts, blocks = [], []
        if kind == "tool_use":
            yield _Call(item, block)
            item += 1
        elif kind == "thinking":
            if block.get("thinking"):
                yield _Text(item, (word(block, "thinking"),), holder, key, (block,))
                item += 1
        elif kind == "tool_result":
            yield _Text(item, _words(block), holder, key, (block,))
            item += 1
        elif kind == "compaction":
            if block.get("content"):
                yield _Text(item + 1, (word(block, "content"),), holder, key, (block,))
            item += 1 + bool(block.get("content"))
        else:
            item += 1
    if texts:
        yield _Text(item, texts, holder, key, blocks)
        item += 1
    return item


def _words(block: Object) -> Sequence[str]:
    """What a block says, as its turn has it."""
    if block.get("type") == "text":
        text = word(block, "text")
        return (text,) if text else ()
    for item in parse_reply({"content": [block]}).items:
        if isinstance(item, (TextItem, ResultItem)):
            return item.parts or ((item.text if isinstance(item, TextItem) else item.content),)
    return ()


def rewrite(body: Object, change: Change) -> None:
    emptied = False
    for text in list(_walk(body)):
        if isinstance(text, _Call):
            continue
        new = changed(text.texts, text.item, change)
        if new is None:
            continue
        emptied = emptied or not new or word(text.blocks[0] if text.blocks else {}, "type") == "thinking"
        if not text.blocks:
            text.holder[text.key] = new
            continue
        first = text.blocks[0]
        kind = word(first, "type")
        if kind == "tool_result":
            shown: list[Json] = [one for one in objects(first.get("content")) if one.get("type") == "image"]
            first["content"] = [*([{"type": "text", "text": new}] if new else []), *shown] if shown else new
        elif kind == "compaction":
            first["content"] = new
        elif kind == "thinking":
            # Its signature is over the old words, so it can only be left out.
            _in_place(text, {})
        else:
            _in_place(text, {"type": "text", "text": new} if new else {})
    if emptied:
        _without_empty(body)


def _in_place(text: _Text, block: Object) -> None:
    """Puts one block, if it holds anything, in the place of those that said the text."""
    first, content = text.blocks[0], text.holder[text.key]
    if block and first.get("cache_control") is not None:
        block["cache_control"] = first["cache_control"]
    entries: list[Json] = []
    for one in content if isinstance(content, list) else []:
        if one is first and block:
            entries.append(block)
        elif not any(one is gone for gone in text.blocks):
            entries.append(one)
    text.holder[text.key] = entries


def _without_empty(body: Object) -> None:
    """Messages that say nothing any more are refused by the provider; turns of one speaker in a row are not."""
    if not body.get("system"):
        body.pop("system", None)
    if "messages" in body:
        body["messages"] = [one for one in objects(body["messages"]) if one.get("content") not in ("", [])]


# Calls


def keep_calls(
    reply: Object,
    calls: Sequence[JudgedCall],
    more_rename: Mapping[str, str] = NO_RENAMES,
    change: Change | None = None,
) -> None:
    if nothing_to_do(calls, more_rename):
        found = [1 for block in objects(reply.get("content")) if block.get("type") == "tool_use"]
        if len(found) == len(calls):
            if change is not None:
                rewrite(reply, change)
            return
    ids = kept_ids(calls, more_rename)
    places = [one for one in _walk(reply) if isinstance(one, _Call)]
    if change is not None:
        rewrite(reply, change)
    content = reply.get("content")
    gone: list[Object] = []
    left = False
    for one in places:
        if one.item not in ids:
            gone.append(one.block)
            continue
        left = True
        one.block["id"] = ids[one.item]
    if gone and isinstance(content, list):
        reply["content"] = [one for one in content if not any(one is block for block in gone)]
    if not left and reply.get("stop_reason") == "tool_use":
        reply["stop_reason"] = "end_turn"
    bare.message(reply)


def answered(request: Object, reply: Object, results: Mapping[int, ToolAnswer]) -> Object:
    blocks = {id(one.block): results[one.item] for one in _walk(reply) if isinstance(one, _Call)}
    said: list[Json] = []
    for block in objects(reply.get("content")):
        answer = blocks.get(id(block))
        if answer is not None:
            given = block.get("input")
            again: Object = {**block, "id": answer.call_id}
            if not isinstance(given, dict):  # text that was no JSON is told back, but inputs are objects
                again["input"] = {"arguments": given}
            said.append(again)
        elif block.get("type") != "text" or block.get("text"):
            said.append({key: value for key, value in block.items() if value is not None})
    messages: list[Json] = [*objects(request.get("messages"))]
    if said:
        messages.append({"role": "assistant", "content": said})
    if blocks:
        messages.append(
            {"role": "user", "content": [_result(one.call_id, one.text, one.is_error) for one in blocks.values()]}
        )
    return {**request, "messages": messages}


def _result(call_id: str, text: str, is_error: bool) -> Object:
    block: Object = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    if is_error:
        block["is_error"] = True
    return block


def splice(request: Object, splices: Sequence[Splice]) -> None:
    if not splices:
        return
    messages = objects(request.get("messages"))
    turns: dict[str, Object] = {}
    for message in messages:
        if message.get("role") == "assistant":
            for block in objects(message.get("content")):
                if block.get("type") == "tool_use":
                    turns.setdefault(word(block, "id"), message)
    for one in splices:
        turn = next((turns[name] for name in one.siblings if name in turns), None)
        if turn is None:
            continue
        blocks = objects(turn.get("content"))
        there = {word(block, "id") for block in blocks if block.get("type") == "tool_use"}
        missing = [call for call in one.calls if call.id not in there]
        last = max(index for index, block in enumerate(blocks) if block.get("type") == "tool_use") + 1
        turn["content"] = [*blocks[:last], *map(_use, missing), *blocks[last:]]
        results = [_result(call.id, call.result, call.is_error) for call in missing]
        at = next(index for index, message in enumerate(messages) if message is turn) + 1
        if at == len(messages) or messages[at].get("role") != "user":
            messages.insert(at, {"role": "user", "content": []})
        _put_results(messages[at], results)
    request["messages"] = [one for one in messages if one.get("content") != []]


def _put_results(message: Object, results: Sequence[Object]) -> None:
    """Behind the results that a message begins with: the provider wants them before all else."""
    content = message.get("content")
    blocks = objects([{"type": "text", "text": content}] if isinstance(content, str) and content else content)
    at = 0
    while at < len(blocks) and blocks[at].get("type") == "tool_result":
        at += 1
    message["content"] = [*blocks[:at], *results, *blocks[at:]]


def _use(call: SplicedCall) -> Object:
    block: Object = {"type": "tool_use", "id": call.id, "name": call.name, "input": parsed_arguments(call.arguments)}
    toolset, _, name = call.name.partition(".")
    if toolset in TOOLSETS and name in TOOLSETS[toolset]:
        block["toolset_name"], block["name"] = toolset, name
    return block


def join(first: Object, later: Object) -> Object:
    bare.message(first)
    said = [block for block in objects(first.get("content")) if block.get("type") != "tool_use"]
    reply: Object = {**later, "content": [*said, *objects(later.get("content"))]}
    reply.update((key, first[key]) for key in ("id", "model") if first.get(key) is not None)
    if first.get("usage") is not None or later.get("usage") is not None:
        reply["usage"] = summed(first.get("usage"), later.get("usage"))
    return reply


def echo(reply: Object, request: Object) -> None:
    set_model(reply, word(request, "model"))


def rename_ids(body: Object, names: Mapping[str, str]) -> None:
    for message in objects(body.get("messages")):
        for block in objects(message.get("content")):
            if block.get("type") == "tool_use":
                renamed(block, "id", names)
            elif block.get("type") == "tool_result":
                renamed(block, "tool_use_id", names)


__all__ = [
    "add_tools",
    "answered",
    "describe_tool",
    "drop_tools",
    "echo",
    "forget",
    "join",
    "keep_calls",
    "refusal",
    "relax",
    "remind",
    "rename_ids",
    "replace_tool",
    "rewrite",
    "set_controls",
    "set_model",
    "splice",
]
