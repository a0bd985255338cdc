"""The client speaks HTTP/1.1 to servers that behave, misbehave, stall and break off."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from wardwright.errors import ProviderFailed
from wardwright.providers.client import HEADER_BYTES, HIGH_WATER, Client, NetworkResponse, render_headers
from wardwright.providers.url import parse_url

from .loopback import Behaviour, Loopback, Talk, always, answer, chunked, in_turn

Scenario = Callable[[Client, Loopback], Awaitable[None]]


@asynccontextmanager
async def _client(**options: Any) -> AsyncIterator[Client]:
    client = Client(**options)
    try:
        yield client
    finally:
        await client.close()


def meet(behave: Behaviour, scenario: Scenario, *, uv: bool = False, **options: Any) -> Loopback:
    """Lets a client and a server meet; gives the server, for what it saw."""

    async def run() -> Loopback:
        async with Loopback(behave) as server, _client(**options) as client, asyncio.timeout(20.0):
            await scenario(client, server)
            return server

    return uvloop.run(run()) if uv else asyncio.run(run())


async def ask(client: Client, server: Loopback, body: bytes = b"{}", **times: Any) -> NetworkResponse:
    return await client.request("POST", server.url, [("x-test", "1")], body, **{"timeout": 60.0, "idle": 60.0} | times)


async def told(client: Client, server: Loopback, body: bytes = b"{}", **times: Any) -> bytes:
    return await (await ask(client, server, body, **times)).read(10_000_000)


def fails(behave: Behaviour, **times: Any) -> ProviderFailed:
    """How reading one whole answer fails."""
    caught: list[ProviderFailed] = []

    async def scenario(client: Client, server: Loopback) -> None:
        with pytest.raises(ProviderFailed) as failed:
            await told(client, server, **times)
        caught.append(failed.value)

    meet(behave, scenario)
    return caught[0]


@pytest.mark.parametrize("uv", [False, True])
def test_a_request_arrives_as_it_was_given(uv: bool) -> None:
    """Method, path, headers and body arrive; the client adds the host, the length and that nothing is to be compressed."""

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server, b'{"a": 1}')
        assert response.status == 200
        assert response.headers == {"x-one": "1, 2", "content-length": "5"}
        assert await response.read(100) == b"hello"

    server = meet(
        always(b"HTTP/1.1 200 OK\r\nX-One: 1\r\nx-one:  2 \r\ncontent-length: 5\r\n\r\nhello"), scenario, uv=uv
    )
    [asked] = server.asked
    assert asked.line == "POST /v1/ask HTTP/1.1"
    assert asked.body == b'{"a": 1}'
    assert asked.headers == {
        "host": f"127.0.0.1:{server.port}",
        "x-test": "1",
        "accept-encoding": "identity",
        "content-length": "8",
    }


def test_a_big_body_arrives_whole() -> None:
    """A body bigger than every buffer on the way arrives as it was given."""
    body = bytes(range(256)) * 12_000

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server, body) == b"ok"

    assert meet(always(answer()), scenario).asked[0].body == body


@settings(max_examples=25)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.data())
def test_chunks_cut_anywhere_are_the_same_body(pieces: list[bytes], data: st.DataObject) -> None:
    """However a chunked answer is cut on the way, its body is the same."""
    whole = chunked(*pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"".join(pieces)

    meet(always(*parts), scenario)


def test_trailers_are_read_over() -> None:
    """What stands behind the last chunk changes no header, and the connection is kept."""

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            response = await ask(client, server)
            assert await response.read(100) == b"abc"
            assert "x-late" not in response.headers

    assert meet(always(chunked(b"abc", trailer=b"x-late: 1\r\n")), scenario).connections == 1


@pytest.mark.parametrize("uv", [False, True])
def test_pieces_are_given_out_as_they_come(uv: bool) -> None:
    """A stream's first piece is there before the server has thought of the second."""
    more = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await talk.say(b"3\r\none\r\n")
        await more.wait()
        await talk.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        assert response.streamed
        pieces = response.chunks()
        assert await anext(pieces) == b"one"
        more.set()
        assert [piece async for piece in pieces] == [b"two"]

    meet(behave, scenario, uv=uv)


