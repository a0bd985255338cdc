"""Edits of OpenAI Chat Completions bodies, with the legacy functions: see `Edits` for what each one does.

Walks a body as `chat_completions` does when it makes a turn of it, so that both number its items alike.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wardwright.wire import bare
from wardwright.wire.body import Json, Object
from wardwright.wire.edits import (
    NO_RENAMES,
    Change,
    JudgedCall,
    Slot,
    Splice,
    ToolAnswer,
    ToolSpec,
    changed,
    described,
    forget,
    kept_ids,
    nothing_to_do,
    objects,
    openai_refusal,
    put,
    renamed,
    schema_for,
    set_model,
    summed,
    word,
)

refusal = openai_refusal

_REASONING: Final = ("reasoning_content", "reasoning")
_ONLY_SHOWN: Final = frozenset({"annotations", "parsed", "audio"})
"""Of the model's message: what a request does not carry, or carries otherwise."""


# Tools


def drop_tools(body: Object, names: Collection[str]) -> None:
    if not names:
        return
    for field in ("tools", "functions"):
        if field in body:
            kept: list[Json] = [tool for tool in objects(body[field]) if _name(tool) not in names]
            if kept:
                body[field] = kept
            else:
                del body[field]
    if "web_search" in names:
        body.pop("web_search_options", None)
    _mend_choice(body)


def _mend_choice(body: Object) -> None:
    left = {_name(tool) for field in ("tools", "functions") for tool in objects(body.get(field))}
    if not left:
        for field in ("tool_choice", "function_call", "parallel_tool_calls"):
            body.pop(field, None)
        return
    legacy = body.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name") not in left:
        body["function_call"] = "auto"
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        permitted: list[Json] = [tool for tool in objects(allowed.get("tools")) if _name(tool) in left]
        # WHY NOT auto: the caller permitted none of those that are left.
        body["tool_choice"] = {**choice, "allowed_tools": {**allowed, "tools": permitted}} if permitted else "none"
    elif _name(choice) not in left:
        body["tool_choice"] = "auto"


def _definition(tool: Object) -> Object:
    """The object with a tool's name: of a declaration, of a choice, or itself for a legacy function."""
    for field in ("function", "custom"):
        definition = tool.get(field)
        if isinstance(definition, dict):
            return definition
    return tool


def _name(tool: Object) -> str:
    return word(_definition(tool), "name")


def set_controls(body: Object, controls: Mapping[str, Mapping[str, Any]]) -> None:
    options = body.get("web_search_options")
    if isinstance(options, dict) and "web_search" in controls:
        body["web_search_options"] = {**options, **controls["web_search"]}


def add_tools(body: Object, tools: Sequence[ToolSpec]) -> None:
    if not tools:
        return
    if body.get("functions") and not body.get("tools"):
        body["functions"] = [*objects(body["functions"]), *map(_function, tools)]
    else:
        body["tools"] = [
            *objects(body.get("tools")),
            *({"type": "function", "function": _function(one)} for one in tools),
        ]


def _function(tool: ToolSpec) -> Object:
    return {"name": tool.name, "description": tool.description, "parameters": schema_for(tool.parameters)}


def replace_tool(body: Object, name: str, tool: ToolSpec) -> None:
    for field in ("tools", "functions"):
        if field not in body:
            continue
        declared: list[Json] = []
        for one in objects(body[field]):
            if _name(one) != name:
                declared.append(one)
            else:
                declared.append(
                    {"type": "function", "function": _function(tool)} if field == "tools" else _function(tool)
                )
        body[field] = declared
    legacy, choice = body.get("function_call"), body.get("tool_choice")
    if isinstance(legacy, dict) and legacy.get("name") == name:
        body["function_call"] = {"name": tool.name}
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        chosen: Object = {"type": "function", "function": {"name": tool.name}}
        if isinstance(allowed, dict):
            permitted: list[Json] = [chosen if _name(one) == name else one for one in objects(allowed.get("tools"))]
            body["tool_choice"] = {**choice, "allowed_tools": {**allowed, "tools": permitted}}
        elif _name(choice) == name:
            body["tool_choice"] = chosen


