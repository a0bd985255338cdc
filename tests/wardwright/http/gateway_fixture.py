"""A whole gateway in the process, over a provider that says what it is told to, spoken to as a server would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from wardwright import receipts
from wardwright.config import parse_config
from wardwright.errors import ProviderFailed
from wardwright.http.front import Front
from wardwright.http.service import Service
from wardwright.http.start import front
from wardwright.providers.response import Canned, Response
from wardwright.store import ReceiptQuery
from wardwright.streaming import render
from wardwright.wire.turn import WireName

Result = TypeVar("Result")


class Streamed(Canned):
    """A stream that ends when it is told to, and tells whether somebody let go of it."""

    __slots__ = ("_going", "closed", "ended")

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(200, "text/event-stream", ())
        self._going = list(pieces)
        self.ended = asyncio.Event()
        self.closed = False

    async def __anext__(self) -> bytes:
        if self._going:
            return self._going.pop(0)
        await self.ended.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        self.closed = True


class Provider:
    """Answers with the replies it was given, in turn; remembers what it was sent. A reply that is an error is raised."""

    name = "double"

    def __init__(self, wire: WireName | None = None) -> None:
        self.replies: list[dict[str, Any] | Streamed | Exception | Callable[[dict[str, Any]], dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []
        self.wire = wire
        self.piece = 0
        """Bytes per piece of a stream; 0: one piece."""
        self.before: Callable[[], Awaitable[None]] | None = None
        """Awaited before a reply is given."""

    def wire_for(self, wire: WireName) -> WireName:
        return self.wire or wire

    def blocked(self, model: str) -> bool:
        return False

    def ids(self, call_ids: Iterable[str]) -> dict[str, str]:
        return {}

    async def send(
        self,
        wire: WireName,
        body: bytes,
        *,
        stream: bool,
        model: str,
        deadline: float | None = None,
        headers: Sequence[tuple[str, str]] = (),
        tried: list[ProviderFailed] | None = None,
    ) -> Response:
        await asyncio.sleep(0)
        given = orjson.loads(body)
        self.sent.append(given)
        if self.before is not None:
            await self.before()
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Streamed):
            return reply
        if callable(reply):
            reply = reply(given)
        if not stream:
            return Canned(200, "application/json", [orjson.dumps(reply)])
        data = render(wire, reply)
        step = self.piece or len(data)
        return Canned(200, "text/event-stream", [data[at : at + step] for at in range(0, len(data), step)])

    def close(self) -> None: ...


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def receipt_id(self) -> str:
        return self.headers["x-wardwright-receipt-id"]


class Running:
    """The gateway, opened."""

    def __init__(self, service: Service, application: Front, provider: Provider, other: Provider) -> None:
        self.service = service
        self.front = application
        self.provider = provider
        self.other = other
        self.faults: list[str] = []
        """What a server would not have taken from us."""

    def put_doubles(self) -> None:
        """Our providers in the place of the plan's own."""
        live = self.service.gateway.live
        doubles = {**live.providers, "double": self.provider, "other": self.other}
        self.service.gateway.live = replace(live, providers=doubles)

    def limit(self, **limits: int) -> None:
        """Other limits than the config says."""
        live = self.service.gateway.live
        deployment = replace(live.deployment, limits=replace(live.deployment.limits, **limits))
        self.service.gateway.live = replace(live, deployment=deployment)

    async def post(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        *,
        session: str = "",
        gone: asyncio.Event | None = None,
    ) -> Answer:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        sent = {"host": "127.0.0.1:8787", "content-type": "application/json", **(headers or {})}
        if session:
            sent["x-wardwright-session-id"] = session
        return await self.ask("POST", path, raw, sent, gone)

    async def ask(
        self,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
        gone: asyncio.Event | None = None,
        *,
        extensions: Mapping[str, Any] | None = None,
    ) -> Answer:
        """`gone`: set when the caller hangs up."""
        answer = Answer()
        asked = False
        ended = gone or asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await ended.wait()
                return {"type": "http.disconnect"}
            asked = True
            return {"type": "http.request", "body": raw}

        over = False

        async def send(message: Any) -> None:
            nonlocal over
            if over or (message["type"] == "http.response.start") == bool(answer.status):
                self.faults.append(f"{message} after {answer}")
                raise RuntimeError(f"unexpected {message['type']}")
            over = message["type"] == "http.response.body" and not message.get("more_body")
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.pieces.append(message.get("body", b""))

        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8787),
            "scheme": "http",
            "root_path": "",
            "http_version": "1.1",
        }
        if extensions is not None:
            scope["extensions"] = extensions
        await self.front(scope, receive, send)
        ended.set()
        return answer

    async def admin(self, method: str, path: str, body: Any = None) -> Answer:
        headers = {
            "host": "127.0.0.1:8787",
            "authorization": f"Bearer {self.service.admin_token}",
            "content-type": "application/json",
        }
        return await self.ask(method, path, b"" if body is None else orjson.dumps(body), headers)

    def receipts(self) -> list[dict[str, Any]]:
        """Newest first."""
        page = self.service.store.receipts(ReceiptQuery())
        return [receipts.load(stored.row.body) for stored in page.receipts]

    def receipt(self, answer: Answer) -> dict[str, Any]:
        stored = self.service.store.receipt(answer.receipt_id)
        assert stored is not None
        return receipts.load(stored.row.body)


