"""A coding agent that makes mistakes, in a workspace that is never left half-changed.

Nothing to configure: the files are in memory and the model is scripted, so every run tells the same story. Three
chapters: mistakes inside one run, a whole run taken back, and the same run kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape

from weakincentives.adapters import ScriptedAdapter
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SequentialDependencyPolicy,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import Compensated, EventBus, Session, ToolCall, ToolInvoked, TransactionRolledBack

# -- The world: some files, some state, and a mailbox that no transaction can reach --------------------------------------

FILES = {
    "README.md": "Set COLOUR to change the looks.\n",
    "app/main.py": "print('starting in', COLOUR)\n",
    "app/settings.py": "COLOUR = 'blue'\n",
    "vendor/theme.py": "COLOUR = None\n",
}


@dataclass(frozen=True)
class Renamed:
    """State of the session: this option has a new name."""

    old: str
    new: str


class Mailbox(list[str]):
    """The outside world: what was sent is sent."""


# -- The tools: plain functions. What they change through their context is kept if they return, undone if they raise ----


@tool(effects="none")
def read_file(path: str, context: ToolContext) -> str:
    """Read a file."""
    return context.resources.get(Filesystem).read(path)


@tool
def write_file(path: str, content: str, context: ToolContext) -> str:
    """Create or replace a file."""
    context.resources.get(Filesystem).write(path, content)
    return f"Wrote {path}"


@tool
def rename_option(old: str, new: str, context: ToolContext, folder: str = "/") -> str:
    """Rename an option in all files of a folder."""
    files = context.resources.get(Filesystem)
    context.session[Renamed].append(Renamed(old, new))
    paths = [path for path in files.glob("**/*", folder) if files.is_file(path)]
    for path in paths:
        files.write(path, files.read(path).replace(old, new))  # vendor/ is protected: this raises half-way through
    return f"Renamed {old} to {new} in {len(paths)} files"


@tool(effects="none")
def run_tests(context: ToolContext) -> str:
    """Run the tests."""
    return "12 tests passed"


@tool
def deploy(environment: str, context: ToolContext) -> str:
    """Deploy the app to an environment."""
    if environment == "production":
        raise ToolValidationError("Cannot deploy to production: it is frozen until Monday. Deploy to staging instead.")
    context.resources.get(Filesystem).write(f"deployed/{environment}", "2.0\n")
    return f"Deployed to {environment}"


def retract(params: object, result: ToolResult[str], *, context: ToolContext) -> None:
    context.resources.get(Mailbox).append("Please ignore our last message.")


@tool(effects="external", compensate=retract)
def announce(text: str, context: ToolContext) -> str:
    """Send a message to all users."""
    context.resources.get(Mailbox).append(text)
    return f"Sent: {text}"


# -- The prompt: what the model is told, what it may call, and in which order -------------------------------------------

TOOLS = [read_file, write_file, rename_option, run_tests, deploy, announce]
TEMPLATE = PromptTemplate(
    sections=[
        MarkdownSection(
            title="Release engineering",
            template="You maintain a small app. Change its files, test it, deploy it, tell its users.",
            tools=TOOLS,
            policies=[SequentialDependencyPolicy({"deploy": {"run_tests"}})],
        )
    ]
)

# -- The story ----------------------------------------------------------------------------------------------------------


def main() -> None:
    files = InMemoryFilesystem(FILES, readonly="vendor/**")
    mailbox = Mailbox()
    bus = EventBus()
    session = Session(bus=bus)
    prompt = Prompt(TEMPLATE).bind(resources={Filesystem: files, Mailbox: mailbox})
    say = Narrator(files, session, mailbox)
    bus.subscribe(ToolInvoked, say.call)
    bus.subscribe(Compensated, say.compensated)
    bus.subscribe(TransactionRolledBack, say.rolled_back)

    with prompt.resources:
        say.chapter("One run: the model makes mistakes, the workspace does not")
        with ScriptedAdapter(
            [
                # Two calls that only read run side by side.
                [ToolCall("read_file", {"path": "app/main.py"}), ToolCall("read_file", {"path": "app/settings.py"})],
                # Changes three files and the session, then meets a protected file: all of it is taken back.
                ToolCall("rename_option", {"old": "COLOUR", "new": "THEME"}),
                # The model read why, and tries again where it may write.
                ToolCall("rename_option", {"old": "COLOUR", "new": "THEME", "folder": "app"}),
                # Refused by policy before it starts, then done in the right order.
                ToolCall("deploy", {"environment": "staging"}),
                ToolCall("run_tests"),
                ToolCall("deploy", {"environment": "staging"}),
                "COLOUR is now THEME, tested and on staging.",
            ]
        ) as model:
            say.answer(model.evaluate(prompt, session).text)

        say.chapter("A whole run as one transaction: all or nothing")
        with (
            ScriptedAdapter(
                [
                    ToolCall("write_file", {"path": "VERSION", "content": "2.0"}),
                    ToolCall("announce", {"text": "2.0 is out!"}),
                    ToolCall("deploy", {"environment": "production"}),
                    "I could not deploy, so 2.0 is not out after all.",
                ]
            ) as model,
            session.transaction(prompt.resources, tag="release 2.0") as release,
        ):
            say.answer(model.evaluate(prompt, session).text)
            if not files.exists("deployed/production"):
                release.rollback()
        say.world()

        say.chapter("The same again, where it works")
        with (
            ScriptedAdapter(
                [
                    ToolCall("write_file", {"path": "VERSION", "content": "2.0"}),
                    ToolCall("deploy", {"environment": "staging"}),
                    ToolCall("announce", {"text": "2.0 is on staging, have a look!"}),
                    "2.0 is on staging.",
                ]
            ) as model,
            session.transaction(prompt.resources, tag="release 2.0"),
        ):
            say.answer(model.evaluate(prompt, session).text)
        say.world()

    say.summary()


# -- Telling it ---------------------------------------------------------------------------------------------------------

MARKS = {"ok": "[green]✓[/]", "failed": "[red]✗[/]", "denied": "[yellow]⊘[/]"}
MEANINGS = {"failed": "failed: rolled back", "denied": "denied by a policy: did not run"}
READ_ONLY = {known.name for known in TOOLS if known.effects == "none"}


class Narrator:
    """Prints what happens as it happens, from the events of the session."""

    def __init__(self, files: Filesystem, session: Session, mailbox: Mailbox) -> None:
        self._files = files
        self._session = session
        self._mailbox = mailbox
        self._console = Console(highlight=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        self._console.print(f"\n[bold cyan]{title}[/]\n")
        self.world()

    def call(self, event: ToolInvoked) -> None:
        params = {} if event.params is None else asdict(event.params)
        arguments = ", ".join(f"{name}={value!r}" for name, value in params.items())
        beside = " [dim]reads only, runs beside others[/]" if event.tool_name in READ_ONLY else ""
        self._console.print(f"  {MARKS[event.outcome]} {event.tool_name}({escape(arguments)}){beside}")
        for line in event.rendered_output.strip().splitlines():
            self._console.print(f"      {escape(line)}")
        if not event.success:
            self._console.print(f"      [magenta]{MEANINGS[event.outcome]}[/]")
            self.world()

    def compensated(self, event: Compensated) -> None:
        self._console.print(f"  [magenta]↶ {event.tool_name} was compensated[/]")

    def rolled_back(self, event: TransactionRolledBack) -> None:
        self._console.print(f"  [magenta]↶ {event.tag}: {len(event.call_ids)} calls taken back[/]")

    def answer(self, text: str) -> None:
        self._console.print(f"  [bold]“{escape(text)}”[/]")

    def world(self) -> None:
        """What can be seen right now: files, state, and what went out."""
        new = [path for path in self._files.glob("**/*") if self._files.is_file(path) and path not in FILES]
        renamed = [f"{item.old} to {item.new}" for item in self._session[Renamed].all()]
        parts = {"new files": new, "renamed": renamed, "sent": self._mailbox}
        seen = "".join(f" · {name}: {', '.join(items)}" for name, items in parts.items() if items)
        settings = self._files.read("app/settings.py").strip()
        self._console.print(f"      [dim]now: {escape(settings + seen)}[/]")

    def summary(self) -> None:
        counts = Counter(event.outcome for event in self._session[ToolInvoked].all())
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        self._console.print(f"\n[bold]{counts.total()} calls, each recorded once:[/] {told}.")


if __name__ == "__main__":
    main()
