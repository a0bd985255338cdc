"""Random programs of calls, failures, nested transactions, sub-agents and bystanders against a naive oracle.

The oracle knows one thing: copy everything before a block, put the copy back when the block fails. Bystanders write
outside of every call and are never taken back. Calls that run at the same time must leave what they would have left one
after the other, in the order of their events.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.runtime import Replace, Session, ToolCall, ToolInvoked, aexecute_tool, execute_tool

# -- programs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Do:
    """One effect: what, and with which number."""

    what: str
    number: int


@dataclass(frozen=True)
class Block:
    """A nested call or transaction, and how it ends. `where` picks the session of a nested call."""

    kind: str
    body: tuple[Do | Block, ...]
    end: str
    where: int = 0


Program = tuple[Do | Block, ...]

EFFECTS = ("note", "event", "file", "append", "delete", "box", "row", "bystander", "other_note", "pause")
ENDS = ("ok", "ok", "ok", "error", "raise", "interrupt")

_do = st.builds(Do, st.sampled_from(EFFECTS), st.integers(0, 4))


def _program(depth: int) -> st.SearchStrategy[Program]:
    if depth == 0:
        return st.lists(_do, max_size=3).map(tuple)
    kinds, ends = st.sampled_from(["call", "call", "transaction"]), st.sampled_from(ENDS)
    block = st.builds(Block, kinds, _program(depth - 1), ends, st.integers(0, 1))
    return st.lists(st.one_of(_do, block), max_size=4).map(tuple)


calls = st.tuples(_program(3), st.sampled_from(ENDS))


# -- the oracle ----------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What there should be."""

    notes: list[int] = field(default_factory=list[int])
    other_notes: list[int] = field(default_factory=list[int])
    total: int = 0
    files: dict[str, str] = field(default_factory=dict[str, str])
    box: int = 0
    rows: list[int] = field(default_factory=list[int])
    heard: list[int] = field(default_factory=list[int])

    def run(self, program: Program, end: str, where: int = 0) -> str:
        """Apply a block; put everything back unless it ends well. How the block ended, seen from outside."""
        before = copy.deepcopy(self.__dict__)
        for step in program:
            if isinstance(step, Do):
                self._do(step, where)
            elif self.run(step.body, step.end, where or (step.kind == "call" and step.where)) == "interrupt":
                end = "interrupt"
                break
        if end != "ok":
            self.__dict__ = before
        return end

    def _do(self, step: Do, where: int) -> None:
        number, path = step.number, f"f{step.number}"
        match step.what:
            case "note":
                (self.other_notes if where else self.notes).append(number)
            case "other_note":
                self.other_notes.append(number)
            case "event":
                self.total += number
                self.heard.append(number)
            case "file":
                self.files[path] = f"<{number}>"
            case "append":
                self.files[path] = self.files.get(path, "") + "+"
            case "delete":
                self.files.pop(path, None)
            case "box":
                self.box = number
            case "row":
                self.rows.append(number)
            case _:
                return


# -- the real thing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    number: int
    bystander: bool = False


@dataclass(frozen=True, slots=True)
class Added:
    number: int
    bystander: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    value: int


@dataclass(frozen=True, slots=True)
class Nothing:
    index: int = 0


class Box:
    def __init__(self) -> None:
        self.value = 0

    def snapshot(self) -> int:
        return self.value

    def restore(self, snapshot: int) -> None:
        self.value = snapshot


