"""Providers: how the gateway asks a model. What an answer means is decided elsewhere."""

from __future__ import annotations

from wardwright.providers.client import Client, render_headers
from wardwright.providers.provider import Provider, open_providers
from wardwright.providers.response import Response
from wardwright.providers.settings import ProviderConfig, compile_providers
from wardwright.providers.url import Url, parse_url

__all__ = [
    "Client",
    "Provider",
    "ProviderConfig",
    "Response",
    "Url",
    "compile_providers",
    "open_providers",
    "parse_url",
    "render_headers",
]
