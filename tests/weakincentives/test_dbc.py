"""Contracts: when they are checked, what they see, and what a broken one turns into."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives import dbc
from weakincentives.dbc import ContractError, dbc_suspended, ensure, invariant, require


@dataclass(frozen=True)
class ToolResult:
    """Stands for the prompt's result type; the annotation's text is what counts."""

    message: str
    success: bool = True


@pytest.fixture
def failures() -> Iterator[None]:
    """Registers a factory, as `prompt` does, and restores what was there."""
    before = dbc._Failures.factory, dbc._Failures.is_handler
    dbc.set_failure_factory(lambda text: ToolResult(text, success=False))
    yield
    dbc.set_failure_factory(*before)


@require(lambda count: count > 0, "count must be positive")
@ensure(lambda result, count: result == "x" * count, "one x each")
def repeat(count: int, *, broken: bool = False) -> str:
    """Repeats."""
    return "y" if broken else "x" * count


def failure(function: Any, *args: Any, **kwargs: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        function(*args, **kwargs)
    return caught.value


def test_a_contract_that_holds_changes_nothing() -> None:
    """The call returns what the function returns."""
    assert repeat(2) == "xx"


def test_a_broken_precondition_raises_before_the_call() -> None:
    """The error is an AssertionError with the kind, the message and S16's text."""
    error = failure(repeat, 0)
    assert (error.kind, error.message, str(error)) == (
        "Precondition",
        "count must be positive",
        "Precondition failed: count must be positive",
    )
    assert isinstance(error, AssertionError)


def test_a_broken_postcondition_raises_after_the_call() -> None:
    """The predicate sees the result and the arguments."""
    assert str(failure(repeat, 2, broken=True)) == "Postcondition failed: one x each"


def test_a_predicate_that_raises_has_failed() -> None:
    """The text has the message and the cause."""

    @require(lambda value: value["missing"], "value must be complete")
    def function(value: dict[str, int]) -> None:
        raise AssertionError("must not run")

    assert str(failure(function, {})) == (
        "Precondition failed: value must be complete (the check raised KeyError: 'missing')"
    )


def test_a_predicate_whose_error_cannot_be_told_has_failed() -> None:
    """The type of the error is told instead of its text."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def check(value: int) -> bool:
        raise Unspeakable

    @require(check, "value must be good")
    def function(value: int) -> None:
        raise AssertionError("must not run")

    assert str(failure(function, 1)) == "Precondition failed: value must be good (the check raised Unspeakable)"


def test_a_contract_error_survives_pickling() -> None:
    """It can cross a process boundary."""
    error = pickle.loads(pickle.dumps(ContractError("Invariant", "x")))
    assert (error.kind, str(error)) == ("Invariant", "Invariant failed: x")


@pytest.mark.parametrize(
    ("predicate", "args", "kwargs"),
    [
        (lambda a: a == 1, (1, 2), {}),
        (lambda b: b == 2, (1,), {"b": 2}),
        (lambda b: b == 5, (1,), {}),
        (lambda b, a: (a, b) == (1, 2), (1, 2), {}),
        (lambda c: c == 9, (1,), {"c": 9}),
        (lambda c: c == 7, (1,), {}),
        (lambda rest: rest == (3, 4), (1, 2, 3, 4), {}),
        (lambda named: named == {"z": 1}, (1,), {"c": 2, "z": 1}),
        (lambda z: z == 1, (1,), {"z": 1}),
        (lambda a, other=3: other == 3, (1,), {}),
        (callable, (print,), {}),
    ],
)
def test_predicates_get_the_arguments_they_name(predicate: Any, args: Any, kwargs: Any) -> None:
    """Positional, keyword, default, variadic and extra arguments are all found."""

    @require(predicate, "must hold")
    def function(a: Any, b: int = 5, *rest: int, c: int = 7, **named: int) -> str:
        return "ran"

    assert function(*args, **kwargs) == "ran"


def test_an_unknown_name_is_refused_when_decorating() -> None:
    """A predicate that wants what the function does not take is the programmer's error."""
    with pytest.raises(
        TypeError, match=r"The predicate wants 'limit', which .*function does not take; its parameters: a"
    ):

        @require(lambda limit: limit, "x")
        def function(a: int) -> None: ...


