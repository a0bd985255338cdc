"""Tools whose parameters come with a JSON Schema of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.tool import Tool, ToolContext, ToolExample
from weakincentives.prompt.tool_result import ToolResult
from weakincentives.serde import ParseError


def make(schema: Any, **given: Any) -> Tool[dict[str, Any], Any]:
    return Tool.from_json_schema(**{"name": "x", "description": "X.", "schema": schema, **given})


def with_field(field: Any, **more: Any) -> Tool[dict[str, Any], Any]:
    """A tool with one field, `a`."""
    return make({"type": "object", "properties": {"a": field}, **more})


def refusal(build: Callable[[], object]) -> str:
    with pytest.raises(PromptValidationError) as caught:
        build()
    return str(caught.value)


def details(tool: Tool[Any, Any], arguments: Any) -> dict[str, str]:
    with pytest.raises(ParseError) as caught:
        tool.parse(arguments)
    return caught.value.details


class TestTool:
    def test_the_handler_gets_a_dict(self) -> None:
        """JSON text and mappings become plain JSON objects."""
        tool = with_field({"type": "integer"})
        assert tool.params_type is dict
        assert tool.parse('{"a": 1}') == tool.parse({"a": 1}) == tool.parse(b'{"a": 1}') == {"a": 1}

    def test_the_arguments_are_a_copy(self) -> None:
        """What a handler does to its params, the caller's mapping does not feel."""
        given: dict[str, Any] = {"a": [1]}
        with_field({}).parse(given)["a"].append(2)
        assert given == {"a": [1]}

    def test_the_schema_is_told_as_it_was_given(self) -> None:
        """Remarks and vendor keywords included, and later changes to the original not."""
        schema: dict[str, Any] = {
            "type": "object",
            "title": "T",
            "properties": {"a": {"type": "string", "format": "uri", "x-vendor": 1}},
        }
        tool = make(schema)
        told = json.loads(json.dumps(schema))
        schema["properties"]["a"]["type"] = "integer"
        tool.schema()["properties"].clear()
        assert tool.schema() == tool.spec()["parameters"] == told

    def test_parameters_can_be_described_anew(self) -> None:
        """As with any other tool."""
        tool = with_field({"type": "string"}).with_description(param_descriptions={"a": "New."})
        assert tool.schema()["properties"]["a"] == {"type": "string", "description": "New."}

    def test_the_handler_is_checked(self) -> None:
        """It takes a mapping and returns a ToolResult."""

        def good(params: dict[str, Any], *, context: ToolContext) -> ToolResult[str]:
            return ToolResult.ok("")

        def bad(params: str, *, context: ToolContext) -> ToolResult[str]:
            return ToolResult.ok("")

        assert with_field({}).handler is None
        assert make({"type": "object"}, handler=good, result_type=str).handler is good
        assert refusal(lambda: make({"type": "object"}, handler=bad)) == (
            "Tool 'x': handler takes params of type str, but the tool has dict[str, Any]"
        )

    def test_examples_must_fit_the_schema(self) -> None:
        """An example that the schema refuses would mislead the model."""
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        assert make(schema, examples=[ToolExample("One", {"a": 1}, None)]).spec()["examples"][0]["input"] == {"a": 1}
        assert refusal(lambda: make(schema, examples=[ToolExample("One", {"a": "1"}, None)])) == (
            "Tool 'x': examples[0].input does not fit the schema: a: Expected type integer, got string '1'"
        )

    @pytest.mark.parametrize("arguments", ["", "[]", "{", '{"a": NaN}', "1", {"a": object()}, {1: 2}, "[" * 5000])
    def test_what_is_no_json_object_is_refused(self, arguments: Any) -> None:
        """Like with any other tool, as a ParseError."""
        assert details(with_field({}), arguments)

    def test_a_value_nested_too_deeply_is_refused(self) -> None:
        """A schema that refers to itself cannot be used to exhaust the stack."""
        endless = make({"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})
        assert details(endless, {}) == {"$": "Nested too deeply; send a flatter value"}


class TestRefusedSchemas:
    @pytest.mark.parametrize(
        ("schema", "problem"),
        [
            ({}, "the schema must describe an object: its type must be 'object'"),
            ({"type": "array"}, "the schema must describe an object: its type must be 'object'"),
            ({"type": "object", "properties": []}, "#/properties must be an object"),
            ({"type": "object", "properties": {"a": 1}}, "#/properties/a must be an object or a boolean"),
            ({"type": "object", "required": "a"}, "#/required must be a list of names"),
            ({"type": "object", "anyOf": []}, "#/anyOf must be a list with at least one schema"),
            ({"type": "object", "enum": []}, "#/enum must be a list with at least one value"),
            ({"type": "object", "minProperties": -1}, "#/minProperties must be a whole number from 0"),
            ({"type": "object", "dependentRequired": {"a": 1}}, "#/dependentRequired must map names to lists of names"),
            ({"type": "object", "$ref": "http://a/b"}, "#/$ref is not supported: only references into the same schema (#/…), got 'http://a/b'"),
            ({"type": "object", "$ref": "#/$defs/a"}, "#/$ref points to nothing: '#/$defs/a'"),
            ({"type": "object", "$ref": 1}, "#/$ref must be text"),
            ({"type": "object", "$defs": {"a": {"type": "text"}}}, "#/$defs/a/type must name JSON types: object, array, string, boolean, null, number, integer"),
            ({"type": "object", "properties": {"a": {"$id": "b"}}}, "#/properties/a/$id is not supported: an inner schema cannot have an address of its own"),
            ({"type": "object", "properties": {"a": {"exclusiveMinimum": True}}}, "#/properties/a/exclusiveMinimum must be a number"),
            ({"type": "object", "properties": {"a": {"multipleOf": 0}}}, "#/properties/a/multipleOf must be a number above 0"),
            ({"type": "object", "properties": {"a": {"pattern": 1}}}, "#/properties/a/pattern must be a regular expression"),
            ({"type": "object", "properties": {"a": {"uniqueItems": 1}}}, "#/properties/a/uniqueItems must be true or false"),
            ({"type": "object", "properties": {"a": {"items": [{}]}}}, "#/properties/a/items must be an object or a boolean"),
        ],
    )  # fmt: skip
    def test_a_wrong_schema_is_refused_with_its_place(self, schema: Any, problem: str) -> None:
        """The author reads where and what."""
        assert refusal(lambda: make(schema)) == f"Tool 'x': cannot use its schema: {problem}"

    @pytest.mark.parametrize("keyword", ["unevaluatedProperties", "$dynamicRef", "$anchor", "nullable", "dependencies"])
    def test_a_keyword_that_cannot_be_judged_is_refused(self, keyword: str) -> None:
        """Never skipped in silence."""
        told = refusal(lambda: with_field({keyword: True}))
        assert told.startswith(
            f"Tool 'x': cannot use its schema: #/properties/a/{keyword} is not supported: "
            "leave the keyword out or say the same in another way; understood are $defs, $ref, additionalProperties, "
        )

    def test_a_pattern_that_cannot_be_read_is_refused(self) -> None:
        """At construction, not at the first call."""
        assert refusal(lambda: with_field({"pattern": "("})).startswith(
            "Tool 'x': cannot use its schema: #/properties/a/pattern is not a regular expression we can use: "
        )


class TestProblems:
    @pytest.mark.parametrize(
        ("field", "value", "text"),
        [
            ({"type": "integer"}, "10", "Expected type integer, got string '10'"),
            ({"type": "integer"}, True, "Expected type integer, got boolean true"),
            ({"type": ["string", "null"]}, 1, "Expected type string or null, got integer 1"),
            ({"enum": ["x", 1, None]}, "y", "a must be one of: x, 1, null"),
            ({"const": "x"}, "y", "a must be one of: x"),
            ({"const": 1, "enum": [2]}, 1, "Has a value that is not allowed here"),
            ({"minimum": 1}, 0, "must be >= 1, got 0"),
            ({"maximum": 1}, 2, "must be <= 1, got 2"),
            ({"exclusiveMinimum": 1}, 1, "must be > 1, got 1"),
            ({"exclusiveMaximum": 1}, 1, "must be < 1, got 1"),
            ({"multipleOf": 0.1}, 0.25, "must be a multiple of 0.1, got 0.25"),
            ({"minLength": 2}, "x", "must have at least 2 characters, got 1"),
            ({"maxLength": 2}, "xyz", "must have at most 2 characters, got 3"),
            ({"pattern": "^[a-z]+$"}, "x\n", "must match the pattern ^[a-z]+$, got string 'x\\n'"),
            ({"minItems": 1}, [], "must have at least 1 items, got 0"),
            ({"maxItems": 1}, [1, 2], "must have at most 1 items, got 2"),
            ({"uniqueItems": True}, [{"b": 1}, {"b": 1.0}], "Has the same item twice"),
            ({"contains": {"type": "string"}}, [1], "must contain at least 1 items of the required form, has 0"),
            ({"contains": {}, "minContains": 0, "maxContains": 1}, [1, 2], "must contain 0 to 1 items of the required form, has 2"),
            ({"minProperties": 1}, {}, "must have at least 1 fields, got 0"),
            ({"maxProperties": 0}, {"b": 1}, "must have at most 0 fields, got 1"),
            (False, 1, "Not allowed here"),
            ({"not": {"type": "string"}}, "x", "Has a form that is not allowed here"),
            ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "Expected type string, got integer 1 or Expected type null, got integer 1"),
            ({"oneOf": [{"type": "string"}, {"required": ["b"]}]}, {}, "Expected type string, got object or b: Missing required field"),
            ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "x", "Fits 2 of the forms allowed here, must fit exactly one"),
            ({"allOf": [{"minimum": 1}, {"maximum": 9}]}, 0, "must be >= 1, got 0"),
            ({"if": {"type": "string"}, "then": {"minLength": 2}}, "x", "must have at least 2 characters, got 1"),
            ({"if": {"type": "string"}, "else": {"minimum": 2}}, 1, "must be >= 2, got 1"),
        ],
    )  # fmt: skip
    def test_each_keyword_has_its_text(self, field: Any, value: Any, text: str) -> None:
        """What is wrong, what was got."""
        assert details(with_field(field), {"a": value}) == {"a": text}

    @pytest.mark.parametrize(
        ("schema", "value", "problems"),
        [
            ({"required": ["a", "b"]}, {}, {"a": "Missing required field", "b": "Missing required field"}),
            ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, {"b": "Unknown field; known are: a"}),
            ({"additionalProperties": False}, {"b": 1}, {"b": "Unknown field; known are: none"}),
            ({"additionalProperties": {"type": "string"}}, {"b": 1}, {"b": "Expected type string, got integer 1"}),
            ({"patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": False}, {"n_1": "x"}, {"n_1": "Expected type number, got string 'x'"}),
            ({"propertyNames": {"maxLength": 1}}, {"bb": 1}, {"bb": "Name not allowed: must have at most 1 characters, got 2"}),
            ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, {"b": "Missing field, required when a is given"}),
            ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, {"b": "Missing required field"}),
            ({"properties": {"a": {"prefixItems": [{"type": "string"}], "items": False}}}, {"a": [1, 2]}, {"a[0]": "Expected type string, got integer 1", "a[1]": "Not allowed here"}),
            ({"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}}, "$ref": "#/$defs/n"}, {"next": {"v": "x"}}, {"next.v": "Expected type integer, got string 'x'"}),
        ],
    )  # fmt: skip
    def test_every_problem_is_told_with_its_path(self, schema: Any, value: Any, problems: dict[str, str]) -> None:
        """All at once."""
        assert details(make({"type": "object", **schema}), value) == problems


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5, -2.5]) | st.sampled_from(["", "a", "bb", "n_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "n_1"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.lists(st.sampled_from(["a", "b", "n_1"]), max_size=2, unique=True)
COUNT = st.integers(0, 2)


@st.composite
def few(draw: st.DrawFn, known: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True))
    return {keyword: draw(known[keyword]) for keyword in chosen}


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from(["a", "b", "n_1"]), inner, max_size=2)
    some = st.lists(inner, min_size=1, max_size=2)
    kinds = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])
    # A few keywords at a time: more of them and hardly any value would fit.
    return few(
        {
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "enum": st.lists(JSON, min_size=1, max_size=3),
            "const": JSON,
            "minimum": st.integers(-2, 2),
            "maximum": st.integers(-2, 2),
            "exclusiveMinimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": COUNT,
            "maxLength": COUNT,
            "pattern": st.sampled_from(["^a$", "b", "_[0-9]"]),
            "minItems": COUNT,
            "maxItems": COUNT,
            "uniqueItems": st.booleans(),
            "minProperties": COUNT,
            "maxProperties": COUNT,
            "required": NAMES,
            "properties": fields,
            "patternProperties": st.dictionaries(st.sampled_from(["^n_", "b$"]), inner, max_size=1),
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependentRequired": st.dictionaries(st.sampled_from(["a", "b"]), NAMES, max_size=1),
            "dependentSchemas": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=1),
            "items": inner,
            "prefixItems": some,
            "contains": inner,
            "minContains": COUNT,
            "maxContains": COUNT,
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        }
    )


SCHEMAS = st.recursive(st.booleans() | keywords(st.booleans()), keywords, max_leaves=4)


@given(field=SCHEMAS, value=JSON)
@settings(max_examples=300)
def test_an_independent_validator_agrees(field: Any, value: Any) -> None:
    """What the schema accepts is what the tool accepts, by the verdict of another implementation."""
    tool = with_field(field)
    verdict = jsonschema_rs.validator_for({"$schema": "https://json-schema.org/draft/2020-12/schema", **tool.schema()})
    try:
        tool.parse({"a": value})
        accepted = True
    except ParseError:
        accepted = False
    assert accepted == verdict.is_valid({"a": value})
