"""Judging live: what waits at a gate is loaded, ruled on and committed before anything of it is released.

Everything that waits in one turn of the event loop shares one transaction. Within it the turns of a batch are judged one after the
other, each on what the one before left, so turns of one process never conflict; with other processes they do, and are judged again.
Sessions that began here are remembered, so that nothing need be read for them: every commit compares their version, so a memory that
somebody else has made old is found out, and judged again on what is stored.

Invariants (tests cite the numbers):
 L1. A verdict is given out only after its delta, its receipt and its sealed rows are committed together.
 L2. A store that cannot be read or written refuses what waits: `StoreUnavailable`, never an unjudged pass.
 L3. A conflict is judged anew on what is stored now; nothing of the first judgement remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from wardwright.errors import GovernanceUnavailable, VersionConflict
from wardwright.gateway import model_plan, rule
from wardwright.history import (
    EMPTY_REGISTERS,
    EMPTY_SCOPE,
    ChainLink,
    Delta,
    Head,
    ReceiptRow,
    RegisterKey,
    RegisterValue,
    ScopeState,
    applied,
    ledger_keys,
    scope_key,
)
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.store import Commit, SealedRow, SqliteStore, Store
from wardwright.wire.turn import Turn

BATCH: Final = 64
"""Turns judged before the event loop gets its turn again."""
QUIET: Final = 1
"""Turns of the event loop without another arrival, until those who wait are judged …"""
PATIENCE: Final = 32
"""… and in all."""
TRIES: Final = 16
REMEMBERED: Final = 60_000
"""Entries of ledgers and registers that are kept in memory, over all sessions …"""
CROWDED: Final = REMEMBERED // 2
"""… and from how many on it matters who was here last."""
_AGAIN: Final = object()
"""What came of a job that must be done again."""
_UNKNOWN: Final = (EMPTY_SCOPE, 0)
"""A session that is not remembered."""
_commit: Callable[[tuple[Any, ...]], Commit] = partial(cast("Any", tuple).__new__, Commit)
"""Makes a commit of all its fields, in their order, in half the time; every gate makes one."""

Result = TypeVar("Result")


class Digester(Protocol):
    """Who knows the digest key of a session."""

    def session_key(self, scope: str, since_ms: int | None = None) -> bytes:
        """That of a session which began then."""
        ...


class Verdict:
    """A ruling, and what it was made with. Never changed; no named tuple, because every gate makes and reads one."""

    __slots__ = ("at_ms", "elapsed_us", "key", "ruling", "session")

    def __init__(self, ruling: Ruling, at_ms: int, session: ScopeState, elapsed_us: int, key: bytes) -> None:
        self.ruling = ruling
        self.at_ms = at_ms
        self.session = session
        """What the session was before."""
        self.elapsed_us = elapsed_us
        self.key = key
        """The session's digest key."""


@dataclass(slots=True, eq=False)
class Kept:
    """What is committed with a ruling."""

    receipt: ReceiptRow | None = None
    seal: Sequence[SealedRow] = ()
    unseal: Sequence[tuple[str, str]] = ()
    registers: Mapping[RegisterKey, RegisterValue | None] = EMPTY_REGISTERS
    """The gateway's own, beside those of the rules; in the session's scope."""
    denied: Sequence[str] = ()
    """Ids of calls that the ruling let pass and mediation did not: the ledger must not say that the caller has them."""
    committed: bool = False
    """Set by the gate when the receipt is: whoever was cut off while waiting looks here, and records nothing twice."""


NOTHING: Final = Kept()

Keep: TypeAlias = Callable[[Verdict], Kept]
"""Says what to keep of a ruling. Called again when the turn is judged again, so it must have no effect of its own."""


class _Job:
    """One who waits at the gate."""

    __slots__ = ("future", "keep", "kept", "late", "outcome", "plan", "scope", "tries", "turn")

    def __init__(self, future: asyncio.Future[Any], plan: Plan | None, turn: Turn | None, keep: Keep | None) -> None:
        self.future = future
        self.plan = plan
        self.turn = turn
        self.keep = keep
        self.late: Callable[[], Kept] | None = None
        """Says what to record, once everything before it is settled."""
        self.kept = NOTHING
        self.scope = "" if turn is None else scope_key("session_id", turn.caller)
        self.tries = 0
        self.outcome: Any = _AGAIN
        """A verdict, nothing where there is no turn, or an error."""


