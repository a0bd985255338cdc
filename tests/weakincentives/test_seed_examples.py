"""Claims of the first descriptions of the library, tried the way its first user would write them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import serde
from weakincentives.adapters import Message, ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.dbc import ensure, require
from weakincentives.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    PromptValidationError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, BudgetTracker, Deadline, Heartbeat
from weakincentives.prompt import (
    MarkdownSection,
    PolicyDecision,
    PolicyState,
    Prompt,
    PromptTemplate,
    ReadBeforeWritePolicy,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolExample,
    ToolPolicy,
    ToolResult,
)
from weakincentives.resources import Binding, Closeable, PostConstruct, ResourceRegistry, Scope, Snapshotable
from weakincentives.runtime import (
    CompositeSnapshot,
    EventBus,
    MainLoop,
    MainLoopConfig,
    PendingToolTracker,
    Replace,
    RunContext,
    Session,
    ToolCall,
    ToolInvoked,
    ToolOutcome,
    create_snapshot,
    execute_tool,
    restore_snapshot,
    tool_transaction,
)
from weakincentives.testing import make_context, make_context_with_files, make_session, make_vfs, run_tool

# -- a small library of books: the tools that a user might write ---------------------------------------------------------


class Catalogue:
    """What a handler asks for books."""

    def __init__(self, *titles: str) -> None:
        self.titles = titles

    def find(self, words: str, limit: int) -> tuple[str, ...]:
        return tuple(title for title in self.titles if words in title)[:limit]


@dataclass(slots=True, frozen=True)
class Lookup:
    """Which books to look for."""

    words: str
    """Part of the title."""

    limit: int = 10
    """How many titles at most."""

    exact: bool = False
    shelves: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Books:
    titles: tuple[str, ...]
    total: int

    def render(self) -> str:
        return "\n".join(f"{number}) {title}" for number, title in enumerate(self.titles, 1))


def look_up(params: Lookup, *, context: ToolContext) -> ToolResult[Books]:
    titles = context.resources.get(Catalogue).find(params.words, params.limit)
    return ToolResult.ok(Books(titles=titles, total=len(titles)), message=f"{len(titles)} books")


LOOK_UP = Tool[Lookup, Books](name="look_up", description="Look books up by title.", handler=look_up)


@require(lambda params: 1 <= params.limit <= 50, "limit must be from 1 to 50")
@require(lambda params: params.words.strip() != "", "words cannot be blank")
def search_files(params: Lookup, *, context: ToolContext) -> ToolResult[Books]:
    paths = tuple(context.resources.get(Filesystem).search(params.words, limit=params.limit))
    if not paths:
        return ToolResult.ok(Books((), 0), message=f"Nothing is named like '{params.words}'")
    return ToolResult.ok(Books(paths, len(paths)), message=f"{len(paths)} files")


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepDone:
    step: str


def add_step(view: Any, event: StepDone, *, context: object) -> Replace[Plan]:
    known = view.latest() or Plan(())
    return Replace((Plan((*known.steps, event.step)),))


def planning_session() -> Session:
    session = Session()
    session[Plan].register(StepDone, add_step)
    return session


@dataclass(frozen=True, slots=True)
class Work:
    fail: Literal["", "raise", "answer"] = ""


def work(params: Work, *, context: ToolContext) -> ToolResult[None]:
    context.session.dispatch(StepDone("work"))
    context.resources.get(Filesystem).write("/workspace/half.txt", "half")
    if params.fail == "raise":
        raise ValueError("It broke in the middle")
    if params.fail == "answer":
        return ToolResult.error("It cannot go on")
    return ToolResult.ok(None, message="Worked")


WORK = Tool[Work, None](name="work", description="Do some work.", handler=work)


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    content: str = ""
    overwrite: bool = False


def read_file(params: Page, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(context.resources.get(Filesystem).read(params.path))


def write_file(params: Page, *, context: ToolContext) -> ToolResult[None]:
    fs = context.resources.get(Filesystem)
    if fs.exists(params.path) and not params.overwrite:
        return ToolResult.error(f"{params.path} is there already.\nPass overwrite=true, then retry.")
    fs.write(params.path, params.content)
    return ToolResult.ok(None, message=f"Wrote {params.path}")


READ_FILE = Tool[Page, str](name="read_file", description="Read a file.", handler=read_file)
WRITE_FILE = Tool[Page, None](name="write_file", description="Write a file.", handler=write_file)


def nod(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.ok(None, message="Done")


def nodding(*names: str) -> list[Tool[None, None]]:
    return [Tool[None, None](name=name, description=f"Do {name}.", handler=nod) for name in names]


def prompt_with(
    *tools: Tool[Any, Any], policies: tuple[ToolPolicy, ...] = (), resources: dict[Any, object] | None = None
) -> Prompt[Any]:
    section = MarkdownSection(title="Work", key="work", template="Work well.", tools=tools, policies=policies)
    return Prompt(PromptTemplate(sections=[section])).bind(resources=resources or {})


def run_all(prompt: Prompt[Any], session: Session, *names: str) -> list[str]:
    return [execute_tool(ToolCall(name, {}), prompt=prompt, session=session).text for name in names]


# -- contracts -----------------------------------------------------------------------------------------------------------


def test_a_tool_with_types_runs_with_a_bound_resource() -> None:
    """A prompt that binds an instance by its type lets the handler ask for it; message and value reach the model."""
    prompt = prompt_with(LOOK_UP, resources={Catalogue: Catalogue("owls", "bees", "old owls")})

    outcome = execute_tool(ToolCall("look_up", {"words": "owls"}), prompt=prompt, session=Session())

    assert (outcome.success, outcome.value) == (True, Books(("owls", "old owls"), 2))
    assert outcome.text == "2 books\n\n1) owls\n2) old owls"


@pytest.mark.parametrize("name", ["look_up", "a", "7-z_", "x" * 64])
def test_names_of_the_pattern_are_taken(name: str) -> None:
    """Lower case letters, digits, underscore and hyphen, at most 64 of them, make a name."""
    assert Tool[None, None](name=name, description="Do it.", handler=nod).name == name


@pytest.mark.parametrize("name", ["", "Look", "look up", "look.up", "x" * 65, "look\n"])
def test_other_names_are_refused_when_the_tool_is_built(name: str) -> None:
    """A name outside of the pattern never reaches a prompt."""
    with pytest.raises(PromptValidationError):
        Tool[None, None](name=name, description="Do it.", handler=nod)


def test_a_handler_of_other_types_is_refused_when_the_tool_is_built() -> None:
    """The type arguments are compared with the handler's annotations, not with the first call."""
    with pytest.raises(PromptValidationError, match="handler takes params of type Lookup, but the tool has Page"):
        Tool[Page, Books](name="look_up", description="Look.", handler=look_up)  # type: ignore[arg-type]


