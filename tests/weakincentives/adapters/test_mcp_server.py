"""Our tools through an MCP server, called by the official client: the same scenarios over each transport."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

from weakincentives.adapters.mcp import McpSection, McpServer, mcp_app, mcp_server, serve_mcp
from weakincentives.errors import BudgetExceededError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    FileBlock,
    ImageBlock,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    SequentialDependencyPolicy,
    TextBlock,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall, ToolInvoked, execute_tool
from weakincentives.serde import Secret
from weakincentives.testing.adapter_kit import MISSING, REFUSED, TOOLS, Desk, Note, Page, desk

from .loopback.mcp_http import served

TRANSPORTS = ("direct", "handshake", "http", "http-handshake")
Connect = Callable[..., Any]


@pytest.fixture(params=TRANSPORTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """A client of the official SDK, connected to a server of these tools over each transport in turn."""
    way: str = request.param

    @asynccontextmanager
    async def connect(prompt: Any, session: Any = None) -> AsyncIterator[Client]:
        mode = "legacy" if way.endswith("handshake") else "auto"
        if way.startswith("http"):
            with served(mcp_app(prompt, session)) as url:
                async with Client(url, mode=mode) as client:
                    yield client
        else:
            async with Client(mcp_server(prompt, session), mode=mode) as client:
                yield client

    return connect


def talk(connect: Connect, at: Desk[Any], work: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    """Do something with a client of the desk's prompt and session."""

    async def run() -> Any:
        async with connect(at.prompt, options.get("session", at.session)) as client:
            return await work(client)

    return asyncio.run(run())


def calls(connect: Connect, at: Desk[Any], *wanted: tuple[str, dict[str, Any]]) -> list[types.CallToolResult]:
    """Call the tools one after the other."""

    async def work(client: Client) -> list[types.CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments in wanted]

    return talk(connect, at, work)


def text(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


# --- scenarios over every transport -----------------------------------------------------------------------------------


def test_a_call_runs_and_its_result_goes_back(connect: Connect) -> None:
    """The handler gets typed params in a transaction, the client reads our text."""
    at = desk()

    (result,) = calls(connect, at, ("write_note", {"path": "a", "text": "hello"}))

    assert (text(result), result.is_error) == ("Wrote a.", False)
    assert at.session[Note].all() == (Note("a", "hello"),)
    assert at.files.read("a") == "hello"
    assert at.outcomes == [("write_note", "ok")]


def test_a_client_is_told_prompt_and_tools(connect: Connect) -> None:
    """Instructions, names, descriptions, parameters and effects of the tools."""

    async def work(client: Client) -> tuple[str | None, list[types.Tool]]:
        return client.instructions, (await client.list_tools()).tools

    instructions, tools = talk(connect, desk(), work)

    assert instructions == "# Notebook\n\nKeep the notebook in order."
    assert [tool.name for tool in tools] == [tool.name for tool in TOOLS]
    write, read, _ = tools
    assert write.description == "Write a page of the notebook."
    assert write.input_schema == TOOLS[0].schema()
    assert write.annotations == types.ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
    )
    assert read.annotations == types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)


def test_calls_that_only_read_run_at_the_same_time(connect: Connect) -> None:
    """Two reads meet in their handlers, and each gets its own result (S6)."""
    meeting = threading.Barrier(2, timeout=30)

    def look(params: Page, *, context: ToolContext) -> ToolResult[str]:
        meeting.wait()
        return ToolResult.ok(f"seen {params.path}")

    at = desk(tools=[Tool[Page, str](name="look", description="Look at a page.", handler=look, effects="none")])

    async def work(client: Client) -> list[str]:
        both = await asyncio.gather(*(client.call_tool("look", {"path": path}) for path in ("first", "second")))
        return [text(result) for result in both]

    assert talk(connect, at, work) == ["seen first", "seen second"]
    assert at.outcomes == [("look", "ok")] * 2


