"""Claims about transactions by hand: blocks, snapshots and calls that somebody else executes."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from weakincentives.clock import FakeClock
from weakincentives.errors import (
    FencedWriteError,
    ReadOnlyError,
    RollbackError,
    TransactionError,
    WouldDeadlockError,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Changes, Prompt, PromptTemplate, RunContext, Tool, ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import (
    Compensated,
    CompositeSnapshot,
    PendingToolTracker,
    Session,
    ToolCall,
    ToolInvoked,
    TransactionRolledBack,
    create_snapshot,
    execute_tool,
    log_slice,
    restore_snapshot,
    tool_transaction,
)
from weakincentives.serde import Secret


@dataclass(frozen=True)
class Plan:
    step: str


@log_slice
@dataclass(frozen=True)
class Heard:
    what: str


@dataclass(frozen=True)
class Login:
    user: str
    password: Annotated[str, Secret]


class Box:
    """A snapshotable resource."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def snapshot(self) -> int:
        return self.value

    def restore(self, snapshot: int) -> None:
        self.value = snapshot


class OtherBox(Box):
    pass


class Jammed(Box):
    def restore(self, snapshot: int) -> None:
        raise OSError("jammed")


class Database:
    """A participant that keeps its own savepoints."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.kept: list[str] = []

    def prepare(self) -> None:
        pass

    def commit(self) -> None:
        self.kept = list(self.rows)

    def rollback(self) -> None:
        self.rows = list(self.kept)

    def savepoint(self) -> int:
        return len(self.rows)

    def rollback_to(self, token: int) -> None:
        del self.rows[token:]


class PlainDatabase:
    """A participant that can only be undone as a whole."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def prepare(self) -> None:
        pass

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        self.rows.clear()


def plan(session: Session) -> str | None:
    latest = session[Plan].latest()
    return None if latest is None else latest.step


def tool_of(handler: Callable[..., ToolResult[str]], name: str = "note", **more: Any) -> Tool[None, str]:
    return Tool[None, str](name=name, description="A tool.", handler=handler, **more)


def noting(step: str, name: str = "note", **more: Any) -> Tool[None, str]:
    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        context.session[Plan].append(Plan(step))
        return ToolResult.ok("noted")

    return tool_of(handler, name, **more)


def prompt_of(*tools: Tool[Any, Any], **resources: Any) -> Prompt[Any]:
    return Prompt(PromptTemplate()).bind(extra_tools=tools, **resources)


@pytest.fixture
def session() -> Session:
    session = Session(clock=FakeClock())
    session[Plan].seed(Plan("start"))
    return session


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_block_keeps_its_changes_on_normal_exit(session: Session) -> None:
    """Leaving the block normally keeps state, files and resources."""
    fs, box = InMemoryFilesystem(), Box()
    with tool_transaction(session, {Filesystem: fs, Box: box}):
        session[Plan].seed(Plan("done"))
        fs.write("a.txt", "text")
        box.value = 1

    assert (plan(session), fs.read("a.txt"), box.value) == ("done", "text", 1)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_a_block_rolls_back_on_any_exception(session: Session, error: type[BaseException]) -> None:
    """Whatever ends the block, state, files and resources are as before, and LOG is not."""
    fs, box = InMemoryFilesystem({"a.txt": "old"}), Box()
    with pytest.raises(error), tool_transaction(session, {Filesystem: fs, Box: box}):
        session[Plan].seed(Plan("half"))
        session[Heard].append(Heard("it"))
        fs.write("a.txt", "new")
        box.value = 1
        raise error

    assert (plan(session), fs.read("a.txt"), box.value) == ("start", "old", 0)
    assert session[Heard].all() == (Heard("it"),)


def test_a_block_works_in_async_code(session: Session) -> None:
    """`async with` keeps and rolls back the same way."""

    async def main() -> None:
        async with tool_transaction(session):
            session[Plan].seed(Plan("kept"))
        with pytest.raises(ValueError, match="no"):
            async with tool_transaction(session):
                session[Plan].seed(Plan("lost"))
                raise ValueError("no")

    asyncio.run(main())
    assert plan(session) == "kept"


