"""What a reply used is known or unknown, never guessed to be nothing: budgets are settled by it (G11)."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.wire import Usage, anthropic, chat_completions, responses


def chat(usage: Any) -> Usage | None:
    return chat_completions.parse_reply({"model": "m", "choices": [], "usage": usage}).usage


def items(usage: Any) -> Usage | None:
    return responses.parse_reply({"model": "m", "output": [], "usage": usage}).usage


def messages(usage: Any) -> Usage | None:
    return anthropic.parse_reply({"model": "m", "content": [], "usage": usage}).usage


WIRES = [
    (chat, "prompt_tokens", "completion_tokens"),
    (items, "input_tokens", "output_tokens"),
    (messages, "input_tokens", "output_tokens"),
]


@pytest.mark.parametrize(("parse", "read", "wrote"), WIRES)
@pytest.mark.parametrize(
    "value", [None, "900", -5, 1.5, True, [900], 2**53, 1e300], ids=lambda value: type(value).__name__ + str(value)
)
def test_a_count_that_cannot_be_read_leaves_the_usage_unknown(parse: Any, read: str, wrote: str, value: Any) -> None:
    """Text, fractions, negative and missing counts are no count, and the other count alone is not what was used."""
    assert parse({read: value, wrote: 5}) is None
    assert parse({read: 5, wrote: value}) is None


@pytest.mark.parametrize(("parse", "read", "wrote"), WIRES)
def test_a_reply_that_used_nothing_is_not_believed(parse: Any, read: str, wrote: str) -> None:
    """No reply costs nothing: two zeros, nothing at all or only a total are unknown."""
    assert [parse(usage) for usage in ({read: 0, wrote: 0}, {}, {"total_tokens": 910}, None, 7)] == [None] * 5


@pytest.mark.parametrize(("parse", "read", "wrote"), WIRES)
def test_whole_numbers_are_counts_however_they_are_written(parse: Any, read: str, wrote: str) -> None:
    """`900.0` is nine hundred, and an empty answer is an answer."""
    assert parse({read: 900.0, wrote: 0}) == Usage(900, 0)


def test_cached_tokens_may_be_missing_but_not_unreadable() -> None:
    """Anthropic counts tokens of the cache apart; they are read tokens like the others."""
    counts = {"input_tokens": 1, "output_tokens": 2}
    assert messages({**counts, "cache_read_input_tokens": 4, "cache_creation_input_tokens": None}) == Usage(5, 2)
    assert messages({**counts, "cache_read_input_tokens": "4"}) is None


@pytest.mark.parametrize(("parse", "read", "wrote"), WIRES)
def test_what_only_the_total_counts_was_used_too(parse: Any, read: str, wrote: str) -> None:
    """G11: providers that count thinking in the total alone are charged for it; a total that says less takes nothing away."""
    counts = {read: 10, wrote: 5}
    assert [parse({**counts, "total_tokens": total}) for total in (900, 3)] == [Usage(10, 890), Usage(10, 5)]
