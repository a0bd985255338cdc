"""Our tools inside somebody else's agent loop: they keep their loop, every call stays a governed transaction.

Each bridge is one file and imports its framework when it is first used.
"""

from __future__ import annotations

from .langchain import as_langchain_tools
from .openai_agents import as_openai_agents_tools
from .pydantic_ai import as_pydantic_ai_tools

__all__ = ["as_langchain_tools", "as_openai_agents_tools", "as_pydantic_ai_tools"]
