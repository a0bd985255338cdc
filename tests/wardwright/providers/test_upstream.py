"""Upstream: where requests go and with what, what is tried again, what opens the breaker, and what an error may tell."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from wardwright.config import Problems, parse_yaml
from wardwright.errors import ConfigError, ProviderFailed
from wardwright.providers.client import Client
from wardwright.providers.provider import open_providers
from wardwright.providers.settings import ProviderConfig, compile_providers
from wardwright.providers.upstream import Upstream
from wardwright.wire.turn import WireName
from weakincentives.clock import SYSTEM_CLOCK, FakeClock

from .loopback import Behaviour, Loopback, Talk, always, answer, in_turn

SECRET = "sk-this-is-very-secret"
Scenario = Callable[[Upstream, Loopback], Awaitable[None]]


def config_of(text: str) -> ProviderConfig:
    problems = Problems("test.yaml")
    found = compile_providers(parse_yaml(f"p: {{{text}}}\n", problems), problems)
    assert not problems.errors
    return found["p"]


class Sleeper:
    """Sleeps no time, and remembers how long it was asked to."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def meet(
    behave: Behaviour,
    scenario: Scenario,
    more: str = "kind: openai",
    sleeper: Sleeper | None = None,
    clock: FakeClock | None = None,
) -> Loopback:
    async def run() -> Loopback:
        client = Client()
        async with Loopback(behave) as server:
            config = config_of(f"{more}, base_url: 'http://127.0.0.1:{server.port}/v1', api_key_env: KEY")
            upstream = Upstream(
                config,
                client,
                {"KEY": SECRET},
                sleep=sleeper or Sleeper(),
                jitter=lambda: 1.0,
                now=(clock or FakeClock()).monotonic,
            )
            await scenario(upstream, server)
            await client.close()
            return server

    return asyncio.run(run())


async def ask(upstream: Upstream, wire: WireName = "chat_completions", **more: Any) -> bytes:
    given: dict[str, Any] = {"stream": False, "model": "m"} | more
    return await (await upstream.send(wire, b"{}", **given)).read(1000)


async def failing(upstream: Upstream, **more: Any) -> ProviderFailed:
    with pytest.raises(ProviderFailed) as failed:
        await ask(upstream, **more)
    return failed.value


def refused(status: int, body: bytes, **headers: str) -> ProviderFailed:
    """What one error of the provider becomes."""
    found: list[ProviderFailed] = []

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        found.append(await failing(upstream))

    meet(always(answer(body, f"{status} No", **headers)), scenario, "kind: openai, retries: 0")
    return found[0]


