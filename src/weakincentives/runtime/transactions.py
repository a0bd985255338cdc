"""Transactions by hand: a block that rolls back, snapshots to go back to, and calls that somebody else executes.

INVARIANTS (tests cite the numbers)
 1. A snapshot is restored whole: session, attached files and every snapshotable resource, also one built since.
 2. A restore tries everything, in reverse, then raises one `RollbackError`; the session then refuses writes.
 3. What a restore in the block of the snapshot takes back leaves no trace but LOG: its events are not delivered, its
    external effects are compensated, and the calls are named in one `TransactionRolledBack`.
 4. Tracked calls that overlap share one fate, decided when the last one ends; each has one `ToolInvoked`, recorded then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self, cast

from .. import serde
from ..errors import RollbackError, TransactionError
from ..prompt.events import NO_CHANGES, Changes, Outcome, RunContext, ToolInvoked
from ..prompt.prompt import Prompt
from ..prompt.tool_result import ToolResult, render_text
from ..resources import Binding, ResourceRegistry, ToolScope
from ..session import Session, TransactionRolledBack
from ..session.session import SessionTransaction
from ..transaction import ResourceView, Scope, slow_to_join, view_of
from ..transaction.scope import current, run_all
from . import workers
from .execute import _changes as changes_of
from .execute import _said as said

_logger = logging.getLogger(__name__)

Undo = Callable[[], object]


# -- snapshots ---------------------------------------------------------------------------------------------------------


class CompositeSnapshot:
    """A session and its resources at one moment. Opaque; give it to `restore_snapshot`, any number of times.

    It keeps an eye on the resources it was taken with, so that one built later can be put back to its beginning.
    """

    def __init__(self, session: Session, view: ResourceView, tag: str) -> None:
        self.session_id = session.session_id
        self.tag = tag
        self.taken_at = session.clock.now()
        self._scope = session.scope
        self._notes = _Notes(self._scope)
        self._state = session.snapshot()
        self._undoes: dict[int, tuple[object, Undo]] = {}
        self._late: dict[int, tuple[object, Undo]] = {}
        self._view = view
        for resource in (*session._core.attached.values(), *view.built):
            undo = _undo_of(resource, self._scope)
            if undo is not None:
                self._undoes.setdefault(id(resource), (resource, undo))
        watch = weakref.WeakMethod(self._built_since)
        self.forget_resources = weakref.finalize(self, view.observe(lambda resource: _tell(watch, resource)))
        """Stop looking at what is built."""
        self.forget_resources.atexit = False

    def _built_since(self, resource: object) -> None:
        if id(resource) in self._undoes:
            return
        undo = _undo_of(resource, self._scope)
        if undo is not None:
            # What lived for one tool call is gone again; only what is still there need be kept in mind.
            there = {id(each) for each in self._view.built}
            self._late = {key: value for key, value in tuple(self._late.items()) if key in there}
            self._late[id(resource)] = (resource, undo)

    def _restore(self, session: Session, view: ResourceView) -> None:
        undoes = dict(self._undoes)
        for resource in view.built:
            if id(resource) in self._late:
                undoes.setdefault(id(resource), self._late[id(resource)])
            elif id(resource) not in undoes and _can(resource, "snapshot", "restore"):
                raise TransactionError(
                    f"Cannot restore: the snapshot does not hold {type(resource).__qualname__}. "
                    "Pass the same resources to create_snapshot and restore_snapshot."
                )
        scope = session.scope
        dropped = self._notes.drop_since() if scope is not None and scope is self._scope else _Dropped()
        causes: list[Exception] = []
        interrupt: BaseException | None = None
        todo: list[tuple[object, Undo]] = [(session, partial(session.restore, self._state)), *undoes.values()]
        for resource, undo in reversed(todo):
            try:
                undo()
            except BaseException as error:  # noqa: BLE001  INVARIANT 2: nothing stops the other restores
                if not isinstance(error, Exception):
                    interrupt = error
                    error = TransactionError(f"interrupted by {type(error).__name__}")
                error.add_note(f"while restoring {type(resource).__qualname__}")
                causes.append(error)
        core = session._core
        if dropped.call_ids or self.tag:
            core.record(
                TransactionRolledBack(
                    tuple(dropped.call_ids),
                    self.tag,
                    "restored from a snapshot",
                    core.clock.now(),
                    core.session_id,
                )
            )
        run_all(reversed(dropped.compensations), "Undoing an external effect failed")
        if causes:
            core.poison = RollbackError(
                "Restoring a snapshot did not succeed; the session refuses further writes", causes
            )
            raise core.poison from interrupt


def _tell(watch: weakref.WeakMethod[Callable[[object], None]], resource: object) -> None:
    tell = watch()
    if tell is not None:
        tell(resource)


class _Dropped:
    """What a scope had noted for its end and need not do any more."""

    def __init__(
        self, call_ids: list[str] | None = None, compensations: list[Callable[[], None]] | None = None
    ) -> None:
        self.call_ids = call_ids or []
        self.compensations = compensations or []


class _Notes:
    """How much a scope had noted for its end when a snapshot was taken."""

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope
        self._calls = self._compensations = self._events = self._touched = 0
        if scope is not None:
            self._calls, self._compensations = len(scope.call_ids), len(scope.compensations)
            self._events, self._touched = len(scope._after or ()), len(scope.touched)

    def drop_since(self) -> _Dropped:
        """Make the scope forget the rest: calls, events to deliver, names of what was touched."""
        scope = self._scope
        assert scope is not None
        with scope._mutex:
            dropped = _Dropped(list(scope.call_ids[self._calls :]), list(scope.compensations[self._compensations :]))
            scope.call_ids = list(scope.call_ids[: self._calls])
            scope.compensations = list(scope.compensations[: self._compensations])
            scope._after = list(scope._after or ())[: self._events]
            for key in list(scope.touched)[self._touched :]:
                del scope.touched[key]
        return dropped


def _can(resource: object, *methods: str) -> bool:
    return all(callable(getattr(type(resource), name, None)) for name in methods)


def _undo_of(resource: Any, scope: Scope | None) -> Undo | None:
    """How to put the resource back as it is now; None when it cannot be, or needs no one to do it."""
    if _can(resource, "prepare", "commit", "rollback"):
        return _savepoint(resource, scope)
    return partial(resource.restore, resource.snapshot()) if _can(resource, "snapshot", "restore") else None


def _savepoint(resource: Any, scope: Scope | None) -> Undo | None:
    """A participant has a way back only inside of a transaction it has joined."""
    joined = scope
    while joined is not None and joined.branch_of(resource) is None:
        joined = joined.parent
    if joined is None or scope is None:
        return None
    name = type(resource).__qualname__
    take, back = getattr(resource, "savepoint", None), getattr(resource, "rollback_to", None)
    if take is None or back is None:
        why = f"{name} has no savepoint() and rollback_to(token): it cannot be restored without the whole transaction."
        return lambda: None if scope.ended else scope.doom(why)
    token = take()
    return lambda: None if scope.ended else back(token)


class _CallView:
    """The resources of one tool call, as its transaction sees them: the shared ones and its own."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    @property
    def built(self) -> tuple[object, ...]:
        return (*self._scope.context.built, *self._scope.built)

    def observe(self, fn: Callable[[object], None], /) -> Callable[[], None]:
        return self._scope.observe(fn)


