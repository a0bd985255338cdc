"""What every filesystem can do, and what follows from it: decides the meaning of text, search, copy and move once.

A backend subclasses `Filesystem` and writes the abstract methods; the rest stands on them and may be overridden where
the backend knows a faster way. Paths go in as any spelling `paths.normalize` takes and come back canonical: no leading
slash, "/" for the root. Never touches a disk or knows of a transaction: that is the backend's part.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from ..frozen import frozen
from . import pattern as globs
from .errors import (
    BinaryContentError,
    FileAlreadyExistsError,
    FileIsDirectoryError,
    FileMissingError,
    FileTooLargeError,
    InvalidPathError,
    InvalidPatternError,
    NotDirectoryError,
)
from .paths import ROOT, is_inside, join, normalize

MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Larger files hold data, not text that somebody searches; reading one may take all memory there is."""

# `list` is a method below, so its annotations cannot use the builtin's name.
Names: TypeAlias = list[str]


@frozen
class FileStat:
    """What is known of a path without reading it."""

    path: str
    kind: Literal["file", "directory"]
    size: int
    """In bytes; 0 for a directory."""
    readonly: bool
    mode: int
    """Permission bits."""


@frozen
class GrepMatch:
    """One line that a pattern was found in."""

    path: str
    line_number: int
    """Counted from 1."""
    line: str
    """Without its line ending."""


Matches: TypeAlias = list[GrepMatch]


