"""One exchange after the other through a whole gateway: what the provider sees, what the caller sees, what is recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.errors import ProviderFailed
from wardwright.http.app import CALLER
from wardwright.overlay import Stop
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Running, asked, called, goes_on, running, said

WIRES: tuple[WireName, ...] = ("chat_completions", "responses", "anthropic")
CONFIG = """
model_id: m
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}, other: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets:
  - {model: first, provider: double, context_window: 100000}
  - {model: second, provider: other, context_window: 100000}
governance:
  - {id: no-wipe, kind: tool_selector, action: deny_call, message: No wiping here., tool: {name: wipe, source: assistant_tool_call}}
  - {id: no-bomb, kind: tool_selector, action: block, message: Never., tool: {name: bomb}}
  - {id: ask-first, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
  - {id: no-secrets, kind: request_guard, action: block, match: "top secret"}
"""


def read(wire: WireName, answer: Any, stream: bool) -> dict[str, Any]:
    """The reply as its caller understands it, streamed or not."""
    if not stream:
        return answer.json
    from wardwright.wire import anthropic, chat_completions, responses

    modules: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
    assembler = modules[wire].StreamAssembler()
    assembler.feed(answer.body)
    assembler.close()
    assert assembler.complete
    return assembler.body()


async def decide(gateway: Running, handle: str, word: str) -> None:
    """As an operator does: looks, then decides about what was seen."""
    shown = await gateway.admin("GET", f"/v1/wardwright/approvals/{handle}")
    assert shown.status == 200, shown.body
    path = f"/v1/wardwright/approvals/{handle}/{word}"
    decided = await gateway.admin("POST", path, {"seen": shown.json["digest"]})
    assert decided.status == 200, decided.body


def test_a_reply_passes_and_leaves_one_receipt(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G1, G31, X2: words and allowed calls reach the caller as the provider said them; the receipt names the model that answered."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "Hello.", ("c1", "look", {"x": "1"}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream))
        assert answer.status == 200, answer.body
        reply = read(wire, answer, stream)
        assert called(wire, reply) == ["c1"]
        assert b"Hello." in answer.body
        receipt = gateway.receipt(answer)
        assert receipt["final"]["status"] == "released"
        assert answer.headers["x-wardwright-selected-model"] == receipt["final"]["selected_model"] == "first"
        assert len(gateway.receipts()) == 1
        assert gateway.provider.sent[0]["model"] == "first"

    running(tmp_path, CONFIG, story)


def test_a_request_that_policy_blocks_never_reaches_the_provider(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G1, G34, X1: the refusal is the wire's own error with rule and receipt, also when a stream was asked for."""

    async def story(gateway: Running) -> None:
        answer = await gateway.post(PATH[wire], asked(wire, "this is top secret", stream=stream))
        assert answer.status == 403
        assert answer.json["error"]["rule_id"] == "no-secrets"
        assert answer.json["error"]["receipt_id"] == answer.receipt_id
        assert gateway.provider.sent == []
        assert gateway.receipt(answer)["final"]["status"] == "blocked"

    running(tmp_path, CONFIG, story)


def test_a_reply_with_a_blocked_call_does_not_pass(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G1, G2: a block at the reply refuses all of it; streamed words that passed before are followed by an error, and nothing of the call."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "", ("c1", "bomb", {"x": "boom-argument"}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["bomb"], stream=stream))
        assert b"boom-argument" not in answer.body
        assert b"no-bomb" in answer.body
        assert answer.status == 403
        assert gateway.receipt(answer)["final"]["status"] == "blocked"

    running(tmp_path, CONFIG, story)


def test_a_block_after_words_have_passed_is_an_error_event(tmp_path: Path, wire: WireName) -> None:
    """G2, G34, X5: the stream ends with the wire's error, never with a finished message."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "Let me see.", ("c1", "bomb", {"x": "boom-argument"}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["bomb"], stream=True))
        assert answer.status == 200
        assert b"Let me see." in answer.body
        assert b"boom-argument" not in answer.body and b'"bomb"' not in answer.body
        assert b"no-bomb" in answer.body
        assert gateway.receipt(answer)["final"]["status"] == "blocked"

    running(tmp_path, CONFIG, story)


def test_denied_calls_are_answered_and_the_model_asked_again(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G27: all calls denied: the provider gets tool errors and goes on; the caller sees one message, without them."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "", ("c1", "wipe", {"x": "rm"})), said(wire, "Then I will not.")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["wipe"], stream=stream))
        assert answer.status == 200, answer.body
        assert b"Then I will not." in answer.body and b'"rm' not in answer.body
        assert called(wire, read(wire, answer, stream)) == []
        assert len(gateway.provider.sent) == 2
        assert b"No wiping here." in orjson.dumps(gateway.provider.sent[1])
        receipt = gateway.receipt(answer)
        assert receipt["final"]["tool_policy"]["status"] == "denied"
        assert [gate["gate"] for gate in receipt["decision"]["gates"]] == ["request", "reply", "reply"]

    running(tmp_path, CONFIG, story)


def test_a_model_that_insists_is_refused_in_the_end(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G27: the rounds of one request are bounded; then it is a refusal, not an endless bill."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "", (f"c{n}", "wipe", {"x": str(n)})) for n in range(20)]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["wipe"], stream=stream))
        assert answer.status == 403
        assert len(gateway.provider.sent) == 9
        assert gateway.receipt(answer)["final"]["status"] == "blocked"

    running(tmp_path, CONFIG, story)


def test_partly_denied_calls_are_spliced_into_the_next_request(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G27: the caller never sees the denied call; the provider later sees it with its error, beside its siblings."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["look", "wipe"], stream=stream)
        gateway.provider.replies = [
            said(wire, "", ("c1", "look", {"x": "1"}), ("c2", "wipe", {"x": "rm"})),
            said(wire, "Done."),
            said(wire, "Done again."),
        ]
        answer = await gateway.post(PATH[wire], first, session="s1")
        reply = read(wire, answer, stream)
        assert called(wire, reply) == ["c1"]
        assert b"wipe" not in answer.body
        following = goes_on(wire, first, reply, {"c1": "seen"})
        for _ in range(2):
            after = await gateway.post(PATH[wire], following, session="s1")
            assert after.status == 200, after.body
            sent = orjson.dumps(gateway.provider.sent[-1])
            assert b"c2" in sent and b"No wiping here." in sent and b"seen" in sent
        # Our own removal is no mismatch of the caller's.
        marks = [
            fact.get("marks") for gate in gateway.receipt(after)["decision"]["gates"] for fact in gate.get("facts", [])
        ]
        assert not any(marks)

    running(tmp_path, CONFIG, story)


def test_a_held_reply_is_released_once_after_somebody_approved(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G23: refused with a handle; the same request again releases that very reply, without asking the provider, and only once."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "ship it", ["deploy"], stream=stream)
        gateway.provider.replies = [said(wire, "", ("c1", "deploy", {"x": "prod"})), said(wire, "Other.")]
        held = await gateway.post(PATH[wire], body, session="s1")
        assert held.status == 403
        handle = held.json["error"]["approval"]
        waiting = await gateway.post(PATH[wire], body, session="s1")
        assert waiting.status == 403 and waiting.json["error"]["code"] == "approval_pending"
        listed = await gateway.admin("GET", "/v1/wardwright/approvals")
        assert listed.status == 200 and handle in listed.body.decode() and "prod" in listed.body.decode()
        await decide(gateway, handle, "approve")
        released = await gateway.post(PATH[wire], body, session="s1")
        assert released.status == 200, released.body
        assert called(wire, read(wire, released, stream)) == ["c1"]
        assert len(gateway.provider.sent) == 1
        again = await gateway.post(PATH[wire], body, session="s1")
        assert again.status == 200
        assert len(gateway.provider.sent) == 2

    running(tmp_path, CONFIG, story)


def test_a_rejected_reply_stays_refused(tmp_path: Path, wire: WireName) -> None:
    """G23: after a rejection the same request is told so, and no provider is asked."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "ship it", ["deploy"])
        gateway.provider.replies = [said(wire, "", ("c1", "deploy", {"x": "prod"}))]
        held = await gateway.post(PATH[wire], body, session="s1")
        handle = held.json["error"]["approval"]
        await decide(gateway, handle, "reject")
        refused = await gateway.post(PATH[wire], body, session="s1")
        assert refused.status == 403 and refused.json["error"]["code"] == "approval_rejected"
        assert len(gateway.provider.sent) == 1

    running(tmp_path, CONFIG, story)


def test_a_failed_provider_is_replaced_within_the_ruling(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G42, X4: the next target answers; both attempts are on the receipt."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [ProviderFailed("connect", "nobody is there")]
        gateway.other.replies = [said(wire, "Here I am.")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", stream=stream))
        assert answer.status == 200 and b"Here I am." in answer.body
        assert answer.headers["x-wardwright-selected-model"] == "second"
        attempts = gateway.receipt(answer)["final"]["attempts"]
        assert [(one["model"], one["status"]) for one in attempts] == [("first", "failed"), ("second", "answered")]

    running(tmp_path, CONFIG, story)


def test_when_every_provider_fails_the_caller_is_told_and_it_is_recorded(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G42, X2: an outage of all targets is a bad gateway with a receipt, in the wire's own error shape."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [ProviderFailed("connect", "nobody is there")]
        gateway.other.replies = [ProviderFailed("timeout", "it took too long")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", stream=stream))
        assert answer.status == 504
        assert "it took too long" in answer.json["error"]["message"]
        assert gateway.receipt(answer)["final"]["status"] == "failed"

    running(tmp_path, CONFIG, story)


def test_a_rotated_session_id_does_not_leave_the_session(tmp_path: Path, wire: WireName) -> None:
    """G20: a transcript with calls we let pass belongs to their session, whatever header comes with it."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["look"])
        gateway.provider.replies = [said(wire, "", ("c1", "look", {"x": "1"})), said(wire, "Done.")]
        answer = await gateway.post(PATH[wire], first, session="s1")
        following = goes_on(wire, first, answer.json, {"c1": "seen"})
        after = await gateway.post(PATH[wire], following, session="another")
        assert after.headers["x-wardwright-session-id"] == "s1"

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("theirs", WIRES)
def test_a_provider_may_speak_another_wire_than_the_caller(
    tmp_path: Path, wire: WireName, theirs: WireName, stream: bool
) -> None:
    """G24: the same conversation over another wire: words, calls, denials and results all arrive."""

    async def story(gateway: Running) -> None:
        first = asked(wire, "hi", ["look", "wipe"], stream=stream)
        gateway.provider.replies = [
            said(theirs, "Looking.", ("c1", "look", {"x": "1"}), ("c2", "wipe", {"x": "rm"})),
            said(theirs, "Done."),
        ]
        answer = await gateway.post(PATH[wire], first, session="s1")
        assert answer.status == 200, answer.body
        reply = read(wire, answer, stream)
        assert called(wire, reply) == ["c1"]
        assert b"Looking." in answer.body and b"wipe" not in answer.body
        after = await gateway.post(PATH[wire], goes_on(wire, first, reply, {"c1": "seen"}), session="s1")
        assert after.status == 200 and b"Done." in after.body
        sent = orjson.dumps(gateway.provider.sent[-1])
        assert b"seen" in sent and b"No wiping here." in sent

    running(tmp_path, CONFIG, story, wire=theirs)


ASKING = CONFIG + "  - {id: sign-off, kind: request_guard, action: require_approval, match: wire the money}\n"


def test_a_request_that_waits_is_judged_again_once_it_is_approved(tmp_path: Path, wire: WireName) -> None:
    """G23 at the request: held, told to wait, approved; then it passes once, and the next one waits anew."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "please wire the money")
        gateway.provider.replies = [said(wire, "Done.")]
        held = await gateway.post(PATH[wire], body, session="s1")
        assert held.status == 403 and held.json["error"]["code"] == "approval_required"
        handle = held.json["error"]["approval"]
        waiting = await gateway.post(PATH[wire], body, session="s1")
        assert waiting.json["error"]["code"] == "approval_pending"
        shown = await gateway.admin("GET", f"/v1/wardwright/approvals/{handle}")
        assert b"please wire the money" in shown.body
        await decide(gateway, handle, "approve")
        passed = await gateway.post(PATH[wire], body, session="s1")
        assert passed.status == 200 and b"Done." in passed.body
        again = await gateway.post(PATH[wire], body, session="s1")
        assert again.status == 403
        assert len(gateway.provider.sent) == 1

    running(tmp_path, ASKING, story)


def test_a_rejected_request_is_told_so(tmp_path: Path, wire: WireName) -> None:
    """G23: whoever asks again after a rejection learns that somebody said no."""

    async def story(gateway: Running) -> None:
        body = asked(wire, "please wire the money")
        held = await gateway.post(PATH[wire], body, session="s1")
        await decide(gateway, held.json["error"]["approval"], "reject")
        refused = await gateway.post(PATH[wire], body, session="s1")
        assert refused.status == 403 and refused.json["error"]["code"] == "approval_rejected"
        assert gateway.provider.sent == []

    running(tmp_path, ASKING, story)


def test_a_stop_that_comes_while_the_provider_works_refuses_the_reply(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G63: a stopped tool's call does not reach the caller, even if it was not stopped when the request passed."""

    async def story(gateway: Running) -> None:
        def reply(_: dict[str, Any]) -> dict[str, Any]:
            gateway.service.overlay.set_stop(Stop("tool", "look"), "op", "", gateway.service.now_ms())
            return said(wire, "", ("c1", "look", {"x": "secret-argument"}))

        gateway.provider.replies = [reply]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream))
        assert answer.status == 403 and answer.json["error"]["code"] == "emergency_stop"
        assert b"secret-argument" not in answer.body
        refused = await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream))
        assert refused.status == 403 and len(gateway.provider.sent) == 1

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("choices", [None, []], ids=["null", "empty"])
def test_a_reply_without_an_answer_is_a_broken_one(tmp_path: Path, choices: Any) -> None:
    """X4: `choices: null` is no answer: the next target is asked, and without one the caller is told of a broken provider."""

    async def story(gateway: Running) -> None:
        nothing = {**said("chat_completions"), "choices": choices}
        gateway.provider.replies, gateway.other.replies = [nothing, nothing], [said("chat_completions", "Hi."), nothing]
        body = asked("chat_completions", "hi")
        answer = await gateway.post(PATH["chat_completions"], body)
        assert answer.status == 200 and b"Hi." in answer.body
        broken = await gateway.post(PATH["chat_completions"], body)
        assert broken.status == 502 and broken.json["error"]["code"] == "provider_broken"
        assert gateway.receipt(broken)["final"]["status"] == "failed"

    running(tmp_path, CONFIG, story)


class Taking:
    """A caller of our own server, who takes a whole answer in one call, or does not."""

    def __init__(self, raw: bytes, takes: bool) -> None:
        self.raw, self.takes, self.head = raw, takes, 0
        self.got: list[tuple[int, bytes, bytes]] = []

    def body(self) -> bytes | None:
        return self.raw

    def on_hang_up(self, tell: Callable[[], None]) -> None: ...

    def answer(self, status: int, lines: bytes, body: bytes) -> bool:
        self.got += [(status, lines, body)] if self.takes else []
        return self.takes


@pytest.mark.parametrize("session", ["s1", "Sitzung fünf", ""])
def test_an_answer_says_the_same_in_one_call_and_in_two(tmp_path: Path, wire: WireName, session: str) -> None:
    """W6: its headers are written twice in the code, and must stay the same; ids that are made up apart."""

    async def story(gateway: Running) -> None:
        told: list[tuple[int, bytes, bytes]] = []
        for takes in (True, False):
            gateway.provider.replies = [said(wire, "Hello.")]
            caller = Taking(orjson.dumps(asked(wire, "hi")), takes)
            headers = {"host": "127.0.0.1:8787", "content-type": "application/json"}
            if session:
                headers["x-wardwright-session-id"] = session
            answer = await gateway.ask("POST", PATH[wire], b"", headers, extensions={CALLER: caller})
            lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items()).encode()
            status, lines, body = caller.got[0] if takes else (answer.status, lines, answer.body)
            told.append((status, re.sub(rb"(rcpt|ses)_[0-9a-f]+", rb"\1", lines), body))
        assert told[0] == told[1]
        assert session.encode() in told[0][1]
        assert len(gateway.receipts()) == 2

    running(tmp_path, CONFIG, story)