class Table:
    """A participant that knows savepoints."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._kept: list[int] = []

    def begin(self) -> None:
        assert self.rows == self._kept

    def savepoint(self) -> int:
        return len(self.rows)

    def rollback_to(self, token: int) -> None:
        del self.rows[token:]

    def prepare(self) -> None:
        return None

    def commit(self) -> None:
        self._kept = list(self.rows)

    def rollback(self) -> None:
        self.rows = list(self._kept)


class Interrupt(BaseException):
    """Ctrl-C, as far as the pipeline can tell."""


def add(view: Any, event: Added, *, context: Any) -> Any:
    return Replace((Total((view.latest() or Total(0)).value + event.number),))


class World:
    """One session, another one for sub-agents, files and resources; and the tool that runs programs."""

    def __init__(self, tops: list[tuple[Program, str]]) -> None:
        self.tops = tops
        self.session, self.other = Session(), Session()
        self.files, self.box, self.table = InMemoryFilesystem(), Box(), Table()
        self.bystander_notes: Counter[int] = Counter()
        self.bystander_total = 0
        self.heard: list[int] = []
        self.session[Total].register(Added, add)
        self.session.dispatcher.subscribe(Added, self._hear)
        sync = Tool[Nothing, str](name="top", description="Runs a program.", handler=self._top)
        sub = Tool[Nothing, str](name="nested", description="Runs a program.", handler=self._nested)
        atop = Tool[Nothing, str](name="atop", description="Runs a program.", handler=self._atop)
        asub = Tool[Nothing, str](name="anested", description="Runs a program.", handler=self._anested)
        section = MarkdownSection(title="T", template="t", tools=[sync, sub, atop, asub])
        self.prompt = Prompt(PromptTemplate(sections=[section])).bind(
            resources={Filesystem: self.files, Box: self.box, Table: self.table}
        )
        self._stack: contextvars.ContextVar[Block] = contextvars.ContextVar("block")

    def _hear(self, event: Added) -> None:
        if not event.bystander:
            self.heard.append(event.number)

    # One effect, by whatever handle the program has at hand.
    def _do(self, step: Do, context: Any) -> None:
        number, path = step.number, f"f{step.number}"
        match step.what:
            case "note":
                context.session[Note].append(Note(number))
            case "other_note":
                self.other[Note].append(Note(number))
            case "event":
                self.session.dispatch(Added(number))
            case "file":
                self.files.write(path, f"<{number}>")
            case "append":
                self.files.append(path, "+")
            case "delete":
                if self.files.exists(path):
                    self.files.delete(path)
            case "box":
                context.resources.get(Box).value = number
            case "row":
                context.resources.get(Table).rows.append(number)
            case "bystander":
                contextvars.Context().run(self._bystand, number)
            case _:
                return

    def _bystand(self, number: int) -> None:
        self.session[Note].append(Note(number, bystander=True))
        self.session.dispatch(Added(number, bystander=True))
        self.other[Note].append(Note(number, bystander=True))
        self.files.write(f"bystander{number}", "there")
        self.bystander_notes[number] += 1
        self.bystander_total += number

    def _target(self, block: Block, context: Any) -> dict[str, Any]:
        if block.where:
            return {"prompt": self.prompt, "session": self.other}
        return {"context": context}

    @staticmethod
    def _ended(end: str) -> ToolResult[str]:
        if end == "raise":
            raise RuntimeError("raised on purpose")
        if end == "interrupt":
            raise Interrupt
        return ToolResult.ok("ok") if end == "ok" else ToolResult.error("failed on purpose")

    def _run(self, program: Program, context: Any) -> None:
        for step in program:
            if isinstance(step, Do):
                self._do(step, context)
            elif step.kind == "call":
                token = self._stack.set(step)
                try:
                    execute_tool(ToolCall("nested", {}), **self._target(step, context))
                finally:
                    self._stack.reset(token)
            else:
                try:
                    with self.session.transaction(context.resources) as transaction:
                        self._run(step.body, context)
                        if step.end == "error":
                            transaction.rollback()
                        else:
                            self._ended(step.end)
                except RuntimeError as error:
                    assert str(error) == "raised on purpose"

    def _top(self, params: Nothing, *, context: Any) -> ToolResult[str]:
        program, end = self.tops[params.index]
        self._run(program, context)
        return self._ended(end)

    def _nested(self, params: Nothing, *, context: Any) -> ToolResult[str]:
        block = self._stack.get()
        self._run(block.body, context)
        return self._ended(block.end)

    async def _arun(self, program: Program, context: Any) -> None:
        for step in program:
            if isinstance(step, Do):
                if step.what == "pause":
                    for _ in range(step.number):
                        await asyncio.sleep(0)
                self._do(step, context)
            elif step.kind == "call":
                token = self._stack.set(step)
                try:
                    await aexecute_tool(ToolCall("anested", {}), **self._target(step, context))
                finally:
                    self._stack.reset(token)
            else:
                try:
                    async with self.session.transaction(context.resources) as transaction:
                        await self._arun(step.body, context)
                        if step.end == "error":
                            transaction.rollback()
                        else:
                            self._ended(step.end)
                except RuntimeError as error:
                    assert str(error) == "raised on purpose"

    async def _atop(self, params: Nothing, *, context: Any) -> ToolResult[str]:
        program, end = self.tops[params.index]
        await self._arun(program, context)
        return self._ended(end)

    async def _anested(self, params: Nothing, *, context: Any) -> ToolResult[str]:
        block = self._stack.get()
        await self._arun(block.body, context)
        return self._ended(block.end)

    # -- runs ------------------------------------------------------------------------------------------------------

    def call(self, index: int) -> None:
        try:
            execute_tool(ToolCall("top", {"index": index}, f"top-{index}"), prompt=self.prompt, session=self.session)
        except Interrupt:
            return

    async def acall(self, index: int) -> None:
        try:
            call = ToolCall("atop", {"index": index}, f"top-{index}")
            await aexecute_tool(call, prompt=self.prompt, session=self.session)
        except Interrupt:
            return

    def check(self) -> None:
        """Compare with the oracle, which runs the calls one by one in the order they were recorded."""
        events = [event for event in self.session[ToolInvoked].all() if event.call_id.startswith("top-")]
        assert sorted(event.call_id for event in events) == sorted(f"top-{n}" for n in range(len(self.tops)))
        model = Model()
        names = {"ok": "ok", "error": "failed", "raise": "failed", "interrupt": "cancelled"}
        for event in events:
            program, end = self.tops[int(event.call_id.removeprefix("top-"))]
            assert event.outcome == names[model.run(program, end)]
        own = [note.number for note in self.session[Note].all() if not note.bystander]
        assert own == model.notes
        assert [note.number for note in self.other[Note].all() if not note.bystander] == model.other_notes
        for session in (self.session, self.other):
            others = Counter(note.number for note in session[Note].all() if note.bystander)
            assert others == self.bystander_notes
        assert (self.session[Total].latest() or Total(0)).value == model.total + self.bystander_total
        files = {path: self.files.read(path) for path in self.files.glob("**/*")}
        assert {path: text for path, text in files.items() if path.startswith("f")} == model.files
        assert {path for path in files if not path.startswith("f")} == {f"bystander{n}" for n in self.bystander_notes}
        assert self.box.value == model.box
        assert self.table.rows == model.rows
        assert self.heard == model.heard
        with self.session.transaction(), self.other.transaction():
            pass


_settings = settings(max_examples=150)


@_settings
@given(st.lists(calls, min_size=1, max_size=3))
def test_calls_one_after_the_other_leave_what_the_oracle_says(tops: list[tuple[Program, str]]) -> None:
    """Every mixture of effects, nested calls, savepoints, sub-agents and failures equals copy-and-put-back."""
    world = World(tops)
    for index in range(len(tops)):
        world.call(index)
    world.check()


@_settings
@given(st.lists(calls, min_size=1, max_size=4))
def test_tasks_in_any_interleaving_leave_what_some_order_would(tops: list[tuple[Program, str]]) -> None:
    """Calls of one loop that suspend at random places equal the calls one by one, in the order of their events."""
    world = World(tops)

    async def main() -> None:
        await asyncio.gather(*(world.acall(index) for index in range(len(tops))))

    asyncio.run(main())
    world.check()


@settings(max_examples=60)
@given(st.lists(calls, min_size=2, max_size=4))
def test_threads_leave_what_some_order_would(tops: list[tuple[Program, str]]) -> None:
    """The same for threads that start together."""
    world = World(tops)
    start = threading.Barrier(len(tops), timeout=20)

    def run(index: int) -> None:
        start.wait()
        world.call(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(tops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    world.check()
