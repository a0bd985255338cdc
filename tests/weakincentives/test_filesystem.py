"""Claims about the filesystem in memory: the conformance suite, and what only it promises."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from weakincentives.errors import FencedWriteError, FilesystemError, ReadOnlyError
from weakincentives.filesystem import (
    FileIsDirectoryError,
    FileMissingError,
    FileStat,
    Filesystem,
    InMemoryFilesystem,
    NotDirectoryError,
    ReadOnlyFileError,
)
from weakincentives.transaction import Scope

from .filesystem_conformance import FilesystemConformance, MakeFs, bystander, scope, tree


class TestInMemory(FilesystemConformance):
    """The filesystem in memory passes the suite."""

    @pytest.fixture
    def make_fs(self) -> MakeFs:
        return InMemoryFilesystem


def test_only_text_and_bytes_are_content() -> None:
    """Anything else is the caller's mistake, told as such."""
    with pytest.raises(TypeError, match=r"^The content of a file is text or bytes, got int\.$"):
        InMemoryFilesystem().write("a", 5)  # type: ignore[arg-type]


class DictFilesystem(Filesystem):
    """The least a user must write: files in a dict, directories by their files or by mkdir."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self.inner = InMemoryFilesystem(files)

    def read_bytes(self, path: str) -> bytes:
        return self.inner.read_bytes(path)

    def write_bytes(self, path: str, content: bytes) -> None:
        self.inner.write_bytes(path, content)

    def delete(self, path: str, recursive: bool = False) -> None:
        self.inner.delete(path, recursive)

    def list(self, path: str = "/") -> Any:
        return self.inner.list(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def is_readonly(self, path: str) -> bool:
        return self.inner.is_readonly(path)


class TestLeastBackend(FilesystemConformance):
    """What the protocol derives from the abstract methods passes the suite too."""

    @pytest.fixture
    def make_fs(self) -> MakeFs:
        return DictFilesystem


# -- construction ------------------------------------------------------------------------------------------------------


def test_starts_with_files() -> None:
    """Files given at the start are there, text and bytes, under any spelling."""
    fs = InMemoryFilesystem({"/a.txt": "x", "./d/e/b.bin": b"\xff"})
    assert tree(fs) == {"a.txt": b"x", "d": None, "d/e": None, "d/e/b.bin": b"\xff"}


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"a": "", "a/b": ""}, NotDirectoryError),
        ({"a/b": "", "a": ""}, FileIsDirectoryError),
        ({"a/b/c/d": "", "a/b": ""}, FileIsDirectoryError),
        ({"a/b": "", "a/b/c/d": ""}, NotDirectoryError),
        ({"/": ""}, FileIsDirectoryError),
    ],
)
def test_impossible_files_are_refused(files: dict[str, str], error: type[FilesystemError]) -> None:
    """A path cannot be a file and a directory."""
    with pytest.raises(error):
        InMemoryFilesystem(files)


def test_filling_equals_writing() -> None:
    """Files given at the start make the same filesystem as files written."""
    files = {"a/b/c": "1", "a/d": "2", "e": "3", "a/b/f/g": "4"}
    written = InMemoryFilesystem()
    for path, content in files.items():
        written.write(path, content)
    assert InMemoryFilesystem(files).snapshot() == written.snapshot()


# -- protection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readonly", "path", "expected"),
    [
        (True, "anything/at/all", True),
        (False, "a.txt", False),
        ("*.lock", "deep/down/uv.lock", True),
        ("*.lock", "uv.lock.txt", False),
        (["docs/**"], "docs/a/b.md", True),
        (["docs/**"], "other/docs/b.md", False),
        (["docs"], "docs/a/b.md", True),
        (["docs"], "lib/docs/a.md", True),
        (["/docs"], "lib/docs/a.md", False),
        (["docs/"], "docs/new.md", True),
        (["docs/*.md"], "docs/a/b.md", False),
        (["**/secret/*.pem"], "secret/x.pem", True),
        (["**/secret/*.pem"], "a/b/secret/x.pem", True),
        (["**/secret/*.pem"], "a/secret/b/x.pem", False),
        (["**/**/*.pem"], "x.pem", True),
        (["a", "b"], "b", True),
    ],
)
def test_readonly_globs(readonly: bool | str | Sequence[str], path: str, expected: bool) -> None:
    """A glob protects these paths, whether or not anything is there."""
    assert InMemoryFilesystem(readonly=readonly).is_readonly(path) is expected


def test_protected_files_refuse_every_write() -> None:
    """No kind of write reaches a protected file, and the model is told what to do instead."""
    fs = InMemoryFilesystem({"docs/a.md": "x", "b.md": "y"}, readonly=["docs/**"])
    before = tree(fs)
    for act in (
        lambda: fs.write("docs/a.md", "z"),
        lambda: fs.write_bytes("docs/a.md", b"z"),
        lambda: fs.append("docs/a.md", "z"),
        lambda: fs.delete("docs/a.md"),
        lambda: fs.move("docs/a.md", "c.md"),
        lambda: fs.move("b.md", "docs/a.md", overwrite=True),
        lambda: fs.copy("b.md", "docs/a.md", overwrite=True),
    ):
        with pytest.raises(ReadOnlyFileError) as caught:
            act()
        assert (
            str(caught.value)
            == "Cannot change docs/a.md: it is read-only\nCopy it to another path and work on the copy."
        )
        assert isinstance(caught.value, PermissionError)
    assert tree(fs) == before


@pytest.mark.parametrize("act", ["delete", "move"])
def test_protected_files_keep_their_directory(act: str) -> None:
    """A directory that holds a protected file cannot be removed as a whole."""
    fs = InMemoryFilesystem({"d/a.md": "", "d/keep.lock": ""}, readonly="*.lock")
    with pytest.raises(ReadOnlyFileError) as caught:
        fs.delete("d", recursive=True) if act == "delete" else fs.move("d", "e")
    assert str(caught.value) == (
        "Cannot remove d: it holds d/keep.lock, which is read-only\nRemove the other files one by one."
    )
    assert fs.list("d") == ["a.md", "keep.lock"]


def test_protected_files_can_be_read_and_copied() -> None:
    """Protection is against writes only, and shows in `stat`."""
    fs = InMemoryFilesystem({"docs/a.md": "x"}, readonly="docs")
    fs.copy("docs/a.md", "a.md")
    assert (fs.read("docs/a.md"), fs.read("a.md")) == ("x", "x")
    assert fs.stat("docs/a.md") == FileStat("docs/a.md", "file", 1, True, 0o444)
    assert fs.stat("docs").mode == 0o555
    assert fs.stat("a.md") == FileStat("a.md", "file", 1, False, 0o644)


# -- bystanders --------------------------------------------------------------------------------------------------------


def test_commit_keeps_what_others_wrote() -> None:
    """A commit replays its own paths on what others committed meanwhile (S7)."""
    fs = InMemoryFilesystem({"mine": "0", "log": "0", "d/seen": "0"})
    with scope() as call:
        fs.write("mine", "1")
        fs.append("log", "+mine")
        fs.delete("d", recursive=True)
        bystander(fs.write, "theirs", "1")
        bystander(fs.append, "log", "+theirs")
        bystander(fs.write, "d/unseen", "1")
        call.commit()
    assert tree(fs) == {
        "mine": b"1",
        "theirs": b"1",
        "log": b"0+theirs+mine",
        "d": None,
        "d/unseen": b"1",
    }


def test_rollback_keeps_what_others_wrote() -> None:
    """A rollback removes only its own writes (S7)."""
    fs = InMemoryFilesystem({"mine": "0"})
    with scope() as call:
        fs.write("mine", "1")
        fs.write("new/mine", "1")
        bystander(fs.write, "new/theirs", "1")
        call.rollback()
    assert tree(fs) == {"mine": b"0", "new": None, "new/theirs": b"1"}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("a", "a/b"), ("a/b", "a")],
)
def test_commit_that_cannot_be_replayed_is_refused(mine: str, theirs: str) -> None:
    """Where another made a file of a directory, or the reverse, the commit fails and changes nothing."""
    fs = InMemoryFilesystem()
    with scope() as call:
        fs.write(mine, "mine")
        bystander(fs.write, theirs, "theirs")
        with pytest.raises(FilesystemError):
            call.commit()
    assert fs.read(theirs) == "theirs"
    assert fs.search("") == [theirs]


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_snapshot_and_restore() -> None:
    """Outside of a transaction a restore puts every file back."""
    fs = InMemoryFilesystem({"a": "0", "d/b": "0"})
    taken = fs.snapshot()
    fs.write("a", "1")
    fs.delete("d", recursive=True)
    fs.write("e/f", "1")
    fs.restore(taken)
    assert tree(fs) == {"a": b"0", "d": None, "d/b": b"0"}
    assert fs.snapshot() == taken


def test_snapshot_differs_after_a_write() -> None:
    """Snapshots are equal exactly when the files are."""
    fs = InMemoryFilesystem({"a": "0"})
    taken = fs.snapshot()
    fs.write("a", "1")
    changed = fs.snapshot()
    fs.write("a", "0")
    assert (taken == changed, taken == fs.snapshot(), taken == "files") == (False, True, False)


def test_restore_in_the_scope_that_took_it() -> None:
    """A savepoint by hand: later writes go, earlier ones and the bystander's stay."""
    fs = InMemoryFilesystem({"a": "0"})
    with scope() as call:
        fs.write("early", "1")
        taken = fs.snapshot()
        fs.write("a", "1")
        fs.write("late/x", "1")
        bystander(fs.write, "a", "theirs")
        bystander(fs.write, "theirs", "1")
        fs.restore(taken)
        assert tree(fs) == {"a": b"0", "early": b"1"}
        call.commit()
    assert tree(fs) == {"a": b"theirs", "early": b"1", "theirs": b"1"}


