"""The suite's own rules: a test that cannot run is named, and under --no-skips fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest

# Each of these runs a suite of its own.
pytestmark = pytest.mark.heavy

CONFTEST = Path(__file__).with_name("conftest.py")

SKIPS_ONE_TEST = """
import pytest

def test_runs():
    assert True

def test_cannot_run():
    pytest.skip("no server here")
"""

SKIPS_THE_MODULE = """
import pytest

pytest.skip("no server here", allow_module_level=True)
"""

SHOWS_PROFILE = """
from hypothesis import settings

def test_profile():
    assert (settings().derandomize, settings().database, settings().deadline) == {expected}
"""


def run(pytester: pytest.Pytester, module: str, *options: str) -> pytest.RunResult:
    """Run one module under this suite's conftest, in a process of its own."""
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile(test_it=module, test_other="def test_runs():\n    assert True\n")
    return pytester.runpytest_subprocess("-p", "no:randomly", *options)


def test_a_skipped_test_is_named_and_does_not_fail_the_run(pytester: pytest.Pytester) -> None:
    """Without the option a skip is loud and green."""
    result = run(pytester, SKIPS_ONE_TEST)

    result.stdout.fnmatch_lines(["*1 NOT RUN: the reasons are listed below*", "NOT RUN test_it.py::test_cannot_run"])
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "workers"])
@pytest.mark.parametrize("module", [SKIPS_ONE_TEST, SKIPS_THE_MODULE], ids=["test", "module"])
def test_no_skips_fails_the_run(pytester: pytest.Pytester, module: str, workers: tuple[str, ...]) -> None:
    """With --no-skips a skipped test or module is red, also when workers run it."""
    result = run(pytester, module, "--no-skips", *workers)

    result.stdout.fnmatch_lines(["*1 NOT RUN: the run fails (--no-skips)*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_no_skips_leaves_a_complete_run_green(pytester: pytest.Pytester) -> None:
    """--no-skips changes nothing when every test ran."""
    result = run(pytester, "def test_runs():\n    assert True\n", "--no-skips")

    assert result.ret == pytest.ExitCode.OK


def test_hypothesis_is_deterministic_by_default(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one commit try the same examples, also where CI or another profile would choose otherwise."""
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    monkeypatch.setenv("CI", "true")

    assert run(pytester, SHOWS_PROFILE.format(expected=(True, None, None))).ret == pytest.ExitCode.OK


def test_hypothesis_explores_when_asked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """HYPOTHESIS_PROFILE=explore looks for new examples and still sets no time limit."""
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "explore")
    module = SHOWS_PROFILE.format(expected=(False, None)).replace("settings().database, ", "")

    assert run(pytester, module).ret == pytest.ExitCode.OK
