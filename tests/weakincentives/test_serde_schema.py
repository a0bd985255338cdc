"""The JSON Schema of a type: what it says, and that it accepts exactly what the parser accepts."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import re
import typing
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

import jsonschema_rs
import pytest
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MaxLen, MinLen, MultipleOf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives.errors import PromptValidationError
from weakincentives.serde import ParseError, Pattern, Secret, parse, schema

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Address:
    """Where somebody lives."""

    street: str
    """Street and number."""

    city: str = "Bern"


@dataclass(frozen=True)
class Base:
    shared: int
    """Said in the base."""


@dataclass(frozen=True)
class Derived(Base):
    own: str = "x"
    """Said in the subclass."""


@dataclass(frozen=True)
class Tree:
    value: int
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]


@dataclass(frozen=True)
class StringPage(Page[str]):
    title: str = ""


@dataclass(frozen=True)
class Everything:
    """Many kinds."""

    required: int
    told: Annotated[str, "By the annotation."]
    metadata: int = field(default=1, metadata={"description": "By the metadata."})
    optional: str | None = None
    color: Color = Color.RED
    level: Level = Level.LOW
    mode: Literal["a", "b"] = "a"
    address: Address | None = None
    home: Address = field(default_factory=lambda: Address("here"))
    tags: frozenset[str] = frozenset()
    extra: dict[str, int] = field(default_factory=dict)
    token: Annotated[str, Secret] = "hidden"
    derived: int = field(default=0, init=False)


def accepts(made: dict[str, Any], value: object) -> bool:
    return jsonschema_rs.Draft202012Validator(made, validate_formats=True).is_valid(value)


def parses(cls: Any, value: object) -> bool:
    try:
        parse(cls, value)
    except ParseError:
        return False
    return True


def properties(cls: type) -> dict[str, Any]:
    return schema(cls)["properties"]


def test_a_record_lists_required_fields_and_forbids_others() -> None:
    """Fields without a default are required and extra keys are refused."""
    made = schema(Everything)
    assert (made["type"], made["required"], made["additionalProperties"]) == ("object", ["required", "told"], False)


def test_nested_records_are_definitions_that_forbid_extra_keys_too() -> None:
    """A nested class is written once, under $defs, with the same strictness."""
    made = schema(Everything)
    assert list(made["$defs"]) == ["Address"]
    assert made["$defs"]["Address"]["additionalProperties"] is False
    assert made["properties"]["address"] == {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None}


def test_defaults_are_shown_as_json() -> None:
    """Defaults appear in their JSON form; those of unknown factories do not appear."""
    made = properties(Everything)
    assert made["color"]["default"] == "red"
    assert made["extra"]["default"] == {}
    assert made["tags"]["default"] == []
    assert "default" not in made["home"]


def test_a_secret_default_is_not_shown() -> None:
    """The schema goes to a provider, so a secret's default stays out of it."""
    assert "default" not in properties(Everything)["token"]


def test_literals_and_enums_are_enum_lists() -> None:
    """Closed word lists are written as enum."""
    made = properties(Everything)
    assert made["mode"]["enum"] == ["a", "b"]
    assert made["color"]["enum"] == ["red", "blue"]
    assert made["level"] == {"enum": [1, 2], "type": "integer", "default": 1}


def test_fields_without_init_are_not_arguments() -> None:
    """A field the constructor does not take is not offered."""
    assert "derived" not in properties(Everything)


@pytest.mark.parametrize(
    ("cls", "name", "text"),
    [
        (Address, "street", "Street and number."),
        (Everything, "told", "By the annotation."),
        (Everything, "metadata", "By the metadata."),
        (Derived, "shared", "Said in the base."),
        (Derived, "own", "Said in the subclass."),
    ],
)
def test_descriptions_come_from_the_string_the_annotation_or_the_metadata(cls: type, name: str, text: str) -> None:
    """Each way of describing a field reaches the schema, inherited strings too."""
    assert properties(cls)[name]["description"] == text


def test_the_class_docstring_describes_the_object() -> None:
    """A written docstring is the object's description; one that @dataclass wrote is not."""
    assert schema(Address)["description"] == "Where somebody lives."
    assert "description" not in schema(Base)


def test_a_local_class_has_its_descriptions() -> None:
    """The string under a field is found for a class inside a function as well."""

    @dataclass
    class Local:
        name: str
        """Named here."""

    assert properties(Local)["name"]["description"] == "Named here."


def test_a_class_without_source_has_no_descriptions() -> None:
    """Without source the description is left out."""
    made = dataclasses.make_dataclass("Made", [("name", str)])
    assert schema(made)["properties"] == {"name": {"type": "string"}}


def test_recursive_types_are_finite() -> None:
    """A type that contains itself refers to its definition."""
    made = schema(Tree)
    assert accepts(made, {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]})
    assert not accepts(made, {"value": 1, "children": [{"value": 2, "children": [{"value": "3"}]}]})