def test_a_connection_is_kept_for_the_next_request() -> None:
    """Requests after one another share one connection."""

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(5):
            assert await told(client, server) == b"ok"

    assert meet(always(answer()), scenario).connections == 1


def test_an_answer_frees_its_connection_before_it_is_read() -> None:
    """Who has not read an answer yet that is there in full does not keep the connection."""

    async def scenario(client: Client, server: Loopback) -> None:
        first = await ask(client, server)
        assert await told(client, server) == b"ok"
        assert await first.read(10) == b"ok"

    assert meet(always(answer()), scenario).connections == 1


@pytest.mark.parametrize(
    "said",
    [
        answer(connection="close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        answer() + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        answer() + b"junk",
    ],
    ids=["close", "http-1.0", "second-answer", "junk"],
)
def test_a_connection_that_says_more_or_wants_to_end_is_not_kept(said: bytes) -> None:
    """C2: an answer that nobody asked for never answers the next request."""

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        assert await told(client, server) == b"ok"

    assert meet(always(said), scenario).connections == 2


def test_what_comes_unasked_on_an_idle_connection_closes_it() -> None:
    """C2: bytes on a connection that waits for its next request end it."""
    gone = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer())
        if talk.number == 1:
            await talk.say(answer(b"late"))
            assert await talk.closed()
            gone.set()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        await gone.wait()
        assert await told(client, server) == b"ok"

    assert meet(behave, scenario).connections == 2


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_stale_connection_costs_nothing(uv: bool, reset: bool) -> None:
    """C1: the server closes a kept connection when the next request is on its way; it is sent again on a new one."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer(b"%d" % talk.number))
        if talk.number == 1:
            await talk.asked()
            if reset:
                talk.reset()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server, b"first") == b"1"
        assert await told(client, server, b"second") == b"2"

    server = meet(behave, scenario, uv=uv)
    assert [(one.body, one.connection) for one in server.asked] == [(b"first", 1), (b"second", 1), (b"second", 2)]


def test_a_connection_closed_while_idle_is_not_used() -> None:
    """A server that closes between requests is asked over a new connection, once."""
    closed = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer())
        if talk.number == 1:
            talk.writer.close()
            await talk.writer.wait_closed()
            closed.set()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server, b"first") == b"ok"
        await closed.wait()
        assert await told(client, server, b"second") == b"ok"

    server = meet(behave, scenario)
    assert [one.body for one in server.asked] == [b"first", b"second"]


def test_a_request_goes_out_twice_at_most() -> None:
    """C1: when the new connection closes without an answer too, the request has failed."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        if talk.number == 1:
            await talk.say(answer())
            await talk.asked()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        with pytest.raises(ProviderFailed) as failed:
            await told(client, server)
        assert (failed.value.kind, str(failed.value)) == (
            "broken",
            "the provider closed the connection without an answer",
        )

    server = meet(behave, scenario)
    assert (server.connections, len(server.asked)) == (2, 3)


def test_nothing_is_repeated_on_a_new_connection() -> None:
    """C1: a new connection that closes without an answer has failed at once."""

    async def behave(talk: Talk) -> None:
        await talk.asked()

    async def scenario(client: Client, server: Loopback) -> None:
        with pytest.raises(ProviderFailed, match=r"^the provider closed the connection without an answer$"):
            await told(client, server)

    assert len(meet(behave, scenario).asked) == 1


