"""The bare proxy to compare with: ASGI on uvicorn, aiohttp to the provider, nothing between them."""

from __future__ import annotations

import sys

import aiohttp
import uvicorn

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


if __name__ == "__main__":
    UPSTREAM = f"http://127.0.0.1:{sys.argv[2]}"
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )
