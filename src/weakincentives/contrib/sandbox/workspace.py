"""The workspace as a folder: decides what a command finds below it, and keeps that in step with the Filesystem.

The folder is a copy, written from what the call sees and owned by the user that commands run as: a command never runs
over a tree of the host. Before each command only what has another content or mode than last time is written again.
What the Filesystem itself refuses to read (a device, a link out) is not in the copy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tempfile
import threading
from collections.abc import Generator
from typing import TypeAlias

from ...errors import FilesystemError
from ...filesystem import Filesystem
from ...frozen import frozen
from .folder import make_folder, remove_at_end, remove_folder

Mark: TypeAlias = tuple[object, ...]
"""What tells one content of a path from another; equal marks, equal content and mode."""

_FOLDER: Mark = ("directory",)


@frozen
class Call:
    """The folders of one command."""

    upper: str
    work: str
    script: str


class Workspace:
    """The folder of one Filesystem. Lives as long as somebody holds it; one command at a time, under `lock`."""

    def __init__(self, owner: int | None) -> None:
        self._owner = owner
        self._folder = tempfile.mkdtemp(prefix="sandbox-")
        remove_at_end(self, self._folder)
        # Another user has to get through to his folders, but needs to list nothing.
        os.chmod(self._folder, 0o700 if owner is None else 0o711)
        self.lower = make_folder(os.path.join(self._folder, "lower"), owner)
        self._marks: dict[str, Mark] = {}
        self._numbers = itertools.count(1)
        self.lock = threading.Lock()

    def sync(self, fs: Filesystem) -> None:
        """Make the folder hold what `fs` holds for this call."""
        root = _host_root(fs)
        wanted: dict[str, Mark] = {path: _FOLDER for path in sorted(fs.glob("**/")) if path != "/"}
        for path in fs.glob("**"):
            with contextlib.suppress(FilesystemError):
                wanted[path] = _mark(fs, root, path)
        marks = self._marks
        # The deepest first: a path sorts before everything below it.
        for path in sorted(marks, reverse=True):
            there = wanted.get(path)
            if there is None or (there is _FOLDER) is not (marks[path] is _FOLDER):
                (os.rmdir if marks[path] is _FOLDER else os.unlink)(self._place(path))
                del marks[path]
        for path, mark in wanted.items():
            if marks.get(path) == mark:
                continue
            if mark is _FOLDER:
                make_folder(self._place(path), self._owner)
                os.chmod(self._place(path), 0o755)
                marks[path] = mark
                continue
            if marks.pop(path, None) is not None:
                os.unlink(self._place(path))
            with contextlib.suppress(FilesystemError):
                self._write(path, fs.read_bytes(path), fs.stat(path).mode)
                marks[path] = mark

    def _write(self, path: str, content: bytes, mode: int) -> None:
        place = self._place(path)
        try:
            with open(place, "xb") as file:
                file.write(content)
                if self._owner is not None:
                    os.fchown(file.fileno(), self._owner, self._owner)
                os.fchmod(file.fileno(), mode & 0o777 | 0o400)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(place)  # half a file that nobody knows of would be in the way of the next try
            raise

    def _place(self, path: str) -> str:
        return os.path.join(self.lower, path)

    @contextlib.contextmanager
    def call(self, script: str) -> Generator[Call, None, None]:
        """The folders of one command; gone at the end, with everything in them."""
        folder = os.path.join(self._folder, f"call-{next(self._numbers)}")
        os.mkdir(folder, 0o700 if self._owner is None else 0o711)
        try:
            text = os.path.join(folder, "script")
            with open(text, "x", encoding="utf-8", newline="") as file:
                file.write(script)
            os.chmod(text, 0o444)
            upper = make_folder(os.path.join(folder, "upper"), self._owner)
            # The top of an overlay has the mode of its upper folder.
            os.chmod(upper, 0o755)
            yield Call(upper, make_folder(os.path.join(folder, "work"), self._owner), text)
        finally:
            remove_folder(folder)


def _host_root(fs: Filesystem) -> str | None:
    """Where a filesystem on the disk has its files; None for any other."""
    root: object = getattr(fs, "root", None)
    return os.fspath(root) if isinstance(root, str | os.PathLike) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _mark(fs: Filesystem, root: str | None, path: str) -> Mark:
    if root is not None:
        # On the disk a look at the file is enough: no write leaves all of these as they were.
        with contextlib.suppress(OSError):
            found = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(found.st_mode):
                return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)
    return (fs.digest(path), fs.stat(path).mode)