def test_nothing_is_repeated_after_the_first_byte() -> None:
    """C1: a kept connection that breaks off within the answer's first line has failed; the server may have done its work."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer())
        await talk.asked()
        await talk.say(b"HTTP/1.1 2")

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        with pytest.raises(ProviderFailed) as failed:
            await told(client, server)
        assert failed.value.kind == "broken"

    assert len(meet(behave, scenario).asked) == 2


def test_a_stale_connection_whose_server_is_gone_has_failed() -> None:
    """C1: when no new connection can be made the failure says so."""

    async def run() -> None:
        asked = asyncio.Event()
        stopped = asyncio.Event()

        async def behave(talk: Talk) -> None:
            await talk.asked()
            await talk.say(answer())
            await talk.asked()
            asked.set()
            await stopped.wait()

        async with _client() as client:
            async with Loopback(behave) as server:
                assert await told(client, server) == b"ok"
                second = asyncio.create_task(told(client, server))
                await asked.wait()
            stopped.set()
            with pytest.raises(ProviderFailed) as failed:
                await second
            assert failed.value.kind == "connect"
            assert str(failed.value) == f"127.0.0.1:{server.port} cannot be reached"

    asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %b\r\n" % (one, b"y" * 1000) for one in range(80)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (HEADER_BYTES + 10),
        b"HTTP/1.1 100 Continue\r\nx: " + b"y" * 1000 + b"\r\n\r\n",
        chunked(b"a", trailer=b"".join(b"x-%d: %b\r\n" % (one, b"y" * 1000) for one in range(80))),
    ],
    ids=["many", "one", "interim", "trailers"],
)
def test_headers_are_bounded(said: bytes) -> None:
    """C3: an answer whose headers do not end is given up, whichever way they go on."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        while not talk.writer.is_closing():
            await talk.say(said)

    failed = fails(behave)
    assert failed.kind == "broken"
    assert str(failed) == "the headers of the provider's answer are longer than 65536 bytes"


@pytest.mark.parametrize(
    "said",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx y: 1\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\nconte\0nt-length: 2\n\nok",
    ],
)
def test_what_is_not_http_is_no_answer(said: bytes) -> None:
    """Answers that two parsers could read differently are refused."""
    failed = fails(always(said))
    assert (failed.kind, str(failed)) == ("broken", "the provider's answer is not HTTP")


def test_another_protocol_is_no_answer() -> None:
    """A server that switches protocols is given up."""
    said = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    failed = fails(always(said))
    assert (failed.kind, str(failed)) == ("broken", "the provider wants to speak another protocol")


def test_interim_answers_are_read_over() -> None:
    """100 and 103 come before the answer and are none; their headers are not its headers."""
    said = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nx-hint: 1\r\ncontent-encoding: gzip\r\n\r\n"
        + answer()
    )

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            response = await ask(client, server)
            assert (response.status, response.headers, response.content_encoding) == (200, {"content-length": "2"}, b"")
            assert await response.read(10) == b"ok"

    assert meet(always(said), scenario).connections == 1


@pytest.mark.parametrize("reset", [False, True])
def test_a_body_that_breaks_off_is_no_body(reset: bool) -> None:
    """What came before the break can be read in pieces, then the failure is told; whole, it is never given out."""

    enough = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await enough.wait()
        if reset:
            talk.reset()

    async def scenario(client: Client, server: Loopback) -> None:
        whole, pieces = await ask(client, server), await ask(client, server)
        got = pieces.chunks()
        assert await anext(got) == b"12345"
        enough.set()
        for failing in (anext(got), whole.read(100)):
            with pytest.raises(ProviderFailed) as failed:
                await failing
            assert failed.value.kind == "broken"
            assert str(failed.value) == "the connection broke in the middle of the provider's answer"

    meet(behave, scenario)


def test_a_chunked_body_without_its_end_is_no_body() -> None:
    """A stream whose last chunk is missing has not ended, however orderly the connection was closed."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")

    assert str(fails(behave)) == "the connection broke in the middle of the provider's answer"


def test_a_body_without_length_ends_with_its_connection() -> None:
    """Old servers end an answer by closing; that answer is whole."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\n\r\n", b"ab", b"cd")

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"abcd"

    meet(behave, scenario)


def test_a_body_without_length_that_is_reset_is_no_body() -> None:
    """Only an orderly end of the connection ends such a body."""
    enough = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\n\r\n", b"ab")
        await enough.wait()
        talk.reset()

    async def scenario(client: Client, server: Loopback) -> None:
        pieces = (await ask(client, server)).chunks()
        assert await anext(pieces) == b"ab"
        enough.set()
        with pytest.raises(ProviderFailed, match=r"^the connection broke in the middle of the provider's answer$"):
            await anext(pieces)

    meet(behave, scenario)


