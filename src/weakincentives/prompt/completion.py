"""Completion: whether the task is done when the model wants to end its turn.

Decides what is recorded of a check and the words that send the model back to work. A guard that is declared as a
completion check objects by saying what is missing; None means that it is content.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..frozen import frozen
from ..session import log_slice


@log_slice
@frozen
class CompletionChecked:
    """The model wanted to end and the completion checks were asked."""

    complete: bool
    missing: tuple[str, ...]
    """What the checks said is missing."""
    failures: tuple[str, ...]
    """Checks that raised: nobody knows whether they would have objected."""
    reminded: bool
    """Whether the model was told and went on; otherwise its answer was taken."""
    turn: int
    """How often the model had been asked by then."""
    timestamp: float
    session_id: str


def reminder(missing: Sequence[str]) -> str:
    """What the model reads when it wanted to end too early."""
    listed = "\n".join(f"- {text}" for text in missing)
    return (
        f"The task is not complete:\n{listed}\n\n"
        "Do what is missing, then give your final answer again. If it cannot be done, say in the answer what and why."
    )
