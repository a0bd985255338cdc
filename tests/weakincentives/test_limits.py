"""Claims about deadlines, token budgets and heartbeats (S20, S40)."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from weakincentives.clock import SYSTEM_CLOCK, FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Budget, BudgetTracker, Deadline, Heartbeat, TokenUsage

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start=NOON.timestamp())


# Deadline


def test_deadline_counts_down(clock: FakeClock) -> None:
    """What remains shrinks as the clock moves."""
    deadline = Deadline(NOON + timedelta(seconds=10), clock)
    clock.advance(4)
    assert (deadline.remaining(), deadline.remaining_seconds) == (timedelta(seconds=6), 6.0)


def test_deadline_expires_at_its_moment(clock: FakeClock) -> None:
    """A deadline is open before its moment and expired at it."""
    deadline = Deadline.after(10, clock)
    clock.advance(9.5)
    before = deadline.expired
    clock.advance(0.5)
    assert (before, deadline.expired) == (False, True)


def test_remaining_never_goes_below_zero(clock: FakeClock) -> None:
    """A passed deadline leaves nothing, so the figure can serve as a timeout."""
    deadline = Deadline.after(-5, clock)
    assert (deadline.remaining(), deadline.remaining_seconds) == (timedelta(0), 0.0)


def test_deadline_after_takes_seconds_or_timedelta(clock: FakeClock) -> None:
    """Both ways to give a span mean the same moment."""
    assert Deadline.after(90, clock) == Deadline.after(timedelta(minutes=1, seconds=30), clock)


def test_deadline_takes_timestamp_or_datetime(clock: FakeClock) -> None:
    """Seconds since the epoch and an aware datetime of any zone mean the same moment."""
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    same = {Deadline(NOON.timestamp(), clock), Deadline(NOON, clock), Deadline(elsewhere, clock)}
    assert len(same) == 1


def test_deadline_shows_its_moment(clock: FakeClock) -> None:
    """The moment can be read back as datetime, timestamp and text."""
    deadline = Deadline(NOON, clock)
    assert (deadline.at, deadline.timestamp) == (NOON, NOON.timestamp())
    assert repr(deadline) == "Deadline(2030-01-01T12:00:00+00:00)"


def test_deadlines_differ_by_moment(clock: FakeClock) -> None:
    """Deadlines of different moments, and other things, are not equal."""
    assert Deadline(NOON, clock) != Deadline.after(1, clock)
    assert Deadline(NOON, clock) != NOON


def test_deadline_uses_the_system_clock_by_default() -> None:
    """Without a clock a deadline follows wall time."""
    assert 0 < Deadline(SYSTEM_CLOCK.now() + 60).remaining_seconds <= 60


def test_check_passes_before_the_deadline(clock: FakeClock) -> None:
    """Checking in time raises nothing."""
    assert Deadline.after(1, clock).check() is None


def test_check_says_when_and_how_late(clock: FakeClock) -> None:
    """A passed deadline names its moment, the delay and what to do."""
    deadline = Deadline(NOON, clock)
    clock.advance(1.25)
    with pytest.raises(DeadlineExceededError) as caught:
        deadline.check()
    assert str(caught.value) == (
        "Deadline exceeded: the run had to end by 2030-01-01T12:00:00.000+00:00, 1.250 s ago. "
        "It cannot go on; start a new run with a later deadline."
    )


def test_deadline_error_is_an_evaluation_error_and_a_timeout(clock: FakeClock) -> None:
    """S20: the deadline error already is the error it is converted to."""
    with pytest.raises(PromptEvaluationError) as caught:
        Deadline(NOON, clock).check()
    assert isinstance(caught.value, TimeoutError)


def test_naive_datetime_is_refused() -> None:
    """A datetime without zone says what to pass instead."""
    with pytest.raises(ValueError) as caught:
        Deadline(datetime(2030, 1, 1, 12, 0))
    assert str(caught.value) == (
        "Deadline needs a time zone: 2030-01-01T12:00:00 is naive. "
        "Pass an aware datetime, such as datetime.now(timezone.utc) + timedelta(minutes=5)."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_endless_deadline_is_refused(value: float) -> None:
    """A deadline that is no moment is refused."""
    with pytest.raises(ValueError) as caught:
        Deadline(value)
    assert str(caught.value) == f"Deadline takes a finite number of seconds, got {value!r}."


def test_deadline_out_of_range_is_refused(clock: FakeClock) -> None:
    """A moment that no calendar holds is refused."""
    with pytest.raises(ValueError) as caught:
        Deadline(1e20, clock)
    assert str(caught.value) == "Deadline is out of range: 1e+20. Pass seconds since the epoch or a datetime."


def test_deadline_of_another_type_is_refused() -> None:
    """Text and booleans are not moments."""
    with pytest.raises(TypeError, match=r"^Deadline takes a number of seconds, got str\.$"):
        Deadline("2030-01-01")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Deadline\.after takes a number of seconds, got bool\.$"):
        Deadline.after(True)


# Token usage and budget


def test_usages_add_up() -> None:
    """Adding usages adds each figure; cached tokens are part of the input, not of the total."""
    usage = TokenUsage(10, 5, cached_tokens=4) + TokenUsage(1, 2, cached_tokens=1)
    assert (usage, usage.total_tokens) == (TokenUsage(11, 7, 5), 18)


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cached_tokens"])
def test_negative_usage_is_refused(field: str) -> None:
    """Usage cannot be given back."""
    with pytest.raises(ValueError) as caught:
        TokenUsage(**{field: -1})
    assert str(caught.value) == f"TokenUsage.{field} must be at least 0, got -1."


@pytest.mark.parametrize("field", ["max_total_tokens", "max_input_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, ValueError, "must be at least 1, got 0."),
        (1.5, TypeError, "must be an integer, got float."),
        (True, TypeError, "must be an integer, got bool."),
    ],
)
def test_meaningless_limit_is_refused(field: str, value: object, error: type[Exception], text: str) -> None:
    """A limit is a positive integer."""
    with pytest.raises(error) as caught:
        Budget(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"Budget.{field} {text}"


def test_budget_deadline_must_be_a_deadline() -> None:
    """A bare number is not accepted as a budget's deadline."""
    with pytest.raises(TypeError, match=r"^Budget\.deadline must be a Deadline, got int\.$"):
        Budget(deadline=5)  # type: ignore[arg-type]


