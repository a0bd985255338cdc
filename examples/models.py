"""Which model an example talks to: a real one when the environment names it, otherwise its script."""

from __future__ import annotations

import os
from collections.abc import Iterable

from weakincentives.adapters import OpenAIAdapter, ProviderAdapter, ScriptedAdapter
from weakincentives.adapters.scripted import ScriptedTurn


def model(script: Iterable[ScriptedTurn]) -> ProviderAdapter:
    """`OPENAI_API_KEY`, or `OPENAI_BASE_URL` for any server that speaks its protocol; `OPENAI_MODEL` picks the model."""
    key, url = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
    if not (key or url):
        return ScriptedAdapter(script)
    return OpenAIAdapter(os.environ.get("OPENAI_MODEL", "gpt-5-mini"), base_url=url or None, api_key=key or "none")