def test_generic_classes_are_filled_in() -> None:
    """Type arguments reach the fields, directly and through a base class."""
    assert schema(Page[int])["properties"]["items"] == {"type": "array", "items": {"type": "integer"}}
    assert properties(StringPage)["items"] == {"type": "array", "items": {"type": "string"}}


def test_two_classes_of_one_name_get_two_definitions() -> None:
    """Definitions never collide."""
    one = dataclasses.make_dataclass("Same", [("a", int)])
    two = dataclasses.make_dataclass("Same", [("b", int)])
    both = dataclasses.make_dataclass("Both", [("one", one), ("two", two)])
    made = schema(both)
    assert len(made["$defs"]) == 2
    assert accepts(made, {"one": {"a": 1}, "two": {"b": 1}})
    assert not accepts(made, {"one": {"b": 1}, "two": {"b": 1}})


def test_callers_cannot_poison_the_cache() -> None:
    """Each caller gets a copy of its own."""
    schema(Address)["properties"].clear()
    assert list(properties(Address)) == ["street", "city"]


@pytest.mark.parametrize(
    ("hint", "keywords"),
    [
        (Annotated[int, Ge(1), Le(9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[float, Gt(0), Lt(1.5)],
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1.5},
        ),
        (Annotated[int, Interval(ge=1, lt=5)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}),
        (Annotated[int, MultipleOf(5)], {"type": "integer", "multipleOf": 5}),
        (Annotated[str, MinLen(1), MaxLen(3)], {"type": "string", "minLength": 1, "maxLength": 3}),
        (Annotated[str, Pattern("^a+$")], {"type": "string", "pattern": "^a+$"}),
        (Annotated[str, re.compile("^b")], {"type": "string", "pattern": "^b"}),
        (
            Annotated[list[int], Len(1, 2)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ),
        (
            Annotated[dict[str, int], MinLen(1)],
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        ),
        (Annotated[int, Ge(1)] | None, {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        (Annotated[int | None, Ge(1)], {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
    ],
)
def test_constraints_are_written_as_keywords(hint: Any, keywords: dict[str, Any]) -> None:
    """Annotated constraints appear under JSON Schema's own names, on the member of an optional type too."""
    assert schema(hint) == keywords


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (set[list[int]], "items of a set must be hashable"),
        (dict[float, int], "keys are text"),
        (typing.Callable[[], int], "has no JSON form"),
        (complex, "has no JSON form"),
        (Annotated[str, Ge(1)], "ge=1 does not apply"),
        (Annotated[str, Pattern("(")], "is not valid"),
        (Annotated[str, re.compile("a", re.IGNORECASE)], "flags"),
    ],
)
def test_unsupported_field_types_are_refused_by_name(hint: Any, reason: str) -> None:
    """A type with no JSON form, and a constraint that cannot apply, name the field that has it."""
    cls = dataclasses.make_dataclass("Params", [("field", hint)])
    with pytest.raises(PromptValidationError, match=rf"^Cannot use Params\.field.*{re.escape(reason)}"):
        schema(cls)


# --- the schema accepts exactly what the parser accepts ------------------------------------------------------------

_TEXTS = [
    "", "a", "ab", "red", "10", "1.50", "-0", "1e5", "NaN", ".5", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29",
    "0000-01-01", "2024-01-31T10:00:00", "2024-01-31T10:00:00Z", "2024-01-31t10:00:00.123456789z", "2024-04-31T10:00:00",
    "2023-02-29T00:00:00", "2024-02-29T23:59:59.5+05:30", "2024-12-31T23:59:60Z", "2024-01-31 10:00:00", "2024-01-31T10:00",
    "2024-01-31T24:00:00", "0000-01-01T00:00:00Z", "0000-01-01T00:00:00", "1600000000", "10:00:00", "10:00:00+01:00", "25:00:00",
    "PT1H30M", "P1DT0.5S", "P", "PT", "-P1D", "P1Y", "123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000",
    "123E4567-E89B-12D3-A456-426614174000", "aGk=", "aGk", "a b", "x\n", "aaa\n", "٣", "é", "日本",
]  # fmt: skip
_LEAVES: list[Any] = [
    int, float, str, bool, None, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID,
    decimal.Decimal, pathlib.Path, bytes, Any, Color, Level, Literal["a", "b", 1], Literal[True, 2], Literal["red", None],
    Annotated[int, Ge(0), Lt(5)], Annotated[float, Gt(-1), Le(2)], Annotated[int, MultipleOf(3)], Annotated[str, Len(1, 2)],
    Annotated[str, Pattern("^a+$")], Annotated[str, Pattern(r"^\d+$")], Address, Tree,
]  # fmt: skip
_HASHABLE: list[Any] = [int, str, Color, tuple[int, str], uuid.UUID]
_KEYS: list[Any] = [str, int, datetime.date, Color, Literal["a", "red"], Annotated[str, Len(1, 1)]]


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda tp: list[tp]),
        inner.map(lambda tp: tuple[tp, ...]),
        st.lists(inner, max_size=2).map(lambda tps: tuple[tuple(tps)] if tps else tuple[int]),  # type: ignore[misc]
        st.sampled_from(_HASHABLE).map(lambda tp: frozenset[tp]),
        st.tuples(st.sampled_from(_KEYS), inner).map(lambda pair: dict[pair[0], pair[1]]),
        inner.map(lambda tp: typing.Optional[tp]),  # noqa: UP045
        st.lists(inner, min_size=2, max_size=3).map(lambda tps: typing.Union[tuple(tps)]),  # noqa: UP007
        inner.map(lambda tp: Annotated[list[tp], Len(1, 2)]),
        st.lists(st.tuples(inner, st.booleans()), max_size=3).map(_record),
    )


def _record(members: list[tuple[Any, bool]]) -> type:
    fields: list[Any] = []
    for at, (tp, optional) in enumerate(members):
        fields.append((f"f{at}", tp, field(default=None)) if optional else (f"f{at}", tp))
    return dataclasses.make_dataclass("Random", fields, frozen=True, kw_only=True)


TYPES = st.recursive(st.sampled_from(_LEAVES), _grow, max_leaves=5)
_SCALARS = st.one_of(
    st.sampled_from(_TEXTS), st.text(max_size=3), st.integers(-6, 6), st.integers(-(2**70), 2**70), st.booleans(), st.none(),
    st.floats(-(2**53), 2**53),  # beyond, an integral float names no one integer st.sampled_from([1.0, 2.0, 0.5, -0.0]),
)  # fmt: skip
JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "f0", "red", "1"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def _near(tp: Any) -> st.SearchStrategy[Any]:
    """JSON that mostly fits the type, so that the accepting side is reached too."""
    origin, arguments = typing.get_origin(tp), typing.get_args(tp)
    if origin is Annotated:
        return _near(arguments[0])
    if dataclasses.is_dataclass(tp):
        hints = typing.get_type_hints(tp, include_extras=True)
        chosen = {
            each.name: JSON if hints[each.name] is Tree or tp is Tree else _near(hints[each.name])
            for each in dataclasses.fields(tp)
        }
        optional = {each.name for each in dataclasses.fields(tp) if each.default is not dataclasses.MISSING}
        exact = st.fixed_dictionaries(
            {name: value for name, value in chosen.items() if name not in optional},
            optional={name: value for name, value in chosen.items() if name in optional},
        )
        return exact | st.tuples(exact, st.dictionaries(st.sampled_from(["f9", "city"]), JSON, max_size=1)).map(
            lambda pair: pair[0] | pair[1]
        )
    if origin is typing.Union:
        return st.one_of([_near(argument) for argument in arguments])
    if origin is dict:
        return st.dictionaries(
            st.sampled_from(["a", "b", "red", "1", "-0", "01", "2024-01-01"]), _near(arguments[1]), max_size=2
        )
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return st.tuples(*[_near(argument) for argument in arguments]).map(list)
    if origin in (list, tuple, frozenset):
        return st.lists(_near(arguments[0]), max_size=3)
    if tp is int or tp is float:
        return st.integers(-6, 6) | st.floats(-9, 9)
    return _SCALARS


def _agrees(tp: Any, value: object) -> bool:
    """Where JSON Schema cannot speak: set items that are equal only as Python values are refused by the parser alone."""
    return accepts(schema(tp), value) == parses(tp, value)


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_schema_and_parser_agree_on_random_types_and_json(data: st.DataObject) -> None:
    """An independent validator accepts a value by the schema if and only if the parser accepts it."""
    tp = data.draw(TYPES)
    for value in (data.draw(_near(tp)), data.draw(JSON)):
        assert _agrees(tp, value), (tp, value, schema(tp))


@pytest.mark.parametrize("leaf", _LEAVES, ids=str)
def test_schema_and_parser_agree_on_every_known_text_and_scalar(leaf: Any) -> None:
    """Each scalar type agrees with its schema on every tricky text: leap days, leap seconds, offsets, exponents."""
    scalars: list[object] = [*_TEXTS, 0, 1, 3, -1, 7, 1.0, 2.5, 1e30, True, False, None, [], {}, 2**70]
    disagree = [value for value in scalars if not _agrees(leaf, value)]
    assert disagree == []


@settings(max_examples=200)
@given(st.dates(), st.booleans())
def test_schema_and_parser_agree_on_the_calendar(date: datetime.date, shift: bool) -> None:
    """Days that do not exist are refused by both, in date-times without an offset as well."""
    text = date.isoformat()[:8] + ("31" if shift else "29") + "T00:00:00"
    assert _agrees(datetime.datetime, text)
    assert _agrees(datetime.date, text[:10])
