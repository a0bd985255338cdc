"""Claims about traces: which spans a run has, what they say, and what they never say."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from weakincentives.adapters import Answered, ModelReply, ScriptedAdapter, TextDelta
from weakincentives.adapters.durable import DurableLoop
from weakincentives.adapters.telemetry import TracedAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    ApprovalPolicy,
    GuardContext,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SequentialDependencyPolicy,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import MainLoop, RunFailed, Session, ToolCall, ToolInvoked, aexecute_tool, execute_tool
from weakincentives.serde import Secret


@dataclass(frozen=True)
class Note:
    text: str


@tool
def note(text: str, context: ToolContext) -> str:
    """Take a note."""
    context.session[Note].append(Note(text))
    if "half" in text:
        raise ValueError(f"Cannot keep {text}.")
    return f"Noted {text}."


@tool(effects="none")
def look(what: str) -> str:
    """Look at something."""
    trace.get_tracer("handler").start_span("inside").end()
    return f"Saw {what}."


@tool
def log_in(user: str, password: Annotated[str, Secret]) -> str:
    """Log in."""
    return f"Welcome, {user}."


def unsend(params: object, result: ToolResult[Any], *, context: ToolContext) -> None: ...


@tool(effects="external", compensate=unsend)
def announce(text: str) -> str:
    """Tell the world."""
    return "Told."


TOOLS = [note, look, log_in, announce]


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found

    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.all())


@pytest.fixture
def spans() -> Spans:
    return Spans()


Traced = Callable[..., TracedAdapter]


@pytest.fixture
def traced(spans: Spans) -> Traced:
    def make(*turns: Any, **options: Any) -> TracedAdapter:
        model = ScriptedAdapter(turns)
        model.model = "small-1"  # type: ignore[attr-defined]
        return TracedAdapter(model, agent_name="clerk", tracer_provider=spans.provider, **options)

    return make


def prompt(**options: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate(sections=[MarkdownSection(title="Desk", template="Work.", tools=TOOLS)], **options))


def happened(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    return [(event.name, dict(event.attributes or {})) for event in span.events]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_run_is_one_tree_of_spans(traced: Traced, spans: Spans) -> None:
    """The agent's span holds one per turn and one per call."""
    traced(ToolCall("note", {"text": "milk"}), "done").evaluate(prompt(), Session())

    assert spans.names() == ["chat small-1", "execute_tool note", "chat small-1", "invoke_agent clerk"]
    *inner, agent = spans.all()
    assert agent.parent is None
    assert [span.parent.span_id for span in inner if span.parent] == [agent.context.span_id] * 3
    assert [span.kind.name for span in spans.all()] == ["CLIENT", "INTERNAL", "CLIENT", "INTERNAL"]


def test_the_agent_span_says_who_and_how_much(traced: Traced, spans: Spans) -> None:
    """Names, model, conversation, tokens of all turns, and how it ended."""
    session = Session(session_id="s1")
    reply = ModelReply("", (ToolCall("look", {"what": "a"}),), usage=TokenUsage(10, 2))
    traced(reply, ModelReply("done", usage=TokenUsage(20, 3, 5))).evaluate(prompt(), session)

    assert attributes(spans.one("invoke_agent clerk")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "small-1",
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "clerk",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
        "weakincentives.turns": 2,
    }


def test_a_chat_span_says_how_the_turn_ended(traced: Traced, spans: Spans) -> None:
    """Finish reasons are the convention's words."""
    traced(ModelReply("No.", stop_reason="refusal", usage=TokenUsage(7, 1))).evaluate(prompt(), Session())

    assert attributes(spans.one("chat small-1")) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "small-1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.response.finish_reasons": ("content_filter",),
    }


def test_a_tool_span_says_which_call_and_its_outcome(traced: Traced, spans: Spans) -> None:
    """Without what was passed and answered."""
    traced(ToolCall("note", {"text": "milk"}, "c1"), "done").evaluate(prompt(), Session())

    assert attributes(spans.one("execute_tool note")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "note",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Take a note.",
        "weakincentives.tool.effects": "local",
        "weakincentives.tool.outcome": "ok",
        "weakincentives.changes.slices": ("Note",),
        "weakincentives.changes.files": 0,
    }
    assert "milk" not in spans.text()


