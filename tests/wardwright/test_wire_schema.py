"""The schema check agrees with an independent validator, tells every problem, and refuses what it cannot check."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.history import Registers
from wardwright.wire.linear import compile_foreign
from wardwright.wire.schema import SchemaUnsupported, Work, check, check_text, examine
from wardwright.wire.turn import CallItem, DeclaredTool, ResultItem, TextItem, Turn

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


def doubled(levels: int, keyword: str) -> dict[str, Any]:
    """A small schema whose every level asks the next one twice."""
    parts: dict[str, Any] = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{levels}": {"const": 1}}}


WIDE = [{"$ref": "#/$defs/a"}] * 20_000


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({}, doubled(30, "allOf")),
        ({}, doubled(30, "anyOf")),
        ({}, doubled(30, "oneOf")),
        ("x" * 100_000, {"allOf": WIDE, "$defs": {"a": {"const": "x" * 100_000}}}),
        ([0] * 5_000, {"allOf": WIDE, "$defs": {"a": {"uniqueItems": True}}}),
        ({"q": 1}, {"allOf": WIDE, "$defs": {"a": {"enum": [{"q": 2}] * 1_000}}}),
        ({"q": 1}, {"allOf": WIDE, "$defs": {"a": {"required": ["q"] * 1_000}}}),
        ("ab" * 50_000, {"pattern": "(?:a?b?){1000}c"}),
    ],
)
def test_a_schema_that_costs_too_much_is_not_checked(value: Any, schema: Any) -> None:
    """G19: a caller's schema cannot make the gateway work without end, whatever keyword it uses."""
    with pytest.raises(SchemaUnsupported, match=r"^the check costs too much$"):
        check(value, schema)


def test_a_longer_text_may_cost_more() -> None:
    """G11: rows by the thousand are checked where they were sent; a short text pays for a few thousand steps only."""
    row = {"properties": {name: {"type": "integer"} for name in "abc"}}
    rows = "[" + ",".join(['{"a":1,"b":2,"c":3}'] * 4_000) + "]"
    assert check_text(rows, {"items": row}) == []
    with pytest.raises(SchemaUnsupported, match=r"^the check costs too much$"):
        check_text("{}", {"allOf": [{}] * 12_000})


def test_checks_that_share_their_work_share_its_limit() -> None:
    """G19: many checks of one turn cost no more together than one may."""
    work = Work()
    with pytest.raises(SchemaUnsupported, match=r"^the check costs too much$"):
        for _ in range(4):
            check([0] * 1_000, {"items": {"type": "integer"}}, work)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "x" * 3_000}, "cannot be checked: pattern too long$"),
        ({"pattern": r"\pL{1,500}"}, "cannot be checked: pattern too large - compile failed$"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(40)]}, "^the schema has too many patterns$"),
    ],
)
def test_a_caller_s_patterns_stay_small_and_few(schema: Any, message: str) -> None:
    """G19: what a declared schema asks to compile is bounded in size and number."""
    with pytest.raises(SchemaUnsupported, match=message):
        check("text", schema)


def test_a_caller_s_patterns_displace_nobody_s() -> None:
    """G19: what is kept of callers' patterns is bounded, and apart from the operator's."""
    for number in range(200):
        check("text", {"pattern": f"only-here-{number}"})
    assert compile_foreign.cache_info().currsize <= 64


@pytest.mark.parametrize(
    "schema",
    [
        {"required": 5}, {"required": [5]}, {"properties": []}, {"patternProperties": 1}, {"dependentRequired": {"a": 1}},
        {"minProperties": "1"}, {"allOf": {}}, {"anyOf": 1}, {"oneOf": None}, {"enum": {}}, {"type": [1]}, {"type": {}},
        {"dependentSchemas": []}, {"properties": {"a": None}}, {"properties": {"a": {"minimum": "0"}}},
    ],
)  # fmt: skip
def test_a_schema_of_the_wrong_form_is_unsupported(schema: Any) -> None:
    """G19: a malformed schema raises that one error, which every caller of the check expects."""
    with pytest.raises(SchemaUnsupported):
        check({"a": 1}, schema)


def test_a_value_that_nests_too_deeply_is_unsupported() -> None:
    """G19: depth is no way to crash the check."""
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(SchemaUnsupported, match="nests too deeply"):
        check(deep, {"uniqueItems": True})


def test_true_is_not_one_inside_a_value() -> None:
    """G11: JSON knows the difference at every depth."""
    assert check([True], {"const": [1]}) == ["$: must be [1]"]
    assert check([1.0], {"const": [1]}) == []
    assert check([1, True, [0], [False]], {"uniqueItems": True}) == []


def test_an_examined_schema_tells_all_that_is_wrong_with_it() -> None:
    """G10: an operator's schema is looked through before any call meets it."""
    schema = {
        "type": "strng",
        "pattern": "(?=x)",
        "required": "a",
        "properties": {"a": {"minimum": "0"}, "b": 3, "c": {"$ref": "#/x"}},
        "allOf": 5,
        "unevaluatedItems": False,
    }
    assert examine(schema) == [
        (("type",), "unknown type 'strng'"),
        (("pattern",), "pattern '(?=x)' cannot be checked: invalid perl operator: (?="),
        (("required",), "'required' must be an array"),
        (("allOf",), "'allOf' must be an array"),
        (("unevaluatedItems",), "'unevaluatedItems' is not supported"),
        (("properties", "a", "minimum"), "'minimum' must be a number"),
        (("properties", "b"), "a schema must be an object or a boolean"),
        (("properties", "c", "$ref"), "reference '#/x' names nothing"),
    ]


@given(schemas)
def test_a_sound_schema_has_nothing_to_examine(schema: Any) -> None:
    """G10: what the check can use is never refused."""
    assert examine(schema) == []


@pytest.mark.parametrize("schema", [doubled(30, "allOf"), {"required": 5}, {"pattern": "("}])
def test_a_schema_that_cannot_be_checked_takes_no_request_down(schema: Any) -> None:
    """G19: whether a failed call had valid arguments stays open when its schema cannot tell; the request is judged all the same."""
    plan = compile_plan(
        parse_config("governance:\n  - {id: r, kind: tool_selector, action: block, tool: {phase: argument_repair}}\n")
    )
    items = [
        TextItem("user", "go"),
        *(one for n in range(20) for one in (CallItem(f"c{n}", "t", '{"x": 1}'), ResultItem(f"c{n}", "bad", True))),
    ]
    turn = Turn("request", "chat_completions", "m", items, [DeclaredTool("t", "", schema)])
    ruling, _ = govern(plan, Registers(key=b"k"), turn, 1)
    assert (ruling.decision, [fact.source for fact in ruling.facts].count("tool_result")) == ("allow", 20)
