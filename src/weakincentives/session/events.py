"""What a session records about transactions that took several calls back."""

from __future__ import annotations

from ..frozen import frozen
from .slices import log_slice


@log_slice
@frozen
class TransactionRolledBack:
    """Several calls were taken back together. Their own events stay in the log; this one says they do not count."""

    call_ids: tuple[str, ...]
    tag: str
    reason: str
    timestamp: float
    session_id: str


@log_slice
@frozen
class Compensated:
    """An external effect was undone, or could not be, because an enclosing transaction rolled back."""

    tool_name: str
    call_id: str
    idempotency_key: str
    success: bool
    message: str
    timestamp: float
    session_id: str
