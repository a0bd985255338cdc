"""Sessions: typed slices, pure reducers applied at once, history that stays, events that reach those who listen."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.clock import FakeClock
from weakincentives.errors import TransactionError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.runtime import (
    Append,
    Clear,
    EventBus,
    Extend,
    Replace,
    Session,
    SliceKind,
    ToolCall,
    append_all,
    execute_tool,
    keyed_slice,
    log_slice,
    reducer,
    replace_latest,
    upsert_by,
)


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    text: str


@dataclass(frozen=True, slots=True)
class Count:
    value: int = 0


@log_slice
@dataclass(frozen=True, slots=True)
class Line:
    number: int


@log_slice(key=lambda entry: entry.name)
@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    value: int


@keyed_slice(lambda setting: setting.name)
@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: int

    @classmethod
    def patched(cls, old: Setting | None, key: str, delta: int) -> Setting:
        return cls(key, (old.value if old else 0) + delta)


@dataclass(frozen=True, slots=True)
class Step:
    name: str = ""


def in_a_call(session: Session, work: Callable[[Any], object], *, success: bool = True) -> Any:
    """Run `work` inside a tool call that ends so."""

    def handler(params: Step, *, context: Any) -> ToolResult[str]:
        work(context)
        return ToolResult.ok("ok") if success else ToolResult.error("failed")

    tool = Tool[Step, str](name="work", description="Works.", handler=handler)
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="T", template="t", tools=[tool])]))
    return execute_tool(ToolCall("work", {}), prompt=prompt, session=session)


def add_note(view: Any, event: Added, *, context: Any) -> Any:
    return Append(Note(event.text))


def count_up(view: Any, event: Added, *, context: Any) -> Any:
    return Replace((Count((view.latest() or Count()).value + 1),))


# -- slices --------------------------------------------------------------------------------------------------------------


def test_a_session_needs_no_arguments_and_starts_empty() -> None:
    """Every slice of every type is there, and empty."""
    session = Session()
    assert session[Note].all() == ()
    assert session[Note].latest() is None
    assert len(session[Note]) == 0
    assert bool(session[Note])
    assert Session().session_id != session.session_id


def test_a_slice_is_appended_to_seeded_filtered_and_cleared() -> None:
    """The whole of S44's slice."""
    notes = Session()[Note]
    notes.append(Note("a"), Note("b", "x"))
    notes.append(Note("c"))
    assert [note.text for note in notes] == ["a", "b", "c"]
    assert notes.latest() == Note("c")
    assert notes.where(lambda note: note.tag == "x") == (Note("b", "x"),)
    notes.clear(lambda note: note.text == "a")
    assert len(notes) == 2
    notes.seed(Note("only"))
    assert notes.all() == (Note("only"),)
    notes.seed([Note("1"), Note("2")])
    assert notes.all() == (Note("1"), Note("2"))
    notes.clear()
    assert notes.all() == ()


@given(st.lists(st.integers(0, 3), max_size=150), st.integers(0, 70))
def test_a_slice_behaves_like_a_list_at_any_length(numbers: list[int], cut: int) -> None:
    """Chunks and tails are nobody's business: order, length and last item are a list's."""
    session, expected = Session(), list[Count]()
    for place, number in enumerate(numbers):
        if number == 0 and place % 7 == 0:
            expected = [Count(each) for each in range(cut)]
            session[Count].seed(tuple(expected))
        else:
            session[Count].append(Count(number))
            expected.append(Count(number))
        assert session[Count].latest() == (expected[-1] if expected else None)
    assert session[Count].all() == tuple(expected)
    assert len(session[Count]) == len(expected)


def test_a_keyed_slice_holds_one_item_per_key_in_the_place_of_the_first() -> None:
    """Appending replaces; `get` finds by key; `update` patches."""
    settings = Session()[Setting]
    settings.append(Setting("a", 1), Setting("b", 2), Setting("a", 3))
    assert settings.all() == (Setting("a", 3), Setting("b", 2))
    assert settings.get("a") == Setting("a", 3)
    assert settings.get("z") is None
    settings.update("b", 10)
    settings.update("new", 1)
    assert settings.all() == (Setting("a", 3), Setting("b", 12), Setting("new", 1))
    assert settings.latest() == Setting("new", 1)
    settings.clear(lambda setting: setting.name == "a")
    assert settings.all() == (Setting("b", 12), Setting("new", 1))