def test_restore_before_the_first_write_keeps_what_others_wrote() -> None:
    """Going back to the start of a scope does not undo what others committed before its first write."""
    fs = InMemoryFilesystem({"a": "0"})
    with scope() as call:
        taken = fs.snapshot()
        bystander(fs.write, "theirs", "1")
        fs.write("a", "1")
        fs.restore(taken)
        call.commit()
    assert tree(fs) == {"a": b"0", "theirs": b"1"}


def test_restore_to_where_the_scope_began() -> None:
    """A snapshot from before the scope takes back the scope's writes only."""
    fs = InMemoryFilesystem({"a": "0"})
    taken = fs.snapshot()
    with scope() as call:
        fs.write("a", "1")
        bystander(fs.write, "a", "theirs")
        bystander(fs.write, "theirs", "1")
        fs.restore(taken)
        call.commit()
    assert tree(fs) == {"a": b"theirs", "theirs": b"1"}


def test_restore_forward() -> None:
    """One can go back and then forward again, and the commit keeps what was shown."""
    fs = InMemoryFilesystem({"a": "0", "gone": "0"})
    with scope() as call:
        fs.write("first", "1")
        early = fs.snapshot()
        fs.write("a", "1")
        fs.delete("gone")
        fs.write("d/e", "1")
        late = fs.snapshot()
        fs.restore(early)
        for number in range(5):
            fs.write(f"other{number}", "1")
        fs.restore(late)
        seen = tree(fs)
        bystander(fs.write, "theirs", "1")
        call.commit()
    assert seen == {"a": b"1", "first": b"1", "d": None, "d/e": b"1"}
    assert tree(fs) == {**seen, "theirs": b"1"}


