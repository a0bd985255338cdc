"""A Messages endpoint on loopback: plays a script of neutral turns in the wire format that the Claude CLI reads.

Streams server-sent events as the real one does, answers errors in its form, and keeps every request for an answer.
Anything else that the CLI asks for is answered with 404. One request more than the script has is answered with 400.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from weakincentives.runtime import ToolCall
from weakincentives.testing.adapter_kit import ScriptTurn

_ERRORS = {400: "invalid_request_error", 429: "rate_limit_error", 503: "api_error", 529: "overloaded_error"}


class MessagesServer:
    """The endpoint; its threads end with `close`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of requests for an answer, in the order they came."""
        self.script: deque[ScriptTurn] = deque()
        self.unanswered = ""
        """A request whose last word to the model is this is kept waiting, and counts for nothing."""
        self.renames = True
        """Whether calls are made by the names that the request gives the tools, with their server's name before them."""
        self.closing = threading.Event()
        self._calls = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def play(self, turns: Iterable[ScriptTurn]) -> None:
        self.script = deque(turns)

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def take(self, body: dict[str, Any]) -> ScriptTurn:
        """The turn that answers this request."""
        with self._lock:
            if self.unanswered and self.unanswered in _last_word(body):
                return ScriptTurn(hang=True)
            self.requests.append(body)
            return self.script.popleft() if self.script else ScriptTurn("The script is over.", status=400)

    def events(self, turn: ScriptTurn, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The reply as a stream of events."""
        usage = turn.usage
        yield {
            "type": "message_start",
            "message": {
                "id": f"msg_{len(self.requests):04}",
                "type": "message",
                "role": "assistant",
                "model": body.get("model", "claude"),
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {
                    "input_tokens": usage.input_tokens - usage.cached_tokens,
                    "cache_read_input_tokens": usage.cached_tokens,
                    "cache_creation_input_tokens": 0,
                    "output_tokens": 1,
                },
            },
        }
        index = 0
        if turn.text:
            yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            for piece in turn.pieces:
                yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            yield {"type": "content_block_stop", "index": 0}
            index = 1
        known = {tool["name"].rpartition("__")[2]: tool["name"] for tool in body.get("tools", ()) if self.renames}
        for call in turn.calls:
            yield from self._call(index, call, known.get(call.name, call.name), turn.arguments_of(call))
            index += 1
        reason = "tool_use" if turn.calls else "end_turn"
        if turn.refusal:
            reason = "refusal"
        elif turn.cut:
            reason = "max_tokens"
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": usage.output_tokens},
        }
        yield {"type": "message_stop"}

    def _call(self, index: int, call: ToolCall, name: str, arguments: str) -> Iterator[dict[str, Any]]:
        with self._lock:
            self._calls += 1
            call_id = call.call_id or f"toolu_{self._calls:04}"
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "input_json_delta", "partial_json": arguments},
        }
        yield {"type": "content_block_stop", "index": index}


def _last_word(body: dict[str, Any]) -> str:
    content: Any = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    return content if isinstance(content, str) else json.dumps(content[-1])


def _handler_of(server: MessagesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body: Any = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            if self.path.partition("?")[0] != "/v1/messages":
                self.refuse(404, "There is nothing here.")
                return
            turn = server.take(body)
            if turn.hang:
                server.closing.wait()
                self.close_connection = True
            elif turn.status != 200:
                self.refuse(turn.status, turn.text or "Too busy.", turn.retry_after)
            elif body.get("stream"):
                self.stream(server.events(turn, body))
            else:
                self.refuse(400, "This endpoint only streams.")

        def do_GET(self) -> None:
            self.refuse(404, "There is nothing here.")

        do_HEAD = do_GET

        def refuse(self, status: int, message: str, retry_after: float | None = None) -> None:
            error = {"type": _ERRORS.get(status, "not_found_error"), "message": message}
            data = json.dumps({"type": "error", "error": error}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            if retry_after is not None:
                self.send_header("retry-after", f"{retry_after:g}")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def stream(self, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in events:
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
