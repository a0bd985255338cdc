"""Plans under tests/cases/refused: what `wardwright check` says of each is the text beside it, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from wardwright.cli import main

ROOT = Path(__file__).parent.parent / "cases" / "refused"
PLANS = sorted(path.name for path in ROOT.glob("*.plan.yml"))


@pytest.mark.parametrize("name", PLANS)
def test_every_problem_is_told_at_once_with_its_place(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10, G61: file, line, column, path and message on standard error; exit code 1 unless all of it is merely odd."""
    monkeypatch.chdir(ROOT)
    expected = (ROOT / name.replace(".plan.yml", ".problems.txt")).read_text("utf-8").splitlines()

    with pytest.raises(SystemExit) as caught:
        main(["check", name])

    assert capsys.readouterr().err.splitlines() == expected
    assert caught.value.code == (0 if all(": warning: " in line for line in expected) else 1)


def test_every_plan_here_has_its_problems_written_down() -> None:
    """G10: no plan in the folder goes unread, and no text is left over."""
    assert {path.name.removesuffix(".problems.txt") for path in ROOT.glob("*.txt")} == {
        name.removesuffix(".plan.yml") for name in PLANS
    }
