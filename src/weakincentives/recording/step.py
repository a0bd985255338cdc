"""One step of a recorded session: what happened, what it changed, and what of it is not known."""

from __future__ import annotations

from typing import Any

from ..frozen import frozen
from .comparison import Line, compare
from .plain import shown

TAKEN_BACK = frozenset({"failed", "timeout", "cancelled", "interrupted", "deadline", "budget"})
"""Outcomes after which nothing of a call is kept."""


@frozen
class ItemChange:
    """One item of a slice: added (nothing before), removed (nothing after), or another in its place."""

    before: Any = None
    after: Any = None
    change: str = "added"
    """added, removed, changed; or updated, when only a delta is stored."""

    def lines(self) -> tuple[Line, ...]:
        return compare(
            "" if self.change in ("added", "updated") else shown(self.before),
            "" if self.change == "removed" else shown(self.after),
        )


@frozen
class SliceChange:
    """What a step did to one slice."""

    slice: str
    """Name of the class."""
    type_name: str
    items: tuple[ItemChange, ...]
    left_out: int
    """Changes that are not among `items`, because there are too many."""

    def as_json(self) -> dict[str, Any]:
        return {
            "slice": self.slice,
            "type": self.type_name,
            "items": [{"change": one.change, "before": one.before, "after": one.after} for one in self.items],
            "left_out": self.left_out,
        }


@frozen
class FileChange:
    """What a step did to one file."""

    attached: str
    """The name the files are attached under."""
    path: str
    change: str
    """created, changed, deleted."""
    before: str | None
    """None where there was no file, or one that is no text."""
    after: str | None
    note: str = ""
    """Why there is no text to show."""

    def lines(self) -> tuple[Line, ...]:
        return () if self.note else compare(self.before or "", self.after or "")

    def as_json(self) -> dict[str, Any]:
        return {
            "files": self.attached,
            "path": self.path,
            "change": self.change,
            "diff": [str(line) for line in self.lines()],
            "note": self.note,
        }


@frozen
class Row:
    """A step in a list: what can be told without comparing anything."""

    position: int
    """How many operations of the session were committed with it: what `session.at` and `fork` take."""
    kind: str
    call: int = 0
    """The how-manieth call it is; 0 for other steps."""
    call_id: str = ""
    tool: str = ""
    outcome: str = ""
    policy: str = ""
    """The policy that denied the call."""
    text: str = ""
    """What the model read; of other steps, what they are."""
    timestamp: float | None = None
    seconds: float | None = None
    taken_back_by: int = 0
    """The position of the rollback that took the call back with others."""
    slices: tuple[str, ...] = ()
    """Names of slices it changed."""
    files: tuple[str, ...] = ()

    @property
    def rolled_back(self) -> bool:
        """Whether nothing of it is kept although it may have begun."""
        return self.outcome in TAKEN_BACK or bool(self.taken_back_by)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"position": self.position, "kind": self.kind}
        if self.kind == "call":
            told |= {
                "call": self.call,
                "call_id": self.call_id,
                "tool": self.tool,
                "outcome": self.outcome,
                "policy": self.policy or None,
                "rolled_back": self.rolled_back,
                "rolled_back_by": self.taken_back_by or None,
                "timestamp": self.timestamp,
                "seconds": self.seconds,
            }
        return told | {"text": self.text, "slices": list(self.slices), "files": list(self.files)}


@frozen
class Step:
    """One step in full."""

    row: Row
    params: Any
    result: Any
    text: str
    """All that the model read."""
    run: Any
    """Which run, request and attempt it belongs to, if that was recorded."""
    slices: tuple[SliceChange, ...]
    files: tuple[FileChange, ...]
    notes: tuple[str, ...]
    """What is not in the file, and why."""

    @property
    def decision(self) -> str:
        """What the policies said of the call."""
        if self.row.kind != "call" or self.row.outcome in ("unknown_tool", "invalid_params"):
            return ""
        if self.row.outcome in ("denied", "pending"):
            return f"{'asks for approval' if self.row.outcome == 'pending' else 'denied'} by {self.row.policy}"
        return "allowed"

    def as_json(self) -> dict[str, Any]:
        told = self.row.as_json()
        if self.row.kind == "call":
            told |= {"params": self.params, "decision": self.decision, "result": self.result, "run": self.run}
        return told | {
            "text": self.text,
            "changes": {
                "slices": [one.as_json() for one in self.slices],
                "files": [one.as_json() for one in self.files],
            },
            "notes": list(self.notes),
        }
