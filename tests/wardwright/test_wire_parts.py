"""A text that came in several parts says so, on every wire alike: models and clients read parts on end (G11, G24)."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.wire import ResultItem, TextItem, Turn, anthropic, chat_completions, mcp, responses

TWO = ("sec", "ret")


def parts(kind: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": text} for text in TWO]


def chat(message: dict[str, Any]) -> Turn:
    return chat_completions.parse_request({"model": "m", "messages": [message]})


def answered(message: dict[str, Any]) -> Turn:
    return chat_completions.parse_reply({"model": "m", "choices": [{"index": 0, "message": message}]})


def listed(*items: dict[str, Any]) -> Turn:
    return responses.parse_request({"model": "m", "input": list(items)})


def blocks(*given: dict[str, Any], role: str = "user") -> Turn:
    return anthropic.parse_request({"model": "m", "messages": [{"role": role, "content": list(given)}]})


def called(result: dict[str, Any]) -> Turn:
    asked = {1: mcp.Asked("tools/call", "t", "c")}
    turn = mcp.parse_messages({"jsonrpc": "2.0", "id": 1, "result": result}, asked)[0].turn
    assert turn is not None
    return turn


TURNS = {
    "chat user": chat({"role": "user", "content": parts("text")}),
    "chat strings": chat({"role": "user", "content": list(TWO)}),
    "chat assistant": chat({"role": "assistant", "content": parts("text")}),
    "chat tool": chat({"role": "tool", "tool_call_id": "a", "content": parts("text")}),
    "chat function": chat({"role": "function", "name": "f", "content": parts("text")}),
    "chat reasoning": chat({"role": "assistant", "content": None, "reasoning_details": parts("reasoning.text")}),
    "chat reply": answered({"role": "assistant", "content": parts("text")}),
    "chat reply and refusal": answered({"role": "assistant", "content": "sec", "refusal": "ret"}),
    "chat prediction": chat_completions.parse_request(
        {"model": "m", "messages": [], "prediction": {"type": "content", "content": parts("text")}}
    ),
    "responses user": listed({"role": "user", "content": parts("input_text")}),
    "responses output": listed({"type": "function_call_output", "call_id": "a", "output": parts("input_text")}),
    "responses reasoning": listed({"type": "reasoning", "summary": parts("summary_text")}),
    "responses shell": listed(
        {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "sec", "stderr": "ret"}]}
    ),
    "responses reply": responses.parse_reply(
        {"model": "m", "output": [{"type": "message", "role": "assistant", "content": parts("output_text")}]}
    ),
    "anthropic user": blocks(*parts("text")),
    "anthropic system": anthropic.parse_request({"model": "m", "system": parts("text"), "messages": []}),
    "anthropic result": blocks({"type": "tool_result", "tool_use_id": "a", "content": parts("text")}),
    "anthropic document": blocks(
        {"type": "document", "title": "sec", "source": {"type": "text", "media_type": "text/plain", "data": "ret"}}
    ),
    "anthropic reply": anthropic.parse_reply({"model": "m", "content": parts("text")}),
    "mcp result": called({"content": parts("text")}),
}


@pytest.mark.parametrize("name", TURNS)
def test_parts_are_kept_beside_the_joined_text(name: str) -> None:
    """The text is joined by a line break, and the parts stand beside it, so that a rule can read them on end."""
    (item,) = TURNS[name].items
    assert isinstance(item, (TextItem, ResultItem))
    assert (item.text if isinstance(item, TextItem) else item.content) == "sec\nret"
    assert item.parts == TWO


ALONE = {
    "chat string": chat({"role": "user", "content": "sec\nret"}),
    "chat part": chat({"role": "user", "content": [{"type": "text", "text": "sec\nret"}]}),
    "chat empty part": chat({"role": "user", "content": ["sec\nret", ""]}),
    "responses part": listed({"role": "user", "content": [{"type": "input_text", "text": "sec\nret"}]}),
    "anthropic block": blocks({"type": "text", "text": "sec\nret"}),
    "mcp block": called({"content": [{"type": "text", "text": "sec\nret"}]}),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_part_has_no_parts(name: str) -> None:
    """A text of one piece keeps its own line breaks and has no parts."""
    (item,) = ALONE[name].items
    assert isinstance(item, (TextItem, ResultItem))
    assert item.parts == ()


def test_a_picture_between_two_parts_hides_nothing() -> None:
    """Parts that hold nothing to read do not cut a text in two."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    (item,) = blocks({"type": "text", "text": "sec"}, picture, {"type": "text", "text": "ret"}).items
    assert isinstance(item, TextItem)
    assert item.parts == TWO
