"""A directory held open, and the way from it to anything below: decides what is inside, without races.

Every walk starts at the open root and opens one name at a time without following links; a link is read, checked and walked from the
root again. So whatever other processes swap meanwhile, no step leads out. Never changes anything.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator
from typing import final

from .errors import (
    FileMissingError,
    InvalidPathError,
    NotDirectoryError,
    PathEscapeError,
)
from .paths import ROOT, unprintable

JOURNAL_NAME = ".weakincentives-journal"
"""Where a root keeps its undo journal; no path may name it, at any depth: roots may lie inside each other."""

MOST_LINKS = 40
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_A_DIRECTORY = {errno.ENOTDIR, errno.ELOOP}


def is_reserved(name: str) -> bool:
    """True for the journal's name, also as a disk that ignores case would read it."""
    return len(name) == len(JOURNAL_NAME) and name.casefold() == JOURNAL_NAME


def shown(name: str) -> str:
    """A disk's name as paths have it: NFC, with U+FFFD for each character that no path may hold."""
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    plain = "".join("\ufffd" if char == "\\" or "\ud800" <= char <= "\udfff" else char for char in name)
    return unprintable.sub("\ufffd", unicodedata.normalize("NFC", plain))


@final
class Place:
    """Where a path leads: an open directory, the name in it, and what has that name. Close it."""

    __slots__ = ("_anchor", "directory", "fd", "info", "missing", "name")

    def __init__(
        self, anchor: Anchor, directory: str, fd: int, name: str, info: os.stat_result | None, missing: tuple[str, ...]
    ) -> None:
        self._anchor = anchor
        self.directory = directory
        """The real path of the deepest directory there is on the way, "" for the root."""
        self.fd = fd
        self.name = name
        """The last name of the path; "." for the root itself."""
        self.info = info
        """None when nothing has the name; links are not followed here."""
        self.missing = missing
        """Names of the directories that would have to be made first."""

    @property
    def path(self) -> str:
        """The real path: no part of it is a link."""
        if self.name == ".":
            return self.directory
        return "/".join((*((self.directory,) if self.directory else ()), *self.missing, self.name))

    @property
    def kind(self) -> str:
        """`file`, `directory`, `link`, `special`, or "" for nothing."""
        return "" if self.info is None else kind_of(self.info.st_mode)

    def descend(self) -> None:
        """Go on into the first missing directory, which has been made meanwhile."""
        name, *rest = self.missing
        fd = os.open(name, _WALK, dir_fd=self.fd)
        self.close()
        self.fd = fd
        self.directory = f"{self.directory}/{name}" if self.directory else name
        self.missing = tuple(rest)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd not in (-1, self._anchor.fd):
            os.close(fd)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kind_of(mode: int) -> str:
    form = stat.S_IFMT(mode)
    return _KINDS.get(form, "special")


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def _parts(real: str) -> list[str]:
    return real.split("/") if real else []


