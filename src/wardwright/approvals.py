"""What waits for an operator: a judged reply (or request), held sealed until somebody else than its requester decides, released once.

A verdict is about exactly what was held: session, calls, arguments, plan and expiry are part of what its digest covers. Whatever is
held anew under the same handle waits again. Clear text exists only in what these functions return; receipts get names, never
arguments. Nothing here releases: whoever does commits `used` with the release, so that it happens once.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from wardwright import receipts
from wardwright.catalog import REDACTED, Catalog
from wardwright.errors import SealedMissing, WardwrightError
from wardwright.history import Delta
from wardwright.history.ledger import SEPARATOR
from wardwright.policy.rules import Ruling
from wardwright.store import SealedRow, Store
from wardwright.store.rows import dump, load
from wardwright.wire.turn import Caller, Gate, WireName

SCOPE: Final = "approvals"
"""Where the store keeps the list of what waits. No session has such a key."""

Status: TypeAlias = Literal["pending", "approved", "rejected"]


class NotWaiting(WardwrightError, LookupError):
    """Nothing waits under this handle: it was decided, released or has expired, or never was."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "approval_not_waiting"


class OwnRequest(WardwrightError, PermissionError):
    """Who asks does not decide."""

    status: ClassVar[int] = 403
    code: ClassVar[str] = "own_request"


