"""A selector is turned into a pair in its own text: nothing else changes, and the pair does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from wardwright.cases import load_cases, play
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import compile_plan
from wardwright.ui.rewrite import CannotRewrite, Into, Wish, rewrite

BLOCK = """\
# What governs coding.
model_id: coding
state_machine: {initial_state: active, states: [active, reviewing]}
governance:
  - id: review
    kind: tool_sequence
    transition_to: reviewing
    after: {tool: {namespace: browser}}

  # No shell, ever.
  - id: no-shell   # the rule
    kind: tool_selector
    action: deny_call
    message: No shell here.
    tool:
      namespace: shell
      phase: planning   # calls only

  # Loops end.
  - id: loops
    kind: tool_loop_threshold
    action: deny_call
    threshold: 3
    tool: {name: '*'}
# The end.
"""
FLOW = """\
models:
  - {model_id: other, governance: [{id: no-shell, kind: tool_selector, action: annotate, tool: {name: x}}]}
  - model_id: coding
    governance: [{id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell}}, {id: last, kind: tool_selector, action: annotate, tool: {name: z}}]
    state_machines: [{id: no-shell, initial_state: a, states: [a]}]
"""
CASES = """\
- case: at first it passes
  given: {transcript: [{role: user, content: go}], reply: {tool_calls: [{id: a, name: shell.exec, arguments: {}}]}}
  expect: {ruling: allow}
- case: after a page it is denied
  given:
    steps:
      - transcript: [{role: user, content: go}]
      - reply: {tool_calls: [{id: a, name: browser_open, arguments: {}}]}
      - transcript:
          - {role: user, content: go}
          - {role: assistant, tool_calls: [{id: a, name: browser_open, arguments: {}}]}
          - {role: tool, tool_call_id: a, content: hello}
      - reply: {tool_calls: [{id: b, name: shell.exec, arguments: {}}]}
  expect: {ruling: deny_call, rules: [no-shell]}
- case: the user speaks and it passes again
  given:
    steps:
      - transcript: [{role: user, content: go}]
      - reply: {tool_calls: [{id: a, name: browser_open, arguments: {}}]}
      - transcript:
          - {role: user, content: go}
          - {role: assistant, tool_calls: [{id: a, name: browser_open, arguments: {}}]}
          - {role: tool, tool_call_id: a, content: hello}
          - {role: user, content: fine}
      - reply: {tool_calls: [{id: b, name: shell.exec, arguments: {}}]}
  expect: {ruling: allow}
