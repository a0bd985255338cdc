"""`approval: tool_error` (G23): a call that needs an approval is taken out with a handle, the reply goes on, and later the call passes once."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import load_config
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import compile_plan
from wardwright.simulate import read_transcript, simulate
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Answer, Running, asked, called, goes_on, running, said
from .test_exchange import WIRES, decide, read

CONFIG = """
model_id: m
approval: tool_error
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets: [{model: first, provider: double, context_window: 100000}]
governance:
  - {id: ask-first, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
  - {id: no-bomb, kind: tool_selector, action: block, message: Never., tool: {name: bomb}}
"""
WAITS = (
    r"Tool unknown\.deploy needs an operator's approval \(rule 'ask-first'\)\. This call waits for an operator as "
    r"(apr_[0-9a-f]{32}): say so, go on without it, and make the very same call again once it is approved\."
)


def handle(gateway: Running) -> str:
    """As the model read it in the last request that the provider got."""
    found = re.findall(WAITS, orjson.dumps(gateway.provider.sent[-1]).decode())
    assert found, gateway.provider.sent[-1]
    return found[-1]


async def ask(gateway: Running, wire: WireName, text: str, stream: bool = False, **more: Any) -> Answer:
    body = asked(wire, text, ["deploy", "look", "bomb"], stream=stream)
    return await gateway.post(PATH[wire], body, **{"session": "s1", **more})


def deploys(wire: WireName, call_id: str, to: str = "prod") -> dict[str, Any]:
    return said(wire, "", (call_id, "deploy", {"x": to}))


def test_a_call_that_waits_is_a_tool_error_and_passes_once_after_its_approval(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G23, S57: the model reads the handle and goes on; after the approval the same call passes, and the one after it waits anew."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        first = await ask(gateway, wire, "ship it", stream)
        assert first.status == 200 and b"It waits." in first.body
        assert called(wire, read(wire, first, stream)) == []
        receipt = gateway.receipt(first)
        assert receipt["final"]["tool_policy"]["status"] == "held"
        name = handle(gateway)
        assert receipt["decision"]["gates"][1]["calls"][0]["approval"] == name
        gateway.provider.replies = [deploys(wire, "c2"), said(wire, "Still.")]
        pending = await ask(gateway, wire, "and now?", stream)
        assert b"Still." in pending.body and handle(gateway) == name
        listed = (await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"]
        assert [(one["handle"], orjson.loads(one["calls"][0]["arguments"])) for one in listed] == [
            (name, {"x": "prod"})
        ]
        await decide(gateway, name, "approve")
        gateway.provider.replies = [deploys(wire, "c3"), deploys(wire, "c4"), said(wire, "Again.")]
        passed = await ask(gateway, wire, "go", stream)
        assert called(wire, read(wire, passed, stream)) == ["c3"]
        assert gateway.receipt(passed)["final"]["tool_policy"]["status"] == "lifted"
        used = await ask(gateway, wire, "once more", stream)
        assert called(wire, read(wire, used, stream)) == [] and b"Again." in used.body

    running(tmp_path, CONFIG, story)


def test_the_rest_of_the_reply_goes_on(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G23, G27: a sibling that may pass does, and the next request shows the model the error with the handle beside it."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["look", "deploy"], stream=stream)
        gateway.provider.replies = [
            said(wire, "Both.", ("c1", "look", {"x": "1"}), ("c2", "deploy", {"x": "prod"})),
            said(wire, "Done."),
        ]
        answer = await gateway.post(PATH[wire], first, session="s1")
        reply = read(wire, answer, stream)
        assert called(wire, reply) == ["c1"] and b"deploy" not in answer.body
        after = await gateway.post(PATH[wire], goes_on(wire, first, reply, {"c1": "seen"}), session="s1")
        assert after.status == 200
        await decide(gateway, handle(gateway), "approve")
        gateway.provider.replies = [deploys(wire, "c3")]
        assert called(wire, read(wire, await ask(gateway, wire, "go", stream), stream)) == ["c3"]

    running(tmp_path, CONFIG, story)


def test_a_rejected_call_is_told_so(tmp_path: Path, wire: WireName) -> None:
    """G23, S57: after a rejection the model is told to stop asking, and nothing waits."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        await ask(gateway, wire, "ship it")
        await decide(gateway, handle(gateway), "reject")
        gateway.provider.replies = [deploys(wire, "c2"), said(wire, "Then not.")]
        answer = await ask(gateway, wire, "go")
        assert b"Then not." in answer.body
        told = "An operator rejected this call. Do not make it again; do something else."
        assert told.encode() in orjson.dumps(gateway.provider.sent[-1])
        assert (await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"] == []

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("other", ["arguments", "session", "plan", "expired"])
def test_an_approval_is_for_exactly_what_was_approved(tmp_path: Path, other: str) -> None:
    """G23: bound to session, tool, arguments, plan and expiry; whatever differs waits for its own."""
    now = [1_000_000]

    async def story(gateway: Running) -> None:
        wire: WireName = "chat_completions"
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        await ask(gateway, wire, "ship it")
        name = handle(gateway)
        await decide(gateway, name, "approve")
        if other == "plan":
            await gateway.service.activate(CONFIG.replace("Never.", "Not ever.").encode(), "op")
            gateway.put_doubles()
        now[0] += 3_600_001 if other == "expired" else 1
        to, session = "prod" if other != "arguments" else "test", "s2" if other == "session" else "s1"
        gateway.provider.replies = [deploys(wire, "c2", to), said(wire, "No.")]
        answer = await ask(gateway, wire, "go", session=session)
        assert called(wire, answer.json) == [] and b"No." in answer.body
        assert (handle(gateway) == name) is (other == "expired")

    running(tmp_path, CONFIG, story, clock_ms=lambda: now[0])


def test_what_was_approved_for_one_principal_is_not_done_for_another(tmp_path: Path) -> None:
    """G23: another key of the same tenant in the same session waits for an approval of its own."""
    keys = """
auth:
  keys:
    - {id: ann, key_env: ANN, tenant: acme}
    - {id: bob, key_env: BOB, tenant: acme}
"""

    async def story(gateway: Running) -> None:
        wire: WireName = "anthropic"
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        await ask(gateway, wire, "ship it", headers={"authorization": "Bearer ann-key-0123456789abcdef0123"})
        name = handle(gateway)
        await decide(gateway, name, "approve")
        gateway.provider.replies = [deploys(wire, "c2"), said(wire, "No.")]
        bob = await ask(gateway, wire, "go", headers={"authorization": "Bearer bob-key-0123456789abcdef0123"})
        assert called(wire, bob.json) == [] and handle(gateway) != name

    environ = {"ANN": "ann-key-0123456789abcdef0123", "BOB": "bob-key-0123456789abcdef0123"}
    running(tmp_path, CONFIG + keys, story, environ=environ)


def test_one_approval_lets_one_call_pass_however_many_come_at_once(tmp_path: Path) -> None:
    """G23: used up atomically: of several replies at the same moment one gets through, the others wait anew."""

    async def story(gateway: Running) -> None:
        wire: WireName = "responses"
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        await ask(gateway, wire, "ship it")
        await decide(gateway, handle(gateway), "approve")

        def answer(request: dict[str, Any]) -> dict[str, Any]:
            answered = "function_call_output" in orjson.dumps(request).decode()
            return said(wire, "Waiting.") if answered else deploys(wire, f"n{len(gateway.provider.sent)}")

        gateway.provider.replies = [answer] * 12
        answers = await asyncio.gather(*(ask(gateway, wire, f"go {n}") for n in range(4)))
        passed = [called(wire, one.json) for one in answers]
        assert sum(map(len, passed)) == 1, passed

    running(tmp_path, CONFIG, story)


def test_two_equal_calls_of_one_reply_need_two_approvals(tmp_path: Path) -> None:
    """G23: one approval is one call; the second of two equal ones has a handle of its own."""

    async def story(gateway: Running) -> None:
        wire: WireName = "chat_completions"
        both = said(wire, "", ("c1", "deploy", {"x": "prod"}), ("c2", "deploy", {"x": "prod"}))
        gateway.provider.replies = [both, said(wire, "Both wait.")]
        await ask(gateway, wire, "ship it")
        names = set(re.findall(WAITS, orjson.dumps(gateway.provider.sent[-1]).decode()))
        assert len(names) == 2
        first = re.findall(WAITS, orjson.dumps(gateway.provider.sent[-1]).decode())[0]
        await decide(gateway, first, "approve")
        both = said(wire, "", ("c3", "deploy", {"x": "prod"}), ("c4", "deploy", {"x": "prod"}))
        gateway.provider.replies = [both]
        assert called(wire, (await ask(gateway, wire, "go")).json) == ["c3"]

    running(tmp_path, CONFIG, story)


def test_an_approval_is_not_used_up_by_a_reply_that_is_refused(tmp_path: Path) -> None:
    """G23: a block beside the approved call refuses all of the reply; the approval is there for the next one."""

    async def story(gateway: Running) -> None:
        wire: WireName = "chat_completions"
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "It waits.")]
        await ask(gateway, wire, "ship it")
        await decide(gateway, handle(gateway), "approve")
        gateway.provider.replies = [said(wire, "", ("c2", "deploy", {"x": "prod"}), ("c3", "bomb", {}))]
        assert (await ask(gateway, wire, "go")).status == 403
        gateway.provider.replies = [deploys(wire, "c4")]
        assert called(wire, (await ask(gateway, wire, "go on")).json) == ["c4"]

    running(tmp_path, CONFIG, story)


