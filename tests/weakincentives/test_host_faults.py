"""Every call to the system fails once, in each phase of a transaction on disk: nothing is lost, and nothing is half there."""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weakincentives.errors import FilesystemError, RollbackError
from weakincentives.filesystem import (
    FileAccessError,
    FileBusyError,
    HostFilesystem,
    JournalError,
    anchor,
    host,
    journal,
)
from weakincentives.filesystem.anchor import JOURNAL_NAME
from weakincentives.filesystem.exchange import exchange
from weakincentives.transaction import Scope

from .disk_tree import DiskTree, disk_tree, make_tree

FAILING = {
    *("open", "link", "rename", "unlink", "mkdir", "rmdir", "symlink", "readlink", "stat", "fstat", "pwrite", "write"),
    *("ftruncate", "listdir", "read", "fchmod", "chmod", "dup", "exchange"),
}


class FragileSystem:
    """The `os` module, and the exchange of two names that it lacks; the n-th call after arming fails."""

    def __init__(self) -> None:
        self.left = -1
        self.fired = ""
        self.broken: frozenset[str] = frozenset()
        """Calls that fail always."""
        self.reason = errno.EIO

    def arm(self, number: int) -> None:
        self.left = number
        self.fired = ""

    def __getattr__(self, name: str) -> Any:
        real: Any = exchange if name == "exchange" else getattr(os, name)
        if name not in FAILING:
            return real

        def call(*args: Any, **named: Any) -> Any:
            if name in self.broken:
                raise OSError(self.reason, os.strerror(self.reason))
            if self.left > 0:
                self.left -= 1
                if self.left == 0:
                    self.fired = name
                    raise OSError(errno.EIO, "Input/output error")
            return real(*args, **named)

        return call


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FragileSystem:
    fragile = FragileSystem()
    for module in (anchor, host, journal):
        monkeypatch.setattr(module, "os", fragile)
    monkeypatch.setattr(journal, "exchange", fragile.exchange)
    return fragile


def _change(fs: HostFilesystem) -> None:
    fs.write("a.txt", "changed")
    fs.write("new/deep/file.txt", "new")
    fs.append("src/main.py", "more")
    fs.delete("docs/deep", recursive=True)
    fs.move("src", "source")
    fs.copy("nested", "copied")
    fs.write("soft.txt", "again")
    fs.delete("empty", recursive=True)


def _within(call: Scope, act: Callable[[], object]) -> None:
    token = call.activate()
    try:
        act()
    finally:
        Scope.deactivate(token)


def _reopened(root: Path, fs: HostFilesystem) -> DiskTree:
    """What the next opening makes of it."""
    fs.close()
    HostFilesystem(root).close()
    assert not (root / JOURNAL_NAME).exists()
    return disk_tree(root)


def test_a_write_that_fails_anywhere_is_rolled_back(tmp_path: Path, system: FragileSystem) -> None:
    """Whatever call fails while files are changed, the error is a filesystem's own and the rollback is complete."""
    number, fired = 0, set[str]()
    while True:
        number += 1
        root = tmp_path / "root"
        make_tree(root)
        before = disk_tree(root)
        fs = HostFilesystem(root)
        call = Scope()
        system.arm(number)
        with suppress(FilesystemError, RollbackError):
            _within(call, lambda fs=fs: _change(fs))
        system.left = -1
        call.rollback()
        assert disk_tree(root) == before, f"{system.fired}, call {number}"
        assert _reopened(root, fs) == before
        shutil.rmtree(root)
        if not system.fired:
            break
        fired.add(system.fired)
    assert fired >= {"open", "link", "exchange", "rename", "mkdir", "stat", "pwrite", "write", "unlink"}


def test_a_rollback_that_fails_anywhere_is_finished_later(tmp_path: Path, system: FragileSystem) -> None:
    """Whatever call fails during a rollback, it says so or succeeds; the next opening finds the tree as before."""
    number, told = 0, 0
    while True:
        number += 1
        root = tmp_path / "root"
        make_tree(root)
        before = disk_tree(root)
        fs = HostFilesystem(root)
        call = Scope()
        _within(call, lambda fs=fs: _change(fs))
        system.arm(number)
        try:
            call.rollback()
        except RollbackError:
            told += 1
        else:
            assert disk_tree(root) == before, f"{system.fired}, call {number}"
        system.left = -1
        assert _reopened(root, fs) == before, f"{system.fired}, call {number}"
        shutil.rmtree(root)
        if not system.fired:
            break
    assert told > 5