def _view(resources: object) -> ResourceView:
    """Every form resources come in, as long as they are live."""
    if isinstance(resources, Prompt):
        resources = cast("Prompt[Any]", resources).resources
    if isinstance(resources, ToolScope):
        return _CallView(resources)
    given: list[object] = [resources]
    if isinstance(resources, Mapping):
        given = list(cast("Mapping[object, object]", resources).values())
    for each in given:
        if isinstance(each, ResourceRegistry | Binding):
            kind = "ResourceRegistry" if isinstance(each, ResourceRegistry) else "Binding"
            raise TransactionError(
                f"A {kind} says how resources are made and holds none. "
                "Pass open ones: prompt.resources, or what registry.open() gives."
            )
    return view_of(cast("object", resources))


def create_snapshot(session: Session, resources: object = None, tag: str = "") -> CompositeSnapshot:
    """The session's STATE, its attached files and the resources as they are now. Costs the same however much there is.

    `resources`: a prompt's, an open context, a tool context's, a mapping of instances, or one instance. Outside of a
    transaction it waits for its turn, so that it never sees half a call.
    """
    view = _view(resources)
    with _turn(session, shared=True):
        return CompositeSnapshot(session, view, tag)


def restore_snapshot(session: Session, resources: object, snapshot: CompositeSnapshot) -> None:
    """Put everything back as it was when the snapshot was taken; LOG slices stay.

    In the block that yielded the snapshot only the block's own later writes are dropped. Anywhere else it is a write
    like any other, and undoes what anybody wrote since.
    """
    if not isinstance(snapshot, CompositeSnapshot):
        raise TransactionError(
            f"Expected a snapshot of create_snapshot or tool_transaction, got {type(snapshot).__name__}."
        )
    if snapshot.session_id != session.session_id:
        raise TransactionError("This snapshot belongs to another session and cannot be restored here.")
    session._core.check_open()
    if session.scope is not None:
        session.scope.check_writable("session")
    view = snapshot._view if resources is None else _view(resources)
    with _turn(session, shared=False):
        snapshot._restore(session, view)


