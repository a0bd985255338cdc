"""Claims about the pieces of both of OpenAI's forms: strict schemas, arguments sent back, faults and their words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weakincentives.adapters.openai_parts import arguments_text, broken_off, fault, fault_in, is_strict, not_understood
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.runtime import ToolCall


def closed(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


TEXT = {"type": "string"}
NODE = closed(next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]})


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        closed(name={"type": "string", "description": "Who.", "pattern": "^a"}, kind={"enum": ["a", "b"]}),
        closed(at={"type": "string", "format": "date-time"}, maybe={"type": ["string", "null"]}),
        closed(inner=closed(x={"type": "integer", "minimum": 1}), many={"type": "array", "items": TEXT, "maxItems": 3}),
        {**closed(node={"$ref": "#/$defs/Node"}), "$defs": {"Node": NODE}},
    ],
)
def test_a_schema_with_every_field_required_is_strict(schema: dict[str, Any]) -> None:
    """Also with nested objects, lists, choices and types that hold themselves."""
    assert is_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        {"type": "object", "properties": {"a": TEXT}, "required": [], "additionalProperties": False},
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
        {**closed(), "anyOf": [closed()]},
        closed(a={}),
        closed(a={"type": "string", "minLength": 1}),
        closed(a={"type": "string", "format": "path"}),
        closed(a={"type": "string", "default": "x"}),
        closed(a={"type": "array"}),
        closed(a={"type": ["object", "null"], "properties": {"b": TEXT}}),
        closed(a={"allOf": [TEXT]}),
        closed(a=True),
        {**closed(a={"$ref": "#/$defs/A", "description": "Which."}), "$defs": {"A": TEXT}},
        {**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"type": "string", "maxLength": 3}}},
    ],
)
def test_what_strict_mode_would_refuse_is_not_called_strict(schema: dict[str, Any]) -> None:
    """A request with such a tool would be refused as a whole."""
    assert not is_strict(schema)


def test_a_schema_that_is_too_deep_is_not_called_strict() -> None:
    """Providers count the levels."""
    schema: dict[str, Any] = closed()
    for _ in range(11):
        schema = closed(inner=schema)

    assert not is_strict(schema)


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{ "a" :1}'])
def test_arguments_go_back_as_they_came(arguments: str) -> None:
    """Byte by byte, so that caches of the provider hit."""
    assert arguments_text(ToolCall("t", arguments)) == arguments


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_no_arguments_go_back_as_an_empty_object(arguments: Any) -> None:
    """Servers parse what they are sent back."""
    assert arguments_text(ToolCall("t", arguments)) == "{}"


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "7", "no"])
def test_arguments_that_are_no_object_go_back_inside_one(arguments: str) -> None:
    """The model sees what it wrote, and the server can read it."""
    assert json.loads(arguments_text(ToolCall("t", arguments))) == {"invalid_json": arguments}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"status": 400}, "The model's provider refused the request (400): Wrong."),
        ({"status": 401}, "The model's provider refused the request (401): Wrong. Check the API key."),
        ({"status": 403}, "The model's provider refused the request (403): Wrong. Check the API key."),
        ({"status": 404}, "The model's provider refused the request (404): Wrong. Check model, base_url and api."),
        (
            {"status": 429, "code": "insufficient_quota"},
            "The model's provider refused the request (429): Wrong. "
            "The account has no credit left; trying again cannot help.",
        ),
        (
            {"status": 400, "code": "context_length_exceeded"},
            "The model's provider refused the request (400): Wrong. "
            "The conversation is too long for the model; start a new run with less in it.",
        ),
        ({"status": 500, "passes": False}, "The model's provider refused the request (500): Wrong."),
        ({"code": "invalid_prompt"}, "The model's provider refused the request (invalid_prompt): Wrong."),
        ({}, "The model's provider refused the request: Wrong."),
    ],
)
def test_a_lasting_fault_says_what_to_do(given: dict[str, Any], text: str) -> None:
    """Whoever runs the prompt reads what the provider said and what may help."""
    error = fault("Wrong", **given)

    assert str(error) == text
    assert not isinstance(error, ThrottledError)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Unknown field: response_format",
            'A server that takes no schema for the answer needs structured_output="text".',
        ),
        (
            "Invalid value for text.format",
            'A server that takes no schema for the answer needs structured_output="text".',
        ),
        ("Encrypted content is not supported with this model.", "Pass include=[] for this model."),
        (
            "This model's maximum context length is 4096 tokens",
            "The conversation is too long for the model; start a new run with less in it.",
        ),
    ],
)
def test_a_refused_option_names_the_setting_that_helps(said: str, advice: str) -> None:
    """Servers differ in what they take; the setting for it is named where it is needed."""
    assert str(fault(said, status=400)).endswith(f". {advice}")


@pytest.mark.parametrize("given", [{"status": status} for status in (408, 409, 429, 500, 502, 503, 529)])
def test_a_passing_fault_may_be_tried_again(given: dict[str, Any]) -> None:
    """The loop waits as long as the provider asks for, and asks again."""
    error = fault("Too many requests.", retry_after=3.5, **given)

    assert isinstance(error, ThrottledError)
    assert error.retry_after == 3.5
    status = given["status"]
    assert str(error) == f"The model's provider cannot answer now ({status}): Too many requests. Retry later."


def test_a_provider_may_say_that_a_fault_passes() -> None:
    """Its own word about trying again counts more than the status."""
    assert isinstance(fault("Wait", status=400, passes=True), ThrottledError)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            {"message": "Slow down", "code": "rate_limit_exceeded"},
            ThrottledError,
            "The model's provider cannot answer now (rate_limit_exceeded): Slow down. Retry later.",
        ),
        (
            {"message": "Slow down", "code": 429},
            ThrottledError,
            "The model's provider cannot answer now (429): Slow down. Retry later.",
        ),
        (
            {"message": "Overloaded", "type": "overloaded_error"},
            ThrottledError,
            "The model's provider cannot answer now (overloaded_error): Overloaded. Retry later.",
        ),
        (
            {"code": None},
            PromptEvaluationError,
            "The model's provider refused the request: no reason was given.",
        ),
        ("Broken", PromptEvaluationError, "The model's provider refused the request: Broken."),
    ],
)
def test_a_fault_inside_a_reply_is_told_like_any_other(error: object, kind: type[Exception], text: str) -> None:
    """Some servers answer 200 and put the error where the reply should be."""
    told = fault_in(error)

    assert type(told) is kind
    assert str(told) == text


def test_a_long_fault_is_shortened() -> None:
    """Pages of a server's inside help nobody."""
    assert len(str(fault("x" * 10_000, status=400))) < 1_000


def test_a_reply_that_breaks_off_may_be_asked_for_again() -> None:
    """Its words are pinned."""
    assert str(broken_off()) == "The model's provider broke off in the middle of its reply. Retry later."


def test_a_page_in_place_of_a_reply_is_shown_in_short() -> None:
    """A wrong address mostly answers with a web page."""
    assert str(not_understood("<html>\n <p>Hello</p>")) == (
        "The server answered with something that is no model's reply: '<html> <p>Hello</p>'. "
        "Check base_url (it usually ends in /v1) and api, then retry."
    )
