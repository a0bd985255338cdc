"""`python -m examples.attacks`: plays every story in process and on the wire, and prints what was kept, held and passed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .agent import load
from .report import page, parity, plain, play_all, variants, write_page
from .settings import PLAN, WIRES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.attacks", description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLAN, help="another plan over the same tools")
    parser.add_argument("--only", default="", help="only stories whose name contains this")
    parser.add_argument("--wire", choices=WIRES, action="append", help="on this wire (default: all)")
    parser.add_argument("--no-wire", action="store_true", help="in process only")
    parser.add_argument("--why", action="store_true", help="say why each call was held")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/containment.md")
    given = parser.parse_args()
    runs = [run for run in load() if given.only in run.name]
    wires = () if given.no_wire else tuple(given.wire or WIRES)
    played = play_all(runs, given.plan, wires)
    print(plain(played, why=given.why))
    differences = parity(played)
    for line in differences:
        print(f"differs: {line}")
    if given.write_docs:
        write_page(page(played, variants(runs, given.plan)))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
