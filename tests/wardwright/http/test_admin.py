"""The operators' door: who may ask what, that answers are those of the command line, and that bad input is told, never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import approvals, receipts
from wardwright.approvals import Held
from wardwright.cli import main
from wardwright.errors import WireError
from wardwright.history import Delta, scope_key
from wardwright.http import admin_plans
from wardwright.http.admin_routes import ROUTES
from wardwright.http.route import Route
from wardwright.overlay import Overlay, Stop
from wardwright.store import ReceiptQuery
from wardwright.wire.turn import Caller

from .desk import NOW, PLAN, Desk

OTHER = PLAN.replace("deny_call, tool: {namespace: shell}", "block, tool: {namespace: shell}")
ADMIN = "/v1/wardwright"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def cli(desk: Desk, tmp_path: Path, capsysbinary: Any) -> Any:
    """What the command line says about the same store."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "other.yaml").write_text(OTHER)

    def run(*arguments: str) -> Any:
        with pytest.raises(SystemExit):
            main([*arguments, "--json"])
        return orjson.loads(capsysbinary.readouterr().out)

    return run


def address(route: Route) -> str:
    """A path of the route with something in every place."""
    return (
        route.path.replace("{epoch}", "1")
        .replace("{model_id*}", "coding")
        .replace("{", "")
        .replace("}", "")
        .replace("*", "")
    )


def admin_actions(desk: Desk) -> list[tuple[str, str, str]]:
    found = desk.store.receipts(ReceiptQuery({"kind": ["admin"]})).receipts
    told = [receipts.load(one.row.body) for one in reversed(found)]
    return [(one["caller"]["principal"], one["admin"]["action"], one["admin"]["target"]) for one in told]


def hold(desk: Desk, principal: str = "key-1") -> Held:
    scope = scope_key("session_id", Caller(tenant="acme", session_id="s1"))
    calls = ({"name": "shell_exec", "arguments": '{"cmd":"rm"}', "rule_id": "ask", "message": "Ask first."},)
    held = Held(
        approvals.handle_of(desk.keyring, scope, "d"),
        scope,
        "chat_completions",
        "coding",
        False,
        "d",
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


# who may ask


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_nothing_is_answered_without_a_token(desk: Desk, route: Route) -> None:
    """G63: every question needs one, and says how to send it."""
    answer = desk(route.method, address(route), {}, role="nobody")

    assert (answer.status, answer.error["code"]) == (401, "invalid_admin_token")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.role != "viewer"], ids=lambda route: f"{route.method} {route.path}"
)
def test_a_lower_role_is_refused(desk: Desk, route: Route) -> None:
    """G63: what decides or changes something needs more than looking."""
    lower = "viewer" if route.role == "approver" else "approver"

    assert desk(route.method, address(route), {}, role=lower).status == 403
    assert admin_actions(desk) == []


def test_only_looking_is_for_viewers() -> None:
    """No route of a viewer changes anything: they read, or ask what would be."""
    changing = {f"{one.method} {one.path}" for one in ROUTES if one.method != "GET" and one.role == "viewer"}

    assert changing == {
        f"POST {ADMIN}/{name}" for name in ("simulate", "replay", "diff", "plans/validate", "plans/blind")
    }


