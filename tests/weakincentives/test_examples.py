"""Claims about the examples: they run as they are, and show what they say they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.runtime import ToolCall
from weakincentives.testing.adapter_kit import ScriptTurn

from .adapters.loopback.openai_server import OpenAIServer

EXAMPLES = Path(__file__).parents[2] / "examples"
# Colours and models of whoever runs the tests.
NOT_OURS = ("NO_COLOR", "FORCE_COLOR", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")


def run(name: str, **environment: str) -> str:
    plain = {key: value for key, value in os.environ.items() if key not in NOT_OURS}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        encoding="utf-8",
        env={**plain, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def story() -> str:
    return run("quickstart.py")


def after(story: str, start: str) -> str:
    """The story from a line on."""
    assert start in story
    return story.partition(start)[2]


def test_the_quickstart_reads_files_side_by_side(story: str) -> None:
    """Both reads of the first turn are there, in whatever order they ended."""
    for path in ("app/main.py", "app/settings.py"):
        assert f"✓ read_file(path='{path}') reads only, runs beside others" in story


def test_the_quickstart_rolls_back_a_call_that_fails_half_way(story: str) -> None:
    """Files and state are as before the call; the next attempt is kept."""
    failed = after(story, "✗ rename_option(old='COLOUR', new='THEME', folder='/')\n")

    assert failed.startswith(
        "      Cannot change vendor/theme.py: it is read-only\n"
        "      Copy it to another path and work on the copy.\n"
        "      failed: rolled back\n"
        "      now: COLOUR = 'blue'\n"
        "  ✓ rename_option(old='COLOUR', new='THEME', folder='app')\n"
        "      Renamed COLOUR to THEME in 2 files\n"
    )


def test_the_quickstart_shows_a_denial_and_the_way_around_it(story: str) -> None:
    """Deploying before testing is refused, afterwards it works."""
    denied = after(story, "⊘ deploy(environment='staging')\n")

    assert "      denied by a policy: did not run\n      now: THEME = 'blue' · renamed: COLOUR to THEME\n" in denied
    assert "12 tests passed\n  ✓ deploy(environment='staging')" in denied


def test_the_quickstart_takes_a_whole_run_back(story: str) -> None:
    """The version file is gone, the announcement compensated."""
    taken_back = after(story, "“I could not deploy, so 2.0 is not out after all.”\n")

    assert taken_back.startswith(
        "  ↶ release 2.0: 2 calls taken back\n"
        "  ↶ announce was compensated\n"
        "      now: THEME = 'blue' · new files: deployed/staging · renamed: COLOUR to THEME"
        " · sent: 2.0 is out!, Please ignore our last message.\n"
    )


def test_the_quickstart_recovers(story: str) -> None:
    """The last run is kept, and every call was recorded once."""
    kept = after(story, "“2.0 is on staging.”\n")

    assert "new files: VERSION, deployed/staging" in kept
    assert kept.endswith("\n13 calls, each recorded once: 10 ok, 2 failed, 1 denied.\n")


def test_the_quickstart_is_coloured_unless_told_not_to() -> None:
    """A terminal gets colours, NO_COLOR is respected."""
    colour = re.compile(r"\x1b\[(?:[0-9;]*;)?3[0-9]m")

    assert colour.search(run("quickstart.py", FORCE_COLOR="1"))
    assert not colour.search(run("quickstart.py", FORCE_COLOR="1", NO_COLOR="1"))


@pytest.fixture(scope="module")
def coding() -> str:
    return run("coding_agent.py")


def test_the_coding_agent_is_denied_an_edit_of_what_it_has_not_read(coding: str) -> None:
    """The policy that comes with the file tools speaks first."""
    assert (
        "      Cannot write to CHANGELOG.md without reading it first\n      denied by a policy: it did not run\n"
        in coding
    )


def test_the_coding_agent_fails_and_its_files_are_as_before(coding: str) -> None:
    """Three files were written when the call failed."""
    failed = after(coding, "✗ rename_symbol(old='total', new='return')\n")

    assert failed.startswith(
        "      Cannot rename total to return: shop/cart.py would not be Python any more (line 4). "
        "Choose a name that is no keyword, then retry.\n"
        "      failed: every change it made was taken back\n"
        "      now: def total(prices):\n"
    )


def test_the_coding_agent_is_sent_back_to_work_and_recovers(coding: str) -> None:
    """Saying that all is done does not make it so."""
    sent_back = after(coding, "↩ The model wants to end, and is sent back to work\n")

    assert sent_back.startswith(
        "      These files still use the name total: shop/cart.py, shop/receipt.py, shop/tax.py."
    )
    assert "kept: shop/cart.py, shop/receipt.py, shop/tax.py\n" in sent_back
    assert coding.endswith("\n7 calls, each recorded once: 5 ok, 1 denied, 1 failed.\n")


@pytest.fixture(scope="module")
def deploying() -> str:
    return run("deploy_pipeline.py")


def test_the_pipeline_is_not_left_out_of_order(deploying: str) -> None:
    """What was not tested is not deployed, and the model reads what to call first."""
    denied = after(deploying, "⊘ deploy_staging(version='1.4')\n")

    assert denied.startswith(
        "      Cannot call 'deploy_staging' - missing required tools: test\n"
        "      Call these tools first, then retry deploy_staging.\n"
    )
    assert "✓ deploy_staging(version='1.4')\n      app-1.4 runs in staging\n" in denied


def test_the_pipeline_waits_for_a_person(deploying: str) -> None:
    """Production is suspended until somebody approves that very call; nothing else was deployed."""
    waiting = after(deploying, "… deploy_production(version='1.4')\n")

    assert "waits for an approval: it did not run" in waiting
    assert "A person approves: deploy_production\n\n  ✓ deploy_production(version='1.4')\n" in waiting
    assert "  deployed: 1.4 in staging, 1.4 in production\n" in waiting


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.close()


def test_the_coding_agent_runs_unchanged_with_a_real_client(server: OpenAIServer) -> None:
    """A base URL is enough; the model at the other end takes another way to the same end."""
    rename = ToolCall("rename_symbol", {"old": "total", "new": "sum_with_tax"})
    stage = server.stage([ScriptTurn(calls=[rename]), ScriptTurn("All renamed.")])

    told = run("coding_agent.py", OPENAI_BASE_URL=stage.base_url, OPENAI_MODEL="small-1")

    assert "Renamed total to sum_with_tax in shop/cart.py, shop/receipt.py, shop/tax.py" in told
    assert told.endswith("“All renamed.”\n\n1 call, each recorded once: 1 ok.\n")
    assert [request["model"] for request in stage.requests] == ["small-1"] * 2


def test_the_pipeline_runs_unchanged_with_a_real_client(server: OpenAIServer) -> None:
    """Its order holds for every model."""
    skips = ScriptTurn(calls=[ToolCall("deploy_production", {"version": "1.4"})])
    stage = server.stage([skips, ScriptTurn("I may not.")])

    told = run("deploy_pipeline.py", OPENAI_BASE_URL=stage.base_url, OPENAI_API_KEY="any")

    assert "Cannot call 'deploy_production' - missing required tools: build, deploy_staging, test" in told
    assert "“I may not.”" in told
