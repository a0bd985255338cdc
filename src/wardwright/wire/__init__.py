"""Provider wire formats, and the one neutral form they all lower into: `Turn`."""

from __future__ import annotations

from wardwright.wire.turn import (
    Caller,
    CallItem,
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    ToolChoice,
    Turn,
    Usage,
)

__all__ = [
    "CallItem",
    "Caller",
    "DeclaredTool",
    "HostedCallItem",
    "HostedResultItem",
    "Item",
    "ResultItem",
    "TextItem",
    "ToolChoice",
    "Turn",
    "Usage",
]
