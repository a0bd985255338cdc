"""Tells what the agents and the gateway do, as they do it, and counts it."""

from __future__ import annotations

import io
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from weakincentives.runtime import ToolInvoked

LONGEST = 60


class Telling:
    """Lines on standard output; whoever tells something takes a turn."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that has no ✓ shows ? instead
        self._console = Console(highlight=False, soft_wrap=True)
        self._turn = threading.Lock()
        self.counted: Counter[str] = Counter()
        """What happened: outcomes of calls, and rules of the gateway that refused or held one."""

    @property
    def to_terminal(self) -> bool:
        return self._console.is_terminal

    def title(self, text: str) -> None:
        self._say(f"\n[bold cyan]{escape(text)}[/]\n")

    def note(self, text: str) -> None:
        self._say(f"  [dim]{escape(text)}[/]")

    def line(self, text: str) -> None:
        self._say(f"  {escape(text)}")

    def address(self, text: str) -> None:
        self._say(f"\n  [bold underline blue]{escape(text)}[/]\n")

    def answer(self, text: str) -> None:
        self._say(f"\n  [bold]“{escape(text.strip())}”[/]")

    def approved(self, text: str) -> None:
        self._say(f"      [green]{escape(text)}[/]")

    def wrong(self, text: str) -> None:
        self._say(f"  [bold red]✗[/] {escape(text)}")

    def call(self, event: ToolInvoked, undone: bool) -> None:
        """A call that reached the agent's own runtime."""
        self.counted[event.outcome] += 1
        params: Any = event.params
        arguments: dict[str, Any] = asdict(params) if is_dataclass(params) else dict(params or {})
        shown = ", ".join(
            f"{name}={_short(repr(value))}" for name, value in arguments.items() if value not in (None, "", False)
        )
        mark = "[green]✓[/]" if event.outcome == "ok" else "[red]✗[/]"
        said = event.rendered_output.strip().splitlines()
        lines = [f"  {mark} {event.tool_name}({escape(shown)})", *(f"      {escape(line)}" for line in said[:1])]
        if event.changes.files:
            lines.append(f"      [dim]kept: {escape(', '.join(sorted(set(event.changes.files))))}[/]")
        if undone:
            self.counted["rolled_back"] += 1
            lines.append("      [magenta]rolled back: every file is as it was before the call[/]")
        self._say("\n".join(lines))

    def ruling(self, receipt: Mapping[str, Any]) -> None:
        """What the gateway refused or held, by its receipt."""
        for gate in receipt.get("decision", {}).get("gates", ()):
            findings = {one.get("call_id"): one for one in gate.get("findings", ()) if one.get("enforced")}
            for call in gate.get("calls", ()):
                if call["status"] == "allow":
                    continue
                rule = call["rules"][0]
                held = call["status"] == "require_approval"
                self.counted[rule] += 1
                finding = findings.get(call["call_id"], {})
                self._say(
                    f"  [yellow]{'…' if held else '⊘'}[/] {escape(call['name'])}\n"
                    f"      {escape(finding.get('message', ''))}\n"
                    f"      [magenta]{'held' if held else 'denied'} by the gateway, rule {escape(rule)}: "
                    f"it {'waits for somebody' if held else 'did not run'}[/]"
                )

    def _say(self, text: str) -> None:
        with self._turn:
            self._console.print(text)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
