"""Who asks: keys, claims, attestations, operators; and that no secret is ever told."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from wardwright.cli import keys_app
from wardwright.config import Problems, parse_yaml
from wardwright.http.auth import (
    FORWARDING,
    HEADERS,
    ROLES,
    Auth,
    Authenticator,
    Operator,
    Principal,
    Trust,
    attest,
    check_binding,
    compile_auth,
    is_local,
)
from wardwright.keys import Keyring, KeysUnusable, hash_key, new_secret
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import Caller
from weakincentives.clock import FakeClock

PAGE = (Path(__file__).parents[3] / "docs" / "keys.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
KEY, OTHER, ADMIN, APPROVER = (new_secret() for _ in range(4))
SHARED = "an issuer's shared secret of 32+ characters"
NOW = 1_700_000_000
BODY = b'{"model":"m"}'
LOCAL = "127.0.0.1"

SECTION = f"""
keys:
  - id: ci
    hash: {hash_key(KEY)}
    tenant: acme
    application: builds
    may_claim: [session_id, run_id, user]
    models: ["coding-*", small]
    concurrency: 4
  - {{id: attester, hash: "{hash_key(OTHER)}", attest: true, role: viewer}}
operators:
  - {{id: ann, hash: "{hash_key(APPROVER)}", role: approver}}
admin: {{token_env: ADMIN_TOKEN}}
attestation:
  audience: gateway
  issuers: [{{id: runtime, key_env: ISSUER_KEY}}]
"""
ENVIRON = {"ADMIN_TOKEN": ADMIN, "ISSUER_KEY": SHARED}


def compiled(text: str) -> tuple[Auth, list[str]]:
    problems = Problems("w.yaml")
    auth = compile_auth(parse_yaml(text, problems), problems)
    return auth, [f"{problem.path}: {problem.message}" for problem in problems.found]


def authenticator(
    text: str = SECTION,
    bind_host: str = "0.0.0.0",
    environ: Mapping[str, str] | None = None,
    keyring: Keyring | None = None,
) -> Authenticator:
    auth, problems = compiled(text) if text else (Auth(), [])
    assert problems == []
    ring = keyring or Keyring.ephemeral()
    return Authenticator(auth, ring, bind_host, clock=FakeClock(NOW), environ=ENVIRON if environ is None else environ)


def bearer(secret: str, **further: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"} | {name.replace("_", "-"): value for name, value in further.items()}


def known(one: Authenticator, headers: Mapping[str, str], peer: str = LOCAL) -> Principal:
    principal = one.authenticate(headers, peer)
    assert isinstance(principal, Principal), principal
    return principal


def refused(answer: object) -> tuple[int, str]:
    assert isinstance(answer, Refusal)
    return answer.status, answer.code


# headers


class _Asked(dict[str, str]):
    """Headers that know which of them were asked for."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.names: set[object] = set()

    def get(self, name: object, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(str(name), default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(name)
        return super().__contains__(name)


@pytest.mark.parametrize("text", [SECTION, "", "trust_loopback_claims: true"])
@pytest.mark.parametrize("sent", [bearer(KEY), bearer(OTHER), {"x-api-key": KEY}, bearer("no"), {}])
def test_no_header_is_read_that_the_door_may_have_left_out(text: str, sent: dict[str, str]) -> None:
    """Whatever is looked up to know a caller is among the headers that are told to be read."""
    headers = _Asked(sent | {"x-wardwright-attestation": "a.b.c"})
    one = authenticator(text, LOCAL)
    principal = one.authenticate(headers, LOCAL)
    if isinstance(principal, Principal):
        one.caller_for(principal, headers)
        one.refused_claims(principal, headers)
        one.trust(principal, headers, BODY, LOCAL)
    assert {"authorization"} <= headers.names <= HEADERS
    assert FORWARDING <= HEADERS


# keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"authorization": "Basic eDp5", "x-api-key": KEY},
    ],
)
def test_a_key_is_taken_where_the_official_clients_send_it(headers: dict[str, str]) -> None:
    """Both OpenAI's and Anthropic's clients work unchanged."""
    principal = known(authenticator(), headers)

    assert (principal.id, principal.concurrency, principal.attest, principal.role) == ("ci", 4, False, None)
    assert principal.models == ("coding-*", "small")


