"""What a handler gets beside its parameters: session, resources, limits, and the identity of its call."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from ..errors import TransactionError
from ..filesystem import Filesystem
from ..limits import BudgetTracker, Deadline, Heartbeat
from ..resources import ResourceContext, ResourceRegistry
from ..session import Session
from ..transaction import Scope
from .events import RunContext, ToolProgress
from .tool_result import ToolResult

T = TypeVar("T")


class Resources(Protocol):
    """Typed access to what was bound to the prompt."""

    def get(self, protocol: type[T], /) -> T: ...

    def get_optional(self, protocol: type[T], /) -> T | None: ...


Runner = Callable[[Any, object, "ToolContext"], "ToolResult[Any] | Awaitable[ToolResult[Any]]"]
_runner: list[Runner] = []
"""Filled by the runtime, which stands above: how `tool(params, context=…)` runs the whole pipeline."""


class ToolContext:
    """The surroundings of one tool call. Made per call by the pipeline, or by hand in a test."""

    session: Session
    """The session; what is written through it belongs to this call."""
    prompt: Any = None
    """The prompt being evaluated, or None."""
    rendered_prompt: Any = None
    """What the model was shown, or None."""
    adapter: Any = None
    """The adapter that runs the evaluation, or None."""
    deadline: Deadline | None = None
    heartbeat: Heartbeat | None = None
    run_context: RunContext | None = None
    call_id: str = ""
    """The provider's id of this call, or one we made; unique in its session."""
    shared_resources: Any
    """The resources that outlive this call; nested calls begin their own scope from them."""
    policy_place: str = ""
    """Where the policy that is being asked stands in the prompt; its key in the session."""
    approved_at: frozenset[str] = frozenset()
    """Places of the policies whose approval was given for this very call."""
    _filesystem: Filesystem | None = None
    _budget_tracker: BudgetTracker | None = None
    _scope: Scope | None = None
    _tool_name = ""
    _idempotency_key = ""

    def __init__(
        self,
        *,
        session: Session | None = None,
        resources: object = None,
        prompt: Any = None,
        rendered_prompt: Any = None,
        adapter: Any = None,
        deadline: Deadline | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
        filesystem: Filesystem | None = None,
        budget_tracker: BudgetTracker | None = None,
        call_id: str = "",
    ) -> None:
        self.session = Session() if session is None else session
        self.prompt = prompt
        self.rendered_prompt = rendered_prompt
        self.adapter = adapter
        self.deadline = deadline
        self.heartbeat = heartbeat
        self.run_context = run_context
        self.call_id = call_id
        self._filesystem = filesystem
        self._budget_tracker = budget_tracker
        self.shared_resources = opened(resources if resources is not None else getattr(prompt, "resources", None))
        self._resources = self.shared_resources

    @classmethod
    def for_call(cls, run: Any, tool_name: str, call_id: str, resources: Any, scope: Scope | None) -> ToolContext:
        """The context of one call in the pipeline. WHY NOT the constructor: this is on the path of every call."""
        context = object.__new__(cls)
        context.session = run.session.bound(scope)
        context.prompt = run.prompt
        context.call_id = call_id
        context.shared_resources = run.resources
        context._resources = resources
        context._scope = scope
        context._tool_name = tool_name
        if run.surrounded:
            context.rendered_prompt = run.rendered_prompt
            context.adapter = run.adapter
            context.deadline = run.deadline
            context.heartbeat = run.heartbeat
            context.run_context = run.run_context
            context._filesystem = run.filesystem
            context._budget_tracker = run.budget_tracker
        return context

    def __repr__(self) -> str:
        return f"ToolContext({self._tool_name or 'made by hand'}, call_id={self.call_id!r}, session={self.session!r})"

    @property
    def scope(self) -> Scope | None:
        """The transaction of this call; None in a context made by hand."""
        return self._scope

    @property
    def given_filesystem(self) -> Filesystem | None:
        """The filesystem passed to the context itself, not bound as a resource."""
        return self._filesystem

    @property
    def given_budget_tracker(self) -> BudgetTracker | None:
        return self._budget_tracker

    @property
    def resources(self) -> Resources:
        """What was bound to the prompt; TOOL_CALL resources are new for this call."""
        return self._resources

    @property
    def filesystem(self) -> Filesystem | None:
        """The bound Filesystem, or None."""
        if self._filesystem is not None:
            return self._filesystem
        return self._resources.get_optional(Filesystem)

    @property
    def budget_tracker(self) -> BudgetTracker | None:
        """The run's token budget, or None."""
        if self._budget_tracker is not None:
            return self._budget_tracker
        return self._resources.get_optional(BudgetTracker)

    @property
    def idempotency_key(self) -> str:
        """The same whenever this recorded call is run again; pass it on to outside services."""
        if not self._idempotency_key:
            text = f"{self.session.session_id}\x1f{self.call_id}"
            self._idempotency_key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self._idempotency_key

    @property
    def cancelled(self) -> bool:
        """True once the call has ended without you: it timed out or was cancelled. Stop, nothing you write counts."""
        return self._scope is not None and self._scope.ended

    def beat(self) -> None:
        """Say that a long operation is still alive."""
        if self.heartbeat is not None:
            self.heartbeat.beat()

    def progress(self, message: str, *, fraction: float | None = None) -> None:
        """Tell subscribers how far the work has come, at once, whether or not the call is kept in the end."""
        event = ToolProgress(self._tool_name, self.call_id, message, fraction, self.session.session_id)
        self.session.announce(event)
        self.beat()

    def on_end(self, fn: Callable[[], None]) -> None:
        """Run `fn` when the call ends either way, before anything is restored: kill a process, close a pipe."""
        if self._scope is None:
            raise TransactionError("on_end works inside a tool call only; this context was made by hand.")
        self._scope.on_end(fn)

    def run(self, tool: Any, params: object) -> Any:
        """Run another tool as part of this call, through the whole pipeline."""
        if not _runner:
            raise TransactionError("Import weakincentives.runtime before calling a tool directly.")
        return _runner[0](tool, params, self)


_EMPTY: ResourceContext = ResourceRegistry.of().open()


def opened(resources: object) -> Any:
    """Accept every form resources come in: open ones, a registry, a mapping, or none."""
    if resources is None:
        return _EMPTY
    if hasattr(resources, "tool_scope"):
        return resources
    if isinstance(resources, ResourceRegistry):
        return resources.open()
    if isinstance(resources, Mapping):
        return ResourceRegistry.build(cast("Mapping[Any, Any]", resources)).open()
    return resources


def install_runner(runner: Runner) -> None:
    """Tell the context how a tool is run. Called once, by the runtime."""
    _runner[:] = [runner]
