"""Claims about the `wardwright` command: exit codes, where problems go, and that bad input never ends in a traceback."""

from __future__ import annotations

import importlib.metadata
import io
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import click
import orjson
import pytest
import typer.main

from wardwright import compile_plan, load_config, receipts
from wardwright.cli import app, main
from wardwright.history import Delta, ScopeDelta, scope_key
from wardwright.simulate import read_transcript
from wardwright.simulate import simulate as run_simulation
from wardwright.store import SqliteStore, checkpoint
from wardwright.wire.turn import Caller

from .test_replay import ALLOW, calls, recorded

PLAN = """\
governance:
  - {id: no-shell, kind: tool_selector, action: block, tool: {namespace: shell}}
"""
CASES = """\
- case: shell is blocked
  given:
    reply: {tool_calls: [{id: b, name: shell_exec, arguments: {cmd: ls}}]}
  expect: {ruling: block, rules: [no-shell]}
"""
TALK = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "tool_calls": [{"id": "a", "name": "browser_open", "arguments": {}}]},
    {"role": "tool", "tool_call_id": "a", "content": "ok"},
    {"role": "assistant", "tool_calls": [{"id": "b", "name": "shell_exec", "arguments": {}}]},
]


class Shell:
    """Runs the command inside this process, in a folder of its own."""

    def __init__(self, folder: Path, capture: Any, monkeypatch: Any) -> None:
        self.folder = folder
        self._capture = capture
        monkeypatch.chdir(folder)

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = self._capture.readouterr()
        return int(caught.value.code or 0), out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        return orjson.loads(out)


@pytest.fixture
def shell(tmp_path: Path, capsysbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    class Decoded:
        def readouterr(self) -> tuple[str, str]:
            out, err = capsysbinary.readouterr()
            return out.decode(), err.decode()

    return Shell(tmp_path, Decoded(), monkeypatch)


# check


def test_check_says_what_a_good_plan_holds(shell: Shell) -> None:
    """Exit code 0, nothing on standard error."""
    assert shell("check", shell.file("plan.yaml", PLAN)) == (0, "plan.yaml: 1 rules for default\n", "")


def test_check_puts_every_problem_on_standard_error(shell: Shell) -> None:
    """G61: `file:line:column: path: message`, all of them, exit code 1."""
    bad = "governance:\n  - {id: r, kind: tool_selector, action: blok, tool: {namespac: x}}\n"

    code, out, err = shell("check", shell.file("plan.yaml", bad))

    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "plan.yaml:2:34: governance[0].action: unknown action 'blok' (did you mean 'block'?)",
        "plan.yaml:2:55: governance[0].tool.namespac: unknown key 'namespac' (did you mean 'namespace'?)",
    ]


def test_check_warns_and_passes(shell: Shell) -> None:
    """What merely looks odd is told and does no harm."""
    odd = "state_machine: {initial_state: a, states: [a, b]}\n" + PLAN

    code, _, err = shell("check", shell.file("plan.yaml", odd))

    assert code == 0
    assert ": warning: " in err


def test_check_plays_cases_from_files_and_folders(shell: Shell) -> None:
    """A folder gives every case file below it; plans among them are left alone."""
    shell.file("plan.yaml", PLAN)
    shell.file("cases/one.yaml", CASES)
    shell.file("cases/two.yml", CASES)
    shell.file("cases/other.plan.yaml", PLAN)

    assert shell("check", "plan.yaml", "cases", "cases/one.yaml") == (
        0,
        "plan.yaml: 1 rules for default, 3 of 3 cases hold\n",
        "",
    )


def test_check_fails_when_a_case_does_not_hold(shell: Shell) -> None:
    """The case is named with its place and what was expected."""
    shell.file("plan.yaml", PLAN)
    shell.file("cases.yaml", CASES.replace("ruling: block", "ruling: allow"))

    code, out, err = shell("check", "plan.yaml", "cases.yaml")

    assert (code, out) == (1, "")
    assert err.startswith("cases.yaml:1:1: shell is blocked: ruling: expected 'allow', got 'block'")


def test_check_refuses_unknown_keys_of_cases(shell: Shell) -> None:
    """G62: a misspelt key would make a case that proves nothing."""
    shell.file("plan.yaml", PLAN)
    shell.file("cases.yaml", CASES.replace("expect:", "expects:"))

    code, _, err = shell("check", "plan.yaml", "cases.yaml")

    assert code == 1
    assert "unknown key 'expects' (did you mean 'expect'?)" in err


