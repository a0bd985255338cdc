"""Transactions: blocks of several calls, savepoints, participants, snapshotables, fences; invariants by number."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.errors import FencedWriteError, ReadOnlyError, RollbackError, TransactionError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import ApprovalPolicy, MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.resources import Binding
from weakincentives.resources import Scope as Lifetime
from weakincentives.runtime import (
    Append,
    Compensated,
    Session,
    ToolCall,
    ToolInvoked,
    TransactionRolledBack,
    aexecute_tool,
    execute_tool,
    log_slice,
)
from weakincentives.transaction import Participant, Scope, Snapshotable, Store, current_scope

WAIT = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    name: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    text: str


@log_slice
@dataclass(frozen=True, slots=True)
class Line:
    text: str


class Box:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def snapshot(self) -> int:
        return self.value

    def restore(self, snapshot: int) -> None:
        self.value = snapshot


class Ledger:
    """A participant without savepoints; notes what it is told."""

    def __init__(self, **failing: Exception) -> None:
        self.told: list[str] = []
        self.failing = failing

    def _tell(self, word: str) -> None:
        self.told.append(word)
        if word in self.failing:
            raise self.failing[word]

    def begin(self) -> None:
        self._tell("begin")

    def prepare(self) -> None:
        self._tell("prepare")

    def commit(self) -> None:
        self._tell("commit")

    def rollback(self) -> None:
        self._tell("rollback")


class SavingLedger(Ledger):
    """One that knows savepoints."""

    def savepoint(self) -> int:
        self._tell("savepoint")
        return len(self.told)

    def rollback_to(self, token: int) -> None:
        self._tell(f"rollback_to {token}")


class SecondLedger(Ledger):
    pass


def tool_of(name: str, handler: Callable[..., Any], **options: Any) -> Tool[Step, str]:
    return Tool[Step, str](name=name, description="A step.", handler=handler, **options)


def prompt_of(*tools: Tool[Any, Any], resources: dict[Any, Any] | None = None) -> Prompt[Any]:
    template = PromptTemplate(sections=[MarkdownSection(title="T", template="t", tools=list(tools))])
    return Prompt(template).bind(resources=resources or {})


def note(params: Step, *, context: Any) -> ToolResult[str]:
    context.session[Note].append(Note(params.name))
    return ToolResult.ok(params.name)


def fail(params: Step, *, context: Any) -> ToolResult[str]:
    note(params, context=context)
    return ToolResult.error("failed")


def run(session: Session, tool: Tool[Any, Any], name: str = "", **resources: Any) -> Any:
    return execute_tool(ToolCall(tool.name, {"name": name}), prompt=prompt_of(tool, **resources), session=session)


# -- a scope over stores -------------------------------------------------------------------------------------------------


def test_a_scope_left_without_commit_leaves_the_store_alone() -> None:
    """Invariant 1, at its root: dropping the overlay is the rollback."""
    store: Store[tuple[int, ...]] = Store(())
    scope = Scope()
    store.apply(lambda root: (*root, 1), scope)
    assert store.view(scope) == (1,)
    assert store.committed == ()
    scope.rollback()
    assert store.committed == ()


def test_a_commit_replays_on_what_others_wrote_meanwhile() -> None:
    """Invariant 2: no update is lost, whoever wrote first."""
    store: Store[tuple[int, ...]] = Store(())
    scope = Scope()
    store.apply(lambda root: (*root, 1), scope)
    store.apply(lambda root: (*root, 2), None)
    scope.commit()
    assert store.committed == (2, 1)


def test_nested_scopes_are_savepoints() -> None:
    """Invariant 6: a child's commit is undone by its parent's rollback, a child's rollback leaves the parent."""
    store: Store[tuple[int, ...]] = Store(())
    parent = Scope()
    store.apply(lambda root: (*root, 1), parent)
    kept, dropped = Scope(parent), Scope(parent)
    store.apply(lambda root: (*root, 2), kept)
    kept.commit()
    store.apply(lambda root: (*root, 3), dropped)
    dropped.rollback()
    assert store.view(parent) == (1, 2)
    parent.rollback()
    assert store.committed == ()


