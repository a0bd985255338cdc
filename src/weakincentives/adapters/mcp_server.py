"""Our tools as an MCP server, over standard input and output or streamable HTTP.

Decides who shares a session, and how a call from outside enters the one pipeline: policies, transaction, rollback and
record are those of every other call. What goes wrong is told in our own words as an error result; nothing a client sends
ends the server. HTTP is served on loopback, to nobody but local programs, unless there is a token.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Literal, cast

from ..errors import PromptEvaluationError, RollbackError, VisibilityExpansionRequired
from ..prompt import Prompt, ToolProgress, apply_visibility
from ..runtime import Session, ToolCall, aexecute_tool
from . import mcp_sdk
from .mcp_content import answer_of, failure, listed

_logger = logging.getLogger(__name__)

PromptSource = Prompt[Any] | Callable[[], Prompt[Any]]
SessionSource = Session | Callable[[], Session]

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OURS: Final = "weakincentives"


class _Client:
    """One client: its prompt and its session. Lives as long as it is connected."""

    def __init__(self, prompt: Prompt[Any], session: Session) -> None:
        self.prompt = prompt
        self.session = session

    def tool_names(self) -> tuple[str, ...]:
        return self.prompt.tool_names(self.session)


class _House:
    """What all clients of one server share. Made once per server."""

    def __init__(self, prompt: PromptSource, session: SessionSource | None) -> None:
        self._prompt = cast("Prompt[Any]", prompt) if isinstance(prompt, Prompt) else None
        self._make_prompt = cast("Callable[[], Prompt[Any]]", prompt)
        self._session = session if isinstance(session, Session) else None
        self._make_session = cast("Callable[[], Session]", Session if session is None else session)
        if self._prompt is None and not callable(self._make_prompt):
            raise TypeError(
                f"prompt must be a Prompt or a function that returns one, got {type(self._make_prompt).__name__}."
            )
        if self._session is None and not callable(self._make_session):
            raise TypeError(f"session must be a Session or a function that returns one, got {type(session).__name__}.")
        self.only_client: _Client | None = None
        """Everybody is one client when everybody shares a session and a prompt: then nobody needs to be told apart."""
        if self._prompt is not None and self._session is not None:
            self.only_client = _Client(self._prompt, self._session)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Keep a shared prompt's resources open, however clients come and go."""
        if self._prompt is None:
            yield
        else:
            async with self._prompt.resources:
                yield

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[_Client, None]:
        """A client that has come; its resources are closed when it goes. A session that was made for it stays with
        whoever made it: durable ones are theirs to close."""
        if self.only_client is not None:
            yield self.only_client
            return
        prompt = self._make_prompt() if self._prompt is None else self._prompt
        session = self._make_session() if self._session is None else self._session
        async with prompt.resources:
            yield _Client(prompt, session)

    def instructions(self) -> str | None:
        """What a client is told of the tools as a whole: the prompt's text, as a new session sees it."""
        prompt = self._make_prompt() if self._prompt is None else self._prompt
        session = Session() if self._session is None else self._session
        prompt.install(session)
        return prompt.render(session).text or None


def mcp_server(
    prompt: PromptSource,
    session: SessionSource | None = None,
    *,
    name: str | None = None,
    version: str = "",
) -> Any:
    """A server object of the MCP SDK, for clients in this process or a transport of your own (`server.run`)."""
    return _server(_House(prompt, session), name, version, over_http=False)


def mcp_app(
    prompt: PromptSource,
    session: SessionSource | None = None,
    *,
    name: str | None = None,
    version: str = "",
    host: str = "127.0.0.1",
    allowed_hosts: Sequence[str] = (),
    token: str | None = None,
    path: str = "/mcp",
) -> Any:
    """An ASGI app that serves the tools over streamable HTTP, to be run by a server of your choice.

    Requests must name a host among `allowed_hosts` (loopback unless told; `name:*` for any port), come from a page of
    such a host if they come from a page at all, and carry `token` as bearer if there is one.
    """
    mcp_sdk.load()
    from mcp.server.transport_security import TransportSecuritySettings

    if host not in _LOOPBACK and (token is None or not allowed_hosts):
        raise ValueError(
            f"host {host!r} can be reached from other machines. Pass token= and allowed_hosts= with the names that clients "
            "use, or serve on 127.0.0.1."
        )
    hosts = list(allowed_hosts) or ["127.0.0.1:*", "localhost:*", "[::1]:*"]
    origins = [f"{scheme}://{each}" for each in hosts for scheme in ("http", "https")]
    server = _server(_House(prompt, session), name, version, over_http=True)
    app = server.streamable_http_app(
        streamable_http_path=path,
        host=host,
        transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins),
    )
    return app if token is None else _TokenGate(app, token)


