"""LiteLLM passes what every adapter must pass: the real package, over OpenAI's wire on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from weakincentives.adapters import LiteLLMAdapter, ProviderAdapter
from weakincentives.testing.adapter_kit import AdapterConformance, AdapterHarness, ScriptTurn

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

    def close(self) -> None:
        if self.stage is not None:
            self.stage.released.set()


class TestLiteLLM(AdapterConformance):
    @pytest.fixture
    def harness(self, server: OpenAIServer) -> Iterator[LiteLLMHarness]:
        harness = LiteLLMHarness(server)
        yield harness
        harness.close()
