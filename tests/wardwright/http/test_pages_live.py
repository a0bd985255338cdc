"""Live: sessions with what is remembered of them, approvals decided from the page, stops and releases; all escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wardwright import approvals, receipts
from wardwright.approvals import Held
from wardwright.history import Delta, scope_key
from wardwright.overlay import Stop
from wardwright.store import ReceiptQuery
from wardwright.wire.turn import Caller

from .desk import NOW, Desk
from .visitor import Seen, Visitor

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def hold(desk: Desk, *, principal: str = "key-1", arguments: str = '{"cmd":"rm -r x"}', session: str = "s1") -> Held:
    scope = scope_key("session_id", Caller(tenant="acme", session_id=session))
    calls = ({"name": "shell_exec", "arguments": arguments, "rule_id": "ask", "message": "Ask first."},)
    handle = approvals.handle_of(desk.keyring, scope, session)
    held = Held(
        handle,
        scope,
        "chat_completions",
        "coding",
        False,
        session,
        "plan",
        principal,
        ("key",),
        calls,
        {"id": "r"},
        "rcpt_1",
        NOW + 1_000_000,
        held_at_ms=NOW,
    )
    desk.store.commit(Delta(NOW), seal=approvals.rows(desk.keyring, held))
    return held


def actions(desk: Desk) -> list[tuple[str, str, str]]:
    found = desk.store.receipts(ReceiptQuery({"kind": ["admin"]})).receipts
    told = [receipts.load(one.row.body) for one in reversed(found)]
    return [(one["caller"]["principal"], one["admin"]["action"], one["admin"]["target"]) for one in told]


def note_of(desk: Desk) -> str:
    newest = desk.store.receipts(ReceiptQuery({"kind": ["admin"]})).receipts[0]
    return receipts.load(newest.row.body)["admin"]["details"]["note"]


def decided(visitor: Visitor, held: Held, decision: str, seen: Seen | None = None) -> Seen:
    form = (seen or visitor.get("/live")).form(f"/approvals/{held.handle}")
    return visitor.send(form, note="looked at it", decision=decision)


# sessions


def test_live_tells_of_an_empty_gateway_what_to_do(desk: Desk) -> None:
    """Nobody stands before an empty page."""
    seen = Visitor(desk).get("/live", host="gateway.test:8787")

    assert "Nothing has passed here yet." in seen.text
    assert "Give an agent the base URL http://gateway.test:8787/v1 and the model coding" in seen.text
    assert "curl http://gateway.test:8787/v1/chat/completions" in seen.text


def test_a_session_is_shown_with_its_timeline_state_and_counters(desk: Desk) -> None:
    """Each decision with its rule; a counter with its threshold."""
    desk.exchange("browser_open")
    desk.exchange("shell_exec", "browser_open")

    text = Visitor(desk, "viewer").get("/live").text

    assert "Released without a call because rule no-shell denies shell.exec." in text
    assert "browser.open call shell.exec call denied by no-shell browser.open call" in text
    assert "default: reviewing by review" in text
    assert "loops browser.open: 2 of 3 loops shell.exec: 1 of 3" in text


def test_what_is_refused_comes_first(desk: Desk) -> None:
    """Before newer sessions where all is well."""
    desk.exchange("shell_exec", session="refused")
    desk.exchange("browser_open", session="fine")

    text = Visitor(desk).get("/live").text

    assert text.index("refused denied") < text.index("fine released")


def test_what_waits_comes_before_what_is_refused(desk: Desk) -> None:
    """Somebody can do something about it now."""
    desk.exchange("browser_open", session="waits")
    hold(desk, session="waits")
    desk.exchange("shell_exec", session="refused")

    text = Visitor(desk).get("/live").text

    assert text.index("waits released waits for an approval") < text.index("refused denied")


def test_sessions_are_listed_page_by_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One view looks at so many exchanges, and leads to those before."""
    monkeypatch.setattr("wardwright.http.page_live.LOOKED", 2)
    for session in ("one", "two", "three"):
        desk.exchange("browser_open", session=session)
    visitor = Visitor(desk)

    newest = visitor.get("/live")
    older = visitor.get(newest.link("Older sessions"))

    assert ("one" in newest.text, "three" in newest.text) == (False, True)
    assert ("one" in older.text, "three" in older.text) == (True, False)


