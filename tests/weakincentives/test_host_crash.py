"""A process killed while it changes files on disk: the next opening finds the tree as before or as after, never between."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import HostFilesystem, JournalError
from weakincentives.filesystem.anchor import JOURNAL_NAME
from weakincentives.session import Session
from weakincentives.transaction import Scope

from .disk_tree import DiskTree, disk_tree, make_tree

# Newer Pythons warn of any fork in a process with threads; these children touch nothing of theirs.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

WATCHED = tuple(f"/filesystem/{name}.py" for name in ("journal", "host", "anchor", "exchange"))


class Death:
    """Kills its own process before the n-th line of the watched files, or counts them."""

    def __init__(self, at: int, watched: tuple[str, ...] = WATCHED) -> None:
        self.at = at
        self.lines = 0
        self._watched = watched

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._watched):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def change_much(root: Path) -> None:
    """A call that does every kind of change, some of them in scopes inside, and is kept."""
    fs = HostFilesystem(root)
    with_scope(lambda call: _change(fs, call))


def with_scope(act: Callable[[Scope], None], parent: Scope | None = None, *, keep: bool = True) -> None:
    call = Scope(parent)
    token = call.activate()
    try:
        act(call)
    finally:
        Scope.deactivate(token)
    call.commit() if keep else call.rollback()


def _change(fs: HostFilesystem, call: Scope) -> None:
    fs.write("a.txt", "changed")
    fs.write("a.txt", "changed again")
    fs.write("new/deep/file.txt", "new")
    fs.append("src/main.py", "\nmore")
    fs.write("bin/run", "#!/bin/bash")
    fs.delete("docs/deep", recursive=True)
    fs.move("src", "source")

    def inside(_: Scope) -> None:
        fs.write("source/lib/one.py", "inside")
        fs.delete("build/out.bin")
        fs.write("soft.txt", "through a link")

    with_scope(inside, call, keep=False)
    with_scope(inside, call)
    fs.copy("nested", "copied")
    fs.delete("soft.txt")
    fs.mkdir("docs/deep/again")
    fs.delete("empty", recursive=True)
    fs.write("empty", "now a file")


def killed(act: Callable[[], None], at: int, watched: tuple[str, ...] = WATCHED) -> bool:
    """Run in a child that dies at a line; True if it came to its end before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.settrace(Death(at, watched))
            act()
            sys.settrace(None)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def lines_of(act: Callable[[], None], watched: tuple[str, ...] = WATCHED) -> int:
    counter, before = Death(0, watched), sys.gettrace()
    sys.settrace(counter)
    try:
        act()
    finally:
        sys.settrace(before)
    return counter.lines


