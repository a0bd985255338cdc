"""Claims about the Claude adapter that need no SDK: what is said without one, and what cannot be."""

from __future__ import annotations

import sys

import pytest

from weakincentives.adapters import ClaudeAgentSDKAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Session


def test_a_missing_sdk_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run needs the SDK, and its absence is one sentence."""
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)

    with pytest.raises(PromptEvaluationError) as caught:
        ClaudeAgentSDKAdapter("claude-sonnet-5").evaluate(Prompt(PromptTemplate()), Session())

    assert str(caught.value) == (
        "ClaudeAgentSDKAdapter needs the Claude Agent SDK. Install it: pip install 'weakincentives[claude]'"
    )


def test_single_steps_are_refused() -> None:
    """The SDK's loop does not stop between turns, and whoever asks for that is told at once."""
    with pytest.raises(PromptEvaluationError) as caught:
        ClaudeAgentSDKAdapter().stepwise()

    assert str(caught.value) == (
        "ClaudeAgentSDKAdapter cannot stop between turns: the SDK runs its own loop. Use evaluate, aevaluate, stream or "
        "astream; for single steps use another adapter."
    )
