"""What a directory tree keeps beside itself: contents by digest, and a log of what the tree must be.

The log's last manifest is the one to go back to while a transaction is open. A line that is not whole is the last
one, written before any program ran, and is dropped. Contents are copies (clones where the disk can), never links to
living files: programs write in place. One owner at a time, by a lock on a file in the folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import orjson

from .tree_errors import TreeBusyError, TreeStoreError, shown
from .tree_nodes import Manifest, apply_difference, dump_difference

_FORMAT = 1
_CHUNK = 1 << 20
_CLONE = 0x40049409  # FICLONE
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
_ROOM = 1 << 16


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=20)


def content_digest(fd: int, size: int) -> str:  # noqa: ARG001
    """The digest of an open file, read from where it stands."""
    hashed = _hash()
    while chunk := os.read(fd, _CHUNK):
        hashed.update(chunk)
    return hashed.hexdigest()


def write_all(fd: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _make_own(folder: str) -> None:
    """Make a folder; refuse one that is a link, or that others could have filled: what is in it gets dropped and put back."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise TreeStoreError(
            f"Cannot keep copies in {shown(folder)}: it is not a folder of this user alone. "
            "Remove it, or pass store= with another one."
        )


_is_digest = re.compile(r"[0-9a-f]{40}").fullmatch


