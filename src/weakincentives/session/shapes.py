"""Makes encoded values short: what repeats in a session's file is written once and then called by number.

Shapes are the names and fields of stored dataclasses, enum members, classes and slices. A table belongs to one file and
only grows; an entry counts once the record that brings it is written. Never looks at what a value means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

_TAG = "$"
_NESTED: frozenset[type] = frozenset({dict, list})
_TUPLE = 0
"""Tuples are so common that they have a number of their own in every file."""


class Shapes:
    """The table of one file. Not thread-safe: its owner has a lock."""

    __slots__ = ("_entries", "_ids", "_settled")

    def __init__(self) -> None:
        self._entries: list[list[Any]] = [["tuple"]]
        self._ids: dict[object, int] = {}
        self._settled = 1

    def learn(self, entries: Iterable[list[Any]]) -> None:
        """Take over what a record brought."""
        for entry in entries:
            self._ids[_key(entry)] = len(self._entries)
            self._entries.append(entry)
        self._settled = len(self._entries)

    def fresh(self) -> list[list[Any]]:
        """The entries that no record holds yet."""
        return self._entries[self._settled :]

    def settle(self) -> None:
        """The record with the fresh entries is written."""
        self._settled = len(self._entries)

    def forget(self, settled: int | None = None) -> None:
        """The record with the fresh entries could not be written; or was taken back, to when `settled` were there."""
        if settled is not None:
            self._settled = settled
        for entry in self.fresh():
            self._ids.pop(_key(entry), None)
        del self._entries[self._settled :]

    def number(self, *entry: Any) -> int:
        """The number of an entry, which is made if need be."""
        number = self._ids.get(entry)
        if number is None:
            # In this order: after an interrupt in between the table has an entry too many, which harms nobody.
            self._entries.append(list(entry))
            number = self._ids[entry] = len(self._entries) - 1
        return number

    @property
    def settled(self) -> int:
        return self._settled

    def entry(self, number: int) -> list[Any]:
        return self._entries[number]

    def pack(self, data: Any) -> Any:
        """Encoded data with numbers in place of what repeats."""
        kind = cast("type[object]", type(data))
        if kind is list:
            return [self.pack(item) if type(item) in _NESTED else item for item in data]
        if kind is not dict:
            return data
        tag = data.get(_TAG)
        if tag == "data":
            fields: dict[str, Any] = data["v"]
            key = ("data", data["t"], data["n"], tuple(fields))
            number = self._ids.get(key) or self.number(*key)
            packed = [self.pack(item) if type(item) in _NESTED else item for item in fields.values()]
            packed.insert(0, number)
            return {_TAG: packed}
        if tag == "tuple":
            return {_TAG: [_TUPLE, *self.pack(data["v"])]}
        if tag == "named":
            return {_TAG: [self.number("named", data["t"]), *self.pack(data["v"])]}
        if tag == "enum":
            return {_TAG: self.number("enum", data["t"], data["n"])}
        if tag == "type":
            return {_TAG: self.number("type", data["t"])}
        return {key: self.pack(item) if type(item) in _NESTED else item for key, item in data.items()}

    def unpack(self, data: Any) -> Any:
        """What `pack` was given."""
        kind = cast("type[object]", type(data))
        if kind is list:
            return [self.unpack(item) if type(item) in _NESTED else item for item in data]
        if kind is not dict:
            return data
        mark: Any = data.get(_TAG)
        if type(mark) is list:
            items: list[Any] = [
                self.unpack(item) if type(item) in _NESTED else item for item in cast("list[Any]", mark)
            ]
            return self._unpack_shape(self._entries[items.pop(0)], items)
        if type(mark) is int:
            entry = self._entries[mark]
            return (
                {_TAG: entry[0], "t": entry[1]} if len(entry) == 2 else {_TAG: entry[0], "t": entry[1], "n": entry[2]}
            )
        return {key: self.unpack(item) if type(item) in _NESTED else item for key, item in data.items()}

    def _unpack_shape(self, entry: list[Any], items: list[Any]) -> dict[str, Any]:
        match entry:
            case ["data", name, version, names]:
                return {_TAG: "data", "t": name, "n": version, "v": dict(zip(names, items, strict=True))}
            case ["named", name]:
                return {_TAG: "named", "t": name, "v": items}
            case _:
                return {_TAG: "tuple", "v": items}


def _key(entry: list[Any]) -> object:
    """Entries read from a file and entries just made are the same if their keys are."""
    return tuple(tuple(cast("list[Any]", part)) if isinstance(part, list) else part for part in entry)
