"""Frozen, slotted dataclasses that are cheap to declare and cheap to make.

`@dataclass(frozen=True, slots=True)` compiles six methods per class, most of the time it takes to import this package,
and its constructor writes each field by name. `@frozen` compiles the constructor alone and writes the slots directly.
Nothing else differs: fields, equality, hash, repr, pickling and `dataclasses.replace` are those of a dataclass.
docs/decisions/0005-import-time.md says what it saves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, cast, dataclass_transform, overload

C = TypeVar("C", bound=type)


class _Factory:
    """Stands in a signature for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: C, /) -> C: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(*, eq: bool = True, kw_only: bool = False) -> Callable[[C], C]: ...


def frozen(cls: Any = None, /, *, eq: bool = True, kw_only: bool = False) -> Any:
    """Make the class a frozen dataclass with slots. A method that the class writes itself is left alone."""

    def make(declared: Any) -> Any:
        own = set(declared.__dict__)
        # A dataclass that inherits from a frozen one has to say that it is frozen itself; that costs two compilations.
        inherits = any(dataclasses.is_dataclass(base) for base in declared.__mro__[1:])
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only, frozen=inherits)(
            declared
        )
        params = made.__dataclass_params__
        params.init = params.repr = params.frozen = True
        params.eq = eq
        methods = {**_guards(made), "__repr__": _repr_of(made)}
        if eq:
            methods |= _comparison(made)
            if "__eq__" in own and declared.__hash__ is None:  # Python wrote that, not the class
                own.discard("__hash__")
        for name, method in methods.items():
            if name not in own:
                _place(made, name, method)
        return made if "__init__" in own else _with_init(made)

    return make if cls is None else make(cls)


def _with_init(cls: C) -> C:
    """Give a frozen, slotted dataclass a constructor that writes its slots directly."""
    names: dict[str, Any] = {"_missing": _FACTORY}
    signature: list[str] = []
    keywords: list[str] = []
    body: list[str] = []
    annotations: dict[str, Any] = {}
    for index, field in enumerate(dataclasses.fields(cast("Any", cls))):
        name, value, default = field.name, field.name, ""
        if field.default is not dataclasses.MISSING:
            names[f"_default{index}"] = field.default
            default = f"=_default{index}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make{index}"] = field.default_factory
            default = "=_missing"
            value = f"_make{index}() if {name} is _missing else {name}"
        if field.init:
            annotations[name] = field.type
            (keywords if field.kw_only else signature).append(name + default)
        elif default:
            value = f"_default{index}" if default != "=_missing" else f"_make{index}()"
        else:
            continue
        names[f"_set{index}"] = _slot(cls, name).__set__
        body.append(f"    _set{index}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    if keywords:
        signature += ["*", *keywords]
    exec(f"def __init__(self, {', '.join(signature)}):\n" + ("\n".join(body) or "    pass"), names)
    init = names["__init__"]
    init.__annotations__ = {**annotations, "return": None}
    _place(cls, "__init__", init)
    return cls


def _slot(cls: type, name: str) -> Any:
    """The descriptor of a field; an inherited one lies in the class that declared it."""
    return next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__)


def _place(cls: Any, name: str, method: Any) -> None:
    method.__name__ = name
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    setattr(cls, name, method)


def _guards(cls: Any) -> dict[str, Callable[..., Any]]:
    """What keeps an instance as it is, and lets it be pickled and copied all the same."""
    names = frozenset(field.name for field in dataclasses.fields(cls))
    state = tuple(field.name for field in dataclasses.fields(cls))

    def set_attribute(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        cast("Any", super(cls, self)).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        cast("Any", super(cls, self)).__delattr__(name)

    def get_state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in state]

    def set_state(self: Any, values: list[Any]) -> None:
        for name, value in zip(state, values, strict=True):
            object.__setattr__(self, name, value)

    return {
        "__setattr__": set_attribute,
        "__delattr__": delete_attribute,
        "__getstate__": get_state,
        "__setstate__": set_state,
    }


def _repr_of(cls: Any) -> Callable[[Any], str]:
    names = tuple(field.name for field in dataclasses.fields(cls) if field.repr)

    @recursive_repr()
    def represent(self: Any) -> str:
        shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({shown})"

    return represent


def _comparison(cls: Any) -> dict[str, Callable[..., Any]]:
    fields = dataclasses.fields(cls)
    key = _values([field.name for field in fields if field.compare])
    hashed = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

    def equal(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_value(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": equal, "__hash__": hash_value}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return cast("Callable[[Any], tuple[Any, ...]]", attrgetter(*names))
    return lambda instance: tuple(getattr(instance, name) for name in names)
