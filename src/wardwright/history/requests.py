"""The last requests of a session that passed: what the reply to each is judged by, whatever other requests came in between.

One register of the session holds them, oldest first, so their number is small and fixed. A request is named by the digest of
its transcript. A reply to a request that is no longer known is never guessed at: it does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import orjson

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


_record: Callable[[type[RequestRecord], tuple[Any, ...]], RequestRecord] = cast("Any", tuple).__new__
"""Makes a record of all its fields in half the time; every reply makes one."""


def capped(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of tools that failed, as they are kept: few and short, or one word for all tools."""
    if len(names) > MAX_REPAIRING or any(len(name) > MAX_NAME for name in names):
        return (EVERY_TOOL,)
    return names


def find(value: RegisterValue | None, name: str) -> RequestRecord | None:
    """The record of that name."""
    if value is None:
        return None
    kept = value if isinstance(value[0], str) else _rewritten(value)
    if kept[-2] == name:  # as mostly, when a reply is judged
        return _unpack(name, kept[-1])
    names = kept[::2]
    return _unpack(name, kept[2 * names.index(name) + 1]) if name in names else None


def put(value: RegisterValue | None, record: Fields, new: bool = False) -> RegisterValue:
    """The register with this record as the newest; the oldest beyond the cap is forgotten. `new`: `find` has found none of its name."""
    name = record[0]
    if value is None:
        return (name, _pack(record))
    kept = value if isinstance(value[0], str) else _rewritten(value)
    if not new and name in (names := kept[::2]):
        at = 2 * names.index(name)
        kept = kept[:at] + kept[at + 2 :]
    last = name, _pack(record)
    return kept[_OTHERS:] + last


def answered(session: ScopeState, name: str) -> tuple[RequestRecord, ...]:
    """The requests that a reply may answer, the likeliest last: the named one; without a name all that still wait for a
    reply, or the last one. Empty: the session has none."""
    _, head, registers, _ = session
    value = registers.get(REQUESTS)
    if name:
        record = find(value, name)
        if record is None:
            raise GovernanceUnavailable("The request that this answers is no longer known. Send it again.")
        return (record,)
    if value is None:
        return ()
    kept: Any = value if isinstance(value[0], str) else _rewritten(value)
    waiting = f"[{head.turn},"
    records = zip(kept[::2], kept[1::2], strict=True)
    found = [_unpack(one, text) for one, text in records if text.startswith(waiting)]
    return tuple(found) if found else (_unpack(*kept[-2:]),)


# The register is a name and a JSON array for every record. It is written with every request, so it is kept short: sixteen records
# of the usual length stay below the thousand bytes that SQLite holds in one page.

_OTHERS: Final = 2 - 2 * MAX_REQUESTS
"""From here on are those that stay beside a new one."""
_PHASES: Final[tuple[str, ...]] = ("planning", "argument_repair", "result_interpretation", "loop_governance", "unknown")
"""By the number that is stored for them: a new one goes to the end."""
_NUMBERS: Final[Mapping[str, int]] = {phase: number for number, phase in enumerate(_PHASES)}
_MAX_READ: Final = 1024
_read: dict[str, tuple[Any, ...]] = {}
"""Records of nothing but numbers, as they are stored → what they say: the same few come again and again, in all sessions."""


def _pack(record: Fields) -> str:
    """All but the name. The turn comes first; bundles and tools only if there are any, as there are in few records."""
    _, turn, news_from, news_turn, flags, words, first_word, phase, bundles, repairing, stripped = record
    fields = (turn, news_from, turn - news_turn, flags, words, words - first_word, _NUMBERS.get(phase, phase))
    if bundles or repairing or stripped:
        return orjson.dumps((*fields, bundles, repairing, stripped)).decode()
    return orjson.dumps(fields).decode()


def _unpack(name: str, text: Any) -> RequestRecord:
    known = _read.get(text)
    if known is not None:
        return _record(RequestRecord, (name,) + known)  # noqa: RUF005 - the other way makes a list first
    kept: list[Any] = orjson.loads(text)
    if len(kept) == 7:
        turn, news_from, news_age, flags, words, more_words, phase = kept
        bundles = repairing = stripped = ()
    else:
        turn, news_from, news_age, flags, words, more_words, phase, *names = kept
        bundles, repairing, stripped = map(tuple, names)
    plain = isinstance(phase, int)
    if plain:
        phase = _PHASES[phase]
    fields = (turn, news_from, turn - news_age, flags, words, words - more_words, phase, bundles, repairing, stripped)
    if plain and len(kept) == 7:
        if len(_read) >= _MAX_READ:
            _read.clear()
        _read[text] = fields
    return _record(RequestRecord, (name, *fields))


def _rewritten(value: RegisterValue) -> RegisterValue:
    """A register of the first form, in which a record was its length and its fields, in today's."""
    flat: Any = value
    kept: list[str] = []
    start = 0
    while start < len(flat):
        end = start + 1 + flat[start]
        bundles = start + 10 + flat[start + 9]
        repairing = bundles + 1 + flat[bundles]
        names = flat[start + 10 : bundles], flat[bundles + 1 : repairing], flat[repairing:end]
        kept += flat[start + 1], _pack((*flat[start + 1 : start + 9], *names))
        start = end
    return tuple(kept)
