"""The pages' text: templates to HTML, and the files that pages load. Whatever is put in is escaped, whoever wrote it.

Pure: values in, text out. Knows no gateway and no store; never reads anything but the package's own files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
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


@cache
def static(name: str) -> Static | None:
    """A file by its name; None when there is none of that name."""
    file = resources.files("wardwright.ui").joinpath("static", name)
    kind = _KINDS.get(name.rpartition(".")[2])
    # One plain name: nothing that a path could be made of.
    if kind is None or "/" in name or "\\" in name or name.startswith(".") or not file.is_file():
        return None
    body = file.read_bytes()
    return Static(body, kind, hashlib.sha256(body).hexdigest()[:16])


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
    """JSON in a text, indented; any other text as it is; other values as JSON."""
    if not isinstance(text, str):
        return pretty(text)
    try:
        return pretty(json.loads(text))
    except (ValueError, RecursionError):
        return text


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

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
    )
    filters: dict[str, Callable[..., Any]] = {
        "time": time,
        "moment": moment,
        "duration": duration,
        "plural": plural,
        "json": pretty,
        "readable": readable,
    }
    environment.filters.update(filters)
    names: dict[str, Any] = environment.globals  # pyright: ignore[reportAssignmentType]
    names["asset"] = asset
    return environment
