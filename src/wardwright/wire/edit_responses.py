"""Edits of OpenAI Responses bodies: see `Edits` for what each one does.

Walks a body as `responses` does when it makes a turn of it, so that both number its items alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from wardwright.wire import bare
from wardwright.wire.body import Json, Object
from wardwright.wire.edits import (
    EVERYTHING,
    NO_RENAMES,
    Change,
    JudgedCall,
    Slot,
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
    openai_refusal,
    parsed_arguments,
    put,
    renamed,
    schema_for,
    set_model,
    summed,
    word,
)
from wardwright.wire.responses import parse_reply, parse_request
from wardwright.wire.turn import CallItem, DeclaredTool, HostedCallItem, Item, ResultItem, TextItem

refusal = openai_refusal

_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "computer_call", "local_shell_call", "apply_patch_call"}
)
_BRINGING: Final = frozenset({"additional_tools", "mcp_list_tools", "tool_search_output"})
"""Items that declare tools."""
_ABOUT_WORDS: Final = frozenset({"annotations", "logprobs", "parsed"})
"""Of a part: what repeats its text, or counts places in it."""

_REPEATED: Final[Mapping[str, Json]] = {"instructions": None, "tools": [], "tool_choice": "auto", "metadata": {}}
"""What a reply repeats of its request, and what it says when the request did not."""


# Tools


def _raw(tool: DeclaredTool) -> str:
    return tool.name if tool.server is None else f"{tool.name}:{tool.server}"


def _declared(tool: Object) -> Sequence[DeclaredTool]:
    """What one declaration declares."""
    return parse_request({"tools": [tool]}, passing=EVERYTHING).tools


def _names(tool: Object) -> list[str]:
    if tool.get("type") == "function" or tool.get("type") == "custom":
        return [word(tool, "name")]
    return [_raw(one) for one in _declared(tool)]


def _entries(body: Object) -> list[Object]:
    """The items of a request or a reply; none when the input is a text."""
    return objects(body["output"] if "output" in body else body.get("input"))


def drop_tools(body: Object, names: Collection[str]) -> None:
    if not names:
        return
    listed: dict[str, list[str]] = {}
    for entry in _entries(body):
        if entry.get("type") not in _BRINGING:
            continue
        if entry.get("type") == "mcp_list_tools":
            server = word(entry, "server_label")
            listed.setdefault(server, []).extend(word(tool, "name") for tool in objects(entry.get("tools")))
            entry["tools"] = [
                one for one in objects(entry.get("tools")) if f"{word(one, 'name')}:{server}" not in names
            ]
        else:
            entry["tools"] = _left(objects(entry.get("tools")), names, listed)
    tools = _left(objects(body.get("tools")), names, listed)
    if tools:
        body["tools"] = tools
    else:
        body.pop("tools", None)
    _mend_choice(body)


def _left(tools: Sequence[Object], names: Collection[str], listed: Mapping[str, Sequence[str]]) -> list[Json]:
    """What is left of a list of declarations. `listed`: what servers say that they have."""
    left: list[Json] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            members: list[Json] = [
                one for one in objects(tool.get("tools")) if f"{word(tool, 'name')}.{word(one, 'name')}" not in names
            ]
            if members:
                left.append({**tool, "tools": members})
        elif tool.get("type") == "mcp":
            kept = _narrowed(tool, names, listed.get(word(tool, "server_label"), ()))
            if kept is not None:
                left.append(kept)
        elif not any(name in names for name in _names(tool)):
            left.append(tool)
    return left


def _narrowed(tool: Object, names: Collection[str], listed: Sequence[str]) -> Object | None:
    """A provider-side MCP server without some of its tools; None: without any."""
    server = word(tool, "server_label")
    if f"mcp:{server}" in names:
        return None
    allowed = tool.get("allowed_tools")
    only = allowed.get("tool_names") if isinstance(allowed, dict) else allowed
    present = [one for one in only if isinstance(one, str)] if isinstance(only, list) else list(listed)
    kept: list[Json] = [one for one in present if f"{one}:{server}" not in names]
    if len(kept) == len(present):
        return tool
    if not kept:  # an empty list may mean all of them
        return None
    return {**tool, "allowed_tools": {**allowed, "tool_names": kept} if isinstance(allowed, dict) else kept}


def _mend_choice(body: Object) -> None:
    bringing: list[Json] = [one for one in _entries(body) if one.get("type") in _BRINGING]
    tools = body.get("tools")
    turn = parse_request({"input": bringing, "tools": tools}, passing=EVERYTHING)
    left = {_raw(tool) for tool in turn.tools}
    choice = body.get("tool_choice")
    if not left:
        for field in ("tool_choice", "parallel_tool_calls", "max_tool_calls"):
            body.pop(field, None)
        return
    if not isinstance(choice, dict):
        return

    def named(one: Object) -> bool:
        asked: Object = {"input": bringing, "tools": tools, "tool_choice": one}
        chosen = parse_request(asked, passing=EVERYTHING).tool_choice
        return chosen is not None and left.issuperset(chosen.names)

    if choice.get("type") != "allowed_tools":
        if not named(choice):
            body["tool_choice"] = "auto"
        return
    permitted: list[Json] = [one for one in objects(choice.get("tools")) if named(one)]
    # WHY NOT auto: the caller permitted none of those that are left.
    body["tool_choice"] = {**choice, "tools": permitted} if permitted else "none"


def set_controls(body: Object, controls: Mapping[str, Mapping[str, Any]]) -> None:
    tools: list[Json] = []
    for tool in objects(body.get("tools")):
        limits: Mapping[str, Any] = {}
        if tool.get("type") not in ("function", "custom", "namespace"):
            limits = controls.get(next((_raw(one) for one in _declared(tool) if one.hosted is not None), ""), {})
        tools.append({**tool, **limits} if limits else tool)
    if tools:
        body["tools"] = tools


def add_tools(body: Object, tools: Sequence[ToolSpec]) -> None:
    if tools:
        body["tools"] = [*objects(body.get("tools")), *map(_function, tools)]


def _function(tool: ToolSpec) -> Object:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": schema_for(tool.parameters),
        "strict": False,  # left out it would be true, and refuse most schemas
    }


def replace_tool(body: Object, name: str, tool: ToolSpec) -> None:
    tools: list[Json] = []
    for one in objects(body.get("tools")):
        if one.get("type") == "namespace":
            space = word(one, "name")
            members: list[Json] = [
                _function(tool) if f"{space}.{word(member, 'name')}" == name else member
                for member in objects(one.get("tools"))
            ]
            tools.append({**one, "tools": members})
        else:
            tools.append(_function(tool) if _names(one) == [name] else one)
    if tools:
        body["tools"] = tools
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        permitted: list[Json] = [_chosen(one, name, tool) for one in objects(choice.get("tools"))]
        body["tool_choice"] = {**choice, "tools": permitted}
    elif isinstance(choice, dict):
        body["tool_choice"] = _chosen(choice, name, tool)


def _chosen(choice: Object, name: str, tool: ToolSpec) -> Object:
    """A choice; of the replaced tool, one of the other."""
    if choice.get("type") not in ("function", "custom"):
        return {"type": "function", "name": tool.name} if choice.get("type") == name else choice
    space = word(choice, "namespace")
    own = f"{space}.{word(choice, 'name')}" if space else word(choice, "name")
    return {**choice, "type": "function", "name": tool.name} if own == name else choice


def describe_tool(body: Object, name: str, append: str, parameters: Mapping[str, Any] | None = None) -> None:
    for tool in objects(body.get("tools")):
        if tool.get("type") in ("function", "custom") and word(tool, "name") == name:
            described(tool, append, parameters, "parameters")
        elif tool.get("type") == "namespace":
            for member in objects(tool.get("tools")):
                if f"{word(tool, 'name')}.{word(member, 'name')}" == name:
                    described(member, append, parameters, "parameters")


def relax(body: Object) -> None:
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        body["tool_choice"] = {**choice, "mode": "auto"}
    elif isinstance(choice, dict) or choice == "required":
        body["tool_choice"] = "auto"


# Texts


def remind(body: Object, texts: Sequence[str]) -> None:
    if not texts:
        return
    reminder = "\n\n".join(texts)
    entries = objects(body.get("input"))
    leading, role = 0, "system"
    while leading < len(entries) and entries[leading].get("role") in ("system", "developer"):
        role = str(entries[leading]["role"])
        leading += 1
    if leading:
        body["input"] = [*entries[:leading], {"role": role, "content": reminder}, *entries[leading:]]
    else:
        own = body.get("instructions")
        body["instructions"] = f"{own}\n\n{reminder}" if own else reminder


class _Text(NamedTuple):
    """One text or result of a body, and where it stands."""

    item: int
    texts: Sequence[str]
    """What it was joined from."""
    holder: Object
    """The entry that says it, or the body itself."""
    key: str


class _Call(NamedTuple):
    item: int
    entry: Object


def _walk(body: Object) -> Iterator[_Text | _Call]:
    """The texts, results and calls of a request or a reply, as its turn numbers them."""
    item = 0
    request = "output" not in body
    if request:
        for key in ("instructions", "input"):
            text = body.get(key)
            if isinstance(text, str) and text:
                yield _Text(item, (text,), body, key)
                item += 1
    hosted: set[str] = set()
    for entry in _entries(body):
        if _is_call(entry):
            yield _Call(item, entry)
            item += 1
            continue
        kind = word(entry, "type") or "message"
        if kind == "function_call_output" and isinstance(entry.get("output"), str):
            yield _Text(item, (word(entry, "output"),), entry, "output")
            item += 1
            continue
        items = _items(entry, kind, request)
        for one in items:
            if isinstance(one, HostedCallItem) and kind == "shell_call":
                hosted.add(one.id)
            elif isinstance(one, TextItem):
                yield _Text(item, one.parts or (one.text,), entry, "content")
            elif isinstance(one, ResultItem):
                yield _Text(item, one.parts or (one.content,), entry, "output")
            elif kind == "shell_call_output" and request and word(entry, "call_id") not in hosted:
                yield _Text(
                    item, (one.content if not isinstance(one, (HostedCallItem, CallItem)) else "",), entry, "output"
                )
            item += 1


def _is_call(entry: Object) -> bool:
    """Whether it is a call for the client."""
    kind = entry.get("type")
    if kind == "shell_call":
        environment = entry.get("environment")
        return not isinstance(environment, dict) or environment.get("type", "local") == "local"
    return kind in _CALLS or (kind == "tool_search_call" and entry.get("execution") == "client")


def _items(entry: Object, kind: str, request: bool) -> Sequence[Item]:
    """What the turn has of one entry."""
    if kind != "reasoning":
        return parse_reply({"output": [entry]}, passing=EVERYTHING).items
    if not request:
        return ()
    said: Object = {"role": "assistant", "content": [*objects(entry.get("summary")), *objects(entry.get("content"))]}
    return parse_reply({"output": [said]}).items


def rewrite(body: Object, change: Change) -> None:
    gone: list[Object] = []
    for text in list(_walk(body)):
        if isinstance(text, _Call):
            continue
        new = changed(text.texts, text.item, change)
        if new is None:
            continue
        entry = text.holder
        if entry is body:
            body[text.key] = new
        elif entry.get("type") == "reasoning":
            gone.append(entry)  # what is sealed in it still says the old words
        elif text.key == "content":
            _say(entry, "content", new)
            if not entry["content"]:
                gone.append(entry)
        else:
            _result(entry, new)
    if body.get("instructions") == "":
        del body["instructions"]
    if gone:
        key = "output" if "output" in body else "input"
        body[key] = [one for one in _entries(body) if not any(one is entry for entry in gone)]


def _say(entry: Object, key: str, text: str) -> None:
    """Makes `text` the whole of what stands there; pictures and files stay."""
    content = entry.get(key)
    parts = content if isinstance(content, list) else []
    slots = [Slot(part, name, parts) for part in objects(parts) for name in ("text", "refusal") if part.get(name)]
    if not slots:
        entry[key] = text
        return
    put(slots, text)
    first = slots[0].holder
    for name in _ABOUT_WORDS & set(first):
        if name == "annotations":
            first[name] = []
        else:
            del first[name]


def _result(entry: Object, text: str) -> None:
    """Another text for what a tool answered."""
    kind = entry.get("type")
    if kind == "computer_call_output":
        return  # a picture: no rule has read it, and no text can stand there
    if kind == "shell_call_output":
        entry["output"] = [_shell_output(text, False)]
    elif kind == "tool_search_output":
        entry["tools"] = []
    else:
        _say(entry, "output", text)
        if entry.get("output") == []:
            entry["output"] = ""


def _shell_output(text: str, is_error: bool) -> Object:
    outcome: Object = {"type": "exit", "exit_code": int(is_error)}
    return {"stdout": "" if is_error else text, "stderr": text if is_error else "", "outcome": outcome}


# Calls


def keep_calls(
    reply: Object,
    calls: Sequence[JudgedCall],
    more_rename: Mapping[str, str] = NO_RENAMES,
    change: Change | None = None,
) -> None:
    if nothing_to_do(calls, more_rename) and sum(map(_is_call, _entries(reply))) == len(calls):
        if change is not None:
            rewrite(reply, change)
        return
    ids = kept_ids(calls, more_rename)
    places = [one for one in _walk(reply) if isinstance(one, _Call)]
    if change is not None:
        rewrite(reply, change)
    gone: list[Object] = []
    for one in places:
        if one.item in ids:
            one.entry["call_id"] = ids[one.item]
        else:
            gone.append(one.entry)
    if gone:
        reply["output"] = _without(_entries(reply), gone)
    bare.response(reply)


def _without(entries: Sequence[Object], gone: Sequence[Object]) -> list[Json]:
    """The rest of an output. Reasoning goes with the calls it led to: providers refuse one without what followed it."""
    kept: list[Json] = []
    thoughts: list[Json] = []
    led_nowhere = False
    for entry in entries:
        if entry.get("type") == "reasoning":
            if led_nowhere:
                thoughts = []
            thoughts.append(entry)
            led_nowhere = False
        elif any(entry is one for one in gone):
            led_nowhere = True
        else:
            kept += [*thoughts, entry]
            thoughts, led_nowhere = [], False
    return kept if led_nowhere else [*kept, *thoughts]


def answered(request: Object, reply: Object, results: Mapping[int, ToolAnswer]) -> Object:
    answers = {id(one.entry): results[one.item] for one in _walk(reply) if isinstance(one, _Call)}
    gone: list[Object] = []
    outputs: list[Json] = []
    said: list[Object] = []
    for entry in _entries(reply):
        answer = answers.get(id(entry))
        if answer is None:
            said.append(entry)
        elif entry.get("type") == "computer_call":
            # It can only be answered by a picture, so it is told in words.
            said.append(entry)
            gone.append(entry)
            outputs.append({"role": "developer", "content": answer.text})
        else:
            said.append({**entry, "call_id": answer.call_id})
            outputs.append(_output(word(entry, "type"), answer.call_id, answer.text, answer.is_error))
    kept: list[Json] = _without(said, gone) if gone else [*said]
    return {**request, "input": [*_input(request), *kept, *outputs]}


def _input(request: Object) -> list[Json]:
    given = request.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    return [*objects(given)]


def _output(kind: str, call_id: str, text: str, is_error: bool) -> Object:
    """What answers a call of this kind."""
    if kind == "shell_call":
        return {"type": "shell_call_output", "call_id": call_id, "output": [_shell_output(text, is_error)]}
    if kind == "apply_patch_call":
        status = "failed" if is_error else "completed"
        return {"type": "apply_patch_call_output", "call_id": call_id, "status": status, "output": text}
    if kind == "local_shell_call":
        return {"type": "local_shell_call_output", "id": call_id, "output": text}
    if kind == "tool_search_call":
        return {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": []}
    return {"type": f"{kind}_output", "call_id": call_id, "output": text}


def splice(request: Object, splices: Sequence[Splice]) -> None:
    entries = objects(request.get("input"))
    if not splices or not entries:
        return
    kinds = _kinds(request)
    for one in splices:
        siblings = set(one.siblings)
        calls = [at for at, entry in enumerate(entries) if _is_call(entry) and word(entry, "call_id") in siblings]
        if not calls:
            continue
        there = {word(entry, "call_id") for entry in entries if _is_call(entry)}
        missing = [call for call in one.calls if call.id not in there]
        after = calls[-1] + 1
        while after < len(entries) and _is_call(entries[after]):
            after += 1
        results = [
            at for at in range(after, len(entries)) if not _is_call(entries[at]) and _answers(entries[at]) in siblings
        ]
        behind = results[-1] + 1 if results else after
        while behind < len(entries) and _answers(entries[behind]):
            behind += 1
        entries[behind:behind] = [
            _output(kinds.get(call.name, "function_call"), call.id, call.result, call.is_error) for call in missing
        ]
        entries[after:after] = [_call(call, kinds.get(call.name, "function_call")) for call in missing]
    request["input"] = list(entries)


def _answers(entry: Object) -> str:
    """The id of the call that an entry answers."""
    if not word(entry, "type").endswith("_output"):
        return ""
    return word(entry, "call_id") or word(entry, "id")


def _kinds(request: Object) -> dict[str, str]:
    """Declared tools that are not called by `function_call`: raw name -> the type of their calls."""
    kinds: dict[str, str] = {}
    for tool in objects(request.get("tools")):
        kind = word(tool, "type")
        if kind == "custom":
            kinds[word(tool, "name")] = "custom_tool_call"
        elif kind == "namespace":
            kinds.update(
                {f"{word(tool, 'name')}.{word(one, 'name')}": "namespace" for one in objects(tool.get("tools"))}
            )
        elif kind in ("local_shell", "shell", "apply_patch"):
            kinds[kind] = f"{kind}_call"
    return kinds


def _call(call: SplicedCall, kind: str) -> Object:
    if kind == "custom_tool_call":
        return {"type": kind, "call_id": call.id, "name": call.name, "input": call.arguments}
    if kind == "namespace":
        space, _, name = call.name.partition(".")
        own: Object = {"name": name, "namespace": space, "arguments": call.arguments}
        return {"type": "function_call", "call_id": call.id, **own}
    if kind == "function_call":
        return {"type": kind, "call_id": call.id, "name": call.name, "arguments": call.arguments}
    key = "operation" if kind == "apply_patch_call" else "action"
    return {"type": kind, "call_id": call.id, key: parsed_arguments(call.arguments), "status": "completed"}


def join(first: Object, later: Object) -> Object:
    bare.response(first)
    entries = _entries(first)
    calls = [entry for entry in entries if _is_call(entry)]
    reply: Object = {**later, "output": [*_without(entries, calls), *_entries(later)]}
    reply.update((key, first[key]) for key in ("id", "created_at", "model") if first.get(key) is not None)
    if first.get("usage") is not None or later.get("usage") is not None:
        reply["usage"] = summed(first.get("usage"), later.get("usage"))
    return reply


def echo(reply: Object, request: Object) -> None:
    set_model(reply, word(request, "model"))
    for name, without in _REPEATED.items():
        if name in reply:
            said = request.get(name)
            reply[name] = copy(without) if said is None else said


def rename_ids(body: Object, names: Mapping[str, str]) -> None:
    for entry in objects(body.get("input")):
        renamed(entry, "call_id", names)
        if entry.get("type") == "local_shell_call_output":
            renamed(entry, "id", names)


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
