"""A tool of a prompt as any framework can call it: arguments in, the text for the model and the outcome out.

Decides what a foreign loop gets to see. A call that fails, is denied or waits for approval is text that the model can
act on, never an exception that ends their loop; what must end a run (a deadline, a budget) is raised to them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ...errors import VisibilityExpansionRequired
from ...limits import Budget, BudgetTracker, Deadline
from ...prompt import Prompt, RunContext, Tool
from ...runtime import Session, ToolCall, ToolOutcome, aexecute_tool, execute_tool

NOT_HERE = (
    "This section cannot be opened here: the tools of this conversation were fixed when it began. "
    "Use read_section to read it, or go on without its tools."
)
"""What the model reads when it asks for tools that the foreign loop cannot be given any more."""


def framework(module: str, called: str, package: str) -> Any:
    """A module of somebody else's package; a missing one is named with the way to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{called} is not installed. Install it: pip install {package}") from error


class BridgedTool:
    """One tool, bound to its prompt and session. Made by a bridge; lives as long as the framework keeps it."""

    __slots__ = ("_prompt", "_session", "_surroundings", "description", "name", "schema", "tool")

    def __init__(
        self, tool: Tool[Any, Any], prompt: Prompt[Any], session: Session, surroundings: Mapping[str, Any]
    ) -> None:
        spec = tool.spec()
        self.tool = tool
        self.name: str = spec["name"]
        self.description: str = spec["description"]
        self.schema: dict[str, Any] = spec["parameters"]
        self._prompt = prompt
        self._session = session
        self._surroundings = surroundings

    def run(self, arguments: Mapping[str, Any] | str, call_id: str | None) -> tuple[str, ToolOutcome | None]:
        """What the model reads, and how the call ended."""
        call = ToolCall(self.name, arguments, call_id)
        try:
            outcome = execute_tool(call, prompt=self._prompt, session=self._session, **self._surroundings)
        except VisibilityExpansionRequired:
            return NOT_HERE, None
        return outcome.text, outcome

    async def arun(self, arguments: Mapping[str, Any] | str, call_id: str | None) -> tuple[str, ToolOutcome | None]:
        """The same on an event loop."""
        call = ToolCall(self.name, arguments, call_id)
        try:
            outcome = await aexecute_tool(call, prompt=self._prompt, session=self._session, **self._surroundings)
        except VisibilityExpansionRequired:
            return NOT_HERE, None
        return outcome.text, outcome


def bridged(
    prompt: Prompt[Any],
    session: Session,
    *,
    deadline: Deadline | None = None,
    budget: Budget | BudgetTracker | None = None,
    run_context: RunContext | None = None,
) -> list[BridgedTool]:
    """The tools that the prompt shows now."""
    tracker = budget if budget is None or isinstance(budget, BudgetTracker) else BudgetTracker(budget)
    surroundings = {"deadline": deadline, "budget_tracker": tracker, "run_context": run_context}
    return [BridgedTool(tool, prompt, session, surroundings) for tool in prompt.render(session).tools]
