"""Fault injection: a world whose every effect can be made to fail, and the sweep that fails them one after the other.

An effect calls `faults.hit(name)` before it does anything. The sweep runs a scenario with the first effect failing, then
the second, and so on until a run finishes in which none fired; the world says what must hold after each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, QuotaPolicy, Tool, ToolResult
from weakincentives.resources import Binding, Scope
from weakincentives.runtime import Append, Session, ToolInvoked


class Faults:
    """Counts effects and fails the chosen one."""

    def __init__(self, fail_at: int = 0, error: Callable[[str], BaseException] = RuntimeError) -> None:
        self._fail_at = fail_at
        self._error = error
        self.count = 0
        self.fired = ""
        self.armed = True

    def hit(self, effect: str) -> None:
        if not self.armed:
            return
        self.count += 1
        if self.count == self._fail_at:
            self.fired = effect
            raise self._error(f"injected at {effect}")


def sweep(error: Callable[[str], BaseException], run: Callable[[Faults], None]) -> list[str]:
    """Run with the n-th effect failing, for every n until none fires; the effects that failed, in order."""
    fired: list[str] = []
    while True:
        faults = Faults(len(fired) + 1, error)
        run(faults)
        if not faults.fired:
            return fired
        fired.append(faults.fired)


@dataclass(frozen=True, slots=True)
class Order:
    item: str = "tea"


@dataclass(frozen=True, slots=True)
class Ordered:
    item: str


@dataclass(frozen=True, slots=True)
class Line:
    item: str


@dataclass(frozen=True, slots=True)
class Total:
    count: int


class Counter:
    """A snapshotable resource."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.value = 0

    def add(self) -> None:
        self._faults.hit("counter.add")
        self.value += 1

    def snapshot(self) -> int:
        self._faults.hit("counter.snapshot")
        return self.value

    def restore(self, snapshot: int) -> None:
        self.value = snapshot


class LateCounter(Counter):
    """One that is first built inside the call."""


class Database:
    """A participant: what was committed is in `rows`, what was not in nobody's."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.rows: list[str] = []
        self.pending: list[str] | None = None

    def insert(self, row: str) -> None:
        self._faults.hit("database.insert")
        assert self.pending is not None
        self.pending.append(row)

    def begin(self) -> None:
        self._faults.hit("database.begin")
        self.pending = []

    def savepoint(self) -> int:
        self._faults.hit("database.savepoint")
        assert self.pending is not None
        return len(self.pending)

    def rollback_to(self, token: int) -> None:
        assert self.pending is not None
        del self.pending[token:]

    def prepare(self) -> None:
        self._faults.hit("database.prepare")

    def commit(self) -> None:
        self._faults.hit("database.commit")
        assert self.pending is not None
        self.rows += self.pending
        self.pending = None

    def rollback(self) -> None:
        self.pending = None


class Handle:
    """A resource of one tool call: must not outlive it."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.faults.hit("handle.build")
        world.open_handles += 1

    def post_construct(self) -> None:
        self._world.faults.hit("handle.post_construct")

    def close(self) -> None:
        self._world.open_handles -= 1
        self._world.faults.hit("handle.close")


class FragileFiles(InMemoryFilesystem):
    """Files whose every write may fail, before or after it was done."""

    __slots__ = ("faults",)

    faults: Faults

    def write(self, path: str, content: str | bytes) -> None:
        self.faults.hit("file.before")
        super().write(path, content)
        self.faults.hit("file.after")


class Watchful:
    """A policy that may fail when asked and when told."""

    name = "watchful"

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def check(self, tool: Any, params: Any, *, context: Any) -> None:
        self._faults.hit("policy.check")

    def on_result(self, tool: Any, params: Any, result: Any, *, context: Any) -> None:
        self._faults.hit("policy.on_result")


State = Mapping[str, object]


