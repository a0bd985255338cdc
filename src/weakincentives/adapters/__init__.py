"""Ways to reach a model. All run the same loop and the same pipeline; they differ in what they send over the wire."""

from __future__ import annotations

from .claude_agent_sdk import ClaudeAgentSDKAdapter
from .core import Message, ModelReply, PromptResponse, ProviderAdapter, Stepwise, StopReason, Turn
from .litellm import LiteLLMAdapter
from .openai import OpenAIAdapter
from .retries import Retry
from .scripted import ScriptedAdapter, ScriptError
from .streaming import Answered, StreamEvent, TextDelta, ToolCalled, ToolFinished

__all__ = [
    "Answered",
    "ClaudeAgentSDKAdapter",
    "LiteLLMAdapter",
    "Message",
    "ModelReply",
    "OpenAIAdapter",
    "PromptResponse",
    "ProviderAdapter",
    "Retry",
    "ScriptError",
    "ScriptedAdapter",
    "Stepwise",
    "StopReason",
    "StreamEvent",
    "TextDelta",
    "ToolCalled",
    "ToolFinished",
    "Turn",
]
