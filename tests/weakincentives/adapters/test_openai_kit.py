"""OpenAI's models pass what every adapter must pass: the official client, both forms, over a socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pytest

from weakincentives.adapters import OpenAIAdapter, ProviderAdapter
from weakincentives.testing.adapter_kit import AdapterConformance, AdapterHarness, ScriptTurn

from .loopback.openai_server import OpenAIServer, Stage

pytest.importorskip("openai")


class OpenAIHarness(AdapterHarness):
    def __init__(self, server: OpenAIServer, api: Literal["chat", "responses"], **options: Any) -> None:
        self._server = server
        self._api: Literal["chat", "responses"] = api
        self._options = options
        self.stage: Stage | None = None
        self.made: OpenAIAdapter | None = None

    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        self.stage = self._server.stage(script)
        url = self.stage.base_url
        self.made = OpenAIAdapter("gpt-5", base_url=url, api_key="key", api=self._api, **self._options)
        return self.made

    def requests(self) -> Sequence[Mapping[str, Any]]:
        assert self.stage is not None
        return self.stage.requests

    async def aclose(self) -> None:
        assert self.made is not None
        await self.made.aclose()

    def close(self) -> None:
        if self.made is not None and self.stage is not None:
            self.stage.released.set()
            self.made.close()


class TestChat(AdapterConformance):
    @pytest.fixture
    def harness(self, server: OpenAIServer) -> Iterator[OpenAIHarness]:
        harness = OpenAIHarness(server, "chat")
        yield harness
        harness.close()


class TestResponses(AdapterConformance):
    @pytest.fixture
    def harness(self, server: OpenAIServer) -> Iterator[OpenAIHarness]:
        harness = OpenAIHarness(server, "responses")
        yield harness
        harness.close()
