"""The `Store` protocol: what the gateway needs kept, and the promises every backend makes.

Promises, tested by one conformance suite:
 1. `commit` is atomic: delta, receipt and sealed rows, or none of them; it returns only when they survive a killed process.
 2. It raises VersionConflict, changing nothing, when any scope in the delta has another version than `base_version`.
 3. `load` sees every commit that returned before it was called, by any process.
 4. Any other failure raises StoreUnavailable. Nothing is ever invented: no default for what could not be read.
 5. Nothing costs more as a scope, or the number of receipts, grows.
All methods are synchronous; the gateway decides on which thread they run. Times are milliseconds since the epoch, given in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wardwright.errors import SealedMissing, VersionConflict
from wardwright.history import ChainLink, Delta, Head, ReceiptRow, ScopeState


@dataclass(frozen=True, slots=True)
class SealedRow:
    """One encrypted row of a session's working set (a held reply, denied calls to splice, what an approver must see)."""

    scope: str
    """Scope key of the session."""
    name: str
    """Unique within the scope, for example `held:<handle>`."""
    expires_at_ms: int
    body: bytes
    """Already encrypted; a store never sees the clear text."""


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt with its place in the chain and its place in the paging order."""

    row: ReceiptRow
    link: ChainLink
    cursor: int
    """Rises with every receipt of the store; what paging is by."""
    erased_hash: str = ""
    """Hash of the body that erasure took away (then body, tags and scope are empty); empty while the body is there."""
    vouched: bytes = b""
    """What the holder of a key left to show that erasure took it, and not somebody else."""


@dataclass(frozen=True, slots=True)
class ReceiptQuery:
    """Filters are joined by *and*; several values of one name by *or*. `since_ms` is included, `until_ms` is not."""

    tags: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    since_ms: int | None = None
    until_ms: int | None = None
    before: int | None = None
    """Cursor of the last receipt already shown (newest first)."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    receipts: tuple[StoredReceipt, ...]
    next_before: int | None
    """None when there is no more."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Signed heads of all chains; retention leaves one before it cuts."""

    at_ms: int
    heads: tuple[ChainLink, ...]
    """Last link of every writer. Links before a checkpoint may be gone; then these stand for them."""
    signature: bytes
    cut: bool = False
    """True: retention removed everything up to and including these links. False: they only bear witness."""
    number: int = 1
    previous: bytes = b""
    """Signature of the checkpoint before it. Both are signed, so that none can be taken out."""


class Commit(NamedTuple):
    """What one gate commits; the arguments of `Store.commit` as a value."""

    delta: Delta
    receipt: ReceiptRow | None = None
    seal: Sequence[SealedRow] = ()
    unseal: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class PlanEpoch:
    """Which plan every process must use."""

    epoch: int
    plan_hash: str
    at_ms: int
    source: bytes
    """The config text it was compiled from."""


def unvouched(_: str) -> bytes:
    """Erasure that nobody signs: `verify` with keys then takes it for tampering."""
    return b""