@pytest.mark.parametrize(
    "secret",
    ["nope", KEY[:-1], KEY + "x", KEY.upper(), hash_key(KEY), "\ud800"],
    ids=["other", "shorter", "longer", "capitals", "hash", "surrogate"],
)
def test_an_unknown_key_is_refused(secret: str) -> None:
    """Not by its beginning, not in other letters, and not by its hash."""
    answer = authenticator().authenticate(bearer(secret), LOCAL)

    assert answer == Refusal(401, "authentication_error", "invalid_api_key", "This key is not known here.")


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer "}, {"x-api-key": ""}, {"authorization": KEY}])
def test_no_key_is_refused_and_the_message_says_how_to_send_one(headers: dict[str, str]) -> None:
    """Where keys are declared."""
    assert authenticator().authenticate(headers, LOCAL) == Refusal(
        401,
        "authentication_error",
        "missing_api_key",
        "A key is needed: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
    )


def test_a_key_may_be_named_by_the_environment_or_a_file(tmp_path: Path) -> None:
    """Then the config has not even a hash."""
    (tmp_path / "key").write_text(OTHER + "\n")
    one = authenticator(
        f"keys: [{{id: a, key_env: A_KEY}}, {{id: b, key_file: {tmp_path / 'key'}}}]", environ={"A_KEY": KEY}
    )

    assert [known(one, bearer(key)).id for key in (KEY, OTHER)] == ["a", "b"]


def test_the_admin_token_opens_the_models_too() -> None:
    """An operator can try what a caller would get."""
    principal = known(authenticator(), bearer(ADMIN))

    assert (principal.id, principal.attest, principal.role) == ("admin", True, "operator")


def test_an_operator_s_token_opens_no_model() -> None:
    """It is for administering alone."""
    assert refused(authenticator().authenticate(bearer(APPROVER), LOCAL)) == (401, "invalid_api_key")


def test_a_key_may_use_the_models_it_names() -> None:
    """Globs over public names; the whole name must fit."""
    one = authenticator()
    ci, attester = known(one, bearer(KEY)), known(one, bearer(OTHER))

    asked = ["coding-balanced", "small", "smaller", "x-coding-a", "Small", "coding-\n"]
    assert [ci.may_use(model) for model in asked] == [True, True, False, False, False, True]
    assert {attester.may_use(model) for model in asked} == {True}
    assert one.model_refused(ci, "small") is None
    assert one.model_refused(ci, "large") == Refusal(
        403, "permission_error", "model_not_allowed", "This key may not use the model 'large'."
    )


# nobody


def test_without_keys_this_machine_may_ask_on_a_loopback_address() -> None:
    """A first try needs no set-up; clients that must send some key may."""
    one = authenticator("", LOCAL)

    assert [known(one, headers, "::1").id for headers in ({}, bearer("sk-anything"))] == ["anonymous", "anonymous"]


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "cf-connecting-ip"])
def test_a_forwarded_request_without_key_is_refused(header: str) -> None:
    """Whoever stands behind a proxy on this machine is not this machine."""
    answer = authenticator("", LOCAL).authenticate({header: "10.0.0.1"}, LOCAL)

    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (401, "forwarded_anonymous")
    assert answer.message == (
        "Requests without a key are taken from this machine alone, and this one was forwarded. "
        "Declare keys under auth.keys, or set auth.anonymous: true."
    )


def test_declared_keys_end_the_days_without() -> None:
    """Who declares keys means them, on a loopback address too."""
    assert refused(authenticator(bind_host=LOCAL).authenticate({}, LOCAL)) == (401, "missing_api_key")


