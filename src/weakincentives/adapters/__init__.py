"""Ways to reach a model. All run the same loop and the same pipeline; they differ in what they send over the wire."""

from __future__ import annotations

from .core import Message, ModelReply, PromptResponse, ProviderAdapter, Stepwise, StopReason, Turn
from .scripted import ScriptedAdapter, ScriptError

__all__ = [
    "Message",
    "ModelReply",
    "PromptResponse",
    "ProviderAdapter",
    "ScriptError",
    "ScriptedAdapter",
    "Stepwise",
    "StopReason",
    "Turn",
]