def test_an_answer_without_body_is_whole_at_once() -> None:
    """204 has no body, and the connection is kept."""

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            assert await told(client, server) == b""

    assert meet(always(b"HTTP/1.1 204 No Content\r\n\r\n"), scenario).connections == 1


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    """C5: `timeout` ends the wait for the headers."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.closed()

    failed = fails(behave, timeout=0.05)
    assert (failed.kind, failed.status, str(failed)) == ("timeout", 504, "the provider did not answer in time")


def test_a_kept_connection_has_new_time_limits_for_each_request() -> None:
    """C5: a later request with less time than the earlier ones is not given theirs."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer())
        await talk.closed()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server, timeout=60.0) == b"ok"
        with pytest.raises(ProviderFailed, match=r"^the provider did not answer in time$"):
            await told(client, server, timeout=0.05)

    assert meet(behave, scenario).connections == 1


def test_a_body_that_stalls_is_not_waited_for() -> None:
    """C5: `idle` ends the wait for the next piece, even when the wait for the headers might have been longer."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await talk.closed()

    failed = fails(behave, timeout=60.0, idle=0.05)
    assert (failed.kind, str(failed)) == ("timeout", "the provider stopped in the middle of its answer")


def test_a_body_that_drips_is_not_waited_for_beyond_the_deadline() -> None:
    """C5: pieces that come in time, one by one, do not outlast the deadline."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not talk.writer.is_closing():
            await talk.say(b"x")
            await asyncio.sleep(0.01)

    async def scenario(client: Client, server: Loopback) -> None:
        deadline = asyncio.get_running_loop().time() + 0.1
        with pytest.raises(ProviderFailed) as failed:
            await told(client, server, deadline=deadline)
        assert (failed.value.kind, str(failed.value)) == ("timeout", "the provider's answer took too long")

    meet(behave, scenario)


def test_a_body_can_be_hurried() -> None:
    """C5: whoever lost interest can give the rest of a body less time than it had."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\n12345")
        await talk.closed()

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server, timeout=60.0, idle=60.0)
        response.hurry(0.02)
        response.hurry(60.0)
        with pytest.raises(ProviderFailed, match=r"^the provider's answer took too long$"):
            await response.read(100)

    meet(behave, scenario)


def test_a_header_without_end_is_bounded() -> None:
    """C3: a single header that goes on and on is given up."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\nx: ")
        while not talk.writer.is_closing():
            await talk.say(b"y" * 8192)

    assert str(fails(behave)) == "the headers of the provider's answer are longer than 65536 bytes"


def test_headers_are_counted_anew_for_each_answer() -> None:
    """C3: a connection that has carried many answers is as good as a new one."""

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(40):
            assert await told(client, server) == b"ok"

    said = b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2000
    assert meet(always(said, b"\r\ncontent-length: 2\r\n\r\nok"), scenario).connections == 1


def test_a_connection_that_was_paused_at_the_end_reads_on() -> None:
    """C3: an answer that fills the buffer with its last byte leaves a connection that works."""
    total = HIGH_WATER + 1

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            response = await ask(client, server)
            whole = asyncio.Event()
            response.watch(lambda _end, whole=whole: whole.set())
            await whole.wait()
            assert len(await response.read(total)) == total

    said = (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total, b"z" * HIGH_WATER, b"z")
    assert meet(always(*said), scenario).connections == 1


def test_long_headers_in_many_pieces_are_read() -> None:
    """C3: what is below the limit passes, however it is cut."""
    headers = [b"x-%d: %b\r\n" % (one, b"y" * 1000) for one in range(55)]

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        assert len(response.headers) == 56
        assert await response.read(10) == b"ok"

    meet(always(b"HTTP/1.1 200 OK\r\n", *headers, b"content-length: 2\r\n\r\nok"), scenario)