def test_a_denied_call_does_not_run(connect: Connect) -> None:
    """The client reads the policy's reason word for word, obeys, and gets through (S14)."""
    at = desk({"a": "hello"}, policies=[SequentialDependencyPolicy({"publish": {"read_note"}})])

    denied, read, published = calls(
        connect, at, ("publish", {"path": "a"}), ("read_note", {"path": "a"}), ("publish", {"path": "a"})
    )

    assert (text(denied), denied.is_error) == (MISSING, True)
    assert (text(read), text(published)) == ("hello", "Published a.")
    assert at.outcomes == [("publish", "denied"), ("read_note", "ok"), ("publish", "ok")]
    assert at.session[Page].all() == (Page("a"),)


def test_a_failed_call_leaves_no_trace_and_the_next_one_works(connect: Connect) -> None:
    """Files and state are as before the call, the client reads why, and the server goes on (S5)."""
    at = desk({"a": "kind"})

    failed, mended = calls(
        connect, at, ("write_note", {"path": "a", "text": "rude"}), ("write_note", {"path": "b", "text": "polite"})
    )

    assert (text(failed), failed.is_error) == (REFUSED, True)
    assert (text(mended), mended.is_error) == ("Wrote b.", False)
    assert at.files.read("a") == "kind"
    assert at.session[Note].all() == (Note("b", "polite"),)


def test_an_unknown_tool_is_answered_with_the_known_ones(connect: Connect) -> None:
    """The client reads which tools there are, the nearest first (S10)."""
    at = desk()

    (result,) = calls(connect, at, ("writenote", {"path": "a"}))

    assert text(result) == "Unknown tool 'writenote'\nAvailable tools: write_note, read_note, publish"
    assert result.is_error
    assert at.outcomes == [("writenote", "unknown_tool")]


def test_every_wrong_argument_is_named(connect: Connect) -> None:
    """A wrong type and a missing field are told at once, each by its path (S11)."""
    at = desk()

    (result,) = calls(connect, at, ("write_note", {"path": 7}))

    assert "Invalid parameters for tool 'write_note'" in text(result)
    assert '"path": "Expected type string, got integer 7"' in text(result)
    assert '"text": "Missing required field"' in text(result)
    assert result.is_error
    assert at.outcomes == [("write_note", "invalid_params")]


def test_an_opened_section_brings_its_tools(connect: Connect) -> None:
    """Opening a section answers with its text, and its tools are listed from then on (S21)."""
    folded = MarkdownSection(
        title="Archive",
        key="archive",
        template="Old pages are kept forever.",
        summary="Where old pages are.",
        visibility=SectionVisibility.SUMMARY,
        tools=list(TOOLS),
    )
    at = Desk(PromptTemplate(sections=[folded]))

    async def work(client: Client) -> tuple[list[str], types.CallToolResult, list[str], str]:
        before = [tool.name for tool in (await client.list_tools()).tools]
        opened = await client.call_tool("open_sections", {"section_keys": ["archive"]})
        after = [tool.name for tool in (await client.list_tools()).tools]
        wrote = await client.call_tool("write_note", {"path": "a", "text": "old"})
        return before, opened, after, text(wrote)

    before, opened, after, wrote = talk(connect, at, work)

    assert before == ["open_sections"]
    assert text(opened) == (
        "Opened: archive. Its tools are in the list of tools from now on; list them again. "
        "The instructions are now:\n\n# Archive\n\nOld pages are kept forever."
    )
    assert not opened.is_error
    assert after == [tool.name for tool in TOOLS]
    assert wrote == "Wrote a."


def test_a_cancelled_call_is_rolled_back(connect: Connect) -> None:
    """A client that gives up its request ends the call; what it wrote is gone, and it is recorded as cancelled."""
    begun, ended = threading.Event(), threading.Event()

    async def dawdle(params: Page, *, context: ToolContext) -> ToolResult[None]:
        context.session[Page].append(params)
        begun.set()
        await asyncio.Event().wait()
        return ToolResult.ok(None)

    at = desk(tools=[Tool[Page, None](name="dawdle", description="Take very long.", handler=dawdle)])
    at.session.dispatcher.subscribe(ToolInvoked, lambda event: ended.set())

    async def work(client: Client) -> None:
        calling = asyncio.ensure_future(client.call_tool("dawdle", {"path": "a"}))
        assert await asyncio.to_thread(begun.wait, 30)
        calling.cancel()
        await asyncio.wait([calling])
        assert await asyncio.to_thread(ended.wait, 30)

    talk(connect, at, work)

    assert at.outcomes == [("dawdle", "cancelled")]
    assert at.session[Page].all() == ()


