"""Addresses: what may be one, and how it is written."""

from __future__ import annotations

import pytest

from wardwright.providers.url import Url, parse_url


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("https://api.example.test/v1", Url(True, "api.example.test", 443, "/v1"), "api.example.test"),
        ("http://127.0.0.1:8000/", Url(False, "127.0.0.1", 8000, ""), "127.0.0.1:8000"),
        ("HTTP://LocalHost", Url(False, "localhost", 80, ""), "localhost"),
        ("https://[::1]:8443/a/b/", Url(True, "::1", 8443, "/a/b"), "[::1]:8443"),
        ("http://x:443", Url(False, "x", 443, ""), "x:443"),
    ],
)
def test_an_address_is_read(text: str, url: Url, authority: str) -> None:
    """Scheme, host, port and path; the usual port is not written into the Host header."""
    assert parse_url(text) == url
    assert url.authority == authority
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://x/", "an address starts with http:// or https://"),
        ("api.example.test/v1", "an address starts with http:// or https://"),
        ("file:///etc/passwd", "an address starts with http:// or https://"),
        (
            "https://user:pass@x/",
            "an address holds no user or password; give a secret by api_key_env or api_key_file",
        ),
        ("https://x/?key=1", "an address has no query and no fragment"),
        ("https://x/#a", "an address has no query and no fragment"),
        ("https://x/?", "an address has no query and no fragment"),
        ("https://x:0/", "the port of an address is a number from 1 to 65535"),
        ("https://x:99999/", "the port of an address is a number from 1 to 65535"),
        ("https://x:http/", "the port of an address is a number from 1 to 65535"),
        (
            "https:///v1",
            "the host of an address is a name of ASCII letters, digits, dots and dashes, or an IP address",
        ),
        (
            "https://exämple.test/",
            "the host of an address is a name of ASCII letters, digits, dots and dashes, or an IP address",
        ),
        (
            "https://x%0d%0ay/",
            "the host of an address is a name of ASCII letters, digits, dots and dashes, or an IP address",
        ),
        ("https://[1.2]/", "what stands in brackets is no IPv6 address"),
        ("https://x/a b", "the path of an address holds what must be written as %XX"),
        ("https://x/ä", "the path of an address holds what must be written as %XX"),
        ("https://[::1/", "what stands in brackets is no IPv6 address"),
    ],
)
def test_what_is_no_address_is_told(text: str, message: str) -> None:
    """Each mistake has its own sentence."""
    with pytest.raises(ValueError) as failed:
        parse_url(text)
    assert str(failed.value) == message


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("http://127.0.0.1", True),
        ("http://127.9.9.9", True),
        ("http://[::1]", True),
        ("http://localhost", True),
        ("http://a.localhost", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example.test", False),
        ("http://127.0.0.1.example.test", False),
    ],
)
def test_loopback_is_the_machine_itself(text: str, loopback: bool) -> None:
    """Names that merely look like it are not."""
    assert parse_url(text).loopback is loopback


def test_what_is_below_an_address_stays_there() -> None:
    """A path is added to the end, and stays a path."""
    assert str(parse_url("https://x/v1/").at("/chat/completions")) == "https://x/v1/chat/completions"
    with pytest.raises(ValueError, match="the path of an address"):
        parse_url("https://x/v1").at("/a\r\nhost: y")
