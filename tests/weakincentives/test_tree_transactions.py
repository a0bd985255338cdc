"""Claims about a directory tree in transactions, and about processes that die in one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from weakincentives.errors import ReadOnlyError
from weakincentives.filesystem import DirectoryTree, TreeBusyError
from weakincentives.prompt import Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    PendingToolTracker,
    Session,
    ToolCall,
    ToolInvoked,
    aexecute_tool,
    create_snapshot,
    execute_tool,
    restore_snapshot,
    tool_transaction,
)
from weakincentives.transaction import Scope

# Newer Pythons warn of any fork in a process with threads; these children touch nothing of theirs.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("one")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[DirectoryTree]:
    with DirectoryTree(root) as tree:
        yield tree


def sh(root: Path, command: str) -> int:
    return subprocess.run(["sh", "-c", command], cwd=root, check=False).returncode


def shell(root: Path, command: str, **more: object) -> Tool[None, str]:
    """A tool that runs a program behind everybody's back."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        tree = context.resources.get(DirectoryTree)
        if more.get("guarded"):
            with tree.guard():
                code = sh(root, command)
        else:
            code = sh(root, command)
        return ToolResult.ok("done") if code == 0 else ToolResult.error(f"exit {code}")

    effects = str(more.get("effects", "local"))
    return Tool[None, str](name="shell", description="Run it.", handler=handler, effects=effects)  # pyright: ignore


def ran(tool: Tool[None, str], tree: DirectoryTree, session: Session) -> str:
    prompt = Prompt(PromptTemplate()).bind(extra_tools=[tool], resources={DirectoryTree: tree})
    return execute_tool(ToolCall("shell", {}), prompt=prompt, session=session).outcome


# -- in a transaction --------------------------------------------------------------------------------------------------


def test_a_program_of_a_harness_that_fails_is_taken_back(root: Path, tree: DirectoryTree) -> None:
    """Invariant 2: a real process between begin and end of a tracked call leaves no trace."""
    session = Session()
    with PendingToolTracker(session=session, resources=tree) as tracker:
        tracker.begin_tool_execution("use-1", "Bash")
        code = sh(root, "echo two > a.txt; mkdir -p x/y; ln -s /etc x/etc; exit 3")
        fate = tracker.end_tool_execution("use-1", success=code == 0)

    assert (code, fate, session[ToolInvoked].latest().outcome) == (3, "rolled_back", "failed")  # pyright: ignore
    assert (root / "a.txt").read_text() == "one"
    assert [path.name for path in root.iterdir()] == ["a.txt"]


def test_a_program_of_a_harness_that_succeeds_is_kept(root: Path, tree: DirectoryTree) -> None:
    """A commit keeps what is there."""
    with PendingToolTracker(session=Session(), resources=tree) as tracker:
        tracker.begin_tool_execution("use-1", "Bash")
        sh(root, "echo two > a.txt")
        fate = tracker.end_tool_execution("use-1", success=True)

    assert (fate, (root / "a.txt").read_text()) == ("kept", "two\n")


def test_what_a_program_of_a_harness_changed_is_named(root: Path, tree: DirectoryTree) -> None:
    """The event of a tracked call lists the paths, as if they had been written through us."""
    session = Session()
    with PendingToolTracker(session=session, resources=tree) as tracker:
        tracker.begin_tool_execution("use-1", "Bash")
        sh(root, "echo two > a.txt; mkdir d; echo 1 > d/b")
        tracker.end_tool_execution("use-1", success=True)

    assert session[ToolInvoked].latest().changes.files == ("a.txt", "d", "d/b")  # pyright: ignore[reportOptionalMemberAccess]


def test_what_a_program_of_a_tool_changed_is_named(root: Path, tree: DirectoryTree) -> None:
    """The same in the one pipeline, guarded or not."""
    session = Session()
    ran(shell(root, "echo two > a.txt"), tree, session)
    ran(shell(root, "echo 1 > b", guarded=True), tree, session)
    assert [event.changes.files for event in session[ToolInvoked].all()] == [("a.txt",), ("b",)]


