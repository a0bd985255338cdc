"""What the tests of relays share: rulings on a relay's current reply, bytes cut anywhere, and events read back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from wardwright.policy.rules import CallRuling
from wardwright.streaming import Relay
from wardwright.wire import CallItem, Turn, anthropic, chat_completions, responses
from wardwright.wire.sse import EventReader, ReplyAssembler

MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}


def rulings(turn: Turn, allowed: Callable[[CallItem], bool] = lambda _: True, prefix: str = "") -> list[CallRuling]:
    """One ruling per call; ids that the client sees begin with `prefix`."""
    return [
        CallRuling(index, prefix + item.id, item.id, item.name, "allow" if allowed(item) else "deny_call")
        for index, item in enumerate(turn.items)
        if isinstance(item, CallItem)
    ]


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    cuts = sorted(dice.sample(range(1, len(data)), min(len(data) - 1, dice.choice((0, 1, 3, 20)))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def fed(relay: Relay, data: bytes | Iterable[bytes]) -> bytes:
    """What comes out while one whole upstream reply goes in."""
    pieces = [data] if isinstance(data, bytes) else data
    return b"".join(relay.feed(piece) for piece in pieces) + relay.close()


def events(data: bytes) -> list[Any]:
    """What the events say; `[DONE]` as a string."""
    reader = EventReader()
    found = [*reader.feed(data), *reader.close()]
    return ["[DONE]" if event.data == b"[DONE]" else orjson.loads(event.data) for event in found]


def assembled(wire: str, data: bytes) -> ReplyAssembler:
    """The whole reply that a client makes of a stream."""
    assembler: ReplyAssembler = MODULES[wire].StreamAssembler()
    assembler.feed(data)
    assembler.close()
    return assembler


def sse(*said: dict[str, Any]) -> bytes:
    """Events as a provider writes them; named where they say their type."""
    out: list[bytes] = []
    for one in said:
        name = f"event: {one['type']}\n".encode() if "type" in one else b""
        out.append(name + b"data: " + orjson.dumps(one) + b"\n\n")
    return b"".join(out)