@pytest.mark.parametrize("uv", [False, True])
def test_reading_pauses_while_nobody_reads(uv: bool) -> None:
    """C3: a server that sends more than is read has to wait; then everything arrives."""
    total = 64 * HIGH_WATER
    stalled = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        piece = b"z" * HIGH_WATER
        for _ in range(total // HIGH_WATER):
            talk.writer.write(piece)
            draining = asyncio.ensure_future(talk.writer.drain())
            await asyncio.wait([draining], timeout=0.1)
            if not draining.done():
                stalled.set()
            await draining
        await talk.closed()

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        await stalled.wait()
        assert sum([len(piece) async for piece in response.chunks()]) == total

    meet(behave, scenario, uv=uv)


def test_time_that_the_reader_takes_is_not_the_servers() -> None:
    """C5: a reader slower than `idle` loses nothing."""
    total = 32 * HIGH_WATER

    async def behave(talk: Talk) -> None:
        asked = await talk.asked()
        if asked is not None and asked.body == b"slowly":
            await talk.say(answer(b"z" * total))
        await talk.closed()

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server, b"slowly", idle=0.1)
        with pytest.raises(ProviderFailed):
            await ask(client, server, timeout=0.3)  # meanwhile, three times as long as the other server may be silent
        assert len(await response.read(total)) == total

    meet(behave, scenario)


def test_a_body_longer_than_the_limit_is_not_read() -> None:
    """C3: reading stops at the limit, and the connection is given up."""
    gone = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
        await talk.closed()
        gone.set()

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        with pytest.raises(ProviderFailed) as failed:
            await response.read(1000)
        assert (failed.value.kind, str(failed.value)) == ("broken", "the answer has more than 1000 bytes")
        await gone.wait()

    meet(behave, scenario)


def test_a_whole_body_longer_than_the_limit_is_not_given_out() -> None:
    """The limit holds too when everything has come already."""

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        with pytest.raises(ProviderFailed, match=r"^the answer has more than 1 bytes$"):
            await response.read(1)

    meet(always(answer()), scenario)


def test_no_redirect_is_followed() -> None:
    """C4: an answer that points elsewhere is an answer, and nobody else is asked."""

    async def run() -> None:
        async with Loopback(always(answer())) as other, _client() as client:
            async with Loopback(always(answer(b"", "307 Temporary Redirect", location=str(other.url)))) as server:
                assert (await ask(client, server)).status == 307
            assert other.connections == 0

    asyncio.run(run())


def test_closing_an_answer_closes_its_connection() -> None:
    """A stream that is not wanted any more ends for the server too; what is read from it afterwards fails."""
    gone = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await talk.closed()
        gone.set()

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        ends: list[str] = []
        response.watch(ends.append)
        response.close()
        response.close()
        await gone.wait()
        with pytest.raises(ProviderFailed, match=r"^the answer was closed before its end$"):
            await anext(response.chunks())
        assert ends == ["closed"]

    meet(behave, scenario)


def test_who_is_cancelled_as_his_answer_comes_takes_nobody_elses_connection() -> None:
    """It is free as soon as the answer is whole, and may carry the next request before the cancelled one wakes."""

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url)
        given_back = pool.give_back
        asked: list[asyncio.Future[None]] = []
        second = pool.request("POST", "/", b"", b"2", timeout=20.0, idle=20.0)

        def next_one(connection: Any) -> None:
            given_back(connection)
            if not asked:
                waiting = second.send(None)  # to where it waits for its answer
                waiting._asyncio_future_blocking = False
                asked.append(waiting)
                first.cancel()

        pool.give_back = next_one
        first = asyncio.create_task(pool.request("POST", "/", b"", b"1", timeout=20.0, idle=20.0))
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(asked[0], 5)
        with pytest.raises(StopIteration) as ended:
            second.send(None)
        assert await ended.value.value.read(9) == b"ok"
        assert [one.connection for one in server.asked] == [1, 1]

    meet(always(answer(b"ok")), scenario)


