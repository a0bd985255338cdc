"""The pages of a whole gateway: behind the guard, with real keys, on the paths that nothing else has."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from wardwright import cli
from wardwright.http.pages import COOKIE
from wardwright.http.service import Service
from wardwright.http.start import Start
from wardwright.overlay import Stop

from .gateway_fixture import Answer, Running, running, said

PLAN = """\
providers: {double: {kind: scripted}}
models:
  - model_id: coding
    targets: [{model: big, provider: double}]
    server_tools: [{name: wardwright_policy_cache_status}]
    governance:
      - {id: ask, kind: tool_selector, action: require_approval, tool: {name: deploy, phase: planning}, message: Ask first.}
"""
HOST = "127.0.0.1:8787"
FORM = "application/x-www-form-urlencoded"
ASK = {"model": "coding", "messages": [{"role": "user", "content": "ship it"}]}


async def visit(gateway: Running, path: str, cookie: str = "", fields: Any = None, **headers: str) -> Answer:
    sent = {"host": HOST, **({"cookie": f"{COOKIE}={cookie}"} if cookie else {})}
    if fields is not None:
        sent |= {"content-type": FORM, "origin": f"http://{HOST}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    body = b"" if fields is None else urlencode(fields).encode()
    return await gateway.ask("GET" if fields is None else "POST", path, body, sent)


async def signed_in(gateway: Running, token: str | None = None) -> str:
    answer = await visit(gateway, "/signin", fields={"token": token or gateway.service.admin_token})
    return answer.headers["set-cookie"].partition(f"{COOKIE}=")[2].partition(";")[0]


def field(answer: Answer, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', answer.body.decode())
    assert found is not None
    return unescape(found[1])


def test_what_waits_is_approved_from_the_page_and_then_released(tmp_path: Path) -> None:
    """G23: the retry gets that very reply, without asking the provider again."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said("chat_completions", "", ("a", "deploy", {"to": "<production>"}))]
        headers = {"host": HOST, "content-type": "application/json", "x-wardwright-session-id": "monday"}
        held = await gateway.ask("POST", "/v1/chat/completions", orjson.dumps(ASK), headers)
        cookie = await signed_in(gateway)
        page = await visit(gateway, "/live", cookie)
        handle = held.json["error"]["approval"]
        fields = {"csrf": field(page, "csrf"), "seen": field(page, "seen"), "note": "on call", "decision": "approve"}
        decided = await visit(gateway, f"/approvals/{handle}", cookie, fields)
        released = await gateway.ask("POST", "/v1/chat/completions", orjson.dumps(ASK), headers)

        assert held.status == 403
        assert b"&lt;production&gt;" in page.body
        assert (decided.status, decided.headers["location"]) == (303, "/live")
        assert released.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "deploy"
        assert len(gateway.provider.sent) == 1

    running(tmp_path, PLAN, story)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "http://evil.test"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
        ({"host": "evil.test"}, "host_not_allowed"),
        ({"content_type": "application/json"}, "unsupported_media_type"),
        ({"content_type": "text/plain"}, "unsupported_media_type"),
    ],
    ids=["another site", "no site", "another name", "JSON", "text"],
)
def test_a_form_from_elsewhere_does_not_reach_the_pages(tmp_path: Path, headers: dict[str, str], code: str) -> None:
    """Not even with a cookie and the right field."""

    async def story(gateway: Running) -> None:
        cookie = await signed_in(gateway)
        csrf = field(await visit(gateway, "/live", cookie), "csrf")
        fields = {"csrf": csrf, "kind": "tool", "name": "x"}

        refused = await visit(gateway, "/live/stop", cookie, fields, **headers)

        assert refused.json["error"]["code"] == code
        assert gateway.service.overlay.stops() == ()

    running(tmp_path, PLAN, story)


def test_forms_are_taken_by_pages_alone(tmp_path: Path) -> None:
    """What models and operators are asked over stays JSON."""

    async def story(gateway: Running) -> None:
        for path in ("/v1/chat/completions", "/v1/wardwright/stops", "/mcp/x", "/nothing"):
            answer = await visit(gateway, path, fields={"a": "b"})
            assert (path, answer.status) == (path, 415)

    running(tmp_path, PLAN, story)


def test_a_cookie_does_not_open_the_admin_api(tmp_path: Path) -> None:
    """G63: that always needs the token; a browser alone cannot be made to ask it."""

    async def story(gateway: Running) -> None:
        cookie = await signed_in(gateway)

        assert (await visit(gateway, "/v1/receipts", cookie)).status == 401

    running(tmp_path, PLAN, story)


