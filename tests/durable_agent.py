"""An agent for the tests of durable runs, and the process that works for it: `durable_agent.py FOLDER DATABASE LEDGER [AT]`.

The process tells each thing it does on standard output, so that a test can kill it at any of them; with AT, `did 1` for
one, it kills itself there.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import dataclass

from weakincentives.adapters import ModelReply, ProviderAdapter, Turn
from weakincentives.adapters.durable import DurableLoop
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import EventBus, MainLoop, RunFinished, ToolCall, ToolInvoked

STEPS = 3


@dataclass(frozen=True)
class Entry:
    """What the session knows of a step: written in the transaction of its call."""

    step: int


class Ledger:
    """What handlers did outside, and with which key, for all processes."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS done (key TEXT, run TEXT, step INTEGER, PRIMARY KEY (key))")
            database.execute("CREATE TABLE IF NOT EXISTS begun (key TEXT, run TEXT, step INTEGER, known INTEGER)")

    def begin(self, key: str, run: str, step: int, known: bool) -> None:
        self._write("INSERT INTO begun VALUES (?, ?, ?, ?)", key, run, step, known)

    def do(self, key: str, run: str, step: int) -> None:
        self._write("INSERT OR IGNORE INTO done VALUES (?, ?, ?)", key, run, step)

    def read(self, query: str) -> list[tuple[object, ...]]:
        with self._open() as database:
            return database.execute(query).fetchall()

    def _write(self, statement: str, *values: object) -> None:
        with self._open() as database:
            database.execute(statement, values)

    def _open(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=30, isolation_level=None))


dying_at = ""


def tell(*words: object) -> None:
    told = " ".join(map(str, words))
    os.write(1, f"{told}\n".encode())
    if told == dying_at:
        os.kill(os.getpid(), signal.SIGKILL)


class Stepwise(ProviderAdapter):
    """A model that asks for one step after the other, by what it has been told so far."""

    def send(self, turn: Turn) -> ModelReply:
        done = sum(message.role == "tool" for message in turn.messages)
        tell("turn", done)
        if done < STEPS:
            return ModelReply("", (ToolCall("work", {"step": done}),))
        return ModelReply(" ".join(message.text for message in turn.messages if message.role == "tool"))


@tool
def work(step: int, context: ToolContext) -> str:
    """Do one step."""
    ledger = context.resources.get(Ledger)
    session = context.session
    ledger.begin(context.idempotency_key, session.session_id, step, Entry(step) in session[Entry].all())
    tell("began", step)
    session[Entry].append(Entry(step))
    ledger.do(context.idempotency_key, session.session_id, step)
    tell("did", step)
    return f"did {step}"


TEMPLATE = PromptTemplate(sections=[MarkdownSection(title="Steps", template="Do every step.", tools=[work])])


class Agent(MainLoop[str, str]):
    """Answers a request with what its steps said."""

    def __init__(self, ledger: Ledger, bus: EventBus | None = None) -> None:
        super().__init__(adapter=Stepwise(), bus=bus)
        self._ledger = ledger

    def prepare(self, request: str) -> Prompt[str]:
        return Prompt(TEMPLATE).bind(resources={Ledger: self._ledger})


def durable(folder: str, database: str, ledger: str, bus: EventBus | None = None) -> DurableLoop[str, str]:
    return DurableLoop(
        Agent(Ledger(ledger), bus),
        name="steps",
        folder=folder,
        database=database or None,
        concurrency=3,
        max_attempts=int(os.environ.get("MAX_ATTEMPTS", "20")),
        poll_seconds=0.1,
    )


def main() -> None:
    global dying_at
    folder, database, ledger, *at = sys.argv[1:]
    dying_at = at[0] if at else ""
    bus = EventBus()
    bus.subscribe(ToolInvoked, lambda event: tell("kept", event.params.step))
    bus.subscribe(RunFinished, lambda event: tell("finished"))
    with durable(folder, database, ledger, bus):
        tell("ready")
        threading.Event().wait()


if __name__ == "__main__":
    import durable_agent  # so that what is stored is known by the name other processes find it under

    durable_agent.main()
