"""The pages of Policy: the picture, the editor with its errors and cases, activation and roll-back, and the questions to a plan."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Watch, accessible
from .world import PLAN, VIEWER, Gateway

TABS = (
    "/policy",
    "/policy/edit",
    "/policy/compare",
    "/policy/surface",
    "/policy/prove",
    "/policy/report",
    "/policy/history",
)
CASES = """\
- case: shell passes before a page was read
  given: {model: coding, transcript: [{role: user, content: go}], reply: {tool_calls: [{id: a, name: shell_exec, arguments: {}}]}}
  expect: {ruling: allow}
- case: deploying passes
  given: {model: coding, transcript: [{role: user, content: go}], reply: {tool_calls: [{id: a, name: deploy, arguments: {}}]}}
  expect: {ruling: allow}
"""
STRICTER = PLAN.replace("        mode: observe\n", "")
"""The rule that only observed refuses now."""


@pytest.mark.parametrize("path", TABS[1:])
def test_every_page_of_the_area_is_accessible(visit: Open, gateway: Gateway, path: str) -> None:
    """Axe finds nothing serious, in light and in dark, and it fits a narrow screen."""
    accessible(visit(gateway, path), whole=True)


def test_the_plan_is_a_picture(visit: Open, gateway: Gateway) -> None:
    """States and what moves between them are drawn, with a name for those who do not see it."""
    page = visit(gateway, "/policy?model=coding")
    drawing = page.get_by_role("region", name=re.compile("Drawing of machine")).locator("svg")
    expect(drawing).to_be_visible()
    expect(drawing).to_contain_text("reviewing_untrusted_result")
    expect(drawing).to_contain_text("enter-review")
    expect(page.get_by_role("region", name="Table of rules by phase and state")).to_contain_text("ask-before-deploy")


def test_the_picture_leads_to_each_rule(visit: Open, gateway: Gateway) -> None:
    """From the table to what the rule reads, writes and does."""
    page = visit(gateway, "/policy?model=coding")
    page.get_by_role("region", name="Table of rules by phase and state").get_by_role(
        "link", name="ask-before-deploy"
    ).first.click()
    rule = page.get_by_role("article").filter(has=page.get_by_role("heading", name="ask-before-deploy", exact=True))
    expect(rule).to_be_in_viewport()
    rule.get_by_text("Reads, writes, effects").click()
    expect(rule).to_contain_text("require_approval")


def test_an_error_is_shown_at_its_line_and_can_be_mended(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """A slip is named with line, place and how to mend it; nothing typed is lost; mended, the plan is in order."""
    watch.expect(422)
    page = visit(gateway, "/policy/edit")
    editor = page.get_by_label("Plan (YAML)")
    text = editor.input_value()
    broken = text.replace("action: require_approval", "acton: require_approval")
    line = broken[: broken.index("acton")].count("\n") + 1
    editor.fill(broken)
    page.get_by_role("button", name="Check and run cases").first.click()
    problem = page.get_by_role("listitem").filter(has_text=f"Line {line}").filter(has_text="acton").first
    expect(problem).to_contain_text("action")
    expect(editor).to_have_value(broken)
    accessible(page)
    problem.get_by_role("link").click()
    expect(editor).to_be_focused()
    expect(page.locator(f"#source-line-{line}")).to_have_class(re.compile("is-error"))
    editor.fill(broken.replace("acton", "action"))
    page.get_by_role("button", name="Check and run cases").first.click()
    expect(page.get_by_role("status").filter(has_text="in order")).to_be_visible()


def test_text_that_is_no_yaml_is_told_at_its_line(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """Also what cannot be read at all comes back with its line."""
    watch.expect(422)
    page = visit(gateway, "/policy/edit")
    page.get_by_label("Plan (YAML)").fill("model_id: coding\ngovernance: [}\n")
    page.get_by_role("button", name="Check and run cases").first.click()
    expect(page.get_by_role("link", name=re.compile("Line 2"))).to_be_visible()


def test_line_numbers_follow_what_is_typed(visit: Open, gateway: Gateway) -> None:
    """Every line has its number while one writes."""
    page = visit(gateway, "/policy/edit")
    page.get_by_label("Plan (YAML)").fill("a\nb\nc\nd")
    expect(page.locator(".gutter").first).to_have_text(re.compile(r"^1\s2\s3\s4\s*$"))


def test_cases_are_run_and_those_that_fail_say_why(visit: Open, gateway: Gateway) -> None:
    """One of two holds, and the other names the ruling it got."""
    page = visit(gateway, "/policy/edit")
    page.get_by_label("Cases (YAML)").fill(CASES)
    page.get_by_role("button", name="Check and run cases").last.click()
    played = page.get_by_role("region", name=re.compile("1 of 2 cases hold"))
    expect(played.get_by_role("listitem").filter(has_text="deploying passes").first).to_contain_text("require_approval")
    expect(page.get_by_label("Cases (YAML)")).to_have_value(CASES)


def test_the_editor_works_without_scripts(visit: Open, gateway: Gateway) -> None:
    """Check and cases are forms."""
    page = visit(gateway, "/policy/edit", java_script_enabled=False)
    page.get_by_label("Cases (YAML)").fill(CASES)
    page.get_by_role("button", name="Check and run cases").first.click()
    expect(page.get_by_text("1 of 2 cases hold")).to_be_visible()


def test_two_plans_are_compared_over_what_happened(visit: Open, gateway: Gateway) -> None:
    """How many decisions change is said, and each opens with the facts that flipped it."""
    page = visit(gateway, "/policy/edit")
    page.get_by_label("Plan (YAML)").fill(STRICTER)
    page.get_by_role("button", name="Compare with the plan in force").click()
    expect(page.get_by_role("heading", name=re.compile(r"[1-9]\d* of \d+ decisions? change"))).to_be_visible()
    change = page.locator("details.change").filter(has_text="deny_call").first
    change.locator("summary").click()
    expect(change).to_contain_text("watch-notes")
    expect(change).to_contain_text("write")
    accessible(page)
    change.get_by_role("link", name=re.compile("Receipt rcpt_")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Receipt"))


def test_equal_plans_change_nothing(visit: Open, gateway: Gateway) -> None:
    """The same text compared with itself says so."""
    page = visit(gateway, "/policy/compare")
    page.get_by_label("The text (YAML of a plan)").fill(PLAN)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile(r"^0 of \d+ decisions change"))).to_be_visible()


def test_surfaces_stand_side_by_side(visit: Open, gateway: Gateway) -> None:
    """All tools on one side, those of the phase on the other."""
    page = visit(gateway, "/policy/surface")
    page.get_by_label("Model").select_option("coding")
    page.get_by_role("button", name="Compare surfaces").click()
    expect(page.get_by_role("region", name="All tools", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Phase-scoped tools", exact=True)).to_be_visible()
    accessible(page)


def test_a_counter_example_is_drawn_as_a_timeline(visit: Open, gateway: Gateway) -> None:
    """What a plan does not prevent is shown step by step."""
    page = visit(gateway, "/policy/prove")
    page.get_by_label("Model").select_option("coding")
    page.get_by_label("Question", exact=True).fill("can shell run after notes?")
    page.get_by_role("button", name="Prove").click()
    timeline = page.get_by_role("region", name="Timeline of answer 1").locator("svg")
    expect(timeline).to_be_visible()
    expect(timeline).to_contain_text("shell")
    page.get_by_text("The same in words").click()
    accessible(page)


def test_what_cannot_happen_is_said_to_hold(visit: Open, gateway: Gateway) -> None:
    """Of a plan without rules on texts, which nobody can try to the end, the promise is proved."""
    page = visit(gateway, "/policy/prove")
    page.get_by_label("Model").select_option("coding")
    page.get_by_label("Question", exact=True).fill("can shell run after browser without user?")
    page.get_by_text("Another plan than the one in force").click()
    start, end = PLAN.index("      - id: no-private-keys"), PLAN.index("      - id: ask-before-deploy")
    page.get_by_label(re.compile("YAML of the plan")).fill(PLAN[:start] + PLAN[end:])
    page.get_by_role("button", name="Prove").click()
    expect(page.get_by_text("every way was tried")).to_be_visible()


def test_a_question_that_cannot_be_read_is_kept_and_told(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """A slip in a question says how one is asked."""
    watch.expect(400, 422)
    page = visit(gateway, "/policy/prove")
    page.get_by_label("Question", exact=True).fill("is it safe?")
    page.get_by_role("button", name="Prove").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Question", exact=True)).to_have_value("is it safe?")


@pytest.mark.parametrize(("into", "kind"), [("state", "state_scope"), ("sequence", "tool_sequence")])
def test_a_selector_becomes_a_pair(visit: Open, gateway: Gateway, into: str, kind: str) -> None:
    """One action shows the YAML, puts it into the text, and what comes out is in order."""
    page = visit(gateway, "/policy/edit")
    page.get_by_label("Selector", exact=True).select_option(label="coding: watch-notes")
    page.get_by_label("Into").select_option(into)
    page.get_by_label("After a tool of namespace").fill("browser")
    page.get_by_role("button", name="Turn it and show the YAML").click()
    expect(page.get_by_role("region", name=re.compile("Turned"))).to_contain_text(kind)
    accessible(page)
    page.get_by_role("button", name="Check and run cases").first.click()
    expect(page.get_by_role("status").filter(has_text="in order")).to_be_visible()


def test_the_report_counts_what_each_rule_did(visit: Open, gateway: Gateway) -> None:
    """Also what a rule that only observes would have done."""
    page = visit(gateway, "/policy/report")
    expect(page.get_by_role("row").filter(has_text="ask-before-deploy")).to_be_visible()
    expect(page.get_by_role("region", name="Rules that only observe")).to_contain_text(
        re.compile(r"watch-notes would have fired [1-9]")
    )


def test_a_viewer_tries_but_does_not_activate(visit: Open, gateway: Gateway) -> None:
    """The text in force and the button are for operators."""
    page = visit(gateway, "/policy/edit", token=VIEWER)
    expect(page.get_by_label("Plan (YAML)")).to_have_value("")
    expect(page.get_by_role("button", name="Activate this plan")).to_have_count(0)


def test_an_edited_plan_is_activated_and_rolled_back(own_gateway: Gateway, visit: Open) -> None:
    """It rules from the next request on, and so does the one before after the roll-back."""
    note = 'call notes_write {"text": "new"}'
    assert "tool_calls" in own_gateway.chat("before", note)
    page = visit(own_gateway, "/policy/edit")
    page.get_by_label("Plan (YAML)").fill(STRICTER)
    page.get_by_label("Why (kept in the receipt)").fill("observed long enough")
    page.get_by_role("button", name="Activate this plan").click()
    expect(page.get_by_role("status").first).to_contain_text("is in force")
    assert "tool_calls" not in own_gateway.chat("during", note)
    page.get_by_role("link", name="History").click()
    page.get_by_text("Roll back to epoch 1").first.click()
    page.get_by_role("button", name="Roll back to epoch 1").click()
    expect(page.get_by_role("status").first).to_contain_text("is in force")
    assert "tool_calls" in own_gateway.chat("after", note)


def test_of_two_operators_one_is_asked_to_look_again(own_gateway: Gateway, visit: Open, watch: Watch) -> None:
    """Who activates over somebody else's change is told, and keeps what was typed."""
    watch.expect(409)
    page = visit(own_gateway, "/policy/edit")
    body = {"source": STRICTER, "expected_epoch": 1}
    assert own_gateway.ask("POST", "/v1/wardwright/plans/activate", body)["epoch"] == 2
    mine = PLAN.replace("threshold: 3", "threshold: 4")
    page.get_by_label("Plan (YAML)").fill(mine)
    page.get_by_role("button", name="Activate this plan").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    expect(page.get_by_label("Plan (YAML)")).to_have_value(mine)


def test_what_was_typed_comes_back_after_leaving_the_page(page: Page) -> None:
    """A draft is offered again in the same tab."""
    page.goto("/policy/edit")
    page.get_by_label("Plan (YAML)").fill("model_id: drafted\n")
    page.goto("/live")
    page.goto("/policy/edit")
    page.get_by_role("button", name="Bring back what you typed before").click()
    expect(page.get_by_label("Plan (YAML)")).to_have_value("model_id: drafted\n")
