"""Mounts: decides which files of a host folder are copied in, and refuses more than was allowed.

A mount is a copy, made once: what tools do to it never reaches the host. Nothing is followed out of the folder: each
directory is opened relative to the one above it and never through a link, so that a swap during the copy gains nothing.
A link to a file that is copied too becomes a copy of that file; every other link, and everything that is neither file
nor directory, is left out and reported. Sizes are checked before content is read, and again while it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from ...errors import FilesystemError, PromptValidationError
from ...filesystem import normalize
from ...filesystem.paths import ROOT, join, split
from ...filesystem.pattern import Pattern, parse
from ...frozen import frozen

MAX_DEPTH = 200
_MAX_HOPS = 40
_CHUNK = 1 << 20
_SPARE = 1 << 12


@frozen
class HostMount:
    """A folder of the host that is copied in when the section is built.

    A pattern without a slash goes by name anywhere (`*.pyc`, `node_modules`), one with a slash by path from the mounted
    folder (`docs/**/*.md`); one that names a directory covers all that is in it. Empty directories are not copied.
    """

    host_path: str | os.PathLike[str]
    """The folder on the host; the model never sees this path."""
    mount_path: str = ROOT
    """Where the copy stands."""
    include: str | Sequence[str] = ()
    """Patterns of what to copy; everything when there are none."""
    exclude: str | Sequence[str] = ()
    """Patterns of what to leave out, also of what `include` names; excluded directories are not even looked into."""
    max_bytes: int = 64 * 1024 * 1024
    """How much may be copied in all; more is an error, not half a mount."""
    max_files: int = 10_000
    """How many files may be copied; more is an error."""
    max_file_bytes: int | None = None
    """Files larger than this are left out and reported."""
    readonly: bool = False
    """Whether tools may only read the copy."""


@frozen
class LeftOut:
    """Something in a mounted folder that was not copied, though no pattern asked for that."""

    path: str
    """From the mounted folder."""
    reason: str


@frozen
class Mounted:
    """What became of one mount."""

    path: str
    """Where it stands, in the filesystem."""
    files: int
    bytes: int
    readonly: bool
    left_out: tuple[LeftOut, ...]


def copy_in(mount: HostMount, path: str) -> tuple[dict[str, bytes], Mounted]:
    """The files of a mount, by their place below canonical `path`; raises `PromptValidationError`."""
    copy = _Copy(mount)
    copy.run()
    files = {(found if path == ROOT else join(path, found)): content for found, content in sorted(copy.files.items())}
    left_out = tuple(sorted(copy.left_out, key=lambda each: each.path))
    return files, Mounted(path, len(files), copy.total, mount.readonly, left_out)


class _Copy:
    """One pass over a host folder. Lives while the mount is made."""

    def __init__(self, mount: HostMount) -> None:
        self.mount = mount
        self.called = f"Mount of {os.fspath(mount.host_path)!r}"
        self.include = self._patterns("include", mount.include)
        self.exclude = self._patterns("exclude", mount.exclude)
        for word in ("max_bytes", "max_files", "max_file_bytes"):
            limit = getattr(mount, word)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
                raise PromptValidationError(f"{self.called}: {word} must be a whole number, 0 or more, got {limit!r}.")
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.left_out: list[LeftOut] = []
        self.total = 0

    def run(self) -> None:
        try:
            # The folder itself may be reached through links: naming it was its owner's choice.
            top = os.open(self.mount.host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise PromptValidationError(f"{self.called}: cannot open it as a directory: {error.strerror}.") from error
        try:
            self._directory(top, ROOT, included=not self.include, depth=1)
        finally:
            os.close(top)
        for place in self.links:
            self._link(place)

    def _patterns(self, word: str, given: str | Sequence[str]) -> tuple[Pattern, ...]:
        try:
            return tuple(parse(text) for text in ((given,) if isinstance(given, str) else given))
        except FilesystemError as error:
            raise PromptValidationError(f"{self.called}: {word}: {error}") from error

    def _directory(self, fd: int, path: str, *, included: bool, depth: int) -> None:
        try:
            with os.scandir(fd) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._leave_out(path, f"it cannot be read: {error.strerror}")
            return
        for entry in found:
            shown = entry.name.encode("utf-8", "backslashreplace").decode()
            try:
                place = normalize(join(path, entry.name))
            except FilesystemError:
                self._leave_out(join(path, shown), "its name cannot be a path here")
                continue
            is_dir = entry.is_dir(follow_symlinks=False)
            if _covers(self.exclude, place, is_dir):
                continue
            chosen = included or _covers(self.include, place, is_dir)
            if is_dir:
                self._enter(fd, entry.name, place, included=chosen, depth=depth)
            elif not chosen:
                continue
            elif place in self.files or place in self.links:
                self._leave_out(join(path, shown), "another file has the same name in a different Unicode form")
            elif entry.is_symlink():
                self._note_link(fd, entry.name, place)
            elif entry.is_file(follow_symlinks=False):
                self._file(fd, entry.name, place)
            else:
                self._leave_out(place, "it is neither a file nor a directory")

    def _enter(self, above: int, name: str, place: str, *, included: bool, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._leave_out(place, f"it lies more than {MAX_DEPTH} directories deep")
            return
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        except OSError as error:
            self._leave_out(place, f"it cannot be opened: {error.strerror}")
            return
        try:
            self._directory(fd, place, included=included, depth=depth + 1)
        finally:
            os.close(fd)

    def _note_link(self, above: int, name: str, place: str) -> None:
        try:
            self.links[place] = os.readlink(name, dir_fd=above)
        except OSError as error:  # it was a link a moment ago
            self._leave_out(place, f"it cannot be read: {error.strerror}")

    def _file(self, above: int, name: str, place: str) -> None:
        try:
            # Not blocking: what was a file a moment ago may be a pipe now.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        except OSError as error:
            self._leave_out(place, f"it cannot be opened: {error.strerror}")
            return
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                self._leave_out(place, "it is neither a file nor a directory")
                return
            if not self._fits(place, about.st_size):
                return
            content = self._read(fd, about.st_size)
        except OSError as error:
            self._leave_out(place, f"it cannot be read: {error.strerror}")
            return
        finally:
            os.close(fd)
        if self._fits(place, len(content)):  # it may have grown
            self._keep(place, content)

    def _read(self, fd: int, size: int) -> bytes:
        """The content, but never much more than may be kept."""
        most = self.mount.max_bytes - self.total + 1
        chunks: list[bytes] = []
        while most > 0:
            chunk = os.read(fd, min(most, _CHUNK, size + _SPARE))
            if not chunk:
                break
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)

    def _fits(self, place: str, size: int) -> bool:
        mount = self.mount
        if mount.max_file_bytes is not None and size > mount.max_file_bytes:
            self._leave_out(place, f"it has {size} bytes, more than max_file_bytes={mount.max_file_bytes}")
            return False
        if self.total + size > mount.max_bytes:
            raise PromptValidationError(
                f"{self.called}: its files have more than max_bytes={mount.max_bytes} bytes, counted up to {place!r}. "
                "Leave some out with exclude=, choose with include=, or raise max_bytes."
            )
        return True

    def _keep(self, place: str, content: bytes) -> None:
        if len(self.files) >= self.mount.max_files:
            raise PromptValidationError(
                f"{self.called}: it holds more than max_files={self.mount.max_files} files, counted up to {place!r}. "
                "Leave some out with exclude=, choose with include=, or raise max_files."
            )
        self.files[place] = content
        self.total += len(content)

    def _link(self, place: str) -> None:
        target = self._target(place)
        content = None if target is None else self.files.get(target)
        if content is None:
            self._leave_out(place, "it is a link to something that is not copied")
        elif self._fits(place, len(content)):
            self._keep(place, content)

    def _target(self, place: str) -> str | None:
        """The copied file a link stands for, found among what was copied and never on the disk."""
        for _ in range(_MAX_HOPS):
            text = self.links.get(place)
            if text is None:
                return place
            if text.startswith("/"):
                return None
            directory = split(place)[0]
            parts = [] if directory == ROOT else directory.split("/")
            for part in text.split("/"):
                if "/".join(parts) in self.links:  # through a linked directory `..` would mean something else
                    return None
                if part == "..":
                    if not parts:
                        return None
                    parts.pop()
                elif part not in ("", "."):
                    parts.append(part)
            try:
                place = normalize("/".join(parts) or ROOT)
            except FilesystemError:
                return None
        return None

    def _leave_out(self, path: str, reason: str) -> None:
        self.left_out.append(LeftOut(path, reason))


def _covers(patterns: tuple[Pattern, ...], place: str, is_dir: bool) -> bool:
    return any((is_dir or not pattern.directories) and pattern.selects(place) for pattern in patterns)
