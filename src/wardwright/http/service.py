"""One process of the gateway: opens what it needs, follows the plan in force, and closes everything in the reverse order.

A plan takes effect whole or not at all: it is compiled, its tools opened and its providers connected before the one before it is let
go; exchanges under way end with what they began with.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Final

from wardwright import receipts
from wardwright.alerts import Alerts, Sink, sinks_of
from wardwright.config import Config, Problems, load_config, parse_config
from wardwright.deployment import Deployment, ModelSettings, compile_deployment
from wardwright.errors import (
    ConfigError,
    GovernanceUnavailable,
    Problem,
    SealedMissing,
    VersionConflict,
    WardwrightError,
)
from wardwright.exchange import Gateway, Live
from wardwright.gates import Gates, Kept
from wardwright.history import Delta
from wardwright.http.auth import Auth, Authenticator, check_binding, compile_auth, is_local
from wardwright.http.guard import Hosts
from wardwright.keys import Keyring, KeysUnusable, ring_path
from wardwright.metrics import Metrics
from wardwright.overlay import Overlay
from wardwright.policy.compile import Plan
from wardwright.providers import Client, open_providers
from wardwright.providers.settings import Secret
from wardwright.server_tools import ServerTools
from wardwright.sessions import Sessions
from wardwright.store import PlanEpoch, SealedRow, Store, check_place, open_store
from wardwright.wire.turn import Caller

SWEEP_S: Final = 60.0
OPENING_S: Final = 30.0
"""How long an operator waits to hear whether a plan opens."""
EMBEDDED: Final = "starter.yaml"
_FILE: Final = ("service", "file")
"""The store's row that tells which file was put in force last. No session has such a scope."""

