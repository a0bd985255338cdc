"""What a Python type looks like as JSON: the one reading of a type that parser and schema both follow.

Decides which types are supported and which constraints apply to them; refuses the rest when the type is read,
naming the field. Must never import pydantic, nor know how a value is parsed.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

from weakincentives.errors import PromptValidationError
from weakincentives.frozen import frozen
from weakincentives.serde.described import class_description, field_descriptions
from weakincentives.serde.resolve import fields_of, is_init_var, owned_hints, substitute, type_arguments
from weakincentives.serde.secret import Secret

Kind = Literal[
    "any", "null", "boolean", "integer", "number", "string",
    "datetime", "date", "time", "duration", "uuid", "decimal", "path", "bytes",
]  # fmt: skip
ArrayKind = Literal["list", "tuple", "set", "frozenset"]


@frozen
class Pattern:
    """A regular expression that text must match somewhere: `Annotated[str, Pattern("^[a-z]+$")]`."""

    pattern: str


@frozen
class Rules:
    """The constraints of one `Annotated`, the strictest of each kind."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    patterns: tuple[str, ...] = ()
    predicates: tuple[Callable[[Any], Any], ...] = ()

    @property
    def orders(self) -> bool:
        return any(bound is not None for bound in (self.ge, self.gt, self.le, self.lt))

    @property
    def measures(self) -> bool:
        return self.min_length is not None or self.max_length is not None


NO_RULES = Rules()


class Node:
    """One place in a type; never changed once it is made. `secret` and `description` belong to the place, not to the
    kind of value. WHY NOT a dataclass, here and below: eleven of them are felt when the package is imported."""

    __slots__ = ("description", "rules", "secret")

    def __init__(self) -> None:
        self.secret = False
        self.description = ""
        self.rules = NO_RULES


class Scalar(Node):
    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind


class Choice(Node):
    """Literal or Enum: what JSON says, and the Python value it stands for."""

    __slots__ = ("enum", "values")

    def __init__(self, values: tuple[tuple[Any, Any], ...], enum: type[enum.Enum] | None) -> None:
        super().__init__()
        self.values = values
        self.enum = enum


class Array(Node):
    __slots__ = ("item", "kind")

    def __init__(self, kind: ArrayKind, item: AnyNode) -> None:
        super().__init__()
        self.kind: ArrayKind = kind
        self.item = item


class Row(Node):
    """A tuple of fixed length."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[AnyNode, ...]) -> None:
        super().__init__()
        self.items = items


class Table(Node):
    __slots__ = ("key", "value")

    def __init__(self, key: AnyNode, value: AnyNode) -> None:
        super().__init__()
        self.key = key
        self.value = value


class OneOf(Node):
    """A union; the first member that accepts the value wins. None is always last."""

    __slots__ = ("members",)

    def __init__(self, members: tuple[AnyNode, ...]) -> None:
        super().__init__()
        self.members = members

    @property
    def nullable(self) -> bool:
        return isinstance(self.members[-1], Scalar) and self.members[-1].kind == "null"

    @property
    def only(self) -> AnyNode | None:
        """The single member of an optional type."""
        return self.members[0] if self.nullable and len(self.members) == 2 else None


class Link(Node):
    """Stands for a record, so that recursive types are finite."""

    __slots__ = ("to",)

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to = to


AnyNode: TypeAlias = Scalar | Choice | Array | Row | Table | OneOf | Link


class Member:
    """One argument of a record's constructor."""

    __slots__ = ("default", "node", "required")

    def __init__(self, node: AnyNode, required: bool, default: Any) -> None:
        self.node = node
        self.required = required
        self.default = default
        """The default value, or `dataclasses.MISSING` when there is none to show."""


class Record:
    __slots__ = ("cls", "description", "members")

    def __init__(self, cls: type, description: str, members: dict[str, Member]) -> None:
        self.cls = cls
        self.description = description
        self.members = members


class Shape:
    __slots__ = ("records", "root")

    def __init__(self, root: AnyNode, records: dict[str, Record]) -> None:
        self.root = root
        self.records = records


def _with(node: AnyNode, **changes: Any) -> AnyNode:
    """The same place with something else about it."""
    made = copy(node)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def shape_of(tp: Any, localns: Mapping[str, Any] | None = None) -> Shape:
    """Reads a type; raises PromptValidationError that says which field is not supported, and why."""
    try:
        if localns is not None:
            _read(tp, localns)  # what it resolves is kept per class, so the cached reading below finds it
        return _cached(tp)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _read(tp, localns)  # Annotated with unhashable metadata


