"""The pages of the area Agent sessions: durable sessions of the tool runtime, from one folder that the config names.

Reads only files that lie in that folder itself, by their names; follows no link, opens no other folder, imports nothing that a
file names and writes nothing. Files that were opened are kept in mind, a few at a time, and read on from where they ended.
"""

from __future__ import annotations

import os
import shlex
import stat
import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from wardwright.http.route import BadRequest, Conflict, NotFound
from wardwright.http.visit import Answer, Page, Visit
from wardwright.ui import recorded
from weakincentives.errors import SessionStorageError
from weakincentives.recording import Recording, origin_of
from weakincentives.recording.index import OUTCOMES
from weakincentives.session.record import Source

LISTED: Final = 100
STEPS: Final = 200
LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a file that a page opens."""
_OPEN: Final = 8
_ENTRIES: Final = 20_000
_STATE_ITEMS: Final = 20
_PATHS: Final = 200
FILTERS: Final = (*OUTCOMES[:-1], "rolled_back")


@dataclass(frozen=True, slots=True)
class Found:
    """A session file in the folder."""

    name: str
    size: int
    changed_ms: int
    session_id: str
    forked_from: str

    @property
    def address(self) -> str:
        return _address(self.name)


class Shelf:
    """The files that were looked at last, opened. One per process; thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._opened: OrderedDict[tuple[str, str], Recording] = OrderedDict()

    def take(self, folder: str, name: str) -> Recording:
        """The recording of a file, as it is now. Big ones take a moment, so one is opened at a time."""
        path = _inside(folder, name)
        with self._mutex:
            known = self._opened.get((folder, name))
            try:
                if known is None:
                    known = Recording(path, follow=False)
                else:
                    known.refresh()
            except SessionStorageError as error:
                self._opened.pop((folder, name), None)
                raise Conflict(_without(str(error), path, name)) from error
            self._opened[folder, name] = known
            self._opened.move_to_end((folder, name))
            while len(self._opened) > _OPEN:
                self._opened.popitem(last=False)
            return known


_SHELF: Final = Shelf()


# what is shown


def show_sessions(visit: Visit) -> Answer:
    folder = _folder(visit)
    number = _number(visit.query.get("page", ""), 1)
    names: list[tuple[int, str, int]] = []
    problem = ""
    if folder:
        try:
            names = _listed(folder)
        except OSError as error:
            problem = f"The folder of agent sessions cannot be read: {error.strerror or 'it is not there'}."
    first = (number - 1) * LISTED
    found = [one for entry in names[first : first + LISTED] if (one := _looked_at(folder, *entry))]
    return visit.page(
        "agents.html",
        configured=bool(folder),
        problem=problem,
        sessions=found,
        newer=number - 1,
        older=number + 1 if len(names) > first + LISTED else 0,
    )


def show_session(visit: Visit) -> Answer:
    name = visit.path["name"]
    recording = _SHELF.take(_folder(visit), name)
    tool, outcome = visit.query.get("tool", ""), visit.query.get("outcome", "")
    if outcome and outcome not in FILTERS:
        raise BadRequest(f"'{outcome}' is no outcome of a call. There are: {', '.join(FILTERS)}.")
    before = _number(visit.query.get("before", ""), 0) or None
    with _reading(recording, name):
        rows = recording.rows(before=before, count=STEPS, tool=tool, outcome=outcome)
        counts = recording.outcomes()
        tools = sorted(recording.tools().items(), key=lambda one: (-one[1], one[0]))
    kept = {key: value for key, value in (("tool", tool), ("outcome", outcome)) if value}
    more = len(rows) == STEPS and rows[0].position > 1
    return visit.page(
        "agents_session.html",
        name=name,
        recording=recording,
        problem=recording.tail(),
        counts=counts,
        tools=tools[:_PATHS],
        rows=[(row, recorded.badge(row)) for row in reversed(rows)],
        tool=tool,
        outcome=outcome,
        filters=FILTERS,
        before=before,
        newest=f"{_address(name)}?{urlencode(kept)}" if kept else _address(name),
        older=f"{_address(name)}?{urlencode({**kept, 'before': rows[0].position})}" if more else "",
        address=_address(name),
    )


def show_step(visit: Visit) -> Answer:
    name = visit.path["name"]
    recording = _SHELF.take(_folder(visit), name)
    if not recording.steps:
        raise NotFound(f"{name} has no steps yet.")
    with _reading(recording, name):
        asked = min(_number(visit.query.get("at", ""), recording.position) or 1, recording.position)
        position = _step_at(recording, asked)
        values = _step(recording, name, position)
    if visit.headers.get("x-wardwright-fragment"):
        return visit.fragment("agents_step_part.html", **values)
    return visit.page("agents_step.html", **values)