def test_a_commit_that_fails_anywhere_is_whole(
    tmp_path: Path, system: FragileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever call fails during a commit, the tree is the changed one, also for the next opening, and work goes on."""
    caplog.set_level(logging.CRITICAL)
    number = 0
    while True:
        number += 1
        root = tmp_path / "root"
        make_tree(root)
        fs = HostFilesystem(root)
        call = Scope()
        _within(call, lambda fs=fs: _change(fs))
        after = _entries(root)
        system.arm(number)
        call.commit()
        system.left = -1
        fs.write("later", "x")
        fs.delete("later")
        fs.close()
        HostFilesystem(root).close()
        assert _entries(root) == after, f"{system.fired}, call {number}"
        shutil.rmtree(root)
        if not system.fired:
            break
    assert number > 5


def _entries(root: Path) -> DiskTree:
    """The tree without the number of names a file has: the journal may still hold one."""
    return {path: entry[:3] for path, entry in disk_tree(root).items()}


def test_a_journal_that_cannot_be_ended_refuses_further_writes(
    tmp_path: Path, system: FragileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """When the end of a transaction can be written in no way, nothing is built on it; the owner is told what to do."""
    caplog.set_level(logging.CRITICAL)
    fs = HostFilesystem(tmp_path)
    call = Scope()
    _within(call, lambda: fs.write("a", "x"))
    system.broken = frozenset({"ftruncate", "unlink"})
    call.commit()
    system.broken = frozenset()
    with pytest.raises(JournalError) as refused:
        fs.write("b", "next")
    assert str(refused.value) == (
        f"Cannot write to {tmp_path}: its journal {tmp_path}/{JOURNAL_NAME} could not be written earlier. "
        "Open the filesystem anew."
    )


class Interrupt:
    """Raises Ctrl-C before the n-th line that the journal and its filesystem execute."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(
            ("/filesystem/journal.py", "/filesystem/host.py", "/filesystem/exchange.py")
        ):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.fixture
def no_garbage() -> Generator[None]:
    """What other tests left is not closed in the middle of this one, where it would catch the interrupt."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("phase", ["change", "rollback", "commit"])
def test_an_interrupt_anywhere_leaves_the_tree_before_or_after(tmp_path: Path, phase: str) -> None:
    """Interrupted before any line, a change or rollback ends as before, a commit as after; others can write then."""
    number, fired, stuck = 0, True, 0
    while fired:
        number += 3 if phase == "change" else 1
        root = tmp_path / "root"
        make_tree(root)
        before = _entries(root)
        fs = HostFilesystem(root)
        call = Scope()
        interrupt, tracing = Interrupt(number), sys.gettrace()
        end = call.commit if phase == "commit" else call.rollback

        def change(fs: HostFilesystem = fs) -> None:
            fs.write("a.txt", "changed")
            fs.write("new/file.txt", "new")
            fs.delete("docs", recursive=True)
            fs.move("src", "source")

        if phase != "change":
            _within(call, change)
        after = _entries(root)
        sys.settrace(interrupt)
        with suppress(KeyboardInterrupt):
            if phase == "change":
                _within(call, change)
            else:
                end()
        sys.settrace(tracing)
        fired = interrupt.left <= 0
        if phase == "change":
            end()
        assert _entries(root) == (after if phase == "commit" and call.committed else before), number
        try:
            fs.write("a.txt", "others")
        except FileBusyError:
            stuck += 1
        fs.close()
        HostFilesystem(root).close()
        shutil.rmtree(root)
    # Before its first statement nobody can catch it: a commit interrupted there is settled by the next process.
    assert (number > 20, stuck <= (1 if phase == "commit" else 0)) == (True, True)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_the_system_denies_is_told(tmp_path: Path) -> None:
    """A file of somebody else can neither be read nor replaced by the trick of a rename, and the words say so; one's own
    that cannot be read can be written."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "secret").write_text("x")
    (root / "secret").chmod(0o600)
    (root / "fixed").write_text("x")
    root.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.seteuid(65534)
            fs = HostFilesystem(root)
            for act in (lambda: fs.read("secret"), lambda: fs.write("fixed", "y"), lambda: fs.append("secret", "y")):
                try:
                    act()
                except FileAccessError as error:
                    os.write(says, f"{error}\n".encode())
            os.write(says, f"{fs.is_readonly('fixed')} {fs.stat('fixed').readonly}\n".encode())
            os.close(os.open(root / "blind", os.O_WRONLY | os.O_CREAT, 0o200))
            careful = HostFilesystem(root, fsync=True)
            careful.write("blind", "y")
            os.write(says, f"{careful.stat('blind').size}".encode())
        finally:
            os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    said = os.read(heard, 4096).decode().splitlines()
    os.close(heard)
    assert said == [
        "Cannot read secret: the system denies access",
        "Choose another path.",
        "Cannot write fixed: the system denies access",
        "Choose another path.",
        "Cannot write secret: the system denies access",
        "Choose another path.",
        "True True",
        "1",
    ]


