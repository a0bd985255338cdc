"""Tells whether the text of a snippet is Python that has a result, and what it would look like if it is not.

Reads the text only; never runs it. Snippets of an older home, in Elixir, are told apart from plain mistakes.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from weakincentives.contrib.interpreters.last_expression import keep_last_expression

MAX_CHARS: Final = 50_000

_ELIXIR: Final = re.compile(
    r"%\{|=>|\|>|<>|\bfn\b.*->|\bdef(module|p)?\b[^:\n]*\bdo\b|^\s*end\s*$|\bdo\s*$", re.MULTILINE
)
_MAP: Final = re.compile(r"%\{([^{}]*)\}")

SNIPPET_FORM: Final = '{"echo": input["value"]}'


def python_problem(source: str) -> str:
    """What keeps a snippet from being used; empty when nothing does."""
    if len(source) > MAX_CHARS:
        return f"is too long: {len(source)} characters, at most {MAX_CHARS} are taken"
    if not source.strip():
        return "must not be empty"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        if _ELIXIR.search(source):
            return (
                "looks like Elixir; snippets are Python. The last line is an expression, its value the result: "
                f"{_as_python(source)}"
            )
        return f"is not valid Python: {error.msg} (line {error.lineno} of the source)"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"is not valid Python: {error}"
    if not tree.body or not isinstance(tree.body[-1], ast.Expr) or keep_last_expression(source, "_") is None:
        return f"has no result: its last line must be an expression, such as {SNIPPET_FORM}"
    return ""


def _as_python(source: str) -> str:
    """The same in Python if it is one map, else the form that a snippet has."""
    whole = _MAP.fullmatch(source.strip())
    if whole is not None:
        written = "{" + whole.group(1).replace("=>", ":").replace(" :", ":").strip() + "}"
        if "\n" not in written and not python_problem(written):
            return written
    return SNIPPET_FORM
