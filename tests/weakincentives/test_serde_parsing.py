"""Parsing: what is accepted, and every text that says what is wrong."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import pickle
import subprocess
import sys
import types
import uuid
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import date
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

import pytest
from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen, MultipleOf, Predicate
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.errors import PromptValidationError
from weakincentives.serde import ParseError, Pattern, Secret, parse, parse_json, parser, resolve_types, schema

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Search:
    query: str
    limit: int = 10
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Circle:
    kind: Literal["circle"]
    radius: float


@dataclass(frozen=True)
class Square:
    kind: Literal["square"]
    side: float


@dataclass(frozen=True)
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ArithmeticError(f"number must be even, got {self.number}")


@dataclass(frozen=True)
class Tree:
    value: int
    left: Tree | None = None


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True)
class Login:
    user: str
    token: Annotated[str, Secret, MinLen(8)]

    def __post_init__(self) -> None:
        if self.user == "nobody":
            raise ValueError(f"cannot log in with {self.token}")


def one(hint: Any, default: Any = dataclasses.MISSING) -> type[Any]:
    """A class with one field called `field`."""
    spec: Any = ("field", hint) if default is dataclasses.MISSING else ("field", hint, default)
    return dataclasses.make_dataclass("Params", [spec], frozen=True)


def accepted(hint: Any, value: object) -> Any:
    return parse(one(hint), {"field": value}).field


def refused(hint: Any, value: object) -> dict[str, str]:
    with pytest.raises(ParseError) as caught:
        parse(one(hint), {"field": value})
    return caught.value.details


# --- what is accepted ------------------------------------------------------------------------------------------------

UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 5, 5),
        (int, 5.0, 5),
        (int, 2**80, 2**80),
        (float, 3, 3.0),
        (float, 0.5, 0.5),
        (str, "a", "a"),
        (bool, True, True),
        (UserId, 7, UserId(7)),
        (datetime.datetime, "2024-01-31T10:00:00Z", datetime.datetime(2024, 1, 31, 10, tzinfo=datetime.UTC)),
        (datetime.datetime, "2024-01-31T10:00:00", datetime.datetime(2024, 1, 31, 10)),
        (datetime.date, "2024-01-31", datetime.date(2024, 1, 31)),
        (datetime.time, "10:30:00", datetime.time(10, 30)),
        (datetime.timedelta, "-P1DT0.5S", -datetime.timedelta(days=1, seconds=0.5)),
        (uuid.UUID, UUID_TEXT, uuid.UUID(UUID_TEXT)),
        (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
        (decimal.Decimal, 9.99, decimal.Decimal("9.99")),
        (decimal.Decimal, 3, decimal.Decimal(3)),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (bytes, "aGk=", b"hi"),
        (Color, "red", Color.RED),
        (Level, 2, Level.HIGH),
        (Literal["a", 1, True], 1, 1),
        (list[int], [1, 2], [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[()], [], ()),
        (set[str], ["a", "b"], {"a", "b"}),
        (frozenset[int], [1, 2], frozenset({1, 2})),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (dict[Color, int], {"red": 1}, {Color.RED: 1}),
        (Mapping[datetime.date, int], {"2024-01-31": 1}, {datetime.date(2024, 1, 31): 1}),
        (int | float, 1, 1),
        (int | float, 1.0, 1.0),
        (int | None, None, None),
        (uuid.UUID | str, "plain", "plain"),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (Circle | Square, {"kind": "square", "side": 2}, Square("square", 2.0)),
        (Box[int], {"content": 1}, Box(1)),
        (Tree, {"value": 1, "left": {"value": 2}}, Tree(1, Tree(2))),
    ],
)
def test_json_is_widened_without_loss(hint: Any, value: object, expected: object) -> None:
    """Each type takes its JSON form and gives the exact Python value, of the exact type."""
    got = accepted(hint, value)
    assert got == expected
    assert type(got) is type(expected)


def test_an_integer_stays_an_integer_beside_a_float() -> None:
    """Of `int | float`, 1 is an int and 1.0 a float, whichever is written first."""
    assert [type(accepted(float | int, value)) for value in (1, 1.0)] == [int, float]


@pytest.mark.parametrize("raw", ['{"query":"a","limit":5}', b'{"query":"a","limit":5}'])
def test_json_text_is_parsed(raw: str | bytes) -> None:
    """Text and bytes give the same value."""
    assert parse_json(Search, raw) == Search("a", 5)


def test_a_plain_value_can_be_parsed_without_a_class() -> None:
    """Any supported type can be the root."""
    assert parse(list[Item], [{"name": "a"}]) == [Item("a")]


def test_a_read_only_mapping_is_accepted() -> None:
    """Every mapping with string keys is as good as a dict, at any depth."""
    data = types.MappingProxyType({"query": "a", "items": ({"name": "b"},)})
    assert parse(Search, data) == Search("a", items=(Item("b"),))


def test_extra_keys_can_be_ignored() -> None:
    """With extra="ignore" unknown keys are dropped."""
    assert parse(Search, {"query": "a", "other": 1}, extra="ignore") == Search("a")


def test_an_unknown_mode_for_extra_keys_is_refused() -> None:
    """The word list is closed."""
    with pytest.raises(ValueError, match="extra must be 'forbid' or 'ignore', got 'allow'"):
        parse(Search, {"query": "a"}, extra="allow")  # type: ignore[arg-type]


def test_the_last_of_repeated_keys_counts() -> None:
    """JSON text that repeats a key is read as every mapping would hold it."""
    assert parse_json(Search, '{"query":"a","query":"b"}') == Search("b")


def test_defaults_and_factories_come_from_the_class() -> None:
    """A missing field gets what the constructor gives it; factories run for each value."""

    @dataclass
    class Params:
        seen: list[int] = field(default_factory=list)
        size: int = field(default=0, init=False)

    first, second = parse(Params, {}), parse(Params, {})
    first.seen.append(1)
    assert (second.seen, second.size) == ([], 0)


def test_init_vars_are_arguments() -> None:
    """An InitVar is parsed and handed to __post_init__."""

    @dataclass
    class Params:
        start: InitVar[int]
        total: int = 0

        def __post_init__(self, start: int) -> None:
            self.total += start

    assert parse(Params, {"start": 2, "total": 3}).total == 5


def test_keyword_only_and_inherited_fields_are_parsed() -> None:
    """Field order and keyword-only fields make no difference."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        first: int = 1

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Params(Base):
        second: str

    assert parse(Params, {"second": "a", "first": 2}) == Params(first=2, second="a")


