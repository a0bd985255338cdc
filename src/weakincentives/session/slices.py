"""Slices: what a session holds, by type, and the pure reducers that change them.

STATE is working memory and rolls back with the call that wrote it; LOG is history and never does. A reducer sees a view
and an event and answers with one operation; it must never write by itself.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from immutables import Map

from ..frozen import frozen
from .vector import EMPTY, Items, Keyed, Unreadable, Vector

T = TypeVar("T")
E_contra = TypeVar("E_contra", contravariant=True)
C = TypeVar("C", bound=type)

Root = Map[type, Items[Any]]


class SliceKind(enum.Enum):
    """How a slice lives."""

    STATE = "state"
    """Working memory: rolled back with the call that wrote it."""
    LOG = "log"
    """History: appended to, never rolled back."""


@overload
def log_slice(cls: C, /) -> C: ...


@overload
def log_slice(*, key: Callable[[Any], Hashable]) -> Callable[[C], C]: ...


def log_slice(cls: Any = None, /, *, key: Callable[[Any], Hashable] | None = None) -> Any:
    """Declare that the slice of this type is a LOG; with a key, `session[T].get(key)` finds its newest item by it."""

    def mark(marked: Any) -> Any:
        marked.__slice_kind__ = SliceKind.LOG
        if key is not None:
            marked.__log_key__ = staticmethod(key)
        return marked

    return mark if cls is None else mark(cls)


def keyed_slice(key: Callable[[Any], Hashable]) -> Callable[[C], C]:
    """Declare that the slice of this type holds one item per key: appending replaces, at a cost that never grows."""

    def mark(cls: C) -> C:
        cls.__slice_key__ = staticmethod(key)
        return cls

    return mark


def kind_of(cls: type) -> SliceKind:
    return getattr(cls, "__slice_kind__", SliceKind.STATE)


def items_of(root: Root, cls: type) -> Items[Any]:
    """The items of one slice, of the form its type asks for."""
    items = root.get(cls)
    return no_items(cls) if items is None else items


def no_items(cls: type) -> Vector[Any] | Keyed[Any]:
    """An empty slice, of the form its type asks for."""
    key: Callable[[Any], Hashable] | None = getattr(cls, "__slice_key__", None)
    return EMPTY if key is None else Keyed(key, Map(), Map())


@frozen
class Append(Generic[T]):
    """Add one item at the end."""

    item: T


@frozen
class Extend(Generic[T]):
    """Add several items at the end."""

    items: Sequence[T]

    def __post_init__(self) -> None:
        _hold_items(self)


@frozen
class Replace(Generic[T]):
    """Put these items in place of everything."""

    items: Sequence[T]

    def __post_init__(self) -> None:
        _hold_items(self)


def _hold_items(op: Extend[Any] | Replace[Any]) -> None:
    # An iterator could be read once only, and a list could change: the operation is run, replayed and stored.
    if type(op.items) is not tuple:
        object.__setattr__(op, "items", tuple(op.items))


@frozen
class Clear:
    """Remove the items the predicate picks, or all."""

    predicate: Callable[[Any], bool] | None = None


@frozen
class Update:
    """Change the item of one key by a small delta: `item = type(item).patched(item or None, key, delta)`.

    What a durable session stores is the delta, so an item that grows does not make its log grow with its square.
    """

    key: Hashable
    delta: Any


SliceOp = Append[T] | Extend[T] | Replace[T] | Clear | Update


class SliceView(Generic[T]):
    """What a reducer may look at: one slice, as it is now."""

    __slots__ = ("_vector",)

    def __init__(self, vector: Items[T]) -> None:
        self._vector = vector

    def all(self) -> tuple[T, ...]:
        return tuple(self._vector)

    def latest(self) -> T | None:
        return self._vector.last

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        return tuple(item for item in self._vector if predicate(item))

    @property
    def is_empty(self) -> bool:
        return len(self._vector) == 0

    def __len__(self) -> int:
        return len(self._vector)

    def __iter__(self) -> Iterator[T]:
        return iter(self._vector)


@frozen
class ReducerContext:
    """What a reducer may know beside its slice."""

    session_id: str
    slice_type: type


class Reducer(Protocol[T, E_contra]):
    def __call__(self, view: SliceView[T], event: E_contra, /, *, context: ReducerContext) -> SliceOp[T]: ...


def append_all(view: SliceView[Any], event: Any, *, context: ReducerContext) -> SliceOp[Any]:  # noqa: ARG001
    """Keep every event."""
    return Append(event)


def replace_latest(view: SliceView[Any], event: Any, *, context: ReducerContext) -> SliceOp[Any]:  # noqa: ARG001
    """Keep the newest event only."""
    return Replace((event,))


def upsert_by(key: Callable[[Any], object]) -> Reducer[Any, Any]:
    """Keep one item per key: the newest takes the place of the one it replaces."""

    def upsert(view: SliceView[Any], event: Any, *, context: ReducerContext) -> SliceOp[Any]:  # noqa: ARG001
        wanted = key(event)
        items = list(view)
        for index, item in enumerate(items):
            if key(item) == wanted:
                items[index] = event
                return Replace(items)
        return Append(event)

    return upsert


F = TypeVar("F", bound=Callable[..., Any])


def reducer(*, on: type) -> Callable[[F], F]:
    """Mark a method of a slice type as its reducer for events of type `on`.

    The method gets the latest item as `self` and the event; it returns the next item, or a slice operation.
    """

    def mark(fn: F) -> F:
        fn.__reduces__ = on  # pyright: ignore[reportFunctionMemberAccess]
        return fn

    return mark


def declared_reducers(cls: type, initial: Callable[[], Any] | None) -> list[tuple[type, Reducer[Any, Any]]]:
    """The `@reducer` methods of a slice type, as ordinary reducers."""
    found: list[tuple[type, Reducer[Any, Any]]] = []
    for _, method in inspect.getmembers(cls, callable):
        event_type = getattr(method, "__reduces__", None)
        if event_type is not None:
            found.append((event_type, _as_reducer(cls, method, initial)))
    return found


def _as_reducer(cls: type, method: Callable[..., Any], initial: Callable[[], Any] | None) -> Reducer[Any, Any]:
    def reduce(view: SliceView[Any], event: Any, *, context: ReducerContext) -> SliceOp[Any]:  # noqa: ARG001
        current = view.latest()
        if current is None:
            if initial is None:
                return Replace(())
            current = initial()
        outcome = method(current, event)
        if isinstance(outcome, cls):
            return Replace((outcome,))
        return cast("SliceOp[Any]", outcome)

    return reduce


def operate(items: Items[Any], op: SliceOp[Any], cls: type) -> Items[Any]:
    """The slice after the operation."""
    match op:
        case Append(item):
            return items.append(item)
        case Extend(more):
            return items.extend(more)
        case Replace(others):
            return items.of(others)
        case Clear(predicate):
            return items.of(()) if predicate is None else items.of(item for item in items if not predicate(item))
        case Update(key, delta):
            assert isinstance(items, Keyed | Unreadable)
            return items.append(cast("Any", cls).patched(items.get(key), key, delta))
    raise TypeError(f"A reducer must return Append, Extend, Replace or Clear, got {type(op).__qualname__}")


Outcome = tuple[type, SliceOp[Any], Items[Any]]
"""A slice, what was done to it, and what it held before: what a durable log needs to store the difference."""


class SliceWrite:
    """One operation on one slice, as the transaction replays it and the durable log stores it."""

    __slots__ = ("_before", "op", "slice_type")

    def __init__(self, slice_type: type, op: SliceOp[Any]) -> None:
        self.slice_type = slice_type
        self.op = op
        self._before: Items[Any] = EMPTY

    def __call__(self, root: Root) -> Root:
        self._before = before = items_of(root, self.slice_type)
        return root.set(self.slice_type, operate(before, self.op, self.slice_type))

    def outcomes(self) -> Iterable[Outcome]:
        """What it did when last run."""
        return ((self.slice_type, self.op, self._before),)


class EventWrite:
    """One event and all reducers it has: they change the root together or not at all."""

    __slots__ = ("_outcomes", "event", "reducers", "session_id")

    def __init__(self, event: object, reducers: Sequence[tuple[type, Reducer[Any, Any]]], session_id: str) -> None:
        self.event = event
        self.reducers = reducers
        self.session_id = session_id
        self._outcomes: list[Outcome] = []

    def __call__(self, root: Root) -> Root:
        outcomes: list[Outcome] = []
        for slice_type, reduce in self.reducers:
            items = items_of(root, slice_type)
            op = reduce(SliceView(items), self.event, context=ReducerContext(self.session_id, slice_type))
            root = root.set(slice_type, operate(items, op, slice_type))
            outcomes.append((slice_type, op, items))
        self._outcomes = outcomes
        return root

    def outcomes(self) -> Iterable[Outcome]:
        """What the reducers decided when last run."""
        return self._outcomes


class RootWrite:
    """All STATE slices at once: a restore or a reset."""

    __slots__ = ("_before", "root")

    def __init__(self, root: Root) -> None:
        self.root = root
        self._before: Root = root

    def __call__(self, root: Root) -> Root:
        self._before = root
        return self.root

    def outcomes(self) -> Iterable[Outcome]:
        """The slices it changed when last run."""
        for cls in {**dict.fromkeys(self._before), **dict.fromkeys(self.root)}:
            before, after = items_of(self._before, cls), items_of(self.root, cls)
            if before is not after:
                yield cls, Replace(tuple(after)), before


class ResetWrite(RootWrite):
    """Nothing is left; in a durable log it ends the LOG slices and the registers too."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Map())
