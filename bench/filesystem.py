"""What it costs to take files back, beside the number of files there are: in memory, on disk, and by git.

On disk all are measured by turns, in passes; each pass begins on a disk that has nothing left to write, and each tree lies apart from
what other programs delete meanwhile. Otherwise the figures tell what the disk is busy with, not what was done.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.transaction import Scope

from ._table import Bars, best, interleaved

CONTENT = b"x" * 1000


def _names(count: int) -> list[str]:
    return [f"d{number // 100}/f{number}" for number in range(count)]


def _transaction(write: Callable[[], None], *, keep: bool = False) -> Callable[[], None]:
    """A call that changes one file and fails, or succeeds."""

    def run() -> None:
        call = Scope()
        token = call.activate()
        write()
        Scope.deactivate(token)
        if keep:
            call.commit()
        else:
            call.rollback()

    return run


def _apart(folder: Path) -> None:
    """Have ext4 give each tree in a folder a region of the disk to itself, as it does with those at the top of a disk.

    Without a journal it looks at every file deleted a moment ago in a region before it makes a new one there.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # other disks know nothing of this
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _TOP_OF_TREES))
    finally:
        os.close(fd)


_FLAGS = struct.Struct("l")
_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREES = 0x80086601, 0x40086602, 0x20000


def _tree(root: Path, count: int) -> Path:
    for name in _names(count):
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(CONTENT)
    return root / "d0/f1"


def _git(root: Path, changed: Path) -> Callable[[], None]:
    def git(*command: str) -> None:
        subprocess.run(
            ["git", "-C", str(root), "-c", "user.name=bench", "-c", "user.email=bench@localhost", *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "start")

    rounds = itertools.count()

    def run() -> None:
        """One file changed since the last snapshot, one changed by the call."""
        changed.write_bytes(str(next(rounds)).encode() * 500)
        git("add", "-A")
        git("commit", "-q", "-m", "before the call")
        changed.write_bytes(b"y" * 1000)
        git("reset", "-q", "--hard")

    return run


def main(quick: bool = False) -> bool:
    bars = Bars()
    counts = {"10": 10, "1,000": 1_000, "100,000": 10_000 if quick else 100_000}
    memory = {name: InMemoryFilesystem(dict.fromkeys(_names(count), CONTENT)) for name, count in counts.items()}
    gc.collect()
    gc.freeze()
    subjects = {name: _transaction(lambda fs=fs: fs.write_bytes("d0/f1", CONTENT)) for name, fs in memory.items()}
    times = interleaved(subjects, batch=200, rounds=60)
    for name in counts:
        bars.show(f"memory, {name} files: transaction, write, rollback, best", best(times[name]), "µs", 6)
    bars.show("memory, 100,000 / 10 files, best", best(times["100,000"]) / best(times["10"]), "×", 1.4)

    base = Path(tempfile.mkdtemp(prefix="bench-files-"))
    _apart(base)
    filesystems: list[HostFilesystem] = []
    try:
        disk: dict[str, Callable[[], object]] = {}
        counts = {"10": 10, "1,000": 1_000, "10,000": 1_000 if quick else 10_000}
        for name, count in counts.items():
            root = base / str(len(disk))
            _tree(root, count)
            fs = HostFilesystem(root)
            filesystems.append(fs)
            disk[name] = _transaction(lambda fs=fs: fs.write_bytes("d0/f1", b"y" * 1000))
        # The last one made: the tree of 10,000 files.
        others: dict[str, Callable[[], object]] = {}
        others["kept"] = _transaction(lambda fs=filesystems[-1]: fs.write_bytes("d0/f2", b"y" * 1000), keep=True)
        plain = base / "plain/file"
        plain.parent.mkdir()
        plain.write_bytes(CONTENT)
        others["plain"] = lambda: plain.write_bytes(b"y" * 1000)
        careful = base / "careful"
        _tree(careful, counts["10,000"])
        synced = HostFilesystem(careful, fsync=True)
        filesystems.append(synced)
        repository = base / "repository"
        git = _git(repository, _tree(repository, counts["10,000"]))
        durable = _transaction(lambda: synced.write_bytes("d0/f1", b"y" * 1000))

        figures: dict[str, list[float]] = {}
        for _ in range(2 if quick else 4):
            os.sync()
            for series in (
                interleaved(disk, batch=5, rounds=30 if quick else 80),
                interleaved(others, batch=5, rounds=30 if quick else 80),  # apart: who comes after them is slower
                interleaved({"fsync": durable}, batch=1, rounds=25),
                interleaved({"git": git}, batch=1, rounds=2 if quick else 4),
            ):
                for name, times in series.items():
                    figures.setdefault(name, []).extend(times)
        least = {name: best(times) for name, times in figures.items()}
        for name in counts:
            bars.show(f"disk, {name} files: transaction, write, rollback, best", least[name], "µs")
        bars.show("disk, 10,000 files: transaction, write, commit, best", least["kept"], "µs")
        bars.show("plain overwrite, best", least["plain"], "µs")
        bars.show("disk, 10,000 / 10 files, best", least["10,000"] / least["10"], "×", 1.3)
        bars.show("disk / plain overwrite, best", least["10,000"] / least["plain"], "×", 2.5)
        bars.show("disk, 10,000 files, with fsync, best", least["fsync"], "µs")
        bars.show("git add, commit, reset --hard, 10,000 files, best", least["git"] / 1e3, "ms")
        bars.at_least("git / disk, 10,000 files", least["git"] / least["10,000"], "×", 200)
        bars.at_least("git / disk with fsync, 10,000 files", least["git"] / least["fsync"], "×", 80)
    finally:
        for fs in filesystems:
            fs.close()
        shutil.rmtree(base)
        gc.unfreeze()
    return bars.ok