@functools.lru_cache(maxsize=1024)
def _cached(tp: Any) -> Shape:
    return _read(tp, None)


def _read(tp: Any, localns: Mapping[str, Any] | None) -> Shape:
    reader = _Reader(localns)
    try:
        return Shape(reader.node(tp, getattr(tp, "__qualname__", None) or str(tp)), reader.records)
    except RecursionError:
        raise PromptValidationError(f"Cannot use {tp!r}: the type never ends") from None


_SCALARS: dict[Any, Kind] = {
    Any: "any",
    object: "any",
    None: "null",
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    typing.LiteralString: "string",
    datetime.datetime: "datetime",
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "duration",
    bytes: "bytes",
}
# Whoever uses such a type has loaded its module; reading other types must not.
_RARE_SCALARS: tuple[tuple[str, str, Kind], ...] = (
    ("uuid", "UUID", "uuid"),
    ("decimal", "Decimal", "decimal"),
    ("pathlib", "Path", "path"),
    ("pathlib", "PurePath", "path"),
    ("pathlib", "PurePosixPath", "path"),
)
_ARRAYS: dict[Any, ArrayKind] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.abc.Sequence: "list",
    collections.abc.MutableSequence: "list",
    collections.abc.Collection: "list",
    collections.abc.Iterable: "list",
    collections.abc.Set: "frozenset",
    collections.abc.MutableSet: "set",
}
_TABLES = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ORDERED: tuple[Kind, ...] = ("integer", "number", "decimal", "datetime", "date", "time", "duration")
_COUNTED: tuple[Kind, ...] = ("integer", "number", "decimal")
_KEYS: tuple[Kind, ...] = ("string", "integer", "uuid", "date", "datetime", "path")


def _scalar_kind(tp: Any) -> Kind | None:
    if tp.__hash__ is not None and tp in _SCALARS:
        return _SCALARS[tp]
    for module, name, kind in _RARE_SCALARS:
        if tp is getattr(sys.modules.get(module), name, _SCALARS):
            return kind
    return None


