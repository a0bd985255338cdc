"""Claims about the helpers for tests of tools, shown as the tests a tool's author would write with them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import adapters, clock, testing
from weakincentives.clock import FakeClock
from weakincentives.dbc import require
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, PromptTemplate, QuotaPolicy, Tool, ToolContext, ToolResult, tool
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import Session, ToolCall, ToolInvoked, execute_tool
from weakincentives.testing import (
    ScriptedAdapter,
    make_context,
    make_context_with_files,
    make_session,
    make_vfs,
    run_tool,
)

# -- the tools under test ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchParams:
    query: str
    limit: int = 10


@dataclass(frozen=True, slots=True)
class SearchResult:
    matches: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.matches)


@require(lambda params: params.query.strip(), "query cannot be empty")
@require(lambda params: 1 <= params.limit <= 100, "limit must be between 1 and 100")
def search_handler(params: SearchParams, *, context: ToolContext) -> ToolResult[SearchResult]:
    matches = tuple(context.resources.get(Filesystem).search(params.query, limit=params.limit))
    if not matches:
        return ToolResult.ok(SearchResult(()), message=f"No files match '{params.query}'")
    return ToolResult.ok(SearchResult(matches), message=f"Found {len(matches)} files")


search = Tool[SearchParams, SearchResult](name="search", description="Search files by name.", handler=search_handler)


@dataclass(frozen=True, slots=True)
class WriteParams:
    path: str
    content: str
    overwrite: bool = False


def write_handler(params: WriteParams, *, context: ToolContext) -> ToolResult[None]:
    fs = context.filesystem
    assert fs is not None
    if fs.exists(params.path) and not params.overwrite:
        raise ToolValidationError(f"File already exists: {params.path}\nSet overwrite=true to replace it, then retry")
    fs.write(params.path, params.content)
    return ToolResult.ok(None, f"Wrote {params.path}")


write = Tool[WriteParams, None](name="write_file", description="Write a file.", handler=write_handler)


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessParams:
    fail: bool = False


def _process(params: ProcessParams, *, context: ToolContext) -> ToolResult[str]:
    fs = context.resources.get(Filesystem)
    plan = context.session[Plan].latest()
    assert plan is not None
    context.session[Plan].append(Plan((*plan.steps, "processed")))
    fs.write("/workspace/temp.txt", "half")
    if params.fail:
        raise ToolValidationError("Cannot process: the input is invalid")
    fs.move("/workspace/temp.txt", "/workspace/output.txt")
    return ToolResult.ok("done")


process = Tool[ProcessParams, str](name="process", description="Work on the plan.", handler=_process)


# -- tests as a tool's author writes them --------------------------------------------------------------------------------


def test_a_handler_finds_the_files_of_its_context() -> None:
    """Names alone make files, and the result lists them in order."""
    context = make_context_with_files(["test.py", "test_helper.py", "other.py"])

    result = search_handler(SearchParams("test"), context=context)

    assert result.success
    assert result.value == SearchResult(("test.py", "test_helper.py"))
    assert result.message == "Found 2 files"


def test_finding_nothing_is_a_success() -> None:
    """No results is an answer, not an error."""
    result = search_handler(SearchParams("nonexistent"), context=make_context_with_files(["other.py"]))

    assert result.success
    assert result.value == SearchResult(())
    assert "No files match" in result.message


@pytest.mark.parametrize("limit", [0, -1, 101, 500])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    """A precondition answers with a failed result, also when the handler is called directly."""
    result = search_handler(SearchParams("test", limit), context=make_context())

    assert (result.success, result.value) == (False, None)
    assert result.message == "Precondition failed: limit must be between 1 and 100"


@pytest.mark.parametrize("query", ["", "   ", "\t\n"])
def test_an_empty_query_is_refused(query: str) -> None:
    """Spaces are no query."""
    result = search_handler(SearchParams(query), context=make_context())

    assert (result.success, result.message) == (False, "Precondition failed: query cannot be empty")


@given(query=st.text(), limit=st.integers())
def test_a_guarded_handler_never_raises(query: str, limit: int) -> None:
    """Whatever the arguments, there is a result, it says something, and a failure carries no value."""
    result = search_handler(SearchParams(query, limit), context=make_context())

    assert isinstance(result.message, str)
    assert result.message
    assert result.success or result.value is None


def test_an_error_message_says_what_and_how_to_go_on() -> None:
    """What the model reads names the file, the problem and the way out."""
    outcome = run_tool(write, {"path": "config.json", "content": "data"}, files=["config.json"])

    assert not outcome.success
    assert outcome.text == "File already exists: config.json\nSet overwrite=true to replace it, then retry"


def test_a_failed_tool_leaves_no_trace_but_its_event() -> None:
    """Called with a context, a tool is a governed call: state and files are as before, one event is recorded."""
    session, fs = make_session(), make_vfs()
    session[Plan].seed(Plan(("first",)))

    result = process(ProcessParams(fail=True), context=make_context(session=session, fs=fs))

    assert not result.success
    assert session[Plan].latest() == Plan(("first",))
    assert not fs.exists("/workspace/temp.txt")
    assert [event.success for event in session[ToolInvoked].all()] == [False]


def test_a_successful_tool_is_kept() -> None:
    """The same call without the failure keeps everything."""
    session, fs = make_session(), make_vfs()
    session[Plan].seed(Plan(("first",)))

    result = process(ProcessParams(), context=make_context(session=session, fs=fs))

    assert result.success
    assert session[Plan].latest() == Plan(("first", "processed"))
    assert fs.exists("/workspace/output.txt")
    assert [event.success for event in session[ToolInvoked].all()] == [True]


def test_a_model_recovers_from_a_refused_write() -> None:
    """One turn at a time: the model reads what was wrong, and its second call does it right."""
    session = make_session()
    prompt = Prompt(PromptTemplate()).bind(
        extra_tools=[write], resources={Filesystem: make_vfs({"config.json": "old"})}
    )
    first = ToolCall("write_file", {"path": "config.json", "content": "new"})
    second = ToolCall("write_file", {"path": "config.json", "content": "new", "overwrite": True})

    with ScriptedAdapter([first, second, "done"]) as adapter, prompt.resources:
        conversation = adapter.stepwise()
        response = conversation.evaluate(prompt, session=session)
        assert (response.stop_reason, response.tool_calls[0].name) == ("tool_use", "write_file")
        refused = execute_tool(response.tool_calls[0], session=session)
        assert not refused.success
        assert "overwrite=true" in refused.message
        response = conversation.evaluate(prompt, session=session, tool_results=[refused])
        assert response.tool_calls[0].params["overwrite"] is True
        written = execute_tool(response.tool_calls[0], session=session)
        assert written.success
        response = conversation.evaluate(prompt, session=session, tool_results=[written])

    assert (response.stop_reason, response.text) == ("end_turn", "done")


# -- the helpers themselves --------------------------------------------------------------------------------------------


def test_files_may_have_content() -> None:
    """A mapping gives names and content, text or bytes."""
    fs = make_vfs({"a.txt": "text", "b.bin": b"\0"})

    assert (fs.read("a.txt"), fs.read_bytes("b.bin")) == ("text", b"\0")


def test_one_string_is_no_list_of_files() -> None:
    """A name where names belong would make one file per letter."""
    with pytest.raises(TypeError) as refused:
        make_vfs("a.txt")

    assert str(refused.value) == "files takes names, or names with content, got the string 'a.txt'"


def test_a_context_needs_nothing() -> None:
    """It brings a session and a filesystem, both empty."""
    context = make_context()

    assert isinstance(context.session, Session)
    assert context.filesystem is context.resources.get(Filesystem)
    assert context.resources.get(Filesystem).list() == []


def test_files_are_written_to_the_filesystem_given() -> None:
    """`fs` and `files` go together."""
    fs = make_vfs(["old.txt"])
    context = make_context(fs=fs, files={"new.txt": "new"})

    assert context.filesystem is fs
    assert fs.list() == ["new.txt", "old.txt"]


@pytest.mark.parametrize("form", ["mapping", "registry", "open"])
def test_resources_come_in_every_form(form: str) -> None:
    """A mapping, a registry and an open context; the filesystem they bind is the context's."""
    fs = make_vfs()
    bound = {FakeClock: FakeClock(), Filesystem: fs}
    registry = ResourceRegistry.build(bound)
    resources = {"mapping": bound, "registry": registry, "open": registry.open()}[form]
    context = make_context(resources=resources, files=["a.txt"])

    assert context.resources.get(FakeClock) is bound[FakeClock]
    assert context.filesystem is fs
    assert fs.list() == ["a.txt"]


