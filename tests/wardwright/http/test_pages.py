"""The workbench's door: nothing before sign-in, forms only from our own pages, roles, errors that lose nothing, files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wardwright.errors import ConfigError, Problem, StoreUnavailable
from wardwright.http.pages import COOKIE, FORM_BYTES, PAGES, SIGNED_IN_MS, Page, Visit
from wardwright.http.route import BadRequest
from wardwright.http.visit import NOTICE, Answer

from .desk import Desk
from .visitor import Visitor


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """For what changes nothing."""
    opened = Desk(tmp_path_factory.mktemp("still"))
    yield opened
    opened.close()


def address(page: Page) -> str:
    """A path of the page with something in every place."""
    return page.path.replace("{", "").replace("}", "").replace("*", "")


def fails(error: Exception) -> tuple[Page, ...]:
    def handler(visit: Visit) -> Answer:
        raise error

    return (Page("GET", "/live/odd", "viewer", handler), Page("POST", "/live/odd", "viewer", handler))


# signing in


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.method} {page.path}")
def test_nothing_is_shown_without_signing_in(still: Desk, page: Page) -> None:
    """Every page leads to the sign-in, and says nothing of its own."""
    visitor = Visitor(still, role="")

    if page.method == "GET":
        seen = visitor.get(address(page))
        assert (seen.status, seen.answer.body) == (303, b"")
        assert seen.answer.headers["location"].partition("?")[0] == "/signin"
    else:
        seen = visitor.post(address(page), a="b")
        assert (seen.status, [form.action for form in seen.forms]) == (401, ["/signin"])


def test_a_token_signs_in_and_leads_to_the_page_that_was_wanted(desk: Desk) -> None:
    """With everything that stood in its address."""
    visitor = Visitor(desk, role="")

    asked = visitor.follow(visitor.get("/models?x=1&y=a%20b"))
    signed = visitor.send(asked.form("/signin"), token="operator")

    assert signed.answer.headers["location"] == "/models?x=1&y=a%20b"
    assert visitor.follow(signed).status == 200


def test_a_token_that_is_not_known_signs_nobody_in(still: Desk) -> None:
    """It is told, with 401, and the field is there again."""
    visitor = Visitor(still, role="")

    seen = visitor.post("/signin", token="guess")

    assert seen.status == 401
    assert "This token is not known here." in seen.text
    assert COOKIE not in visitor.cookies


@pytest.mark.parametrize(
    "wanted", ["https://evil.test/", "//evil.test", "/\\evil.test", "javascript:alert(1)", "/signout"]
)
def test_a_sign_in_leads_nowhere_else(still: Desk, wanted: str) -> None:
    """Not to another site, not out again."""
    visitor = Visitor(still, role="")

    signed = visitor.post("/signin", token="viewer", next=wanted)

    assert signed.answer.headers["location"] == "/live"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(still: Desk) -> None:
    """HttpOnly, SameSite=Strict, twelve hours; the token is not to be read in it."""
    signed = Visitor(still, role="").post("/signin", token="operator")

    cookie = signed.answer.headers["set-cookie"]
    assert cookie.endswith("; Max-Age=43200; Path=/; HttpOnly; SameSite=Strict")
    assert "operator" not in cookie


def test_a_cookie_ends_after_twelve_hours(desk: Desk) -> None:
    """By the gateway's clock, whatever the browser does."""
    visitor = Visitor(desk)
    desk.clock += SIGNED_IN_MS

    assert visitor.get("/models").status == 303


