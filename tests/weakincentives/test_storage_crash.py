"""A durable session whose process, disk or file fails: what was acknowledged is there, half of anything never is."""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weakincentives.errors import SessionStorageError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.session import Session, log_slice

# Newer Pythons warn of any fork in a process with threads; these children touch nothing of theirs.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@log_slice
@dataclass(frozen=True, slots=True)
class Done:
    number: int


@dataclass(frozen=True, slots=True)
class Item:
    number: int
    text: str = ""


def _open(path: Path) -> tuple[Session, InMemoryFilesystem]:
    session, files = Session.open(path), InMemoryFilesystem()
    session.attach("files", files)
    return session, files


def _write_for_ever(path: Path, acknowledge: int) -> None:
    session, files = _open(path)
    number = len(session[Item])
    while True:
        with session.transaction():
            session[Item].append(Item(number, "x" * (number % 50)))
            files.write("number", str(number))
        session.dispatch(Done(number))
        os.write(acknowledge, b".")
        number += 1


def _killed_writer(path: Path, after: int) -> int:
    """Let a process write until it has acknowledged `after` times at least, kill it, and say how often it has."""
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(heard)
            _write_for_ever(path, says)
        finally:
            os._exit(1)
    os.close(says)
    count = 0
    while count < after:
        count += len(os.read(heard, after - count))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(heard, 65536):
        count += len(more)
    os.close(heard)
    return count


