"""The reference, made from code: public names with their signatures and docstrings, commands with their options, the HTTP API.

Says nothing that the code does not say. Only names are chosen here: the modules that people import from.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
import typer
import typer.main

PUBLIC = {
    "weakincentives": (
        "weakincentives.prompt",
        "weakincentives.runtime",
        "weakincentives.adapters",
        "weakincentives.adapters.mcp",
        "weakincentives.adapters.bridges",
        "weakincentives.adapters.durable",
        "weakincentives.adapters.telemetry",
        "weakincentives.adapters.claude_agent_sdk",
        "weakincentives.contrib.tools",
        "weakincentives.contrib.guardrails",
        "weakincentives.contrib.sandbox",
        "weakincentives.filesystem",
        "weakincentives.resources",
        "weakincentives.session",
        "weakincentives.transaction",
        "weakincentives.recording",
        "weakincentives.serde",
        "weakincentives.dbc",
        "weakincentives.limits",
        "weakincentives.clock",
        "weakincentives.testing",
        "weakincentives.testing.adapter_kit",
        "weakincentives.errors",
    ),
    "wardwright": (
        "wardwright",
        "wardwright.in_process",
        "wardwright.cases",
        "wardwright.simulate",
        "wardwright.replay",
        "wardwright.report",
        "wardwright.prove",
        "wardwright.receipts",
        "wardwright.store",
        "wardwright.errors",
    ),
}
"""The modules that people import from, in the order in which they are met."""

WIDTH = 100


def pages() -> dict[str, str]:
    """Path in the site → text."""
    made: dict[str, str] = {}
    lines = ["# Reference", "", "Made from the code: its docstrings, its commands and its API description.", ""]
    for package, modules in PUBLIC.items():
        lines += [f"## {package}", ""]
        for name in modules:
            module = importlib.import_module(name)
            made[f"reference/{name}.md"] = _module(module)
            lines.append(f"- [`{name}`]({name}.md): {_first(module.__doc__)}")
        lines.append("")
    lines += ["## Commands and HTTP", ""]
    for command in ("wink", "wardwright"):
        made[f"reference/{command}-command.md"] = _commands(command)
        lines.append(f"- [`{command}`]({command}-command.md): every command with its options")
    made["reference/http.md"] = _http()
    lines.append("- [HTTP API](http.md): what operators and pages ask the gateway")
    made["reference/README.md"] = "\n".join(lines) + "\n"
    return made


def names(module: ModuleType) -> list[str]:
    """What a module offers: what it says it does, or what it defines without an underscore."""
    given = getattr(module, "__all__", None)
    if given is not None:
        return sorted(given, key=str.lower)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


# Python


def _module(module: ModuleType) -> str:
    parts = [f"# {module.__name__}", "", _text(module.__doc__), ""]
    for name in names(module):
        parts += [*_member(name, getattr(module, name)), ""]
    return "\n".join(parts).rstrip() + "\n"


def _member(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    if inspect.isclass(value):
        yield from _class(name, value)
    elif callable(value) and not _is_alias(value):
        yield from _code(_signature(name, value))
        yield _text(inspect.getdoc(value))
    else:
        yield from _code(f"{name} = {_value(value)}")


def _class(name: str, cls: type) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base not in (object, typing.Generic, typing.Protocol)]
    head = f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    made = _signature("", cls)
    yield from _code(f"{head}\n{name}{made}" if made and not issubclass(cls, enum.Enum) else head)
    # A dataclass without a docstring is given its signature as one.
    own = cls.__dict__.get("__doc__") or ""
    if own and not own.startswith(f"{cls.__name__}("):
        yield _text(inspect.cleandoc(own))
        yield ""
    if issubclass(cls, enum.Enum):
        yield from (f"- `{one.name}` = `{one.value!r}`" for one in cls)
        return
    told = _field_docs(cls)
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if not field.name.startswith("_")]
        if fields and any(told.get(field.name) for field in fields):
            yield "| Field | Type | |"
            yield "|---|---|---|"
            for field in fields:
                yield f"| `{field.name}` | {_cell(field.type)} | {_flat(told.get(field.name, ''))} |"
            yield ""
    for member, value in sorted(vars(cls).items()):
        if member.startswith("_"):
            continue
        kind, function = "", value
        if isinstance(value, (staticmethod, classmethod)):
            kind, function = f"{type(value).__name__} ", cast("Any", value).__func__
        if isinstance(value, property):
            yield f"### {name}.{member}"
            yield ""
            yield from _code(f"property {member}{_returns(value.fget)}")
            yield _text(inspect.getdoc(value))
            yield ""
        elif inspect.isfunction(function):
            yield f"### {name}.{member}"
            yield ""
            yield from _code(f"{kind}{_signature(member, function)}")
            yield _text(inspect.cleandoc(function.__doc__ or ""))
            yield ""


def _is_alias(value: Any) -> bool:
    return typing.get_origin(value) is not None or isinstance(value, typing.TypeVar)


def _signature(name: str, value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    given = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    tidy = found.replace(parameters=[_plain(one) for one in given])
    text = f"{name}{_tidy(str(tidy))}"
    if len(text) <= WIDTH or not given:
        return text
    returns = "" if found.return_annotation is inspect.Signature.empty else f" -> {_type(found.return_annotation)}"
    return f"{name}(\n" + "".join(f"    {line},\n" for line in _parameters(tidy)) + f"){returns}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    """One line each, with the marks that stand between them."""
    before: Any = None
    for one in signature.parameters.values():
        if before is inspect.Parameter.POSITIONAL_ONLY and one.kind is not before:
            yield "/"
        if one.kind is inspect.Parameter.KEYWORD_ONLY and before not in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            yield "*"
        yield _tidy(str(one))
        before = one.kind


def _plain(one: inspect.Parameter) -> inspect.Parameter:
    """Defaults that say something only as code are shown as …"""
    default: Any = one.default
    if default is inspect.Parameter.empty or isinstance(default, (str, int, float, bool, bytes, type(None), enum.Enum)):
        return one
    if isinstance(default, (tuple, frozenset)) and not default:
        return one
    return one.replace(default=_Shown(getattr(default, "__name__", "…")))


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _tidy(text: str) -> str:
    """Annotations as they were written: strings without quotes, our own modules without their paths."""
    text = re.sub(r"(: |-> )'((?:[^'\\]|\\.)*)'", r"\1\2", text)
    return re.sub(r"\b(?:weakincentives|wardwright|typing|collections\.abc)(?:\.\w+)*\.(?=[A-Za-z_]\w*)", "", text)


def _returns(function: Any) -> str:
    given: Any = getattr(function, "__annotations__", {}).get("return")
    return "" if given is None else f" -> {_type(given)}"


def _type(annotation: Any) -> str:
    return _tidy(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _value(value: Any) -> str:
    shown = _tidy(str(value) if _is_alias(value) else repr(value))
    shown = re.sub(r" at 0x[0-9a-f]+", "", shown)
    return shown if len(shown) <= 300 else f"{shown[:300]}…"


def _field_docs(cls: type) -> dict[str, str]:
    """The strings under fields, which Python itself forgets."""
    told: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        told |= _told(one.__module__).get(one.__qualname__, {})
    return told


@functools.cache
def _told(module: str) -> dict[str, dict[str, str]]:
    """Class → field → the string under it, of a module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not file.endswith(".py"):
        return {}
    found: dict[str, dict[str, str]] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for one in body:
            if isinstance(one, ast.ClassDef):
                found[prefix + one.name] = dict(_strings(one.body))
                look(one.body, f"{prefix}{one.name}.")

    look(ast.parse(Path(file).read_text("utf-8")).body, "")
    return found