# what was sent


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "message"),
    [
        ("GET", "/v1/nothing", {}, 404, "There is nothing at this address. /openapi.json lists what there is."),
        ("DELETE", "/v1/receipts", {}, 405, "Send this with GET."),
        ("GET", "/v1/receipts", {"limit": "0"}, 400, "This cannot be used: parameter 'limit': must be at least 1."),
        ("GET", "/v1/receipts", {"limit": "x"}, 400, "This cannot be used: parameter 'limit': expected integer, got string."),
        ("GET", "/v1/receipts", {"zzz": "x"}, 400, "This cannot be used: unknown parameter 'zzz'."),
        ("GET", "/v1/receipts", {"limit": ["1", "2"]}, 400, "This cannot be used: parameter 'limit' is given 2 times."),
        ("GET", "/v1/receipts", {"tool_nam": "x"}, 400, "This cannot be used: unknown parameter 'tool_nam' (did you mean 'tool_name'?)."),
        ("GET", "/v1/receipts", {"since": "2026-99-99"}, 400, "'since' must be a date (2026-12-31), a time (2026-12-31T18:00:00Z) or milliseconds."),
        ("DELETE", f"{ADMIN}/stops", {"kind": "tool"}, 400, "This cannot be used: missing parameter 'name'."),
        ("GET", "/v1/receipts/rcpt_0", {}, 404, "There is no receipt 'rcpt_0'."),
        ("GET", f"{ADMIN}/sessions/x", {}, 404, "There is no session 'x'."),
        ("GET", f"{ADMIN}/models/x/y", {}, 404, "There is no model 'x/y'. Known: coding."),
        ("GET", f"{ADMIN}/plans/7", {}, 404, "There is no plan of epoch 7."),
        ("GET", f"{ADMIN}/plans/²", {}, 404, "There is no plan of epoch '²'."),
        ("GET", f"{ADMIN}/approvals/apr_0", {}, 404, "Nothing waits under apr_0: it was decided or has expired."),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_told(
    desk: Desk, method: str, path: str, given: dict[str, Any], status: int, message: str
) -> None:
    """One sentence a person can act on, in the one error shape."""
    answer = desk(method, path, **given)

    assert (answer.status, answer.error["message"]) == (status, message)
    assert set(answer.error) == {"type", "code", "message"}


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"{", 400, "The body is not JSON in valid UTF-8: line 1, column 2."),
        (b'{"transcript": "\xff"}', 400, "The body is not JSON in valid UTF-8: line 1, column 1."),
        (b"[]", 400, "This cannot be used: expected object, got array."),
        (b"", 400, "This cannot be used: missing 'transcript'."),
        (b'{"transcript": [], "surfac": 1}', 400, "This cannot be used: unknown 'surfac'."),
        (b'{"transcript": [{"role": "prophet"}]}', 400, None),
        (b'{"transcript": [{"role": "assistant", "tool_calls": [{"name": "x", "arguments": ' + b"[" * 900 + b"]" * 900 + b"}]}]}", 400, "nested too deeply, or not JSON"),
        (b'{"transcript": [], "source": "governance: [{kind: nothing}]\\n"}', 422, "The plan has 1 problem; nothing was changed."),
        (b'{"transcript": [], "session_id": "unheard-of"}', 404, "There is no session 'unheard-of' in the store."),
        (b'{"transcript": [], "source": "models: [{model_id: a}, {model_id: b}]\\n", "model": "c"}', 400, "The plan has no model 'c'. Known: a, b."),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_used_is_told(desk: Desk, raw: bytes, status: int, message: str | None) -> None:
    """Not JSON, not what the route takes, no conversation, no plan: each in its own words."""
    answer = desk("POST", f"{ADMIN}/simulate", raw=raw)

    assert answer.status == status
    assert message is None or answer.error["message"] == message


def test_only_json_is_read(desk: Desk) -> None:
    """G63: a form that a page of another site could send is refused before it is read."""
    answer = desk("POST", f"{ADMIN}/stops", raw=b"{}", headers={"content-type": "text/plain"})

    assert (answer.status, answer.error["code"]) == (415, "json_only")
    assert answer.error["message"] == "Send JSON, with the header Content-Type: application/json."


