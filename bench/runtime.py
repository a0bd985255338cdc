"""What a governed call costs beside a bare one, and whether that changes with the length of the session."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    QuotaPolicy,
    SequentialDependencyPolicy,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall, aexecute_tool, execute_tool

from ._table import Bars, best, interleaved, median_ratio


@dataclass(frozen=True, slots=True)
class Search:
    query: str
    limit: int = 10
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    matches: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.matches)


class Ledger:
    """A user's snapshotable resource: two of them take part in every call."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    def snapshot(self) -> dict[str, int]:
        return self.entries

    def restore(self, snapshot: dict[str, int]) -> None:
        self.entries = snapshot


class Tally(Ledger):
    pass


_NAMES = tuple(f"file_{number}.txt" for number in range(8))


def search(params: Search, *, context: ToolContext) -> ToolResult[Found]:
    found = tuple(name for name in _NAMES if params.query in name)[: params.limit]
    return ToolResult.ok(Found(found), message=f"Found {len(found)} files")


def refuse(params: Search, *, context: ToolContext) -> ToolResult[Found]:
    found = tuple(name for name in _NAMES if params.query in name)[: params.limit]
    return ToolResult.error(f"Found {len(found)} files, expected none\nRetry with another query")


def idle(params: Search, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult.ok(_NOTHING)


_NOTHING = Found(())


def _prompt() -> Prompt[None]:
    tools = [
        Tool[Search, Found](name="search", description="Search.", handler=search),
        Tool[Search, Found](name="idle", description="Does nothing.", handler=idle),
        Tool[Search, Found](name="refuse", description="Search and fail.", handler=refuse),
        Tool[Search, Found](name="timed", description="Search in time.", handler=search, timeout=5.0),
    ]
    policies = [SequentialDependencyPolicy({"timed": ["search"]}), QuotaPolicy(10**9)]
    section = MarkdownSection(title="Files", template="Search files.", tools=tools, policies=policies)
    return Prompt(PromptTemplate(sections=[section])).bind(
        resources={Filesystem: InMemoryFilesystem({"a.txt": "a"}), Ledger: Ledger(), Tally: Tally()}
    )


def main(quick: bool = False) -> bool:
    logging.disable(logging.CRITICAL)
    bars = Bars()
    prompt = _prompt()
    raw = '{"query": "file_1", "limit": 5}'
    tool = prompt.find_tool("search").tool  # pyright: ignore[reportOptionalMemberAccess]
    by_hand = ToolContext(session=Session(), prompt=prompt)

    def bare() -> object:
        return search(tool.parse(raw), context=by_hand)

    lengths = {"1k": 1_000, "100k": 20_000 if quick else 100_000, "1M": 100_000 if quick else 1_000_000}
    sessions = {name: Session() for name in lengths}
    call = ToolCall("search", raw)
    before = _resident()
    for name, length in lengths.items():
        session = sessions[name]
        for _ in range(length):
            execute_tool(call, prompt=prompt, session=session)
    per_call = (_resident() - before) / sum(lengths.values())

    def on(session: Session, name: str = "search") -> Callable[[], object]:
        this = ToolCall(name, raw)
        return lambda: execute_tool(this, prompt=prompt, session=session)

    subjects = {"bare": bare} | {name: on(session) for name, session in sessions.items()}
    subjects |= {"failing": on(sessions["1M"], "refuse")}
    # What we add is a fixed sum, so the ratio is the handler's as much as ours: here is the worst one.
    subjects |= {"bare idle": lambda: idle(tool.parse(raw), context=by_hand), "idle": on(sessions["1k"], "idle")}
    times = interleaved(subjects, batch=40, rounds=250)
    print(f"  after earlier calls: {', '.join(f'{name} = {length:,}' for name, length in lengths.items())}")
    bars.show("bare handler(parse(arguments)), best", best(times["bare"]), "µs")
    for name in lengths:
        bars.show(f"governed call after {name}, best", best(times[name]), "µs", 60)
    bars.show("governed / bare, median of rounds", median_ratio(times, "1k", "bare"), "×", 10)
    bars.show("the same for a handler that does nothing (no bar)", median_ratio(times, "idle", "bare idle"), "×")
    bars.show("1M / 1k, median of rounds", median_ratio(times, "1M", "1k"), "×", 1.1)
    bars.show("failing / succeeding, median of rounds", median_ratio(times, "failing", "1M"), "×", 1.1)
    bars.show("memory per recorded call", per_call, "bytes", 1024)

    worst = 0.0
    single = on(sessions["1M"])
    gc.collect()
    for _ in range(20_000):
        started = perf_counter()
        single()
        worst = max(worst, perf_counter() - started)
    bars.show("worst single call of 20,000 at 1M", worst * 1e3, "ms", 50)

    timed = interleaved({"timed": on(sessions["1k"], "timed")}, batch=20, rounds=100)
    bars.show("tool with a timeout (sync handler, kept thread), best", best(timed["timed"]), "µs", 150)
    bars.show("sync handler on an event loop, best", asyncio.run(_on_loop(prompt, sessions["1k"], call)), "µs", 150)
    bars.show("import weakincentives.prompt, best of 10", _import_time(), "ms", 150)
    return bars.ok


async def _on_loop(prompt: Prompt[None], session: Session, call: ToolCall) -> float:
    times: list[float] = []
    for _ in range(100):
        started = perf_counter()
        for _ in range(20):
            await aexecute_tool(call, prompt=prompt, session=session)
        times.append((perf_counter() - started) / 20 * 1e6)
    return best(times)


def _import_time() -> float:
    program = "import time; t = time.perf_counter(); import weakincentives.prompt; print(time.perf_counter() - t)"
    # An installed package has its bytecode; so has this one from the second run on, if it may be written.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
        for _ in range(10)
    ]
    return min(float(run.stdout) for run in runs) * 1e3


def _resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
