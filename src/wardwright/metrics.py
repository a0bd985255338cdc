"""Counters and histograms of one process, told in Prometheus' text form.

Counting is on the path of every request: a dictionary and an addition; what is counted and timed is looked up once. Labels come from closed lists and from the config, never
from a caller, so nothing here grows with traffic. Counted on the event loop's thread. Each worker tells its own, labelled.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SHORT_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bucket borders of what the gateway itself does, in seconds."""
LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""… and of what providers and whole exchanges take."""

MAX_SERIES: Final = 1_000
"""Of one metric. A label that nobody expected must not eat the memory: what comes after is counted as `other`."""
_AT_ONCE: Final = 512


class Counter:
    """A number per set of labels that only rises."""

    __slots__ = ("help", "labels", "name", "values")

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, by: float = 1) -> None:
        values = self.values
        try:
            values[labels] += by
        except KeyError:
            if len(values) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            values[labels] = values.get(labels, 0) + by

    def lines(self, shared: str) -> list[str]:
        told = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} counter"]
        told += [
            f"{self.name}{_labels(self.labels, values, shared)} {_number(value)}"
            for values, value in sorted(self.values.items())
        ]
        return told


class Histogram:
    """How often something took how long, per set of labels."""

    __slots__ = ("borders", "help", "labels", "name", "series")

    def __init__(self, name: str, help: str, labels: tuple[str, ...], borders: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.borders = tuple(borders)
        self.series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            found = self.series.setdefault(labels, ([0] * (len(self.borders) + 1), [0.0]))
        buckets, total = found
        buckets[bisect_left(self.borders, value)] += 1
        total[0] += value

    def lines(self, shared: str) -> list[str]:
        told = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        for values, (buckets, total) in sorted(self.series.items()):
            count = 0
            for border, held in zip((*map(_number, self.borders), "+Inf"), buckets, strict=True):
                count += held
                told.append(f"{self.name}_bucket{_labels((*self.labels, 'le'), (*values, border), shared)} {count}")
            shown = _labels(self.labels, values, shared)
            told += [f"{self.name}_sum{shown} {_number(total[0])}", f"{self.name}_count{shown} {count}"]
        return told


class Outcomes:
    """How often something ended how, and how long that took: told as a counter by both labels and a histogram by the first."""

    __slots__ = ("counter", "histogram", "per_second", "series", "waiting")

    def __init__(self, counter: Counter, histogram: Histogram, per_second: float = 1) -> None:
        self.counter = counter
        self.histogram = histogram
        self.per_second = per_second
        """Of the units in which it is told how long something took."""
        self.waiting: dict[tuple[str, str | int], list[float]] = {}
        """What took how long, not counted yet: many at once cost a third of one by one."""
        self.series: dict[tuple[str, str | int], tuple[list[int], list[float]]] = {}
        """Buckets; and the seconds in all, with how many nobody timed."""

    def observe(self, label: str, outcome: str | int, took: float | None = None) -> None:
        """Without a time: one that nobody timed."""
        if took is None:
            key = label, outcome
            self.series[key if key in self.series else self._begun(label, outcome)][1][1] += 1
            return
        try:
            waiting = self.waiting[label, outcome]
        except KeyError:
            waiting = self.waiting[self._begun(label, outcome)]
        waiting.append(took)
        if len(waiting) >= _AT_ONCE:
            self._count()

    def _begun(self, label: str, outcome: str | int) -> tuple[str, str | int]:
        key = (label, outcome) if len(self.series) < MAX_SERIES else ("other", "other")
        self.series.setdefault(key, ([0] * (len(self.histogram.borders) + 1), [0.0, 0]))
        self.waiting.setdefault(key, [])
        return key

    def _count(self) -> None:
        for key, waiting in self.waiting.items():
            if not waiting:
                continue
            buckets, totals = self.series[key]
            if self.per_second != 1:
                per_second = self.per_second
                waiting[:] = [took / per_second for took in waiting]
            # In the order in which they came, as if each had been added at once.
            totals[0] = sum(waiting, totals[0])
            waiting.sort()
            before = 0
            for place, border in enumerate(self.histogram.borders):
                fits = bisect_right(waiting, border, before)
                buckets[place] += fits - before
                before = fits
            buckets[-1] += len(waiting) - before
            waiting.clear()

    def lines(self, shared: str) -> list[str]:
        self._count()
        counted, timed = self.counter.values, self.histogram.series
        counted.clear()
        timed.clear()
        for (label, outcome), (buckets, (seconds, untimed)) in self.series.items():
            number = sum(buckets)
            counted[label, str(outcome)] = number + untimed
            if number:
                before, total = timed.get((label,), ([0] * len(buckets), [0.0]))
                timed[label,] = list(map(add, before, buckets)), [total[0] + seconds]
        return self.counter.lines(shared) + self.histogram.lines(shared)


class Gauge:
    """A number that is asked for when somebody reads the metrics."""

    __slots__ = ("help", "kind", "label", "name", "read")

    def __init__(
        self, name: str, help: str, read: Callable[[], float | Mapping[str, float]], label: str, kind: str
    ) -> None:
        self.name = name
        self.help = help
        self.read = read
        self.label = label
        self.kind = kind

    def lines(self, shared: str) -> list[str]:
        value = self.read()
        told = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        if isinstance(value, Mapping):
            told += [
                f"{self.name}{_labels((self.label,), (label,), shared)} {_number(one)}"
                for label, one in sorted(value.items())
            ]
        else:
            told.append(f"{self.name}{_labels((), (), shared)} {_number(value)}")
        return told


class Metrics:
    """All that one process counts. Made once per process; the parts of the gateway tell it what happened, in their own words."""

    def __init__(self, worker: str = "") -> None:
        self._shared = f'worker="{_escaped(worker)}"' if worker else ""
        self._streams = 0
        self._requests = Outcomes(
            Counter("wardwright_requests_total", "Answered requests.", ("wire", "status")),
            Histogram(
                "wardwright_request_seconds", "From the first byte read to the last one sent.", ("wire",), LONG_S
            ),
        )
        self._first_byte = Histogram(
            "wardwright_first_byte_seconds",
            "From a streamed request to the first byte of its answer.",
            ("wire",),
            LONG_S,
        )
        self._refusals = Counter("wardwright_refusals_total", "Requests that did not pass, by kind.", ("kind",))
        self._failures = Counter("wardwright_failures_total", "Errors inside the gateway, by class.", ("error",))
        self._decisions = Outcomes(
            Counter("wardwright_decisions_total", "Rulings.", ("gate", "decision")),
            Histogram("wardwright_gate_seconds", "Time to judge and commit.", ("gate",), SHORT_S),
            1e6,
        )
        self._attempts = Outcomes(
            Counter("wardwright_upstream_attempts_total", "Targets tried.", ("provider", "status")),
            Histogram("wardwright_upstream_seconds", "Time a provider took.", ("provider",), LONG_S),
        )
        self._commits = Counter("wardwright_commits_total", "Commits to the store, by outcome.", ("outcome",))
        self._server_tools = Counter("wardwright_server_tool_runs_total", "Server tools run.", ("tool", "status"))
        self._told: list[Counter | Histogram | Outcomes] = [
            self._requests,
            self._first_byte,
            self._refusals,
            self._failures,
            self._decisions,
            self._attempts,
            self._commits,
            self._server_tools,
        ]
        # What every request counts is called without a step between.
        self.answered = self._requests.observe
        """A request of this wire, with which status, after how many seconds."""
        self.decided = self._decisions.observe
        """At which gate, how, and how many microseconds it took."""
        self.upstream = self._attempts.observe
        """Which provider was tried, how that ended, after how many seconds."""
        self._gauges: dict[str, Gauge] = {}
        self.gauge("wardwright_open_streams", "Streams under way.", lambda: self._streams)

    def refused(self, kind: str) -> None:
        self._refusals.add(kind)

    def failed(self, error: BaseException) -> None:
        """Something went wrong inside. Its class is counted; what it says may hold what a caller wrote."""
        self._failures.add(type(error).__name__)

    def first_byte(self, wire: str, seconds: float) -> None:
        self._first_byte.observe(seconds, wire)

    def committed(self, outcome: str = "ok", number: int = 1) -> None:
        self._commits.add(outcome, by=number)

    def server_tool(self, tool: str, status: str) -> None:
        self._server_tools.add(tool, status)

    def stream_opened(self) -> None:
        self._streams += 1

    def stream_closed(self) -> None:
        self._streams -= 1

    def gauge(
        self,
        name: str,
        help: str,
        read: Callable[[], float | Mapping[str, float]],
        *,
        label: str = "name",
        kind: str = "gauge",
    ) -> None:
        """Tells a number that somebody else keeps, or one per name; asked for each time the metrics are read. The same name
        again replaces it. `kind="counter"` for one that only rises."""
        self._gauges[name] = Gauge(name, help, read, label, kind)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        told = (*self._told, *self._gauges.values())
        return "\n".join(line for one in told for line in one.lines(self._shared)) + "\n"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if value != value else f"{'+' if value > 0 else '-'}Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _labels(names: Sequence[str], values: Sequence[str], shared: str) -> str:
    shown = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    if shared:
        shown.append(shared)
    return f"{{{','.join(shown)}}}" if shown else ""
