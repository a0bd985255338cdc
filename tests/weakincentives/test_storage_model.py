"""Durable sessions against an in-memory one: the same operations, reopened anywhere, read back at every position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.session import Session, keyed_slice, log_slice, upsert_by


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    size: int


@keyed_slice(lambda counter: counter.name)
@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    values: tuple[int, ...]

    @classmethod
    def patched(cls, old: Counter | None, key: str, delta: int) -> Counter:
        return cls(key, (*(old.values if old else ()), delta))


@dataclass(frozen=True, slots=True)
class Named:
    """An event that keeps one item per name."""

    name: str
    size: int


@log_slice(key=lambda note: note.number)
@dataclass(frozen=True, slots=True)
class Note:
    number: int


class World:
    """A session and its files, whatever keeps them."""

    def __init__(self, session: Session, files: InMemoryFilesystem) -> None:
        self.session = session
        self.files = files
        session[Named].register(Named, upsert_by(lambda named: named.name))

    def begin(self) -> None:
        """Something to work on."""
        self.session[Task].seed([Task(name, size) for size, name in enumerate("abcdefgh")])

    def content(self) -> dict[str, Any]:
        session, files = self.session, self.files
        return {
            "tasks": session[Task].all(),
            "counters": session[Counter].all(),
            "named": session[Named].all(),
            "notes": session[Note].all(),
            "registers": session.registers.copy(),
            "files": {path: files.read(path) for path in files.glob("**/*") if files.is_file(path)},
        }


names = st.sampled_from(["a", "b", "c", "d"])
sizes = st.integers(0, 9)
tasks = st.builds(Task, names, sizes)

Step = Callable[[World], object]


def _delete(world: World, path: str) -> None:
    if world.files.exists(path):
        world.files.delete(path)
    else:
        world.files.write(path, "made instead")


def _rearrange(world: World, places: list[int], new: Task) -> None:
    """Put some of what is there, and one more, in place of everything."""
    there = world.session[Task].all()
    world.session[Task].seed([*(there[place % len(there)] for place in places if there), new])


def _steps(world: World, steps: list[Step]) -> None:
    with world.session.transaction():
        for step in steps:
            step(world)


def _rewind(world: World, steps: list[Step]) -> None:
    snapshot = world.session.snapshot()
    for step in steps:
        step(world)
    world.session.restore(snapshot)


writes: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda task: lambda world: world.session[Task].append(task), tasks),
    st.builds(lambda some: lambda world: world.session[Task].append(*some), st.lists(tasks, min_size=2, max_size=4)),
    st.builds(lambda some: lambda world: world.session[Task].seed(some), st.lists(tasks, max_size=3)),
    st.builds(lambda size: lambda world: world.session[Task].clear(lambda task: task.size < size), sizes),
    st.builds(lambda name: lambda world: world.session[Task].clear(lambda task: task.name == name), names),
    st.builds(
        lambda places, task: lambda world: _rearrange(world, places, task),
        st.lists(st.integers(0, 9), max_size=9),
        tasks,
    ),
    st.builds(lambda name, size: lambda world: world.session.dispatch(Named(name, size)), names, sizes),
    st.builds(lambda name, size: lambda world: world.session[Counter].update(name, size), names, sizes),
    st.builds(lambda name: lambda world: world.session[Counter].clear(lambda counter: counter.name == name), names),
    st.builds(lambda name, text: lambda world: world.files.write(name, text), names, st.text(max_size=5)),
    st.builds(lambda name: lambda world: world.files.append(f"dir/{name}", "+"), names),
    st.builds(lambda name: lambda world: _delete(world, name), names),
)
operations: st.SearchStrategy[Step] = st.one_of(
    writes,
    st.builds(lambda steps: lambda world: _steps(world, steps), st.lists(writes, min_size=1, max_size=4)),
    st.builds(lambda number: lambda world: world.session[Note].append(Note(number)), sizes),
    st.builds(
        lambda name, size: lambda world: world.session.registers.update(name, lambda _: (size or None, None)),
        names,
        sizes,
    ),
)
rare: st.SearchStrategy[Step] = st.one_of(
    st.just(lambda world: world.session.reset()),
    st.just(lambda world: world.session[Task].clear()),
    st.builds(lambda steps: lambda world: _rewind(world, steps), st.lists(writes, max_size=3)),
)
REOPEN = "reopen"
programs = st.lists(st.one_of(operations, operations, operations, rare, st.just(REOPEN)), max_size=20)


def _open(path: Path) -> World:
    session = Session.open(path)
    files = InMemoryFilesystem()
    session.attach("files", files)
    return World(session, files)


@settings(max_examples=300)
@given(programs, st.data())
def test_every_position_is_what_the_model_was_then(program: list[Any], data: st.DataObject) -> None:
    """Reopened at any time, viewed or forked at any position, a durable session equals the in-memory one."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "session")
        durable = _open(path)
        model = World(Session(), InMemoryFilesystem())
        durable.begin()
        model.begin()
        history = {durable.session.position: model.content()}
        for step in program:
            if step == REOPEN:
                durable.session.close()
                durable = _open(path)
            else:
                step(durable)
                step(model)
                history[durable.session.position] = model.content()
            assert durable.content() == model.content()

        for position, content in history.items():
            view = durable.session.at(position)
            assert World(view, view.attached("files")).content() == content

        position = data.draw(st.sampled_from(sorted(history)))
        where = data.draw(st.sampled_from([None, Path(folder, "fork")]))
        forked = durable.session.fork(position, where)
        fork, expected = World(forked, forked.attached("files")), history[position]
        assert fork.content() == expected
        forked[Task].append(Task("forked", 1))
        assert fork.content() == expected | {"tasks": (*expected["tasks"], Task("forked", 1))}
        assert durable.content() == model.content()
        forked.close()
        durable.session.close()
