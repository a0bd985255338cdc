"""The chain of receipts as evidence: signing its heads, cutting it for retention, verifying it, writing it out.

Works on any `Store`. Reads what is stored and believes none of it: a link holds when its hash can be made again from the row and
the link before. Whoever can rewrite rows, heads and links together is stopped only by a checkpoint whose key he does not have.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from wardwright import receipts
from wardwright.history import ChainLink, body_hash, chain_hash
from wardwright.store.protocol import Checkpoint, ReceiptQuery, Store, StoredReceipt

FlawKind: TypeAlias = Literal["changed", "missing", "reordered", "cut", "tags", "checkpoint"]
"""changed: a receipt is not what was committed
missing: there is a gap
reordered: a receipt stands where another belongs
cut: the end is gone
tags: a receipt cannot be found by what it says
checkpoint: a checkpoint was changed, or signed with none of the keys"""

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing wrong with a chain, and where."""

    kind: FlawKind
    writer: str
    sequence: int
    message: str

    def __str__(self) -> str:
        return f"{self.writer}#{self.sequence}: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found. Good when there are no flaws."""

    receipts: int
    erased: int
    """Receipts whose body was erased; their links still hold."""
    chains: int
    checkpoints: int
    flaws: tuple[Flaw, ...]

    @property
    def good(self) -> bool:
        return not self.flaws


def sign(heads: Sequence[ChainLink], at_ms: int, key: bytes, *, cut: bool = False) -> Checkpoint:
    """A checkpoint over these heads. The signature starts with the key's own id, so that keys can be rotated."""
    if not key:
        raise ValueError("a checkpoint needs a key")
    ordered = tuple(sorted(heads, key=lambda link: link.writer))
    return Checkpoint(at_ms, ordered, _key_id(key) + _mac(ordered, at_ms, key, cut=cut), cut)


def checkpoint(store: Store, at_ms: int, key: bytes) -> Checkpoint:
    """Signs and keeps the heads of all chains as they are now."""
    made = sign(store.heads(), at_ms, key)
    store.add_checkpoint(made)
    return made


def retain(store: Store, before_ms: int, at_ms: int, key: bytes) -> int:
    """Removes receipts older than `before_ms`, leaving a signed cut in their place; how many."""
    heads = store.heads(before_ms)
    if not heads:
        return 0
    return store.forget_receipts(before_ms, sign(heads, at_ms, key, cut=True))


def verify(store: Store, keys: Sequence[bytes] = ()) -> Verification:
    """Walks every chain. Without keys, checkpoints count for nothing, so a chain that retention cut does not verify."""
    while True:
        known = store.checkpoints()
        found = _verify(store, known, keys)
        # Retention may have cut while we walked: what then looks missing is not.
        if found.good or store.checkpoints() == known:
            return found


def export(store: Store, query: ReceiptQuery | None = None) -> Iterator[bytes]:
    """NDJSON, newest first: each line holds the receipt byte for byte, so that its hash can be made again from the line."""
    query = query or ReceiptQuery()
    before = query.before
    while True:
        page = store.receipts(
            ReceiptQuery(tags=query.tags, since_ms=query.since_ms, until_ms=query.until_ms, before=before, limit=_PAGE)
        )
        for one in page.receipts:
            yield _line(one)
        before = page.next_before
        if before is None:
            return


def _line(stored: StoredReceipt) -> bytes:
    link = stored.link
    line: dict[str, object] = {
        "id": stored.row.id,
        "at_ms": stored.row.at_ms,
        "cursor": stored.cursor,
        "chain": {
            "writer": link.writer,
            "sequence": link.sequence,
            "previous_hash": link.previous_hash,
            "hash": link.hash,
        },
    }
    if stored.row.body:
        line["receipt"] = orjson.Fragment(stored.row.body)
    else:
        line["erased_hash"] = stored.erased_hash
    return orjson.dumps(line) + b"\n"


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"checkpoint key\n" + key).digest()[:8]


def _mac(heads: Sequence[ChainLink], at_ms: int, key: bytes, *, cut: bool) -> bytes:
    plain = orjson.dumps([at_ms, cut, [[link.writer, link.sequence, link.previous_hash, link.hash] for link in heads]])
    return hmac.digest(key, plain, "sha256")


