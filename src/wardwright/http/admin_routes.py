"""Everything that operators can ask, in one list: what the admin application serves and the OpenAPI document tells."""

from __future__ import annotations

from typing import Final

from wardwright.http import admin_approvals, admin_models, admin_plans, admin_receipts, admin_sessions
from wardwright.http.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *admin_receipts.ROUTES,
    *admin_plans.ROUTES,
    *admin_sessions.ROUTES,
    *admin_approvals.ROUTES,
    *admin_models.ROUTES,
)
"""The first that fits a path answers."""
