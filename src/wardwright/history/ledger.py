"""What the engine remembers of a scope: ledger, registers and head, as plain values; and `Delta`, what one gate changes.

The ledger says which calls and results passed here and how we ruled; it is the truth, a transcript only a claim. A register is
what one rule keeps for one scope, keyed by the rule's content, so that it survives a change of plan. Everything is immutable:
`apply` makes the next value, an overlay for a simulation is simply the value you hold. Nothing here reads time, and nothing
costs more as a scope grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from immutables import Map

from wardwright.errors import WireError
from wardwright.facts import ToolFact
from wardwright.wire.turn import Caller

ScopeKind: TypeAlias = Literal["session_id", "run_id", "agent", "user", "application", "tenant"]
SCOPE_KINDS: Final[tuple[ScopeKind, ...]] = ("session_id", "run_id", "agent", "user", "application", "tenant")

SEPARATOR: Final = "\x1f"
"""Between the parts of a scope's key; no id may hold it."""

Scalar: TypeAlias = str | int | float | bool | None
RegisterValue: TypeAlias = tuple[Scalar, ...]
"""A flat tuple of JSON scalars; its meaning belongs to the rule kind. A store keeps it as a JSON array and gives back a tuple."""
RegisterKey: TypeAlias = tuple[str, str]
"""(rule key, sub-key): the content hash of the rule (or `state:<machine>`), and what within it (a tool, a digest, or empty)."""

LedgerStatus: TypeAlias = Literal["observed", "passed", "denied", "held"]
"""observed: it came in a transcript or from a tool; nothing to rule on
passed: a call of a reply that we released
denied: a call we denied or whose reply we blocked; a result that we handed on as something else
held: a call that waits for an approval"""


class LedgerEntry(NamedTuple):
    """One item that this session has seen. Keys in the ledger: `c:<call id>` calls, `r:<call id>` results, `a:` and `b:` their
    altered versions, `h:` and `s:` hosted calls and results, `t:` forced choices, `u:<digest>` words of the user, `n:` how many
    calls without an id were equal (the number is in `turn`; held: the next one waits for an approval)."""

    status: LedgerStatus
    raw_name: str
    digest: str
    """Keyed digest of the arguments (calls) or the content (results)."""
    turn: int
    refused: bool = False
    """The gate that first saw it did not let it through: it stays a current fact until a gate does."""
    forged: bool = False
    """It never passed here and came after things that did. That stays true, however often it is sent."""


class Head(NamedTuple):
    """The small, always loaded part of a scope."""

    turn: int = 0
    """Model replies released so far. A turn is one reply and the results that answer it."""
    event: int = 0
    """Facts counted so far."""
    prefix_length: int = 0
    """Items of the transcript up to the last one that a released request carried …"""
    prefix_digest: str = ""
    """… and their keyed digest: a transcript that starts with them needs no look at them."""
    text_rules: str = ""
    """Hash of the text rules that scanned the prefix …"""
    text_hits: tuple[str, ...] = ()
    """… and the keys of those that matched in it (they stay true while the text is in the transcript)."""
    surface_digest: str = ""
    """Of the declared tools last seen; their pinned hashes are the register `("surface", raw name)`."""
    phase: str = "planning"
    """Phase of the last request: `allowed_tools` judges the reply by it too."""
    repairing: tuple[str, ...] = ()
    """Raw names of tools whose last call failed with invalid arguments."""
    last_ids: tuple[str, ...] = ()
    """Call ids released with the last reply."""
    bundles: tuple[str, ...] = ()
    """Bundles attached to the request in progress."""
    since_ms: int = 0
    """When this scope was first written."""
    plan_hash: str = ""
    """The plan that last ruled here …"""
    plan_since_ms: int = 0
    """… and since when: what a rule new in that plan counts from."""
    user_turns: int = 0
    """Number of the user's last word that a released reply has answered."""
    last_digest: str = ""
    """Digest of the last request's transcript, refused or not: the same again is a retry."""
    news_from: int = 0
    """Where the items of the last released request began that no reply had answered …"""
    news_turn: int = 0
    """… and the turn since which they had come."""
    asked_turn: int = -1
    """The turn in which the last request passed: no reply has been released since while that is still the turn."""
    changed: tuple[str, ...] = ()
    """Tools whose definition changed with a request that no released reply has answered yet, by the names they are pinned under."""
    spoken: int = 0
    """The last number that any word of the user was given, answered or not. No two words share one."""
    words_from: int = 0
    """Where the items of the prefix begin whose words no released reply has answered."""


EMPTY_LEDGER: Final[Map[str, LedgerEntry]] = Map()
EMPTY_REGISTERS: Final[Map[RegisterKey, RegisterValue]] = Map()


class ScopeState(NamedTuple):
    """All one gate needs to know of one scope. Loaded by a store, or empty for a scope never seen."""

    version: int = 0
    """Raised by one with every commit; the compare-and-swap of the store is on it."""
    head: Head = Head()
    registers: Map[RegisterKey, RegisterValue] = EMPTY_REGISTERS
    """All registers of the scope (their number is capped per rule)."""
    ledger: Map[str, LedgerEntry] = EMPTY_LEDGER
    """At least the entries that `ledger_keys` asked for. Only the session's scope has any."""


EMPTY_SCOPE: Final[ScopeState] = ScopeState()
FEW: Final = 4
"""So many changes are sooner made one by one than all together."""
_scope_state: Callable[[tuple[Any, ...]], ScopeState] = partial(cast("Any", tuple).__new__, ScopeState)
"""Makes one of all its fields, in their order, in two thirds of the time."""