def test_more_of_the_context_can_be_given() -> None:
    """What ToolContext takes, make_context takes."""
    deadline = Deadline.after(5)

    assert make_context(deadline=deadline, call_id="c1").deadline is deadline


def test_run_tool_runs_the_whole_pipeline() -> None:
    """Arguments are parsed, policies are asked, the call is recorded, and the outcome says how it ended."""
    session = make_session()
    policies = [QuotaPolicy(1)]

    outcomes = [
        run_tool(search, args, session=session, files=["a.py"], policies=policies).outcome
        for args in ({"query": 1}, '{"query": "a"}', SearchParams("a"))
    ]

    assert outcomes == ["invalid_params", "ok", "denied"]
    assert [event.outcome for event in session[ToolInvoked].all()] == outcomes


def test_run_tool_takes_a_decorated_function() -> None:
    """A function is a tool too; without parameters it needs no arguments."""

    @tool
    def greet() -> str:
        """Greet."""
        return "hello"

    assert run_tool(greet).text == "hello"


def test_run_tool_closes_what_it_opened() -> None:
    """Resources of a registry live for the call; those open before stay open."""
    closed: list[str] = []

    class Client:
        def close(self) -> None:
            closed.append("closed")

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        context.resources.get(Client)
        return ToolResult.ok("used")

    use = Tool[None, str](name="use", description="Use the client.", handler=handler)
    registry = ResourceRegistry.of(Binding(Client, lambda _: Client()))
    run_tool(use, resources=registry)
    assert closed == ["closed"]
    with registry.open() as resources:
        run_tool(use, resources=resources)
        assert closed == ["closed"]


