"""The section `server_tools` (with `snippets`) to typed tools: which engine runs each, from what, within which limits.

Decides what may be configured, never runs anything: no module is imported, no server asked, no secret read. What lies in files or
starts programs is taken only from a config on disk; everything doubtful is a problem at its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from wardwright.catalog import fold
from wardwright.config import ENV_NAME, Node, Problems, nearest
from wardwright.errors import Problem
from wardwright.server_tools.builtin import BUILTINS
from wardwright.server_tools.source import python_problem
from weakincentives.errors import PromptValidationError
from weakincentives.prompt.json_schema import JsonSchema

Engine: TypeAlias = Literal["builtin", "snippet", "module", "mcp"]
"""builtin: part of the gateway, reads only
snippet: inline Python in an interpreter that has no way out
module: a Python file of the operator's, trusted like the gateway itself
mcp: an MCP server that runs the call elsewhere"""

ENGINES: Final[tuple[str, ...]] = get_args(Engine)
ALIASES: Final[Mapping[str, Engine]] = {"dune": "snippet", "beam_module": "module", "elixir_module": "module"}

_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")
_SERVER_NAME: Final = re.compile(r"[a-z0-9_-]{1,32}")
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")

_KEYS: Final[Mapping[Engine, tuple[str, ...]]] = {
    "builtin": ("name", "engine"),
    "snippet": ("name", "engine", "description", "source", "snippet_id", "input", "parameters", "limits"),
    "module": ("name", "engine", "description", "path", "module", "limits"),
    "mcp": ("name", "engine", "url", "command", "headers_env", "env", "tools", "prefix", "limits"),
}
_LIMITS: Final[Mapping[Engine, tuple[str, ...]]] = {
    "builtin": (),
    "snippet": ("timeout", "output_chars", "memory_bytes", "recursion"),
    "module": ("timeout", "output_chars"),
    "mcp": ("timeout", "output_chars", "connect_timeout"),
}
_SNIPPET_KEYS: Final = ("description", "input", "parameters", "limits")
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use. What is used up ends the call with an error for the model."""

    timeout_ms: int = 10_000
    output_chars: int = 20_000
    """Characters of a result that the model gets; the rest is cut off with a note."""
    memory_bytes: int = 32 * 1024 * 1024
    """snippet only."""
    recursion: int = 200
    """snippet only: depth of function calls."""
    connect_timeout_ms: int = 30_000
    """mcp only."""


_DEFAULTS: Final[Mapping[Engine, Limits]] = {
    "builtin": Limits(timeout_ms=5_000),
    "snippet": Limits(timeout_ms=2_000),
    "module": Limits(),
    "mcp": Limits(timeout_ms=60_000),
}


@dataclass(frozen=True, slots=True)
class Remote:
    """How an MCP server is reached. Credentials are named, not held."""

    url: str = ""
    command: tuple[str, ...] = field(default=(), repr=False)
    headers_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Header → environment variable that holds its value."""
    env: tuple[str, ...] = ()
    """Environment variables that the program gets, beside the usual few."""
    tools: tuple[str, ...] | None = None
    """Names there; None: all of them."""
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class ServerTool:
    """One entry of `server_tools`. Made by `compile_server_tools`; `ServerTools` brings it to life."""

    name: str
    """What the model calls it. Module: may be empty, then the file's `spec()` says it. MCP: the name of the server."""
    engine: Engine
    place: Problem
    """Where it was configured, to be told with what goes wrong later."""
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    input: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Values under the model's arguments."""
    source: str = field(default="", repr=False)
    snippet_id: str = ""
    path: Path | None = field(default=None, repr=False)
    folder: Path | None = field(default=None, repr=False)
    """Where the module must lie."""
    module: str = ""
    remote: Remote | None = None
    limits: Limits = Limits()

    @property
    def source_class(self) -> str:
        """Where its code comes from, in words for a page; never the code or its path."""
        if self.engine == "snippet":
            return "saved snippet" if self.snippet_id else "inline"
        return {"builtin": "built-in", "module": "file"}.get(self.engine) or (
            "program" if self.remote is not None and self.remote.command else "remote"
        )


@dataclass(frozen=True, slots=True)
class _Snippet:
    source: str
    node: Node
    given: Mapping[str, Node]


