"""Commands confined by Podman: one container per command, from an image that is already on this machine.

Decides the flags of `podman run`: no network, no capabilities, no new privileges, a read-only root, an unprivileged
user, real limits, and the workspace as an overlay whose upper folder is ours. Podman's own list of system calls is
shortened: nothing inside may make namespaces or mount. Never pulls an image.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile

from .backend import SCRIPT, Job, SandboxError, SandboxUnavailableError, Started
from .config import PodmanConfig
from .folder import remove_at_end
from .seccomp import shortened_profile

_FILES = 1024
_PROCESSES = 32768
# WHY NOT the command itself as the first process, or --init: signals mean something else to that one, and the program
# for --init may not be installed.
_FIRST = '"$@"; exit $?'


class PodmanBackend:
    """Runs commands by Podman. Made once per configuration; holds nothing."""

    name = "podman"

    def __init__(self, config: PodmanConfig) -> None:
        self._config = config
        self._is_root = os.geteuid() == 0
        self.owner = config.uid if self._is_root else None
        self._user = config.uid if self._is_root else os.geteuid()
        self._group = config.uid if self._is_root else os.getegid()

        self._seccomp = ""

    def find(self) -> None:
        config = self._config
        if shutil.which(config.engine) is None:
            raise SandboxUnavailableError(
                f"Podman cannot run here: the program {config.engine} was not found. "
                "Install it (apt-get install podman), or use backend='bubblewrap'."
            )
        if config.engine_config is not None and not os.path.isfile(config.engine_config):
            raise SandboxUnavailableError(
                f"Podman cannot run here: engine_config {config.engine_config} is no file. Name a containers.conf file."
            )
        answer = self._podman("image", "exists", config.image)
        if answer.returncode == 1:
            raise SandboxUnavailableError(
                f"Podman cannot run here: the image {config.image} is not on this machine. "
                f"Fetch it (podman pull {config.image}), or use backend='bubblewrap'."
            )
        if answer.returncode != 0:
            raise SandboxUnavailableError(
                f"Podman cannot run here: {_reason(answer.stderr)}. Repair it, or use backend='bubblewrap'."
            )

        self._seccomp = self._seccomp or _profile(self)

    def start(self, job: Job) -> Started:
        try:
            process = subprocess.Popen(
                [self._config.engine, "run", *self._arguments(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                cwd="/",
            )
        except OSError as error:
            raise SandboxError(f"Podman could not be started: {error}") from error
        return _Running(process, job.name, self)

    def remove(self, name: str) -> None:
        """End and remove a container, in whatever state it is."""
        self._podman("rm", "--force", "--time", "0", "--ignore", name)

    def _arguments(self, job: Job) -> list[str]:
        config = self._config
        # By a file, because every user of the machine can read arguments; it has no way to write a line break.
        listed = os.path.join(os.path.dirname(job.script), "env")
        with open(listed, "w", encoding="utf-8", opener=_private) as file:
            file.writelines(f"{name}={value}\n" for name, value in job.env.items() if "\n" not in value)
        # fmt: off
        return [
            "--rm", "--interactive", "--name", job.name, "--pull", "never", "--log-driver", "none",
            "--network", "none", "--no-hosts", "--hostname", "sandbox", "--http-proxy=false",
            "--user", f"{self._user}:{self._group}", *([] if self._is_root else ["--userns", "keep-id"]),
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            *(["--security-opt", f"seccomp={self._seccomp}"] if self._seccomp else []), "--read-only", "--read-only-tmpfs=false",
            "--tmpfs", f"/tmp:rw,size={config.tmp},mode=1777,nosuid,nodev", "--shm-size", f"{config.tmp}b",
            "--memory", f"{config.memory}b", "--memory-swap", f"{config.memory}b",
            "--cpus", f"{config.cpus:g}", "--pids-limit", str(config.pids + 2),
            "--ulimit", "core=0:0", "--ulimit", f"fsize={config.disk}:{config.disk}",
            # Given, because what Podman would take instead may be more than it is allowed to set.
            "--ulimit", _most("nofile", resource.RLIMIT_NOFILE, _FILES),
            "--ulimit", _most("nproc", resource.RLIMIT_NPROC, _PROCESSES),
            # Conmon ends the container also when this process is gone.
            "--timeout", str(int(job.timeout) + 5),
            "--volume", f"{job.lower}:{config.workdir}:O,upperdir={job.upper},workdir={job.work}",
            "--volume", f"{job.script}:{SCRIPT}:ro", "--workdir", job.cwd, "--entrypoint", "",
            "--env-file", listed, *(f"--env={name}={value}" for name, value in job.env.items() if "\n" in value),
            config.image, "/bin/sh", "-c", _FIRST, "sh", *job.argv,
        ]
        # fmt: on

    def _podman(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._config.engine, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env=self._environment(),
                cwd="/",
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return subprocess.CompletedProcess(arguments, 125, "", str(error))

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self._config.engine_config is not None:
            environment["CONTAINERS_CONF"] = self._config.engine_config
        return environment


def _profile(backend: PodmanBackend) -> str:
    """The file with the allowed system calls; empty to leave the choice to Podman."""
    text = shortened_profile()
    if not text:
        return ""
    folder = tempfile.mkdtemp(prefix="sandbox-podman-")
    remove_at_end(backend, folder)
    path = os.path.join(folder, "seccomp.json")
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    return path


class _Running(Started):
    def __init__(self, process: subprocess.Popen[bytes], name: str, backend: PodmanBackend) -> None:
        self.process = process
        self._name = name
        self._backend = backend
        self._removed = False

    def kill(self) -> None:
        if self._removed or self.process.poll() is not None:
            return
        self._removed = True
        # The client first: then nothing is created any more that would have to be removed.
        self.process.kill()
        self._backend.remove(self._name)

    def close(self) -> None:
        """There is nothing to let go of: the container was removed when it ended."""

    def exit_code(self, stderr: str) -> int:
        code = self.process.returncode
        # Its own failures are 125, and 126 and 127 where the runtime could not start; a command may end so too.
        if code < 0 or (code in {125, 126, 127} and _last_line(stderr).startswith("Error: ")):
            raise SandboxError(f"Podman could not run the command: {_reason(stderr)}")
        return code


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _most(name: str, limit: int, wanted: int) -> str:
    hard = resource.getrlimit(limit)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    return f"{name}={value}:{value}"


def _last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:])


def _reason(stderr: str) -> str:
    return _last_line(stderr).removeprefix("Error: ").rstrip(".") or "it gave no reason"
