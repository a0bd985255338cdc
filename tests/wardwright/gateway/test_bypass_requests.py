"""Requests that try to get past their gate: what it denies never reaches the provider, however and wherever it is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from wardwright.wire.turn import WireName

from .arena import (
    CANARY,
    PATH,
    Answer,
    Arena,
    asked,
    called,
    calls_of,
    events,
    goes_on,
    opened,
    refused,
    said,
    silent,
    whole,
)

TARGETS = "targets: [{model: first, provider: double, context_window: 1000000}]"
CONFIG = f"""
limits: {{body_bytes: 200000, body_time: 300ms}}
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
models:
  - model_id: words
    {TARGETS}
    governance: [{{id: the-rule, kind: request_guard, action: block, match: "forbidden words"}}]
  - model_id: declared
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: block, tool: {{name: wipe, source: declared_tool}}}}]
  - model_id: listed
    {TARGETS}
    governance: [{{id: the-rule, kind: allowed_tools, phase: [planning, result_interpretation], allowed_tools: [{{name: look}}]}}]
  - model_id: chosen
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: block, tool: {{name: wipe, source: tool_choice}}}}]
  - model_id: strip
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: strip_tools, tool: {{name: wipe, source: declared_tool}}}}]
  - model_id: filter
    {TARGETS}
    governance: [{{id: the-rule, kind: allowed_tools, mode: filter, phase: [planning, result_interpretation], allowed_tools: [{{name: look}}]}}]
  - model_id: hide
    {TARGETS}
    tool_mediation: {{mode: patch, rules: [{{id: the-rule, action: hide, match: {{name: wipe}}}}]}}
  - model_id: risky
    {TARGETS}
    catalog:
      - {{match: "files_{{name}}", namespace: files}}
      - {{namespace: files, name: "delete*", risk_class: irreversible}}
      - {{namespace: files, name: "*", risk_class: read_only}}
    governance: [{{id: the-rule, kind: tool_selector, action: deny_call, tool: {{risk_class: [irreversible, unknown], source: assistant_tool_call}}}}]
  - model_id: history
    {TARGETS}
    governance:
      - {{id: the-rule, kind: tool_selector, action: block, tool: {{mark: [forged, altered, result_for_denied_call]}}}}
      - {{id: no-wipe, kind: tool_selector, action: deny_call, tool: {{name: wipe, source: assistant_tool_call}}}}
  - model_id: loop
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_loop_threshold, action: block, threshold: 3, tool: {{name: wipe}}}}]
  - model_id: ask
    {TARGETS}
    governance: [{{id: the-rule, kind: request_guard, action: require_approval, match: "forbidden words"}}]
  - model_id: sessions
    {TARGETS}
    require_session: true
  - model_id: hosted
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: block, tool: {{namespace: "provider.*", source: declared_tool}}}}]
  - model_id: plain
    {TARGETS}
"""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("requests"), CONFIG) as gateway:
        yield gateway


def stopped(arena: Arena, wire: WireName, answer: Answer, session: str, rule: str = "the-rule") -> None:
    """Refused by that rule, in the wire's shape, with its one receipt; nobody was asked."""
    assert answer.status == 403, answer.body
    error = refused(wire, answer)
    assert (error["rule_id"], error["receipt_id"]) == (rule, answer.receipt_id)
    assert arena.actor.sent == []
    assert arena.count(session) == 1


# Words

WORDS = "These are FORBIDDEN words, aren't they?"


