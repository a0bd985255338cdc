"""What makes receipts findable: for every bucket of receipts and every tag in it, the set of receipts that carry the tag.

A bucket is a run of `BUCKET` cursors; a posting is a set of offsets in it, kept as a bitmap or, when few, as a list. Filters are
joined by ands and ors of big integers, so an answer costs a few reads per bucket however common or disjoint its filters are.
Times are known for every run of `BLOCK` cursors, so that a range of time leaves only its two ends to be looked at. Tags are kept
as 64-bit hashes: a found receipt is checked against its own tags before it is shown.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from wardwright.store.protocol import ReceiptQuery, StoredReceipt

BUCKET: Final = 8192
BLOCK: Final = 256
TENANT_TAG: Final = "\x00tenant"
"""The store's own tag: whose receipt it is. No filter name starts with NUL."""
ID_TAG: Final = "\x00id"
"""Likewise: the receipt's id."""

Place: TypeAlias = tuple[int, int]
"""(bucket, tag): the key of a posting."""
_FEW: Final = 32
_TWO: Final = struct.Struct("<BHH")
_BITMAP: Final = [struct.pack("<BH", 1, low) for low in range(BUCKET >> 3)]
"""How a bitmap begins, by the number of empty bytes it leaves out."""
_BIT: Final = [bytes((1 << place,)) for place in range(8)]
_PAIR: Final = [
    [((1 << first) | (1 << last)).to_bytes((last >> 3) + 1, "little") for last in range(32)] for first in range(8)
]
"""Bitmaps of two places that are near each other."""
_LISTS: Final = [struct.Struct(f"<B{count}H") for count in range(_FEW + 1)]
_ONE: Final = ord("1")
_ALL: Final = (1 << BUCKET) - 1
_WHOLE_BLOCK: Final = (1 << BLOCK) - 1


class Span(NamedTuple):
    """The times of a block of receipts."""

    block: int
    first_ms: int
    last_ms: int


def tag_id(name: str, value: str) -> int:
    """A signed 64-bit hash."""
    return _tag_ids((f"{name}={value}",))[0]


_BLAKE: Final = hashlib.blake2b(digest_size=8)
"""A copy costs less than a new one."""


def _tag_ids(tags: Collection[str]) -> tuple[int, ...]:
    digests: list[bytes] = []
    for tag in tags:
        hasher = _BLAKE.copy()
        hasher.update(tag.encode("utf-8", "surrogatepass"))
        digests.append(hasher.digest())
    return struct.unpack(f"<{len(digests)}q", b"".join(digests))


def encode(bits: int) -> bytes:
    """A posting as a column: a list of offsets when few and far apart, else the bitmap without its empty ends."""
    count = bits.bit_count()
    low = ((bits & -bits).bit_length() - 1) >> 3
    span = ((bits.bit_length() + 7) >> 3) - low
    if count <= _FEW and 2 * count < span:
        return _LISTS[count].pack(0, *offsets(bits))
    return _BITMAP[low] + (bits >> (low * 8)).to_bytes(span, "little")


def decode(column: bytes) -> int:
    if column[0] == 0:
        bits = 0
        for offset in struct.unpack(f"<{(len(column) - 1) // 2}H", column[1:]):
            bits |= 1 << offset
        return bits
    return int.from_bytes(column[3:], "little") << (8 * (column[1] | column[2] << 8))


def merge(one: bytes, other: bytes) -> bytes:
    return encode(decode(one) | decode(other))


def offsets(bits: int) -> Iterator[int]:
    """Highest first, which is newest first."""
    while bits:
        top = bits.bit_length() - 1
        yield top
        bits ^= 1 << top


Tagged: TypeAlias = Iterable[tuple[int, int, Iterable[str]]]
"""Receipts as an index sees them: cursor, time, tags as `name=value`."""


def gather(receipts: Tagged) -> tuple[dict[Place, int], list[Span]]:
    """Postings and spans of these receipts, to be merged with what is stored."""
    found, spans = _gathered(receipts)
    return {(bucket, tag): _union(some) for bucket, places in found for tag, some in sorted(places.items())}, spans


class Columns(NamedTuple):
    """Postings of one bucket whose columns have the same length, in the order of the table: a database can take them at once."""

    bucket: int
    length: int
    tags: list[int]
    columns: bytes
    """One behind the other."""


def gather_columns(receipts: Tagged) -> tuple[list[Columns], list[Span]]:
    """What `gather` gives, as columns."""
    found, spans = _gathered(receipts)
    runs: list[Columns] = []
    for bucket, places in found:
        by_length: dict[int, tuple[list[int], list[bytes]]] = {}
        for tag in sorted(places):
            some = places[tag]
            if len(some) == 1:  # as most: almost every receipt and call has a tag of its own, its id
                column = _BITMAP[some[0] >> 3] + _BIT[some[0] & 7]
            else:
                column = _column(some)
            run = by_length.get(len(column))
            if run is None:
                run = by_length[len(column)] = ([], [])
            run[0].append(tag)
            run[1].append(column)
        for length, (tags, columns) in by_length.items():
            runs.append(Columns(bucket, length, tags, b"".join(columns)))
    return runs, spans


