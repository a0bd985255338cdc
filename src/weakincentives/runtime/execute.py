"""One function runs every tool call: lookup, parse, policies, limits, transaction, handler, render, record.

INVARIANTS (tests cite the numbers)
 1. One `ToolCall` gives one `ToolInvoked`, whatever happened, recorded after the rollback.
 2. No handler runs before every policy allowed it, and unknown, invalid and denied calls never reach it.
 3. No TOOL_CALL resource outlives its call.
 4. Leaving without commit, state and files are as before, for every `BaseException`.
 5. Nothing the model sends raises out of here.
 6. Sync and async run the same code: only `Driver` knows how to wait.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from .. import serde
from ..dbc import ContractError
from ..errors import (
    BudgetExceededError,
    DeadlineExceededError,
    FencedWriteError,
    FilesystemError,
    PromptEvaluationError,
    RollbackError,
    VisibilityExpansionRequired,
)
from ..limits import BudgetTracker, Deadline, Heartbeat
from ..prompt import tool_context
from ..prompt.artifacts import spill
from ..prompt.events import NO_CHANGES, Changes, Outcome, RunContext, ToolInvoked
from ..prompt.policies import ALLOW, PlacedPolicy, PolicyDecision, PolicyState
from ..prompt.prompt import Prompt, ToolBinding
from ..prompt.tool import Tool
from ..prompt.tool_context import ToolContext
from ..prompt.tool_result import ToolResult, text_or_awaitable
from ..session import Compensated, Session, TransactionRolledBack
from ..session.session import Core
from ..transaction import Scope, run_all, slow_to_join
from ..transaction.scope import current
from . import workers
from .call import UNPARSED, ToolCall, ToolOutcome

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Driver:
    """How the pipeline waits: by blocking this thread."""

    def call(self, tool: Tool[Any, Any], params: object, context: ToolContext, scope: Scope) -> Any:
        handler: Any = tool.handler
        assert tool.timeout is not None, "without a timeout a handler runs where the pipeline runs"
        if tool.is_async:
            return workers.wait_for(_within(tool.timeout, handler(params, context=context), scope))
        job = workers.submit(partial(handler, params, context=context))
        if not job.wait(tool.timeout):
            scope.fence()
            raise HandlerTimeout
        return job.value()

    def settle(self, awaitable: Awaitable[T]) -> Any:
        return workers.wait_for(awaitable)


class AsyncDriver(Driver):
    """How the pipeline waits: by awaiting. Sync handlers go to a kept thread, so that the loop never blocks."""

    def call(self, tool: Tool[Any, Any], params: object, context: ToolContext, scope: Scope) -> Any:
        handler: Any = tool.handler
        if tool.is_async:
            coroutine = handler(params, context=context)
            return coroutine if tool.timeout is None else _within(tool.timeout, coroutine, scope)
        return self._threaded(partial(handler, params, context=context), tool.timeout, scope)

    def settle(self, awaitable: Awaitable[T]) -> Any:
        return awaitable

    async def _threaded(self, fn: Callable[[], Any], timeout: float | None, scope: Scope) -> Any:
        job = workers.submit(fn)
        try:
            done = await job.wait_async(timeout)
        except BaseException:
            scope.fence()  # the thread goes on, but nothing it writes counts
            raise
        if not done:
            scope.fence()
            raise HandlerTimeout
        answer = job.value()
        return await answer if _awaits(answer) else answer


SYNC, ASYNC = Driver(), AsyncDriver()


class HandlerTimeout(Exception):
    """The handler took longer than its tool allows."""


async def _within(timeout: float, awaitable: Awaitable[Any], scope: Scope) -> Any:
    """Await at most so long. A handler that ignores its cancellation is left behind, fenced, not waited for."""
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait((task,), timeout=timeout)
    except BaseException:
        scope.fence()
        task.cancel()
        task.add_done_callback(_hush)
        raise
    if not task.done():
        scope.fence()
        task.cancel()
        task.add_done_callback(_hush)
        raise HandlerTimeout
    return task.result()


def _hush(task: asyncio.Future[Any]) -> None:
    """Look at the outcome of a handler nobody waits for, so that the loop does not report it as lost."""
    if not task.cancelled():
        task.exception()


class Run:
    """What all calls of one evaluation share."""

    adapter: Any = None
    rendered_prompt: Any = None
    deadline: Deadline | None = None
    budget_tracker: BudgetTracker | None = None
    heartbeat: Heartbeat | None = None
    run_context: RunContext | None = None
    filesystem: Any = None
    outer: Scope | None = None
    """The call that these are part of, when they come from its context."""

    def __init__(self, prompt: Any, session: Session, resources: Any = None, **surroundings: Any) -> None:
        if prompt is not None and not hasattr(prompt, "find_tool"):
            raise TypeError(f"prompt must be a Prompt, got {type(prompt).__name__}. Wrap a template: Prompt(template).")
        if not isinstance(session, Session):
            raise TypeError(f"session must be a Session, got {type(session).__name__}.")
        self.prompt = prompt
        self.session = session
        self.resources = tool_context.opened(resources if resources is not None else getattr(prompt, "resources", None))
        self.surrounded = bool(surroundings)
        self.has_tracker = "budget_tracker" in surroundings or BudgetTracker in self.resources
        for name, value in surroundings.items():
            if name not in _SURROUNDINGS:
                known = sorted({*_SURROUNDINGS, "resources"} - {"outer"})
                raise TypeError(f"execute_tool has no parameter '{name}'; there are: {', '.join(known)}")
            setattr(self, name, value)
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            raise TypeError(
                f"deadline must be a Deadline, got {type(self.deadline).__name__}: Deadline.after(seconds)."
            )
        if prompt is not None:
            prompt.install(session)

    @classmethod
    def of_context(cls, context: ToolContext, prompt: Any = None) -> Run:
        """The surroundings a context describes; what runs in them is part of the context's call."""
        return cls(
            prompt if prompt is not None else context.prompt,
            context.session,
            resources=context.shared_resources,
            adapter=context.adapter,
            rendered_prompt=context.rendered_prompt,
            deadline=context.deadline,
            budget_tracker=context.given_budget_tracker,
            heartbeat=context.heartbeat,
            run_context=context.run_context,
            filesystem=context.given_filesystem,
            outer=context.scope,
        )


