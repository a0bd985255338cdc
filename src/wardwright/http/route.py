"""One question an operator can ask over HTTP: its path, who may ask, what it takes; and how what was sent is read.

The same tables are checked against and shown in the OpenAPI document, so that the document cannot say anything else than what holds.
Whatever is wrong with what was sent is `BadRequest` with every problem; nothing here touches a store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import orjson

from wardwright.approvals import Sealer
from wardwright.config import nearest
from wardwright.errors import WardwrightError
from wardwright.mediation import Advertisement
from wardwright.overlay import Overlay
from wardwright.policy.compile import Plan
from wardwright.store import Store
from wardwright.wire import schema
from wardwright.wire.refusal import Refusal

Role: TypeAlias = Literal["viewer", "approver", "operator"]
Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]
Schema: TypeAlias = Mapping[str, Any]

MAX_INT: Final = 2**53 - 1
"""What every JSON reader understands; larger numbers are refused before a database meets them."""

TEXT: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 512}
NOTE: Final[Schema] = {"type": "string", "maxLength": 2000, "description": "Why; kept in the receipt."}
SOURCE: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "description": "A plan: YAML of an artifact or a deployment.",
}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_INT}
INSTANT: Final[Schema] = {
    "type": "string",
    "pattern": r"^([0-9]{1,16}|[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?)$",
    "maxLength": 40,
    "description": "2026-12-31, 2026-12-31T18:00:00Z, or milliseconds since the epoch.",
}


class BadRequest(WardwrightError, ValueError):
    """What was sent cannot be used."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"


class NotFound(WardwrightError, LookupError):
    """There is no such thing."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "not_found"


class Conflict(WardwrightError, RuntimeError):
    """It is not any more as the request says."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "conflict"


class Gone(WardwrightError, LookupError):
    """It was there and was erased."""

    status: ClassVar[int] = 410
    code: ClassVar[str] = "erased"


class Keys(Sealer, Protocol):
    """What is needed of a keyring."""

    def session_key(self, scope: str, since_ms: int | None = None) -> bytes: ...

    @property
    def signing_keys(self) -> tuple[bytes, ...]: ...


