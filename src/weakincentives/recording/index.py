"""What a session's file holds and where: one pass over its records, then any step can be read by itself.

Goes on where it stopped when the file has grown, and begins anew when it is not the same file any more. Never locks, cuts or
writes; never imports what the file names. Keeps places, not contents: memory grows with the number of operations only.
"""

from __future__ import annotations

import sys
from array import array
from types import SimpleNamespace
from typing import Any, Final, cast

import orjson

from ..errors import SessionStorageError
from ..session.record import FRAME, Source
from ..session.replay import UPDATE
from ..session.shapes import Shapes
from .files import FilesTrack
from .plain import key_text, plain
from .slices import SliceTrack

EVENT: Final = "weakincentives.prompt.events:ToolInvoked"
ROLLED_BACK: Final = "weakincentives.session.events:TransactionRolledBack"
COMPENSATED: Final = "weakincentives.session.events:Compensated"

KINDS: Final = (
    "call",  # one tool call, with what it changed if that was kept
    "transaction",  # what several calls of one block changed, kept together
    "write",  # slices or files changed outside of any call
    "rollback",  # several calls were taken back together
    "compensation",  # an external effect was undone, or could not be
    "log",  # an item of another LOG slice
    "attach",  # files were attached to the session
    "reset",  # everything was forgotten
    "register",  # a counter or mark of a policy
)
_NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}
OUTCOMES: Final = (
    "ok",
    "failed",
    "invalid_params",
    "unknown_tool",
    "denied",
    "pending",
    "deadline",
    "budget",
    "timeout",
    "cancelled",
    "interrupted",
    "unreadable",
)


