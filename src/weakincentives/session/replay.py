"""What the records of a session's file amount to: slices, history, registers and where attached files are described.

Reads the head of each record only: history stays in the file until somebody asks for it, and a value that was replaced
later is never decoded. What today's classes cannot take is kept out of the way with its reason, never guessed at.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, overload

import orjson
from immutables import Map

from ..errors import SessionStorageError
from ..serde.codec import CodecError, Opaque, decode, type_name
from .log import Log
from .record import Source
from .shapes import Shapes
from .slices import Root, SliceKind, kind_of, no_items
from .vector import Items, Keyed, Unreadable

APPEND, EXTEND, REPLACE, UPDATE = 0, 1, 2, 3
"""How a slice operation is written: `[slice, one of these, …]`."""


class Replay:
    """Takes records in order and says, at any point, what they add up to."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.shapes = Shapes()
        self.registers: dict[str, Any] = {}
        self.reserved = 0
        """Call numbers up to this one may have been given away."""
        self.offsets = array("Q")
        """Where the record of each operation begins."""
        self.attachments: dict[str, array[int]] = {}
        """By name: the records that hold operations on attached files."""
        self._slices: dict[int, _State | _History] = {}
        self._states: dict[str, _State] = {}
        self._histories: dict[str, _History] = {}

    @property
    def position(self) -> int:
        return len(self.offsets)

    def feed(self, offset: int, payload: bytes, start: int) -> None:
        """Take one record; `start` is where its payload lies in the file."""
        cut = payload.find(b"\n")
        head = orjson.loads(payload if cut < 0 else payload[:cut])
        if "d" in head:
            self.shapes.learn(head["d"])
        if "n" in head:
            self.reserved = head["n"]
            return
        self.offsets.append(offset)
        if "z" in head:
            self.registers.clear()
            for target in (*self._states.values(), *self._histories.values()):
                target.clear()
        for number, *op in head.get("w", ()):
            state = self._slices.get(number) or self._found(number)
            assert isinstance(state, _State)
            state.take(op, self.shapes)
        for name, _ in head.get("f", ()):
            self.attachments.setdefault(name, array("Q")).append(offset)
        for key, value in head.get("r", ()):
            if value is None:
                self.registers.pop(key, None)
            else:
                self.registers[key] = decode(value)
        for number, key in head.get("l", ()):
            end = payload.find(b"\n", cut + 1)
            length = (len(payload) if end < 0 else end) - cut - 1
            history = self._slices.get(number) or self._found(number)
            assert isinstance(history, _History)
            history.note(start + cut + 1, length, key)
            cut = end

    def root(self) -> Root:
        """The STATE slices."""
        return Map({state.cls: state.items(self.shapes) for state in self._states.values() if state.cls is not None})

    def logs(self) -> dict[type, Log[Any]]:
        """The LOG slices, still in the file."""
        found: dict[type, Log[Any]] = {}
        for history in self._histories.values():
            if history.cls is not None and len(history):
                stored = StoredItems(self.source, self.shapes, history.starts, history.lengths)
                found[history.cls] = Log(getattr(history.cls, "__log_key__", None), stored, history.index)
        return found

    def lost(self) -> dict[str, str]:
        """Slices that hold something and whose type is not to be had, with the reason."""
        targets = (*self._states.items(), *self._histories.items())
        return {name: target.lost for name, target in targets if target.lost and len(target)}

    def _found(self, number: int) -> _State | _History:
        """The slice of a number that was not met before."""
        _, name, kind = self.shapes.entry(number)
        cls, reason = _find(name, kind)
        if cls is not None:  # two stored names may mean one class today
            name = type_name(cls)
        found: _State | _History
        if kind == "log":
            found = self._histories.setdefault(name, _History(cls, reason))
        else:
            found = self._states.setdefault(name, _State(cls, reason))
            if kind == "keyed":
                found.hold_by_key(self.shapes)
        self._slices[number] = found
        return found


def kind_name(cls: type) -> str:
    """How a slice of this type is stored."""
    if kind_of(cls) is SliceKind.LOG:
        return "log"
    return "keyed" if hasattr(cls, "__slice_key__") else "state"


def _find(name: str, kind: str) -> tuple[type | None, str]:
    found = decode({"$": "type", "t": name})
    if isinstance(found, Opaque):
        return None, (
            f"Cannot read the stored slice {name}: {found.reason}. Bring the class back or register an alias for it, "
            "then open the session again."
        )
    today = kind_name(found)
    if today != kind and not (kind == "state" and today == "keyed"):
        return (
            None,
            f"Cannot read the stored slice {name}: it was stored as {kind} and its class is declared {today} now.",
        )
    return found, ""


