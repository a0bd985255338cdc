"""What an operator changes while everything runs: emergency stops and switched-off server tools; and which plan is in force.

Kept in the store, written together with a receipt, and followed by every process that runs an `Overlay`. On the path it is only
read, from memory. A store that cannot be read changes nothing: a stop stays a stop until a store says otherwise.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from time import time_ns
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

from wardwright import receipts
from wardwright.catalog import compile_glob, fold
from wardwright.errors import SealedMissing, StoreUnavailable, WardwrightError
from wardwright.history import Delta
from wardwright.history.ledger import SEPARATOR
from wardwright.store import PlanEpoch, SealedRow, Store
from wardwright.wire.turn import Caller

StopKind: TypeAlias = Literal["session", "tool", "principal"]
STOP_KINDS: Final[tuple[StopKind, ...]] = ("session", "tool", "principal")

SCOPE: Final = "overlay"
"""Where the store keeps it. No session has such a key."""
EVERY_S: Final = 0.25
MAX_ENTRIES: Final = 1000
"""Stops, and switches: an operator who needs more of them needs another plan. Polling stays cheap."""
MAX_NAME: Final = 512
_FOR_EVER: Final = 2**62


class OverlayFull(WardwrightError, ValueError):
    """More stops or switches than are kept."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "overlay_full"


class NotStopped(WardwrightError, LookupError):
    """There is no such stop."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "not_stopped"


class BadName(WardwrightError, ValueError):
    """A name that nothing can have."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_name"


@dataclass(frozen=True, slots=True)
class Stop:
    """One emergency stop."""

    kind: StopKind
    name: str
    """A session id, the name of a principal, or a tool's raw name (`*` and `?` as in the catalog)."""
    tenant: str | None = None
    """Only this tenant's; None: everybody's."""

    def reason(self) -> str:
        """What a refused caller reads."""
        what = {"session": "this session", "tool": f"the tool '{self.name}'", "principal": "this key"}[self.kind]
        return f"An operator has stopped {what}. Ask whoever runs this gateway; nothing passes until it is released."


@dataclass(frozen=True, slots=True)
class _View:
    """All of it at one time. Replaced whole, so that a request sees one state, and two threads that read the store at once
    cannot leave a mixture."""

    stops: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    """Names of the rows it was made from."""
    sessions: frozenset[tuple[str | None, str]] = frozenset()
    principals: frozenset[tuple[str | None, str]] = frozenset()
    tools: tuple[tuple[Stop, Callable[[str], bool]], ...] = ()
    off: Mapping[str, frozenset[str]] = field(default_factory=dict[str, "frozenset[str]"])
    any: bool = False


