"""The live gate: judged, committed together, then given out."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, load_config
from wardwright.errors import GovernanceUnavailable, StoreUnavailable, VersionConflict
from wardwright.gates import Gates, Kept, Verdict
from wardwright.history import ReceiptRow, scope_key
from wardwright.store import Commit, SealedRow, SqliteStore, Store
from wardwright.wire import Caller, CallItem, Item, ResultItem, TextItem, Turn

PLAN = compile_plan(
    load_config("""
model_id: m
scopes: {tenant: {retention: 30d, purpose: a shared limit}}
governance:
  - {id: few, kind: history_threshold, threshold: 5, action: block, cache_scope: tenant, tool: {name: ping}}
""")
)
NOW = 1_700_000_000_000


class Keys:
    def session_key(self, scope: str, since_ms: int | None = None) -> bytes:
        return b"k" * 32


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteStore(tmp_path / "gates.db")
    yield opened
    opened.close()


def gates_over(store: Store) -> Gates:
    return Gates(store, Keys(), lambda: NOW)


async def judged(gates: Gates, turn: Turn) -> Verdict:
    return await gates.judge(PLAN, turn)


def request(session: str, text: str = "hello") -> Turn:
    return Turn("request", "chat_completions", "m", [TextItem("user", text)], caller=Caller("t", session_id=session))


def reply(session: str, call_id: str) -> Turn:
    items = [CallItem(call_id, "ping", "{}")]
    return Turn("reply", "chat_completions", "m", items, caller=Caller("t", session_id=session), target="x")


def receipt(number: int, session: str) -> ReceiptRow:
    scope = scope_key("session_id", Caller("t", session_id=session))
    return ReceiptRow(f"rcpt_{number:012x}", NOW, scope, b"{}", (("kind", "exchange"),))


def test_turns_that_wait_together_count_one_after_the_other(store: SqliteStore) -> None:
    """L1: twenty replies of twenty sessions at once count exactly, in one shared scope, in few transactions."""

    async def main() -> list[str]:
        gates = gates_over(store)
        verdicts = await asyncio.gather(*[gates.judge(PLAN, reply(f"s{n}", f"c{n}")) for n in range(20)])
        assert gates.commits == 1
        return [verdict.ruling.decision for verdict in verdicts]

    decisions = asyncio.run(main())
    assert decisions == ["allow"] * 4 + ["block"] * 16


def test_turns_of_one_session_are_judged_in_the_order_they_came(store: SqliteStore) -> None:
    """A second turn of the same session sees the ledger that the first one left."""

    async def main() -> list[int]:
        gates = gates_over(store)
        verdicts = await asyncio.gather(*[gates.judge(PLAN, reply("s", f"c{n}")) for n in range(4)])
        return [verdict.session.version for verdict in verdicts]

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_gates_serve_the_loop_that_runs(store: SqliteStore) -> None:
    """Of two loops that are open and run by turns each gets its own verdicts."""
    gates = gates_over(store)
    with asyncio.Runner() as one, asyncio.Runner() as other:
        versions = [
            runner.run(judged(gates, reply("s", f"c{n}"))).session.version
            for n, runner in enumerate((one, other, one, other))
        ]

    assert versions == [0, 1, 2, 3]


def test_a_conflict_is_judged_again_on_what_is_stored(store: SqliteStore) -> None:
    """G31, L3: another process wrote in between; the verdict that is given out knows it."""
    seen: list[int] = []

    def another_process() -> None:
        asyncio.run(judged(gates_over(store), reply("s", "theirs")))

    async def main() -> Verdict:
        def keep(verdict: Verdict) -> Kept:
            seen.append(verdict.session.version)
            if len(seen) == 1:
                behind = threading.Thread(target=another_process)
                behind.start()
                behind.join()
            return Kept(receipt(1, "s"))

        return await gates_over(store).judge(PLAN, reply("s", "ours"), keep)

    verdict = asyncio.run(main())
    assert seen == [0, 1]
    assert verdict.session.version == 1
    assert store.receipt("rcpt_000000000001") is not None


def test_what_is_kept_is_committed_with_the_ruling_or_not_at_all(store: SqliteStore) -> None:
    """G31, L1: delta, receipt and sealed rows are one transaction; a sealed row that is gone takes all of it back."""
    scope = scope_key("session_id", Caller("t", session_id="s"))
    row = SealedRow(scope, "held:a", NOW + 1000, b"sealed")

    async def main() -> None:
        gates = gates_over(store)
        await gates.judge(PLAN, request("s"), lambda _: Kept(receipt(1, "s"), seal=(row,)))
        await gates.judge(PLAN, reply("s", "one"), lambda _: Kept(receipt(2, "s"), unseal=((scope, "held:a"),)))
        with pytest.raises(LookupError):
            await gates.judge(PLAN, reply("s", "two"), lambda _: Kept(receipt(3, "s"), unseal=((scope, "held:a"),)))

    asyncio.run(main())
    assert store.receipt("rcpt_000000000002") is not None
    assert store.receipt("rcpt_000000000003") is None
    assert store.load((scope,), lambda _: ("c:two",))[scope].version == 2


def test_a_store_that_cannot_be_written_refuses_everybody_who_waits(tmp_path: Path) -> None:
    """G19, G64, L2: nothing passes unjudged, and the error names the store."""
    store = SqliteStore(tmp_path / "gone.db")
    store.close()

    async def main() -> list[object]:
        gates = gates_over(store)
        return await asyncio.gather(*[gates.judge(PLAN, request(f"s{n}")) for n in range(3)], return_exceptions=True)

    outcomes = asyncio.run(main())
    assert len(outcomes) == 3
    assert all(isinstance(one, StoreUnavailable) and "gone.db" in str(one) for one in outcomes)


def test_a_caller_who_went_away_leaves_the_others_alone(store: SqliteStore) -> None:
    """A cancelled turn is not judged; the one behind it is."""

    async def main() -> str:
        gates = gates_over(store)
        gone = asyncio.create_task(judged(gates, request("s1")))
        stays = asyncio.create_task(judged(gates, request("s2")))
        await asyncio.sleep(0)
        gone.cancel()
        return (await stays).ruling.decision

    assert asyncio.run(main()) == "allow"


def test_the_gateways_own_registers_are_part_of_the_session(store: SqliteStore) -> None:
    """What the gateway remembers beside the rules is read back with the session."""

    async def main() -> object:
        gates = gates_over(store)
        await gates.judge(PLAN, request("s"), lambda _: Kept(registers={("gateway", "x"): ("a", "b")}))
        verdict = await gates.judge(PLAN, reply("s", "c"))
        return verdict.session.registers.get(("gateway", "x"))

    assert asyncio.run(main()) == ("a", "b")


class Contended(SqliteStore):
    """Loses its first races for the chain, as a database may: then nothing of the batch stands."""

    lost = 0

    def commit_all(self, commits: Sequence[Commit]) -> Any:
        if self.lost:
            self.lost -= 1
            return [VersionConflict("another process was first") for _ in commits]
        return super().commit_all(commits)


@pytest.fixture
def contended(tmp_path: Path) -> Iterator[Contended]:
    opened = Contended(tmp_path / "contended.db")
    yield opened
    opened.close()


@pytest.mark.interpreted
def test_a_receipt_that_lost_a_race_is_recorded_again(contended: Contended) -> None:
    """L2, X2: whoever records without a ruling is told that it is done only when it is."""

    async def main() -> None:
        gates = gates_over(contended)
        contended.lost = 2
        kept, late = Kept(receipt(1, "s")), Kept(receipt(2, "s"))
        await asyncio.gather(gates.record(kept), gates.record(lambda: late))
        assert kept.committed and late.committed

    asyncio.run(main())
    assert contended.receipt("rcpt_000000000001") is not None
    assert contended.receipt("rcpt_000000000002") is not None


@pytest.mark.interpreted
def test_whoever_always_loses_is_told(contended: Contended) -> None:
    """L2: nobody waits for ever, with or without a ruling, and nothing is taken for committed."""
    contended.lost = 1_000
    kept = Kept(receipt(1, "s"))

    async def main() -> list[object]:
        gates = gates_over(contended)
        return await asyncio.gather(gates.record(kept), gates.judge(PLAN, request("s")), return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [GovernanceUnavailable] * 2
    assert not kept.committed


def exhausted(_: Verdict) -> Kept:
    raise StopIteration


def test_an_error_that_no_future_takes_holds_nobody_up(store: SqliteStore) -> None:
    """G19: it refuses its own turn; those beside and behind it are judged."""

    async def main() -> list[object]:
        gates = gates_over(store)
        first = await asyncio.gather(
            gates.judge(PLAN, request("s1"), exhausted), gates.judge(PLAN, request("s2")), return_exceptions=True
        )
        return [*first, await gates.judge(PLAN, request("s3"))]

    assert [type(one) for one in asyncio.run(main())] == [GovernanceUnavailable, Verdict, Verdict]


def test_a_gate_that_fails_as_a_whole_tells_everybody_and_goes_on(store: SqliteStore) -> None:
    """L2: no clock, no verdict; and the next turn is judged on what is stored."""
    times: list[int | None] = [NOW, None, NOW, NOW]

    def clock() -> int:
        time = times.pop(0)
        if time is None:
            raise OSError("the clock stands still")
        return time

    async def main() -> list[object]:
        gates = Gates(store, Keys(), clock)
        await gates.judge(PLAN, request("s"))
        refused = await asyncio.gather(
            gates.judge(PLAN, reply("s", "one")), gates.record(Kept(receipt(1, "s"))), return_exceptions=True
        )
        return [*refused, (await gates.judge(PLAN, reply("s", "one"))).session.version]

    outcomes = asyncio.run(main())
    assert [type(one) for one in outcomes] == [OSError, OSError, int]
    assert outcomes[-1] == 1
    assert store.receipt("rcpt_000000000001") is None


def _story(dice: random.Random, session: str) -> Iterator[Turn]:
    """A session in which calls are answered late, twice or otherwise than before, and the transcript is cut at times."""
    caller = Caller("t", session_id=session)
    items: list[Item] = [TextItem("user", "hello")]
    for number in range(6):
        yield Turn("request", "chat_completions", "m", list(items), caller=caller)
        calls = [CallItem(f"{number}-{one}", dice.choice(["ping", "pong"]), "{}") for one in range(dice.randint(0, 2))]
        yield Turn("reply", "chat_completions", "m", calls, caller=caller, target="x")
        items += calls
        items += [ResultItem(call.id, dice.choice(["a", "b"])) for call in dice.sample(calls, len(calls)) * 2]
        if dice.random() < 0.3:
            items = [TextItem("user", "in short"), *items[-3:]]


@pytest.mark.parametrize("room", [0, 20])
def test_what_is_remembered_changes_no_ruling(store: SqliteStore, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """G22, L1: whoever remembers little, or nothing, rules as one who remembers every session that began there."""

    async def main(tenant: str, gates: Gates) -> list[object]:
        stories = [_story(random.Random(number), f"{number}") for number in range(4)]
        told: list[object] = []
        for turns in zip(*stories, strict=True):
            for turn in turns:
                turn.caller = Caller(tenant, session_id=turn.caller.session_id)
                verdict = await gates.judge(PLAN, turn)
                told.append((verdict.ruling, verdict.session.version, verdict.session.head))
        return told

    expected = asyncio.run(main("one", gates_over(store)))
    monkeypatch.setattr("wardwright.gates.REMEMBERED", room)
    monkeypatch.setattr("wardwright.gates.CROWDED", room // 2)
    assert asyncio.run(main("two", gates_over(store))) == expected


@pytest.mark.interpreted
def test_who_was_here_last_is_forgotten_last(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and goes to those who come again."""
    monkeypatch.setattr("wardwright.gates.REMEMBERED", 40)
    monkeypatch.setattr("wardwright.gates.CROWDED", 0)

    async def main() -> list[bool]:
        gates = gates_over(store)
        for number in range(30):
            await gates.judge(PLAN, request("comes again", f"word {number % 2}"))
            await gates.judge(PLAN, request(f"once {number}"))
        names = ["comes again", "once 0", "once 29"]
        scopes = [scope_key("session_id", Caller("t", session_id=name)) for name in names]
        return [gates.recall(scope, ())[1].version > 0 for scope in scopes]

    assert asyncio.run(main()) == [True, False, True]
