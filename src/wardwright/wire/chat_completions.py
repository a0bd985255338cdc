"""OpenAI Chat Completions, with the legacy functions: JSON and event streams to `Turn`.

Every field of a request is on one of three lists: read here, passed on because it can carry neither a tool nor words for the
model, or refused with a reason. A field on no list is refused. What a provider adds beside a message of its reply is not judged:
nobody acts on it. This module believes nothing and forwards nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import length_hint
from typing import Any, Final

from wardwright.errors import WireError
from wardwright.wire.body import (
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
    mode_of,
    named,
    object_of,
    read,
    schema_of,
    settled,
    text_of,
    unknown,
    usage_of,
    wrong,
)
from wardwright.wire.sse import DONE, Event, ReplyAssembler
from wardwright.wire.turn import (
    NOBODY,
    CallItem,
    DeclaredTool,
    Item,
    ResultItem,
    Role,
    TextItem,
    ToolChoice,
    Turn,
    again,
)

READ: Final = frozenset(
    {
        "function_call",
        "functions",
        "messages",
        "metadata",
        "model",
        "prediction",
        "response_format",
        "stream",
        "tool_choice",
        "tools",
        "web_search_options",
    }
)

PASSED: Final = frozenset(
    {
        "audio",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "modalities",
        "moderation",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "repetition_penalty",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream_options",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    }
)

REFUSED: Final[Mapping[str, str]] = {
    "data_sources": "the provider would fetch documents that nobody here sees; offer a retrieval tool instead",
    "extra_body": "it is a client library's word for further fields; send the fields themselves",
    "models": "the provider would choose among models; routes are chosen here",
    "plugins": "the provider would run tools that nobody here sees; declare them as tools",
    "prompt": "a stored prompt stays with the provider, unseen; send its text as messages",
    "provider": "the provider would choose the route; routes are chosen here",
    "route": "the provider would choose the route; routes are chosen here",
    "transforms": "the provider would change the transcript after it was judged; send the transcript as it is meant",
}

MAX_NAME: Final = 4_096
"""Characters of a tool name in a stream. It grows piece by piece, so it must not grow for ever."""

_REQUEST_FIELDS: Final = READ | PASSED
# A request with no further field needs no look at the rare ones.
_COMMON_FIELDS: Final = _REQUEST_FIELDS - {
    "function_call",
    "functions",
    "metadata",
    "prediction",
    "response_format",
    "web_search_options",
}
_PLAIN_FIELDS: Final = frozenset({"role", "content", "name"})
_TOOL_FIELDS: Final = frozenset({"role", "content", "name", "tool_call_id"})
_ASSISTANT_FIELDS: Final = frozenset(
    {
        "annotations",
        "audio",
        "content",
        "function_call",
        "name",
        "parsed",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "role",
        "tool_calls",
    }
)
_BARE_FIELDS: Final = frozenset({"role", "content", "tool_calls"})
_SAYING: Final = _ASSISTANT_FIELDS | {"message", "messages", "delta", "text"}
"""Where clients may look for the answer in a choice."""
_BESIDE_MESSAGE: Final = _SAYING - {"message"}
_BESIDE_DELTA: Final = _SAYING - {"delta"}
_HEAD_FIELDS: Final = ("id", "created", "model", "service_tier", "system_fingerprint")
_CALL_FIELDS: Final = frozenset({"id", "type", "function", "custom", "index"})
_CHOICE_FIELDS: Final = frozenset({"type", "function", "custom", "allowed_tools"})
_DECLARATION_FIELDS: Final = frozenset({"type", "function", "custom", "cache_control"})
_DEFINITION_FIELDS: Final = frozenset({"name", "description", "parameters", "strict", "format"})

# Part type -> (its fields, the one that holds text). None: nothing a rule could read (pictures, sound, files).
_PARTS: Final[Mapping[str, tuple[frozenset[str], str | None]]] = {
    "text": (frozenset({"type", "text", "cache_control", "prompt_cache_breakpoint"}), "text"),
    "refusal": (frozenset({"type", "refusal"}), "refusal"),
    "image_url": (frozenset({"type", "image_url", "cache_control", "prompt_cache_breakpoint"}), None),
    "input_audio": (frozenset({"type", "input_audio", "cache_control", "prompt_cache_breakpoint"}), None),
    "file": (frozenset({"type", "file", "cache_control", "prompt_cache_breakpoint"}), None),
}

_REPLY: Final = Turn("reply", "chat_completions", "", caller=NOBODY)
_SPEAKERS: Final[Mapping[str, Role]] = {
    "user": "user",
    "system": "system",
    "developer": "developer",
    "assistant": "assistant",
}


def parse_request(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a request body. `passing`: names of further fields the operator lets through, wherever they stand."""
    fields: Object = body if isinstance(body, dict) else read(body)
    items: list[Item] = []
    common = _COMMON_FIELDS.issuperset(fields)
    if not common:
        if not _REQUEST_FIELDS.issuperset(fields):
            check_fields(fields, _REQUEST_FIELDS, REFUSED, passing, "")
        if "prediction" in fields:
            _predict(object_of(fields, "prediction", ""), items)
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise wrong("messages", "a list", messages)
    add_messages(messages, items, passing)
    tools: Sequence[DeclaredTool] = _KNOWN.read(fields.get("tools"), passing)
    if not common:
        tools = [*tools, *further] if (further := _further_tools(fields, passing)) else tools
    # Most requests force no tool and name their model.
    choice = None if common and "tool_choice" not in fields else _tool_choice(fields, tools, passing)
    model = fields.get("model")
    if not isinstance(model, str):
        model = text_of(fields, "model", "")
    turn = Turn("request", "chat_completions", model, items, tools, choice, NOBODY)
    if "stream" in fields and fields["stream"] is True:
        turn.stream = True
    if common:
        return turn
    turn.claims = claims_of(fields)
    turn.response_format = _response_format(fields)
    return settled(turn)


