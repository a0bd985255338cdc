"""Alerts on their way out: what one says, the `alerts` section, a bounded queue per sink, a webhook and a file.

Off the path of requests: `emit` never waits and never raises; what does not fit is counted, not kept. A sink that is slow or gone
holds up no other. A webhook's address and header are secrets: they are in no repr, no log and no error. An alert says what its
receipt may show, and never an argument, a result or a text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import SplitResult, urlsplit

import orjson

from wardwright.config import Node, Problems
from wardwright.facts import Source
from wardwright.history.observer import kept_name
from wardwright.keys import KeysUnusable, SecretSource, compile_secret, refuse_literals, secret_keys
from wardwright.policy.rules import Finding, Ruling
from wardwright.wire.turn import Turn
from weakincentives.clock import Clock, SystemClock

MAX_ALERT: Final = 65_536
"""Bytes of one alert; a longer one is dropped."""
BATCH: Final = 50
"""Alerts of one delivery."""
WAITS_S: Final = (1.0, 5.0, 25.0)
"""Before each further attempt to deliver; after the last one a batch is given up."""
TIMEOUT_S: Final = 10.0
"""Of one attempt."""

_LOG: Final = logging.getLogger("wardwright.alerts")

_SEEN: Final[Mapping[Source, str]] = {
    "declared_tool": "the offer of {tool}",
    "tool_choice": "a request that forces {tool}",
    "assistant_tool_call": "a call of {tool}",
    "tool_result": "a result of {tool}",
    "caller_metadata": "a caller's word about {tool}",
    "inferred": "a call of {tool} that will be repaired",
    "provider_event": "a run of {tool} by the provider",
}
_TEXT: Final[Mapping[str, str]] = {"request": "a request", "reply": "a reply", "result": "a tool's result"}


def alert_of(finding: Finding, ruling: Ruling, turn: Turn, at_ms: int, receipt_id: str) -> dict[str, Any]:
    """What is sent of one finding. `decision` is about its call, if it has one, else about all that was judged."""
    tools = [
        {
            "namespace": kept_name(fact.namespace),
            "name": kept_name(fact.name),
            "raw_name": kept_name(fact.raw_name),
            "source": fact.source,
        }
        for fact in (ruling.facts[index] for index in finding.facts)
    ]
    of_call = (call.status for call in ruling.calls if finding.call_id and call.call_id == finding.call_id)
    return {
        "at_ms": at_ms,
        "channel": finding.action.channel,
        "rule_id": finding.rule_id,
        "message": finding.message or _sentence(finding, ruling, tools),
        "tools": tools,
        "gate": ruling.gate,
        "decision": ruling.decision if ruling.decision == "block" else next(of_call, ruling.decision),
        "model": turn.model,
        "tenant": turn.caller.tenant,
        "session_id": turn.caller.session_id,
        "receipt_id": receipt_id,
    }


def _sentence(finding: Finding, ruling: Ruling, tools: Sequence[Mapping[str, str]]) -> str:
    """For a rule that has no message of its own."""
    seen = ", ".join(
        _SEEN[cast("Source", one["source"])].format(tool=f"{one['namespace']}.{one['name']}") for one in tools
    )
    return f"Rule '{finding.rule_id}' matched {seen or _TEXT[ruling.gate]}."


class Sink(Protocol):
    """Where alerts go. `deliver` raises Undelivered, or OSError, when they did not arrive."""

    @property
    def name(self) -> str:
        """For logs; nothing secret."""
        ...

    async def deliver(self, alerts: Sequence[bytes]) -> None:
        """Each is one JSON object without line breaks."""
        ...


class Undelivered(Exception):
    """A sink did not take the alerts. `final`: trying again would not help."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """One entry of `alerts.sinks`."""

    kind: str
    path: str = ""
    url: str = field(default="", repr=False)
    url_source: SecretSource | None = None
    """Where the address lies, when it is secret itself."""
    header: SecretSource | None = None
    """Where a whole header lies, as `Authorization: Bearer …`."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The `alerts` section. Without sinks an alert is on its receipt and nowhere else."""

    queue: int = 1000
    sinks: tuple[SinkSettings, ...] = ()


def compile_alerts(node: Node | None, problems: Problems) -> AlertSettings:
    """Reads the section and reports everything wrong with it. Reads no secret and repeats no address."""
    if node is None:
        return AlertSettings()
    found = problems.mapping(node, (), ("queue", "sinks"))
    sinks = [_sink(entry, problems) for entry in problems.sequence(found["sinks"])] if "sinks" in found else []
    return AlertSettings(
        problems.integer(found["queue"], 1) if "queue" in found else 1000, tuple(sink for sink in sinks if sink)
    )