def test_a_block_can_be_taken_back_and_go_on(session: Session) -> None:
    """Restoring the block's snapshot undoes what was done so far; what follows is kept."""
    fs, box = InMemoryFilesystem({"a.txt": "old"}), Box()
    resources = {Filesystem: fs, Box: box}
    with tool_transaction(session, resources, tag="attempt") as snapshot:
        session[Plan].seed(Plan("wrong"))
        fs.write("a.txt", "wrong")
        fs.write("b.txt", "wrong")
        box.value = 1
        restore_snapshot(session, resources, snapshot)
        assert (plan(session), fs.read("a.txt"), fs.exists("b.txt"), box.value) == ("start", "old", False, 0)
        session[Plan].append(Plan("right"))

    assert (plan(session), fs.read("a.txt"), box.value) == ("right", "old", 0)


def test_a_restore_in_a_block_leaves_bystanders_alone(session: Session) -> None:
    """What another thread wrote meanwhile stays, in the block and after it."""
    fs = InMemoryFilesystem()
    with tool_transaction(session, fs) as snapshot:
        fs.write("mine.txt", "mine")
        bystander = threading.Thread(target=lambda: fs.write("theirs.txt", "theirs"))
        bystander.start()
        bystander.join()
        restore_snapshot(session, fs, snapshot)

    assert fs.list() == ["theirs.txt"]


def test_nested_blocks_are_savepoints(session: Session) -> None:
    """An inner block's failure leaves the outer one's work; the outer one's failure takes both."""
    with tool_transaction(session):
        session[Plan].append(Plan("outer"))
        with pytest.raises(ValueError, match="inner"), tool_transaction(session):
            session[Plan].append(Plan("inner"))
            raise ValueError("inner")
        assert plan(session) == "outer"
    with pytest.raises(ValueError, match="outer"), tool_transaction(session):
        with tool_transaction(session):
            session[Plan].append(Plan("again"))
        raise ValueError("outer")

    assert plan(session) == "outer"


def test_a_handler_may_open_a_block_on_its_own_resources(session: Session) -> None:
    """`context.resources` names everything the call can reach, shared resources included."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        box = context.resources.get(Box)
        box.value = 1
        with tool_transaction(context.session, context.resources) as snapshot:
            box.value = 2
            restore_snapshot(context.session, context.resources, snapshot)
        return ToolResult.ok(str(box.value))

    prompt = prompt_of(tool_of(handler), resources={Box: Box()})

    assert execute_tool(ToolCall("note"), prompt=prompt, session=session).value == "1"


def test_a_resource_built_in_a_block_goes_back_to_its_beginning(session: Session) -> None:
    """Transaction invariant 3, also for a restore by hand."""
    registry = ResourceRegistry.of(Binding(Box, lambda _: Box(5)))
    with registry.open() as resources, tool_transaction(session, resources) as snapshot:
        resources.get(Box).value = 9
        restore_snapshot(session, resources, snapshot)

        assert resources.get(Box).value == 5


def test_the_resources_of_a_prompt_can_be_passed(session: Session) -> None:
    """`prompt.resources`, and the prompt itself, name the prompt's live resources."""
    prompt = prompt_of(resources={Box: Binding(Box, lambda _: Box(5))})
    with prompt.resources:
        for resources in (prompt.resources, prompt):
            with pytest.raises(ValueError, match="no"), tool_transaction(session, resources):
                prompt.resources.get(Box).value = 9
                raise ValueError("no")

            assert prompt.resources.get(Box).value == 5


@pytest.mark.parametrize(
    ("resources", "kind"),
    [(ResourceRegistry(), "ResourceRegistry"), ({Box: Binding(Box, lambda _: Box())}, "Binding")],
)
def test_recipes_are_refused(session: Session, resources: object, kind: str) -> None:
    """A registry that nobody opened holds nothing that could be restored."""
    with pytest.raises(TransactionError) as refused:
        tool_transaction(session, resources)

    assert str(refused.value) == (
        f"A {kind} says how resources are made and holds none. "
        "Pass open ones: prompt.resources, or what registry.open() gives."
    )


def test_a_failing_first_snapshot_ends_the_block(session: Session) -> None:
    """A resource that cannot be taken refuses the block, and the session is free again."""

    class Shy(Box):
        def snapshot(self) -> int:
            raise OSError("not now")

    with pytest.raises(OSError, match="not now"), tool_transaction(session, Shy()):
        pytest.fail("the block must not run")
    with tool_transaction(session):
        session[Plan].seed(Plan("free"))

    assert plan(session) == "free"


def test_a_participant_with_savepoints_is_restored_in_a_block(session: Session) -> None:
    """A user's database goes back to where it was when the snapshot was taken, and its transaction goes on."""
    database = Database()
    with tool_transaction(session, database) as snapshot:
        database.rows.append("wrong")
        restore_snapshot(session, database, snapshot)
        database.rows.append("right")

    assert database.kept == ["right"]


