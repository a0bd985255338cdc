"""One link of the chain in words: what can be told from a receipt and its neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wardwright import receipts
from wardwright.history import ChainLink, ReceiptRow, body_hash, chain_hash
from wardwright.store import StoredReceipt
from wardwright.ui.chain import Check, check_link
from wardwright.wire.turn import Caller


def chained(number: int, previous: str, row: ReceiptRow | None = None) -> StoredReceipt:
    if row is None:
        row = receipts.record(receipts.build_admin(f"rcpt_{number}", number, Caller(principal="ann"), "stop", "x"))
    made = chain_hash("w", number, previous, row.id, row.at_ms, body_hash(row.body))
    return StoredReceipt(row, ChainLink("w", number, previous, made), number)


FIRST = chained(1, "")
SECOND = chained(2, FIRST.link.hash)
THIRD = chained(3, SECOND.link.hash)
FOREIGN = chained(1, "", ReceiptRow("x", 1, "s", b"[1]", ()))


@pytest.mark.parametrize(
    ("before", "stored", "after", "said"),
    [
        (
            FIRST,
            SECOND,
            THIRD,
            (
                Check(True, "Its hash can be made again from what is stored."),
                Check(True, "It follows number 1."),
                Check(True, "Number 3 follows it."),
                Check(True, "Filters find it by what it says."),
            ),
        ),
        (
            None,
            FIRST,
            None,
            (
                Check(True, "Its hash can be made again from what is stored."),
                Check(True, "It is the first of its chain."),
                Check(True, "It is the newest of its chain."),
                Check(True, "Filters find it by what it says."),
            ),
        ),
        (
            None,
            replace(SECOND, row=ReceiptRow(SECOND.row.id, 9, "s", SECOND.row.body, SECOND.row.tags)),
            chained(3, "another"),
            (
                Check(False, "Its hash cannot be made again from what is stored: it was changed."),
                Check(True, "The one before it is gone; a checkpoint should stand for it. Verify all chains to know."),
                Check(False, "Number 3 follows it."),
                Check(True, "Filters find it by what it says."),
            ),
        ),
        (
            chained(1, "another"),
            replace(SECOND, row=ReceiptRow(SECOND.row.id, SECOND.row.at_ms, "s", SECOND.row.body)),
            THIRD,
            (
                Check(True, "Its hash can be made again from what is stored."),
                Check(False, "It follows number 1."),
                Check(True, "Number 3 follows it."),
                Check(False, "Filters find it by what it says."),
            ),
        ),
        (
            None,
            FOREIGN,
            None,
            (
                Check(True, "Its hash can be made again from what is stored."),
                Check(True, "It is the first of its chain."),
                Check(True, "It is the newest of its chain."),
                Check(True, "It was not written by this version: nobody can say what filters should find."),
            ),
        ),
    ],
    ids=["sound", "alone", "changed", "moved", "foreign"],
)
def test_a_link_is_checked_with_its_neighbours(
    before: StoredReceipt | None, stored: StoredReceipt, after: StoredReceipt | None, said: tuple[Check, ...]
) -> None:
    """What holds and what does not, each in a sentence."""
    assert check_link(stored, before, after) == said
