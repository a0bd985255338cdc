"""Claims about MCP messages: calls, results and tool lists as turns, and what is refused (G4)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.wire import CallItem, DeclaredTool, Item, ResultItem, TextItem, mcp
from wardwright.wire.mcp import Asked, Message, StreamAssembler, parse_messages


def asking(method: str, params: dict[str, Any] | None = None, number: int | str | None = 1) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if number is not None:
        message["id"] = number
    if params is not None:
        message["params"] = params
    return message


def answering(result: dict[str, Any], number: int | str = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def one(body: Any, asked: dict[int | str, Asked] | None = None) -> Message:
    (message,) = parse_messages(body, asked)
    return message


def items(message: Message) -> list[Item]:
    assert message.turn is not None
    return list(message.turn.items)


def refusal(body: Any, asked: dict[int | str, Asked] | None = None) -> str:
    with pytest.raises(WireError) as caught:
        parse_messages(body, asked)
    return str(caught.value)


CALLED: dict[int | str, Asked] = {1: Asked("tools/call", "f", "call_1")}


def test_a_call_stands_at_the_reply_gate() -> None:
    """tools/call is the model's call on its way out; its id is left to the ruling."""
    message = one(orjson.dumps(asking("tools/call", {"name": "f", "arguments": {"x": 1}})))
    assert (message.kind, message.id, message.method) == ("request", 1, "tools/call")
    assert message.turn is not None
    assert message.turn.gate == "reply"
    assert items(message) == [CallItem("", "f", '{"x":1}')]


def test_no_arguments_are_an_empty_object() -> None:
    """A call without arguments has none, not an unknown text."""
    assert items(one(asking("tools/call", {"name": "f"}))) == [CallItem("", "f", "{}")]


def test_its_answer_is_a_result() -> None:
    """The answer is found by the request it answers, with the call's id and error flag."""
    message = one(answering({"content": [{"type": "text", "text": "t"}], "isError": True}), CALLED)
    assert message.turn is not None
    assert message.turn.gate == "result"
    assert items(message) == [ResultItem("call_1", "t", True, "f")]


def test_a_result_repeats_the_call_it_answers() -> None:
    """Where the gateway remembers what the call said, the result's turn has it too."""
    asked: dict[int | str, Asked] = {1: Asked("tools/call", "f", "call_1", "{}")}
    assert items(one(answering({"content": []}), asked)) == [
        CallItem("call_1", "f", "{}"),
        ResultItem("call_1", "", False, "f"),
    ]


def test_an_error_answer_is_a_failed_result() -> None:
    """A JSON-RPC error to a call is its result, and failed."""
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "unknown tool"}}
    assert items(one(error, CALLED)) == [ResultItem("call_1", "unknown tool", True, "f")]


def test_all_words_of_a_result_are_read() -> None:
    """Text, embedded resources and links are words; pictures and sound are not."""
    content = [
        {"type": "text", "text": "a"},
        {"type": "resource", "resource": {"uri": "u", "text": "b"}},
        {"type": "resource_link", "uri": "c", "name": "d"},
        {"type": "image", "data": "x", "mimeType": "image/png"},
        {"type": "audio", "data": "x", "mimeType": "audio/wav"},
    ]
    assert items(one(answering({"content": content}), CALLED)) == [ResultItem("call_1", "a\nb\nc\nd", False, "f")]


def test_structured_content_is_read_once() -> None:
    """Structured content that repeats the text adds nothing; other content is read too."""
    text = [{"type": "text", "text": '{"x": 1}'}]
    same = one(answering({"content": text, "structuredContent": {"x": 1}}), CALLED)
    assert items(same) == [ResultItem("call_1", '{"x": 1}', False, "f")]
    other = one(answering({"content": text, "structuredContent": {"x": 2}}), CALLED)
    assert items(other) == [ResultItem("call_1", '{"x": 1}\n{"x":2}', False, "f")]


