"""Stored values as plain data to look at, without the classes they were made of.

Decides how each stored form is shown. Never imports a module that a file names and never builds an object of it: a session's
file can be looked at by a program that has nothing to do with the agent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, cast

import orjson

_TAG = "$"


def plain(data: Any) -> Any:
    """A stored value (shapes already filled in) as JSON-compatible data: dataclasses are their fields, enums the names
    of their members, tuples and sets are lists."""
    if isinstance(data, list):
        return [plain(item) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    stored = cast("dict[str, Any]", data)
    tag: Any = stored.get(_TAG)
    if tag is None:
        return {str(key): plain(item) for key, item in stored.items()}
    read = _FORMS.get(tag) if isinstance(tag, str) else None
    return read(stored) if read is not None else plain(stored.get("v"))


def key_text(value: Any) -> str:
    """Plain data as text that is equal for equal data."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str).decode()


def shown(value: Any) -> str:
    """Plain data as lines to read and to compare."""
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def _mapping(stored: dict[str, Any]) -> Any:
    pairs = [(plain(key), plain(item)) for key, item in stored["v"]]
    return {key if isinstance(key, str) else key_text(key): item for key, item in pairs}


def _text(stored: dict[str, Any]) -> str:
    try:
        return base64.b64decode(stored["v"]).decode("utf-8", "replace")
    except (binascii.Error, TypeError):
        return ""


def _time(stored: dict[str, Any]) -> Any:
    zone = stored.get("zone")
    return f"{stored['v']} {zone}" if zone else stored["v"]


def _length(stored: dict[str, Any]) -> float:
    days, seconds, microseconds = stored["v"]
    return days * 86400 + seconds + microseconds / 1_000_000


_FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda stored: str(int(stored["v"], 16)),
    "text": _text,
    "map": _mapping,
    "datetime": _time,
    "timedelta": _length,
    "enum": lambda stored: stored["n"],
    "flag": lambda stored: stored["n"],
    "type": lambda stored: stored["t"],
    "bytes": lambda stored: f"base64:{stored['v']}",
}
