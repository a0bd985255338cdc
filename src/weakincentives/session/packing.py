"""Many objects as one block of bytes, and back, within one process. What cannot be brought back whole is not packed.

Dataclasses are packed by their fields: faster than their own state methods, and frozen ones too. A block is unpacked
once to see that it can be, unless everything in it is of classes that were seen to come back before.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import io
import types
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")

_HEAP_TYPE = 1 << 9
_trusted: set[type] = {
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    enum.EnumMeta,
    type,
    types.FunctionType,
}
"""Classes whose objects come back whole: these, and every dataclass that did so once."""

_plans: dict[type, Callable[[Any], Any] | None] = {}
"""How to read the state of a dataclass; None for objects that know better themselves."""
_classes: list[type] = []
_indexes: dict[type, int] = {}


def pack(items: Sequence[T]) -> bytes | None:
    """The items as bytes, or None when they would not come back whole."""
    cls = items[0].__class__
    plan = _plan(cls)
    alike = plan is not None and all(item.__class__ is cls for item in items)
    try:
        buffer = io.BytesIO()
        packer = _packer()(buffer)
        # Rows of one class need no word about it each.
        packer.dump((_index(cls), [plan(item) for item in items]) if alike and plan is not None else (-1, list(items)))
        block = buffer.getvalue()
        if packer.doubts or cls not in _trusted:
            if len(unpack(block)) != len(items):
                return None
            _trusted.update(doubt for doubt in packer.doubts if _plan(doubt) is not None)
            if plan is not None:
                _trusted.add(cls)
    except Exception:  # noqa: BLE001  INVARIANT: what cannot be packed is kept as it is, never lost
        return None
    return block


def unpack(block: bytes) -> list[Any]:
    import pickle

    index, rows = pickle.loads(block)
    return rows if index < 0 else [_rebuild(index, row) for row in rows]


@functools.cache
def _packer() -> Callable[[io.BytesIO], Any]:
    """The class that packs. Made when the first block is full: a short session loads none of this."""
    import decimal
    import pathlib
    import pickle
    import uuid

    _trusted.update((decimal.Decimal, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath))

    class Packer(pickle.Pickler):
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file, protocol=5)
            self.doubts: set[type] = set()

        def reducer_override(self, obj: object, /) -> Any:
            cls = type(obj)
            if cls not in _trusted:
                self.doubts.add(cls)
            plan = _plans[cls] if cls in _plans else _plan(cls)
            if plan is not None:
                return _rebuild, (_index(cls), plan(obj))
            if isinstance(obj, type) and "<locals>" in obj.__qualname__:
                return _class, (_index(obj),)  # a class made inside a function has no address to be found at
            return NotImplemented

    return Packer


def _plan(cls: type) -> Callable[[Any], Any] | None:
    if cls not in _plans:
        _plans[cls] = _plan_of(cls)
    return _plans[cls]


def _plan_of(cls: type) -> Callable[[Any], Any] | None:
    """The fields are all there is to an object of this class only if nothing in its ancestry holds more."""
    if not dataclasses.is_dataclass(cls) or cls.__new__ is not object.__new__:
        return None
    custom = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
    for base in cls.__mro__[:-1]:
        members = base.__dict__
        if not base.__flags__ & _HEAP_TYPE or any(name in members for name in custom):
            return None
        if not dataclasses.is_dataclass(base) and members.get("__slots__"):
            return None
    names = [field.name for field in dataclasses.fields(cls)]
    if cls.__dictoffset__:
        return _state_of(tuple(names))
    if len(names) == 1:
        name = names[0]
        return lambda obj: (getattr(obj, name),)
    return attrgetter(*names) if names else lambda _: ()


def _state_of(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """For objects with a dictionary: what is in it, and the fields that lie in slots."""

    def state(obj: Any) -> dict[str, Any]:
        found: dict[str, Any] = dict(obj.__dict__)
        for name in names:
            if name not in found:
                found[name] = getattr(obj, name)
        return found

    return state


_new: Callable[[type], object] = object.__new__


def _rebuild(index: int, state: tuple[Any, ...] | dict[str, Any]) -> object:
    cls = _classes[index]
    instance = _new(cls)
    pairs = state.items() if isinstance(state, dict) else zip(_names(cls), state, strict=True)
    for name, value in pairs:
        object.__setattr__(instance, name, value)
    return instance


_field_names: dict[type, tuple[str, ...]] = {}


def _names(cls: type) -> tuple[str, ...]:
    names = _field_names.get(cls)
    if names is None:
        names = _field_names[cls] = tuple(field.name for field in dataclasses.fields(cast("Any", cls)))
    return names


def _index(cls: type) -> int:
    index = _indexes.get(cls)
    if index is None:
        _classes.append(cls)
        index = _indexes[cls] = len(_classes) - 1
    return index


def _class(index: int) -> type:
    return _classes[index]
