"""Claims about files on disk: the conformance suite, what a real tree adds to it, and what is told when the disk refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import FileAlreadyExistsError, HostFilesystem, PathEscapeError, ReadOnlyFileError

from .disk_tree import disk_tree, make_tree
from .filesystem_conformance import FilesystemConformance, MakeFs, scope


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


# -- beyond the protocol -----------------------------------------------------------------------------------------------


def test_links_and_modes_roll_back(tmp_path: Path) -> None:
    """A link that is made and a mode that is set belong to the call like any write."""
    make_tree(tmp_path)
    before = disk_tree(tmp_path)
    fs = HostFilesystem(tmp_path)
    with scope() as call:
        fs.symlink("deep/link", "../a.txt")
        fs.chmod("a.txt", 0o750)
        assert (fs.read("deep/link"), fs.stat("a.txt").mode) == ("a", 0o750)
        assert ("files", "deep/link") in call.touched and ("files", "a.txt") in call.touched
        call.rollback()
    fs.close()
    assert disk_tree(tmp_path) == before


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    """A link says what it was given; a file has the same content under another mode."""
    fs = filled(tmp_path, {"run": "#!/bin/sh"})
    with scope() as call:
        fs.symlink("again", "run")
        fs.chmod("again", 0o755)
        call.commit()
    assert (tmp_path / "again").readlink() == Path("run")
    assert ((tmp_path / "run").stat().st_mode & 0o777, fs.read("run")) == (0o755, "#!/bin/sh")


@pytest.mark.parametrize(
    ("path", "target", "kind"),
    [
        ("out", "../x", PathEscapeError),
        ("d/out", "../../x", PathEscapeError),
        ("d/out", "x/../../../y", PathEscapeError),
        ("flat/d/out", "../../x", PathEscapeError),
        ("out", "/etc/passwd", PathEscapeError),
        ("out", "", PathEscapeError),
        ("there", "x", FileAlreadyExistsError),
        ("kept/out", "x", ReadOnlyFileError),
    ],
)
def test_a_link_that_leads_out_is_not_made(tmp_path: Path, path: str, target: str, kind: type[FilesystemError]) -> None:
    """Nor one where something is, or where nothing may be changed."""
    filled(tmp_path, {"there": "1", "kept/a": "1"}).close()
    (tmp_path / "flat").symlink_to(".")
    with pytest.raises(kind):
        HostFilesystem(tmp_path, readonly="kept/**").symlink(path, target)
    assert [place.name for place in tmp_path.rglob("*") if place.is_symlink()] == ["flat"]
