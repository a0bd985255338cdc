"""LangGraph's prebuilt agent: `python langgraph.py TURNS` prints CPU seconds of a run with that many tool calls."""

from __future__ import annotations

import json
import sys
from time import process_time
from typing import Any

sys.path.pop(0)  # this file has the package's name

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def run(turns: int) -> float:
    kept = 0

    @tool
    def keep(text: str) -> str:
        """Keep a note."""
        nonlocal kept
        kept += 1
        return "kept"

    def script() -> Any:
        for number in range(turns):
            call = {"id": f"c{number}", "type": "tool_call", "name": "keep", "args": {"text": "a note"}}
            yield AIMessage("", tool_calls=[call])
        yield AIMessage("done")

    agent = create_agent(ScriptedModel(messages=script()), tools=[keep])
    started = process_time()
    result = agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 3 * turns + 10})
    spent = process_time() - started
    assert (result["messages"][-1].content, kept) == ("done", turns)
    return spent


run(20)  # what is loaded and built once
print(json.dumps({"cpu": run(int(sys.argv[1]))}))
