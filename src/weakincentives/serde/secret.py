"""The Secret marker and where it sits in a type: what may never leave the process in clear.

Decides only which fields are secret; `dumping`, `codec` and `problem` act on it. When a class cannot be read,
a field whose annotation merely mentions Secret counts as secret: a leak is worse than a redacted field.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, cast

from weakincentives.errors import PromptValidationError
from weakincentives.serde.resolve import owned_hints, readable_hints, substitute, type_arguments

REDACTED = "[redacted]"
"""What stands in the place of a secret value in every text, event, trace and log."""


class Secret:
    """Marks a value as secret: `token: Annotated[str, Secret]`.

    Handlers get the real value. In an event, what has such fields is a dict, not the dataclass, with `[redacted]` in
    their place; a durable session stores, and gives back, the dataclass with that text.
    """


_SOMETHING = object()  # stands for a hint we cannot see through but know to be secret


def is_secret(hint: object) -> bool:
    """Whether the hint itself, not something inside it, carries the marker."""
    if hint is _SOMETHING:
        return True
    metadata = cast("tuple[object, ...]", getattr(hint, "__metadata__", ()))
    return any(item is Secret or isinstance(item, Secret) for item in metadata)


def has_secrets(cls: Any) -> bool:
    """Whether a value of this type can hold a secret, at any depth that the annotations show."""
    try:
        return _has_secrets(cls)
    except PromptValidationError:  # not kept: the class may be resolvable later
        return _holds_secret(cls, frozenset(), strict=False)


@functools.lru_cache(maxsize=1024)
def _has_secrets(cls: Any) -> bool:
    return _holds_secret(cls, frozenset(), strict=True)


def secret_hints(cls: Any) -> Mapping[str, object]:
    """The fields of a dataclass (or generic alias of one) that need care when dumped, with the hint that says how."""
    try:
        return _secret_hints(cls)
    except PromptValidationError:
        return _find_secret_hints(cls, strict=False)


@functools.lru_cache(maxsize=1024)
def _secret_hints(cls: Any) -> Mapping[str, object]:
    return _find_secret_hints(cls, strict=True)


def _find_secret_hints(cls: Any, *, strict: bool) -> Mapping[str, object]:
    origin = cast("type", typing.get_origin(cls) or cls)
    hints = _hints(origin, typing.get_args(cls), strict=strict)
    below = frozenset({origin})
    return {name: hint for name, hint in hints.items() if _holds_secret(hint, below, strict=strict)}


def _hints(origin: type, arguments: tuple[Any, ...], *, strict: bool) -> dict[str, object]:
    bound = type_arguments(origin, arguments)
    hints, unread = (owned_hints(origin), {}) if strict else readable_hints(origin)
    found: dict[str, object] = {name: substitute(hint, bound.get(owner, {})) for name, (owner, hint) in hints.items()}
    return found | {name: _SOMETHING for name, text in unread.items() if "Secret" in text}


def member_hint(hint: object, value: object) -> object:
    """Strips what does not shape the value: of a union, the member that speaks for this value; secret wins a tie."""
    if hint is _SOMETHING or is_secret(hint):
        return hint
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return member_hint(typing.get_args(hint)[0], value)
    if isinstance(hint, typing.NewType):
        return member_hint(hint.__supertype__, value)
    if origin is typing.Union or origin is types.UnionType:
        members = [member_hint(member, value) for member in typing.get_args(hint)]
        secret = next((member for member in members if is_secret(member)), None)
        if secret is not None and value is not None:
            return secret
        for member in members:
            kind = typing.get_origin(member) or member
            if isinstance(kind, type) and isinstance(value, kind):
                return member
        return None
    return hint


def _holds_secret(hint: object, seen: frozenset[object], *, strict: bool) -> bool:
    if is_secret(hint):
        return True
    if isinstance(hint, typing.NewType):
        return _holds_secret(hint.__supertype__, seen, strict=strict)
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        if origin in seen:
            return False
        inner = _hints(origin, arguments, strict=strict).values()
        return any(_holds_secret(each, seen | {origin}, strict=strict) for each in inner)
    return any(_holds_secret(argument, seen, strict=strict) for argument in arguments)
