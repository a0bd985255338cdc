"""Claims about clocks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from weakincentives.clock import SYSTEM_CLOCK, Clock, FakeClock, SystemClock


def test_system_now_is_wall_time() -> None:
    """`now` lies between two readings of `time.time()`."""
    before = time.time()
    now = SYSTEM_CLOCK.now()
    assert before <= now <= time.time()


def test_system_readings_are_the_c_functions() -> None:
    """Reading the system clock costs no Python frame."""
    assert SystemClock.now is time.time
    assert SystemClock.monotonic is time.monotonic


def test_system_sleep_returns() -> None:
    """Both sleeps of the system clock accept zero and come back."""
    SYSTEM_CLOCK.sleep(0)
    assert asyncio.run(SYSTEM_CLOCK.asleep(0)) is None


def test_fake_stands_still() -> None:
    """A fake clock does not move by itself."""
    clock = FakeClock(start=100.0)
    assert (clock.now(), clock.now(), clock.monotonic()) == (100.0, 100.0, 0.0)


def test_advance_moves_both_readings() -> None:
    """Advancing moves wall and monotonic time by the same span."""
    clock = FakeClock(start=100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_fake_sleep_advances() -> None:
    """Sleeping on a fake clock lets the time pass at once."""
    clock = FakeClock(start=0.0)
    clock.sleep(3)
    assert clock.now() == 3.0


def test_fake_asleep_advances_and_lets_others_run() -> None:
    """An async sleep on a fake clock advances it and gives other tasks a turn."""

    async def scenario() -> tuple[float, list[str]]:
        clock = FakeClock(start=0.0)
        seen: list[str] = []

        async def other() -> None:
            seen.append("ran")

        task = asyncio.create_task(other())
        await clock.asleep(4)
        await task
        return clock.now(), seen

    assert asyncio.run(scenario()) == (4.0, ["ran"])


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_fake_cannot_go_back(seconds: float) -> None:
    """A negative or meaningless advance is refused and changes nothing."""
    clock = FakeClock(start=5.0)
    with pytest.raises(ValueError) as caught:
        clock.advance(seconds)
    assert str(caught.value) == f"A clock cannot go back: advance({seconds!r}). Pass zero or more seconds."
    assert clock.now() == 5.0


def test_fake_loses_no_advance_between_threads() -> None:
    """Advances of several threads all count."""
    clock = FakeClock(start=0.0)
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(500):
            clock.advance(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 2_000.0


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, FakeClock()], ids=["system", "fake"])
def test_both_are_clocks(clock: Clock) -> None:
    """Either clock can stand where a Clock is asked for."""
    first = clock.monotonic()
    assert clock.monotonic() >= first
