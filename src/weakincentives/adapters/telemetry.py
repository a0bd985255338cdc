"""Traces of runs in OpenTelemetry's words for generative AI: `invoke_agent`, `chat` and `execute_tool` spans.

Decides what a span says: names, counts and outcomes; what was said and passed only when asked for, secret fields never.
Needs nothing but the API package, and costs a run one question when nobody listens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

from .. import serde
from ..clock import Clock
from ..prompt import CompletionChecked, FeedbackGiven, RunContext
from ..prompt.rendering import OutputT
from ..runtime import Compensated, Session, ToolCall, ToolInvoked, ToolOutcome, TransactionRolledBack, workers
from ..runtime.execute import Run, drive, groups, record_unstarted
from .core import AsyncDriver, Driver, Evaluation, Message, ModelReply, PromptResponse, ProviderAdapter, Turn
from .durable import RecordedDriver
from .streaming import StreamClosed

_FINISH = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_call"}
_TAKEN_BACK = frozenset({"failed", "timeout", "cancelled", "interrupted"})
_AT_ONCE = 32
_PROVIDERS = {"claudeagentsdk": "anthropic"}


class TracedAdapter(ProviderAdapter):
    """Another adapter, whose runs are traced. Use it in the other's place.

    `agent_name` names the agent in its spans. `capture_content` adds what was said and passed to the spans. Without
    `tracer_provider` the one that the program has configured is used, if any.
    """

    def __init__(
        self,
        inner: ProviderAdapter,
        *,
        agent_name: str = "",
        provider: str = "",
        capture_content: bool = False,
        tracer_provider: Any = None,
    ) -> None:
        super().__init__(
            max_turns=inner.max_turns, max_output_retries=inner.max_output_retries, retry=inner.retry, clock=inner.clock
        )
        object.__setattr__(self, "sends_output_schema", inner.sends_output_schema)
        self.inner = inner
        self.agent_name = agent_name
        self.model: str = str(getattr(inner, "model", "") or "")
        kind = type(inner).__name__.removesuffix("Adapter").lower()
        self.provider = provider or _PROVIDERS.get(kind, kind)
        self.capture_content = capture_content
        self._trace = _api()
        self._tracer = self._trace.get_tracer("weakincentives", tracer_provider=tracer_provider)

    def __repr__(self) -> str:
        return f"TracedAdapter({self.inner!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the other adapter, if it can be closed."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()

    async def aclose(self) -> None:
        """The same on an event loop."""
        close = getattr(self.inner, "aclose", None)
        if callable(close):
            await cast("Awaitable[None]", close())
        else:
            self.close()

    def send(self, turn: Turn) -> ModelReply:
        with self._chat(turn) as heard:
            return heard(self.inner.send(turn))

    async def asend(self, turn: Turn) -> ModelReply:
        with self._chat(turn) as heard:
            return heard(await self.inner.asend(turn))

    async def run(self, evaluation: Evaluation[OutputT], driver: Driver) -> PromptResponse[OutputT]:
        name = f"invoke_agent {self.agent_name}".rstrip()
        attributes = self._about("invoke_agent") | {"gen_ai.conversation.id": evaluation.session.session_id}
        if self.agent_name:
            attributes["gen_ai.agent.name"] = self.agent_name
        with self._span(name, attributes) as span:
            if not span.is_recording():  # nobody listens: the run costs what it costs without this adapter
                return await self.inner.run(evaluation, driver)
            evaluation.run_context = _linked(evaluation.run_context, span)
            if isinstance(driver, RecordedDriver):  # what is played back did not happen now
                driver.runs = _TracedDriver(self, driver.runs)
            else:
                driver = _TracedDriver(self, driver)
            with _telling(evaluation.session, span):
                if type(self.inner).run is ProviderAdapter.run:
                    response = await super().run(evaluation, driver)
                else:
                    response = await self._watch(evaluation, driver, span)
            span.set_attributes(_usage(response.usage))
            span.set_attribute("gen_ai.response.finish_reasons", [_FINISH[response.stop_reason]])
            span.set_attribute("weakincentives.turns", response.turns)
            return response

    async def _watch(self, evaluation: Evaluation[OutputT], driver: Driver, span: Any) -> PromptResponse[OutputT]:
        """Run an adapter that has a loop of its own: its calls are known by their events alone."""
        place = self._trace.set_span_in_context(span)
        run = Run(**evaluation.surroundings)
        forget = evaluation.session.dispatcher.subscribe(ToolInvoked, lambda event: self.tell_call(event, run, place))
        try:
            return await self.inner.run(evaluation, driver)
        finally:
            forget()

    @contextmanager
    def _span(self, name: str, attributes: Mapping[str, Any], *, client: bool = False) -> Any:
        """A span that is the current one; an error is told by its type alone, its text may hold anything."""
        kind = self._trace.SpanKind.CLIENT if client else self._trace.SpanKind.INTERNAL
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except StreamClosed:
                raise  # whoever listened has heard enough: nothing went wrong
            except BaseException as error:
                self.fail(span, type(error).__qualname__)
                raise

    def fail(self, span: Any, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR)

    def _about(self, operation: str) -> dict[str, Any]:
        about: dict[str, Any] = {"gen_ai.operation.name": operation, "gen_ai.provider.name": self.provider}
        if self.model:
            about["gen_ai.request.model"] = self.model
        return about

    @contextmanager
    def _chat(self, turn: Turn) -> Any:
        attributes = self._about("chat")
        if turn.output_schema is not None:
            attributes["gen_ai.output.type"] = "json"
        with self._span(f"chat {self.model}".rstrip(), attributes, client=True) as span:

            def heard(reply: ModelReply) -> ModelReply:
                if span.is_recording():
                    self._describe_chat(span, turn, reply)
                return reply

            yield heard

    def _describe_chat(self, span: Any, turn: Turn, reply: ModelReply) -> None:
        reason = "tool_use" if reply.tool_calls else reply.stop_reason or "end_turn"
        span.set_attributes(_usage(reply.usage))
        span.set_attribute("gen_ai.response.finish_reasons", [_FINISH[reason]])
        if self.capture_content:
            if turn.number == 1:
                span.set_attribute("gen_ai.system_instructions", _json([_text(turn.system)]))
            span.set_attribute("gen_ai.input.messages", _json(_unseen(turn.messages)))
            said = [_text(reply.text)] if reply.text else []
            told = {
                "role": "assistant",
                "parts": said + _calls(reply.tool_calls, turn),
                "finish_reason": _FINISH[reason],
            }
            span.set_attribute("gen_ai.output.messages", _json([told]))

    # -- calls -----------------------------------------------------------------------------------------------------

    def about_call(self, name: str, call_id: str | None, run: Run) -> dict[str, Any]:
        about: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id or "",
            "gen_ai.tool.type": "function",
        }
        binding = None if run.prompt is None else run.prompt.find_tool(name, run.session)
        if binding is not None:
            about["gen_ai.tool.description"] = binding.tool.description
            about["weakincentives.tool.effects"] = binding.tool.effects
        return about

    def describe_call(self, span: Any, event: ToolInvoked | None) -> None:
        """Say how a call ended; its text, arguments and reasons only when asked for."""
        if event is None or not span.is_recording():
            return
        outcome = event.outcome
        span.set_attribute("weakincentives.tool.outcome", outcome)
        if event.changes:
            span.set_attribute("weakincentives.changes.slices", list(event.changes.slices))
            span.set_attribute("weakincentives.changes.files", len(event.changes.files))
        if self.capture_content:
            span.set_attribute("gen_ai.tool.call.arguments", _arguments(event.params))
            span.set_attribute("gen_ai.tool.call.result", event.rendered_output)
        if outcome == "ok":
            return
        reason = {"weakincentives.reason": event.rendered_output} if self.capture_content else {}
        if outcome == "denied":
            span.add_event("policy.denied", {"weakincentives.policy": event.policy, **reason})
        elif outcome == "pending":
            span.add_event("policy.pending", {"weakincentives.policy": event.policy, **reason})
        elif outcome in _TAKEN_BACK:
            span.add_event("transaction.rolled_back", {"weakincentives.call_ids": [event.call_id], **reason})
        if outcome != "pending":
            self.fail(span, outcome)

    def tell_call(self, event: ToolInvoked, run: Run, place: Any = None) -> None:
        """A span for a call that has ended."""
        start = int(event.timestamp * 1_000_000_000)
        about = self.about_call(event.tool_name, event.call_id, run)
        span = self._tracer.start_span(f"execute_tool {event.tool_name}", place, attributes=about, start_time=start)
        self.describe_call(span, event)
        span.end(end_time=start + int(event.duration * 1_000_000_000))


class _TracedDriver(Driver):
    """Lets another driver do the waiting, and gives every call a span."""

    def __init__(self, adapter: TracedAdapter, driver: Driver) -> None:
        self._adapter = adapter
        self._driver = driver

    async def send(self, adapter: ProviderAdapter, turn: Turn) -> ModelReply:
        return await self._driver.send(adapter, turn)

    async def settle(self, value: Awaitable[Any]) -> Any:
        return await self._driver.settle(value)

    async def sleep(self, clock: Clock, seconds: float) -> None:
        await self._driver.sleep(clock, seconds)

    async def execute(self, calls: Sequence[ToolCall], surroundings: dict[str, Any]) -> list[ToolOutcome]:
        run = Run(**surroundings)
        outcomes: list[ToolOutcome] = []
        started = 0
        try:
            for group in groups(calls, run):
                for first in range(0, len(group), _AT_ONCE):
                    together = group[first : first + _AT_ONCE]
                    started += len(together)
                    outcomes.extend(
                        await self._execute([partial(self._one, call, run, surroundings) for call in together])
                    )
        except BaseException:
            record_unstarted(calls[started:], run)
            raise
        return outcomes

    async def _execute(self, calls: Sequence[Callable[[], Coroutine[Any, Any, ToolOutcome]]]) -> Sequence[ToolOutcome]:
        """Run calls side by side, each where its own span is the current one; all end before an error is raised."""
        if len(calls) == 1:
            return [await calls[0]()]
        if isinstance(self._driver, AsyncDriver):
            tasks = [asyncio.ensure_future(call()) for call in calls]
            try:
                await asyncio.wait(tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # looked at, so that only the first is raised and none is reported as lost
            return [task.result() for task in tasks]
        jobs = [workers.submit(lambda call=call: drive(call())) for call in calls]
        for job in jobs:
            job.wait(None)
        return [job.value() for job in jobs]

    async def _one(self, call: ToolCall, run: Run, surroundings: dict[str, Any]) -> ToolOutcome:
        adapter = self._adapter
        about = adapter.about_call(call.name, call.call_id, run)
        with adapter._span(f"execute_tool {call.name}", about) as span:
            try:
                (outcome,) = await self._driver.execute([call], surroundings)
                return outcome
            finally:
                adapter.describe_call(span, run.session[ToolInvoked].get(call.call_id))


def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError(
            "Traces need the OpenTelemetry API. Install it: pip install 'weakincentives[telemetry]'"
        ) from error
    return trace


def _linked(context: RunContext | None, span: Any) -> RunContext:
    """The run's context with the trace it can be found by."""
    place = span.get_span_context()
    return replace(context or RunContext(), trace_id=f"{place.trace_id:032x}", span_id=f"{place.span_id:016x}")