def test_a_participant_without_savepoints_forbids_the_commit_after_a_restore(session: Session) -> None:
    """What cannot be undone alone is undone with everything else."""
    database = PlainDatabase()
    with pytest.raises(TransactionError) as refused, tool_transaction(session, database) as snapshot:
        database.rows.append("wrong")
        restore_snapshot(session, database, snapshot)
        session[Plan].seed(Plan("after"))

    assert str(refused.value) == (
        "PlainDatabase has no savepoint() and rollback_to(token): it cannot be restored without the whole transaction."
    )
    assert (database.rows, plan(session)) == ([], "start")


def test_calls_taken_back_in_a_block_are_undone_everywhere(session: Session) -> None:
    """Invariant 3: no event is delivered, external effects are compensated, and the calls are named."""
    sent: list[str] = []
    heard: list[Plan] = []

    def send(params: None, *, context: ToolContext) -> ToolResult[str]:
        sent.append("mail")
        context.session.dispatch(Plan("sent"))
        return ToolResult.ok("sent")

    def unsend(params: None, result: ToolResult[str], *, context: ToolContext) -> None:
        sent.remove("mail")

    prompt = prompt_of(tool_of(send, "send", effects="external", compensate=unsend), noting("noted"))
    session.dispatcher.subscribe(Plan, heard.append)
    with tool_transaction(session, tag="mailing") as snapshot:
        execute_tool(ToolCall("send", call_id="c1"), prompt=prompt, session=session)
        restore_snapshot(session, None, snapshot)
        execute_tool(ToolCall("note", call_id="c2"), prompt=prompt, session=session)

    assert (sent, heard, plan(session)) == ([], [], "noted")
    [undone] = session[TransactionRolledBack].all()
    assert (undone.call_ids, undone.tag, undone.reason) == (("c1",), "mailing", "restored from a snapshot")
    assert [event.call_id for event in session[Compensated].all()] == ["c1"]


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_restored_whole(session: Session) -> None:
    """Invariant 1: state, files and resources, outside of any block; LOG stays."""
    fs, box = InMemoryFilesystem({"a.txt": "old"}), Box()
    resources = {Filesystem: fs, Box: box}
    snapshot = create_snapshot(session, resources, tag="checkpoint")
    session[Plan].seed(Plan("later"))
    session[Heard].append(Heard("it"))
    fs.write("a.txt", "new")
    box.value = 1
    restore_snapshot(session, resources, snapshot)

    assert (plan(session), fs.read("a.txt"), box.value) == ("start", "old", 0)
    assert session[Heard].all() == (Heard("it"),)
    assert isinstance(snapshot, CompositeSnapshot)
    assert (snapshot.tag, snapshot.session_id) == ("checkpoint", session.session_id)


def test_a_snapshot_can_be_restored_again_and_again(session: Session) -> None:
    """A snapshot is a value: restoring does not use it up."""
    box = Box()
    snapshot = create_snapshot(session, box)
    for value in (1, 2):
        box.value = value
        session[Plan].append(Plan("more"))
        restore_snapshot(session, box, snapshot)

        assert (box.value, plan(session)) == (0, "start")


def test_a_snapshot_outlives_the_block_it_was_taken_in(session: Session) -> None:
    """The block kept its work; its snapshot can still take it back."""
    with tool_transaction(session) as snapshot:
        session[Plan].seed(Plan("kept"))
    restore_snapshot(session, None, snapshot)

    assert plan(session) == "start"


def test_a_resource_built_after_the_snapshot_goes_back_to_its_beginning(session: Session) -> None:
    """A lazy resource that did not exist yet is as good as new after the restore, with or without naming it again."""
    with ResourceRegistry.of(Binding(Box, lambda _: Box(5))).open() as resources:
        snapshot = create_snapshot(session, resources)
        for named in (resources, None):
            resources.get(Box).value = 9
            restore_snapshot(session, named, snapshot)

            assert resources.get(Box).value == 5


def test_attached_files_belong_to_the_snapshot(session: Session) -> None:
    """Files attached to the session go back with it without being named."""
    fs = InMemoryFilesystem({"a.txt": "old"})
    session.attach("work", fs)
    snapshot = create_snapshot(session)
    fs.write("a.txt", "new")
    restore_snapshot(session, None, snapshot)

    assert fs.read("a.txt") == "old"


