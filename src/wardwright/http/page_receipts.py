"""The pages of the area Receipts: search, one of them, and a session replayed."""

from __future__ import annotations

from typing import Final

from wardwright.http.visit import Page

PAGES: Final[tuple[Page, ...]] = ()
