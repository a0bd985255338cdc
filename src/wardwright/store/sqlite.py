"""The store in one SQLite file: no set-up, several threads, several processes.

On the path a gate writes its scopes' rows and one receipt row, in one transaction. Postings are built in bulk behind it, up to
a watermark, and caught up before any query; write-ahead-log checkpoints happen on another thread. Writers queue on a lock file
first, because SQLite's own waiting sleeps in coarse steps. An error of any kind is `StoreUnavailable`: never an empty answer.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from wardwright.errors import SealedMissing, StoreUnavailable, VersionConflict
from wardwright.history import (
    EMPTY_SCOPE,
    SCOPE_KINDS,
    ChainLink,
    Delta,
    Head,
    ReceiptRow,
    ScopeState,
    body_hash,
    chain_hash,
)
from wardwright.store import rows
from wardwright.store.postings import (
    BLOCK,
    BUCKET,
    ID_TAG,
    TENANT_TAG,
    Place,
    Search,
    decode,
    encode,
    gather,
    gather_columns,
    merge,
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

_SCHEMA_VERSION: Final = 3
_SCHEMA: Final = """
CREATE TABLE scope (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE);
CREATE TABLE cell (
    scope INTEGER NOT NULL, name BLOB NOT NULL, number INTEGER, value BLOB NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE call (hash INTEGER NOT NULL, scope INTEGER NOT NULL, PRIMARY KEY (hash, scope)) WITHOUT ROWID;
CREATE TABLE sealed (
    scope BLOB NOT NULL, name BLOB NOT NULL, expires_at_ms INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE INDEX sealed_expiry ON sealed (expires_at_ms);
CREATE TABLE chain (
    writer TEXT NOT NULL, sequence INTEGER NOT NULL, previous_hash BLOB NOT NULL, hash BLOB NOT NULL, indexed INTEGER NOT NULL
);
CREATE TABLE receipt (
    sequence INTEGER PRIMARY KEY, id BLOB NOT NULL, at_ms INTEGER NOT NULL, previous_hash BLOB NOT NULL,
    hash BLOB NOT NULL, scope BLOB NOT NULL, body_hash BLOB, payload BLOB
);
CREATE TABLE posting (
    bucket INTEGER NOT NULL, tag INTEGER NOT NULL, bits BLOB NOT NULL, PRIMARY KEY (bucket, tag)
) WITHOUT ROWID;
CREATE TABLE span (block INTEGER PRIMARY KEY, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL);
CREATE TABLE checkpoint (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, heads BLOB NOT NULL, signature BLOB NOT NULL,
    cut INTEGER NOT NULL, previous BLOB NOT NULL
);
CREATE TABLE plan (epoch INTEGER PRIMARY KEY, plan_hash TEXT NOT NULL, at_ms INTEGER NOT NULL, source BLOB NOT NULL);
CREATE TABLE counter (name BLOB PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

# All of a scope is in one place, so that a gate writes one page of it. A cell's first byte says what it is.
# CAUTION: bytearrays, so that names made of them are: for every `bytes` that becomes a column `sqlite3` looks for an adapter, by
# raising and catching, and that costs more than the column.
_HEAD: Final = bytearray(b"\x00")
"""`number` is the version; the value holds the time it was written, and the head."""
_REGISTER: Final = bytearray(b"\x01")
_LEDGER: Final = bytearray(b"\x02")
"""`number` is the hash of a call that `sessions_of` must find; the table `call` leads to it."""

_INDEX_CHUNK: Final = 1024
_ERASE_CHUNK: Final = 256
_UPKEEP_EVERY: Final = 1024
_LOG_PAGES: Final = 16_384
"""A write-ahead log longer than this (64 MB) is made to start anew."""
_PLACES: Final = 16_384
_RECENT: Final = 4_096
_ROWS: Final = 48
"""Rows that are put by one statement."""
_NEW_SCOPE: Final = "INSERT INTO scope (key) VALUES (?)"
_PUT: Final = (
    "INSERT INTO posting SELECT ?1, value, substr(?4, key * ?2 + 1, ?2) FROM json_each(?3) WHERE true "
    "ON CONFLICT DO UPDATE SET bits = merge_postings(bits, excluded.bits)"
)
_NO_EPOCH: Final = 2**63 - 1
_RECEIPT: Final = (
    "SELECT receipt.sequence, chain.writer, receipt.sequence, id, at_ms, receipt.previous_hash, receipt.hash, scope, body_hash, payload "
    "FROM receipt, chain "
)


class _Seat:
    """A connection with its lock: one thread at a time."""

    __slots__ = ("connection", "cursor", "lock")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        """For statements that end at once: a connection makes a new one for each."""
        self.lock = threading.Lock()


class _Reader:
    """Postings of one bucket, read as they are asked for."""

    __slots__ = ("_bucket", "_connection")

    def __init__(self, connection: sqlite3.Connection, bucket: int) -> None:
        self._connection = connection
        self._bucket = bucket

    def __call__(self, tag: int) -> int:
        row = self._connection.execute(
            "SELECT bits FROM posting WHERE bucket = ? AND tag = ?", (self._bucket, tag)
        ).fetchone()
        return 0 if row is None else decode(row[0])


_Indexed: TypeAlias = tuple[int, str, str, list[str]]
"""What of a receipt is indexed: time, id, scope and tags."""


class _Insert:
    """One statement for many rows: a step for each row costs more than the row does."""

    __slots__ = ("_into", "_row", "_statements", "_width")

    def __init__(self, into: str, row: str) -> None:
        self._into = into
        self._row = row
        self._width = row.count("?")
        self._statements: dict[int, str] = {}
        """By the number of columns, so that the connection knows each by heart."""

    def put(self, cursor: sqlite3.Cursor, columns: list[Any]) -> None:
        """`columns`: those of all rows, one behind the other. Rows are put in their order."""
        step = self._width * _ROWS
        if len(columns) > step:
            # Each is taken out where it stands: a transcript may have fifty thousand items, and sixty-four come in one batch.
            for start in range(0, len(columns), step):
                self.put(cursor, columns[start : start + step])
            return
        statement = self._statements.get(len(columns))
        if statement is None:
            values = ", ".join([self._row] * (len(columns) // self._width))
            statement = self._statements[len(columns)] = f"{self._into} VALUES {values}"
        cursor.execute(statement, columns)


_PUT_CELLS: Final = _Insert("INSERT OR REPLACE INTO cell", "(?, ?, ?, ?)")
_PUT_CALLS: Final = _Insert("INSERT OR IGNORE INTO call", "(?, ?)")
_PUT_RECEIPTS: Final = _Insert("INSERT INTO receipt", "(?, ?, ?, ?, ?, ?, NULL, ?)")


class _Batch:
    """What the commits of one transaction write, gathered so that each table is met once."""

    __slots__ = ("calls", "cells", "end", "receipts", "recent")

    def __init__(self, end: tuple[str, int, bytes | bytearray]) -> None:
        # Column behind column, as they are given to the statements.
        self.cells: list[int | bytearray] = []
        """With 0 for no number: None, too, would be looked for in vain."""
        self.calls: list[int] = []
        self.receipts: list[int | bytes | bytearray] = []
        self.recent: dict[int, _Indexed] = {}
        self.end = end
        """Writer, sequence and hash of the last link."""

    def append(self, receipt: ReceiptRow, tags: list[str], payload: bytes) -> ChainLink:
        writer, last, previous = self.end
        sequence, before = last + 1, previous.hex()
        receipt_id, at_ms, scope = receipt.id, receipt.at_ms, receipt.scope
        made = chain_hash(writer, sequence, before, receipt_id, at_ms, body_hash(receipt.body))
        hashed = bytearray.fromhex(made)
        row_id, row_scope = bytearray(receipt_id, "utf-8", "surrogatepass"), bytearray(scope, "utf-8", "surrogatepass")
        self.receipts += (sequence, row_id, at_ms, previous, hashed, row_scope, bytearray(payload))
        self.recent[sequence] = (at_ms, receipt_id, scope, tags)
        self.end = (writer, sequence, hashed)
        return ChainLink(writer, sequence, before, made)

    def flush(self, cursor: sqlite3.Cursor) -> None:
        if self.cells:
            _PUT_CELLS.put(cursor, self.cells)
            self.cells = []


def check_file(path: str | os.PathLike[str]) -> None:
    """StoreUnavailable when no store can be there, before anything is made beside it. What it cannot tell, opening does."""
    place = Path(path)
    problem = _misplaced(place)
    if problem:
        raise StoreUnavailable(f"store {place}: {problem}")


def _misplaced(place: Path) -> str:
    """What is wrong with where a store shall be, and what to do; empty: nothing that can be seen."""
    folder = place.parent
    try:
        size = place.stat().st_size
    except FileNotFoundError:
        if not folder.is_dir():
            return f"there is no folder {folder}; make it, or name another file"
        may = os.access(folder, os.W_OK | os.X_OK)
        return "" if may else f"no file may be made in the folder {folder}; change its mode, or name another file"
    except NotADirectoryError:
        return f"{folder} is no folder; name another file"
    except OSError:
        return ""
    if place.is_dir():
        return "this is a folder; name a file"
    if size == 0:
        return ""
    # As it lies there, without its log: no lock is taken and no file is made. The head and the list of tables are written as one page.
    try:
        with closing(sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as asked:
            found: int = asked.execute("PRAGMA user_version").fetchone()[0]
            others = found == 0 and asked.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return "this file is no database; name another one, or one that does not exist yet"
        return ""
    if others:
        return _OTHERS
    return _OLDER.format(found=found) if found not in (0, _SCHEMA_VERSION) else ""


_OTHERS: Final = "the file belongs to another program; name another one"
_OLDER: Final = "made by another version of this program (schema {found}); name another file, or use that version"


class SqliteStore:
    """Opened by a path; lives until `close`. After a fork, open another one.

    `sync="normal"` survives a killed process; only `"full"` survives a power cut, at one disk flush per commit.
    The file has one chain of receipts, whatever process writes: its one write lock orders them all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Literal["normal", "full"] = "normal",
        busy_ms: int = 5_000,
        upkeep: bool = True,
    ) -> None:
        check_file(path)
        self._path = Path(path)
        self._busy_s = busy_ms / 1000
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._closed = False
        self._seats: list[_Seat] = []
        self._files: list[int] = []
        self._upkeep = Upkeep(self.maintain, _UPKEEP_EVERY) if upkeep else None
        self._changes = -1
        """SQLite's own count of what other connections wrote, when `_end` and `_places` were true."""
        self._end: tuple[str, int, bytes | bytearray] = ("", 0, b"")
        self._places: dict[str, tuple[int, int]] = {}
        """Id and version of scopes, so that a commit need not look for them."""
        self._recent: dict[int, _Indexed] = {}
        """Receipts that were committed here and perhaps not indexed yet, so that no row need be read for them."""
        try:
            # The file holds who called what: nobody else's business.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._lock_file = self._open_file("-lock")
            self._upkeep_file = self._open_file("-upkeep")
            with self._file_turn():
                self._hot = self._connect(sync)
                self._create()
            self._cold = self._connect(sync)
            self._tidy = self._connect(sync)
        except (OSError, sqlite3.Error, StoreUnavailable) as error:
            self.close()
            if isinstance(error, StoreUnavailable):
                raise
            raise self._unavailable(error) from error

    # opening

    def _open_file(self, suffix: str) -> int:
        file = os.open(f"{self._path}{suffix}", os.O_RDWR | os.O_CREAT, 0o600)
        self._files.append(file)
        return file

    def _connect(self, sync: str) -> _Seat:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        seat = _Seat(connection)
        self._seats.append(seat)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if sync == 'full' else 'NORMAL'}")
        connection.execute("PRAGMA cache_size = -16384")
        # What a statement would need to undo itself, small here, would else be written to a file of its own.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        # A backstop: the upkeep thread checkpoints long before.
        connection.execute("PRAGMA wal_autocheckpoint = 65536")
        connection.create_function("merge_postings", 2, merge, deterministic=True)
        return seat

    def _create(self) -> None:
        connection = self._hot.connection
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found == _SCHEMA_VERSION:
            return
        if found != 0:
            raise StoreUnavailable(f"store {self._path}: {_OLDER.format(found=found)}")
        if connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None:
            raise StoreUnavailable(f"store {self._path}: {_OTHERS}")
        writer = f"sqlite-{os.urandom(6).hex()}"
        connection.executescript(
            f"BEGIN IMMEDIATE;{_SCHEMA}INSERT INTO chain VALUES ('{writer}', 0, x'', x'', 0);"
            f"PRAGMA user_version = {_SCHEMA_VERSION};COMMIT;"
        )

    # transactions

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"store {self._path}: {error}")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"store {self._path}: closed")
        if os.getpid() != self._pid:
            raise StoreUnavailable(f"store {self._path}: opened before a fork; open it again in this process")

    def _take_turn(self) -> None:
        """The right to write, among this process's threads and then among processes."""
        if not self._turn.acquire(blocking=False) and not self._turn.acquire(timeout=self._busy_s):
            raise StoreUnavailable(f"store {self._path}: another thread kept it locked for {self._busy_s:g} s")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait_for_turn()
        except BaseException:
            self._turn.release()
            raise

    def _wait_for_turn(self) -> None:
        deadline = time.monotonic() + self._busy_s
        pause = 0.00005
        try:
            while True:
                # Finer steps than SQLite's own, which would sleep for milliseconds at once.
                time.sleep(pause)
                pause = min(pause * 1.5, 0.002)
                try:
                    fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(
                            f"store {self._path}: another process kept it locked for {self._busy_s:g} s"
                        ) from None
                else:
                    return
        except BaseException:
            self._turn.release()
            raise

    def _end_turn(self) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        finally:
            self._turn.release()

    @contextmanager
    def _file_turn(self) -> Generator[None]:
        self._take_turn()
        try:
            yield
        finally:
            self._end_turn()

    @contextmanager
    def _reading(self, seat: _Seat) -> Generator[sqlite3.Connection]:
        """One consistent view."""
        with seat.lock:
            self._check_open()
            connection = seat.connection
            try:
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:
                        connection.execute("COMMIT")
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise self._unavailable(error) from error

    @contextmanager
    def _writing(self, seat: _Seat) -> Generator[sqlite3.Connection]:
        """One transaction: leaving the block by an exception leaves no trace."""
        with seat.lock:
            self._check_open()
            connection = seat.connection
            try:
                with self._file_turn():
                    connection.execute("BEGIN IMMEDIATE")
                    try:
                        yield connection
                        connection.execute("COMMIT")
                    finally:
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise self._unavailable(error) from error

    # scopes

    def load(self, scopes: Sequence[str], wanted: Callable[[Head], Iterable[str]]) -> dict[str, ScopeState]:
        states: dict[str, ScopeState] = {}
        with self._reading(self._hot) as connection:
            for place, scope in enumerate(scopes):
                found = connection.execute(
                    "SELECT cell.scope, name, number, value FROM scope JOIN cell ON cell.scope = scope.id "
                    "WHERE key = ? AND name < x'02' ORDER BY name",
                    (rows.key(scope),),
                ).fetchall()
                if not found:
                    states[scope] = EMPTY_SCOPE
                    continue
                number, kind, version, column = found[0]
                if kind != _HEAD:
                    raise StoreUnavailable(f"store {self._path}: a scope has lost its head")
                _, head = rows.load_head(column)
                registers = [(*_register_key(name), value) for _, name, _, value in found[1:]]
                ledger = self._ledger(connection, number, wanted(head)) if place == 0 else ()
                states[scope] = rows.scope_state(version, head, registers, ledger)
        return states

    @staticmethod
    def _ledger(connection: sqlite3.Connection, number: int, wanted: Iterable[str]) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for name in wanted:
            key = rows.key(name)
            row = connection.execute(
                "SELECT value FROM cell WHERE scope = ? AND name = ?", (number, _LEDGER + key)
            ).fetchone()
            if row is not None:
                found.append((key, row[0]))
        return found

    def sessions_of(self, tenant: str, call_ids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self._reading(self._hot) as connection:
            for call_id in call_ids:
                # The newest session, should a provider have used an id twice.
                for (scope,) in connection.execute(
                    "SELECT scope.key FROM call JOIN cell ON cell.scope = call.scope AND cell.name = ? AND number = hash "
                    "JOIN scope ON scope.id = call.scope WHERE hash = ? ORDER BY call.scope DESC",
                    (_LEDGER + rows.key(f"c:{call_id}"), rows.call_hash(tenant, call_id)),
                ):
                    session = rows.text(scope)
                    if rows.tenant_of(session) == tenant:
                        found[call_id] = session
                        break
        return found

    def sessions_alike(self, tenant: str, call_id: str, limit: int) -> list[str]:
        with self._reading(self._hot) as connection:
            found = connection.execute(
                "SELECT scope.key FROM call JOIN cell ON cell.scope = call.scope AND cell.name = ? AND number = hash "
                "JOIN scope ON scope.id = call.scope WHERE hash = ? ORDER BY call.scope DESC LIMIT ?",
                (_LEDGER + rows.key(f"c:{call_id}"), rows.call_hash(tenant, call_id), limit),
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
        outcome = self.commit_all((Commit(delta, receipt, seal, unseal),))[0]
        if isinstance(outcome, (VersionConflict, SealedMissing)):
            raise outcome
        return outcome

    def commit_all(self, commits: Sequence[Commit]) -> list[ChainLink | VersionConflict | SealedMissing | None]:
        # Whatever needs no turn is done before it: other processes wait meanwhile.
        packed = [None if row is None else rows.packed(row) for _, row, _, _ in commits]
        seat = self._hot
        with seat.lock:
            self._check_open()
            try:
                self._take_turn()
                try:
                    outcomes = self._commit_batch(seat.cursor, commits, packed)
                finally:
                    self._end_turn()
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise self._unavailable(error) from error
            if self._upkeep is not None:
                self._upkeep.committed(len(commits))
        return outcomes

    def _commit_batch(
        self,
        cursor: sqlite3.Cursor,
        commits: Sequence[Commit],
        packed: Sequence[tuple[list[str], bytes] | None],
    ) -> list[ChainLink | VersionConflict | SealedMissing | None]:
        execute = cursor.execute
        outcomes: list[ChainLink | VersionConflict | SealedMissing | None] = []
        execute("BEGIN IMMEDIATE")
        try:
            self._forget_if_changed(cursor)
            batch = _Batch(self._end)
            for (delta, receipt, seal, unseal), made in zip(commits, packed, strict=True):
                try:
                    numbers = self._check(cursor, delta, unseal)
                except (VersionConflict, SealedMissing) as error:
                    outcomes.append(error)
                    continue
                self._gather(cursor, delta, numbers, batch)
                if seal or unseal:
                    self._seal(cursor, seal, unseal)
                outcomes.append(None if receipt is None or made is None else batch.append(receipt, *made))
            self._write(cursor, batch)
            execute("COMMIT")
        except BaseException:
            # What is in the file is only certain when read again.
            self._changes = -1
            if cursor.connection.in_transaction:
                execute("ROLLBACK")
            raise
        self._end = batch.end
        if len(self._places) > _PLACES:
            self._places.clear()
        if len(self._recent) > _RECENT:
            self._recent.clear()
        self._recent.update(batch.recent)
        return outcomes

    def _forget_if_changed(self, cursor: sqlite3.Cursor) -> None:
        """Scopes and the end of the chain are as this connection left them, unless another one has written since."""
        changes = cursor.execute("PRAGMA data_version").fetchone()[0]
        if changes != self._changes:
            self._places.clear()
            self._end = self._chain_row(cursor, "writer, sequence, hash")
            self._changes = changes

    def _check(self, cursor: sqlite3.Cursor, delta: Delta, unseal: Sequence[tuple[str, str]]) -> list[int | None]:
        """Everything that can refuse a commit, before anything is written: so one of a batch can fail alone. The scopes' ids."""
        numbers: list[int | None] = []
        for change in delta.scopes:
            number, version = self._places.get(change.scope) or self._place(cursor, change.scope)
            if version != change.base_version:
                raise VersionConflict(
                    f"scope {change.scope!r} is at version {version}, was judged at {change.base_version}"
                )
            numbers.append(number)
        for scope, name in unseal:
            row = cursor.execute(
                "SELECT 1 FROM sealed WHERE scope = ? AND name = ? AND expires_at_ms > ?",
                (rows.key(scope), rows.key(name), delta.at_ms),
            ).fetchone()
            if row is None:
                raise SealedMissing(f"sealed row {name!r} has expired or was used")
        return numbers

    @staticmethod
    def _place(cursor: sqlite3.Cursor, scope: str) -> tuple[int | None, int]:
        return cursor.execute(
            "SELECT id, number FROM scope JOIN cell ON cell.scope = id AND name = x'00' WHERE key = ?",
            (rows.key(scope),),
        ).fetchone() or (None, 0)

    def _gather(self, cursor: sqlite3.Cursor, delta: Delta, numbers: list[int | None], batch: _Batch) -> None:
        """What a delta that stands will write. What goes is taken out at once."""
        for place, change in enumerate(delta.scopes):
            scope, number = change.scope, numbers[place]
            if number is None:
                number = cast("int", cursor.execute(_NEW_SCOPE, (rows.key(scope),)).lastrowid)
            version = change.base_version + 1
            # The next commit of the batch is checked against it; should the batch fail, all places are forgotten.
            self._places[scope] = (number, version)
            cells = batch.cells
            cells += (number, _HEAD, version, bytearray(rows.dump_head(delta.at_ms, change.head)))
            removed: list[tuple[int, bytearray]] = []
            for (rule, sub), value in change.registers.items():
                name = _register_name(rule) + rows.key(sub)
                if value is None:
                    removed.append((number, name))
                else:
                    cells += (number, name, 0, bytearray(rows.dump(value)))
            for name, entry in change.ledger.items():
                call = 0 if entry[0] == "observed" else rows.ruled_call(scope, name, entry) or 0
                if call:
                    batch.calls += (call, number)
                cells += (number, _LEDGER + rows.key(name), call, bytearray(rows.dump([*entry])))
            if removed:
                # A later commit may set it again, an earlier one may have set it: the order must stay.
                batch.flush(cursor)
                cursor.executemany("DELETE FROM cell WHERE scope = ? AND name = ?", removed)

    @staticmethod
    def _seal(cursor: sqlite3.Cursor, seal: Sequence[SealedRow], unseal: Sequence[tuple[str, str]]) -> None:
        for scope, name in unseal:
            cursor.execute("DELETE FROM sealed WHERE scope = ? AND name = ?", (rows.key(scope), rows.key(name)))
        for row in seal:
            cursor.execute(
                "INSERT OR REPLACE INTO sealed VALUES (?, ?, ?, ?)",
                (rows.key(row.scope), rows.key(row.name), row.expires_at_ms, row.body),
            )

    def _write(self, cursor: sqlite3.Cursor, batch: _Batch) -> None:
        batch.flush(cursor)
        if batch.calls:
            # A table of its own, because an index of cells would repeat their names: four times the pages, each touched at random.
            _PUT_CALLS.put(cursor, batch.calls)
        if batch.receipts:
            _PUT_RECEIPTS.put(cursor, batch.receipts)
            _, last, hashed = batch.end
            moved = cursor.execute(
                "UPDATE chain SET sequence = ?, previous_hash = ?, hash = ? WHERE hash = ?",
                (last, batch.receipts[-4], hashed, self._end[2]),
            )
            if not moved.rowcount:
                raise StoreUnavailable(f"store {self._path}: the head of its chain is gone")

    def _chain_row(self, source: sqlite3.Connection | sqlite3.Cursor, columns: str) -> Any:
        row = source.execute(f"SELECT {columns} FROM chain").fetchone()
        if row is None:
            raise StoreUnavailable(f"store {self._path}: the head of its chain is gone")
        return row

    # sealed working set

    def sealed(self, scope: str, name: str, now_ms: int) -> SealedRow:
        with self._reading(self._hot) as connection:
            row = connection.execute(
                "SELECT expires_at_ms, body FROM sealed WHERE scope = ? AND name = ? AND expires_at_ms > ?",
                (rows.key(scope), rows.key(name), now_ms),
            ).fetchone()
        if row is None:
            raise SealedMissing(f"sealed row {name!r} has expired or was used")
        return SealedRow(scope, name, row[0], row[1])

    def sealed_names(self, scope: str, prefix: str, now_ms: int, limit: int, after: str = "") -> tuple[str, ...]:
        first, last = rows.key(prefix), rows.key(after)
        end = rows.prefix_end(first) if first else b"\xff"
        # Asked for by operators and by polling, so it never holds up a gate.
        with self._reading(self._cold) as connection:
            found = connection.execute(
                "SELECT name FROM sealed WHERE scope = ? AND name >= ? AND name > ? AND name < ? AND expires_at_ms > ? "
                "ORDER BY name LIMIT ?",
                (rows.key(scope), first, last, end, now_ms, limit),
            ).fetchall()
        return tuple(rows.text(name) for (name,) in found)

    def sweep(self, now_ms: int) -> int:
        with self._writing(self._cold) as connection:
            return connection.execute("DELETE FROM sealed WHERE expires_at_ms <= ?", (now_ms,)).rowcount

    # receipts

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        # An id is a tag like others: an index of its own would cost every commit a page.
        search = Search(ReceiptQuery(tags={ID_TAG: (receipt_id,)}, limit=1))
        self._catch_up(self._cold)
        with self._reading(self._cold) as connection:
            return next(self._found(connection, search), None)

    def receipts(self, query: ReceiptQuery) -> ReceiptPage:
        search = Search(query)
        self._catch_up(self._cold)
        found: list[StoredReceipt] = []
        with self._reading(self._cold) as connection:
            for receipt in self._found(connection, search):
                if len(found) == search.limit:
                    return ReceiptPage(tuple(found), found[-1].cursor)
                found.append(receipt)
        return ReceiptPage(tuple(found), None)

    @staticmethod
    def _found(connection: sqlite3.Connection, search: Search) -> Iterator[StoredReceipt]:
        if search.timed:
            blocks = connection.execute(
                "SELECT block FROM span WHERE last_ms >= ? AND first_ms < ?", search.time_range
            ).fetchall()
            buckets = search.buckets_of(block for (block,) in blocks)
        else:
            first, last = connection.execute("SELECT min(block), max(block) FROM span").fetchone()
            buckets = {} if first is None else search.buckets(first, last)
        for bucket, places in buckets.items():
            for cursor in search.cursors(bucket, places, _Reader(connection, bucket)):
                row = connection.execute(f"{_RECEIPT} WHERE receipt.sequence = ?", (cursor,)).fetchone()
                if row is not None and search.fits_time(row[4]):
                    stored = rows.stored_receipt(*row)
                    if search.fits(stored):
                        yield stored

    def chain(self, writer: str, after: int = 0, limit: int = 1000) -> tuple[StoredReceipt, ...]:
        with self._reading(self._cold) as connection:
            found = connection.execute(
                f"{_RECEIPT} WHERE chain.writer = ? AND receipt.sequence > ? ORDER BY receipt.sequence LIMIT ?",
                (writer, after, limit),
            ).fetchall()
        return tuple(rows.stored_receipt(*row) for row in found)

    def heads(self, before_ms: int | None = None) -> tuple[ChainLink, ...]:
        with self._reading(self._cold) as connection:
            row = connection.execute("SELECT writer, sequence, previous_hash, hash FROM chain").fetchone()
            if before_ms is not None:
                kept = connection.execute(
                    "SELECT sequence FROM receipt WHERE at_ms >= ? ORDER BY sequence LIMIT 1", (before_ms,)
                ).fetchone()
                row = connection.execute(
                    "SELECT chain.writer, receipt.sequence, receipt.previous_hash, receipt.hash FROM receipt, chain "
                    "WHERE receipt.sequence = ?",
                    (row[1] if kept is None else kept[0] - 1,),
                ).fetchone()
        if row is None or row[1] == 0:
            return ()
        return (ChainLink(row[0], row[1], row[2].hex(), row[3].hex()),)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        with self._writing(self._cold) as connection:
            self._keep(connection, checkpoint)

    def _keep(self, connection: sqlite3.Connection, made: Checkpoint) -> None:
        last = self._last_checkpoint(connection)
        if made.number != last + 1:
            raise VersionConflict(f"checkpoint {made.number} cannot follow {last}")
        connection.execute(
            "INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?, ?)",
            (made.number, made.at_ms, rows.dump_links(made.heads), made.signature, made.cut, made.previous),
        )

    @staticmethod
    def _last_checkpoint(connection: sqlite3.Connection) -> int:
        """SQLite remembers the highest number itself, though the row be gone."""
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'checkpoint'").fetchone()
        return 0 if row is None else row[0]

    def last_checkpoint(self) -> int:
        with self._reading(self._cold) as connection:
            return self._last_checkpoint(connection)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        with self._reading(self._cold) as connection:
            found = connection.execute(
                "SELECT at_ms, heads, signature, cut, number, previous FROM checkpoint ORDER BY number"
            ).fetchall()
        return tuple(rows.checkpoint(*row) for row in found)

    def forget_receipts(self, before_ms: int, checkpoint: Checkpoint) -> int:
        rows.check_cut(checkpoint, self.heads(before_ms))
        with self._writing(self._cold) as connection:
            self._keep(connection, checkpoint)
        gone = 0
        for link in checkpoint.heads:
            removed = _ERASE_CHUNK
            while removed == _ERASE_CHUNK:
                with self._writing(self._cold) as connection:
                    removed = connection.execute(
                        "DELETE FROM receipt WHERE sequence IN "
                        "(SELECT sequence FROM receipt WHERE sequence <= ? ORDER BY sequence LIMIT ?)",
                        (link.sequence, _ERASE_CHUNK),
                    ).rowcount
                gone += removed
            self._drop_buckets(link.sequence // BUCKET)
        return gone

    def _drop_buckets(self, end: int) -> None:
        """Postings of buckets that hold no receipt any more."""
        while True:
            with self._writing(self._cold) as connection:
                removed = connection.execute(
                    "DELETE FROM posting WHERE (bucket, tag) IN (SELECT bucket, tag FROM posting WHERE bucket < ? LIMIT 4096)",
                    (end,),
                ).rowcount
                if removed == 0:
                    connection.execute("DELETE FROM span WHERE block < ?", (end * BUCKET // BLOCK,))
                    return

    # indexing

    def maintain(self) -> None:
        """Indexes what was committed and moves the write-ahead log into the file. One process at a time; others skip it."""
        self._check_open()
        try:
            fcntl.flock(self._upkeep_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._unavailable(error) from error
        try:
            self._catch_up(self._tidy)
            self._checkpoint_log()
        finally:
            fcntl.flock(self._upkeep_file, fcntl.LOCK_UN)

    def _checkpoint_log(self) -> None:
        with self._tidy.lock:
            self._check_open()
            try:
                _, pages, _ = self._tidy.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if pages > _LOG_PAGES:
                    # Under load it never reaches the end, and the log would grow for ever: writers wait for the little that
                    # is left. WHY NOT a mode that waits for readers: a slow one would then hold up every commit.
                    with self._file_turn():
                        self._tidy.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                raise self._unavailable(error) from error

    def _catch_up(self, seat: _Seat) -> None:
        while self._index_some(seat):
            pass

    def _index_some(self, seat: _Seat) -> bool:
        """Moves the watermark by one chunk; True when there may be more. Only the merging holds up writers."""
        with self._reading(seat) as connection:
            indexed, last = self._chain_row(connection, "indexed, sequence")
            found = self._known(connection, indexed, last) or self._read(connection, indexed)
        if not found:
            return False
        postings, spans = gather_columns(found)
        # Many in one step: between two steps this thread and the one that serves would fight for the interpreter.
        put = [(some.bucket, some.length, rows.dump(some.tags).decode(), some.columns) for some in postings]
        with self._writing(seat) as connection:
            if self._chain_row(connection, "indexed")[0] != indexed:
                return True
            connection.executemany(_PUT, put)
            connection.executemany(
                "INSERT INTO span VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms)",
                spans,
            )
            connection.execute("UPDATE chain SET indexed = ?", (found[-1][0],))
        for cursor, _, _ in found:
            self._recent.pop(cursor, None)
        return len(found) == _INDEX_CHUNK

    def _known(self, connection: sqlite3.Connection, indexed: int, last: int) -> list[tuple[int, int, list[str]]]:
        """The next chunk behind the watermark (cursor, time, tags), when it was committed here; else nothing."""
        recent = self._recent
        tenants: dict[str, str] = {}
        known: list[tuple[int, int, list[str]]] = []
        for cursor in range(indexed + 1, min(indexed + _INDEX_CHUNK, last) + 1):
            one = recent.get(cursor)
            if one is None:
                return []
            at_ms, receipt_id, scope, tags = one
            tenant = tenants.get(scope)
            if tenant is None:
                tenant = tenants[scope] = rows.tenant_tag(scope)
            known.append((cursor, at_ms, [*tags, tenant, f"{ID_TAG}={receipt_id}"]))
        whole = connection.execute(
            "SELECT count(payload) FROM receipt WHERE sequence > ? AND sequence <= ?", (indexed, indexed + len(known))
        ).fetchone()[0]
        # Erased or forgotten since: then they are not what they were.
        return known if whole == len(known) else []

    @staticmethod
    def _read(connection: sqlite3.Connection, indexed: int) -> list[tuple[int, int, list[str]]]:
        return [
            (cursor, at_ms, rows.indexed_tags(receipt_id, scope, payload))
            for cursor, at_ms, receipt_id, scope, payload in connection.execute(
                "SELECT sequence, at_ms, id, scope, payload FROM receipt WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (indexed, _INDEX_CHUNK),
            )
        ]

    def postings(
        self, places: Sequence[Place], blocks: Sequence[int]
    ) -> tuple[dict[Place, int], dict[int, tuple[int, int]]]:
        spans: dict[int, tuple[int, int]] = {}
        with self._reading(self._cold) as connection:
            bits = {place: _Reader(connection, place[0])(place[1]) for place in places}
            for block in blocks:
                row = connection.execute("SELECT first_ms, last_ms FROM span WHERE block = ?", (block,)).fetchone()
                if row is not None:
                    spans[block] = row
        return bits, spans

    def reindex(self) -> None:
        with self._writing(self._cold) as connection:
            connection.execute("DELETE FROM posting")
            connection.execute("DELETE FROM span")
            connection.execute("UPDATE chain SET indexed = 0")
            # From what is stored, not from what is remembered.
            self._recent.clear()
        self._catch_up(self._cold)

    # scopes' life

    def forget_scopes(self, kind: str, before_ms: int) -> int:
        first = rows.key(f"{kind}\x1f")
        gone = 0
        while True:
            with self._reading(self._cold) as connection:
                found = connection.execute(
                    "SELECT id, key, value FROM scope JOIN cell ON cell.scope = id AND name = x'00' "
                    "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
                    (first, rows.prefix_end(rows.key(f"{kind}\x1f")), _ERASE_CHUNK),
                ).fetchall()
            old = [number for number, _, head in found if rows.load_head(head)[0] < before_ms]
            if old:
                with self._writing(self._cold) as connection:
                    gone += sum(self._erase_old(connection, number, before_ms) for number in old)
            if len(found) < _ERASE_CHUNK:
                return gone
            first = found[-1][1] + b"\x00"

    def _erase_old(self, connection: sqlite3.Connection, number: int, before_ms: int) -> bool:
        row = connection.execute(
            "SELECT key, value FROM scope JOIN cell ON cell.scope = id AND name = x'00' WHERE id = ?", (number,)
        ).fetchone()
        if row is None or rows.load_head(row[1])[0] >= before_ms:
            # Written since it was looked at: it lives.
            return False
        self._erase_scope(connection, number, row[0])
        return True

    @staticmethod
    def _erase_scope(connection: sqlite3.Connection, number: int, key: bytes) -> None:
        connection.execute(
            "DELETE FROM call WHERE scope = ?1 AND hash IN (SELECT number FROM cell WHERE scope = ?1 AND name >= x'02')",
            (number,),
        )
        connection.execute("DELETE FROM cell WHERE scope = ?", (number,))
        connection.execute("DELETE FROM sealed WHERE scope = ?", (key,))
        connection.execute("DELETE FROM scope WHERE id = ?", (number,))

    def forget_tenant(self, tenant: str, vouch: Callable[[str], bytes] = unvouched) -> int:
        self._check_open()
        # Erased means erased: freed pages are overwritten, and so is the log.
        self._overwriting("ON")
        try:
            gone = self._erase_scopes(tenant)
            while True:
                self._catch_up(self._cold)
                erased = self._erase_receipts(tenant, vouch)
                if not erased:
                    break
                gone += erased
        finally:
            self._overwriting("OFF")
            # Not in memory either.
            self._recent.clear()
            self._changes = -1
        return gone

    def _overwriting(self, switch: str) -> None:
        with self._cold.lock:
            self._check_open()
            try:
                self._cold.connection.execute(f"PRAGMA secure_delete = {switch}").fetchone()
                with self._file_turn():
                    self._cold.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise self._unavailable(error) from error

    def _erase_scopes(self, tenant: str) -> int:
        gone = 0
        for first, end in rows.tenant_ranges(SCOPE_KINDS, tenant):
            while True:
                with self._writing(self._cold) as connection:
                    found = connection.execute(
                        "SELECT id, key FROM scope WHERE key >= ? AND key < ? LIMIT ?", (first, end, _ERASE_CHUNK)
                    ).fetchall()
                    for number, key in found:
                        self._erase_scope(connection, number, key)
                    connection.execute("DELETE FROM sealed WHERE scope >= ? AND scope < ?", (first, end))
                gone += len(found)
                if len(found) < _ERASE_CHUNK:
                    break
        return gone

    def _erase_receipts(self, tenant: str, vouch: Callable[[str], bytes]) -> int:
        """Erases the bodies of one chunk of a tenant's indexed receipts, and takes them out of the postings."""
        tag = tag_id(TENANT_TAG, tenant)
        with self._writing(self._cold) as connection:
            # The join keeps it to one look per bucket.
            row = connection.execute(
                "SELECT p.bucket, p.bits FROM (SELECT DISTINCT block / ? AS bucket FROM span) b "
                "JOIN posting p ON p.bucket = b.bucket AND p.tag = ? LIMIT 1",
                (BUCKET // BLOCK, tag),
            ).fetchone()
            if row is None:
                return 0
            bucket, left = row[0], decode(row[1])
            taken: list[tuple[int, int, Sequence[str]]] = []
            while left and len(taken) < _ERASE_CHUNK:
                offset = left.bit_length() - 1
                left ^= 1 << offset
                cursor = bucket * BUCKET + offset
                found = connection.execute(
                    "SELECT scope, payload, hash FROM receipt WHERE sequence = ?", (cursor,)
                ).fetchone()
                # Its bit goes with this chunk even if retention took it or somebody emptied it: else this would never end.
                tags = [f"{TENANT_TAG}={tenant}"]
                taken.append((cursor, 0, tags))
                if found is None:
                    continue
                scope, payload, hashed = found
                tags.extend(rows.erased_tags(scope, payload))
                connection.execute(
                    "UPDATE receipt SET body_hash = ?, payload = NULL, scope = x'' WHERE sequence = ? AND payload IS NOT NULL",
                    (rows.erased_column(payload, hashed, vouch), cursor),
                )
            for (place, gone_tag), bits in gather(taken)[0].items():
                self._take_out(connection, place, gone_tag, bits)
            return len(taken)

    @staticmethod
    def _take_out(connection: sqlite3.Connection, bucket: int, tag: int, bits: int) -> None:
        row = connection.execute("SELECT bits FROM posting WHERE bucket = ? AND tag = ?", (bucket, tag)).fetchone()
        kept = 0 if row is None else decode(row[0]) & ~bits
        if kept:
            connection.execute("UPDATE posting SET bits = ? WHERE bucket = ? AND tag = ?", (encode(kept), bucket, tag))
        else:
            connection.execute("DELETE FROM posting WHERE bucket = ? AND tag = ?", (bucket, tag))

    # plan

    def plan_epoch(self) -> PlanEpoch | None:
        with self._reading(self._hot) as connection:
            row = connection.execute(
                "SELECT epoch, plan_hash, at_ms, source FROM plan ORDER BY epoch DESC LIMIT 1"
            ).fetchone()
        return None if row is None else PlanEpoch(*row)

    def plan_epochs(self, limit: int, before: int | None = None) -> tuple[PlanEpoch, ...]:
        with self._reading(self._cold) as connection:
            found = connection.execute(
                "SELECT epoch, plan_hash, at_ms, source FROM plan WHERE epoch < ? ORDER BY epoch DESC LIMIT ?",
                (_NO_EPOCH if before is None else before, limit),
            ).fetchall()
        return tuple(PlanEpoch(*row) for row in found)

    def activate(self, plan_hash: str, source: bytes, now_ms: int, expected_epoch: int) -> PlanEpoch:
        with self._writing(self._hot) as connection:
            epoch = connection.execute("SELECT coalesce(max(epoch), 0) FROM plan").fetchone()[0]
            if epoch != expected_epoch:
                raise VersionConflict(f"the plan is at epoch {epoch}, not {expected_epoch}")
            connection.execute("INSERT INTO plan VALUES (?, ?, ?, ?)", (epoch + 1, plan_hash, now_ms, source))
        return PlanEpoch(epoch + 1, plan_hash, now_ms, source)

    # counters

    def count(self, increments: Mapping[str, int]) -> None:
        with self._writing(self._hot) as connection:
            connection.executemany(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                [(rows.key(name), value) for name, value in increments.items()],
            )

    def counters(self, prefix: str) -> dict[str, int]:
        first = rows.key(prefix)
        with self._reading(self._cold) as connection:
            if first:
                found = connection.execute(
                    "SELECT name, value FROM counter WHERE name >= ? AND name < ?", (first, rows.prefix_end(first))
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
        for seat in self._seats:
            with seat.lock:
                seat.connection.close()
        for file in self._files:
            os.close(file)


@lru_cache(maxsize=4_096)
def _register_name(rule: str) -> bytearray:
    """How the names of a rule's registers begin."""
    plain = rows.key(rule)
    return _REGISTER + len(plain).to_bytes(4, "big") + plain


def _register_key(name: bytes) -> tuple[bytes, bytes]:
    end = 5 + int.from_bytes(name[1:5], "big")
    return name[5:end], name[end:]
