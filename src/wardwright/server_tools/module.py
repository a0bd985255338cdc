"""The engine `module`: a Python file of the operator's with `spec()` and `run(arguments, context)`.

Decides when such a file is loaded (at the start, never to check a config) and what it is given. It is trusted code inside the
gateway, no sandbox; so it comes only from the folder that the operator named. Loaded from its text, not by import: nothing is
written beside it, and what its hash says is what runs.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from wardwright.errors import WardwrightError
from wardwright.server_tools.answer import Answer, answer_of
from wardwright.server_tools.settings import MODULE_FORM, NO_PARAMETERS, ServerTool, schema_problem
from wardwright.wire.turn import Caller
from weakincentives.prompt import Tool, ToolContext, ToolResult

_loads = itertools.count(1)
"""A name of its own for every load: an old one may still run when the same file is loaded again."""


class ModuleRefused(WardwrightError, ValueError):
    """A file that is no server tool, or not any more the one that was configured."""


@dataclass(frozen=True, slots=True)
class ModuleContext:
    """What `run(arguments, context)` is told about its call."""

    call_id: str
    idempotency_key: str
    """The same if this call is ever run again; pass it on to outside services."""
    model: str
    caller: Caller
    """Who asks, as far as the gateway knows it. Its own: copy what you want to keep."""
    runtime: ToolContext
    """The tool runtime's own context: `deadline`, `cancelled`, `session` …; what is written to it is undone if the call fails."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module that is ready to run."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[..., Any]
    source_hash: str
    key: str
    """Its name among the loaded modules of the process."""


def load(tool: ServerTool) -> Loaded:
    """Runs the file and asks for its `spec()`. Blocks as long as the file likes."""
    path, folder = tool.path, tool.folder
    if path is None or folder is None:
        raise ModuleRefused("it may not be loaded from here")
    try:
        # Again, because links may have changed since the config was read.
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise ModuleRefused("it lies outside of the folder that modules may come from")
        source = path.read_bytes()
    except OSError as error:
        raise ModuleRefused(f"it cannot be read: {error.strerror}") from error
    source_hash = hashlib.sha256(source).hexdigest()
    key = f"wardwright_tool_{next(_loads)}_{path.stem}"
    module = ModuleType(key, f"Server tool {tool.module}.")
    module.__file__ = str(path)
    sys.modules[key] = module  # dataclasses and the like look for their module there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        return _checked(tool, module, source_hash, key)
    except ModuleRefused:
        sys.modules.pop(key, None)
        raise
    except Exception as error:  # INVARIANT: a handler's file that raises is told with its place, the gateway goes on
        sys.modules.pop(key, None)
        raise ModuleRefused(f"it raised {type(error).__name__}: {error}") from error


def unload(loaded: Loaded) -> None:
    """Forgets the module; calls under way keep what they hold of it."""
    sys.modules.pop(loaded.key, None)


def _checked(tool: ServerTool, module: ModuleType, source_hash: str, key: str) -> Loaded:
    found: dict[str, Any] = vars(module)
    missing = [name for name in ("spec", "run") if not callable(found.get(name))]
    if missing:
        raise ModuleRefused(f"it has no function {' and no '.join(missing)}. A module looks like this:\n{MODULE_FORM}")
    spec: object = found["spec"]()
    if not isinstance(spec, Mapping):
        raise ModuleRefused(f"spec() must return a mapping, got {type(spec).__name__}")
    given = dict(cast("Mapping[str, Any]", spec))
    inner = given.get("function")
    if given.get("type") == "function" and isinstance(inner, Mapping):
        given = dict(cast("Mapping[str, Any]", inner))
    name, description = tool.name or given.get("name"), tool.description or given.get("description")
    parameters = given.get("parameters", NO_PARAMETERS)
    if not isinstance(name, str) or not name:
        raise ModuleRefused("spec() names no tool: give it a 'name'")
    if not isinstance(description, str) or not description.strip():
        raise ModuleRefused("spec() has no 'description'; the model chooses the tool by it")
    if not isinstance(parameters, Mapping):
        raise ModuleRefused(f"'parameters' of spec() must be a mapping, got {type(parameters).__name__}")
    schema = cast("Mapping[str, Any]", parameters)
    if problem := schema_problem(schema):
        raise ModuleRefused(f"'parameters' of spec() {problem}")
    return Loaded(name, description, schema, found["run"], source_hash, key)


def module_tool(
    tool: ServerTool, loaded: Loaded, description: str, context_of: Callable[[ToolContext], ModuleContext]
) -> Tool[Any, Any]:
    """The tool that calls `run`: on a thread of its own, or on the event loop if it is `async def`."""
    run, most = loaded.run, tool.limits.output_chars

    async def wait(params: dict[str, Any], *, context: ToolContext) -> ToolResult[Answer]:
        return answer_of(await run(params, context_of(context)), most)

    def call(params: dict[str, Any], *, context: ToolContext) -> ToolResult[Answer]:
        value = run(params, context_of(context))
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError("run() returned a coroutine: declare it with async def")
        return answer_of(value, most)

    return Tool.from_json_schema(
        name=loaded.name,
        description=description,
        schema=loaded.parameters,
        handler=wait if inspect.iscoroutinefunction(run) else call,
        result_type=Answer,
        effects="external",
        timeout=tool.limits.timeout_ms / 1000,
    )