@contextmanager
def _telling(session: Session, span: Any) -> Any:
    """Add what happens to the run as a whole to its span."""
    subscribe = session.dispatcher.subscribe
    told: list[Callable[[], None]] = [
        subscribe(
            TransactionRolledBack,
            lambda event: span.add_event(
                "transaction.rolled_back",
                {"weakincentives.call_ids": list(event.call_ids), "weakincentives.tag": event.tag},
            ),
        ),
        subscribe(
            Compensated,
            lambda event: span.add_event(
                "tool.compensated", {"gen_ai.tool.name": event.tool_name, "weakincentives.success": event.success}
            ),
        ),
        subscribe(FeedbackGiven, lambda event: span.add_event("feedback.given", {"weakincentives.guard": event.guard})),
        subscribe(
            CompletionChecked,
            lambda event: span.add_event("completion.checked", {"weakincentives.complete": event.complete}),
        ),
    ]
    try:
        yield
    finally:
        for forget in told:
            forget()


# -- what is put into words ------------------------------------------------------------------------------------------


def _usage(usage: Any) -> dict[str, int]:
    counted = {"gen_ai.usage.input_tokens": usage.input_tokens, "gen_ai.usage.output_tokens": usage.output_tokens}
    if usage.cached_tokens:
        counted["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return counted if usage.input_tokens or usage.output_tokens else {}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _unseen(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages since the model last spoke: those before stand in the spans before."""
    fresh: list[dict[str, Any]] = []
    for number in range(len(messages) - 1, 0, -1):
        message = messages[number]
        if message.role == "assistant":
            break
        part = _text(message.text)
        if message.role == "tool":
            part = {"type": "tool_call_response", "id": message.call_id, "response": message.text}
        fresh.append({"role": message.role, "parts": [part]})
    return fresh[::-1]


def _calls(calls: Sequence[ToolCall], turn: Turn) -> list[dict[str, Any]]:
    secretive = {tool.name for tool in turn.tools if serde.has_secrets(tool.params_type)}
    return [
        {
            "type": "tool_call",
            "id": call.call_id,
            "name": call.name,
            "arguments": serde.REDACTED if call.name in secretive else call.params,
        }
        for call in calls
    ]


def _arguments(params: Any) -> str:
    """What a call was passed, as its event has it: with secrets redacted."""
    if isinstance(params, str):
        return params
    if isinstance(params, Mapping):
        return _json(dict(cast("Mapping[str, Any]", params)))
    return "{}" if params is None else serde.dump_json(params)