def test_get_and_update_refuse_slices_without_a_key() -> None:
    """The refusal says how to declare one."""
    session = Session()
    with pytest.raises(
        TypeError, match=r"Note has no key; declare it with @keyed_slice\(\.\.\.\) or @log_slice\(key=\.\.\.\)\."
    ):
        session[Note].get("a")
    with pytest.raises(TypeError, match="Note is not a keyed slice; declare it with @keyed_slice"):
        session[Note].update("a", 1)


def test_a_session_is_no_sequence() -> None:
    """Iterating it by mistake says what to do instead of asking for slice 0, 1, 2 …"""
    with pytest.raises(TypeError, match=r"A session is not iterable; ask for a slice: session\[Plan\]\.all\(\)"):
        iter(Session())


# -- LOG -----------------------------------------------------------------------------------------------------------------


def test_a_log_only_grows() -> None:
    """Clearing and re-seeding a LOG slice are refused; the first seed of an empty one is a beginning."""
    session = Session()
    session[Line].seed([Line(1), Line(2)])
    session[Line].append(Line(3), Line(4))
    for write in (lambda: session[Line].clear(), lambda: session[Line].seed(Line(9))):
        with pytest.raises(
            TransactionError,
            match=r"Line is a LOG slice: it can be appended to only\. session\.reset\(\) forgets all\.",
        ):
            write()
    assert session[Line].all() == tuple(map(Line, (1, 2, 3, 4)))


def test_a_rollback_never_shortens_a_log() -> None:
    """Invariant 2 of transactions."""
    session = Session()
    in_a_call(session, lambda context: context.session[Line].append(Line(1)), success=False)
    with contextlib.suppress(KeyError), session.transaction():
        session[Line].append(Line(2))
        raise KeyError
    assert session[Line].all() == (Line(1), Line(2))


def test_a_log_finds_the_newest_item_by_its_key() -> None:
    """In the tail, in packed blocks and across them."""
    session = Session()
    for number in range(1500):
        session[Entry].append(Entry(f"k{number % 100}", number))
        if number in (3, 700):
            assert session[Entry].get(f"k{number % 100}") == Entry(f"k{number % 100}", number)
    assert session[Entry].get("k7") == Entry("k7", 1407)
    assert session[Entry].get("nobody") is None
    session.reset()
    assert session[Entry].get("k7") is None


class Plain:
    """No dataclass, no equality: pickled like anything else."""

    def __init__(self, number: int) -> None:
        self.number = number


