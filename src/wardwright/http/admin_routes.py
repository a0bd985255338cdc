"""Everything that operators can ask, in one list: what the admin application serves and the OpenAPI document tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

_PATTERNS: Final[tuple[tuple[re.Pattern[str], Route], ...]] = tuple((route.pattern, route) for route in ROUTES)


def find(method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """The route with what the path says."""
    for pattern, route in _PATTERNS:
        if route.method == method and (match := pattern.fullmatch(path)) is not None:
            return route, match.groupdict()
    return None


def methods(path: str) -> tuple[str, ...]:
    """What the path can be asked with; none when there is nothing there."""
    return tuple(dict.fromkeys(route.method for pattern, route in _PATTERNS if pattern.fullmatch(path)))
