"""What may be sent at all: hosts, origins, headers, content types; and what answers are sent with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.http.guard import API_HEADERS, PAGE_HEADERS, Hosts, check, cors, preflight
from wardwright.wire.refusal import Refusal

LOCAL = Hosts()
CONSOLE = "https://console.example.org"


def checked(
    *headers: tuple[str, str], hosts: Hosts = LOCAL, method: str = "POST", host: str | None = "127.0.0.1:8080"
) -> Refusal | None:
    sent: Sequence[tuple[str, str]] = ((("host", host),) if host is not None else ()) + headers
    raw = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in sent]
    scope: dict[str, Any] = {"type": "http", "method": method, "headers": raw}
    return check(scope, dict(raw), hosts, 1_000)


def code(refusal: Refusal | None) -> str:
    return "" if refusal is None else refusal.code


def test_what_the_official_clients_send_is_in_order() -> None:
    """Nothing to refuse, nothing to add."""
    assert (
        checked(
            ("authorization", "Bearer x"),
            ("content-type", "application/json"),
            ("accept-encoding", "gzip, deflate"),
            ("x-stainless-lang", "python"),
        )
        is None
    )


# hosts


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.9.9.9:80",
        "[::1]:8080",
        "[::1]",
    ],
)
def test_on_a_loopback_address_this_machine_s_names_are_answered(host: str) -> None:
    """With any port: tunnels and containers move it."""
    assert checked(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8080",
        "192.168.1.5",
        "0.0.0.0",
        "",
        ":8080",
        "[::1",
        "[::1]x:80",
        "localhost:80:80",
        "localhost:x",
        "user@localhost",
        "localhost/x",
        "localhost ",
        "127.0.0.1\x00",
        None,
    ],
)
def test_on_a_loopback_address_no_other_name_is_answered(host: str | None) -> None:
    """G63: a foreign name that resolves to us (DNS rebinding) gets nothing."""
    assert code(checked(host=host)) == "host_not_allowed"


def test_a_refused_host_is_told_what_an_operator_can_do() -> None:
    """The sentence is the one that a person reads."""
    assert checked(host="ward.example.org") == Refusal(
        403,
        "permission_error",
        "host_not_allowed",
        "The gateway does not answer to the host 'ward.example.org'. An operator can add it to auth.hosts.",
    )


def test_listed_names_are_answered() -> None:
    """Whole, or below a domain."""
    hosts = Hosts(["Ward.example.org", "*.apps.example.org"], bind_host="0.0.0.0")
    names = ["ward.example.org:443", "a.apps.example.org", "apps.example.org", "xapps.example.org", "example.org"]

    assert [hosts.allows(name) for name in names] == [True, True, False, False, False]


def test_on_an_open_address_every_address_is_answered_and_no_unlisted_name() -> None:
    """An address cannot be rebound."""
    hosts = Hosts(bind_host="0.0.0.0")

    assert [hosts.allows(host) for host in ("10.1.2.3:80", "[2001:db8::1]", "localhost", "evil.example")] == [
        True,
        True,
        True,
        False,
    ]


def test_the_name_we_listen_on_is_answered() -> None:
    """Nobody needs to list it again."""
    assert Hosts(bind_host="gateway.internal").allows("gateway.internal:8080")


def test_a_star_answers_to_every_name() -> None:
    """For those who check hosts before us."""
    assert Hosts(["*"]).allows("anything.example")


@given(st.text(max_size=30))
def test_no_host_header_is_answered_without_naming_us(host: str) -> None:
    """Whatever it is made of: the second look says what the first did."""
    hosts = Hosts()
    first = hosts.allows(host)

    assert hosts.allows(host) is first
    assert not first or host.lower().startswith(("localhost", "127.", "[::1]", "::1"))


# origins


def test_our_own_pages_may_ask() -> None:
    """The origin is the host that was asked."""
    assert checked(("origin", "http://127.0.0.1:8080")) is None
    assert checked(("origin", "HTTP://LOCALHOST:8080"), host="localhost:8080") is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1:9999",
        "http://127.0.0.1",
        "null",
        "",
        "http://",
        "127.0.0.1:8080",
        "http://127.0.0.1:8080.evil.example",
    ],
)
def test_pages_of_others_may_not_ask(origin: str) -> None:
    """G63: not even of another port of this machine."""
    assert code(checked(("origin", origin))) == "origin_not_allowed"


def test_a_refused_origin_is_told_what_an_operator_can_do() -> None:
    """The sentence is the one that a person reads."""
    assert checked(("origin", CONSOLE)) == Refusal(
        403,
        "permission_error",
        "origin_not_allowed",
        "Pages of 'https://console.example.org' may not ask this gateway. An operator can add it to auth.origins.",
    )


def test_a_long_header_is_not_repeated_whole() -> None:
    """A refusal is no mirror."""
    refusal = checked(("origin", "https://" + "x" * 500))

    assert refusal is not None
    assert len(refusal.message) < 200


def test_listed_origins_may_ask() -> None:
    """And only those."""
    hosts = Hosts(origins=[CONSOLE])

    assert checked(("origin", CONSOLE), hosts=hosts) is None
    assert code(checked(("origin", CONSOLE + ".evil.example"), hosts=hosts)) == "origin_not_allowed"


def test_a_cross_site_request_that_hides_its_origin_is_refused() -> None:
    """G63: browsers say where a request comes from in two places; following a link is no sending."""
    site = ("sec-fetch-site", "cross-site")

    assert checked(site) == Refusal(
        403, "permission_error", "origin_not_allowed", "A page of another site may not send this to the gateway."
    )
    assert checked(site, method="GET") is None
    assert checked(("sec-fetch-site", "same-origin")) is None


# headers and bodies


def test_headers_have_a_limit_in_bytes_and_in_number() -> None:
    """G64: names count too."""
    message = "The headers are longer than 1000 bytes, or more than 100."

    assert checked(("x-a", "x" * 1_000)) == Refusal(431, "invalid_request_error", "headers_too_large", message)
    assert code(checked(*((f"x{n}", "") for n in range(100)))) == "headers_too_large"
    assert checked(*((f"x{n}", "") for n in range(99))) is None
    assert code(checked(("x" * 990, ""))) == "headers_too_large"


@pytest.mark.parametrize(
    "name",
    [
        "host",
        "authorization",
        "x-api-key",
        "content-length",
        "content-type",
        "origin",
        "x-wardwright-session-id",
        "x-wardwright-attestation",
    ],
)
def test_a_header_that_decides_something_is_sent_once(name: str) -> None:
    """Two readers would take two different ones."""
    assert checked((name, "1"), (name, "2")) == Refusal(
        400, "invalid_request_error", "header_repeated", f"The header {name} was sent more than once."
    )


def test_other_headers_may_be_repeated() -> None:
    """That is their right in HTTP."""
    assert checked(("accept", "a"), ("accept", "b")) is None


@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("Application/JSON", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("application/json-patch", False),
        ("", False),
    ],
)
def test_a_body_is_json(kind: str, fine: bool) -> None:
    """What a form of any page can send is not taken."""
    refusal = checked(("content-type", kind))

    assert (refusal is None) is fine
    if refusal is not None:
        assert refusal == Refusal(
            415,
            "invalid_request_error",
            "unsupported_media_type",
            "The body must be JSON: send it with `Content-Type: application/json`.",
        )


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "GZIP"])
def test_compressed_bodies_are_not_read(encoding: str) -> None:
    """A small body that unfolds into a big one is never unfolded."""
    assert checked(("content-encoding", encoding)) == Refusal(
        415,
        "invalid_request_error",
        "unsupported_content_encoding",
        "Compressed bodies are not read: send the body as it is.",
    )
    assert checked(("content-encoding", "identity")) is None


# what answers are sent with


def test_nobody_s_pages_may_read_answers_by_default() -> None:
    """No CORS header at all."""
    assert cors({"origin": CONSOLE}, LOCAL) == []
    assert cors({}, Hosts(origins=[CONSOLE])) == []
    assert preflight({"origin": CONSOLE, "access-control-request-headers": "authorization"}, LOCAL) is None


def test_a_listed_origin_s_pages_may_read_answers() -> None:
    """That origin by name, never a star, never with cookies."""
    allowed = dict(cors({"origin": CONSOLE}, Hosts(origins=[CONSOLE])))

    assert allowed[b"access-control-allow-origin"] == CONSOLE.encode()
    assert allowed[b"vary"] == b"origin"
    assert b"access-control-allow-credentials" not in allowed


def test_a_listed_origin_is_told_what_it_may_send() -> None:
    """The headers it asks for, as long as they look like headers."""
    hosts = Hosts(origins=[CONSOLE])
    asked = {"origin": CONSOLE, "access-control-request-headers": "authorization,x-stainless-lang"}
    odd = {"origin": CONSOLE, "access-control-request-headers": "x\r\nset-cookie: a"}

    assert dict(preflight(asked, hosts) or [])[b"access-control-allow-headers"] == b"authorization,x-stainless-lang"
    assert b"access-control-allow-headers" not in dict(preflight(odd, hosts) or [])


def test_pages_run_their_own_scripts_alone_and_in_no_frame() -> None:
    """What the headers must say, whatever else they say."""
    sent = dict(PAGE_HEADERS)
    policy = sent[b"content-security-policy"].decode()

    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (sent[b"x-frame-options"], sent[b"referrer-policy"]) == (b"DENY", b"same-origin")
    assert set(API_HEADERS) <= set(PAGE_HEADERS)
    assert dict(API_HEADERS) == {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}