_SURROUNDINGS = frozenset(Run.__annotations__)


class _Attempt:
    """One call on its way through the pipeline."""

    tool: Tool[Any, Any] | None = None
    params: Any = UNPARSED
    result: ToolResult[Any] | None = None
    text = ""
    outcome: Outcome = "failed"
    retryable = False
    changes = NO_CHANGES
    denied_by = ""
    approval_id = ""
    event: ToolInvoked | None = None
    stored = False
    """Whether a durable session has the event in its file."""
    recorded = False
    """Whether the event was put into the log, or is about to be."""
    secretive = False
    """Whether the tool's parameters or result are declared to hold secrets."""
    seats = 0
    """How many policies allowed the call and may hold something reserved for it until its handler starts."""

    def __init__(self, call: ToolCall, run: Run) -> None:
        core = run.session._core
        self.call = call
        self.name = call.name if isinstance(call.name, str) else _shortened(repr(cast("object", call.name)))
        self.run = run
        self.core: Core = core
        self.call_id = call.call_id or f"call-{next(core.calls)}"
        self.began_at = core.clock.now()
        self.started = core.clock.monotonic()

    def fail(self, outcome: Outcome, message: str, *, retryable: bool = True) -> None:
        if self.secretive and self.params is not UNPARSED and self.params is not None:
            message = serde.hide_secrets(message, self.params)
        message = _sound(message)
        self.outcome = outcome
        self.result = ToolResult.error(message)
        self.text = message
        self.retryable = retryable
        self.changes = NO_CHANGES

    def deny(self, policy: PlacedPolicy, decision: PolicyDecision) -> None:
        self.fail("pending" if decision.approval_id else "denied", decision.reason or policy.unexplained)
        self.denied_by = policy.name
        self.approval_id = decision.approval_id

    def describe(self) -> ToolInvoked:
        """The one event of this call, as things stand now."""
        params = self.params
        if params is UNPARSED:
            params = self.call.arguments
            if isinstance(params, Mapping):
                params = dict(params)  # what the caller does with its own later is not what was called
            if self._may_hold_secrets():
                params = serde.REDACTED
        elif self.secretive and params is not None:
            params = serde.redact(params)
        result = self.result
        if result is not None and result.value is not None and (self.secretive or _secretive(result.value.__class__)):
            result = replace(result, value=serde.redact(result.value))
        self.event = ToolInvoked(
            self.name,
            params,
            result,
            self.outcome == "ok",
            self.began_at,
            self.core.clock.monotonic() - self.started,
            self.outcome,
            self.retryable,
            self.call_id,
            self.text,
            self.changes,
            self.core.session_id,
            self.run.run_context,
            self.denied_by,
        )
        return self.event

    def _may_hold_secrets(self) -> bool:
        """Whether arguments that could not be parsed may hold a secret: by their tool, or by any if it is unknown."""
        if self.tool is not None:
            return serde.has_secrets(self.tool.params_type)
        prompt: Any = self.run.prompt
        if prompt is None:
            return False
        names: Sequence[str] = prompt.tool_names(self.run.session)
        return any(serde.has_secrets(prompt.find_tool(name, self.run.session).tool.params_type) for name in names)

    def conclude(self) -> ToolOutcome:
        event = self.event
        assert event is not None
        assert self.result is not None
        params = None if self.params is UNPARSED else self.params
        return ToolOutcome(
            self.call,
            self.tool,
            params,
            self.result,
            self.text,
            self.outcome,
            event.duration,
            self.changes,
            self.call_id,
            self.approval_id,
        )


