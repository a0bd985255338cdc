"""The gateway's door: who may come in (`auth`), what may be sent (`guard`), and what is answered where."""

from __future__ import annotations
