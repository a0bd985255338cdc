"""OpenAI Agents SDK: `python openai_agents.py TURNS` prints CPU seconds of a run with that many tool calls."""

from __future__ import annotations

import asyncio
import json
import sys
from time import process_time
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._asked = 0

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        self._asked += 1
        if self._asked > self._turns:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            said: Any = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            said = ResponseFunctionToolCall(
                name="keep", arguments='{"text": "a note"}', call_id=f"c{self._asked}", type="function_call"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def run(turns: int) -> float:
    kept = 0

    @function_tool
    def keep(text: str) -> str:
        """Keep a note."""
        nonlocal kept
        kept += 1
        return "kept"

    agent = Agent(name="a", model=ScriptedModel(turns), tools=[keep])
    started = process_time()
    config = RunConfig(tracing_disabled=True)
    result = asyncio.run(Runner.run(agent, "go", max_turns=turns + 2, run_config=config))
    spent = process_time() - started
    assert (result.final_output, kept) == ("done", turns)
    return spent


run(20)  # what is loaded and built once
print(json.dumps({"cpu": run(int(sys.argv[1]))}))
