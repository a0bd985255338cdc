"""Tool suites: sections that bundle guidance, tools, slices, resources and default policies.

What a suite needs beyond the runtime (an interpreter, a sandbox) is loaded when it is first used.
"""

from __future__ import annotations

from .asteval import AstevalSection, EvaluationLimits
from .digest import WorkspaceDigest, WorkspaceDigestSection
from .digest_survey import DigestConfig
from .mounts import HostMount
from .planning import Plan, PlanningToolsSection, PlanStep, StepChange, UpdatePlan
from .podman import CommandResult, PodmanConfig, PodmanSandboxSection
from .vfs import VfsConfig, VfsToolsSection

__all__ = [
    "AstevalSection",
    "CommandResult",
    "DigestConfig",
    "EvaluationLimits",
    "HostMount",
    "Plan",
    "PlanStep",
    "PlanningToolsSection",
    "PodmanConfig",
    "PodmanSandboxSection",
    "StepChange",
    "UpdatePlan",
    "VfsConfig",
    "VfsToolsSection",
    "WorkspaceDigest",
    "WorkspaceDigestSection",
]