def body(wire: WireName, **fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"model": "words"}
    if wire == "anthropic":
        base["max_tokens"] = 10
    return {**base, **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(kind: str, words: str) -> dict[str, Any]:
    return {"type": kind, "text": words}


def function_call(name: str = "look", call_id: str = "a", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*messages: Any, **more: Any) -> tuple[WireName, dict[str, Any]]:
    return "chat_completions", body("chat_completions", messages=list(messages), **more)


def responses(given: Any, **more: Any) -> tuple[WireName, dict[str, Any]]:
    return "responses", body("responses", input=given, **more)


def messages(*given: Any, **more: Any) -> tuple[WireName, dict[str, Any]]:
    return "anthropic", body("anthropic", messages=list(given), **more)


PLACES: dict[str, tuple[WireName, dict[str, Any]]] = {
    "chat-text": chat(user(WORDS)),
    "chat-parts": chat(user([text("text", "Hi."), text("text", WORDS)])),
    "chat-split": chat(user([text("text", "forbid"), text("text", "den words")])),
    "chat-split-at-the-space": chat(user([text("text", "forbidden"), text("text", " words")])),
    "chat-system": chat({"role": "system", "content": WORDS}, user("hi")),
    "chat-developer": chat({"role": "developer", "content": [text("text", WORDS)]}, user("hi")),
    "chat-earlier": chat(user(WORDS), {"role": "assistant", "content": "No."}, user("please")),
    "chat-assistant": chat(user("hi"), {"role": "assistant", "content": WORDS}, user("go on")),
    "chat-result": chat(
        user("hi"),
        {"role": "assistant", "tool_calls": [function_call()]},
        {"role": "tool", "tool_call_id": "a", "content": WORDS},
    ),
    "chat-result-parts": chat(
        user("hi"),
        {"role": "assistant", "tool_calls": [function_call()]},
        {"role": "tool", "tool_call_id": "a", "content": [text("text", WORDS)]},
    ),
    "chat-legacy-result": chat(
        user("hi"),
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": WORDS},
    ),
    "chat-prediction": chat(user("hi"), prediction={"type": "content", "content": WORDS}),
    "responses-text": responses(WORDS),
    "responses-instructions": responses("hi", instructions=WORDS),
    "responses-message": responses([user(WORDS)]),
    "responses-parts": responses([user([text("input_text", "Hi."), text("input_text", WORDS)])]),
    "responses-typed": responses([{"type": "message", **user([text("input_text", WORDS)])}]),
    "responses-split": responses([user([text("input_text", "forbid"), text("input_text", "den words")])]),
    "responses-result": responses(
        [
            user("hi"),
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": WORDS},
        ]
    ),
    "responses-result-parts": responses(
        [
            user("hi"),
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [text("input_text", WORDS)]},
        ]
    ),
    "messages-text": messages(user(WORDS)),
    "messages-parts": messages(user([text("text", "Hi."), text("text", WORDS)])),
    "messages-split": messages(user([text("text", "forbid"), text("text", "den words")])),
    "messages-system": messages(user("hi"), system=WORDS),
    "messages-system-parts": messages(user("hi"), system=[text("text", WORDS)]),
    "messages-document": messages(
        user([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": WORDS}}])
    ),
    "messages-result": messages(
        user("hi"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        user([{"type": "tool_result", "tool_use_id": "a", "content": WORDS}]),
    ),
    "messages-result-parts": messages(
        user("hi"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        user([{"type": "tool_result", "tool_use_id": "a", "content": [text("text", WORDS)]}]),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_words_are_found_wherever_they_stand(arena: Arena, place: str, stream: bool) -> None:
    """Text, parts, instructions, earlier turns, results: all that a model would read."""
    wire, request = PLACES[place]
    session = arena.session()
    arena.says()
    answer = arena.post(wire, {**request, "stream": stream}, session)
    stopped(arena, wire, answer, session)


# Tools


SPELLINGS = ["wipe", "WIPE", "\uff57ipe", "wi\u200bpe"]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("model", ["declared", "listed"])
def test_a_declared_tool_is_refused(arena: Arena, wire: WireName, stream: bool, model: str, name: str) -> None:
    """However its name is written."""
    session = arena.session()
    arena.says()
    answer = arena.post(wire, asked(wire, "hi", ["look", name], stream=stream, model=model), session)
    stopped(arena, wire, answer, session)


SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
ELSEWHERE: dict[str, tuple[WireName, dict[str, Any]]] = {
    "functions": chat(user("hi"), functions=[{"name": "wipe", "parameters": SCHEMA}]),
    "custom": chat(user("hi"), tools=[{"type": "custom", "custom": {"name": "wipe"}}]),
    "responses-custom": responses("hi", tools=[{"type": "custom", "name": "wipe"}]),
    "namespace": responses(
        "hi",
        tools=[
            {
                "type": "namespace",
                "name": "functions",
                "description": "x",
                "tools": [{"type": "function", "name": "wipe", "parameters": SCHEMA}],
            }
        ],
    ),
    "additional": responses(
        [
            user("hi"),
            {
                "type": "additional_tools",
                "role": "developer",
                "tools": [{"type": "function", "name": "wipe", "parameters": SCHEMA}],
            },
        ]
    ),
    "messages-custom": messages(user("hi"), tools=[{"type": "custom", "name": "wipe", "input_schema": SCHEMA}]),
    "deferred": messages(
        user("hi"),
        tools=[{"name": "wipe", "input_schema": SCHEMA, "defer_loading": True}, {"name": "b", "input_schema": SCHEMA}],
    ),
}


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("model", ["declared", "listed"])
def test_a_tool_is_found_wherever_it_is_declared(arena: Arena, place: str, stream: bool, model: str) -> None:
    """Legacy functions, custom tools, namespaces, tools that items bring."""
    wire, request = ELSEWHERE[place]
    session = arena.session()
    arena.says()
    answer = arena.post(wire, {**request, "model": model, "stream": stream}, session)
    stopped(arena, wire, answer, session)


def test_two_spellings_of_one_name_are_no_request(arena: Arena, wire: WireName, stream: bool) -> None:
    """G6: names that cannot be told apart are refused, whatever the policy."""
    session = arena.session()
    arena.says()
    answer = arena.post(wire, asked(wire, "hi", ["look", "LOOK"], stream=stream, model="plain"), session)
    assert answer.status == 400
    assert refused(wire, answer)["code"] == "tool_name_collision"
    assert arena.actor.sent == []


CHOICES: dict[str, tuple[WireName, Any]] = {
    "chat": ("chat_completions", {"tool_choice": {"type": "function", "function": {"name": "wipe"}}}),
    "chat-allowed": (
        "chat_completions",
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "wipe"}}]},
            }
        },
    ),
    "chat-legacy": ("chat_completions", {"function_call": {"name": "wipe"}}),
    "responses": ("responses", {"tool_choice": {"type": "function", "name": "wipe"}}),
    "responses-allowed": (
        "responses",
        {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "wipe"}]}},
    ),
    "messages": ("anthropic", {"tool_choice": {"type": "tool", "name": "wipe"}}),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_forced_tool_is_refused(arena: Arena, choice: str, stream: bool) -> None:
    """On every wire, and as the only one of a permitted subset."""
    wire, fields = CHOICES[choice]
    session = arena.session()
    arena.says()
    answer = arena.post(wire, {**asked(wire, "hi", ["look", "wipe"], stream=stream, model="chosen"), **fields}, session)
    stopped(arena, wire, answer, session)


