"""Every denial, tried on every wire, streamed and not, in every disguise: no denied call reaches the client in any byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from wardwright.wire.turn import WireName

from .arena import (
    CANARY,
    WIRES,
    Answer,
    Arena,
    asked,
    called,
    calls_of,
    fold,
    goes_on,
    opened,
    refused,
    said,
    silent,
    whole,
)

Call = tuple[str, str, Any]


@dataclass(frozen=True)
class Denial:
    """One way to say no to a call of the model."""

    name: str
    rules: str
    """Sections of the model's artifact."""
    refuses: bool = False
    """The whole reply is refused; else only the call goes, and the model is asked again."""
    tool: str = "wipe"
    arguments: Any = None
    steps: tuple[tuple[str, str], ...] = ()
    """Calls (tool, argument) that pass before, each with its result."""
    listed: bool = True
    """The rule knows the tool by its name."""


def rule(text: str) -> str:
    return f"governance: [{{id: the-rule, message: Not here., {text}}}]"


DENIALS = [
    Denial("deny", rule("kind: tool_selector, action: deny_call, tool: {name: wipe, source: assistant_tool_call}")),
    Denial("block", rule("kind: tool_selector, action: block, tool: {name: wipe, source: assistant_tool_call}"), True),
    Denial(
        "approve",
        rule("kind: tool_selector, action: require_approval, tool: {name: wipe, source: assistant_tool_call}"),
        True,
    ),
    Denial(
        "argument",
        rule(
            f"kind: tool_selector, action: deny_call, tool: {{name: '*', source: assistant_tool_call, arguments: {{/x: {{glob: '{CANARY}*'}}}}}}"
        ),
        listed=False,
    ),
    Denial(
        "allowed-block",
        rule("kind: allowed_tools, phase: [planning, result_interpretation], allowed_tools: [{name: look}]"),
        True,
        listed=False,
    ),
    Denial(
        "allowed-filter",
        rule(
            "kind: allowed_tools, phase: [planning, result_interpretation], mode: filter, allowed_tools: [{name: look}]"
        ),
        listed=False,
    ),
    Denial(
        "allowed-deny",
        rule(
            "kind: allowed_tools, phase: [planning, result_interpretation], mode: deny_call, allowed_tools: [{name: look}]"
        ),
        listed=False,
    ),
    Denial("strip", rule("kind: tool_selector, action: strip_tools, tool: {name: wipe, source: declared_tool}")),
    Denial(
        "loop",
        rule("kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: wipe}"),
        steps=(("wipe", "1"), ("wipe", "2")),
    ),
    Denial(
        "loop-block",
        rule("kind: tool_loop_threshold, action: block, threshold: 3, tool: {name: wipe}"),
        True,
        steps=(("wipe", "1"), ("wipe", "2")),
    ),
    Denial(
        "sequence",
        rule("kind: tool_sequence, action: deny_call, after: {tool: {name: look}}, then: {tool: {name: wipe}}"),
        steps=(("look", "1"),),
    ),
    Denial(
        "state",
        "state_machine: {initial_state: calm, states: [calm, tainted]}\n"
        "    governance:\n"
        "      - {id: enter, kind: tool_sequence, after: {tool: {name: look, phase: result_interpretation}}, transition_to: tainted, until: {user_turn: true}}\n"
        "      - {id: the-rule, kind: tool_selector, state_scope: tainted, action: block, message: Not here., tool: {name: wipe}}",
        True,
        steps=(("look", "1"),),
    ),
    Denial(
        "schema",
        rule(
            "kind: argument_schema, action: deny_call, tool: {name: wipe}, schema: {type: object, properties: {x: {type: string, maxLength: 3}}, required: [x]}"
        ),
    ),
    Denial(
        "budget",
        rule("kind: budget, action: block, limits: {calls: 1}, tool: {name: wipe}"),
        True,
        steps=(("wipe", "1"),),
    ),
    Denial(
        "history",
        rule("kind: history_threshold, action: deny_call, threshold: 2, tool: {name: wipe}"),
        steps=(("wipe", "1"),),
    ),
    Denial("hidden", "tool_mediation: {mode: patch, rules: [{id: the-rule, action: hide, match: {name: wipe}}]}"),
]
BY_NAME = {one.name: one for one in DENIALS}


