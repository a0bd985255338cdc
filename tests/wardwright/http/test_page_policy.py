"""The pages of Policy: a plan is seen, edited without losing anything, tried, compared, proved, activated and rolled back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wardwright.blind import blind
from wardwright.config import parse_config
from wardwright.errors import GovernanceUnavailable
from wardwright.http.page_policy import SAMPLE, Newest
from wardwright.policy.compile import Plan, compile_plan

from .desk import PLAN, Desk
from .visitor import Seen, Visitor

LAXER = PLAN.replace("action: deny_call, tool: {namespace: shell}", "action: annotate, tool: {namespace: shell}")
CASES = """\
- case: shell is denied
  given: {transcript: [{role: user, content: go}], reply: {tool_calls: [{id: a, name: shell.run, arguments: {}}]}}
  expect: {ruling: deny_call}
- case: shell is blocked
  given: {transcript: [{role: user, content: go}], reply: {tool_calls: [{id: a, name: shell.run, arguments: {}}]}}
  expect: {ruling: block}
"""
SURFACES = """\
model_id: coding
state_machine: {initial_state: active, states: [active]}
governance:
  - {id: looking, kind: allowed_tools, phase: [planning, result_interpretation], mode: filter,
     allowed_tools: [{namespace: browser, name: '*'}]}
"""
EDITOR = "/policy/edit"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def operator(desk: Desk) -> Visitor:
    return Visitor(desk)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """An operator who changes nothing: one is enough for all."""
    desk = Desk(tmp_path_factory.mktemp("policy"))
    yield Visitor(desk)
    desk.close()


def sent(visitor: Visitor, action: str, **fields: str) -> Seen:
    """The editor's form with these fields, by the button that leads to `action`."""
    form = visitor.get(EDITOR).form(EDITOR)
    return visitor.post(action, **{**form.fields, **fields})


# the picture


def test_the_plan_in_force_is_drawn(reader: Visitor) -> None:
    """States, rules by phase and state, and every rule in a sentence."""
    seen = reader.get("/policy")

    assert seen.status == 200
    assert '<svg class="drawing" role="img"' in seen.html
    assert "From every state to reviewing: review." in seen.text
    assert "When namespace shell: deny_call." in seen.text
    assert "In force: epoch 0 (the plan of the file)" in seen.text


def test_what_the_plan_cannot_see_is_told(reader: Visitor) -> None:
    """The same lines as `wardwright check --blind` has, with what to do about each."""
    seen = reader.get("/policy")
    lines = blind(compile_plan(parse_config(PLAN)))

    assert lines
    assert all(" ".join(one.what.split()) in seen.text and " ".join(one.remedy.split()) in seen.text for one in lines)


def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    """Each model has its own picture."""
    source = "models:\n" + "".join(
        f"  - {{model_id: {name}, governance: [{{id: of-{name}, kind: tool_selector, action: block, tool: {{name: x}}}}]}}\n"
        for name in ("one", "two")
    )
    desk = Desk(tmp_path, source)
    visitor = Visitor(desk, "viewer")

    assert "of-one" in visitor.get("/policy").text
    assert "of-two" in visitor.get(visitor.get("/policy").link("two")).text
    assert "of-two" in visitor.get("/policy?model=two").text
    desk.close()


def test_a_typed_plan_can_be_drawn_without_activating_it(desk: Desk, operator: Visitor) -> None:
    """The picture says that it is not in force, and leads back to the text."""
    seen = sent(operator, "/policy/draw", source=LAXER)

    assert "This is the plan you typed" in seen.text
    assert "When namespace shell: annotate." in seen.text
    assert seen.form(EDITOR).fields["source"] == LAXER
    assert desk.store.plan_epoch() is None


# the editor


def test_operators_begin_with_the_text_in_force_and_others_with_none(desk: Desk) -> None:
    """The text may hold what only operators may see; everybody may try a text of their own."""
    assert Visitor(desk).get(EDITOR).form(EDITOR).fields["source"] == PLAN
    viewer = Visitor(desk, "viewer").get(EDITOR)
    assert viewer.form(EDITOR).fields["source"] == ""
    assert "is shown to operators only" in viewer.text
    assert "Activate" not in viewer.text