def test_a_field_may_be_called_like_its_type() -> None:
    """`date: date | None = None` means the type, not the default that hides it."""

    @dataclass
    class Params:
        date: date | None = None

    assert parse(Params, {"date": "2024-01-31"}) == Params(datetime.date(2024, 1, 31))


def test_the_class_is_left_alone() -> None:
    """Parsing and schema add nothing to the user's class."""
    cls = dataclasses.make_dataclass("Params", [("field", int)])
    before = set(vars(cls))
    parse(cls, {"field": 1})
    schema(cls)
    assert set(vars(cls)) == before


def test_a_parser_is_made_once_per_type() -> None:
    """The compiled parser is kept."""
    assert parser(Search) is parser(Search)


# --- names ------------------------------------------------------------------------------------------------------------


def test_local_classes_resolve_with_a_namespace_once() -> None:
    """A class inside a function resolves with the caller's locals, and needs them no more afterwards."""

    @dataclass
    class Inner:
        number: int

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(PromptValidationError, match=r"Cannot resolve the type of .*Outer\.inner: the name 'Inner'"):
        parser(Outer)
    parser(Outer, localns={"Inner": Inner})
    assert parse(Outer, {"inner": {"number": 1}}) == Outer(Inner(1))
    assert resolve_types(Outer) == {"inner": Inner}


def test_a_quoted_name_inside_a_type_is_resolved() -> None:
    """Text inside a list is a name of the class's module."""
    cls = dataclasses.make_dataclass("Params", [("items", list["Item"])], namespace={"__module__": __name__})
    assert parse(cls, {"items": [{"name": "a"}]}).items == [Item("a")]


