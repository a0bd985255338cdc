"""Any sequence of file operations, then rollback, gives back the identical tree, on disk and in memory; both do the same."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.transaction import Scope

from .disk_tree import disk_tree, make_tree
from .filesystem_conformance import tree

PATHS = st.sampled_from(
    [
        "a.txt",
        "b",
        "src",
        "src/main.py",
        "src/lib",
        "src/lib/one.py",
        "docs",
        "docs/deep",
        "docs/deep/er/page.md",
        "bin/run",
        "build",
        "nested",
        "nested/.git/HEAD",
        "empty",
        "empty/inner",
        "new/deep/file",
        "new",
        "hard.txt",
    ]
)
LINKED = st.sampled_from(["soft.txt", "src/docs", "src/docs/index.md", "src/docs/new", "dangling"])
TEXT = st.sampled_from(["", "x", "y\n", "zz"])


def operations(paths: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.one_of(
        st.tuples(st.just("write"), paths, TEXT),
        st.tuples(st.just("append"), paths, TEXT),
        st.tuples(st.just("mkdir"), paths),
        st.tuples(st.just("delete"), paths, st.booleans()),
        st.tuples(st.sampled_from(["copy", "move"]), paths, paths, st.booleans()),
        st.tuples(st.just("begin")),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("save")),
        st.tuples(st.just("back")),
    )


class Player:
    """Plays operations on a filesystem, in scopes that nest, inside one that is left open."""

    def __init__(self, fs: HostFilesystem | InMemoryFilesystem) -> None:
        self.fs = fs
        self.scopes: list[Scope] = []
        self.saved: list[tuple[Scope, Any]] = []
        self.tokens: list[Any] = []
        self.begin()

    def begin(self) -> None:
        scope = Scope(self.scopes[-1] if self.scopes else None)
        self.scopes.append(scope)
        self.tokens.append(scope.activate())

    def end(self, keep: bool) -> None:
        scope = self.scopes.pop()
        self.saved = [pair for pair in self.saved if pair[0] is not scope]
        Scope.deactivate(self.tokens.pop())
        scope.commit() if keep else scope.rollback()

    def play(self, name: str, *args: Any) -> bool:
        """False if it was refused."""
        match name:
            case "begin" if len(self.scopes) < 4:
                self.begin()
            case "end" if len(self.scopes) > 1:
                self.end(*args)
            case "save":
                self.saved.append((self.scopes[-1], self.fs.snapshot()))
            case "back":
                mine = [snapshot for scope, snapshot in self.saved if scope is self.scopes[-1]]
                if mine:
                    self.fs.restore(mine[-1])
            case "copy" | "move":
                return self._try(lambda: getattr(self.fs, name)(args[0], args[1], overwrite=args[2]))
            case "write" | "append" | "mkdir" | "delete":
                return self._try(lambda: getattr(self.fs, name)(*args))
            case _:
                pass
        return True

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except FilesystemError:
            return False
        return True

    def finish(self, *, keep: bool) -> None:
        while len(self.scopes) > 1:
            self.end(keep)
        self.end(keep)


_numbers = itertools.count()
thorough = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@contextlib.contextmanager
def disk(tmp_path: Path) -> Any:
    root = tmp_path / str(next(_numbers))
    make_tree(root)
    fs = HostFilesystem(root)
    try:
        yield root, fs
    finally:
        fs.close()
        shutil.rmtree(root)


@thorough
@given(st.lists(operations(st.one_of(PATHS, PATHS, LINKED)), max_size=14))
def test_rollback_gives_back_the_identical_tree_on_disk(tmp_path: Path, steps: list[tuple[Any, ...]]) -> None:
    """Bytes, modes, times of files, links and empty folders are as before, whatever was done (S5, S49)."""
    with disk(tmp_path) as (root, fs):
        before = disk_tree(root, times=True)
        player = Player(fs)
        for step in steps:
            player.play(*step)
        player.finish(keep=False)
        assert disk_tree(root, times=True) == before


@thorough
@given(st.lists(operations(PATHS), max_size=14))
def test_rollback_gives_back_the_identical_tree_in_memory(steps: list[tuple[Any, ...]]) -> None:
    """The same sequences in memory leave what was there."""
    fs = InMemoryFilesystem({"a.txt": "a", "src/main.py": "", "src/lib/one.py": "1", "docs/deep/er/page.md": "p"})
    before = tree(fs)
    player = Player(fs)
    for step in steps:
        player.play(*step)
    player.finish(keep=False)
    assert tree(fs) == before


def in_memory(root: Path) -> InMemoryFilesystem:
    """The files and folders of a tree without links."""
    fs = InMemoryFilesystem()
    for place in sorted(root.rglob("*")):
        if place.is_dir():
            fs.mkdir(str(place.relative_to(root)))
        else:
            fs.write(str(place.relative_to(root)), place.read_bytes())
    return fs


@thorough
@given(st.lists(operations(PATHS), max_size=14), st.booleans())
def test_disk_and_memory_do_the_same(tmp_path: Path, steps: list[tuple[Any, ...]], keep: bool) -> None:
    """Each operation is refused by both or by none, and what is kept in the end is the same tree."""
    with disk(tmp_path) as (root, fs):
        for link in ("soft.txt", "src/docs", "dangling"):
            (root / link).unlink()
        memory = in_memory(root)
        player = Player(fs)
        seen = [(player.play(*step), tree(fs)) for step in steps]
        player.finish(keep=keep)
        other = Player(memory)
        for step, (done, found) in zip(steps, seen, strict=True):
            assert (other.play(*step), tree(memory)) == (done, found), step
        other.finish(keep=keep)
        assert tree(fs) == tree(memory)


@pytest.mark.parametrize("make", [InMemoryFilesystem, None], ids=["memory", "disk"])
def test_a_restore_elsewhere_undoes_what_was_kept(tmp_path: Path, make: Callable[[], Filesystem] | None) -> None:
    """A snapshot of before some transactions can be restored after them, twice, and that can be rolled back."""
    fs: Any = HostFilesystem(tmp_path) if make is None else make()
    fs.write("a", "1")
    fs.write("d/b", "1")
    snapshot = fs.snapshot()
    start = tree(fs)
    fs.write("a", "2")
    fs.move("d", "e")
    fs.delete("e/b")
    fs.write("c/new", "2")
    later = tree(fs)
    player = Player(fs)
    fs.restore(snapshot)
    assert tree(fs) == start
    player.finish(keep=False)
    assert tree(fs) == later
    fs.restore(snapshot)
    assert tree(fs) == start
    fs.write("a", "3")
    fs.restore(snapshot)
    assert tree(fs) == start
