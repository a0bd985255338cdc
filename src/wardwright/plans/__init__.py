"""Ready-made plans: one folder per problem, each with plan, cases, questions and a page; read as they are, written out for an operator.

Nothing here judges or compiles. A plan takes another catalog by exchanging one section of its text, so that comments stay.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wardwright.config import nearest
from wardwright.errors import WardwrightError

PLAN: Final = "plan.yaml"
FILES: Final = (PLAN, "cases.yaml", "questions.yaml", "README.md")
_HERE: Final = "wardwright.plans"
_SECTION: Final = re.compile(
    r"^catalog:\n(?:[ #][^\n]*\n|\n)*?(?=^[^\s#])|^catalog:\n(?:[ #][^\n]*\n?|\n)*\Z", re.MULTILINE
)
"""A section at the top level: everything up to the next key at the margin."""
_BEFORE: Final = re.compile(r"(?:^#[^\n]*\n)+\Z", re.MULTILINE)


class UnknownPlan(WardwrightError, LookupError):
    """There is no ready-made plan of that name."""


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """One of them."""

    name: str
    about: str
    """Its first line: the problem, and what is done about it."""
    files: Mapping[str, str]
    """Name → text; the plan first."""

    def with_catalog(self, drafted: str) -> str:
        """The plan with the catalog of another file, comments of that catalog included."""
        theirs = _SECTION.search(drafted)
        text = self.files[PLAN]
        section = "catalog: []\n" if theirs is None else theirs[0].rstrip("\n") + "\n"
        head = "" if theirs is None else _heading(drafted[: theirs.start()])
        mine = _SECTION.search(text)
        if mine is None:
            before, after = text.rsplit("\ngovernance:", 1)
            return f"{before}\n{head}{section}\ngovernance:{after}"
        # The comment above the section speaks of the catalog that goes.
        above = _BEFORE.sub("", text[: mine.start()])
        return f"{above}{head}{section}\n{text[mine.end() :]}"


def _heading(text: str) -> str:
    """The comments at the head of a draft: what it was made from, and what to look at."""
    lines = [line for line in text.splitlines() if line.startswith("#")]
    return "".join(f"{line}\n" for line in lines)


def names() -> tuple[str, ...]:
    """All of them, in the order of the alphabet."""
    folders = importlib.resources.files(_HERE).iterdir()
    return tuple(sorted(one.name for one in folders if one.is_dir() and one.joinpath(PLAN).is_file()))


def ready_made(name: str) -> ReadyMade:
    """One by name. UnknownPlan, with the nearest that there is."""
    known = names()
    if name not in known:
        raise UnknownPlan(f"no ready-made plan '{name}'{nearest(name, known)}; there are {', '.join(known)}")
    folder = importlib.resources.files(_HERE).joinpath(name)
    files = {file: folder.joinpath(file).read_text("utf-8") for file in FILES if folder.joinpath(file).is_file()}
    return ReadyMade(name, files[PLAN].partition("\n")[0].removeprefix("# "), files)


__all__ = ["FILES", "PLAN", "ReadyMade", "UnknownPlan", "names", "ready_made"]
