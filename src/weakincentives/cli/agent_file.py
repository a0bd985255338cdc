"""What is given on the command line: the Python file of an agent, the object in it, and the request as the type it takes.

A file is run as Python itself would run it, once, with its folder first on the path. What cannot be used is one line that
says what to do instead; never a traceback.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from types import ModuleType
from typing import Any, cast

import orjson

from .. import serde
from ..adapters import OpenAIAdapter, ProviderAdapter, ScriptedAdapter
from ..errors import WinkError
from ..prompt import MarkdownSection, Prompt, PromptTemplate, Tool
from ..runtime import EventBus, MainLoop, Session
from ..serde.codec import forget_types

_NO_REQUEST = object()


class BadInput(WinkError, ValueError):
    """Something given on the command line cannot be used."""


@contextmanager
def loaded(file: str) -> Generator[tuple[ModuleType, str]]:
    """Run a Python file as Python itself would, with its folder first on the path; the module and the object's name."""
    path, colon, name = file.rpartition(":")
    if not colon or not path or os.path.exists(file):
        path, name = file, ""
    if not os.path.isfile(path):
        raise BadInput(f"There is no file {path}.")
    stem = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(stem, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    before, folder = sys.modules.get(stem), os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    sys.modules[stem] = module  # stored sessions find the file's classes by it
    forget_types()
    try:
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # INVARIANT: a file that cannot be run is told in one line
            raise BadInput(f"{path} cannot be run: {type(error).__name__}: {error}") from error
        yield module, name
    finally:
        sys.path.remove(folder)
        if before is None:
            sys.modules.pop(stem, None)
        else:
            sys.modules[stem] = before
        forget_types()


def chosen(module: ModuleType, name: str, file: str) -> Any:
    """The object that was named, or the only one of the most telling kind."""
    if name:
        try:
            return getattr(module, name)
        except AttributeError:
            raise BadInput(f"{file.rpartition(':')[0]} has nothing called '{name}'.") from None
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    kinds: list[Callable[[object], bool]] = [
        lambda value: isinstance(value, MainLoop),
        lambda value: isinstance(value, type) and issubclass(value, MainLoop) and value.__module__ == module.__name__,
        lambda value: isinstance(value, Prompt),
        lambda value: isinstance(value, PromptTemplate),
    ]
    for is_kind in kinds:
        found = [key for key, value in own.items() if is_kind(value)]
        if len(found) > 1:
            raise BadInput(f"{file} has several to choose from: {', '.join(found)}. Name one: {file}:{found[0]}")
        if found:
            return own[found[0]]
    raise BadInput(f"{file} has no MainLoop, Prompt or PromptTemplate to run.")


class _PromptLoop(MainLoop[Any, Any]):
    """A loop around a prompt that was given by itself; a request is bound as its params."""

    def __init__(self, prompt: Prompt[Any], **options: Any) -> None:
        super().__init__(**options)
        self._prompt = prompt

    def prepare(self, request: Any) -> Prompt[Any]:
        return self._prompt if request is _NO_REQUEST else self._prompt.bind(request)


def loop_of(found: Any, adapter: ProviderAdapter | None, bus: EventBus, file: str) -> MainLoop[Any, Any]:
    if inspect.isfunction(found):
        found = found()
    if isinstance(found, MainLoop):
        if adapter is not None:
            found.adapter = adapter
        return cast("MainLoop[Any, Any]", found)
    if isinstance(found, PromptTemplate):
        found = Prompt(cast("PromptTemplate[Any]", found))
    is_prompt = isinstance(found, Prompt)
    if not is_prompt and not (isinstance(found, type) and issubclass(found, MainLoop)):
        raise BadInput(
            f"Cannot run {type(cast('object', found)).__name__}. Name a MainLoop, a Prompt or a PromptTemplate."
        )
    if adapter is None:
        raise BadInput(f"{file} names no model. Say which to ask: --model NAME, with --base-url for a server of yours.")
    if is_prompt:
        return _PromptLoop(cast("Prompt[Any]", found), adapter=adapter, bus=bus)
    kind = cast("type[MainLoop[Any, Any]]", found)
    try:
        return kind(adapter=adapter, bus=bus)
    except TypeError as error:
        raise BadInput(f"{kind.__name__} cannot be made with an adapter and a bus alone: {error}.") from error


def adapter_of(model: str, base_url: str) -> ProviderAdapter | None:
    if not model:
        if base_url:
            raise BadInput("--base-url needs --model: which of the server's models to ask.")
        return None
    key = os.environ.get("OPENAI_API_KEY")
    return OpenAIAdapter(model, base_url=base_url or None, api_key=key or ("none" if base_url else None))


def _request_type(loop: MainLoop[Any, Any]) -> Any:
    """What `prepare` says it takes; Any when it does not."""
    if isinstance(loop, _PromptLoop):
        return Any
    try:
        hints = typing.get_type_hints(type(loop).prepare, include_extras=True)
    except NameError:
        return Any
    hints.pop("return", None)
    return next(iter(hints.values()), Any)


def _blank(loop: MainLoop[Any, Any]) -> Any:
    """A request to look at the tools with: nobody will answer it."""
    try:
        return request_of(loop, None)
    except BadInput:
        kind = _request_type(loop)
        if kind is str or not is_dataclass(kind):
            return ""
        blank = object.__new__(cast("type[Any]", kind))
        for field in fields(kind):  # past any check of its own: nobody will answer it
            object.__setattr__(blank, field.name, "" if _required(field) else _default(field))
        return blank


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is MISSING else field.default


def _required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def request_of(loop: MainLoop[Any, Any], text: str | None) -> Any:
    """The request as the type that the loop takes."""
    if text == "-":
        text = sys.stdin.read()
    kind = _request_type(loop)
    if kind is Any or kind is object:
        return (_NO_REQUEST if isinstance(loop, _PromptLoop) else None) if text is None else _plain(text)
    if kind is str:
        if text is None:
            raise BadInput("A request is needed: --request 'some text'.")
        return text
    needed = [field.name for field in fields(kind) if _required(field)] if is_dataclass(kind) else []
    if text is None:
        if is_dataclass(kind) and not needed:
            return cast("Callable[[], Any]", kind)()
        wanted = ", ".join(needed) or serde.dump_json(serde.schema(kind))
        raise BadInput(f"A request is needed: --request with JSON for {_name(kind)} ({wanted}).")
    names = needed or ([field.name for field in fields(kind)] if is_dataclass(kind) else [])
    try:
        if len(names) == 1 and not text.lstrip().startswith(("{", "[")):
            return serde.parse(kind, {names[0]: text})  # plain text for the one thing that can be said
        return serde.parse_json(kind, text)
    except serde.ParseError as error:
        raise BadInput(f"The request is no {_name(kind)}: {_details(error.details)}") from None


def _plain(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _details(details: Mapping[str, Any]) -> str:
    return "; ".join(f"{path}: {problem}" for path, problem in details.items())


def prepared(loop: MainLoop[Any, Any], request: object) -> Prompt[Any]:
    """The prompt that a loop makes for a request."""
    made: Any = loop.prepare(request)
    if inspect.isawaitable(made):
        import asyncio

        async def settle() -> Any:
            return await made

        made = asyncio.run(settle())
    return cast("Prompt[Any]", made[0] if isinstance(made, tuple) else made)


def tools_of(module: ModuleType, name: str, file: str, request: str | None) -> Sequence[Tool[Any, Any]]:
    """The tools of an agent, as a new session sees them; of a file without an agent, those it defines."""
    return prompt_of(module, name, file, request)().render(Session()).tools


def prompt_of(module: ModuleType, name: str, file: str, request: str | None) -> Callable[[], Prompt[Any]]:
    """Makes the prompt of an agent, whose model is not asked; of a file without one, a prompt of the tools it defines."""
    try:
        found = chosen(module, name, file)
    except BadInput:
        loose = [cast("Tool[Any, Any]", value) for value in vars(module).values() if isinstance(value, Tool)]
        if name or not loose:
            raise
        found = loose
    if isinstance(found, Tool | list):
        tools = [cast("Tool[Any, Any]", found)] if isinstance(found, Tool) else cast("list[Tool[Any, Any]]", found)
        template = PromptTemplate(sections=[MarkdownSection(title="Tools", template="", tools=tools)])
        return lambda: Prompt(template)
    loop = loop_of(found, ScriptedAdapter(()), EventBus(), file)
    asked = _blank(loop) if request is None else request_of(loop, request)

    def make() -> Prompt[Any]:
        try:
            prompt = prepared(loop, asked)
            prompt.render(Session())
        except Exception as error:  # INVARIANT: a prompt that cannot be made up is told in one line
            hint = " Pass a request: --request." if request is None else ""
            raise BadInput(f"{file} cannot be prepared: {type(error).__name__}: {error}.{hint}") from error
        return prompt

    return make
