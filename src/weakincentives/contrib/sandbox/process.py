"""One running command: feeds it, keeps a bounded part of what it prints, and ends it when a limit is reached.

INVARIANT: whatever happens here, the command and everything it started is dead when `follow` returns or raises.
Never holds more output than asked for, however much there is.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
from collections.abc import Callable
from typing import IO, Literal

from ...clock import SYSTEM_CLOCK
from ...frozen import frozen
from .backend import SandboxError, Started
from .config import MIB, PodmanConfig
from .folder import measure

Stop = Literal["", "timeout", "memory", "disk", "entries", "cancelled"]
"""What ended a command early; empty: it ended by itself."""

_TICK = 0.05
_GRACE = 5.0
_CHUNK = 65536
_SLACK = 1024 * MIB


@frozen
class Captured:
    """What a command printed on one stream."""

    text: str
    size: int
    """Bytes printed."""
    truncated: bool


@frozen
class Ended:
    """How a command ended."""

    exit_code: int
    stdout: Captured
    stderr: Captured
    duration: float
    stopped: Stop


def follow(
    started: Started,
    *,
    stdin: bytes,
    timeout: float,
    config: PodmanConfig,
    upper: str,
    cancelled: Callable[[], bool],
    beat: Callable[[], None],
) -> Ended:
    """See a command through to its end."""
    try:
        return _follow(started, stdin, timeout, config, upper, cancelled, beat)
    finally:
        started.kill()
        for pipe in (started.process.stdin, started.process.stdout, started.process.stderr):
            with contextlib.suppress(OSError):
                _opened(pipe).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(_GRACE)
        started.close()


def _follow(
    started: Started,
    stdin: bytes,
    timeout: float,
    config: PodmanConfig,
    upper: str,
    cancelled: Callable[[], bool],
    beat: Callable[[], None],
) -> Ended:
    now = SYSTEM_CLOCK.monotonic
    begun = now()
    process = started.process
    kept = {_opened(process.stdout): _Kept(config.output_limit), _opened(process.stderr): _Kept(config.output_limit)}
    watch = _Watch(started, config, upper)
    stopped: Stop = ""
    checked_at = begun
    pause = _TICK
    gone_at = 0.0
    with selectors.DefaultSelector() as selector:
        for pipe in kept:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        waiting = memoryview(stdin)
        entrance = _opened(process.stdin)
        if stdin:
            os.set_blocking(entrance.fileno(), False)
            selector.register(entrance, selectors.EVENT_WRITE)
        else:
            entrance.close()
        reading = len(kept)
        while reading:
            for key, _ in selector.select(_TICK):
                if key.fileobj is entrance:
                    waiting = _feed(entrance, waiting)
                    if not waiting:
                        selector.unregister(entrance)
                        entrance.close()
                    continue
                chunk = _read(key.fd)
                if chunk == b"":
                    selector.unregister(key.fileobj)
                    reading -= 1
                elif chunk is not None:
                    kept[key.fileobj].add(chunk)  # pyright: ignore[reportArgumentType]
            moment = now()
            if moment - checked_at < pause:
                continue
            beat()
            if not stopped:
                stopped = (
                    "cancelled" if cancelled() else "timeout" if moment - begun >= timeout else watch.limit_reached()
                )
                if stopped:
                    gone_at = moment
                    started.kill()
            elif moment - gone_at > _GRACE:
                break  # killed, and somebody still holds the pipe: whoever it is, he is not heard any more
            checked_at = now()
            # Looking at a large tree takes time: never more than a tenth of it.
            pause = max(_TICK, 10 * (checked_at - moment))
    if not stopped:
        try:
            process.wait(max(0.0, timeout - (now() - begun)) + _GRACE)
        except subprocess.TimeoutExpired:
            stopped = "timeout"
    stdout, stderr = (part.captured() for part in kept.values())
    duration = now() - begun
    code = -1 if stopped else started.exit_code(stderr.text)
    return Ended(code, stdout, stderr, duration, stopped or watch.limit_reached())


class _Watch:
    """Whether a command has used more than it may."""

    def __init__(self, started: Started, config: PodmanConfig, upper: str) -> None:
        self._started = started
        self._config = config
        self._upper = upper
        self._free = _free(upper)

    def limit_reached(self) -> Stop:
        config = self._config
        if self._started.memory() > config.memory:
            return "memory"
        size, entries = measure(self._upper)
        if entries > config.entries:
            return "entries"
        # Files that were deleted while open are in no folder, but on the disk: then its free space tells.
        if size > config.disk or self._free - _free(self._upper) > 4 * config.disk + _SLACK:
            return "disk"
        return ""


class _Kept:
    """The first and the last bytes of a stream."""

    __slots__ = ("_half", "_head", "_size", "_tail")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > self._half + _CHUNK:
            del self._tail[: -self._half]

    def captured(self) -> Captured:
        tail = self._tail[-self._half :]
        cut = self._size - len(self._head) - len(tail)
        if not cut:
            return Captured((self._head + tail).decode(errors="replace"), self._size, False)
        # A character that the cut went through is left out on both sides.
        head_text = self._head.decode(errors="replace").rstrip("\ufffd")
        tail_text = tail.decode(errors="replace").lstrip("\ufffd")
        return Captured(f"{head_text}\n[... {cut} bytes cut ...]\n{tail_text}", self._size, True)


def _feed(entrance: IO[bytes], waiting: memoryview) -> memoryview:
    try:
        return waiting[os.write(entrance.fileno(), waiting[:_CHUNK]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return memoryview(b"")


def _read(fd: int) -> bytes | None:
    """What there is; empty at the end, None when there is nothing at the moment."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise SandboxError("A backend started a command without pipes.")
    return pipe


def _free(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
