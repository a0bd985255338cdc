"""Alerts on their way out: bounded, never in the way, and silent about secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from wardwright.alerts import (
    BATCH,
    MAX_ALERT,
    WAITS_S,
    Alerts,
    AlertSettings,
    FileSink,
    Undelivered,
    Webhook,
    compile_alerts,
)
from wardwright.config import Problems, parse_yaml
from wardwright.keys import KeysUnusable
from weakincentives.clock import FakeClock

SECRET = "https://hooks.example.test/T000/sekrit"


class ListSink:
    """Keeps what it is given; fails as often as it is told to first."""

    name = "list"

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.batches: list[list[Any]] = []
        self.got = asyncio.Event()

    async def deliver(self, alerts: Sequence[bytes]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append([orjson.loads(alert) for alert in alerts])
        self.got.set()

    @property
    def alerts(self) -> list[Any]:
        return [alert for batch in self.batches for alert in batch]


class StuckSink(ListSink):
    """Never answers."""

    name = "stuck"

    async def deliver(self, alerts: Sequence[bytes]) -> None:
        self.got.set()
        await asyncio.Event().wait()


def emitted(alerts: Alerts, number: int) -> None:
    for place in range(number):
        alerts.emit({"n": place})


def drained(alerts: Alerts, before: Callable[[], Awaitable[None]] | None = None, seconds: float = 5) -> None:
    """Runs until everything was delivered or given up."""

    async def main() -> None:
        running = asyncio.create_task(alerts.run())
        if before is not None:
            await before()
        else:
            await asyncio.sleep(0)
        await alerts.close(seconds)
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


# the queue


def test_alerts_arrive_in_order() -> None:
    """What was emitted before anybody delivers, too."""
    sink = ListSink()
    alerts = Alerts([sink])
    emitted(alerts, 3)
    drained(alerts)

    assert sink.alerts == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (alerts.emitted, alerts.delivered, alerts.dropped, alerts.waiting) == (3, 3, 0, 0)


def test_alerts_are_delivered_while_the_gateway_runs() -> None:
    """An idle sink wakes up, each time."""
    sink = ListSink()
    alerts = Alerts([sink])

    async def one_by_one() -> None:
        for number in range(3):
            alerts.emit({"n": number})
            await sink.got.wait()
            sink.got.clear()

    drained(alerts, one_by_one)
    assert sink.batches == [[{"n": 0}], [{"n": 1}], [{"n": 2}]]


def test_an_alert_of_another_thread_wakes_the_sink() -> None:
    """Store threads may emit."""
    sink = ListSink()
    alerts = Alerts([sink])

    async def elsewhere() -> None:
        await asyncio.sleep(0)
        thread = threading.Thread(target=alerts.emit, args=({"n": 1},))
        thread.start()
        await sink.got.wait()
        thread.join()

    drained(alerts, elsewhere)
    assert sink.alerts == [{"n": 1}]


def test_many_alerts_go_in_batches() -> None:
    """A flood is not one delivery per alert."""
    sink = ListSink()
    alerts = Alerts([sink])
    emitted(alerts, BATCH + 1)
    drained(alerts)

    assert [len(batch) for batch in sink.batches] == [BATCH, 1]


def test_a_full_queue_drops_and_counts() -> None:
    """What happened first is kept; memory is bounded."""
    sink = ListSink()
    alerts = Alerts([sink], queue=2)
    emitted(alerts, 5)

    assert (alerts.waiting, alerts.dropped) == (2, 3)
    drained(alerts)
    assert sink.alerts == [{"n": 0}, {"n": 1}]


def test_an_alert_that_is_too_long_is_dropped_and_counted() -> None:
    """A thousand of them would be a lot of memory."""
    alerts = Alerts([ListSink()])
    alerts.emit({"message": "x" * MAX_ALERT})

    assert (alerts.waiting, alerts.dropped) == (0, 1)


@pytest.mark.parametrize(
    ("alert", "arrives"),
    [
        ({"message": "a\ud800b"}, {"message": "a\ud800b"}),
        ({"where": Path("/x")}, {"where": "/x"}),
        ({1: 2}, {"1": 2}),
        ({"big": 2**70}, {"big": 2**70}),
    ],
)
def test_emitting_never_raises(alert: dict[Any, Any], arrives: dict[str, Any]) -> None:
    """Whatever is in it; it arrives as near as JSON can say it."""
    lines: list[bytes] = []

    class Raw(ListSink):
        async def deliver(self, alerts: Sequence[bytes]) -> None:
            lines.extend(alerts)

    alerts = Alerts([Raw()])
    alerts.emit(alert)
    drained(alerts)

    assert [json.loads(line) for line in lines] == [arrives]


def test_an_alert_without_end_does_not_raise() -> None:
    """It is told that there was one."""
    sink = ListSink()
    alerts = Alerts([sink])
    endless: dict[str, Any] = {}
    endless["again"] = endless
    alerts.emit(endless)
    drained(alerts)

    assert sink.alerts == [{"message": "an alert that cannot be written as JSON"}]


def test_without_sinks_nothing_is_kept() -> None:
    """Alerts stand on receipts anyway."""
    alerts = Alerts()
    emitted(alerts, 3)
    drained(alerts)

    assert (alerts.emitted, alerts.waiting, alerts.dropped) == (3, 0, 0)


def test_a_stuck_sink_holds_up_no_other() -> None:
    """Each has its own queue."""
    stuck, fine = StuckSink(), ListSink()
    alerts = Alerts([stuck, fine])

    async def both() -> None:
        emitted(alerts, 1)
        await asyncio.gather(stuck.got.wait(), fine.got.wait())

    drained(alerts, both, seconds=0)
    assert fine.alerts == [{"n": 0}]
    assert (alerts.delivered, alerts.dropped) == (1, 1)


# failures


@pytest.mark.parametrize("failure", [OSError("x"), Undelivered("HTTP status 503"), TimeoutError(), UnicodeError("x")])
def test_a_sink_that_fails_is_tried_again(failure: Exception) -> None:
    """After waiting longer and longer."""
    sink, clock = ListSink(failure, failure), FakeClock()
    alerts = Alerts([sink], clock=clock)

    async def arrived() -> None:
        emitted(alerts, 1)
        await sink.got.wait()

    drained(alerts, arrived)
    assert sink.alerts == [{"n": 0}]
    assert clock.monotonic() == sum(WAITS_S[:2])


def test_a_batch_is_given_up_after_the_last_attempt() -> None:
    """The next one is tried afresh."""
    sink = ListSink(*(OSError() for _ in range(len(WAITS_S) + 1)))
    alerts = Alerts([sink], clock=FakeClock())

    async def arrived() -> None:
        emitted(alerts, BATCH + 1)
        await sink.got.wait()

    drained(alerts, arrived)
    assert sink.alerts == [{"n": BATCH}]
    assert (alerts.delivered, alerts.dropped) == (1, BATCH)


def test_what_can_never_be_delivered_is_not_tried_again() -> None:
    """A webhook that says 400 says it again."""
    sink, clock = ListSink(Undelivered("HTTP status 400", final=True)), FakeClock()
    alerts = Alerts([sink], clock=clock)
    emitted(alerts, 1)
    drained(alerts)

    assert (alerts.dropped, clock.monotonic()) == (1, 0)


def test_closing_takes_no_more_and_counts_what_is_left() -> None:
    """Nothing is lost without a number."""
    alerts = Alerts([StuckSink()])
    emitted(alerts, 3)
    drained(alerts, seconds=0)
    alerts.emit({"n": 9})

    assert (alerts.waiting, alerts.dropped) == (0, 4)


def test_emitting_after_the_loop_has_ended_does_not_raise() -> None:
    """A thread may be late."""
    sink = ListSink()
    alerts = Alerts([sink])

    async def cut_off() -> None:
        running = asyncio.create_task(alerts.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cut_off())
    emitted(alerts, 2)

    assert (alerts.waiting, alerts.dropped) == (2, 0)


def test_closing_what_never_ran_counts_what_waits() -> None:
    """A gateway that fails to start says so too."""
    alerts = Alerts([ListSink()])
    emitted(alerts, 2)
    asyncio.run(alerts.close())

    assert alerts.dropped == 2


def test_other_sinks_take_over_while_it_runs() -> None:
    """One that stays keeps its queue, one that is new gets what comes from now on, one that is gone still gets what waited."""
    gone, stays, comes = ListSink(), ListSink(), ListSink()
    alerts = Alerts([gone, stays])

    async def changed() -> None:
        emitted(alerts, 1)
        alerts.change([stays, comes], 10)
        alerts.emit({"n": "after"})
        for sink in (gone, stays, comes):
            await sink.got.wait()

    drained(alerts, changed)

    assert gone.alerts == [{"n": 0}]
    assert stays.alerts == [{"n": 0}, {"n": "after"}]
    assert comes.alerts == [{"n": "after"}]
    assert (alerts.emitted, alerts.delivered, alerts.dropped, alerts.waiting) == (2, 4, 0, 0)


def test_a_sink_that_was_replaced_and_is_stuck_is_counted_at_the_end() -> None:
    """Nobody waits for it, and nothing of it is forgotten."""
    stuck = StuckSink()
    alerts = Alerts([stuck])

    async def changed() -> None:
        emitted(alerts, 2)
        await stuck.got.wait()
        alerts.change([], 10)
        assert alerts.waiting == 2

    drained(alerts, changed, seconds=0)

    assert (alerts.delivered, alerts.dropped, alerts.waiting) == (0, 2, 0)


def test_a_failing_sink_is_logged_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    """A log is no second queue."""
    sink = ListSink(OSError("secret"), OSError("secret"), OSError("secret"))
    alerts = Alerts([sink], clock=FakeClock())

    async def arrived() -> None:
        emitted(alerts, 1)
        await sink.got.wait()

    with caplog.at_level(logging.DEBUG, "wardwright.alerts"):
        drained(alerts, arrived)

    assert [record.getMessage() for record in caplog.records] == [
        "alerts to list are not delivered: OSError",
        "alerts to list are delivered again",
    ]


# the file


def test_a_file_gets_one_line_per_alert_for_its_owner_alone(tmp_path: Path) -> None:
    """Appended, so that a restart goes on."""
    path = tmp_path / "alerts.ndjson"
    for number in range(2):
        alerts = Alerts([FileSink(path)])
        alerts.emit({"n": number, "message": "two\nlines"})
        drained(alerts)

    assert [orjson.loads(line)["n"] for line in path.read_bytes().splitlines()] == [0, 1]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_fails_like_any_sink(tmp_path: Path) -> None:
    """The gateway goes on."""
    alerts = Alerts([FileSink(tmp_path / "no" / "alerts")], clock=FakeClock())
    emitted(alerts, 1)
    drained(alerts)

    assert alerts.dropped == 1


# the webhook


def posted(answer: bytes, sink_of: Callable[[int], Webhook]) -> tuple[bytes, Exception | None]:
    """What a webhook sent to a server that gives this answer, and what it raised."""

    async def main() -> tuple[bytes, Exception | None]:
        heard: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            heard.append(head + await reader.readexactly(length))
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            failure: Exception | None = None
            try:
                await sink_of(server.sockets[0].getsockname()[1]).deliver([b'{"n":1}', b'{"n":2}'])
            except Undelivered as error:
                failure = error
        return b"".join(heard), failure

    return asyncio.run(main())


def test_a_webhook_gets_the_alerts_as_json() -> None:
    """With the path, the query and the header that the operator gave."""
    heard, failure = posted(
        b"HTTP/1.1 204 No Content\r\n\r\n",
        lambda port: Webhook(f"http://127.0.0.1:{port}/hook?a=b", ("Authorization", "Bearer t")),
    )
    head, _, body = heard.partition(b"\r\n\r\n")

    assert failure is None
    assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer t" in head
    assert b"\r\ncontent-type: application/json" in head
    assert orjson.loads(body) == {"alerts": [{"n": 1}, {"n": 2}]}


@pytest.mark.parametrize(
    ("answer", "reason", "final"),
    [
        (b"HTTP/1.1 500 Oh\r\n\r\n", "HTTP status 500", False),
        (b"HTTP/1.1 429 Slow\r\n\r\n", "HTTP status 429", False),
        (b"HTTP/1.1 404 Gone\r\n\r\n", "HTTP status 404", True),
        (b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\n\r\n", "HTTP status 302", True),
        (b"", "no HTTP answer", False),
        (b"hello\r\n", "no HTTP answer", False),
        (b"HTTP/1.1\r\n", "no HTTP answer", False),
        (b"x" * 100_000, "no HTTP answer", False),
    ],
)
def test_a_webhook_that_does_not_say_2xx_did_not_deliver(answer: bytes, reason: str, final: bool) -> None:
    """Redirects are not followed: the address is the operator's choice."""
    failure = posted(answer, lambda port: Webhook(f"http://127.0.0.1:{port}/"))[1]

    assert isinstance(failure, Undelivered)
    assert (str(failure), failure.final) == (reason, final)