def test_a_cancelled_request_closes_its_connection() -> None:
    """Whoever stops waiting for an answer never leaves it to the next request."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        if talk.number == 1:
            asked.set()
            await talk.closed()
            gone.set()
        await talk.say(answer(b"%d" % talk.number))

    async def scenario(client: Client, server: Loopback) -> None:
        first = asyncio.create_task(told(client, server))
        await asked.wait()
        first.cancel()
        await gone.wait()
        assert await told(client, server) == b"2"

    meet(behave, scenario)


def test_how_an_answer_ended_is_told_once() -> None:
    """`watch` tells of the end, now if it is past."""
    ends: list[str] = []

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        response.watch(ends.append)
        await response.read(10)
        response.close()

    meet(always(answer()), scenario)
    meet(always(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"o", b"k"), scenario)
    assert ends == ["complete", "complete"]


def test_requests_wait_for_a_free_connection() -> None:
    """A pool opens as many connections as it may; who comes later gets one that is done, in turn."""

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url, connections=2)

        async def one(number: int) -> bytes:
            body = b"%d" % number
            return await (await pool.request("POST", "/", b"", body, timeout=20.0, idle=20.0)).read(100)

        assert await asyncio.gather(*(one(number) for number in range(20))) == [b"ok"] * 20
        assert pool.count == 2

    server = meet(always(answer()), scenario)
    assert server.connections == 2
    assert sorted(int(one.body) for one in server.asked) == list(range(20))


def test_a_request_that_gets_no_connection_says_that_all_are_busy() -> None:
    """Too many at once is told apart from a provider that fails; the place is free again when the answer ends."""

    async def behave(talk: Talk) -> None:
        while await talk.asked() is not None:
            await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
            await talk.reader.readexactly(1)
            await talk.say(b"ok")

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url, connections=1)
        first = await pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0)
        with pytest.raises(ProviderFailed) as failed:
            await pool.request("POST", "/", b"", b"", timeout=0.05, idle=20.0)
        assert (failed.value.kind, failed.value.status) == ("busy", 503)
        assert str(failed.value) == "all 1 connections to the provider are busy"
        waiting = asyncio.create_task(pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0))
        cancelled = asyncio.create_task(pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0))
        await asyncio.sleep(0)
        cancelled.cancel()
        first.close()
        assert (await waiting).status == 200
        assert pool.count == 1

    meet(behave, scenario)


def test_a_lost_connection_makes_room_for_the_next() -> None:
    """Failures do not use up the places of a pool."""

    async def behave(talk: Talk) -> None:
        await talk.asked()

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url, connections=1)
        for _ in range(3):
            with pytest.raises(ProviderFailed):
                await pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0)
        results = await asyncio.gather(
            *(pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0) for _ in range(5)), return_exceptions=True
        )
        assert [type(one) for one in results] == [ProviderFailed] * 5
        assert pool.count == 0

    meet(behave, scenario)


def test_idle_connections_are_given_up_in_time() -> None:
    """A connection that nobody needs is closed by us, in order."""
    gone = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(answer())
        if await talk.closed():
            gone.set()

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        await gone.wait()

    meet(behave, scenario, keep=0.05)


def test_an_answer_before_the_request_was_sent_is_an_answer() -> None:
    """A server may refuse a body it has not read; that connection is not kept."""

    async def behave(talk: Talk) -> None:
        await talk.reader.readuntil(b"\r\n\r\n")
        await talk.say(answer(b"too big", "413 Content Too Large"))
        await talk.reader.read()

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            response = await ask(client, server, b"x" * 30_000_000)
            assert (response.status, await response.read(100)) == (413, b"too big")

    assert meet(behave, scenario).connections == 2


def test_a_dropped_pool_keeps_nothing_but_ends_what_it_began() -> None:
    """After a change of config the old connections end with their answers."""
    dropped, gone = asyncio.Event(), asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
        await dropped.wait()
        await talk.say(b"ok")
        await talk.closed()
        gone.set()

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url)
        response = await pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0)
        client.drop(pool)
        dropped.set()
        assert await response.read(10) == b"ok"
        await gone.wait()

    meet(behave, scenario)


def test_a_closed_client_asks_nobody() -> None:
    """After `close` a request fails instead of opening a connection that nobody would close."""

    async def scenario(client: Client, server: Loopback) -> None:
        assert await told(client, server) == b"ok"
        await client.close()
        with pytest.raises(ProviderFailed, match=r"^the gateway is closing$"):
            await told(client, server)

    assert meet(always(answer()), scenario).connections == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", "a\r\ny: 1", "the value of the header 'x' holds what cannot be sent"),
        ("x", "a\0", "the value of the header 'x' holds what cannot be sent"),
        ("x", "日本", "the value of the header 'x' holds what cannot be sent"),
        ("x y", "1", "'x y' is no name of a header"),
        ("", "1", "'' is no name of a header"),
        ("x\r\ny", "1", "'x\\r\\ny' is no name of a header"),
        ("Content-Length", "1", "the header 'Content-Length' is set by the client itself"),
        ("transfer-encoding", "chunked", "the header 'transfer-encoding' is set by the client itself"),
        ("Host", "elsewhere", "the header 'Host' is set by the client itself"),
    ],
)
def test_a_header_cannot_say_more_than_itself(name: str, value: str, message: str) -> None:
    """What would end the line, or contradict the client, is refused before it is sent."""
    with pytest.raises(ValueError) as failed:
        render_headers([(name, value)])
    assert str(failed.value) == message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that only those trust who are told to."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "loopback.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize("uv", [False, True])
def test_tls_reaches_servers_that_are_trusted_and_no_others(certificate: Path, uv: bool) -> None:
    """A server that cannot prove who it is gets no request."""

    async def run() -> None:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(certificate)
        async with Loopback(always(answer()), {"ssl": ours}) as server:
            async with _client(tls=ssl.create_default_context(cafile=str(certificate))) as client:
                for _ in range(2):
                    assert await told(client, server) == b"ok"
            assert (server.connections, len(server.asked)) == (1, 2)
            async with _client() as client:
                with pytest.raises(ProviderFailed) as failed:
                    await told(client, server)
                assert failed.value.kind == "connect"
                assert str(failed.value) == f"127.0.0.1:{server.port}: self-signed certificate"
            assert len(server.asked) == 2

    uvloop.run(run()) if uv else asyncio.run(run())


def test_an_address_where_nobody_listens_is_told() -> None:
    """A connection that cannot be made is told with its address."""

    async def run() -> None:
        async with Loopback(always(answer())) as server:
            pass
        async with _client() as client:
            with pytest.raises(ProviderFailed) as failed:
                await told(client, server)
            assert (failed.value.kind, failed.value.status) == ("connect", 502)
            assert str(failed.value) == f"127.0.0.1:{server.port} cannot be reached"

    asyncio.run(run())


def test_an_address_that_does_not_accept_is_not_waited_for() -> None:
    """The time for a connection is limited by itself."""

    async def run() -> None:
        # A TLS handshake that nobody answers: the connection is there, but never ready.
        async def behave(talk: Talk) -> None:
            await talk.closed()

        async with Loopback(behave) as server, _client() as client:
            pool = client.pool(parse_url(f"https://127.0.0.1:{server.port}"), connect_timeout=0.05)
            with pytest.raises(ProviderFailed) as failed:
                await pool.request("POST", "/", b"", b"", timeout=20.0, idle=20.0)
            assert failed.value.kind == "connect"
            assert str(failed.value) == f"127.0.0.1:{server.port} did not accept a connection in time"
            assert pool.count == 0

    asyncio.run(run())


def test_answers_do_not_mix_under_load() -> None:
    """Many requests at once over few connections: each gets the answer to itself."""

    async def behave(talk: Talk) -> None:
        while (asked := await talk.asked()) is not None:
            if asked.body.endswith(b"3"):
                return  # now and then the server closes without a word
            await talk.say(chunked(asked.body, b"!"))

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url, connections=4)

        async def one(number: int) -> None:
            body = b"%d" % number
            try:
                response = await pool.request("POST", "/", b"", body, timeout=20.0, idle=20.0)
                assert await response.read(100) == body + b"!"
            except ProviderFailed as failed:
                assert body.endswith(b"3") or failed.kind == "broken"

        await asyncio.gather(*(one(number) for number in range(200)))
        assert pool.count <= 4

    meet(behave, scenario)


def test_answers_in_turn_are_not_swapped() -> None:
    """The n-th request on a connection gets the n-th answer."""

    async def scenario(client: Client, server: Loopback) -> None:
        assert [await told(client, server) for _ in range(3)] == [b"a", b"b", b"c"]

    meet(in_turn(answer(b"a"), answer(b"b"), answer(b"c")), scenario)


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_place_is_lost_whatever_happens(seed: int, uv: bool) -> None:
    """Servers misbehave, callers hang up: each answer is the right one, the limit holds, and in the end every place is free."""
    dice = random.Random(seed)

    async def behave(talk: Talk) -> None:
        while (asked := await talk.asked()) is not None:
            whole = answer(asked.body)
            said, goes_on = dice.choice(
                [
                    (whole, True),
                    (whole, True),
                    (whole, True),
                    (chunked(asked.body[:3], asked.body[3:]), True),
                    (whole, False),
                    (answer(asked.body, connection="close"), False),
                    (whole[:-1], False),
                    (whole + answer(b"another"), True),
                    (b"", False),
                    (b"", None),
                ]
            )
            await talk.say(said)
            if goes_on is None:
                talk.reset()
            if not goes_on:
                return

    async def scenario(client: Client, server: Loopback) -> None:
        pool = client.pool(server.url, connections=4)
        answers = 0

        async def one(number: int) -> None:
            nonlocal answers
            body = b"body-%d" % number
            try:
                response = await pool.request("POST", "/", b"", body, timeout=20.0, idle=20.0)
                if number % 10 == 0:
                    response.close()
                    return
                assert await response.read(1000) == body
                answers += 1
            except ProviderFailed as failed:
                assert failed.kind == "broken"

        tasks: list[asyncio.Task[None]] = []
        for number in range(200):
            tasks.append(asyncio.create_task(one(number)))
            for _ in range(dice.randrange(6)):
                await asyncio.sleep(0)
            if dice.random() < 0.15:
                dice.choice(tasks).cancel()
            assert pool.count <= 4
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in outcomes if one is not None and not isinstance(one, asyncio.CancelledError)] == []
        assert answers > 50
        pool.close()
        async with asyncio.timeout(20.0):
            while pool.count:
                await asyncio.sleep(0)

    meet(behave, scenario, uv=uv)


def test_what_is_wrong_is_told_also_where_another_error_is_being_handled() -> None:
    """C3: whoever asks while handling an error is told about the answer, not about that error."""
    said = b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %b\r\n" % (one, b"y" * 1000) for one in range(80)) + b"\r\n"

    async def behave(talk: Talk) -> None:
        await talk.asked()
        while not talk.writer.is_closing():
            await talk.say(said)

    try:
        raise OSError("another error")
    except OSError:
        failed = fails(behave)
    assert str(failed) == "the headers of the provider's answer are longer than 65536 bytes"


def test_a_trailer_without_end_is_bounded() -> None:
    """C3: one behind the last chunk is a header too."""

    async def behave(talk: Talk) -> None:
        await talk.asked()
        await talk.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ")
        while not talk.writer.is_closing():
            await talk.say(b"y" * 8192)

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        with pytest.raises(ProviderFailed, match="longer than 65536 bytes"):
            await response.read(100)

    meet(behave, scenario)


def test_what_comes_behind_an_answer_in_the_same_read_is_none_of_it() -> None:
    """C2: not a byte of its body, and the connection is not kept."""

    async def scenario(client: Client, server: Loopback) -> None:
        for _ in range(2):
            assert await told(client, server) == b"ok"

    one = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    assert meet(always(one + b"ok" + one + b"no"), scenario).connections == 2


def test_what_came_before_a_body_broke_stays_readable() -> None:
    """Also when both came in one read."""

    async def scenario(client: Client, server: Loopback) -> None:
        response = await ask(client, server)
        assert await anext(response.chunks()) == b"abc"
        with pytest.raises(ProviderFailed, match="not HTTP"):
            await anext(response.chunks())

    meet(always(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\nzz\r\n"), scenario)
