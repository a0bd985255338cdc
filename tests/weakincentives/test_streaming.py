"""Runs as they happen, and providers that are too busy: `stream`, `astream`, `Retry`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from weakincentives.adapters import (
    Answered,
    ModelReply,
    ProviderAdapter,
    Retry,
    ScriptedAdapter,
    TextDelta,
    ToolCalled,
    ToolFinished,
    Turn,
)
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, ToolInvoked


@dataclass(frozen=True)
class Word:
    text: str


def note(params: Word, *, context: ToolContext) -> ToolResult[str]:
    """Keep a word."""
    context.session[Word].append(params)
    return ToolResult.ok(params.text, "kept")


def make_prompt() -> Prompt[None]:
    section = MarkdownSection(title="Task", template="Keep words.", tools=[Tool.wrap(note)])
    return Prompt(PromptTemplate(sections=[section]))


class SpeakingAdapter(ProviderAdapter):
    """Says its pieces one by one, if somebody listens."""

    def __init__(self, *turns: list[str] | ToolCall) -> None:
        super().__init__()
        self._turns = iter(turns)

    def send(self, turn: Turn) -> ModelReply:
        said = next(self._turns)
        if isinstance(said, ToolCall):
            return ModelReply("", (said,))
        for piece in said:
            if turn.say is not None:
                turn.say(piece)
        return ModelReply("".join(said))


class BusyAdapter(ProviderAdapter):
    """Throttled a number of times, then answers."""

    def __init__(self, times: int, retry_after: float | None = None, *, speak: bool = False, **limits: object) -> None:
        super().__init__(**limits)  # pyright: ignore[reportArgumentType]
        self.asked = 0
        self._times = times
        self._retry_after = retry_after
        self._speak = speak

    def send(self, turn: Turn) -> ModelReply:
        self.asked += 1
        if self._speak and turn.say is not None:
            turn.say("Well")
        if self.asked <= self._times:
            raise ThrottledError("too many requests", self._retry_after)
        return ModelReply("done")


def words(events: list[object]) -> list[object]:
    return [
        event.text
        if isinstance(event, TextDelta)
        else event.call.name
        if isinstance(event, ToolCalled)
        else event.outcome.success
        if isinstance(event, ToolFinished)
        else "answered"
        for event in events
    ]


def test_a_stream_tells_words_calls_and_results_in_order_and_the_answer_last() -> None:
    """What happens is told as it happens."""
    adapter = SpeakingAdapter(ToolCall("note", {"text": "a"}), ["al", "l ", "done"])

    events = list(adapter.stream(make_prompt(), Session()))

    assert words(list(events)) == ["note", True, "al", "l ", "done", "answered"]
    assert isinstance(events[-1], Answered)
    assert events[-1].response.text == "all done"


def test_an_async_stream_tells_the_same() -> None:
    """`astream` and `stream` differ only in how they wait."""

    async def collect() -> list[object]:
        adapter = SpeakingAdapter(ToolCall("note", {"text": "a"}), ["al", "l ", "done"])
        return [event async for event in adapter.astream(make_prompt(), Session())]

    assert words(asyncio.run(collect())) == ["note", True, "al", "l ", "done", "answered"]


def test_a_model_that_does_not_stream_says_its_text_in_one_piece() -> None:
    """A listener hears every model."""
    events = list(ScriptedAdapter(["all done"]).stream(make_prompt(), Session()))

    assert words(list(events)) == ["all done", "answered"]


def test_an_error_of_the_run_is_raised_to_the_listener() -> None:
    """A stream does not swallow what ended it."""
    with pytest.raises(PromptEvaluationError, match="within 1 turns"):
        list(ScriptedAdapter([ToolCall("note", {"text": "a"})] * 2, max_turns=1).stream(make_prompt(), Session()))


def test_a_closed_stream_runs_no_further_call() -> None:
    """Whoever stops listening has stopped the run."""
    session = Session()
    calls = [ToolCall("note", {"text": text}) for text in ("a", "b", "c")]
    stream = ScriptedAdapter([*calls, "done"]).stream(make_prompt(), session)

    for event in stream:
        if isinstance(event, ToolFinished):
            break
    stream.close()

    assert session[Word].all() == (Word("a"),)


def test_calls_that_were_told_and_not_begun_are_recorded() -> None:
    """S2: whoever leaves before a call begins finds it in the record, as cancelled."""
    session = Session()
    calls = [ToolCall("note", {"text": text}) for text in ("a", "b")]
    stream = ScriptedAdapter([calls, "done"]).stream(make_prompt(), session)

    assert isinstance(next(stream), ToolCalled)
    stream.close()

    assert session[Word].all() == ()
    assert [(event.outcome, event.rendered_output) for event in session[ToolInvoked].all()] == [
        ("cancelled", "The call was not started: nobody listens any more.")
    ] * 2


def test_words_of_a_thread_are_heard_before_what_follows_them() -> None:
    """A client that is done before the loop has heard its words loses none of them."""

    class Hasty(SpeakingAdapter):
        async def asend(self, turn: Turn) -> ModelReply:
            replies: list[ModelReply] = []
            thread = threading.Thread(target=lambda: replies.append(self.send(turn)))
            thread.start()
            thread.join()
            return replies[0]

    async def collect() -> list[object]:
        adapter = Hasty(["al", "l ", "done"])
        return [event async for event in adapter.astream(make_prompt(), Session())]

    assert words(asyncio.run(collect())) == ["al", "l ", "done", "answered"]


def test_a_client_that_is_left_behind_is_stopped_at_its_next_word() -> None:
    """Closing an async stream does not wait for a sync client, and does not let it read to the end."""
    closed, left = threading.Event(), threading.Event()

    class Endless(ProviderAdapter):
        def send(self, turn: Turn) -> ModelReply:
            assert turn.say is not None
            turn.say("well")
            assert closed.wait(10)
            try:
                while True:
                    turn.say("er")
            finally:
                left.set()

    async def leave() -> None:
        stream = Endless().astream(make_prompt(), Session())
        assert await anext(stream) == TextDelta("well")
        await stream.aclose()
        closed.set()

    asyncio.run(leave())

    assert left.wait(10)


def test_a_closed_async_stream_cancels_the_run() -> None:
    """The same on a loop."""
    session = Session()
    calls = [ToolCall("note", {"text": text}) for text in ("a", "b", "c")]

    async def listen() -> None:
        stream = ScriptedAdapter([*calls, "done"]).astream(make_prompt(), session)
        async for event in stream:
            if isinstance(event, ToolCalled):
                break
        await stream.aclose()

    asyncio.run(listen())

    kept = tuple(Word(event.params.text) for event in session[ToolInvoked].all() if event.success)
    assert session[Word].all() == kept
    assert len(kept) < 3


@pytest.mark.parametrize("run", [lambda a, p, s: a.evaluate(p, s), lambda a, p, s: asyncio.run(a.aevaluate(p, s))])
def test_a_busy_provider_is_asked_again_after_a_while(
    run: Callable[[ProviderAdapter, Prompt[None], Session], object],
) -> None:
    """Throttling is waited out, longer each time."""
    clock = FakeClock()
    adapter = BusyAdapter(2, clock=clock, retry=Retry(attempts=3, first=1, longest=60))

    response = run(adapter, make_prompt(), Session())

    assert (adapter.asked, getattr(response, "text", "")) == (3, "done")
    assert 1.5 <= clock.monotonic() <= 3


@pytest.mark.parametrize("name", ["attempts", "first", "longest"])
def test_waits_below_zero_are_refused(name: str) -> None:
    """When they are written down, not when a provider is busy."""
    with pytest.raises(ValueError, match=rf"^Retry\.{name} must be 0 or more, got -1\.$"):
        Retry(**{name: -1})


def test_a_provider_gets_the_wait_it_asks_for() -> None:
    """`retry_after` is the least that is waited."""
    clock = FakeClock()

    BusyAdapter(1, 17.0, clock=clock).evaluate(make_prompt(), Session())

    assert clock.monotonic() == 17.0


@pytest.mark.parametrize(
    ("adapter", "asked"),
    [
        (BusyAdapter(9, clock=FakeClock(), retry=Retry(attempts=2)), 3),
        (BusyAdapter(9, 3600.0, clock=FakeClock()), 1),
        (BusyAdapter(9, clock=FakeClock(), retry=Retry(attempts=0)), 1),
    ],
    ids=["too often", "asks for too long", "never again"],
)
def test_a_provider_that_stays_busy_ends_the_run(adapter: BusyAdapter, asked: int) -> None:
    """The last word of the provider is raised."""
    with pytest.raises(ThrottledError, match="too many requests"):
        adapter.evaluate(make_prompt(), Session())

    assert adapter.asked == asked


def test_a_wait_that_would_miss_the_deadline_is_not_begun() -> None:
    """Better a clear error now than a late one."""
    clock = FakeClock()
    adapter = BusyAdapter(1, 30.0, clock=clock)

    with pytest.raises(ThrottledError):
        adapter.evaluate(make_prompt(), Session(), deadline=Deadline.after(10, clock=clock))

    assert clock.monotonic() == 0


def test_a_turn_that_was_heard_in_part_is_not_asked_again() -> None:
    """Nobody hears the same words twice."""
    adapter = BusyAdapter(1, clock=FakeClock(), speak=True)

    with pytest.raises(ThrottledError):
        list(adapter.stream(make_prompt(), Session()))

    assert adapter.asked == 1
