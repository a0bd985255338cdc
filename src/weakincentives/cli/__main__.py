"""`python -m weakincentives.cli` is `wink`."""

from __future__ import annotations

from . import main

main()