def test_a_cookie_ends_with_its_token(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was taken away opens nothing any more, also for those who are signed in."""
    visitor = Visitor(desk)
    admin = desk.authenticator.admin
    monkeypatch.setattr(desk.authenticator, "admin", lambda headers, peer, needs="viewer": admin({}, peer, needs))

    assert visitor.get("/models").status == 303


@pytest.mark.parametrize("cookie", ["", "x", "!!!", "A" * 200, base64.urlsafe_b64encode(b'{"t":"operator"}').decode()])
def test_a_made_up_cookie_opens_nothing(still: Desk, cookie: str) -> None:
    """Only what this gateway sealed does."""
    visitor = Visitor(still, role="")
    visitor.cookies[COOKIE] = cookie

    assert visitor.get("/models").status == 303


def test_cookies_of_other_programs_do_no_harm(still: Desk) -> None:
    """Cookies know no ports: whatever runs on this machine may have set some."""
    visitor = Visitor(still)
    visitor.cookies = {"other": '{"a": [1, "b"]}', "": "", "x@y": "z=1", **visitor.cookies}

    assert visitor.get("/models").status == 200


def test_signing_out_takes_the_cookie_away(desk: Desk) -> None:
    """By a form, so that no link can do it."""
    visitor = Visitor(desk)

    assert visitor.get("/signout").answer.headers["location"] == "/live"
    visitor.send(visitor.get("/models").form("/signout"))

    assert COOKIE not in visitor.cookies


def test_the_front_door_leads_to_live(still: Desk) -> None:
    """`/` is what people type."""
    assert Visitor(still, role="").get("/").answer.headers["location"] == "/live"


# forms


@pytest.mark.parametrize("csrf", [None, "", "guess"])
def test_a_form_of_another_page_is_refused(still: Desk, csrf: str | None) -> None:
    """What is signed in is not enough: the form must have been made for this sign-in."""
    visitor = Visitor(still)
    fields = {"model": "coding", "tool": "lookup", "enabled": "false"}

    seen = visitor.post("/models/switch", **fields, **({} if csrf is None else {"csrf": csrf}))

    assert seen.status == 403
    assert "Nothing was changed." in seen.text
    assert still.overlay.off("coding") == frozenset()


def test_the_form_of_an_earlier_sign_in_is_refused(desk: Desk) -> None:
    """Each sign-in has its own."""
    visitor = Visitor(desk)
    form = visitor.get("/models").form("/signout")
    visitor.post("/signin", token="operator")

    assert visitor.send(form).status == 403


@pytest.mark.parametrize("page", [page for page in PAGES if page.role != "viewer"], ids=lambda page: page.path)
def test_a_lower_role_is_refused(still: Desk, page: Page) -> None:
    """What decides or changes something needs more than looking."""
    visitor = Visitor(still, role="viewer" if page.role == "approver" else "approver")
    csrf = visitor.get("/models").form("/signout").fields["csrf"]

    seen = visitor.post(address(page), csrf=csrf) if page.method == "POST" else visitor.get(address(page))

    assert seen.status == 403
    assert f"This needs the role {page.role}" in seen.text


def test_what_was_typed_outlives_the_sign_in(desk: Desk) -> None:
    """A form that comes too late is kept over the new sign-in, and sent only when somebody says so."""
    visitor = Visitor(desk)
    form = visitor.get("/models").form("/models/switch")
    desk.clock += SIGNED_IN_MS

    late = visitor.send(form, note='"typed" for\nlong <b>')
    wrong = visitor.send(late.form("/signin"), token="guess")
    again = visitor.send(wrong.form("/signin"), token="operator")
    before = desk.overlay.off("coding")
    visitor.send(again.form("/models/switch"))

    assert "You are not signed in any more. Sign in again: what you typed is kept." in late.text
    assert "Nothing was sent yet." in again.text
    assert again.form("/models/switch").fields["note"] == '"typed" for\nlong <b>'
    assert (before, desk.overlay.off("coding")) == (frozenset(), frozenset({"lookup"}))


@pytest.mark.parametrize("kept", ["", "x", "[]", '{"path": "/v1/receipts", "form": {}}', '{"path": 1, "form": 2}'])
def test_nothing_else_is_kept_over_a_sign_in(still: Desk, kept: str) -> None:
    """Only a form of our own pages."""
    assert Visitor(still, role="").post("/signin", token="viewer", kept=kept).status == 303


def test_a_form_that_is_too_long_is_refused(still: Desk) -> None:
    """Before anybody is asked who sent it."""
    assert Visitor(still).post("/models/switch", note="x" * FORM_BYTES).status == 413


# errors


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (BadRequest("This cannot be used: 'x'."), 400, "This cannot be used: 'x'."),
        (StoreUnavailable("The store is away."), 503, "The store is away."),
        (ConfigError([Problem("plan", 3, 5, "governance[0].kind", "unknown kind")]), 422, "Line 3, column 5"),
    ],
    ids=["bad request", "no store", "bad plan"],
)
def test_an_error_loses_nothing_that_was_typed(still: Desk, error: Exception, status: int, told: str) -> None:
    """What is wrong and where is told, and everything that was sent stands in a form, to be sent again."""
    visitor = Visitor(still, pages=(*fails(error), *PAGES))
    csrf = visitor.get("/models").form("/signout").fields["csrf"]

    seen = visitor.post("/live/odd", csrf=csrf, source="\n a: <b>\nb: &", note="why")

    assert seen.status == status
    assert told in seen.text
    assert seen.form("/live/odd").fields == {"csrf": csrf, "source": "\n a: <b>\nb: &", "note": "why"}


def test_an_unexpected_error_is_told_without_its_words(desk: Desk) -> None:
    """The log has them."""
    visitor = Visitor(desk, pages=fails(RuntimeError("secret words")))

    with pytest.raises(RuntimeError, match="secret words"):
        visitor.get("/live/odd")


def test_a_page_asks_with_the_rights_of_its_visitor(still: Desk) -> None:
    """Also where a page forgot to ask for the role: the admin route does not."""

    def handler(visit: Visit) -> Answer:
        visit.ask("POST", "/v1/wardwright/stops", body={"kind": "session", "name": "s1"})
        return visit.redirect("/live")

    visitor = Visitor(still, "viewer", (Page("GET", "/live/odd", "viewer", handler),))

    assert visitor.get("/live/odd").status == 403
    assert still.overlay.stops() == ()


def test_a_notice_is_shown_once(desk: Desk) -> None:
    """On the page after the form; it cannot be put there by a link."""
    pages: Any = (
        Page("GET", "/live/odd", "viewer", lambda visit: visit.redirect("/models", "Done <b>; größer.")),
        *PAGES,
    )
    visitor = Visitor(desk, pages=pages)

    visitor.get("/live/odd")

    assert "Done &lt;b&gt;; größer." in visitor.get("/models").html
    assert "Done" not in visitor.get("/models").text


# files


def test_files_are_kept_by_their_content(still: Desk) -> None:
    """For ever under their digest; asked for again under their bare name; nothing is sent twice."""
    visitor = Visitor(still, role="")
    page = visitor.get("/signin").html
    named = page.partition('<link rel="stylesheet" href="')[2].partition('"')[0]

    kept, bare = visitor.get(named), visitor.get("/static/style.css")

    assert kept.answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (kept.answer.body, bare.answer.headers["cache-control"]) == (bare.answer.body, "no-cache")
    again = visitor.get("/static/style.css", if_none_match=bare.answer.headers["etag"])
    assert (again.status, again.answer.body) == (304, b"")


@pytest.mark.parametrize("name", ["../__init__.py", "..%2f__init__.py", "none.css", "", ".css", "style.css/x"])
def test_no_other_file_is_served(still: Desk, name: str) -> None:
    """Only those of one folder, by their plain names."""
    assert Visitor(still, role="").get(f"/static/{name}").status == 404


# what a stranger, a thief or another program may try


def test_a_copy_of_the_cookie_opens_nothing_after_signing_out(desk: Desk) -> None:
    """Signing in again is a new sign-in; the old one stays ended."""
    visitor = Visitor(desk)
    copied = dict(visitor.cookies)
    visitor.send(visitor.get("/models").form("/signout"))

    visitor.cookies = copied
    assert visitor.get("/models").status == 303
    visitor.post("/signin", token="operator")
    assert visitor.get("/models").status == 200


def test_a_cookie_that_was_set_before_is_replaced_by_signing_in(still: Desk) -> None:
    """Nobody can hand somebody a sign-in that he knows himself."""
    visitor = Visitor(still, role="viewer")
    before = visitor.cookies[COOKIE]

    visitor.post("/signin", token="operator")

    assert visitor.cookies[COOKIE] != before


def test_a_browser_that_came_by_tls_keeps_the_cookie_to_it(still: Desk) -> None:
    """Also where something in front of the gateway speaks it."""
    visitor = Visitor(still, role="")
    signed = visitor.post("/signin", {"origin": "https://gateway.test"}, token="operator")

    assert signed.answer.headers["set-cookie"].endswith("; SameSite=Strict; Secure")


@pytest.mark.parametrize("cookie", ["Approve%20everything.", "0.Approve%20everything.", "." * 40, "%ff", "\u00fc.x"])
def test_a_notice_of_another_program_is_not_shown(still: Desk, cookie: str) -> None:
    """Whoever can set cookies for this host cannot make the gateway say something."""
    visitor = Visitor(still)
    visitor.cookies[NOTICE] = cookie

    assert 'class="notice"' not in visitor.get("/models").html


def test_a_file_that_is_not_there_is_told_whatever_its_name(still: Desk) -> None:
    """Before anybody has signed in."""
    visitor = Visitor(still, role="")

    names = ["x" * 3000 + ".css", "..%2f..%2fpages.py", "%00.js", "page.js%00"]
    assert {visitor.get(f"/static/{name}").status for name in names} == {404}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/live/release", {"note": "x"}),
        ("/live/release", {"note": "x", "session_id": "a\nb"}),
        ("/models/switch", {"enabled": "true"}),
    ],
)
def test_a_name_that_nothing_can_have_is_told(still: Desk, path: str, fields: dict[str, str]) -> None:
    """404, with what was typed; the gateway has not failed."""
    visitor = Visitor(still)
    csrf = visitor.get("/models").form("/signout").fields["csrf"]

    seen = visitor.post(path, csrf=csrf, **fields)

    assert seen.status == 404
    assert seen.form(path).fields.items() >= fields.items()


LIGHT = {
    "POST /live/stop",
    "POST /live/unstop",
    "POST /live/release",
    "POST /approvals/{handle}",
    "POST /models/switch",
    "POST /policy/rollback",
    "POST /policy/activate",
}


def test_no_form_of_a_viewer_takes_the_threads_of_approvals_and_stops() -> None:
    """What works for as long as somebody makes it work is heavy: there is one thread for it, and others for the rest."""
    light = {f"{page.method} {page.path}" for page in PAGES if page.method == "POST" and not page.heavy}

    assert light == LIGHT
