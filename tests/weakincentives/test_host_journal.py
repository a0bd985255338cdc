"""Claims about the undo journal of a disk tree: who may change what, what is put back, and what happens when the disk fails."""

from __future__ import annotations

import contextvars
import os
import resource
import signal
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from weakincentives.errors import FencedWriteError, RollbackError, TransactionError
from weakincentives.filesystem import (
    DiskError,
    FileBusyError,
    FileMissingError,
    Filesystem,
    HostFilesystem,
    JournalError,
    NotDirectoryError,
    ReadOnlyFileError,
    journal,
)
from weakincentives.filesystem.anchor import JOURNAL_NAME
from weakincentives.prompt import ToolContext, ToolResult, tool
from weakincentives.runtime import Session, create_snapshot, restore_snapshot, tool_transaction
from weakincentives.testing import run_tool
from weakincentives.transaction import Scope

from .disk_tree import disk_tree, make_tree
from .filesystem_conformance import scope

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
BUSY = "Cannot change {path} now: another tool call is changing it\nWork on something else first, then retry."


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "root")
    return tmp_path / "root"


def within(call: Scope, act: Callable[[], object]) -> None:
    """Do something as part of a call."""
    token = call.activate()
    try:
        act()
    finally:
        Scope.deactivate(token)


def elsewhere(act: Callable[[], object]) -> None:
    """Do something outside of every call."""
    contextvars.Context().run(act)


# -- what is put back (S49) ------------------------------------------------------------------------------------------------


def test_a_write_parts_a_file_from_its_other_names(root: Path) -> None:
    """Another hard link keeps the old content; after a rollback the two are one file again (invariant 2)."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "changed"))
    assert ((root / "hard.txt").read_text(), (root / "a.txt").read_text()) == ("a", "changed")
    call.rollback()
    assert (root / "hard.txt").samefile(root / "a.txt")


def test_a_write_keeps_the_mode(root: Path) -> None:
    """What is replaced keeps its permissions, a copy takes them along, and a new file has those of the process."""
    fs = HostFilesystem(root)
    fs.write("bin/run", "#!/bin/bash")
    fs.copy("bin/run", "bin/copy")
    fs.write("bin/new", "")
    mask = os.umask(0)
    os.umask(mask)
    modes = [stat.S_IMODE((root / "bin" / name).stat().st_mode) for name in ("run", "copy", "new")]
    assert modes == [0o751, 0o751, 0o666 & ~mask]


def test_a_rollback_touches_only_what_it_recorded(root: Path) -> None:
    """What others did beside the call stays: new files, ignored files, nested repositories (invariant 5)."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("made/by/call.txt", "x"))
    (root / "build/other.bin").write_text("theirs")
    (root / "nested/.git/index").write_text("theirs")
    (root / "made/theirs.txt").write_text("theirs")
    call.rollback()
    found = {path for path in disk_tree(root) if path.startswith(("made", "build/other", "nested/.git/index"))}
    assert found == {"made", "made/theirs.txt", "build/other.bin", "nested/.git/index"}


def test_a_link_is_written_through_and_deleted_itself(root: Path) -> None:
    """Writing goes to what a link leads to; deleting and moving act on the link."""
    fs = HostFilesystem(root)
    fs.write("soft.txt", "through")
    fs.write("dangling", "made")
    fs.move("soft.txt", "moved.txt")
    assert ((root / "a.txt").read_text(), (root / "nowhere").read_text()) == ("through", "made")
    assert os.readlink(root / "moved.txt") == "a.txt"
    fs.delete("src/docs")
    assert (root / "docs/index.md").exists()