class Store(Protocol):
    """One opened store. Safe for several threads and several processes."""

    # scopes
    def load(self, scopes: Sequence[str], wanted: Callable[[Head], Iterable[str]]) -> dict[str, ScopeState]:
        """One consistent view: every scope with all its registers; of the first (the session) the ledger entries that
        `wanted(head)` names. Scopes never written come back as empty ones."""
        ...

    def sessions_of(self, tenant: str, call_ids: Sequence[str]) -> dict[str, str]:
        """Call id → scope key of the session whose ledger holds `c:<call id>` as passed, denied or held, same tenant."""
        ...

    def sessions_alike(self, tenant: str, call_id: str, limit: int) -> list[str]:
        """Scope keys of all such sessions of one id, the newest first, at most so many: some providers repeat ids."""
        ...

    def commit(
        self,
        delta: Delta,
        receipt: ReceiptRow | None = None,
        *,
        seal: Sequence[SealedRow] = (),
        unseal: Sequence[tuple[str, str]] = (),
    ) -> ChainLink | None:
        """All of it in one transaction. `unseal` names rows (scope, name) used up by this gate; SealedMissing if one is gone."""
        ...

    def commit_all(self, commits: Sequence[Commit]) -> list[ChainLink | VersionConflict | SealedMissing | None]:
        """Several gates of one tick in one transaction, each for itself: one that conflicts changes nothing and its error is
        given back in its place, the others stand. In the order given; two on one scope conflict like two writers."""
        ...

    # sealed working set
    def sealed(self, scope: str, name: str, now_ms: int) -> SealedRow:
        """The row, without using it up. SealedMissing when it expired or was used."""
        ...

    def sealed_names(self, scope: str, prefix: str, now_ms: int, limit: int, after: str = "") -> tuple[str, ...]:
        """Names of a scope's rows that start with `prefix` and have not expired, in the order of their bytes, from the one behind
        `after` on; at most `limit`."""
        ...

    def sweep(self, now_ms: int) -> int:
        """Erases expired sealed rows; how many."""
        ...

    # receipts
    def receipt(self, receipt_id: str) -> StoredReceipt | None: ...

    def receipts(self, query: ReceiptQuery) -> ReceiptPage:
        """Newest first. Every receipt whose commit returned before the call is found."""
        ...

    def chain(self, writer: str, after: int = 0, limit: int = 1000) -> tuple[StoredReceipt, ...]:
        """Receipts of one writer in chain order, for `verify` and export."""
        ...

    def heads(self, before_ms: int | None = None) -> tuple[ChainLink, ...]:
        """Last link of every writer; with `before_ms`, the last one before its chain's first receipt of that time or later:
        where retention may cut. Writers with no such link are left out."""
        ...

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """VersionConflict when its number is not the next one."""
        ...

    def checkpoints(self) -> tuple[Checkpoint, ...]: ...

    def last_checkpoint(self) -> int:
        """The number of the newest checkpoint that was ever kept, whatever became of it; 0 before the first."""
        ...

    def postings(
        self, places: Sequence[tuple[int, int]], blocks: Sequence[int]
    ) -> tuple[dict[tuple[int, int], int], dict[int, tuple[int, int]]]:
        """The index as it is, for `verify`: sets of offsets by (bucket, tag), first and last time by block."""
        ...

    def reindex(self) -> None:
        """Makes the index anew from the receipts."""
        ...

    def forget_receipts(self, before_ms: int, checkpoint: Checkpoint) -> int:
        """Retention: keeps the checkpoint (a cut at `heads(before_ms)`), then removes what it stands for, oldest first, in small
        transactions; how many. One that was interrupted is finished by the next. ValueError when the checkpoint is no such cut,
        VersionConflict when its number is not the next one."""
        ...

    # scopes' life
    def forget_scopes(self, kind: str, before_ms: int) -> int:
        """Retention of one scope kind: erases scopes not written since; how many."""
        ...

    def forget_tenant(self, tenant: str, vouch: Callable[[str], bytes] = unvouched) -> int:
        """Erasure: scopes, sealed rows and receipt bodies of a tenant; the chain stays verifiable: a body is replaced by its hash
        and by what `vouch` makes of the link's hash. How many."""
        ...

    # plan
    def plan_epoch(self) -> PlanEpoch | None: ...

    def plan_epochs(self, limit: int, before: int | None = None) -> tuple[PlanEpoch, ...]:
        """The plans that were ever activated, newest first, from the one before epoch `before` on; at most `limit`."""
        ...

    def activate(self, plan_hash: str, source: bytes, now_ms: int, expected_epoch: int) -> PlanEpoch:
        """Makes a plan the current one for every process; VersionConflict when the epoch is not `expected_epoch` any more."""
        ...

    # counters that are not policy: alerts sent, would-have counts, rule statistics for `report`
    def count(self, increments: Mapping[str, int]) -> None: ...

    def counters(self, prefix: str) -> dict[str, int]: ...

    def maintain(self) -> None:
        """Work kept off the path: indexes receipts, tidies files. A query never depends on it having run."""
        ...

    def close(self) -> None: ...
