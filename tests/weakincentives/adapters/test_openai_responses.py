"""Claims about Responses: what a conversation looks like on the wire, and what is kept of the model's reasoning."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from wardwright.wire import responses as gateway
from weakincentives.adapters import ModelReply, OpenAIAdapter, Turn
from weakincentives.adapters.openai_responses import ResponsesWire
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import FileBlock, ImageBlock, MarkdownSection, PromptTemplate, TextBlock, tool
from weakincentives.runtime import Session, ToolCall
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
        FileBlock(b"%PDF", media_type="application/pdf"),
        FileBlock(url="https://example.com/b.pdf"),
    ]


def message(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": list(parts), **more}


def words(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def call(number: int, **more: Any) -> dict[str, Any]:
    arguments = '{"path": "a", "text": "b"}'
    item = {"id": f"fc_{number}", "type": "function_call", "status": "completed", "name": "write_note"}
    return {**item, "call_id": f"call_{number}", "arguments": arguments, **more}


def reply_with(*items: dict[str, Any], **more: Any) -> Raw:
    return Raw(json.dumps({"id": "r", "object": "response", "status": "completed", "output": items, **more}).encode())


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_conversation_on_the_wire(make: Make) -> None:
    """Prompt, the model's own items as they came, and the result; nothing is left with the provider."""
    at = desk()
    adapter, stage = make(ScriptTurn("Let me.", [writes("a")]), ScriptTurn("Done."), api="responses")

    adapter.evaluate(at.prompt, at.session)

    body = stage.requests[1]
    assert (body["model"], body["store"]) == ("gpt-5", False)
    assert body["input"] == [
        {"type": "message", "role": "system", "content": at.prompt.render(at.session).text},
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "sealed 1"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me.", "annotations": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "write_note",
            "arguments": '{"path": "a", "text": "hello"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "Wrote a."},
    ]


def test_a_tool_says_whether_it_is_strict(make: Make) -> None:
    """Left out, the provider would take it for granted."""
    at = desk(tools=[*desk().prompt.render().tools, look])
    adapter, stage = make(ScriptTurn("Done."), api="responses")

    adapter.evaluate(at.prompt, at.session)

    told = {each["name"]: each for each in stage.requests[0]["tools"]}
    assert (told["write_note"]["strict"], told["look"]["strict"]) == (True, False)
    assert set(told["look"]) == {"type", "name", "description", "parameters", "strict"}


def test_what_was_written_once_is_not_written_again() -> None:
    """Each message is translated when it is new, and stays the same object in every later request."""
    wire, seen = ResponsesWire(), []
    at = desk()

    class Fake(OpenAIAdapter):
        def send(self, turn: Turn) -> ModelReply:
            seen.append(list(wire.request(turn, {})["input"]))
            return ModelReply("Well.", [writes("a")]) if len(seen) < 5 else ModelReply("Done.")

    Fake("m", api_key="k").evaluate(at.prompt, at.session)

    assert [len(items) for items in seen] == [1, 4, 7, 10, 13]
    for earlier in seen:
        assert all(old is new for old, new in zip(earlier, seen[-1], strict=False))


def test_a_result_shows_pictures_and_files(make: Make) -> None:
    """In this form a result may hold them."""
    at = desk(tools=[look])
    adapter, stage = make(
        ScriptTurn(calls=[ToolCall("look", {"what": "a cat"})]), ScriptTurn("A cat."), api="responses"
    )

    adapter.evaluate(at.prompt, at.session)

    text = (
        "This is a cat.\n[image: image/png, 3 bytes]\n[file: application/pdf, 4 bytes]\n"
        "[file: application/octet-stream, https://example.com/b.pdf]"
    )
    assert stage.requests[1]["input"][-1]["output"] == [
        {"type": "input_text", "text": text},
        {"type": "input_image", "image_url": "data:image/png;base64,YWJj", "detail": "auto"},
        {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        {"type": "input_file", "file_url": "https://example.com/b.pdf"},
    ]


@pytest.mark.parametrize(
    ("how", "form"),
    [("json", {"type": "json_object"}), ("text", None)],
)
def test_a_server_that_takes_no_schema_is_told_in_the_prompt(make: Make, how: str, form: object) -> None:
    """With its own way to keep to JSON, or without; other settings of the text stay."""
    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="Task", template="Count.")]))
    options = {"structured_output": how, "text": {"verbosity": "low"}}
    adapter, stage = make(ScriptTurn('{"total": 4}'), api="responses", **options)

    assert adapter.evaluate(at.prompt, at.session).output == Answer(4)

    (body,) = stage.requests
    assert body["text"].get("format") == form
    assert body["text"]["verbosity"] == "low"
    assert "fits this JSON Schema" in body["input"][0]["content"]


def test_the_provider_is_told_the_schema_of_the_answer(make: Make) -> None:
    """Beside the user's own settings of the text, and not in the prompt."""
    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="Task", template="Count.")]))
    adapter, stage = make(ScriptTurn('{"total": 4}'), api="responses", text={"verbosity": "low"})

    assert adapter.evaluate(at.prompt, at.session).output == Answer(4)

    (body,) = stage.requests
    form = body["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "answer", True)
    assert set(form["schema"]["properties"]) == {"total"}
    assert body["text"]["verbosity"] == "low"
    assert "JSON Schema" not in body["input"][0]["content"]


# --- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gpt-5", True),
        ("gpt-5.2-codex", True),
        ("o3-mini", True),
        ("openai/o4-mini", True),
        ("codex-mini-latest", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4o", False),
        ("gpt-oss:20b", False),
        ("llama3", False),
    ],
)
def test_models_that_reason_are_asked_to_seal_it(make: Make, model: str, asks: bool) -> None:
    """Others would refuse the question."""
    adapter, stage = make(ScriptTurn("Hello."), model=model, api="responses")

    adapter.evaluate(desk().prompt, Session())

    assert stage.requests[0].get("include") == (["reasoning.encrypted_content"] if asks else None)


