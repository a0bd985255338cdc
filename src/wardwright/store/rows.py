"""How values become columns, for every backend: keys, JSON, and a receipt's payload.

What callers choose (names, ids, scopes) is kept as bytes, because it may hold what a database's text type refuses. Nothing here
touches a database, and nothing is dropped: what was put in comes out equal.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson
from immutables import Map

from wardwright.errors import StoreUnavailable
from wardwright.history import (
    EMPTY_LEDGER,
    EMPTY_REGISTERS,
    ChainLink,
    LedgerEntry,
    ReceiptRow,
    RegisterKey,
    RegisterValue,
    ScopeDelta,
    ScopeState,
    body_hash,
    chain_hash,
    dump_head,
    load_head,
)
from wardwright.store.postings import TENANT_TAG
from wardwright.store.protocol import Checkpoint, StoredReceipt

Tags = tuple[tuple[str, str], ...]

_DEFLATED: Final = 1
_WINDOW: Final = -13
"""A small window: making a deflater for the usual one costs more than deflating a receipt."""
DICTIONARY: Final = b"TODO"


def key(text: str) -> bytes:
    """Text chosen by a caller, as a column. Lone surrogates and NUL survive."""
    return text.encode("utf-8", "surrogatepass")


def text(column: bytes) -> str:
    return column.decode("utf-8", "surrogatepass")


def dump(value: Any) -> bytes:
    """JSON. The slow way for what the fast one refuses: lone surrogates, integers beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def load(column: bytes | str) -> Any:
    try:
        return orjson.loads(column)
    except orjson.JSONDecodeError:
        return json.loads(column)


def tenant_of(scope: str) -> str:
    """A scope's key is kind, tenant and value; every scope belongs to one tenant."""
    parts = scope.split("\x1f", 2)
    return parts[1] if len(parts) > 1 else ""


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that start with `prefix`."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def call_hash(tenant: str, call_id: str) -> int:
    """A small key for a large index; whoever finds a row by it compares the row itself."""
    plain = key(f"{tenant}\x1f{call_id}")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "little", signed=True)


def next_link(writer: str, sequence: int, previous: bytes, receipt: ReceiptRow) -> ChainLink:
    """The link after the one with this sequence and hash."""
    before = previous.hex()
    hashed = chain_hash(writer, sequence + 1, before, receipt.id, receipt.at_ms, body_hash(receipt.body))
    return ChainLink(writer, sequence + 1, before, hashed)


def tenant_ranges(kinds: Iterable[str], tenant: str) -> list[tuple[bytes, bytes]]:
    """Where the keys of a tenant's scopes lie, one range per kind."""
    return [(prefix := key(f"{kind}\x1f{tenant}\x1f"), prefix_end(prefix)) for kind in kinds]


class ScopeColumns(NamedTuple):
    """What one `ScopeDelta` writes."""

    scope: bytes
    head: bytes
    registers: list[tuple[bytes, bytes, bytes]]
    """rule key, sub-key, value"""
    removed: list[tuple[bytes, bytes]]
    ledger: list[tuple[bytes, int | None, bytes]]
    """key, hash of the call (only of one that `sessions_of` must find), entry"""


def scope_columns(change: ScopeDelta) -> ScopeColumns:
    registers: list[tuple[bytes, bytes, bytes]] = []
    removed: list[tuple[bytes, bytes]] = []
    for (rule, sub), value in change.registers.items():
        if value is None:
            removed.append((key(rule), key(sub)))
        else:
            registers.append((key(rule), key(sub), dump(value)))
    ledger: list[tuple[bytes, int | None, bytes]] = []
    if change.ledger:
        tenant = tenant_of(change.scope)
        for name, entry in change.ledger.items():
            found = call_hash(tenant, name[2:]) if entry.status != "observed" and name.startswith("c:") else None
            ledger.append((key(name), found, dump(list(entry))))
    return ScopeColumns(key(change.scope), dump(dump_head(change.head)), registers, removed, ledger)


