"""Emergency stops and switches: what they match, and that every process follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from wardwright import receipts
from wardwright.errors import WireError
from wardwright.history import Delta
from wardwright.overlay import MAX_ENTRIES, BadName, NotStopped, Overlay, OverlayFull, Stop
from wardwright.store import PlanEpoch, ReceiptQuery, SealedRow, SqliteStore, Store, verify
from wardwright.wire.turn import Caller

NOW = 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = SqliteStore(path, upkeep=False)
    yield opened
    opened.close()


@pytest.fixture
def overlay(store: Store) -> Overlay:
    return Overlay(store, now_ms=lambda: NOW)


def test_nothing_is_stopped_at_first(overlay: Overlay) -> None:
    """An empty store stops nothing and switches nothing off."""
    overlay.refresh()

    assert overlay.stopped(Caller(tenant="acme", session_id="s", principal="k"), ("shell",)) is None
    assert overlay.off("coding") == frozenset()


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (
            Stop("session", "s1"),
            "An operator has stopped this session. Ask whoever runs this gateway; nothing passes until it is released.",
        ),
        (
            Stop("principal", "key-1", "acme"),
            "An operator has stopped this key. Ask whoever runs this gateway; nothing passes until it is released.",
        ),
        (
            Stop("tool", "shell_*"),
            "An operator has stopped the tool 'shell_exec'. Ask whoever runs this gateway; nothing passes until it is released.",
        ),
    ],
)
def test_a_stop_says_what_is_stopped_and_whom_to_ask(overlay: Overlay, stop: Stop, reason: str) -> None:
    """A refused caller reads one sentence it can act on; released, everything passes again."""
    caller = Caller(tenant="acme", session_id="s1", principal="key-1")
    overlay.set_stop(stop, "eve", "", NOW)
    assert overlay.stopped(caller, ("read", "shell_exec")) == reason

    overlay.clear_stop(stop, "eve", "", NOW)
    assert overlay.stopped(caller, ("read", "shell_exec")) is None


@pytest.mark.parametrize("spelling", ["shell_exec", "SHELL_EXEC", "shell\u200b_exec", "ｓhell_exec"])
def test_a_stopped_tool_cannot_be_spelled_otherwise(overlay: Overlay, spelling: str) -> None:
    """Names are compared as policy compares them: what can be seen, without case."""
    overlay.set_stop(Stop("tool", "Shell_Exec"), "eve", "", NOW)

    assert overlay.stopped(Caller(), (spelling,)) is not None
    assert overlay.stopped_tools(Caller(), (spelling, "read")) == {spelling}


def test_a_session_is_stopped_under_the_name_it_claims_too(overlay: Overlay) -> None:
    """Claiming a stopped session's name does not help, nor does having left it behind."""
    overlay.set_stop(Stop("session", "s1"), "eve", "", NOW)

    assert overlay.stopped(Caller(session_id="s2", claimed_session_id="s1")) is not None
    assert overlay.stopped(Caller(session_id="s2")) is None


def test_a_stop_may_be_one_tenant_s(overlay: Overlay) -> None:
    """Another tenant's session or tool of the same name goes on."""
    overlay.set_stop(Stop("session", "s1", "acme"), "eve", "", NOW)
    overlay.set_stop(Stop("tool", "shell", "acme"), "eve", "", NOW)

    assert overlay.stopped(Caller(tenant="acme", session_id="s1")) is not None
    assert overlay.stopped(Caller(tenant="acme", session_id="s9"), ("shell",)) is not None
    assert overlay.stopped(Caller(tenant="other", session_id="s1"), ("shell",)) is None
    assert overlay.stops() == (Stop("session", "s1", "acme"), Stop("tool", "shell", "acme"))


def test_a_stop_is_released_once(overlay: Overlay) -> None:
    """Releasing what is not stopped is told."""
    with pytest.raises(NotStopped, match="The tool 'shell' is not stopped"):
        overlay.clear_stop(Stop("tool", "shell"), "eve", "", NOW)


def test_switches_are_kept_per_model(overlay: Overlay) -> None:
    """G44: a server tool is off for one model and on for another, and can be switched on again."""
    overlay.set_switch("coding", "lookup", False, "eve", "", NOW)
    assert (overlay.off("coding"), overlay.off("other")) == ({"lookup"}, frozenset())
    assert overlay.switches() == {"coding": {"lookup"}}

    overlay.set_switch("coding", "lookup", True, "eve", "", NOW)
    overlay.set_switch("coding", "lookup", True, "eve", "", NOW)
    assert overlay.off("coding") == frozenset()


def test_every_action_is_in_the_chain(store: Store, overlay: Overlay) -> None:
    """G63: who did what to what, and why; the stop itself leads to its receipt."""
    stop = Stop("session", "s1", "acme")
    first = overlay.set_stop(stop, "eve", "it deletes files", NOW)
    assert overlay.stop_receipt(stop, NOW) == first
    overlay.clear_stop(stop, "bob", "", NOW)
    overlay.set_switch("coding", "lookup", False, "eve", "", NOW)
    assert overlay.stop_receipt(stop, NOW) == ""

    found = [receipts.load(one.row.body) for one in store.receipts(ReceiptQuery({"kind": ["admin"]})).receipts]
    assert [(one["caller"]["principal"], one["admin"]["action"], one["admin"]["target"]) for one in found] == [
        ("eve", "switch_off", "coding/lookup"),
        ("bob", "release_stop", "session:s1"),
        ("eve", "stop", "session:s1"),
    ]
    assert found[2]["admin"]["details"] == {"note": "it deletes files"}
    assert verify(store).good


