"""Claims about the pages in docs/policy: printed from the compiler's tables, and true when tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from wardwright import compile_plan, load_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import ACTION_KEYS, COMMON_KEYS, KINDS
from wardwright.policy.rules import GATES
from wardwright.reference import EXAMPLES, main, pages

DOCS = Path(__file__).parents[2] / "docs" / "policy"
FURTHER: dict[str, Any] = {
    "routes": ["a"],
    "target_model": "a",
    "replacement": "x",
    "text": "be careful",
    "controls": {"max_uses": 1},
    "transition_to": "active",
}


def compiled(rule: dict[str, Any]) -> Any:
    return compile_plan(load_config(yaml.safe_dump({"governance": [rule]}))).models["default"].rules.rules[0]


def example(kind: str) -> dict[str, Any]:
    rule: dict[str, Any] = yaml.safe_load(EXAMPLES[kind])
    return rule


def plain(kind: str) -> dict[str, Any]:
    """The example without its action and what belongs to it."""
    rule = example(kind)
    then = rule.pop("then", None)
    if then is not None:
        rule["before"] = {"tool": then["tool"]}
    further = {key for required, optional in ACTION_KEYS.values() for key in (*required, *optional)}
    return {key: value for key, value in rule.items() if key not in ("action", "mode", *further)}


def test_the_pages_are_what_the_tables_say() -> None:
    """`python -m wardwright.reference docs/policy` would change nothing; the page of the ready-made plans is written by hand."""
    written = {path.name: path.read_text("utf-8") for path in DOCS.glob("*.md") if path.name != "plans.md"}

    assert written == pages()


def test_the_pages_can_be_written_anywhere(tmp_path: Path) -> None:
    """The command makes the folder and every page in it."""
    main(str(tmp_path / "policy"))

    assert {path.name for path in (tmp_path / "policy").iterdir()} == set(pages())


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_compiles(kind: str) -> None:
    """What a reader copies works."""
    assert compiled(example(kind)).kind == kind


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, spec in KINDS.items() for key in spec.required])
def test_a_required_key_is_required(kind: str, key: str) -> None:
    """Leaving it out is refused by name."""
    rule = example(kind)
    del rule[key]

    with pytest.raises(ConfigError, match=f"missing key '{key}'"):
        compiled(rule)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_the_table_is_known_and_no_other(kind: str) -> None:
    """A key that is not on the page is refused."""
    with pytest.raises(ConfigError, match="unknown key 'colour'"):
        compiled({**example(kind), "colour": "red"})
    assert set(example(kind)) <= {"id", "kind", *KINDS[kind].required, *KINDS[kind].optional, *COMMON_KEYS} | {
        key for required, optional in ACTION_KEYS.values() for key in (*required, *optional)
    }


@pytest.mark.parametrize(("kind", "action"), [(kind, action) for kind in KINDS for action in GATES])
def test_a_kind_has_the_actions_of_its_table(kind: str, action: str) -> None:
    """Every action on the page compiles with its further keys and is judged at the gates shown; every other is refused."""
    required, _ = ACTION_KEYS[action]
    rule = {**plain(kind), "action": action, **{key: FURTHER[key] for key in required}}
    if kind == "allowed_tools" and action == "deny_call":
        del rule["action"]
        rule["mode"] = "deny_call"
    if kind == "budget" and action == "deny_call":
        rule["limits"] = {"calls": 1}
    gates = KINDS[kind].gates & GATES[action]
    if action not in KINDS[kind].actions or not gates:
        with pytest.raises(ConfigError, match=r"cannot have action|cannot be taken"):
            compiled(rule)
        return

    made = compiled(rule)

    assert made.action.name == action
    assert made.gates == gates or kind == "allowed_tools"


@pytest.mark.parametrize("kind", [kind for kind, spec in KINDS.items() if spec.default_action is not None])
def test_the_default_action_is_the_one_shown(kind: str) -> None:
    """A rule without an action gets the table's."""
    rule = plain(kind)
    if kind == "tool_sequence":
        del rule["before"]
        rule["transition_to"] = "active"

    assert compiled(rule).action.name == KINDS[kind].default_action


def test_the_default_mode_and_scope_are_those_shown() -> None:
    """Enforced, counted per session, medium, priority 0, on the default machine."""
    made = compiled(plain("tool_loop_threshold") | {"action": "block"})

    assert (made.mode, made.scope, made.severity, made.priority, made.machine) == (
        "enforce",
        "session_id",
        "medium",
        0,
        "default",
    )
