"""What the gateway's suites try everything with: each wire, whole and streamed."""

from __future__ import annotations

import pytest

from wardwright.wire.turn import WireName


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=("chat_completions", "responses", "anthropic"))
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param
