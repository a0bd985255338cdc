"""Claims about Chat Completions: what a conversation looks like on the wire, and what odd servers may answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from wardwright.wire import chat_completions as gateway
from weakincentives.adapters import ModelReply, OpenAIAdapter, Turn
from weakincentives.adapters.openai_chat import ChatWire
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import FileBlock, ImageBlock, MarkdownSection, Prompt, PromptTemplate, TextBlock, tool
from weakincentives.runtime import Session, ToolCall, ToolInvoked
from weakincentives.testing.adapter_kit import Answer, Desk, ScriptTurn, desk, writes

from .loopback.openai_server import Raw, Stage

pytest.importorskip("openai")

Make = Callable[..., tuple[OpenAIAdapter, Stage]]


@tool(effects="none")
def look(what: str, closely: bool = False) -> list[TextBlock | ImageBlock | FileBlock]:
    """Look at something."""
    return [
        TextBlock(f"This is {what}."),
        ImageBlock(b"abc"),
        ImageBlock(url="https://example.com/a.png"),
        FileBlock(b"%PDF", media_type="application/pdf", name="a.pdf"),
        FileBlock(url="https://example.com/b.pdf", media_type="application/pdf"),
    ]


SEEN = (
    "This is a cat.\n[image: image/png, 3 bytes]\n[image: image/png, https://example.com/a.png]\n"
    "[file: a.pdf, application/pdf, 4 bytes]\n[file: application/pdf, https://example.com/b.pdf]"
)


def reply_with(message: dict[str, Any], finish: str = "stop", **more: Any) -> Raw:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return Raw(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], **more}).encode())


def told_call(name: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_conversation_on_the_wire(make: Make) -> None:
    """Prompt, call and result, each in its place."""
    at = desk()
    adapter, stage = make(ScriptTurn(calls=[writes("a")]), ScriptTurn("Done."))

    adapter.evaluate(at.prompt, at.session)

    body = stage.requests[1]
    assert body["model"] == "gpt-5"
    assert body["messages"] == [
        {"role": "system", "content": at.prompt.render(at.session).text},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "write_note", "arguments": '{"path": "a", "text": "hello"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Wrote a."},
    ]


def test_a_tool_is_strict_when_its_schema_allows(make: Make) -> None:
    """With every field required the provider keeps the model to the schema; a default makes a field optional."""
    at = desk(tools=[*desk().prompt.render().tools, look])
    adapter, stage = make(ScriptTurn("Done."))

    adapter.evaluate(at.prompt, at.session)

    told = {each["function"]["name"]: each["function"] for each in stage.requests[0]["tools"]}
    assert told["write_note"]["strict"] is True
    assert told["write_note"]["parameters"]["required"] == ["path", "text"]
    assert "strict" not in told["look"]
    assert set(told["look"]) == {"name", "description", "parameters"}


def test_what_was_written_once_is_not_written_again() -> None:
    """Each message is translated when it is new, and stays the same object in every later request."""
    wire, seen = ChatWire(), []
    at = desk()

    class Fake(OpenAIAdapter):
        def send(self, turn: Turn) -> ModelReply:
            seen.append(list(wire.request(turn, {})["messages"]))
            return ModelReply("", [writes("a")]) if len(seen) < 5 else ModelReply("Done.")

    Fake("m", api_key="k").evaluate(at.prompt, at.session)

    assert [len(messages) for messages in seen] == [1, 3, 5, 7, 9]
    for earlier in seen:
        assert all(old is new for old, new in zip(earlier, seen[-1], strict=False))


def test_a_prompt_that_changes_replaces_the_old_one(make: Make) -> None:
    """What the model is shown is what the session now renders."""
    at = Desk(
        PromptTemplate(
            sections=[
                MarkdownSection(
                    title="State",
                    template="There are pages.",
                    enabled=lambda session: len(session[ToolInvoked]) > 0,
                ),
                MarkdownSection(title="Notebook", template="Keep it.", tools=list(desk().prompt.render().tools)),
            ]
        )
    )
    adapter, stage = make(ScriptTurn(calls=[writes("a")]), ScriptTurn("Done."))

    adapter.evaluate(at.prompt, at.session)

    prompts = [body["messages"][0]["content"] for body in stage.requests]
    assert ["There are pages." in prompt for prompt in prompts] == [False, True]
    assert [message["role"] for message in stage.requests[1]["messages"]] == ["system", "assistant", "tool"]


def test_the_prompt_may_be_said_by_somebody_else(make: Make) -> None:
    """Some servers want a user's message."""
    adapter, stage = make(ScriptTurn("Hello."), prompt_role="user")

    adapter.evaluate(desk().prompt, Session())

    assert [message["role"] for message in stage.requests[0]["messages"]] == ["user"]