def compile_server_tools(
    node: Node | None, snippets_node: Node | None, problems: Problems, *, modules_from: Path | None = None
) -> tuple[ServerTool, ...]:
    """The tools of one model. `modules_from`: the folder that modules may come from; None, as for a config that did not come from
    disk, refuses them, and programs too."""
    snippets = _snippets(snippets_node, problems)
    if node is None:
        return ()
    reader = _Reader(problems, snippets, modules_from)
    tools = [tool for entry in problems.sequence(node) if (tool := reader.tool(entry)) is not None]
    return tuple(tools)


def _snippets(node: Node | None, problems: Problems) -> dict[str, _Snippet]:
    """`snippets: {id: source}`, or `{id: {source, description, input, parameters, limits}}`: what a tool then need not say."""
    if node is None:
        return {}
    found: dict[str, _Snippet] = {}
    if not isinstance(node.value, dict):
        problems.mapping(node, (), ())
        return found
    for name, child in node.value.items():
        given: Mapping[str, Node] = {}
        written = child
        if isinstance(child.value, dict):
            given = problems.mapping(child, ("source",), _SNIPPET_KEYS)
            if "source" not in given:
                found[name] = _Snippet("", child, {})
                continue
            written = given["source"]
        source = problems.text(written)
        if source:
            _judge_source(source, written, problems)
        found[name] = _Snippet(source, child, {key: value for key, value in given.items() if key != "source"})
    return found


def _judge_source(source: str, node: Node, problems: Problems) -> None:
    wrong = python_problem(source)
    if wrong:
        problems.error(node, wrong)