def parse_reply(body: bytes | dict[str, Any], *, passing: Collection[str] = ()) -> Turn:
    """The turn of a reply body: all choices, in the order of their index. Reasoning is not part of the answer."""
    fields: Object = body if isinstance(body, dict) else read(body)
    choices = fields.get("choices")
    if not isinstance(choices, list):
        raise wrong("choices", "a list", choices)
    items: list[Item] = []
    for position, choice in enumerate(choices) if len(choices) == 1 else _ordered(choices):
        if not isinstance(choice, dict):
            raise wrong(f"choices[{position}]", "an object", choice)
        if not _BESIDE_MESSAGE.isdisjoint(choice):
            _alone(choice, "message", f"choices[{position}]", passing)
        message = choice.get("message")
        if not isinstance(message, dict):
            message = object_of(choice, "message", f"choices[{position}]")
        _assistant(message, items, "choices[%d].message", position, passing, False)
    model = fields.get("model")
    if not isinstance(model, str):
        model = text_of(fields, "model", "")
    usage = usage_of(fields, "prompt_tokens", "completion_tokens")
    turn = again(_REPLY, items)
    turn.model = model
    turn.usage = usage
    return turn


def _ordered(choices: list[Json]) -> list[tuple[int, Object]]:
    """The choices with their positions; those of one index in the order they stand in."""
    ordered: list[tuple[int, int, Object]] = []
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise wrong(f"choices[{position}]", "an object", choice)
        index = choice.get("index")
        ordered.append((index if isinstance(index, int) else position, position, choice))
    ordered.sort(key=lambda entry: entry[:2])
    return [entry[1:] for entry in ordered]


def _alone(choice: Object, place: str, path: str, passing: Collection[str]) -> None:
    """A choice says what the model said in one place; some clients would look in another."""
    for name, value in choice.items():
        if value and name != place and name in _SAYING and name not in passing:
            raise WireError(f"the answer stands in {place!r}, so {name!r} may not stand beside it - at `$.{path}`")