def test_arguments_that_are_no_json_go_back_readable(make: Make) -> None:
    """Servers that parse the history must be able to."""
    at = desk()
    adapter, stage = make(ScriptTurn(calls=[writes("a")], arguments_text='{"path": '), ScriptTurn("Sorry."))

    adapter.evaluate(at.prompt, at.session)

    (call,) = stage.requests[1]["messages"][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"invalid_json": '{"path": '}


def test_what_results_show_comes_behind_them(make: Make) -> None:
    """Results are text in this form: pictures and files follow in one message, each with the call it belongs to."""
    at = desk(tools=[look])
    calls = [ToolCall("look", {"what": "a cat"}), ToolCall("look", {"what": "a cat"})]
    adapter, stage = make(ScriptTurn(calls=calls), ScriptTurn("A cat."))

    adapter.evaluate(at.prompt, at.session)

    _, _, first, second, shown = stage.requests[1]["messages"]
    assert (first["content"], second["content"]) == (SEEN, SEEN)
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
    ]
    assert shown == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Shown by look (call_1):"},
            *parts,
            {"type": "text", "text": "Shown by look (call_2):"},
            *parts,
        ],
    }


def test_a_model_that_sees_nothing_is_shown_nothing(make: Make) -> None:
    """It reads in the text what it cannot see."""
    at = desk(tools=[look])
    adapter, stage = make(ScriptTurn(calls=[ToolCall("look", {"what": "a cat"})]), ScriptTurn("Hm."), media=False)

    adapter.evaluate(at.prompt, at.session)

    assert [message["role"] for message in stage.requests[1]["messages"]] == ["system", "assistant", "tool"]
    assert stage.requests[1]["messages"][2]["content"] == SEEN


# --- the answer's form ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loose:
    total: int = 0


def asking(output: type[Any]) -> Prompt[Any]:
    return Prompt(PromptTemplate[output](sections=[MarkdownSection(title="Task", template="Count.")]))  # type: ignore[valid-type]


@pytest.mark.parametrize(("output", "strict"), [(Answer, True), (Loose, False)])
def test_the_provider_is_told_the_schema_of_the_answer(make: Make, output: type[Any], strict: bool) -> None:
    """And the prompt's text is not."""
    adapter, stage = make(ScriptTurn('{"total": 4}'))

    assert adapter.evaluate(asking(output), Session()).output == output(4)

    (body,) = stage.requests
    form = body["response_format"]
    assert form["type"] == "json_schema"
    assert (form["json_schema"]["name"], form["json_schema"]["strict"]) == ("answer", strict)
    assert set(form["json_schema"]["schema"]["properties"]) == {"total"}
    assert "JSON Schema" not in body["messages"][0]["content"]


@pytest.mark.parametrize(("how", "form"), [("json", {"type": "json_object"}), ("text", None)])
def test_a_server_that_takes_no_schema_is_told_in_the_prompt(make: Make, how: str, form: object) -> None:
    """With its own way to keep to JSON, or without."""
    adapter, stage = make(ScriptTurn('{"total": 4}'), structured_output=how)

    assert adapter.evaluate(asking(Answer), Session()).output == Answer(4)

    (body,) = stage.requests
    assert body.get("response_format") == form
    assert "fits this JSON Schema, and nothing else:\n{" in body["messages"][0]["content"]


def test_an_answer_that_is_no_object_is_asked_for_in_the_prompt(make: Make) -> None:
    """Providers keep a model to objects only."""
    adapter, stage = make(ScriptTurn("[1, 2]"))

    assert adapter.evaluate(asking(list[int]), Session()).output == [1, 2]

    assert "response_format" not in stage.requests[0]
    assert "fits this JSON Schema" in stage.requests[0]["messages"][0]["content"]