def describe_tool(body: Object, name: str, append: str, parameters: Mapping[str, Any] | None = None) -> None:
    for field in ("tools", "functions"):
        for tool in objects(body.get(field)):
            definition = _definition(tool)
            if word(definition, "name") == name:
                described(definition, append, parameters, "parameters")


def relax(body: Object) -> None:
    for field in ("tool_choice", "function_call"):
        choice = body.get(field)
        if choice == "required" or (isinstance(choice, dict) and "allowed_tools" not in choice):
            body[field] = "auto"
        elif isinstance(choice, dict):
            allowed = choice["allowed_tools"]
            if isinstance(allowed, dict):
                body[field] = {**choice, "allowed_tools": {**allowed, "mode": "auto"}}


# Texts


def remind(body: Object, texts: Sequence[str]) -> None:
    if not texts:
        return
    messages = objects(body.get("messages"))
    leading, role = 0, "system"
    while leading < len(messages) and messages[leading].get("role") in ("system", "developer"):
        role = str(messages[leading]["role"])
        leading += 1
    reminder: Object = {"role": role, "content": "\n\n".join(texts)}
    body["messages"] = [*messages[:leading], reminder, *messages[leading:]]


class _Text(NamedTuple):
    """One text of a body, and where it stands."""

    item: int
    slots: list[Slot]
    message: Object
    """What it is the content of."""
    kind: str
    """`said`, `thought` or `result`."""
    choice: Object | None


class _Calls(NamedTuple):
    """The calls of one message."""

    item: int
    """Of the first."""
    message: Object
    choice: Object | None


def _walk(body: Object) -> Iterator[_Text | _Calls]:
    """The texts and the calls of a request or a reply, as its turn numbers them."""
    item = 0
    if "messages" not in body:
        for choice in _choices(body):
            message = choice.get("message")
            if isinstance(message, dict):
                item = yield from _assistant(message, item, choice)
        return
    prediction = body.get("prediction")
    if isinstance(prediction, dict):
        slots = _slots(prediction)
        if slots:
            yield _Text(item, slots, prediction, "said", None)
            item += 1
    for message in objects(body["messages"]):
        role = message.get("role")
        if role == "assistant":
            item = yield from _assistant(message, item, None)
            continue
        slots = _slots(message)
        result = role == "tool" or role == "function"
        if slots or result:
            yield _Text(item, slots, message, "result" if result else "said", None)
            item += 1


def _choices(reply: Object) -> list[Object]:
    """The choices by their index; those of one index in the order they stand in."""
    numbered = enumerate(objects(reply.get("choices")))
    ordered = [(index if isinstance(index := one.get("index"), int) else at, at, one) for at, one in numbered]
    ordered.sort(key=lambda entry: entry[:2])
    return [one for _, _, one in ordered]


def _assistant(message: Object, item: int, choice: Object | None) -> Generator[_Text | _Calls, None, int]:
    """Ends with the number of the item behind them."""
    if choice is None:
        thoughts = _thoughts(message)
        if thoughts:
            yield _Text(item, thoughts, message, "thought", None)
            item += 1
    slots = _slots(message)
    if message.get("refusal"):
        slots.append(Slot(message, "refusal"))
    audio = message.get("audio")
    if isinstance(audio, dict) and audio.get("transcript"):
        slots.append(Slot(audio, "transcript"))
    if slots:
        yield _Text(item, slots, message, "said", choice)
        item += 1
    count = _count(message)
    if count:
        yield _Calls(item, message, choice)
    return item + count


def _count(message: Object) -> int:
    calls = message.get("tool_calls")
    count = len(calls) if isinstance(calls, list) else 0
    return count if message.get("function_call") is None else count + 1


def _said(reply: Object) -> int:
    """How many calls a reply has. Asked of every one, so it makes nothing."""
    found = 0
    choices = reply.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            message = choice.get("message") if isinstance(choice, dict) else None
            if isinstance(message, dict):
                if "tool_calls" in message and isinstance(calls := message["tool_calls"], list):
                    found += len(calls)
                if "function_call" in message and message["function_call"] is not None:
                    found += 1
    return found


def _thoughts(message: Object) -> list[Slot]:
    slots = [Slot(message, name) for name in _REASONING if message.get(name)]
    for detail in objects(message.get("reasoning_details")):
        slots += [Slot(detail, name) for name in ("text", "summary") if detail.get(name)]
    once: dict[str, Slot] = {}
    for slot in slots:
        once.setdefault(slot.text, slot)
    return list(once.values())


