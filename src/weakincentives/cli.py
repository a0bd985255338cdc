"""The `wink` command: run an agent from a Python file, and look at its tools as a model sees them.

Answers go to standard output, what happens meanwhile and what is wrong to standard error. Exit code 0: answered; 1: the
run did not come to an answer; 2: what was given cannot be used. Never a traceback for what a user typed or a model said.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields, is_dataclass
from types import ModuleType
from typing import Annotated, Any, cast

import orjson
import typer

from . import serde
from .adapters import OpenAIAdapter, ProviderAdapter, ScriptedAdapter
from .adapters.core import PromptResponse
from .errors import WinkError
from .limits import Deadline
from .prompt import Prompt, PromptTemplate, Tool
from .runtime import EventBus, MainLoop, Session, ToolInvoked

app = typer.Typer(
    name="wink",
    help="Runs agents whose tool calls are transactions, and shows their tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

File = Annotated[
    str, typer.Argument(metavar="FILE[:OBJECT]", help="A Python file; the object in it if there are several.")
]
Shown = Annotated[
    str | None, typer.Option("--request", "-r", help="The request to prepare for, where the tools depend on it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_MARKS = {"ok": "✓", "denied": "⊘", "pending": "…"}
_NO_REQUEST = object()


class BadInput(WinkError, ValueError):
    """Something given on the command line cannot be used."""


# -- run -------------------------------------------------------------------------------------------------------------


@app.command()
def run(
    file: File,
    request: Annotated[
        str | None, typer.Option("--request", "-r", help="The request: JSON, or plain text. '-' reads standard input.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Ask this model in place of the file's.")] = "",
    base_url: Annotated[
        str, typer.Option("--base-url", help="A server that speaks OpenAI's protocol: Ollama, vLLM, a gateway.")
    ] = "",
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds the run may take.")] = None,
    session: Annotated[str, typer.Option("--session", help="Keep the session in this file, or go on with it.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not tell the calls as they happen.")] = False,
    json: Json = False,
) -> None:
    """Answer one request with the MainLoop, Prompt or PromptTemplate of a Python file."""
    with _loaded(file) as (module, name):
        found = _chosen(module, name, file)
        bus = EventBus()
        loop = _loop(found, _adapter(model, base_url), bus, file)
        asked = _request(loop, request)
        if not (quiet or json):
            loop.bus.subscribe(ToolInvoked, _tell)
        with ExitStack() as held:
            before = 0
            if session:
                kept = held.enter_context(Session.open(session, bus=loop.bus))
                before = len(kept[ToolInvoked])
                loop = _InSession(loop, kept)
            ended, used = loop.execute(asked, deadline=None if timeout is None else Deadline.after(timeout))
            response = cast("PromptResponse[Any]", ended)
            if json:
                _print_json(_answer(response, used, before))
            else:
                _print_answer(response)
    if response.stop_reason != "end_turn":
        raise typer.Exit(1)


def _print_answer(response: PromptResponse[Any]) -> None:
    output = response.output
    typer.echo(response.text if output is None or isinstance(output, str) else serde.dump_json(output))
    for outcome in response.pending:
        typer.echo(f"Waits for approval: {outcome.call.name} ({outcome.approval_id})", err=True)


class _InSession(MainLoop[Any, Any]):
    """Another loop, in a session that is given."""

    def __init__(self, loop: MainLoop[Any, Any], session: Session) -> None:
        super().__init__(adapter=loop.adapter, bus=loop.bus, config=loop.config)
        self._loop = loop
        self._session = session

    def prepare(self, request: Any) -> Any:
        return _prepared(self._loop, request), self._session


def _answer(response: PromptResponse[Any], session: Session, before: int) -> dict[str, Any]:
    usage = response.usage
    return {
        "text": response.text,
        "output": None if response.output is None else serde.dump(response.output, redact=True),
        "stop_reason": response.stop_reason,
        "turns": response.turns,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
        },
        "unfinished": list(response.unfinished),
        "pending": [outcome.approval_id for outcome in response.pending],
        "session_id": session.session_id,
        "calls": [
            {"tool": event.tool_name, "call_id": event.call_id, "outcome": event.outcome, "seconds": event.duration}
            for event in session[ToolInvoked].all()[before:]
        ],
    }


def _tell(event: ToolInvoked) -> None:
    first = event.rendered_output.strip().partition("\n")[0]
    shown = first if len(first) <= 100 else f"{first[:97]}..."
    mark = _MARKS.get(event.outcome, "✗")
    typer.echo(f"{mark} {event.tool_name}{f': {shown}' if shown else ''}", err=True)


# -- tools, schema ---------------------------------------------------------------------------------------------------


@app.command()
def tools(file: File, request: Shown = None, json: Json = False) -> None:
    """List the tools of an agent, in the order a model sees them."""
    with _loaded(file) as (module, name):
        found = _tools(module, name, file, request)
    if json:
        _print_json([{"effects": tool.effects, **tool.spec()} for tool in found])
        return
    width = max((len(tool.name) for tool in found), default=0)
    for tool in found:
        typer.echo(f"{tool.name:<{width}}  {tool.effects:<8}  {tool.description}")


@app.command()
def schema(
    file: File,
    tool: Annotated[str, typer.Argument(help="The name of the tool.")],
    request: Shown = None,
    json: Json = False,  # noqa: ARG001
) -> None:
    """Print what a provider is told of one tool, as JSON."""
    with _loaded(file) as (module, name):
        found = {each.name: each for each in _tools(module, name, file, request)}
    if tool not in found:
        raise BadInput(f"{file} has no tool '{tool}'. It has: {', '.join(found) or 'none'}.")
    _print_json(found[tool].spec())


def _tools(module: ModuleType, name: str, file: str, request: str | None) -> Sequence[Tool[Any, Any]]:
    """The tools of an agent; of a file without one, those it defines."""
    try:
        found = _chosen(module, name, file)
    except BadInput:
        loose = [cast("Tool[Any, Any]", value) for value in vars(module).values() if isinstance(value, Tool)]
        if name or not loose:
            raise
        return loose
    if isinstance(found, Tool):
        return (cast("Tool[Any, Any]", found),)
    loop = _loop(found, ScriptedAdapter(()), EventBus(), file)
    asked = _blank(loop) if request is None else _request(loop, request)
    try:
        return _prepared(loop, asked).render(Session()).tools
    except Exception as error:  # INVARIANT: a prompt that cannot be made up is told in one line
        hint = " Pass a request: --request." if request is None else ""
        raise BadInput(f"{file} cannot be prepared: {type(error).__name__}: {error}.{hint}") from error


def _prepared(loop: MainLoop[Any, Any], request: object) -> Prompt[Any]:
    prepared: Any = loop.prepare(request)
    if inspect.isawaitable(prepared):
        import asyncio

        async def settle() -> Any:
            return await prepared

        prepared = asyncio.run(settle())
    return cast("Prompt[Any]", prepared[0] if isinstance(prepared, tuple) else prepared)


# -- what was given --------------------------------------------------------------------------------------------------


@contextmanager
def _loaded(file: str) -> Generator[tuple[ModuleType, str]]:
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


def _chosen(module: ModuleType, name: str, file: str) -> Any:
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


def _loop(found: Any, adapter: ProviderAdapter | None, bus: EventBus, file: str) -> MainLoop[Any, Any]:
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


def _adapter(model: str, base_url: str) -> ProviderAdapter | None:
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
        return _request(loop, None)
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


def _request(loop: MainLoop[Any, Any], text: str | None) -> Any:
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


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str))


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. What is wrong with what was given, and what ended a run, is told in one line."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="wink")
    except BadInput as error:
        typer.echo(f"wink: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing may be written there any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (WinkError, OSError, ImportError) as error:
        typer.echo(f"wink: {error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