def config() -> str:
    models = "".join(
        f"""
  - model_id: {one.name}
    targets: [{{model: first, provider: double, context_window: 1000000}}]
    {one.rules}
"""
        for one in DENIALS
    )
    return f"""
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
models:{models}"""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("bypass"), config()) as gateway:
        yield gateway


@pytest.fixture(params=[one.name for one in DENIALS])
def denial(request: pytest.FixtureRequest) -> Denial:
    return BY_NAME[request.param]


def reached(
    arena: Arena, denial: Denial, wire: WireName, stream: bool, session: str, tools: Sequence[str] = ("look", "wipe")
) -> dict[str, Any]:
    """The request with which the denial holds: behind the calls that pass before it."""
    if denial.name == "allowed-block":
        tools = [one for one in tools if one == "look"]  # it refuses more tools at the request already
    body = asked(wire, "hi", tools, stream=stream, model=denial.name)
    for number, (tool, argument) in enumerate(denial.steps):
        arena.says(said(wire, "", (f"{session}-{number}", tool, {"x": argument})))
        answer = arena.post(wire, body, session)
        reply = whole(wire, answer)
        assert calls_of(wire, reply) == [tool]
        body = goes_on(wire, body, reply, dict.fromkeys(called(wire, reply), "done"))
    return body


def held(arena: Arena, denial: Denial, wire: WireName, answer: Answer, *, tool: str = "wipe", before: int) -> None:
    """The claims: nothing of the call in the answer, a refusal in the wire's shape or a reply without it, and one receipt."""
    silent(answer)
    assert arena.count(answer.headers["x-wardwright-session-id"]) == before + 1
    receipt = arena.last(answer)
    if denial.refuses:
        error = refused(wire, answer)
        assert error["rule_id"] == "the-rule"
        assert error["receipt_id"] == receipt["id"]
        assert receipt["final"]["status"] in ("blocked", "held")
    else:
        assert fold(tool) not in map(fold, calls_of(wire, whole(wire, answer)))
        assert receipt["final"]["status"] == "released"
        # The model was told, and asked again.
        assert len(arena.actor.sent) == 2


def test_a_denied_call_never_reaches_the_client(arena: Arena, denial: Denial, wire: WireName, stream: bool) -> None:
    """G1, G2, G24: the plain call: every denial on every wire."""
    session = arena.session()
    body = reached(arena, denial, wire, stream, session)
    arena.says(said(wire, "", ("bad", "wipe", {"x": CANARY})))
    before = arena.count(session)
    held(arena, denial, wire, arena.post(wire, body, session), before=before)


def test_words_before_a_denied_call_do_not_carry_it(arena: Arena, denial: Denial, wire: WireName, stream: bool) -> None:
    """G2: words pass, in a stream at once; the call behind them does not."""
    session = arena.session()
    body = reached(arena, denial, wire, stream, session)
    arena.says(said(wire, "I will do it now.", ("bad", "wipe", {"x": CANARY})))
    before = arena.count(session)
    answer = arena.post(wire, body, session)
    held(arena, denial, wire, answer, before=before)
    assert (b"I will" in answer.body) is (stream or not denial.refuses)


def test_a_denied_call_beside_an_allowed_one(arena: Arena, denial: Denial, wire: WireName, stream: bool) -> None:
    """G27: parallel calls: the allowed one passes alone, or nothing does."""
    session = arena.session()
    body = reached(arena, denial, wire, stream, session)
    arena.says(said(wire, "", ("good", "look", {"x": "1"}), ("bad", "wipe", {"x": CANARY})))
    answer = arena.post(wire, body, session)
    silent(answer)
    if denial.refuses:
        assert refused(wire, answer)["rule_id"] == "the-rule"
    else:
        reply = whole(wire, answer)
        assert calls_of(wire, reply) == ["look"]
        # Its error reaches the provider with the next request, beside the result of the other.
        arena.says()
        after = arena.post(wire, goes_on(wire, body, reply, {"good": "seen"}), session)
        assert after.status == 200 and CANARY in json.dumps(arena.actor.sent[0])


