"""Regular expressions that run in linear time whatever a caller sends. The only importer of re2.

`PatternSet` looks for many patterns in one pass. It carries a pattern that always matches: when that one is missing from an answer
the engine gave up, and the patterns are tried one by one. A search that fails is never taken for "no match".
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import re2

from wardwright.errors import WardwrightError


class BadPattern(WardwrightError, ValueError):
    """A pattern that is none, or that needs more than linear time (look-around, back-references)."""


class Match(Protocol):
    def start(self, group: int = 0) -> int: ...
    def end(self, group: int = 0) -> int: ...


class Pattern(Protocol):
    def search(self, text: str) -> Match | None: ...
    def fullmatch(self, text: str) -> Match | None: ...
    def sub(self, replacement: str, text: str) -> str: ...


def _options(ignore_case: bool, dot_nl: bool) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.dot_nl = dot_nl
    options.max_mem = 64 << 20
    return options


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str, *, ignore_case: bool = False, dot_nl: bool = False) -> Pattern:
    """A compiled pattern; BadPattern says why it is none."""
    try:
        return cast("Pattern", re2.compile(pattern, _options(ignore_case, dot_nl)))
    except re2.error as error:
        reason: Any = error.args[0] if error.args else error
        raise BadPattern(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
    except UnicodeError as error:
        raise BadPattern("not valid Unicode") from error


def _clean(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class PatternSet:
    """Many patterns, one pass. Each is (pattern, ignore_case)."""

    __slots__ = ("_set", "_single", "size")

    def __init__(self, patterns: Sequence[tuple[str, bool]]) -> None:
        self.size = len(patterns)
        self._single = [compile_pattern(pattern, ignore_case=ignore) for pattern, ignore in patterns]
        self._set: Any = re2.Set.SearchSet(_options(False, False))
        for pattern, ignore in patterns:
            self._set.Add(f"(?i:{pattern})" if ignore else f"(?:{pattern})")
        self._set.Add("")
        self._set.Compile()

    def search(self, text: str) -> list[int]:
        """Indexes of the patterns that occur in `text`."""
        found: list[int] = self._set.Match(_clean(text))
        size = self.size
        if len(found) == 1 and found[0] == size:
            return []
        if size in found:
            return sorted(index for index in found if index != size)
        clean = _clean(text).decode()
        return [index for index, pattern in enumerate(self._single) if pattern.search(clean) is not None]

    def search_all(self, texts: Iterable[str]) -> set[int]:
        hits: set[int] = set()
        for text in texts:
            if text:
                hits.update(self.search(text))
        return hits