def test_check_tells_all_as_json(shell: Shell) -> None:
    """Plan, problems and cases in one object on standard output, with the same exit code."""
    shell.file("plan.yaml", PLAN)
    shell.file("cases.yaml", CASES)

    told = shell.json("check", "plan.yaml", "cases.yaml")
    code, out, _ = shell("check", shell.file("bad.yaml", "governance: 3\n"), "--json")

    assert (told["ok"], told["rules"], told["cases"][0]["ok"]) == (True, 1, True)
    assert told["plan_hash"] == compile_plan(load_config(PLAN)).plan_hash
    assert (code, orjson.loads(out)["ok"], orjson.loads(out)["problems"][0]["line"]) == (1, False, 1)


# simulate


def test_simulate_says_what_each_gate_would_rule(shell: Shell) -> None:
    """One line per gate with its rule and message, and how many calls were refused."""
    shell.file("plan.yaml", PLAN)
    shell.file("talk.json", orjson.dumps(TALK))

    code, out, err = shell("simulate", "--config", "plan.yaml", "talk.json")

    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[:4]] == [
        ["1", "request", "allow"],
        ["2", "reply", "allow"],
        ["3", "request", "allow"],
        ["4", "reply", "block"],
    ]
    assert out.splitlines()[-1] == "4 gates, 1 calls refused"


def test_simulate_reads_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is where a pipe ends."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(orjson.dumps(TALK))))

    told = shell.json("simulate", "--config", shell.file("plan.yaml", PLAN), "-")

    assert told["blocked_calls"][0]["rules"] == ["no-shell"]


def test_simulate_compares_surfaces(shell: Shell) -> None:
    """`--surface phase` says what the narrow surface is, and what it costs."""
    plan = (
        "governance:\n  - {id: r, kind: allowed_tools, phase: result_interpretation, allowed_tools: [{name: open}]}\n"
    )
    shell.file("talk.json", orjson.dumps(TALK))

    _, out, _ = shell("simulate", "--config", shell.file("plan.yaml", plan), "--surface", "phase", "talk.json")

    assert (
        "surface at 3 (result_interpretation): 1 of 2 tools, without shell_exec; would cost shell_exec"
        in out.splitlines()
    )


LOOP = (
    "governance:\n  - {id: loop, kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: '*'},"
    " equal: tool+arguments}\n"
)


def remembered(path: Path) -> SqliteStore:
    """A store in which a tenant's session has called the same tool twice."""
    store = SqliteStore(path, upkeep=False)
    plan, caller = compile_plan(load_config(LOOP)), Caller(tenant="t", session_id="s")
    found = run_simulation(plan, read_transcript(twice("a")), caller=caller, now=1)
    state = found.registers.scopes[scope_key("session_id", caller)]
    change = ScopeDelta(scope_key("session_id", caller), "session_id", 0, state.head, dict(state.registers.items()))
    change.ledger.update(state.ledger.items())
    store.commit(Delta(2, (change,)), receipts.record(found.receipts[-1]))
    return store


def twice(name: str) -> list[dict[str, Any]]:
    called = [{"id": f"{name}{number}", "name": "browser_open", "arguments": {}} for number in range(2)]
    return [{"role": "user", "content": name}, {"role": "assistant", "tool_calls": called}]


def test_simulate_goes_on_from_a_stored_session(shell: Shell) -> None:
    """G51: with --db it starts from what the store remembers of the session, and leaves that as it is."""
    key = scope_key("session_id", Caller(tenant="t", session_id="s"))
    store = remembered(shell.folder / "s.db")
    before = store.load([key], lambda head: ["c:a0", "c:b0"])
    store.close()
    plan, talk = shell.file("plan.yaml", LOOP), shell.file("talk.json", orjson.dumps(twice("b")))

    alone = shell.json("simulate", "--config", plan, talk)
    after = shell.json("simulate", "--config", plan, talk, "--session", "s", "--db", "s.db")

    assert [call["call_id"] for call in alone["blocked_calls"]] == []
    assert [call["call_id"] for call in after["blocked_calls"]] == ["b0", "b1"]
    store = SqliteStore(shell.folder / "s.db", upkeep=False)
    assert store.load([key], lambda head: ["c:a0", "c:b0"]) == before
    store.close()