@pytest.mark.parametrize(
    ("more", "wire", "path", "credentials"),
    [
        ("kind: openai", "chat_completions", "/v1/chat/completions", {"authorization": f"Bearer {SECRET}"}),
        ("kind: openai, wires: [responses]", "responses", "/v1/responses", {"authorization": f"Bearer {SECRET}"}),
        (
            "kind: anthropic",
            "anthropic",
            "/v1/messages",
            {"x-api-key": SECRET, "anthropic-version": "2023-06-01"},
        ),
        (
            "kind: openai, wires: [anthropic]",
            "anthropic",
            "/v1/messages",
            {"x-api-key": SECRET, "anthropic-version": "2023-06-01", "authorization": f"Bearer {SECRET}"},
        ),
        (
            "kind: anthropic, wires: [chat_completions]",
            "chat_completions",
            "/v1/chat/completions",
            {"authorization": f"Bearer {SECRET}"},
        ),
    ],
)
def test_each_wire_has_its_path_and_credentials(
    more: str, wire: WireName, path: str, credentials: dict[str, str]
) -> None:
    """A request goes where its wire is served, with the key as that wire carries it."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        assert await ask(upstream, wire) == b"ok"

    [asked] = meet(always(answer()), scenario, more).asked
    assert asked.line == f"POST {path} HTTP/1.1"
    assert credentials.items() <= asked.headers.items()
    assert ("authorization" in asked.headers, "x-api-key" in asked.headers) == (
        "authorization" in credentials,
        "x-api-key" in credentials,
    )


def test_a_base_url_without_version_gets_one_for_messages() -> None:
    """Anthropic's base URL has no version; OpenAI's is taken as it stands."""

    async def run() -> None:
        client = Client()
        async with Loopback(always(answer())) as server:
            for kind, wire in (("anthropic", "anthropic"), ("openai", "chat_completions")):
                config = config_of(f"kind: {kind}, base_url: 'http://127.0.0.1:{server.port}/'")
                assert await ask(Upstream(config, client, {}), wire) == b"ok"
            await client.close()
        assert [one.line.split()[1] for one in server.asked] == ["/v1/messages", "/chat/completions"]
        assert not {"authorization", "x-api-key"} & (server.asked[0].headers.keys() | server.asked[1].headers.keys())

    asyncio.run(run())


def test_further_headers_are_sent_and_may_replace_the_key() -> None:
    """Headers from config come along, secrets read from where they are kept; those of one request are added."""

    async def run() -> None:
        client = Client()
        async with Loopback(always(answer())) as server:
            text = f"kind: openai, base_url: 'http://127.0.0.1:{server.port}', api_key_env: KEY, "
            text += "headers: {x-team: blue, Authorization: {env: OTHER}}"
            upstream = Upstream(config_of(text), client, {"KEY": SECRET, "OTHER": "Basic 123"})
            assert await ask(upstream, headers=[("anthropic-beta", "x")], stream=True) == b"ok"
            await client.close()
        headers = server.asked[0].headers
        assert (headers["x-team"], headers["Authorization"], headers["anthropic-beta"]) == ("blue", "Basic 123", "x")
        assert "authorization" not in headers
        assert (headers["accept"], headers["content-type"]) == ("text/event-stream", "application/json")

    asyncio.run(run())


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_overload_and_server_errors_are_tried_again(status: int) -> None:
    """A second answer is as good as a first; what went before is told to whoever keeps the record."""
    sleeper = Sleeper()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        tried: list[ProviderFailed] = []
        assert await ask(upstream, tried=tried) == b"ok"
        assert [(one.kind, one.status) for one in tried] == [("status", status)]

    server = meet(in_turn(answer(b"", f"{status} No"), answer()), scenario, sleeper=sleeper)
    assert len(server.asked) == 2
    assert sleeper.slept == [0.25]


def test_tries_are_counted_and_waits_grow() -> None:
    """After the first request come as many as `retries` says, each after a longer wait; the last failure is told."""
    sleeper = Sleeper()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        tried: list[ProviderFailed] = []
        failed = await failing(upstream, tried=tried)
        assert (failed.kind, failed.status, failed.retryable, len(tried)) == ("status", 500, True, 3)

    more = "kind: openai, retries: 3"
    server = meet(always(answer(b"", "500 No")), scenario, more, sleeper)
    assert len(server.asked) == 4
    assert sleeper.slept == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("status", "elsewhere"),
    [(400, False), (401, True), (403, True), (404, True), (413, False), (422, False), (501, True)],
)
def test_what_would_fail_again_is_not_tried_again(status: int, elsewhere: bool) -> None:
    """A refused request is sent once; another target is worth a try only where the request itself is not at fault."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        failed = await failing(upstream)
        assert (failed.kind, failed.status, failed.retryable) == ("status", status, elsewhere)

    assert len(meet(always(answer(b"", f"{status} No")), scenario).asked) == 1


def test_a_failed_connection_is_tried_again() -> None:
    """A server that closes without a word is asked again, and again."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        if talk.number == 3:
            await talk.say(answer())

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        assert await ask(upstream) == b"ok"

    assert meet(behave, scenario).connections == 3


def test_a_silent_server_is_not_tried_again() -> None:
    """Whoever waited for the whole of `timeout` does not wait as long again; another target may answer."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.closed()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        failed = await failing(upstream)
        assert (failed.kind, failed.status, failed.retryable) == ("timeout", 504, True)

    assert len(meet(behave, scenario, "kind: openai, timeout: 50ms").asked) == 1