@final
class Anchor:
    """The open root. Lives as long as its filesystem."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def reach(self, path: str, *, follow: bool = True) -> Place:
        """The place of canonical `path`; links on the way are followed inside, the last one only if told to.

        What is missing is no error, something on the way that is not a directory is.
        """
        todo: list[str] = [] if path == ROOT else path.split("/")
        link = ""
        links = 0
        while links <= MOST_LINKS:
            found = self._walk(path, todo, follow, link)
            if isinstance(found, Place):
                return found
            todo, met = found
            if met:
                link = met
                links += 1
        raise InvalidPathError.because(path, f"it leads through more than {MOST_LINKS} links", "Use a direct path")

    def _walk(self, path: str, todo: list[str], follow: bool, link: str) -> Place | tuple[list[str], str]:
        """The place; or what to walk instead, and the link that says so. `..` comes from a link only: the last one met."""
        for name in todo:
            if is_reserved(name):
                raise InvalidPathError.because(path, "the filesystem keeps its journal there", "Use another name")
        fd, real = self.fd, ""
        try:
            if not todo:
                return Place(self, "", fd, ".", os.fstat(fd), ())
            last = len(todo) - 1
            for at, name in enumerate(todo):
                if name == "..":  # nothing in `real` is a link, so its parent can be told by text
                    if not real:
                        raise PathEscapeError.link(path, link)
                    return [*real.split("/")[:-1], *todo[at + 1 :]], ""
                if at < last:
                    try:
                        inner = os.open(name, _WALK, dir_fd=fd)
                    except OSError as error:
                        if error.errno not in (errno.ENOENT, *_NOT_A_DIRECTORY):
                            raise
                    else:
                        if fd != self.fd:
                            os.close(fd)
                        fd, real = inner, f"{real}/{name}" if real else name
                        continue
                name, info = self._look(fd, name, path)
                if info is None:
                    if ".." in todo[at:]:
                        raise FileMissingError.file(path)
                    place = Place(self, real, fd, todo[last], None, tuple(todo[at:last]))
                    fd = -1
                    return place
                kind = kind_of(info.st_mode)
                if kind == "link" and (at < last or follow):
                    return self._aside(path, fd, real, name, todo[at + 1 :])
                if at == last:
                    place = Place(self, real, fd, name, info, ())
                    fd = -1
                    return place
                if kind != "directory":
                    raise NotDirectoryError.at(shown(f"{real}/{name}" if real else name))
                return [*_parts(real), name, *todo[at + 1 :]], ""  # found by its other spelling
            raise AssertionError("the last name ends the walk")
        finally:
            if fd not in (-1, self.fd):
                os.close(fd)

    def _look(self, fd: int, name: str, path: str) -> tuple[str, os.stat_result | None]:
        """The name as the disk spells it, and what has it."""
        try:
            return name, os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            if name.isascii():
                return name, None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise InvalidPathError.because(
                    path, "a name in it is too long for this disk", "Use shorter names"
                ) from error
            raise
        alike = [other for other in self.names(fd) if shown(other) == name]
        if len(alike) > 1:
            raise InvalidPathError.because(path, "several names on disk read like this", "Use another file")
        if not alike:
            return name, None
        return alike[0], os.stat(alike[0], dir_fd=fd, follow_symlinks=False)

    def _aside(self, path: str, fd: int, real: str, name: str, rest: list[str]) -> tuple[list[str], str]:
        """Where a link leads, from the root."""
        link = shown(f"{real}/{name}" if real else name)
        try:
            target = os.readlink(name, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # it is another thing by now
                return [*_parts(real), name, *rest], link
            raise
        if target.startswith("/"):
            raise PathEscapeError.absolute(path, link)
        return [*_parts(real), *(part for part in target.split("/") if part not in ("", ".")), *rest], link

    def directory(self, real: str) -> int:
        """An open handle of the directory at a real path, following no link at all. The caller closes it."""
        if not real:
            return os.dup(self.fd)
        fd = self.fd
        for name in real.split("/"):
            try:
                inner = os.open(name, _WALK, dir_fd=fd)
            finally:
                if fd != self.fd:
                    os.close(fd)
            fd = inner
        return fd

    @staticmethod
    def names(fd: int) -> list[str]:
        """The names in an open directory, as the disk has them."""
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        try:
            return os.listdir(listed)
        finally:
            os.close(listed)

    def below(self, place: Place) -> Iterator[tuple[str, str, os.stat_result]]:
        """Everything below a directory: real path from there, disk name, what it is. Links are not followed."""
        todo = [(os.open(place.name, _WALK, dir_fd=place.fd), "")]
        try:
            while todo:
                fd, path = todo.pop()
                try:
                    for name in sorted(self.names(fd)):
                        try:
                            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                            inside = f"{path}/{name}" if path else name
                            yield inside, name, info
                            if stat.S_ISDIR(info.st_mode):
                                todo.append((os.open(name, _WALK, dir_fd=fd), inside))
                        except FileNotFoundError:  # it went away meanwhile
                            continue
                finally:
                    os.close(fd)
        finally:
            for fd, _ in todo:
                os.close(fd)

    def present(self, path: str, *, follow: bool = True) -> Place:
        """As `reach`, for what must be there."""
        place = self.reach(path, follow=follow)
        if place.info is None:
            place.close()
            raise FileMissingError.file(path)
        return place