def test_errors_stand_at_their_lines_and_nothing_typed_is_lost(reader: Visitor) -> None:
    """What is wrong, where, and how to fix it; the text, the cases and the note come back as they were."""
    wrong = PLAN.replace("action: deny_call, tool: {namespace: shell}", "acton: deny_call, tool: {namespace: shell}")
    seen = sent(reader, EDITOR, source=wrong, cases=CASES, note="because")

    assert seen.status == 200
    assert '<span id="source-line-6" class="mark is-error">6</span>' in seen.html
    assert 'data-line="6" data-column="41"' in seen.html
    assert "unknown key 'acton' (did you mean 'action'?)" in seen.text
    assert "Write 'action' instead of 'acton', or take it out." in seen.text
    assert "governance[1]" in seen.text
    fields = seen.form(EDITOR).fields
    assert (fields["source"], fields["cases"], fields["note"]) == (wrong, CASES, "because")


def test_cases_are_run_and_failures_told(reader: Visitor) -> None:
    """How many hold, and why the others do not."""
    seen = sent(reader, EDITOR, cases=CASES)

    assert "1 of 2 cases hold" in seen.text
    assert "holds shell is denied" in seen.text
    assert "fails shell is blocked" in seen.text
    assert "it says the same as the plan in force" in seen.text


def test_a_broken_case_is_told_at_its_line(reader: Visitor) -> None:
    """Problems of the cases are not mixed with those of the plan."""
    seen = sent(reader, EDITOR, cases=CASES.replace("given", "gven", 1))

    assert '<span id="cases-line-1" class="mark is-error">1</span>' in seen.html
    assert '<span id="cases-line-2" class="mark is-error">2</span>' in seen.html
    assert "unknown key 'gven' (did you mean 'given'?)" in seen.text
    assert "in the plan" not in seen.text


def test_markup_in_a_plan_is_shown_as_text(reader: Visitor) -> None:
    """Whoever wrote it, a plan is text on the page."""
    seen = sent(reader, EDITOR, source=f"{PLAN}  - </textarea><script>alert(1)</script>\n")

    assert "<script>alert" not in seen.html
    assert seen.form(EDITOR).fields["source"].endswith("</textarea><script>alert(1)</script>\n")


@pytest.mark.parametrize("action", ["/policy/draw", "/policy/compare", "/policy/prove"])
def test_cases_and_note_come_along_to_the_other_pages_and_back(reader: Visitor, action: str) -> None:
    """Whoever looks at a text elsewhere finds everything again in the editor."""
    seen = sent(reader, action, source=LAXER, cases=CASES, note="because")
    form = next(one for one in seen.forms if one.fields.get("source"))
    back = reader.post(EDITOR, **form.fields).form(EDITOR).fields

    assert (back["source"], back["cases"], back["note"]) == (LAXER, CASES, "because")


@pytest.mark.parametrize("epoch", ["1/2", "x", "9", "%C2%B2"])
def test_an_epoch_that_never_was_is_not_found(reader: Visitor, epoch: str) -> None:
    """Whatever stands in the address."""
    seen = reader.get(f"/policy/edit?epoch={epoch}")

    assert (seen.status, "There is no plan of epoch" in seen.text) == (404, True)


# activate and roll back


def test_an_operator_activates_and_rolls_back(desk: Desk, operator: Visitor) -> None:
    """Both lead to the picture with a sentence about it; every epoch can be looked at."""
    for source in (LAXER, PLAN):
        done = operator.follow(sent(operator, "/policy/activate", source=source, note="try"))
    assert "Epoch 2 is in force: the plan you edited." in done.text
    history = operator.get("/policy/history")
    back = operator.follow(operator.send(history.form("/policy/rollback"), note="worse"))

    assert "Epoch 3 is in force: the plan of epoch 1." in back.text
    assert desk.source == LAXER.encode()
    assert operator.get("/policy/edit?epoch=2").form(EDITOR).fields["source"] == PLAN
    assert "This is the text of epoch 2; epoch 3 is in force." in operator.get("/policy/edit?epoch=2").text


def test_a_plan_with_problems_is_not_activated(desk: Desk, operator: Visitor) -> None:
    """It stays in the editor, with its problems."""
    seen = sent(operator, "/policy/activate", source=PLAN.replace("threshold: 3", "threshold: 0"), note="oh")

    assert seen.status == 422
    assert "The plan has problems; nothing was changed." in seen.text
    assert "Write 1 or more." in seen.text
    assert seen.form(EDITOR).fields["note"] == "oh"
    assert desk.store.plan_epoch() is None


