"""Our tools for Pydantic AI: `Agent(model, tools=as_pydantic_ai_tools(prompt, session))`."""

from __future__ import annotations

from typing import Any

from ...limits import Budget, BudgetTracker, Deadline
from ...prompt import Prompt, RunContext
from ...runtime import Session
from .bridged import BridgedTool, bridged, framework


def as_pydantic_ai_tools(
    prompt: Prompt[Any],
    session: Session,
    *,
    deadline: Deadline | None = None,
    budget: Budget | BudgetTracker | None = None,
    run_context: RunContext | None = None,
) -> list[Any]:
    """The prompt's tools as `pydantic_ai.Tool` objects. The outcome of a call is the `metadata` of its tool return."""
    pydantic_ai = framework("pydantic_ai", "Pydantic AI", "pydantic-ai-slim")
    core: Any = framework("pydantic_core", "Pydantic", "pydantic")
    objects = core.SchemaValidator(core.core_schema.dict_schema(core.core_schema.str_schema()))

    def converted(tool: BridgedTool) -> Any:
        async def call(context: Any, /, **arguments: Any) -> Any:
            text, outcome = await tool.arun(arguments, context.tool_call_id)
            return pydantic_ai.ToolReturn(text, metadata=outcome)

        made = pydantic_ai.Tool.from_schema(call, tool.name, tool.description, tool.schema, takes_ctx=True)
        # It passes anything on as keywords; arguments that are a list would end the run, and are the model's to correct.
        made.function_schema.validator = objects
        return made

    found = bridged(prompt, session, deadline=deadline, budget=budget, run_context=run_context)
    return [converted(tool) for tool in found]
