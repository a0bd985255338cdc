"""A live connection to an MCP server: opened at its first use, again after the server has gone, closed with its holder.

Each connection has a thread and an event loop of its own, so that sync and async callers on any loop may share it, and
a server that hangs blocks nobody else. Decides what is known of the server's tools at the moment of a call: never sends
a call for a tool that is not offered as the caller knows it, and never sends a call twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Any, Final, TypeVar, cast

from ..errors import PromptValidationError, WinkError
from ..frozen import frozen
from ..runtime import workers
from . import mcp_sdk
from .mcp_pins import McpOffer

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[float, float | None, str | None], Awaitable[None]]

_MOST_PAGES: Final = 100
_MOST_TOOLS: Final = 1_000
_LINES_KEPT: Final = 20
_NOT_RUN: Final = "before the call. It was not run; retry."
_PERHAPS_RUN: Final = "during the call. What it did outside may have happened; check before you call it again."


class McpConnectionError(WinkError, ConnectionError):
    """A server cannot be reached, has gone, or does not offer what was asked for; the message is written for the model."""


@frozen(kw_only=True)
class McpServer:
    """How to reach one MCP server, and how far to trust it. One of `command`, `url` and `server` says where it is."""

    name: str
    """What it is called here; tools are named `<name>_<tool>` unless `prefix` says otherwise."""
    command: Sequence[str] = ()
    """A program to start, with its arguments; it is spoken to over its standard input and output."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables for the program, beside the few that are always handed on (HOME, PATH, USER and the like)."""
    cwd: str | None = None
    url: str | None = None
    """A server that is running, over streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent with each request to `url`: credentials."""
    server: Any = field(default=None, repr=False)
    """A server object of the MCP SDK in this process, or a function that returns a transport of the SDK."""
    prefix: str | None = None
    """What stands before the names of its tools; empty for nothing."""
    only: Sequence[str] | None = None
    """The tools to take, by their names there; all of them unless told."""
    timeout: float = 60.0
    """Seconds a call may take."""
    connect_timeout: float = 30.0
    """Seconds until it must be there and have told its tools."""
    output_limit: int | None = 20_000
    """Characters of an output that the model gets at once; the rest waits to be read by handle."""
    trust_annotations: bool = False
    """Believe the server when it says that a tool only reads. Otherwise every tool counts as one with outside effects."""
    mode: str = "auto"
    """The generation of the protocol: what the server speaks, or `legacy` for the one that begins with a handshake."""

    def __post_init__(self) -> None:
        ways = [bool(self.command), self.url is not None, self.server is not None]
        if sum(ways) != 1:
            raise PromptValidationError(f"McpServer '{self.name}': give one of command=, url= and server=.")
        if isinstance(self.command, str):
            raise PromptValidationError(
                f"McpServer '{self.name}': command is a list of the program and its arguments, not one text."
            )


class McpConnection:
    """The connection of one prompt to one server. Made when its resources are opened, shared by its calls."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._closed = False

    def offers(self) -> list[McpOffer]:
        """The tools the server offers now. Blocks; connects if need be."""
        return workers.wait_for(self._ask(_Life.offers))

    async def call(self, offer: McpOffer, arguments: Mapping[str, Any], *, key: str, progress: Progress) -> Any:
        """Call a tool that is still what it was; the server's answer as the SDK gives it. From any event loop."""

        def send(life: _Life) -> Coroutine[Any, Any, Any]:
            return life.call(offer, arguments, key, progress)

        return await self._ask(send)

    async def aclose(self) -> None:
        """End the connection, and the program if there is one."""
        with self._lock:
            self._closed = True
            life, self._life = self._life, None
        if life is not None:
            await workers.run_aside(life.end)

    async def _ask(self, question: Callable[[_Life], Coroutine[Any, Any, T]]) -> T:
        life = self._alive()
        # The future counts as running, so a caller that is cancelled does not cancel it for the others.
        await asyncio.wrap_future(life.ready)
        asked = question(life)
        try:
            answer = asyncio.run_coroutine_threadsafe(asked, life.loop)
        except RuntimeError as error:  # its loop has ended between the two lines
            asked.close()
            raise life.gone(_NOT_RUN) from error
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise life.gone(_PERHAPS_RUN) from error  # its loop has ended, and the call with it

    def _alive(self) -> _Life:
        with self._lock:
            if self._closed:
                raise McpConnectionError(f"The connection to the MCP server '{self._server.name}' is closed.")
            if self._life is None or self._life.is_over:
                if self._life is not None:
                    self._life.leave()
                self._life = _Life(self._server)
            return self._life


