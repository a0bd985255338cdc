"""The callers: keep-alive connections that each send one request after the other; prints latencies as one JSON line."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from time import perf_counter

import httptools
import uvloop

FILLER = "A line of some file that was read before, with words as they are. "
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name} of a coding agent, described in a sentence.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
        },
    }
    for name in ("read_file", "write_file", "list_files", "run_tests")
]
TURNS = 12
CALL = re.compile(rb'"id": ?"(call_[^"]+)"')


class Conversation:
    """An agent's work: every request repeats what was said and adds the result of the last call. After some turns another begins."""

    def __init__(self, size: int, stream: bool, number: int) -> None:
        opening = {"model": "bench", "stream": stream, "tools": TOOLS}
        user = [{"role": "system", "content": "You are a careful coding agent."}, {"role": "user", "content": ""}]
        user[1]["content"] = "Fix the failing test. " + FILLER * max(1, (size - 2_700) // len(FILLER))
        self.session = f"s{number:x}"
        self.parts = [json.dumps(opening)[:-1].encode() + b', "messages": [' + json.dumps(user)[1:-1].encode()]
        self.turn = 0

    def body(self) -> bytes:
        return b"".join(self.parts) + b"]}"

    def answered(self, reply: bytes) -> None:
        """What the agent adds when the model has called a tool."""
        found = CALL.search(reply)
        name = found.group(1).decode() if found is not None else f"none_{self.turn}"
        call = {
            "id": name,
            "type": "function",
            "function": {"name": "read_file", "arguments": '{"path": "src/app.py"}'},
        }
        said = {"role": "assistant", "content": "Next.", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": name, "content": FILLER}
        self.parts.append(b", " + json.dumps(said).encode() + b", " + json.dumps(result).encode())
        self.turn += 1


class Caller(asyncio.Protocol):
    def __init__(self, host: str, size: int, stream: bool, numbers, until: float, out: list) -> None:
        self.host, self.size_, self.stream, self.numbers, self.until, self.out = host, size, stream, numbers, until, out
        self.done = asyncio.get_running_loop().create_future()
        self.talk = None

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        if self.talk is None or self.talk.turn >= TURNS:
            self.talk = Conversation(self.size_, self.stream, next(self.numbers))
        self.parser = httptools.HttpResponseParser(self)
        body = self.talk.body()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer sk-bench\r\nx-wardwright-session-id: {self.talk.session}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        self.first = 0.0
        self.reply = []
        self.started = perf_counter()
        self.sent = len(body)
        self.transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.first:
            self.first = perf_counter()
        self.reply.append(data)

    def on_message_complete(self) -> None:
        now = perf_counter()
        reply = b"".join(self.reply)
        status = self.parser.get_status_code()
        self.out.append((status, (self.first or now) - self.started, now - self.started, len(reply), self.sent))
        self.talk.answered(reply)
        if now < self.until:
            asyncio.get_running_loop().call_soon(self.send)
        else:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, exc) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed"))


async def main(port: int, size: int, stream: bool, at_once: int, seconds: float, first: int) -> None:
    out: list = []
    numbers = itertools.count(first)
    loop = asyncio.get_running_loop()
    began = perf_counter()
    callers = []
    for _ in range(at_once):
        _, caller = await loop.create_connection(
            lambda: Caller(f"127.0.0.1:{port}", size, stream, numbers, began + seconds, out), "127.0.0.1", port
        )
        callers.append(caller)
    await asyncio.gather(*[caller.done for caller in callers])
    took = perf_counter() - began
    good = sorted(one[2] for one in out if one[0] == 200)
    firsts = sorted(one[1] for one in out if one[0] == 200)
    print(
        json.dumps(
            {
                "requests": len(out),
                "failed": len(out) - len(good),
                "seconds": took,
                "body": sum(one[4] for one in out) // len(out),
                "p50": good[len(good) // 2] if good else None,
                "p99": good[int(len(good) * 0.99)] if good else None,
                "first": firsts[len(firsts) // 2] if firsts else None,
                "size": out[-1][3],
                "next": next(numbers),
            }
        )
    )


if __name__ == "__main__":
    port, size, stream, at_once, seconds, first = sys.argv[1:]
    uvloop.run(main(int(port), int(size), stream == "1", int(at_once), float(seconds), int(first)))
