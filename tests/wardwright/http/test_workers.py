"""`wardwright serve` as processes: several on one socket that are killed, replaced and ended; one that drains."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

CONFIG = "model_id: m\ntargets: [{model: scripted, provider: scripted}]\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(folder: Path, port: int, config: str = CONFIG, workers: int = 2) -> Iterator[subprocess.Popen[str]]:
    (folder / "ward.yaml").write_text(config)
    command = [sys.executable, "-m", "wardwright", "serve", "--config", "ward.yaml"]
    command += ["--workers", str(workers), "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def worker(port: int) -> int | None:
    """The process that answers; None when none does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            found = re.search(r'worker="(\d+)"', answer.read().decode())
    except OSError:
        return None
    return int(found.group(1)) if found else None


def until(port: int, *, without: set[int], count: int) -> set[int]:
    """The processes that answer, once that many do and none of the former ones."""
    patience = threading.Event()
    for _ in range(600):
        seen = {worker(port) for _ in range(24)}
        if None not in seen and len(seen) >= count and not seen & without:
            return {one for one in seen if one is not None}
        patience.wait(0.05)
    raise AssertionError("they do not answer")


def test_processes_are_replaced_when_they_die_or_when_it_is_asked_for(tmp_path: Path) -> None:
    """Killed, one is started anew; SIGHUP replaces both; SIGTERM ends all, and that is no failure."""
    port = free_port()
    with serving(tmp_path, port) as process:
        first = until(port, without=set(), count=1)
        killed = min(first)
        subprocess.run(["kill", "-9", str(killed)], check=True)
        second = until(port, without={killed}, count=2)
        process.send_signal(signal.SIGHUP)
        third = until(port, without=second, count=2)
        assert len(third) == 2
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0
    events = [json.loads(line) for line in told.splitlines()]
    assert [(one["event"], one["worker"], one["code"]) for one in events] == [("process died", killed, -9)]
    assert worker(port) is None


def test_processes_end_when_the_first_one_is_killed(tmp_path: Path) -> None:
    """Nobody would end them later."""
    port = free_port()
    with serving(tmp_path, port) as process:
        until(port, without=set(), count=1)
        process.kill()
        assert process.stderr is not None
        process.stderr.read()  # ends when the last of them has


def test_a_process_that_cannot_start_ends_all(tmp_path: Path) -> None:
    """The log says why."""
    secret = "providers: {up: {kind: openai, base_url: 'http://127.0.0.1:9/v1', api_key_env: NOT_THERE_AT_ALL}}\n"
    config = "model_id: m\ntargets: [{model: up/x, provider: up}]\n" + secret
    with serving(tmp_path, free_port(), config) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "NOT_THERE_AT_ALL" in told
    assert told.splitlines()[-1] == "wardwright: A process did not start; the log says why."


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_answer_under_way_ends_unless_a_second_signal_comes(tmp_path: Path, workers: int, patient: bool) -> None:
    """The first lets nobody else in; neither is a failure."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as provider:
        config = "model_id: m\ntargets: [{model: x, provider: up}]\nproviders: {up: {kind: openai, base_url: "
        config += f"'http://127.0.0.1:{provider.getsockname()[1]}/v1'}}}}\n"
        with serving(tmp_path, port, config, workers) as process:
            until(port, without=set(), count=1)
            caller = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            caller.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            asked, _ = provider.accept()
            with asked:
                asked.recv(65536)
                process.send_signal(signal.SIGTERM)
                while worker(port) is not None:
                    pass
                assert process.poll() is None
                if patient:
                    said = {"role": "assistant", "content": "done"}
                    reply = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "x"})[:-1]
                    reply += f', "choices": [{{"index": 0, "message": {json.dumps(said)}, "finish_reason": "stop"}}]}}'
                    asked.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(reply)}\r\n\r\n{reply}".encode())
                    answer = caller.getresponse()
                    assert (answer.status, b"done" in answer.read()) == (200, True)
                else:
                    process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)
            caller.close()
    assert process.returncode == 0