def test_tracker_adds() -> None:
    """Added tokens are counted."""
    tracker = BudgetTracker(Budget())
    tracker.add(10, 5, cached_tokens=2)
    tracker.add(output_tokens=1)
    assert tracker.consumed == TokenUsage(10, 6, 2)


def test_tracker_takes_running_totals_per_source() -> None:
    """A source's later report replaces its earlier one; sources add up."""
    tracker = BudgetTracker(Budget())
    tracker.record("a", TokenUsage(10, 1))
    tracker.record("b", TokenUsage(5, 5))
    tracker.record("a", TokenUsage(15, 2))
    assert tracker.consumed == TokenUsage(20, 7)


def test_late_report_does_not_lower_the_count() -> None:
    """Reports of one source arriving out of order never give tokens back."""
    tracker = BudgetTracker(Budget())
    tracker.record("a", TokenUsage(15, 2))
    tracker.record("a", TokenUsage(10, 3))
    assert tracker.consumed == TokenUsage(15, 3)


def test_budget_without_limits_is_never_used_up() -> None:
    """An empty budget bars nothing."""
    tracker = BudgetTracker(Budget())
    tracker.add(10**9, 10**9)
    tracker.check()
    assert tracker.exhausted is False


def test_budget_below_its_limits_passes() -> None:
    """One token below the limit the run may go on."""
    tracker = BudgetTracker(Budget(max_total_tokens=100))
    tracker.add(60, 39)
    tracker.check()
    assert tracker.exhausted is False


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(max_total_tokens=100), "120 of 100 total tokens"),
        (Budget(max_input_tokens=80), "80 of 80 input tokens"),
        (Budget(max_output_tokens=30), "40 of 30 output tokens"),
        (
            Budget(max_total_tokens=120, max_input_tokens=81, max_output_tokens=40),
            "120 of 120 total tokens, 40 of 40 output tokens",
        ),
    ],
)
def test_used_up_budget_names_limits_and_figures(budget: Budget, text: str) -> None:
    """The error names every limit reached, with what was used and allowed."""
    tracker = BudgetTracker(budget)
    tracker.add(80, 40)
    with pytest.raises(BudgetExceededError) as caught:
        tracker.check()
    assert tracker.exhausted is True
    assert str(caught.value) == (
        f"Token budget used up: {text}. The run cannot go on; start a new one with a larger budget."
    )


