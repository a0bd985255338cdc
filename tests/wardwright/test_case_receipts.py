"""Claims about the receipts of every story in tests/cases: what they say, what they never say, and that questions agree with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, load_config, receipts
from wardwright.cases import Case, Outcome, load_cases, play
from wardwright.gateway import passes
from wardwright.policy.compile import Plan
from wardwright.receipts import FILTERS, Judged, Receipt
from wardwright.replay import diff, replay
from wardwright.report import report
from wardwright.wire import CallItem, ResultItem, TextItem

ROOT = Path(__file__).parent.parent / "cases"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if not path.name.endswith(".plan.yaml"))
KEY = b"case"


@cache
def plan_of(path: Path) -> Plan:
    return compile_plan(load_config(path.with_suffix(".plan.yaml")))


def exchanges(outcome: Outcome) -> Iterator[list[Judged]]:
    """A request with everything up to the next request, or up to somebody else's reply."""
    found: list[Judged] = []
    for judged in outcome.judged:
        if found and (judged.turn.gate == "request" or judged.turn.caller != found[-1].turn.caller):
            yield found
            found = []
        found.append(judged)
    if found:
        yield found


def receipts_of(path: Path, case: Case, *, capture: bool = False) -> list[Receipt]:
    """What live serving would have written."""
    plan = plan_of(path)
    made: list[Receipt] = []
    for number, judged in enumerate(exchanges(play(plan, case)), 1):
        last = judged[-1].ruling
        part = plan.model(judged[0].turn.model)
        assert part is not None
        status: Any = "released" if passes(last) else "held" if last.decision == "require_approval" else "blocked"
        built = receipts.build(
            f"r{number}", judged, receipts.Outcome(status), receipts.rules_of(part), KEY, capture=capture
        )
        made.append(receipts.load(receipts.record(built).body))
    return made


STORIES = [
    pytest.param(path, case, id=f"{path.relative_to(ROOT).with_suffix('')}: {case.name}")
    for path in FILES
    for case in load_cases(path)
    if "error" not in case.expect
]


def given(case: Case, *keys: str) -> bool:
    steps: list[Any] = [case.given, *case.given.get("steps", ())]
    return any(step.get(key) is not None for step in steps for key in keys)


# Counting begins with the record, so a story that begins in a state is another story; facts without a transcript leave no gate.
# What a declared hosted tool may do (`controls`) is not on a receipt either.
RECORDED = [
    param
    for param in STORIES
    if not given(param.values[1], "state", "facts", "claims") and "controls" not in str(param.values[1].given)
]


@pytest.mark.parametrize(("path", "case"), RECORDED)
def test_the_plan_that_ruled_a_story_rules_its_receipts_the_same(path: Path, case: Case) -> None:
    """G51, G32: a receipt keeps what re-evaluation needs; what it does not keep is named, never guessed."""
    stored = receipts_of(path, case)

    again = replay(plan_of(path), stored)

    assert [(one.before, one.after) for one in again.changes if one.verdict == "changed"] == []
    assert again.gates == sum(len(receipt["decision"]["gates"]) for receipt in stored)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_plan_differs_in_nothing_from_itself(path: Path) -> None:
    """G51: `diff` of a plan with itself changes no gate of any story."""
    stored = [one for case in load_cases(path) if "error" not in case.expect for one in receipts_of(path, case)]

    assert diff(plan_of(path), plan_of(path), stored).changes == ()


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_the_report_counts_what_the_rulings_say(path: Path, case: Case) -> None:
    """G51: per rule, fired and would have fired are the findings of the gates, no more and no less."""
    outcome = play(plan_of(path), case)
    fired = {
        (rule_id, number)
        for number, judged in enumerate(outcome.judged)
        for rule_id in {one.rule_id for one in judged.ruling.findings if one.enforced and not one.lifted}
    }

    found = report(receipts_of(path, case))

    assert {one.rule_id: one.fired for one in found.rules if one.fired} == {
        rule_id: sum(name == rule_id for name, _ in fired) for rule_id, _ in fired
    }


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_no_receipt_holds_what_was_said_or_sent(path: Path, case: Case) -> None:
    """G8: arguments, results and texts are digests; only a rule's own message and matcher are words."""
    outcome = play(plan_of(path), case)
    private = {
        text
        for judged in outcome.judged
        for item in judged.turn.items
        for text in (
            [item.text]
            if isinstance(item, TextItem)
            else [item.arguments]
            if isinstance(item, CallItem)
            else [item.content]
            if isinstance(item, ResultItem)
            else []
        )
        if len(text) > 12
    }

    written = "".join(receipts.canonical(one).decode() for one in receipts_of(path, case))

    assert [text for text in private if text in written or text.replace('"', '\\"') in written] == []


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_every_receipt_can_be_found_by_what_it_is_about(path: Path, case: Case) -> None:
    """G33: rule, tool, phase, risk, source, call id and status of every event are among the tags a query filters by."""
    for receipt in receipts_of(path, case):
        tags = set(receipts.tags(receipt))
        assert {name for name, _ in tags} <= set(FILTERS)
        for gate in receipt["decision"]["gates"]:
            for fact in gate.get("facts", ()):
                if fact["source"] != "declared_tool":
                    assert {("tool_namespace", fact["namespace"]), ("tool_name", fact["name"])} <= tags
                    assert {("tool_phase", fact["phase"]), ("tool_source", fact["source"])} <= tags
            assert {("rule", finding["rule_id"]) for finding in gate.get("findings", ())} <= tags


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_a_receipt_has_the_names_of_the_contract(path: Path, case: Case) -> None:
    """G32: tool context of request and decision, selectors, tool policy, plan hash and status stand where they are looked for."""
    for receipt in receipts_of(path, case):
        assert {"id", "at_ms", "caller", "plan_hash", "request", "decision", "final"} <= receipt.keys()
        selectors = receipt["decision"].get("tool_policy_selectors", [])
        assert all({"id", "matched", "action"} <= selector.keys() for selector in selectors)
        policy = receipt["final"].get("tool_policy")
        if policy is not None:
            assert policy["status"] == "passed" or "rule_id" in policy


def test_full_capture_is_asked_for() -> None:
    """G8: arguments are kept only where the model's operator switched capture on."""
    path = ROOT / "matchers.yaml"
    case = next(one for one in load_cases(path) if one.name == "G13 length")

    kept = receipts.canonical(receipts_of(path, case, capture=True)[0])
    usual = receipts.canonical(receipts_of(path, case)[0])

    assert (b"much too long" in kept, b"much too long" in usual) == (True, False)


def test_redaction_is_per_field_and_keeps_receipts_findable() -> None:
    """G8: a redacted field is a keyed digest, the same one wherever the same value stood."""
    path = ROOT / "scopes.yaml"
    receipt = receipts_of(path, load_cases(path)[0])[0]

    once, twice = (receipts.redact(receipt, ["caller.user"], KEY) for _ in range(2))

    assert once["caller"]["user"] == twice["caller"]["user"] != receipt["caller"]["user"] == "ann"
    assert b'"ann"' not in receipts.canonical(once)