class NotSeen(WardwrightError, ValueError):
    """Something else waits under this handle than what the operator looked at."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "approval_changed"


class Sealer(Protocol):
    """What is needed of a keyring."""

    def session_key(self, scope: str) -> bytes: ...

    def seal(self, plain: bytes, aad: bytes) -> bytes: ...

    def unseal(self, data: bytes, aad: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Held:
    """One judged message that waits, with everything needed to show it, and to release it without asking the provider again."""

    handle: str
    scope: str
    """Scope key of the session."""
    wire: WireName
    model: str
    stream: bool
    request_digest: str
    plan_hash: str
    """The plan it was judged by. Under another one it is not released."""
    principal: str
    """Whose key asked; that one may not decide."""
    keys: tuple[str, ...]
    """`Finding.key` of every finding that an approval lifts."""
    calls: tuple[Mapping[str, Any], ...]
    """What an approver must see: name, arguments, rule_id, message of every call that waits."""
    reply: dict[str, Any] | None
    """The provider's reply; None when the request itself waits. After a rejection only a word that says so."""
    receipt_id: str
    expires_at_ms: int
    gate: Gate = "reply"
    held_at_ms: int = 0
    message: str = ""
    """Why it waits, as the refusal says it."""
    further: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else releasing it needs: JSON values."""
    digest: str = ""
    """Of what an operator decides about; set by `find`. The same thing held once more has the same one."""

    @property
    def tenant(self) -> str:
        return self.scope.split(SEPARATOR, 2)[1]

    @property
    def session_id(self) -> str:
        return self.scope.split(SEPARATOR, 2)[2]


@dataclass(frozen=True, slots=True)
class Verdict:
    status: Status
    operator: str = ""
    note: str = ""
    decided_at_ms: int = 0


PENDING: Final = Verdict("pending")


def unsaid(catalog: Catalog, ruling: Ruling, message: str) -> str:
    """A message as an approver reads it: problems of arguments that nobody is shown in full are not told, they may repeat them."""
    for finding in ruling.findings:
        problems = finding.evidence.get("problems")
        if problems and any(catalog.resolve(ruling.facts[place].raw_name).redact for place in finding.facts):
            message = message.replace("; ".join(problems), REDACTED)
    return message


def handle_of(keyring: Sealer, scope: str, request_digest: str) -> str:
    """The name of what waits for this request of this session. Always the same, and nobody without the key can guess it."""
    plain = f"approval\n{scope}\n{request_digest}".encode("utf-8", "surrogatepass")
    return f"apr_{hmac.digest(keyring.session_key(scope), plain, 'sha256')[:16].hex()}"


def rows(keyring: Sealer, held: Held) -> tuple[SealedRow, ...]:
    """The rows to commit with the refusal. If something else was held under the same handle, a verdict on that counts no more."""
    listed = SealedRow(
        SCOPE,
        _listed(held.handle, _digest(keyring, held)),
        held.expires_at_ms,
        keyring.seal(dump(held.scope), _aad("waiting", SCOPE, held.handle)),
    )
    return (_row(keyring, held), listed)


def find(store: Store, keyring: Sealer, scope: str, handle: str, now_ms: int) -> Held | None:
    """What is held under a handle in this session, decided or not."""
    plain = _opened(store, keyring, "held", scope, handle, now_ms)
    return None if plain is None else _loaded(keyring, plain)


def verdict(store: Store, keyring: Sealer, scope: str, handle: str, now_ms: int, held: Held | None = None) -> Verdict:
    """What was decided about exactly what is held; `held` spares looking for it again."""
    plain = _opened(store, keyring, "verdict", scope, handle, now_ms)
    if plain is None:
        return PENDING
    kept = load(plain)
    held = held or find(store, keyring, scope, handle, now_ms)
    if held is None or not hmac.compare_digest(kept["digest"], held.digest):
        return PENDING
    return Verdict(kept["status"], kept["operator"], kept["note"], kept["at_ms"])


def used(held: Held) -> tuple[tuple[str, str], ...]:
    """For `Store.commit(unseal=…)` of what releases it: the second release then fails with SealedMissing."""
    return ((held.scope, f"held:{held.handle}"), (held.scope, f"verdict:{held.handle}"))


def waiting(store: Store, keyring: Sealer, handle: str, now_ms: int) -> Held | None:
    """What waits under a handle, whatever its session; None once it is decided."""
    names = store.sealed_names(SCOPE, f"waiting:{handle}:", now_ms, 16)
    for name in names:
        held = _behind(store, keyring, name, now_ms)
        if held is not None:
            return held
    return None


def pending(store: Store, keyring: Sealer, now_ms: int, limit: int, after: str = "") -> tuple[Held, ...]:
    """What waits, in the order of handles, from the one behind the handle `after` on."""
    found: list[Held] = []
    # ';' follows ':', so that all rows of that handle are passed.
    last = f"waiting:{after};" if after else ""
    while len(found) < limit:
        names = store.sealed_names(SCOPE, "waiting:", now_ms, limit, last)
        for name in names:
            held = _behind(store, keyring, name, now_ms)
            if held is not None and len(found) < limit:
                found.append(held)
        if len(names) < limit:
            break
        last = names[-1]
    return tuple(found)


def decide(
    store: Store,
    keyring: Sealer,
    handle: str,
    approve: bool,
    operator: str,
    note: str,
    now_ms: int,
    *,
    seen: str | None = None,
) -> Verdict:
    """Approves or rejects what waits, with a receipt in the chain; once, whoever else tries at the same time.

    `seen`: `Held.digest` of what the operator looked at. Raises NotWaiting, OwnRequest, NotSeen."""
    held = waiting(store, keyring, handle, now_ms)
    if held is None:
        raise NotWaiting(f"Nothing waits under {handle}: it was decided or has expired.")
    if operator == held.principal:
        raise OwnRequest("Somebody else than the requester has to decide.")
    if seen is not None and not hmac.compare_digest(seen.encode("utf-8", "replace"), held.digest.encode()):
        raise NotSeen(f"Something else waits under {handle} by now: look at it again.")
    made = Verdict("approved" if approve else "rejected", operator, note, now_ms)
    seal: list[SealedRow] = []
    digest = held.digest
    if not approve:
        # Nobody needs the reply any more; the verdict stays, so that a retry is told.
        bare = tuple({name: one[name] for name in ("name", "rule_id", "message") if name in one} for one in held.calls)
        reply = None if held.reply is None else {"rejected": True}
        rejected = replace(held, reply=reply, calls=bare, further={})
        digest = _digest(keyring, rejected)
        seal.append(_row(keyring, rejected))
    told = {"status": made.status, "operator": operator, "note": note, "at_ms": now_ms, "digest": digest}
    sealed = keyring.seal(dump(told), _aad("verdict", held.scope, handle))
    seal.append(SealedRow(held.scope, f"verdict:{handle}", held.expires_at_ms, sealed))
    receipt = receipts.build_admin(
        receipts.receipt_id(now_ms, os.urandom(10)),
        now_ms,
        # In the session's own scope, so that it is found, and erased, with it.
        Caller(tenant=held.tenant, session_id=held.session_id, principal=operator),
        "approve" if approve else "reject",
        handle,
        {
            "receipt_id": held.receipt_id,
            "requested_by": held.principal,
            "model": held.model,
            "tools": [one.get("name", "") for one in held.calls],
            "rules": list(dict.fromkeys(one.get("rule_id", "") for one in held.calls)),
            "note": note,
        },
    )
    try:
        store.commit(Delta(now_ms), receipts.record(receipt), seal=seal, unseal=[(SCOPE, _listed(handle, held.digest))])
    except SealedMissing:
        raise NotWaiting(f"Nothing waits under {handle}: it was decided or has expired.") from None
    return made


def _listed(handle: str, digest: str) -> str:
    return f"waiting:{handle}:{digest}"


def _behind(store: Store, keyring: Sealer, name: str, now_ms: int) -> Held | None:
    """What a row of the list stands for; None when that was decided or released, or when something else is held since."""
    _, handle, digest = name.split(":", 2)
    try:
        scope = load(keyring.unseal(store.sealed(SCOPE, name, now_ms).body, _aad("waiting", SCOPE, handle)))
    except (SealedMissing, ValueError):
        return None
    held = find(store, keyring, scope, handle, now_ms)
    if held is None or held.digest != digest:
        return None
    return held if verdict(store, keyring, scope, handle, now_ms, held) is PENDING else None


def _opened(store: Store, keyring: Sealer, kind: str, scope: str, handle: str, now_ms: int) -> bytes | None:
    """None also for what no key of ours opens: then nothing was decided, and nothing can be released."""
    try:
        row = store.sealed(scope, f"{kind}:{handle}", now_ms)
        return keyring.unseal(row.body, _aad(kind, scope, handle))
    except (SealedMissing, ValueError):
        return None


def _aad(kind: str, scope: str, handle: str) -> bytes:
    """Binds a sealed row to its place: moved to another session or handle, it does not open."""
    return f"{kind}\n{scope}\n{handle}".encode("utf-8", "surrogatepass")


_KEPT: Final = tuple(one.name for one in fields(Held) if one.name != "digest")
_DECIDED: Final = (
    "handle",
    "scope",
    "wire",
    "model",
    "request_digest",
    "plan_hash",
    "principal",
    "keys",
    "calls",
    "reply",
    "gate",
)
"""What a verdict is about. Not when and by which exchange it was held: asking again for the same thing changes nothing."""


def _row(keyring: Sealer, held: Held) -> SealedRow:
    plain = dump({name: getattr(held, name) for name in _KEPT})
    sealed = keyring.seal(plain, _aad("held", held.scope, held.handle))
    return SealedRow(held.scope, f"held:{held.handle}", held.expires_at_ms, sealed)


def _loaded(keyring: Sealer, plain: bytes) -> Held:
    values = load(plain)
    values["keys"], values["calls"] = tuple(values["keys"]), tuple(values["calls"])
    held = Held(**values)
    return replace(held, digest=_digest(keyring, held))


def _digest(keyring: Sealer, held: Held) -> str:
    """Keyed, because the list's names show it in clear."""
    plain = dump([getattr(held, name) for name in _DECIDED])
    return hmac.digest(keyring.session_key(held.scope), b"held\n" + plain, "sha256")[:16].hex()
