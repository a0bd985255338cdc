"""What every adapter must do, as tests: the same scenarios over each provider's own wire.

A scenario scripts the model in neutral words (`ScriptTurn`); the adapter's harness plays them in its provider's format,
behind the provider's real client. What is asserted are sessions, files, responses, and what the provider was sent.
A test module subclasses `AdapterConformance` and gives the fixture `harness`; a scenario that a provider cannot have is
taken out by name (`test_… = None`), with the reason beside it. Needs pytest; nothing else in this package does.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import pytest

from ..adapters import Answered, PromptResponse, ProviderAdapter, Retry, TextDelta, ToolCalled, ToolFinished
from ..adapters.streaming import StreamEvent
from ..clock import FakeClock
from ..errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottledError,
    VisibilityExpansionRequired,
)
from ..filesystem import Filesystem, InMemoryFilesystem
from ..frozen import frozen
from ..limits import Budget, Deadline, TokenUsage
from ..prompt import (
    GuardContext,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolPolicy,
    ToolResult,
    apply_visibility,
)
from ..runtime import Session, ToolCall, ToolInvoked, execute_tool

OutputT = TypeVar("OutputT")

Mode = Literal["evaluate", "aevaluate", "stream", "astream"]
MODES: tuple[Mode, ...] = ("evaluate", "aevaluate", "stream", "astream")


# --- the model's side -------------------------------------------------------------------------------------------------


@frozen
class ScriptTurn:
    """What the provider answers to one request, in no provider's form."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    """Calls without id get one from the double."""
    status: int = 200
    """Another status answers with an error of the provider's form instead: 429 and 503 are too busy, 400 is a fault."""
    retry_after: float | None = None
    """Seconds the provider asks for, with status 429 or 503."""
    refusal: bool = False
    """The text is a refusal, told in the provider's way."""
    cut: bool = False
    """The reply ends because it became too long."""
    hang: bool = False
    """The provider takes the request and does not answer."""
    arguments_text: str | None = None
    """Sent as the arguments of each call, as it is: what a model writes that cannot write JSON."""
    usage: TokenUsage = field(default=TokenUsage(10, 5, 4))

    def arguments_of(self, call: ToolCall) -> str:
        """The arguments of a call as they stand on the wire."""
        if self.arguments_text is not None:
            return self.arguments_text
        arguments = call.arguments
        if isinstance(arguments, bytes):
            return arguments.decode()
        return arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}))

    @property
    def pieces(self) -> list[str]:
        """The text word by word, for a double that streams it; joined they are the text."""
        return re.findall(r"\s*\S+\s*", self.text) or ([self.text] if self.text else [])


class AdapterHarness(ABC):
    """One adapter and the double of its provider. Made for one test."""

    @abstractmethod
    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        """An adapter, not used before, whose provider answers with these turns in order; one request too many fails."""

    @abstractmethod
    def requests(self) -> Sequence[Mapping[str, Any]]:
        """What the provider was sent so far, raw, one entry per request for an answer."""

    async def aclose(self) -> None:  # noqa: B027  most harnesses have nothing to close
        """Called on the event loop of an async run when that ends: connections of this loop are closed here."""

    def texts(self, at: int = -1) -> list[str]:
        """Every text of a request, in its order; of the last one unless told."""
        return list(_texts(self.requests()[at]))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in cast("Sequence[object]", value):
            yield from _texts(item)


# --- what the scenarios work on ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """A page of the notebook."""

    path: str
    """Where it lies."""
    text: str
    """What it says."""


@dataclass(frozen=True)
class Page:
    """Which page to read."""

    path: str
    """Where it lies."""


@dataclass(frozen=True)
class Answer:
    """What the reader wants to know."""

    total: int
    """How many pages there are."""


REFUSED = "Notes cannot be rude. Choose other words, then retry."
MISSING = "Cannot call 'publish' - missing required tools: read_note\nCall these tools first, then retry publish."