def test_a_handler_without_annotations_is_taken_at_its_word() -> None:
    """Handlers written without types work, and `context` may come without a star before it."""

    def plain(params, context):  # type: ignore[no-untyped-def]
        return ToolResult.ok(Books((params.words,), 1))

    tool = Tool[Lookup, Books](name="plain", description="Plain.", handler=plain)

    assert run_tool(tool, {"words": "owls"}).text == "1) owls"


def test_a_tool_that_takes_nothing_and_gives_nothing_is_a_tool() -> None:
    """None stands for both types; the model may send an empty object."""
    assert run_tool(nodding("now")[0], {}).text == "Done"


def test_examples_are_told_in_the_prompt_and_in_the_schema() -> None:
    """An example is seen by a model whichever of the two its provider shows."""
    example = ToolExample(description="Find owls", input=Lookup("owls"), output=Books(("owls",), 1))
    tool = Tool[Lookup, Books](name="look_up", description="Look.", handler=look_up, examples=(example,))

    assert "Find owls" in prompt_with(tool).render().text
    assert tool.spec()["examples"][0]["description"] == "Find owls"
    assert tool.spec()["examples"][0]["output"] == {"titles": ["owls"], "total": 1}


def test_the_schema_tells_types_defaults_and_the_strings_under_fields() -> None:
    """What a provider is sent describes every field as the dataclass does."""
    properties = LOOK_UP.spec()["parameters"]["properties"]

    assert properties["words"] == {"type": "string", "description": "Part of the title."}
    assert (properties["limit"]["type"], properties["limit"]["default"]) == ("integer", 10)
    assert LOOK_UP.spec()["parameters"]["required"] == ["words"]


# -- context -------------------------------------------------------------------------------------------------------------


def test_a_context_takes_every_field_that_was_described() -> None:
    """All the fields can be given by hand and are found again under their names."""
    session, fs, tracker, deadline = Session(), make_vfs(), BudgetTracker(Budget()), Deadline.after(60)
    beats, run = Heartbeat(), RunContext(run_id="r")

    context = ToolContext(
        prompt=None,
        rendered_prompt=None,
        adapter=None,
        session=session,
        deadline=deadline,
        heartbeat=beats,
        run_context=run,
        resources={Filesystem: fs},
        budget_tracker=tracker,
    )

    assert (context.session, context.deadline, context.heartbeat, context.run_context) == (
        session,
        deadline,
        beats,
        run,
    )
    assert (context.prompt, context.rendered_prompt, context.adapter) == (None, None, None)
    assert context.filesystem is fs
    assert context.budget_tracker is tracker


@pytest.mark.parametrize("form", ["mapping", "registry", "open"])
def test_a_handler_is_tested_alone_with_any_form_of_resources(form: str) -> None:
    """A context made by hand takes instances by type, a registry, or an open context."""
    registry = ResourceRegistry.of(Binding(Catalogue, lambda r: Catalogue("owls")))
    resources = {"mapping": {Catalogue: Catalogue("owls")}, "registry": registry, "open": registry.open()}[form]

    result = look_up(Lookup("owls"), context=ToolContext(session=Session(), resources=resources))

    assert result.value == Books(("owls",), 1)


