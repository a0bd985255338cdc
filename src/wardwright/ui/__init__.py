"""The pages' text: templates to HTML, and the files that pages load. Whatever is put in is escaped, whoever wrote it, and what
could not be seen is made visible; a field that is sent back holds its text exactly (`|exact`).

Pure: values in, text out. Knows no gateway and no store; never reads anything but the package's own files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final

_KINDS: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Called letters or marks, and seen by nobody."""


@dataclass(frozen=True, slots=True)
class Static:
    """A file that pages load."""

    body: bytes
    kind: str
    """For the header Content-Type."""
    digest: str
    """Of its content: part of its address, so that a browser may keep it for ever."""


def render(template: str, /, **values: Any) -> str:
    """The template with these values. A name that is not given is an error, not an empty place."""
    return _environment().get_template(template).render(values)


def static(name: str) -> Static | None:
    """A file by its name; None when there is none of that name."""
    return _files().get(name)


@cache
def _files() -> Mapping[str, Static]:
    """Those there are, read once: what strangers ask for is looked up, never opened or kept."""
    found: dict[str, Static] = {}
    for file in resources.files("wardwright.ui").joinpath("static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = Static(body, kind, hashlib.sha256(body).hexdigest()[:16])
    return found


def asset(name: str) -> str:
    """The address of a file, with what it holds in it."""
    found = static(name)
    if found is None:
        raise LookupError(f"no file '{name}' in ui/static")
    return f"/static/{name}?v={found.digest}"


def moment(at_ms: int | None) -> str:
    """A time in words: `2026-12-31 18:00:00 UTC`."""
    if not at_ms:
        return "—"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def duration(ms: float | None) -> str:
    """A length of time in words: `3 min 20 s`."""
    if ms is None:
        return "—"
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    if ms < 1000:
        return f"{sign}{ms:.3g} ms"
    if ms < 60_000:
        return f"{sign}{ms / 1000:.3g} s"
    seconds = int(ms // 1000)
    parts = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    place = next(place for place, (length, _) in enumerate(parts) if seconds >= length)
    (length, unit), (next_length, next_unit) = parts[place : place + 2]
    rest = seconds % length // next_length
    return f"{sign}{seconds // length} {unit}" + (f" {rest} {next_unit}" if rest else "")


def plural(count: int, one: str, many: str = "") -> str:
    """`1 receipt`, `4,120 receipts`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def pretty(value: Any) -> str:
    """JSON to be read by people."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def readable(text: Any) -> str:
    """JSON in a text, indented; any other text as it is; other values as JSON. Also as it is: JSON that another reader may take for
    something else (a name given twice, a number that does not come out as it went in), since who approves must see what is released."""
    if not isinstance(text, str):
        return pretty(text)
    try:
        return pretty(
            json.loads(text, object_pairs_hook=_once, parse_float=_float, parse_int=_whole, parse_constant=_float)
        )
    except (ValueError, RecursionError):
        return text


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _float(text: str) -> float:
    if repr(found := float(text)) != text:
        raise ValueError("it is written in another way")
    return found


def _whole(text: str) -> int:
    if str(found := int(text)) != text:
        raise ValueError("it is written in another way")
    return found


def visible(value: Any) -> Any:
    """Text as it is shown: what would hide itself, or turn the order of reading around, is written out (`\\u202e`). Other values,
    and HTML that was made here, as they are."""
    if type(value) is not str or (value.isascii() and value.isprintable()):
        return value
    odd = {one for one in set(value) if one in _BLANK or (one not in "\n\t" and not one.isprintable())}
    if not odd:
        return value
    return value.translate({ord(one): one.encode("unicode_escape").decode() for one in odd})


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def time(at_ms: int | None) -> str:
        shown = moment(at_ms)
        if not at_ms or not shown.endswith("UTC"):
            return shown
        machine = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return Markup('<time datetime="{}">{}</time>').format(machine, shown)

    environment = Environment(
        loader=PackageLoader("wardwright.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=visible,
    )
    filters: dict[str, Callable[..., Any]] = {
        "time": time,
        "moment": moment,
        "duration": duration,
        "plural": plural,
        "json": pretty,
        "readable": readable,
        # For what a form sends back: every character as it was.
        "exact": escape,
    }
    environment.filters.update(filters)
    names: dict[str, Any] = environment.globals  # pyright: ignore[reportAssignmentType]
    names["asset"] = asset
    return environment
