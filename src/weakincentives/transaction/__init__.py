"""The logical call and its transaction: scopes, stores, branches and the writer lock."""

from __future__ import annotations

from .lock import WriterLock
from .scope import (
    Branch,
    CommitLog,
    Mark,
    Participant,
    ResourceView,
    Scope,
    Snapshotable,
    Store,
    current_scope,
    run_all,
    slow_to_join,
    view_of,
)

__all__ = [
    "Branch",
    "CommitLog",
    "Mark",
    "Participant",
    "ResourceView",
    "Scope",
    "Snapshotable",
    "Store",
    "WriterLock",
    "current_scope",
    "run_all",
    "slow_to_join",
    "view_of",
]
