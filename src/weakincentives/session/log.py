"""The storage of a LOG slice: appended to, never shortened by a rollback, compact when old.

Old items are packed into blocks of bytes. WHY NOT keep them as objects: the garbage collector visits every live
container, and a session of a million calls would pause its process for half a second. What cannot be packed stays live.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_BLOCK = 256


class Log(Generic[T]):
    """Items in the order they were appended. Thread-safe; reading sees what was there when it began.

    `stored` are older items that lie elsewhere and are read when asked for; `index` says where their keys are.
    """

    __slots__ = ("_blocks", "_index", "_indexed", "_key", "_length", "_mutex", "_stored", "_tail")

    def __init__(
        self,
        key: Callable[[T], Hashable] | None = None,
        stored: Sequence[T] = (),
        index: dict[Hashable, int] | None = None,
    ) -> None:
        self._mutex = threading.Lock()
        self._key = key
        self._stored = stored
        self._blocks: list[bytes | tuple[T, ...]] = []
        self._tail: list[T] = []
        self._length = len(stored)
        self._index: dict[Hashable, int] = index or {}
        self._indexed = self._length

    def append(self, item: T) -> None:
        with self._mutex:
            self._tail.append(item)
            self._length += 1
            if len(self._tail) >= 2 * _BLOCK:
                self._blocks.append(_pack(self._tail[:_BLOCK]))
                del self._tail[:_BLOCK]

    def extend(self, items: Iterable[T]) -> None:
        for item in items:
            self.append(item)

    @property
    def last(self) -> T | None:
        if self._tail:
            return self._tail[-1]
        return self._stored[-1] if self._stored else None

    def get(self, key: Hashable) -> T | None:
        """The newest item with this key; needs a key function. Costs the same however long the log is."""
        with self._mutex:
            self._catch_up()
            place = self._index.get(key)
            if place is None:
                return None
            if place < len(self._stored):
                return self._stored[place]
            number, offset = divmod(place - len(self._stored), _BLOCK)
            if number >= len(self._blocks):
                return self._tail[place - self._length + len(self._tail)]
            block = self._blocks[number]
        return (block if isinstance(block, tuple) else _unpack(block))[offset]

    def _catch_up(self) -> None:
        """Index what came since the last time: whoever never asks by key pays nothing."""
        if self._key is None:
            raise TypeError("The items of this log have no key.")
        if self._indexed == self._length:
            return
        tail_at = len(self._stored) + len(self._blocks) * _BLOCK
        if self._indexed < tail_at:
            number = (self._indexed - len(self._stored)) // _BLOCK
            self._indexed = len(self._stored) + number * _BLOCK
            for block in self._blocks[number:]:
                self._note(_unpack(block) if isinstance(block, bytes) else block)
        self._note(self._tail[self._indexed - tail_at :])

    def _note(self, items: Iterable[T]) -> None:
        assert self._key is not None
        for item in items:
            self._index[self._key(item)] = self._indexed
            self._indexed += 1

    @property
    def keyed(self) -> bool:
        return self._key is not None

    def clear(self) -> None:
        with self._mutex:
            self._stored, self._blocks, self._tail, self._length = (), [], [], 0
            self._index, self._indexed = {}, 0

    def copy(self) -> Log[T]:
        twin: Log[T] = Log(self._key)
        with self._mutex:
            twin._stored, twin._blocks, twin._tail = self._stored, list(self._blocks), list(self._tail)
            twin._length, twin._index, twin._indexed = self._length, dict(self._index), self._indexed
        return twin

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        with self._mutex:
            stored, blocks, tail = self._stored, tuple(self._blocks), tuple(self._tail)
        yield from stored
        for block in blocks:
            yield from (block if isinstance(block, tuple) else _unpack(block))
        yield from tail


class _Packer(pickle.Pickler):
    """Pickles dataclasses by their fields: several times faster than their own state methods, and frozen ones too."""

    def reducer_override(self, obj: object, /) -> Any:
        cls = type(obj)
        plan = _plans.get(cls)
        if plan is None:
            plan = _plans[cls] = _plan_of(cls)
        if plan is not _ORDINARY:
            return _rebuild, (cls, plan(obj))
        if isinstance(obj, type) and "<locals>" in obj.__qualname__:
            # A class made inside a function has no address to be found at; remember it for this process.
            return _local_class, (_local_index(obj),)
        return NotImplemented


def _ordinary(_: Any) -> Any:
    raise AssertionError("a mark, never called")


_ORDINARY: Callable[[Any], Any] = _ordinary
_plans: dict[type, Callable[[Any], Any]] = {}
_local_classes: list[type] = []
_local_indexes: dict[type, int] = {}


def _plan_of(cls: type) -> Callable[[Any], Any]:
    if not dataclasses.is_dataclass(cls) or "__reduce__" in vars(cls):
        return _ORDINARY
    names = [field.name for field in dataclasses.fields(cls)]
    if not names:
        return lambda _: ()
    if "__slots__" not in vars(cls) or any("__dict__" in vars(base) for base in cls.__mro__[:-1]):
        return _state_of
    if len(names) == 1:
        name = names[0]
        return lambda obj: (getattr(obj, name),)
    return attrgetter(*names)


def _state_of(obj: Any) -> dict[str, Any] | tuple[Any, ...]:
    state: dict[str, Any] | None = getattr(obj, "__dict__", None)
    return tuple(getattr(obj, name) for name in _names(obj.__class__)) if state is None else dict(state)


def _rebuild(cls: type[Any], state: tuple[Any, ...] | dict[str, Any]) -> object:
    instance: object = object.__new__(cls)
    pairs = state.items() if isinstance(state, dict) else zip(_names(cls), state, strict=True)
    for name, value in pairs:
        object.__setattr__(instance, name, value)
    return instance


_field_names: dict[type, tuple[str, ...]] = {}


def _names(cls: type) -> tuple[str, ...]:
    names = _field_names.get(cls)
    if names is None:
        names = _field_names[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return names


def _local_index(cls: type) -> int:
    index = _local_indexes.get(cls)
    if index is None:
        index = _local_indexes[cls] = len(_local_classes)
        _local_classes.append(cls)
    return index


def _local_class(index: int) -> type:
    return _local_classes[index]


def _dump(value: object) -> bytes:
    buffer = io.BytesIO()
    _Packer(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _pack(items: list[T]) -> bytes | tuple[T, ...]:
    cls = items[0].__class__
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _plan_of(cls)
    alike = plan is not _ORDINARY and all(item.__class__ is cls for item in items)
    try:
        # Rows of one class need no word about it each.
        return _dump((cls, [plan(item) for item in items]) if alike else (None, items))
    except Exception:  # noqa: BLE001  INVARIANT: what cannot be packed is kept as it is, never lost
        return tuple(items)


def _unpack(block: bytes) -> list[Any]:
    cls, rows = pickle.loads(block)
    return rows if cls is None else [_rebuild(cls, row) for row in rows]
