"""Tool suites: sections that bundle guidance, tools, slices, resources and default policies.

What a suite needs beyond the runtime (an interpreter, a sandbox) is loaded when it is first used.
"""

from __future__ import annotations

from .asteval import AstevalSection, EvaluationLimits
from .digest import WorkspaceDigest, WorkspaceDigestSection
from .digest_survey import DigestConfig
from .mounts import HostMount
from .planning import Plan, PlanningToolsSection, PlanStep, StepChange, UpdatePlan
from .vfs import VfsConfig, VfsToolsSection

__all__ = [
    "AstevalSection",
    "DigestConfig",
    "EvaluationLimits",
    "HostMount",
    "Plan",
    "PlanStep",
    "PlanningToolsSection",
    "StepChange",
    "UpdatePlan",
    "VfsConfig",
    "VfsToolsSection",
    "WorkspaceDigest",
    "WorkspaceDigestSection",
]