def test_an_async_predicate_is_refused() -> None:
    """Its coroutine would always count as true."""

    async def predicate(a: int) -> bool:
        return False

    with pytest.raises(TypeError, match="A predicate must not be async"):
        require(predicate, "x")(lambda a: a)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_the_contract_belongs_next_to_the_function(kind: Any) -> None:
    """Above @staticmethod the method would change its nature, so it is refused."""
    with pytest.raises(TypeError, match="Put the contract below @staticmethod or @classmethod"):
        require(lambda a: a, "x")(kind(lambda a: a))


def test_a_missing_argument_is_the_functions_own_error() -> None:
    """The call fails as it would without a contract."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        repeat()  # type: ignore[call-arg]


def test_the_function_keeps_its_face() -> None:
    """Name, docstring and signature are those of the function."""
    assert (repeat.__name__, repeat.__doc__) == ("repeat", "Repeats.")
    assert list(inspect.signature(repeat).parameters) == ["count", "broken"]


def test_contracts_stack_from_the_outside_in() -> None:
    """The first precondition written is the first one checked."""

    @require(lambda a: a > 0, "outer")
    @require(lambda a: a > 10, "inner")
    def function(a: int) -> int:
        return a

    assert [failure(function, a).message for a in (0, 5)] == ["outer", "inner"]


def test_a_foreign_decorator_between_contracts_is_kept() -> None:
    """Contracts gather only when they touch; what stands between them still runs."""
    import functools

    def doubled(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(a: int) -> int:
            return function(a * 2)

        return wrapper

    @require(lambda a: a < 10, "outer sees the argument")
    @doubled
    @require(lambda a: a % 2 == 0, "inner sees it doubled")
    def function(a: int) -> int:
        return a

    assert function(3) == 6
    assert failure(function, 10).message == "outer sees the argument"


def test_methods_have_contracts() -> None:
    """Predicates may name self."""

    class Account:
        def __init__(self) -> None:
            self.balance = 5

        @require(lambda self, amount: amount <= self.balance, "not enough")
        def draw(self, amount: int) -> int:
            self.balance -= amount
            return self.balance

    assert Account().draw(2) == 3
    assert failure(Account().draw, 9).message == "not enough"


def test_async_functions_have_contracts() -> None:
    """They stay coroutine functions, and are checked before and after the await."""

    @require(lambda a: a > 0, "positive")
    @ensure(lambda result: result < 10, "small")
    async def function(a: int) -> int:
        await asyncio.sleep(0)
        return a

    assert inspect.iscoroutinefunction(function)
    assert asyncio.run(function(1)) == 1
    with pytest.raises(ContractError, match="Precondition failed: positive"):
        asyncio.run(function(0))
    with pytest.raises(ContractError, match="Postcondition failed: small"):
        asyncio.run(function(10))


# --- suspending -------------------------------------------------------------------------------------------------------


def test_contracts_can_be_suspended_in_a_block() -> None:
    """Inside the block nothing is checked; after it everything is."""
    with dbc_suspended():
        assert repeat(-1) == ""
    assert failure(repeat, -1).kind == "Precondition"


def test_suspending_reaches_neither_another_thread_nor_context() -> None:
    """Only the code in the block runs unchecked."""
    raised: list[type[BaseException]] = []

    def elsewhere() -> None:
        raised.append(type(failure(repeat, -1)))

    with dbc_suspended():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        contextvars.Context().run(elsewhere)
    assert raised == [ContractError, ContractError]


def test_an_exception_ends_the_suspension() -> None:
    """The switch is put back whatever happens."""
    with pytest.raises(RuntimeError), dbc_suspended():
        raise RuntimeError
    assert failure(repeat, -1).kind == "Precondition"


# --- tool handlers ----------------------------------------------------------------------------------------------------


@require(lambda params: params > 0, "params must be positive")
@ensure(lambda result: len(result.message) > 0, "Result must include a message")
def handler(params: int, *, context: object) -> ToolResult:
    return ToolResult("x" * (params - 1))


@pytest.mark.usefixtures("failures")
@pytest.mark.parametrize(
    ("params", "text"),
    [(0, "Precondition failed: params must be positive"), (1, "Postcondition failed: Result must include a message")],
)
def test_a_handlers_broken_contract_is_a_failed_result(params: int, text: str) -> None:
    """Called directly too, a handler returns what the factory makes of S16's text."""
    assert handler(params, context=None) == ToolResult(text, success=False)


