"""Claims about the two calls of the system that the disk journal reaches by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from weakincentives.filesystem.exchange import begin_writing, exchange

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these calls")


@pytest.fixture
def folder(tmp_path: Path) -> Generator[int]:
    (tmp_path / "one").write_text("1")
    (tmp_path / "zwö \udcff").write_text("2")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_two_files_change_places(tmp_path: Path, folder: int) -> None:
    """Each name has what the other had, also a name that is no text."""
    if not exchange(folder, "one", folder, "zwö \udcff"):
        pytest.skip("this disk cannot exchange names")
    assert ((tmp_path / "one").read_text(), (tmp_path / "zwö \udcff").read_text()) == ("2", "1")


def test_a_missing_name_is_told(folder: int) -> None:
    """What failed, and why, is in the error."""
    with pytest.raises(FileNotFoundError) as caught:
        exchange(folder, "one", folder, "none")
    assert (caught.value.filename, caught.value.filename2) == ("one", "none")


def test_what_cannot_be_exchanged_stays(tmp_path: Path, folder: int) -> None:
    """A directory and a file inside of it cannot change places: nothing is done, and the caller is told to do without."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").write_text("3")
    inside = os.open(tmp_path / "deep", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert exchange(folder, "deep", inside, "file") is False
    finally:
        os.close(inside)
    assert (tmp_path / "deep/file").read_text() == "3"


def test_writing_may_be_begun_at_any_time(tmp_path: Path) -> None:
    """A file keeps its content, and a handle that cannot be written is no error."""
    path = tmp_path / "file"
    path.write_text("text")
    with path.open("rb") as file:
        begin_writing(file.fileno())
    heard, says = os.pipe()
    begin_writing(says)
    os.close(heard)
    os.close(says)
    assert path.read_text() == "text"
