"""The way through a directory tree: one open folder at a time, reached from the root by names alone.

Never follows a link, never leaves the root by a rename under its feet, and holds few descriptors however deep the
tree is.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_AT_ONCE = 48


class MovedError(Exception):
    """A folder is not where it was a moment ago."""


class Walk:
    """Goes from folder to folder below one root. Lives for one scan or restore; close it."""

    __slots__ = ("_fds", "_names", "_path", "_places", "forced")

    def __init__(self, root: str, *, forced: bool = False) -> None:
        fd = os.open(root, _FOLDER)
        self.forced = forced
        """Make folders of ours that shut us out readable; whoever forces puts the modes back."""
        self._names: list[str] = []
        self._path: str | None = ""
        self._fds: list[int | None] = [fd]
        self._places = [_place(fd)]
        if forced:
            allow(fd, 0o500)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            if fd is not None:
                os.close(fd)

    def goto(self, path: str) -> int:
        """The descriptor of the folder at `path`, good until the next step."""
        if path and path.rpartition("/")[0] == self._path:
            self._down(path.rpartition("/")[2])  # what nearly every step is
        elif path != self._path:
            self._travel(path.split("/") if path else [])
        self._path = path
        fd = self._fds[-1]
        assert fd is not None
        return fd

    def _travel(self, parts: list[str]) -> None:
        self._path = None  # unknown, should a step fail
        names = self._names
        common = 0
        for here, there in zip(names, parts, strict=False):
            if here != there:
                break
            common += 1
        while len(names) > common:
            self._up()
        for name in parts[common:]:
            self._down(name)

    def _down(self, name: str) -> None:
        above = self._fds[-1]
        assert above is not None
        try:
            fd = os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:
            if not self.forced:
                raise
            open_up(above, name)
            fd = os.open(name, _FOLDER, dir_fd=above)
        except (NotADirectoryError, FileNotFoundError) as error:
            raise MovedError(name) from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link has taken its place
                raise MovedError(name) from error
            raise
        try:
            place = _place(fd)
            if self.forced:
                allow(fd, 0o500)
        except BaseException:
            os.close(fd)
            raise
        self._names.append(name)
        self._fds.append(fd)
        self._places.append(place)
        far = len(self._fds) - 1 - _OPEN_AT_ONCE
        if far > 0:
            shut, self._fds[far] = self._fds[far], None
            if shut is not None:
                os.close(shut)

    def _up(self) -> None:
        left = self._fds[-1]
        assert left is not None
        if self._fds[-2] is None:
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=left)
            if _place(above) != self._places[-2]:
                os.close(above)
                raise MovedError(self._names[-1])
            self._fds[-2] = above
        self._names.pop()
        self._places.pop()
        self._fds.pop()
        os.close(left)


def _place(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def allow(fd: int, bits: int) -> bool:
    """Give the owner these rights on an open folder; True if he lacked them."""
    mode = os.fstat(fd).st_mode
    if mode & bits == bits or os.geteuid() == 0:
        return False
    os.fchmod(fd, stat.S_IMODE(mode) | bits)
    return True


def open_up(above: int, name: str) -> None:
    """Let the owner into a folder or file that shuts him out."""
    fd = os.open(name, _HANDLE, dir_fd=above)
    try:
        mode = os.fstat(fd).st_mode
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o600))
    finally:
        os.close(fd)


def dress(above: int, name: str, mode: int | None, owner: tuple[int, int] | None, mtime_ns: int) -> None:
    """Give what has this name its owner, mode (None: a link has none) and time, without following it."""
    fd = os.open(name, _HANDLE, dir_fd=above)
    try:
        if mode is not None:
            where = f"/proc/self/fd/{fd}"
            if owner is not None:
                os.chown(where, *owner)
            os.chmod(where, stat.S_IMODE(mode))
    finally:
        os.close(fd)
    if mode is None and owner is not None:
        os.chown(name, *owner, dir_fd=above, follow_symlinks=False)
    about = os.stat(name, dir_fd=above, follow_symlinks=False)
    os.utime(name, ns=(about.st_atime_ns, mtime_ns), dir_fd=above, follow_symlinks=False)
