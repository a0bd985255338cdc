"""The section `providers`: which there are, where they are, and where their secrets are kept.

Decides what may be said about a provider. Reads no secret: a file can be checked on a machine that has none, and a secret in the
file itself is refused without being repeated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from wardwright.config import ENV_NAME, Node, Problems, kind_of
from wardwright.errors import ConfigError, Problem
from wardwright.providers.client import render_headers
from wardwright.providers.script import Line, compile_script
from wardwright.providers.url import Url, parse_url
from wardwright.wire.linear import BadPattern, compile_pattern
from wardwright.wire.turn import WireName

ProviderKind: TypeAlias = Literal["openai", "anthropic", "scripted"]
"""openai: anything that speaks OpenAI's API at its base_url
anthropic: Anthropic's API
scripted: built in, answers from a script"""

KINDS: Final[tuple[ProviderKind, ...]] = ("openai", "anthropic", "scripted")
WIRES: Final[tuple[WireName, ...]] = ("chat_completions", "responses", "anthropic")

SCRIPTED: Final = "scripted"
"""The provider that is always there."""

BASE_URLS: Final[Mapping[str, str]] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}

_SECRET_KEYS: Final = ("api_key", "apikey", "key", "token", "api_token", "secret", "password", "authorization")
_SECRET_HEADER: Final = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
_SET_BY_US: Final = frozenset({"content-type", "accept", "user-agent"})
_NO_SECRETS: Final = "a secret does not belong in this file; name the environment variable (api_key_env) or the file (api_key_file) that holds it"


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret is kept: an environment variable or a file, and which line of the config says so."""

    place: Problem
    env: str = ""
    file: str = ""

    def read(self, environ: Mapping[str, str]) -> str:
        """The secret itself. ConfigError when it is not there, or cannot be sent in a header."""
        if self.env:
            value, where = environ.get(self.env, ""), f"the environment variable {self.env}"
        else:
            where = f"the file {self.file}"
            try:
                value = Path(self.file).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text"
                raise self._refused(f"{where} cannot be read: {why}") from None
        value = value.strip()
        if not value:
            raise self._refused(f"{where} is empty or not set")
        if not value.isascii() or not value.isprintable():
            raise self._refused(f"{where} holds what cannot be sent in a header")
        return value

    def _refused(self, message: str) -> ConfigError:
        place = self.place
        return ConfigError([Problem(place.file, place.line, place.column, place.path, message)])


@dataclass(frozen=True, slots=True)
class IdRule:
    """Which tool-call ids a provider takes, and what others become (G24)."""

    pattern: str
    length: int
    plain: bool = False
    """Letters, digits, `_` and `-` of ASCII fit the pattern: most ids are made of nothing else."""

    def fits(self, call_id: str) -> bool:
        if not 0 < len(call_id) <= self.length:
            return False
        if self.plain and call_id.isascii() and call_id.replace("_", "a").replace("-", "a").isalnum():
            return True
        return (_short if len(call_id) <= 64 else _matches)(self.pattern, call_id)

    def derive(self, call_id: str, attempt: int = 0) -> str:
        """An id that fits, the same for the same id; empty when letters and digits cannot make one."""
        digest = hashlib.blake2b(f"{attempt}:{call_id}".encode("utf-8", "replace")).hexdigest()
        for derived in (f"call_{digest[:24]}", digest[:24], digest[: self.length]):
            if self.fits(derived):
                return derived
        return ""


def _matches(pattern: str, call_id: str) -> bool:
    return compile_pattern(pattern).fullmatch(call_id) is not None


_short = lru_cache(8192)(_matches)
"""A conversation brings the same ids with every request."""

