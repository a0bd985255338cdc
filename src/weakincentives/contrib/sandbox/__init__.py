"""Commands of a model, run where they can reach nothing but a copy of the workspace.

A command runs over an overlay: below it the workspace, above it what it changes. Only after it has succeeded are the
changes made to the workspace, through the Filesystem and inside the transaction of the call.
"""

from __future__ import annotations

from .backend import Backend, Job, SandboxError, SandboxUnavailableError
from .bubblewrap import BubblewrapBackend
from .changes import ChangesRefusedError
from .choice import choose_backend
from .config import PodmanConfig
from .podman import PodmanBackend
from .process import Captured, Ended
from .workspace import Workspace

__all__ = [
    "Backend",
    "BubblewrapBackend",
    "Captured",
    "ChangesRefusedError",
    "Ended",
    "Job",
    "PodmanBackend",
    "PodmanConfig",
    "SandboxError",
    "SandboxUnavailableError",
    "Workspace",
    "choose_backend",
]