def test_progress_is_handed_on(connect: Connect) -> None:
    """What a handler says of its progress reaches a client that asked for it, before the result."""

    def walk(params: Page, *, context: ToolContext) -> ToolResult[None]:
        context.progress("half way", fraction=0.5)
        return ToolResult.ok(None, "There.")

    at = desk(tools=[Tool[Page, None](name="walk", description="Walk to a page.", handler=walk)])
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async def work(client: Client) -> str:
        return text(await client.call_tool("walk", {"path": "a"}, progress_callback=hear))

    assert talk(connect, at, work) == "There."
    assert heard == [(0.5, 1.0, "half way")]


def test_each_client_has_a_session_of_its_own(connect: Connect) -> None:
    """What one client has read does not count for another, unless they are given one session."""
    made: list[Session] = []

    def make() -> Session:
        made.append(Session())
        return made[-1]

    at = desk({"a": "hello"}, policies=[SequentialDependencyPolicy({"publish": {"read_note"}})])

    async def work(client: Client) -> str:
        await client.call_tool("read_note", {"path": "a"})
        return text(await client.call_tool("publish", {"path": "a"}))

    async def hurry(client: Client) -> str:
        return text(await client.call_tool("publish", {"path": "a"}))

    assert talk(connect, at, work, session=make) == "Published a."
    assert talk(connect, at, hurry, session=make) == MISSING
    assert [[event.outcome for event in session[ToolInvoked]] for session in made if session[ToolInvoked].all()] == [
        ["ok", "ok"],
        ["denied"],
    ]


def test_the_end_of_a_run_is_told_as_an_error(connect: Connect) -> None:
    """What ends an evaluation elsewhere answers one call here, and the server goes on."""

    def spend(params: Page, *, context: ToolContext) -> ToolResult[None]:
        raise BudgetExceededError("The budget is used up.")

    at = desk({"a": "hello"}, tools=[*TOOLS, Tool[Page, None](name="spend", description="Spend.", handler=spend)])

    spent, read = calls(connect, at, ("spend", {"path": "a"}), ("read_note", {"path": "a"}))

    assert (text(spent), spent.is_error) == ("The budget is used up.", True)
    assert text(read) == "hello"


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weather:
    """The weather."""

    degrees: int
    place: str = "here"
    key: Annotated[str, Secret] = ""

    def render(self) -> str:
        return f"{self.degrees} degrees {self.place}"


def answer(result_type: Any, result: ToolResult[Any]) -> tuple[types.Tool, types.CallToolResult]:
    """What a client is told of a tool of this type, and gets from it; the official client checks one by the other."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[Any]:
        return result

    tool = Tool[None, result_type](name="ask", description="Ask.", handler=handler)

    async def run() -> tuple[types.Tool, types.CallToolResult]:
        prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", tools=[tool])]))
        async with Client(mcp_server(prompt)) as client:
            (listed,) = (await client.list_tools()).tools
            return listed, await client.call_tool("ask")

    return asyncio.run(run())


def test_a_dataclass_is_structured_content() -> None:
    """The text as the model reads it, the value beside it, secrets hidden, and the schema of both."""
    listed, result = answer(Weather, ToolResult.ok(Weather(21, key="hush"), "Measured."))

    assert text(result) == "Measured.\n\n21 degrees here"
    assert result.structured_content == {"degrees": 21, "place": "here", "key": "[redacted]"}
    assert listed.output_schema is not None
    assert listed.output_schema["type"] == "object"
    assert set(listed.output_schema["properties"]) == {"degrees", "place", "key"}


@pytest.mark.parametrize(
    "result", [ToolResult.ok(None, "Nothing."), ToolResult("Kept.", Weather(1), exclude_value_from_context=True)]
)
def test_a_value_that_is_not_shown_is_an_empty_object(result: ToolResult[Any]) -> None:
    """A tool with a schema may return nothing, or keep its value from the model; the answer still fits the schema."""
    _, told = answer(Weather, result)

    assert (told.structured_content, told.is_error) == ({}, False)


def test_what_is_no_object_stands_under_result() -> None:
    """Structured content is an object in the protocol's older generation; lists and numbers are put into one."""
    listed, result = answer(list[Weather], ToolResult.ok([Weather(1), Weather(2)]))

    assert result.structured_content is not None
    assert [item["degrees"] for item in result.structured_content["result"]] == [1, 2]
    assert listed.output_schema is not None
    assert listed.output_schema["properties"]["result"]["type"] == "array"


