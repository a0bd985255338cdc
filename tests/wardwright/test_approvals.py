"""What waits for an operator: what a verdict is bound to, and that a release happens once (G23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wardwright import approvals, receipts
from wardwright.approvals import Held, NotSeen, NotWaiting, OwnRequest, Verdict
from wardwright.errors import SealedMissing, StoreUnavailable
from wardwright.history import Delta
from wardwright.store import ReceiptQuery, SqliteStore, Store, verify

from .fake_keyring import FakeKeyring

SESSION = "session_id\x1facme\x1fs1"
NOW = 1_000_000
KEYS = FakeKeyring()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = SqliteStore(tmp_path / "store.db", upkeep=False)
    yield opened
    opened.close()


def held(request: str = "digest", scope: str = SESSION, arguments: str = '{"path":"/etc"}') -> Held:
    return Held(
        approvals.handle_of(KEYS, scope, request),
        scope,
        "chat_completions",
        "coding",
        False,
        request,
        "plan-1",
        "key-1",
        ("finding-1",),
        ({"name": "shell_exec", "arguments": arguments, "rule_id": "ask-first", "message": "Ask first."},),
        {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]},
        "rcpt_1",
        NOW + 10_000,
    )


def hold(store: Store, *given: Held) -> tuple[Held, ...]:
    for one in given:
        store.commit(Delta(NOW), seal=approvals.rows(KEYS, one))
    return tuple(approvals.find(store, KEYS, one.scope, one.handle, NOW) or one for one in given)


def verdict(store: Store, one: Held, now_ms: int = NOW) -> Verdict:
    return approvals.verdict(store, KEYS, one.scope, one.handle, now_ms)


def test_a_handle_is_the_same_for_the_same_request() -> None:
    """A retry finds what it waits for by session and request alone; another session never does."""
    assert approvals.handle_of(KEYS, SESSION, "d") == approvals.handle_of(KEYS, SESSION, "d")
    others = {approvals.handle_of(KEYS, SESSION + "x", "d"), approvals.handle_of(KEYS, SESSION, "e")}
    assert approvals.handle_of(KEYS, SESSION, "d") not in others
    assert approvals.handle_of(KEYS, SESSION, "d").startswith("apr_")


def test_what_is_held_is_found_whole(store: Store) -> None:
    """Everything needed to release it comes back, with the digest an operator decides about."""
    (found,) = hold(store, held())

    assert replace(found, digest="") == held()
    assert found.digest
    assert (found.tenant, found.session_id) == ("acme", "s1")


def test_a_store_sees_no_clear_text(store: Store) -> None:
    """G8: neither arguments nor reply nor tool can be read from the rows."""
    for row in approvals.rows(KEYS, held()):
        assert b"shell_exec" not in row.body + row.name.encode()


def test_a_row_that_was_moved_does_not_open(store: Store) -> None:
    """A held reply copied into another session is nothing there."""
    row = approvals.rows(KEYS, held())[0]
    other = "session_id\x1facme\x1fs2"
    store.commit(Delta(NOW), seal=[replace(row, scope=other)])

    assert approvals.find(store, KEYS, other, held().handle, NOW) is None


def test_it_waits_until_somebody_decides(store: Store) -> None:
    """Undecided is pending; approved names who did it."""
    (one,) = hold(store, held())
    assert verdict(store, one) == approvals.PENDING

    made = approvals.decide(store, KEYS, one.handle, True, "eve", "looks fine", NOW + 1, seen=one.digest)

    assert made == Verdict("approved", "eve", "looks fine", NOW + 1) == verdict(store, one)


def test_the_requester_does_not_decide(store: Store) -> None:
    """An operator with the requester's own key is refused, and it still waits."""
    (one,) = hold(store, held())

    with pytest.raises(OwnRequest, match="Somebody else than the requester has to decide"):
        approvals.decide(store, KEYS, one.handle, True, "key-1", "", NOW)
    assert approvals.waiting(store, KEYS, one.handle, NOW) == one


def test_it_is_decided_once(store: Store) -> None:
    """The second verdict comes too late, whatever it says."""
    (one,) = hold(store, held())
    approvals.decide(store, KEYS, one.handle, True, "eve", "", NOW)

    with pytest.raises(NotWaiting, match="it was decided or has expired"):
        approvals.decide(store, KEYS, one.handle, False, "mallory", "", NOW)
    assert verdict(store, one).status == "approved"


def test_what_nobody_holds_cannot_be_decided(store: Store) -> None:
    """An unknown handle, and one that has expired, are told alike."""
    (one,) = hold(store, held())

    for handle, now_ms in (("apr_nothing", NOW), ("", NOW), (one.handle, one.expires_at_ms)):
        with pytest.raises(NotWaiting):
            approvals.decide(store, KEYS, handle, True, "eve", "", now_ms)


def test_a_release_uses_it_up(store: Store) -> None:
    """Reply and verdict go with the first release; the second changes nothing."""
    (one,) = hold(store, held())
    approvals.decide(store, KEYS, one.handle, True, "eve", "", NOW)
    store.commit(Delta(NOW), unseal=approvals.used(one))

    assert approvals.find(store, KEYS, SESSION, one.handle, NOW) is None
    with pytest.raises(SealedMissing):
        store.commit(Delta(NOW), unseal=approvals.used(one))


