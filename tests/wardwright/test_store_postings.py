"""Postings: sets of receipts as columns."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.store.postings import (
    BLOCK,
    BUCKET,
    Search,
    decode,
    encode,
    gather,
    gather_columns,
    merge,
    offsets,
    tag_id,
)
from wardwright.store.protocol import ReceiptQuery

SETS = st.sets(st.integers(0, BUCKET - 1), min_size=1, max_size=80) | st.builds(
    lambda start, length: set(range(start, min(start + length, BUCKET))),
    st.integers(0, BUCKET - 1),
    st.integers(1, BUCKET),
)


def bits(places: set[int]) -> int:
    return sum(1 << place for place in places)


@given(SETS)
def test_a_posting_comes_back_equal(places: set[int]) -> None:
    """However many receipts and however far apart."""
    column = encode(bits(places))

    assert decode(column) == bits(places)
    assert list(offsets(decode(column))) == sorted(places, reverse=True)
    assert len(column) <= 3 + BUCKET // 8


@given(st.lists(st.tuples(st.integers(0, 2 * BUCKET), st.sets(st.sampled_from("abc"))), max_size=60))
def test_gathered_columns_are_the_postings(receipts: list[tuple[int, set[str]]]) -> None:
    """Columns made at once are what encoding each posting gives."""
    tagged = [(cursor, cursor, sorted(tags)) for cursor, tags in receipts]
    postings, spans = gather(tagged)

    columns, same_spans = gather_columns(tagged)

    found: dict[tuple[int, int], bytes] = {}
    for bucket, length, tags, joined in columns:
        found |= {(bucket, tag): joined[place * length :][:length] for place, tag in enumerate(tags)}
    assert found == {place: encode(some) for place, some in postings.items()}
    assert sum(len(one.tags) for one in columns) == len(found)
    assert same_spans == spans


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "cursors",
    [range(100, 200), range(BUCKET), range(5, BUCKET, 3), [*range(60), 7_000], [3, 3_000], [900, 901], [8_191]],
    ids=["run", "all", "gaps", "two ends", "far", "near", "last"],
)
def test_what_common_tags_become(cursors: Sequence[int], times: int) -> None:
    """Runs, gaps and receipts that carry a tag twice, in whatever order they come: the set of their offsets, as `encode` has it."""
    tagged = [(cursor, 0, ["tag=a"] * times) for cursor in [*cursors[1:], cursors[0]]]

    ((_, found),) = gather(tagged)[0].items()
    ((_, length, tags, column),) = gather_columns(tagged)[0]

    assert found == bits(set(cursors))
    assert (column, length, tags) == (encode(found), len(column), [tag_id("tag", "a")])


@given(SETS, SETS)
def test_merging_is_the_union(one: set[int], other: set[int]) -> None:
    """In either form, in either order."""
    assert decode(merge(encode(bits(one)), encode(bits(other)))) == bits(one | other)


def test_a_lone_receipt_takes_a_few_bytes() -> None:
    """Call ids are tags too, and almost every one is unique."""
    assert len(encode(1 << 8_000)) <= 4


@given(st.sets(st.integers(1, 3 * BUCKET), min_size=1, max_size=60))
def test_gathering_finds_every_receipt_in_its_bucket(cursors: set[int]) -> None:
    """Each tag's sets, joined over the buckets, are the cursors that carried it; spans cover their times."""
    postings, spans = gather((cursor, cursor * 10, ["tag=a"]) for cursor in cursors)

    found = {bucket * BUCKET + place for (bucket, _), some in postings.items() for place in offsets(some)}
    assert found == cursors
    assert {tag for _, tag in postings} == {tag_id("tag", "a")}
    assert all(
        span.first_ms <= cursor * 10 <= span.last_ms
        for cursor in cursors
        for span in spans
        if span.block == cursor // BLOCK
    )


def test_nothing_of_a_tag_is_held_after_it_was_indexed() -> None:
    """Callers choose tags, of any length: neither number nor size of them is kept in memory."""
    gather([(1, 1, ["warm=up"])])
    tracemalloc.start()
    try:
        for number in range(1, 20):
            gather([(number, 1, [f"tool_call_id={number}" + "z" * 1_000_000])])
            tag_id("tool_call_id", f"{number}" + "z" * 1_000_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 1_000_000


def test_names_and_values_do_not_run_into_each_other() -> None:
    """`ab`=`c` is another tag than `a`=`bc`."""
    assert tag_id("ab", "c") != tag_id("a", "bc")


@given(st.sets(st.integers(0, 3 * BUCKET // BLOCK - 1)), st.integers(0, 4 * BUCKET) | st.none())
def test_buckets_of_chosen_blocks_hold_exactly_their_places(blocks: set[int], before: int | None) -> None:
    """Newest first, and nothing at or after the cursor a page ended with."""
    search = Search(ReceiptQuery(before=before))

    buckets = search.buckets_of(blocks)

    found = [cursor for bucket, places in buckets.items() for cursor in search.cursors(bucket, places, lambda _: 0)]
    assert found == sorted(
        (
            cursor
            for block in blocks
            for cursor in range(block * BLOCK, (block + 1) * BLOCK)
            if before is None or cursor < before
        ),
        reverse=True,
    )


def test_every_bucket_is_searched_without_a_time() -> None:
    """From the newest to the oldest; those after the cursor are left out."""
    assert list(Search(ReceiptQuery()).buckets(40, 100)) == [3, 2, 1]
    assert list(Search(ReceiptQuery(before=2 * BUCKET)).buckets(40, 100)) == [2, 1]
