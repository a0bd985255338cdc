"""Attacks on what takes more than one round: words of replies that were answered here, replies that waited, routes, stops, purses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wardwright.wire.turn import WireName

from .arena import CANARY, Arena, asked, calls_of, goes_on, opened, refused, said, silent, whole

CONFIG = """
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models:
  - model_id: redacting
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance:
      - {id: no-wipe, kind: tool_selector, action: deny_call, tool: {name: wipe, source: assistant_tool_call}}
      - {id: ask, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
      - {id: redact, kind: stream_guard, action: transform, match: "canary-[0-9]+", pattern: "canary-[0-9]+", replacement: "[gone]"}
  - model_id: guarded
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance:
      - {id: no-wipe, kind: tool_selector, action: deny_call, tool: {name: wipe, source: assistant_tool_call}}
      - {id: no-words, kind: stream_guard, action: block, match: "canary-[0-9]+"}
  - model_id: switching
    targets:
      - {model: first, provider: double, context_window: 1000000}
      - {model: second, provider: double, context_window: 1000000}
    governance:
      - {id: switch, kind: tool_selector, action: switch_model, target_model: second, tool: {name: wipe, source: assistant_tool_call}}
  - model_id: flapping
    targets:
      - {model: first, provider: double, context_window: 1000000}
      - {model: second, provider: double, context_window: 1000000}
    governance:
      - {id: to-second, kind: tool_selector, action: switch_model, target_model: second, tool: {name: one, source: assistant_tool_call}}
      - {id: to-first, kind: tool_selector, action: switch_model, target_model: first, tool: {name: two, source: assistant_tool_call}}
  - model_id: hiding
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance:
      - {id: ask, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
    tool_mediation: {mode: patch, rules: [{id: hide, action: hide, match: {name: "wipe*"}}]}
  - model_id: serving
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance:
      - {id: ask, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
    server_tools: [{name: wardwright_policy_cache_status, engine: builtin}]
  - model_id: purse
    targets: [{model: first, provider: double, context_window: 1000000}]
    governance:
      - {id: purse, kind: budget, action: block, limits: {tokens: 20}}
  - model_id: plain
    targets: [{model: first, provider: double, context_window: 1000000}]
"""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("rounds"), CONFIG) as gateway:
        yield gateway


def approve(arena: Arena, handle: str) -> None:
    shown = arena.admin("GET", f"/v1/wardwright/approvals/{handle}")
    decided = arena.admin("POST", f"/v1/wardwright/approvals/{handle}/approve", {"seen": shown.json["digest"]})
    assert decided.status == 200, decided.body


def test_words_of_a_reply_that_was_answered_here_are_changed_too(arena: Arena, wire: WireName, stream: bool) -> None:
    """A rule that redacts the words of replies redacts those of every round, also beside calls that were denied."""
    session = arena.session()
    arena.says(said(wire, f"It is {CANARY}.", ("a", "wipe", {"x": "1"})), said(wire, "Well."))
    answer = arena.post(wire, asked(wire, "hi", ["wipe"], stream=stream, model="redacting"), session)
    silent(answer)
    assert b"[gone]" in answer.body and b"Well." in answer.body


def test_words_that_a_rule_refuses_do_not_pass_with_a_later_round(arena: Arena, wire: WireName, stream: bool) -> None:
    """A block of words blocks the exchange, whatever the calls beside them would have led to."""
    session = arena.session()
    arena.says(said(wire, f"It is {CANARY}.", ("a", "wipe", {"x": "1"})), said(wire, "Well."))
    answer = arena.post(wire, asked(wire, "hi", ["wipe"], stream=stream, model="guarded"), session)
    silent(answer)
    assert refused(wire, answer)["rule_id"] == "no-words"


def test_words_of_a_reply_that_waited_are_changed_too(arena: Arena, wire: WireName, stream: bool) -> None:
    """What is released on approval is changed as it would have been at once."""
    session = arena.session()
    body = asked(wire, "hi", ["deploy"], stream=stream, model="redacting")
    arena.says(said(wire, f"It is {CANARY}.", ("a", "deploy", {"x": "1"})))
    held = arena.post(wire, body, session)
    silent(held)
    approve(arena, refused(wire, held)["approval"])
    answer = arena.post(wire, body, session)
    assert calls_of(wire, whole(wire, answer)) == ["deploy"]
    silent(answer)
    assert b"[gone]" in answer.body


def test_a_route_that_a_call_demands_is_asked_instead(arena: Arena, wire: WireName, stream: bool) -> None:
    """The first target's call is not released; the other one's answer is, and only that."""
    session = arena.session()
    arena.says(said(wire, "", ("a", "wipe", {"x": CANARY})), said(wire, "Second says."))
    answer = arena.post(wire, asked(wire, "hi", ["wipe"], stream=stream, model="switching"), session)
    silent(answer)
    assert calls_of(wire, whole(wire, answer)) == []
    assert [one["model"] for one in arena.actor.sent] == ["first", "second"]


def test_routes_that_demand_each_other_come_to_an_end(arena: Arena, wire: WireName, stream: bool) -> None:
    """What is asked again is counted: two targets that send each other the request cost a bounded number of replies."""
    session = arena.session()
    to_second, to_first = (said(wire, "", ("a", name, {"x": CANARY})) for name in ("one", "two"))
    arena.says(*[to_second, to_first] * 30)
    answer = arena.post(wire, asked(wire, "hi", ["one", "two"], stream=stream, model="flapping"), session)
    silent(answer)
    refused(wire, answer)
    assert len(arena.actor.sent) <= 9
    assert arena.count(session) == 1


@pytest.mark.parametrize("declared", [["look", "wipe"], ["look"], []], ids=["declared", "others", "none"])
@pytest.mark.parametrize("name", ["wipe", "WIPE_all", "functions.wipe"])
def test_a_hidden_tool_cannot_be_called_by_a_model_that_knows_its_name(
    arena: Arena, wire: WireName, stream: bool, declared: list[str], name: str
) -> None:
    """G43: hidden is hidden, also when this request did not declare it."""
    session = arena.session()
    arena.says(said(wire, "", ("a", name, {"x": CANARY})))
    answer = arena.post(wire, asked(wire, "hi", declared, stream=stream, model="hiding"), session)
    silent(answer)
    assert calls_of(wire, whole(wire, answer)) == []


def test_a_hidden_tool_does_not_pass_with_a_reply_that_waited(arena: Arena, wire: WireName, stream: bool) -> None:
    """An approval lifts its own finding, and shows no hidden tool."""
    session = arena.session()
    body = asked(wire, "hi", ["deploy", "wipe"], stream=stream, model="hiding")
    arena.says(said(wire, "", ("a", "deploy", {"x": "1"}), ("b", "wipe", {"x": CANARY})))
    held = arena.post(wire, body, session)
    silent(held)
    approve(arena, refused(wire, held)["approval"])
    answer = arena.post(wire, body, session)
    assert calls_of(wire, whole(wire, answer)) == ["deploy"]
    silent(answer)


def test_a_server_tool_in_a_reply_that_waited_runs_here(arena: Arena, wire: WireName, stream: bool) -> None:
    """A call that the gateway runs is no call for the client, after an approval no less than at once."""
    session = arena.session()
    body = asked(wire, "hi", ["deploy"], stream=stream, model="serving")
    arena.says(said(wire, "", ("a", "deploy", {"x": "1"}), ("b", "wardwright_policy_cache_status", {})))
    held = arena.post(wire, body, session)
    approve(arena, refused(wire, held)["approval"])
    answer = arena.post(wire, body, session)
    assert calls_of(wire, whole(wire, answer)) == ["deploy"]
    assert len(arena.last(answer)["final"]["provider_metadata"]["wardwright_server_tools"]) == 1


@pytest.mark.parametrize("declared", [["wipe"], []], ids=["declared", "not"])
@pytest.mark.parametrize("name", ["wipe", "WIPE"])
def test_a_stopped_tool_is_not_called(
    arena: Arena, wire: WireName, stream: bool, declared: list[str], name: str
) -> None:
    """G63: an emergency stop of a tool holds for calls too, whether or not the request declares it."""
    stop = arena.admin("POST", "/v1/wardwright/stops", {"kind": "tool", "name": "wipe", "note": "for a moment"})
    assert stop.status in (200, 201), stop.body
    try:
        session = arena.session()
        arena.says(said(wire, "", ("a", name, {"x": CANARY})))
        answer = arena.post(wire, asked(wire, "hi", declared, stream=stream, model="plain"), session)
        silent(answer)
        assert answer.status == 403 or calls_of(wire, whole(wire, answer)) == []
        assert arena.count(session) == 1
    finally:
        gone = arena.admin("DELETE", "/v1/wardwright/stops?kind=tool&name=wipe")
        assert gone.status == 200, gone.body


def test_a_purse_is_charged_for_streams_that_tell_no_usage_to_the_caller(
    arena: Arena, wire: WireName, stream: bool
) -> None:
    """Leaving out `stream_options.include_usage` does not make tokens free: the provider is asked for them all the same."""
    session = arena.session()
    arena.says()
    body: dict[str, Any] = asked(wire, "hi", stream=stream, model="purse")
    statuses = [arena.post(wire, body, session).status for _ in range(4)]
    assert statuses == [200, 200, 403, 403]
    assert len(arena.actor.sent) == 2


def test_a_conversation_goes_on_after_a_denied_round(arena: Arena, wire: WireName, stream: bool) -> None:
    """The answer of several rounds can be sent back as the transcript, and is no mismatch."""
    session = arena.session()
    body = asked(wire, "hi", ["wipe", "look"], stream=stream, model="redacting")
    arena.says(said(wire, "", ("a", "wipe", {"x": CANARY})), said(wire, "", ("b", "look", {"x": "1"})))
    reply = whole(wire, arena.post(wire, body, session))
    assert calls_of(wire, reply) == ["look"]
    arena.says()
    after = arena.post(wire, goes_on(wire, body, reply, {"b": "seen"}), session)
    assert after.status == 200, after.body
