"""docs/prove.md says what is true: its plans load, its commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, load_config
from wardwright.cli import main
from wardwright.prove import load_questions

PAGE = Path(__file__).parent.parent.parent / "docs" / "prove.md"
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
SESSIONS = [body for language, _, body in BLOCKS if language == "console"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files the page shows."""
    for _, name, body in BLOCKS:
        if name:
            (tmp_path / name).write_text(body, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("session", SESSIONS, ids=range(len(SESSIONS)))
def test_every_command_prints_what_the_page_shows(
    session: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command is run as it stands, in order; `yes` ends with 1, everything else with 0."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, output = part.split("\n", 1)
        program, *arguments = shlex.split(command)
        with pytest.raises(SystemExit) as caught:
            main(arguments)

        shown = capsys.readouterr()
        assert (program, shown.err + shown.out) == ("wardwright", output)
        assert caught.value.code == (1 if "  yes:\n" in output else 0)


@pytest.mark.parametrize("name", [name for language, name, _ in BLOCKS if language == "yaml"])
def test_every_file_of_the_page_loads(name: str, folder: Path) -> None:
    """Plans compile, questions can be read."""
    if name == "questions.yaml":
        assert len(load_questions(folder / name)) == 1
    else:
        assert compile_plan(load_config(folder / name)).models.keys() == {"coding"}


@pytest.mark.parametrize("body", [body for language, _, body in BLOCKS if language == "python"])
def test_the_python_of_the_page_prints_what_it_says(
    body: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands behind `#` in its last line is what comes out."""
    names: dict[str, Any] = {}
    exec(compile(body, str(PAGE), "exec"), names)

    assert capsys.readouterr().out.strip() == body.strip().rsplit("# ", 1)[1]