def test_anonymous_can_be_switched_on_and_off() -> None:
    """Beside keys, and without any."""
    both = authenticator(f"{{anonymous: true, keys: [{{id: a, hash: '{hash_key(KEY)}'}}]}}", LOCAL)
    off = authenticator("anonymous: false", LOCAL)

    assert [known(both, headers).id for headers in (bearer(KEY), {}, {"via": "x"})] == ["a", "anonymous", "anonymous"]
    assert refused(off.authenticate({}, LOCAL)) == (401, "missing_api_key")


def test_a_mistyped_key_does_not_become_nobody() -> None:
    """Where keys mean something, its owner would lose what the key pins without knowing."""
    both = authenticator(f"{{anonymous: true, keys: [{{id: a, hash: '{hash_key(KEY)}'}}]}}", LOCAL)

    assert refused(both.authenticate(bearer(KEY[:-1]), LOCAL)) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("host", "section", "says"),
    [
        ("127.0.0.1", "anonymous: true", None),
        ("localhost", "anonymous: false", None),
        ("::1", "anonymous: true", None),
        ("/run/ward.sock", "anonymous: true", None),
        ("0.0.0.0", SECTION, None),
        (
            "0.0.0.0",
            "anonymous: false",
            "will not listen on 0.0.0.0 without authentication. Declare auth.keys, or listen on 127.0.0.1.",
        ),
        (
            "::",
            f"{{anonymous: true, keys: [{{id: a, hash: '{hash_key(KEY)}'}}]}}",
            "will not listen on ::: auth.anonymous lets everybody in. Listen on 127.0.0.1, or declare auth.keys.",
        ),
        (
            "gateway.example.org",
            "hosts: [gateway.example.org]",
            "will not listen on gateway.example.org without authentication. Declare auth.keys, or listen on 127.0.0.1.",
        ),
    ],
)
def test_the_gateway_does_not_listen_to_the_world_without_keys(host: str, section: str, says: str | None) -> None:
    """G63: only on this machine's own addresses may everybody ask."""
    assert check_binding(host, compiled(section)[0]) == says


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("unix:/run/x", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("127.0.0.1.example.org", False),
        ("", False),
        ("localhost.example.org", False),
    ],
)
def test_which_addresses_are_this_machine_s_own(host: str, local: bool) -> None:
    """By the address, never by how a name looks."""
    assert is_local(host) is local


# claims


def test_a_caller_is_what_the_key_pins_and_then_what_it_may_claim() -> None:
    """G20: headers outside `may_claim` change nothing."""
    one = authenticator()
    headers = bearer(
        KEY,
        x_wardwright_session_id=" s1 ",
        x_wardwright_run_id="r1",
        x_wardwright_user_id="eve",
        x_wardwright_agent_id="bot",
        x_wardwright_tenant_id="other",
        x_wardwright_application_id="other",
    )

    assert one.caller_for(known(one, headers), headers) == Caller(
        tenant="acme", application="builds", user="eve", session_id="s1", run_id="r1", principal="ci"
    )
    assert one.refused_claims(known(one, headers), headers) == (
        "claim_refused:agent",
        "claim_refused:application",
        "claim_refused:tenant",
    )


def test_saying_what_is_pinned_anyway_is_no_refused_claim() -> None:
    """A client may repeat what its key says."""
    one = authenticator()
    headers = bearer(KEY, x_wardwright_tenant_id="acme")

    assert one.refused_claims(known(one, headers), headers) == ()


def test_a_refused_claim_s_words_are_not_noted() -> None:
    """What somebody writes into a header may be anything."""
    one = authenticator()
    headers = bearer(KEY, x_wardwright_agent_id="personal data")

    assert "personal" not in str(one.refused_claims(known(one, headers), headers))


def test_every_request_has_a_caller_of_its_own() -> None:
    """The gateway writes the session it found into it."""
    one = authenticator()
    principal = known(one, bearer(KEY))
    first, second = (one.caller_for(principal, {}) for _ in range(2))
    assert isinstance(first, Caller)
    first.session_id = "mine"

    assert isinstance(second, Caller)
    assert (second.session_id, principal.pinned.session_id) == ("", "")


