"""The gateway's own secrets: one ring of keys, where it lies, and what is derived from it. `docs/keys.md` is the page.

A ring has *digests* (what makes equal arguments look equal in history; `rotate` leaves them alone, so no counter is lost) and
*generations* (sealing and signing; the newest is used, all of them still open and verify). It lies in a file that only its owner
can read, or comes in by the environment so that machines share it. No secret is ever part of a repr, a message or an error.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, cast

import orjson

from wardwright.config import ENV_NAME, Node, Problems
from wardwright.errors import WardwrightError

RING_ENV: Final = "WARDWRIGHT_KEYS"
"""The ring itself, as `Keyring.export` wrote it."""
RING_FILE_ENV: Final = "WARDWRIGHT_KEYS_FILE"
"""A file with the ring; it must exist, because two machines that each made one would not share it."""

DIGEST_DELAY_MS: Final = 3_600_000
"""A new digest secret is used only by sessions that begin this much later: time to give the ring to every machine."""

_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 24
_ID_BYTES: Final = 8
_MAGIC: Final = b"ww1"
_SEALED_HEAD: Final = len(_MAGIC) + _ID_BYTES + _SALT_BYTES
_NONCE: Final = bytes(12)
_SEPARATOR: Final = "\x1f"
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_SECRET: Final = 65_536
_MAX_TENANTS: Final = 1_024
_MAX_SCOPES: Final = 8_192
_LONG_SCOPE: Final = 512
"""Callers name sessions: one whose name is longer is not remembered."""

_sha256 = hashlib.sha256


class KeysUnusable(WardwrightError, RuntimeError):
    """The ring, or a secret that the config names, cannot be read or written. Says where, never what."""

    code: ClassVar[str] = "keys_unusable"


class SealBroken(WardwrightError, ValueError):
    """Sealed data was changed, belongs elsewhere, or was sealed with a generation that is gone."""

    status: ClassVar[int] = 410
    code: ClassVar[str] = "sealed_missing"


# Secrets that a config names


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where a secret lies: an environment variable or a file. Read when the gateway starts, never by `check`."""

    env: str = ""
    file: str = ""

    def read(self, what: str, environ: Mapping[str, str] | None = None, *, lines: bool = False) -> str:
        """The secret without white space around it. KeysUnusable, naming `what` wants it, when there is none.
        `lines`: it may have several, as a public key in PEM form has."""
        if self.env:
            value = (os.environ if environ is None else environ).get(self.env, "").strip()
            problem = f"the environment variable {self.env} is not set or empty"
        else:
            value, problem = _file_text(Path(self.file))
        if not value:
            raise KeysUnusable(f"{what}: {problem}.")
        if not (value.replace("\n", "").replace("\r", "") if lines else value).isprintable():
            raise KeysUnusable(f"{what}: the secret has line breaks or characters that cannot be printed.")
        return value


def secret_keys(prefix: str) -> tuple[str, str]:
    """The two keys under which a section names a secret, for `Problems.mapping`."""
    return f"{prefix}_env", f"{prefix}_file"


def compile_secret(entries: Mapping[str, Node], prefix: str, problems: Problems) -> SecretSource | None:
    """The source that `<prefix>_env` or `<prefix>_file` names; None when there is neither, or it was wrong.

    What stands there is never repeated in a problem: people put the secret itself in the wrong place.
    """
    env, file = entries.get(f"{prefix}_env"), entries.get(f"{prefix}_file")
    if env is not None and file is not None:
        problems.error(file, f"give {prefix}_env or {prefix}_file, not both")
    if env is not None:
        if isinstance(env.value, str) and ENV_NAME.fullmatch(env.value):
            return SecretSource(env=env.value)
        problems.error(
            env,
            "expected the name of an environment variable, such as WARDWRIGHT_API_KEY; "
            "the secret itself has no place in a config file",
        )
        return None
    if file is not None:
        if isinstance(file.value, str) and file.value:
            return SecretSource(file=file.value)
        problems.error(file, "expected the path of a file that holds the secret")
    return None


def refuse_literals(node: Node, words: tuple[str, ...], instead: str, problems: Problems) -> Node:
    """The node without keys that would hold a secret in clear; each of them is a problem that says what to write instead."""
    found = [word for word in words if word in node.items()]
    if not found:
        return node
    for word in found:
        problems.error(node.items()[word], f"'{word}': a secret has no place in a config file; {instead}")
    kept = {key: child for key, child in node.items().items() if key not in found}
    return Node(kept, node.line, node.column, node.path)


