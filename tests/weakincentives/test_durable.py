"""Claims about durable runs: what is recorded, how a run is played back to where it stopped, and what is refused."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from weakincentives.adapters import Message, ModelReply, OpenAIAdapter, PromptResponse, ProviderAdapter, Retry, Turn
from weakincentives.adapters.durable import DurableLoop, DurableRunError
from weakincentives.adapters.lease import FileLease
from weakincentives.clock import SystemClock
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import ThrottledError
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import (
    ApprovalPolicy,
    CompletionChecked,
    GuardContext,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    tool,
)
from weakincentives.runtime import (
    MainLoop,
    MainLoopConfig,
    RunFailed,
    Session,
    ToolCall,
    ToolInvoked,
    pending_approvals,
)
from weakincentives.serde import Secret
from weakincentives.testing.adapter_kit import ScriptTurn

from .adapters.loopback.openai_server import OpenAIServer

Said = str | ToolCall | list[ToolCall] | ModelReply | Exception


@dataclass(frozen=True)
class Number:
    value: int


@dataclass(frozen=True)
class Login:
    password: Annotated[str, Secret]


class Model(ProviderAdapter):
    """Says what stands in the script at the number of turns that the conversation has had, and counts how often."""

    def __init__(self, *script: Said, **options: Any) -> None:
        super().__init__(**options)
        self.script: list[Said] = list(script)
        self.asked: list[int] = []
        self.told: list[Message] = []
        self.before: Callable[[int], object] = lambda _: None

    def send(self, turn: Turn) -> ModelReply:
        number = sum(message.role == "assistant" for message in turn.messages) + self.started_over(turn)
        self.asked.append(number)
        self.told = list(turn.messages)
        self.before(number)
        match self.script[number]:
            case Exception() as error:
                self.script[number] = "I can answer now."
                raise error
            case str() as text:
                return ModelReply(text, usage=TokenUsage(10, 1))
            case ModelReply() as reply:
                return reply
            case ToolCall() as call:
                return ModelReply("", (call,), usage=TokenUsage(10, 1))
            case list() as calls:
                return ModelReply("", tuple(calls))

    def started_over(self, turn: Turn) -> int:
        """How many turns were had before the prompt was rendered anew with a section opened."""
        return 1 if "All of it." in turn.system else 0


class Stopping(OpenAIAdapter):
    """Calls the run off in its third turn, once."""

    durable: Any = None

    def send(self, turn: Turn) -> ModelReply:
        reply = super().send(turn)
        if turn.number == 3 and self.durable is not None:
            self.durable.cancel("run")
            self.durable = None
        return reply


class Loop(MainLoop[Any, Any]):
    def __init__(self, model: ProviderAdapter, template: PromptTemplate[Any], **config: Any) -> None:
        super().__init__(adapter=model, config=MainLoopConfig(**config))
        self.template = template

    def prepare(self, request: Any) -> Prompt[Any]:
        return Prompt(self.template)


class Shifted(SystemClock):
    """The time of the day, and then some."""

    shift = 0.0

    def now(self) -> float:
        return super().now() + self.shift


Made = DurableLoop[Any, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    made: list[Made] = []

    def start(loop: MainLoop[Any, Any], **options: Any) -> Made:
        durable = DurableLoop(loop, name="test", folder=tmp_path / "runs", poll_seconds=0.02, **options)
        made.append(durable)
        durable.start()
        return durable

    yield start
    for durable in made:
        durable.stop()


def interrupted(durable: Made, request: object = "go") -> str:
    """Run a request whose model or handler calls it off, until it has stopped; the id to resume it by.

    As when a process is killed, the step in which that happens is not recorded.
    """
    stopped = threading.Event()
    forget = durable.loop.bus.subscribe(RunFailed, lambda _: stopped.set())
    durable.submit(request, request_id="run")
    assert stopped.wait(20)
    forget()
    with pytest.raises(DurableRunError, match=r"^Run run was called off\.$"):
        durable.result("run")
    return "run"


def resumed(durable: Made, request_id: str) -> Any:
    durable.resume(request_id)
    return durable.result(request_id, timeout=20)


def section(*tools: Any, **options: Any) -> MarkdownSection[Any]:
    return MarkdownSection(title="Work", template="Work.", tools=list(tools), **options)


def events(durable: Made, request_id: str) -> list[tuple[str, str]]:
    with Session.open(durable.session_path(request_id)) as session:
        return [(event.tool_name, event.outcome) for event in session[ToolInvoked].all()]


@tool
def add(value: int, context: ToolContext) -> str:
    """Add a number."""
    context.session[Number].append(Number(value))
    return f"{sum(number.value for number in context.session[Number].all())} so far"


def test_a_run_goes_on_where_it_stopped(make: Callable[..., Made]) -> None:
    """Invariant 3: recorded turns and calls are read, and the conversation goes on as if nothing had happened."""
    model = Model(ToolCall("add", {"value": 1}), ToolCall("add", {"value": 2}), "three")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])))
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1] else None
    run = interrupted(durable)

    answer = resumed(durable, run)

    assert (answer.text, answer.turns, answer.usage) == ("three", 3, TokenUsage(30, 3))
    assert model.asked == [0, 1, 1, 2]
    assert [message.text for message in model.told if message.role == "tool"] == ["1 so far", "3 so far"]
    assert events(durable, run) == [("add", "ok"), ("add", "ok")]


def test_a_call_that_was_kept_is_not_made_again(make: Callable[..., Made]) -> None:
    """Invariant 2: the run stops inside a call, which is kept; the next attempt takes its outcome from the session."""
    ran: list[str] = []

    @tool
    def once(context: ToolContext) -> str:
        """Work once."""
        ran.append(context.idempotency_key)
        durable.cancel("run")
        return "worked"

    durable = make(Loop(Model(ToolCall("once"), "done"), PromptTemplate(sections=[section(once)])))
    run = interrupted(durable)

    assert resumed(durable, run).text == "done"
    assert len(ran) == 1


def test_neighbouring_reads_are_one_step_and_the_others_one_each(make: Callable[..., Made]) -> None:
    """Invariant 1: as the pipeline groups them."""

    @tool(effects="none")
    def look(what: str) -> str:
        """Look at something."""
        return f"saw {what}"

    model = Model(
        [ToolCall("look", {"what": "a"}), ToolCall("look", {"what": "b"}), ToolCall("add", {"value": 1})], "done"
    )
    durable = make(Loop(model, PromptTemplate(sections=[section(look, add)])))
    run = durable.submit("go")

    assert durable.result(run, timeout=20).text == "done"
    assert durable.steps(run) == ["begin", "chat", "look look", "add", "chat"]


def test_the_same_id_is_the_same_run(make: Callable[..., Made]) -> None:
    """A client that is not sure whether its request arrived submits it again."""
    model = Model("done")
    durable = make(Loop(model, PromptTemplate(sections=[section()])))

    assert {durable.submit("go", request_id="seven") for _ in range(3)} == {"seven"}
    assert durable.result("seven", timeout=20).text == "done"
    assert (durable.status("seven"), model.asked) == ("done", [0])


def test_an_answer_of_a_type_comes_back_as_that_type(make: Callable[..., Made]) -> None:
    """Structured output is stored with its type."""
    durable = make(Loop(Model('{"value": 4}'), PromptTemplate[Number](sections=[section()])))

    assert durable.result(durable.submit("go"), timeout=20).output == Number(4)


def test_opened_sections_are_opened_again_when_played_back(make: Callable[..., Made]) -> None:
    """A section that the model opened is open in the next attempt, without asking the model."""
    hidden = MarkdownSection(
        title="Hidden", template="All of it.", summary="More.", visibility=SectionVisibility.SUMMARY, tools=[add]
    )
    model = Model(
        ToolCall("open_sections", {"section_keys": ["hidden"]}), ToolCall("add", {"value": 1}), "opened and added"
    )
    durable = make(Loop(model, PromptTemplate(sections=[hidden])))
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1] else None
    run = interrupted(durable)

    assert resumed(durable, run).text == "opened and added"
    assert model.asked == [0, 1, 1, 2]


def test_guards_are_not_asked_again_when_played_back(make: Callable[..., Made]) -> None:
    """An answer that was sent back is sent back in the next attempt too, though the state would satisfy the check by now."""
    asked: list[str] = []

    def has_added(context: GuardContext) -> str | None:
        asked.append(context.answer)
        return None if context.session[Number].all() else "Nothing was added."

    template = PromptTemplate(sections=[section(add)], completion=[has_added])
    model = Model("done", ToolCall("add", {"value": 1}), "really done")
    durable = make(Loop(model, template))
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1, 2] else None
    run = interrupted(durable)

    answer = resumed(durable, run)

    assert (answer.text, answer.unfinished) == ("really done", ())
    assert (asked, model.asked) == (["done", "really done"], [0, 1, 2, 2])
    with Session.open(durable.session_path(run)) as session:
        assert [event.complete for event in session[CompletionChecked].all()] == [False, True]


def test_files_of_the_prompt_are_kept_with_the_run(make: Callable[..., Made]) -> None:
    """Files in memory are attached to the session of the run, so the next attempt has them."""
    write = ToolCall("write_file", {"path": "a.txt", "content": "one"})
    model = Model(write, ToolCall("read_file", {"path": "a.txt"}), "done")
    loop = Loop(model, PromptTemplate())
    loop.prepare = lambda request: Prompt(PromptTemplate(sections=[VfsToolsSection()]))  # type: ignore[method-assign]
    durable = make(loop)
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1] else None
    run = interrupted(durable)

    assert resumed(durable, run).text == "done"
    assert [message.text for message in model.told if message.role == "tool"][-1].endswith("     1\tone")


def test_a_busy_provider_is_asked_again_by_the_clock_of_the_run(make: Callable[..., Made]) -> None:
    """Throttling is recorded, the wait is durable."""
    model = Model(ThrottledError("Too busy.", 0.01), retry=Retry(first=0.01))
    durable = make(Loop(model, PromptTemplate(sections=[section()])))
    run = durable.submit("go")

    assert durable.result(run, timeout=20).text == "I can answer now."
    assert durable.steps(run) == ["begin", "chat", "DBOS.sleep", "chat"]


def test_a_provider_that_uses_an_id_twice_does_not_hide_a_call(make: Callable[..., Made]) -> None:
    """Some servers number their calls anew in each turn; each is run, and recorded under an id of its own."""
    model = Model(ToolCall("add", {"value": 1}, "0"), ToolCall("add", {"value": 2}, "0"), "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])))
    run = durable.submit("go")

    assert durable.result(run, timeout=20).text == "done"
    with Session.open(durable.session_path(run)) as session:
        assert [event.call_id for event in session[ToolInvoked].all()] == ["0", "turn-2-0"]


def test_secret_arguments_are_not_stored_and_a_call_that_lost_them_is_not_run(make: Callable[..., Made]) -> None:
    """Invariant 5: the model reads that it must send them again."""
    ran: list[str] = []

    @tool
    def log_in(password: Annotated[str, Secret]) -> str:
        """Log in."""
        ran.append(password)
        return "in"

    @tool
    def stop() -> str:
        """Stop the run."""
        durable.cancel("run")
        return "stopped"

    model = Model([ToolCall("stop"), ToolCall("log_in", {"password": "hunter2-hunter2"})], "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(stop, log_in)])))
    run = interrupted(durable)

    assert resumed(durable, run).text == "done"
    assert ran == []
    assert model.told[-1].text == (
        "Tool 'log_in' was not run: the run was interrupted, and its secret arguments are never stored. "
        "Call it again with them."
    )
    stored = b"".join(path.read_bytes() for path in Path(durable.folder).rglob("*") if path.is_file())
    assert b"hunter2" not in stored


def test_pending_approvals_are_told(make: Callable[..., Made]) -> None:
    """A run that ends while a call waits for somebody says under which id it waits."""
    model = Model(ToolCall("add", {"value": 1}), "waiting")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)], policies=[ApprovalPolicy(tools=["add"])])))
    run = durable.submit("go")

    (approval_id,) = durable.result(run, timeout=20).pending
    with Session.open(durable.session_path(run)) as session:
        assert [entry.approval_id for entry in pending_approvals(session)] == [approval_id]


def test_the_time_of_a_run_counts_from_its_beginning(make: Callable[..., Made]) -> None:
    """An attempt that takes over does not get the whole time again."""
    model = Model(ToolCall("add", {"value": 1}), "done")
    clock = Shifted()
    durable = make(Loop(model, PromptTemplate(sections=[section(add)]), timeout=60), clock=clock)
    model.before = lambda number: durable.cancel("run")
    run = interrupted(durable)
    clock.shift = 60
    durable.resume(run)

    with pytest.raises(DurableRunError, match=r"^Run run failed: DeadlineExceededError: Deadline exceeded"):
        durable.result(run, timeout=20)


def test_a_budget_counts_turns_that_were_played_back(make: Callable[..., Made]) -> None:
    """Tokens are recorded with each turn."""
    model = Model(ToolCall("add", {"value": 1}), ToolCall("add", {"value": 1}), "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)]), budget=Budget(max_total_tokens=20)))
    model.before = lambda number: durable.cancel("run") if model.asked == [0] else None
    run = interrupted(durable)
    durable.resume(run)

    with pytest.raises(DurableRunError, match="BudgetExceededError"):
        durable.result(run, timeout=20)
    assert model.asked == [0, 0, 1]


def test_a_session_that_is_gone_is_not_made_up(make: Callable[..., Made]) -> None:
    """The records of a run and its session must agree; a run without its session fails and says what to do."""
    model = Model(ToolCall("add", {"value": 1}), "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])))
    model.before = lambda number: durable.cancel("run") if number == 1 else None
    run = interrupted(durable)
    Path(durable.session_path(run)).unlink()
    durable.resume(run)

    with pytest.raises(DurableRunError) as failure:
        durable.result(run, timeout=20)
    assert str(failure.value) == (
        "Run run failed: SessionStorageError: Cannot go on with run run: call turn-1-0 of 'add' is recorded, and its "
        "session does not know of it. Put the session's file back, then retry."
    )


def test_a_carried_session_is_brought_back(make: Callable[..., Made]) -> None:
    """With `carry_sessions` the database has what the lost file had."""
    model = Model(ToolCall("add", {"value": 1}), ToolCall("add", {"value": 2}), "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])), carry_sessions=True)
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1] else None
    run = interrupted(durable)
    Path(durable.session_path(run)).unlink()

    assert resumed(durable, run).text == "done"
    with Session.open(durable.session_path(run)) as session:
        assert session[Number].all() == (Number(1), Number(2))


def test_a_file_that_contradicts_the_database_gives_way(make: Callable[..., Made], tmp_path: Path) -> None:
    """What another machine recorded since counts, not what this one has from an attempt that was given up."""
    model = Model(ToolCall("add", {"value": 1}), ToolCall("add", {"value": 2}), "done")
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])), carry_sessions=True)
    model.before = lambda number: durable.cancel("run") if model.asked == [0, 1] else None
    run = interrupted(durable)
    Path(durable.session_path(run)).unlink()
    with Session.open(durable.session_path(run), session_id=f"test/{run}") as session:
        session[Number].append(Number(99))

    assert resumed(durable, run).text == "done"
    with Session.open(durable.session_path(run)) as session:
        assert session[Number].all() == (Number(1), Number(2))


def test_a_run_that_fails_says_why(make: Callable[..., Made]) -> None:
    """The error of the run is the error of the result."""
    durable = make(Loop(Model(RuntimeError("no such model")), PromptTemplate(sections=[section()])))
    run = durable.submit("go")

    with pytest.raises(DurableRunError) as failure:
        durable.result(run, timeout=20)
    assert str(failure.value) == f"Run {run} failed: RuntimeError: no such model"
    assert durable.status(run) == "failed"
    with pytest.raises(DurableRunError) as refused:
        durable.resume(run)
    assert str(refused.value) == f"Run {run} cannot be resumed: it is failed, not cancelled."


def test_waiting_ends_when_it_takes_too_long(make: Callable[..., Made]) -> None:
    """The run goes on; whoever asked may ask again."""
    go = threading.Event()
    model = Model("done")
    durable = make(Loop(model, PromptTemplate(sections=[section()])))
    model.before = lambda number: go.wait(20)
    run = durable.submit("go")

    with pytest.raises(TimeoutError) as waited:
        durable.result(run, timeout=0.01)
    go.set()
    assert str(waited.value) == f"Run {run} has not ended yet. It goes on; ask for its result again later."
    assert durable.result(run, timeout=20).text == "done"


def test_a_run_that_nobody_submitted_is_unknown(make: Callable[..., Made]) -> None:
    """A wrong id is named, not waited for."""
    durable = make(Loop(Model("done"), PromptTemplate(sections=[section()])))

    with pytest.raises(DurableRunError) as unknown:
        durable.result("nobody")
    assert str(unknown.value) == "There is no run nobody in the queue 'test'. Submit it first."


def test_a_request_with_secrets_cannot_be_queued(tmp_path: Path) -> None:
    """It would have to be stored."""
    durable = DurableLoop(Loop(Model("done"), PromptTemplate()), name="test", folder=tmp_path)

    with pytest.raises(ValueError) as refused:
        durable.submit(Login("hunter2"))
    assert str(refused.value) == (
        "Login has secret fields, which are never stored, so it cannot be queued. Bind the secret as a resource instead."
    )


def test_a_session_of_ones_own_is_refused(make: Callable[..., Made]) -> None:
    """The session of a durable run must be in its records."""

    class Own(Loop):
        def prepare(self, request: Any) -> Any:
            return Prompt(self.template), Session()

    durable = make(Own(Model("done"), PromptTemplate(sections=[section()])))

    with pytest.raises(DurableRunError) as failure:
        durable.result(durable.submit("go", request_id="own"), timeout=20)
    assert str(failure.value) == (
        "Run own failed: TypeError: Own.prepare must return a Prompt alone: a durable run has a session of its own."
    )


def test_an_adapter_with_a_loop_of_its_own_is_refused(tmp_path: Path) -> None:
    """Its turns cannot be recorded one by one."""

    class Whole(Model):
        async def run(self, evaluation: Any, driver: Any) -> PromptResponse[Any]:
            raise AssertionError

    with pytest.raises(TypeError) as refused:
        DurableLoop(Loop(Whole(), PromptTemplate()), name="test", folder=tmp_path)
    assert str(refused.value) == (
        "Whole runs a loop of its own, whose turns cannot be recorded one by one. "
        "Use an adapter that is asked turn by turn, such as OpenAIAdapter."
    )


def test_a_process_serves_one_loop(make: Callable[..., Made], tmp_path: Path) -> None:
    """The engine has one instance per process."""
    make(Loop(Model("done"), PromptTemplate()))
    other = DurableLoop(Loop(Model("done"), PromptTemplate()), name="other", folder=tmp_path / "other")

    with pytest.raises(RuntimeError) as refused:
        other.start()
    assert str(refused.value) == (
        "This process serves the durable loop 'test' already. Stop that one first, or start another process."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "DurableLoop needs a name: the queue that its requests wait in."),
        ({"concurrency": 0}, "concurrency must be 1 or more, got 0."),
        ({"max_attempts": 0}, "max_attempts must be 1 or more, got 0."),
        (
            {"database": "mysql://here"},
            "database must be a postgresql:// address, got 'mysql://here'. Leave it out for SQLite in the folder.",
        ),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """When the loop is made, not when it runs."""
    with pytest.raises(ValueError) as refused:
        DurableLoop(Loop(Model(), PromptTemplate()), **{"name": "test", "folder": tmp_path, **options})
    assert str(refused.value) == message


def test_without_the_engine_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "dbos", None)
    durable = DurableLoop(Loop(Model("done"), PromptTemplate()), name="test", folder=tmp_path)

    with pytest.raises(ImportError) as missing:
        durable.submit("go")
    assert str(missing.value) == "Durable runs need DBOS. Install it: pip install 'weakincentives[durable]'"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_conversation_with_a_real_client_is_played_back(
    make: Callable[..., Made], server: OpenAIServer, api: Literal["chat", "responses"]
) -> None:
    """A strict server, which refuses a call without its result, takes what the next attempt sends."""
    calls = [ScriptTurn(calls=[ToolCall("add", {"value": value})]) for value in (1, 2)]
    stage = server.stage([*calls, ScriptTurn("lost"), ScriptTurn("three")])
    model = Stopping("small-1", base_url=stage.base_url, api_key="any", api=api)
    durable = make(Loop(model, PromptTemplate(sections=[section(add)])))
    model.durable = durable
    run = interrupted(durable)

    assert resumed(durable, run).text == "three"
    lost, sent = ([turn.get("messages") or turn.get("input") for turn in stage.requests])[-2:]
    assert sent == lost
    assert events(durable, run) == [("add", "ok"), ("add", "ok")]


def test_stopping_lets_requests_at_work_end(make: Callable[..., Made]) -> None:
    """A worker that is told to leave finishes what it has begun."""
    begun, go = threading.Event(), threading.Event()
    model = Model("done")
    durable = make(Loop(model, PromptTemplate(sections=[section()])))
    model.before = lambda number: (begun.set(), go.wait(20))
    run = durable.submit("go")
    assert begun.wait(20)
    leaving = threading.Thread(target=durable.stop)
    leaving.start()
    go.set()
    leaving.join()

    assert durable.status(run) == "done"
    durable.close()


def test_a_run_waits_while_another_process_has_its_session(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: it neither fails nor begins, also when its worker leaves meanwhile."""
    model = Model("done")
    durable = make(Loop(model, PromptTemplate(sections=[section()])))
    waiting = threading.Event()

    def heard(record: logging.LogRecord) -> bool:
        waiting.set()
        return True

    monkeypatch.setattr(logging.getLogger("weakincentives.adapters.durable"), "filters", [heard])
    with Session.open(durable.session_path("run"), session_id="test/run"):
        durable.submit("go", request_id="run")
        assert waiting.wait(20)
        durable.stop()
        assert (durable.status("run"), model.asked) == ("running", [])
        durable.close()

    durable.start()
    assert durable.result("run", timeout=20).text == "done"


