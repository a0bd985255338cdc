"""Claims about the difference two plans make over the same receipts."""

from __future__ import annotations

from typing import Any

from wardwright.replay import diff
from wardwright.wire import DeclaredTool

from .test_replay import ALLOW, calls, plan, recorded, rule

DENY = "kind: tool_selector, action: deny_call, tool: {namespace: shell}"


def over(before: str, after: str, *exchanges: Any) -> Any:
    return diff(plan(before), plan(after), recorded(ALLOW, *exchanges))


def test_equal_plans_change_nothing() -> None:
    """The same rules in another layout and order of keys make no difference."""
    found = over(
        rule(DENY), rule("tool: {namespace: shell}, action: deny_call, kind: tool_selector"), calls("shell_exec")
    )

    assert found.counts == {"same": 2, "changed": 0, "unknown": 0}
    assert found.fired == {"r": (1, 1)}


def test_a_change_names_rules_and_facts_on_both_sides() -> None:
    """A decision that flips says which rule let go, which took hold, and of what."""
    found = over(
        rule(DENY),
        "governance:\n  - {id: new, kind: tool_selector, action: block, tool: {namespace: browser}}\n",
        calls("shell_exec", "browser_open"),
    )

    (change,) = found.changes
    assert (change.before.decision, change.before.rule_id) == ("deny_call", "r")
    assert (change.after.decision, change.after.rule_id) == ("block", "new")
    assert [(flip.rule_id, flip.fires, flip.facts[0]["name"]) for flip in change.flips] == [
        ("r", "before", "exec"),
        ("new", "after", "open"),
    ]


def test_a_lower_threshold_flips_the_call_that_reaches_it() -> None:
    """The evidence says how often the fact was counted under the new plan."""
    loop = "kind: tool_loop_threshold, action: deny_call, threshold: {n}, tool: {{name: search}}"
    found = over(
        rule(loop.format(n=4)), rule(loop.format(n=3)), *[calls("search", arguments=f'{{"n": {n}}}') for n in range(5)]
    )

    assert [change.receipt_id for change in found.changes] == ["r3"]
    assert found.changes[0].flips[0].evidence["observed_count"] == 3
    assert found.fired == {"r": (2, 3)}


def test_a_route_that_changes_is_a_change() -> None:
    """Who answers is part of the decision, though nothing is refused."""
    routed = "targets: [{model: a}, {model: b}]\n" + rule(
        "kind: tool_selector, action: restrict_routes, routes: [b], tool: {namespace: shell, source: declared_tool}"
    )
    switched = routed.replace("restrict_routes, routes: [b]", "switch_model, target_model: a")
    turns = calls("shell_exec")
    turns[0].tools = [*turns[0].tools, DeclaredTool("shell_exec")]

    (change,) = over(routed, switched, turns).changes

    assert (change.before.allowed_routes, change.before.model) == (("b",), "")
    assert (change.after.allowed_routes, change.after.model) == (None, "a")


def test_tools_that_are_withheld_are_a_change() -> None:
    """A surface that narrows is seen even where no call is refused."""
    turns = calls()
    turns[0].tools = [DeclaredTool("shell_exec")]

    (change,) = over(
        rule("kind: tool_selector, action: annotate, tool: {name: x}"),
        rule("kind: tool_selector, action: strip_tools, tool: {namespace: shell}"),
        turns,
    ).changes

    assert (change.gate, change.before.withheld, change.after.withheld) == ("request", (), ("shell_exec",))


def test_an_unreplayable_rule_in_both_plans_is_told_apart_from_a_new_one() -> None:
    """The same text rule on both sides can hardly make the difference; an edited one may."""
    same = "kind: request_guard, action: block, match: secret"

    unchanged = over(rule(same), "# moved\n\n" + rule(same), calls("open"))
    edited = over(rule(same), rule(same.replace("secret", "password")), calls("open"))

    assert [(one.rule_id, one.changed) for one in unchanged.unreplayable] == [("r", False)]
    assert [(one.rule_id, one.changed) for one in edited.unreplayable] == [("r", True)]


def test_the_order_of_receipts_is_the_order_of_changes() -> None:
    """Changes come as they were recorded, so that the first cause stands first."""
    found = over(rule(DENY.replace("shell", "x")), rule(DENY), *[calls("shell_exec") for _ in range(3)])

    assert [change.receipt_id for change in found.changes] == ["r1", "r2", "r3"]
    assert found.as_json()["counts"]["changed"] == 3
