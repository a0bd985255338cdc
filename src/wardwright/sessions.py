"""Which session a request belongs to: the one whose calls its transcript holds, whatever its header says (G20).

Calls we let pass carry ids we know. A transcript that holds one joins that session; the header counts only for a transcript without
any, and a request with neither is a session of its own, so that leaving the header out escapes nothing. Some providers number their
calls from 0 in every answer, so an id alone is nobody's: the session must hold that very call, by name and arguments. Whoever changes
those could change the id as well, and is judged by the whole transcript then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

from wardwright.facts import digest, text_digest
from wardwright.gates import Gates
from wardwright.history import Head, goes_on, scope_key
from wardwright.wire.turn import Caller, CallItem, Item, ResultItem, Turn

REMEMBERED: Final = 50_000
"""Call ids whose session is known without asking the store …"""
FORGOTTEN: Final = 500
"""… and how many of the oldest are forgotten at a time."""
ALIKE: Final = 8
"""Sessions that are remembered with the same call id."""
COMPARED: Final = 16
"""Calls of a transcript, the newest first, that are looked for in one session …"""
SOUGHT: Final = 32
"""… and sessions in which they are, however many have such ids."""
SEPARATOR: Final = "\x1f"

Shown: TypeAlias = dict[str, CallItem | ResultItem]
"""By id: the call as the transcript shows it, or its result where it shows that alone."""


class Sessions:
    """Remembers, within bounds, which session each call id belongs to; what it does not know it asks the store."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    async def join(self, caller: Caller, turn: Turn) -> Caller:
        """The caller, in the session its transcript belongs to; `session_id` is what the header said, or empty."""
        claimed = caller.session_id
        if claimed:
            # As it usually is: the newest call passed in this session, and in no other.
            newest = _newest(turn.items)
            if newest is None or (newest and self._known.get((caller.tenant, newest)) == (claimed,)):
                return caller
        shown: dict[str, CallItem | ResultItem] = {}
        for item in turn.items:
            if isinstance(item, CallItem):
                shown[item.id] = item
            elif isinstance(item, ResultItem) and item.call_id not in shown:
                shown[item.call_id] = item
        shown.pop("", None)
        if shown:
            known, tenant = self._known, caller.tenant
            sessions = {one: found for one in shown if (found := known.get((tenant, one))) is not None}
            if len(sessions) < len(shown):
                unknown = [one for one in shown if one not in sessions]
                sessions.update(await self._gates.ask(self._stored, tenant, unknown))
            if sessions:
                # The newest call tells: a transcript grows at its end.
                newest = next(one for one in reversed(shown) if one in sessions)
                if claimed and sessions[newest] == (claimed,):
                    return caller
                joined = await self._gates.ask(self._found, caller, turn.items, shown, sessions)
                if joined is not None and joined != claimed:
                    return replace(caller, session_id=joined, claimed_session_id=claimed)
        if claimed:
            return caller
        return replace(caller, session_id=f"ses_{os.urandom(12).hex()}")

    def _stored(self, tenant: str, unknown: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The sessions of ids that are not remembered; of the newest such id all of them, of others the last one."""
        store = self._gates.store
        found: dict[str, tuple[str, ...]] = {
            one: (_named(scope),) for one, scope in store.sessions_of(tenant, unknown).items()
        }
        for one in [one for one in reversed(unknown) if one in found][:1]:
            found[one] = tuple(map(_named, reversed(store.sessions_alike(tenant, one, ALIKE)))) or found[one]
        for one, sessions in found.items():
            for session in sessions:
                self.remember(tenant, session, (one,))
        return found

    def _found(
        self, caller: Caller, items: Sequence[Item], shown: Shown, sessions: Mapping[str, tuple[str, ...]]
    ) -> str | None:
        """A session that holds a call of this transcript and that it goes on from; else the only one that holds one, as when a client
        has edited what it sends. None: there is none, or nobody can say which."""
        newest = [one for one in reversed(shown) if one in sessions]  # a transcript grows at its end
        near = dict.fromkeys([caller.session_id] if caller.session_id else [])
        near.update(dict.fromkeys(session for one in newest for session in reversed(sessions[one])))
        ids, holding = newest[:COMPARED], dict[str, int]()
        for session in self._candidates(caller.tenant, list(near)[:SOUGHT], ids[0]):
            state = self._holding(caller, session, shown, ids)
            if state is None:
                continue
            place, key, head = state
            # Sessions that are alike in every word are the same up to here: any will do, and who goes on otherwise finds the other.
            if len(holding) < ALIKE and goes_on(items, head, key):
                holding = {session: place}
                break
            holding[session] = place
        # Of a transcript that was put together from several the newest call tells.
        told = [session for session, place in holding.items() if place == min(holding.values())]
        if not told or (len(told) > 1 and told[0] != caller.session_id):
            return None
        self.remember(caller.tenant, told[0], ids[:1])
        return told[0]

    def _candidates(self, tenant: str, near: Sequence[str], call_id: str) -> Iterator[str]:
        """Sessions that have such an id: those that are known, then others that nobody has told this process of."""
        yield from near
        for scope in self._gates.store.sessions_alike(tenant, call_id, SOUGHT):
            if (session := _named(scope)) not in near:
                yield session

    def _holding(
        self, caller: Caller, session: str, shown: Shown, ids: Sequence[str]
    ) -> tuple[int, bytes, Head] | None:
        """Which of these calls a session's ledger has first as the transcript shows it, the session's digest key and its head."""
        scope = scope_key("session_id", replace(caller, session_id=session))
        names = [f"{kind}:{one}" for one in ids for kind in "cr"]
        for stored in (False, True):
            key, state = self._gates.recall(scope, names, stored=stored)
            for place, one in enumerate(ids):
                entry, item = state.ledger.get(f"c:{one}"), shown[one]
                if entry is None or entry.status == "observed":
                    continue
                if isinstance(item, CallItem):
                    same = entry.raw_name == item.name and entry.digest == digest(key, item.arguments)
                else:
                    result = state.ledger.get(f"r:{one}")
                    same = result is None or result.digest == text_digest(key, item.content)
                if same:
                    return place, key, state.head
        return None

    def remember(self, tenant: str, session_id: str, call_ids: Iterable[str]) -> None:
        """These calls have passed in this session."""
        known = self._known
        for one in call_ids:
            before = known.get((tenant, one))
            if before is None:
                known[tenant, one] = (session_id,)
            else:
                known[tenant, one] = (*(other for other in before if other != session_id), session_id)[-ALIKE:]
        if len(known) > REMEMBERED:
            # Many at once: a dict looks for its first entry among all that were taken out in front of it.
            for key in [*islice(known, len(known) - REMEMBERED + FORGOTTEN)]:
                del known[key]


def _newest(items: Sequence[Item]) -> str | None:
    """The id of the last call, if every result behind it answers a call that is shown. None: there are neither calls nor results.
    Empty: that takes a longer look."""
    if len(items) > 1 and type(last := items[-1]) is ResultItem:
        called = items[-2]
        if type(called) is CallItem and called.id == last.call_id:
            return called.id  # as most transcripts end
    newest = ""
    behind: set[str] = set()
    for item in reversed(items):
        if isinstance(item, CallItem):
            newest = newest or item.id
            behind.discard(item.id)
            if not behind:
                return newest
        elif isinstance(item, ResultItem) and not newest:
            behind.add(item.call_id)
    return "" if newest or behind else None


def _named(scope: str) -> str:
    return scope.split(SEPARATOR, 2)[2]
