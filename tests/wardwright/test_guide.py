"""The guide docs/governance.md says what is true: its plans load, its cases hold, its commands print what it shows."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from wardwright import compile_plan, load_config, receipts
from wardwright.cases import load_cases, play
from wardwright.cli import main
from wardwright.errors import ConfigError
from wardwright.history import Delta
from wardwright.in_process import GovernancePolicy
from wardwright.simulate import read_transcript, simulate
from wardwright.store import SqliteStore

PROJECT = Path(__file__).parent.parent.parent
GUIDE = PROJECT / "docs" / "governance.md"
TEXT = GUIDE.read_text("utf-8")
POLICIES = PROJECT / "src" / "wardwright" / "plans"
NAMES = sorted(path.parent.name for path in POLICIES.glob("*/plan.yaml"))
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
USERS_WORD = "any text in the user's role clears it, also a note that a client puts behind the result itself"
COMMANDS = [
    part.split("\n", 1)
    for language, _, body in BLOCKS
    if language == "console"
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files the guide shows, and receipts of the conversation it tells."""
    for _, name, body in BLOCKS:
        if name:
            (tmp_path / name).write_text(body, "utf-8")
    plan = compile_plan(load_config(tmp_path / "plan.yaml"))
    told = simulate(plan, read_transcript((tmp_path / "talk.json").read_bytes()), now=1_800_000_000_000, step_ms=1000)
    store = SqliteStore(tmp_path / "receipts.db", upkeep=False)
    for receipt in told.receipts:
        store.commit(Delta(receipt["at_ms"], ()), receipts.record(receipt))
    store.close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("body", [body for language, _, body in BLOCKS if language == "yaml" and body[0] != "-"])
def test_every_plan_of_the_guide_loads_without_a_word(body: str) -> None:
    """A plan that is shown compiles and has nothing odd about it, but for what the guide tells of a user's word."""
    warned = {problem.message for problem in compile_plan(load_config(body)).warnings}

    assert warned <= {USERS_WORD}


@pytest.mark.parametrize("body", [body for language, _, body in BLOCKS if language == "yaml" and body[0] == "-"])
def test_every_case_of_the_guide_holds(body: str, folder: Path) -> None:
    """The cases that are shown hold against the plan that is shown."""
    plan = compile_plan(load_config(folder / "plan.yaml"))

    assert [play(plan, case).failures for case in load_cases(body)] == [[], []]


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_every_command_prints_what_the_guide_shows(
    command: str, output: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command is run as it stands, and ends well."""
    program, *arguments = command.split()
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    shown = capsys.readouterr()
    assert (program, shown.err + shown.out, caught.value.code) == ("wardwright", output, 0)


@pytest.mark.parametrize("body", [body for language, _, body in BLOCKS if language == "python"])
def test_the_python_of_the_guide_prints_what_it_says(
    body: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands behind `#` in its last line is what comes out."""
    names: dict[str, Any] = {}
    exec(compile(body, str(GUIDE), "exec"), names)

    assert capsys.readouterr().out.strip() == body.strip().rsplit("# ", 1)[1]


def test_the_first_plan_is_short() -> None:
    """Twenty lines are enough for containment and loops."""
    assert len(next(body for _, name, body in BLOCKS if name == "plan.yaml").splitlines()) <= 20


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_speaks_of_every_ready_made_plan(name: str) -> None:
    """A plan that ships is named, with a link to it."""
    assert f"(../src/wardwright/plans/{name}/plan.yaml)" in TEXT


def test_the_plans_said_to_serve_in_process_do() -> None:
    """Those the guide names load as policies of the runtime; the others hold a rule that only a gateway can keep."""
    serving: set[str] = set()
    for plan in POLICIES.glob("*/plan.yaml"):
        with suppress(ConfigError):
            GovernancePolicy.from_yaml(plan)
            serving.add(plan.parent.name)

    named = re.search(r"Of these plans, (.*?) serve in process", TEXT, re.DOTALL)
    assert named is not None
    assert set(re.split(r", |\s+and\s+", named[1])) == serving


def test_every_link_of_the_guide_leads_somewhere() -> None:
    """Pages and plans that are named are there."""
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if not (GUIDE.parent / link).exists()] == []
