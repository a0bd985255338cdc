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
    assert [(flip.rule_id, flip.before, flip.after, flip.because, flip.tool) for flip in change.flipped] == [
        ("r", "deny_call", "", "rule_removed", "shell.exec"),
        ("new", "", "block", "rule_added", "browser.open"),
    ]


def test_a_lower_threshold_flips_the_call_that_reaches_it() -> None:
    """What was counted under the new plan, and both thresholds, are told."""
    loop = "kind: tool_loop_threshold, action: deny_call, threshold: {n}, tool: {{name: search}}"
    found = over(
        rule(loop.format(n=4)), rule(loop.format(n=3)), *[calls("search", arguments=f'{{"n": {n}}}') for n in range(5)]
    )

    assert [change.receipt_id for change in found.changes] == ["r3"]
    (flip,) = found.changes[0].flipped
    assert (flip.because, flip.values) == ("rule_changed", {"threshold": (4, 3), "observed_count": (None, 3)})
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


def test_another_word_of_the_catalog_is_the_fact_that_flips_it() -> None:
    """The rule is the same; what the catalog says of the tool is not, and both words are told."""
    careful = rule("kind: tool_selector, action: deny_call, tool: {risk_class: irreversible}")
    labelled = "catalog: [{match: tidy, namespace: files, risk_class: irreversible}]\n" + careful

    (flip,) = over(careful, labelled, calls("tidy")).changes[0].flipped

    assert (flip.before, flip.after, flip.because) == ("", "deny_call", "facts_changed")
    assert flip.values["risk_class"] == ("unknown", "irreversible")


def test_a_state_that_another_rule_moved_is_the_fact_that_flips_it() -> None:
    """A rule that looks at a state says which one it found on either side."""
    machine = "state_machine: {initial_state: a, states: [a, b]}\ngovernance:\n"
    held = "  - {id: held, kind: tool_selector, action: deny_call, state_scope: b, tool: {namespace: shell}}\n"
    move = "  - {id: move, kind: tool_selector, action: transition, transition_to: b, tool: {namespace: browser}}\n"

    found = over(machine + held, machine + held + move, calls("browser_open"), calls("shell_exec"))

    (flip,) = found.changes[0].flipped
    assert (flip.rule_id, flip.because, flip.values) == ("held", "facts_changed", {"state": ("a", "b")})


def test_arguments_are_shown_as_far_as_receipts_have_them() -> None:
    """Captured ones at the places a rule reads; without them the rule is not replayed at all."""
    glob = rule("kind: tool_selector, action: deny_call, tool: {namespace: shell, arguments: {/cmd: {glob: '%s'}}}")
    kept = recorded(ALLOW, calls("shell_exec", arguments='{"cmd": "rm x", "why": "tidy"}'), capture=True)

    told = diff(plan(glob % "cp *"), plan(glob % "rm *"), kept).as_json()["changes"][0]["flipped"]

    assert [(one["from"], one["to"], one["facts"][0]["arguments"]) for one in told] == [
        ("", "deny_call", {"/cmd": "rm x"})
    ]
    assert over(glob % "cp *", glob % "rm *", calls("shell_exec", arguments='{"cmd": "rm x"}')).changes == ()


def test_what_is_listed_is_bounded_and_the_rest_counted() -> None:
    """Many changes, many calls: the first are listed, all are counted."""
    stored = recorded(ALLOW, *[calls(*["shell_exec"] * 20) for _ in range(3)])

    found = diff(plan(rule(DENY.replace("shell", "x"))), plan(rule(DENY)), stored, limit=2)

    assert (len(found.changes), found.left_off, found.counts["changed"]) == (2, 1, 3)
    assert (len(found.changes[0].flipped), found.changes[0].left_off) == (16, 4)
    assert found.as_json()["left_off"] == 1
