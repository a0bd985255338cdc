"""Attached files through a session's file: which contents each path had after each operation.

Knows the stored form of file operations (`filesystem.memory`); folders are not followed, a file says where it lies.
"""

from __future__ import annotations

import base64
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from immutables import Map

Place = tuple[int, ...]
"""Where an operation is stored: position, number of the attachment in the record, then the way into nested operations."""

_EVERY = 64


class Content:
    """What a file holds: one stored content, or that and what was appended to it."""

    __slots__ = ("earlier", "place")

    def __init__(self, place: Place, earlier: Content | None = None) -> None:
        self.place = place
        self.earlier = earlier

    def places(self) -> list[Place]:
        """Every stored part, in order."""
        found: list[Place] = []
        part: Content | None = self
        while part is not None:
            found.append(part.place)
            part = part.earlier
        return found[::-1]


Tree = Map[str, Content]
_EMPTY: Tree = Map()
Touch = tuple[str, str, Place]
"""Word of the operation, path, and where it is stored."""


class FilesTrack:
    """The operations on the files attached under one name, in order. Grows with the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.readable = True
        """Whether all operations were of a form that is known here."""
        self._positions = array("Q")
        self._touches: list[tuple[Touch, ...]] = []
        self._now: Tree = _EMPTY
        self._kept: list[tuple[int, Tree]] = [(0, _EMPTY)]

    def note(self, position: int, number: int, ops: list[Any]) -> None:
        touches = tuple(touch for place, op in enumerate(ops) for touch in self._flat(op, (position, number, place)))
        self._positions.append(position)
        self._touches.append(touches)
        self._now = _done(self._now, touches)
        if len(self._touches) - self._kept[-1][0] >= _EVERY:
            self._kept.append((len(self._touches), self._now))

    @staticmethod
    def begins_with(ops: list[dict[str, Any]]) -> bool:
        """Whether these operations say all that there is, as when files are attached."""
        return any(op.get("op") == "reset" for op in ops)

    def after(self, position: int) -> Tree:
        """The files when so many operations of the session had been committed."""
        wanted = bisect_right(self._positions, position)
        done, tree = self._kept[bisect_right(self._kept, wanted, key=lambda kept: kept[0]) - 1]
        for place in range(done, wanted):
            tree = _done(tree, self._touches[place])
        return tree

    def touched(self, position: int) -> tuple[Touch, ...]:
        """What the operation at this position did to the files."""
        last = bisect_right(self._positions, position)
        found: list[Touch] = []
        while last and self._positions[last - 1] == position:
            last -= 1
            found[:0] = self._touches[last]
        return tuple(found)

    def _flat(self, op: Any, place: Place) -> Iterator[Touch]:
        match op:
            case {"op": "put" | "append" | "remove" | "mkdir" | "prune" as word, "path": str(path)}:
                yield word, path, place
            case {"op": "batch" | "reset" as word, "ops": _}:
                if word == "reset":
                    yield "reset", "", place
                for number, part in enumerate(op["ops"]):
                    yield from self._flat(part, (*place, number))
            case _:
                self.readable = False  # files of another kind: told, not guessed at


def touched(op: Any) -> Iterator[str]:
    """The files that a stored operation wrote or removed."""
    match op:
        case {"op": "put" | "append" | "remove", "path": str(path)}:
            yield path
        case {"op": "batch" | "reset", "ops": _}:
            for part in op["ops"]:
                yield from touched(part)
        case _:
            pass


def stored_content(op: dict[str, Any]) -> bytes:
    """What an operation wrote."""
    text: Any = op.get("text")
    return base64.b64decode(op["base64"]) if text is None else text.encode()


def _done(tree: Tree, touches: tuple[Touch, ...]) -> Tree:
    draft = tree.mutate()
    for word, path, place in touches:
        if word == "put":
            draft[path] = Content(place)
        elif word == "append":
            draft[path] = Content(place, draft.get(path))
        elif word == "remove":
            draft.pop(path, None)
        elif word == "reset":
            draft = _EMPTY.mutate()
    return draft.finish()
