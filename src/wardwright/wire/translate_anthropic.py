"""Messages to and from what all wires can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wardwright.wire.anthropic import parse_reply
from wardwright.wire.body import Json, Object, dumped, object_of, text_of
from wardwright.wire.edits import objects, parsed_arguments, schema_for, word
from wardwright.wire.neutral import (
    CARRIED,
    LEFT_OUT,
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
from wardwright.wire.turn import TextItem

NAME: Final = "Messages"

MAX_TOKENS: Final = 8_192
"""Asked for when a caller of another wire sets no limit; Messages demands one."""

FATES: Final[Mapping[str, str]] = {
    "cache_control": f"{LEFT_OUT}: caching",
    "compaction": f"{REFUSED}: the provider would change the transcript",
    "container": f"{REFUSED}: it stays with the provider",
    "context_management": f"{REFUSED}, but for clearing thoughts: the provider would change the transcript",
    "diagnostics": f"{LEFT_OUT}: what the provider tells beside the answer",
    "inference_geo": f"{REFUSED}: another provider cannot promise it",
    "max_tokens": CARRIED,
    "mcp_servers": f"{REFUSED}: hosted tools",
    "messages": CARRIED,
    "metadata": f"{CARRIED}: its user_id, up to 64 characters",
    "model": CARRIED,
    "output_config": f"{CARRIED}: effort and format",
    "output_format": CARRIED,
    "service_tier": f"{LEFT_OUT}: price and speed at the provider",
    "speed": f"{LEFT_OUT}: price and speed at the provider",
    "stop_sequences": f"{CARRIED}, but not to Responses",
    "stream": CARRIED,
    "system": CARRIED,
    "temperature": CARRIED,
    "thinking": f"{LEFT_OUT}: budgets and modes of its own models; effort is carried",
    "tool_choice": CARRIED,
    "tools": f"{CARRIED}: the caller's own; hosted and described ones are {REFUSED}",
    "top_k": f"{CARRIED}, but not to Responses",
    "top_p": CARRIED,
    "user_profile_id": f"{LEFT_OUT}: the provider's own records",
    "workspace_id": f"{LEFT_OUT}: the provider's own records",
}

_ROLES: Final[Mapping[str, Speaker]] = {"system": "system", "user": "user", "assistant": "assistant"}
_EFFORTS: Final[Mapping[str, str]] = {"none": "low", "minimal": "low"}
"""Words of OpenAI for less than Messages can say."""
_FINISHES: Final[Mapping[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_STOPS: Final[Mapping[Finish, str]] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def read_request(body: Object) -> Asked:
    check({key: value for key, value in body.items() if not _about_thinking(key, value)}, FATES, NAME)
    messages: list[Message] = []
    system = body.get("system")
    if system:
        messages.append(Message("system", [*_parts(system, "system")], isinstance(system, str)))
    for index, message in enumerate(objects(body.get("messages"))):
        messages += _read(message, f"messages[{index}]")
    asked = Asked(text_of(body, "model", ""), messages)
    asked.tools = [_tool(tool, index) for index, tool in enumerate(objects(body.get("tools")))]
    choice = object_of(body, "tool_choice", "")
    asked.choice = _choice(choice)
    if choice.get("disable_parallel_tool_use") is True:
        asked.parallel = False
    config = object_of(body, "output_config", "")
    form = body.get("output_format") or config.get("format")
    if isinstance(form, dict):
        asked.output = Output(object_of(form, "schema", "output_config.format"))
    asked.effort = word(config, "effort")
    asked.stream, asked.max_tokens = body.get("stream"), body.get("max_tokens")
    asked.temperature, asked.top_p, asked.top_k = body.get("temperature"), body.get("top_p"), body.get("top_k")
    stop = body.get("stop_sequences")
    asked.stop = [one for one in stop if isinstance(one, str)] if isinstance(stop, list) else []
    asked.user = word(object_of(body, "metadata", ""), "user_id")
    return asked


def _about_thinking(name: str, value: Json) -> bool:
    """Whether all that it asks for is about thinking of earlier turns, which is left out anyway."""
    if name != "context_management" or not isinstance(value, dict):
        return False
    edits = objects(value.get("edits"))
    return set(value) <= {"edits"} and all(word(one, "type").startswith("clear_thinking_") for one in edits)


def _read(message: Object, path: str) -> list[Message]:
    """One message; what the user says beside results is a message behind them."""
    content = message.get("content")
    role = _ROLES[word(message, "role")]
    if message.get("output_config") is not None:
        raise lost("'output_config'", "another wire format", path)
    if isinstance(content, str):
        return [Message(role, [Words(content)], True)] if content else []
    messages: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(objects(content)):
        at, kind = f"{path}.content[{index}]", word(block, "type")
        if kind in ("thinking", "redacted_thinking"):
            continue
        if (kind == "tool_use" and role != "assistant") or (kind == "tool_result" and role != "user"):
            raise lost(f"a block of the type {kind!r} in a message of the role {role!r}", "another wire format", at)
        if kind == "tool_use":
            parts.append(_call(block, at))
        elif kind == "tool_result":
            if parts:
                messages.append(Message(role, parts))
                parts = []
            given = block.get("content")
            shown: str | list[Shown] = given if isinstance(given, str) else _parts(given, f"{at}.content")
            result = Result(text_of(block, "tool_use_id", at), shown, block.get("is_error") is True)
            messages.append(Message("tool", [result]))
        else:
            parts += _shown(block, at)
    if parts:
        messages.append(Message(role, parts))
    return messages


def _parts(content: Json, path: str) -> list[Shown]:
    if isinstance(content, str):
        return [Words(content)] if content else []
    return [part for at, block in enumerate(objects(content)) for part in _shown(block, f"{path}[{at}]")]


def _shown(block: Object, path: str) -> list[Shown]:
    kind = word(block, "type")
    if kind == "text":
        return [Words(word(block, "text"))] if block.get("text") else []
    source = block.get("source")
    if kind == "image" and isinstance(source, dict) and source.get("type") in ("base64", "url"):
        return [Picture(_data(source) if source["type"] == "base64" else word(source, "url"))]
    if kind == "search_result" or kind == "document":
        words: list[Shown] = []
        for item in parse_reply({"content": [block]}).items:
            if isinstance(item, TextItem):
                words += [Words(text) for text in item.parts or (item.text,)]
        if isinstance(source, dict) and source.get("type") == "base64":
            words.append(Document(_data(source), word(block, "title")))
        elif isinstance(source, dict) and source.get("type") not in ("text", "content"):
            raise lost("a document that is not sent with the request", "another wire format", path)
        return words
    raise lost(f"a block of the type {kind!r}", "another wire format", path)


def _data(source: Object) -> str:
    return f"data:{word(source, 'media_type') or 'application/octet-stream'};base64,{word(source, 'data')}"


def _call(block: Object, path: str) -> Call:
    if block.get("toolset_name") is not None:
        raise lost("a call of a tool in a set", "another wire format", path)
    given = block.get("input")
    arguments = given if isinstance(given, str) else "" if given is None else dumped(given, path)
    return Call(text_of(block, "id", path), text_of(block, "name", path), arguments)


def _tool(tool: Object, index: int) -> Tool:
    if tool.get("type") not in (None, "custom"):
        raise lost(f"a tool of the type {word(tool, 'type')!r}", "another wire format", f"tools[{index}]")
    for name, usual in (("input_examples", []), ("allowed_callers", ["direct"]), ("defer_loading", False)):
        if tool.get(name) and tool[name] != usual:
            raise lost(f"{name!r}", "another wire format", f"tools[{index}]")
    description, schema, strict = tool.get("description"), tool.get("input_schema"), tool.get("strict")
    return Tool(
        word(tool, "name"),
        description if isinstance(description, str) else None,
        schema if isinstance(schema, dict) else None,
        strict if isinstance(strict, bool) else None,
    )


def _choice(choice: Object) -> Choice | None:
    kind = choice.get("type")
    if kind == "tool":
        if choice.get("toolset_name") is not None:
            raise lost("a choice of a tool in a set", "another wire format", "tool_choice")
        return Choice("tool", (word(choice, "name"),))
    if kind == "any":
        return Choice("required")
    if kind == "auto" or kind == "none":
        return Choice("auto" if kind == "auto" else "none")
    return None


def write_request(asked: Asked) -> Object:
    if asked.verbosity:
        raise lost("'verbosity'", NAME)
    if isinstance(asked.temperature, (int, float)) and asked.temperature > 1:
        raise lost("a temperature above 1", NAME, "temperature")
    leading = 0
    system: list[Part] = []
    while leading < len(asked.messages) and asked.messages[leading].role in ("system", "developer"):
        system += asked.messages[leading].parts
        leading += 1
    body: Object = {"model": asked.model, "max_tokens": MAX_TOKENS if asked.max_tokens is None else asked.max_tokens}
    if system:
        alone = leading == 1 and asked.messages[0].plain
        blocks = [_block(part) for part in system if not isinstance(part, Words) or part.text]
        body["system"] = blocks[0]["text"] if alone and blocks else [*blocks]
    body["messages"] = _written(asked.messages[leading:])
    if asked.tools:
        body["tools"] = [_declared(tool) for tool in asked.tools]
    choice = _chose(asked)
    if choice:
        body["tool_choice"] = choice
    config: Object = {}
    if asked.output is not None:
        if asked.output.schema is None:
            raise lost("a JSON object without a schema", NAME, "response_format")
        config["format"] = {"type": "json_schema", "schema": dict(asked.output.schema)}
    if asked.effort:
        config["effort"] = _EFFORTS.get(asked.effort, asked.effort)
    values: tuple[tuple[str, Json], ...] = (
        ("output_config", config or None),
        ("stream", asked.stream),
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("top_k", asked.top_k),
        ("stop_sequences", [*asked.stop] or None),
        ("metadata", {"user_id": asked.user} if asked.user else None),
    )
    body.update((key, value) for key, value in values if value is not None)
    return body


def _written(given: list[Message]) -> list[Json]:
    messages: list[Json] = []
    answering: list[Json] | None = None
    """Blocks of the last message, if it holds results only: all results of one turn stand in one message."""
    for message in given:
        blocks: list[Json] = [_block(part) for part in message.parts if not isinstance(part, Words) or part.text]
        if not blocks:
            continue
        if message.role == "tool":
            if answering is None:
                answering = []
                messages.append({"role": "user", "content": answering})
            answering += blocks
            continue
        answering = None
        role = "system" if message.role == "developer" else message.role
        first = message.parts[0]
        if message.plain and len(blocks) == 1 and isinstance(first, Words):
            messages.append({"role": role, "content": first.text})
        else:
            messages.append({"role": role, "content": blocks})
    return messages


def _block(part: Part) -> Object:
    if isinstance(part, Words):
        return {"type": "text", "text": part.text}
    if isinstance(part, Picture):
        return {"type": "image", "source": _source(part.url)}
    if isinstance(part, Document):
        block: Object = {"type": "document", "source": _source(part.data)}
        return {**block, "title": part.name} if part.name else block
    if isinstance(part, Call):
        if part.free:
            raise lost("a call with free text", NAME)
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": parsed_arguments(part.arguments)}
    content = part.content
    block = {"type": "tool_result", "tool_use_id": part.call_id}
    block["content"] = content if isinstance(content, str) else [_block(one) for one in content if one != Words("")]
    if part.is_error:
        block["is_error"] = True
    return block


def _source(url: str) -> Object:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return {"type": "base64", "media_type": head[5:].removesuffix(";base64"), "data": data}
    return {"type": "url", "url": url}


def _declared(tool: Tool) -> Object:
    if tool.free is not None:
        raise lost("a custom tool", NAME, f"tools.{tool.name}")
    definition: Object = {"name": tool.name, "input_schema": schema_for(tool.schema or {})}
    if tool.description is not None:
        definition["description"] = tool.description
    if tool.strict:
        definition["strict"] = True
    return definition


def _chose(asked: Asked) -> Object:
    choice = asked.choice if asked.tools else None
    chosen: Object = {}
    if choice is not None:
        if choice.mode == "allowed":
            raise lost("'allowed_tools'", NAME, "tool_choice")
        chosen = {"type": "any" if choice.mode == "required" else choice.mode}
        if choice.mode == "tool":
            chosen["name"] = choice.names[0]
    if asked.parallel is False and asked.tools and chosen.get("type") != "none":
        chosen = {"type": "auto", **chosen, "disable_parallel_tool_use": True}
    return chosen


def read_reply(body: Object) -> Answer:
    parts: list[Words | Thought | Call] = []
    refused = body.get("stop_reason") == "refusal"
    for index, block in enumerate(objects(body.get("content"))):
        path, kind = f"content[{index}]", word(block, "type")
        if kind == "text":
            parts += [Words(word(block, "text"), refused)] if block.get("text") else []
        elif kind == "thinking":
            parts += [Thought(word(block, "thinking"))] if block.get("thinking") else []
        elif kind == "tool_use":
            parts.append(_call(block, path))
        elif kind != "redacted_thinking":
            raise lost(f"a block of the type {kind!r}", "another wire format", path)
    stop = word(body, "stop_reason") or "end_turn"
    if stop not in _FINISHES:
        raise lost(f"a reply that ends with {stop!r}", "another wire format", "stop_reason")
    answer = Answer(word(body, "id"), word(body, "model"), parts, _FINISHES[stop])
    usage = body.get("usage")
    if isinstance(usage, dict):
        cached, kept = number(usage, "cache_read_input_tokens"), number(usage, "cache_creation_input_tokens")
        # Tokens read from or written to a cache are not among `input_tokens` here; other wires count them in.
        answer.used = Used(number(usage, "input_tokens") + cached + kept, number(usage, "output_tokens"), cached, kept)
    return answer


def write_reply(answer: Answer) -> Object:
    content: list[Json] = []
    for part in answer.parts:
        if isinstance(part, Thought):
            content.append({"type": "thinking", "thinking": part.text, "signature": ""})
        elif not isinstance(part, Words) or part.text:
            content.append(_block(part))
    used = answer.used or Used(0, 0)
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": "refusal" if _refused(answer) else _STOPS[answer.finish],
        "stop_sequence": None,
        "usage": {
            "input_tokens": max(used.input - used.cached - used.kept, 0),
            "cache_creation_input_tokens": used.kept,
            "cache_read_input_tokens": used.cached,
            "output_tokens": used.output,
        },
    }


def _refused(answer: Answer) -> bool:
    return any(isinstance(part, Words) and part.refusal for part in answer.parts)