def test_nothing_is_released_without_a_verdict(store: Store) -> None:
    """A release of what nobody decided finds no verdict to use up."""
    (one,) = hold(store, held())

    with pytest.raises(SealedMissing):
        store.commit(Delta(NOW), unseal=approvals.used(one))


def test_another_reply_under_the_same_handle_waits_again(store: Store) -> None:
    """An approval is about the reply that was looked at, not about what took its place."""
    (first,) = hold(store, held())
    approvals.decide(store, KEYS, first.handle, True, "eve", "", NOW)
    (second,) = hold(store, held(arguments='{"path":"/"}'))

    assert second.handle == first.handle
    assert verdict(store, second) == approvals.PENDING
    assert approvals.pending(store, KEYS, NOW, 10) == (second,)


def test_asking_again_for_the_same_thing_changes_nothing(store: Store) -> None:
    """A caller who retries while an operator looks neither fills the list nor escapes a verdict."""
    request = replace(held(), reply=None, calls=(), gate="request")
    (first,) = hold(store, request)
    hold(store, replace(request, receipt_id="rcpt_2", held_at_ms=NOW + 5, expires_at_ms=NOW + 20_000))
    assert [one.digest for one in approvals.pending(store, KEYS, NOW, 10)] == [first.digest]

    approvals.decide(store, KEYS, first.handle, False, "eve", "", NOW, seen=first.digest)
    hold(store, replace(request, receipt_id="rcpt_3"))
    assert verdict(store, first).status == "rejected"
    assert approvals.pending(store, KEYS, NOW, 10) == ()


def test_what_was_not_seen_is_not_approved(store: Store) -> None:
    """Held anew between looking and deciding: the operator is asked to look again."""
    first, second = hold(store, held())[0], hold(store, held(arguments='{"path":"/"}'))[0]

    with pytest.raises(NotSeen, match="look at it again"):
        approvals.decide(store, KEYS, first.handle, True, "eve", "", NOW, seen=first.digest)
    assert approvals.decide(store, KEYS, first.handle, True, "eve", "", NOW, seen=second.digest).status == "approved"


def test_a_rejected_reply_is_erased_and_the_verdict_stays(store: Store) -> None:
    """A retry is told, though reply and arguments are gone."""
    (one,) = hold(store, held())
    approvals.decide(store, KEYS, one.handle, False, "eve", "not on this machine", NOW)
    left = approvals.find(store, KEYS, SESSION, one.handle, NOW)

    assert left is not None
    assert left.reply == {"rejected": True}
    assert dict(left.calls[0]) == {"name": "shell_exec", "rule_id": "ask-first", "message": "Ask first."}
    assert verdict(store, one).status == "rejected"
    assert verdict(store, one, one.expires_at_ms) == approvals.PENDING


def test_all_that_waits_is_listed_page_by_page(store: Store) -> None:
    """Of every session, without what was decided, released or held anew."""
    waiting = hold(store, *(held(f"d{number}", f"session_id\x1facme\x1f{number}") for number in range(7)))
    hold(store, held("d3", "session_id\x1facme\x1f3", arguments="{}"))
    approvals.decide(store, KEYS, waiting[0].handle, True, "eve", "", NOW)
    store.commit(Delta(NOW), unseal=[(waiting[1].scope, f"held:{waiting[1].handle}")])

    found: list[str] = []
    after = ""
    while page := approvals.pending(store, KEYS, NOW, 2, after):
        found += [one.handle for one in page]
        after = found[-1]
    assert found == sorted(one.handle for one in waiting[2:])


def test_a_decision_is_in_the_chain_without_arguments(store: Store) -> None:
    """Who decided what and why, found with the session, tool and rule by name; the arguments stay sealed."""
    (one,) = hold(store, held())
    approvals.decide(store, KEYS, one.handle, False, "eve", "no", NOW)
    (stored,) = store.receipts(ReceiptQuery({"session_id": ["s1"], "tenant": ["acme"], "principal": ["eve"]})).receipts
    body = receipts.load(stored.row.body)

    assert body["admin"] == {
        "action": "reject",
        "target": one.handle,
        "details": {
            "receipt_id": "rcpt_1",
            "requested_by": "key-1",
            "model": "coding",
            "tools": ["shell_exec"],
            "rules": ["ask-first"],
            "note": "no",
        },
    }
    assert b"/etc" not in stored.row.body
    assert verify(store).good


def test_an_outage_is_not_an_answer(store: Store) -> None:
    """G19: a store that cannot be read raises; it never looks like nothing held, or nothing decided."""
    (one,) = hold(store, held())
    store.close()

    for ask in (
        lambda: approvals.find(store, KEYS, SESSION, one.handle, NOW),
        lambda: verdict(store, one),
        lambda: approvals.decide(store, KEYS, one.handle, True, "eve", "", NOW),
        lambda: approvals.pending(store, KEYS, NOW, 10),
    ):
        with pytest.raises(StoreUnavailable):
            ask()
