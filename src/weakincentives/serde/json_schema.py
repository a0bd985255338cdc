"""Writes a type's shape as JSON Schema (Draft 2020-12): it accepts exactly what the parser accepts.

The exceptions, all on the parser's strict side: what `__post_init__` and predicates refuse, bounds on decimals
written as text, on dates and on the length of bytes, and set items that differ as text but are equal as values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from weakincentives.serde.dumping import dump
from weakincentives.serde.shape import (
    AnyNode,
    Array,
    Choice,
    Link,
    Member,
    OneOf,
    Record,
    Row,
    Scalar,
    Shape,
    Table,
    shape_of,
)

_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
_CALENDAR = (
    r"(?!0000|.{5}(02-3|(0[469]|11)-31))"
    # 29 February, except in leap years
    r"(?!..([0-9][13579]|[02468][26]|[13579][048])-02-29|([02468][1235679]|[13579][01345789])00-02-29)"
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
)
_SCALARS: dict[str, dict[str, Any]] = {
    "any": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    # With an offset it is RFC 3339 (no leap second, no year 0: Python has neither); without one, the same by pattern.
    "datetime": {
        "type": "string",
        "anyOf": [
            {"format": "date-time", "pattern": "^(?!0000).{17}[0-5]"},
            {"pattern": f"^{_CALENDAR}[Tt]{_CLOCK}$"},
        ],
    },
    "date": {"type": "string", "format": "date", "pattern": "^(?!0000)"},
    "time": {"type": "string", "pattern": f"^{_CLOCK}([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$"},
    "duration": {
        "type": "string",
        "pattern": r"^-?P(?=[0-9T])([0-9]{1,8}D)?(T(?=[0-9])([0-9]{1,8}H)?([0-9]{1,8}M)?([0-9]{1,8}(\.[0-9]{1,6})?S)?)?$",
    },
    "uuid": {"type": "string", "format": "uuid"},
    "decimal": {
        "anyOf": [
            {"type": "number"},
            {"type": "string", "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"},
        ]
    },
    "path": {"type": "string"},
    "bytes": {
        "type": "string",
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    },
}
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


def schema(cls: Any, *, localns: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON Schema of a type: compiled once, a fresh copy for each caller."""
    if localns is not None:
        shape_of(cls, localns)
    try:
        made = _cached(cls)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        made = _Writer(shape_of(cls)).document()
    return _copy(made)


@functools.lru_cache(maxsize=1024)
def _cached(cls: Any) -> dict[str, Any]:
    return _Writer(shape_of(cls)).document()


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_copy(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


class _Writer:
    """Writes one document."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._used: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        root = self._shape.root
        # Providers want an object at the top, so the root record is written out and only what it refers to is a $def.
        document = self._record(self._shape.records[root.to]) if isinstance(root, Link) else self._node(root)
        if self._used:
            document["$defs"] = self._used
        return document

    def _record(self, record: Record) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object"}
        if record.description:
            made["description"] = record.description
        made["properties"] = {name: self._member(member) for name, member in record.members.items()}
        required = [name for name, member in record.members.items() if member.required]
        if required:
            made["required"] = required
        made["additionalProperties"] = False
        return made

    def _member(self, member: Member) -> dict[str, Any]:
        made = self._node(member.node)
        if member.default is not dataclasses.MISSING and not member.node.secret:
            # A default that JSON cannot show still is a default: the field stays optional.
            with contextlib.suppress(ValueError):
                made["default"] = dump(member.default, redact=True)
        return made

    def _node(self, node: AnyNode) -> dict[str, Any]:
        made = self._bare(node)
        if node.description:
            made["description"] = node.description
        return made

    def _bare(self, node: AnyNode) -> dict[str, Any]:
        match node:
            case Scalar():
                return self._scalar(node)
            case Choice():
                return _choice(node)
            case Array():
                made: dict[str, Any] = {"type": "array", "items": self._node(node.item)}
                if node.kind in ("set", "frozenset"):
                    made["uniqueItems"] = True
                return made | _lengths(node, "Items")
            case Row():
                count = len(node.items)
                made = {"type": "array", "minItems": count, "maxItems": count}
                return made | ({"prefixItems": [self._node(item) for item in node.items]} if count else {})
            case Table():
                made = {"type": "object", "additionalProperties": self._node(node.value)}
                names = self._key(node.key)
                return made | ({"propertyNames": names} if names else {}) | _lengths(node, "Properties")
            case OneOf():
                return {"anyOf": [self._node(member) for member in node.members]}
            case Link():
                if node.to not in self._used:
                    self._used[node.to] = {}  # taken, while its own references are followed
                    self._used[node.to] = self._record(self._shape.records[node.to])
                return {"$ref": f"#/$defs/{node.to}"}

    def _key(self, node: AnyNode) -> dict[str, Any]:
        if isinstance(node, Scalar) and node.kind == "integer":
            return {"pattern": "^(0|-?[1-9][0-9]{0,299})$"}
        made = self._bare(node)
        made.pop("type", None)  # names are always strings
        return made

    def _scalar(self, node: Scalar) -> dict[str, Any]:
        made: dict[str, Any] = _copy(_SCALARS[node.kind])
        rules = node.rules
        if node.kind in ("integer", "number", "decimal"):
            target = made["anyOf"][0] if node.kind == "decimal" else made
            for name, keyword in _BOUNDS.items():
                bound = getattr(rules, name)
                if bound is not None:
                    target[keyword] = bound if isinstance(bound, int | float) else float(bound)
        if node.kind == "string":
            made |= _lengths(node, "Length")
            if len(rules.patterns) == 1:
                made["pattern"] = rules.patterns[0]
            elif rules.patterns:
                made["allOf"] = [{"pattern": pattern} for pattern in rules.patterns]
        return made


def _lengths(node: AnyNode, what: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if node.rules.min_length is not None:
        made[f"min{what}"] = node.rules.min_length
    if node.rules.max_length is not None:
        made[f"max{what}"] = node.rules.max_length
    return made


def _choice(node: Choice) -> dict[str, Any]:
    values = [value for value, _ in node.values]
    made: dict[str, Any] = {"enum": values}
    kinds: set[Any] = {type(value) for value in values}
    if len(kinds) == 1:
        made["type"] = {str: "string", int: "integer", float: "number", bool: "boolean"}[kinds.pop()]
    return made