def sweep(tmp_path: Path, kills: int) -> tuple[int, int]:
    """Kill at so many points, evenly spread and random; how often the tree was as before, and as after."""
    pattern = tmp_path / "pattern"
    make_tree(pattern)
    before = disk_tree(pattern)
    done = tmp_path / "done"
    shutil.copytree(pattern, done, symlinks=True)
    # Copying parts hard links; so it does for the trees that are killed.
    lines = lines_of(lambda: change_much(done))
    after = disk_tree(done)
    start = _alone(before)
    chance = random.Random(14)
    points = [1 + lines * number // (kills // 2) for number in range(kills // 2)]
    points += [chance.randint(1, lines) for _ in range(kills - len(points))]
    seen = [0, 0]
    for number, point in enumerate(points):
        root = tmp_path / str(number)
        shutil.copytree(pattern, root, symlinks=True)
        complete = killed(lambda root=root: change_much(root), point)
        fs = HostFilesystem(root)
        found = disk_tree(root)
        assert found in (start, after), f"killed at line {point} of {lines}"
        seen[found == after] += 1
        assert found == after or not complete
        # The journal of the dead is gone, and life goes on.
        fs.write("a.txt", "life goes on")
        fs.close()
        assert not (root / JOURNAL_NAME).exists()
        shutil.rmtree(root)
    return seen[0], seen[1]


def _alone(tree: DiskTree) -> DiskTree:
    """The tree as a copy of it is: every file has one name."""
    return {path: (*entry[:3], 1, *entry[4:]) if entry[0] == "file" else entry for path, entry in tree.items()}


def test_a_killed_process_leaves_the_tree_before_or_after(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed at 200 points of a write-heavy call, the tree is as before or as after, and both happen (S49)."""
    caplog.set_level(logging.ERROR)
    before, after = sweep(tmp_path, 200)
    assert (before > 100, after > 0, before + after) == (True, True, 200)


def test_a_kill_during_recovery_is_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed while it undoes what another left, and killed again, the tree is still as before in the end."""
    caplog.set_level(logging.ERROR)
    root = tmp_path / "root"
    pattern = tmp_path / "pattern"
    make_tree(pattern)
    counted = tmp_path / "counted"
    shutil.copytree(pattern, counted, symlinks=True)
    lines = lines_of(lambda: change_much(counted))
    before = _alone(disk_tree(pattern))
    chance = random.Random(15)
    for _ in range(15):
        shutil.copytree(pattern, root, symlinks=True)
        # Late enough to have much to undo, early enough to be undecided.
        killed(lambda: change_much(root), int(lines * 0.85))
        for _ in range(3):
            killed(lambda: HostFilesystem(root).close(), chance.randint(60, 600))
        HostFilesystem(root).close()
        assert disk_tree(root) == before
        shutil.rmtree(root)


def take_back_twice(root: Path) -> None:
    """Put files into the places of others, and take it back: in a scope inside, then all of it."""
    fs = HostFilesystem(root)

    def swap(_: Scope) -> None:
        fs.move("a.txt", "old.txt")
        fs.write("a.txt", "another file")
        fs.move("src", "docs/src")
        fs.write("src", "a file where a directory was")
        fs.delete("docs", recursive=True)
        fs.write("docs/new", "a directory where another was")

    def both(call: Scope) -> None:
        with_scope(swap, call, keep=False)
        fs.write("bin/run", "between")
        swap(call)

    with_scope(both, keep=False)


def test_what_is_undone_is_not_undone_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed anywhere in a rollback, and once more while the rest is undone, a file that was put back stays (invariant 1)."""
    caplog.set_level(logging.ERROR)
    pattern = tmp_path / "pattern"
    make_tree(pattern)
    counted = tmp_path / "counted"
    shutil.copytree(pattern, counted, symlinks=True)
    before = _alone(disk_tree(pattern))
    lines = lines_of(lambda: take_back_twice(counted))
    assert disk_tree(counted) == before
    chance = random.Random(16)
    for point in range(lines // 4, lines, max(lines // 90, 1)):
        root = tmp_path / str(point)
        shutil.copytree(pattern, root, symlinks=True)
        killed(lambda root=root: take_back_twice(root), point)
        killed(lambda root=root: HostFilesystem(root).close(), chance.randint(60, 400))
        HostFilesystem(root).close()
        assert disk_tree(root) == before, f"killed at line {point} of {lines}"
        shutil.rmtree(root)


def test_a_write_outside_of_transactions_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed at any point, a recursive copy outside of any transaction has happened or not."""
    caplog.set_level(logging.ERROR)
    pattern = tmp_path / "pattern"
    make_tree(pattern)
    done = tmp_path / "done"
    shutil.copytree(pattern, done, symlinks=True)

    def copy(root: Path) -> None:
        HostFilesystem(root).copy("src", "deep/copy")

    lines = lines_of(lambda: copy(done))
    before, after = _alone(disk_tree(pattern)), disk_tree(done)
    for point in range(1, lines, max(lines // 20, 1)):
        root = tmp_path / str(point)
        shutil.copytree(pattern, root, symlinks=True)
        killed(lambda root=root: copy(root), point)
        HostFilesystem(root).close()
        assert disk_tree(root) in (before, after)


# -- together with a durable session -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    text: str


def _both(root: Path, log: Path) -> None:
    session = Session.open(log)
    fs = HostFilesystem(root, session=session)
    with session.transaction():
        session[Written].append(Written("new"))
        fs.write("a.txt", "new")
        fs.delete("docs", recursive=True)
    session.close()


BOTH = (*WATCHED, "/session/storage.py", "/session/record.py", "/transaction/scope.py")


def test_state_and_files_are_kept_together_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed at any point of a commit, the session's log and the tree tell the same story (S54)."""
    caplog.set_level(logging.ERROR)
    pattern = tmp_path / "pattern"
    make_tree(pattern)
    done = tmp_path / "done"
    shutil.copytree(pattern, done, symlinks=True)
    lines = lines_of(lambda: _both(done, tmp_path / "done.log"), BOTH)
    before, after = _alone(disk_tree(pattern)), disk_tree(done)
    seen: set[bool] = set()
    asked = 0
    for point in range(lines // 3, lines + 1, max(lines // 120, 1)):
        root, log = tmp_path / f"{point}", tmp_path / f"{point}.log"
        shutil.copytree(pattern, root, symlinks=True)
        killed(lambda root=root, log=log: _both(root, log), point, BOTH)
        try:
            HostFilesystem(root).close()
        except JournalError as error:
            assert "Pass session=Session.open" in str(error)
            asked += 1
        session = Session.open(log)
        fs = HostFilesystem(root, session=session)
        kept = session[Written].all() == (Written("new"),)
        assert disk_tree(root) == (after if kept else before)
        seen.add(kept)
        fs.close()
        session.close()
    assert (seen, asked > 0) == ({True, False}, True)


def test_what_a_session_must_decide_is_not_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the session that knows, or with another one, opening refuses, says what to do, and changes nothing."""
    caplog.set_level(logging.ERROR)
    root, log = tmp_path / "root", tmp_path / "log"
    make_tree(root)
    session = Session.open(log)
    name = session.session_id
    session.close()
    point = 1
    while killed(lambda: _both(root, log), point, ("/session/record.py",)) or not _undecided(root):
        shutil.rmtree(root)
        make_tree(root)
        point += 1
        assert point < 1000, "no point was found at which only the session knows"
    present = _alone(disk_tree(root))
    folder = root / JOURNAL_NAME
    expected = (
        f"Cannot open {root}: a transaction was interrupted there, and whether it counts is known to session {name}. "
        f"Pass session=Session.open(…) with its file. To keep the files as they are now, remove {folder}."
    )
    with Session.open(tmp_path / "other") as other:
        for witness in (None, other):
            with pytest.raises(JournalError) as refused:
                HostFilesystem(root, session=witness)
            assert str(refused.value) == expected
    assert _alone(disk_tree(root)) == present
    shutil.rmtree(folder)
    HostFilesystem(root).close()
    assert _alone(disk_tree(root)) == present


def _undecided(root: Path) -> bool:
    try:
        HostFilesystem(root).close()
    except FilesystemError:
        return True
    return False
