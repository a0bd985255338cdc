"""One command over one Filesystem, from the copy of the workspace to what is kept of the changes.

INVARIANT: the Filesystem is written to only after the command has ended by itself with exit code 0, and then within
the transaction of the call, so that whatever goes wrong later takes everything back.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping

from ...clock import SYSTEM_CLOCK
from ...errors import FilesystemError, ToolValidationError
from ...filesystem import Filesystem
from ...frozen import frozen
from .backend import Backend, Job
from .changes import ChangesRefusedError, apply_changes, read_changes
from .config import PodmanConfig
from .process import Ended, follow
from .workspace import Workspace

_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@frozen
class Outcome:
    """How a command ended, and what is different in the workspace."""

    ended: Ended
    changed: tuple[str, ...] = ()
    refused: str = ""
    """Why the changes of a successful command were not kept."""


class Sandbox:
    """Runs commands by one backend. Keeps one copy of the workspace for each Filesystem it has seen, while that lives."""

    def __init__(self, backend: Backend, config: PodmanConfig) -> None:
        self.backend = backend
        self._config = config
        self._workspaces: weakref.WeakKeyDictionary[Filesystem, Workspace] = weakref.WeakKeyDictionary()

    def run(
        self,
        fs: Filesystem,
        argv: tuple[str, ...],
        script: str,
        *,
        cwd: str,
        stdin: bytes = b"",
        timeout: float,
        env: Mapping[str, str] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        beat: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run the command; on success make its changes to `fs`. `cwd` is a canonical path of the workspace."""
        config = self._config
        workspace = self._workspace(fs)
        begun = SYSTEM_CLOCK.monotonic()
        # One at a time over one copy: what lies below an overlay must not change while it is in use.
        while not workspace.lock.acquire(timeout=0.05):
            beat()
            if cancelled() or SYSTEM_CLOCK.monotonic() - begun > timeout:
                raise ToolValidationError(
                    "Another command is using this workspace, and was not done in time. Retry when it is done."
                )
        try:
            workspace.sync(fs)
            with workspace.call(script) as call:
                job = Job(
                    name=f"sandbox-{os.getpid()}-{os.urandom(6).hex()}",
                    argv=argv,
                    cwd=config.workdir if cwd == "/" else f"{config.workdir}/{cwd}",
                    env={**_ENV, **(env or {}), **config.env},
                    timeout=timeout,
                    lower=workspace.lower,
                    upper=call.upper,
                    work=call.work,
                    script=call.script,
                )
                ended = follow(
                    self.backend.start(job),
                    stdin=stdin,
                    timeout=timeout,
                    config=config,
                    upper=call.upper,
                    cancelled=cancelled,
                    beat=beat,
                )
                if ended.stopped or ended.exit_code:
                    return Outcome(ended)
                try:
                    changes = read_changes(call.upper, config.workdir)
                    return Outcome(ended, tuple(apply_changes(changes, fs)))
                except ChangesRefusedError as error:
                    return Outcome(ended, refused=str(error))
                except FilesystemError as error:
                    return Outcome(
                        ended,
                        refused=f"The command succeeded, but nothing it changed was kept, because of this: {error}",
                    )
        finally:
            workspace.lock.release()

    def _workspace(self, fs: Filesystem) -> Workspace:
        found = self._workspaces.get(fs)
        if found is None:
            found = self._workspaces.setdefault(fs, Workspace(self.backend.owner))
        return found
