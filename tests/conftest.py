"""Decides how the whole suite runs: Hypothesis profiles, and what a skipped test means.

A test that cannot run is never silent: it is named at the end, and with `--no-skips` it fails the run.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Same examples on every machine, so that a red run can be repeated; `explore` goes looking for new ones.
settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    derandomize=False,
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail the run when any test is skipped")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What takes minutes begins first, or everybody would wait for it alone at the end.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _skipped(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get("skipped", [])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Only the controlling process of a parallel run has a reporter, and so all the reports.
    if session.config.getoption("--no-skips") and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped(config)
    if not skipped:
        return
    fatal = bool(config.getoption("--no-skips"))
    verdict = "the run fails (--no-skips)" if fatal else "the reasons are listed below"
    terminalreporter.section(f"{len(skipped)} NOT RUN: {verdict}", sep="!", red=fatal, yellow=not fatal, bold=True)
    for report in skipped:
        terminalreporter.line(f"NOT RUN {report.nodeid}", red=fatal, yellow=not fatal)