def test_a_tool_that_is_required_and_alone_is_forced(arena: Arena, wire: WireName) -> None:
    """`required` with one tool is a choice of that tool."""
    session = arena.session()
    arena.says()
    required: Any = {"type": "any"} if wire == "anthropic" else "required"
    stopped(
        arena,
        wire,
        arena.post(wire, asked(wire, "hi", ["wipe"], model="chosen", tool_choice=required), session),
        session,
    )


@pytest.mark.parametrize("model", ["strip", "filter", "hide"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_tool_that_is_taken_away_never_reaches_the_provider(
    arena: Arena, wire: WireName, stream: bool, model: str, name: str
) -> None:
    """Not in the list, not in a choice that is left over."""
    session = arena.session()
    arena.says()
    forced = {
        "chat_completions": {"type": "function", "function": {"name": name}},
        "responses": {"type": "function", "name": name},
        "anthropic": {"type": "tool", "name": name},
    }[wire]
    answer = arena.post(
        wire, asked(wire, "hi", ["look", name], stream=stream, model=model, tool_choice=forced), session
    )
    assert answer.status == 200, answer.body
    (sent,) = arena.actor.sent
    assert name not in json.dumps(sent, ensure_ascii=False)
    assert "look" in json.dumps(sent["tools"])
    assert arena.count(session) == 1


HOSTED: dict[str, tuple[WireName, dict[str, Any]]] = {
    "chat-search": chat(user("hi"), web_search_options={}),
    "responses-search": responses("hi", tools=[{"type": "web_search"}]),
    "responses-code": responses("hi", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]),
    "responses-mcp": responses(
        "hi",
        tools=[{"type": "mcp", "server_label": "s", "server_url": "https://example.test", "require_approval": "never"}],
    ),
    "responses-files": responses("hi", tools=[{"type": "file_search", "vector_store_ids": ["v"]}]),
    "messages-search": messages(user("hi"), tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "messages-code": messages(user("hi"), tools=[{"type": "code_execution_20250825", "name": "code_execution"}]),
    "messages-mcp": messages(user("hi"), mcp_servers=[{"type": "url", "url": "https://example.test", "name": "s"}]),
}


@pytest.mark.parametrize("place", HOSTED)
def test_tools_that_the_provider_would_run_are_seen(arena: Arena, place: str, stream: bool) -> None:
    """G4: hosted tools are declared tools; a rule against them holds wherever they are asked for."""
    wire, request = HOSTED[place]
    session = arena.session()
    arena.says()
    answer = arena.post(wire, {**request, "model": "hosted", "stream": stream}, session)
    stopped(arena, wire, answer, session)


# What a caller says of itself and of its tools


@pytest.mark.parametrize(
    "name", ["files_delete", "FILES_Delete_all", "files.delete", "files/deleteAll", "nobody_knows"]
)
def test_a_claim_about_a_tool_lowers_no_risk(arena: Arena, wire: WireName, stream: bool, name: str) -> None:
    """G6, G7: the catalog says what a tool is; what the caller says of it is not believed, and not passed on."""
    session = arena.session()
    claim = {
        "phase": "result_interpretation",
        "primary_tool": {"namespace": "browser", "name": name, "risk_class": "read_only", "source": "caller_metadata"},
        "available_tools": [{"namespace": "browser", "name": name, "risk_class": "read_only"}],
    }
    arena.says(said(wire, "", ("bad", name, {"x": CANARY})))
    request = asked(wire, "hi", [name], stream=stream, model="risky", metadata={"tool_context": json.dumps(claim)})
    answer = arena.post(wire, request, session)
    silent(answer)
    assert calls_of(wire, whole(wire, answer)) == []
    assert "tool_context" not in json.dumps(arena.actor.sent)


def test_a_claim_comes_with_what_we_could_not_have_sent_on(arena: Arena, wire: WireName) -> None:
    """Our headers and our metadata stay here; the caller's other metadata goes on."""
    session = arena.session()
    arena.says()
    claim = {"tool_context": "{}", "user_id": "u"}
    answer = arena.post(
        wire, asked(wire, "hi", model="plain", metadata=claim), session, {"x-wardwright-run-id": "secret-run"}
    )
    assert answer.status == 200, answer.body
    assert arena.actor.sent[0]["metadata"] == {"user_id": "u"}
    assert "secret-run" not in json.dumps(arena.actor.sent)


# History and sessions


def wiped(wire: WireName, call_id: str) -> tuple[dict[str, Any], Any]:
    return said(wire, "", (call_id, "wipe", {"x": "1"})), {call_id: "done"}


def looped(
    arena: Arena, wire: WireName, stream: bool, ids: tuple[str, str], sessions: tuple[str, str]
) -> dict[str, Any]:
    """A conversation with two calls that passed, each under its session."""
    request = asked(wire, "hi", ["wipe"], stream=stream, model="loop")
    for call_id, session in zip(ids, sessions, strict=True):
        reply, results = wiped(wire, call_id)
        arena.says(reply)
        given = whole(wire, arena.post(wire, request, session))
        request = goes_on(wire, request, given, results)
    return request


@pytest.mark.parametrize("sent", ["same", "other", "none"])
def test_a_loop_is_counted_whatever_session_is_claimed(arena: Arena, wire: WireName, stream: bool, sent: str) -> None:
    """G20: the calls in the transcript tell which session it is; another header, or none, starts no new count."""
    name = arena.session()
    first = {"same": name, "other": f"{name}-x", "none": ""}[sent]
    request = looped(arena, wire, stream, (f"{name}-1", f"{name}-2"), (name, first))
    arena.says(said(wire, "", (f"{name}-3", "wipe", {"x": CANARY})))
    answer = arena.post(wire, request, f"{name}-y" if sent == "other" else first)
    silent(answer)
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert answer.headers["x-wardwright-session-id"] == name


def test_a_transcript_without_its_calls_is_counted_by_the_ledger(arena: Arena, wire: WireName, stream: bool) -> None:
    """G22: what happened in a session happened, whether or not the transcript still tells it."""
    session = arena.session()
    looped(arena, wire, stream, (f"{session}-1", f"{session}-2"), (session, session))
    arena.says(said(wire, "", (f"{session}-3", "wipe", {"x": CANARY})))
    answer = arena.post(wire, asked(wire, "again", ["wipe"], stream=stream, model="loop"), session)
    silent(answer)
    assert refused(wire, answer)["rule_id"] == "the-rule"


def test_calls_that_never_passed_here_count_too(arena: Arena, wire: WireName, stream: bool) -> None:
    """A conversation that comes from elsewhere brings its history along."""
    request = asked(wire, "hi", ["wipe"], stream=stream, model="loop")
    for number in range(3):
        reply, results = wiped(wire, f"elsewhere-{number}")
        request = goes_on(wire, request, reply, results)
    session = arena.session()
    arena.says()
    stopped(arena, wire, arena.post(wire, request, session), session)


def test_the_same_transcript_again_counts_once(arena: Arena, wire: WireName, stream: bool) -> None:
    """G3: an SDK that retries, and ids that are replayed, make no new calls."""
    session = arena.session()
    request = looped(arena, wire, stream, (f"{session}-1", f"{session}-2"), (session, session))
    arena.says()
    assert [arena.post(wire, request, session).status for _ in range(3)] == [200, 200, 200]


def test_a_call_under_the_id_of_another_is_told_apart(arena: Arena, wire: WireName, stream: bool) -> None:
    """G22: an id that passed with one call and comes back with another is an altered history."""
    session = arena.session()
    request = asked(wire, "hi", ["look"], stream=stream, model="history")
    arena.says(said(wire, "", (f"{session}-1", "look", {"x": "1"})))
    given = whole(wire, arena.post(wire, request, session))
    changed = orjson.loads(orjson.dumps(given).replace(b'"look"', b'"other"'))
    arena.says()
    answer = arena.post(wire, goes_on(wire, request, changed, {f"{session}-1": "x"}), session)
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert arena.actor.sent == []


def test_a_made_up_call_is_told_apart(arena: Arena, wire: WireName, stream: bool) -> None:
    """G22: in a session that has a ledger, a call that never passed is forged."""
    session = arena.session()
    request = asked(wire, "hi", ["look"], stream=stream, model="history")
    arena.says(said(wire, "", (f"{session}-1", "look", {"x": "1"})))
    given = whole(wire, arena.post(wire, request, session))
    request = goes_on(wire, request, given, {f"{session}-1": "x"})
    request = goes_on(
        wire, request, said(wire, "", (f"{session}-made-up", "look", {"x": "2"})), {f"{session}-made-up": "x"}
    )
    arena.says()
    answer = arena.post(wire, request, session)
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert arena.actor.sent == []


def test_a_result_for_a_denied_call_is_told_apart(arena: Arena, wire: WireName, stream: bool) -> None:
    """G22: a caller that runs a call which it should not have seen shows itself."""
    session = arena.session()
    request = asked(wire, "hi", ["look", "wipe"], stream=stream, model="history")
    both = said(wire, "", (f"{session}-1", "look", {"x": "1"}), (f"{session}-2", "wipe", {"x": "2"}))
    arena.says(both)
    assert calls_of(wire, whole(wire, arena.post(wire, request, session))) == ["look"]
    arena.says()
    answer = arena.post(wire, goes_on(wire, request, both, {f"{session}-1": "x", f"{session}-2": "x"}), session)
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert arena.actor.sent == []


def test_a_model_that_needs_a_session_takes_none_without(arena: Arena, wire: WireName, stream: bool) -> None:
    """`require_session`: without the header nothing is asked."""
    arena.says()
    answer = arena.post(wire, asked(wire, "hi", stream=stream, model="sessions"))
    assert answer.status == 400
    assert refused(wire, answer)["code"] == "session_required"
    assert arena.actor.sent == []


# Approvals


def approve(arena: Arena, handle: str) -> None:
    shown = arena.admin("GET", f"/v1/wardwright/approvals/{handle}")
    decided = arena.admin("POST", f"/v1/wardwright/approvals/{handle}/approve", {"seen": shown.json["digest"]})
    assert decided.status == 200, decided.body


def test_an_approval_is_for_one_request_in_one_session(arena: Arena, wire: WireName, stream: bool) -> None:
    """G23: not for other words, not for another session, not twice; a made-up handle opens nothing."""
    session, request = arena.session(), asked(wire, WORDS, stream=stream, model="ask")
    arena.says()
    held = arena.post(wire, request, session)
    assert held.status == 403
    handle = refused(wire, held)["approval"]
    approve(arena, handle)
    header = {"x-wardwright-approval": handle}
    more = asked(wire, f"{WORDS} And more.", stream=stream, model="ask")
    made_up = {"x-wardwright-approval": f"{handle[:-3]}abc"}
    attempts = [
        arena.post(wire, more, session, header),
        arena.post(wire, more, session),
        arena.post(wire, request, arena.session(), header),
        arena.post(wire, {**request, "temperature": 1}, session, header),
        arena.post(wire, asked(wire, WORDS, stream=stream, model="ask"), arena.session(), made_up),
    ]
    assert [one.status for one in attempts] == [403] * 5
    assert arena.actor.sent == []
    assert arena.post(wire, request, session).status == 200
    assert len(arena.actor.sent) == 1
    assert arena.post(wire, request, session).status == 403
    assert len(arena.actor.sent) == 1


# Bodies that are none


def unread(arena: Arena, wire: WireName, answer: Answer, *statuses: int) -> None:
    assert answer.status in (statuses or (400,)), answer.body
    refused(wire, answer)
    assert arena.actor.sent == []


BODIES: dict[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "text": b"hello",
    "cut": b'{"model": "plain", "messages": [',
    "twice": b'{"model":"plain"}{"model":"plain"}',
    "not-utf-8": b'{"model": "plain", "messages": [{"role": "user", "content": "\xff\xfe"}], "input": "\xc3\x28", "max_tokens": 5}',
    "overlong": b'{"model": "plain", "input": "\xc0\xaf", "messages": [{"role": "user", "content": "\xc0\xaf"}], "max_tokens": 5}',
    "surrogate": b'{"model": "plain", "input": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 5}',
    "utf-16": '{"model": "plain"}'.encode("utf-16"),
    "marked": b'\xef\xbb\xbf{"model": "plain"}',
    "nan": b'{"model": "plain", "messages": [], "input": [], "max_tokens": NaN}',
    "deep": b'{"model": "plain", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep-tool": b'{"model":"plain","max_tokens":5,"messages":[],"input":[],"tools":[{"type":"function","name":"a","parameters":'
    + b'{"a":' * 400
    + b"1"
    + b"}" * 400
    + b"}]}",
    "comment": b'{"model": "plain" /* hi */}',
    "number-model": b'{"model": 7, "messages": [], "input": [], "max_tokens": 5}',
    "null-byte": b'{"model": "plain"}\x00',
}


@pytest.mark.parametrize("odd", BODIES)
def test_a_body_that_cannot_be_read_is_refused(arena: Arena, wire: WireName, odd: str) -> None:
    """400 (or no such model) in the wire's own shape; nothing was judged, so nothing is recorded, and nobody asked."""
    arena.says()
    unread(arena, wire, arena.post(wire, BODIES[odd]), 400, 404)


def test_a_body_that_is_too_long_is_refused(arena: Arena, wire: WireName, stream: bool) -> None:
    """413, before it is read."""
    arena.says()
    unread(arena, wire, arena.post(wire, asked(wire, "x" * 300_000, stream=stream, model="plain")), 413)


def pieces(arena: Arena, wire: WireName, *chunks: bytes, wait: bool = False) -> Answer:
    """A body in chunks without a length; `wait`: the last one never comes."""
    answer = Answer()
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or wait}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.pieces.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH[wire],
        "raw_path": PATH[wire].encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8787"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8787),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }

    async def ask() -> None:
        await arena.gateway.front(scope, receive, send)

    arena.runner.run(ask())
    return answer


def test_a_body_in_chunks_is_judged_as_a_whole(arena: Arena, wire: WireName) -> None:
    """Words that are cut between two chunks are the same words."""
    raw = orjson.dumps(asked(wire, WORDS, model="words"))
    arena.says()
    middle = raw.index(b"FORBIDDEN") + 4
    answer = pieces(arena, wire, raw[:middle], raw[middle:], b"")
    assert answer.status == 403 and refused(wire, answer)["rule_id"] == "the-rule"
    assert arena.actor.sent == []


def test_chunks_without_end_are_refused(arena: Arena, wire: WireName) -> None:
    """A length that nobody declared is counted all the same."""
    arena.says()
    unread(arena, wire, pieces(arena, wire, *[b" " * 50_000] * 10, wait=True), 413)


def test_a_body_that_never_ends_is_refused(arena: Arena, wire: WireName) -> None:
    """A slow body holds its place for a bounded time."""
    arena.says()
    unread(arena, wire, pieces(arena, wire, b'{"model": "plain"', wait=True), 408)


@pytest.mark.parametrize("last", [False, True])
def test_of_a_key_that_comes_twice_the_provider_sees_what_was_judged(arena: Arena, wire: WireName, last: bool) -> None:
    """One value is read, and that one is written: not one for the policy and another for the provider."""
    key = {"chat_completions": "messages", "responses": "input", "anthropic": "messages"}[wire]
    harmless, harmful = (orjson.dumps([user(words)]) for words in ("hi", WORDS))
    first, second = (harmless, harmful) if last else (harmful, harmless)
    name = orjson.dumps(key)
    raw = b'{"model":"words","max_tokens":5,' + name + b":" + first + b"," + name + b":" + second + b"}"
    if wire == "responses":
        raw = raw.replace(b'"max_tokens":5,', b"")
    session = arena.session()
    arena.says()
    answer = arena.post(wire, raw, session)
    if last:
        stopped(arena, wire, answer, session)
    else:
        assert answer.status == 200, answer.body
        assert "FORBIDDEN" not in json.dumps(arena.actor.sent)


UNKNOWN: dict[str, tuple[WireName, dict[str, Any]]] = {
    "chat-field": chat(user("hi"), run_this={"name": "wipe"}),
    "chat-message-field": chat({**user("hi"), "attachments": [WORDS]}),
    "chat-part": chat(user([{"type": "future", "future": WORDS}])),
    "chat-part-field": chat(user([{**text("text", "hi"), "more": WORDS}])),
    "chat-role": chat({"role": "ghost", "content": WORDS}),
    "chat-tool": chat(user("hi"), tools=[{"type": "future", "future": {"name": "wipe"}}]),
    "chat-tool-field": chat(
        user("hi"), tools=[{"type": "function", "function": {"name": "look", "parameters": SCHEMA, "more": WORDS}}]
    ),
    "chat-prompt": chat(user("hi"), prompt={"id": "stored"}),
    "chat-route": chat(user("hi"), models=["other"]),
    "chat-plugins": chat(user("hi"), plugins=[{"id": "web"}]),
    "responses-field": responses("hi", run_this="wipe"),
    "responses-previous": responses("hi", previous_response_id="resp_1"),
    "responses-conversation": responses("hi", conversation="conv_1"),
    "responses-background": responses("hi", background=True),
    "responses-prompt": responses("hi", prompt={"id": "pmpt_1"}),
    "responses-reference": responses([{"type": "item_reference", "id": "x"}]),
    "responses-item": responses([{"type": "future_item", "text": WORDS}]),
    "responses-part": responses([user([{"type": "future", "text": WORDS}])]),
    "responses-tool": responses("hi", tools=[{"type": "future_tool"}]),
    "messages-field": messages(user("hi"), run_this="wipe"),
    "messages-thread": messages(user("hi"), thread="t"),
    "messages-block": messages(user([{"type": "future", "text": WORDS}])),
    "messages-block-field": messages(user([{**text("text", "hi"), "more": WORDS}])),
    "messages-role": messages({"role": "ghost", "content": WORDS}),
    "messages-tool": messages(user("hi"), tools=[{"type": "future_20990101", "name": "wipe"}]),
}


@pytest.mark.parametrize("place", UNKNOWN)
def test_what_nobody_understands_does_not_pass(arena: Arena, place: str, stream: bool) -> None:
    """G4: unknown fields, parts, roles and tools, and what would let the provider fetch unseen words."""
    wire, request = UNKNOWN[place]
    arena.says()
    unread(arena, wire, arena.post(wire, {**request, "model": "plain", "stream": stream}))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/V1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions/abc",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses/resp_1",
        "/v1/responses/compact",
        "/v1/messages/",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/complete",
        "/v1/batches",
        "/v1/files",
        "/v1/conversations",
        "/v1/../v1/messages",
        "/openai/deployments/plain/chat/completions",
    ],
)
def test_there_is_no_other_door(arena: Arena, path: str) -> None:
    """G4: a path we do not understand goes nowhere."""
    arena.says()
    answer = arena.runner.run(arena.gateway.post(path, asked("chat_completions", "hi", model="plain")))
    assert answer.status in (401, 404, 405), answer.body
    assert arena.actor.sent == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_there_is_no_other_method(arena: Arena, wire: WireName, method: str) -> None:
    """Only POST asks a model."""
    arena.says()
    raw = orjson.dumps(asked(wire, "hi", model="plain"))
    headers = {"host": "127.0.0.1:8787", "content-type": "application/json", "x-http-method-override": "POST"}
    answer = arena.runner.run(arena.gateway.ask(method, PATH[wire], raw, headers))
    unread(arena, wire, answer, 405)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1:8787", "origin": "https://evil.example"},
        {"host": "127.0.0.1:8787", "content-type": "text/plain", "origin": "null"},
        {"host": "127.0.0.1:8787", "content-encoding": "gzip"},
        {"host": "127.0.0.1:8787", "x-wardwright-session-id": "x" * 1000},
    ],
    ids=["host", "origin", "null-origin", "encoded", "long-session"],
)
def test_a_request_that_nobody_may_send_is_not_read(arena: Arena, wire: WireName, headers: dict[str, str]) -> None:
    """G63: foreign hosts and pages, encodings that would hide the body, claims that are none."""
    arena.says()
    raw = orjson.dumps(asked(wire, "hi", model="plain"))
    answer = arena.runner.run(arena.gateway.ask("POST", PATH[wire], raw, headers))
    unread(arena, wire, answer, 400, 403, 415)


