"""What a command changed, read from the upper folder of its overlay and made to the Filesystem.

Decides what can be kept: files, directories, deletions, and symbolic links where the Filesystem has them. Everything
else is refused, and then nothing is kept. What is in the folder was chosen by a stranger: no link is ever followed.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from typing import Any, Literal

from ...errors import FilesystemError, WinkError
from ...filesystem import Filesystem, normalize
from ...frozen import frozen
from .folder import LONG

_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")
_SHOWN = 10
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class ChangesRefusedError(WinkError, ValueError):
    """A command left something in the workspace that cannot be kept there."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - _SHOWN
        lines = [f"- {problem}" for problem in problems[:_SHOWN]] + ([f"- and {more} more"] if more > 0 else [])
        super().__init__(
            "The command succeeded, but nothing it changed was kept, because the workspace cannot hold:\n"
            + "\n".join(lines)
            + "\nRemove, rename or copy them within the same command (or use /tmp), then retry."
        )


@frozen
class Change:
    """One path that a command left different."""

    path: str
    kind: Literal["file", "directory", "link", "deleted"]
    source: str = ""
    """Where the content of a file lies."""
    target: str = ""
    """What a link says."""
    mode: int = 0
    replaced: bool = False
    """A directory that hides what was there before."""


def read_changes(upper: str, workdir: str) -> list[Change]:
    """What the folder says, each directory before what is in it; raises `ChangesRefusedError`."""
    changes: list[Change] = []
    problems: list[str] = []
    spelt: dict[str, str] = {}
    todo = [("", upper)]
    while todo:
        above, folder = todo.pop()
        if len(folder) > LONG:
            raise ChangesRefusedError([f"{_readable(above[:80])}...: directories nested too deep"])
        for name, source, status in _entries(folder):
            raw = f"{above}/{name}" if above else name
            path, problem = _canonical(raw)
            if not problem and spelt.setdefault(path, raw) != raw:
                problem = f"{_readable(raw)}: another file has the same name in another Unicode form"
            if not problem:
                change = _change(path, source, status, workdir)
                if isinstance(change, Change):
                    changes.append(change)
                    if change.kind == "directory":
                        todo.append((raw, source))
                else:
                    problem = change
            if problem:
                problems.append(problem)
    if problems:
        raise ChangesRefusedError(sorted(problems))
    return changes


def apply_changes(changes: list[Change], fs: Filesystem) -> list[str]:
    """Make the changes to the Filesystem, as writes of the present call; the paths that are different now, sorted."""
    link: Callable[[str, str], object] | None = getattr(fs, "symlink", None)
    refused = [_no_links(change) for change in changes if change.kind == "link" and link is None]
    if refused:
        raise ChangesRefusedError(sorted(refused))
    changed: set[str] = set()
    for change in changes:
        path = change.path
        match change.kind:
            case "deleted":
                if fs.exists(path):
                    fs.delete(path, recursive=True)
                    changed.add(path)
            case "directory":
                if change.replaced or fs.is_file(path):
                    _clear(fs, path)
                if not fs.is_dir(path):
                    fs.mkdir(path)
                    changed.add(path)
            case "link":
                _clear(fs, path)
                if link is not None:
                    link(path, change.target)
                changed.add(path)
            case "file":
                content = _content(change.source)
                if fs.is_dir(path):
                    fs.delete(path, recursive=True)
                if content is not None and not (fs.is_file(path) and fs.read_bytes(path) == content):
                    fs.write_bytes(path, content)
                    changed.add(path)
                if _set_mode(fs, change):
                    changed.add(path)
    return sorted(changed)


def _entries(folder: str) -> Iterator[tuple[str, str, os.stat_result]]:
    try:
        found = os.scandir(folder)
    except PermissionError:
        os.chmod(folder, 0o700)  # by its owner: a command may have taken his own right to look
        found = os.scandir(folder)
    with found:
        for entry in found:
            yield entry.name, entry.path, entry.stat(follow_symlinks=False)


def _canonical(raw: str) -> tuple[str, str]:
    """The path as the Filesystem spells it, or what is wrong with it."""
    try:
        raw.encode()
    except UnicodeEncodeError:
        return "", f"{_readable(raw)}: the name is not UTF-8"
    try:
        return normalize(raw), ""
    except FilesystemError as error:
        return "", str(error).partition("\n")[0]


def _change(path: str, source: str, status: os.stat_result, workdir: str) -> Change | str:
    """The change, or why it cannot be kept."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return Change(path, "file", source, mode=mode)
    if stat.S_ISDIR(status.st_mode):
        if _attribute(source, "redirect"):
            return f"{path}: a moved directory"
        return Change(path, "directory", mode=mode, replaced=_attribute(source, "opaque") == b"y")
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(source)
        inside = _stays_inside(path, target, workdir)
        return (
            Change(path, "link", target=inside)
            if inside
            else f"{path}: a symbolic link to {_readable(target)}, outside"
        )
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return Change(path, "deleted")
    return f"{path}: {_KINDS.get(stat.S_IFMT(status.st_mode), 'neither file nor directory')}"


def _stays_inside(path: str, target: str, workdir: str) -> str:
    """The target, relative to the link, if it lies in the workspace; empty otherwise."""
    here = posixpath.join("/", posixpath.dirname(path))
    if target.startswith("/"):
        if ".." in target.split("/") or not f"{target}/".startswith(f"{workdir}/"):
            return ""
        target = posixpath.relpath(target.removeprefix(workdir) or "/", here)
    depth = len([part for part in here.split("/") if part])
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in {"", "."} else 1
        if depth < 0:
            return ""
    return target


def _no_links(change: Change) -> str:
    return f"{change.path}: a symbolic link to {_readable(change.target)}"


def _attribute(path: str, name: str) -> bytes:
    for prefix in _ATTRIBUTES:
        with contextlib.suppress(OSError):
            return os.getxattr(path, prefix + name, follow_symlinks=False)
    return b""


def _content(source: str) -> bytes | None:
    """What a file holds; None when only its mode was changed."""
    if _attribute(source, "metacopy"):
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(source, flags)
    except PermissionError:
        os.chmod(source, 0o600)
        descriptor = os.open(source, flags)
    with open(descriptor, "rb") as file:
        return file.read()


def _clear(fs: Filesystem, path: str) -> None:
    if fs.exists(path):
        fs.delete(path, recursive=True)


def _set_mode(fs: Filesystem, change: Change) -> bool:
    """Keep whether a file is a program, where the Filesystem knows that. Who may read it is its owner's affair."""
    chmod: Any = getattr(fs, "chmod", None)
    if chmod is None:
        return False
    mode = fs.stat(change.path).mode & 0o777
    wanted = mode | (mode & 0o444) >> 2 if change.mode & 0o100 else mode & ~0o111
    if mode == wanted:
        return False
    chmod(change.path, wanted)
    return True


def _readable(text: str) -> str:
    return text if text.isprintable() else repr(text)
