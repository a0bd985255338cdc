"""wardwright: one policy plan for the tool calls that pass on the wire."""

from __future__ import annotations

from wardwright.config import load_config
from wardwright.gateway import govern
from wardwright.policy.compile import compile_plan

__all__ = ["compile_plan", "govern", "load_config"]
