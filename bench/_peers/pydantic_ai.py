"""Pydantic AI: `python pydantic_ai.py TURNS` prints CPU seconds of a run with that many tool calls."""

from __future__ import annotations

import json
import sys
from time import process_time

sys.path.pop(0)  # this file has the package's name

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def run(turns: int) -> float:
    kept = 0
    asked = 0

    def keep(text: str) -> str:
        """Keep a note."""
        nonlocal kept
        kept += 1
        return "kept"

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        if asked > turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("keep", {"text": "a note"}, tool_call_id=f"c{asked}")])

    agent = Agent(FunctionModel(model), tools=[keep])
    started = process_time()
    result = agent.run_sync("go", usage_limits=UsageLimits(request_limit=None))
    spent = process_time() - started
    assert (result.output, kept) == ("done", turns)
    return spent


run(20)  # what is loaded and built once
print(json.dumps({"cpu": run(int(sys.argv[1]))}))
