"""The pytest plugin: `weakincentives.testing` as fixtures, new for each test. All names begin with `wink_`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest

from ..filesystem import InMemoryFilesystem
from ..prompt import ToolContext
from ..runtime import Session, ToolOutcome
from . import FakeClock, make_context, make_session, make_vfs, run_tool

# The kit asserts like a test module, so its failures are explained like one's.
_KIT = "weakincentives.testing.adapter_kit"
if _KIT not in sys.modules:
    pytest.register_assert_rewrite(_KIT)


@pytest.fixture
def wink_clock() -> FakeClock:
    """A clock that moves only when told."""
    return FakeClock()


@pytest.fixture
def wink_session(wink_clock: FakeClock) -> Session:
    """A session in memory on `wink_clock`."""
    return make_session(clock=wink_clock)


@pytest.fixture
def wink_vfs() -> InMemoryFilesystem:
    """A filesystem in memory, empty."""
    return make_vfs()


@pytest.fixture
def wink_context(wink_session: Session, wink_vfs: InMemoryFilesystem) -> ToolContext:
    """The context of a tool call, on `wink_session` and `wink_vfs`."""
    return make_context(session=wink_session, fs=wink_vfs)


@pytest.fixture
def wink_run_tool(wink_session: Session, wink_vfs: InMemoryFilesystem) -> Callable[..., ToolOutcome]:
    """`run_tool` on `wink_session` and `wink_vfs`."""
    return partial(run_tool, session=wink_session, fs=wink_vfs)
