"""The pages of the area Policy."""

from __future__ import annotations

from typing import Final

from wardwright.http.visit import Page

PAGES: Final[tuple[Page, ...]] = ()