def test_an_unresolvable_field_is_named_by_the_schema_too() -> None:
    """Schema and parser refuse alike, saying which field and why."""
    cls = one("Nowhere")
    with pytest.raises(PromptValidationError) as caught:
        schema(cls)
    assert str(caught.value) == (
        "Cannot resolve the type of Params.field: the name 'Nowhere' is not defined where the class is"
    )


def test_importing_serde_does_not_import_pydantic() -> None:
    """Pydantic is loaded at the first parse, not at import, and the schema needs none."""
    program = (
        "import sys, dataclasses, weakincentives.serde as s, weakincentives.serde.codec\n"
        "s.schema(dataclasses.make_dataclass('P', [('a', int)]))\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the texts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, "10", "Expected type integer, got string '10'"),
        (int, True, "Expected type integer, got boolean true"),
        (int, 1.5, "Expected type integer, got number 1.5"),
        (int, None, "Expected type integer, got null"),
        (int, [], "Expected type integer, got array"),
        (int, {}, "Expected type integer, got object"),
        (int, "x" * 100, f"Expected type integer, got string '{'x' * 57}...'"),
        (str, 2**300, "Expected type string, got integer of more than 60 digits"),
        (int | None, "10", "Expected type integer or null, got string '10'"),
        (float, "1", "Expected type number, got string '1'"),
        (float, False, "Expected type number, got boolean false"),
        (str, 1, "Expected type string, got integer 1"),
        (bool, "true", "Expected type boolean, got string 'true'"),
        (list[int], "a", "Expected type array, got string 'a'"),
        (tuple[int, str], {}, "Expected type array, got object"),
        (dict[str, int], [], "Expected type object, got array"),
        (Item, "a", "Expected type object, got string 'a'"),
        (None, 1, "Expected type null, got integer 1"),
        (pathlib.Path, 1, "Expected type string, got integer 1"),
        (
            datetime.datetime,
            "soon",
            "Expected type date-time (text like 2026-01-31T12:30:00Z), got string 'soon'",
        ),
        (datetime.date, "2024-02-30", "Expected type date (text like 2026-01-31), got string '2024-02-30'"),
        (datetime.time, "10:00", "Expected type time (text like 12:30:00), got string '10:00'"),
        (datetime.timedelta, "1h", "Expected type duration (text like PT1H30M), got string '1h'"),
        (uuid.UUID, "1", f"Expected type uuid (text like {UUID_TEXT}), got string '1'"),
        (decimal.Decimal, "ten", "Expected type decimal (number or text like 12.50), got string 'ten'"),
        (decimal.Decimal, True, "Expected type decimal (number or text like 12.50), got boolean true"),
        (decimal.Decimal, "NaN", "must be a finite number, got 'NaN'"),
        (bytes, "%", "Expected type bytes (base64 text), got string '%'"),
        (Literal["a", "b"], "c", "field must be one of: a, b"),
        (Literal["a", 1, True], 2, "field must be one of: a, 1, true"),
        (Literal[1], True, "field must be one of: 1"),
        (Literal["a", None], "c", "field must be one of: a, null"),
        (Color, "green", "field must be one of: red, blue"),
        (Level, True, "field must be one of: 1, 2"),
        (Color | int, "green", "field must be one of: red, blue, or of type integer"),
        (int | str, [], "Expected type integer or string, got array"),
        (int | str | None, [], "Expected type integer, string or null, got array"),
        (set[int], [1, 1], "must not list the same item twice"),
        (Annotated[int, Ge(1)], 0, "must be >= 1, got 0"),
        (Annotated[int, Gt(1)], 1.0, "must be > 1, got 1"),
        (Annotated[float, Le(1.5)], 2, "must be <= 1.5, got 2"),
        (Annotated[float, Lt(0)], 0.5, "must be < 0.0, got 0.5"),
        (Annotated[int, Ge(0.5)], 0, "must be >= 0.5, got 0"),
        (Annotated[int, MultipleOf(5)], 7, "must be a multiple of 5, got 7"),
        (Annotated[decimal.Decimal, Ge(1)], "0.5", "must be >= 1, got '0.5'"),
        (
            Annotated[datetime.date, Ge(datetime.date(2024, 1, 1))],
            "2023-01-01",
            "must be >= 2024-01-01, got '2023-01-01'",
        ),
        (Annotated[str, MinLen(2)], "a", "must have at least 2 characters, got 1"),
        (Annotated[str, MaxLen(1)], "ab", "must have at most 1 character, got 2"),
        (Annotated[list[int], MinLen(1)], [], "must have at least 1 item, got 0"),
        (Annotated[tuple[int, ...], MaxLen(1)], [1, 2], "must have at most 1 item, got 2"),
        (Annotated[dict[str, int], Len(2)], {"a": 1}, "must have at least 2 fields, got 1"),
        (Annotated[bytes, MaxLen(1)], "aGk=", "must have at most 1 bytes, got 'aGk='"),
        (tuple[int], [1, 2], "must have at most 1 item, got 2"),
        (Annotated[str, Pattern("^a+$")], "b", "must match the pattern ^a+$, got 'b'"),
        (Annotated[str, Predicate(str.islower)], "A", "must satisfy islower, got 'A'"),
        (Annotated[int, Predicate(lambda value: value > 1)], 0, "must satisfy its condition, got 0"),
        (Even, {"number": 3}, "number must be even, got 3"),
        (Any, float("inf"), "must be a finite number, got Infinity"),
        (float, float("nan"), "must be a finite number, got NaN"),
        (float, 10**400, "must be a finite number, got an integer of more than 60 digits"),
        (Any, object(), "Expected a JSON value, got object"),
        (Any, Color.RED, "Expected a JSON value, got Color"),
        (Any, {1, 2}, "Expected a JSON value, got set"),
        (Any, {1: 2}, "Expected an object whose keys are strings, got a key of int"),
        (Any, {"\ud800": 2}, "Expected an object whose keys are strings, got a key of text that is not valid Unicode"),
        (str, "\ud800", "Expected valid Unicode text, got half of a surrogate pair"),
        pytest.param(int, 10**5000, "Expected a smaller number, got integer of more than 4000 digits", id="huge"),
    ],
)
def test_each_problem_has_its_text(hint: Any, value: object, text: str) -> None:
    """One bad field gives one entry with the pinned text."""
    assert refused(hint, value) == {"field": text}