@forks
def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Killed at random points again and again, the file holds a prefix of the writes with all acknowledged ones."""
    path = tmp_path / "session"
    chance = random.Random(20)
    written, recorded = 0, 0
    for _ in range(30):
        acknowledged = _killed_writer(path, chance.randint(1, 40))
        session, files = _open(path)
        items = session[Item].all()
        assert items == tuple(Item(number, "x" * (number % 50)) for number in range(len(items)))
        assert files.read("number") == str(len(items) - 1)  # state and files of one commit are together
        done = [event.number for event in session[Done].all()]
        assert done == sorted(set(done))
        assert len(items) >= written + acknowledged
        assert len(done) >= recorded + acknowledged
        written, recorded = len(items), len(done)
        session.close()


def _sample(path: Path) -> list[tuple[int, tuple[Item, ...], str, tuple[Done, ...]]]:
    """A small session; for each position: the size of the file, and what there was."""
    session, files = _open(path)
    seen = [(path.stat().st_size, session[Item].all(), "", session[Done].all())]
    for number in range(4):
        with session.transaction():
            session[Item].append(Item(number, "é" * number))
            files.write("number", str(number))
        seen.append((path.stat().st_size, session[Item].all(), files.read("number"), session[Done].all()))
        session.dispatch(Done(number))
        seen.append((path.stat().st_size, session[Item].all(), files.read("number"), session[Done].all()))
    session.close()
    return seen


def test_a_file_cut_anywhere_opens_at_the_last_whole_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut after every single byte, the session is what it was after the last record that fits, and can go on."""
    caplog.set_level(logging.ERROR)
    seen = _sample(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for size in range(seen[0][0], len(whole)):
        path.write_bytes(whole[:size])
        _, items, number, done = [state for state in seen if state[0] <= size][-1]
        session, files = _open(path)
        assert (session[Item].all(), session[Done].all()) == (items, done)
        assert (files.read("number") if files.exists("number") else "") == number
        session[Item].append(Item(99))
        session.close()
        session = Session.open(path)
        assert session[Item].all() == (*items, Item(99))
        session.close()


def test_a_torn_tail_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Dropping the rest of an unfinished write is logged as a warning that names the file and the bytes."""
    path = tmp_path / "session"
    size = _sample(path)[-1][0]
    with open(path, "ab") as file:
        file.write(b"\xff\x05\x00")
    Session.open(path).close()
    assert caplog.messages == [f"{path}: the last write was cut short; dropped 3 bytes of it"]
    assert path.stat().st_size == size


@pytest.mark.parametrize(
    "tail", [b"\0" * 100, b"\xff" * 100, b"\xff" + b"\0" * 8, b"\xff\x01\0\0\0\0\0\0\0a", b"garbage"]
)
def test_a_tail_that_holds_no_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    """Zeros or rubbish after the last record, as a power cut may leave them, are no records."""
    path = tmp_path / "session"
    seen = _sample(path)
    with open(path, "ab") as file:
        file.write(tail)
    session = Session.open(path)
    assert session[Item].all() == seen[-1][1]
    session.close()


def test_the_making_of_a_file_can_be_cut_short(tmp_path: Path) -> None:
    """A header of which only a part was written is a session that never began."""
    path = tmp_path / "session"
    Session.open(path).close()
    header = path.read_bytes()
    for size in range(len(header)):
        path.write_bytes(header[:size])
        session = Session.open(path)
        session[Item].append(Item(1))
        session.close()
        session = Session.open(path)
        assert session[Item].all() == (Item(1),)
        session.close()


def test_damage_in_the_middle_is_an_error_wherever_it_is(tmp_path: Path) -> None:
    """Whatever byte of an earlier record is flipped, opening says where the damage is and changes nothing."""
    seen = _sample(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "session"
    start, stop = seen[3][0], seen[4][0]
    for place in range(start, stop):
        damaged = bytearray(whole)
        damaged[place] ^= 0x15
        path.write_bytes(damaged)
        with pytest.raises(SessionStorageError) as raised:
            Session.open(path)
        assert str(raised.value) == (
            f"Cannot read {path}: the record at byte {start} is damaged and more records follow it. "
            "Restore the file from a copy."
        )
        assert path.read_bytes() == damaged


def test_a_record_without_sense_is_an_error(tmp_path: Path) -> None:
    """A record that is whole and refers to what is not there is refused with its place."""
    path = tmp_path / "session"
    size = _sample(path)[-1][0]
    payload = b'{"w":[[77,0,1]]}'
    with open(path, "ab") as file:
        file.write(struct.pack("<BII", 0xFF, len(payload), zlib.crc32(payload, len(payload))) + payload)
    with pytest.raises(SessionStorageError) as raised:
        Session.open(path)
    assert str(raised.value) == (
        f"Cannot read {path}: the record at byte {size} makes no sense (IndexError: list index out of range)."
    )


@contextmanager
def _disk_full_after(path: Path, more: int) -> Iterator[None]:
    """Let files grow to `more` bytes beyond the present size of this one, and not further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_refuses_the_commit_and_leaves_no_trace(tmp_path: Path) -> None:
    """However much of the record still fits, the commit raises, memory is rolled back and the file is as before."""
    path = tmp_path / "session"
    session, files = _open(path)
    session[Item].append(Item(0))
    whole = path.read_bytes()
    for fits in range(0, 60, 7):
        with pytest.raises(SessionStorageError) as raised, _disk_full_after(path, fits), session.transaction():
            session[Item].append(Item(1))
            files.write("a", "b")
        assert str(raised.value) == f"Cannot write to the session file {path}: File too large. Nothing was committed."
        assert (session[Item].all(), files.list(), path.read_bytes()) == ((Item(0),), [], whole)
    with session.transaction():
        session[Item].append(Item(2))
    session.close()
    session = Session.open(path)
    assert session[Item].all() == (Item(0), Item(2))
    session.close()


def test_two_files_of_one_transaction_get_their_records_together(tmp_path: Path) -> None:
    """When the second file is full, the first one's record is taken back, on disk as in memory."""
    small, large = tmp_path / "small", tmp_path / "large"
    first, second = Session.open(small), Session.open(large)
    second[Item].append(Item(0, "x" * 500))
    whole = small.read_bytes()
    with pytest.raises(SessionStorageError), _disk_full_after(large, 5), first.transaction():
        first[Item].append(Item(1))
        second[Item].append(Item(2))
    assert (first[Item].all(), second[Item].all(), small.read_bytes()) == ((), (Item(0, "x" * 500),), whole)
    with first.transaction():
        first[Item].append(Item(3))
        second[Item].append(Item(4))
    first.close()
    second.close()
    with Session.open(small) as one, Session.open(large) as two:
        assert (one[Item].all(), two[Item].latest()) == ((Item(3),), Item(4))


def test_a_full_disk_refuses_every_other_kind_of_record(tmp_path: Path) -> None:
    """LOG items, registers and resets that cannot be written do not happen."""
    path = tmp_path / "session"
    session, files = _open(path)
    session.dispatch(Done(1))
    session.registers.update("used", lambda _: (1, None))
    position = session.position
    with _disk_full_after(path, 3):
        with pytest.raises(SessionStorageError):
            session.dispatch(Done(2))
        with pytest.raises(SessionStorageError):
            session.registers.update("used", lambda _: (2, None))
        with pytest.raises(SessionStorageError):
            session.reset()
        with pytest.raises(SessionStorageError):
            files.write("a", "b")
    assert session[Done].all() == (Done(1),)
    assert session.registers.get("used") == 1
    assert (files.list(), session.position) == ([], position)
    session.close()


@forks
def test_a_forked_process_cannot_write(tmp_path: Path) -> None:
    """A child process that inherited the session is refused: two writers would tear the file."""
    path = tmp_path / "session"
    session = Session.open(path)
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session[Item].append(Item(1))
        except SessionStorageError as error:
            os.write(says, str(error).encode())
        finally:
            os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    said = os.read(heard, 4096).decode()
    os.close(heard)
    session.close()
    assert said == (f"Cannot write to {path} in a forked process: the session belongs to the process that opened it.")


class Interrupt:
    """Raises Ctrl-C before the n-th line that the storage executes."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(("/session/storage.py", "/session/record.py", "/session/shapes.py")):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_anywhere_in_a_commit_leaves_the_file_whole(tmp_path: Path) -> None:
    """Interrupted before any line of the storage, a commit is in the file whole or not at all, and work goes on."""
    fired = True
    after = 0
    while fired:
        after += 1
        path = tmp_path / str(after)
        session, files = _open(path)
        interrupt, before = Interrupt(after), sys.gettrace()
        try:
            with session.transaction():
                session[Item].append(Item(1))
                files.write("number", "1")
                sys.settrace(interrupt)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        fired = interrupt.left <= 0
        session[Item].append(Item(2))
        session.dispatch(Done(3))
        position = session.position
        session.close()
        session, files = _open(path)
        whole = (session[Item].all(), files.list())
        assert whole in (((Item(2),), []), ((Item(1), Item(2)), ["number"]))
        assert (session[Done].all(), session.position) == ((Done(3),), position)
        session.close()
    assert after > 30
