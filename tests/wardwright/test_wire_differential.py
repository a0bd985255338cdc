"""The same conversation through every wire, whole and streamed, gives the same turn (G24)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from wardwright.facts import canonical
from wardwright.wire import (
    CallItem,
    HostedCallItem,
    HostedResultItem,
    ResultItem,
    Turn,
    anthropic,
    chat_completions,
    responses,
)

from .conversations import WIRES, Conversation, Wire, conversation

CONVERSATIONS = 2_000
SLICES = 8
PARTS = [0, 1, *(pytest.param(part, marks=pytest.mark.heavy) for part in range(2, SLICES))]
"""All of them are played by `make test-all`."""
MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}


def carried(turn: Turn) -> dict[str, Any]:
    """What every wire can carry of a turn, with arguments as canonical JSON."""
    items: list[Any] = []
    for item in turn.items:
        if isinstance(item, CallItem):
            items.append(replace(item, arguments=canonical(item.arguments)[0].decode()))
        elif isinstance(item, ResultItem):
            items.append(replace(item, is_error=None))
        elif isinstance(item, HostedCallItem):
            items.append(replace(item, arguments=canonical(item.arguments)[0].decode()))
        elif isinstance(item, HostedResultItem):
            items.append(replace(item, content=""))
        else:
            items.append(item)
    return {
        "gate": turn.gate,
        "model": turn.model,
        "items": items,
        "tools": [replace(tool, controls=None) for tool in turn.tools],
        "tool_choice": turn.tool_choice,
        "usage": turn.usage,
        "claims": turn.claims,
        "response_format": turn.response_format,
    }


def pieces(data: bytes, dice: random.Random) -> list[bytes]:
    """`data` cut at random bytes."""
    cuts = sorted(dice.sample(range(1, len(data)), min(len(data) - 1, dice.choice((0, 1, 3, 20)))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def assembled(wire: Wire, parts: list[bytes]) -> Turn:
    assembler = MODULES[wire.name].StreamAssembler()
    for part in parts:
        assembler.feed(part)
    assembler.close()
    assert assembler.complete
    assert not assembler.errors
    return assembler.turn()


def wires(talk: Conversation) -> tuple[Wire, ...]:
    """Chat Completions cannot show a hosted search."""
    return WIRES[1:] if talk.searches else WIRES


@pytest.mark.parametrize("part", PARTS)
def test_every_wire_whole_and_streamed_gives_the_same_turns(part: int) -> None:
    """Requests, replies and streamed replies of a generated conversation lower to equal turns in every wire form."""
    for number in range(part, CONVERSATIONS, SLICES):
        talk = conversation(number)
        dice = random.Random(-number - 1)
        for upto in range(len(talk.rounds)):
            requests: list[Any] = []
            replies: list[Any] = []
            for wire in wires(talk):
                module = MODULES[wire.name]
                requests.append(carried(module.parse_request(orjson.dumps(wire.request(talk, upto, dice)))))
                body = wire.reply(talk, upto, dice)
                whole = module.parse_reply(orjson.dumps(body))
                replies.append(carried(whole))
                assert assembled(wire, pieces(wire.stream(body, dice), dice)) == whole, f"conversation {number}"
            assert all(request == requests[0] for request in requests), f"conversation {number}, request {upto}"
            assert all(reply == replies[0] for reply in replies), f"conversation {number}, reply {upto}"


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_stream_cut_at_any_byte_gives_the_same_turn(wire: Wire) -> None:
    """Two pieces, cut at every byte of the stream in turn, assemble to the turn of the whole body."""
    left = 10_000  # bytes: each costs one assembly
    number = 0
    while left > 0:
        number += 1
        talk = conversation(number)
        dice = random.Random(number)
        body = wire.reply(talk, 0, dice)
        whole = MODULES[wire.name].parse_reply(orjson.dumps(body))
        data = wire.stream(body, dice)
        if len(data) > 2_500:
            continue
        left -= len(data)
        for cut in range(len(data)):
            assert assembled(wire, [data[:cut], data[cut:]]) == whole, f"conversation {number}, byte {cut}"


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_stream_fed_byte_by_byte_gives_the_same_turn(wire: Wire) -> None:
    """Every byte on its own assembles to the turn of the whole body."""
    for number in range(40):
        talk = conversation(number)
        dice = random.Random(number)
        body = wire.reply(talk, 0, dice)
        whole = MODULES[wire.name].parse_reply(orjson.dumps(body))
        data = wire.stream(body, dice)
        assert assembled(wire, [data[at : at + 1] for at in range(len(data))]) == whole, f"conversation {number}"


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_stream_that_ends_early_is_never_complete(wire: Wire) -> None:
    """A stream that lost its last event, or any more, is incomplete; what came of it can still be read."""
    for number in range(20):
        talk = conversation(number)
        dice = random.Random(number)
        data = wire.stream(wire.reply(talk, 0, dice), dice)
        for cut in range(0, data.rindex(b"data:"), 97):
            assembler = MODULES[wire.name].StreamAssembler()
            assembler.feed(data[:cut])
            assembler.close()
            assert not assembler.complete, f"conversation {number}, byte {cut}"
            assert assembler.turn().gate == "reply"
