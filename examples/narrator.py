"""Prints what an agent does as it does it, from the events of its session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from weakincentives.prompt import CompletionChecked
from weakincentives.runtime import EventBus, ToolInvoked

MARKS = {"ok": "[green]✓[/]", "denied": "[yellow]⊘[/]", "pending": "[yellow]…[/]"}
MEANINGS = {
    "denied": "denied by a policy: it did not run",
    "pending": "waits for an approval: it did not run",
    "failed": "failed: every change it made was taken back",
    "invalid_params": "the arguments do not fit: it did not run",
    "unknown_tool": "there is no such tool",
}
LONGEST = 8


class Narrator:
    """One line per call, what the model reads of it, and what became of its changes."""

    def __init__(self, bus: EventBus, *, now: Callable[[], str] | None = None) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._outcomes: Counter[str] = Counter()
        self._now = now
        bus.subscribe(ToolInvoked, self.call)
        bus.subscribe(CompletionChecked, self.checked)

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold cyan]{escape(text)}[/]\n")

    def call(self, event: ToolInvoked) -> None:
        self._outcomes[event.outcome] += 1
        params: Any = event.params
        arguments = asdict(params) if is_dataclass(params) and not isinstance(params, type) else params or {}
        shown = ", ".join(
            f"{name}={value!r}" for name, value in dict(arguments).items() if value not in (None, "", False)
        )
        self._console.print(f"  {MARKS.get(event.outcome, '[red]✗[/]')} {event.tool_name}({escape(shown)})")
        lines = event.rendered_output.strip().splitlines()
        for line in lines[:LONGEST]:
            self._console.print(f"      {escape(line)}")
        if len(lines) > LONGEST:
            self._console.print(f"      [dim]and {len(lines) - LONGEST} more lines[/]")
        if event.outcome in MEANINGS:
            self._console.print(f"      [magenta]{MEANINGS[event.outcome]}[/]")
            if event.outcome == "failed" and self._now is not None:
                self._console.print(f"      [dim]now: {escape(self._now())}[/]")
        elif event.changes.files:
            self._console.print(f"      [dim]kept: {escape(', '.join(sorted(set(event.changes.files))))}[/]")

    def checked(self, event: CompletionChecked) -> None:
        if event.reminded:
            self._console.print("  [yellow]↩[/] The model wants to end, and is sent back to work")
            for line in event.missing:
                self._console.print(f"      {escape(line)}")

    def answer(self, text: str) -> None:
        self._console.print(f"\n  [bold]“{escape(text)}”[/]")

    def note(self, text: str) -> None:
        self._console.print(f"  [dim]{escape(text)}[/]")

    def summary(self) -> None:
        told = ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.items())
        calls = self._outcomes.total()
        self._console.print(f"\n[bold]{calls} call{'' if calls == 1 else 's'}, each recorded once:[/] {told}.")