def test_a_handler_finds_the_run_it_is_part_of() -> None:
    """Prompt, rendered prompt, adapter and session of the run are in the context of each of its calls."""
    seen: list[ToolContext] = []

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        seen.append(context)
        return ToolResult.ok(None)

    prompt, session = prompt_with(Tool[None, None](name="look", description="Look.", handler=look)), Session()
    with ScriptedAdapter([ToolCall("look", {}), "Seen."]) as adapter:
        adapter.evaluate(prompt, session=session)

    assert seen[0].prompt is prompt
    assert seen[0].adapter is adapter
    assert seen[0].session == session
    assert [tool.name for tool in seen[0].rendered_prompt.tools] == ["look"]


def test_a_beat_in_a_handler_reaches_the_heartbeat() -> None:
    """A long operation keeps its lease by beating."""
    beats, heard = Heartbeat(), list[str]()
    beats.add_callback(lambda: heard.append("beat"))

    def slow(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.beat()
        return ToolResult.ok(None)

    run_tool(Tool[None, None](name="slow", description="Slow.", handler=slow), heartbeat=beats)

    assert heard == ["beat"]


# -- resources -----------------------------------------------------------------------------------------------------------


class Connection:
    """A resource that says what happens to it."""

    def __init__(self, story: list[str], name: str = "connection") -> None:
        self.story, self.name = story, name
        story.append(f"{name} made")

    def post_construct(self) -> None:
        self.story.append(f"{self.name} ready")

    def close(self) -> None:
        self.story.append(f"{self.name} closed")


class Trace:
    def __init__(self, story: list[str]) -> None:
        self.story = story

    def close(self) -> None:
        self.story.append("trace closed")


def test_a_registry_builds_what_is_asked_for_and_closes_it_in_the_end() -> None:
    """Dependencies are made on the way, `post_construct` runs before use, scopes close before the whole."""
    story: list[str] = []
    registry = ResourceRegistry.of(
        Binding(list, lambda r: story),
        Binding(Connection, lambda r: Connection(r.get(list))),
        Binding(Trace, lambda r: Trace(r.get(list)), scope=Scope.TOOL_CALL),
    )

    with registry.open() as context:
        context.get(Connection)
        with context.tool_scope() as scope:
            scope.get(Trace)
        story.append("scope left")

    assert story == ["connection made", "connection ready", "trace closed", "scope left", "connection closed"]


def test_each_scope_lives_as_long_as_described() -> None:
    """One singleton for all calls, one tool-call resource per call, one prototype per access."""
    got: list[tuple[Any, ...]] = []

    class Single: ...

    class PerCall: ...

    class PerAccess: ...

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        kinds = (Single, PerCall, PerAccess)
        got.append(tuple(context.resources.get(kind) for kind in kinds for _ in range(2)))
        return ToolResult.ok(None)

    tool = Tool[None, None](name="look", description="Look.", handler=look)
    prompt = prompt_with(
        tool,
        resources={
            Single: Binding(Single, lambda r: Single()),
            PerCall: Binding(PerCall, lambda r: PerCall(), scope=Scope.TOOL_CALL),
            PerAccess: Binding(PerAccess, lambda r: PerAccess(), scope=Scope.PROTOTYPE),
        },
    )
    with prompt.resources:
        run_all(prompt, Session(), "look", "look")

    (single, same, mine, still_mine, new, newer), (again, _, other, *_) = got
    assert single is same is again
    assert mine is still_mine
    assert mine is not other
    assert new is not newer


def test_resources_bound_to_a_prompt_may_depend_on_each_other() -> None:
    """A binding's function gets a resolver that knows the other bindings of the prompt."""
    story: list[str] = []
    resources: dict[Any, object] = {
        str: Binding(str, lambda r: "main"),
        Connection: Binding(Connection, lambda r: Connection(story, r.get(str))),
    }
    prompt = prompt_with(resources=resources)

    with prompt.resources:
        assert prompt.resources.get(Connection).name == "main"

    assert story == ["main made", "main ready", "main closed"]


def test_an_instance_the_user_made_is_the_users_to_close() -> None:
    """A resource passed in already built outlives the prompt's resources."""
    story: list[str] = []
    prompt = prompt_with(resources={Connection: Connection(story)})

    with prompt.resources:
        ScriptedAdapter(["Hello."]).evaluate(prompt, session=Session())

    assert story == ["connection made"]


def test_lifecycle_protocols_are_there_to_be_named() -> None:
    """A class with the methods satisfies the protocols without inheriting from them."""

    class Box:
        def snapshot(self) -> object: ...
        def restore(self, snapshot: object) -> None: ...

    connection: Closeable = Connection([])
    ready: PostConstruct = Connection([])
    assert connection is not ready
    assert isinstance(Box(), Snapshotable)


# -- results -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bare:
    number: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Books(("owls",), 1), "1) owls"),
        (Bare(3), '{"number": 3}'),
        ({"number": 3}, '{"number": 3}'),
        (["owls", "bees"], "owls\nbees"),
        ("as it is", "as it is"),
        (None, ""),
    ],
)
def test_every_kind_of_value_has_its_text(value: object, text: str) -> None:
    """The six rules, from a dataclass that renders itself to no value at all."""
    assert ToolResult.ok(value).render() == text


