"""Benchmarks. Each module has a `main()` that prints its table; figures are ratios measured side by side in one run."""
