"""What the tests of this environment share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .claude_harness import ClaudeHarness


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[ClaudeHarness]:
    harness = ClaudeHarness(tmp_path)
    yield harness
    harness.server.close()
