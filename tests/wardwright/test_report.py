"""Claims about the report: what each rule did, and whether people came through."""

from __future__ import annotations

from typing import Any

from wardwright.report import report
from wardwright.wire import TextItem, Turn

from .test_replay import ALLOW, CALLER, calls, plan, recorded, rule

DENY_ONCE = rule("kind: tool_selector, action: deny_call, tool: {namespace: shell, arguments: {/cmd: {glob: 'rm *'}}}")
GUARD = rule("kind: request_guard, action: block, match: secret")


def row(found: Any, rule_id: str = "r") -> Any:
    return next(one for one in found.rules if one.rule_id == rule_id)


def ask(text: str) -> list[Turn]:
    return [Turn("request", "chat_completions", "m", [TextItem("user", text)], caller=CALLER)]


def test_a_rule_that_acted_is_counted_by_gate() -> None:
    """Two denied calls in one reply are one firing; the rule was a candidate at every gate it looked at."""
    stored = recorded(
        plan(DENY_ONCE), calls("shell_exec", "shell_exec", arguments='{"cmd": "rm x"}'), calls("browser_open")
    )

    found = report(stored)

    assert (row(found).fired, row(found).refused, row(found).considered) == (1, 1, 1)
    assert (found.receipts, found.gates, found.sessions) == (2, 4, 1)


def test_observed_rules_are_counted_apart() -> None:
    """A shadow rule has would-have counts and fires never."""
    shadow = plan(rule("kind: tool_selector, action: block, mode: observe, tool: {namespace: shell}"))

    found = row(report(recorded(shadow, calls("shell_exec"), calls("shell_exec"))))

    assert (found.fired, found.would_have_fired, found.refused) == (0, 2, 0)


def test_a_shadow_rule_says_what_it_would_have_refused() -> None:
    """G28: how often it would have denied, on which tools, and where to look: the latest receipts first."""
    shadow = plan(rule("kind: tool_selector, action: deny_call, mode: observe, tool: {namespace: [shell, browser]}"))

    found = row(report(recorded(shadow, calls("shell_exec"), calls("shell_exec", "browser_open"), calls("search"))))

    assert (found.would_have_refused, found.tools) == (2, {"shell.exec": 2, "browser.open": 1})
    assert found.examples == ["r2", "r1"]


def test_a_shadow_rule_that_only_notes_would_have_refused_nothing() -> None:
    """What it would have done is not always a refusal."""
    shadow = plan(rule("kind: tool_selector, action: annotate, mode: observe, tool: {namespace: shell}"))

    found = row(report(recorded(shadow, calls("shell_exec"))))

    assert (found.would_have_fired, found.would_have_refused) == (1, 0)


def test_names_that_callers_choose_do_not_make_a_report_grow() -> None:
    """G30: beyond fifty tools the rest is counted together, and five receipts are named."""
    busy = plan(rule("kind: tool_selector, action: deny_call, tool: {name: '*'}"))

    found = row(report(recorded(busy, *[calls(*[f"t{index}x{n}" for n in range(10)]) for index in range(6)])))

    assert (len(found.tools), found.tools["<others>"]) == (51, 10)
    assert found.examples == ["r6", "r5", "r4", "r3", "r2"]


def test_a_retry_that_passes_is_counted_with_the_time_it_took() -> None:
    """Denied at one second, corrected at three: two seconds added."""
    stored = recorded(
        plan(DENY_ONCE),
        calls("shell_exec", arguments='{"cmd": "rm x"}'),
        calls("shell_exec", arguments='{"cmd": "rm y"}'),
        calls("shell_exec", arguments='{"cmd": "ls"}'),
    )

    found = row(report(stored))

    assert (found.refused, found.retries_passed, found.waited_ms) == (2, 1, 2000)


def test_another_tool_that_passes_is_no_retry() -> None:
    """Only the tool that was refused can come through."""
    stored = recorded(plan(DENY_ONCE), calls("shell_exec", arguments='{"cmd": "rm x"}'), calls("browser_open"))

    assert row(report(stored)).retries_passed == 0


def test_a_refused_request_is_retried_by_the_next_request() -> None:
    """Where no tool is involved, the message itself comes through or not."""
    stored = recorded(plan(GUARD), ask("a secret"), ask("nothing"))

    assert (row(report(stored)).refused, row(report(stored)).retries_passed) == (1, 1)


def test_a_session_that_ends_refused_is_abandoned() -> None:
    """A refusal that was the last word counts against its rule once the session has been quiet."""
    stored = recorded(plan(GUARD), ask("a secret"))

    assert row(report(stored, now_ms=1000 + 900_000)).sessions_abandoned == 1
    assert row(report(stored, now_ms=1000 + 899_999)).sessions_abandoned == 0
    assert row(report(stored, now_ms=1010, quiet_ms=10)).sessions_abandoned == 1


def test_a_session_that_goes_on_is_not_abandoned() -> None:
    """Whoever is answered after a refusal has not left."""
    found = row(report(recorded(plan(GUARD), ask("a secret"), ask("nothing")), now_ms=10**9))

    assert (found.sessions, found.sessions_abandoned) == (1, 0)


def test_ruling_time_is_added_up_per_candidate() -> None:
    """The time of a gate belongs to every rule that was a candidate at it."""
    stored = recorded(plan(DENY_ONCE), calls("shell_exec"), calls("shell_exec"))

    assert row(report(stored)).gate_us == 14


def test_a_plan_adds_the_rules_that_never_came_up() -> None:
    """A rule nobody ever met is the first candidate for removal."""
    unused = plan("governance:\n  - {id: u, kind: tool_selector, action: block, owner: ops, tool: {name: never}}\n")

    found = row(report(recorded(ALLOW, calls("open")), plan=unused), "u")

    assert (found.kind, found.mode, found.owner, found.fired) == ("tool_selector", "enforce", "ops", 0)


def test_the_busiest_rule_stands_first() -> None:
    """Rules are ordered by how often they acted."""
    busy = plan(
        "governance:\n"
        "  - {id: a, kind: tool_selector, action: annotate, tool: {name: open}}\n"
        "  - {id: b, kind: tool_selector, action: annotate, tool: {name: '*'}}\n"
    )

    found = report(recorded(busy, calls("browser_open"), calls("shell_exec")))

    assert [one.rule_id for one in found.rules] == ["b", "a"]
    assert found.as_json()["rules"][0]["fired"] == 2
