"""The adapter with the real SDK and CLI, beside a double of its provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import claude_agent_sdk

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.testing.adapter_kit import AdapterHarness, ScriptTurn

from ...weakincentives.adapters.loopback.anthropic_messages import MessagesServer


class ClaudeHarness(AdapterHarness):
    """One endpoint, and a home for the CLI that nobody else uses."""

    def __init__(self, home: Path) -> None:
        self.server = MessagesServer()
        self.home = home / "home"
        self.workspace = home / "workspace"
        self.home.mkdir()
        self.workspace.mkdir()

    def options(
        self, *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> claude_agent_sdk.ClaudeAgentOptions:
        environment = {
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_API_KEY": "any",
            "HOME": str(self.home),
            # A rejected request is else sent again without what the CLI tries out.
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            **(environment or {}),
        }
        return claude_agent_sdk.ClaudeAgentOptions(env=environment, cwd=self.workspace, **options)

    def adapter(self, script: Sequence[ScriptTurn], **options: Any) -> ClaudeAgentSDKAdapter:
        self.server.play(script)
        return ClaudeAgentSDKAdapter("claude-sonnet-5", self.options(**options))

    def requests(self) -> Sequence[Mapping[str, Any]]:
        # Whose request it is differs between two runs of the CLI, and is no part of what the model is asked.
        return [{name: value for name, value in body.items() if name != "metadata"} for body in self.server.requests]
