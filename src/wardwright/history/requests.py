"""The last requests of a session that passed: what the reply to each is judged by, whatever other requests came in between.

One register of the session holds them, oldest first, so their number is small and fixed. A request is named by the digest of
its transcript. A reply to a request that is no longer known is never guessed at: it does not pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from wardwright.errors import GovernanceUnavailable
from wardwright.history.ledger import RegisterKey, RegisterValue, ScopeState

REQUESTS: Final[RegisterKey] = ("request", "")
MAX_REQUESTS: Final = 16
"""Requests remembered per session."""
MAX_STRIPPED: Final = 256
"""Names remembered per request. A request that lost more tools than that counts as having lost them all."""
MAX_REPAIRING: Final = 64
"""Tools remembered as having failed. Beyond them every tool counts as being repaired."""
MAX_NAME: Final = 256
"""Length of a name that is remembered; a longer one stands for every tool."""
EVERY_TOOL: Final = "*"

BOUND_BY_REPLY: Final = 1
"""Flag: routes that an earlier reply asked for held for it."""
CHANGED_TOOLS: Final = 2
"""Flag: it declared tools whose definition had changed."""


Fields: TypeAlias = tuple[str, int, int, int, int, int, int, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Those of a `RequestRecord`."""


class RequestRecord(NamedTuple):
    """What is kept of one request that passed."""

    name: str
    """Digest of its transcript."""
    turn: int
    """Of the session when it passed: no reply has been released since while that is still the turn."""
    news_from: int = 0
    """Where the items began that no released reply had answered …"""
    news_turn: int = 0
    """… and the turn since which they had come."""
    flags: int = 0
    words: int = 0
    """Number of the user's last word in it: what that ends has ended when a reply to it is released …"""
    first_word: int = 0
    """… and of the first."""
    phase: str = "planning"
    bundles: tuple[str, ...] = ()
    repairing: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()
    """Pairs: the raw name of a tool the provider did not see, and the id of the rule that took it away."""


def capped(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of tools that failed, as they are kept: few and short, or one word for all tools."""
    if len(names) > MAX_REPAIRING or any(len(name) > MAX_NAME for name in names):
        return (EVERY_TOOL,)
    return names


def find(value: RegisterValue | None, name: str) -> RequestRecord | None:
    """The record of that name."""
    if value is None or (start := _start(value, name)) is None:
        return None
    return _unpack(value, start)


def put(value: RegisterValue | None, record: Fields) -> RegisterValue:
    """The register with this record as the newest; the oldest beyond the cap is forgotten."""
    *head, bundles, repairing, stripped = record
    newest = (*head, len(bundles), *bundles, len(repairing), *repairing, *stripped)
    newest = (len(newest), *newest)
    kept: Any = value or ()
    start = _start(kept, record[0])
    if start is not None:
        kept = kept[:start] + kept[start + 1 + kept[start] :]
    if len(kept) >= _STEP * MAX_REQUESTS and len(starts := _starts(kept)) >= MAX_REQUESTS:
        kept = kept[starts[1 - MAX_REQUESTS] :]
    return kept + newest


def answered(session: ScopeState, name: str) -> list[RequestRecord]:
    """The requests that a reply may answer, the likeliest last: the named one; without a name all that still wait for a
    reply, or the last one. Empty: the session has none."""
    value = session.registers.get(REQUESTS)
    if name:
        record = find(value, name)
        if record is None:
            raise GovernanceUnavailable("The request that this answers is no longer known. Send it again.")
        return [record]
    if value is None:
        return []
    starts, turn = _starts(value), session.head.turn
    return [_unpack(value, at) for at in starts if value[at + 2] == turn] or [_unpack(value, starts[-1])]


# In the register every record stands behind its length. They are looked at in place, and only one that is asked for is unpacked.

_LENGTH: Final = 10
"""Scalars of a record without bundles and names, as nearly all of them are: the least a record has …"""
_STEP: Final = 11
"""… and with its length before it. If what stands at every such step is that length, each record begins where one ends."""


def _starts(value: RegisterValue) -> Sequence[int]:
    """Where the records begin, oldest first."""
    if value[::_STEP].count(_LENGTH) * _STEP == len(value):
        return range(0, len(value), _STEP)
    flat: Any = value
    starts = [0]
    while (start := starts[-1] + 1 + flat[starts[-1]]) < len(flat):
        starts.append(start)
    return starts


def _start(value: RegisterValue, name: str) -> int | None:
    """Where the record of that name begins."""
    if value[::_STEP].count(_LENGTH) * _STEP == len(value):
        names = value[1::_STEP]
        return names.index(name) * _STEP if name in names else None
    return next((start for start in _starts(value) if value[start + 1] == name), None)


def _unpack(value: RegisterValue, start: int) -> RequestRecord:
    flat: Any = value
    end = start + 1 + flat[start]
    if end == start + _STEP:
        return RequestRecord._make((*flat[start + 1 : start + 9], (), (), ()))
    bundles = start + 10 + flat[start + 9]
    repairing = bundles + 1 + flat[bundles]
    parts = flat[start + 10 : bundles], flat[bundles + 1 : repairing], flat[repairing:end]
    return RequestRecord._make((*flat[start + 1 : start + 9], *parts))