def _signed(made: Checkpoint, keys: Sequence[bytes]) -> bool:
    return any(
        hmac.compare_digest(made.signature, _key_id(key) + _mac(made.heads, made.at_ms, key, cut=made.cut))
        for key in keys
    )


def _verify(store: Store, known: Sequence[Checkpoint], keys: Sequence[bytes]) -> Verification:
    flaws: list[Flaw] = []
    starts: dict[str, ChainLink] = {}
    witnesses: dict[str, dict[int, str]] = {}
    trusted = 0
    for made in known:
        if not keys:
            continue
        if not _signed(made, keys):
            flaws.append(
                Flaw("checkpoint", "", 0, f"the checkpoint of {made.at_ms} was changed or its key is not known")
            )
            continue
        trusted += 1
        for link in made.heads:
            witnesses.setdefault(link.writer, {})[link.sequence] = link.hash
            if made.cut and link.sequence > starts.get(link.writer, link).sequence - 1:
                starts[link.writer] = link
    for link in store.heads():
        witnesses.setdefault(link.writer, {}).setdefault(link.sequence, link.hash)
    seen = erased = 0
    for writer in sorted(witnesses):
        walk = _Walk(writer, starts.get(writer), witnesses[writer])
        walk.over(store)
        flaws.extend(walk.flaws)
        seen += walk.seen
        erased += walk.erased
    return Verification(seen, erased, len(witnesses), trusted, tuple(flaws))


class _Walk:
    """One pass over one chain."""

    def __init__(self, writer: str, start: ChainLink | None, witnesses: Mapping[int, str]) -> None:
        self.writer = writer
        self.start = start
        self.witnesses = witnesses
        self.flaws: list[Flaw] = []
        self.seen = 0
        self.erased = 0

    def flaw(self, kind: FlawKind, sequence: int, message: str) -> None:
        self.flaws.append(Flaw(kind, self.writer, sequence, message))

    def over(self, store: Store) -> None:
        last = 0 if self.start is None else self.start.sequence
        previous = "" if self.start is None else self.start.hash
        cursor = 0
        after = 0
        first = True
        while page := store.chain(self.writer, after, _PAGE):
            for stored in page:
                after = stored.link.sequence
                if first and self.start is not None and after <= last:
                    # Retention was interrupted: what it left must still lead up to its cut.
                    last, previous = after - 1, stored.link.previous_hash
                first = False
                self.check(stored, last, previous)
                if stored.cursor <= cursor:
                    self.flaw("reordered", after, "it is listed before an older one")
                last, previous, cursor = after, stored.link.hash, stored.cursor
        for sequence in self.witnesses:
            if sequence > last:
                self.flaw("cut", last, f"the chain ends here, but it once reached {sequence}")

    def check(self, stored: StoredReceipt, last: int, previous: str) -> None:
        self.seen += 1
        link, row = stored.link, stored.row
        if link.sequence != last + 1:
            gap = f"{last + 1}" if link.sequence == last + 2 else f"{last + 1} to {link.sequence - 1}"
            self.flaw("missing", link.sequence, f"{gap} should stand before it")
        erased = not row.body and bool(stored.erased_hash)
        hash_of_body = stored.erased_hash if erased else body_hash(row.body)
        own = chain_hash(self.writer, link.sequence, link.previous_hash, row.id, row.at_ms, hash_of_body)
        follows = link.previous_hash == previous or link.sequence != last + 1
        if own != link.hash:
            if follows:
                self.flaw("changed", link.sequence, "its hash cannot be made again from what is stored")
            else:
                self.flaw("reordered", link.sequence, "it does not follow the one before it, or was changed")
        elif not follows:
            self.flaw("changed", link.sequence, "it does not follow from the one before it")
        witness = self.witnesses.get(link.sequence)
        if witness is not None and witness != link.hash:
            self.flaw("changed", link.sequence, "a checkpoint or the chain's head knows another hash for it")
        if erased:
            self.erased += 1
        elif own == link.hash:
            self.check_tags(stored)

    def check_tags(self, stored: StoredReceipt) -> None:
        try:
            made = receipts.record(receipts.load(stored.row.body))
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not one of ours: the chain vouches for its bytes, nobody for its tags.
            return
        if made.tags != stored.row.tags or made.scope != stored.row.scope:
            self.flaw("tags", stored.link.sequence, "its filters or its scope were changed")