def test_nothing_is_tried_again_once_an_answer_has_begun() -> None:
    """A stream that breaks off has failed: its beginning was given out."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        response = await upstream.send("chat_completions", b"{}", stream=True, model="m")
        with pytest.raises(ProviderFailed, match=r"^the connection broke in the middle of the provider's answer$"):
            _ = [piece async for piece in response.chunks()]

    assert len(meet(behave, scenario).asked) == 1


@pytest.mark.parametrize(
    ("headers", "slept"),
    [
        ({"retry_after": "3"}, [3.0]),
        ({"retry_after": "0.5"}, [0.5]),
        ({"retry_after_ms": "1500", "retry_after": "9"}, [1.5]),
        ({"retry_after": "soon"}, [0.25]),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:00 GMT"}, [0.0]),
        ({"x_should_retry": "false"}, None),
        ({"retry_after": "11"}, None),
    ],
)
def test_a_provider_may_say_when_to_come_back(headers: dict[str, str], slept: list[float] | None) -> None:
    """The wait that the provider asks for is kept, unless it is long: then another target is quicker."""
    sleeper = Sleeper()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        if slept is None:
            assert (await failing(upstream)).status == 429
        else:
            assert await ask(upstream) == b"ok"

    meet(in_turn(answer(b"", "429 Slow", **headers), answer()), scenario, sleeper=sleeper)
    assert sleeper.slept == (slept or [])


def test_a_date_to_come_back_is_told_in_seconds() -> None:
    """`retry-after` as a date becomes the seconds until then."""
    date = email.utils.formatdate(SYSTEM_CLOCK.now() + 1000, usegmt=True)
    failed = refused(429, b"", retry_after=date)
    assert failed.retry_after is not None
    assert 900 < failed.retry_after <= 1000


def test_a_refusal_that_may_be_repeated_is() -> None:
    """A provider that says to try again is believed, whatever the status."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        assert await ask(upstream) == b"ok"

    assert len(meet(in_turn(answer(b"", "400 No", x_should_retry="true"), answer()), scenario).asked) == 2


def test_no_wait_goes_beyond_the_deadline() -> None:
    """When the next try would come too late the failure is told at once."""
    sleeper = Sleeper()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        deadline = asyncio.get_running_loop().time() + 2.0
        assert (await failing(upstream, deadline=deadline)).status == 503

    meet(always(answer(b"", "503 No", retry_after="5")), scenario, sleeper=sleeper)
    assert sleeper.slept == []


@pytest.mark.parametrize(
    ("body", "message", "reason"),
    [
        (
            {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}},
            "too long",
            "context_length_exceeded",
        ),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "Overloaded",
            "overloaded_error",
        ),
        ({"error": "model not found"}, "model not found", ""),
        ({"detail": "Not Found"}, "Not Found", ""),
        ([{"error": {"message": "in a list", "code": 400}}], "in a list", ""),
        ({"error": {"message": ["no", "text"]}}, "the provider answered 400", ""),
        ({"something": "else"}, "the provider answered 400", ""),
        ("text", "the provider answered 400", ""),
        ([], "the provider answered 400", ""),
    ],
)
def test_a_providers_own_words_are_told(body: Any, message: str, reason: str) -> None:
    """The message and the code of an error, in whichever shape they come."""
    failed = refused(400, orjson.dumps(body))
    assert (str(failed), failed.reason) == (message, reason)


def test_a_page_is_not_told() -> None:
    """What is no JSON is not repeated to a caller."""
    assert str(refused(502, b"<html>nginx at 10.0.0.7</html>")) == "the provider answered 502"


def test_an_endless_error_is_not_read() -> None:
    """An error's body is read to its limit only."""
    assert str(refused(500, b'{"error": "' + b"x" * 100_000)) == "the provider answered 500"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"bad key {SECRET}!", "bad key [secret]!"),
        ("Incorrect API key provided: sk-abcd****wxyz.", "Incorrect API key provided: [secret]"),
        ("header was 'Authorization: Bearer abc.def'", "header was 'Authorization: [secret]'"),
        ("x" * 5000, "x" * 2000),
    ],
)
def test_no_secret_is_told(said: str, told: str) -> None:
    """Our key, and whatever looks like one, is taken out of a provider's words."""
    assert str(refused(401, orjson.dumps({"error": {"message": said}}))) == told


def test_redirects_are_errors() -> None:
    """A provider that has moved is not followed, and the operator is told what to do."""
    failed = refused(308, b"", location="http://127.0.0.1:1/")
    assert (failed.kind, failed.status) == ("status", 502)
    assert str(failed) == ("the provider answered 308: redirects are not followed, base_url must be the final address")