async def pipeline(call: ToolCall, run: Run, driver: Driver) -> ToolOutcome:
    """Run one call from lookup to record. The order is the contract; see S1."""
    attempt = _Attempt(call, run)
    core = attempt.core
    try:
        binding = _find(call, run)
        if binding is None:
            attempt.fail("unknown_tool", _unknown(attempt.name, run))
        else:
            attempt.tool = binding.tool
            attempt.secretive = binding.secretive
            if _parse(attempt, binding.tool):
                await _govern(attempt, binding, driver)
    except BaseException as error:
        _interrupt(attempt, error)
        raise
    finally:
        # A call that ended inside its transaction was recorded there, in its turn; the others are recorded here.
        if attempt.event is None:
            core.keep(attempt.describe())
        core.deliver(attempt.event)
    return attempt.conclude()


async def _govern(attempt: _Attempt, binding: ToolBinding, driver: Driver) -> None:
    """From context to record: what needs the session's turn."""
    run, tool, core = attempt.run, binding.tool, attempt.core
    outer = current.get() or run.outer or run.session.binding
    scope = Scope(outer)
    if outer is not None and outer.ended:
        raise FencedWriteError(f"Cannot call '{tool.name}': the tool call around it has ended.")
    readonly = tool.effects == "none"
    if outer is not None and outer.readonly and not readonly:
        around = 'the tool call around it is declared effects="none" and may not write'
        attempt.fail("failed", f"Cannot call '{tool.name}' here: {around}.", retryable=False)
        return
    # A read-only handler gets a scope of its own that refuses writes; policies still write to the call's.
    inner = Scope(scope, readonly=True) if readonly else scope
    held = run.resources.tool_scope()
    context = ToolContext.for_call(run, tool.name, attempt.call_id, held, inner)
    before = current.get()
    try:
        asked: list[object] = []
        if binding.asks:
            held.watch(asked.append)
            if await _ask(attempt, binding, context, driver):
                return
        if driver is SYNC:
            scope.enter(core.lock, shared=readonly)
        else:
            await scope.enter_async(core.lock, shared=readonly)
        if core.poison is not None or core.frozen:
            core.check_open()
        current.set(scope)
        if not readonly:
            held.watch(scope.join)  # what is built for this call, by a policy too, is undone with it
            if asked and not _begin(attempt, scope, asked):
                return
        if await _check(attempt, binding, context, driver):
            return
        if not readonly:
            slow = () if driver is SYNC else slow_to_join(held.shared)
            if slow and not await workers.run_aside(partial(_begin, attempt, scope, slow)):
                return
            if not _begin(attempt, scope, held.shared):
                return
        result = await _handle(attempt, tool, context, inner, driver)
        if result is not None and result.success:
            await _approve_result(attempt, tool, result, context, driver)
        if attempt.outcome == "ok":
            if scope.watches and driver is SYNC:
                scope.note_changes()
            elif scope.watches:
                await workers.run_aside(scope.note_changes)
            _commit(attempt, scope)
    except BaseException as error:
        _interrupt(attempt, error)
        raise
    finally:
        # Each step runs whatever became of those before it, and once more if it was interrupted: a session must never
        # stay locked or half restored, a call never unrecorded.
        try:
            _take_back(attempt, binding, scope, context, before)
        except BaseException:
            _take_back(attempt, binding, scope, context, before)
            raise
        finally:
            try:
                try:
                    closing = _close(attempt, held, driver)
                except BaseException:
                    _close(attempt, held, SYNC)
                    raise
                if closing is not None:
                    await closing
            finally:
                try:
                    _record(attempt, scope)
                except BaseException:
                    _record(attempt, scope)
                    raise


