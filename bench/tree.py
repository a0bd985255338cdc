"""What a snapshot of a directory costs that programs change by themselves, beside git doing the same."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from weakincentives.filesystem import DirectoryTree

from ._table import Bars

_FILES_PER_FOLDER = 100


def _fill(root: Path, files: int) -> None:
    for number in range(files):
        folder = root / f"folder-{number // _FILES_PER_FOLDER}"
        if number % _FILES_PER_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"file-{number}.txt").write_text(f"line of file {number}\n" * 20)


def _ms(fn: Callable[[], object]) -> float:
    started = perf_counter()
    fn()
    return (perf_counter() - started) * 1e3


def main(quick: bool = False) -> bool:
    bars = Bars()
    files, rounds = (1_000, 3) if quick else (10_000, 7)
    with tempfile.TemporaryDirectory() as place:
        root, twin = Path(place, "tree"), Path(place, "git")
        _fill(root, files)
        _fill(twin, files)
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

        def git(*arguments: str) -> None:
            who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
            subprocess.run(["git", *who, *arguments], cwd=twin, env=environment, check=True, capture_output=True)

        def commit() -> None:
            git("add", "-A")
            git("commit", "-qm", "one change")

        git("init", "-q")
        figures: dict[str, list[float]] = {}

        def note(name: str, fn: Callable[[], object]) -> None:
            figures.setdefault(name, []).append(_ms(fn))

        with DirectoryTree(root) as tree:
            note("first snapshot", tree.snapshot)
            note("first git add and commit", commit)
            for number in range(rounds):
                note("snapshot, nothing changed", tree.snapshot)
                start = tree.snapshot()
                (root / "folder-0" / "file-7.txt").write_text(f"changed {number}\n")
                (twin / "folder-0" / "file-7.txt").write_text(f"changed {number}\n")
                note("snapshot, one file changed", tree.snapshot)
                note("git add and commit, one file changed", commit)
                note("restore, one file changed", partial(tree.restore, start))
                note("git reset --hard, one file changed", lambda: git("reset", "-q", "--hard", "HEAD~1"))
        for name, times in figures.items():
            bars.show(f"{name}, {files:,} files", min(times), "ms")
        scan = min(figures["snapshot, nothing changed"])
        bars.show("a scan, for each file", scan / files * 1e3, "µs")
        ratio = min(figures["git add and commit, one file changed"]) / min(figures["snapshot, one file changed"])
        bars.show("git add and commit / snapshot, one file changed", ratio, "×")
    return bars.ok