class _Life:
    """One stretch of being connected. Begins a thread; over when the server has gone, and then never alive again."""

    def __init__(self, server: McpServer) -> None:
        self._sdk = mcp_sdk.load()
        self._server = server
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()
        self.loop = asyncio.new_event_loop()
        self.is_over = False
        self._forgotten = False
        self._stop = asyncio.Event()
        self._listening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._offers: dict[str, McpOffer] = {}
        self._stale = True
        """The listing may have changed since it was read."""
        self._blind = False
        """Nobody tells us of changes any more: look before every call."""
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._thread = threading.Thread(target=self._run, name=f"mcp-{server.name}", daemon=True)
        self._thread.start()

    # -- what callers ask, on this loop ----------------------------------------------------------------------------

    async def offers(self) -> list[McpOffer]:
        if self._stale or self._blind:
            await self._look()
        return list(self._offers.values())

    async def call(self, offer: McpOffer, arguments: Mapping[str, Any], key: str, progress: Progress) -> Any:
        if self._stale or self._blind:
            await self._look()
        self._refuse_changed(offer)
        meta = {"weakincentives/idempotency-key": key}
        before = self.is_over
        try:
            return await self._client.call_tool(offer.name, dict(arguments), progress_callback=progress, meta=meta)
        except self._sdk.MCPError as error:
            if before:
                raise self.gone(_NOT_RUN) from error
            raise self._refusal(error) from error
        except (RuntimeError, ValueError) as error:  # how the SDK tells that an answer is not what the schema says
            raise McpConnectionError(
                f"Tool '{offer.name}' of the MCP server '{self._server.name}' gave an answer that does not fit its own "
                f"description: {_first_line(error)} It may have had its effect all the same; check before you call it again."
            ) from error

    def _refuse_changed(self, offer: McpOffer) -> None:
        now = self._offers.get(offer.name)
        if now is None:
            raise McpConnectionError(
                f"Tool '{offer.name}' is no longer offered by the MCP server '{self._server.name}'. Do not retry."
            )
        if now != offer and now.digest != offer.digest:
            raise McpConnectionError(
                f"Tool '{offer.name}' has changed on the MCP server '{self._server.name}' since it was accepted. "
                "It cannot be called until somebody has looked at the change and accepted it; do without it."
            )

    def _refusal(self, error: Any) -> McpConnectionError:
        if error.code == self._sdk.types.CONNECTION_CLOSED:
            self.is_over = True
            return self.gone(_PERHAPS_RUN)
        if self._forgotten:
            return self.gone(_NOT_RUN)
        return McpConnectionError(f"The MCP server '{self._server.name}' refused the call: {error.message}")

    def gone(self, when: str) -> McpConnectionError:
        return McpConnectionError(f"The MCP server '{self._server.name}' ended the connection {when}")

    # -- its course ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Let it end by itself."""
        self.is_over = True
        try:
            self.loop.call_soon_threadsafe(self._quit)
        except RuntimeError:
            return  # it has ended

    def _quit(self) -> None:
        self._stop.set()
        if self._task is not None and not self.ready.done():
            self._task.cancel()  # nobody waits any more for a server that does not answer

    def end(self) -> None:
        """End it and wait for that; the SDK bounds how long a program may take to go."""
        self.leave()
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001  INVARIANT: whoever waits for the connection hears why there is none
            self.is_over = True
            if not self.ready.done():
                self.ready.set_exception(self._unreachable(error))
            else:
                _logger.info("The connection to the MCP server %s ended: %r", self._server.name, error)
        finally:
            self.is_over = True
            if not self.ready.done():
                self.ready.set_exception(self.gone(_NOT_RUN))

    async def _live(self) -> None:
        self._task = asyncio.current_task()
        if self._stop.is_set():
            return
        async with asyncio.timeout(self._server.connect_timeout) as limit:
            async with self._sdk.Client(
                self._target(), mode=self._server.mode, cache=None, message_handler=self._hear
            ) as client:
                self._client = client
                watching = asyncio.ensure_future(self._watch())
                await self._listening.wait()  # before the first look: nothing that changes after it is missed
                await self._look()
                limit.reschedule(None)
                self.ready.set_result(None)
                await self._stop.wait()
                self.is_over = True
                watching.cancel()
                await asyncio.wait([watching])

    async def _look(self) -> None:
        """Read the listing, all pages of it."""
        self._stale = False
        try:
            found: dict[str, McpOffer] = {}
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                page = await self._client.list_tools(cursor=cursor)
                for tool in page.tools:
                    found[tool.name] = _offer(tool)
                cursor = page.next_cursor
                if cursor is None or len(found) > _MOST_TOOLS:
                    break
            if cursor is not None:
                raise McpConnectionError(
                    f"The MCP server '{self._server.name}' tells of tools without end; at most {_MOST_TOOLS} are read."
                )
        except self._sdk.MCPError as error:
            self._stale = True
            raise self._refusal(error) from error
        except BaseException:
            self._stale = True
            raise
        self._offers = found

    async def _hear(self, message: Any) -> None:
        if isinstance(message, self._sdk.types.ToolListChangedNotification):
            self._stale = True

    async def _watch(self) -> None:
        """Servers of the newer generation tell of changes only to those who ask."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        told = self._client.server_capabilities.tools
        changing = told is not None and told.list_changed
        try:
            if changing and self._client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                async with self._client.listen(tools_list_changed=True) as changes:
                    self._listening.set()
                    async for _ in changes:
                        self._stale = True
                self._blind = True
        except Exception:  # noqa: BLE001  INVARIANT: who no longer hears of changes looks before every call
            _logger.info("The MCP server %s does not tell of changes any more", self._server.name)
            self._blind = True
        finally:
            self._listening.set()

    # -- how it is reached -----------------------------------------------------------------------------------------

    def _target(self) -> Any:
        server = self._server
        if server.server is not None:
            return server.server() if _is_factory(server.server) else server.server
        return self._http() if server.url is not None else self._program()

    @asynccontextmanager
    async def _http(self) -> AsyncGenerator[tuple[Any, Any], None]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def look(response: Any) -> None:
            # The protocol's way of saying that the server knows nothing of us, and so has run nothing for us.
            if response.status_code == 404 and "mcp-session-id" in response.request.headers:
                self.is_over = self._forgotten = True

        timeout = httpx2.Timeout(self._server.connect_timeout, read=self._server.timeout + 60)
        hooks = {"response": [look]}
        async with (
            httpx2.AsyncClient(headers=dict(self._server.headers), timeout=timeout, event_hooks=hooks) as http,
            streamable_http_client(self._server.url or "", http_client=http) as (read, write),
        ):
            yield read, write

    @asynccontextmanager
    async def _program(self) -> AsyncGenerator[tuple[Any, Any], None]:
        sdk, server = self._sdk, self._server
        command, *arguments = map(os.fspath, server.command)
        program = sdk.StdioServerParameters(command=command, args=arguments, env=dict(server.env), cwd=server.cwd)
        listening, speaking = os.pipe()
        reader = threading.Thread(
            target=self._overhear, args=(listening,), name=f"mcp-{server.name}-errors", daemon=True
        )
        reader.start()
        with os.fdopen(speaking, "w") as errors:
            async with sdk.stdio_client(program, errors) as (read, write):
                errors.close()  # the program has its own end; ours would keep the pipe open after it
                yield _Watched(read, self._lost), write

    def _lost(self) -> None:
        self.is_over = True

    def _overhear(self, pipe: int) -> None:
        """Keep the last lines a program complains with: they say why it did not start."""
        with os.fdopen(pipe, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                _logger.debug("MCP server %s: %s", self._server.name, line.rstrip())
                self._said.append(line.rstrip()[:500])

    def _unreachable(self, error: BaseException) -> McpConnectionError:
        name, server = self._server.name, self._server
        error = _innermost(error)
        if isinstance(error, McpConnectionError):
            return error
        if isinstance(error, TimeoutError):
            why = f"it did not answer within {server.connect_timeout:g} seconds."
        else:
            why = f"{str(error) or type(error).__name__}".rstrip(".") + "."
        if self._said:
            why += f" It said: {' / '.join(line for line in self._said if line)[-600:]}"
        made = McpConnectionError(f"The MCP server '{name}' cannot be reached: {why}")
        made.__cause__ = error if isinstance(error, Exception) else None
        return made


class _Watched:
    """A stream of messages that tells when it has come to its end."""

    def __init__(self, stream: Any, at_end: Callable[[], None]) -> None:
        self._stream = stream
        self._at_end = at_end

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._at_end()
            raise

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except BaseException:
            self._at_end()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def _innermost(error: BaseException) -> BaseException:
    """What really happened: the SDK's task groups wrap an error in groups of one."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _first_line(error: Exception) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{line[:300].rstrip('.')}."


def _is_factory(server: Any) -> bool:
    """A function that makes a transport, not a server object, whatever that can do."""
    return callable(server) and not hasattr(server, "streamable_http_app")


def _offer(tool: Any) -> McpOffer:
    annotations = tool.annotations
    return McpOffer(
        name=tool.name,
        title=tool.title or "",
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations={} if annotations is None else annotations.model_dump(by_alias=True, exclude_none=True),
    )