@pytest.mark.parametrize("value", ["a\x1fb", "a\nb", "a" * 257, "\x00", "a\u200bb", "a\xe2\x80\x8bb"])
def test_a_claim_that_is_no_name_is_refused(value: str) -> None:
    """G20: a border between the parts of a scope's key, or a name nobody can read, is no id."""
    one = authenticator()
    answer = one.caller_for(known(one, bearer(KEY)), {"x-wardwright-session-id": value})

    assert answer == Refusal(
        400,
        "invalid_request_error",
        "invalid_claim",
        "The header x-wardwright-session-id must be printable text of at most 256 characters.",
    )


def test_a_claim_may_be_in_any_language() -> None:
    """Clients write UTF-8, the server reads Latin-1: the name on the receipt is the one that was sent."""
    one = authenticator()
    headers = {"x-wardwright-user-id": "Łukasz Müller".encode().decode("latin-1"), "x-wardwright-run-id": "J\xfcrgen"}
    caller = one.caller_for(known(one, bearer(KEY)), headers)

    assert isinstance(caller, Caller)
    assert (caller.user, caller.run_id) == ("Łukasz Müller", "Jürgen")


def test_nobody_may_say_everything_of_himself() -> None:
    """On one's own machine there is nobody to protect from."""
    one = authenticator("", LOCAL)
    headers = {"x-wardwright-tenant-id": "t", "x-wardwright-agent-id": "a"}

    assert one.caller_for(known(one, headers), headers) == Caller(tenant="t", agent="a", principal="anonymous")


# whose claims about tools are believed


def token(secret: str = SHARED, body: bytes = BODY, **changes: Any) -> str:
    given: dict[str, Any] = {"issuer": "runtime", "audience": "gateway", "expires_at": NOW + 60}
    return attest(secret, body=body, **(given | changes))


def trust(headers: Mapping[str, str], section: str = SECTION, peer: str = "10.0.0.1", key: str = KEY) -> Trust:
    one = authenticator(section)
    return one.trust(known(one, bearer(key)), headers, BODY, peer)


def test_claims_are_not_believed_by_themselves() -> None:
    """G7: whatever a caller says of its tools."""
    assert trust({}) == Trust(False)


def test_an_attesting_key_and_the_admin_token_are_believed() -> None:
    """G7: and the receipt can say why."""
    assert [trust({}, key=key) for key in (OTHER, ADMIN)] == [Trust(True, "key:attester"), Trust(True, "key:admin")]


def test_a_signed_attestation_is_believed() -> None:
    """G7: from its issuer, for us, for this body, in time."""
    one = authenticator()
    headers = {"x-wardwright-attestation": token()}
    principal = known(one, bearer(KEY))

    assert one.trust(principal, headers, BODY, "10.0.0.1") == Trust(True, "attestation:runtime")
    assert one.claims_trusted(principal, headers, hashlib.sha256(BODY).hexdigest(), "10.0.0.1")


def part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).rstrip(b"=").decode()


def unsigned(algorithm: str) -> str:
    claims = part({"iss": "runtime", "aud": "gateway", "exp": NOW + 60, "digest": "sha256:x"})
    return f"{part({'alg': algorithm})}.{claims}."


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (token(secret="x" * 40), "signature"),
        (token(issuer="other"), "issuer"),
        (token(audience="elsewhere"), "audience"),
        (token(expires_at=NOW), "expiry"),
        (token(expires_at=NOW - 1), "expiry"),
        (token(expires_at=NOW + 3_601), "expiry"),
        (token(body=b'{"model":"n"}'), "digest"),
        (token(subject="somebody"), "subject"),
        (unsigned("none"), "signature"),
        (unsigned("HS256"), "signature"),
        (unsigned("EdDSA"), "signature"),
        ("", "malformed"),
        ("a.b", "malformed"),
        ("a.b.c", "malformed"),
        ("é.ü.ß", "malformed"),
        ("eyJ.eyJ.AA", "malformed"),
        (token() + "x" * 5000, "malformed"),
        (f"{part({'alg': 'HS256', 'crit': ['x']})}.{part({})}.AA", "malformed"),
        (f"{part({'alg': 'HS256'})}.{base64.urlsafe_b64encode(b'[1]').decode()}.AA", "malformed"),
    ],
)
def test_an_attestation_that_does_not_hold_is_refused_and_noted(sent: str, why: str) -> None:
    """G7: each for its own reason, and never with what it said."""
    assert trust({"x-wardwright-attestation": sent}) == Trust(False, "", f"attestation_refused:{why}")


