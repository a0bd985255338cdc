"""Receipts in the order they were written, from a store or an NDJSON export; can be read any number of times.

Gives whole receipts as plain values. Erased ones are passed over: their chain holds, but nothing is left to read. Also what a
store remembers of one session, for a simulation to start from. Writes nothing but the store's own index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from wardwright import receipts
from wardwright.errors import WardwrightError
from wardwright.gateway import scopes_of
from wardwright.history import Head, Registers, ledger_keys
from wardwright.policy.compile import Plan
from wardwright.receipts import Receipt
from wardwright.store import ReceiptQuery, Store, StoredReceipt
from wardwright.wire.turn import Caller, Turn

_PAGE: Final = 500


class ArchiveUnreadable(WardwrightError, ValueError):
    """A file that is no export of receipts."""


class StoredArchive:
    """The receipts of a store. One session's when `session_id` is given; none from `until_ms` on."""

    def __init__(self, store: Store, *, session_id: str = "", until_ms: int | None = None) -> None:
        self._store = store
        self._session_id = session_id
        self._until_ms = until_ms

    def __iter__(self) -> Iterator[Receipt]:
        chains = (self._chain(link.writer) for link in self._store.heads())
        for stored in heapq.merge(*chains, key=lambda stored: stored.cursor):
            if not stored.row.body or (self._until_ms is not None and stored.row.at_ms >= self._until_ms):
                continue
            receipt = receipts.load(stored.row.body)
            if self._session_id in ("", receipt.get("caller", {}).get("session_id")):
                yield receipt

    def _chain(self, writer: str) -> Iterator[StoredReceipt]:
        after = 0
        while page := self._store.chain(writer, after, _PAGE):
            yield from page
            after = page[-1].link.sequence


class ExportedArchive:
    """The receipts of an NDJSON export, as `wardwright receipts export` writes it. Read whole: an export is a selection."""

    def __init__(self, path: str | PathLike[str], *, session_id: str = "", until_ms: int | None = None) -> None:
        self._receipts = [
            receipt
            for receipt in _exported(Path(path))
            if session_id in ("", receipt.get("caller", {}).get("session_id"))
            and (until_ms is None or receipt["at_ms"] < until_ms)
        ]

    def __iter__(self) -> Iterator[Receipt]:
        return iter(self._receipts)


class SessionUnknown(WardwrightError, LookupError):
    """A session that a store knows nothing of."""


def session_caller(store: Store, session_id: str) -> Caller:
    """Who a session belongs to, by its newest exchange. What an operator did to it has the operator's name."""
    asked = ReceiptQuery(tags={"session_id": (session_id,), "kind": ("exchange",)}, limit=1)
    for stored in store.receipts(asked).receipts:
        kept = receipts.load(stored.row.body)["caller"]
        return Caller(**{name: kept[name] for name in Caller.__dataclass_fields__ if name in kept})
    raise SessionUnknown(f"no session {session_id!r} in the store")


def session_registers(store: Store, plan: Plan, turns: Iterable[Turn], caller: Caller, key: bytes) -> Registers:
    """What the store remembers of a session, as far as ruling on these turns, whole or in part, may need it.

    The turns come after what is stored. `key` is the session's digest key; with another one, arguments that are equal to
    earlier ones are not known to be.
    """
    named = [replace(turn, caller=caller) for turn in turns]

    def wanted(_: Head) -> Iterator[str]:
        for turn in named:
            # A head that knows nothing asks for everything. A forced choice is known by the transcript it came with.
            forced = turn.tool_choice is not None and turn.tool_choice.mode == "tool"
            for end in range(1 if forced else len(turn.items), len(turn.items) + 1):
                yield from ledger_keys(replace(turn, items=turn.items[:end]), key, Head())
            yield from ledger_keys(replace(turn, gate="reply"), key, Head())

    scopes = dict.fromkeys(scope for turn in named for scope in scopes_of(plan, turn))
    return Registers(store.load(tuple(scopes), wanted), key)


def _exported(path: Path) -> list[Receipt]:
    lines: list[tuple[int, Receipt]] = []
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ArchiveUnreadable(f"{path}: cannot be read: {error.strerror or error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry: Any = receipts.load(line)
            if "erased_hash" in entry:
                continue
            receipt: Receipt = entry["receipt"]
            if not {"id", "kind", "at_ms"} <= receipt.keys():
                raise ValueError("no receipt")
            lines.append((int(entry["cursor"]), receipt))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ArchiveUnreadable(f"{path}:{number}: not a line of a receipts export") from None
    # An export is newest first.
    lines.sort(key=lambda line: line[0])
    return [receipt for _, receipt in lines]
