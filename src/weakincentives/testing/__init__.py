"""What a test of tools needs: contexts and sessions made in one line, tools run by the real pipeline, time by hand.

Everything here is the real thing, filled with little: no mocks. `weakincentives.testing.plugin` offers the same as
pytest fixtures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from typing import Any, cast

from .. import serde
from ..adapters import ScriptedAdapter
from ..clock import SYSTEM_CLOCK, Clock, FakeClock
from ..filesystem import Filesystem, InMemoryFilesystem
from ..prompt import Prompt, PromptTemplate, Tool, ToolContext, ToolPolicy
from ..resources import ResourceContext, ResourceRegistry
from ..runtime import EventBus, Session, ToolCall, ToolOutcome, execute_tool

__all__ = [
    "FakeClock",
    "ScriptedAdapter",
    "make_context",
    "make_context_with_files",
    "make_session",
    "make_vfs",
    "run_tool",
]

Files = Iterable[str] | Mapping[str, str | bytes]
"""Names of empty files, or names with content."""


def make_vfs(files: Files = ()) -> InMemoryFilesystem:
    """A filesystem in memory that holds these files."""
    fs = InMemoryFilesystem()
    _fill(fs, files)
    return fs


def make_session(*, clock: Clock = SYSTEM_CLOCK, bus: EventBus | None = None, session_id: str | None = None) -> Session:
    """A session in memory; with a `FakeClock`, one whose events have known times."""
    return Session(session_id=session_id, bus=bus, clock=clock)


def make_context(
    *,
    session: Session | None = None,
    resources: object = None,
    fs: Filesystem | None = None,
    files: Files = (),
    **more: Any,
) -> ToolContext:
    """The context of a tool call that nobody made, with a session and a filesystem of its own unless given.

    `resources` is a mapping, a registry or an open context; `files` are written to the filesystem. A handler called
    with the context runs as it is; a tool called with it, `tool(params, context=context)`, runs as a governed call.
    """
    opened, fs = _opened(resources, fs, files)
    return ToolContext(session=make_session() if session is None else session, resources=opened, filesystem=fs, **more)


def make_context_with_files(files: Files, **more: Any) -> ToolContext:
    """`make_context` with these files."""
    return make_context(files=files, **more)


def run_tool(
    tool: Tool[Any, Any],
    args: object = None,
    *,
    session: Session | None = None,
    resources: object = None,
    fs: Filesystem | None = None,
    files: Files = (),
    policies: Sequence[ToolPolicy] = (),
    call_id: str | None = None,
    **surroundings: Any,
) -> ToolOutcome:
    """Run one call of the tool through the whole pipeline, in a prompt that has this tool alone.

    `args` is what a model would send, a mapping or JSON text, or an instance of the tool's params. Resources that were
    not open before are closed afterwards. `surroundings`: what `execute_tool` takes, such as `deadline`.
    """
    prompt = Prompt(PromptTemplate(policies=policies)).bind(extra_tools=[tool])
    call = ToolCall(tool.name, _arguments(args), call_id)
    opened, fs = _opened(resources, fs, files)
    with ExitStack() as stack:
        if opened is not resources:
            stack.enter_context(opened)
        return execute_tool(
            call,
            prompt=prompt,
            session=make_session() if session is None else session,
            resources=opened,
            filesystem=fs,
            **surroundings,
        )


def _arguments(args: object) -> Mapping[str, Any] | str | bytes | None:
    if is_dataclass(args) and not isinstance(args, type):
        return serde.dump(args)
    return cast("Mapping[str, Any] | str | bytes | None", args)


def _opened(resources: Any, fs: Filesystem | None, files: Files) -> tuple[ResourceContext, Filesystem]:
    """Open resources that have a filesystem: the one given, else the one bound, else a new one."""
    if hasattr(resources, "tool_scope"):  # open already, by whoever closes it
        opened = cast("ResourceContext", resources)
    else:
        registry = ResourceRegistry.build(resources or {})
        if fs is None and Filesystem not in registry:
            fs = InMemoryFilesystem()
        opened = (registry if fs is None else registry.merge(ResourceRegistry.build({Filesystem: fs}))).open()
    found = fs if fs is not None else opened.get_optional(Filesystem)
    if found is None:
        found = InMemoryFilesystem()
    _fill(found, files)
    return opened, found


def _fill(fs: Filesystem, files: Files) -> None:
    if isinstance(files, str):
        raise TypeError(f"files takes names, or names with content, got the string {files!r}")
    contents: Mapping[str, str | bytes] = (
        cast("Mapping[str, str | bytes]", files) if isinstance(files, Mapping) else dict.fromkeys(files, "")
    )
    for path, content in contents.items():
        fs.write(path, content)
