"""Signing in and out, and what is shown to whom."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Watch, accessible
from .world import ADMIN, APPROVER, VIEWER, Gateway

PAGES = ("/live", "/approvals", "/receipts", "/replay?id=denied", "/policy", "/policy/edit", "/models", "/agents")


def test_the_sign_in_page_is_accessible(visit: Open, gateway: Gateway) -> None:
    """The first thing that anybody sees can be used by everybody."""
    accessible(visit(gateway, "/signin", token=""), whole=True)


def test_nothing_is_shown_before_sign_in(visit: Open, gateway: Gateway) -> None:
    """Every page leads to the sign-in instead."""
    page = visit(gateway, "/signin", token="")
    for path in PAGES:
        page.goto(path)
        expect(page).to_have_url(re.compile("/signin"))


def test_signing_in_leads_to_where_one_wanted_to_go(visit: Open, gateway: Gateway) -> None:
    """A link that somebody sent still opens what it was sent for."""
    page = visit(gateway, "/receipts?status=blocked", token="")
    page.get_by_label("Admin token").fill(ADMIN)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{gateway.address}/receipts?status=blocked")


def test_a_wrong_token_is_told_and_asked_for_again(visit: Open, gateway: Gateway, watch: Watch) -> None:
    """Whoever mistypes stays at the sign-in and reads why."""
    watch.expect(401)
    page = visit(gateway, "/signin", token="")
    page.get_by_label("Admin token").fill("not-the-token-of-anybody-here")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    expect(page.get_by_label("Admin token")).to_be_visible()
    accessible(page)


def test_a_link_with_the_token_signs_in_and_leaves_it_nowhere(visit: Open, gateway: Gateway) -> None:
    """The address that is printed at the start opens the workbench; the token is not kept in the address."""
    page = visit(gateway, f"/signin#{ADMIN}", token="")
    expect(page).to_have_url(f"{gateway.address}/live")
    assert ADMIN not in page.content()


def test_signing_out_ends_it(visit: Open, gateway: Gateway) -> None:
    """After it every page asks for the token again, also by the back button."""
    page = visit(gateway, fresh=True)
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/signin"))
    page.go_back()
    page.goto("/receipts")
    expect(page).to_have_url(re.compile("/signin"))


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(page: Page) -> None:
    """It is sent to us alone and read by nobody else."""
    (cookie,) = (one for one in page.context.cookies() if one["name"] == "wardwright_page")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert ADMIN not in cookie["value"]
    assert page.evaluate("document.cookie") == ""


@pytest.mark.parametrize(("token", "role"), [(ADMIN, "operator"), (APPROVER, "approver"), (VIEWER, "viewer")])
def test_every_page_says_who_is_signed_in(visit: Open, gateway: Gateway, token: str, role: str) -> None:
    """One can tell by looking what one may do."""
    expect(visit(gateway, "/live", token=token).get_by_text(f"({role})")).to_be_visible()


def test_signing_in_needs_no_script(visit: Open, gateway: Gateway) -> None:
    """The form works as a form."""
    page = visit(gateway, "/live", java_script_enabled=False)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
