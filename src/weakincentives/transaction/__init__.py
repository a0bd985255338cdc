"""The logical call and its transaction: scopes, stores, branches and the writer lock."""

from __future__ import annotations

from .lock import WriterLock
from .scope import Branch, CommitLog, Overlay, Participant, ResourceView, Scope, Snapshotable, Store, current_scope

__all__ = [
    "Branch",
    "CommitLog",
    "Overlay",
    "Participant",
    "ResourceView",
    "Scope",
    "Snapshotable",
    "Store",
    "WriterLock",
    "current_scope",
]
