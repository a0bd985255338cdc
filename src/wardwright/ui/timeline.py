"""A counter-example as a drawn timeline: what the client sends on the left, what the model answers on the right, what was ruled
in the middle, and the state that held beside it.

Reads the answer of `Proof.as_json()`, so what is drawn is what the command line says. The same stands in words in `entries`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from wardwright.ui import visible
from wardwright.ui.picture import duration_words, svg

_WIDTH: Final = 300
_LINE: Final = 17
_LETTERS: Final = 38
_SHOWN: Final = 4
"""Lines of one box; the list has all of it."""
_GAP: Final = 18
_PAUSE: Final = 34
_STATE: Final = 190


@dataclass(frozen=True, slots=True)
class Entry:
    """One gate in words."""

    number: int
    gate: str
    who: str
    at: str
    """Since the session began."""
    pause: str
    """How long nothing happened before it; empty: not at all."""
    what: tuple[str, ...]
    decision: str
    rules: tuple[str, ...]
    states: tuple[str, ...]
    moved: bool
    """A state is another one than before this gate."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Drawn, and in words."""

    svg: Markup
    entries: tuple[Entry, ...]
    summary: str


def timeline(steps: Sequence[Mapping[str, Any]], title: str, name: str = "timeline") -> Timeline:
    """`steps` as `Proof.as_json` has them; `title` is the question."""
    entries = tuple(_entries(steps))
    summary = " ".join(_words(entry) for entry in entries)
    return Timeline(_draw(entries, title, summary, name), entries, summary)


def _entries(steps: Sequence[Mapping[str, Any]]) -> list[Entry]:
    found: list[Entry] = []
    before: Mapping[str, str] | None = None
    for number, step in enumerate(steps, 1):
        states: Mapping[str, str] = step.get("states", {})
        several = len(states) > 1
        found.append(
            Entry(
                number,
                step["gate"],
                "model" if step["gate"] == "reply" else "client",
                f"{duration_words(int(step['at_ms']))}" if step["at_ms"] else "at the start",
                f"{duration_words(int(step['waited_ms']))} pass" if step.get("waited_ms") else "",
                tuple(step.get("what", ())) or ("nothing new",),
                step["decision"],
                tuple(step.get("rules", ())),
                tuple(f"{machine}: {state}" if several else state for machine, state in states.items()),
                before is not None and dict(states) != dict(before),
            )
        )
        before = states
    return found


def _words(entry: Entry) -> str:
    pause = f"{entry.pause}. " if entry.pause else ""
    by = f" by {', '.join(entry.rules)}" if entry.rules else ""
    state = f", state {', '.join(entry.states)}" if entry.states else ""
    return f"{pause}{entry.number}. {entry.gate}: {', '.join(entry.what)} ({entry.decision}{by}{state})."


def _draw(entries: Sequence[Entry], title: str, summary: str, name: str) -> Markup:
    """From top to bottom, one box per gate."""
    middle = _WIDTH + 60
    right = middle + 60
    band = right + _WIDTH + 24
    pieces: list[Markup] = [
        _text(8, 18, "client → gateway", "edge", "start"),
        _text(right, 18, "model → gateway", "edge", "start"),
        _text(band, 18, "state", "edge", "start"),
    ]
    y = 34.0
    spans: list[list[Any]] = []
    for entry in entries:
        if entry.pause:
            pieces.append(_shape('<path class="pause" d="M{x} {y} L{x} {end}"/>', x=middle, y=y - _GAP, end=y + _PAUSE))
            pieces.append(_text(middle + 12, y + 14, entry.pause, "edge", "start"))
            y += _PAUSE
        lines = _lines(entry)
        tall = len(lines) * _LINE + 16
        left = 8 if entry.gate != "reply" else right
        centre = y + tall / 2
        pieces.append(
            _shape(
                '<rect class="step {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>',
                kind=entry.decision,
                x=left,
                y=y,
                width=_WIDTH,
                height=tall,
            )
        )
        pieces.extend(
            _text(left + 10, y + 22 + _LINE * place, line, "name", "start") for place, line in enumerate(lines)
        )
        begin, end = (left + _WIDTH, middle - 13) if entry.gate != "reply" else (left, middle + 13)
        pieces.append(
            _shape(
                '<path class="arrow rule" d="M{a} {y} L{b} {y}" marker-end="url(#{name}-head)"/>',
                a=begin,
                b=end,
                y=centre,
                name=name,
            )
        )
        pieces.append(
            _shape('<circle class="dot {kind}" cx="{x}" cy="{y}" r="12"/>', kind=entry.decision, x=middle, y=centre)
        )
        pieces.append(_text(middle, centre + 5, str(entry.number), "number"))
        state = ", ".join(entry.states)
        if spans and spans[-1][0] == state:
            spans[-1][2] = y + tall
        else:
            spans.append([state, y, y + tall])
        y += tall + _GAP
    for state, top, bottom in spans:
        pieces.append(
            _shape(
                '<rect class="band" x="{x}" y="{y}" width="5" height="{height}" rx="2"/>',
                x=band,
                y=top,
                height=bottom - top,
            )
        )
        pieces.append(_text(band + 12, top + 22, _cut(state or "none", 24), "name", "start"))
    line = _shape('<path class="line" d="M{x} 26 L{x} {end}"/>', x=middle, end=y - _GAP + 6)
    return svg(name, band + _STATE, y, f"Timeline: {title}", summary, [line, *pieces])


def _lines(entry: Entry) -> list[str]:
    lines = [_cut(what, _LETTERS) for what in entry.what]
    if len(lines) > _SHOWN:
        lines = [*lines[: _SHOWN - 1], f"and {len(lines) - _SHOWN + 1} more"]
    by = f" by {', '.join(entry.rules)}" if entry.rules else ""
    return [*lines, _cut(f"→ {entry.decision}{by}", _LETTERS)]


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _shape(pattern: str, **values: float | str) -> Markup:
    return Markup(pattern).format(**{key: one if isinstance(one, str) else f"{one:.0f}" for key, one in values.items()})


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> Markup:
    return Markup('<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>').format(
        kind=kind, x=f"{x:.0f}", y=f"{y:.0f}", anchor=anchor, words=visible(words)
    )
