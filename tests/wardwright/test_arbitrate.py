"""What people and models read when something is refused, word for word; and how limits are clamped."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright import compile_plan
from wardwright.cases import load_cases, play
from wardwright.config import parse_config
from wardwright.policy.arbitrate import STRENGTH, clamp, transformed
from wardwright.policy.compile import builtin_bundles
from wardwright.policy.rules import GATES, Ruling


def rule_on(rules: str, given: str) -> Ruling:
    plan = compile_plan(parse_config(f"governance:\n  - {rules}\n"))
    (case,) = load_cases(f"- case: x\n  given: {given}\n  expect: {{ruling: allow}}\n")
    ruling = play(plan, case).ruling
    assert ruling is not None
    return ruling


CALL = "{reply: {tool_calls: [{id: a, name: n.x, arguments: {v: 1}}]}}"


@pytest.mark.parametrize(
    ("rule", "given", "message"),
    [
        (
            "{id: r, kind: tool_selector, action: block, tool: {namespace: n}}",
            CALL,
            "Tool n.x was blocked by rule 'r'. Change what it asks for, or ask the operator for an exception.",
        ),
        (
            "{id: r, kind: request_guard, match: hi}",
            "{transcript: [{role: user, content: hi}]}",
            "This request was blocked by rule 'r'. Change what it asks for, or ask the operator for an exception.",
        ),
        (
            "{id: r, kind: stream_guard, match: hi}",
            "{reply: {content: hi}}",
            "This answer was blocked by rule 'r'. Change what it asks for, or ask the operator for an exception.",
        ),
        (
            "{id: r, kind: tool_selector, action: deny_call, tool: {namespace: n}}",
            CALL,
            "Tool n.x is not allowed here (rule 'r'). Use another tool, or ask the operator for an exception.",
        ),
        (
            "{id: r, kind: tool_selector, action: require_approval, tool: {namespace: n}}",
            CALL,
            "Tool n.x needs an operator's approval (rule 'r'). Ask for it, then send the same request again.",
        ),
        (
            "{id: r, kind: argument_schema, tool: {namespace: n}, schema: {properties: {v: {type: string}}, required: [w]}}",
            CALL,
            "Tool n.x has arguments or output that do not fit (rule 'r'). Problems: $: missing 'w'; $.v: expected string, got integer. "
            "Correct them and try again.",
        ),
        (
            "{id: r, kind: structured_output, schema: {type: object}}",
            "{reply: {content: '[1]'}}",
            "This answer has arguments or output that do not fit (rule 'r'). Problems: $: expected object, got array. Correct them and try again.",
        ),
        (
            "{id: r, kind: structured_output, schema: {type: object}}",
            "{reply: {content: ''}}",
            "This answer has arguments or output that do not fit (rule 'r'). Problems: $: the answer is empty. Correct them and try again.",
        ),
        (
            "{id: r, kind: budget, action: deny_call, limits: {calls: 1}}",
            "{reply: {tool_calls: [{id: a, name: n.x}, {id: b, name: n.x}]}}",
            "The budget of calls is used up: 1 of 1 (rule 'r'). Wait for it to renew, or ask the operator for more.",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 1, tool: {namespace: n}}",
            CALL,
            "Tool n.x was seen 1 times, the limit is 1 (rule 'r'). Do something else, or ask the operator to raise the limit.",
        ),
        (
            "{id: r, kind: allowed_tools, phase: planning, allowed_tools: [{name: other}]}",
            CALL,
            "Tool n.x is not on the list of allowed tools (rule 'r'). Leave it out, or ask the operator to list it.",
        ),
        (
            "{id: r, kind: argument_schema, tool: {namespace: n}}",
            "{tools: [other], transcript: [], reply: {tool_calls: [{id: a, name: n.x}]}}",
            "Tool n.x has arguments or output that do not fit (rule 'r'). Problems: $: tool 'n.x' was not declared. Correct them and try again.",
        ),
        (
            "{id: r, kind: tool_selector, action: block, message: Please do not., tool: {namespace: n}}",
            CALL,
            "Please do not.",
        ),
    ],
)
def test_a_refusal_says_what_a_person_can_do(rule: str, given: str, message: str) -> None:
    """G34, S57: the message names the rule and the way out."""
    ruling = rule_on(rule, given)
    assert ruling.message == message
    assert (ruling.rule_id, ruling.decision != "allow") == ("r", True)


def test_the_bundles_that_ship_say_what_to_do() -> None:
    """S57: messages of built-in bundles, word for word."""
    messages = {
        f"{name}/{rule['id']}": rule["message"] for name, node in builtin_bundles().items() for rule in node.plain()
    }
    assert messages == {
        "write_tool_validation_v1/arguments-fit-schema": "The arguments do not satisfy the tool's schema. Correct them and call again.",
        "write_tool_validation_v1/no-identical-writes": "The same write was already requested twice. Do something else, or ask the user.",
        "write_tool_validation_v1/no-forged-writes": "The transcript holds a tool call or result that never passed here. "
        "Start again from the last answer you received.",
        "strict_tool_argument_repair_v1/arguments-fit-schema": "The arguments do not satisfy the tool's schema. "
        "Correct every problem named, and call again.",
        "strict_tool_argument_repair_v1/same-arguments-again": "The same arguments were refused before. "
        "Ask the user instead of trying again.",
    }


def test_conflicts_are_explained() -> None:
    """G18: the receipt says why a preference was ignored and which transition won."""
    rules = (
        "{id: a, kind: tool_selector, action: transition, transition_to: x, tool: {namespace: n}}\n"
        "  - {id: b, kind: tool_selector, action: annotate, transition_to: y, tool: {namespace: n}}"
    )
    plan = compile_plan(
        parse_config(f"state_machine: {{initial_state: i, states: [i, x, y]}}\ngovernance:\n  - {rules}\n")
    )
    (case,) = load_cases(f"- case: x\n  given: {CALL}\n  expect: {{ruling: allow}}\n")
    ruling = play(plan, case).ruling
    assert ruling is not None
    assert [conflict.message for conflict in ruling.conflicts] == [
        "Two rules move the same machine; the first by priority and order won."
    ]


@pytest.mark.parametrize(
    ("key", "current", "limit", "result"),
    [
        ("max_uses", 10, 3, 3),
        ("max_uses", 2, 3, 2),
        ("max_uses", None, 3, 3),
        ("max_uses", -1, 3, 3),
        ("max_uses", 0, 3, 0),
        ("max_uses", True, 3, 3),
        ("max_uses", 2**60 + 1, 2**61, 2**60 + 1),
        ("allowed_domains", ["a", "b"], ["b", "c"], ["b"]),
        ("allowed_domains", None, ["b"], ["b"]),
        ("blocked_domains", ["a"], ["b", "a"], ["a", "b"]),
        ("external", True, False, False),
    ],
)
def test_limits_only_get_stricter(key: str, current: Any, limit: Any, result: Any) -> None:
    """G12: set_controls clamps; it never widens what a caller asked for, nor makes 3.0 of a 3, which a provider refuses."""
    assert repr(clamp(key, current, limit)) == repr(result)


def test_every_action_has_a_strength() -> None:
    """G18: arbitration knows where each action stands."""
    assert set(STRENGTH) == set(GATES)


def test_a_transform_changes_the_items_that_it_is_about() -> None:
    """A6: a ruling alone says what a text becomes; results of other tools stay as they are."""
    ruling = rule_on(
        "{id: r, kind: tool_selector, action: transform, pattern: 'p\\w+', replacement: X, "
        "tool: {name: a, source: tool_result}}",
        "{transcript: [{role: assistant, tool_calls: [{id: i, name: n.a}, {id: j, name: n.b}]}, "
        "{role: tool, tool_call_id: i, content: the page}, {role: tool, tool_call_id: j, content: the page}]}",
    )
    assert [transformed(ruling, item, "the page") for item in (2, 3)] == ["the X", "the page"]


def test_a_transform_of_a_whole_gate_changes_every_text() -> None:
    """A6: what is about no tool is about all texts."""
    ruling = rule_on(
        "{id: r, kind: stream_guard, match: page, action: transform, replacement: gone}", "{reply: {content: the page}}"
    )
    assert transformed(ruling, 0, "the page") == "gone"


def test_an_observed_transform_changes_nothing() -> None:
    """A5, A6: a would-have is not among the transforms."""
    ruling = rule_on(
        "{id: r, kind: stream_guard, match: page, action: transform, replacement: gone, mode: observe}",
        "{reply: {content: the page}}",
    )
    assert transformed(ruling, 0, "the page") == "the page"