def test_an_attestation_can_be_bound_to_a_key() -> None:
    """Nobody else can use it then."""
    assert trust({"x-wardwright-attestation": token(subject="ci")}).trusted


def test_without_issuers_no_attestation_is_believed() -> None:
    """Not even one that is signed with nothing."""
    section = f"keys: [{{id: ci, hash: '{hash_key(KEY)}'}}]"

    assert trust({"x-wardwright-attestation": token(secret="")}, section).refused == "attestation_refused:issuer"


def test_an_issuer_may_keep_its_private_key(tmp_path: Path) -> None:
    """With an Ed25519 public key the gateway can check attestations and make none."""
    private = ed25519.Ed25519PrivateKey.generate()
    path = tmp_path / "public.pem"
    path.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    section = SECTION.replace("key_env: ISSUER_KEY", f"key_file: {path}")
    digest = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    claims = part({"iss": "runtime", "aud": ["gateway", "x"], "exp": NOW + 9, "digest": digest})

    def signed(algorithm: str) -> str:
        plain = f"{part({'alg': algorithm})}.{claims}"
        return f"{plain}.{base64.urlsafe_b64encode(private.sign(plain.encode())).rstrip(b'=').decode()}"

    assert trust({"x-wardwright-attestation": signed("EdDSA")}, section) == Trust(True, "attestation:runtime")
    assert not trust({"x-wardwright-attestation": signed("EdDSA")[:-4] + "AAAA"}, section).trusted
    # A public key is known to everybody: it must never serve as a shared secret.
    confused = token(secret=path.read_text().strip())
    assert trust({"x-wardwright-attestation": confused}, section).refused == "attestation_refused:signature"


def test_loopback_is_believed_only_when_it_was_switched_on() -> None:
    """G7: and never from behind a forwarder, nor from another machine."""
    on = SECTION + "trust_loopback_claims: true\n"

    assert trust({}, on, peer=LOCAL) == Trust(True, "loopback")
    assert not trust({}, SECTION, peer=LOCAL).trusted
    assert not trust({"x-forwarded-for": "10.0.0.1"}, on, peer=LOCAL).trusted
    assert not trust({}, on, peer="10.0.0.1").trusted
    assert not trust({}, on, peer="").trusted


def test_a_refused_attestation_is_noted_even_where_the_key_is_believed() -> None:
    """Somebody should look at it."""
    assert trust({"x-wardwright-attestation": "x"}, key=OTHER) == Trust(
        True, "key:attester", "attestation_refused:malformed"
    )


# operators


def test_who_administers_is_known_by_token() -> None:
    """The admin token, operators, and keys with a role."""
    one = authenticator()

    assert [one.admin(bearer(secret), LOCAL) for secret in (ADMIN, APPROVER, OTHER)] == [
        Operator("admin", "operator"),
        Operator("ann", "approver"),
        Operator("attester", "viewer"),
    ]


def test_administering_always_needs_a_token() -> None:
    """G63: on a loopback address without keys too, and not by the header of model keys. The message says where to find it."""
    ring = Keyring.ephemeral()
    ring.admin_token_once()
    told = [
        one.admin({"x-api-key": ADMIN}, LOCAL)
        for one in (authenticator("", LOCAL, keyring=ring), authenticator(keyring=ring), authenticator("", LOCAL))
    ]

    assert told == [
        Refusal(
            401,
            "authentication_error",
            "missing_admin_token",
            f"The admin token is needed: send it as `Authorization: Bearer TOKEN`. {where}",
        )
        for where in (
            "It was printed when the gateway first started.",
            "The operator of this gateway has set it.",
            "This gateway has none yet: name one with auth.admin.",
        )
    ]