def test_every_answer_is_json_or_events(arena: Arena, wire: WireName, stream: bool) -> None:
    """A refusal of a streamed request before anything was said is a plain error, which clients raise at once."""
    arena.says()
    answer = arena.post(wire, asked(wire, WORDS, stream=stream, model="words"), arena.session())
    assert answer.headers["content-type"] == "application/json"
    assert len(events(answer)) == 1


# Ids


@pytest.mark.parametrize("ids", ["same", "empty", "missing", "numbered"])
@pytest.mark.parametrize("arguments", ["alike", "different"])
def test_calls_without_ids_of_their_own_are_counted_one_by_one(
    arena: Arena, wire: WireName, ids: str, arguments: str
) -> None:
    """A loop cannot be hidden by giving all its calls one id, or none: each stands in the transcript, so each happened."""
    request = asked(wire, "hi", ["wipe"], model="loop")
    session = arena.session()
    for number in range(3):
        call_id = {"same": f"{session}-x", "empty": "", "missing": "GONE", "numbered": str(number)}[ids]
        argument = {"x": "1" if arguments == "alike" else str(number)}
        request = goes_on(wire, request, said(wire, "", (call_id, "wipe", argument)), {call_id: "done"})
    if ids == "missing":
        request = without(request, "GONE")
    arena.says()
    answer = arena.post(wire, request, session)
    assert answer.status in (400, 403), answer.body
    refused(wire, answer)
    assert arena.actor.sent == []


