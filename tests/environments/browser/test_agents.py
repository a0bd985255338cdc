"""The page Agent sessions: durable sessions of the tool runtime, call by call, through time."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Watch, accessible
from .world import Gateway


@pytest.fixture
def story(visit: Open, gateway: Gateway) -> Page:
    """An agent's session of six calls: two that worked, one rolled back, two that worked, one denied."""
    return visit(gateway, "/agents/story.session")


def _call(page: Page, number: int) -> None:
    page.locator("tbody tr").filter(
        has=page.locator("td:nth-child(2)", has_text=re.compile(f"^{number}$"))
    ).get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_role("heading", name=re.compile(f"Call {number}:"))).to_be_visible()


def test_the_sessions_of_the_folder_are_listed_and_open(visit: Open, gateway: Gateway) -> None:
    """A click leads from the list to the calls."""
    page = visit(gateway, "/agents")
    page.get_by_role("link", name="story.session").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("story.session")
    expect(page.get_by_role("link", name="write_file")).not_to_have_count(0)


def test_a_call_that_was_rolled_back_says_so(story: Page) -> None:
    """It is marked in the list, and its step says that nothing of it counts."""
    expect(story.locator("tbody tr.taken")).to_contain_text("The text is broken")
    _call(story, 3)
    expect(story.get_by_role("region", name="What it changed")).to_contain_text("rolled back")


def test_a_denied_call_names_its_policy(story: Page) -> None:
    """Who refused can be read."""
    row = story.locator("tbody tr").filter(has_text="denied")
    expect(row).to_contain_text("quota")


def test_a_call_shows_what_it_changed(story: Page) -> None:
    """The file's lines before and after, and the slice."""
    _call(story, 4)
    changed = story.get_by_role("region", name="What it changed")
    expect(changed).to_contain_text("-first words")
    expect(changed).to_contain_text("+second words")
    expect(changed).to_contain_text("Wrote")


def test_the_slider_travels_in_time(story: Page) -> None:
    """Moved by the keyboard, the session is shown as it was then, without loading the page again."""
    story.get_by_role("link", name="Travel in time").click()
    slider = story.get_by_role("slider")
    slider.focus()
    story.evaluate("window.stayed = true")
    slider.press("Home")
    expect(story.get_by_role("heading", name="attach", exact=True)).to_be_visible()
    slider.press("ArrowRight")
    expect(story.get_by_role("heading", name="Call 1: write_file")).to_be_visible()
    expect(story.get_by_role("region", name="The session then")).to_contain_text("work: 1 file")
    slider.press("End")
    expect(story.get_by_role("heading", name="Call 6: write_file")).to_be_visible()
    expect(story.get_by_role("region", name="The session then")).to_contain_text("work: 3 files")
    assert story.evaluate("window.stayed")


def test_steps_follow_each_other(story: Page) -> None:
    """Next and previous move by one, and the slider with them."""
    story.get_by_role("link", name="Travel in time").click()
    steps = story.get_by_role("navigation", name="Steps")
    steps.get_by_role("link", name="First").click()
    expect(story.get_by_role("heading", name="attach", exact=True)).to_be_visible()
    for number in (1, 2):
        steps.get_by_role("link", name="Next").click()
        expect(story.get_by_role("heading", name=f"Call {number}: write_file")).to_be_visible()
    expect(story.get_by_role("slider")).to_have_value("3")
    steps.get_by_role("link", name="Previous").click()
    expect(story.get_by_role("heading", name="Call 1: write_file")).to_be_visible()


def test_time_travel_needs_no_script(visit: Open, gateway: Gateway) -> None:
    """Links lead from step to step."""
    page = visit(gateway, "/agents/story.session/step", java_script_enabled=False)
    steps = page.get_by_role("navigation", name="Steps")
    steps.get_by_role("link", name="First").click()
    steps.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", name="Call 1: write_file")).to_be_visible()
    expect(page.get_by_role("button", name="Copy the command")).to_have_count(0)
    page.get_by_role("button", name="Go there").click()
    expect(page.get_by_role("heading", name="Call 1: write_file")).to_be_visible()


def test_a_file_is_shown_as_it_was_then(story: Page) -> None:
    """The draft of the second call, not of the fourth."""
    _call(story, 2)
    story.get_by_role("link", name="draft.md").click()
    expect(story.get_by_role("region", name="Content")).to_have_text("first words\n")


def test_the_command_that_forks_is_there_to_copy(story: Page) -> None:
    """It names the step that one looks at, and a button copies it."""
    story.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _call(story, 2)
    command = story.locator("#fork-command")
    expect(command).to_contain_text(re.compile(r"wink fork story\.session \S+ --at \d+"))
    story.get_by_role("button", name="Copy the command").click()
    expect(story.get_by_role("status").last).to_have_text("Copied.")
    assert story.evaluate("navigator.clipboard.readText()") == command.inner_text()


def test_calls_are_picked_by_outcome(story: Page) -> None:
    """Only those that failed, say."""
    story.get_by_label("Outcome").select_option("failed")
    story.get_by_role("button", name="Show").click()
    expect(story.locator("tbody tr")).to_have_count(1)


def test_a_long_session_is_paged(visit: Open, gateway: Gateway) -> None:
    """Of six hundred calls the newest are shown, and the older ones are a click away."""
    page = visit(gateway, "/agents/long.session")
    expect(page.locator("tbody tr")).to_have_count(200)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(200)


@pytest.mark.parametrize("name", ["nothing.session", "..%2Fgateway.yaml", "..%2Fward.db"])
def test_only_sessions_of_the_folder_are_read(visit: Open, gateway: Gateway, watch: Watch, name: str) -> None:
    """No name leads out of the folder."""
    watch.expect(404)
    page = visit(gateway, f"/agents/{name}")
    expect(page.get_by_text(re.compile("no session|nothing at this address"))).to_be_visible()


@pytest.mark.parametrize("path", ["", "/step?at=4", "/step?at=5"])
def test_a_session_and_its_steps_are_accessible(visit: Open, gateway: Gateway, path: str) -> None:
    """Axe finds nothing serious, in light and in dark, and they fit a narrow screen."""
    accessible(visit(gateway, f"/agents/story.session{path}"), whole=True)