@pytest.mark.parametrize("secret", [KEY, "x", ADMIN[:-1], ""], ids=["key", "other", "shorter", "empty"])
def test_other_keys_do_not_administer(secret: str) -> None:
    """A model key without a role opens no page."""
    answer = authenticator().admin(bearer(secret), LOCAL)

    assert isinstance(answer, Refusal)
    assert answer.status == 401


def test_a_role_that_is_too_low_is_told() -> None:
    """G63: viewer < approver < operator."""
    one = authenticator()

    assert one.admin(bearer(APPROVER), LOCAL, "operator") == Refusal(
        403, "permission_error", "role_too_low", "This needs the role operator; 'ann' is approver."
    )
    allowed = {
        role: [Operator("x", has).may(role) for has in ("viewer", "approver", "operator")]
        for role in ("viewer", "approver", "operator")
    }
    assert allowed == {
        "viewer": [True, True, True],
        "approver": [False, True, True],
        "operator": [False, False, True],
    }


def test_the_generated_token_administers_until_the_config_names_one(tmp_path: Path) -> None:
    """G63, G64: and a new one is followed without a restart."""
    ring = Keyring.create(tmp_path / "keys")
    generated = ring.admin_token_once() or ""
    own, named = authenticator("", LOCAL, keyring=ring), authenticator(keyring=ring)

    assert own.admin(bearer(generated), LOCAL) == Operator("admin", "operator")
    assert refused(named.admin(bearer(generated), LOCAL)) == (401, "invalid_admin_token")
    assert own.admin(bearer(ring.new_admin_token()), LOCAL) == Operator("admin", "operator")
    assert refused(own.admin(bearer(generated), LOCAL)) == (401, "invalid_admin_token")


def test_whether_somebody_has_every_right_is_known() -> None:
    """So that the gateway generates a token, or asks for one. A viewer is not enough."""
    ring = Keyring.ephemeral()
    one = authenticator("", LOCAL, keyring=ring)
    before = one.has_admin
    ring.admin_token_once()
    roles = [authenticator(f"operators: [{{id: o, key_env: ADMIN_TOKEN, role: {role}}}]") for role in ROLES]

    assert (before, one.has_admin, authenticator().has_admin) == (False, True, True)
    assert [other.has_admin for other in roles] == [False, False, True]