def test_restore_of_an_outer_snapshot_is_undone_with_the_inner_scope() -> None:
    """A nested call that restores what its caller took, and fails, leaves the caller's writes."""
    fs = InMemoryFilesystem({"a": "0", "kind": "file"})
    with scope() as outer:
        taken = fs.snapshot()
        fs.write("a", "1")
        fs.delete("kind")
        fs.write("kind/now/dir", "1")
        before = tree(fs)
        with scope(outer) as inner:
            fs.restore(taken)
            restored = tree(fs)
            inner.rollback()
        assert (restored, tree(fs)) == ({"a": b"0", "kind": b"file"}, before)
        with scope(outer) as inner:
            fs.restore(taken)
            inner.commit()
        outer.commit()
    assert tree(fs) == {"a": b"0", "kind": b"file"}


def test_restore_of_another_filesystems_snapshot() -> None:
    """A snapshot may be put into another filesystem, also in a transaction."""
    source = InMemoryFilesystem({"a": "1", "d/b": "2"})
    for transactional in (False, True):
        target = InMemoryFilesystem({"a": "0", "c/x": "0"})
        with scope() as call:
            if transactional:
                target.restore(source.snapshot())
            call.commit()
        if not transactional:
            target.restore(source.snapshot())
        assert tree(target) == tree(source)


def test_restore_wants_a_snapshot() -> None:
    """Anything but a snapshot of files is the programmer's error."""
    with pytest.raises(TypeError, match="Expected a snapshot of an InMemoryFilesystem, got dict"):
        InMemoryFilesystem().restore({})  # pyright: ignore[reportArgumentType]


def test_restore_is_a_write() -> None:
    """A read-only or ended call cannot restore, even to what already is."""
    fs = InMemoryFilesystem({"a": "0"})
    taken = fs.snapshot()
    with scope(readonly=True), pytest.raises(ReadOnlyError):
        fs.restore(taken)
    with scope() as call:
        call.rollback()
        with pytest.raises(FencedWriteError):
            fs.restore(taken)


def test_transactions_take_no_snapshot_of_it() -> None:
    """Joining a scope costs nothing: the writes lie in the scope's overlay."""
    fs = InMemoryFilesystem()
    call = Scope()
    call.join(fs)
    assert call.branch_of(fs) is None


def test_fork() -> None:
    """A fork has the same files and protection, and from then on its own life."""
    fs = InMemoryFilesystem({"a": "0"}, readonly="*.lock")
    with scope() as call:
        fs.write("b", "seen by this call")
        other = fs.fork()
        call.rollback()
    other.write("a", "1")
    assert (tree(fs), tree(other), other.is_readonly("x.lock")) == (
        {"a": b"0"},
        {"a": b"1", "b": b"seen by this call"},
        True,
    )