def test_simulate_needs_the_sessions_key_to_know_equal_arguments(shell: Shell) -> None:
    """Arguments are kept as keyed digests: with another key, equal ones are not known to be equal."""
    remembered(shell.folder / "s.db").close()
    plan, talk = shell.file("plan.yaml", LOOP), shell.file("talk.json", orjson.dumps(twice("b")))
    asked = ("simulate", "--config", plan, talk, "--session", "s", "--db", "s.db", "--key-file")

    known = shell.json(*asked, shell.file("key", b"simulation"))
    other = shell.json(*asked, shell.file("other", b"another"))

    assert (len(known["blocked_calls"]), len(other["blocked_calls"])) == (2, 0)


# replay, diff, report


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """A store with three exchanges; the last two call the shell."""
    store = SqliteStore(tmp_path / "store.db", upkeep=False)
    for receipt in recorded(ALLOW, calls("browser_open"), calls("shell_exec"), calls("shell_exec")):
        store.commit(Delta(receipt["at_ms"]), receipts.record(receipt))
    store.close()
    return "store.db"


def test_replay_names_what_changes(shell: Shell, stored: str) -> None:
    """Receipt, gate, both rulings, and the rule with the fact it acted on."""
    code, out, err = shell("replay", "--config", shell.file("plan.yaml", PLAN), "--db", stored)

    assert (code, err) == (0, "")
    assert out.splitlines()[:4] == [
        "r2 reply",
        "  recorded: allow",
        "  under this plan: block by no-shell; shell_exec-0: block",
        "    no-shell: nothing -> block on shell.exec, call shell_exec-0",
    ]
    assert out.splitlines()[-1] == "3 receipts, 6 gates: 4 the same, 2 changed, 0 unknown"


def test_replay_names_the_rules_it_left_out(shell: Shell, stored: str) -> None:
    """A text rule cannot be replayed, and is said to be."""
    plan = "governance:\n  - {id: words, kind: request_guard, match: secret}\n"

    _, out, _ = shell("replay", "--config", shell.file("plan.yaml", plan), "--db", stored)

    assert "not replayed: words (request_guard): text is not kept" in out.splitlines()


def test_replay_can_be_narrowed_in_time_and_to_a_session(shell: Shell, stored: str) -> None:
    """Earlier receipts still count; later ones and other sessions are not read."""
    shell.file("plan.yaml", PLAN)

    late = shell.json("replay", "--config", "plan.yaml", "--db", stored, "--since", "3000")
    early = shell.json("replay", "--config", "plan.yaml", "--db", stored, "--until", "1970-01-01T00:00:02Z")
    other = shell.json("replay", "--config", "plan.yaml", "--db", stored, "--session", "other")

    assert [told["gates"] for told in (late, early, other)] == [2, 2, 0]


def test_diff_compares_two_plans(shell: Shell, stored: str) -> None:
    """Over a store, or over an export of it."""
    shell.file("old.yaml", PLAN)
    shell.file("new.yaml", PLAN.replace("block", "deny_call"))
    shell("receipts", "export", "--db", stored, "--output", "x.ndjson")

    code, out, _ = shell("diff", "old.yaml", "new.yaml", "--db", stored)
    told = shell.json("diff", "old.yaml", "new.yaml", "--receipts", "x.ndjson")

    assert code == 0
    assert "  before: block by no-shell; shell_exec-0: block" in out
    assert "  after: deny_call by no-shell; shell_exec-0: deny_call" in out
    assert told["counts"] == {"same": 4, "changed": 2, "unknown": 0}


def test_report_says_what_a_shadow_rule_would_have_refused(shell: Shell) -> None:
    """G28: how often, on which tools, and in which receipts one can see it."""
    watched = compile_plan(load_config(PLAN.replace("action: block", "action: block, mode: observe")))
    store = SqliteStore(shell.folder / "watched.db", upkeep=False)
    for receipt in recorded(watched, calls("shell_exec"), calls("browser_open"), calls("shell_exec")):
        store.commit(Delta(receipt["at_ms"]), receipts.record(receipt))
    store.close()

    _, out, _ = shell("report", "--db", "watched.db")

    assert out.splitlines()[-2:] == [
        "no-shell would have refused at 2 of 2 gates: shell.exec 2; last r3, r1",
        "3 receipts, 6 gates, 1 sessions",
    ]


