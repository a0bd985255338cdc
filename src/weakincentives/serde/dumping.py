"""Turns a value into what JSON can hold, secrets redacted on demand. Needs no pydantic.

The one way out of the process for params, results and events. Must never write a secret when asked to redact,
and must never loop on a value that contains itself.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import datetime
import enum
import json
import math
import os
import sys
import typing
from collections.abc import Mapping
from typing import Any, cast

import orjson

from weakincentives.serde.problem import path_text
from weakincentives.serde.resolve import field_names
from weakincentives.serde.secret import REDACTED, has_secrets, is_secret, member_hint, secret_hints

_MAX_DEPTH = 200
_PLAIN = frozenset({str, int, bool, type(None)})

_TOO_DEEP = f"Cannot dump a value that is nested deeper than {_MAX_DEPTH} levels or contains itself"

_Path = tuple[str | int, ...]


def dump(value: object, *, redact: bool = False) -> Any:
    """The value as dict, list, str, number, bool or None; raises ValueError, with the path, for anything else."""
    try:
        return _dump(value, None, redact, ())
    except RecursionError:  # the caller's own stack was deep already
        raise ValueError(_TOO_DEEP) from None


def dump_json(value: object, *, redact: bool = False) -> str:
    """The value as JSON text."""
    plain = dump(value, redact=redact)
    try:
        return orjson.dumps(plain).decode()
    except TypeError:  # integers beyond 64 bits, deep nesting, halves of surrogate pairs: slower, but possible
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def redact(value: object) -> Any:
    """The value dumped, with every secret field replaced by `[redacted]`."""
    return dump(value, redact=True)


def _dump(value: Any, hint: object, redact: bool, path: _Path) -> Any:
    kind = cast("type[object]", type(value))
    if hint is not None:
        hint = member_hint(hint, value)
        if is_secret(hint):
            return None if value is None else REDACTED
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"Cannot dump {path_text(path)}: {value} is not a JSON number")
        return value
    if len(path) > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, enum.Enum):
        return _dump(value.value, None, redact, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dump_record(value, hint, redact, path)
    if isinstance(value, Mapping):
        return _dump_mapping(cast("Mapping[Any, Any]", value), hint, redact, path)
    text = scalar_text(value)
    if text is not None:
        return text
    if isinstance(value, set | frozenset):
        items = _dump_items(list(cast("set[Any]", value)), hint, redact, path)
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _dump(float(value), None, redact, path)
    if isinstance(value, collections.abc.Sequence):
        return _dump_items(cast("collections.abc.Sequence[Any]", value), hint, redact, path)
    raise ValueError(f"Cannot dump {path_text(path)}: {kind.__qualname__} has no JSON form")


def _dump_record(value: Any, hint: object, redact: bool, path: _Path) -> dict[str, Any]:
    cls = cast("type[object]", type(value))
    # The hint knows the arguments of a generic class; the instance does not.
    hints: Mapping[str, object] = {}
    if redact:
        hints = secret_hints(hint if hint is not None and typing.get_origin(hint) is cls else cls)
    made: dict[str, Any] = {}
    for name in field_names(cls):
        item = getattr(value, name)
        if type(item) in _PLAIN and name not in hints:
            made[name] = item
        else:
            made[name] = _dump(item, hints.get(name), redact, (*path, name))
    return made


def _dump_mapping(value: Mapping[Any, Any], hint: object, redact: bool, path: _Path) -> dict[str, Any]:
    arguments = typing.get_args(hint)
    key_hint, item_hint = arguments if len(arguments) == 2 else (None, None)
    made: dict[str, Any] = {}
    for key, item in value.items():
        name = _key_text(_dump(key, key_hint, redact, path), path)
        while name in made:  # keys that only differ in Python (1 and "1"), or several redacted ones: lose none
            name += "'"
        made[name] = _dump(item, item_hint, redact, (*path, name))
    return made


def _key_text(key: Any, path: _Path) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float) or key is None:
        return json.dumps(key)
    raise ValueError(f"Cannot dump {path_text(path)}: a key must be text or a scalar")


def _dump_items(items: collections.abc.Sequence[Any], hint: object, redact: bool, path: _Path) -> list[Any]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        hints: collections.abc.Sequence[object] = arguments if len(arguments) == len(items) else ()
    else:
        hints = [arguments[0]] * len(items) if arguments else ()
    if not hints:
        hints = [None] * len(items)
    return [
        _dump(item, item_hint, redact, (*path, at))
        for at, (item, item_hint) in enumerate(zip(items, hints, strict=True))
    ]


def scalar_text(value: object) -> str | None:
    """The text that stands for a date, path, UUID, decimal, duration or bytes; None for other values."""
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return _duration_text(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case os.PathLike():
            return os.fspath(cast("os.PathLike[str]", value))
        case _:
            return _rare_text(value)


def _rare_text(value: object) -> str | None:
    # Whoever has such a value has loaded its module; dumping other values must not.
    if isinstance(value, getattr(sys.modules.get("uuid"), "UUID", ())):
        return str(value)
    if isinstance(value, getattr(sys.modules.get("decimal"), "Decimal", ())):
        if not cast("Any", value).is_finite():
            raise ValueError(f"Cannot dump {value}: it is not a JSON number")
        return str(value)
    return None


def _duration_text(value: datetime.timedelta) -> str:
    sign = "-" if value < datetime.timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06d}" if value.microseconds else ""
    return f"{sign}P{value.days}DT{hours}H{minutes}M{seconds}{fraction}S"


def hide_secrets(text: str, value: object) -> str:
    """The text with every secret that `value` holds replaced: for messages that may quote what they refused."""
    if not has_secrets(type(value)):
        return text
    for secret in sorted(_secret_texts(dump(value), dump(value, redact=True)), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def _secret_texts(plain: Any, redacted: Any) -> set[str]:
    if redacted == REDACTED and plain != REDACTED:
        return _leaves(plain)
    if isinstance(plain, dict) and isinstance(redacted, dict):
        pairs = [
            (item, cast("dict[str, Any]", redacted).get(key)) for key, item in cast("dict[str, Any]", plain).items()
        ]
    elif isinstance(plain, list) and isinstance(redacted, list):
        pairs = list(zip(cast("list[Any]", plain), cast("list[Any]", redacted), strict=False))
    else:
        return set()
    return {text for before, after in pairs for text in _secret_texts(before, after)}


def _leaves(plain: Any) -> set[str]:
    if isinstance(plain, dict):
        plain = list(cast("dict[str, Any]", plain).values())
    if isinstance(plain, list):
        return {text for item in cast("list[Any]", plain) for text in _leaves(item)}
    return set() if plain is None or isinstance(plain, bool) or plain == "" else {str(plain)}