async def _ask(attempt: _Attempt, binding: ToolBinding, context: ToolContext, driver: Driver) -> bool:
    """Ask for approvals before the call takes its turn; the policies before each are consulted first. True: denied."""
    tool, params = binding.tool, attempt.params
    for policy in binding.policies:
        try:
            if policy.ask is None:
                decision = _judge(policy, tool, params, context)
                if not isinstance(decision, PolicyDecision):
                    decision = await _judge_later(policy, decision, driver)
                if decision.allowed:
                    _release((policy,), tool, params, context)
            else:
                context.policy_place = policy.place
                answer: Any = policy.ask(tool, params, context=context)
                if _awaits(answer):
                    answer = await _settled(driver, answer)
                decision = policy.policy.heard(answer, tool, params, context=context) or ALLOW
        except Exception as error:  # INVARIANT: a policy that raises denies
            _logger.exception("Policy %s failed", policy.name)
            decision = policy.raised(error)
        if not decision.allowed:
            attempt.deny(policy, decision)
            return True
    return False


async def _check(attempt: _Attempt, binding: ToolBinding, context: ToolContext, driver: Driver) -> bool:
    """All policies in order, then the limits of the run. True: the call ends here. Raises when a limit is gone."""
    tool, params = binding.tool, attempt.params
    for policy in binding.policies:
        decision = _judge(policy, tool, params, context)
        if decision is not ALLOW:
            if not isinstance(decision, PolicyDecision):
                decision = await _judge_later(policy, decision, driver)
            if not decision.allowed:
                attempt.deny(policy, decision)
                return True
        attempt.seats += 1
    run = attempt.run
    if run.deadline is not None:
        run.deadline.check()
    if run.has_tracker:
        tracker = context.budget_tracker
        if tracker is not None:
            tracker.check()
    return False


def _judge(policy: PlacedPolicy, tool: Tool[Any, Any], params: object, context: ToolContext) -> Any:
    """Ask one policy: its decision, or an awaitable of its answer."""
    try:
        context.policy_place = policy.place
        answer = policy.checks(tool.name if policy.wants_name else tool, params, context=context)
        if answer is None or answer is ALLOW:
            return ALLOW
        return answer if _awaits(answer) else policy.decision(answer)
    except Exception as error:  # INVARIANT: a policy that raises denies
        _logger.exception("Policy %s failed", policy.name)
        return policy.raised(error)


async def _judge_later(policy: PlacedPolicy, answer: Awaitable[Any], driver: Driver) -> PolicyDecision:
    try:
        return policy.decision(await _settled(driver, answer))
    except Exception as error:  # INVARIANT: a policy that raises denies
        _logger.exception("Policy %s failed", policy.name)
        return policy.raised(error)


def _release(passed: Sequence[PlacedPolicy], tool: Tool[Any, Any], params: object, context: ToolContext) -> None:
    """The handler will not start: give back what policies reserved for it."""
    for policy in passed:
        if policy.release is not None:
            context.policy_place = policy.place
            try:
                policy.release(tool, params, context=context)
            except Exception:  # INVARIANT: a failing policy cannot undo a denial
                _logger.exception("Policy %s could not release its reservation", policy.name)


def _begin(attempt: _Attempt, scope: Scope, resources: Sequence[object]) -> bool:
    """Take what is built into the transaction. False: a resource could not be snapshotted, so nothing may run."""
    try:
        scope.join_all(resources)
    except Exception as error:  # INVARIANT: what could not be undone is not begun
        _logger.exception("Tool %s was not run: a resource could not be taken into the transaction", attempt.name)
        attempt.fail("failed", f"Internal error: {_said(error)}", retryable=False)
        return False
    return True


async def _handle(
    attempt: _Attempt, tool: Tool[Any, Any], context: ToolContext, inner: Scope, driver: Driver
) -> ToolResult[Any] | None:
    """Run the handler. Its result comes back if it is one; whatever else happened is in the attempt."""
    nested = current.set(inner) if inner.readonly else None
    attempt.seats = 0  # the handler starts: what was reserved for it is used
    try:
        if driver is SYNC and tool.timeout is None:
            handler: Any = tool.handler
            answer: Any = handler(attempt.params, context=context)
        else:
            answer = driver.call(tool, attempt.params, context, inner)
        if type(answer) is not ToolResult and _awaits(answer):
            answer = await _settled(driver, answer)
    except (PromptEvaluationError, VisibilityExpansionRequired, RollbackError):
        raise
    except HandlerTimeout:
        attempt.fail("timeout", _timed_out(tool), retryable=tool.effects != "external")
        return None
    except Exception as error:  # noqa: BLE001  INVARIANT: what a handler raises is a failed result, never the end of the run
        message, retryable = _explain(tool, error)
        attempt.fail("failed", message, retryable=retryable)
        return None
    finally:
        if nested is not None:
            current.reset(nested)
            inner.fence()
    if not isinstance(answer, ToolResult):
        kind = type(answer).__name__
        attempt.fail(
            "failed", f"Internal error: tool '{tool.name}' must return a ToolResult, got {kind}", retryable=False
        )
        return None
    result: ToolResult[Any] = answer  # pyright: ignore[reportUnknownVariableType]
    message: object = result.message
    if not isinstance(message, str):
        kind = type(message).__name__
        attempt.fail(
            "failed", f"Internal error: the message of tool '{tool.name}' must be text, got {kind}", retryable=False
        )
        return None
    attempt.result = result
    if not result.success:
        if attempt.secretive and attempt.params is not None:
            attempt.result = result = replace(result, message=serde.hide_secrets(message, attempt.params))
        attempt.text = _sound(result.message)
        attempt.retryable = True
    return result