def test_a_session_may_have_a_clock_of_its_own() -> None:
    """With a FakeClock, times in events are known."""
    session = make_session(clock=FakeClock(start=1_000.0), session_id="s1")
    run_tool(search, {"query": "a"}, session=session)

    assert [(event.timestamp, event.session_id) for event in session[ToolInvoked].all()] == [(1_000.0, "s1")]


def test_the_public_doubles_are_here() -> None:
    """The scripted model and the clock are the ones of their packages."""
    assert testing.ScriptedAdapter is adapters.ScriptedAdapter
    assert testing.FakeClock is clock.FakeClock


# -- the pytest plugin ---------------------------------------------------------------------------------------------------

USER_TEST = """
from weakincentives.prompt import tool
from weakincentives.runtime import ToolInvoked

@tool
def remember(text: str, *, context) -> str:
    '''Remember a text.'''
    context.filesystem.write("memory.txt", text)
    return "remembered"

def test_the_fixtures_belong_together(wink_run_tool, wink_session, wink_vfs, wink_context, wink_clock):
    wink_clock.advance(5)
    assert wink_run_tool(remember, {"text": "tea"}).text == "remembered"
    assert wink_vfs.read("memory.txt") == "tea"
    assert wink_context.filesystem is wink_vfs
    assert wink_context.session == wink_session
    assert wink_session[ToolInvoked].latest().timestamp == wink_clock.now()

def test_each_test_has_its_own(wink_session, wink_vfs):
    assert wink_vfs.list() == []
    assert wink_session[ToolInvoked].all() == ()
"""


def test_the_plugin_gives_fixtures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's test asks for what it needs by name."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(USER_TEST)

    result = pytester.runpytest_inprocess("-p", "weakincentives.testing.plugin", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2)


def test_pytest_finds_the_plugin_by_itself() -> None:
    """The entry point names the module of the fixtures."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    entry = project["project"]["entry-points"]["pytest11"]

    assert entry == {"weakincentives": "weakincentives.testing.plugin"}
    assert hasattr(import_module(entry["weakincentives"]), "wink_session")


def test_a_vfs_is_an_in_memory_filesystem() -> None:
    """Nothing a test writes touches the disk."""
    assert isinstance(make_vfs(), InMemoryFilesystem)
