"""Receipts: every filter reaches the store, one receipt in words with its chain, sessions replayed; hostile contents stay text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wardwright import receipts
from wardwright.history import Delta
from wardwright.receipts import FILTERS
from wardwright.store import ReceiptPage, ReceiptQuery
from wardwright.wire.turn import Caller

from .desk import NOW, PLAN, Desk
from .visitor import Visitor

HOSTILE = "</pre><script>alert(1)</script>"
ALL: dict[str, Any] = {
    "request": {"model": HOSTILE, "wire": HOSTILE, "stream": True, "claims": {"trusted": False}},
    "decision": {
        "gate": "reply",
        "decision": "block",
        "rule_id": HOSTILE,
        "message": HOSTILE,
        "gates": [
            {
                "gate": "reply",
                "at_ms": NOW,
                "elapsed_us": 7,
                "decision": "block",
                "phase": HOSTILE,
                "rule_id": HOSTILE,
                "facts": [
                    {
                        "source": "assistant_tool_call",
                        "namespace": HOSTILE,
                        "name": HOSTILE,
                        "risk_class": HOSTILE,
                        "execution_location": HOSTILE,
                        "marks": [HOSTILE],
                    }
                ],
                "findings": [
                    {
                        "rule_id": HOSTILE,
                        "kind": HOSTILE,
                        "effect": "block",
                        "action": "block",
                        "message": HOSTILE,
                        "facts": [0],
                        "enforced": True,
                        "evidence": {"problems": [HOSTILE]},
                    }
                ],
                "candidates": [{"rule_id": HOSTILE, "verdict": "no_match"}],
                "conflicts": [{"rules": [HOSTILE], "message": HOSTILE}],
                "withheld": [{"name": HOSTILE, "rules": [HOSTILE]}],
                "route": {"allowed": [HOSTILE], "prefer": [HOSTILE]},
                "states": {HOSTILE: HOSTILE},
                "notes": [HOSTILE, f"claim_refused:{HOSTILE}", f"attestation_refused:{HOSTILE}"],
            }
        ],
    },
    "final": {
        "status": "blocked",
        "http_status": 403,
        "error": HOSTILE,
        "attempts": [{"model": HOSTILE, "provider": HOSTILE, "status": HOSTILE, "reason": HOSTILE, "elapsed_ms": 3}],
        "provider_metadata": {
            "wardwright_server_tools": [{"name": HOSTILE, "engine": HOSTILE, "status": HOSTILE, "elapsed_ms": 2}],
            "wardwright_tool_mediation": {
                "mode": HOSTILE,
                "rules": [{"id": HOSTILE, "action": HOSTILE, "tools": [HOSTILE]}],
                "original_hash": HOSTILE,
                "final_hash": "x",
                "not_injected": {HOSTILE: HOSTILE},
                "unavailable": {HOSTILE: HOSTILE},
                "advertisement": {"mode": HOSTILE, "guaranteed": 1, "conditional": 2},
            },
        },
    },
}
"""A receipt with something in every place that a page shows."""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """With one exchange, for what changes nothing."""
    opened = Desk(tmp_path_factory.mktemp("still"))
    opened.exchange("browser_open")
    yield opened
    opened.close()


def keep(desk: Desk, number: int = 1, **parts: Any) -> str:
    """Commits a receipt as it is given."""
    receipt_id = f"rcpt_{number:012x}{'0' * 20}"
    made = {
        "version": 1,
        "kind": "exchange",
        "id": receipt_id,
        "at_ms": NOW + number,
        "caller": {"session_id": "s1", "tenant": "acme", "principal": "key-1"},
        "plan_hash": desk.plan.plan_hash,
        **ALL,
        **parts,
    }
    desk.store.commit(Delta(NOW), receipts.record(made))
    return receipt_id


# search


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.interpreted
def test_every_filter_reaches_the_store(still: Desk, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G33: each has a field, and what is typed there is what is asked for."""
    asked: list[ReceiptQuery] = []
    found = still.store.receipts(ReceiptQuery())

    def look(query: ReceiptQuery) -> ReceiptPage:
        asked.append(query)
        return found

    monkeypatch.setattr(still.store, "receipts", look)
    visitor = Visitor(still, "viewer")
    form = visitor.get("/receipts").forms[2]

    seen = visitor.send(form, **{name: "a&b c"})

    assert seen.status == 200
    assert asked[-1].tags == {name: ("a&b c",)}
    assert f"with {name} a&b c" in seen.text


