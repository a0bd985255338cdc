"""How values become columns, for every backend: keys, JSON, and a receipt's payload.

What callers choose (names, ids, scopes) is kept as bytes, because it may hold what a database's text type refuses. Nothing here
touches a database, and nothing is dropped: what was put in comes out equal.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, cast

import orjson
from immutables import Map

from wardwright import history
from wardwright.errors import StoreUnavailable
from wardwright.history import (
    EMPTY_LEDGER,
    EMPTY_REGISTERS,
    ChainLink,
    Head,
    LedgerEntry,
    ReceiptRow,
    RegisterKey,
    RegisterValue,
    ScopeDelta,
    ScopeState,
    body_hash,
    chain_hash,
)
from wardwright.store.postings import ID_TAG, TENANT_TAG
from wardwright.store.protocol import Checkpoint, StoredReceipt

try:
    # The same format in half the time; what one has written the other reads.
    from isal import isal_zlib

    fast: Any = isal_zlib
except ImportError:  # pragma: no cover
    fast = None

Tags = tuple[tuple[str, str], ...]
"""Filter names and values. Packed and indexed as `name=value`: no name has an equals sign."""

_HASH_DIGITS: Final = 64
_CALL_HASH: Final = struct.Struct("<q")
_WINDOW: Final = -13
_FIRST_DICTIONARY: Final = (
    b'[["kind","admin"],["kind","exchange"],["tenant",""],["application",""],["agent",""],["user",""],["session_id",""],'
    b'["run_id",""],["principal",""],["tool_namespace",""],["tool_name",""],["tool_phase","argument_repair"],["tool_phase",'
    b'"result_interpretation"],["tool_phase","planning"],["tool_risk_class","external_side_effect"],["tool_risk_class",'
    b'"irreversible"],["tool_risk_class","write"],["tool_risk_class","read_only"],["tool_source","tool_choice"],["tool_source",'
    b'"provider_event"],["tool_source","tool_result"],["tool_source","assistant_tool_call"],["tool_call_id",""],["rule",""],'
    b'["tool_policy_status","blocked"],["tool_policy_status","denied"],["tool_policy_status","passed"],["model",""],'
    b'["selected_model",""],["status","blocked"],["status","released"]]\n'
    b'{"admin":{"action":"","target":""},"at_ms":1700000000000,"caller":{"agent":"","application":"","principal":"","session_id":"",'
    b'"tenant":"","user":""},"decision":{"decision":"deny_call","gate":"reply","gates":[{"at_ms":1700000000000,"blocked_tools":[""],'
    b'"calls":[{"call_id":"","name":"","provider_id":"","rules":[""],"status":"allow"}],"candidates":[{"facts":[0],"rule_id":"",'
    b'"verdict":"no_match"},{"facts":[0,1],"rule_id":"","verdict":"matched"}],"conflicts":[{"message":"","rules":[]}],'
    b'"decision":"block","elapsed_us":30,"facts":[{"arguments_digest":"","confidence":"inferred","effects":[],'
    b'"execution_location":"client","name":"","namespace":"","ordinal":1,"phase":"result_interpretation","raw_name":"",'
    b'"repeat":false,"result_digest":"","result_status":"success","risk_class":"write","source":"tool_result","tool_call_id":"",'
    b'"trust":"untrusted","visibility_level":"remote_observed"},{"arguments_digest":"","confidence":"exact",'
    b'"execution_location":"client","name":"","namespace":"","ordinal":1,"phase":"planning","raw_name":"","repeat":false,'
    b'"result_status":"unknown","risk_class":"read_only","source":"assistant_tool_call","tool_call_id":"","trust":"untrusted",'
    b'"visibility_level":"remote_observed"}],"findings":[{"action":"annotate","call_id":"","effect":"deny_call","enforced":true,'
    b'"evidence":{"observed_count":1,"scope":"session_id","threshold":1},"facts":[0],"kind":"tool_selector","message":"",'
    b'"rule_id":""}],"gate":"request","notes":["unseen_prefix"],"phase":"planning","route":{"allowed":[""],"model":"","prefer":[""]},'
    b'"states":{"default":"active"}},{"at_ms":1700000000000,"decision":"allow","gate":"reply","target":""}],"message":"","rule_id":"",'
    b'"tool_context":{"available_tools":[{"name":"","namespace":"","risk_class":"read_only"}],"phase":"planning","primary_tool":'
    b'{"arguments_digest":""}},"tool_policy_selectors":[{"action":"block","id":"","kind":"tool_loop_threshold","matched":false,'
    b'"matcher":{"namespace":"","phase":"planning","risk_class":"write"},"status":"passed","target":null},{"action":"switch_model",'
    b'"id":"","kind":"tool_sequence","matched":true,"matcher":{"after":{"namespace":""}},"status":"routed","target":""}]},"final":'
    b'{"attempts":[{"elapsed_ms":10,"model":"","provider":"","status":"ok"}],"http_status":200,"provider_metadata":'
    b'{"wardwright_server_tools":[],"wardwright_tool_mediation":{}},"selected_model":"","status":"released","tool_policy":'
    b'{"observed_count":null,"rule_id":"","scope":"session_id","status":"passed","threshold":null},"usage":{"input_tokens":0,'
    b'"output_tokens":0,"price":0.0}},"id":"rcpt_","kind":"exchange","plan_hash":"","request":{"model":"","stream":false,'
    b'"tool_choice":{"mode":"auto"},"tool_context":{"phase":"planning"},"wire":"chat_completions"},"version":1}'
)
_DICTIONARY: Final = (
    b'"admin":{"action":"","details":{},"target":""},"approvals":[""],"binds_next":true,"blocked_tools":[""],"bundles":[""],'
    b'"captured":{},"claims":{"digest":"","trusted":false},"conflicts":[{"message":"","rules":[""]}],"controls":{},'
    b'"definition_hash":"","effects":[""],"error":"","marks":[""],"reask":true,"provider_metadata":{"wardwright_server_tools":[],'
    b'"wardwright_tool_mediation":{}},"withheld":[{"name":"","rules":[""]}],"argument_schema","argument_provenance",'
    b'"history_threshold","request_guard","route_gate","stream_guard","structured_output","budget","intent","require_approval",'
    b'"restrict_routes","inject_reminder","set_controls","alert_async","transition","transform","strip_tools","argument_repair",'
    b'"loop_governance","provider_attested","local_verified","opaque","timeout","rejected","error","blocked","failed",'
    b'"unavailable","routed","stripped","changed","alerted","lifted","observed","responses","anthropic"'
    b'["kind=admin","kind=exchange","tenant=","application=","agent=","user=","session_id=","run_id=","principal=",'
    b'"tool_namespace=","tool_name=","tool_phase=result_interpretation","tool_risk_class=read_only","tool_risk_class=unknown",'
    b'"tool_source=tool_result","tool_call_id=call_","tool_phase=planning","tool_source=assistant_tool_call",'
    b'"tool_call_id=call_","rule=","tool_policy_status=denied","tool_policy_status=passed","model=","selected_model=",'
    b'"status=released"]\n'
    b'{"at_ms":17,"caller":{"agent":"","application":"","principal":"anonymous","run_id":"","session_id":"","tenant":"",'
    b'"user":""},"decision":{"decision":"allow","gate":"reply","gates":[{"at_ms":17,"decision":"allow","elapsed_us":1,"facts":'
    b'[{"arguments_digest":"","confidence":"inferred","execution_location":"client","name":"","namespace":"","ordinal":1,'
    b'"phase":"result_interpretation","raw_name":"","repeat":false,"result_digest":"","result_status":"unknown","risk_class":'
    b'"read_only","source":"tool_result","tool_call_id":"call_","trust":"untrusted","visibility_level":"remote_observed"}],'
    b'"findings":[{"action":"annotate","call_id":"","effect":"deny_call","enforced":true,"evidence":{"observed_count":1,"scope":'
    b'"session_id","threshold":1},"facts":[0],"kind":"tool_selector","message":"","rule_id":""}],"gate":"request","notes":'
    b'["unseen_prefix"],"phase":"planning","route":{"allowed":[""],"model":"","prefer":[""]},"gate":"request","phase":'
    b'"result_interpretation","states":{"default":"active"}},{"at_ms":17,"calls":[{"call_id":"call_","name":"","provider_id":'
    b'"call_","rules":[""],"status":"deny_call"}],"candidates":[{"facts":[0],"rule_id":"","verdict":"matched"},{"facts":[0],'
    b'"rule_id":"","verdict":"no_match"}],"decision":"allow","elapsed_us":1,"facts":[{"arguments_digest":"","confidence":"exact",'
    b'"execution_location":"client","name":"","namespace":"","ordinal":1,"phase":"planning","raw_name":"","repeat":false,'
    b'"result_status":"unknown","risk_class":"unknown","source":"assistant_tool_call","tool_call_id":"call_","trust":"untrusted",'
    b'"visibility_level":"remote_observed"}],"gate":"reply","phase":"result_interpretation","states":{"default":"active"},'
    b'"target":""}],"message":"Tool  is not allowed here (rule \'\'). Use another tool, or ask the operator for an exception.",'
    b'"rule_id":"","tool_context":{"phase":"result_interpretation","primary_tool":{"arguments_digest":""},'
    b'"tool_policy_selectors":[{"action":"switch_model","id":"","kind":"tool_sequence","matched":true,"matcher":{"namespace":"",'
    b'"risk_class":"irreversible"},"status":"denied","target":""},{"action":"deny_call","id":"","kind":"tool_loop_threshold",'
    b'"matched":false,"matcher":{"name":"*"},"status":"passed","target":null}]},"final":{"attempts":[{"elapsed_ms":1,"model":"",'
    b'"provider":"","status":"answered"}],"http_status":200,"selected_model":"","status":"released","tool_policy":'
    b'{"observed_count":null,"rule_id":"","scope":"session_id","status":"denied","threshold":null},"tool_policy":{"status":'
    b'"passed"},"usage":{"input_tokens":1,"output_tokens":1,"price":0.0}},"id":"rcpt_0","kind":"exchange","plan_hash":"",'
    b'"request":{"model":"","stream":false,"tool_choice":{"mode":"auto"},"tool_context":{"available_tools":[{"name":"",'
    b'"namespace":"","raw_name":"","risk_class":"external_side_effect"},{"name":"","namespace":"unknown","raw_name":"",'
    b'"risk_class":"unknown"}],"phase":"result_interpretation","primary_tool":{"arguments_digest":""}},"wire":'
    b'"chat_completions"},"version":1}'
)
"""What receipts have in common: rare words, then tags and a body in their order, so that most of a receipt is a few long runs.
CAUTION: it is part of the format; a change needs a new first byte, and the dictionary of every earlier one kept for reading."""
_DICTIONARIES: Final = {1: _FIRST_DICTIONARY, 2: _DICTIONARY}
"""By the first byte of a payload."""
_DEFLATED: Final = b"\x02"
# A copy of one that knows the dictionary is cheaper than a new one; of the fast kind a new one is cheap, and none can be copied.
# Its lowest level needs half the time of the next one, for rows that are a fifth longer.
_deflater: Final[Callable[[], Any]] = (
    zlib.compressobj(3, zlib.DEFLATED, _WINDOW, 5, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY).copy
    if fast is None
    else partial(fast.compressobj, 0, zlib.DEFLATED, _WINDOW, 8, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY)
)
"""Knows the dictionary already. Little memory, for the processor's cache."""