def test_a_value_kept_out_of_the_context_stays_in_the_event() -> None:
    """The model reads the message alone; whoever reads the log finds the value."""

    def read(params: None, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(message="Read 9000 bytes", value="x" * 9000, success=True, exclude_value_from_context=True)

    session = Session()
    outcome = run_tool(Tool[None, str](name="read", description="Read.", handler=read), session=session)

    assert outcome.text == "Read 9000 bytes"
    event = session[ToolInvoked].latest()
    assert event is not None
    assert event.result is not None
    assert event.result.value == "x" * 9000


def test_the_long_form_of_a_result_needs_message_and_value_only() -> None:
    """Success and a value for the model are the defaults."""
    assert ToolResult(message="m", value=1) == ToolResult.ok(1, message="m")


def test_an_error_has_a_message_and_no_value() -> None:
    """The short form of a failure."""
    assert ToolResult.error("Gone") == ToolResult(message="Gone", value=None, success=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, DeadlineExceededError])
def test_safety_exceptions_pass_through_after_the_rollback(error: type[BaseException]) -> None:
    """What asks the program to stop is not turned into a result."""
    fs = make_vfs()

    def stop(params: None, *, context: ToolContext) -> ToolResult[None]:
        fs.write("a.txt", "half")
        raise error

    with pytest.raises(error):
        run_tool(Tool[None, None](name="stop", description="Stop.", handler=stop), fs=fs)

    assert not fs.exists("a.txt")


@pytest.mark.parametrize("error", [VisibilityExpansionRequired(), PromptEvaluationError("over")])
def test_errors_of_the_evaluation_are_raised_again(error: Exception) -> None:
    """They belong to the loop around the call, not to the model."""

    def stop(params: None, *, context: ToolContext) -> ToolResult[None]:
        raise error

    with pytest.raises(type(error)) as raised:
        run_tool(Tool[None, None](name="stop", description="Stop.", handler=stop))

    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolValidationError("Not like this"), "Not like this"),
        (ValueError("Paths begin with /safe/"), "Paths begin with /safe/"),
        (TypeError("odd"), "Tool 'fail' raised TypeError: odd"),
        (RuntimeError("disk full"), "Internal error: disk full"),
        (AssertionError("empty"), "Internal error: empty"),
    ],
)
def test_other_exceptions_become_failures(error: Exception, text: str) -> None:
    """Expected ones are told plainly, unexpected ones as internal errors; the run goes on."""

    def fail(params: None, *, context: ToolContext) -> ToolResult[None]:
        raise error

    outcome = run_tool(Tool[None, None](name="fail", description="Fail.", handler=fail))

    assert (outcome.success, outcome.text) == (False, text)


def test_a_result_that_contradicts_itself_is_an_error() -> None:
    """A check in the result's own `__post_init__` is a failure of the call."""

    @dataclass(frozen=True)
    class Count:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(f"number cannot be {self.number}")

    def count(params: None, *, context: ToolContext) -> ToolResult[Count]:
        return ToolResult.ok(Count(-1))

    outcome = run_tool(Tool[None, Count](name="count", description="Count.", handler=count))

    assert (outcome.success, outcome.text) == (False, "number cannot be -1")


# -- validation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "details"),
    [
        ({"words": "a", "limit": "10"}, {"limit": "Expected type integer, got string '10'"}),
        ({"words": None}, {"words": "Expected type string, got null"}),
        ({"words": "a", "exact": "true"}, {"exact": "Expected type boolean, got string 'true'"}),
        ({"words": "a", "shelves": ["x", 7]}, {"shelves[1]": "Expected type string, got integer 7"}),
        (
            {"limit": 1.5, "words": 2},
            {"limit": "Expected type integer, got number 1.5", "words": "Expected type string, got integer 2"},
        ),
    ],
)
def test_wrong_types_are_told_all_at_once(arguments: dict[str, object], details: dict[str, str]) -> None:
    """The model reads one JSON object with an entry for each bad field, and the handler never runs."""
    text = json.loads(run_tool(LOOK_UP, arguments).text)

    assert text == {"error": "Invalid parameters for tool 'look_up'", "details": details}


def test_a_value_outside_of_a_literal_is_told_with_the_choices() -> None:
    """A limited set of values is checked before the handler."""

    @dataclass(frozen=True)
    class Ship:
        environment: Literal["development", "staging", "production"]

    def ship(params: Ship, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None)

    outcome = run_tool(Tool[Ship, None](name="ship", description="Ship.", handler=ship), {"environment": "prod"})

    told = json.loads(outcome.text)["details"]["environment"]
    assert told == "environment must be one of: development, staging, production"


@pytest.mark.parametrize("limit", [0, -1, 51, 500])
def test_a_precondition_answers_when_the_handler_is_called_directly(limit: int) -> None:
    """A decorated handler returns the failure, as it does in a run."""
    result = search_files(Lookup("owls", limit=limit), context=make_context())

    assert result == ToolResult.error("Precondition failed: limit must be from 1 to 50")


@pytest.mark.parametrize("words", ["", "   ", "\t\n"])
def test_a_precondition_answers_in_the_pipeline(words: str) -> None:
    """The model reads which rule it broke."""
    tool = Tool[Lookup, Books](name="search_files", description="Search.", handler=search_files)

    assert run_tool(tool, {"words": words}).text == "Precondition failed: words cannot be blank"