def test_an_ended_run_can_be_forgotten(make: Callable[..., Made]) -> None:
    """Its records and its session go; one at work stays."""
    go = threading.Event()
    model = Model("done")
    durable = make(Loop(model, PromptTemplate(sections=[section()])))
    model.before = lambda number: go.wait(20)
    durable.submit("go", request_id="run")
    with pytest.raises(
        DurableRunError, match=r"^Run run is (queued|running) and cannot be forgotten\. Cancel it first\.$"
    ):
        durable.forget("run")
    go.set()
    durable.result("run", timeout=20)

    durable.forget("run")

    assert not Path(durable.session_path("run")).exists()
    with pytest.raises(DurableRunError, match=r"^There is no run run"):
        durable.status("run")


def test_files_that_several_runs_would_share_are_refused(make: Callable[..., Made]) -> None:
    """Files in memory belong to one session; a loop makes them in `prepare`."""
    loop = Loop(Model("done"), PromptTemplate(sections=[VfsToolsSection()]))
    durable = make(loop)
    assert durable.result(durable.submit("go"), timeout=20).text == "done"

    with pytest.raises(DurableRunError, match="SessionStorageError: Cannot attach"):
        durable.result(durable.submit("go"), timeout=20)


class TestFileLease:
    """Claims about locks on files."""

    def test_a_name_is_held_by_one(self, tmp_path: Path) -> None:
        """Two leases on one folder are two processes."""
        one, other = FileLease(str(tmp_path)), FileLease(str(tmp_path))

        assert (one.take("a"), other.take("a"), other.take("b")) == (True, False, True)
        one.give_back("a")
        assert other.take("a")
        other.close()

    def test_closing_gives_everything_back(self, tmp_path: Path) -> None:
        """And leaves no files behind."""
        lease = FileLease(str(tmp_path))
        lease.take("a")
        lease.take("b")
        lease.close()

        assert list(tmp_path.iterdir()) == []
