"""The runtime: one pipeline for every tool call, transactions over session and files, the sessions themselves."""

from __future__ import annotations

from ..prompt.events import RunContext, ToolInvoked
from ..session import (
    Append,
    Clear,
    Compensated,
    EventBus,
    Extend,
    Replace,
    Session,
    SliceKind,
    TransactionRolledBack,
    append_all,
    keyed_slice,
    log_slice,
    reducer,
    replace_latest,
    upsert_by,
)
from .call import ToolCall, ToolOutcome
from .execute import aexecute_tool, aexecute_tools, execute_tool, execute_tools
from .main_loop import MainLoop, MainLoopConfig, RunFailed, RunFinished, RunStarted

__all__ = [
    "Append",
    "Clear",
    "Compensated",
    "EventBus",
    "Extend",
    "MainLoop",
    "MainLoopConfig",
    "Replace",
    "RunContext",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "Session",
    "SliceKind",
    "ToolCall",
    "ToolInvoked",
    "ToolOutcome",
    "TransactionRolledBack",
    "aexecute_tool",
    "aexecute_tools",
    "append_all",
    "execute_tool",
    "execute_tools",
    "keyed_slice",
    "log_slice",
    "reducer",
    "replace_latest",
    "upsert_by",
]