def test_report_says_per_rule_what_it_did(shell: Shell, stored: str) -> None:
    """A table for people, the same as JSON; with a plan also the rules that never came up."""
    code, out, _ = shell("report", "--db", stored, "--config", shell.file("plan.yaml", PLAN))
    told = shell.json("report", "--db", stored)

    assert code == 0
    assert out.splitlines()[0].split() == (
        [
            "rule",
            "fired",
            "would",
            "have",
            "refused",
            "then",
            "passed",
            "waited",
            "s",
            "abandoned",
            "mean",
            "gate",
            "us",
        ]
    )
    assert any(line.startswith("no-shell") for line in out.splitlines())
    assert (told["receipts"], told["gates"], told["sessions"]) == (3, 6, 1)


# receipts


def test_receipts_are_listed_newest_first_and_paged(shell: Shell, stored: str) -> None:
    """A page says how to get the next one."""
    code, out, _ = shell("receipts", "list", "--db", stored, "--limit", "2")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["r3", "r2"]
    cursor = out.splitlines()[3].split()[-1]
    assert shell("receipts", "list", "--db", stored, "--before", cursor)[1].splitlines()[1].startswith("r1")


def test_receipts_are_found_by_filters(shell: Shell, stored: str) -> None:
    """Filters are joined; the names are those of the receipts."""
    told = shell.json(
        "receipts", "list", "--db", stored, "--where", "tool_namespace=shell", "--where", "status=released"
    )

    assert [one["receipt"]["id"] for one in told["receipts"]] == ["r3", "r2"]


def test_a_receipt_is_explained(shell: Shell, stored: str) -> None:
    """In words, or whole as JSON."""
    code, out, _ = shell("receipts", "show", "r2", "--db", stored)

    assert code == 0
    assert out.startswith("Receipt r2 for session_id s.\n")
    assert shell.json("receipts", "show", "r2", "--db", stored)["id"] == "r2"


def test_an_export_is_ndjson(shell: Shell, stored: str) -> None:
    """One line per receipt on standard output."""
    code, out, _ = shell("receipts", "export", "--db", stored, "--json")

    assert code == 0
    assert [orjson.loads(line)["id"] for line in out.splitlines()] == ["r3", "r2", "r1"]


def test_receipts_are_read_where_serve_puts_them(shell: Shell, stored: str) -> None:
    """Without --db the store is the file that serve makes in this folder."""
    (shell.folder / stored).rename(shell.folder / "wardwright.db")

    assert shell("receipts", "verify") == (0, "3 receipts in 1 chains hold\n", "")


def test_a_list_of_receipts_says_what_an_operator_did(shell: Shell, stored: str) -> None:
    """An operator's action stands where an exchange has its ruling."""
    store = SqliteStore(shell.folder / stored, upkeep=False)
    told = receipts.build_admin("r9", 9000, Caller(principal="ann"), "approve", "apr_1", {})
    store.commit(Delta(9000), receipts.record(told))
    store.close()

    _, out, _ = shell("receipts", "list", "--db", stored, "--where", "kind=admin")

    assert out.splitlines()[1].split() == ["r9", "1970-01-01", "00:00:09", "done", "approve:", "apr_1"]


def test_an_error_of_several_lines_is_told_line_by_line(shell: Shell) -> None:
    """Everything that keeps the gateway from starting is told, each on its own line, and nobody hears that it serves."""
    keys = "auth: {keys: [{id: ci, key_env: NOT_SET_A}, {id: cd, key_env: NOT_SET_B}]}\n"

    code, out, err = shell("serve", "--config", shell.file("plan.yaml", PLAN + keys), "--port", "0")

    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "wardwright: auth.keys 'ci': the environment variable NOT_SET_A is not set or empty.",
        "wardwright: auth.keys 'cd': the environment variable NOT_SET_B is not set or empty.",
    ]


