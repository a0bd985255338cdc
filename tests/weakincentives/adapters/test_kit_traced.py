"""A traced adapter passes what every adapter must pass: tracing changes nothing that a model, a session or a user sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from weakincentives.adapters import ProviderAdapter
from weakincentives.adapters.telemetry import TracedAdapter
from weakincentives.testing.adapter_kit import AdapterConformance, ScriptTurn

from .test_kit_scripted import ScriptedHarness


class TracedHarness(ScriptedHarness):
    def __init__(self) -> None:
        super().__init__()
        self.exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def adapter(self, script: Sequence[ScriptTurn]) -> ProviderAdapter:
        return TracedAdapter(super().adapter(script), tracer_provider=self._provider, capture_content=True)


class TestTraced(AdapterConformance):
    streams_words = False

    @pytest.fixture
    def harness(self) -> Iterator[TracedHarness]:
        harness = TracedHarness()
        yield harness
        harness.released.set()