def test_a_resource_the_snapshot_does_not_hold_is_refused(session: Session) -> None:
    """Nothing is restored when not everything can be."""
    snapshot = create_snapshot(session)
    session[Plan].seed(Plan("later"))
    with pytest.raises(TransactionError) as refused:
        restore_snapshot(session, Box(), snapshot)

    assert str(refused.value) == (
        "Cannot restore: the snapshot does not hold Box. Pass the same resources to create_snapshot and restore_snapshot."
    )
    assert plan(session) == "later"


def test_a_snapshot_of_another_session_is_refused(session: Session) -> None:
    """A snapshot belongs to the session it was taken of."""
    with pytest.raises(TransactionError) as refused:
        restore_snapshot(session, None, create_snapshot(Session()))

    assert str(refused.value) == "This snapshot belongs to another session and cannot be restored here."


def test_what_is_no_snapshot_is_refused(session: Session) -> None:
    """A snapshot of the session alone is another thing."""
    with pytest.raises(TransactionError) as refused:
        restore_snapshot(session, None, session.snapshot())  # type: ignore[arg-type]

    assert str(refused.value) == ("Expected a snapshot of create_snapshot or tool_transaction, got SessionSnapshot.")


def test_a_failing_restore_tries_everything_and_closes_the_session(session: Session) -> None:
    """Invariant 2: one group names each cause, the rest is restored, and the session refuses further writes."""
    box, jam, other = Box(), Jammed(), OtherBox()
    resources = {Box: box, Jammed: jam, OtherBox: other}
    snapshot = create_snapshot(session, resources)
    for each in (box, jam, other):
        each.value = 1
    session[Plan].seed(Plan("later"))
    with pytest.raises(RollbackError) as failed:
        restore_snapshot(session, resources, snapshot)

    assert failed.value.message == "Restoring a snapshot did not succeed; the session refuses further writes"
    assert [str(cause) for cause in failed.value.exceptions] == ["jammed"]
    assert failed.value.exceptions[0].__notes__ == ["while restoring Jammed"]
    assert (box.value, other.value, plan(session)) == (0, 0, "start")
    with pytest.raises(TransactionError, match="refuses writes"):
        session[Plan].seed(Plan("more"))


def test_a_restore_in_a_read_only_tool_is_refused(session: Session) -> None:
    """A tool declared effects="none" restores nothing, not even resources."""
    box = Box()
    snapshot = create_snapshot(session, box)
    box.value = 1

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        with pytest.raises(ReadOnlyError):
            restore_snapshot(context.session, box, snapshot)
        return ToolResult.ok("refused")

    outcome = execute_tool(ToolCall("note"), prompt=prompt_of(tool_of(handler, effects="none")), session=session)

    assert (outcome.value, box.value) == ("refused", 1)


def test_a_restore_in_a_failing_call_is_itself_undone(session: Session) -> None:
    """Inside a call a restore is a write of the call."""
    box = Box()
    snapshot = create_snapshot(session, box)
    box.value = 1
    session[Plan].seed(Plan("later"))

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        restore_snapshot(context.session, context.resources, snapshot)
        assert (plan(context.session), box.value) == ("start", 0)
        return ToolResult.error("no")

    execute_tool(ToolCall("note"), prompt=prompt_of(tool_of(handler), resources={Box: box}), session=session)

    assert (plan(session), box.value) == ("later", 1)


def test_a_snapshot_waits_for_its_turn(session: Session) -> None:
    """Taken beside a running call, it never holds half of what the call does."""
    started, go = threading.Event(), threading.Event()
    box = Box()

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        box.value = 1
        started.set()
        assert go.wait(10)
        box.value = 2
        return ToolResult.ok("done")

    prompt = prompt_of(tool_of(handler), resources={Box: box})
    call = threading.Thread(target=lambda: execute_tool(ToolCall("note"), prompt=prompt, session=session))
    call.start()
    assert started.wait(10)
    taken: list[CompositeSnapshot] = []
    taker = threading.Thread(target=lambda: taken.append(create_snapshot(session, box)))
    taker.start()
    go.set()
    call.join()
    taker.join()
    box.value = 3
    restore_snapshot(session, box, taken[0])

    assert box.value == 2


def test_a_forgotten_snapshot_watches_nothing(session: Session) -> None:
    """Resources do not keep snapshots alive."""
    taken: list[str] = []

    class Counted(Box):
        def snapshot(self) -> int:
            taken.append("snapshot")
            return super().snapshot()

    with ResourceRegistry.of(Binding(Counted, lambda _: Counted())).open() as resources:
        snapshot = create_snapshot(session, resources)
        del snapshot
        gc.collect()
        resources.get(Counted)

    assert taken == []


