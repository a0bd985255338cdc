"""The chain of receipts as evidence: signing its heads, cutting it for retention, erasing from it, verifying it, writing it out.

Works on any `Store`. Reads what is stored and believes none of it: a link holds when its hash can be made again from the row and
the link before. Whoever can rewrite rows, heads and links together is stopped only by a checkpoint whose key he does not have; and
whoever takes the newest checkpoints away as well, only by the mark of one that somebody kept elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from wardwright import receipts
from wardwright.errors import VersionConflict
from wardwright.facts import text_digest
from wardwright.history import ChainLink, Delta, body_hash, chain_hash
from wardwright.store.postings import BLOCK, BUCKET, ID_TAG, TENANT_TAG, Span, gather, offsets
from wardwright.store.protocol import Checkpoint, ReceiptQuery, Store, StoredReceipt
from wardwright.store.rows import tenant_of
from wardwright.wire.turn import Caller

FlawKind: TypeAlias = Literal["changed", "missing", "reordered", "cut", "tags", "index", "erased", "checkpoint"]
"""changed: a receipt is not what was committed
missing: there is a gap
reordered: a receipt stands where another belongs
cut: the end is gone
tags: a receipt cannot be found by what it says
index: filters do not find receipts that are there
erased: a body is gone, and nobody who holds a key has erased it
checkpoint: a checkpoint was changed, is gone, or was signed with none of the keys"""

_PAGE: Final = 500
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing wrong with a chain, and where."""

    kind: FlawKind
    writer: str
    sequence: int
    message: str

    def __str__(self) -> str:
        place = f"{self.writer}#{self.sequence}: " if self.writer else ""
        return f"{place}{self.kind}: {self.message}"


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


def sign(
    heads: Sequence[ChainLink], at_ms: int, key: bytes, *, cut: bool = False, after: Checkpoint | None = None
) -> Checkpoint:
    """A checkpoint over these heads, the next after another one. The signature starts with the key's own id, so that keys can be
    rotated."""
    if not key:
        raise ValueError("a checkpoint needs a key")
    ordered = tuple(sorted(heads, key=lambda link: link.writer))
    number, previous = (1, b"") if after is None else (after.number + 1, after.signature)
    unsigned = Checkpoint(at_ms, ordered, b"", cut, number, previous)
    return Checkpoint(at_ms, ordered, _key_id(key) + _mac(unsigned, key), cut, number, previous)


def checkpoint(store: Store, at_ms: int, key: bytes) -> Checkpoint:
    """Signs and keeps the heads of all chains as they are now. Keep its `mark` where whoever can write the store cannot."""
    for _ in range(_TRIES):
        made = sign(store.heads(), at_ms, key, after=_newest(store))
        try:
            store.add_checkpoint(made)
        except VersionConflict:
            continue  # somebody else's was first
        return made
    raise VersionConflict("other checkpoints were always first")


def mark(made: Checkpoint) -> str:
    """A checkpoint in one word: `verify` finds by it whether the checkpoint is still there."""
    return f"{made.number}:{made.signature.hex()[16:48]}"


def retain(store: Store, before_ms: int, at_ms: int, key: bytes) -> int:
    """Removes receipts older than `before_ms`, leaving a signed cut in their place; how many."""
    for _ in range(_TRIES):
        heads = store.heads(before_ms)
        if not heads:
            return 0
        try:
            return store.forget_receipts(before_ms, sign(heads, at_ms, key, cut=True, after=_newest(store)))
        except VersionConflict:
            continue
    raise VersionConflict("other checkpoints were always first")


def erase(store: Store, tenant: str, at_ms: int, key: bytes, *, caller: Caller | None = None) -> int:
    """Erases all of a tenant and vouches for it; how many. That it begins and that it is done is recorded, without the tenant's
    name: the first may be all that is left of an interrupted one, and the second outlives the erasure of the operator's own tenant."""
    if not key:
        raise ValueError("an erasure needs a key")
    named = text_digest(key, tenant)

    def tell(action: str, **details: int) -> None:
        receipt_id = receipts.receipt_id(at_ms, os.urandom(10))
        told = receipts.build_admin(receipt_id, at_ms, caller or Caller(), action, named, details)
        store.commit(Delta(at_ms), receipts.record(told))

    tell("erase_tenant")
    gone = store.forget_tenant(tenant, lambda link_hash: _key_id(key) + _vouch(link_hash, key))
    tell("tenant_erased", erased=gone)
    return gone


def verify(store: Store, keys: Sequence[bytes] = (), *, anchor: str = "") -> Verification:
    """Walks every chain. Without keys, checkpoints and erasures are not vouched for, so a chain that retention cut does not
    verify. `anchor` is the mark of a checkpoint that must still be there."""
    while True:
        last = store.last_checkpoint()
        known = store.checkpoints()
        found = _verify(store, known, last, keys, anchor)
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


def _mac(made: Checkpoint, key: bytes) -> bytes:
    heads = [[link.writer, link.sequence, link.previous_hash, link.hash] for link in made.heads]
    plain = orjson.dumps([made.number, made.previous.hex(), made.at_ms, made.cut, heads])
    return hmac.digest(key, plain, "sha256")


def _signed(made: Checkpoint, keys: Sequence[bytes]) -> bool:
    return any(hmac.compare_digest(made.signature, _key_id(key) + _mac(made, key)) for key in keys)


def _vouch(link_hash: str, key: bytes) -> bytes:
    return hmac.digest(key, b"erased\n" + link_hash.encode(), "sha256")[:16]


def _newest(store: Store) -> Checkpoint | None:
    return next(reversed(store.checkpoints()), None)


