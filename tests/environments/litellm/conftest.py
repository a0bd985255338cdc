"""What holds for every test of this environment."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ...weakincentives.adapters.loopback.openai_server import OpenAIServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # importing it asks nobody for prices


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    """OpenAI's wire on loopback."""
    server = OpenAIServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy stands between a test and its double, and no key of the machine is used."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(autouse=True)
def no_loop_is_left() -> Iterator[None]:
    """Some of LiteLLM's sync calls make an event loop for the thread and leave it there."""
    yield
    with suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.get_event_loop_policy().get_event_loop().close()
        asyncio.set_event_loop(None)
