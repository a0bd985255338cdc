"""The register of the last requests: what is put there is found, whatever stands beside it."""

from __future__ import annotations

import random

import orjson
import pytest

from wardwright.errors import GovernanceUnavailable
from wardwright.history import EMPTY_REGISTERS, Head, RegisterValue, ScopeState
from wardwright.history.requests import MAX_REQUESTS, REQUESTS, RequestRecord, answered, find, put

NAMES = [f"{number:032x}" for number in range(40)]


def _records(chance: random.Random) -> list[RequestRecord]:
    """Up to forty of them; a register has only short ones, or some that are longer."""
    longer = chance.choice((0.0, 0.1, 0.7))

    def words() -> tuple[str, ...]:
        return tuple(chance.choices([*NAMES, "read_file"], k=chance.randrange(4))) if chance.random() < longer else ()

    return [
        RequestRecord(
            chance.choice(NAMES),
            turn=chance.randrange(12),
            news_from=chance.randrange(12),
            flags=chance.randrange(4),
            words=chance.randrange(12),
            bundles=words(),
            repairing=words(),
            stripped=words() * 2,
        )
        for _ in range(chance.randrange(41))
    ]


def _session(value: RegisterValue | None, turn: int) -> ScopeState:
    registers = EMPTY_REGISTERS if value is None else EMPTY_REGISTERS.set(REQUESTS, value)
    return ScopeState(1, Head(turn=turn), registers)


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_of_every_name_are_kept_up_to_the_cap(seed: int) -> None:
    """The register is a list of records in which the newest stands last, and the oldest beyond the cap are gone."""
    value: RegisterValue | None = None
    kept: list[RequestRecord] = []
    for record in _records(random.Random(seed)):
        value = put(value, record)
        kept = [*(other for other in kept if other.name != record.name), record][-MAX_REQUESTS:]
        value = tuple(orjson.loads(orjson.dumps(value)))  # as a store gives it back
    for name in NAMES:
        assert find(value, name) == next((record for record in kept if record.name == name), None)
    for turn in range(13):
        assert answered(_session(value, turn), "") == ([record for record in kept if record.turn == turn] or kept[-1:])


def test_a_tool_named_like_a_request_is_not_taken_for_it() -> None:
    """Callers choose the names of tools, and may have seen the names of requests in a receipt."""
    value = put(None, RequestRecord("a" * 32, 1, repairing=("b" * 32,), stripped=("c" * 32, "rule")))
    value = put(value, RequestRecord("d" * 32, 1))
    assert find(value, "b" * 32) is None
    assert find(value, "c" * 32) is None
    with pytest.raises(GovernanceUnavailable, match="no longer known"):
        answered(_session(value, 1), "b" * 32)