# -- whose path it is (invariant 6) ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "path"),
    [
        ("write a.txt", "write a.txt", "a.txt"),
        ("write a.txt", "delete a.txt", "a.txt"),
        ("write src/lib/one.py", "delete src", "src"),
        ("delete src", "write src/lib/new.py", "src/lib/new.py"),
        ("move src there", "write there/new.py", "there/new.py"),
        ("write new/a", "write new/b", "new/b"),
        ("write src/lib/one.py", "move src there", "src"),
    ],
)
def test_the_second_on_a_path_is_refused(root: Path, mine: str, theirs: str, path: str) -> None:
    """Another transaction, or a write outside of any, cannot change what one has changed, and says so; later it can."""

    def do(fs: HostFilesystem, said: str) -> None:
        verb, *args = said.split()
        match verb:
            case "write":
                fs.write(args[0], said)
            case "delete":
                fs.delete(args[0], recursive=True)
            case _:
                fs.move(*args)

    fs, twin = HostFilesystem(root), HostFilesystem(root)
    before = disk_tree(root)
    first = Scope()
    within(first, lambda: do(fs, mine))
    for other in (fs, twin):
        second = Scope()
        for act in (lambda o=other, s=second: within(s, lambda: do(o, theirs)), lambda o=other: do(o, theirs)):
            with pytest.raises(FileBusyError) as refused:
                act()
            assert str(refused.value) == BUSY.format(path=path)
        second.rollback()
    first.rollback()
    assert disk_tree(root) == before
    do(twin, "write unrelated")
    do(twin, mine)


def test_transactions_on_other_paths_do_not_meet(root: Path) -> None:
    """Two open transactions in one directory: one is kept, the other rolled back, each for itself."""
    fs, twin = HostFilesystem(root), HostFilesystem(root)
    first, second = Scope(), Scope()
    within(first, lambda: fs.write("src/lib/one.py", "first"))
    within(second, lambda: twin.write("src/lib/two.py", "second"))
    first.rollback()
    second.commit()
    assert ((root / "src/lib/one.py").read_text(), (root / "src/lib/two.py").read_text()) == ("1", "second")


def test_siblings_do_not_share_a_path(root: Path) -> None:
    """Two scopes side by side in one transaction are kept apart, so that one rolls back its own changes only."""
    fs = HostFilesystem(root)
    outer = Scope()
    one, two = Scope(outer), Scope(outer)
    within(one, lambda: fs.write("a.txt", "one"))
    with pytest.raises(FileBusyError):
        within(two, lambda: fs.write("a.txt", "two"))
    within(two, lambda: fs.write("bin/run", "two"))
    one.rollback()
    two.commit()
    outer.commit()
    assert ((root / "a.txt").read_text(), (root / "bin/run").read_text()) == ("a", "two")


def test_an_outer_rollback_undoes_scopes_that_are_still_open(root: Path) -> None:
    """What runs on inside a call that was taken back loses its changes with it, and can make no more (S9)."""
    fs = HostFilesystem(root)
    before = disk_tree(root)
    outer = Scope()
    inner = Scope(outer)
    within(inner, lambda: fs.write("a.txt", "inner"))
    outer.rollback()
    assert disk_tree(root) == before
    with pytest.raises(FencedWriteError):
        within(inner, lambda: fs.write("a.txt", "late"))
    inner.rollback()
    assert disk_tree(root) == before


def test_an_outer_commit_drops_scopes_that_are_still_open(root: Path) -> None:
    """Only what was kept inside is kept outside."""
    fs = HostFilesystem(root)
    outer = Scope()
    inner = Scope(outer)
    within(outer, lambda: fs.write("bin/run", "outer"))
    within(inner, lambda: fs.write("a.txt", "inner"))
    outer.commit()
    assert ((root / "a.txt").read_text(), (root / "bin/run").read_text()) == ("a", "outer")


def test_many_threads_write_at_the_same_time(root: Path) -> None:
    """Each thread's transaction is kept or taken back whole, whatever the others do."""
    fs = HostFilesystem(root)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for attempt in range(10):
                call = Scope()
                within(call, lambda attempt=attempt: fs.write(f"threads{number}/file", str(attempt)))
                call.commit() if attempt % 2 else call.rollback()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [(root / f"threads{number}/file").read_text() for number in range(6)] == ["9"] * 6


# -- the living and the dead (invariant 7) -----------------------------------------------------------------------------


def _dies_inside(root: Path, path: str) -> None:
    """A process that changes a file in a transaction and is killed."""
    child = os.fork()
    if child == 0:
        try:
            fs = HostFilesystem(root)
            within(Scope(), lambda: fs.write(path, "of the dead"))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@forks
