"""A user's program that only the type checker reads: what we promise to a strict checker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from weakincentives.adapters import PromptResponse, ScriptedAdapter
from weakincentives.dbc import ensure, require
from weakincentives.prompt import MarkdownSection, PolicyDecision, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import MainLoop, Session, ToolCall, ToolOutcome, execute_tool


@dataclass(frozen=True)
class Search:
    query: str
    limit: int = 10


@dataclass(frozen=True)
class Hits:
    titles: tuple[str, ...]


@require(lambda params: 1 <= params.limit <= 100, "limit must be between 1 and 100")
@ensure(lambda params, result: len(result.value.titles) <= params.limit, "there cannot be more hits than asked for")
def search(params: Search, *, context: ToolContext) -> ToolResult[Hits]:
    assert_type(context.session[Hits].latest(), Hits | None)
    return ToolResult.ok(Hits((params.query,)), message="Found 1")


class ByName:
    """A policy in its shortest form: the tool's name, and a text that denies."""

    def check(self, tool_name: str, params: object, context: ToolContext) -> str | None:
        return f"{tool_name} is not for today" if context.session[Hits].all() else None


class ByDecision:
    def check(self, tool: Tool[Any, Any], params: object, *, context: ToolContext) -> PolicyDecision:
        return PolicyDecision(allowed=tool.name == "search", reason="Search only.")


class Asking:
    async def check(self, tool_name: str, params: object, *, context: ToolContext) -> str | None:
        return None


tool = Tool[Search, Hits](name="search", description="Search the library.", handler=search)
section = MarkdownSection(title="Library", template="Find books.", tools=[tool], policies=[ByName(), ByDecision()])
template = PromptTemplate[Hits](sections=[section], policies=[Asking()])
prompt, session = Prompt(template), Session()
outcome = execute_tool(ToolCall("search", {"query": "owls"}), prompt=prompt, session=session)
response = ScriptedAdapter(["{}"]).evaluate(prompt, session)

assert_type(tool, Tool[Search, Hits])
assert_type(prompt, Prompt[Hits])
assert_type(outcome, ToolOutcome)
assert_type(outcome.result, ToolResult[Any])
assert_type(response, PromptResponse[Hits])
assert_type(response.output, Hits | None)


class Librarian(MainLoop[Search, Hits]):
    def prepare(self, request: Search) -> Prompt[Hits]:
        return prompt.bind(request)


answer, used = Librarian(adapter=ScriptedAdapter(["{}"])).execute(Search("owls"))
assert_type(answer.output, Hits | None)
assert_type(used, Session)
