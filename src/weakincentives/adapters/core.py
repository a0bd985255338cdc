"""The provider-neutral loop: send the conversation, run the calls it asks for through the one pipeline, send again.

Decides what a turn is, when a run ends, and how a final answer becomes the prompt's output. Knows no provider: an
adapter writes `send`. Never runs a call outside of `execute_tools`, and never runs one again by itself.

INVARIANTS (tests cite the numbers)
 1. A turn costs the same however long the conversation is: messages are appended to one list, never walked or copied.
 2. What the model is shown is what a call finds: the prompt is rendered for each turn.
 3. Sync and async run the same code: only `Driver` knows how to wait.
 4. Every call of a reply gets its outcome, in the order of the calls, before the model is asked again.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from .. import serde
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import DeadlineExceededError, PromptEvaluationError, ThrottledError
from ..frozen import frozen
from ..limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage
from ..prompt import Prompt, RenderedPrompt, RunContext, Tool
from ..prompt.rendering import OutputT, join_blocks
from ..runtime import Session, ToolCall, ToolInvoked, ToolOutcome, aexecute_tools, execute_tools, workers
from ..runtime.execute import Run, drive, record_unstarted
from .guardrails import Guardrails
from .retries import Retry
from .streaming import Answered, Emit, StreamEvent, TextDelta, ToolCalled, ToolFinished, alisten, listen

FormT = TypeVar("FormT")

Role = Literal["system", "user", "assistant", "tool"]
StopReason = Literal[
    "tool_use",  # the model wants calls run and their results
    "end_turn",  # the model has answered
    "max_tokens",  # the answer was cut off
    "refusal",  # the model will not answer
]

NO_USAGE = TokenUsage()


@frozen
class Message:
    """One entry of a conversation, in no provider's form."""

    role: Role
    text: str
    """What is read: the prompt, the model's words, or the text of a tool's result."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the model asked for (assistant)."""
    outcome: ToolOutcome | None = None
    """How the call ended that this message answers (tool); its result may hold content blocks."""
    raw: Any = field(default=None, repr=False, compare=False)
    """The provider's own form of a reply, for those that want it back unchanged."""

    @property
    def call_id(self) -> str:
        """The call this message answers (tool)."""
        return "" if self.outcome is None else self.outcome.call_id


@frozen
class ModelReply:
    """What a model said in one turn, as an adapter read it off the wire."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    stop_reason: StopReason | None = None
    """Left out: `tool_use` when there are calls, else `end_turn`."""
    usage: TokenUsage = NO_USAGE
    raw: Any = field(default=None, repr=False, compare=False)


@frozen
class PromptResponse(Generic[OutputT]):
    """The end of an evaluation, or of one step of it."""

    text: str
    """The model's last words."""
    output: OutputT | None
    """The answer as the type the prompt asks for; None when it asks for none, and when the model refused."""
    usage: TokenUsage
    """Tokens of all turns so far."""
    stop_reason: StopReason
    turns: int
    """How often the model was asked."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What to run next; only in a step with `stop_reason` tool_use."""
    pending: tuple[ToolOutcome, ...] = ()
    """Calls of this run that wait for somebody's approval."""
    messages: Sequence[Message] = field(default=(), repr=False, compare=False)
    """The whole conversation, the prompt first."""
    unfinished: tuple[str, ...] = ()
    """What completion checks still miss in this answer, or could not find out; empty when they are content."""


class Conversation:
    """What was said so far. Made for one evaluation; grows at its end only."""

    __slots__ = ("_tools", "_tools_told", "_translated", "messages", "wire")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """The prompt first; it alone may be replaced, by a later rendering of it."""
        self.wire: list[Any] = []
        """The adapter's own form of the messages; nobody else looks at it."""
        self._translated = 1
        self._tools: tuple[Tool[Any, Any], ...] = ()
        self._tools_told: list[dict[str, Any]] = []

    def untranslated(self) -> list[Message]:
        """The messages after the prompt that were not handed out before: what an adapter adds to `wire`."""
        fresh = self.messages[self._translated :]
        self._translated += len(fresh)
        return fresh

    def specs(self, tools: tuple[Tool[Any, Any], ...]) -> list[dict[str, Any]]:
        """What the provider is told of these tools; made anew only when they change."""
        if tools != self._tools:
            self._tools, self._tools_told = tools, [tool.spec() for tool in tools]
        return self._tools_told


