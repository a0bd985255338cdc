"""What edits and translations write is what the providers' own Python clients have types for."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from wardwright.wire import CallItem, anthropic, chat_completions, edit, responses, translate
from wardwright.wire.edit import Splice, SplicedCall, ToolAnswer, ToolSpec
from wardwright.wire.turn import WireName

from .conversations import WIRES, Conversation, Wire, conversation

MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
REPLIES: dict[str, Any] = {"chat_completions": ChatCompletion, "responses": Response, "anthropic": Message}
REQUESTS: dict[str, TypeAdapter[Any]] = {
    "chat_completions": TypeAdapter(CompletionCreateParamsNonStreaming),
    "responses": TypeAdapter(ResponseCreateParamsNonStreaming),
    "anthropic": TypeAdapter(MessageCreateParamsNonStreaming),
}
SPEC = ToolSpec("ours", "Ours.", {"type": "object", "properties": {}})
every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
every_pair = pytest.mark.parametrize(
    ("source", "to"),
    list(product(WIRES, WIRES)),
    ids=[f"{one.name}-{other.name}" for one, other in product(WIRES, WIRES)],
)


def talks() -> list[Conversation]:
    found = [replace(conversation(number), claim=None) for number in range(40)]
    return [talk for talk in found if not talk.searches]


def accepted(wire: Wire, body: dict[str, Any]) -> None:
    """Fails unless the client has a type for this request."""
    through(REQUESTS[wire.name].validate_python({key: value for key, value in body.items() if key != "stream"}))


def through(value: Any) -> None:
    """Lists that may be any iterable are looked at only when somebody goes through them."""
    if isinstance(value, dict):
        for one in cast("dict[str, Any]", value).values():
            through(one)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for one in cast("Iterable[Any]", value):
            through(one)


@every_pair
def test_a_translated_request_is_one_that_the_client_could_send(source: Wire, to: Wire) -> None:
    """Every message, block, item, tool and choice has the shape that the client's types demand."""
    for number, talk in enumerate(talks()):
        body = source.request(talk, len(talk.rounds) - 1, random.Random(number))
        accepted(to, translate.request(body, cast("WireName", source.name), cast("WireName", to.name)))


@every_pair
def test_a_translated_reply_is_one_that_the_client_can_read(source: Wire, to: Wire) -> None:
    """Nothing that the client's model of a reply demands is missing."""
    for number, talk in enumerate(talks()):
        body = source.reply(talk, 0, random.Random(number))
        if source is not to:
            body = translate.reply(body, cast("WireName", source.name), cast("WireName", to.name))
            REPLIES[to.name].model_validate(body)


@every_wire
def test_a_request_of_ours_is_one_that_the_client_could_send(wire: Wire) -> None:
    """A further round, with tools, reminders and spliced calls of ours in it, keeps the shape of a request."""
    edits = edit.of(cast("WireName", wire.name))
    for number, talk in enumerate(talks()):
        dice = random.Random(number)
        body, reply = wire.request(talk, len(talk.rounds) - 1, dice), wire.reply(talk, len(talk.rounds) - 1, dice)
        calls = [
            (at, item.id)
            for at, item in enumerate(MODULES[wire.name].parse_reply(reply).items)
            if isinstance(item, CallItem)
        ]
        edits.add_tools(body, [SPEC])
        edits.remind(body, ["Remember."])
        edits.relax(body)
        edits.drop_tools(body, [talk.tools[0]["name"]])
        body = edits.answered(body, reply, {at: ToolAnswer(name, "no", True) for at, name in calls})
        spliced = SplicedCall("s1", "ours", "{}", "no", True)
        edits.splice(body, [Splice(tuple(name for _, name in calls), (spliced,))])
        accepted(wire, body)


@every_wire
def test_a_judged_reply_is_one_that_the_client_can_read(wire: Wire) -> None:
    """Without its calls, with changed words, joined with another round: still a reply of its kind."""
    edits = edit.of(cast("WireName", wire.name))
    for number, talk in enumerate(talks()):
        whole = {**wire.reply(talk, 0, random.Random(number))}
        first = edits.join(wire.reply(talk, 0, random.Random(number)), whole)
        edits.keep_calls(first, [], change=lambda _, text: f"{text}!")
        if wire.name == "responses":  # the generator leaves them out
            first = {**first, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None}
        REPLIES[wire.name].model_validate(first)