class Blobs:
    """Contents by digest, one file each."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._draft = os.path.join(folder, "draft")
        self._clones = True
        _make_own(folder)
        # What has another name than a digest is not ours, and never dropped.
        with os.scandir(folder) as listing:
            self._sizes = {entry.name: entry.stat().st_size for entry in listing if _is_digest(entry.name)}

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def put(self, fd: int, size: int) -> str:
        """Keep the content of an open file, if it is not there yet; its digest."""
        first = os.read(fd, _CHUNK)
        rest = b"" if len(first) < _CHUNK else os.read(fd, _CHUNK)
        if not rest:
            digest = hashlib.blake2b(first, digest_size=20).hexdigest()
            if digest not in self._sizes:
                self._place(digest, self._drafted(first))
            return digest
        draft = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if self.clone(fd, draft):
                digest = content_digest(draft, size)
            else:
                hashed = _hash()
                for chunk in (first, rest):
                    hashed.update(chunk)
                    write_all(draft, chunk)
                while chunk := os.read(fd, _CHUNK):
                    hashed.update(chunk)
                    write_all(draft, chunk)
                digest = hashed.hexdigest()
            kept = os.fstat(draft).st_size
        finally:
            os.close(draft)
        if digest not in self._sizes:
            self._place(digest, kept)
        return digest

    def _drafted(self, content: bytes) -> int:
        draft = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(draft, content)
        finally:
            os.close(draft)
        return len(content)

    def _place(self, digest: str, size: int) -> None:
        os.rename(self._draft, os.path.join(self._folder, digest))
        self._sizes[digest] = size

    def clone(self, source: int, target: int) -> bool:
        """Let two files share their blocks until one of them is written to; False where the disk cannot."""
        if self._clones:
            try:
                fcntl.ioctl(target, _CLONE, source)
                return True
            except OSError as error:
                if error.errno not in _NO_CLONE:
                    raise
                self._clones = False
        return False

    def write(self, digest: str, target: int) -> None:
        """Write a content to an empty open file; refuse one that is not what it was."""
        source = os.open(os.path.join(self._folder, digest), os.O_RDONLY | os.O_CLOEXEC)
        try:
            hashed = _hash()
            cloned = self.clone(source, target)
            while chunk := os.read(source, _CHUNK):
                hashed.update(chunk)
                if not cloned:
                    write_all(target, chunk)
        finally:
            os.close(source)
        if hashed.hexdigest() != digest:
            raise TreeStoreError(f"The stored content {digest} is damaged and cannot be put back.")

    def sweep(self, needed: set[str]) -> int:
        """Drop what nobody needs; how many there were."""
        dropped = self._sizes.keys() - needed
        for digest in dropped:
            os.unlink(os.path.join(self._folder, digest))
            del self._sizes[digest]
        return len(dropped)


class Store:
    """The folder of one tree: its lock, its log, its contents. Lives as long as the tree is open."""

    def __init__(self, folder: str, root: str, ignore: Sequence[str]) -> None:
        self.folder = folder
        self._root = root
        self._ignore = tuple(ignore)
        self._log_path = os.path.join(folder, "log")
        try:
            _make_own(folder)
            self._lock = self._locked()
        except (TreeBusyError, TreeStoreError):
            raise
        except OSError as error:
            raise TreeStoreError(
                f"Cannot keep copies in {shown(folder)}: {error.strerror or error}. Pass store= with a folder that can be written."
            ) from error
        self._log = -1
        _stores.add(self)
        try:
            self.logged: Manifest = {}
            """What the log says when it is read again."""
            self.open_txn: str | None = None
            """The transaction that was open when the log ended."""
            self.open_ignore = self._ignore
            self._read_log()
            self.blobs = Blobs(os.path.join(folder, "blobs"))
        except BaseException:
            self.close()
            raise

    def _locked(self) -> int:
        path = os.path.join(self.folder, "lock")
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise TreeBusyError.elsewhere(self._root) from None
            try:
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except FileNotFoundError:  # its last owner removed the folder in the same instant
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
            os.close(fd)

    # -- the log ---------------------------------------------------------------------------------------------------

    def _read_log(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._log = os.open(self._log_path, flags, 0o600)
        content = b"".join(iter(lambda: os.read(self._log, _CHUNK), b""))
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(self._log, len(whole))
        self._size = self._base = len(whole)
        try:
            lines = [orjson.loads(line) for line in whole.splitlines()]
            if not lines:
                self._append({"format": _FORMAT, "ignore": list(self._ignore)})
                self._base = self._size
                return
            if lines[0]["format"] != _FORMAT:
                raise ValueError(f"format {lines[0]['format']}")
            self.open_ignore = tuple(lines[0]["ignore"])
            for record in lines[1:]:
                if "folders" in record:
                    self.logged = apply_difference(self.logged, record)
                self.open_txn = record.get("open")
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise TreeStoreError(
                f"The log in {shown(self.folder)} cannot be read: {error}. "
                "If the directory is as it should be, remove that folder and open the tree again."
            ) from error

    def begin(self, manifest: Manifest, txn_id: str) -> None:
        """From now on, until `done`, whoever opens the tree must make it what the manifest says."""
        record: dict[str, Any] = {"open": txn_id}
        if manifest is not self.logged:
            record.update(dump_difference(self.logged, manifest))
        self._append(record)
        self.logged, self.open_txn = manifest, txn_id

    def done(self) -> None:
        """The tree is as it should be."""
        self._append({"open": None})
        self.open_txn = None
        if self._size > 4 * self._base + _ROOM:
            self.compact(self.logged)

    def compact(self, manifest: Manifest) -> None:
        """Write the log anew, so that it says no more than the manifest; only while nothing is open."""
        draft = self._log_path + ".draft"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            lines = [{"format": _FORMAT, "ignore": list(self._ignore)}, {**dump_difference({}, manifest), "open": None}]
            content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
            write_all(fd, content)
            os.rename(draft, self._log_path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._log)
        self._log = fd
        self._size = self._base = len(content)
        self.logged = manifest

    def _append(self, record: dict[str, Any]) -> None:
        line = orjson.dumps(record) + b"\n"
        try:
            write_all(self._log, line)
        except BaseException:
            os.ftruncate(self._log, self._size)  # half a line must not stand before the next one
            raise
        if not self.logged:
            self._base += len(line)
        self._size += len(line)

    def close(self, *, remove: bool = False) -> None:
        """Let go of the folder; `remove` it if nothing in it will be asked for again."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        if remove:
            with suppress(OSError):
                self._remove()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def leave_to_parent(self) -> None:
        """A forked process must not keep its parent's lock: the parent may die first."""
        for fd in (self._log, self._lock):
            if fd >= 0:
                os.close(fd)
        self._log = self._lock = -1

    def _remove(self) -> None:
        self.blobs.sweep(set())
        for name in ("blobs/draft", "log", "log.draft", "lock"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        os.rmdir(os.path.join(self.folder, "blobs"))
        os.rmdir(self.folder)


_stores: WeakSet[Store] = WeakSet()


def _after_fork() -> None:
    for store in tuple(_stores):
        store.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
