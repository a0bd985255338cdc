"""OpenAI's wire on loopback: Chat Completions and Responses, whole and streamed, played from a script.

As strict as the real one about what belongs together: a call without its result, or a result without its call, is
answered with 400. One server serves many scripts, each below a path of its own.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from weakincentives.runtime import ToolCall
from weakincentives.testing.adapter_kit import ScriptTurn

PAGE = "application/json"
STREAM = "text/event-stream"


@dataclass(frozen=True)
class Raw:
    """An answer that no ScriptTurn describes, byte by byte."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    content_type: str = PAGE
    breaks: bool = False
    """The connection ends before the answer does."""


class Stage:
    """One script on a server: what it is sent, and what it says next."""

    def __init__(self, server: OpenAIServer, name: str, script: Sequence[ScriptTurn | Raw]) -> None:
        self.base_url = f"{server.url}/{name}/v1"
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ids = itertools.count(1)
        self.script = iter(script)
        self.released = threading.Event()
        """Set: nobody waits any more for a silent turn."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


class OpenAIServer:
    """Runs on threads until closed."""

    def __init__(self) -> None:
        stages: dict[str, Stage] = {}
        self._stages = stages

        class Handler(_Handler):
            def stage(self) -> Stage:
                return stages[self.path.split("/")[1]]

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stage(self, script: Sequence[ScriptTurn | Raw]) -> Stage:
        name = f"s{len(self._stages) + 1}"
        stage = self._stages[name] = Stage(self, name, script)
        return stage

    def close(self) -> None:
        for stage in self._stages.values():
            stage.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def stage(self) -> Stage:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""

    def do_POST(self) -> None:
        stage = self.stage()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stage.requests.append(body)
        stage.headers.append({name.lower(): value for name, value in self.headers.items()})
        chat = self.path.endswith("/chat/completions")
        if not chat and not self.path.endswith("/responses"):
            return self._page(404, {"error": {"message": f"No such path: {self.path}", "code": None}})
        wrong = _wrong_chat(body) if chat else _wrong_responses(body)
        if wrong:
            return self._page(400, {"error": {"message": wrong, "type": "invalid_request_error", "code": None}})
        turn = next(stage.script, None)
        if turn is None:
            return self._page(400, {"error": {"message": "The script is over.", "code": None}})
        if isinstance(turn, Raw):
            return self._raw(turn)
        if turn.hang:
            stage.released.wait()
            self.close_connection = True
            return None
        if turn.status != 200:
            headers = {} if turn.retry_after is None else {"Retry-After": f"{turn.retry_after:g}"}
            said = turn.text or "Too busy."
            return self._page(turn.status, {"error": {"message": said, "type": "server", "code": None}}, headers)
        whole = _chat_reply(turn, stage, body) if chat else _responses_reply(turn, stage, body)
        if not body.get("stream"):
            return self._page(200, whole)
        return self._stream(_chat_pieces(turn, whole, body) if chat else _responses_events(turn, whole))

    def _page(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._raw(Raw(json.dumps(body).encode(), status, headers or {}))

    def _raw(self, raw: Raw) -> None:
        self.send_response(raw.status)
        self.send_header("Content-Type", raw.content_type)
        self.send_header("Content-Length", str(len(raw.body) + raw.breaks))
        for name, value in raw.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw.body)
        self.close_connection = self.close_connection or raw.breaks

    def _stream(self, pieces: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", STREAM)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


# --- Chat Completions -------------------------------------------------------------------------------------------------


def _wrong_chat(body: dict[str, Any]) -> str:
    """What the provider would refuse: calls and results must follow each other, all of them."""
    open_ids: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"No call waits for the result {message['tool_call_id']}."
            if not isinstance(message["content"], str):
                return "Results are text."
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"The calls {open_ids} have no result."
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if message["role"] == "assistant" and message.get("content") is None and not open_ids:
            return "An assistant's message has content or calls."
    if open_ids:
        return f"The calls {open_ids} have no result."
    if not body.get("tools") and ("tool_choice" in body or "parallel_tool_calls" in body):
        return "There are no tools to choose from."
    return ""


def _chat_reply(turn: ScriptTurn, stage: Stage, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None, "annotations": []}
    if turn.refusal:
        message |= {"content": None, "refusal": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id or f"call_{next(stage.ids)}",
                "type": "function",
                "function": {"name": call.name, "arguments": turn.arguments_of(call)},
            }
            for call in turn.calls
        ]
    finish = "length" if turn.cut else "tool_calls" if turn.calls else "stop"
    return {
        "id": f"chatcmpl-{len(stage.requests)}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": turn.usage.input_tokens,
            "completion_tokens": turn.usage.output_tokens,
            "total_tokens": turn.usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": turn.usage.cached_tokens, "audio_tokens": 0},
        },
    }


def _chat_pieces(turn: ScriptTurn, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"], "model": whole["model"]}
    choice = whole["choices"][0]

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": None if turn.refusal else ""})
    for piece in turn.pieces:
        yield chunk({"refusal" if turn.refusal else "content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]})
        half = len(function["arguments"]) // 2
        for part in (function["arguments"][:half], function["arguments"][half:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, choice["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield event({**head, "choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


# --- Responses --------------------------------------------------------------------------------------------------------


def _wrong_responses(body: dict[str, Any]) -> str:
    """What the provider would refuse: items that do not belong together, and items that it has not kept."""
    if not body.get("input"):
        return "There is no input."
    called = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    if called != answered:
        return f"The calls {called} have the results {answered}."
    for before, item in itertools.pairwise(body["input"]):
        if before["type"] == "reasoning" and item["type"] not in ("reasoning", "message", "function_call"):
            return "Reasoning without what followed it."
    for item in body["input"]:
        if item["type"] == "reasoning" and not body["store"] and not item.get("encrypted_content"):
            return f"Item '{item['id']}' was not kept."
    return ""


def _responses_reply(turn: ScriptTurn, stage: Stage, body: dict[str, Any]) -> dict[str, Any]:
    number = len(stage.requests)
    output: list[dict[str, Any]] = []
    if "reasoning.encrypted_content" in body.get("include", ()):
        output.append(
            {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": f"sealed {number}"}
        )
    if turn.text:
        part = (
            {"type": "refusal", "refusal": turn.text}
            if turn.refusal
            else {"type": "output_text", "text": turn.text, "annotations": []}
        )
        output.append(
            {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    output += [_item(call, turn, stage) for call in turn.calls]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": body["model"],
        "status": "incomplete" if turn.cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if turn.cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools", []),
        "usage": {
            "input_tokens": turn.usage.input_tokens,
            "input_tokens_details": {"cached_tokens": turn.usage.cached_tokens},
            "output_tokens": turn.usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.usage.total_tokens,
        },
    }


def _item(call: ToolCall, turn: ScriptTurn, stage: Stage) -> dict[str, Any]:
    number = next(stage.ids)
    return {
        "id": f"fc_{number}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.call_id or f"call_{number}",
        "name": call.name,
        "arguments": turn.arguments_of(call),
    }


def _responses_events(turn: ScriptTurn, whole: dict[str, Any]) -> Iterator[bytes]:
    numbers = itertools.count()

    def said(kind: str, **more: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **more}, kind)

    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield said("response.created", response=begun)
    for index, item in enumerate(whole["output"]):
        yield said("response.output_item.added", output_index=index, item={**item, "status": "in_progress"})
        if item["type"] == "message":
            kind = "refusal" if turn.refusal else "output_text"
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            for piece in turn.pieces:
                yield said(f"response.{kind}.delta", **place, delta=piece, **({} if turn.refusal else {"logprobs": []}))
        if item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": index}
            yield said("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield said("response.output_item.done", output_index=index, item=item)
    yield said("response.incomplete" if turn.cut else "response.completed", response=whole)


def event(data: dict[str, Any], kind: str = "") -> bytes:
    """One server-sent event."""
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()