def test_time_is_filtered_by(still: Desk) -> None:
    """From, until before."""
    visitor = Visitor(still)

    assert "browser.open" in visitor.get("/receipts?since=2023-11-14&until=2023-11-15").text
    assert "No receipt fits." in visitor.get("/receipts?since=2023-11-15").text


def test_a_filter_that_cannot_be_used_keeps_the_others(still: Desk) -> None:
    """What is wrong is told above the form, which still has everything."""
    seen = Visitor(still).get("/receipts?since=yesterday&tool_name=exec")

    assert seen.status == 400
    assert "parameter 'since'" in seen.text
    assert {name: value for name, value in seen.forms[2].fields.items() if value} == {
        "since": "yesterday",
        "tool_name": "exec",
    }


def test_filters_are_kept_from_page_to_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paging by cursor: nothing twice, nothing left out."""
    monkeypatch.setattr("wardwright.http.page_receipts.LISTED", 2)
    wanted = {desk.exchange("browser_open", session=f"s{number}") for number in range(3)}
    desk.exchange("shell_exec", session="other")
    visitor = Visitor(desk)

    first = visitor.get("/receipts?tool_namespace=browser")
    second = visitor.get(first.link("Older"))

    links = [address for seen in (first, second) for _, address in seen.links if address.startswith("/receipts/rcpt")]
    assert sorted(links) == sorted(f"/receipts/{one}" for one in wanted)
    assert second.link("Newest") == "/receipts?tool_namespace=browser"


def test_a_row_says_what_happened(desk: Desk) -> None:
    """Status, sentence, tools, rule, model and session."""
    desk.exchange("shell_exec")

    text = Visitor(desk).get("/receipts").text

    assert (
        "denied Released without a call because rule no-shell denies shell.exec. shell.exec no-shell coding s1" in text
    )


def test_one_word_finds_a_receipt_a_session_a_call_a_rule_or_a_tool(desk: Desk) -> None:
    """In this order."""
    receipt_id = desk.exchange("shell_exec")
    call = receipts.load(desk.store.receipt(receipt_id).row.body)["decision"]["gates"][1]["calls"][0]["call_id"]  # pyright: ignore[reportOptionalMemberAccess]
    visitor = Visitor(desk)

    def leads(word: str) -> str:
        return visitor.send(visitor.get("/receipts").forms[1], q=word).answer.headers["location"]

    assert leads(receipt_id) == f"/receipts/{receipt_id}"
    assert leads("s1") == "/receipts?session_id=s1"
    assert leads(call) == f"/receipts?tool_call_id={call}"
    assert leads("no-shell") == "/receipts?rule=no-shell"
    assert leads("mcp.git.push") == "/receipts?tool_namespace=mcp.git&tool_name=push"


# one receipt


def test_a_receipt_is_explained_in_words(desk: Desk) -> None:
    """Blocked because …, using these facts, told to the caller so."""
    receipt_id = desk.exchange("browser_open", "shell_exec")

    text = Visitor(desk, "viewer").get(f"/receipts/{receipt_id}").text

    assert "Released without a call because rule no-shell denies shell.exec." in text
    assert "Using these facts: the model called shell.exec (irreversible, planning)" in text
    assert "After it, machine default was in state reviewing." in text
    assert "The rule says: No shell here." in text
    assert "Looked, no match loops" in text
    assert "shell.exec: controllable the caller runs it, and its calls pass here" in text


def test_a_receipt_shows_attempts_tools_mediation_withheld_and_claims(desk: Desk) -> None:
    """G32: everything that was recorded beside the ruling."""
    final = {
        "status": "released",
        "http_status": 200,
        "selected_model": "big",
        "attempts": [
            {"model": "small", "reason": "tools"},
            {"model": "big", "provider": "scripted", "status": "ok", "elapsed_ms": 12},
        ],
        "provider_metadata": {
            "wardwright_server_tools": [
                {"name": "lookup", "engine": "snippet", "status": "completed", "elapsed_ms": 4}
            ],
            "wardwright_tool_mediation": {
                "mode": "patch",
                "rules": [{"id": "hide-exec", "action": "hide", "tools": ["shell_exec"]}],
                "original_hash": "aaaaaaaaaaaaaaaa",
                "final_hash": "bbbbbbbbbbbbbbbb",
                "not_injected": {"cache": "switched off"},
                "advertisement": {"mode": "intersection", "guaranteed": 0, "conditional": 1},
            },
        },
    }
    gate = {
        "gate": "request",
        "at_ms": NOW,
        "decision": "allow",
        "withheld": [{"name": "shell_exec", "rules": ["surface"]}],
        "notes": ["claim_refused:tenant", "attestation_refused:expiry", "omitted"],
    }
    request = {"model": "coding", "wire": "anthropic", "claims": {"trusted": False}}
    receipt_id = keep(desk, request=request, decision={"decision": "allow", "gates": [gate]}, final=final)

    text = Visitor(desk).get(f"/receipts/{receipt_id}").text

    for part in (
        "small was left out: it cannot use tools.",
        "big at scripted: ok after 12 ms.",
        "lookup (engine snippet) ran for 4 ms: completed.",
        "Rule hide-exec: hide shell_exec.",
        "The provider saw other tools than were declared: aaaaaaaaaaaa became bbbbbbbbbbbb.",
        "Server tool cache was not offered: switched off.",
        "Advertised by intersection: 0 guaranteed, 1 conditional.",
        "shell_exec by surface",
        "The caller's word for its tenant was not taken: its key says another.",
        "An attestation was refused: expiry.",
        "The caller said something about its tools. It was not believed.",
        "Notes omitted",
    ):
        assert part in text


def test_whatever_a_receipt_holds_stays_text(desk: Desk) -> None:
    """In every place that a page shows, on every page that shows it."""
    receipt_id = keep(desk, caller={"session_id": HOSTILE, "tenant": "acme", "principal": HOSTILE})
    visitor = Visitor(desk)

    pages = [visitor.get(f"/receipts/{receipt_id}"), visitor.get("/receipts"), visitor.get("/live")]
    pages.append(visitor.get(pages[0].link("Replay this step")))

    assert [page.status for page in pages] == [200, 200, 200, 200]
    assert [HOSTILE in page.html or "<script>alert" in page.html for page in pages] == [False] * 4
    assert pages[0].html.count("&lt;/pre&gt;&lt;script&gt;") > 20


@pytest.mark.parametrize("name", ["request", "decision", "final", "caller", "admin"])
def test_a_redacted_receipt_is_shown_as_far_as_it_says_something(desk: Desk, name: str) -> None:
    """A word may stand where a part was."""
    receipt_id = keep(desk, **{name: "redacted:0123"}) if name != "caller" else keep(desk, decision="redacted:0")

    visitor = Visitor(desk)

    assert visitor.get(f"/receipts/{receipt_id}").status == 200
    assert visitor.get("/receipts").status == 200
    assert visitor.get("/live").status == 200


def test_a_receipt_of_thousands_of_facts_is_shown_in_part(desk: Desk) -> None:
    """A transcript that came all at once is one exchange; the whole of it is a link away."""
    facts = [{"source": "assistant_tool_call", "namespace": "n", "name": f"t{number}"} for number in range(5000)]
    gate = {"gate": "request", "at_ms": NOW, "decision": "allow", "facts": facts}
    receipt_id = keep(desk, decision={"decision": "allow", "gates": [gate]}, final={"status": "released"})
    visitor = Visitor(desk)

    seen = visitor.get(f"/receipts/{receipt_id}")
    whole = visitor.get(seen.link("As JSON alone"))
    session = visitor.get("/live/session?id=s1&tenant=acme")

    assert "5,000 facts" in seen.text and "and 4800 more" in seen.text
    assert "4940 more" in session.text
    assert max(len(page.html) for page in (seen, session, visitor.get("/live"), visitor.get("/receipts"))) < 60_000
    assert whole.answer.headers["content-type"] == "application/json"
    assert len(whole.answer.json["receipt"]["decision"]["gates"][0]["facts"]) == 5000


def test_an_operators_action_is_explained(desk: Desk) -> None:
    """Who did what, to what, and why."""
    made = receipts.build_admin(
        "rcpt_1", NOW, Caller(principal="ann"), "release_session", "s1", {"note": "it was stuck"}
    )
    desk.store.commit(Delta(NOW), receipts.record(made))

    assert "ann: release session s1, because: it was stuck." in Visitor(desk).get("/receipts/rcpt_1").text


def test_a_receipt_that_is_not_there_is_told(still: Desk) -> None:
    """As not found."""
    seen = Visitor(still).get("/receipts/rcpt_none")

    assert (seen.status, "There is no receipt 'rcpt_none'." in seen.text) == (404, True)


def test_an_erased_receipt_is_told(desk: Desk) -> None:
    """Its place is known, its content is gone."""
    receipt_id = desk.exchange("browser_open")
    desk.store.forget_tenant("acme")
    visitor = Visitor(desk)

    assert visitor.get(f"/receipts/{receipt_id}").status == 410
    assert visitor.get("/live").status == 200


# the chain


def test_a_receipt_shows_its_place_and_that_it_verifies(desk: Desk) -> None:
    """With its neighbours, to walk along."""
    first, second, third = (desk.exchange("browser_open") for _ in range(3))

    seen = Visitor(desk).get(f"/receipts/{second}")

    assert "verifies Number 2 of writer" in seen.text
    assert "Its hash can be made again from what is stored." in seen.text
    assert (seen.link("Number 1"), seen.link("Number 3")) == (f"/receipts/{first}", f"/receipts/{third}")


def test_a_receipt_that_was_changed_does_not_verify(desk: Desk) -> None:
    """It is shown, and said to be wrong."""
    receipt_id = desk.exchange("browser_open")
    desk.exchange("browser_open")
    with sqlite3.connect(desk.path) as connection:
        connection.execute("UPDATE receipt SET at_ms = at_ms + 1 WHERE sequence = 1")
    connection.close()

    text = Visitor(desk).get(f"/receipts/{receipt_id}").text

    assert "does not verify" in text
    assert "Its hash cannot be made again from what is stored: it was changed." in text


def test_all_chains_are_verified_on_demand(desk: Desk) -> None:
    """The same answer as the admin API gives."""
    desk.exchange("browser_open")
    visitor = Visitor(desk, "viewer")

    seen = visitor.send(visitor.get("/receipts/verify").form("/receipts/verify"))

    assert "All chains verify 1 receipt in 1 chain, 0 erased, 0 checkpoints." in seen.text


@pytest.mark.parametrize("tampered", [False, True])
def test_of_long_chains_the_newest_are_verified(desk: Desk, monkeypatch: pytest.MonkeyPatch, tampered: bool) -> None:
    """Nobody waits minutes for a page: how many were looked at is told, and the command for all."""
    monkeypatch.setattr("wardwright.http.page_receipts.WHOLE", 3)
    monkeypatch.setattr("wardwright.http.page_receipts.NEWEST", 2)
    for _ in range(4):
        desk.exchange("browser_open")
    if tampered:
        with sqlite3.connect(desk.path) as connection:
            connection.execute("UPDATE receipt SET at_ms = at_ms + 1 WHERE sequence = 4")
        connection.close()
    visitor = Visitor(desk)

    text = visitor.send(visitor.get("/receipts/verify").form("/receipts/verify")).text

    assert "The newest 2 receipts of 4 were looked at." in text
    assert ("does not verify" in text, "number 4" in text) == (tampered, tampered)


# replay


def test_a_session_is_replayed_step_by_step(desk: Desk) -> None:
    """Forth and back, with state, windows and counters as they were after each step."""
    for tool in ("browser_open", "shell_exec", "browser_open"):
        desk.exchange(tool)
        desk.exchange("browser_open", session="another")
    visitor = Visitor(desk, "viewer")

    last = visitor.get(visitor.get("/live/session?id=s1&tenant=acme").link("Replay step by step"))
    first = visitor.get(last.link("First"))
    second = visitor.get(first.link("Next"))

    assert "Replay, step 3" in last.text and "loops browser.open: 2 of 3" in last.text
    assert "Replay, step 1" in first.text and "loops browser.open: 1 of 3" in first.text
    assert "loops shell.exec" not in first.text
    assert "Replay, step 2" in second.text and "default: reviewing" in second.text
    assert "loops shell.exec: 1 of 3" in second.text
    assert visitor.get(second.link("Previous")).html == first.html
    assert visitor.get(second.link("Next")).text == last.text
    assert [name for name, _ in first.links if name in ("Previous", "Next")] == ["Next"]
    assert [name for name, _ in last.links if name in ("Previous", "Next")] == ["Previous"]


def test_a_replay_says_when_it_does_not_know_everything(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are rebuilt from so many exchanges."""
    monkeypatch.setattr("wardwright.http.page_receipts.REBUILT", 2)
    for _ in range(3):
        desk.exchange("browser_open")

    text = Visitor(desk).get("/replay?id=s1&tenant=acme").text

    assert "Counters are rebuilt from the 2 exchanges up to this one" in text
    assert "loops browser.open: 2 of 3" in text