def test_stores_of_one_commit_change_together_or_not_at_all() -> None:
    """Invariant 8: a replay that fails in one store leaves the others as they were."""
    first: Store[int] = Store(0)
    second: Store[int] = Store(0)

    def once(root: int) -> int:
        if root:
            raise ValueError("taken")
        return 1

    scope = Scope()
    first.apply(lambda root: root + 1, scope)
    second.apply(once, scope)
    second.apply(lambda root: 5, None)
    with pytest.raises(ValueError, match="taken"):
        scope.commit()
    assert (first.committed, second.committed) == (0, 5)


def test_an_ended_scope_writes_nothing_and_ends_once() -> None:
    """Invariant 7: late writes raise, and so does a second end."""
    store: Store[int] = Store(0)
    scope = Scope()
    scope.commit()
    with pytest.raises(FencedWriteError, match="the tool call this write belongs to has ended"):
        store.apply(lambda root: root + 1, scope)
    with pytest.raises(TransactionError, match=r"Cannot commit: this transaction has already ended\."):
        scope.commit()
    assert store.committed == 0


def test_the_protocols_say_who_takes_part() -> None:
    """Snapshotable and Participant are what a class looks like, not what it inherits."""
    assert isinstance(Box(), Snapshotable)
    assert isinstance(Ledger(), Participant)
    assert not isinstance(Ledger(), Snapshotable)


# -- blocks --------------------------------------------------------------------------------------------------------------


def test_a_block_keeps_all_of_several_calls() -> None:
    """Normal exit keeps everything, and others see it only then."""
    session, tool = Session(), tool_of("note", note)
    with session.transaction():
        run(session, tool, "a")
        run(session, tool, "b")
        assert contextvars.Context().run(session[Note].all) == ()
    assert session[Note].all() == (Note("a"), Note("b"))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError, SystemExit, GeneratorExit])
def test_a_block_left_by_any_exception_keeps_none_and_says_so(error: type[BaseException]) -> None:
    """S4, S45: LOG stays, STATE and files go, and one TransactionRolledBack names the calls."""
    session, tool, files = Session(), tool_of("note", note), InMemoryFilesystem({"f": "0"})
    with pytest.raises(error), session.transaction(tag="import"):
        outcome = run(session, tool, "a")
        files.write("f", "1")
        session[Line].append(Line("history"))
        raise error("why")
    assert session[Note].all() == ()
    assert files.read("f") == "0"
    assert session[Line].all() == (Line("history"),)
    assert [event.outcome for event in session[ToolInvoked].all()] == ["ok"]
    [event] = session[TransactionRolledBack].all()
    assert (event.call_ids, event.tag) == ((outcome.call_id,), "import")
    assert event.session_id == session.session_id
    assert event.reason == error.__name__


def test_a_block_can_be_taken_back_without_an_exception() -> None:
    """`transaction.rollback()` decides the end of the block."""
    session = Session()
    with session.transaction() as transaction:
        session[Note].append(Note("a"))
        transaction.rollback()
        assert session[Note].all() == (Note("a"),)
    assert session[Note].all() == ()


def test_an_async_block_works_the_same() -> None:
    """`async with` keeps and drops like `with`."""
    session, tool = Session(), tool_of("note", note)
    prompt = prompt_of(tool)

    async def main() -> None:
        async with session.transaction():
            await aexecute_tool(ToolCall("note", {"name": "kept"}), prompt=prompt, session=session)
        with contextlib.suppress(LookupError):
            async with session.transaction():
                await aexecute_tool(ToolCall("note", {"name": "dropped"}), prompt=prompt, session=session)
                raise LookupError

    asyncio.run(main())
    assert session[Note].all() == (Note("kept"),)


def test_a_failed_call_inside_a_block_takes_back_only_itself() -> None:
    """The block goes on after a failed call: calls are savepoints in it."""
    session = Session()
    with session.transaction():
        run(session, tool_of("note", note), "a")
        assert run(session, tool_of("fail", fail), "b").outcome == "failed"
        run(session, tool_of("note", note), "c")
    assert session[Note].all() == (Note("a"), Note("c"))