log = logging.getLogger("wardwright")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A config, ready to be put in force."""

    deployment: Deployment
    auth: Auth


@dataclass(frozen=True, slots=True)
class _Ready:
    """A plan with everything it needs, opened."""

    compiled: Compiled
    authenticator: Authenticator
    hosts: Hosts
    live: Live
    sinks: list[Sink] | None
    """Of alerts; None: they stay as they are."""


def compile_service(config: Config, now_ms: int | None = None, *, modules_from: Path | None = None) -> Compiled:
    """Everything a config says, or ConfigError with all that is wrong with it."""
    problems = Problems(config.file)
    auth = compile_auth(config.deployment.get("auth"), problems)
    try:
        deployment = compile_deployment(config, now_ms, modules_from=modules_from)
    except ConfigError as error:
        told = {*error.problems, *problems.errors}
        raise ConfigError(sorted(told, key=lambda problem: (problem.line, problem.column))) from None
    if problems.errors:
        raise ConfigError(problems.errors)
    plan = replace(deployment.plan, warnings=(*deployment.plan.warnings, *problems.warnings))
    return Compiled(replace(deployment, plan=plan), auth)


def embedded() -> Config:
    """The example that is served when nobody names a file."""
    text = resources.files("wardwright").joinpath(EMBEDDED).read_text("utf-8")
    return parse_config(text, EMBEDDED)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Service:
    """Lives as long as the process serves. `open`, then requests, then `close`."""

    def __init__(
        self,
        config: Config,
        database: str,
        host: str,
        *,
        clock_ms: Callable[[], int] = now_ms,
        environ: Mapping[str, str] | None = None,
        sessions: str = "",
    ) -> None:
        self.host = host
        self.now_ms = clock_ms
        self._environ = environ
        self._config = config
        self.database = database
        self._client: Client | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._retired: list[tuple[weakref.ref[Live], Mapping[str, ServerTools]]] = []
        """Tools of former plans, and whether an exchange still uses them."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it serves; set when it opens."""
        self._changing = asyncio.Lock()
        self._reading = asyncio.Lock()
        """One reads the file at a time: until its plan is in force, or is not, nobody else may know which file is ours."""
        self._reload_waits = False
        self._epoch = 0
        """Of the plan in force here."""
        self.admin_token: str | None = None
        """Generated just now, to be printed once; None when there is one already."""
        compiled = self._compile(config)
        _read_secrets(compiled, self.environ)
        self.sessions_folder = sessions or compiled.deployment.workbench.sessions
        """Of the config at the start: a plan that comes over the network cannot name another."""
        check_place(database)  # before keys are made beside it
        self.keyring = Keyring.load_or_create(ring_path(database), environ)
        self.authenticator = Authenticator(compiled.auth, self.keyring, host, environ=environ)
        self.hosts = Hosts(compiled.auth.hosts, compiled.auth.origins, host)
        if not self.authenticator.has_admin:
            self.admin_token = self.keyring.admin_token_once()
        self.store: Store = open_store(database)
        self.metrics = Metrics(str(os.getpid()))
        self.alerts = Alerts.of(compiled.deployment.alerts, environ=environ)
        self.metrics.gauge(
            "wardwright_alerts_dropped_total", "Alerts that nobody got.", lambda: self.alerts.dropped, kind="counter"
        )
        self.overlay = Overlay(self.store, now_ms=clock_ms, on_plan=self._follow)
        self._compiled = compiled
        gates = Gates(self.store, self.keyring, clock_ms)
        self.metrics.gauge(
            "wardwright_commits_total", "Transactions of the gates.", lambda: gates.commits, kind="counter"
        )
        self.gateway = Gateway(
            Live(compiled.deployment, {}, {}),
            gates,
            Sessions(gates),
            self.keyring,
            self.overlay,
            self.alerts,
            self.metrics,
            clock_ms,
            time.monotonic,
        )

    # what the operators' application asks

    @property
    def local(self) -> bool:
        """Only this machine can reach it."""
        return is_local(self.host)

    @property
    def deployment(self) -> Deployment:
        return self.gateway.live.deployment

    @property
    def plan(self) -> Plan:
        return self.deployment.plan

    @property
    def source(self) -> bytes:
        return self.deployment.config.source

    @property
    def client(self) -> Client:
        """All connections to the outside."""
        assert self._client is not None
        return self._client

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        return self.deployment.models

    def compile(self, source: bytes) -> Plan:
        """The plan of a text that came over the network, every section checked; ConfigError."""
        return self._compile(self._sent(source)).deployment.plan

    def opens(self, source: bytes) -> None:
        """Opens everything that plan needs and closes it again, without putting it in force. Must be asked outside the event loop."""
        if self._loop is None:
            raise GovernanceUnavailable("The gateway is not open yet.")
        trying = asyncio.run_coroutine_threadsafe(self._try(source), self._loop)
        try:
            trying.result(OPENING_S)
        except TimeoutError:
            trying.cancel()
            raise GovernanceUnavailable(
                f"What the plan needs did not open within {OPENING_S:g} seconds; nothing was changed."
            ) from None

    async def _try(self, source: bytes) -> None:
        ready = await self._prepare(self._compile(self._sent(source)))
        for provider in ready.live.providers.values():
            provider.close()
        await _close(ready.live.server_tools)

    async def activate(self, source: bytes, operator: str, expected_epoch: int | None = None) -> PlanEpoch:
        """Validates a config, puts it in force for every process, and follows it here. ConfigError when it cannot be."""
        return await self._activate(self._sent(source), operator, expected_epoch)

    async def _activate(self, config: Config, operator: str, expected_epoch: int | None = None) -> PlanEpoch:
        async with self._changing:
            ready = await self._prepare(self._compile(config))
            try:
                epoch = await self.gateway.gates.ask(self._store_plan, ready.compiled, config.source, expected_epoch)
            except BaseException:
                await _close(ready.live.server_tools)
                raise
            self.overlay.epoch = max(self.overlay.epoch, epoch.epoch)
            self._put_in_force(ready, epoch.epoch)
        log.info("plan activated", extra={"epoch": epoch.epoch, "plan_hash": epoch.plan_hash, "operator": operator})
        return epoch

    def _store_plan(self, compiled: Compiled, source: bytes, expected_epoch: int | None = None) -> PlanEpoch:
        current = self.store.plan_epoch()
        expected = expected_epoch if expected_epoch is not None else (0 if current is None else current.epoch)
        return self.store.activate(compiled.deployment.plan.plan_hash, source, self.now_ms(), expected)

    # life

    async def open(self) -> None:
        """Everything up to the first request."""
        self._client = Client()
        loop = self._loop = asyncio.get_running_loop()
        await self._agree()
        self._tasks = [loop.create_task(one) for one in (self.overlay.run(), self.alerts.run(), self._sweep())]
        # What is here now stays: the collector need not look at it again, and looks rarely at what requests leave.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)

    async def close(self) -> None:
        """After the last request: what is queued is sent, what is open is closed."""
        for task in self._tasks[:1] + self._tasks[2:]:
            task.cancel()
        await self.alerts.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for tools in (*(one for _, one in self._retired), self.gateway.live.server_tools):
            await _close(tools)
        if self._client is not None:
            await self._client.close()
        self.store.close()

    async def ready(self) -> str:
        """Empty, or why nothing can be served now."""
        try:
            await self.gateway.gates.ask(self.store.plan_epoch)
        except WardwrightError as error:
            return str(error)
        if self.overlay.plan_error:
            return f"This process could not follow the plan of epoch {self.overlay.epoch}; the one before rules here."
        return ""

    async def reload(self) -> None:
        """Reads the file again; a file with problems changes nothing."""
        async with self._reading:
            self._reload_waits = False
            await self._reload()

    async def _reload(self) -> None:
        self.keyring.reload()
        before, self._config = self._config, load_config(self._config.file)  # code beside the file comes with it
        try:
            epoch = await self._activate(self._config, "reload")
        except BaseException:
            self._config = before
            raise
        self._mark()
        now = self.now_ms()
        told = receipts.build_admin(
            receipts.receipt_id(now, os.urandom(10)),
            now,
            Caller(principal="reload"),
            "plan_activated",
            str(epoch.epoch),
            {"plan_hash": epoch.plan_hash},
        )
        await self.gateway.gates.record(Kept(receipts.record(told)))

    async def reload_safely(self) -> None:
        """As `reload`, for a signal: what is wrong is logged, and the plan in force stays."""
        if self._reload_waits:
            return  # whoever waits reads the file later than this
        self._reload_waits = True
        try:
            await self.reload()
        except Exception as error:  # noqa: BLE001
            # INVARIANT: whatever is wrong with the file, the plan in force rules on.
            log.error("reload refused", extra={"reason": str(error) or type(error).__name__})

    def _sent(self, source: bytes) -> Config:
        """A config that came over the network; one that is our file, byte for byte, is our file: a roll-back may lead to it."""
        return parse_config(source.decode("utf-8"), self._config.file if source == self._config.source else "<sent>")

    def _compile(self, config: Config) -> Compiled:
        # Operators' code comes only with the file that this process was started with.
        ours = config.source == self._config.source and Path(config.file).exists()
        compiled = compile_service(
            config, self.now_ms(), modules_from=Path(config.file).resolve().parent if ours else None
        )
        refused = check_binding(self.host, compiled.auth)
        if refused is not None:
            place = config.deployment.get("auth", config.root)
            raise ConfigError([Problem(config.file, place.line, place.column, "auth", refused)])
        return compiled

    async def _agree(self) -> None:
        """One plan for all processes: this one's file if it is news, else what is in force: an operator may have changed it since
        the file was read first, and a process that starts anew takes nothing of that back."""
        source = self._config.source
        while True:
            current = self.store.plan_epoch()
            if current is not None and (current.source == source or self._marked()):
                if current.source != source:
                    self._compiled = self._compile(parse_config(current.source.decode("utf-8"), self._config.file))
                break
            try:
                current = self._store_plan(self._compiled, source)
            except VersionConflict:
                continue  # another process was first
            break
        self._put_in_force(await self._prepare(self._compiled), current.epoch)
        self.overlay.epoch = current.epoch
        self._mark()

    def _mark(self) -> None:
        """This file has been put in force."""
        if not self._marked():
            now = self.now_ms()
            self.store.commit(Delta(now), seal=(SealedRow(_FILE[0], _FILE[1], 2**62, self._file_digest()),))

    def _marked(self) -> bool:
        try:
            return self.store.sealed(*_FILE, self.now_ms()).body == self._file_digest()
        except SealedMissing:
            return False

    def _file_digest(self) -> bytes:
        return hashlib.sha256(self._config.source).digest()

    async def _follow(self, epoch: PlanEpoch) -> None:
        """Another process, or an operator, has put another plan in force."""
        async with self._changing:
            if epoch.epoch <= self._epoch:
                return
            try:
                config = parse_config(epoch.source.decode("utf-8"), self._config.file)
                self._put_in_force(await self._prepare(self._compile(config)), epoch.epoch)
            except WardwrightError as error:
                log.error("plan not followed", extra={"epoch": epoch.epoch, "reason": str(error)})
                raise

    async def _prepare(self, compiled: Compiled) -> _Ready:
        """Everything that a plan needs, opened; or nothing is. Keys of providers are read anew."""
        deployment = compiled.deployment
        # Where alerts go is said by the file alone: a plan that came over the network must name no path and no address.
        sinks = sinks_of(deployment.alerts, self._environ) if _on_disk(deployment.config) else None
        authenticator = Authenticator(compiled.auth, self.keyring, self.host, environ=self._environ)
        hosts = Hosts(compiled.auth.hosts, compiled.auth.origins, self.host)
        providers = open_providers(deployment.providers, self.client, self.environ)
        tools: dict[str, ServerTools] = {}
        try:
            for model, settings in deployment.models.items():
                if settings.server_tools:
                    tools[model] = ServerTools(settings.server_tools)
                    await tools[model].open()
        except BaseException:
            await _close(tools)
            raise
        return _Ready(compiled, authenticator, hosts, Live(deployment, providers, tools), sinks)

    def _put_in_force(self, ready: _Ready, epoch: int) -> None:
        before = self.gateway.live
        self._compiled, self._epoch = ready.compiled, epoch
        self.authenticator, self.hosts = ready.authenticator, ready.hosts
        self.gateway.live = ready.live
        if ready.sinks is not None:
            self.alerts.change(ready.sinks, ready.compiled.deployment.alerts.queue)
        if before.server_tools:
            self._retired.append((weakref.ref(before), before.server_tools))
        for provider in before.providers.values():
            provider.close()

    async def upkeep(self) -> None:
        """What has expired is erased, what was put off is done, what nobody uses is closed, what could not be followed is tried."""
        if self.overlay.plan_error:
            self.overlay.epoch = self._epoch
        unused = [tools for live, tools in self._retired if live() is None]
        self._retired = [one for one in self._retired if one[0]() is not None]
        for tools in unused:
            await _close(tools)
        self.keyring.reload()
        await asyncio.to_thread(self.store.sweep, self.now_ms())
        await asyncio.to_thread(self.store.maintain)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.upkeep()
            except WardwrightError as error:
                log.warning("upkeep failed", extra={"error": str(error)})


