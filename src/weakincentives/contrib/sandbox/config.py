"""What the owner of a sandbox decides: the programs inside, the backend, and every limit. Checked when made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from ...errors import PromptValidationError
from ...frozen import frozen

MIB = 1024 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKDIR = re.compile(r"/[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
# Where the sandbox itself puts things; a workspace there would hide them.
_TAKEN = frozenset(("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sandbox", "/sbin", "/sys", "/tmp", "/usr"))


def _no_env() -> Mapping[str, str]:
    return MappingProxyType({})


@frozen
class PodmanConfig:
    """How commands are confined. The defaults suit a model that edits and tests a small project."""

    image: str = "docker.io/library/python:3.12-slim"
    """The container image: Podman takes the programs from it. It needs /bin/sh, and python3 for `python_execute`. It is
    never pulled behind your back."""
    backend: Literal["auto", "podman", "bubblewrap"] = "auto"
    """auto: Podman where it can run the image, else bubblewrap, which takes the programs from this machine."""
    memory: int = 512 * MIB
    """Bytes that all processes of a command may use together."""
    cpus: float = 1.0
    """Processors' worth of time; bubblewrap bounds the processor time of each process by `cpus` times the timeout."""
    pids: int = 64
    """Processes and threads that may exist at the same time."""
    timeout: float = 60.0
    """Seconds after which a command is killed; a call may ask for less."""
    output_limit: int = 30_000
    """Bytes kept of each of stdout and stderr: the first and the last half."""
    disk: int = 256 * MIB
    """Bytes that a command may add to the workspace."""
    entries: int = 20_000
    """Files and directories that a command may change."""
    tmp: int = 64 * MIB
    """Bytes of /tmp, which is empty at the start of each command and gone after it."""
    env: Mapping[str, str] = field(default_factory=_no_env)
    """Variables of the commands. Nothing of this process's own environment is passed on."""
    workdir: str = "/work"
    """Where commands find the workspace."""
    uid: int = 65534
    """The user that commands run as when this process is root; otherwise they run as its own user."""
    engine: str = "podman"
    """The Podman program: a name, or a path."""
    engine_config: str | None = None
    """A containers.conf file for Podman, where the system's own does not work."""
    rootfs: str | None = None
    """bubblewrap: a directory with the programs (an unpacked image), instead of this machine's /usr."""

    def __post_init__(self) -> None:
        if self.backend not in {"auto", "podman", "bubblewrap"}:
            raise _wrong("backend", self.backend, "one of: auto, podman, bubblewrap")
        for name in ("memory", "pids", "output_limit", "disk", "entries", "tmp", "uid"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _wrong(name, value, "an integer above 0")
        for name in ("cpus", "timeout"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
                or not value > 0
            ):
                raise _wrong(name, value, "a number above 0")
        if _WORKDIR.fullmatch(self.workdir) is None or {".", ".."} & set(self.workdir.split("/")):
            raise _wrong("workdir", self.workdir, "an absolute path of plain names, such as /work")
        if any(self.workdir == taken or self.workdir.startswith(taken + "/") for taken in _TAKEN):
            raise _wrong("workdir", self.workdir, f"a path outside of {', '.join(sorted(_TAKEN))}")
        for name, value in self.env.items():
            if _NAME.fullmatch(name) is None or "\0" in value:
                raise _wrong("env", name, "names of letters, digits and _, and values without NUL")
        if not self.image or self.image.startswith("-"):
            raise _wrong("image", self.image, "the name of an image")
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))


def _wrong(name: str, value: object, expected: str) -> PromptValidationError:
    return PromptValidationError(f"PodmanConfig: {name} must be {expected}, got {value!r}.")