def test_a_compressed_answer_is_refused() -> None:
    """What cannot be read cannot be judged."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        failed = await failing(upstream)
        assert (failed.kind, str(failed)) == (
            "broken",
            "the provider sent a compressed answer, which nobody asked for",
        )

    assert len(meet(always(answer(b"x", content_encoding="gzip")), scenario).asked) == 1


BREAKER = "kind: openai, retries: 0, breaker: {failures: 2, open: 1h}"


def test_failures_hold_requests_for_that_model_back() -> None:
    """G42: after `failures` on end the provider is not asked for that model; others are served."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(2):
            assert not upstream.blocked("m")
            assert (await failing(upstream)).status == 500
        assert upstream.blocked("m")
        assert not upstream.blocked("other")
        failed = await failing(upstream)
        assert (failed.kind, failed.status, failed.retryable) == ("open", 503, True)
        assert str(failed) == ("the provider failed several times in a row and is given a rest; try again in 3600 s")
        assert (await failing(upstream, model="other")).status == 500

    assert len(meet(always(answer(b"", "500 No")), scenario, BREAKER).asked) == 3


def test_the_failure_that_opens_the_breaker_is_told() -> None:
    """Among several tries, it is the provider's own words that are told, not that the breaker opened meanwhile."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        assert (await failing(upstream)).kind == "status"

    more = "kind: openai, retries: 5, breaker: {failures: 2, open: 1h}"
    assert len(meet(always(answer(b"", "500 No")), scenario, more).asked) == 2


def test_after_its_rest_a_provider_is_tried_and_served_again() -> None:
    """An answer to the trial ends the rest."""
    clock = FakeClock()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(2):
            await failing(upstream)
        clock.advance(3600)
        assert [await ask(upstream) for _ in range(3)] == [b"ok"] * 3

    meet(
        in_turn(answer(b"", "500 No"), answer(b"", "500 No"), answer()),
        scenario,
        BREAKER,
        clock=clock,
    )


def test_streams_that_break_off_open_the_breaker() -> None:
    """A provider that begins every answer and ends none is failing."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"a")

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(2):
            assert (await failing(upstream)).kind == "broken"
        assert upstream.blocked("m")

    meet(behave, scenario, BREAKER)


def test_refused_requests_and_closed_answers_do_not_open_the_breaker() -> None:
    """A caller's mistakes and its hanging up say nothing against the provider."""

    async def behave(talk: Talk) -> None:
        while (asked := await talk.asked()) is not None:
            await talk.say(
                answer(b"", "400 No") if asked.body == b"bad" else b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\na"
            )

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(5):
            (await upstream.send("chat_completions", b"{}", stream=True, model="m")).close()
            with pytest.raises(ProviderFailed):
                await upstream.send("chat_completions", b"bad", stream=True, model="m")
        assert not upstream.blocked("m")

    meet(behave, scenario, BREAKER)


def test_a_callers_deadline_does_not_open_the_breaker() -> None:
    """Whoever has little time does not take a provider away from the others."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.closed()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(3):
            deadline = asyncio.get_running_loop().time() + 0.02
            assert (await failing(upstream, deadline=deadline)).kind == "timeout"
        assert not upstream.blocked("m")

    meet(behave, scenario, BREAKER)


def test_a_deadline_within_an_answer_does_not_open_the_breaker() -> None:
    """An answer that is longer than a caller can wait for is no failure of the provider."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"a")
        await talk.closed()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for _ in range(3):
            deadline = asyncio.get_running_loop().time() + 0.02
            assert (await failing(upstream, deadline=deadline)).kind == "timeout"
        assert not upstream.blocked("m")

    meet(behave, scenario, BREAKER)