"""


def told(source: str) -> Any:
    return parse_config(source).root.plain()


@pytest.mark.parametrize("into", ["state", "sequence"])
def test_the_pair_refuses_after_the_event_and_not_before(into: Into) -> None:
    """Both forms let pass what comes first, refuse after an untrusted result, and end with a word of the user."""
    plan = compile_plan(parse_config(rewrite(BLOCK, Wish("coding", "no-shell", into)).source))

    assert [play(plan, case).failures for case in load_cases(CASES)] == [[], [], []]


def test_a_state_pair_leaves_the_rest_of_the_text_as_it_is() -> None:
    """Lines are added and none is changed or moved, comments included."""
    made = rewrite(BLOCK, Wish("coding", "no-shell", "state")).source.splitlines()
    before = BLOCK.splitlines()
    kept = iter(made)

    assert all(line in kept for line in before)
    assert [line for line in made if line not in before] == [
        "    state_machine_id: no-shell",
        "    state_scope: watching",
        "  - id: no-shell-begins",
        "    after: {tool: {trust: untrusted, phase: result_interpretation}}",
        "    transition_to: watching",
        "    until: {user_turn: true}",
        "    state_machine_id: no-shell",
        "state_machines:",
        "  - {id: no-shell, initial_state: clear, states: [clear, watching]}",
    ]


def test_a_sequence_changes_only_the_rule() -> None:
    """What stands around the rule stays, and the rule keeps its name, action and message."""
    made = rewrite(BLOCK, Wish("coding", "no-shell", "sequence", {"namespace": "mail"}, {})).source

    assert made == BLOCK.replace("kind: tool_selector", "kind: tool_sequence").replace(
        "    tool:\n      namespace: shell\n      phase: planning   # calls only",
        "    after: {tool: {namespace: mail}}\n    then: {tool: {namespace: shell, phase: planning}}   # calls only",
    )


def test_rules_in_one_line_are_edited_in_that_line() -> None:
    """Flow style, several models and a name that is taken: the right rule is turned, in its own style."""
    made = told(rewrite(FLOW, Wish("coding", "no-shell", "state")).source)

    other, coding = made["models"]
    assert other == told(FLOW)["models"][0]
    assert coding["governance"][0]["state_machine_id"] == "no-shell-2"
    assert [rule["id"] for rule in coding["governance"]] == ["no-shell", "no-shell-begins", "last"]
    assert [machine["id"] for machine in coding["state_machines"]] == ["no-shell", "no-shell-2"]


def test_the_fragment_is_yaml_of_the_pair_alone() -> None:
    """What is shown can be pasted into another plan."""
    made = rewrite(BLOCK, Wish("coding", "no-shell", "state"))
    plan = compile_plan(parse_config(made.fragment))

    assert [rule.id for rule in plan.models["default"].rules.rules] == ["no-shell", "no-shell-begins"]
    assert made.rules == ("no-shell-begins", "no-shell")


@pytest.mark.parametrize(
    ("rule", "into", "message"),
    [
        ("none", "state", "There is no rule 'none' under governance of model 'coding'."),
        ("loops", "state", "'loops' is of kind tool_loop_threshold; only a tool_selector can be turned."),
        (
            "scoped",
            "state",
            "'scoped' already has to do with a state, and a rule knows one machine only: turn it into a sequence.",
        ),
        (
            "moves",
            "state",
            "'moves' already has to do with a state, and a rule knows one machine only: turn it into a sequence.",
        ),
        ("strip", "sequence", "A tool_sequence cannot strip_tools: turn 'strip' into a state pair."),
    ],
)
def test_what_cannot_be_turned_is_told_with_what_to_do(rule: str, into: Into, message: str) -> None:
    """Every refusal says why."""
    source = BLOCK + (
        "  - {id: scoped, kind: tool_selector, action: block, state_scope: reviewing, tool: {name: x}}\n"
        "  - {id: moves, kind: tool_selector, action: block, transition_to: reviewing, tool: {name: x}}\n"
        "  - {id: strip, kind: tool_selector, action: strip_tools, tool: {name: x}}\n"
    )

    with pytest.raises(CannotRewrite) as caught:
        rewrite(source, Wish("coding", rule, into))
    assert str(caught.value) == message


def test_an_aliased_rule_is_not_edited_in_the_wrong_place() -> None:
    """A text that cannot be edited without changing something else is refused with the YAML to write."""
    source = """\
policy_bundles:
  mine: [&shared {id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell}}]
models:
  - {model_id: coding, governance: [*shared]}
"""

    with pytest.raises(CannotRewrite, match="cannot be edited without changing something else") as caught:
        rewrite(source, Wish("coding", "no-shell", "sequence"))
    assert "kind: tool_sequence" in str(caught.value)


def test_a_text_with_problems_is_not_turned() -> None:
    """Problems are told with their places before anything is made."""
    with pytest.raises(ConfigError, match="unknown kind"):
        rewrite(BLOCK.replace("tool_loop_threshold", "tool_lop"), Wish("coding", "no-shell", "state"))


@pytest.mark.parametrize(("until", "note"), [({}, True), ({"clean_turn": True}, False)])
def test_that_nothing_ends_it_is_said(until: dict[str, Any], note: bool) -> None:
    """Whoever leaves out the end is told what that means."""
    made = rewrite(BLOCK, Wish("coding", "no-shell", "state", until=until))

    assert made.notes[0] == (
        "Until now 'no-shell' acted whenever its matcher fitted. Now it acts only after what it waits for: what comes before "
        "that passes. Compare the plans over stored traffic to see what changes."
    )
    assert ("Nothing ends it: once begun it holds for the rest of the session." in made.notes) is note


def test_the_page_about_it_shows_what_comes_out() -> None:
    """docs/gateway/policy-page.md: the second text is what the first one becomes."""
    page = (Path(__file__).parents[3] / "docs" / "gateway" / "policy-page.md").read_text("utf-8")
    shown = dict(re.findall(r"^```yaml (\w+)\.yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))

    assert rewrite(shown["before"], Wish("coding", "no-shell", "state")).source.strip() == shown["after"].strip()
