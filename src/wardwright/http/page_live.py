"""The pages of the area Live: what happens now, what waits for a decision, what is stopped."""

from __future__ import annotations

from typing import Final

from wardwright.http.visit import Page

PAGES: Final[tuple[Page, ...]] = ()
