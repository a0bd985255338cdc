"""Durable sessions: what is kept, what comes back, and what is said when something does not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

from weakincentives.errors import SessionStorageError, TransactionError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt.events import Changes, ToolInvoked
from weakincentives.prompt.tool_result import ToolResult
from weakincentives.serde import Secret
from weakincentives.serde.codec import Opaque, register_alias, register_upcaster
from weakincentives.session import Session, keyed_slice, log_slice, upsert_by
from weakincentives.transaction import Scope


@dataclass(frozen=True, slots=True)
class Item:
    number: int


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: Annotated[str, Secret]


@log_slice(key=lambda step: step.key)
@dataclass(frozen=True, slots=True)
class Step:
    key: str
    value: Any = None


@log_slice
@dataclass(frozen=True, slots=True)
class LoginSeen:
    login: Login
    extra: Any = None
    password: Annotated[str, Secret] = "hunter3"


@keyed_slice(lambda tally: tally.name)
@dataclass(frozen=True, slots=True)
class Tally:
    name: str
    values: tuple[int, ...] = ()

    @classmethod
    def patched(cls, old: Tally | None, key: str, delta: int) -> Tally:
        return cls(key, (*(old.values if old else ()), delta))


Opens = Callable[[], Session]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.fixture
def reopen(path: Path) -> Iterator[Opens]:
    """Opens the session at `path`, after closing the one opened before."""
    opened: list[Session] = []

    def again() -> Session:
        if opened:
            opened.pop().close()
        opened.append(Session.open(path))
        return opened[0]

    yield again
    if opened:
        opened.pop().close()


@pytest.fixture
def session(reopen: Opens) -> Session:
    return reopen()


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_state_log_and_registers_come_back(session: Session, reopen: Opens) -> None:
    """Everything a session keeps is there again after it was opened anew."""
    session[Item].append(Item(1), Item(2))
    session[Step].append(Step("a", (1, {"x": None})))
    session.registers.update("quota", lambda _: (3, None))
    again = reopen()
    assert again[Item].all() == (Item(1), Item(2))
    assert again[Step].all() == (Step("a", (1, {"x": None})),)
    assert again.registers.copy() == {"quota": 3}


def test_the_session_id_comes_back(session: Session, reopen: Opens) -> None:
    """A reopened session is the same session."""
    assert reopen().session_id == session.session_id


def test_a_chosen_session_id_is_kept(path: Path) -> None:
    """The id given when the file is made is the id from then on."""
    Session.open(path, session_id="mine").close()
    session = Session.open(path)
    session.close()
    assert session.session_id == "mine"


def test_another_session_id_is_refused(path: Path) -> None:
    """Opening a file as another session than it holds says which one it holds."""
    Session.open(path, session_id="mine").close()
    with pytest.raises(SessionStorageError) as raised:
        Session.open(path, session_id="yours")
    assert str(raised.value) == f"Cannot open {path} as session yours: it holds session mine."


def test_a_rolled_back_transaction_leaves_nothing_in_the_file(session: Session, path: Path) -> None:
    """Only what was committed is written."""
    before = path.read_bytes()
    with session.transaction() as transaction:
        session[Item].append(Item(1))
        transaction.rollback()
    assert path.read_bytes() == before


def test_a_removed_register_stays_removed(session: Session, reopen: Opens) -> None:
    """Setting a register to None removes it for good."""
    session.registers.update("a", lambda _: (1, None))
    session.registers.update("a", lambda _: (None, None))
    assert reopen().registers.copy() == {}


def test_a_reset_is_one_operation_and_lasts(session: Session, reopen: Opens) -> None:
    """Resetting forgets slices, history and registers in one step, here and after a restart."""
    session[Item].append(Item(1))
    session[Tally].update("a", 1)
    session[Step].append(Step("a"))
    session.registers.update("a", lambda _: (1, None))
    position = session.position
    session.reset()
    assert session.position == position + 1
    session[Item].append(Item(2))
    again = reopen()
    assert (again[Item].all(), again[Tally].all(), again[Step].all()) == ((Item(2),), (), ())
    assert again.registers.copy() == {}
    assert again.at(position)[Item].all() == (Item(1),)


def test_call_numbers_are_never_given_twice(session: Session, reopen: Opens, path: Path) -> None:
    """Numbers of calls go on after a restart, also when the calls before it left no other trace."""
    given = [next(session._core.calls) for _ in range(100)]
    position = session.position
    given += [next(reopen()._core.calls) for _ in range(3)]
    assert len(set(given)) == len(given)
    assert reopen().position == position


def test_calls_from_many_threads_get_different_numbers(session: Session) -> None:
    """Two threads never get one number."""
    given: list[int] = []

    def take() -> None:
        given.extend([next(session._core.calls) for _ in range(200)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == 800


def test_writes_of_many_threads_are_all_kept(session: Session, reopen: Opens) -> None:
    """Records of concurrent writers never mix."""

    def write(number: int) -> None:
        for _ in range(50):
            with session.transaction():
                session[Item].append(Item(number))
            session.dispatch(Step(str(number)))
            session.registers.update(str(number), lambda old: ((old or 0) + 1, None))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = reopen()
    assert sorted(item.number for item in again[Item]) == sorted([*range(4)] * 50)
    assert len(again[Step]) == 200
    assert again.registers.copy() == dict.fromkeys("0123", 50)


# -- position, views, forks --------------------------------------------------------------------------------------------


def test_position_counts_operations(session: Session, reopen: Opens) -> None:
    """A commit of several writes counts once, and reopening counts nothing."""
    assert session.position == 0
    session[Item].append(Item(1))
    with session.transaction():
        session[Item].append(Item(2))
        session[Item].append(Item(3))
    assert session.position == 2
    assert reopen().position == 2


def test_a_view_shows_the_session_as_it_was(session: Session) -> None:
    """A view has the state, the history and the position of then."""
    session[Item].append(Item(1))
    session[Step].append(Step("a"))
    session[Item].seed([Item(2)])
    view = session.at(2)
    assert (view[Item].all(), view[Step].all(), view.position) == ((Item(1),), (Step("a"),), 2)
    assert view.at(1)[Step].all() == ()


@pytest.mark.parametrize(
    "write",
    [
        lambda view: view[Item].append(Item(2)),
        lambda view: view[Step].append(Step("b")),
        lambda view: view.dispatch(Item(2)),
        lambda view: view.registers.update("a", lambda _: (1, None)),
        lambda view: view.attached("files").write("a", "b"),
        lambda view: view.reset(),
        lambda view: view.transaction().__enter__(),
    ],
    ids=["state", "log", "event", "register", "file", "reset", "transaction"],
)
def test_a_view_refuses_every_write(session: Session, write: Callable[[Session], object]) -> None:
    """The past cannot be changed; the error says how to go on from there."""
    session.attach("files", InMemoryFilesystem())
    session[Item].append(Item(1))
    with pytest.raises(TransactionError) as raised:
        write(session.at(2))
    assert str(raised.value) == (
        "Cannot write: this is the session as it was at position 2. Use fork(2) to go on from there."
    )


@pytest.mark.parametrize("position", [-1, 2, True])
def test_a_position_that_is_not_there_is_refused(session: Session, position: int) -> None:
    """Asking for a position the session does not have says which there are."""
    session[Item].append(Item(1))
    for travel in (session.at, session.fork):
        with pytest.raises(SessionStorageError) as raised:
            travel(position)
        assert str(raised.value) == f"There is no position {position}: the session has positions 0 to 1."


def test_a_fork_goes_its_own_way(session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A durable fork starts with the past and shares nothing of the future."""
    session[Item].append(Item(1))
    session[Item].append(Item(2))
    fork = session.fork(1, tmp_path / "fork")
    fork[Item].append(Item(3))
    fork.close()
    fork = Session.open(tmp_path / "fork")
    assert (fork[Item].all(), fork.position) == ((Item(1), Item(3)), 2)
    assert session[Item].all() == (Item(1), Item(2))
    assert fork.session_id != session.session_id
    assert caplog.messages == []  # the copy ended where a record ends
    fork.close()


