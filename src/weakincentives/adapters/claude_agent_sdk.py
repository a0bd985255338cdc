"""Claude by way of the Claude Agent SDK, whose own loop runs the model: our tools, policies and transactions in it.

Decides what the SDK is started with and how often a run is started over. The SDK is imported when a run begins.
docs/decisions/0020-claude-agent-sdk.md says what its loop makes different.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn, cast

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import PromptEvaluationError, ThrottledError
from ..filesystem.tree import DirectoryTree
from ..prompt.rendering import OutputT
from .claude_native import READERS, STARTERS, NativeTools
from .claude_run import SERVER, ClaudeRun, ClaudeSession
from .core import Driver, Evaluation, ModelReply, PromptResponse, ProviderAdapter, Stepwise, Turn, _in_time
from .retries import Retry

__all__ = ["ClaudeAgentSDKAdapter", "ClaudeSession"]

_ENVIRONMENT: Mapping[str, str] = {
    "ENABLE_TOOL_SEARCH": "false",  # tools are shown from the start, not looked for
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # what goes on after its call could not be taken back
    "CLAUDE_CODE_DISABLE_REFUSAL_RETRY": "1",  # a refusal is an answer
    "CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # tokens are counted before calls are run
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "MCP_TOOL_TIMEOUT": "604800000",  # a call takes as long as its tool and the deadline allow
}
"""What Claude Code is started with, unless the options or this process's environment say otherwise."""


class ClaudeAgentSDKAdapter(ProviderAdapter):
    """Runs prompts with Claude Code. `options` are the SDK's `ClaudeAgentOptions`; native tools are those named there
    in `tools`, none unless told, and what they change in `cwd` is rolled back when they fail."""

    def __init__(
        self,
        model: str | None = None,
        options: Any = None,
        *,
        max_turns: int | None = 100,
        max_output_retries: int = 2,
        retry: Retry | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(max_turns=max_turns, max_output_retries=max_output_retries, retry=retry, clock=clock)
        self.model = model
        self.options = options

    def send(self, turn: Turn) -> NoReturn:  # noqa: ARG002
        raise _whole_runs_only()

    async def asend(self, turn: Turn) -> ModelReply:  # noqa: ARG002
        raise _whole_runs_only()

    def stepwise(self) -> Stepwise:
        """Refuses: the SDK's loop does not stop between turns."""
        raise _whole_runs_only()

    async def run(self, evaluation: Evaluation[OutputT], driver: Driver) -> PromptResponse[OutputT]:
        """The SDK's loop in place of ours, on an event loop in any case."""
        work = self._run(evaluation)
        if evaluation.deadline is not None:
            work = _in_time(cast("Any", work), evaluation.deadline)
        return cast("PromptResponse[OutputT]", await driver.settle(work))

    async def _run(self, evaluation: Evaluation[OutputT]) -> PromptResponse[OutputT]:
        sdk = _sdk()
        options = self._options(sdk)
        evaluation.next_turn()
        root = os.path.realpath(options.cwd or os.getcwd())
        allows = options.permission_mode is None and options.can_use_tool is None
        attempt = 0
        with ExitStack() as held:
            tree = _workspace(evaluation, options, root, held)
            while True:
                run = ClaudeRun(sdk, options, evaluation, NativeTools(root, tree), allows=allows)
                try:
                    return await run.converse()
                except ThrottledError as error:
                    attempt += 1
                    pause = self.retry.pause(attempt, error.retry_after)
                    left = evaluation.deadline
                    late = left is not None and pause is not None and left.remaining_seconds <= pause
                    if pause is None or late or not run.can_start_over:
                        raise
                    await self.clock.asleep(pause)

    def _options(self, sdk: Any) -> Any:
        """The user's options with our defaults below them."""
        given = sdk.ClaudeAgentOptions() if self.options is None else self.options
        if not isinstance(given, sdk.ClaudeAgentOptions):
            raise TypeError(f"options must be the SDK's ClaudeAgentOptions, got {type(given).__name__}.")
        servers: Any = given.mcp_servers
        if not isinstance(servers, Mapping):
            raise ValueError("options.mcp_servers must be a dict here, so that the prompt's tools can stand beside it.")
        if SERVER in servers:
            raise ValueError(
                f"options.mcp_servers has a server '{SERVER}', the name of the prompt's own tools. Rename it."
            )
        defaults = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
        return replace(
            given,
            model=self.model or given.model,
            tools=[] if given.tools is None else given.tools,
            setting_sources=[] if given.setting_sources is None else given.setting_sources,
            strict_mcp_config=True,
            env={**defaults, "CLAUDE_CODE_MAX_RETRIES": str(self.retry.attempts), **given.env},
        )


def _workspace(evaluation: Evaluation[Any], options: Any, root: str, held: ExitStack) -> DirectoryTree | None:
    """What makes native tools roll back: the prompt's `DirectoryTree` of that directory, else one for this run; None
    when no native tool can change a file."""
    named: Any = options.tools  # a list, or a preset with everything in it
    is_harmless = not isinstance(named, Mapping) and all(name in READERS or name in STARTERS for name in named)
    if is_harmless and not options.mcp_servers:
        return None
    resources = evaluation.prompt.resources
    if DirectoryTree in resources:
        tree = resources.get(DirectoryTree)
        if tree.root != root:
            raise ValueError(
                f"The prompt's DirectoryTree is of {tree.root}, and Claude Code works in {root}. Set options.cwd to it."
            )
        return tree
    return held.enter_context(DirectoryTree(root, eager=False))


def _sdk() -> Any:
    try:
        import claude_agent_sdk  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PromptEvaluationError(
            "ClaudeAgentSDKAdapter needs the Claude Agent SDK. Install it: pip install 'weakincentives[claude]'"
        ) from error
    return cast("Any", claude_agent_sdk)


def _whole_runs_only() -> PromptEvaluationError:
    return PromptEvaluationError(
        "ClaudeAgentSDKAdapter cannot stop between turns: the SDK runs its own loop. Use evaluate, aevaluate, stream or "
        "astream; for single steps use another adapter."
    )
