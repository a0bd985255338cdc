"""Parses JSON into a type: strict, extra keys refused, every problem reported at once.

The type's shape becomes a validator of pydantic's engine, once per type; pydantic is loaded at the first parse.
Must never let a value from outside raise anything but ParseError, and never change the user's class.
"""

from __future__ import annotations

import base64
import datetime
import enum
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar, cast, overload

import orjson

from weakincentives.serde.problem import Fault, ParseError, explain, got, path_text, union_label
from weakincentives.serde.secret import REDACTED
from weakincentives.serde.shape import (
    AnyNode,
    Array,
    Choice,
    Link,
    OneOf,
    Record,
    Row,
    Rules,
    Scalar,
    Shape,
    Table,
    shape_of,
)

T = TypeVar("T")
Extra = Literal["forbid", "ignore"]

_MAX_DEPTH = 190  # the engine stops reading JSON at 200 levels
_TOO_DEEP = f"Nested deeper than {_MAX_DEPTH} levels, or contains itself; send a flatter value"


class Parser(Generic[T]):
    """Parses into one type. Made and kept by `parser()`; safe to share between threads."""

    __slots__ = ("_engine_error", "_shape", "_validate")

    def __init__(self, shape: Shape, extra: Extra) -> None:
        from pydantic_core import SchemaValidator, ValidationError

        self._shape = shape
        self._validate: Callable[[str | bytes], T] = SchemaValidator(_Compiler(shape, extra).compile()).validate_json
        self._engine_error = ValidationError

    def parse_json(self, raw: str | bytes | bytearray) -> T:
        """Parses JSON text. When a key is repeated the last one counts."""
        try:
            return self._validate(cast("bytes", raw))
        except self._engine_error as error:
            faults = cast("list[Fault]", error.errors(include_url=False))
            raise ParseError(explain(self._shape, faults)) from None

    def parse(self, data: object) -> T:
        """Parses a mapping, or what JSON text would have given, by the rules that hold for JSON text."""
        problems: dict[str, str] = {}
        try:
            raw = _to_json(data, problems)
        except RecursionError:  # the caller's own stack was deep already
            raise ParseError({"$": _TOO_DEEP}) from None
        if not problems:
            return self.parse_json(raw)
        # Null stands in for what JSON cannot hold, so that the problems of the other fields are told as well.
        try:
            if "$" not in problems:
                self.parse_json(raw)
        except ParseError as error:
            problems = {**error.details, **problems}
        raise ParseError(problems)


@overload
def parser(cls: type[T], *, extra: Extra = ..., localns: Mapping[str, Any] | None = ...) -> Parser[T]: ...
@overload
def parser(cls: Any, *, extra: Extra = ..., localns: Mapping[str, Any] | None = ...) -> Parser[Any]: ...
def parser(cls: Any, *, extra: Extra = "forbid", localns: Mapping[str, Any] | None = None) -> Parser[Any]:
    """The parser of a type, compiled once. `localns` helps to resolve a class that was defined inside a function."""
    if localns is not None:
        shape_of(cls, localns)
    try:
        return _parser(cls, extra)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return Parser(shape_of(cls), _known(extra))


@functools.lru_cache(maxsize=1024)
def _parser(cls: Any, extra: Extra) -> Parser[Any]:
    return Parser(shape_of(cls), _known(extra))


def _known(extra: Extra) -> Extra:
    if extra not in ("forbid", "ignore"):
        raise ValueError(f"extra must be 'forbid' or 'ignore', got {extra!r}")
    return extra


@overload
def parse(cls: type[T], data: object, *, extra: Extra = ...) -> T: ...
@overload
def parse(cls: Any, data: object, *, extra: Extra = ...) -> Any: ...
def parse(cls: Any, data: object, *, extra: Extra = "forbid") -> Any:
    """Makes a `cls` of a mapping (or another JSON-like value); raises ParseError with every problem."""
    return parser(cls, extra=extra).parse(data)


