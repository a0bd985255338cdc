"""Durable sessions: everything a session keeps, as records in one file, and any earlier position of it.

INVARIANTS (tests cite the numbers)
 1. One commit, direct write, LOG item, register change or reset is one record: it is there whole or not at all.
 2. What was acknowledged is in the file; what raised is not.
 3. A call's commit and its LOG item are one record.
 4. A record holds what changed, never what was there before.
 5. Secret fields are redacted before anything is written.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import orjson

from ..clock import Clock
from ..errors import SessionStorageError, TransactionError
from ..serde.codec import CodecError, Opaque, encode, type_name
from ..serde.secret import REDACTED, secret_hints
from ..transaction import Store
from .dispatcher import EventBus
from .record import CLOSED, FRAME, RecordFile, Source, copy_file
from .registers import Registers
from .replay import APPEND, EXTEND, REPLACE, UPDATE, Replay, kind_name
from .session import Attachable, Core, Session, set_opener
from .shapes import Shapes
from .slices import Append, Clear, Extend, Replace, ResetWrite, SliceOp, Update
from .vector import Items, Unreadable

_RESERVE = 64
"""How many call numbers are set aside at once."""


def open_session(path: str, session_id: str | None, bus: EventBus | None, clock: Clock, fsync: bool) -> Session:
    """The session of the file at `path`, which is made if it is not there."""
    file = RecordFile(path, {"session_id": session_id or os.urandom(16).hex()}, fsync=fsync)
    try:
        stored_id = file.header["session_id"]
        if session_id not in (None, stored_id):
            raise SessionStorageError(f"Cannot open {path} as session {session_id}: it holds session {stored_id}.")
        replay = _replayed(file.source, file.recover())
    except BaseException:
        file.close()
        raise
    core = Core(stored_id, bus, clock)
    _fill(core, replay)
    storage = SessionLog(file, replay, core, fsync=fsync)
    core.storage = storage
    core.state.log = storage
    core.registers.keep = storage.keep_register
    core.calls = storage.numbers()
    return Session._of(core)


set_opener(open_session)


def _replayed(source: Source, records: Iterator[tuple[int, bytes]]) -> Replay:
    replay = Replay(source)
    for offset, payload in records:
        try:
            replay.feed(offset, payload, offset + FRAME)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SessionStorageError(
                f"Cannot read {source.path}: the record at byte {offset} makes no sense ({type(error).__name__}: {error})."
            ) from error
    return replay


def _fill(core: Core, replay: Replay) -> None:
    core.state = Store(replay.root(), "state")
    core.logs = replay.logs()
    core.registers = Registers(replay.registers)
    core.lost = replay.lost()
    core.calls = itertools.count(replay.reserved + 1)


class SessionLog:
    """The storage of one open session. Made by `open_session`; lives until the session is closed."""

    def __init__(self, file: RecordFile, replay: Replay, core: Core, *, fsync: bool) -> None:
        self._file = file
        self._fsync = fsync
        self._core = core
        self._mutex = threading.RLock()
        self._shapes = replay.shapes
        self._offsets = replay.offsets
        self._attachments = replay.attachments
        self._reserved = replay.reserved
        self._names: dict[Store[Any], tuple[str, Attachable]] = {}
        self._staged = threading.local()
        self._txn_ids: set[str] | None = None

    @property
    def session_id(self) -> str:
        """Under which a journal of files remembers who decides."""
        return self._core.session_id

    # -- what happens ----------------------------------------------------------------------------------------------

    def append(self, txn_id: str, changes: Sequence[tuple[Store[Any], Sequence[Any]]], /) -> None:
        """Write one commit; with it the LOG item that this thread has staged."""
        item: object = None
        if txn_id:
            item = getattr(self._staged, "item", None)
            self._staged.item = None
        with self._mutex, _Draft(self) as draft:
            for store, ops in changes:
                attached = self._names.get(store)
                if attached is None:
                    for op in ops:
                        draft.write(op)
                else:
                    draft.files(attached[0], [attached[1].encode_op(op) for op in ops])
            if item is not None:
                draft.log(type(item), item)
            draft.commit(txn_id)

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep other writers out during the block; when it raises, what was written in it is taken back."""
        with self._mutex:
            offset, settled = self._file.end, self._shapes.settled
            try:
                yield
            except BaseException:
                self._take_back(offset, settled)
                self._txn_ids = None  # read from the file again when somebody asks
                raise

    def _take_back(self, offset: int, settled: int) -> None:
        self._file.cut_back(offset)
        for offsets in self._attachments.values():
            _drop_from(offsets, offset)
        _drop_from(self._offsets, offset)
        self._shapes.forget(settled)

    def stage(self, item: object) -> None:
        self._staged.item = item

    def unstage(self) -> None:
        self._staged.item = None

    def flush(self) -> None:
        item: object = getattr(self._staged, "item", None)
        if item is not None:
            self.record(type(item), item)

    def record(self, slice_type: type, item: object) -> None:
        self._staged.item = None  # an interrupted commit may have left one behind
        with self._mutex, _Draft(self) as draft:
            draft.log(slice_type, item)
            draft.commit()

    def keep_register(self, key: str, value: Any) -> None:
        with self._mutex, _Draft(self) as draft:
            draft.head["r"] = [[key, None if value is None else _encoded(value)]]
            draft.commit()

    def numbers(self) -> Iterator[int]:
        """Call numbers that no earlier run of the session has given away."""
        return _Numbers(self)

    def reserve(self) -> range:
        """Set some call numbers aside, in the file; not an operation of the session."""
        with self._mutex:
            first = self._reserved + 1
            self._file.append(orjson.dumps({"n": first + _RESERVE - 1}))
            self._reserved = first + _RESERVE - 1
            return range(first, first + _RESERVE)

    # -- attached files --------------------------------------------------------------------------------------------

    def attach(self, name: str, files: Attachable) -> None:
        """Replay what is stored under the name into the files, or begin with what they hold."""
        store = files.store
        with _unattached(name, files):
            if self.describes(name):
                _replay_files(self._file.source, self._attachments[name], name, files)
            else:
                with self._mutex, _Draft(self) as draft:
                    draft.files(name, [files.encode_op(files.checkpoint())])
                    draft.commit()
            self._names[store] = (name, files)
            store.log = self

    def describes(self, name: str) -> bool:
        return bool(self._attachments.get(name))

    # -- earlier positions -----------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return len(self._offsets)

    def committed(self, txn_id: str) -> bool:
        with self._mutex:
            if self._txn_ids is None:
                self._txn_ids = _txn_ids(self._file.source, self._file.body, self._file.end)
            return txn_id in self._txn_ids

    def at(self, position: int) -> Session:
        return self._past(position).view(self._core)

    def fork(self, position: int | None, path: str | None) -> Session:
        return self._past(position).fork(self._core, path, fsync=self._fsync)

    def _past(self, position: int | None) -> _Past:
        file = self._file
        with self._mutex:
            return _Past(file.source, self._core.session_id, file.body, self._offsets, file.end).before(position)

    def close(self) -> None:
        with self._mutex:
            self._file.close()
            self._core.frozen = self._core.frozen or CLOSED