def test_full_pools_do_not_open_the_breaker() -> None:
    """Too many requests at once are our affair."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        await talk.closed()

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        first = await upstream.send("chat_completions", b"{}", stream=True, model="m")
        for _ in range(3):
            deadline = asyncio.get_running_loop().time() + 0.02
            assert (await failing(upstream, deadline=deadline)).kind == "busy"
        assert not upstream.blocked("m")
        first.close()

    meet(behave, scenario, f"{BREAKER}, max_connections: 1")


def test_a_cancelled_trial_leaves_the_next_one_a_try() -> None:
    """A caller who hangs up while the provider is tried does not keep it out."""
    asked = asyncio.Event()
    clock = FakeClock()

    async def behave(talk: Talk) -> None:
        while (got := await talk.asked()) is not None:
            if got.body == b"hang":
                asked.set()
                await talk.closed()
            await talk.say(answer(b"", "500 No") if got.body == b"bad" else answer())

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        with pytest.raises(ProviderFailed):
            await upstream.send("chat_completions", b"bad", stream=False, model="m")
        clock.advance(3600)
        trial = asyncio.create_task(upstream.send("chat_completions", b"hang", stream=False, model="m"))
        await asked.wait()
        assert upstream.blocked("m")
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        assert await ask(upstream) == b"ok"

    meet(behave, scenario, "kind: openai, retries: 0, breaker: {failures: 1, open: 1h}", clock=clock)


def test_a_wire_that_is_not_spoken_goes_over_the_first_that_is() -> None:
    """A client's own wire where possible, else the provider's."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        assert upstream.wire_for("responses") == "responses"
        assert upstream.wire_for("anthropic") == "responses"
        assert upstream.wire_for("chat_completions") == "chat_completions"

    meet(always(answer()), scenario, "kind: openai, wires: [responses, chat_completions]")


@pytest.mark.parametrize(
    ("more", "kept", "changed"),
    [
        ("kind: anthropic", "toolu_01-A", "call:1"),
        ("kind: anthropic", "a" * 64, "a" * 65),
        ("kind: openai", "call:1", "a" * 41),
        ("kind: openai, ids: {pattern: '[a-zA-Z0-9]{9}', length: 9}", "abcDEF123", "call_1"),
    ],
)
def test_ids_that_a_provider_refuses_are_replaced(more: str, kept: str, changed: str) -> None:
    """G24: ids that fit stay; the others become ones that fit, the same every time and different from each other."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        first = upstream.ids([kept, changed, f"{changed}?"])
        assert first == upstream.ids([f"{changed}?", kept, changed])
        assert set(first) == {changed, f"{changed}?"}
        assert all(upstream.config.ids.fits(one) for one in first.values())
        assert len(set(first.values())) == 2

    meet(always(answer()), scenario, more)


def test_ids_that_were_seen_before_are_judged_as_when_they_were_new() -> None:
    """G24: however many there were, whatever they came with; a derived one still differs from all that are there."""

    async def scenario(upstream: Upstream, _server: Loopback) -> None:
        for number in range(0, 30_000, 3_000):
            assert upstream.ids([f"call_{one}" for one in range(number, number + 3_000)]) == {}
        assert upstream.ids(["call_1", "", "call_29999", "a b"]) == upstream.ids(["a b"])
        taken = upstream.ids(["a b"])["a b"]
        assert upstream.ids([taken]) == {}
        assert upstream.ids(["a b", taken])["a b"] not in ("a b", taken)
        assert upstream.ids(iter(["a b"])) == {"a b": taken}

    meet(always(answer()), scenario)


def test_every_secret_that_is_missing_is_named() -> None:
    """Serving starts with all secrets or not at all, and says where each was expected."""
    problems = Problems("d.yaml")
    text = "a: {kind: openai, api_key_env: NOT_SET}\nb: {kind: anthropic, api_key_file: /nowhere/key}\n"
    text += "c: {kind: openai, api_key_env: ODD}\n"
    configs = compile_providers(parse_yaml(text, problems), problems)
    with pytest.raises(ConfigError) as failed:
        open_providers(configs, Client(), {"ODD": "two\nlines"})
    assert [str(one) for one in failed.value.problems] == [
        "d.yaml:1:19: a.api_key_env: the environment variable NOT_SET is empty or not set",
        "d.yaml:2:22: b.api_key_file: the file /nowhere/key cannot be read: No such file or directory",
        "d.yaml:3:19: c.api_key_env: the environment variable ODD holds what cannot be sent in a header",
    ]


def test_a_key_may_be_kept_in_a_file(tmp_path: Any) -> None:
    """The line break at the end of a file is not part of the key."""
    path = tmp_path / "key"
    path.write_text("from-a-file\n")

    async def run() -> None:
        client = Client()
        async with Loopback(always(answer())) as server:
            config = config_of(f"kind: openai, base_url: 'http://127.0.0.1:{server.port}', api_key_file: {path}")
            providers = open_providers({"p": config}, client, {})
            response = await providers["p"].send("chat_completions", b"{}", stream=False, model="m")
            assert await response.read(10) == b"ok"
            providers["p"].close()
            await client.close()
        assert server.asked[0].headers["authorization"] == "Bearer from-a-file"

    asyncio.run(run())
