"""Durable sessions to look at: steps with their differences, state at any position, copies, and calls made again."""

from __future__ import annotations

from .comparison import Line, compare
from .recording import Recording, SliceState, State, origin_of
from .rerun import Again, Difference, Rerun
from .step import FileChange, ItemChange, Row, SliceChange, Step

__all__ = [
    "Again",
    "Difference",
    "FileChange",
    "ItemChange",
    "Line",
    "Recording",
    "Rerun",
    "Row",
    "SliceChange",
    "SliceState",
    "State",
    "Step",
    "compare",
    "origin_of",
]
