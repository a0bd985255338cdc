"""What the bypass suites try everything with: each wire, whole and streamed."""

from __future__ import annotations

import pytest

from wardwright.wire.turn import WireName

from .arena import WIRES


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    return request.param
