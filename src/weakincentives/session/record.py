"""The file of a durable session: a header line, then records that are there whole or not at all.

A record is `[0xFF][u32 length][u32 checksum][payload]`; payloads are JSON text, in which no byte 0xFF occurs, so a
record can be told from anything inside another. Decides what a torn tail is (cut off at open) and what damage is (an
error with its place: never skipped). One process writes, by a lock on the file. Never knows what a payload means.
"""

from __future__ import annotations

import logging
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from ..errors import SessionStorageError

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None

_logger = logging.getLogger(__name__)

_FORMAT = 1
_MAGIC = b'{"wink":"session","format":'
_MARK = 0xFF
_MARK_BYTE = bytes([_MARK])
_FRAME = struct.Struct("<BII")
FRAME = _FRAME.size
"""What a record has before its payload, in bytes."""
_LONGEST = 2**32 - 1
_CHUNK = 1 << 20
_LOOKED = 1 << 26
"""Bytes behind the last whole record that somebody looks at who only wants to tell what they are."""
_sync = getattr(os, "fdatasync", os.fsync)


class Source:
    """A session's file, open for reading. Whoever reads from it later keeps it open."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, *, follow: bool = True) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW | os.O_NONBLOCK))
        weakref.finalize(self, os.close, self.fd).atexit = False

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def header(self) -> tuple[dict[str, Any], int] | None:
        """The first line and where the records begin; None for a file whose making was cut short."""
        return _read_header(self.fd, self.path)

    def tail(self, end: int) -> str:
        """What lies behind the last whole record: nothing, a `torn` write, or records that are `damaged`."""
        size = self.size
        return "" if size <= end else "damaged" if _more_follows(self.fd, end, size, _LOOKED) else "torn"

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if len(data) != length:
            raise SessionStorageError(f"Cannot read {self.path}: it was shortened by another program.")
        return data

    def payload(self, offset: int) -> bytes:
        """The payload of the record at `offset`."""
        _, length, checksum = _FRAME.unpack(self.read(offset, FRAME))
        payload = self.read(offset + FRAME, length)
        if zlib.crc32(payload, length) != checksum:
            raise _damaged(self.path, offset)
        return payload

    def records(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Offset and payload of each record; stops before the first that is not whole."""
        # WHY NOT mmap: who reads a file that somebody else cuts back meanwhile would be killed by a signal.
        offset, size = start, _CHUNK
        while offset < end:
            asked = min(size, end - offset)
            data, place = os.pread(self.fd, asked, offset), 0
            while (payload := _payload_at(data, place, len(data))) is not None:
                yield offset + place, payload
                place += FRAME + len(payload)
            if place:
                offset, size = offset + place, _CHUNK
                continue
            if len(data) < max(asked, FRAME):
                return
            size = FRAME + _FRAME.unpack_from(data)[1]
            if size <= len(data) or offset + size > end:  # what is here is not whole, not only longer than was read
                return


class RecordFile:
    """A session's file, open for appending: locked, and cut back to its last whole record."""

    __slots__ = ("__weakref__", "_broken", "_close", "_fd", "_fsync", "_pid", "body", "end", "header", "path", "source")

    def __init__(self, path: str, header: dict[str, Any], *, fsync: bool) -> None:
        self.path = path
        self._fsync = fsync
        self._pid = os.getpid()
        self._broken = ""
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SessionStorageError(f"Cannot open the session file {path}: {error.strerror}.") from error
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False
        try:
            _lock(self._fd, path)
            self.header, self.body = _read_header(self._fd, path) or self._write_header(header)
            self.source = Source(path)
        except BaseException:
            self._close()
            raise
        self.end = self.body
        """Where the next record goes."""

    def recover(self) -> Iterator[tuple[int, bytes]]:
        """Every record, once, before the first append. A torn tail is cut off; damage in the middle raises."""
        size = os.fstat(self._fd).st_size
        for offset, payload in self.source.records(self.body, size):
            yield offset, payload
            self.end = offset + FRAME + len(payload)
        if self.end == size:
            return
        # What is not whole is a torn write only if nothing whole comes after it.
        if _more_follows(self._fd, self.end, size):
            raise _damaged(self.path, self.end)
        _logger.warning("%s: the last write was cut short; dropped %d bytes of it", self.path, size - self.end)
        os.ftruncate(self._fd, self.end)

    def append(self, payload: bytes) -> int:
        """Write one record and answer its offset; when this raises, the file is as before."""
        self._check()
        if len(payload) > _LONGEST:
            raise SessionStorageError(f"Cannot write {len(payload)} bytes in one commit; the limit is {_LONGEST}.")
        record = _FRAME.pack(_MARK, len(payload), zlib.crc32(payload, len(payload))) + payload
        offset = self.end
        try:
            _write_all(self._fd, record, offset)
            if self._fsync:
                _sync(self._fd)
            self.end = offset + len(record)
        except BaseException as error:
            self.cut_back(offset)
            if isinstance(error, OSError):
                raise SessionStorageError(
                    f"Cannot write to the session file {self.path}: {error.strerror}. Nothing was committed."
                ) from error
            raise
        return offset

    def cut_back(self, offset: int) -> None:
        """Take back what was written from `offset` on: the commit it belongs to did not happen."""
        if self._broken:
            return
        self.end = offset
        try:
            os.ftruncate(self._fd, offset)
        except OSError as error:
            self._broken = (
                f"Cannot write to the session file {self.path}: an earlier write failed half-way "
                f"({error.strerror}). Open the session again."
            )

    def close(self) -> None:
        """Give the lock back. Reading through `source` stays possible."""
        self._broken = CLOSED
        self._close()

    def _check(self) -> None:
        if self._broken:
            raise SessionStorageError(self._broken)
        if os.getpid() != self._pid:
            raise SessionStorageError(
                f"Cannot write to {self.path} in a forked process: the session belongs to the process that opened it."
            )

    def _write_header(self, header: dict[str, Any]) -> tuple[dict[str, Any], int]:
        line = header_line(header)
        os.ftruncate(self._fd, 0)
        _write_all(self._fd, line, 0)
        if self._fsync:
            os.fsync(self._fd)
            _sync_folder(self.path)
        return header, len(line)


