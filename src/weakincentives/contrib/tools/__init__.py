"""Tool suites: sections that bundle guidance, tools, slices, resources and default policies.

What a suite needs beyond the runtime (an interpreter, a sandbox) is loaded when it is first used.
"""

from __future__ import annotations

from .planning import Plan, PlanningToolsSection, PlanStep, StepChange, UpdatePlan

__all__ = [
    "Plan",
    "PlanStep",
    "PlanningToolsSection",
    "StepChange",
    "UpdatePlan",
]
