"""A request or reply that is written in another wire's form says the same, or is refused by name (G24)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.wire import (
    ResultItem,
    TextItem,
    Turn,
    anthropic,
    chat_completions,
    edit,
    responses,
    translate,
    translate_anthropic,
    translate_chat,
    translate_responses,
)
from wardwright.wire.turn import WireName

from .conversations import WIRES, Conversation, Round, Said, conversation
from .odd_bodies import odd_body
from .test_wire_differential import carried

MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
BY_NAME = {wire.name: wire for wire in WIRES}
PAIRS = [(cast("WireName", one.name), cast("WireName", other.name)) for one, other in permutations(WIRES, 2)]
PAGE = Path(__file__).parents[2] / "docs" / "wire-translation.md"
every_pair = pytest.mark.parametrize(("source", "to"), PAIRS, ids=[f"{one}-{other}" for one, other in PAIRS])


def request_turn(wire: str, body: Any) -> Turn:
    return MODULES[wire].parse_request(orjson.dumps(body))


def reply_turn(wire: str, body: Any) -> Turn:
    return MODULES[wire].parse_reply(orjson.dumps(body))


def unthinking(talk: Conversation) -> Conversation:
    rounds = [replace(one, said=replace(one.said, thinking="")) for one in talk.rounds]
    return replace(talk, rounds=rounds, claim=None)


def talks() -> Iterator[tuple[Conversation, int, random.Random]]:
    for number in range(100):
        talk = unthinking(conversation(number))
        if not talk.searches:
            for upto in range(len(talk.rounds)):
                yield talk, upto, random.Random(number * 7 + upto)


@every_pair
def test_a_translated_request_has_the_same_turn(source: WireName, to: WireName) -> None:
    """Texts, calls, results, tools, choice and output format are the same in the other form."""
    for talk, upto, dice in talks():
        body = BY_NAME[source].request(talk, upto, dice)
        before = request_turn(source, body)
        after = request_turn(to, translate.request(body, source, to))
        assert carried(after) == carried(before)
        assert after.stream == before.stream


@every_pair
def test_a_translated_reply_has_the_same_turn(source: WireName, to: WireName) -> None:
    """Text, calls and usage are the same in the other form."""
    for talk, upto, dice in talks():
        body = BY_NAME[source].reply(talk, upto, dice)
        before = reply_turn(source, body)
        assert carried(reply_turn(to, translate.reply(body, source, to))) == carried(before)


@every_pair
def test_a_request_comes_back_with_the_same_turn(source: WireName, to: WireName) -> None:
    """There and back again nothing is lost."""
    for talk, upto, dice in talks():
        body = BY_NAME[source].request(talk, upto, dice)
        back = translate.request(translate.request(body, source, to), to, source)
        assert carried(request_turn(source, back)) == carried(request_turn(source, body))


@every_pair
def test_an_error_flag_is_carried_where_there_is_one(source: WireName, to: WireName) -> None:
    """Only Messages says that a result is an error; between it and itself the body is the body itself."""
    for talk, upto, dice in talks():
        body = BY_NAME["anthropic"].request(talk, upto, dice)
        there = translate.request(body, "anthropic", to)
        flags = [item.is_error for item in request_turn(to, there).items if isinstance(item, ResultItem)]
        own = [item.is_error for item in request_turn("anthropic", body).items if isinstance(item, ResultItem)]
        assert flags == (own if to == "anthropic" else [None] * len(own))
        assert source != to


@every_pair
def test_reasoning_of_earlier_turns_is_left_out_of_a_request(source: WireName, to: WireName) -> None:
    """Its seals are worth something to the provider that made them, and to no other."""
    seen = False
    for number in range(60):
        talk = replace(conversation(number), claim=None)
        if talk.searches or not any(one.said.thinking for one in talk.rounds[:-1]):
            continue
        seen = True
        body = BY_NAME[source].request(talk, len(talk.rounds) - 1, random.Random(number))
        plain = BY_NAME[source].request(unthinking(talk), len(talk.rounds) - 1, random.Random(number))
        items = carried(request_turn(to, translate.request(body, source, to)))["items"]
        assert items == carried(request_turn(source, plain))["items"]
    assert seen


THINKING = Round([], "Why?", Said(thinking="Because", text="So."))


@every_pair
def test_reasoning_of_a_reply_is_shown(source: WireName, to: WireName) -> None:
    """What the model thought is where clients of the other wire look for it, without a seal."""
    talk = replace(conversation(1), rounds=[THINKING])
    body: Any = translate.reply(BY_NAME[source].reply(talk, 0, random.Random(1)), source, to)
    shown = {
        "chat_completions": lambda: body["choices"][0]["message"]["reasoning_content"],
        "responses": lambda: body["output"][0]["summary"][0]["text"],
        "anthropic": lambda: body["content"][0]["thinking"],
    }
    assert shown[to]() == "Because"


FINISHES: dict[str, dict[str, Any]] = {
    "chat_completions": {
        "stop": {"finish_reason": "stop"},
        "length": {"finish_reason": "length"},
        "filtered": {"finish_reason": "content_filter"},
    },
    "responses": {
        "stop": {"status": "completed"},
        "length": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        "filtered": {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
    },
    "anthropic": {
        "stop": {"stop_reason": "end_turn"},
        "length": {"stop_reason": "max_tokens"},
        "filtered": {"stop_reason": "refusal"},
    },
}


def ended(wire: str, end: str) -> dict[str, Any]:
    talk = replace(conversation(1), rounds=[Round([], "Why?", Said(text="So."))])
    body = BY_NAME[wire].reply(talk, 0, random.Random(1))
    (body["choices"][0] if wire == "chat_completions" else body).update(FINISHES[wire][end])
    return body


@every_pair
@pytest.mark.parametrize("end", ["stop", "length", "filtered"])
def test_a_reply_ends_in_the_words_of_the_other_wire(source: WireName, to: WireName, end: str) -> None:
    """Cut short, filtered or done: the client of the other wire is told so in its own way."""
    body: Any = translate.reply(ended(source, end), source, to)
    where = body["choices"][0] if to == "chat_completions" else body
    assert {key: where[key] for key in FINISHES[to][end]} == FINISHES[to][end]


@every_pair
def test_a_reply_with_calls_says_that_it_has_them(source: WireName, to: WireName) -> None:
    """Clients look for calls only when the end says so."""
    for talk, upto, dice in talks():
        if talk.rounds[upto].said.calls:
            body: Any = translate.reply(BY_NAME[source].reply(talk, upto, dice), source, to)
            ends = (
                body.get("stop_reason"),
                body.get("status"),
                *(one["finish_reason"] for one in body.get("choices", ())),
            )
            assert set(ends) & {"tool_use", "completed", "tool_calls"}


SETTINGS: dict[str, dict[str, Any]] = {
    "chat_completions": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 100,
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
        "user": "u",
        "stream": True,
    },
    "responses": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high"},
        "user": "u",
        "stream": True,
    },
    "anthropic": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        "stream": True,
    },
}
QUESTION: dict[str, dict[str, Any]] = {
    "chat_completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"model": "m", "input": "Hi"},
    "anthropic": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
}
TOOL: dict[str, dict[str, Any]] = {
    "chat_completions": {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}},
    "responses": {"type": "function", "name": "t", "parameters": {"type": "object"}, "strict": False},
    "anthropic": {"name": "t", "input_schema": {"type": "object"}},
}


@every_pair
def test_settings_are_carried_under_the_other_names(source: WireName, to: WireName) -> None:
    """Limits, sampling, effort, parallel calls, user and streaming mean the same on the other side."""
    body: Any = {**QUESTION[source], "tools": [TOOL[source]], "tool_choice": "auto", **SETTINGS[source]}
    written = translate.request(body, source, to)
    expected = {**SETTINGS[to]}
    assert {key: written[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("written", "given"),
    [("", {}), ("null", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"arguments": [1]}), ('{"cut', {"arguments": '{"cut'})],
)
def test_arguments_that_are_no_object_stand_in_one(written: str, given: dict[str, Any]) -> None:
    """Messages knows only objects; what a model wrote instead is not lost."""
    call = {"id": "c", "type": "function", "function": {"name": "n", "arguments": written}}
    message: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    body: Any = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    content: Any = translate.reply(body, "chat_completions", "anthropic")["content"]
    assert content[0]["input"] == given


def test_a_single_text_is_a_string_in_chat_completions() -> None:
    """Many servers of this form know no parts in what the system says and what a tool answers."""
    result: Any = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "b"}]}
    body: Any = {"system": [{"type": "text", "text": "a"}], "messages": [{"role": "user", "content": [result]}]}
    messages: Any = translate.request(body, "anthropic", "chat_completions")["messages"]
    assert [message["content"] for message in messages] == ["a", "b"]


def test_messages_gets_the_limit_that_it_demands() -> None:
    """Messages has no request without a limit; other wires have."""
    for source in ("chat_completions", "responses"):
        written = translate.request(QUESTION[source], cast("WireName", source), "anthropic")
        assert written["max_tokens"] == translate_anthropic.MAX_TOKENS


PICTURE = "data:image/png;base64,AAAA"
SEEN: dict[str, dict[str, Any]] = {
    "chat_completions": {"type": "image_url", "image_url": {"url": PICTURE}},
    "responses": {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
}


@every_pair
def test_pictures_are_carried(source: WireName, to: WireName) -> None:
    """A picture that the user sends reaches the model, whatever form it is asked in."""
    asked = [{"role": "user", "content": [SEEN[source]]}]
    body: Any = {"model": "m", **({"input": asked} if source == "responses" else {"messages": asked})}
    written: Any = translate.request(body, source, to)
    (message,) = written.get("input") or written["messages"]
    expected = {**SEEN[to]}
    if to == "chat_completions" and source == "responses":
        expected["image_url"] = {"url": PICTURE, "detail": "auto"}
    assert message["content"] == [expected]


def test_a_picture_in_a_result_is_refused_where_results_are_text() -> None:
    """Chat Completions has only text in what a tool answers."""
    shown: Any = {"type": "tool_result", "tool_use_id": "c", "content": [SEEN["anthropic"]]}
    body: Any = {**QUESTION["anthropic"], "messages": [{"role": "user", "content": [shown]}]}
    assert translate.request(body, "anthropic", "responses")["input"]
    with pytest.raises(
        WireError, match="a picture or file in the result of a tool cannot be carried to Chat Completions"
    ):
        translate.request(body, "anthropic", "chat_completions")


UNSAID: list[tuple[WireName, dict[str, Any], str]] = [
        ("chat_completions", {"seed": 7}, "'seed' can be said in Chat Completions only"),
        ("chat_completions", {"n": 2}, "'n' can be said in Chat Completions only"),
        ("chat_completions", {"web_search_options": {"a": 1}}, "'web_search_options' can be said in Chat"),
        ("chat_completions", {"temperature": 1.5}, "a temperature above 1 cannot be carried to Messages"),
        ("chat_completions", {"verbosity": "low"}, "'verbosity' cannot be carried to Messages"),
        ("chat_completions", {"response_format": {"type": "json_object"}}, "a JSON object without a schema"),
        ("chat_completions", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "a custom tool cannot be"),
        ("chat_completions", {"messages": [{"role": "user", "content": "x", "name": "ada"}]}, "'name' cannot be carried"),
        ("chat_completions", {"messages": [{"role": "function", "name": "x", "content": ""}]}, "role 'function'"),
        ("responses", {"tools": [{"type": "web_search"}]}, "a tool of the type 'web_search' cannot be carried"),
        ("responses", {"max_tool_calls": 2}, "'max_tool_calls' can be said in Responses only"),
        ("responses", {"input": [{"type": "compaction", "id": "c"}]}, "an item of the type 'compaction'"),
        ("anthropic", {"mcp_servers": [{"name": "s"}]}, "'mcp_servers' can be said in Messages only"),
        ("anthropic", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "a tool of the type 'bash_20250124'"),
        ("anthropic", {"tools": [{"name": "x", "input_schema": {}, "input_examples": [{}]}]}, "'input_examples'"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "fields", "told"), UNSAID)
def test_what_the_other_wire_cannot_say_is_refused_by_name(source: WireName, fields: dict[str, Any], told: str) -> None:
    """G24: nothing that carries meaning is left out in silence."""
    to: WireName = "chat_completions" if source == "anthropic" else "anthropic"
    with pytest.raises(WireError, match=told):
        translate.request({**QUESTION[source], **fields}, source, to)


def test_a_refusal_says_where_and_why() -> None:
    """The whole sentence, for the caller who reads it."""
    with pytest.raises(WireError) as refused:
        translate.request({**QUESTION["chat_completions"], "seed": 7}, "chat_completions", "anthropic")
    assert str(refused.value) == (
        "'seed' can be said in Chat Completions only, and the chosen model is asked in another wire format - at `$.seed`"
    )


@pytest.mark.parametrize("fields", [{"n": 1}, {"seed": None}, {"logprobs": False}, {"frequency_penalty": 0}])
def test_a_refused_field_that_asks_for_nothing_is_harmless(fields: dict[str, Any]) -> None:
    """The value that says what would be without it is no reason to refuse."""
    assert translate.request({**QUESTION["chat_completions"], **fields}, "chat_completions", "responses")


def test_only_conversations_are_translated() -> None:
    """MCP has no form that a model is asked in."""
    with pytest.raises(WireError, match="the wire 'mcp' is not translated"):
        translate.request({}, "mcp", "anthropic")


@every_pair
@pytest.mark.parametrize("gate", ["request", "reply"])
def test_odd_bodies_are_carried_or_refused(source: WireName, to: WireName, gate: str) -> None:
    """Whatever a wire can say, the other form of it can be read, with all its words in it; or it is refused."""
    passed = 0
    parse, turn_into = (request_turn, translate.request) if gate == "request" else (reply_turn, translate.reply)
    for number in range(400):
        body: Any = odd_body(source, gate, number)
        edit.of(source).forget(body)
        before = parse(source, body)
        try:
            written = turn_into(body, source, to)
        except WireError:
            continue
        passed += 1
        assert names(parse(to, written)) == names(before)
        everything = "\n".join(sorted(words(parse(to, written))))
        thoughts = {"thought", "deep", "hm"}
        assert all(word in everything for word in words(before) - thoughts - said_outside(body))
    assert passed > 10


def names(turn: Turn) -> list[Any]:
    return sorted(getattr(item, "name", "") for item in turn.items if not isinstance(item, (TextItem, ResultItem)))


def words(turn: Turn) -> set[str]:
    texts = [
        item.text if isinstance(item, TextItem) else item.content
        for item in turn.items
        if isinstance(item, (TextItem, ResultItem))
    ]
    return {line for text in texts for line in text.split("\n") if line}


def said_outside(body: Any) -> set[str]:
    """A guess at the answer, which is left out."""
    guess = body.get("prediction")
    return words(request_turn("chat_completions", {"messages": [], "prediction": guess})) if guess else set()


LISTS: dict[str, Mapping[str, str]] = {
    "Chat Completions: fields of a request": translate_chat.FATES,
    "Responses: fields of a request": translate_responses.FATES,
    "Messages: fields of a request": translate_anthropic.FATES,
}


def test_the_published_list_is_the_one_in_use() -> None:
    """Every field stands on the page with its fate, and nothing else does."""
    page = PAGE.read_text(encoding="utf-8")
    parts: list[str] = []
    for title, fates in LISTS.items():
        rows = [f"| `{name}` | {fate} |" for name, fate in sorted(fates.items())]
        parts.append("\n".join([f"## {title}", "", "| Name | Fate |", "|---|---|", *rows]))
    assert page[page.index("## ") :].strip() == "\n\n".join(parts)


@pytest.mark.parametrize("wire", sorted(MODULES))
def test_every_field_that_a_wire_knows_has_a_fate(wire: str) -> None:
    """What may stand in a request is on the list of its translation."""
    fates = {"chat_completions": translate_chat, "responses": translate_responses, "anthropic": translate_anthropic}
    assert set(fates[wire].FATES) == MODULES[wire].READ | MODULES[wire].PASSED
