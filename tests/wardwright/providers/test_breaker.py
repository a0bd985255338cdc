"""The breaker opens after failures on end, lets one request through after a while, and closes with an answer."""

from __future__ import annotations

from wardwright.providers.breaker import TRIAL_SECONDS, Breaker


def opened() -> Breaker:
    breaker = Breaker(3, 30.0)
    for _ in range(3):
        assert breaker.enter(0.0)
        breaker.fail(0.0)
    return breaker


def test_failures_on_end_open_it() -> None:
    """G42: the third of three failures opens; until then everything passes."""
    breaker = Breaker(3, 30.0)
    for _ in range(3):
        assert not breaker.blocked(0.0)
        breaker.fail(0.0)
    assert breaker.blocked(0.0)
    assert not breaker.enter(29.9)
    assert breaker.wait(10.0) == 20.0


def test_a_success_between_starts_the_count_again() -> None:
    """Only failures on end count."""
    breaker = Breaker(3, 30.0)
    for _ in range(10):
        breaker.fail(0.0)
        breaker.fail(0.0)
        breaker.succeed()
    assert breaker.enter(0.0)


def test_after_the_rest_one_is_let_through() -> None:
    """One request tries; the others are held back until it is known how it went."""
    breaker = opened()
    assert not breaker.blocked(30.0)
    assert breaker.enter(30.0)
    assert breaker.blocked(30.0)
    assert not breaker.enter(31.0)


def test_a_failed_trial_opens_it_for_as_long_again() -> None:
    """A trial that fails starts the rest anew."""
    breaker = opened()
    assert breaker.enter(30.0)
    breaker.fail(40.0)
    assert not breaker.enter(69.9)
    assert breaker.enter(70.0)


def test_an_answer_to_the_trial_closes_it_on_probation() -> None:
    """Everything passes again when the trial's answer has begun; the next failure opens at once, a whole answer forgets all."""
    breaker = opened()
    assert breaker.enter(30.0)
    breaker.answered()
    assert breaker.enter(30.0)
    breaker.fail(31.0)
    assert breaker.blocked(31.0)
    assert breaker.enter(61.0)
    breaker.answered()
    breaker.succeed()
    breaker.fail(62.0)
    assert not breaker.blocked(62.0)


def test_a_trial_that_says_nothing_leaves_the_next_one_a_try() -> None:
    """A trial that was cancelled is none."""
    breaker = opened()
    assert breaker.enter(30.0)
    breaker.leave()
    assert breaker.enter(30.0)


def test_a_trial_that_is_lost_does_not_hold_back_for_ever() -> None:
    """A trial whose end nobody told is over after a time."""
    breaker = opened()
    assert breaker.enter(30.0)
    assert not breaker.enter(29.9 + TRIAL_SECONDS)
    assert breaker.enter(30.0 + TRIAL_SECONDS)


def test_late_failures_of_earlier_requests_do_not_prolong_the_count() -> None:
    """Requests that were under way when it opened do not make it need more than one good answer."""
    breaker = opened()
    for _ in range(10):
        breaker.fail(1.0)
    breaker.succeed()
    breaker.fail(2.0)
    assert not breaker.blocked(2.0)
