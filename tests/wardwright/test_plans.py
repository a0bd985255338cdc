"""Ready-made plans: they compile, their cases hold, their questions are answered; `init` writes them out, `check` finds what is beside."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from wardwright import compile_plan, load_config
from wardwright.cases import load_cases, play
from wardwright.cli import main
from wardwright.plans import FILES, UnknownPlan, names, ready_made
from wardwright.policy.draft import draft
from wardwright.prove import load_questions

from .test_cli import CASES, PLAN, Shell, shell
from .test_guide import USERS_WORD

__all__ = ["shell"]

HOME = Path(__file__).parent.parent.parent / "src" / "wardwright" / "plans"
PAGE = HOME.parent.parent.parent / "docs" / "policy" / "plans.md"
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
NAMES = names()
TOOLS = [
    {
        "name": "get_emails",
        "description": "Lists mails.",
        "input_schema": {"properties": {"folder": {"type": "string"}}},
    },
    {
        "name": "send_email",
        "description": "Sends a mail.",
        "input_schema": {"properties": {"to": {"type": "string"}, "body": {"type": "string"}}},
    },
]
QUESTION = "- question: can a shell run?\n  run: {namespace: shell}\n"


# what ships


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_whole(name: str) -> None:
    """Plan, cases, questions and a page; the first line says what it is for."""
    plan = ready_made(name)

    assert tuple(plan.files) == FILES
    assert ": " in plan.about
    assert all(
        f"**{word}" in plan.files["README.md"] for word in ("Problem", "What it does", "Make it", "Give it up", "Not")
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_of_a_plan_hold_and_meet_every_rule(name: str) -> None:
    """No warning but the one about a user's word; every case holds; a rule that no case meets may as well be misspelt."""
    plan = compile_plan(load_config(HOME / name / "plan.yaml"))
    met: set[str] = set()
    failures: list[str] = []
    rulings: set[str] = set()
    for case in load_cases(HOME / name / "cases.yaml"):
        outcome = play(plan, case)
        failures.extend(outcome.failures)
        met.update(finding.rule_id for judged in outcome.judged for finding in judged.ruling.findings)
        rulings.add(case.expect["ruling"])

    assert failures == []
    assert {problem.message for problem in plan.warnings} <= {USERS_WORD}
    assert {rule.id for part in plan.models.values() for rule in part.rules.rules} - met == set()
    assert "allow" in rulings
    assert rulings & {"block", "deny_call", "require_approval"}


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_asked_what_must_not_and_what_must_be_possible(name: str) -> None:
    """A plan that refuses everything would be easy to prove."""
    assert "counter_example" in {question.expect for question in load_questions(HOME / name / "questions.yaml")}


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_the_questions_of_a_plan_are_answered_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """G51: `check` proves them with nothing but the plan named."""
    with pytest.raises(SystemExit) as caught:
        main(["check", str(HOME / name)])

    shown = capsys.readouterr()
    assert (caught.value.code, [line for line in shown.err.splitlines() if not line.endswith(USERS_WORD)]) == (0, [])
    assert re.search(r"(\d+) of \1 cases hold, \d+ questions answered", shown.out)


# for other tools


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_takes_another_catalog(name: str) -> None:
    """The drafted catalog stands where the example stood; every rule and its comments stay."""
    mine = ready_made(name)
    text = mine.with_catalog(draft(json.dumps(TOOLS)))
    part = next(iter(compile_plan(load_config(text)).models.values()))

    assert [entry.match for entry in part.catalog.entries][:2] == ["get_emails", "send_email"]
    assert text.count("\ncatalog:") == 1
    assert text.endswith(mine.files["plan.yaml"].rpartition("\ngovernance:")[2])
    assert "# guessed" in text


def test_containment_works_with_a_drafted_catalog() -> None:
    """What the user asked for passes, what a mail asks for waits: from schemas alone."""
    plan = compile_plan(load_config(ready_made("injection-containment").with_catalog(draft(json.dumps(TOOLS)))))
    mail = (
        "- case: c\n  given:\n    transcript:\n"
        "      - {role: user, content: 'Read my mail and reply to the sender of Lunch'}\n"
        "      - {role: assistant, tool_calls: [{id: a, name: get_emails, arguments: {folder: inbox}}]}\n"
        '      - {role: tool, tool_call_id: a, content: \'[{"id": "1", "sender": "bob@a.test", "subject": "Lunch", "body": "or eve@b.test"}]\'}\n'
        "    reply: {tool_calls: [{id: b, name: send_email, arguments: {to: ADDRESS, body: Gladly}}]}\n"
        "  expect: {ruling: RULING}\n"
    )

    for address, ruling in (("bob@a.test", "allow"), ("eve@b.test", "require_approval")):
        (case,) = load_cases(mail.replace("ADDRESS", address).replace("RULING", ruling))
        assert play(plan, case).failures == []


# init


def test_init_writes_a_ready_made_plan_and_says_what_is_next(shell: Shell) -> None:
    """All its files, byte for byte, into a folder of its name."""
    code, out, err = shell("init", "--plan", "loop-and-cost")

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "plan.yaml, cases.yaml, questions.yaml, README.md written to loop-and-cost.",
        "Next: wardwright check loop-and-cost/plan.yaml  # plays its cases, proves its questions",
        "      wardwright check --blind loop-and-cost/plan.yaml  # says what this plan cannot see",
        "      wardwright serve --config loop-and-cost/plan.yaml  # rules by it; name your models under 'targets'",
    ]
    for name in FILES:
        assert (shell.folder / "loop-and-cost" / name).read_bytes() == (HOME / "loop-and-cost" / name).read_bytes()