def test_opening_leaves_the_living_alone(root: Path) -> None:
    """A second filesystem on the same root does not touch the open transaction of the first."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "open"))
    other = HostFilesystem(root)
    assert other.read("a.txt") == "open"
    other.close()
    call.rollback()
    assert fs.read("a.txt") == "a"


@forks
def test_whoever_claims_a_path_recovers_the_dead_first(root: Path) -> None:
    """A process that was there before saves what the dead one found, not what it left."""
    fs = HostFilesystem(root)
    fs.write("bin/run", "so there is a journal")
    _dies_inside(root, "a.txt")
    assert fs.read("a.txt") == "of the dead"
    call = Scope()
    within(call, lambda: fs.append("a.txt", "!"))
    assert fs.read("a.txt") == "a!"
    call.rollback()
    assert fs.read("a.txt") == "a"


@forks
def test_a_path_is_refused_across_processes(root: Path) -> None:
    """Another process is told that a path is busy, and can write beside it."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "open"))
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            other = HostFilesystem(root)
            other.write("bin/run", "theirs")
            other.write("a.txt", "theirs")
        except FileBusyError as error:
            os.write(says, str(error).encode())
        finally:
            os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    said = os.read(heard, 4096).decode()
    os.close(heard)
    assert (said, fs.read("bin/run")) == (BUSY.format(path="a.txt"), "theirs")
    call.rollback()


@forks
def test_a_forked_process_cannot_write_in_its_parents_transaction(root: Path) -> None:
    """The transaction belongs to the process that began it."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "parent"))
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            within(call, lambda: fs.write("bin/run", "child"))
        except JournalError as error:
            os.write(says, str(error).encode())
        finally:
            os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    said = os.read(heard, 4096).decode()
    os.close(heard)
    call.rollback()
    assert said == f"Cannot write to {root} in a forked process: the transaction belongs to the process that began it."


@forks
def test_a_torn_record_is_no_step(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log cut anywhere in its last record is undone up to the record before."""
    _dies_inside(root, "a.txt")
    (log,) = (root / JOURNAL_NAME).glob("*/log")
    data = log.read_bytes()
    log.write_bytes(data + data[-20:])
    HostFilesystem(root).close()
    assert (root / "a.txt").read_text() == "a"
    assert caplog.messages == [f"{root}: rolled back 1 changes of an interrupted transaction"]


# -- when the disk fails (invariant 5) ---------------------------------------------------------------------------------


@contextmanager
def _small_files(size: int) -> Generator[None]:
    """No file may grow beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_refuses_the_write_and_changes_nothing(root: Path) -> None:
    """However far it came, the write is told in words, the tree is as before, and the call goes on."""
    fs = HostFilesystem(root)
    before = disk_tree(root)
    for size in (0, 10, 60, 2000):
        call = Scope()
        with pytest.raises(DiskError) as refused, _small_files(size):
            within(call, lambda: fs.write("new/deep/a.txt", "x" * 5000))
        assert str(refused.value) == "Cannot write new/deep/a.txt: File too large\nThis call changed nothing there."
        assert disk_tree(root) == before
        within(call, lambda: fs.write("a.txt", "goes on"))
        call.rollback()
        assert disk_tree(root) == before


def test_a_commit_needs_no_space(root: Path) -> None:
    """What was written can be kept on a disk that has become full (invariant 3)."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "kept"))
    with _small_files(0):
        call.commit()
    fs.close()
    HostFilesystem(root).close()
    assert (root / "a.txt").read_text() == "kept"


def test_what_cannot_be_undone_is_told_and_kept(root: Path) -> None:
    """A rollback undoes everything else, raises one group, and the next opening finishes it when the way is free."""
    fs = HostFilesystem(root)
    before = disk_tree(root)
    call = Scope()

    def change() -> None:
        fs.write("bin/run", "changed")
        fs.delete("docs", recursive=True)
        fs.write("a.txt", "changed")

    within(call, change)
    (root / "docs/in/the/way").mkdir(parents=True)
    with pytest.raises(RollbackError) as failed:
        call.rollback()
    assert "Files could not be put back; what they were is kept in the journal" in str(failed.value.exceptions[0])
    assert ((root / "a.txt").read_text(), (root / "bin/run").read_text()) == ("a", "#!/bin/sh")
    with pytest.raises(FileBusyError):
        elsewhere(lambda: fs.write("docs", "not before it is settled"))
    fs.close()
    for folder in ("docs/in/the/way", "docs/in/the", "docs/in", "docs"):
        (root / folder).rmdir()
    HostFilesystem(root).close()
    assert disk_tree(root) == before


