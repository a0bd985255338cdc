"""One provider behind HTTP: where each wire is sent, with which credentials, how often it is tried, and what an error may tell.

A request is tried again only while nothing of an answer was given out: after a failed connection, an overload or a server error.
No secret leaves through an error: a provider's own words are told only after they were searched for ours.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, cast

import orjson

from wardwright.errors import ProviderFailed
from wardwright.providers.breaker import Breaker
from wardwright.providers.client import Client, End, NetworkResponse, Pool, render_headers
from wardwright.providers.response import Response
from wardwright.providers.settings import ProviderConfig
from wardwright.wire.turn import WireName
from weakincentives.clock import SYSTEM_CLOCK

ERROR_BYTES: Final = 64 * 1024
"""Of an error's body that are read."""

ERROR_SECONDS: Final = 5.0
"""That are waited for it: the status says enough."""

MESSAGE: Final = 2_000
"""Characters of a provider's message that are told."""

LONGEST_WAIT: Final = 10.0
"""Seconds. A provider that asks for more is not waited for; another target may be faster."""

KNOWN_IDS: Final = 8192

FIRST_WAIT: Final = 0.25
ANTHROPIC_VERSION: Final = "2023-06-01"

REPEATED: Final = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""Statuses after which the same request may do better."""
_ELSEWHERE: Final = frozenset({401, 402, 403, 404, *REPEATED})
"""Statuses after which another target may do better: they speak of this provider's keys, models and load, not of the request."""

_KEY_LIKE: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|tok)[-_][A-Za-z0-9_*.-]{4,}|\bbearer\s+[^\s'\",;]+", re.IGNORECASE
)


