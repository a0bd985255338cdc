"""What a caller is told when something does not pass: one value, worded by each wire in its own error shape (G34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

RefusalKind: TypeAlias = Literal[
    "policy_violation",
    "approval_required",
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "governance_unavailable",
    "upstream_error",
]


@dataclass(slots=True)
class Refusal:
    """Never 429 for a policy, never a fake completion. The message says what a person can do and holds no secret."""

    status: int
    kind: RefusalKind
    code: str
    message: str
    rule_id: str = ""
    receipt_id: str = ""
    blocked_tools: tuple[str, ...] = ()
    approval: str = ""
    """Handle of a held reply; sending the same request again, or this handle, releases it once it is approved."""
