"""A durable session's file, opened to be looked at: its steps, its state at any position, a copy up to one.

Reads only: no lock, so a session can be watched while an agent works in it. Decides what is said where the file does not
know. Never imports what the file names; contents are bounded before they are shown.
"""

from __future__ import annotations

import math
import os
import stat
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import orjson

from ..errors import SessionStorageError
from ..frozen import frozen
from ..prompt.policies import PolicyState
from ..serde.codec import type_name
from ..session.record import Source, copy_file
from ..session.replay import APPEND, EXTEND, REPLACE, UPDATE
from ..session.shapes import Shapes
from .files import Content, Place, stored_content, touched
from .index import COMPENSATED, EVENT, KINDS, OUTCOMES, ROLLED_BACK, Index
from .plain import plain
from .slices import Entry, SliceTrack
from .step import FileChange, ItemChange, Row, SliceChange, Step

MOST_ITEMS = 50
"""Changed items of one slice, and changed files, that one step shows."""
_LONGEST_FILE = 1_000_000
_FIRST_LINE = 160
_LOOK_AHEAD = 256
_POLICY_STATE = type_name(PolicyState)
NO_FILES = "No files are attached to this session, so only the names of changed files are known."


@frozen
class SliceState:
    """A slice at one position."""

    slice: str
    type_name: str
    kind: str
    """state, keyed, or log."""
    count: int
    items: tuple[Any, ...]
    """The newest ones, oldest of them first."""


@frozen
class State:
    """A session at one position."""

    position: int
    slices: tuple[SliceState, ...]
    files: tuple[tuple[str, tuple[str, ...], int], ...]
    """Per attachment: its name, paths in order, and how many there are in all."""

    def as_json(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "slices": [
                {"slice": one.slice, "type": one.type_name, "kind": one.kind, "count": one.count, "items": one.items}
                for one in self.slices
            ],
            "files": [{"files": name, "paths": list(paths), "count": count} for name, paths, count in self.files],
        }


def origin_of(header: Mapping[str, Any]) -> dict[str, Any] | None:
    """Session and position that a file was forked from, by its first line."""
    match header.get("forked_from"):
        case {"session_id": str(session_id), "position": int(position)}:
            return {"session_id": session_id, "position": position}
        case _:
            return None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


