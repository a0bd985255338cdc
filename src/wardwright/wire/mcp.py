"""MCP as JSON-RPC messages, single, in batches or as an event stream: calls, results and tool lists to `Turn`.

A client's `tools/call` is the model's call on its way out, so it stands at the reply gate; its answer is a result; a tool list is a
surface as a request declares it. JSON-RPC ids start anew with every connection, so they never become call ids: the gateway
remembers what it was asked (`Asked`) with the id that the ruling gave. A method on no list is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import orjson

from wardwright.errors import WireError
from wardwright.wire.body import (
    Json,
    Object,
    check_fields,
    dumped,
    joined,
    list_of,
    listed,
    object_of,
    read_any,
    settled,
    text_of,
    unknown,
    wrong,
)
from wardwright.wire.sse import Assembler, Event
from wardwright.wire.turn import CallItem, Item, ResultItem, TextItem, Turn

MessageId: TypeAlias = str | int

_SEALED: Final = "refused: its answer would come by another way than the call's, unseen; call without a task"

METHODS: Final[Mapping[str, str]] = {
    "completion/complete": "passed",
    "elicitation/create": "passed",
    "initialize": "read: the instructions in its answer",
    "logging/setLevel": "passed",
    "notifications/cancelled": "passed",
    "notifications/elicitation/complete": "passed",
    "notifications/initialized": "passed",
    "notifications/message": "passed",
    "notifications/progress": "passed",
    "notifications/prompts/list_changed": "passed",
    "notifications/resources/list_changed": "passed",
    "notifications/resources/updated": "passed",
    "notifications/roots/list_changed": "passed",
    "notifications/subscriptions/acknowledged": "passed",
    "notifications/tools/list_changed": "passed",
    "ping": "passed",
    "prompts/get": "read: a call and its result",
    "prompts/list": "passed",
    "resources/list": "passed",
    "resources/read": "read: a call and its result",
    "resources/subscribe": "passed",
    "resources/templates/list": "passed",
    "resources/unsubscribe": "passed",
    "roots/list": "passed",
    "sampling/createMessage": "refused: a server would ask the client's model past every rule; give the server a model of its own",
    "server/discover": "read: the instructions in its answer",
    "subscriptions/listen": "passed",
    "tasks/cancel": _SEALED,
    "tasks/get": _SEALED,
    "tasks/list": _SEALED,
    "tasks/result": _SEALED,
    "tools/call": "read: a call and its result",
    "tools/list": "read: declared tools",
}
"""Every method, and what becomes of it."""

_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_CALL_FIELDS: Final = frozenset({"name", "arguments", "_meta", "inputResponses", "requestState"})
_CALL_REFUSED: Final = {"task": "its answer would come by another way than the call's, unseen; call without a task"}
_SILENT: Final = frozenset({"_meta", "resultType", "requestState"})
_RESULT_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "prompts/get": _SILENT | {"messages"},
    "resources/read": _SILENT | {"contents"},
    "tools/call": _SILENT | {"content", "structuredContent", "isError"},
}
"""Fields of a result that are read in a form of their own, or hold nothing for the model."""
_SORTED: Final = orjson.OPT_SORT_KEYS
_INSTRUCTING: Final = frozenset({"initialize", "server/discover"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that waits for its answer, as the gateway remembers it."""

    method: str
    name: str = ""
    """Raw tool name of a `tools/call`."""
    call_id: str = ""
    """The call's id in the ledger, from the ruling."""
    arguments: str | None = None
    """What the call said; the result's turn repeats it."""


@dataclass(slots=True)
class Message:
    """One JSON-RPC message."""

    kind: Literal["request", "notification", "answer", "error"]
    id: MessageId | None
    method: str
    """Of an answer: the method it answers."""
    turn: Turn | None = None
    """What the policy must see of it; None when there is nothing to see."""
    error: Object | None = None
    """JSON-RPC's error, if that is what came."""


