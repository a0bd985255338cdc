"""However a provider garbles its stream, nothing of a call that no ruling allowed reaches the client."""

from __future__ import annotations

import copy
import random
from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.streaming import relay_for
from wardwright.wire.refusal import Refusal

from ..conversations import WIRES, Wire, conversation
from .rulings import cut, events, sse

GARBLED = 250
SECRET = "MARKED"
REFUSAL = Refusal(403, "policy_violation", "tool_denied", "ask the owner")
TYPES = (
    "message", "reasoning", "function_call", "custom_tool_call", "text", "thinking", "tool_use", "text_delta",
    "input_json_delta", "thinking_delta", "output_text",
)  # fmt: skip
"""None of what a provider runs itself: that is judged as such."""
NUMBERS = ("index", "output_index", "content_index", "sequence_number")


def marked(wire: Wire, number: int, dice: random.Random, searches: bool) -> list[Any]:
    """The events of a reply whose calls all say the secret, in their names and in their arguments."""
    talk = conversation(number)
    for one in talk.rounds:
        if not searches:
            one.said.searches = []
        for call in one.said.calls:
            call.name = f"{call.name}{SECRET}"
            call.arguments = {SECRET: call.arguments}
    reply = wire.reply(talk, dice.randrange(len(talk.rounds)), dice)
    return events(wire.stream(reply, dice))


def objects(value: Any) -> list[dict[str, Any]]:
    """All objects in an event, itself first."""
    if isinstance(value, dict):
        return [value, *(found for one in value.values() for found in objects(one))]
    return [found for one in value for found in objects(one)] if isinstance(value, list) else []


def garbled(said: list[Any], dice: random.Random) -> list[Any]:
    """The same events with some lost, doubled, moved, renumbered, retyped or grown together."""
    said = copy.deepcopy(said)
    for _ in range(dice.randint(1, 4)):
        at, other = dice.randrange(len(said)), dice.randrange(len(said))
        match dice.randrange(7):
            case 0 if len(said) > 2:
                del said[at]
            case 1:
                said.insert(other, copy.deepcopy(said[at]))
            case 2:
                said[at], said[other] = said[other], said[at]
            case 3:
                for one in objects(said[at]):
                    for name in NUMBERS:
                        if name in one:
                            one[name] = dice.randrange(4)
            case 4:
                # WHY NOT the event itself: arguments that a provider sends as text are text.
                inner = [one for one in objects(said[at])[1:] if "type" in one]
                if inner:
                    dice.choice(inner)["type"] = dice.choice(TYPES)
            case 5:
                inner = objects(said[at])
                if inner:
                    one = dice.choice(inner)
                    one.pop(dice.choice(sorted(one)) if one else "", None)
            case _:
                if isinstance(said[at], dict) and isinstance(said[other], dict):
                    words = {"content", "text", "thinking", "delta", "summary", "refusal"}
                    more = {key: value for key, value in said[other].items() if key not in words}
                    said[at] = {**copy.deepcopy(more), **said[at]}
    return said


@pytest.mark.parametrize("hold_hosted", [False, True], ids=["hosted passing", "hosted held"])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_no_garbled_stream_tells_a_call(wire: Wire, hold_hosted: bool) -> None:
    """Either the stream is refused, or it passes without its calls; the secret is in no byte of it."""
    passed = refused = 0
    for number in range(GARBLED):
        dice = random.Random(number)
        # Where hosted calls pass, arguments that are moved to one of them pass with it.
        said = garbled(marked(wire, number, dice, hold_hosted), dice)
        data = b"".join(b"data: [DONE]\n\n" if one == "[DONE]" else sse(one) for one in said)
        one = relay_for(wire.name, hold_text=False, hold_hosted=hold_hosted, hold_thoughts=False)  # type: ignore[arg-type]
        out = b""
        try:
            for piece in cut(data, dice):
                out += one.feed(piece)
            out += one.close()
            out += one.release([])
            passed += 1
        except WireError:
            out += one.refuse(REFUSAL)
            refused += 1
        assert SECRET.encode() not in out, orjson.dumps(said)
    assert passed > GARBLED // 20 and refused > GARBLED // 20