@pytest.mark.parametrize(
    ("hint", "value", "details"),
    [
        (tuple[int, str], [1], {"field[1]": "Missing required item"}),
        (list[Item], [{"name": "a"}, {}], {"field[1].name": "Missing required field"}),
        (dict[str, Item], {"a b": {"name": 1}}, {'field["a b"].name': "Expected type string, got integer 1"}),
        (dict[int, int], {"x": 1}, {"field.x": "Expected a key of type integer, got string 'x'"}),
        (dict[Color, int], {"green": 1}, {"field.green": "Key must be one of: red, blue"}),
        (list[Literal["a"]], ["a", "b"], {"field[1]": "field[1] must be one of: a"}),
        (Item | None, {"nam": "a"}, {"field.name": "Missing required field", "field.nam": "Unknown field; did you mean 'name'?"}),
        (Item | str, {"name": 1}, {"field.name": "Expected type string, got integer 1"}),
        (Circle | Square, {"kind": "square"}, {"field.side": "Missing required field"}),
        (Circle | Square, {"kind": "star"}, {"field.kind": "kind must be one of: circle, square"}),
        (
            Item | Tree,
            {"other": 1},
            {
                "field": "Fits none of: Item (name: Missing required field; other: Unknown field; known fields: name, count), "
                "Tree (value: Missing required field; other: Unknown field; known fields: value, left)"
            },
        ),
        (Annotated[int, Ge(1)] | str, 0, {"field": "must be >= 1, got 0"}),
        (list[int | str], [1, None, 2.5], {
            "field[1]": "Expected type integer or string, got null", "field[2]": "Expected type integer or string, got number 2.5",
        }),
        (Tree, {"value": 1, "left": {"value": 1, "left": {}}}, {"field.left.left.value": "Missing required field"}),
        (list[Even], [{"number": 1}, {"number": "a"}], {
            "field[0]": "number must be even, got 1", "field[1].number": "Expected type integer, got string 'a'",
        }),
    ],
)  # fmt: skip
def test_problems_are_keyed_by_their_path(hint: Any, value: object, details: dict[str, str]) -> None:
    """Paths lead to the bad value, and a union speaks with one voice."""
    assert refused(hint, value) == details


