"""`python -m wardwright` is the command."""

from __future__ import annotations

from wardwright.cli import main

main()