@pytest.mark.parametrize("result_type", [str, None, Any])
def test_text_has_no_schema(result_type: Any) -> None:
    """A tool that returns text, nothing, or anything promises no structure."""
    listed, result = answer(result_type, ToolResult.ok(None, "Words."))

    assert listed.output_schema is None
    assert (text(result), result.structured_content) == ("Words.", None)


def test_what_is_cut_from_the_text_does_not_stand_beside_it() -> None:
    """A tool with an output limit promises no structure: the limit would be none."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[Weather]:
        return ToolResult.ok(Weather(1, place="x" * 100))

    tool = Tool[None, Weather](name="ask", description="Ask.", handler=handler, output_limit=10)

    async def run() -> tuple[types.Tool, types.CallToolResult]:
        prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", tools=[tool])]))
        async with Client(mcp_server(prompt)) as client:
            return (await client.list_tools()).tools[0], await client.call_tool("ask")

    listed, result = asyncio.run(run())

    assert (listed.output_schema, result.structured_content) == (None, None)
    assert text(result).startswith("1 degrees \n\n[output cut: 10 of ")


def test_a_failure_has_no_structured_content() -> None:
    """The value of a failed result is nobody's to read (S22)."""
    _, result = answer(Weather, ToolResult("It rains.", Weather(1), success=False))

    assert (text(result), result.is_error, result.structured_content) == ("It rains.", True, None)


def test_content_blocks_go_as_they_are() -> None:
    """Text, pictures, files and addresses in the protocol's own form, the message first."""
    blocks = (
        TextBlock("See:"),
        ImageBlock(b"png"),
        FileBlock(b"pdf", media_type="application/pdf", name="a.pdf"),
        FileBlock(url="https://example.org/b", media_type="text/html", name="b"),
    )
    _, result = answer(tuple[TextBlock | ImageBlock | FileBlock, ...], ToolResult.ok(blocks, "Found."))

    message, words, image, file, link = result.content
    assert isinstance(message, types.TextContent)
    assert isinstance(words, types.TextContent)
    assert (message.text, words.text) == ("Found.", "See:")
    assert isinstance(image, types.ImageContent)
    assert (base64.b64decode(image.data), image.mime_type) == (b"png", "image/png")
    assert isinstance(file, types.EmbeddedResource)
    assert isinstance(file.resource, types.BlobResourceContents)
    assert (base64.b64decode(file.resource.blob), str(file.resource.uri)) == (b"pdf", "file:///a.pdf")
    assert isinstance(link, types.ResourceLink)
    assert str(link.uri) == "https://example.org/b"


# --- who is let in ----------------------------------------------------------------------------------------------------


@contextmanager
def serving(**options: Any) -> Iterator[str]:
    with served(mcp_app(desk({"a": "hello"}).prompt, **options)) as url:
        yield url


def knock(url: str, **headers: str) -> int:
    return httpx2.post(url, headers={"accept": "application/json, text/event-stream", **headers}, json={}).status_code


def test_a_page_of_another_site_is_turned_away() -> None:
    """A browser that was lured to us names the site it comes from, or the name it found us by."""
    with serving() as url:
        assert knock(url, origin="https://evil.example") == 403
        assert knock(url, host="evil.example") == 421
        assert knock(url, origin="http://localhost:3000") not in (401, 403, 421)


