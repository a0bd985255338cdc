"""Claims about simulation: the same gates as live, nothing left behind, and the comparison of tool surfaces."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, load_config
from wardwright.errors import WireError
from wardwright.gateway import govern, scopes_of
from wardwright.history import Registers, ledger_keys
from wardwright.simulate import Transcript, read_transcript, simulate, wire_of
from wardwright.store import SqliteStore

from .conversations import WIRES, conversation

CONTAINMENT = """
state_machine:
  initial_state: active
  states: [active, reviewing]
governance:
  - {id: review, kind: tool_sequence, transition_to: reviewing, until: {user_turn: true},
     after: {tool: {namespace: browser, phase: result_interpretation}}}
  - {id: no-shell, kind: tool_selector, action: block, state_scope: reviewing, tool: {namespace: shell}}
  - {id: searches, kind: tool_loop_threshold, action: deny_call, threshold: 2, tool: {name: search}}
"""
SURFACE = """
governance:
  - id: reviewing-tools
    kind: allowed_tools
    phase: result_interpretation
    allowed_tools: [{name: open}]
  - {id: hide-mail, kind: tool_selector, action: strip_tools, tool: {name: mail_send}}
"""


def plan(text: str) -> Any:
    return compile_plan(load_config(text))


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call_id, "name": name, "arguments": arguments}]}


def result(call_id: str, content: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


TIDY = [
    user("read the page and tidy up"),
    call("a", "browser_open", url="https://example.test"),
    result("a"),
    call("b", "shell_exec", cmd="rm -r x"),
    result("b"),
    {"role": "assistant", "content": "done"},
    user("thanks"),
]


def gates(simulation: Any) -> list[tuple[str, str, str]]:
    return [(step.gate, step.ruling.decision, step.ruling.rule_id) for step in simulation.steps]


def test_a_conversation_passes_the_same_gates_as_live() -> None:
    """Each request, and each reply before the caller can see it, is one gate."""
    simulation = simulate(plan(CONTAINMENT), read_transcript(TIDY[:4]))

    assert gates(simulation) == [
        ("request", "allow", ""),
        ("reply", "allow", ""),
        ("request", "allow", ""),
        ("reply", "block", "no-shell"),
    ]
    assert [(one.name, one.rules) for one in simulation.blocked_calls] == [("shell_exec", ("no-shell",))]


def test_the_client_goes_on_without_what_it_never_received() -> None:
    """A blocked call and its result are missing from later requests, and replies nobody asked for are not judged."""
    simulation = simulate(plan(CONTAINMENT), read_transcript(TIDY))

    assert simulation.unreached == 1
    assert gates(simulation)[4:] == [("request", "allow", "")]
    assert [getattr(item, "call_id", getattr(item, "id", "")) for item in simulation.steps[-1].turn.items] == [
        "",
        "a",
        "a",
        "",
    ]
    assert simulation.registers.scopes["session_id\x1f\x1fsimulation"].registers.get(("state:default", "")) is not None
    assert simulation.steps[-1].ruling.states == {"default": "active"}


def test_a_recording_can_be_judged_as_it_is() -> None:
    """With `as_recorded` the answer to a refused call comes back, and is seen for what it is."""
    simulation = simulate(plan(CONTAINMENT), read_transcript(TIDY), as_recorded=True)

    marks = [mark for step in simulation.steps for fact in step.ruling.facts for mark in fact.marks]
    assert set(marks) == {"result_for_denied_call"}
    assert simulation.unreached == 0


def test_a_denied_call_makes_the_gateway_ask_again() -> None:
    """When every call of a reply is denied the provider is asked again, so the next recorded reply is judged."""
    loop = [user("find it"), call("a", "search"), result("a"), call("b", "search"), result("b"), call("c", "open")]

    simulation = simulate(plan(CONTAINMENT), read_transcript(loop))

    assert gates(simulation)[3:] == [("reply", "deny_call", "searches"), ("reply", "allow", "")]


def test_repeated_ids_are_answered_by_the_ids_the_client_saw() -> None:
    """The gateway mints an id for a repeated one; the recorded results follow it."""
    twice = [user("go"), call("a", "open", n=1), result("a", "one"), call("a", "open", n=2), result("a", "two")]

    simulation = simulate(plan(CONTAINMENT), read_transcript(twice))

    assert [mark for step in simulation.steps for fact in step.ruling.facts for mark in fact.marks] == []
    minted = simulation.steps[3].ruling.calls[0].call_id
    assert minted != "a"
    assert simulation.steps[4].ruling.facts[-1].tool_call_id == minted


def live(governing: Any, simulation: Any, path: Path) -> list[Any]:
    """The same turns through a real store, loaded and committed gate by gate."""
    store = SqliteStore(path, upkeep=False)
    try:
        rulings: list[Any] = []
        for step in simulation.steps:
            scopes = store.load(scopes_of(governing, step.turn), partial(ledger_keys, step.turn, b"simulation"))
            ruling, delta = govern(governing, Registers(scopes, b"simulation"), step.turn, step.at_ms)
            store.commit(delta)
            rulings.append(ruling)
        return rulings
    finally:
        store.close()


@pytest.mark.parametrize("number", range(12))
def test_simulation_equals_live_up_to_the_provider(number: int, tmp_path: Path) -> None:
    """Feeding a store step by step gives the rulings that the overlay gave."""
    wire = WIRES[number % len(WIRES)]
    talk = conversation(number)
    body = wire.request(talk, len(talk.rounds) - 1, random.Random(number))
    governing = plan(CONTAINMENT)

    simulation = simulate(governing, read_transcript(body), now=1000, step_ms=10)

    assert simulation.steps
    assert live(governing, simulation, tmp_path / "store.db") == [step.ruling for step in simulation.steps]


def test_a_simulation_leaves_no_trace() -> None:
    """The registers it starts from are as they were, and a second run says the same."""
    governing = plan(CONTAINMENT)
    first = simulate(governing, read_transcript(TIDY[:3]))
    start = first.registers
    before = {key: (state.version, dict(state.registers), dict(state.ledger)) for key, state in start.scopes.items()}

    again = [simulate(governing, read_transcript(TIDY), registers=start) for _ in range(2)]

    assert gates(again[0]) == gates(again[1])
    assert before == {
        key: (state.version, dict(state.registers), dict(state.ledger)) for key, state in start.scopes.items()
    }


def test_a_simulation_uses_no_approval() -> None:
    """A rule that asks for an approval holds the reply, whatever was approved elsewhere."""
    governing = plan("governance:\n  - {id: ask, kind: tool_selector, action: require_approval, tool: {name: '*'}}\n")

    simulation = simulate(governing, read_transcript([user("go"), call("a", "open")]))

    assert gates(simulation)[-1] == ("reply", "require_approval", "ask")
    assert simulation.receipts[-1]["final"]["status"] == "held"


def test_the_phase_surface_says_which_calls_it_costs() -> None:
    """Least privilege: per request the full surface, the narrow one, and the recorded calls that would be lost."""
    talk = {
        "messages": [
            user("go"),
            call("a", "mail_send"),
            result("a"),
            call("b", "browser_open"),
            result("b"),
            call("c", "shell_exec"),
        ],
        "tools": ["mail_send", "browser_open", "shell_exec"],
    }

    rows = simulate(plan(SURFACE), read_transcript(talk), surface="phase").surface

    assert [(row.phase, row.phase_scoped, row.called, row.blocked) for row in rows] == [
        # A call to what was taken away is denied, and the model asked again: the next answer is to the same request.
        ("planning", ("browser_open", "shell_exec"), ("mail_send", "browser_open"), ("mail_send",)),
        ("result_interpretation", ("browser_open",), ("shell_exec",), ("shell_exec",)),
    ]
    assert {row.all for row in rows} == {("mail_send", "browser_open", "shell_exec")}


def test_the_full_surface_leaves_out_rules_that_narrow_it() -> None:
    """With all tools available only the other rules are left, and the comparison is still there."""
    talk = {"messages": [user("go"), call("a", "browser_open"), result("a"), call("b", "shell_exec")]}

    simulation = simulate(plan(SURFACE), read_transcript(talk), surface="all")

    assert not simulation.refused
    assert [row.blocked for row in simulation.surface] == [(), ("shell_exec",)]


def test_mcp_messages_are_a_transcript_too() -> None:
    """Calls and answers are paired by their message ids, and the answer to a refused call is never reached."""
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "browser_open", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "page"}]}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "shell_exec", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 2, "result": {"content": [{"type": "text", "text": "x"}]}},
    ]

    simulation = simulate(plan(CONTAINMENT), read_transcript(messages))

    assert gates(simulation) == [("reply", "allow", ""), ("result", "allow", ""), ("reply", "block", "no-shell")]
    assert simulation.unreached == 1


@pytest.mark.parametrize(
    ("document", "wire"),
    [
        ([user("x")], "chat_completions"),
        ({"messages": [user("x")]}, "chat_completions"),
        ({"input": "x"}, "responses"),
        ({"messages": [user("x")], "system": "s"}, "anthropic"),
        ({"messages": [], "tools": [{"name": "t", "input_schema": {}}]}, "anthropic"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}], "anthropic"),
        ([{"jsonrpc": "2.0", "method": "ping", "id": 1}], "mcp"),
    ],
)
def test_the_wire_is_recognised_by_what_only_it_has(document: Any, wire: str) -> None:
    """No flag is needed for a transcript in a wire's own form."""
    assert wire_of(document) == wire


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"{", "the transcript is not JSON"),
        (b"3", "a transcript is a request body or a list of messages"),
    ],
)
def test_what_is_no_transcript_is_refused(source: bytes, message: str) -> None:
    """Bad input is a WireError that says what is expected."""
    with pytest.raises(WireError, match=message):
        read_transcript(source)


def test_a_turn_without_items_is_one_request() -> None:
    """A transcript of declared tools alone is judged at the request."""
    simulation = simulate(plan(SURFACE), read_transcript({"messages": [], "tools": ["mail_send"]}))

    assert [step.gate for step in simulation.steps] == ["request"]
    assert isinstance(read_transcript([]), Transcript)


def test_the_json_form_holds_every_gate() -> None:
    """What `--json` prints is what receipts would hold, step by step."""
    told = simulate(plan(CONTAINMENT), read_transcript(TIDY[:4])).as_json()

    assert told["decisions"] == {"allow": 3, "block": 1}
    assert [(step["step"], step["gate"], step["decision"]) for step in told["steps"]][-1] == (4, "reply", "block")
    assert told["states"] == {"default": "reviewing"}
    assert told["blocked_calls"][0]["rules"] == ["no-shell"]
