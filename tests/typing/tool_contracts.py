"""What a strict checker must know about tools: types of handlers and results, and that a decorated function keeps its own."""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_type

from weakincentives.prompt.tool import Tool, ToolContext, ToolExample, tool
from weakincentives.prompt.tool_result import ToolResult


@dataclass(frozen=True, slots=True)
class Query:
    text: str


@dataclass(frozen=True, slots=True)
class Hits:
    count: int


@dataclass(frozen=True, slots=True)
class ManyHits(Hits):
    pages: int


def search(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
    if not params.text:
        return ToolResult.error("Give some text, then retry")
    return ToolResult.ok(Hits(1), message="Found")


async def search_later(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
    return ToolResult(message="", value=ManyHits(1, 2), success=True, exclude_value_from_context=True)


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.ok(None, message="pong")


def table(params: Query, *, context: ToolContext) -> ToolResult[Mapping[str, int]]:
    return ToolResult.ok({params.text: 1})


declared = Tool[Query, Hits](
    name="search", description="Search.", handler=search, examples=[ToolExample("One", Query("a"), Hits(1))]
)
assert_type(declared, Tool[Query, Hits])
assert_type(Tool[Query, Hits](name="search", description="Search.", handler=search_later), Tool[Query, Hits])
assert_type(Tool[None, None](name="ping", description="Ping.", handler=ping), Tool[None, None])
assert_type(Tool(name="search", description="Search.", handler=search), Tool[Query, Hits])
assert_type(Tool(name="search", description="Search.", handler=search_later), Tool[Query, Hits])
assert_type(Tool(name="table", description="Table.", handler=table), Tool[Query, Mapping[str, int]])

Tool[Query, Hits](name="ping", description="Ping.", handler=ping)  # pyright: ignore[reportArgumentType]
Tool[Query, Hits](name="x", description="X.", effects="read")  # pyright: ignore[reportArgumentType]


@tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@tool(name="find", effects="none")
def find(params: Query, *, context: ToolContext) -> ToolResult[Hits]:
    """Find."""
    return search(params, context=context)


add("1")  # pyright: ignore[reportArgumentType]
assert_type(add(1, b=2), int)
tools: list[Tool[Any, Any]] = [declared, add, find, Tool.wrap(search, description="Search.")]


def covariant(result: ToolResult[ManyHits]) -> ToolResult[Hits]:
    return result


def call(context: ToolContext) -> Hits | None:
    assert_type(find(Query("a"), context=context), ToolResult[Hits])
    return declared(Query("a"), context=context).value
