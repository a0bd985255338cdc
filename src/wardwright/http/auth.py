"""Who asks: the `auth` section, and `Authenticator`, which turns headers into a principal, a caller, or a refusal.

Decides what a caller may say of itself (the key record pins it), whose claims about tools are believed (G7), and who may
administer. It keeps hashes only; no secret is part of a repr, a refusal or an error. On the path of every request: a hash, a
lookup, a comparison; nothing here waits or reads a file once the gateway has started.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import orjson

from wardwright.config import Node, Problems
from wardwright.keys import (
    Keyring,
    KeysUnusable,
    SecretSource,
    compile_secret,
    hash_key,
    is_key_hash,
    refuse_literals,
    secret_keys,
)
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import Caller
from weakincentives.clock import Clock, SystemClock

Role: TypeAlias = Literal["viewer", "approver", "operator"]
"""viewer: reads receipts, sessions and plans
approver: also approves and rejects what is held
operator: also activates plans, stops, releases and switches"""

Claim: TypeAlias = Literal["session_id", "run_id", "agent", "user", "application", "tenant"]
"""What a caller may say of itself in a header, if its key record lets it."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
CLAIMS: Final[tuple[Claim, ...]] = get_args(Claim)

CLAIM_HEADERS: Final[Mapping[Claim, str]] = {
    "session_id": "x-wardwright-session-id",
    "run_id": "x-wardwright-run-id",
    "agent": "x-wardwright-agent-id",
    "user": "x-wardwright-user-id",
    "application": "x-wardwright-application-id",
    "tenant": "x-wardwright-tenant-id",
}
ATTESTATION_HEADER: Final = "x-wardwright-attestation"

FORWARDING: Final = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-forwarded-prefix",
        "x-original-forwarded-for",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "cf-connecting-ip",
        "true-client-ip",
        "fastly-client-ip",
        "fly-client-ip",
    }
)
"""Any of these says that somebody else stands behind the peer."""

HEADERS: Final = frozenset({"authorization", "x-api-key", ATTESTATION_HEADER, *CLAIM_HEADERS.values(), *FORWARDING})
"""All that an authenticator reads: whoever asks it may leave out the others."""

MAX_CLAIM: Final = 256
MAX_ATTESTATION_S: Final = 3_600
"""An attestation that would hold longer than this is refused: it is made for one request."""
MIN_TOKEN: Final = 20
"""Characters of a token that an operator chose; the generated ones have more than twice as many."""

_DEFAULT_CLAIMS: Final[tuple[Claim, ...]] = ("session_id", "run_id")
_RESERVED: Final = ("admin", "anonymous")
_LITERALS: Final = ("key", "secret", "token", "api_key", "password")
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\]|\*")
_ORIGIN: Final = re.compile(r"(https?|[a-z][a-z0-9+.-]*-extension)://[^/\s*]+")
_PEM: Final = "-----BEGIN PUBLIC KEY-----"

_sha256 = hashlib.sha256


# What the config says


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One caller's key, and what it pins."""

    id: str
    hash: str = field(default="", repr=False)
    source: SecretSource | None = None
    """Where the key lies, when the config does not give its hash."""
    pinned: Caller = field(default_factory=Caller)
    may_claim: tuple[Claim, ...] = _DEFAULT_CLAIMS
    models: tuple[str, ...] = ()
    attest: bool = False
    concurrency: int | None = None
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Issuer:
    """Somebody whose attestations are believed."""

    id: str
    source: SecretSource


@dataclass(frozen=True, slots=True)
class Auth:
    """The `auth` section. Holds where secrets lie and hashes, no secret."""

    admin: SecretSource | None = None
    keys: tuple[KeyRecord, ...] = ()
    operators: tuple[KeyRecord, ...] = ()
    """Records with a role; they open the admin API, not the models."""
    anonymous: bool | None = None
    """None: only on a loopback address, only while no key is declared, and not through a forwarder."""
    trust_loopback_claims: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    audience: str = ""


