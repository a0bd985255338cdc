"""Shell and Python for a model, confined: `shell_execute` and `python_execute` over the workspace of the prompt.

Decides what a model may ask for and what it reads afterwards. How a command is confined, bounded and taken back is
decided in `contrib.sandbox`; nothing here touches the workspace.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Mapping
from typing import Any

from ...errors import ToolValidationError
from ...filesystem import FileMissingError, Filesystem, InMemoryFilesystem, NotDirectoryError, normalize
from ...frozen import frozen
from ...prompt import Section, Tool, ToolContext, ToolResult
from ...session import Session
from ..sandbox import Backend, Ended, PodmanConfig, choose_backend
from ..sandbox.backend import SCRIPT
from ..sandbox.config import MIB
from ..sandbox.sandbox import Outcome, Sandbox

_SHOWN = 20


@frozen
class ShellParams:
    """A shell command."""

    command: str
    """What /bin/sh runs: one command or a whole script."""
    cwd: str = "/"
    """Directory of the workspace to run in."""
    stdin: str = ""
    """Text the command can read from its standard input."""
    timeout: float | None = None
    """Seconds after which it is killed; leave out for the longest time allowed."""


@frozen
class PythonParams:
    """A Python program."""

    code: str
    """The program; print what you want to see. Modules of the working directory can be imported."""
    cwd: str = "/"
    """Directory of the workspace to run in."""
    stdin: str = ""
    """Text the program can read from its standard input."""
    timeout: float | None = None
    """Seconds after which it is killed; leave out for the longest time allowed."""


@frozen
class CommandResult:
    """How a command ended and what it printed."""

    exit_code: int
    """-1: it was killed at a limit."""
    stdout: str
    stderr: str
    duration: float
    """Seconds."""
    stdout_truncated: bool
    stderr_truncated: bool
    changed: tuple[str, ...]
    """Paths of the workspace that are different now."""

    def render(self) -> str:
        """Both streams, each under its name if there is something on it."""
        parts = [f"{name}:\n{text}" for name, text in (("stdout", self.stdout), ("stderr", self.stderr)) if text]
        return "\n".join(part.rstrip("\n") for part in parts) or "(no output)"


class PodmanSandboxSection(Section[None]):
    """Shell and Python in a container (Podman), or confined by bubblewrap where Podman cannot run.

    Works over the prompt's Filesystem; `filesystem=` brings one along. Without either the section has one of its own, in
    memory. Raises `SandboxUnavailableError` when nothing can run commands here. `backend=` is a way of your own to confine
    commands, or a double for tests; it is taken as it is.
    """

    def __init__(
        self,
        *,
        session: Session | None = None,
        config: PodmanConfig | None = None,
        filesystem: Filesystem | None = None,
        backend: Backend | None = None,
        title: str = "Sandbox",
        key: str | None = None,
        accepts_overrides: bool = True,
    ) -> None:
        self.config = PodmanConfig() if config is None else config
        self.session = session
        self._brought = filesystem
        self.filesystem: Filesystem = InMemoryFilesystem() if filesystem is None else filesystem
        """The workspace of a prompt that has no Filesystem."""
        self._sandbox = Sandbox(choose_backend(self.config) if backend is None else backend, self.config)
        super().__init__(
            title=title,
            key=key,
            tools=(
                Tool[ShellParams, CommandResult](
                    name="shell_execute",
                    description=(
                        "Run a shell command in a sandbox without network. Changes to the workspace are kept only when "
                        "it exits with 0."
                    ),
                    handler=self._shell,
                ),
                Tool[PythonParams, CommandResult](
                    name="python_execute",
                    description=(
                        "Run a Python program in a sandbox without network. Changes to the workspace are kept only when "
                        "it exits with 0."
                    ),
                    handler=self._python,
                ),
            ),
            accepts_overrides=accepts_overrides,
        )
        self.template: str | None = _GUIDANCE.format(
            workdir=self.config.workdir,
            timeout=f"{self.config.timeout:g}",
            memory=_size(self.config.memory),
            disk=_size(self.config.disk),
        )

    @property
    def backend(self) -> str:
        """Which backend runs the commands: podman or bubblewrap."""
        return self._sandbox.backend.name

    def resources(self) -> Mapping[Any, object]:
        return {} if self._brought is None else {Filesystem: self._brought}

    def _shell(self, params: ShellParams, *, context: ToolContext) -> ToolResult[CommandResult]:
        return self._run(params, ("/bin/sh", SCRIPT), params.command, {}, context)

    def _python(self, params: PythonParams, *, context: ToolContext) -> ToolResult[CommandResult]:
        # Its own directory is where the script lies; modules are looked for where the model thinks it is.
        return self._run(params, ("python3", SCRIPT), params.code, {"PYTHONPATH": "."}, context)

    def _run(
        self,
        params: ShellParams | PythonParams,
        argv: tuple[str, ...],
        script: str,
        env: Mapping[str, str],
        context: ToolContext,
    ) -> ToolResult[CommandResult]:
        if not script.strip():
            raise ToolValidationError("There is nothing to run: the text is empty. Write a command, then retry.")
        found = context.filesystem
        fs = self.filesystem if found is None else found
        asked = self._timeout(params.timeout)
        deadline = context.deadline
        timeout = asked if deadline is None else min(asked, deadline.remaining_seconds)
        ended_early = threading.Event()
        if context.scope is not None:
            context.on_end(ended_early.set)
        outcome = self._sandbox.run(
            fs,
            argv,
            script,
            cwd=self._directory(params.cwd, fs),
            stdin=params.stdin.encode(),
            timeout=timeout,
            env=env,
            cancelled=ended_early.is_set,
            beat=context.beat,
        )
        if outcome.ended.stopped == "timeout" and deadline is not None:
            deadline.check()  # the time of the whole run is over: that is for whoever set it
        return self._result(outcome, asked)

    def _result(self, outcome: Outcome, timeout: float) -> ToolResult[CommandResult]:
        ended = outcome.ended
        value = CommandResult(
            exit_code=ended.exit_code,
            stdout=ended.stdout.text,
            stderr=ended.stderr.text,
            duration=round(ended.duration, 3),
            stdout_truncated=ended.stdout.truncated,
            stderr_truncated=ended.stderr.truncated,
            changed=outcome.changed,
        )
        problem = self._stopped(ended, timeout) or outcome.refused or self._failed(ended)
        if problem:
            return ToolResult(f"{problem}\n\n{value.render()}", value, success=False)
        return ToolResult.ok(value, message=f"Exit code 0.{_told(outcome.changed)}")

    def _stopped(self, ended: Ended, timeout: float) -> str:
        config = self.config
        match ended.stopped:
            case "":
                return ""
            case "timeout":
                longer = f"a longer timeout (at most {config.timeout:g}) or " if timeout < config.timeout else ""
                return (
                    f"Killed: the command was not done within {timeout:g} seconds. Nothing it changed was kept.\n"
                    f"Retry with {longer}less work at once."
                )
            case "memory":
                return _killed(f"used more than {_size(config.memory)} of memory", "less memory")
            case "disk":
                return _killed(
                    f"wrote more than {_size(config.disk)}", "smaller files, or write to /tmp what need not stay"
                )
            case "entries":
                return _killed(f"changed more than {config.entries} files and directories", "fewer files at once")
            case "cancelled":
                return "Killed: the call was cancelled. Nothing the command changed was kept."

    def _failed(self, ended: Ended) -> str:
        code = ended.exit_code
        if code == 0:
            return ""
        told = f"Exit code {code}."
        if code == 137:
            told = f"Exit code 137: killed, most likely for using more than {_size(self.config.memory)} of memory."
        return f"{told} Nothing the command changed was kept."

    def _timeout(self, asked: float | None) -> float:
        most = self.config.timeout
        if asked is None:
            return most
        if not 0 < asked <= most:
            raise ToolValidationError(f"timeout must be above 0 and at most {most:g} seconds, got {asked:g}.")
        return asked

    def _directory(self, cwd: str, fs: Filesystem) -> str:
        """The canonical path of a directory, given as a path of the workspace or as the command sees it."""
        workdir = self.config.workdir
        inside = posixpath.normpath(cwd) if cwd.startswith("/") else ""
        if inside == workdir or inside.startswith(f"{workdir}/"):
            cwd = inside.removeprefix(workdir) or "/"
        path = normalize(cwd or "/")
        if path == "/":
            return path
        if not fs.exists(path):
            raise FileMissingError.directory(path)
        if not fs.is_dir(path):
            raise NotDirectoryError.at(path)
        return path


_GUIDANCE = """\
`shell_execute` and `python_execute` run in a sandbox. The workspace is at {workdir}, where commands start; everything else
is read-only or thrown away afterwards.

- Each call is a new sandbox: variables, background processes and /tmp do not last. Only files below {workdir} do.
- Changes are kept when the command exits with 0. After any other exit code, or when it is killed, they are all taken back:
  end with `|| true` to keep them in spite of a failing step.
- There is no network, and nothing can be installed.
- Limits: {timeout} seconds, {memory} of memory, {disk} written. Long output is cut in the middle: print only what you need.
"""


def _killed(why: str, advice: str) -> str:
    return f"Killed: the command {why}. Nothing it changed was kept.\nRetry with {advice}."


def _told(changed: tuple[str, ...]) -> str:
    if not changed:
        return ""
    more = len(changed) - _SHOWN
    return f" Changed: {', '.join(changed[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _size(count: int) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count} bytes"
