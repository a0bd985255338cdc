"""OpenAI's models, and every server that speaks one of its two forms, through the official client.

Decides which client is used where, how long it may take, and what its errors mean to a run. The client's own retries are
off: the loop asks again. The client is imported when a model is first asked.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self, cast

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import PromptEvaluationError, ThrottledError
from ..runtime import workers
from .core import ModelReply, ProviderAdapter, Turn
from .openai_chat import ChatWire
from .openai_parts import SHORTEST_KEY, PromptRole, StructuredOutput, fault, fault_in, not_understood
from .openai_responses import ResponsesWire
from .retries import Retry

_SPARE: float = 1.0
"""Seconds a request may outlive the run's deadline: the run has ended by then, its thread ends a little later."""


class _Reader(Protocol):
    def take(self, chunk: Mapping[str, Any], /) -> str: ...

    def body(self) -> dict[str, Any]: ...


class OpenAIAdapter(ProviderAdapter):
    """A model behind the official `openai` client (2.x or 3.x).

    `api` is the form: "chat" (Chat Completions; also Ollama, vLLM, gateways: give their `base_url`) or "responses".
    `client` is a client of your own, sync or async, which is not closed here; without one, clients are made when first
    needed, from `base_url`, `api_key` and the environment. Further options (`temperature=…`, `reasoning_effort=…`,
    `timeout=…`, `extra_headers=…`) go with every request as they are.
    """

    sends_output_schema: ClassVar[bool] = True

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        structured_output: StructuredOutput = "schema",
        prompt_role: PromptRole = "system",
        media: bool = True,
        max_turns: int | None = 100,
        max_output_retries: int = 2,
        retry: Retry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Any,
    ) -> None:
        """`structured_output`: how the answer's form is asked for; "json" or "text" for servers that take no schema.
        `prompt_role`: "user" for servers that want a user's message. `media`: False sends no pictures and files."""
        super().__init__(max_turns=max_turns, max_output_retries=max_output_retries, retry=retry, clock=clock)
        _one_of("api", api, ("chat", "responses"))
        _one_of("structured_output", structured_output, ("schema", "json", "text"))
        _one_of("prompt_role", prompt_role, ("system", "developer", "user"))
        if client is not None and (base_url is not None or api_key is not None):
            raise ValueError("OpenAIAdapter takes either a client, or base_url and api_key to make one from.")
        form = ChatWire if api == "chat" else ResponsesWire
        self._wire = form(prompt_role=prompt_role, structured_output=structured_output, media=media)
        taken = sorted(self._wire.reserved.intersection({*options, *(options.get("extra_body") or ())}))
        if taken:
            raise ValueError(
                f"OpenAIAdapter sets {', '.join(taken)} by itself. Leave {'it' if len(taken) == 1 else 'them'} out."
            )
        self.model = model
        self.api = api
        self.options = self._wire.defaults(model, options)
        self._clients = _Clients(client, base_url, api_key)

    def send(self, turn: Turn) -> ModelReply:
        if self._clients.is_async:
            return workers.wait_for(self.asend(turn))
        client = self._clients.sync()
        with _told(client):
            answer = self._endpoint(client).create(**self._request(turn, client))
            if turn.say is None:
                return self._wire.reply(_json(answer))
            reader: _Reader = self._wire.reader()
            with answer:
                if _is_whole(answer):
                    return self._wire.reply(_parsed(answer.response.read()))
                for event in answer:
                    turn.say(reader.take(_json(event)))
            return self._wire.reply(reader.body())

    async def asend(self, turn: Turn) -> ModelReply:
        if self._clients.is_sync:
            return await super().asend(turn)
        client = self._clients.of_loop()
        with _told(client):
            answer = await self._endpoint(client).create(**self._request(turn, client))
            if turn.say is None:
                return self._wire.reply(_json(answer))
            reader: _Reader = self._wire.reader()
            async with answer:
                if _is_whole(answer):
                    return self._wire.reply(_parsed(await answer.response.aread()))
                async for event in answer:
                    turn.say(reader.take(_json(event)))
            return self._wire.reply(reader.body())

    def close(self) -> None:
        """Close the connections of `evaluate` and `stream`; those of an event loop are closed there, by `aclose`."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop too."""
        await self._clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<OpenAIAdapter: {self.model}, {self.api}>"

    def _endpoint(self, client: Any) -> Any:
        return client.chat.completions if self.api == "chat" else client.responses

    def _request(self, turn: Turn, client: Any) -> dict[str, Any]:
        request = self._wire.request(turn, self.options)
        request["model"] = self.model
        # WHY NOT as arguments: the client holds each of them against its types, all messages at every turn, at a hundred
        # times the cost of sending them. What it is given as `extra_body` it sends as it is.
        grown = {name: request.pop(name) for name in self._wire.grown if name in request}
        request["extra_body"] = {**(request.get("extra_body") or {}), **grown}
        if self.api == "chat":
            request["messages"] = ()  # asked for by name; the body's counts
        if turn.deadline is not None:
            allowed = self.options.get("timeout", getattr(client, "timeout", None))
            allowed = getattr(allowed, "read", allowed)
            left = turn.deadline.remaining_seconds + _SPARE
            if allowed is None or left < allowed:
                request["timeout"] = left
        return request


