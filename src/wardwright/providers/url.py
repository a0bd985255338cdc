"""Addresses of providers: what may be one, and how it is written into a request.

Made from config alone, never from what a caller or a provider says: no redirect is followed, so no answer can lead a request elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*")


class Url(NamedTuple):
    """One http or https address without credentials, query or fragment."""

    tls: bool
    host: str
    port: int
    path: str
    """Without a slash at its end; empty for the root."""

    @property
    def authority(self) -> str:
        """As in the Host header: the port only where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def at(self, path: str) -> Url:
        """The address of something below this one."""
        return self._replace(path=_path(self.path + path))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


def parse_url(text: str) -> Url:
    """The address in `text`, or ValueError saying what is wrong with it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("what stands in brackets is no IPv6 address") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("an address starts with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("an address holds no user or password; give a secret by api_key_env or api_key_file")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError("an address has no query and no fragment")
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("the port of an address is a number from 1 to 65535") from None
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("what stands in brackets is no IPv6 address") from None
    elif not _HOST.fullmatch(host):
        raise ValueError("the host of an address is a name of ASCII letters, digits, dots and dashes, or an IP address")
    tls = parts.scheme == "https"
    if port == 0:
        raise ValueError("the port of an address is a number from 1 to 65535")
    return Url(tls, host, port or (443 if tls else 80), _path(parts.path))


def _path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError("the path of an address holds what must be written as %XX")
    return path.rstrip("/")