def test_a_fork_keeps_the_reducers(session: Session) -> None:
    """Events reduce in a fork as they do in its origin."""
    session[Item].register(Step, lambda view, event, *, context: upsert_by(int)(view, Item(7), context=context))
    fork = session.fork()
    fork[Item].append(Item(1))
    assert fork._core.reducers == session._core.reducers


def test_a_fork_from_a_view(session: Session) -> None:
    """What a view shows can be gone on from."""
    session[Item].append(Item(1))
    session[Item].append(Item(2))
    fork = session.at(2).fork(1)
    fork[Item].append(Item(3))
    assert fork[Item].all() == (Item(1), Item(3))


def test_a_fork_never_overwrites(session: Session, tmp_path: Path) -> None:
    """Forking into a file that exists is refused and leaves it alone."""
    target = tmp_path / "there"
    target.write_text("mine")
    with pytest.raises(SessionStorageError) as raised:
        session.fork(0, target)
    assert str(raised.value) == f"Cannot fork into {target}: the file exists. Choose another path."
    assert target.read_text() == "mine"


def test_a_fork_into_nowhere_leaves_nothing(session: Session, tmp_path: Path) -> None:
    """A fork that cannot be written says why."""
    target = tmp_path / "no" / "folder"
    with pytest.raises(SessionStorageError) as raised:
        session.fork(0, target)
    assert str(raised.value) == f"Cannot fork into {target}: No such file or directory."