# --- replies ----------------------------------------------------------------------------------------------------------


def test_fields_that_a_server_adds_go_back_to_it(make: Make) -> None:
    """Reasoning, and signatures on calls: servers want back what they sealed."""
    at = desk()
    call = told_call("write_note", '{"path": "a", "text": "b"}', id="c1", extra_content={"google": {"signature": "s"}})
    reply = reply_with({"content": "", "reasoning_content": "Well…", "tool_calls": [call], "audio": None}, "tool_calls")
    adapter, stage = make(reply, ScriptTurn("Done."))

    adapter.evaluate(at.prompt, at.session)

    message = stage.requests[1]["messages"][1]
    assert message["reasoning_content"] == "Well…"
    assert message["tool_calls"] == [call]
    assert set(message) == {"role", "content", "tool_calls", "reasoning_content"}


def test_a_call_without_id_gets_one(make: Make) -> None:
    """The call and its result name the same one."""
    at = desk()
    reply = reply_with({"content": None, "tool_calls": [told_call("write_note", '{"path": "a", "text": "b"}')]})
    adapter, stage = make(reply, ScriptTurn("Done."))

    adapter.evaluate(at.prompt, at.session)

    _, call, result = stage.requests[1]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == at.session[ToolInvoked].latest().call_id


@pytest.mark.parametrize(
    ("message", "finish", "expected"),
    [
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hi."}]}, "stop", ("Hi.", None)),
        ({"content": "So far"}, "length", ("So far", "max_tokens")),
        ({"content": None}, "content_filter", ("", "refusal")),
        ({"content": None, "refusal": "No."}, "stop", ("No.", "refusal")),
        ({"content": "Hi."}, "eos", ("Hi.", None)),
        ({"content": "So far"}, "model_length", ("So far", "max_tokens")),
        ({"content": ""}, "SAFETY", ("", "refusal")),
    ],
)
def test_how_a_reply_ends(message: dict[str, Any], finish: str, expected: tuple[str, str | None]) -> None:
    """Words of servers become the four that the loop knows."""
    reply = ChatWire().reply({"choices": [{"message": message, "finish_reason": finish}]})

    assert (reply.text, reply.stop_reason) == expected


def test_arguments_may_come_as_an_object() -> None:
    """Some servers do not write them as text."""
    call = {"id": "c", "function": {"name": "look", "arguments": {"what": "x"}}}
    reply = ChatWire().reply({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})

    assert reply.tool_calls == [ToolCall("look", {"what": "x"}, "c")]


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": -1}])
def test_a_server_that_does_not_count_costs_nothing(usage: object) -> None:
    """Odd figures are no figures."""
    reply = ChatWire().reply({"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": usage})

    assert reply.usage == TokenUsage()


