"""What it costs to take files back, beside the number of files there are: in memory, on disk, and by git."""

from __future__ import annotations

import gc
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.transaction import Scope

from ._table import Bars, best, interleaved

CONTENT = b"x" * 1000


def _names(count: int) -> list[str]:
    return [f"d{number // 100}/f{number}" for number in range(count)]


def _transaction(write: Callable[[], None]) -> Callable[[], None]:
    """A call that changes one file and fails."""

    def run() -> None:
        call = Scope()
        token = call.activate()
        write()
        Scope.deactivate(token)
        call.rollback()

    return run


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
        plain = base / "plain"
        plain.write_bytes(CONTENT)
        disk["plain"] = lambda: plain.write_bytes(b"y" * 1000)
        careful = base / "careful"
        _tree(careful, counts["10,000"])
        synced = HostFilesystem(careful, fsync=True)
        filesystems.append(synced)
        times = interleaved(disk, batch=5, rounds=60 if quick else 400)
        for name in counts:
            bars.show(f"disk, {name} files: transaction, write, rollback, best", best(times[name]), "µs")
        bars.show("plain overwrite, best", best(times["plain"]), "µs")
        bars.show("disk, 10,000 / 10 files, best", best(times["10,000"]) / best(times["10"]), "×", 1.3)
        bars.show("disk / plain overwrite, best", best(times["10,000"]) / best(times["plain"]), "×", 2.5)
        durable = interleaved(
            {"fsync": _transaction(lambda: synced.write_bytes("d0/f1", b"y" * 1000))}, batch=1, rounds=100
        )
        bars.show("disk, 10,000 files, with fsync, best", best(durable["fsync"]), "µs")
        repository = base / "repository"
        rounds: list[float] = []
        run = _git(repository, _tree(repository, counts["10,000"]))
        for _ in range(3 if quick else 8):
            started = perf_counter()
            run()
            rounds.append((perf_counter() - started) * 1e6)
        bars.show("git add, commit, reset --hard, 10,000 files, best", best(rounds) / 1e3, "ms")
        bars.at_least("git / disk, 10,000 files", best(rounds) / best(times["10,000"]), "×", 200)
        bars.at_least("git / disk with fsync, 10,000 files", best(rounds) / best(durable["fsync"]), "×", 80)
    finally:
        for fs in filesystems:
            fs.close()
        shutil.rmtree(base)
        gc.unfreeze()
    return bars.ok
