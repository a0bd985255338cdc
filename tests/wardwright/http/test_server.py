"""The server on sockets: framing, order, limits, ends. The application behind it is a small one that tells what it was given."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wardwright.errors import GovernanceUnavailable
from wardwright.http import guard
from wardwright.http.app import CALLER, Sink
from wardwright.http.app import Caller as ServedCaller
from wardwright.http.server import HIGH_WATER, WAITING, Limits, Server, bind

SOON = Limits(tick=0.01, head=2, idle=2, body=2, rest=2, stalled=2, linger=2)
HEAD = b"POST /echo HTTP/1.1\r\nhost: a\r\n"
PLAIN = [(b"content-type", b"text/plain")]
SPLIT = {
    b"": (b"x", b"a\r\nset-cookie: b"),
    b"cr": (b"x", b"a\rset-cookie: b"),
    b"lf": (b"x", b"a\nset-cookie: b"),
    b"nul": (b"x", b"a\0set-cookie: b"),
    b"name": (b"x: a\r\nset-cookie", b"b"),
    b"end": (b"x", b"set-cookie\r\n"),
    b"close": (b"connection", b"set-cookie"),
    b"chunks": (b"transfer-encoding", b"set-cookie"),
}


class Application:
    """Does what the path says."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.written = 0
        self.fails = ""
        self.on_end: Callable[[], None] = lambda: None
        self.seen: list[weakref.ref[Any]] = []

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        self.told.append(f"{scope['method']} {scope['path']}")
        self.began.set()
        await getattr(self, scope["path"].strip("/"))(scope, receive, send)

    async def live(self, receive: Any, send: Any) -> None:
        self.told.append((await receive())["type"])
        if self.fails:
            await send({"type": "lifespan.startup.failed", "message": self.fails})
            return
        await send({"type": "lifespan.startup.complete"})
        self.told.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        else:
            await say(send, b"cut", 400)
            return
        headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
        keys = ("method", "path", "http_version", "root_path", "scheme")
        told = {key: scope[key] for key in keys} | {"headers": headers, "body": body.decode("latin-1")}
        told |= {"raw_path": scope["raw_path"].decode(), "query": scope["query_string"].decode()}
        await say(send, orjson.dumps(told))

    async def early(self, scope: Any, receive: Any, send: Any) -> None:
        await say(send, b"early", 413)

    async def held(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()
        await say(send, b"held")

    async def stream(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body"})

    async def odd(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 529, "headers": PLAIN})
        await send({"type": "http.response.body", "body": b"x"})

    async def empty(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def fail(self, scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("sk-secret")

    async def late(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("sk-secret")

    async def leave(self, scope: Any, receive: Any, send: Any) -> None:
        pass

    async def short(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"half"})

    async def split(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*PLAIN, SPLIT[scope["query_string"]]]})
        await send({"type": "http.response.body", "body": b""})

    async def gone(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.began.set()
        self.told.append((await receive())["type"])
        await say(send, b"nobody hears this")
        self.go.set()

    async def flood(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
        for _ in range(200):
            self.written += 1
            await send({"type": "http.response.body", "body": bytes(HIGH_WATER), "more_body": True})
        await send({"type": "http.response.body"})

    async def known(self, scope: Any, receive: Any, send: Any) -> None:
        caller: ServedCaller = scope["extensions"][CALLER]
        caller.on_hang_up(lambda: self.told.append(f"{scope['path']} hung up") or self.go.set())
        self.seen.append(weakref.ref(caller))
        first = caller.body()
        received = b""
        if first is None:
            while (message := await receive())["type"] == "http.request" and message["more_body"]:
                received += message["body"]
            received += message.get("body", b"")
        await say(send, orjson.dumps([None if first is None else len(first), len(received), caller.body()]))

    async def leaving(self, scope: Any, receive: Any, send: Any) -> None:
        hung_up = asyncio.Event()
        scope["extensions"][CALLER].on_hang_up(hung_up.set)
        await hung_up.wait()
        self.told.append("hung up")
        scope["extensions"][CALLER].on_hang_up(self.go.set)

    async def partly(self, scope: Any, receive: Any, send: Any) -> None:
        caller: ServedCaller = scope["extensions"][CALLER]
        first = await receive()
        self.began.set()
        caller.on_hang_up(self.go.set)
        await self.go.wait()
        self.told += [first["body"].decode(), str(caller.body()), (await receive())["body"].decode()]

    async def large(self, scope: Any, receive: Any, send: Any) -> None:
        self.written += 1
        await say(send, bytes(4 * HIGH_WATER))

    async def later(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()
        await self.large(scope, receive, send)

    async def whole(self, scope: Any, receive: Any, send: Any) -> None:
        """In one call where that is taken, or with `-sent` as any other; what was taken is told."""
        caller: ServedCaller = scope["extensions"][CALLER]
        number, _, sent = scope["query_string"].partition(b"-")
        body = bytes(int(number))
        lines = b"content-type: text/plain\r\ncontent-length: %d\r\n" % len(body)
        taken = not sent and caller.answer(200, lines, body)
        self.told.append(f"taken {taken}")
        if not taken:
            await say(send, body)

    async def whole_later(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()
        await self.whole(scope, receive, send)

    async def bounded(self, scope: Any, receive: Any, send: Any) -> None:
        caller: ServedCaller = scope["extensions"][CALLER]
        self.told.append(f"within {guard.size(scope['headers']) <= caller.head <= int(scope['query_string'])}")
        await say(send, b"")

    async def sunk(self, scope: Any, receive: Any, send: Any) -> None:
        sink = Sink(send, scope["extensions"][CALLER])
        if scope["query_string"] == b"put":
            assert sink.put(b"x-one: two\r\n", b"said")
        elif scope["query_string"] == b"sent":
            await sink.answer(200, [(b"x-one", b"two")], b"said")
        else:
            await sink.answer(200, [SPLIT[scope["query_string"]]], b"said")

    async def end(self, scope: Any, receive: Any, send: Any) -> None:
        self.on_end()
        await say(send, b"end")

    async def same(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 304, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b""})

    async def hasty(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
        await send({"type": "http.response.body", "body": b"before ", "more_body": True})
        message = await receive()
        await send({"type": "http.response.body", "body": message["body"]})

    async def tail(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": PLAIN})
        await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})
        self.written += 1
        await self.go.wait()
        await send({"type": "http.response.body"})

    async def slow(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()
        await self.echo(scope, receive, send)


async def say(send: Any, body: bytes, status: int = 200) -> None:
    headers = [*PLAIN, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Caller:
    """One connection to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if self.writer.is_closing():
                return
            self.writer.write(piece)
            for _ in range(4 if len(pieces) > 1 else 0):
                await asyncio.sleep(0)

    async def answer(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        """The next one, whole."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:-2])
        status = int(lines[0].split(" ")[1])
        body = b""
        if status >= 200 and status != 204 and not head:
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif "transfer-encoding" in headers:
                pieces: list[bytes] = []
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    pieces.append((await self.reader.readexactly(size + 2))[:-2])
                body = b"".join(pieces)
                assert await self.reader.readexactly(2) == b"\r\n"
            else:
                body = await self.reader.read()
        return status, headers, body

    async def rest(self) -> bytes:
        """Everything until the other side closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


class Stage:
    def __init__(self, application: Application, server: Server, port: int) -> None:
        self.application, self.server, self.port = application, server, port
        self.callers: list[Caller] = []

    async def call(self, *pieces: bytes, receive_buffer: int = 0) -> Caller:
        one = socket.socket()
        if receive_buffer:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", self.port))
        caller = Caller(*await asyncio.open_connection(sock=one, limit=2**16))
        self.callers.append(caller)
        await caller.send(*pieces)
        return caller


def played(
    story: Callable[[Stage], Awaitable[None]],
    limits: Limits | None = None,
    *,
    drain: float = 5.0,
    send_buffer: int = 0,
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Application:
    """A server for one story; it is stopped behind it."""

    async def play() -> Application:
        application = Application()
        server = Server(application, limits)
        sockets = bind("127.0.0.1", 0)
        if send_buffer:
            sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        ready = asyncio.Event()
        serving = asyncio.ensure_future(server.serve(sockets, drain=drain, ready=ready.set))
        await asyncio.wait([serving, asyncio.ensure_future(ready.wait())], return_when="FIRST_COMPLETED")
        stage = Stage(application, server, sockets[0].getsockname()[1])
        try:
            async with asyncio.timeout(20):
                await story(stage)
        finally:
            server.stop()
            for caller in stage.callers:
                caller.writer.close()
            await serving
        return application

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(play())


def exchanged(*pieces: bytes, limits: Limits | None = None) -> bytes:
    """All that comes back for some bytes, after which the caller sends nothing more; dates are cut out."""
    got = b""

    async def story(stage: Stage) -> None:
        nonlocal got
        caller = await stage.call(*pieces)
        got = await caller.rest()

    played(story, limits or SOON)
    return re.sub(rb"date: [^\r]*\r\n", b"", got)


def statuses(raw: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw)]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (b"POST /whole?9%b HTTP/1.1\r\ncontent-length: 1\r\n\r\nx", True),
        (b"POST /whole?0%b HTTP/1.1\r\ncontent-length: 0\r\n\r\n", True),
        (b"GET /whole?9%b HTTP/1.1\r\n\r\n", True),
        (b"HEAD /whole?9%b HTTP/1.1\r\n\r\n", False),
        (b"POST /whole?99999%b HTTP/1.1\r\ncontent-length: 0\r\n\r\n", False),
        (b"GET /whole?9%b HTTP/1.1\r\nconnection: close\r\n\r\n", False),
        (b"GET /whole?9%b HTTP/1.0\r\n\r\n", False),
        (b"POST /whole?9%b HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n", False),
        (b"GET /whole?9%b HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\n\r\n", True),
        (b"POST /whole?9%b HTTP/1.1\r\ncontent-length: 4\r\n\r\nx", True),
    ],
)
def test_an_answer_that_is_given_in_one_call_is_the_same_as_one_that_is_sent(asked: bytes, taken: bool) -> None:
    """W6; where it is not taken, what the server would have to add cannot be added by the application."""
    got: list[bytes] = []

    async def story(stage: Stage) -> None:
        for way in (b"", b"-sent"):
            caller = await stage.call(asked % way)
            got.append(re.sub(rb"date: [^\r]*\r\n", b"", await caller.rest()))

    told = played(story, SOON).told
    assert (got[0], f"taken {taken}" in told) == (got[1], True)


@pytest.mark.parametrize("case", [b"", b"cr", b"lf", b"nul", b"name", b"end"])
def test_the_door_gives_no_header_that_would_end_its_line(case: bytes) -> None:
    """What is put in one call has lines that were looked at before."""
    got = exchanged(b"GET /sunk?put HTTP/1.1\r\n\r\nGET /sunk?%b HTTP/1.1\r\n\r\n" % case)
    assert (statuses(got), b"set-cookie" in got, b"\r\nx-one: two\r\n\r\nsaid" in got) == ([200, 500], False, True)


def test_the_door_puts_what_it_would_send() -> None:
    """Header by header."""
    put, sent = (exchanged(b"GET /sunk?%b HTTP/1.1\r\n\r\n" % way) for way in (b"put", b"sent"))
    assert put == sent != b""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.lists(st.integers(0, 12_000), max_size=6))
def test_the_head_of_a_request_is_never_longer_than_its_caller_is_told(sizes: list[int], cuts: list[int]) -> None:
    """Wherever requests are cut, and however many come at once."""
    sent = b"".join(b"GET /bounded?%d HTTP/1.1\r\nx: %b\r\n\r\n" % (10**6, b"y" * size) for size in sizes)
    borders = [0, *sorted({cut for cut in cuts if cut < len(sent)} - {0}), len(sent)]
    told: list[str] = []

    async def story(stage: Stage) -> None:
        caller = await stage.call(*[sent[one:two] for one, two in pairwise(borders)])
        for _ in sizes:
            await caller.answer()
        told.extend(stage.application.told)

    played(story)
    assert (told.count("within True"), "within False" in told) == (len(sizes), False)


@pytest.mark.parametrize("said", [b"", b"connection: keep-alive\r\n", b"Proxy-Connection: keep-alive\r\n", b"x: y\r\n"])
@pytest.mark.parametrize(("version", "told"), [(b"1.1", "1.1"), (b"1.0", "1.0"), (b"0.9", ""), (b"2.0", "")])
def test_the_version_of_a_request_is_told_whatever_it_says_of_its_connection(
    version: bytes, told: str, said: bytes
) -> None:
    """Also where nobody asks the parser for it; others than 1.0 and 1.1 are refused."""
    got = exchanged(b"GET /echo HTTP/%b\r\n%b\r\n" % (version, said))
    if told:
        assert (statuses(got), orjson.loads(got.partition(b"\r\n\r\n")[2])["http_version"]) == ([200], told)
    else:
        assert statuses(got) == [505]


def test_an_answer_in_one_call_is_not_taken_from_a_server_that_ends() -> None:
    """Its caller is told that the connection ends with it."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /whole_later?9 HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.server.stop()
        while stage.server.ending is None:
            await asyncio.sleep(0)
        stage.application.go.set()
        status, headers, body = await caller.answer()
        assert (status, headers.get("connection"), body, await caller.rest()) == (200, "close", bytes(9), b"")
        assert "taken False" in stage.application.told

    played(story)


def test_nothing_of_a_long_path_is_kept_with_a_connection() -> None:
    """W3: whoever was answered and stays costs what everybody does, whatever he has asked for."""
    kept = 0

    async def story(stage: Stage) -> None:
        nonlocal kept
        asked = b"GET %becho HTTP/1.1\r\n\r\n" % (b"/" * 50_000)
        callers = [await stage.call() for _ in range(8)]
        tracemalloc.start()
        try:
            for caller in callers:
                await caller.send(asked)
                assert (await caller.answer())[0] == 200
            found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/wardwright/http/server.py")])
        finally:
            tracemalloc.stop()
        kept = sum(one.size for one in found.traces)

    played(story)
    assert kept < 50_000


def test_an_answer_in_one_call_is_not_taken_behind_what_the_caller_does_not_read() -> None:
    """W3: whoever sends waits then, which a call cannot."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /large HTTP/1.1\r\n\r\nGET /whole?9 HTTP/1.1\r\n\r\n", receive_buffer=4096)
        while "taken False" not in stage.application.told:
            await asyncio.sleep(0)
        assert len((await caller.answer())[2]) == 4 * HIGH_WATER
        assert (await caller.answer())[2] == bytes(9)

    played(story, send_buffer=4096)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_connection_is_kept_for_the_next_request(factory: Any) -> None:
    """On either event loop; each answer has its date."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        for number in range(3):
            await caller.send(HEAD + b"content-length: 1\r\n\r\n%d" % number)
            status, headers, body = await caller.answer()
            assert (status, orjson.loads(body)["body"], "connection" in headers) == (200, str(number), False)
            assert headers["date"].endswith(" GMT")

    played(story, factory=factory)


def test_an_application_is_given_the_request_as_it_was_sent() -> None:
    """Method, path, query and headers; names of headers in small letters, repeated ones apart."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"PUT /ec%68o?a=%20b HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nx-one:  \xe92\r\n\r\n")
        told = orjson.loads((await caller.answer())[2])
        assert told == {
            "method": "PUT",
            "path": "/echo",
            "raw_path": "/ec%68o",
            "query": "a=%20b",
            "http_version": "1.1",
            "root_path": "",
            "scheme": "http",
            "headers": [["host", "a"], ["x-one", "1"], ["x-one", "é2"]],
            "body": "",
        }

    played(story)


def test_a_target_may_name_the_host() -> None:
    """Only its path is looked at."""
    raw = exchanged(b"GET http://other/echo?q HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert b'"path":"/echo"' in raw
    assert b'"query":"q"' in raw


def test_pipelined_requests_are_answered_in_their_order() -> None:
    """W1: also when the first takes longest."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(
            b"GET /held HTTP/1.1\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi" + b"GET /odd HTTP/1.1\r\n\r\n"
        )
        await stage.application.began.wait()
        assert stage.application.told[1:] == ["GET /held"]
        stage.application.go.set()
        assert (await caller.answer())[2] == b"held"
        assert orjson.loads((await caller.answer())[2])["body"] == "hi"
        assert (await caller.answer())[0] == 529

    played(story)


def scopes() -> int:
    """Requests that the server holds."""
    gc.collect()
    found: list[Any] = gc.get_objects()
    return sum(type(one) is dict and one.get("type") == "http" and "raw_path" in one for one in found)


def test_only_so_many_requests_wait_for_their_turn() -> None:
    """W3: what came behind them is left unread, and is read and answered in its order when they are."""
    count = 1_000

    async def story(stage: Stage) -> None:
        before = scopes()
        sent = b"".join(HEAD + b"content-length: 4\r\n\r\n%04d" % number for number in range(count))
        caller = await stage.call(b"GET /held HTTP/1.1\r\n\r\n" + sent)
        await stage.application.began.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert 1 < scopes() - before < 70
        stage.application.go.set()
        assert (await caller.answer())[2] == b"held"
        for number in range(count):
            assert orjson.loads((await caller.answer())[2])["body"] == f"{number:04}"
        assert len(stage.application.told) == count + 2

    played(story)


def test_nothing_runs_behind_the_last_request() -> None:
    """W2: not even when it came together with the end of a body that nobody wanted."""
    head = b"POST /early HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\n"

    async def story(stage: Stage) -> None:
        caller = await stage.call(head)
        assert (await caller.answer())[0] == 413
        await caller.send(b"hello" + b"GET /odd HTTP/1.1\r\n\r\n")
        assert await caller.rest() == b""

    assert played(story).told == ["lifespan.startup", "POST /early", "lifespan.shutdown"]


def test_a_chunked_body_is_put_together() -> None:
    """Extensions and trailers mean nothing, and no trailer becomes a header."""
    body = b"2;x=y\r\nab\r\n3\r\ncde\r\n0\r\nx-late: 1\r\n\r\n"
    raw = exchanged(HEAD + b"connection: close\r\ntransfer-encoding: Chunked\r\n\r\n" + body)
    assert b'"body":"abcde"' in raw
    assert b"x-late" not in raw


def test_whoever_waits_to_be_told_to_send_is_told() -> None:
    """Once, when the application asks for the body."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(HEAD + b"expect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
        assert (await caller.answer())[0] == 100
        await caller.send(b"hi")
        status, headers, body = await caller.answer()
        assert (status, orjson.loads(body)["body"], "connection" in headers) == (200, "hi", False)

    played(story)


def test_whoever_is_answered_before_he_was_told_to_send_finds_the_connection_closed() -> None:
    """Nobody knows whether the body follows."""
    raw = exchanged(b"POST /early HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert statuses(raw) == [413]
    assert b"connection: close\r\n" in raw


def test_nobody_is_told_to_send_in_the_middle_of_an_answer() -> None:
    """Who has read the beginning of it knows enough."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /hasty HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await caller.reader.readuntil(b"before \r\n")
        await caller.send(b"hi")
        assert await caller.rest() == b"2\r\nhi\r\n0\r\n\r\n"

    played(story)


def test_an_answer_that_has_no_body_may_have_a_length() -> None:
    """That of what the caller has already."""
    raw = exchanged(b"GET /same HTTP/1.1\r\n\r\nGET /odd HTTP/1.1\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\nHTTP/1.1 529")


def test_a_body_that_nobody_reads_is_read_away() -> None:
    """The answer comes before it has ended, and the next request is answered as well."""

    async def story(stage: Stage) -> None:
        size = 4 * HIGH_WATER
        caller = await stage.call(b"POST /early HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size)
        assert (await caller.answer())[0] == 413
        await caller.send(bytes(size), HEAD + b"\r\n")
        assert (await caller.answer())[0] == 200

    played(story)


def test_a_head_is_answered_without_a_body() -> None:
    """With the length that it would have."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"HEAD /held HTTP/1.1\r\n\r\nHEAD /stream HTTP/1.1\r\n\r\nHEAD /odd HTTP/1.1\r\n\r\n")
        stage.application.go.set()
        assert (await caller.answer(head=True))[1]["content-length"] == "4"
        assert (await caller.answer(head=True))[1].keys() == {"date", "content-type"}
        assert (await caller.answer(head=True))[1]["content-length"] == "1"
        await caller.send(b"GET /odd HTTP/1.1\r\n\r\n")
        assert (await caller.answer())[2] == b"x"

    played(story)


def test_an_answer_without_a_length_is_chunked() -> None:
    """W6: with its head before the first piece, in one write."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /stream HTTP/1.1\r\n\r\n")
        status, headers, body = await caller.answer()
        assert (status, headers["transfer-encoding"], body) == (200, "chunked", b"one two")

    played(story)


def test_an_answer_that_is_known_whole_has_its_length() -> None:
    """Also when the application did not say it; no content has none."""
    raw = exchanged(b"GET /odd HTTP/1.1\r\n\r\nGET /empty HTTP/1.1\r\nconnection: close\r\n\r\n")
    first = b"HTTP/1.1 529 \r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nx"
    assert raw == first + b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


def test_an_old_client_gets_an_answer_that_ends_with_its_connection() -> None:
    """HTTP/1.0 knows no chunks."""
    raw = exchanged(b"GET /stream HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    assert raw == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\none two"


def test_a_connection_ends_when_the_caller_says_so() -> None:
    """Whatever he sends behind it."""
    raw = exchanged(b"GET /odd HTTP/1.1\r\nconnection: close\r\n\r\nGET /odd HTTP/1.1\r\n\r\n")
    assert statuses(raw) == [529]
    assert b"connection: close\r\n" in raw


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        HEAD + b"content-length: 3, 3\r\n\r\nabc",
        HEAD + b"content-length: +3\r\n\r\nabc",
        HEAD + b"content-length: \r\n\r\n",
        HEAD + b"content-length: 99999999999999999999999\r\n\r\n",
        HEAD + b"transfer-encoding: identity\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"x: a\r\n b\r\n\r\n",
        HEAD + b"x: a\nb: c\r\n\r\n",
        HEAD + b"x: a\rb: c\r\n\r\n",
        HEAD + b"x: a\0b\r\n\r\n",
        HEAD + b": a\r\n\r\n",
        HEAD + b"x\r\n\r\n",
        b"POST /echo HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /echo HTTP/1.1\nhost: a\n\n",
        b"GET /e cho HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET echo HTTP/1.1\r\n\r\n",
        b"GET http://a HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(sent: bytes) -> None:
    """W2: with 400, and nothing behind it is read."""
    raw = exchanged(sent + b"GET /odd HTTP/1.1\r\n\r\n")
    assert raw == (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 11\r\n"
        b"connection: close\r\n\r\nBad Request"
    )


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /echo HTTP/2.0\r\n\r\n", 505),
        (b"GET /echo HTTP/0.9\r\n\r\n", 505),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT /odd HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_not_spoken_here_is_refused(sent: bytes, status: int) -> None:
    """Other versions, and tunnels."""
    assert statuses(exchanged(sent)) == [status]


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-1\r\n", b"0x1\r\na\r\n", b"fffffffffffffffff\r\n", b"1\na\r\n", b"1\r\nab\r\n"]
)
def test_a_body_that_breaks_ends_as_if_the_caller_had_left(chunk: bytes) -> None:
    """W2: the application says what it says of a body that was cut, and nothing behind it is read."""
    raw = exchanged(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"GET /odd HTTP/1.1\r\n\r\n")
    assert statuses(raw) == [400]
    assert raw.endswith(b"connection: close\r\n\r\ncut")


def test_requests_before_a_bad_one_are_answered_first() -> None:
    """W1."""
    assert statuses(exchanged(b"GET /odd HTTP/1.1\r\n\r\nGET /empty HTTP/1.1\r\n\r\nnonsense\r\n\r\n")) == [
        529,
        204,
        400,
    ]


@pytest.mark.parametrize(
    "body", [b"content-length: 2\r\n\r\nhi", b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("cut", [0, 1])
def test_an_upgrade_is_not_given_and_loses_no_body(body: bytes, cut: int) -> None:
    """Clients that would like HTTP/2 send their body all the same; what follows it is not read (W2)."""
    head = HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    whole = head + body + b"GET /odd HTTP/1.1\r\n\r\n"
    at = whole.index(b"\r\n\r\n") + 4
    raw = exchanged(whole[:at], whole[at:]) if cut else exchanged(whole)
    assert statuses(raw) == [200]
    assert b'"body":"hi"' in raw


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /odd HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n",
        b"GET /odd HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /odd?" + b"y" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /odd HTTP/1.1\r\nx: " + b"y" * 500_000,
        b"\r\n" * 300_000,
        b"GET /odd HTTP/1.1\r\n" + b"x: y\r\n" * 200_000,
    ],
)
def test_a_head_has_an_end(sent: bytes) -> None:
    """W3: too many headers, or too long, or without end."""
    assert statuses(exchanged(sent)) == [431]


def test_trailers_have_an_end_too() -> None:
    """W3."""
    sent = HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: "
    assert exchanged(sent, *[b"y" * 60_000] * 8).endswith(b"cut")


def test_a_long_body_behind_a_short_head_is_no_long_head() -> None:
    """What came together is not counted together."""
    raw = exchanged(HEAD + b"connection: close\r\ncontent-length: 200000\r\n\r\n" + bytes(200_000))
    assert statuses(raw) == [200]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /od", b"GET /odd HTTP/1.1\r\nx: y\r\n", b"POST /early HTTP/1.1\r\ncontent-length: 9\r\n\r\n"]
)
def test_nobody_is_waited_for_without_end(sent: bytes) -> None:
    """W4: for a request, the rest of a head, the rest of a body that nobody reads."""
    assert statuses(exchanged(sent)) == ([413] if b"early" in sent else [])


def test_a_body_that_stops_coming_ends_as_if_the_caller_had_left() -> None:
    """W4: but an application that does not wait for it may take its time."""
    raw = exchanged(HEAD + b"content-length: 9\r\n\r\nabc")
    assert statuses(raw) == [400]
    assert raw.endswith(b"cut")

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /held HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc")
        for _ in range(3):
            await (await stage.call()).rest()  # that many times as long as anybody is waited for
        stage.application.go.set()
        assert (await caller.answer())[0] == 200

    played(story, SOON)


def test_a_body_that_nobody_wants_buys_no_time() -> None:
    """W4: the rest of it has its ticks as a whole, however steadily it comes."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /early HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n")
        assert (await caller.answer())[0] == 413
        ended = asyncio.ensure_future(caller.rest())
        while not ended.done():
            await caller.send(b"a", b"b")
        assert await ended == b""

    played(story, SOON)


def test_an_idle_connection_is_closed() -> None:
    """W4: after its answer."""
    assert statuses(exchanged(b"GET /odd HTTP/1.1\r\n\r\n")) == [529]


def test_a_caller_who_reads_nothing_is_waited_for_only_so_long() -> None:
    """W3, W4: the application stands still meanwhile, and is then told nothing but that it may go on."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /flood HTTP/1.1\r\n\r\n", receive_buffer=4096)
        caller.writer.transport.pause_reading()
        while stage.server.connections:
            await asyncio.sleep(0)
        while stage.server.running:
            await asyncio.sleep(0)

    assert played(story, SOON).told == ["lifespan.startup", "GET /flood", "lifespan.shutdown"]


def test_a_caller_who_ended_his_side_is_waited_for_only_so_long() -> None:
    """W4: also when too little is left to be written for the application to wait."""

    async def story(stage: Stage) -> None:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", stage.port))
            one.send(b"GET /tail HTTP/1.1\r\nconnection: close\r\n\r\n")
            while not stage.application.written:
                await asyncio.sleep(0)
            one.shutdown(socket.SHUT_WR)
            for _ in range(20):
                await asyncio.sleep(0)
            stage.application.go.set()
            while stage.server.connections:
                await asyncio.sleep(0)
            assert not stage.server.running

    played(story, SOON, send_buffer=4096)


@pytest.mark.parametrize(
    ("sent", "buffer"),
    [
        (b"GET /flood HTTP/1.1\r\n\r\n", 4096),
        (b"GET /flood HTTP/1.1\r\n\r\n", 1024 * 1024),
        (b"GET /large HTTP/1.1\r\n\r\n", 4096),
        (b"GET /large HTTP/1.1\r\nconnection: close\r\n\r\n", 4096),
        (b"POST /large HTTP/1.1\r\ncontent-length: 9\r\n\r\n", 4096),
        (b"GET /large HTTP/1.1\r\n\r\nnonsense\r\n\r\n", 4096),
    ],
    ids=["at work", "far away", "idle", "closing", "rest", "refused"],
)
def test_a_caller_who_goes_on_reading_is_never_cut(sent: bytes, buffer: int) -> None:
    """W4: many times as long as one who reads nothing is waited for; what counts is that he takes something, also when the network's
    own buffers are so long that nothing of it is seen."""
    limits = Limits(tick=0.005, head=2, idle=2, body=2, rest=2, stalled=15, linger=2)
    piece = 16 * 1024

    async def story(stage: Stage) -> None:
        caller = await stage.call(sent, receive_buffer=4096)
        caller.writer.transport.pause_reading()
        loop, got, one = asyncio.get_running_loop(), 0, caller.writer.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(one.fileno())) as taking:
            taking.setblocking(False)
            for _ in range(6):
                for _ in range(2):
                    await (await stage.call()).rest()  # three ticks
                wanted = got + piece
                while got < wanted:
                    got += len(data := await loop.sock_recv(taking, wanted - got))
                    assert data, "cut"
            assert stage.server.connections

    played(story, limits, send_buffer=buffer, drain=0)


def test_an_application_waits_for_a_caller_who_reads_slowly() -> None:
    """W3: it has not written everything while nothing was read, and all of it arrives."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /flood HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert stage.application.written < 100
        assert len((await caller.answer())[2]) == 200 * HIGH_WATER

    played(story)


def test_answers_that_nobody_reads_do_not_pile_up() -> None:
    """W3: whoever sends many requests at once, and reads nothing, is answered only so far."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /large HTTP/1.1\r\n\r\n" * 60)
        caller.writer.transport.pause_reading()
        await stage.application.began.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert stage.application.written < 40
        caller.writer.transport.resume_reading()
        for _ in range(60):
            assert len((await caller.answer())[2]) == 4 * HIGH_WATER

    played(story)


def test_a_caller_waits_while_his_body_is_not_read() -> None:
    """W3: no more than a bounded part of it is taken."""

    async def story(stage: Stage) -> None:
        size = 64 * 1024 * 1024
        caller = await stage.call(b"POST /slow HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size)
        caller.writer.write(bytes(size))
        await stage.application.began.wait()
        for _ in range(200):
            await asyncio.sleep(0)
        transport: Any = caller.writer.transport
        assert transport.get_write_buffer_size() > size // 2
        caller.writer.transport.abort()
        stage.application.go.set()

    played(story)


def test_an_application_hears_that_the_caller_hung_up() -> None:
    """While it waits; what it says then goes nowhere."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /gone HTTP/1.1\r\ncontent-length: 1\r\n\r\nx")
        await stage.application.began.wait()
        caller.writer.close()
        await stage.application.go.wait()

    assert played(story).told == ["lifespan.startup", "POST /gone", "http.disconnect", "lifespan.shutdown"]


def test_a_body_that_is_here_needs_no_wait() -> None:
    """Once; one that is not is received, and whoever stays until he is answered has not hung up."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        for size in (0, 5, 2 * HIGH_WATER):
            await caller.send(b"POST /known HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size, bytes(size))
            first, received, again = orjson.loads((await caller.answer())[2])
            assert (first or received, again) == (size, None)
        await caller.send(b"POST /known HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello")
        assert orjson.loads((await caller.answer())[2]) == [5, 0, None]
        caller.writer.close()
        while stage.server.connections:
            await asyncio.sleep(0)
        assert not stage.application.go.is_set()

    played(story)


def test_a_body_of_which_some_was_received_is_received_to_its_end() -> None:
    """Nobody is given the rest of it for the whole."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /partly HTTP/1.1\r\ncontent-length: 5\r\n\r\nab")
        await stage.application.began.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        await caller.send(b"cde")
        caller.writer.close()
        await stage.application.go.wait()

    assert played(story).told == ["lifespan.startup", "POST /partly", "ab", "None", "cde", "lifespan.shutdown"]


def test_a_request_that_is_answered_is_gone() -> None:
    """It leaves nothing behind that somebody must collect."""

    async def story(stage: Stage) -> None:
        caller = await stage.call()
        gc.disable()
        try:
            for _ in range(3):
                await caller.send(b"GET /known HTTP/1.1\r\n\r\n")
                await caller.answer()
            while stage.server.running:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [one() for one in stage.application.seen] == [None, None, None]
        finally:
            gc.enable()

    played(story)


def test_an_application_can_be_called_when_the_caller_hangs_up() -> None:
    """Also when it asks for that too late."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /leaving HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        caller.writer.close()
        await stage.application.go.wait()

    assert "hung up" in played(story).told


def test_a_body_that_is_cut_is_told_at_once() -> None:
    """Nobody waits for the rest."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"POST /gone HTTP/1.1\r\ncontent-length: 2\r\n\r\nx")
        await stage.application.began.wait()
        caller.writer.close()
        await stage.application.go.wait()

    assert "http.disconnect" in played(story).told


def test_an_error_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """500, the connection ends, and the log says what kind of error it was, and where."""
    with caplog.at_level("WARNING", "wardwright"):
        raw = exchanged(b"GET /fail HTTP/1.1\r\n\r\n")
    assert statuses(raw) == [500]
    assert raw.endswith(b"connection: close\r\n\r\nInternal Server Error")
    [record] = caplog.records
    assert (record.message, record.__dict__["error"]) == ("request failed", "ValueError")
    assert "sk-secret" not in str(record.__dict__)


def test_an_error_behind_a_head_has_no_body() -> None:
    """As no answer to it has."""
    raw = exchanged(b"HEAD /fail HTTP/1.1\r\n\r\n")
    assert statuses(raw) == [500]
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", [b"leave", b"short", *(b"split?" + one for one in SPLIT)])
def test_an_application_that_does_not_answer_as_it_must_is_an_error(path: bytes) -> None:
    """No answer, one of another length than its head says, a header that would be two, and one that says how the answer ends (W5)."""
    raw = exchanged(b"GET /" + path + b" HTTP/1.1\r\n\r\n")
    assert statuses(raw) == [500]
    assert b"set-cookie" not in raw


def test_an_answer_that_breaks_off_does_not_look_whole() -> None:
    """W5: its last chunk is missing; where only the connection's end would tell, it is reset."""
    assert exchanged(b"GET /late HTTP/1.1\r\n\r\n").endswith(b"4\r\nhalf\r\n")

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /late HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await caller.reader.read()

    played(story)


def test_what_is_under_way_ends_before_the_server_does() -> None:
    """Idle connections are closed at once, nobody else is let in, and the last answer says that the connection ends."""

    async def story(stage: Stage) -> None:
        idle = await stage.call()
        caller = await stage.call(b"GET /held HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.server.stop()
        stage.server.stop()
        assert await idle.rest() == b""
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", stage.port)) != 0
        stage.application.go.set()
        status, headers, _ = await caller.answer()
        assert (status, headers["connection"]) == (200, "close")

    assert played(story).told == ["lifespan.startup", "GET /held", "lifespan.shutdown"]


def test_a_server_that_ends_says_what_it_waits_for_and_when_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has sent the signal sees that it was heard, and why the process is still there."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /held HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.server.stop()
        stage.application.go.set()
        await caller.answer()

    with caplog.at_level("INFO", "wardwright"):
        played(story, drain=7.0)

    waits, done = caplog.records
    assert (waits.message, vars(waits)["running"], vars(waits)["seconds_at_most"]) == ("draining", 1, 7.0)
    assert (done.message, vars(done)["in_order"]) == ("stopped", True)


def test_what_waits_unread_does_not_begin_when_the_server_ends() -> None:
    """Nor does what waits for its turn; the one under way is answered."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /held HTTP/1.1\r\n\r\n" + b"GET /odd HTTP/1.1\r\n\r\n" * 2_000)
        await stage.application.began.wait()
        stage.server.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stage.application.go.set()
        assert (await caller.answer())[2] == b"held"
        assert await caller.rest() == b""

    assert played(story).told == ["lifespan.startup", "GET /held", "lifespan.shutdown"]


def test_the_body_of_what_is_under_way_is_read_when_the_server_ends() -> None:
    """Also when all of it still waits behind as many requests as may wait, of which the last was answered just now."""
    body = bytes(60_000)

    async def story(stage: Stage) -> None:
        first = b"GET /held HTTP/1.1\r\n\r\n" + b"GET /odd HTTP/1.1\r\n\r\n" * (WAITING - 2)
        long = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        caller = await stage.call(first + b"GET /end HTTP/1.1\r\n\r\n" + long + b"GET /odd HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.application.on_end = stage.server.stop
        stage.application.go.set()
        for _ in range(WAITING):
            assert (await caller.answer())[0] in (200, 529)
        assert orjson.loads((await caller.answer())[2])["body"] == body.decode()
        assert await caller.rest() == b""

    assert played(story).told[-2:] == ["POST /echo", "lifespan.shutdown"]


def test_an_answer_is_not_lost_with_what_was_sent_behind_its_request() -> None:
    """What nobody will read is read away, or the network would take it for a reason to throw away the end of the answer."""

    async def story(stage: Stage) -> None:
        behind = b"GET /odd HTTP/1.1\r\n\r\n" * 40_000
        caller = await stage.call(b"GET /later HTTP/1.1\r\n\r\n" + behind, receive_buffer=4096)
        await stage.application.began.wait()
        stage.server.stop()
        stage.application.go.set()
        while stage.application.written == 0 or stage.server.running:
            await asyncio.sleep(0)
        assert len((await caller.answer())[2]) == 4 * HIGH_WATER

    assert played(story).told == ["lifespan.startup", "GET /later", "lifespan.shutdown"]


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_who_was_let_in_last_does_not_keep_the_server(factory: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that is accepted while the server ends is closed at once."""

    async def story(stage: Stage) -> None:
        late = socket.create_connection(("127.0.0.1", stage.port))  # nobody else runs meanwhile
        stage.server.stop()
        with late:
            late.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(late, 1) == b""

    with caplog.at_level("WARNING", "wardwright"):
        played(story, drain=1.0, factory=factory)
    assert not caplog.records


def test_an_error_does_not_stop_the_clock() -> None:
    """W4: nobody else is waited for without end."""

    class Broken:
        def tick(self) -> None:
            raise ValueError("broken")

        def finish(self) -> None:
            pass

        abort = finish

    async def story(stage: Stage) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        broken: Any = [Broken() for _ in range(20)]
        stage.server.connections.update(broken)
        for _ in range(5):
            assert await (await stage.call()).rest() == b""
        assert len(errors) >= 5 * 20
        stage.server.connections.difference_update(broken)

    played(story, SOON)


def test_what_does_not_end_in_time_is_cancelled() -> None:
    """And the application still ends in order."""

    async def story(stage: Stage) -> None:
        caller = await stage.call(b"GET /held HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.server.stop()
        assert (await caller.answer())[0] == 500

    assert played(story, drain=0.01).told[-1] == "lifespan.shutdown"


def test_a_server_can_end_at_once() -> None:
    """Whatever is under way, and without the application's own end."""

    async def story(stage: Stage) -> None:
        await stage.call(b"GET /held HTTP/1.1\r\n\r\n")
        await stage.application.began.wait()
        stage.server.stop()
        await asyncio.sleep(0)
        stage.server.end()

    assert played(story, drain=3600).told == ["lifespan.startup", "GET /held"]


def test_an_application_that_does_not_start_is_not_served() -> None:
    """Its own words are the error's."""

    async def play() -> None:
        application = Application()
        application.fails = "ConfigError: no key"
        sockets = bind("127.0.0.1", 0)
        try:
            await Server(application).serve(sockets, drain=1, ready=lambda: None)
        finally:
            sockets[0].close()

    with pytest.raises(GovernanceUnavailable, match="ConfigError: no key"):
        asyncio.run(play())


def test_an_address_that_is_taken_is_told() -> None:
    """Before anything else is done."""
    [taken] = bind("127.0.0.1", 0)
    with taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)


TALK = (
    b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n"
    + HEAD
    + b"content-length: 5\r\n\r\nhello\r\n"
    + HEAD
    + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nt: u\r\n\r\n"
    + b"HEAD /odd?x=%20 HTTP/1.1\r\n\r\n"
    + b"POST /early HTTP/1.1\r\ncontent-length: 4\r\n\r\nwxyz"
    + HEAD
    + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi"
)
BROKEN = TALK.replace(b"3\r\nabc", b"3\r\nabcd")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([TALK, BROKEN]), st.lists(st.integers(1, len(TALK) - 1), max_size=12))
def test_where_bytes_are_cut_changes_nothing(sent: bytes, cuts: list[int]) -> None:
    """W1: any split of the same bytes gives the same answers."""
    whole = exchanged(sent)
    edges = [0, *sorted(set(cuts)), len(sent)]
    pieces = [sent[one:other] for one, other in pairwise(edges)]
    assert exchanged(*pieces) == whole
    assert statuses(whole) == ([200, 200, 200, 529, 413, 200] if sent is TALK else [200, 200, 400])


LONG = (
    b"GET /odd HTTP/1.1\r\n\r\n" * 150
    + (HEAD + b"content-length: 30000\r\n\r\n" + bytes(30_000))
    + (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"4e20\r\n%b\r\n0\r\n\r\n" % (b"ab\r\n\r\n" * 3_334)[:20_000])
    + (HEAD + b"x: %b\r\n\r\n" % (b"y" * 20_000))
    + b"\r\n\r\n"
    + b"GET /empty HTTP/1.1\r\n\r\n" * 70
    + (HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 9000\r\n\r\n" + bytes(9_000))
    + b"GET /odd HTTP/1.1\r\n\r\n" * 500
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, len(LONG) - 1), max_size=6))
def test_where_many_bytes_are_cut_changes_nothing(cuts: list[int]) -> None:
    """W1: they are read in steps of the server's own, which no answer shows."""
    whole = exchanged(*[LONG[at : at + 1_000] for at in range(0, len(LONG), 1_000)])
    edges = [0, *sorted(set(cuts)), len(LONG)]
    assert exchanged(*[LONG[one:other] for one, other in pairwise(edges)]) == whole
    assert statuses(whole) == [529] * 150 + [200] * 3 + [204] * 70 + [200]
