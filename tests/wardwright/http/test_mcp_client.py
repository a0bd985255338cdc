"""The official MCP client and an official MCP server, unmodified, with the gateway between them."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from wardwright.http.server import Server, bind
from wardwright.http.start import create_app

mcp = pytest.importorskip("mcp")
pytestmark = pytest.mark.heavy

PLAN = """\
models:
- model_id: tools
  targets: [{{model: m, provider: scripted}}]
  governance:
  - {{id: no-delete, kind: tool_selector, action: deny_call, tool: {{namespace: mcp.files, name: delete}}, message: Files stay.}}
  - {{id: no-secret, kind: tool_selector, action: strip_tools,
     tool: {{namespace: mcp.files, name: secret, source: declared_tool}}}}
  - {{id: quiet, kind: tool_selector, action: transform, pattern: hunter2, replacement: gone,
     tool: {{namespace: mcp.files, source: tool_result}}}}
mcp_servers:
  files: {{url: "http://127.0.0.1:{port}/mcp", model: tools}}
"""


@asynccontextmanager
async def elsewhere(app: Any) -> AsyncIterator[int]:
    """Somebody else's application, on somebody else's server."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The gateway, on its own."""
    server, sockets, ready = Server(app), bind("127.0.0.1", 0), asyncio.Event()
    running = asyncio.create_task(server.serve(sockets, drain=5, ready=ready.set))
    await ready.wait()
    try:
        yield sockets[0].getsockname()[1]
    finally:
        server.stop()
        await running


def test_the_official_client_sees_what_policy_lets_it_see(tmp_path: Path) -> None:
    """Instructions, the list without what is stripped, a call with its result changed, a denied one with the reason."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client
    from mcp.server import MCPServer

    deleted: list[str] = []
    files = MCPServer("files", instructions="Files of the house.")

    @files.tool()
    def read(path: str) -> str:
        """Reads a file."""
        return f"{path}: hunter2"

    @files.tool()
    def delete(path: str) -> str:
        """Deletes a file."""
        deleted.append(path)
        return "deleted"

    @files.tool()
    def secret() -> str:
        """Nobody's business."""
        return "secret"

    async def run() -> None:
        async with elsewhere(files.streamable_http_app()) as upstream:
            app = create_app(PLAN.format(port=upstream), str(tmp_path / "store.db"))
            async with (
                served(app) as port,
                streamable_http_client(f"http://127.0.0.1:{port}/mcp/files") as streams,
                ClientSession(streams[0], streams[1]) as client,
            ):
                assert (await client.initialize()).instructions == "Files of the house."
                assert [tool.name for tool in (await client.list_tools()).tools] == ["read", "delete"]
                result = await client.call_tool("read", {"path": "a"})
                assert (result.is_error, result.content[0].text) == (False, "a: gone")  # type: ignore[union-attr]
                assert result.structured_content == {"result": "a: gone"}
                denied = await client.call_tool("delete", {"path": "a"})
                assert (denied.is_error, denied.content[0].text) == (True, "Files stay.")  # type: ignore[union-attr]

    before = gc.get_threshold()
    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert deleted == []