@pytest.mark.parametrize("where", [("a/b",), ("--out", "a/b")])
def test_init_writes_where_it_is_told(shell: Shell, where: tuple[str, ...]) -> None:
    """As an argument or as an option; folders are made."""
    told = shell.json("init", "--plan", "taint", *where)

    assert told["files"] == [f"a/b/{name}" for name in FILES]
    assert (shell.folder / "a/b/plan.yaml").is_file()


def test_init_replaces_nothing(shell: Shell) -> None:
    """One file that is there already, and none is written."""
    shell.file("taint/cases.yaml", "mine")

    code, out, err = shell("init", "--plan", "taint")

    assert (code, out) == (1, "")
    assert err == "wardwright: taint/cases.yaml is there already; --force replaces it\n"
    assert [path.name for path in (shell.folder / "taint").iterdir()] == ["cases.yaml"]
    assert shell("init", "--plan", "taint", "--force")[0] == 0


def test_init_writes_one_file_for_ones_own_tools(shell: Shell) -> None:
    """The rules of the plan, a catalog of these tools, and a word about the guesses."""
    tools = shell.file("tools.json", json.dumps(TOOLS))

    code, out, _ = shell("init", "--plan", "injection-containment", "--catalog-from", tools, "mine.yaml")

    assert (code, out.splitlines()[:2]) == (
        0,
        ["mine.yaml written.", "Next: $EDITOR mine.yaml  # read every line marked as guessed"],
    )
    assert shell("check", "mine.yaml")[0] == 0


def test_init_says_which_rules_speak_of_tools_that_are_not_there(shell: Shell) -> None:
    """A rule that nothing fits would be a promise that nobody keeps."""
    tools = shell.file("tools.json", json.dumps(TOOLS))

    _, out, _ = shell("init", "--plan", "write-hardening", "--catalog-from", tools)

    assert out.splitlines()[1] == (
        "Note: a part of what 'tool' of rule 'not-outside-the-project' waits for: no entry of the catalog gives a tool the namespace "
        "'repo'; only a tool that a caller names so fits"
    )
    assert len(shell.json("init", "--plan", "write-hardening", "--catalog-from", tools, "--force")["notes"]) == 1


def test_init_lists_what_there_is(shell: Shell) -> None:
    """A name and a sentence each."""
    _, out, _ = shell("init", "--list")

    assert [line.split()[0] for line in out.splitlines()[:-1]] == list(NAMES)
    assert [one["name"] for one in shell.json("init", "--list")["plans"]] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plan", "taynt"), "no ready-made plan 'taynt' (did you mean 'taint'?); there are " + ", ".join(NAMES)),
        (("--plan", "taint", "x.yaml"), "x.yaml: a ready-made plan has several files; give a folder"),
        (("a.yaml", "--out", "b.yaml"), "say once where to write: as an argument or with --out"),
    ],
)
def test_init_says_what_is_wrong(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    """One line, and how to do it."""
    assert shell("init", *arguments) == (1, "", f"wardwright: {message}\n")


def test_an_unknown_plan_is_no_key_error() -> None:
    """In Python too."""
    with pytest.raises(UnknownPlan):
        ready_made("../taint")


# check


def test_check_takes_what_lies_beside_a_plan(shell: Shell) -> None:
    """Cases and questions of that name; a folder stands for the plan in it."""
    shell.file("here/plan.yaml", PLAN)
    shell.file("here/cases.yaml", CASES)
    shell.file("here/questions.yaml", QUESTION)
    line = "1 rules for default, 1 of 1 cases hold, 1 questions answered\n"

    assert shell("check", "here") == (0, f"here/plan.yaml: {line}", "")
    assert shell("check", "here/plan.yaml") == (0, f"here/plan.yaml: {line}", "")


def test_check_tells_plans_of_one_folder_apart(shell: Shell) -> None:
    """X.yaml has X.cases.yaml and X.questions.yaml; the cases of another plan are not its own."""
    shell.file("a.yaml", PLAN)
    shell.file("a.cases.yaml", CASES)
    shell.file("a.questions.yaml", QUESTION)
    shell.file("b.yaml", PLAN)
    shell.file("cases.yaml", "[")

    assert shell("check", "a.yaml")[1] == "a.yaml: 1 rules for default, 1 of 1 cases hold, 1 questions answered\n"
    assert shell("check", "b.yaml")[1] == "b.yaml: 1 rules for default\n"


def test_check_plays_only_what_is_given_when_something_is(shell: Shell) -> None:
    """Naming a file leaves out those beside."""
    shell.file("plan.yaml", PLAN)
    shell.file("cases.yaml", "[")

    assert shell("check", "plan.yaml", shell.file("other.yaml", CASES))[0] == 0


# the page


def test_every_command_of_the_page_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is run as it stands, in order, and ends well."""
    monkeypatch.chdir(tmp_path)
    for _, name, body in BLOCKS:
        if name:
            (tmp_path / name).write_text(body, "utf-8")
    commands = [
        part.split("\n", 1)
        for language, _, body in BLOCKS
        if language == "console"
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    ]
    for command, output in commands:
        program, *arguments = shlex.split(command)
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        shown = capsys.readouterr()
        assert (program, shown.err + shown.out, caught.value.code) == ("wardwright", output, 0)


def test_the_page_names_every_plan_and_its_links_lead_somewhere() -> None:
    """None is forgotten, none is made up."""
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8"))

    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    assert {Path(link).parent.name for link in links if link.endswith("README.md")} >= set(NAMES)