def _strings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in itertools.pairwise(body):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
            said = after.value
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                yield before.target.id, said.value


def _code(text: str, language: str = "python") -> Iterator[str]:
    yield f"```{language}"
    yield text
    yield "```"
    yield ""


def _text(text: str | None) -> str:
    """A docstring as it stands; what is drawn or indented in it stays as drawn."""
    return _plain_links(inspect.cleandoc(text or ""))


def _plain_links(text: str) -> str:
    """Brackets that are no links here must not become some; nor may < begin a tag."""
    return re.sub(r"<(?=[a-zA-Z/!])", "&lt;", text) if "`" not in text else text


def _first(text: str | None) -> str:
    said = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", said, maxsplit=1)[0]


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _cell(annotation: Any) -> str:
    return f"`{_type(annotation)}`".replace("|", "\\|")


# Commands


def _commands(program: str) -> str:
    root = typer.main.get_command(
        _app(program, {"wink": "weakincentives.cli", "wardwright": "wardwright.cli"}[program])
    )
    parts = [f"# The {program} command", "", _text(root.help), ""]
    for words, command in _walk((program,), root):
        parts += [f"## {' '.join(words)}", "", _text(command.help), ""]
        context = click.Context(command, info_name=" ".join(words))
        parts += _code(" ".join((" ".join(words), *command.collect_usage_pieces(context))), "text")
        rows = [row for parameter in command.params if (row := _parameter(parameter))]
        if rows:
            parts += ["| | Default | |", "|---|---|---|", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def _app(program: str, name: str) -> typer.Typer:
    """The application of a command, in its module or in one of its package."""
    module = importlib.import_module(name)
    inner = (
        f"{name}.{one.name}"
        for one in pkgutil.iter_modules(getattr(module, "__path__", ()))
        if not one.name.startswith("_")
    )
    for one in (module, *map(importlib.import_module, inner)):
        for value in vars(one).values():
            if isinstance(value, typer.Typer) and value.info.name == program:
                return value
    raise LookupError(f"{name} has no command {program}")


def _walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    # typer brings a click of its own, so that its groups are known by what they have.
    for name, one in getattr(command, "commands", {}).items():
        if hasattr(one, "commands"):
            yield from _walk((*words, name), one)
        elif not one.hidden:
            yield (*words, name), one


def _parameter(parameter: Any) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    names = (
        ", ".join(f"`{one}`" for one in parameter.opts)
        if parameter.opts[0].startswith("-")
        else f"`{parameter.name.upper()}`"
    )
    default = parameter.default
    shown = (
        "required"
        if parameter.required
        else ""
        if default in (None, "", False, ()) or callable(default)
        else f"`{default}`"
    )
    return f"| {names} | {shown} | {_flat(getattr(parameter, 'help', None) or '')} |"


# HTTP


def _http() -> str:
    from wardwright.http.openapi import document

    api = cast("dict[str, Any]", document())
    parts = ["# HTTP API", "", _text(api["info"].get("description")), ""]
    parts += ["`/openapi.json` of a running gateway has all of this, with schemas.", ""]
    parts += ["| Method | Path | |", "|---|---|---|"]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            if method in ("get", "post", "put", "delete", "patch"):
                parts.append(f"| {method.upper()} | `{path}` | {_flat(operation.get('summary') or '')} |")
    return "\n".join(parts) + "\n"