async def _approve_result(
    attempt: _Attempt, tool: Tool[Any, Any], result: ToolResult[Any], context: ToolContext, driver: Driver
) -> None:
    """Check the value, render it, offer it to reducers and tell the policies, all inside the transaction."""
    problem = tool.result_check(result.value)
    if problem is not None:
        attempt.fail("failed", f"Internal error: {problem}", retryable=False)
        return
    doing = "render()"
    try:
        text = text_or_awaitable(result)
        if not isinstance(text, str):
            text = await _settled(driver, text)
        text = _sound(text)
        if tool.output_limit is not None and len(text) > tool.output_limit:
            text = spill(context.session, attempt.call_id, text, tool.output_limit)
        core = attempt.core
        doing = "a reducer"
        if result.value is not None and type(result.value) in core.reducers:
            core.reduce(result.value, context.session.scope)
        prompt = attempt.run.prompt
        for policy in prompt.listeners if prompt is not None else ():
            doing = policy.name
            context.policy_place = policy.place
            told = policy.listens(tool.name if policy.wants_name else tool, attempt.params, result, context=context)
            if told is not None and _awaits(told):
                await _settled(driver, told)
    except (PromptEvaluationError, VisibilityExpansionRequired, RollbackError):
        raise
    except Exception as error:  # INVARIANT: what cannot be rendered or recorded did not happen
        _logger.exception("Tool %s succeeded but %s failed", tool.name, doing)
        attempt.fail(
            "failed",
            f"Internal error: tool '{tool.name}' succeeded but {doing} failed: {_said(error)}",
            retryable=False,
        )
        return
    attempt.text = text
    attempt.outcome = "ok"


def _commit(attempt: _Attempt, scope: Scope) -> None:
    """Keep what the call did, together with its event."""
    core, tool = attempt.core, attempt.tool
    assert tool is not None
    if scope.touched:
        attempt.changes = _changes(scope)
    if scope.nested:
        scope.succeeded(attempt.call_id, None if tool.compensate is None else partial(_compensate, attempt))
        scope.mortal = scope.joined.difference(map(id, attempt.run.resources.built))
    event = attempt.describe()
    storage = core.storage
    try:
        if storage is not None:
            storage.stage(event)
        scope.commit()
    except BaseException as error:
        if scope.committed:  # only an interrupt comes so late
            if storage is not None:
                storage.flush()
            attempt.stored = True
            raise
        attempt.event = None  # it said ok, and was never shown to anybody
        if storage is not None:
            storage.unstage()
        if isinstance(error, RollbackError):
            _poison(attempt, scope, error)
        if isinstance(error, RollbackError) or not isinstance(error, Exception):
            raise
        # INVARIANT: a commit that fails is a failed call; the scope has rolled back already
        _logger.exception("The changes of tool %s could not be kept", tool.name)
        attempt.fail("failed", f"Internal error: {_said(error)}", retryable=False)
        return
    if storage is not None:
        storage.flush()
    attempt.stored = True


def _changes(scope: Scope) -> Changes:
    """What the call touched; what policies noted about it is not a change of the user's."""
    slices = dict.fromkeys(name for kind, key in scope.touched if kind == "slices" for name in key.split("+"))
    slices.pop(PolicyState.__qualname__, None)
    files = tuple(key for kind, key in scope.touched if kind == "files")
    return Changes(tuple(slices), files) if slices or files else NO_CHANGES


def _take_back(
    attempt: _Attempt, binding: ToolBinding, scope: Scope, context: ToolContext, before: Scope | None
) -> None:
    """Leave the scope; give back what was reserved for a handler that never started; roll back unless committed."""
    current.set(before)
    if attempt.seats:
        _release(binding.policies[: attempt.seats], binding.tool, attempt.params, context)
        attempt.seats = 0
    if not scope.committed:
        _roll_back(attempt, scope)