def test_a_rollback_is_an_event_of_its_call(traced: Traced, spans: Spans) -> None:
    """The call failed, and its span says what became of its changes, not what it said."""
    traced(ToolCall("note", {"text": "half"}, "c1"), "done").evaluate(prompt(), Session())

    span = spans.one("execute_tool note")
    assert happened(span) == [("transaction.rolled_back", {"weakincentives.call_ids": ("c1",)})]
    assert (attributes(span)["error.type"], span.status.status_code.name) == ("failed", "ERROR")
    assert "Cannot keep" not in spans.text()


def test_a_denial_is_an_event_that_names_the_policy(traced: Traced, spans: Spans) -> None:
    """Decisions can be found in traces."""
    policies = [SequentialDependencyPolicy({"note": {"look"}})]
    traced(ToolCall("note", {"text": "a"}), "done").evaluate(prompt(policies=policies), Session())

    assert happened(spans.one("execute_tool note")) == [
        ("policy.denied", {"weakincentives.policy": "sequential_dependency"})
    ]


def test_a_pending_approval_is_an_event_and_no_error(traced: Traced, spans: Spans) -> None:
    """Waiting for somebody is not a failure."""
    traced(ToolCall("note", {"text": "a"}), "waiting").evaluate(prompt(policies=[ApprovalPolicy()]), Session())

    span = spans.one("execute_tool note")
    assert [name for name, _ in happened(span)] == ["policy.pending"]
    assert "error.type" not in attributes(span)