_HEAD: Final[tuple[str, ...]] = (
    "turn",
    "event",
    "prefix_length",
    "prefix_digest",
    "text_rules",
    "text_hits",
    "surface_digest",
    "phase",
    "repairing",
    "last_ids",
    "bundles",
    "since_ms",
    "plan_hash",
    "plan_since_ms",
    "user_turns",
    "last_digest",
    "news_from",
    "news_turn",
    "asked_turn",
    "changed",
    "spoken",
    "words_from",
)
"""The fields of a head in the order they are written. CAUTION: it is part of the format; new ones go to its end."""
if Head._fields != _HEAD:
    raise TypeError("a head has fields that no store would keep, or in another order")


def key(text: str) -> bytes:
    """Text chosen by a caller, as a column. Lone surrogates and NUL survive."""
    return text.encode("utf-8", "surrogatepass")


def text(column: Any) -> str:
    return column.decode("utf-8", "surrogatepass")


def dump(value: Any) -> bytes:
    """JSON. The slow way for what the fast one refuses: lone surrogates, integers beyond 64 bits."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def load(column: Any) -> Any:
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
    """A small key for a large index, never 0; whoever finds a row by it compares the row itself."""
    plain = f"{tenant}\x1f{call_id}".encode("utf-8", "surrogatepass")
    return _CALL_HASH.unpack(hashlib.blake2b(plain, digest_size=8).digest())[0] or 1


def next_link(writer: str, sequence: int, previous: bytes | bytearray, receipt: ReceiptRow) -> ChainLink:
    """The link after the one with this sequence and hash."""
    before = previous.hex()
    hashed = chain_hash(writer, sequence + 1, before, receipt.id, receipt.at_ms, body_hash(receipt.body))
    return ChainLink(writer, sequence + 1, before, hashed)


def tenant_ranges(kinds: Iterable[str], tenant: str) -> list[tuple[bytes, bytes]]:
    """Where the keys of a tenant's scopes lie, one range per kind."""
    return [(prefix := key(f"{kind}\x1f{tenant}\x1f"), prefix_end(prefix)) for kind in kinds]