def test_a_plan_that_does_not_open_here_stays_in_the_editor(desk: Desk, operator: Visitor) -> None:
    """What it needs is missing: that is told, nothing changes, and the text is still there."""
    form = operator.get(EDITOR).form(EDITOR)

    def closed(source: bytes) -> Plan:
        raise GovernanceUnavailable("The key OTHER_KEY is not set.")

    desk.compile = closed
    seen = operator.post("/policy/activate", **{**form.fields, "source": LAXER})

    assert seen.status == 503
    assert "The key OTHER_KEY is not set." in seen.text
    assert seen.form(EDITOR).fields["source"] == LAXER
    assert desk.store.plan_epoch() is None


def test_whoever_was_slower_is_told_and_keeps_the_text(operator: Visitor) -> None:
    """A plan takes the place of the one that was looked at, or of none."""
    operator.follow(sent(operator, "/policy/activate", source=LAXER))
    mine = f"# mine\n{PLAN}"
    seen = sent(operator, "/policy/activate", source=mine, expected_epoch="0")

    assert seen.status == 409
    assert "The plan is at epoch 1, not 0: look at it again. Nothing was changed." in seen.text
    assert seen.form(EDITOR).fields["source"] == mine
    assert seen.form(EDITOR).fields["expected_epoch"] == "1"


def test_a_viewer_cannot_activate_nor_roll_back(desk: Desk) -> None:
    """Neither is shown, and both are refused; what was typed is still there."""
    viewer = Visitor(desk, "viewer")
    seen = sent(viewer, "/policy/activate", source=LAXER)

    assert seen.status == 403
    assert "Activating needs the role operator; 'viewer' is viewer. Nothing was changed." in seen.text
    assert seen.form(EDITOR).fields["source"] == LAXER
    csrf = seen.form(EDITOR).fields["csrf"]
    assert viewer.post("/policy/rollback", csrf=csrf, epoch="0", expected_epoch="1").status == 403
    assert desk.store.plan_epoch() is None


# turning a selector


@pytest.mark.parametrize("into", ["state", "sequence"])
def test_a_selector_is_turned_in_the_text(desk: Desk, operator: Visitor, into: str) -> None:
    """The YAML of the pair is shown, the text has it, the plan in force has not."""
    seen = sent(
        operator, "/policy/turn", rule="coding\nno-shell", into=into, after_namespace="mail", until="clean_turn"
    )

    text = seen.form(EDITOR).fields["source"]
    assert "after: {tool: {namespace: mail, phase: result_interpretation}}" in text
    assert "until: {clean_turn: true}" in text
    assert "after: {tool: {namespace: mail, phase: result_interpretation}}" in seen.text
    assert "Now it acts only after what it waits for" in seen.text
    assert sent(operator, EDITOR, source=text).text.count("The plan is in order") == 1
    assert desk.store.plan_epoch() is None


def test_what_cannot_be_turned_says_why(reader: Visitor) -> None:
    """The text stays as it is."""
    seen = sent(reader, "/policy/turn", rule="coding\nloops")

    assert seen.status == 400
    assert "'loops' is of kind tool_loop_threshold; only a tool_selector can be turned." in seen.text
    assert seen.form(EDITOR).fields["source"] == PLAN


# compare


def test_a_comparison_counts_what_changes_and_shows_the_facts(desk: Desk, operator: Visitor) -> None:
    """How many of how many, each with both decisions and the facts that flipped it."""
    receipt = desk.exchange("shell.run", "browser.open")
    desk.exchange("browser.open", session="s2")
    seen = sent(operator, "/policy/compare", source=LAXER)

    assert "1 of 4 decisions changes" in seen.text
    assert "Looked at the newest 2 receipts" in seen.text
    assert "That is all there is." in seen.text
    assert "no-shell (tool_selector) on shell.run : deny_call → annotate: the rule says something else" in seen.text
    assert seen.link(f"Receipt {receipt}") == f"/receipts/{receipt}"
    assert seen.form("/policy/compare").fields["source"] == LAXER


def test_only_the_newest_are_looked_at_in_the_order_they_were_written(desk: Desk) -> None:
    """More than asked for are not read, and it is known that there are older ones; they can be looked at twice."""
    for number in range(7):
        desk.exchange("shell.run", session=f"s{number // 2}")
    newest = Newest(desk.store, 5)

    assert (len(newest), newest.more) == (5, True)
    told = [one["at_ms"] for one in newest]
    assert told == sorted(told)
    assert [one["at_ms"] for one in newest] == told


