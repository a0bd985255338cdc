"""The same conversation through every wire, whole and streamed, gives the same facts and rulings (G24)."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import compile_plan, govern, load_config
from wardwright.facts import ToolFact, stored
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Finding, Ruling
from wardwright.wire import Caller, Turn, anthropic, chat_completions, responses

from .conversations import WIRES, Conversation, Wire, conversation

CONVERSATIONS = 2_000
SLICES = 8
PARTS = [0, 1, *(pytest.param(part, marks=pytest.mark.heavy) for part in range(2, SLICES))]
"""All of them are played by `make test-all`."""
MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
CALLER = Caller(tenant="t", session_id="s", user="u")


@cache
def plan() -> Plan:
    return compile_plan(load_config(Path(__file__).with_name("differential.plan.yaml")))


def told(fact: ToolFact) -> dict[str, Any]:
    """A fact without what only some wires carry: an error flag, a search's findings, the controls of a hosted tool."""
    kept = stored(fact)
    del kept["result_status"]
    if fact.execution_location == "provider":
        del kept["result_digest"], kept["definition_hash"]
    return kept


def found(finding: Finding) -> tuple[Any, ...]:
    return (
        finding.rule_id,
        finding.effect,
        finding.message,
        finding.call_id,
        finding.facts,
        finding.key,
        finding.error,
    )


def judged(ruling: Ruling) -> dict[str, Any]:
    """Everything a ruling says, except item numbers: wires may leave empty items out."""
    return {
        "gate": ruling.gate,
        "decision": ruling.decision,
        "phase": ruling.phase,
        "rule_id": ruling.rule_id,
        "message": ruling.message,
        "blocked_tools": ruling.blocked_tools,
        "calls": [(call.call_id, call.name, call.status, call.message, call.rules) for call in ruling.calls],
        "route": ruling.route,
        "reask": ruling.reask,
        "stripped": ruling.stripped,
        "alerts": [found(finding) for finding in ruling.alerts],
        "notes": ruling.notes,
        "findings": [found(finding) for finding in ruling.findings],
        "conflicts": [conflict.rules for conflict in ruling.conflicts],
        "states": dict(ruling.states),
        "considered": ruling.considered,
        "facts": [told(fact) for fact in ruling.facts],
    }


def session(talk: Conversation, wire: Wire, number: int, streamed: bool) -> list[Ruling]:
    """The rulings of one conversation: every request and every reply, in order, on one history."""
    module = MODULES[wire.name]
    registers = Registers(key=b"k")
    rulings: list[Ruling] = []
    for upto in range(len(talk.rounds)):
        # Clients send what they sent before in the same words, so every request rolls the same dice.
        request: Turn = module.parse_request(orjson.dumps(wire.request(talk, upto, random.Random(number))))
        body = wire.reply(talk, upto, random.Random(number + 1))
        if streamed:
            assembler = module.StreamAssembler()
            assembler.feed(wire.stream(body, random.Random(number + upto)))
            assembler.close()
            reply: Turn = assembler.turn()
        else:
            reply = module.parse_reply(orjson.dumps(body))
        request.caller = reply.caller = CALLER
        request.claims_trusted = True
        reply.tools, reply.response_format = request.tools, request.response_format
        for turn in (request, reply):
            ruling, delta = govern(plan(), registers, turn, 1_000 * upto)
            registers = apply(registers, delta)
            rulings.append(ruling)
    return rulings


@pytest.mark.parametrize("part", PARTS)
def test_every_wire_whole_and_streamed_gives_the_same_rulings(part: int) -> None:
    """Facts and rulings of a generated conversation are equal in every wire form; half of the replies are streamed."""
    for number in range(part, CONVERSATIONS, SLICES):
        talk = conversation(number)
        wires = WIRES[1:] if talk.searches else WIRES
        first, *others = [
            [judged(ruling) for ruling in session(talk, wire, number, (number + index) % 2 == 0)]
            for index, wire in enumerate(wires)
        ]
        for wire, other in zip(wires[1:], others, strict=True):
            assert other == first, f"conversation {number}: {wire.name} and {wires[0].name}"


def test_the_conversations_reach_every_rule() -> None:
    """The comparison means something: every rule of the plan is met, and so is every decision."""
    rules: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    for number in range(0, CONVERSATIONS, 5):
        for ruling in session(conversation(number), WIRES[1], number, False):
            decisions[ruling.decision] += 1
            rules.update(finding.rule_id for finding in ruling.findings)
    assert set(rules) == {rule.id for rule in plan().model("m").rules.rules}
    assert set(decisions) == {"allow", "block", "deny_call", "require_approval"}
