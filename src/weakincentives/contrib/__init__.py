"""Contributed parts: tool suites that stand on the public interface of the runtime alone."""

from __future__ import annotations
