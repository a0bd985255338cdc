"""Claims about files on disk: the conformance suite, what a real tree adds to it, and what is told when the disk refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from weakincentives.filesystem import HostFilesystem

from .filesystem_conformance import FilesystemConformance, MakeFs


def filled(root: Path, files: Mapping[str, str | bytes]) -> HostFilesystem:
    """A tree made by other means than the filesystem's own."""
    for name, content in files.items():
        place = root / name.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return HostFilesystem(root)


class TestHost(FilesystemConformance):
    """The filesystem on disk passes the suite."""

    @pytest.fixture
    def make_fs(self, tmp_path: Path) -> MakeFs:
        return lambda files: filled(tmp_path, files)
