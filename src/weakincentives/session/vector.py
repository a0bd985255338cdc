"""A persistent sequence: appending gives a new one, the old one stays, and both cost the same at any length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, NoReturn, TypeVar, cast

from immutables import Map

from ..errors import SessionStorageError

T = TypeVar("T")

_WIDTH = 32
_NO_CHUNKS: Map[int, tuple[object, ...]] = Map()


class Vector(Generic[T]):
    """Full chunks in a persistent map, the rest in a short tuple. Immutable; share it freely."""

    __slots__ = ("_chunks", "_tail")

    def __init__(self, chunks: Map[int, tuple[T, ...]], tail: tuple[T, ...]) -> None:
        self._chunks = chunks
        self._tail = tail

    def of(self, items: Iterable[T]) -> Vector[T]:
        """Another vector, of these items."""
        everything = tuple(items)
        full = len(everything) // _WIDTH * _WIDTH
        if not full:
            return Vector(cast("Map[int, tuple[T, ...]]", _NO_CHUNKS), everything)
        chunks = {start // _WIDTH: everything[start : start + _WIDTH] for start in range(0, full, _WIDTH)}
        return Vector(Map(chunks), everything[full:])

    def append(self, item: T) -> Vector[T]:
        tail = self._tail
        if len(tail) < _WIDTH:
            return Vector(self._chunks, (*tail, item))
        return Vector(self._chunks.set(len(self._chunks), tail), (item,))

    def extend(self, items: Iterable[T]) -> Vector[T]:
        vector = self
        for item in items:
            vector = vector.append(item)
        return vector

    @property
    def last(self) -> T | None:
        # The tail is empty only in an empty vector, or in one made of full chunks by `of`.
        if self._tail:
            return self._tail[-1]
        return self._chunks[len(self._chunks) - 1][-1] if self._chunks else None

    def __len__(self) -> int:
        return len(self._chunks) * _WIDTH + len(self._tail)

    def __iter__(self) -> Iterator[T]:
        for index in range(len(self._chunks)):
            yield from self._chunks[index]
        yield from self._tail


class Keyed(Generic[T]):
    """A persistent sequence with one item per key: appending replaces the item with the same key, in its place."""

    __slots__ = ("_by_key", "_key", "_order")

    def __init__(
        self, key: Callable[[T], Hashable], by_key: Map[Hashable, tuple[int, T]], order: Map[int, Hashable]
    ) -> None:
        self._key = key
        self._by_key = by_key
        self._order = order

    def of(self, items: Iterable[T]) -> Keyed[T]:
        return Keyed[T](self._key, Map(), Map()).extend(items)

    def append(self, item: T) -> Keyed[T]:
        key = self._key(item)
        found = self._by_key.get(key)
        if found is not None:
            return Keyed(self._key, self._by_key.set(key, (found[0], item)), self._order)
        place = len(self._order)
        return Keyed(self._key, self._by_key.set(key, (place, item)), self._order.set(place, key))

    def extend(self, items: Iterable[T]) -> Keyed[T]:
        keyed = self
        for item in items:
            keyed = keyed.append(item)
        return keyed

    def get(self, key: Hashable) -> T | None:
        found = self._by_key.get(key)
        return None if found is None else found[1]

    @property
    def last(self) -> T | None:
        """The item of the newest key."""
        return None if not self._order else self._by_key[self._order[len(self._order) - 1]][1]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[T]:
        for place in range(len(self._order)):
            yield self._by_key[self._order[place]][1]


class Unreadable(Generic[T]):
    """Stored items that today's class cannot take. Can be replaced as a whole; anything else raises and says why."""

    __slots__ = ("_blank", "reason")

    def __init__(self, reason: str, blank: Vector[T] | Keyed[T]) -> None:
        self.reason = reason
        self._blank = blank

    def of(self, items: Iterable[T]) -> Vector[T] | Keyed[T]:
        return self._blank.of(items)

    def append(self, item: T) -> NoReturn:  # noqa: ARG002
        self._refuse()

    def extend(self, items: Iterable[T]) -> NoReturn:  # noqa: ARG002
        self._refuse()

    def get(self, key: Hashable) -> NoReturn:  # noqa: ARG002
        self._refuse()

    @property
    def last(self) -> T | None:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def __iter__(self) -> Iterator[T]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SessionStorageError(self.reason)


Items = Vector[T] | Keyed[T] | Unreadable[T]


EMPTY: Vector[object] = Vector(_NO_CHUNKS, ())
