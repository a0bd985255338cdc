"""Reads a function's docstring: its first line, and what it says of each parameter (Google, NumPy or Sphinx style).

Only reads; a docstring in no known style simply describes no parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_GOOGLE_HEAD = r"(Args|Arguments|Parameters|Params):\s*$"
_GOOGLE_ITEM = r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$"
_NUMPY_ITEM = r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$"
_SPHINX_ITEM = r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"


def first_line(function: object) -> str:
    """The docstring's first line; empty when there is none."""
    text = inspect.getdoc(function)
    return text.strip().partition("\n")[0].strip() if text else ""


def parameter_descriptions(function: object) -> dict[str, str]:
    """What the docstring says of each parameter, each as one line."""
    lines = (inspect.getdoc(function) or "").splitlines()
    found: dict[str, str] = {}
    for names, text in (*_sphinx(lines), *_google(lines), *_numpy(lines)):
        for name in re.split(r"\s*,\s*", names):
            if text:
                found.setdefault(name, text)
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], start: int, deeper_than: int) -> Iterator[str]:
    """The lines from `start` that are blank or indented deeper."""
    for line in lines[start:]:
        if line.strip() and _indent(line) <= deeper_than:
            return
        yield line


def _more(first: str, lines: list[str], start: int, indent: int) -> str:
    """A description with its continuation lines, up to a blank line."""
    parts = [first]
    for line in _block(lines, start, indent):
        if not line.strip():
            break
        parts.append(line.strip())
    return " ".join(part.strip() for part in parts if part.strip())


def _sphinx(lines: list[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate(lines):
        match = re.match(_SPHINX_ITEM, line.strip())
        if match:
            yield match[1], _more(match[2], lines, at + 1, _indent(line))


def _google(lines: list[str]) -> Iterator[tuple[str, str]]:
    for head, line in enumerate(lines):
        if not re.match(_GOOGLE_HEAD, line.strip()):
            continue
        body = list(_block(lines, head + 1, _indent(line)))
        depth = min((_indent(item) for item in body if item.strip()), default=0)
        for at, item in enumerate(body):
            match = re.match(_GOOGLE_ITEM, item.strip()) if _indent(item) == depth else None
            if match:
                yield match[1], _more(match[2], body, at + 1, depth)


def _numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    for head in range(len(lines) - 1):
        if lines[head].strip() != "Parameters" or not re.fullmatch(r"-{3,}", lines[head + 1].strip()):
            continue
        depth = _indent(lines[head])
        for at in range(head + 2, len(lines)):
            line = lines[at]
            if re.fullmatch(r"-{3,}", lines[at + 1].strip()) if at + 1 < len(lines) else False:
                break  # the title of the next part
            match = re.match(_NUMPY_ITEM, line.strip()) if line.strip() and _indent(line) == depth else None
            if match:
                yield match[1], _more("", lines, at + 1, depth)
