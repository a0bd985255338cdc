"""The loop around a model: a request comes in, a prompt and a session are prepared, an answer goes out.

Decides which resources and limits hold for a request, how long they live, and how often sections may be opened.
Knows adapters only by the two methods it calls, and never runs a tool.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Protocol, cast

from typing_extensions import TypeVar

from ..errors import PromptEvaluationError, VisibilityExpansionRequired
from ..limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage
from ..prompt import Prompt, PromptResources, RunContext
from ..prompt.visibility import apply_visibility
from ..resources import ResourceRegistry
from ..session import EventBus, Session
from . import workers
from .execute import drive

RequestT = TypeVar("RequestT", default=Any)
OutputT = TypeVar("OutputT", default=Any)
AnyOutputT = TypeVar("AnyOutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)

Prepared = Prompt[OutputT] | tuple[Prompt[OutputT], Session]
"""What a request becomes; with a prompt alone, the loop makes a new session that reports to its bus."""


class Response(Protocol[OutputT_co]):
    """What an adapter answers with."""

    @property
    def text(self) -> str: ...

    @property
    def output(self) -> OutputT_co | None: ...

    @property
    def usage(self) -> TokenUsage: ...


class Evaluator(Protocol):
    """What the loop needs of an adapter."""

    def evaluate(
        self,
        prompt: Prompt[AnyOutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> Response[AnyOutputT]: ...

    async def aevaluate(
        self,
        prompt: Prompt[AnyOutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> Response[AnyOutputT]: ...


@dataclass(frozen=True, slots=True)
class MainLoopConfig:
    """What holds for every request of a loop, unless the request says otherwise."""

    resources: Mapping[Any, object] | ResourceRegistry = field(default_factory=dict[Any, object])
    """Bound over those of the prompt; those of the request are bound over them."""
    deadline: Deadline | None = None
    """A moment by which every request must have ended."""
    timeout: timedelta | float | None = None
    """How long each request may take, in seconds; the earlier of this and the deadline counts."""
    budget: Budget | None = None
    """What each request may use up."""
    heartbeat: Heartbeat | None = None
    """Beats at every turn of the model and whenever a handler says so."""
    max_visibility_expansions: int = 10
    """How often one request may open sections and start over."""

    def __post_init__(self) -> None:
        if self.max_visibility_expansions < 0:
            raise ValueError(
                f"MainLoopConfig.max_visibility_expansions must be 0 or more, got {self.max_visibility_expansions}."
            )


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A request was prepared and goes to the model."""

    run_context: RunContext
    request: Any
    timestamp: float


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A request was answered."""

    run_context: RunContext
    response: Response[Any]
    expansions: int
    """How often the model opened sections and the prompt was evaluated anew."""
    duration: float


@dataclass(frozen=True, slots=True)
class RunFailed:
    """A request ended without an answer; whoever asked got the error."""

    run_context: RunContext
    error: BaseException
    duration: float


@dataclass(frozen=True, slots=True)
class _Given:
    """What came with one request."""

    resources: Mapping[Any, object] | ResourceRegistry | None
    deadline: Deadline | None
    budget: Budget | BudgetTracker | None
    heartbeat: Heartbeat | None
    run_context: RunContext | None


class _Held:
    """`async with` around resources, for a thread that blocks."""

    def __init__(self, resources: PromptResources) -> None:
        self._resources = resources

    async def __aenter__(self) -> None:
        self._resources.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._resources.__exit__(*error)


class _Driver:
    """How the loop waits: by blocking this thread."""

    async def settle(self, value: Awaitable[Any]) -> Any:
        return workers.wait_for(value)

    def hold(self, resources: PromptResources) -> AbstractAsyncContextManager[Any]:
        return _Held(resources)

    async def evaluate(
        self, adapter: Evaluator, prompt: Prompt[AnyOutputT], session: Session, limits: dict[str, Any]
    ) -> Response[AnyOutputT]:
        return adapter.evaluate(prompt, session, **limits)


class _AsyncDriver(_Driver):
    """How the loop waits: by awaiting."""

    async def settle(self, value: Awaitable[Any]) -> Any:
        return await value

    def hold(self, resources: PromptResources) -> AbstractAsyncContextManager[Any]:
        return resources

    async def evaluate(
        self, adapter: Evaluator, prompt: Prompt[AnyOutputT], session: Session, limits: dict[str, Any]
    ) -> Response[AnyOutputT]:
        return await adapter.aevaluate(prompt, session, **limits)


_SYNC, _ASYNC = _Driver(), _AsyncDriver()


class MainLoop(ABC, Generic[RequestT, OutputT]):
    """Turns requests into answers. Holds no request, so it may serve many at the same time.

    A subclass writes `prepare`; `execute` does the rest: resources, limits, opened sections, events on the bus.
    """

    def __init__(
        self, *, adapter: Evaluator, bus: EventBus | None = None, config: MainLoopConfig | None = None
    ) -> None:
        self.adapter = adapter
        self.bus = EventBus() if bus is None else bus
        self.config = MainLoopConfig() if config is None else config

    @abstractmethod
    def prepare(self, request: RequestT) -> Prepared[OutputT] | Awaitable[Prepared[OutputT]]:
        """The bound prompt for a request, and the session to run it in if it is not to be a new one. May be async."""

    def execute(
        self,
        request: RequestT,
        *,
        resources: Mapping[Any, object] | ResourceRegistry | None = None,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> tuple[Response[OutputT], Session]:
        """Answer one request. Resources are merged over the loop's, the other arguments replace the loop's;
        what `run_context` leaves empty is filled in."""
        given = _Given(resources, deadline, budget, heartbeat, run_context)
        return drive(self._execute(request, given, _SYNC))

    async def aexecute(
        self,
        request: RequestT,
        *,
        resources: Mapping[Any, object] | ResourceRegistry | None = None,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> tuple[Response[OutputT], Session]:
        """The same on an event loop."""
        given = _Given(resources, deadline, budget, heartbeat, run_context)
        return await self._execute(request, given, _ASYNC)

    async def _execute(self, request: RequestT, given: _Given, driver: _Driver) -> tuple[Response[OutputT], Session]:
        prompt, session = await self._prepared(request, driver)
        for resources in (self.config.resources, given.resources or {}):
            if len(resources):
                prompt = prompt.with_resources(resources)
        context = _completed(given.run_context or RunContext(), session)
        limits = self._limits(given, session, context)
        clock = session.clock
        began = clock.monotonic()
        self.bus.dispatch(RunStarted(context, request, clock.now()))
        try:
            async with driver.hold(prompt.resources):
                response, expansions = await self._evaluate(prompt, session, limits, driver)
        except BaseException as error:
            self.bus.dispatch(RunFailed(context, error, clock.monotonic() - began))
            raise
        self.bus.dispatch(RunFinished(context, response, expansions, clock.monotonic() - began))
        return response, session

    async def _prepared(self, request: RequestT, driver: _Driver) -> tuple[Prompt[OutputT], Session]:
        answer: object = self.prepare(request)
        if isinstance(answer, Awaitable):
            answer = await driver.settle(cast("Awaitable[object]", answer))
        match answer:
            case Prompt():
                return cast("Prompt[OutputT]", answer), Session(bus=self.bus)
            case (Prompt(), Session()):
                return cast("tuple[Prompt[OutputT], Session]", answer)
            case _:
                raise TypeError(
                    f"{type(self).__name__}.prepare must return a Prompt, or a Prompt and a Session, got {answer!r}."
                )

    def _limits(self, given: _Given, session: Session, context: RunContext) -> dict[str, Any]:
        """What the adapter is called with. One tracker counts for the whole request, however often it starts over."""
        config = self.config
        deadline = given.deadline
        if deadline is None:
            deadline = config.deadline
            if config.timeout is not None:
                ends = Deadline.after(config.timeout, session.clock)
                deadline = ends if deadline is None or ends.timestamp < deadline.timestamp else deadline
        budget = given.budget or config.budget
        return {
            "deadline": deadline,
            "budget": BudgetTracker(budget) if isinstance(budget, Budget) else budget,
            "heartbeat": given.heartbeat or config.heartbeat,
            "run_context": context,
        }

    async def _evaluate(
        self, prompt: Prompt[OutputT], session: Session, limits: dict[str, Any], driver: _Driver
    ) -> tuple[Response[OutputT], int]:
        """Evaluate, and again with the sections opened that the model asked for, as often as is allowed."""
        expansions = 0
        while True:
            try:
                return await driver.evaluate(self.adapter, prompt, session, limits), expansions
            except VisibilityExpansionRequired as required:
                if expansions == self.config.max_visibility_expansions:
                    raise PromptEvaluationError(
                        f"The model opened sections {expansions} times and wants more: {required}. "
                        "The run cannot go on; show these sections from the start or raise max_visibility_expansions."
                    ) from required
                expansions += 1
                apply_visibility(session, required.requested_overrides)


def _completed(context: RunContext, session: Session) -> RunContext:
    return replace(
        context,
        run_id=context.run_id or uuid.uuid4().hex,
        request_id=context.request_id or uuid.uuid4().hex,
        session_id=session.session_id,
    )