class _State:
    """A STATE slice on its way: plain items stay encoded to the end, keyed ones are needed as they come."""

    __slots__ = ("_keyed", "_raw", "cls", "lost")

    def __init__(self, cls: type | None, lost: str) -> None:
        self.cls = cls
        self.lost = lost
        self._raw: list[Any] = []
        self._keyed: Keyed[Any] | Unreadable[Any] | None = None

    def __len__(self) -> int:
        return len(self._raw)

    def clear(self) -> None:
        self._raw = []
        if self._keyed is not None:
            self._keyed = self._blank

    def hold_by_key(self, shapes: Shapes) -> None:
        """From here on one item per key. What came before was stored when the class was not keyed yet."""
        if self.cls is not None and self._keyed is None:
            items = self.items(shapes)
            self._keyed = items if isinstance(items, Keyed | Unreadable) else None

    @property
    def _blank(self) -> Keyed[Any]:
        assert self.cls is not None
        blank = no_items(self.cls)
        assert isinstance(blank, Keyed)
        return blank

    def take(self, op: list[Any], shapes: Shapes) -> None:
        if self._keyed is not None:
            self._keyed = self._keep(self._keyed, op, shapes)
            return
        match op:
            case [0, item]:
                self._raw.append(item)
            case [1, items]:
                self._raw.extend(items)
            case [2, parts]:
                self._raw = _assemble(self._raw, parts)
            case _:  # the class is lost, so its updates cannot be run
                self._raw.append(op)

    def _keep(self, now: Keyed[Any] | Unreadable[Any], op: list[Any], shapes: Shapes) -> Keyed[Any] | Unreadable[Any]:
        cls: Any = self.cls
        try:
            match op:
                case [0, item]:
                    return now.append(self._value(item, shapes))
                case [1, items]:
                    return now.extend([self._value(item, shapes) for item in items])
                case [2, parts]:
                    kept = () if all(len(part) == 1 for part in parts) else tuple(now)
                    news = [part if len(part) == 2 else [self._value(part[0], shapes)] for part in parts]
                    return self._blank.of(_assemble(kept, news))
                case [_, key, delta]:
                    key, delta = decode(shapes.unpack(key)), decode(shapes.unpack(delta))
                    return now.append(cls.patched(now.get(key), key, delta))
                case _:
                    raise SessionStorageError("an operation is not known to this program")
        except Exception as error:  # noqa: BLE001  INVARIANT: a slice that cannot be rebuilt is refused, and others are not
            if isinstance(now, Unreadable):
                return now
            return Unreadable(_unreadable(cls, str(error) or type(error).__name__), now)

    def _value(self, raw: Any, shapes: Shapes) -> Any:
        value = decode(shapes.unpack(raw))
        if isinstance(value, Opaque):
            raise SessionStorageError(value.reason)
        return value

    def items(self, shapes: Shapes) -> Items[Any]:
        if self._keyed is not None:
            return self._keyed
        cls: Any = self.cls
        try:
            return no_items(cls).of(self._value(raw, shapes) for raw in self._raw)
        except (SessionStorageError, CodecError, AttributeError) as error:  # the key may be a field that is not there
            return Unreadable(_unreadable(cls, str(error)), no_items(cls))


def _unreadable(cls: type, reason: str) -> str:
    return (
        f"Cannot read the stored slice {cls.__module__}:{cls.__qualname__}: {reason}. Register an upcaster and open the "
        f"session again, or start over with session[{cls.__qualname__}].seed(...)."
    )


def _assemble(before: Sequence[Any], parts: list[list[Any]]) -> list[Any]:
    """What a replacement made of a slice: `[first, count]` was there before, `[item]` is new."""
    whole: list[Any] = []
    for part in parts:
        if len(part) == 2:
            whole.extend(before[part[0] : part[0] + part[1]])
        else:
            whole.append(part[0])
    return whole


class _History:
    """A LOG slice on its way: where its items lie."""

    __slots__ = ("cls", "index", "lengths", "lost", "starts")

    def __init__(self, cls: type | None, lost: str) -> None:
        self.cls = cls
        self.lost = lost
        self.clear()

    def __len__(self) -> int:
        return len(self.starts)

    def clear(self) -> None:
        self.starts, self.lengths = array("Q"), array("Q")
        self.index: dict[Hashable, int] = {}

    def note(self, start: int, length: int, key: Any) -> None:
        if key is not None:
            self.index[key if type(key) is str else decode(key)] = len(self.starts)
        self.starts.append(start)
        self.lengths.append(length)


class StoredItems(Sequence[Any]):
    """LOG items that lie in the file: each is decoded when it is read."""

    __slots__ = ("_lengths", "_shapes", "_source", "_starts")

    def __init__(self, source: Source, shapes: Shapes, starts: array[int], lengths: array[int]) -> None:
        self._source = source
        self._shapes = shapes
        self._starts = starts
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        line = self._source.read(self._starts[index], self._lengths[index])
        return decode(self._shapes.unpack(orjson.loads(line)))

    def __iter__(self) -> Iterator[Any]:
        for place in range(len(self)):
            yield self[place]
