"""`wardwright serve` as a process of its own, with a plan that has something to show on every page."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOKEN = "token-of-the-workbench-bench"
HEADERS = {"content-type": "application/json"}
PLAN = """\
providers:
  rehearsal:
    kind: scripted
    script:
      - {when: {tool_result: "format the disk"}, reply: {tool_calls: [{name: shell_exec, arguments: {cmd: mkfs}}]}}
models:
  - model_id: coding
    targets: [{model: fast, provider: rehearsal, tools: true}, {model: local, provider: scripted, tools: false}]
    catalog:
      - {match: "shell_exec", namespace: shell, name: exec, risk_class: irreversible}
      - {match: "deploy", namespace: release, name: deploy, risk_class: external_side_effect}
      - {match: "browser_{name}", namespace: browser, risk_class: read_only, results: untrusted}
      - {match: "notes_{name}", namespace: notes, risk_class: write}
    state_machine: {initial_state: active, states: [{id: active}, {id: reviewing}]}
    server_tools: [{name: wardwright_policy_cache_status}]
    governance:
      - id: enter-review
        kind: tool_sequence
        after: {tool: {namespace: browser, phase: result_interpretation}}
        transition_to: reviewing
        until: {user_turn: true}
      - id: no-shell-while-reviewing
        kind: tool_selector
        state_scope: reviewing
        action: deny_call
        tool: {namespace: shell, phase: planning}
      - {id: no-private-keys, kind: request_guard, match: "BEGIN PRIVATE KEY"}
      - {id: ask-before-deploy, kind: tool_selector, action: require_approval, tool: {name: deploy, phase: planning}}
      - {id: loops, kind: tool_loop_threshold, action: deny_call, equal: tool+arguments, threshold: 3, tool: {name: "*"}}
      - {id: watch-notes, kind: tool_selector, action: deny_call, mode: observe, tool: {namespace: notes, phase: planning}}
auth: {admin: {token_env: BENCH_ADMIN}}
"""


@dataclass(frozen=True)
class Served:
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(folder: Path, database: Path, *options: str) -> Iterator[Served]:
    """Until the block ends."""
    config = folder / "gateway.yaml"
    config.write_text(PLAN)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        served = Served(found.getsockname()[1])
    command = [sys.executable, "-m", "wardwright", "serve", "--config", str(config), "--db", str(database)]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(served.port), "--log-level", "warning", *options],
            env={**os.environ, "BENCH_ADMIN": TOKEN},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while not _ready(served):
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
                raise RuntimeError((folder / "serve.log").read_text())
            yield served
        finally:
            process.terminate()
            process.wait(60)


def _ready(served: Served) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{served.address}/readyz") as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False
