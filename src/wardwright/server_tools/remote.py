"""The engine `mcp`: the tools of an MCP server, run elsewhere and seen from here only by what goes over and what comes back.

Decides how a configured server becomes a connection; what its tools may do is the adapter's part. Credentials are read here, at
the start, and go nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from wardwright.errors import WardwrightError
from wardwright.server_tools.settings import ServerTool
from weakincentives.adapters.mcp import McpSection, McpServer
from weakincentives.errors import WinkError


class RemoteUnavailable(WardwrightError, ConnectionError):
    """A server that cannot be asked for its tools now."""


def connect(tool: ServerTool, environment: Mapping[str, str] | None = None) -> McpSection:
    """Asks the server what it offers. Blocks until it has answered, or its time is up."""
    remote, limits = tool.remote, tool.limits
    assert remote is not None, "an mcp tool has a remote"
    values = os.environ if environment is None else environment
    missing = sorted({name for name in (*remote.headers_env.values(), *remote.env) if name not in values})
    if missing:
        raise RemoteUnavailable(f"the environment has no {', '.join(missing)}")
    try:
        return McpSection(
            McpServer(
                name=tool.name,
                command=remote.command,
                env={name: values[name] for name in remote.env},
                url=remote.url or None,
                headers={header: values[name] for header, name in remote.headers_env.items()},
                prefix=remote.prefix,
                only=remote.tools,
                timeout=limits.timeout_ms / 1000,
                connect_timeout=limits.connect_timeout_ms / 1000,
                output_limit=None,
            )
        )
    except (WinkError, ImportError, OSError) as error:
        told = str(error)
        raise RemoteUnavailable(told.replace(remote.url, "its address") if remote.url else told) from error
