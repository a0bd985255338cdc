"""The store in PostgreSQL: the conformance suite on a private server, and what only a server can do."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from wardwright.errors import StoreUnavailable
from wardwright.store import PostgresStore, Store, checkpoint, open_store, retain, verify

from .postgres_server import PostgresServer
from .store_conformance import KEY, WRITER, StoreConformance, admin, change, delta, everything, fill, session, state

pytestmark = pytest.mark.heavy

SCHEMAS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.fixture
def schema() -> str:
    return f"t{next(SCHEMAS)}"


class TestPostgres(StoreConformance):
    head_table = "writer"
    one_checkpoint = "UPDATE version SET checkpoints = 1"
    damage = "UPDATE register SET value = rule"

    @pytest.fixture
    def where(self, server: PostgresServer, schema: str) -> Iterator[str]:
        yield f"{schema}@{server.address}"

    def open(self, where: str) -> Store:
        schema, _, address = where.partition("@")
        return PostgresStore(address, schema=schema, writer="one")

    def run(self, where: str, statement: str) -> None:
        schema, _, address = where.partition("@")
        with psycopg.connect(address, options=f"-c search_path={schema}") as connection:
            connection.execute(statement.encode())


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    opened = PostgresStore(server.address, schema=schema, busy_ms=200)
    yield opened
    opened.close()


def test_an_address_opens_a_database(server: PostgresServer) -> None:
    """`open_store` tells an address from a path."""
    store = open_store(server.address)
    store.close()

    assert isinstance(store, PostgresStore)


def test_every_store_writes_a_chain_of_its_own(server: PostgresServer, store: PostgresStore, schema: str) -> None:
    """Two writers, two chains; one listing, one checkpoint over both heads, one retention for both."""
    other = PostgresStore(server.address, schema=schema)
    for number in range(1, 5):
        (store, other)[number % 2].commit(delta(at_ms=number), admin(f"r{number}", at_ms=number))
    checkpoint(store, 100, KEY)

    assert [link.sequence for link in store.heads()] == [2, 2]
    assert everything(store) == ["r4", "r3", "r2", "r1"]
    assert retain(store, 3, 200, KEY) == 2
    found = verify(store, [KEY])
    assert (found.chains, found.receipts, found.flaws) == (2, 2, ())
    other.close()


def test_a_server_that_is_gone_is_an_outage_until_it_is_back(server: PostgresServer, store: PostgresStore) -> None:
    """[4] Every call says so and names the store; once the server is back the same store works, and nothing was lost."""
    fill(store, 2)
    server.stop()
    try:
        for ask in (lambda: state(store), lambda: store.commit(delta(change(session()))), lambda: everything(store)):
            with pytest.raises(StoreUnavailable, match="store postgresql:///postgres"):
                ask()
    finally:
        server.start()

    store.commit(delta(change(session())), admin("r3", at_ms=3))
    assert everything(store) == ["r3", "r2", "r1"]
    assert verify(store).good


def test_an_address_nobody_answers_is_an_outage_without_its_password() -> None:
    """[4] The message names the address, never the secret in it."""
    with pytest.raises(StoreUnavailable) as caught:
        PostgresStore("postgresql://me:hunter2@127.0.0.1:1/db")

    assert "127.0.0.1:1/db" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_row_locked_by_another_program_is_an_outage(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    """[4] Waiting for a lock has an end, and nothing is written."""
    store.commit(delta(change(session())))
    with psycopg.connect(server.address, options=f"-c search_path={schema}") as other:
        other.execute("SELECT * FROM scope FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            store.commit(delta(change(session(), 1)))

    assert state(store).version == 1


def test_a_newer_schema_is_refused(server: PostgresServer, schema: str) -> None:
    """A store made by a later program is not touched by this one."""
    PostgresStore(server.address, schema=schema).close()
    with psycopg.connect(server.address, options=f"-c search_path={schema}") as connection:
        connection.execute("UPDATE version SET version = 99")

    with pytest.raises(StoreUnavailable, match=r"made by another version of this program \(schema 99\)"):
        PostgresStore(server.address, schema=schema)


def test_a_schema_s_name_is_checked(server: PostgresServer) -> None:
    """It becomes part of a statement, so it is a plain word or nothing."""
    with pytest.raises(ValueError, match="a schema's name is"):
        PostgresStore(server.address, schema='x"; DROP SCHEMA public')


def test_stores_opened_at_once_make_one_schema(server: PostgresServer, schema: str) -> None:
    """Several processes that start on an empty database all find it ready."""
    where = f"{schema}@{server.address}"
    running = [
        subprocess.Popen([sys.executable, str(WRITER), "count", where, "3"], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]

    assert [process.wait() for process in running] == [0, 0, 0]
