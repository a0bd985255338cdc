"""The store in PostgreSQL, for several machines: the same promises as the file, kept by row locks instead of one write lock.

Every store object is a writer with a chain of its own, so that processes do not queue for one chain's end. Scopes are locked in
the order of their keys before they are compared. What is indexed is known per writer, because cursors of different writers may
become visible out of order. psycopg is imported when a store is opened, never before.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeAlias

from wardwright.errors import SealedMissing, StoreUnavailable, VersionConflict
from wardwright.history import (
    EMPTY_SCOPE,
    SCOPE_KINDS,
    ChainLink,
    Delta,
    Head,
    ReceiptRow,
    ScopeDelta,
    ScopeState,
)
from wardwright.store import rows
from wardwright.store.postings import (
    BLOCK,
    BUCKET,
    TENANT_TAG,
    Place,
    Search,
    decode,
    encode,
    gather,
    offsets,
    tag_id,
)
from wardwright.store.protocol import (
    Checkpoint,
    Commit,
    PlanEpoch,
    ReceiptPage,
    ReceiptQuery,
    SealedRow,
    StoredReceipt,
    unvouched,
)
from wardwright.store.upkeep import Upkeep

Connection: TypeAlias = Any
"""psycopg's connection; the package may be missing until a store is opened."""