def _missing_checkpoints(known: Sequence[Checkpoint], last: int, anchor: str) -> Iterator[str]:
    """Each names the one before it, so none can be taken out between two others."""
    number, previous = 0, b""
    for made in known:
        if made.number != number + 1:
            yield f"checkpoint {number + 1} is gone"
        elif made.previous != previous:
            yield f"checkpoint {made.number} does not follow the one before it"
        number, previous = made.number, made.signature
    if last > number:
        yield f"checkpoint {last} is gone"
    if anchor and anchor not in [mark(made) for made in known]:
        yield f"the checkpoint with mark {anchor} is gone"


def _verify(store: Store, known: Sequence[Checkpoint], last: int, keys: Sequence[bytes], anchor: str) -> Verification:
    flaws = [Flaw("checkpoint", "", 0, message) for message in _missing_checkpoints(known, last, anchor)]
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
    heads = store.heads()
    for link in heads:
        witnesses.setdefault(link.writer, {}).setdefault(link.sequence, link.hash)
    if heads:
        _catch_up(store)
    elif not witnesses:
        flaws.append(Flaw("cut", "", 0, "there is no chain: nothing was ever recorded, or all of it was taken away"))
    seen = erased = 0
    for writer in sorted(witnesses):
        walk = _Walk(writer, starts.get(writer), witnesses[writer], keys)
        walk.over(store)
        flaws.extend(walk.flaws)
        seen += walk.seen
        erased += walk.erased
    return Verification(seen, erased, len(witnesses), trusted, tuple(flaws))


def _catch_up(store: Store) -> None:
    """A query indexes what was committed before it."""
    store.receipts(ReceiptQuery(limit=1))


class _Walk:
    """One pass over one chain."""

    def __init__(
        self, writer: str, start: ChainLink | None, witnesses: Mapping[int, str], keys: Sequence[bytes]
    ) -> None:
        self.writer = writer
        self.start = start
        self.witnesses = witnesses
        self.keys = keys
        self.flaws: list[Flaw] = []
        self.seen = 0
        self.erased = 0
        self.lost: list[int] = []
        """Sequences that no filter finds."""

    def flaw(self, kind: FlawKind, sequence: int, message: str) -> None:
        self.flaws.append(Flaw(kind, self.writer, sequence, message))

    def over(self, store: Store) -> None:
        last = 0 if self.start is None else self.start.sequence
        previous = "" if self.start is None else self.start.hash
        cursor = 0
        after = 0
        first = True
        while page := store.chain(self.writer, after, _PAGE):
            sound: list[StoredReceipt] = []
            start = after
            for stored in page:
                flaws = len(self.flaws)
                after = stored.link.sequence
                if first and self.start is not None and after <= last:
                    # Retention was interrupted: what it left must still lead up to its cut.
                    last, previous = after - 1, stored.link.previous_hash
                first = False
                self.check(stored, last, previous)
                if stored.cursor <= cursor:
                    self.flaw("reordered", after, "it is listed before an older one")
                last, previous, cursor = after, stored.link.hash, stored.cursor
                if len(self.flaws) == flaws:
                    sound.append(stored)
            self.check_index(store, sound, start)
        if self.lost:
            self.flaw("index", self.lost[0], f"filters do not find {len(self.lost)} receipts: make the index anew")
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
            if self.keys and own == link.hash and not self.vouched(stored):
                self.flaw("erased", link.sequence, "its body is gone, and nobody who holds a key has erased it")
        elif own == link.hash:
            self.check_tags(stored)

    def vouched(self, stored: StoredReceipt) -> bool:
        return any(
            hmac.compare_digest(stored.vouched, _key_id(key) + _vouch(stored.link.hash, key)) for key in self.keys
        )

    def check_index(self, store: Store, page: Sequence[StoredReceipt], after: int) -> None:
        """Every receipt stands in the postings of all its tags, and its time in the span of its block."""
        lost = _unfindable(store, page)
        if lost:
            # Committed, erased or cut since the index was read? Then it looks otherwise now.
            _catch_up(store)
            wanted = {stored.link.sequence for stored in lost}
            now = store.chain(self.writer, after, _PAGE)
            lost = _unfindable(store, [stored for stored in now if stored.link.sequence in wanted])
        self.lost.extend(stored.link.sequence for stored in lost)

    def check_tags(self, stored: StoredReceipt) -> None:
        try:
            made = receipts.record(receipts.load(stored.row.body))
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not one of ours: the chain vouches for its bytes, nobody for its tags.
            return
        if made.tags != stored.row.tags or made.scope != stored.row.scope:
            self.flaw("tags", stored.link.sequence, "its filters or its scope were changed")


def _unfindable(store: Store, page: Sequence[StoredReceipt]) -> list[StoredReceipt]:
    wanted = [(stored.cursor, stored.row.at_ms, _index_tags(stored)) for stored in page]
    postings, spans = gather(wanted)
    found, times = store.postings(list(postings), [span.block for span in spans])
    absent = {place: bits & ~found.get(place, 0) for place, bits in postings.items()}
    cursors = {bucket * BUCKET + offset for (bucket, _), bits in absent.items() for offset in offsets(bits)}
    blocks = {span.block for span in spans if not _covers(times.get(span.block), span)}
    return [stored for stored in page if stored.cursor in cursors or stored.cursor // BLOCK in blocks]


def _covers(kept: tuple[int, int] | None, span: Span) -> bool:
    return kept is not None and kept[0] <= span.first_ms and kept[1] >= span.last_ms


def _index_tags(stored: StoredReceipt) -> list[str]:
    row = stored.row
    own = [f"{name}={value}" for name, value in row.tags]
    return [*own, *([f"{TENANT_TAG}={tenant_of(row.scope)}"] if row.body else []), f"{ID_TAG}={row.id}"]
