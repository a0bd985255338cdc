"""Callers that try to be others, and to reach what the gateway runs for them: keys, tenants, sessions, server tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from wardwright.keys import hash_key
from wardwright.wire.turn import WireName

from .arena import CANARY, Arena, asked, called, calls_of, goes_on, opened, refused, said, silent, whole

STATUS = "wardwright_policy_cache_status"
TARGETS = "targets: [{model: first, provider: double, context_window: 1000000}]"
CONFIG = f"""
auth:
  keys:
    - {{id: ada, hash: "{hash_key("key-ada")}", tenant: acme, may_claim: [session_id]}}
    - {{id: bob, hash: "{hash_key("key-bob")}", tenant: acme, may_claim: [session_id]}}
    - {{id: eve, hash: "{hash_key("key-eve")}", tenant: other, may_claim: [session_id]}}
    - {{id: pinned, hash: "{hash_key("key-pinned")}", tenant: acme, user: fixed, models: [loop], may_claim: []}}
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
models:
  - model_id: loop
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_loop_threshold, action: block, threshold: 2, tool: {{name: wipe}}}}]
  - model_id: ask
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: require_approval, tool: {{name: wipe, source: assistant_tool_call}}}}]
  - model_id: served
    {TARGETS}
    server_tools: [{{name: {STATUS}, engine: builtin}}]
  - model_id: served-block
    {TARGETS}
    server_tools: [{{name: {STATUS}, engine: builtin}}]
    governance: [{{id: the-rule, kind: tool_selector, action: block, tool: {{name: {STATUS}, source: tool_result}}}}]
  - model_id: served-deny
    {TARGETS}
    server_tools: [{{name: {STATUS}, engine: builtin}}]
    governance: [{{id: the-rule, kind: tool_selector, action: deny_call, message: Not that., tool: {{name: {STATUS}, source: assistant_tool_call}}}}]
  - model_id: served-less
    {TARGETS}
    server_tools: [{{name: {STATUS}, engine: builtin}}]
    governance: [{{id: the-rule, kind: allowed_tools, mode: filter, phase: [planning, result_interpretation], allowed_tools: [{{name: look}}]}}]
"""


def key(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}", **more}


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("callers"), CONFIG) as gateway:
        yield gateway


# Who


@pytest.mark.parametrize(
    "headers",
    [{}, key("nobody"), {"authorization": "key-ada"}, {"authorization": "Basic key-ada"}, {"x-api-key": "KEY-ADA"}],
    ids=["none", "unknown", "no-scheme", "other-scheme", "other-case"],
)
def test_without_a_key_nothing_is_read(arena: Arena, wire: WireName, headers: dict[str, str]) -> None:
    """401 in the wire's shape, before the body counts for anything."""
    arena.says()
    answer = arena.post(wire, b"not even json", headers=headers)
    assert answer.status == 401
    assert refused(wire, answer)["type"] == "authentication_error"
    assert arena.actor.sent == []


def test_a_key_asks_only_the_models_it_may(arena: Arena, wire: WireName, stream: bool) -> None:
    """A model that is not for a key is not there for it."""
    arena.says()
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model="ask"), headers=key("pinned"))
    assert answer.status == 404
    assert "ask" not in refused(wire, answer)["message"].partition("Known:")[2]
    assert arena.actor.sent == []


def test_a_claim_that_a_key_may_not_make_changes_nothing(arena: Arena, wire: WireName) -> None:
    """G20: tenant, user and session are what the key record says; the receipt notes what was claimed."""
    arena.says()
    claims = {f"x-wardwright-{name}-id": "somebody" for name in ("tenant", "user", "session", "agent", "application")}
    answer = arena.post(wire, asked(wire, "hi", model="loop"), headers=key("pinned", **claims))
    assert answer.status == 200, answer.body
    receipt = arena.last(answer)
    assert (receipt["caller"]["tenant"], receipt["caller"]["user"]) == ("acme", "fixed")
    assert "somebody" not in json.dumps(receipt)
    assert answer.headers["x-wardwright-session-id"] != "somebody"


