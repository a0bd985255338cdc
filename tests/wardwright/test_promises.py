"""Promises that one story cannot show: the same facts in every wire, plans that change, writers that meet, refusals as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, errors, load_config, receipts
from wardwright.cases import START_MS, Case, load_cases, play
from wardwright.errors import VersionConflict, WardwrightError
from wardwright.facts import stored
from wardwright.gateway import govern, passes, scopes_of
from wardwright.history import Registers, apply, ledger_keys, scope_key
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.receipts import Judged, Outcome
from wardwright.simulate import read_transcript, simulate
from wardwright.store import ReceiptQuery, SealedRow, SqliteStore, export, verify
from wardwright.wire import Caller, CallItem, Turn

ROOT = Path(__file__).parent.parent / "cases"
FILES = sorted(path for path in ROOT.rglob("*.yaml") if not path.name.endswith(".plan.yaml"))
STORIES = [
    pytest.param(path, case, id=f"{path.relative_to(ROOT).with_suffix('')}: {case.name}")
    for path in FILES
    for case in load_cases(path)
    if "error" not in case.expect
]
KEY = b"k"
CALLER = Caller(tenant="acme", session_id="s")
LOOP = (
    "governance:\n  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {namespace: mail}}\n"
)


@cache
def plan_of(path: Path) -> Plan:
    return compile_plan(load_config(path.with_suffix(".plan.yaml")))


def plan(text: str) -> Plan:
    return compile_plan(load_config(text))


def reply(*calls: str, at: int = 0) -> Turn:
    return Turn(
        "reply", "chat_completions", "m", [CallItem(f"{name}-{at}", name, "{}") for name in calls], caller=CALLER
    )


# wires


OWN = {"tool_call_id": "", "ordinal": 0, "result_status": "", "execution_location": ""}
"""What a wire may say in its own way: ids (MCP has none), an error flag (not every wire has one), and who runs the tool."""


@pytest.mark.parametrize("rule_id", ["no-shell", "no-forced-shell", "search-seen"])
def test_every_wire_gives_the_same_facts(rule_id: str) -> None:
    """G24: fact by fact, digests of arguments and results included, but for what a wire does not carry."""
    cases = [case for case in load_cases(ROOT / "wires.yaml") if rule_id in case.expect.get("rules", ())]
    seen: list[list[dict[str, Any]]] = []
    for case in cases:
        outcome = play(plan_of(ROOT / "wires.yaml"), case)
        facts = [stored(fact) for judged in outcome.judged for fact in judged.ruling.facts]
        events = [fact for fact in facts if fact["source"] != "declared_tool" and not fact["repeat"]]
        # Providers report what they found in forms of their own.
        hosted = {"result_digest": "", "arguments_digest": ""} if rule_id == "search-seen" else {}
        seen.append([{**fact, **OWN, **hosted} for fact in events])

    assert len(cases) >= 2
    assert all(facts == seen[0] for facts in seen)


# simulation


def recorded(case: Case) -> dict[str, Any] | None:
    """A story as a recorded conversation; None when it is more than that."""
    given = case.given
    if given.keys() - {"transcript", "reply", "tools"} or "reply" not in given:
        return None
    spoken = [message for message in given.get("transcript", ()) if message["role"] in ("user", "system")]
    if [*spoken] != list(given.get("transcript", ())) or given["reply"].keys() - {"content", "tool_calls"}:
        return None
    tools = given.get("tools", ())
    if any(not isinstance(tool, str) and "hosted" in tool for tool in tools):
        return None
    return {"messages": [*spoken, {"role": "assistant", **given["reply"]}], **({"tools": [*tools]} if tools else {})}


@pytest.mark.parametrize(
    ("path", "case"),
    [param for param in STORIES if recorded(param.values[1]) is not None],
)
def test_a_story_is_simulated_as_it_is_played(path: Path, case: Case) -> None:
    """G51, G1: the recorded conversation comes to the ruling of the story, and nothing is left behind."""
    plan = plan_of(path)
    transcript = read_transcript(recorded(case) or {})
    start = Registers(key=b"case")

    found = simulate(plan, transcript, registers=start, caller=Caller(session_id="case"), now=START_MS)

    ruling = play(plan, case).ruling
    assert ruling is not None
    last = found.steps[-1].ruling
    assert (last.decision, last.rule_id, last.states) == (ruling.decision, ruling.rule_id, ruling.states)
    assert [call.status for call in last.calls] == [call.status for call in ruling.calls]
    assert start.scopes == {}


# a plan that changes


def test_counters_survive_the_edits_that_do_not_change_what_is_counted() -> None:
    """G30: another id, message, action and a rule more; the third call is still the third."""
    edited = plan(
        "governance:\n"
        "  - {id: other, kind: tool_selector, action: annotate, tool: {namespace: shell}}\n"
        "  - {id: renamed, kind: tool_loop_threshold, action: block, message: Stop., threshold: 3, tool: {namespace: mail}}\n"
    )
    registers = Registers(key=KEY)
    for at in range(2):
        ruling, delta = govern(plan(LOOP), registers, reply("mail.send", at=at), at)
        assert passes(ruling)
        registers = apply(registers, delta)

    ruling, delta = govern(edited, registers, reply("mail.send", at=2), 1_000)

    assert (ruling.decision, ruling.rule_id, ruling.message) == ("block", "renamed", "Stop.")
    session = apply(registers, delta).scopes[scope_key("session_id", CALLER)]
    assert session.head.plan_since_ms == 1_000


def test_activating_a_plan_wipes_nothing_and_reaches_every_process(tmp_path: Path) -> None:
    """G30: the epoch lies in the store; counters of a scope are there before and after it moves."""
    one, two = SqliteStore(tmp_path / "s.db", upkeep=False), SqliteStore(tmp_path / "s.db", upkeep=False)
    try:
        serve(one, plan(LOOP), reply("mail.send", at=1))
        before = one.load([scope_key("session_id", CALLER)], lambda _: ())

        epoch = one.activate("hash", b"governance: []", 5, 0)

        assert two.plan_epoch() == epoch
        assert two.load([scope_key("session_id", CALLER)], lambda _: ()) == before
        with pytest.raises(VersionConflict):
            two.activate("other", b"", 6, 0)
    finally:
        one.close()
        two.close()


def test_counters_survive_a_restart(tmp_path: Path) -> None:
    """G30: what was counted before the process ended counts after it begins anew."""
    rulings: list[str] = []
    for at in range(3):
        store = SqliteStore(tmp_path / "s.db", upkeep=False)
        rulings.append(serve(store, plan(LOOP), reply("mail.send", at=at))[0].decision)
        store.close()

    assert rulings == ["allow", "allow", "deny_call"]


def test_a_known_call_leads_back_to_its_session(tmp_path: Path) -> None:
    """G20: whatever a header says, a call that passed belongs to the session whose ledger holds it, within its tenant."""
    store = SqliteStore(tmp_path / "s.db", upkeep=False)
    try:
        serve(store, plan(LOOP), reply("mail.send", at=1))

        assert store.sessions_of("acme", ["mail.send-1", "never"]) == {"mail.send-1": scope_key("session_id", CALLER)}
        assert store.sessions_of("other", ["mail.send-1"]) == {}
    finally:
        store.close()


# writers that meet


def serve(
    store: SqliteStore, governing: Plan, turn: Turn, meanwhile: Callable[[], object] = lambda: None
) -> tuple[Ruling, int]:
    """What every gate does: load, govern, commit before anything is released; on a conflict all of it again."""
    tries = 0
    while True:
        tries += 1
        turn = replace(turn)
        scopes = store.load(scopes_of(governing, turn), partial(ledger_keys, turn, KEY))
        ruling, delta = govern(governing, Registers(scopes, KEY), turn, tries)
        if tries == 1:
            meanwhile()
        made = receipts.build(
            f"{ruling.facts[0].tool_call_id}-{tries}",
            [Judged(turn, ruling, tries)],
            Outcome("released" if passes(ruling) else "blocked"),
            receipts.rules_of(governing.models["default"]),
            KEY,
        )
        try:
            store.commit(delta, receipts.record(made))
        except VersionConflict:
            continue
        return ruling, tries


def test_a_conflict_is_governed_again_on_what_the_other_writer_committed(tmp_path: Path) -> None:
    """G31: the call that would have been the second is the third once another process has committed its own."""
    one, two = SqliteStore(tmp_path / "s.db", upkeep=False), SqliteStore(tmp_path / "s.db", upkeep=False)
    governing = plan(LOOP)
    try:
        serve(one, governing, reply("mail.send", at=1))

        ruling, tries = serve(
            one, governing, reply("mail.send", at=2), lambda: serve(two, governing, reply("mail.send", at=3))
        )

        assert (ruling.decision, ruling.rule_id, tries) == ("deny_call", "loop", 2)
        assert verify(one).good
    finally:
        one.close()
        two.close()


def test_a_gate_that_lost_leaves_no_receipt(tmp_path: Path) -> None:
    """G31, G32: what was governed again is on record once, and the chain verifies."""
    store = SqliteStore(tmp_path / "s.db", upkeep=False)
    governing = plan(LOOP)
    try:
        serve(store, governing, reply("mail.send", at=1), lambda: serve(store, governing, reply("mail.send", at=2)))

        assert [one.row.id for one in store.receipts(ReceiptQuery()).receipts] == [
            "mail.send-1-2",
            "mail.send-2-1",
        ]
        assert len(list(export(store))) == verify(store).receipts == 2
    finally:
        store.close()


def test_receipts_are_paged_by_a_cursor_and_found_by_rule_and_tool(tmp_path: Path) -> None:
    """G33: filters are joined, pages follow one another, an export has one line per receipt."""
    store = SqliteStore(tmp_path / "s.db", upkeep=False)
    governing = plan(LOOP)
    try:
        for at in range(4):
            serve(store, governing, reply("mail.send" if at % 2 else "shell_exec", at=at))
        query = ReceiptQuery({"tool_namespace": ("mail",), "tool_policy_status": ("passed",)}, limit=1)
        first = store.receipts(query)
        second = store.receipts(replace(query, before=first.next_before))

        assert [page.receipts[0].row.id for page in (first, second)] == ["mail.send-3-1", "mail.send-1-1"]
        assert store.receipts(ReceiptQuery({"rule": ("nobody",)})).receipts == ()
    finally:
        store.close()


def test_the_working_set_is_used_up_and_never_exported(tmp_path: Path) -> None:
    """G8: a sealed row is there once, until it expires, and no export or receipt holds it."""
    store = SqliteStore(tmp_path / "s.db", upkeep=False)
    governing = plan(LOOP)
    scope = scope_key("session_id", CALLER)
    held = SealedRow(scope, "held:h", 1_000, b"sealed reply")
    try:
        turn = reply("mail.send", at=1)
        _, delta = govern(governing, Registers(key=KEY), turn, 1)
        store.commit(delta, seal=[held])
        assert store.sealed(scope, "held:h", 2) == held
        scopes = store.load([scope], lambda _: ())
        _, delta = govern(governing, Registers(scopes, KEY), reply("mail.send", at=2), 3)
        store.commit(delta, unseal=[(scope, "held:h")])

        with pytest.raises(errors.SealedMissing):
            store.sealed(scope, "held:h", 4)
        assert not any(b"sealed reply" in line for line in export(store))
    finally:
        store.close()


# refusals


@pytest.mark.parametrize(("path", "case"), STORIES)
def test_a_refusal_holds_everything_its_answer_needs(path: Path, case: Case) -> None:
    """G34: whatever was refused names a rule or the rules in conflict, the tools, and a sentence that ends."""
    for judged in play(plan_of(path), case).judged:
        ruling = judged.ruling
        if ruling.decision == "allow":
            assert ruling.message == ""
            continue
        rules = {finding.rule_id for finding in ruling.findings}
        assert ruling.rule_id in rules
        assert ruling.message.strip().endswith((".", ")"))
        refused = [call for call in ruling.calls if call.status != "allow"]
        assert all(call.message and call.rules for call in refused)
        assert len(ruling.blocked_tools) == len(set(ruling.blocked_tools))


def test_refusals_and_outages_are_told_apart() -> None:
    """G34, G19: an engine or a store that cannot answer is a 503 of its own code; nothing here is a 429."""
    found = {
        one.code: one.status
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, WardwrightError)
    }

    assert found["governance_unavailable"] == 503
    assert found["invalid_request"] == found["tool_name_collision"] == 400
    assert 429 not in found.values()