def test_who_does_not_know_the_token_is_turned_away() -> None:
    """With a token, nobody is heard without it."""
    with serving(token="sesame") as url:
        assert knock(url) == 401
        assert knock(url, authorization="Bearer guess") == 401
        assert knock(url, authorization="Bearer sesame") != 401

        section = McpSection(McpServer(name="n", url=url, headers={"authorization": "Bearer sesame"}))
        assert [tool.name for tool in section.tools] == ["n_write_note", "n_read_note", "n_publish"]


@pytest.mark.parametrize("options", [{}, {"token": "sesame"}, {"allowed_hosts": ["tools.example:*"]}])
def test_nobody_is_served_from_afar_without_token_and_names(options: dict[str, Any]) -> None:
    """Listening beyond loopback needs both; one alone is refused before anything listens."""
    with pytest.raises(ValueError, match=r"host '0\.0\.0\.0' can be reached from other machines\. Pass token= and"):
        serve_mcp(desk().prompt, transport="http", host="0.0.0.0", **options)


def test_an_unknown_transport_is_refused() -> None:
    """Before anything is opened."""
    with pytest.raises(ValueError, match="transport must be 'stdio' or 'http', got 'pigeon'"):
        serve_mcp(desk().prompt, transport="pigeon")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "session", "said"),
    [
        (PromptTemplate(), None, "prompt must be a Prompt or a function that returns one, got PromptTemplate."),
        (Prompt(PromptTemplate()), 7, "session must be a Session or a function that returns one, got int."),
    ],
)
def test_a_mix_up_of_arguments_is_named(prompt: Any, session: Any, said: str) -> None:
    """At once, not at the first call."""
    with pytest.raises(TypeError, match=re.escape(said)):
        mcp_server(prompt, session)


def test_a_request_without_handshake_has_no_session() -> None:
    """With a session per client, a client that insists on the generation without handshake reads why it cannot be."""

    async def insist(url: str) -> None:
        async with Client(url, mode="2026-07-28") as client:
            with pytest.raises(
                MCPError, match="has a session for each client and needs the handshake; begin with init"
            ):
                await client.list_tools()

    with serving() as url:
        asyncio.run(insist(url))


def test_two_clients_at_once_are_told_apart_over_http() -> None:
    """Each has its own session, and files of its own when the prompt is made for each."""

    def make() -> Prompt[Any]:
        section = MarkdownSection(title="Notebook", tools=list(TOOLS))
        files = InMemoryFilesystem()
        return Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: files})

    async def run(url: str) -> tuple[str, str]:
        async with AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(Client(url)) for _ in range(2)]
            await one.call_tool("write_note", {"path": "a", "text": "mine"})
            mine = await one.call_tool("read_note", {"path": "a"})
            theirs = await other.call_tool("read_note", {"path": "a"})
            return text(mine), text(theirs)

    with served(mcp_app(make)) as url:
        mine, theirs = asyncio.run(run(url))

    assert mine == "mine"
    assert "a" in theirs
    assert theirs != "mine"


def test_a_client_that_goes_takes_its_resources_along() -> None:
    """What was opened for it is closed when its HTTP session ends."""
    closed = threading.Event()

    class Lamp:
        def close(self) -> None:
            closed.set()

    def glow(params: None, *, context: ToolContext) -> ToolResult[str]:
        context.resources.get(Lamp)
        return ToolResult.ok("bright")

    from weakincentives.resources import Binding

    def make() -> Prompt[Any]:
        section = MarkdownSection(title="Lamp", tools=[Tool[None, str](name="glow", description="Glow.", handler=glow)])
        return Prompt(PromptTemplate(sections=[section])).bind(resources={Lamp: Binding(Lamp, lambda _: Lamp())})

    async def run(url: str) -> str:
        async with Client(url) as client:
            return text(await client.call_tool("glow"))

    with served(mcp_app(make)) as url:
        assert asyncio.run(run(url)) == "bright"
        assert closed.wait(30)


# --- as a process -----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from weakincentives.adapters.mcp import serve_mcp
from weakincentives.prompt import Tool, ToolResult
from weakincentives.testing.adapter_kit import TOOLS, desk

