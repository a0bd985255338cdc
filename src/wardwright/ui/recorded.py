"""A recorded session of the tool runtime, as a page shows it: badges, and texts that are not longer than anybody reads.

Pure. What a file holds was written by a model or a stranger: it is shortened here and escaped by the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wardwright.ui.words import Badge
from weakincentives.recording import FileChange, Line, Row, SliceChange, SliceState, Step
from weakincentives.recording.plain import shown

MOST_LINES: Final = 400
LONGEST: Final = 20_000
ITEMS: Final = 20

_CLASSES: Final = {"+": "put", "-": "cut", "@": "gap"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A text, and what of it is left out."""

    text: str
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class DiffLine:
    kind: str
    """put, cut, gap, or nothing for what stayed."""
    mark: str
    """For those who do not see colours."""
    text: str


@dataclass(frozen=True, slots=True)
class Diff:
    """One item or file, before and after."""

    title: str
    badge: Badge
    lines: tuple[DiffLine, ...]
    note: str = ""


def badge(row: Row) -> Badge:
    """How a step ended, in a word."""
    if row.kind != "call":
        return Badge(row.kind, "warn" if row.kind == "rollback" else "note")
    if row.taken_back_by:
        return Badge("taken back", "warn")
    if row.rolled_back:
        return Badge(f"{row.outcome}, rolled back", "warn")
    if row.outcome in ("ok", "pending"):
        return Badge(row.outcome, "good" if row.outcome == "ok" else "warn")
    return Badge(row.outcome or "unreadable", "bad")


def shortened(value: Any) -> Shown:
    """Text as it is, other values as JSON; the beginning, if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) <= LONGEST:
        return Shown(text)
    return Shown(text[:LONGEST], f"{len(text) - LONGEST:,} more characters; wink inspect shows all of them")


def slice_diffs(change: SliceChange) -> tuple[Diff, ...]:
    found: list[Diff] = []
    for item in change.items[:ITEMS]:
        tone = "good" if item.change == "added" else "bad" if item.change == "removed" else "note"
        found.append(_diff(change.slice, Badge(item.change, tone), item.lines()))
    more = change.left_out + len(change.items) - len(found)
    if more:
        found.append(Diff(change.slice, Badge("more", "note"), (), f"and {more:,} more changed items"))
    return tuple(found)


def file_diff(change: FileChange) -> Diff:
    tone = "good" if change.change == "created" else "bad" if change.change == "deleted" else "note"
    return _diff(f"{change.attached}: {change.path}", Badge(change.change, tone), change.lines(), change.note)


def step_diffs(step: Step) -> tuple[Diff, ...]:
    """Everything that a step changed."""
    found = [diff for change in step.slices for diff in slice_diffs(change)]
    found += (file_diff(change) for change in step.files[:ITEMS])
    if len(step.files) > ITEMS:
        found.append(Diff("Files", Badge("more", "note"), (), f"and {len(step.files) - ITEMS:,} more changed files"))
    return tuple(found)


def items(state: SliceState) -> Sequence[Shown]:
    return [shortened(shown(item)) for item in state.items]


def _diff(title: str, about: Badge, lines: Iterable[Line], note: str = "") -> Diff:
    made: list[DiffLine] = []
    room = LONGEST
    for line in lines:
        if len(made) == MOST_LINES or room <= 0:
            made.append(DiffLine("gap", "@", " the rest is not shown; wink inspect shows all of it"))
            break
        text = line.text[:room]
        room -= len(text)
        made.append(DiffLine(_CLASSES.get(line.mark, ""), line.mark, text))
    return Diff(title, about, tuple(made), note)