def test_a_postcondition_is_checked_on_what_the_handler_returns() -> None:
    """A handler that breaks its promise has failed."""

    @ensure(lambda result: result.message != "", "every result needs a message")
    def mute(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None)

    assert mute(None, context=make_context()).message == "Postcondition failed: every result needs a message"


def test_finding_nothing_is_no_error() -> None:
    """An empty answer is a success that says so."""
    result = search_files(Lookup("owls"), context=make_context_with_files(["bees.txt"]))

    assert (result.success, result.value, result.message) == (True, Books((), 0), "Nothing is named like 'owls'")


def test_files_by_name_are_there_for_the_handler() -> None:
    """A test needs only the names of files that should exist."""
    result = search_files(Lookup("owl"), context=make_context_with_files(["owls.py", "old/owl.md", "bees.py"]))

    assert result.value == Books(("old/owl.md", "owls.py"), 2)


@given(words=st.text(), limit=st.integers())
def test_a_handler_with_contracts_never_raises(words: str, limit: int) -> None:
    """Whatever its parameters, it answers with a message, and without a value when it failed."""
    result = search_files(Lookup(words, limit=limit), context=make_context_with_files(["owls.py"]))

    assert result.message
    assert result.success or result.value is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_no_arguments_of_a_model_raise(arguments: Any) -> None:
    """Any JSON at all gives an outcome with a text."""
    outcome = run_tool(LOOK_UP, arguments, resources={Catalogue: Catalogue()})

    assert outcome.outcome in ("ok", "invalid_params")
    assert outcome.text


def test_parse_refuses_what_the_class_does_not_have() -> None:
    """`serde.parse` forbids extra keys unless told otherwise, and `dump` is its way back."""
    with pytest.raises(serde.ParseError):
        serde.parse(Lookup, {"words": "a", "colour": "red"}, extra="forbid")

    assert serde.parse(Lookup, serde.dump(Lookup("a", shelves=("b",)))) == Lookup("a", shelves=("b",))


# -- transactions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", ["raise", "answer"])
def test_a_failed_call_leaves_neither_state_nor_files(fail: str) -> None:
    """Raising and answering with an error take back the same; the log keeps the failure."""
    session, fs = planning_session(), make_vfs()
    session[Plan].seed(Plan(("start",)))

    result = WORK(Work(fail=fail), context=make_context(session=session, fs=fs))  # type: ignore[arg-type]

    assert not result.success
    assert session[Plan].all() == (Plan(("start",)),)
    assert not fs.exists("/workspace/half.txt")
    assert [event.success for event in session[ToolInvoked].all()] == [False]


def test_a_call_that_succeeds_is_kept_and_recorded_once() -> None:
    """State, file and event are all there afterwards."""
    session, fs = planning_session(), make_vfs()
    session[Plan].seed(Plan(("start",)))

    result = WORK(Work(), context=make_context(session=session, fs=fs))

    assert result.success
    assert session[Plan].latest() == Plan(("start", "work"))
    assert fs.read("/workspace/half.txt") == "half"
    assert [event.success for event in session[ToolInvoked].all()] == [True]


class Workplace:
    """A session and a filesystem that manual transactions work on."""

    def __init__(self) -> None:
        self.session = planning_session()
        self.fs = InMemoryFilesystem()
        self.prompt = prompt_with(resources={Filesystem: self.fs})

    def work(self, step: str) -> None:
        self.session.dispatch(StepDone(step))
        self.fs.write(f"{step}.txt", step)

    @property
    def done(self) -> tuple[tuple[str, ...], list[str]]:
        plan = self.session[Plan].latest()
        return (() if plan is None else plan.steps), list(self.fs.glob("*.txt"))


def test_a_block_is_kept_on_normal_exit_and_taken_back_by_an_exception() -> None:
    """The first manual form: a context manager."""
    place = Workplace()
    with place.prompt.resources as resources:
        with tool_transaction(place.session, resources, tag="kept"):
            place.work("one")
        with pytest.raises(RuntimeError), tool_transaction(place.session, resources, tag="lost"):
            place.work("two")
            raise RuntimeError

    assert place.done == (("one",), ["one.txt"])


def test_a_block_can_go_back_to_its_start_and_end_normally() -> None:
    """The snapshot a block yields is good for a rollback by hand."""
    place = Workplace()
    with place.prompt.resources as resources, tool_transaction(place.session, resources, tag="try") as snapshot:
        place.work("one")
        restore_snapshot(place.session, resources, snapshot)
        place.work("two")

    assert place.done == (("two",), ["two.txt"])


def test_a_snapshot_brings_session_and_files_back() -> None:
    """The second manual form: create and restore."""
    place = Workplace()
    place.work("one")
    with place.prompt.resources as resources:
        snapshot = create_snapshot(place.session, resources, tag="checkpoint")
        place.work("two")
        restore_snapshot(place.session, resources, snapshot)

    assert isinstance(snapshot, CompositeSnapshot)
    assert place.done == (("one",), ["one.txt"])


