"""The look at a directory tree: a stat of everything, a read of what changed since the last look.

A file whose mode, inode, size, mtime and ctime are those of the last look has not been written to. The exception is a
file written within one tick of that look: a second write may bear the same time, so it is read again until it has
rested. Links are read, never followed; special files and nested repositories are noted and left alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ..clock import SYSTEM_CLOCK
from . import pattern
from .tree_nodes import BELOW, Entry, File, Folder, Link, Manifest, Nested, join, signature
from .tree_walk import MovedError, Walk

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TICK_NS = 50_000_000
"""Longer than the tick of any kernel's file times."""
_COARSE_TICK_NS = 2_100_000_000
"""For disks that keep whole seconds, or two of them."""
_OURS = ".weakincentives"
"""What begins or ends so is a store or journal of this package, never a part of the tree."""
_REPOSITORY = ".git"


class Ignore:
    """Which names are not part of the tree: globs as everywhere, by name if they have no slash, else by path."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        parsed = [pattern.parse(text) for text in self.patterns]
        self._by_name = [each for each in parsed if not each.anchored and "/" not in each.text.rstrip("/")]
        self._by_path = [each for each in parsed if each not in self._by_name]
        self._names: dict[tuple[str, bool], bool] = {}

    def __call__(self, folder: str, name: str, is_folder: bool) -> bool:
        key = (name, is_folder)
        found = self._names.get(key)
        if found is None:
            if len(self._names) > _REMEMBERED:  # programs pick the names
                self._names.clear()
            found = self._names[key] = self._takes(self._by_name, name, is_folder) or (
                name.startswith(_OURS) or name.endswith(_OURS)
            )
        return found or (bool(self._by_path) and self._takes(self._by_path, join(folder, name), is_folder))

    def _takes(self, patterns: list[pattern.Pattern], path: str, is_folder: bool) -> bool:
        return any(each.selects(path) and (is_folder or not each.directories) for each in patterns)


_REMEMBERED = 100_000


class Reader(Protocol):
    """Says what the content of an open file is."""

    def __call__(self, fd: int, size: int, /) -> str: ...


class Look:
    """One scan. `manifest` is what was found, `special` what was left out, `problems` what could not be read."""

    def __init__(self, root: str, ignore: Ignore, known: Manifest, read: Reader, *, max_file_bytes: int | None) -> None:
        self._root = root
        self._ignore = ignore
        self._known = known
        self._read = read
        self._limit = max_file_bytes
        self._then: Manifest | None = None
        self.manifest: Manifest = {}
        self.special: list[str] = []
        self.problems: list[tuple[str, OSError | str]] = []

    def hold(self) -> Manifest:
        """Find everything, and read all of it that is not known."""
        with Walk(self._root) as walk:
            return self._scan(walk)

    def compare(self, then: Manifest, *, forced: bool) -> Manifest:
        """Find everything, and read only what may still be as it was `then`."""
        self._then = then
        with Walk(self._root, forced=forced) as walk:
            return self._scan(walk)

    def _scan(self, walk: Walk) -> Manifest:
        known, manifest, then = self._known, self.manifest, self._then
        fresh = False
        todo = [""]
        while todo:
            path = todo.pop()
            was = then.get(path) if then is not None else None
            if type(was) is Nested:
                manifest[path] = was  # whatever has become of it is its own affair
                continue
            try:
                folder, below = self._folder(walk.goto(path), path, was)
            except PermissionError as error:
                self.problems.append((path, error))
                if was is not None:
                    manifest[path] = was  # the others are put back all the same
                continue
            manifest[path] = folder
            fresh = fresh or folder is not known.get(path)
            todo.extend(reversed(below))
        # The same moment twice is one object: nothing new to remember.
        return known if not fresh and len(known) == len(manifest) else manifest

    def _folder(self, fd: int, path: str, was: Folder | Nested | None) -> tuple[Folder | Nested, list[str]]:
        with os.scandir(fd) as listing:
            listed = list(listing)
        about = os.fstat(fd)
        old = self._known.get(path)
        in_repository = bool(path) and any(entry.name == _REPOSITORY for entry in listed)
        if in_repository and type(was) is not Folder:
            place = (about.st_dev, about.st_ino)
            return (old if type(old) is Nested and old.place == place else Nested(place)), []
        before: Mapping[str, Entry] = old.entries if type(old) is Folder else {}
        entries: dict[str, Entry] = {}
        below: list[str] = []
        holds = fresh = False
        ignore, get = self._ignore, before.get
        picky = bool(ignore.patterns)
        for entry in listed:
            name = entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if ((picky or _OURS in name) and ignore(path, name, is_folder)) or (in_repository and name == _REPOSITORY):
                holds = True
                continue
            known = get(name)
            if is_folder:
                node: Entry | None = BELOW
                below.append(join(path, name))
            else:
                try:
                    seen = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                node = known
                # `signature`, written out: this line runs once for every file of every scan.
                sig = (seen.st_mode, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
                if known is None or known.sig != sig or not known.sure:
                    node = self._entry(fd, path, name, seen, was)
                    if node is None:
                        holds = holds or not stat.S_ISREG(seen.st_mode)
                        continue
            entries[name] = node  # pyright: ignore[reportArgumentType]
            fresh = fresh or node is not known
        if (
            type(old) is Folder
            and not fresh
            and len(entries) == len(before)
            and (old.mode, old.mtime_ns, old.uid, old.gid, old.holds)
            == (about.st_mode, about.st_mtime_ns, about.st_uid, about.st_gid, holds)
        ):
            return old, below
        return Folder(about.st_mode, about.st_mtime_ns, about.st_uid, about.st_gid, entries, holds=holds), below

    def _entry(
        self, above: int, folder: str, name: str, seen: os.stat_result, was: Folder | Nested | None
    ) -> Entry | None:
        """The node of something new; None if it is gone again, or nothing we can hold."""
        path = join(folder, name)
        now_ns = int(SYSTEM_CLOCK.now() * 1e9)
        try:
            if stat.S_ISLNK(seen.st_mode):
                target = os.readlink(name, dir_fd=above)
                return Link(signature(seen), seen.st_uid, seen.st_gid, target, _rests(seen, now_ns))
            if not stat.S_ISREG(seen.st_mode):
                self.special.append(path)
                return None
            if self._then is not None:
                want = was.entries.get(name) if type(was) is Folder else None
                if type(want) is not File or want.sig[2] != seen.st_size:
                    return _unread(seen)
            elif self._limit is not None and seen.st_size > self._limit:
                self.problems.append((path, f"{seen.st_size} bytes, more than max_file_bytes={self._limit}"))
                return None
            fd = os.open(name, _READ, dir_fd=above)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            if self._then is not None:
                return _unread(seen)
            self.problems.append((path, error))
            return None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EINVAL, errno.ENXIO}:  # something else has taken its place
                raise MovedError(path) from error
            raise
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise MovedError(path)
            digest = self._read(fd, about.st_size)
        finally:
            os.close(fd)
        return File(signature(about), about.st_uid, about.st_gid, about.st_nlink, digest, _rests(about, now_ns))


def _unread(seen: os.stat_result) -> File:
    return File(signature(seen), seen.st_uid, seen.st_gid, seen.st_nlink, "", sure=False)


def _rests(about: os.stat_result, now_ns: int) -> bool:
    """Whether a write after `now_ns` would be sure to show in the times."""
    newest = max(about.st_ctime_ns, about.st_mtime_ns if about.st_mtime_ns <= now_ns else 0)
    tick = _TICK_NS if about.st_ctime_ns % 1_000_000_000 else _COARSE_TICK_NS
    return newest < now_ns - tick


def settled(attempt: Callable[[], Manifest], give_up: Callable[[], Exception], tries: int = 5) -> Manifest:
    """What `attempt` finds, tried again while folders move under its feet."""
    for _ in range(tries):
        try:
            return attempt()
        except MovedError:
            continue
    raise give_up()
