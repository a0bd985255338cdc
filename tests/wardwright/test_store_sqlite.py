"""The store in a file: the conformance suite, and what only a file can do."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wardwright import receipts
from wardwright.errors import StoreUnavailable
from wardwright.history import Delta, Head, ReceiptRow
from wardwright.store import Commit, ReceiptQuery, SqliteStore, Store, open_store, verify
from wardwright.wire.turn import Caller

from .store_conformance import StoreConformance, admin, change, delta, everything, fill, row, session, state

DISK_FULL = """
import resource, signal, sys
from wardwright.errors import StoreUnavailable
from wardwright.history import Delta, ReceiptRow
from wardwright.store import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
for number in range(1, 100_000):
    try:
        store.commit(Delta(number), ReceiptRow(f"r{number}", number, "", str(number).encode() * 400))
    except StoreUnavailable as error:
        print(number - 1, "full" in str(error) or "I/O" in str(error))
        break
"""

FIRST_PAYLOAD = (
    "018374bd6c214d53a0c1e056a26d6232b8d3036a27da022b0890f3e0a1690baad021e1699b929f07ec0f7001131e46d31612414849d5106433"
    "acb4436ed4a2b4544186c39baa48ce008528a8c8444aecf03805bb021e0d86883880f90ac9bf00"
)
"""How the first stores packed `count(1)` of the user eve."""


class TestSqlite(StoreConformance):
    head_table = "chain"
    one_checkpoint = "UPDATE sqlite_sequence SET seq = 1"
    damage = "UPDATE cell SET value = name WHERE name > x'01' AND name < x'02'"

    @pytest.fixture
    def where(self, tmp_path: Path) -> Iterator[str]:
        yield str(tmp_path / "store.db")

    def open(self, where: str) -> Store:
        return SqliteStore(where)

    def run(self, where: str, statement: str) -> None:
        connection = sqlite3.connect(where)
        with connection:
            connection.execute(statement)
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, busy_ms=50)
    yield opened
    opened.close()


def test_a_path_opens_a_file(path: Path) -> None:
    """`open_store` needs no more than a name; the file is its own set-up."""
    store = open_store(str(path))
    store.close()

    assert isinstance(store, SqliteStore)
    assert path.exists()


def test_nobody_else_may_read_the_file(store: SqliteStore, path: Path) -> None:
    """Receipts say who called what: the file and its companions are the owner's alone."""
    fill(store, 1)

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

    assert set(modes.values()) == {0o600}