SPELLINGS = {
    "upper": "WIPE",
    "mixed": "wIpE",
    "fullwidth": "\uff57\uff49\uff50\uff45",
    "invisible": "wi\u200bpe",
    "joined": "w\u2060ipe",
    "styled": "\U0001d430\U0001d422\U0001d429\U0001d41e",
    "wrapped": "functions.wipe",
    "numbered": "functions.wipe:0",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "denial", ["deny", "block", "approve", "loop", "strip", "hidden", "budget", "allowed-filter", "schema"]
)
def test_a_call_in_another_spelling_is_the_same_call(
    arena: Arena, denial: str, wire: WireName, stream: bool, spelling: str
) -> None:
    """G6: case, compatibility forms, invisible characters and a model's own wrappers do not make another tool."""
    session, name = arena.session(), SPELLINGS[spelling]
    body = reached(arena, BY_NAME[denial], wire, stream, session)
    arena.says(said(wire, "", ("bad", name, {"x": CANARY})))
    before = arena.count(session)
    held(arena, BY_NAME[denial], wire, arena.post(wire, body, session), tool=name, before=before)


@pytest.mark.parametrize(
    "name",
    ["w\u0456pe", "vvipe", "wipe2", "look\u0430", "lo\u043ek", "l\u043e\u043ek", "", " ", "look/../wipe", "x" * 300],
)
@pytest.mark.parametrize("denial", ["allowed-block", "allowed-filter", "allowed-deny"])
def test_a_look_alike_is_not_on_the_list(arena: Arena, denial: str, wire: WireName, name: str) -> None:
    """A list of what is allowed allows nothing that only looks like it."""
    session = arena.session()
    body = reached(arena, BY_NAME[denial], wire, False, session)
    arena.says(said(wire, "", ("bad", name, {"x": CANARY})))
    answer = arena.post(wire, body, session)
    silent(answer)
    assert answer.status in (200, 403, 502)
    if answer.status == 200:
        assert calls_of(wire, answer.json) == []


@pytest.mark.parametrize("denial", [one.name for one in DENIALS if one.name not in ("strip", "hidden")])
def test_a_call_to_a_tool_that_was_not_declared(arena: Arena, denial: str, wire: WireName, stream: bool) -> None:
    """Tools declared, and called under another name: rules look at the call, not at the list."""
    session = arena.session()
    body = reached(arena, BY_NAME[denial], wire, stream, session, ["look"])
    arena.says(said(wire, "", ("bad", "wipe", {"x": CANARY})))
    before = arena.count(session)
    held(arena, BY_NAME[denial], wire, arena.post(wire, body, session), before=before)


@pytest.mark.parametrize("theirs", WIRES)
@pytest.mark.parametrize("denial", ["deny", "block", "approve", "loop", "hidden", "schema"])
def test_a_provider_of_another_wire_brings_no_denied_call(
    arena: Arena, denial: str, wire: WireName, theirs: WireName, stream: bool
) -> None:
    """Translated replies are judged as the caller would read them."""
    session = arena.session()
    body = reached(arena, BY_NAME[denial], wire, stream, session)
    arena.actor.wire = theirs
    try:
        arena.says(said(theirs, "Now.", ("good", "look", {"x": "1"}), ("bad", "wipe", {"x": CANARY})))
        answer = arena.post(wire, body, session)
    finally:
        arena.actor.wire = None
    silent(answer)
    if BY_NAME[denial].refuses:
        assert refused(wire, answer)["rule_id"] == "the-rule"
    else:
        assert calls_of(wire, whole(wire, answer)) == ["look"]