@overload
def parse_json(cls: type[T], raw: str | bytes, *, extra: Extra = ...) -> T: ...
@overload
def parse_json(cls: Any, raw: str | bytes, *, extra: Extra = ...) -> Any: ...
def parse_json(cls: Any, raw: str | bytes, *, extra: Extra = "forbid") -> Any:
    """Makes a `cls` of JSON text; raises ParseError with every problem."""
    return parser(cls, extra=extra).parse_json(raw)


# --- from Python values to JSON text ---------------------------------------------------------------------------------


def _to_json(data: object, problems: dict[str, str]) -> bytes:
    if _is_plain(data, 0):
        try:
            return orjson.dumps(data)
        except TypeError:
            pass  # an integer beyond 64 bits, or half of a surrogate pair
    return json.dumps(_to_plain(data, (), problems), allow_nan=False).encode()


def _is_plain(value: object, depth: int) -> bool:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(cast("float", value))
    if depth > _MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str or not _is_plain(item, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        return all(_is_plain(item, depth + 1) for item in cast("list[object]", value))
    return False


def _to_plain(value: object, path: tuple[str | int, ...], problems: dict[str, str]) -> object:
    if len(path) > _MAX_DEPTH:
        problems.setdefault("$", _TOO_DEEP)
        return None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _not_json(value, path, problems)
    if isinstance(value, str):
        if not _encodable(value):
            problems[path_text(path)] = "Expected valid Unicode text, got half of a surrogate pair"
            return None
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > 14_000:  # beyond what Python turns into text by default
            problems[path_text(path)] = "Expected a smaller number, got integer of more than 4000 digits"
            return None
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            problems[path_text(path)] = f"must be a finite number, got {got(value).removeprefix('number ')}"
            return None
        return float(value)
    if isinstance(value, Mapping):
        plain: dict[str, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if isinstance(key, str) and not isinstance(key, enum.Enum) and _encodable(key):
                plain[str(key)] = _to_plain(item, (*path, str(key)), problems)
            else:
                shown = "text that is not valid Unicode" if isinstance(key, str) else type(key).__name__
                problems.setdefault(path_text(path), f"Expected an object whose keys are strings, got a key of {shown}")
        return plain
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        return [_to_plain(item, (*path, at), problems) for at, item in enumerate(items)]
    return _not_json(value, path, problems)


def _not_json(value: object, path: tuple[str | int, ...], problems: dict[str, str]) -> None:
    problems[path_text(path)] = f"Expected a JSON value, got {type(value).__name__}"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- from a shape to a validator -------------------------------------------------------------------------------------


class _Compiler:
    """Turns one shape into the engine's schema."""

    def __init__(self, shape: Shape, extra: Extra) -> None:
        from pydantic_core import PydanticCustomError, core_schema

        self._shape = shape
        self._extra: Extra = extra
        self._schema: Any = core_schema
        self._error: Any = PydanticCustomError

    def compile(self) -> Any:
        schema = self._schema
        definitions = [{**self._record(record), "ref": name} for name, record in self._shape.records.items()]
        root = self._node(self._shape.root)
        return schema.definitions_schema(root, definitions) if definitions else root

    def _record(self, record: Record) -> Any:
        schema = self._schema
        fields = {
            name: schema.typed_dict_field(self._node(member.node), required=member.required)
            for name, member in record.members.items()
        }
        arguments = schema.typed_dict_schema(fields, extra_behavior=self._extra, strict=True)
        return schema.no_info_after_validator_function(self._constructor(record), arguments)

    def _constructor(self, record: Record) -> Callable[[dict[str, Any]], Any]:
        cls, refuse = record.cls, self._refuse
        secret = tuple(name for name, member in record.members.items() if member.node.secret)

        def construct(arguments: dict[str, Any]) -> Any:
            # INVARIANT: whatever the user's constructor raises is a problem of these arguments, never of the run.
            try:
                return cls(**arguments)
            except Exception as error:  # noqa: BLE001
                message = _message(error)
                for name in secret:
                    for text in _texts(arguments.get(name)):
                        message = message.replace(text, REDACTED)
                raise refuse(message) from None

        return construct

    def _refuse(self, message: str) -> Exception:
        return self._error("refused", "{message}", {"message": message})

    def _broken(self, text: str) -> Exception:
        return self._error("rule", "{text}", {"text": text})

    def _node(self, node: AnyNode) -> Any:
        match node:
            case Scalar():
                schema = self._scalar(node)
            case Choice():
                schema = self._choice(node)
            case Array():
                schema = self._array(node)
            case Row():
                schema = self._schema.tuple_schema([self._node(item) for item in node.items], strict=True)
            case Table():
                rules = node.rules
                schema = self._schema.dict_schema(
                    self._key(node.key),
                    self._node(node.value),
                    min_length=rules.min_length,
                    max_length=rules.max_length,
                    strict=True,
                )
            case OneOf():
                schema = self._union(node)
            case Link():
                schema = self._schema.definition_reference_schema(node.to)
        for predicate in node.rules.predicates:
            schema = self._after(schema, self._predicate(predicate))
        return schema

    def _after(self, schema: Any, function: Callable[[Any], Any]) -> Any:
        return self._schema.no_info_after_validator_function(function, schema)

    def _predicate(self, predicate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        name = getattr(predicate, "__name__", "its condition")
        name = "its condition" if name == "<lambda>" else name

        def check(value: Any) -> Any:
            # INVARIANT: a condition that raises has refused the value.
            try:
                holds = predicate(value)
            except Exception as error:  # noqa: BLE001
                raise self._refuse(_message(error)) from None
            if not holds:
                raise self._broken(f"must satisfy {name}")
            return value

        return check

    def _union(self, node: OneOf) -> Any:
        if node.only is not None:
            return self._schema.nullable_schema(self._node(node.only))
        floats = any(isinstance(member, Scalar) and member.kind == "number" for member in node.members)
        choices = [
            (
                self._scalar(member, whole=False) if floats and isinstance(member, Scalar) else self._node(member),
                union_label(at),
            )
            for at, member in enumerate(node.members)
        ]
        return self._schema.union_schema(choices, mode="left_to_right")

    def _array(self, node: Array) -> Any:
        schema, rules = self._schema, node.rules
        lengths = {"min_length": rules.min_length, "max_length": rules.max_length, "strict": True}
        item = self._node(node.item)
        if node.kind == "tuple":
            return schema.tuple_schema([item], variadic_item_index=0, **lengths)
        listed = schema.list_schema(item, **lengths)
        if node.kind == "list":
            return listed
        make = cast("Callable[[list[Any]], set[Any]]", set if node.kind == "set" else frozenset)

        def without_duplicates(items: list[Any]) -> Any:
            try:
                unique = make(items)
            except TypeError as error:
                raise self._refuse(str(error)) from None
            if len(unique) != len(items):
                raise self._broken("must not list the same item twice")
            return unique

        return self._after(listed, without_duplicates)

    def _choice(self, node: Choice) -> Any:
        if all(isinstance(value, str) for value, _ in node.values):
            if node.enum is not None:
                return self._schema.enum_schema(node.enum, list(node.enum), strict=True)
            if all(value is meant for value, meant in node.values):
                return self._schema.literal_schema([value for value, _ in node.values])
        # True == 1 in Python but not in JSON, so the kind is part of the key.
        known = {(type(value) is bool, value): meant for value, meant in node.values}

        def choose(value: Any) -> Any:
            try:
                return known[type(value) is bool, value]
            except (KeyError, TypeError):
                raise ValueError("not among the choices") from None

        return self._schema.no_info_plain_validator_function(choose)

    def _key(self, node: AnyNode) -> Any:
        if isinstance(node, Scalar) and node.kind == "integer":
            return self._ruled(self._after(self._schema.str_schema(strict=True), _integer_key), node.rules, node.rules)
        return self._node(node)

    def _scalar(self, node: Scalar, *, whole: bool = True) -> Any:
        schema, rules = self._schema, node.rules
        match node.kind:
            case "any":
                return self._after(schema.any_schema(), self._finite)
            case "null":
                return schema.none_schema()
            case "boolean":
                return schema.bool_schema(strict=True)
            case "integer":
                return self._integer(rules, whole=whole)
            case "number":
                bounds = _native(rules, int | float)
                return self._ruled(schema.float_schema(strict=True, allow_inf_nan=False, **bounds), rules, bounds)
            case "string":
                lengths = {"min_length": rules.min_length, "max_length": rules.max_length}
                return self._ruled(schema.str_schema(strict=True, **lengths), rules, lengths)
            case "decimal":
                return self._ruled(schema.no_info_plain_validator_function(self._decimal), rules, {})
            case "datetime" | "date" | "time" | "duration" | "uuid" | "path" | "bytes":
                return self._ruled(self._after(schema.str_schema(strict=True), _FROM_TEXT[node.kind]), rules, {})

    def _integer(self, rules: Rules, *, whole: bool) -> Any:
        schema = self._schema
        bounds = _native(rules, int)
        if not whole:
            return self._ruled(schema.int_schema(strict=True, **bounds), rules, bounds)
        widened = self._after(schema.float_schema(strict=True, allow_inf_nan=False), _whole)
        plain = schema.union_schema(
            [schema.int_schema(strict=True), widened],
            mode="left_to_right",
            custom_error_type="expected",
            custom_error_message="Expected an integer",
        )
        if bounds:
            plain = schema.chain_schema([plain, schema.int_schema(strict=True, **bounds)])
        return self._ruled(plain, rules, bounds)

    def _ruled(self, schema: Any, rules: Rules, native: Any) -> Any:
        """Adds the constraints that the engine does not check by itself for this kind of value."""
        handled = set(cast("dict[str, Any]", native)) if isinstance(native, dict) else {"min_length", "max_length"}
        checks: list[tuple[Callable[[Any], bool], str]] = []
        for name, (compare, sign) in _COMPARISONS.items():
            bound = getattr(rules, name)
            if bound is not None and name not in handled:
                checks.append((functools.partial(_holds, compare, bound), f"must be {sign} {bound}"))
        if rules.multiple_of is not None and "multiple_of" not in handled:
            checks.append(
                (functools.partial(_is_multiple, rules.multiple_of), f"must be a multiple of {rules.multiple_of}")
            )
        if rules.measures and "min_length" not in handled:
            least, most = rules.min_length, rules.max_length
            if least is not None:
                checks.append((functools.partial(_longer, least), f"must have at least {least} bytes"))
            if most is not None:
                checks.append((functools.partial(_shorter, most), f"must have at most {most} bytes"))
        checks.extend(
            (functools.partial(_matches, ecma_pattern(pattern)), f"must match the pattern {pattern}")
            for pattern in rules.patterns
        )
        if not checks:
            return schema

        def check(value: Any) -> Any:
            for holds, text in checks:
                if not holds(value):
                    raise self._broken(text)
            return value

        return self._after(schema, check)

    def _decimal(self, value: Any) -> Any:
        import decimal

        if type(value) is str and re.fullmatch(_DECIMAL, value):
            return decimal.Decimal(value)
        if type(value) is int:
            return decimal.Decimal(value)
        if type(value) is float:
            if not math.isfinite(value):
                raise self._error("finite_number", "not finite")
            return decimal.Decimal(repr(value))
        if type(value) is str and value.strip("+-").lower() in ("nan", "snan", "inf", "infinity"):
            raise self._error("finite_number", "not finite")
        raise ValueError("not a decimal")

    def _finite(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error("finite_number", "not finite")
        if isinstance(value, dict | list) and not _all_finite(cast("object", value)):
            raise self._broken("must hold finite numbers only")
        return cast("Any", value)


def _all_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_all_finite(item) for item in cast("dict[str, object]", value).values())
    return not isinstance(value, list) or all(_all_finite(item) for item in cast("list[object]", value))


def _native(rules: Rules, kind: Any) -> dict[str, Any]:
    """The bounds that the engine checks by itself: those of the field's own kind."""
    found = {name: getattr(rules, name) for name in ("ge", "gt", "le", "lt")}
    if kind is int:
        found["multiple_of"] = rules.multiple_of
    return {name: bound for name, bound in found.items() if isinstance(bound, kind) and not isinstance(bound, bool)}


_COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.ge, ">="),
    "gt": (operator.gt, ">"),
    "le": (operator.le, "<="),
    "lt": (operator.lt, "<"),
}


def _holds(compare: Callable[[Any, Any], bool], bound: Any, value: Any) -> bool:
    try:
        return compare(value, bound)
    except TypeError:
        return False  # a date-time without offset against a bound with one: not comparable, so not within


def _is_multiple(step: Any, value: Any) -> bool:
    import decimal

    # Through decimal text, so that 0.3 is a multiple of 0.1 as a reader of JSON would say.
    with decimal.localcontext() as context:
        context.prec = 700
        return decimal.Decimal(str(value)) % decimal.Decimal(str(step)) == 0


def _longer(least: int, value: Any) -> bool:
    return len(value) >= least


def _shorter(most: int, value: Any) -> bool:
    return len(value) <= most


def _matches(pattern: re.Pattern[str], value: str) -> bool:
    return pattern.search(value) is not None


@functools.lru_cache(maxsize=1024)
def ecma_pattern(pattern: str) -> re.Pattern[str]:
    """The expression as JSON Schema reads it: `$` is the very end, classes like `\\d` are ASCII."""
    out: list[str] = []
    inside, at = False, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            out.append(pattern[at : at + 2])
            at += 2
            continue
        if character == "[":
            inside = True
        elif character == "]":
            inside = False
        out.append(r"\Z" if character == "$" and not inside else character)
        at += 1
    return re.compile("".join(out), re.ASCII)


# Not compiled here: few programs read them all, and `re` keeps what was used.
_OFFSET = r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATETIME = rf"{_DATE}[Tt]{_CLOCK}{_OFFSET}?"
_TIME = rf"{_CLOCK}{_OFFSET}?"
_DURATION = (
    r"(?P<sign>-)?P(?=[0-9T])((?P<days>[0-9]{1,8})D)?"
    r"(T(?=[0-9])((?P<hours>[0-9]{1,8})H)?((?P<minutes>[0-9]{1,8})M)?"
    r"((?P<seconds>[0-9]{1,8})(\.(?P<fraction>[0-9]{1,6}))?S)?)?"
)
_DECIMAL = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?"
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_BASE64 = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_INTEGER_KEY = r"0|-?[1-9][0-9]{0,299}"


def _whole(value: float) -> int:
    if value.is_integer():
        return int(value)
    raise ValueError("not a whole number")


def _only(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError("not in the expected form")
    return text


def _integer_key(text: str) -> int:
    return int(_only(_INTEGER_KEY, text))


def _duration(text: str) -> datetime.timedelta:
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise ValueError("not in the expected form")
    part = {name: int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")}
    length = datetime.timedelta(**part, microseconds=int((match["fraction"] or "").ljust(6, "0")))
    return -length if match["sign"] else length


def _uuid(text: str) -> object:
    import uuid

    return uuid.UUID(_only(_UUID, text))


def _path(text: str) -> object:
    import pathlib

    return pathlib.Path(text)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "datetime": lambda text: datetime.datetime.fromisoformat(_only(_DATETIME, text).upper()),
    "date": lambda text: datetime.date.fromisoformat(_only(_DATE, text)),
    "time": lambda text: datetime.time.fromisoformat(_only(_TIME, text).upper()),
    "duration": _duration,
    "uuid": _uuid,
    "path": _path,
    "bytes": lambda text: base64.b64decode(_only(_BASE64, text), validate=True),
}


def _message(error: BaseException) -> str:
    try:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    except Exception:  # noqa: BLE001  INVARIANT: an error that cannot say anything is still a problem of the arguments
        text = ""
    return text or type(error).__name__


def _texts(value: object) -> list[str]:
    """The texts inside a secret value, longest first, so that none survives in a message."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Mapping):
        value = list(cast("Mapping[object, object]", value).values())
    if isinstance(value, list | tuple | set | frozenset):
        found = [text for item in cast("list[object]", value) for text in _texts(item)]
        return sorted(found, key=len, reverse=True)
    return [] if value is None or isinstance(value, bool) else [str(value)]
