"""MCP both ways: the tools of any MCP server as governed tools, and our tools as an MCP server.

Needs the extra `mcp`; importing this module does not.
"""

from __future__ import annotations

from .mcp_client import McpSection
from .mcp_connection import McpConnectionError, McpServer
from .mcp_pins import McpChange, McpOffer, McpPins
from .mcp_server import mcp_app, mcp_server, serve_mcp

__all__ = [
    "McpChange",
    "McpConnectionError",
    "McpOffer",
    "McpPins",
    "McpSection",
    "McpServer",
    "mcp_app",
    "mcp_server",
    "serve_mcp",
]