class Operator(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def role(self) -> Role: ...


class Doorkeeper(Protocol):
    """Who knows the operators."""

    def admin(self, headers: Mapping[str, str], peer: str, needs: Role = "viewer") -> Operator | Refusal: ...


class ToolLimits(Protocol):
    @property
    def timeout_ms(self) -> int: ...

    @property
    def output_chars(self) -> int: ...


class ServerTool(Protocol):
    """What the model page may tell of a server tool."""

    @property
    def name(self) -> str: ...

    @property
    def engine(self) -> str: ...

    @property
    def source_class(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any] | None: ...

    @property
    def input(self) -> Mapping[str, Any]: ...

    @property
    def limits(self) -> ToolLimits: ...


class Mediation(Protocol):
    @property
    def mode(self) -> str: ...

    @property
    def rules(self) -> Sequence[Any]: ...


class ModelSettings(Protocol):
    @property
    def advertisement(self) -> Advertisement: ...

    @property
    def mediation(self) -> Mediation: ...

    @property
    def server_tools(self) -> Sequence[ServerTool]: ...


class Gateway(Protocol):
    """The running gateway, as operators see it."""

    @property
    def store(self) -> Store: ...

    @property
    def keyring(self) -> Keys: ...

    @property
    def overlay(self) -> Overlay: ...

    @property
    def authenticator(self) -> Doorkeeper: ...

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        ...

    @property
    def source(self) -> bytes:
        """The text it was compiled from."""
        ...

    @property
    def models(self) -> Mapping[str, ModelSettings]: ...

    def now_ms(self) -> int: ...

    def compile(self, source: bytes) -> Plan:
        """The plan of a text that came over the network, with every section checked as for serving; ConfigError."""
        ...

    def opens(self, source: bytes) -> None:
        """Opens everything that plan needs (secrets, providers, tools), and closes it again. WardwrightError where it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter."""

    name: str
    schema: Schema = field(default_factory=lambda: TEXT)
    description: str = ""
    default: Any = None
    repeated: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer of lines, written as they are made."""

    lines: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, read and allowed."""

    gateway: Gateway
    operator: str
    path: Mapping[str, str]
    query: Mapping[str, Any]
    """By name; those not given with their default. Repeated ones as tuples."""
    body: Mapping[str, Any]

    def instant(self, name: str) -> int | None:
        """A time of the query or the body in milliseconds."""
        given = self.query.get(name) or self.body.get(name)
        return None if not given else instant(name, given)


Handler: TypeAlias = Callable[[Ask], Any]


@dataclass(frozen=True, slots=True)
class Route:
    """What can be asked. `{name}` in the path is one part of it, `{name*}` one or more."""

    method: Method
    path: str
    role: Role
    summary: str
    handler: Handler
    answer: Schema
    """JSON Schema of what comes back."""
    query: tuple[Parameter, ...] = ()
    body: Schema | None = None
    heavy: bool = False
    """Reads the whole archive: one at a time."""
    activates: bool = False
    """May have changed the plan: this process follows before it answers."""
    errors: tuple[int, ...] = ()
    """Further statuses it may answer with, beside 400, 401, 403 and 503."""

    @property
    def pattern(self) -> re.Pattern[str]:
        return path_pattern(self.path)


def path_pattern(path: str) -> re.Pattern[str]:
    """What fits a path with `{name}` or `{name*}` in it."""
    parts = re.split(r"(\{\w+\*?\})", path)
    return re.compile("".join(_part(part) for part in parts))


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{*}")
    return f"(?P<{name}>.+)" if part.endswith("*}") else f"(?P<{name}>[^/]+)"


def object_schema(required: Sequence[str] = (), /, **properties: Schema) -> dict[str, Any]:
    """A closed object."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def read_query(route: Route, given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Every parameter by name, checked; BadRequest with all problems."""
    known = {parameter.name: parameter for parameter in route.query}
    found: dict[str, list[Any]] = {}
    problems: list[str] = []
    for name, value in given:
        parameter = known.get(name)
        if parameter is None:
            problems.append(f"unknown parameter '{name}'{nearest(name, known)}")
        else:
            found.setdefault(name, []).append(_value(parameter, value))
    query: dict[str, Any] = {}
    for name, parameter in known.items():
        values = found.get(name, [])
        if not values:
            if parameter.required:
                problems.append(f"missing parameter '{name}'")
            query[name] = () if parameter.repeated else parameter.default
            continue
        if len(values) > 1 and not parameter.repeated:
            problems.append(f"parameter '{name}' is given {len(values)} times")
        for value in values:
            problems.extend(f"parameter '{name}': {_told(one)}" for one in schema.check(value, parameter.schema))
        query[name] = tuple(values) if parameter.repeated else values[0]
    _refuse(problems)
    return query


def _value(parameter: Parameter, text: str) -> Any:
    kind = parameter.schema.get("type")
    if kind == "integer" and re.fullmatch(r"-?[0-9]{1,17}", text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def read_body(route: Route, raw: bytes) -> dict[str, Any]:
    """The body as the route declares it; BadRequest with all problems."""
    if route.body is None:
        return {}
    try:
        value: Any = orjson.loads(raw) if raw.strip() else {}
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON in valid UTF-8: line {error.lineno}, column {error.colno}.") from None
    try:
        _refuse([_told(problem) for problem in schema.check(value, route.body)])
    except schema.SchemaUnsupported as error:
        raise BadRequest(f"The body cannot be checked: {error}.") from None
    return value


def _told(problem: str) -> str:
    return problem.removeprefix("$: ")


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise BadRequest(f"This cannot be used: {'; '.join(problems[:20])}.")


def instant(name: str, text: str) -> int:
    """Milliseconds from a date, a time or milliseconds, as the command line takes them."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadRequest(
            f"'{name}' must be a date (2026-12-31), a time (2026-12-31T18:00:00Z) or milliseconds."
        ) from None


def dump(value: Any) -> bytes:
    """JSON of an answer. Stored receipts may hold what the fast writer refuses: lone surrogates, huge numbers."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(value).encode()
