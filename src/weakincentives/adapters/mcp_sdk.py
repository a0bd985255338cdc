"""The one door to the MCP SDK: loads it when it is first used, and says what to install when it is missing or too old."""

from __future__ import annotations

from typing import Any, Final

WANTED: Final = (
    "The MCP adapters need the package 'mcp', version 2.3 or newer. Install it: pip install 'weakincentives[mcp]'."
)


def load() -> Any:
    """The package `mcp`. Raises ImportError with the way to get it."""
    try:
        import mcp
    except ImportError as error:
        raise ImportError(WANTED) from error
    if not hasattr(mcp, "Client"):  # the first generation had no client of this name
        raise ImportError(WANTED)
    return mcp