def test_a_session_in_memory_has_no_positions() -> None:
    """Time travel needs a file; the error says how to get one."""
    with pytest.raises(SessionStorageError) as raised:
        _ = Session().position
    assert str(raised.value) == "This session is in memory only. Open it with Session.open(path) to travel in time."


# -- attached files ----------------------------------------------------------------------------------------------------


def test_attached_files_come_back(session: Session, reopen: Opens) -> None:
    """Files attached under a name have their content again when attached after a restart."""
    files = InMemoryFilesystem({"old": "there from the start"})
    session.attach("files", files)
    files.write("bin", b"\xff\x00")
    files.delete("old")
    again = InMemoryFilesystem({"other": "replaced by what is stored"})
    reopen().attach("files", again)
    assert {name: again.read_bytes(name) for name in again.list()} == {"bin": b"\xff\x00"}


def test_state_and_files_are_one_commit(session: Session) -> None:
    """A transaction that writes slices and files is one operation; at each position both are there or neither."""
    files = InMemoryFilesystem()
    session.attach("files", files)
    position = session.position
    with session.transaction():
        session[Item].append(Item(1))
        files.write("a", "1")
    assert session.position == position + 1
    before, after = session.at(position), session.at(position + 1)
    assert (before[Item].all(), before.attached("files").list()) == ((), [])
    assert (after[Item].all(), after.attached("files").list()) == ((Item(1),), ["a"])


def test_a_view_takes_files_that_nobody_attached_yet(session: Session, reopen: Opens) -> None:
    """After a restart a view can be given files to fill; they can be read only."""
    files = InMemoryFilesystem()
    session.attach("files", files)
    files.write("a", "1")
    view, filled = reopen().at(2), InMemoryFilesystem()
    view.attach("files", filled)
    assert filled.read("a") == "1"
    with pytest.raises(TransactionError):
        filled.write("a", "2")


def test_files_of_a_view_must_be_in_it(session: Session) -> None:
    """A view says when there were no such files then."""
    with pytest.raises(SessionStorageError) as raised:
        session.at(0).attach("files", InMemoryFilesystem())
    assert str(raised.value) == "No files were attached as 'files' at position 0."


def test_asking_for_files_that_are_not_attached(session: Session) -> None:
    """The error names what is attached."""
    session.attach("work", InMemoryFilesystem())
    with pytest.raises(SessionStorageError) as raised:
        session.attached("files")
    assert str(raised.value) == "No files are attached as 'files' (attached: work). Use session.attach first."


def test_a_name_is_attached_once(session: Session) -> None:
    """A second attachment of one name is refused."""
    session.attach("files", InMemoryFilesystem())
    with pytest.raises(SessionStorageError) as raised:
        session.attach("files", InMemoryFilesystem())
    assert str(raised.value) == "Cannot attach 'files' twice: the session has files of that name."


