"""Requirements of the gateway that show themselves only in a whole one: server tools in rounds, attestations, reload, rotation, erasure."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.cli import main
from wardwright.config import parse_config
from wardwright.errors import ConfigError, ProviderFailed
from wardwright.http.auth import attest
from wardwright.http.service import Service, compile_service
from wardwright.http.start import Start, front
from wardwright.keys import Keyring
from wardwright.store import erase, verify
from wardwright.wire.turn import WireName

from ..postgres_server import PostgresServer
from .gateway_fixture import PATH, Provider, Running, asked, called, goes_on, running, said
from .test_exchange import decide, read

PROVIDERS = """
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}, other: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
"""
ECHO = '{engine: snippet, name: echo, source: \'{"echo": input["x"]}\', parameters: {type: object, properties: {x: {type: string}}}}'
TOOLS = f"""
model_id: m
{PROVIDERS}
targets: [{{model: first, provider: double}}, {{model: second, provider: other, tools: false}}]
server_tools:
  - {ECHO}
  - {{name: wardwright_policy_cache_status}}
governance:
  - {{id: no-poison, kind: tool_selector, action: deny_call, message: Not this., tool: {{name: echo, arguments: {{/x: {{equals: poison}}}}}}}}
  - {{id: no-leak, kind: tool_selector, action: block, tool: {{name: leak, source: tool_result}}}}