class _Draft:
    """One record being made. Leaving without `commit` takes back what it had numbered."""

    __slots__ = ("_lines", "_log", "_shapes", "head")

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._shapes: Shapes = log._shapes
        self.head: dict[str, Any] = {}
        self._lines: list[bytes] = []

    def __enter__(self) -> _Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self._shapes.forget()  # nothing is left to forget after a commit

    def write(self, op: Any) -> None:
        """Add an operation on the slices."""
        if isinstance(op, ResetWrite):
            self.head["z"] = 1
            self.head.pop("w", None)
            return
        writes = self.head.setdefault("w", [])
        for cls, outcome, before in op.outcomes():
            number = self._shapes.number("slice", type_name(cls), kind_name(cls))
            writes.append([number, *self._slice_op(outcome, before)])

    def files(self, name: str, ops: list[Any]) -> None:
        self.head.setdefault("f", []).append([name, ops])

    def log(self, slice_type: type, item: object) -> None:
        """Add a LOG item: on a line of its own, so that opening the session need not read it."""
        find: Callable[[Any], Any] | None = getattr(slice_type, "__log_key__", None)
        key = None if find is None else _encoded(find(item))
        number = self._shapes.number("slice", type_name(slice_type), "log")
        try:
            data = encode(item, redact=True)
        except CodecError:
            data = encode(_storable(item, 0), redact=True)
        self.head.setdefault("l", []).append([number, key])
        self._lines.append(orjson.dumps(self._shapes.pack(data)))

    def commit(self, txn_id: str = "") -> None:
        if txn_id:
            self.head["x"] = txn_id
        fresh = self._shapes.fresh()
        if fresh:
            self.head["d"] = fresh
        try:
            payload = b"\n".join([orjson.dumps(self.head), *self._lines])
        except orjson.JSONEncodeError as error:
            raise SessionStorageError(f"Cannot store this change: {error}.") from error
        log, settled = self._log, self._shapes.settled
        offset, names = log._file.end, [name for name, _ in self.head.get("f", ())]
        try:
            log._file.append(payload)
            for name in names:
                log._attachments.setdefault(name, array("Q")).append(offset)
            if log._txn_ids is not None and txn_id:
                log._txn_ids.add(txn_id)
            log._offsets.append(offset)
            self._shapes.settle()
        except BaseException:  # an interrupt between two of these may not leave them at odds
            log._take_back(offset, settled)
            if log._txn_ids is not None:
                log._txn_ids.discard(txn_id)
            raise

    def _slice_op(self, op: SliceOp[Any], before: Items[Any]) -> list[Any]:
        match op:
            case Append(item):
                return [APPEND, self._packed(item)]
            case Extend(items):
                return [EXTEND, [self._packed(item) for item in items]]
            case Replace(items):
                return [REPLACE, self._parts(before, items)]
            case Clear(predicate):
                left = () if predicate is None else [item for item in before if not predicate(item)]
                return [REPLACE, self._parts(before, left)]
            case Update(key, delta):
                return [UPDATE, self._packed(key), self._packed(delta)]

    def _packed(self, value: object) -> Any:
        return self._shapes.pack(_encoded(value))

    def _parts(self, before: Items[Any], items: Sequence[Any]) -> list[list[Any]]:
        """Runs of what was there before, and what is new."""
        old: tuple[Any, ...] = () if isinstance(before, Unreadable) else tuple(before)
        places: dict[int, int] = {}
        for place, item in enumerate(old):
            places.setdefault(id(item), place)
        parts: list[list[Any]] = []
        after = 0
        """Where the run at the end of `parts` would go on."""
        for item in items:
            if parts and len(parts[-1]) == 2 and after < len(old) and old[after] is item:
                parts[-1][1] += 1
                after += 1
            elif (place := places.get(id(item))) is not None:
                parts.append([place, 1])
                after = place + 1
            else:
                parts.append([self._packed(item)])
        return parts