def test_all_problems_are_told_at_once() -> None:
    """Missing, wrong, nested and unknown fields are reported together, in order."""
    with pytest.raises(ParseError) as caught:
        parse(Search, {"limit": "10", "items": [{"name": "a"}, {"name": 1, "zzz": 0}], "querry": "x"})
    assert caught.value.details == {
        "query": "Missing required field",
        "limit": "Expected type integer, got string '10'",
        "items[1].name": "Expected type string, got integer 1",
        "items[1].zzz": "Unknown field; known fields: name, count",
        "querry": "Unknown field; did you mean 'query'?",
    }


def test_problems_beside_a_value_json_cannot_hold_are_told_too() -> None:
    """An object that is not JSON does not hide the other problems."""
    with pytest.raises(ParseError) as caught:
        parse(Search, {"query": object(), "limit": "10"})
    assert caught.value.details == {
        "query": "Expected a JSON value, got object",
        "limit": "Expected type integer, got string '10'",
    }


def test_a_class_without_fields_says_so() -> None:
    """An argument nobody takes is refused in words."""
    cls = dataclasses.make_dataclass("Params", [])
    with pytest.raises(ParseError) as caught:
        parse(cls, {"a": 1})
    assert caught.value.details == {"a": "Unknown field; no fields are accepted"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("", "Not valid JSON: EOF while parsing a value at line 1 column 0; send one JSON object"),
        ("{", "Not valid JSON: EOF while parsing an object at line 1 column 1; send one JSON object"),
        ("null", "Expected type object, got null"),
        ("[]", "Expected type object, got array"),
        ("\ud800{", "Not valid JSON: it holds half of a surrogate pair; send one JSON object"),
        (5, "Expected JSON text, got int"),
        ("[" * 1000, "Not valid JSON: recursion limit exceeded at line 1 column 202; send one JSON object"),
    ],
)
def test_a_body_that_is_no_object_is_a_problem_of_the_whole(raw: str, text: str) -> None:
    """What is wrong with the whole body has the key $."""
    with pytest.raises(ParseError) as caught:
        parse_json(Search, raw)
    assert caught.value.details == {"$": text}


def test_infinite_numbers_in_json_text_are_refused_everywhere() -> None:
    """NaN and infinity are refused in numbers, decimals and free values, at any depth."""
    cls = dataclasses.make_dataclass(
        "Params", [("a", float), ("b", decimal.Decimal), ("c", Any), ("d", Any), ("e", int)]
    )
    with pytest.raises(ParseError) as caught:
        parse_json(cls, '{"a": NaN, "b": Infinity, "c": -Infinity, "d": [{"x": 1e999}], "e": NaN}')
    assert caught.value.details == {
        "a": "must be a finite number, got NaN",
        "b": "must be a finite number, got Infinity",
        "c": "must be a finite number, got -Infinity",
        "d": "must hold finite numbers only",
        "e": "Expected type integer, got number NaN",
    }


def test_a_mapping_that_contains_itself_is_refused() -> None:
    """A cycle is a problem of the whole, not an endless loop."""
    data: dict[str, Any] = {"query": "a"}
    data["self"] = data
    with pytest.raises(ParseError) as caught:
        parse(Search, data)
    assert caught.value.details["$"] == "Nested deeper than 190 levels, or contains itself; send a flatter value"


class Unspeakable(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("unlucky"), "unlucky"),
        (RuntimeError(), "RuntimeError"),
        (TypeError("odd"), "odd"),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_whatever_the_constructor_raises_is_a_problem_of_the_arguments(error: Exception, text: str) -> None:
    """Any exception becomes the entry of the object that could not be built."""

    @dataclass
    class Params:
        number: int

        def __post_init__(self) -> None:
            raise error

    with pytest.raises(ParseError) as caught:
        parse(Params, {"number": 1})
    assert caught.value.details == {"$": text}


