"""Files become nodes with places; what cannot be read is refused where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from wardwright import compile_plan, load_config
from wardwright.config import parse_config
from wardwright.errors import ConfigError


def problems(text: str) -> list[str]:
    """All problems of a text, whether found while reading or while compiling."""
    with pytest.raises(ConfigError) as caught:
        compile_plan(parse_config(text, "f.yaml"))
    return [str(problem) for problem in caught.value.problems]


def test_broken_yaml_has_a_place() -> None:
    """G10: a syntax error names file, line and column."""
    assert problems("governance: [\n  {id: a\n")[0].startswith("f.yaml:3:1: $: not valid YAML: ")


def test_duplicate_yaml_key_is_refused() -> None:
    """G10: the second of two equal keys is a problem and names the first."""
    assert problems("model_id: a\nmodel_id: b\n") == ["f.yaml:2:1: model_id: duplicate key 'model_id', first at line 1"]


def test_unknown_top_level_key_suggests_the_right_word() -> None:
    """G10: a misspelt section is refused with the nearest word."""
    assert problems("goverance: []\n") == [
        "f.yaml:1:1: goverance: unknown key 'goverance' (did you mean 'governance'?)"
    ]


def test_empty_file_is_refused() -> None:
    """G10: nothing is not a config."""
    assert problems("") == ["f.yaml:1:1: $: the file is empty"]


def test_a_list_is_no_config() -> None:
    """G60: a file is a mapping."""
    assert problems("- a\n") == ["f.yaml:1:1: $: expected a mapping: a model artifact, or a deployment with 'models'"]


def test_unknown_tags_and_merge_keys_are_refused() -> None:
    """G10: YAML features that hide what a file says are problems."""
    found = problems("x: &x {a: 1}\nmodel_id: !!python/name:os.system ''\ncapture: {<<: *x}\n")
    assert any("unsupported YAML tag 'tag:yaml.org,2002:python/name:os.system'" in one for one in found)
    assert any("merge keys (<<) are not supported; write the keys out" in one for one in found)


def test_an_alias_to_itself_is_refused() -> None:
    """G10: a file that contains itself cannot be read."""
    assert problems("capture: &a {b: *a}\n") == ["f.yaml:1:10: capture.b: contains itself"]


def test_an_unfolding_bomb_is_refused() -> None:
    """G10: a small file cannot unfold into millions of nodes."""
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 7)]
    assert problems("\n".join(layers) + "\n")[-1].endswith("unfolds into too much")


def test_deep_nesting_is_refused() -> None:
    """G10: a file that nests beyond reason is a problem, not a crash."""
    assert problems("capture: " + "[" * 5000 + "]" * 5000 + "\n") == ["f.yaml:1:1: $: nests too deeply"]


def test_dates_stay_text() -> None:
    """G28: an expiry is read by us, not by YAML, so that a node is always plain JSON."""
    config = parse_config("capture: {since: 2026-01-01}\n")
    assert config.root.plain() == {"capture": {"since": "2026-01-01"}}


def test_layout_does_not_change_the_hash() -> None:
    """G32: the content hash is of what a file says."""
    assert (
        parse_config("model_id: a\ncapture: {x: 1}\n").content_hash
        == parse_config("# comment\ncapture:\n  x: 1\nmodel_id: 'a'\n").content_hash
    )


def test_a_deployment_has_several_models(tmp_path: Path) -> None:
    """G60: one file may hold a list of artifacts beside what they share."""
    file = tmp_path / "d.yaml"
    file.write_text(
        "models:\n  - {model_id: a}\n  - {model_id: b, governance: [{id: r, kind: request_guard, match: x}]}\n"
    )
    plan = compile_plan(load_config(file))
    assert {name: len(part.rules.rules) for name, part in plan.models.items()} == {"a": 0, "b": 1}


def test_models_need_different_ids() -> None:
    """G60: two artifacts with one id are refused."""
    assert problems("models:\n  - {model_id: a}\n  - {model_id: a}\n") == [
        "f.yaml:3:5: models[1]: model_id 'a' is already used at line 2"
    ]


def test_a_missing_file_is_a_problem_with_a_name(tmp_path: Path) -> None:
    """G10: a file that cannot be read is told like any other problem."""
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.yaml")
    assert str(caught.value.problems[0]).startswith(f"{tmp_path / 'none.yaml'}:1:1: $: cannot be read: ")


def test_the_contract_s_example_loads() -> None:
    """G60: a full model artifact, with sections that other parts of the gateway read."""
    plan = compile_plan(
        parse_config(
            """
model_id: coding-balanced
targets:
  - {model: managed/write, provider: scripted, context_window: 128000, tools: true}
  - {model: local/private, provider: scripted, context_window: 32000, tools: false}