def show_file(visit: Visit) -> Answer:
    name = visit.path["name"]
    recording = _SHELF.take(_folder(visit), name)
    files, path = visit.query.get("files", ""), visit.query.get("path", "")
    position = min(_number(visit.query.get("at", ""), recording.position), recording.position)
    with _reading(recording, name):
        text = recorded.shortened(recording.file(files, path, position))
    return visit.page(
        "agents_file.html",
        name=name,
        files=files,
        file_path=path,
        position=position,
        shown=text,
        address=_address(name),
        step=_step_address(name, position),
    )


def _step(recording: Recording, name: str, position: int) -> dict[str, Any]:
    step = recording.step(position)
    state = recording.at(position, items=_STATE_ITEMS, paths=_PATHS)
    previous, following = recording.neighbours(position)
    first, last = recording.neighbours(0)[1], recording.neighbours(recording.position + 1)[0]
    stem = name.rpartition(".")[0] or name
    command = f"wink fork {shlex.quote(name)} {shlex.quote(f'{stem}-{position}.session')} --at {position}"
    return {
        "name": name,
        "recording": recording,
        "step": step,
        "row": step.row,
        "badge": recorded.badge(step.row),
        "at_ms": None if step.row.timestamp is None else int(step.row.timestamp * 1000),
        "took_ms": None if step.row.seconds is None else step.row.seconds * 1000,
        "params": None if step.row.kind != "call" else recorded.shortened(step.params),
        "text": recorded.shortened(step.text),
        "result": None if step.row.kind == "call" or step.result is None else recorded.shortened(step.result),
        "diffs": recorded.step_diffs(step),
        "notes": step.notes,
        "taken_back_by": _step_address(name, step.row.taken_back_by) if step.row.taken_back_by else "",
        "slices": [(one, recorded.items(one)) for one in state.slices],
        "trees": [
            (tree, [(path, _file_address(name, tree, path, position)) for path in paths], count)
            for tree, paths, count in state.files
        ],
        "command": command,
        "address": _address(name),
        "first": _step_address(name, first),
        "previous": _step_address(name, previous),
        "following": _step_address(name, following),
        "last": _step_address(name, last),
    }


# the folder


def _folder(visit: Visit) -> str:
    """What the process was started with; empty when no folder was named."""
    return str(getattr(visit.gateway, "sessions_folder", ""))


def _inside(folder: str, name: str) -> str:
    """Where a file of the folder lies. One plain name: nothing that a path could be made of."""
    if not folder:
        raise NotFound("No folder of agent sessions was named when the gateway was started.")
    missing = NotFound(f"There is no session {name!r} in the folder of agent sessions.")
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise missing
    path = os.path.join(folder, name)
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        raise missing from None
    if not stat.S_ISREG(found.st_mode):
        raise missing
    if found.st_size > LARGEST:
        raise Conflict(
            f"{name} has {found.st_size:,} bytes, more than a page opens. Look at it with: wink inspect {name}"
        )
    return path


def _listed(folder: str) -> list[tuple[int, str, int]]:
    """The regular files of the folder, newest first."""
    found: list[tuple[int, str, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
                continue
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:  # it went away meanwhile
                continue
            found.append((about.st_mtime_ns // 1_000_000, entry.name, about.st_size))
            if len(found) == _ENTRIES:
                break
    return sorted(found, reverse=True)


def _looked_at(folder: str, changed_ms: int, name: str, size: int) -> Found | None:
    """What the first line of a file says; None for files that are no sessions."""
    try:
        found = Source(os.path.join(folder, name), follow=False).header()
    except (OSError, SessionStorageError):
        return None
    if found is None:
        return None
    origin = origin_of(found[0])
    told = "" if origin is None else f"{origin['session_id']} at step {origin['position']}"
    return Found(name, size, changed_ms, found[0]["session_id"], told)


@contextmanager
def _reading(recording: Recording, name: str) -> Generator[None]:
    """What a damaged file does to its reader is told, without where the file lies."""
    try:
        yield
    except SessionStorageError as error:
        raise _Unreadable(_without(str(error), recording.path, name)) from error


class _Unreadable(NotFound):
    """The file does not hold what was asked for."""


def _without(message: str, path: str, name: str) -> str:
    return message.replace(path, name)


# addresses and numbers


def _address(name: str) -> str:
    return f"/agents/{quote(name, safe='')}"


def _step_address(name: str, position: int | None) -> str:
    return "" if position is None else f"{_address(name)}/step?at={position}"


def _file_address(name: str, files: str, path: str, position: int) -> str:
    return f"{_address(name)}/file?{urlencode({'files': files, 'path': path, 'at': position})}"


def _step_at(recording: Recording, position: int) -> int:
    """The step that stands at a position, or the one before it: some positions only keep a counter."""
    here = recording.neighbours(position + 1)[0]
    return here if here is not None else recording.neighbours(position)[1] or position


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) <= 12 else default


PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/agents", "viewer", show_sessions),
    Page("GET", "/agents/{name}", "viewer", show_session),
    Page("GET", "/agents/{name}/step", "viewer", show_step),
    Page("GET", "/agents/{name}/file", "viewer", show_file),
)