# -- calls that somebody else executes ---------------------------------------------------------------------------------


def test_a_tracked_failure_rolls_back(session: Session) -> None:
    """What happened between begin and a failed end is taken back."""
    fs, box = InMemoryFilesystem(), Box()
    tracker = PendingToolTracker(session=session, resources={Filesystem: fs, Box: box})
    tracker.begin_tool_execution(tool_use_id="abc", tool_name="write_file")
    fs.write("a.txt", "text")
    session[Plan].seed(Plan("half"))
    box.value = 1
    fate = tracker.end_tool_execution(tool_use_id="abc", success=False)

    assert (fate, fs.exists("a.txt"), plan(session), box.value) == ("rolled_back", False, "start", 0)


def test_a_tracked_success_is_kept_and_recorded(session: Session) -> None:
    """One ToolInvoked says what was done, with what the adapter knows about it."""
    fs = InMemoryFilesystem()
    tracker = PendingToolTracker(session=session, resources=fs, run_context=RunContext(run_id="r"))
    tracker.begin_tool_execution("abc", "write_file", params={"path": "a.txt"})
    fs.write("a.txt", "text")
    session[Plan].seed(Plan("written"))
    fate = tracker.end_tool_execution("abc", success=True, result="Wrote a.txt")

    assert (fate, fs.read("a.txt"), plan(session), tracker.pending) == ("kept", "text", "written", ())
    [event] = session[ToolInvoked].all()
    assert (event.tool_name, event.call_id, event.outcome, event.success) == ("write_file", "abc", "ok", True)
    assert (event.params, event.rendered_output) == ({"path": "a.txt"}, "Wrote a.txt")
    assert (event.changes, event.run_context) == (Changes(("Plan",), ("a.txt",)), RunContext(run_id="r"))


@pytest.mark.parametrize(
    ("end", "outcome", "text"),
    [
        (lambda t: t.end_tool_execution("abc", success=False), "failed", "Tool 'bash' failed."),
        (lambda t: t.end_tool_execution("abc", success=False, result="exit 1"), "failed", "exit 1"),
        (lambda t: t.end_tool_execution("abc", success=True, result=ToolResult.error("no")), "failed", "no"),
        (lambda t: t.abort_tool_execution(tool_use_id="abc"), "cancelled", "The call was cancelled: it was aborted."),
        (lambda t: t.close(), "cancelled", "The call was cancelled: the tracker was closed."),
    ],
)
def test_each_way_to_fail_is_recorded_once(
    session: Session, end: Callable[[PendingToolTracker], object], outcome: str, text: str
) -> None:
    """Failed, aborted or left behind: rolled back, and one event that says which."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("abc", "bash")
    session[Plan].seed(Plan("half"))
    end(tracker)

    [event] = session[ToolInvoked].all()
    assert (event.outcome, event.success, event.rendered_output) == (outcome, False, text)
    assert (plan(session), session[TransactionRolledBack].all()) == ("start", ())


def test_overlapping_calls_share_one_fate(session: Session) -> None:
    """Invariant 4: one failure takes all back, once the last has ended; the successes are named as undone."""
    box = Box()
    tracker = PendingToolTracker(session=session, resources=box)
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))
    tracker.begin_tool_execution("b", "bash")
    box.value = 1
    assert tracker.end_tool_execution("b", success=False) == "pending"
    assert (box.value, session[ToolInvoked].all()) == (1, ())
    assert tracker.end_tool_execution("a", success=True) == "rolled_back"

    assert (plan(session), box.value) == ("start", 0)
    assert [(e.call_id, e.outcome) for e in session[ToolInvoked].all()] == [("b", "failed"), ("a", "ok")]
    [undone] = session[TransactionRolledBack].all()
    assert (undone.call_ids, undone.tag, undone.reason) == (("a",), "bash, write", "'bash' failed")


def test_overlapping_successes_are_kept_together(session: Session) -> None:
    """Nothing is shown before the last of them has ended, and then everything is."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))
    tracker.begin_tool_execution("b", "write")
    tracker.end_tool_execution("a", success=True)
    session[Plan].append(Plan("b"))
    seen: list[str | None] = []
    outsider = threading.Thread(target=lambda: seen.append(plan(session)))
    outsider.start()
    outsider.join()

    assert seen == ["start"]
    assert tracker.end_tool_execution("b", success=True) == "kept"
    assert [each.step for each in session[Plan].all()] == ["start", "a", "b"]


