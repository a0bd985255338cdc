"""Agent Framework: `python agent_framework.py TURNS` prints CPU seconds of a run with that many tool calls."""

from __future__ import annotations

import asyncio
import json
import sys
from time import process_time
from typing import Any

sys.path.pop(0)  # this file has the package's name

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)


class ScriptedClient(FunctionInvocationLayer, BaseChatClient):
    """Composed as the package's own clients are: the loop around a client that answers."""

    def __init__(self, turns: int) -> None:
        limits: Any = {"max_iterations": turns + 2, "enabled": True}
        super().__init__(function_invocation_configuration=limits)
        self._turns = turns
        self._asked = 0

    async def _inner_get_response(self, **kwargs: Any) -> ChatResponse:
        self._asked += 1
        if self._asked > self._turns:
            return ChatResponse(messages=[Message("assistant", ["done"])])
        call = Content.from_function_call(f"c{self._asked}", "keep", arguments='{"text": "a note"}')
        return ChatResponse(messages=[Message("assistant", [call])])


def run(turns: int) -> float:
    kept = 0

    @tool(approval_mode="never_require")
    def keep(text: str) -> str:
        """Keep a note."""
        nonlocal kept
        kept += 1
        return "kept"

    agent = Agent(ScriptedClient(turns), tools=[keep])
    started = process_time()
    result = asyncio.run(agent.run("go"))
    spent = process_time() - started
    assert (result.text, kept) == ("done", turns), (result.text[-20:], kept)
    return spent


run(20)  # what is loaded and built once
print(json.dumps({"cpu": run(int(sys.argv[1]))}))
