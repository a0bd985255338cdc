"""The OpenAI adapter passes the kit with the client's previous major version, which this environment has."""

from __future__ import annotations

import openai

from ...weakincentives.adapters.conftest import loopback_only, server
from ...weakincentives.adapters.test_openai_kit import TestChat, TestResponses

__all__ = ["TestChat", "TestResponses", "loopback_only", "server"]


def test_this_is_the_previous_version() -> None:
    """LiteLLM holds it back; otherwise these tests would say nothing new."""
    assert openai.VERSION.startswith("2.")
