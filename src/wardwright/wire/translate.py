"""One wire's request or reply in the form of another, for a model that is asked in a form its caller does not speak.

What both can say is carried, item by item; seals, signatures and marks that mean something to their own provider alone are left
out; everything else is refused by name. The published lists (`FATES` of each wire) say which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from wardwright.errors import WireError
from wardwright.wire import translate_anthropic, translate_chat, translate_responses
from wardwright.wire.body import Object
from wardwright.wire.neutral import Answer, Asked
from wardwright.wire.turn import WireName


class _Wire(NamedTuple):
    read_request: Callable[[Object], Asked]
    write_request: Callable[[Asked], Object]
    read_reply: Callable[[Object], Answer]
    write_reply: Callable[[Answer], Object]


_WIRES: Final[Mapping[str, _Wire]] = {
    "anthropic": _Wire(
        translate_anthropic.read_request,
        translate_anthropic.write_request,
        translate_anthropic.read_reply,
        translate_anthropic.write_reply,
    ),
    "chat_completions": _Wire(
        translate_chat.read_request,
        translate_chat.write_request,
        translate_chat.read_reply,
        translate_chat.write_reply,
    ),
    "responses": _Wire(
        translate_responses.read_request,
        translate_responses.write_request,
        translate_responses.read_reply,
        translate_responses.write_reply,
    ),
}


def request(body: Object, source: WireName, to: WireName) -> Object:
    """A request that `source` has read, as `to` writes it. Between a wire and itself it is the body itself."""
    return body if source == to else _of(to).write_request(_of(source).read_request(body))


def reply(body: Object, source: WireName, to: WireName) -> Object:
    """A reply that `source` has read, as `to` writes it. Between a wire and itself it is the body itself."""
    return body if source == to else _of(to).write_reply(_of(source).read_reply(body))


def _of(wire: WireName) -> _Wire:
    found = _WIRES.get(wire)
    if found is None:
        raise WireError(f"the wire {wire!r} is not translated")
    return found


__all__ = ["reply", "request"]
