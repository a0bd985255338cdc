"""Responses to and from what all wires can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from wardwright.wire.body import Json, Object, dumped, object_of, text_of
from wardwright.wire.edits import objects, word
from wardwright.wire.neutral import (
    CARRIED,
    LEFT_OUT,
    MAX_USER,
    MODES,
    REFUSED,
    Answer,
    Asked,
    Call,
    Choice,
    Document,
    Finish,
    Message,
    Output,
    Part,
    Picture,
    Result,
    Shown,
    Speaker,
    Thought,
    Tool,
    Used,
    Words,
    check,
    lost,
    number,
)

NAME: Final = "Responses"

FATES: Final[Mapping[str, str]] = {
    "context_management": f"{REFUSED}: the provider would change the transcript",
    "image": REFUSED,
    "include": f"{LEFT_OUT}: what the provider tells beside the answer",
    "input": CARRIED,
    "instructions": CARRIED,
    "max_output_tokens": CARRIED,
    "max_tool_calls": REFUSED,
    "metadata": f"{LEFT_OUT}: labels for the provider's own records",
    "model": CARRIED,
    "moderation": REFUSED,
    "parallel_tool_calls": CARRIED,
    "prompt_cache_key": f"{LEFT_OUT}: caching",
    "prompt_cache_options": f"{LEFT_OUT}: caching",
    "prompt_cache_retention": f"{LEFT_OUT}: caching",
    "reasoning": f"{CARRIED}: its effort",
    "safety_identifier": f"{LEFT_OUT}: the provider's own records",
    "service_tier": f"{LEFT_OUT}: price and speed at the provider",
    "store": f"{LEFT_OUT}: the provider's own records",
    "stream": CARRIED,
    "stream_options": f"{LEFT_OUT}: padding of the stream",
    "temperature": f"{CARRIED}; above 1 not to Messages",
    "text": f"{CARRIED}; json_object and verbosity not to Messages",
    "tool_choice": f"{CARRIED}; allowed_tools not to Messages",
    "tools": f"{CARRIED}: functions, and custom ones but not to Messages; hosted and described ones are {REFUSED}",
    "top_logprobs": REFUSED,
    "top_p": CARRIED,
    "truncation": f"{REFUSED}, but for disabled",
    "user": CARRIED,
}

_ROLES: Final[Mapping[str, Speaker]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_TEXTS: Final = frozenset({"input_text", "output_text", "text"})


def read_request(body: Object) -> Asked:
    check(body, FATES, NAME)
    asked = Asked(text_of(body, "model", ""), _messages(body))
    asked.tools = [_tool(tool, index) for index, tool in enumerate(objects(body.get("tools")))]
    asked.choice = _choice(body.get("tool_choice"))
    parallel = body.get("parallel_tool_calls")
    asked.parallel = parallel if isinstance(parallel, bool) else None
    text = object_of(body, "text", "")
    asked.output = _output(text.get("format"))
    asked.verbosity = text_of(text, "verbosity", "text")
    asked.effort = text_of(object_of(body, "reasoning", ""), "effort", "reasoning")
    asked.stream, asked.max_tokens = body.get("stream"), body.get("max_output_tokens")
    asked.temperature, asked.top_p = body.get("temperature"), body.get("top_p")
    asked.user = text_of(body, "user", "")
    return asked


def _messages(body: Object) -> list[Message]:
    """The items as messages. What the model said between two answers is one message if it called something in it."""
    messages: list[Message] = []
    instructions = word(body, "instructions")
    if instructions:
        messages.append(Message("system", [Words(instructions)], True))
    given = body.get("input")
    if isinstance(given, str):
        if given:
            messages.append(Message("user", [Words(given)], True))
        return messages
    calling = False
    """The last message is the model's and has calls."""
    for index, entry in enumerate(objects(given)):
        path = f"input[{index}]"
        kind = word(entry, "type") or "message"
        if kind == "reasoning":
            continue
        if kind == "message":
            role = _ROLES[word(entry, "role")]
            content = entry.get("content")
            parts: list[Part] = [*_parts(content, f"{path}.content")]
            if calling and role == "assistant":
                messages[-1].parts += parts
            else:
                messages.append(Message(role, parts, isinstance(content, str)))
                calling = False
        elif kind in ("function_call", "custom_tool_call"):
            if messages and messages[-1].role == "assistant":
                messages[-1].parts.append(_call(entry, path))
            else:
                messages.append(Message("assistant", [_call(entry, path)]))
            calling = True
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = entry.get("output")
            shown: str | list[Shown] = output if isinstance(output, str) else _parts(output, f"{path}.output")
            free = kind.startswith("custom")
            messages.append(Message("tool", [Result(text_of(entry, "call_id", path), shown, False, free)]))
            calling = False
        else:
            raise lost(f"an item of the type {kind!r}", "another wire format", path)
    return messages