@pytest.mark.parametrize("options", [{"include": []}, {"store": True}])
def test_whoever_knows_better_decides_about_sealing(make: Make, options: dict[str, Any]) -> None:
    """By naming what to include, or by leaving the reply with the provider."""
    adapter, stage = make(ScriptTurn("Hello."), api="responses", **options)

    adapter.evaluate(desk().prompt, Session())

    assert not stage.requests[0].get("include")
    assert stage.requests[0]["store"] is options.get("store", False)


def test_reasoning_that_was_not_sealed_is_left_out(make: Make) -> None:
    """The provider has forgotten it, and what followed must not name it."""
    at = desk()
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": []}
    adapter, stage = make(reply_with(reasoning, call(1)), ScriptTurn("Done."), api="responses", include=[])

    adapter.evaluate(at.prompt, at.session)

    kinds = [item["type"] for item in stage.requests[1]["input"]]
    assert kinds == ["message", "function_call", "function_call_output"]
    assert "id" not in stage.requests[1]["input"][1]


def test_reasoning_that_the_provider_keeps_goes_back_by_its_id(make: Make) -> None:
    """With store=True it knows its own."""
    at = desk()
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": []}
    adapter, stage = make(reply_with(reasoning, call(1)), ScriptTurn("Done."), api="responses", store=True)

    adapter.evaluate(at.prompt, at.session)

    assert stage.requests[1]["input"][1:3] == [reasoning, call(1)]


# --- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"output": [message(words("Hel"), words("lo"))]}, ("Hello", None)),
        ({"output": [message({"type": "refusal", "refusal": "No."})]}, ("No.", "refusal")),
        (
            {"output": [message(words("So"))], "incomplete_details": {"reason": "max_output_tokens"}},
            ("So", "max_tokens"),
        ),
        ({"output": [], "incomplete_details": {"reason": "content_filter"}}, ("", "refusal")),
        (
            {"output": [message(words("So"))], "status": "incomplete", "incomplete_details": {"reason": "tired"}},
            ("So", "max_tokens"),
        ),
        (
            {"output": [message(words("I look."), phase="commentary"), message(words("4"), phase="final_answer")]},
            ("4", None),
        ),
        ({"output": [message(words("I look."), phase="commentary")]}, ("I look.", None)),
    ],
)
def test_how_a_reply_ends(body: dict[str, Any], expected: tuple[str, str | None]) -> None:
    """Its words and its reason; comments on the way are not part of the answer."""
    reply = ResponsesWire().reply(body)

    assert (reply.text, reply.stop_reason) == expected


def test_tokens_are_counted_with_those_from_a_cache() -> None:
    """In the words of this form."""
    usage = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5}}

    assert ResponsesWire().reply({"output": [], "usage": usage}).usage == TokenUsage(9, 2, 5)


def test_a_failed_reply_is_a_fault() -> None:
    """With the provider's words if it has any."""
    error = {"code": "invalid_prompt", "message": "Not this."}
    with pytest.raises(PromptEvaluationError, match=r"\(invalid_prompt\): Not this\."):
        ResponsesWire().reply({"status": "failed", "error": error, "output": []})
    with pytest.raises(ThrottledError, match="broke off"):
        ResponsesWire().reply({"status": "failed", "error": None, "output": []})


def test_a_stream_without_its_end_is_broken() -> None:
    """What came so far is not taken for the reply."""
    reader = ResponsesWire().reader()

    assert reader.take({"type": "response.output_text.delta", "delta": "Hel"}) == "Hel"
    with pytest.raises(ThrottledError, match="broke off"):
        reader.body()


def test_an_error_event_is_a_fault() -> None:
    """It stands where the end should be."""
    with pytest.raises(ThrottledError, match="Slow down"):
        ResponsesWire().reader().take({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down"})


# --- others who read this form ----------------------------------------------------------------------------------------


def test_our_gateway_reads_what_is_sent(make: Make) -> None:
    """Every call, result and declared tool of a run is seen where it is governed."""
    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="T", template="Go.", tools=[look])]))
    script = [ScriptTurn("Let me see.", [ToolCall("look", {"what": "a cat"})]), ScriptTurn('{"total": 1}')]
    adapter, stage = make(*script, api="responses")
    list(adapter.stream(at.prompt, at.session))

    turns = [gateway.parse_request(json.dumps(body).encode()) for body in stage.requests]

    kinds = [[type(item).__name__ for item in turn.items] for turn in turns]
    assert kinds == [["TextItem"], ["TextItem", "TextItem", "CallItem", "ResultItem"]]
    assert [declared.name for declared in turns[-1].tools] == ["look"]


def test_the_official_types_take_what_is_sent(make: Make) -> None:
    """Items and tools are what the client's own types say."""
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam
    from pydantic import TypeAdapter

    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="T", template="Go.", tools=[look])]))
    script = [ScriptTurn("Hm.", [ToolCall("look", {"what": "a cat"})]), ScriptTurn('{"total": 1}')]
    adapter, stage = make(*script, api="responses")
    adapter.evaluate(at.prompt, at.session)

    body = stage.requests[-1]
    assert len(TypeAdapter(list[ResponseInputItemParam]).validate_python(body["input"])) == 5
    assert len(TypeAdapter(list[FunctionToolParam]).validate_python(body["tools"])) == 1
