"""Runs in the environment `browser`: opens pages in Chromium and prints, as JSON, when each first showed something.

Each visit is a new tab of a browser that has been here before, as an operator's is; the first one of each page comes first.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from playwright.sync_api import Page, sync_playwright

_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
_PAINTED = """() => new Promise(done => {
    const told = () => {
        const paint = performance.getEntriesByName("first-contentful-paint")[0];
        if (!paint) return requestAnimationFrame(told);
        const page = performance.getEntriesByType("navigation")[0];
        done({paint: paint.startTime, answer: page.responseEnd, bytes: page.decodedBodySize});
    };
    told();
})"""


def main(address: str, token: str, rounds: int, paths: list[str]) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(_ARGUMENTS))
        context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto("/signin")
        page.get_by_label("Admin token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "/signin" not in url)
        page.close()
        for path in paths:
            found[path] = [_visit(context.new_page(), path) for _ in range(rounds + 1)]
        browser.close()
    print(json.dumps(found))


def _visit(page: Page, path: str) -> dict[str, Any]:
    try:
        answer = page.goto(path, wait_until="load")
        return {"status": 0 if answer is None else answer.status, **page.evaluate(_PAINTED)}
    finally:
        page.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