def test_verify_holds_and_finds_what_does_not(shell: Shell, stored: str) -> None:
    """Exit code 1 and the flaw on standard error when a receipt was changed; checkpoints need their key."""
    key = b"0123456789abcdef"
    store = SqliteStore(shell.folder / stored, upkeep=False)
    checkpoint(store, 5000, key)
    store.close()

    good = shell.json("receipts", "verify", "--db", stored, "--key-file", shell.file("key", key))
    code, out, err = shell("receipts", "verify", "--db", stored, "--key-file", shell.file("wrong", b"another key"))

    assert (good["ok"], good["receipts"], good["checkpoints"]) == (True, 3, 1)
    assert (code, out) == (1, "3 receipts in 1 chains do not hold: 1 flaw\n")
    assert "checkpoint" in err


def test_the_mark_of_a_checkpoint_must_still_be_there(shell: Shell, stored: str) -> None:
    """`receipts checkpoint` prints it, `receipts verify --anchor` misses it."""
    key = shell.file("key", b"0123456789abcdef")
    code, out, _ = shell("receipts", "checkpoint", "--db", stored, "--key-file", key)
    mark = shell.json("receipts", "checkpoint", "--db", stored, "--key-file", key)["mark"]

    assert (code, out.rpartition(" ")[0]) == (0, "checkpoint 1 over 1 chains, mark")
    assert shell("receipts", "verify", "--db", stored, "--key-file", key, "--anchor", mark)[0] == 0
    code, _, err = shell("receipts", "verify", "--db", stored, "--key-file", key, "--anchor", "2:0000")
    assert (code, err) == (1, "checkpoint: the checkpoint with mark 2:0000 is gone\n")


def test_old_receipts_and_tenants_go_and_the_chain_holds(shell: Shell, stored: str) -> None:
    """`receipts retain` and `receipts erase` sign what they take, `receipts verify` with the key finds nothing amiss."""
    key = shell.file("key", b"0123456789abcdef")

    assert shell("receipts", "retain", "--db", stored, "--before", "1970-01-01", "--key-file", key) == (
        0,
        "0 receipts removed\n",
        "",
    )
    code, out, _ = shell("receipts", "erase", "", "--db", stored, "--key-file", key)
    assert (code, out.partition(" ")[2]) == (0, "sessions and receipts erased\n")
    found = shell.json("receipts", "verify", "--db", stored, "--key-file", key)
    assert (found["ok"], found["receipts"], found["erased"]) == (True, 5, 4)
    assert shell.json("receipts", "retain", "--db", stored, "--before", "2999-01-01", "--key-file", key) == {
        "removed": 5
    }
    code, _, err = shell("receipts", "retain", "--db", stored, "--before", "", "--key-file", key)
    assert (code, err) == (1, "wardwright: --before: say from when on receipts stay\n")


def test_an_index_that_misses_receipts_is_made_anew(shell: Shell, stored: str) -> None:
    """`receipts verify` says so, `receipts reindex` does it."""
    shell("receipts", "list", "--db", stored)
    connection = sqlite3.connect(shell.folder / stored)
    with connection:
        connection.execute("DELETE FROM posting")
    connection.close()

    code, _, err = shell("receipts", "verify", "--db", stored)
    assert (code, err.partition(": ")[2]) == (1, "index: filters do not find 3 receipts: make the index anew\n")
    assert shell("receipts", "reindex", "--db", stored) == (0, "the index was made anew\n", "")
    assert shell("receipts", "verify", "--db", stored)[0] == 0


# init


def test_the_starter_plan_compiles_with_one_warning(shell: Shell) -> None:
    """What `init` writes is a plan that checks, and says what the word of the user is worth."""
    code, out, err = shell("init")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "wardwright.yaml written.",
        "Next: wardwright check wardwright.yaml  # says what is wrong or odd",
    ]
    code, out, err = shell("check", "wardwright.yaml")
    assert (code, out) == (0, "wardwright.yaml: 5 rules for coding-balanced\n")
    assert err.splitlines() == [
        "wardwright.yaml:35:13: governance[0].until.user_turn: warning: any text in the user's role clears it, "
        "also a note that a client puts behind the result itself"
    ]


def test_the_starter_plan_does_what_its_comments_say(shell: Shell) -> None:
    """After a page nothing irreversible, and an unknown tool is not trusted either."""
    shell("init", "plan.yaml")
    shell.file("talk.json", orjson.dumps(TALK))

    told = shell.json("simulate", "--config", "plan.yaml", "talk.json")

    assert told["blocked_calls"][0]["rules"] == ["no-irreversible-while-reviewing"]


