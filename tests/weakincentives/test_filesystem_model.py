"""The filesystem in memory against a naive one: random writes, nested transactions, savepoints and bystanders.

The naive filesystem copies everything at every step. A scope of it is the list of what each of its writes changed; it is
replayed, change by change, when the scope is kept.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextvars import Token
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import FilesSnapshot, Filesystem, InMemoryFilesystem
from weakincentives.transaction import Scope

from .filesystem_conformance import bystander, tree

Tree = dict[str, bytes | None]
"""Content of each file, None for each directory; the root is not in it."""


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


class Refused(Exception):
    """The naive filesystem cannot do this."""


class Naive:
    """What a filesystem does, written as plainly as possible."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def mkdir(self, path: str) -> None:
        for place in [*parents(path), path]:
            if self.tree.get(place) is not None:
                raise Refused(path)
            self.tree[place] = None

    def write(self, path: str, content: str) -> None:
        if self.tree.get(path, b"") is None:
            raise Refused(path)
        for place in parents(path):
            if self.tree.get(place) is not None:
                raise Refused(path)
        for place in parents(path):
            self.tree[place] = None
        self.tree[path] = content.encode()

    def append(self, path: str, content: str) -> None:
        self.write(path, (self.tree.get(path) or b"").decode() + content)

    def delete(self, path: str, recursive: bool) -> None:
        below = [place for place in self.tree if place.startswith(path + "/")]
        if path not in self.tree or (below and not recursive):
            raise Refused(path)
        for place in [path, *below]:
            del self.tree[place]

    def copy(self, src: str, dst: str, overwrite: bool) -> None:
        if src not in self.tree or (self.tree[src] is None and (dst + "/").startswith(src + "/")):
            raise Refused(src)
        there = self.tree.get(dst, b"" if overwrite else None)
        if dst in self.tree and (there is None or not overwrite or self.tree[src] is None):
            raise Refused(dst)
        moved = {
            dst + place[len(src) :]: content
            for place, content in self.tree.items()
            if (place + "/").startswith(src + "/")
        }
        for place, content in moved.items():
            self.mkdir(place) if content is None else self.write(place, content.decode())

    def move(self, src: str, dst: str, overwrite: bool) -> None:
        self.copy(src, dst, overwrite)
        if src != dst:
            self.delete(src, recursive=True)


Change = tuple[str, bytes | None, bool]
"""Path, new content (None for a directory), and whether it is gone."""


def changes(before: Tree, after: Tree) -> list[Change]:
    gone: list[Change] = [(path, content, True) for path, content in before.items() if path not in after]
    come: list[Change] = [
        (path, content, False) for path, content in after.items() if path not in before or before[path] != content
    ]
    return sorted(gone, reverse=True) + sorted(come)


def replayed(tree: Tree, steps: Sequence[Sequence[Change]]) -> Tree:
    """`tree` with the changes made again; raises `Refused` where another's file or directory is in the way."""
    naive = Naive(copy.deepcopy(tree))
    for path, content, gone in (change for step in steps for change in step):
        if not gone:
            naive.mkdir(path) if content is None else naive.write(path, content.decode())
        elif content is not None or not any(place.startswith(path + "/") for place in naive.tree):
            naive.tree.pop(path, None)
    return naive.tree


class NaiveScope:
    """One open transaction of the naive filesystem."""

    def __init__(self) -> None:
        self.tree: Tree | None = None  # what it sees, from its first write on
        self.steps: list[list[Change]] = []


PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f/g/h"])
TEXT = st.sampled_from(["", "x", "y\n", "zz"])
# Others write other files than we do, but into our directories, and sometimes where we have a file.
THEIRS = st.sampled_from(["t", "d/t", "d/e/t", "f/t", "u/t"])