def test_leaving_the_program_is_not_a_parse_error() -> None:
    """KeyboardInterrupt and its kind pass through."""

    @dataclass
    class Params:
        def __post_init__(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parse(Params, {})


def test_a_parse_error_is_a_value_error_that_reads_well() -> None:
    """Its text lists every entry."""
    with pytest.raises(ValueError, match=r"^query: Missing required field; limit: Expected type integer, got null$"):
        parse(Search, {"limit": None})


def test_a_parse_error_survives_pickling() -> None:
    """It can cross a process boundary."""
    error = pickle.loads(pickle.dumps(ParseError({"a": "b"})))
    assert (error.details, str(error)) == ({"a": "b"}, "a: b")


def test_the_metadata_of_a_pydantic_field_is_read() -> None:
    """Constraints and description of Field(…) hold in parser and schema."""
    from pydantic import Field

    hint = Annotated[int, Field(ge=1, description="How many.")]
    assert refused(hint, 0) == {"field": "must be >= 1, got 0"}
    assert schema(one(hint))["properties"]["field"] == {"type": "integer", "minimum": 1, "description": "How many."}


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "details"),
    [
        ({"user": "a", "token": "hunter2"}, {"token": "must have at least 8 characters"}),
        ({"user": "a", "token": 12345678}, {"token": "Expected type string, got integer"}),
        ({"user": "nobody", "token": "hunter2-long"}, {"$": "cannot log in with [redacted]"}),
    ],
)
def test_secret_values_are_never_shown(data: dict[str, object], details: dict[str, str]) -> None:
    """Texts about a secret field, and what the class says itself, leave the value out."""
    with pytest.raises(ParseError) as caught:
        parse(Login, data)
    assert caught.value.details == details


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[int, Secret],
        Annotated[int, Secret] | None,
        Annotated[list[int], Secret],
        Annotated[int | bool, Secret],
        Annotated[Annotated[int, Ge(5)], Secret],
        list[Annotated[int, Secret]],
        Login,
        list[Login] | None,
        tuple[Login, int] | dict[str, Login],
        Annotated[Literal["a"], Secret],
    ],
)
@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], 3])
def test_no_form_of_secret_leaks(hint: Any, value: object) -> None:
    """Optional, nested, constrained and listed secrets stay hidden."""
    try:
        parse(one(hint), {"field": value})
    except ParseError as error:
        assert "hunter2" not in str(error)
        assert "got 3" not in str(error)


# --- nothing but ParseError -------------------------------------------------------------------------------------------

_PYTHON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.just(object()) | st.sampled_from(Color),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.integers() | st.sampled_from(["query", "limit", "items", "name"]), inner, max_size=4)
    | st.tuples(inner),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=300)
@given(_PYTHON)
def test_no_value_raises_anything_but_a_parse_error(value: object) -> None:
    """Whatever is handed in, the outcome is a value of the class or a ParseError with details."""
    try:
        assert isinstance(parse(Search, value), Search)
    except ParseError as error:
        assert error.details


@settings(max_examples=300)
@given(st.text() | st.binary())
def test_no_text_raises_anything_but_a_parse_error(raw: str | bytes) -> None:
    """Whatever text comes, the outcome is a value of the class or a ParseError with details."""
    try:
        assert isinstance(parse_json(Search, raw), Search)
    except ParseError as error:
        assert error.details


def test_the_engine_keeps_its_promises() -> None:
    """The parts of pydantic's engine that parsing rests on behave as when they were chosen."""
    from pydantic_core import SchemaValidator, ValidationError, core_schema

    fields = {"a": core_schema.typed_dict_field(core_schema.int_schema(strict=True), required=False)}
    record = core_schema.typed_dict_schema(fields, extra_behavior="forbid", strict=True)
    labelled = core_schema.union_schema(
        [(record, "\0zero"), (core_schema.none_schema(), "\0one")], mode="left_to_right"
    )
    with pytest.raises(ValidationError) as caught:
        SchemaValidator(core_schema.list_schema(labelled)).validate_json(b'[{"a": "1", "b": 2}]')
    assert [(fault["type"], fault["loc"]) for fault in caught.value.errors()] == [
        ("int_type", (0, "\0zero", "a")),
        ("extra_forbidden", (0, "\0zero", "b")),
        ("none_required", (0, "\0one")),
    ]