# the section


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kesy: []", "kesy: unknown key 'kesy' (did you mean 'keys'?)"),
        ("keys: {}", "keys: expected a list"),
        ("keys: [x]", "keys[0]: expected a mapping"),
        ("keys: [{id: a}]", "keys[0]: give its hash, or name the key with key_env or key_file"),
        (
            "keys: [{id: a, hash: sekrit}]",
            "keys[0].hash: expected 'sha256:' and 64 hexadecimal digits in small letters, as `wardwright keys hash` "
            "prints them; never the key itself",
        ),
        (
            "keys: [{id: a, key: sekrit}]",
            "keys[0].key: 'key': a secret has no place in a config file; give its hash (`wardwright keys hash`), or "
            "name it with key_env",
        ),
        ("keys: [{key_env: A}]", "keys[0]: missing key 'id'"),
        (
            f"keys: [{{id: a, key_env: A, hash: '{hash_key('x')}'}}]",
            "keys[0].hash: give hash, key_env or key_file, only one of them",
        ),
        ("keys: [{id: admin, key_env: A}]", "keys[0].id: 'admin' is a name the gateway itself uses"),
        ("keys: [{id: a, key_env: A}, {id: a, key_env: B}]", "keys[1].id: id 'a' is already used at line 1"),
        (
            "{keys: [{id: a, key_env: A}], operators: [{id: a, key_env: B, role: viewer}]}",
            "operators[0].id: id 'a' is already used at line 1",
        ),
        (
            "keys: [{id: a, key_env: A, may_claim: [session]}]",
            "keys[0].may_claim[0]: 'session' is not one of session_id, run_id, agent, user, application, tenant "
            "(did you mean 'session_id'?)",
        ),
        ("keys: [{id: a, key_env: A, concurrency: 0}]", "keys[0].concurrency: must be at least 1, got 0"),
        ("keys: [{id: a, key_env: A, role: boss}]", "keys[0].role: 'boss' is not one of viewer, approver, operator"),
        (
            "keys: [{id: a, key_env: A, user: eve, may_claim: [user]}]",
            "keys[0].may_claim: 'user' is pinned by this record, so that it can never be claimed",
        ),
        ("operators: [{id: a, key_env: A}]", "operators[0]: missing key 'role'"),
        ("admin: {}", "admin: give token_env or token_file"),
        ("admin: sekrit", "admin: expected a mapping"),
        (
            "admin: {token: sekrit}",
            "admin.token: 'token': a secret has no place in a config file; name it with token_env or token_file",
        ),
        ("anonymous: maybe", "anonymous: expected true or false, got text 'maybe'"),
        ("hosts: [http://x]", "hosts[0]: expected a host name such as gateway.example.org, without port"),
        ("hosts: ['x:80']", "hosts[0]: expected a host name such as gateway.example.org, without port"),
        ("origins: [example.org]", "origins[0]: expected an origin such as https://console.example.org"),
        ("origins: ['https://x/y']", "origins[0]: expected an origin such as https://console.example.org"),
        ("origins: ['*']", "origins[0]: expected an origin such as https://console.example.org"),
        ("attestation: {issuers: []}", "attestation: missing key 'audience'"),
        (
            "attestation: {audience: g, issuers: [{id: r}]}",
            "attestation.issuers[0]: name the issuer's key with key_env or key_file",
        ),
        (
            "attestation: {audience: g, issuers: [{id: r, key_env: A}, {id: r, key_env: B}]}",
            "attestation.issuers[1].id: id 'r' is already used",
        ),
    ],
)
def test_what_is_wrong_with_the_section_is_told(text: str, message: str) -> None:
    """With its place, and without what may be a secret."""
    problems = [problem.removeprefix("$.") for problem in compiled(text)[1]]

    assert message in problems
    assert "sekrit" not in str(problems)


def test_all_problems_are_told_at_once() -> None:
    """One look at the file mends it."""
    assert len(compiled("{anonymous: 1, keys: [{}, {id: a, hash: 7}], hosts: [''], admin: []}")[1]) == 6


def test_equal_hashes_are_refused() -> None:
    """One key cannot be two callers."""
    entry = f"hash: '{hash_key(KEY)}'"

    assert "keys[1].hash: the same hash is already used at line 1" in str(
        compiled(f"keys: [{{id: a, {entry}}}, {{id: b, {entry}}}]")[1]
    )


