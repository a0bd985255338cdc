"""Claims about what a session shows differently from what the prompt says."""

from __future__ import annotations

import pytest

from weakincentives.prompt.visibility import (
    SectionVisibility,
    SetVisibilityOverride,
    VisibilityOverrides,
    apply_visibility,
    hint,
    install,
    overrides_of,
)
from weakincentives.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


def test_no_session_overrides_nothing() -> None:
    """Rendering without a session shows what the prompt says."""
    assert overrides_of(None) == {}


def test_new_session_overrides_nothing() -> None:
    """A session starts without a record of opened sections."""
    assert overrides_of(Session()) == {}


def test_event_sets_an_override() -> None:
    """Dispatching the event changes how one section is shown, and keeps the others."""
    session = Session()
    install(session)

    session.dispatch(SetVisibilityOverride(("guide",), SUMMARY))
    session.dispatch(SetVisibilityOverride(("guide", "style"), FULL))

    assert overrides_of(session) == {("guide",): SUMMARY, ("guide", "style"): FULL}


def test_later_event_wins() -> None:
    """The newest override of a section counts."""
    session = Session()
    install(session)

    session.dispatch(SetVisibilityOverride(("guide",), SUMMARY))
    session.dispatch(SetVisibilityOverride(("guide",), FULL))

    assert overrides_of(session) == {("guide",): FULL}


def test_none_removes_an_override() -> None:
    """An override of None goes back to what the section itself says."""
    session = Session()
    install(session)
    session.dispatch(SetVisibilityOverride(("guide",), FULL))

    session.dispatch(SetVisibilityOverride(("guide",), None))

    assert overrides_of(session) == {}


def test_one_record_is_kept() -> None:
    """The slice holds one value however often sections are opened and the reducer is installed."""
    session = Session()
    for _ in range(3):
        install(session)
        session.dispatch(SetVisibilityOverride(("guide",), FULL))

    assert session[VisibilityOverrides].all() == (VisibilityOverrides({("guide",): FULL}),)


def test_requested_overrides_are_applied() -> None:
    """What an expansion asked for is recorded without further preparation, given as a member or its word."""
    session = Session()

    apply_visibility(session, {("a",): FULL, ("a", "b"): "summary"})

    assert overrides_of(session) == {("a",): FULL, ("a", "b"): SUMMARY}


def test_rollback_takes_an_override_back() -> None:
    """The record is STATE: what a failed transaction opened is folded again."""
    session = Session()
    install(session)

    with pytest.raises(KeyError), session.transaction():
        session.dispatch(SetVisibilityOverride(("guide",), FULL))
        raise KeyError

    assert overrides_of(session) == {}


def test_hint_for_a_section_without_tools() -> None:
    """A model is told to read a section that has no tools."""
    assert hint("guide/style", has_tools=False) == (
        '[Summary only. Call read_section with section_key "guide/style" to read this section.]'
    )


def test_hint_for_a_section_with_tools() -> None:
    """A model is told to open a section whose tools it would get."""
    assert hint("deploy", has_tools=True) == (
        '[Summary only. Call open_sections with section_keys ["deploy"] to open this section and its tools.]'
    )