class Awkward(Exception):
    """Can be pickled and not unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first}{second}")


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int


class Child(Slotted):
    """A plain child of a class with slots has both kinds of storage."""


@dataclass
class Coded(Exception):
    number: int = 0


@dataclass
class Loose:
    number: int
    extra: dict[str, int] = field(default_factory=dict[str, int])


@log_slice
@dataclass(frozen=True)
class Record:
    value: Any


def local_class() -> Callable[[int], object]:
    @dataclass(frozen=True, slots=True)
    class Inside:
        number: int

    return Inside


@pytest.mark.parametrize(
    ("make", "number_of"),
    [
        (lambda n: Slotted(n), lambda v: v.number),
        (lambda n: Child(n), lambda v: v.number),
        (lambda n: Loose(n, {"a": n}), lambda v: v.extra["a"]),
        (lambda n: Coded(n), lambda v: v.number),
        (lambda n: Plain(n), lambda v: v.number),
        (lambda n: Awkward(n, n), lambda v: int(str(v)[: len(str(v)) // 2])),
        (lambda n: lambda: n, lambda v: v()),
        (lambda n: {"deep": [Child(n), {"x": Coded(n)}]}, lambda v: v["deep"][1]["x"].number),
        (local_class(), lambda v: v.number),
        (lambda n: threading.Lock() if n == 3 else n, lambda v: 3 if not isinstance(v, int) else v),
    ],
)
def test_nothing_is_lost_when_old_history_is_packed(
    make: Callable[[int], object], number_of: Callable[[Any], int]
) -> None:
    """A thousand items later each one still says what it said, whatever kind of object it is."""
    session = Session()
    for number in range(1000):
        session[Record].append(Record(make(number)))
    assert [number_of(record.value) for record in session[Record].all()] == list(range(1000))


def test_items_that_are_subclasses_survive_packing_as_what_they_are() -> None:
    """A log of a plain child of a slotted dataclass keeps fields and class."""

    session = Session()
    for number in range(600):
        session[LineChild].append(LineChild(number))
    first = session[LineChild].all()[0]
    assert type(first) is LineChild
    assert first.number == 0


class LineChild(Line):
    pass


# -- events and reducers -------------------------------------------------------------------------------------------------


def test_an_event_without_a_reducer_is_kept_in_the_slice_of_its_type() -> None:
    """Nothing dispatched is lost."""
    session = Session()
    session.dispatch(Added("x"))
    assert session[Added].all() == (Added("x"),)


def test_all_reducers_of_an_event_see_it_and_its_own_slice_does_not() -> None:
    """Two slices change by one event."""
    session = Session()
    session[Note].register(Added, add_note)
    session[Count].register(Added, count_up)
    session.dispatch(Added("x"))
    session.dispatch(Added("y"))
    assert session[Note].all() == (Note("x"), Note("y"))
    assert session[Count].all() == (Count(2),)
    assert session[Added].all() == ()


def test_a_reducer_registered_twice_counts_once() -> None:
    """A section installs its reducers at every evaluation."""
    session = Session()
    for _ in range(3):
        session[Note].register(Added, add_note)
    session.dispatch(Added("x"))
    assert len(session[Note]) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_reducers_of_one_event_apply_all_or_none(inside: bool) -> None:
    """S44: the second raises, the first did not happen; so with a LOG among them."""

    def refuse(view: Any, event: Added, *, context: Any) -> Any:
        raise ValueError("refused")

    def clear_log(view: Any, event: Added, *, context: Any) -> Any:
        return Clear()

    for broken_slice, broken in ((Count, refuse), (Line, refuse), (Line, clear_log)):
        session = Session()
        session[Note].register(Added, add_note)
        session[broken_slice].register(Added, broken)

        def work(session: Session = session) -> None:
            with pytest.raises((ValueError, TransactionError)):
                session.dispatch(Added("x"))

        if inside:
            assert in_a_call(session, lambda context, work=work: work()).success
        else:
            work()
        assert session[Note].all() == ()
        assert session[Line].all() == ()


def test_a_log_reducer_may_append_only() -> None:
    """The refusal names slice and operation."""
    session = Session()
    session[Line].register(Added, lambda view, event, *, context: Replace(()))
    with pytest.raises(TransactionError, match=r"Line is a LOG slice: its reducer may append only, not Replace\."):
        session.dispatch(Added("x"))
    session = Session()
    session[Line].register(Added, lambda view, event, *, context: Extend([Line(len(view)), Line(7)]))
    session.dispatch(Added("x"))
    assert session[Line].all() == (Line(0), Line(7))


@pytest.mark.parametrize("inside", [False, True])
def test_a_reducer_that_writes_is_refused(inside: bool) -> None:
    """A reducer is pure: a write from inside it would be lost, so it says so."""
    session = Session()

    def impure(view: Any, event: Added, *, context: Any) -> Any:
        session[Count].append(Count(1))
        return Append(Note(event.text))

    session[Note].register(Added, impure)

    def dispatch(_: object = None) -> None:
        with pytest.raises(
            TransactionError,
            match="A reducer must be pure: it cannot write to the session it reduces",
        ):
            session.dispatch(Added("x"))

    if inside:
        in_a_call(session, dispatch)
    else:
        dispatch()
    assert (session[Count].all(), session[Note].all()) == ((), ())


def test_a_reducer_that_answers_nonsense_is_refused() -> None:
    """It names what it expects."""
    session = Session()
    session[Note].register(Added, lambda view, event, *, context: [Note("x")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="A reducer must return Append, Extend, Replace or Clear, got list"):
        session.dispatch(Added("x"))


def test_a_reducer_knows_its_session_and_slice() -> None:
    """And its view: all, latest, where, is_empty, length."""
    session, seen = Session(session_id="s1"), list[Any]()

    def look(view: Any, event: Added, *, context: Any) -> Any:
        seen.append((context.session_id, context.slice_type, view.is_empty, len(view), view.all(), list(view)))
        return Append(Note(event.text))

    session[Note].register(Added, look)
    session.dispatch(Added("x"))
    assert seen == [("s1", Note, True, 0, (), [])]


def test_the_ready_made_reducers_do_what_they_say() -> None:
    """append_all, replace_latest, upsert_by."""
    session = Session()
    session[Note].register(Note, upsert_by(lambda note: note.tag))
    for note in (Note("1", "a"), Note("2", "b"), Note("3", "a")):
        session.dispatch(note)
    assert session[Note].all() == (Note("3", "a"), Note("2", "b"))
    session[Count].register(Count, replace_latest)
    session.dispatch(Count(1))
    session.dispatch(Count(2))
    assert session[Count].all() == (Count(2),)
    session[Added].register(Added, append_all)
    session.dispatch(Added("x"))
    session.dispatch(Added("x"))
    assert len(session[Added]) == 2


def test_declared_reducers_are_methods_of_the_slice() -> None:
    """`@reducer(on=Event)`: the latest item is self; without one and without `initial` nothing happens."""

    @dataclass(frozen=True)
    class Plan:
        steps: tuple[str, ...] = ()

        @reducer(on=Added)
        def add(self, event: Added) -> Plan:
            return replace(self, steps=(*self.steps, event.text))

        @reducer(on=Count)
        def wipe(self, event: Count) -> Any:
            return Clear()

    session = Session()
    session.install(Plan)
    session.dispatch(Added("lost"))
    assert session[Plan].all() == ()
    session[Plan].seed(Plan())
    session.dispatch(Added("x"))
    session.dispatch(Added("y"))
    assert session[Plan].latest() == Plan(("x", "y"))
    session.dispatch(Count(0))
    assert session[Plan].all() == ()
    other = Session()
    other.install(Plan, initial=Plan)
    other.dispatch(Added("x"))
    assert other[Plan].latest() == Plan(("x",))
    with pytest.raises(TypeError, match=r"Note has no @reducer methods to install"):
        other.install(Note)


def test_many_threads_dispatching_lose_no_update() -> None:
    """Reducers apply atomically without any call around them."""
    session = Session()
    session[Count].register(Added, count_up)

    def run() -> None:
        for _ in range(100):
            session.dispatch(Added("x"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session[Count].latest() == Count(800)


# -- subscribers ---------------------------------------------------------------------------------------------------------


def test_a_bus_delivers_by_type_and_base_until_unsubscribed() -> None:
    """In the order of subscription; the returned function ends it."""
    bus, heard = EventBus(), list[str]()
    bus.subscribe(Line, lambda event: heard.append("line"))
    stop = bus.subscribe(object, lambda event: heard.append(type(event).__name__))
    bus.dispatch(LineChild(1))
    stop()
    stop()
    bus.dispatch(LineChild(2))
    bus.dispatch(Note("x"))
    assert heard == ["line", "LineChild", "line"]


def test_a_raising_subscriber_changes_nothing() -> None:
    """The others still hear, the event is kept."""
    session, heard = Session(), list[object]()

    def boom(event: object) -> None:
        raise RuntimeError("subscriber")

    session.dispatcher.subscribe(Added, boom)
    session.dispatcher.subscribe(Added, heard.append)
    session.dispatch(Added("x"))
    assert heard == [Added("x")]
    assert session[Added].all() == (Added("x"),)


def test_the_sessions_dispatcher_records_and_its_bus_hears() -> None:
    """What is dispatched on `session.dispatcher` is an event of the session; the outer bus is told, too."""
    bus, heard = EventBus(), list[object]()
    bus.subscribe(Added, heard.append)
    session = Session(bus=bus)
    session.dispatcher.dispatch(Added("x"))
    assert session[Added].all() == (Added("x"),)
    assert heard == [Added("x")]


@pytest.mark.parametrize("success", [True, False])
def test_events_of_a_call_are_delivered_in_order_after_it_is_kept_and_never_if_not(success: bool) -> None:
    """Subscribers hear of nothing that a rollback takes back."""
    session, heard = Session(), list[tuple[str, int]]()
    session.dispatcher.subscribe(Added, lambda event: heard.append((event.text, len(session[Added]))))

    def work(context: Any) -> None:
        for text in "abc":
            context.session.dispatch(Added(text))
        assert heard == []

    in_a_call(session, work, success=success)
    assert heard == ([("a", 3), ("b", 3), ("c", 3)] if success else [])


def test_a_subscriber_may_call_tools_itself() -> None:
    """It runs after the lock was given back."""
    session, outcomes = Session(), list[str]()

    def react(event: Added) -> None:
        if event.text == "first":
            outcomes.append(in_a_call(session, lambda context: context.session.dispatch(Added("second"))).outcome)

    session.dispatcher.subscribe(Added, react)
    assert in_a_call(session, lambda context: context.session.dispatch(Added("first"))).success
    assert outcomes == ["ok"]
    assert session[Added].all() == (Added("first"), Added("second"))


def test_events_from_several_threads_of_one_call_are_all_delivered() -> None:
    """A handler's threads dispatch through its context; none is lost."""
    session, heard = Session(), list[object]()
    session.dispatcher.subscribe(Added, heard.append)

    def work(context: Any) -> None:
        def dispatch() -> None:
            for number in range(100):
                context.session.dispatch(Added(str(number)))

        threads = [threading.Thread(target=dispatch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_a_call(session, work)
    assert len(heard) == len(session[Added]) == 400


# -- as a whole ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_brings_state_back_and_leaves_history() -> None:
    """Restore as often as one likes; LOG stays."""
    session = Session()
    session[Note].append(Note("a"))
    snapshot = session.snapshot()
    for _ in range(2):
        session[Note].append(Note("b"))
        session[Line].append(Line(1))
        session.restore(snapshot)
        assert session[Note].all() == (Note("a"),)
    assert len(session[Line]) == 2
    with pytest.raises(TransactionError, match="This snapshot belongs to another session and cannot be restored here"):
        Session().restore(snapshot)


def test_a_snapshot_taken_in_a_call_takes_back_only_the_calls_own_writes() -> None:
    """Restoring inside the call that took it leaves a bystander's write alone."""
    session = Session()

    def work(context: Any) -> None:
        context.session[Note].append(Note("kept"))
        snapshot = context.session.snapshot()
        context.session[Note].append(Note("dropped"))
        contextvars.Context().run(session[Note].append, Note("theirs"))
        context.session.restore(snapshot)

    assert in_a_call(session, work).success
    assert sorted(note.text for note in session[Note].all()) == ["kept", "theirs"]


def test_reset_forgets_everything_but_not_inside_a_transaction() -> None:
    """All slices, LOG included, and the registers."""
    session = Session()
    session[Note].append(Note("a"))
    session[Line].append(Line(1))
    session.registers.update("r", lambda old: (1, None))
    with (
        session.transaction(),
        pytest.raises(
            TransactionError,
            match="Cannot reset the session inside a transaction: history could not be brought back",
        ),
    ):
        session.reset()
    session.reset()
    assert (session[Note].all(), session[Line].all(), session.registers.copy()) == ((), (), {})


def test_a_clone_goes_its_own_way() -> None:
    """Same content and reducers, nothing shared afterwards."""
    session = Session(clock=FakeClock(5.0))
    session[Note].register(Added, add_note)
    session.dispatch(Added("a"))
    session[Line].append(Line(1))
    twin = session.clone()
    twin.dispatch(Added("b"))
    twin[Line].append(Line(2))
    session[Line].append(Line(3))
    assert session[Note].all() == (Note("a"),)
    assert twin[Note].all() == (Note("a"), Note("b"))
    assert (session[Line].all(), twin[Line].all()) == ((Line(1), Line(3)), (Line(1), Line(2)))
    assert twin.session_id != session.session_id
    assert twin.clock is session.clock
    assert twin != session


def test_handles_of_one_session_are_equal() -> None:
    """The handle in a context is the session, bound to its call."""
    session, seen = Session(), list[bool]()
    in_a_call(
        session, lambda context: seen.extend([context.session == session, hash(context.session) == hash(session)])
    )
    assert seen == [True, True]


def test_registers_change_atomically_and_outlive_rollbacks() -> None:
    """Counters that a rollback does not undo; None removes."""
    session = Session()

    def take(old: int | None) -> tuple[int, int]:
        return (old or 0) + 1, (old or 0)

    in_a_call(session, lambda context: context.session.registers.update("seats", take), success=False)
    assert session.registers.update("seats", take) == 1
    assert session.registers.get("seats") == 2
    session.registers.update("seats", lambda old: (None, None))
    assert session.registers.get("seats", "gone") == "gone"


def test_slices_are_state_unless_declared() -> None:
    """SliceKind names the two ways to live."""
    assert {kind.value for kind in SliceKind} == {"state", "log"}


def test_what_only_durable_sessions_can_do_says_so() -> None:
    """In memory there is no time travel."""
    from weakincentives.errors import SessionStorageError

    session = Session()
    for ask in (lambda: session.position, lambda: session.at(0), lambda: session.fork()):
        with pytest.raises(
            SessionStorageError, match=r"This session is in memory only\. Open it with Session\.open\(path\)"
        ):
            ask()