class _Clients:
    """The clients of one adapter: the user's, or one for all threads and one for each event loop."""

    def __init__(self, given: Any, base_url: str | None, api_key: str | None) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._lock = threading.Lock()
        self._sync: Any = None
        self._of_loops: dict[asyncio.AbstractEventLoop, Any] = {}
        self._given: Any = None
        self.is_async = False
        """Only an async client is there."""
        self.is_sync = False
        """Only a sync client is there."""
        if given is not None:
            if not hasattr(given, "with_options"):
                raise TypeError(f"client must be an OpenAI or AsyncOpenAI client, got {type(given).__name__}.")
            self._given = given.with_options(max_retries=0)
            self.is_async = isinstance(given, _package().AsyncOpenAI)
            self.is_sync = not self.is_async

    def sync(self) -> Any:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._sync is None:
                self._sync = self._made("OpenAI")
            return self._sync

    def of_loop(self) -> Any:
        """The async client of the running loop: its connections belong to that loop and can serve no other."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._of_loops.get(loop)
            if client is None:
                for old in [old for old in self._of_loops if old.is_closed()]:
                    del self._of_loops[old]
                client = self._of_loops[loop] = self._made("AsyncOpenAI")
            return client

    def close(self) -> None:
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        with self._lock:
            client = self._of_loops.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        self.close()

    def _made(self, kind: str) -> Any:
        openai = _package()
        settings: dict[str, Any] = {"max_retries": 0, "api_key": self._api_key}
        if self._base_url is not None:
            settings["base_url"] = self._base_url
        try:
            return getattr(openai, kind)(**settings)
        except openai.OpenAIError:
            if self._base_url is None:
                raise PromptEvaluationError(
                    "There is no key for OpenAI. Pass api_key or set OPENAI_API_KEY; for a server of your own pass base_url."
                ) from None
        # Servers of one's own mostly want no key, and the client will not go without one.
        return getattr(openai, kind)(**{**settings, "api_key": "none"})


def _package() -> Any:
    try:
        import openai
    except ImportError as error:
        raise PromptEvaluationError(
            "OpenAIAdapter needs the package openai. Install it: pip install 'weakincentives[openai]'."
        ) from error
    return openai


def _json(answer: Any) -> dict[str, Any]:
    """A reply as the JSON that it was; the client hands out other things as text."""
    if not hasattr(answer, "to_dict"):
        raise not_understood(answer)
    return answer.to_dict(mode="json", warnings=False)


def _is_whole(answer: Any) -> bool:
    """Whether a server that was asked for pieces sent its reply in one."""
    return "json" in answer.response.headers.get("content-type", "")


def _parsed(body: bytes) -> dict[str, Any]:
    reply: object = json.loads(body)
    if not isinstance(reply, dict):
        raise not_understood(reply)
    return cast("dict[str, Any]", reply)


@contextmanager
def _told(client: Any) -> Generator[None, None, None]:
    """Raise what goes wrong as what it means to a run. Some servers repeat a key they do not take; no error here does."""
    try:
        with _meant(client):
            yield
    except PromptEvaluationError as error:
        key: object = getattr(client, "api_key", None)
        said = str(error)
        if not isinstance(key, str) or len(key) < SHORTEST_KEY or key not in said:
            raise
        error.args = (said.replace(key, "[the API key]"), *error.args[1:])
        raise error from None  # the client's own error says it too


@contextmanager
def _meant(client: Any) -> Generator[None, None, None]:
    openai = _package()
    try:
        yield
    except openai.APIConnectionError as error:
        raise _unreached(client, error) from error
    except openai.APIStatusError as error:
        raise _refused(error) from error
    except openai.APIError as error:
        raise fault_in(_object(error.body) or _text(error.body) or error.message) from error
    except json.JSONDecodeError as error:
        raise not_understood(error.doc) from error
    except UnicodeDecodeError as error:
        raise not_understood(error.object.decode("utf-8", "replace")) from error
    except RecursionError as error:
        raise not_understood("too many brackets inside each other") from error
    except _transport_errors() as error:
        raise _unreached(client, error) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    """What breaks in the middle of a stream; older clients pass it on from the HTTP library below them."""
    libraries = (sys.modules.get("httpx"), sys.modules.get("httpx2"))
    return tuple(library.HTTPError for library in libraries if library is not None)


def _unreached(client: Any, error: Exception) -> ThrottledError:
    why = str(error.__cause__ or error).rstrip(".") or type(error).__name__
    # An address may hold a name and a password, or a key behind its question mark.
    where = re.sub(r"(?<=://)[^/@]*@|[?#].*", "", str(getattr(client, "base_url", ""))).rstrip("/")
    return ThrottledError(
        f"The model's provider cannot be reached at {where}: {why}. Check base_url and the network, or retry later."
    )


def _refused(error: Any) -> PromptEvaluationError:
    body = _object(error.body)
    said, code = body.get("message"), body.get("code") or body.get("type")
    headers: Mapping[str, str] = error.response.headers
    should = headers.get("x-should-retry", "").lower()
    return fault(
        said if isinstance(said, str) and said else str(error.message),
        status=error.status_code,
        code=code if isinstance(code, str) else None,
        retry_after=_wait(headers),
        passes={"true": True, "false": False}.get(should),
    )


def _object(body: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {}


def _text(body: object) -> str:
    return body if isinstance(body, str) else ""


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds the provider asks for, in whichever way it says so."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _one_of(name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"{name} must be one of: {', '.join(known)}, got {given!r}.")
