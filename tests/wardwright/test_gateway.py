"""`govern` is pure and closed: inputs stay as they are, retries meet the same ruling, failures block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.errors import GovernanceUnavailable, ToolNameCollision
from wardwright.facts import stored
from wardwright.gateway import passes, scopes_of
from wardwright.history import Head, Registers, apply, dump_head, ledger_keys, load_head, scope_key
from wardwright.policy import matching
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Predicate, Ruling
from wardwright.wire import Caller, CallItem, DeclaredTool, ResultItem, TextItem, Turn

CALLER = Caller(session_id="s", tenant="t")


def plan(text: str) -> Plan:
    return compile_plan(parse_config(text))


def turn(gate: Any, *items: Any, **more: Any) -> Turn:
    return Turn(gate, "chat_completions", "m", list(items), caller=CALLER, **more)


def plain(ruling: Ruling) -> Any:
    return (
        ruling.decision,
        ruling.calls,
        ruling.route,
        ruling.states,
        [(one.rule_id, one.effect, one.facts) for one in ruling.findings],
        [stored(fact) for fact in ruling.facts],
    )


LOOP = plan(
    "governance:\n  - {id: l, kind: tool_loop_threshold, action: deny_call, threshold: 2, tool: {namespace: a}}\n"
)


def test_govern_changes_none_of_its_inputs() -> None:
    """G1: a simulation on the value you hold leaves no trace; asked again it rules the same."""
    registers = Registers(key=b"k")
    request = turn("reply", CallItem("1", "a.x", "{}"), CallItem("2", "a.x", "{}"))
    first, delta = govern(LOOP, registers, request, 1)
    again, _ = govern(LOOP, registers, request, 1)
    assert plain(first) == plain(again)
    assert registers == Registers(key=b"k")
    assert apply(registers, delta) != registers


def test_simulate_equals_live() -> None:
    """G1: judging a story on an overlay gives the rulings that living it gives."""
    story = [turn("reply", CallItem(str(n), "a.x", f'{{"n": {n % 2}}}')) for n in range(5)]

    def live() -> list[Any]:
        registers, rulings = Registers(key=b"k"), []
        for step, one in enumerate(story):
            ruling, delta = govern(LOOP, registers, one, step)
            registers = apply(registers, delta)
            rulings.append(plain(ruling))
        return rulings

    held = Registers(key=b"k")
    overlay, simulated = held, []
    for step, one in enumerate(story):
        ruling, delta = govern(LOOP, overlay, one, step)
        overlay = apply(overlay, delta)
        simulated.append(plain(ruling))
    assert simulated == live()
    assert held.scopes == {}


def test_a_delta_names_the_version_it_was_judged_against() -> None:
    """G31: the compare-and-swap is on the version of the loaded scope, and applying raises it by one."""
    registers = Registers(key=b"k")
    for expected in range(3):
        _, delta = govern(LOOP, registers, turn("reply", CallItem(str(expected), "a.x", "{}")), 1)
        assert [change.base_version for change in delta.scopes] == [expected]
        registers = apply(registers, delta)


def test_a_rule_that_raises_blocks_by_name() -> None:
    """E3, G19: the gate is blocked by the failing rule; the others are judged as if it had not been there."""
    made = plan(
        "governance:\n  - {id: broken, kind: tool_selector, action: annotate, tool: {namespace: a, arguments: {/x: {equals: 1}}}}\n"
        "  - {id: fine, kind: tool_selector, action: annotate, tool: {namespace: a}}\n"
    )
    part = made.model("m")
    assert part is not None
    rule = part.rules.rules[0]

    def burst(_value: Any) -> bool:
        raise RuntimeError("boom")

    predicate = Predicate("/x", "x", burst)
    object.__setattr__(rule, "tool", replace(rule.tool, arguments=(predicate,)))  # type: ignore[attr-defined]
    rebuilt = type(part.rules)(part.rules.rules)
    made = replace(made, models={"m": replace(part, rules=rebuilt)})
    ruling, _ = govern(made, Registers(key=b"k"), turn("reply", CallItem("1", "a.x", '{"x": 1}')), 1)
    assert (ruling.decision, ruling.rule_id) == ("block", "broken")
    assert ruling.message == "Rule 'broken' failed, so nothing passes. Ask the operator to look at it."
    assert {one.rule_id: one.error for one in ruling.findings} == {"broken": "RuntimeError: boom", "fine": ""}


def test_an_engine_that_fails_is_closed() -> None:
    """G19: an item nobody knows is no reason to let anything pass."""
    with pytest.raises(GovernanceUnavailable) as caught:
        govern(LOOP, Registers(key=b"k"), turn("reply", object()), 1)
    assert (str(caught.value), caught.value.status) == ("The policy engine failed, so nothing passes.", 503)


@pytest.mark.interpreted
def test_a_caller_that_cannot_be_read_is_closed() -> None:
    """G19: who cannot say whose turn it is lets nothing pass, in the words of an engine that fails."""
    asked = Turn("request", "chat_completions", "m", caller=Caller(session_id=7))  # type: ignore[arg-type]
    with pytest.raises(GovernanceUnavailable) as caught:
        govern(LOOP, Registers(key=b"k"), asked, 1)
    assert str(caught.value) == "The policy engine failed, so nothing passes."


def test_an_unknown_model_is_closed() -> None:
    """G19: with several models, one that no plan governs is refused."""
    made = plan("models: [{model_id: a}, {model_id: b}]\n# two\n")
    with pytest.raises(GovernanceUnavailable, match=r"No plan governs model 'm'\."):
        govern(made, Registers(), turn("request"), 1)


def test_colliding_names_are_a_bad_request() -> None:
    """G6: two tools equal after folding are told apart by nobody."""
    with pytest.raises(ToolNameCollision, match=r"Tools 'Read' and 'read' have the same name after Unicode folding\."):
        govern(LOOP, Registers(), turn("request", tools=[DeclaredTool("Read"), DeclaredTool("read")]), 1)


def test_the_number_of_loop_keys_is_capped_towards_denying() -> None:
    """G30: past the cap new keys share one counter, so a flood of names cannot escape a threshold."""
    registers = Registers(key=b"k")
    for step in range(256):
        registers = apply(
            registers, govern(LOOP, registers, turn("reply", CallItem(f"i{step}", f"a.n{step}", "{}")), 1)[1]
        )
    first, delta = govern(LOOP, registers, turn("reply", CallItem("x", "a.fresh1", "{}")), 1)
    second, _ = govern(LOOP, apply(registers, delta), turn("reply", CallItem("y", "a.fresh2", "{}")), 1)
    assert (first.decision, second.decision) == ("allow", "deny_call")


def test_a_plan_change_keeps_what_still_applies() -> None:
    """G30: counts survive another id, action and threshold; a new rule says since when it counts."""
    registers = apply(
        Registers(key=b"k"), govern(LOOP, Registers(key=b"k"), turn("reply", CallItem("1", "a.x", "{}")), 100)[1]
    )
    changed = plan(
        "governance:\n  - {id: other, kind: tool_loop_threshold, action: block, threshold: 2, tool: {namespace: a}}\n"
        "  - {id: new, kind: tool_loop_threshold, action: annotate, threshold: 1, equal: tool+arguments, tool: {namespace: a}}\n"
    )
    ruling, _ = govern(changed, registers, turn("reply", CallItem("2", "a.x", "{}")), 200)
    since = {one.rule_id: one.evidence["counting_since_ms"] for one in ruling.findings}
    assert (ruling.decision, since) == ("block", {"other": 100, "new": 200})


def test_only_the_needed_scopes_are_loaded() -> None:
    """G31: a plan names the scopes its rules read; the session comes first."""
    made = plan(
        "scopes: {user: {retention: 1d, purpose: p}}\n"
        "governance: [{id: r, kind: budget, cache_scope: user, limits: {tokens: 1}}]\n"
    )
    assert scopes_of(made, turn("request")) == ("session_id\x1ft\x1fs", "user\x1ft\x1f")


def test_ledger_keys_cover_what_the_observer_reads() -> None:
    """G31: governing on the entries that `ledger_keys` names gives the ruling that the whole ledger gives."""
    registers = Registers(key=b"k")
    opening = [TextItem("user", "hi")]
    talk = [*opening, CallItem("1", "a.x", "{}"), ResultItem("1", "one")]
    for one in (turn("request", *opening), turn("reply", CallItem("1", "a.x", "{}")), turn("request", *talk)):
        registers = apply(registers, govern(LOOP, registers, one, 1)[1])
    scope = scope_key("session_id", CALLER)
    state = registers.scopes[scope]
    later = [
        *talk,
        TextItem("assistant", "ok"),
        TextItem("user", "hi"),
        CallItem("9", "a.x", "{}"),
        ResultItem("1", "changed"),
    ]
    for items in (talk, later, later[2:], [*talk[:1], CallItem("1", "a.x", '{"n": 1}'), ResultItem("1", "one")]):
        request = turn("request", *items)
        wanted = set(ledger_keys(request, b"k", state.head))
        entries = state.ledger.mutate()
        for name in state.ledger:
            if name not in wanted:
                entries.pop(name)
        sparse = replace(registers, scopes={scope: state._replace(ledger=entries.finish())})
        assert plain(govern(LOOP, sparse, request, 2)[0]) == plain(govern(LOOP, registers, request, 2)[0])


def test_a_head_survives_its_plain_form() -> None:
    """G31: what a store keeps of a head is the head."""
    head = Head(3, 4, 5, "d", "t", ("a",), "s", "planning", ("x",), ("i",), ("b",), 1, "p", 2, 7, "l")
    assert load_head(dump_head(head)) == head


def test_a_partly_denied_reply_goes_on() -> None:
    """G27: allowed siblings are released; a reply whose calls are all denied, or that waits, is not."""
    made = plan(
        "governance:\n  - {id: d, kind: tool_selector, action: deny_call, tool: {name: bad}}\n"
        "  - {id: w, kind: tool_selector, action: require_approval, tool: {name: wait}}\n"
    )

    def goes(*names: str) -> bool:
        calls = [CallItem(name, f"n.{name}", "{}") for name in names]
        return passes(govern(made, Registers(key=b"k"), turn("reply", *calls), 1)[0])

    assert [goes("ok", "bad"), goes("bad"), goes("ok", "wait"), goes("ok", "bad", "wait")] == [
        True,
        False,
        False,
        False,
    ]


def test_doubt_is_settled_by_the_action() -> None:
    """G13: `fits` turns doubt into a match exactly for denying actions."""
    made = plan("governance: [{id: r, kind: tool_selector, action: block, tool: {phase: planning}}]\n# x\n").model("m")
    assert made is not None
    ruling, _ = govern(LOOP, Registers(key=b"k"), turn("reply", CallItem("1", "q.x", "{}")), 1)
    fact = replace(ruling.facts[0], phase="unknown")
    matcher = made.rules.rules[0].tool  # type: ignore[attr-defined]
    assert [matching.fits(matcher, fact, denying) for denying in (True, False)] == [True, False]


def test_candidates_are_listed_per_fact() -> None:
    """G32: a ruling names, for each event, the rules that could have matched it, those of an attached bundle too."""
    made = plan(
        "policy_bundles: {b: [{id: x, kind: tool_selector, action: annotate, tool: {namespace: a}}]}\n"
        "governance:\n  - {id: one, kind: tool_selector, action: annotate, attach_policy_bundle: b, tool: {namespace: a}}\n"
        "  - {id: two, kind: tool_selector, action: annotate, tool: {namespace: c}}\n"
    )
    calls = [CallItem("1", "q.x", "{}"), CallItem("2", "a.x", "{}"), CallItem("3", "c.x", "{}")]
    ruling, _ = govern(made, Registers(key=b"k"), turn("reply", *calls), 1)
    assert ruling.considered == ((), ("one", "b/x"), ("two",))


def test_a_plan_says_whether_replies_must_be_read() -> None:
    """G2: text may stream through unless a rule reads it."""
    texts = [
        "governance: [{id: r, kind: stream_guard, match: x}]\n# a\n",
        "governance: [{id: r, kind: structured_output}]\n# b\n",
        "governance: [{id: r, kind: request_guard, match: x}]\n# c\n",
    ]
    assert [part.reads_replies for text in texts for part in plan(text).models.values()] == [True, True, False]
