"""Our tools for the OpenAI Agents SDK: `Agent(name=…, tools=as_openai_agents_tools(prompt, session))`."""

from __future__ import annotations

from typing import Any

from ...limits import Budget, BudgetTracker, Deadline
from ...prompt import Prompt, RunContext
from ...runtime import Session
from .bridged import BridgedTool, bridged, framework


def as_openai_agents_tools(
    prompt: Prompt[Any],
    session: Session,
    *,
    deadline: Deadline | None = None,
    budget: Budget | BudgetTracker | None = None,
    run_context: RunContext | None = None,
) -> list[Any]:
    """The prompt's tools as `agents.FunctionTool` objects. Outcomes are in `session[ToolInvoked]`, by call id."""
    agents = framework("agents", "The OpenAI Agents SDK", "openai-agents")

    def converted(tool: BridgedTool) -> Any:
        async def call(context: Any, arguments: str) -> str:
            # Bad JSON is ours to answer: with every problem, and as text the model can act on.
            return (await tool.arun(arguments or "{}", context.tool_call_id))[0]

        # WHY NOT strict: the provider's subset of JSON Schema is smaller than what our parser takes.
        return agents.FunctionTool(tool.name, tool.description, tool.schema, call, strict_json_schema=False)

    found = bridged(prompt, session, deadline=deadline, budget=budget, run_context=run_context)
    return [converted(tool) for tool in found]
