"""The codec: whatever goes in comes out equal, and what no class fits is kept."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import pathlib
import sys
import types
import uuid
import zoneinfo
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.serde import REDACTED, Secret
from weakincentives.serde.codec import (
    CodecError,
    Opaque,
    decode,
    encode,
    register_alias,
    register_upcaster,
    type_name,
)


class Color(enum.Enum):
    RED = object()


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Leaf:
    value: Any = None

    def __bool__(self) -> bool:
        return False


@dataclass
class Strict:
    number: int
    twice: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.number > 100:
            raise ValueError("too large")
        self.twice = self.number * 2


@dataclass
class Second:
    """Renamed its only field in version 2 and doubled it in version 3."""

    __schema_version__ = 3

    amount: int


@dataclass
class Grown:
    old: int
    new: list[int] = field(default_factory=list)


@dataclass
class Shrunk:
    kept: int


@dataclass(frozen=True)
class Login:
    user: str
    token: Annotated[str, Secret]
    older: tuple[Annotated[str, Secret], ...] = ()


def stored(value: object) -> Any:
    """What comes back after a trip through JSON text."""
    return decode(json.loads(json.dumps(encode(value))))


def written(name: str, fields: dict[str, Any], version: int = 1) -> dict[str, Any]:
    """A record as an earlier program stored it."""
    return {"$": "data", "t": name, "n": version, "v": fields}


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from(
        [Color.RED, Right.READ | Right.WRITE, Leaf, int, pathlib.Path("a/é"), pathlib.PureWindowsPath("c:\\x")]
    ),
)
_KEYS = st.recursive(
    _SCALARS, lambda inner: st.tuples(inner, inner) | inner.map(Leaf) | st.frozensets(inner, max_size=2), max_leaves=3
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.dictionaries(_KEYS | st.sampled_from(["$", "a"]), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(types.MappingProxyType),
        st.sets(_KEYS, max_size=3),
        st.frozensets(_KEYS, max_size=3),
        inner.map(Leaf),
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(VALUES)
def test_what_is_stored_comes_back_equal(value: object) -> None:
    """decode(encode(v)) == v for any nesting, after a trip through JSON text, and of the same type."""
    back = stored(value)
    assert back == value
    assert type(back) is type(value)


@settings(max_examples=100)
@given(VALUES)
def test_equal_values_are_stored_alike(value: object) -> None:
    """What comes back is written again in exactly the same form."""
    once = encode(value)
    assert encode(decode(once)) == once


def test_a_repeated_hour_keeps_its_zone_and_fold() -> None:
    """Both the zone's name and which of two equal clock times it was survive."""
    value = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Paris"), fold=1)
    back = stored(value)
    assert (back.tzinfo, back.fold, back.utcoffset()) == (value.tzinfo, 1, value.utcoffset())


def test_the_constructor_does_not_run_again() -> None:
    """A stored value was valid when it was stored; fields without init are kept as they were."""
    value = Strict(3)
    value.number = 1000
    value.twice = 7
    assert stored(value) == value


def test_a_local_class_comes_back_in_the_same_process() -> None:
    """A class made inside a function is found while it lives."""

    @dataclass
    class Local:
        number: int

    assert stored(Local(1)) == Local(1)


def test_secrets_are_redacted_on_demand() -> None:
    """The stored form holds no secret when asked to redact, and decodes."""
    data = encode([Login("ann", "hunter2", ("older",))], redact=True)
    assert decode(data) == [Login("ann", REDACTED, (REDACTED,))]


def test_old_versions_are_brought_up_step_by_step() -> None:
    """Upcasters run in order until the fields are today's."""
    name = type_name(Second)
    register_upcaster(name, 1, lambda fields: {"amount": fields["count"]})
    register_upcaster(name, 2, lambda fields: {"amount": fields["amount"] * 2})
    assert decode(written(name, {"count": 4})) == Second(8)
    assert decode(written(name, {"amount": 4}, version=2)) == Second(8)
    assert encode(Second(8))["n"] == 3


def test_a_renamed_class_is_found_by_its_alias() -> None:
    """An alias leads from the stored name to today's class."""
    register_alias("gone.module:OldLeaf", type_name(Leaf))
    assert decode(written("gone.module:OldLeaf", {"value": 1})) == Leaf(1)


def test_an_alias_to_itself_is_refused() -> None:
    """An alias must lead somewhere."""
    with pytest.raises(ValueError, match="An alias must lead to another name, got 'a:B' twice"):
        register_alias("a:B", "a:B")


