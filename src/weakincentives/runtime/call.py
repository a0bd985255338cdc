"""A tool call as it comes in, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

from ..frozen import frozen
from ..prompt.events import NO_CHANGES, Changes, Outcome
from ..prompt.tool_result import ToolResult

UNPARSED: Any = object()


@frozen
class ToolCall:
    """What a model asked for."""

    name: str
    arguments: Mapping[str, Any] | str | bytes | None = field(default_factory=dict[str, Any])
    """A mapping, or JSON text as the provider sent it."""
    call_id: str | None = None
    prompt: Any = field(default=None, repr=False, compare=False)
    """The prompt that offered the tool, when the call comes from `adapter.stepwise()`."""
    parsed: Any = field(default=UNPARSED, repr=False, compare=False)
    """Parameters that need no parsing any more: a tool called from Python."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The arguments as a mapping; empty when they are not a JSON object."""
        if isinstance(self.arguments, Mapping):
            return self.arguments
        try:
            value: object = json.loads(self.arguments or "{}")
        except ValueError:
            return {}
        return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


@frozen
class ToolOutcome:
    """How one call ended, and what the model reads of it."""

    call: ToolCall
    tool: Any
    """The tool, or None when the name is unknown."""
    params: Any
    """The parsed parameters, or None when there are none."""
    result: ToolResult[Any]
    text: str
    """What the model reads."""
    outcome: Outcome
    duration: float
    changes: Changes = NO_CHANGES
    call_id: str = ""
    approval_id: str = ""
    """Set when the outcome is `pending`; give it to `decide` or `resume`."""

    @property
    def success(self) -> bool:
        return self.result.success

    @property
    def message(self) -> str:
        return self.result.message

    @property
    def value(self) -> Any:
        return self.result.value