# Keys of callers and operators


def new_secret(prefix: str = "wwk") -> str:
    """A new key for a caller or an operator: 256 random bits."""
    return f"{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def hash_key(secret: str) -> str:
    """What a config or a ring keeps of a caller's key. Not salted: keys are random, not chosen by people."""
    return f"sha256:{_sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_key_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def verify_key(secret: str, key_hash: str) -> bool:
    """In constant time whether the hash is that of the secret."""
    return hmac.compare_digest(hash_key(secret).encode(), key_hash.encode("utf-8", "surrogatepass"))


# The ring


@dataclass(frozen=True, slots=True)
class Generation:
    """One secret of the ring with everything derived from it. `id` may be shown."""

    id: str
    at_ms: int
    """Sealing and signing: when it was made. Digests: which sessions use it (those that began then or later)."""
    secret: bytes = field(repr=False)
    sealing: bytes = field(repr=False)
    signing: bytes = field(repr=False)


class _Ring:
    """What a ring's text says; never changed once read. `scopes` and `tenants` only remember what was derived."""

    __slots__ = ("admin_hash", "by_id", "digests", "generations", "scopes", "tenants")

    def __init__(
        self, digests: tuple[Generation, ...], generations: tuple[Generation, ...], admin_hash: str = ""
    ) -> None:
        self.digests = tuple(sorted(digests, key=lambda one: one.at_ms))
        self.generations = generations
        self.admin_hash = admin_hash
        self.tenants: dict[str, dict[str, bytes]] = {one.id: {} for one in self.digests}
        """By digest secret and by all of a scope but its last part."""
        self.scopes: dict[str, bytes] = {}
        """By scope, while there is one digest secret: every gate asks."""
        self.by_id = {bytes.fromhex(one.id): one for one in generations}

    def dump(self) -> bytes:
        return orjson.dumps(
            {
                "version": 1,
                "digests": [{"from_ms": one.at_ms, "secret": _text(one.secret)} for one in self.digests],
                "generations": [{"made_ms": one.at_ms, "secret": _text(one.secret)} for one in self.generations],
                "admin": self.admin_hash,
            }
        )