class Index:
    """Where everything is in one file, as far as it was read. Not thread-safe: its owner has a lock."""

    def __init__(self, source: Source) -> None:
        found = source.header()
        if found is None:
            raise SessionStorageError(f"{source.path} holds no session yet: its making was cut short.")
        self.source = source
        self.header, self.end = found
        self.shapes = Shapes()
        self.offsets = array("Q")
        """Where the record of each operation begins; the operation at position n is number n - 1."""
        self.kinds = bytearray()
        self.steps = array("Q")
        """Positions that are shown: all but those that only keep a counter."""
        self.calls = array("Q")
        """Positions of tool calls."""
        self.call_numbers: dict[int, int] = {}
        """By position: the how-manieth call it is, from 1."""
        self.tools: list[str] = []
        self.call_tools = array("I")
        self.call_outcomes = bytearray()
        self.by_call_id: dict[str, int] = {}
        """Number of the newest call with an id."""
        self.taken_back: dict[int, int] = {}
        """By number of a call: the position of the rollback that took it back."""
        self.slices: dict[str, SliceTrack] = {}
        self.logs: dict[str, array[int]] = {}
        """Of LOG slices: the positions of their items since the last reset."""
        self.files: dict[str, FilesTrack] = {}
        self._tool_numbers: dict[str, int] = {}
        self._last = (0, b"")
        """Where the last record read begins, and how: its length and checksum."""

    def grow(self) -> bool:
        """Read what was added since the last time. False: the file is not the same any more."""
        size = self.source.size
        if size < self.end or not self._still_there():
            return False
        if size > self.end:
            for offset, payload in self.source.records(self.end, size):
                try:
                    self._feed(offset, payload)
                except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
                    raise SessionStorageError(
                        f"Cannot read {self.source.path}: the record at byte {offset} makes no sense "
                        f"({type(error).__name__}: {error})."
                    ) from error
                self.end = offset + FRAME + len(payload)
                self._last = (offset, self.source.read(offset, FRAME))
        return True

    def _still_there(self) -> bool:
        """Whether the last record is what it was: a writer may take its newest record back."""
        offset, frame = self._last
        return not frame or self.source.read(offset, FRAME) == frame

    def _feed(self, offset: int, payload: bytes) -> None:
        lines = payload.split(b"\n")
        head: dict[str, Any] = orjson.loads(lines[0])
        if "d" in head:
            self.shapes.learn(head["d"])
        if "n" in head:
            return
        self.offsets.append(offset)
        position = len(self.offsets)
        if "z" in head:
            for track in self.slices.values():
                track.reset(position)
            for items in self.logs.values():
                del items[:]
        for number, write in enumerate(head.get("w", ())):
            op = write[1:]
            if op[0] == UPDATE:
                op[1] = plain(self.shapes.unpack(op[1]))
            self._slice(write[0]).note(position, number, op, self._key_of(write[0]))
        for number, (name, ops) in enumerate(head.get("f", ())):
            if name not in self.files:
                self.files[name] = FilesTrack(name)
            self.files[name].note(position, number, ops)
        kind = self._kind(head)
        for (number, key), line in zip(head.get("l", ()), lines[1:], strict=True):
            name = self._name(number)
            self.logs.setdefault(name, array("Q")).append(position)
            if name == EVENT:
                kind = "call"
                self._call(position, key, line)
            elif name == ROLLED_BACK:
                kind = "rollback"
                self._rollback(position, line)
            elif kind == "log" and name == COMPENSATED:
                kind = "compensation"
        self.kinds.append(_NUMBER[kind])
        if kind != "register":
            self.steps.append(position)

    def _kind(self, head: dict[str, Any]) -> str:
        if "z" in head:
            return "reset"
        for name, ops in head.get("f", ()):
            if self.files[name].begins_with(ops):
                return "attach"
        if "w" in head or "f" in head:
            return "transaction" if "x" in head else "write"
        return "log" if "l" in head else "register"

    def _call(self, position: int, key: Any, line: bytes) -> None:
        event = self.fields(line)
        tool = str(event.get("tool_name", "?"))
        if tool not in self._tool_numbers:
            self._tool_numbers[tool] = len(self.tools)
            self.tools.append(tool)
        outcome = event.get("outcome")
        self.calls.append(position)
        number = self.call_numbers[position] = len(self.calls)
        self.call_tools.append(self._tool_numbers[tool])
        self.call_outcomes.append(OUTCOMES.index(outcome if outcome in OUTCOMES else "unreadable"))
        if isinstance(key, str):
            self.by_call_id[key] = number

    def _rollback(self, position: int, line: bytes) -> None:
        for call_id in plain(self.shapes.unpack(self.fields(line).get("call_ids"))) or ():
            number = self.by_call_id.get(call_id)
            if number is not None:
                self.taken_back[number] = position

    def fields(self, line: bytes) -> dict[str, Any]:
        """The fields of a stored dataclass, their values as stored."""
        stored: Any = orjson.loads(line)
        if not isinstance(stored, dict):
            return {}
        mark: Any = cast("dict[str, Any]", stored).get("$")
        if isinstance(mark, list):
            number, *values = cast("list[Any]", mark)
            entry = self.shapes.entry(number)
            if entry[0] == "data":
                return dict(zip(entry[3], values, strict=True))
        value: Any = self.shapes.unpack(stored)
        return value["v"]

    def _name(self, number: int) -> str:
        return self.shapes.entry(number)[1]

    def _slice(self, number: int) -> SliceTrack:
        _, name, kind = self.shapes.entry(number)
        track = self.slices.get(name)
        if track is None:
            track = self.slices[name] = SliceTrack(name, kind)
            track.keys_known = kind != "keyed" or _known_key(name) is not None
        return track

    def _key_of(self, number: int) -> Any:
        _, name, kind = self.shapes.entry(number)
        find = _known_key(name) if kind == "keyed" else None
        if find is None:
            return _no_key

        def key_of(item: Any) -> str | None:
            try:
                return key_text(plain_key(find(_Fields.of(plain(self.shapes.unpack(item))))))
            except Exception:  # noqa: BLE001  INVARIANT: a key that cannot be told is not told; nothing else is lost
                return None

        return key_of


def plain_key(key: Any) -> Any:
    return [plain_key(part) for part in cast("tuple[Any, ...]", key)] if isinstance(key, tuple) else key


def _no_key(_: Any) -> None:
    return None


def _known_key(name: str) -> Any:
    """How items of a keyed class are told apart, if the class is loaded in this process. It is not loaded for it."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return getattr(found, "__slice_key__", None) if isinstance(found, type) else None


class _Fields(SimpleNamespace):
    """Plain data that can be asked by attribute, as the object it was."""

    @classmethod
    def of(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return cls(**{key: cls.of(item) for key, item in cast("dict[str, Any]", value).items()})
