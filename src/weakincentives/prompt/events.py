"""What is recorded about tool calls. One `ToolInvoked` per call, whatever happened."""

from __future__ import annotations

from typing import Any, Literal

from ..frozen import frozen
from ..session import log_slice
from .tool_result import ToolResult

Outcome = Literal[
    "ok",  # the handler succeeded and its changes were kept
    "failed",  # the handler failed or raised; its changes were taken back
    "invalid_params",  # the arguments did not fit the tool's schema
    "unknown_tool",  # the prompt has no such tool
    "denied",  # a policy refused the call
    "pending",  # the call waits for somebody's approval
    "deadline",  # the run's deadline had passed
    "budget",  # the run's token budget was used up
    "timeout",  # the tool took longer than it may
    "cancelled",  # the run was cancelled or interrupted, or the call never started
    "interrupted",  # the handler stopped the run on purpose
]


@frozen
class Changes:
    """What a kept call touched, by name."""

    slices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.slices or self.files)


NO_CHANGES = Changes()


@frozen
class RunContext:
    """Which run, request and attempt this is, for logs and traces."""

    run_id: str = ""
    request_id: str = ""
    session_id: str = ""
    attempt: int = 1
    trace_id: str = ""
    span_id: str = ""


@log_slice(key=lambda event: event.call_id)
@frozen
class ToolInvoked:
    """One tool call and how it ended."""

    tool_name: str
    params: Any
    """The parsed parameters, as a dict with secrets redacted if their type has any; what the model sent when they could
    not be parsed."""
    result: ToolResult[Any] | None
    success: bool
    timestamp: float
    """When the call began, comparable with `time.time()`."""
    duration: float
    """Seconds, waiting for its turn included."""
    outcome: Outcome
    retryable: bool
    """Whether the same tool may well succeed when called again, differently or later."""
    call_id: str
    rendered_output: str
    """What the model reads."""
    changes: Changes
    session_id: str
    run_context: RunContext | None = None
    policy: str = ""
    """The policy that denied the call, if one did."""

    @property
    def value(self) -> Any:
        return None if self.result is None else self.result.value

    @property
    def message(self) -> str:
        return "" if self.result is None else self.result.message


@frozen
class ToolProgress:
    """Word from a handler that is still at work. Delivered to subscribers, recorded nowhere."""

    tool_name: str
    call_id: str
    message: str
    fraction: float | None
    session_id: str