def _sink(node: Node, problems: Problems) -> SinkSettings | None:
    if not isinstance(node.value, dict):
        problems.error(node, "expected a mapping")
        return None
    kind = node.items().get("kind")
    if kind is None:
        problems.error(node, "missing key 'kind'")
        return None
    word = problems.choice(kind, ("webhook", "file"))
    if word != kind.value:
        return None
    if word == "file":
        found = problems.mapping(node, ("kind", "path"), ())
        return SinkSettings("file", path=problems.text(found["path"]) if "path" in found else "")
    node = refuse_literals(
        node,
        ("header", "headers", "token", "secret"),
        "put the whole header line into a variable and name it with header_env",
        problems,
    )
    found = problems.mapping(node, ("kind",), ("url", *secret_keys("url"), *secret_keys("header")))
    source, header = compile_secret(found, "url", problems), compile_secret(found, "header", problems)
    url = ""
    if "url" in found:
        value = found["url"].value
        problem = _url_problem(value) if isinstance(value, str) else "expected an address"
        if problem:
            problems.error(found["url"], problem)
        elif source is not None:
            problems.error(found["url"], "give url, url_env or url_file, only one of them")
        else:
            url = cast("str", value)
            parts = urlsplit(url)
            if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
                problems.warn(found["url"], "alerts go over the network in clear: use https")
    elif not {"url_env", "url_file"} & found.keys():
        problems.error(node, "give url, url_env or url_file")
    return SinkSettings("webhook", url=url, url_source=source, header=header)


def _url_problem(url: str) -> str:
    """What is wrong with a webhook's address, without repeating it; empty when nothing is."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "expected an address such as https://alerts.example.org/hook"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "expected an address such as https://alerts.example.org/hook"
    if parts.username is not None or parts.password is not None:
        return "an address must not hold a user or a password: use header_env"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "an address must be printable ASCII without spaces"
    return ""


class _Line:
    """One sink with what waits for it."""

    __slots__ = ("failing", "idle", "leaving", "sink", "task", "waiting", "woken")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.waiting: deque[bytes] = deque()
        self.failing = False
        self.idle = False
        self.leaving = False
        """It gets no more, and ends with what waits for it."""
        self.task: asyncio.Task[None] | None = None
        self.woken = asyncio.Event()


class Alerts:
    """The queues of one process. `emit` from any thread; `run` on the event loop until it is cancelled or `close` was called."""

    def __init__(self, sinks: Sequence[Sink] = (), queue: int = 1000, *, clock: Clock | None = None) -> None:
        self._lines = tuple(_Line(sink) for sink in sinks)
        self._queue = queue
        self._clock: Clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._left: list[_Line] = []
        """Of sinks that were replaced, until what waits for them is delivered or given up."""
        self._over: asyncio.Event | None = None
        """While it runs: set when it shall end."""
        self.emitted = 0
        self.delivered = 0
        """Per sink: an alert to two sinks is delivered twice."""
        self.dropped = 0
        """Did not fit into a queue, or was given up; per sink."""

    @classmethod
    def of(
        cls, settings: AlertSettings, *, environ: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> Alerts:
        """The alerts of a config. Reads the secrets now: KeysUnusable when one is missing."""
        return cls(sinks_of(settings, environ), settings.queue, clock=clock)

    def change(self, sinks: Sequence[Sink], queue: int) -> None:
        """From now on these. A sink that was there before keeps what waits for it; one that is gone still gets what did. On the
        event loop, if it runs."""
        before = list(self._lines)
        lines: list[_Line] = []
        for sink in sinks:
            kept = next((line for line in before if line.sink == sink), None)
            if kept is not None:
                before.remove(kept)
            lines.append(kept or _Line(sink))
        self._lines, self._queue = tuple(lines), queue
        for line in before:
            line.leaving = True
            line.woken.set()
        self._left = [line for line in (*self._left, *before) if line.waiting or (line.task and not line.task.done())]
        if self._over is not None:
            self._begin()

    @property
    def waiting(self) -> int:
        return sum(len(line.waiting) for line in (*self._lines, *self._left))

    def emit(self, alert: Mapping[str, Any]) -> None:
        """Puts an alert into every queue that has room. Never waits, never raises."""
        self.emitted += 1
        if not self._lines:
            return
        data = _dump(alert)
        idle = False
        for line in self._lines:
            if self._closing or len(line.waiting) >= self._queue or len(data) > MAX_ALERT:
                self.dropped += 1
            else:
                line.waiting.append(data)
                idle = idle or line.idle
        loop = self._loop
        if idle and loop is not None:
            try:
                loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop has ended; what waits is counted by whoever closes.
                self._loop = None

    async def run(self) -> None:
        """Delivers until `close`. One task per sink."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._begin()
        if self._closing:  # before it began
            self._over.set()
        try:
            await self._over.wait()
            await asyncio.gather(*self._tasks())
        finally:
            for task in self._tasks():
                task.cancel()

    def _begin(self) -> None:
        for line in self._every():
            if line.task is None:
                line.task = asyncio.get_running_loop().create_task(self._serve(line))

    def _every(self) -> tuple[_Line, ...]:
        return (*self._lines, *self._left)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [line.task for line in self._every() if line.task is not None]

    def _wake(self) -> None:
        if self._closing and self._over is not None:
            self._over.set()
        for line in self._every():
            line.woken.set()

    async def close(self, seconds: float = 5.0) -> None:
        """Takes no more, delivers what waits for at most so long, and counts the rest as dropped."""
        self._closing = True
        self._wake()
        tasks = self._tasks()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for line in self._every():
            self.dropped += len(line.waiting)
            line.waiting.clear()

    async def _serve(self, line: _Line) -> None:
        while True:
            if line.waiting:
                # They stay in the queue until they have arrived: whoever closes meanwhile counts them.
                batch = [line.waiting[place] for place in range(min(BATCH, len(line.waiting)))]
                arrived = await self._deliver(line, batch)
                for _ in batch:
                    line.waiting.popleft()
                if arrived:
                    self.delivered += len(batch)
                else:
                    self.dropped += len(batch)
            elif self._closing or line.leaving:
                return
            else:
                # Told before the last look: who emits from another thread sees that it must wake us, or we see the alert.
                line.woken.clear()
                line.idle = True
                if not line.waiting:
                    await line.woken.wait()
                line.idle = False

    async def _deliver(self, line: _Line, batch: Sequence[bytes]) -> bool:
        for wait in (*WAITS_S, None):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await line.sink.deliver(batch)
            except Undelivered as error:
                reason, final = str(error), error.final
            except TimeoutError:
                reason, final = f"no answer within {TIMEOUT_S:g} s", False
            except (OSError, ValueError) as error:
                # Its text may name an address; its class does not.
                reason, final = type(error).__name__, False
            else:
                if line.failing:
                    line.failing = False
                    _LOG.warning("alerts to %s are delivered again", line.sink.name)
                return True
            if not line.failing:
                line.failing = True
                _LOG.warning("alerts to %s are not delivered: %s", line.sink.name, reason)
            if final or wait is None or self._closing:
                return False
            await self._clock.asleep(wait)
        return False


