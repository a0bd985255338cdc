"""The page Models: what each model can reach, and the switches."""

from __future__ import annotations

from playwright.sync_api import expect

from .conftest import Open
from .world import VIEWER, Gateway


def test_a_model_tells_what_it_can_reach(visit: Open, gateway: Gateway) -> None:
    """Tools with engine and limits, counts, mediation, targets that can receive tools."""
    model = visit(gateway, "/models").get_by_role("region", name="coding", exact=True)
    for said in ("shout", "engine snippet", "guaranteed", "conditional", "Mediation", "fast"):
        expect(model).to_contain_text(said)


def test_no_source_of_a_snippet_is_shown(visit: Open, gateway: Gateway) -> None:
    """What a tool does stays with who wrote it."""
    assert ".upper()" not in visit(gateway, "/models").content()


def test_a_viewer_switches_nothing(visit: Open, gateway: Gateway) -> None:
    """The switches are for operators."""
    page = visit(gateway, "/models", token=VIEWER)
    expect(page.get_by_role("region", name="coding", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Switch")).to_have_count(0)


def test_a_tool_is_switched_off_and_on(own_gateway: Gateway, visit: Open) -> None:
    """It is gone from the next request on, the reason is on a receipt, and it comes back."""
    page = visit(own_gateway, "/models")
    off = page.get_by_role("button", name="Switch shout off").first
    page.locator("form", has=off).get_by_label("Reason").fill("too loud")
    off.click()
    expect(page.get_by_role("status").first).to_contain_text("shout of coding is off")
    newest = own_gateway.ask("GET", "/v1/receipts?kind=admin&limit=1")["receipts"][0]["receipt"]
    assert "too loud" in str(newest)
    page.get_by_role("button", name="Switch shout on").first.click()
    expect(page.get_by_role("status").first).to_contain_text("shout of coding is on")