def serve_mcp(
    prompt: PromptSource,
    session: SessionSource | None = None,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    name: str | None = None,
    version: str = "",
    host: str = "127.0.0.1",
    port: int = 8765,
    allowed_hosts: Sequence[str] = (),
    token: str | None = None,
    path: str = "/mcp",
    on_ready: Callable[[str], object] | None = None,
) -> None:
    """Serve the tools until the client goes (stdio) or the process is told to end; then what runs is rolled back, and
    what is open is closed.

    `session`: one for everybody, or a function that makes one for each client; each client has a new one unless told.
    `prompt` may be such a function too, for clients that must not share files. `on_ready` gets the address over HTTP;
    port 0 takes a free one.
    """
    if transport == "stdio":
        asyncio.run(_serve_stdio(mcp_server(prompt, session, name=name, version=version)))
    elif transport == "http":
        app = mcp_app(
            prompt,
            session,
            name=name,
            version=version,
            host=host,
            allowed_hosts=allowed_hosts,
            token=token,
            path=path,
        )
        _serve_http(app, host, port, path, on_ready)
    else:
        raise ValueError(f"transport must be 'stdio' or 'http', got {transport!r}.")


async def _serve_stdio(server: Any) -> None:
    async with mcp_sdk.load().stdio_server() as (read, write):
        serving = asyncio.ensure_future(server.run(read, write, server.create_initialization_options()))
        signals = _heed_signals(serving)
        try:
            await serving
        except asyncio.CancelledError:
            if not signals:
                raise
            # WHY NOT return: a thread waits for the next line of standard input, and the process would wait for it. What
            # ran was taken back, and what was open is closed.
            logging.shutdown()
            os._exit(128 + signals[0])


def _heed_signals(serving: asyncio.Future[Any]) -> list[int]:
    """End the serving when the process is told to end; the signals that came are in the list."""
    came: list[int] = []

    def heed(number: int) -> None:
        came.append(number)
        serving.cancel()

    # Where signals are somebody else's business (not the main thread, not Unix) they stay so.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, heed, int(each))
    return came


def _serve_http(app: Any, host: str, port: int, path: str, on_ready: Callable[[str], object] | None) -> None:
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}{path}"
        if on_ready is not None:
            on_ready(address)
        _logger.info("MCP server at %s", address)
        config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=3)
        uvicorn.Server(config).run(sockets=[listening])


class _TokenGate:
    """Lets in who knows the token. An ASGI app around another."""

    def __init__(self, app: Any, token: str) -> None:
        if not token:
            raise ValueError("token must not be empty.")
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"A bearer token is needed."})
                return
        await self._app(scope, receive, send)


# --- one server object ------------------------------------------------------------------------------------------------


def _server(house: _House, name: str | None, version: str, *, over_http: bool) -> Any:
    mcp_sdk.load()
    from mcp.server.lowlevel.server import NotificationOptions, Server
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    class Governed(Server[Any]):
        """A server that says of itself that its tools may change."""

        def create_initialization_options(
            self,
            notification_options: NotificationOptions | None = None,
            experimental_capabilities: dict[str, dict[str, Any]] | None = None,
            extensions: dict[str, dict[str, Any]] | None = None,
        ) -> Any:
            told = notification_options or NotificationOptions(tools_changed=True)
            return super().create_initialization_options(told, experimental_capabilities, extensions)

    @asynccontextmanager
    async def one_client(_: Any) -> AsyncGenerator[_Client, None]:
        async with house.open(), house.client() as client:
            yield client

    @asynccontextmanager
    async def many_clients(_: Any) -> AsyncGenerator[None, None]:
        async with house.open():
            yield

    bus = InMemorySubscriptionBus()
    desk = _Desk(house, bus)
    server = Governed(
        name or _OURS,
        version=version,
        instructions=house.instructions(),
        lifespan=many_clients if over_http else one_client,
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )
    if over_http and house.only_client is None:
        server.middleware.append(_handshake_only)
    return server