def write_note(params: Note, *, context: ToolContext) -> ToolResult[None]:
    """Write a page of the notebook."""
    assert context.filesystem is not None
    context.filesystem.write(params.path, params.text)
    context.session[Note].append(params)
    if "rude" in params.text:
        return ToolResult.error(REFUSED)
    return ToolResult.ok(None, f"Wrote {params.path}.")


def read_note(params: Page, *, context: ToolContext) -> ToolResult[str]:
    """Read a page of the notebook."""
    assert context.filesystem is not None
    return ToolResult.ok(context.filesystem.read(params.path))


def publish(params: Page, *, context: ToolContext) -> ToolResult[None]:
    """Publish a page of the notebook."""
    context.session[Page].append(params)
    return ToolResult.ok(None, f"Published {params.path}.")


TOOLS: tuple[Tool[Any, Any], ...] = (
    Tool[Note, None](name="write_note", description="Write a page of the notebook.", handler=write_note),
    Tool[Page, str](name="read_note", description="Read a page.", handler=read_note, effects="none"),
    Tool[Page, None](name="publish", description="Publish a page.", handler=publish),
)


def writes(path: str, text: str = "hello") -> ToolCall:
    return ToolCall("write_note", {"path": path, "text": text})


class Desk(Generic[OutputT]):
    """A prompt with its session and files."""

    def __init__(
        self,
        template: PromptTemplate[OutputT],
        files: Mapping[str, str] | None = None,
        session: Session | None = None,
    ) -> None:
        self.files = InMemoryFilesystem()
        for path, text in (files or {}).items():
            self.files.write(path, text)
        self.session = Session() if session is None else session
        self.prompt: Prompt[OutputT] = Prompt(template).bind(resources={Filesystem: self.files})

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Name and outcome of every call, as they were recorded."""
        return [(event.tool_name, event.outcome) for event in self.session[ToolInvoked]]


def desk(
    files: Mapping[str, str] | None = None,
    *,
    tools: Sequence[Tool[Any, Any]] = TOOLS,
    policies: Sequence[ToolPolicy] = (),
) -> Desk[None]:
    section = MarkdownSection(title="Notebook", template="Keep the notebook in order.", tools=list(tools))
    return Desk(PromptTemplate(sections=[section], policies=list(policies)), files)


# --- the scenarios ----------------------------------------------------------------------------------------------------


class AdapterConformance:
    """The scenarios. A subclass gives the fixture `harness`, and narrows the class variables where it must."""

    modes: ClassVar[Sequence[Mode]] = MODES
    """How each scenario is run."""
    orders_results: ClassVar[bool] = True
    """Whether results of calls that ran at the same time go back in the order of the calls; each is named by its call anyway."""
    streams_words: ClassVar[bool] = True
    """Whether words come one by one when somebody listens."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "mode" in metafunc.fixturenames:
            metafunc.parametrize("mode", self.modes)

    # How a scenario is run; a subclass may use these for scenarios of its own.

    def run(
        self,
        harness: AdapterHarness,
        mode: Mode,
        adapter: ProviderAdapter,
        at: Desk[OutputT],
        *,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> tuple[PromptResponse[OutputT], list[StreamEvent]]:
        """One evaluation, with the events of it if the mode has them."""
        limits: dict[str, Any] = {"deadline": deadline, "budget": budget}
        events: list[StreamEvent | Answered[PromptResponse[OutputT]]] = []

        async def evaluate() -> PromptResponse[OutputT]:
            return await adapter.aevaluate(at.prompt, at.session, **limits)

        async def listen() -> None:
            events.extend([event async for event in adapter.astream(at.prompt, at.session, **limits)])

        match mode:
            case "evaluate":
                return adapter.evaluate(at.prompt, at.session, **limits), []
            case "aevaluate":
                return self.on_a_loop(harness, evaluate()), []
            case "stream":
                events.extend(adapter.stream(at.prompt, at.session, **limits))
            case "astream":
                self.on_a_loop(harness, listen())
        *before, last = events
        assert isinstance(last, Answered)
        return last.response, [event for event in before if not isinstance(event, Answered)]

    def on_a_loop(self, harness: AdapterHarness, work: Coroutine[Any, Any, OutputT]) -> OutputT:
        """Run a coroutine on an event loop of its own, and let the harness clean up there."""

        async def to_the_end() -> OutputT:
            try:
                return await work
            finally:
                await harness.aclose()

        return asyncio.run(to_the_end())

    # Calls.

    def test_a_call_runs_and_its_result_goes_back(self, harness: AdapterHarness, mode: Mode) -> None:
        """The handler gets typed params, the model gets the result, the response holds the answer and all tokens."""
        at = desk()
        adapter = harness.adapter([ScriptTurn(calls=[writes("a")]), ScriptTurn("All written.")])

        response, _ = self.run(harness, mode, adapter, at)

        assert (response.text, response.stop_reason, response.turns) == ("All written.", "end_turn", 2)
        assert response.usage == TokenUsage(20, 10, 8)
        assert at.session[Note].all() == (Note("a", "hello"),)
        assert at.files.read("a") == "hello"
        assert at.outcomes == [("write_note", "ok")]
        assert len(harness.requests()) == 2
        assert "Wrote a." in harness.texts()

    def test_the_model_is_shown_prompt_and_tools(self, harness: AdapterHarness, mode: Mode) -> None:
        """Instructions, names, descriptions and parameters of the tools are in the first request."""
        at = desk()
        self.run(harness, mode, harness.adapter([ScriptTurn("Nothing to do.")]), at)

        told = harness.texts()
        assert any("Keep the notebook in order." in text for text in told)
        for tool in TOOLS:
            assert any(text == tool.name or text.endswith(f"__{tool.name}") for text in told)
            assert any(tool.description in text for text in told)
        assert "Where it lies." in told

    def test_words_beside_calls_are_kept(self, harness: AdapterHarness, mode: Mode) -> None:
        """What the model said while it called goes back to it in the next request."""
        at = desk()
        adapter = harness.adapter([ScriptTurn("Let me write that down.", [writes("a")]), ScriptTurn("Done.")])

        response, _ = self.run(harness, mode, adapter, at)

        assert response.text == "Done."
        assert any("Let me write that down." in text for text in harness.texts())

    def test_calls_that_only_read_run_at_the_same_time(self, harness: AdapterHarness, mode: Mode) -> None:
        """Two reads of one reply meet in their handlers, and their results go back in the order of the calls (S6)."""
        meeting = threading.Barrier(2, timeout=30)

        def look(params: Page, *, context: ToolContext) -> ToolResult[str]:  # noqa: ARG001
            meeting.wait()
            return ToolResult.ok(f"seen {params.path}")

        tool = Tool[Page, str](name="look", description="Look at a page.", handler=look, effects="none")
        at = desk(tools=[tool])
        calls = [ToolCall("look", {"path": "first"}), ToolCall("look", {"path": "second"})]

        self.run(harness, mode, harness.adapter([ScriptTurn(calls=calls), ScriptTurn("Seen.")]), at)

        assert at.outcomes == [("look", "ok")] * 2
        told = harness.texts()
        assert {"seen first", "seen second"} <= set(told)
        if self.orders_results:
            assert told.index("seen first") < told.index("seen second")

    def test_calls_that_write_run_in_their_order(self, harness: AdapterHarness, mode: Mode) -> None:
        """Of two writes to one page the later one wins, and a read between them sees the first (S6)."""
        at = desk()
        calls = [writes("a", "one"), ToolCall("read_note", {"path": "a"}), writes("a", "two")]

        self.run(harness, mode, harness.adapter([ScriptTurn(calls=calls), ScriptTurn("Done.")]), at)

        assert at.files.read("a") == "two"
        assert at.outcomes == [("write_note", "ok"), ("read_note", "ok"), ("write_note", "ok")]
        assert "one" in harness.texts()

    # What goes wrong, and goes on.

    def test_a_denied_call_does_not_run(self, harness: AdapterHarness, mode: Mode) -> None:
        """The model reads the policy's reason word for word, obeys, and gets through (S14)."""
        at = desk({"a": "hello"}, policies=[SequentialDependencyPolicy({"publish": {"read_note"}})])
        publishing = ToolCall("publish", {"path": "a"})
        script = [
            ScriptTurn(calls=[publishing]),
            ScriptTurn(calls=[ToolCall("read_note", {"path": "a"})]),
            ScriptTurn(calls=[publishing]),
            ScriptTurn("Published."),
        ]

        response, _ = self.run(harness, mode, harness.adapter(script), at)

        assert response.text == "Published."
        assert at.outcomes == [("publish", "denied"), ("read_note", "ok"), ("publish", "ok")]
        assert at.session[Page].all() == (Page("a"),)
        assert MISSING in harness.texts(1)

    def test_a_failed_call_leaves_no_trace(self, harness: AdapterHarness, mode: Mode) -> None:
        """Files and state are as before the call, and the model reads why it failed (S5)."""
        at = desk({"a": "kind"})
        adapter = harness.adapter([ScriptTurn(calls=[writes("a", "rude words")]), ScriptTurn("I give up.")])

        self.run(harness, mode, adapter, at)

        assert at.files.read("a") == "kind"
        assert at.session[Note].all() == ()
        assert at.outcomes == [("write_note", "failed")]
        assert REFUSED in harness.texts()

    def test_a_handler_that_breaks_is_told_and_taken_back(self, harness: AdapterHarness, mode: Mode) -> None:
        """An exception that nobody expected ends the call, not the run (S18)."""

        def stumble(params: Page, *, context: ToolContext) -> ToolResult[None]:
            context.session[Page].append(params)
            raise RuntimeError("the ink is dry")

        at = desk(tools=[Tool[Page, None](name="stumble", description="Break.", handler=stumble)])
        script = [ScriptTurn(calls=[ToolCall("stumble", {"path": "a"})]), ScriptTurn("Never mind.")]

        response, _ = self.run(harness, mode, harness.adapter(script), at)

        assert response.text == "Never mind."
        assert at.session[Page].all() == ()
        assert at.outcomes == [("stumble", "failed")]
        assert "Internal error: the ink is dry" in harness.texts()

    def test_a_failure_does_not_touch_its_neighbours(self, harness: AdapterHarness, mode: Mode) -> None:
        """Of three calls in one reply the middle one fails: the others stay, and each gets its own result."""
        at = desk()
        calls = [writes("a"), writes("b", "rude"), writes("c")]

        response, _ = self.run(
            harness, mode, harness.adapter([ScriptTurn(calls=calls), ScriptTurn("Two of three.")]), at
        )

        assert response.text == "Two of three."
        assert sorted(at.files.list()) == ["a", "c"]
        assert [note.path for note in at.session[Note].all()] == ["a", "c"]
        assert at.outcomes == [("write_note", "ok"), ("write_note", "failed"), ("write_note", "ok")]
        told = harness.texts()
        assert told.index("Wrote a.") < told.index(REFUSED) < told.index("Wrote c.")

    def test_an_unknown_tool_is_answered_with_the_known_ones(self, harness: AdapterHarness, mode: Mode) -> None:
        """The model reads which tools there are, the nearest first, and goes on (S10)."""
        at = desk()
        script = [ScriptTurn(calls=[ToolCall("writenote", {"path": "a"})]), ScriptTurn("I see.")]

        response, _ = self.run(harness, mode, harness.adapter(script), at)

        assert response.text == "I see."
        assert at.outcomes == [("writenote", "unknown_tool")]
        assert any("Unknown tool 'writenote'" in text and "write_note" in text for text in harness.texts())

    def test_arguments_that_are_no_json_are_answered(self, harness: AdapterHarness, mode: Mode) -> None:
        """The model reads that its arguments could not be used, and goes on (S11)."""
        at = desk()
        script = [ScriptTurn(calls=[writes("a")], arguments_text='{"path": "a", "te'), ScriptTurn("Sorry.")]

        response, _ = self.run(harness, mode, harness.adapter(script), at)

        assert response.text == "Sorry."
        assert at.outcomes == [("write_note", "invalid_params")]
        assert any("Invalid parameters for tool 'write_note'" in text for text in harness.texts())

    def test_every_wrong_argument_is_named(self, harness: AdapterHarness, mode: Mode) -> None:
        """A wrong type and a missing field are told at once, each by its path (S11)."""
        at = desk()
        script = [ScriptTurn(calls=[ToolCall("write_note", {"path": 7})]), ScriptTurn("Sorry.")]

        self.run(harness, mode, harness.adapter(script), at)

        assert at.outcomes == [("write_note", "invalid_params")]
        told = next(text for text in harness.texts() if "Invalid parameters" in text)
        assert set(json.loads(told)["details"]) == {"path", "text"}

    # The prompt.

    def test_an_opened_section_brings_its_tools(self, harness: AdapterHarness, mode: Mode) -> None:
        """Opening a section ends the evaluation; the next one shows its body and its tools (S21)."""
        folded = MarkdownSection(
            title="Archive",
            key="archive",
            template="Old pages are kept forever.",
            summary="Where old pages are.",
            visibility=SectionVisibility.SUMMARY,
            tools=list(TOOLS),
        )
        at = Desk(PromptTemplate(sections=[folded]))
        opening = ToolCall("open_sections", {"section_keys": ["archive"], "reason": "to write"})
        script = [ScriptTurn(calls=[opening]), ScriptTurn(calls=[writes("a")]), ScriptTurn("Filed.")]
        adapter = harness.adapter(script)

        with pytest.raises(VisibilityExpansionRequired) as caught:
            self.run(harness, mode, adapter, at)
        apply_visibility(at.session, caught.value.requested_overrides)
        response, _ = self.run(harness, mode, adapter, at)

        assert response.text == "Filed."
        assert at.outcomes == [("open_sections", "interrupted"), ("write_note", "ok")]
        assert not any("Old pages are kept forever." in text for text in harness.texts(0))
        assert any("Old pages are kept forever." in text for text in harness.texts(1))

    def test_an_answer_has_the_form_that_was_asked_for(self, harness: AdapterHarness, mode: Mode) -> None:
        """The provider is told the schema, and the answer is parsed into the prompt's type."""
        section = MarkdownSection(title="Notebook", template="Count the pages.", tools=list(TOOLS))
        at = Desk(PromptTemplate[Answer](sections=[section]))

        response, _ = self.run(harness, mode, harness.adapter([ScriptTurn('{"total": 4}')]), at)

        assert response.output == Answer(4)
        assert any("How many pages there are." in text for text in harness.texts())

    def test_an_answer_of_another_form_is_asked_for_again(self, harness: AdapterHarness, mode: Mode) -> None:
        """The model reads what did not fit, and its next answer counts."""
        section = MarkdownSection(title="Notebook", template="Count the pages.")
        at = Desk(PromptTemplate[Answer](sections=[section]))
        adapter = harness.adapter([ScriptTurn('{"total": "four"}'), ScriptTurn('{"total": 4}')])

        response, _ = self.run(harness, mode, adapter, at)

        assert (response.output, response.turns) == (Answer(4), 2)
        assert any("The final answer does not have the form that was asked for" in text for text in harness.texts())

    def test_feedback_comes_behind_the_results(self, harness: AdapterHarness, mode: Mode) -> None:
        """What a guard says after the calls of a turn is in the next request."""

        def too_many(context: GuardContext) -> str | None:
            return "One page is enough." if len(context.session[Note]) > 0 else None

        section = MarkdownSection(title="Notebook", template="Write.", tools=list(TOOLS), feedback=[too_many])
        at = Desk(PromptTemplate(sections=[section]))

        self.run(harness, mode, harness.adapter([ScriptTurn(calls=[writes("a")]), ScriptTurn("I stop.")]), at)

        told = "\n".join(harness.texts())
        assert told.index("Wrote a.") < told.index("One page is enough.")

    def test_a_model_that_ends_too_early_goes_on(self, harness: AdapterHarness, mode: Mode) -> None:
        """What a completion check misses is told, and the answer counts that comes after it."""

        def unwritten(context: GuardContext) -> str | None:
            return "Nothing is written yet." if len(context.session[Note]) == 0 else None

        section = MarkdownSection(title="Notebook", template="Write.", tools=list(TOOLS), completion=[unwritten])
        at = Desk(PromptTemplate(sections=[section]))
        script = [ScriptTurn("Done."), ScriptTurn(calls=[writes("a")]), ScriptTurn("Done now.")]

        response, _ = self.run(harness, mode, harness.adapter(script), at)

        assert (response.text, response.unfinished) == ("Done now.", ())
        assert any("Nothing is written yet." in text for text in harness.texts(1))

    def test_a_step_leaves_the_calls_to_the_caller(self, harness: AdapterHarness) -> None:
        """`stepwise` stops at a call and goes on with its outcome (S47)."""
        at = desk()
        steps = harness.adapter([ScriptTurn(calls=[writes("a")]), ScriptTurn("Done.")]).stepwise()

        with at.prompt.resources:
            first = steps.evaluate(at.prompt, at.session)
            assert first.stop_reason == "tool_use"
            assert [(call.name, dict(call.params)) for call in first.tool_calls] == [
                ("write_note", {"path": "a", "text": "hello"})
            ]
            assert at.outcomes == []
            outcomes = [execute_tool(call, session=at.session) for call in first.tool_calls]
            last = steps.evaluate(at.prompt, at.session, tool_results=outcomes)

        assert (last.text, last.stop_reason) == ("Done.", "end_turn")
        assert "Wrote a." in harness.texts()

    # Streaming.

    @pytest.mark.parametrize("streaming", ["stream", "astream"])
    def test_a_run_is_told_as_it_happens(self, harness: AdapterHarness, streaming: Mode) -> None:
        """Words, the call, its end, words, the answer: in this order."""
        at = desk()
        adapter = harness.adapter([ScriptTurn("Let me write.", [writes("a")]), ScriptTurn("All is well written now.")])

        response, events = self.run(harness, streaming, adapter, at)

        called = next(place for place, event in enumerate(events) if isinstance(event, ToolCalled))
        finished = next(place for place, event in enumerate(events) if isinstance(event, ToolFinished))
        assert _words(events[:called]) == "Let me write."
        assert called < finished
        assert _words(events[finished:]) == response.text == "All is well written now."
        (end,) = [event for event in events if isinstance(event, ToolFinished)]
        assert (end.outcome.text, end.outcome.outcome) == ("Wrote a.", "ok")
        if self.streams_words:
            assert sum(isinstance(event, TextDelta) for event in events[finished:]) > 1

    # Limits.

    def test_a_deadline_ends_the_run_before_the_next_request(self, harness: AdapterHarness, mode: Mode) -> None:
        """The time is used up by a handler: its work stays, and the model is not asked again (S20)."""
        clock = FakeClock()

        def dawdle(params: Page, *, context: ToolContext) -> ToolResult[None]:
            context.session[Page].append(params)
            clock.advance(3600)
            return ToolResult.ok(None, "At last.")

        at = desk(tools=[Tool[Page, None](name="dawdle", description="Take very long.", handler=dawdle)])
        adapter = harness.adapter([ScriptTurn(calls=[ToolCall("dawdle", {"path": "a"})]), ScriptTurn("Too late.")])

        with pytest.raises(DeadlineExceededError):
            self.run(harness, mode, adapter, at, deadline=Deadline.after(600, clock))

        assert at.outcomes == [("dawdle", "ok")]
        assert at.session[Page].all() == (Page("a"),)
        assert len(harness.requests()) == 1

    def test_a_deadline_ends_a_request_that_is_not_answered(self, harness: AdapterHarness, mode: Mode) -> None:
        """A provider that keeps silent is waited for until the deadline, and no longer."""
        adapter = harness.adapter([ScriptTurn(hang=True)])

        with pytest.raises(DeadlineExceededError, match="the model had not replied"):
            self.run(harness, mode, adapter, desk(), deadline=Deadline.after(1))

    def test_a_used_up_budget_ends_the_run_before_the_call(self, harness: AdapterHarness, mode: Mode) -> None:
        """Tokens are counted from the provider's figures; the call they cannot pay for does not run (S20)."""
        at = desk()
        adapter = harness.adapter([ScriptTurn(calls=[writes("a")]), ScriptTurn("Too dear.")])

        with pytest.raises(BudgetExceededError, match="15 of 12 total tokens"):
            self.run(harness, mode, adapter, at, budget=Budget(max_total_tokens=12))

        assert at.outcomes == [("write_note", "budget")]
        assert not at.files.exists("a")
        assert len(harness.requests()) == 1

    # The provider.

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_provider_is_asked_again(self, harness: AdapterHarness, mode: Mode, status: int) -> None:
        """After the time it asked for, and with the same request."""
        at, clock = desk(), FakeClock()
        adapter = harness.adapter([ScriptTurn(status=status, retry_after=7), ScriptTurn("Here I am.")])
        adapter.clock = clock

        response, _ = self.run(harness, mode, adapter, at)

        assert response.text == "Here I am."
        assert clock.monotonic() >= 7
        first, second = harness.requests()
        assert first == second

    def test_a_provider_that_stays_busy_ends_the_run(self, harness: AdapterHarness, mode: Mode) -> None:
        """It is asked as often as the adapter's `Retry` says and no more: the client does not try again by itself."""
        adapter = harness.adapter([ScriptTurn(status=429)] * 3)
        adapter.clock, adapter.retry = FakeClock(), Retry(attempts=2)

        with pytest.raises(ThrottledError):
            self.run(harness, mode, adapter, desk())

        assert len(harness.requests()) == 3

    def test_a_request_that_the_provider_rejects_ends_the_run(self, harness: AdapterHarness, mode: Mode) -> None:
        """What would be rejected again is not sent again, and the caller reads what the provider said."""
        adapter = harness.adapter([ScriptTurn("The request makes no sense.", status=400)])

        with pytest.raises(PromptEvaluationError, match=r"The request makes no sense\.") as caught:
            self.run(harness, mode, adapter, desk())

        assert not isinstance(caught.value, ThrottledError)
        assert len(harness.requests()) == 1

    def test_a_refusal_is_an_end_of_its_own(self, harness: AdapterHarness, mode: Mode) -> None:
        """The words are kept, there is no output, and nobody asks for another form."""
        section = MarkdownSection(title="Notebook", template="Count the pages.")
        at = Desk(PromptTemplate[Answer](sections=[section]))

        response, _ = self.run(
            harness, mode, harness.adapter([ScriptTurn("I cannot help with that.", refusal=True)]), at
        )

        assert (response.stop_reason, response.output) == ("refusal", None)
        assert response.text == "I cannot help with that."
        assert len(harness.requests()) == 1

    def test_an_answer_that_was_cut_off_says_so(self, harness: AdapterHarness, mode: Mode) -> None:
        """Whoever reads it can tell that it is not whole."""
        response, _ = self.run(harness, mode, harness.adapter([ScriptTurn("Once upon a", cut=True)]), desk())

        assert (response.text, response.stop_reason) == ("Once upon a", "max_tokens")


def _words(events: Sequence[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
