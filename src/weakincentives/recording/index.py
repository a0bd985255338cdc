"""What a session's file holds and where: one pass over its records, then any step can be read by itself.

Goes on where it stopped when the file has grown, and begins anew when it is not the same file any more. Never locks, cuts or
writes; never imports what the file names. Keeps places, not contents: memory grows with the number of operations only.
"""

from __future__ import annotations

import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from contextlib import contextmanager
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
_NUMBER: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}
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
_NONSENSE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
"""What reading a record that was made to mislead may raise."""
_OUTCOME_NUMBERS: Final[dict[Any, int]] = {word: number for number, word in enumerate(OUTCOMES)}


class Index:
    """Where everything is in one file, as far as it was read. Its owner sees to it that one thread at a time lets it grow."""

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
        self.tools: list[str] = []
        self.call_tools = array("I")
        self.call_outcomes = bytearray()
        self.by_call_id: dict[str, int] = {}
        """Number of the newest call with an id."""
        self.taken_back: dict[int, int] = {}
        """By number of a call: the position of the rollback that took it back."""
        self.logs: dict[str, array[int]] = {}
        """Of LOG slices: the positions of their items."""
        self.resets = array("Q")
        self.attached: dict[str, None] = {}
        """Names of attached files."""
        self._slices: dict[str, SliceTrack] = {}
        self._files: dict[str, FilesTrack] = {}
        self._keys: dict[int, tuple[SliceTrack, Callable[[Any], str | None]]] = {}
        self._changing = array("Q")
        """Positions that changed slices or files."""
        self._followed = 0
        """How many of these slices and files have been through."""
        self._mutex = threading.Lock()
        self._event_places: dict[int, tuple[int, int]] = {}
        """Where a stored event has its tool and its outcome, by the number of its shape."""
        self._tool_numbers: dict[str, int] = {}
        self._last = (0, b"")
        """Where the last record read begins, and how: its length and checksum."""

    def grow(self) -> bool:
        """Read what was added since the last time. False: the file is not the same any more."""
        size = self.source.size
        if size < self.end or not self._still_there():
            return False
        last = offset = self.end
        try:
            for offset, payload in self.source.records(self.end, size):
                self._feed(offset, payload)
                last, self.end = offset, offset + FRAME + len(payload)
        except _NONSENSE as error:
            raise self._senseless(offset, error) from error
        if self.end > last:
            self._last = (last, self.source.read(last, FRAME))
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
        kind = "log" if "l" in head else "register"
        if "w" in head or "f" in head or "z" in head:
            self._changing.append(position)
            kind = self._kind(head)
            if "z" in head:
                self.resets.append(position)
        for (number, key), line in zip(head.get("l", ()), lines[1:], strict=True):
            name = self.shapes.entry(number)[1]
            if name not in self.logs:
                self.logs[name] = array("Q")
            self.logs[name].append(position)
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
        kind = "reset" if "z" in head else "transaction" if "x" in head else "write"
        for name, ops in head.get("f", ()):
            self.attached[name] = None
            if FilesTrack.begins_with(ops):
                kind = "attach"
        return kind

    def _call(self, position: int, key: Any, line: bytes) -> None:
        mark = orjson.loads(line)["$"]
        places = self._event_places.get(mark[0])
        if places is None:
            fields = self.shapes.entry(mark[0])[3]
            places = self._event_places[mark[0]] = (fields.index("tool_name") + 1, fields.index("outcome") + 1)
        tool, outcome = mark[places[0]], mark[places[1]]
        number = self._tool_numbers.get(tool)
        if number is None:
            number = self._tool_numbers[tool] = len(self.tools)
            self.tools.append(str(tool))
        self.calls.append(position)
        self.call_tools.append(number)
        self.call_outcomes.append(_OUTCOME_NUMBERS.get(outcome, len(OUTCOMES) - 1))
        if isinstance(key, str):
            self.by_call_id[key] = len(self.calls)

    # -- slices and files: followed when somebody first asks for them ------------------------------------------------

    @property
    def slices(self) -> dict[str, SliceTrack]:
        self._follow()
        return self._slices

    @property
    def files(self) -> dict[str, FilesTrack]:
        self._follow()
        return self._files

    def _follow(self) -> None:
        """Take in what slices and files went through, as far as the file was read."""
        with self._mutex:
            for place in range(self._followed, len(self._changing)):
                position = self._changing[place]
                payload = self.source.payload(self.offsets[position - 1])
                with self.making_sense(self.offsets[position - 1]):
                    self._change(position, orjson.loads(payload.partition(b"\n")[0]))
                self._followed = place + 1

    def _change(self, position: int, head: dict[str, Any]) -> None:
        if "z" in head:
            for track in self._slices.values():
                track.reset(position)
        for number, write in enumerate(head.get("w", ())):
            track, key_of = self._slice(write[0])
            op = write[1:]
            if op[0] == UPDATE:
                op[1] = plain(self.shapes.unpack(op[1]))
            track.note(position, number, op, key_of)
        for number, (name, ops) in enumerate(head.get("f", ())):
            files = self._files.get(name)
            if files is None:
                files = self._files[name] = FilesTrack(name)
            files.note(position, number, ops)

    @contextmanager
    def making_sense(self, offset: int) -> Generator[None]:
        """Whatever a damaged or hostile file does to its reader is told as such."""
        try:
            yield
        except _NONSENSE as error:
            raise self._senseless(offset, error) from error

    def _senseless(self, offset: int, error: Exception) -> SessionStorageError:
        return SessionStorageError(
            f"Cannot read {self.source.path}: the record at byte {offset} makes no sense "
            f"({type(error).__name__}: {error})."
        )

    def call_number(self, position: int) -> int:
        """The how-manieth call stands at a position, from 1."""
        return bisect_left(self.calls, position) + 1

    def logged(self, name: str, position: int) -> int:
        """How many items a LOG slice had at a position."""
        reset = bisect_right(self.resets, position)
        begin = bisect_right(self.logs[name], self.resets[reset - 1]) if reset else 0
        return max(0, bisect_right(self.logs[name], position) - begin)

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

    def _slice(self, number: int) -> tuple[SliceTrack, Callable[[Any], str | None]]:
        """The slice of a number, and how its items are told apart."""
        known = self._keys.get(number)
        if known is not None:
            return known
        _, name, kind = self.shapes.entry(number)
        track = self._slices.get(name)
        if track is None:
            track = self._slices[name] = SliceTrack(name, kind)
        find = _known_key(name) if kind == "keyed" else None
        track.keys_known = kind != "keyed" or find is not None
        self._keys[number] = track, self._key_of(find)
        return self._keys[number]

    def _key_of(self, find: Any) -> Callable[[Any], str | None]:
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
