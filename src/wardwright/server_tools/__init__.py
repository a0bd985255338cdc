"""Tools that the gateway runs itself: what may be configured (`settings`), and running them (`registry`, one file per engine)."""

from __future__ import annotations

from wardwright.server_tools.module import ModuleContext
from wardwright.server_tools.registry import ServerContext, ServerRun, ServerTools
from wardwright.server_tools.settings import ServerTool, compile_server_tools

__all__ = ["ModuleContext", "ServerContext", "ServerRun", "ServerTool", "ServerTools", "compile_server_tools"]
