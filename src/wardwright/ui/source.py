"""A text with what is wrong in it: every problem with its line, what it is, and how to get rid of it.

Words problems that others found; finds none itself. The text stays as it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wardwright.errors import Problem

_FIXES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"unknown key '(.+?)' \(did you mean '(.+?)'\?\)", "Write '{1}' instead of '{0}', or take it out."),
        (r"unknown key '(.+?)'", "Take '{0}' out; docs/policy lists the keys of every kind."),
        (r"missing key '(.+?)'", "Add '{0}:' to it."),
        (r"\(did you mean '(.+?)'\?\)", "Write '{0}'."),
        (r"is not one of (.+)", "Choose one of {0}."),
        (r"duplicate key '(.+?)', first at line (\d+)", "Keep one of the two: the other stands at line {1}."),
        (r"(?:already used at|used at) line (\d+)", "Give one of them another name: the other stands at line {0}."),
        (r"declared twice", "Take one of them out, or give it another name."),
        (r"not valid YAML", "Look at this line and the one above it: indentation, quotes, brackets, a missing colon."),
        (r"^the file is empty", "Begin with 'model_id:' and 'governance:'."),
        (r"^expected (.+?), got", "Write {0} here."),
        (r"must be at least (.+?), got", "Write {0} or more."),
        (r"^can never match", "Change the matcher, or take the rule out: as it stands it does nothing."),
        (r"must not be (?:an )?empty", "Write something here, or take the key out."),
        (r"^unknown (\w+) '(.+?)'", "Declare '{1}' first, or name one that there is."),
    )
)
ELSE: Final = "Change this place as the sentence says, and check again."
ODD: Final = "It may stay as it is: a plan with warnings can be activated."
_SHOWN: Final = 160
"""Letters of a line that are shown."""


@dataclass(frozen=True, slots=True)
class Told:
    """One problem, worded."""

    line: int
    column: int
    path: str
    what: str
    fix: str
    severity: str
    excerpt: str
    """The line itself, with a mark below the place; empty when there is no such line."""

    @property
    def error(self) -> bool:
        return self.severity == "error"


@dataclass(frozen=True, slots=True)
class Source:
    """A text as it is shown: its lines are numbered, those with a problem marked."""

    text: str
    lines: int
    problems: tuple[Told, ...]

    @property
    def errors(self) -> tuple[Told, ...]:
        return tuple(one for one in self.problems if one.error)

    @property
    def warnings(self) -> tuple[Told, ...]:
        return tuple(one for one in self.problems if not one.error)

    @property
    def marks(self) -> dict[int, str]:
        """Line → the worst that is there."""
        found: dict[int, str] = {}
        for one in self.problems:
            if found.get(one.line) != "error":
                found[one.line] = one.severity
        return found


def annotate(text: str, problems: Iterable[Problem] = ()) -> Source:
    """The text with its problems, in the order of its lines."""
    lines = text.split("\n")
    told = [_told(lines, problem) for problem in problems]
    return Source(text, len(lines), tuple(sorted(told, key=lambda one: (one.line, one.column))))


def fix(message: str, severity: str = "error") -> str:
    """What to do about a problem."""
    for pattern, words in _FIXES:
        found = pattern.search(message)
        if found is not None:
            return words.format(*found.groups())
    return ELSE if severity == "error" else ODD


def _told(lines: list[str], problem: Problem) -> Told:
    excerpt = ""
    if 1 <= problem.line <= len(lines):
        line = lines[problem.line - 1].replace("\t", " ")
        skipped = max(0, problem.column - 80)
        shown = line[skipped : skipped + _SHOWN]
        excerpt = f"{shown}\n{' ' * (problem.column - 1 - skipped)}^"
    return Told(
        problem.line,
        problem.column,
        problem.path,
        problem.message,
        fix(problem.message, problem.severity),
        problem.severity,
        excerpt,
    )