class Filesystem(ABC):
    """A tree of files below one root. Bind it as a resource: `resources={Filesystem: InMemoryFilesystem()}`.

    Every method raises a `FilesystemError`, whose text is written for the model.
    """

    __slots__ = ()

    # -- a backend writes these ------------------------------------------------------------------------------------

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def write_bytes(self, path: str, content: bytes) -> None:
        """Create or replace a file, and the directories above it."""

    @abstractmethod
    def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive` also what is inside."""

    @abstractmethod
    def list(self, path: str = ROOT) -> Names:
        """The names in a directory, sorted."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""

    @abstractmethod
    def stat(self, path: str) -> FileStat:
        """What is known of a path; raises `FileMissingError`."""

    @abstractmethod
    def is_readonly(self, path: str) -> bool:
        """True when writing to this path is refused, whether or not anything is there."""

    # -- the rest follows ------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        """True for a file or a directory."""
        return self._kind(path) is not None

    def is_file(self, path: str) -> bool:
        return self._kind(path) == "file"

    def is_dir(self, path: str) -> bool:
        return self._kind(path) == "directory"

    def read(self, path: str) -> str:
        """The content of a text file (UTF-8), line endings untouched."""
        content = self.read_bytes(path)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise BinaryContentError.reading(normalize(path), len(content)) from None

    def write(self, path: str, content: str | bytes) -> None:
        """Create or replace a file, and the directories above it; text is stored as UTF-8."""
        self.write_bytes(path, encoded(path, content))

    def append(self, path: str, content: str | bytes) -> None:
        """Add to the end of a file; create it when it is missing."""
        before = self.read_bytes(path) if self.exists(path) else b""
        self.write_bytes(path, before + encoded(path, content))

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Copy a file, or a directory with all it holds, to the path `dst` (not: into the directory `dst`)."""
        source, target = self._check_transfer("copy", src, dst, overwrite)
        if self.is_file(source):
            self.write_bytes(target, self.read_bytes(source))
            return
        self.mkdir(target)
        for path, is_dir in tuple(self._walk(source)):
            place = target + path[len(source) :]
            if is_dir:
                self.mkdir(place)
            else:
                self.write_bytes(place, self.read_bytes(path))

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Move a file, or a directory with all it holds, to the path `dst` (not: into the directory `dst`)."""
        source, target = self._check_transfer("move", src, dst, overwrite)
        if source != target:
            self.copy(source, target, overwrite=overwrite)
            self.delete(source, recursive=True)

    def digest(self, path: str) -> str:
        """A short name for a file's content: equal for equal content."""
        return content_digest(self.read_bytes(path))

    def version(self, path: str) -> str:
        """A word that is another one whenever the content is: the digest, or something cheaper that a backend knows,
        such as inode, size and times. Equal versions mean equal content; equal content may have two versions."""
        return self.digest(path)

    def glob(self, pattern: str, path: str = ROOT) -> Names:
        """The files below `path` that a glob names, sorted; directories for a glob that ends in a slash."""
        base = normalize(path)
        self._check_directory(base)
        return sorted(globs.parse(pattern).expand(base, self._present))

    def search(self, query: str, limit: int | None = None) -> Names:
        """The files whose name contains `query`, literally, sorted."""
        found = sorted(path for path in self._files(ROOT) if query in path.rpartition("/")[2])
        return found[: _checked(limit)]

    def grep(self, pattern: str, path: str = ROOT, glob: str | None = None, limit: int | None = None) -> Matches:
        """The lines that a regular expression (RE2 syntax) is found in, by path and line number.

        `path` is a directory or one file. `glob` keeps only some files: by name ('*.py'), or by whole path from the
        root if it has a slash. Binary files, and those too large to be read at once, are passed over; if one is the file
        asked for, that is an error.
        """
        find = _line_finder(pattern)
        wanted = None if glob is None else globs.parse(glob)
        base = normalize(path)
        most = _checked(limit)
        only = self.is_file(base)
        if not only:
            self._check_directory(base)
        matches: Matches = []
        for name in (base,) if only else sorted(self._files(base)):
            if wanted is not None and not wanted.selects(name):
                continue
            try:
                if (size := self._size_on_disk(name)) > MAX_SEARCHED_BYTES:
                    if only:
                        raise FileTooLargeError.searching(name, size, MAX_SEARCHED_BYTES)
                    continue
                content = self.read_bytes(name)
            except FileNotFoundError:  # it went away during the search
                continue
            if not _is_text(content):
                if only:
                    raise BinaryContentError.reading(name, len(content))
                continue
            for number, line in find(content):
                if most is not None and len(matches) >= most:
                    return matches
                matches.append(GrepMatch(name, number, line))
        return matches

    # -- what they stand on ----------------------------------------------------------------------------------------

    def _kind(self, path: str) -> Literal["file", "directory"] | None:
        try:
            return self.stat(path).kind
        except FileNotFoundError:
            return None

    def _children(self, path: str) -> Mapping[str, bool]:
        """Names in a directory; True for directories."""
        return {name: self.is_dir(join(path, name)) for name in self.list(path)}

    def _size_on_disk(self, path: str) -> int:
        """What reading a file would take; 0 where it is in memory already."""
        return self.stat(path).size

    def _present(self, path: str) -> Mapping[str, bool]:
        """As `_children`; nothing for a directory that went away during a search."""
        try:
            return self._children(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def _walk(self, path: str) -> Iterator[tuple[str, bool]]:
        """Everything below a directory, each directory before what is in it; True for directories."""
        todo = [path]
        while todo:
            directory = todo.pop()
            for name, is_dir in self._present(directory).items():
                place = join(directory, name)
                yield place, is_dir
                if is_dir:
                    todo.append(place)

    def _files(self, path: str) -> Iterator[str]:
        return (place for place, is_dir in self._walk(path) if not is_dir)

    def _check_directory(self, path: str) -> None:
        kind = self._kind(path)
        if kind is None:
            raise FileMissingError.directory(path)
        if kind == "file":
            raise NotDirectoryError.at(path)

    def _check_transfer(self, verb: str, src: str, dst: str, overwrite: bool) -> tuple[str, str]:
        """Canonical source and target of a copy or move that loses nothing; raises otherwise."""
        source, target = normalize(src), normalize(dst)
        kind = self._kind(source)
        if kind is None:
            raise FileMissingError.file(source)
        if source == ROOT:
            raise InvalidPathError.root(verb)
        if kind == "directory" and is_inside(target, source):
            raise InvalidPathError.into_itself(verb, source, target)
        there = self._kind(target)
        if there == "directory":
            raise FileIsDirectoryError.at(target)
        if there == "file":
            if kind == "directory":
                raise FileAlreadyExistsError.not_a_directory(target)
            if not overwrite:
                raise FileAlreadyExistsError.file(target)
        return source, target


def encoded(path: str, content: str | bytes) -> bytes:
    """The bytes that are stored for `content`; raises when text has none."""
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise BinaryContentError.writing(normalize(path), error.start) from None
    if type(content) is bytes:
        return content
    try:
        return bytes(memoryview(content))  # a bytearray may change later; what is stored may not
    except TypeError:
        raise TypeError(f"The content of a file is text or bytes, got {type(content).__name__}.") from None


def content_digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _checked(limit: int | None) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidPatternError.limit(limit)
    return limit


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line_finder(pattern: str) -> Callable[[bytes], Iterator[tuple[int, str]]]:
    """A function from content to (line number, line) of each line that `pattern` is found in.

    RE2, because the pattern comes from a model: the time is linear in the content, whatever the pattern.
    """
    import re2

    engine: Any = re2
    options: Any = engine.Options()
    options.log_errors = False
    options.never_nl = True  # a match stays on its line
    try:
        search: Any = engine.compile(b"(?m)" + pattern.encode(), options).search
    except (engine.error, UnicodeEncodeError) as error:
        said: object = error.args[0]
        reason = said.decode().replace("(?m)", "", 1) if isinstance(said, bytes) else "it has no UTF-8 form"
        raise InvalidPatternError.regex(pattern, reason) from None

    def find(content: bytes) -> Iterator[tuple[int, str]]:
        content = content.replace(b"\r\n", b"\n")
        counted, number, at = 0, 1, 0
        while at < len(content):
            found = search(content, at)
            if found is None:
                return
            start = content.rfind(b"\n", 0, found.start()) + 1
            if start == len(content):  # an empty match behind the last line ending is on no line
                return
            end = content.find(b"\n", start)
            end = len(content) if end < 0 else end
            number += content.count(b"\n", counted, start)
            counted = start
            yield number, content[start:end].decode()
            at = end + 1

    return find
