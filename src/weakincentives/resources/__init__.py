"""Dependency injection with three lifetimes: recipe (`Binding`), registry, open context and its tool scopes."""

from __future__ import annotations

from ..transaction import Participant, Snapshotable
from .binding import Binding, Resolver, Scope
from .context import ResourceContext, ToolScope
from .lifecycle import Closeable, PostConstruct, ResourceCloseError
from .registry import ResourceRegistry

__all__ = [
    "Binding",
    "Closeable",
    "Participant",
    "PostConstruct",
    "Resolver",
    "ResourceCloseError",
    "ResourceContext",
    "ResourceRegistry",
    "Scope",
    "Snapshotable",
    "ToolScope",
]