@pytest.mark.usefixtures("failures")
def test_an_async_handlers_broken_contract_is_a_failed_result() -> None:
    """The same for async handlers."""

    @require(lambda params: params > 0, "positive")
    async def function(params: int, *, context: object) -> ToolResult:
        return ToolResult("ok")

    assert asyncio.run(function(0, context=None)) == ToolResult("Precondition failed: positive", success=False)


@pytest.mark.usefixtures("failures")
def test_a_failed_precondition_is_not_judged_by_the_postcondition() -> None:
    """The model reads the contract that broke first, not a second one that the failure broke."""

    @ensure(lambda result: result.success, "must succeed")
    @require(lambda params: params > 0, "positive")
    def function(params: int, *, context: object) -> ToolResult:
        return ToolResult("ok")

    assert function(0, context=None).message == "Precondition failed: positive"


@pytest.mark.usefixtures("failures")
def test_functions_that_are_not_handlers_raise_beside_a_factory() -> None:
    """Without a context, or without a ToolResult, it is an ordinary function."""

    @require(lambda params: params > 0, "positive")
    def no_context(params: int) -> ToolResult:
        return ToolResult("ok")

    @require(lambda params: params > 0, "positive")
    def no_result(params: int, *, context: object) -> str:
        return "ok"

    assert failure(no_context, 0).message == "positive"
    assert failure(no_result, 0, context=None).message == "positive"


def test_a_handler_raises_when_nobody_registered_a_factory() -> None:
    """Without prompt there is no result type to return."""
    before = dbc._Failures.factory
    dbc.set_failure_factory(None)
    try:
        assert failure(handler, 0, context=None).kind == "Precondition"
    finally:
        dbc.set_failure_factory(before)


# --- invariants -------------------------------------------------------------------------------------------------------


@invariant(lambda self: self.low <= self.high, "low must not exceed high")
class Range:
    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def shift(self, by: int) -> None:
        self.raise_low(by)
        self.high += by

    def raise_low(self, by: int) -> None:
        self.low += by

    async def raise_later(self, by: int) -> None:
        self.low += by

    def _unchecked(self) -> None:
        self.low = self.high + 1


def test_an_invariant_holds_when_an_object_is_made() -> None:
    """The constructor is checked."""
    assert str(failure(Range, 2, 1)) == "Invariant failed: low must not exceed high"


def test_an_invariant_holds_after_a_public_method() -> None:
    """Sync and async methods are checked, private ones are not."""
    assert failure(Range(0, 1).raise_low, 5).kind == "Invariant"
    with pytest.raises(ContractError):
        asyncio.run(Range(0, 1).raise_later(5))
    assert Range(0, 1)._unchecked() is None


def test_an_invariant_may_be_broken_half_way() -> None:
    """Methods called by a method are not checked: only the outermost call ends in a valid state."""
    subject = Range(0, 1)
    subject.shift(5)
    assert (subject.low, subject.high) == (5, 6)


def test_invariants_work_on_frozen_dataclasses_with_slots() -> None:
    """The generated constructor is guarded as well, and rules stack."""

    @invariant(lambda self: self.x >= 0, "x must not be negative")
    @invariant(lambda self: self.x < 10, "x must be small")
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int

    assert Point(1).x == 1
    assert [failure(Point, x).message for x in (-1, 10)] == ["x must not be negative", "x must be small"]


def test_a_subclass_keeps_the_rules_of_its_base() -> None:
    """Rules of every class in the line are checked."""

    @invariant(lambda self: self.low >= 0, "low must not be negative")
    class Positive(Range):
        pass

    assert failure(Positive, -1, 2).message == "low must not be negative"
    assert failure(Positive, 2, 1).message == "low must not exceed high"
    assert failure(Positive(0, 1).raise_low, 5).message == "low must not exceed high"


def test_an_invariant_that_raises_has_failed() -> None:
    """The cause is told."""

    @invariant(lambda self: self.missing, "must be complete")
    class Empty:
        pass

    assert str(failure(Empty)).startswith("Invariant failed: must be complete (the check raised AttributeError")


def test_invariants_can_be_suspended() -> None:
    """dbc_suspended covers classes too."""
    with dbc_suspended():
        assert Range(2, 1).low == 2
