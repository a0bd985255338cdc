"""The logical call: who may write, to what, until when. Session, files and resources all stand on this file.

A `Scope` is one transaction of one logical call and a node in a tree: its writes lie in overlays over immutable
roots (`Store`), so dropping the overlay is the rollback and nobody else's write is ever touched. A `WriterLock`
admits one writing call per session, first come first served. Never sleeps, never knows what a slice or a file is.

INVARIANTS (tests cite the numbers)
 1. A scope left without commit leaves every store, snapshotable and participant as it was at its start.
 2. A write belongs to the scope of its logical call, or to none; a rollback removes its own writes only.
 3. A resource first built inside a scope is restored to its just-built state.
 4. A rollback tries everything, in reverse, then raises one group.
 5. `BaseException` is not special: cancellation and Ctrl-C roll back like anything else.
 6. Nested scopes are savepoints: a child's commit is undone by its parent's rollback.
 7. An ended scope writes nothing: a late write raises `FencedWriteError`.
 8. Stores of one commit change together: all new roots are computed, prepared and logged before the first is shown.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from _thread import RLock
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar, Token
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from ..errors import FencedWriteError, ReadOnlyError, RollbackError, TransactionError
from .lock import WriterLock

_logger = logging.getLogger(__name__)

R = TypeVar("R")
Op = Callable[[R], R]
"""One write: a pure function from root to root, so that it can be replayed on a root that moved meanwhile."""


@runtime_checkable
class Snapshotable(Protocol):
    """A resource whose state can be taken and put back. Snapshots are opaque to us."""

    def snapshot(self) -> object: ...

    def restore(self, snapshot: Any, /) -> None: ...


@runtime_checkable
class Participant(Protocol):
    """A resource with transactions of its own (a user's database) that joins ours.

    Optional: `begin()` when a call starts; `savepoint() -> token` and `rollback_to(token)` for nested calls. Without
    these two, a nested failure dooms the whole outer transaction.
    """

    def prepare(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class ResourceView(Protocol):
    """What a transaction needs of opened resources: what is built now, and word of what is built later."""

    @property
    def built(self) -> tuple[object, ...]: ...

    def observe(self, fn: Callable[[object], None], /) -> Callable[[], None]: ...


class _Fixed:
    """Resources that were handed over ready-made: nothing is built later."""

    __slots__ = ("built",)

    def __init__(self, built: tuple[object, ...]) -> None:
        self.built = built

    def observe(self, fn: Callable[[object], None], /) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None


class _Shared:
    """The resources of one call together with those it shares with others."""

    __slots__ = ("_own", "_shared")

    def __init__(self, shared: ResourceView, own: ResourceView) -> None:
        self._shared = shared
        self._own = own

    @property
    def built(self) -> tuple[object, ...]:
        return (*self._shared.built, *self._own.built)

    def observe(self, fn: Callable[[object], None], /) -> Callable[[], None]:
        return self._shared.observe(fn)


def view_of(resources: object) -> ResourceView:
    """The resources to take into a transaction: an opened context, a prompt or tool context that has one, instances by
    type or in a list, one instance, or None. What could not be undone is refused, not silently left out."""
    if resources is None:
        return _Fixed(())
    if hasattr(resources, "built") and hasattr(resources, "observe"):
        # What a tool call was given: the singletons it shares, and what lives for this call alone.
        shared = getattr(resources, "context", None)
        return cast("ResourceView", resources) if shared is None else _Shared(shared, cast("ResourceView", resources))
    if isinstance(resources, Mapping):
        return _Fixed(tuple(cast("Mapping[object, object]", resources).values()))
    if isinstance(resources, list | tuple | set | frozenset):
        return _Fixed(tuple(cast("Sequence[object]", resources)))
    inner = getattr(resources, "resources", None)
    if inner is not None and not callable(inner):
        return view_of(inner)
    if not _kind_of(type(resources)) and not getattr(resources, "__transactional__", False):
        raise TypeError(
            f"{type(resources).__qualname__} cannot take part in a transaction. Pass prompt.resources, an open context, or "
            "objects with snapshot() and restore(snapshot)."
        )
    return _Fixed((resources,))


class Branch(Protocol):
    """What a scope does to one resource when it ends. Called once each, in this order, never concurrently.

    `prepare` and `settle` may raise and thereby refuse the commit; `commit` comes after the point of no return. A branch of
    what is changed behind our back also has `note_changes(scope)`, which calls `touch`; that comes before all others.
    """

    def prepare(self, scope: Scope, /) -> None: ...

    def settle(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def merge(self, parent: Scope, /) -> None:
        """A nested scope committed: hand over to its parent what is needed to undo it there."""
        ...


class CommitLog(Protocol):
    """Where a durable store writes the operations of one commit. Raising means: not committed."""

    def append(self, txn_id: str, changes: Sequence[tuple[Store[Any], Sequence[Op[Any]]]], /) -> None: ...

    def hold(self) -> AbstractContextManager[None]:
        """Keep other writers out during the block; when it raises, what was appended in it is taken back."""
        ...


_serial = itertools.count(1)
current: ContextVar[Scope | None] = ContextVar("weakincentives_scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the logical call that runs here, also when it has ended meanwhile."""
    return current.get()


class Overlay(Generic[R]):
    """What one scope changed in one store: where it started, where it is, and how it got there."""

    __slots__ = ("base", "ops", "root")

    def __init__(self, base: R) -> None:
        self.base = base
        self.root = base
        self.ops: list[Op[R]] = []


class Mark(Generic[R]):
    """A place in a store's history to go back to."""

    __slots__ = ("last", "length", "root", "scope")

    def __init__(self, scope: Scope | None, root: R, length: int, last: Op[R] | None) -> None:
        self.scope = scope
        self.root = root
        self.length = length
        self.last = last


class Store(Generic[R]):
    """A mutable cell that holds an immutable root. Lives as long as its session or filesystem."""

    __slots__ = ("__weakref__", "_applying", "_mutex", "_root", "log", "name", "serial")

    def __init__(self, root: R, name: str = "") -> None:
        self._root = root
        self._mutex = threading.RLock()
        self._applying = False
        self.serial = next(_serial)
        self.name = name
        self.log: CommitLog | None = None

    @property
    def committed(self) -> R:
        """The root that everybody outside of a transaction sees."""
        return self._root

    def view(self, scope: Scope | None) -> R:
        """The root as `scope` sees it: its own overlay, else its parent's, else the committed one."""
        while scope is not None:
            overlay = scope._overlays.get(self)
            if overlay is not None:
                return overlay.root
            scope = scope.parent
        return self._root

    def apply(self, op: Op[R], scope: Scope | None, kind: str = "", key: str = "") -> R:
        """Run `op` on the root that `scope` sees; `kind` and `key` say what it touched."""
        if scope is not None:
            return scope._apply(self, op, kind, key)
        with self._mutex:
            root = self._guarded(op, self._root)
            if self.log is not None:
                self.log.append("", [(self, (op,))])
            self._root = root
            return root

    def mark(self, scope: Scope | None) -> Mark[R]:
        """The root that `scope` sees now, and how far its overlay had come: what `rewind` needs."""
        if scope is not None:
            with scope._mutex:
                overlay = scope._overlays.get(self)
                if overlay is not None:
                    return Mark(scope, overlay.root, len(overlay.ops), overlay.ops[-1])
        return Mark(scope, self.view(scope), 0, None)

    def rewind(self, mark: Mark[R], scope: Scope | None, op: Op[R], kind: str = "") -> None:
        """Go back to `mark`. Where `drop_since` can, only that scope's later writes are dropped; anywhere else it
        is a write like any other: `op` puts the marked root in place of the present one."""
        if scope is None or not self.drop_since(mark, scope, kind):
            self.apply(op, scope, kind, "*")

    def drop_since(self, mark: Mark[R], scope: Scope, kind: str = "") -> bool:
        """Forget what `scope` itself wrote since `mark`; False if the mark is neither on its way nor its start."""
        with scope._mutex:
            scope.check_writable(kind or "store")
            overlay = scope._overlays.get(self)
            own = mark.scope is scope
            if overlay is None:
                return (own and mark.length == 0) or mark.root is self.view(scope)
            if not own and mark.root is not overlay.base:
                return False
            length = mark.length if own else 0
            if length == 0:
                # Not the marked root: what others committed before our first write must not be lost with it.
                del scope._overlays[self]
                return True
            # Each op stands in one place only: if the last one is still there, so is everything before it.
            if length > len(overlay.ops) or overlay.ops[length - 1] is not mark.last:
                return False
            del overlay.ops[length:]
            overlay.root = mark.root
            return True

    def _guarded(self, op: Op[R], root: R) -> R:
        # A reducer that writes would lose its own update; say so instead.
        if self._applying:
            raise TransactionError(_IMPURE)
        self._applying = True
        try:
            return op(root)
        finally:
            self._applying = False


class Scope:
    """One transaction of one logical call. Made by the pipeline or a `transaction()` block; ends exactly once."""

    # WHY NOT slots: most calls never need most of these, and a class attribute costs nothing to make.
    _applying = False
    _decided = False
    _doomed = ""
    _ended = False
    _undone = False
    _unrestored: tuple[Exception, ...] = ()
    _left = False
    mortal: frozenset[int] = frozenset()
    """Identities of resources that do not outlive this scope, though it is nested: they end with it."""
    _has_branches = False
    watches = False
    """True when a resource takes part that others change behind our back: `note_changes` is then worth its price."""
    _siblings: WriterLock | None = None
    _txn_id = ""
    _after: list[Callable[[], None]] | None = None
    _enders: Sequence[Callable[[], None]] = ()
    _unobserve: Sequence[Callable[[], None]] = ()
    waits: Sequence[WriterLock] = ()
    """The locks that parts of this call wait for at the moment."""
    call_ids: list[str] | tuple[()] = ()
    """The tool calls that succeeded inside."""
    compensations: list[Callable[[], None]] | tuple[()] = ()
    """How to undo the external effects of those calls."""

    def __init__(self, parent: Scope | None = None, *, readonly: bool = False) -> None:
        self.parent = parent
        if parent is None:
            self.top: Scope = self
            self.readonly = readonly
        else:
            self.top = parent.top
            self.readonly = readonly or parent.readonly
        self.touched: dict[tuple[str, str], None] = {}
        self._mutex = RLock()
        self._overlays: dict[Store[Any], Overlay[Any]] = {}
        self._undoes: dict[int, tuple[Any, Branch | None, object]] = {}
        """Resource, its branch or None, and else its snapshot; in the order they joined."""
        self._held: dict[WriterLock, Scope] = {}

    # -- who runs when ---------------------------------------------------------------------------------------------

    def enter(self, lock: WriterLock, *, shared: bool = False) -> None:
        """Wait for this call's turn: among its siblings, then on the session. `leave` gives both back."""
        if self.parent is None:
            self._held[lock] = self
            lock.acquire(self, shared=shared)
            return
        siblings = self._sibling_lock
        self._note(siblings, self)
        siblings.acquire(self, shared=shared)
        self._note(lock, self.top)
        lock.acquire(self.top, shared=False)
        self._confirm(lock)

    async def enter_async(self, lock: WriterLock, *, shared: bool = False) -> None:
        """The same without blocking the event loop."""
        if self.parent is None:
            self._held[lock] = self
            await lock.acquire_async(self, shared=shared)
            return
        siblings = self._sibling_lock
        self._note(siblings, self)
        await siblings.acquire_async(self, shared=shared)
        self._note(lock, self.top)
        await lock.acquire_async(self.top, shared=False)
        self._confirm(lock)

    def _note(self, lock: WriterLock, owner: Scope) -> None:
        # Noted before it is taken: an interrupt in between must not leave a lock behind. Releasing twice is harmless.
        with owner._mutex:
            if owner._left:
                raise FencedWriteError(_OVER)
            owner._held[lock] = owner

    def _confirm(self, lock: WriterLock) -> None:
        """The call around this one may have ended while it waited; nobody would give the lock back then."""
        if self.ended:
            if self.top._left:
                lock.release(self.top)
            raise FencedWriteError(_OVER)

    def leave(self) -> None:
        """Give back the turn. A session entered by a nested call stays with the outermost one until that ends."""
        with self._mutex:
            self._left = True
        held = self._held
        while held:  # one at a time, so that an interrupted leave can be run again
            lock, owner = next(iter(held.items()))
            lock.release(owner)
            held.pop(lock, None)

    @property
    def _sibling_lock(self) -> WriterLock:
        parent = self.parent
        assert parent is not None
        if parent._siblings is None:
            with parent._mutex:
                if parent._siblings is None:
                    parent._siblings = WriterLock()
        return parent._siblings

    @property
    def nested(self) -> bool:
        return self.parent is not None

    def activate(self) -> Token[Scope | None]:
        """Make this the scope of everything that runs in the present context."""
        return current.set(self)

    @staticmethod
    def deactivate(token: Token[Scope | None]) -> None:
        current.reset(token)

    # -- what belongs to it ----------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True once this call, or one it is nested in, has ended."""
        scope: Scope | None = self
        while scope is not None:
            if scope._ended:
                return True
            scope = scope.parent
        return False

    @property
    def committed(self) -> bool:
        """True once what happened inside is kept (by the parent, for a nested scope)."""
        return self._decided

    @property
    def txn_id(self) -> str:
        """Names the outermost transaction in durable logs and journals."""
        top = self.top
        if not top._txn_id:
            top._txn_id = os.urandom(16).hex()
        return top._txn_id

    def check_writable(self, what: str = "session") -> None:
        """Raise unless the call may write now (invariant 7)."""
        if self.ended:
            raise FencedWriteError(
                f"Cannot write to the {what}: the tool call this write belongs to has ended. Finish writing before the handler returns."
            )
        if self.readonly:
            raise ReadOnlyError(
                f'Cannot write to the {what}: this tool is declared effects="none". Declare effects="local" to let it write.'
            )

    def begin(self, *resources: ResourceView) -> None:
        """Take the resources into the transaction: those built now, and each one built while it is open."""
        for view in resources:
            self._unobserve = (*self._unobserve, view.observe(self._join_own))
            for resource in view.built:
                self.join(resource)

    def _join_own(self, resource: object) -> None:
        # What a nested call builds joins through that call; what a bystander builds is none of ours.
        if current.get() is self:
            self.join(resource)

    def join(self, resource: object) -> None:
        """Make the scope able to undo what happens to `resource` from now on, if it can be undone."""
        self.join_all((resource,))

    def join_all(self, resources: Sequence[Any]) -> None:
        """The same for several."""
        undoes = self._undoes
        for resource in resources:
            cls: type = resource.__class__
            kind = _kinds.get(cls)
            if kind is None:
                kind = _kinds[cls] = _kind_of(cls)
            if kind and id(resource) not in undoes:
                if kind == 1:
                    undoes[id(resource)] = (resource, None, resource.snapshot())
                elif kind == 3:
                    resource.join_scope(self)
                else:
                    # Noted before it begins: an interrupt in between must not leave the user's transaction open.
                    branch = _ParticipantBranch(resource, self)
                    self.enlist(resource, branch)
                    try:
                        branch.begin()
                    except Exception:
                        undoes.pop(id(resource), None)
                        raise

    def enlist(self, resource: object, branch: Branch) -> None:
        """Add a branch for a resource that has none yet here."""
        with self._mutex:
            self._undoes.setdefault(id(resource), (resource, branch, None))
            self._has_branches = True
            self.watches = self.watches or hasattr(branch, "note_changes")

    def forget(self, resource: object) -> None:
        """A snapshotable resource has been closed: there is nothing left to put back, here or around."""
        scope: Scope | None = self
        while scope is not None:
            with scope._mutex:
                entry = scope._undoes.get(id(resource))
                if entry is not None and entry[1] is None:
                    del scope._undoes[id(resource)]
            scope = scope.parent

    @property
    def joined(self) -> frozenset[int]:
        """Identities of the resources that take part."""
        return frozenset(self._undoes)

    def branch_of(self, resource: object) -> Branch | None:
        entry = self._undoes.get(id(resource))
        return None if entry is None else entry[1]

    def logs(self) -> set[CommitLog]:
        """The durable logs that get a record of this commit: what a journal beside them asks after a crash."""
        return {store.log for store in self._overlays if store.log is not None}

    def touch(self, kind: str, key: str) -> None:
        """Note what was changed; it becomes `ToolInvoked.changes`."""
        self.touched[kind, key] = None

    def note_changes(self) -> None:
        """Have each branch that can tell by looking say what is different now. Before the commit, and once."""
        for _, branch, _ in tuple(self._undoes.values()):
            note: Callable[[Scope], None] | None = getattr(branch, "note_changes", None)
            if note is not None:
                note(self)

    def after_commit(self, fn: Callable[[], None]) -> None:
        """Run `fn` once the outermost transaction has committed and let go of its locks; never after a rollback."""
        with self._mutex:
            if self._after is None:
                self._after = []
            self._after.append(fn)

    def on_end(self, fn: Callable[[], None]) -> None:
        """Run `fn` when this scope ends either way, before anything is restored (kill a process, close a pipe)."""
        with self._mutex:
            if not self._ended:
                self._enders = (*self._enders, fn)
                return
        fn()

    def doom(self, why: str) -> None:
        """Forbid the commit: something inside could not be undone on its own."""
        self._doomed = self._doomed or why

    def doom_family(self, why: str) -> None:
        """Forbid the commit of every scope around this one."""
        outer = self.parent
        while outer is not None:
            outer.doom(why)
            outer = outer.parent

    def succeeded(self, call_id: str, compensate: Callable[[], None] | None) -> None:
        """Note a tool call that was kept inside, and how to undo what it did outside."""
        with self._mutex:
            self.call_ids = self.call_ids or []
            self.call_ids.append(call_id)
            if compensate is not None:
                self.compensations = self.compensations or []
                self.compensations.append(compensate)

    def _apply(self, store: Store[R], op: Op[R], kind: str, key: str) -> R:
        with self._mutex:
            self.check_writable(kind or "store")
            if self._applying:
                raise TransactionError(_IMPURE)
            overlay: Overlay[R] | None = self._overlays.get(store)
            if overlay is None:
                overlay = Overlay(store.view(self.parent))
            self._applying = True
            try:
                root = op(overlay.root)
            finally:
                self._applying = False
            overlay.root = root
            overlay.ops.append(op)
            self._overlays[store] = overlay
            if kind:
                self.touched[kind, key] = None
            return root

    # -- how it ends -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Keep everything, in the parent or for good. What cannot be kept is rolled back, and the reason raised."""
        with self._mutex:
            if self._decided or (self._ended and not self._doomed):
                raise TransactionError("Cannot commit: this transaction has already ended.")
            self._ended = True
        try:
            if self._doomed:
                raise TransactionError(self._doomed)
            if self._unobserve or self._enders:
                self._clean_up()
            if self.parent is not None:
                self._merge(self.parent)
            elif self._overlays or self._has_branches:
                self._publish()
            else:
                self._decided = True
        except BaseException:
            if self._decided:
                self._finish()
            else:
                self._undo()
            raise
        self._finish()

    def rollback(self) -> None:
        """Drop the overlays and undo the branches; raises `RollbackError` when something could not be restored.

        May be run again when it was interrupted, and after a commit that failed: what is undone already stays so.
        """
        if self._decided:
            raise TransactionError("Cannot roll back: this transaction has been committed.")
        with self._mutex:
            self._ended = True
        try:
            if self._unobserve or self._enders:
                self._clean_up()
        finally:
            if not self._undone:
                self._undo()

    def fence(self) -> None:
        """End the right to write now; commit is no longer possible, rollback is. For a handler that may still run."""
        with self._mutex:
            self._ended = True
            self._doomed = "The call was stopped."

    def _clean_up(self) -> None:
        try:
            run_all((*self._unobserve, *self._enders), "A clean-up at the end of a tool call failed")
        finally:
            self._unobserve, self._enders = (), ()

    def _undo(self) -> None:
        self._overlays = {}
        self.touched = {}
        self._after = None
        interrupt: BaseException | None = None
        undoes = self._undoes
        while undoes:
            key = next(reversed(undoes))
            resource, branch, taken = undoes[key]
            try:
                if branch is None:
                    resource.restore(taken)
                else:
                    branch.rollback()
            except BaseException as error:  # noqa: BLE001  INVARIANT 4, 5: nothing stops the other restores
                if not isinstance(error, Exception):
                    if interrupt is None:
                        interrupt = error
                        continue  # a signal comes once: try the same again
                    error = TransactionError(f"interrupted by {type(error).__name__}")
                error.add_note(f"while restoring {type(resource).__qualname__}")
                self._unrestored = (*self._unrestored, error)
            del undoes[key]
        self._undone = True
        if self._unrestored:
            raise RollbackError(_UNRESTORED, self._unrestored) from interrupt
        if interrupt is not None:
            raise interrupt

    def _publish(self) -> None:
        branches = self._branches()
        for branch in branches:
            branch.prepare(self)
        stores = sorted(self._overlays, key=_by_serial) if len(self._overlays) > 1 else list(self._overlays)
        locked: list[Store[Any]] = []
        roots: list[tuple[Store[Any], Any]] = []
        passed = False
        try:
            for store in stores:
                store._mutex.acquire()
                locked.append(store)
            logs: dict[CommitLog, list[tuple[Store[Any], Sequence[Op[Any]]]]] = {}
            for store in stores:
                overlay = self._overlays[store]
                roots.append((store, _rebased(store, overlay, store._root)))  # runs reducers: may still fail
                if store.log is not None:
                    logs.setdefault(store.log, []).append((store, overlay.ops))
            # The log's record is the truth where there is one; else a participant may still refuse.
            if logs:
                with ExitStack() as held:
                    if len(logs) > 1:  # all of them get their record, or none does
                        for log in logs:
                            held.enter_context(log.hold())
                    for log, changes in logs.items():
                        log.append(self.txn_id, changes)
                    passed = True
            if passed:
                run_all([branch.settle for branch in branches], "A resource could not commit what the log has kept")
            else:
                for branch in branches:
                    branch.settle()
                passed = True
            self._decided = True  # the point of no return
            _show(roots)
        except BaseException as error:
            if passed and not isinstance(error, Exception):  # an interrupt may not leave half a commit
                self._decided = True
                _show(roots)
            raise
        finally:
            for store in reversed(locked):
                store._mutex.release()

    def _branches(self) -> Sequence[Branch]:
        """The branches that end with this scope: all in an outermost one, in a nested one those of mortal resources."""
        if not self._has_branches:
            return ()
        ending = (
            self._undoes.items()
            if self.parent is None
            else [(k, v) for k, v in self._undoes.items() if k in self.mortal]
        )
        return [branch for _, (_, branch, _) in ending if branch is not None]

    def _finish(self) -> None:
        """Let go of what only an undecided scope needs."""
        branches = self._branches() if self._has_branches else ()
        self._undoes, self._overlays = {}, {}
        if branches:
            run_all([branch.commit for branch in branches], "A resource could not finish a commit that was decided")

    def _merge(self, parent: Scope) -> None:
        for branch in self._branches():
            branch.prepare(self)
            branch.settle()
        with parent._mutex:
            if parent.ended:
                raise FencedWriteError("Cannot keep the changes of this call: the call around it has ended.")
            merged: list[tuple[Store[Any], Overlay[Any], Any]] = []
            for store, overlay in self._overlays.items():
                outer = parent._overlays.get(store) or Overlay(store.view(parent.parent))
                with store._mutex:
                    merged.append((store, outer, _rebased(store, overlay, outer.root)))
            for store, outer, root in merged:
                outer.root = root
                outer.ops.extend(self._overlays[store].ops)
                parent._overlays[store] = outer
            for key, (resource, branch, taken) in self._undoes.items():
                if key in self.mortal:
                    continue
                if branch is None:
                    parent._undoes.setdefault(key, (resource, None, taken))
                else:
                    branch.merge(parent)
            parent.touched.update(self.touched)
            if self.call_ids:
                parent.call_ids = parent.call_ids or []
                parent.call_ids.extend(self.call_ids)
            if self.compensations:
                parent.compensations = parent.compensations or []
                parent.compensations.extend(self.compensations)
            if self._after:
                parent._after = parent._after or []
                parent._after.extend(self._after)
                self._after = None
            self._decided = True

    def delivered(self) -> Sequence[Callable[[], None]]:
        """What is to be run after the outermost commit; empties the list."""
        after, self._after = self._after, None
        return after or ()


_OVER = "Cannot run this tool call: the tool call around it has ended."
_UNRESTORED = "Restoring after a failed tool call did not succeed; the session refuses further writes"
_IMPURE = "A reducer must be pure: it cannot write to the session it reduces. Dispatch from the handler instead."


def run_all(todo: Iterable[Callable[[], object]], complaint: str) -> None:
    """Run every one of them; failures are logged, an interrupt is raised when all have had their turn."""
    interrupt: BaseException | None = None
    for fn in todo:
        try:
            fn()
        except Exception:  # INVARIANT: clean-up never stops half-way and never changes the outcome
            _logger.exception(complaint)
        except BaseException as error:  # noqa: BLE001
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


def _rebased(store: Store[R], overlay: Overlay[R], now: R) -> R:
    """The overlay's root, replayed if somebody else changed the store since it was begun: no update is lost."""
    if now is overlay.base:
        return overlay.root
    for op in overlay.ops:
        now = store._guarded(op, now)
    return now


def _show(roots: list[tuple[Store[Any], Any]]) -> None:
    for store, root in roots:
        store._root = root


def _by_serial(store: Store[Any]) -> int:
    return store.serial


class _ParticipantBranch:
    """Carries a user's own transaction along."""

    __slots__ = ("begun", "outer", "resource", "token")

    def __init__(self, resource: Participant, scope: Scope) -> None:
        self.resource = resource
        self.token: object = None
        self.begun = False
        outer = scope.parent
        while outer is not None and outer.branch_of(resource) is None:
            outer = outer.parent
        self.outer = outer

    def begin(self) -> None:
        hook: Any = getattr(self.resource, "begin" if self.outer is None else "savepoint", None)
        self.begun = True
        if hook is not None:
            self.token = hook()

    def prepare(self, scope: Scope, /) -> None:  # noqa: ARG002
        self.resource.prepare()

    def settle(self) -> None:
        self.resource.commit()

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        if not self.begun:
            return
        if self.outer is None:
            self.resource.rollback()
            return
        undo: Any = getattr(self.resource, "rollback_to", None)
        if undo is None:
            name = type(self.resource).__qualname__
            self.outer.doom(f"{name} has no rollback_to(token): a nested call failed and could not be undone alone.")
        else:
            undo(self.token)

    def merge(self, parent: Scope, /) -> None:
        parent.enlist(self.resource, self)


_kinds: dict[type, int] = {}


def slow_to_join(resources: Iterable[object]) -> list[object]:
    """Those that look at a whole disk tree when a scope takes them in; not on an event loop."""
    return [resource for resource in resources if callable(getattr(type(resource), "join_scope", None))]


def _kind_of(cls: type) -> int:
    """1: snapshotable, 2: participant, 3: brings its own branch when a scope takes it in (`join_scope`),
    0: none of these, or a class that enlists itself when it is written to (`__transactional__`)."""
    if getattr(cls, "__transactional__", False):
        return 0
    if callable(getattr(cls, "join_scope", None)):
        return 3
    if all(callable(getattr(cls, name, None)) for name in ("prepare", "commit", "rollback")):
        return 2
    if all(callable(getattr(cls, name, None)) for name in ("snapshot", "restore")):
        return 1
    return 0
