"""What holds for every test that talks to a provider's double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from weakincentives.adapters import OpenAIAdapter
from weakincentives.testing.adapter_kit import ScriptTurn

from .loopback.openai_server import OpenAIServer, Raw, Stage


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    """OpenAI's wire on loopback."""
    server = OpenAIServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def loopback_only(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between a test and its double, and no key of the machine is used. The doubles speak no TLS: to load
    the world's certificates for each client would be half of the time."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path_factory.getbasetemp()))
    for name in ("SSL_CERT_FILE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def make(server: OpenAIServer) -> Iterator[Callable[..., tuple[OpenAIAdapter, Stage]]]:
    """An adapter whose provider answers with these turns, and what the provider knows of it."""
    made: list[OpenAIAdapter] = []

    def make(*script: ScriptTurn | Raw, model: str = "gpt-5", **options: Any) -> tuple[OpenAIAdapter, Stage]:
        stage = server.stage(script)
        if "client" not in options:
            options = {"base_url": stage.base_url, "api_key": "key", **options}
        made.append(OpenAIAdapter(model, **options))
        return made[-1], stage

    yield make
    for adapter in made:
        adapter.close()
