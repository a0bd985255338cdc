"""A gateway of one's own for a while: starts `wardwright serve` on a free port, asks it as its operator, and ends it.

Everything it keeps lies in one folder per port under `.run`, and goes when the next run starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml

PLAN = Path(__file__).with_name("gateway.yaml")
RUNS = Path(__file__).parents[2] / ".run"
HOST = "127.0.0.1"


class Place:
    """A port that nobody listens on and a folder for what is kept, both held until `close`."""

    def __init__(self, wanted: int) -> None:
        RUNS.mkdir(exist_ok=True)
        for left in RUNS.glob("*.lock"):  # by runs that have ended
            if (lock := _locked(left)) is not None:
                shutil.rmtree(left.with_suffix(""), ignore_errors=True)
                left.unlink()
                lock.close()
        for port in (wanted, *[0] * 20):
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind((HOST, port))
                except OSError:
                    continue
                self.port: int = trial.getsockname()[1]
            lock = _locked(RUNS / f"{self.port}.lock")
            if lock is not None:
                self._lock = lock
                self.folder = RUNS / str(self.port)
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir()
                return
        raise SystemExit(f"error: there is no free port on {HOST}")

    def close(self) -> None:
        self._lock.close()


def _locked(path: Path) -> BinaryIO | None:
    """The file, if no other run holds it."""
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = path.stat().st_ino == os.fstat(file.fileno()).st_ino  # or another run has just removed it
    except OSError:
        mine = False
    if not mine:
        file.close()
        return None
    return file


def with_model(plan: Path, environ: Mapping[str, str], folder: Path) -> tuple[Path, str]:
    """The plan and the name of its model: a real one if the environment names it, otherwise the script."""
    key, url = environ.get("OPENAI_API_KEY"), environ.get("OPENAI_BASE_URL")
    if not (key or url):
        return plan, ""
    name = environ.get("OPENAI_MODEL", "gpt-5-mini")
    config = yaml.safe_load(plan.read_text("utf-8"))
    provider = {"kind": "openai", "base_url": url, "api_key_env": "OPENAI_API_KEY" if key else None}
    config["providers"] = {"model": {word: value for word, value in provider.items() if value}}
    config["targets"] = [{"model": name, "provider": "model"}]
    made = folder / "gateway.yaml"
    made.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    return made, name


class Refused(Exception):
    """The gateway said no; `status` says how."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Gateway:
    """One process of `wardwright serve`, and its operator's token."""

    def __init__(self, place: Place, environ: Mapping[str, str]) -> None:
        self.folder, port = place.folder, place.port
        self.sessions = self.folder / "sessions"
        self.sessions.mkdir(parents=True)
        plan, self.model = with_model(PLAN, environ, self.folder)
        shown = plan.relative_to(Path.cwd()) if plan.is_relative_to(Path.cwd()) else plan
        self.command = f"wardwright serve --config {shown} --port {port}"
        arguments = [
            *("serve", "--config", str(plan), "--db", str(self.folder / "wardwright.db"), "--port", str(port)),
            *("--sessions", str(self.sessions), "--log-level", "warning", "--json"),
        ]
        self.log = self.folder / "gateway.log"
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C is ours to hear, and the gateway ends after the agents.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wardwright", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environ},
                start_new_session=True,
            )
        self.address = f"http://{HOST}:{port}"
        try:
            assert self._process.stdout is not None
            said = b""
            while not said.endswith(b"}\n"):
                line = self._process.stdout.readline()
                if not line:
                    raise SystemExit(self._failed())
                said += line
            self.token: str = json.loads(said)["admin_token"]
            self._ready()
        except BaseException:
            self.close()
            raise

    @property
    def page(self) -> str:
        """Where a browser is signed in at once; what stands behind # never leaves it."""
        return f"{self.address}/signin#{self.token}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What its operators' API answers."""
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode("utf-8", "replace")) from None

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Lets requests under way end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ready(self) -> None:
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            if self.ended():
                raise SystemExit(self._failed())
            try:
                self.ask("GET", "/readyz")
            except (OSError, Refused):
                time.sleep(0.05)
            else:
                return
        raise SystemExit(f"error: the gateway does not answer at {self.address}; see {self.log}")

    def _failed(self) -> str:
        self._process.wait()
        return f"error: the gateway did not start:\n{self.log.read_text('utf-8', 'replace').strip()}"


def environment() -> dict[str, str]:
    """This one, where no proxy stands between us and ourselves."""
    own = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1", "localhost")))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = own
    return dict(os.environ)