class Upstream:
    """A provider that is reached over the network. Lives as long as the deployment that declares it."""

    def __init__(
        self,
        config: ProviderConfig,
        client: Client,
        environ: Mapping[str, str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        now: Callable[[], float] = SYSTEM_CLOCK.monotonic,
    ) -> None:
        if config.url is None:
            raise ValueError(f"provider '{config.name}' has no address")
        self.config = config
        self._client = client
        self._sleep = sleep
        self._jitter = jitter
        self._now = now  # the breakers' time
        self._seconds = config.timeout_ms / 1000
        self._breakers: dict[str, Breaker] = {}
        self._fitting: set[str] = set()
        """Ids that need no change: a conversation brings the same ones with every request."""
        key = config.key.read(environ) if config.key is not None else ""
        further = [(name, value if isinstance(value, str) else value.read(environ)) for name, value in config.headers]
        self._secrets = sorted(
            {
                one
                for one in (
                    key,
                    *(
                        said
                        for (_, given), (_, said) in zip(config.headers, further, strict=True)
                        if not isinstance(given, str)
                    ),
                )
                if one
            },
            key=len,
            reverse=True,
        )
        self._pool: Pool = client.pool(
            config.url, connections=config.max_connections, connect_timeout=config.connect_timeout_ms / 1000
        )
        self._paths: dict[WireName, str] = {wire: config.url.at(_path(wire, config)).path for wire in config.wires}
        self._headers: dict[WireName, tuple[bytes, bytes]] = {
            wire: (
                render_headers([*_credentials(wire, config, key), *_form(False), *further]),
                render_headers([*_credentials(wire, config, key), *_form(True), *further]),
            )
            for wire in config.wires
        }
        """Of requests for a whole answer, and for a stream."""
        self._heads: dict[WireName, tuple[bytes, bytes]] = {
            wire: (self._head(wire, False, b""), self._head(wire, True, b"")) for wire in config.wires
        }

    @property
    def name(self) -> str:
        return self.config.name

    def wire_for(self, wire: WireName) -> WireName:
        """The wire this provider speaks for a client's: the same one if it can."""
        wires = self.config.wires
        return wire if wire in wires else wires[0]

    def blocked(self, model: str) -> bool:
        """Whether the circuit breaker holds requests for `model` back."""
        breaker = self._breakers.get(model)
        return breaker is not None and breaker.blocked(self._now())

    def ids(self, call_ids: Iterable[str]) -> dict[str, str]:
        """Tool-call ids that this provider would refuse, and what to send instead (G24). The same every time."""
        taken = set(call_ids)
        if taken <= self._fitting:
            return {}
        new = taken - self._fitting
        changed = remapped(self.config, taken, new)
        if len(self._fitting) > KNOWN_IDS:
            self._fitting.clear()
        for call_id in new:
            if call_id not in changed and len(call_id) <= 64 and len(self._fitting) <= KNOWN_IDS:
                self._fitting.add(call_id)
        return changed

    async def send(
        self,
        wire: WireName,
        body: bytes,
        *,
        stream: bool,
        model: str,
        deadline: float | None = None,
        headers: Sequence[tuple[str, str]] = (),
        tried: list[ProviderFailed] | None = None,
    ) -> Response:
        """The answer to `body`, which is written in `wire`, when it has begun; or ProviderFailed. `deadline` is an instant of the loop's
        clock. Failures that were followed by another try are appended to `tried`."""
        config = self.config
        head = self._head(wire, stream, render_headers(headers)) if headers else self._heads[wire][stream]
        seconds = self._seconds
        breaker = self._breakers.get(model)
        if breaker is None:
            breaker = self._breakers[model] = Breaker(config.breaker_failures, config.breaker_open_ms / 1000)
        attempt = 0
        failed: ProviderFailed | None = None
        while True:
            if breaker.failures:
                now = self._now()
                if not breaker.enter(now):
                    raise failed or _held_back(breaker.wait(now))
            try:
                response = await self._pool.ask(head, body, seconds, seconds, deadline)
                if 200 <= response.status < 300:
                    if not response.content_encoding or response.content_encoding == b"identity":
                        if breaker.failures:
                            breaker.answered()
                        if not response.complete:
                            response.watch(partial(self._ended, breaker))
                        elif breaker.failures:
                            breaker.succeed()
                        return response
                    response.close()
                    failed = ProviderFailed(
                        "broken", "the provider sent a compressed answer, which nobody asked for", repeatable=False
                    )
                else:
                    failed = await self._refused(response)
            except ProviderFailed as error:
                failed = error
            except BaseException:
                breaker.leave()  # cancelled: nothing is known about the provider
                raise
            loop = asyncio.get_running_loop()
            self._judge(breaker, failed, late=deadline is not None and loop.time() >= deadline)
            wait = self._wait(failed, attempt)
            if wait is None or (deadline is not None and loop.time() + wait >= deadline):
                raise failed
            attempt += 1
            if tried is not None:
                tried.append(failed)
            await self._sleep(wait)

    def _head(self, wire: WireName, stream: bool, further: bytes) -> bytes:
        return self._pool.head("POST", self._paths[wire], self._headers[wire][stream] + further)

    def close(self) -> None:
        """Keeps no connection any longer; answers that are under way come to their end."""
        self._client.drop(self._pool)

    def _judge(self, breaker: Breaker, failed: ProviderFailed, *, late: bool) -> None:
        """What a failure says about the provider."""
        if failed.kind == "status" and failed.status < 500 and failed.status not in (408, 429):
            breaker.succeed()  # it is there, and said no
        elif failed.kind == "busy" or (failed.kind == "timeout" and late):
            breaker.leave()  # our own limits
        else:
            breaker.fail(self._now())

    def _ended(self, breaker: Breaker, end: End) -> None:
        if end == "complete":
            breaker.succeed()
        elif end == "broken":
            breaker.fail(self._now())

    def _wait(self, failed: ProviderFailed, attempt: int) -> float | None:
        """Seconds until the next try; None when there is none."""
        if attempt >= self.config.retries or not failed.repeatable:
            return None
        if failed.retry_after is not None:
            return failed.retry_after if failed.retry_after <= LONGEST_WAIT else None
        return min(FIRST_WAIT * 2**attempt, LONGEST_WAIT) * (0.5 + 0.5 * self._jitter())

    async def _refused(self, response: NetworkResponse) -> ProviderFailed:
        """What a provider's error says."""
        status = response.status
        headers = response.headers
        if status < 400:
            response.close()
            return ProviderFailed(
                "status",
                f"the provider answered {status}: redirects are not followed, base_url must be the final address",
                status=502,
            )
        response.hurry(ERROR_SECONDS)
        try:
            message, reason = _words(await response.read(ERROR_BYTES))
        except ProviderFailed:
            message, reason = "", ""
        told = self._scrub(message)[:MESSAGE] if message else f"the provider answered {status}"
        should = headers.get("x-should-retry", "").lower()
        return ProviderFailed(
            "status",
            told,
            status=status,
            retry_after=_retry_after(headers),
            retryable=status in _ELSEWHERE or status >= 500,
            repeatable=should == "true" or (should != "false" and (status in REPEATED)),
            reason=self._scrub(reason)[:100],
        )

    def _scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return _KEY_LIKE.sub("[secret]", text)


def remapped(config: ProviderConfig, call_ids: Iterable[str], new: Iterable[str] | None = None) -> dict[str, str]:
    """Ids that do not fit a provider's rule → ids that do, different for different ones. Only those in `new` may be such, if it is given."""
    rule = config.ids
    taken = set(call_ids)
    changed: dict[str, str] = {}
    for call_id in sorted([one for one in (taken if new is None else new) if one and not rule.fits(one)]):
        attempt = 0
        derived = rule.derive(call_id)
        while derived in taken:
            attempt += 1
            derived = rule.derive(call_id, attempt)
        taken.add(derived)
        changed[call_id] = derived
    return changed


def _path(wire: WireName, config: ProviderConfig) -> str:
    if wire == "chat_completions":
        path = "/chat/completions"
    elif wire == "responses":
        path = "/responses"
    else:
        path = "/messages"
    # OpenAI's base URLs end with the version, Anthropic's do not.
    url = config.url
    versioned = url is not None and re.search(r"/v\d+\w*$", url.path) is not None
    return path if versioned or (config.kind == "openai" and wire != "anthropic") else f"/v1{path}"


def _credentials(wire: WireName, config: ProviderConfig, key: str) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    if wire == "anthropic":
        said.append(("anthropic-version", ANTHROPIC_VERSION))
        if key:
            said.append(("x-api-key", key))
    if key and (wire != "anthropic" or config.kind == "openai"):
        said.append(("authorization", f"Bearer {key}"))
    given = {name.lower() for name, _ in config.headers}
    return [(name, value) for name, value in said if name not in given]


def _form(stream: bool) -> list[tuple[str, str]]:
    accept = "text/event-stream" if stream else "application/json"
    return [("content-type", "application/json"), ("accept", accept), ("user-agent", "wardwright")]


def _held_back(wait: float) -> ProviderFailed:
    return ProviderFailed(
        "open",
        f"the provider failed several times in a row and is given a rest; try again in {max(1, round(wait))} s",
        retry_after=wait,
    )


def _words(body: bytes) -> tuple[str, str]:
    """The message and the code of an error body, in the shapes that providers use."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", ""
    if isinstance(said, list) and said:
        said = cast("list[Any]", said)[0]
    if not isinstance(said, dict):
        return "", ""
    outer = cast("dict[str, Any]", said)
    inner: Any = outer.get("error")
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else outer
    message: Any = inner if isinstance(inner, str) else error.get("message") or error.get("detail") or ""
    reason: Any = error.get("code") or error.get("type") or ""
    return message if isinstance(message, str) else "", reason if isinstance(reason, str) else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms` or `retry-after` (seconds or a date)."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            return float(text) / unit
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, moment.timestamp() - SYSTEM_CLOCK.now())
    except (ValueError, TypeError, OverflowError):
        return None
