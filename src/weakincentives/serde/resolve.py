"""Turns a dataclass's annotations into types: forward references, local classes, inheritance and generics.

Never touches the class. A field whose type cannot be found is refused, by name and with the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from weakincentives.errors import PromptValidationError

Hints = dict[str, tuple[type, Any]]
"""Field name → (the class in the MRO that annotates it, the resolved type with its `Annotated` extras)."""

_resolved: weakref.WeakKeyDictionary[type, Hints] = weakref.WeakKeyDictionary()


def fields_of(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """Every field in order, `InitVar` pseudo-fields included (they are arguments of the constructor too)."""
    every = cast("dict[str, dataclasses.Field[Any]]", getattr(cls, "__dataclass_fields__", {}))
    return tuple(field for field in every.values() if _field_kind(field) != "_FIELD_CLASSVAR")


@functools.lru_cache(maxsize=1024)
def field_names(cls: type) -> tuple[str, ...]:
    """The names of the fields that an instance has; `dataclasses.fields` is too slow for each value."""
    return tuple(field.name for field in dataclasses.fields(cast("Any", cls)))


def is_init_var(field: dataclasses.Field[Any]) -> bool:
    return _field_kind(field) == "_FIELD_INITVAR"


def _field_kind(field: dataclasses.Field[Any]) -> str:
    return str(getattr(field, "_field_type", None))


def resolve_types(cls: type, localns: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields' types by name, `Annotated` extras kept; a type that cannot be found is refused, saying which."""
    return {name: hint for name, (_, hint) in owned_hints(cls, localns).items()}


def owned_hints(cls: type, localns: Mapping[str, Any] | None = None) -> Hints:
    """The fields' types; the first successful resolution of a class is kept, so later callers need no namespace."""
    known = _resolved.get(cls)
    if known is not None:
        return known
    hints = {field.name: _hint(cls, field, localns) for field in fields_of(cls)}
    _resolved[cls] = hints
    return hints


def readable_hints(cls: type) -> tuple[Hints, dict[str, str]]:
    """The types that can be found now, and the text of the annotations that cannot; keeps nothing."""
    hints: Hints = {}
    unread: dict[str, str] = {}
    for field in fields_of(cls):
        try:
            hints[field.name] = _hint(cls, field, None)
        except PromptValidationError:
            unread[field.name] = field.type if isinstance(field.type, str) else repr(field.type)
    return hints, unread


def _hint(cls: type, field: dataclasses.Field[Any], localns: Mapping[str, Any] | None) -> tuple[type, Any]:
    owner = next((base for base in cls.__mro__ if field.name in inspect.get_annotations(base)), cls)
    annotation = inspect.get_annotations(owner).get(field.name, field.type)
    return owner, _evaluate(cls, owner, field.name, annotation, localns)


def _evaluate(cls: type, owner: type, name: str, annotation: Any, localns: Mapping[str, Any] | None) -> Any:
    module = sys.modules.get(owner.__module__)
    known: dict[str, Any] = {**vars(owner), owner.__name__: owner, cls.__name__: cls, **(localns or {})}
    # A field's default sits in the class namespace under the field's name and would hide a type of that name.
    for field in fields_of(cls):
        if known.get(field.name) is owner.__dict__.get(field.name, known) and field.name not in (localns or {}):
            known.pop(field.name, None)
    if isinstance(annotation, dataclasses.InitVar):
        annotation = cast("Any", annotation).type
    carrier = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(carrier, vars(module) if module else {}, known, include_extras=True)[name]
    except NameError as error:
        reason = f"the name '{error.name}' is not defined where the class is" if error.name else str(error)
        raise PromptValidationError(f"Cannot resolve the type of {cls.__qualname__}.{name}: {reason}") from error
    except (TypeError, SyntaxError, AttributeError, ValueError, KeyError) as error:
        raise PromptValidationError(f"Cannot resolve the type of {cls.__qualname__}.{name}: {error}") from error
    if isinstance(hint, dataclasses.InitVar):  # from text: "InitVar[int]"
        return _evaluate(cls, owner, name, cast("Any", hint).type, localns)
    return hint


def type_arguments(cls: type, arguments: tuple[Any, ...]) -> dict[type, dict[Any, Any]]:
    """For each class in the MRO, what its own type variables stand for in `cls[arguments]`."""
    parameters = cast("tuple[Any, ...]", getattr(cls, "__parameters__", ()))
    found: dict[type, dict[Any, Any]] = {cls: dict(zip(parameters, arguments, strict=False))}
    for base in cast("tuple[Any, ...]", cls.__dict__.get("__orig_bases__", ())):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            inner = tuple(substitute(argument, found[cls]) for argument in typing.get_args(base))
            for owner, bound in type_arguments(origin, inner).items():
                found.setdefault(owner, bound)
    for base in cls.__bases__:
        if base not in found and base is not object:
            for owner, bound in type_arguments(base, ()).items():
                found.setdefault(owner, bound)
    return found


def substitute(hint: Any, bound: Mapping[Any, Any]) -> Any:
    """The hint with its type variables filled in; a free variable stands for its bound, or for anything."""
    if isinstance(hint, TypeVar):
        if hint in bound:
            return bound[hint]
        if hint.__constraints__:
            return typing.Union[hint.__constraints__]  # noqa: UP007 - built from a tuple at run time
        return hint.__bound__ if hint.__bound__ is not None else Any
    free = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not isinstance(free, tuple) or not free:
        return hint
    return hint[tuple(substitute(variable, bound) for variable in cast("tuple[Any, ...]", free))]
