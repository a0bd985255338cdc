"""How a model sees the content of a file: decides what is binary, which lines are shown, and what is said of the rest.

Works on bytes and decodes only what is shown, so that a look into a huge file costs what is looked at. Lines end at a
line feed and nowhere else. Never changes content: what cannot be shown as it is, is said in a note.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...frozen import frozen

MAX_CHARS = 60_000
"""What one look shows at most, in characters."""
MAX_LINE_CHARS = 2_000
"""What is shown of one line."""

BOM = "\ufeff"
_SAMPLE = 8_192
_BLOCK = 1 << 16
# Bytes that text has in no encoding; tab, line feed, vertical tab, form feed, return and escape it may have.
_CONTROLS = bytes(set(range(32)) - {9, 10, 11, 12, 13, 27})
_ASCII = bytes([9, 10, 11, 12, 13, 27, *range(32, 127)])


@frozen
class View:
    """Some lines of a file."""

    content: str
    """The lines as they are, endings included; a line too long is cut, and says so."""
    first: int
    """Number of the first line, counted from 1."""
    last: int
    total: int
    """How many lines the file has."""
    notes: tuple[str, ...]
    """What the reader cannot see from the lines."""


def is_binary(content: bytes) -> bool:
    """Whether this is not text we could show: it has a NUL, or begins as neither UTF-8 nor mostly ASCII."""
    if b"\0" in content or content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    sample = content[:_SAMPLE]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=len(sample) == len(content))
    except UnicodeDecodeError:
        plain = len(sample) - len(sample.translate(None, _ASCII))
        return plain * 10 < len(sample) * 7 or len(sample.translate(None, _CONTROLS)) < len(sample)
    return False


def count_lines(content: bytes) -> int:
    return content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))


def line_at(content: bytes, position: int) -> int:
    """The number of the line that a position lies on, counted from 1."""
    return content.count(b"\n", 0, position) + 1


def has_only_crlf(content: bytes) -> bool:
    """Whether every line ending is CRLF, and there is one."""
    return 0 < content.count(b"\r\n") == content.count(b"\n")


def look(content: bytes, first: int, limit: int) -> View:
    """The lines from number `first` on, which the file must have, at most `limit`."""
    start = _start_of(content, first)
    lines: list[str] = []
    shown = undecodable = 0
    while start < len(content) and len(lines) < limit:
        end = content.find(b"\n", start) + 1 or len(content)
        line, bad = _shown(content[start:end])
        if lines and shown + len(line) > MAX_CHARS:
            break
        lines.append(line)
        start, shown, undecodable = end, shown + len(line), undecodable + bad
    total, last = count_lines(content), first + len(lines) - 1
    return View("".join(lines), first, last, total, tuple(_notes(content, last, total, undecodable)))


def numbered(content: str, first: int) -> str:
    """The lines under their numbers, as a reader of a terminal knows them."""
    lines = content.removeprefix(BOM).split("\n")
    if not lines[-1]:
        lines.pop()
    return "\n".join(f"{number:>6}\t{line.removesuffix(chr(13))}" for number, line in enumerate(lines, first))


def shorten(line: str, most: int) -> str:
    """A line, cut if it is longer."""
    return line if len(line) <= most else f"{line[:most]}… [cut: {len(line) - most} more characters]"


def how_many_fit(lines: Sequence[str]) -> int:
    """How many of the lines, from the first on, can be shown at once."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_CHARS:
            return count
    return len(lines)


def _start_of(content: bytes, number: int) -> int:
    """Where a line begins, which the content must have."""
    start, left = 0, number - 1
    # Counting a block is quicker than finding each line ending in it.
    while (skipped := content.count(b"\n", start, start + _BLOCK)) < left:
        start, left = start + _BLOCK, left - skipped
    for _ in range(left):
        start = content.index(b"\n", start) + 1
    return start


def _shown(line: bytes) -> tuple[str, int]:
    """A line as text, cut if it is too long, and how many of its bytes had to be replaced."""
    ending = b"\r\n" if line.endswith(b"\r\n") else b"\n" if line.endswith(b"\n") else b""
    body = line.removesuffix(ending)
    # Four bytes are the longest character, so no more are needed to know that the line is too long.
    text = body[: 4 * MAX_LINE_CHARS + 4].decode("utf-8", "replace")
    if len(text) > MAX_LINE_CHARS:
        text = text[:MAX_LINE_CHARS]
        rest = len(body) - len(text.encode())
        return f"{text}… [cut: {rest} more bytes]{ending.decode()}", 0
    return text + ending.decode(), text.count("\ufffd") - body.count("\ufffd".encode())


def _notes(content: bytes, last: int, total: int, undecodable: int) -> list[str]:
    notes: list[str] = []
    if last < total:
        notes.append(f"Cut after line {last}; continue with offset={last + 1}.")
    if crlf := content.count(b"\r\n"):
        notes.append("Lines end in CRLF." if crlf == content.count(b"\n") else "Some lines end in CRLF, others in LF.")
    if content.startswith(codecs.BOM_UTF8):
        notes.append("The file starts with a byte order mark.")
    if last == total and not content.endswith(b"\n"):
        notes.append("The last line has no line ending.")
    if undecodable:
        notes.append(
            f"It is not all UTF-8: what cannot be shown stands as \ufffd ({undecodable} times). edit_file keeps those "
            "bytes, write_file would lose them."
        )
    return notes
