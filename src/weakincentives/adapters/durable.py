"""Runs that survive their process: requests are queued in a database, and any worker finishes what another began.

Decides what one recorded step is, how a run is played back to where it stopped, and who takes over from the dead. The
engine is DBOS; the session of a run is a durable session. Never asks a model or runs a call whose end is recorded.

INVARIANTS (tests cite the numbers)
 1. A model turn is one step; a call that can write is one step; neighbouring read-only calls are one step together.
 2. A call is run again only if neither its step nor its session knows its end, and then with the same idempotency key.
 3. A run is played back from records alone: no model, no handler, no guard is asked again for what was recorded.
 4. One worker at a time: a run is taken over only when the lock of its worker is free, and its session is locked.
 5. No secret argument is stored. A call that cannot be repeated for that reason is not run, and the model is told.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, cast

import orjson

from .. import serde
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import PromptEvaluationError, SessionStorageError, ThrottledError, VisibilityExpansionRequired
from ..filesystem import Filesystem, InMemoryFilesystem
from ..frozen import frozen
from ..limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage
from ..prompt import Prompt, RunContext
from ..prompt.events import NO_CHANGES
from ..prompt.rendering import OutputT
from ..prompt.tool_result import ToolResult
from ..runtime import (
    MainLoop,
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    pending_approvals,
    workers,
)
from ..runtime.execute import Run, drive, groups, record_unstarted
from ..runtime.main_loop import Prepared, RequestT
from ..serde.codec import CodecError, Opaque, decode, encode
from .core import SYNC, Driver, Evaluation, ModelReply, PromptResponse, ProviderAdapter, StopReason, Turn
from .guardrails import Guardrails, Settle, _Asked
from .lease import FileLease, Lease, PostgresLease

_logger = logging.getLogger(__name__)

_APPLICATION = "weakincentives"
_WORKFLOW = "weakincentives.run"

RunStatus = Literal[
    "queued",  # no worker has begun it
    "running",  # a worker is at it, or died at it and will be followed by another
    "done",  # it was answered
    "failed",  # it ended without an answer
    "cancelled",  # somebody called it off
]
_STATUSES: dict[str, RunStatus] = {
    "DELAYED": "queued",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "done",
    "CANCELLED": "cancelled",
}

# Ends of a call that say nothing about what its handler would have done: the call is made again.
_NOT_AN_END = frozenset({"cancelled", "pending", "deadline", "budget", "interrupted"})


class DurableRunError(PromptEvaluationError):
    """A queued run ended without an answer, was called off, or is not known."""


@frozen
class DurableResponse(Generic[OutputT]):
    """What came of a queued run."""

    request_id: str
    text: str
    """The model's last words."""
    output: OutputT | None
    """The answer as the type the prompt asks for."""
    usage: TokenUsage
    stop_reason: StopReason
    turns: int
    pending: tuple[str, ...] = ()
    """Approval ids of calls that wait for somebody."""
    unfinished: tuple[str, ...] = ()
    """What completion checks still miss."""