def scope_state(
    version: int, head: bytes, registers: Iterable[tuple[bytes, bytes, bytes]], ledger: Iterable[tuple[bytes, bytes]]
) -> ScopeState:
    """A scope as it was written. What cannot be read is an outage: an empty register would let pass what it should stop."""
    try:
        values: dict[RegisterKey, RegisterValue] = {
            (text(rule), text(sub)): tuple(load(value)) for rule, sub, value in registers
        }
        entries = {text(name): LedgerEntry(*load(entry)) for name, entry in ledger}
        return ScopeState(
            version,
            load_head(load(head)),
            Map(values) if values else EMPTY_REGISTERS,
            Map(entries) if entries else EMPTY_LEDGER,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreUnavailable(f"a scope cannot be read: {error}") from error


def pack(tags: Tags, body: bytes) -> bytes:
    """Tags and body of a receipt in one column; together they deflate to less than the body alone would with tags beside it."""
    plain = dump(tags) + b"\n" + body
    deflater = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, 6, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return bytes((_DEFLATED,)) + deflater.compress(plain) + deflater.flush()


def indexed_tags(scope: bytes, payload: bytes | None) -> Tags:
    """The tags to index of a stored receipt: its own, and whose it is. None for an erased one."""
    if not payload:
        return ()
    return (*unpack(payload)[0], (TENANT_TAG, tenant_of(_shown(scope))))


def dump_links(links: Iterable[ChainLink]) -> bytes:
    return dump([[link.writer, link.sequence, link.previous_hash, link.hash] for link in links])


def load_links(column: bytes) -> tuple[ChainLink, ...]:
    """What cannot be read stands for nothing; the checkpoint's signature then fails."""
    try:
        return tuple(ChainLink(*link) for link in load(column))
    except (ValueError, TypeError):
        return ()


def check_cut(checkpoint: Checkpoint, allowed: Iterable[ChainLink]) -> None:
    """Retention cuts only where the checkpoint says, and only what is old enough."""
    ends = {link.writer: link for link in allowed}
    if not checkpoint.cut:
        raise ValueError("retention needs a checkpoint that is a cut")
    for link in checkpoint.heads:
        if ends.get(link.writer) != link:
            raise ValueError(f"the checkpoint does not end where {link.writer!r} may be cut")


def unpack(payload: Any) -> tuple[Tags, bytes]:
    """What `pack` packed. Nothing at all for an erased payload or one that somebody damaged: `verify` tells them apart."""
    if not payload or not isinstance(payload, bytes):
        return (), b""
    try:
        if payload[0] != _DEFLATED:
            return (), b""
        inflater = zlib.decompressobj(_WINDOW, DICTIONARY)
        plain = inflater.decompress(payload[1:]) + inflater.flush()
        tags, body = plain.split(b"\n", 1)
        return tuple((name, value) for name, value in load(tags)), body
    except (zlib.error, ValueError, TypeError):
        return (), b""


def stored_receipt(
    cursor: int,
    writer: str,
    sequence: int,
    receipt_id: Any,
    at_ms: int,
    previous_hash: Any,
    hashed: Any,
    scope: Any,
    erased: Any,
    payload: Any,
) -> StoredReceipt:
    """A receipt from its columns. Whatever somebody put into them, it can be shown to `verify`, which then says so."""
    tags, body = unpack(payload)
    return StoredReceipt(
        ReceiptRow(_shown(receipt_id), at_ms, _shown(scope), body, tags),
        ChainLink(writer, sequence, _hex(previous_hash), _hex(hashed)),
        cursor,
        "" if payload is not None else _hex(erased),
    )


def _shown(column: Any) -> str:
    if not isinstance(column, bytes):
        return repr(column)
    try:
        return text(column)
    except UnicodeDecodeError:
        return column.decode("utf-8", "backslashreplace")


def _hex(column: Any) -> str:
    return column.hex() if isinstance(column, bytes) else ""