class Overlay:
    """The overlay as this process knows it. Made once per process; `refresh` before the first request, then `run`."""

    def __init__(
        self,
        store: Store,
        *,
        now_ms: Callable[[], int] | None = None,
        on_plan: Callable[[PlanEpoch], Awaitable[None]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._store = store
        self._now_ms = now_ms or _system_ms
        self._on_plan = on_plan
        self._every_s = every_s
        self._view = _View()
        self._looks = count(1)
        self._looked = 0
        """Number of the look at the store that the view comes from: one that began earlier does not replace it."""
        self._replacing = Lock()
        self._following = asyncio.Lock()
        self.epoch: int = 0
        """Of the last plan that was handed to `on_plan`, or that the owner started with."""
        self.plan_error = ""
        """Why that plan could not be followed; then the one before still rules here."""
        self.failures = 0
        """Polls in a row that could not read the store."""

    # read on the path

    def stopped(self, caller: Caller, tools: Iterable[str] = ()) -> str | None:
        """Why nothing of this may pass, or None. `tools`: raw names that are called (or declared, if that shall be refused too)."""
        view = self._view
        if not view.any:
            return None
        tenant = caller.tenant
        if view.sessions:
            for session in dict.fromkeys((caller.session_id, caller.claimed_session_id)):
                if session and ((None, session) in view.sessions or (tenant, session) in view.sessions):
                    return Stop("session", session).reason()
        if (None, caller.principal) in view.principals or (tenant, caller.principal) in view.principals:
            return Stop("principal", caller.principal).reason()
        if view.tools:
            for tool in tools:
                if self._stopped_tool(view, tenant, fold(tool)):
                    return Stop("tool", tool).reason()
        return None

    def stopped_tools(self, caller: Caller, tools: Iterable[str]) -> frozenset[str]:
        """Those of the raw names that are stopped for this caller."""
        view = self._view
        if not view.tools:
            return frozenset()
        return frozenset(tool for tool in tools if self._stopped_tool(view, caller.tenant, fold(tool)))

    @staticmethod
    def _stopped_tool(view: _View, tenant: str, folded: str) -> bool:
        return any(fits(folded) for stop, fits in view.tools if stop.tenant in (None, tenant))

    def off(self, model: str) -> frozenset[str]:
        """Server tools of this model that are switched off."""
        return self._view.off.get(model, frozenset())

    def stops(self) -> tuple[Stop, ...]:
        """All stops this process knows, by name."""
        return tuple(_stop(name) for name in self._view.stops)

    def switches(self) -> Mapping[str, frozenset[str]]:
        return dict(self._view.off)

    # following the store

    def refresh(self) -> PlanEpoch | None:
        """Reads the store once. The current plan when it is not the one of `epoch`, else None."""
        now_ms, look = self._now_ms(), next(self._looks)
        stops = self._store.sealed_names(SCOPE, "stop:", now_ms, MAX_ENTRIES + 1)
        switches = self._store.sealed_names(SCOPE, "off:", now_ms, MAX_ENTRIES + 1)
        current = self._store.plan_epoch()
        with self._replacing:
            view = self._view
            if look > self._looked and (stops != view.stops or switches != view.switches):
                self._view = _viewed(stops, switches)
            self._looked = max(look, self._looked)
        return current if current is not None and current.epoch > self.epoch else None

    async def poll(self) -> None:
        """Follows the store once: stops and switches, then the plan. An outage leaves everything as it is."""
        current = await self._read()
        if current is not None:
            await self._follow(current)

    async def run(self) -> None:
        """Follows the store until it is cancelled. A plan that takes long to put in force holds up no stop."""
        following: asyncio.Task[None] | None = None
        try:
            while True:
                current = await self._read()
                if current is not None and (following is None or following.done()):
                    following = asyncio.create_task(self._follow(current))
                await asyncio.sleep(self._every_s)
        finally:
            if following is not None:
                following.cancel()

    async def _read(self) -> PlanEpoch | None:
        try:
            current = await asyncio.to_thread(self.refresh)
        except StoreUnavailable:
            self.failures += 1
            return None
        self.failures = 0
        return current

    async def _follow(self, current: PlanEpoch) -> None:
        if self._on_plan is None:
            return
        async with self._following:
            if current.epoch <= self.epoch:
                return
            # Once per plan, whatever comes of it: what cannot be put in force now will not be a moment later.
            self.epoch = current.epoch
            try:
                await self._on_plan(current)
                self.plan_error = ""
            except Exception as error:  # noqa: BLE001
                # INVARIANT: a plan that cannot be followed leaves the one before in force, and stops are followed all the same.
                self.plan_error = str(error) or type(error).__name__

    # an operator's actions

    def set_stop(self, stop: Stop, operator: str, note: str, now_ms: int) -> str:
        """Stops it, in every process that follows; the id of the receipt."""
        name = _stop_name(stop)
        self._check_room(name, "stop:", now_ms)
        return self._write(name, "stop", stop, operator, note, now_ms, "add")

    def clear_stop(self, stop: Stop, operator: str, note: str, now_ms: int) -> str:
        """Releases it; NotStopped when somebody else did already."""
        try:
            return self._write(_stop_name(stop), "release_stop", stop, operator, note, now_ms, "remove")
        except SealedMissing:
            raise NotStopped(f"The {stop.kind} '{stop.name}' is not stopped.") from None

    def set_switch(self, model: str, tool: str, enabled: bool, operator: str, note: str, now_ms: int) -> str:
        """Switches a server tool of a model on or off; the id of the receipt. Saying what is so already is recorded too."""
        for part in (model, tool):
            _check_name(part)
        name = f"off:{model}{SEPARATOR}{tool}"
        target = (model, tool)
        if not enabled:
            self._check_room(name, "off:", now_ms)
            return self._write(name, "switch_off", target, operator, note, now_ms, "add")
        try:
            return self._write(name, "switch_on", target, operator, note, now_ms, "remove")
        except SealedMissing:
            return self._write(name, "switch_on", target, operator, note, now_ms, "leave")

    def stop_receipt(self, stop: Stop, now_ms: int) -> str:
        """Id of the receipt that says who stopped it, when and why; empty when it is not stopped."""
        try:
            return self._store.sealed(SCOPE, _stop_name(stop), now_ms).body.decode()
        except SealedMissing:
            return ""

    def _check_room(self, name: str, prefix: str, now_ms: int) -> None:
        known = self._store.sealed_names(SCOPE, prefix, now_ms, MAX_ENTRIES)
        if len(known) >= MAX_ENTRIES and name not in known:
            raise OverlayFull(f"There are {MAX_ENTRIES} already; release some, or put it into the plan.")

    def _write(
        self,
        name: str,
        action: str,
        target: Stop | tuple[str, str],
        operator: str,
        note: str,
        now_ms: int,
        row: Literal["add", "remove", "leave"],
    ) -> str:
        receipt_id = receipts.receipt_id(now_ms, os.urandom(10))
        caller, shown, details = Caller(principal=operator), "", dict[str, Any](note=note)
        if isinstance(target, Stop):
            shown = f"{target.kind}:{target.name}"
            if target.tenant is not None:
                caller.tenant = target.tenant
                if target.kind == "session":
                    caller.session_id = target.name
        else:
            shown = "/".join(target)
        receipt = receipts.build_admin(receipt_id, now_ms, caller, action, shown, details)
        # Nothing in it is secret: the row only says that it is so, and which receipt tells why.
        added = SealedRow(SCOPE, name, _FOR_EVER, receipt_id.encode())
        self._store.commit(
            Delta(now_ms),
            receipts.record(receipt),
            seal=(added,) if row == "add" else (),
            unseal=((SCOPE, name),) if row == "remove" else (),
        )
        # This process follows at once; the others with their next poll.
        self.refresh()
        return receipt_id


def _system_ms() -> int:
    return time_ns() // 1_000_000


def _stop_name(stop: Stop) -> str:
    if stop.kind not in STOP_KINDS:
        raise BadName(f"'{stop.kind}' is not one of {', '.join(STOP_KINDS)}.")
    _check_name(stop.name)
    if stop.tenant is None:
        return f"stop:{stop.kind}:{stop.name}"
    _check_name(stop.tenant, empty=True)
    return f"stop:{stop.kind}:{stop.tenant}{SEPARATOR}{stop.name}"


def _check_name(name: str, *, empty: bool = False) -> None:
    if (not name and not empty) or len(name) > MAX_NAME or SEPARATOR in name:
        raise BadName(f"A name has 1 to {MAX_NAME} characters, and no control character U+001F.")


def _stop(name: str) -> Stop:
    _, kind, rest = name.split(":", 2)
    tenant, border, value = rest.rpartition(SEPARATOR)
    return Stop(cast("StopKind", kind), value, tenant if border else None)


def _viewed(rows: tuple[str, ...], switches: tuple[str, ...]) -> _View:
    stops = [_stop(name) for name in rows]
    off: dict[str, set[str]] = {}
    for name in switches:
        model, _, tool = name.removeprefix("off:").partition(SEPARATOR)
        off.setdefault(model, set()).add(tool)
    return _View(
        rows,
        switches,
        frozenset((stop.tenant, stop.name) for stop in stops if stop.kind == "session"),
        frozenset((stop.tenant, stop.name) for stop in stops if stop.kind == "principal"),
        tuple((stop, compile_glob(stop.name)) for stop in stops if stop.kind == "tool"),
        {model: frozenset(tools) for model, tools in off.items()},
        bool(stops),
    )
