"""The provider's double: answers every POST at once from bytes made beforehand; a streamed answer begins at once and ends a little later."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time

import httptools
import uvloop

ARGUMENTS = '{"path": "src/app.py"}'
PAUSE = 0.005
NUMBERS = itertools.count(int(time.time() * 1000) % 2**28 << 12)
REPLY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "double",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "The tests pass now. " * 20,
                    "tool_calls": [
                        {
                            "id": "call_next",
                            "type": "function",
                            "function": {"name": "read_file", "arguments": ARGUMENTS},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 1200, "completion_tokens": 90, "total_tokens": 1290},
    }
).encode()
HEAD_OF, TAIL_OF = REPLY.split(b"call_next")


def reply(number: int) -> bytes:
    """Every reply calls under an id of its own."""
    body = b"%bcall_%010x%b" % (HEAD_OF, number, TAIL_OF)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _chunk(delta: dict, finish: str | None = None) -> bytes:
    said = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "double"}
    said["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
    data = b"data: %b\n\n" % json.dumps(said).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = HEAD + _chunk({"role": "assistant", "content": "The tests"})
WORDS = b"".join(_chunk({"content": " pass now."}) for _ in range(20))
CALLED = {
    "index": 0,
    "id": "call_0123456789",
    "type": "function",
    "function": {"name": "read_file", "arguments": ARGUMENTS},
}
CALL = _chunk({"tool_calls": [CALLED]})
END = _chunk({}, "tool_calls") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Double(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.start = b""

    def on_body(self, body: bytes) -> None:
        self.start += body[: 256 - len(self.start)]

    def on_message_complete(self) -> None:
        number = next(NUMBERS)
        if b'"stream":true' in self.start or b'"stream": true' in self.start:
            self.transport.write(FIRST)
            asyncio.get_running_loop().call_later(
                PAUSE, self.transport.write, WORDS + CALL.replace(b"0123456789", b"%010x" % number) + END
            )
        else:
            self.transport.write(reply(number))


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Double, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
