"""LiteLLM passes what every adapter must pass: the real package, over OpenAI's wire on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import litellm
import openai
import pytest

from weakincentives.adapters import LiteLLMAdapter, ProviderAdapter
from weakincentives.testing.adapter_kit import AdapterConformance, AdapterHarness, ScriptTurn

from ...weakincentives.adapters.loopback.anthropic_messages import MessagesServer
from ...weakincentives.adapters.loopback.openai_server import OpenAIServer, Stage

# Remarks of pydantic's on LiteLLM's own classes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class 'ChatCompletionReasoningItem'"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute on the instance"),
]


class LiteLLMHarness(AdapterHarness):
    def __init__(self, server: OpenAIServer) -> None:
        self._server = server
        self.stage: Stage | None = None

    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        self.stage = self._server.stage(script)
        return LiteLLMAdapter("openai/gpt-4o", base_url=self.stage.base_url, api_key="key")

    def requests(self) -> Sequence[Mapping[str, Any]]:
        assert self.stage is not None
        return self.stage.requests

    async def aclose(self) -> None:
        assert self.stage is not None
        for client in list(litellm.in_memory_llm_clients_cache.cache_dict.values()):
            # LiteLLM keeps them beyond the event loops they belong to.
            if isinstance(client, openai.AsyncOpenAI) and str(client.base_url).startswith(self.stage.base_url):
                await client.close()

    def close(self) -> None:
        if self.stage is not None:
            self.stage.released.set()


class TestLiteLLM(AdapterConformance):
    @pytest.fixture
    def harness(self, server: OpenAIServer) -> Iterator[LiteLLMHarness]:
        harness = LiteLLMHarness(server)
        yield harness
        harness.close()


class AnthropicHarness(AdapterHarness):
    """The same over another provider's wire, which LiteLLM translates to."""

    def __init__(self) -> None:
        self.server = MessagesServer()
        self.server.renames = False

    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        self.server.play(script)
        return LiteLLMAdapter("anthropic/claude-sonnet-4-5", base_url=self.server.url, api_key="key")

    def requests(self) -> Sequence[Mapping[str, Any]]:
        return self.server.requests

    async def aclose(self) -> None:
        await litellm.close_litellm_async_clients()  # LiteLLM keeps them beyond the event loops they belong to


class TestLiteLLMToAnthropic(AdapterConformance):
    modes = ("stream", "astream")  # all that this double speaks
    test_a_step_leaves_the_calls_to_the_caller = None  # for the same reason: a step does not stream

    @pytest.fixture
    def harness(self) -> Iterator[AnthropicHarness]:
        harness = AnthropicHarness()
        yield harness
        harness.server.close()