@contextmanager
def _turn(session: Session, *, shared: bool) -> Generator[None]:
    """Nobody else's call runs meanwhile; a transaction that is open here has its turn already."""
    if session.scope is not None:
        yield
        return
    turn = Scope()
    try:
        turn.enter(session._core.lock, shared=shared)
        yield
    finally:
        turn.leave()


class ToolTransaction:
    """A block whose changes are kept on normal exit and rolled back on any exception. Yields its first snapshot."""

    def __init__(self, session: Session, resources: object, tag: str) -> None:
        self._session = session
        self._view = _view(resources)
        self._block: SessionTransaction = session.transaction(self._view, tag=tag)
        self._tag = tag
        self._snapshot: CompositeSnapshot | None = None

    def __enter__(self) -> CompositeSnapshot:
        self._block.__enter__()
        return self._begin()

    async def __aenter__(self) -> CompositeSnapshot:
        await self._block.__aenter__()
        return self._begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._snapshot is not None:
            self._snapshot.forget_resources()
        self._block.__exit__(kind, error, trace)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def _begin(self) -> CompositeSnapshot:
        try:
            self._snapshot = CompositeSnapshot(self._session, self._view, self._tag)
        except BaseException as error:
            self._block.__exit__(type(error), error, None)
            raise
        return self._snapshot


def tool_transaction(session: Session, resources: object = None, tag: str = "") -> ToolTransaction:
    """Keep all or none of what happens in the block: `with` or `async with`; nested ones are savepoints.

    The block's value is a snapshot: `restore_snapshot(session, resources, snapshot)` takes back what was done so far
    and lets the block go on.
    """
    return ToolTransaction(session, resources, tag)


# -- calls that somebody else executes -----------------------------------------------------------------------------------

Fate = Literal[
    "pending",  # calls that overlap with this one have not ended yet
    "kept",  # what was done is there to stay
    "rolled_back",  # this call, or one that overlapped with it, failed: nothing of it is left
]
Place = tuple[int, int]


