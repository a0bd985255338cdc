"""Two texts side by side as lines that were taken out, put in, or stayed. Bounded: what is too long to compare is not."""

from __future__ import annotations

from ..frozen import frozen

_LONGEST = 200_000
"""Characters of a text that are compared."""
_MOST_LINES = 1_600
"""Changed lines that are matched with each other: it takes time with the square of their number."""
_CONTEXT = 3


@frozen
class Line:
    """One line of a comparison."""

    mark: str
    """`+` put in, `-` taken out, a space for what stayed, `@` where lines are left out."""
    text: str

    def __str__(self) -> str:
        return f"{self.mark}{self.text}"


def compare(before: str, after: str) -> tuple[Line, ...]:
    """What turns one text into the other, with a few lines around."""
    if before == after:
        return ()
    if max(len(before), len(after)) > _LONGEST:
        return (Line("@", f" too long to compare: {len(before)} characters before, {len(after)} after"),)
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return (Line("@", " only line endings differ"),)
    first = _alike(old, new)
    rest = min(len(old), len(new)) - first
    last = min(rest, _alike(old[::-1], new[::-1]))
    start = max(0, first - _CONTEXT)
    around = (old[start : len(old) - max(0, last - _CONTEXT)], new[start : len(new) - max(0, last - _CONTEXT)])
    if len(around[0]) + len(around[1]) > _MOST_LINES:
        return _replaced(old, new, first, last)
    return _matched(*around, start)


def _alike(old: list[str], new: list[str]) -> int:
    """How many lines are the same from the beginning on."""
    return next(
        (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )


def _matched(old: list[str], new: list[str], start: int) -> tuple[Line, ...]:
    """The smallest difference of two short texts that begin at line `start`."""
    if not old or not new:
        return tuple([Line("-", line) for line in old] + [Line("+", line) for line in new])
    import difflib

    lines: list[Line] = []
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        head, tail = group[0], group[-1]
        lines.append(_gap(start + head[1], start + tail[2], start + head[3], start + tail[4]))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += (Line(" ", line) for line in old[i1:i2])
                continue
            lines += (Line("-", line) for line in old[i1:i2])
            lines += (Line("+", line) for line in new[j1:j2])
    return tuple(lines)


def _replaced(old: list[str], new: list[str], first: int, last: int) -> tuple[Line, ...]:
    """All lines between the same beginning and the same end, as if each were another."""
    gone, come = old[first : len(old) - last], new[first : len(new) - last]
    return (
        _gap(first, first + len(gone), first, first + len(come)),
        *(Line("-", line) for line in gone),
        *(Line("+", line) for line in come),
    )


def _gap(first: int, last: int, new_first: int, new_last: int) -> Line:
    return Line("@", f" {first + 1}-{last} → {new_first + 1}-{new_last}")