class StreamAssembler(ReplyAssembler):
    """Puts a streamed reply together again: `body` and `turn` are those of the same reply sent whole. Lives one reply."""

    __slots__ = ("_choices", "_done", "_head", "_passing", "_untold", "_usage")

    def __init__(self, *, passing: Collection[str] = ()) -> None:
        super().__init__()
        self._passing = passing
        self._choices: dict[int, _Choice] = {}
        self._head: Object = {}
        self._untold: tuple[str, ...] = _HEAD_FIELDS
        """Of the head's fields, those that no chunk had so far."""
        self._usage: Json = None
        self._done = False

    @property
    def complete(self) -> bool:
        """The stream said that it ended, and every choice that it ended well or badly; and no error came."""
        finished = all(choice.finish is not None for choice in self._choices.values())
        return self._done and bool(self._choices) and finished and not self.errors

    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece, as far as it came."""
        choices: list[Json] = [
            {"index": index, "message": choice.message(), "finish_reason": choice.finish}
            for index, choice in sorted(self._choices.items())
        ]
        body: Object = {**self._head, "object": "chat.completion", "choices": choices}
        if self._usage is not None:
            body["usage"] = self._usage
        return body

    def turn(self) -> Turn:
        return parse_reply(self.body(), passing=self._passing)

    def _take(self, event: Event) -> None:
        if self._done:
            raise WireError("the stream went on after its end")
        data = event.data
        if data.strip() == DONE:
            self._done = True
            return
        chunk = read(data)
        if chunk.get("error") is not None:
            self._failed(chunk["error"], {"message": chunk["error"]})
            return
        for key in self._untold:
            if chunk.get(key) is not None:
                self._head[key] = chunk[key]
                self._untold = tuple(one for one in self._untold if one != key)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            choices = list_of(chunk, "choices", "")
        for position, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise wrong(f"choices[{position}]", "an object", choice)
            if not _BESIDE_DELTA.isdisjoint(choice):
                _alone(choice, "delta", f"choices[{position}]", self._passing)
            index = choice.get("index", position)
            if not isinstance(index, int):
                raise wrong(f"choices[{position}].index", "a number", index)
            into = self._choices.get(index)
            if into is None:
                into = self._choices[index] = _Choice()
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                delta = object_of(choice, "delta", f"choices[{position}]")
            if not into.goes_on(delta):
                into.add(delta, f"choices[{position}].delta", self._passing)
            if choice.get("finish_reason") is not None:
                into.finish = text_of(choice, "finish_reason", f"choices[{position}]")
        if self.heard is not None:
            self.heard.append((event, chunk))


class _Call:
    """One tool call, as it grows."""

    __slots__ = ("arguments", "custom", "id", "name", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = ""
        self.name = ""
        self.custom = False
        self.arguments: list[str] = []

    def add(self, definition: Object, path: str, repeats: bool) -> None:
        name = text_of(definition, "name", path)
        # Some providers send the name in pieces, others repeat id and name with every piece. A name that comes again without
        # the id may be either, and clients differ: read one way it is one tool, read the other way another.
        if name and name == self.name and not repeats:
            raise WireError(
                f"the tool name {name!r} comes again without the call's id: repeated, or one more piece? - at `$.{path}.name`"
            )
        if name and name != self.name:
            self.name += name
            if len(self.name) > MAX_NAME:
                raise WireError(f"a tool name has more than {MAX_NAME} characters - at `$.{path}.name`")
        self.arguments.append(text_of(definition, "input" if self.custom else "arguments", path))

    def definition(self) -> Object:
        return {"name": self.name, "input" if self.custom else "arguments": "".join(self.arguments)}


class _Choice:
    """One choice, as it grows."""

    __slots__ = ("_audio", "_calls", "_last", "_numbered", "_others", "_text", "finish", "legacy")

    def __init__(self) -> None:
        self.finish: str | None = None
        self.legacy: _Call | None = None
        self._text: dict[str, list[str]] = {}
        self._others: Object = {}
        self._audio: dict[str, list[Json]] = {}
        self._calls: list[_Call] = []
        self._numbered: dict[int, _Call] = {}
        self._last: _Call | None = None

    def goes_on(self, delta: Mapping[str, Any]) -> bool:
        """Adds one more piece of the text, or of the arguments of a call, that began before. False: it is none, or shaped otherwise."""
        try:
            if "content" in delta:
                content = delta["content"]
                if isinstance(content, str) and (len(delta) == 1 or (len(delta) == 2 and "role" in delta)):
                    self._text["content"].append(content)
                    return True
            elif len(delta) == 1:
                (piece,) = delta["tool_calls"]
                function = piece["function"]
                index = piece["index"]
                arguments = function["arguments"]
                if len(piece) == 2 and len(function) == 1 and isinstance(index, int) and isinstance(arguments, str):
                    call = self._numbered[index]
                    if not call.custom:
                        call.arguments.append(arguments)
                        self._last = call
                        return True
        except (KeyError, TypeError, ValueError):
            pass
        return False

    def add(self, delta: Object, path: str, passing: Collection[str]) -> None:
        for name, value in delta.items():
            if value is None or name == "role":
                continue
            if name == "tool_calls":
                for position, piece in enumerate(list_of(delta, name, path)):
                    self._call(piece, f"{path}.tool_calls[{position}]", passing)
            elif name == "function_call":
                if self.legacy is None:
                    self.legacy = _Call(0)
                self.legacy.add(object_of(delta, name, path), f"{path}.function_call", False)
            elif name == "content" and isinstance(value, list):
                self._text.setdefault(name, []).extend(_texts(value, f"{path}.content", passing))
            elif name in {"content", "refusal", "reasoning", "reasoning_content"}:
                self._text.setdefault(name, []).append(text_of(delta, name, path))
            elif name == "audio":
                for key, piece in object_of(delta, name, path).items():
                    if key == "transcript" or key == "data":
                        text = text_of(object_of(delta, name, path), key, f"{path}.audio")
                        self._audio.setdefault(key, []).append(text)
                    else:
                        self._audio[key] = [piece]
            elif name in _ASSISTANT_FIELDS or name in passing:
                self._others[name] = value
            else:
                raise unknown(path, "field", name)

    def message(self) -> Object:
        message: Object = {"role": "assistant", "content": None, **self._others}
        for name, pieces in self._text.items():
            message[name] = "".join(pieces)
        if self._audio:
            message["audio"] = {
                key: "".join(str(piece) for piece in pieces) if key in {"transcript", "data"} else pieces[0]
                for key, pieces in self._audio.items()
            }
        if self.legacy is not None:
            message["function_call"] = self.legacy.definition()
        if self._calls:
            # Pieces of several calls may come in any order; the index says the order that was meant.
            calls = sorted(self._calls, key=lambda call: call.number)
            message["tool_calls"] = [
                {"id": call.id, "type": "custom", "custom": call.definition()}
                if call.custom
                else {"id": call.id, "type": "function", "function": call.definition()}
                for call in calls
            ]
        return message

    def _call(self, piece: Json, path: str, passing: Collection[str]) -> None:
        if not isinstance(piece, dict):
            raise wrong(path, "an object", piece)
        if not _CALL_FIELDS.issuperset(piece):
            check_fields(piece, _CALL_FIELDS, {}, passing, path)
        index = piece.get("index")
        if index is not None and not isinstance(index, int):
            raise wrong(f"{path}.index", "a number", index)
        call_id = text_of(piece, "id", path)
        call = self._last if index is None else self._numbered.get(index)
        # Some providers leave the index out, or number every call 0: another id is another call.
        if call is None or (call_id and call.id and call_id != call.id):
            call = _Call(len(self._calls) if index is None else index)
            self._calls.append(call)
            if index is not None:
                self._numbered[index] = call
        self._last = call
        if call_id:
            call.id = call_id
        if piece.get("type") == "custom" or "custom" in piece:
            call.custom = True
        for name in ("function", "custom"):
            if piece.get(name) is not None:
                call.add(object_of(piece, name, path), f"{path}.{name}", bool(call_id))


def add_messages(messages: list[Any], items: list[Item], passing: Collection[str] = ()) -> None:
    """Adds the items of a request's messages. Each says the same whatever stands before it.

    An agent sends its whole transcript with every request, so the usual shapes are read here, in few steps: when every key was
    found and counted, no other can stand beside them. What is shaped otherwise, or is no message, raises or falls through.
    """
    left = iter(messages)
    for message in left:
        try:
            role = message["role"]
            content = message["content"]
            if len(message) == 3:
                if role == "tool":
                    call_id = message["tool_call_id"]
                    if isinstance(content, str) and isinstance(call_id, str):
                        # Filled by hand, here and below: a transcript has many, and a class that is called takes twice as long.
                        result = ResultItem.__new__(ResultItem)
                        result.call_id = call_id
                        result.content = content
                        result.is_error = None
                        result.name = ""
                        result.parts = ()
                        items.append(result)
                        continue
                elif role == "assistant" and (content is None or isinstance(content, str)):
                    calls: list[Any] = message["tool_calls"]
                    if isinstance(calls, list) and len(calls) == 1:
                        call = calls[0]
                        function = call["function"]
                        call_id = call["id"]
                        name = function["name"]
                        arguments = function["arguments"]
                        if (
                            len(call) == 3
                            and "type" in call
                            and isinstance(call_id, str)
                            and isinstance(name, str)
                            and isinstance(arguments, str)
                        ):
                            if content:
                                text = TextItem.__new__(TextItem)
                                text.role = "assistant"
                                text.text = content
                                text.parts = ()
                                items.append(text)
                            made = CallItem.__new__(CallItem)
                            made.id = call_id
                            made.name = name
                            made.arguments = arguments
                            items.append(made)
                            continue
            elif len(message) == 2 and isinstance(content, str):
                speaker = _SPEAKERS[role]
                if content:
                    items.append(TextItem(speaker, content))
                continue
        except (KeyError, TypeError):
            pass
        _message(message, items, len(messages) - 1 - length_hint(left), passing)


def _message(message: Json, items: list[Item], index: int, passing: Collection[str]) -> None:
    """A message of a request, of any shape."""
    if not isinstance(message, dict):
        raise wrong(f"messages[{index}]", "an object", message)
    role = message.get("role")
    if role == "assistant":
        _assistant(message, items, "messages[%d]", index, passing, True)
        return
    if role == "tool":
        if not _TOOL_FIELDS.issuperset(message):
            check_fields(message, _TOOL_FIELDS, {}, passing, f"messages[{index}]")
        call_id = text_of(message, "tool_call_id", f"messages[{index}]")
        content, parts = joined(_texts(message.get("content"), f"messages[{index}].content", passing))
        name = text_of(message, "name", f"messages[{index}]")
        items.append(ResultItem(call_id, content, None, name, parts))
        return
    if not _PLAIN_FIELDS.issuperset(message):
        check_fields(message, _PLAIN_FIELDS, {}, passing, f"messages[{index}]")
    content, parts = joined(_texts(message.get("content"), f"messages[{index}].content", passing))
    speaker = _SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is not None:
        if content:
            items.append(TextItem(speaker, content, parts))
    elif role == "function":
        items.append(ResultItem("", content, None, text_of(message, "name", f"messages[{index}]"), parts))
    elif isinstance(role, str):
        raise unknown(f"messages[{index}].role", "role", role)
    else:
        raise wrong(f"messages[{index}].role", "a string", role)


def _assistant(
    message: Object, items: list[Item], where: str, position: int, passing: Collection[str], reasoning: bool
) -> None:
    """`where % position` is the path; it is put together only for a complaint."""
    content = message.get("content")
    alone = _BARE_FIELDS.issuperset(message)
    if not alone:
        if not _ASSISTANT_FIELDS.issuperset(message):
            check_fields(message, _ASSISTANT_FIELDS, {}, passing, where % position)
        if reasoning and ("reasoning_content" in message or "reasoning" in message or "reasoning_details" in message):
            thought = _reasoning(message, where % position)
            if thought:
                items.append(TextItem("assistant", *joined(thought)))
        # Most that say more say it in vain.
        alone = message.get("refusal") is None and message.get("audio") is None and "function_call" not in message
    if alone and isinstance(content, str):
        if content:
            said = TextItem.__new__(TextItem)
            said.role = "assistant"
            said.text = content
            said.parts = ()
            items.append(said)
    elif not alone or content is not None:
        texts = _texts(content, f"{where % position}.content", passing)
        if not alone:
            texts.append(text_of(message, "refusal", where % position))
            # The spoken answer, in words.
            texts.append(
                text_of(object_of(message, "audio", where % position), "transcript", f"{where % position}.audio")
            )
        text, parts = joined([text for text in texts if text])
        if text:
            items.append(TextItem("assistant", text, parts))
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise wrong(f"{where % position}.tool_calls", "a list", calls)
        _calls(calls, items, where, position, passing)
    if alone:
        return
    legacy = message.get("function_call")
    if legacy is not None:
        path = f"{where % position}.function_call"
        if not isinstance(legacy, dict):
            raise wrong(path, "an object", legacy)
        items.append(_called("", legacy, "arguments", path))


def _calls(calls: list[Any], items: list[Item], where: str, position: int, passing: Collection[str]) -> None:
    left = iter(calls)
    for call in left:
        try:
            function = call["function"]
            call_id = call["id"]
            name = function["name"]
            arguments = function["arguments"]
            if (
                len(call) == 3
                and "type" in call
                and isinstance(call_id, str)
                and isinstance(name, str)
                and isinstance(arguments, str)
            ):
                made = CallItem.__new__(CallItem)
                made.id = call_id
                made.name = name
                made.arguments = arguments
                items.append(made)
                continue
        except (KeyError, TypeError):
            pass
        path = f"{where % position}.tool_calls[{len(calls) - 1 - length_hint(left)}]"
        items.append(_odd_call(call, path, passing))


def _odd_call(call: Json, path: str, passing: Collection[str]) -> CallItem:
    """A call that is not the plain function call with everything in its place and nothing beside it."""
    if not isinstance(call, dict):
        raise wrong(path, "an object", call)
    if not _CALL_FIELDS.issuperset(call):
        check_fields(call, _CALL_FIELDS, {}, passing, path)
    function = call.get("function")
    call_id = call.get("id")
    if isinstance(function, dict) and isinstance(call_id, str) and call.get("custom") is None:
        name = function.get("name")
        arguments = function.get("arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            return CallItem(call_id, name, arguments)
    call_id = text_of(call, "id", path)
    kind = call.get("type", "custom" if "custom" in call else "function")
    if kind == "custom" and call.get("function") is None:
        return _called(call_id, object_of(call, "custom", path), "input", f"{path}.custom")
    if kind in ("function", None) and call.get("custom") is None:
        return _called(call_id, object_of(call, "function", path), "arguments", f"{path}.function")
    raise unknown(f"{path}.type", "kind of tool call", str(kind))


def _called(call_id: str, definition: Object, key: str, path: str) -> CallItem:
    name = named(definition, path)
    arguments = definition.get(key)
    if arguments is None:
        arguments = ""
    # Some servers write the arguments as an object; the text they stand for is the same.
    if not isinstance(arguments, str):
        arguments = dumped(arguments, f"{path}.{key}")
    return CallItem(call_id, name, arguments)


def _reasoning(message: Object, path: str) -> list[str]:
    texts = [text_of(message, name, path) for name in ("reasoning_content", "reasoning")]
    for index, detail in enumerate(list_of(message, "reasoning_details", path)):
        if not isinstance(detail, dict):
            raise wrong(f"{path}.reasoning_details[{index}]", "an object", detail)
        texts += [text_of(detail, name, f"{path}.reasoning_details[{index}]") for name in ("text", "summary")]
    return list(dict.fromkeys(text for text in texts if text))


def _predict(prediction: Object, items: list[Item]) -> None:
    # Predicted output is the caller's text on its way to the provider, so rules read it. It stands first: at the end it would
    # look like an answer of the user.
    text, parts = joined(_texts(prediction.get("content"), "prediction.content", ()))
    if text:
        items.append(TextItem("developer", text, parts))


def _texts(content: Json, path: str, passing: Collection[str]) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise wrong(path, "a string or a list of parts", content)
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            if part:
                texts.append(part)
            continue
        if not isinstance(part, dict):
            raise wrong(f"{path}[{index}]", "an object", part)
        kind = part.get("type")
        if not isinstance(kind, str):
            raise wrong(f"{path}[{index}].type", "a string", kind)
        entry = _PARTS.get(kind)
        if entry is None:
            raise unknown(f"{path}[{index}].type", "content part", kind)
        fields, key = entry
        if not fields.issuperset(part):
            check_fields(part, fields, {}, passing, f"{path}[{index}]")
        if key is not None:
            text = part.get(key)
            if text is not None and not isinstance(text, str):
                raise wrong(f"{path}[{index}].{key}", "a string", text)
            if text:
                texts.append(text)
    return texts


_SHAPE: Final = '{"type": "function", "function": {"name": …, "parameters": {…}}}'


def _tools(declared: list[Json], passing: Collection[str]) -> list[DeclaredTool]:
    tools: list[DeclaredTool] = []
    for index, tool in enumerate(declared):
        if not isinstance(tool, dict):
            raise wrong(f"tools[{index}]", "an object", tool)
        if not _DECLARATION_FIELDS.issuperset(tool):
            check_fields(tool, _DECLARATION_FIELDS, {}, passing, f"tools[{index}]", _SHAPE)
        kind = tool.get("type", "function")
        if not isinstance(kind, str) or kind not in ("function", "custom"):
            raise unknown(f"tools[{index}].type", "kind of tool", str(kind))
        if tool.get("custom" if kind == "function" else "function") is not None:
            raise WireError(f"a tool is a function or custom, not both - at `$.tools[{index}]`")
        tools.append(_definition(tool.get(kind), f"tools[{index}].{kind}", passing))
    return tools


_KNOWN: Final = KnownTools(_tools)


def _further_tools(fields: Object, passing: Collection[str]) -> list[DeclaredTool]:
    """Those declared beside `tools`."""
    tools: list[DeclaredTool] = []
    if "functions" in fields:
        for index, function in enumerate(list_of(fields, "functions", "")):
            tools.append(_definition(function, f"functions[{index}]", passing))
    options = fields.get("web_search_options")
    if options is not None:
        if not isinstance(options, dict):
            raise wrong("web_search_options", "an object", options)
        tools.append(DeclaredTool("web_search", hosted="web_search", controls=options))
    return tools


def _definition(definition: Json, path: str, passing: Collection[str]) -> DeclaredTool:
    return defined(definition, "parameters", _DEFINITION_FIELDS, passing, path, shape=_SHAPE)


def _tool_choice(fields: Object, tools: Sequence[DeclaredTool], passing: Collection[str]) -> ToolChoice | None:
    choice = fields.get("tool_choice")
    legacy = fields.get("function_call")
    if legacy is None:
        return None if choice is None else _choice(choice, "tool_choice", tools, passing)
    if choice is not None and (choice != legacy or isinstance(legacy, dict)):
        raise WireError("'tool_choice' and 'function_call' both choose; send one of them")
    if isinstance(legacy, dict):
        check_fields(legacy, {"name"}, {}, passing, "function_call")
        return ToolChoice("tool", (named(legacy, "function_call"),))
    return _choice(legacy, "function_call", tools, passing)


def _choice(choice: Json, path: str, tools: Sequence[DeclaredTool], passing: Collection[str]) -> ToolChoice:
    if isinstance(choice, str):
        return forcing(ToolChoice(mode_of(choice, path)), tools)
    if not isinstance(choice, dict):
        raise wrong(path, "a string or an object", choice)
    if not _CHOICE_FIELDS.issuperset(choice):
        check_fields(choice, _CHOICE_FIELDS, {}, passing, path)
    if len(choice) > 2 and sum(choice.get(name) is not None for name in _CHOICE_FIELDS) > 2:
        raise WireError(f"a tool choice names one thing - at `$.{path}`")
    if choice.get("type") == "allowed_tools":
        allowed = object_of(choice, "allowed_tools", path)
        return forcing(allowed_choice(allowed, f"{path}.allowed_tools", _chosen), tools)
    return ToolChoice("tool", (_chosen(choice, path),))


def _chosen(choice: Object, path: str) -> str:
    kind = text_of(choice, "type", path)
    if kind == "function" or kind == "custom":
        return named(object_of(choice, kind, path), f"{path}.{kind}")
    raise unknown(f"{path}.type", "tool choice", kind)


def _response_format(fields: Object) -> Mapping[str, Any] | None:
    if fields.get("response_format") is None:
        return None
    form = object_of(fields, "response_format", "")
    if form.get("type") == "json_schema":
        return object_of(object_of(form, "json_schema", "response_format"), "schema", "response_format.json_schema")
    return schema_of(form, "response_format")