async def _handshake_only(ctx: Any, call_next: Callable[[Any], Any]) -> Any:
    """The newer generation of the protocol knows no clients over HTTP, only requests; without knowing whose a request
    is there is no session for it. Clients that know both generations then begin with a handshake."""
    from mcp.types import UNSUPPORTED_PROTOCOL_VERSION
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise mcp_sdk.load().MCPError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "This server has a session for each client and needs the handshake; begin with initialize.",
            {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version},
        )
    return await call_next(ctx)


class _Desk:
    """Answers the requests of all clients of one server."""

    def __init__(self, house: _House, bus: Any) -> None:
        self._house = house
        self._bus = bus

    async def list_tools(self, context: Any, params: Any) -> Any:  # noqa: ARG002
        client = await self._client(context)
        client.prompt.install(client.session)
        return mcp_sdk.load().types.ListToolsResult(tools=listed(client.prompt.render(client.session).tools))

    async def call_tool(self, context: Any, params: Any) -> Any:
        client = await self._client(context)
        before = client.tool_names()
        try:
            return await self._run(client, context, params)
        finally:
            if client.tool_names() != before:
                await self._tell_of_change(context)

    async def _run(self, client: _Client, context: Any, params: Any) -> Any:
        call = ToolCall(params.name, params.arguments or {}, f"mcp-{secrets.token_hex(8)}")
        progress = _Progress(client.session, call, context)
        try:
            outcome = await _to_the_end(aexecute_tool(call, prompt=client.prompt, session=client.session))
            await progress.told()
        except VisibilityExpansionRequired as wanted:
            apply_visibility(client.session, wanted.requested_overrides)
            return _opened(wanted.section_keys, client)
        except (PromptEvaluationError, RollbackError) as error:
            return failure(str(error))
        finally:
            progress.end()
        return answer_of(outcome)

    async def _client(self, context: Any) -> _Client:
        """Whose request this is: the client of the pipe, or the one of the HTTP session."""
        if context.lifespan_context is not None:
            return context.lifespan_context
        if self._house.only_client is not None:
            return self._house.only_client
        # CAUTION: not public in the SDK, which has no other name for the connection a request came by. A test holds it.
        connection = context.session._connection
        client = connection.state.get(_OURS)
        if client is None:
            stack: AsyncExitStack = connection.exit_stack
            client = connection.state[_OURS] = await stack.enter_async_context(self._house.client())
        return client

    async def _tell_of_change(self, context: Any) -> None:
        from mcp.server.subscriptions import ToolsListChanged

        await context.session.send_tool_list_changed()
        await self._bus.publish(ToolsListChanged())


async def _to_the_end(work: Any) -> Any:
    """Await a call that is cancelled once, and then left alone until it has cleaned up.

    WHY NOT await it directly: the SDK cancels a request's every await from then on, those of a rollback too.
    """
    import anyio

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        raise


def _opened(keys: Sequence[str], client: _Client) -> Any:
    types = mcp_sdk.load().types
    text = (
        f"Opened: {', '.join(keys)}. Its tools are in the list of tools from now on; list them again. "
        f"The instructions are now:\n\n{client.prompt.render(client.session).text}"
    )
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


class _Progress:
    """Hands on what a handler says of its progress; the SDK drops it if nobody asked. Lives one call."""

    def __init__(self, session: Session, call: ToolCall, context: Any) -> None:
        self._call_id = call.call_id
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._steps = itertools.count(1)
        self._sent: set[asyncio.Future[Any]] = set()
        self.end = session.dispatcher.subscribe(ToolProgress, self._hear)

    async def told(self) -> None:
        """Wait until it was sent: it is of no use behind the result."""
        if self._sent:
            await asyncio.wait(self._sent)

    def _hear(self, event: ToolProgress) -> None:
        if event.call_id == self._call_id:
            self._loop.call_soon_threadsafe(self._send, event)

    def _send(self, event: ToolProgress) -> None:
        step = next(self._steps)
        done, total = (event.fraction, 1.0) if event.fraction is not None else (float(step), None)
        sending = asyncio.ensure_future(self._context.session.report_progress(done, total, event.message))
        self._sent.add(sending)
        sending.add_done_callback(self._sent.discard)
