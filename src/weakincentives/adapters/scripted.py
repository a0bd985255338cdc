"""A model that says what it was told to: the public test double for everything that talks to a model.

Decides nothing but the next turn of its script. Never forgives: a script that is too short fails at once, one that is
too long fails at the end of the block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, cast

from ..errors import PromptEvaluationError
from ..runtime import ToolCall
from .core import Message, ModelReply, ProviderAdapter, Turn

Line = str | ToolCall | Sequence[ToolCall] | ModelReply
"""What the model says in one turn: its answer, a call or several, or a whole reply with usage and stop reason."""
ScriptedTurn = Line | Callable[[Sequence[Message]], Line]


class ScriptError(PromptEvaluationError, AssertionError):
    """The run and the script do not fit. Passes through the pipeline, so that a sub-agent's script fails the run too."""


class ScriptedAdapter(ProviderAdapter):
    """Plays its turns in order, over all evaluations it serves.

    A turn is a string (the answer), a `ToolCall`, a list of them, a `ModelReply`, or a function of the messages so far
    that returns one of these. As a context manager it fails when turns are left over.
    """

    def __init__(
        self, turns: Iterable[ScriptedTurn], *, max_turns: int | None = None, max_output_retries: int = 2
    ) -> None:
        super().__init__(max_turns=max_turns, max_output_retries=max_output_retries)
        if isinstance(turns, str):
            raise TypeError("turns is a list of turns, got text. Put it into a list: ScriptedAdapter([text]).")
        self._left = deque(turns)
        self._said = 0
        self.last_turn: Turn | None = None
        """What the model was sent last: messages, tools, schema."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation it was last asked in, the prompt first; it goes on growing until that ends."""
        return () if self.last_turn is None else self.last_turn.messages

    def send(self, turn: Turn) -> ModelReply:
        self.last_turn = turn
        try:
            said = self._left.popleft()
        except IndexError:
            raise ScriptError(
                f"The script is over: the model was asked for turn {self._said + 1}, and the script has {self._said}. "
                f"It was last told: {_shortened(turn.messages[-1].text)}"
            ) from None
        self._said += 1
        if callable(said):
            said = said(turn.messages)
        return self._reply(said)

    async def asend(self, turn: Turn) -> ModelReply:
        return self.send(turn)

    def assert_done(self) -> None:
        """Fail when turns are left over."""
        if self._left:
            raise ScriptError(
                f"{len(self._left)} of {self._said + len(self._left)} turns were not used. "
                f"The next would have been: {_shortened(repr(self._left[0]))}"
            )

    def __repr__(self) -> str:
        return f"<ScriptedAdapter: turn {self._said} of {self._said + len(self._left)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            self.assert_done()

    def _reply(self, said: object) -> ModelReply:
        match said:
            case str():
                return ModelReply(said)
            case ToolCall():
                return ModelReply("", (said,))
            case ModelReply():
                return said
            case list() | tuple() if all(isinstance(call, ToolCall) for call in cast("Sequence[Any]", said)):
                return ModelReply("", tuple(cast("Sequence[ToolCall]", said)))
            case _:
                raise ScriptError(
                    f"Turn {self._said} of the script is {_shortened(repr(said))}. "
                    "Use a string, a ToolCall, a list of them, a ModelReply, or a function that returns one of these."
                )


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