def test_what_cannot_be_replayed_is_named(desk: Desk, operator: Visitor) -> None:
    """A rule about text was left out, and the page says that live traffic may change more."""
    desk.exchange("browser.open")
    source = f"{PLAN}  - {{id: words, kind: request_guard, action: block, match: secret}}\n"
    seen = sent(operator, "/policy/compare", source=source)

    assert "1 rule cannot be replayed" in seen.text
    assert "words (request_guard): text is not kept. The plans differ here" in seen.text


def test_plans_are_compared_with_the_record_and_with_stored_ones(desk: Desk, operator: Visitor) -> None:
    """What was recorded, the plan in force, a text, or any epoch may stand on either side."""
    desk.exchange("shell.run")
    operator.follow(sent(operator, "/policy/activate", source=LAXER))
    operator.follow(sent(operator, "/policy/activate", source=PLAN))

    def answer(before: str, after: str) -> str:
        return operator.send(operator.get("/policy/compare").form("/policy/compare"), before=before, after=after).text

    assert "0 of 2 decisions change" in answer("record", "active")
    assert "1 of 2 decisions changes" in answer("record", "epoch:1")
    assert "1 of 2 decisions changes" in answer("epoch:1", "epoch:2")
    assert "There is no plan of epoch" in answer("active", "epoch:9")


def test_a_viewer_compares_texts_but_no_stored_plans(desk: Desk) -> None:
    """The text of a stored plan is for operators, so is what it would do."""
    viewer = Visitor(desk, "viewer")
    form = viewer.get("/policy/compare").form("/policy/compare")

    assert viewer.send(form, source=LAXER).status == 200
    refused = viewer.send(form, source=LAXER, before="epoch:1")
    assert refused.status == 422
    assert "This needs the role operator" in refused.text
    assert refused.form("/policy/compare").fields["source"] == LAXER


def test_a_text_with_problems_is_not_compared(reader: Visitor) -> None:
    """Its problems stand at their lines there too."""
    seen = sent(reader, "/policy/compare", source="governance: 3\n")

    assert seen.status == 422
    assert "The plan you typed has problems: see the lines below." in seen.text
    assert '<span id="source-line-1" class="mark is-error">1</span>' in seen.html


# surfaces


def test_surfaces_stand_side_by_side(reader: Visitor) -> None:
    """What the model could call with all tools and with those of its phase, and what that would have cost."""
    form = reader.get("/policy/surface").form("/policy/surface")
    assert form.fields["transcript"] == SAMPLE
    seen = reader.send(form, source=SURFACES)

    assert seen.status == 200
    assert "4: browser_open, fs_read, fs_write, shell_exec" in seen.text
    assert "1: browser_open without fs_read, fs_write, shell_exec" in seen.text
    assert "All tools allow 6 0 calls refused." in seen.text
    assert "shell_exec deny_call by looking" in seen.text


def test_a_conversation_that_cannot_be_read_comes_back(reader: Visitor) -> None:
    """With the place of the mistake."""
    seen = reader.send(reader.get("/policy/surface").form("/policy/surface"), transcript='{"a":\n ]')

    assert seen.status == 400
    assert "The conversation is not JSON: line 2, column 2." in seen.text
    assert seen.form("/policy/surface").fields["transcript"] == '{"a":\n ]'


def test_a_plan_that_hides_nothing_says_so(reader: Visitor) -> None:
    """Two equal sides are explained."""
    seen = reader.send(reader.get("/policy/surface").form("/policy/surface"))

    assert "both sides show the same tools" in seen.text


def test_a_conversation_without_a_surface_says_so(reader: Visitor) -> None:
    """Over MCP no model is shown tools."""
    call = '[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}]'
    seen = reader.send(reader.get("/policy/surface").form("/policy/surface"), transcript=call)

    assert seen.status == 200
    assert "there is no surface to compare" in seen.text


# prove


def test_a_counter_example_is_drawn(reader: Visitor) -> None:
    """Yes, with the shortest way as a timeline, in words, and as a case."""
    seen = reader.send(reader.get("/policy/prove").form("/policy/prove"), question="can browser run?")

    assert "yes It can. The shortest way:" in seen.text
    assert "Timeline: can browser run?" in seen.html
    assert "- case: " in seen.text
    assert seen.form("/policy/prove").fields["question"] == "can browser run?"


