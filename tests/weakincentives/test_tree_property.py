"""Whatever plain system calls do to a directory, a restore gives back the identical one."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.filesystem import DirectoryTree

NAMES = [b"a", b"b", b"c", b"\xff\xfe", "é".encode(), b"new\nline"]


def pictured(root: bytes) -> dict[bytes, Any]:
    """Everything a user could see of a tree: kind, mode, time, content or target, and which names are one file."""
    found: dict[bytes, Any] = {}
    inodes: dict[int, bytes] = {}
    todo = [root]
    while todo:
        path = todo.pop()
        about = os.lstat(path)
        content: object = None
        if stat.S_ISDIR(about.st_mode):
            todo.extend(os.path.join(path, name) for name in sorted(os.listdir(path), reverse=True))
        elif stat.S_ISLNK(about.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(about.st_mode):
            content = (Path(os.fsdecode(path)).read_bytes(), inodes.setdefault(about.st_ino, path))
        found[path] = (about.st_mode, about.st_mtime_ns, content)
    return found


paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda parts: b"/".join(parts))
contents = st.sampled_from([b"", b"1", b"2", b"three", b"x" * 70_000])
steps = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("in_place"), paths, contents),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("symlink"), paths, st.sampled_from([b"a", b"../..", b"/etc/passwd", b"nowhere"])),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o000, 0o400, 0o555, 0o644, 0o700])),
    st.tuples(st.just("utime"), paths, st.integers(0, 10**9)),
)


def act(root: bytes, step: tuple[Any, ...]) -> None:
    """Do one thing, if it can be done; a link is never written through."""
    path = os.path.join(root, step[1])
    real = os.path.realpath(os.path.dirname(path))
    if not (real + b"/").startswith(root + b"/"):
        return
    try:
        match step:
            case ("write", _, content):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
                os.write(fd, content)
                os.close(fd)
            case ("in_place", _, content):
                fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
                os.write(fd, content)
                os.close(fd)
            case ("mkdir", _):
                os.makedirs(path)
            case ("remove", _) if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            case ("remove", _):
                os.unlink(path)
            case ("symlink", _, target):
                os.symlink(target, path)
            case ("link", _, other):
                os.link(os.path.join(root, other), path, follow_symlinks=False)
            case ("rename", _, other):
                os.rename(os.path.join(root, other), path)
            case ("chmod", _, mode) if not os.path.islink(path):
                os.chmod(path, mode)
            case ("utime", _, seconds):
                os.utime(path, ns=(0, seconds * 10**9), follow_symlinks=False)
            case _:
                pass
    except OSError:
        pass


@settings(max_examples=120)
@given(before=st.lists(steps, max_size=12), after=st.lists(steps, max_size=12), later=st.lists(steps, max_size=6))
def test_a_restore_gives_back_the_identical_tree(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], later: list[tuple[Any, ...]]
) -> None:
    """Invariant 2: bytes, modes, links, empty folders, times and shared inodes, for each of two snapshots."""
    with tempfile.TemporaryDirectory() as place:
        root = os.fsencode(os.path.realpath(place)) + b"/root"
        os.mkdir(root)
        for step in before:
            act(root, step)
        with DirectoryTree(os.fsdecode(root)) as tree:
            first, was = tree.snapshot(), pictured(root)
            for step in after:
                act(root, step)
            second, then = tree.snapshot(), pictured(root)
            for step in later:
                act(root, step)
            tree.restore(second)
            assert pictured(root) == then
            tree.restore(first)
            assert pictured(root) == was
            tree.restore(second)
            assert pictured(root) == then
        for folder, _, _ in os.walk(root):
            os.chmod(folder, 0o700)