def test_a_question_back_is_what_came_out_so_far() -> None:
    """A result that asks for input shows what the server asks."""
    result = {"resultType": "input_required", "inputRequests": {"q": {"message": "password?"}}}
    assert items(one(answering(result), CALLED)) == [ResultItem("call_1", '{"q":{"message":"password?"}}', False, "f")]


def test_a_tool_list_is_a_surface() -> None:
    """The answer to tools/list declares tools, as a request does."""
    tool = {"name": "f", "description": "d", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    message = one(answering({"tools": [tool], "nextCursor": "2"}), {1: Asked("tools/list")})
    assert message.turn is not None
    assert message.turn.gate == "request"
    further = {"annotations": {"readOnlyHint": True}}
    assert list(message.turn.tools) == [DeclaredTool("f", "d", {"type": "object"}, further=further)]


def test_reading_a_resource_is_a_call() -> None:
    """Resources and prompts bring words of strangers, so they are calls and results like a tool's."""
    assert items(one(asking("resources/read", {"uri": "file:///x"}))) == [
        CallItem("", "resources/read", '{"uri":"file:///x"}')
    ]
    read = one(answering({"contents": [{"uri": "u", "text": "t"}]}), {1: Asked("resources/read", "", "c")})
    assert items(read) == [ResultItem("c", "t", None, "resources/read")]
    assert items(one(asking("prompts/get", {"name": "p", "arguments": {"a": "b"}}))) == [
        CallItem("", "prompts/get", '{"name":"p","arguments":{"a":"b"}}')
    ]
    got = {"messages": [{"role": "user", "content": {"type": "text", "text": "t"}}]}
    assert items(one(answering(got), {1: Asked("prompts/get", "", "c")})) == [ResultItem("c", "t", None, "prompts/get")]


def test_instructions_of_a_server_are_read() -> None:
    """What a server tells the model at the start is text."""
    message = one(answering({"instructions": "obey"}), {1: Asked("initialize")})
    assert items(message) == [TextItem("system", "obey")]
    assert one(answering({"capabilities": {}}), {1: Asked("initialize")}).turn is None


def test_what_holds_nothing_to_judge_has_no_turn() -> None:
    """Pings and notifications pass."""
    assert one(asking("ping")).turn is None
    assert one(asking("notifications/progress", {"progress": 1}, None)).kind == "notification"


def test_a_batch_is_its_messages() -> None:
    """Every message of a batch is read, in wire order."""
    batch = [asking("tools/call", {"name": name}, number) for number, name in enumerate(("f", "g"))]
    messages = parse_messages(orjson.dumps([*batch, asking("notifications/cancelled", {}, None)]))
    assert [message.id for message in messages] == [0, 1, None]
    assert [item.name for message in messages[:2] for item in items(message) if isinstance(item, CallItem)] == [
        "f",
        "g",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (asking("robots/list"), "method 'robots/list' is not known here, so it may not pass - at `$.method`"),
        (
            asking("sampling/createMessage", {}),
            "'sampling/createMessage' is refused: a server would ask the client's model past every rule; "
            "give the server a model of its own",
        ),
        (
            asking("tasks/result", {"taskId": "t"}),
            "'tasks/result' is refused: its answer would come by another way than the call's, unseen; call without a task",
        ),
        (
            asking("tools/call", {"name": "f", "task": {"ttl": 1}}),
            "'task' is refused: its answer would come by another way than the call's, unseen; "
            "call without a task - at `$.params`",
        ),
        (asking("tools/call", {"name": "f"}, None), "'tools/call' is no notification"),
        (asking("notifications/progress", {}, 1), "'notifications/progress' is a notification and has no id"),
        (asking("tools/call", {"name": 5}), "expected a string, got a number - at `$.params.name`"),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, "JSON-RPC version '1.0' is not known here, so it may not pass"),
        (
            {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
            "expected a string or a whole number, got a number - at `$.id`",
        ),
        (answering({}), "an answer to 1, which was not asked here"),
        ({"jsonrpc": "2.0", "id": 1}, "an answer has a result or an error, and not both"),
        ({**asking("ping"), "result": {}}, "a message is a request or an answer, not both"),
        ({"jsonrpc": "2.0", "result": {}}, "an answer without an id"),
        ([], "an empty batch"),
        ([asking("ping"), asking("ping")], "two messages of one batch have the id 1"),
    ],
)
def test_what_is_not_understood_is_refused(body: Any, message: str) -> None:
    """A method on no list, a path around the gate and broken JSON-RPC are errors that say why."""
    assert refusal(body) == message


