"""A config as something that can be served: the plan, and every other section read by its owner.

Reads no secret, opens nothing and imports no operator's code; every problem of every section is told at once, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wardwright.alerts import AlertSettings, compile_alerts
from wardwright.config import ENV_NAME, Config, Node, Problems, nearest
from wardwright.errors import ConfigError
from wardwright.keys import SecretSource, compile_secret, secret_keys
from wardwright.mediation import Advertisement, Mediation, compile_advertisement, compile_mediation
from wardwright.policy.compile import Plan, compile_plan
from wardwright.policy.rules import Budget, Rule
from wardwright.providers import ProviderConfig, compile_providers, parse_url
from wardwright.receipts import rules_of
from wardwright.server_tools import ServerTool, compile_server_tools


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of anything is taken or kept at once."""

    body_bytes: int = 8 * 1024 * 1024
    header_bytes: int = 64 * 1024
    body_ms: int = 30_000
    """From the first byte of a body to its last."""
    concurrency: int = 1_000
    """Requests under way in one process; more are told to come again."""
    exchange_ms: int = 600_000
    """That a provider may take for one reply, from the first byte sent to the last received."""
    held_bytes: int = 4 * 1024 * 1024
    """Of one streamed reply, until it is judged."""
    rounds: int = 8
    """Replies that one request may cost when the gateway answers calls itself."""
    approval_expiry_ms: int = 3_600_000
    splice_expiry_ms: int = 86_400_000
    keep_alive_ms: int = 10_000
    """Silence after which a caller who waits for a stream gets a comment."""
    drain_ms: int = 30_000


_BYTES: Final = ("body_bytes", "header_bytes", "held_bytes")
_COUNTS: Final = ("concurrency", "rounds")
_TIMES: Final[Mapping[str, str]] = {
    "body_time": "body_ms",
    "exchange_time": "exchange_ms",
    "approval_expiry": "approval_expiry_ms",
    "splice_expiry": "splice_expiry_ms",
    "keep_alive": "keep_alive_ms",
    "drain": "drain_ms",
}


_PASSWORD: Final = re.compile(r"//[^/@]*:[^/]*@|[?&]password=")


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server whose tools are proxied, governed by the plan of a model."""

    name: str
    url: str
    model: str
    headers_env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Database:
    """Where state lies, when the command line does not say."""

    place: str = ""
    """A file, or an address without a password."""
    source: SecretSource | None = None
    """Where the address lies, when it is secret itself."""

    def read(self, environ: Mapping[str, str] | None = None) -> str:
        return self.place if self.source is None else self.source.read("store", environ)


@dataclass(frozen=True, slots=True)
class Workbench:
    """What the pages show beside the gateway's own state."""

    sessions: str = ""
    """A folder of durable sessions of the tool runtime; empty: none is shown."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What one model has beside its plan."""

    mediation: Mediation
    advertisement: Advertisement
    server_tools: tuple[ServerTool, ...]
    capture: bool


@dataclass(frozen=True, slots=True)
class Deployment:
    config: Config
    plan: Plan
    providers: Mapping[str, ProviderConfig]
    models: Mapping[str, ModelSettings]
    rules: Mapping[str, Mapping[str, Rule]]
    """Per model, its rules by id."""
    approving: frozenset[str]
    """Models with a rule that may ask for an approval."""
    holding: frozenset[str]
    """Models with a rule that may read or change the words of a reply: they wait until the reply is judged."""
    metered: frozenset[str]
    """Models with a rule that counts tokens or money: their streams must tell what they used."""
    limits: Limits
    alerts: AlertSettings
    mcp_servers: Mapping[str, McpServer]
    database: Database
    workbench: Workbench


