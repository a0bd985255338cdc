"""A provider that speaks the real wire formats, and a served gateway before it, both on loopback sockets in one further thread.

The provider's streams are written here, not by the gateway's own code, in the pieces that real providers send.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import orjson
import uvicorn

from wardwright.config import parse_config
from wardwright.http.server import Server
from wardwright.http.service import Service
from wardwright.http.start import front


@dataclass
class Said:
    """One answer of the provider: a reply, which is streamed when that was asked for, or a status with any body."""

    reply: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes] | None = None
    """Of a stream, instead of those of the reply."""
    cut: bool = False
    """The connection breaks off behind the last piece."""
    gate: threading.Event | None = None
    """Waits for it before the last piece."""


class Double:
    """The provider as an ASGI application."""

    def __init__(self) -> None:
        self.replies: list[Said] = []
        self.sent: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def says(self, *replies: Said | dict[str, Any]) -> None:
        """What it will say; forgets what it was asked before."""
        self.replies = [one if isinstance(one, Said) else Said(one) for one in replies]
        self.sent.clear()
        self.headers.clear()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = orjson.loads(raw)
        self.sent.append(body)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        said = self.replies.pop(0) if self.replies else Said({"error": {"message": "nothing more to say"}}, 500)
        streams = body.get("stream") is True and said.status == 200
        kind = b"text/event-stream" if streams else b"application/json"
        sent = [(b"content-type", kind), *((name.encode(), value.encode()) for name, value in said.headers.items())]
        await send({"type": "http.response.start", "status": said.status, "headers": sent})
        if not streams:
            await send({"type": "http.response.body", "body": orjson.dumps(said.reply)})
            return
        pieces = list(streamed(scope["path"], said.reply, body) if said.pieces is None else said.pieces)
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if said.gate is not None:
            await asyncio.to_thread(said.gate.wait, 10)
        await send({"type": "http.response.body", "body": pieces[-1], "more_body": True})
        if said.cut:
            raise ConnectionError("cut")
        await send({"type": "http.response.body", "body": b""})


def streamed(path: str, reply: dict[str, Any], request: dict[str, Any]) -> Iterator[bytes]:
    """A reply as the provider of that path streams it."""
    if path.endswith("/chat/completions"):
        options = request.get("stream_options") or {}
        return chat_events(reply, usage=bool(options.get("include_usage")))
    return messages_events(reply) if path.endswith("/messages") else responses_events(reply)


def _event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"


def _halves(text: str) -> list[str]:
    """Two pieces, so that a client must put them together."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def chat_events(reply: dict[str, Any], *, usage: bool) -> Iterator[bytes]:
    head = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
        return b"data: " + orjson.dumps({**head, "choices": [choice], "usage": None}) + b"\n\n"

    for choice in reply["choices"]:
        index, message = choice["index"], choice["message"]
        yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        for piece in _halves(message.get("content") or ""):
            yield chunk(index, {"content": piece})
        for number, call in enumerate(message.get("tool_calls") or ()):
            function = {"name": call["function"]["name"], "arguments": ""}
            first = {"index": number, "id": call["id"], "type": "function", "function": function}
            yield chunk(index, {"tool_calls": [first]})
            for piece in _halves(call["function"]["arguments"]):
                yield chunk(index, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        yield chunk(index, {}, choice["finish_reason"])
    if usage:
        yield b"data: " + orjson.dumps({**head, "choices": [], "usage": reply["usage"]}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def messages_events(reply: dict[str, Any]) -> Iterator[bytes]:
    usage = {**reply["usage"], "output_tokens": 1}
    start = {**reply, "content": [], "stop_reason": None, "usage": usage}
    yield _event("message_start", {"type": "message_start", "message": start})
    yield _event("ping", {"type": "ping"})
    for index, block in enumerate(reply["content"]):
        kind = block["type"]
        begun = dict(block)
        deltas: list[dict[str, Any]] = []
        if kind == "text":
            begun["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
        elif kind == "thinking":
            begun |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif kind == "tool_use":
            begun["input"] = {}
            pieces = ["", *_halves(orjson.dumps(block["input"]).decode())]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield _event("content_block_start", {"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            yield _event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
        yield _event("content_block_stop", {"type": "content_block_stop", "index": index})
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    output = {"output_tokens": reply["usage"]["output_tokens"]}
    yield _event("message_delta", {"type": "message_delta", "delta": delta, "usage": output})
    yield _event("message_stop", {"type": "message_stop"})


def responses_events(reply: dict[str, Any]) -> Iterator[bytes]:
    number = 0

    def event(kind: str, **more: Any) -> bytes:
        nonlocal number
        number += 1
        return _event(kind, {"type": kind, "sequence_number": number - 1, **more})

    begun = {**reply, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(reply["output"]):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield event(
                "response.output_item.added",
                output_index=index,
                item={**item, "status": "in_progress", "content": []},
            )
            for place, part in enumerate(item["content"]):
                here = {**at, "content_index": place}
                yield event("response.content_part.added", **here, part={**part, "text": ""})
                for piece in _halves(part["text"]):
                    yield event("response.output_text.delta", **here, delta=piece, logprobs=[])
                yield event("response.output_text.done", **here, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **here, part=part)
        else:
            yield event(
                "response.output_item.added",
                output_index=index,
                item={**item, "status": "in_progress", "arguments": ""},
            )
            for piece in _halves(item["arguments"]):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=reply)


@dataclass
class Served:
    """The two, listening."""

    double: Double
    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _listening() -> socket.socket:
    # It takes connections before anybody accepts them, so nobody needs to wait until a server has started.
    found = socket.create_server(("127.0.0.1", 0), backlog=64)
    found.setblocking(False)
    return found


def _server(application: Any) -> uvicorn.Server:
    """The provider's, which is not ours."""
    config = uvicorn.Config(
        application,
        http="httptools",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="critical",
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def served(folder: Path, config: Callable[[int], str], environ: Mapping[str, str]) -> Iterator[Served]:
    """A provider double and a gateway before it; `config` is given the provider's port."""
    ours, theirs = _listening(), _listening()
    text = config(theirs.getsockname()[1])
    path = folder / "gateway.yaml"
    path.write_text(text)
    service = Service(parse_config(text, str(path)), str(folder / "gateway.db"), "127.0.0.1", environ=environ)
    double = Double()
    provider = _server(double)
    gateways: Queue[tuple[asyncio.AbstractEventLoop, Server] | BaseException] = Queue()

    async def serve() -> None:
        gateway = Server(front(service))
        loop = asyncio.get_running_loop()
        serving = gateway.serve([ours], drain=5, ready=lambda: gateways.put((loop, gateway)))
        try:
            await asyncio.gather(serving, provider.serve([theirs]))
        except BaseException as error:
            gateways.put(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    begun = gateways.get(timeout=20)
    if isinstance(begun, BaseException):
        raise begun
    loop, gateway = begun
    try:
        yield Served(double, service, ours.getsockname()[1])
    finally:
        provider.should_exit = True
        loop.call_soon_threadsafe(gateway.stop)
        thread.join(20)
        assert not thread.is_alive()