def test_calls_one_after_the_other_have_fates_of_their_own(session: Session) -> None:
    """A failure takes nothing back that had ended before."""
    tracker = PendingToolTracker(session=session)
    for call_id, success in (("a", True), ("b", False)):
        tracker.begin_tool_execution(call_id, "write")
        session[Plan].append(Plan(call_id))
        tracker.end_tool_execution(call_id, success=success)

    assert plan(session) == "a"


def test_begin_and_end_may_come_from_different_threads(session: Session) -> None:
    """Hooks run wherever the SDK likes; the next call begun at the first place is not hurt by the last one's end."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))
    ender = threading.Thread(target=lambda: tracker.end_tool_execution("a", success=True))
    ender.start()
    ender.join()
    tracker.begin_tool_execution("b", "write")
    session[Plan].append(Plan("b"))
    tracker.end_tool_execution("b", success=True)
    session[Plan].append(Plan("c"))

    assert [each.step for each in session[Plan].all()] == ["start", "a", "b", "c"]


def test_begin_and_end_may_come_from_different_tasks(session: Session) -> None:
    """Each hook in a task of its own; work in a third one joins by `activate`."""
    tracker = PendingToolTracker(session=session)

    async def work() -> None:
        with tracker.activate("a"):
            session[Plan].append(Plan("half"))

    async def end() -> str:
        return tracker.end_tool_execution("a", success=False)

    async def main() -> str:
        await asyncio.create_task(tracker.abegin_tool_execution("a", "write"))
        await asyncio.create_task(work())
        return await asyncio.create_task(end())

    assert asyncio.run(main()) == "rolled_back"
    assert plan(session) == "start"


def test_begin_without_activation_leaves_the_place_alone(session: Session) -> None:
    """A hook's thread belongs to nobody afterwards, whoever ends the call."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("a", "write", activate=False)
    session[Plan].append(Plan("bystander"))
    with tracker.activate("a"):
        session[Plan].append(Plan("half"))
    tracker.abort_tool_execution("a")

    assert [each.step for each in session[Plan].all()] == ["start", "bystander"]


def test_threads_started_between_begin_and_end_are_fenced_afterwards(session: Session) -> None:
    """What outlives the transaction it was started in writes nothing any more (S9)."""
    tracker = PendingToolTracker(session=session)
    go = asyncio.Event()
    refused: list[type[Exception]] = []

    async def straggler() -> None:
        await go.wait()
        try:
            session[Plan].append(Plan("late"))
        except FencedWriteError as error:
            refused.append(type(error))

    async def main() -> None:
        await tracker.abegin_tool_execution("a", "write")
        task = asyncio.create_task(straggler())
        tracker.end_tool_execution("a", success=False)
        go.set()
        await task

    asyncio.run(main())
    assert (refused, plan(session)) == ([FencedWriteError], "start")


def test_tool_calls_between_begin_and_end_join(session: Session) -> None:
    """A nested execute_tool is part of the transaction: its changes go, its event and its undoing stay."""
    tracker = PendingToolTracker(session=session)
    prompt = prompt_of(noting("nested"))
    tracker.begin_tool_execution("outer", "agent")
    assert execute_tool(ToolCall("note", call_id="inner"), prompt=prompt, session=session).success
    tracker.end_tool_execution("outer", success=False)

    assert plan(session) == "start"
    assert [(e.call_id, e.outcome) for e in session[ToolInvoked].all()] == [("inner", "ok"), ("outer", "failed")]
    [undone] = session[TransactionRolledBack].all()
    assert undone.call_ids == ("inner",)


def test_other_calls_wait_until_the_last_end(session: Session) -> None:
    """The session's turn is held from the first begin to the last end."""
    tracker = PendingToolTracker(session=session)
    prompt = prompt_of(noting("other"))
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))
    other = threading.Thread(target=lambda: execute_tool(ToolCall("note"), prompt=prompt, session=session))
    other.start()
    tracker.begin_tool_execution("b", "write")
    tracker.end_tool_execution("a", success=True)
    session[Plan].append(Plan("b"))
    tracker.end_tool_execution("b", success=True)
    other.join()

    assert [each.step for each in session[Plan].all()] == ["start", "a", "b", "other"]
    assert [event.tool_name for event in session[ToolInvoked].all()] == ["write", "write", "note"]


