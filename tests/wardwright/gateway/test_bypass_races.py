"""Attacks by timing: many requests at once, callers that hang up, answers that come late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
import pytest

from wardwright.providers.response import Response
from wardwright.wire.turn import WireName

from .arena import (
    CANARY,
    PATH,
    Answer,
    Arena,
    Raw,
    asked,
    calls_of,
    events,
    opened,
    refused,
    said,
    silent,
    whole,
)
from .loopback import streamed

TARGETS = "targets: [{model: first, provider: double, context_window: 1000000}]"
CONFIG = f"""
limits: {{keep_alive: 5ms}}
providers: {{double: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}}}
models:
  - model_id: budget
    {TARGETS}
    governance: [{{id: the-rule, kind: budget, action: block, limits: {{calls: 1}}, tool: {{name: wipe}}}}]
  - model_id: loop
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_loop_threshold, action: deny_call, threshold: 2, tool: {{name: wipe}}}}]
  - model_id: ask
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: require_approval, tool: {{name: wipe, source: assistant_tool_call}}}}]
  - model_id: block
    {TARGETS}
    governance: [{{id: the-rule, kind: tool_selector, action: block, tool: {{name: wipe, source: assistant_tool_call}}}}]
"""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with opened(tmp_path_factory.mktemp("races"), CONFIG) as gateway:
        yield gateway


def at_once(arena: Arena, wire: WireName, bodies: list[Any], session: str) -> list[Answer]:
    async def ask() -> list[Answer]:
        return await asyncio.gather(*[arena.gateway.post(PATH[wire], one, session=session) for one in bodies])

    return arena.runner.run(ask())


def passed(wire: WireName, answers: list[Answer]) -> int:
    """How many answers hold a call; the others are refused, or say something else."""
    found = 0
    for answer in answers:
        if answer.status != 200 or b"error" in answer.body:
            refused(wire, answer)
        else:
            found += "wipe" in calls_of(wire, whole(wire, answer))
    return found


@pytest.mark.parametrize("model", ["budget", "loop"])
def test_many_at_once_get_no_more_than_one_after_the_other(
    arena: Arena, wire: WireName, stream: bool, model: str
) -> None:
    """G31: what is counted is counted before it is released, also between requests that are under way together."""
    session = arena.session()
    arena.says(*[said(wire, "", (f"{session}-{number}", "wipe", {"x": str(number)})) for number in range(8)])
    bodies = [asked(wire, f"number {number}", ["wipe"], stream=stream, model=model) for number in range(8)]
    answers = at_once(arena, wire, bodies, session)
    assert passed(wire, answers) == 1
    assert arena.count(session) == 8


def test_an_approved_reply_is_released_once(arena: Arena, wire: WireName, stream: bool) -> None:
    """G23: used up by one release, however many ask for it at the same moment."""
    session = arena.session()
    body = asked(wire, "hi", ["wipe"], stream=stream, model="ask")
    arena.says(said(wire, "", (f"{session}-1", "wipe", {"x": CANARY})))
    held = arena.post(wire, body, session)
    silent(held)
    handle = refused(wire, held)["approval"]
    shown = arena.admin("GET", f"/v1/wardwright/approvals/{handle}")
    decided = arena.admin("POST", f"/v1/wardwright/approvals/{handle}/approve", {"seen": shown.json["digest"]})
    assert decided.status == 200
    arena.says()
    answers = at_once(arena, wire, [body] * 6, session)
    assert passed(wire, answers) == 1
    assert {answer.status for answer in answers} <= {200, 403, 410}
    assert arena.count(session) == 7


class _Slow:
    """A stream whose pieces come when they are let."""

    status, streamed = 200, True

    def __init__(self, pieces: list[bytes], wait: Callable[[int], Any]) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self._pieces = pieces
        self._wait = wait

    async def read(self, limit: int) -> bytes:
        return b"".join(self._pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self._pieces):
            await self._wait(number)
            yield piece

    def close(self) -> None: ...


def slowly(arena: Arena, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], wait: Callable[[int], Any]) -> None:
    async def send(*_: Any, **__: Any) -> Response:
        return _Slow(pieces, wait)

    monkeypatch.setattr(arena.actor, "send", send)


@pytest.mark.parametrize("words", ["", "Let me see."])
def test_a_refusal_after_a_comment_is_an_event(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, wire: WireName, words: str
) -> None:
    """While a call is held the caller hears that we live; then the refusal is the last event, and the call is in none."""
    heard = asyncio.Event()
    pieces = list(streamed(PATH[wire], said(wire, words, ("bad", "wipe", {"x": CANARY})), {}))

    async def wait(number: int) -> None:
        if number == len(pieces) - 1:
            await heard.wait()

    slowly(arena, monkeypatch, pieces, wait)
    session = arena.session()
    answer = Answer()

    async def ask() -> Answer:
        asking = asyncio.ensure_future(
            listened(arena, wire, asked(wire, "hi", ["wipe"], stream=True, model="block"), session, answer)
        )
        while b": keep-alive" not in answer.body:
            await asyncio.sleep(0)
        heard.set()
        await asking
        return answer

    arena.runner.run(ask())
    assert answer.status == 200
    silent(answer)
    assert refused(wire, answer)["rule_id"] == "the-rule"
    assert arena.count(session) == 1


async def listened(
    arena: Arena, wire: WireName, body: Any, session: str, answer: Answer, gone: asyncio.Event | None = None
) -> None:
    """A request whose answer can be watched while it comes; `gone`: the caller hangs up."""
    raw = orjson.dumps(body)
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": raw}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert not answer.status, "an answer begins once"
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.pieces.append(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1:8787"), (b"x-wardwright-session-id", session.encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH[wire],
        "raw_path": PATH[wire].encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8787),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }
    await arena.gateway.front(scope, receive, send)


def test_a_caller_that_hangs_up_leaves_one_receipt(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, wire: WireName
) -> None:
    """X2: at every place of the stream; and the call that was under way is none that passed."""
    pieces = list(streamed(PATH[wire], said(wire, "Let me see.", ("bad", "wipe", {"x": CANARY})), {}))
    for place in range(len(pieces)):
        gone, never = asyncio.Event(), asyncio.Event()

        async def wait(
            number: int, place: int = place, gone: asyncio.Event = gone, never: asyncio.Event = never
        ) -> None:
            if number == place:
                gone.set()
                await never.wait()

        slowly(arena, monkeypatch, pieces, wait)
        session, answer = arena.session(), Answer()
        body = asked(wire, "hi", ["wipe"], stream=True, model="block")
        arena.runner.run(listened(arena, wire, body, session, answer, gone))
        assert CANARY.encode() not in answer.body
        (receipt,) = arena.receipts(session)
        assert receipt["final"]["status"] == "failed"


def test_a_comment_never_follows_the_end(arena: Arena, wire: WireName) -> None:
    """However late the caller takes the answer, it begins once and nothing comes behind it."""
    session, answer = arena.session(), Answer()
    arena.says(Raw([b"data: nothing\n\n"]))
    sent: list[str] = []

    async def ask() -> None:
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()
            given = True
            return {"type": "http.request", "body": orjson.dumps(asked(wire, "hi", stream=True, model="block"))}

        async def send(message: Any) -> None:
            begins = message["type"] == "http.response.start"
            sent.append("begin" if begins else "more" if message.get("more_body") else "end")
            if begins:
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                loop = asyncio.get_running_loop()
                until = loop.time() + 0.03
                while loop.time() < until:  # several times the silence after which a comment is due
                    await asyncio.sleep(0)
            else:
                answer.pieces.append(message.get("body", b""))

        headers = [(b"host", b"127.0.0.1:8787"), (b"x-wardwright-session-id", session.encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH[wire],
            "raw_path": PATH[wire].encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8787),
            "scheme": "http",
            "root_path": "",
            "http_version": "1.1",
        }
        await arena.gateway.front(scope, receive, send)

    arena.runner.run(ask())
    # A comment may have been due before the answer: then the refusal is an event behind it.
    assert sent.count("begin") == sent.count("end") == 1
    assert (sent[0], sent[-1]) == ("begin", "end")
    assert len(events(answer)) == 1
    refused(wire, answer)
