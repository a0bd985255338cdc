"""What every store must do, whatever is behind it. A backend's test file subclasses `StoreConformance` and says how to open one.

Numbers in brackets are the promises at the head of `wardwright/store/protocol.py`.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright import receipts
from wardwright.errors import SealedMissing, StoreUnavailable, VersionConflict
from wardwright.history import (
    ChainLink,
    Delta,
    Head,
    LedgerEntry,
    ReceiptRow,
    ScopeDelta,
    ScopeState,
    body_hash,
    chain_hash,
)
from wardwright.store import (
    Commit,
    ReceiptQuery,
    SealedRow,
    Store,
    StoredReceipt,
    checkpoint,
    erase,
    export,
    mark,
    retain,
    sign,
    verify,
)
from wardwright.wire.turn import Caller

KEY = b"a key of the operator's"
WRITER = Path(__file__).with_name("store_writer.py")


def session(name: str = "s", tenant: str = "acme") -> str:
    return f"session_id\x1f{tenant}\x1f{name}"


def nothing(_: Head) -> Iterable[str]:
    return ()


def change(scope: str, base: int = 0, **parts: Any) -> ScopeDelta:
    head = parts.pop("head", Head(turn=base + 1))
    return ScopeDelta(scope, scope.split("\x1f")[0], base, head, **parts)  # type: ignore[arg-type]


def delta(*changes: ScopeDelta, at_ms: int = 1_000) -> Delta:
    return Delta(at_ms, changes)


def row(name: str, at_ms: int = 1_000, scope: str | None = None, tags: Iterable[tuple[str, str]] = ()) -> ReceiptRow:
    """A receipt whose body the chain need not understand."""
    return ReceiptRow(name, at_ms, scope or session(), b'{"name":"%s"}' % name.encode(), tuple(tags))


def admin(name: str, at_ms: int = 1_000, tenant: str = "acme", user: str = "eve") -> ReceiptRow:
    """A real receipt."""
    caller = Caller(tenant=tenant, user=user, session_id="s")
    return receipts.record(receipts.build_admin(name, at_ms, caller, "activate", "plan-1"))


def fill(store: Store, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        store.commit(delta(at_ms=number), admin(f"r{number}", at_ms=number))


def state(store: Store, scope: str | None = None, wanted: Callable[[Head], Iterable[str]] = nothing) -> ScopeState:
    name = scope or session()
    return store.load([name], wanted)[name]


def ids(found: Iterable[StoredReceipt]) -> list[str]:
    return [one.row.id for one in found]


def everything(store: Store, **query: Any) -> list[str]:
    """All ids a query finds, page by page."""
    found: list[str] = []
    before = None
    while True:
        page = store.receipts(ReceiptQuery(before=before, **query))
        found.extend(ids(page.receipts))
        before = page.next_before
        if before is None:
            return found


def kinds(store: Store, keys: tuple[bytes, ...] = (KEY,)) -> set[str]:
    return {flaw.kind for flaw in verify(store, keys).flaws}


class StoreConformance(ABC):
    head_table: str
    """Where the backend keeps the last link of a chain."""
    one_checkpoint: str
    """SQL after which there was only ever one checkpoint."""
    damage: str
    """SQL that makes every register unreadable."""

    @pytest.fixture
    @abstractmethod
    def where(self) -> Iterator[str]:
        """An empty place for a store, as `store_writer.py` takes it."""

    @abstractmethod
    def open(self, where: str) -> Store: ...

    @abstractmethod
    def run(self, where: str, statement: str) -> None:
        """SQL behind the store's back."""

    @pytest.fixture
    def opened(self, where: str) -> Iterator[Callable[[], Store]]:
        stores: list[Store] = []

        def another() -> Store:
            stores.append(self.open(where))
            return stores[-1]

        yield another
        for store in stores:
            store.close()

    @pytest.fixture
    def store(self, opened: Callable[[], Store]) -> Store:
        return opened()

    # scopes

    def test_a_scope_never_written_is_empty(self, store: Store) -> None:
        """Loading what nobody wrote gives empty scopes, one for each name."""
        assert store.load([session("a"), session("b")], nothing) == {
            session("a"): ScopeState(),
            session("b"): ScopeState(),
        }

    def test_what_is_committed_is_loaded(self, store: Store) -> None:
        """Head, registers and the wanted ledger entries come back equal, at version one."""
        head = Head(turn=3, event=9, prefix_digest="d", text_hits=("a", "b"), last_ids=("x",), since_ms=5)
        entry = LedgerEntry("passed", "shell_exec", "abc", 3, True)
        store.commit(
            delta(
                change(
                    session(),
                    head=head,
                    registers={("rule", "sub"): (1, "two", 3.5, True, None)},
                    ledger={"c:1": entry},
                )
            )
        )

        loaded = state(store, wanted=lambda _: ["c:1", "c:2"])

        assert loaded == ScopeState(1, head, loaded.registers, loaded.ledger)
        assert dict(loaded.registers) == {("rule", "sub"): (1, "two", 3.5, True, None)}
        assert dict(loaded.ledger) == {"c:1": entry}

    def test_every_field_of_a_head_is_kept(self, store: Store) -> None:
        """None is lost, and none is taken for another."""
        made: dict[type, Callable[[int], Any]] = {int: lambda n: n, str: str, tuple: lambda n: (str(n), "é")}
        head = Head(*(made[type(empty)](place + 100) for place, empty in enumerate(Head())))
        store.commit(delta(change(session(), head=head)))

        assert state(store).head == head

    def test_only_the_wanted_ledger_entries_are_loaded(self, store: Store) -> None:
        """A long ledger costs nothing that a gate does not ask for; what it asks is told by the head."""
        entries = {f"c:{number}": LedgerEntry("passed", "t", "d", number) for number in range(50)}
        store.commit(delta(change(session(), head=Head(last_ids=("7", "9")), ledger=entries)))

        loaded = state(store, wanted=lambda head: [f"c:{name}" for name in head.last_ids])

        assert set(loaded.ledger) == {"c:7", "c:9"}

    def test_only_the_first_scope_has_a_ledger(self, store: Store) -> None:
        """`wanted` is asked for the session alone."""
        scopes = [session("a"), "user\x1facme\x1feve"]
        entry = {"c:1": LedgerEntry("passed", "t", "d", 1)}
        store.commit(delta(change(scopes[0], ledger=dict(entry)), change(scopes[1], ledger=dict(entry))))

        loaded = store.load(scopes, lambda _: ["c:1"])

        assert [len(loaded[scope].ledger) for scope in scopes] == [1, 0]

    def test_registers_are_replaced_and_removed(self, store: Store) -> None:
        """A new value replaces the old one, None removes it, others stay."""
        store.commit(delta(change(session(), registers={("a", ""): (1,), ("b", ""): (1,), ("c", ""): (1,)})))
        store.commit(delta(change(session(), 1, registers={("a", ""): (2,), ("b", ""): None, ("never", ""): None})))

        assert dict(state(store).registers) == {("a", ""): (2,), ("c", ""): (1,)}

    def test_odd_text_survives(self, store: Store) -> None:
        """NUL, lone surrogates and huge numbers in what callers choose come back as they were."""
        scope, name = session("a\x00\ud800"), "c:\x00\ud83d"
        entry = LedgerEntry("passed", "raw\ud800", "d", 1)
        store.commit(delta(change(scope, registers={("r", "\x00\udfff"): (2**80, "\ud800")}, ledger={name: entry})))

        loaded = state(store, scope, lambda _: [name])

        assert dict(loaded.registers) == {("r", "\x00\udfff"): (2**80, "\ud800")}
        assert dict(loaded.ledger) == {name: entry}
        assert store.sessions_of("acme", ["\x00\ud83d"]) == {"\x00\ud83d": scope}

    # compare and swap

    def test_a_stale_commit_changes_nothing(self, store: Store) -> None:
        """[2] A delta judged against another version is refused whole: scopes, receipt and sealed rows."""
        store.commit(delta(change(session())))
        before = state(store)

        with pytest.raises(VersionConflict):
            store.commit(
                delta(change(session("new")), change(session(), 0, registers={("a", ""): (1,)})),
                row("r1"),
                seal=[SealedRow(session(), "held:1", 9_000, b"x")],
            )

        assert state(store) == before
        assert state(store, session("new")) == ScopeState()
        assert store.receipts(ReceiptQuery()).receipts == ()
        with pytest.raises(SealedMissing):
            store.sealed(session(), "held:1", 0)

    def test_every_scope_is_compared(self, store: Store) -> None:
        """[2] One stale scope among several is enough, a missing one too."""
        store.commit(delta(change(session("a")), change(session("b"))))

        with pytest.raises(VersionConflict):
            store.commit(delta(change(session("a"), 1), change(session("b"), 2)))
        with pytest.raises(VersionConflict):
            store.commit(delta(change(session("a"), 1), change(session("c"), 1)))

        assert state(store, session("a")).version == 1

    def test_another_process_s_view_sees_a_commit_at_once(self, opened: Callable[[], Store]) -> None:
        """[3] What one opened store committed, another one loads."""
        one, other = opened(), opened()
        assert state(other).version == 0

        one.commit(delta(change(session(), registers={("a", ""): (7,)})), row("r1"))

        assert dict(state(other).registers) == {("a", ""): (7,)}
        assert ids(other.receipts(ReceiptQuery()).receipts) == ["r1"]

    def test_a_batch_stands_item_by_item(self, store: Store) -> None:
        """Of several gates in one transaction, one that conflicts or finds its sealed row gone fails alone."""
        outcomes = store.commit_all(
            [
                Commit(delta(change(session("a"))), row("r1")),
                Commit(delta(change(session("a"))), row("r2")),
                Commit(delta(change(session("a"), 1)), row("r3")),
                Commit(delta(change(session("b"))), row("r4"), unseal=[(session("b"), "held:1")]),
                Commit(delta(change(session("c")))),
            ]
        )

        assert [type(outcome) for outcome in outcomes] == [
            ChainLink,
            VersionConflict,
            ChainLink,
            SealedMissing,
            type(None),
        ]
        assert everything(store) == ["r3", "r1"]
        assert [state(store, session(name)).version for name in "abc"] == [2, 0, 1]
        assert verify(store).good

    def test_a_batch_writes_in_its_order(self, store: Store) -> None:
        """Of several commits to one scope in a batch the last one's word on a register stands, set or removed."""
        first, second = ("first", ""), ("second", "")
        outcomes = store.commit_all(
            [
                Commit(delta(change(session(), 0, registers={first: (1,), second: None}))),
                Commit(delta(change(session(), 1, registers={first: None, second: (2,)}))),
            ]
        )

        assert outcomes == [None, None]
        assert dict(state(store).registers) == {second: (2,)}

    def test_a_long_batch_is_written_whole(self, store: Store) -> None:
        """However many rows a batch writes, all of them stand in its order, but for those of the one that conflicts."""
        lengths = (1, 46, 47, 48, 95, 96, 97, 300)
        commits: list[Commit] = []
        for place, length in enumerate((*lengths, *lengths)):
            name, base = f"s{place % len(lengths)}", place // len(lengths)
            ledger = {f"c:{name}-{n}": LedgerEntry("passed", f"tool{place}", f"{n}", place) for n in range(length)}
            changes = change(session(name), base, ledger=ledger)
            commits.append(Commit(delta(changes), row(f"r{place}", tags=[("model", f"m{place}")])))
        commits += [Commit(delta(), row(f"more{place}")) for place in range(100)]
        commits.insert(
            3, Commit(delta(change(session("s1"), ledger={"c:odd": LedgerEntry("passed", "", "", 1)})), row("odd"))
        )

        outcomes = store.commit_all(commits)

        assert [place for place, one in enumerate(outcomes) if not isinstance(one, ChainLink)] == [3]
        assert everything(store)[::-1] == [one.receipt.id for one in commits if one.receipt and one.receipt.id != "odd"]
        assert everything(store, tags={"model": ("m9",)}) == ["r9"]
        for place, length in enumerate(lengths):
            names = [f"c:s{place}-{n}" for n in range(length)]
            found = state(store, session(f"s{place}"), lambda _, names=names: [*names, "c:odd"])
            assert {name: entry.raw_name for name, entry in found.ledger.items()} == dict.fromkeys(
                names, f"tool{place + 8}"
            )
            calls = [name[2:] for name in names]
            assert store.sessions_of("acme", calls) == dict.fromkeys(calls, session(f"s{place}"))
        assert verify(store).good

    def test_a_batch_that_fails_in_its_middle_leaves_nothing(self, store: Store) -> None:
        """[1] A row that no database takes, behind a hundred that it would: nothing of the batch is there, and the next one stands."""
        ledger = {f"c:{n}": LedgerEntry("passed", "tool", "", 1) for n in range(100)}
        good = [Commit(delta(change(session(f"s{n}"), ledger=ledger)), row(f"r{n}")) for n in range(3)]
        with pytest.raises((OverflowError, StoreUnavailable)):
            store.commit_all([*good, Commit(delta(), row("huge", at_ms=2**70)), Commit(delta(), row("behind"))])

        assert everything(store) == []
        assert state(store, session("s0")).version == 0
        assert store.sessions_of("acme", ["1"]) == {}
        assert [type(one) for one in store.commit_all(good)] == [ChainLink] * 3
        assert everything(store) == ["r2", "r1", "r0"]
        assert verify(store).good

    def test_whoever_writes_a_scope_every_commit_is_compared_with_it(self, opened: Callable[[], Store]) -> None:
        """[2] By turns, two opened stores write one scope and one chain: neither goes on from what only it remembers."""
        one, other = opened(), opened()
        for version in range(6):
            writer, late = (one, other) if version % 2 else (other, one)
            writer.commit(delta(change(session(), version)), admin(f"r{version}"))
            with pytest.raises(VersionConflict):
                late.commit(delta(change(session(), version)), admin(f"late{version}"))

        assert state(one).version == 6
        assert len(everything(one)) == 6
        assert verify(other).good

    # sealed working set

    def test_a_sealed_row_is_used_once(self, store: Store) -> None:
        """It can be read until a gate uses it up, in that gate's transaction."""
        sealed = SealedRow(session(), "held:1", 9_000, b"\x00cipher")
        store.commit(delta(), seal=[sealed])
        assert store.sealed(session(), "held:1", 1_000) == sealed

        store.commit(delta(), unseal=[(session(), "held:1")])

        with pytest.raises(SealedMissing):
            store.sealed(session(), "held:1", 1_000)

    def test_a_used_row_refuses_the_whole_commit(self, store: Store) -> None:
        """A second release of one held reply changes nothing."""
        with pytest.raises(SealedMissing):
            store.commit(delta(change(session())), row("r1"), unseal=[(session(), "held:1")])

        assert state(store).version == 0
        assert everything(store) == []

    def test_sealed_rows_are_listed_by_name(self, store: Store) -> None:
        """Names of one scope with one beginning, in order, page by page; what expired or was used is not among them."""
        held = [SealedRow(session(), f"held:{name}", 9_000, b"x") for name in ("b", "a", "\xe9", "d")]
        others = [
            SealedRow(session(), "held:old", 2_000, b"x"),
            SealedRow(session(), "verdict:a", 9_000, b"x"),
            SealedRow(session("t"), "held:z", 9_000, b"x"),
        ]
        store.commit(delta(), seal=[*held, *others])
        store.commit(delta(), unseal=[(session(), "held:d")])

        assert store.sealed_names(session(), "held:", 2_000, 10) == ("held:a", "held:b", "held:\xe9")
        assert store.sealed_names(session(), "held:", 2_000, 2) == ("held:a", "held:b")
        assert store.sealed_names(session(), "held:", 2_000, 2, "held:b") == ("held:\xe9",)
        assert store.sealed_names(session(), "", 1_000, 10)[-2:] == ("held:\xe9", "verdict:a")
        assert store.sealed_names(session("u"), "", 1_000, 10) == ()

    def test_an_expired_row_is_gone(self, store: Store) -> None:
        """Expiry holds for reading and for using, swept or not; sweeping says how many."""
        store.commit(delta(), seal=[SealedRow(session(), "old", 2_000, b"x"), SealedRow(session(), "new", 3_000, b"x")])

        with pytest.raises(SealedMissing):
            store.sealed(session(), "old", 2_000)
        with pytest.raises(SealedMissing):
            store.commit(delta(at_ms=2_000), unseal=[(session(), "old")])
        assert store.sweep(2_000) == 1
        assert store.sealed(session(), "new", 2_000).body == b"x"

    # sessions by call id

    def test_a_ruled_call_leads_to_its_session(self, store: Store) -> None:
        """Passed, denied and held calls are found by id; observed ones and results are not."""
        ledger = {f"c:{word}": LedgerEntry(word, "t", "d", 1) for word in ("passed", "denied", "held", "observed")}  # type: ignore[arg-type]
        ledger["r:result"] = LedgerEntry("passed", "t", "d", 1)
        store.commit(delta(change(session("a"), ledger=ledger)))

        found = store.sessions_of("acme", ["passed", "denied", "held", "observed", "result", "never"])

        assert found == dict.fromkeys(["passed", "denied", "held"], session("a"))

    def test_another_tenant_s_call_is_not_found(self, store: Store) -> None:
        """An id that somebody else's session knows joins nobody to it."""
        store.commit(delta(change(session("a", "acme"), ledger={"c:1": LedgerEntry("passed", "t", "d", 1)})))

        assert store.sessions_of("other", ["1"]) == {}

    def test_the_newest_of_two_sessions_with_one_id_is_found(self, store: Store) -> None:
        """Providers repeat ids; forgetting the newer session brings the older back."""
        for place, name in enumerate("ab"):
            store.commit(
                delta(change(session(name), ledger={"c:1": LedgerEntry("passed", "t", "d", 1)}), at_ms=9 - place)
            )
        assert store.sessions_of("acme", ["1"]) == {"1": session("b")}

        assert store.sessions_alike("acme", "1", 9) == [session("b"), session("a")]
        assert store.sessions_alike("acme", "1", 1) == [session("b")]
        assert store.sessions_alike("other", "1", 9) == store.sessions_alike("acme", "2", 9) == []

        store.forget_scopes("session_id", 9)

        assert store.sessions_of("acme", ["1"]) == {"1": session("a")}
        assert store.sessions_alike("acme", "1", 9) == [session("a")]

    # receipts

    def test_a_receipt_is_found_by_id(self, store: Store) -> None:
        """It comes back byte for byte, with its place in the chain."""
        made = row("r1", tags=[("status", "released"), ("rule", "a\x00b")])
        link = store.commit(delta(), made)

        found = store.receipt("r1")

        assert found is not None
        assert (found.row, found.link, found.erased_hash) == (made, link, "")
        assert store.receipt("r2") is None

    def test_links_make_a_chain(self, store: Store) -> None:
        """Each link's hash covers the one before it, the id, the time and the body."""
        first = store.commit(delta(), row("r1", 5))
        second = store.commit(delta(), row("r2", 6))

        assert first is not None and second is not None
        assert (first.sequence, first.previous_hash, second.sequence) == (1, "", 2)
        assert second.previous_hash == first.hash
        assert second.hash == chain_hash(second.writer, 2, first.hash, "r2", 6, body_hash(row("r2").body))
        assert store.heads() == (second,)
        assert ids(store.chain(first.writer)) == ["r1", "r2"]
        assert ids(store.chain(first.writer, after=1, limit=1)) == ["r2"]

    def test_a_chain_goes_on_after_opening_again(self, opened: Callable[[], Store], where: str) -> None:
        """Nothing is lost by closing, and every chain verifies."""
        one = opened()
        fill(one, 3)
        one.close()
        fill(opened(), 3, first=4)

        assert verify(opened()).receipts == 6
        assert verify(opened()).good

    def test_pages_are_newest_first_and_complete(self, store: Store) -> None:
        """Following the cursor shows every receipt once."""
        fill(store, 7)

        first = store.receipts(ReceiptQuery(limit=3))

        assert ids(first.receipts) == ["r7", "r6", "r5"]
        assert first.next_before == first.receipts[-1].cursor
        assert everything(store, limit=3) == ["r7", "r6", "r5", "r4", "r3", "r2", "r1"]

    def test_the_last_page_says_so(self, store: Store) -> None:
        """A page that is exactly full ends the list when nothing follows."""
        fill(store, 4)

        assert store.receipts(ReceiptQuery(limit=4)).next_before is None

    def test_filters_agree_with_a_naive_search(self, store: Store) -> None:
        """And between names, or between values, time as a range: the same receipts as a loop over all of them finds."""
        rng = random.Random(20)
        made: list[ReceiptRow] = []
        for number in range(120):
            tags = {(name, rng.choice("xyz")) for name in "abc" for _ in range(rng.randrange(3))}
            made.append(row(f"r{number}", at_ms=rng.randrange(50), tags=sorted(tags)))
            store.commit(delta(), made[-1])
            if number % 40 == 39:
                store.maintain()
        for _ in range(60):
            wanted = {name: rng.sample("xyzw", rng.randrange(1, 3)) for name in rng.sample("abc", rng.randrange(4))}
            since, until = rng.choice([None, 10, 25]), rng.choice([None, 30, 45])
            expected = [
                one.id
                for one in reversed(made)
                if (since is None or one.at_ms >= since)
                and (until is None or one.at_ms < until)
                and all(any((name, value) in one.tags for value in values) for name, values in wanted.items())
            ]

            assert everything(store, tags=wanted, since_ms=since, until_ms=until, limit=7) == expected

    # evidence

    def test_an_untouched_chain_verifies(self, store: Store) -> None:
        """Receipts, checkpoints and chains are counted, and there are no flaws."""
        fill(store, 5)
        checkpoint(store, 100, KEY)
        fill(store, 5, first=6)

        found = verify(store, [KEY])

        assert (found.receipts, found.chains, found.checkpoints, found.flaws) == (10, 1, 1, ())

    @pytest.mark.parametrize(
        ("statements", "found"),
        [
            (
                ["UPDATE receipt SET payload = (SELECT payload FROM receipt WHERE sequence = 4) WHERE sequence = 3"],
                {"changed"},
            ),
            (["UPDATE receipt SET payload = hash WHERE sequence = 3"], {"changed"}),
            (["UPDATE receipt SET at_ms = at_ms + 1 WHERE sequence = 3"], {"changed"}),
            (["UPDATE receipt SET hash = previous_hash WHERE sequence = 3"], {"changed"}),
            (["UPDATE receipt SET payload = NULL, body_hash = hash WHERE sequence = 3"], {"changed"}),
            (["UPDATE receipt SET scope = payload WHERE sequence = 3"], {"tags"}),
            (["DELETE FROM receipt WHERE sequence = 3"], {"missing"}),
            (["DELETE FROM receipt WHERE sequence <= 2"], {"missing"}),
            (["DELETE FROM receipt WHERE sequence >= 4"], {"cut"}),
            (["DELETE FROM receipt"], {"cut"}),
            (
                [
                    "UPDATE receipt SET sequence = 103 WHERE sequence = 3",
                    "UPDATE receipt SET sequence = 3 WHERE sequence = 4",
                    "UPDATE receipt SET sequence = 4 WHERE sequence = 103",
                ],
                {"reordered", "changed"},
            ),
        ],
    )
    def test_tampering_is_found(self, store: Store, where: str, statements: list[str], found: set[str]) -> None:
        """A changed, missing, reordered or cut receipt is named for what it is."""
        fill(store, 5)
        for statement in statements:
            self.run(where, statement)

        assert kinds(store) & found
        assert kinds(store) <= {*found, "changed"}

    def test_a_flaw_says_where(self, store: Store, where: str) -> None:
        """The writer and the sequence of the receipt, in words for an operator."""
        fill(store, 3)
        (head,) = store.heads()
        self.run(where, "UPDATE receipt SET at_ms = 0 WHERE sequence = 2")

        (flaw,) = verify(store).flaws

        assert str(flaw) == f"{head.writer}#2: changed: its hash cannot be made again from what is stored"

    def test_tags_that_are_not_the_receipt_s_are_found(self, store: Store) -> None:
        """A receipt that filters would miss is a flaw, though its body is right."""
        made = admin("r1")
        store.commit(delta(), ReceiptRow(made.id, made.at_ms, made.scope, made.body, (("status", "released"),)))

        assert kinds(store) == {"tags"}

    def test_a_cut_with_a_forged_head_is_found_by_a_checkpoint(self, store: Store, where: str) -> None:
        """Whoever also moves the head back is stopped by the signed one."""
        fill(store, 5)
        checkpoint(store, 100, KEY)
        self.run(where, "DELETE FROM receipt WHERE sequence > 3")
        self.run(
            where,
            f"UPDATE {self.head_table} SET sequence = 3, hash = (SELECT hash FROM receipt WHERE sequence = 3)",
        )

        assert verify(store).good
        assert kinds(store) == {"cut"}

    def three_checkpoints(self, store: Store) -> str:
        """Each over two receipts more than the one before; the mark of the last."""
        made = ""
        for number in (1, 3, 5):
            fill(store, 2, first=number)
            made = mark(checkpoint(store, number * 10, KEY))
        return made

    def cut_back(self, where: str) -> None:
        """As if the last two receipts had never been written."""
        self.run(where, "DELETE FROM receipt WHERE sequence > 4")
        self.run(
            where,
            f"UPDATE {self.head_table} SET sequence = 4, hash = (SELECT hash FROM receipt WHERE sequence = 4), "
            "previous_hash = (SELECT previous_hash FROM receipt WHERE sequence = 4)",
        )

    @pytest.mark.parametrize("gone", [1, 2, 3])
    def test_a_checkpoint_that_is_gone_is_missed(self, store: Store, where: str, gone: int) -> None:
        """They are numbered, and each names the one before it."""
        self.three_checkpoints(store)
        assert verify(store, [KEY]).good
        self.run(where, f"DELETE FROM checkpoint WHERE number = {gone}")

        assert [str(flaw) for flaw in verify(store, [KEY]).flaws] == [f"checkpoint: checkpoint {gone} is gone"]

    def test_checkpoints_cannot_close_a_gap(self, store: Store, where: str) -> None:
        """A number is part of what is signed."""
        self.three_checkpoints(store)
        self.run(where, "DELETE FROM checkpoint WHERE number = 2")
        self.run(where, "UPDATE checkpoint SET number = 2 WHERE number = 3")

        assert kinds(store) == {"checkpoint"}

    def test_the_end_and_its_checkpoint_cannot_go_together(self, store: Store, where: str) -> None:
        """The newest receipts, the head and the newest checkpoint: the store still knows that there was one more."""
        self.three_checkpoints(store)
        self.cut_back(where)
        self.run(where, "DELETE FROM checkpoint WHERE number = 3")

        assert kinds(store) == {"checkpoint"}

    def test_a_mark_kept_elsewhere_finds_what_the_store_cannot(self, store: Store, where: str) -> None:
        """Whoever puts every table back to an earlier day is found by the mark of a later checkpoint."""
        last = self.three_checkpoints(store)
        assert verify(store, [KEY], anchor=last).good
        self.cut_back(where)
        self.run(where, "DELETE FROM checkpoint WHERE number > 1")
        self.run(where, self.one_checkpoint)

        assert verify(store, [KEY]).good
        (flaw,) = verify(store, [KEY], anchor=last).flaws
        assert flaw.message == f"the checkpoint with mark {last} is gone"

    def test_two_checkpoints_do_not_share_a_number(self, store: Store) -> None:
        """Who signed without knowing of the other one signs again."""
        fill(store, 1)
        one = sign(store.heads(), 10, KEY)
        store.add_checkpoint(one)

        with pytest.raises(VersionConflict, match="checkpoint 1 cannot follow 1"):
            store.add_checkpoint(sign(store.heads(), 20, KEY))
        assert checkpoint(store, 30, KEY).number == store.last_checkpoint() == 2

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM posting",
            "DELETE FROM span",
            "DELETE FROM posting WHERE tag = (SELECT min(tag) FROM posting)",
            "UPDATE span SET last_ms = first_ms",
        ],
    )
    def test_an_index_that_misses_receipts_is_found_and_made_anew(
        self, store: Store, where: str, statement: str
    ) -> None:
        """Filters and exports that would be silently empty are a flaw; nothing of the index is beyond repair."""
        fill(store, 5)
        store.receipts(ReceiptQuery())
        self.run(where, statement)
        (flaw,) = verify(store, [KEY]).flaws

        assert flaw.kind == "index"
        assert re.fullmatch(r"filters do not find \d receipts: make the index anew", flaw.message)
        store.reindex()
        assert verify(store, [KEY]).good
        assert everything(store, tags={"user": ["eve"]}) == everything(store, since_ms=1) == everything(store)
        assert everything(store) == ["r5", "r4", "r3", "r2", "r1"]

    def test_an_index_is_whole_after_retention_and_erasure(self, store: Store) -> None:
        """What is left can be found by all it says; what an erased one said, by nobody."""
        store.commit_all([Commit(delta(), admin(f"r{n}", at_ms=n, tenant="ab"[n % 2])) for n in range(1, 1_200)])
        retain(store, 400, 2_000, KEY)
        erase(store, "a", 3_000, KEY)
        store.commit(delta(), admin("new", at_ms=4_000))
        assert verify(store, [KEY]).flaws == ()

        store.reindex()

        found = verify(store, [KEY])
        assert (found.receipts, found.erased, found.flaws) == (803, 400, ())

    def test_a_store_without_a_chain_is_no_good(self, store: Store, where: str) -> None:
        """Nothing recorded and everything taken away look the same, so neither verifies."""
        message = "cut: there is no chain: nothing was ever recorded, or all of it was taken away"
        assert [str(flaw) for flaw in verify(store).flaws] == [message]
        fill(store, 3)
        assert verify(store).good
        self.run(where, "DELETE FROM receipt")
        self.run(where, f"DELETE FROM {self.head_table}")

        assert [str(flaw) for flaw in verify(store).flaws] == [message]

    @pytest.mark.parametrize(
        "statement", ["at_ms = at_ms + 1", "signature = heads", "heads = signature", "cut = (1 = 1)"]
    )
    def test_a_changed_checkpoint_is_found(self, store: Store, where: str, statement: str) -> None:
        """None of its parts can be changed without the key."""
        fill(store, 2)
        checkpoint(store, 100, KEY)
        self.run(where, f"UPDATE checkpoint SET {statement}")

        assert "checkpoint" in kinds(store)

    def test_a_rotated_key_still_verifies(self, store: Store) -> None:
        """Old checkpoints hold as long as their key is among those given."""
        fill(store, 2)
        checkpoint(store, 100, b"old key")
        checkpoint(store, 200, KEY)

        assert verify(store, [KEY, b"old key"]).good
        assert kinds(store) == {"checkpoint"}

    def test_retention_leaves_a_chain_that_verifies(self, store: Store) -> None:
        """Older receipts go, a signed cut stands for them, later ones still lead up from it."""
        fill(store, 10)
        checkpoint(store, 50, KEY)

        assert retain(store, 7, 100, KEY) == 6

        assert everything(store) == ["r10", "r9", "r8", "r7"]
        assert store.receipt("r3") is None
        assert verify(store, [KEY]).good
        fill(store, 2, first=11)
        assert verify(store, [KEY]).receipts == 6

    def test_a_cut_allows_no_more_than_it_says(self, store: Store, where: str) -> None:
        """What is removed beyond a signed cut is missing."""
        fill(store, 10)
        retain(store, 5, 100, KEY)
        self.run(where, "DELETE FROM receipt WHERE sequence = 5")

        assert kinds(store) == {"missing"}

    def test_retention_can_take_everything(self, store: Store) -> None:
        """A chain goes on from its cut with no receipt left, and cursors still rise."""
        fill(store, 3)
        last = store.receipts(ReceiptQuery()).receipts[0].cursor
        retain(store, 1_000, 100, KEY)
        assert everything(store) == []

        fill(store, 2, first=4)

        assert everything(store) == ["r5", "r4"]
        assert store.receipts(ReceiptQuery()).receipts[-1].cursor > last
        assert verify(store, [KEY]).good
        assert retain(store, 1, 200, KEY) == 0

    def test_interrupted_retention_verifies_and_is_finished_by_the_next(self, store: Store) -> None:
        """A cut whose receipts are still there is no flaw; the next retention removes them."""
        fill(store, 6)
        store.add_checkpoint(sign(store.heads(4), 100, KEY, cut=True))
        assert verify(store, [KEY]).good

        assert retain(store, 5, 200, KEY) == 4

        assert verify(store, [KEY]).receipts == 2

    def test_a_newer_receipt_protects_what_follows_it(self, store: Store) -> None:
        """Retention cuts a prefix: a clock that went back leaves no hole in the chain."""
        for number, at_ms in enumerate([1, 9, 2, 3], start=1):
            store.commit(delta(), admin(f"r{number}", at_ms=at_ms))

        assert retain(store, 5, 100, KEY) == 1

        assert everything(store) == ["r4", "r3", "r2"]
        assert verify(store, [KEY]).good

    def test_retention_refuses_a_checkpoint_that_is_no_cut(self, store: Store) -> None:
        """Neither a mere witness nor one that ends elsewhere may remove anything."""
        fill(store, 5)

        with pytest.raises(ValueError, match="needs a checkpoint that is a cut"):
            store.forget_receipts(4, sign(store.heads(4), 100, KEY))
        with pytest.raises(ValueError, match="does not end where"):
            store.forget_receipts(4, sign(store.heads(), 100, KEY, cut=True))

        assert len(everything(store)) == 5

    def test_export_lines_prove_themselves(self, store: Store) -> None:
        """NDJSON, one receipt a line, newest first, from which each hash can be made again."""
        fill(store, 3)

        lines = [orjson.loads(line) for line in export(store, ReceiptQuery(until_ms=3))]

        assert [line["id"] for line in lines] == ["r2", "r1"]
        for line in lines:
            chain = line["chain"]
            body = receipts.canonical(line["receipt"])
            assert chain["hash"] == chain_hash(
                chain["writer"], chain["sequence"], chain["previous_hash"], line["id"], line["at_ms"], body_hash(body)
            )

    def test_export_crosses_pages(self, store: Store) -> None:
        """More receipts than one page holds are all written, each once."""
        store.commit_all([Commit(delta(), row(f"r{number}")) for number in range(1_100)])

        assert len({orjson.loads(line)["id"] for line in export(store)}) == 1_100

    # erasure

    def test_a_tenant_is_erased_and_the_chain_still_verifies(self, store: Store) -> None:
        """Bodies, filters, scopes and sealed rows of one tenant go; links stay, others keep all."""
        for number in range(1, 5):
            tenant = "acme" if number % 2 else "other"
            store.commit(
                delta(
                    change(session(f"s{number}", tenant), ledger={f"c:{number}": LedgerEntry("passed", "t", "d", 1)})
                ),
                admin(f"r{number}", tenant=tenant),
                seal=[SealedRow(session(f"s{number}", tenant), "held", 9_000, b"x")],
            )
        store.receipts(ReceiptQuery())

        assert erase(store, "acme", 50, KEY) == 4

        found = verify(store, [KEY])
        assert (found.receipts, found.erased, found.flaws) == (6, 2, ())
        assert everything(store, tags={"tenant": ["acme"]}) == []
        assert everything(store, tags={"user": ["eve"]}) == ["r4", "r2"]
        gone = store.receipt("r1")
        assert gone is not None
        assert (gone.row.body, gone.row.tags, gone.row.scope) == (b"", (), "")
        assert gone.erased_hash == body_hash(admin("r1").body)
        assert state(store, session("s1")) == ScopeState()
        assert store.sessions_of("acme", ["1"]) == {}
        with pytest.raises(SealedMissing):
            store.sealed(session("s1"), "held", 0)
        assert state(store, session("s2", "other")).version == 1
        assert store.sealed(session("s2", "other"), "held", 0).body == b"x"

    def test_an_erasure_is_recorded_without_a_name(self, store: Store) -> None:
        """An operator's action in the chain, by a digest that its key can make again; and it needs that key."""
        fill(store, 1)
        erase(store, "acme", 50, KEY, caller=Caller(principal="admin"))

        told = store.receipts(ReceiptQuery(tags={"principal": ("admin",)})).receipts
        actions = [receipts.load(stored.row.body)["admin"] for stored in told]
        assert [one["action"] for one in actions] == ["tenant_erased", "erase_tenant"]
        assert actions[0]["details"] == {"erased": 1}
        assert not any(b"acme" in stored.row.body for stored in told)
        with pytest.raises(ValueError, match="an erasure needs a key"):
            erase(store, "acme", 50, b"")

    def test_a_body_that_nobody_erased_is_missed(self, store: Store) -> None:
        """A hash in the place of a body is no erasure unless the holder of a key vouches for it."""
        fill(store, 2)
        store.forget_tenant("acme")

        assert verify(store).good
        assert [str(flaw).partition("#")[2] for flaw in verify(store, [KEY]).flaws] == [
            f"{number}: erased: its body is gone, and nobody who holds a key has erased it" for number in (1, 2)
        ]

    def test_an_erasure_is_vouched_for_by_its_own_key_and_row(self, store: Store, where: str) -> None:
        """Another key does not count, and what was left for one receipt serves no other."""
        made = admin("same")
        for name in ("a", "b"):
            store.commit(delta(), ReceiptRow(name, 1, made.scope, made.body, made.tags))
        erase(store, "acme", 50, b"old key")

        assert kinds(store, (b"old key", KEY)) == set()
        assert kinds(store) == {"erased"}
        self.run(
            where,
            "UPDATE receipt SET body_hash = (SELECT body_hash FROM receipt WHERE sequence = 2) WHERE sequence = 1",
        )
        assert kinds(store, (b"old key",)) == {"erased"}

    def test_erasure_ends_on_receipts_that_were_tampered_with(self, store: Store, where: str) -> None:
        """An emptied or unreadable payload is no reason to go on for ever, and stays a flaw."""
        fill(store, 3)
        store.receipts(ReceiptQuery())
        self.run(where, "UPDATE receipt SET payload = NULL WHERE sequence = 1")
        self.run(where, "UPDATE receipt SET payload = hash WHERE sequence = 2")

        store.forget_tenant("acme")

        assert [flaw.sequence for flaw in verify(store).flaws] == [1, 2]

    def test_erasure_takes_exactly_one_tenant(self, store: Store) -> None:
        """A tenant whose name starts with another's keeps everything."""
        store.commit(delta(change(session("s", "acme")), change(session("s", "acme2"))), admin("r1", tenant="acme2"))

        store.forget_tenant("acme")

        assert state(store, session("s", "acme2")).version == 1
        assert verify(store).erased == 0

    def test_an_erased_receipt_is_exported_by_its_hash(self, store: Store) -> None:
        """An export shows that there was one, and nothing it said."""
        fill(store, 1)
        store.forget_tenant("acme")

        (line,) = [orjson.loads(line) for line in export(store)]

        assert line["erased_hash"] == body_hash(admin("r1", at_ms=1).body)
        assert "receipt" not in line

    def test_old_scopes_are_forgotten_by_kind(self, store: Store) -> None:
        """Only scopes of that kind that nobody wrote since; one forgotten starts again at version zero."""
        user = "user\x1facme\x1feve"
        store.commit(delta(change(session("old"), registers={("a", ""): (1,)}), change(user), at_ms=10))
        store.commit(delta(change(session("new")), at_ms=20))

        assert store.forget_scopes("session_id", 20) == 1

        assert state(store, session("old")) == ScopeState()
        assert [state(store, scope).version for scope in (session("new"), user)] == [1, 1]
        store.commit(delta(change(session("old")), change(session("new"), 1)))
        assert [state(store, session(name)).version for name in ("old", "new")] == [1, 2]

    # plan and counters

    def test_former_plans_are_kept(self, store: Store) -> None:
        """Every plan that was ever activated can be had again, newest first, page by page."""
        for epoch in range(3):
            store.activate(f"hash{epoch}", b"source%d" % epoch, 1_000 + epoch, epoch)

        found = store.plan_epochs(2)
        assert [(one.epoch, one.plan_hash, one.source) for one in found] == [
            (3, "hash2", b"source2"),
            (2, "hash1", b"source1"),
        ]
        assert [one.epoch for one in store.plan_epochs(2, found[-1].epoch)] == [1]
        assert store.plan_epochs(2, 1) == ()

    def test_every_process_follows_the_plan_epoch(self, opened: Callable[[], Store]) -> None:
        """Activating raises the epoch for all; who did not know of it is refused."""
        one, other = opened(), opened()
        assert one.plan_epoch() is None

        activated = one.activate("hash-1", b"yaml\x00", 5, 0)

        assert activated == other.plan_epoch()
        assert (activated.epoch, activated.plan_hash, activated.at_ms, activated.source) == (
            1,
            "hash-1",
            5,
            b"yaml\x00",
        )
        with pytest.raises(VersionConflict):
            other.activate("hash-2", b"", 6, 0)
        assert other.activate("hash-2", b"", 6, 1).epoch == 2

    def test_counters_add_up(self, opened: Callable[[], Store]) -> None:
        """By name, from several stores, read back by prefix."""
        one, other = opened(), opened()
        one.count({"rule:a:fired": 2, "rule:b:fired": 1, "rulf": 1})
        other.count({"rule:a:fired": 3})
        one.count({})

        assert one.counters("rule:") == {"rule:a:fired": 5, "rule:b:fired": 1}
        assert one.counters("")["rulf"] == 1

    # outages

    def test_a_closed_store_is_an_outage(self, store: Store) -> None:
        """[4] It says so; it never answers with nothing."""
        store.close()
        store.close()

        for ask in (
            lambda: store.load([session()], nothing),
            lambda: store.commit(delta(change(session()))),
            lambda: store.receipts(ReceiptQuery()),
            lambda: store.plan_epoch(),
            lambda: store.maintain(),
            lambda: store.forget_tenant("acme"),
        ):
            with pytest.raises(StoreUnavailable, match="closed"):
                ask()

    def test_a_register_that_cannot_be_read_is_an_outage(self, store: Store, where: str) -> None:
        """[4] A damaged register never counts as an empty one."""
        store.commit(delta(change(session(), registers={("a", ""): (1,)})))
        self.run(where, self.damage)

        with pytest.raises(StoreUnavailable, match="cannot be read"):
            state(store)

    # several processes

    @pytest.mark.parametrize("writers", [2, 3])
    def test_counters_stay_exact_with_several_writers(self, store: Store, where: str, writers: int) -> None:
        """[1, 2] Processes that count in one scope lose no step: each reads, adds one, and commits or tries again."""
        running = [
            subprocess.Popen([sys.executable, str(WRITER), "count", where, "60"], stdout=subprocess.PIPE, text=True)
            for _ in range(writers)
        ]
        finished = [process.communicate()[0].split() for process in running]

        assert [process.returncode for process in running] == [0] * writers
        total = 60 * writers
        assert sorted(int(value) for values in finished for value in values) == list(range(1, total + 1))
        loaded = state(store)
        assert (loaded.version, dict(loaded.registers)) == (total, {("count", ""): (total,)})
        assert len(everything(store, tags={"kind": ["admin"]}, limit=1000)) == total
        assert verify(store).good

    def test_a_fact_committed_before_a_request_is_seen_by_it(self, store: Store, where: str) -> None:
        """[3] Two processes take turns: each finds what the other committed just before."""
        with subprocess.Popen(
            [sys.executable, str(WRITER), "turns", where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None and other.stdout is not None
            for number in range(0, 60, 2):
                other.stdin.write(f"{number}\n")
                other.stdin.flush()
                assert other.stdout.readline() == f"{number + 1}\n"
                loaded = state(store)
                assert dict(loaded.registers) == {("count", ""): (number + 1,)}
                store.commit(delta(change(session(), loaded.version, registers={("count", ""): (number + 2,)})))
            other.stdin.close()

    def test_killed_writers_leave_nothing_half_done(self, store: Store, where: str) -> None:
        """[1] SIGKILL at any moment: every acknowledged commit is there, whole, and the chain verifies."""
        run = subprocess.run(
            [sys.executable, str(WRITER), "killed", where, "25"], capture_output=True, text=True, check=True
        )
        acknowledged = int(run.stdout)

        loaded = state(store, wanted=lambda head: [f"c:{number}" for number in range(1, head.turn + 2)])
        (count,) = loaded.registers["count", ""]
        assert isinstance(count, int)
        assert count >= acknowledged > 0
        assert loaded.version == loaded.head.turn == count
        assert set(loaded.ledger) == {f"c:{number}" for number in range(1, count + 1)}
        assert len(everything(store, limit=1000)) == count
        assert verify(store).good
