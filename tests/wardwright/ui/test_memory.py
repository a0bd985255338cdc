"""Counters and open windows in words, as they stand at a moment."""

from __future__ import annotations

import pytest

from wardwright import receipts
from wardwright.config import parse_config
from wardwright.policy.compile import compile_plan
from wardwright.policy.windows import Position
from wardwright.ui.memory import remembered

PLAN = """\
model_id: m
governance:
  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: '*'}}
  - {id: fresh, kind: tool_loop_threshold, action: deny_call, threshold: 2, within: {turns: 2, ms: 60000}, tool: {name: '*'}}
  - {id: many, kind: history_threshold, action: block, threshold: 5, tool: {risk_class: write}}
  - id: after
    kind: tool_sequence
    action: deny_call
    after: {tool: {namespace: browser}}
    then: {tool: {namespace: shell}}
    within: {turns: 3}
    until: {user_turn: true, tool: {name: check}}
  - {id: clean, kind: tool_sequence, action: deny_call, after: {tool: {name: a}}, then: {tool: {name: b}}, until: {clean_turn: true}}
  - {id: money, kind: budget, action: block, limits: {tokens: 1000}}
"""
RULES = receipts.rules_of(compile_plan(parse_config(PLAN, "plan")).models["m"])
AT = Position(5, 20, 100_000)


@pytest.mark.parametrize(
    ("rule", "of", "value", "said"),
    [
        ("loop", "shell\x1fexec", [1], ("shell.exec", "1 of 3", "")),
        ("loop", "shell\x1fexec", [2], ("shell.exec", "2 of 3", "warn")),
        ("loop", "shell\x1fexec", [3], ("shell.exec", "3 of 3", "bad")),
        ("loop", "shell\x1fexec\x1fdigest", [1], ("shell.exec with equal arguments", "1 of 3", "")),
        ("loop", "shell\x1fexec\x1fd\x1fe", [1], ("shell.exec with equal arguments and results", "1 of 3", "")),
        ("loop", "\x1fexec", [1], ("exec", "1 of 3", "")),
        ("loop", "*", [1], ("all further tools", "1 of 3", "")),
        ("loop", "!", [3, 3, 1, 1, 1], ("", "its threshold was reached: it binds what follows", "bad")),
        ("fresh", "a\x1fb", [1, 1, 1, 4, 19, 99_000], ("a.b", "1 of 2 within 2 turns and 1 min", "warn")),
        ("many", "", [2], ("", "2 of 5", "")),
        (
            "after",
            "",
            [3, 9, 9],
            ("", "open since 2 turns within 3 turns, until a tool that clears it or the user speaks", "warn"),
        ),
        ("clean", "", [4, 9, 9], ("", "open since 1 turn, until a clean turn", "warn")),
        ("money", "tokens", [900.0], ("tokens", "900 of 1000", "warn")),
        ("money", "tokens", [1000.5], ("tokens", "1000.5 of 1000", "bad")),
    ],
)
def test_a_register_is_said_in_words(rule: str, of: str, value: list[float], said: tuple[str, str, str]) -> None:
    """What it is of, how far it is, and whether that matters."""
    (kept,) = remembered(RULES, (rule,), of, value, AT)

    assert (kept.rule_id, kept.of, kept.says, kept.tone) == (rule, *said)


@pytest.mark.parametrize(
    ("rule", "of", "value"),
    [
        ("loop", "@", [1, 2]),
        ("fresh", "a\x1fb", [1, 1, 1]),
        ("after", "", [1, 1, 1]),
        ("clean", "", [3, 9, 9]),
        ("money", "reserve:tokens:money", [1]),
        ("unknown", "", [1]),
    ],
    ids=["the engine's own", "left its window", "closed", "a clean turn passed", "set aside", "no such rule"],
)
def test_what_counts_no_more_is_left_out(rule: str, of: str, value: list[int]) -> None:
    """A window that is closed is not there."""
    assert list(remembered(RULES, (rule,), of, value, AT)) == []


def test_rules_that_share_a_register_each_say_theirs() -> None:
    """With their own thresholds."""
    assert [one.says for one in remembered(RULES, ("loop", "many"), "", [2], AT)] == ["2 of 3", "2 of 5"]
