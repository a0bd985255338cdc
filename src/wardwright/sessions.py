"""Which session a request belongs to: the one whose calls its transcript holds, whatever its header says (G20).

Calls we let pass carry ids we know. A transcript that holds one joins that session; the header counts only for a transcript without
any, and a request with neither is a session of its own, so that leaving the header out escapes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wardwright.gates import Gates
from wardwright.history import scope_key
from wardwright.wire.turn import Caller, CallItem, ResultItem, Turn

REMEMBERED: Final = 50_000
"""Call ids whose session is known without asking the store."""
ALIKE: Final = 8
"""Sessions that are remembered with the same call id."""
SEPARATOR: Final = "\x1f"


class Sessions:
    """Remembers, within bounds, which session each call id belongs to; what it does not know it asks the store."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    async def join(self, caller: Caller, turn: Turn) -> Caller:
        """The caller, in the session its transcript belongs to; `session_id` is what the header said, or empty."""
        tenant = caller.tenant
        claimed = caller.session_id
        ids: dict[str, None] = {}
        for item in turn.items:
            if isinstance(item, CallItem):
                ids[item.id] = None
            elif isinstance(item, ResultItem):
                ids[item.call_id] = None
        ids.pop("", None)
        if ids:
            known = self._known
            sessions = {one: found for one in ids if (found := known.get((tenant, one))) is not None}
            unknown = [one for one in ids if one not in sessions]
            if unknown:
                for one, scope in (await self._gates.ask(self._gates.store.sessions_of, tenant, unknown)).items():
                    sessions[one] = (scope.split(SEPARATOR, 2)[2],)
                    self.remember(tenant, sessions[one][0], (one,))
            if sessions:
                if claimed and (
                    any(claimed in found for found in sessions.values())
                    or await self._gates.ask(self._passed, caller, tuple(sessions))
                ):
                    return caller
                # The newest call tells; a transcript grows at its end.
                joined = next(sessions[one][-1] for one in reversed(ids) if one in sessions)
                return replace(caller, session_id=joined, claimed_session_id=claimed)
        if claimed:
            return caller
        return replace(caller, session_id=f"ses_{os.urandom(12).hex()}")

    def _passed(self, caller: Caller, call_ids: Sequence[str]) -> bool:
        """Whether one of these calls passed in the session that is claimed too: some providers number their calls from 0 in every
        answer, and the newest session with such a call need not be this one."""
        scope = scope_key("session_id", caller)
        names = [f"c:{one}" for one in call_ids]
        ledger = self._gates.store.load((scope,), lambda _: names)[scope].ledger
        found = [one for one in call_ids if (entry := ledger.get(f"c:{one}")) is not None and entry.status == "passed"]
        self.remember(caller.tenant, caller.session_id, found)
        return bool(found)

    def remember(self, tenant: str, session_id: str, call_ids: Sequence[str]) -> None:
        """These calls have passed in this session."""
        known = self._known
        for one in call_ids:
            before = known.get((tenant, one), ())
            known[tenant, one] = (*(other for other in before if other != session_id), session_id)[-ALIKE:]
        while len(known) > REMEMBERED:
            del known[next(iter(known))]