def test_what_cannot_happen_is_told(reader: Visitor) -> None:
    """No, because every way was tried."""
    seen = reader.send(reader.get("/policy/prove").form("/policy/prove"), question="can shell run?")

    assert "no It cannot happen: every way was tried." in seen.text


def test_the_promises_of_a_typed_plan_are_asked(reader: Visitor) -> None:
    """Without a question, what the plan's own sequences promise; a plan that promises nothing is told so."""
    pair = sent(reader, "/policy/turn", rule="coding\nno-shell", until="clean_turn", into="state")
    text = pair.form(EDITOR).fields["source"].replace("until: {clean_turn: true}", "until: {user_turn: true}")
    seen = sent(reader, "/policy/prove", source=text.replace("threshold: 3", "threshold: 1"))

    assert "can what 'no-shell' refuses run after what 'no-shell-begins' waits for" in seen.text
    assert "write a question" in sent(reader, "/policy/prove").text


def test_a_question_that_cannot_be_read_says_how_to_ask(reader: Visitor) -> None:
    """The form of a question is shown."""
    seen = reader.send(reader.get("/policy/prove").form("/policy/prove"), question="why not and what for?")

    assert seen.status == 400
    assert "The question: cannot be read: ask as 'can TOOL run after TOOL" in seen.text


# report


def test_the_report_tells_what_each_rule_did(tmp_path: Path) -> None:
    """Also what a rule in observe mode would have done, and that over how many receipts."""
    desk = Desk(
        tmp_path,
        PLAN.replace(
            "action: deny_call, tool: {namespace: shell}", "action: deny_call, mode: observe, tool: {namespace: shell}"
        ),
    )
    receipt = desk.exchange("shell.run")
    seen = Visitor(desk, "viewer").get("/policy/report")

    assert "no-shell would have fired 1 time, and refused something 1 time." in seen.text
    assert "Looked at the newest 1 receipt" in seen.text
    assert seen.link(receipt) == f"/receipts/{receipt}"
    desk.close()


@pytest.mark.parametrize("path", ["/policy/draw", "/policy/activate", "/policy/turn"])
def test_an_address_that_takes_forms_leads_to_the_editor(reader: Visitor, path: str) -> None:
    """Typed by hand, or reloaded after a sign-in."""
    assert reader.get(path).answer.headers["location"] == EDITOR


# time


def impatient(desk: Desk, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """The time of a page is over after so many looks at the clock."""
    looks = iter(range(calls))
    monkeypatch.setattr(desk, "now_ms", lambda: desk.clock if next(looks, None) is not None else desk.clock + 60_000)


def test_a_proof_that_takes_too_long_stops_and_says_so(
    desk: Desk, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question must not hold up all others."""
    form = operator.get("/policy/prove").form("/policy/prove")
    impatient(desk, monkeypatch, 3)

    assert re.search(r"stopped after \d gates: no time was left", operator.send(form, question="can shell run?").text)


def test_a_comparison_that_takes_too_long_tells_what_it_has_looked_at(
    desk: Desk, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is that of receipts which were judged, and the rest is named."""
    for number in range(4):
        desk.exchange(f"s{number}", "shell.run")
    form = operator.get("/policy/compare").form("/policy/compare")
    # Signing is looked at once, the end is set once, each plan looks through all four, then they are judged.
    impatient(desk, monkeypatch, 2 + 4 + 4 + 3)

    seen = operator.send(form, source=LAXER)

    assert "Looked at 3 of the newest 4 receipts" in seen.text
    assert "Then the time was up: the newest 1 of them were not looked at." in seen.text
    assert "That is all there is." not in seen.text


def test_cases_for_which_no_time_is_left_are_told(
    desk: Desk, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were not run are not among those that hold."""
    fields = {**operator.get(EDITOR).form(EDITOR).fields, "cases": CASES}
    impatient(desk, monkeypatch, 3)

    assert "The time was up for 1 case, not run." in operator.post(EDITOR, **fields).text


def test_a_conversation_that_is_too_long_for_a_page_is_told(reader: Visitor) -> None:
    """With the command that takes it, and with what was typed."""
    long = f'{{"messages": [{",".join(["{}"] * 501)}]}}'
    seen = reader.send(reader.get("/policy/surface").form("/policy/surface"), transcript=long)

    assert "The conversation has more than 500 messages; `wardwright simulate` takes longer ones." in seen.text
    assert seen.form("/policy/surface").fields["transcript"] == long