def test_files_belong_to_one_session(session: Session) -> None:
    """Files that a session keeps cannot be attached again, under another name either."""
    files = InMemoryFilesystem()
    session.attach("files", files)
    with pytest.raises(SessionStorageError) as raised:
        session.attach("other", files)
    assert str(raised.value) == "Cannot attach 'other': these files belong to a session already."


def test_files_are_not_attached_inside_a_transaction(session: Session) -> None:
    """What is not committed yet cannot be the beginning of a record."""
    with session.transaction(), pytest.raises(TransactionError) as raised:
        session.attach("files", InMemoryFilesystem())
    assert str(raised.value) == "Cannot attach files inside a transaction; attach them before it begins."


def test_a_session_in_memory_takes_files_too() -> None:
    """The same program runs with a session in memory."""
    session, files = Session(), InMemoryFilesystem()
    session.attach("files", files)
    assert session.attached("files") is files


# -- the record of a call ----------------------------------------------------------------------------------------------


def _invoked(number: int, value: object = None) -> ToolInvoked:
    return ToolInvoked(
        tool_name="read_file",
        params={"path": f"src/file_{number % 10}.py"},
        result=ToolResult.ok(value, "Read 3 lines."),
        success=True,
        timestamp=1_700_000_000.25 + number,
        duration=0.001,
        outcome="ok",
        retryable=False,
        call_id=f"call-{number}",
        rendered_output="Read 3 lines.",
        changes=Changes(("Item",)),
        session_id="session",
    )


def _call(session: Session, number: int) -> None:
    """What the pipeline does with a call that succeeded."""
    storage = session._core.storage
    assert storage is not None
    event = _invoked(number)
    scope = Scope()
    session.bound(scope)[Item].seed([Item(number)])
    storage.stage(event)
    scope.commit()
    storage.flush()


def test_a_commit_and_its_event_are_one_record(session: Session, reopen: Opens) -> None:
    """A staged event is written with the commit: neither is ever there without the other."""
    _call(session, 1)
    assert session.position == 1
    view = reopen().at(1)
    assert (view[Item].all(), view[ToolInvoked].all()) == ((Item(1),), (_invoked(1),))


def test_a_staged_event_without_a_commit_is_written_by_itself(session: Session, reopen: Opens) -> None:
    """A call that wrote nothing leaves its event."""
    storage = session._core.storage
    assert storage is not None
    storage.stage(_invoked(1))
    storage.flush()
    storage.flush()
    assert reopen()[ToolInvoked].all() == (_invoked(1),)


def test_an_unstaged_event_is_forgotten(session: Session, reopen: Opens) -> None:
    """The event of a commit that failed does not go with another one."""
    storage = session._core.storage
    assert storage is not None
    storage.stage(_invoked(1))
    storage.unstage()
    with session.transaction():
        session[Item].append(Item(1))
    storage.flush()
    assert reopen()[ToolInvoked].all() == ()


def test_the_staged_event_belongs_to_its_thread(session: Session, reopen: Opens) -> None:
    """A commit of another thread does not take it along."""
    storage = session._core.storage
    assert storage is not None

    def commit() -> None:
        with session.transaction():
            session[Item].append(Item(1))

    storage.stage(_invoked(1))
    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    storage.unstage()
    assert reopen()[ToolInvoked].all() == ()


def test_a_file_grows_with_what_happened(tmp_path: Path) -> None:
    """Twice the calls are twice the bytes, and a call takes less than a kilobyte."""
    sizes: list[int] = []
    for count in (1_000, 2_000):
        path = tmp_path / str(count)
        session = Session.open(path)
        for number in range(count):
            _call(session, number)
        session.close()
        sizes.append(path.stat().st_size)
    assert sizes[1] / sizes[0] <= 2.1
    assert sizes[1] / 2_000 <= 1_000


@pytest.mark.parametrize(
    "change",
    [
        lambda session, number: session[Tally].update("all", number),
        lambda session, number: session.dispatch(Item(number % 400)),
        lambda session, number: session[Item].clear(lambda item: item.number == number % 400),
        lambda session, number: session.restore(_appended(session, number)),
    ],
    ids=["update", "upsert", "clear", "restore"],
)
def test_a_change_of_a_long_slice_is_stored_as_the_change(
    session: Session, path: Path, change: Callable[[Session, int], object]
) -> None:
    """What an operation costs in the file does not depend on how much there was before."""
    session[Item].register(Item, upsert_by(lambda item: item.number))
    session[Item].append(*(Item(number) for number in range(400)))
    for number in range(400):
        session[Tally].update("all", number)
    change(session, 200)
    before = path.stat().st_size
    change(session, 201)
    assert path.stat().st_size - before < 100