def parse_messages(
    body: bytes | dict[str, Any] | list[Any], asked: Mapping[MessageId, Asked] | None = None
) -> tuple[Message, ...]:
    """Every message of a body, in wire order. `asked`: the requests of the other side that may be answered here."""
    value = read_any(body)
    if not isinstance(value, list):
        return (_message(value, asked or {}, ""),)
    if not value:
        raise WireError("an empty batch")
    messages = tuple(_message(entry, asked or {}, f"[{index}]") for index, entry in enumerate(value))
    seen: set[tuple[bool, MessageId]] = set()
    for message in messages:
        if message.id is not None:
            key = (message.kind == "request", message.id)
            if key in seen:
                raise WireError(f"two messages of one batch have the id {message.id!r}")
            seen.add(key)
    return messages


class StreamAssembler(Assembler):
    """The messages of an event stream. Lives as long as one connection or one answer; `errors` answer no request."""

    __slots__ = ("_asked", "_messages", "_open")

    def __init__(self, asked: Mapping[MessageId, Asked] | None = None) -> None:
        super().__init__()
        self._asked: Mapping[MessageId, Asked] = {} if asked is None else asked
        self._messages: list[Message] = []
        self._open: set[MessageId] = set(self._asked)

    @property
    def complete(self) -> bool:
        """Everything that was asked when the stream began has been answered."""
        return not self._open and not self.errors

    def messages(self) -> tuple[Message, ...]:
        """All messages so far, in wire order."""
        return tuple(self._messages)

    def _take(self, event: Event) -> None:
        for message in parse_messages(event.data, self._asked):
            if message.kind == "error" and message.id is None:
                self.errors.append(message.error or {})
            elif message.id is not None and message.kind in ("answer", "error"):
                if message.id not in self._open:
                    raise WireError(f"the request {message.id!r} was answered twice")
                self._open.discard(message.id)
            self._messages.append(message)


def _message(value: Json, asked: Mapping[MessageId, Asked], path: str) -> Message:
    if not isinstance(value, dict):
        raise wrong(path, "an object", value)
    if not _ENVELOPE.issuperset(value):
        check_fields(value, _ENVELOPE, {}, (), path)
    if value.get("jsonrpc") != "2.0":
        raise unknown(path, "JSON-RPC version", str(value.get("jsonrpc")))
    message_id = value.get("id")
    if message_id is not None and (isinstance(message_id, bool) or not isinstance(message_id, (str, int))):
        raise wrong(f"{path}.id" if path else "id", "a string or a whole number", message_id)
    if "method" in value:
        if "result" in value or "error" in value:
            raise WireError("a message is a request or an answer, not both")
        return _asking(value, message_id, path)
    if ("result" in value) == ("error" in value):
        raise WireError("an answer has a result or an error, and not both")
    if message_id is None:
        if "result" in value:
            raise WireError("an answer without an id")
        return Message("error", None, "", None, object_of(value, "error", path))
    question = asked.get(message_id)
    if question is None:
        raise WireError(f"an answer to {message_id!r}, which was not asked here")
    return _answer(value, message_id, question, path)


def _asking(value: Object, message_id: MessageId | None, path: str) -> Message:
    method = text_of(value, "method", path)
    known = METHODS.get(method)
    if known is None:
        raise unknown(f"{path}.method" if path else "method", "method", method)
    if known.startswith("refused"):
        raise WireError(f"{method!r} is {known}")
    kind: Literal["notification", "request"] = "notification" if message_id is None else "request"
    if (kind == "notification") != method.startswith("notifications/"):
        raise WireError(f"{method!r} is {'no notification' if message_id is None else 'a notification and has no id'}")
    params = object_of(value, "params", path)
    where = f"{path}.params" if path else "params"
    turn: Turn | None = None
    if method == "tools/call":
        check_fields(params, _CALL_FIELDS, _CALL_REFUSED, (), where)
        name = params.get("name")
        if not isinstance(name, str):
            raise wrong(f"{where}.name", "a string", name)
        turn = _called(name, params.get("arguments"), where)
    elif method == "resources/read":
        turn = _called(method, {"uri": text_of(params, "uri", where)}, where)
    elif method == "prompts/get":
        arguments = params.get("arguments")
        turn = _called(method, {"name": text_of(params, "name", where), "arguments": arguments}, where)
    return Message(kind, message_id, method, turn)


