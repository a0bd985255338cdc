"""The SDK's own tools (Bash, Write, Edit, Read …) as calls of the one pipeline.

Claude Code runs them; hooks tell us before and after. Between the two hooks the call is inside of the pipeline: judged by
the prompt's policies before it may run, in a transaction that holds the workspace while it runs, recorded once when it
ends. Decides which of them write, and refuses what could not be taken back. Never runs a native tool itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ..errors import ToolValidationError
from ..filesystem import HostFilesystem
from ..filesystem.tree import DirectoryTree
from ..prompt import Tool, ToolContext, ToolResult
from ..prompt.tool import Effects, ToolHandler
from ..runtime import ToolCall, ToolOutcome, aexecute_tool

LOOKERS = frozenset({"Glob", "Grep", "LS", "NotebookRead", "Read"})
"""They read files; which ones they may is left to Claude Code, which keeps them to the workspace."""
READERS = LOOKERS | {
    *("BashOutput", "TaskOutput", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch"),
    *("ListMcpResourcesTool", "ReadMcpResourceTool"),
}
"""They change nothing outside of Claude Code, and may run beside each other."""
WRITERS = frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write"})
"""They change the one file they name."""
STARTERS = frozenset({"Agent", "Skill", "Task", "Workflow"})
"""What they start makes calls of its own, each a transaction: a transaction around them would wait for itself."""
_PATHS = ("file_path", "notebook_path", "path")


class NativeTools:
    """The native calls of one run. Made with it, lives as long; holds the workspace if one of the tools can write."""

    def __init__(self, root: str, tree: DirectoryTree | None) -> None:
        self._root = os.path.realpath(root)
        self._tree = tree
        self._files: HostFilesystem | None = None
        self._tools: dict[str, Tool[Any, Any]] = {}
        self._pending: dict[str, _NativeCall] = {}
        self._given_up: list[_NativeCall] = []
        """Calls that Claude Code did not wait for; their transactions may not have ended."""

    @property
    def files(self) -> HostFilesystem:
        """What policies look at: the workspace as it is on disk."""
        if self._files is None:
            self._files = HostFilesystem(self._root, readonly=True)
        return self._files

    def is_pending(self, call_id: str) -> bool:
        """Whether this call may run and has not ended."""
        return call_id in self._pending

    async def begin(self, call: ToolCall, surroundings: Mapping[str, Any]) -> ToolOutcome | None:
        """Judge a call and open its transaction. None: it may run now, until `end`. Else how it ended: it may not run, or
        it has succeeded in starting something whose end is not waited for."""
        assert call.call_id is not None
        tool = self._tool(call.name)
        pending = self._pending[call.call_id] = _NativeCall(call)
        params = self._inside(call.params)
        judged = ToolCall(call.name, tool, call.call_id, call.prompt, params)  # pyright: ignore[reportArgumentType]
        run: dict[str, Any] = {**surroundings, "filesystem": self.files}
        pending.task = asyncio.ensure_future(aexecute_tool(judged, **run))
        try:
            await asyncio.wait((pending.started, pending.task), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._given_up.append(self._pending.pop(call.call_id))
            pending.task.cancel()
            raise
        if pending.started.done():
            return None
        del self._pending[call.call_id]
        return pending.outcome()

    async def end(self, call_id: str, result: ToolResult[Any]) -> ToolOutcome | None:
        """A native tool has ended, or was never run: keep or take back what it did. None: nobody waits for this."""
        pending = self._pending.pop(call_id, None)
        if pending is None:
            return None
        pending.done.set_result(result)
        await asyncio.wait((pending.task,))
        return pending.outcome()

    async def close(self) -> None:
        """Take back what never ended. Claude Code must be gone by then: what it still does could not be undone."""
        pending, self._pending = [*self._given_up, *self._pending.values()], {}
        for call in pending:
            call.task.cancel()
        if pending:
            await asyncio.wait([call.task for call in pending])
        if self._files is not None:
            self._files.close()
        for call in pending:
            if not call.task.cancelled():
                call.task.result()  # raises when it could not be put back

    def _tool(self, name: str) -> Tool[Any, Any]:
        tool = self._tools.get(name)
        if tool is None:
            effects: Effects = "external"
            if name in READERS or name in STARTERS:
                effects = "none"
            elif name in WRITERS:
                effects = "local"
            tool = named_tool(name, self._hold, effects)
            self._tools[name] = tool
        return tool

    async def _hold(self, params: dict[str, Any], *, context: ToolContext) -> ToolResult[Any]:
        """The handler of every native call: lets Claude Code run it and waits for how it ended."""
        call = self._pending[context.call_id]
        name = call.call.name
        self._refuse(name, params)
        if name in STARTERS:
            return ToolResult.ok(None, f"{name} was started.")
        writes = self._tree is not None and name not in READERS
        with self._tree.guard() if writes and self._tree is not None else nullcontext():
            call.started.set_result(None)
            return await call.done

    def _refuse(self, name: str, params: Mapping[str, Any]) -> None:
        """What could not be taken back is not begun."""
        if params.get("run_in_background"):
            raise ToolValidationError(
                f"Cannot run '{name}' in the background: what it changes could not be taken back. "
                "Retry without run_in_background."
            )
        if name in WRITERS:
            path = next((params[key] for key in _PATHS if isinstance(params.get(key), str)), "")
            if not self._is_inside(path):
                raise ToolValidationError(
                    f"Cannot write to {path or 'an unnamed file'}: it is outside of the workspace {self._root}, "
                    "and could not be taken back. Choose a path inside."
                )

    def _is_inside(self, path: str) -> bool:
        if not path:
            return False
        real = os.path.realpath(os.path.join(self._root, path))
        return real != self._root and os.path.commonpath([real, self._root]) == self._root

    def _inside(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with paths as the workspace names them, so that policies compare what they should."""
        params = dict(arguments)
        for key in _PATHS:
            path = params.get(key)
            if isinstance(path, str) and os.path.isabs(path) and self._is_inside(path):
                params[key] = os.path.relpath(os.path.realpath(path), self._root)
        return params


def named_tool(name: str, handler: ToolHandler[dict[str, Any], Any], effects: Effects) -> Tool[Any, Any]:
    """A tool of Claude Code by the name that Claude gives it, which is not how our own are spelled."""
    tool = Tool.from_json_schema(
        name="native", description="A tool of Claude Code.", schema={"type": "object"}, handler=handler, effects=effects
    )
    object.__setattr__(tool, "name", name)
    return tool


class _NativeCall:
    """A call between its two hooks."""

    def __init__(self, call: ToolCall) -> None:
        loop = asyncio.get_running_loop()
        self.call = call
        self.started: asyncio.Future[None] = loop.create_future()
        """The policies have allowed it and its transaction is open."""
        self.done: asyncio.Future[ToolResult[Any]] = loop.create_future()
        """How it ended."""
        self.task: asyncio.Future[ToolOutcome]

    def outcome(self) -> ToolOutcome:
        """How the call ended; raises what ends the run."""
        return replace(self.task.result(), call=self.call)
