"""An agent of the in-process runtime that left a durable session: calls that worked, one rolled back, one denied."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import QuotaPolicy, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session
from weakincentives.testing import run_tool


@dataclass(frozen=True)
class Write:
    path: str
    text: str


@dataclass(frozen=True)
class Wrote:
    path: str


def _write(params: Write, *, context: ToolContext) -> ToolResult[None]:
    context.filesystem.write(params.path, params.text)
    context.session[Wrote].append(Wrote(params.path))
    if "broken" in params.text:
        return ToolResult.error("The text is broken. Mend it, then retry.")
    return ToolResult.ok(None, message=f"{params.path} is written.")


write_tool = Tool[Write, None](name="write_file", description="Write a file.", handler=_write)


def work(path: Path, calls: int = 0) -> None:
    """Six calls that tell a story, and `calls` more that go well."""
    with Session.open(path) as session:
        files = InMemoryFilesystem()
        session.attach("work", files)
        for name, text in (
            ("plan.md", "1. look\n2. write\n"),
            ("draft.md", "first words\n"),
            ("draft.md", "broken words\n"),
            ("draft.md", "second words\n"),
        ):
            run_tool(write_tool, {"path": name, "text": text}, session=session, fs=files)
        for text in ("one more", "too much"):
            more = {"path": "more.md", "text": text}
            run_tool(write_tool, more, session=session, fs=files, policies=[QuotaPolicy(1)])
        for number in range(calls):
            run_tool(write_tool, {"path": f"{number % 20}.md", "text": f"{number}\n"}, session=session, fs=files)