def test_a_long_body_is_refused(desk: Desk) -> None:
    """Before it is all in memory."""
    answer = desk("POST", f"{ADMIN}/plans/validate", {"source": "x" * (8 * 1024 * 1024)})

    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_a_plan_s_problems_come_with_their_places(desk: Desk) -> None:
    """422, every problem with line and column."""
    source = "governance:\n  - {id: a, kind: tool_selectr, action: block, tool: {name: x}}\n"
    answer = desk("POST", f"{ADMIN}/plans/activate", {"source": source, "expected_epoch": 0})

    assert answer.status == 422
    (problem,) = answer.error["problems"]
    assert (problem["line"], problem["path"], problem["severity"]) == (2, "governance[0].kind", "error")
    assert desk.store.plan_epoch() is None


def test_an_outage_is_a_503(desk: Desk) -> None:
    """G19: a store that cannot be read is told as such, in the same shape."""
    desk.store.close()
    answer = desk("GET", "/v1/receipts")

    assert (answer.status, answer.error["type"], answer.error["code"]) == (
        503,
        "governance_unavailable",
        "governance_unavailable",
    )


def test_answers_are_kept_by_nobody(desk: Desk) -> None:
    """No cache between here and the operator keeps one, and no browser guesses what it is."""
    headers = desk("GET", "/v1/receipts").headers

    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


# receipts, and questions over them: the same answers as the command line


def test_receipts_are_listed_as_the_command_lists_them(desk: Desk, cli: Any) -> None:
    """G33: filters, time, pages."""
    for session in ("a", "b", "a"):
        desk.exchange("shell_exec", "browser_open", session=session)

    told = desk.get("/v1/receipts", session_id="a", tool_name=["exec", "nothing"], limit=1)
    assert told == cli(
        "receipts", "list", "--db", str(desk.path), "--where", "session_id=a", "--where", "tool_name=exec",
        "--where", "tool_name=nothing", "--limit", "1",
    )  # fmt: skip
    assert len(told["receipts"]) == 1
    rest = desk.get("/v1/receipts", session_id="a", before=told["next_before"])
    assert [one["receipt"]["caller"]["session_id"] for one in rest["receipts"]] == ["a"]
    assert desk.get("/v1/receipts", until=str(NOW))["receipts"] == []


def test_one_receipt_explains_itself(desk: Desk) -> None:
    """As it is stored, in words, and its place in the chain."""
    receipt_id = desk.exchange("shell_exec")
    told = desk.get(f"/v1/receipts/{receipt_id}")

    assert told["receipt"]["id"] == receipt_id
    assert told["explanation"].splitlines()[-1] == "In the end: released."
    assert (told["chain"]["sequence"], told["cursor"]) == (1, 1)


def test_an_erased_receipt_is_gone_and_says_so(desk: Desk) -> None:
    """410 with the hash that still stands for it."""
    receipt_id = desk.exchange("shell_exec")
    desk.store.forget_tenant("acme")
    answer = desk("GET", f"/v1/receipts/{receipt_id}")

    assert (answer.status, answer.error["code"]) == (410, "erased")


def test_the_export_is_the_command_s(desk: Desk, capsysbinary: Any) -> None:
    """Lines of JSON, byte for byte."""
    for _ in range(70):
        desk.exchange()
    answer = desk("GET", "/v1/receipts/export", status="released")
    with pytest.raises(SystemExit):
        main(["receipts", "export", "--db", str(desk.path), "--where", "status=released"])

    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.body == capsysbinary.readouterr().out
    assert answer.body.count(b"\n") == 70


def test_verifying_is_the_command_s(desk: Desk, cli: Any) -> None:
    """The same walk, with the gateway's own keys."""
    desk.exchange("shell_exec")

    assert desk.get("/v1/receipts/verify") == cli("receipts", "verify", "--db", str(desk.path))


TALK = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "tool_calls": [{"id": "b", "name": "shell_exec", "arguments": {}}]},
]


