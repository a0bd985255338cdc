"""Encodes values for durable storage so that `decode(encode(v)) == v`: JSON with a tag where JSON has no such type.

Types are stored by `module:qualname` and version; upcasters and aliases bring old data to today's classes, and what no
class fits stays an `Opaque` that keeps its data. Must never run a constructor or `__post_init__` of a stored value:
it was valid when it was stored. Reads only what this module wrote: a log is trusted as the program's own file is.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import importlib
import math
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from weakincentives.serde.problem import path_text
from weakincentives.serde.resolve import field_names
from weakincentives.serde.secret import REDACTED, is_secret, member_hint, secret_hints

_Path = tuple[str | int, ...]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_MAX_DEPTH = 200
_TOO_DEEP = f"Cannot store a value that is nested deeper than {_MAX_DEPTH} levels or contains itself"
_PLAIN = frozenset({str, int, float, bool, type(None)})
_TAG = "$"
_PATHS = {"posix": "PurePosixPath", "windows": "PureWindowsPath", "local": "Path"}


class CodecError(ValueError):
    """The value cannot be stored, or the stored form cannot be read; the text says what and where."""


@dataclass(frozen=True)
class Opaque:
    """A stored value whose class cannot take it: gone, renamed, newer, or changed without an upcaster.

    Keeps the data as stored and encodes to it again. Reading a field of the lost class raises, with the reason.
    """

    type_name: str
    version: int
    data: Any
    """The encoded fields, exactly as stored."""
    kind: str = "data"
    reason: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash((self.type_name, self.version, self.kind))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"Cannot read '{name}' of a stored {self.type_name} (version {self.version}): {self.reason}"
        )


# --- types by name ---------------------------------------------------------------------------------------------------

_upcasters: dict[tuple[str, int], Upcaster] = {}
_aliases: dict[str, str] = {}
_found: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
# Classes made inside functions cannot be imported; those this process has stored are found here, while they live.
_local_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def register_upcaster(type_name: str, from_version: int, fn: Upcaster) -> None:
    """Says how fields stored at `from_version` become those of the next version."""
    _upcasters[type_name, from_version] = fn


def register_alias(old_name: str, new_name: str) -> None:
    """Says that values stored as `old_name` (module:qualname) are now of the class `new_name`."""
    if old_name == new_name:
        raise ValueError(f"An alias must lead to another name, got {old_name!r} twice")
    _aliases[old_name] = new_name
    _found.clear()


def forget_types() -> None:
    """Look classes up anew: another module stands under a name than before."""
    _found.clear()


def type_name(cls: type) -> str:
    """The name a class is stored under: `module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _name_of(cls: type) -> str:
    name = type_name(cls)
    if "<locals>" in name:
        _local_classes[name] = cls
        _found.pop(name, None)  # the function ran again and made the class anew
    return name


def _find(name: str) -> type | str:
    """The class of a stored name, or the reason why there is none."""
    known = _found.get(name)
    if known is not None:
        return known
    found = _look_up(name)
    if isinstance(found, type):
        _found[name] = found
    return found


def _look_up(name: str) -> type | str:
    seen: set[str] = set()
    while name in _aliases and name not in seen:
        seen.add(name)
        name = _aliases[name]
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        return f"its module cannot be imported: {error}"
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        found = _local_classes.get(name)
    return found if isinstance(found, type) else f"there is no class {name}"


def _version_of(cls: type) -> int:
    return int(cls.__dict__.get("__schema_version__", 1))


# --- encode ----------------------------------------------------------------------------------------------------------


def encode(value: object, *, redact: bool = False) -> Any:
    """The value as JSON-compatible data with type tags; secret fields become `[redacted]` on demand."""
    try:
        return _encode(value, None, redact, ())
    except RecursionError:  # the caller's own stack was deep already
        raise CodecError(_TOO_DEEP) from None


def _encode(value: Any, hint: object, redact: bool, path: _Path) -> Any:
    kind = cast("type[object]", type(value))
    if hint is not None:
        hint = member_hint(hint, value)
        if is_secret(hint):
            return None if value is None else REDACTED
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {_TAG: "int", "v": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if len(path) > _MAX_DEPTH:
        raise CodecError(_TOO_DEEP)
    if kind is list:
        return _encode_items(value, hint, redact, path)
    if kind is dict:
        return _encode_mapping(value, hint, redact, path)
    if kind is tuple:
        return {_TAG: "tuple", "v": _encode_items(value, hint, redact, path)}
    if isinstance(value, Opaque):
        return _encode_opaque(value)
    if isinstance(value, enum.Enum):
        return _encode_enum(value, path)
    if isinstance(value, type):
        return {_TAG: "type", "t": _name_of(cast("type[object]", value))}
    if dataclasses.is_dataclass(value):
        return _encode_record(value, hint, redact, path)
    return _encode_other(value, kind, hint, redact, path)


def _encode_other(value: Any, kind: Any, hint: object, redact: bool, path: _Path) -> Any:
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if kind is set or kind is frozenset:
        items = _encode_items(list(value), hint, redact, path)
        items.sort(key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
        return {_TAG: kind.__name__, "v": items}
    if kind is types.MappingProxyType:
        return {_TAG: "frozenmap", "v": _encode_mapping(value, hint, redact, path)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # a NamedTuple
        return {
            _TAG: "named",
            "t": _name_of(kind),
            "v": _encode_items(list(cast("tuple[Any, ...]", value)), None, redact, path),
        }
    rare = _encode_rare(cast("object", value), kind)
    if rare is not None:
        return rare
    raise CodecError(
        f"Cannot store {path_text(path)}: {kind.__module__}.{kind.__qualname__} is not a dataclass, an enum "
        "or a standard value; convert it before it is stored"
    )


def _encode_rare(value: object, kind: type) -> dict[str, Any] | None:
    # Whoever has such a value has loaded its module; storing other values must not.
    for tag, module, name in (("decimal", "decimal", "Decimal"), ("uuid", "uuid", "UUID")):
        if kind is getattr(sys.modules.get(module), name, None):
            return {_TAG: tag, "v": str(value)}
    pathlib: Any = sys.modules.get("pathlib")
    if not issubclass(kind, getattr(pathlib, "PurePath", ())):
        return None
    family = "local" if issubclass(kind, pathlib.Path) else "posix" if "Posix" in kind.__name__ else "windows"
    return {_TAG: "path", "v": _encode_text(str(value)), "k": family}


def _encode_datetime(value: datetime.datetime) -> dict[str, Any]:
    made: dict[str, Any] = {_TAG: "datetime", "v": value.isoformat()}
    if value.fold:
        made["fold"] = 1
    # WHY NOT import zoneinfo above: it loads the build's configuration, and few programs store a zone. Whoever has one
    # has imported it.
    zones: Any = sys.modules.get("zoneinfo")
    zone: Any = value.tzinfo
    if zones is not None and isinstance(zone, zones.ZoneInfo) and zone.key:
        made |= {"v": value.replace(tzinfo=None).isoformat(), "zone": zone.key}
    return made


_WRITERS: dict[Any, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {_TAG: "bytes", "v": base64.b64encode(value).decode()},
    datetime.datetime: _encode_datetime,
    datetime.date: lambda value: {_TAG: "date", "v": value.isoformat()},
    datetime.time: lambda value: {_TAG: "time", "v": value.isoformat()},
    datetime.timedelta: lambda value: {_TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]},
}


def _encode_text(text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON text cannot carry
        return {_TAG: "text", "v": base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}
    return text


def _encode_items(items: Any, hint: object, redact: bool, path: _Path) -> list[Any]:
    arguments = typing.get_args(hint) if hint is not None else ()
    fixed = typing.get_origin(hint) is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis)
    return [
        _encode(
            item,
            None if not arguments else arguments[min(at, len(arguments) - 1) if fixed else 0],
            redact,
            (*path, at),
        )
        for at, item in enumerate(items)
    ]


def _encode_mapping(value: Mapping[Any, Any], hint: object, redact: bool, path: _Path) -> Any:
    arguments = typing.get_args(hint) if hint is not None else ()
    key_hint, item_hint = arguments if len(arguments) == 2 else (None, None)
    if key_hint is None and all(type(key) is str and key.isascii() and key != _TAG for key in value):
        return {key: _encode(item, item_hint, redact, (*path, key)) for key, item in value.items()}
    pairs: list[list[Any]] = []
    for key, item in value.items():
        shown = key if isinstance(key, str) else repr(key)[:40]
        pairs.append([_encode(key, key_hint, redact, path), _encode(item, item_hint, redact, (*path, shown))])
    return {_TAG: "map", "v": pairs}


def _encode_enum(value: enum.Enum, path: _Path) -> dict[str, Any]:
    cls = type(value)
    if value.name in cls.__members__:
        return {_TAG: "enum", "t": _name_of(cls), "n": value.name}
    if isinstance(value, enum.Flag):  # a combination has no name of its own
        return {_TAG: "flag", "t": _name_of(cls), "n": int(value.value)}
    raise CodecError(f"Cannot store {path_text(path)}: {value!r} is not a member of its enum")


def _encode_record(value: Any, hint: object, redact: bool, path: _Path) -> dict[str, Any]:
    cls = cast("type[object]", type(value))
    hints: Mapping[str, object] = {}
    if redact:
        hints = secret_hints(hint if hint is not None and typing.get_origin(hint) is cls else cls)
    fields: dict[str, Any] = {}
    for name in field_names(cls):
        try:
            item = getattr(value, name)
        except AttributeError:
            continue  # a field without default and without init may never have been set
        if (item is None or item is True or item is False) and name not in hints:
            fields[name] = item
        else:
            fields[name] = _encode(item, hints.get(name), redact, (*path, name))
    return {_TAG: "data", "t": _name_of(cls), "n": _version_of(cls), "v": fields}


def _encode_opaque(value: Opaque) -> dict[str, Any]:
    head = {_TAG: value.kind, "t": value.type_name}
    match value.kind:
        case "data":
            return head | {"n": value.version, "v": value.data}
        case "named":
            return head | {"v": value.data}
        case "type":
            return head
        case _:
            return head | {"n": value.data}


# --- decode ----------------------------------------------------------------------------------------------------------


def decode(data: Any) -> Any:
    """The value that was encoded; an `Opaque` wherever today's classes do not fit it."""
    if type(data) in _PLAIN:
        return data
    if isinstance(data, list):
        return [decode(item) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    stored = cast("dict[str, Any]", data)
    if _TAG not in stored:
        return {key: decode(item) for key, item in stored.items()}
    tag = stored[_TAG]
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        raise CodecError(f"Cannot read a stored value with the tag {tag!r}: it was written by a newer version")
    try:
        return reader(stored)
    except (KeyError, TypeError, IndexError, ArithmeticError) as error:
        raise CodecError(f"Cannot read a stored {tag}: it is damaged ({type(error).__name__}: {error})") from error


def _decode_map(stored: dict[str, Any]) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in stored["v"]}


def _decode_datetime(stored: dict[str, Any]) -> datetime.datetime:
    value = datetime.datetime.fromisoformat(stored["v"])
    if "zone" in stored:
        value = value.replace(tzinfo=importlib.import_module("zoneinfo").ZoneInfo(stored["zone"]))
    return value.replace(fold=1) if stored.get("fold") else value


def _decode_decimal(stored: dict[str, Any]) -> object:
    import decimal

    return decimal.Decimal(stored["v"])


def _decode_uuid(stored: dict[str, Any]) -> object:
    import uuid

    return uuid.UUID(stored["v"])


def _decode_path(stored: dict[str, Any]) -> object:
    import pathlib

    return getattr(pathlib, _PATHS[stored["k"]])(decode(stored["v"]))


def _decode_enum(stored: dict[str, Any]) -> Any:
    name, member = stored["t"], stored["n"]
    cls = _find(name)
    if isinstance(cls, str):
        return Opaque(name, 1, member, stored[_TAG], cls)
    if not issubclass(cls, enum.Enum):
        return Opaque(name, 1, member, stored[_TAG], "it is no longer an enum")
    if stored[_TAG] == "flag":
        try:
            return cls(member)
        except ValueError as error:
            return Opaque(name, 1, member, "flag", str(error))
    if member not in cls.__members__:
        return Opaque(name, 1, member, "enum", f"the enum has no member {member}")
    return cls[member]


def _decode_type(stored: dict[str, Any]) -> Any:
    cls = _find(stored["t"])
    return Opaque(stored["t"], 1, None, "type", cls) if isinstance(cls, str) else cls


def _decode_named(stored: dict[str, Any]) -> Any:
    cls = _find(stored["t"])
    if isinstance(cls, str):
        return Opaque(stored["t"], 1, stored["v"], "named", cls)
    names = getattr(cls, "_fields", None)
    if names is None or len(names) != len(stored["v"]):
        return Opaque(stored["t"], 1, stored["v"], "named", "its fields have changed")
    return cast("Any", tuple).__new__(cls, [decode(item) for item in stored["v"]])


def _decode_record(stored: dict[str, Any]) -> Any:
    name, version, fields = stored["t"], stored["n"], cast("dict[str, Any]", stored["v"])
    cls = _find(name)
    if isinstance(cls, str):
        return Opaque(name, version, fields, "data", cls)
    if not dataclasses.is_dataclass(cls):
        return Opaque(name, version, fields, "data", "it is no longer a dataclass")
    today = _version_of(cls)
    if version > today:
        return Opaque(name, version, fields, "data", f"it was stored by a newer program (version {today} is known)")
    values = {key: item if type(item) in _PLAIN else decode(item) for key, item in fields.items()}
    for step in range(version, today):
        upcast = _upcasters.get((name, step)) or _upcasters.get((type_name(cls), step))
        if upcast is None:
            return Opaque(name, version, fields, "data", f"no upcaster from version {step} is registered")
        values = upcast(values)
    try:
        return _rebuild(cls, values)
    except _Misfit as error:
        return Opaque(name, version, fields, "data", str(error))


class _Misfit(Exception):
    """The stored fields are not those of the class."""


def _rebuild(cls: Any, values: dict[str, Any]) -> Any:
    """Sets the fields directly: no constructor runs."""
    made: Any = cls.__new__(cls)
    if tuple(values) == field_names(cls):  # stored by this very class: nothing to fill in
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made
    every = {each.name: each for each in dataclasses.fields(cls)}
    unknown = sorted(values.keys() - every.keys())
    if unknown:
        raise _Misfit(f"its class has no field {', '.join(unknown)}; give it a new __schema_version__ and an upcaster")
    for name, each in every.items():
        if name in values:
            value = values[name]
        elif each.default is not dataclasses.MISSING:
            value = each.default
        elif each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
        elif not each.init:
            continue
        else:
            raise _Misfit(f"field {name} is not stored; give its class a new __schema_version__ and an upcaster")
        object.__setattr__(made, name, value)
    return made


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda stored: int(stored["v"], 16),
    "float": lambda stored: float(stored["v"]),
    "text": lambda stored: base64.b64decode(stored["v"]).decode("utf-8", "surrogatepass"),
    "tuple": lambda stored: tuple(decode(item) for item in stored["v"]),
    "set": lambda stored: {decode(item) for item in stored["v"]},
    "frozenset": lambda stored: frozenset(decode(item) for item in stored["v"]),
    "map": _decode_map,
    "frozenmap": lambda stored: types.MappingProxyType(decode(stored["v"])),
    "bytes": lambda stored: base64.b64decode(stored["v"]),
    "datetime": _decode_datetime,
    "date": lambda stored: datetime.date.fromisoformat(stored["v"]),
    "time": lambda stored: datetime.time.fromisoformat(stored["v"]),
    "timedelta": lambda stored: datetime.timedelta(*stored["v"]),
    "decimal": _decode_decimal,
    "uuid": _decode_uuid,
    "path": _decode_path,
    "enum": _decode_enum,
    "flag": _decode_enum,
    "type": _decode_type,
    "named": _decode_named,
    "data": _decode_record,
}
