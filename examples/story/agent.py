"""The agent of `make run`: it works on a small shop and deploys it, with whatever model the gateway asks for it.

Every tool call is a transaction over the files and the session, and the session is kept in a file with both. What the agent may do
on the wire is not decided here: the gateway's plan says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import openai

from weakincentives.adapters import ModelReply, OpenAIAdapter, Turn
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import PromptEvaluationError, ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import EventBus, MainLoop, Session

FILES = {
    "shop/cart.py": "from shop.tax import tax\n\n\ndef total(prices):\n    return sum(prices) + tax(sum(prices))\n",
    "shop/receipt.py": 'from shop.cart import total\n\n\ndef receipt(prices):\n    return f"{total(prices):.2f}"\n',
    "shop/tax.py": "def tax(amount):\n    return amount * 0.2\n",
    "config/production.toml": 'database = "shop-live"\n',
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n",
}


@dataclass(frozen=True)
class Task:
    """What an agent is asked to do, and the name of its session."""

    name: str
    text: str


RENAME = Task(
    "rename",
    "The name `total` is too vague. Rename it to a clearer one in all Python files and see that the checks pass; then deploy version "
    "1.4 to staging. Answer in one sentence when all of it is done.",
)
RELEASE = Task(
    "release", "Version 1.4 was tested in staging. Please deploy it to production, and answer in one sentence."
)


@dataclass(frozen=True)
class Deployed:
    """State of the session: what runs where."""

    version: str
    to: str


@tool
def rename_symbol(old: str, new: str, context: ToolContext) -> str:
    """Rename a function, class or variable in all Python files at once."""
    files = context.resources.get(Filesystem)
    changed: list[str] = []
    for path in files.glob("**/*.py"):
        before = files.read(path)
        after = re.sub(rf"\b{re.escape(old)}\b", new, before)
        if after != before:
            files.write(path, after)
            changed.append(path)
    # Only now is the damage seen. Raising is enough: whatever was written above is taken back.
    for path in changed:
        try:
            ast.parse(files.read(path))
        except SyntaxError as error:
            raise ToolValidationError(
                f"Cannot rename {old} to {new}: {path} would not be Python any more (line {error.lineno}). "
                "Choose a name that is no keyword, then retry."
            ) from error
    if not changed:
        raise ToolValidationError(f"No file uses the name {old}. Look for it with grep_files, then retry.")
    return f"Renamed {old} to {new} in {', '.join(changed)}"


@tool(effects="none")
def run_checks(context: ToolContext) -> str:
    """Check the project; says what is missing."""
    noted = context.resources.get(Filesystem).read("CHANGELOG.md").partition("## Unreleased\n")[2].strip()
    return "All checks pass." if noted else "1 check failed: CHANGELOG.md says nothing below `## Unreleased`."


@tool
def deploy(version: str, to: Literal["staging", "production"], context: ToolContext) -> str:
    """Deploy a version of the shop, to staging or to production."""
    context.session[Deployed].append(Deployed(version, to))
    context.resources.get(Filesystem).write(f"deployed/{to}", f"{version}\n")
    return f"{version} runs in {to}"


class Governed(OpenAIAdapter):
    """A model behind a gateway. A reply that waits for somebody's approval is waited for, then asked for again."""

    def __init__(
        self, base_url: str, session: str, *, waited: Callable[[str], None], heard: Callable[[], None]
    ) -> None:
        super().__init__(
            "coder",
            base_url=base_url,
            api_key="any",
            prompt_role="user",
            extra_headers={"X-Wardwright-Session-Id": session},
            timeout=120,
        )
        self._waited, self._heard = waited, heard

    def send(self, turn: Turn) -> ModelReply:
        while True:
            try:
                reply = super().send(turn)
            except PromptEvaluationError as error:
                handle = waits(error)
                if not handle:
                    raise
                self._heard()
                self._waited(
                    handle
                )  # returns once somebody has decided; the same request then gets the very reply they saw
            else:
                self._heard()
                return reply


def waits(error: BaseException) -> str:
    """The handle of what waits for an approval, if that is why a request was refused."""
    cause = error.__cause__
    if isinstance(cause, openai.PermissionDeniedError) and isinstance(cause.body, dict):
        said = cast("dict[str, object]", cause.body)
        if said.get("code") in ("approval_required", "approval_pending"):
            return str(said.get("approval", ""))
    return ""


class ShopAgent(MainLoop[Task, str]):
    """Works on one shop. Its session, with the files, is kept in `folder`, in a file of the task's name."""

    def __init__(self, task: Task, folder: Path, adapter: OpenAIAdapter, bus: EventBus) -> None:
        super().__init__(adapter=adapter, bus=bus)
        self._model = adapter
        self.session = Session.open(folder / f"{task.name}.session", bus=bus, session_id=task.name)
        self.files = InMemoryFilesystem(FILES)
        self.session.attach("shop", self.files)

    def prepare(self, request: Task) -> tuple[Prompt[str], Session]:
        template = PromptTemplate[str](
            sections=[
                MarkdownSection[Task](
                    title="Task",
                    template="You maintain a small shop, written in Python.\n\n${text}",
                    tools=[rename_symbol, run_checks, deploy],
                ),
                VfsToolsSection(filesystem=self.files),
            ]
        )
        return Prompt(template).bind(request), self.session

    def contents(self) -> dict[str, str]:
        """The shop, file by file."""
        return {path: self.files.read(path) for path in self.files.glob("**/*") if self.files.is_file(path)}

    def close(self) -> None:
        self._model.close()
        self.session.close()