def test_a_replay_uses_the_plan_that_ruled_then(desk: Desk) -> None:
    """If it was ever activated; else it says that it does not."""
    desk.store.activate(desk.plan.plan_hash, desk.source, NOW, 0)
    desk.exchange("browser_open")
    desk.plan = desk.compile(PLAN.replace("threshold: 3", "threshold: 30").encode())
    visitor = Visitor(desk)

    known = visitor.get("/replay?id=s1&tenant=acme").text
    keep(desk, 2, plan_hash="gone")
    unknown = visitor.get("/replay?id=s1&tenant=acme").text

    assert "loops browser.open: 1 of 3" in known and "1 of 30" not in known
    assert "The plan that ruled then is not known any more" in unknown


@pytest.mark.parametrize("query", ["", "?id=nobody", "?id=s1&tenant=other", "?id=s1&tenant=acme&at=0"])
def test_a_session_that_is_not_there_cannot_be_replayed(still: Desk, query: str) -> None:
    """As not found."""

    assert Visitor(still).get(f"/replay{query}").status == 404


def test_the_session_of_another_tenant_is_not_mixed_in(desk: Desk) -> None:
    """Two tenants may have sessions of one name, one of them without a name itself."""
    desk.exchange("browser_open", tenant="")
    desk.exchange("shell_exec", tenant="acme")
    visitor = Visitor(desk)

    text = visitor.get("/replay?id=s1").text

    assert "Replay, step 1" in text and "shell.exec" not in text
    assert "shell.exec" not in visitor.get("/live/session?id=s1").text


def test_an_empty_gateway_is_not_said_to_have_been_changed(desk: Desk) -> None:
    """What an empty store may mean is told; that its chains do not verify is not."""
    visitor = Visitor(desk)

    seen = visitor.send(visitor.get("/receipts/verify").form("/receipts/verify"))

    assert "nothing is recorded" in seen.text
    assert "nothing was ever recorded, or all of it was taken away" in seen.text
    assert "do not verify" not in seen.text
