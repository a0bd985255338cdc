"""Our tools for LangChain and LangGraph: `create_agent(model, as_langchain_tools(prompt, session))`, or a `ToolNode` of them."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Any

from ...limits import Budget, BudgetTracker, Deadline
from ...prompt import Prompt, RunContext
from ...runtime import Session, ToolOutcome
from .bridged import BridgedTool, bridged, framework

_call_id: ContextVar[str | None] = ContextVar("weakincentives_langchain_call", default=None)


def as_langchain_tools(
    prompt: Prompt[Any],
    session: Session,
    *,
    deadline: Deadline | None = None,
    budget: Budget | BudgetTracker | None = None,
    run_context: RunContext | None = None,
) -> list[Any]:
    """The prompt's tools as LangChain tools. A call that did not succeed is a `ToolMessage` with status "error"; the
    outcome of one that did is the message's `artifact`."""
    kind = _kind()
    found = bridged(prompt, session, deadline=deadline, budget=budget, run_context=run_context)
    return [
        kind(
            name=tool.name,
            description=tool.description,
            args_schema=tool.schema,
            response_format="content_and_artifact",
            handle_tool_error=True,
            bridged=tool,
        )
        for tool in found
    ]


@cache
def _kind() -> Any:
    langchain: Any = framework("langchain_core.tools", "LangChain", "langchain-core")

    class GovernedTool(langchain.BaseTool):
        """One call is one governed transaction."""

        bridged: Any
        """The `BridgedTool`."""

        # LangChain hands the id of a call to `run`, not to what runs.
        def run(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
            token = _call_id.set(tool_call_id)
            try:
                return langchain.BaseTool.run(self, tool_input, *args, tool_call_id=tool_call_id, **kwargs)
            finally:
                _call_id.reset(token)

        async def arun(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
            token = _call_id.set(tool_call_id)
            try:
                return await langchain.BaseTool.arun(self, tool_input, *args, tool_call_id=tool_call_id, **kwargs)
            finally:
                _call_id.reset(token)

        def _run(self, /, **arguments: Any) -> Any:
            return _told(*_own(self).run(arguments, _call_id.get()))

        async def _arun(self, /, **arguments: Any) -> Any:
            return _told(*await _own(self).arun(arguments, _call_id.get()))

    def _own(tool: GovernedTool) -> BridgedTool:
        return tool.bridged

    def _told(text: str, outcome: ToolOutcome | None) -> tuple[str, ToolOutcome | None]:
        if outcome is None or not outcome.success:
            raise langchain.ToolException(text)
        return text, outcome

    return GovernedTool
