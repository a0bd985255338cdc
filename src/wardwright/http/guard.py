"""What may be sent at all, before anybody asks who sends it: hosts, origins, headers, content types. And what pages are sent with.

A browser on this machine must not be turned against the gateway: a foreign name that resolves to us (DNS rebinding) fails by its
Host, a foreign page by its Origin. Pure functions over headers; a request that is in order costs a few lookups.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from wardwright.http.auth import is_local
from wardwright.wire.refusal import Refusal

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]

HEADERS: Final = frozenset({"access-control-request-headers", "origin"})
"""What is read here as text."""

MAX_HEADERS: Final = 100

API_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
"""On every answer that is no page."""

PAGE_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    *API_HEADERS,
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""On every page: own scripts and styles only, in no frame, nothing told to others. Not `no-referrer`: with that a browser says of our
own forms that they come from nowhere (`Origin: null`)."""

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_KNOWN_HOSTS: Final = 256
_REQUESTED: Final = re.compile(r"[A-Za-z0-9-]{1,64}( ?, ?[A-Za-z0-9-]{1,64}){0,63}")

_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"transfer-encoding",
        b"x-api-key",
    }
)
"""Sent twice, one reader takes the first and another the last; so do all headers of ours."""
_OURS: Final = b"x-wardwright-"


class Hosts:
    """Which names the gateway answers to, and whose pages may ask it. Made from `auth.hosts` and `auth.origins` at start."""

    __slots__ = ("_any", "_bound_to_all", "_names", "_suffixes", "known", "origins")

    def __init__(self, hosts: Sequence[str] = (), origins: Sequence[str] = (), bind_host: str = "127.0.0.1") -> None:
        self.origins = frozenset(origin.lower() for origin in origins)
        self._any = "*" in hosts
        self._names = frozenset(_bare(host) for host in (*hosts, bind_host) if not host.startswith("*"))
        self._suffixes = tuple(host[1:].lower() for host in hosts if host.startswith("*."))
        self._bound_to_all = not is_local(bind_host)
        self.known: set[bytes] = set()
        """Host headers that were found to name us."""

    def allows(self, host: str) -> bool:
        """Whether a Host header names us. Addresses cannot be rebound, names can: those must be listed."""
        if not self._fits(host):
            return False
        if len(self.known) < _KNOWN_HOSTS and len(host) < _KNOWN_HOSTS and host.isascii():
            self.known.add(host.encode())
        return True

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may ask: our own pages, and those listed."""
        origin = origin.lower()
        return origin in self.origins or origin.partition("://")[2] == host.lower() != ""

    def _fits(self, host: str) -> bool:
        name = _name_of(host)
        if name is None:
            return False
        if name == "localhost" or self._any or name in self._names or name.endswith(self._suffixes):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._bound_to_all or is_local(name)


def check(
    scope: Mapping[str, Any], headers: Mapping[bytes, bytes], hosts: Hosts, header_bytes: int, *, form: bool = False
) -> Refusal | None:
    """Why this request is not read at all; None when it is in order. `headers` are those of the ASGI scope, by name: what is in order
    is compared as it came, and never decoded. `form`: to one of our pages, which take forms and no JSON."""
    return check_sized(scope, headers, size(scope["headers"]), hosts, header_bytes, form)


def size(raw: RawHeaders) -> int:
    """What names and values have together, in bytes."""
    found = 0
    for name, value in raw:
        found += len(name) + len(value)
    return found


def check_sized(
    scope: Mapping[str, Any], headers: Mapping[bytes, bytes], at_most: int, hosts: Hosts, header_bytes: int, form: bool
) -> Refusal | None:
    """The same for who knows how many bytes the headers have `at_most`."""
    raw: RawHeaders = scope["headers"]
    if at_most > header_bytes or len(raw) > MAX_HEADERS:
        return Refusal(
            431,
            "invalid_request_error",
            "headers_too_large",
            f"The headers are longer than {header_bytes} bytes, or more than {MAX_HEADERS}.",
        )
    if len(headers) != len(raw) and (repeated := _repeated(raw)):
        return Refusal(
            400, "invalid_request_error", "header_repeated", f"The header {repeated} was sent more than once."
        )
    host = headers.get(b"host", b"")
    if host not in hosts.known and not hosts.allows(_text(host)):
        return Refusal(
            403,
            "permission_error",
            "host_not_allowed",
            f"The gateway does not answer to the host {_short(_text(host))!r}. An operator can add it to auth.hosts.",
        )
    if b"origin" in headers:
        origin = _text(headers[b"origin"])
        if not hosts.allows_origin(origin, _text(host)):
            return Refusal(
                403,
                "permission_error",
                "origin_not_allowed",
                f"Pages of {_short(origin)!r} may not ask this gateway. An operator can add it to auth.origins.",
            )
    elif (
        b"sec-fetch-site" in headers
        and headers[b"sec-fetch-site"] in (b"cross-site", b"same-site")
        and scope["method"] not in _READING
    ):
        return Refusal(
            403, "permission_error", "origin_not_allowed", "A page of another site may not send this to the gateway."
        )
    kind = headers.get(b"content-type")
    if (
        kind is not None
        and (form or kind != b"application/json")
        and scope["method"] not in _READING
        and not _fits(_text(kind), form)
    ):
        return Refusal(
            415,
            "invalid_request_error",
            "unsupported_media_type",
            "A form of a page is sent as application/x-www-form-urlencoded."
            if form
            else "The body must be JSON: send it with `Content-Type: application/json`.",
        )
    if b"content-encoding" in headers and _text(headers[b"content-encoding"]).strip().lower() not in ("", "identity"):
        return Refusal(
            415,
            "invalid_request_error",
            "unsupported_content_encoding",
            "Compressed bodies are not read: send the body as it is.",
        )
    return None


def cors(headers: Mapping[str, str], hosts: Hosts) -> list[tuple[bytes, bytes]]:
    """What lets a listed origin's page read an answer; nothing for anybody else."""
    origin = headers.get("origin")
    if origin is None or origin.lower() not in hosts.origins:
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"x-wardwright-receipt-id, x-wardwright-selected-model, retry-after"),
        (b"vary", b"origin"),
    ]


def preflight(headers: Mapping[str, str], hosts: Hosts) -> list[tuple[bytes, bytes]] | None:
    """The headers of the answer (204) to a browser's question whether a listed origin may ask; None when it may not."""
    allowed = cors(headers, hosts)
    if not allowed:
        return None
    asked = headers.get("access-control-request-headers", "")
    if _REQUESTED.fullmatch(asked):
        allowed.append((b"access-control-allow-headers", asked.encode("latin-1")))
    allowed.append((b"access-control-allow-methods", b"GET, POST, PUT, DELETE"))
    allowed.append((b"access-control-max-age", b"600"))
    return allowed


def _repeated(raw: RawHeaders) -> str:
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and (name in _SINGLE or name.startswith(_OURS)):
            return name.decode("latin-1")
        seen.add(name)
    return ""


def _name_of(host: str) -> str | None:
    """The name in a Host header, in small letters, without port; None when it is none."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        if not closed or (port and not _is_port(port[1:])) or (port and port[0] != ":"):
            return None
    else:
        name, colon, port = host.partition(":")
        if colon and not _is_port(port):
            return None
    return name.lower().removesuffix(".") or None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _fits(content_type: str, form: bool) -> bool:
    wanted = "application/x-www-form-urlencoded" if form else "application/json"
    return content_type.partition(";")[0].strip().lower() == wanted


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bare(host: str) -> str:
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