def _appended(session: Session, number: int) -> Any:
    snapshot = session.snapshot()
    session[Item].append(Item(number))
    return snapshot


# -- finding by key ----------------------------------------------------------------------------------------------------


def test_a_recorded_call_is_found_by_its_id(session: Session, reopen: Opens) -> None:
    """A durable loop can ask whether a call was done before, in this run or in an earlier one."""
    for number in range(3):
        session.dispatch(_invoked(number))
    again = reopen()
    again.dispatch(_invoked(3))
    assert again[ToolInvoked].get("call-1") == _invoked(1)
    assert again[ToolInvoked].get("call-3") == _invoked(3)
    assert again[ToolInvoked].get("call-4") is None


@pytest.mark.parametrize("durable", [True, False])
def test_the_newest_item_of_a_key_is_found_in_a_long_log(session: Session, reopen: Opens, durable: bool) -> None:
    """Wherever the items of a log lie, the newest with the key is answered."""
    if not durable:
        session = Session()
    for number in range(1_500):
        session[Step].append(Step(str(number % 1_400), number))
        if number == 700:
            assert session[Step].get("300") == Step("300", 300)
            if durable:
                session = reopen()
    assert [session[Step].get(key) for key in ("0", "99", "100", "700", "701", "1399", "x")] == [
        Step("0", 1400),
        Step("99", 1499),
        Step("100", 100),
        Step("700", 700),
        Step("701", 701),
        Step("1399", 1399),
        None,
    ]


def test_a_slice_without_key_says_so(session: Session) -> None:
    """Asking a slice by key that declares none is the caller's mistake."""
    with pytest.raises(TypeError) as raised:
        session[Item].get(1)
    assert str(raised.value) == "Item has no key; declare it with @keyed_slice(...) or @log_slice(key=...)."


def test_a_reset_forgets_keys(session: Session) -> None:
    """What was reset is not found any more."""
    session[Step].append(Step("a"))
    assert session[Step].get("a") == Step("a")
    session.reset()
    assert session[Step].get("a") is None


def test_history_is_read_after_close(session: Session, reopen: Opens) -> None:
    """A closed session can still be read."""
    session[Step].append(Step("a"))
    again = reopen()
    again.close()
    assert (again[Step].all(), again[Step].latest()) == ((Step("a"),), Step("a"))


# -- types that change -------------------------------------------------------------------------------------------------


@pytest.fixture
def program() -> Iterator[Callable[..., Any]]:
    """Makes a class in a module that can change between two runs of a program; without fields it is removed."""
    module = ModuleType("program_of_the_test")
    sys.modules[module.__name__] = module

    def define(name: str, *fields: Any, version: int = 1, mark: Callable[[Any], Any] | None = None) -> Any:
        # Another run of a program would not know the classes of this one; a new alias makes names be looked up again.
        register_alias("program_of_the_test:no name", "program_of_the_test:no other name")
        if not fields:
            delattr(module, name)
            return None
        made = make_dataclass(name, fields, frozen=True, namespace={"__schema_version__": version})
        made.__module__ = module.__name__
        setattr(module, name, made if mark is None else mark(made))
        return made

    yield define
    del sys.modules[module.__name__]


def test_an_unknown_type_is_kept_and_named(session: Session, reopen: Opens, program: Any, tmp_path: Path) -> None:
    """A slice whose class is gone is listed with the reason, survives a fork, and is back with its class."""
    gone = program("Gone", ("text", str))
    session[gone].append(gone("kept"))
    session[Item].append(Item(1))
    program("Gone")
    again = reopen()
    reason = (
        "Cannot read the stored slice program_of_the_test:Gone: there is no class program_of_the_test:Gone. "
        "Bring the class back or register an alias for it, then open the session again."
    )
    assert again.unreadable == {"program_of_the_test:Gone": reason}
    assert again[Item].all() == (Item(1),)
    with pytest.raises(SessionStorageError) as raised:
        again[gone].all()
    assert str(raised.value) == reason
    with pytest.raises(SessionStorageError):
        again.dispatch(gone("more"))

    again.fork(None, tmp_path / "fork").close()
    back = program("Gone", ("text", str))
    fork = Session.open(tmp_path / "fork")
    assert fork[back].all() == (back("kept"),)
    assert fork.unreadable == {}
    fork.close()