def test_a_simulation_is_the_command_s(desk: Desk, cli: Any, tmp_path: Path) -> None:
    """G51: by the plan in force, or by another; nothing is kept."""
    (tmp_path / "talk.json").write_bytes(orjson.dumps(TALK))
    for source, file in ((None, "plan.yaml"), (OTHER, "other.yaml")):
        body = {"transcript": TALK, "surface": "phase"} | ({} if source is None else {"source": source})
        told = desk.post(f"{ADMIN}/simulate", body)
        said = cli("simulate", "--config", str(tmp_path / file), str(tmp_path / "talk.json"), "--surface", "phase")
        for step in (*told["steps"], *said["steps"]):
            del step["at_ms"]
        assert told == said
    assert desk.get("/v1/receipts")["receipts"] == []


def test_a_simulation_goes_on_from_a_stored_session(desk: Desk) -> None:
    """Two calls are remembered with the session's own key, so the third of the simulation is a loop."""
    desk.exchange("mail_read", "mail_read")
    talk = [{"role": "assistant", "tool_calls": [{"id": "z", "name": "mail_read", "arguments": {}}]}]

    alone = desk.post(f"{ADMIN}/simulate", {"transcript": talk})
    after = desk.post(f"{ADMIN}/simulate", {"transcript": talk, "session_id": "s1", "model": "coding"})
    assert (alone["blocked_calls"], [one["rules"] for one in after["blocked_calls"]]) == ([], [["loops"]])


def test_replay_diff_and_report_are_the_command_s(desk: Desk, cli: Any, tmp_path: Path) -> None:
    """Over the same receipts the same answers."""
    for name in ("shell_exec", "mail_read"):
        desk.exchange(name)
    db, plan, other = str(desk.path), str(tmp_path / "plan.yaml"), str(tmp_path / "other.yaml")

    assert desk.post(f"{ADMIN}/replay", {"source": OTHER}) == cli("replay", "--config", other, "--db", db)
    told = desk.post(f"{ADMIN}/diff", {"after": OTHER, "since": "2020-01-01", "session_id": "s1"})
    assert told == cli("diff", plan, other, "--db", db, "--since", "2020-01-01", "--session", "s1")
    assert told["counts"]["changed"] == 1
    assert desk.get(f"{ADMIN}/report") == cli("report", "--config", plan, "--db", db)


# plans


def test_validating_is_the_command_s_check(desk: Desk, cli: Any, tmp_path: Path) -> None:
    """Same problems, same cases; whatever is wrong, the answer is the answer."""
    cases = (
        "- case: shell is denied\n  given:\n    reply: {tool_calls: [{id: b, name: shell_exec, arguments: {}}]}\n"
        "  expect: {ruling: block}\n"
    )
    (tmp_path / "cases.yaml").write_text(cases)
    told = desk.post(f"{ADMIN}/plans/validate", {"source": PLAN, "cases": cases})
    said = cli("check", str(tmp_path / "plan.yaml"), str(tmp_path / "cases.yaml"))

    for one in (told, said):
        for entry in (*one["problems"], *one["cases"]):
            del entry["file"]
    assert told == said
    assert (told["ok"], told["plan_hash"], told["rules"]) == (False, desk.plan.plan_hash, 3)
    assert desk.post(f"{ADMIN}/plans/validate", {"source": "{"})["ok"] is False


def test_questions_are_proved_as_the_command_proves_them(desk: Desk, cli: Any, tmp_path: Path) -> None:
    """G51: the same verdicts and the same problems, sent as YAML."""
    questions = "- question: can a shell run?\n  run: {namespace: shell}\n- question: can a page be read?\n  run: {namespace: browser}\n"
    (tmp_path / "questions.yaml").write_text(questions)
    told = desk.post(f"{ADMIN}/plans/validate", {"source": PLAN, "questions": questions})
    said = cli("check", str(tmp_path / "plan.yaml"), str(tmp_path / "questions.yaml"))

    assert [one["verdict"] for one in told["proofs"]] == ["holds", "counter_example"]
    assert told["proofs"] == said["proofs"]
    assert [one["message"] for one in told["problems"]] == [one["message"] for one in said["problems"]]
    assert told["ok"] is False


