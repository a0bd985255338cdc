"""The last requests of a session that passed: what the reply to each is judged by, whatever other requests came in between.

One register of the session holds them, oldest first, so their number is small and fixed. A request is named by the digest of
its transcript. A reply to a request that is no longer known is never guessed at: it does not pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

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
    if value is None or name not in value:
        return None
    return next((_unpack(fields) for fields in _stored(value) if fields[0] == name), None)


def put(value: RegisterValue | None, record: Fields) -> RegisterValue:
    """The register with this record as the newest; the oldest beyond the cap is forgotten."""
    *head, bundles, repairing, stripped = record
    newest = (*head, len(bundles), *bundles, len(repairing), *repairing, *stripped)
    kept = [fields for fields in _stored(value) if fields[0] != record[0]]
    return tuple([scalar for one in (*kept[1 - MAX_REQUESTS :], newest) for scalar in (len(one), *one)])


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
    # Most of them have been answered: those are not even taken apart.
    flat, turn = cast("tuple[Any, ...]", value), session.head.turn
    found: list[RequestRecord] = []
    start = end = 0
    while end < len(flat):
        start, end = end, end + 1 + flat[end]
        if flat[start + 2] == turn:
            found.append(_unpack(flat[start + 1 : end]))
    return found or [_unpack(flat[start + 1 : end])]


def _stored(value: RegisterValue | None) -> Iterator[RegisterValue]:
    """The records as they are kept, oldest first: each behind its length. Most are only looked at, so none is unpacked here."""
    flat = cast("tuple[Any, ...]", value or ())
    at = 0
    while at < len(flat):
        end = at + 1 + flat[at]
        yield flat[at + 1 : end]
        at = end


def _unpack(fields: RegisterValue) -> RequestRecord:
    bundles = 9 + cast("int", fields[8])
    repairing = bundles + 1 + cast("int", fields[bundles])
    head = cast("tuple[str, int, int, int, int, int, int, str]", fields[:8])
    words = cast("tuple[str, ...]", fields)
    return RequestRecord(*head, words[9:bundles], words[bundles + 1 : repairing], words[repairing:])
