"""What holds for all pages: links lead somewhere, everybody can use them, in light and dark, by keyboard, with hostile contents."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Watch, accessible
from .world import HOSTILE, Gateway

NAV = {
    "Live": "/live",
    "Receipts": "/receipts",
    "Policy": "/policy",
    "Models": "/models",
    "Agent sessions": "/agents",
}


def test_the_navigation_leads_to_every_area(page: Page, gateway: Gateway) -> None:
    """One click from anywhere, and the area one is in is marked."""
    nav = page.get_by_role("navigation", name="Pages")
    for name, path in NAV.items():
        nav.get_by_role("link", name=name).click()
        expect(page).to_have_url(gateway.address + path)
        expect(nav.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_have_count(1)


@pytest.mark.parametrize("path", NAV.values())
def test_every_area_is_accessible(visit: Open, gateway: Gateway, path: str) -> None:
    """Axe finds nothing serious, in light and in dark, and it fits a narrow screen."""
    accessible(visit(gateway, path), whole=True)


def test_dark_is_dark(visit: Open, gateway: Gateway) -> None:
    """Who prefers dark gets a dark ground, and light text on it."""
    page = visit(gateway, "/live")
    page.emulate_media(color_scheme="dark")
    colors = "getComputedStyle(document.body)"
    ground, text = (
        sum(int(one) for one in re.findall(r"\d+", page.evaluate(f"{colors}.{name}"))[:3])
        for name in ("backgroundColor", "color")
    )
    assert ground < 200 < text


def test_every_link_leads_somewhere(page: Page, gateway: Gateway) -> None:
    """All that pages link to is there: two of each kind of address are opened, as far as links go."""
    opened: dict[str, int] = {}
    waiting, seen, broken = ["/live"], {"/live"}, list[str]()
    while waiting:
        path = waiting.pop(0)
        kind = re.sub(r"[^/=&?]*\d[^/=&?]*", "*", path)
        if opened.setdefault(kind, 0) >= 2:
            continue
        opened[kind] += 1
        answer = page.request.get(path)
        if answer.status != 200:
            broken.append(f"{answer.status} {path}")
            continue
        for link in re.findall(r"""(?:href|src|action)="([^"#]+)""", answer.text()):
            found = urlsplit(urljoin(answer.url, link.replace("&amp;", "&")))
            address = found.path + (f"?{found.query}" if found.query else "")
            posted = f'action="{link}"' in answer.text() and f'href="{link}"' not in answer.text()
            if found.netloc == urlsplit(gateway.address).netloc and address not in seen and not posted:
                seen.add(address)
                waiting.append(address)
    assert broken == []
    assert set(NAV.values()) <= seen


@pytest.mark.parametrize("path", ["/live", "/receipts"])
def test_what_callers_wrote_is_only_text(visit: Open, gateway: Gateway, path: str) -> None:
    """A session whose name is HTML is shown by that name and does nothing."""
    page = visit(gateway, path)
    expect(page.get_by_text(HOSTILE[:20]).first).to_be_visible()
    expect(page).not_to_have_title("owned")


def test_the_keyboard_skips_to_the_content(page: Page) -> None:
    """The first stop of the Tab key leads past the navigation."""
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_every_area_is_there_without_scripts(visit: Open, gateway: Gateway) -> None:
    """Forms and links are enough to look at anything."""
    page = visit(gateway, java_script_enabled=False)
    for name in NAV:
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_page_that_is_not_there_says_so(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """A receipt that does not exist is told with a way back."""
    watch.expect(404)
    page = visit(gateway, "/receipts/rcpt_nothing")
    expect(page.get_by_role("alert")).to_contain_text("no receipt")
    page.get_by_role("link", name="Back").click()
    expect(page).to_have_url(f"{gateway.address}/receipts")
