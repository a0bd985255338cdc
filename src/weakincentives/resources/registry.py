"""The set of bindings, checked once, immutable. Opening it gives live resources; the registry holds none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from ..errors import ResourceError
from .binding import Binding, name_of
from .context import ResourceContext


class ResourceRegistry:
    """Which resource is made how. Immutable; may be opened many times, also at the same time."""

    __slots__ = ("_bindings",)

    def __init__(self, bindings: Iterable[Binding[Any]] = ()) -> None:
        table: dict[Any, Binding[Any]] = {}
        for binding in bindings:
            if not isinstance(binding, Binding):
                raise ResourceError(f"A registry takes bindings, got {type(binding).__name__}.")
            if binding.protocol in table:
                raise ResourceError(
                    f"{name_of(binding.protocol)} is bound twice. Bind it once, or replace it with merge()."
                )
            table[binding.protocol] = binding
        self._bindings: Mapping[Any, Binding[Any]] = MappingProxyType(table)

    @classmethod
    def of(cls, *bindings: Binding[Any]) -> ResourceRegistry:
        """The registry of these bindings; binding one type twice is refused."""
        return cls(bindings)

    @classmethod
    def build(cls, values: Mapping[Any, object] | ResourceRegistry) -> ResourceRegistry:
        """The registry of a mapping from type to a `Binding` of it, or to an instance (handed out, never closed)."""
        if isinstance(values, ResourceRegistry):
            return values
        bindings: list[Binding[Any]] = []
        for protocol, value in values.items():
            if not isinstance(value, Binding):
                bindings.append(Binding.instance(protocol, value))
                continue
            binding = cast(Binding[Any], value)
            if binding.protocol != protocol:
                raise ResourceError(
                    f"The binding under {name_of(protocol)} is one of {name_of(binding.protocol)}. "
                    "Use the same type as key and in the Binding."
                )
            bindings.append(binding)
        return cls(bindings)

    def merge(self, other: ResourceRegistry) -> ResourceRegistry:
        """Both registries' bindings; where both bind a type, the other's."""
        return ResourceRegistry({**self._bindings, **other._bindings}.values())

    def open(self) -> ResourceContext:
        """Open the resources: eager ones are built now, the others at first access. Close them, or use `with`."""
        return ResourceContext(self._bindings)

    def __iter__(self) -> Iterator[Binding[Any]]:
        return iter(self._bindings.values())

    def __len__(self) -> int:
        return len(self._bindings)

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._bindings

    def __repr__(self) -> str:
        return f"ResourceRegistry({', '.join(map(name_of, self._bindings))})"