def test_fsync_changes_nothing_but_the_price(root: Path) -> None:
    """With `fsync` a rollback and a commit do what they do without."""
    fs = HostFilesystem(root, fsync=True)
    before = disk_tree(root)
    with scope() as call:
        fs.write("a.txt", "x")
        fs.delete("docs", recursive=True)
        call.rollback()
    assert disk_tree(root) == before
    with scope() as call:
        fs.move("docs", "moved")
        call.commit()
    assert fs.read("moved/index.md") == "# Docs"


class Watched:
    """The `os` module, which notes what is made to last, and when the log is cut."""

    def __init__(self) -> None:
        self.seen: list[int | str] = []
        """Numbers of inodes, and `cut`."""

    def fsync(self, fd: int) -> None:
        self.seen.append(os.fstat(fd).st_ino)
        os.fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self.seen.append("cut")
        os.ftruncate(fd, length)

    def begin_writing(self, fd: int) -> None:
        self.seen.append(os.fstat(fd).st_ino)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(journal, "os", watched)
    monkeypatch.setattr(journal, "begin_writing", watched.begin_writing)
    return watched


def inode(path: Path) -> int:
    return path.stat().st_ino


@pytest.mark.parametrize("inside", [True, False])
def test_with_fsync_content_and_names_last_before_the_commit(root: Path, watched: Watched, inside: bool) -> None:
    """In a transaction and outside of any, file and directory are on disk before the log is cut."""
    fs = HostFilesystem(root, fsync=True)
    if inside:
        with scope() as call:
            fs.write("bin/run", "new")
            call.commit()
    else:
        fs.write("bin/run", "new")
    assert watched.seen == [inode(root / "bin/run"), inode(root / "bin"), "cut"]


@pytest.mark.parametrize("inside", [True, False])
def test_the_disk_begins_with_what_was_replaced_before_the_commit(root: Path, watched: Watched, inside: bool) -> None:
    """Without `fsync` too a file that took the place of another is on its way when the commit is written, wherever it is by then."""
    fs = HostFilesystem(root)
    if inside:
        with scope() as call:
            fs.write("bin/run", "new")
            fs.move("bin", "moved")
            fs.write("created", "new")
            call.commit()
    else:
        fs.write("bin/run", "new")
    assert watched.seen == [inode(root / ("moved/run" if inside else "bin/run")), "cut"]


def test_what_is_rolled_back_never_goes_to_the_disk(root: Path, watched: Watched) -> None:
    """Content that is taken back is not written first."""
    fs = HostFilesystem(root)
    with scope() as call:
        fs.write("bin/run", "new")
        call.rollback()
    assert watched.seen == ["cut"]


# -- the journal's folder ----------------------------------------------------------------------------------------------


def test_the_journal_comes_with_the_first_write_and_goes_with_close(root: Path) -> None:
    """Reading leaves no trace; the folder is in no listing, git ignores it, and closing removes it."""
    fs = HostFilesystem(root)
    fs.grep("x")
    assert not (root / JOURNAL_NAME).exists()
    fs.write("a.txt", "x")
    assert (root / JOURNAL_NAME / ".gitignore").read_text() == "*\n"
    assert JOURNAL_NAME not in fs.list()
    fs.close()
    assert not (root / JOURNAL_NAME).exists()


def test_a_closed_filesystem_says_so(root: Path) -> None:
    """Using it is an error, except for undoing what an open transaction did."""
    fs = HostFilesystem(root)
    call = Scope()
    within(call, lambda: fs.write("a.txt", "x"))
    fs.close()
    with pytest.raises(JournalError) as refused:
        fs.read("a.txt")
    assert str(refused.value) == f"Cannot use {root}: this filesystem has been closed."
    call.rollback()
    assert (root / "a.txt").read_text() == "a"


def test_the_journal_can_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    """On the same disk, and not on another one."""
    fs = HostFilesystem(root, journal=tmp_path / "journal")
    with scope() as call:
        fs.write("a.txt", "x")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "root"]
        assert not (root / JOURNAL_NAME).exists()
        call.rollback()
    fs.close()
    assert (fs.root, [path.name for path in tmp_path.iterdir()]) == (str(root), ["root"])