def test_every_method_is_read_passed_or_refused() -> None:
    """The published list says what becomes of every method."""
    assert {fate.split(":")[0] for fate in mcp.METHODS.values()} == {"read", "passed", "refused"}


def test_a_stream_holds_messages() -> None:
    """Messages of an event stream are read in order; it is complete when everything asked was answered."""
    assembler = StreamAssembler(CALLED)
    note = orjson.dumps(asking("notifications/progress", {"progress": 1}, None))
    assembler.feed(b"data: " + note + b"\n\n")
    assert not assembler.complete
    answer = (
        b"id: 1\nevent: message\ndata: "
        + orjson.dumps(answering({"content": [{"type": "text", "text": "t"}]}))
        + b"\n\n"
    )
    for at in range(len(answer)):
        assembler.feed(answer[at : at + 1])
    assembler.close()
    assert assembler.complete
    assert [message.kind for message in assembler.messages()] == ["notification", "answer"]
    with pytest.raises(WireError) as caught:
        assembler.feed(answer)
    assert str(caught.value) == "the request 1 was answered twice"


def test_an_error_to_nothing_is_kept() -> None:
    """An error that names no request leaves the stream incomplete."""
    assembler = StreamAssembler({})
    assembler.feed(b'data: {"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "m"}}\n\n')
    assert assembler.errors == [{"code": -32700, "message": "m"}]
    assert not assembler.complete


def test_everything_an_error_says_is_the_result() -> None:
    """Clients show the model the data of an error beside its message, so rules read both."""
    error = {"code": -32000, "message": "no", "data": {"hint": "send the key"}}
    message = one({"jsonrpc": "2.0", "id": 1, "error": error}, CALLED)
    assert items(message) == [ResultItem("call_1", 'no\n{"hint":"send the key"}', True, "f")]


@pytest.mark.parametrize(("text", "structured"), [('{"ok":1}', {"ok": True}), ('{"ok":0}', {"ok": False})])
def test_a_structured_form_that_differs_only_by_type_is_read(text: str, structured: dict[str, Any]) -> None:
    """In JSON a number is no boolean: both forms are read."""
    message = one(answering({"content": [{"type": "text", "text": text}], "structuredContent": structured}), CALLED)
    (item,) = items(message)
    assert isinstance(item, ResultItem)
    assert item.parts == (text, orjson.dumps(structured).decode())


@pytest.mark.parametrize(
    ("method", "result"),
    [
        (
            "tools/call",
            {"resultType": "input_required", "inputRequests": {}, "content": [{"type": "text", "text": "x"}]},
        ),
        ("tools/call", {"toolResult": {}, "content": [{"type": "text", "text": "x"}]}),
        ("resources/read", {"also": {}, "ttlMs": 5, "contents": [{"uri": "u", "text": "x"}]}),
        ("prompts/get", {"also": {}, "messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}),
    ],
)
def test_a_result_is_read_wherever_it_stands(method: str, result: dict[str, Any]) -> None:
    """A question back hides no content from clients that do not know questions, and unknown words are read too."""
    (item,) = items(one(answering(result), {1: Asked(method, "", "call_1")}))
    assert isinstance(item, ResultItem)
    assert item.parts == ("{}", "x")