def compile_auth(node: Node | None, problems: Problems) -> Auth:
    """Reads the section and reports everything wrong with it. Reads no secret, and repeats no value that may be one."""
    if node is None:
        return Auth()
    found = _entries(
        node,
        problems,
        optional=(
            "admin",
            "keys",
            "operators",
            "anonymous",
            "trust_loopback_claims",
            "hosts",
            "origins",
            "attestation",
        ),
    )
    ids: dict[str, Node] = {}
    hashes: dict[str, Node] = {}
    issuers, audience = _attestation(found.get("attestation"), problems)
    return Auth(
        admin=_admin(found.get("admin"), problems),
        keys=tuple(_key(entry, problems, ids, hashes) for entry in _list(found.get("keys"), problems)),
        operators=tuple(_operator(entry, problems, ids, hashes) for entry in _list(found.get("operators"), problems)),
        anonymous=problems.boolean(found["anonymous"]) if "anonymous" in found else None,
        trust_loopback_claims="trust_loopback_claims" in found and problems.boolean(found["trust_loopback_claims"]),
        hosts=_matching(
            found.get("hosts"), _HOST, "expected a host name such as gateway.example.org, without port", problems
        ),
        origins=_matching(
            found.get("origins"), _ORIGIN, "expected an origin such as https://console.example.org", problems
        ),
        issuers=issuers,
        audience=audience,
    )


def check_binding(host: str, auth: Auth) -> str | None:
    """Why the gateway must not listen on this address; None when it may."""
    if is_local(host):
        return None
    if auth.anonymous:
        return (
            f"will not listen on {host}: auth.anonymous lets everybody in. Listen on 127.0.0.1, or declare auth.keys."
        )
    if not auth.keys:
        return f"will not listen on {host} without authentication. Declare auth.keys, or listen on 127.0.0.1."
    return None


@lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Whether an address, or a name to listen on, is this machine's own and nobody else's."""
    if host == "localhost" or host.startswith(("/", "unix:")):
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# Who asks


@dataclass(slots=True)
class Principal:
    """An authenticated caller. One per key, made at start, shared by all its requests: never changed."""

    id: str
    pinned: Caller
    """What the key record says of the caller; it wins over headers."""
    may_claim: frozenset[Claim] = frozenset()
    models: tuple[str, ...] = ()
    """Globs over public model names; none: every model."""
    attest: bool = False
    """Its claims about tools are believed (G7)."""
    concurrency: int | None = None
    role: Role | None = None
    claims: tuple[tuple[Claim, str], ...] = field(default=(), repr=False)
    """The headers that count: claimable and not pinned."""
    refused: tuple[tuple[Claim, str, str], ...] = field(default=(), repr=False)
    """The headers that do not, and what is pinned instead."""
    pattern: re.Pattern[str] | None = field(default=None, repr=False)

    def may_use(self, model: str) -> bool:
        return self.pattern is None or self.pattern.fullmatch(model) is not None


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who administers."""

    id: str
    role: Role

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether what a caller says about its tools is believed, by what, or why its attestation was not."""

    trusted: bool
    by: str = ""
    refused: str = ""
    """For the receipt's notes; empty when no attestation was sent or it holds."""


_UNTRUSTED: Final = Trust(False)


