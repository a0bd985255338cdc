"""What a transcript claims against what the ledger knows: nothing a caller renames, repeats, resends or hides changes what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.wire import Caller, CallItem, Item, ResultItem, TextItem, Turn
from wardwright.wire.turn import Gate, HostedCallItem, HostedResultItem


class Session:
    """One caller under one plan, gate after gate."""

    def __init__(self, text: str) -> None:
        self.plan: Plan = compile_plan(parse_config(text))
        self.registers = Registers(key=b"k")

    def go(self, gate: Gate, items: Sequence[Item], **more: Any) -> Ruling:
        turn = Turn(gate, "chat_completions", "m", items, caller=Caller(session_id="s"), **more)
        ruling, delta = govern(self.plan, self.registers, turn, 1_000)
        self.registers = apply(self.registers, delta)
        return ruling

    def request(self, *items: Item, **more: Any) -> Ruling:
        return self.go("request", items, **more)

    def reply(self, *items: Item, **more: Any) -> Ruling:
        return self.go("reply", items, **more)


def user(text: str) -> TextItem:
    return TextItem("user", text)


def said(text: str) -> TextItem:
    return TextItem("assistant", text)


def call(call_id: str, name: str, arguments: str = "{}") -> CallItem:
    return CallItem(call_id, name, arguments)


def result(call_id: str, content: str = "ok", is_error: bool | None = None, name: str = "") -> ResultItem:
    return ResultItem(call_id, content, is_error, name)


def marks(ruling: Ruling) -> list[str]:
    return [mark for fact in ruling.facts for mark in fact.marks]


CONTAINED = """
state_machine: {initial_state: active, states: [{id: active}, {id: reviewing}]}
governance:
  - {id: enter, kind: tool_sequence, after: {tool: {namespace: browser, phase: result_interpretation}}, transition_to: reviewing}
  - {id: no-shell, kind: tool_selector, state_scope: reviewing, action: block, tool: {namespace: shell, phase: planning}}
"""


def test_renaming_a_call_launders_nothing() -> None:
    """G22: a result belongs to the tool that the ledger says was called, whatever the transcript calls it."""
    session = Session(CONTAINED)
    session.request(user("hi"))
    session.reply(call("c1", "browser_open"))
    ruling = session.request(user("hi"), call("c1", "calc"), result("c1", "a page"))
    assert (marks(ruling), ruling.states) == (["altered"], {"default": "reviewing"})
    assert session.reply(call("c2", "shell_exec")).rule_id == "no-shell"


def test_a_result_is_not_judged_by_arguments_that_were_never_used() -> None:
    """G22: where the transcript changes a call's arguments, its result carries the true digest and no made-up arguments."""
    session = Session("governance: []\n# none\n")
    session.request(user("hi"))
    passed = session.reply(call("c1", "a.x", '{"n": 1}')).facts[0]
    told = session.request(user("hi"), call("c1", "a.x", '{"n": 2}'), result("c1")).facts[-1]
    assert (told.source, told.arguments_digest, told.arguments) == ("tool_result", passed.arguments_digest, None)


GUARDED = "governance: [{id: g, kind: request_guard, match: SECRET, roles: [user]}]\n# one\n"


def test_text_cannot_pass_for_the_border_between_items() -> None:
    """G22: separators inside a text never make another transcript look like a known prefix."""
    session = Session(GUARDED)
    session.request(TextItem("system", "s\x1euser\x1fSECRET"), user("z"))
    hidden = [TextItem("system", "s"), user("SECRET\x1euser\x1fz"), said("ok"), user("go")]
    assert session.request(*hidden).rule_id == "g"


ITEMS: list[list[Item]] = [
    [user("a"), user("b")],
    [user("a1:b")],
    [user("a"), said("b")],
    [call("a", "b", "c")],
    [call("ab", "", "c")],
    [call("a", "b1:c", "")],
    [result("a", "b", None, "c")],
    [result("a", "b", None, "")],
    [result("a", "b", True, "c")],
    [result("a", "b", False, "c")],
    [HostedCallItem("a", "mcp", "b", "c", "d")],
    [HostedCallItem("a", "mcp", "b", "c")],
    [HostedCallItem("a", "mcp", "b", None, "d")],
    [HostedCallItem("a", "mcp", "b", "", "d")],
    [HostedResultItem("a", "mcp", "b", None, "c", "d")],
    [HostedResultItem("a", "mcp", "b", True, "c", "d")],
    [HostedResultItem("a", "mcp", "b", None, None, "d")],
]


def test_different_transcripts_have_different_digests() -> None:
    """G22, G23: every field of every item is in the digest, behind its length."""
    digests: set[str] = set()
    for items in ITEMS:
        session = Session("governance: []\n# none\n")
        session.request(*items)
        (state,) = session.registers.scopes.values()
        digests.add(state.head.prefix_digest)
    assert len(digests) == len(ITEMS)


def test_the_result_of_a_held_call_is_a_mismatch() -> None:
    """G22, G23: a call that waits for an approval was never released, so nobody can have run it."""
    session = Session("governance: [{id: ap, kind: tool_selector, action: require_approval, tool: {name: pay}}]\n# x\n")
    session.request(user("hi"))
    session.reply(call("c1", "n.pay"))
    ruling = session.request(user("hi"), call("c1", "n.pay"), result("c1", "paid"))
    assert marks(ruling) == ["result_for_denied_call"]