def test_what_befalls_the_whole_run_is_an_event_of_the_agent(traced: Traced, spans: Spans) -> None:
    """A transaction around several calls that is taken back, its compensations, and the guards."""
    session = Session()

    def both(context: GuardContext) -> str | None:
        return "Say more." if context.turns == 1 else None

    def nested(messages: object) -> str:
        with session.transaction(tag="release") as block:
            execute_tool(ToolCall("announce", {"text": "x"}, "c1"), prompt=asked, session=session)
            block.rollback()
        return "done"

    asked = prompt(completion=[both])
    traced("too short", nested).evaluate(asked, session)

    assert happened(spans.one("invoke_agent clerk")) == [
        ("completion.checked", {"weakincentives.complete": False}),
        ("transaction.rolled_back", {"weakincentives.call_ids": ("c1",), "weakincentives.tag": "release"}),
        ("tool.compensated", {"gen_ai.tool.name": "announce", "weakincentives.success": True}),
        ("completion.checked", {"weakincentives.complete": True}),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_that_run_side_by_side_have_a_span_each(spans: Spans, is_async: bool) -> None:
    """Each is the current one of its own handler, and they do run side by side."""
    meet = threading.Barrier(2)
    inner = spans.provider.get_tracer("handler")

    @tool(effects="none")
    def wait(name: str) -> str:
        """Wait for the other one."""
        meet.wait(20)
        inner.start_span(f"inside {name}").end()
        return name

    asked = Prompt(PromptTemplate()).bind(extra_tools=[wait])
    calls = [ToolCall("wait", {"name": name}, name) for name in "ab"]
    adapter = TracedAdapter(ScriptedAdapter([calls, "done"]), tracer_provider=spans.provider)
    session = Session()
    response = asyncio.run(adapter.aevaluate(asked, session)) if is_async else adapter.evaluate(asked, session)

    by_call = {attributes(span)["gen_ai.tool.call.id"]: span for span in spans.all() if "execute_tool" in span.name}
    parents = {name: spans.one(f"inside {name}").parent for name in "ab"}
    assert {name: parent and parent.span_id for name, parent in parents.items()} == {
        name: by_call[name].context.span_id for name in "ab"
    }
    assert [message.text for message in response.messages if message.role == "tool"] == ["a", "b"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_ends_the_run_ends_it_traced_too(spans: Spans, is_async: bool) -> None:
    """Its neighbours end first, those after it are recorded as never started."""

    @tool(effects="none")
    def stop(now: bool) -> str:
        """Stop the run."""
        if now:
            raise PromptEvaluationError("enough")
        return "going on"

    asked = Prompt(PromptTemplate()).bind(extra_tools=[stop, note])
    calls = [ToolCall("stop", {"now": True}), ToolCall("stop", {"now": False}), ToolCall("note", {"text": "x"})]
    adapter = TracedAdapter(ScriptedAdapter([calls]), tracer_provider=spans.provider)
    session = Session()
    with pytest.raises(PromptEvaluationError, match=r"^enough$"):
        if is_async:
            asyncio.run(adapter.aevaluate(asked, session))
        else:
            adapter.evaluate(asked, session)

    assert sorted(event.outcome for event in session[ToolInvoked].all()) == ["cancelled", "interrupted", "ok"]
    assert sorted(spans.names()) == ["chat", "execute_tool stop", "execute_tool stop", "invoke_agent"]


def test_spans_of_a_handler_hang_below_its_call(spans: Spans) -> None:
    """The span of a call is the current one while its handler runs."""
    inner = spans.provider.get_tracer("handler")

    @tool
    def fetch() -> str:
        """Fetch something."""
        with inner.start_as_current_span("GET /"):
            return "fetched"

    asked = Prompt(PromptTemplate()).bind(extra_tools=[fetch])
    TracedAdapter(ScriptedAdapter([ToolCall("fetch"), "done"]), tracer_provider=spans.provider).evaluate(
        asked, Session()
    )

    parent = spans.one("GET /").parent
    assert parent is not None
    assert parent.span_id == spans.one("execute_tool fetch").context.span_id
    assert "invoke_agent" in spans.names()


def test_content_is_captured_when_asked_for(traced: Traced, spans: Spans) -> None:
    """What was said and passed, each message in the span of the turn that first heard it."""
    model = traced(ToolCall("note", {"text": "milk"}, "c1"), "done", capture_content=True)
    model.evaluate(prompt(), Session())

    first, second = (attributes(span) for span in spans.all() if span.name == "chat small-1")
    call = attributes(spans.one("execute_tool note"))
    assert json.loads(first["gen_ai.system_instructions"])[0]["content"].startswith("# Desk")
    assert json.loads(first["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "note", "arguments": {"text": "milk"}}],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(second["gen_ai.input.messages"]) == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "Noted milk."}]}
    ]
    assert "gen_ai.system_instructions" not in second
    assert (call["gen_ai.tool.call.arguments"], call["gen_ai.tool.call.result"]) == ('{"text":"milk"}', "Noted milk.")


def test_secrets_are_never_captured(traced: Traced, spans: Spans) -> None:
    """Not even when content is."""
    login = ToolCall("log_in", {"user": "ann", "password": "hunter2"})
    broken = ToolCall("log_in", {"user": 1, "password": "hunter2"})
    traced(login, broken, "done", capture_content=True).evaluate(prompt(), Session())

    assert "ann" in spans.text()
    assert "hunter2" not in spans.text()


def test_an_error_is_told_by_its_type(spans: Spans, traced: Traced) -> None:
    """Its text may hold anything."""

    def fall_over(messages: object) -> str:
        raise ConnectionError("key sk-123 was refused")

    with pytest.raises(ConnectionError):
        traced(fall_over).evaluate(prompt(), Session())

    assert [(span.name, attributes(span)["error.type"], span.status.status_code.name) for span in spans.all()] == [
        ("chat small-1", "ConnectionError", "ERROR"),
        ("invoke_agent clerk", "ConnectionError", "ERROR"),
    ]
    assert "sk-123" not in spans.text()


def test_calls_know_the_trace_they_belong_to(traced: Traced, spans: Spans) -> None:
    """The event of a call leads to its trace."""
    session = Session()
    traced(ToolCall("look", {"what": "a"}), "done").evaluate(prompt(), session)

    event = session[ToolInvoked].latest()
    assert event is not None
    assert event.run_context is not None
    place = spans.one("invoke_agent clerk").context
    assert (int(event.run_context.trace_id, 16), int(event.run_context.span_id, 16)) == (place.trace_id, place.span_id)


def test_async_streams_and_steps_are_traced_too(traced: Traced, spans: Spans) -> None:
    """Whatever way the adapter is used."""
    asyncio.run(traced("one").aevaluate(prompt(), Session()))
    told = list(traced("two").stream(prompt(), Session()))
    traced("three").stepwise().evaluate(prompt(), Session())

    assert [type(event) for event in told] == [TextDelta, Answered]
    assert spans.names() == ["chat small-1", "invoke_agent clerk"] * 2 + ["chat small-1"]


def test_a_run_that_nobody_listens_to_goes_straight_to_the_inner_adapter() -> None:
    """Without a configured provider no turn and no call passes through the traced one."""
    model = ScriptedAdapter([ToolCall("look", {"what": "a"}), "done"])
    adapter = TracedAdapter(model)
    session = Session()

    assert adapter.evaluate(prompt(), session).text == "done"
    event = session[ToolInvoked].latest()
    assert event is not None
    assert event.run_context is None


def test_what_a_durable_run_plays_back_has_no_spans(spans: Spans, tmp_path: Path) -> None:
    """Only what happened is traced: a call has one span however often its run was taken up."""
    runs: list[DurableLoop[str, Any]] = []

    def stop(messages: object) -> str:
        runs[0].cancel("run")
        return "lost"

    class Loop(MainLoop[str, Any]):
        def prepare(self, request: str) -> Prompt[Any]:
            return prompt()

    model = ScriptedAdapter([ToolCall("note", {"text": "a"}), stop, "done"])
    loop = Loop(adapter=TracedAdapter(model, tracer_provider=spans.provider))
    stopped = threading.Event()
    loop.bus.subscribe(RunFailed, lambda _: stopped.set())
    with DurableLoop(loop, name="traced", folder=tmp_path, poll_seconds=0.02) as durable:
        runs.append(durable)
        durable.submit("go", request_id="run")
        assert stopped.wait(20)
        durable.resume("run")
        assert durable.result("run", timeout=20).text == "done"

    assert spans.names() == ["chat", "execute_tool note", "chat", "invoke_agent", "chat", "invoke_agent"]


def test_calls_of_an_adapter_with_a_loop_of_its_own_are_traced_too(spans: Spans) -> None:
    """They are known by their events; there are no turns to tell."""

    class Whole(ScriptedAdapter):
        async def run(self, evaluation: Any, driver: Any) -> Any:
            await aexecute_tool(ToolCall("note", {"text": "half"}, "c1"), **evaluation.surroundings)
            return evaluation.hear(ModelReply("done"))

    adapter = TracedAdapter(Whole([]), tracer_provider=spans.provider)
    asyncio.run(adapter.aevaluate(prompt(), Session()))

    assert spans.names() == ["execute_tool note", "invoke_agent"]
    call, agent = spans.all()
    assert call.parent is not None
    assert call.parent.span_id == agent.context.span_id
    assert [name for name, _ in happened(call)] == ["transaction.rolled_back"]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(ImportError) as missing:
        TracedAdapter(ScriptedAdapter([]))
    assert str(missing.value) == (
        "Traces need the OpenTelemetry API. Install it: pip install 'weakincentives[telemetry]'"
    )


def test_leaving_a_stream_is_no_error_of_the_run(traced: Traced, spans: Spans) -> None:
    """Whoever has heard enough has not found a fault."""
    stream = traced(ToolCall("note", {"text": "a"}), "two").stream(prompt(), Session())
    next(stream)
    stream.close()

    assert spans.all()
    assert all("error.type" not in attributes(span) for span in spans.all() if span.name.startswith("invoke_agent"))


def test_a_traced_adapter_is_closed_like_the_one_inside() -> None:
    """It stands in the other's place in a with-block too."""

    class Closing(ScriptedAdapter):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    inner = Closing([])
    with TracedAdapter(inner):
        assert inner.closed == 0

    async def leave() -> None:
        async with TracedAdapter(inner):
            pass

    asyncio.run(leave())

    assert inner.closed == 2