class _Reader:
    """Reads the entries of one list, and knows the names that are taken."""

    def __init__(self, problems: Problems, snippets: Mapping[str, _Snippet], modules_from: Path | None) -> None:
        self.problems = problems
        self.snippets = snippets
        self.modules_from = modules_from
        self.taken: dict[str, Node] = {}

    def tool(self, entry: Node) -> ServerTool | None:
        problems = self.problems
        if not isinstance(entry.value, dict):
            problems.mapping(entry, (), ())
            return None
        engine = self._engine(entry)
        if engine is None:
            return None
        required = (
            ("name", "engine") if engine in ("snippet", "mcp") else ("path",) if engine == "module" else ("name",)
        )
        given = problems.mapping(entry, required, [key for key in _KEYS[engine] if key not in required])
        name = self._name(given, engine)
        if any(key not in given for key in required):
            return None
        place = Problem(problems.file, entry.line, entry.column, entry.path, "")
        if engine == "builtin":
            builtin = BUILTINS[name]
            return ServerTool(
                name, "builtin", place, builtin.description, builtin.parameters, limits=_DEFAULTS["builtin"]
            )
        if engine == "snippet":
            return self._snippet(name, given, entry, place)
        if engine == "module":
            return self._module(name, given, place)
        return self._mcp(name, given, entry, place)

    def _engine(self, entry: Node) -> Engine | None:
        problems, entries = self.problems, entry.items()
        named = entries.get("name")
        name = named.value if named is not None and isinstance(named.value, str) else ""
        if "engine" in entries:
            word = problems.text(entries["engine"])
            engine = ALIASES.get(word, word)
            if engine not in ENGINES:
                if word:
                    words = (*ENGINES, *ALIASES)
                    problems.error(
                        entries["engine"], f"'{word}' is not one of {', '.join(words)}{nearest(word, words)}"
                    )
                return None
            if engine == "builtin" and name and name not in BUILTINS:
                return self._unknown_builtin(entries["name"], name)
            return engine  # pyright: ignore[reportReturnType]  # one of ENGINES
        if named is None:
            problems.error(entry, "missing key 'name' (a built-in tool) or 'engine'")
            return None
        if name in BUILTINS:
            return "builtin"
        if not problems.text(named):
            return None
        return self._unknown_builtin(named, name)

    def _unknown_builtin(self, node: Node, name: str) -> None:
        self.problems.error(
            node,
            f"there is no built-in tool '{name}'{nearest(name, BUILTINS)}; built in: {', '.join(BUILTINS)}. "
            f"Another tool needs 'engine': {', '.join(one for one in ENGINES if one != 'builtin')}",
        )

    def _name(self, given: Mapping[str, Node], engine: Engine) -> str:
        node = given.get("name")
        if node is None:
            return ""
        problems = self.problems
        name = problems.text(node)
        pattern, longest = (_SERVER_NAME, 32) if engine == "mcp" else (_NAME, 64)
        if name and pattern.fullmatch(name) is None:
            problems.error(node, f"'{name}' cannot be its name: use 1 to {longest} characters of a-z, 0-9, _ and -")
        folded = f"mcp {fold(name)}" if engine == "mcp" else fold(name)
        if name and folded in self.taken:
            problems.error(node, f"the name '{name}' is already used at line {self.taken[folded].line}")
        self.taken.setdefault(folded, node)
        return name

    def _snippet(self, name: str, given: Mapping[str, Node], entry: Node, place: Problem) -> ServerTool:
        problems = self.problems
        if find_spec("pydantic_monty") is None:
            problems.error(
                given["engine"], "needs the package pydantic-monty. Install it: pip install 'weakincentives[asteval]'"
            )
        source, snippet_id = "", ""
        inherited: Mapping[str, Node] = {}
        if ("source" in given) == ("snippet_id" in given):
            problems.error(entry, "give one of 'source' (Python) and 'snippet_id' (a name under snippets)")
        elif "source" in given:
            source = problems.text(given["source"])
            if source:
                _judge_source(source, given["source"], problems)
        else:
            snippet_id = problems.text(given["snippet_id"])
            snippet = self.snippets.get(snippet_id)
            if snippet is not None:
                source, inherited = snippet.source, snippet.given
            elif snippet_id:
                problems.error(
                    given["snippet_id"],
                    f"there is no snippet '{snippet_id}' under snippets{nearest(snippet_id, self.snippets)}",
                )
        given = {**inherited, **given}
        return ServerTool(
            name,
            "snippet",
            place,
            self._description(given) or f"Run the snippet '{snippet_id or name}'.",
            self._parameters(given.get("parameters")),
            self._object(given.get("input")),
            source,
            snippet_id,
            limits=self._limits(given.get("limits"), "snippet"),
        )

    def _module(self, name: str, given: Mapping[str, Node], place: Problem) -> ServerTool:
        problems, node = self.problems, given["path"]
        written = problems.text(node)
        module = problems.name(given["module"]) if "module" in given else ""
        path: Path | None = None
        if written and not written.endswith(".py"):
            problems.error(
                node,
                f"'{Path(written).name}' is no Python file. A module is a .py file with two functions:\n{MODULE_FORM}",
            )
        elif written:
            path = self._below(node, written)
        return ServerTool(
            name,
            "module",
            place,
            self._description(given),
            path=path,
            folder=self.modules_from,
            module=module or Path(written).stem,
            limits=self._limits(given.get("limits"), "module"),
        )

    def _below(self, node: Node, written: str) -> Path | None:
        problems, folder = self.problems, self.modules_from
        if folder is None:
            problems.error(
                node, "modules run inside the gateway: they are taken only from a config on disk, and from its folder"
            )
            return None
        try:
            path = (folder / written).resolve()
            inside = path.is_relative_to(folder.resolve())
            there = inside and path.is_file()
        except (OSError, ValueError, RuntimeError):
            inside, there, path = True, False, folder / "unreadable"
        if not inside:
            problems.error(node, "lies outside of the folder that modules may come from; put it there")
        elif not there:
            problems.error(node, "there is no such file in the folder of modules")
        return path if there else None

    def _mcp(self, name: str, given: Mapping[str, Node], entry: Node, place: Problem) -> ServerTool:
        problems = self.problems
        if find_spec("mcp") is None:
            problems.error(given["engine"], "needs the package mcp. Install it: pip install 'weakincentives[mcp]'")
        if ("url" in given) == ("command" in given):
            problems.error(entry, "give one of 'url' (a server that is running) and 'command' (a program to start)")
        url = self._url(given["url"]) if "url" in given else ""
        command: tuple[str, ...] = ()
        if "command" in given:
            command = tuple(problems.text(part) for part in problems.sequence(given["command"]))
            if given["command"].value == ():
                problems.error(given["command"], "must not be an empty list")
            if self.modules_from is None:
                problems.error(given["command"], "programs are started only by a config on disk; use 'url' here")
        for key, needs in (("headers_env", "url"), ("env", "command")):
            if key in given and needs not in given:
                problems.error(given[key], f"is for a server with '{needs}'")
        remote = Remote(
            url,
            command,
            self._headers(given.get("headers_env")),
            self._variables(given.get("env")),
            problems.texts(given["tools"]) if "tools" in given else None,
            problems.text(given["prefix"], empty=True) if "prefix" in given else None,
        )
        return ServerTool(name, "mcp", place, remote=remote, limits=self._limits(given.get("limits"), "mcp"))

    def _url(self, node: Node) -> str:
        url = self.problems.text(node)
        if url and not url.startswith(("http://", "https://")):
            self.problems.error(node, "must begin with https:// or http://")
        elif "@" in url.split("://", 1)[-1].split("/", 1)[0]:
            self.problems.error(node, "holds a password: put it into a header by 'headers_env'")
        return url

    def _headers(self, node: Node | None) -> dict[str, str]:
        problems = self.problems
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            problems.mapping(node, (), ())
            return {}
        found: dict[str, str] = {}
        for header, child in node.value.items():
            if _HEADER.fullmatch(header) is None:
                problems.error(child, f"'{header}' is no name of a header")
            found[header] = self._variable(child)
        return found

    def _variables(self, node: Node | None) -> tuple[str, ...]:
        return () if node is None else tuple(self._variable(one) for one in self.problems.sequence(node))

    def _variable(self, node: Node) -> str:
        name = self.problems.text(node)
        if name and ENV_NAME.fullmatch(name) is None:
            # Not shown: what stands here instead may be the secret itself.
            self.problems.error(node, "expected the name of an environment variable; secrets are never in the file")
        return name

    def _description(self, given: Mapping[str, Node]) -> str:
        return self.problems.text(given["description"]) if "description" in given else ""

    def _parameters(self, node: Node | None) -> Mapping[str, Any]:
        if node is None:
            return NO_PARAMETERS
        schema = self._object(node)
        if isinstance(node.value, dict):
            problem = schema_problem(schema)
            if problem:
                self.problems.error(node, problem)
        return schema

    def _object(self, node: Node | None) -> Mapping[str, Any]:
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            self.problems.mapping(node, (), ())
            return {}
        return node.plain()

    def _limits(self, node: Node | None, engine: Engine) -> Limits:
        default, problems = _DEFAULTS[engine], self.problems
        if node is None:
            return default
        given = problems.mapping(node, (), _LIMITS[engine])

        def whole(key: str, fallback: int) -> int:
            return problems.integer(given[key], 1) if key in given else fallback

        def duration(key: str, fallback: int) -> int:
            return problems.duration_ms(given[key]) if key in given else fallback

        return Limits(
            duration("timeout", default.timeout_ms),
            whole("output_chars", default.output_chars),
            whole("memory_bytes", default.memory_bytes),
            whole("recursion", default.recursion),
            duration("connect_timeout", default.connect_timeout_ms),
        )


def schema_problem(schema: Mapping[str, Any]) -> str:
    """Why a schema cannot judge the arguments of a tool; empty when it can."""
    try:
        JsonSchema(schema)
    except PromptValidationError as error:
        return f"cannot be used as a schema: {error}"
    except RecursionError:
        return "cannot be used as a schema: it nests too deeply"
    return ""


MODULE_FORM: Final = """\
    def spec():
        return {"name": "reverse", "description": "Reverse a text.",
                "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}

    def run(arguments, context):
        return arguments["text"][::-1]"""
"""What a module looks like."""


def limits_shown(tool: ServerTool) -> Mapping[str, int]:
    """The limits that count for its engine."""
    values: Mapping[str, int] = {
        "timeout": tool.limits.timeout_ms,
        "output_chars": tool.limits.output_chars,
        "memory_bytes": tool.limits.memory_bytes,
        "recursion": tool.limits.recursion,
        "connect_timeout": tool.limits.connect_timeout_ms,
    }
    names: Sequence[str] = _LIMITS[tool.engine]
    return {name if "timeout" not in name else f"{name}_ms": values[name] for name in names}