@dataclass(slots=True)
class Registers:
    """The scopes of one caller, as `govern` reads them. Never changed; not frozen, because every gate makes one."""

    scopes: Mapping[str, ScopeState] = field(default_factory=dict[str, ScopeState])
    """By scope key (`scope_key`). A missing scope is an empty one."""
    key: bytes = b""
    """Digest key of this session: derived by the effects layer from the master key named in the session, at most 64 bytes."""


@dataclass(slots=True)
class ScopeDelta:
    """What one gate changes in one scope."""

    scope: str
    kind: ScopeKind
    base_version: int
    """The version it was judged against; the commit fails with VersionConflict when the stored one differs."""
    head: Head
    registers: dict[RegisterKey, RegisterValue | None] = field(default_factory=dict[RegisterKey, RegisterValue | None])
    """New values; None removes."""
    ledger: dict[str, LedgerEntry] = field(default_factory=dict[str, LedgerEntry])


@dataclass(slots=True)
class Delta:
    """All that one gate changes. A store commits it in one transaction, or not at all. Empty `scopes`: nothing changed."""

    at_ms: int
    scopes: tuple[ScopeDelta, ...] = ()
    facts: tuple[ToolFact, ...] = ()
    """New facts (no repeats, no transient fields to be kept) for the receipt; history itself needs only the scopes."""


class ReceiptRow:
    """A receipt as a store sees it: bytes with tags. Made by `receipts`; chained by the store inside the commit. Never changed."""

    __slots__ = ("_tags", "at_ms", "body", "id", "joined", "scope")

    def __init__(
        self,
        id: str,
        at_ms: int,
        scope: str,
        body: bytes,
        tags: tuple[tuple[str, str], ...] | None = (),
        joined: list[str] | None = None,
    ) -> None:
        self.id = id
        self.at_ms = at_ms
        self.scope = scope
        """Scope key of the session."""
        self.body = body
        self._tags = tags
        self.joined = joined
        """The tags as `name=value`, where whoever made them had them at hand. Then the pairs need not be given."""

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """(filter name, value) pairs; equality filters only. No name has an equals sign."""
        if self._tags is None:
            self._tags = tuple([(tag[0], tag[2]) for tag in [one.partition("=") for one in self.joined or ()]])
        return self._tags

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceiptRow):
            return NotImplemented
        return (self.id, self.at_ms, self.scope, self.body, self.tags) == (
            other.id,
            other.at_ms,
            other.scope,
            other.body,
            other.tags,
        )

    def __repr__(self) -> str:
        return f"ReceiptRow({self.id!r}, {self.at_ms!r}, {self.scope!r}, {self.body!r}, {self.tags!r})"


@dataclass(slots=True)
class ChainLink:
    """Where a receipt stands in its writer's chain. Never changed."""

    writer: str
    sequence: int
    previous_hash: str
    hash: str


def body_hash(body: bytes) -> str:
    """What the chain keeps of a receipt's body, so that erasing a body leaves the chain verifiable."""
    return hashlib.sha256(body).hexdigest()


def chain_hash(writer: str, sequence: int, previous_hash: str, receipt_id: str, at_ms: int, hash_of_body: str) -> str:
    """Hash of one link. The parts hold no line break, so they cannot run into each other."""
    return hashlib.sha256(
        f"{writer}\n{sequence}\n{previous_hash}\n{receipt_id}\n{at_ms}\n{hash_of_body}".encode()
    ).hexdigest()


def scope_key(kind: ScopeKind, caller: Caller) -> str:
    """Key of a scope: always bound to the tenant, so that two tenants never share one. A missing id is one shared scope."""
    tenant = caller.tenant
    value: str = caller.session_id if kind == "session_id" else tenant if kind == "tenant" else getattr(caller, kind)
    if SEPARATOR in value or SEPARATOR in tenant:
        # A border inside an id would let one tenant's session pass for another's.
        raise WireError("Ids of callers must not hold the control character U+001F.")
    return f"{kind}{SEPARATOR}{tenant}{SEPARATOR}{value}"


def apply(registers: Registers, delta: Delta) -> Registers:
    """The registers after a commit of `delta`. Pure; what a store does with rows, done with values."""
    if not delta.scopes:
        return registers
    scopes = dict(registers.scopes)
    for change in delta.scopes:
        scopes[change.scope] = applied(scopes.get(change.scope, EMPTY_SCOPE), change)
    return Registers(scopes, registers.key)


def applied(state: ScopeState, change: ScopeDelta) -> ScopeState:
    """One scope after a commit of what changes in it."""
    version, _, registers, ledger = state
    changes, entries = change.registers, change.ledger
    if len(changes) > FEW or len(entries) > FEW:
        mutation = registers.mutate()
        for key, value in changes.items():
            if value is None:
                mutation.pop(key, None)
            else:
                mutation[key] = value
        registers, ledger = mutation.finish(), ledger.update(entries)
    else:
        for key in changes:
            value = changes[key]
            if value is not None:
                registers = registers.set(key, value)
            elif key in registers:
                registers = registers.delete(key)
        for name in entries:
            ledger = ledger.set(name, entries[name])
    return _scope_state((version + 1, change.head, registers, ledger))


def dump_head(head: Head) -> dict[str, Any]:
    """A head as plain JSON values, for a store."""
    return head._asdict()


def load_head(values: Mapping[str, Any]) -> Head:
    """The head a store kept; fields it did not know keep their defaults."""
    known: dict[str, Any] = {}
    for name, default in Head()._asdict().items():
        value: Any = values.get(name, default)
        known[name] = tuple(cast("list[str]", value)) if isinstance(value, list) else value
    return Head(**known)
