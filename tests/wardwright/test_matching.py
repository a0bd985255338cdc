"""Which facts a matcher fits, above all when arguments are written so that they are hard to read."""

from __future__ import annotations

import pytest

from wardwright import compile_plan, govern, load_config
from wardwright.history import Registers
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import Caller, CallItem, Gate, HostedCallItem, HostedResultItem, Item, ToolChoice, Turn

PLAN = """
governance:
  - {id: glob, kind: tool_selector, action: deny_call, tool: {name: write, arguments: {/path: {glob: "/etc/*"}}}}
  - {id: flag, kind: tool_selector, action: deny_call, tool: {name: push, arguments: {/force: {equals: true}}}}
  - {id: list, kind: tool_selector, action: deny_call, tool: {name: pick, arguments: {/n: {one_of: [1, 2]}}}}
  - {id: deep, kind: tool_selector, action: deny_call, tool: {name: nest, arguments: {/a/b: {equals: 1}}}}
"""


def ask(plan: str, gate: Gate, *items: Item, choice: ToolChoice | None = None) -> Ruling:
    turn = Turn(gate, "chat_completions", "m", items, tool_choice=choice, caller=Caller(session_id="s"))
    return govern(compile_plan(load_config(plan)), Registers(key=b"k"), turn, 1_000_000)[0]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fs.write", '"{\\"path\\":\\"/etc/x\\"}"'),
        ("fs.write", '["/etc/x"]'),
        ("fs.write", "null"),
        ("git.push", '{"force":"true"}'),
        ("git.push", '{"force":1}'),
        ("x.pick", '{"n":"1"}'),
        ("x.nest", '{"a":"{\\"b\\":1}"}'),
        ("x.nest", '{"a":[{"b":1}]}'),
        ("x.nest", '{"a":{"b":"1"}}'),
    ],
)
def test_what_a_lenient_tool_would_read_counts_for_denial(name: str, arguments: str) -> None:
    """G13: JSON inside text, lists for objects and values of another type cannot be read, so a denying rule matches."""
    assert ask(PLAN, "reply", CallItem("c", name, arguments)).decision == "deny_call"


@pytest.mark.parametrize(
    ("levels", "decision"), [(253, "allow"), (254, "deny_call"), (400, "deny_call"), (900, "deny_call")]
)
@pytest.mark.parametrize("said", ['{"path":"/tmp/x","more":%s}', '{"path":"/tmp/x","more":%s,"n":1e0,"say":"a: b"}'])
def test_how_deep_arguments_are_read_depends_on_nothing_else(said: str, levels: int, decision: str) -> None:
    """G13: what nests deeper than its canonical form can cannot be read, whoever asks and in whatever build."""
    arguments = said % ("[" * levels + "]" * levels)
    assert ask(PLAN, "reply", CallItem("c", "fs.write", arguments)).decision == decision


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fs.write", '{"path":"/tmp/x"}'),
        ("fs.write", "{}"),
        ("git.push", '{"force":false}'),
        ("git.push", '{"force":null}'),
        ("x.pick", '{"n":3}'),
        ("x.nest", '{"a":{}}'),
        ("x.nest", '{"a":{"b":2.5}}'),
    ],
)
def test_what_can_be_read_and_differs_passes(name: str, arguments: str) -> None:
    """G13: a missing key, null, or another value of the same type is no match."""
    assert ask(PLAN, "reply", CallItem("c", name, arguments)).decision == "allow"


def test_a_provider_s_result_has_no_arguments_to_judge() -> None:
    """G13: a rule on a hosted tool's arguments reads the call, and does not block the result beside it."""
    plan = """
governance:
  - {id: d, kind: tool_selector, action: block, tool: {namespace: provider.web_search, arguments: {/query: {regex: secret}}}}
"""
    items = (HostedCallItem("h", "web_search", '{"query":"cats"}'), HostedResultItem("h", "web_search", "cats"))
    secret = (HostedCallItem("h", "web_search", '{"query":"secret"}'),)
    assert (ask(plan, "reply", *items).decision, ask(plan, "reply", *secret).decision) == ("allow", "block")


def test_forcing_a_tool_is_not_judged_by_arguments_it_does_not_have() -> None:
    """G13: `not: {arguments: …}` waits for the call."""
    plan = """
governance:
  - {id: d, kind: tool_selector, action: block, tool: {name: write, not: {arguments: {/path: {glob: "/tmp/*"}}}}}
"""
    forced = ask(plan, "request", choice=ToolChoice("tool", ("fs.write",)))
    called = ask(plan, "reply", CallItem("c", "fs.write", '{"path": "/etc/x"}'))
    assert (forced.decision, called.decision) == ("allow", "block")