def _slots(message: Object) -> list[Slot]:
    content = message.get("content")
    if isinstance(content, str):
        return [Slot(message, "content")] if content else []
    if not isinstance(content, list):
        return []
    slots: list[Slot] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            part = content[index] = {"type": "text", "text": part}
        if isinstance(part, dict):
            slots += [Slot(part, name, content) for name in ("text", "refusal") if part.get(name)]
    return slots


def rewrite(body: Object, change: Change) -> None:
    for text in list(_walk(body)):
        if isinstance(text, _Calls):
            continue
        new = changed([slot.text for slot in text.slots], text.item, change)
        if new is None:
            continue
        if not text.slots:  # a result that said nothing
            text.message["content"] = new
            continue
        if text.kind == "thought":
            # All of them say the same words.
            for name in (*_REASONING, "reasoning_details"):
                text.message.pop(name, None)
            if new:
                text.message["reasoning_content"] = new
            continue
        put(text.slots, new)
        message = text.message
        audio = message.get("audio")
        if isinstance(audio, dict) and "transcript" in audio:  # the sound still says the old words
            if text.slots[0].holder is audio:
                message["content"] = new
            del message["audio"]
        if message.get("content") == []:
            message["content"] = ""
        for name in ("annotations", "parsed"):
            message.pop(name, None)
        if text.choice is not None and text.choice.get("logprobs") is not None:
            text.choice["logprobs"] = None


# Calls


def keep_calls(
    reply: Object,
    calls: Sequence[JudgedCall],
    more_rename: Mapping[str, str] = NO_RENAMES,
    change: Change | None = None,
) -> None:
    if nothing_to_do(calls, more_rename) and _said(reply) == len(calls):
        if change is not None:
            rewrite(reply, change)
        return
    ids = kept_ids(calls, more_rename)
    places = [one for one in _walk(reply) if isinstance(one, _Calls)]
    if change is not None:
        rewrite(reply, change)
    for item, message, choice in places:
        kept: list[Json] = []
        for call in objects(message.get("tool_calls")):
            if item in ids:
                if call.get("id") != ids[item]:
                    call["id"] = ids[item]
                kept.append(call)
            item += 1
        if kept:
            message["tool_calls"] = kept
        else:
            message.pop("tool_calls", None)
        if message.get("function_call") is not None and item not in ids:
            del message["function_call"]
        if not _count(message):
            if message.get("content") is None:
                message["content"] = ""
            if choice is not None and choice.get("finish_reason") in ("tool_calls", "function_call"):
                choice["finish_reason"] = "stop"
    bare.completion(reply)


def answered(request: Object, reply: Object, results: Mapping[int, ToolAnswer]) -> Object:
    said: Object | None = None
    tools: list[Json] = []
    for one in _walk(reply):
        if isinstance(one, _Calls):
            said, tools = _answers(one, results)
            break
    if said is None:  # nothing was called
        choices = _choices(reply)
        first = choices[0].get("message") if choices else None
        said = _sent(first) if isinstance(first, dict) else {"role": "assistant", "content": ""}
    return {**request, "messages": [*objects(request.get("messages")), said, *tools]}


def _answers(calls: _Calls, results: Mapping[int, ToolAnswer]) -> tuple[Object, list[Json]]:
    """The model's message as a request carries it, and the answers to its calls."""
    said = _sent(calls.message)
    tools: list[Json] = []
    item = calls.item
    sent: list[Json] = []
    for call in objects(calls.message.get("tool_calls")):
        answer = results[item]
        again = {key: value for key, value in call.items() if key != "index"}
        again["id"] = answer.call_id
        sent.append(again)
        tools.append({"role": "tool", "tool_call_id": answer.call_id, "content": answer.text})
        item += 1
    if sent:
        said["tool_calls"] = sent
    legacy = calls.message.get("function_call")
    if isinstance(legacy, dict):
        tools.append({"role": "function", "name": legacy.get("name"), "content": results[item].text})
    return said, tools