class _Reader:
    """Reads one type; lives for one call of shape_of."""

    def __init__(self, localns: Mapping[str, Any] | None) -> None:
        self.records: dict[str, Record] = {}
        self._names: dict[Any, str] = {}
        self._localns = localns

    def node(self, tp: Any, where: str) -> AnyNode:
        if isinstance(tp, typing.NewType):
            return self.node(tp.__supertype__, where)
        origin = typing.get_origin(tp)
        arguments = typing.get_args(tp)
        if origin is typing.Annotated:
            return _annotate(self.node(arguments[0], where), tp.__metadata__, where)
        if origin in (typing.Final, typing.Required, typing.NotRequired):
            return self.node(arguments[0], where)
        if hasattr(tp, "__value__") and hasattr(tp, "__type_params__"):  # `type X = …`
            return self.node(tp.__value__, where)
        kind = _scalar_kind(tp)
        if kind is not None:
            return Scalar(kind)
        if origin is typing.Literal:
            return _literal(arguments, where)
        if origin is typing.Union or origin is types.UnionType:
            return self._union(arguments, where)
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return Choice(tuple((_json_value(member.value, where), member) for member in tp), tp)
        plain = cast("Any", origin or tp)
        if isinstance(plain, type) and dataclasses.is_dataclass(plain):
            return Link(self._record(plain, arguments))
        if plain in _ARRAYS:
            if origin is tuple and not arguments and isinstance(tp, types.GenericAlias):
                return Row(())  # tuple[()]
            return self._array(plain, arguments, where)
        if plain in _TABLES:
            return self._table(arguments, where)
        if isinstance(tp, typing.TypeVar):
            return self.node(substitute(tp, {}), where)
        if isinstance(tp, str | typing.ForwardRef):
            raise PromptValidationError(f"Cannot resolve the type of {where}: {tp!r} is not a type yet")
        name = getattr(cast("object", tp), "__qualname__", None) or repr(cast("object", tp))
        raise PromptValidationError(
            f"Cannot use {where}: the type {name} has no JSON form; use a dataclass, a standard scalar, a list, a tuple, a set, a dict, a Literal or an Enum"
        )

    def _record(self, cls: type, arguments: tuple[Any, ...]) -> str:
        key = (cls, arguments)
        if key in self._names:
            return self._names[key]
        name = self._names[key] = self._name(cls, arguments)
        members: dict[str, Member] = {}
        self.records[name] = Record(cls, class_description(cls), members)
        bound = type_arguments(cls, arguments)
        hints = owned_hints(cls, self._localns)
        below = field_descriptions(cls)
        for field in fields_of(cls):
            if not field.init and not is_init_var(field):
                continue
            owner, hint = hints[field.name]
            node = self.node(substitute(hint, bound.get(owner, {})), f"{cls.__qualname__}.{field.name}")
            told = below.get(field.name) or node.description or str(field.metadata.get("description", ""))
            members[field.name] = Member(_with(node, description=told), *_default(field))
        return name

    def _name(self, cls: type, arguments: tuple[Any, ...]) -> str:
        shown = [getattr(argument, "__name__", None) or str(argument) for argument in arguments]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", "_".join([cls.__name__, *shown]))
        if name in self._names.values():
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", "_".join([f"{cls.__module__}.{cls.__qualname__}", *shown]))
        unique, number = name, 2
        while unique in self._names.values():
            unique, number = f"{name}_{number}", number + 1
        return unique

    def _union(self, arguments: tuple[Any, ...], where: str) -> AnyNode:
        members: list[AnyNode] = []
        for argument in arguments:
            node = self.node(argument, where)
            members.extend(node.members if isinstance(node, OneOf) and not node.secret else [node])
        plain = [node for node in members if not (isinstance(node, Scalar) and node.kind == "null")]
        # An integer is a number too: asked first, it keeps 1 an int and leaves 1.0 to the float.
        plain.sort(key=lambda node: 1 if isinstance(node, Scalar) and node.kind == "number" else 0)
        nullable = len(plain) < len(members)
        if len(plain) + nullable == 1:
            return members[0]
        return OneOf((*plain, Scalar("null")) if nullable else tuple(plain))

    def _array(self, plain: Any, arguments: tuple[Any, ...], where: str) -> AnyNode:
        kind = _ARRAYS[plain]
        if kind == "tuple" and arguments != () and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return Row(tuple(self.node(argument, f"{where}[{at}]") for at, argument in enumerate(arguments)))
        item = self.node(arguments[0] if arguments else Any, f"{where}[]")
        if kind in ("set", "frozenset") and not self._hashable(item):
            raise PromptValidationError(f"Cannot use {where}: the items of a set must be hashable")
        return Array(kind, item)

    def _table(self, arguments: tuple[Any, ...], where: str) -> AnyNode:
        key = self.node(arguments[0] if arguments else str, f"{where} (key)")
        if isinstance(key, Scalar) and key.kind == "any":
            key = Scalar("string")
        usable = isinstance(key, Scalar) and key.kind in _KEYS
        if isinstance(key, Choice):
            usable = all(isinstance(value, str) for value, _ in key.values)
        if not usable:
            raise PromptValidationError(
                f"Cannot use {where}: a JSON object's keys are text, so use str, int, a UUID, a date, a Path, or a Literal or Enum of text"
            )
        return Table(key, self.node(arguments[1] if arguments else Any, f"{where} (value)"))

    def _hashable(self, node: AnyNode) -> bool:
        match node:
            case Array():
                return node.kind in ("tuple", "frozenset") and self._hashable(node.item)
            case Row():
                return all(self._hashable(item) for item in node.items)
            case OneOf():
                return all(self._hashable(member) for member in node.members)
            case Table():
                return False
            case Link():
                return self.records[node.to].cls.__hash__ is not None
            case _:
                return True


def _literal(arguments: tuple[Any, ...], where: str) -> AnyNode:
    pairs = tuple(
        (_json_value(value.value if isinstance(value, enum.Enum) else value, where), value) for value in arguments
    )
    if any(value is None for value, _ in pairs) and len(pairs) > 1:
        rest = tuple(pair for pair in pairs if pair[0] is not None)
        return OneOf((Choice(rest, None), Scalar("null")))
    return Scalar("null") if all(value is None for value, _ in pairs) else Choice(pairs, None)


def _json_value(value: Any, where: str) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise PromptValidationError(f"Cannot use {where}: the choice {value!r} is not text, a number or a boolean")


