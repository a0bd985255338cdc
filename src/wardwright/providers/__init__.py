"""Providers: how the gateway asks a model. What an answer means is decided elsewhere."""

from __future__ import annotations
