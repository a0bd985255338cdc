"""Claims of `make run`: the story holds what it promises, serves until it is told to end, and says so when something is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from weakincentives.runtime import ToolCall
from weakincentives.testing.adapter_kit import ScriptTurn

from .weakincentives.adapters.loopback.openai_server import OpenAIServer

# Each worker that has one of them would tell the story anew; those of the heavy run stay together.
pytestmark = pytest.mark.heavy

PROJECT = Path(__file__).parents[1]
STORY = PROJECT / "examples" / "story"
# Colours, models and proxies of whoever runs the tests.
NOT_OURS = ("NO_COLOR", "FORCE_COLOR", "OPENAI_", "RUN_ONCE", "PORT", "WARDWRIGHT_")
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/signin#(\S+)")


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return {**plain, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1", "PORT": "0", **more}


def tell(folder: Path = STORY, **more: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=environment(**more),
        check=False,
    )
    return done.returncode, done.stdout


@contextmanager
def serving(**more: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The story, told up to the address; it goes on serving."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A job in the background ignores Ctrl-C, and so would whatever it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(STORY)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=environment(RUN_ONCE="0", **more),
    ) as process:
        assert process.stdout is not None
        told: list[str] = []
        try:
            for line in process.stdout:
                told.append(line)
                if "Ctrl-C" in line:
                    break
            yield process, told
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz"):
            return True
    except OSError:
        return False


def ask(address: str, token: str, path: str, body: object = None) -> dict[str, object]:
    request = urllib.request.Request(
        address + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def told() -> str:
    """The whole story; without a terminal it ends by itself."""
    code, text = tell()
    assert code == 0, text
    return text


def test_a_call_that_fails_half_way_is_rolled_back(told: str) -> None:
    """It had written files when it failed; they are compared with those before."""
    assert (
        "  ✗ rename_symbol(old='total', new='return')\n"
        "      Cannot rename total to return: shop/cart.py would not be Python any more (line 4). "
        "Choose a name that is no keyword, then retry.\n"
        "      rolled back: every file is as it was before the call\n"
    ) in told


def test_the_gateway_denies_and_the_model_does_something_else(told: str) -> None:
    """The call never reaches the agent; the model reads the message and goes on."""
    assert (
        "  ⊘ write_file\n"
        "      Settings of production are changed by people. Leave them as they are, and go on with your task.\n"
        "      denied by the gateway, rule production-is-for-people: it did not run\n"
        "  ✓ rename_symbol(old='total', new='amount_due')\n"
    ) in told


def test_a_loop_is_stopped_at_the_third_equal_call(told: str) -> None:
    """Two are answered, the third is not made."""
    check = "  ✓ run_checks()\n      1 check failed: CHANGELOG.md says nothing below `## Unreleased`.\n"
    assert f"{check}{check}  ⊘ run_checks\n" in told
    assert "denied by the gateway, rule no-loops: it did not run\n  ✓ read_file" in told


def test_a_held_call_runs_once_an_operator_has_approved_it(told: str) -> None:
    """What was shown is what runs."""
    assert (
        "      held by the gateway, rule somebody-agrees: it waits for somebody\n"
        '      admin has seen deploy {"version":"1.4","to":"staging"}, and approves\n'
        "  ✓ deploy(version='1.4', to='staging')\n"
    ) in told


def test_the_story_ends_with_the_address_and_one_call_that_waits(told: str) -> None:
    """Who opens it is signed in and has something to decide."""
    assert "So far: 1 rolled back, 1 denied, 1 loop stopped, 1 approved. The last one waits for you:\n" in told
    assert ADDRESS.search(told)


def test_nothing_serves_when_the_story_has_ended(told: str) -> None:
    """The gateway goes with it."""
    found = ADDRESS.search(told)
    assert found is not None
    assert not answers(found[1])


@dataclass(frozen=True)
class Served:
    """What was seen of two runs at once that wanted one port; somebody approved in the first and rejected in the second."""

    port: str
    addresses: list[str]
    answered: list[bool]
    second: str
    approved: str
    rejected: str
    codes: list[int]
    left: list[bool]


def decide(process: subprocess.Popen[str], told: list[str], verdict: str) -> str:
    """Decides about the call that waits, as the page would; what is told then."""
    found = ADDRESS.search("".join(told))
    assert found is not None
    waiting = ask(found[1], found[2], "/v1/wardwright/approvals")["approvals"]
    assert isinstance(waiting, list)
    (held,) = waiting
    ask(found[1], found[2], f"/v1/wardwright/approvals/{held['handle']}/{verdict}", {"seen": held["digest"]})
    assert process.stdout is not None
    rest = ""
    while "“" not in rest:
        rest += process.stdout.readline()
    return rest


@pytest.fixture(scope="module")
def served() -> Served:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with serving(PORT=port) as (one, first), serving(PORT=port) as (other, second):
        addresses = ADDRESS.findall("".join(first + second))
        answered = [answers(address) for address, _ in addresses]
        approved, rejected = decide(one, first, "approve"), decide(other, second, "reject")
        one.send_signal(signal.SIGINT)
        other.send_signal(signal.SIGTERM)
        codes = [one.wait(60), other.wait(60)]
    left = [answers(address) for address, _ in addresses]
    return Served(
        port, [address for address, _ in addresses], answered, "".join(second), approved, rejected, codes, left
    )


def test_a_port_that_is_taken_is_told_and_another_one_used(served: Served) -> None:
    """Whoever has it is left alone, another run too: each has a port and a folder of its own."""
    assert f"Port {served.port} is taken, so this is port " in served.second
    assert len(set(served.addresses)) == 2
    assert served.answered == [True, True]


def test_the_second_agent_goes_on_when_its_call_is_approved(served: Served) -> None:
    """What somebody decides while it serves is told as it happens."""
    assert "✓ deploy(version='1.4', to='production')" in served.approved
    assert "“1.4 is in production.”" in served.approved


def test_nothing_runs_when_its_call_is_rejected(served: Served) -> None:
    """The agent hears no, and ends."""
    assert "✓ deploy" not in served.rejected


def test_it_serves_until_it_is_told_to_end_and_leaves_nothing_behind(served: Served) -> None:
    """Ctrl-C and SIGTERM end it with exit code 0, and the gateway with it."""
    assert served.codes == [0, 0]
    assert served.left == [False, False]


def test_a_port_that_is_no_port_is_refused_in_a_sentence() -> None:
    """Not with a traceback."""
    assert tell(PORT="http") == (1, "error: PORT must be a number from 0 to 65535, got 'http'\n")


def test_a_promise_that_is_not_kept_is_named_and_fails(tmp_path: Path) -> None:
    """A plan without its rule: the call passes, and the story says what did not happen."""
    folder = tmp_path / "examples" / "story"
    shutil.copytree(STORY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    plan = folder / "gateway.yaml"
    plan.write_text(plan.read_text("utf-8").replace('glob: "*production*"', 'glob: "*elsewhere*"'), "utf-8")

    code, text = tell(folder)

    assert code == 1
    assert "This did not happen: the gateway denies a call\n" in text


def test_a_real_model_takes_the_place_of_the_script() -> None:
    """By its base URL alone, behind the same rules; nothing is promised of what it does."""
    server = OpenAIServer()
    try:
        rename = ToolCall("rename_symbol", {"old": "total", "new": "sum_with_tax"})
        wrong = ToolCall("write_file", {"path": "config/production.toml", "content": "x", "overwrite": True})
        turns = [
            ScriptTurn(calls=[wrong]),
            ScriptTurn(calls=[rename]),
            ScriptTurn("Done."),
            ScriptTurn("I would rather not."),
        ]
        stage = server.stage(turns)

        code, text = tell(OPENAI_BASE_URL=stage.base_url, OPENAI_MODEL="small-1")
    finally:
        server.close()

    assert code == 0, text
    assert "(small-1)" in text
    assert "denied by the gateway, rule production-is-for-people" in text
    assert "Renamed total to sum_with_tax" in text
    assert [request["model"] for request in stage.requests] == ["small-1"] * 4