# the section


def compiled(text: str) -> tuple[AlertSettings, list[str]]:
    problems = Problems("w.yaml")
    settings = compile_alerts(parse_yaml(text, problems), problems)
    return settings, [f"{problem.path}: {problem.message}" for problem in problems.found]


def test_the_section_becomes_sinks(tmp_path: Path) -> None:
    """Secrets are read when the gateway starts."""
    settings, problems = compiled(
        f"""
        queue: 7
        sinks:
          - {{kind: file, path: {tmp_path / "alerts"}}}
          - {{kind: webhook, url_env: HOOK_URL, header_env: HOOK_HEADER}}
          - {{kind: webhook, url: "https://alerts.example.org/hook"}}
        """
    )
    made = Alerts.of(settings, environ={"HOOK_URL": SECRET, "HOOK_HEADER": "X-Token: sekrit"})
    emitted(made, 9)

    assert problems == []
    assert (made.waiting, made.dropped) == (21, 6)
    assert compile_alerts(None, Problems("w.yaml")) == AlertSettings(1000, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{que: 1}", "que: unknown key 'que' (did you mean 'queue'?)"),
        ("{queue: 0}", "queue: must be at least 1, got 0"),
        ("{sinks: [sekrit]}", "sinks[0]: expected a mapping"),
        ("{sinks: [{url: https://sekrit}]}", "sinks[0]: missing key 'kind'"),
        (
            "{sinks: [{kind: fiel, path: x}]}",
            "sinks[0].kind: 'fiel' is not one of webhook, file (did you mean 'file'?)",
        ),
        ("{sinks: [{kind: file}]}", "sinks[0]: missing key 'path'"),
        ("{sinks: [{kind: webhook}]}", "sinks[0]: give url, url_env or url_file"),
        (
            "{sinks: [{kind: webhook, url: https://x/, url_env: A}]}",
            "sinks[0].url: give url, url_env or url_file, only one of them",
        ),
        (
            "{sinks: [{kind: webhook, url: 'ftp://sekrit'}]}",
            "sinks[0].url: expected an address such as https://alerts.example.org/hook",
        ),
        (
            "{sinks: [{kind: webhook, url: 'http://x:99999/sekrit'}]}",
            "sinks[0].url: expected an address such as https://alerts.example.org/hook",
        ),
        (
            "{sinks: [{kind: webhook, url: 'https://u:sekrit@x/'}]}",
            "sinks[0].url: an address must not hold a user or a password: use header_env",
        ),
        (
            "{sinks: [{kind: webhook, url: 'https://x/sekrit y'}]}",
            "sinks[0].url: an address must be printable ASCII without spaces",
        ),
        (
            "{sinks: [{kind: webhook, url: 'http://x.example/sekrit'}]}",
            "sinks[0].url: alerts go over the network in clear: use https",
        ),
        (
            "{sinks: [{kind: webhook, url: 'https://x/', header: 'Authorization: sekrit'}]}",
            "sinks[0].header: 'header': a secret has no place in a config file; put the whole header line into a "
            "variable and name it with header_env",
        ),
    ],
)
def test_what_is_wrong_with_the_section_is_told(text: str, message: str) -> None:
    """With its place, and without the address, which may be a secret itself."""
    problems = [problem.removeprefix("$.") for problem in compiled(text)[1]]

    assert problems == [message]
    assert "sekrit" not in str(problems)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "alerts.sinks[0].url: the environment variable HOOK_URL is not set or empty."),
        (
            {"HOOK_URL": "sekrit"},
            "alerts.sinks[0].url: expected an address such as https://alerts.example.org/hook.",
        ),
        ({"HOOK_URL": SECRET}, "alerts.sinks[0].header: the environment variable HOOK_HEADER is not set or empty."),
        (
            {"HOOK_URL": SECRET, "HOOK_HEADER": "Bearer sekrit"},
            "alerts.sinks[0].header: expected a whole header line, such as `Authorization: Bearer …`.",
        ),
        (
            {"HOOK_URL": SECRET, "HOOK_HEADER": "X Y: sekrit"},
            "alerts.sinks[0].header: expected a whole header line, such as `Authorization: Bearer …`.",
        ),
    ],
)
def test_a_secret_that_cannot_be_used_stops_the_start(environ: dict[str, str], message: str) -> None:
    """By its place in the config."""
    settings = compiled("sinks: [{kind: webhook, url_env: HOOK_URL, header_env: HOOK_HEADER}]")[0]
    with pytest.raises(KeysUnusable) as caught:
        Alerts.of(settings, environ=environ)

    assert str(caught.value) == message


def test_a_webhook_shows_its_host_and_nothing_else() -> None:
    """Addresses of webhooks are secrets."""
    hook = Webhook(SECRET, ("X-Token", "sekrit"))
    settings = compiled(f"sinks: [{{kind: webhook, url: '{SECRET}'}}]")[0]

    assert (repr(hook), hook.name) == ("Webhook('hooks.example.test')", "webhook at hooks.example.test")
    assert "sekrit" not in repr(settings)
