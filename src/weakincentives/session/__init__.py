"""Event-sourced sessions: slices by type, pure reducers, one turn at a time."""

from __future__ import annotations

from .dispatcher import EventBus
from .events import Compensated, TransactionRolledBack
from .registers import Registers
from .session import Attachable, Session, SessionSnapshot, SessionTransaction, Slice
from .slices import (
    Append,
    Clear,
    Extend,
    Reducer,
    ReducerContext,
    Replace,
    SliceKind,
    SliceView,
    append_all,
    keyed_slice,
    log_slice,
    reducer,
    replace_latest,
    upsert_by,
)
from .storage import SessionLog

__all__ = [
    "Append",
    "Attachable",
    "Clear",
    "Compensated",
    "EventBus",
    "Extend",
    "Reducer",
    "ReducerContext",
    "Registers",
    "Replace",
    "Session",
    "SessionLog",
    "SessionSnapshot",
    "SessionTransaction",
    "Slice",
    "SliceKind",
    "SliceView",
    "TransactionRolledBack",
    "append_all",
    "keyed_slice",
    "log_slice",
    "reducer",
    "replace_latest",
    "upsert_by",
]