"""


def names_of(wire: WireName, sent: dict[str, Any]) -> list[str]:
    """Tools that a provider was shown."""
    return [one["function"]["name"] if wire == "chat_completions" else one["name"] for one in sent.get("tools", [])]


def forced(wire: WireName, name: str) -> Any:
    return {
        "chat_completions": {"type": "function", "function": {"name": name}},
        "responses": {"type": "function", "name": name},
        "anthropic": {"type": "tool", "name": name},
    }[wire]


def runs(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    return receipt["final"]["provider_metadata"]["wardwright_server_tools"]


# Server tools


def test_a_server_tool_runs_here_and_the_answer_is_one_message(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G40, G41, G42: the provider sees it beside the caller's, its call is run and answered here; the caller gets one message
    with the usage of both rounds and never sees the call."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [
            said(wire, "Asking. ", ("c1", "echo", {"x": "deep"}), ("c2", "echo", {"x": "down"})),
            said(wire, "It came back."),
        ]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream, **usage(wire, stream)))
        reply = read(wire, answer, stream)
        assert answer.status == 200
        assert called(wire, reply) == []
        assert b"Asking." in answer.body and b"It came back." in answer.body and b"deep" not in answer.body
        assert sorted(reply["usage"].values(), key=str)[-1] == (30 if wire != "anthropic" else 20)
        first, second = gateway.provider.sent
        assert names_of(wire, first) == ["look", "echo", "wardwright_policy_cache_status"]
        for one in ("deep", "down"):
            assert f'\\"echo\\":\\"{one}\\"'.encode() in orjson.dumps(second).replace(b": ", b":")
        receipt = gateway.receipt(answer)
        assert [(one["name"], one["engine"], one["status"]) for one in runs(receipt)] == [
            ("echo", "snippet", "completed")
        ] * 2
        assert [gate["gate"] for gate in receipt["decision"]["gates"]] == [
            "request",
            "reply",
            "result",
            "result",
            "reply",
        ]
        assert "deep" not in orjson.dumps(receipt).decode()

    running(tmp_path, TOOLS, story)


def usage(wire: WireName, stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream and wire == "chat_completions" else {}


def test_calls_of_client_and_server_may_stand_side_by_side(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G41: the caller gets its own call alone; the server tool's call and result are beside it in the next upstream request."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["look"], stream=stream)
        gateway.provider.replies = [
            said(wire, "", ("c1", "look", {"x": "1"}), ("c2", "echo", {"x": "deep"})),
            said(wire, "Done."),
        ]
        answer = await gateway.post(PATH[wire], first, session="s1")
        reply = read(wire, answer, stream)
        assert called(wire, reply) == ["c1"]
        after = await gateway.post(PATH[wire], goes_on(wire, first, reply, {"c1": "seen"}), session="s1")
        assert after.status == 200, after.body
        sent = orjson.dumps(gateway.provider.sent[-1])
        assert b"c2" in sent and b"deep" in sent and b"seen" in sent

    running(tmp_path, TOOLS, story)


def test_a_forced_tool_is_forced_once(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G41: after the first round the choice is the model's, or the loop would never end."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "hi", ["look"], stream=stream, tool_choice=forced(wire, "look"))
        gateway.provider.replies = [said(wire, "", ("c1", "echo", {"x": "1"})), said(wire, "Done.")]
        answer = await gateway.post(PATH[wire], body)
        assert answer.status == 200, answer.body
        first, second = gateway.provider.sent
        assert first["tool_choice"] == forced(wire, "look")
        assert second.get("tool_choice") in (None, "auto", {"type": "auto"})

    running(tmp_path, TOOLS, story)


def test_a_server_tool_s_call_is_governed_like_any_other(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G1, G40: denied by its arguments, it does not run; the model reads why."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "", ("c1", "echo", {"x": "poison"})), said(wire, "Then not.")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", stream=stream))
        assert answer.status == 200 and b"Then not." in answer.body
        assert b"Not this." in orjson.dumps(gateway.provider.sent[1])
        assert gateway.receipt(answer)["final"]["tool_policy"]["status"] == "denied"
        assert "wardwright_server_tools" not in gateway.receipt(answer)["final"].get("provider_metadata", {})

    running(tmp_path, TOOLS, story)


def test_what_cannot_be_told_apart_is_refused(tmp_path: Path, wire: WireName) -> None:
    """G41: a caller's tool with a server tool's name is 400, and so is more than one choice."""

    async def story(gateway: Running) -> None:
        taken = await gateway.post(PATH[wire], asked(wire, "hi", ["echo"]))
        assert taken.status == 400 and "echo" in taken.json["error"]["message"]
        if wire == "chat_completions":
            several = await gateway.post(PATH[wire], asked(wire, "hi", n=2))
            assert several.status == 400 and "'n' above 1" in several.json["error"]["message"]
        assert gateway.provider.sent == []

    running(tmp_path, TOOLS, story)


def test_a_target_without_tools_gets_none_and_the_receipt_says_so(tmp_path: Path, wire: WireName) -> None:
    """G42: the first target fails, the second cannot use tools: it answers without them, with the reason on record."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [ProviderFailed("connect", "nobody is there")]
        gateway.other.replies = [said(wire, "Plainly.")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi"))
        assert answer.status == 200 and names_of(wire, gateway.other.sent[0]) == []
        mediated = gateway.receipt(answer)["final"]["provider_metadata"]["wardwright_tool_mediation"]
        assert set(mediated["not_injected"]) == {"echo", "wardwright_policy_cache_status"}

    running(tmp_path, TOOLS, story)


def test_a_tool_that_is_switched_off_is_gone_with_the_next_request(tmp_path: Path, wire: WireName) -> None:
    """G42, G44: by the operators' API, on record; and on again."""

    async def story(gateway: Running) -> None:
        path = "/v1/wardwright/models/m/tools/echo"
        gateway.provider.replies = [said(wire, "Without."), said(wire, "With.")]
        assert (await gateway.admin("PUT", path, {"enabled": False})).status == 200
        await gateway.post(PATH[wire], asked(wire, "hi"))
        assert (await gateway.admin("PUT", path, {"enabled": True})).status == 200
        await gateway.post(PATH[wire], asked(wire, "hi"))
        without, withal = gateway.provider.sent
        assert "echo" not in names_of(wire, without) and "echo" in names_of(wire, withal)
        assert [one["kind"] for one in gateway.receipts()].count("admin") == 2

    running(tmp_path, TOOLS, story)


# The gates over HTTP


def test_a_client_s_result_is_judged_before_the_provider_reads_it(tmp_path: Path, wire: WireName) -> None:
    """G1: the third gate, for tools that the client runs: what it brings back may be refused."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["leak"])
        gateway.provider.replies = [said(wire, "", ("c1", "leak", {"x": "1"}))]
        answer = await gateway.post(PATH[wire], first, session="s1")
        after = await gateway.post(PATH[wire], goes_on(wire, first, answer.json, {"c1": "all of it"}), session="s1")
        assert after.status == 403 and after.json["error"]["rule_id"] == "no-leak"
        assert len(gateway.provider.sent) == 1

    running(tmp_path, TOOLS, story)


def test_nothing_of_a_call_is_given_out_before_its_receipt_is_in_the_store(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G31: when the first byte of a call leaves, the ruling that let it pass is committed."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "Words. ", ("c1", "look", {"x": "1"}))]
        application, seen = gateway.front, list[int]()

        async def watched(scope: Any, receive: Any, send: Callable[[Any], Any]) -> None:
            async def watching(message: Any) -> None:
                if b'"c1"' in message.get("body", b""):
                    seen.append(len(gateway.receipts()))
                await send(message)

            await application(scope, receive, watching)

        gateway.front = watched  # pyright: ignore[reportAttributeAccessIssue]
        await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream))
        assert seen and set(seen) == {1}

    running(tmp_path, TOOLS, story)


def test_what_passes_is_counted_and_timed(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G63: `/metrics` tells requests, how long they took, when a stream began, and how many are open."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "Hello.")]
        await gateway.post(PATH[wire], asked(wire, "hi", stream=stream))
        told = (await gateway.ask("GET", "/metrics", b"", {"host": "localhost"})).body.decode()
        lines = {line.rpartition(" ")[0].partition(",worker")[0]: line.rpartition(" ")[2] for line in told.splitlines()}
        assert lines[f'wardwright_requests_total{{wire="{wire}",status="200"'] == "1"
        assert lines[f'wardwright_request_seconds_count{{wire="{wire}"'] == "1"
        assert lines.get(f'wardwright_first_byte_seconds_count{{wire="{wire}"', "0") == ("1" if stream else "0")
        assert [value for name, value in lines.items() if name.startswith("wardwright_open_streams")] == ["0"]
        assert [value for name, value in lines.items() if name.startswith("wardwright_commits_total{")] == ["2"]

    running(tmp_path, TOOLS, story)


SECRET = "a shared secret of at least 32 characters"
CLAIMED = f"""
model_id: m
{PROVIDERS}
targets: [{{model: first, provider: double}}]
auth:
  attestation: {{audience: ward.test, issuers: [{{id: runtime, key_file: issuer.key}}]}}
governance:
  - {{id: raised, kind: tool_selector, action: block, tool: {{source: caller_metadata, risk_class: irreversible}}}}
"""


@pytest.mark.parametrize(("audience", "status"), [("ward.test", 403), ("elsewhere", 200), ("", 200)])
def test_claims_about_tools_are_believed_when_they_are_signed_for_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audience: str, status: int
) -> None:
    """G7: with an attestation in its header they raise a risk; without one, or with one for somebody else, they are noted, and
    the provider never sees them."""
    monkeypatch.chdir(tmp_path)
    Path("issuer.key").write_text(SECRET)
    Path("issuer.key").chmod(0o600)

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said("chat_completions", "Hello.")]
        claim = {
            "phase": "planning",
            "primary_tool": {"namespace": "shell", "name": "exec", "risk_class": "irreversible"},
        }
        raw = orjson.dumps(asked("chat_completions", "hi", metadata={"tool_context": orjson.dumps(claim).decode()}))
        headers: dict[str, str] = {}
        if audience:
            token = attest(SECRET, issuer="runtime", audience=audience, body=raw, expires_at=int(time.time()) + 60)
            headers["x-wardwright-attestation"] = token
        answer = await gateway.post("/v1/chat/completions", raw, headers)
        assert answer.status == status, answer.body
        assert all("metadata" not in sent for sent in gateway.provider.sent)
        noted = orjson.dumps(gateway.receipt(answer)).decode()
        assert ('"attestation_refused:audience"' in noted) == (audience == "elsewhere")
        assert hashlib.sha256(raw).hexdigest() not in noted

    running(tmp_path, CLAIMED, story)


# Plans and processes

PLAN = f"model_id: m\n{PROVIDERS}\ntargets: [{{model: first, provider: double}}]\n"
LOOP = f"""{PLAN}governance:
  - {{id: loop, kind: tool_loop_threshold, action: deny_call, equal: tool+arguments, threshold: 3, tool: {{name: look}}}}
"""
STRICT = f"{PLAN}governance: [{{id: no-words, kind: request_guard, match: hello}}]\n"


def test_a_file_that_is_read_again_rules_from_the_next_request(tmp_path: Path) -> None:
    """Hot reload: a good file takes effect whole, one with problems changes nothing, and code beside it may still be used."""

    async def story(gateway: Running) -> None:
        file = tmp_path / "gateway.yaml"
        file.write_text(f"{STRICT}server_tools: [{{engine: module, path: tool.py}}]\n")
        (tmp_path / "tool.py").write_text(
            'def spec():\n    return {"name": "t", "description": "T.", "parameters": {"type": "object"}}\n\n\n'
            "def run(arguments, context):\n    return 1\n"
        )
        await gateway.service.reload()
        admin = [receipt["admin"]["action"] for receipt in gateway.receipts() if receipt["kind"] == "admin"]
        assert "plan_activated" in admin
        strict = await gateway.post(PATH["responses"], asked("responses", "hello"))
        assert strict.status == 403 and [one.engine for one in gateway.service.models["m"].server_tools] == ["module"]
        file.write_text("model_id: m\ngovernance: [{id: x, kind: nonsense}]\n")
        await gateway.service.reload_safely()
        still = await gateway.post(PATH["responses"], asked("responses", "hello"))
        assert still.status == 403
        epochs = (await gateway.admin("GET", "/v1/wardwright/plans")).json["history"]
        assert [one["epoch"] for one in epochs] == [2, 1]

    running(tmp_path, PLAN, story)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "ward.db")
        return
    server = PostgresServer()
    server.start()
    yield server.address
    server.stop()
    server.remove()


def test_two_processes_on_one_store_follow_one_plan_and_one_stop(tmp_path: Path, database: str) -> None:
    """G30, G31, G63: what is counted or decided at one gateway holds at the other, on a file and on a server."""
    Keyring.create(tmp_path / "ring")
    environ = {"WARDWRIGHT_KEYS_FILE": str(tmp_path / "ring")}

    async def story() -> None:
        services = [Service(parse_config(LOOP, "p.yaml"), database, "127.0.0.1", environ=environ) for _ in range(2)]
        applications = [front(service) for service in services]
        for made in applications:
            await made.open()
        one, two = (Running(*made, Provider(), Provider()) for made in zip(services, applications, strict=True))
        for made in (one, two):
            made.put_doubles()
        try:
            two.service.admin_token = one.service.admin_token
            passed: list[int] = []
            for number, gateway in enumerate((one, two, one)):
                gateway.provider.replies = [
                    said("anthropic", "", (f"c{number}", "look", {"x": "1"})),
                    said("anthropic", "Enough."),
                ]
                request = asked("anthropic", f"again {number}", ["look"])
                answer = await gateway.post(PATH["anthropic"], request, session="s1")
                passed.append(len(called("anthropic", answer.json)))
            assert passed == [1, 1, 0]
            body = {"source": STRICT, "expected_epoch": 1}
            assert (await one.admin("POST", "/v1/wardwright/plans/activate", body)).status == 200
            stop = {"kind": "principal", "name": "anonymous"}
            assert (await one.admin("POST", "/v1/wardwright/stops", stop)).status == 200
            await two.service.overlay.poll()
            assert two.service.plan.plan_hash == one.service.plan.plan_hash
            refused = await two.post(PATH["anthropic"], asked("anthropic", "fine"))
            assert refused.status == 403 and refused.json["error"]["code"] == "emergency_stop"
            assert verify(one.service.store, one.service.keyring.signing_keys).good
        finally:
            for made in applications:
                await made.close()

    asyncio.run(story())


@pytest.mark.parametrize("section", ["kept.db", "{path: kept.db}", "{url_env: WARD_STORE}", "{url_file: place}"])
def test_the_file_says_where_state_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    """G60, G61: without `--db` the config's `store` is used, with it the command line wins; an address may be a secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARD_STORE", "kept.db")
    Path("place").write_text("kept.db\n")
    Path("place").chmod(0o600)
    Path("ward.yaml").write_text(f"model_id: m\nstore: {section}\n")
    told: list[str] = []

    def start(given: Start, tell: Callable[[Service, int], None]) -> None:
        service = given.service()
        tell(service, given.port)
        told.append(service.database)
        service.store.close()

    monkeypatch.setattr("wardwright.cli.start", start)
    wardwright("serve", "--config", "ward.yaml", "--json")
    wardwright("serve", "--config", "ward.yaml", "--db", "other.db")

    assert told == ["kept.db", "other.db"]
    assert '"db": "kept.db"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("postgresql://ward:hunter2@db/ward", "a password has no place in a config file"),
        ("mysql://db/ward", "expected a file, or an address that begins with postgresql://"),
        ("{path: a, url_env: B}", "needs one of path, url_env and url_file"),
        ("{}", "needs one of path, url_env and url_file"),
        ("{file: a}", "unknown key 'file'"),
    ],
)
def test_what_is_wrong_with_the_store_is_told(section: str, message: str) -> None:
    """G10, G60: with its place, and without the password."""
    with pytest.raises(ConfigError) as caught:
        compile_service(parse_config(f"model_id: m\nstore: {section}\n", "ward.yaml"))

    assert any(message in problem.message for problem in caught.value.problems)
    assert "hunter2" not in str(caught.value)