def test_a_field_with_a_default_may_be_added() -> None:
    """What was stored before the field existed gets its default."""
    assert decode(written(type_name(Grown), {"old": 1})) == Grown(1, [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            written("no_such_module:Thing", {"a": [1]}),
            "its module cannot be imported: No module named 'no_such_module'",
        ),
        (written("json:Thing", {"a": 1}, version=4), "there is no class json:Thing"),
        (written("decimal:Decimal", {"a": 1}), "it is no longer a dataclass"),
        (
            written(type_name(Leaf), {"value": 1}, version=2),
            "it was stored by a newer program (version 1 is known)",
        ),
        (
            written(type_name(Shrunk), {"kept": 1, "gone": 2}),
            "its class has no field gone; give it a new __schema_version__ and an upcaster",
        ),
        (
            written(type_name(Shrunk), {}),
            "field kept is not stored; give its class a new __schema_version__ and an upcaster",
        ),
        ({"$": "enum", "t": type_name(Color), "n": "GREEN"}, "the enum has no member GREEN"),
        ({"$": "enum", "t": "json:Color", "n": "RED"}, "there is no class json:Color"),
        ({"$": "enum", "t": type_name(Leaf), "n": "RED"}, "it is no longer an enum"),
        ({"$": "flag", "t": "json:Right", "n": 3}, "there is no class json:Right"),
        ({"$": "type", "t": "json:Thing"}, "there is no class json:Thing"),
        ({"$": "named", "t": "json:Thing", "v": [1]}, "there is no class json:Thing"),
        ({"$": "named", "t": type_name(Pair), "v": [1]}, "its fields have changed"),
    ],
)
def test_what_no_class_fits_is_kept_and_stored_again_unchanged(data: dict[str, Any], reason: str) -> None:
    """An Opaque says why, keeps the data, and encodes to exactly what was stored."""
    value = decode(data)
    assert isinstance(value, Opaque)
    assert value.reason == reason
    assert encode(value) == data
    assert decode(encode({value})) == {value}


def test_a_missing_upcaster_leaves_the_value_opaque() -> None:
    """A version without a way up is kept, not guessed."""

    @dataclass
    class Later:
        __schema_version__ = 2
        number: int

    encode(Later(1))
    value = decode(written(type_name(Later), {"number": 1}))
    assert value.reason == "no upcaster from version 1 is registered"


def test_reading_a_field_of_an_opaque_value_says_why_not() -> None:
    """Access fails with the name of the lost class and the reason."""
    value = decode(written("no_such_module:Thing", {"a": 1}))
    with pytest.raises(AttributeError) as caught:
        _ = value.a
    assert str(caught.value) == (
        "Cannot read 'a' of a stored no_such_module:Thing (version 1): "
        "its module cannot be imported: No module named 'no_such_module'"
    )


def test_a_module_that_is_not_loaded_yet_is_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart the class's module is loaded when its value is read."""
    (tmp_path / "stored_later.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Thing:\n    a: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    value = decode(written("stored_later:Thing", {"a": 1}))
    sys.modules.pop("stored_later")
    assert (type(value).__name__, value.a) == ("Thing", 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"a": [1, object()]},
            "Cannot store a[1]: builtins.object is not a dataclass, an enum or a standard value; convert it before it is stored",
        ),
        (
            Leaf(OrderedDict()),
            "Cannot store value: collections.OrderedDict is not a dataclass, an enum or a standard value; "
            "convert it before it is stored",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value: object, text: str) -> None:
    """The error says what and where."""
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert str(caught.value) == text


def test_a_value_that_contains_itself_cannot_be_stored() -> None:
    """A cycle ends in a clear error."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError, match="nested deeper than 200 levels or contains itself"):
        encode(value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"$": "hologram"}, "Cannot read a stored value with the tag 'hologram': it was written by a newer version"),
        ({"$": "tuple"}, "Cannot read a stored tuple: it is damaged (KeyError: 'v')"),
    ],
)
def test_a_form_nobody_wrote_is_refused(data: dict[str, Any], text: str) -> None:
    """Unknown tags and damaged records are errors, never guesses."""
    with pytest.raises(CodecError) as caught:
        decode(data)
    assert str(caught.value) == text


def test_plain_json_is_its_own_form() -> None:
    """What JSON can say is stored as it is, so that logs stay readable."""
    value = {"a": [1, 2.5, "b", None, True, {"c": []}]}
    assert encode(value) == value
    assert decode(value) == value


def test_every_standard_scalar_has_a_tag_of_its_own() -> None:
    """Kinds that look alike as text stay apart."""
    values = [uuid.UUID(int=1), decimal.Decimal("1"), pathlib.Path("1"), b"1", "1", 1]
    assert [type(value) for value in stored(values)] == [type(value) for value in values]