def _here() -> Place:
    """This thread and task: code that runs here in a row."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), 0 if task is None else id(task)


class _Group(Scope):
    """The transaction of tracked calls that overlap. Lives from the first one's begin to the last one's end."""

    def __init__(self, parent: Scope | None) -> None:
        super().__init__(parent)
        self.opening = threading.Lock()
        self.is_open = False
        self.pending = 0
        self.done: list[_Tracked] = []
        self.events: list[ToolInvoked] = []
        self.failure = ""
        self.before: dict[Place, Scope | None] = {}
        """What was current, where calls began, before this was."""
        self.begun: dict[Place, int] = {}
        """How many pending calls began where."""

    def arrive(self) -> Place:
        """Make what is done here from now on part of the transaction."""
        place = _here()
        outer = current.get()
        if outer is not self:
            self.before[place] = outer
            current.set(self)
        with self._mutex:
            self.begun[place] = self.begun.get(place, 0) + 1
        return place

    def depart(self, place: Place | None) -> None:
        """A call that began there has ended; what is done there belongs to nobody again, if we are there."""
        if place is None:
            return
        with self._mutex:
            self.begun[place] -= 1
            is_last = self.begun[place] == 0
        if is_last and place == _here() and current.get() is self:
            current.set(self.before[place])


class _Tracked:
    """One call between its begin and its end."""

    def __init__(self, call_id: str, tool_name: str, params: object, group: _Group, session: Session) -> None:
        self.call_id = call_id
        self.tool_name = tool_name
        self.params = params
        self.group = group
        self.place: Place | None = None
        self.began_at = session.clock.now()
        self.started = session.clock.monotonic()
        self.duration = 0.0
        self.outcome: Outcome = "ok"
        self.result: ToolResult[Any] | None = None
        self.text = ""

    def fail(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        self.result = ToolResult.error(message)
        self.text = message

    def event(self, session: Session, changes: Changes, run_context: RunContext | None) -> ToolInvoked:
        params = self.params
        if params is not None and serde.has_secrets(type(params)):
            params = serde.redact(params)
        return ToolInvoked(
            self.tool_name,
            params,
            self.result,
            self.outcome == "ok",
            self.began_at,
            self.duration,
            self.outcome,
            self.outcome == "failed",
            self.call_id,
            self.text,
            changes,
            session.session_id,
            run_context,
        )


class PendingToolTracker:
    """Transactions around tools that an SDK executes itself and tells us of by hooks.

    `begin_tool_execution` takes the session's turn and `end_tool_execution` gives it back: between them every other
    call waits. Tools that overlap form one transaction, kept if all of them succeed. What is written between begin
    and end by the code that called begin belongs to it, threads and tasks it starts included; where begin and end are
    called in different places, say `activate=False` and do in-process work under `activate(tool_use_id)`. Each
    tracked call is recorded as one `ToolInvoked` when its transaction ends. Leaving the tracker aborts what is pending.
    """

    def __init__(self, *, session: Session, resources: object = None, run_context: RunContext | None = None) -> None:
        self._session = session
        self._view = _view(resources)
        self._run_context = run_context
        self._mutex = threading.Lock()
        self._group: _Group | None = None
        self._pending: dict[str, _Tracked] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """The ids of calls that have begun and not ended."""
        return tuple(self._pending)

    def begin_tool_execution(
        self, tool_use_id: str, tool_name: str, *, params: object = None, activate: bool = True
    ) -> None:
        """Wait for the session's turn, and begin. In async code use `abegin_tool_execution`."""
        call = self._join(tool_use_id, tool_name, params)
        try:
            call.group.enter(self._session._core.lock)
            self._open(call, activate)
        except BaseException:
            self._withdraw(call)
            raise

    async def abegin_tool_execution(
        self, tool_use_id: str, tool_name: str, *, params: object = None, activate: bool = True
    ) -> None:
        """The same without blocking the event loop."""
        call = self._join(tool_use_id, tool_name, params)
        try:
            await call.group.enter_async(self._session._core.lock)
            if slow := slow_to_join(self._view.built):
                await workers.run_aside(partial(self._take_in, call.group, slow))
            self._open(call, activate)
        except BaseException:
            self._withdraw(call)
            raise

    def end_tool_execution(
        self, tool_use_id: str, success: bool, *, params: object = None, result: ToolResult[Any] | str | None = None
    ) -> Fate:
        """The tool has ended; says what became of the changes. `params` and `result` go into the event.

        A failure takes back what this call and those that overlap with it did, once the last of them has ended.
        """
        call = self._find(tool_use_id)
        if params is not None:
            call.params = params
        if result is None and not success:
            result = f"Tool '{call.tool_name}' failed."
        call.result = ToolResult(result, None, success) if isinstance(result, str) else result
        call.text = "" if call.result is None else render_text(call.result)
        succeeded = success and (call.result is None or call.result.success)
        return self._end(call, "ok" if succeeded else "failed", f"'{call.tool_name}' failed")

    def abort_tool_execution(self, tool_use_id: str, reason: str = "") -> Fate:
        """The tool was stopped, or never ran: take back what it and those that overlap with it did."""
        call = self._find(tool_use_id)
        call.fail("cancelled", f"The call was cancelled: {reason or 'it was aborted'}.")
        return self._end(call, "cancelled", f"'{call.tool_name}' was aborted")

    @contextmanager
    def activate(self, tool_use_id: str) -> Generator[None]:
        """Run the block, wherever it is, as part of a pending call: its writes and nested tool calls included."""
        token = current.set(self._find(tool_use_id).group)
        try:
            yield
        finally:
            current.reset(token)

    def close(self) -> None:
        """Abort what is pending."""
        run_all(
            [partial(self._abort_if_pending, tool_use_id) for tool_use_id in self.pending],
            "Aborting a tool call failed",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # -- how a transaction begins ----------------------------------------------------------------------------------

    def _join(self, tool_use_id: str, tool_name: str, params: object) -> _Tracked:
        self._session._core.check_open()
        _leave_ended()
        with self._mutex:
            if tool_use_id in self._pending:
                raise TransactionError(
                    f"Tool call '{tool_use_id}' has begun already ('{self._pending[tool_use_id].tool_name}'). "
                    "End or abort it first."
                )
            if self._group is None:
                outer = self._session.scope
                if outer is not None:
                    outer.check_writable("session")
                self._group = _Group(outer)
            call = _Tracked(tool_use_id, tool_name, params, self._group, self._session)
            call.group.pending += 1
            self._pending[tool_use_id] = call
            return call

    def _open(self, call: _Tracked, activate: bool) -> None:
        group = call.group
        self._session._core.check_open()
        with group.opening:
            if not group.is_open:
                group.begin(self._view)
                group.is_open = True
        if activate:
            call.place = group.arrive()

    def _take_in(self, group: _Group, resources: Sequence[object]) -> None:
        with group.opening:
            if not group.is_open:
                group.join_all(resources)

    def _withdraw(self, call: _Tracked) -> None:
        """The call could not begin; those it would have joined go on without it."""
        with self._mutex:
            self._pending.pop(call.call_id, None)
            last = self._release(call.group)
        if last:
            self._settle(call.group)

    # -- how it ends -----------------------------------------------------------------------------------------------

    def _find(self, tool_use_id: str) -> _Tracked:
        call = self._pending.get(tool_use_id)
        if call is None:
            known = ", ".join(self._pending) or "none"
            raise TransactionError(f"No tool call '{tool_use_id}' is pending (pending: {known}). Begin it first.")
        return call

    def _end(self, call: _Tracked, outcome: Outcome, failure: str) -> Fate:
        group = call.group
        with self._mutex:
            if self._pending.pop(call.call_id, None) is None:
                raise TransactionError(f"Tool call '{call.call_id}' has ended already.")
            call.outcome = outcome
            call.duration = self._session.clock.monotonic() - call.started
            group.done.append(call)
            if outcome != "ok":
                group.failure = group.failure or failure
            last = self._release(group)
        group.depart(call.place)
        return self._settle(group) if last else "pending"

    def _release(self, group: _Group) -> bool:
        """One call fewer; True when it was the last, and the next one begins another transaction."""
        group.pending -= 1
        if group.pending:
            return False
        if self._group is group:
            self._group = None
        return True

    def _abort_if_pending(self, tool_use_id: str) -> None:
        if tool_use_id in self._pending:
            self.abort_tool_execution(tool_use_id, "the tracker was closed")

    def _settle(self, group: _Group) -> Fate:
        """Commit or roll back, record the calls, let the next call in, tell subscribers: each whatever became of the
        others, as a session must never stay locked and a call never unrecorded."""
        core = self._session._core
        inner_calls, compensations = list(group.call_ids), list(group.compensations)
        try:
            self._decide(group)
        finally:
            try:
                if not group.committed:
                    group.events = self._events(group, NO_CHANGES)
                elif group.events:
                    core.keep_in_memory(group.events[0])  # it is stored together with the commit
                for event in group.events[1 if group.committed else 0 :]:
                    core.keep(event)
            finally:
                try:
                    if not group.committed:
                        self._taken_back(group, inner_calls, compensations)
                finally:
                    group.leave()
                    if not group.nested:
                        run_all(group.delivered(), "A subscriber failed")
                    for event in group.events:
                        core.deliver(event)
        return "kept" if group.committed else "rolled_back"

    def _decide(self, group: _Group) -> None:
        """Commit, the first event together with it, or roll back."""
        core, storage = self._session._core, self._session._core.storage
        try:
            if group.failure or not group.done:
                group.rollback()
                return
            core.check_open()
            if group.watches:
                group.note_changes()
            group.events = self._events(group, changes_of(group))
            for call in group.done:
                group.succeeded(call.call_id, None)
            if storage is not None:
                storage.stage(group.events[0])
            group.commit()
            if storage is not None:
                storage.flush()
        except BaseException as error:
            if group.committed:
                raise
            if storage is not None:
                storage.unstage()
            group.failure = group.failure or type(error).__name__
            for call in group.done:
                if call.outcome == "ok":
                    call.fail("failed", f"Internal error: {said(error)}")
            if isinstance(error, RollbackError):
                core.poison = error
            if isinstance(error, RollbackError) or not isinstance(error, Exception):
                raise
            # INVARIANT: a commit that fails is a failed call; the transaction has rolled back already
            _logger.exception("The changes of tracked tool calls could not be kept")

    def _events(self, group: _Group, changes: Changes) -> list[ToolInvoked]:
        return [call.event(self._session, changes, self._run_context) for call in group.done]

    def _taken_back(self, group: _Group, inner_calls: list[str], compensations: list[Callable[[], None]]) -> None:
        core = self._session._core
        call_ids = (*inner_calls, *(call.call_id for call in group.done if call.outcome == "ok"))
        if call_ids:
            tag = ", ".join(dict.fromkeys(call.tool_name for call in group.done))
            core.record(TransactionRolledBack(call_ids, tag, group.failure, core.clock.now(), core.session_id))
        run_all(reversed(compensations), "Undoing an external effect failed")


def _leave_ended() -> None:
    """Forget a transaction that was begun here and ended elsewhere."""
    scope = current.get()
    if isinstance(scope, _Group) and scope.ended:
        current.set(scope.before.get(_here()))
