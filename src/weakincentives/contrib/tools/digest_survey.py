"""Looking at a workspace: walk the tree, know every file by its version, read only those not seen before.

Decides what is passed over, what is too big to read, and how a tree is shown in few lines. What is kept is known by
content, so rollbacks, forks and other sessions can never make it wrong. Never writes a file.
"""

from __future__ import annotations

import fnmatch
import re
import threading
from collections.abc import Iterator, Sequence

from ...errors import FilesystemError, PromptValidationError
from ...filesystem import Filesystem, normalize
from ...filesystem.paths import ROOT, join
from ...filesystem.pattern import parse
from ...frozen import frozen
from .digest_facts import EXCLUDES, FileFacts, facts_of, language_of, shown_path


@frozen
class DigestConfig:
    """How much of a workspace is looked at, and how much of it is shown."""

    exclude: tuple[str, ...] = EXCLUDES
    """Globs of what is passed over, with all that is in it: by name anywhere, or with a slash by whole path."""
    max_files: int = 20_000
    """Files beyond this number are not looked at; the digest says so."""
    max_file_bytes: int = 256_000
    """Larger files are listed, not read."""
    max_lines: int = 200
    """Lines of one part of the digest, and of one answer."""
    root: str = ROOT
    """The prefix below which file tools show these files (`VfsConfig.root`): paths may be written with it or without."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "exclude", tuple(self.exclude))
        for name in ("max_files", "max_file_bytes", "max_lines"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PromptValidationError(f"DigestConfig.{name} must be an integer of 1 or more, got {value!r}.")


@frozen
class FoundFile:
    """One file of the workspace."""

    path: str
    size: int
    language: str
    facts: FileFacts | None
    """None when it was not read: too big, or it could not be."""


class Folder:
    """A directory and what was found in it. Lives for one survey."""

    __slots__ = ("count", "files", "folders", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: list[FoundFile] = []
        self.folders: list[Folder] = []
        self.count = 0
        """Files in it and below."""
        self.size = 0

    def walk(self) -> Iterator[Folder]:
        """This folder and those below, each before what is in it, by name."""
        todo: list[Folder] = [self]
        while todo:
            folder = todo.pop()
            yield folder
            todo.extend(reversed(folder.folders))


class Survey:
    """What one look at a workspace found. Lives until the digest is made of it."""

    def __init__(self, root: Folder, read: int, unread: int, cut: bool) -> None:
        self.root = root
        self.read = read
        """Files whose content had to be read because it was not known."""
        self.unread = unread
        """Files that could not be read."""
        self.cut = cut
        """Whether there are more files than may be looked at."""

    def files(self) -> Iterator[FoundFile]:
        """Every file, folder by folder."""
        return (file for folder in self.root.walk() for file in folder.files)


class Surveyor:
    """Looks at workspaces and remembers what it read. Made with a section; may serve many sessions and threads."""

    def __init__(self, config: DigestConfig) -> None:
        self.config = config
        self._mutex = threading.Lock()
        self._known: dict[tuple[str, str], FileFacts] = {}
        names = [text for text in config.exclude if "/" not in text]
        self._names = re.compile("|".join(map(fnmatch.translate, names)) or r"(?!)")
        self._paths = tuple(parse(text) for text in config.exclude if "/" in text)

    def excludes(self, path: str) -> bool:
        """Whether a file or directory is passed over, by its own name and path."""
        name = path.rpartition("/")[2]
        return self._names.match(name) is not None or any(pattern.selects(path) for pattern in self._paths)

    def look(self, fs: Filesystem, path: str = ROOT) -> Survey:
        """Everything below a directory that is not excluded."""
        top = Folder(normalize(path))
        found = unread = read = 0
        cut = False
        todo = [top]
        order: list[Folder] = []
        while todo and not cut:
            folder = todo.pop()
            order.append(folder)
            try:
                names = fs.list(folder.path)
            except OSError:  # it went away, or is closed to us
                if folder is top:
                    raise
                continue
            for name in names:
                place = join(folder.path, name)
                if self.excludes(place):
                    continue
                try:
                    stat = fs.stat(place)
                except OSError:  # it went away, or leads out of the workspace
                    continue
                if stat.kind == "directory":
                    folder.folders.append(Folder(place))
                    continue
                if found == self.config.max_files:
                    cut = True
                    break
                found += 1
                language = language_of(name)
                facts, was_read = self._facts(fs, place, language, stat.size)
                read += was_read
                unread += facts is None and stat.size <= self.config.max_file_bytes
                folder.files.append(FoundFile(place, stat.size, language, facts))
            todo.extend(reversed(folder.folders))
        for folder in reversed(order):
            folder.folders = [inner for inner in folder.folders if inner.count]
            folder.count = len(folder.files) + sum(inner.count for inner in folder.folders)
            folder.size = sum(file.size for file in folder.files) + sum(inner.size for inner in folder.folders)
        return Survey(top, read, unread, cut)

    def file(self, fs: Filesystem, path: str) -> FoundFile:
        """One file, excluded or not."""
        stat = fs.stat(path)
        language = language_of(path.rpartition("/")[2])
        return FoundFile(stat.path, stat.size, language, self._facts(fs, path, language, stat.size)[0])

    def _facts(self, fs: Filesystem, path: str, language: str, size: int) -> tuple[FileFacts | None, bool]:
        """What is known of a file, and whether it had to be read for it."""
        if size > self.config.max_file_bytes:
            return None, False
        try:
            key = (language, fs.version(path))
            known = self._known.get(key)
            if known is not None:
                return known, False
            facts = facts_of(language, fs.read_bytes(path))
        except (FilesystemError, OSError):
            return None, False
        with self._mutex:
            # Room for two whole workspaces: what was read first goes first.
            if len(self._known) >= 2 * self.config.max_files:
                del self._known[next(iter(self._known))]
            self._known[key] = facts
        return facts, True


def tree_lines(root: Folder, most: int) -> list[str]:
    """The tree below a folder, as deep as fits into so many lines, deeper folders by their totals. One level is always
    shown, whatever its length: the caller cuts it."""
    depth = 1
    while _count(root, depth + 1, most) <= most and _count(root, depth, most) < _count(root, depth + 1, most):
        depth += 1
    lines: list[str] = []
    _draw(root, depth, "", lines)
    return lines


def _count(folder: Folder, depth: int, most: int) -> int:
    """How many lines so many levels take; stops counting when they are too many."""
    total = len(folder.folders) + len(folder.files)
    if depth > 1:
        for inner in folder.folders:
            if total > most:
                break
            total += _count(inner, depth - 1, most)
    return total


def _draw(folder: Folder, depth: int, indent: str, lines: list[str]) -> None:
    for inner in folder.folders:
        name = shown_path(inner.path.rpartition("/")[2])
        lines.append(f"{indent}{name}/ ({counted(inner.count, 'file')}, {size_text(inner.size)})")
        if depth > 1:
            _draw(inner, depth - 1, f"{indent}  ", lines)
    lines += (f"{indent}{shown_path(file.path.rpartition('/')[2])} ({size_text(file.size)})" for file in folder.files)


def page(lines: Sequence[str], offset: int, most: int) -> tuple[Sequence[str], int | None]:
    """So many lines from `offset` on, and where to read on if there are more."""
    end = offset + most
    return lines[offset:end], end if end < len(lines) else None


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size: int) -> str:
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return counted(size, "byte")