def _call(entry: Object, path: str) -> Call:
    if entry.get("namespace") is not None:
        raise lost("a call of a tool in a namespace", "another wire format", path)
    free = entry.get("type") == "custom_tool_call"
    given = entry.get("input" if free else "arguments")
    arguments = given if isinstance(given, str) else "" if given is None else dumped(given, path)
    return Call(text_of(entry, "call_id", path), text_of(entry, "name", path), arguments, free)


def _parts(content: Json, path: str) -> list[Shown]:
    if isinstance(content, str):
        return [Words(content)] if content else []
    parts: list[Shown] = []
    for index, part in enumerate(objects(content)):
        at, kind = f"{path}[{index}]", word(part, "type")
        if kind in _TEXTS:
            parts.append(Words(word(part, "text")))
        elif kind == "refusal":
            parts.append(Words(word(part, "refusal"), True))
        elif kind == "input_image" and word(part, "image_url"):
            parts.append(Picture(word(part, "image_url"), word(part, "detail")))
        elif kind == "input_file" and word(part, "file_data"):
            parts.append(Document(word(part, "file_data"), word(part, "filename")))
        elif kind in ("input_image", "input_file"):
            raise lost("a file that stays with the provider", "another wire format", at)
        else:
            raise lost(f"a part of the type {kind!r}", "another wire format", at)
    return parts


def _tool(tool: Object, index: int) -> Tool:
    kind = word(tool, "type")
    if kind not in ("function", "custom"):
        raise lost(f"a tool of the type {kind!r}", "another wire format", f"tools[{index}]")
    for name in ("output_schema", "allowed_callers", "defer_loading", "async"):
        if tool.get(name):
            raise lost(f"{name!r}", "another wire format", f"tools[{index}]")
    description = tool.get("description")
    told = description if isinstance(description, str) else None
    if kind == "custom":
        return Tool(word(tool, "name"), told, None, None, tool.get("format") or {})
    schema, strict = tool.get("parameters"), tool.get("strict")
    return Tool(
        word(tool, "name"),
        told,
        schema if isinstance(schema, dict) else None,
        strict if isinstance(strict, bool) else None,
    )


def _choice(choice: Json) -> Choice | None:
    if isinstance(choice, str):
        return MODES.get(choice)
    if not isinstance(choice, dict):
        return None
    if choice.get("type") == "allowed_tools":
        names = tuple(_chosen(one) for one in objects(choice.get("tools")))
        return Choice("allowed", names, choice.get("mode") == "required")
    return Choice("tool", (_chosen(choice),))


def _chosen(choice: Object) -> str:
    if choice.get("type") not in ("function", "custom") or choice.get("namespace") is not None:
        raise lost(f"a choice of the type {word(choice, 'type')!r}", "another wire format", "tool_choice")
    return word(choice, "name")


def _output(form: Json) -> Output | None:
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if form.get("type") == "json_object":
        return Output(None)
    strict, description = form.get("strict"), form.get("description")
    return Output(
        object_of(form, "schema", "text.format"),
        word(form, "name") or "output",
        strict if isinstance(strict, bool) else None,
        description if isinstance(description, str) else None,
    )


def write_request(asked: Asked) -> Object:
    for name, value in (("stop", asked.stop), ("top_k", asked.top_k)):
        if value:
            raise lost(f"{name!r}", NAME)
    body: Object = {"model": asked.model, "input": _written(asked), "store": False}
    if asked.tools:
        body["tools"] = [_declared(tool) for tool in asked.tools]
    if asked.choice is not None:
        body["tool_choice"] = _chose(asked.choice, {tool.name for tool in asked.tools if tool.free is not None})
    text: Object = {}
    if asked.output is not None:
        text["format"] = _form(asked.output)
    if asked.verbosity:
        text["verbosity"] = asked.verbosity
    values: tuple[tuple[str, Json], ...] = (
        ("text", text or None),
        ("reasoning", {"effort": asked.effort} if asked.effort else None),
        ("parallel_tool_calls", asked.parallel),
        ("stream", asked.stream),
        ("max_output_tokens", asked.max_tokens),
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("user", asked.user if 0 < len(asked.user) <= MAX_USER else None),
    )
    body.update((key, value) for key, value in values if value is not None)
    return body


def _written(asked: Asked) -> list[Json]:
    entries: list[Json] = []
    for message in asked.messages:
        shown: list[Shown] = []
        for part in message.parts:
            if isinstance(part, (Words, Picture, Document)):
                shown.append(part)
                continue
            if shown:
                entries.append(_message(message, shown))
                shown = []
            if isinstance(part, Call):
                entries.append(_called(part))
            else:
                entries.append(_result(part))
        if shown:
            entries.append(_message(message, shown))
    return entries


def _message(message: Message, shown: list[Shown]) -> Object:
    said = message.role == "assistant"
    role = "user" if message.role == "tool" else message.role
    if len(shown) == 1 and isinstance(shown[0], Words) and not shown[0].refusal:
        return {"role": role, "content": shown[0].text}
    return {"type": "message", "role": role, "content": [_part(part, said) for part in shown]}


