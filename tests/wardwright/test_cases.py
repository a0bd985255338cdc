"""Every policy case under tests/cases holds; a `X.yaml` is played against `X.plan.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from wardwright import compile_plan, load_config
from wardwright.cases import Case, load_cases, play
from wardwright.errors import ConfigError

ROOT = Path(__file__).parent.parent / "cases"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if not path.name.endswith(".plan.yaml"))
CASES = [
    pytest.param(path, case, id=f"{path.relative_to(ROOT).with_suffix('')}: {case.name}")
    for path in FILES
    for case in load_cases(path)
]


@pytest.mark.parametrize(("path", "case"), CASES)
def test_case_holds(path: Path, case: Case) -> None:
    """The story ends in the ruling it says, for the reasons it says."""
    plan = compile_plan(load_config(path.with_suffix(".plan.yaml")))
    assert play(plan, case).failures == []


def test_every_plan_has_cases() -> None:
    """No plan in the folder goes unplayed."""
    plans = {path.name.removesuffix(".plan.yaml") for path in ROOT.rglob("*.plan.yaml")}
    assert plans == {path.stem for path in FILES}


def test_unknown_keys_are_refused() -> None:
    """G62: a misspelt key in a case file is a problem with its place, not a silent pass."""
    with pytest.raises(ConfigError) as caught:
        load_cases("- case: x\n  given: {transcrpt: []}\n  expect: {rulling: block}\n")
    assert [str(problem) for problem in caught.value.problems] == [
        "<text>:2:11: [0].given.transcrpt: unknown key 'transcrpt' (did you mean 'transcript'?)",
        "<text>:3:12: [0].expect.rulling: unknown key 'rulling' (did you mean 'ruling'?)",
        "<text>:3:3: [0].expect: missing key 'ruling'",
    ]


def test_a_case_that_does_not_hold_says_how() -> None:
    """A failing case names what was expected and what came."""
    plan = compile_plan(load_config("governance:\n  - {id: r, kind: request_guard, match: secret}\n"))
    (case,) = load_cases(
        "- case: x\n  given: {transcript: [{role: user, content: a secret}]}\n  expect: {ruling: allow}\n"
    )
    assert play(plan, case).failures == [
        "ruling: expected 'allow', got 'block' (block; This request was blocked by rule 'r'. "
        "Change what it asks for, or ask the operator for an exception.)"
    ]
