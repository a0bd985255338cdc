"""Which backend runs the commands: asked once when a section is made, by running a command in it.

Decides the one sentence that is said where none can. What works is remembered for the life of this process; what does
not is asked again, since somebody may have repaired it.
"""

from __future__ import annotations

import threading

from ...filesystem import InMemoryFilesystem
from .backend import SCRIPT, Backend, SandboxError, SandboxUnavailableError
from .bubblewrap import BubblewrapBackend
from .config import PodmanConfig
from .podman import PodmanBackend
from .sandbox import Sandbox

_proven: dict[object, Backend] = {}
_lock = threading.Lock()
_PATIENCE = 30.0


def choose_backend(config: PodmanConfig) -> Backend:
    """The backend that the configuration asks for; raises `SandboxUnavailableError` when it cannot run a command."""
    values = [getattr(config, name) for name in PodmanConfig.__dataclass_fields__ if name != "env"]
    key = (*values, frozenset(config.env.items()))
    with _lock:
        found = _proven.get(key)
        if found is None:
            found = _proven[key] = _choose(config)
        return found


def _choose(config: PodmanConfig) -> Backend:
    if config.backend != "auto":
        return _prove(PodmanBackend(config) if config.backend == "podman" else BubblewrapBackend(config), config)
    try:
        return _prove(PodmanBackend(config), config)
    except SandboxUnavailableError as error:
        first = error
    try:
        return _prove(BubblewrapBackend(config), config)
    except SandboxUnavailableError as second:
        raise SandboxUnavailableError(f"No sandbox can run here. {_without_advice(first)} {second}") from first


def _prove(backend: Backend, config: PodmanConfig) -> Backend:
    """The backend, after it has run a command."""
    backend.find()
    title = "Podman" if backend.name == "podman" else "bubblewrap"
    advice = "Repair it, or use backend='bubblewrap'." if backend.name == "podman" else _USERNS
    try:
        sandbox = Sandbox(backend, config)
        ended = sandbox.run(
            InMemoryFilesystem({"probe": ""}),
            ("/bin/sh", SCRIPT),
            "test -f probe && : > written",
            cwd="/",
            timeout=_PATIENCE,
        ).ended
    except SandboxError as error:
        # Which of them could not, and what, is said already.
        reason = str(error).partition(": ")[2] or str(error)
        raise SandboxUnavailableError(f"{title} cannot run here: {reason.rstrip('.')}. {advice}") from error
    except OSError as error:
        raise SandboxUnavailableError(f"{title} cannot run here: {error}. {advice}") from error
    if ended.stopped or ended.exit_code:
        reason = ended.stderr.text.strip() or ended.stopped or f"a first command ended with {ended.exit_code}"
        raise SandboxUnavailableError(f"{title} cannot run here: {reason.rstrip('.')}. {advice}")
    return backend


_USERNS = "It needs Linux 5.11 or newer with unprivileged user namespaces (sysctl user.max_user_namespaces)."


def _without_advice(error: SandboxUnavailableError) -> str:
    return str(error).replace(", or use backend='bubblewrap'", "")