def test_a_journal_elsewhere_than_on_the_disk_is_refused(tmp_path: Path) -> None:
    """What could not be renamed back is refused before anything is changed."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk here")
    folder = other / f"journal-{os.getpid()}"
    fs = HostFilesystem(tmp_path, journal=folder)
    try:
        with pytest.raises(JournalError) as refused:
            fs.write("a", "x")
    finally:
        shutil.rmtree(folder)
    assert str(refused.value) == f"Cannot use {folder} as a journal of {tmp_path}: it is on another disk."
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError) as refused:
        HostFilesystem(tmp_path, journal=tmp_path / "file")
    assert str(refused.value) == f"Cannot use {tmp_path}/file as a journal: it is not a directory."


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            errno.EXDEV,
            "Cannot change a.txt: it lies on another disk than the top directory\n"
            "Copy it to another path and work on the copy.",
        ),
        (errno.EIO, "Cannot write a.txt: Input/output error\nThis call changed nothing there."),
        (errno.EROFS, "Cannot write a.txt: Read-only file system\nThis call changed nothing there."),
        (errno.EACCES, "Cannot write a.txt: the system denies access\nChoose another path."),
    ],
)
def test_what_the_disk_refuses_is_told(tmp_path: Path, system: FragileSystem, reason: int, message: str) -> None:
    """The model reads what is wrong with the disk, and that nothing was changed."""
    make_tree(tmp_path)
    before = disk_tree(tmp_path)
    fs = HostFilesystem(tmp_path)
    system.broken, system.reason = frozenset({"link"}), reason
    with pytest.raises(FilesystemError) as refused:
        fs.write("a.txt", "x")
    assert (str(refused.value), disk_tree(tmp_path)) == (message, before)


def test_a_disk_without_hard_links_is_served_too(tmp_path: Path, system: FragileSystem) -> None:
    """Where a file cannot have two names it is renamed away before it is replaced, and comes back all the same."""
    make_tree(tmp_path)
    before = disk_tree(tmp_path)
    fs = HostFilesystem(tmp_path)
    system.broken, system.reason = frozenset({"link"}), errno.EPERM
    call = Scope()
    _within(call, lambda: _change(fs))
    assert (tmp_path / "a.txt").read_text() == "again"
    call.rollback()
    assert disk_tree(tmp_path) == before


def test_a_disk_that_cannot_exchange_names_is_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two names cannot change places, a file is renamed over the other, and that comes back all the same."""
    monkeypatch.setattr(journal, "exchange", lambda *_: False)
    make_tree(tmp_path)
    before = disk_tree(tmp_path)
    fs = HostFilesystem(tmp_path)
    call = Scope()
    _within(call, lambda: _change(fs))
    assert (tmp_path / "a.txt").read_text() == "again"
    call.rollback()
    assert disk_tree(tmp_path) == before


def test_a_directory_put_in_the_way_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody puts in the place of a file just before it is replaced stays theirs; the write is refused."""

    def meddled(fd: int, name: str, other_fd: int, other_name: str) -> bool:
        if (tmp_path / "file").is_file():
            (tmp_path / "file").unlink()
            (tmp_path / "file/theirs").mkdir(parents=True)
        return exchange(fd, name, other_fd, other_name)

    monkeypatch.setattr(journal, "exchange", meddled)
    (tmp_path / "file").write_text("before")
    fs = HostFilesystem(tmp_path)
    call = Scope()
    with pytest.raises(RollbackError):
        _within(call, lambda: fs.write("file", "ours"))
    with pytest.raises(RollbackError):
        call.rollback()
    assert (tmp_path / "file/theirs").is_dir()
    (tmp_path / "file/theirs").rmdir()
    (tmp_path / "file").rmdir()
    fs.close()
    HostFilesystem(tmp_path).close()
    assert (tmp_path / "file").read_text() == "before"


def test_a_file_removed_in_the_last_moment_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody removes just before it is replaced hinders neither the write nor the rollback."""

    def meddled(fd: int, name: str, other_fd: int, other_name: str) -> bool:
        (tmp_path / "file").unlink()
        return exchange(fd, name, other_fd, other_name)

    monkeypatch.setattr(journal, "exchange", meddled)
    (tmp_path / "file").write_text("before")
    fs = HostFilesystem(tmp_path)
    call = Scope()
    _within(call, lambda: fs.write("file", "ours"))
    assert (tmp_path / "file").read_text() == "ours"
    call.rollback()
    assert (tmp_path / "file").read_text() == "before"


def test_a_journal_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    """What is not understood is neither undone nor thrown away."""
    slot = tmp_path / JOURNAL_NAME / "0123456789abcdef"
    slot.mkdir(parents=True)
    payload = b"exchange\0a\0b"
    (slot / "log").write_bytes(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)
    with pytest.raises(JournalError) as refused:
        HostFilesystem(tmp_path)
    assert str(refused.value) == (
        f"Cannot recover {tmp_path}: its journal {tmp_path}/{JOURNAL_NAME} was written by a newer program."
    )
    assert (slot / "log").stat().st_size == 8 + len(payload)
