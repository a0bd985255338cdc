"""Claims about a disk tree whose root, journal or process is changed behind our back: nothing hangs, nothing is lost silently,
and nothing outside the root is touched."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from weakincentives.errors import RollbackError
from weakincentives.filesystem import HostFilesystem, JournalError
from weakincentives.filesystem.anchor import JOURNAL_NAME
from weakincentives.transaction import Scope

from .filesystem_conformance import scope

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("before")
    return root


def gone(root: Path) -> str:
    return f"Cannot write to {root}: the directory or its journal was removed meanwhile. Open the filesystem anew."


def record(*fields: str) -> bytes:
    payload = "\0".join(fields).encode()
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


# -- the root ----------------------------------------------------------------------------------------------------------


def test_a_root_that_is_gone_is_told(root: Path) -> None:
    """Neither the first write nor a later one waits for it to come back."""
    early, late = HostFilesystem(root), HostFilesystem(root)
    late.write("b", "1")
    shutil.rmtree(root)
    for fs in (early, late):
        with pytest.raises(JournalError) as caught:
            fs.write("b", "2")
        assert str(caught.value) == gone(root)


def test_a_root_that_was_moved_is_still_the_root(root: Path, tmp_path: Path) -> None:
    """Files and journal both go by the open directory, so a crash after the move is recovered where the files are."""
    fs = HostFilesystem(root)
    root.rename(tmp_path / "moved")
    root.mkdir()
    call = Scope()
    token = call.activate()
    fs.write("a", "after")
    Scope.deactivate(token)
    assert os.listdir(root) == []
    assert {JOURNAL_NAME, "a"} == set(os.listdir(tmp_path / "moved"))
    call.rollback()
    fs.close()
    assert ((tmp_path / "moved" / "a").read_text(), os.listdir(tmp_path / "moved")) == ("before", ["a"])


# -- the journal -------------------------------------------------------------------------------------------------------


def test_a_journal_that_was_removed_is_made_anew(root: Path) -> None:
    """Outside of a transaction nothing was lost with it."""
    fs = HostFilesystem(root)
    fs.write("b", "1")
    shutil.rmtree(root / JOURNAL_NAME)
    fs.write("b", "2")
    with scope() as call:
        fs.write("b", "3")
        call.rollback()
    assert fs.read("b") == "2"


def test_a_rollback_without_its_journal_is_no_success(root: Path) -> None:
    """What cannot be put back is told, never passed over; what can be is."""
    fs = HostFilesystem(root)
    call = Scope()
    token = call.activate()
    fs.write("a", "after")
    fs.write("new", "1")
    shutil.rmtree(root / JOURNAL_NAME)
    with pytest.raises(JournalError) as caught:
        fs.write("a", "more")
    Scope.deactivate(token)
    assert str(caught.value) == gone(root)
    with pytest.raises(RollbackError):
        call.rollback()
    assert not (root / "new").exists()


@pytest.mark.parametrize(
    "fields",
    [
        ("create", "../victim", "", ""),
        ("create", "x/../../victim", "", ""),
        ("create", "/etc/victim", "", ""),
        ("create", "", "", ""),
        ("mkdir", "..", "", ""),
        ("replace", "a", "../../../victim", ""),
        ("replace", "a", "", ""),
        ("remove", "a", "..", ""),
        ("move", "stolen", "", "../victim"),
        ("move", "../victim", "", "a"),
        ("create", "a", "", "b"),
        ("create", "a"),
        ("create", "a", "", "", ""),
    ],
    ids=" ".join,
)
def test_a_forged_record_is_refused(root: Path, tmp_path: Path, fields: tuple[str, ...]) -> None:
    """Invariant 8: a journal that came with a stranger's files does not make us reach out of the root."""
    (tmp_path / "victim").write_text("precious")
    slot = root / JOURNAL_NAME / "0123456789abcdef"
    slot.mkdir(parents=True)
    (slot / "log").write_bytes(record("begin", "t") + record(*fields))
    with pytest.raises(JournalError) as caught:
        HostFilesystem(root)
    assert str(caught.value) == (
        f"Cannot open {root}: its journal {root / JOURNAL_NAME} holds a record that was not written by this program. "
        "To keep the files as they are now, remove that folder."
    )
    assert ((tmp_path / "victim").read_text(), (root / "a").read_text()) == ("precious", "before")


def test_what_is_no_log_is_left_alone(root: Path) -> None:
    """A pipe, a link or a file in the journal's folder neither blocks nor is followed."""
    journal = root / JOURNAL_NAME
    (journal / "pipe").mkdir(parents=True)
    os.mkfifo(journal / "pipe" / "log")
    (journal / "link").symlink_to("/etc")
    (journal / "linked").mkdir()
    (journal / "linked" / "log").symlink_to("/etc/passwd")
    (journal / "file").write_text("")
    fs = HostFilesystem(root)
    fs.write("a", "after")
    assert fs.read("a") == "after"
    assert {"pipe", "link", "linked", "file"} <= set(os.listdir(journal))


def test_closing_in_a_transaction_takes_effect_at_its_end(root: Path) -> None:
    """The journal goes with the last one that needed it."""
    for end in (Scope.rollback, Scope.commit):
        fs = HostFilesystem(root)
        call = Scope()
        token = call.activate()
        fs.write("b", "1")
        fs.close()
        assert (root / JOURNAL_NAME).exists()
        Scope.deactivate(token)
        end(call)
        assert not (root / JOURNAL_NAME).exists()


# -- the process -------------------------------------------------------------------------------------------------------


@forks
def test_a_dead_owner_is_recovered_while_a_process_it_forked_lives(root: Path) -> None:
    """Invariant 7: its child holds none of its locks."""
    ready, say = os.pipe()
    wait, never = os.pipe()
    owner = os.fork()
    if owner == 0:
        Scope().activate()
        HostFilesystem(root).write("a", "after")
        if os.fork() == 0:
            os.write(say, b".")
            os.close(never)
            os.read(wait, 1)
            os._exit(0)
        signal.pause()
    assert os.read(ready, 1) == b"."
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    try:
        fs = HostFilesystem(root)
        assert fs.read("a") == "before"
        fs.write("a", "mine")
    finally:
        for fd in (ready, say, wait, never):
            os.close(fd)


@forks
@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_a_forked_process_does_not_end_its_parents_transaction(root: Path, end: str) -> None:
    """It ends its own copy of the call; the files are the parent's."""
    fs = HostFilesystem(root)
    call = Scope()
    token = call.activate()
    fs.write("a", "after")
    child = os.fork()
    if child == 0:
        try:
            getattr(call, end)()
        except JournalError:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    Scope.deactivate(token)
    assert os.waitstatus_to_exitcode(status) == (3 if end == "commit" else 0)
    assert fs.read("a") == "after"
    call.rollback()
    assert fs.read("a") == "before"


@pytest.mark.parametrize("name", ["lock", "paths", ".gitignore"])
def test_a_link_in_the_journal_is_not_written_through(root: Path, tmp_path: Path, name: str) -> None:
    """A journal that came with a stranger's files does not make us write to, or make, files elsewhere."""
    (tmp_path / "victim").write_text("precious")
    for target in ("victim", "absent"):
        (root / JOURNAL_NAME).mkdir(exist_ok=True)
        (root / JOURNAL_NAME / name).unlink(missing_ok=True)
        (root / JOURNAL_NAME / name).symlink_to(tmp_path / target)
        with suppress(JournalError):
            HostFilesystem(root).write("a", "after")
    assert ((tmp_path / "victim").read_text(), (tmp_path / "absent").exists()) == ("precious", False)
