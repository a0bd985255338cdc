"""Filesystems on disk that are forgotten instead of closed."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from weakincentives.filesystem import HostFilesystem


def test_a_filesystem_that_is_collected_while_another_recovers_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected anywhere, also where this thread holds the journal's lock by another filesystem of the root."""
    left = [HostFilesystem(tmp_path)]
    left[0].write("a.txt", "a")
    listed = os.listdir
    collected: list[int] = []

    def collecting(*args: Any) -> list[str]:
        if left:
            left.clear()
            collected.append(gc.collect())
        return listed(*args)

    monkeypatch.setattr(os, "listdir", collecting)
    opening = threading.Thread(target=HostFilesystem, args=(tmp_path,), daemon=True)
    opening.start()
    opening.join(10)

    assert collected
    assert not opening.is_alive()