class Gates:
    """The live gate over one store. Belongs to one event loop."""

    def __init__(self, store: Store, keys: Digester, now_ms: Callable[[], int]) -> None:
        self.store = store
        self.commits = 0
        self._keys = keys
        self._now_ms = now_ms
        # A file answers sooner than a thread could be asked; a database is waited for elsewhere.
        self._direct = isinstance(store, SqliteStore)
        self._waiting: list[_Job] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it serves: asking which loop runs is a system call."""
        self._busy = False
        self._memory: dict[str, tuple[ScopeState, int]] = {}
        """What sessions are, and how many entries each has."""
        self._remembered = 0

    def judge(self, plan: Plan, turn: Turn, keep: Keep | None = None) -> asyncio.Future[Verdict]:
        """The committed verdict on one turn."""
        return self._enter(_Job(self._running().create_future(), plan, turn, keep))

    def record(self, kept: Kept | Callable[[], Kept]) -> asyncio.Future[None]:
        """Commits what no ruling goes with: a receipt of what came of an exchange, an operator's action. A function is called
        once everything that waited before is committed or refused."""
        job = _Job(self._running().create_future(), None, None, None)
        if isinstance(kept, Kept):
            job.kept = kept
        else:
            job.late = kept
        return self._enter(job)

    def ask(self, question: Callable[..., Result], *arguments: Any) -> Awaitable[Result]:
        """Calls the store where its answers do not hold up the event loop."""
        if not self._direct:
            return asyncio.to_thread(question, *arguments)
        answer: asyncio.Future[Result] = self._running().create_future()
        answer.set_result(question(*arguments))
        return answer

    def recall(self, scope: str, names: Sequence[str], *, stored: bool = False) -> tuple[bytes, ScopeState]:
        """A session's digest key, and what it is, with at least these entries of its ledger. Not `stored`: as it is remembered
        here, which may be old, or nothing."""
        if stored:
            session = self.store.load((scope,), lambda _: names)[scope]
        else:
            session = self._memory.get(scope, _UNKNOWN)[0]
        return self._keys.session_key(scope, session.head.since_ms or self._now_ms()), session

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None or not loop.is_running():
            loop = self._loop = asyncio.get_running_loop()
        return loop

    def _enter(self, job: _Job) -> asyncio.Future[Any]:
        self._waiting.append(job)
        if not self._busy:
            self._busy = True
            self._running().call_soon(self._gather, 0, 0, 0)
        return job.future

    def _gather(self, seen: int, quiet: int, turns: int) -> None:
        """Waits while others are on their way: a transaction costs nearly the same for one as for many. As soon as the event loop
        has nothing else to do, nobody is; so this never waits for time to pass."""
        waiting = len(self._waiting)
        quiet = quiet + 1 if waiting == seen else 0
        if quiet >= QUIET or waiting >= BATCH or turns >= PATIENCE:
            self._start()
        else:
            self._running().call_soon(self._gather, waiting, quiet, turns + 1)

    def _start(self) -> None:
        jobs, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        jobs = [job for job in jobs if not job.future.done()]  # a caller that went away
        failed: BaseException | None = None
        try:
            if not self._direct:
                running = self._running().run_in_executor(None, self._run, jobs)
                running.add_done_callback(lambda done: self._end(jobs, done.exception()))
                return
            self._run(jobs)
        except Exception as error:  # noqa: BLE001
            # INVARIANT: G19, whoever waits here is told, or nobody would ever be judged again.
            failed = error
        self._end(jobs, failed)

    def _end(self, jobs: Sequence[_Job], failed: BaseException | None = None) -> None:
        """Hands out what came of a batch; what must be judged again waits again, first in line."""
        again: list[_Job] = []
        for job in jobs:
            outcome, future = job.outcome, job.future
            if failed is not None:
                self._forget(job.scope)  # nobody knows what of it is stored
                outcome = failed
            if type(outcome) is Verdict:  # as almost always
                if not future.done():
                    future.set_result(outcome)
            elif outcome is _AGAIN:
                again.append(job)
            elif not future.done():
                if isinstance(outcome, StopIteration):  # which no future takes
                    outcome = GovernanceUnavailable("The gate failed, so nothing passes.")
                if isinstance(outcome, BaseException):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        self._waiting[:0] = again
        if self._waiting:
            self._running().call_soon(self._gather, 0, 0, 0)
        else:
            self._busy = False

    def _run(self, jobs: Sequence[_Job]) -> None:
        """Judges and commits; each job then has its outcome."""
        judged: list[_Job] = []
        commits: list[Commit] = []
        states: dict[str, ScopeState] = {}
        sessions: set[str] = set()
        now = self._now_ms()
        for job in jobs:
            turn, plan, scope = job.turn, job.plan, job.scope
            try:
                if turn is None or plan is None:
                    kept = job.kept
                    if job.late is not None:
                        kept = job.kept = job.late()
                    commits.append(Commit(Delta(now), kept.receipt, kept.seal, kept.unseal))
                    job.outcome = None
                elif scope in sessions:
                    continue  # what the other one adds to the ledger must be read first: it is judged again
                else:
                    sessions.add(scope)
                    commits.append(self._judge(job, plan, turn, states, now))
                judged.append(job)
            except Exception as error:  # noqa: BLE001
                # INVARIANT: G19, a turn that cannot be judged is refused, and no other one with it.
                job.outcome = error
        if not commits:
            return
        try:
            links = self.store.commit_all(commits)
        except Exception as error:  # noqa: BLE001
            # INVARIANT: G19, nothing is released that was not committed.
            for job in judged:
                self._forget(job.scope)
                job.outcome = error
            return
        self.commits += 1
        for job, link in zip(judged, links, strict=True):
            if link is None or type(link) is ChainLink:
                if job.kept.receipt is not None:
                    job.kept.committed = True
                continue
            self._forget(job.scope)
            job.outcome = link
            if isinstance(link, VersionConflict):
                job.tries += 1
                busy = job.tries >= TRIES
                job.outcome = GovernanceUnavailable("The session is busy; try again.") if busy else _AGAIN

    def _judge(self, job: _Job, plan: Plan, turn: Turn, states: dict[str, ScopeState], now: int) -> Commit:
        """The verdict becomes the job's outcome; what is to be committed for it is given back."""
        keys, scope = self._keys, job.scope
        part = plan.models.get(turn.model) or model_plan(plan, turn)
        known = self._memory.get(scope)
        # Whoever began here has all of its ledger here; of others the store is asked for what this turn needs.
        if known is not None:
            session, size = known
        else:
            session, size = self.store.load((scope,), partial(_wanted, turn, keys, scope, now))[scope], 0
        loaded = {scope: session}
        if part.wider:
            shared = [scope_key(kind, turn.caller) for kind in part.wider]
            missing = [one for one in shared if one not in states]
            if missing:
                states.update(self.store.load(missing, _nothing))
            for one in shared:
                loaded[one] = states[one]
        key = keys.session_key(scope, session.head.since_ms or now)
        started = perf_counter_ns()
        ruling, delta = rule(part, loaded, key, turn, now, scope)
        verdict = Verdict(ruling, now, session, (perf_counter_ns() - started) // 1000, key)
        kept = job.kept = NOTHING if job.keep is None else job.keep(verdict)
        if kept.registers:
            delta.scopes[0].registers.update(kept.registers)
        for name in kept.denied:
            entry = delta.scopes[0].ledger.get(f"c:{name}")
            if entry is not None:
                delta.scopes[0].ledger[f"c:{name}"] = entry._replace(status="denied")
        if part.wider:
            for change in delta.scopes[1:]:
                # What several sessions share: the next one of this batch goes on from here.
                states[change.scope] = applied(states[change.scope], change)
        if known is not None or session is EMPTY_SCOPE:
            # Last: nothing fails between this and the commit.
            self._remember(scope, applied(session, delta.scopes[0]), size)
        job.outcome = verdict
        return _commit((delta, kept.receipt, kept.seal, kept.unseal))

    def _remember(self, scope: str, state: ScopeState, before: int) -> None:
        """`before`: how many entries it had."""
        memory, remembered = self._memory, self._remembered
        _, _, registers, ledger = state
        size = len(ledger) + len(registers) + 1
        if before and remembered > CROWDED:
            del memory[scope]  # who was here last is forgotten last
        memory[scope] = state, size
        self._remembered = remembered + size - before
        while self._remembered > REMEMBERED:
            self._forget(next(iter(memory)))

    def _forget(self, scope: str) -> None:
        self._remembered -= self._memory.pop(scope, _UNKNOWN)[1]


def _wanted(turn: Turn, keys: Digester, scope: str, now: int, head: Head) -> Iterable[str]:
    return ledger_keys(turn, keys.session_key(scope, head.since_ms or now), head)


def _nothing(_: Head) -> Iterable[str]:
    return ()
