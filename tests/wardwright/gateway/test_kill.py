"""SIGKILL under load, again and again: whoever was answered has a receipt, the chain holds, and counters go on where they were."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wardwright.store import ReceiptQuery, SqliteStore, verify

pytestmark = [pytest.mark.heavy, pytest.mark.long]

KILLS = 50
CALLERS = 6
LIMIT = 10
CONFIG = f"""
model_id: m
targets: [{{model: scripted, provider: scripted}}]
governance:
  - {{id: enough, kind: history_threshold, threshold: {LIMIT}, action: deny_call, tool: {{name: ping, source: assistant_tool_call}}}}
"""


class Caller(threading.Thread):
    """Asks for one call after the other in sessions of its own; a connection that breaks is made again."""

    def __init__(self, number: int, port: int, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number, self.port, self.end = number, port, end
        self.answered: list[str] = []
        self.released: dict[str, int] = {}
        self.denied = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        turn = 0
        while not self.end.is_set():
            # By answers, not by tries: a session lives through several kills, and its last turns are denied.
            session = f"s{self.number}-{len(self.answered) // (LIMIT + 4)}"
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": f'call ping {{"n": {self.number * 1_000_000 + turn}}}'}],
                "tools": [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}],
                "stream": turn % 2 == 1,
            }
            turn += 1
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                headers = {"content-type": "application/json", "x-wardwright-session-id": session}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                if connection is not None:
                    connection.close()
                connection = None
                self.end.wait(0.05)
                continue
            if answer.status == 200 and (not body["stream"] or data.endswith(b"data: [DONE]\n\n")):
                self.answered.append(answer.headers["x-wardwright-receipt-id"])
                calls = data.count(b'"ping"')
                self.released[session] = self.released.get(session, 0) + calls
                self.denied += not calls  # the model was told, and said something else
            elif answer.status == 200 and b'"error"' not in data and data:
                pass  # a stream that the kill cut: it was not answered
            else:
                self.wrong.append(f"{answer.status} {data[:200]!r}")
        if connection is not None:
            connection.close()


def test_nothing_that_was_answered_is_lost_however_often_the_gateway_is_killed(tmp_path: Path) -> None:
    """G31: fifty kills: every answered request has its receipt, no session got more calls than its limit, and the chain verifies."""
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    end = threading.Event()
    callers = [Caller(number, port, end) for number in range(CALLERS)]
    chance = random.Random(7)
    started = 0
    for kill in range(KILLS + 1):
        process = _serve(tmp_path, port)
        try:
            _until_ready(port, process)
            if not started:
                for caller in callers:
                    caller.start()
                started = 1
            before = sum(len(caller.answered) for caller in callers)
            wanted = before + chance.randint(1, 40)
            while sum(len(caller.answered) for caller in callers) < wanted:
                assert process.poll() is None
                end.wait(0.002)
        finally:
            if kill == KILLS:
                end.set()
                for caller in callers:
                    caller.join(30)
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            else:
                process.kill()
                process.wait()
    assert [wrong for caller in callers for wrong in caller.wrong] == []
    answered = [one for caller in callers for one in caller.answered]
    store = SqliteStore(tmp_path / "gateway.db")
    try:
        stored = set()
        before = None
        while True:
            page = store.receipts(ReceiptQuery(limit=500, before=before))
            stored |= {one.row.id for one in page.receipts}
            if (before := page.next_before) is None:
                break
        missing = set(answered) - stored
        assert missing == set(), f"{len(missing)} of {len(answered)} answered requests have no receipt"
        assert len(answered) == len(set(answered)) > KILLS
        assert verify(store).good
    finally:
        store.close()
    counts = [count for caller in callers for count in caller.released.values()]
    assert max(counts) == LIMIT - 1
    assert sum(caller.denied for caller in callers) > 0


def _serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "wardwright", "serve", "--config", "gateway.yaml", "--db", "gateway.db"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error"],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.DEVNULL,
    )


def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    waiting = threading.Event()
    for _ in range(3_000):
        assert process.poll() is None, "the gateway ended by itself"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        waiting.wait(0.01)
    raise AssertionError("the gateway did not start")