def test_blocks_nest_as_savepoints() -> None:
    """An inner block that fails leaves the outer one its writes; an outer one that fails takes the inner's along."""
    session = Session()
    with contextlib.suppress(KeyError), session.transaction():
        session[Note].append(Note("outer"))
        with contextlib.suppress(ValueError), session.transaction():
            session[Note].append(Note("inner"))
            raise ValueError
        assert session[Note].all() == (Note("outer"),)
        with session.transaction():
            session[Note].append(Note("kept for now"))
        assert len(session[Note]) == 2
        raise KeyError
    assert session[Note].all() == ()


def test_a_block_serves_once() -> None:
    """A used transaction is refused with a word about what to do."""
    transaction = Session().transaction()
    with transaction:
        pass
    with (
        pytest.raises(
            TransactionError, match=r"This transaction was used before; ask session\.transaction\(\) for a new one\."
        ),
        transaction,
    ):
        pass


def test_a_block_inside_a_read_only_call_is_refused() -> None:
    """`effects="none"` may not open transactions."""

    def sneak(params: Step, *, context: Any) -> ToolResult[str]:
        with context.session.transaction():
            return ToolResult.ok("never")

    outcome = run(Session(), tool_of("sneak", sneak, effects="none"))
    assert 'this tool is declared effects="none"' in outcome.text