class SlowToJoin:
    """A resource that is not taken in before something else has happened on the event loop."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.joined_in_time = False

    def join_scope(self, scope: Scope, /) -> None:
        self.joined_in_time = self.go_on.wait(10)


def test_looking_at_a_tree_does_not_block_an_event_loop() -> None:
    """A tracked call and a tool call both wait for it elsewhere."""

    async def while_another_task_runs(call: Callable[[SlowToJoin], Awaitable[object]]) -> bool:
        resource = SlowToJoin()
        beginning = asyncio.ensure_future(call(resource))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(resource.go_on.set)
        await beginning
        return resource.joined_in_time

    async def tracked(resource: SlowToJoin) -> None:
        async with PendingToolTracker(session=Session(), resources=[resource]) as tracker:
            await tracker.abegin_tool_execution("use-1", "Bash")
            tracker.end_tool_execution("use-1", success=True)

    async def called(resource: SlowToJoin) -> None:
        tool = Tool[None, str](
            name="noop", description="Do nothing.", handler=lambda params, *, context: ToolResult.ok("")
        )
        prompt = Prompt(PromptTemplate()).bind(extra_tools=[tool], resources={SlowToJoin: resource})
        assert (await aexecute_tool(ToolCall("noop", {}), prompt=prompt, session=Session())).success

    assert asyncio.run(while_another_task_runs(tracked))
    assert asyncio.run(while_another_task_runs(called))


def test_a_call_that_is_cancelled_while_the_tree_is_looked_at_lets_go_of_it(root: Path, tree: DirectoryTree) -> None:
    """Whether the look had begun or not, the tree is free afterwards."""

    async def cancel_at_once() -> None:
        async with PendingToolTracker(session=Session(), resources=tree) as tracker:
            beginning = asyncio.ensure_future(tracker.abegin_tool_execution("use-1", "Bash"))
            for _ in range(3):
                await asyncio.sleep(0)
            beginning.cancel()
            with suppress(asyncio.CancelledError):
                await beginning

    for _ in range(20):
        asyncio.run(cancel_at_once())
    assert ran(shell(root, "echo two > a.txt"), tree, Session()) == "ok"


def test_a_tool_call_that_fails_is_taken_back(root: Path, tree: DirectoryTree) -> None:
    """The one pipeline takes the tree along like any resource."""
    assert ran(shell(root, "echo two > a.txt; false"), tree, Session()) == "failed"
    assert (root / "a.txt").read_text() == "one"
    assert ran(shell(root, "echo two > a.txt"), tree, Session()) == "ok"
    assert (root / "a.txt").read_text() == "two\n"


def test_nested_transactions_are_savepoints(root: Path, tree: DirectoryTree) -> None:
    """An inner failure takes back its own part, an outer one everything."""
    session = Session()
    with pytest.raises(RuntimeError, match="outer"), tool_transaction(session, tree):
        sh(root, "echo 1 > b")
        assert ran(shell(root, "echo 2 > b; false"), tree, session) == "failed"
        assert (root / "b").read_text() == "1\n"
        assert ran(shell(root, "echo 3 > b"), tree, session) == "ok"
        assert (root / "b").read_text() == "3\n"
        raise RuntimeError("outer")

    assert not (root / "b").exists()
    assert tree.changed_since(tree.snapshot()) == ()


def test_a_tree_first_used_in_a_nested_call_is_taken_back_by_the_outer_one(root: Path, tree: DirectoryTree) -> None:
    """What an inner commit hands over, an outer rollback undoes."""
    session = Session()
    with session.transaction() as block:
        assert ran(shell(root, "echo two > a.txt"), tree, session) == "ok"
        block.rollback()

    assert (root / "a.txt").read_text() == "one"


def test_snapshots_by_hand_hold_the_tree(root: Path, tree: DirectoryTree) -> None:
    """`create_snapshot` and `restore_snapshot` work inside and outside of a block."""
    session = Session()
    outside = create_snapshot(session, tree)
    sh(root, "echo two > a.txt")
    with tool_transaction(session, tree) as start:
        sh(root, "echo three > a.txt")
        restore_snapshot(session, tree, start)
    assert (root / "a.txt").read_text() == "two\n"
    restore_snapshot(session, tree, outside)

    assert (root / "a.txt").read_text() == "one"


def test_a_lazy_tree_is_taken_in_by_a_guard_alone(root: Path) -> None:
    """Calls that run no program pay for no scan; those that do say what they changed."""
    session = Session()
    with DirectoryTree(root, eager=False) as tree:
        assert ran(shell(root, "echo two > a.txt; false"), tree, session) == "failed"
        assert (root / "a.txt").read_text() == "two\n"
        assert ran(shell(root, "echo three > a.txt; false", guarded=True), tree, session) == "failed"
        assert (root / "a.txt").read_text() == "two\n"
        assert ran(shell(root, "echo three > a.txt; mkdir d", guarded=True), tree, session) == "ok"
    event = session[ToolInvoked].latest()

    assert event is not None
    assert event.changes.files == ("a.txt", "d")


def test_a_guard_by_itself_puts_back_what_its_block_did(root: Path, tree: DirectoryTree) -> None:
    """No session is needed."""
    with pytest.raises(KeyboardInterrupt), tree.guard():
        sh(root, "rm a.txt")
        raise KeyboardInterrupt
    with tree.guard():
        sh(root, "echo two > b.txt")

    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "b.txt"]


def test_a_reading_tool_pays_nothing_and_may_not_guard(root: Path, tree: DirectoryTree) -> None:
    """`effects="none"` takes no snapshot; a guard there is refused like any write."""
    caught: list[str] = []

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        try:
            with tree.guard():
                pass
        except ReadOnlyError as error:
            caught.append(str(error))
        return ToolResult.ok("")

    tool = Tool[None, str](name="shell", description="Look.", handler=handler, effects="none")

    assert ran(tool, tree, Session()) == "ok"
    assert caught[0].startswith("Cannot write to the files:")


def test_a_second_transaction_is_refused_while_one_is_open(root: Path, tree: DirectoryTree) -> None:
    """Invariant 6: the words say when to try again."""
    with tree.guard(), pytest.raises(TreeBusyError) as caught, tool_transaction(Session(), tree):
        pass

    assert str(caught.value) == (
        f"Another call is changing {root}, and two at a time could not be told apart\n"
        "Wait until it has ended, then retry."
    )
    with tool_transaction(Session(), tree):
        sh(root, "echo two > a.txt")


def test_a_tool_is_not_run_when_the_tree_cannot_be_held(root: Path) -> None:
    """Invariant 1: a call that could not be undone is not begun, and the tree is free again."""
    with DirectoryTree(root, max_file_bytes=2) as tree:
        assert ran(shell(root, "echo two > a.txt"), tree, Session()) == "failed"
        assert (root / "a.txt").read_text() == "one"
        (root / "a.txt").write_text("1")
        assert ran(shell(root, "echo 2 > a.txt; false"), tree, Session()) == "failed"
        assert (root / "a.txt").read_text() == "1"


def test_closing_in_a_transaction_waits_for_its_end(root: Path) -> None:
    """What was promised to a transaction is kept."""
    tree = DirectoryTree(root)
    with pytest.raises(RuntimeError), tree.guard():
        sh(root, "echo two > a.txt")
        tree.close()
        raise RuntimeError
    DirectoryTree(root).close()

    assert (root / "a.txt").read_text() == "one"


# -- processes that die ------------------------------------------------------------------------------------------------


@forks
def test_a_killed_process_is_taken_back_by_the_next(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 5: at any moment of a transaction or its rollback, the next opening finds the start again."""
    chance = random.Random(7)
    for number in range(60):
        (root / f"f{number}").write_text(f"{number}")
    sh(root, "mkdir -p d/e; ln -s a.txt link")
    before = {path.name: path.lstat().st_mtime_ns for path in root.rglob("*")}
    for number in range(12):
        steps, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _work_for_ever(root, told)
        os.close(told)
        for _ in range(chance.randint(1, 200)):
            assert os.read(steps, 1) == b"."
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(steps)
        DirectoryTree(root).close()
        after = {path.name: path.lstat().st_mtime_ns for path in root.rglob("*")}
        assert after == before, number
        assert [(root / f"f{number}").read_text() for number in range(60)] == [f"{number}" for number in range(60)]

    assert "taking back a transaction that was not finished" in caplog.text