def test_another_tenant_s_session_is_another_session(arena: Arena, wire: WireName, stream: bool) -> None:
    """Neither the header nor the ids of somebody else's calls lead into their session; the same calls count anew, as unseen ones."""
    session = arena.session()
    body = asked(wire, "hi", ["wipe"], stream=stream, model="loop")
    arena.says(said(wire, "", (f"{session}-1", "wipe", {"x": "1"})))
    reply = whole(wire, arena.post(wire, body, session, key("ada")))
    going_on = goes_on(wire, body, reply, dict.fromkeys(called(wire, reply), "done"))
    arena.says(said(wire, "", (f"{session}-1", "wipe", {"x": CANARY})))
    fresh = arena.post(wire, body, session, key("eve"))
    assert calls_of(wire, whole(wire, fresh)) == ["wipe"]
    arena.says(said(wire, "", (f"{session}-2", "wipe", {"x": CANARY})))
    answer = arena.post(wire, going_on, "", key("eve"))
    silent(answer)
    assert arena.last(answer)["caller"]["tenant"] == "other"
    # Theirs goes on from where it was, whatever the other one did.
    arena.says(said(wire, "", (f"{session}-3", "wipe", {"x": CANARY})))
    theirs = arena.post(wire, going_on, session, key("ada"))
    silent(theirs)
    assert refused(wire, theirs)["rule_id"] == "the-rule"
    assert theirs.headers["x-wardwright-session-id"] == session


@pytest.mark.parametrize("thief", ["bob", "eve"])
def test_an_approval_is_not_for_somebody_else(arena: Arena, wire: WireName, stream: bool, thief: str) -> None:
    """The reply that waited goes to the one who asked, not to another key with the same request, session and handle."""
    session = arena.session()
    body = asked(wire, "hi", ["wipe"], stream=stream, model="ask")
    arena.says(said(wire, "", (f"{session}-1", "wipe", {"x": CANARY})))
    held = arena.post(wire, body, session, key("ada"))
    silent(held)
    handle = refused(wire, held)["approval"]
    shown = arena.admin("GET", f"/v1/wardwright/approvals/{handle}")
    decided = arena.admin("POST", f"/v1/wardwright/approvals/{handle}/approve", {"seen": shown.json["digest"]})
    assert decided.status == 200, decided.body
    arena.says(*[said(wire, "Nothing for you.")] * 2)
    for headers in (key(thief), key(thief, **{"x-wardwright-approval": handle})):
        silent(arena.post(wire, body, session, headers))
    answer = arena.post(wire, body, session, key("ada"))
    assert calls_of(wire, whole(wire, answer)) == ["wipe"]


# What the gateway runs


def test_a_server_tool_is_run_here_and_never_shown(arena: Arena, wire: WireName, stream: bool) -> None:
    """The caller gets the words that followed; neither call nor result of the tool."""
    session = arena.session()
    arena.says(said(wire, "", ("s", STATUS, {})), said(wire, "All is well."))
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model="served"), session, key("ada"))
    assert calls_of(wire, whole(wire, answer)) == []
    silent(answer, STATUS)
    assert len(arena.actor.sent) == 2 and arena.count(session) == 1


def test_a_result_that_policy_blocks_goes_nowhere(arena: Arena, wire: WireName, stream: bool) -> None:
    """G1, the third gate: neither to the provider nor to the caller."""
    session = arena.session()
    arena.says(said(wire, "", ("s", STATUS, {})))
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model="served-block"), session, key("ada"))
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert len(arena.actor.sent) == 1
    assert b"plan_hash" not in answer.body
    assert arena.count(session) == 1


@pytest.mark.parametrize("model", ["served-deny", "served-less"])
def test_a_server_tool_that_policy_denies_does_not_run(arena: Arena, wire: WireName, stream: bool, model: str) -> None:
    """Denied or withheld: the model is told so, and nothing ran."""
    session = arena.session()
    arena.says(said(wire, "", ("s", STATUS, {})))
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model=model), session, key("ada"))
    assert calls_of(wire, whole(wire, answer)) == []
    assert arena.last(answer)["final"].get("provider_metadata", {}).get("wardwright_server_tools", []) == []
    assert "plan_hash" not in json.dumps(arena.actor.sent)
    if model == "served-less":
        assert STATUS not in json.dumps(arena.actor.sent[0])


@pytest.mark.parametrize("name", [STATUS, STATUS.upper(), "wardwright_policy\u200b_cache_status"])
def test_a_caller_cannot_take_the_name_of_a_server_tool(arena: Arena, wire: WireName, stream: bool, name: str) -> None:
    """G41: in no spelling."""
    session = arena.session()
    arena.says()
    answer = arena.post(wire, asked(wire, "hi", [name], stream=stream, model="served"), session, key("ada"))
    assert answer.status == 400, answer.body
    assert refused(wire, answer)["code"] == "tool_name_collision"
    assert arena.actor.sent == []


def test_several_choices_and_server_tools_do_not_mix(arena: Arena, stream: bool) -> None:
    """G41: `n` above 1 is refused where rounds would have to be told apart."""
    arena.says()
    request: Any = asked("chat_completions", "hi", stream=stream, model="served", n=2)
    answer = arena.post("chat_completions", request, arena.session(), key("ada"))
    assert answer.status == 400, answer.body
    assert arena.actor.sent == []
