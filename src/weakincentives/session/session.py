"""The session: typed slices of state and history, changed by events, and the one place calls take turns.

A `Session` is a handle: many may share one core. The handle a tool context holds is bound to its call, so what is
written through it belongs to that call whatever thread does it, and is refused once the call has ended.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from contextvars import Token
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from immutables import Map

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import RollbackError, SessionStorageError, TransactionError
from ..serde.codec import type_name
from ..transaction import CommitLog, ResourceView, Scope, Store, WriterLock, current_scope, run_all, view_of
from ..transaction.scope import current as _current
from .dispatcher import EventBus
from .events import TransactionRolledBack
from .log import Log
from .registers import Registers
from .slices import (
    Append,
    Clear,
    EventWrite,
    Extend,
    Reducer,
    ReducerContext,
    Replace,
    ResetWrite,
    Root,
    RootWrite,
    SliceKind,
    SliceOp,
    SliceView,
    SliceWrite,
    Update,
    append_all,
    declared_reducers,
    items_of,
    kind_of,
)
from .vector import EMPTY, Items, Unreadable, Vector

T = TypeVar("T")
E = TypeVar("E")

_NO_ROOT: Root = Map()


class Attachable(Protocol):
    """Files, or anything else on a `Store`, that a durable session keeps together with its slices."""

    @property
    def store(self) -> Store[Any]: ...

    def encode_op(self, op: Any, /) -> Any:
        """An operation on the store as JSON-compatible data."""
        ...

    def decode_op(self, data: Any, /) -> Any: ...

    def checkpoint(self) -> Any:
        """One operation that makes any store hold what this one holds."""
        ...

    def fork(self) -> Attachable:
        """Another one that starts with the same content."""
        ...


class Storage(CommitLog, Protocol):
    """Where a durable session keeps what happened. See `storage` for the one that ships."""

    def stage(self, item: object) -> None:
        """Hold a LOG item back so that it is written with the next commit of this thread, in one record."""
        ...

    def unstage(self) -> None:
        """Forget the staged item: its commit failed."""
        ...

    def flush(self) -> None:
        """Write the staged item now if no commit took it along."""
        ...

    def record(self, slice_type: type, item: object) -> None:
        """Write a LOG item by itself."""
        ...

    def attach(self, name: str, files: Attachable) -> None: ...

    def committed(self, txn_id: str) -> bool: ...

    @property
    def position(self) -> int: ...

    def at(self, position: int) -> Session: ...

    def fork(self, position: int | None, path: str | None) -> Session: ...

    def close(self) -> None: ...


class Core:
    """What all handles of one session share."""

    __slots__ = (
        "attached",
        "bus",
        "calls",
        "claims",
        "clock",
        "dispatcher",
        "frozen",
        "lock",
        "logs",
        "lost",
        "mutex",
        "poison",
        "reducers",
        "registers",
        "run",
        "session_id",
        "state",
        "storage",
    )

    def __init__(self, session_id: str, bus: EventBus | None, clock: Clock) -> None:
        self.session_id = session_id
        self.clock = clock
        self.bus = bus
        self.lock = WriterLock()
        self.mutex = threading.Lock()
        self.state: Store[Root] = Store(_NO_ROOT, "state")
        self.logs: dict[type, Log[Any]] = {}
        self.reducers: dict[type, tuple[tuple[type, Reducer[Any, Any]], ...]] = {}
        self.registers = Registers()
        self.dispatcher = SessionBus(self)
        self.storage: Storage | None = None
        self.poison: RollbackError | None = None
        self.frozen = ""
        self.run: Any = None
        """What the runtime prepared for the prompt this session was last used with, to be used again."""
        self.calls: Iterator[int] = itertools.count(1)
        """Numbers for calls that came without an id; none is given twice, also after a restart."""
        self.claims: set[int] = set()
        """Hashes of the ids under which models asked for calls in this process. A reset does not forget them."""
        self.attached: dict[str, Attachable] = {}
        self.lost: dict[str, str] = {}
        """Stored slices whose type does not exist here, and why."""

    def log(self, cls: type) -> Log[Any]:
        log = self.logs.get(cls)
        if log is None:
            with self.mutex:
                log = self.logs.setdefault(cls, Log(getattr(cls, "__log_key__", None)))
        return log

    def register(self, event_type: type, slice_type: type, reduce: Reducer[Any, Any]) -> None:
        self.check_found(slice_type)
        with self.mutex:
            known = self.reducers.get(event_type, ())
            if (slice_type, reduce) not in known:  # a section installs its reducers at every evaluation
                self.reducers = {**self.reducers, event_type: (*known, (slice_type, reduce))}

    def check_found(self, slice_type: type) -> None:
        """Raise for a type that could not be found when the stored session was read."""
        if self.lost and (reason := self.lost.get(type_name(slice_type))):
            raise SessionStorageError(reason)

    def check_open(self) -> None:
        if self.poison is not None:
            raise TransactionError(
                "The session refuses writes: an earlier rollback could not restore everything. Open a new session."
            ) from self.poison
        if self.frozen:
            raise TransactionError(self.frozen)

    def write(self, op: Callable[[Root], Root], scope: Scope | None, name: str) -> None:
        if self.poison is not None or self.frozen:
            self.check_open()
        self.state.apply(op, scope, "slices", name)

    def record(self, event: object) -> None:
        """Append to the LOG slice of the event's type and tell subscribers; no scope can refuse or undo it."""
        self.keep(event)
        self.deliver(event)

    def keep(self, event: object) -> None:
        self.store(event)
        self.keep_in_memory(event)

    def store(self, event: object) -> None:
        """Write to the file of a durable session."""
        if self.storage is not None:
            self.storage.record(type(event), event)

    def keep_in_memory(self, event: object) -> None:
        """Append what the storage has already."""
        self.log(type(event)).append(event)

    def deliver(self, event: object) -> None:
        self.dispatcher.deliver(event)
        if self.bus is not None:
            self.bus.deliver(event)

    def dispatch(self, event: object, scope: Scope | None) -> None:
        """Reduce the event into its slices, then tell subscribers when it is kept."""
        self.reduce(event, scope)
        if scope is None:
            self.deliver(event)
        else:
            scope.after_commit(partial(self.deliver, event))

    def reduce(self, event: object, scope: Scope | None) -> None:
        """Apply all reducers of the event, at once or not at all."""
        cls = type(event)
        reducers = self.reducers.get(cls)
        if reducers is None:
            self.check_found(cls)
            reducers = ((cls, append_all),)
        states = [pair for pair in reducers if kind_of(pair[0]) is SliceKind.STATE]
        logged: list[tuple[type, object]] = []
        if len(states) < len(reducers):
            if scope is not None:
                scope.check_writable("session")
            for slice_type, reduce in reducers:
                if kind_of(slice_type) is SliceKind.LOG:
                    logged += ((slice_type, item) for item in self._to_log(slice_type, event, reduce))
        if states:
            self.write(EventWrite(event, states, self.session_id), scope, "+".join(s.__qualname__ for s, _ in states))
        elif self.poison is not None or self.frozen:
            self.check_open()
        for slice_type, item in logged:
            self.append_log(slice_type, item)

    def _to_log(self, slice_type: type, event: object, reduce: Reducer[Any, Any]) -> Sequence[object]:
        """What a reducer adds to a LOG slice; nothing is written yet."""
        if reduce is append_all:
            return (event,)
        view: SliceView[Any] = SliceView(EMPTY.of(self.log(slice_type)))
        match reduce(view, event, context=ReducerContext(self.session_id, slice_type)):
            case Append(item):
                return (item,)
            case Extend(more):
                return tuple(more)
            case op:
                raise TransactionError(
                    f"{slice_type.__qualname__} is a LOG slice: its reducer may append only, not {type(op).__name__}."
                )

    def append_log(self, slice_type: type, item: object) -> None:
        if self.storage is not None:
            self.storage.record(slice_type, item)
        self.log(slice_type).append(item)


