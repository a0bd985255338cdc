"""Design by contract: what must hold before a call, after it, and for every object of a class.

Always on, except inside `dbc_suspended()`. A broken contract of a tool handler becomes a failed result, by the factory
that `prompt` registers here; any other function raises ContractError. A predicate that raises has failed.
Contracts on one function are gathered into one wrapper, so that a failure is never judged by the next contract.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast

Kind = Literal["Precondition", "Postcondition", "Invariant"]
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
Predicate = (
    Callable[[Any], object]
    | Callable[[Any, Any], object]
    | Callable[[Any, Any, Any], object]
    | Callable[[Any, Any, Any, Any], object]
)
"""WHY NOT Callable[..., object]: a strict checker would call the arguments of every lambda unknown."""

_suspended: ContextVar[bool] = ContextVar("weakincentives_dbc_suspended", default=False)
_inside: ContextVar[frozenset[int]] = ContextVar("weakincentives_dbc_inside", default=frozenset())


class ContractError(AssertionError):
    """A contract does not hold. The text is `<kind> failed: <message>`."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(kind, message)
        self.kind: Kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind} failed: {self.message}"


def require(predicate: Predicate, message: str) -> Callable[[F], F]:
    """Checks before the call; the predicate names the arguments it wants: `lambda params: params.limit > 0`."""
    return lambda function: _contracted(function, "Precondition", predicate, message)


def ensure(predicate: Predicate, message: str) -> Callable[[F], F]:
    """Checks after the call; the predicate names `result`, and any argument it wants."""
    return lambda function: _contracted(function, "Postcondition", predicate, message)


def invariant(predicate: Callable[[Any], object], message: str) -> Callable[[C], C]:
    """Checks each object when it is made and after each outermost public method, with the rules of its base classes.

    A subclass that writes methods or a constructor of its own is decorated too, to have them checked.
    """
    _refuse_async(predicate)

    def decorate(cls: C) -> C:
        rules: list[_Rule] | None = vars(cls).get(_RULES)
        if rules is not None:
            rules.insert(0, (predicate, message))
            return cls
        setattr(cls, _RULES, [(predicate, message)])
        for name, member in list(vars(cls).items()):
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(cls, name, _guard(member))
        cls.__init__ = _guard(cls.__init__)
        return cls

    return decorate


@contextmanager
def dbc_suspended() -> Generator[None]:
    """Switches contracts off in this block, for this thread or task only."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


# --- failures of tool handlers ---------------------------------------------------------------------------------------


def looks_like_handler(function: Callable[..., Any]) -> bool:
    """Has a `context` parameter and returns a ToolResult, judged by the annotation's text: it need not resolve."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    returned = signature.return_annotation
    return "context" in signature.parameters and "ToolResult" in (
        returned if isinstance(returned, str) else repr(returned)
    )


class _Failures:
    """What a broken contract turns into; one per process, filled in by `prompt`."""

    factory: Callable[[str], object] | None = None
    is_handler: Callable[[Callable[..., Any]], bool] = staticmethod(looks_like_handler)


def set_failure_factory(
    factory: Callable[[str], object] | None,
    is_handler: Callable[[Callable[..., Any]], bool] = looks_like_handler,
) -> None:
    """Says what a tool handler returns when its contract is broken: `factory("Precondition failed: …")`."""
    _Failures.factory = factory
    _Failures.is_handler = staticmethod(is_handler)


# --- functions -------------------------------------------------------------------------------------------------------

_Check = Callable[[tuple[Any, ...], dict[str, Any], Any], ContractError | None]


class _Absent(Exception):
    """The call lacks the argument; the function itself says so better."""


class _Contract:
    """The contracts of one function. Lives as long as its wrapper."""

    def __init__(self, function: Callable[..., Any], before: tuple[_Check, ...], after: tuple[_Check, ...]) -> None:
        self.function = function
        self.before = before
        self.after = after
        self.wrapper: object = None

    def fail(self, error: ContractError) -> object:
        if _Failures.factory is not None and _Failures.is_handler(self.function):
            return _Failures.factory(str(error))
        raise error


def _contracted(function: F, kind: Kind, predicate: Callable[..., object], message: str) -> F:
    _refuse_async(predicate)
    if isinstance(function, staticmethod | classmethod):
        raise TypeError("Put the contract below @staticmethod or @classmethod, next to the function")
    below = cast("_Contract | None", getattr(function, "__contract__", None))
    # functools.wraps copies attributes, so a foreign wrapper around ours may carry our mark without being ours.
    if below is None or below.wrapper is not function:
        below = _Contract(function, (), ())
    check = _check(below.function, kind, predicate, message)
    if kind == "Precondition":
        contract = _Contract(below.function, (check, *below.before), below.after)
    else:
        contract = _Contract(below.function, below.before, (*below.after, check))
    wrapper = _wrap_async(contract) if inspect.iscoroutinefunction(below.function) else _wrap(contract)
    contract.wrapper = wrapper
    cast("Any", wrapper).__contract__ = contract
    return cast("F", wrapper)


def _wrap(contract: _Contract) -> Callable[..., Any]:
    function, before, after, fail = contract.function, contract.before, contract.after, contract.fail
    suspended = _suspended.get

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if suspended():
            return function(*args, **kwargs)
        for check in before:
            error = check(args, kwargs, None)
            if error is not None:
                return fail(error)
        result = function(*args, **kwargs)
        for check in after:
            error = check(args, kwargs, result)
            if error is not None:
                return fail(error)
        return result

    return checked