def test_every_process_follows(path: Path, overlay: Overlay) -> None:
    """G63: a stop set here is seen by another process with its next poll, and survives a restart."""
    other = SqliteStore(path, upkeep=False)
    following = Overlay(other, now_ms=lambda: NOW)
    overlay.set_stop(Stop("tool", "shell"), "eve", "", NOW)
    overlay.set_switch("coding", "lookup", False, "eve", "", NOW)
    asyncio.run(following.poll())

    assert following.stopped(Caller(), ("shell",)) is not None
    assert following.off("coding") == {"lookup"}
    other.close()


def test_an_outage_leaves_a_stop_a_stop(path: Path, overlay: Overlay, store: Store) -> None:
    """A poll that cannot read the store changes nothing and is counted."""
    overlay.set_stop(Stop("tool", "shell"), "eve", "", NOW)
    store.close()
    asyncio.run(overlay.poll())

    assert overlay.stopped(Caller(), ("shell",)) is not None
    assert overlay.failures == 1


def test_a_new_plan_is_handed_over_once(store: Store) -> None:
    """G30: the epoch in the store leads: whoever activated it, every process is given the plan, once."""
    given: list[PlanEpoch] = []

    async def on_plan(plan: PlanEpoch) -> None:
        given.append(plan)

    overlay = Overlay(store, now_ms=lambda: NOW, on_plan=on_plan)
    asyncio.run(overlay.poll())
    made = store.activate("hash", b"source", NOW, 0)
    asyncio.run(overlay.poll())
    asyncio.run(overlay.poll())

    assert given == [made]
    assert overlay.epoch == 1


def test_a_plan_that_cannot_be_followed_is_told_and_stops_are_still_followed(store: Store) -> None:
    """The old plan goes on ruling; the reason can be read, and is gone with the next good plan."""
    plans = [WireError("no such provider"), None]

    async def on_plan(plan: PlanEpoch) -> None:
        if error := plans[plan.epoch - 1]:
            raise error

    overlay = Overlay(store, now_ms=lambda: NOW, on_plan=on_plan)
    store.activate("hash", b"source", NOW, 0)
    asyncio.run(overlay.poll())
    assert overlay.plan_error == "no such provider"

    store.activate("hash", b"source", NOW, 1)
    asyncio.run(overlay.poll())
    assert overlay.plan_error == ""


def test_a_plan_that_takes_long_holds_up_no_stop(store: Store) -> None:
    """While one is being put in force, stops are followed."""
    begun, done = asyncio.Event(), asyncio.Event()

    async def on_plan(plan: PlanEpoch) -> None:
        begun.set()
        await done.wait()

    async def run() -> bool:
        following = asyncio.create_task(overlay.run())
        await begun.wait()
        other = Overlay(store, now_ms=lambda: NOW)
        await asyncio.to_thread(other.set_stop, Stop("tool", "shell"), "eve", "", NOW)
        while overlay.stopped(Caller(), ("shell",)) is None:
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return done.is_set()

    overlay = Overlay(store, now_ms=lambda: NOW, on_plan=on_plan, every_s=0)
    store.activate("hash", b"source", NOW, 0)
    assert asyncio.run(asyncio.wait_for(run(), 30)) is False


def test_an_older_plan_does_not_come_back(store: Store) -> None:
    """Whoever started with a newer epoch is not given the one before it."""
    given: list[int] = []

    async def on_plan(plan: PlanEpoch) -> None:
        given.append(plan.epoch)

    overlay = Overlay(store, now_ms=lambda: NOW, on_plan=on_plan)
    store.activate("hash", b"source", NOW, 0)
    overlay.epoch = 2
    asyncio.run(overlay.poll())

    assert given == []


@pytest.mark.parametrize("name", ["", "x" * 513, "a\x1fb"])
def test_a_name_that_nothing_can_have_is_refused(overlay: Overlay, name: str) -> None:
    """Empty, endless, or with the border of a scope's key in it."""
    with pytest.raises(BadName, match="A name has 1 to 512 characters, and no control character"):
        overlay.set_stop(Stop("session", name), "eve", "", NOW)
    with pytest.raises(BadName):
        overlay.set_switch("coding", name, False, "eve", "", NOW)


def test_stops_do_not_grow_without_end(store: Store, overlay: Overlay) -> None:
    """The next one is refused, those that are there can be set again and released."""
    rows = [SealedRow("overlay", f"stop:tool:{number}", NOW + 1, b"") for number in range(MAX_ENTRIES)]
    store.commit(Delta(NOW), seal=rows)

    with pytest.raises(OverlayFull, match="There are 1000 already; release some, or put it into the plan"):
        overlay.set_stop(Stop("tool", "shell"), "eve", "", NOW)
    overlay.set_stop(Stop("tool", "7"), "eve", "", NOW)
    overlay.clear_stop(Stop("tool", "7"), "eve", "", NOW)
    assert len(overlay.stops()) == MAX_ENTRIES - 1


def test_a_stop_is_not_taken_back_by_a_look_at_the_store_that_began_before_it(store: Store) -> None:
    """G63: a poll that is under way on another thread when a stop is set does not undo it when it ends."""

    class Looking:
        """The store; while it is looked at, something else happens once."""

        def __init__(self) -> None:
            self.meanwhile: Callable[[], object] | None = None

        def plan_epoch(self) -> PlanEpoch | None:
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            return store.plan_epoch()

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    looking = Looking()
    overlay = Overlay(cast("Store", looking), now_ms=lambda: NOW)
    looking.meanwhile = lambda: overlay.set_stop(Stop("session", "s1"), "op", "", NOW)
    overlay.refresh()

    assert overlay.stopped(Caller(session_id="s1")) is not None