class Model(RuleBasedStateMachine):
    """Both filesystems, step by step."""

    @initialize()
    def start(self) -> None:
        self.fs = InMemoryFilesystem()
        self.log = _Log()
        self.fs.store.log = self.log
        self.committed: Tree = {}
        self.scopes: list[tuple[Scope, Token[Scope | None], NaiveScope]] = []
        self.saved: list[tuple[Scope, FilesSnapshot, Tree, int]] = []

    def teardown(self) -> None:
        while getattr(self, "scopes", None):
            self.end(keep=False)

    def view(self) -> Tree:
        for _, _, naive in reversed(self.scopes):
            if naive.tree is not None:
                return naive.tree
        return self.committed

    def keep(self, after: Tree, *steps: list[Change]) -> None:
        """What the innermost scope, or everybody, sees from now on."""
        if self.scopes:
            self.scopes[-1][2].tree = after
            self.scopes[-1][2].steps.extend(steps)
        else:
            self.committed = after

    def act(self, name: str, *args: Any, **named: Any) -> None:
        before = self.view()
        naive = Naive(copy.deepcopy(before))
        try:
            getattr(naive, name)(*args, **named)
        except Refused:
            with pytest.raises(FilesystemError):
                getattr(self.fs, name)(*args, **named)
            return
        getattr(self.fs, name)(*args, **named)
        self.keep(naive.tree, changes(before, naive.tree))

    @rule(path=PATHS, content=TEXT)
    def write(self, path: str, content: str) -> None:
        self.act("write", path, content)

    @rule(path=PATHS, content=TEXT)
    def append(self, path: str, content: str) -> None:
        self.act("append", path, content)

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        self.act("mkdir", path)

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path: str, recursive: bool) -> None:
        self.act("delete", path, recursive)

    @rule(src=PATHS, dst=PATHS, overwrite=st.booleans(), verb=st.sampled_from(["copy", "move"]))
    def transfer(self, src: str, dst: str, overwrite: bool, verb: str) -> None:
        self.act(verb, src, dst, overwrite=overwrite)

    @rule(path=THEIRS, content=TEXT)
    def write_beside(self, path: str, content: str) -> None:
        naive = Naive(copy.deepcopy(self.committed))
        try:
            naive.write(path, content)
        except Refused:
            return
        bystander(self.fs.write, path, content)
        self.committed = naive.tree

    @precondition(lambda self: len(self.scopes) < 3)
    @rule()
    def begin(self) -> None:
        scope = Scope(self.scopes[-1][0] if self.scopes else None)
        self.scopes.append((scope, scope.activate(), NaiveScope()))

    @precondition(lambda self: self.scopes)
    @rule(keep=st.booleans())
    def end(self, keep: bool) -> None:
        scope, token, naive = self.scopes.pop()
        self.saved = [entry for entry in self.saved if entry[0] is not scope]
        try:
            kept = replayed(self.view(), naive.steps) if keep and naive.steps else None
        except Refused:
            with pytest.raises(FilesystemError):
                scope.commit()
        else:
            scope.commit() if keep else scope.rollback()
            if kept is not None:
                self.keep(kept, *naive.steps)
        Scope.deactivate(token)

    @precondition(lambda self: self.scopes)
    @rule()
    def save(self) -> None:
        scope, _, naive = self.scopes[-1]
        self.saved.append((scope, self.fs.snapshot(), self.view(), len(naive.steps)))

    @precondition(lambda self: self.scopes and any(entry[0] is self.scopes[-1][0] for entry in self.saved))
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        scope, _, naive = self.scopes[-1]
        chosen = data.draw(st.sampled_from([entry for entry in self.saved if entry[0] is scope]))
        self.fs.restore(chosen[1])
        del naive.steps[chosen[3] :]
        naive.tree = chosen[2] if naive.steps else None
        self.saved = [entry for entry in self.saved if entry[0] is not scope or entry[3] <= chosen[3]]

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "fs"):
            assert tree(self.fs) == self.view()
            bystander(self.check_committed)

    def check_committed(self) -> None:
        assert tree(self.fs) == self.committed
        assert self.log.replayed() == self.fs.snapshot()


class _Log:
    """A commit log kept as JSON text."""

    def __init__(self) -> None:
        self.fs = InMemoryFilesystem()

    def append(self, txn_id: str, changes: Sequence[tuple[Any, Sequence[Any]]], /) -> None:
        for _, ops in changes:
            for op in ops:
                line = json.dumps(InMemoryFilesystem.encode_op(op))
                bystander(self.fs.store.apply, InMemoryFilesystem.decode_op(json.loads(line)), None)

    def replayed(self) -> FilesSnapshot:
        return self.fs.snapshot()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=30)


NAMES = st.sampled_from(["a", "b.py", ".c", "d-e", "f"])
SOME_PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), max_size=8)
PARTS = st.sampled_from(["a", "*", "**", "?", "*.py", "[a-d]*", "[!a]", ".*", "f"])


@given(paths=SOME_PATHS, parts=st.lists(PARTS, min_size=1, max_size=4), directories=st.booleans())
@settings(max_examples=60)
def test_glob_means_what_pathlib_means(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], parts: list[str], directories: bool
) -> None:
    """For any tree and pattern: pathlib's files, or its directories when the pattern ends in a slash."""
    disk = tmp_path_factory.mktemp("glob")
    fs: Filesystem = InMemoryFilesystem()
    for path in paths:
        try:
            fs.write(path, "")
        except FilesystemError:
            continue
        place = disk / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    # pathlib before 3.13 finds no files by a trailing `**`; ours is the newer meaning, spelled `**/*` there.
    asked = [*parts, "*"] if parts[-1] == "**" and not directories else parts
    wanted: Callable[[Path], bool] = Path.is_dir if directories else Path.is_file
    found = {place.relative_to(disk).as_posix() for place in disk.glob("/".join(asked)) if wanted(place)}
    assert fs.glob("/".join(parts) + "/" * directories) == sorted("/" if place == "." else place for place in found)
