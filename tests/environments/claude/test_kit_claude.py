"""Claude by the real SDK and its bundled CLI passes the kit, offline, against a Messages endpoint on loopback."""

from __future__ import annotations

import pytest

from weakincentives.testing.adapter_kit import AdapterConformance

from .claude_harness import ClaudeHarness


class TestClaudeConformance(AdapterConformance):
    @pytest.fixture
    def harness(self, claude: ClaudeHarness) -> ClaudeHarness:
        return claude

    # Claude Code hands on the results of parallel calls as they come.
    orders_results = False

    # The SDK runs its own loop and does not stop between turns.
    test_a_step_leaves_the_calls_to_the_caller = None