@pytest.mark.parametrize(("success", "left"), [(True, (("one",), ["one.txt"])), (False, ((), []))])
def test_a_tracked_call_is_kept_or_taken_back_when_it_ends(success: bool, left: object) -> None:
    """The third manual form: hooks around a call that somebody else executes."""
    place = Workplace()
    with place.prompt.resources as resources:
        tracker = PendingToolTracker(session=place.session, resources=resources)
        tracker.begin_tool_execution(tool_use_id="abc", tool_name="write_file")
        place.work("one")
        tracker.end_tool_execution(tool_use_id="abc", success=success)

    assert place.done == left
    assert [(event.tool_name, event.call_id, event.success) for event in place.session[ToolInvoked].all()] == [
        ("write_file", "abc", success)
    ]


def test_a_tracked_call_can_be_aborted() -> None:
    """A native tool that was stopped leaves nothing and is recorded as cancelled."""
    place = Workplace()
    tracker = PendingToolTracker(session=place.session, resources=place.prompt.resources)
    tracker.begin_tool_execution(tool_use_id="abc", tool_name="write_file")
    place.work("one")
    tracker.abort_tool_execution(tool_use_id="abc")

    assert place.done == ((), [])
    assert [event.outcome for event in place.session[ToolInvoked].all()] == ["cancelled"]


# -- policies ------------------------------------------------------------------------------------------------------------

SHIPPING = SequentialDependencyPolicy(
    dependencies={"deploy": frozenset({"test", "build"}), "release": frozenset({"deploy"})}
)


def test_a_tool_waits_for_the_tools_it_depends_on() -> None:
    """The denial names what is missing and what to do; when all have succeeded, the tool runs."""
    prompt, session = prompt_with(*nodding("deploy", "test", "build"), policies=(SHIPPING,)), Session()

    denied, _, still_denied, _, deployed = run_all(prompt, session, "deploy", "test", "deploy", "build", "deploy")

    assert denied == (
        "Cannot call 'deploy' - missing required tools: build, test\nCall these tools first, then retry deploy."
    )
    assert still_denied.startswith("Cannot call 'deploy' - missing required tools: build\n")
    assert deployed == "Done"


def test_dependencies_chain() -> None:
    """A tool that depends on a dependent tool waits for both."""
    prompt, session = prompt_with(*nodding("deploy", "test", "build", "release"), policies=(SHIPPING,)), Session()

    first, *_, last = run_all(prompt, session, "release", "test", "build", "deploy", "release")

    assert first.startswith("Cannot call 'release' - missing required tools: deploy\n")
    assert last == "Done"


def test_what_a_policy_remembers_is_a_slice_and_is_reset_with_the_session() -> None:
    """`PolicyState` tells which tools have succeeded, until `session.reset()`."""
    prompt, session = prompt_with(*nodding("deploy", "test", "build"), policies=(SHIPPING,)), Session()
    run_all(prompt, session, "test", "build")

    state = session[PolicyState].latest()
    assert state is not None
    assert state.invoked_tools == {"test", "build"}

    session.reset()
    assert run_all(prompt, session, "deploy")[0].startswith("Cannot call 'deploy'")


def test_one_policy_serves_sessions_that_know_nothing_of_each_other() -> None:
    """Policies hold no state of their own."""
    prompt = prompt_with(*nodding("deploy", "test", "build"), policies=(SHIPPING,))
    run_all(prompt, Session(), "test", "build")

    assert run_all(prompt, Session(), "deploy")[0].startswith("Cannot call 'deploy'")


def test_an_existing_file_is_read_before_it_is_written() -> None:
    """Denied unread, allowed once read; a new file is free."""
    prompt = prompt_with(
        READ_FILE,
        WRITE_FILE,
        policies=(ReadBeforeWritePolicy(),),
        resources={Filesystem: make_vfs({"config.json": "{}"})},
    )
    session = Session()

    def call(name: str, **arguments: object) -> ToolOutcome:
        return execute_tool(ToolCall(name, arguments), prompt=prompt, session=session)

    denied = call("write_file", path="config.json", content="new", overwrite=True)
    assert (denied.outcome, denied.text) == ("denied", "Cannot write to config.json without reading it first")
    assert call("read_file", path="config.json").success
    assert call("write_file", path="config.json", content="new", overwrite=True).success
    assert call("write_file", path="notes.txt", content="new").success


class CallsSoFar:
    """A policy that counts events, in the form with a tool's name and a text as answer."""

    def __init__(self, most: int) -> None:
        self.most = most

    def check(self, tool_name: str, params: object, context: ToolContext) -> str | None:
        used = len(list(context.session[ToolInvoked].all()))
        return f"{tool_name}: {used} of {self.most} calls are used up" if used >= self.most else None


class CallsPerMinute:
    """A policy that compares the times of events with the wall clock."""

    def __init__(self, most: int) -> None:
        self.most = most

    def check(self, tool_name: str, params: object, context: ToolContext) -> str | None:
        since = time.time() - 60
        recent = [e for e in context.session[ToolInvoked].all() if e.tool_name == tool_name and e.timestamp >= since]
        return None if len(recent) < self.most else f"{len(recent)} calls of {tool_name} within a minute"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [(CallsSoFar(2), "a: 2 of 2 calls are used up"), (CallsPerMinute(2), "2 calls of a within a minute")],
)
def test_a_policy_of_ones_own_may_answer_with_a_text(policy: Any, reason: str) -> None:
    """None lets the call pass, a text is the reason of the denial, and events can be counted."""
    prompt = prompt_with(*nodding("a"), policies=(policy,))

    assert run_all(prompt, Session(), "a", "a", "a") == ["Done", "Done", reason]