class Authenticator:
    """Knows every key of one config. Made when the gateway starts and when it reloads; reads the secrets then (KeysUnusable)."""

    __slots__ = (
        "_admin",
        "_admin_principal",
        "_anonymous",
        "_audience",
        "_clock",
        "_issuers",
        "_keyring",
        "_known",
        "_local_socket",
        "_open",
        "_operators",
        "_trust_loopback",
    )

    def __init__(
        self,
        auth: Auth,
        keyring: Keyring,
        bind_host: str,
        *,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._keyring = keyring
        self._local_socket = bind_host.startswith(("/", "unix:"))
        self._trust_loopback = auth.trust_loopback_claims
        self._open = auth.anonymous is True
        allowed = self._open if auth.anonymous is not None else is_local(bind_host) and not auth.keys
        self._anonymous = _principal("anonymous", Caller(), CLAIMS) if allowed else None
        self._admin_principal = _principal("admin", Caller(), CLAIMS, attest=True, role="operator")
        self._known: dict[bytes, tuple[bytes, Principal]] = {}
        self._operators: dict[bytes, tuple[bytes, Operator]] = {}
        seen: dict[bytes, str] = {}
        for record in auth.keys:
            digest = _digest_of(record, f"auth.keys '{record.id}'", seen, environ)
            principal = _principal(
                record.id,
                record.pinned,
                record.may_claim,
                models=record.models,
                attest=record.attest,
                concurrency=record.concurrency,
                role=record.role,
            )
            self._known[digest] = (digest, principal)
            if record.role is not None:
                self._operators[digest] = (digest, Operator(record.id, record.role))
        for record in auth.operators:
            digest = _digest_of(record, f"auth.operators '{record.id}'", seen, environ)
            self._operators[digest] = (digest, Operator(record.id, record.role or "viewer"))
        self._admin = b""
        if auth.admin is not None:
            token = auth.admin.read("auth.admin", environ)
            if len(token) < MIN_TOKEN:
                raise KeysUnusable(f"auth.admin: the token is shorter than {MIN_TOKEN} characters.")
            self._admin = bytes.fromhex(hash_key(token)[7:])
            if self._admin in seen:
                raise KeysUnusable(f"auth.admin: the token is the same as the key of {seen[self._admin]}.")
        self._audience = auth.audience
        self._issuers = {issuer.id: _verifier(issuer, environ) for issuer in auth.issuers}

    def __repr__(self) -> str:
        return f"Authenticator({len(self._known)} keys, {len(self._operators)} operators)"

    def authenticate(self, headers: Mapping[str, str], peer: str) -> Principal | Refusal:
        """Who sent these headers (names in lower case). `peer` is the other end of the connection, never a header's word."""
        secret = headers.get("authorization")
        if secret is not None:
            secret = secret[7:].strip() if secret[:7] == "Bearer " else _bearer(secret)
        if secret is None:
            secret = headers.get("x-api-key")
        if secret:
            digest = _sha256(secret.encode("utf-8", "surrogatepass")).digest()
            found = self._known.get(digest)
            if found is not None and hmac.compare_digest(found[0], digest):
                return found[1]
            if self._is_admin(digest):
                return self._admin_principal
        anonymous = self._anonymous
        if anonymous is not None and not (secret and self._known):
            # A key that is not known must not quietly become nobody's where keys mean something.
            if self._open or (self._local(peer) and FORWARDING.isdisjoint(headers)):
                return anonymous
            return Refusal(
                401,
                "authentication_error",
                "forwarded_anonymous",
                "Requests without a key are taken from this machine alone, and this one was forwarded. "
                "Declare keys under auth.keys, or set auth.anonymous: true.",
            )
        if secret:
            return Refusal(401, "authentication_error", "invalid_api_key", "This key is not known here.")
        return Refusal(
            401,
            "authentication_error",
            "missing_api_key",
            "A key is needed: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
        )

    def caller_for(self, principal: Principal, headers: Mapping[str, str]) -> Caller | Refusal:
        """A caller of this request's own: what the key pins, then what it may claim. `refused_claims` tells what was not taken."""
        pinned = principal.pinned
        caller = Caller(
            pinned.tenant, pinned.application, pinned.agent, pinned.user, pinned.session_id, pinned.run_id, principal.id
        )
        for name, header in principal.claims:
            if header in headers:
                value = headers[header]
                value = value.strip() if value.isascii() else _claimed(value)
                if len(value) > MAX_CLAIM or not value.isprintable():
                    return Refusal(
                        400,
                        "invalid_request_error",
                        "invalid_claim",
                        f"The header {header} must be printable text of at most {MAX_CLAIM} characters.",
                    )
                setattr(caller, name, value)
        return caller

    def refused_claims(self, principal: Principal, headers: Mapping[str, str]) -> tuple[str, ...]:
        """Notes for the receipt: which claims were sent and not taken. Never what they said."""
        if not principal.refused:
            return ()
        return tuple(
            f"claim_refused:{name}"
            for name, header, pinned in principal.refused
            if (value := headers.get(header)) is not None and _claimed(value) not in ("", pinned)
        )

    def model_refused(self, principal: Principal, model: str) -> Refusal | None:
        """Why this caller may not ask this model; None when it may."""
        if principal.may_use(model):
            return None
        return Refusal(
            403, "permission_error", "model_not_allowed", f"This key may not use the model {_short(model)!r}."
        )

    def claims_trusted(
        self, principal: Principal, headers: Mapping[str, str], body_digest: str | bytes, peer: str
    ) -> bool:
        """Whether `metadata.tool_context` is believed. `trust` says why."""
        return self.trust(principal, headers, body_digest, peer).trusted

    def trust(self, principal: Principal, headers: Mapping[str, str], body_digest: str | bytes, peer: str) -> Trust:
        """Whether claims about tools are believed. `body_digest`: SHA-256 of the body as it was sent, in hex; or the body
        itself, hashed only when there is an attestation to compare with it."""
        token = headers.get(ATTESTATION_HEADER)
        refused = ""
        if token is not None:
            issuer, refused = self._attested(token.strip(), principal, body_digest)
            if not refused:
                return Trust(True, f"attestation:{issuer}")
        if principal.attest:
            return Trust(True, f"key:{principal.id}", refused)
        if self._trust_loopback and self._local(peer) and FORWARDING.isdisjoint(headers):
            return Trust(True, "loopback", refused)
        return Trust(False, "", refused) if refused else _UNTRUSTED

    def admin(self, headers: Mapping[str, str], peer: str, needs: Role = "viewer") -> Operator | Refusal:
        """Who administers. Always by a token, from whatever address; `peer` is there for those who log refusals."""
        del peer
        secret = headers.get("authorization")
        secret = _bearer(secret) if secret is not None else None
        if not secret:
            return Refusal(
                401,
                "authentication_error",
                "missing_admin_token",
                "The admin token is needed: send it as `Authorization: Bearer TOKEN`. "
                + (
                    "It was printed when the gateway first started."
                    if self.generated_admin
                    else "The operator of this gateway has set it."
                    if self.has_admin
                    else "This gateway has none yet: name one with auth.admin."
                ),
            )
        digest = _sha256(secret.encode("utf-8", "surrogatepass")).digest()
        found = self._operators.get(digest)
        if found is not None and hmac.compare_digest(found[0], digest):
            operator = found[1]
        elif self._is_admin(digest):
            operator = _ADMIN
        else:
            return Refusal(401, "authentication_error", "invalid_admin_token", "This token is not known here.")
        if not operator.may(needs):
            return Refusal(
                403,
                "permission_error",
                "role_too_low",
                f"This needs the role {needs}; {operator.id!r} is {operator.role}.",
            )
        return operator

    @property
    def has_admin(self) -> bool:
        """Whether somebody has every right. If not, the gateway generates a token, or says that the config must name one."""
        operators = any(operator.may("operator") for _, operator in self._operators.values())
        return bool(self._admin or self._keyring.admin_hash or operators)

    @property
    def generated_admin(self) -> bool:
        """Whether the token that administers is one that was generated, and printed once."""
        return bool(self._keyring.admin_hash) and not self._admin

    def _is_admin(self, digest: bytes) -> bool:
        if self._admin:
            return hmac.compare_digest(self._admin, digest)
        generated = self._keyring.admin_hash
        return bool(generated) and hmac.compare_digest(generated, "sha256:" + digest.hex())

    def _local(self, peer: str) -> bool:
        return is_local(peer) if peer else self._local_socket

    def _attested(self, token: str, principal: Principal, body_digest: str | bytes) -> tuple[str, str]:
        """The issuer, and why the token is refused (empty: it holds)."""
        parts = token.split(".") if len(token) <= 4096 else []
        if len(parts) != 3:
            return "", "attestation_refused:malformed"
        head, claims, signature = _json(parts[0]), _json(parts[1]), _unbase64(parts[2])
        if head is None or claims is None or signature is None or "crit" in head:
            return "", "attestation_refused:malformed"
        issuer: Any = claims.get("iss")
        verifier = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if verifier is None:
            return "", "attestation_refused:issuer"
        # The issuer's key says which algorithm it is for; the token's own word only has to agree.
        algorithm, verify = verifier
        if head.get("alg") != algorithm or not verify(f"{parts[0]}.{parts[1]}".encode(), signature):
            return "", "attestation_refused:signature"
        audience: Any = claims.get("aud")
        if self._audience != audience and not (
            isinstance(audience, list) and self._audience in cast("list[Any]", audience)
        ):
            return "", "attestation_refused:audience"
        now = self._clock.now()
        expires, begins = _seconds(claims.get("exp")), _seconds(claims.get("nbf", 0))
        if expires is None or begins is None or not now < expires <= now + MAX_ATTESTATION_S or begins > now + 30:
            return "", "attestation_refused:expiry"
        if "sub" in claims and claims["sub"] != principal.id:
            return "", "attestation_refused:subject"
        digest: Any = claims.get("digest")
        wanted = body_digest if isinstance(body_digest, str) else _sha256(body_digest).hexdigest()
        if not isinstance(digest, str) or not hmac.compare_digest(
            digest.encode("utf-8", "surrogatepass"), f"sha256:{wanted}".encode()
        ):
            return "", "attestation_refused:digest"
        return cast("str", issuer), ""


def attest(secret: str, *, issuer: str, audience: str, body: bytes, expires_at: int, subject: str = "") -> str:
    """The value of `X-Wardwright-Attestation` for a body: a JSON Web Token, signed with the issuer's shared secret (HS256)."""
    claims: dict[str, Any] = {
        "iss": issuer,
        "aud": audience,
        "exp": expires_at,
        "digest": f"sha256:{_sha256(body).hexdigest()}",
    }
    if subject:
        claims["sub"] = subject
    signed = f"{_base64(orjson.dumps({'alg': 'HS256', 'typ': 'JWT'}))}.{_base64(orjson.dumps(claims))}"
    return f"{signed}.{_base64(hmac.digest(secret.encode(), signed.encode(), 'sha256'))}"


# Inside

_ADMIN: Final = Operator("admin", "operator")
_Verifier: TypeAlias = tuple[str, Callable[[bytes, bytes], bool]]


def _bearer(value: str) -> str | None:
    if value[:7] != "Bearer " and value[:7].lower() != "bearer ":
        return None
    return value[7:].strip()


def _claimed(value: str) -> str:
    """A header's text. ASGI hands on Latin-1, most clients write UTF-8."""
    if not value.isascii():
        with suppress(UnicodeError):
            value = value.encode("latin-1").decode()
    return value.strip()


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _principal(
    name: str,
    pinned: Caller,
    may_claim: Sequence[Claim],
    *,
    models: tuple[str, ...] = (),
    attest: bool = False,
    concurrency: int | None = None,
    role: Role | None = None,
) -> Principal:
    counted: list[Claim] = [claim for claim in CLAIMS if claim in may_claim and not getattr(pinned, claim)]
    return Principal(
        name,
        pinned,
        frozenset(may_claim),
        models,
        attest,
        concurrency,
        role,
        tuple((claim, CLAIM_HEADERS[claim]) for claim in counted),
        tuple((claim, CLAIM_HEADERS[claim], getattr(pinned, claim)) for claim in CLAIMS if claim not in counted),
        re.compile("|".join(fnmatch.translate(glob) for glob in models)) if models else None,
    )


def _digest_of(record: KeyRecord, place: str, seen: dict[bytes, str], environ: Mapping[str, str] | None) -> bytes:
    if record.source is not None:
        secret = record.source.read(place, environ)
        if len(secret) < MIN_TOKEN:
            raise KeysUnusable(f"{place}: the key is shorter than {MIN_TOKEN} characters.")
        digest = bytes.fromhex(hash_key(secret)[7:])
    else:
        digest = bytes.fromhex(record.hash[7:])
    if digest in seen:
        raise KeysUnusable(f"{place}: its key is the same as that of {seen[digest]}.")
    seen[digest] = place
    return digest


def _verifier(issuer: Issuer, environ: Mapping[str, str] | None) -> _Verifier:
    place = f"auth.attestation.issuers '{issuer.id}'"
    text = issuer.source.read(place, environ, lines=True)
    if text.startswith(_PEM):
        return "EdDSA", _public(text, place)
    secret = text.encode()
    if len(secret) < 32:
        raise KeysUnusable(f"{place}: a shared secret needs at least 32 characters.")
    return "HS256", lambda signed, signature: hmac.compare_digest(hmac.digest(secret, signed, "sha256"), signature)


def _public(text: str, place: str) -> Callable[[bytes, bytes], bool]:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise KeysUnusable(f"{place}: expected an Ed25519 public key in PEM form, or a shared secret.")
    public = key

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            public.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return verify


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unbase64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def _json(text: str) -> dict[str, Any] | None:
    data = _unbase64(text)
    if data is None:
        return None
    try:
        value: Any = orjson.loads(data)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# Reading the section. Whatever may be a secret in the wrong place is never repeated.


def _entries(
    node: Node, problems: Problems, *, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        problems.error(node, "expected a mapping")
        return {}
    return problems.mapping(node, required, optional)


def _list(node: Node | None, problems: Problems) -> Sequence[Node]:
    if node is None:
        return ()
    if not isinstance(node.value, tuple):
        problems.error(node, "expected a list")
        return ()
    return node.value


def _admin(node: Node | None, problems: Problems) -> SecretSource | None:
    if node is None:
        return None
    node = refuse_literals(node, _LITERALS, "name it with token_env or token_file", problems)
    found = _entries(node, problems, optional=secret_keys("token"))
    source = compile_secret(found, "token", problems)
    if isinstance(node.value, dict) and not found:
        problems.error(node, "give token_env or token_file")
    return source


def _record(
    node: Node, problems: Problems, further: tuple[str, ...], ids: dict[str, Node], hashes: dict[str, Node]
) -> tuple[dict[str, Node], str, str, SecretSource | None]:
    """The entries of a key or an operator, its id, its hash and where it lies."""
    node = refuse_literals(node, _LITERALS, "give its hash (`wardwright keys hash`), or name it with key_env", problems)
    found = _entries(node, problems, required=("id",), optional=("hash", *secret_keys("key"), *further))
    name = problems.name(found["id"]) if "id" in found else ""
    if name in _RESERVED:
        problems.error(found["id"], f"'{name}' is a name the gateway itself uses")
    elif name in ids:
        problems.error(found["id"], f"id '{name}' is already used at line {ids[name].line}")
    elif name:
        ids[name] = found["id"]
    source = compile_secret(found, "key", problems)
    key_hash = ""
    if "hash" in found:
        value = found["hash"].value
        if not isinstance(value, str) or not is_key_hash(value):
            problems.error(
                found["hash"],
                "expected 'sha256:' and 64 hexadecimal digits in small letters, as `wardwright keys hash` prints them; "
                "never the key itself",
            )
        elif value in hashes:
            problems.error(found["hash"], f"the same hash is already used at line {hashes[value].line}")
        else:
            key_hash = value
            hashes[value] = found["hash"]
        if "key_env" in found or "key_file" in found:
            problems.error(found["hash"], "give hash, key_env or key_file, only one of them")
    elif isinstance(node.value, dict) and "key_env" not in found and "key_file" not in found:
        problems.error(node, "give its hash, or name the key with key_env or key_file")
    return found, name, key_hash, source


def _key(node: Node, problems: Problems, ids: dict[str, Node], hashes: dict[str, Node]) -> KeyRecord:
    pins = ("tenant", "application", "agent", "user")
    found, name, key_hash, source = _record(
        node, problems, (*pins, "may_claim", "models", "attest", "concurrency", "role"), ids, hashes
    )
    pinned = Caller(**{pin: problems.name(found[pin]) for pin in pins if pin in found})
    claims = _DEFAULT_CLAIMS
    if "may_claim" in found:
        entries = found["may_claim"]
        claims = cast("tuple[Claim, ...]", problems.choices(entries, CLAIMS) if entries.value != () else ())
        for claim in claims:
            if getattr(pinned, claim):
                problems.warn(entries, f"'{claim}' is pinned by this record, so that it can never be claimed")
    return KeyRecord(
        name,
        key_hash,
        source,
        pinned,
        claims,
        problems.texts(found["models"]) if "models" in found else (),
        "attest" in found and problems.boolean(found["attest"]),
        problems.integer(found["concurrency"], 1) if "concurrency" in found else None,
        cast("Role", problems.choice(found["role"], ROLES)) if "role" in found else None,
    )


def _operator(node: Node, problems: Problems, ids: dict[str, Node], hashes: dict[str, Node]) -> KeyRecord:
    found, name, key_hash, source = _record(node, problems, ("role",), ids, hashes)
    if isinstance(node.value, dict) and "role" not in found:
        problems.error(node, "missing key 'role'")
    role = cast("Role", problems.choice(found["role"], ROLES)) if "role" in found else "viewer"
    return KeyRecord(name, key_hash, source, may_claim=(), role=role)


def _attestation(node: Node | None, problems: Problems) -> tuple[tuple[Issuer, ...], str]:
    if node is None:
        return (), ""
    found = _entries(node, problems, required=("issuers", "audience"))
    issuers: dict[str, Issuer] = {}
    for entry in _list(found.get("issuers"), problems):
        entry = refuse_literals(entry, _LITERALS, "name it with key_env or key_file", problems)
        fields = _entries(entry, problems, required=("id",), optional=secret_keys("key"))
        name = problems.name(fields["id"]) if "id" in fields else ""
        source = compile_secret(fields, "key", problems)
        if name in issuers:
            problems.error(fields["id"], f"id '{name}' is already used")
        if source is not None:
            issuers[name] = Issuer(name, source)
        elif isinstance(entry.value, dict) and not {"key_env", "key_file"} & fields.keys():
            problems.error(entry, "name the issuer's key with key_env or key_file")
    return tuple(issuers.values()), problems.name(found["audience"]) if "audience" in found else ""


def _matching(node: Node | None, pattern: re.Pattern[str], wanted: str, problems: Problems) -> tuple[str, ...]:
    if node is None:
        return ()
    texts: list[str] = []
    for entry in (node,) if isinstance(node.value, str) else _list(node, problems):
        text = problems.text(entry)
        if text and not pattern.fullmatch(text):
            problems.error(entry, wanted)
        elif text:
            texts.append(text.lower())
    return tuple(texts)
