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
SIGNED_IN = pytest.StashKey[dict[tuple[str, str], Any]]()
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Shared by all tests that only look, or change what no other test looks at."""
    with serving(tmp_path_factory.mktemp("gateway")) as running:
        fill(running)
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """For a test that changes what others see: plans, switches, stops. Ask for it before `visit`, so that it outlives the page."""
    with serving(tmp_path / "gateway") as running:
        fill(running)
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

    def over(self, context: BrowserContext, address: str) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.complaints.append(f"uncaught: {error.error}"))
        context.on("request", lambda request: self._asked(request, address))
        context.on("requestfailed", self._failed)
        context.on("response", self._response)

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
def watch(request: pytest.FixtureRequest) -> Iterator[Watch]:
    watch = Watch()
    yield watch
    assert watch.complaints == []


Open = Callable[..., Page]


@pytest.fixture
def visit(request: pytest.FixtureRequest, browser: Browser, watch: Watch) -> Iterator[Open]:
    """`visit(gateway, path)`: a new browser, signed in, at that page. `token=""` signs nobody in."""
    contexts: list[tuple[BrowserContext, Page]] = []
    # Signing in is a test of its own; the others come with the cookie of an earlier visit.
    kept: dict[tuple[str, str], Any] = request.session.stash.setdefault(SIGNED_IN, {})

    def visit(at: Gateway, path: str = "/", *, token: str = ADMIN, **options: Any) -> Page:
        context = browser.new_context(
            base_url=at.address,
            storage_state=kept.get((at.address, token)),
            **{"viewport": {"width": 1280, "height": 800}, **options},
        )
        context.set_default_timeout(WAIT_MS)
        watch.over(context, at.address)
        page = context.new_page()
        contexts.append((context, page))
        if token and (at.address, token) not in kept:
            sign_in(page, token)
            kept[at.address, token] = context.storage_state()
        page.goto(path)
        return page

    yield visit
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    for number, (context, page) in enumerate(contexts):
        page.screenshot(path=SCREENSHOTS / f"{name}{f'-{number + 1}' if number else ''}.png", full_page=True)
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


def accessible(page: Page) -> None:
    """No finding of axe that hinders anybody."""
    found = Axe().run(page).response["violations"]
    serious = [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == [], f"{page.url}: {serious}"