@dataclass
class World:
    """A session, files, resources and a tool that touches all of them."""

    faults: Faults
    open_handles: int = 0
    session: Session = field(default_factory=Session)
    heard: list[object] = field(default_factory=list[object])

    def __post_init__(self) -> None:
        faults, session = self.faults, self.session
        self.counter = Counter(faults)
        self.database = Database(faults)
        self.files = FragileFiles({"kept.txt": "as before"})
        self.files.faults = faults
        self.late: list[LateCounter] = []
        session[Line].seed(Line("first"))
        session[Total].seed(Total(1))
        session[Line].register(Ordered, self._add_line)
        session[Total].register(Ordered, self._add_total)
        session.dispatcher.subscribe(Ordered, self._hear)
        session.dispatcher.subscribe(ToolInvoked, self._hear_call)
        self.prompt = self._prompt(Tool[Order, Receipt](name="order", description="Order.", handler=self._order))

    def _prompt(self, *tools: Tool[Any, Any]) -> Prompt[Any]:
        section = MarkdownSection(title="Shop", key="shop", template="Order things.", tools=list(tools))
        template = PromptTemplate(sections=[section], policies=[QuotaPolicy(100), Watchful(self.faults)])
        return Prompt(template).bind(
            resources={
                Filesystem: self.files,
                Counter: self.counter,
                Database: self.database,
                LateCounter: Binding(LateCounter, self._build_late),
                Handle: Binding(Handle, lambda _: Handle(self), scope=Scope.TOOL_CALL),
            }
        )

    def _build_late(self, _: object) -> LateCounter:
        self.faults.hit("late.build")
        self.late.append(LateCounter(self.faults))
        return self.late[-1]

    def _add_line(self, view: Any, event: Ordered, *, context: Any) -> Any:
        self.faults.hit("reducer.line")
        return Append(Line(event.item))

    def _add_total(self, view: Any, event: Ordered, *, context: Any) -> Any:
        self.faults.hit("reducer.total")
        return Append(Total(view.latest().count + 1))

    def _hear(self, event: object) -> None:
        self.faults.hit("subscriber")
        self.heard.append(event)

    def _hear_call(self, event: object) -> None:
        self.faults.hit("subscriber.call")

    def _order(self, params: Order, *, context: Any) -> ToolResult[Receipt]:
        self.faults.hit("handler.begin")
        get = context.resources.get
        get(Handle)
        get(Counter).add()
        get(LateCounter).add()
        context.session.dispatch(Ordered(params.item))
        context.filesystem.write("kept.txt", "changed")
        context.filesystem.write("new/deep.txt", "created")
        get(Database).insert(params.item)
        context.session[Line].append(Line("direct"))
        self.faults.hit("handler.end")
        _worlds[id(self)] = self
        return ToolResult.ok(Receipt(params.item, id(self)))

    # -- what must hold --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything a rollback must put back."""
        return {
            "lines": self.session[Line].all(),
            "totals": self.session[Total].all(),
            "files": {path: self.files.read(path) for path in self.files.glob("**/*")},
            "folders": self.files.list(),
            "counter": self.counter.value,
            "late": [late.value for late in self.late if late.value],
            "rows": tuple(self.database.rows),
            "pending": self.database.pending,
        }

    def events(self) -> tuple[ToolInvoked, ...]:
        return self.session[ToolInvoked].all()

    def check_usable(self) -> None:
        """The next call gets its turn and works, whatever became of the last one."""
        self.faults.armed = False
        with self.session.transaction():
            assert self.open_handles == 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The value of a success; rendering it may fail."""

    item: str
    world: int
    """Which world's faults it is under: a receipt is plain data, so that it can be stored."""

    def render(self) -> str:
        _worlds[self.world].faults.hit("render")
        return f"ordered {self.item}"


_worlds: dict[int, World] = {}


def finished_state() -> State:
    """What the call makes of the world when nothing fails."""
    return {
        "lines": (Line("first"), Line("tea"), Line("direct")),
        "totals": (Total(1), Total(2)),
        "files": {"kept.txt": "changed", "new/deep.txt": "created"},
        "folders": ["kept.txt", "new"],
        "counter": 1,
        "late": [1],
        "rows": ("tea",),
        "pending": None,
    }


def walk(fired: list[str]) -> Iterator[str]:
    """The effects of a sweep without repetition, in order."""
    return iter(dict.fromkeys(fired))
