"""Claims of LiteLLMAdapter that need no LiteLLM: what is refused at once, and what to install."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from weakincentives.adapters import LiteLLMAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Session


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an adapter needs nothing; asking a model says what to install."""
    monkeypatch.setitem(sys.modules, "litellm", None)
    adapter = LiteLLMAdapter("openai/gpt-5")

    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(Prompt(PromptTemplate(sections=[MarkdownSection(title="A")])), Session())

    assert str(caught.value) == (
        "LiteLLMAdapter needs the package litellm. Install it: pip install 'weakincentives[litellm]'."
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": []}, "LiteLLMAdapter sets messages by itself. Leave it out."),
        ({"num_retries": 3, "stream": True}, "LiteLLMAdapter sets num_retries, stream by itself. Leave them out."),
        ({"router": object(), "api_key": "k"}, "LiteLLMAdapter takes either a router, or base_url and api_key."),
    ],
)
def test_options_that_are_not_the_users_are_refused(options: dict[str, Any], said: str) -> None:
    """When the adapter is made, not when a model is asked."""
    with pytest.raises(ValueError) as caught:
        LiteLLMAdapter("openai/gpt-5", **options)
    assert str(caught.value) == said


def test_an_adapter_names_its_model_and_no_key() -> None:
    """What is printed or logged holds no credentials."""
    assert repr(LiteLLMAdapter("openai/gpt-5", api_key="sesame")) == "<LiteLLMAdapter: openai/gpt-5>"
