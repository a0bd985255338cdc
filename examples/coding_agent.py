"""A coding agent in a workspace that is never left half-changed: it fails, is rolled back, reads why, and recovers.

The files are in memory. Without a key the model follows a script that makes three typical mistakes; with OPENAI_API_KEY,
or OPENAI_BASE_URL for a server of your own, the same agent runs with a real one. Also: wink run examples/coding_agent.py
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from models import model
from narrator import Narrator

from weakincentives.adapters import ProviderAdapter
from weakincentives.contrib.guardrails import RequiredFiles
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import GuardContext, MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import EventBus, MainLoop, ToolCall

FILES = {
    "shop/cart.py": "from shop.tax import tax\n\n\ndef total(prices):\n    return sum(prices) + tax(sum(prices))\n",
    "shop/receipt.py": 'from shop.cart import total\n\n\ndef receipt(prices):\n    return f"{total(prices):.2f}"\n',
    "shop/tax.py": "def tax(total):\n    return total * 0.2\n",
    "CHANGELOG.md": "# Changelog\n\n## Unreleased\n",
}


@dataclass(frozen=True)
class Task:
    """What the agent is asked to do."""

    text: str = (
        "The name `total` is too vague. Rename it to a clearer one in all Python files, and add a line about it below "
        "`## Unreleased` in CHANGELOG.md."
    )


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


def the_old_name_is_gone(context: GuardContext) -> str | None:
    """The model may end when the task is done."""
    files = context.filesystem
    assert files is not None
    left = [path for path in files.glob("**/*.py") if re.search(r"\btotal\b", files.read(path))]
    return f"These files still use the name total: {', '.join(left)}." if left else None


class CodingAgent(MainLoop[Task, str]):
    """Works on one workspace."""

    def __init__(self, files: Filesystem, *, adapter: ProviderAdapter, bus: EventBus) -> None:
        super().__init__(adapter=adapter, bus=bus)
        self.files = files

    def prepare(self, request: Task) -> Prompt[str]:
        template = PromptTemplate[str](
            sections=[
                MarkdownSection[Task](
                    title="Task",
                    template="You maintain a small Python project.\n\n${text}\n\nAnswer in one sentence when all of it is done.",
                    tools=[rename_symbol],
                ),
                VfsToolsSection(filesystem=self.files),
            ],
            completion=[RequiredFiles("CHANGELOG.md"), the_old_name_is_gone],
        )
        return Prompt(template).bind(request)


SCRIPT = [
    [ToolCall("grep_files", {"pattern": "total"}), ToolCall("list_directory", {"path": "/"})],
    # The file tools come with a policy: who has not read a file may not change it.
    ToolCall(
        "edit_file", {"path": "CHANGELOG.md", "old_string": "## Unreleased\n", "new_string": "## Unreleased\n- x\n"}
    ),
    # Two files are written before the third check fails; both are as before when the model reads why.
    ToolCall("rename_symbol", {"old": "total", "new": "return"}),
    "Done.",  # it is not: the completion check sends the model back to work
    ToolCall("rename_symbol", {"old": "total", "new": "amount_due"}),
    ToolCall("read_file", {"path": "CHANGELOG.md"}),
    ToolCall(
        "edit_file",
        {
            "path": "CHANGELOG.md",
            "old_string": "## Unreleased\n",
            "new_string": "## Unreleased\n- `total` is now `amount_due`.\n",
        },
    ),
    "`total` is `amount_due` everywhere, and the changelog says so.",
]

bus = EventBus()
loop = CodingAgent(InMemoryFilesystem(FILES), adapter=model(SCRIPT), bus=bus)


def main() -> None:
    say = Narrator(bus, now=lambda: loop.files.read("shop/cart.py").splitlines()[3])
    say.title("A coding agent: it may fail, the workspace may not")
    response, _ = loop.execute(Task())
    say.answer(response.text)
    say.summary()


if __name__ == "__main__":
    main()