ID_RULES: Final[Mapping[str, IdRule]] = {
    "openai": IdRule(r"[\x21-\x7e]+", 40, plain=True),
    "anthropic": IdRule(r"[a-zA-Z0-9_-]+", 64, plain=True),
    "scripted": IdRule(r"(?s).+", 1_000_000, plain=True),
}


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One provider as the file describes it."""

    name: str
    kind: ProviderKind
    url: Url | None = None
    """None for a scripted one."""
    key: Secret | None = None
    wires: tuple[WireName, ...] = WIRES
    """What it speaks; a request on another wire is translated to the first."""
    headers: tuple[tuple[str, str | Secret], ...] = ()
    timeout_ms: int = 60_000
    """Until an answer begins, and between two pieces of it."""
    connect_timeout_ms: int = 5_000
    retries: int = 2
    breaker_failures: int = 5
    breaker_open_ms: int = 30_000
    max_connections: int = 100
    ids: IdRule = field(default_factory=lambda: ID_RULES["scripted"])
    script: tuple[Line, ...] = ()


PROVIDER_KEYS: Final = (
    "base_url",
    "api_key_env",
    "api_key_file",
    "wires",
    "headers",
    "timeout",
    "connect_timeout",
    "retries",
    "breaker",
    "max_connections",
    "ids",
    "script",
)


def compile_providers(node: Node | None, problems: Problems) -> Mapping[str, ProviderConfig]:
    """All providers by name; the scripted one is always among them."""
    found: dict[str, ProviderConfig] = {SCRIPTED: ProviderConfig(SCRIPTED, "scripted")}
    if node is None:
        return found
    for name, child in _named(node, problems):
        config = _provider(name, child, problems)
        if name == SCRIPTED and config.kind != "scripted" and child.items().get("kind") is not None:
            problems.error(child, "'scripted' is the provider that is built in; give this one another name")
            continue
        found[name] = config
    return found


def _named(node: Node, problems: Problems) -> Iterable[tuple[str, Node]]:
    """`{name: {…}}`, or a list of mappings with `name` (or `id`)."""
    if isinstance(node.value, dict):
        for name, child in node.value.items():
            if not name or name.strip() != name or not name.isprintable():
                problems.error(child, f"{name!r} cannot be a name: it has spaces around it, or what cannot be printed")
            yield name, child
        return
    seen: dict[str, int] = {}
    for child in problems.sequence(node):
        entries = dict(child.items())
        given = [entries.pop(key) for key in ("name", "id") if key in entries]
        if len(given) != 1:
            problems.error(child, "needs one 'name'" if isinstance(child.value, dict) else "expected a mapping")
            continue
        name = problems.name(given[0])
        if name in seen:
            problems.error(given[0], f"provider '{name}' is already used at line {seen[name]}")
        seen[name] = child.line
        yield name, Node(entries, child.line, child.column, child.path)


def _provider(name: str, node: Node, problems: Problems) -> ProviderConfig:
    entries = node.items()
    literal = [key for key in entries if key.lower().replace("-", "_") in _SECRET_KEYS]
    for key in literal:
        problems.error(entries[key], _NO_SECRETS)
    if literal:
        node = Node(
            {key: child for key, child in entries.items() if key not in literal}, node.line, node.column, node.path
        )
    given = problems.mapping(node, ("kind",), PROVIDER_KEYS)
    kind = cast("ProviderKind", problems.choice(given["kind"], KINDS)) if "kind" in given else "openai"
    # A kind that is not known is told once; nothing is told that would follow from it.
    named = "kind" in given and given["kind"].value == kind
    if kind == "scripted":
        for key in given:
            if key not in ("kind", "script", "ids"):
                problems.error(given[key], f"a scripted provider has no '{key}'")
    elif named and "script" in given:
        problems.error(given["script"], f"only a scripted provider has a script; this one is of kind {kind}")
    script = compile_script(given["script"], problems) if "script" in given else ()
    ids = _ids(given["ids"], kind, problems) if "ids" in given else ID_RULES[kind]
    if kind == "scripted":
        return ProviderConfig(name, kind, ids=ids, script=script)
    url = _url(given.get("base_url"), BASE_URLS[kind], problems)
    key = _key(given, problems)
    headers = _headers(given["headers"], problems) if "headers" in given else ()
    if not url.loopback:
        secret = key is not None or any(isinstance(value, Secret) for _, value in headers)
        if named and not secret and not literal and not {"api_key_env", "api_key_file"} & given.keys():
            problems.warn(node, "neither api_key_env nor api_key_file: requests go out without a key")
        if secret and not url.tls:
            problems.warn(given.get("base_url", node), "http:// sends the key over the network for anybody to read")
    breaker = problems.mapping(given["breaker"], (), ("failures", "open")) if "breaker" in given else {}
    return ProviderConfig(
        name,
        kind,
        url,
        key,
        _wires(given.get("wires"), kind, url, problems),
        headers,
        problems.duration_ms(given["timeout"]) if "timeout" in given else 60_000,
        problems.duration_ms(given["connect_timeout"]) if "connect_timeout" in given else 5_000,
        problems.integer(given["retries"], 0) if "retries" in given else 2,
        problems.integer(breaker["failures"], 1) if "failures" in breaker else 5,
        problems.duration_ms(breaker["open"]) if "open" in breaker else 30_000,
        problems.integer(given["max_connections"], 1) if "max_connections" in given else 100,
        ids,
    )


def _url(node: Node | None, default: str, problems: Problems) -> Url:
    text = problems.text(node) if node is not None else ""
    if node is not None and text:
        try:
            return parse_url(text)
        except ValueError as error:
            problems.error(node, str(error))
    return parse_url(default)


def _wires(node: Node | None, kind: ProviderKind, url: Url, problems: Problems) -> tuple[WireName, ...]:
    if node is not None:
        return tuple(dict.fromkeys(cast("tuple[WireName, ...]", problems.choices(node, WIRES))))
    if kind == "anthropic":
        return ("anthropic",)
    # Those who copy OpenAI's API copy Chat Completions; Responses is asked for only where it is known to be.
    official = url.host == "api.openai.com"
    return ("chat_completions", "responses") if official else ("chat_completions",)


def _key(given: Mapping[str, Node], problems: Problems) -> Secret | None:
    if "api_key_env" in given and "api_key_file" in given:
        problems.error(given["api_key_file"], "the key is given twice: api_key_env and api_key_file")
    for kind in ("env", "file"):
        node = given.get(f"api_key_{kind}")
        if node is not None:
            return _secret(kind, node, problems)
    return None


def _secret(kind: str, node: Node, problems: Problems) -> Secret | None:
    text = problems.text(node)
    place = Problem(problems.file, node.line, node.column, node.path, "")
    if not text:
        return None
    if kind == "file":
        return Secret(place, file=text)
    if not ENV_NAME.fullmatch(text):
        problems.error(
            node, "this is no name of an environment variable; the secret itself does not belong in this file"
        )
        return None
    return Secret(place, env=text)


def _headers(node: Node, problems: Problems) -> tuple[tuple[str, str | Secret], ...]:
    """`{name: text}`, or `{name: {env: NAME}}` and `{name: {file: PATH}}` for secrets."""
    found: list[tuple[str, str | Secret]] = []
    if not isinstance(node.value, dict):
        problems.error(node, f"expected a mapping, got {kind_of(node)}")
    for name, child in node.items().items():
        value: str | Secret | None
        if isinstance(child.value, dict):
            given = problems.mapping(child, (), ("env", "file"))
            if len(given) != 1:
                problems.error(child, "needs one of env and file")
                continue
            [(kind, inner)] = given.items()
            value = _secret(kind, inner, problems)
        elif _SECRET_HEADER.search(name):
            problems.error(child, f"the value of '{name}' is a secret: say {{env: NAME}} or {{file: PATH}}")
            continue
        else:
            value = problems.text(child, empty=True)
        if name.lower() in _SET_BY_US:
            problems.error(child, f"the header '{name}' is set by the gateway itself")
            continue
        try:
            render_headers([(name, value if isinstance(value, str) else "")])
        except ValueError as error:
            problems.error(child, str(error))
            continue
        if value is not None:
            found.append((name, value))
    return tuple(found)


def _ids(node: Node, kind: ProviderKind, problems: Problems) -> IdRule:
    given = problems.mapping(node, (), ("pattern", "length"))
    default = ID_RULES[kind]
    pattern = problems.text(given["pattern"]) if "pattern" in given else default.pattern
    length = problems.integer(given["length"], 1) if "length" in given else min(default.length, 64)
    rule = IdRule(pattern, length)
    try:
        if not rule.derive("any"):
            problems.error(node, f"no id of up to {length} letters and digits fits '{pattern}'")
    except BadPattern as error:
        problems.error(given.get("pattern", node), f"bad regular expression '{pattern}': {error}")
        return default
    return rule