@pytest.mark.parametrize("finish", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_a_reply_that_ends_in_an_error_may_be_asked_for_again(finish: str) -> None:
    """Some servers say so in place of a reason; what they sent before it is no answer."""
    with pytest.raises(ThrottledError):
        ChatWire().reply({"choices": [{"message": {"content": "So f"}, "finish_reason": finish}]})


@pytest.mark.parametrize("choices", [[], [{"message": None, "finish_reason": "stop"}]])
def test_a_reply_without_a_message_is_none(choices: list[object]) -> None:
    """Nothing is made up."""
    with pytest.raises(PromptEvaluationError, match="no model's reply"):
        ChatWire().reply({"choices": choices})


# --- streams ----------------------------------------------------------------------------------------------------------


def streamed(*deltas: dict[str, Any], finish: str = "stop") -> ModelReply:
    wire = ChatWire()
    reader = wire.reader()
    for delta in deltas:
        reader.take({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    reader.take({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    reader.take({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    return wire.reply(reader.body())


def test_pieces_become_the_reply() -> None:
    """Words, reasoning and calls grow piece by piece; the counts come last."""
    reply = streamed(
        {"role": "assistant", "content": ""},
        {"reasoning_content": "We"},
        {"reasoning_content": "ll"},
        {"content": "Hel"},
        {"content": "lo"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"what"'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "look", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "x"}'}}]},
        finish="tool_calls",
    )

    assert reply.text == "Hello"
    assert reply.tool_calls == [ToolCall("look", '{"what": "x"}', "c1"), ToolCall("look", "{}", "c2")]
    assert reply.raw["reasoning_content"] == "Well"
    assert reply.usage == TokenUsage(3, 2)


@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_calls_that_are_not_numbered_are_told_apart_by_id(index: dict[str, int]) -> None:
    """Some servers number every call 0, or none."""
    reply = streamed(
        {"tool_calls": [{**index, "id": "c1", "function": {"name": "look", "arguments": "{}"}}]},
        {"tool_calls": [{**index, "id": "c2", "function": {"name": "look", "arguments": '{"a"'}}]},
        {"tool_calls": [{**index, "function": {"name": "look", "arguments": ": 1}"}}]},
    )

    assert reply.tool_calls == [ToolCall("look", "{}", "c1"), ToolCall("look", '{"a": 1}', "c2")]


def test_a_call_whose_pieces_have_different_ids_is_one_call() -> None:
    """Some servers make up an id for every piece; a new call has a name."""
    reply = streamed(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"what":'}}]},
        {"tool_calls": [{"index": 0, "id": "b", "function": {"name": None, "arguments": ' "x"}'}}]},
    )

    assert reply.tool_calls == [ToolCall("look", '{"what": "x"}', "a")]


def test_a_piece_may_hold_arguments_as_an_object() -> None:
    """Servers that do not stream arguments do not always write them as text."""
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": {"what": "x"}}}

    assert streamed({"tool_calls": [call]}).tool_calls == [ToolCall("look", '{"what": "x"}', "a")]


def test_counts_are_asked_for_in_a_stream(make: Make) -> None:
    """Unless a server cannot bear it."""
    adapter, stage = make(ScriptTurn("Hello."))
    silent, other = make(ScriptTurn("Hello."), stream_options=None)

    *_, answered = adapter.stream(desk().prompt, Session())
    *_, uncounted = silent.stream(desk().prompt, Session())

    assert stage.requests[0]["stream_options"] == {"include_usage": True}
    assert answered.response.usage.total_tokens == 15
    assert "stream_options" not in other.requests[0]
    assert uncounted.response.usage.total_tokens == 0


# --- others who read this form ----------------------------------------------------------------------------------------


def test_our_gateway_reads_what_is_sent(make: Make) -> None:
    """Every call, result and declared tool of a run is seen where it is governed."""
    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="T", template="Go.", tools=[look])]))
    script = [
        ScriptTurn("Let me see.", [ToolCall("look", {"what": "a cat"})]),
        ScriptTurn(calls=[ToolCall("look", {"what": 1})]),
        ScriptTurn('{"total": 1}'),
    ]
    adapter, stage = make(*script)
    list(adapter.stream(at.prompt, at.session))

    turns = [gateway.parse_request(json.dumps(body).encode()) for body in stage.requests]

    assert [[type(item).__name__ for item in turn.items] for turn in turns] == [
        ["TextItem"],
        ["TextItem", "TextItem", "CallItem", "ResultItem", "TextItem"],
        ["TextItem", "TextItem", "CallItem", "ResultItem", "TextItem", "CallItem", "ResultItem"],
    ]
    assert [declared.name for declared in turns[-1].tools] == ["look"]


def test_the_official_types_take_what_is_sent(make: Make) -> None:
    """Messages, tools and the answer's form are what the client's own types say."""
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from openai.types.shared_params import ResponseFormatJSONSchema
    from pydantic import TypeAdapter

    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="T", template="Go.", tools=[look])]))
    adapter, stage = make(ScriptTurn("Hm.", [ToolCall("look", {"what": "a cat"})]), ScriptTurn('{"total": 1}'))
    adapter.evaluate(at.prompt, at.session)

    body = stage.requests[-1]
    assert len(TypeAdapter(list[ChatCompletionMessageParam]).validate_python(body["messages"])) == 4
    assert len(TypeAdapter(list[ChatCompletionToolParam]).validate_python(body["tools"])) == 1
    assert TypeAdapter(ResponseFormatJSONSchema).validate_python(body["response_format"])