def _record(attempt: _Attempt, scope: Scope) -> None:
    """Put the event into the log, let the next call in, then tell subscribers of what was kept."""
    core = attempt.core
    event = attempt.event
    if event is None:
        event = attempt.describe()
    try:
        if not attempt.stored:
            core.store(event)
            attempt.stored = True
        if not (attempt.recorded and core.log(ToolInvoked).ends_with(event)):
            attempt.recorded = True
            core.log(ToolInvoked).append(event)
    finally:
        scope.leave()
        if not scope.nested:
            after = scope.delivered()
            if after:
                run_all(after, "A subscriber failed")


def _roll_back(attempt: _Attempt, scope: Scope) -> None:
    """Take the call back, and with it the calls that succeeded inside it."""
    core, call_ids, compensations = attempt.core, scope.call_ids, scope.compensations
    try:
        scope.rollback()
    except RollbackError as error:
        _poison(attempt, scope, error)
        raise
    finally:
        if call_ids:
            core.record(TransactionRolledBack(tuple(call_ids), "", attempt.outcome, core.clock.now(), core.session_id))
        if compensations:
            run_all(reversed(compensations), "Undoing an external effect failed")


def _poison(attempt: _Attempt, scope: Scope, error: RollbackError) -> None:
    """Something could not be restored: nothing around this call may be kept, and the session takes no more writes."""
    attempt.core.poison = error
    scope.doom_family("A call inside could not be rolled back.")
    attempt.fail("failed", f"Internal error: {_said(error)}", retryable=False)


def _close(attempt: _Attempt, held: Any, driver: Driver) -> Awaitable[None] | None:
    """Close the resources of the call; what closes asynchronously does so on the caller's loop, if there is one."""
    if driver is not SYNC and held.built_any:
        return _close_later(attempt, held)
    try:
        held.close()
    except Exception:  # INVARIANT: a failing close is logged and never changes the outcome
        _logger.exception("Closing the resources of tool %s failed", attempt.name)


async def _close_later(attempt: _Attempt, held: Any) -> None:
    try:
        await held.aclose()
    except Exception:  # INVARIANT: a failing close is logged and never changes the outcome
        _logger.exception("Closing the resources of tool %s failed", attempt.name)


def _compensate(attempt: _Attempt) -> None:
    """Undo an external effect because the transaction around it was rolled back."""
    tool, core, run = attempt.tool, attempt.core, attempt.run
    assert tool is not None
    key = ToolContext(session=run.session, call_id=attempt.call_id).idempotency_key
    try:
        with run.resources.tool_scope() as held:
            context = ToolContext.for_call(run, tool.name, attempt.call_id, held, None)
            told: Any = cast("Any", tool.compensate)(attempt.params, attempt.result, context=context)
            if _awaits(told):
                workers.wait_for(told)
        success, message = True, ""
    except Exception as error:  # INVARIANT: every compensation is tried, and its failure is recorded
        _logger.exception("Compensating %s failed", tool.name)
        success, message = False, _said(error)
    core.record(Compensated(tool.name, attempt.call_id, key, success, message, core.clock.now(), core.session_id))


def _awaits(value: object) -> bool:
    # WHY NOT inspect.isawaitable: three isinstance checks, one of an ABC, on the path of every call.
    return hasattr(type(value), "__await__")


async def _settled(driver: Driver, awaitable: Awaitable[Any]) -> Any:
    settled = driver.settle(awaitable)
    return await settled if settled is awaitable else settled


# -- what went wrong, in words ---------------------------------------------------------------------------------------


def _said(error: BaseException) -> str:
    """What the error says; its type when it says nothing or cannot even say that."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  INVARIANT: an error that cannot be told is still only a failed call
        return type(error).__name__


_secret_types: dict[type, bool] = {}


def _secretive(cls: type) -> bool:
    known = _secret_types.get(cls)
    if known is None:
        known = _secret_types[cls] = serde.has_secrets(cls)
    return known


def _sound(text: str) -> str:
    """Text that every provider's client can encode: half a surrogate pair would end the run there."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-8", "replace").decode()
    return text


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _find(call: ToolCall, run: Run) -> ToolBinding | None:
    prompt = run.prompt
    if not isinstance(call.name, str):
        return None
    if call.parsed is not UNPARSED:
        tool = cast("Tool[Any, Any]", call.arguments)
        return ToolBinding(tool, (), ()) if prompt is None else prompt.governing(tool)
    return None if prompt is None else prompt.find_tool(call.name, run.session)


