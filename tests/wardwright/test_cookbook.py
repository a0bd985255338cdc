"""docs/cookbook.md says what is true: its plans check cleanly, its cases hold, its commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import wardwright
from wardwright.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    part.split("\n", 1)
    for language, _, body in BLOCKS
    if language == "console"
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files the page shows."""
    for _, name, body in BLOCKS:
        if name:
            (tmp_path / name).write_text(body, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_every_command_prints_what_the_cookbook_shows(
    command: str, output: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is run as it stands, ends well, and warns of nothing."""
    program, *arguments = shlex.split(command)
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    shown = capsys.readouterr()
    assert (program, shown.err + shown.out, caught.value.code) == ("wardwright", output, 0)


def test_every_plan_and_every_case_of_the_cookbook_is_checked() -> None:
    """No file is shown that no command reads."""
    checked = {word for command, _ in COMMANDS for word in shlex.split(command)}
    assert {name for _, name, _ in BLOCKS if name} <= checked
    assert all(name or language == "console" for language, name, _ in BLOCKS)
    assert TEXT.count("```") == 2 * len(BLOCKS)


def test_the_cookbook_names_every_plan_that_ships() -> None:
    """One recipe for each of the five problems, and the plan to take for it."""
    assert sum(command.startswith("wardwright check ") for command, _ in COMMANDS) == 5
    folder = Path(wardwright.__file__).parent / "plans"
    assert {plan.parent.name for plan in folder.glob("*/plan.yaml")} <= set(re.findall(r"`([a-z-]+)`", TEXT))