def test_a_tool_that_can_write_is_not_called_from_a_read_only_one() -> None:
    """Refused before its handler runs, with a word about why; the read-only call goes on."""
    ran: list[str] = []

    def write(params: Step, *, context: Any) -> ToolResult[str]:
        ran.append("handler")
        return ToolResult.ok("x")

    inner = tool_of("write", write)

    def read(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok(inner(Step(), context=context).message)

    outcome = execute_tool(
        ToolCall("read", {}), prompt=prompt_of(inner, tool_of("read", read, effects="none")), session=Session()
    )
    assert outcome.value == (
        "Cannot call 'write' here: the tool call around it is declared effects=\"none\" and may not write."
    )
    assert ran == []


def test_a_block_may_end_in_another_task_than_it_began() -> None:
    """An async fixture enters in one task and leaves in another: kept, and the session is free again."""
    session = Session()

    async def main() -> None:
        transaction = session.transaction()

        async def begin() -> None:
            await transaction.__aenter__()
            session[Note].append(Note("a"))

        await asyncio.create_task(begin())
        await asyncio.create_task(transaction.__aexit__(None, None, None))
        async with session.transaction():
            pass

    asyncio.run(main())
    assert session[Note].all() == (Note("a"),)


def test_an_interrupt_while_waiting_for_the_block_leaves_nothing_behind() -> None:
    """Cancelled in the queue: the holder goes on, and the next one gets in."""
    session = Session()

    async def main() -> None:
        async with session.transaction():
            waiting = contextvars.Context().run(asyncio.ensure_future, session.transaction().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with session.transaction():
            pass

    asyncio.run(main())


def test_a_bystanders_write_survives_the_rollback_of_a_block() -> None:
    """S7: a rollback removes only its own writes, in slices and in files."""
    session, files = Session(), InMemoryFilesystem()
    with contextlib.suppress(KeyError), session.transaction():
        session[Note].append(Note("mine"))
        files.write("mine", "x")
        thread = threading.Thread(target=lambda: (session[Note].append(Note("theirs")), files.write("theirs", "x")))
        thread.start()
        thread.join()
        raise KeyError
    assert session[Note].all() == (Note("theirs"),)
    assert files.glob("**/*") == ["theirs"]


# -- resources -----------------------------------------------------------------------------------------------------------


def test_a_snapshotable_given_to_a_block_is_put_back() -> None:
    """An instance, a mapping or a prompt's resources: all are covered."""
    single, mapped, bound = Box(), Box(), Box()
    prompt = prompt_of(resources={Box: bound})
    session = Session()
    with contextlib.suppress(KeyError), session.transaction(single, {"any": mapped}, prompt.resources):
        single.value = mapped.value = bound.value = 7
        raise KeyError
    assert (single.value, mapped.value, bound.value) == (0, 0, 0)


def test_a_singleton_first_built_in_a_block_goes_back_to_its_beginning() -> None:
    """Invariant 3."""
    prompt = prompt_of(resources={Box: Binding(Box, lambda _: Box(3))})
    session = Session()
    with contextlib.suppress(KeyError), session.transaction(prompt.resources):
        prompt.resources.get(Box).value = 9
        raise KeyError
    assert prompt.resources.get(Box).value == 3


def test_a_singleton_first_built_by_a_failing_call_goes_back_to_its_beginning() -> None:
    """Invariant 3, for a call; the instance stays."""
    built: list[Box] = []

    def build(_: object) -> Box:
        built.append(Box(3))
        return built[-1]

    def change(params: Step, *, context: Any) -> ToolResult[str]:
        context.resources.get(Box).value = 9
        return ToolResult.error("no")

    prompt = prompt_of(tool_of("change", change), resources={Box: Binding(Box, build)})
    execute_tool(ToolCall("change", {}), prompt=prompt, session=Session())
    assert [box.value for box in built] == [3]
    assert prompt.resources.get(Box) is built[0]


def test_a_singleton_another_session_builds_meanwhile_is_put_back_too() -> None:
    """One prompt, two sessions: whoever built it, what my failed call did to it is undone."""
    running, built = threading.Event(), threading.Event()

    def change(params: Step, *, context: Any) -> ToolResult[str]:
        running.set()
        assert built.wait(WAIT)
        context.resources.get(Box).value = 9
        return ToolResult.error("no")

    def build(params: Step, *, context: Any) -> ToolResult[str]:
        return ToolResult.ok(str(context.resources.get(Box).value))

    prompt = prompt_of(
        tool_of("change", change), tool_of("build", build), resources={Box: Binding(Box, lambda _: Box())}
    )
    thread = threading.Thread(
        target=execute_tool, args=(ToolCall("change", {}),), kwargs={"prompt": prompt, "session": Session()}
    )
    thread.start()
    assert running.wait(WAIT)
    execute_tool(ToolCall("build", {}), prompt=prompt, session=Session())
    built.set()
    thread.join()
    assert prompt.resources.get(Box).value == 0


def test_a_block_inside_a_handler_covers_what_the_call_shares() -> None:
    """`context.resources` is enough for a savepoint: singletons and the call's own instances go back together."""
    box = Box()

    class Own(Box):
        pass

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        context.resources.get(Own).value = 1
        with contextlib.suppress(KeyError), context.session.transaction(context.resources):
            context.resources.get(Box).value = context.resources.get(Own).value = 9
            raise KeyError
        return ToolResult.ok(str(context.resources.get(Own).value))

    own = Binding(Own, lambda _: Own(), scope=Lifetime.TOOL_CALL)
    assert run(Session(), tool_of("h", handler), resources={Box: box, Own: own}).value == "1"
    assert box.value == 0


def test_a_call_that_waits_for_approval_undoes_nothing_of_the_call_before_it() -> None:
    """What an approver looks at while another call writes is not put back when the approval is refused."""
    session, running, looked = Session(), threading.Event(), threading.Event()

    def change(params: Step, *, context: Any) -> ToolResult[str]:
        running.set()
        assert looked.wait(WAIT)
        context.resources.get(Box).value = 5
        return ToolResult.ok("changed")

    def ask(tool: Any, params: Any, context: Any) -> str:
        context.resources.get(Box)
        looked.set()
        first.join(WAIT)
        return "Not now."

    prompt = Prompt(
        PromptTemplate(
            sections=[
                MarkdownSection(title="T", template="t", tools=[tool_of("change", change), tool_of("note", note)])
            ],
            policies=[ApprovalPolicy(tools=["note"], ask=ask)],
        )
    ).bind(resources={Box: Binding(Box, lambda _: Box())})
    first = threading.Thread(
        target=execute_tool, args=(ToolCall("change", {}),), kwargs={"prompt": prompt, "session": session}
    )
    first.start()
    assert running.wait(WAIT)
    assert execute_tool(ToolCall("note", {}), prompt=prompt, session=session).outcome == "denied"
    assert prompt.resources.get(Box).value == 5


def test_a_block_does_not_take_another_sessions_resources() -> None:
    """S7: my rollback never reaches what a call of another session built and committed."""
    ledgers: list[Ledger] = []

    def build(_: object) -> Ledger:
        ledgers.append(Ledger())
        return ledgers[-1]

    def use(params: Step, *, context: Any) -> ToolResult[str]:
        context.resources.get(Ledger)
        return ToolResult.ok("used")

    prompt = prompt_of(tool_of("use", use), resources={Ledger: Binding(Ledger, build, scope=Lifetime.TOOL_CALL)})
    mine, theirs = Session(), Session()
    with contextlib.suppress(KeyError), mine.transaction(prompt.resources):
        call = threading.Thread(
            target=execute_tool, args=(ToolCall("use", {}),), kwargs={"prompt": prompt, "session": theirs}
        )
        call.start()
        call.join()
        raise KeyError
    assert [ledger.told for ledger in ledgers] == [["begin", "prepare", "commit"]]


def use_ledger(params: Step, *, context: Any) -> ToolResult[str]:
    context.resources.get(Ledger)
    return ToolResult.error("no") if params.name == "fail" else ToolResult.ok("used")


def test_a_participant_commits_with_the_call_and_rolls_back_with_it() -> None:
    """begin, prepare, commit for a success; begin, rollback for a failure."""
    tool, ledger, session = tool_of("use", use_ledger), Ledger(), Session()
    run(session, tool, resources={Ledger: ledger})
    run(session, tool, "fail", resources={Ledger: ledger})
    assert ledger.told == ["begin", "prepare", "commit", "begin", "rollback"]


def test_a_participant_that_refuses_to_prepare_fails_the_call() -> None:
    """Nothing was committed anywhere; the model reads why."""
    first, second, session = Ledger(), SecondLedger(prepare=RuntimeError("disk full")), Session()

    def write(params: Step, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("x"))
        return ToolResult.ok("x")

    outcome = run(session, tool_of("w", write), resources={Ledger: first, SecondLedger: second})
    assert (outcome.outcome, outcome.text) == ("failed", "Internal error: disk full")
    assert first.told == ["begin", "prepare", "rollback"]
    assert second.told == ["begin", "prepare", "rollback"]
    assert session[Note].all() == ()


def test_no_participant_commits_when_the_replay_of_the_session_fails() -> None:
    """Invariant 8: a reducer that refuses at the commit comes before any participant's commit."""
    session, ledger = Session(), Ledger()

    def only_one(view: Any, event: Step, *, context: Any) -> Any:
        if len(view):
            raise ValueError("there is one already")
        return Append(Note(event.name))

    session[Note].register(Step, only_one)

    def dispatch(params: Step, *, context: Any) -> ToolResult[str]:
        context.session.dispatch(Step("mine"))
        contextvars.Context().run(session[Note].append, Note("theirs"))
        return ToolResult.ok("x")

    outcome = run(session, tool_of("d", dispatch), resources={Ledger: ledger})
    assert (outcome.outcome, outcome.text) == ("failed", "Internal error: there is one already")
    assert "commit" not in ledger.told
    assert ledger.told[-1] == "rollback"
    assert session[Note].all() == (Note("theirs"),)


def test_a_participant_with_savepoints_survives_a_nested_failure() -> None:
    """savepoint and rollback_to undo the nested call alone."""
    ledger, session = SavingLedger(), Session()
    tool = tool_of("use", use_ledger)
    prompt = prompt_of(tool, resources={Ledger: ledger})
    with session.transaction(prompt.resources):
        execute_tool(ToolCall("use", {"name": "fail"}), prompt=prompt, session=session)
    assert ledger.told == ["begin", "savepoint", "rollback_to 2", "prepare", "commit"]


def test_a_participant_without_savepoints_dooms_the_block_after_a_nested_failure() -> None:
    """What cannot be undone alone is undone together, and the block says why."""
    ledger, session = Ledger(), Session()
    prompt = prompt_of(tool_of("use", use_ledger), resources={Ledger: ledger})
    with (
        pytest.raises(
            TransactionError,
            match=r"Ledger has no rollback_to\(token\): a nested call failed and could not be undone alone\.",
        ),
        session.transaction(prompt.resources),
    ):
        session[Note].append(Note("x"))
        execute_tool(ToolCall("use", {"name": "fail"}), prompt=prompt, session=session)
    assert session[Note].all() == ()
    assert ledger.told == ["begin", "rollback"]


def test_a_block_whose_commit_fails_is_rolled_back_and_says_so() -> None:
    """S45, S60: TransactionRolledBack is recorded and external effects are compensated."""
    session, compensated = Session(), list[str]()

    def compensate(params: Step, result: Any, *, context: Any) -> None:
        compensated.append(params.name)

    tool = tool_of("note", note, effects="external", compensate=compensate)
    with pytest.raises(RuntimeError, match="disk full"), session.transaction(Ledger(prepare=RuntimeError("disk full"))):
        outcome = run(session, tool, "a")
    assert session[Note].all() == ()
    assert [event.call_ids for event in session[TransactionRolledBack].all()] == [(outcome.call_id,)]
    assert compensated == ["a"]


def test_a_nested_rollback_error_cannot_be_swallowed() -> None:
    """A handler that catches it cannot commit: the session refuses writes from then on."""
    session = Session()

    class Stuck(Box):
        def restore(self, snapshot: int) -> None:
            raise OSError("stuck")

    inner = tool_of("inner", fail)

    def outer(params: Step, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("outer"))
        with contextlib.suppress(RollbackError):
            inner(Step(), context=context)
        return ToolResult.ok("as if nothing had happened")

    prompt = prompt_of(inner, tool_of("outer", outer), resources={Box: Stuck()})
    with pytest.raises((RollbackError, TransactionError)):
        execute_tool(ToolCall("outer", {}), prompt=prompt, session=session)
    assert session[Note].all() == ()
    assert [event.outcome for event in session[ToolInvoked].all()] == ["failed", "failed"]
    with pytest.raises(TransactionError, match="refuses writes"):
        session[Note].append(Note("x"))


# -- external effects ----------------------------------------------------------------------------------------------------


def test_compensations_run_in_reverse_with_live_resources_and_are_recorded() -> None:
    """S60: in reverse, after the restore, each recorded; a failing one stops no other."""
    session, undone = Session(), list[tuple[str, int, int]]()

    def send(params: Step, *, context: Any) -> ToolResult[str]:
        keys.append(context.idempotency_key)
        context.session[Note].append(Note(params.name))
        return ToolResult.ok(f"sent {params.name}")

    def unsend(params: Step, result: Any, *, context: Any) -> None:
        assert result.value == f"sent {params.name}"
        undone.append((params.name, context.resources.get(Box).value, len(session[Note])))
        keys_again.append(context.idempotency_key)
        if params.name == "b":
            raise OSError("gone already")

    keys: list[str] = []
    keys_again: list[str] = []
    tool = tool_of("send", send, effects="external", compensate=unsend)
    prompt = prompt_of(tool, resources={Box: Box(5)})
    with contextlib.suppress(KeyError), session.transaction():
        for name in "abc":
            execute_tool(ToolCall("send", {"name": name}), prompt=prompt, session=session)
        raise KeyError
    assert undone == [("c", 5, 0), ("b", 5, 0), ("a", 5, 0)]
    events = session[Compensated].all()
    assert [(event.tool_name, event.success, event.message) for event in events] == [
        ("send", True, ""),
        ("send", False, "gone already"),
        ("send", True, ""),
    ]
    assert [event.idempotency_key for event in events] == keys_again == keys[::-1]


def test_an_external_call_alone_is_not_compensated() -> None:
    """There is nothing around it that could be rolled back; a failing handler cleans up after itself."""
    session, undone = Session(), list[str]()
    tool = tool_of("send", fail, effects="external", compensate=lambda params, result, *, context: undone.append("x"))
    run(session, tool)
    assert undone == []


def test_a_failing_handler_compensates_its_nested_calls_and_names_them() -> None:
    """A nested external effect of a failed call is undone, and the nested call is named as taken back."""
    session, undone = Session(), list[str]()
    send = tool_of(
        "send", note, effects="external", compensate=lambda params, result, *, context: undone.append(params.name)
    )

    def outer(params: Step, *, context: Any) -> ToolResult[str]:
        send(Step("a"), context=context)
        send(Step("b"), context=context)
        return ToolResult.error("no")

    execute_tool(ToolCall("outer", {}), prompt=prompt_of(send, tool_of("outer", outer)), session=session)
    assert undone == ["b", "a"]
    [event] = session[TransactionRolledBack].all()
    nested = [event.call_id for event in session[ToolInvoked].all() if event.tool_name == "send"]
    assert list(event.call_ids) == nested


# -- sub-agents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ok", "error"])
def test_a_sub_agents_session_and_resources_join_the_outer_call(end: str) -> None:
    """S7: another session, prompt and filesystem, the same fate."""
    home, sub, files, box = Session(), Session(), InMemoryFilesystem(), Box()

    def work(params: Step, *, context: Any) -> ToolResult[str]:
        context.session[Note].append(Note("sub"))
        context.filesystem.write("sub", "x")
        context.resources.get(Box).value = 1
        return ToolResult.ok("worked")

    inner = prompt_of(tool_of("work", work), resources={Filesystem: files, Box: box})

    def delegate(params: Step, *, context: Any) -> ToolResult[str]:
        assert execute_tool(ToolCall("work", {}), prompt=inner, session=sub).success
        assert contextvars.Context().run(sub[Note].all) == ()
        return ToolResult.ok("done") if end == "ok" else ToolResult.error("no")

    execute_tool(ToolCall("delegate", {}), prompt=prompt_of(tool_of("delegate", delegate)), session=home)
    kept = end == "ok"
    assert (len(sub[Note]), files.exists("sub"), box.value) == ((1, True, 1) if kept else (0, False, 0))
    assert [event.tool_name for event in sub[ToolInvoked].all()] == ["work"]
    assert [event.tool_name for event in home[ToolInvoked].all()] == ["delegate"]


# -- fences --------------------------------------------------------------------------------------------------------------


def late_writes(kept: dict[str, Any]) -> list[Callable[[], object]]:
    context, raw = kept["context"], kept["session"]
    return [
        lambda: context.session[Note].append(Note("late")),
        lambda: context.session[Line].append(Line("late")),
        lambda: context.session.dispatch(Note("late")),
        lambda: context.session.dispatcher.dispatch(Note("late")),
        lambda: kept["dispatcher"].dispatch(Note("late")),
        lambda: kept["slice"].seed(Note("late")),
        lambda: context.session.transaction().__enter__(),
        lambda: execute_tool(ToolCall("note", {}), context=context),
        lambda: kept["run"](raw[Note].append, Note("late")),
        lambda: kept["run"](kept["files"].write, "late", "x"),
        lambda: kept["run"](raw.dispatcher.dispatch, Note("late")),
    ]


@pytest.mark.parametrize("end", ["ok", "error", "raise", "timeout"])
def test_a_call_that_has_ended_writes_nothing_any_more(end: str) -> None:
    """S9, invariant 7: through its context, captured handles, dispatchers, slices, nested calls and inherited contexts."""
    session, files = Session(), InMemoryFilesystem()
    kept: dict[str, Any] = {}
    began, release = threading.Event(), threading.Event()

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        here = contextvars.copy_context()
        kept.update(
            context=context,
            session=session,
            dispatcher=context.session.dispatcher,
            slice=context.session[Note],
            files=files,
            run=here.run,
        )
        began.set()
        if end == "timeout":
            release.wait(WAIT)
        if end == "raise":
            raise RuntimeError
        return ToolResult.ok("x") if end == "ok" else ToolResult.error("x")

    tool = tool_of("h", handler, timeout=0.02 if end == "timeout" else None)
    prompt = prompt_of(tool, tool_of("note", note), resources={Filesystem: files})
    outcome = execute_tool(ToolCall("h", {}), prompt=prompt, session=session)
    assert outcome.outcome == {"ok": "ok", "timeout": "timeout"}.get(end, "failed")
    assert began.wait(WAIT)
    assert kept["context"].cancelled
    for write in late_writes(kept):
        with pytest.raises(FencedWriteError):
            write()
    release.set()
    assert (session[Note].all(), session[Line].all(), files.glob("**/*")) == ((), (), [])


def test_a_background_task_of_an_ended_call_is_fenced() -> None:
    """A task the handler started and left goes on without the right to write."""
    session = Session()
    refused: list[str] = []

    async def main() -> None:
        go, over = asyncio.Event(), asyncio.Event()

        async def linger() -> None:
            await go.wait()
            try:
                session[Note].append(Note("late"))
            except FencedWriteError as error:
                refused.append(str(error))
            over.set()

        async def handler(params: Step, *, context: Any) -> ToolResult[str]:
            tasks.append(asyncio.create_task(linger()))
            return ToolResult.ok("left it running")

        tasks: list[asyncio.Task[None]] = []
        await aexecute_tool(ToolCall("h", {}), prompt=prompt_of(tool_of("h", handler)), session=session)
        go.set()
        await over.wait()

    asyncio.run(main())
    assert refused == [
        "Cannot write to the slices: the tool call this write belongs to has ended. "
        "Finish writing before the handler returns."
    ]
    assert session[Note].all() == ()


def test_a_nested_call_that_outlives_its_outer_call_keeps_nothing() -> None:
    """The outer call is cancelled while the nested one still runs; what that one then returns does not count."""
    session, entered, go, over = Session(), threading.Event(), threading.Event(), threading.Event()
    outcomes: list[str] = []

    def slow(params: Step, *, context: Any) -> ToolResult[str]:
        entered.set()
        assert go.wait(WAIT)
        return ToolResult.ok("slow")

    def outer(params: Step, *, context: Any) -> ToolResult[str]:
        try:
            outcomes.append(execute_tool(ToolCall("slow", {}), context=context).outcome)
        except Exception as error:
            outcomes.append(type(error).__name__)
        over.set()
        return ToolResult.ok("outer")

    prompt = prompt_of(tool_of("slow", slow), tool_of("outer", outer))

    async def main() -> None:
        call = asyncio.create_task(aexecute_tool(ToolCall("outer", {}), prompt=prompt, session=session))
        await asyncio.to_thread(entered.wait, WAIT)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    go.set()
    assert over.wait(WAIT)
    assert outcomes[0] != "ok"
    assert {event.tool_name: event.outcome for event in session[ToolInvoked].all()} == {
        "outer": "cancelled",
        "slow": "failed",
    }
    with session.transaction():
        pass


def test_on_end_runs_once_before_anything_is_restored() -> None:
    """A process is killed before its files are put back; at once when the call is over already."""
    box, seen = Box(), list[int]()
    contexts: list[Any] = []

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        contexts.append(context)
        context.on_end(lambda: seen.append(box.value))
        box.value = 5
        return ToolResult.error("no")

    run(Session(), tool_of("h", handler), resources={Box: box})
    assert seen == [5]
    contexts[0].on_end(lambda: seen.append(99))
    assert (seen, box.value) == ([5, 99], 0)


def test_a_failing_on_end_changes_nothing() -> None:
    """Clean-up that fails is logged; the rollback goes on."""
    box = Box()

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        def boom() -> None:
            raise RuntimeError("clean-up")

        context.on_end(boom)
        box.value = 5
        return ToolResult.error("no")

    assert run(Session(), tool_of("h", handler), resources={Box: box}).text == "no"
    assert box.value == 0


def test_outside_of_a_call_there_is_no_scope() -> None:
    """A call leaves no trace in the thread that made it."""
    run(Session(), tool_of("note", note))
    assert current_scope() is None


def test_read_only_scopes_refuse_slices_logs_and_files() -> None:
    """Each refusal names what was written to and what to declare."""
    files = InMemoryFilesystem()

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        for write in (
            lambda: context.session[Note].append(Note("x")),
            lambda: context.session[Line].append(Line("x")),
            lambda: context.filesystem.write("f", "x"),
        ):
            with pytest.raises(ReadOnlyError, match='this tool is declared effects="none"'):
                write()
        return ToolResult.ok("refused three times")

    outcome = run(Session(), tool_of("h", handler, effects="none"), resources={Filesystem: files})
    assert outcome.value == "refused three times"