def _parse(attempt: _Attempt, tool: Tool[Any, Any]) -> bool:
    call = attempt.call
    if call.parsed is not UNPARSED:
        attempt.params = call.parsed
    else:
        try:
            attempt.params = tool.parse(call.arguments)
        except serde.ParseError as error:
            text = {"error": f"Invalid parameters for tool '{tool.name}'", "details": error.details}
            attempt.fail("invalid_params", json.dumps(text, ensure_ascii=False))
            return False
    if tool.handler is None:
        attempt.fail("failed", f"Tool '{tool.name}' has no handler here and cannot be run.", retryable=False)
        return False
    return True


def _unknown(name: str, run: Run) -> str:
    name = _shortened(name)
    names: Sequence[str] = () if run.prompt is None else run.prompt.tool_names(run.session)
    if not names:
        return f"Unknown tool '{name}'\nThere are no tools to call here."
    near = difflib.get_close_matches(name, names, n=len(names), cutoff=0.4)
    ordered = [*near, *(other for other in names if other not in near)]
    return f"Unknown tool '{name}'\nAvailable tools: {', '.join(ordered)}"


def _timed_out(tool: Tool[Any, Any]) -> str:
    spent = f"Tool '{tool.name}' timed out after {tool.timeout:g} seconds."
    if tool.effects == "external":
        return f"{spent} What it did outside may have happened; check before you call it again."
    return f"{spent} Nothing it did was kept; retry with less work."


def _explain(tool: Tool[Any, Any], error: Exception) -> tuple[str, bool]:
    """What the model reads of an exception, and whether trying again can help."""
    detail = _said(error)
    if isinstance(error, FilesystemError | ValueError | ContractError):
        _logger.info("Tool %s refused: %s", tool.name, detail)
        return detail, True
    _logger.error("Tool %s raised %s", tool.name, type(error).__name__, exc_info=error)
    if isinstance(error, TypeError):
        return f"Tool '{tool.name}' raised TypeError: {detail}", False
    return f"Internal error: {detail}", False


def _interrupt(attempt: _Attempt, error: BaseException) -> None:
    """Name the outcome of a call that something beyond it brought to an end."""
    if attempt.event is not None:
        return
    detail = _said(error)
    if isinstance(error, DeadlineExceededError):
        attempt.fail("deadline", detail, retryable=False)
    elif isinstance(error, BudgetExceededError):
        attempt.fail("budget", detail, retryable=False)
    elif isinstance(error, PromptEvaluationError | VisibilityExpansionRequired):
        attempt.fail("interrupted", detail, retryable=False)
    elif isinstance(error, Exception):
        attempt.fail("failed", f"Internal error: {detail}", retryable=False)
    else:
        attempt.fail("cancelled", f"The call was cancelled: {detail}", retryable=False)


# -- the ways in -----------------------------------------------------------------------------------------------------


def _run_of(
    call: ToolCall | None,
    prompt: Any,
    session: Session | None,
    context: ToolContext | None,
    surroundings: dict[str, Any],
) -> Run:
    if not isinstance(call, ToolCall | None):
        raise TypeError(f"A call must be a ToolCall(name, arguments), got {type(call).__name__}.")
    if prompt is None and call is not None:
        prompt = call.prompt
    if context is not None:
        if session is not None or surroundings:
            raise TypeError("Pass either context or session and its surroundings, not both.")
        return Run.of_context(context, prompt)
    if session is None:
        raise TypeError("execute_tool needs session= (with prompt=), or context=.")
    if surroundings or session.binding is not None:
        return Run(prompt, session, **surroundings)
    # A session that is used with one prompt, as most are, needs one run for all its calls.
    core = session._core
    run: Run | None = core.run
    if run is None or run.prompt is not prompt:
        run = core.run = Run(prompt, session)
    return run


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a pipeline that blocks instead of suspending."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise AssertionError("the sync pipeline suspended")


def execute_tool(
    call: ToolCall,
    *,
    prompt: Prompt[Any] | None = None,
    session: Session | None = None,
    context: ToolContext | None = None,
    **surroundings: Any,
) -> ToolOutcome:
    """Run one tool call as a governed transaction and say how it ended. Never raises for what a model sent.

    Outside of `with prompt.resources:` the prompt's resources open now and stay open until `prompt.resources.close()`.
    `surroundings`: deadline, budget_tracker, heartbeat, run_context, adapter, rendered_prompt, resources, filesystem.
    """
    return drive(pipeline(call, _run_of(call, prompt, session, context, surroundings), SYNC))


async def aexecute_tool(
    call: ToolCall,
    *,
    prompt: Prompt[Any] | None = None,
    session: Session | None = None,
    context: ToolContext | None = None,
    **surroundings: Any,
) -> ToolOutcome:
    """The same on an event loop, which a sync handler never blocks."""
    return await pipeline(call, _run_of(call, prompt, session, context, surroundings), ASYNC)