class SessionBus(EventBus):
    """The session's own bus: what is dispatched on it is an event of the session."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core

    def dispatch(self, event: object) -> None:
        self._core.dispatch(event, current_scope())


class SessionSnapshot:
    """The STATE of a session at one moment. Opaque; give it to `restore`."""

    __slots__ = ("mark", "session_id")

    def __init__(self, session_id: str, mark: Any) -> None:
        self.session_id = session_id
        self.mark = mark


class Session:
    """Typed slices by `session[T]`; see the module docstring for what a handle is."""

    __slots__ = ("_binding", "_core")

    def __init__(
        self, *, session_id: str | None = None, bus: EventBus | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._core = Core(session_id or os.urandom(16).hex(), bus, clock)
        self._binding: Scope | None = None

    @classmethod
    def _of(cls, core: Core, binding: Scope | None = None) -> Session:
        handle = object.__new__(cls)
        handle._core = core
        handle._binding = binding
        return handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and other._core is self._core

    def __hash__(self) -> int:
        return id(self._core)

    def __repr__(self) -> str:
        return f"Session({self.session_id})"

    @property
    def session_id(self) -> str:
        return self._core.session_id

    @property
    def clock(self) -> Clock:
        return self._core.clock

    @property
    def registers(self) -> Registers:
        """Counters and marks that no rollback undoes."""
        return self._core.registers

    @property
    def dispatcher(self) -> EventBus:
        """Publish to the session and subscribe to its events here."""
        if self._binding is None:
            return self._core.dispatcher
        return _BoundBus(self)

    def bound(self, scope: Scope | None) -> Session:
        """A handle whose writes belong to `scope`, whatever thread does them."""
        handle = object.__new__(Session)
        handle._core = self._core
        handle._binding = scope
        return handle

    @property
    def binding(self) -> Scope | None:
        """The tool call this handle belongs to, if it is a tool context's."""
        return self._binding

    @property
    def scope(self) -> Scope | None:
        """The transaction that what is written here now belongs to."""
        scope = _current.get()
        return self._binding if scope is None else scope

    def __getitem__(self, slice_type: type[T]) -> Slice[T]:
        self._core.check_found(slice_type)
        return Slice(self, slice_type)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("A session is not iterable; ask for a slice: session[Plan].all()")

    def item(self, slice_type: type[T], key: Hashable) -> T | None:
        """The item of a keyed slice with this key; what `session[T].get(key)` says, with less ado."""
        items: Any = self._core.state.view(self.scope).get(slice_type)
        return None if items is None else items.get(key)

    def dispatch(self, event: object) -> None:
        """Apply the event's reducers, all or none; without any, append it to the slice of its own type."""
        if isinstance(event, type):
            raise TypeError(f"An event is an object, not a class: dispatch({event.__name__}(…)).")
        self._core.dispatch(event, self.scope)

    def announce(self, event: object) -> None:
        """Tell subscribers at once; nothing is recorded and nothing waits for a commit."""
        self._core.deliver(event)

    def install(self, slice_type: type, *, initial: Callable[[], Any] | None = None) -> None:
        """Register the `@reducer` methods of a slice type."""
        found = declared_reducers(slice_type, initial)
        if not found:
            raise TypeError(f"{slice_type.__qualname__} has no @reducer methods to install")
        for event_type, reduce in found:
            self._core.register(event_type, slice_type, reduce)

    # -- as a whole ------------------------------------------------------------------------------------------------

    def snapshot(self) -> SessionSnapshot:
        """The STATE slices as this call sees them now; costs the same however much there is."""
        return SessionSnapshot(self.session_id, self._core.state.mark(self.scope))

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Put the STATE slices back; LOG slices stay."""
        if snapshot.session_id != self.session_id:
            raise TransactionError("This snapshot belongs to another session and cannot be restored here.")
        self._core.check_open()
        self._core.state.rewind(snapshot.mark, self.scope, RootWrite(snapshot.mark.root))

    def reset(self) -> None:
        """Forget everything: all slices, LOG included, and the registers."""
        scope = self.scope
        if scope is not None:
            raise TransactionError("Cannot reset the session inside a transaction: history could not be brought back.")
        self._core.check_open()
        self._core.write(ResetWrite(), None, "*")
        self._core.lost = {}
        for log in tuple(self._core.logs.values()):
            log.clear()
        self._core.registers.clear()

    def clone(self, *, session_id: str | None = None, bus: EventBus | None = None) -> Session:
        """An independent session with the same content and reducers; in memory, whatever this one is."""
        core = Core(session_id or os.urandom(16).hex(), bus, self.clock)
        core.state = Store(self._core.state.view(self.scope), "state")
        core.logs = {cls: log.copy() for cls, log in tuple(self._core.logs.items())}
        core.reducers = dict(self._core.reducers)
        core.registers = Registers(self._core.registers.copy())
        core.lost = dict(self._core.lost)
        return Session._of(core)

    def transaction(self, *resources: object, tag: str = "") -> SessionTransaction:
        """Keep all or none of what happens in the block, several tool calls included; nested ones are savepoints."""
        return SessionTransaction(self, tuple(view_of(r) for r in resources), tag)

    # -- durable sessions ------------------------------------------------------------------------------------------

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        bus: EventBus | None = None,
        clock: Clock = SYSTEM_CLOCK,
        fsync: bool = False,
        session_id: str | None = None,
    ) -> Session:
        """A durable session: what was committed to the file at `path` before is there again.

        Survives a killed process at any point; `fsync=True` survives a power cut too, at the price of about a
        millisecond per commit. One session at a time may have a file open; `close` releases it. Files are kept only
        if they are attached (`attach`), reducers never: register them again. Secret fields are stored as
        `[redacted]` and come back so, in STATE slices too: what must survive a restart cannot be marked Secret.
        """
        return _openers[-1](os.fspath(path), session_id, bus, clock, fsync)

    @property
    def position(self) -> int:
        """How many operations were committed so far (durable sessions)."""
        return self._durable.position

    def at(self, position: int) -> Session:
        """A read-only session as it was after `position` committed operations."""
        return self._durable.at(position)

    def fork(self, position: int | None = None, path: str | os.PathLike[str] | None = None) -> Session:
        """A session that goes on from `position`; durable itself when a path is given."""
        return self._durable.fork(position, None if path is None else os.fspath(path))

    def attach(self, name: str, files: Attachable) -> None:
        """Keep these files with the session, under a name: one commit covers both, and a fork takes both along.

        What a durable session has stored under the name takes the place of what `files` holds now. A filesystem that
        is only bound to a prompt is not kept, and not in `at` or `fork`.
        """
        if self.scope is not None:
            raise TransactionError("Cannot attach files inside a transaction; attach them before it begins.")
        if name in self._core.attached:
            raise SessionStorageError(f"Cannot attach {name!r} twice: the session has files of that name.")
        if self._core.storage is not None:
            self._core.storage.attach(name, files)
        self._core.attached[name] = files

    def attached(self, name: str) -> Any:
        """The files attached under this name; in a fork or a view, those of its own."""
        files = self._core.attached.get(name)
        if files is None:
            known = ", ".join(sorted(self._core.attached)) or "none"
            raise SessionStorageError(
                f"No files are attached as {name!r} (attached: {known}). Use session.attach first."
            )
        return files

    @property
    def unreadable(self) -> dict[str, str]:
        """Stored slices that today's classes cannot take, by type name, with the reason; kept in the file as they are."""
        found = dict(self._core.lost)
        for cls, items in self._core.state.view(self.scope).items():
            if isinstance(items, Unreadable):
                found[type_name(cls)] = items.reason
        return found

    def committed(self, txn_id: str) -> bool:
        """Whether the file holds the commit of this transaction: what a journal beside it asks when it recovers."""
        return self._durable.committed(txn_id)

    def close(self) -> None:
        """Release the file of a durable session; nothing to do for one in memory."""
        if self._core.storage is not None:
            self._core.storage.close()

    @property
    def _durable(self) -> Storage:
        if self._core.storage is None:
            raise SessionStorageError(
                "This session is in memory only. Open it with Session.open(path) to travel in time."
            )
        return self._core.storage

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Opener = Callable[[str, str | None, EventBus | None, Clock, bool], Session]
_openers: list[Opener] = []


