"""How much of a section the model sees, and the session's record of what was opened or folded.

Decides the words, the STATE slice and the texts that tell a model how to open a section. Never renders.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from ..frozen import frozen
from ..session import ReducerContext, Replace, Session, SliceView

SectionPath = tuple[str, ...]
"""The keys from the outermost section to the one meant; written `guide/style` for people and models."""

OPEN_SECTIONS: Final = "open_sections"
READ_SECTION: Final = "read_section"


class SectionVisibility(enum.Enum):
    """How a section is shown."""

    FULL = "full"
    """Body, tools and children."""
    SUMMARY = "summary"
    """The summary alone, with a hint how to see the rest."""


@frozen
class SetVisibilityOverride:
    """Show one section like this from now on; None goes back to what the section itself says."""

    path: SectionPath
    visibility: SectionVisibility | None = SectionVisibility.FULL


@frozen
class VisibilityOverrides:
    """What a session shows differently from what the prompt says. A STATE slice: rolled back with the call."""

    by_path: Mapping[SectionPath, SectionVisibility] = field(default_factory=dict[SectionPath, SectionVisibility])

    def with_override(self, event: SetVisibilityOverride) -> VisibilityOverrides:
        by_path = dict(self.by_path)
        by_path.pop(event.path, None)
        if event.visibility is not None:
            by_path[event.path] = event.visibility
        return VisibilityOverrides(by_path)


_NO_OVERRIDES: Final[Mapping[SectionPath, SectionVisibility]] = {}


def _reduce(
    view: SliceView[VisibilityOverrides],
    event: SetVisibilityOverride,
    *,
    context: ReducerContext,  # noqa: ARG001
) -> Replace[VisibilityOverrides]:
    return Replace(((view.latest() or VisibilityOverrides()).with_override(event),))


def install(session: Session) -> None:
    """Let the session understand `SetVisibilityOverride`. Doing it again changes nothing."""
    session[VisibilityOverrides].register(SetVisibilityOverride, _reduce)


def overrides_of(session: Session | None) -> Mapping[SectionPath, SectionVisibility]:
    """What the session shows differently, as the present call sees it."""
    if session is None:
        return _NO_OVERRIDES
    latest = session[VisibilityOverrides].latest()
    return _NO_OVERRIDES if latest is None else latest.by_path


def apply_visibility(session: Session, requested: Mapping[SectionPath, Any]) -> None:
    """Record what a `VisibilityExpansionRequired` asked for; the next rendering shows it."""
    install(session)
    for path, visibility in requested.items():
        session.dispatch(SetVisibilityOverride(tuple(path), SectionVisibility(visibility)))


@frozen
class OpenSections:
    """Which sections to show in full."""

    section_keys: tuple[str, ...]
    """Keys of the sections to open, as the summaries name them."""
    reason: str = ""
    """Why they are needed now."""


@frozen
class ReadSection:
    """Which section to read."""

    section_key: str
    """Key of the section, as its summary names it."""


def hint(name: str, *, has_tools: bool) -> str:
    """What stands below a summary."""
    if has_tools:
        return f'[Summary only. Call {OPEN_SECTIONS} with section_keys ["{name}"] to open this section and its tools.]'
    return f'[Summary only. Call {READ_SECTION} with section_key "{name}" to read this section.]'
