"""Patterns run in linear time, many at once, and a search that gives up is never taken for no match."""

from __future__ import annotations

import pytest

from wardwright.wire.linear import BadPattern, PatternSet, compile_pattern


def test_a_set_finds_each_pattern_with_its_own_case() -> None:
    """G11: one pass, case per pattern."""
    patterns = PatternSet([("secret", True), ("Secret", False), ("^a.c$", False)])
    assert [patterns.search(text) for text in ("SECRET", "a Secret", "abc", "none")] == [[0], [0, 1], [2], []]


def test_broken_unicode_is_searched_too() -> None:
    """G19: a lone surrogate hides nothing."""
    assert PatternSet([("secret", True)]).search("\ud800 secret") == [0]


def test_look_around_is_refused() -> None:
    """G10: what needs more than linear time is a bad pattern."""
    with pytest.raises(BadPattern, match="invalid perl operator"):
        compile_pattern("(?=a)b")


@pytest.mark.parametrize("answer", [[], None])
def test_a_set_that_gives_up_falls_back_to_single_searches(answer: list[int] | None) -> None:
    """G19: the answer of an engine that failed is not believed."""
    patterns = PatternSet([("secret", True), ("other", True)])

    class GivesUp:
        def Match(self, text: bytes) -> list[int] | None:
            return answer

    patterns._set = GivesUp()
    assert patterns.search("a SECRET") == [0]
    assert patterns.search_all(["none", "a SECRET"]) == {0}


@pytest.mark.parametrize("text", ["", "\n", "a\n", "a\r\n", "\x00", "\ud800", "a\u2028", "none\nneither\n"])
def test_no_end_of_a_text_is_taken_for_a_search_that_gave_up(text: str) -> None:
    """The pattern by which that is noticed occurs in every text, so only an engine that failed is asked again."""
    patterns = PatternSet([("secret", True), (r"\Asecret\z", True)])
    patterns._single.clear()  # nobody to ask again
    assert (patterns.search(text), patterns.search(f"secret{text}")[:1]) == ([], [0])


def test_an_open_quotation_stays_within_its_pattern() -> None:
    """G10: `\\Q` without an end quotes the rest of its own pattern and nothing of the others."""
    patterns = PatternSet([("first", True), (r"\Qsecret", True), (r"\Qa)b", False), ("last", True)])
    assert [patterns.search(text) for text in ("FIRST", "SECRET", "a)b", "A)B", "last")] == [[0], [1], [2], [], [3]]


@pytest.mark.heavy
def test_patterns_too_big_for_one_pass_are_tried_one_by_one() -> None:
    """G19: a set that cannot be built answers all the same."""
    big = [(rf"(?:\pL{{1,200}}\pN{{1,200}}){{1,2}}{number}", False) for number in range(5)]
    patterns = PatternSet([*big, ("secret", True)])
    assert patterns._set is None
    assert patterns.search("a SECRET") == [5]


@pytest.mark.parametrize(
    "patterns", [["a.b", "needle"], ["^needle", "a$"], [r"\bneedle\b", r"a\sb"], ["a*"], ["[^x]y"]]
)
def test_several_texts_have_the_hits_of_each(patterns: list[str]) -> None:
    """What is found in several texts is what is found in any one of them, and nothing that only begins in one and ends in another."""
    together = PatternSet([(pattern, False) for pattern in patterns])
    pieces = ["", "a", "b", "needle", "nee", "dle", "ba", "axb", "y", "a b", "\ud800"]
    hits = {piece: set(together.search(piece)) if piece else set[int]() for piece in pieces}
    for first in pieces:
        for second in pieces:
            assert together.search_all([first, second]) == hits[first] | hits[second]