class Recording:
    """The file of one session. Thread-safe; holds the file open until nobody holds it."""

    def __init__(self, path: str | os.PathLike[str], *, follow: bool = True) -> None:
        self.path = os.fspath(path)
        self._follow = follow
        self._mutex = threading.Lock()
        self._index = self._opened()
        self.refresh()

    def _opened(self) -> Index:
        try:
            source = Source(self.path, follow=self._follow)
            if not stat.S_ISREG(os.fstat(source.fd).st_mode):
                raise SessionStorageError(f"{self.path} is not a session file: it is no regular file.")
        except OSError as error:
            raise SessionStorageError(f"Cannot open the session file {self.path}: {error.strerror}.") from error
        return Index(source)

    def refresh(self) -> None:
        """Take in what was written since the last time."""
        with self._mutex:
            if not self._same_file() or not self._index.grow():
                self._index = self._opened()
                self._index.grow()

    def _same_file(self) -> bool:
        try:
            there = os.stat(self.path, follow_symlinks=self._follow)
        except OSError as error:
            raise SessionStorageError(f"Cannot open the session file {self.path}: {error.strerror}.") from error
        held = os.fstat(self._index.source.fd)
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    # -- as a whole ------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self._index.header["session_id"]

    @property
    def forked_from(self) -> dict[str, Any] | None:
        """Session and position this one was forked from."""
        return origin_of(self._index.header)

    @property
    def position(self) -> int:
        """How many operations the session has."""
        return len(self._index.offsets)

    @property
    def calls(self) -> int:
        return len(self._index.calls)

    @property
    def steps(self) -> int:
        """How many steps there are to show: all operations but those that only keep a counter."""
        return len(self._index.steps)

    @property
    def bytes(self) -> int:
        return self._index.end

    @property
    def shapes(self) -> Shapes:
        """What the numbers in stored values stand for."""
        return self._index.shapes

    def tail(self) -> str:
        """What is wrong behind the last whole record, in words; empty when nothing is."""
        kind = self._index.source.tail(self._index.end)
        if kind == "torn":
            return "The last write is not whole: it is under way, or was cut short and will be dropped at the next opening."
        if kind:
            return (
                f"The record at byte {self._index.end} is damaged and more records follow it; what follows is not read."
            )
        return ""

    def tools(self) -> dict[str, int]:
        """How often each tool was called."""
        counts = [0] * len(self._index.tools)
        for number in self._index.call_tools:
            counts[number] += 1
        return dict(zip(self._index.tools, counts, strict=True))

    def outcomes(self) -> dict[str, int]:
        """How often calls ended in each way."""
        found = {word: self._index.call_outcomes.count(number) for number, word in enumerate(OUTCOMES)}
        return {word: count for word, count in found.items() if count}

    def attached(self) -> tuple[str, ...]:
        """Names that files are attached under."""
        return tuple(self._index.attached)

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "session_id": self.session_id,
            "forked_from": self.forked_from,
            "position": self.position,
            "calls": self.calls,
            "bytes": self.bytes,
            "outcomes": self.outcomes(),
            "tools": self.tools(),
            "rolled_back": len(self._index.taken_back),
            "attached": list(self.attached()),
            "problem": self.tail(),
        }

    # -- steps -----------------------------------------------------------------------------------------------------

    def position_of_call(self, number: int) -> int:
        """Where the call of this number was recorded."""
        if not 1 <= number <= self.calls:
            there = f"it has calls 1 to {self.calls}" if self.calls else "it has no calls"
            raise SessionStorageError(f"There is no call {number} in {self.path}: {there}.")
        return self._index.calls[number - 1]

    def call_of_id(self, call_id: str) -> int | None:
        """The number of the newest call with this id."""
        return self._index.by_call_id.get(call_id)

    def call_at(self, position: int) -> int:
        """How many calls were recorded up to this position."""
        return bisect_right(self._index.calls, position)

    def neighbours(self, position: int) -> tuple[int | None, int | None]:
        """The steps before and after a position."""
        steps = self._index.steps
        before, after = bisect_left(steps, position), bisect_right(steps, position)
        return (steps[before - 1] if before else None), (steps[after] if after < len(steps) else None)

    def rows(
        self,
        *,
        before: int | None = None,
        count: int = 200,
        tool: str = "",
        outcome: str = "",
        calls_only: bool = False,
    ) -> list[Row]:
        """Steps in order, the last `count` of those before a position; of one tool or outcome if named. `outcome` may be
        `rolled_back` too."""
        index = self._index
        places = index.calls if calls_only or tool or outcome else index.steps
        found: list[Row] = []
        at = len(places) if before is None else bisect_left(places, before)
        while at > 0 and len(found) < count:
            at -= 1
            position = places[at]
            if (tool or outcome) and not self._fits(position, tool, outcome):
                continue
            found.append(self.row(position))
        return found[::-1]

    def _fits(self, position: int, tool: str, outcome: str) -> bool:
        index = self._index
        number = index.call_number(position) - 1
        if tool and index.tools[index.call_tools[number]] != tool:
            return False
        if outcome == "rolled_back":
            return number + 1 in index.taken_back or OUTCOMES[index.call_outcomes[number]] in _BEGUN
        return not outcome or OUTCOMES[index.call_outcomes[number]] == outcome

    def row(self, position: int) -> Row:
        """One step in short."""
        with self._making_sense(position):
            return self._row(position, *self.record(position))

    def step(self, position: int) -> Step:
        """One step in full."""
        with self._making_sense(position):
            return self._step(position, *self.record(position))

    def paths(self, name: str, position: int) -> tuple[str, ...]:
        """The files that the operation at a position wrote or removed."""
        with self._making_sense(position):
            return tuple(dict.fromkeys(_paths(self.record(position)[0], name)))

    def read(self, position: int) -> None:
        """Read everything that an operation stored; raises if any of it makes no sense."""
        with self._making_sense(position):
            head, logged = self.record(position)
            for _, *op in head.get("w", ()):
                plain(self.shapes.unpack(op))
            for _, line in logged:
                plain(self.shapes.unpack(orjson.loads(line)))

    def each(self, first: int = 1, last: int | None = None) -> Iterator[Row]:
        """The steps from one position to another, one after the other."""
        steps = self._index.steps
        for place in range(bisect_left(steps, first), len(steps)):
            if last is not None and steps[place] > last:
                return
            yield self.row(steps[place])

    @contextmanager
    def _making_sense(self, position: int) -> Generator[None]:
        """Whatever a damaged or hostile file does to its reader is told as such."""
        if position:
            self._check(position)
        with self._index.making_sense(self._index.offsets[position - 1] if position else 0):
            yield

    def _check(self, position: int) -> None:
        if not 1 <= position <= self.position:
            raise SessionStorageError(
                f"There is no position {position}: the session has positions 1 to {self.position}."
            )

    def record(self, position: int) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        """An operation as it is stored: its head, and its LOG items with the name of the slice each."""
        index = self._index
        lines = index.source.payload(index.offsets[position - 1]).split(b"\n")
        head: dict[str, Any] = orjson.loads(lines[0])
        names = [index.shapes.entry(number)[1] for number, _ in head.get("l", ())]
        return head, list(zip(names, lines[1:], strict=True))

    def _event(self, logged: list[tuple[str, bytes]], name: str) -> dict[str, Any]:
        line = next((line for each, line in logged if each == name), None)
        fields = {} if line is None else self._index.fields(line)
        return {key: plain(self._index.shapes.unpack(value)) for key, value in fields.items()}

    def _row(self, position: int, head: dict[str, Any], logged: list[tuple[str, bytes]]) -> Row:
        index = self._index
        kind = KINDS[index.kinds[position - 1]]
        slices = dict.fromkeys(index.shapes.entry(write[0])[1] for write in head.get("w", ()))
        files = dict.fromkeys(_paths(head))
        names = tuple(name.rpartition(":")[2] for name in slices if name != _POLICY_STATE)
        if kind != "call":
            return Row(
                position,
                kind,
                text=self._said(kind, head, logged),
                slices=names,
                files=tuple(files)[:MOST_ITEMS],
            )
        event = self._event(logged, EVENT)
        number = index.call_number(position)
        changes: dict[str, Any] = event.get("changes") or {}
        text = str(event.get("rendered_output", "")).strip().partition("\n")[0]
        return Row(
            position,
            kind,
            number,
            str(event.get("call_id", "")),
            str(event.get("tool_name", "?")),
            str(event.get("outcome", "")),
            str(event.get("policy", "")),
            text if len(text) <= _FIRST_LINE else f"{text[: _FIRST_LINE - 1]}…",
            _real(event.get("timestamp")),
            _real(event.get("duration")),
            index.taken_back.get(number, 0),
            tuple(dict.fromkeys([*names, *map(str, changes.get("slices", ()))])),
            tuple(dict.fromkeys([*files, *map(str, changes.get("files", ()))]))[:MOST_ITEMS],
        )

    def _said(self, kind: str, head: dict[str, Any], logged: list[tuple[str, bytes]]) -> str:
        if kind == "rollback":
            event = self._event(logged, ROLLED_BACK)
            numbers = [self._index.by_call_id.get(each) for each in event.get("call_ids", ())]
            calls = ", ".join(str(number) for number in numbers if number)
            tag = f" ({event['tag']})" if event.get("tag") else ""
            return f"calls {calls or 'none'} were taken back together{tag}: {event.get('reason', '')}"
        if kind == "compensation":
            event = self._event(logged, COMPENSATED)
            done = "undone" if event.get("success") else f"not undone: {event.get('message', '')}"
            return f"{event.get('tool_name', '?')}: its effect outside was {done}"
        if kind == "attach":
            names = ", ".join(name for name, _ in head.get("f", ()))
            return f"files were attached as {names}"
        if kind == "log":
            return f"recorded: {', '.join(name.rpartition(':')[2] for name, _ in logged)}"
        return _WORDS[kind]

    def _step(self, position: int, head: dict[str, Any], logged: list[tuple[str, bytes]]) -> Step:
        row = self._row(position, head, logged)
        notes: list[str] = []
        slices = tuple(self._slice_changes(position, head, notes))
        files = tuple(self._file_changes(position, head, notes))
        if row.kind != "call":
            items = [plain(self._index.shapes.unpack(orjson.loads(line))) for _, line in logged]
            result = items[0] if len(items) == 1 else items
            return Step(row, None, result or None, row.text, None, slices, files, tuple(notes))
        event = self._event(logged, EVENT)
        self._explain(row, event, head, notes)
        return Step(
            row,
            event.get("params"),
            event.get("result"),
            str(event.get("rendered_output", "")),
            event.get("run_context"),
            slices,
            files,
            tuple(notes),
        )

    def _explain(self, row: Row, event: dict[str, Any], head: dict[str, Any], notes: list[str]) -> None:
        """Say what of a call is not in its record."""
        if row.taken_back_by:
            notes.append(f"Taken back with others at step {row.taken_back_by}; what it had changed does not count.")
            return
        if row.outcome in _BEGUN:
            notes.append("Rolled back: what it had written before it ended was never stored.")
        slices, files = self._elsewhere(event, head)
        around = self._kept_at(row.position, slices, files)
        if around:
            notes.append(f"Its changes are part of a larger transaction, kept at step {around}.")
        elif files:
            notes.append(
                "The files it changed are not attached to this session, so only their names are known."
                if self._index.attached
                else NO_FILES
            )

    def kept_with(self, row: Row) -> int | None:
        """The later commit that holds what a call inside a larger transaction changed."""
        with self._making_sense(row.position):
            head, logged = self.record(row.position)
            return self._kept_at(row.position, *self._elsewhere(self._event(logged, EVENT), head))

    def _elsewhere(self, event: dict[str, Any], head: dict[str, Any]) -> tuple[set[str], set[str]]:
        """Slices and files that a call says it changed and that its record does not hold."""
        changes: dict[str, Any] = event.get("changes") or {}
        slices = {self._index.shapes.entry(write[0])[1].rpartition(":")[2] for write in head.get("w", ())}
        files = {*_paths(head)}
        return {*changes.get("slices", ())} - slices, {*changes.get("files", ())} - files

    def _kept_at(self, position: int, slices: set[str], files: set[str]) -> int | None:
        if not slices and not files:
            return None
        steps = self._index.steps
        place = bisect_right(steps, position)
        for later in steps[place : place + _LOOK_AHEAD]:
            head, _ = self.record(later)
            if "w" in head or "f" in head:
                held = {self._index.shapes.entry(write[0])[1].rpartition(":")[2] for write in head.get("w", ())}
                paths = {*_paths(head)}
                return later if held & slices or paths & files else None
        return None

    # -- slices ----------------------------------------------------------------------------------------------------

    def _slice_changes(self, position: int, head: dict[str, Any], notes: list[str]) -> Iterator[SliceChange]:
        index = self._index
        writes: dict[str, list[int]] = {}
        for write in head.get("w", ()):
            writes.setdefault(index.shapes.entry(write[0])[1], []).append(write[1])
        if "z" in head:
            writes |= {name: [REPLACE] for name in index.slices if name not in writes}
        for name, kinds in writes.items():
            track = index.slices[name]
            if track.kind == "keyed" and not track.keys_known:
                notes.append(
                    f"{track.title} holds one item per key and its class is not loaded, so items that were replaced are "
                    "not recognised."
                )
            changes = list(self._items(track, position, kinds))
            if changes:
                shown = changes[:MOST_ITEMS]
                items = tuple(self._item_change(*change) for change in shown)
                yield SliceChange(track.title, name, items, len(changes) - len(shown))

    def _items(
        self, track: SliceTrack, position: int, kinds: list[int]
    ) -> Iterator[tuple[Entry | None, Entry | None, str]]:
        if track.kind != "keyed" and all(kind in (APPEND, EXTEND) for kind in kinds):
            for entry in track.added(position):
                yield None, entry, "added"
            return
        before = track.after(position - 1)
        after = track.after(position)
        if track.kind == "keyed":
            olds = {entry.name: entry for entry in before}
            for entry in after:
                old = olds.pop(entry.name, None)
                if entry.earlier is not None and entry.ref[0] == position:
                    yield old, entry, "updated"
                elif old != entry:
                    yield old, entry, "added" if old is None else "changed"
            for old in olds.values():
                yield old, None, "removed"
            return
        kept = set(before) & set(after)
        gone = [entry for entry in before if entry not in kept]
        new = [entry for entry in after if entry not in kept]
        for old, entry in zip(gone, new, strict=False):  # most often one item takes the place of another
            yield old, entry, "changed"
        for old in gone[len(new) :]:
            yield old, None, "removed"
        for entry in new[len(gone) :]:
            yield None, entry, "added"

    def _item_change(self, before: Entry | None, after: Entry | None, change: str) -> ItemChange:
        if change == "updated":
            assert after is not None
            return ItemChange(None, self._delta(after), change)
        return ItemChange(
            None if before is None else self._item(before), None if after is None else self._item(after), change
        )

    def _item(self, entry: Entry) -> Any:
        """The item of an entry; of one that was changed by deltas, its beginning and how many they were."""
        if entry.earlier is None and entry.key is not None and self._stored(entry)[0] == UPDATE:
            return self._delta(entry)
        if entry.earlier is None:
            return self._value(entry)
        deltas: list[Any] = []
        at = entry
        while at.earlier is not None and len(deltas) < 5:
            deltas.append(self._delta(at)["delta"])
            at = at.earlier
        return {"key": orjson.loads(entry.key or "null"), "updates": entry.count + 1, "latest": deltas}

    def _stored(self, entry: Entry) -> list[Any]:
        """The operation that an entry comes from."""
        position, number, _ = entry.ref
        return self.record(position)[0]["w"][number][1:]

    def _value(self, entry: Entry) -> Any:
        kind, said = self._stored(entry)[:2]
        place = entry.ref[2]
        raw = said if kind == APPEND else said[place] if kind == EXTEND else said[place][0]
        return plain(self._index.shapes.unpack(raw))

    def _delta(self, entry: Entry) -> dict[str, Any]:
        _, key, delta = self._stored(entry)
        shapes = self._index.shapes
        return {"key": plain(shapes.unpack(key)), "delta": plain(shapes.unpack(delta))}

    # -- files -----------------------------------------------------------------------------------------------------

    def _file_changes(self, position: int, head: dict[str, Any], notes: list[str]) -> Iterator[FileChange]:
        for name in dict.fromkeys(name for name, _ in head.get("f", ())):
            track = self._index.files[name]
            if not track.readable:
                notes.append(
                    f"The files attached as {name} are of a kind that is not known here; their changes are not shown."
                )
            touched = track.touched(position)
            before, after = track.after(position - 1), track.after(position)
            fresh = any(word == "reset" for word, _, _ in touched)
            paths = dict.fromkeys(path for word, path, _ in touched if word in ("put", "append", "remove"))
            if fresh:
                paths |= dict.fromkeys(path for path in before if path not in paths)
            changed = [path for path in paths if before.get(path) is not after.get(path)]
            for path in changed[:MOST_ITEMS]:
                found = self._file_change(name, path, before.get(path), after.get(path))
                if found is not None:
                    yield found
            if len(changed) > MOST_ITEMS:
                notes.append(f"{len(changed) - MOST_ITEMS} more files of {name} changed.")

    def _file_change(self, name: str, path: str, old: Content | None, new: Content | None) -> FileChange | None:
        change = "created" if old is None else "deleted" if new is None else "changed"
        before, lost = self._text(old)
        after, hidden = self._text(new)
        note = lost or hidden
        return (
            None
            if before == after and not note and old and new
            else FileChange(name, path, change, before, after, note)
        )

    def _text(self, content: Content | None) -> tuple[str | None, str]:
        """A file's text, or why it is not shown."""
        if content is None:
            return None, ""
        held = bytearray()
        for place in content.places():
            held += stored_content(self._file_op(place))
            if len(held) > _LONGEST_FILE:
                return None, f"longer than {_LONGEST_FILE} bytes; not shown"
        try:
            return held.decode(), ""
        except UnicodeDecodeError:
            return None, f"no text: {len(held)} bytes"

    def _file_op(self, place: Place) -> dict[str, Any]:
        position, number, *way = place
        op: Any = self.record(position)[0]["f"][number][1]
        for at, step in enumerate(way):
            op = op[step] if at == 0 else op["ops"][step]
        return cast("dict[str, Any]", op)

    def file(self, name: str, path: str, position: int | None = None) -> str:
        """The text of an attached file as it was at a position."""
        position = self.position if position is None else position
        track = self._index.files.get(name)
        if track is None:
            known = ", ".join(self._index.files) or "none"
            raise SessionStorageError(f"No files are attached as {name!r} (attached: {known}).")
        content = track.after(position).get(path)
        if content is None:
            raise SessionStorageError(f"There is no file {path} in {name} at position {position}.")
        with self._making_sense(position):
            text, problem = self._text(content)
        if text is None:
            raise SessionStorageError(f"{path} cannot be shown: {problem}.")
        return text

    # -- earlier positions -----------------------------------------------------------------------------------------

    def at(self, position: int, *, items: int = MOST_ITEMS, paths: int = 500) -> State:
        """Slices and files as they were after so many operations, the newest `items` of each slice."""
        with self._making_sense(position):
            return self._state(position, items, paths)

    def _state(self, position: int, items: int, paths: int) -> State:
        slices: list[SliceState] = []
        for track in self._index.slices.values():
            entries = track.after(position)
            if entries:
                newest = tuple(self._item(entry) for entry in entries[-items:])
                slices.append(SliceState(track.title, track.name, track.kind, len(entries), newest))
        for name in self._index.logs:
            count = self._index.logged(name, position)
            if count and name != EVENT:
                slices.append(SliceState(name.rpartition(":")[2], name, "log", count, ()))
        files: list[tuple[str, tuple[str, ...], int]] = []
        for track in self._index.files.values():
            tree = track.after(position)
            files.append((track.name, tuple(sorted(tree)[:paths]), len(tree)))
        return State(position, tuple(slices), tuple(files))

    def copy(self, path: str | os.PathLike[str], position: int | None = None) -> str:
        """Make a session file of the first operations, under an id of its own, which is answered."""
        position = self.position if position is None else position
        if position:
            self._check(position)
        index = self._index
        end = index.end if position == self.position else index.offsets[position]
        session_id = os.urandom(16).hex()
        header = {"session_id": session_id, "forked_from": {"session_id": self.session_id, "position": position}}
        found = index.source.header()
        assert found is not None
        copy_file(index.source, found[1], end, os.fspath(path), header, fsync=False)
        return session_id


def _paths(head: dict[str, Any], only: str = "") -> Iterator[str]:
    """The files that an operation wrote or removed."""
    for name, ops in head.get("f", ()):
        if not only or name == only:
            for op in ops:
                yield from touched(op)


_BEGUN = frozenset({"failed", "timeout", "cancelled", "interrupted"})
_WORDS = {
    "transaction": "what several calls changed was kept together",
    "write": "changed outside of any call",
    "reset": "everything was forgotten",
    "register": "a counter was kept",
}
