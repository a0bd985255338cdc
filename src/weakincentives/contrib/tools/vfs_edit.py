"""One replacement in a file: decides where the old text stands, and says what is wrong when that is not exactly one place.

Works on bytes, so that everything outside the replaced text stays as it was: line endings, byte order mark, bytes that
are not UTF-8, a missing last line ending. A model is shown lines without their endings and sends LF: where the file has
CRLF, so does the new text. Otherwise nothing is guessed: a near match is named in the refusal, never taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from ...errors import ToolValidationError
from ...filesystem.protocol import encoded
from ...frozen import frozen
from .vfs_view import has_only_crlf, line_at, shorten

_SHOWN_PLACES = 10
_SHOWN_CHARS = 200
_HINT_BYTES = 4_000_000
_COMPARED_LINES = 2_000
_EXCERPT_LINES = 3
_bare_lf = re.compile(rb"(?<!\r)\n")
_numbered = re.compile(r" *\d+\t")


@frozen
class Edit:
    """A replacement that can be made."""

    content: bytes
    """The whole file afterwards."""
    lines: tuple[int, ...]
    """The lines the replaced texts began on, at most the first ten."""
    count: int
    """How many were replaced."""
    adapted: bool
    """Whether line endings of the new text were made CRLF."""


def edit(path: str, content: bytes, old: str, new: str, replace_all: bool) -> Edit:
    """Replace `old` by `new`; raises `ToolValidationError` with what to do instead."""
    if not old:
        raise ToolValidationError(
            f"Cannot edit {path}: old_string is empty\nGive the text to replace, then retry; write_file creates files."
        )
    if old == new:
        raise ToolValidationError(
            f"Cannot edit {path}: old_string and new_string are the same\nNothing would change; correct one, then retry."
        )
    wanted, put = encoded(path, old), encoded(path, new)
    exact = wanted, put
    if has_only_crlf(content) or (wanted not in content and b"\r\n" in content):
        wanted, put = _bare_lf.sub(b"\r\n", wanted), _bare_lf.sub(b"\r\n", put)
    places = _places(content, wanted)
    if not places:
        raise ToolValidationError(f"Cannot edit {path}: old_string was not found\n{_hint(content, old)}")
    count = max(content.count(wanted), len(places))
    lines = tuple(line_at(content, place) for place in places[:_SHOWN_PLACES])
    if count > 1 and not replace_all:
        raise ToolValidationError(
            f"Cannot edit {path}: old_string was found {count} times, on {listed(lines, count)}\n"
            "Add text around it so that it matches once, or set replace_all=true, then retry."
        )
    replaced = content.replace(wanted, put)
    if replaced == content:
        raise ToolValidationError(
            f"Cannot edit {path}: old_string and new_string are the same but for line endings, and the file has CRLF\n"
            "Nothing would change; correct one, then retry."
        )
    return Edit(replaced, lines, content.count(wanted), (wanted, put) != exact)


def _places(content: bytes, wanted: bytes) -> list[int]:
    """Where it stands, overlapping or not: the first few, and one more."""
    places: list[int] = []
    at = content.find(wanted)
    while at >= 0 and len(places) <= _SHOWN_PLACES:
        places.append(at)
        at = content.find(wanted, at + 1)
    return places


def listed(lines: tuple[int, ...], count: int) -> str:
    """The lines of so many places, as words."""
    distinct = list(dict.fromkeys(lines))
    more = count > len(lines)
    if len(distinct) == 1:
        return f"line {distinct[0]}{' and perhaps others' if more else ''}"
    if more:
        return f"lines {', '.join(map(str, distinct))} and perhaps others"
    return f"lines {', '.join(map(str, distinct[:-1]))} and {distinct[-1]}"


# -- what to say when nothing was found --------------------------------------------------------------------------------


def _hint(content: bytes, old: str) -> str:
    if "\ufffd" in old:
        return "It has \ufffd, which stands for bytes that are not UTF-8; choose text without it, then retry."
    wanted = old.replace("\r\n", "\n").split("\n")
    if old.strip() and all(_numbered.match(line) for line in wanted if line):
        return "It begins with line numbers, which are not part of the file; leave them out, then retry."
    if len(content) > _HINT_BYTES:
        return "Find the place with grep_files and read it again, then retry with text copied from it."
    lines = content.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    for form, difference in _FORMS:
        at = _find(lines, wanted, form)
        if at:
            span = max(len(wanted) - (not wanted[-1]), 1)  # behind a last line ending there is no line
            return f"{_from(at, span)} {difference}, then retry.{_excerpt(lines, at, span)}"
    at = _nearest(lines, next((line.strip() for line in wanted if line.strip()), ""))
    if at:
        return (
            f"The line most like it is line {at}; read the file again, then retry with text copied from it."
            f"{_excerpt(lines, at, 1)}"
        )
    return "Nothing like it is in the file; read it again, then retry with text copied from it."


def _as_is(line: str) -> str:
    return line


def _composed(line: str) -> str:
    return unicodedata.normalize("NFC", line)


def _spaceless(line: str) -> str:
    return "".join(_composed(line).split())


def _caseless(line: str) -> str:
    return _spaceless(line).casefold()


_FORMS: tuple[tuple[Callable[[str], str], str], ...] = (
    (_as_is, "it is the same but for line endings; replace one line at a time, without its ending"),
    (_composed, "it is the same in another Unicode form (accents composed or apart); choose text without accents"),
    (_spaceless, "it is the same but for spaces and tabs; copy them as they are"),
    (_caseless, "it is the same but for capital letters or spaces; copy them as they are"),
)
"""Ways to read a line, from strict to loose, and what it means when only this one finds the text."""


def _find(lines: list[str], wanted: list[str], form: Callable[[str], str]) -> int:
    """The number of the line that `wanted` begins on when lines are read in this form; 0 if it does not."""
    needle = "\n".join(map(form, wanted))
    if not needle.strip():
        return 0
    text = "\n".join(map(form, lines))
    return text.count("\n", 0, at) + 1 if (at := text.find(needle)) >= 0 else 0


def _nearest(lines: list[str], wanted: str) -> int:
    """The number of the line most like `wanted`; 0 if none is."""
    import difflib

    known = {line.strip(): number for number, line in enumerate(lines[:_COMPARED_LINES], 1) if len(line) <= 2_000}
    if not wanted or len(wanted) > _SHOWN_CHARS:
        return 0
    close = difflib.get_close_matches(wanted, known, n=1)
    return known[close[0]] if close else 0


def _from(at: int, count: int) -> str:
    return f"On line {at}" if count == 1 else f"On lines {at}-{at + count - 1}"


def _excerpt(lines: list[str], at: int, count: int) -> str:
    """The first of those lines, written so that tabs and spaces at the ends can be seen."""
    shown = lines[at - 1 : at - 1 + min(count, _EXCERPT_LINES)]
    return "".join(f"\nLine {number}: {shorten(line, _SHOWN_CHARS)!r}" for number, line in enumerate(shown, at))
