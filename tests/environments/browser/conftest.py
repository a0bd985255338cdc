"""What holds for every test here: a gateway with traffic, a browser, and nothing that goes wrong unseen.

Every test ends with a look at what the browser complained about, and with a screenshot under build/screenshots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, expect, sync_playwright

from .world import ADMIN, Gateway, fill, serving

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
WAIT_MS = 15_000
"""How long anything is waited for before a test fails; nothing that works takes so long."""
BROWSERS = pytest.StashKey[dict[tuple[Any, ...], BrowserContext]]()
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Shared by all tests that only look, or change what no other test looks at."""
    with serving(tmp_path_factory.mktemp("gateway")) as running:
        fill(running)
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """For a test that changes what others see: plans, switches, stops. Nothing has happened there yet. Ask for it before `visit`,
    so that it outlives the page."""
    with serving(tmp_path / "gateway") as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is missing: run make chromium")
    with sync_playwright() as playwright:
        # Each start has a new profile folder.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Watch:
    """What a browser complained about. Statuses that a test asks for are named by it."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._expected: set[int] = set()

    def expect(self, *statuses: int) -> None:
        """These answers are what the test is about."""
        self._expected.update(statuses)

    def over(self, page: Page, address: str) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._asked(request, address))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def _console(self, message: Any) -> None:
        told = re.search(r"status of (\d+)", message.text)
        if message.type in ("error", "warning") and not (told and int(told[1]) in self._expected):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def _asked(self, request: Request, address: str) -> None:
        # Pages work without internet: nothing is fetched from anywhere else.
        if not request.url.startswith((f"{address}/", "data:")):
            self.complaints.append(f"asked elsewhere: {request.url}")

    def _failed(self, request: Request) -> None:
        # A page that is left takes its own refreshing with it.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self._expected:
            self.complaints.append(f"{response.status}: {response.request.method} {response.url}")


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    assert watch.complaints == []


Open = Callable[..., Page]


@pytest.fixture
def visit(request: pytest.FixtureRequest, browser: Browser, watch: Watch) -> Iterator[Open]:
    """`visit(gateway, path)`: a new tab, signed in, at that page. Tabs of one operator share a browser's cookies; `fresh` gives a
    browser of its own, `token=""` too, with nobody signed in."""
    kept = request.session.stash.setdefault(BROWSERS, {})
    pages: list[Page] = []
    own: list[BrowserContext] = []

    def start(at: Gateway, token: str, **options: Any) -> BrowserContext:
        context = browser.new_context(base_url=at.address, viewport={"width": 1280, "height": 800}, **options)
        context.set_default_timeout(WAIT_MS)
        if token:
            page = context.new_page()
            watch.over(page, at.address)
            sign_in(page, token)
            page.close()
        return context

    def visit(at: Gateway, path: str = "/", *, token: str = ADMIN, fresh: bool = False, **options: Any) -> Page:
        name = (at.address, token, *options.items())
        if fresh or not token:
            context = start(at, token, **options)
            own.append(context)
        elif (context := kept.get(name)) is None:
            context = kept[name] = start(at, token, **options)
        page = context.new_page()
        watch.over(page, at.address)
        pages.append(page)
        page.goto(path)
        return page

    yield visit
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    for number, page in enumerate(pages):
        _picture(page, name + (f"-{number + 1}" if number else ""))
        page.close()
    for context in own:
        context.close()


@pytest.fixture
def page(visit: Open, gateway: Gateway) -> Page:
    """Signed in as an operator at the first page."""
    return visit(gateway)


def sign_in(page: Page, token: str) -> None:
    page.goto("/signin")
    page.get_by_label("Admin token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/(?!signin)"))


def accessible(page: Page, *, whole: bool = False) -> None:
    """No finding of axe that hinders anybody. `whole`: also in the dark, on a narrow screen, and with pictures of both."""
    serious = _serious(page)
    if whole:
        name = re.sub(r"[^A-Za-z0-9]+", "-", page.url.partition("//")[2].partition("/")[2])
        name = re.sub(r"rcpt-\w+|apr-\w+", "ID", name).strip("-")
        _picture(page, f"page-{name}-light", full_page=True)
        page.emulate_media(color_scheme="dark")
        # The rest is the same by any light.
        serious += _serious(page, {"runOnly": ["color-contrast"]})
        _picture(page, f"page-{name}-dark")
        page.set_viewport_size({"width": 390, "height": 800})
        width = page.evaluate("document.documentElement.scrollWidth")
        serious += [f"{width} pixels wide on a screen of 390"] if width > 390 else []
    assert serious == [], page.url


def _serious(page: Page, options: dict[str, Any] | None = None) -> list[str]:
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
        for one in Axe().run(page, options=options).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def _picture(page: Page, name: str, *, full_page: bool = False) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name[:120]}.png", full_page=full_page)
