"""Reads a handler: how it can be called, and what its annotations say.

An annotation that is missing or cannot be resolved is UNKNOWN and judged by nobody; nothing is ever called here.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar, Union, cast

from ..errors import PromptValidationError
from .result_type import strip, type_name
from .tool_result import ToolResult

T = TypeVar("T")


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_NOT_FOUND = (NameError, AttributeError, TypeError, SyntaxError, ValueError, LookupError, ImportError)


class Place(NamedTuple):
    """Where a tool is being built: the names in sight there, and where that code lives."""

    names: Mapping[str, Any]
    module: str
    qualname: str


def calling_place(skip: str) -> Place:
    """The nearest calling frame outside the module named `skip`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (skip, __name__):
        frame = frame.f_back
    return Place(dict(frame.f_locals), str(frame.f_globals.get("__name__")), frame.f_code.co_qualname)


def names_for(cls: type, place: Place, read: Callable[[Mapping[str, Any] | None], T]) -> T:
    """Reads a class with the names it was written among, then with those where the tool is built."""
    if _written_in(cls, place):
        return read(place.names)
    try:
        return read(None)
    except PromptValidationError:
        return read(place.names)


class Signature:
    """A handler's parameters and annotations, resolved as far as they can be. Lives while a tool is built."""

    __slots__ = ("_names", "function", "is_async", "parameters", "returns")

    def __init__(self, function: Callable[..., object], place: Place, known: Mapping[str, Any] | None = None) -> None:
        self.function = function
        code = _code_of(function)
        self._names = _names_for(code, place, known or {})
        try:
            self.parameters: Mapping[str, inspect.Parameter] | None = inspect.signature(function).parameters
        except (TypeError, ValueError):
            self.parameters = None  # some callables written in C do not tell
        self.is_async: bool = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(cast("object", type(function)), "__call__", None)  # noqa: B004 - is it a coroutine function?
        )
        raw: object = code.__annotations__.get("return", UNKNOWN) if code is not None else UNKNOWN
        self.returns: Any = self._resolve(raw)

    def check_call(self, what: str, *positional: str) -> None:
        """Refuses a function that cannot be called with these positional arguments and `context=`."""
        form = f"{what}({', '.join((*positional, 'context=...'))})"
        for kind, is_kind in (
            ("a generator", inspect.isgeneratorfunction),
            ("an async generator", inspect.isasyncgenfunction),
        ):
            if is_kind(self.function):
                raise PromptValidationError(f"{what} is {kind} function; return one ToolResult instead of yielding")
        if self.parameters is None:
            return
        try:
            inspect.signature(self.function).bind(*positional, context=None)
        except TypeError as error:
            raise PromptValidationError(f"{what} must be callable as {form}: {error}") from None

    @property
    def first(self) -> Any:
        """The type of the first positional parameter, or UNKNOWN."""
        for parameter in (self.parameters or {}).values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                return self.hint(parameter)
            break
        return UNKNOWN

    def hint(self, parameter: inspect.Parameter) -> Any:
        """The type of a parameter, `Annotated` extras kept, or UNKNOWN."""
        return self._resolve(UNKNOWN if parameter.annotation is parameter.empty else parameter.annotation)

    def result_type(self, what: str) -> Any:
        """What the value of the returned ToolResult is, or UNKNOWN; refuses an annotation that is no ToolResult."""
        found = self.result_hint()
        if found is None:
            raise PromptValidationError(
                f"{what} must return a ToolResult, but its annotation says {type_name(self.returns)}"
            )
        return found[0]

    def result_hint(self) -> tuple[Any] | None:
        """(the value's type or UNKNOWN,) when the annotation is a ToolResult or unknown; None when it is not."""
        return _value_of(self.returns, waiting=not self.is_async)

    def _resolve(self, annotation: Any) -> Any:
        if annotation is UNKNOWN:
            return UNKNOWN
        carrier = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(carrier, {}, cast("dict[str, Any]", self._names), include_extras=True)["it"]
        except _NOT_FOUND:
            return UNKNOWN


def resolve_argument(argument: Any, place: Place) -> Any:
    """A type argument that was written as text, by the names in sight where the tool is built."""
    if not isinstance(argument, str | typing.ForwardRef):
        return argument
    carrier = types.SimpleNamespace(__annotations__={"it": argument})
    module = sys.modules.get(place.module)
    try:
        return typing.get_type_hints(carrier, vars(module) if module else {}, dict(place.names), include_extras=True)[
            "it"
        ]
    except _NOT_FOUND as error:
        raise PromptValidationError(f"the type {type_name(argument)} cannot be found: {error}") from None


def _code_of(function: Callable[..., object]) -> types.FunctionType | None:
    """The function whose annotations and globals speak for a callable: behind partial, method, wrapper or object."""
    found: Callable[..., object] = function
    while True:
        found = inspect.unwrap(found)
        if isinstance(found, types.FunctionType):
            return found
        if isinstance(found, functools.partial):
            found = cast("functools.partial[object]", found).func
        elif isinstance(found, types.MethodType):
            found = found.__func__
        elif isinstance(getattr(type(found), "__call__", None), types.FunctionType):  # noqa: B004 - we want its code
            return cast("types.FunctionType", type(found).__call__)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            return None


def _names_for(code: types.FunctionType | None, place: Place, known: Mapping[str, Any]) -> Mapping[str, Any]:
    if code is None:
        return ChainMap(dict(known), dict(place.names))
    closed: dict[str, Any] = {}
    for name, cell in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    here, there = dict(place.names), code.__globals__
    # A name where the tool is built says nothing about a handler that was written elsewhere, unless nothing else does.
    if _written_in(code, place):
        return ChainMap(closed, here, dict(known), there)
    return ChainMap(closed, there, dict(known), here)


def _written_in(code: type | types.FunctionType, place: Place) -> bool:
    return code.__module__ == place.module and code.__qualname__.startswith(f"{place.qualname}.<locals>.")


def _value_of(returns: Any, *, waiting: bool) -> tuple[Any] | None:
    returns = strip(returns)
    if returns is UNKNOWN or returns is Any or isinstance(returns, typing.TypeVar):
        return (UNKNOWN,)
    origin = typing.get_origin(returns)
    arguments = typing.get_args(returns)
    if waiting and origin in (Awaitable, Coroutine):
        return _value_of(arguments[-1], waiting=False)
    if origin is Union or origin is types.UnionType:
        members = [_value_of(member, waiting=waiting) for member in arguments]
        if any(member is None for member in members):
            return None
        values = tuple(member[0] for member in members if member is not None)
        return (UNKNOWN,) if UNKNOWN in values else (Union[values],)  # noqa: UP007 - built at run time
    if origin is None and isinstance(returns, type) and issubclass(returns, ToolResult):
        return (UNKNOWN,)
    if isinstance(origin, type) and issubclass(origin, ToolResult):
        return (arguments[0],)
    return None
