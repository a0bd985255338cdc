"""What an evaluation may use and what comes of it, the same for every engine.

Decides the limits, the words for each way to end, and how text is cut. Never runs anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Literal

from ...frozen import frozen

Ending = Literal[
    "error",  # the code raised, or is not valid
    "refused",  # the code asked for something that does not exist here
    "time",  # it ran too long
    "memory",  # it wanted too much memory
    "steps",  # it did too much
    "files",  # it used files too much
    "crash",  # the interpreter died
]


@frozen
class EvaluationLimits:
    """How much one evaluation may use. Whatever is used up ends the evaluation; the code cannot catch it."""

    seconds: float = 5.0
    """Running time; less when the deadline of the run is nearer."""
    memory_bytes: int = 64 * 1024 * 1024
    """What the code's own data may take."""
    recursion: int = 200
    """Depth of function calls."""
    steps: int = 2_000_000
    """Nodes of the code that may be visited; engine "asteval" only."""
    code_chars: int = 50_000
    output_chars: int = 20_000
    """What is kept of the printed text; the rest is counted and dropped."""
    value_chars: int = 4_000
    """What is kept of the value's text."""
    file_operations: int = 500
    file_bytes: int = 16 * 1024 * 1024
    """Read and written together."""

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            amount: object = getattr(self, name)
            kinds = (int, float) if name == "seconds" else (int,)
            if isinstance(amount, bool) or not isinstance(amount, kinds) or not 0 < amount < float("inf"):
                raise ValueError(f"EvaluationLimits: {name} must be a positive number, got {amount!r}.")


@frozen
class Failure:
    """Why an evaluation did not come to its end."""

    ending: Ending
    reason: str
    """One line, such as `ZeroDivisionError: division by zero`."""
    trace: tuple[str, ...] = ()
    """Lines of the code it happened in, outermost first; never a place outside the code."""


@frozen
class Evaluation:
    """What came of it. All text: nothing the code made is ever an object here."""

    value: str | None
    """The last expression as Python shows it, or None when there was none or it was None."""
    output: str
    failure: Failure | None = None


class Output:
    """Printed text, kept up to a limit and only counted beyond it."""

    __slots__ = ("_kept", "_limit", "_parts", "_total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._kept = 0
        self._total = 0

    def add(self, text: str) -> None:
        self._total += len(text)
        room = self._limit - self._kept
        if room > 0:
            self._parts.append(text[:room])
            self._kept += min(room, len(text))

    def text(self) -> str:
        kept = "".join(self._parts)
        if self._total <= self._limit:
            return kept
        return f"{kept}\n[Output cut: the first {self._kept} of {self._total} characters are shown. Print less.]"


def cut(text: str, limit: int, whole: int | None = None) -> str:
    """At most `limit` characters, and a note when there were more."""
    total = len(text) if whole is None else whole
    if total <= limit:
        return text
    return f"{text[:limit]}… [cut: {limit} of {total} characters are shown]"


def one_line(text: str, limit: int = 500) -> str:
    """The reason of a failure on one line that does not flood the model."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[:limit]}…"


def traced(code: str, places: Sequence[tuple[int, str | None]]) -> tuple[str, ...]:
    """Lines for the frames (line number, function) that are in the code; only the ends of a long chain."""
    lines = code.splitlines()
    shown: list[str] = []
    for number, function in places:
        if 1 <= number <= len(lines):
            where = f"line {number}" if function is None else f"line {number}, in {function}"
            shown.append(f"{where}: {one_line(lines[number - 1], 200)}")
    if len(shown) > 8:
        shown[4:-4] = [f"({len(shown) - 8} more)"]
    return tuple(shown)
