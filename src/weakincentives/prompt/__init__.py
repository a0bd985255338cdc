"""What a model is told and may call: prompts, sections, tools and the policies that govern them."""

from __future__ import annotations

from .completion import CompletionChecked
from .events import Changes, RunContext, ToolInvoked, ToolProgress
from .feedback import Feedback, FeedbackGiven
from .guard import Guard, GuardContext
from .overrides import LocalPromptOverridesStore, PromptOverridesStore
from .policies import (
    ApprovalPolicy,
    KeyedDependencyPolicy,
    PolicyDecision,
    PolicyState,
    QuotaPolicy,
    RateLimitPolicy,
    ReadBeforeWritePolicy,
    SequentialDependencyPolicy,
    ToolPolicy,
)
from .prompt import Prompt, PromptResources, PromptTemplate
from .rendering import RenderedPrompt
from .section import MarkdownSection, Section
from .tool import Tool, ToolContext, ToolExample, ToolHandler, tool
from .tool_result import FileBlock, ImageBlock, TextBlock, ToolResult, render_text
from .visibility import SectionVisibility, apply_visibility

__all__ = [
    "ApprovalPolicy",
    "Changes",
    "CompletionChecked",
    "Feedback",
    "FeedbackGiven",
    "FileBlock",
    "Guard",
    "GuardContext",
    "ImageBlock",
    "KeyedDependencyPolicy",
    "LocalPromptOverridesStore",
    "MarkdownSection",
    "PolicyDecision",
    "PolicyState",
    "Prompt",
    "PromptOverridesStore",
    "PromptResources",
    "PromptTemplate",
    "QuotaPolicy",
    "RateLimitPolicy",
    "ReadBeforeWritePolicy",
    "RenderedPrompt",
    "RunContext",
    "Section",
    "SectionVisibility",
    "SequentialDependencyPolicy",
    "TextBlock",
    "Tool",
    "ToolContext",
    "ToolExample",
    "ToolHandler",
    "ToolInvoked",
    "ToolPolicy",
    "ToolProgress",
    "ToolResult",
    "apply_visibility",
    "render_text",
    "tool",
]