def _drop_from(offsets: array[int] | None, offset: int) -> None:
    while offsets and offsets[-1] >= offset:
        offsets.pop()


class _Numbers:
    """Hands out reserved call numbers. Thread-safe."""

    __slots__ = ("_free", "_log", "_mutex")

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._mutex = threading.Lock()
        self._free = iter(range(0))

    def __iter__(self) -> _Numbers:
        return self

    def __next__(self) -> int:
        with self._mutex:
            number = next(self._free, None)
            if number is None:
                self._free = iter(self._log.reserve())
                number = next(self._free)
            return number


def _encoded(value: object) -> Any:
    try:
        return encode(value, redact=True)
    except CodecError as error:
        raise SessionStorageError(f"This cannot be kept in a durable session. {error}") from error


def _storable(value: Any, depth: int) -> Any:
    """The value with an `Opaque` for each part that cannot be stored: history is recorded whatever it holds."""
    try:
        encode(value)
    except CodecError:
        pass
    else:
        return value
    cls = cast("type[Any]", type(value))
    if depth < 8:
        if dataclasses.is_dataclass(cls):
            hints = secret_hints(cls)
            fields = {
                field.name: encode(
                    # Out of its class a secret would not be known as one.
                    REDACTED if field.name in hints else _storable(getattr(value, field.name, None), depth + 1),
                    redact=True,
                )
                for field in dataclasses.fields(cls)
            }
            return Opaque(type_name(cls), int(vars(cls).get("__schema_version__", 1)), fields)
        if isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value).items()
            return {str(key): _storable(item, depth + 1) for key, item in pairs}
        if isinstance(value, list | tuple):
            return [_storable(item, depth + 1) for item in cast("Sequence[Any]", value)]
    return Opaque(type_name(cls), 0, {})


# --- earlier positions ------------------------------------------------------------------------------------------------


