"""Tools of MCP servers as server tools: over loopback HTTP, with credentials from the environment, and when nobody answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from wardwright.config import Problems, load_config
from wardwright.server_tools import ServerContext, ServerTools, compile_server_tools
from wardwright.wire.turn import Caller
from weakincentives.adapters.mcp import mcp_app
from weakincentives.clock import SYSTEM_CLOCK, Clock, FakeClock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool

CONTEXT = ServerContext(Caller(session_id="s"), "coding", dict, b"key")


@tool(name="look_up", description="Look a word up.", effects="none")
def look_up(word: str) -> str:
    """Look a word up."""
    if word == "none":
        raise ValueError("There is no such word.")
    return f"{word}: " + "a meaning; " * (100 if word == "many" else 1)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that wants a token, while the tests of this file run."""
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="Words", template="Words.", tools=[look_up])]))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            mcp_app(prompt, token="s3cret"), log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        server.should_exit = True
        thread.join()


def tools_of(*lines: str, more: str = "", clock: Clock = SYSTEM_CLOCK) -> ServerTools:
    text = "server_tools:\n  - engine: mcp\n    name: words\n" + "".join(f"    {line}\n" for line in lines) + more
    problems = Problems("f")
    node = load_config(text).models[0].sections["server_tools"]
    tools = compile_server_tools(node, None, problems, modules_from=Path("/"))
    assert problems.found == []
    return ServerTools(tools, ask_again=30.0, clock=clock)


def using(tools: ServerTools, work: Callable[[ServerTools], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        await tools.open()
        try:
            return await work(tools)
        finally:
            await tools.aclose()

    return asyncio.run(whole())


def test_a_tool_of_an_mcp_server_is_run_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G40: found by the server's listing, called with the operator's credentials, recorded as run elsewhere."""
    monkeypatch.setenv("WORDS_AUTH", "Bearer s3cret")
    tools = tools_of(
        f"url: {address}",
        "headers_env: {Authorization: WORDS_AUTH}",
        "limits: {output_chars: 40}",
        more="  - {engine: snippet, name: a, source: '1'}\n",
    )

    async def work(live: ServerTools) -> Any:
        runs = [
            await live.run("c", "words_look_up", arguments, CONTEXT)
            for arguments in ('{"word": "tea"}', '{"word": "none"}', '{"word": "many"}', '{"w": 1}')
        ]
        return [spec.name for spec in live.specs()], live.location("words_look_up"), runs, live.describe()

    names, location, (fine, failed, many, wrong), described = using(tools, work)

    assert (names, location) == (["words_look_up", "a"], "remote_mcp")
    assert (fine.text, fine.is_error) == ("tea: a meaning; ", False)
    assert (fine.record["engine"], fine.record["execution_location"], fine.record["visibility_level"]) == (
        "mcp",
        "remote_mcp",
        "remote_observed",
    )
    assert (failed.text, failed.is_error, failed.record["status"]) == ("There is no such word.", True, "error")
    assert many.text.endswith("\n[Cut: the first 40 of 1106 characters are shown. Ask for less.]")
    assert wrong.record["outcome"] == "invalid_params"
    assert address not in str(described)


def test_a_server_that_cannot_be_reached_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools are not there, with the reason; a later look finds out whether they are."""
    monkeypatch.delenv("WORDS_AUTH", raising=False)
    tools = tools_of(
        "command: [no-such-program-anywhere]", "env: [WORDS_AUTH]", more="  - {engine: snippet, name: a, source: '1'}\n"
    )

    async def work(live: ServerTools) -> Any:
        first = dict(live.unavailable)
        monkeypatch.setenv("WORDS_AUTH", "x")
        again = await live.refresh()
        return live.names, first, again, live.unavailable, live.describe()[-1]

    names, first, again, later, shown = using(tools, work)

    assert names == {"a"}
    assert (first, again) == ({"words": "the environment has no WORDS_AUTH"}, False)
    assert later["words"].startswith("The MCP server 'words' cannot be reached: ")
    assert (shown["name"], shown["available"], shown["source"]) == ("words", False, "program")


def test_a_server_that_comes_later_is_found(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`refresh` brings its tools, in the order of the config."""
    monkeypatch.delenv("WORDS_AUTH", raising=False)
    tools = tools_of(
        f"url: {address}",
        "headers_env: {Authorization: WORDS_AUTH}",
        "prefix: ''",
        more="  - {engine: snippet, name: a, source: '1'}\n",
    )

    async def work(live: ServerTools) -> Any:
        before = live.names
        monkeypatch.setenv("WORDS_AUTH", "Bearer s3cret")
        return before, await live.refresh(), [spec.name for spec in live.specs()], live.unavailable

    assert using(tools, work) == ({"a"}, True, ["look_up", "a"], {})


def test_requests_have_a_missing_server_asked_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once, and none of them waits for the answer."""
    monkeypatch.delenv("WORDS_AUTH", raising=False)
    clock = FakeClock()
    tools = tools_of(f"url: {address}", "headers_env: {Authorization: WORDS_AUTH}", clock=clock)

    async def work(live: ServerTools) -> Any:
        monkeypatch.setenv("WORDS_AUTH", "Bearer s3cret")
        clock.advance(29.0)
        live.specs()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        clock.advance(1.0)
        first = live.specs()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        return others, first, [spec.name for spec in live.specs()]

    assert using(tools, work) == (set(), (), ["words_look_up"])


def test_closing_does_not_wait_for_a_server_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody needs any more is given up."""
    monkeypatch.setenv("WORDS_AUTH", "x")
    clock = FakeClock()
    tools = tools_of("command: [no-such-program-anywhere]", "env: [WORDS_AUTH]", clock=clock)

    async def work(live: ServerTools) -> Any:
        clock.advance(30.0)
        live.specs()
        await live.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert using(tools, work) == set()


def test_a_name_that_is_taken_is_not_given_twice(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose tool is called like another is left out, with the way out."""
    monkeypatch.setenv("WORDS_AUTH", "Bearer s3cret")
    tools = tools_of(
        f"url: {address}",
        "headers_env: {Authorization: WORDS_AUTH}",
        "prefix: ''",
        more="  - {engine: snippet, name: look_up, source: '1'}\n",
    )

    async def work(live: ServerTools) -> Any:
        return live.unavailable, (await live.run("c", "look_up", "{}", CONTEXT)).text

    assert using(tools, work) == (
        {"words": "its tool 'look_up' has the name of another server tool; set 'prefix'"},
        "1",
    )