_PLAIN_FACTORIES: tuple[object, ...] = (list, dict, set, frozenset, tuple)


def _default(field: dataclasses.Field[Any]) -> tuple[bool, Any]:
    if field.default is not dataclasses.MISSING:
        return False, field.default
    if field.default_factory is not dataclasses.MISSING:
        # Only factories that surely have no effects are called to be shown.
        plain = field.default_factory in _PLAIN_FACTORIES
        return False, field.default_factory() if plain else dataclasses.MISSING
    return True, dataclasses.MISSING


def _annotate(node: AnyNode, metadata: Iterable[Any], where: str) -> AnyNode:
    secret, description = node.secret, node.description
    found: list[tuple[str, Any]] = []
    for item in _flatten(metadata):
        if item is Secret or isinstance(item, Secret):
            secret = True
        elif isinstance(item, str):
            description = item
        elif isinstance(getattr(item, "documentation", None), str):
            description = item.documentation
        else:
            found.extend(_constraints(item, where))
    node = _with(node, secret=secret, description=description)
    for name, value in found:
        node = _constrain(node, name, value, where)
    return node


def _flatten(metadata: Iterable[Any]) -> Iterable[Any]:
    for item in metadata:
        if getattr(item, "__is_annotated_types_grouped_metadata__", False):
            yield from _flatten(item)
        elif isinstance(getattr(item, "metadata", None), list):  # a pydantic Field(…)
            told = getattr(item, "description", None)
            yield from _flatten([*([told] if isinstance(told, str) else []), *item.metadata])
        else:
            yield item


_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length")


def _constraints(item: Any, where: str) -> Iterable[tuple[str, Any]]:
    if isinstance(item, re.Pattern):
        compiled = cast("re.Pattern[Any]", item)
        if compiled.flags & ~(re.UNICODE | re.ASCII) or not isinstance(compiled.pattern, str):
            raise PromptValidationError(f"Cannot use {where}: a pattern with flags cannot be written in JSON Schema")
        yield "patterns", compiled.pattern
        return
    for name in _BOUNDS:
        bound = getattr(item, name, None)
        if bound is not None and not callable(bound):
            yield name, bound
    pattern = getattr(item, "pattern", None)
    if isinstance(pattern, str):
        yield "patterns", pattern
    elif isinstance(pattern, re.Pattern):
        yield from _constraints(pattern, where)
    if type(item).__name__ == "Predicate" and callable(getattr(item, "func", None)):
        yield "predicates", item.func


def _constrain(node: AnyNode, name: str, value: Any, where: str) -> AnyNode:
    if isinstance(node, OneOf):
        takers = [_applies(member, name) for member in node.members]
        if any(takers):
            members = tuple(
                _constrain(member, name, value, where) if takes else member
                for member, takes in zip(node.members, takers, strict=True)
            )
            return _with(node, members=members)
    if not _applies(node, name):
        raise PromptValidationError(
            f"Cannot use {where}: the constraint {name.rstrip('s')}={value!r} does not apply to its type"
        )
    rules = node.rules
    if name == "patterns":
        try:
            re.compile(value)
        except re.error as error:
            raise PromptValidationError(f"Cannot use {where}: the pattern {value!r} is not valid: {error}") from error
        return _with(node, rules=replace(rules, patterns=(*rules.patterns, value)))
    if name == "predicates":
        return _with(node, rules=replace(rules, predicates=(*rules.predicates, value)))
    present = getattr(rules, name)
    if present is not None and name == "multiple_of":
        raise PromptValidationError(f"Cannot use {where}: more than one multiple_of")
    if present is not None:
        value = max(present, value) if name in ("ge", "gt", "min_length") else min(present, value)
    changes: dict[str, Any] = {name: value}
    return _with(node, rules=replace(rules, **changes))


def _applies(node: AnyNode, name: str) -> bool:
    if isinstance(node, OneOf):
        return any(_applies(member, name) for member in node.members)
    if name == "predicates":
        return not (isinstance(node, Scalar) and node.kind == "null")
    if name == "patterns":
        return isinstance(node, Scalar) and node.kind == "string"
    if name in ("min_length", "max_length"):
        return isinstance(node, Array | Table) or (isinstance(node, Scalar) and node.kind in ("string", "bytes"))
    if name == "multiple_of":
        return isinstance(node, Scalar) and node.kind in _COUNTED
    return isinstance(node, Scalar) and node.kind in _ORDERED
