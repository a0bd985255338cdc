"""The recipe for one resource: what it is bound as, who makes it, how long it lives.

Decides what a valid recipe is. Never runs a provider.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast, get_origin

from ..errors import ResourceError
from ..frozen import frozen

T = TypeVar("T")
V = TypeVar("V")


class Scope(enum.Enum):
    """How long an instance lives."""

    SINGLETON = "singleton"
    """One instance for as long as the context is open."""
    TOOL_CALL = "tool_call"
    """One instance for each tool call, closed at its end."""
    PROTOTYPE = "prototype"
    """A new instance at each access, closed with the context or tool call that asked for it."""


class Resolver(Protocol):
    """What a provider gets to ask for the resources it depends on."""

    def get(self, protocol: type[T], /) -> T:
        """The resource bound as `protocol`; raises ResourceError when there is none."""
        ...

    def get_optional(self, protocol: type[T], /) -> T | None:
        """The resource bound as `protocol`, or None when there is none."""
        ...


class Adopted:
    """A provider whose instance existed before us and outlives us."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, resolver: Resolver) -> Any:
        del resolver
        return self.value


@frozen
class Binding(Generic[T]):
    """Binds a type to the function that makes it. Immutable; one binding may serve many registries."""

    protocol: type[T]
    provider: Callable[[Resolver], T]
    scope: Scope = Scope.SINGLETON
    eager: bool = False
    """Built when the context opens instead of at the first access."""

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, type) and get_origin(cast(Any, self.protocol)) is None:
            raise ResourceError(f"A resource is bound by its type, got {self.protocol!r}.")
        if not callable(self.provider):
            raise ResourceError(
                f"The provider of {name_of(self.protocol)} is not callable. Pass a function of the resolver, "
                f"or Binding.instance({name_of(self.protocol)}, value) for a value that is already built."
            )
        if not isinstance(self.scope, Scope):
            raise ResourceError(f"The scope of {name_of(self.protocol)} must be a Scope, got {self.scope!r}.")
        if self.eager and self.scope is not Scope.SINGLETON:
            raise ResourceError(
                f"{name_of(self.protocol)} cannot be eager: only a SINGLETON is built when the context opens."
            )

    @staticmethod
    def instance(protocol: type[V], value: V) -> Binding[V]:
        """Bind a value that is already built. It is handed out as it is and never closed by us."""
        if value is None:
            raise ResourceError(f"None cannot be bound as {name_of(protocol)}. Leave the binding out instead.")
        if isinstance(value, type) and protocol in value.__mro__:
            raise ResourceError(
                f"{value.__name__} is a class, and an instance of {name_of(protocol)} is wanted. "
                f"Pass one, or Binding({name_of(protocol)}, lambda resolver: {value.__name__}()) to have it built."
            )
        return Binding(protocol, Adopted(value))


def name_of(protocol: object) -> str:
    """The name by which messages call a bound type."""
    return protocol.__name__ if isinstance(protocol, type) else repr(protocol)
