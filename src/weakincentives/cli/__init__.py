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

app = typer.Typer(
    name="wink",
    help="Runs agents whose tool calls are transactions, shows their tools, and shows what they did.",
    epilog="Exit codes: 0 done, 1 failed, 2 what was given cannot be used, 3 something differs or waits for approval.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("inspect")(sessions.inspect)
app.command("replay")(sessions.replay)
app.command("fork")(sessions.fork)
app.command("tools")(tools.tools)
app.command("schema")(tools.schema)
app.command("serve-mcp")(tools.serve_mcp)


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