def shout(params: None, *, context) -> ToolResult[str]:
    print("noise that must not reach the client", flush=True)
    return ToolResult.ok("Shouted.")

at = desk({"a": "hello"}, tools=[*TOOLS, Tool[None, str](name="shout", description="Shout.", handler=shout)])
if sys.argv[1:] == ["http"]:
    serve_mcp(at.prompt, transport="http", port=0, on_ready=lambda url: print(url, flush=True))
else:
    serve_mcp(at.prompt, name="notebook")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "served.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_served_over_its_pipes(program: Path) -> None:
    """What a handler prints goes elsewhere; the program ends when the client goes."""

    async def run() -> list[str]:
        async with Client(StdioServerParameters(command=sys.executable, args=[str(program)])) as client:
            assert client.server_info is not None
            wanted = (("shout", {}), ("write_note", {"path": "b", "text": "new"}), ("read_note", {"path": "b"}))
            results = [await client.call_tool(name, arguments) for name, arguments in wanted]
            return [client.server_info.name, *map(text, results)]

    assert asyncio.run(run()) == ["notebook", "Shouted.", "Wrote b.", "new"]


def test_a_program_is_served_over_http_until_it_is_interrupted(program: Path) -> None:
    """It says where it listens, answers, and goes when it is told to."""

    async def run(url: str) -> str:
        http = httpx2.AsyncClient()
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            return text(await client.call_tool("read_note", {"path": "a"}))

    with subprocess.Popen([sys.executable, str(program), "http"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
            assert asyncio.run(run(url)) == "hello"
        finally:
            process.terminate()
        assert process.wait(30) in (0, -15)


INTERRUPTED = """
import asyncio, sys
from weakincentives.adapters.mcp import serve_mcp
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.resources import Binding
from weakincentives.runtime import Session, ToolInvoked

class Lamp:
    def close(self):
        print("closed", file=sys.stderr, flush=True)

async def dawdle(params: None, *, context) -> ToolResult[None]:
    context.resources.get(Lamp)
    print("begun", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

tool = Tool[None, None](name="dawdle", description="Take very long.", handler=dawdle)
prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="A", tools=[tool])]))
session = Session()
session.dispatcher.subscribe(ToolInvoked, lambda event: print(event.outcome, file=sys.stderr, flush=True))
serve_mcp(prompt.bind(resources={Lamp: Binding(Lamp, lambda _: Lamp())}), session)
"""
HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_told_to_end_takes_back_what_runs(tmp_path: Path, number: signal.Signals) -> None:
    """Though its client is still there and says nothing more."""
    path = tmp_path / "interrupted.py"
    path.write_text(INTERRUPTED)
    lines = [
        {"id": 1, "method": "initialize", "params": HANDSHAKE},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "dawdle", "arguments": {}}},
    ]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, str(path)], text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines))
        process.stdin.flush()
        assert process.stderr.readline() == "begun\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr.read().split() == ["cancelled", "closed"]


# --- there and back ---------------------------------------------------------------------------------------------------


def test_our_tools_through_our_own_client_are_governed_twice() -> None:
    """A tool served by us and used by us again: policies and rollback there, record here."""
    there = desk({"a": "kind"})
    with served(mcp_app(there.prompt, there.session)) as url:
        section = McpSection(McpServer(name="notes", url=url))
        prompt, session = Prompt(PromptTemplate(sections=[section])), Session()
        with prompt.resources:
            rude = ToolCall("notes_write_note", {"path": "a", "text": "rude"})
            failed = execute_tool(rude, prompt=prompt, session=session)
            wrote = execute_tool(
                ToolCall("notes_write_note", {"path": "b", "text": "x"}), prompt=prompt, session=session
            )

    assert (failed.outcome, failed.text) == ("failed", REFUSED)
    assert (wrote.outcome, wrote.text) == ("ok", "Wrote b.")
    assert there.files.read("a") == "kind"
    assert [event.outcome for event in session[ToolInvoked]] == ["failed", "ok"]
