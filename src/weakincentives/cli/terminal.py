"""How answers look: JSON, lines with colours where there is a terminal to show them, and how far long work has come.

What is printed may come from a model or a stranger's file: characters that would move the cursor or colour the rest are shown,
not obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, TypeVar

import orjson
import typer

from ..recording import Line

T = TypeVar("T")

DONE: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
DIFFERS: Final = 3

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AgentFile = Annotated[
    str, typer.Argument(metavar="FILE[:OBJECT]", help="A Python file; the object in it if there are several.")
]
ForRequest = Annotated[
    str | None, typer.Option("--request", "-r", help="The request to prepare for, where the tools depend on it.")
]

_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
_LONG: Final = 200
"""Work of fewer pieces than this is done before anybody would read how far it has come."""


def print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str))


class Paper:
    """Standard output, line by line. Colours only on a terminal that wants them."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line of parts, each plain or with a style."""
        from rich.text import Text

        text = Text()
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            text.append(harmless(words), style)
        text.rstrip()
        self._console.print(text)

    def block(self, text: str, indent: str = "    ", style: str = "") -> None:
        for line in text.splitlines():
            self.line(indent, (line, style))

    def lines(self, lines: Iterable[Line], indent: str = "      ") -> None:
        """A comparison."""
        for line in lines:
            self.line(indent, (str(line), _STYLES.get(line.mark, "")))


def harmless(text: str) -> str:
    """Text without characters that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else "    " if char == "\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def watched(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items; meanwhile how many of them are done, on standard error, if that is a terminal and there are many."""
    if total < _LONG or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        yield from progress.track(items, total=total, description=what)


def seconds(value: float | None) -> str:
    """A length of time, short."""
    if value is None:
        return ""
    if value < 0.001:
        return f"{value * 1_000_000:.0f} µs"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