class _Past:
    """The records of a file up to one position."""

    __slots__ = ("body", "end", "offsets", "session_id", "source")

    def __init__(self, source: Source, session_id: str, body: int, offsets: array[int], end: int) -> None:
        self.source = source
        self.session_id = session_id
        self.body = body
        self.offsets = offsets
        self.end = end

    def before(self, position: int | None) -> _Past:
        """The same up to an earlier position."""
        now = len(self.offsets)
        if position is None:
            position = now
        if isinstance(position, bool) or not 0 <= position <= now:
            raise SessionStorageError(f"There is no position {position}: the session has positions 0 to {now}.")
        end = self.end if position == now else self.offsets[position]
        return _Past(self.source, self.session_id, self.body, self.offsets[:position], end)

    def replay(self) -> Replay:
        return _replayed(self.source, self.source.records(self.body, self.end))

    def files(self, replay: Replay, live: Core) -> dict[str, Attachable]:
        """The attached files of the live session as they were here."""
        found: dict[str, Attachable] = {}
        for name, attached in live.attached.items():
            if name in replay.attachments:
                found[name] = files = attached.fork()
                _replay_files(self.source, replay.attachments[name], name, files)
        return found

    def view(self, live: Core) -> Session:
        """A session that can be read only."""
        replay = self.replay()
        core = Core(live.session_id, None, live.clock)
        _fill(core, replay)
        core.reducers = live.reducers
        core.attached = self.files(replay, live)
        core.frozen = (
            f"Cannot write: this is the session as it was at position {replay.position}. "
            f"Use fork({replay.position}) to go on from there."
        )
        view = SessionView(self, replay, core)
        core.storage = view
        core.state.log = view
        core.registers.keep = view.keep_register
        for files in core.attached.values():
            files.store.log = view
        return Session._of(core)

    def fork(self, live: Core, path: str | None, *, fsync: bool) -> Session:
        """A session that goes on from here."""
        if path is None:
            replay = self.replay()
            core = Core(os.urandom(16).hex(), None, live.clock)
            _fill(core, replay)
            core.reducers = live.reducers
            core.attached = self.files(replay, live)
            return Session._of(core)
        origin = {"session_id": self.session_id, "position": len(self.offsets)}
        header = {"session_id": os.urandom(16).hex(), "forked_from": origin}
        copy_file(self.source, self.body, self.end, path, header, fsync=fsync)
        session = open_session(path, None, None, live.clock, fsync)
        core = session._core
        core.reducers = live.reducers
        storage = cast("SessionLog", core.storage)
        for name, attached in live.attached.items():
            if storage.describes(name):
                files = attached.fork()
                storage.attach(name, files)
                core.attached[name] = files
        return session


class SessionView:
    """The storage of a session as it was: refuses every write."""

    def __init__(self, past: _Past, replay: Replay, core: Core) -> None:
        self._past = past
        self._replay = replay
        self._core = core

    def append(self, txn_id: str, changes: Sequence[tuple[Store[Any], Sequence[Any]]], /) -> None:  # noqa: ARG002
        self._refuse()

    def hold(self) -> NoReturn:
        self._refuse()

    def stage(self, item: object) -> None:  # noqa: ARG002
        self._refuse()

    def unstage(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def record(self, slice_type: type, item: object) -> None:  # noqa: ARG002
        self._refuse()

    def keep_register(self, key: str, value: Any) -> None:  # noqa: ARG002
        self._refuse()

    def attach(self, name: str, files: Attachable) -> None:
        """Make `files` what they were here; they can be read only from then on."""
        if name not in self._replay.attachments:
            raise SessionStorageError(f"No files were attached as {name!r} at position {self.position}.")
        with _unattached(name, files):
            _replay_files(self._past.source, self._replay.attachments[name], name, files)
            files.store.log = self

    def committed(self, txn_id: str) -> bool:
        return txn_id in _txn_ids(self._past.source, self._past.body, self._past.end)

    @property
    def position(self) -> int:
        return self._replay.position

    def at(self, position: int) -> Session:
        return self._past.before(position).view(self._core)

    def fork(self, position: int | None, path: str | None) -> Session:
        return self._past.before(position).fork(self._core, path, fsync=False)

    def close(self) -> None:
        pass

    def _refuse(self) -> NoReturn:
        raise TransactionError(self._core.frozen)


def _txn_ids(source: Source, start: int, end: int) -> set[str]:
    heads = (orjson.loads(payload.partition(b"\n")[0]) for _, payload in source.records(start, end))
    return {head["x"] for head in heads if "x" in head}


def _replay_files(source: Source, offsets: Sequence[int], name: str, files: Attachable) -> None:
    """Make `files` hold what the records say about them; the first is a checkpoint, so what they held is gone."""
    for offset in offsets:
        head = orjson.loads(source.payload(offset).partition(b"\n")[0])
        for other, ops in head["f"]:
            if other == name:
                for data in ops:
                    files.store.apply(files.decode_op(data), None)


@contextmanager
def _unattached(name: str, files: Attachable) -> Generator[None]:
    """Nobody writes to the files meanwhile, and no session has them yet."""
    with files.store._mutex:
        if files.store.log is not None:
            raise SessionStorageError(f"Cannot attach {name!r}: these files belong to a session already.")
        yield