class Keyring:
    """The keys of one deployment. Made once per process at start; safe for several threads: a reload swaps one reference."""

    __slots__ = ("_path", "_ring", "_stamp", "_where")

    def __init__(self, ring: _Ring, where: str, path: Path | None) -> None:
        self._ring = ring
        self._where = where
        self._path = path
        self._stamp = (0, 0)

    def __repr__(self) -> str:
        return f"Keyring({len(self._ring.generations)} generations, {self._where})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A ring of keys cannot be pickled.")

    # where it comes from

    @classmethod
    def load_or_create(
        cls, path: str | os.PathLike[str] | None, environ: Mapping[str, str] | None = None, *, make: bool = True
    ) -> Keyring:
        """The ring of `WARDWRIGHT_KEYS`, else the file of `WARDWRIGHT_KEYS_FILE`, else `path`, made there if it is missing and
        `make` says so.

        `path` lies beside the database (`ring_path`); None when there is no such place, as with a database server.
        """
        environ = os.environ if environ is None else environ
        text = environ.get(RING_ENV, "").strip()
        if text:
            return cls(
                _parse(text.encode("utf-8", "surrogatepass"), f"the environment variable {RING_ENV}"), "env", None
            )
        named = environ.get(RING_FILE_ENV, "")
        if named:
            return cls.load(named)
        if path is None:
            raise KeysUnusable(
                f"Machines that share a database must share their keys. Set {RING_FILE_ENV} to a file made by "
                f"`wardwright keys create FILE`, or {RING_ENV} to what is in it."
            )
        if make and not Path(path).exists():
            return cls.create(path, exist_ok=True)
        return cls.load(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keyring:
        """The ring of a file that exists and that others can neither read nor change."""
        place = Path(path)
        return cls(_read(place), "file", place)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, exist_ok: bool = False, now_ms: int = 0) -> Keyring:
        """A new ring in a new file with mode 0600. Of several processes that try at once one makes it; with `exist_ok` the
        others read that one."""
        place = Path(path)
        ring = _Ring((_generation(_random(), 0),), (_generation(_random(), now_ms),))
        try:
            made = _write_beside(place, ring)
            try:
                os.link(made, place)
            finally:
                made.unlink()
        except FileExistsError:
            if exist_ok:
                return cls.load(place)
            problem = "it exists already"
        except OSError as error:
            problem = error.strerror or "cannot be written"
        else:
            return cls(ring, "file", place)
        raise KeysUnusable(f"The key file {place} cannot be made: {problem}.")

    @classmethod
    def ephemeral(cls) -> Keyring:
        """A ring that lives as long as the process: for tests and for a database in memory."""
        return cls(_Ring((_generation(_random(), 0),), (_generation(_random(), 0),)), "memory", None)

    def export(self) -> str:
        """The whole ring on one line, for `WARDWRIGHT_KEYS`. Secret."""
        return self._ring.dump().decode()

    def reload(self) -> None:
        """Follows what another process wrote into the file; costs one look at it when nobody did. A ring of the environment
        stays as it is. KeysUnusable when the file is gone or broken; then the ring stays as it was."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except OSError as error:
            problem = error.strerror or "unreadable"
        else:
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                self._ring = _read(self._path)
                self._stamp = stamp
            return
        raise KeysUnusable(f"The key file {self._path} cannot be used: {problem}.")

    # what is derived from it

    def session_key(self, scope: str, since_ms: int | None = None) -> bytes:
        """The digest key of the tenant that `scope` (as `history.scope_key` makes it) belongs to; 32 bytes.

        One key per tenant and not per session: a rule over a user or a tenant must know equal arguments in several sessions,
        or a new session id would escape it. `since_ms`: when the session began (`Head.since_ms`; now for a new one), so that a
        running session keeps the digests it has when the digest secret is replaced. None: the ring's first secret, always.
        """
        ring = self._ring
        scopes, digests = ring.scopes, ring.digests
        key = scopes.get(scope)
        if key is not None:
            return key
        used = digests[0]
        if since_ms is not None and len(digests) > 1:
            for one in digests:
                if one.at_ms <= since_ms:
                    used = one
        known = ring.tenants[used.id]
        names = scope.rpartition(_SEPARATOR)[0]
        key = known.get(names)
        if key is None:
            parts = scope.split(_SEPARATOR, 2)
            tenant = parts[1] if len(parts) > 1 else scope
            key = hmac.digest(used.secret, b"digest\n" + tenant.encode("utf-8", "surrogatepass"), "sha256")
            if len(parts) > 2:  # else these names do not tell the tenant
                if len(known) >= _MAX_TENANTS:
                    # Callers may be let to name tenants.
                    known.clear()
                known[names] = key
        if len(digests) == 1 and len(scope) <= _LONG_SCOPE:
            if len(scopes) >= _MAX_SCOPES:
                scopes.clear()
            scopes[scope] = key
        return key

    def stable_key(self, purpose: str) -> bytes:
        """A key for one purpose (redaction of exports, handles of approvals …) that stays the same for the ring's whole life."""
        return hmac.digest(self._ring.digests[0].secret, b"stable\n" + purpose.encode(), "sha256")

    @property
    def signing_key(self) -> bytes:
        """Signs checkpoints, cuts and erasures from now on."""
        return self._ring.generations[-1].signing

    @property
    def signing_keys(self) -> tuple[bytes, ...]:
        """Newest first: what `store.verify` needs to know signatures of earlier generations."""
        return tuple(one.signing for one in reversed(self._ring.generations))

    @property
    def generations(self) -> tuple[tuple[str, int], ...]:
        """Id and time of every generation, oldest first. Nothing secret."""
        return tuple((one.id, one.at_ms) for one in self._ring.generations)

    # sealing

    def seal(self, plain: bytes, aad: bytes) -> bytes:
        """Encrypts and authenticates with the newest generation. `aad` is what the data belongs to (scope and name of its row):
        sealed data moved elsewhere does not open."""
        generation = self._ring.generations[-1]
        salt = secrets.token_bytes(_SALT_BYTES)
        head = _MAGIC + bytes.fromhex(generation.id) + salt
        return head + _cipher(generation, salt).encrypt(_NONCE, plain, head + aad)

    def unseal(self, data: bytes, aad: bytes) -> bytes:
        """What was sealed, by any generation. SealBroken when it does not open."""
        if len(data) < _SEALED_HEAD or not data.startswith(_MAGIC):
            raise SealBroken("This is no sealed data.")
        name = data[len(_MAGIC) : len(_MAGIC) + _ID_BYTES]
        generation = self._ring.by_id.get(name)
        if generation is None:
            # Another process may have rotated since we read the file.
            with suppress(KeysUnusable):
                self.reload()
            generation = self._ring.by_id.get(name)
        if generation is None:
            raise SealBroken(f"Sealed with the generation {name.hex()}, which is not in this ring.")
        head = data[:_SEALED_HEAD]
        from cryptography.exceptions import InvalidTag

        try:
            return _cipher(generation, head[-_SALT_BYTES:]).decrypt(_NONCE, data[_SEALED_HEAD:], head + aad)
        except InvalidTag:
            pass
        raise SealBroken("The sealed data was changed, or belongs elsewhere.")

    # changing it

    def rotate(self, now_ms: int) -> str:
        """Adds a generation for sealing and signing; its id. Digests stay, so counters and running sessions go on."""
        made = _generation(_random(), now_ms)
        self._change(lambda ring: _Ring(ring.digests, (*ring.generations, made), ring.admin_hash))
        return made.id

    def replace_digest(self, now_ms: int, *, delay_ms: int = DIGEST_DELAY_MS) -> int:
        """Adds a digest secret, for the case that the old one leaked; since when new sessions use it. Running sessions keep
        theirs. What rules over a user, an application or a tenant counted of *equal arguments* begins anew."""
        from_ms = now_ms + delay_ms
        made = _generation(_random(), from_ms)
        self._change(lambda ring: _Ring((*ring.digests, made), ring.generations, ring.admin_hash))
        return from_ms

    def retire(self, generation_id: str) -> None:
        """Takes a generation out of the ring. What it sealed is lost; what it signed no longer verifies."""

        def without(ring: _Ring) -> _Ring:
            kept = tuple(one for one in ring.generations if one.id != generation_id)
            if len(kept) == len(ring.generations):
                raise KeysUnusable(f"The ring has no generation {generation_id!r}.")
            if not kept:
                raise KeysUnusable("The last generation cannot be retired: rotate first.")
            return _Ring(ring.digests, kept, ring.admin_hash)

        self._change(without)

    # the admin token

    @property
    def file(self) -> Path | None:
        """Where it lies and can be changed; None: in a variable, or in memory."""
        return self._path

    @property
    def admin_hash(self) -> str:
        """Hash of the generated admin token; empty when none was generated."""
        return self._ring.admin_hash

    def admin_token_once(self) -> str | None:
        """Generates the admin token at first start and gives it to be printed, this one time; its hash stays in the ring.
        None when there is one, or when the ring cannot be written (then the config must name a token)."""
        if self._where == "env":
            return None
        token = new_secret("wwa")
        made = False

        def with_admin(ring: _Ring) -> _Ring:
            nonlocal made
            made = not ring.admin_hash
            return _Ring(ring.digests, ring.generations, hash_key(token)) if made else ring

        self._change(with_admin)
        return token if made else None

    def new_admin_token(self) -> str:
        """Replaces the generated admin token; the old one no longer opens anything once processes have reloaded the ring."""
        token = new_secret("wwa")
        self._change(lambda ring: _Ring(ring.digests, ring.generations, hash_key(token)))
        return token

    def _change(self, change: Callable[[_Ring], _Ring]) -> None:
        if self._where == "env":
            raise KeysUnusable(
                f"This ring comes from {RING_ENV}: change the file it was exported from, and export it again."
            )
        if self._path is None:
            self._ring = change(self._ring)
            return
        path = self._path
        with _locked(path):
            before = _read(path)
            ring = change(before)
            if ring is not before:
                try:
                    _write_beside(path, ring).replace(path)
                except OSError as error:
                    problem = error.strerror or "unknown"
                else:
                    problem = ""
                if problem:
                    raise KeysUnusable(f"The key file {path} cannot be written: {problem}.")
            self._ring = ring