def _work_for_ever(root: Path, told: int) -> None:
    """Tell of every step; the one who reads decides when it is enough."""
    try:
        tree = DirectoryTree(root)
        while True:
            with suppress(RuntimeError), tree.guard():
                for number in range(50):
                    (root / f"f{number}").write_text("changed")
                    os.write(told, b".")
                (root / "link").unlink()
                os.rename(root / "d", root / "moved")
                raise RuntimeError("take it back")
    finally:
        os._exit(1)


@forks
def test_what_a_sessions_log_has_committed_is_kept(root: Path) -> None:
    """The log of the session is asked about a transaction that nobody finished."""
    for known in (True, False):
        (root / "a.txt").write_text("one")
        pid = os.fork()
        if pid == 0:
            try:
                with DirectoryTree(root).guard():
                    (root / "a.txt").write_text("two")
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        DirectoryTree(root, committed=lambda txn_id, known=known: known and len(txn_id) == 32).close()

        assert (root / "a.txt").read_text() == ("two" if known else "one")


@forks
def test_a_forked_child_is_refused(root: Path, tree: DirectoryTree) -> None:
    """A tree belongs to the process that opened it."""
    pid = os.fork()
    if pid == 0:
        try:
            tree.snapshot()
        except TreeBusyError as error:
            os._exit(0 if "cannot be used in a fork" in str(error) else 2)
        finally:
            os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- forks -------------------------------------------------------------------------------------------------------------


@forks
def test_a_dead_owner_is_recovered_while_a_process_it_forked_lives(root: Path) -> None:
    """Invariant 5: its child does not keep the tree for it."""
    ready, say = os.pipe()
    wait, never = os.pipe()
    owner = os.fork()
    if owner == 0:
        held = DirectoryTree(root)
        held.join_scope(Scope())
        (root / "a.txt").write_text("two")
        if os.fork() == 0:
            os.write(say, b".")
            os.close(never)
            os.read(wait, 1)
            os._exit(0)
        signal.pause()
    assert os.read(ready, 1) == b"."
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    try:
        with DirectoryTree(root):
            assert (root / "a.txt").read_text() == "one"
    finally:
        for fd in (ready, say, wait, never):
            os.close(fd)


@forks
@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_a_forked_process_does_not_end_its_parents_transaction(root: Path, tree: DirectoryTree, end: str) -> None:
    """It ends its own copy of the scope; the directory stays as the parent has it."""
    scope = Scope()
    tree.join_scope(scope)
    (root / "a.txt").write_text("two")
    child = os.fork()
    if child == 0:
        try:
            getattr(scope, end)()
        except TreeBusyError:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (3 if end == "commit" else 0)
    assert (root / "a.txt").read_text() == "two"
    scope.rollback()
    assert (root / "a.txt").read_text() == "one"
