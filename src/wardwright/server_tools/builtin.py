"""Tools that are part of the gateway. They read, and only what belongs to the caller that asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Builtin:
    description: str
    parameters: Mapping[str, Any]


POLICY_CACHE_STATUS: Final = "wardwright_policy_cache_status"

BUILTINS: Final[Mapping[str, Builtin]] = {
    POLICY_CACHE_STATUS: Builtin(
        "Tell what the tool policy remembers of this conversation: how many events it counted and which states it is in. "
        "Takes no arguments and changes nothing.",
        {"type": "object", "properties": {}, "additionalProperties": False},
    ),
}