def _called(name: str, arguments: Json, path: str) -> Turn:
    text = dumped({} if arguments is None else arguments, f"{path}.arguments")
    items: list[Item] = [CallItem("", name, text)]
    return Turn("reply", "mcp", "", items)


def _answer(value: Object, message_id: MessageId, asked: Asked, path: str) -> Message:
    method = asked.method
    called = METHODS.get(method, "").startswith("read: a call")
    if "error" in value:
        error = object_of(value, "error", path)
        where = f"{path}.error" if path else "error"
        texts = [text_of(error, "message", where)]
        if error.get("data") is not None:  # clients show it to the model beside the message
            texts.append(dumped(error["data"], f"{where}.data"))
        return Message("error", message_id, method, _result(asked, texts, True) if called else None, error)
    where = f"{path}.result" if path else "result"
    result = object_of(value, "result", path)
    turn = None
    if method == "tools/list":
        given = list_of(result, "tools", where)
        tools = [listed(tool, "inputSchema", None, f"{where}.tools[{index}]") for index, tool in enumerate(given)]
        turn = settled(Turn("request", "mcp", "", (), tools))
    elif method in _INSTRUCTING:
        instructions = text_of(result, "instructions", where)
        if instructions:
            turn = Turn("request", "mcp", "", [TextItem("system", instructions)])
    elif called:
        flag = result.get("isError") is True if method == "tools/call" else None
        turn = _result(asked, _texts(result, method, where), flag)
    return Message("answer", message_id, method, turn)


def _result(asked: Asked, texts: list[str], failed: bool | None) -> Turn:
    name = asked.name or asked.method
    items: list[Item] = [] if asked.arguments is None else [CallItem(asked.call_id, name, asked.arguments)]
    content, parts = joined(texts)
    items.append(ResultItem(asked.call_id, content, failed, name, parts))
    return Turn("result", "mcp", "", items)


def _texts(result: Object, method: str, path: str) -> list[str]:
    # Older and newer clients look for the result in different places, so whatever is not known to be silent is read: what the
    # server asks back (`inputRequests`), and words in fields that nobody here knows.
    told = _RESULT_FIELDS[method]
    further = [(name, value) for name, value in result.items() if name not in told]
    texts = [dumped(value, f"{path}.{name}") for name, value in further if isinstance(value, (str, list, dict))]
    if method == "resources/read":
        return texts + _contents(list_of(result, "contents", path), f"{path}.contents", True)
    if method == "prompts/get":
        for index, message in enumerate(list_of(result, "messages", path)):
            if not isinstance(message, dict):
                raise wrong(f"{path}.messages[{index}]", "an object", message)
            content = message.get("content")
            several: list[Json] = content if isinstance(content, list) else [content]
            texts += _contents(several, f"{path}.messages[{index}].content", False)
        return texts
    texts += _contents(list_of(result, "content", path), f"{path}.content", False)
    structured = result.get("structuredContent")
    # The structured form usually repeats the text. Where it says something else, both are read: clients show either.
    if structured is not None and not any(_same(text, structured) for text in texts):
        texts.append(dumped(structured, f"{path}.structuredContent"))
    return texts


def _contents(blocks: list[Json], path: str, resources: bool) -> list[str]:
    texts: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        if not isinstance(block, dict):
            raise wrong(where, "an object", block)
        kind = "text" if resources else block.get("type")
        if kind == "text":
            texts.append(text_of(block, "text", where))
        elif kind == "resource":
            texts.append(text_of(object_of(block, "resource", where), "text", f"{where}.resource"))
        elif kind == "resource_link":
            texts += [text_of(block, name, where) for name in ("uri", "name", "title", "description")]
        elif kind != "image" and kind != "audio":
            raise unknown(f"{where}.type", "content", str(kind))
    return [text for text in texts if text]


def _same(text: str, value: Json) -> bool:
    """Written alike: in Python `1` and `true` are equal, in JSON they are not."""
    try:
        return orjson.dumps(orjson.loads(text), option=_SORTED) == orjson.dumps(value, option=_SORTED)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return False