def without(value: Any, word: str) -> Any:
    """The same without the fields that say this word."""
    if isinstance(value, dict):
        return {key: without(one, word) for key, one in value.items() if one != word}
    return [without(one, word) for one in value] if isinstance(value, list) else value


def test_legacy_calls_are_counted(arena: Arena) -> None:
    """Functions that have no ids at all."""
    history: list[Any] = [user("hi")]
    for _ in range(3):
        history.append({"role": "assistant", "content": None, "function_call": {"name": "wipe", "arguments": "{}"}})
        history.append({"role": "function", "name": "wipe", "content": "done"})
    session = arena.session()
    arena.says()
    request = {"model": "loop", "messages": history}
    stopped(arena, "chat_completions", arena.post("chat_completions", request, session), session)


def test_a_provider_that_gives_everybody_the_same_ids_mixes_no_sessions(
    arena: Arena, wire: WireName, stream: bool
) -> None:
    """Two conversations whose calls have the same id stay two: each joins its own session, and counts its own calls."""
    sessions = arena.session(), arena.session()
    shared = f"call_{sessions[0]}"
    requests: list[Any] = []
    for session in sessions:
        request = asked(wire, "hi", ["wipe"], stream=stream, model="loop")
        arena.says(said(wire, "", (shared, "wipe", {"x": "1"})))
        reply = whole(wire, arena.post(wire, request, session))
        (made,) = {*called(wire, reply)}
        requests.append(goes_on(wire, request, reply, {made: "done"}))
    arena.says()
    for session, request in zip(sessions, requests, strict=True):
        answer = arena.post(wire, request, session)
        assert answer.status == 200, answer.body
        assert answer.headers["x-wardwright-session-id"] == session


def test_a_tool_that_is_added_or_taken_away_is_not_told_to_the_caller(arena: Arena, stream: bool) -> None:
    """Responses repeat their request: the caller reads its own there, not the one that was sent on."""
    session = arena.session()
    reply = said("responses", "Very well.")
    reply |= {"tools": [{"type": "function", "name": "look", "parameters": SCHEMA}], "instructions": "secret words"}
    arena.says(reply)
    answer = arena.post("responses", asked("responses", "hi", ["look", "wipe"], stream=stream, model="strip"), session)
    told = whole("responses", answer)
    assert [one["name"] for one in told["tools"]] == ["look", "wipe"]
    assert told["instructions"] is None and b"secret words" not in answer.body