# Keys, approvals by command, erasure

ASK = f"{PLAN}governance: [{{id: ask, kind: tool_selector, action: require_approval, tool: {{name: deploy, phase: planning}}}}]\n"


def wardwright(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def test_what_waits_is_decided_by_command_and_released_after_a_rotation(tmp_path: Path, wire: WireName) -> None:
    """G23, G61, G64: approved from the command line while the gateway runs; a new generation of keys loses neither the held reply
    nor the verdict."""

    async def story(gateway: Running) -> None:
        db = str(tmp_path / "gateway.db")
        body = asked(wire, "ship it", ["deploy"])
        gateway.provider.replies = [said(wire, "", ("c1", "deploy", {"x": "prod"}))]
        held = await gateway.post(PATH[wire], body, session="s1")
        handle = held.json["error"]["approval"]
        shown = await gateway.admin("GET", f"/v1/wardwright/approvals/{handle}")
        wardwright("keys", "rotate", f"{db}.keys")
        wardwright("approve", handle, "--db", db, "--seen", shown.json["digest"], "--operator", "ann")
        released = await gateway.post(PATH[wire], body, session="s1")
        assert released.status == 200 and called(wire, released.json) == ["c1"]
        assert len(gateway.provider.sent) == 1

    running(tmp_path, ASK, story)


def test_counters_go_on_after_a_rotation(tmp_path: Path) -> None:
    """G64: two equal calls before, one after: the third is the third."""

    async def story(gateway: Running) -> None:
        passed: list[int] = []
        for number in range(3):
            if number == 2:
                wardwright("keys", "rotate", str(tmp_path / "gateway.db.keys"))
                gateway.service.keyring.reload()
            gateway.provider.replies = [
                said("chat_completions", "", (f"c{number}", "look", {"x": "1"})),
                said("chat_completions", "Enough."),
            ]
            answer = await gateway.post(
                PATH["chat_completions"], asked("chat_completions", f"again {number}", ["look"]), session="s1"
            )
            passed.append(len(called("chat_completions", answer.json)))
        assert passed == [1, 1, 0]

    running(tmp_path, LOOP, story)


TENANTS = f"""
{ASK}
auth:
  keys:
    - {{id: a, key_env: KEY_A, tenant: acme}}
    - {{id: b, key_env: KEY_B, tenant: other}}
"""


def test_an_erased_tenant_leaves_a_chain_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G64: its sessions, held replies and receipts are gone, the other's are there, and nothing looks tampered with."""
    keys = {"a": "wwk_" + "a" * 40, "b": "wwk_" + "b" * 40}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name.upper()}", key)

    async def story(gateway: Running) -> Sequence[Any]:
        for key in keys.values():
            gateway.provider.replies = [said("chat_completions", "", ("c1", "deploy", {"x": "prod"}))]
            body = asked("chat_completions", "ship it", ["deploy"])
            held = await gateway.post(PATH["chat_completions"], body, {"authorization": f"Bearer {key}"}, session="s1")
            assert held.status == 403, held.body
        service = gateway.service
        erase(service.store, "acme", service.now_ms(), service.keyring.signing_key)
        waiting = (await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"]
        assert [one["tenant"] for one in waiting] == ["other"]
        found = verify(service.store, service.keyring.signing_keys)
        assert found.good and found.erased >= 1
        left = await gateway.admin("GET", "/v1/receipts?tenant=acme")
        assert [one["receipt"]["kind"] for one in left.json["receipts"]] in ([], ["admin"], ["admin", "admin"])
        return ()

    running(tmp_path, TENANTS, story)


def test_a_rejection_by_api_is_told_to_whoever_asks_again(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G23: on every wire, streamed or not, and no provider is asked."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "ship it", ["deploy"], stream=stream)
        gateway.provider.replies = [said(wire, "", ("c1", "deploy", {"x": "prod"}))]
        held = await gateway.post(PATH[wire], body, session="s1")
        await decide(gateway, held.json["error"]["approval"], "reject")
        refused = await gateway.post(PATH[wire], body, session="s1")
        assert refused.status == 403 and refused.json["error"]["code"] == "approval_rejected"
        assert len(gateway.provider.sent) == 1

    running(tmp_path, ASK, story)
