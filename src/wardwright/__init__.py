"""wardwright: one policy plan for the tool calls that pass on the wire."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wardwright.config import load_config
from wardwright.gateway import govern
from wardwright.policy.compile import compile_plan

__all__ = ["compile_plan", "create_app", "govern", "load_config"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """`create_app`, when it is asked for: whoever only rules has no use for a server."""
    if name == "create_app":
        return import_module("wardwright.http.start").create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
