"""The `wink` command: run an agent from a Python file, look at its tools, serve them, and look at recorded sessions.

Answers go to standard output, what happens meanwhile and what is wrong to standard error. Exit code 0: done; 1: it failed;
2: what was given cannot be used; 3: done, but something differs or waits for approval. Never a traceback for what a user
typed, a file holds or a model said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from ..errors import WinkError
from . import run, sessions, tools
from .agent_file import BadInput
from .terminal import FAILED, UNUSABLE


def _examples(*lines: str) -> str:
    """Lines that stay as they are."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


app = typer.Typer(
    name="wink",
    help="Runs agents whose tool calls are transactions, shows their tools, and shows what they did.",
    epilog="\b\n"
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed\n"
    "  2  what was given cannot be used; one line says what to do instead\n"
    "  3  done, and somebody must look: something differs, or waits for approval",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(
    "run",
    epilog=_examples(
        'wink run shop.py --request "How much is a fig?"',
        "wink run shop.py --request - --json < request.json",
        "wink run shop.py:loop --session shop.session --keep-files",
        "wink run shop.py --model llama3 --base-url http://localhost:11434/v1",
    ),
)(run.run)
app.command(
    "inspect",
    epilog=_examples(
        "wink inspect shop.session",
        "wink inspect shop.session --outcome rolled_back --diff",
        "wink inspect shop.session --call 3 --state",
        "wink inspect shop.session --call 3 --file notes.txt",
    ),
)(sessions.inspect)
app.command(
    "replay",
    epilog=_examples(
        "wink replay shop.session --call 3",
        "wink replay shop.session --module shop.py   exit code 3: the tools would do something else today",
    ),
)(sessions.replay)
app.command("fork", epilog=_examples("wink fork shop.session other.session --call 3"))(sessions.fork)
app.command("tools", epilog=_examples("wink tools shop.py", "wink tools shop.py:loop --json"))(tools.tools)
app.command("schema", epilog=_examples("wink schema shop.py price"))(tools.schema)
app.command(
    "serve-mcp",
    epilog=_examples(
        "wink serve-mcp shop.py",
        "wink serve-mcp shop.py --http --port 8765",
        'in a client\'s configuration: {"command": "wink", "args": ["serve-mcp", "/path/to/shop.py"]}',
    ),
)(tools.serve_mcp)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. What is wrong with what was given, and what ended a run, is told in one line."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="wink")
    except BadInput as error:
        typer.echo(f"wink: {error}", err=True)
        raise SystemExit(UNUSABLE) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing may be written there any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(FAILED) from None
    except (WinkError, OSError, ImportError) as error:
        typer.echo(f"wink: {error}", err=True)
        raise SystemExit(FAILED) from None