def sinks_of(settings: AlertSettings, environ: Mapping[str, str] | None = None) -> list[Sink]:
    """The sinks of a config. Reads the secrets now: KeysUnusable when one is missing."""
    return [
        FileSink(sink.path) if sink.kind == "file" else _webhook(sink, f"alerts.sinks[{index}]", environ)
        for index, sink in enumerate(settings.sinks)
    ]


class FileSink:
    """Appends one line of JSON per alert; for the gateway's user alone."""

    __slots__ = ("_path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSink) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    @property
    def name(self) -> str:
        return f"file {self._path}"

    async def deliver(self, alerts: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._append, b"".join(line for alert in alerts for line in (alert, b"\n")))

    def _append(self, data: bytes) -> None:
        # One write in append mode: lines of several processes do not mix.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)


class Webhook:
    """Posts `{"alerts": […]}`. Any 2xx is taken for delivered; redirects are not followed."""

    __slots__ = ("_head", "_host", "_port", "_tls")

    def __init__(self, url: str, header: tuple[str, str] | None = None) -> None:
        parts: SplitResult = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {parts.netloc}",
            "user-agent: wardwright",
            "content-type: application/json",
            "connection: close",
        ]
        if header is not None:
            lines.append(f"{header[0]}: {header[1]}")
        self._head = "\r\n".join(lines).encode("latin-1")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Webhook) and other._place() == self._place()

    def __hash__(self) -> int:
        return hash(self._place())

    def _place(self) -> tuple[str, int, bool, bytes]:
        return self._host, self._port, self._tls is not None, self._head

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"

    @property
    def name(self) -> str:
        return f"webhook at {self._host}"

    async def deliver(self, alerts: Sequence[bytes]) -> None:
        body = b'{"alerts":[' + b",".join(alerts) + b"]}"
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            writer.write(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body))
            await writer.drain()
            try:
                line = await reader.readline()
            except ValueError:
                line = b""
        finally:
            writer.close()
        status = line.split(b" ", 2)[1:2]
        if not line.startswith(b"HTTP/1.") or not status or not status[0].isdigit():
            raise Undelivered("no HTTP answer")
        code = int(status[0])
        if not 200 <= code < 300:
            raise Undelivered(f"HTTP status {code}", final=code < 500 and code not in (408, 425, 429))


def _webhook(settings: SinkSettings, place: str, environ: Mapping[str, str] | None) -> Webhook:
    url = settings.url
    if settings.url_source is not None:
        url = settings.url_source.read(f"{place}.url", environ)
        problem = _url_problem(url)
        if problem:
            raise KeysUnusable(f"{place}.url: {problem}.")
    header = None
    if settings.header is not None:
        name, colon, value = settings.header.read(f"{place}.header", environ).partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not value or not name.replace("-", "").isalnum() or not (name + value).isascii():
            raise KeysUnusable(f"{place}.header: expected a whole header line, such as `Authorization: Bearer …`.")
        header = (name, value)
    return Webhook(url, header)


def _dump(alert: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(alert, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps(dict(alert), default=str, skipkeys=True).encode()
    except (TypeError, ValueError, RecursionError):
        return b'{"message":"an alert that cannot be written as JSON"}'
