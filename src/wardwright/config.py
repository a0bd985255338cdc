"""YAML to a tree whose every node knows its line and column, and the split into a deployment and its model artifacts.

Decides what a file *is*; what rules mean is decided by `policy.compile`. Nothing is guessed and nothing dropped: every problem is
collected with its place, and `compile_plan` refuses the file with all of them at once.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import orjson
import yaml
from yaml.reader import ReaderError

from wardwright.errors import ConfigError, Problem

Scalar: TypeAlias = str | int | float | bool | None

ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""What a section may name as an environment variable. What is not like this may be the secret itself, and is not repeated."""

MAX_NODES: Final = 200_000
"""Aliases are expanded; a small file that unfolds into more nodes than this is refused."""

MODEL_KEYS: Final[tuple[str, ...]] = (
    "model_id",
    "targets",
    "catalog",
    "state_machine",
    "state_machines",
    "governance",
    "policy_bundles",
    "scopes",
    "server_tools",
    "tool_mediation",
    "tool_advertisement",
    "require_session",
    "approval",
    "capture",
    "description",
)
DEPLOYMENT_KEYS: Final[tuple[str, ...]] = (
    "models",
    "providers",
    "catalog",
    "policy_bundles",
    "snippets",
    "auth",
    "store",
    "alerts",
    "scopes",
    "limits",
    "mcp_servers",
    "workbench",
)


class Node:
    """One YAML value with its place. `value` is a scalar, a dict of nodes or a tuple of nodes."""

    __slots__ = ("column", "line", "path", "value")

    def __init__(self, value: Scalar | dict[str, Node] | tuple[Node, ...], line: int, column: int, path: str) -> None:
        self.value = value
        self.line = line
        self.column = column
        self.path = path

    def plain(self) -> Any:
        """The value without places."""
        value = self.value
        if isinstance(value, dict):
            return {key: node.plain() for key, node in value.items()}
        if isinstance(value, tuple):
            return [node.plain() for node in value]
        return value

    def items(self) -> Mapping[str, Node]:
        return self.value if isinstance(self.value, dict) else {}

    def entries(self) -> Sequence[Node]:
        return self.value if isinstance(self.value, tuple) else ()


