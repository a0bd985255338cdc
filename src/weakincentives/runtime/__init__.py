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
from .approvals import ApprovalDecided, PendingApproval, aresume, decide, pending_approvals, resume
from .call import ToolCall, ToolOutcome
from .execute import aexecute_tool, aexecute_tools, execute_tool, execute_tools
from .main_loop import MainLoop, MainLoopConfig, RunFailed, RunFinished, RunStarted
from .transactions import CompositeSnapshot, PendingToolTracker, create_snapshot, restore_snapshot, tool_transaction

__all__ = [
    "Append",
    "ApprovalDecided",
    "Clear",
    "Compensated",
    "CompositeSnapshot",
    "EventBus",
    "Extend",
    "MainLoop",
    "MainLoopConfig",
    "PendingApproval",
    "PendingToolTracker",
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
    "aresume",
    "create_snapshot",
    "decide",
    "execute_tool",
    "execute_tools",
    "keyed_slice",
    "log_slice",
    "pending_approvals",
    "reducer",
    "replace_latest",
    "restore_snapshot",
    "resume",
    "tool_transaction",
    "upsert_by",
]