_SCHEMA_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE version (version INTEGER NOT NULL, checkpoints BIGINT NOT NULL);
INSERT INTO version VALUES (2, 0);
CREATE TABLE scope (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key BYTEA NOT NULL UNIQUE, kind TEXT NOT NULL, version BIGINT NOT NULL,
    at_ms BIGINT NOT NULL, head BYTEA NOT NULL
);
CREATE TABLE register (
    scope BIGINT NOT NULL, rule BYTEA NOT NULL, sub BYTEA NOT NULL, value BYTEA NOT NULL, PRIMARY KEY (scope, rule, sub)
);
CREATE TABLE ledger (
    scope BIGINT NOT NULL, key BYTEA NOT NULL, call BIGINT, entry BYTEA NOT NULL, PRIMARY KEY (scope, key)
);
CREATE INDEX ledger_call ON ledger (call, scope) WHERE call IS NOT NULL;
CREATE TABLE sealed (
    scope BYTEA NOT NULL, name BYTEA NOT NULL, expires_at_ms BIGINT NOT NULL, body BYTEA NOT NULL, PRIMARY KEY (scope, name)
);
CREATE INDEX sealed_expiry ON sealed (expires_at_ms);
CREATE TABLE writer (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE, sequence BIGINT NOT NULL,
    previous_hash BYTEA NOT NULL, hash BYTEA NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE receipt (
    cursor BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer BIGINT NOT NULL, sequence BIGINT NOT NULL,
    id BYTEA NOT NULL, at_ms BIGINT NOT NULL, previous_hash BYTEA NOT NULL, hash BYTEA NOT NULL, scope BYTEA NOT NULL,
    body_hash BYTEA, payload BYTEA, UNIQUE (writer, sequence)
);
CREATE INDEX receipt_id ON receipt (id);
ALTER TABLE receipt ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE posting (bucket BIGINT NOT NULL, tag BIGINT NOT NULL, bits BYTEA NOT NULL, PRIMARY KEY (bucket, tag));
CREATE TABLE span (block BIGINT PRIMARY KEY, first_ms BIGINT NOT NULL, last_ms BIGINT NOT NULL);
CREATE TABLE indexed (writer BIGINT PRIMARY KEY, sequence BIGINT NOT NULL);
CREATE TABLE checkpoint (
    number BIGINT PRIMARY KEY, at_ms BIGINT NOT NULL, heads BYTEA NOT NULL, signature BYTEA NOT NULL, cut BOOLEAN NOT NULL,
    previous BYTEA NOT NULL
);
CREATE TABLE plan (epoch BIGINT PRIMARY KEY, plan_hash TEXT NOT NULL, at_ms BIGINT NOT NULL, source BYTEA NOT NULL);
CREATE TABLE counter (name BYTEA PRIMARY KEY, value BIGINT NOT NULL);
"""

_INDEX_CHUNK: Final = 1024
_ERASE_CHUNK: Final = 256
_UPKEEP_EVERY: Final = 512
_BUCKETS_AT_ONCE: Final = 64
_INDEX_LOCK: Final = 0x57415244
"""Advisory lock of whoever changes postings."""
_OPEN_LOCK: Final = 0x57415245
_NO_EPOCH: Final = 2**63 - 1
_RECEIPT: Final = (
    "SELECT r.cursor, w.name, r.sequence, r.id, r.at_ms, r.previous_hash, r.hash, r.scope, r.body_hash, r.payload "
    "FROM receipt r JOIN writer w ON w.id = r.writer "
)


class _Seat:
    """A connection, made when first used and again after it broke, with its lock: one thread at a time."""

    __slots__ = ("connection", "lock", "reads")

    def __init__(self, *, reads: bool) -> None:
        self.connection: Connection = None
        self.lock = threading.Lock()
        self.reads = reads


class PostgresStore:
    """Opened by a connection string; lives until `close`. After a fork, open another one.

    Keeps everything in one schema of the database. `writer` names this object's chain; two processes must not share one name
    by habit, they would wait for each other.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "wardwright",
        writer: str | None = None,
        busy_ms: int = 5_000,
        upkeep: bool = True,
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError("a schema's name is lower-case letters, digits and underscores")
        self._url = url
        self._schema = schema
        self._writer = writer or f"pg-{secrets.token_hex(6)}"
        if "\n" in self._writer:
            raise ValueError("a writer's name is one line")
        self._busy_ms = busy_ms
        self._pid = os.getpid()
        self._closed = False
        self._load, self._commit = _Seat(reads=True), _Seat(reads=False)
        self._query, self._change = _Seat(reads=True), _Seat(reads=False)
        self._tidy = _Seat(reads=False)
        self._upkeep = Upkeep(self.maintain, _UPKEEP_EVERY) if upkeep else None
        try:
            import psycopg
        except ImportError as error:
            raise StoreUnavailable(
                "PostgreSQL needs the extra `postgres`: pip install 'weakincentives[postgres]'"
            ) from error
        self._psycopg: Any = psycopg
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    # opening

    def _create(self) -> None:
        with self._transaction(self._change) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_OPEN_LOCK,))
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            if connection.execute("SELECT to_regclass(%s)", (f"{self._schema}.version",)).fetchone()[0] is None:
                connection.execute(_SCHEMA)
            found = connection.execute("SELECT version FROM version").fetchone()[0]
        if found != _SCHEMA_VERSION:
            raise StoreUnavailable(f"{self._named()}: made by another version of this program (schema {found})")

    def _named(self) -> str:
        """The store without its password."""
        return f"store {re.sub(r'://[^@/]*@', '://', self._url)}"

    def _connected(self, seat: _Seat) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"{self._named()}: closed")
        if os.getpid() != self._pid:
            raise StoreUnavailable(f"{self._named()}: opened before a fork; open it again in this process")
        if seat.connection is None or seat.connection.closed:
            seat.connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=max(2, self._busy_ms // 1000),
                options=f"-c search_path={self._schema} -c lock_timeout={self._busy_ms} -c client_min_messages=warning",
            )
            if seat.reads:
                seat.connection.isolation_level = self._psycopg.IsolationLevel.REPEATABLE_READ
                seat.connection.read_only = True
        return seat.connection

    @contextmanager
    def _transaction(self, seat: _Seat) -> Generator[Connection]:
        """One transaction: leaving the block by an exception leaves no trace. A reading seat has one consistent view."""
        errors = self._psycopg.errors
        with seat.lock:
            try:
                connection = self._connected(seat)
                with connection.transaction():
                    yield connection
            except (errors.DeadlockDetected, errors.SerializationFailure) as error:
                raise VersionConflict(f"{self._named()}: another writer was first: {error}") from error
            except (self._psycopg.Error, UnicodeDecodeError) as error:
                raise StoreUnavailable(f"{self._named()}: {str(error).strip()}") from error

    # scopes

    def load(self, scopes: Sequence[str], wanted: Callable[[Head], Iterable[str]]) -> dict[str, ScopeState]:
        keys = [rows.key(scope) for scope in scopes]
        with self._transaction(self._load) as connection:
            found = {
                key: (number, version, head)
                for number, key, version, head in connection.execute(
                    "SELECT id, key, version, head FROM scope WHERE key = ANY(%s)", (keys,)
                )
            }
            if not found:
                return dict.fromkeys(scopes, EMPTY_SCOPE)
            registers: dict[int, list[tuple[bytes, bytes, bytes]]] = {}
            for number, rule, sub, value in connection.execute(
                "SELECT scope, rule, sub, value FROM register WHERE scope = ANY(%s)",
                ([number for number, _, _ in found.values()],),
            ):
                registers.setdefault(number, []).append((rule, sub, value))
            ledger: Sequence[tuple[bytes, bytes]] = ()
            if (session := found.get(keys[0])) is not None:
                names = [rows.key(name) for name in wanted(rows.load_head(session[2])[1])]
                if names:
                    ledger = connection.execute(
                        "SELECT key, entry FROM ledger WHERE scope = %s AND key = ANY(%s)", (session[0], names)
                    ).fetchall()
        states: dict[str, ScopeState] = {}
        for place, (scope, key) in enumerate(zip(scopes, keys, strict=True)):
            row = found.get(key)
            if row is None:
                states[scope] = EMPTY_SCOPE
            else:
                number, version, column = row
                head = rows.load_head(column)[1]
                states[scope] = rows.scope_state(version, head, registers.get(number, ()), () if place else ledger)
        return states

    def sessions_of(self, tenant: str, call_ids: Sequence[str]) -> dict[str, str]:
        hashes = {rows.call_hash(tenant, call_id): call_id for call_id in call_ids}
        if not hashes:
            return {}
        found: dict[str, str] = {}
        with self._transaction(self._load) as connection:
            # Oldest first, so that the newest session stays, should a provider have used an id twice.
            for call, entry, scope in connection.execute(
                "SELECT ledger.call, ledger.key, scope.key FROM ledger JOIN scope ON scope.id = ledger.scope "
                "WHERE ledger.call = ANY(%s) ORDER BY ledger.scope",
                (list(hashes),),
            ):
                call_id, session = hashes[call], rows.text(scope)
                if rows.text(entry) == f"c:{call_id}" and rows.tenant_of(session) == tenant:
                    found[call_id] = session
        return found

    def sessions_alike(self, tenant: str, call_id: str, limit: int) -> list[str]:
        with self._transaction(self._load) as connection:
            found = connection.execute(
                "SELECT scope.key FROM ledger JOIN scope ON scope.id = ledger.scope "
                "WHERE ledger.call = %s AND ledger.key = %s ORDER BY ledger.scope DESC LIMIT %s",
                (rows.call_hash(tenant, call_id), rows.key(f"c:{call_id}"), limit),
            ).fetchall()
        return [session for (scope,) in found if rows.tenant_of(session := rows.text(scope)) == tenant]

    def commit(
        self,
        delta: Delta,
        receipt: ReceiptRow | None = None,
        *,
        seal: Sequence[SealedRow] = (),
        unseal: Sequence[tuple[str, str]] = (),
    ) -> ChainLink | None:
        commit = Commit(delta, receipt, seal, unseal)
        with self._transaction(self._commit) as connection:
            link = self._apply(connection, commit, self._lock(connection, (commit,)))
        self._told(1)
        return link

    def commit_all(self, commits: Sequence[Commit]) -> list[ChainLink | VersionConflict | SealedMissing | None]:
        outcomes: list[ChainLink | VersionConflict | SealedMissing | None] = []
        try:
            with self._transaction(self._commit) as connection:
                locked = self._lock(connection, commits)
                for commit in commits:
                    mine = dict(locked)
                    try:
                        with connection.transaction():
                            outcomes.append(self._apply(connection, commit, mine))
                        locked = mine
                    except (VersionConflict, SealedMissing) as error:
                        outcomes.append(error)
        except VersionConflict as error:
            # A deadlock or a lost race for the whole batch: nothing of it stands.
            return [error for _ in commits]
        self._told(len(commits))
        return outcomes

    def _told(self, count: int) -> None:
        if self._upkeep is not None:
            self._upkeep.committed(count)

    @staticmethod
    def _lock(connection: Connection, commits: Sequence[Commit]) -> dict[bytes, tuple[int, int]]:
        """Id and version of the scopes to be written, locked in one order by everybody, so that nobody waits in a circle."""
        keys = sorted({rows.key(change.scope) for commit in commits for change in commit.delta.scopes})
        if not keys:
            return {}
        return {
            key: (number, version)
            for number, key, version in connection.execute(
                "SELECT id, key, version FROM scope WHERE key = ANY(%s) ORDER BY key FOR UPDATE", (keys,)
            )
        }

    def _apply(self, connection: Connection, commit: Commit, locked: dict[bytes, tuple[int, int]]) -> ChainLink | None:
        delta = commit.delta
        for change in delta.scopes:
            version = locked.get(rows.key(change.scope), (0, 0))[1]
            if version != change.base_version:
                raise VersionConflict(
                    f"scope {change.scope!r} is at version {version}, was judged at {change.base_version}"
                )
        registers: list[tuple[int, bytes, bytes, bytes]] = []
        removed: list[tuple[int, bytes, bytes]] = []
        ledger: list[tuple[int, bytes, int | None, bytes]] = []
        for change in delta.scopes:
            columns = rows.scope_columns(change)
            number = self._write_scope(connection, change, delta.at_ms, locked)
            registers.extend((number, *one) for one in columns.registers)
            removed.extend((number, *one) for one in columns.removed)
            ledger.extend((number, *one) for one in columns.ledger)
        if removed:
            connection.execute(
                "DELETE FROM register USING unnest(%s::bigint[], %s::bytea[], %s::bytea[]) AS gone (scope, rule, sub) "
                "WHERE register.scope = gone.scope AND register.rule = gone.rule AND register.sub = gone.sub",
                _columns(removed, 3),
            )
        if registers:
            connection.execute(
                "INSERT INTO register SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[]) "
                "ON CONFLICT (scope, rule, sub) DO UPDATE SET value = excluded.value",
                _columns(registers, 4),
            )
        if ledger:
            connection.execute(
                "INSERT INTO ledger SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bigint[], %s::bytea[]) "
                "ON CONFLICT (scope, key) DO UPDATE SET call = excluded.call, entry = excluded.entry",
                _columns(ledger, 4),
            )
        for scope, name in commit.unseal:
            gone = connection.execute(
                "DELETE FROM sealed WHERE scope = %s AND name = %s AND expires_at_ms > %s",
                (rows.key(scope), rows.key(name), delta.at_ms),
            )
            if gone.rowcount == 0:
                raise SealedMissing(f"sealed row {name!r} has expired or was used")
        for row in commit.seal:
            connection.execute(
                "INSERT INTO sealed VALUES (%s, %s, %s, %s) ON CONFLICT (scope, name) DO UPDATE SET "
                "expires_at_ms = excluded.expires_at_ms, body = excluded.body",
                (rows.key(row.scope), rows.key(row.name), row.expires_at_ms, row.body),
            )
        return None if commit.receipt is None else self._append(connection, commit.receipt)

    @staticmethod
    def _write_scope(
        connection: Connection,
        change: ScopeDelta,
        at_ms: int,
        locked: dict[bytes, tuple[int, int]],
    ) -> int:
        key, head = rows.key(change.scope), rows.dump_head(at_ms, change.head)
        known = locked.get(key)
        if known is not None:
            number, version = known
            connection.execute(
                "UPDATE scope SET version = version + 1, at_ms = %s, head = %s WHERE id = %s",
                (at_ms, head, number),
            )
            locked[key] = (number, version + 1)
            return number
        row = connection.execute(
            "INSERT INTO scope (key, kind, version, at_ms, head) VALUES (%s, %s, 1, %s, %s) "
            "ON CONFLICT (key) DO NOTHING RETURNING id",
            (key, change.kind, at_ms, head),
        ).fetchone()
        if row is None:
            raise VersionConflict(f"scope {change.scope!r} was made by another writer")
        locked[key] = (row[0], 1)
        return row[0]

    def _append(self, connection: Connection, receipt: ReceiptRow) -> ChainLink:
        find = "SELECT id, sequence, hash FROM writer WHERE name = %s FOR UPDATE"
        head = connection.execute(find, (self._writer,)).fetchone()
        if head is None:
            connection.execute(
                "INSERT INTO writer (name, sequence, previous_hash, hash) VALUES (%s, 0, '', '') ON CONFLICT DO NOTHING",
                (self._writer,),
            )
            head = connection.execute(find, (self._writer,)).fetchone()
        number, last, previous = head
        link = rows.next_link(self._writer, last, previous, receipt)
        hashed = bytes.fromhex(link.hash)
        connection.execute(
            "INSERT INTO receipt (writer, sequence, id, at_ms, previous_hash, hash, scope, payload) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                number,
                link.sequence,
                rows.key(receipt.id),
                receipt.at_ms,
                previous,
                hashed,
                rows.key(receipt.scope),
                rows.packed(receipt)[1],
            ),
        )
        connection.execute(
            "UPDATE writer SET sequence = %s, previous_hash = %s, hash = %s WHERE id = %s",
            (link.sequence, previous, hashed, number),
        )
        return link

    # sealed working set

    def sealed(self, scope: str, name: str, now_ms: int) -> SealedRow:
        with self._transaction(self._load) as connection:
            row = connection.execute(
                "SELECT expires_at_ms, body FROM sealed WHERE scope = %s AND name = %s AND expires_at_ms > %s",
                (rows.key(scope), rows.key(name), now_ms),
            ).fetchone()
        if row is None:
            raise SealedMissing(f"sealed row {name!r} has expired or was used")
        return SealedRow(scope, name, row[0], row[1])

    def sealed_names(self, scope: str, prefix: str, now_ms: int, limit: int, after: str = "") -> tuple[str, ...]:
        first, last = rows.key(prefix), rows.key(after)
        end = rows.prefix_end(first) if first else b"\xff"
        # Asked for by operators and by polling, so it never holds up a gate.
        with self._transaction(self._query) as connection:
            found = connection.execute(
                "SELECT name FROM sealed WHERE scope = %s AND name >= %s AND name > %s AND name < %s AND expires_at_ms > %s "
                "ORDER BY name LIMIT %s",
                (rows.key(scope), first, last, end, now_ms, limit),
            ).fetchall()
        return tuple(rows.text(name) for (name,) in found)

    def sweep(self, now_ms: int) -> int:
        with self._transaction(self._change) as connection:
            return connection.execute("DELETE FROM sealed WHERE expires_at_ms <= %s", (now_ms,)).rowcount

    # receipts

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        with self._transaction(self._query) as connection:
            row = connection.execute(
                f"{_RECEIPT} WHERE r.id = %s ORDER BY r.cursor DESC LIMIT 1", (rows.key(receipt_id),)
            ).fetchone()
        return None if row is None else rows.stored_receipt(*row)

    def receipts(self, query: ReceiptQuery) -> ReceiptPage:
        search = Search(query)
        self._catch_up(self._change)
        found: list[StoredReceipt] = []
        with self._transaction(self._query) as connection:
            for receipt in self._found(connection, search):
                if len(found) == search.limit:
                    return ReceiptPage(tuple(found), found[-1].cursor)
                found.append(receipt)
        return ReceiptPage(tuple(found), None)

    def _found(self, connection: Connection, search: Search) -> Iterator[StoredReceipt]:
        cursors = self._cursors(connection, search)
        while some := list(islice(cursors, search.limit + 1)):
            for row in connection.execute(
                f"{_RECEIPT} WHERE r.cursor = ANY(%s) ORDER BY r.cursor DESC", (some,)
            ).fetchall():
                stored = rows.stored_receipt(*row)
                if search.fits_time(stored.row.at_ms) and search.fits(stored):
                    yield stored

    @staticmethod
    def _cursors(connection: Connection, search: Search) -> Iterator[int]:
        if search.timed:
            blocks = connection.execute(
                "SELECT block FROM span WHERE last_ms >= %s AND first_ms < %s", search.time_range
            ).fetchall()
            buckets = search.buckets_of(block for (block,) in blocks)
        else:
            first, last = connection.execute("SELECT min(block), max(block) FROM span").fetchone()
            buckets = {} if first is None else search.buckets(first, last)
        names = iter(buckets)
        while some := list(islice(names, _BUCKETS_AT_ONCE)):
            postings: dict[Place, bytes] = {}
            if search.tags:
                for bucket, tag, bits in connection.execute(
                    "SELECT bucket, tag, bits FROM posting WHERE bucket = ANY(%s) AND tag = ANY(%s)",
                    (some, list(search.tags)),
                ).fetchall():
                    postings[bucket, tag] = bits
            for bucket in some:
                yield from search.cursors(bucket, buckets[bucket], _Reader(postings, bucket))

    def chain(self, writer: str, after: int = 0, limit: int = 1000) -> tuple[StoredReceipt, ...]:
        with self._transaction(self._query) as connection:
            found = connection.execute(
                f"{_RECEIPT} WHERE w.name = %s AND r.sequence > %s ORDER BY r.sequence LIMIT %s", (writer, after, limit)
            ).fetchall()
        return tuple(rows.stored_receipt(*row) for row in found)

    def heads(self, before_ms: int | None = None) -> tuple[ChainLink, ...]:
        with self._transaction(self._query) as connection:
            if before_ms is None:
                found = connection.execute(
                    "SELECT name, sequence, previous_hash, hash FROM writer WHERE sequence > 0 ORDER BY name"
                ).fetchall()
            else:
                found = connection.execute(
                    "SELECT w.name, r.sequence, r.previous_hash, r.hash FROM writer w JOIN receipt r ON r.writer = w.id "
                    "AND r.sequence = coalesce((SELECT k.sequence - 1 FROM receipt k WHERE k.writer = w.id AND k.at_ms >= %s "
                    "ORDER BY k.sequence LIMIT 1), w.sequence) ORDER BY w.name",
                    (before_ms,),
                ).fetchall()
        return tuple(
            ChainLink(name, sequence, previous.hex(), hashed.hex()) for name, sequence, previous, hashed in found
        )

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        with self._transaction(self._change) as connection:
            last = connection.execute("SELECT checkpoints FROM version FOR UPDATE").fetchone()[0]
            if checkpoint.number != last + 1:
                raise VersionConflict(f"checkpoint {checkpoint.number} cannot follow {last}")
            connection.execute("UPDATE version SET checkpoints = %s", (checkpoint.number,))
            connection.execute(
                "INSERT INTO checkpoint VALUES (%s, %s, %s, %s, %s, %s)",
                (
                    checkpoint.number,
                    checkpoint.at_ms,
                    rows.dump_links(checkpoint.heads),
                    checkpoint.signature,
                    checkpoint.cut,
                    checkpoint.previous,
                ),
            )

    def last_checkpoint(self) -> int:
        with self._transaction(self._query) as connection:
            return connection.execute("SELECT checkpoints FROM version").fetchone()[0]

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        with self._transaction(self._query) as connection:
            found = connection.execute(
                "SELECT at_ms, heads, signature, cut, number, previous FROM checkpoint ORDER BY number"
            ).fetchall()
        return tuple(rows.checkpoint(*row) for row in found)

    def forget_receipts(self, before_ms: int, checkpoint: Checkpoint) -> int:
        rows.check_cut(checkpoint, self.heads(before_ms))
        self.add_checkpoint(checkpoint)
        gone = 0
        for link in checkpoint.heads:
            removed = _ERASE_CHUNK
            while removed == _ERASE_CHUNK:
                with self._transaction(self._change) as connection:
                    removed = connection.execute(
                        "DELETE FROM receipt WHERE cursor = ANY(ARRAY("
                        "SELECT r.cursor FROM receipt r JOIN writer w ON w.id = r.writer WHERE w.name = %s AND r.sequence <= %s "
                        "ORDER BY r.sequence LIMIT %s))",
                        (link.writer, link.sequence, _ERASE_CHUNK),
                    ).rowcount
                gone += removed
        with self._transaction(self._change) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_INDEX_LOCK,))
            # A receipt still being committed below the lowest one brings its bucket back when it is indexed.
            lowest = connection.execute("SELECT min(cursor) FROM receipt").fetchone()[0]
            end = 2**48 if lowest is None else lowest // BUCKET
            connection.execute("DELETE FROM posting WHERE bucket < %s", (end,))
            connection.execute("DELETE FROM span WHERE block < %s", (end * BUCKET // BLOCK,))
        return gone

    # indexing

    def maintain(self) -> None:
        self._catch_up(self._tidy)

    def _catch_up(self, seat: _Seat) -> None:
        """Indexes what was committed before the call; what comes in meanwhile is left for the next."""
        with self._transaction(seat) as connection:
            behind = connection.execute(
                "SELECT w.id, w.sequence FROM writer w LEFT JOIN indexed i ON i.writer = w.id "
                "WHERE w.sequence > coalesce(i.sequence, 0)"
            ).fetchall()
        for writer, goal in behind:
            while self._index_some(seat, writer) < goal:
                pass

    def _index_some(self, seat: _Seat, writer: int) -> int:
        """Indexes one chunk of one writer's receipts; how far it is indexed now."""
        with self._transaction(seat) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_INDEX_LOCK,))
            row = connection.execute("SELECT sequence FROM indexed WHERE writer = %s", (writer,)).fetchone()
            indexed = 0 if row is None else row[0]
            found = connection.execute(
                "SELECT cursor, at_ms, id, scope, payload, sequence FROM receipt WHERE writer = %s AND sequence > %s "
                "ORDER BY sequence LIMIT %s",
                (writer, indexed, _INDEX_CHUNK),
            ).fetchall()
            if not found:
                # Retention was faster than the index: there is nothing left to index.
                reached = connection.execute("SELECT sequence FROM writer WHERE id = %s", (writer,)).fetchone()[0]
            else:
                reached = found[-1][5]
                postings, spans = gather((row[0], row[1], rows.indexed_tags(*row[2:5])) for row in found)
                stored = self._postings(connection, postings)
                self._put(connection, {place: bits | stored.get(place, 0) for place, bits in postings.items()})
                connection.execute(
                    "INSERT INTO span SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) "
                    "ON CONFLICT (block) DO UPDATE SET first_ms = least(span.first_ms, excluded.first_ms), "
                    "last_ms = greatest(span.last_ms, excluded.last_ms)",
                    _columns(spans, 3),
                )
            connection.execute(
                "INSERT INTO indexed VALUES (%s, %s) ON CONFLICT (writer) DO UPDATE SET sequence = excluded.sequence",
                (writer, reached),
            )
        return reached

    def postings(
        self, places: Sequence[Place], blocks: Sequence[int]
    ) -> tuple[dict[Place, int], dict[int, tuple[int, int]]]:
        with self._transaction(self._query) as connection:
            found = connection.execute(
                "SELECT block, first_ms, last_ms FROM span WHERE block = ANY(%s)", (list(blocks),)
            ).fetchall()
            return self._postings(connection, places), {block: (first, last) for block, first, last in found}

    def reindex(self) -> None:
        with self._transaction(self._change) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_INDEX_LOCK,))
            for table in ("posting", "span", "indexed"):
                connection.execute(f"DELETE FROM {table}")
        self._catch_up(self._change)

    @staticmethod
    def _postings(connection: Connection, places: Iterable[Place]) -> dict[Place, int]:
        return {
            (bucket, tag): decode(bits)
            for bucket, tag, bits in connection.execute(
                "SELECT p.bucket, p.tag, p.bits FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (bucket, tag) "
                "JOIN posting p ON p.bucket = wanted.bucket AND p.tag = wanted.tag",
                _columns(places, 2),
            ).fetchall()
        }

    @staticmethod
    def _put(connection: Connection, postings: Mapping[Place, int]) -> None:
        connection.execute(
            "INSERT INTO posting SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) "
            "ON CONFLICT (bucket, tag) DO UPDATE SET bits = excluded.bits",
            _columns(((bucket, tag, encode(bits)) for (bucket, tag), bits in postings.items()), 3),
        )

    # scopes' life

    def forget_scopes(self, kind: str, before_ms: int) -> int:
        gone = 0
        while True:
            with self._transaction(self._change) as connection:
                found = connection.execute(
                    "SELECT id, key FROM scope WHERE kind = %s AND at_ms < %s LIMIT %s FOR UPDATE SKIP LOCKED",
                    (kind, before_ms, _ERASE_CHUNK),
                ).fetchall()
                self._erase_scopes(connection, found)
            gone += len(found)
            if len(found) < _ERASE_CHUNK:
                return gone

    @staticmethod
    def _erase_scopes(connection: Connection, found: Sequence[tuple[int, bytes]]) -> None:
        numbers = [number for number, _ in found]
        connection.execute("DELETE FROM register WHERE scope = ANY(%s)", (numbers,))
        connection.execute("DELETE FROM ledger WHERE scope = ANY(%s)", (numbers,))
        connection.execute("DELETE FROM sealed WHERE scope = ANY(%s)", ([key for _, key in found],))
        connection.execute("DELETE FROM scope WHERE id = ANY(%s)", (numbers,))

    def forget_tenant(self, tenant: str, vouch: Callable[[str], bytes] = unvouched) -> int:
        gone = 0
        for first, end in rows.tenant_ranges(SCOPE_KINDS, tenant):
            while True:
                with self._transaction(self._change) as connection:
                    found = connection.execute(
                        "SELECT id, key FROM scope WHERE key >= %s AND key < %s ORDER BY key LIMIT %s FOR UPDATE",
                        (first, end, _ERASE_CHUNK),
                    ).fetchall()
                    self._erase_scopes(connection, found)
                    connection.execute("DELETE FROM sealed WHERE scope >= %s AND scope < %s", (first, end))
                gone += len(found)
                if len(found) < _ERASE_CHUNK:
                    break
        while True:
            self._catch_up(self._change)
            erased = self._erase_receipts(tenant, vouch)
            if not erased:
                return gone
            gone += erased

    def _erase_receipts(self, tenant: str, vouch: Callable[[str], bytes]) -> int:
        """Erases the bodies of one chunk of a tenant's indexed receipts, and takes them out of the postings."""
        with self._transaction(self._change) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_INDEX_LOCK,))
            row = connection.execute(
                "SELECT p.bucket, p.bits FROM (SELECT DISTINCT block / %s AS bucket FROM span) b "
                "JOIN posting p ON p.bucket = b.bucket AND p.tag = %s LIMIT 1",
                (BUCKET // BLOCK, tag_id(TENANT_TAG, tenant)),
            ).fetchone()
            if row is None:
                return 0
            bucket, left = row[0], decode(row[1])
            cursors = [bucket * BUCKET + offset for offset in islice(offsets(left), _ERASE_CHUNK)]
            found = {
                cursor: (scope, payload, hashed)
                for cursor, scope, payload, hashed in connection.execute(
                    "SELECT cursor, scope, payload, hash FROM receipt WHERE cursor = ANY(%s)", (cursors,)
                ).fetchall()
            }
            taken: list[tuple[int, int, Sequence[str]]] = []
            for cursor in cursors:
                # Its bit goes with this chunk even if retention took it or somebody emptied it: else this would never end.
                tags = [f"{TENANT_TAG}={tenant}"]
                taken.append((cursor, 0, tags))
                if cursor not in found:
                    continue
                scope, payload, hashed = found[cursor]
                tags.extend(rows.erased_tags(scope, payload))
                connection.execute(
                    "UPDATE receipt SET body_hash = %s, payload = NULL, scope = '' WHERE cursor = %s AND payload IS NOT NULL",
                    (rows.erased_column(payload, hashed, vouch), cursor),
                )
            postings = gather(taken)[0]
            stored = self._postings(connection, postings)
            kept = {place: bits & ~postings[place] for place, bits in stored.items()}
            self._put(connection, {place: bits for place, bits in kept.items() if bits})
            connection.execute(
                "DELETE FROM posting USING unnest(%s::bigint[], %s::bigint[]) AS gone (bucket, tag) "
                "WHERE posting.bucket = gone.bucket AND posting.tag = gone.tag",
                _columns([place for place, bits in kept.items() if not bits], 2),
            )
            return len(taken)

    # plan

    def plan_epoch(self) -> PlanEpoch | None:
        with self._transaction(self._load) as connection:
            row = connection.execute(
                "SELECT epoch, plan_hash, at_ms, source FROM plan ORDER BY epoch DESC LIMIT 1"
            ).fetchone()
        return None if row is None else PlanEpoch(*row)

    def plan_epochs(self, limit: int, before: int | None = None) -> tuple[PlanEpoch, ...]:
        with self._transaction(self._query) as connection:
            found = connection.execute(
                "SELECT epoch, plan_hash, at_ms, source FROM plan WHERE epoch < %s ORDER BY epoch DESC LIMIT %s",
                (_NO_EPOCH if before is None else before, limit),
            ).fetchall()
        return tuple(PlanEpoch(*row) for row in found)

    def activate(self, plan_hash: str, source: bytes, now_ms: int, expected_epoch: int) -> PlanEpoch:
        with self._transaction(self._commit) as connection:
            connection.execute("LOCK TABLE plan IN SHARE ROW EXCLUSIVE MODE")
            epoch = connection.execute("SELECT coalesce(max(epoch), 0) FROM plan").fetchone()[0]
            if epoch != expected_epoch:
                raise VersionConflict(f"the plan is at epoch {epoch}, not {expected_epoch}")
            connection.execute("INSERT INTO plan VALUES (%s, %s, %s, %s)", (epoch + 1, plan_hash, now_ms, source))
        return PlanEpoch(epoch + 1, plan_hash, now_ms, source)

    # counters

    def count(self, increments: Mapping[str, int]) -> None:
        if not increments:
            return
        with self._transaction(self._commit) as connection:
            connection.execute(
                "INSERT INTO counter SELECT * FROM unnest(%s::bytea[], %s::bigint[]) "
                "ON CONFLICT (name) DO UPDATE SET value = counter.value + excluded.value",
                # In one order by everybody, so that two counting at once never wait in a circle.
                _columns(sorted((rows.key(name), value) for name, value in increments.items()), 2),
            )

    def counters(self, prefix: str) -> dict[str, int]:
        first = rows.key(prefix)
        with self._transaction(self._query) as connection:
            if first:
                found = connection.execute(
                    "SELECT name, value FROM counter WHERE name >= %s AND name < %s", (first, rows.prefix_end(first))
                ).fetchall()
            else:
                found = connection.execute("SELECT name, value FROM counter").fetchall()
        return {rows.text(name): value for name, value in found}

    def close(self) -> None:
        if self._closed:
            return
        if self._upkeep is not None and os.getpid() == self._pid:
            self._upkeep.stop()
        self._closed = True
        for seat in (self._load, self._commit, self._query, self._change, self._tidy):
            with seat.lock:
                if seat.connection is not None:
                    seat.connection.close()


class _Reader:
    """Postings of one bucket, decoded as they are asked for."""

    __slots__ = ("_bucket", "_postings")

    def __init__(self, postings: Mapping[Place, bytes], bucket: int) -> None:
        self._postings = postings
        self._bucket = bucket

    def __call__(self, tag: int) -> int:
        bits = self._postings.get((self._bucket, tag))
        return 0 if bits is None else decode(bits)


def _columns(table: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as the arrays that `unnest` takes; an empty table still has its width."""
    columns = [list(column) for column in zip(*table, strict=True)]
    return columns or [[] for _ in range(width)]
