"""Claims of the README: its code runs as it stands, and what it names is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
# What is shown of the gateway needs one that serves: tests/wardwright/http/test_gateway_pages.py runs it.
OURS = re.sub(r"^## The gateway in ten lines\n.*?(?=^## )", "", README, flags=re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", OURS, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)


def run(block: str) -> list[str]:
    """What the block prints, run as a program of its own: nothing of this test helps it, and warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return run(BLOCKS[0])


def test_the_readme_has_code_to_run() -> None:
    """Every fence of the README is one that these tests read."""
    assert BLOCKS
    assert OURS.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_runs_and_shows_something(block: str) -> None:
    """Code that is shown can be copied and run."""
    assert run(block)


def test_the_first_example_keeps_a_good_note(printed: list[str]) -> None:
    """The first call answers with the handler's message."""
    assert printed[0] == "Noted."


def test_the_first_example_takes_a_refused_note_back(printed: list[str]) -> None:
    """The second call tells the model why, and only the first note is left, as the comment beside it says."""
    assert printed[1] == "Notes cannot hold secrets. Leave it out, then retry."
    assert printed[-1] == "(Note(text='buy milk'),)"
    assert f"# {printed[-1]}" in BLOCKS[0]


def test_the_first_example_tells_every_wrong_argument(printed: list[str]) -> None:
    """The third call names both problems at once."""
    assert json.loads(printed[2]) == {
        "error": "Invalid parameters for tool 'take_note'",
        "details": {
            "text": "Expected type string, got integer 7",
            "colour": "Unknown field; known fields: text",
        },
    }


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", PROSE))))
def test_what_the_readme_links_to_is_there(target: str) -> None:
    """No link leads nowhere."""
    assert (ROOT / target).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)(?=`|\s+#)", PROSE))))
def test_the_commands_of_the_readme_are_targets(target: str) -> None:
    """What the README tells to type, the Makefile knows."""
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
