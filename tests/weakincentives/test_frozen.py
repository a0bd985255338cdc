"""A class made by `@frozen` is, to whoever uses it, a frozen dataclass."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pytest

from weakincentives.frozen import frozen

T = TypeVar("T")


@frozen
class Ours(Generic[T]):
    """A value."""

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list[str])
    note: T | None = field(default=None, compare=False)
    secret: str = field(default="", repr=False)
    seal: str = field(init=False, default="sealed")


@dataclass(frozen=True, slots=True)
class Theirs(Generic[T]):
    """A value."""

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list[str])
    note: T | None = field(default=None, compare=False)
    secret: str = field(default="", repr=False)
    seal: str = field(init=False, default="sealed")


@frozen
class Point:
    """Two numbers."""

    x: int
    y: int = 0


@frozen
class Checked:
    """A value that looks at itself."""

    text: str
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.text))


@frozen
class Named(Point):
    """A point with a name."""

    name: str = ""


@frozen
class Folded:
    """Compares by its own rule."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and self.text.lower() == other.text.lower()

    def __repr__(self) -> str:
        return f"<{self.text}>"


@frozen(eq=False)
class Same:
    """Equal to itself alone."""

    x: int


@frozen(kw_only=True)
class Spelt:
    """Takes names only."""

    x: int
    y: int = 0


@frozen
class Node:
    """May contain itself."""

    inner: list[Any]


def test_fields_are_those_of_a_dataclass() -> None:
    """`dataclasses.fields` says the same of both."""

    def described(cls: Any) -> list[tuple[object, ...]]:
        return [
            (each.name, each.type, each.default, each.init, each.repr, each.compare) for each in dataclasses.fields(cls)
        ]

    assert described(Ours) == described(Theirs)


def test_signature_is_that_of_a_dataclass() -> None:
    """A reader of `help` sees the same constructor."""
    assert str(inspect.signature(Ours)) == str(inspect.signature(Theirs))


def test_repr_is_that_of_a_dataclass() -> None:
    """Shown alike, hidden fields hidden."""
    assert repr(Ours("a", note=1, secret="s")) == repr(Theirs("a", note=1, secret="s")).replace("Theirs", "Ours")


def test_repr_of_a_value_that_contains_itself_ends() -> None:
    """The inner one is written as dots."""
    node = Node([])
    node.inner.append(node)

    assert repr(node) == "Node(inner=[...])"


def test_defaults_are_filled_in() -> None:
    """Values, factories and fields without init."""
    made = Ours[int]("a")

    assert (made.size, made.tags, made.note, made.seal) == (3, [], None, "sealed")


def test_a_factory_runs_for_each_instance() -> None:
    """Two instances share no list."""
    assert Ours[int]("a").tags is not Ours[int]("a").tags


def test_assignment_is_refused() -> None:
    """Frozen means frozen, with the dataclass's own error."""
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_deletion_is_refused() -> None:
    """A field cannot be taken away."""
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x  # pyright: ignore[reportAttributeAccessIssue]


def test_there_is_no_instance_dictionary() -> None:
    """Slots hold everything."""
    assert not hasattr(Point(1), "__dict__")


def test_equality_is_by_fields() -> None:
    """Fields that do not compare do not count."""
    assert Ours("a", note=1) == Ours("a", note=2)
    assert Ours[int]("a") != Ours[int]("b")


def test_equality_asks_for_the_same_class() -> None:
    """Another class with equal fields is another value."""
    assert Point(1) != Named(1)


def test_a_field_equals_itself() -> None:
    """A NaN equals itself, as in a tuple."""
    nan = float("nan")

    assert Point(1, nan) == Point(1, nan)  # pyright: ignore[reportArgumentType]


def test_without_eq_only_the_same_object_is_equal() -> None:
    """As any object without an `__eq__`."""
    same = Same(1)

    assert same == same
    assert same != Same(1)


def test_equal_values_have_equal_hashes() -> None:
    """Usable as a key."""
    assert {Point(1, 2): "here"}[Point(1, 2)] == "here"


def test_hash_of_one_unhashable_field_is_refused() -> None:
    """As a dataclass refuses it."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(Node([]))


def test_own_methods_are_left_alone() -> None:
    """What the class writes itself counts."""
    assert Folded("A") == Folded("a")
    assert repr(Folded("A")) == "<A>"


def test_replace_makes_another() -> None:
    """`dataclasses.replace` works."""
    assert dataclasses.replace(Point(1, 2), y=3) == Point(1, 3)


def test_pattern_matching_sees_the_fields() -> None:
    """In their order."""
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_post_init_runs() -> None:
    """After the fields are set."""
    assert Checked("abc").length == 3


def test_keywords_only() -> None:
    """Positions are refused when asked for."""
    assert Spelt(x=1) == Spelt(y=0, x=1)
    with pytest.raises(TypeError, match="positional"):
        Spelt(1)  # pyright: ignore[reportCallIssue]


def test_a_subclass_has_the_fields_of_both() -> None:
    """Inherited ones first, and all of them frozen."""
    named = Named(1, 2, "a")

    assert (named.x, named.y, named.name) == (1, 2, "a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.x = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_an_ordinary_frozen_dataclass_may_inherit() -> None:
    """Whoever builds on ours need not know how it was made."""

    @dataclass(frozen=True)
    class Theirs(Point):
        z: int = 0

    assert Theirs(1, 2, 3) == Theirs(1, 2, 3)


@pytest.mark.parametrize("value", [Point(1, 2), Named(1, 2, "a"), Checked("abc"), Ours("a", note=1)])
def test_pickle_and_copy_give_it_back(value: object) -> None:
    """Slots and frozenness stand in the way of neither."""
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
