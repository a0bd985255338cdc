"""Regular expressions that run in linear time whatever a caller sends. The only importer of re2.

`PatternSet` looks for many patterns in one pass. It carries a pattern that every text matches, at its end: when that one is missing
from an answer the engine gave up, and the patterns are tried one by one. A search that fails is never taken for "no match".
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, cast

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
    @property
    def programsize(self) -> int: ...
    def sub(self, replacement: str, text: str) -> str: ...


FOREIGN_MEMORY: Final = 1 << 19
FOREIGN_LENGTH: Final = 2_000
"""Bounds of a pattern that a caller chose. What is kept of such patterns is bounded in number as well."""


def _options(ignore_case: bool, dot_nl: bool, memory: int = 64 << 20) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.dot_nl = dot_nl
    options.max_mem = memory
    return options


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str, *, ignore_case: bool = False, dot_nl: bool = False) -> Pattern:
    """The operator's pattern, compiled; BadPattern says why it is none."""
    return _compile(pattern, _options(ignore_case, dot_nl))


@lru_cache(maxsize=64)
def compile_foreign(pattern: str) -> Pattern:
    """A caller's pattern: small ones only, in a memory of their own, so that callers displace none of the operator's."""
    if len(pattern) > FOREIGN_LENGTH:
        raise BadPattern("pattern too long")
    return _compile(pattern, _options(False, False, FOREIGN_MEMORY))


def _compile(pattern: str, options: Any) -> Pattern:
    try:
        return cast("Pattern", re2.compile(pattern, options))
    except re2.error as error:
        reason: Any = error.args[0] if error.args else error
        raise BadPattern(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
    except UnicodeError as error:
        raise BadPattern("not valid Unicode") from error


def _enclosed(pattern: str, ignore_case: bool) -> str:
    """The pattern as one of a set. A quotation it leaves open (`\\Q`) is closed, or it would swallow the parenthesis."""
    opening = "(?i:" if ignore_case else "(?:"
    if r"\Q" in pattern:
        try:
            _compile(f"{opening}{pattern})", _options(False, False))
        except BadPattern:
            return rf"{opening}{pattern}\E)"
    return f"{opening}{pattern})"


class PatternSet:
    """Many patterns, one pass. Each is (pattern, ignore_case)."""

    __slots__ = ("_anywhere", "_nothing", "_set", "_single", "size")

    def __init__(self, patterns: Sequence[tuple[str, bool]]) -> None:
        self.size = len(patterns)
        self._single = [compile_pattern(pattern, ignore_case=ignore) for pattern, ignore in patterns]
        together: Any = re2.Set.SearchSet(_options(False, False))
        for pattern, ignore in patterns:
            together.Add(_enclosed(pattern, ignore))
        # WHY NOT the empty pattern: that occurs at every letter, and to note it there takes longer than to read the letter.
        together.Add(r"\z")
        try:
            together.Compile()
        except re2.error:
            together = None  # too much together: they are tried one by one
        self._set: Any = together
        self._nothing = [self.size]
        """The answer when no pattern occurs but the one that stands for the end."""
        self._anywhere = not any(sign in pattern for pattern, _ in patterns for sign in "^$\\")
        """No pattern asks what stands around it: what occurs in a text occurs in every longer one."""

    def search(self, text: str) -> list[int]:
        """Indexes of the patterns that occur in `text`."""
        clean = text.encode("utf-8", "replace")
        # None is what the engine says when it gave up.
        found: list[int] = (self._set.Match(clean) or []) if self._set is not None else []
        if found == self._nothing:
            return []
        if self.size in found:
            return sorted(index for index in found if index != self.size)
        whole = clean.decode()
        return [index for index, pattern in enumerate(self._single) if pattern.search(whole) is not None]

    def search_all(self, texts: Sequence[str]) -> set[int]:
        hits: set[int] = set()
        # A search costs as much as a hundred letters, so a few texts are read on end first: nearly always none has a hit.
        if self._anywhere and len(texts) > 1:
            whole = "\n".join(texts)
            # As `search` does, without the call.
            if self._set is not None and self._set.Match(whole.encode("utf-8", "replace")) == self._nothing:
                return hits
            if not self.search(whole):
                return hits
        for text in texts:
            if text and (found := self.search(text)):
                hits.update(found)
        return hits