def test_no_section_is_no_problem() -> None:
    """Then this machine may ask, and nobody else."""
    problems = Problems("w.yaml")

    assert (compile_auth(None, problems), problems.found) == (Auth(), [])


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        (
            "keys: [{id: a, key_env: A_KEY}]",
            {},
            "auth.keys 'a': the environment variable A_KEY is not set or empty.",
        ),
        (
            "keys: [{id: a, key_env: A_KEY}]",
            {"A_KEY": "sekrit"},
            "auth.keys 'a': the key is shorter than 20 characters.",
        ),
        (
            "keys: [{id: a, key_env: A_KEY}, {id: b, key_env: A_KEY}]",
            {"A_KEY": KEY},
            "auth.keys 'b': its key is the same as that of auth.keys 'a'.",
        ),
        (
            "{keys: [{id: a, key_env: A_KEY}], admin: {token_env: A_KEY}}",
            {"A_KEY": KEY},
            "auth.admin: the token is the same as the key of auth.keys 'a'.",
        ),
        (
            "admin: {token_env: A_KEY}",
            {"A_KEY": "sekrit"},
            "auth.admin: the token is shorter than 20 characters.",
        ),
        (
            "attestation: {audience: g, issuers: [{id: r, key_env: A_KEY}]}",
            {"A_KEY": "sekrit"},
            "auth.attestation.issuers 'r': a shared secret needs at least 32 characters.",
        ),
        (
            "attestation: {audience: g, issuers: [{id: r, key_env: A_KEY}]}",
            {"A_KEY": "-----BEGIN PUBLIC KEY-----\nsekrit\n-----END PUBLIC KEY-----"},
            "auth.attestation.issuers 'r': expected an Ed25519 public key in PEM form, or a shared secret.",
        ),
    ],
)
def test_a_secret_that_cannot_be_used_stops_the_start(text: str, environ: dict[str, str], message: str) -> None:
    """By its place in the config; the error holds no secret."""
    with pytest.raises(KeysUnusable) as caught:
        authenticator(text, environ=environ)

    assert str(caught.value) == message
    assert "sekrit" not in "".join(traceback.format_exception(caught.value))
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_a_public_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Its signatures would be checked by rules that nobody wrote."""
    public = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    text = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    with pytest.raises(KeysUnusable, match="expected an Ed25519 public key in PEM form, or a shared secret"):
        authenticator(environ={**ENVIRON, "ISSUER_KEY": text})


# the page


def test_the_section_of_the_page_is_one_that_works() -> None:
    """G64: docs/keys.md shows nothing that `check` would refuse or warn of."""
    problems = Problems("keys.md")
    root = parse_yaml(BLOCKS["yaml"], problems)
    auth = compile_auth(root.items()["auth"], problems)

    assert problems.found == []
    assert ([key.id for key in auth.keys], auth.operators[0].role) == (["ci", "agents"], "approver")


def test_the_attestation_of_the_page_is_one_that_holds(tmp_path: Path) -> None:
    """What docs/keys.md makes is believed by a gateway with that audience and that secret."""
    made: dict[str, Any] = {}
    exec(BLOCKS["python"], made)
    headers = {name.lower(): value for name, value in made["headers"].items()}
    section = "attestation: {audience: ward.example.org, issuers: [{id: runtime, key_env: ISSUER_KEY}]}"
    environ = {"ISSUER_KEY": "a shared secret of at least 32 characters"}
    clock = FakeClock(1_799_999_000)
    one = Authenticator(compiled(section)[0], Keyring.ephemeral(), LOCAL, clock=clock, environ=environ)

    assert one.trust(known(one, {}), headers, made["body"], LOCAL) == Trust(True, "attestation:runtime")


def test_every_command_of_the_page_exists() -> None:
    """docs/keys.md names what `wardwright keys` has."""
    named = set(re.findall(r"wardwright keys ([a-z-]+)", PAGE))

    assert named == {command.name for command in keys_app.registered_commands}


# no secret is told


def test_nothing_that_is_made_or_answered_holds_a_secret() -> None:
    """Neither reprs, nor refusals, nor logs at the finest level."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        ring = Keyring.ephemeral()
        generated = ring.admin_token_once() or ""
        auth = compiled(SECTION)[0]
        one = authenticator(keyring=ring)
        wrong = [KEY + "x", OTHER + "x", ADMIN + "x", SHARED]
        told: list[object] = [auth, one, ring, vars(type(one))]
        for secret in (KEY, OTHER, ADMIN, APPROVER, generated, *wrong):
            headers = bearer(secret, x_wardwright_session_id=f"\x00{secret}", x_wardwright_attestation=secret)
            principal = one.authenticate(headers, LOCAL)
            told += [principal, one.admin(headers, LOCAL, "operator")]
            if isinstance(principal, Principal):
                told += [
                    one.caller_for(principal, headers),
                    one.refused_claims(principal, headers),
                    one.trust(principal, headers, BODY, LOCAL),
                ]
    finally:
        root.removeHandler(handler)
        root.setLevel(before)

    shown = f"{told!r} {told} {heard.getvalue()}"
    secrets = {KEY, OTHER, ADMIN, APPROVER, SHARED, generated}
    assert [secret for secret in secrets if secret in shown] == []
    assert [secret for secret in secrets if hash_key(secret)[7:] in shown] == []