catalog:
  - {match: "shell_exec", namespace: shell, name: exec, risk_class: irreversible}
  - {match: "browser_{name}", namespace: browser, risk_class: read_only, results: untrusted}
  - {match: "mcp__{server}__{name}", namespace: "mcp.{server}"}
state_machine: {initial_state: active, states: [{id: active}]}
governance: []
server_tools: [{name: wardwright_policy_cache_status}]
tool_mediation: {mode: observe, rules: []}
"""
        )
    )
    part = plan.models["coding-balanced"]
    assert [(target.model, target.tools) for target in part.targets] == [
        ("managed/write", True),
        ("local/private", False),
    ]
    assert plan.warnings == ()


@pytest.mark.parametrize("providers", ["{acme: {url: x}}", "[{name: acme, url: x}]"])
def test_declared_providers_are_known(providers: str) -> None:
    """G60: a target may name any provider the deployment declares."""
    text = f"providers: {providers}\nmodels:\n  - {{model_id: m, targets: [{{model: a, provider: acme}}]}}\n"
    assert compile_plan(parse_config(text)).models["m"].targets[0].provider == "acme"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("010", "'010' is 8 to some readers only: write a plain number, or quote it"),
        ("1:30", "'1:30' is 90 to some readers only: write a plain number, or quote it"),
        ("1_000", "'1_000' is 1000 to some readers only: write a plain number, or quote it"),
        ("1:30.5", "'1:30.5' is 90.5 to some readers only: write a plain number, or quote it"),
        ("no", "'no' is text to some readers: write true or false, or quote it"),
        ("!!null x", "'x' is not nothing"),
        (".nan", "expected a finite number"),
        (".inf", "expected a finite number"),
        ("99999999999999999999", "a whole number beyond 64 bits"),
        ("1" * 5000, "unreadable value"),
        ("!!bool maybe", "unreadable value: 'maybe'"),
        ('"\\ud800"', "not valid Unicode: half of a surrogate pair"),
        ("!foo [1]", "unsupported YAML tag '!foo'"),
        ("!!set {a, b}", "unsupported YAML tag 'tag:yaml.org,2002:set'"),
        ("!!python/object:os.system {a: 1}", "unsupported YAML tag 'tag:yaml.org,2002:python/object:os.system'"),
    ],
)
def test_a_value_that_can_be_misread_is_refused(value: str, message: str) -> None:
    """G10: where readers of YAML differ, or JSON has no such value, the author says what is meant."""
    assert problems(f"capture:\n  x: [true, {value}]\n") == [f"f.yaml:2:13: capture.x[1]: {message}"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("~", "keys must be text"),
        ("[a]", "keys must be text"),
        ("!foo a", "unsupported YAML tag '!foo'"),
        ('"\\ud800"', "not valid Unicode: half of a surrogate pair"),
    ],
)
def test_a_key_that_is_no_text_is_refused(key: str, message: str) -> None:
    """G10: keys are plain text."""
    assert problems(f"capture: {{a: 1, {key}: 2}}\n") == [f"f.yaml:1:17: capture: {message}"]


def test_a_forbidden_character_has_a_place() -> None:
    """G10: what YAML does not allow at all is told with line and column."""
    assert problems("model_id: a\ncapture: a\x01b\n") == [
        "f.yaml:2:11: $: not valid YAML: the character U+0001 is not allowed"
    ]


def test_plain_values_stay_what_they_are() -> None:
    """G10: what all readers agree on is never refused."""
    config = parse_config("capture: [0, -1, +5, 0x1F, 1.5, 1.0e+3, true, False, ~, '010', 'no', !!str 5, 2026-01-01]\n")
    assert config.problems == ()
    assert config.root.plain() == {
        "capture": [0, -1, 5, 31, 1.5, 1000.0, True, False, None, "010", "no", "5", "2026-01-01"]
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "models:\n  - model_id: a\n   targets: []\n",
            "f.yaml:3:4: $: not valid YAML: expected <block end>, but found '<block mapping start>'. "
            "Is this line indented like those it belongs to? A text with ': ' needs quotes",
        ),
        (
            "models:\n\t- model_id: a\n",
            "f.yaml:2:1: $: not valid YAML: found character '\\t' that cannot start any token. Indent with spaces, not with tabs",
        ),
        (
            "models: [{model_id: a}]\ngovernance: []\n",
            "f.yaml:2:1: governance: 'governance' has no place here: it belongs to an entry of 'models'",
        ),
        (
            "models:\n  - model_id: a\n    auth: {}\n",
            "f.yaml:3:5: models[0].auth: 'auth' has no place here: it belongs to the top of the file, beside 'models'",
        ),
    ],
)
def test_common_slips_are_told_with_their_remedy(text: str, says: str) -> None:
    """Wrong indentation, tabs, and sections at the wrong level say what to do."""
    assert problems(text) == [says]
