"""The page Receipts: found by every filter, explained in words, with its place in the chain, replayed step by step."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Watch, accessible
from .world import HOSTILE, Gateway


@pytest.fixture
def receipts(visit: Open, gateway: Gateway) -> Page:
    return visit(gateway, "/receipts")


def _rows(page: Page) -> list[str]:
    return page.locator("tbody tr").all_inner_texts()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool_namespace", "release"),
        ("tool_name", "deploy"),
        ("tool_phase", "planning"),
        ("tool_risk_class", "external_side_effect"),
        ("tool_source", "tool_result"),
        ("tool_policy_status", "held"),
        ("status", "blocked"),
        ("rule", "no-identical-calls"),
        ("model", "coding"),
        ("session_id", "denied"),
    ],
)
def test_every_filter_finds_its_own(receipts: Page, gateway: Gateway, name: str, value: str) -> None:
    """Exactly those receipts are shown that the API finds by the filter, the newest first."""
    field = receipts.get_by_role("search", name="Filters").get_by_label(name, exact=True)
    if field.evaluate("node => node.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
    receipts.get_by_role("button", name="Search").click()
    expect(receipts.locator("caption")).to_contain_text(f"{name} {value}")
    found = [one["receipt"]["id"] for one in gateway.ask("GET", f"/v1/receipts?{name}={value}")["receipts"]]
    links = receipts.locator("tbody tr td:first-child a").evaluate_all("links => links.map(one => one.pathname)")
    assert links == [f"/receipts/{one}" for one in found] != []


def test_filters_are_joined(receipts: Page) -> None:
    """Two filters show what fits both, and what was typed stays in the form."""
    filters = receipts.get_by_role("search", name="Filters")
    filters.get_by_label("tool_name", exact=True).fill("write")
    filters.get_by_label("rule", exact=True).fill("no-identical-calls")
    receipts.get_by_role("button", name="Search").click()
    expect(filters.get_by_label("tool_name", exact=True)).to_have_value("write")
    assert {"looping" in row for row in _rows(receipts)} == {True}


def test_a_search_that_finds_nothing_says_what_to_do(visit: Open, gateway: Gateway) -> None:
    """It leads back to all of them."""
    page = visit(gateway, "/receipts?tool_name=never")
    expect(page.get_by_text("No receipt fits")).to_be_visible()
    page.get_by_role("link", name="all of them").click()
    assert _rows(page)


def test_a_time_that_is_none_is_told_beside_the_form(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """What was typed stays there to be mended."""
    watch.expect(400)
    page = visit(gateway, "/receipts?since=yesterday")
    expect(page.get_by_role("alert")).to_contain_text("since")
    expect(page.get_by_role("search", name="Filters").get_by_label("since", exact=True)).to_have_value("yesterday")
    accessible(page)


def test_the_search_is_reached_and_used_by_keyboard(receipts: Page) -> None:
    """A slash goes to the search, Enter finds."""
    receipts.keyboard.press("/")
    expect(receipts.get_by_label("Find by receipt, session, call, rule or tool")).to_be_focused()
    receipts.keyboard.type("ask-before-deploy")
    receipts.keyboard.press("Enter")
    expect(receipts.locator("caption")).to_contain_text("rule ask-before-deploy")


@pytest.mark.parametrize("what", ["receipt", "session", "tool"])
def test_one_word_finds_a_thing_of_any_kind(receipts: Page, gateway: Gateway, what: str) -> None:
    """Whoever has a name need not know what it is a name of."""
    word = {"receipt": gateway.receipts["blocked"], "session": "looping", "tool": "release.deploy"}[what]
    receipts.get_by_label("Find by receipt, session, call, rule or tool").fill(word)
    receipts.get_by_role("button", name="Find").click()
    expect(receipts).to_have_url(
        re.compile({"receipt": word, "session": "session_id=looping", "tool": "tool_name=deploy"}[what])
    )


def test_older_receipts_are_a_click_away(own_gateway: Gateway, visit: Open) -> None:
    """Pages follow each other without a gap."""
    for number in range(60):
        own_gateway.chat(f"many-{number:02}", "Hello")
    page = visit(own_gateway, "/receipts")
    first = _rows(page)
    page.get_by_role("link", name="Older").click()
    expect(page.locator("caption")).to_contain_text("Older")
    assert len(first) == 50
    assert "many-10" in first[-1]
    assert "many-09" in _rows(page)[0]


@pytest.mark.parametrize(
    ("session", "because", "fact"),
    [
        ("blocked", "no-private-keys", ""),
        ("denied", "no-shell-while-reviewing", "shell"),
        ("looping", "no-identical-calls", "notes"),
        ("waiting-1", "ask-before-deploy", "deploy"),
    ],
)
def test_a_refusal_is_explained_in_words(visit: Open, gateway: Gateway, session: str, because: str, fact: str) -> None:
    """The receipt says because of which rule, and by which facts."""
    page = visit(gateway, f"/receipts?session_id={session}&rule={because}")
    page.locator("tbody tr").first.get_by_role("link").first.click()
    words = page.get_by_role("region", name="In words")
    expect(words).to_contain_text(because)
    expect(words).to_contain_text(fact)
    accessible(page)


def test_a_receipt_says_where_it_stands_in_the_chain(visit: Open, gateway: Gateway) -> None:
    """It verifies, and its neighbours are a click away."""
    page = visit(gateway, f"/receipts/{gateway.receipts['blocked']}")
    chain = page.get_by_role("region", name="Place in the chain")
    expect(chain).to_contain_text("verifies")
    here = int(re.findall(r"Number (\d+) of", chain.inner_text())[0])
    chain.get_by_role("link", name=f"Number {here + 1}").click()
    expect(chain).to_contain_text(f"Number {here + 1} of")


def test_all_chains_are_verified_from_the_page(receipts: Page) -> None:
    """One button walks them and says that they hold."""
    receipts.get_by_role("link", name=re.compile("Verify")).click()
    receipts.get_by_role("button", name="Verify").click()
    expect(receipts.get_by_role("region", name="All chains")).to_contain_text("verify")
    accessible(receipts)


def test_what_a_server_tool_did_is_on_the_receipt(visit: Open, gateway: Gateway) -> None:
    """The run of a snippet is told with its tool."""
    page = visit(gateway, f"/receipts/{gateway.receipts['server-tool']}")
    expect(page.get_by_role("region", name="Server tools")).to_contain_text("shout")


def test_hostile_contents_of_a_receipt_are_only_text(visit: Open, gateway: Gateway) -> None:
    """Names and stored text are shown letter by letter."""
    page = visit(gateway, f"/receipts/{gateway.receipts[HOSTILE]}")
    page.get_by_text("The receipt as it is stored").click()
    expect(page.get_by_role("region", name="JSON")).to_contain_text("<script>")
    expect(page).not_to_have_title("owned")


def test_a_session_is_replayed_step_by_step(visit: Open, gateway: Gateway) -> None:
    """Forward and back, with what was counted after each step."""
    page = visit(gateway, "/live/session?id=looping")
    page.get_by_role("link", name="Replay step by step").click()
    steps = page.get_by_role("navigation", name="Steps")
    steps.get_by_role("link", name="First").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay, step 1")
    accessible(page)
    for number in (2, 3):
        steps.get_by_role("link", name="Next").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Replay, step {number}")
    expect(page.get_by_role("region", name="reply gate")).to_contain_text("no-identical-calls")
    steps.get_by_role("link", name="Previous").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay, step 2")


def test_a_replay_shows_how_the_state_moved(visit: Open, gateway: Gateway) -> None:
    """After the untrusted result the session is under review."""
    page = visit(gateway, "/replay?id=denied")
    expect(page.get_by_text("reviewing_untrusted_result").first).to_be_visible()


def test_receipts_are_read_without_scripts(visit: Open, gateway: Gateway) -> None:
    """Search, open and replay are links and forms."""
    page = visit(gateway, "/receipts", java_script_enabled=False)
    page.get_by_role("search", name="Filters").get_by_label("session_id", exact=True).fill("denied")
    page.get_by_role("button", name="Search").click()
    page.locator("tbody tr").first.get_by_role("link").first.click()
    page.get_by_role("link", name="Replay this step").click()
    expect(page.get_by_role("navigation", name="Steps")).to_be_visible()


@pytest.mark.parametrize("path", ["/receipts/{receipt}", "/replay?id=denied"])
def test_a_receipt_and_a_replay_are_accessible(visit: Open, gateway: Gateway, path: str) -> None:
    """Axe finds nothing serious, in light and in dark, and they fit a narrow screen."""
    accessible(visit(gateway, path.format(receipt=gateway.receipts["denied"])), whole=True)