def test_budget_error_is_an_evaluation_error() -> None:
    """S20: the budget error already is the error it is converted to."""
    assert issubclass(BudgetExceededError, PromptEvaluationError)


def test_budget_checks_its_deadline(clock: FakeClock) -> None:
    """A budget whose time is over is exhausted and raises the deadline's error."""
    tracker = BudgetTracker(Budget(deadline=Deadline.after(1, clock), max_total_tokens=10))
    tracker.check()
    clock.advance(1)
    assert tracker.exhausted is True
    with pytest.raises(DeadlineExceededError):
        tracker.check()


def test_tracker_loses_nothing_between_threads() -> None:
    """Counts of several threads all arrive."""
    tracker = BudgetTracker(Budget())
    start = threading.Barrier(4)

    def work(source: str) -> None:
        start.wait()
        for n in range(1, 201):
            tracker.add(1, 1)
            tracker.record(source, TokenUsage(n, 0))

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.consumed == TokenUsage(1_600, 800)


# Heartbeat


def test_heartbeat_starts_alive(clock: FakeClock) -> None:
    """Before the first beat the time since creation is shown."""
    heartbeat = Heartbeat(clock)
    clock.advance(3)
    assert (heartbeat.last_beat, heartbeat.elapsed()) == (NOON.timestamp(), 3.0)


def test_beat_restarts_the_count(clock: FakeClock) -> None:
    """A beat moves `last_beat` and sets the elapsed time to zero."""
    heartbeat = Heartbeat(clock)
    clock.advance(3)
    heartbeat.beat()
    assert (heartbeat.last_beat, heartbeat.elapsed()) == (NOON.timestamp() + 3, 0.0)


def test_callbacks_hear_every_beat(clock: FakeClock) -> None:
    """Callbacks run at each beat, in the order they were added."""
    heartbeat, heard = Heartbeat(clock), list[str]()
    heartbeat.add_callback(lambda: heard.append("a"))
    heartbeat.add_callback(lambda: heard.append("b"))
    heartbeat.beat()
    heartbeat.beat()
    assert heard == ["a", "b", "a", "b"]


def test_removed_callback_hears_nothing(clock: FakeClock) -> None:
    """Removing works once, may be repeated, and leaves an equal callback in place."""
    heartbeat, heard = Heartbeat(clock), list[int]()

    def callback() -> None:
        heard.append(1)

    remove = heartbeat.add_callback(callback)
    heartbeat.add_callback(callback)
    remove()
    remove()
    heartbeat.beat()
    assert heard == [1]


def test_raising_callback_is_logged_and_skipped(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged; the beat counts and the next callback runs."""
    heartbeat, heard = Heartbeat(clock), list[int]()

    def broken() -> None:
        raise RuntimeError("lease lost")

    heartbeat.add_callback(broken)
    heartbeat.add_callback(lambda: heard.append(1))
    with caplog.at_level(logging.ERROR, "weakincentives.limits"):
        heartbeat.beat()
    assert heard == [1]
    assert [record.getMessage() for record in caplog.records] == [f"A heartbeat callback failed: {broken!r}"]


def test_callback_may_use_the_heartbeat(clock: FakeClock) -> None:
    """A callback may read the heartbeat and remove itself without deadlock."""
    heartbeat, heard = Heartbeat(clock), list[float]()

    def once() -> None:
        remove()
        heard.append(heartbeat.elapsed())

    remove = heartbeat.add_callback(once)
    heartbeat.beat()
    heartbeat.beat()
    assert heard == [0.0]