def _part(part: Shown, said: bool) -> Object:
    if isinstance(part, Words):
        if part.refusal:
            return {"type": "refusal", "refusal": part.text}
        spoken: Object = {"type": "output_text", "text": part.text, "annotations": []}
        return spoken if said else {"type": "input_text", "text": part.text}
    if isinstance(part, Picture):
        return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
    return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": part.data}


def _result(result: Result) -> Object:
    content = result.content
    output: Json = content if isinstance(content, str) else [_part(part, False) for part in content]
    kind = "custom_tool_call_output" if result.free else "function_call_output"
    return {"type": kind, "call_id": result.call_id, "output": output or ""}


def _called(call: Call) -> Object:
    if call.free:
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _declared(tool: Tool) -> Object:
    definition: Object = {"type": "function" if tool.free is None else "custom", "name": tool.name}
    if tool.description is not None:
        definition["description"] = tool.description
    if tool.free is not None:
        return {**definition, "format": tool.free} if tool.free else definition
    if tool.schema is not None:
        definition["parameters"] = dict(tool.schema)
    definition["strict"] = bool(tool.strict)  # left out it would be true
    return definition


def _chose(choice: Choice, free: set[str]) -> Json:
    chosen: list[Object] = [{"type": "custom" if name in free else "function", "name": name} for name in choice.names]
    if choice.mode == "tool":
        return chosen[0]
    if choice.mode == "allowed":
        mode = "required" if choice.required else "auto"
        return {"type": "allowed_tools", "mode": mode, "tools": cast("list[Json]", chosen)}
    return choice.mode


def _form(output: Output) -> Object:
    if output.schema is None:
        return {"type": "json_object"}
    form: Object = {"type": "json_schema", "name": output.name, "schema": dict(output.schema)}
    if output.strict is not None:
        form["strict"] = output.strict
    if output.description is not None:
        form["description"] = output.description
    return form


def read_reply(body: Object) -> Answer:
    parts: list[Words | Thought | Call] = []
    for index, entry in enumerate(objects(body.get("output"))):
        kind, path = word(entry, "type"), f"output[{index}]"
        if kind == "message":
            for part in _parts(entry.get("content"), f"{path}.content"):
                if not isinstance(part, Words):
                    raise lost("a picture or file in a reply", "another wire format", path)
                parts.append(part)
        elif kind == "reasoning":
            told = [word(one, "text") for name in ("summary", "content") for one in objects(entry.get(name))]
            if any(told):
                parts.append(Thought("\n\n".join(one for one in told if one)))
        elif kind in ("function_call", "custom_tool_call"):
            parts.append(_call(entry, path))
        else:
            raise lost(f"an item of the type {kind!r}", "another wire format", path)
    created = body.get("created_at")
    answer = Answer(word(body, "id"), word(body, "model"), parts, _finish(body, parts))
    answer.created = int(created) if isinstance(created, (int, float)) else 0
    usage = body.get("usage")
    if isinstance(usage, dict):
        answer.used = Used(
            number(usage, "input_tokens"),
            number(usage, "output_tokens"),
            number(usage, "input_tokens_details", "cached_tokens"),
            number(usage, "input_tokens_details", "cache_write_tokens"),
            number(usage, "output_tokens_details", "reasoning_tokens"),
        )
    return answer


def _finish(body: Object, parts: list[Words | Thought | Call]) -> Finish:
    if body.get("status") == "incomplete":
        reason = word(object_of(body, "incomplete_details", ""), "reason")
        return "content_filter" if reason == "content_filter" else "length"
    if body.get("status") not in (None, "completed"):
        raise lost(f"a reply that is {word(body, 'status')!r}", "another wire format", "status")
    return "tool_calls" if any(isinstance(part, Call) for part in parts) else "stop"


def write_reply(answer: Answer) -> Object:
    output: list[Json] = []
    said: list[Json] = []

    def end_message() -> None:
        if said:
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{answer.id}_{len(output)}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [*said],
                }
            )
            said.clear()

    for part in answer.parts:
        if isinstance(part, Words):
            said.append(_part(part, True))
            continue
        end_message()
        if isinstance(part, Thought):
            summary: Json = [{"type": "summary_text", "text": part.text}]
            output.append({"type": "reasoning", "id": f"rs_{answer.id}_{len(output)}", "summary": summary})
        else:
            output.append({**_called(part), "id": f"fc_{answer.id}_{len(output)}", "status": "completed"})
    end_message()
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    used = answer.used
    return {
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "status": "completed" if cut is None else "incomplete",
        "error": None,
        "incomplete_details": None if cut is None else {"reason": cut},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None
        if used is None
        else {
            "input_tokens": used.input,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": used.kept},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
            "total_tokens": used.input + used.output,
        },
    }
