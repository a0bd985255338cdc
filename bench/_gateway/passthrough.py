"""The bare proxy to compare with: ASGI on uvicorn (or on the gateway's own server), aiohttp to the provider, nothing between them."""

from __future__ import annotations

import asyncio
import signal
import sys

import aiohttp
import uvicorn
import uvloop

from wardwright.http.server import Server, bind

UPSTREAM = ""
session: aiohttp.ClientSession | None = None


async def app(scope, receive, send) -> None:
    global session
    if scope["type"] == "lifespan":
        await receive()
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200), auto_decompress=False)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await session.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(pieces)
    headers = {"content-type": "application/json", "authorization": "Bearer x"}
    async with session.post(UPSTREAM + scope["path"], data=body, headers=headers) as response:
        kind = response.headers.get("content-type", "application/json").encode()
        await send({"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]})
        if kind.startswith(b"text/event-stream"):
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.body", "body": await response.read()})


async def own(port: int) -> None:
    server = Server(app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.serve(bind("127.0.0.1", port), drain=1, ready=lambda: None)


if __name__ == "__main__":
    UPSTREAM = f"http://127.0.0.1:{sys.argv[2]}"
    if sys.argv[3:] == ["own"]:
        uvloop.run(own(int(sys.argv[1])))
    else:
        uvicorn.run(
            app,
            host="127.0.0.1",
            port=int(sys.argv[1]),
            loop="uvloop",
            http="httptools",
            access_log=False,
            log_level="error",
        )
