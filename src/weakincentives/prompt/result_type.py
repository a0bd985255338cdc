"""Which types a tool may declare as its result, and whether a value is of one.

A declared type is one the model's text can be made of. Container items are checked, a mapping's are not:
the check runs on every call and only has to catch a handler that returns something else than it promised.
"""

from __future__ import annotations

import datetime
import enum
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Annotated, Any, ForwardRef, Literal, NewType, TypeVar, Union, cast

ValueCheck = Callable[[object], bool]

_SCALARS = (str, enum.Enum, datetime.date, datetime.time, datetime.timedelta)
# Whoever declares such a result has loaded its module; reading other types must not.
_RARE_SCALARS = (("decimal", "Decimal"), ("uuid", "UUID"), ("pathlib", "PurePath"))


class UnsupportedType(Exception):
    """The type cannot be shown to a model; holds the part that cannot."""


def strip(tp: Any) -> Any:
    """The type without what does not shape its values: `Annotated`, `NewType`; None for NoneType."""
    while True:
        if typing.get_origin(tp) is Annotated:
            tp = typing.get_args(tp)[0]
        elif isinstance(tp, NewType):
            tp = tp.__supertype__
        elif tp is type(None):
            return None
        else:
            return tp


def is_dataclass_type(tp: Any) -> bool:
    """Whether it is a dataclass, or a generic one with its arguments."""
    origin = typing.get_origin(tp) or tp
    return isinstance(origin, type) and hasattr(origin, "__dataclass_fields__")


def dataclasses_in(tp: Any) -> tuple[type, ...]:
    """The dataclasses a type mentions."""
    tp = strip(tp)
    if is_dataclass_type(tp):
        return (cast("type", typing.get_origin(tp) or tp),)
    return tuple(cls for inner in _members(tp) for cls in dataclasses_in(inner))


def type_name(tp: Any) -> str:
    """The type as one writes it, without modules."""
    origin = typing.get_origin(tp)
    if tp is None or tp is type(None):
        return "None"
    if tp is Ellipsis:
        return "..."
    if origin is Annotated or isinstance(tp, NewType):
        return type_name(strip(tp))
    if origin is Union or origin is types.UnionType:
        return " | ".join(map(type_name, typing.get_args(tp)))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(tp)))}]"
    if origin is not None:
        return f"{type_name(origin)}[{', '.join(map(type_name, typing.get_args(tp)))}]"
    if isinstance(tp, ForwardRef):
        return tp.__forward_arg__
    return str(getattr(tp, "__name__", tp))


def value_check(tp: Any) -> ValueCheck:
    """A cheap test for values of the type; raises UnsupportedType when no text can be made of them."""
    tp = strip(tp)
    if tp is None:
        return lambda value: value is None
    if tp is Any or tp is object or isinstance(tp, TypeVar):
        return lambda _value: True
    origin = typing.get_origin(tp)
    if origin is Union or origin is types.UnionType:
        checks = tuple(map(value_check, typing.get_args(tp)))
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        choices = [(_class_of(choice), choice) for choice in typing.get_args(tp)]
        return lambda value: (_class_of(value), value) in choices
    cls = origin or tp
    if typing.is_typeddict(cls):
        return lambda value: isinstance(value, dict)
    if not isinstance(cls, type) or issubclass(cls, bytes | bytearray | memoryview):
        raise UnsupportedType(tp)
    if is_dataclass_type(cls) or _is_scalar(cast("type[object]", cls)) or cls is bool:
        return lambda value: isinstance(value, cls)
    if cls is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if cls is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if issubclass(cls, Mapping):
        return lambda value: isinstance(value, cls)
    if issubclass(cls, Sequence | Set):
        return _items_check(cast("type[Collection[object]]", cls), typing.get_args(tp))
    raise UnsupportedType(tp)


def _is_scalar(cls: type[object]) -> bool:
    rare = (getattr(sys.modules.get(module), name, str) for module, name in _RARE_SCALARS)
    return issubclass(cls, (*_SCALARS, *rare))


def _items_check(cls: type[Collection[object]], arguments: tuple[Any, ...]) -> ValueCheck:
    def is_container(value: object) -> bool:
        return isinstance(value, cls) and not isinstance(value, str | bytes | bytearray | memoryview)

    if not arguments:
        return is_container
    if issubclass(cls, tuple) and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        places = tuple(map(value_check, arguments)) if arguments != ((),) else ()

        def check_places(value: object) -> bool:
            if not isinstance(value, cls):
                return False
            items = cast("tuple[object, ...]", value)
            return len(items) == len(places) and all(check(item) for check, item in zip(places, items, strict=True))

        return check_places
    check_item = value_check(arguments[0])
    return lambda value: is_container(value) and all(map(check_item, cast("Collection[object]", value)))


def fits(source: Any, target: Any) -> bool:
    """False only when a `source` certainly cannot stand where a `target` is expected."""
    source, target = strip(source), strip(target)
    if source == target or target is Any or target is object or source is Any:
        return True
    if isinstance(source, TypeVar | str | ForwardRef) or isinstance(target, TypeVar | str | ForwardRef):
        return True
    source_origin, target_origin = typing.get_origin(source), typing.get_origin(target)
    if source_origin is Union or source_origin is types.UnionType:
        return all(fits(member, target) for member in typing.get_args(source))
    if target_origin is Union or target_origin is types.UnionType:
        return any(fits(source, member) for member in typing.get_args(target))
    if source_origin is Literal:
        chosen = typing.get_args(source)
        if target_origin is Literal:
            return set(chosen) <= set(typing.get_args(target))
        return all(fits(type(choice), target) for choice in chosen)
    if source is None or target is None or target_origin is Literal:
        return False
    return _class_fits(source, target)


def _class_fits(source: Any, target: Any) -> bool:
    low, high = _plain_class(source), _plain_class(target)
    if low is None or high is None:
        return True
    if not (high is float and low is int):
        try:
            if not issubclass(low, high):
                return False
        except TypeError:  # a protocol that cannot be asked at run time
            return True
    inner, outer = typing.get_args(source), typing.get_args(target)
    comparable = low is high or high.__module__ == "collections.abc"
    if comparable and len(inner) == len(outer):
        return all(fits(one, other) for one, other in zip(inner, outer, strict=True))
    return True


def _class_of(value: object) -> type:
    return type(value)


def _plain_class(tp: Any) -> type | None:
    cls = typing.get_origin(tp) or tp
    if typing.is_typeddict(cls):
        return dict
    return cls if isinstance(cls, type) else None


def _members(tp: Any) -> tuple[Any, ...]:
    return () if typing.get_origin(tp) is Literal else typing.get_args(tp)