def test_times_of_events_are_times_of_the_clock_on_the_wall() -> None:
    """Whoever filters events by `time.time()` gets those of the last minute."""
    session = Session()
    before = time.time()
    run_tool(nodding("a")[0], session=session)

    event = session[ToolInvoked].latest()
    assert event is not None
    assert before <= event.timestamp <= time.time()


def test_a_policy_of_ones_own_may_decide_and_be_told() -> None:
    """The other form: the tool itself, a decision, and `on_result` after each success."""

    class Once:
        name = "once"

        def __init__(self) -> None:
            self.told: list[str] = []

        def check(self, tool: Tool[Any, Any], params: object, *, context: ToolContext) -> PolicyDecision:
            used = any(event.success and event.tool_name == tool.name for event in context.session[ToolInvoked].all())
            return PolicyDecision(allowed=not used, reason=f"{tool.name} was used" if used else None)

        def on_result(self, tool: Any, params: object, result: ToolResult[Any], *, context: ToolContext) -> None:
            self.told.append(tool.name)

    once = Once()
    prompt = prompt_with(*nodding("a", "b"), policies=(once,))

    assert run_all(prompt, Session(), "a", "a", "b") == ["Done", "a was used", "Done"]
    assert once.told == ["a", "b"]


def test_the_first_policy_that_denies_ends_it() -> None:
    """Policies are asked in order, those of the section before those of the prompt."""
    asked: list[str] = []

    class Says:
        def __init__(self, word: str, answer: str | None) -> None:
            self.word, self.answer = word, answer

        def check(self, tool_name: str, params: object, context: ToolContext) -> str | None:
            asked.append(self.word)
            return self.answer

    section = MarkdownSection(
        title="Work", template="Work.", tools=nodding("a"), policies=(Says("first", None), Says("second", "No."))
    )
    prompt = Prompt(PromptTemplate(sections=[section], policies=[Says("prompt", None)]))

    assert run_all(prompt, Session(), "a") == ["No."]
    assert asked == ["first", "second"]


# -- sections and prompts ------------------------------------------------------------------------------------------------


def test_a_section_brings_tools_and_guidance_together() -> None:
    """The text tells how, the tools are offered in the order they stand."""
    section = MarkdownSection(
        title="Shipping",
        key="shipping",
        template="1. **Test** first (`test`)\n2. Costs {about} $5",
        tools=nodding("test", "build"),
    )
    rendered = Prompt(PromptTemplate(sections=[section])).render()

    assert rendered.text == "# Shipping\n\n1. **Test** first (`test`)\n2. Costs {about} $5"
    assert [tool.name for tool in rendered.tools] == ["test", "build"]


def test_a_section_with_params_is_filled_when_the_prompt_is_bound() -> None:
    """`MarkdownSection[Params]` takes its fields from the instance passed to bind."""

    @dataclass(frozen=True)
    class Reader:
        name: str

    section = MarkdownSection[Reader](title="Hello", key="hello", template="Be kind to ${name}.")

    assert Prompt(PromptTemplate(sections=[section])).bind(Reader("Ada")).render().text == "# Hello\n\nBe kind to Ada."


def test_sections_and_tools_can_be_added_when_a_prompt_is_bound() -> None:
    """What one request needs beyond the template comes with `bind`."""
    more = MarkdownSection(title="More", template="More.", tools=nodding("more"))
    prompt = Prompt(PromptTemplate(sections=[])).bind(sections=[more], extra_tools=nodding("extra"))

    assert [tool.name for tool in prompt.render().tools] == ["more", "extra"]


def test_a_tool_name_twice_is_refused() -> None:
    """Two sections cannot offer tools of the same name."""
    sections = [MarkdownSection(title=title, template="x", tools=nodding("same")) for title in ("A", "B")]

    with pytest.raises(PromptValidationError, match="same"):
        Prompt(PromptTemplate(sections=sections))


# -- the loop and its turns ------------------------------------------------------------------------------------------------


def test_a_run_ends_with_the_answer_after_the_model_recovered() -> None:
    """A failed call is told to the model, and the conversation goes on."""
    fs = make_vfs({"a.txt": "old"})
    prompt = prompt_with(READ_FILE, WRITE_FILE, resources={Filesystem: fs})
    turns = [
        ToolCall("write_file", {"path": "a.txt", "content": "new"}),
        ToolCall("write_file", {"path": "a.txt", "content": "new", "overwrite": True}),
        "Written.",
    ]
    session = Session()

    with prompt.resources, ScriptedAdapter(turns) as adapter:
        response = adapter.evaluate(prompt, session=session)

    assert (response.text, fs.read("a.txt")) == ("Written.", "new")
    assert [event.success for event in session[ToolInvoked].all()] == [False, True]