def test_an_unknown_log_type_is_kept_and_named(session: Session, reopen: Opens, program: Any) -> None:
    """History of a class that is gone is listed, and is back with its class."""
    gone = program("Gone", ("text", str), mark=log_slice)
    session[gone].append(gone("kept"))
    program("Gone")
    assert list(reopen().unreadable) == ["program_of_the_test:Gone"]
    back = program("Gone", ("text", str), mark=log_slice)
    assert reopen()[back].all() == (back("kept"),)


def test_a_reset_ends_what_cannot_be_read(session: Session, reopen: Opens, program: Any) -> None:
    """After a reset nothing unreadable is left."""
    gone = program("Gone", ("text", str))
    session[gone].append(gone("kept"))
    program("Gone")
    again = reopen()
    again.reset()
    assert again.unreadable == {}
    assert reopen().unreadable == {}


def test_an_alias_brings_a_renamed_type_back(session: Session, reopen: Opens, program: Any) -> None:
    """Items stored under the old name and under the new one are one slice."""
    old = program("OldName", ("text", str))
    session[old].append(old("a"))
    program("OldName")
    new = program("NewName", ("text", str))
    register_alias("program_of_the_test:OldName", "program_of_the_test:NewName")
    again = reopen()
    again[new].append(new("b"))
    assert reopen()[new].all() == (new("a"), new("b"))


def test_an_upcaster_brings_old_items_to_the_new_form(session: Session, reopen: Opens, program: Any) -> None:
    """Items of an earlier version of a class become items of today's."""
    first = program("Grown", ("text", str))
    session[first].append(first("a"))
    second = program("Grown", ("text", str), ("length", int), version=2)
    register_upcaster("program_of_the_test:Grown", 1, lambda fields: {**fields, "length": len(fields["text"])})
    assert reopen()[second].all() == (second("a", 1),)


def test_a_newer_item_makes_its_slice_unreadable_until_replaced(session: Session, reopen: Opens, program: Any) -> None:
    """Reading or appending to what a newer program stored is refused with the reason; starting over is not."""
    newer = program("Newer", ("text", str), version=3)
    session[newer].append(newer("a"))
    older = program("Newer", ("text", str), version=2)
    again = reopen()
    reason = (
        "Cannot read the stored slice program_of_the_test:Newer: it was stored by a newer program (version 2 is known). "
        "Register an upcaster and open the session again, or start over with session[Newer].seed(...)."
    )
    assert again.unreadable == {"program_of_the_test:Newer": reason}
    for use in (
        again[older].all,
        again[older].latest,
        lambda: again[older].append(older("b")),
        lambda: len(again[older]),
    ):
        with pytest.raises(SessionStorageError) as raised:
            use()
        assert str(raised.value) == reason
    again[older].seed(older("c"))
    assert reopen()[older].all() == (older("c"),)


def test_a_keyed_slice_can_be_unreadable_too(session: Session, reopen: Opens, program: Any) -> None:
    """An update that today's class cannot make is a reason, and other slices are read all the same."""
    mark = keyed_slice(lambda item: item.name)
    keyed = program("Keyed", ("name", str), mark=mark)
    keyed.patched = classmethod(lambda cls, old, key, delta: cls(key))
    session[keyed].update("a", 1)
    session[Item].append(Item(1))
    keyed = program("Keyed", ("name", str), mark=mark)
    again = reopen()
    assert list(again.unreadable) == ["program_of_the_test:Keyed"]
    with pytest.raises(SessionStorageError):
        again[keyed].get("a")
    assert again[Item].all() == (Item(1),)
    again[keyed].clear()
    assert reopen()[keyed].all() == ()