_AT_ONCE = 32
"""How many read-only calls of one turn run at the same time, however many a model sends."""


class _Batch:
    """Neighbouring read-only calls: several lanes take the next one each, until all are done or one ends the run."""

    def __init__(self, calls: Sequence[ToolCall], run: Run) -> None:
        self.calls = calls
        self.run = run
        self.outcomes: dict[int, ToolOutcome] = {}
        self.error: BaseException | None = None
        self.waiting: Iterator[tuple[int, ToolCall]] = iter(enumerate(calls))
        self.left: list[ToolCall] = []

    async def lane(self, driver: Driver) -> None:
        for index, call in self.waiting:
            if self.error is not None:
                self.left.append(call)
                continue
            try:
                self.outcomes[index] = await pipeline(call, self.run, driver)
            except BaseException as error:  # noqa: BLE001  INVARIANT: the other lanes end in order, then it is raised
                self.error = self.error or error

    def results(self) -> list[ToolOutcome]:
        record_unstarted(self.left, self.run)
        if self.error is not None:
            raise self.error
        return [self.outcomes[index] for index in range(len(self.calls))]


def execute_tools(
    calls: Sequence[ToolCall],
    *,
    prompt: Prompt[Any] | None = None,
    session: Session | None = None,
    context: ToolContext | None = None,
    **surroundings: Any,
) -> list[ToolOutcome]:
    """Run the calls of one model turn: neighbours that only read at the same time, a call that can write alone."""
    run = _run_of(calls[0] if calls else None, prompt, session, context, surroundings)
    outcomes: list[ToolOutcome] = []
    started = 0
    try:
        for group in groups(calls, run):
            started += len(group)
            if len(group) == 1:
                outcomes.append(drive(pipeline(group[0], run, SYNC)))
                continue
            batch = _Batch(group, run)
            jobs = [workers.submit(partial(_run_lane, batch)) for _ in range(min(_AT_ONCE, len(group)))]
            for job in jobs:
                job.wait(None)
            outcomes.extend(batch.results())
    except BaseException:
        record_unstarted(calls[started:], run)
        raise
    return outcomes


async def aexecute_tools(
    calls: Sequence[ToolCall],
    *,
    prompt: Prompt[Any] | None = None,
    session: Session | None = None,
    context: ToolContext | None = None,
    **surroundings: Any,
) -> list[ToolOutcome]:
    """The same on an event loop."""
    run = _run_of(calls[0] if calls else None, prompt, session, context, surroundings)
    outcomes: list[ToolOutcome] = []
    started = 0
    try:
        for group in groups(calls, run):
            started += len(group)
            if len(group) == 1:
                outcomes.append(await pipeline(group[0], run, ASYNC))
                continue
            batch = _Batch(group, run)
            lanes = [asyncio.ensure_future(batch.lane(ASYNC)) for _ in range(min(_AT_ONCE, len(group)))]
            try:
                await asyncio.wait(lanes)
            except BaseException as error:  # noqa: BLE001  raised by results(), when every lane has ended
                batch.error = batch.error or error
                for lane in lanes:
                    lane.cancel()
                await asyncio.gather(*lanes, return_exceptions=True)
            outcomes.extend(batch.results())
    except BaseException:
        record_unstarted(calls[started:], run)
        raise
    return outcomes


def _run_lane(batch: _Batch) -> None:
    drive(batch.lane(SYNC))


def groups(calls: Sequence[ToolCall], run: Run) -> Sequence[list[ToolCall]]:
    """Neighbouring calls of read-only tools form one group; every other call is a group of its own."""
    found: list[list[ToolCall]] = []
    open_group = False
    for call in calls:
        binding = _find(call, run)
        reads = binding is not None and binding.tool.effects == "none"
        if reads and open_group:
            found[-1].append(call)
        else:
            found.append([call])
        open_group = reads
    return found


def record_unstarted(
    calls: Sequence[ToolCall], run: Run, why: str = "an earlier call of the same turn ended the run"
) -> None:
    """Record calls that never began because the run ended before them."""
    for call in calls:
        attempt = _Attempt(call, run)
        attempt.fail("cancelled", f"The call was not started: {why}.", retryable=False)
        attempt.core.record(attempt.describe())


def _run_nested(tool: Any, params: object, context: ToolContext) -> ToolResult[Any]:
    """`tool(params, context=…)`: the whole pipeline, as part of the context's call."""
    call = ToolCall(tool.name, tool, None, None, params)
    return drive(pipeline(call, Run.of_context(context), SYNC)).result


tool_context.install_runner(_run_nested)
