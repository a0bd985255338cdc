"""The schema check agrees with an independent validator, tells every problem, and refuses what it cannot check."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.wire.schema import SchemaUnsupported, check, check_text

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "a", "ab", "b1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)
numbers = st.integers(-2, 3)
leaf = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["object", "array", "string", "number", "integer", "boolean", "null", ["string", "null"]]
        ),
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "minimum": numbers,
        "maximum": numbers,
        "exclusiveMinimum": numbers,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^a", "b", "[0-9]$"]),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "dependentRequired": st.just({"a": ["b"]}),
    },
)
schemas = st.recursive(
    leaf | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "c"]), inner, max_size=1),
            "propertyNames": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "type": st.sampled_from(["object", "array"]),
        },
    ),
    max_leaves=5,
)


@given(schemas, values)
def test_agrees_with_an_independent_validator(schema: Any, value: Any) -> None:
    """G11: no problem found exactly when the 2020-12 validator finds none."""
    assert (check(value, schema) == []) == jsonschema_rs.is_valid(schema, value)


def test_every_problem_is_told_with_its_path() -> None:
    """G11: all problems at once."""
    schema = {
        "type": "object",
        "required": ["title", "base"],
        "additionalProperties": False,
        "properties": {"title": {"type": "string"}, "tags": {"items": {"enum": ["x", "y"]}}, "n": {"minimum": 3}},
    }
    assert check({"title": 3, "tags": ["x", "z"], "n": 1, "more": 0}, schema) == [
        "$: missing 'base'",
        "$.title: expected string, got integer",
        "$.tags[1]: must be one of: x, y",
        "$.n: must be at least 3",
        "$: unknown 'more'",
    ]


def test_local_references_are_followed() -> None:
    """G11: `$ref` inside the document, recursive ones too."""
    schema = {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}},
    }
    assert check({"next": {"next": 3}}, schema) == ["$.next.next: expected object, got integer"]


@pytest.mark.parametrize(
    "schema",
    [
        {"unevaluatedProperties": False},
        {"$ref": "https://example.test/x"},
        {"$ref": "#/nothing"},
        {"pattern": "(?=a)"},
        {"type": "thing"},
        3,
    ],
)
def test_what_cannot_be_checked_is_never_a_pass(schema: Any) -> None:
    """G19: a schema beyond us raises, so that the rule fails closed."""
    with pytest.raises(SchemaUnsupported):
        check("text", schema)


def test_text_that_is_no_json_is_a_problem() -> None:
    """G11: unreadable arguments break every schema; empty ones are an empty object."""
    assert check_text("{", True)[0].startswith("$: not valid JSON: ")
    assert check_text("", {"type": "object"}) == []