def test_turns_can_be_taken_one_at_a_time() -> None:
    """The caller runs each call of the model and hands its outcome to the next turn."""
    fs = make_vfs({"a.txt": "old"})
    prompt = prompt_with(WRITE_FILE, resources={Filesystem: fs})

    def corrected(messages: Any) -> ToolCall:
        told: Message = messages[-1]
        return ToolCall("write_file", {"path": "a.txt", "content": "new", "overwrite": "overwrite=true" in told.text})

    adapter = ScriptedAdapter([ToolCall("write_file", {"path": "a.txt", "content": "new"}), corrected, "Written."])
    session, steps = make_session(), adapter.stepwise()

    first = steps.evaluate(prompt, session=session)
    assert (first.stop_reason, first.tool_calls[0].name) == ("tool_use", "write_file")
    failed = execute_tool(first.tool_calls[0], session=session)
    assert not failed.success
    second = steps.evaluate(prompt, session=session, tool_results=[failed])
    assert second.tool_calls[0].params["overwrite"] is True
    written = execute_tool(second.tool_calls[0], session=session)
    assert written.success
    assert steps.evaluate(prompt, session=session, tool_results=[written]).stop_reason == "end_turn"


class Settings:
    def __init__(self, url: str) -> None:
        self.url = url


class Asking(MainLoop[str, str]):
    """Asks one tool for what it sees, then answers."""

    def __init__(self, **given: Any) -> None:
        super().__init__(adapter=ScriptedAdapter([ToolCall("look", {}), "Seen."]), **given)
        self.seen: list[tuple[Settings, Connection | None]] = []

    def prepare(self, request: str) -> Prompt[str]:
        def look(params: None, *, context: ToolContext) -> ToolResult[None]:
            self.seen.append((context.resources.get(Settings), context.resources.get_optional(Connection)))
            return ToolResult.ok(None)

        return prompt_with(Tool[None, None](name="look", description="Look.", handler=look))


def test_a_main_loop_binds_and_closes_the_resources_of_its_configuration() -> None:
    """Recipes given to the loop are built for a request and closed after it."""
    story: list[str] = []
    config = MainLoopConfig(
        resources={
            Settings: Binding(Settings, lambda r: Settings("here")),
            Connection: Binding(Connection, lambda r: Connection(story, r.get(Settings).url)),
        }
    )
    loop = Asking(bus=EventBus(), config=config)

    response, session = loop.execute("go")

    assert (response.text, [event.outcome for event in session[ToolInvoked].all()]) == ("Seen.", ["ok"])
    assert story == ["here made", "here ready", "here closed"]


def test_resources_of_a_request_come_on_top_of_those_of_the_loop() -> None:
    """What the request brings is used for it, the rest is the loop's."""
    loop = Asking(bus=EventBus(), config=MainLoopConfig(resources={Settings: Settings("here")}))
    own = Connection([])

    loop.execute("go", resources={Connection: own})

    settings, connection = loop.seen[0]
    assert (settings.url, connection) == ("here", own)


def test_the_bus_of_a_loop_hears_of_every_call() -> None:
    """Whoever subscribes to the loop's bus gets the events of its sessions."""
    bus, heard = EventBus(), list[ToolInvoked]()
    bus.subscribe(ToolInvoked, heard.append)

    Asking(bus=bus, config=MainLoopConfig(resources={Settings: Settings("here")})).execute("go")

    assert [event.tool_name for event in heard] == ["look"]


# -- limits --------------------------------------------------------------------------------------------------------------


def test_a_deadline_that_has_passed_ends_the_run_before_the_handler() -> None:
    """It is raised as what it is, which is an error of the evaluation too."""
    clock = FakeClock()
    deadline = Deadline.after(5, clock)
    clock.advance(6)
    session = make_session(clock=clock)

    with pytest.raises(DeadlineExceededError) as raised:
        run_tool(nodding("a")[0], session=session, deadline=deadline)

    assert isinstance(raised.value, PromptEvaluationError)
    assert [event.outcome for event in session[ToolInvoked].all()] == ["deadline"]


def test_a_budget_that_is_used_up_ends_the_run_before_the_handler() -> None:
    """No tool runs on tokens that are gone."""
    tracker = BudgetTracker(Budget(max_total_tokens=10))
    tracker.add(input_tokens=10, output_tokens=5)

    with pytest.raises(BudgetExceededError):
        run_tool(nodding("a")[0], budget_tracker=tracker)


# -- a user's own resource in a transaction ------------------------------------------------------------------------------


class Counter:
    """A resource with state that a rollback must bring back."""

    def __init__(self) -> None:
        self.value = 0

    @classmethod
    def new(cls) -> Self:
        return cls()

    def snapshot(self) -> object:
        return self.value

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, int)
        self.value = snapshot


@pytest.mark.parametrize("built_before", [True, False])
def test_a_resource_that_can_be_snapshotted_is_rolled_back(built_before: bool) -> None:
    """Also when the failing call was the first to ask for it."""

    def count(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Counter).value += 1
        return ToolResult.error("No.")

    prompt = prompt_with(
        Tool[None, None](name="count", description="Count.", handler=count),
        resources={Counter: Binding(Counter, lambda r: Counter.new())},
    )
    with prompt.resources as resources:
        if built_before:
            resources.get(Counter)
        run_all(prompt, Session(), "count")

        assert resources.get(Counter).value == 0