def _column(places: list[int]) -> bytes:
    """What `encode` makes of them."""
    first, last = places[0], places[-1]
    low = first >> 3
    if first == last:
        return _BITMAP[low] + _BIT[first & 7]
    span = (last >> 3) - low + 1
    if len(places) == 2:
        if span > 4:
            return _TWO.pack(0, last, first)
        return _BITMAP[low] + _PAIR[first & 7][last - low * 8]
    bits = _union(places, low * 8)
    count = bits.bit_count()
    if count <= _FEW and 2 * count < span:
        return _LISTS[count].pack(0, *sorted(set(places), reverse=True))
    return _BITMAP[low] + bits.to_bytes(span, "little")


def _gathered(receipts: Tagged) -> tuple[list[tuple[int, dict[int, list[int]]]], list[Span]]:
    """By bucket, in their order, and tag: the offsets, in theirs."""
    found: dict[int, defaultdict[str, list[int]]] = {}
    spans: dict[int, list[int]] = {}
    for cursor, at_ms, tags in sorted(receipts, key=itemgetter(0)):
        bucket, offset = divmod(cursor, BUCKET)
        block = cursor // BLOCK
        span = spans.get(block)
        if span is None:
            spans[block] = [at_ms, at_ms]
        elif at_ms > span[1]:
            span[1] = at_ms
        elif at_ms < span[0]:
            span[0] = at_ms
        places = found.get(bucket)
        if places is None:
            places = found[bucket] = defaultdict(list)
        for tag in tags:
            places[tag].append(offset)
    return (
        [(bucket, _hashed(places)) for bucket, places in sorted(found.items())],
        [Span(block, *span) for block, span in sorted(spans.items())],
    )


def _hashed(places: dict[str, list[int]]) -> dict[int, list[int]]:
    tags = _tag_ids(places)
    found = dict(zip(tags, places.values(), strict=True))
    if len(found) < len(tags):
        # Two tags, one hash.
        joined: defaultdict[int, set[int]] = defaultdict(set)
        for tag, some in zip(tags, places.values(), strict=True):
            joined[tag].update(some)
        return {tag: sorted(some) for tag, some in joined.items()}
    return found


def _union(places: list[int], start: int = 0) -> int:
    """Offsets in their order as a bitmap that begins at `start`."""
    first, length = places[0] - start, places[-1] - places[0] + 1
    if len(places) <= _FEW:
        bits = 0
        for offset in places:
            bits |= 1 << (offset - start)
        return bits
    if length == len(places) == len(set(places)):
        # Every receipt of a run: what most of them have in common.
        return ((1 << length) - 1) << first
    digits = bytearray(b"0") * length
    last = places[-1]
    for offset in places:
        digits[last - offset] = _ONE
    return int(digits, 2) << first


class Search:
    """One query, made ready: which postings it needs of a bucket, and which cursors of the bucket fit."""

    def __init__(self, query: ReceiptQuery) -> None:
        self.query = query
        self.limit = max(1, min(query.limit, 1000))
        self._groups = [tuple(tag_id(name, value) for value in values) for name, values in query.tags.items()]
        self._wanted = [(name, frozenset(values)) for name, values in query.tags.items()]
        self.tags: tuple[int, ...] = tuple({tag for group in self._groups for tag in group})
        """All postings this search reads in a bucket. None: it looks at every receipt."""

    @property
    def timed(self) -> bool:
        return self.query.since_ms is not None or self.query.until_ms is not None

    @property
    def time_range(self) -> tuple[int, int]:
        """First and end, for a database to compare spans with."""
        query = self.query
        return (
            -(2**62) if query.since_ms is None else query.since_ms,
            2**62 if query.until_ms is None else query.until_ms,
        )

    def buckets(self, first_block: int, last_block: int) -> dict[int, int]:
        """All buckets that hold these blocks, newest first, each with the set of its places that may fit."""
        if self.query.before is not None:
            last_block = min(last_block, self.query.before // BLOCK)
        return {
            bucket: self._before(bucket, _ALL)
            for bucket in range(last_block * BLOCK // BUCKET, first_block * BLOCK // BUCKET - 1, -1)
        }

    def buckets_of(self, blocks: Iterable[int]) -> dict[int, int]:
        """The same for blocks that were chosen by their times."""
        found: dict[int, int] = {}
        for block in sorted(blocks, reverse=True):
            bucket, place = divmod(block * BLOCK, BUCKET)
            found[bucket] = found.get(bucket, 0) | _WHOLE_BLOCK << place
        return {bucket: self._before(bucket, bits) for bucket, bits in found.items()}

    def _before(self, bucket: int, bits: int) -> int:
        if self.query.before is None:
            return bits
        return bits & ((1 << min(BUCKET, max(0, self.query.before - bucket * BUCKET))) - 1)

    def cursors(self, bucket: int, bits: int, posting: Callable[[int], int]) -> Iterator[int]:
        """Of these places of a bucket, the cursors that carry the tags, newest first. `posting(tag)` gives 0 for none."""
        for group in self._groups:
            union = 0
            for tag in group:
                union |= posting(tag)
            bits &= union
            if not bits:
                return
        start = bucket * BUCKET
        for offset in offsets(bits):
            yield start + offset

    def fits_time(self, at_ms: int) -> bool:
        """`since_ms` is in, `until_ms` is out."""
        query = self.query
        return (query.since_ms is None or at_ms >= query.since_ms) and (
            query.until_ms is None or at_ms < query.until_ms
        )

    def fits(self, stored: StoredReceipt) -> bool:
        """The receipt itself, compared: what led to it was only a hash."""
        tags = (*stored.row.tags, (ID_TAG, stored.row.id))
        return all(any(name == tag and value in values for tag, value in tags) for name, values in self._wanted)