def test_a_name_of_a_session_is_shown_as_it_is_and_leads_to_it(desk: Desk) -> None:
    """Whatever a caller calls its sessions and tools, nothing of it becomes part of the page."""
    name = f"a/../b?c=1&d#{HOSTILE}"
    desk.exchange(f"shell_{HOSTILE}", session=name, tenant='"><b>')
    visitor = Visitor(desk)

    live = visitor.get("/live")
    session = visitor.get(live.link(name))

    assert HOSTILE not in live.html + session.html
    assert f"Session {name}" in session.text
    assert session.status == 200


def test_the_live_part_is_drawn_anew_only_when_something_happened(desk: Desk) -> None:
    """What the script asks every two seconds costs next to nothing on a quiet gateway."""
    desk.exchange("browser_open")
    visitor = Visitor(desk)

    first = visitor.get("/live/part", x_wardwright_fragment="yes")
    tag = first.answer.headers["etag"]
    same = visitor.get("/live/part", if_none_match=tag)
    desk.exchange("shell_exec")
    changed = visitor.get("/live/part", if_none_match=tag)

    assert (first.status, same.status, same.answer.body, changed.status) == (200, 304, b"", 200)
    assert "<html" not in first.html


def test_a_script_that_is_signed_out_is_told(desk: Desk) -> None:
    """And does not put the sign-in page into the middle of the page."""
    assert Visitor(desk, role="").get("/live/part", x_wardwright_fragment="yes").status == 401