class ScopeColumns(NamedTuple):
    """What one `ScopeDelta` writes beside its head."""

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
    for name, entry in change.ledger.items():
        ledger.append((key(name), ruled_call(change.scope, name, entry), dump([*entry])))
    return ScopeColumns(registers, removed, ledger)


def ruled_call(scope: str, name: str, entry: LedgerEntry) -> int | None:
    """The hash by which `sessions_of` finds the call of this entry; None for what it must not find."""
    if entry.status == "observed" or not name.startswith("c:"):
        return None
    return call_hash(tenant_of(scope), name[2:])


def dump_head(at_ms: int, head: Head) -> bytes:
    """A scope's head, behind the time it was written."""
    return dump([at_ms, *head])


def load_head(column: Any) -> tuple[int, Head]:
    """What cannot be read is an outage."""
    try:
        values: list[Any] = load(column)
        if isinstance(values[1], dict):
            # The first stores named the fields.
            return values[0], history.load_head(cast("dict[str, Any]", values[1]))
        return values[0], history.load_head(dict(zip(_HEAD, values[1:], strict=False)))
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise StoreUnavailable(f"a scope cannot be read: {error}") from error


def scope_state(
    version: int, head: Head, registers: Iterable[tuple[Any, Any, Any]], ledger: Iterable[tuple[Any, Any]]
) -> ScopeState:
    """A scope as it was written. What cannot be read is an outage: an empty register would let pass what it should stop."""
    try:
        values: dict[RegisterKey, RegisterValue] = {
            (text(rule), text(sub)): tuple(load(value)) for rule, sub, value in registers
        }
        entries = {text(name): LedgerEntry(*load(entry)) for name, entry in ledger}
        return ScopeState(
            version,
            head,
            Map(values) if values else EMPTY_REGISTERS,
            Map(entries) if entries else EMPTY_LEDGER,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreUnavailable(f"a scope cannot be read: {error}") from error


def packed(receipt: ReceiptRow) -> tuple[list[str], bytes]:
    """A receipt's tags as they are indexed, and the payload: tags and body in one column, because together they deflate to less
    than the body alone would with tags beside it."""
    tags = receipt.joined
    if tags is None:
        tags = list(map("=".join, receipt.tags))
    deflater = _deflater()
    start = deflater.compress(b"%b\n%b" % (dump(tags), receipt.body))
    return tags, b"%b%b%b" % (_DEFLATED, start, deflater.flush())


def indexed_tags(receipt_id: bytes, scope: bytes, payload: Any) -> list[str]:
    """What a receipt is indexed by: its own tags, its id, and whose it is. An erased one by its id alone."""
    return [*erased_tags(scope, payload), f"{ID_TAG}={_shown(receipt_id)}"]


def tenant_tag(scope: str) -> str:
    return f"{TENANT_TAG}={tenant_of(scope)}"


def erased_tags(scope: bytes, payload: Any) -> list[str]:
    """What erasure takes out of the index: all but the id."""
    return [*_unpack_tags(payload), tenant_tag(_shown(scope))] if payload else []


def _unpack_tags(payload: Any) -> list[str]:
    """The tags alone: they come first, so the body need not be inflated."""
    try:
        inflater = zlib.decompressobj(_WINDOW, _DICTIONARIES[payload[0]])
        plain = inflater.decompress(memoryview(payload)[1:], 1024)
        while b"\n" not in plain and (more := inflater.decompress(inflater.unconsumed_tail, 16_384)):
            plain += more
        return load(plain[: plain.index(b"\n")])
    except (zlib.error, KeyError, ValueError, TypeError):
        return []


def dump_links(links: Iterable[ChainLink]) -> bytes:
    return dump([[link.writer, link.sequence, link.previous_hash, link.hash] for link in links])


def load_links(column: Any) -> tuple[ChainLink, ...]:
    """What cannot be read stands for nothing; the checkpoint's signature then fails."""
    try:
        return tuple(ChainLink(*link) for link in load(column))
    except (ValueError, TypeError):
        return ()


def erased_column(payload: Any, hashed: Any, vouch: Callable[[str], bytes]) -> bytes:
    """What stays of an erased body: its hash, and who vouches for its erasure."""
    return bytes.fromhex(body_hash(unpack(payload)[1])) + vouch(_hex(hashed))


def checkpoint(at_ms: int, heads: Any, signature: bytes, cut: Any, number: int, previous: bytes) -> Checkpoint:
    """A checkpoint from its columns."""
    return Checkpoint(at_ms, load_links(heads), signature, bool(cut), number, previous)


def check_cut(checkpoint: Checkpoint, allowed: Iterable[ChainLink]) -> None:
    """Retention cuts only where the checkpoint says, and only what is old enough."""
    ends = {link.writer: link for link in allowed}
    if not checkpoint.cut:
        raise ValueError("retention needs a checkpoint that is a cut")
    for link in checkpoint.heads:
        if ends.get(link.writer) != link:
            raise ValueError(f"the checkpoint does not end where {link.writer!r} may be cut")


def unpack(payload: Any) -> tuple[Tags, bytes]:
    """What `packed` made. Nothing at all for an erased payload or one that somebody damaged: `verify` tells them apart."""
    if not payload or not isinstance(payload, bytes):
        return (), b""
    try:
        inflater = zlib.decompressobj(_WINDOW, _DICTIONARIES[payload[0]])
        plain = inflater.decompress(payload[1:]) + inflater.flush()
        tags, body = plain.split(b"\n", 1)
        return tuple((name, value) for name, _, value in (tag.partition("=") for tag in load(tags))), body
    except (zlib.error, KeyError, ValueError, TypeError, AttributeError):
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
        "" if payload is not None else _hex(erased)[:_HASH_DIGITS],
        erased[_HASH_DIGITS // 2 :] if payload is None and isinstance(erased, bytes) else b"",
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
