"""One STATE slice through a session's file: which stored items it held after each operation.

Items are named by where they are stored, so that a long history takes little memory and no item is read before it is shown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from ..session.replay import APPEND, EXTEND, REPLACE, UPDATE
from .plain import key_text

Ref = tuple[int, int, int]
"""Where an item is stored: position of the operation, number of the write in it, number of the item in that."""

RESET = -1
_MOST_ITEMS = 2_000_000
"""Items that a slice may hold here: a file that doubles them with each operation is not followed for ever."""


class Entry:
    """One item of a slice: where it is stored and, of a keyed slice, the small changes made to it since."""

    __slots__ = ("count", "earlier", "key", "ref")

    def __init__(self, ref: Ref, key: str | None = None, earlier: Entry | None = None) -> None:
        self.ref = ref
        self.key = key
        self.earlier = earlier
        """What this one changes, when it is a delta."""
        self.count: int = 0 if earlier is None else earlier.count + 1

    @property
    def name(self) -> Any:
        """What tells it from the others of its slice."""
        return self.ref if self.key is None else self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.ref == other.ref

    def __hash__(self) -> int:
        return hash(self.ref)


Entries = tuple[Entry, ...]
_Held = list[Entry] | dict[Any, Entry]
"""Entries in order; of a keyed slice by key, or by where they are stored when their keys are not known."""
Write = tuple[int, int, Any]
"""Kind of the operation, its number in the record, and what it says: see `SliceTrack.note`."""


class SliceTrack:
    """The operations on one slice, in order. Grows with the file."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        """state or keyed."""
        self.keys_known = True
        """Of a keyed slice: whether its class is at hand to say which items have the same key."""
        self._positions = array("Q")
        self._writes: list[Write] = []
        self._now: _Held = self._held(())
        self._kept: list[tuple[int, Entries]] = [(0, ())]
        """How many operations, and what the slice held after them; now and then."""

    @property
    def title(self) -> str:
        """The name of the class, without its module."""
        return self.name.rpartition(":")[2]

    def note(self, position: int, number: int, op: Sequence[Any], key_of: Callable[[Any], str | None]) -> None:
        """Take an operation as it is stored. What is kept of it says enough to do it again without the items."""
        match op:
            case [0, item]:
                write: Write = (APPEND, number, (key_of(item),))
            case [1, items]:
                write = (EXTEND, number, tuple(map(key_of, items)))
            case [2, parts]:
                write = (
                    REPLACE,
                    number,
                    tuple((part[0], part[1]) if len(part) == 2 else key_of(part[0]) for part in parts),
                )
            case [3, key, _]:
                write = (UPDATE, number, key_text(key))
            case _:
                raise ValueError("an operation is not known to this program")
        self._take(position, write)

    def reset(self, position: int) -> None:
        if self._now:
            self._take(position, (RESET, 0, None))

    def after(self, position: int) -> Entries:
        """What the slice held when so many operations of the session had been committed."""
        wanted = bisect_right(self._positions, position)
        done, entries = self._kept[bisect_right(self._kept, wanted, key=lambda kept: kept[0]) - 1]
        now = self._held(entries)
        for place in range(done, wanted):
            now = self._done(now, self._positions[place], self._writes[place])
        return _listed(now)

    def added(self, position: int) -> Entries:
        """What the operation at a position put in."""
        first, last = bisect_left(self._positions, position), bisect_right(self._positions, position)
        return tuple(
            Entry((position, number, item), key)
            for _, number, said in self._writes[first:last]
            for item, key in enumerate(said)
        )

    def _take(self, position: int, write: Write) -> None:
        self._positions.append(position)
        self._writes.append(write)
        self._now = self._done(self._now, position, write)
        if len(self._writes) - self._kept[-1][0] >= max(64, len(self._now) // 4):
            self._kept.append((len(self._writes), _listed(self._now)))

    def _held(self, entries: Sequence[Entry]) -> _Held:
        return {entry.name: entry for entry in entries} if self.kind == "keyed" else list(entries)

    def _done(self, now: _Held, position: int, write: Write) -> _Held:
        kind, number, said = write
        if kind == RESET:
            return self._held(())
        if kind == UPDATE:
            earlier = now.get(said) if isinstance(now, dict) else None
            _put(now, [Entry((position, number, 0), said, earlier)])
        elif kind == REPLACE:
            before = _listed(now) if any(isinstance(part, tuple) for part in said) else ()
            made: list[Entry] = []
            for item, part in enumerate(said):
                if isinstance(part, tuple):
                    if not 0 <= part[0] <= part[0] + part[1] <= len(before):
                        raise ValueError(f"{self.title} has no items {part[0]} to {part[0] + part[1] - 1} to keep")
                    if len(made) + part[1] > _MOST_ITEMS:
                        raise ValueError(f"{self.title} has more than {_MOST_ITEMS} items")
                    made += before[part[0] : part[0] + part[1]]
                else:
                    made.append(Entry((position, number, item), part))
            return self._held(made)
        else:
            _put(now, [Entry((position, number, item), key) for item, key in enumerate(said)])
        return now


def _put(now: _Held, entries: Sequence[Entry]) -> None:
    if isinstance(now, dict):
        now.update((entry.name, entry) for entry in entries)
    else:
        now += entries


def _listed(now: _Held) -> Entries:
    return tuple(now.values() if isinstance(now, dict) else now)
