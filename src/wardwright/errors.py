"""The exception tree of the gateway. Each class carries its HTTP status and a stable code.

WardwrightError                              500 internal_error
├── ConfigError(ValueError)                  a file cannot be activated; holds every problem with line and column
├── WireError(ValueError)                    400 invalid_request      a body we cannot read or must not pass unseen
│   ├── ToolNameCollision                    400 tool_name_collision
│   └── TurnTooLarge                         400 turn_too_large       more items than are judged at once
├── GovernanceUnavailable(RuntimeError)      503 governance_unavailable   the engine or the store failed: closed
│   └── StoreUnavailable
├── ProviderFailed(RuntimeError)             502, 503, 504, or what the provider answered   upstream_error
├── VersionConflict(RuntimeError)            another writer committed first; load and govern again
└── SealedMissing(LookupError)               410 sealed_missing       a sealed row has expired or was used
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias


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


FailureKind: TypeAlias = Literal["connect", "timeout", "status", "broken", "open", "busy"]
"""connect: no connection could be made
timeout: nothing came in time
status: the provider answered with an error
broken: the answer broke off, or is no answer we can read
open: the circuit breaker holds requests back
busy: all our connections to it are in use"""

_FAILURE_STATUS: Final[Mapping[FailureKind, int]] = {
    "connect": 502,
    "timeout": 504,
    "status": 502,
    "broken": 502,
    "open": 503,
    "busy": 503,
}


class ProviderFailed(WardwrightError, RuntimeError):
    """A provider gave no answer that can be used. The message holds no secret and can be told to a caller."""

    code: ClassVar[str] = "upstream_error"

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        retryable: bool = True,
        repeatable: bool | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.status: int = _FAILURE_STATUS[kind] if status is None else status  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the provider answered, if it answered; else 502, 503 or 504."""
        self.retry_after = retry_after
        """Seconds that the provider asks to wait."""
        self.retryable = retryable
        """Another target may do better; false when the request itself was refused."""
        self.repeatable = kind in ("connect", "broken") if repeatable is None else repeatable
        """The same request may do better at the same place, soon."""
        self.reason = reason
        """The provider's own word for the error (`context_length_exceeded`, `overloaded_error` …), if it has one."""


class VersionConflict(WardwrightError, RuntimeError):
    """Another writer committed first: load again and govern again."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "governance_unavailable"


class SealedMissing(WardwrightError, LookupError):
    """A sealed row has expired, was used, or never existed."""

    status: ClassVar[int] = 410
    code: ClassVar[str] = "sealed_missing"


def raised_at(error: BaseException) -> str:
    """File and line where it, or what caused it, was raised: for logs that must not repeat what an error says."""
    while error.__cause__ is not None:
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