def test_opening_what_is_no_directory_says_so(root: Path) -> None:
    """The owner of a tree is told what is wrong with its root."""
    with pytest.raises(FileMissingError) as missing:
        HostFilesystem(root / "no")
    with pytest.raises(NotDirectoryError) as file:
        HostFilesystem(root / "a.txt")
    assert (str(missing.value), str(file.value)) == (
        f"Cannot open {root}/no: there is no such directory. Make it first.",
        f"Cannot open {root}/a.txt: it is not a directory.",
    )


def test_protected_paths_refuse_every_write(root: Path) -> None:
    """Globs protect a disk tree as they protect one in memory."""
    fs = HostFilesystem(root, readonly=["docs/**", "*.py"])
    before = disk_tree(root)
    for act in (
        lambda: fs.write("docs/new.md", ""),
        lambda: fs.append("src/main.py", ""),
        lambda: fs.delete("src/main.py"),
        lambda: fs.move("docs/index.md", "free.md"),
        lambda: fs.copy("a.txt", "docs/a.txt"),
        lambda: fs.mkdir("docs/new"),
        lambda: fs.delete("src", recursive=True),
        lambda: fs.move("src", "source"),
    ):
        with pytest.raises(ReadOnlyFileError):
            act()
    assert (disk_tree(root), fs.is_readonly("src/main.py"), fs.stat("docs/index.md").readonly) == (before, True, True)


# -- as part of the runtime --------------------------------------------------------------------------------------------


@tool
def rewrite(path: str, context: ToolContext, good: bool = True) -> ToolResult[str]:
    """Write a file, and fail if told so."""
    context.resources.get(Filesystem).write(path, "rewritten")
    return ToolResult.ok("done") if good else ToolResult.error("no good")


def test_a_failed_call_leaves_the_tree_and_a_good_one_names_its_files(root: Path) -> None:
    """The pipeline rolls the disk back with the call, and records what was touched (S5, S45)."""
    fs, session = HostFilesystem(root), Session()
    before = disk_tree(root)
    failed = run_tool(rewrite, {"path": "new/a.txt", "good": False}, session=session, fs=fs)
    assert (failed.outcome, disk_tree(root)) == ("failed", before)
    kept = run_tool(rewrite, {"path": "/a.txt"}, session=session, fs=fs)
    assert (kept.outcome, kept.changes.files, fs.read("a.txt")) == ("ok", ("a.txt",), "rewritten")


def test_snapshots_of_the_runtime_hold_a_disk_tree(root: Path) -> None:
    """`tool_transaction` goes back to its start, `create_snapshot` to where it was taken, whatever was kept since (S7)."""
    fs, session = HostFilesystem(root), Session()
    before = disk_tree(root, times=True)
    snapshot = create_snapshot(session, fs)
    with tool_transaction(session, fs) as start:
        fs.write("a.txt", "1")
        fs.delete("docs", recursive=True)
        restore_snapshot(session, fs, start)
        assert disk_tree(root, times=True) == before
        fs.write("bin/run", "kept")
        fs.move("src", "source")
    fs.delete("nested", recursive=True)
    restore_snapshot(session, fs, snapshot)
    unlinked = {path: entry for path, entry in disk_tree(root, times=True).items() if path not in ("a.txt", "hard.txt")}
    assert unlinked == {path: entry for path, entry in before.items() if path not in ("a.txt", "hard.txt")}


def test_a_snapshot_from_a_rolled_back_transaction_is_refused(root: Path) -> None:
    """What it saw was never kept, and cannot be made up."""
    fs = HostFilesystem(root)
    with scope() as call:
        fs.write("a.txt", "x")
        snapshot = fs.snapshot()
        call.rollback()
    with pytest.raises(TransactionError, match=r"^Cannot restore: the transaction the snapshot was taken in has been"):
        fs.restore(snapshot)


def test_a_snapshot_of_another_filesystem_is_refused(root: Path) -> None:
    """Neither another tree's snapshot nor anything else is taken for one."""
    fs = HostFilesystem(root)
    with pytest.raises(TransactionError, match=r"^This snapshot belongs to another filesystem and cannot be restored"):
        HostFilesystem(root).restore(fs.snapshot())
    with pytest.raises(TypeError, match=r"^Expected a snapshot of a HostFilesystem, got str$"):
        fs.restore("yesterday")  # type: ignore[arg-type]