def test_blocking_the_loop_that_a_pending_call_needs_is_refused(session: Session) -> None:
    """A sync call on the loop whose hooks must end the pending one would wait for ever."""
    tracker = PendingToolTracker(session=session)
    prompt = prompt_of(noting("other"))

    async def main() -> None:
        await asyncio.create_task(tracker.abegin_tool_execution("a", "write"))
        with pytest.raises(WouldDeadlockError):
            execute_tool(ToolCall("note"), prompt=prompt, session=session)
        tracker.end_tool_execution("a", success=True)

    asyncio.run(main())
    assert [event.call_id for event in session[ToolInvoked].all()][-1] == "a"


def test_a_tracker_in_a_transaction_is_a_savepoint(session: Session) -> None:
    """What a tracked call kept is undone by the block around it."""
    with pytest.raises(ValueError, match="no"), tool_transaction(session):
        tracker = PendingToolTracker(session=session)
        tracker.begin_tool_execution("a", "write")
        session[Plan].append(Plan("a"))
        assert tracker.end_tool_execution("a", success=True) == "kept"
        assert plan(session) == "a"
        raise ValueError("no")

    assert plan(session) == "start"
    [undone] = session[TransactionRolledBack].all()
    assert undone.call_ids == ("a",)


def test_a_commit_that_is_refused_is_a_failed_call(session: Session) -> None:
    """A participant that cannot prepare takes everything back, and the event says why."""

    class Full(Database):
        def prepare(self) -> None:
            raise OSError("disk full")

    tracker = PendingToolTracker(session=session, resources=Full())
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))

    assert tracker.end_tool_execution("a", success=True) == "rolled_back"
    [event] = session[ToolInvoked].all()
    assert (event.outcome, event.rendered_output, plan(session)) == ("failed", "Internal error: disk full", "start")


def test_a_rollback_that_fails_is_raised_and_closes_the_session(session: Session) -> None:
    """The call is recorded, the turn is given back, and nobody writes any more."""
    jam = Jammed()
    tracker = PendingToolTracker(session=session, resources=jam)
    tracker.begin_tool_execution("a", "write")
    jam.value = 1
    with pytest.raises(RollbackError):
        tracker.end_tool_execution("a", success=False)

    assert [event.outcome for event in session[ToolInvoked].all()] == ["failed"]
    with pytest.raises(TransactionError, match="refuses writes"):
        tracker.begin_tool_execution("b", "write")


def test_subscribers_hear_of_kept_calls_alone(session: Session) -> None:
    """Events of a rolled-back call are not delivered; its ToolInvoked is."""
    heard: list[object] = []
    session.dispatcher.subscribe(Plan, heard.append)
    session.dispatcher.subscribe(ToolInvoked, lambda event: heard.append(event.call_id))
    tracker = PendingToolTracker(session=session)
    for call_id, success in (("a", False), ("b", True)):
        tracker.begin_tool_execution(call_id, "write")
        session.dispatch(Plan(call_id))
        tracker.end_tool_execution(call_id, success=success)

    assert heard == ["a", Plan("b"), "b"]


