"""The undo journal of a disk tree: decides how each change is recorded, undone, kept, and recovered after a crash.

INVARIANTS (docs/decisions/0014-disk-journal.md says why; tests cite the numbers)
 1. A step is recorded before it is done and struck after it is undone; the inverse of the last one recorded does nothing
    where it was not done or is undone already.
 2. No step writes through an inode that was there before.
 3. A transaction is undecided while its log holds records; cutting the log to nothing commits it.
 4. A commit that a durable session logs too notes the session first, and is decided by that session.
 5. Undo is the reverse of what was recorded; it tries everything, and what is left stays in the journal.
 6. A path belongs to one open transaction, in all processes, and to one line of nested scopes in it.
 7. A journal is recovered only when its owner is dead, and before anybody changes a path it may hold.
 8. Paths in records are walked from the root without following links.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import stat
import struct
import sys
import threading
import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, Protocol, TypeAlias, final
from weakref import WeakSet

from ..errors import FencedWriteError, RollbackError
from ..transaction import Scope
from .anchor import JOURNAL_NAME, Anchor, shown
from .errors import FileBusyError, JournalError
from .exchange import begin_writing, exchange

_logger = logging.getLogger(__name__)

Verb: TypeAlias = Literal[
    "create",  # a file where nothing was
    "replace",  # a file in place of another one, which is kept
    "remove",  # a file, link or directory, which is kept
    "mkdir",  # a directory where nothing was
    "move",  # from one name to another where nothing was
]


class Witness(Protocol):
    """A durable session, which knows whether a transaction was committed."""

    @property
    def session_id(self) -> str: ...

    def committed(self, txn_id: str, /) -> bool: ...


@final
class Step:
    """One change of the tree. Exists before the change is made."""

    __slots__ = ("kept", "number", "offset", "path", "target", "verb")

    def __init__(self, number: int, verb: Verb, path: str, kept: str = "", target: str = "") -> None:
        self.number = number
        """Rises with every step of the tree in this process: their order."""
        self.verb: Verb = verb
        self.path = path
        self.kept = kept
        """The name of what was there before, in the slot."""
        self.target = target
        self.offset = 0
        """Where its record stands in the log."""


@final
class HostSnapshot:
    """How far the changes of a disk tree had come. Opaque; while it lives, what later changes displace is kept."""

    __slots__ = ("__weakref__", "journal", "line", "number", "scope")

    def __init__(self, journal: Journal, number: int, scope: Scope | None, line: tuple[Work, ...]) -> None:
        self.journal = journal
        self.number = number
        self.scope = scope
        self.line = line
        """The open transaction it was taken in, if that had changed anything."""


_FRAME = struct.Struct("<II")


def _record(*parts: str) -> bytes:
    payload = os.fsencode("\0".join(parts))
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _records(data: bytes) -> Generator[tuple[int, list[str]]]:
    """All whole records from the start, and where they stand; a torn one belongs to a step that was not begun (invariant 1)."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if not length or len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield at, [os.fsdecode(part) for part in payload.split(b"\0")]
        at += _FRAME.size + length


