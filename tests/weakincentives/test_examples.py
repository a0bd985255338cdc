"""Claims about the examples: they run as they are, and show what they say they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, **environment: str) -> str:
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
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
