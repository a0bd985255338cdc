"""One gateway for many attacks: a model per denial, a provider that says anything, and what may never be in an answer.

Everything happens in the process; every attack has a session of its own, so that they share nothing but the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from wardwright import receipts
from wardwright.catalog import fold
from wardwright.config import parse_config
from wardwright.errors import ProviderFailed
from wardwright.http.service import Service
from wardwright.http.start import front
from wardwright.providers.response import Canned, Response
from wardwright.store import ReceiptQuery
from wardwright.wire.turn import WireName

from ..http.gateway_fixture import PATH, Answer, Provider, Running, asked, called, goes_on, said
from .loopback import streamed

WIRES: tuple[WireName, ...] = ("chat_completions", "responses", "anthropic")
CANARY = "canary-4711"
"""Stands in the arguments of every denied call, and nowhere else."""


@dataclass
class Raw:
    """What a provider sends instead of a reply: these bytes, in these pieces."""

    pieces: Sequence[bytes]
    broken: bool = False
    """The connection ends with an error behind them."""


class _Broken(Canned):
    async def __anext__(self) -> bytes:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            raise ProviderFailed("broken", "the connection broke off") from None


class Actor(Provider):
    """Says what it is told, in streams that are not written by the gateway's own code; after that, nothing worth judging."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[dict[str, Any] | Raw | ProviderFailed] = []

    async def send(self, wire: WireName, body: bytes, *, stream: bool, model: str, **more: Any) -> Response:
        await asyncio.sleep(0)
        given = orjson.loads(body)
        self.sent.append(given)
        reply = self.script.pop(0) if self.script else said(wire, "Very well.")
        if isinstance(reply, ProviderFailed):
            raise reply
        kind = "text/event-stream" if stream else "application/json"
        if isinstance(reply, Raw):
            return (_Broken if reply.broken else Canned)(200, kind, reply.pieces)
        if not stream:
            return Canned(200, kind, [orjson.dumps(reply)])
        return Canned(200, kind, list(streamed(PATH[wire], reply, given)))


@dataclass
class Arena:
    """The gateway, opened, and the loop it lives in."""

    runner: asyncio.Runner
    gateway: Running
    actor: Actor
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def session(self) -> str:
        return f"session-{next(self._numbers)}"

    def says(self, *replies: dict[str, Any] | Raw | ProviderFailed) -> None:
        """What the provider will say; forgets what it was asked."""
        self.actor.script = list(replies)
        self.actor.sent.clear()

    def post(self, wire: WireName, body: Any, session: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        return self.runner.run(self.gateway.post(PATH[wire], body, headers, session=session))

    def admin(self, method: str, path: str, body: Any = None) -> Answer:
        return self.runner.run(self.gateway.admin(method, path, body))

    def receipts(self, session: str) -> list[dict[str, Any]]:
        """Of one session, newest first."""
        page = self.gateway.service.store.receipts(ReceiptQuery({"session_id": (session,)}))
        return [receipts.load(stored.row.body) for stored in page.receipts]

    def last(self, answer: Answer) -> dict[str, Any]:
        """The receipt that an answer names."""
        return self.gateway.receipt(answer)

    def count(self, session: str) -> int:
        """Of the exchanges of one session that have a receipt."""
        query = ReceiptQuery({"session_id": (session,), "kind": ("exchange",)})
        return len(self.gateway.service.store.receipts(query).receipts)


@contextlib.contextmanager
def opened(folder: Path, config: str, clock_ms: Callable[[], int] | None = None) -> Iterator[Arena]:
    """A gateway over `config`, whose provider `double` is an Actor."""
    path = folder / "gateway.yaml"
    path.write_text(config)
    options: dict[str, Any] = {} if clock_ms is None else {"clock_ms": clock_ms}
    with asyncio.Runner() as runner:

        async def start() -> Running:
            service = Service(parse_config(config, str(path)), str(folder / "gateway.db"), "127.0.0.1", **options)
            application = front(service)
            await application.open()
            live = service.gateway.live
            actor = Actor()
            service.gateway.live = replace(live, providers={**live.providers, "double": actor})
            return Running(service, application, actor, actor)

        gateway = runner.run(start())
        try:
            yield Arena(runner, gateway, gateway.provider)  # type: ignore[arg-type]
        finally:
            runner.run(gateway.front.close())


# What an answer says


def events(answer: Answer) -> list[Any]:
    """The data of a stream's events; of any other answer, its body."""
    if "text/event-stream" not in answer.headers["content-type"]:
        return [answer.json]
    found: list[Any] = []
    for block in answer.body.split(b"\n\n"):
        data = b"".join(line[6:] for line in block.split(b"\n") if line.startswith(b"data: "))
        if data and data != b"[DONE]":
            found.append(orjson.loads(data))
    return found


def strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every text in a value, with the key it stands under."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield "key", key
            yield from ((name or key, text) for name, text in strings(one))
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    elif isinstance(value, str):
        yield "", value


def silent(answer: Answer, *secrets: str) -> None:
    """None of these is in an answer: not in its bytes, not in its headers, not put together from the pieces of its events."""
    pieces: dict[str, str] = {}
    for one in events(answer):
        for key, text in strings(one):
            pieces[key] = pieces.get(key, "") + text
    for secret in secrets or (CANARY,):
        assert secret.encode() not in answer.body
        assert not any(secret in value for value in answer.headers.values())
        assert not any(secret in text for text in pieces.values())


def calls_of(wire: WireName, reply: Any) -> list[str]:
    """Names of all calls in a reply, however they are written."""
    found: list[str] = []
    if wire == "chat_completions":
        for choice in reply["choices"]:
            message = choice["message"]
            calls = message.get("tool_calls") or ()
            found += [(call.get("function") or call.get("custom"))["name"] for call in calls]
            if message.get("function_call"):
                found.append(message["function_call"]["name"])
    elif wire == "anthropic":
        found = [block["name"] for block in reply["content"] if block["type"].endswith("tool_use")]
    else:
        found = [item["name"] for item in reply["output"] if item["type"].endswith("_call") and "name" in item]
    return found


def whole(wire: WireName, answer: Answer) -> dict[str, Any]:
    """An answer that passed, as its caller understands it."""
    assert answer.status == 200, answer.body
    if "text/event-stream" not in answer.headers["content-type"]:
        return answer.json
    from wardwright.wire import anthropic, chat_completions, responses

    modules: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
    assembler = modules[wire].StreamAssembler()
    assembler.feed(answer.body)
    assembler.close()
    assert assembler.complete, answer.body
    return assembler.body()


def refused(wire: WireName, answer: Answer) -> dict[str, Any]:
    """The error in an answer that did not pass, after a look at its shape: the wire's own, whole or as the last event."""
    last = events(answer)[-1]
    if wire == "anthropic":
        assert last["type"] == "error", answer.body
        error = last["error"]
        assert error["type"] in ANTHROPIC_ERRORS
    else:
        error = last["error"]
        assert set(error) >= {"type", "code", "message"}
        if answer.status == 200 and wire == "responses":
            assert last["type"] == "error"
    if answer.status == 200:  # in a stream: nothing may look like a proper end
        assert not any(end in answer.body for end in (b"[DONE]", b"message_stop", b"response.completed"))
    assert error["message"]
    return error


ANTHROPIC_ERRORS = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
}

__all__ = [
    "CANARY",
    "PATH",
    "WIRES",
    "Actor",
    "Answer",
    "Arena",
    "Raw",
    "asked",
    "called",
    "calls_of",
    "events",
    "fold",
    "goes_on",
    "opened",
    "refused",
    "said",
    "silent",
    "whole",
]
