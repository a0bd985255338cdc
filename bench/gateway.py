"""The gateway beside a bare proxy (on uvicorn, and on the gateway's own server), nginx as the floor, and the LiteLLM proxy; one
provider's double for all.

Every contestant is one process (nginx: one worker) on loopback. Callers are agents in the middle of their work: each request
repeats its conversation and adds the result of the last call; after twelve turns another session begins. Ours judges both gates by 100
rules and commits receipts to SQLite; it is measured compiled (`make wheel`, what the bars are about) and as Python alone. CPU is what the system counted for the contestant's processes; latency is that of one caller
alone, throughput that of sixteen. Contestants take turns within a round, figures are the best of the rounds, ratios are those of
figures of the same run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from dataclasses import dataclass, field
from pathlib import Path

from bench._table import Bars

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "build" / "envs"
SMALL, LARGE = 5_000, 69_000
ROUNDS = 5
SECONDS = 2.0
TURNS = 15
TICK = os.sysconf("SC_CLK_TCK")


def main(quick: bool = False) -> bool:
    bars = Bars()
    rounds, seconds = (2, 1.0) if quick else (ROUNDS, SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        double, contestants = _start(Path(folder))
        try:
            if "ours" not in contestants or "bare" not in contestants:
                print("  NOT MEASURED: a contestant did not start")
                return False
            for _ in range(rounds):
                for one in contestants.values():
                    for size in (SMALL, LARGE):
                        for stream in (False, True):
                            one.measure(size, stream, 16, seconds if one.name != "litellm" else seconds * 2)
                            one.measure(size, stream, 1, seconds / 2)
            # The bars of CPU divide the best figure of one by that of another, so these get more turns to be undisturbed in.
            for _ in range(TURNS):
                for name in ("bare", "ours", "ours, not compiled"):
                    for size in (SMALL, LARGE):
                        if name in contestants:
                            contestants[name].measure(size, False, 16, 1.0)
        finally:
            for one in contestants.values():
                one.stop()
            double.kill()
            double.wait()
    for one in contestants.values():
        one.show(bars)
    ours, bare = contestants["ours"], contestants["bare"]
    for size, bar in ((SMALL, 2.0), (LARGE, 2.5)):
        ratio = ours.best("cpu", size, False, 16) / bare.best("cpu", size, False, 16)
        bars.show(f"CPU per request, ours / bare, {size // 1000} KB", ratio, "×", bar)
    for size in (SMALL, LARGE):
        ratio = ours.best("cpu", size, True, 16) / bare.best("cpu", size, True, 16)
        bars.show(f"CPU per streamed request, ours / bare, {size // 1000} KB", ratio, "×")
    for name, other in (("ours", "bare on our server"), ("ours, not compiled", "bare")):
        if name in contestants and other in contestants:
            for size in (SMALL, LARGE):
                ratio = contestants[name].best("cpu", size, False, 16) / contestants[other].best("cpu", size, False, 16)
                bars.show(f"CPU per request, {name} / {other}, {size // 1000} KB", ratio, "×")
    added = (ours.best("p50", SMALL, False, 1) - bare.best("p50", SMALL, False, 1)) * 1000
    bars.show("p50 added to the bare proxy's, 5 KB, one caller", added, "ms", 1.0)
    tail = (ours.best("p99", SMALL, False, 1) - bare.best("p99", SMALL, False, 1)) * 1000
    bars.show("p99 added to the bare proxy's, 5 KB, one caller", tail, "ms")
    first = (ours.best("first", SMALL, True, 1) - bare.best("first", SMALL, True, 1)) * 1000
    bars.show("time to the first token, added to the bare proxy's, one caller", first, "ms", 0.5)
    if "litellm" in contestants:
        ratio = ours.best("rps", SMALL, False, 16) / contestants["litellm"].best("rps", SMALL, False, 16)
        bars.at_least("requests per second, ours / LiteLLM proxy, 5 KB", ratio, "×", 30)
    else:
        print("  NOT MEASURED: the LiteLLM proxy could not be installed or started")
        bars.ok = False
    return bars.ok


@dataclass
class Contestant:
    """One proxy in front of the double."""

    name: str
    port: int
    processes: list[subprocess.Popen[bytes]]
    figures: dict[tuple[str, int, bool, int], list[float]] = field(default_factory=dict)
    failed: int = 0
    asked: int = 0

    def measure(self, size: int, stream: bool, at_once: int, seconds: float) -> None:
        before = self._cpu()
        self.asked += 1
        sent = [str(self.port), str(size), str(int(stream)), str(at_once), str(seconds), f"{time.time_ns()}"]
        done = subprocess.run(
            [sys.executable, "-m", "bench._gateway.load", *sent], cwd=HERE.parent, capture_output=True, check=False
        )
        if done.returncode:
            self.failed += 1  # it hung up on a caller; another round may go better
            return
        told = json.loads(done.stdout)
        self.failed += told["failed"]
        figures = {
            "rps": told["requests"] / told["seconds"],
            "cpu": (self._cpu() - before) / told["requests"],
            "p50": told["p50"],
            "p99": told["p99"],
            "first": told["first"],
        }
        for name, figure in figures.items():
            self.figures.setdefault((name, size, stream, at_once), []).append(figure or float("inf"))

    def best(self, name: str, size: int, stream: bool, at_once: int) -> float:
        figures = self.figures[name, size, stream, at_once]
        return max(figures) if name == "rps" else min(figures)

    def show(self, bars: Bars) -> None:
        for size in (SMALL, LARGE):
            for stream in (False, True):
                what = f"{self.name}, {size // 1000} KB{', streamed' if stream else ''}"
                bars.show(f"{what}: CPU", self.best("cpu", size, stream, 16) * 1e6, "µs per request")
                bars.show(f"{what}: throughput, sixteen callers", self.best("rps", size, stream, 16), "per second")
                bars.show(f"{what}: p50 of one caller", self.best("p50", size, stream, 1) * 1000, "ms")
                if stream:
                    bars.show(f"{what}: first token", self.best("first", size, stream, 1) * 1000, "ms")
        if self.failed:
            print(f"  {self.name}: {self.failed} requests FAILED")
            bars.ok = False

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _cpu(self) -> float:
        """Seconds that its processes, and their children, have used."""
        return sum(_used(pid) for process in self.processes for pid in _family(process.pid))


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in _family(int(child)))]


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, Contestant]]:
    upstream = _free_port()
    double = _python("-m", "bench._gateway.upstream", str(upstream))
    _wait(upstream)
    found: dict[str, Contestant] = {}

    def add(name: str, port: int, process: subprocess.Popen[bytes], patience: float = 30) -> None:
        if _wait(port, patience) and _answers(port):
            found[name] = Contestant(name, port, [process])
        else:
            process.kill()
            print(f"  {name}: did not start")

    port = _free_port()
    if (nginx := shutil.which("nginx")) is not None:
        config = folder / "nginx.conf"
        config.write_text(_nginx(folder, port, upstream))
        add("nginx", port, subprocess.Popen([nginx, "-c", str(config)], stderr=subprocess.DEVNULL))
    else:
        print("  NOT MEASURED: nginx is not installed (apt-get install nginx-light)")
    port = _free_port()
    add("bare", port, _python("-m", "bench._gateway.passthrough", str(port), str(upstream)))
    port = _free_port()
    add("bare on our server", port, _python("-m", "bench._gateway.passthrough", str(port), str(upstream), "own"))
    config = folder / "gateway.yaml"
    config.write_text(_plan(upstream))
    for name, path in (("ours", _compiled()), ("ours, not compiled", None)):
        port = _free_port()
        command = ["serve", "--config", str(config), "--db", str(folder / f"{port}.db"), "--port", str(port)]
        add(name, port, _python("-m", "wardwright", *command, path=path))
    port = _free_port()
    litellm = _litellm()
    if litellm is not None:
        config = folder / "litellm.yaml"
        config.write_text(_litellm_config(upstream))
        environ = {**os.environ, "LITELLM_LOG": "ERROR", "NO_DOCS": "true"}
        # Without a key of its own it does least per request, which is best for it.
        environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
        process = subprocess.Popen(
            [str(litellm), "--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        add("litellm", port, process, 120)
    return double, found


def _compiled() -> Path:
    """Where the compiled build is. Without one there is nothing to hold the bars against, so nothing is measured."""
    site = HERE.parent / "build" / "compiled" / "site"
    subprocess.run(["make", f"{site.relative_to(HERE.parent)}/.built"], cwd=HERE.parent, check=True)
    return site


def _python(*arguments: str, path: Path | None = None) -> subprocess.Popen[bytes]:
    """`path`: where to look for modules first."""
    environ = os.environ if path is None else {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=HERE.parent, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(port: int, patience: float = 30) -> bool:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.1)
    return False


def _answers(port: int) -> bool:
    """Some listen before they can answer."""
    body = json.dumps({"model": "bench", "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    for _ in range(60):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(1)
    return False


def _nginx(folder: Path, port: int, upstream: int) -> str:
    return f"""
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; client_body_buffer_size 256k;
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream double {{ server 127.0.0.1:{upstream}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; location / {{
    proxy_pass http://double; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""


def _plan(upstream: int) -> str:
    """A hundred rules of several kinds; some look at every call, none refuses what the callers do."""
    rules: list[str] = []
    for n in range(20):
        rules += [
            f'{{id: sel{n}, kind: tool_selector, action: deny_call, tool: {{namespace: shell, name: "cmd_{n}*", phase: planning}}}}',
            f"{{id: loop{n}, kind: tool_loop_threshold, action: deny_call, equal: tool+arguments, threshold: 1000, tool: {{name: {'read' if n == 0 else f'tool_{n}'}}}}}",
            f"{{id: seq{n}, kind: tool_sequence, action: block, after: {{tool: {{name: open_{n}}}}}, then: {{tool: {{name: run_{n}}}}}, within: {{turns: 3}}}}",
            f"{{id: text{n}, kind: request_guard, action: block, match: forbidden phrase {n}}}",
            f'{{id: args{n}, kind: tool_selector, action: require_approval, tool: {{name: {"read" if n == 0 else f"write_{n}"}, arguments: {{/path: {{glob: "/etc/*"}}}}}}}}',
        ]
    listed = "\n".join(f"  - {rule}" for rule in rules)
    return f"""model_id: bench
providers: {{up: {{kind: openai, base_url: "http://127.0.0.1:{upstream}/v1", wires: [chat_completions]}}}}
targets: [{{model: double, provider: up, context_window: 128000}}]
catalog: [{{match: "{{name}}_file", namespace: files}}]
governance:
{listed}
"""


def _litellm_config(upstream: int) -> str:
    return f"""
model_list:
  - model_name: bench
    litellm_params: {{model: openai/double, api_base: "http://127.0.0.1:{upstream}/v1", api_key: sk-x}}
litellm_settings: {{telemetry: false}}
"""


def _litellm() -> Path | None:
    home = ENVIRONMENTS / "peer-litellm_proxy"
    program = home / "bin" / "litellm"
    if not program.exists():
        venv.create(home, with_pip=True)
        done = subprocess.run(
            [str(home / "bin" / "python"), "-m", "pip", "install", "-qq", "litellm[proxy]"],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            return None
    return program
