"""State machines as registers: which state holds now, and what entering one writes.

Expiry is read, never scheduled: a state that ran out *is* its successor from that moment, whoever looks. The evaluator writes
the successor down before it judges the next fact.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from wardwright.history import RegisterValue
from wardwright.policy.rules import Machine, Window
from wardwright.policy.windows import Position


class Holding(NamedTuple):
    """The state that holds, since when, and the rule that put it there (empty: the machine itself)."""

    state: str
    since: Position
    by: str = ""
    lapsed: bool = False
    """It holds because another one ran out; nothing has been written about it yet."""
    heard: bool = False
    """It holds because another one ended with a word of the user; nothing has been written about it yet."""


def enter(
    machine: Machine,
    state: str,
    at: Position,
    window: Window | None = None,
    by: str = "",
    clean: bool = False,
    word: int | None = None,
    session: str = "",
) -> RegisterValue:
    """What to write when a machine enters a state. `clean`: it lasts until a turn passes without a reason to be in it; `word`:
    until the user of the session says one with a greater number (`session` is its key, where others share the machine)."""
    until_turn = None if window is None or window.turns is None else at.turn + window.turns
    until_event = None if window is None or window.events is None else at.event + window.events
    limits = [] if window is None or window.ms is None else [window.ms]
    own = machine.states[state].expires_ms
    if own is not None:
        limits.append(own)
    elif machine.expires_ms is not None and state != machine.initial_state:
        limits.append(machine.expires_ms)
    until_ms = at.ms + min(limits) if limits else None
    return (state, *at, until_turn, until_event, until_ms, by, clean, word, session)


def holding(machine: Machine, value: RegisterValue | None, at: Position, words: int = -1, session: str = "") -> Holding:
    """The state of a machine at `at`, when the last word of the session's user was number `words`."""
    if value is None:
        return Holding(machine.initial_state, Position(0, 0, 0))
    state, by, clean = cast("str", value[0]), cast("str", value[7]), value[8]
    since = Position(*cast("tuple[int, int, int]", value[1:4]))
    until_turn, until_event, until_ms = cast("tuple[int | None, int | None, int | None]", value[4:7])
    ran_out = (
        (until_turn is not None and at.turn > until_turn)
        or (until_event is not None and at.event > until_event)
        or (until_ms is not None and at.ms > until_ms)
        or (bool(clean) and at.turn - since.turn > 1)
    )
    if not ran_out:
        word = cast("int | None", value[9])
        if word is not None and words > word and value[10] in ("", session):
            return Holding(successor(machine, state), at, "", False, True)
        # CAUTION: another plan may have written a state that this one does not know. It holds all the same (`unknown`).
        return Holding(state, since, by)
    when = until_ms if until_ms is not None and at.ms > until_ms else at.ms
    passed: dict[str, int] = {}
    while True:
        state = successor(machine, state)
        life = machine.states[state].expires_ms
        if life is None and state != machine.initial_state:
            life = machine.expires_ms
        if state in passed:
            # They expire in a circle: whole rounds of it change nothing.
            when += (at.ms - when) // (when - passed[state]) * (when - passed[state])
            passed.clear()
        if life is None or when + life >= at.ms or state == machine.initial_state:
            break
        passed[state] = when
        when += life
    return Holding(state, Position(at.turn, at.event, when), "", True)


def successor(machine: Machine, state: str) -> str:
    """Where an expiring or cleared state goes."""
    known = machine.states.get(state)
    return (known.expires_to if known is not None else "") or machine.expires_to or machine.initial_state