CLOSED = "The session is closed: its file was released. Open it again with Session.open(path) to go on."


def header_line(header: dict[str, Any]) -> bytes:
    """The first line of a file: format, session id, where it was forked from."""
    return orjson.dumps({"wink": "session", "format": _FORMAT, **header}) + b"\n"


def copy_file(source: Source, body: int, end: int, path: str, header: dict[str, Any], *, fsync: bool) -> None:
    """Make a file of the records between `body` and `end`, under another header; it appears whole or not at all."""
    if os.path.exists(path):
        raise SessionStorageError(f"Cannot fork into {path}: the file exists. Choose another path.")
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.urandom(16).hex()}")
    try:
        try:
            with open(draft, "xb") as out:
                os.chmod(draft, 0o600)
                out.write(header_line(header))
                for start in range(body, end, 1 << 20):
                    out.write(source.read(start, min(1 << 20, end - start)))
                out.flush()
                if fsync:
                    os.fsync(out.fileno())
            os.replace(draft, path)
        except OSError as error:
            raise SessionStorageError(f"Cannot fork into {path}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            os.unlink(draft)
    if fsync:
        _sync_folder(path)


def _more_follows(fd: int, end: int, size: int, most: int = 2**62) -> bool:
    """Whether anything whole comes after the byte at `end`, where no whole record begins; no further than `most` bytes,
    of the file and of what seem to be records in it."""
    starts = range(end, min(size, end + most), _CHUNK)
    data = b"".join(os.pread(fd, min(_CHUNK, size - start), start) for start in starts)
    place = data.find(_MARK_BYTE, 1)
    while place >= 0 and most > 0:
        if _payload_at(data, place, len(data)) is not None:
            return True
        most -= min(len(data), _FRAME.unpack_from(data, place)[1]) if place + FRAME <= len(data) else 0
        place = data.find(_MARK_BYTE, place + 1)
    return False


def _payload_at(data: bytes, offset: int, end: int) -> bytes | None:
    start = offset + FRAME
    if start > end:
        return None
    mark, length, checksum = _FRAME.unpack_from(data, offset)
    # An empty payload is never written; a tail of zeros must not pass for one.
    if mark != _MARK or length == 0 or start + length > end:
        return None
    payload = data[start : start + length]
    return payload if zlib.crc32(payload, length) == checksum else None


def _read_header(fd: int, path: str) -> tuple[dict[str, Any], int] | None:
    """Header and where the records begin; None for a file that is new, or whose making was cut short."""
    head = os.pread(fd, 4096, 0)
    line, newline, _ = head.partition(b"\n")
    if not newline and (_MAGIC.startswith(line) or line.startswith(_MAGIC)):
        return None
    if not line.startswith(_MAGIC):
        raise SessionStorageError(f"{path} is not a session file. Choose another path.")
    try:
        header = orjson.loads(line)
        form, session_id = header["format"], header["session_id"]
    except (orjson.JSONDecodeError, KeyError) as error:
        raise _damaged(path, 0) from error
    if form != _FORMAT or not isinstance(session_id, str):
        raise SessionStorageError(
            f"Cannot read {path}: it has format {form}, this program knows format {_FORMAT}. Use a newer program."
        )
    return header, len(line) + 1


def _damaged(path: str, offset: int) -> SessionStorageError:
    return SessionStorageError(
        f"Cannot read {path}: the record at byte {offset} is damaged and more records follow it. "
        "Restore the file from a copy."
    )


def _lock(fd: int, path: str) -> None:
    if fcntl is None:  # pragma: no cover
        raise SessionStorageError("Durable sessions need file locks, which this system does not have.")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise SessionStorageError(
            f"Cannot open {path}: another session has it open, here or in another process. "
            "Close that one (session.close(), or end its process), then retry."
        ) from error


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