def test_a_slice_declared_otherwise_is_not_guessed_at(session: Session, reopen: Opens, program: Any) -> None:
    """State cannot be read as history."""
    state = program("Turned", ("text", str))
    session[state].append(state("a"))
    log = program("Turned", ("text", str), mark=log_slice)
    with pytest.raises(SessionStorageError) as raised:
        reopen()[log].all()
    assert str(raised.value) == (
        "Cannot read the stored slice program_of_the_test:Turned: "
        "it was stored as state and its class is declared log now."
    )


def test_history_shows_what_it_cannot_read(session: Session, reopen: Opens, program: Any) -> None:
    """An event that holds a value of a lost class is still read; only that value is opaque and says why."""
    gone = program("Gone", ("text", str))
    session[Step].append(Step("a", gone("kept")))
    program("Gone")
    step = reopen()[Step].latest()
    assert step is not None
    assert step.value == Opaque("program_of_the_test:Gone", 1, {"text": "kept"})
    with pytest.raises(AttributeError, match="there is no class program_of_the_test:Gone"):
        _ = step.value.text


# -- what may not be written -------------------------------------------------------------------------------------------


class Unknown:
    """Nothing that could be stored."""


def test_secrets_never_reach_the_file(session: Session, reopen: Opens, path: Path) -> None:
    """Secret fields are redacted in state, in history and in what can be stored in part only."""
    login = Login("ann", "hunter2")
    session[Login].append(login)
    session[Step].append(Step("a", [login]))
    session[LoginSeen].append(LoginSeen(login), LoginSeen(login, Unknown()))
    session.registers.update("login", lambda _: (login, None))
    assert b"hunter" not in path.read_bytes()
    assert reopen()[Login].all() == (Login("ann", "[redacted]"),)


def test_state_that_cannot_be_stored_is_refused(session: Session, path: Path) -> None:
    """A value without a stored form fails its write, and the transaction it is in, as a whole."""
    before = path.read_bytes()
    with pytest.raises(SessionStorageError) as raised, session.transaction():
        session[Item].append(Item(1))
        session[Unknown].append(Unknown())
    assert str(raised.value).startswith("This cannot be kept in a durable session. Cannot store $: ")
    assert (session[Item].all(), session[Unknown].all(), session.position) == ((), (), 0)
    assert path.read_bytes() == before


def test_what_a_refused_write_would_have_named_is_named_again(session: Session, reopen: Opens) -> None:
    """A type first met in a write that failed is described in the next one."""
    with pytest.raises(SessionStorageError), session.transaction():
        session[Item].append(Item(1))
        session[Unknown].append(Unknown())
    session[Item].append(Item(2))
    assert reopen()[Item].all() == (Item(2),)


def test_history_is_recorded_whatever_it_holds(session: Session, reopen: Opens) -> None:
    """A part of an event that cannot be stored is left out by name; the event is there."""
    session[Step].append(Step("a", {"deep": [Unknown(), 1]}))
    step = reopen()[Step].get("a")
    assert step is not None
    unknown = step.value["deep"][0] if not isinstance(step, Opaque) else None
    assert isinstance(unknown, Opaque)
    assert unknown.type_name == f"{Unknown.__module__}:Unknown"
    assert step.value["deep"][1] == 1


# -- opening and closing -----------------------------------------------------------------------------------------------


def test_one_session_at_a_time_has_a_file(session: Session, path: Path) -> None:
    """A second opening is refused and says what to close."""
    with pytest.raises(SessionStorageError) as raised:
        Session.open(path)
    assert str(raised.value) == (
        f"Cannot open {path}: another session has it open, here or in another process. "
        "Close that one (session.close(), or end its process), then retry."
    )


def test_a_closed_session_refuses_writes(session: Session) -> None:
    """After close nothing is written; the error says how to go on."""
    files = InMemoryFilesystem()
    session.attach("files", files)
    session.close()
    session.close()
    text = "The session is closed: its file was released. Open it again with Session.open(path) to go on."
    with pytest.raises(TransactionError) as refused:
        session[Item].append(Item(1))
    assert str(refused.value) == text
    with pytest.raises(SessionStorageError) as raised:
        files.write("a", "b")
    assert str(raised.value) == text


