"""Dumping: the JSON form of every value, and what redaction hides."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import pathlib
import types
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.serde import REDACTED, Secret, dump, dump_json, has_secrets, parse, parser, redact

T = TypeVar("T")
Token = Annotated[str, Secret]


class Color(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: int


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Login:
    user: str
    token: Token


@dataclass(frozen=True)
class Vault:
    logins: list[Login] = field(default_factory=list)
    maybe: Token | None = None
    tokens: tuple[Token, ...] = ()
    by_name: Mapping[str, Token] = field(default_factory=dict)
    mixed: Login | int = 0
    pair: tuple[int, Token] = (0, "")
    anything: Any = None


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True)
class Holder:
    box: Box[Token]


@dataclass(frozen=True)
class Chain:
    next: Chain | None = None


@dataclass
class Unreadable:
    token: Annotated[Nowhere, Secret]  # type: ignore[name-defined]  # noqa: F821
    plain: Nowhere = 0  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class Kinds:
    when: datetime.datetime
    day: datetime.date
    at: datetime.time
    lasting: datetime.timedelta
    number: decimal.Decimal
    key: uuid.UUID
    path: pathlib.Path
    raw: bytes
    color: Color
    chosen: frozenset[int]
    counts: dict[int, str]
    pair: tuple[int, str]
    maybe: str | None


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**80, 2**80),
        ("a", "a"),
        (Color.RED, "red"),
        (Point(1), {"x": 1, "y": 0.5}),
        (datetime.datetime(2024, 1, 31, 10, tzinfo=datetime.UTC), "2024-01-31T10:00:00+00:00"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        (datetime.time(10, 30), "10:30:00"),
        (datetime.timedelta(days=-1, hours=-2, microseconds=-5), "-P1DT2H0M0.000005S"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.Path("a/b"), "a/b"),
        (b"hi", "aGk="),
        ({"b", "a"}, ["a", "b"]),
        ((1, [2]), [1, [2]]),
        (Pair(1, 2), [1, 2]),
        (types.MappingProxyType({1: Point(1)}), {"1": {"x": 1, "y": 0.5}}),
        ({Color.RED: 1, None: 2, True: 3}, {"red": 1, "null": 2, "true": 3}),
        ({1: "a", "1": "b"}, {"1": "a", "1'": "b"}),
    ],
)
def test_every_value_has_its_json_form(value: object, plain: object) -> None:
    """Each kind of value becomes plain JSON data."""
    assert dump(value) == plain


def test_json_text_is_the_same_data() -> None:
    """dump_json writes what dump gives, numbers beyond 64 bits included."""
    value = {"point": Point(2**80), "text": "é"}
    assert json.loads(dump_json(value)) == dump(value)


def test_text_with_half_a_surrogate_pair_can_be_dumped() -> None:
    """Text that UTF-8 cannot carry is escaped, not lost."""
    assert json.loads(dump_json("\ud800")) == "\ud800"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [object()]}, "Cannot dump a[0]: object has no JSON form"),
        (Box(float("nan")), "Cannot dump content: nan is not a JSON number"),
        (decimal.Decimal("NaN"), "Cannot dump NaN: it is not a JSON number"),
        ({(1, 2): 3}, "Cannot dump $: a key must be text or a scalar"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: object, text: str) -> None:
    """The error says what and where."""
    with pytest.raises(ValueError, match="Cannot dump") as caught:
        dump(value)
    assert str(caught.value) == text


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle ends in a clear error."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested deeper than 200 levels or contains itself"):
        dump(value)


KINDS = st.builds(
    Kinds,
    when=st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    lasting=st.timedeltas(datetime.timedelta(days=-99_999_999), datetime.timedelta(days=99_999_999)),
    number=st.decimals(allow_nan=False, allow_infinity=False, places=2),
    path=st.sampled_from([pathlib.Path("a"), pathlib.Path("/é/b")]),
)


@settings(max_examples=100)
@given(KINDS)
def test_what_is_dumped_can_be_parsed_again(value: Kinds) -> None:
    """Every kind of field survives dump and parse."""
    assert parse(Kinds, dump(value)) == value


# --- redaction --------------------------------------------------------------------------------------------------------


def test_secrets_are_redacted_on_demand_only() -> None:
    """The plain dump is complete; the redacted one hides the marked field."""
    login = Login("ann", "hunter2")
    assert dump(login) == {"user": "ann", "token": "hunter2"}
    assert dump(login, redact=True) == redact(login) == {"user": "ann", "token": REDACTED}


def test_secrets_are_found_at_every_depth() -> None:
    """Lists, optionals, mappings, unions, tuples and untyped fields all hide what is marked."""
    login = Login("ann", "hunter2")
    vault = Vault([login], "hunter2", ("hunter2",), {"a": "hunter2"}, login, (1, "hunter2"), [{"deep": login}])
    text = dump_json(vault, redact=True)
    assert "hunter2" not in text
    assert text.count("ann") == 3
    assert redact(vault)["pair"] == [1, REDACTED]


def test_nothing_is_shown_as_nothing() -> None:
    """A secret that is absent is not pretended to be there."""
    assert redact(Vault())["maybe"] is None


def test_a_type_argument_can_be_secret() -> None:
    """The field's type says what the generic instance cannot."""
    assert redact(Holder(Box("hunter2"))) == {"box": {"content": REDACTED}}


def test_a_class_that_cannot_be_read_hides_what_looks_secret() -> None:
    """When the types do not resolve, a field that mentions Secret is hidden."""
    assert redact(Unreadable("hunter2", 1)) == {"token": REDACTED, "plain": 1}


def test_a_class_that_becomes_readable_later_is_read_again() -> None:
    """What could not be resolved is not remembered as harmless."""
    hidden = Annotated[str, Secret]

    @dataclass
    class Local:
        key: Key  # type: ignore[name-defined]  # noqa: F821

    assert has_secrets(Local) is False
    parser(Local, localns={"Key": hidden})
    assert redact(Local("hunter2")) == {"key": REDACTED}


@pytest.mark.parametrize(
    ("cls", "expected"),
    [(Login, True), (Vault, True), (Holder, True), (Point, False), (Chain, False), (list[Login], True), (int, False)],
)
def test_types_know_whether_they_can_hold_secrets(cls: Any, expected: bool) -> None:
    """has_secrets looks through containers, generics and recursion."""
    assert has_secrets(cls) is expected
