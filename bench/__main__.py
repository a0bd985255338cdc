"""`python -m bench [name …] [--quick]`: run all benchmarks, or the named ones."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    known = [module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_")]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"No benchmark called {', '.join(unknown)}; there are: {', '.join(known)}")
    failed = False
    for name in names or known:
        print(f"\n== {name} ==")
        failed |= importlib.import_module(f"bench.{name}").main(quick="--quick" in sys.argv) is False
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