def test_a_session_shows_its_whole_timeline_page_by_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, with what operators did to it."""
    monkeypatch.setattr("wardwright.http.page_live.STEPS", 2)
    for tool in ("browser_open", "shell_exec", "browser_open"):
        desk.exchange(tool)
    visitor = Visitor(desk)

    newest = visitor.get("/live/session?id=s1&tenant=acme")
    older = visitor.get(newest.link("Older"))

    assert newest.text.count("Why") == 2
    assert older.text.count("Why") == 1
    assert older.link("Newest") == "/live/session?id=s1&tenant=acme"


@pytest.mark.parametrize("query", ["", "?id=", "?id=nobody", "?id=a%0Ab"])
def test_a_session_that_is_not_there_is_told(desk: Desk, query: str) -> None:
    """As not found, whatever the address says."""
    assert Visitor(desk).get(f"/live/session{query}").status == 404


# approvals


def test_an_approver_sees_the_arguments(desk: Desk) -> None:
    """G23: nobody decides about what cannot be seen."""
    held = hold(desk)

    seen = Visitor(desk, "approver").get("/live")

    assert "&#34;cmd&#34;: &#34;rm -r x&#34;" in seen.html
    assert "shell_exec by rule ask" in seen.text
    assert seen.form(f"/approvals/{held.handle}").buttons == ["decision=approve", "decision=reject"]


def test_a_viewer_sees_neither_arguments_nor_buttons(desk: Desk) -> None:
    """Controls that one may not use are not shown, nor what only approvers may see."""
    hold(desk)

    seen = Visitor(desk, "viewer").get("/live")

    assert "rm -r x" not in seen.html
    assert [form.action for form in seen.forms] == ["/signout"]


@pytest.mark.parametrize(("decision", "status"), [("approve", "approved"), ("reject", "rejected")])
def test_an_approval_is_decided_from_the_page(desk: Desk, decision: str, status: str) -> None:
    """With its reason, in the chain, by the name of whoever is signed in."""
    held = hold(desk)
    visitor = Visitor(desk, "ann:approver")

    done = visitor.follow(decided(visitor, held, decision))

    assert f"{held.handle} is {status}." in done.text
    assert approvals.verdict(desk.store, desk.keyring, held.scope, held.handle, NOW).status == status
    assert (actions(desk), note_of(desk)) == ([("ann", decision, held.handle)], "looked at it")


def test_without_a_button_nothing_is_decided(desk: Desk) -> None:
    """The Enter key in the reason approves nothing; the reason is still there."""
    held = hold(desk)
    visitor = Visitor(desk, "approver")

    seen = visitor.send(visitor.get("/live").form(f"/approvals/{held.handle}"), note="still thinking")

    assert (seen.status, actions(desk)) == (400, [])
    assert "Nothing was decided: choose Approve or Reject." in seen.text
    assert seen.form(f"/approvals/{held.handle}").fields["note"] == "still thinking"


def test_what_was_not_looked_at_is_not_approved(desk: Desk) -> None:
    """Something else waits under the handle by now: it is shown, and what was typed is kept."""
    held = hold(desk)
    visitor = Visitor(desk, "approver")
    before = visitor.get("/live")
    hold(desk, arguments='{"cmd":"rm -r /"}')

    seen = decided(visitor, held, "approve", before)

    assert seen.status == 409
    assert "Something else waits" in seen.text
    assert "rm -r /" in seen.html
    assert seen.form(f"/approvals/{held.handle}").fields["note"] == "looked at it"
    assert actions(desk) == []


def test_nobody_approves_their_own_request(desk: Desk) -> None:
    """The form is not there, and sending one all the same is refused."""
    held = hold(desk, principal="ann")
    other, own = Visitor(desk, "approver"), Visitor(desk, "ann:approver")
    form = other.get("/live").form(f"/approvals/{held.handle}")
    csrf = own.get("/live").form("/signout").fields["csrf"]

    assert "Somebody else than the requester has to decide." in own.get(f"/approvals/{held.handle}").text
    assert own.send(form, csrf=csrf, decision="approve").status == 403
    assert actions(desk) == []


def test_what_was_decided_meanwhile_is_told(desk: Desk) -> None:
    """By whoever else, and what was typed is not lost."""
    held = hold(desk)
    visitor = Visitor(desk, "approver")
    before = visitor.get("/live")
    decided(visitor, held, "reject", before)

    seen = decided(visitor, held, "approve", before)

    assert "it was decided or has expired" in seen.text
    assert seen.form(f"/approvals/{held.handle}").fields["note"] == "looked at it"


def test_all_that_waits_has_a_page(desk: Desk) -> None:
    """For a gateway where much waits."""
    held = [hold(desk, session=name) for name in ("s1", "s2")]

    text = Visitor(desk, "approver").get("/approvals").text

    assert all(one.handle in text for one in held)


# stops and releases


def test_a_stop_is_set_and_released_from_the_page(desk: Desk) -> None:
    """With its reason, and shown in between to everybody."""
    visitor = Visitor(desk)

    visitor.send(visitor.get("/live").form("/live/stop"), kind="tool", name="shell_*", note="on fire")
    seen = Visitor(desk, "viewer").get("/live")
    visitor.send(visitor.get("/live").form("/live/unstop"), note="put out")

    assert "tool shell_*" in seen.text and "on fire" in seen.text
    assert desk.overlay.stops() == ()
    assert actions(desk) == [("operator", "stop", "tool:shell_*"), ("operator", "release_stop", "tool:shell_*")]


def test_a_session_is_stopped_from_its_page_for_its_tenant_alone(desk: Desk) -> None:
    """Another tenant may have a session of the same name."""
    desk.exchange("browser_open")
    visitor = Visitor(desk)

    form = visitor.get("/live/session?id=s1&tenant=acme").form("/live/stop")
    done = visitor.follow(visitor.send(form, note="odd"))

    assert desk.overlay.stops() == (Stop("session", "s1", "acme"),)
    assert "An operator has stopped this session." in done.text


def test_a_stop_that_cannot_be_set_keeps_what_was_typed(desk: Desk) -> None:
    """A name is needed; the reason is still there."""
    visitor = Visitor(desk)

    seen = visitor.send(visitor.get("/live").form("/live/stop"), kind="tool", name="", note="on fire")

    assert seen.status == 400
    assert seen.form("/live/stop").fields["note"] == "on fire"


def test_a_session_is_released_from_its_page(desk: Desk) -> None:
    """What is ticked begins anew, and nothing else."""
    desk.exchange("browser_open")
    visitor = Visitor(desk)
    form = visitor.get("/live/session?id=s1&tenant=acme").form("/live/release")

    done = visitor.follow(visitor.send(form, note="fine now", **{"rule:loops": "yes"}))

    assert "Nothing is counted, and no window is open." in done.text
    assert "default: reviewing" in done.text
    assert actions(desk) == [("operator", "release_session", "s1")]


def test_a_release_without_ticks_puts_states_back(desk: Desk) -> None:
    """As the page says."""
    desk.exchange("browser_open")
    visitor = Visitor(desk)
    form = visitor.get("/live/session?id=s1&tenant=acme").form("/live/release")

    done = visitor.follow(visitor.send(form, note="fine now"))

    assert "default: active" in done.text


def test_controls_are_shown_to_those_who_may_use_them(desk: Desk) -> None:
    """An approver approves, and neither stops nor releases."""
    desk.exchange("browser_open")
    visitor = Visitor(desk, "approver")

    seen = [*visitor.get("/live").forms, *visitor.get("/live/session?id=s1&tenant=acme").forms]

    assert {form.action for form in seen} == {"/signout"}