# -- the durable log ---------------------------------------------------------------------------------------------------


class Recording:
    """A commit log that keeps operations as JSON text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def append(self, txn_id: str, changes: Sequence[tuple[Any, Sequence[Any]]], /) -> None:
        for _, ops in changes:
            self.lines += [json.dumps(InMemoryFilesystem.encode_op(op)) for op in ops]

    def replayed(self) -> InMemoryFilesystem:
        fs = InMemoryFilesystem({"overwritten by": "the checkpoint"})
        for line in self.lines:
            fs.store.apply(InMemoryFilesystem.decode_op(json.loads(line)), None)
        return fs


def test_log_replays_every_operation() -> None:
    """A checkpoint and the logged operations make an equal filesystem."""
    fs = InMemoryFilesystem({"a": "0", "d/b": "0", "d/e/c": b"\xff"})
    fs.mkdir("empty")
    log = Recording()
    log.lines.append(json.dumps(fs.encode_op(fs.checkpoint())))
    fs.store.log = log
    taken = fs.snapshot()
    fs.write("a", "text\n")
    fs.write_bytes("bin", b"\x00\xff")
    fs.append("a", "more")
    fs.mkdir("m/n")
    fs.delete("bin")
    with scope() as call:
        fs.move("d", "moved")
        fs.copy("moved", "copied")
        fs.delete("copied/e", recursive=True)
        dropped = fs.snapshot()
        fs.write("dropped", "x")
        fs.restore(dropped)
        call.commit()
    assert log.replayed().snapshot() == fs.snapshot()
    fs.restore(taken)
    assert tree(fs) == {"a": b"0", "d": None, "d/b": b"0", "d/e": None, "d/e/c": b"\xff", "empty": None}
    assert log.replayed().snapshot() == fs.snapshot()
    assert not any("dropped" in line for line in log.lines)


def test_log_form_is_pinned() -> None:
    """Text is readable in the log, other bytes are base64; old logs stay readable."""
    fs = InMemoryFilesystem()
    log = Recording()
    fs.store.log = log
    fs.write("a", "é")
    fs.write("b", b"\xff")
    fs.append("a", "!")
    fs.mkdir("d")
    fs.delete("b")
    fs.delete("d")
    assert [json.loads(line) for line in log.lines] == [
        {"op": "put", "path": "a", "text": "é"},
        {"op": "put", "path": "b", "base64": base64.b64encode(b"\xff").decode()},
        {"op": "append", "path": "a", "text": "!"},
        {"op": "mkdir", "path": "d"},
        {"op": "remove", "path": "b"},
        {"op": "batch", "ops": [{"op": "prune", "path": "d"}]},
    ]
    assert fs.encode_op(fs.checkpoint()) == {"op": "reset", "ops": [{"op": "put", "path": "a", "text": "é!"}]}


def test_log_grows_with_what_changed() -> None:
    """A restore among many files logs only the files that differ."""
    fs = InMemoryFilesystem({f"f{number}": "0" for number in range(1000)})
    fs.store.log = log = Recording()
    taken = fs.snapshot()
    fs.write("f7", "1")
    fs.restore(taken)
    assert [json.loads(line) for line in log.lines[1:]] == [
        {"op": "batch", "ops": [{"op": "put", "path": "f7", "text": "0"}]}
    ]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"op": "explode"},
        {"op": "put", "path": "a"},
        {"op": "put", "path": 5, "text": ""},
        {"op": "put", "path": "a", "text": 5},
        {"op": "put", "path": "a", "base64": "no!"},
        {"op": "put", "path": "../a", "text": ""},
        {"op": "batch", "ops": None},
        {"op": "batch", "ops": ["put"]},
        {"op": ["put"]},
        [],
    ],
)
def test_log_refuses_what_it_did_not_write(data: Any) -> None:
    """A damaged operation is an error, never a guess."""
    with pytest.raises((ValueError, FilesystemError)):
        InMemoryFilesystem.decode_op(data)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_survive_pickling() -> None:
    """An error that crosses a process says the same on the other side."""
    with pytest.raises(FileMissingError) as caught:
        InMemoryFilesystem().read("no")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (FileMissingError, str(caught.value))


def test_threads_lose_no_append() -> None:
    """Writers outside of transactions and in their own ones all leave their mark (S7)."""
    fs = InMemoryFilesystem()

    def work(name: int) -> None:
        for step in range(20):
            with scope() as call:
                fs.append("log", f"{name}.{step}\n")
                fs.write(f"d{step}/{name}", "x")
                call.commit()
            fs.append("log", f"{name}.{step}!\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{name}.{step}{mark}" for name in range(4) for step in range(20) for mark in ("", "!")}
    lines = fs.read("log").splitlines()
    assert (len(lines), set(lines), len(fs.glob("d*/*"))) == (160, expected, 80)
