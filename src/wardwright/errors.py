"""The exception tree of the gateway. Each class carries its HTTP status and a stable code.

WardwrightError                              500 internal_error
├── ConfigError(ValueError)                  a file cannot be activated; holds every problem with line and column
├── WireError(ValueError)                    400 invalid_request      a body we cannot read or must not pass unseen
│   ├── ToolNameCollision                    400 tool_name_collision
│   └── TurnTooLarge                         400 turn_too_large       more items than are judged at once
├── GovernanceUnavailable(RuntimeError)      503 governance_unavailable   the engine or the store failed: closed
│   └── StoreUnavailable
├── VersionConflict(RuntimeError)            another writer committed first; load and govern again
└── SealedMissing(LookupError)               410 sealed_missing       a sealed row has expired or was used
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal


class WardwrightError(Exception):
    """Root of everything this package raises on purpose."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong (or odd) in a file, and where."""

    file: str
    line: int
    column: int
    path: str
    """Dotted path in the file, `$` for the whole document."""
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}"


class ConfigError(WardwrightError, ValueError):
    """A file cannot be activated. Holds all problems, in file order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: tuple[Problem, ...] = tuple(problems)


class WireError(WardwrightError, ValueError):
    """A body we cannot read, or that holds something we must not pass unseen."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"


class ToolNameCollision(WireError):
    """Two declared tools have names that are equal after Unicode folding."""

    code: ClassVar[str] = "tool_name_collision"


class TurnTooLarge(WireError):
    """A transcript or a reply with more items than are judged at once. Nothing of it passes."""

    code: ClassVar[str] = "turn_too_large"


class GovernanceUnavailable(WardwrightError, RuntimeError):
    """The engine cannot rule, so nothing passes."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "governance_unavailable"


class StoreUnavailable(GovernanceUnavailable):
    """The store cannot be read or written."""


class VersionConflict(WardwrightError, RuntimeError):
    """Another writer committed first: load again and govern again."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "governance_unavailable"


class SealedMissing(WardwrightError, LookupError):
    """A sealed row has expired, was used, or never existed."""

    status: ClassVar[int] = 410
    code: ClassVar[str] = "sealed_missing"