def test_a_session_closes_at_the_end_of_its_block(path: Path) -> None:
    """Used as a context manager, a session releases its file."""
    with Session.open(path) as session:
        session[Item].append(Item(1))
    with Session.open(path) as session:
        assert session[Item].all() == (Item(1),)


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    """What is not a session is not opened and not changed."""
    path.write_text("dear diary\n")
    with pytest.raises(SessionStorageError) as raised:
        Session.open(path)
    assert str(raised.value) == f"{path} is not a session file. Choose another path."
    assert path.read_text() == "dear diary\n"


def test_a_file_of_a_newer_format_is_refused(path: Path) -> None:
    """A format this program does not know is named."""
    path.write_text('{"wink":"session","format":2,"session_id":"a"}\n')
    with pytest.raises(SessionStorageError) as raised:
        Session.open(path)
    assert (
        str(raised.value) == f"Cannot read {path}: it has format 2, this program knows format 1. Use a newer program."
    )


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """An error of the operating system becomes a clear one."""
    with pytest.raises(SessionStorageError) as raised:
        Session.open(tmp_path / "no" / "folder")
    assert str(raised.value) == f"Cannot open the session file {tmp_path / 'no' / 'folder'}: No such file or directory."


def test_a_session_file_is_private(session: Session, path: Path, tmp_path: Path) -> None:
    """Only the owner may read what a session keeps."""
    session.fork(0, tmp_path / "fork").close()
    assert [place.stat().st_mode & 0o777 for place in (path, tmp_path / "fork")] == [0o600, 0o600]


def test_every_write_can_be_synced(path: Path) -> None:
    """With fsync a session keeps what it keeps without."""
    with Session.open(path, fsync=True) as session:
        session[Item].append(Item(1))
        session.fork(1, path.with_name("fork")).close()
    with Session.open(path.with_name("fork")) as session:
        assert session[Item].all() == (Item(1),)


def test_a_journal_can_ask_what_was_committed(session: Session, reopen: Opens) -> None:
    """The file is the truth about a transaction: committed or not, now and after a restart."""
    kept, dropped = Scope(), Scope()
    session.bound(kept)[Item].append(Item(1))
    session.bound(dropped)[Item].append(Item(2))
    ids = kept.txn_id, dropped.txn_id
    assert not session.committed(ids[0])
    kept.commit()
    dropped.rollback()
    assert [session.committed(txn_id) for txn_id in ids] == [True, False]
    assert [reopen().committed(txn_id) for txn_id in ids] == [True, False]
    assert reopen().at(0).committed(ids[0]) is False


@dataclass(frozen=True)
class Rich:
    """Something of everything."""

    pairs: dict[int, str] = field(default_factory=dict[int, str])
    names: frozenset[str] = frozenset()
    of: type = Item
    data: bytes = b""
    text: str = ""
    items: tuple[Any, ...] = ()


def test_rich_values_come_back_as_they_were(session: Session, reopen: Opens) -> None:
    """Values of many kinds are equal after a restart, dollar signs and numbers in odd places included."""
    rich = Rich(
        {1: "a"},
        frozenset({"b"}),
        Step,
        b"\xff\n",
        "line\nline \ud800 \U0001f600",
        ({"$": [0, 1]}, {"$": 3}, [[1, 2]], ()),
    )
    session[Rich].append(rich)
    session[Step].append(Step("a\nb", rich))
    again = reopen()
    assert again[Rich].all() == (rich,)
    assert again[Step].get("a\nb") == Step("a\nb", rich)


def test_a_slice_that_becomes_keyed_keeps_its_items(session: Session, reopen: Opens, program: Any) -> None:
    """Items stored before a class was declared keyed are brought under their keys, and edits go on from there."""
    fields = ("name", str), ("size", int)
    plain = program("Turned", *fields)
    session[plain].append(plain("a", 1), plain("a", 2), plain("b", 3), plain("c", 4))
    session[plain].clear(lambda item: item.size == 4)
    keyed = program("Turned", *fields, mark=keyed_slice(lambda item: item.name))
    again = reopen()
    assert again[keyed].all() == (keyed("a", 2), keyed("b", 3))
    again[keyed].append(keyed("d", 5))
    again[keyed].clear(lambda item: item.name == "a")
    assert reopen()[keyed].all() == (keyed("b", 3), keyed("d", 5))