def test_a_lock_held_elsewhere_is_an_outage_that_names_the_file(store: SqliteStore, path: Path) -> None:
    """[4] Waiting has an end, and the answer says what was locked; afterwards all is well."""
    with Path(f"{path}-lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable) as caught:
            store.commit(delta(change(session())))

    assert str(caught.value) == f"store {path}: another process kept it locked for 0.05 s"
    store.commit(delta(change(session())))
    assert state(store).version == 1


def test_a_database_locked_by_another_program_is_an_outage(store: SqliteStore, path: Path) -> None:
    """[4] A program that knows nothing of the lock file makes commits wait, then fail, and nothing is written."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="database is locked"):
        store.commit(delta(change(session())))
    other.execute("ROLLBACK")
    other.close()

    assert state(store).version == 0


@pytest.mark.parametrize("content", [b"this is not a database, though it is long enough to look like one" * 9])
def test_a_file_that_is_no_store_is_refused(path: Path, content: bytes) -> None:
    """[4] Opening it is an outage, and leaves it as it was."""
    path.write_bytes(content)

    with pytest.raises(StoreUnavailable) as caught:
        SqliteStore(path)
    assert str(caught.value) == (
        f"store {path}: this file is no database; name another one, or one that does not exist yet"
    )
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_missing_is_an_outage(tmp_path: Path) -> None:
    """[4] The message names it, and says what to do."""
    folder = tmp_path / "missing"
    with pytest.raises(StoreUnavailable) as caught:
        SqliteStore(folder / "store.db")
    assert str(caught.value) == (
        f"store {folder / 'store.db'}: there is no folder {folder}; make it, or name another file"
    )


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    """[4] Nor is what is below a file."""
    with pytest.raises(StoreUnavailable) as caught:
        SqliteStore(tmp_path)
    assert str(caught.value) == f"store {tmp_path}: this is a folder; name a file"
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(StoreUnavailable) as caught:
        SqliteStore(file / "store.db")
    assert str(caught.value) == f"store {file / 'store.db'}: {file} is no folder; name another file"


def test_a_newer_file_is_refused(path: Path) -> None:
    """A store made by a later program is not touched by this one."""
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(StoreUnavailable, match=r"made by another version of this program \(schema 99\)"):
        SqliteStore(path)


def test_another_program_s_database_is_refused(path: Path) -> None:
    """A file that has tables, but not ours, is left alone."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()

    with pytest.raises(StoreUnavailable, match="belongs to another program; name another one"):
        SqliteStore(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_head_of_the_first_stores_is_read(store: SqliteStore, path: Path) -> None:
    """They wrote the fields by name and left out what was as in an empty head."""
    store.commit(delta(change(session())))
    TestSqlite().run(str(path), """UPDATE cell SET value = '[1000,{"turn":3,"last_ids":["a"]}]' WHERE name = x'00'""")

    assert state(store).head == Head(turn=3, last_ids=("a",))


def test_a_receipt_of_the_first_stores_is_read(store: SqliteStore, path: Path) -> None:
    """They deflated with another dictionary: body, tags, index and chain are what they were."""
    caller = Caller(tenant="acme", user="eve", session_id="s")
    told = receipts.record(receipts.build_admin("r1", 1, caller, "count", "1"))
    store.commit(delta(), told)
    TestSqlite().run(str(path), f"UPDATE receipt SET payload = x'{FIRST_PAYLOAD}'")
    store.reindex()

    assert [one.row for one in store.receipts(ReceiptQuery(tags={"user": ["eve"]})).receipts] == [told]
    assert verify(store).good


def test_a_payload_of_a_later_program_is_no_receipt(store: SqliteStore, path: Path) -> None:
    """A first byte that nobody here knows reads as nothing, and the chain says so."""
    fill(store, 1)
    TestSqlite().run(str(path), "UPDATE receipt SET payload = x'ff00'")

    assert [flaw.kind for flaw in verify(store).flaws] == ["changed"]


def test_a_scope_without_its_head_is_an_outage(store: SqliteStore, path: Path) -> None:
    """[4] Registers alone are not taken for a scope."""
    store.commit(delta(change(session(), registers={("a", ""): (1,)})))
    TestSqlite().run(str(path), "DELETE FROM cell WHERE name = x'00'")

    with pytest.raises(StoreUnavailable, match="lost its head"):
        state(store)


def test_a_full_disk_loses_nothing_that_was_acknowledged(path: Path) -> None:
    """[1, 4] The commit that does not fit is refused as an outage; all before it are there and verify."""
    run = subprocess.run([sys.executable, "-c", DISK_FULL, str(path)], capture_output=True, text=True, check=True)
    committed, named = run.stdout.split()
    store = SqliteStore(path)

    assert named == "True"
    assert verify(store).receipts == int(committed) > 0
    assert verify(store).good
    store.close()


def test_a_store_is_not_shared_by_a_fork(store: SqliteStore) -> None:
    """A child that inherits an open store is told to open its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.plan_epoch()
            os.write(writing, b"answered")
        except StoreUnavailable as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert b"opened before a fork; open it again in this process" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)


def test_full_sync_keeps_the_same_promises(path: Path) -> None:
    """The slower, power-proof setting commits and verifies alike."""
    store = SqliteStore(path, sync="full")
    fill(store, 3)

    assert verify(store).receipts == 3
    store.close()


def test_queries_cross_buckets(store: SqliteStore) -> None:
    """More receipts than one bucket holds: rare and common filters, disjoint ones and pages, all still exact."""
    total = 9_000
    for start in range(0, total, 1_000):
        store.commit_all(
            [
                Commit(
                    delta(at_ms=number),
                    row(
                        f"r{number}",
                        number,
                        tags=[("parity", str(number % 2)), ("rare", "yes" if number in (5, 8_500) else "no")],
                    ),
                )
                for number in range(start, start + 1_000)
            ]
        )

    assert everything(store, tags={"rare": ["yes"]}) == ["r8500", "r5"]
    assert everything(store, tags={"parity": ["1"], "rare": ["yes"]}) == ["r5"]
    assert everything(store, tags={"parity": ["0"]}, since_ms=8_100, until_ms=8_300, limit=30) == [
        f"r{number}" for number in range(8_298, 8_099, -2)
    ]
    assert len(everything(store, tags={"parity": ["0", "1"]}, limit=1_000)) == total


def test_upkeep_works_behind_and_ends_with_the_store(path: Path) -> None:
    """The thread starts by itself, answers do not depend on it, and closing leaves none behind."""
    before = {thread.name for thread in threading.enumerate()}
    store = SqliteStore(path)
    store.commit_all([Commit(delta(), row(f"r{number}", tags=[("a", "b")])) for number in range(1_100)])

    assert len(everything(store, tags={"a": ["b"]}, limit=1_000)) == 1_100
    assert "wardwright-store-upkeep" in {thread.name for thread in threading.enumerate()} - before
    store.close()
    assert {thread.name for thread in threading.enumerate()} == before


def test_a_store_whose_chain_lost_its_head_is_away(store: SqliteStore, path: Path) -> None:
    """Nothing is committed and no filter answers: a new chain would hide that the old one is gone."""
    fill(store, 1)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM chain")
    connection.close()

    with pytest.raises(StoreUnavailable, match="the head of its chain is gone"):
        fill(store, 1, first=2)
    with pytest.raises(StoreUnavailable, match="the head of its chain is gone"):
        store.receipts(ReceiptQuery())


def test_erased_bytes_leave_the_file(store: SqliteStore, path: Path) -> None:
    """What a tenant's receipts said is in none of the store's files after erasure."""
    secret = "eve.adams@example.test"
    store.commit(delta(change(session(secret))), row("r1", scope=session(secret)))
    store.commit(delta(), admin("r2", user=secret))
    store.receipts(ReceiptQuery())
    assert any(secret.encode() in file.read_bytes() for file in path.parent.iterdir())

    store.forget_tenant("acme")

    assert not any(secret.encode() in file.read_bytes() for file in path.parent.iterdir())


def test_threads_share_a_store(store: SqliteStore) -> None:
    """Commits and queries from several threads at once: nothing is lost, the chain is whole."""

    def work(name: str) -> None:
        for number in range(30):
            store.commit(delta(change(session(name), number)), admin(f"{name}{number}"))
            store.receipts(ReceiptQuery(tags={"user": ["eve"]}, limit=3))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [state(store, session(name)).version for name in "abc"] == [30, 30, 30]
    assert verify(store).receipts == 90
    assert verify(store).good


WITHOUT_FAST = """
import sys
sys.modules["isal"] = None
from wardwright.history import Delta, ReceiptRow
from wardwright.store import SqliteStore, rows
assert rows.fast is None
store = SqliteStore(sys.argv[1])
print(store.receipt("here").row.body.decode())
store.commit(Delta(2), ReceiptRow("there", 2, "", b"deflated there", (("kind", "admin"),)))
store.close()
"""


def test_what_is_deflated_by_one_library_is_read_by_the_other(tmp_path: Path) -> None:
    """A store is shared by processes with and without the faster library."""
    place = tmp_path / "store.db"
    store = SqliteStore(place)
    store.commit(Delta(1), ReceiptRow("here", 1, "", b"deflated here", (("kind", "admin"),)))
    told = subprocess.run([sys.executable, "-c", WITHOUT_FAST, str(place)], capture_output=True, text=True, check=True)
    assert told.stdout == "deflated here\n"
    found = store.receipt("there")
    assert (found.row.body, found.row.tags) == (b"deflated there", (("kind", "admin"),))
    store.close()