def nearest(word: str, words: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no word is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


class Problems:
    """Collects problems while a file is read. Every reader reports and gives a harmless value, so that reading goes on."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Problem] = []

    def error(self, node: Node, message: str) -> None:
        self.found.append(Problem(self.file, node.line, node.column, node.path, message))

    def warn(self, node: Node, message: str) -> None:
        self.found.append(Problem(self.file, node.line, node.column, node.path, message, "warning"))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == "warning"]

    def mapping(
        self,
        node: Node,
        required: Iterable[str],
        optional: Iterable[str],
        *,
        example: str = "",
        elsewhere: tuple[Iterable[str], str] = ((), ""),
    ) -> dict[str, Node]:
        """The entries of a mapping; unknown and missing keys reported, unknown ones left out. `elsewhere`: keys that belong to
        another place, and which."""
        if not isinstance(node.value, dict):
            self.error(node, f"expected a mapping{example and f' such as {example}'}, got {kind_of(node)}")
            return {}
        required = tuple(required)
        known = (*required, *optional)
        found: dict[str, Node] = {}
        for key, child in node.value.items():
            if key in known:
                found[key] = child
            elif key in elsewhere[0]:
                self.error(child, f"'{key}' has no place here: {elsewhere[1]}")
            else:
                self.error(child, f"unknown key '{key}'{nearest(key, known)}")
        for key in required:
            if key not in node.value:
                self.error(node, f"missing key '{key}'")
        return found

    def sequence(self, node: Node) -> Sequence[Node]:
        if not isinstance(node.value, tuple):
            self.error(node, f"expected a list, got {kind_of(node)}")
            return ()
        return node.value

    def text(self, node: Node, *, empty: bool = False) -> str:
        if not isinstance(node.value, str):
            self.error(node, f"expected text, got {kind_of(node)}")
            return ""
        if not node.value and not empty:
            self.error(node, "must not be empty")
        return node.value

    def name(self, node: Node) -> str:
        """Text that names something in headers, logs and notes: on one line, as it looks."""
        name = self.text(node)
        if name.strip() != name or not name.isprintable():
            self.error(node, f"{name!r} cannot be a name: it has spaces around it, or what cannot be printed")
        return name

    def texts(self, node: Node, *, empty: bool = False) -> tuple[str, ...]:
        """One text or a list of them."""
        if isinstance(node.value, tuple):
            if not node.value and not empty:
                self.error(node, "must not be an empty list")
            return tuple(self.text(entry) for entry in node.value)
        return (self.text(node),)

    def choice(self, node: Node, words: Sequence[str]) -> str:
        word = self.text(node)
        if word and word not in words:
            self.error(node, f"'{word}' is not one of {', '.join(words)}{nearest(word, words)}")
            return words[0]
        return word or words[0]

    def choices(self, node: Node, words: Sequence[str]) -> tuple[str, ...]:
        if isinstance(node.value, tuple):
            if not node.value:
                self.error(node, "must not be an empty list")
            return tuple(self.choice(entry, words) for entry in node.value)
        return (self.choice(node, words),)

    def integer(self, node: Node, minimum: int | None = None) -> int:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool):
            self.error(node, f"expected a whole number, got {kind_of(node)}")
            return minimum or 0
        if minimum is not None and value < minimum:
            self.error(node, f"must be at least {minimum}, got {value}")
            return minimum
        return value

    def number(self, node: Node, minimum: float | None = None) -> float:
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.error(node, f"expected a number, got {kind_of(node)}")
            return 0.0
        if value != value or value in (float("inf"), float("-inf")):
            self.error(node, "expected a finite number")
            return 0.0
        if minimum is not None and value < minimum:
            self.error(node, f"must be at least {minimum:g}, got {value:g}")
        return float(value)

    def boolean(self, node: Node) -> bool:
        if not isinstance(node.value, bool):
            self.error(node, f"expected true or false, got {kind_of(node)}")
            return False
        return node.value

    def duration_ms(self, node: Node) -> int:
        """Milliseconds from `30d`, `12h`, `15m`, `10s`, `250ms`, or a whole number of milliseconds."""
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool):
            if 0 < value < 1_000:
                self.warn(node, f"{value} means milliseconds; write {value}ms, or {value}s for seconds")
            return self.integer(node, 1)
        if isinstance(value, str):
            for suffix, factor in (("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
                number = value.removesuffix(suffix)
                if number != value and _WHOLE.fullmatch(number) and int(number) > 0:
                    return int(number) * factor
        self.error(node, "expected a duration such as 30d, 12h, 15m, 10s or 250ms")
        return 1

    def instant_ms(self, node: Node) -> int:
        """Milliseconds since the epoch from a date or a time; a time without zone is UTC, a date means its end."""
        value = node.value
        if isinstance(value, str):
            try:
                if len(value) == 10:
                    day = date.fromisoformat(value)
                    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000) + 86_400_000
                moment = datetime.fromisoformat(value)
            except ValueError:
                pass
            else:
                moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
                return int(moment.timestamp() * 1000)
        self.error(node, "expected a date (2026-12-31) or a time (2026-12-31T18:00:00Z)")
        return 0


def kind_of(node: Node) -> str:
    """How a value is called in a message."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    return f"{'text' if isinstance(value, str) else 'number'} {value!r}"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model artifact, split into its sections. Sections the policy engine does not read stay nodes for those who do."""

    model_id: str
    node: Node
    sections: Mapping[str, Node] = field(default_factory=dict[str, Node])


@dataclass(frozen=True, slots=True)
class Config:
    """A file that could be read. `problems` are raised by `compile_plan`, together with its own."""

    file: str
    models: tuple[ModelConfig, ...]
    deployment: Mapping[str, Node]
    root: Node
    problems: tuple[Problem, ...] = ()
    source: bytes = b""

    @property
    def content_hash(self) -> str:
        """Hash of what the file says, whatever its layout."""
        return hashlib.sha256(orjson.dumps(self.root.plain(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def load_config(source: str | PathLike[str]) -> Config:
    """Reads a file, or YAML text (any string with a line break). Raises ConfigError when it is no YAML at all."""
    if isinstance(source, str) and "\n" in source:
        return parse_config(source)
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else f"it is no text in UTF-8: {error}"
        raise ConfigError([Problem(str(path), 1, 1, "$", f"cannot be read: {why}")]) from error
    return parse_config(text, str(path))


def parse_config(text: str, file: str = "<text>") -> Config:
    problems = Problems(file)
    root = parse_yaml(text, problems)
    if not isinstance(root.value, dict):
        problems.error(root, "expected a mapping: a model artifact, or a deployment with 'models'")
        raise ConfigError(problems.found)
    if "models" in root.value:
        deployment = problems.mapping(
            root, ("models",), DEPLOYMENT_KEYS, elsewhere=(MODEL_KEYS, "it belongs to an entry of 'models'")
        )
        entries = problems.sequence(deployment["models"])
        if not entries and isinstance(deployment["models"].value, tuple):
            problems.error(deployment["models"], "must not be an empty list")
        models = [_model(entry, problems, required=("model_id",)) for entry in entries]
        seen: dict[str, ModelConfig] = {}
        for model in models:
            if model.model_id in seen:
                problems.error(
                    model.node,
                    f"model_id '{model.model_id}' is already used at line {seen[model.model_id].node.line}",
                )
            seen[model.model_id] = model
    else:
        deployment_only = {key: node for key, node in root.value.items() if key in DEPLOYMENT_KEYS}
        shared = {key: node for key, node in deployment_only.items() if key not in MODEL_KEYS}
        own = Node(
            {key: node for key, node in root.value.items() if key not in shared}, root.line, root.column, root.path
        )
        deployment = shared
        models = [_model(own, problems, required=())]
    return Config(file, tuple(models), deployment, root, tuple(problems.found), text.encode())


def _model(node: Node, problems: Problems, required: tuple[str, ...]) -> ModelConfig:
    optional = tuple(key for key in MODEL_KEYS if key not in required)
    above = (DEPLOYMENT_KEYS, "it belongs to the top of the file, beside 'models'")
    sections = problems.mapping(node, required, optional, elsewhere=above if required else ((), ""))
    model_id = problems.name(sections["model_id"]) if "model_id" in sections else ""
    return ModelConfig(model_id or "default", node, sections)


class _Loader(yaml.SafeLoader):
    """Safe YAML without timestamps: dates stay text, so that every value is JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_YAML: Final = "tag:yaml.org,2002:"
_WHOLE: Final = re.compile("[0-9]{1,9}")
_PLAIN_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_PLAIN_FLOAT: Final = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PLAIN_BOOL: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_PLAIN_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_SCALAR_TAGS: Final = frozenset(_YAML + name for name in ("str", "int", "float", "bool", "null"))


def parse_yaml(text: str, problems: Problems) -> Node:
    """Text to nodes. Duplicate keys, unknown tags, unfolding bombs and values that YAML's versions read differently are problems;
    broken YAML raises at once."""
    try:
        loader = _Loader(text)
        try:
            composed: Any = loader.get_single_node()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if composed is None:
                raise ConfigError([Problem(problems.file, 1, 1, "$", "the file is empty")])
            return _convert(loader, cast("yaml.Node", composed), "$", problems, [0], ())
        finally:
            loader.dispose()  # pyright: ignore[reportUnknownMemberType]
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark  # pyright: ignore[reportUnknownMemberType]
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message = f"not valid YAML: {error.problem or error.context or 'unreadable'}{_remedy(error.problem or '')}"
        raise ConfigError([*problems.found, Problem(problems.file, line, column, "$", message)]) from error
    except RecursionError as error:
        raise ConfigError([*problems.found, Problem(problems.file, 1, 1, "$", "nests too deeply")]) from error
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"not valid YAML: the character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError([*problems.found, Problem(problems.file, line, column, "$", message)]) from error
    except yaml.YAMLError as error:
        raise ConfigError([*problems.found, Problem(problems.file, 1, 1, "$", f"not valid YAML: {error}")]) from error


def _remedy(problem: str) -> str:
    """What usually is the matter, for sentences that only a parser of YAML understands."""
    if "'\\t'" in problem:
        return ". Indent with spaces, not with tabs"
    if "<block end>" in problem or "mapping values are not allowed" in problem:
        return ". Is this line indented like those it belongs to? A text with ': ' needs quotes"
    return ""


def _convert(
    loader: _Loader, node: yaml.Node, path: str, problems: Problems, count: list[int], above: tuple[int, ...]
) -> Node:
    mark: Any = node.start_mark
    made = Node(None, mark.line + 1, mark.column + 1, path)
    count[0] += 1
    if count[0] > MAX_NODES or len(above) > 100:
        raise ConfigError(
            [*problems.found, Problem(problems.file, made.line, made.column, path, "unfolds into too much")]
        )
    if id(node) in above:
        raise ConfigError([*problems.found, Problem(problems.file, made.line, made.column, path, "contains itself")])
    inner = (*above, id(node))
    for kind, tag in ((yaml.MappingNode, "map"), (yaml.SequenceNode, "seq")):
        if isinstance(node, kind) and node.tag != _YAML + tag:
            problems.error(made, f"unsupported YAML tag '{node.tag}'")
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, Node] = {}
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        for key_node, value_node in pairs:
            key_mark: Any = key_node.start_mark
            key: Any = key_node.value
            place = Node(None, key_mark.line + 1, key_mark.column + 1, path)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _YAML + "null":
                problems.error(place, "keys must be text")
                continue
            if _broken(str(key)):
                problems.error(place, "not valid Unicode: half of a surrogate pair")
                continue
            if key_node.tag == _YAML + "merge":
                problems.error(place, "merge keys (<<) are not supported; write the keys out")
                continue
            if key_node.tag not in _SCALAR_TAGS:
                problems.error(place, f"unsupported YAML tag '{key_node.tag}'")
                continue
            key = str(key)
            child_path = key if path == "$" else f"{path}.{key}"
            if key in entries:
                place.path = child_path
                problems.error(place, f"duplicate key '{key}', first at line {entries[key].line}")
                continue
            child = _convert(loader, value_node, child_path, problems, count, inner)
            # The key's place is what an author looks for.
            child.line, child.column = place.line, place.column
            entries[key] = child
        made.value = entries
    elif isinstance(node, yaml.SequenceNode):
        children = cast("list[yaml.Node]", node.value)
        made.value = tuple(
            _convert(loader, child, f"{'' if path == '$' else path}[{index}]", problems, count, inner)
            for index, child in enumerate(children)
        )
    elif node.tag not in _SCALAR_TAGS:
        problems.error(made, f"unsupported YAML tag '{node.tag}'")
    else:
        try:
            made.value = cast("Scalar", loader.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
        except (ValueError, KeyError) as error:
            # KeyError: an explicit !!bool on something that is none.
            long = len(str(cast("object", node.value))) > 1000
            problems.error(made, "unreadable value" if long else f"unreadable value: {error}")
        else:
            _sure(made, str(cast("object", node.value)), problems, plain=cast("yaml.ScalarNode", node).style is None)
    return made


def _sure(node: Node, written: str, problems: Problems, *, plain: bool) -> None:
    """Refuses a scalar that readers of YAML differ about, or that no JSON can hold; leaves a harmless value of its kind."""
    value = node.value
    if isinstance(value, str):
        if _broken(value):
            problems.error(node, "not valid Unicode: half of a surrogate pair")
            node.value = value.encode("utf-8", "replace").decode()
    elif isinstance(value, bool):
        if plain and written not in _PLAIN_BOOL:
            problems.error(node, f"'{written}' is text to some readers: write true or false, or quote it")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            problems.error(node, "a whole number beyond 64 bits")
            node.value = 1
        elif plain and not _PLAIN_INT.fullmatch(written):
            problems.error(node, f"'{written}' is {value} to some readers only: write a plain number, or quote it")
    elif isinstance(value, float):
        if not math.isfinite(value):
            problems.error(node, "expected a finite number")
            node.value = 1.0
        elif plain and not _PLAIN_FLOAT.fullmatch(written):
            problems.error(node, f"'{written}' is {value} to some readers only: write a plain number, or quote it")
    elif written not in _PLAIN_NULL:
        problems.error(node, f"'{written}' is not nothing")


def _broken(text: str) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in text)
