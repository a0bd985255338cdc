"""Two texts side by side as lines that were taken out, put in, or stayed. Bounded: what is too long to compare is not."""

from __future__ import annotations

from ..frozen import frozen

_LONGEST = 200_000
"""Characters of a text that are compared."""
_MOST_LINES = 4_000
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
    if max(len(old), len(new)) > _MOST_LINES:
        return (Line("@", f" too long to compare: {len(old)} lines before, {len(new)} after"),)
    if not old or not new:
        return tuple([Line("-", line) for line in old] + [Line("+", line) for line in new])
    import difflib

    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(old) + len(new) > 1_000)
    lines: list[Line] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        lines.append(Line("@", f" {first[1] + 1}-{last[2]} → {first[3] + 1}-{last[4]}"))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += (Line(" ", line) for line in old[i1:i2])
                continue
            lines += (Line("-", line) for line in old[i1:i2])
            lines += (Line("+", line) for line in new[j1:j2])
    return tuple(lines)
