"""Chat Completions to and from what all wires can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from wardwright.wire.body import Json, Object, dumped, list_of, object_of, text_of
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
    texts,
)

NAME: Final = "Chat Completions"

FATES: Final[Mapping[str, str]] = {
    "audio": REFUSED,
    "frequency_penalty": REFUSED,
    "function_call": f"{REFUSED}: use tool_choice",
    "functions": f"{REFUSED}: use tools",
    "logit_bias": REFUSED,
    "logprobs": REFUSED,
    "max_completion_tokens": CARRIED,
    "max_tokens": CARRIED,
    "messages": CARRIED,
    "metadata": f"{LEFT_OUT}: labels for the provider's own records",
    "min_p": REFUSED,
    "modalities": f"{REFUSED}, but for text alone",
    "model": CARRIED,
    "moderation": REFUSED,
    "n": f"{REFUSED}, but for 1",
    "parallel_tool_calls": CARRIED,
    "prediction": f"{LEFT_OUT}: a guess at the answer that only saves time",
    "presence_penalty": REFUSED,
    "prompt_cache_key": f"{LEFT_OUT}: caching",
    "prompt_cache_options": f"{LEFT_OUT}: caching",
    "prompt_cache_retention": f"{LEFT_OUT}: caching",
    "reasoning_effort": CARRIED,
    "repetition_penalty": f"{REFUSED}, but for 1",
    "response_format": f"{CARRIED}; json_object not to Messages",
    "safety_identifier": f"{LEFT_OUT}: the provider's own records",
    "seed": REFUSED,
    "service_tier": f"{LEFT_OUT}: price and speed at the provider",
    "stop": f"{CARRIED}, but not to Responses",
    "store": f"{LEFT_OUT}: the provider's own records",
    "stream": CARRIED,
    "stream_options": f"{LEFT_OUT}: other wires always tell the usage",
    "temperature": f"{CARRIED}; above 1 not to Messages",
    "tool_choice": f"{CARRIED}; allowed_tools not to Messages",
    "tools": f"{CARRIED}; custom ones not to Messages",
    "top_k": f"{CARRIED}, but not to Responses",
    "top_logprobs": REFUSED,
    "top_p": CARRIED,
    "user": CARRIED,
    "verbosity": f"{CARRIED}, but not to Messages",
    "web_search_options": f"{REFUSED}: a hosted tool",
}

_ROLES: Final[Mapping[str, Speaker]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_FINISHES: Final[Mapping[str, Finish]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


def read_request(body: Object) -> Asked:
    modal = body.get("modalities")
    check({key: value for key, value in body.items() if key != "modalities" or modal != ["text"]}, FATES, NAME)
    stop = body.get("stop")
    asked = Asked(text_of(body, "model", ""), _messages(body))
    asked.tools = [_tool(tool, index) for index, tool in enumerate(objects(body.get("tools")))]
    asked.choice = _choice(body.get("tool_choice"))
    parallel = body.get("parallel_tool_calls")
    asked.parallel = parallel if isinstance(parallel, bool) else None
    asked.output = _output(body.get("response_format"))
    asked.stream = body.get("stream")
    asked.max_tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    asked.temperature, asked.top_p, asked.top_k = body.get("temperature"), body.get("top_p"), body.get("top_k")
    asked.stop = [stop] if isinstance(stop, str) else [one for one in list_of(body, "stop", "") if isinstance(one, str)]
    asked.effort, asked.verbosity = text_of(body, "reasoning_effort", ""), text_of(body, "verbosity", "")
    asked.user = text_of(body, "user", "")
    return asked


def _messages(body: Object) -> list[Message]:
    messages: list[Message] = []
    free: set[str] = set()
    for index, message in enumerate(objects(body.get("messages"))):
        path = f"messages[{index}]"
        role = word(message, "role")
        content = message.get("content")
        parts = _parts(content, path)
        if role == "tool":
            call_id = text_of(message, "tool_call_id", path)
            shown: str | list[Shown] = content if isinstance(content, str) else parts
            messages.append(Message("tool", [Result(call_id, shown, False, call_id in free)]))
            continue
        if role not in _ROLES:
            raise lost(f"a message of the role {role!r}", "another wire format", path)
        said: list[Part] = [*parts]
        if message.get("refusal"):
            said.append(Words(word(message, "refusal"), True))
        for name in ("audio", "function_call", "name"):
            if message.get(name) is not None:
                raise lost(f"{name!r}", "another wire format", path)
        for call in objects(message.get("tool_calls")):
            one = _call(call, path)
            if one.free:
                free.add(one.id)
            said.append(one)
        messages.append(Message(_ROLES[role], said, isinstance(content, str)))
    return messages


def _call(call: Object, path: str) -> Call:
    free = isinstance(call.get("custom"), dict)
    definition = object_of(call, "custom" if free else "function", path)
    given = definition.get("input" if free else "arguments")
    arguments = given if isinstance(given, str) else "" if given is None else dumped(given, path)
    return Call(text_of(call, "id", path), text_of(definition, "name", path), arguments, free)


def _parts(content: Json, path: str) -> list[Shown]:
    if isinstance(content, str):
        return [Words(content)] if content else []
    parts: list[Shown] = []
    for index, part in enumerate(content if isinstance(content, list) else []):
        at = f"{path}.content[{index}]"
        if isinstance(part, str):
            parts.append(Words(part))
            continue
        kind = word(part, "type") if isinstance(part, dict) else ""
        if not isinstance(part, dict) or kind not in ("text", "refusal", "image_url", "file"):
            raise lost(f"a part of the type {kind!r}", "another wire format", at)
        if kind == "image_url":
            image = object_of(part, "image_url", at)
            parts.append(Picture(word(image, "url"), word(image, "detail")))
        elif kind == "file":
            file = object_of(part, "file", at)
            if not word(file, "file_data"):
                raise lost("a file that stays with the provider", "another wire format", at)
            parts.append(Document(word(file, "file_data"), word(file, "filename")))
        else:
            parts.append(Words(word(part, kind), kind == "refusal"))
    return parts


def _tool(tool: Object, index: int) -> Tool:
    custom = tool.get("custom")
    if isinstance(custom, dict):
        return Tool(word(custom, "name"), _described(custom), None, None, custom.get("format") or {})
    function = object_of(tool, "function", f"tools[{index}]")
    schema = function.get("parameters")
    strict = function.get("strict")
    return Tool(
        word(function, "name"),
        _described(function),
        schema if isinstance(schema, dict) else None,
        strict if isinstance(strict, bool) else None,
    )


def _described(definition: Object) -> str | None:
    description = definition.get("description")
    return description if isinstance(description, str) else None


def _choice(choice: Json) -> Choice | None:
    if isinstance(choice, str):
        return MODES.get(choice)
    if not isinstance(choice, dict):
        return None
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        names = tuple(_chosen(one) for one in objects(allowed.get("tools")))
        return Choice("allowed", names, allowed.get("mode") == "required")
    return Choice("tool", (_chosen(choice),))


def _chosen(choice: Object) -> str:
    for name in ("function", "custom"):
        definition = choice.get(name)
        if isinstance(definition, dict):
            return word(definition, "name")
    return ""


def _output(form: Json) -> Output | None:
    if not isinstance(form, dict) or form.get("type") == "text":
        return None
    if form.get("type") == "json_object":
        return Output(None)
    given = object_of(form, "json_schema", "response_format")
    strict = given.get("strict")
    return Output(
        object_of(given, "schema", "response_format.json_schema"),
        word(given, "name") or "output",
        strict if isinstance(strict, bool) else None,
        _described(given),
    )


def write_request(asked: Asked) -> Object:
    body: Object = {"model": asked.model, "messages": _written(asked)}
    if asked.tools:
        body["tools"] = [_declared(tool) for tool in asked.tools]
    if asked.choice is not None and asked.tools:
        body["tool_choice"] = _chose(asked.choice, {tool.name for tool in asked.tools if tool.free is not None})
    if asked.output is not None:
        body["response_format"] = _form(asked.output)
    values: tuple[tuple[str, Json], ...] = (
        ("parallel_tool_calls", asked.parallel if asked.tools else None),
        ("stream", asked.stream),
        ("max_completion_tokens", asked.max_tokens),
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("top_k", asked.top_k),
        ("stop", [*asked.stop] or None),
        ("reasoning_effort", asked.effort or None),
        ("verbosity", asked.verbosity or None),
        ("user", asked.user if 0 < len(asked.user) <= MAX_USER else None),
    )
    body.update((key, value) for key, value in values if value is not None)
    if asked.stream is True:
        body["stream_options"] = {"include_usage": True}
    return body


def _written(asked: Asked) -> list[Json]:
    messages: list[Json] = []
    for message in asked.messages:
        results = [part for part in message.parts if isinstance(part, Result)]
        messages += [{"role": "tool", "tool_call_id": result.call_id, "content": _result(result)} for result in results]
        calls = [part for part in message.parts if isinstance(part, Call)]
        shown = [part for part in message.parts if isinstance(part, (Words, Picture, Document))]
        if results and not shown:
            continue
        written: Object = {"role": message.role, "content": None}
        if len(shown) == 1 and isinstance(shown[0], Words):  # some servers know no other form
            written["refusal" if shown[0].refusal else "content"] = shown[0].text
        elif shown:
            written["content"] = [_part(part) for part in shown]
        elif not calls:
            written["content"] = ""
        if calls:
            written["tool_calls"] = [_called(call) for call in calls]
        messages.append(written)
    return messages


def _result(result: Result) -> Json:
    if isinstance(result.content, str):
        return result.content
    for part in result.content:
        if not isinstance(part, Words):
            raise lost("a picture or file in the result of a tool", NAME)
    if len(result.content) <= 1:
        return "".join(texts(result.content))
    return [_part(part) for part in result.content]


def _part(part: Shown) -> Object:
    if isinstance(part, Words):
        return {"type": "refusal", "refusal": part.text} if part.refusal else {"type": "text", "text": part.text}
    if isinstance(part, Picture):
        image: Object = {"url": part.url, "detail": part.detail} if part.detail else {"url": part.url}
        return {"type": "image_url", "image_url": image}
    return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": part.data}}


def _called(call: Call) -> Object:
    if call.free:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _declared(tool: Tool) -> Object:
    definition: Object = {"name": tool.name}
    if tool.description is not None:
        definition["description"] = tool.description
    if tool.free is not None:
        return {"type": "custom", "custom": {**definition, "format": tool.free} if tool.free else definition}
    if tool.schema is not None:
        definition["parameters"] = dict(tool.schema)
    if tool.strict is not None:
        definition["strict"] = tool.strict
    return {"type": "function", "function": definition}


def _chose(choice: Choice, free: set[str]) -> Json:
    chosen: list[Object] = []
    for name in choice.names:
        kind = "custom" if name in free else "function"
        chosen.append({"type": kind, kind: {"name": name}})
    if choice.mode == "tool":
        return chosen[0]
    if choice.mode == "allowed":
        mode = "required" if choice.required else "auto"
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": cast("list[Json]", chosen)}}
    return choice.mode


def _form(output: Output) -> Object:
    if output.schema is None:
        return {"type": "json_object"}
    form: Object = {"name": output.name, "schema": dict(output.schema)}
    if output.strict is not None:
        form["strict"] = output.strict
    if output.description is not None:
        form["description"] = output.description
    return {"type": "json_schema", "json_schema": form}


def read_reply(body: Object) -> Answer:
    choices = objects(body.get("choices"))
    if len(choices) != 1:
        raise lost(f"a reply with {len(choices)} choices", "another wire format", "choices")
    message = object_of(choices[0], "message", "choices[0]")
    parts: list[Words | Thought | Call] = []
    thought = word(message, "reasoning_content") or word(message, "reasoning")
    if thought:
        parts.append(Thought(thought))
    for part in _parts(message.get("content"), "choices[0].message"):
        if not isinstance(part, Words):
            raise lost("a picture or file in a reply", "another wire format", "choices[0].message.content")
        parts.append(part)
    if message.get("refusal"):
        parts.append(Words(word(message, "refusal"), True))
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise lost(f"{name!r}", "another wire format", "choices[0].message")
    calls = [
        _call(call, f"choices[0].message.tool_calls[{at}]")
        for at, call in enumerate(objects(message.get("tool_calls")))
    ]
    parts += calls
    finish = _FINISHES.get(word(choices[0], "finish_reason"), "stop")
    if calls and finish == "stop":  # some servers say so, and clients of other wires would not look for the calls
        finish = "tool_calls"
    created = body.get("created")
    answer = Answer(word(body, "id"), word(body, "model"), parts, finish)
    answer.created = created if isinstance(created, int) else 0
    usage = body.get("usage")
    if isinstance(usage, dict):
        answer.used = Used(
            number(usage, "prompt_tokens"),
            number(usage, "completion_tokens"),
            number(usage, "prompt_tokens_details", "cached_tokens"),
            number(usage, "prompt_tokens_details", "cache_write_tokens"),
            number(usage, "completion_tokens_details", "reasoning_tokens"),
        )
    return answer


def write_reply(answer: Answer) -> Object:
    said = "".join(texts([part for part in answer.parts if isinstance(part, Words) and not part.refusal]))
    refused = "".join(texts([part for part in answer.parts if isinstance(part, Words) and part.refusal]))
    thoughts = "".join(part.text for part in answer.parts if isinstance(part, Thought))
    calls: list[Json] = [_called(part) for part in answer.parts if isinstance(part, Call)]
    message: Object = {"role": "assistant", "content": said or None}
    if thoughts:
        message["reasoning_content"] = thoughts
    if refused:
        message["refusal"] = refused
    if calls:
        message["tool_calls"] = calls
    elif not said and not refused:
        message["content"] = ""
    body: Object = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
    }
    used = answer.used
    if used is not None:
        body["usage"] = {
            "prompt_tokens": used.input,
            "completion_tokens": used.output,
            "total_tokens": used.input + used.output,
            "prompt_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": used.kept},
            "completion_tokens_details": {"reasoning_tokens": used.reasoning},
        }
    return body
