"""`wardwright serve` as processes: several on one socket that are killed, replaced and ended; one that drains. And their supervisor,
with processes that do what they are told."""

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
from contextlib import ExitStack, contextmanager
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
    died = [(one["worker"], one["code"]) for one in events if one["event"] == "process died"]
    stopped = [one["worker"] for one in events if one["event"] == "stopped"]
    assert (died, sorted(stopped)) == ([(killed, -9)], sorted(second | third))
    assert {one["event"] for one in events} == {"process died", "draining", "stopped"}
    assert worker(port) is None


def test_processes_end_when_the_first_one_is_killed(tmp_path: Path) -> None:
    """Nobody would end them later."""
    port = free_port()
    with serving(tmp_path, port) as process:
        until(port, without=set(), count=1)
        process.kill()
        assert process.stderr is not None
        process.stderr.read()  # ends when the last of them has


def test_what_would_keep_every_process_from_starting_is_told_before_one_does(tmp_path: Path) -> None:
    """In one line, by the first."""
    secret = "providers: {up: {kind: openai, base_url: 'http://127.0.0.1:9/v1', api_key_env: NOT_THERE_AT_ALL}}\n"
    config = "model_id: m\ntargets: [{model: up/x, provider: up}]\n" + secret
    with serving(tmp_path, free_port(), config) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    [line] = told.splitlines()
    assert "NOT_THERE_AT_ALL" in line


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


class Herd:
    """A supervisor and its processes, as the test sees them."""

    def __init__(self, supervisor: subprocess.Popen[str], listening: socket.socket, opened: ExitStack) -> None:
        self.supervisor, self._listening, self._opened = supervisor, listening, opened

    def next(self) -> One:
        """The next one that starts."""
        one = self._opened.enter_context(self._listening.accept()[0])
        one.settimeout(60)
        return One(one, int(one.makefile().readline()))

    def event(self) -> tuple[str, int]:
        """What the log says next, and of whom."""
        assert self.supervisor.stderr is not None
        found = json.loads(self.supervisor.stderr.readline())
        return found["event"], found["worker"]

    def end(self) -> tuple[int, str]:
        self.supervisor.send_signal(signal.SIGTERM)
        _, told = self.supervisor.communicate(timeout=60)
        self._listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            self._listening.accept()  # nobody else was started
        return self.supervisor.returncode, told


class One:
    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel, self.pid = channel, pid

    def told(self, orders: bytes) -> None:
        self._channel.sendall(orders)

    def ended(self) -> bool:
        """Waits for it."""
        try:
            return self._channel.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def herd(count: int, beat: float = 60.0, drowning: int = 0) -> Iterator[Herd]:
    program = [sys.executable, str(Path(__file__).with_name("herd.py"))]
    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        program += [str(listening.getsockname()[1]), str(count), str(beat), str(drowning)]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as supervisor:
            try:
                yield Herd(supervisor, listening, opened)
            finally:
                supervisor.kill()


def test_a_process_that_hangs_is_replaced() -> None:
    """One that lives is not, however long it serves."""
    with herd(2, beat=0.05) as them:
        hangs, lives = them.next(), them.next()
        lives.told(b"sl")
        hangs.told(b"s")
        assert them.event() == ("process hangs", hangs.pid)
        assert them.event() == ("process died", hangs.pid)
        them.next().told(b"sl")
        assert them.end() == (0, "")


def test_a_process_that_has_said_its_last_word_is_waited_for_only_so_long() -> None:
    """It did not start, and keeps nobody busy meanwhile."""
    with herd(1, beat=0.02) as them:
        one = them.next()
        one.told(b"c")
        assert [them.event(), them.event()] == [("process hangs", one.pid), ("process died", one.pid)]
        assert them.supervisor.wait(60) == 1


def test_a_process_that_dies_while_another_takes_its_place_is_replaced_once() -> None:
    """By that one."""
    with herd(1) as them:
        first = them.next()
        first.told(b"s")
        them.supervisor.send_signal(signal.SIGHUP)
        second = them.next()
        first.told(b"d")
        assert them.event() == ("process died", first.pid)
        second.told(b"s")
        them.supervisor.send_signal(signal.SIGHUP)
        them.next().told(b"s")
        assert second.ended()
        assert them.end() == (0, "")


def test_who_asks_twice_for_other_processes_has_those_that_started_after_he_asked_last() -> None:
    """One that was starting may have read what was there before."""
    with herd(1) as them:
        first = them.next()
        first.told(b"s")
        them.supervisor.send_signal(signal.SIGHUP)
        second = them.next()
        them.supervisor.send_signal(signal.SIGHUP)
        second.told(b"s")
        assert first.ended()
        them.next().told(b"s")
        assert second.ended()
        assert them.end() == (0, "")


def test_no_signal_drowns_in_others() -> None:
    """However many come while it is busy, the one that ends it is among them."""
    with herd(1, drowning=1_000) as them:
        _, told = them.supervisor.communicate(timeout=60)
        assert (them.supervisor.returncode, told) == (0, "")


def test_those_that_serve_go_on_when_another_does_not_start() -> None:
    """Whether one has died or was to be replaced; where one is missing, it is tried again."""
    with herd(2, beat=0.05) as them:
        first, second = them.next(), them.next()
        first.told(b"sl")
        second.told(b"sl")
        them.supervisor.send_signal(signal.SIGHUP)
        third = them.next()
        third.told(b"d")
        assert them.event() == ("process died", third.pid)
        second.told(b"d")
        assert them.event() == ("process died", second.pid)
        fourth = them.next()
        fourth.told(b"d")
        assert them.event() == ("process died", fourth.pid)
        them.next().told(b"sl")
        assert them.end() == (0, "")
        assert first.ended()


def test_a_process_that_cannot_start_ends_all() -> None:
    """When it begins, also those that serve already."""
    with herd(2) as them:
        first, second = them.next(), them.next()
        first.told(b"s")
        second.told(b"d")
        assert them.event() == ("process died", second.pid)
        assert first.ended()
        _, told = them.supervisor.communicate(timeout=60)
        assert them.supervisor.returncode == 1
        assert "A process did not start; the log says why." in told


def test_it_ends_when_nobody_serves_and_nobody_starts() -> None:
    """So that whoever started it sees that."""
    with herd(1) as them:
        first = them.next()
        first.told(b"s")
        first.told(b"d")
        them.next().told(b"d")
        _, told = them.supervisor.communicate(timeout=60)
        assert them.supervisor.returncode == 1
        assert "A process did not start; the log says why." in told
