"""`wink tools`, `wink schema`, `wink serve-mcp`: the tools of an agent as a model sees them, and for other programs' models."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Annotated, Any

import orjson
import typer

from ..adapters.mcp import serve_mcp as serve
from ..runtime import Session
from .agent_file import BadInput, loaded, prompt_of, tools_of
from .terminal import AgentFile, ForRequest, Json, print_json


def tools(file: AgentFile, request: ForRequest = None, json: Json = False) -> None:
    """List the tools of an agent, in the order a model sees them."""
    with loaded(file) as (module, name):
        found = tools_of(module, name, file, request)
    if json:
        print_json([{"effects": tool.effects, **tool.spec()} for tool in found])
        return
    width = max((len(tool.name) for tool in found), default=0)
    for tool in found:
        typer.echo(f"{tool.name:<{width}}  {tool.effects:<8}  {tool.description}")


def schema(
    file: AgentFile,
    tool: Annotated[str, typer.Argument(help="The name of the tool.")],
    request: ForRequest = None,
    json: Json = False,  # noqa: ARG001
) -> None:
    """Print what a provider is told of one tool, as JSON."""
    with loaded(file) as (module, name):
        found = {each.name: each for each in tools_of(module, name, file, request)}
    if tool not in found:
        raise BadInput(f"{file} has no tool '{tool}'. It has: {', '.join(found) or 'none'}.")
    print_json(found[tool].spec())


def serve_mcp(
    file: AgentFile,
    http: Annotated[
        bool, typer.Option("--http", help="Over HTTP; without it over standard input and output, as clients start it.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="With --http. Other addresses than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="With --http; 0 takes a free one.")] = 8765,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", help="With --http: a name that clients call it by; may be repeated."),
    ] = None,
    token_env: Annotated[
        str, typer.Option("--token-env", help="With --http: the variable that holds the token clients must send.")
    ] = "",
    session: Annotated[
        str, typer.Option("--session", help="Keep all calls in this session file; otherwise each client has its own.")
    ] = "",
    request: ForRequest = None,
    json: Json = False,
) -> None:
    """Serve the tools of an agent over MCP, with its policies and transactions, until the client goes or Ctrl-C."""
    token = None
    if token_env:
        token = os.environ.get(token_env)
        if not token:
            raise BadInput(f"The variable {token_env} is not set: put the token there, or leave --token-env out.")
    for option, given in (("--token-env", token_env), ("--allowed-host", allowed_host)):
        if given and not http:
            raise BadInput(f"{option} is for --http; standard input and output need none.")
    if http and host not in ("127.0.0.1", "localhost", "::1") and not (token and allowed_host):
        raise BadInput(
            f"{host} can be reached from other machines. Give --token-env, and --allowed-host with the name that clients use; "
            "or serve on 127.0.0.1."
        )
    with loaded(file) as (module, name), ExitStack() as held:
        make = prompt_of(module, name, file, request)
        names = [tool.name for tool in make().render(Session()).tools]
        kept = held.enter_context(Session.open(session)) if session else None

        def tell(address: str) -> None:
            # Standard output belongs to the protocol, unless it goes over HTTP.
            if json:
                told: dict[str, Any] = {"address": address or None, "tools": names}
                typer.echo(orjson.dumps(told), err=not http)
            else:
                typer.echo(f"{', '.join(names)}: served at {address or 'standard input and output'}", err=True)
            (sys.stdout if json and http else sys.stderr).flush()

        if not http:
            tell("")
        serve(
            make,
            kept,
            transport="http" if http else "stdio",
            name=os.path.splitext(os.path.basename(file.partition(":")[0]))[0],
            host=host,
            port=port,
            allowed_hosts=allowed_host or (),
            token=token,
            on_ready=tell,
        )
