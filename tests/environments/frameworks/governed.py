"""The agent that every framework runs: notes that can be kept, a deploy that needs a test first, files that roll back."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolResult,
)


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Nothing:
    pass


def keep_note(params: Note, *, context: ToolContext) -> ToolResult[Note]:
    """Keep a note."""
    context.session[Note].append(params)
    return ToolResult.ok(params, "Kept.")


def half_done(params: Note, *, context: ToolContext) -> ToolResult[None]:
    """Write a file and a note, then fail."""
    context.session[Note].append(params)
    context.filesystem.write("half.txt", params.text)
    raise RuntimeError("the disk went away")


def run_tests(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Run the tests."""
    return ToolResult.ok(None, "All green.")


def deploy(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Deploy what was tested."""
    return ToolResult.ok(None, "Deployed.")


def make_prompt() -> Prompt[None]:
    section = MarkdownSection(
        title="Work",
        template="Keep notes, test, deploy.",
        tools=[Tool.wrap(keep_note), Tool.wrap(half_done), Tool.wrap(run_tests), Tool.wrap(deploy)],
        policies=[SequentialDependencyPolicy({"deploy": ["run_tests"]})],
    )
    return Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: InMemoryFilesystem()})