def compile_deployment(config: Config, now_ms: int | None = None, *, modules_from: Path | None = None) -> Deployment:
    """All of a config, or ConfigError with all its problems. `modules_from`: the folder that `module` tools may come from; None
    refuses them, as for a plan that came over the network."""
    found = list[ConfigError]()
    problems = Problems(config.file)
    plan: Plan | None = None
    try:
        plan = compile_plan(config, now_ms)
    except ConfigError as error:
        found.append(error)
    sections = config.deployment
    providers = compile_providers(sections.get("providers"), problems)
    limits = _limits(sections.get("limits"), problems)
    alerts = compile_alerts(sections.get("alerts"), problems)
    models: dict[str, ModelSettings] = {}
    for model in config.models:
        own = model.sections
        models[model.model_id] = ModelSettings(
            compile_mediation(own.get("tool_mediation"), problems),
            compile_advertisement(own.get("tool_advertisement"), problems),
            compile_server_tools(
                own.get("server_tools"), sections.get("snippets"), problems, modules_from=modules_from
            ),
            _capture(own.get("capture"), problems),
        )
    servers = _mcp_servers(sections.get("mcp_servers"), tuple(models), problems)
    database = compile_store(sections.get("store"), problems)
    workbench = _workbench(sections.get("workbench"), problems)
    told = [problem for error in found for problem in error.problems] + problems.errors
    if told or plan is None:
        raise ConfigError(sorted(set(told), key=lambda problem: (problem.line, problem.column)))
    odd = sorted({*plan.warnings, *problems.warnings}, key=lambda problem: (problem.line, problem.column))
    plan = replace(plan, warnings=tuple(odd))
    rules = {name: rules_of(part) for name, part in plan.models.items()}
    approving = frozenset(name for name, own in rules.items() if any(map(_asks, own.values())))
    holding = frozenset(
        name for name, part in plan.models.items() if part.reads_replies or any(map(_changes, rules[name].values()))
    )
    metered = frozenset(name for name, own in rules.items() if any(map(_counts, own.values())))
    return Deployment(
        config,
        plan,
        providers,
        models,
        rules,
        approving,
        holding,
        metered,
        limits,
        alerts,
        servers,
        database,
        workbench,
    )


def compile_store(node: Node | None, problems: Problems) -> Database:
    """`store: FILE`, `store: postgresql://…`, or `store: {url_env: NAME}`. Reads no secret, and repeats none."""
    if node is None:
        return Database()
    if isinstance(node.value, dict):
        given = problems.mapping(node, (), ("path", *secret_keys("url")))
        source = compile_secret(given, "url", problems)
        if len(given) != 1:
            problems.error(node, "needs one of path, url_env and url_file")
        return Database(problems.text(given["path"]) if "path" in given else "", source)
    place = problems.text(node)
    if "://" in place:
        if not place.startswith(("postgresql://", "postgres://")):
            problems.error(node, "expected a file, or an address that begins with postgresql://")
        elif _PASSWORD.search(place):
            problems.error(
                node, "a password has no place in a config file: put the address elsewhere and name it with url_env"
            )
    return Database(place)


def _workbench(node: Node | None, problems: Problems) -> Workbench:
    if node is None:
        return Workbench()
    given = problems.mapping(node, (), ("sessions",))
    return Workbench(problems.text(given["sessions"]) if "sessions" in given else "")


def _asks(rule: Rule) -> bool:
    return rule.action.name == "require_approval" and rule.mode == "enforce"


def _counts(rule: Rule) -> bool:
    return isinstance(rule, Budget) and not {"tokens", "price"}.isdisjoint(rule.limits)


def _changes(rule: Rule) -> bool:
    return rule.action.name == "transform" and rule.mode == "enforce" and "reply" in rule.gates


def _limits(node: Node | None, problems: Problems) -> Limits:
    if node is None:
        return Limits()
    given: dict[str, int] = {}
    for key, child in problems.mapping(node, (), (*_BYTES, *_COUNTS, *_TIMES)).items():
        if key in _TIMES:
            given[_TIMES[key]] = problems.duration_ms(child)
        else:
            given[key] = problems.integer(child, 1)
    return Limits(**given)


def _capture(node: Node | None, problems: Problems) -> bool:
    """Whether receipts keep the text of arguments and results: `true`, `full`, or nothing."""
    if node is None:
        return False
    if isinstance(node.value, bool):
        return node.value
    return problems.choice(node, ("digests", "full")) == "full"


def _mcp_servers(node: Node | None, models: tuple[str, ...], problems: Problems) -> dict[str, McpServer]:
    servers: dict[str, McpServer] = {}
    if node is None or not isinstance(node.value, dict):
        return servers
    for name, child in node.items().items():
        given = problems.mapping(child, ("url",), ("model", "headers_env"))
        if not name.replace("-", "").replace("_", "").isalnum():
            problems.error(child, f"'{name}' cannot be part of an address: letters, digits, - and _ only")
        url = problems.text(given["url"]) if "url" in given else ""
        if url:
            try:
                parse_url(url)
            except ValueError as error:
                problems.error(given["url"], str(error))
        model = models[0] if models else ""
        if "model" in given:
            model = problems.text(given["model"])
            if model not in models:
                problems.error(given["model"], f"unknown model '{model}'{nearest(model, models)}")
        headers: dict[str, str] = {}
        if "headers_env" in given:
            named = given["headers_env"].items()
            headers = {key: problems.text(one) for key, one in named.items()}
            for key, variable in headers.items():
                if variable and not ENV_NAME.fullmatch(variable):
                    problems.error(
                        named[key],
                        "expected the name of an environment variable; the secret itself has no place in a config file",
                    )
        servers[name] = McpServer(name, url, model, headers)
    return servers
