"""The register of the last requests: what is put there is found, whatever stands beside it."""

from __future__ import annotations

import random

import orjson
import pytest

from wardwright.errors import GovernanceUnavailable
from wardwright.facts import PHASES
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
            news_turn=chance.randrange(12),
            words=chance.randrange(12),
            first_word=chance.randrange(12),
            phase=chance.choice((*PHASES, "of another day")),
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
        assert [*answered(_session(value, turn), "")] == (
            [record for record in kept if record.turn == turn] or kept[-1:]
        )


def test_a_tool_named_like_a_request_is_not_taken_for_it() -> None:
    """Callers choose the names of tools, and may have seen the names of requests in a receipt."""
    value = put(None, RequestRecord("a" * 32, 1, repairing=("b" * 32,), stripped=("c" * 32, "rule")))
    value = put(value, RequestRecord("d" * 32, 1))
    assert find(value, "b" * 32) is None
    assert find(value, "c" * 32) is None
    with pytest.raises(GovernanceUnavailable, match="no longer known"):
        answered(_session(value, 1), "b" * 32)


def test_sixteen_usual_records_fit_in_one_page_of_a_store() -> None:
    """SQLite keeps about a thousand bytes of a row in its page; what is longer takes a page of its own with every request."""
    value: RegisterValue | None = None
    for number in range(200, 230):
        record = RequestRecord(
            f"{number:032x}", number, 4 * number, number, 3, number, number - 1, "result_interpretation"
        )
        value = put(value, record)
    assert len(orjson.dumps(value)) < 960


FIRST_FORM: RegisterValue = (
    *(10, "a" * 32, 3, 7, 2, 1, 4, 3, "result_interpretation", 0, 0),
    *(15, "b" * 32, 4, 9, 4, 2, 5, 5, "planning", 1, "kit", 2, "read", "write", "shell", "no-shell"),
    *(10, "c" * 32, 4, 9, 4, 0, 6, 6, "unknown", 0, 0),
)
FIRST_RECORDS = [
    RequestRecord("a" * 32, 3, 7, 2, 1, 4, 3, "result_interpretation"),
    RequestRecord("b" * 32, 4, 9, 4, 2, 5, 5, "planning", ("kit",), ("read", "write"), ("shell", "no-shell")),
    RequestRecord("c" * 32, 4, 9, 4, 0, 6, 6, "unknown"),
]


@pytest.mark.parametrize("records", [FIRST_RECORDS, FIRST_RECORDS[::2]], ids=["mixed", "short"])
def test_a_register_of_the_first_form_is_read(records: list[RequestRecord]) -> None:
    """Sessions that a store kept in it go on: each record is found, as the one of its name or as one that still waits."""
    value = FIRST_FORM if len(records) == 3 else (*FIRST_FORM[:11], *FIRST_FORM[-11:])
    assert [find(value, record.name) for record in records] == records
    assert find(value, "kit") is None
    assert [*answered(_session(value, 4), "")] == records[1:]
    assert [*answered(_session(value, 9), "")] == records[-1:]


def test_a_register_of_the_first_form_is_written_in_the_new_one() -> None:
    """What was kept stays, in its order, beside the new record."""
    newest = RequestRecord("a" * 32, 5, 11, 5)
    value = put(FIRST_FORM, newest)
    made: RegisterValue | None = None
    for record in (*FIRST_RECORDS[1:], newest):
        made = put(made, record)
    assert value == made


def test_the_numbers_of_phases_stay() -> None:
    """They stand in stored registers."""
    texts = [str(put(None, RequestRecord("a" * 32, 1, phase=phase))[1]) for phase in PHASES]
    assert texts == [f"[1,0,1,0,0,0,{number}]" for number in range(5)]
