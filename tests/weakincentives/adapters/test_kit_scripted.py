"""The scripted model passes what every adapter must pass; it has no wire, so it shows what the kit itself asks for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, ProviderAdapter, ScriptedAdapter, StopReason, Turn
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.runtime import ToolCall
from weakincentives.testing.adapter_kit import AdapterConformance, AdapterHarness, ScriptTurn


class RecordingAdapter(ScriptedAdapter):
    """Keeps what it was sent at each turn, in the form of the kit's raw requests."""

    def __init__(self, script: Sequence[ScriptTurn], released: threading.Event) -> None:
        super().__init__([silent(released) if turn.hang else said(turn) for turn in script], max_turns=100)
        self.requests: list[Mapping[str, Any]] = []

    def send(self, turn: Turn) -> ModelReply:
        self.requests.append(
            {
                "messages": [(message.role, message.text) for message in turn.messages],
                "tools": turn.tool_specs,
                "schema": turn.output_schema,
            }
        )
        return super().send(turn)

    async def asend(self, turn: Turn) -> ModelReply:
        return await ProviderAdapter.asend(self, turn)  # on a thread: a silent turn must not stop the event loop


def said(turn: ScriptTurn) -> Any:
    """A turn of the kit as a turn of the script."""
    if turn.status == 400:
        return raising(PromptEvaluationError(turn.text))
    if turn.status != 200:
        return raising(ThrottledError("busy", turn.retry_after))
    calls = [ToolCall(call.name, turn.arguments_of(call), call.call_id) for call in turn.calls]
    reason: StopReason | None = "refusal" if turn.refusal else "max_tokens" if turn.cut else None
    return ModelReply(turn.text, calls, reason, turn.usage)


def raising(error: Exception) -> Any:
    def raise_it(messages: Sequence[Message]) -> str:
        raise error

    return raise_it


def silent(released: threading.Event) -> Any:
    def wait(messages: Sequence[Message]) -> str:
        released.wait()
        return "Nobody listens any more."

    return wait


class ScriptedHarness(AdapterHarness):
    def __init__(self) -> None:
        self.made: RecordingAdapter | None = None
        self.released = threading.Event()

    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        self.made = RecordingAdapter(script, self.released)
        return self.made

    def requests(self) -> Sequence[Mapping[str, Any]]:
        assert self.made is not None
        return self.made.requests


class TestScripted(AdapterConformance):
    streams_words = False

    @pytest.fixture
    def harness(self) -> Iterator[ScriptedHarness]:
        harness = ScriptedHarness()
        yield harness
        harness.released.set()


@pytest.mark.parametrize("text", ["", " ", "one", "one two", "  one\n two "])
def test_the_pieces_of_a_turn_are_its_text(text: str) -> None:
    """A double that streams them says the same as one that does not."""
    assert "".join(ScriptTurn(text).pieces) == text
    assert len(ScriptTurn(text).pieces) == max(len(re.findall(r"\S+", text)), bool(text))
