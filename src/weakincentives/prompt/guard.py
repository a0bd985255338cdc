"""What a guard is: a function that looks at a run and says in words what is wrong with it, or nothing.

Decides what a guard is shown and under which name it is known. The same function may speak up while the model works
(`feedback`) and when it wants to end (`completion`). Never asks a guard: that is the loop's part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..errors import PromptValidationError
from .tool_context import ToolContext


class GuardContext(ToolContext):
    """What a guard sees: the surroundings of the run's tool calls, read-only, and how far the run has come."""

    turns: int = 0
    """How often the model was asked."""
    calls: int = 0
    """How many calls the run has made."""
    idle_calls: int = 0
    """How many calls it made since the last one that changed a slice or a file."""
    failed_calls: int = 0
    """How many calls failed in a row, up to the last one."""
    elapsed: float = 0.0
    """Seconds since the run began."""
    outcomes: Sequence[Any] = ()
    """How the calls of the last turn ended: `ToolOutcome` each."""
    answer: str = ""
    """The model's final answer, when it wants to end; else empty."""
    output: Any = None
    """The answer as the type the prompt asks for, if it asks for one."""


Guard = Callable[[GuardContext], "str | Awaitable[str | None] | None"]
"""Says what is wrong, in words that tell the model what to do about it; None when there is nothing to say."""


def name_of(guard: object) -> str:
    """What logs and events call it: its `name`, else the function's or the class's."""
    name: object = getattr(guard, "name", None) or getattr(guard, "__name__", None)
    return name if isinstance(name, str) else type(guard).__name__


def refuse_non_guard(guard: object, called: str, word: str) -> None:
    if isinstance(guard, type) or not callable(guard):
        shown = f"the class {guard.__name__}" if isinstance(guard, type) else type(guard).__name__
        raise PromptValidationError(
            f"{called}: {word}= takes functions of a GuardContext that return text or None, got {shown}."
        )
