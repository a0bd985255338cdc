"""One link of the chain, in words: where a receipt stands, and whether it is what was committed there.

Looks at the receipt and its two neighbours; what only the whole chain can tell (a cut end, a checkpoint) is `verify`'s. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wardwright import receipts
from wardwright.history import body_hash, chain_hash
from wardwright.store import StoredReceipt


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    holds: bool
    says: str


def check_link(stored: StoredReceipt, before: StoredReceipt | None, after: StoredReceipt | None) -> tuple[Check, ...]:
    """What can be checked of a receipt with its neighbours in the chain, those that are there."""
    return tuple(_checks(stored, before, after))


def _checks(stored: StoredReceipt, before: StoredReceipt | None, after: StoredReceipt | None) -> Iterator[Check]:
    row, link = stored.row, stored.link
    hash_of_body = body_hash(row.body) if row.body else stored.erased_hash
    own = chain_hash(link.writer, link.sequence, link.previous_hash, row.id, row.at_ms, hash_of_body)
    if own == link.hash:
        yield Check(True, "Its hash can be made again from what is stored.")
    else:
        yield Check(False, "Its hash cannot be made again from what is stored: it was changed.")
    if link.sequence == 1:
        yield Check(not link.previous_hash, "It is the first of its chain.")
    elif before is None:
        yield Check(True, "The one before it is gone; a checkpoint should stand for it. Verify all chains to know.")
    else:
        yield Check(before.link.hash == link.previous_hash, f"It follows number {before.link.sequence}.")
    if after is not None:
        yield Check(after.link.previous_hash == link.hash, f"Number {after.link.sequence} follows it.")
    else:
        yield Check(True, "It is the newest of its chain.")
    try:
        made = receipts.record(receipts.load(row.body))
        yield Check(made.tags == row.tags, "Filters find it by what it says.")
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Check(True, "It was not written by this version: nobody can say what filters should find.")
