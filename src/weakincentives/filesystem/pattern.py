"""Glob patterns: decides which paths `*`, `?`, `[…]` and `**` mean, for every backend alike.

As in pathlib: `**` as a whole part is any number of directories, none included; `*` never crosses a slash and also
takes dotfiles; case counts; a trailing slash asks for directories. As in pathlib since 3.13, a trailing `**` is
everything below. One difference: without the trailing slash only files are found. Walks only where the pattern leads.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from .errors import InvalidPatternError
from .paths import ROOT, check_characters, is_inside, join, split

Children = Callable[[str], Mapping[str, bool]]
"""Names in a directory, given by canonical path; True for directories."""

_DEEP = "**"
_magic = re.compile(r"[*?\[]").search


class Pattern:
    """A parsed glob. Immutable; made by `parse`, shared by all who parse the same text."""

    __slots__ = ("_parts", "anchored", "directories", "text")

    def __init__(self, text: str) -> None:
        check_characters(text)
        parts: list[str] = []
        for part in text.split("/"):
            if part == "..":
                raise InvalidPatternError.glob(text, "'..' is not possible in a glob")
            if part in {"", "."} or (part == _DEEP and parts and parts[-1] == _DEEP):
                continue
            parts.append(part)
        if not parts:
            raise InvalidPatternError.glob(text, "it is empty")
        self.text = text
        self.anchored = text.startswith("/")
        self.directories = text.endswith("/")
        self._parts: tuple[str | re.Pattern[str], ...] = tuple(map(_compiled, parts))

    def expand(self, base: str, children: Children) -> set[str]:
        """The paths below canonical directory `base` that the pattern names."""
        files: set[str] = set()
        directories: set[str] = set()
        seen: set[tuple[str, int]] = set()
        todo = [(ROOT if self.anchored else base, 0)]
        last = len(self._parts)
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            directory, at = state
            if at == last:
                directories.add(directory)
                continue
            part = self._parts[at]
            names = children(directory)
            if part == _DEEP:
                todo.append((directory, at + 1))
                todo.extend((join(directory, name), at) for name, is_dir in names.items() if is_dir)
                if at + 1 == last:
                    files.update(join(directory, name) for name, is_dir in names.items() if not is_dir)
                continue
            if isinstance(part, str):
                hits = [(part, names[part])] if part in names else []
            else:
                hits = [(name, is_dir) for name, is_dir in names.items() if part.match(name)]
            for name, is_dir in hits:
                if is_dir:
                    todo.append((join(directory, name), at + 1))
                elif at + 1 == last:
                    files.add(join(directory, name))
        found = directories if self.directories else files
        return {path for path in found if is_inside(path, base)} if self.anchored else found

    def selects(self, path: str) -> bool:
        """True when the pattern, as a filter, takes canonical `path`: by name if it has no slash, else as a whole."""
        parts = [] if path == ROOT else path.split("/")
        if len(self._parts) == 1 and not self.anchored:
            parts = parts[-1:]
        states = {0}
        for name in parts:
            states = {after for at in self._closure(states) if (after := self._step(at, name)) is not None}
        return len(self._parts) in self._closure(states)

    def _closure(self, states: set[int]) -> set[int]:
        """`**` may stand for no directory at all."""
        return states | {at + 1 for at in states if at < len(self._parts) and self._parts[at] == _DEEP}

    def _step(self, at: int, name: str) -> int | None:
        if at == len(self._parts):
            return None
        part = self._parts[at]
        if part == _DEEP:
            return at
        matches = part == name if isinstance(part, str) else part.match(name) is not None
        return at + 1 if matches else None


@lru_cache(maxsize=256)
def parse(text: str) -> Pattern:
    """The pattern of `text`; raises `InvalidPatternError` or `InvalidPathError`."""
    return Pattern(text)


def parse_protection(readonly: bool | str | Iterable[str]) -> tuple[Pattern, ...]:
    """The patterns of what a filesystem protects: True for all, one glob, or several."""
    if isinstance(readonly, bool):
        return (parse(_DEEP),) if readonly else ()
    return tuple(parse(text) for text in ((readonly,) if isinstance(readonly, str) else readonly))


def protects(patterns: tuple[Pattern, ...], path: str) -> bool:
    """True when one of them takes canonical `path` or a directory above it."""
    if not patterns:
        return False
    while not any(each.selects(path) for each in patterns):
        if path == ROOT:
            return False
        path = split(path)[0]
    return True


def _compiled(part: str) -> str | re.Pattern[str]:
    if part == _DEEP or _magic(part) is None:
        return part
    return re.compile(fnmatch.translate(part))