class DurableLoop(Generic[RequestT, OutputT]):
    """A `MainLoop` whose requests are queued and outlive the process that works on them.

    `submit` and `result` work anywhere; a process that works on requests calls `start` (or is a `with` block) and serves
    until `stop`. All processes name the same `name`, `folder` and `database`.
    """

    def __init__(
        self,
        loop: MainLoop[RequestT, OutputT],
        *,
        name: str,
        folder: str | os.PathLike[str] = "runs",
        database: str | None = None,
        concurrency: int = 4,
        max_attempts: int = 20,
        version: str = "1",
        carry_sessions: bool | None = None,
        resources: Callable[[Session], Mapping[Any, object]] | None = None,
        poll_seconds: float = 0.5,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`folder` holds the sessions and, unless `database` is a PostgreSQL address, the database.

        A request whose workers died `max_attempts` times is given up: it may be what kills them. A run is finished only by
        workers of the `version` that began it. `carry_sessions` keeps the records of a session in
        the database too, for workers that do not see each other's disk; by default with PostgreSQL. `resources` are
        bound per run and may need its session, as a `HostFilesystem` does.
        """
        if not name:
            raise ValueError("DurableLoop needs a name: the queue that its requests wait in.")
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {concurrency}.")
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {max_attempts}.")
        if database is not None and not database.startswith(("postgresql://", "postgresql+psycopg://")):
            raise ValueError(
                f"database must be a postgresql:// address, got {database!r}. Leave it out for SQLite in the folder."
            )
        _refuse_others(loop.adapter)
        self.loop = loop
        self.name = name
        self.folder: str = os.path.abspath(os.fspath(folder))
        self.database = database or f"sqlite:///{os.path.join(self.folder, 'runs.db')}"
        self.concurrency = concurrency
        self.max_attempts = max_attempts
        self.version = version
        self.carry_sessions = database is not None if carry_sessions is None else carry_sessions
        self.resources = resources
        self.poll_seconds = poll_seconds
        self.clock = clock
        self.worker_id = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._embedded = database is None
        self._mutex = threading.RLock()
        self._connected: Any = None
        self._lease: Lease | None = None
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()
        self._active = 0

    # -- anywhere --------------------------------------------------------------------------------------------------

    def submit(self, request: RequestT, *, request_id: str | None = None) -> str:
        """Queue a request and say its id. The same id again is the same run, however often it is submitted."""
        if serde.has_secrets(type(request)):
            raise ValueError(
                f"{type(request).__name__} has secret fields, which are never stored, so it cannot be queued. "
                "Bind the secret as a resource instead."
            )
        request_id = request_id or uuid.uuid4().hex
        options = {
            "queue_name": self.name,
            "workflow_name": _WORKFLOW,
            "workflow_id": self._run_id(request_id),
            "serialization_type": _dbos().WorkflowSerializationFormat.PORTABLE,
        }
        self._client.enqueue(options, self.name, _dumped(request))
        return request_id

    def status(self, request_id: str) -> RunStatus:
        """Where the run is."""
        return _STATUSES.get(self._found(request_id).status, "failed")

    def result(self, request_id: str, *, timeout: timedelta | float | None = None) -> DurableResponse[OutputT]:
        """Wait for the answer. Raises `DurableRunError` when the run failed, `TimeoutError` when it takes longer."""
        until = None if timeout is None else Deadline.after(timeout, self.clock)
        while True:
            found = self._found(request_id, load_output=True)
            match _STATUSES.get(found.status, "failed"):
                case "done":
                    return _response(request_id, _loaded(found.output))
                case "cancelled":
                    raise DurableRunError(f"Run {request_id} was called off.")
                case "failed":
                    error = found.error
                    name = getattr(error, "name", None) or type(error).__name__
                    told = f"{name}: {error}" if error is not None else f"given up ({found.status})"
                    raise DurableRunError(f"Run {request_id} failed: {told}")
                case _:
                    pass
            if until is not None and until.expired:
                raise TimeoutError(f"Run {request_id} has not ended yet. It goes on; ask for its result again later.")
            self.clock.sleep(self.poll_seconds)

    def cancel(self, request_id: str) -> None:
        """Call a run off: it ends before its next step. What its calls did so far stays."""
        self._found(request_id)
        self._client.cancel_workflow(self._run_id(request_id))

    def resume(self, request_id: str) -> None:
        """Go on with a run that was called off, from where it stopped."""
        found = self.status(request_id)
        if found != "cancelled":
            raise DurableRunError(f"Run {request_id} cannot be resumed: it is {found}, not cancelled.")
        self._client.resume_workflow(self._run_id(request_id), queue_name=self.name)

    def steps(self, request_id: str) -> list[str]:
        """What is recorded of a run so far: `chat` for a turn, the names of tools for calls."""
        steps = self._client.list_workflow_steps(self._run_id(request_id), load_output=False)
        return [step["function_name"] for step in steps]

    def forget(self, request_id: str) -> None:
        """Remove all trace of a run that has ended, its session here included."""
        found = self.status(request_id)
        if found in ("queued", "running"):
            raise DurableRunError(f"Run {request_id} is {found} and cannot be forgotten. Cancel it first.")
        self._client.delete_workflow(self._run_id(request_id))
        with suppress(FileNotFoundError):
            os.unlink(self.session_path(request_id))

    def session_path(self, request_id: str) -> str:
        """The file of a run's session, for `Session.open`; a worker holds it as long as the run goes on."""
        digest = hashlib.sha256(self._run_id(request_id).encode()).hexdigest()[:32]
        return os.path.join(self.folder, "sessions", f"{digest}.session")

    # -- a worker --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Work on queued requests in this process, and on those of workers that died. A process serves one loop."""
        dbos = _dbos()
        with _serving_mutex:
            if _serving:
                raise RuntimeError(
                    f"This process serves the durable loop '{next(iter(_serving))}' already. "
                    "Stop that one first, or start another process."
                )
            _serving[self.name] = self
        try:
            self._stopping.clear()
            os.makedirs(os.path.join(self.folder, "sessions"), exist_ok=True)
            _ = self._client
            self._lease = self._new_lease()
            self._lease.take(self.worker_id)  # before anything can be assigned to this worker
            _register(dbos)
            dbos.DBOS(
                config={
                    "name": _APPLICATION,
                    "system_database_url": self.database,
                    "executor_id": self.worker_id,
                    "application_version": self.version,
                    "log_level": "WARNING",
                    "notification_listener_polling_interval_sec": max(0.05, self.poll_seconds),
                }
            )
            # Before the launch: the engine looks for new queues only now and then.
            self._client.register_queue(
                self.name,
                worker_concurrency=self.concurrency,
                polling_interval_sec=self.poll_seconds,
                on_conflict="always_update",
            )
            dbos.DBOS.listen_queues([self.name])
            dbos.DBOS.launch()
            self._take_over()
            self._watcher = threading.Thread(target=self._watch, name="durable-watch", daemon=True)
            self._watcher.start()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout: int = 30) -> None:
        """Take no more requests, let those at work end, and leave. What does not end in time is finished by another
        worker once this process is gone."""
        with _serving_mutex:
            if _serving.get(self.name) is not self:
                return
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        _dbos().DBOS.destroy(workflow_completion_timeout_sec=timeout if self._active else 0)
        lease, self._lease = self._lease, None
        if lease is not None:
            if self._active:
                _kept_locks.append(lease)  # until the process ends: what still runs here may not be taken over
            else:
                lease.close()
        with self._mutex:
            if self._connected is not None:
                self._connected.destroy()
                self._connected = None
        with _serving_mutex:
            _serving.pop(self.name, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.stop()

    def close(self) -> None:
        """End the connection of a process that only submits."""
        with self._mutex:
            if self._connected is not None:
                self._connected.destroy()
                self._connected = None

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        with self._mutex:
            if self._connected is None:
                dbos = _dbos()
                os.makedirs(self.folder, exist_ok=True)
                lease = self._new_lease()
                try:  # two processes must not make the tables at the same time
                    while not lease.take("tables"):
                        self.clock.sleep(0.05)
                    dbos.DBOS.migrate(self.database)
                finally:
                    lease.close()
                self._connected = dbos.DBOSClient(system_database_url=self.database, application_name=_APPLICATION)
            return self._connected

    def _run_id(self, request_id: str) -> str:
        """Requests of other queues in the same database may have the same id."""
        return f"{self.name}/{request_id}"

    def _new_lease(self) -> Lease:
        return FileLease(os.path.join(self.folder, "workers")) if self._embedded else PostgresLease(self.database)

    def _found(self, request_id: str, *, load_output: bool = False) -> Any:
        found = self._client.list_workflows(
            workflow_ids=[self._run_id(request_id)], load_input=False, load_output=load_output
        )
        if not found:
            raise DurableRunError(f"There is no run {request_id} in the queue '{self.name}'. Submit it first.")
        return found[0]

    def _watch(self) -> None:
        while not self._stopping.wait(self.poll_seconds):
            try:
                assert self._lease is not None
                self._lease.refresh()
                self._take_over()
            except Exception:  # INVARIANT: a database that is away for a while does not end the watch
                _logger.exception("Looking for the runs of dead workers failed; trying again")

    def _take_over(self) -> None:
        """Queue again what dead workers were at."""
        assert self._lease is not None
        pending = self._client.list_workflows(
            status="PENDING", queue_name=self.name, load_input=False, load_output=False
        )
        for worker in sorted({found.executor_id for found in pending} - {self.worker_id, None}):
            if self._lease.take(worker):
                try:
                    _logger.info("Worker %s is gone; its runs are queued again", worker)
                    _dbos().DBOS._recover_pending_workflows([worker])
                finally:
                    self._lease.give_back(worker)

    def _run(self, run_id: str, stored: str) -> str:
        """The workflow: from the stored request to the stored answer."""
        request_id = run_id.removeprefix(f"{self.name}/")
        with self._mutex:
            self._active += 1
        try:
            request = _loaded(stored)
            if isinstance(request, Opaque):
                raise DurableRunError(f"Request {request_id} cannot be read here: {request.reason}.")
            attempt: int = self._found(request_id).recovery_attempts or 1
            if attempt > self.max_attempts:
                raise DurableRunError(
                    f"Run {request_id} is given up: its workers died {self.max_attempts} times. "
                    "Find out what it does to them, then submit it under another id."
                )
            return self._answer(request_id, cast("RequestT", request), attempt)
        finally:
            with self._mutex:
                self._active -= 1

    def _answer(self, request_id: str, request: RequestT, attempt: int) -> str:
        path = self.session_path(request_id)
        if self.carry_sessions:
            _bring(path, _carried(self._client.list_workflow_steps(self._run_id(request_id))))
        with self._session(path, request_id) as session:
            recorder = _Recorder(request_id, session, path if self.carry_sessions else None)
            began, _ = recorder.step("begin", lambda: self.clock.now())
            timeout = self.loop.config.timeout
            deadline = self.loop.config.deadline
            if timeout is not None:
                seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
                ends = Deadline(float(began) + seconds, self.clock)
                deadline = ends if deadline is None or ends.timestamp < deadline.timestamp else deadline
            response, _ = _RecordedLoop(self.loop, session, recorder).execute(
                request,
                deadline=deadline,
                resources=None if self.resources is None else self.resources(session),
                run_context=RunContext(run_id=self._run_id(request_id), request_id=request_id, attempt=attempt),
            )
            return _dumped(_as_stored(cast("PromptResponse[OutputT]", response)))

    def _session(self, path: str, request_id: str) -> Session:
        """Open the session; as long as another process has it, that one is not as dead as its lock says."""
        while True:
            try:
                return Session.open(path, bus=self.loop.bus, clock=self.clock, session_id=self._run_id(request_id))
            except SessionStorageError as error:
                if not isinstance(error.__cause__, BlockingIOError):
                    raise
                if self._stopping.is_set():
                    raise _Leaving from None
                _logger.warning("Run %s waits: another process still has its session open", request_id)
                self.clock.sleep(self.poll_seconds)


class _Leaving(BaseException):
    """The worker stops before it could begin. Not an `Exception`: the engine would record it as the end of the run."""


_serving: dict[str, DurableLoop[Any, Any]] = {}
_serving_mutex = threading.Lock()
_registered: list[Any] = []
_kept_locks: list[Lease] = []


def _dbos() -> Any:
    try:
        import dbos
    except ImportError as error:
        raise ImportError("Durable runs need DBOS. Install it: pip install 'weakincentives[durable]'") from error
    log = logging.getLogger("dbos")
    if not log.handlers:
        # Else it would write to the standard error of this moment; where logs go is the program's business.
        log.addHandler(logging.NullHandler())
    return dbos


def _register(dbos: Any) -> None:
    """Tell the engine of the one workflow there is; once per process."""
    if _registered:
        return

    def run(name: str, stored: str) -> str:
        return _serving[name]._run(dbos.DBOS.workflow_id, stored)

    kind = dbos.WorkflowSerializationFormat.PORTABLE
    _registered.append(dbos.DBOS.workflow(name=_WORKFLOW, serialization_type=kind)(run))


def _refuse_others(adapter: object) -> None:
    innermost = adapter
    while hasattr(innermost, "inner"):
        innermost = cast("Any", innermost).inner
    if not isinstance(adapter, ProviderAdapter) or type(innermost).run is not ProviderAdapter.run:  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        kind = type(innermost).__name__
        raise TypeError(
            f"{kind} runs a loop of its own, whose turns cannot be recorded one by one. "
            "Use an adapter that is asked turn by turn, such as OpenAIAdapter."
        )


# -- recording and playing back --------------------------------------------------------------------------------------


class _Recorder:
    """The steps of one run. Made by the worker at each attempt; steps that are recorded are read, others are done."""

    def __init__(self, request_id: str, session: Session, path: str | None) -> None:
        self.request_id = request_id
        self.session = session
        self._path = path
        self._sent = 0
        """How much of the session's file the database has."""
        self.turns = 0
        self.call_ids: set[str] = set()
        self.lost: set[str] = set()
        """Calls whose arguments held secrets, and which this attempt knows from records alone."""

    def step(self, name: str, work: Callable[[], Any]) -> tuple[Any, bool]:
        """What `work` answered when it was first done, and whether that is now. Its answer must be JSON-like."""
        live: list[Any] = []

        def record() -> str:
            live.append(work())
            sent = None if self._path is None else _tail(self._path, self._sent)
            return orjson.dumps([live[0], sent]).decode()

        value, sent = orjson.loads(_dbos().DBOS.run_step({"name": name}, record))
        if sent is not None:
            self._sent += len(base64.b64decode(sent))
        return value, bool(live)


class _RecordedLoop(MainLoop[RequestT, OutputT]):
    """The user's loop for one request: its prompt, in the run's own session, with every step recorded."""

    def __init__(self, loop: MainLoop[RequestT, OutputT], session: Session, recorder: _Recorder) -> None:
        adapter = _RecordedEvaluator(cast("ProviderAdapter", loop.adapter), recorder)
        # The deadline is set by the run: it counts from when the run began, not from when it was taken over.
        super().__init__(adapter=adapter, bus=loop.bus, config=replace(loop.config, timeout=None, deadline=None))
        self._loop = loop
        self._session = session

    def prepare(self, request: RequestT) -> Prepared[OutputT]:
        answer: object = self._loop.prepare(request)
        if isinstance(answer, Awaitable):
            answer = workers.wait_for(cast("Awaitable[object]", answer))
        if not isinstance(answer, Prompt):
            raise TypeError(
                f"{type(self._loop).__name__}.prepare must return a Prompt alone: a durable run has a session of its own."
            )
        return cast("Prompt[OutputT]", answer), self._session


class _RecordedEvaluator:
    """Evaluates with the steps of one run recorded."""

    def __init__(self, adapter: ProviderAdapter, recorder: _Recorder) -> None:
        self._adapter = adapter
        self._recorder = recorder

    def evaluate(
        self,
        prompt: Prompt[Any],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> PromptResponse[Any]:
        with prompt.resources:
            files = prompt.resources.get_optional(Filesystem)
            if isinstance(files, InMemoryFilesystem) and _FILES not in session._core.attached:
                session.attach(_FILES, files)
            evaluation = Evaluation(self._adapter, prompt, session, deadline, budget, heartbeat, run_context)
            evaluation.ids_are_unique = True  # see `_with_ids`; played back, they are those of calls the session knows
            if evaluation.guardrails is not None:
                evaluation.guardrails = _RecordedGuardrails(prompt, session, self._recorder)
            return drive(self._adapter.run(evaluation, RecordedDriver(self._recorder)))

    async def aevaluate(self, prompt: Prompt[Any], session: Session, **limits: Any) -> PromptResponse[Any]:  # noqa: ARG002
        raise AssertionError("a worker runs each request on a thread of its own")


_FILES = "files"


class RecordedDriver(Driver):
    """How the loop waits in a durable run: each wait is a step."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self.runs: Driver = SYNC
        """Who runs the calls that are not recorded yet."""

    async def send(self, adapter: ProviderAdapter, turn: Turn) -> ModelReply:
        recorder = self._recorder
        heard: list[ModelReply] = []
        recorder.turns += 1

        def ask() -> Any:
            try:
                reply = adapter.send(turn)
            except ThrottledError as error:
                return {"throttled": str(error), "retry_after": error.retry_after}
            heard.append(self._with_ids(reply))
            return _stored_reply(heard[0], turn)

        stored, live = recorder.step("chat", ask)
        if "throttled" in stored:
            raise ThrottledError(stored["throttled"], stored["retry_after"])
        reply = heard[0] if live else _restored_reply(stored, recorder.lost)
        recorder.call_ids.update(cast("str", call.call_id) for call in reply.tool_calls)
        return reply

    async def execute(self, calls: Sequence[ToolCall], surroundings: dict[str, Any]) -> list[ToolOutcome]:
        run = Run(**surroundings)
        outcomes: list[ToolOutcome] = []
        started = 0
        try:
            for group in groups(calls, run):
                started += len(group)
                outcomes.extend(self._execute(group, run, surroundings))
        except BaseException:
            record_unstarted([call for call in calls[started:] if self._found(call) is None], run)
            raise
        return outcomes

    async def sleep(self, clock: Clock, seconds: float) -> None:  # noqa: ARG002
        _dbos().DBOS.sleep(seconds)

    def _execute(self, group: Sequence[ToolCall], run: Run, surroundings: dict[str, Any]) -> Sequence[ToolOutcome]:
        """One step: the calls of a group whose end is not known yet."""
        made: dict[str | None, ToolOutcome] = {}

        def work() -> Any:
            todo: list[ToolCall] = []
            for call in group:
                if self._end_of(call) is None:
                    if call.call_id in self._recorder.lost:
                        _record_lost(call, run)
                    else:
                        todo.append(call)
            try:
                outcomes = drive(self.runs.execute(todo, surroundings)) if todo else ()
            except VisibilityExpansionRequired as required:
                return {"opens": _stored_request(required)}
            made.update((outcome.call_id, outcome) for outcome in outcomes)
            return [[call.call_id, cast("ToolInvoked", self._found(call)).outcome] for call in group]

        stored, _ = self._recorder.step(_step_name(group), work)
        if isinstance(stored, dict):
            raise _restored_request(cast("dict[str, Any]", stored)["opens"])
        return [made.get(call.call_id) or self._outcome(call, run) for call in group]

    def _found(self, call: ToolCall) -> ToolInvoked | None:
        return self._recorder.session[ToolInvoked].get(call.call_id)

    def _end_of(self, call: ToolCall) -> ToolInvoked | None:
        """The recorded end of a call whose handler need not, and so must not, run again."""
        found = self._found(call)
        return None if found is None or found.outcome in _NOT_AN_END else found

    def _outcome(self, call: ToolCall, run: Run) -> ToolOutcome:
        """What came of a call, from the session's record of it."""
        event = self._found(call)
        if event is None or event.result is None:
            raise SessionStorageError(
                f"Cannot go on with run {self._recorder.request_id}: call {call.call_id} of '{call.name}' is "
                "recorded, and its session does not know of it. Put the session's file back, then retry."
            )
        binding = cast("Prompt[Any]", run.prompt).find_tool(call.name, run.session)
        tool = None if binding is None else binding.tool
        waiting = ""
        if event.outcome == "pending":
            asked = {entry.call_id: entry.approval_id for entry in pending_approvals(run.session)}
            waiting = asked.get(event.call_id, "")
        return ToolOutcome(
            call,
            tool,
            None if event.outcome in ("invalid_params", "unknown_tool") else event.params,
            event.result,
            event.rendered_output,
            event.outcome,
            event.duration,
            event.changes,
            event.call_id,
            waiting,
        )

    def _with_ids(self, reply: ModelReply) -> ModelReply:
        """The reply with an id for every call that no other call of the session has or will have."""
        calls: list[ToolCall] = []
        renamed = False
        known = self._recorder.call_ids
        taken: set[str] = set()
        for number, call in enumerate(reply.tool_calls):
            call_id = call.call_id
            is_taken = call_id in taken or call_id in known or self._found(call) is not None
            if not call_id or is_taken or call_id.startswith("call-"):
                renamed = renamed or bool(call_id)
                call_id = f"turn-{self._recorder.turns}-{number}"
            taken.add(call_id)
            calls.append(ToolCall(call.name, call.arguments, call_id))
        # The provider's own form would still hold the old ids.
        return ModelReply(reply.text, tuple(calls), reply.stop_reason, reply.usage, None if renamed else reply.raw)


class _RecordedGuardrails(Guardrails):
    """The guards of one run, whose words are recorded."""

    def __init__(self, prompt: Prompt[Any], session: Session, recorder: _Recorder) -> None:
        super().__init__(prompt, session)
        self._recorder = recorder

    async def feedback(self, turns: int, surroundings: dict[str, Any], settle: Settle) -> str:
        if not self._is_fresh:
            return ""

        def ask() -> Any:
            text = drive(super(_RecordedGuardrails, self).feedback(turns, surroundings, settle))
            return [text, [[place, asked.calls, asked.text] for place, asked in self._asked.items()]]

        (text, asked), live = self._recorder.step("feedback", ask)
        if not live:
            self._is_fresh = False
            for place, calls, said in asked:
                known = self._asked[place] = _Asked(self._session.clock.monotonic())
                known.calls, known.text = calls, said
        return text

    async def missing(
        self, answer: str, output: object, turns: int, surroundings: dict[str, Any], settle: Settle, *, last: bool
    ) -> tuple[str, tuple[str, ...]]:
        def ask() -> Any:
            told = drive(
                super(_RecordedGuardrails, self).missing(answer, output, turns, surroundings, settle, last=last)
            )
            return [told[0], list(told[1]), self.reminders_left]

        (text, found, left), _ = self._recorder.step("completion", ask)
        self.reminders_left = left
        return text, tuple(found)


# -- what is stored --------------------------------------------------------------------------------------------------


def _step_name(calls: Sequence[ToolCall]) -> str:
    name = " ".join(str(call.name) for call in calls)
    return name if len(name) <= 100 else f"{name[:80]}… ({len(calls)} calls)"


def _dumped(value: object) -> str:
    return orjson.dumps(encode(value, redact=True)).decode()


def _loaded(stored: str) -> Any:
    return decode(orjson.loads(stored))


def _as_stored(response: PromptResponse[Any]) -> dict[str, Any]:
    return {
        "text": response.text,
        "output": response.output,
        "usage": response.usage,
        "stop_reason": response.stop_reason,
        "turns": response.turns,
        "pending": tuple(outcome.approval_id for outcome in response.pending),
        "unfinished": response.unfinished,
    }


def _response(request_id: str, stored: dict[str, Any]) -> DurableResponse[Any]:
    return DurableResponse(request_id, **stored)


def _stored_reply(reply: ModelReply, turn: Turn) -> dict[str, Any]:
    secretive = {tool.name: tool for tool in turn.tools if serde.has_secrets(tool.params_type)}
    redacted = [call.call_id for call in reply.tool_calls if call.name in secretive]
    calls: list[list[Any]] = []
    for call in reply.tool_calls:
        arguments: Any = dict(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
        if call.name in secretive:
            try:
                arguments = serde.redact(secretive[call.name].parse(call.arguments))
            except serde.ParseError:
                arguments = serde.REDACTED
        calls.append([call.name, encode(arguments), call.call_id])
    try:
        raw = None if redacted else encode(reply.raw)
    except CodecError:
        # CAUTION: an adapter that needs its own form of a reply back must give it as plain data.
        raw = None
    usage = reply.usage
    return {
        "text": encode(reply.text),
        "calls": calls,
        "redacted": redacted,
        "stop_reason": reply.stop_reason,
        "usage": [usage.input_tokens, usage.output_tokens, usage.cached_tokens],
        "raw": raw,
    }


def _restored_reply(stored: dict[str, Any], lost: set[str]) -> ModelReply:
    lost.update(stored["redacted"])
    calls = tuple(ToolCall(name, decode(arguments), call_id) for name, arguments, call_id in stored["calls"])
    usage = TokenUsage(*stored["usage"])
    return ModelReply(decode(stored["text"]), calls, stored["stop_reason"], usage, decode(stored["raw"]))


def _stored_request(required: VisibilityExpansionRequired) -> dict[str, Any]:
    return {
        "message": str(required),
        "overrides": encode(required.requested_overrides),
        "keys": list(required.section_keys),
        "reason": required.reason,
    }


def _restored_request(stored: dict[str, Any]) -> VisibilityExpansionRequired:
    return VisibilityExpansionRequired(
        stored["message"],
        requested_overrides=decode(stored["overrides"]),
        section_keys=stored["keys"],
        reason=stored["reason"],
    )


def _record_lost(call: ToolCall, run: Run) -> None:
    """Record that a call was not run because its secret arguments are gone."""
    text = (
        f"Tool '{call.name}' was not run: the run was interrupted, and its secret arguments are never stored. "
        "Call it again with them."
    )
    core = run.session._core
    core.record(
        ToolInvoked(
            call.name,
            serde.REDACTED,
            ToolResult.error(text),
            False,
            core.clock.now(),
            0.0,
            "cancelled",
            True,
            cast("str", call.call_id),
            text,
            NO_CHANGES,
            core.session_id,
            run.run_context,
        )
    )


# -- sessions that travel --------------------------------------------------------------------------------------------


def _tail(path: str, offset: int) -> str:
    with open(path, "rb") as file:
        file.seek(offset)
        return base64.b64encode(file.read()).decode()


def _carried(steps: Sequence[Mapping[str, Any]]) -> bytes:
    """The session's file as the recorded steps have it."""
    parts: list[bytes] = []
    for step in steps:
        output = step["output"]
        if isinstance(output, str) and output.startswith("["):
            sent = orjson.loads(output)[1]
            parts.append(base64.b64decode(sent or ""))
    return b"".join(parts)


def _bring(path: str, carried: bytes) -> None:
    """Make the file at hand agree with the steps: what it has beyond them counts, what contradicts them does not."""
    try:
        with open(path, "rb") as file:
            if file.read(len(carried)) == carried:
                return
    except FileNotFoundError:
        if not carried:
            return
    fresh = f"{path}.{uuid.uuid4().hex}"
    with open(fresh, "wb") as file:
        file.write(carried)
    # A process that still writes to the old file writes to nobody's.
    os.replace(fresh, path)