def running(
    tmp_path: Path,
    config: str,
    story: Callable[[Running], Coroutine[Any, Any, Result]],
    *,
    clock_ms: Callable[[], int] | None = None,
    wire: WireName | None = None,
    environ: Mapping[str, str] | None = None,
) -> Result:
    """Opens a gateway over `config`, whose providers `double` and `other` are ours, and lets `story` happen in it."""

    async def main() -> Result:
        path = tmp_path / "gateway.yaml"
        path.write_text(config)
        options: dict[str, Any] = {"environ": environ}
        if clock_ms is not None:
            options["clock_ms"] = clock_ms
        service = Service(parse_config(config, str(path)), str(tmp_path / "gateway.db"), "127.0.0.1", **options)
        application = front(service)
        await application.open()
        provider, other = Provider(wire), Provider(wire)
        gateway = Running(service, application, provider, other)
        gateway.put_doubles()
        try:
            result = await story(gateway)
            assert gateway.faults == []
            return result
        finally:
            await application.close()

    return asyncio.run(main())


# What providers say, in each wire


def said(wire: WireName, text: str = "", *calls: tuple[str, str, Any]) -> dict[str, Any]:
    """A reply with words and calls (id, name, arguments)."""
    if wire == "chat_completions":
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for one, name, arguments in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    if wire == "anthropic":
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": one, "name": name, "input": arguments} for one, name, arguments in calls]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
    output: list[dict[str, Any]] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{one}",
            "call_id": one,
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        for one, name, arguments in calls
    ]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    }


PATH: Mapping[str, str] = {
    "chat_completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}


def asked(
    wire: WireName, text: str, tools: Sequence[str] = (), *, stream: bool = False, model: str = "m", **more: Any
) -> dict[str, Any]:
    """A request with one user message and these tools."""
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    body: dict[str, Any] = {"model": model, **more}
    if stream:
        body["stream"] = True
    if wire == "chat_completions":
        body["messages"] = [{"role": "user", "content": text}]
        declared = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in tools]
    elif wire == "anthropic":
        body["max_tokens"] = 100
        body["messages"] = [{"role": "user", "content": text}]
        declared = [{"name": name, "input_schema": schema} for name in tools]
    else:
        body["input"] = [{"role": "user", "content": text}]
        declared = [{"type": "function", "name": name, "parameters": schema} for name in tools]
    if tools:
        body["tools"] = declared
    return body


def goes_on(wire: WireName, body: dict[str, Any], reply: dict[str, Any], results: Mapping[str, str]) -> dict[str, Any]:
    """The caller's next request: what it was told, and the results of the calls it saw."""
    following = orjson.loads(orjson.dumps(body))
    if wire == "chat_completions":
        following["messages"].append(reply["choices"][0]["message"])
        following["messages"] += [
            {"role": "tool", "tool_call_id": one, "content": text} for one, text in results.items()
        ]
    elif wire == "anthropic":
        following["messages"].append({"role": "assistant", "content": reply["content"]})
        blocks = [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in results.items()]
        following["messages"].append({"role": "user", "content": blocks})
    else:
        following["input"] += reply["output"]
        following["input"] += [
            {"type": "function_call_output", "call_id": one, "output": text} for one, text in results.items()
        ]
    return following


def called(wire: WireName, reply: dict[str, Any]) -> list[str]:
    """Ids of the calls in a reply."""
    if wire == "chat_completions":
        return [call["id"] for call in reply["choices"][0]["message"].get("tool_calls") or ()]
    if wire == "anthropic":
        return [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
    return [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