def _sent(message: Object) -> Object:
    """A message of a reply as a request carries it."""
    said: Object = {key: value for key, value in message.items() if key not in _ONLY_SHOWN and value is not None}
    said.setdefault("role", "assistant")
    said.setdefault("content", None if _count(message) else "")
    audio = message.get("audio")
    if isinstance(audio, dict) and audio.get("id") is not None:
        said["audio"] = {"id": audio["id"]}
    return said


def splice(request: Object, splices: Sequence[Splice]) -> None:
    if not splices:
        return
    messages = objects(request.get("messages"))
    turns: dict[str, Object] = {}
    for message in messages:
        if message.get("role") == "assistant":
            for call in objects(message.get("tool_calls")):
                turns.setdefault(word(call, "id"), message)
    custom = {_name(tool) for tool in objects(request.get("tools")) if tool.get("type") == "custom"}
    for one in splices:
        turn = next((turns[name] for name in one.siblings if name in turns), None)
        if turn is None:
            continue
        calls = objects(turn.get("tool_calls"))
        there = {word(call, "id") for call in calls}
        missing = [call for call in one.calls if call.id not in there]
        put_back: list[Json] = [
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
            if call.name in custom
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in missing
        ]
        turn["tool_calls"] = [*calls, *put_back]
        at = next(index for index, message in enumerate(messages) if message is turn) + 1
        while at < len(messages) and messages[at].get("role") == "tool":
            at += 1
        messages[at:at] = [{"role": "tool", "tool_call_id": call.id, "content": call.result} for call in missing]
    request["messages"] = list(messages)


def join(first: Object, later: Object) -> Object:
    bare.completion(first)
    before = _choices(first)
    choices: list[Json] = []
    for at, choice in enumerate(_choices(later)):
        joined: Object = {"index": at, **choice}
        said = before[at].get("message") if at < len(before) else None
        message = choice.get("message")
        if isinstance(said, dict) and isinstance(message, dict):
            joined["message"] = _joined(said, message)
            if choice.get("logprobs") is not None or before[at].get("logprobs") is not None:
                joined["logprobs"] = None  # of one round they would not fit the text
        choices.append(joined)
    reply: Object = {**later, "choices": choices}
    reply.update((key, first[key]) for key in ("id", "created", "model") if first.get(key) is not None)
    if first.get("usage") is not None or later.get("usage") is not None:
        reply["usage"] = summed(first.get("usage"), later.get("usage"))
    return reply


def _joined(said: Object, message: Object) -> Object:
    """The message of a later round, with what an earlier one said before it."""
    whole = dict(message)
    words, more = said.get("content"), message.get("content")
    shift = 0
    if isinstance(words, list) or isinstance(more, list):
        whole["content"] = [*_parts(words), *_parts(more)]
    elif isinstance(words, str) and words:
        shift = len(words)
        whole["content"] = words + (more if isinstance(more, str) else "")
    for name in (*_REASONING, "refusal"):
        before, after = said.get(name), message.get(name)
        if isinstance(before, str) and before:
            whole[name] = before + (after if isinstance(after, str) else "")
    if said.get("reasoning_details"):
        whole["reasoning_details"] = [
            *objects(said.get("reasoning_details")),
            *objects(message.get("reasoning_details")),
        ]
    notes = [_shifted(note, shift) for note in objects(message.get("annotations"))]
    if said.get("annotations") or notes:
        whole["annotations"] = [*objects(said.get("annotations")), *notes]
    return whole


def _parts(content: Json) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content) if isinstance(content, list) else []


def _shifted(note: Object, by: int) -> Object:
    """A note on a text that now begins later."""
    cited = note.get("url_citation")
    if not by or not isinstance(cited, dict):
        return note
    moved = dict(cited)
    for key in ("start_index", "end_index"):
        place = moved.get(key)
        if isinstance(place, int):
            moved[key] = place + by
    return {**note, "url_citation": moved}


def echo(reply: Object, request: Object) -> None:
    set_model(reply, word(request, "model"))


def rename_ids(body: Object, names: Mapping[str, str]) -> None:
    for message in objects(body.get("messages")):
        if message.get("role") == "tool":
            renamed(message, "tool_call_id", names)
        for call in objects(message.get("tool_calls")):
            renamed(call, "id", names)


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