@final
class Slot:
    """A folder of the journal: one log, and what its steps displaced. Serves one transaction at a time."""

    __slots__ = ("_counter", "end", "fd", "head", "locks", "log", "name")

    def __init__(self, name: str, folder: int) -> None:
        self.name = name
        self.fd = self.log = self.locks = -1
        os.mkdir(name, 0o700, dir_fd=folder)
        try:
            self.fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            self.log = os.open("log", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
            fcntl.flock(self.log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locks = os.open(_PATHS, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except BaseException:
            self.close()
            raise
        self.end = 0
        self.head = b""
        """What is written together with the first record."""
        self._counter = itertools.count()

    def fresh(self) -> str:
        """A name that nothing in the slot has had before."""
        return str(next(self._counter))

    def write(self, data: bytes) -> None:
        """Add to the log: whole, or not at all."""
        if not self.end:
            data = self.head + data
        try:
            written = os.pwrite(self.log, data, self.end)
            while written < len(data):  # the disk is nearly full: the next attempt says what is wrong
                written += os.pwrite(self.log, data[written:], self.end + written)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self.log, self.end)
            raise
        self.end += len(data)

    def cut_back(self, offset: int) -> None:
        """Forget the records from there on. No space is needed for that."""
        self.end = 0 if offset <= len(self.head) else offset
        os.ftruncate(self.log, self.end)

    def cut(self) -> None:
        os.ftruncate(self.log, 0)
        self.end = 0

    def close(self) -> None:
        fds, self.locks, self.log, self.fd = (self.locks, self.log, self.fd), -1, -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


_LOCK = "lock"
_PATHS = "paths"
_IGNORE = ".gitignore"
_OWN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SLOTS = {_LOCK, _PATHS, _IGNORE}
_FLOCK = struct.Struct("@hhqqi0q")
_WHOLE = _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0)
# Other systems lay this out differently, or have locks that belong to the process.
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None


@functools.lru_cache(1024)
def _byte_of(path: str) -> int:
    """Which byte of the lock file stands for a path."""
    # Where a disk ignores case two spellings are one file; elsewhere the doubt costs a retry.
    digest = hashlib.blake2b(os.fsencode(path.casefold()), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def _take(fd: int, path: str, *, shared: bool) -> bool:
    """Lock a path against other transactions, here and in other processes; never waits."""
    try:
        if _SET_LOCK is None:  # all or nothing where single bytes cannot be had
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            fcntl.fcntl(fd, _SET_LOCK, _FLOCK.pack(kind, 0, _byte_of(path), 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _release(fd: int) -> None:
    if _SET_LOCK is None:
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        fcntl.fcntl(fd, _SET_LOCK, _WHOLE)


def _related(one: str, other: str) -> bool:
    """Equal, or one inside the other."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


# -- transactions ------------------------------------------------------------------------------------------------------


@final
class Transaction:
    """What one tree of scopes, or one write outside of any, does to the disk. Takes a slot when it first writes."""

    __slots__ = ("_locked", "_slot", "journal", "live", "mutex", "pid", "txn_id")

    def __init__(self, journal: Journal, txn_id: str) -> None:
        self.journal = journal
        self.txn_id = txn_id
        self.mutex = threading.RLock()
        self.live: list[Work] = []
        self.pid = os.getpid()
        self._slot: Slot | None = None
        self._locked: dict[str, bool] = {}

    @property
    def slot(self) -> Slot:
        if self._slot is None:
            self._slot = self.journal.take_slot()
            self._slot.head = _record("begin", self.txn_id)
        return self._slot

    def claim(self, path: str, work: Work, seen: int = -1) -> bool:
        """Make a path ours until the end (invariants 6, 7). True: somebody may have changed it since it was looked at,
        when `seen` transactions of this filesystem had ended."""
        if len(self.live) > work.depth:
            # A sibling is open too; rolling one back must not touch what the other did.
            line = set(work.line())
            for other in self.live:
                if other not in line and any(
                    _related(path, step.path) or (step.target and _related(path, step.target)) for step in other.steps
                ):
                    raise FileBusyError.at(shown(path))
        if self._locked.get(path):
            return False
        fd = self.slot.locks
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in self._locked:
                break
            if not _take(fd, above, shared=True):
                raise FileBusyError.at(shown(path))
            self._locked[above] = False
        if not _take(fd, path, shared=False):
            raise FileBusyError.at(shown(path))
        self._locked[path] = True
        return self.journal.reap() or self.journal.ended != seen

    def strand(self) -> None:
        """Leave everything as it is, log and locks, until this filesystem is closed (invariant 5)."""
        if self._slot is not None:
            self.journal.stranded.append(self._slot)

    def finish(self, steps: Sequence[Step], *, keep: bool) -> None:
        """Decide (invariant 3), let go of the paths, and clear the slot."""
        slot = self._slot
        if slot is None:
            return
        journal = self.journal
        usable = True
        if slot.end:
            try:
                slot.cut()
                if keep:  # undoing once more would do no harm
                    journal.sync(slot.log)
            except OSError:
                usable = self._cut_otherwise(slot)
        # What was displaced is of no use any more, unless somebody has a snapshot from before.
        if keep and (journal.snapshots or journal.has_old):
            journal.remember(slot, steps)
        else:
            for step in steps:
                if step.kept:
                    _discard(slot.fd, step.kept)
        journal.ended += 1
        _release(slot.locks)
        journal.give_back(slot, usable=usable)
        self._slot = None

    def _cut_otherwise(self, slot: Slot) -> bool:
        """A slot without a log is decided as well; it serves nobody any more."""
        try:
            os.unlink("log", dir_fd=slot.fd)
        except OSError:
            self.strand()
            self.journal.fail()
            raise
        return False


@final
class Work:
    """What one scope does to the tree: a `Branch` of it. Nested ones are savepoints."""

    __slots__ = ("closed", "depth", "ours", "parent", "steps", "txn", "undone")

    def __init__(self, txn: Transaction, parent: Work | None) -> None:
        self.txn = txn
        self.parent = parent
        self.depth = 1 if parent is None else parent.depth + 1
        self.steps: list[Step] = []
        self.ours: set[str] = set()
        """Files whose present content this scope wrote: what was there before it is kept already."""
        self.closed = False
        self.undone = False
        with txn.mutex:
            txn.live.append(self)

    def line(self) -> Generator[Work]:
        """This one and those around it."""
        work: Work | None = self
        while work is not None:
            yield work
            work = work.parent

    def check_open(self) -> None:
        if any(work.closed for work in self.line()):
            raise FencedWriteError(
                "Cannot write to the files: the tool call this write belongs to has ended. Finish writing before the handler returns."
            )
        self._check_owner()
        self.txn.journal.check_usable()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _begin(self, verb: Verb, path: str, kept: str = "", target: str = "") -> Step:
        journal = self.txn.journal
        slot = self.txn.slot
        step = Step(next(journal.numbers), verb, path, kept, target)
        step.offset = slot.end or len(slot.head)
        record = _record(verb, path, kept, target)
        self.steps.append(step)
        try:
            slot.write(record)
            journal.sync(slot.log)
        except BaseException:
            self.steps.pop()
            raise
        return step

    def _cancel(self, step: Step) -> None:
        """The step was refused: its inverse must not run."""
        self.steps.remove(step)
        self.txn.slot.cut_back(step.offset)

    def put(self, fd: int, path: str, name: str, temporary: str, *, exists: bool) -> None:
        """Give a file in the slot its place in the tree; what is there is kept."""
        slot = self.txn.slot
        if path in self.ours:
            _replace(slot.fd, temporary, fd, name)
            return
        if exists:
            kept = slot.fresh()
            self._begin("replace", path, kept)
            try:
                os.link(name, kept, src_dir_fd=fd, dst_dir_fd=slot.fd, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                os.rename(name, kept, src_dir_fd=fd, dst_dir_fd=slot.fd)
                os.rename(temporary, name, src_dir_fd=slot.fd, dst_dir_fd=fd)
            else:
                _replace(slot.fd, temporary, fd, name)
        else:
            step = self._begin("create", path)
            try:
                os.link(temporary, name, src_dir_fd=slot.fd, dst_dir_fd=fd, follow_symlinks=False)
            except FileExistsError:
                self._cancel(step)
                raise FileBusyError.at(shown(path)) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    self._cancel(step)
                    raise
                os.rename(temporary, name, src_dir_fd=slot.fd, dst_dir_fd=fd)
            else:
                os.unlink(temporary, dir_fd=slot.fd)
        self.ours.add(path)

    def remove(self, fd: int, path: str, name: str, *, whole: bool = True) -> None:
        """Take a file, link or whole directory out of the tree."""
        slot = self.txn.slot
        kept = slot.fresh()
        self._begin("remove", path, kept)
        os.rename(name, kept, src_dir_fd=fd, dst_dir_fd=slot.fd)
        self._disown(path, whole=whole)

    def mkdir(self, fd: int, path: str, name: str, mode: int = 0o777) -> None:
        step = self._begin("mkdir", path)
        try:
            os.mkdir(name, mode, dir_fd=fd)
        except FileExistsError:
            self._cancel(step)

    def link(self, fd: int, path: str, name: str, text: str) -> None:
        """Make a symbolic link where nothing is."""
        step = self._begin("create", path)
        try:
            os.symlink(text, name, dir_fd=fd)
        except FileExistsError:
            self._cancel(step)
            raise FileBusyError.at(shown(path)) from None

    def move(self, fd: int, path: str, name: str, target_fd: int, target: str, target_name: str) -> None:
        self._begin("move", path, "", target)
        os.rename(name, target_name, src_dir_fd=fd, dst_dir_fd=target_fd)
        self._disown(path, whole=True)

    def _disown(self, path: str, *, whole: bool) -> None:
        """What has this name next, or lies below it if a whole directory went, was not written here."""
        self.ours.discard(path)
        if whole and self.ours:
            self.ours = {other for other in self.ours if other != path and not other.startswith(path + "/")}

    # -- how it ends -----------------------------------------------------------------------------------------------

    def rewind(self, number: int) -> None:
        """Undo the steps after `number`, here and in scopes inside that are still open, last one first."""
        with self.txn.mutex:
            self._undo([work for work in self.txn.live if self in work.line()], number)

    def _undo(self, works: Sequence[Work], number: int = 0) -> None:
        txn = self.txn
        causes: list[Exception] = []
        left: list[tuple[Work, Step]] = []
        try:
            while works:
                work = max(works, key=lambda each: each.steps[-1].number if each.steps else 0)
                if not work.steps or work.steps[-1].number <= number:
                    break
                step = work.steps[-1]
                try:
                    whole = txn.journal.undo(txn.slot, step)
                except OSError as error:
                    error.add_note(f"while undoing: {step.verb} {shown(step.path)}")
                    causes.append(error)
                    whole = False
                work.steps.pop()
                if whole or not causes:
                    self._strike(step, is_last=not left)
                else:
                    left.append((work, step))
        finally:  # nothing is lost: a later attempt, or the next opening, tries again
            for work, step in reversed(left):
                work.steps.append(step)
            for work in works:
                work.ours.clear()
        if causes:
            raise RollbackError(_NOT_UNDONE, causes)

    def _strike(self, step: Step, *, is_last: bool) -> None:
        """Take an undone step out of the log: undone again after steps before it, it would destroy what they put back."""
        txn = self.txn
        with suppress(OSError):  # undoing the last one again does no harm, and it is tried with the next one
            if is_last and not any(each.steps and each.steps[-1].number > step.number for each in txn.live):
                txn.slot.cut_back(step.offset)
            else:
                txn.slot.write(_undone(step))

    def _end_inside(self) -> None:
        """Undo what scopes inside did that have not ended, or could not be undone: it does not count."""
        if len(self.txn.live) > self.depth:
            inside = [work for work in self.txn.live if work is not self and self in work.line()]
            for work in inside:
                work.closed = work.undone = True
            self._undo(inside)
            for work in inside:
                self.txn.live.remove(work)

    def _check_owner(self) -> None:
        """A forked process ends its copy of a scope, not the transaction: that is its parent's."""
        if self.txn.pid != os.getpid():
            raise JournalError.forked(self.txn.journal.root)

    def prepare(self, scope: Scope, /) -> None:
        self._check_owner()
        with self.txn.mutex:
            self.closed = True
            self._end_inside()
            if self.parent is not None or not self.steps:
                return
            sessions = sorted({log_id for log in scope.logs() if (log_id := getattr(log, "session_id", ""))})
            journal, slot = self.txn.journal, self.txn.slot
            self.make_last()
            if sessions:
                slot.write(_record("ask", *sessions))
                journal.sync(slot.log)

    def make_last(self) -> None:
        """Bring content and names to the disk, as far as was asked for; before the commit says that they are there."""
        journal = self.txn.journal
        journal.sync_content(self.steps)
        journal.sync_directories(step.target or step.path for step in self.steps)

    def settle(self) -> None:
        pass

    def commit(self) -> None:
        try:
            self._commit()
        except OSError:
            raise
        except BaseException:  # a signal comes once: what is decided must be written
            self._commit()
            raise

    def _commit(self) -> None:
        txn = self.txn
        with txn.mutex:
            self.closed = True
            if self not in txn.live:
                return
            if self.parent is not None:  # a filesystem that ends with a nested call: the tree does not
                self._merge_into(self.parent)
                return
            txn.finish(self.steps, keep=True)
            txn.live.remove(self)

    def rollback(self) -> None:
        txn = self.txn
        if txn.pid != os.getpid():
            self.closed = True
            return
        with txn.mutex:
            if self not in txn.live:
                return
            self.closed = self.undone = True
            changed = [step.path for step in self.steps]
            try:
                self.rewind(0)
            except RollbackError:
                if self.parent is None:
                    txn.strand()
                raise
            if self.parent is None:
                txn.journal.sync_directories(changed)
                txn.finish((), keep=False)
            # Last, so that an interrupted rollback can be run again.
            for work in [work for work in txn.live if self in work.line()]:
                work.closed = work.undone = True
                txn.live.remove(work)

    def merge(self, parent: Scope, /) -> None:
        self._check_owner()
        with self.txn.mutex:
            self.closed = True
            outer = self.parent
            assert outer is not None, f"{parent!r} was enlisted before the scope inside"
            if self in self.txn.live:
                self._end_inside()
                self._merge_into(outer)

    def _merge_into(self, outer: Work) -> None:
        slot = self.txn._slot
        kept: list[Step] = []
        for step in self.steps:
            # An older state of the file is kept already.
            if step.verb == "replace" and step.path in outer.ours and slot is not None:
                _discard(slot.fd, step.kept)
            else:
                kept.append(step)
            if step.verb in ("remove", "move"):
                outer._disown(step.path, whole=True)
        side_by_side = kept and outer.steps and outer.steps[-1].number > kept[0].number
        outer.steps += kept
        if side_by_side:
            outer.steps.sort(key=_number)
        self.steps = []
        self.txn.live.remove(self)


_NO_LINKS = {errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
_NOT_UNDONE = "Files could not be put back; what they were is kept in the journal, and the next opening tries again"


def _number(step: Step) -> int:
    return step.number


# -- the journal -------------------------------------------------------------------------------------------------------


@final
class Journal:
    """All slots of one filesystem object in one process. Makes its folder at the first write."""

    def __init__(self, anchor: Anchor, folder: str | None, *, fsync: bool, witness: Witness | None) -> None:
        self.root = anchor.path
        self._anchor = anchor
        self._is_inside = folder is None
        self._path = os.path.join(anchor.path, JOURNAL_NAME) if folder is None else folder
        self._fsync = fsync
        self._witness = witness
        self._mutex = threading.RLock()
        self.numbers = itertools.count(1)
        self.ended = 0
        """How many transactions have ended: who looked before one did must look again."""
        self.snapshots: WeakSet[HostSnapshot] = WeakSet()
        self.idle: Callable[[], object] | None = None
        """What to do as soon as no transaction is open."""
        self._pid = os.getpid()
        self._forget_all()
        _journals.add(self)

    def mark(self, scope: Scope | None, line: tuple[Work, ...]) -> HostSnapshot:
        snapshot = HostSnapshot(self, next(self.numbers), scope, line)
        self.snapshots.add(snapshot)
        return snapshot

    def _forget_all(self) -> None:
        self._fd = -1
        self._guard = -1
        self._free: list[Slot] = []
        self.stranded: list[Slot] = []
        self._slots: dict[str, Slot] = {}
        self._attic: Slot | None = None
        self._old: list[Step] = []
        self._failed = False

    # -- slots -----------------------------------------------------------------------------------------------------

    def take_slot(self) -> Slot:
        with self._mutex:
            while self._free:
                slot = self._free.pop()
                if os.fstat(slot.fd).st_nlink:
                    return slot
                del self._slots[slot.name]  # somebody has removed the journal: make another one
                slot.close()
            return self._new_slot()

    def leave_to_parent(self) -> None:
        """A forked process begins with nothing of its parent's, and keeps none of its locks alive."""
        self._mutex = threading.RLock()
        for slot in self._slots.values():
            slot.close()
        self._close_folder()
        self._pid = os.getpid()
        self._forget_all()

    def _new_slot(self) -> Slot:
        with self._guarded(make=True):
            slot = Slot(os.urandom(8).hex(), self._fd)
            self._slots[slot.name] = slot
            return slot

    def give_back(self, slot: Slot, *, usable: bool = True) -> None:
        with self._mutex:
            pile = self._free if usable else self.stranded
            if slot not in pile:  # an interrupted end is run again
                pile.append(slot)
            if self.idle is not None and not self.busy:
                self.idle()

    @property
    def busy(self) -> bool:
        """True while a transaction of this filesystem is open."""
        with self._mutex:
            own = len(self._free) + len(self.stranded) + (self._attic is not None)
            return self._pid == os.getpid() and len(self._slots) > own

    def fail(self) -> None:
        """The end of a transaction could not be written: nothing may be added that a recovery would misread."""
        self._failed = True

    def check_usable(self) -> None:
        if self._failed:
            raise JournalError(
                f"Cannot write to {self.root}: its journal {self._path} could not be written earlier. Open the filesystem anew."
            )

    @contextmanager
    def _guarded(self, *, make: bool, wait: bool = True) -> Generator[bool]:
        """Hold the one lock under which slots come, go and are recovered. False: there is no journal, or no waiting for it."""
        while True:
            if self._fd < 0 and not self._open(make=make):
                yield False
                return
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if os.fstat(self._guard).st_nlink:
                break
            self._close_folder()  # its last user removed it meanwhile
        try:
            yield True
        finally:
            if self._guard >= 0:
                fcntl.flock(self._guard, fcntl.LOCK_UN)

    def _open(self, *, make: bool) -> bool:
        while True:
            # By the root's handle: whatever has its name by now, the journal lies where the files do.
            above, name = (self._anchor.fd, JOURNAL_NAME) if self._is_inside else (None, self._path)
            if make:
                try:
                    os.mkdir(name, 0o700, dir_fd=above)
                except FileExistsError:
                    pass
                except FileNotFoundError:
                    raise JournalError.gone(self.root) from None
            try:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            except FileNotFoundError:
                if make:
                    continue
                return False
            except NotADirectoryError:
                raise JournalError(f"Cannot use {self._path} as a journal: it is not a directory.") from None
            guard = -1
            try:
                if os.fstat(fd).st_dev != os.fstat(self._anchor.fd).st_dev:
                    raise JournalError(f"Cannot use {self._path} as a journal of {self.root}: it is on another disk.")
                guard = os.open(_LOCK, _OWN, 0o600, dir_fd=fd)
                os.close(os.open(_PATHS, _OWN, 0o600, dir_fd=fd))
                with suppress(FileExistsError):
                    ignore = os.open(_IGNORE, _OWN | os.O_EXCL, 0o600, dir_fd=fd)
                    try:
                        os.write(ignore, b"*\n")
                    finally:
                        os.close(ignore)
            except BaseException as error:
                for each in (guard, fd):
                    if each >= 0:
                        os.close(each)
                if isinstance(error, FileNotFoundError):  # the folder was removed between the two
                    continue
                if isinstance(error, OSError) and error.errno == errno.ELOOP:
                    raise JournalError.forged(self.root, self._path) from None
                raise
            self._fd, self._guard = fd, guard
            return True

    def _close_folder(self) -> None:
        for fd in (self._guard, self._fd):
            if fd >= 0:
                os.close(fd)
        self._guard = self._fd = -1

    def close(self, *, wait: bool) -> None:
        """Remove what is not in use, and the folder if nobody uses it; what cannot be had without waiting is left for
        the next opening."""
        with self._mutex:
            if self._fd < 0 or self._pid != os.getpid():
                return
            self._old = []
            for slot in self.stranded:  # the next opening finds them
                slot.close()
                del self._slots[slot.name]
            self.stranded = []
            if self._attic is not None:
                self._free.append(self._attic)
                self._attic = None
            free, self._free = self._free, []
            for slot in free:
                self._slots.pop(slot.name, None)
            with self._guarded(make=False, wait=wait) as there:
                if there:
                    for slot in free:
                        _discard(self._fd, slot.name)
                    if not self._slots and set(os.listdir(self._fd)) <= _NO_SLOTS:
                        for name in (_IGNORE, _PATHS, _LOCK):
                            with suppress(FileNotFoundError):
                                os.unlink(name, dir_fd=self._fd)
                        with suppress(OSError):
                            if self._is_inside:
                                os.rmdir(JOURNAL_NAME, dir_fd=self._anchor.fd)
                            else:
                                os.rmdir(self._path)
            for slot in free:
                slot.close()
            if not self._slots:
                self._close_folder()

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish what dead owners left: keep what was decided, undo the rest."""
        with self._mutex, self._guarded(make=False) as there:
            if there:
                for name in sorted(os.listdir(self._fd)):
                    if name not in self._slots and name not in _NO_SLOTS:
                        self._recover_slot(name)

    def reap(self) -> bool:
        """The same, if there is anybody else's slot at all (invariant 7). Cheap if there is none; True if there was one."""
        with self._mutex:
            links = os.fstat(self._fd).st_nlink
            if links == 1 or links > 2 + len(self._slots):  # some disks do not count directories
                self.recover()
                return True
            return False

    def _recover_slot(self, name: str) -> None:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            return  # not a slot: not ours to touch
        log = -1
        try:
            try:
                log = os.open("log", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            except FileNotFoundError:
                pass  # its owner died before it began
            except OSError:
                return
            else:
                if not stat.S_ISREG(os.fstat(log).st_mode):
                    return
                try:
                    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return  # its owner is alive
                self._resolve(fd, log, _read(log))
            _discard(self._fd, name)
        finally:
            if log >= 0:
                os.close(log)
            os.close(fd)

    def _resolve(self, fd: int, log: int, data: bytes) -> None:
        """Undo what one log holds, unless it was decided."""
        txn_id, sessions, steps = "", [""][:0], dict[int, Step]()
        end = 0
        for offset, (verb, *rest) in _records(data):
            end = offset + len(_record(verb, *rest))
            match verb:
                case "begin":
                    txn_id = rest[0]
                case "ask":
                    sessions = rest
                case "create" | "replace" | "remove" | "mkdir" | "move":
                    if not _is_ours(verb, rest):  # written by somebody else, to have us reach out of the root
                        raise JournalError.forged(self.root, self._path)
                    step = steps[offset] = Step(len(steps) + 1, verb, *rest)
                    step.offset = offset
                case "undone":
                    steps.pop(int(rest[0]) if rest[0].isdecimal() else -1, None)
                case _:
                    raise JournalError(
                        f"Cannot recover {self.root}: its journal {self._path} was written by a newer program."
                    )
        if sessions:
            witness = self._witness
            if witness is None or witness.session_id not in sessions:
                raise JournalError.undecided(self.root, ", ".join(sessions), self._path)
            if witness.committed(txn_id):
                os.ftruncate(log, 0)
                return
        causes: list[Exception] = []
        for step in reversed(steps.values()):
            try:
                whole = self._undo(fd, step, sure=False)
            except OSError as error:
                error.add_note(f"while undoing: {step.verb} {shown(step.path)}")
                causes.append(error)
                continue
            # As `Work` does: what is undone must not be undone again by the next one who recovers.
            if not causes:
                os.ftruncate(log, end := step.offset)
            elif whole:
                with suppress(OSError):
                    end += os.pwrite(log, _undone(step), end)
        if causes:
            raise RollbackError(_NOT_UNDONE, causes)
        self.sync_directories(step.path for step in steps.values())
        os.ftruncate(log, 0)
        if steps:
            _logger.warning("%s: rolled back %d changes of an interrupted transaction", self.root, len(steps))

    # -- undo ------------------------------------------------------------------------------------------------------

    def undo(self, slot: Slot, step: Step) -> bool:
        return self._undo(slot.fd, step, sure=True)

    def _undo(self, slot: int, step: Step, *, sure: bool) -> bool:
        """The inverse of a step; nothing if it was not done, or is undone already. `sure`: it is known that it was done.

        False: a directory stays, because something is in it.
        """
        directory, _, name = step.path.rpartition("/")
        try:
            fd = self._anchor.directory(directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            if sure and isinstance(error, NotADirectoryError):  # somebody has put something else in its place
                raise
            if step.kept and _there(slot, step.kept):
                raise
            if step.verb == "move" and self._is_there(step.target):
                raise
            return True
        try:
            match step.verb:
                case "create":
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=fd)
                case "mkdir":
                    try:
                        os.rmdir(name, dir_fd=fd)
                    except OSError as error:
                        # What others put there is theirs, and the directory with it.
                        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                            return False
                        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                            raise
                case "replace" | "remove":
                    try:
                        os.rename(step.kept, name, src_dir_fd=slot, dst_dir_fd=fd)
                    except FileNotFoundError:
                        if not os.fstat(slot).st_nlink:  # with the journal went what was there before
                            raise
                    # Renaming one of two names of a file to the other leaves both.
                    if os.access(step.kept, os.F_OK, dir_fd=slot, effective_ids=True):
                        os.unlink(step.kept, dir_fd=slot)
                case "move":
                    self._move_back(step.target, fd, name)
            return True
        finally:
            os.close(fd)

    def _is_there(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        try:
            fd = self._anchor.directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return _there(fd, name)
        finally:
            os.close(fd)

    def _move_back(self, path: str, target_fd: int, target_name: str) -> None:
        directory, _, name = path.rpartition("/")
        try:
            fd = self._anchor.directory(directory)
        except FileNotFoundError:
            return
        try:
            if _there(fd, name) and not _there(target_fd, target_name):
                os.rename(name, target_name, src_dir_fd=fd, dst_dir_fd=target_fd)
        finally:
            os.close(fd)

    # -- power cuts ------------------------------------------------------------------------------------------------

    def sync(self, fd: int) -> None:
        if self._fsync:
            os.fdatasync(fd)

    def sync_content(self, steps: Sequence[Step]) -> None:
        """Make what was written last; not before the commit, because what is undone needs nothing of it.

        Without `fsync` too the disk is told to begin with what took the place of something: as it is by a program that
        overwrites a file, or renames one over it.
        """
        if not self._fsync:
            for path in _replaced(steps):
                with suppress(OSError):
                    self._with_file(path, begin_writing)
        elif any(step.verb == "move" for step in steps):  # files may have other names by now
            os.sync()
        else:
            for path in dict.fromkeys(step.path for step in steps if step.verb in ("create", "replace")):
                with suppress(FileNotFoundError, NotADirectoryError):
                    self._with_file(path, os.fsync)

    def _with_file(self, path: str, act: Callable[[int], None]) -> None:
        directory, _, name = path.rpartition("/")
        walked = self._anchor.directory(directory)
        try:
            if _is_file(walked, name):
                flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                try:
                    fd = os.open(name, os.O_RDONLY | flags, dir_fd=walked)
                except PermissionError:  # some files can be written but not read
                    fd = os.open(name, os.O_WRONLY | flags, dir_fd=walked)
                try:
                    act(fd)
                finally:
                    os.close(fd)
        finally:
            os.close(walked)

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Make the names of what was changed last."""
        if not self._fsync:
            return
        for directory in sorted({path.rpartition("/")[0] for path in paths}):
            try:
                walked = self._anchor.directory(directory)
            except OSError:
                continue
            try:
                fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walked)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            finally:
                os.close(walked)

    # -- what snapshots need ---------------------------------------------------------------------------------------

    def remember(self, slot: Slot, steps: Sequence[Step]) -> None:
        """Keep what a committed transaction displaced, as long as a snapshot from before it is alive."""
        with self._mutex:
            oldest = min((snapshot.number for snapshot in self.snapshots), default=None)
            if self._attic is None and oldest is not None and steps:
                self._attic = self._new_slot()
            attic = self._attic
            for step in steps:
                if oldest is None or step.number <= oldest or attic is None:
                    if step.kept:
                        _discard(slot.fd, step.kept)
                    continue
                if step.kept:
                    name = attic.fresh()
                    try:
                        os.rename(step.kept, name, src_dir_fd=slot.fd, dst_dir_fd=attic.fd)
                    except FileNotFoundError:  # dropped when a scope inside was kept
                        continue
                    step.kept = name
                insort(self._old, step, key=_number)
            if attic is not None:
                # Sorted by number: what no snapshot can ask for any more stands in front.
                gone = len(self._old) if oldest is None else bisect_right(self._old, oldest, key=_number)
                for step in self._old[:gone]:
                    if step.kept:
                        _discard(attic.fd, step.kept)
                del self._old[:gone]

    @property
    def has_old(self) -> bool:
        return bool(self._old)

    def remembered(self, number: int) -> list[tuple[Step, int]]:
        """The committed steps after `number`, and where what they displaced is."""
        with self._mutex:
            attic = self._attic
            return [] if attic is None else [(step, attic.fd) for step in self._old if step.number > number]


_journals: WeakSet[Journal] = WeakSet()


def _after_fork() -> None:
    for journal in tuple(_journals):
        journal.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def _is_ours(verb: str, fields: Sequence[str]) -> bool:
    """Whether a record is one that `Work` writes: paths below the root, and a number for what is kept."""
    if len(fields) != 3:
        return False
    path, kept, target = fields
    paths = (path, target) if verb == "move" else (path,)
    return (
        not any(part in ("", ".", "..") for each in paths for part in each.split("/"))
        and (kept.isdecimal() if verb in ("replace", "remove") else not kept)
        and (verb == "move" or not target)
    )


def _replaced(steps: Sequence[Step]) -> set[str]:
    """Where the files are now that took the place of others."""
    paths: set[str] = set()
    for step in steps:
        if step.verb == "replace":
            paths.add(step.path)
        elif step.verb == "move" and paths:
            paths = {
                step.target + path[len(step.path) :] if path == step.path or path.startswith(step.path + "/") else path
                for path in paths
            }
    return paths


def _replace(slot: int, temporary: str, fd: int, name: str) -> None:
    """Put a file of the slot in the place of another one, which loses this name; there is always one of the two.

    Renaming it over the other would do, but many disks then begin to write the new content at once, and a rollback waits for
    that and for the space to be given back. An exchange leaves it in memory until the commit.
    """
    try:
        exchanged = exchange(slot, temporary, fd, name)
    except FileNotFoundError:  # somebody else has removed what is to be replaced
        exchanged = False
    if not exchanged:
        os.rename(temporary, name, src_dir_fd=slot, dst_dir_fd=fd)
        return
    try:
        os.unlink(temporary, dir_fd=slot)
    except OSError:  # somebody else has put a directory there
        exchange(slot, temporary, fd, name)
        raise


def _undone(step: Step) -> bytes:
    return _record("undone", str(step.offset))


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0) if size else b""


def _is_file(fd: int, name: str) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)


def _there(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _discard(fd: int, name: str) -> None:
    """Remove a file, or a directory with all it holds, if it is there; what resists is left for the next opening."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return
    except OSError:
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                return
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            return
        try:
            with suppress(OSError):
                os.fchmod(inner, 0o700)
            for below in os.listdir(inner):
                _discard(inner, below)
        finally:
            os.close(inner)
        with suppress(OSError):
            os.rmdir(name, dir_fd=fd)