def test_a_model_that_asks_for_too_much_at_once_is_told(tmp_path: Path) -> None:
    """S57: one reply fills no operator's list; what is over the limit waits for nobody."""

    async def story(gateway: Running) -> None:
        wire: WireName = "anthropic"
        many = [(f"c{n}", "deploy", {"x": str(n)}) for n in range(20)]
        gateway.provider.replies = [said(wire, "", *many), said(wire, "Many.")]
        await ask(gateway, wire, "ship it")
        told = "Too many calls of this answer need an operator's approval. Make fewer at once."
        assert orjson.dumps(gateway.provider.sent[-1]).decode().count(told) == 4
        assert len((await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"]) == 16

    running(tmp_path, CONFIG, story)


def test_a_hidden_tool_is_no_matter_for_an_operator(tmp_path: Path) -> None:
    """G43: a call to a hidden tool is denied, whatever somebody would approve."""
    hidden = "tool_mediation: {mode: patch, rules: [{id: gone, action: hide, match: {name: deploy}}]}\n"

    async def story(gateway: Running) -> None:
        wire: WireName = "chat_completions"
        gateway.provider.replies = [deploys(wire, "c1"), said(wire, "Gone.")]
        assert b"Gone." in (await ask(gateway, wire, "ship it")).body
        assert b"is not available here" in orjson.dumps(gateway.provider.sent[-1])
        assert (await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"] == []

    running(tmp_path, CONFIG + hidden, story)


def test_what_is_no_call_still_holds_the_reply(tmp_path: Path, wire: WireName) -> None:
    """G23: words that need an approval have no tool error to stand in their place: 403 with a handle, for all of the reply."""
    words = "  - {id: sign-off, kind: stream_guard, action: require_approval, match: wire the money}\n"

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "Now I wire the money.", ("c1", "deploy", {"x": "prod"}))]
        held = await ask(gateway, wire, "ship it")
        assert held.status == 403 and held.json["error"]["code"] == "approval_required"
        await decide(gateway, held.json["error"]["approval"], "approve")
        released = await ask(gateway, wire, "ship it")
        assert called(wire, released.json) == ["c1"]

    running(tmp_path, CONFIG + words, story)


def test_a_simulation_goes_on_as_the_gateway_would() -> None:
    """G1, G51: the call is taken out with its error, the conversation goes on, and nothing waits anywhere."""
    transcript = read_transcript(
        [
            {"role": "user", "content": "ship it"},
            {"role": "assistant", "tool_calls": [{"id": "a", "name": "deploy", "arguments": {"x": "prod"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "ok"},
            {"role": "assistant", "content": "Done."},
        ]
    )
    found = simulate(compile_plan(parse_config(CONFIG)), transcript)
    assert [step.ruling.decision for step in found.steps] == ["allow", "deny_call", "allow"]
    (blocked,) = found.blocked_calls
    assert re.fullmatch(WAITS, blocked.message) and blocked.approval in blocked.message
    assert found.as_json()["blocked_calls"][0]["approval"] == blocked.approval
    assert found.receipts[0]["final"]["tool_policy"]["status"] == "held"


def test_another_word_is_refused() -> None:
    """G10: what `approval` may say."""
    with pytest.raises(ConfigError, match="'tool_error'"):
        compile_plan(parse_config(CONFIG.replace("tool_error", "tool_eror")))
    with pytest.raises(ConfigError, match="approval"):
        compile_plan(load_config(CONFIG.replace("tool_error", "[tool_error]")))


@pytest.mark.parametrize("theirs", WIRES)
def test_a_server_tool_that_waits_runs_once_after_its_approval(tmp_path: Path, theirs: WireName) -> None:
    """G23, G41: a tool that the gateway runs itself waits and passes in the same way, whatever wire its provider speaks."""
    name = "wardwright_policy_cache_status"
    ours = CONFIG.replace("name: deploy,", f"name: '*{name[10:]}',") + f"server_tools: [{{name: {name}}}]\n"

    async def story(gateway: Running) -> None:
        wire: WireName = "anthropic"

        def calls(call_id: str) -> dict[str, Any]:
            return said(theirs, "", (call_id, name, {}))

        gateway.provider.replies = [calls("c1"), said(theirs, "It waits.")]
        assert b"It waits." in (await ask(gateway, wire, "status?", stream=True)).body
        (waiting,) = (await gateway.admin("GET", "/v1/wardwright/approvals")).json["approvals"]
        await decide(gateway, waiting["handle"], "approve")
        gateway.provider.replies = [calls("c2"), calls("c3"), said(theirs, "Told.")]
        answer = await ask(gateway, wire, "now?")
        assert b"Told." in answer.body
        runs = gateway.receipt(answer)["final"]["provider_metadata"]["wardwright_server_tools"]
        assert [(run["call_id"], run["status"]) for run in runs] == [("c2", "completed")]

    running(tmp_path, ours, story, wire=theirs)