def _read_secrets(compiled: Compiled, environ: Mapping[str, str]) -> None:
    """KeysUnusable with a line for each secret that is not there: before anything is made, and before anybody is told that we serve."""
    auth, deployment = compiled.auth, compiled.deployment
    wanted = [(f"auth.keys '{one.id}'", one.source) for one in auth.keys]
    wanted += [(f"auth.operators '{one.id}'", one.source) for one in auth.operators]
    wanted += [("auth.admin", auth.admin)]
    wanted += [(f"auth.attestation.issuers '{one.id}'", one.source) for one in auth.issuers]
    for number, sink in enumerate(deployment.alerts.sinks):
        wanted += [(f"alerts.sinks[{number}].url", sink.url_source), (f"alerts.sinks[{number}].header", sink.header)]
    missing: list[str] = []
    for what, source in wanted:
        try:
            if source is not None:
                source.read(what, environ, lines=True)
        except KeysUnusable as error:
            missing.append(str(error))
    for provider in deployment.providers.values():
        for secret in (provider.key, *(value for _, value in provider.headers)):
            try:
                if isinstance(secret, Secret):
                    secret.read(environ)
            except ConfigError as error:
                missing.append(str(error))
    if missing:
        raise KeysUnusable("\n".join(missing))


def _on_disk(config: Config) -> bool:
    """Whether this is what its file says now."""
    try:
        return Path(config.file).read_bytes() == config.source
    except OSError:
        return False


async def _close(tools: Mapping[str, ServerTools]) -> None:
    for one in tools.values():
        try:
            await one.aclose()
        except Exception as error:  # noqa: BLE001
            # INVARIANT: what cannot be closed keeps nothing else open.
            log.warning("tools not closed", extra={"error": type(error).__name__})


__all__ = ["Compiled", "Service", "compile_service", "embedded"]
