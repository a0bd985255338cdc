"""Claims about archives: receipts in written order, from a store or an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wardwright import receipts
from wardwright.archive import ArchiveUnreadable, ExportedArchive, StoredArchive
from wardwright.history import Delta
from wardwright.store import SqliteStore, export

from .test_replay import ALLOW, calls, recorded


def kept(path: Path, stored: list[Any]) -> SqliteStore:
    store = SqliteStore(path, upkeep=False)
    for receipt in stored:
        store.commit(Delta(receipt["at_ms"]), receipts.record(receipt))
    return store


def test_a_store_gives_its_receipts_in_the_order_they_were_written(tmp_path: Path) -> None:
    """Oldest first, as often as asked, until a given time, of one session if wanted."""
    store = kept(tmp_path / "s.db", recorded(ALLOW, *[calls("open") for _ in range(5)]))
    try:
        archive = StoredArchive(store)
        assert [one["id"] for one in archive] == [one["id"] for one in archive] == ["r1", "r2", "r3", "r4", "r5"]
        assert [one["id"] for one in StoredArchive(store, until_ms=3000)] == ["r1", "r2"]
        assert list(StoredArchive(store, session_id="other")) == []
    finally:
        store.close()


def test_an_export_is_the_same_archive(tmp_path: Path) -> None:
    """What `receipts export` writes can be read where the store is not."""
    store = kept(tmp_path / "s.db", recorded(ALLOW, calls("open"), calls("open")))
    try:
        (tmp_path / "x.ndjson").write_bytes(b"".join(export(store)))
        assert list(ExportedArchive(tmp_path / "x.ndjson")) == list(StoredArchive(store))
    finally:
        store.close()


@pytest.mark.parametrize(
    "content", [b"{", b"{}\n", b'{"receipt": {}, "cursor": 1}\n', b'{"receipt": [], "cursor": 1}\n', b"3"]
)
def test_a_file_that_is_no_export_is_refused_with_its_line(content: bytes, tmp_path: Path) -> None:
    """The message names file and line."""
    path = tmp_path / "x.ndjson"
    path.write_bytes(content)

    with pytest.raises(ArchiveUnreadable, match=r"x\.ndjson:1: not a line of a receipts export"):
        ExportedArchive(path)


def test_an_export_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file is said to be missing."""
    with pytest.raises(ArchiveUnreadable, match="cannot be read: No such file"):
        ExportedArchive(tmp_path / "none")
