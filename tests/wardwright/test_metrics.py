"""What a process counts, and how Prometheus reads it."""

from __future__ import annotations

import math
import re

from wardwright.metrics import MAX_SERIES, Metrics

LINE = re.compile(
    r'(# (HELP|TYPE) wardwright_[a-z_]+ .+|wardwright_[a-z_]+(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})? \S+)'
)


def lines(metrics: Metrics, start: str) -> list[str]:
    return [line for line in metrics.text().splitlines() if line.startswith(start)]


def used(worker: str = "") -> Metrics:
    metrics = Metrics(worker)
    metrics.answered("chat_completions", 200, 0.02)
    metrics.answered("chat_completions", 200)
    metrics.answered("anthropic", 403)
    metrics.refused("policy_violation")
    metrics.failed(ValueError("what a caller wrote"))
    metrics.decided("request", "allow", 120)
    metrics.decided("request", "allow", 800)
    metrics.decided("reply", "block", 2_000_000)
    metrics.upstream("openai", "ok", 0.3)
    metrics.first_byte("responses", 0.2)
    metrics.committed()
    metrics.committed("conflict", 3)
    metrics.server_tool("wardwright_policy_cache_status", "ok")
    return metrics


def test_requests_are_counted_by_wire_and_status() -> None:
    """One line per pair, in a fixed order."""
    assert lines(used(), "wardwright_requests_total") == [
        'wardwright_requests_total{wire="anthropic",status="403"} 1',
        'wardwright_requests_total{wire="chat_completions",status="200"} 2',
    ]


def test_rulings_are_counted_by_gate_and_decision() -> None:
    """And how long they took stands in a histogram."""
    metrics = used()

    assert lines(metrics, "wardwright_decisions_total") == [
        'wardwright_decisions_total{gate="reply",decision="block"} 1',
        'wardwright_decisions_total{gate="request",decision="allow"} 2',
    ]
    assert lines(metrics, 'wardwright_gate_seconds_count{gate="request"}') == [
        'wardwright_gate_seconds_count{gate="request"} 2'
    ]


def test_a_histogram_s_buckets_add_up() -> None:
    """Each holds what was at most its border; the last one holds all; a border belongs to its bucket."""
    metrics = Metrics()
    for elapsed_us in (100, 120, 2_000_000):
        metrics.decided("request", "allow", elapsed_us)
    told = {
        line.partition('le="')[2].partition('"')[0]: line.split()[-1]
        for line in lines(metrics, "wardwright_gate_seconds_bucket")
    }

    assert (told["5e-05"], told["0.0001"], told["0.00025"], told["1"], told["+Inf"]) == ("0", "1", "2", "2", "3")
    assert lines(metrics, "wardwright_gate_seconds_sum") == ['wardwright_gate_seconds_sum{gate="request"} 2.00022']


def test_every_line_is_one_that_prometheus_reads() -> None:
    """Each metric has its help and its type before its values, once."""
    text = used('odd "worker"\\\n').text()
    told = text.splitlines()

    assert text.endswith("\n")
    assert [line for line in told if not LINE.fullmatch(line)] == []
    heads = [line.split()[2] for line in told if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))


def test_each_worker_tells_its_own() -> None:
    """A label keeps them apart when they are added up."""
    assert lines(used("3"), "wardwright_refusals_total") == [
        'wardwright_refusals_total{kind="policy_violation",worker="3"} 1'
    ]


def test_an_error_is_counted_by_its_class() -> None:
    """What it says may hold what a caller wrote."""
    metrics = used()

    assert lines(metrics, "wardwright_failures_total") == ['wardwright_failures_total{error="ValueError"} 1']
    assert "caller wrote" not in metrics.text()


def test_commits_are_counted_by_outcome() -> None:
    """Several of one tick at once."""
    assert lines(used(), "wardwright_commits_total") == [
        'wardwright_commits_total{outcome="conflict"} 3',
        'wardwright_commits_total{outcome="ok"} 1',
    ]


def test_open_streams_go_up_and_down() -> None:
    """What is under way now."""
    metrics = Metrics()
    metrics.stream_opened()
    metrics.stream_opened()
    metrics.stream_closed()

    assert lines(metrics, "wardwright_open_streams") == ["wardwright_open_streams 1"]


def test_a_number_kept_elsewhere_is_asked_for_when_the_metrics_are_read() -> None:
    """One, or one per name; a name given again replaces the first."""
    metrics = Metrics("1")
    dropped = [0]
    metrics.gauge("wardwright_alerts_dropped_total", "Alerts.", lambda: -1)
    metrics.gauge("wardwright_alerts_dropped_total", "Alerts.", lambda: dropped[0], kind="counter")
    metrics.gauge("wardwright_breakers_open", "Breakers.", lambda: {"b": 1, "a": 0.5}, label="provider")
    dropped[0] = 7

    assert lines(metrics, "wardwright_alerts_dropped_total") == ['wardwright_alerts_dropped_total{worker="1"} 7']
    assert "# TYPE wardwright_alerts_dropped_total counter" in metrics.text()
    assert lines(metrics, "wardwright_breakers_open") == [
        'wardwright_breakers_open{provider="a",worker="1"} 0.5',
        'wardwright_breakers_open{provider="b",worker="1"} 1',
    ]


def test_numbers_without_end_are_written_as_prometheus_wants_them() -> None:
    """A broken gauge does not break the page."""
    metrics = Metrics()
    metrics.gauge("wardwright_odd", "Odd.", lambda: {"a": math.inf, "b": -math.inf, "c": math.nan})

    assert [line.split()[-1] for line in lines(metrics, "wardwright_odd")] == ["+Inf", "-Inf", "NaN"]


def test_labels_that_nobody_expected_do_not_eat_the_memory() -> None:
    """After a thousand, what is new is counted together."""
    metrics = Metrics()
    for number in range(MAX_SERIES + 50):
        metrics.upstream(f"provider {number}", "ok", 0.1)

    assert len(lines(metrics, "wardwright_upstream_attempts_total")) == MAX_SERIES + 1
    assert lines(metrics, 'wardwright_upstream_attempts_total{provider="other"') == [
        'wardwright_upstream_attempts_total{provider="other",status="other"} 50'
    ]
    assert len(lines(metrics, "wardwright_upstream_seconds_count")) == MAX_SERIES + 1


def test_many_are_counted_as_each_would_be() -> None:
    """Times are counted many at once, also between two readings: each in its bucket, none twice, borders included."""
    metrics = Metrics()
    for number in range(1_300):
        metrics.decided("request", "allow", 50 if number % 2 else 60)
        if number == 100:
            assert 'wardwright_gate_seconds_count{gate="request"} 101' in metrics.text()
    told = metrics.text().splitlines()

    assert 'wardwright_gate_seconds_bucket{gate="request",le="5e-05"} 650' in told
    assert 'wardwright_gate_seconds_bucket{gate="request",le="0.0001"} 1300' in told
    assert 'wardwright_decisions_total{gate="request",decision="allow"} 1300' in told