def test_an_id_that_has_begun_cannot_begin_again(session: Session) -> None:
    """Two calls with one id could not be told apart."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("a", "write")
    with pytest.raises(TransactionError) as refused:
        tracker.begin_tool_execution("a", "bash")

    assert str(refused.value) == "Tool call 'a' has begun already ('write'). End or abort it first."
    assert tracker.pending == ("a",)
    tracker.close()


@pytest.mark.parametrize("method", ["end_tool_execution", "abort_tool_execution"])
def test_an_unknown_id_cannot_end(session: Session, method: str) -> None:
    """The message says what is pending."""
    tracker = PendingToolTracker(session=session)
    more = {"success": True} if method == "end_tool_execution" else {}
    with pytest.raises(TransactionError) as refused:
        getattr(tracker, method)(tool_use_id="a", **more)
    assert str(refused.value) == "No tool call 'a' is pending (pending: none). Begin it first."
    with tracker:
        tracker.begin_tool_execution("b", "write")
        with pytest.raises(TransactionError, match=r"\(pending: b\)"):
            getattr(tracker, method)(tool_use_id="a", **more)


def test_leaving_a_tracker_aborts_what_is_pending(session: Session) -> None:
    """A hook that never came cannot keep the session locked."""

    async def main() -> None:
        async with PendingToolTracker(session=session) as tracker:
            await tracker.abegin_tool_execution("a", "write")
            await tracker.abegin_tool_execution("b", "write")
            session[Plan].append(Plan("half"))

    asyncio.run(main())
    session[Plan].append(Plan("free"))

    assert [event.outcome for event in session[ToolInvoked].all()] == ["cancelled", "cancelled"]
    assert [each.step for each in session[Plan].all()] == ["start", "free"]


def test_a_begin_that_fails_leaves_nothing_behind(session: Session) -> None:
    """A resource that cannot be taken refuses the call, and the session is free again."""

    class Shy(Box):
        def snapshot(self) -> int:
            raise OSError("not now")

    tracker = PendingToolTracker(session=session, resources=Shy())
    with pytest.raises(OSError, match="not now"):
        tracker.begin_tool_execution("a", "write")
    with tool_transaction(session):
        session[Plan].seed(Plan("free"))

    assert (tracker.pending, plan(session), session[ToolInvoked].all()) == ((), "free", ())


def test_a_begin_that_is_cancelled_while_it_waits_leaves_nothing_behind(session: Session) -> None:
    """The call that has the session goes on, and the next one finds it free."""

    async def main() -> None:
        tracker = PendingToolTracker(session=session)
        async with tool_transaction(session):
            waiting = asyncio.Task(tracker.abegin_tool_execution("a", "write"), context=contextvars.Context())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert tracker.pending == ()
        async with tool_transaction(session):
            session[Plan].seed(Plan("free"))

    asyncio.run(main())
    assert plan(session) == "free"


def test_secrets_in_params_are_not_recorded(session: Session) -> None:
    """S59 holds for tools that others execute."""
    tracker = PendingToolTracker(session=session)
    tracker.begin_tool_execution("a", "login", params=Login("ann", "hunter2"))
    tracker.end_tool_execution("a", success=True)

    [event] = session[ToolInvoked].all()
    assert event.params == {"user": "ann", "password": "[redacted]"}


def test_a_durable_session_has_the_commit_and_its_event_in_one_operation(tmp_path: Path) -> None:
    """A restart finds what was done and that it was done, or neither."""
    with Session.open(tmp_path / "session") as session:
        tracker = PendingToolTracker(session=session)
        before = session.position
        tracker.begin_tool_execution("a", "write")
        session[Plan].append(Plan("a"))
        tracker.end_tool_execution("a", success=True)
        assert session.position == before + 1
    with Session.open(tmp_path / "session") as session:
        assert plan(session) == "a"
        assert [event.call_id for event in session[ToolInvoked].all()] == ["a"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_while_keeping_takes_everything_back(session: Session, interrupt: type[BaseException]) -> None:
    """It is raised after the rollback; the call is recorded and the session is free."""

    class Interrupted(Database):
        def prepare(self) -> None:
            raise interrupt

    tracker = PendingToolTracker(session=session, resources=Interrupted())
    tracker.begin_tool_execution("a", "write")
    session[Plan].append(Plan("a"))
    with pytest.raises(interrupt):
        tracker.end_tool_execution("a", success=True)
    with tool_transaction(session):
        pass

    assert (plan(session), [event.outcome for event in session[ToolInvoked].all()]) == ("start", ["failed"])


def test_tracked_calls_of_many_threads_agree_with_their_events(session: Session) -> None:
    """What is in the session is what calls did that succeeded and were not taken back, however they overlapped."""
    tracker = PendingToolTracker(session=session)
    prompt = prompt_of(noting("tool"))
    start = threading.Barrier(5)

    def native(name: str) -> None:
        start.wait(10)
        for number in range(10):
            call_id = f"{name}{number}"
            tracker.begin_tool_execution(call_id, "write")
            session[Plan].append(Plan(call_id))
            tracker.end_tool_execution(call_id, success=number % 3 > 0)
            session[Plan].append(Plan("free"))

    def governed() -> None:
        start.wait(10)
        for _ in range(10):
            execute_tool(ToolCall("note"), prompt=prompt, session=session)

    threads = [threading.Thread(target=native, args=(name,)) for name in "abcd"] + [threading.Thread(target=governed)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    events = session[ToolInvoked].all()
    undone = {call_id for event in session[TransactionRolledBack].all() for call_id in event.call_ids}
    kept = {event.call_id for event in events if event.tool_name == "write" and event.success} - undone
    steps = [each.step for each in session[Plan].all()]
    assert sorted(step for step in steps if step not in ("start", "tool", "free")) == sorted(kept)
    assert (steps.count("tool"), steps.count("free"), len(events)) == (10, 40, 50)