def ring_path(database: str) -> Path | None:
    """Where the ring of a database lies: beside a file, nowhere for a server."""
    if "://" in database:
        return None
    return Path(f"{database}.keys")


def is_ring(path: str | os.PathLike[str]) -> bool:
    """Whether a file that somebody names holds a ring, and not a key of another kind."""
    return _parsed(_file_bytes(Path(path))) is not None


def signing_keys_of(path: str | os.PathLike[str]) -> tuple[bytes, ...]:
    """The keys in a file that somebody names to sign or to verify with, newest first: those of a ring, or the file's bytes."""
    text = _file_bytes(Path(path))
    ring = _parsed(text)
    return (text,) if ring is None else tuple(one.signing for one in reversed(ring.generations))


# Inside


def _random() -> bytes:
    return secrets.token_bytes(_SECRET_BYTES)


def _text(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def _generation(secret: bytes, at_ms: int) -> Generation:
    return Generation(
        _sha256(b"generation\n" + secret).digest()[:_ID_BYTES].hex(),
        at_ms,
        secret,
        hmac.digest(secret, b"sealing", "sha256"),
        hmac.digest(secret, b"signing", "sha256"),
    )


def _cipher(generation: Generation, salt: bytes) -> Any:
    # A key of its own for every message: random nonces under one key may repeat after some billions, this never does.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hmac.digest(generation.sealing, salt, "sha256"))


def _parse(text: bytes, where: str) -> _Ring:
    ring = _parsed(text)
    if ring is None:
        # Raised outside the parser's own error, which holds the text.
        raise KeysUnusable(f"{where[0].upper()}{where[1:]} does not hold a ring of keys of this version.")
    return ring


def _parsed(text: bytes) -> _Ring | None:
    try:
        values: Any = orjson.loads(text)
        if values["version"] != 1:
            return None
        digests = tuple(_stored(one, "from_ms") for one in cast("list[Any]", values["digests"]))
        generations = tuple(_stored(one, "made_ms") for one in cast("list[Any]", values["generations"]))
        admin = values["admin"]
    except (ValueError, KeyError, TypeError):
        return None
    if not digests or not generations or not isinstance(admin, str) or (admin and not is_key_hash(admin)):
        return None
    # Sessions older than the oldest secret use that one too.
    first = min(digests, key=lambda one: one.at_ms)
    digests = tuple(replace(one, at_ms=0) if one is first else one for one in digests)
    return _Ring(digests, generations, admin)


def _stored(value: Mapping[str, Any], at: str) -> Generation:
    secret = base64.b64decode(value["secret"], validate=True)
    at_ms = value[at]
    if len(secret) != _SECRET_BYTES or not isinstance(at_ms, int):
        raise ValueError("not a generation")
    return _generation(secret, at_ms)


def _read(path: Path) -> _Ring:
    text = b""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_SECRET + 1)
    except OSError as error:
        problem = error.strerror or "unreadable"
    else:
        problem = ""
        if mode & 0o027:
            problem = "others can read or change it; run `chmod 600` on it, and rotate if they may have done so"
    if problem:
        raise KeysUnusable(f"The key file {path} cannot be used: {problem}.")
    return _parse(text, f"the key file {path}")


