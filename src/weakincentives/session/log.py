"""The storage of a LOG slice: appended to, never shortened by a rollback, compact when old.

Old items are packed into blocks of bytes. WHY NOT keep them as objects: the garbage collector visits every live
container, and a session of a million calls would pause its process for half a second. What cannot be packed stays live.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from .packing import pack, unpack

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
                old = self._tail[:_BLOCK]
                self._blocks.append(pack(old) or tuple(old))
                del self._tail[:_BLOCK]

    def ends_with(self, item: T) -> bool:
        """Whether this very object was appended lately."""
        return any(other is item for other in tuple(self._tail))

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
        return (block if isinstance(block, tuple) else unpack(block))[offset]

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
                self._note(unpack(block) if isinstance(block, bytes) else block)
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
            yield from (block if isinstance(block, tuple) else unpack(block))
        yield from tail
