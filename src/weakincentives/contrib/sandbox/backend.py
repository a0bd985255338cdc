"""What a backend is: it starts one command over an overlay, and can kill everything the command started.

Decides nothing about limits of time or output (`process.py`) nor about what is kept (`changes.py`).
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from ...errors import WinkError
from ...frozen import frozen

SCRIPT = "/sandbox/script"
"""Where a command finds the text it runs."""


class SandboxError(WinkError, RuntimeError):
    """The sandbox itself failed; the command never ran, or nothing is known of it."""


class SandboxUnavailableError(WinkError, RuntimeError):
    """No backend can run here; the message says why, and what to do."""


@frozen
class Job:
    """One command and the folders it runs over. All paths are of the host, except `argv`, `cwd` and `env`."""

    name: str
    """Unique on this machine."""
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    timeout: float
    lower: str
    """The workspace; never written to."""
    upper: str
    """Becomes what the command changed."""
    work: str
    """Scratch space of the overlay."""
    script: str
    """The text that the command finds at `SCRIPT`."""


class Started(ABC):
    """A running command. Made by a backend; must be closed."""

    process: subprocess.Popen[bytes]
    """Whose pipes are the command's."""

    @abstractmethod
    def kill(self) -> None:
        """End everything the command started; doing it again changes nothing."""

    @abstractmethod
    def exit_code(self, stderr: str) -> int:
        """Of the command, once the process has ended; raises `SandboxError` when the command never ran."""

    def memory(self) -> int:
        """Bytes in use, where nobody else watches them; 0 where the kernel does."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Let go of what the running command needed."""


class Backend(Protocol):
    """A way to confine commands."""

    @property
    def name(self) -> str:
        """As in `PodmanConfig.backend`."""
        ...

    @property
    def owner(self) -> int | None:
        """The user that must own the folders of a job; None: they stay as they are made."""
        ...

    def find(self) -> None:
        """Raise `SandboxUnavailableError` when something is missing that can be seen without running anything."""
        ...

    def start(self, job: Job) -> Started:
        """Start the command, with pipes for stdin, stdout and stderr."""
        ...
