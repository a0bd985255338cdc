"""The exception tree of the runtime. A domain error also is the builtin one would expect.

WinkError
├── PromptValidationError(ValueError)       a prompt, section, tool or policy was built wrongly
├── ToolValidationError(ValueError)         a handler refuses its arguments; the model reads the message
├── PromptEvaluationError(RuntimeError)     the run cannot go on; passes through the pipeline unchanged
│   ├── DeadlineExceededError(TimeoutError)
│   └── BudgetExceededError
├── VisibilityExpansionRequired             the model asked to open sections; the loop renders again
├── TransactionError(RuntimeError)
│   ├── FencedWriteError                    a write by a call whose transaction has ended
│   ├── ReadOnlyError(PermissionError)      a write by a call declared effects="none"
│   └── WouldDeadlockError                  blocking on a writer that needs this very thread
├── RollbackError(ExceptionGroup)           restoring failed; the session refuses further writes
├── ApprovalError(ValueError)               no such call waits for approval, or it cannot go on from here
├── ResourceError(RuntimeError)             a resource cannot be built, found or closed
├── FilesystemError(OSError)                see filesystem.errors for its members
└── SessionStorageError(RuntimeError)       a durable session cannot be opened or written
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class WinkError(Exception):
    """Root of everything this package raises on purpose."""


class PromptValidationError(WinkError, ValueError):
    """A prompt, section, tool or policy was built wrongly."""


class ToolValidationError(WinkError, ValueError):
    """A handler refuses its arguments; the model reads the message as it is."""


class PromptEvaluationError(WinkError, RuntimeError):
    """The run cannot go on; passes through the pipeline unchanged, after the rollback."""


class DeadlineExceededError(PromptEvaluationError, TimeoutError):
    """The deadline of the run has passed."""


class ThrottledError(PromptEvaluationError):
    """The provider is too busy to answer. Asked again after a while it may; `retry_after` is the wait it asks for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BudgetExceededError(PromptEvaluationError):
    """The token budget of the run is used up."""


class VisibilityExpansionRequired(WinkError):
    """The model asked to see sections that were summarised; the loop must render again."""

    def __init__(
        self,
        message: str = "",
        *,
        requested_overrides: Mapping[tuple[str, ...], object] | None = None,
        section_keys: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        super().__init__(message or f"Sections to open: {', '.join(section_keys) or 'none named'}")
        self.requested_overrides: dict[tuple[str, ...], object] = dict(requested_overrides or {})
        self.section_keys: tuple[str, ...] = tuple(section_keys)
        self.reason = reason


class TransactionError(WinkError, RuntimeError):
    """A transaction was used in a way it cannot serve."""


class FencedWriteError(TransactionError):
    """A write by a logical call whose transaction has already ended."""


class ReadOnlyError(TransactionError, PermissionError):
    """A write by a call that was declared read-only (`effects="none"`)."""


class WouldDeadlockError(TransactionError):
    """Waiting for the session's writer here could never end; use the async form."""


class RollbackError(WinkError, ExceptionGroup[Exception]):
    """Restoring failed. Holds every cause; the session refuses further writes."""

    def __new__(cls, message: str, causes: Sequence[Exception], /) -> RollbackError:
        return super().__new__(cls, message, causes)

    def derive(self, excs: Sequence[Exception]) -> RollbackError:  # pyright: ignore[reportIncompatibleMethodOverride]
        return RollbackError(self.message, excs)


class ApprovalError(WinkError, ValueError):
    """No such call waits for approval, or it cannot go on from what was passed."""


class ResourceError(WinkError, RuntimeError):
    """A resource cannot be found, built or closed."""


class FilesystemError(WinkError, OSError):
    """Root of what a Filesystem raises; the message is written for the model."""


class SessionStorageError(WinkError, RuntimeError):
    """A durable session cannot be opened, read or written."""