def test_questions_that_take_too_long_here_stay_unknown(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that rules has no time to search: all questions share one bound."""
    monkeypatch.setattr(admin_plans, "QUESTION_GATES", 5)
    questions = "- {question: can a shell run, run: {namespace: shell}}\n"

    (proof,) = desk.post(f"{ADMIN}/plans/validate", {"source": PLAN, "questions": questions})["proofs"]

    assert (proof["verdict"], proof["reasons"][-1][:14]) == ("unknown", "stopped after ")


def test_questions_that_cannot_be_read_are_a_problem(desk: Desk) -> None:
    """As everything else that is wrong with what was sent."""
    told = desk.post(f"{ADMIN}/plans/validate", {"source": PLAN, "questions": "- {question: what}"})

    assert (told["ok"], told["proofs"]) == (False, [])
    assert "missing key 'run'" in [one["message"] for one in told["problems"]]


def test_what_a_plan_cannot_see_is_the_command_s(desk: Desk, cli: Any, tmp_path: Path) -> None:
    """Of a plan that is sent, and of the one in force."""
    sent = desk.post(f"{ADMIN}/plans/blind", {"source": PLAN})

    assert sent["blind"] == cli("check", "--blind", str(tmp_path / "plan.yaml"))["blind"]
    assert desk.post(f"{ADMIN}/plans/blind", {}) == sent
    assert desk("POST", f"{ADMIN}/plans/blind", {"source": "{"}).status == 422


def test_a_plan_that_does_not_open_is_not_activated(desk: Desk) -> None:
    """It compiles, but something it needs is away: nothing is stored, and nothing is on record."""
    desk.closed = "the server 'files' cannot be reached"
    answer = desk("POST", f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 0})

    assert (answer.status, answer.error["message"]) == (400, desk.closed)
    assert desk.get(f"{ADMIN}/plans")["current"]["epoch"] == 0
    assert admin_actions(desk) == []


def test_a_plan_is_activated_for_everybody_and_followed_here_at_once(desk: Desk) -> None:
    """G63: the epoch rises, this process rules by it, and the chain says who did it."""
    made = desk.post(f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 0, "note": "stricter"})

    assert made["epoch"] == 1
    assert desk.plan.plan_hash == made["plan_hash"] == desk.compile(OTHER.encode()).plan_hash
    assert admin_actions(desk) == [
        ("operator", "activate_plan", made["plan_hash"]),
        ("operator", "plan_activated", "1"),
    ]
    current = desk.get(f"{ADMIN}/plans")
    assert current["current"] == {"epoch": 1, "plan_hash": made["plan_hash"], "models": ["coding"], "rules": 3}
    assert current["history"] == [made]
    assert desk.get(f"{ADMIN}/plans/1")["source"] == OTHER


def test_a_plan_that_this_process_cannot_follow_is_told(desk: Desk) -> None:
    """It compiles, but a secret it names is not here: the operator reads it in the answer, and the old plan goes on ruling."""
    before = desk.plan

    async def fail(epoch: Any) -> None:
        raise WireError("the environment variable KEY is not set")

    desk.overlay = Overlay(desk.store, now_ms=desk.now_ms, on_plan=fail)
    made = desk.post(f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 0})

    assert (made["epoch"], made["problem"]) == (1, "the environment variable KEY is not set")
    assert desk.plan is before


def test_two_operators_cannot_activate_over_each_other(desk: Desk) -> None:
    """The second one looked at an older epoch, and is asked to look again."""
    desk.post(f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 0})
    answer = desk("POST", f"{ADMIN}/plans/activate", {"source": PLAN, "expected_epoch": 0})

    assert (answer.status, answer.error["message"]) == (409, "The plan is at epoch 1, not 0: look at it again.")


def test_a_roll_back_is_a_new_epoch(desk: Desk) -> None:
    """G63: history only grows: going back to the first plan is the third epoch."""
    desk.post(f"{ADMIN}/plans/activate", {"source": PLAN, "expected_epoch": 0})
    desk.post(f"{ADMIN}/plans/activate", {"source": OTHER, "expected_epoch": 1})
    made = desk.post(f"{ADMIN}/plans/rollback", {"expected_epoch": 2})

    assert (made["epoch"], made["plan_hash"]) == (3, desk.compile(PLAN.encode()).plan_hash)
    assert desk("POST", f"{ADMIN}/plans/rollback", {"expected_epoch": 3, "epoch": 3}).status == 400
    assert desk("POST", f"{ADMIN}/plans/rollback", {"expected_epoch": 3, "epoch": 0}).status == 404
    assert desk("POST", f"{ADMIN}/plans/rollback", {"expected_epoch": 0}).status == 404


# sessions


def test_a_session_tells_its_state_windows_and_facts(desk: Desk) -> None:
    """G63: where its machines stand and why, what rules have counted, and what it did."""
    desk.exchange("browser_open")
    last = desk.exchange("shell_exec", status="blocked")
    told = desk.get(f"{ADMIN}/sessions/s1", limit=1)

    (state,) = told["states"]
    assert (state["machine"], state["state"], state["initial"], state["by"]) == (
        "default",
        "reviewing",
        False,
        "review",
    )
    assert told["caller"] == {"tenant": "acme", "session_id": "s1", "principal": "key-1"}
    assert (told["model"], told["stopped"]) == ("coding", None)
    counted = {
        rule: one["value"] for one in told["scopes"][0]["windows"] for rule in one["rules"] if one["value"] == [1]
    }
    assert "loops" in counted
    (exchange,) = told["exchanges"]
    assert (exchange["receipt_id"], exchange["status"]) == (last, "blocked")
    assert [fact["raw_name"] for fact in exchange["facts"]] == ["shell_exec"]


def test_a_session_is_the_tenant_s_that_is_asked_for(desk: Desk) -> None:
    """Two tenants may use one name."""
    desk.exchange("browser_open", tenant="acme")
    desk.exchange(tenant="other")

    assert desk.get(f"{ADMIN}/sessions/s1")["tenant"] == "other"
    assert desk.get(f"{ADMIN}/sessions/s1", tenant="acme")["states"][0]["state"] == "reviewing"


def test_a_stuck_session_is_released_and_it_is_on_record(desk: Desk) -> None:
    """G63: its machines stand at their beginning again; counters only if they are named; nothing of others changes."""
    desk.exchange("browser_open", "browser_open")
    desk.exchange("browser_open", session="s2")
    told = desk.post(f"{ADMIN}/sessions/s1/release", {"note": "false alarm"})

    assert (told["machines"], told["rules"], told["registers"]) == (["default"], [], 1)
    assert desk.get(f"{ADMIN}/sessions/s1")["states"][0]["state"] == "active"
    assert desk.get(f"{ADMIN}/sessions/s2")["states"][0]["state"] == "reviewing"
    assert admin_actions(desk) == [("operator", "release_session", "s1")]
    assert desk.get("/v1/receipts", session_id="s1", kind="admin")["receipts"][0]["receipt"]["admin"]["details"] == {
        "machines": ["default"],
        "rules": [],
        "routes": False,
        "registers": 1,
        "note": "false alarm",
    }


def test_a_counter_begins_anew_when_its_rule_is_named(desk: Desk) -> None:
    """After two equal calls the third would be a loop; released, it passes."""
    desk.exchange("mail_read", "mail_read")
    told = desk.post(f"{ADMIN}/sessions/s1/release", {"note": "go on", "rules": ["loops"]})
    assert (told["machines"], told["rules"]) == ([], ["loops"])

    again = desk.exchange("mail_read")
    assert desk.get(f"/v1/receipts/{again}")["receipt"]["decision"]["decision"] == "allow"


def test_what_cannot_be_released_is_named(desk: Desk) -> None:
    """Unknown machines and rules, all at once; a release says why."""
    desk.exchange("browser_open")
    answer = desk("POST", f"{ADMIN}/sessions/s1/release", {"note": "x", "rules": ["lops"], "machines": ["m"]})

    assert answer.error["message"] == (
        "This cannot be released: 'm' is no state machine of the session's own; 'lops' is no rule of this model."
    )
    assert desk("POST", f"{ADMIN}/sessions/s1/release", {}).status == 400


def test_a_release_can_end_the_session_s_stop(desk: Desk) -> None:
    """Stopped for every tenant or for its own: both end, each with a receipt."""
    desk.exchange()
    desk.overlay.set_stop(Stop("session", "s1"), "eve", "", NOW)
    desk.overlay.set_stop(Stop("session", "s1", "acme"), "eve", "", NOW)
    assert desk.get(f"{ADMIN}/sessions/s1")["stopped"].startswith("An operator has stopped this session.")

    assert desk.post(f"{ADMIN}/sessions/s1/release", {"note": "fine", "stop": True})["stops"] == 2
    assert desk.get(f"{ADMIN}/stops") == {"stops": []}


# approvals


def test_an_approver_sees_the_arguments_and_decides(desk: Desk) -> None:
    """G23: what waits is listed with its calls; the verdict is about what was shown."""
    held = hold(desk)
    (shown,) = desk.get(f"{ADMIN}/approvals")["approvals"]
    assert shown["calls"][0]["arguments"] == '{"cmd":"rm"}'
    assert desk.get(f"{ADMIN}/approvals/{held.handle}") == shown

    path = f"{ADMIN}/approvals/{held.handle}"
    assert desk("POST", f"{path}/approve", {}).status == 400
    assert desk("POST", f"{path}/approve", {"seen": "another"}).status == 409
    answer = desk("POST", f"{path}/approve", {"seen": shown["digest"], "note": "ok"}, role="eve:approver")
    assert (answer.json["status"], answer.json["operator"]) == ("approved", "eve")
    assert desk.get(f"{ADMIN}/approvals") == {"approvals": [], "next_after": None}
    assert desk("POST", f"{path}/reject", {"seen": shown["digest"]}).status == 404
    assert admin_actions(desk) == [("eve", "approve", held.handle)]


def test_an_approver_cannot_decide_about_his_own(desk: Desk) -> None:
    """G23: the requester's name is not enough, whatever its role."""
    held = hold(desk, "eve")
    shown = desk.get(f"{ADMIN}/approvals/{held.handle}")
    answer = desk("POST", f"{ADMIN}/approvals/{held.handle}/reject", {"seen": shown["digest"]}, role="eve:operator")

    assert (answer.status, answer.error["code"]) == (403, "own_request")


# models and stops


def test_a_model_tells_what_it_may_reach_and_no_source(desk: Desk) -> None:
    """G44: names, switches, engines, limits and keys; never the code."""
    answer = desk("GET", f"{ADMIN}/models/coding", role="viewer")

    assert answer.json["server_tools"] == [
        {
            "name": "lookup",
            "enabled": True,
            "engine": "snippet",
            "source_class": "inline",
            "description": "Looks things up.",
            "parameters": ["word"],
            "input": ["limit"],
            "limits": {"timeout_ms": 2000, "output_chars": 100},
        }
    ]
    assert answer.json["mediation"] == {"mode": "patch", "rules": 1}
    assert [(one["model"], one["tools"]) for one in answer.json["targets"]] == [("big", True), ("small", False)]
    assert b"secret_source" not in answer.body
    assert desk.get(f"{ADMIN}/models")["models"] == [answer.json]


def test_a_server_tool_is_switched_off_and_on(desk: Desk) -> None:
    """G44: the next request sees it; the chain says who."""
    path = f"{ADMIN}/models/coding/tools/lookup"
    assert desk("PUT", path, {"enabled": False}).json["enabled"] is False
    assert desk.overlay.off("coding") == {"lookup"}
    assert desk.get(f"{ADMIN}/models/coding")["server_tools"][0]["enabled"] is False

    assert desk("PUT", path, {"enabled": True}).status == 200
    assert desk.overlay.off("coding") == frozenset()
    assert [action for _, action, _ in admin_actions(desk)] == ["switch_off", "switch_on"]
    assert desk("PUT", f"{ADMIN}/models/coding/tools/nothing", {"enabled": False}).status == 404


def test_an_artifact_is_replaced_and_the_rest_of_the_deployment_stays(tmp_path: Path) -> None:
    """G44: one model changes, the others and the deployment's own sections do not."""
    desk = Desk(
        tmp_path, "models:\n- {model_id: coding, require_session: true}\n- {model_id: other}\nlimits: {rounds: 3}\n"
    )
    shown = desk.get(f"{ADMIN}/models/coding/artifact")
    assert (shown["artifact"], shown["epoch"]) == ({"model_id": "coding", "require_session": True}, 0)

    answer = desk("PUT", f"{ADMIN}/models/coding/artifact", {"source": "require_session: false\n", "expected_epoch": 0})
    assert answer.json["epoch"] == 1
    assert desk.compile(desk.source).models.keys() == {"coding", "other"}
    assert b"rounds: 3" in desk.source
    assert desk.get(f"{ADMIN}/models/coding/artifact")["source"] == "model_id: coding\nrequire_session: false\n"

    added = desk("PUT", f"{ADMIN}/models/added/artifact", {"source": "{model_id: added}\n", "expected_epoch": 1})
    assert (added.status, list(desk.plan.models)) == (200, ["coding", "other", "added"])
    desk.close()


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("models: [{model_id: coding}]\n", 400, "Send one model artifact, without the sections of a deployment."),
        ("limits: {rounds: 1}\n", 400, "Send one model artifact, without the sections of a deployment."),
        ("model_id: other\n", 400, "The artifact is of 'other', the address names 'coding'."),
        ("modelid: coding\n", 422, "The plan has 1 problem; nothing was changed."),
        ("governance: [{kind: x}]\n", 422, "The plan has 1 problem; nothing was changed."),
        ("{", 422, "The plan has 1 problem; nothing was changed."),
    ],
)
def test_what_is_no_artifact_changes_nothing(desk: Desk, source: str, status: int, message: str) -> None:
    """Told in the words of what was sent."""
    answer = desk("PUT", f"{ADMIN}/models/coding/artifact", {"source": source, "expected_epoch": 0})

    assert (answer.status, answer.error["message"]) == (status, message)
    assert desk.store.plan_epoch() is None


def test_a_stop_is_set_shown_and_released(desk: Desk) -> None:
    """G63: who, why and since when; then it is gone, once."""
    stop = {"kind": "tool", "name": "shell_*", "note": "it deletes files"}
    made = desk.post(f"{ADMIN}/stops", stop)
    assert desk.overlay.stopped(Caller(), ("shell_exec",)) is not None

    (shown,) = desk.get(f"{ADMIN}/stops")["stops"]
    assert (shown["kind"], shown["name"], shown["tenant"]) == ("tool", "shell_*", None)
    assert (shown["operator"], shown["note"], shown["receipt_id"]) == (
        "operator",
        "it deletes files",
        made["receipt_id"],
    )
    assert desk("DELETE", f"{ADMIN}/stops", kind="tool", name="shell_*").status == 200
    assert desk("DELETE", f"{ADMIN}/stops", kind="tool", name="shell_*").status == 404
    assert desk("POST", f"{ADMIN}/stops", {"kind": "universe", "name": "x"}).status == 400
