"""How an instance begins and ends: `post_construct`, `close`, `aclose`.

Decides per class, once, which of them an instance has, and closes many without stopping half-way.
Never decides when.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from types import CoroutineType
from typing import Any, Protocol, cast, runtime_checkable

from ..errors import ResourceError
from ..transaction import current_scope


@runtime_checkable
class Closeable(Protocol):
    """A resource that wants to be told when its life ends. `aclose` serves as well when there is no `close`."""

    def close(self) -> object: ...


@runtime_checkable
class PostConstruct(Protocol):
    """A resource with a second step of construction; raising there means it was never built."""

    def post_construct(self) -> object: ...


class ResourceCloseError(ResourceError, ExceptionGroup[Exception]):
    """Some resources failed to close; the others are closed. Holds every cause."""

    def __new__(cls, message: str, causes: Sequence[Exception], /) -> ResourceCloseError:
        # WHY NOT super(): RuntimeError stands before the group and cannot make one.
        return ExceptionGroup.__new__(cls, message, causes)

    def derive(self, excs: Sequence[Exception], /) -> ResourceCloseError:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ResourceCloseError(self.message, excs)


# Asking the class, and only once: isinstance of a runtime Protocol costs more than the rest of a tool scope.
@lru_cache(maxsize=1024)
def _closer(cls: type) -> str | None:
    for name in ("close", "aclose"):
        if callable(getattr(cls, name, None)):
            return name
    return None


@lru_cache(maxsize=1024)
def _has_post_construct(cls: type) -> bool:
    return callable(getattr(cls, "post_construct", None))


def is_closeable(instance: object) -> bool:
    """Whether the end of its life must be told to `instance`."""
    return _closer(type(instance)) is not None


def post_construct(instance: object) -> None:
    """Run the second step of construction, if there is one."""
    if _has_post_construct(type(instance)):
        refuse_coroutine(cast(PostConstruct, instance).post_construct(), f"{type(instance).__name__}.post_construct")


def refuse_coroutine(value: object, made_by: str) -> None:
    """Raise when `value` is a coroutine that nobody would ever await."""
    if isinstance(value, CoroutineType):
        value.close()
        raise ResourceError(
            f"{made_by} is async, but resources are built without an event loop. Make it a plain function."
        )


Failure = tuple[str, BaseException]
"""Which class failed to close, and why."""


def close_all(instances: Iterable[object]) -> list[Failure]:
    """Close each instance in reverse order, whatever the others do; the failures come back."""
    failures: list[Failure] = []
    for instance in reversed(tuple(instances)):
        try:
            ending = _begin_close(instance)
            if ending is not None:
                _run(ending)
        except BaseException as error:  # noqa: BLE001
            # INVARIANT: closing never stops half-way, not even for Ctrl-C; `raise_failures` raises afterwards.
            failures.append((type(instance).__name__, error))
        _forget(instance)
    return failures


def _forget(instance: object) -> None:
    """What is closed inside a transaction cannot be put back when that rolls back, and need not be."""
    scope = current_scope()
    if scope is not None:
        scope.forget(instance)


async def aclose_all(instances: Iterable[object]) -> list[Failure]:
    """`close_all` on the caller's event loop, for resources that belong to it."""
    failures: list[Failure] = []
    for instance in reversed(tuple(instances)):
        try:
            ending = _begin_close(instance)
            if ending is not None:
                await ending
        except BaseException as error:  # noqa: BLE001
            # INVARIANT: as in close_all; a cancellation is raised after the last close.
            failures.append((type(instance).__name__, error))
        _forget(instance)
    return failures


def raise_failures(failures: Sequence[Failure]) -> None:
    """Raise what closing collected: the first interrupt alone, or else all as one group."""
    if not failures:
        return
    for failure in failures:
        error = failure[1]
        if not isinstance(error, Exception):
            note_failures(error, [other for other in failures if other is not failure])
            raise error
    causes = [error for _, error in failures if isinstance(error, Exception)]
    raise ResourceCloseError("; ".join(map(_story, failures)), causes)


def note(error: BaseException, text: str) -> None:
    """Write `text` onto an error, once, though the same error may be raised again and again."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def note_failures(error: BaseException, failures: Sequence[Failure]) -> None:
    """Write failures of closing onto the error that is on its way already; only an interrupt may overtake it."""
    for failure in failures:
        note(error, _story(failure))
    if isinstance(error, Exception):
        for _, overtaking in failures:
            if not isinstance(overtaking, Exception):
                raise overtaking from error


def _begin_close(instance: object) -> Awaitable[object] | None:
    name = _closer(type(instance))
    if name is None:
        return None
    result = cast(Callable[[], object], getattr(instance, name))()
    if result is None or not isinstance(result, Awaitable):
        return None
    return cast(Awaitable[object], result)


def _story(failure: Failure) -> str:
    name, error = failure
    return f"{name} failed to close: {type(error).__name__}: {error}"


def _run(ending: Awaitable[object]) -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _run_on_private_loop(ending)
        return
    # The caller's own loop cannot be re-entered: another thread has to drive the private one.
    failures: list[BaseException] = []

    def drive() -> None:
        try:
            _run_on_private_loop(ending)
        except BaseException as error:  # noqa: BLE001
            # INVARIANT: a failure to close reaches whoever closes, across the thread.
            failures.append(error)

    thread = threading.Thread(target=drive, name="close-resource")
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def _run_on_private_loop(ending: Awaitable[object]) -> None:
    import asyncio

    async def finish() -> Any:
        return await ending

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(finish())
    finally:
        loop.close()