@frozen
class Turn:
    """What an adapter is asked to send: the conversation so far and what may be called now."""

    number: int
    """Counted from 1."""
    conversation: Conversation
    rendered: RenderedPrompt[Any]
    output_schema: dict[str, Any] | None
    """The JSON Schema of the final answer, if the prompt asks for one."""
    deadline: Deadline | None
    """When the run must have ended: the longest a request may take."""
    say: Callable[[str], None] | None = None
    """Somebody listens: an adapter that can streams the reply, and hands on each piece of text as it comes."""

    @property
    def system(self) -> str:
        """The rendered prompt, with what is asked of the final answer."""
        return self.messages[0].text

    @property
    def messages(self) -> Sequence[Message]:
        """Everything so far, the prompt first. The list itself: look, do not keep."""
        return self.conversation.messages

    @property
    def tools(self) -> tuple[Tool[Any, Any], ...]:
        return self.rendered.tools

    @property
    def tool_specs(self) -> list[dict[str, Any]]:
        """`tool.spec()` of each tool."""
        return self.conversation.specs(self.rendered.tools)


class Evaluation(Generic[OutputT]):
    """One run of one prompt: its limits, its conversation, its count. Made by an adapter, lives until the answer."""

    def __init__(
        self,
        adapter: ProviderAdapter,
        prompt: Prompt[OutputT],
        session: Session,
        deadline: Deadline | None,
        budget: Budget | BudgetTracker | None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.adapter = adapter
        self.prompt = prompt
        self.session = session
        self.heartbeat = heartbeat
        self.run_context = run_context
        self.emit = emit
        """Who listens to this run."""
        self.has_spoken = False
        """Whether they have heard words of the present turn."""
        self.conversation = Conversation()
        self.rendered: RenderedPrompt[OutputT] | None = None
        self.usage = NO_USAGE
        self.turns = 0
        self.wanted: tuple[ToolCall, ...] = ()
        """The calls of the last reply."""
        self.answered = False
        """Whether their outcomes are in the conversation."""
        self.ids_are_unique = False
        """Whether replies come with ids that no other call of the session has; else they are made so."""
        self.pending: list[ToolOutcome] = []
        self.deadline: Deadline | None = None
        self.tracker: BudgetTracker | None = None
        self.limit(deadline, budget)
        self._retries_left = adapter.max_output_retries
        self._output = None if prompt.output_type is None else _OutputForm(prompt.output_type)
        self.guardrails = Guardrails(prompt, session) if prompt.is_guarded else None
        """Who watches over the run; None for a prompt without feedback and completion checks."""

    def limit(self, deadline: Deadline | None, budget: Budget | BudgetTracker | None) -> None:
        """Set the limits that are given; the earlier of the deadline and the budget's counts."""
        if deadline is not None and not isinstance(deadline, Deadline):
            raise TypeError(f"deadline must be a Deadline, got {type(deadline).__name__}: Deadline.after(seconds).")
        if budget is not None and not isinstance(budget, Budget | BudgetTracker):
            raise TypeError(
                f"budget must be a Budget or a BudgetTracker, got {type(budget).__name__}: Budget(max_total_tokens=...)."
            )
        if budget is not None:
            self.tracker = budget if isinstance(budget, BudgetTracker) else BudgetTracker(budget)
        elif self.tracker is None and BudgetTracker in self.prompt.resources:
            self.tracker = self.prompt.resources.get(BudgetTracker)
        of_budget = None if self.tracker is None else self.tracker.budget.deadline
        known = [found for found in (deadline or self.deadline, of_budget) if found is not None]
        self.deadline = min(known, key=lambda found: found.timestamp, default=None)

    def next_turn(self) -> Turn:
        """Check the limits and render the prompt; raises when the run may not go on."""
        adapter, messages = self.adapter, self.conversation.messages
        if self.deadline is not None:
            self.deadline.check()
        if self.tracker is not None:
            self.tracker.check()
        if adapter.max_turns is not None and self.turns >= adapter.max_turns:
            raise PromptEvaluationError(
                f"The model did not come to an answer within {adapter.max_turns} turns. "
                "The run cannot go on; start a new one with a smaller task or a larger max_turns."
            )
        if self.heartbeat is not None:
            self.heartbeat.beat()
        rendered = self.prompt.render(self.session)
        if self.rendered is not None and (rendered is self.rendered or rendered == self.rendered):
            rendered = self.rendered  # the same to everybody who kept it: the calls, the adapter
        else:
            told = "" if adapter.sends_output_schema or self._output is None else self._output.instructions
            messages[:1] = [Message("system", join_blocks(rendered.text, told))]
            self.rendered = rendered
        self.turns += 1
        self.has_spoken = False
        schema = None if self._output is None else self._output.schema
        say = None if self.emit is None else self.say
        return Turn(self.turns, self.conversation, rendered, schema, self.deadline, say)

    def say(self, text: str) -> None:
        """Hand on the next words of the model."""
        assert self.emit is not None
        if text:
            self.has_spoken = True
            self.emit(TextDelta(text))

    def hear(self, reply: ModelReply) -> PromptResponse[OutputT] | None:
        """Take a reply down. None: it was no answer of the form asked for; the model was told so, ask again."""
        if self.emit is not None and not self.has_spoken:
            self.say(reply.text)
        usage = reply.usage
        if usage is not NO_USAGE:
            self.usage += usage
            if self.tracker is not None:
                self.tracker.add(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        reason = reply.stop_reason or "end_turn"
        # Calls in a refused reply are fragments of what the model, or its provider, took back.
        self.wanted = () if reason == "refusal" else tuple(map(self._own, reply.tool_calls))
        self.answered = False
        self.conversation.messages.append(Message("assistant", reply.text, self.wanted, None, reply.raw))
        if self.wanted:
            return self._response(reply.text, None, "tool_use")
        if self._output is None or reason == "refusal":
            return self._response(reply.text, None, reason)
        try:
            output = self._output.parse(reply.text)
        except serde.ParseError as error:
            self._ask_again(error, reason)
            return None
        return self._response(reply.text, output, reason)

    def answer(self, outcomes: Sequence[ToolOutcome]) -> None:
        """Add what came of the calls of the last reply, in their order."""
        messages = self.conversation.messages
        for outcome in outcomes:
            messages.append(Message("tool", outcome.text, (), outcome))
            if self.pending:  # the same call made again has now been decided, or waits again
                self.pending = [old for old in self.pending if (old.tool, old.params) != (outcome.tool, outcome.params)]
            if outcome.outcome == "pending":
                self.pending.append(outcome)
        self.answered = True
        if self.guardrails is not None:
            self.guardrails.note(outcomes)

    async def take_feedback(self, driver: Driver) -> None:
        """Let the guards speak about the calls that were answered last, once."""
        assert self.guardrails is not None
        text = await self.guardrails.feedback(self.turns, self.surroundings, driver.settle)
        if text:
            self.conversation.messages.append(Message("user", text))

    async def take_answer(self, response: PromptResponse[OutputT], driver: Driver) -> PromptResponse[OutputT] | None:
        """Let the completion checks look at an answer. None: something is missing; the model was told so, ask again."""
        assert self.guardrails is not None
        if response.tool_calls or response.pending or response.stop_reason == "refusal":
            return response  # it goes on, waits for somebody, or will not
        text, missing = await self.guardrails.missing(
            response.text, response.output, self.turns, self.surroundings, driver.settle, last=self._is_over
        )
        if text:
            self.conversation.messages.append(Message("user", text))
            return None
        return replace(response, unfinished=missing) if missing else response

    @property
    def _is_over(self) -> bool:
        """Whether the next turn would be refused: better an answer that misses something than none."""
        most = self.adapter.max_turns
        return (
            (most is not None and self.turns >= most)
            or (self.deadline is not None and self.deadline.expired)
            or (self.tracker is not None and self.tracker.exhausted)
        )

    @property
    def surroundings(self) -> dict[str, Any]:
        """What the calls of this run are executed with."""
        return {
            "prompt": self.prompt,
            "session": self.session,
            "adapter": self.adapter,
            "rendered_prompt": self.rendered,
            "deadline": self.deadline,
            "budget_tracker": self.tracker,
            "heartbeat": self.heartbeat,
            "run_context": self.run_context,
        }

    def _own(self, call: ToolCall) -> ToolCall:
        # A call without id gets one here, so that the reply and its result name the same one on the wire. So does one
        # whose id is taken: servers begin anew with every reply, and what is known by an id (its idempotency key, its
        # record, its artifact) must be this call's alone.
        call_id = call.call_id
        while not call_id or not (self.ids_are_unique or self._claims(call_id)):
            call_id = f"call-{next(self.session._core.calls)}"
        return ToolCall(call.name, call.arguments, call_id, self.prompt)

    def _claims(self, call_id: str) -> bool:
        """Take an id for a new call of the session; False when another call has it, in this reply, around this run, before
        it or beside it."""
        core, claim = self.session._core, hash(call_id)  # two that are equal by chance cost a new id, nothing else
        with core.mutex:
            taken = claim in core.claims
            core.claims.add(claim)
        # What a stored session did in another process only its record knows.
        return not taken and (core.storage is None or core.log(ToolInvoked).get(call_id) is None)

    def _response(self, text: str, output: OutputT | None, reason: StopReason) -> PromptResponse[OutputT]:
        messages = self.conversation.messages
        return PromptResponse(text, output, self.usage, reason, self.turns, self.wanted, tuple(self.pending), messages)

    def _ask_again(self, error: serde.ParseError, reason: StopReason) -> None:
        assert self._output is not None
        if self._retries_left == 0:
            attempts = self.adapter.max_output_retries + 1
            raise PromptEvaluationError(
                f"The final answer is no {self._output.name} after {attempts} attempts: {error}"
            ) from error
        self._retries_left -= 1
        problem = {"error": "The final answer does not have the form that was asked for", "details": error.details}
        cut_off = "It was cut off because it was too long; be brief.\n" if reason == "max_tokens" else ""
        self.conversation.messages.append(
            Message(
                "user",
                f"{json.dumps(problem, ensure_ascii=False)}\n{cut_off}"
                "Answer again with one JSON value that fits the schema, and nothing else.",
            )
        )


class _OutputForm(Generic[FormT]):
    """How the text of a final answer becomes the prompt's output. Text is its own form."""

    def __init__(self, output_type: type[FormT]) -> None:
        self.name: str = getattr(output_type, "__name__", repr(output_type))
        plain = output_type is str
        self.schema: dict[str, Any] | None = None if plain else serde.schema(output_type)
        self._parser = None if plain else serde.parser(output_type)

    @property
    def instructions(self) -> str:
        return "" if self.schema is None else output_instructions(self.schema)

    def parse(self, text: str) -> FormT:
        return cast("FormT", text) if self._parser is None else self._parser.parse_json(_unfenced(text))


def output_instructions(schema: dict[str, Any]) -> str:
    """How the prompt's text asks for an answer of this form; an adapter says it where its provider takes no schema."""
    told = json.dumps(schema, ensure_ascii=False)
    return f"Give your final answer as one JSON value that fits this JSON Schema, and nothing else:\n{told}"


def _unfenced(text: str) -> str:
    """The inside of a code fence, which models put around JSON whatever they were told, often with a word before it. Of
    two fences nobody knows which is meant."""
    text = text.strip()
    if text.startswith(("{", "[", '"')):
        return text
    inside: list[str] = []
    mark = ""
    for line in text.split("\n"):
        if mark:
            line = line.rstrip()
            inside.append(line.removesuffix(mark))
            mark = "" if line.endswith(mark) else mark
        elif line.startswith(("```", "~~~")):
            if inside:
                return text
            mark = line[: len(line) - len(line.lstrip(line[0]))]
    return text if mark or not inside else "\n".join(inside)


class Driver:
    """How the loop waits: by blocking this thread."""

    async def send(self, adapter: ProviderAdapter, turn: Turn) -> ModelReply:
        if turn.deadline is None:
            return adapter.send(turn)
        # Clients limit single reads, not the whole; a request that outlives the run is left behind on its thread.
        job = workers.submit(partial(adapter.send, turn))
        if not job.wait(min(turn.deadline.remaining_seconds, threading.TIMEOUT_MAX)):
            raise _unanswered(turn.deadline)
        return job.value()

    async def execute(self, calls: Sequence[ToolCall], surroundings: dict[str, Any]) -> list[ToolOutcome]:
        return execute_tools(calls, **surroundings)

    async def settle(self, value: Awaitable[Any]) -> Any:
        return workers.wait_for(value)

    async def sleep(self, clock: Clock, seconds: float) -> None:
        clock.sleep(seconds)


class AsyncDriver(Driver):
    """How the loop waits: by awaiting."""

    async def send(self, adapter: ProviderAdapter, turn: Turn) -> ModelReply:
        if turn.deadline is None:
            return await adapter.asend(turn)
        return await _in_time(adapter.asend(turn), turn.deadline)

    async def execute(self, calls: Sequence[ToolCall], surroundings: dict[str, Any]) -> list[ToolOutcome]:
        return await aexecute_tools(calls, **surroundings)

    async def settle(self, value: Awaitable[Any]) -> Any:
        return await value

    async def sleep(self, clock: Clock, seconds: float) -> None:
        await clock.asleep(seconds)


SYNC, ASYNC = Driver(), AsyncDriver()


async def _in_time(reply: Coroutine[Any, Any, ModelReply], deadline: Deadline) -> ModelReply:
    timeout = asyncio.timeout(deadline.remaining_seconds)
    try:
        async with timeout:
            return await reply
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise _unanswered(deadline) from error


def _unanswered(deadline: Deadline) -> DeadlineExceededError:
    at = deadline.at.isoformat(timespec="milliseconds")
    return DeadlineExceededError(
        f"Deadline exceeded: the run had to end by {at}, and the model had not replied. "
        "It cannot go on; start a new run with a later deadline."
    )


def _refuse_others(prompt: object, session: object) -> None:
    """Name a mix-up of arguments before anything is opened for it."""
    if not isinstance(prompt, Prompt):
        kind = type(prompt).__name__
        raise TypeError(f"prompt must be a Prompt, got {kind}. Wrap a template: Prompt(template).")
    if not isinstance(session, Session):
        raise TypeError(f"session must be a Session, got {type(session).__name__}.")


class ProviderAdapter(ABC):
    """One way to reach a model. Holds no run, so it may serve many at the same time.

    A subclass writes `send`; one whose client is async writes `asend` too, and `send` as `workers.wait_for` of it.
    """

    sends_output_schema: ClassVar[bool] = False
    """Whether `send` passes `turn.output_schema` on in the provider's own way; otherwise the prompt's text says it."""

    def __init__(
        self,
        *,
        max_turns: int | None = 100,
        max_output_retries: int = 2,
        retry: Retry | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, or None for no limit, got {max_turns}.")
        if max_output_retries < 0:
            raise ValueError(f"max_output_retries must be 0 or more, got {max_output_retries}.")
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry, got {type(retry).__name__}: Retry(attempts=...).")
        self.max_turns = max_turns
        self.max_output_retries = max_output_retries
        self.retry = Retry() if retry is None else retry
        self.clock = clock

    @abstractmethod
    def send(self, turn: Turn) -> ModelReply:
        """Ask the model once. Raises `ThrottledError` when it may answer later; others are not tried again."""

    async def asend(self, turn: Turn) -> ModelReply:
        """Ask the model once; on a kept thread unless the adapter knows better, so that the loop never blocks."""
        job = workers.submit(partial(self.send, turn))
        await job.wait_async(None)
        return job.value()

    def evaluate(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> PromptResponse[OutputT]:
        """Run the prompt to its final answer. The prompt's resources are open meanwhile, and after it only if they
        were before. Raises `VisibilityExpansionRequired` when the model opens a section: apply it and evaluate again,
        or leave that to `MainLoop`."""
        _refuse_others(prompt, session)
        with prompt.resources:
            evaluation = Evaluation(self, prompt, session, deadline, budget, heartbeat, run_context)
            return drive(self.run(evaluation, SYNC))

    async def aevaluate(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> PromptResponse[OutputT]:
        """The same on an event loop, which neither the model nor a sync handler blocks."""
        _refuse_others(prompt, session)
        async with prompt.resources:
            evaluation = Evaluation(self, prompt, session, deadline, budget, heartbeat, run_context)
            return await self.run(evaluation, ASYNC)

    def stream(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> Generator[StreamEvent | Answered[PromptResponse[OutputT]], None, None]:
        """As `evaluate`, event by event; the last one is `Answered` and holds the response. Leaving the loop early, or
        closing the generator, stops the run before its next word or call."""
        _refuse_others(prompt, session)

        def run(emit: Emit) -> PromptResponse[OutputT]:
            with prompt.resources:
                evaluation = Evaluation(self, prompt, session, deadline, budget, heartbeat, run_context, emit)
                return drive(self.run(evaluation, SYNC))

        return listen(run)

    def astream(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
        heartbeat: Heartbeat | None = None,
        run_context: RunContext | None = None,
    ) -> AsyncGenerator[StreamEvent | Answered[PromptResponse[OutputT]], None]:
        """The same on an event loop."""
        _refuse_others(prompt, session)

        async def run(emit: Emit) -> PromptResponse[OutputT]:
            async with prompt.resources:
                evaluation = Evaluation(self, prompt, session, deadline, budget, heartbeat, run_context, emit)
                return await self.run(evaluation, ASYNC)

        return alisten(run)

    def stepwise(self) -> Stepwise:
        """A conversation that stops at every tool call and leaves it to you to run it."""
        return Stepwise(self)

    async def run(self, evaluation: Evaluation[OutputT], driver: Driver) -> PromptResponse[OutputT]:
        """The loop itself. An adapter whose client has a loop of its own replaces it."""
        while True:
            response = await self.step(evaluation, driver)
            if not response.tool_calls:
                return response
            emit = evaluation.emit
            if emit is not None:
                try:
                    for call in response.tool_calls:
                        emit(ToolCalled(call))
                except BaseException:
                    record_unstarted(response.tool_calls, Run(**evaluation.surroundings), "nobody listens any more")
                    raise
            outcomes = await driver.execute(response.tool_calls, evaluation.surroundings)
            evaluation.answer(outcomes)
            if emit is not None:
                for outcome in outcomes:
                    emit(ToolFinished(outcome))

    async def step(self, evaluation: Evaluation[OutputT], driver: Driver) -> PromptResponse[OutputT]:
        """Ask until the model wants calls run or has answered in the form asked for, with nothing missing."""
        guarded = evaluation.guardrails is not None
        if guarded:
            await evaluation.take_feedback(driver)
        response = None
        while response is None:
            response = evaluation.hear(await self.ask(evaluation, driver))
            if guarded and response is not None:
                response = await evaluation.take_answer(response, driver)
        return response

    async def ask(self, evaluation: Evaluation[Any], driver: Driver) -> ModelReply:
        """One turn of the model; a provider that is too busy is asked again, as long as nobody has heard a word of it."""
        turn = evaluation.next_turn()
        attempt = 0
        while True:
            try:
                return await driver.send(self, turn)
            except ThrottledError as error:
                attempt += 1
                pause = self.retry.pause(attempt, error.retry_after)
                late = turn.deadline is not None and pause is not None and turn.deadline.remaining_seconds <= pause
                if pause is None or late or evaluation.has_spoken:
                    raise
                await driver.sleep(self.clock, pause)


class Stepwise:
    """One conversation, a turn at a time: `evaluate` asks the model, you run `response.tool_calls` and hand their
    outcomes to the next `evaluate`. Without `tool_results` a new conversation begins."""

    def __init__(self, adapter: ProviderAdapter) -> None:
        self._adapter = adapter
        self._evaluation: Evaluation[Any] | None = None

    def evaluate(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        tool_results: Sequence[ToolOutcome] | None = None,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
    ) -> PromptResponse[OutputT]:
        """The model's next turn; `tool_results` are the outcomes of all calls of the one before, in their order."""
        return drive(self._adapter.step(self._next(prompt, session, tool_results, deadline, budget), SYNC))

    async def aevaluate(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        *,
        tool_results: Sequence[ToolOutcome] | None = None,
        deadline: Deadline | None = None,
        budget: Budget | BudgetTracker | None = None,
    ) -> PromptResponse[OutputT]:
        """The same on an event loop."""
        return await self._adapter.step(self._next(prompt, session, tool_results, deadline, budget), ASYNC)

    def _next(
        self,
        prompt: Prompt[OutputT],
        session: Session,
        tool_results: Sequence[ToolOutcome] | None,
        deadline: Deadline | None,
        budget: Budget | BudgetTracker | None,
    ) -> Evaluation[OutputT]:
        _refuse_others(prompt, session)
        if tool_results is None:
            self._evaluation = Evaluation(self._adapter, prompt, session, deadline, budget)
            return self._evaluation
        evaluation: Evaluation[Any] | None = self._evaluation
        if evaluation is None or not evaluation.wanted:
            raise ValueError("No tool call waits for a result here. Leave tool_results out to begin a conversation.")
        if evaluation.prompt is not prompt or evaluation.session != session:
            raise ValueError("This conversation has another prompt or session. Go on with the same ones.")
        asked = [call.call_id for call in evaluation.wanted]
        for outcome in tool_results:
            if not isinstance(outcome, ToolOutcome):
                raise TypeError(
                    f"tool_results takes what execute_tool returned, a ToolOutcome, got {type(outcome).__name__}."
                )
        given = [outcome.call_id for outcome in tool_results]
        if asked != given:
            raise ValueError(
                f"tool_results must answer the calls {', '.join(map(str, asked))} in this order, "
                f"got {', '.join(given) or 'none'}."
            )
        evaluation.limit(deadline, budget)
        if not evaluation.answered:  # else the model could not be reached, and the same step is tried again
            evaluation.answer(tool_results)
        return evaluation
