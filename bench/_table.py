"""How the benchmarks measure and print: best or median of interleaved batches, and each bar beside its figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter


def interleaved(subjects: Mapping[str, Callable[[], object]], *, batch: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of each subject, one figure per round; the subjects take turns within a round."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, fn in subjects.items():
            started = perf_counter()
            for _ in range(batch):
                fn()
            times[name].append((perf_counter() - started) / batch * 1e6)
    return times


def best(times: list[float]) -> float:
    return min(times)


def median_ratio(times: dict[str, list[float]], upper: str, lower: str) -> float:
    """The median over rounds of the ratio within a round: noise that hits both at once cancels out."""
    return statistics.median(a / b for a, b in zip(times[upper], times[lower], strict=True))


class Bars:
    """Collects figures and says whether each holds its bar."""

    def __init__(self) -> None:
        self.ok = True

    def show(self, what: str, figure: float, unit: str, bar: float | None = None) -> None:
        text = f"  {what:<66}{figure:>10.2f} {unit}"
        if bar is not None:
            held = figure <= bar
            self.ok &= held
            text += f"   {'ok' if held else 'MISSED'} (bar {bar:g})"
        print(text)

    def at_least(self, what: str, figure: float, unit: str, bar: float) -> None:
        held = figure >= bar
        self.ok &= held
        print(f"  {what:<66}{figure:>10.0f} {unit}   {'ok' if held else 'MISSED'} (bar {bar:g} or more)")