def _file_bytes(path: Path) -> bytes:
    try:
        text = path.read_bytes()
        problem = "" if text else "it is empty"
    except OSError as error:
        text, problem = b"", error.strerror or "unreadable"
    if problem:
        raise KeysUnusable(f"The key file {path} cannot be used: {problem}.")
    return text


def _file_text(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_SECRET + 1)
        if len(text) > _MAX_SECRET:
            return "", f"the file {path} is too long for a secret"
        return text.decode().strip(), f"the file {path} is empty"
    except OSError as error:
        return "", f"the file {path} cannot be read: {error.strerror or 'unknown'}"
    except UnicodeDecodeError:
        return "", f"the file {path} does not hold text"


def _write_beside(path: Path, ring: _Ring) -> Path:
    """The ring in a new file of the same folder, on disk; whoever calls puts it in its place."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(ring.dump())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        made.unlink()
        raise
    return made


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """One writer at a time, over processes. A writer replaces the file, so what was locked may be the old one: look again."""
    descriptor = -1
    try:
        while True:
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
            os.close(descriptor)
            descriptor = -1
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        problem = error.strerror or "unreadable"
    else:
        problem = ""
    if problem:
        raise KeysUnusable(f"The key file {path} cannot be used: {problem}.")
    try:
        yield
    finally:
        os.close(descriptor)