def set_opener(opener: Opener) -> None:
    """Says how `Session.open` does it; called by the storage module, which builds on this one."""
    _openers.append(opener)


class _BoundBus(EventBus):
    """The session's bus as one tool call sees it: what it publishes belongs to the call."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def subscribe(self, event_type: type[E], fn: Callable[[E], object]) -> Callable[[], None]:
        return self._session._core.dispatcher.subscribe(event_type, fn)

    def dispatch(self, event: object) -> None:
        self._session.dispatch(event)

    def deliver(self, event: object) -> None:
        self._session._core.dispatcher.deliver(event)


class Slice(Generic[T]):
    """The items of one type in one session, as the present call sees them."""

    __slots__ = ("_session", "_type")

    def __init__(self, session: Session, slice_type: type[T]) -> None:
        self._session = session
        self._type = slice_type

    @property
    def _items(self) -> Items[T] | Log[T]:
        core = self._session._core
        if kind_of(self._type) is SliceKind.LOG:
            return core.log(self._type)
        return items_of(core.state.view(self._session.scope), self._type)

    def all(self) -> tuple[T, ...]:
        return tuple(self._items)

    def latest(self) -> T | None:
        return self._items.last

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        return tuple(item for item in self._items if predicate(item))

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __bool__(self) -> bool:
        return True

    def seed(self, items: T | Sequence[T]) -> None:
        """Make this item, or these, the whole content of the slice."""
        several: object = items
        if isinstance(several, self._type) or not isinstance(several, list | tuple):
            several = (several,)
        self._check(cast("Sequence[object]", several))
        self._write(Replace(cast("Sequence[T]", several)))

    def append(self, *items: T) -> None:
        self._check(items)
        self._write(Append(items[0]) if len(items) == 1 else Extend(items))

    def get(self, key: Hashable) -> T | None:
        """The item with this key: of a keyed slice, or the newest of a LOG slice that declares a key."""
        items = self._items
        if isinstance(items, Vector) or (isinstance(items, Log) and not items.keyed):
            raise TypeError(
                f"{self._type.__qualname__} has no key; declare it with @keyed_slice(...) or @log_slice(key=...)."
            )
        return items.get(key)

    def update(self, key: Hashable, delta: object) -> None:
        """Change the item with this key by `patched` of its type (keyed slices)."""
        if getattr(self._type, "__slice_key__", None) is None:
            raise TypeError(f"{self._type.__qualname__} is not a keyed slice; declare it with @keyed_slice.")
        self._write(Update(key, delta))

    def clear(self, predicate: Callable[[T], bool] | None = None) -> None:
        """Remove what the predicate picks, or everything. A LOG slice refuses: its history is kept."""
        self._write(Clear(predicate))

    def register(self, event_type: type[E], reduce: Reducer[T, E]) -> None:
        """Let events of this type change this slice by `reduce`."""
        self._session._core.register(event_type, self._type, reduce)

    def _check(self, items: Sequence[object]) -> None:
        for item in items:
            if not isinstance(item, self._type):
                raise TypeError(
                    f"session[{self._type.__qualname__}] holds {self._type.__qualname__}, got {type(item).__qualname__}."
                )

    def __repr__(self) -> str:
        return f"{self._session!r}[{self._type.__qualname__}]"

    def _write(self, op: SliceOp[T]) -> None:
        core, scope = self._session._core, self._session.scope
        if kind_of(self._type) is SliceKind.STATE:
            core.write(SliceWrite(self._type, op), scope, self._type.__qualname__)
            return
        if scope is not None:
            scope.check_writable("session")
        core.check_open()
        match op:
            case Append(item):
                core.append_log(self._type, item)
            case Extend(items):
                for item in items:
                    core.append_log(self._type, item)
            case Replace(items) if not len(self):
                for item in items:
                    core.append_log(self._type, item)
            case _:
                raise TransactionError(
                    f"{self._type.__qualname__} is a LOG slice: it can be appended to only. session.reset() forgets all."
                )


class SessionTransaction:
    """A block of several calls: all are kept, or none. Works with `with` and with `async with`."""

    def __init__(self, session: Session, resources: tuple[ResourceView, ...], tag: str) -> None:
        self._session = session
        self._resources = resources
        self._undo = False
        self.tag = tag
        self.scope: Scope | None = None
        self._token: Token[Scope | None] | None = None

    def rollback(self) -> None:
        """Take everything back at the end of the block, without an exception."""
        self._undo = True

    def __enter__(self) -> SessionTransaction:
        scope = self._open()
        try:
            scope.enter(self._session._core.lock)
            self._begin(scope)
        except BaseException:
            self._abandon(scope)
            raise
        return self

    async def __aenter__(self) -> SessionTransaction:
        scope = self._open()
        try:
            await scope.enter_async(self._session._core.lock)
            self._begin(scope)
        except BaseException:
            self._abandon(scope)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        scope = self.scope
        assert scope is not None
        if self._token is not None:
            with suppress(ValueError):  # the block is left in another task than it was entered in
                Scope.deactivate(self._token)
        call_ids, compensations = scope.call_ids, scope.compensations
        try:
            if error is None and not self._undo:
                scope.commit()
            else:
                scope.rollback()
        except RollbackError as failure:
            self._session._core.poison = failure
            error = failure
            raise
        except BaseException as failure:
            error = failure
            raise
        finally:
            try:
                if not scope.committed:
                    self._taken_back(call_ids, compensations, error)
            finally:
                scope.leave()
        if not scope.nested:
            run_all(scope.delivered(), "A subscriber failed")

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def _open(self) -> Scope:
        if self.scope is not None:
            raise TransactionError("This transaction was used before; ask session.transaction() for a new one.")
        self._session._core.check_open()
        self.scope = Scope(self._session.scope)
        self.scope.check_writable("session")
        return self.scope

    def _begin(self, scope: Scope) -> None:
        scope.begin(*self._resources)
        self._token = scope.activate()

    def _abandon(self, scope: Scope) -> None:
        try:
            scope.rollback()
        finally:
            scope.leave()

    def _taken_back(
        self, call_ids: Sequence[str], compensations: Sequence[Callable[[], None]], error: BaseException | None
    ) -> None:
        """Record that these calls do not count any more, and undo what they did outside, last one first."""
        core = self._session._core
        if call_ids or self.tag:
            reason = "rolled back on request" if error is None else type(error).__name__
            core.record(TransactionRolledBack(tuple(call_ids), self.tag, reason, core.clock.now(), core.session_id))
        run_all(reversed(compensations), "Undoing an external effect failed")