def test_the_token_is_in_no_page_and_not_to_be_read_in_the_cookie(tmp_path: Path) -> None:
    """Secrets stay where they are."""

    async def story(gateway: Running) -> None:
        token = gateway.service.admin_token or ""
        cookie = await signed_in(gateway)
        pages = [await visit(gateway, path, cookie) for path in ("/live", "/receipts", "/models", "/signin")]

        assert [page.status for page in pages] == [200] * 4
        assert not any(token.encode() in page.body for page in pages)
        assert token not in cookie

    running(tmp_path, PLAN, story)


def test_a_cookie_of_another_gateway_opens_nothing(tmp_path: Path) -> None:
    """Each seals with its own keys."""
    cookies: list[str] = []

    async def take(gateway: Running) -> None:
        cookies.append(await signed_in(gateway))

    async def use(gateway: Running) -> None:
        assert (await visit(gateway, "/live", cookies[0])).status == 303

    for name, story in (("one", take), ("two", use)):
        (tmp_path / name).mkdir()
        running(tmp_path / name, PLAN, story)


def test_a_cookie_is_kept_over_a_restart(tmp_path: Path) -> None:
    """The keys are; nobody signs in again because of a deployment."""
    cookies: list[str] = []

    async def take(gateway: Running) -> None:
        cookies.append(await signed_in(gateway))

    async def use(gateway: Running) -> None:
        assert (await visit(gateway, "/live", cookies[0])).status == 200

    running(tmp_path, PLAN, take)
    running(tmp_path, PLAN, use)


def test_a_plan_activated_from_a_page_is_followed_before_the_answer(tmp_path: Path) -> None:
    """Whoever looks at the next page sees the new plan."""

    async def story(gateway: Running) -> None:
        cookie = await signed_in(gateway)
        models = await visit(gateway, "/models", cookie)
        activated = PLAN.replace("model_id: coding", "model_id: renamed")
        page = await visit(gateway, "/policy/edit", cookie)
        fields = {"csrf": field(page, "csrf"), "source": activated, "expected_epoch": field(page, "expected_epoch")}
        done = await visit(gateway, "/policy/activate", cookie, fields)
        after = await visit(gateway, "/models", cookie)

        assert b"renamed" not in models.body
        assert done.status in (200, 303)
        assert b"renamed" in after.body

    running(tmp_path, PLAN, story)


def test_serve_prints_a_link_that_signs_in_at_the_first_start_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Later starts tell where the pages are, and no start logs the token."""

    def started(start: Start, tell: Callable[[Service, int], None]) -> None:
        service = start.service()
        tell(service, start.port)
        service.store.close()

    monkeypatch.setattr(cli, "start", started)
    arguments = ["serve", "--db", str(tmp_path / "ward.db"), "--host", "::1", "--port", "8123"]
    with caplog.at_level("DEBUG"):
        for _ in range(2):
            with pytest.raises(SystemExit):
                cli.main(arguments)

    lines = capsys.readouterr().out.splitlines()
    token = next(line for line in lines if line.startswith("Admin token")).partition(": ")[2]
    assert [line for line in lines if line.startswith("Workbench")] == [
        f"Workbench, signed in by this link: http://[::1]:8123/signin#{token}",
        f"Workbench: http://[::1]:8123/signin (admin token lost? 'wardwright keys admin {tmp_path / 'ward.db.keys'}' makes another; "
        "then SIGHUP)",
    ]
    assert token not in caplog.text


def test_a_stop_and_a_rejection_are_told_on_their_receipts(tmp_path: Path) -> None:
    """Not as something that a rule has refused."""

    async def story(gateway: Running) -> None:
        service = gateway.service
        gateway.provider.replies = [said("chat_completions", "", ("a", "deploy", {}))]
        headers = {"host": HOST, "content-type": "application/json", "x-wardwright-session-id": "monday"}
        held = await gateway.ask("POST", "/v1/chat/completions", orjson.dumps(ASK), headers)
        cookie = await signed_in(gateway)
        page = await visit(gateway, "/live", cookie)
        fields = {"csrf": field(page, "csrf"), "seen": field(page, "seen"), "decision": "reject"}
        await visit(gateway, f"/approvals/{held.json['error']['approval']}", cookie, fields)
        rejected = await gateway.ask("POST", "/v1/chat/completions", orjson.dumps(ASK), headers)
        service.overlay.set_stop(Stop("session", "monday"), "op", "", service.now_ms())
        stopped = await gateway.ask("POST", "/v1/chat/completions", orjson.dumps(ASK), headers)

        for answer, told in (
            (held, "Held for an approval because rule ask asks for an approval of"),
            (rejected, "Blocked: This was rejected by an operator."),
            (stopped, "Blocked: An operator has stopped this session."),
        ):
            receipt = await visit(gateway, f"/receipts/{answer.headers['x-wardwright-receipt-id']}", cookie)
            assert f'<p class="because">{told}' in receipt.body.decode()

    running(tmp_path, PLAN, story)