def test_init_replaces_nothing_unasked(shell: Shell) -> None:
    """A plan somebody wrote is not lost."""
    shell.file("wardwright.yaml", "mine")

    assert shell("init") == (1, "", "wardwright: wardwright.yaml is there already; --force replaces it\n")
    assert shell.json("init", "--force")["files"] == ["wardwright.yaml"]


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "none.yaml"), "none.yaml:1:1: $: cannot be read: No such file or directory"),
        (("check", "plan.yaml", "empty"), "wardwright: empty: no policy cases in this folder"),
        (("simulate", "--config", "plan.yaml", "none"), "wardwright: none: cannot be read: No such file or directory"),
        (("simulate", "--config", "plan.yaml", "bad.json"), "wardwright: the transcript is not JSON:"),
        (
            ("simulate", "--config", "plan.yaml", "--surface", "some", "talk.json"),
            "wardwright: --surface 'some': expected one of all, phase",
        ),
        (
            ("simulate", "--config", "plan.yaml", "--wire", "morse", "talk.json"),
            "wardwright: --wire 'morse': expected one of chat_completions, responses, anthropic, mcp",
        ),
        (("simulate", "--config", "broken.yaml", "talk.json"), "broken.yaml:1:1: $: expected a mapping"),
        (
            ("simulate", "--config", "plan.yaml", "talk.json", "--db", "store.db", "--session", "nobody"),
            "wardwright: no session 'nobody' in the store",
        ),
        (("replay", "--config", "plan.yaml"), "wardwright: give the receipts to read: either --db or --receipts"),
        (
            ("replay", "--config", "plan.yaml", "--db", "none.db"),
            "wardwright: none.db: no such store; name the gateway's with --db",
        ),
        (("receipts", "list"), "wardwright: wardwright.db: no such store; name the gateway's with --db"),
        (
            ("receipts", "verify", "--db", "store.db", "--anchor", "checkpoint 1 over 1 chains, mark 1:ab"),
            "wardwright: --anchor 'checkpoint 1 over 1 chains, mark 1:ab': expected the mark alone that 'receipts checkpoint' prints, as 1:0123…",
        ),
        (
            ("simulate", "--config", "two.yaml", "talk.json"),
            "wardwright: the transcript names no model: --model one or two",
        ),
        (
            ("simulate", "--config", "two.yaml", "--model", "tow", "talk.json"),
            "wardwright: no model 'tow' in two.yaml; choose one, two with --model",
        ),
        (
            ("replay", "--config", "plan.yaml", "--receipts", "bad.json"),
            "wardwright: bad.json:1: not a line of a receipts export",
        ),
        (
            ("report", "--db", "store.db", "--until", "soon"),
            "wardwright: --until 'soon': expected a date (2026-12-31), a time (2026-12-31T18:00:00Z) or milliseconds",
        ),
        (("receipts", "show", "r9", "--db", "store.db"), "wardwright: no receipt 'r9' in store.db"),
        (
            ("receipts", "list", "--db", "store.db", "--where", "colour=red"),
            "wardwright: --where 'colour': expected one of tool_namespace,",
        ),
        (
            ("receipts", "list", "--db", "store.db", "--where", "rule"),
            "wardwright: --where 'rule': expected NAME=VALUE",
        ),
        (("receipts", "list", "--db", "plan.yaml"), "wardwright: store"),
    ],
)
def test_bad_input_ends_with_one_line(shell: Shell, stored: str, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 1, what was wrong on standard error, and no traceback."""
    shell.file("plan.yaml", PLAN)
    shell.file("two.yaml", "models: [{model_id: one}, {model_id: two}]\n")
    shell.file("broken.yaml", "- 3\n")
    shell.file("talk.json", orjson.dumps(TALK))
    shell.file("bad.json", "{")
    (shell.folder / "empty").mkdir()

    code, out, err = shell(*arguments)

    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_a_missing_option_is_a_usage_error(shell: Shell) -> None:
    """Exit code 2, as for any command line."""
    code, _, err = shell("simulate", "talk.json")

    assert code == 2
    assert "--config" in err


def test_it_runs_as_a_program(shell: Shell) -> None:
    """The installed command and `main` are the same."""
    shell.file("plan.yaml", PLAN)

    run = subprocess.run(
        [sys.executable, "-c", "from wardwright.cli import main; main()", "check", "plan.yaml"],
        capture_output=True,
        text=True,
        cwd=shell.folder,
        check=True,
    )

    assert run.stdout == "plan.yaml: 1 rules for default\n"


# help, codes and progress


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}
    top = typer.main.get_command(app)
    for name, one in cast("click.Group", top).commands.items():
        inner = getattr(one, "commands", None)
        found.update({f"{name} {part}": each for part, each in inner.items()} if inner else {name: one})
    return found


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json_and_explains_itself(name: str) -> None:
    """G61: `--json` on all of them, a sentence for each, and a sentence for each option that is not plain."""
    command = COMMANDS[name]
    options = {word: one for one in command.params for word in one.opts}

    assert "--json" in options
    assert command.help
    assert [one.name for one in command.params if not getattr(one, "help", "x")] in ([], ["port"], ["limit"])


def test_every_example_of_a_help_page_can_be_typed() -> None:
    """The command is there, and so is each option."""
    top = typer.main.get_command(app)
    pages = [top, *cast("click.Group", top).commands.values()]
    lines = [line.strip() for page in pages for line in (page.epilog or "").splitlines() if "wardwright " in line]
    assert len(lines) > 30
    for line in lines:
        words = shlex.split(re.split(r"   +", line)[0])[1:]
        name = next((one for one in (" ".join(words[:2]), words[0]) if one in COMMANDS), "")
        known = {word for one in COMMANDS[name].params for word in one.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_version_is_told(shell: Shell) -> None:
    """One line."""
    kind = "" if receipts.__file__.endswith(".py") else ", compiled"
    assert shell("--version") == (0, f"wardwright {importlib.metadata.version('weakincentives')}{kind}\n", "")


LOOPS = "governance:\n  - {id: r, kind: tool_loop_threshold, action: block, threshold: 9, tool: {namespace: shell}}\n"
RENAMED = f"catalog: [{{match: shell_exec, namespace: tools}}]\n{PLAN}"
LET_GO = "    no-shell: block -> nothing on shell.exec, call shell_exec-0"


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (PLAN, PLAN.replace("shell}", "nobody}"), f"{LET_GO} (the rule says something else)"),
        (PLAN, LOOPS, f"{LET_GO} (the rule is gone)"),
        (PLAN, RENAMED, f"{LET_GO} (the same rule, other facts)"),
        (PLAN, RENAMED, "      namespace: shell -> tools"),
        (LOOPS, LOOPS.replace("9", "1"), "      threshold: 9 -> 1"),
        (LOOPS, LOOPS.replace("9", "1"), "      observed_count: none -> 1"),
    ],
)
def test_a_difference_says_what_flipped_it(shell: Shell, stored: str, before: str, after: str, line: str) -> None:
    """The rule, from what to what, on which call, why, and the values that differ."""
    _, out, _ = shell("diff", shell.file("a.yaml", before), shell.file("b.yaml", after), "--db", stored)

    assert line in out.splitlines()


def test_captured_arguments_are_shown_where_a_rule_reads_them(shell: Shell) -> None:
    """As the receipt has them, clipped."""
    store = SqliteStore(shell.folder / "captured.db", upkeep=False)
    command = "rm " + "x" * 300
    for receipt in recorded(ALLOW, calls("shell_exec", arguments=f'{{"cmd": "{command}"}}'), capture=True):
        store.commit(Delta(receipt["at_ms"]), receipts.record(receipt))
    store.close()
    plan = PLAN.replace("namespace: shell", "namespace: shell, arguments: {/cmd: {glob: 'rm *'}}")

    _, out, _ = shell("replay", "--config", shell.file("plan.yaml", plan), "--db", "captured.db")

    assert f"      /cmd holds {command[:200]}…" in out.splitlines()


def test_a_change_can_end_a_build(shell: Shell, stored: str) -> None:
    """G51: with --exit-code 3 means that something would change; without it the answer is the answer."""
    plan, same = shell.file("plan.yaml", PLAN), shell.file("same.yaml", PLAN)
    other = shell.file("other.yaml", PLAN.replace("shell", "nobody"))

    assert [shell("diff", plan, one, "--db", stored, "--exit-code")[0] for one in (same, other)] == [0, 3]
    assert shell("diff", plan, other, "--db", stored)[0] == 0
    assert shell("replay", "--config", plan, "--db", stored, "--exit-code")[0] == 3


def test_names_that_callers_choose_do_not_move_the_cursor(shell: Shell) -> None:
    """What a caller calls a tool is shown as it is, on one line, in a difference and in a report."""
    odd = "shell.\x1b[2J\nok \u202ex"
    store = SqliteStore(shell.folder / "odd.db", upkeep=False)
    for receipt in recorded(compile_plan(load_config(PLAN.replace("block", "block, mode: observe"))), calls(odd)):
        store.commit(Delta(receipt["at_ms"]), receipts.record(receipt))
    store.close()

    for asked in (("replay", "--config", shell.file("plan.yaml", PLAN)), ("report",)):
        _, out, _ = shell(*asked, "--db", "odd.db")
        assert "shell." in out
        assert [one for one in out if one != "\n" and not one.isprintable()] == []
        assert "\nok" not in out


def test_what_is_listed_of_changes_can_be_bounded(shell: Shell, stored: str) -> None:
    """The rest is counted, and how to see it is said."""
    plan, other = shell.file("plan.yaml", PLAN), shell.file("other.yaml", PLAN.replace("shell", "nobody"))

    _, out, _ = shell("diff", plan, other, "--db", stored, "--limit", "1")

    assert "and 1 more changes; --limit lists them" in out.splitlines()
    assert out.splitlines()[-1] == "3 receipts, 6 gates: 4 the same, 2 changed, 0 unknown"


def test_progress_is_told_to_terminals_only(shell: Shell, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, over itself, and gone when it is done; the answer is the same."""
    plan = shell.file("plan.yaml", PLAN)
    shell.file("questions.yaml", "- {question: can a shell run, run: {namespace: shell}}\n")
    quiet = [shell("report", "--db", stored), shell("check", plan)]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    loud = [shell("report", "--db", stored), shell("check", plan)]

    assert [one[2] for one in quiet] == ["", ""]
    assert [one[:2] for one in loud] == [one[:2] for one in quiet]
    assert loud[0][2] == "\r\x1b[K0 receipts read\r\x1b[K"
    assert loud[1][2] == "\r\x1b[Kquestion 1 of 1: can a shell run\r\x1b[K"


PAGE = Path(__file__).parent.parent.parent / "docs" / "gateway" / "command.md"


def test_the_page_of_the_command_names_all_of_it() -> None:
    """Every command once, and every exit code."""
    text = PAGE.read_text("utf-8")

    assert re.findall(r"^\| `wardwright ([a-z -]+)` \|", text, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"^\| (\d) \|", text, re.MULTILINE) == ["0", "1", "2", "3"]


def test_check_warns_of_what_is_odd_in_any_section(shell: Shell) -> None:
    """A number without a unit, a sink in clear and a claim that can never be made are told, wherever they stand."""
    file = shell.file(
        "odd.yaml",
        "model_id: a\n"
        "limits: {drain: 30}\n"
        'alerts: {sinks: [{kind: webhook, url: "http://alerts.test/"}]}\n'
        "auth: {keys: [{id: ci, key_env: CI, user: ann, may_claim: [user]}]}\n"
        "governance: [{id: x, kind: tool_selector, action: deny_call, tool: {name: y}}]\n",
    )

    code, _, err = shell("check", file)

    assert code == 0
    assert [line.split(": ", 2)[2] for line in err.splitlines()] == [
        "warning: 30 means milliseconds; write 30ms, or 30s for seconds",
        "warning: alerts go over the network in clear: use https",
        "warning: 'user' is pinned by this record, so that it can never be claimed",
    ]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("tool: shell_exec", "tool: expected a mapping such as {name: read_file}, got text 'shell_exec'"),
        ("tool: {name: x}, state_scope: reviewing", "state_scope: unknown state 'reviewing'; declared: active"),
    ],
)
def test_check_shows_what_was_meant(shell: Shell, rule: str, says: str) -> None:
    """A wrong shape is told with the right one, an unknown name with those that are known."""
    head = "model_id: a\ntargets: [{model: m, provider: openai}]\n"
    file = shell.file("slip.yaml", f"{head}governance: [{{id: x, kind: tool_selector, action: deny_call, {rule}}}]\n")

    code, _, err = shell("check", file)

    assert code == 1
    assert [line.split(": ", 1)[1] for line in err.splitlines()] == [
        "targets[0].provider: unknown provider 'openai'; declare it under providers",
        f"governance[0].{says}",
    ]