def _wrap_async(contract: _Contract) -> Callable[..., Awaitable[Any]]:
    function, before, after, fail = contract.function, contract.before, contract.after, contract.fail

    @functools.wraps(function)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        if _suspended.get():
            return await function(*args, **kwargs)
        for check in before:
            error = check(args, kwargs, None)
            if error is not None:
                return fail(error)
        result = await function(*args, **kwargs)
        for check in after:
            error = check(args, kwargs, result)
            if error is not None:
                return fail(error)
        return result

    return checked


def _because(message: str, error: Exception) -> str:
    try:
        said = f": {error}"
    except Exception:  # noqa: BLE001  INVARIANT: a predicate that raises has failed, whatever it raised
        said = ""
    return f"{message} (the check raised {type(error).__name__}{said})"


def _check(function: Callable[..., Any], kind: Kind, predicate: Callable[..., object], message: str) -> _Check:
    fetch = _fetchers(function, kind, predicate)
    first = fetch[0] if len(fetch) == 1 else None

    def check(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> ContractError | None:
        # INVARIANT: a predicate that raises has failed; it never reaches the caller as another exception.
        try:
            if first is not None:
                held = predicate(first(args, kwargs, result))
            else:
                held = predicate(*[get(args, kwargs, result) for get in fetch])
            if held:
                return None
        except _Absent:
            return None
        except Exception as error:  # noqa: BLE001
            return ContractError(kind, _because(message, error))
        return ContractError(kind, message)

    return check


_Fetch = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]


def _fetchers(function: Callable[..., Any], kind: Kind, predicate: Callable[..., object]) -> list[_Fetch]:
    """One getter for each argument the predicate names, worked out once so that a call binds nothing."""
    parameters = inspect.signature(function).parameters
    places = {name: at for at, name in enumerate(parameters)}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    found: list[_Fetch] = []
    for wanted in _wanted(predicate, parameters, kind):
        if wanted.name == "result" and kind == "Postcondition":
            found.append(lambda _args, _kwargs, result: result)
        elif wanted.name in parameters:
            found.append(_fetcher(parameters[wanted.name], places[wanted.name], frozenset(parameters)))
        elif open_ended and wanted.default is wanted.empty:
            found.append(_extra(wanted.name))
        elif wanted.default is wanted.empty:
            names = ", ".join(parameters) or "none"
            raise TypeError(
                f"The predicate wants '{wanted.name}', which {getattr(function, '__qualname__', function)} "
                f"does not take; its parameters: {names}"
            )
        else:
            break  # its own default holds, here and for all that follow
    return found


def _wanted(predicate: Callable[..., object], parameters: Any, kind: Kind) -> list[inspect.Parameter]:
    try:
        wanted = list(inspect.signature(predicate).parameters.values())
    except (TypeError, ValueError):
        wanted = []
    # A builtin such as `callable` shows no usable name: it gets the result, or the first argument.
    if not wanted or (len(wanted) == 1 and wanted[0].kind is inspect.Parameter.POSITIONAL_ONLY):
        first = "result" if kind == "Postcondition" else next(iter(parameters), "result")
        return [inspect.Parameter(first, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for parameter in wanted:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"The predicate's '{parameter.name}' must not be keyword-only")
    usable = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in wanted if parameter.kind in usable]


def _fetcher(parameter: inspect.Parameter, place: int, named: frozenset[str]) -> _Fetch:
    name, default = parameter.name, parameter.default
    if parameter.kind is parameter.VAR_POSITIONAL:
        return lambda args, _kwargs, _result: args[place:]
    if parameter.kind is parameter.VAR_KEYWORD:
        return lambda _args, kwargs, _result: {key: value for key, value in kwargs.items() if key not in named}
    by_place = parameter.kind is not parameter.KEYWORD_ONLY
    by_name = parameter.kind is not parameter.POSITIONAL_ONLY

    def fetch(args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> Any:
        if by_place and place < len(args):
            return args[place]
        if by_name and name in kwargs:
            return kwargs[name]
        if default is inspect.Parameter.empty:
            raise _Absent
        return default

    return fetch


def _extra(name: str) -> _Fetch:
    def fetch(_args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> Any:
        if name in kwargs:
            return kwargs[name]
        raise LookupError(f"no argument '{name}' was given")

    return fetch


def _refuse_async(predicate: Callable[..., object]) -> None:
    if inspect.iscoroutinefunction(predicate):
        raise TypeError("A predicate must not be async: its coroutine would count as true")


# --- classes ---------------------------------------------------------------------------------------------------------


_Rule = tuple[Callable[[Any], object], str]
_RULES = "__invariants__"


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def guarded_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            entered = _enter(self)
            try:
                result = await method(self, *args, **kwargs)
            finally:
                _inside.set(entered)
            _check_invariants(self)
            return result

        return guarded_async

    @functools.wraps(method)
    def guarded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        entered = _enter(self)
        try:
            result = method(self, *args, **kwargs)
        finally:
            _inside.set(entered)
        _check_invariants(self)
        return result

    return guarded


def _enter(subject: object) -> frozenset[int]:
    entered = _inside.get()
    _inside.set(entered | {id(subject)})
    return entered


def _check_invariants(subject: object) -> None:
    # Half-way through an outer method the object may be between two valid states.
    if _suspended.get() or id(subject) in _inside.get():
        return
    for cls in type(subject).__mro__:
        rules: list[_Rule] = vars(cls).get(_RULES, [])
        for predicate, message in rules:
            # INVARIANT: a predicate that raises has failed.
            try:
                held = predicate(subject)
            except Exception as error:
                raise ContractError("Invariant", _because(message, error)) from error
            if not held:
                raise ContractError("Invariant", message)
