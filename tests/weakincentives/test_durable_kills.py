"""Claims about durable runs whose workers are killed: every request is answered, and every step was done once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from durable_agent import STEPS, Entry, Ledger, durable
from weakincentives.adapters.durable import DurableRunError
from weakincentives.adapters.lease import PostgresLease
from weakincentives.runtime import Session, ToolInvoked

from ..wardwright.postgres_server import PostgresServer

pytestmark = [pytest.mark.heavy, pytest.mark.long]

REQUESTS = 50
KILLS = 10
ANSWER = " ".join(f"did {step}" for step in range(STEPS))
AGENT = Path(__file__).parents[1] / "durable_agent.py"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = PostgresServer()
    server.start()
    yield server.address
    server.stop()
    server.remove()


class Crew:
    """Worker processes that tell what they do on one pipe, and die when told to."""

    def __init__(self, database: str, ledger: Path) -> None:
        self._database = database
        self._ledger = ledger
        self._said, self._say = os.pipe()
        self._lines = os.fdopen(self._said)
        self._workers: list[subprocess.Popen[bytes]] = []

    def hire(self, folder: Path, *dying: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "error", str(AGENT), str(folder), self._database, str(self._ledger), *dying]
        worker = subprocess.Popen(command, stdout=self._say, stdin=subprocess.DEVNULL)
        self._workers.append(worker)
        return worker

    def hear(self, lines: int = 1) -> list[str]:
        return [self._lines.readline() for _ in range(lines)]

    def kill(self, number: int) -> None:
        worker = self._workers.pop(number)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        while self._workers:
            self.kill(0)
        os.close(self._say)
        self._lines.close()


def entries(path: str) -> tuple[list[int], list[int]]:
    """The steps that a session knows by its state, and those by its history."""
    with Session.open(path) as session:
        done = [event.params.step for event in session[ToolInvoked].all() if event.success]
        return [entry.step for entry in session[Entry].all()], done


def test_every_request_is_answered_once_however_often_workers_die(tmp_path: Path) -> None:
    """Two workers of one machine, one killed at random ten times: fifty answers, each step kept once, in order."""
    chance = random.Random(20)
    ledger = tmp_path / "ledger.db"
    asking = durable(str(tmp_path / "runs"), "", str(ledger))
    requests = [asking.submit(f"request {number}") for number in range(REQUESTS)]
    with Crew("", ledger) as crew:
        for _ in range(2):
            crew.hire(tmp_path / "runs")
        for _ in range(KILLS):
            crew.hear(chance.randint(3, 30))
            crew.kill(chance.randrange(2))
            crew.hire(tmp_path / "runs")
        answers = [asking.result(request, timeout=120).text for request in requests]
    asking.close()

    assert answers == [ANSWER] * REQUESTS
    everything = list(range(STEPS))
    assert [entries(asking.session_path(request)) for request in requests] == [(everything, everything)] * REQUESTS
    told = Ledger(str(ledger))
    # Every key stands for one step of one run, and no handler began for a step that its session knew.
    assert told.read("SELECT count(*), count(DISTINCT run || '/' || step) FROM done") == [(150, 150)]
    assert told.read("SELECT count(DISTINCT key) FROM begun") == [(150,)]
    assert told.read("SELECT count(*) FROM begun WHERE known") == [(0,)]


def test_requests_move_between_machines_that_share_only_a_database(tmp_path: Path, address: str) -> None:
    """Every worker has a disk of its own, and ten die: the sessions travel, and every step is kept once."""
    chance = random.Random(5)
    ledger = tmp_path / "ledger.db"
    asking = durable(str(tmp_path / "asking"), address, str(ledger))
    requests = [asking.submit(f"request {number}") for number in range(REQUESTS)]
    folders = [tmp_path / f"machine-{number}" for number in range(KILLS + 2)]
    with Crew(address, ledger) as crew:
        left = iter(folders)
        for _ in range(2):
            crew.hire(next(left))
        for _ in range(KILLS):
            crew.hear(chance.randint(3, 30))
            crew.kill(chance.randrange(2))
            crew.hire(next(left))
        answers = [asking.result(request, timeout=120).text for request in requests]
    asking.close()

    assert answers == [ANSWER] * REQUESTS
    everything = list(range(STEPS))
    for request in requests:
        name = Path(asking.session_path(request)).name
        known = [entries(str(path)) for path in tmp_path.glob(f"machine-*/sessions/{name}")]
        assert (everything, everything) in known
    told = Ledger(str(ledger))
    assert told.read("SELECT count(*), count(DISTINCT run || '/' || step) FROM done") == [(150, 150)]
    assert told.read("SELECT count(*) FROM begun WHERE known") == [(0,)]


@pytest.mark.parametrize(
    ("at", "begun"),
    [
        ("turn 1", [1, 1, 1]),  # the model was asked, and its answer is lost
        ("began 1", [1, 2, 1]),  # nothing was written
        ("did 1", [1, 2, 1]),  # state was written, and is gone; what was done outside is done again under the same key
        ("kept 1", [1, 1, 1]),  # committed, and only the session knows
    ],
)
def test_only_a_call_that_was_cut_off_is_run_again(tmp_path: Path, at: str, begun: list[int]) -> None:
    """The worker dies at one point of the second step; how often the handler of each step began says what was repeated."""
    ledger = tmp_path / "ledger.db"
    asking = durable(str(tmp_path / "runs"), "", str(ledger))
    request = asking.submit("a request")
    with Crew("", ledger) as crew:
        assert crew.hire(tmp_path / "runs", at).wait(timeout=60) == -signal.SIGKILL
        crew.hire(tmp_path / "runs")
        answer = asking.result(request, timeout=60)
    asking.close()

    assert answer.text == ANSWER
    told = Ledger(str(ledger))
    assert [count for _, count in told.read("SELECT step, count(*) FROM begun GROUP BY step ORDER BY step")] == begun
    assert told.read("SELECT count(DISTINCT key), max(known) FROM begun") == [(STEPS, 0)]
    assert entries(asking.session_path(request))[0] == list(range(STEPS))


def test_a_request_that_kills_its_workers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many attempts as are allowed, so that the workers can go on with the others."""
    monkeypatch.setenv("MAX_ATTEMPTS", "2")
    ledger = tmp_path / "ledger.db"
    asking = durable(str(tmp_path / "runs"), "", str(ledger))
    request = asking.submit("a request", request_id="poison")
    with Crew("", ledger) as crew:
        for _ in range(2):
            assert crew.hire(tmp_path / "runs", "began 0").wait(timeout=60) == -signal.SIGKILL
        crew.hire(tmp_path / "runs")
        with pytest.raises(DurableRunError) as given_up:
            asking.result(request, timeout=60)
    asking.close()

    assert str(given_up.value) == (
        "Run poison failed: DurableRunError: Run poison is given up: its workers died 2 times. "
        "Find out what it does to them, then submit it under another id."
    )


class TestPostgresLease:
    """Claims about advisory locks."""

    def test_a_name_is_held_by_one_connection(self, address: str) -> None:
        """Until it is given back, or the connection ends."""
        one, other = PostgresLease(address), PostgresLease(address)

        assert (one.take("a"), other.take("a")) == (True, False)
        one.give_back("a")
        assert (other.take("a"), one.take("a")) == (True, False)
        other.close()
        assert one.take("a")
        one.close()

    def test_what_a_broken_connection_lost_is_taken_anew(self, address: str) -> None:
        """As soon as whoever took it meanwhile gives it back."""
        one, other = PostgresLease(address), PostgresLease(address)
        one.take("a")
        with psycopg.connect(address, autocommit=True) as server:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        with pytest.raises(psycopg.OperationalError):
            one.refresh()
        assert other.take("a")

        one.refresh()
        other.give_back("a")
        one.refresh()

        assert not other.take("a")
        one.close()
        other.close()
