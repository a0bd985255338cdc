"""Asking a plan whether it can be got around: answers are right, shortest, and honest about what was not tried."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest

from wardwright import compile_plan, load_config
from wardwright.cases import load_cases, play
from wardwright.cli import main
from wardwright.errors import ConfigError
from wardwright.policy.compile import Plan
from wardwright.prove import Proof, load_questions, parse_question, prove, standard_questions
from wardwright.prove.leniency import lenient

from .brute_force import CATALOG, TOOLS, Asked, World, random_plan, shortest

HEAD = """\
model_id: coding
catalog:
  - {match: shell_exec, namespace: shell, name: exec, risk_class: irreversible}
  - {match: "browser_{name}", namespace: browser, risk_class: read_only, results: untrusted}
state_machine:
  initial_state: active
  states:
    - id: active
    - id: reviewing_untrusted_tool_result
governance:
"""
ENTER = """\
  - id: enter-untrusted-review
    kind: tool_sequence
    after:
      tool: {namespace: browser, phase: result_interpretation}
    transition_to: reviewing_untrusted_tool_result
"""
WINDOW = "    within: {milliseconds: 30000}\n"
BLOCK = """\
  - id: block-shell-while-reviewing
    kind: tool_selector
    state_scope: reviewing_untrusted_tool_result
    action: block
    tool: {namespace: shell, risk_class: irreversible, phase: planning}
"""
SEQUENCE = HEAD + ENTER + WINDOW + BLOCK
SHELL_AFTER_PAGE = "can namespace=shell,risk_class=irreversible run after browser"


def compiled(text: str) -> Plan:
    return compile_plan(load_config(text))


def ask(text: str, question: str, **options: int) -> Proof:
    return prove(compiled(text), parse_question(question), **options)


def replays(text: str, proof: Proof) -> list[str]:
    """What differs when the counter-example is played as a policy case."""
    (case,) = load_cases(proof.case_yaml())
    return play(compiled(text), case).failures


def told(proof: Proof) -> list[tuple[int, str, str]]:
    return [(step.waited_ms, ", ".join(step.news), step.ruling.decision) for step in proof.steps]


# the sequence plan


def test_within_the_window_nothing_irreversible_follows_an_unreviewed_page() -> None:
    """G51: the window of thirty seconds keeps what it promises, to its last millisecond."""
    proof = ask(SEQUENCE, f"{SHELL_AFTER_PAGE} within 30 s?")

    assert (proof.verdict, proof.steps, proof.reasons, proof.notes) == ("holds", (), (), ())


def test_after_the_window_the_hole_is_found() -> None:
    """G51, G16: waiting one millisecond longer is all it takes, and the way there is the shortest."""
    proof = ask(SEQUENCE, f"{SHELL_AFTER_PAGE}?")

    assert proof.verdict == "counter_example"
    assert told(proof) == [
        (0, "the user speaks", "allow"),
        (0, "the model calls browser_x", "allow"),
        (0, "browser_x answers", "allow"),
        (30_001, "the model calls shell_exec", "allow"),
    ]
    assert replays(SEQUENCE, proof) == []


@pytest.mark.parametrize(
    ("until", "without"), [("user_turn: true", "user"), ("tool: {namespace: review}", "review")], ids=["user", "tool"]
)
def test_a_state_that_only_until_ends_has_no_hole(until: str, without: str) -> None:
    """G51, G16: neither time nor harmless calls end it."""
    proof = ask(f"{HEAD}{ENTER}    until: {{{until}}}\n{BLOCK}", f"{SHELL_AFTER_PAGE} without {without}?")

    assert (proof.verdict, proof.notes) == ("holds", ())


def test_what_clears_the_state_is_found_when_it_is_not_left_out() -> None:
    """The same plan, asked without the exception, shows the way that was meant to be open."""
    plan = f"{HEAD}{ENTER}    until: {{user_turn: true}}\n{BLOCK}"
    proof = ask(plan, SHELL_AFTER_PAGE)

    assert [what for _, what, _ in told(proof)][2:] == [
        "browser_x answers, the user speaks",
        "the model calls shell_exec",
    ]
    assert replays(plan, proof) == []


def test_without_the_review_rule_the_short_way_is_found() -> None:
    """Nothing enters the state, so the call follows the page at once."""
    proof = ask(HEAD + BLOCK, f"{SHELL_AFTER_PAGE} within 30 s?")

    assert told(proof)[-1] == (0, "the model calls shell_exec", "allow")
    assert len(proof.steps) == 4
    assert replays(HEAD + BLOCK, proof) == []


# right and shortest


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=[pytest.mark.heavy, pytest.mark.long] if block >= 1 else []) for block in range(20)],
)
def test_it_agrees_with_trying_everything(block: int) -> None:
    """G51: on 500 random plans (100 of them in every run): what brute force finds it finds, as short; what brute force does not find is longer, or not there;
    and each way replays."""
    for number in range(25 * block, 25 * block + 25):
        text, asked, world = random_plan(Random(number))
        plan = compiled(text)
        proof = prove(plan, replace(parse_question(asked.line()), calls=world.calls))
        length = len(proof.steps) + sum(step.waited_ms > 0 for step in proof.steps)
        found, tried = shortest(plan, asked, world, 150 if block < 4 else 1500)

        assert proof.verdict in ("holds", "counter_example"), (number, proof.reasons)
        if found is not None:
            assert length == found, (number, text)
        else:
            assert proof.verdict == "holds" or length > tried, (number, text)
        if proof.steps:
            assert replays(text, proof) == [], (number, text)


THEN = "kind: tool_sequence, action: deny_call, after: {tool: {namespace: a, phase: result_interpretation}}, then: {tool: {namespace: b}}"
MOVE = "kind: tool_sequence, after: {tool: {namespace: a, phase: result_interpretation}}, transition_to: wary"
DENY = "  - {id: deny, kind: tool_selector, state_scope: wary, action: deny_call, tool: {namespace: b}}\n"
OPEN = "  - {id: open, kind: history_threshold, action: transition, transition_to: calm, threshold: 3, tool: {namespace: c, phase: planning}}\n"
COUNT = "kind: history_threshold, action: deny_call, threshold: 2, tool: {namespace: [a, b]}"


@pytest.mark.parametrize(
    ("rule", "more", "length"),
    [
        (f"{THEN}, within: {{turns: 1}}", "", 8),
        (f"{THEN}, within: {{events: 2}}", "", 6),
        (f"{THEN}, within: {{events: 4}}", "", 8),
        (f"{THEN}, until: {{clean_turn: true}}", "", 8),
        (f"{THEN}, until: {{tool: {{namespace: c}}}}", "", 6),
        (f"{MOVE}, within: {{turns: 1}}", DENY, 8),
        (f"{MOVE}, within: {{events: 4}}", DENY, 8),
        (f"{MOVE}, until: {{clean_turn: true}}", DENY, 8),
        (f"{COUNT}, within: {{turns: 1}}", "", 6),
        (f"{THEN}, within: {{turns: 2}}", "", 10),
        (MOVE, f"{DENY}{OPEN}", 10),
        (f"{COUNT}, within: {{events: 3}}", "", 6),
    ],
)
def test_windows_are_flushed_as_late_as_they_must_be(rule: str, more: str, length: int) -> None:
    """The shortest way around each kind of window is as long as brute force says."""
    text = f"model_id: m\ncatalog:\n{CATALOG}state_machine: {{initial_state: calm, states: [calm, wary]}}\n"
    text += f"governance:\n  - {{id: rule, {rule}}}\n{more}"
    turns = "turn" in rule
    world = World(words=False, errors=False, texts=turns, waits=(), calls=1, fresh=False, tools=TOOLS[:3])
    proof = prove(compiled(text), replace(parse_question(Asked().line()), calls=1))

    assert shortest(compiled(text), Asked(), world, 20_000)[0] == length
    assert len(proof.steps) == length
    assert replays(text, proof) == []


def test_two_clocks_are_waited_for_one_after_the_other() -> None:
    """After a there is a ban of 30 s, and for 20 s a door can be opened that stays open for 20: it must be opened late."""
    text = f"""model_id: m
catalog:
{CATALOG}state_machines: [{{id: door, scope: session_id, initial_state: shut, states: [shut, open]}},
  {{id: key, scope: session_id, initial_state: away, states: [away, near]}}]
governance:
  - {{id: ban, {THEN}, within: {{ms: 30000}}}}
  - {{id: opens, kind: tool_sequence, state_machine_id: door, after: {{tool: {{namespace: c, phase: planning}}}},
     transition_to: open, within: {{ms: 20000}}}}
  - {{id: finds, kind: tool_sequence, state_machine_id: key, after: {{tool: {{namespace: a, phase: result_interpretation}}}},
     transition_to: near, within: {{ms: 20000}}}}
  - {{id: no-key, kind: tool_selector, state_machine_id: key, state_scope: away, action: block, tool: {{namespace: c, phase: planning}}}}
  - {{id: closed, kind: tool_selector, state_machine_id: door, state_scope: shut, action: deny_call, tool: {{namespace: b, phase: planning}}}}
"""
    world = World(words=False, errors=False, texts=False, waits=(15_000, 15_001), calls=1, fresh=False, tools=TOOLS[:3])
    proof = prove(compiled(text), replace(parse_question(Asked().line()), calls=1))
    waits = [step.waited_ms for step in proof.steps if step.waited_ms]

    assert shortest(compiled(text), Asked(), world, 20_000)[0] == 8
    assert len(proof.steps) + len(waits) == 8
    assert sum(waits) > 30_000
    assert waits[-1] <= 20_000
    assert replays(text, proof) == []


def test_equal_questions_have_equal_answers() -> None:
    """Nothing is left to chance."""
    assert ask(SEQUENCE, SHELL_AFTER_PAGE).as_json() == ask(SEQUENCE, SHELL_AFTER_PAGE).as_json()


# what plans tell apart


def test_arguments_are_told_apart_by_their_predicates() -> None:
    """A rule about one argument leaves the others a way, and it is found."""
    rule = "  - {id: r, kind: tool_selector, action: deny_call, tool: {namespace: shell, arguments: {/cmd: {glob: 'rm *'}}}}\n"
    proof = ask(HEAD + rule, "shell/exec")

    assert proof.verdict == "counter_example"
    assert proof.steps[-1].ruling.decision == "allow"
    assert replays(HEAD + rule, proof) == []


def test_a_call_that_cannot_be_read_slips_past_a_rule_that_only_notes() -> None:
    """Doubt does not move a machine: unreadable arguments are a way around a state that arguments enter."""
    rules = (
        "  - {id: enter, kind: tool_selector, action: transition, transition_to: reviewing_untrusted_tool_result, "
        "tool: {namespace: browser, phase: planning, arguments: {/url: {glob: 'http*'}}}}\n" + BLOCK
    )
    proof = ask(
        HEAD + rules, "namespace=shell,risk_class=irreversible after namespace=browser,phase=result_interpretation"
    )

    assert proof.verdict == "counter_example"
    assert replays(HEAD + rules, proof) == []


def test_failed_results_are_told_from_others_where_a_rule_asks() -> None:
    """A rule on successes alone is got around by a failure."""
    enter = ENTER.replace("phase: result_interpretation", "result_status: success")
    proof = ask(HEAD + enter + BLOCK, f"{SHELL_AFTER_PAGE} without user")

    assert proof.verdict == "counter_example"
    assert told(proof)[2][1] == "browser_x fails"
    assert replays(HEAD + enter + BLOCK, proof) == []


def test_a_providers_own_tools_are_tried_where_a_rule_speaks_of_them() -> None:
    """A search by the provider is an event of its reply."""
    rules = ENTER.replace("namespace: browser", "namespace: provider.web_search") + BLOCK
    plan = HEAD + rules
    held = ask(plan, "namespace=shell,risk_class=irreversible after provider.web_search within 1 turns")
    found = ask(HEAD + BLOCK, "namespace=shell,risk_class=irreversible after provider.web_search")

    assert (held.verdict, held.notes) == ("holds", ())
    assert found.verdict == "counter_example"
    assert replays(HEAD + BLOCK, found) == []


def test_tools_that_are_taken_away_are_declared_first() -> None:
    """A rule that strips a tool is judged with the tool declared."""
    rule = "  - {id: r, kind: tool_selector, action: strip_tools, tool: {namespace: shell}}\n"
    proof = ask(HEAD + rule, "shell")

    assert (proof.verdict, proof.notes) == ("holds", ("no call of the tool asked about is ever released",))
    assert "every request declares every tool that is called" in proof.assumes


def test_more_calls_in_one_reply_are_tried_when_asked_for() -> None:
    """Two calls side by side are tried unless the question says one."""
    question = "namespace=shell,risk_class=irreversible after namespace=browser,phase=planning within 1 events"
    two = ask(HEAD + BLOCK, question)
    one = prove(compiled(HEAD + BLOCK), replace(parse_question(question), calls=1))

    assert told(two)[-1][1] == "the model calls browser_x, the model calls shell_exec"
    assert one.verdict == "holds"


# honest


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (
            "{id: r, kind: request_guard, action: block, match: 'a[bc]+d'}",
            "rule 'r': which texts it finds is not searched to the end",
        ),
        (
            "{id: r, kind: budget, limits: {tokens: 5}}",
            "rule 'r': how much a reply uses (tokens) is not searched",
        ),
        (
            "{id: r, kind: budget, limits: {calls: 50}, within: {ms: 1000}}",
            "rule 'r': a budget's window is kept in parts",
        ),
        (
            "{id: r, kind: argument_schema, tool: {namespace: browser}, schema: {type: object}}",
            "rule 'r': what a argument_schema finds is not searched",
        ),
        (
            "{id: r, kind: tool_selector, action: deny_call, tool: {namespace: shell, phase: argument_repair}}",
            "rule 'r': calls that repair arguments are not searched",
        ),
        (
            "{id: r, kind: tool_selector, action: deny_call, tool: {namespace: x, arguments: {/a: {regex: '[a-f]{7}'}}}}",
            """arguments of 'x.x': none were found that fit {"namespace":"x","arguments":{"/a":{"regex":"[a-f]{7}"}}}""",
        ),
        (
            "{id: r, kind: tool_selector, action: deny_call, tool: {namespace: x}, "
            "exceptions: [{tool: {name: y}, expires: '2030-01-01', reason: none}]}",
            "rule 'r': exceptions end at dates of their own",
        ),
    ],
)
def test_what_is_not_searched_makes_the_answer_unknown(rule: str, reason: str) -> None:
    """G51: a plan with something that the search leaves out is never said to hold."""
    plan = f"{HEAD}{ENTER}    until: {{user_turn: true}}\n{BLOCK}  - {rule}\n"
    proof = ask(plan, f"{SHELL_AFTER_PAGE} without user", limit=300)

    assert proof.verdict == "unknown"
    assert reason in proof.reasons


def test_what_is_not_searched_does_not_matter_where_it_only_notes() -> None:
    """An alert on text changes nothing about what may run."""
    rule = "  - {id: r, kind: alert, match: 'a[bc]+d'}\n"

    assert ask(SEQUENCE + rule, f"{SHELL_AFTER_PAGE} within 30 s").verdict == "holds"


REFUSES = "governance:\n  - {id: no-shell, kind: tool_selector, action: deny_call, tool: {namespace: shell}}\n"
INTENT = "  - {id: asked, kind: intent, tool: {name: '*'}}\n"


@pytest.mark.parametrize(
    "rule",
    [
        "{id: r, kind: intent, tool: {name: '*'}}",
        "{id: r, kind: argument_provenance, tool: {name: '*'}}",
        "{id: r, kind: argument_schema, tool: {name: '*'}, schema: {type: object}}",
        "{id: r, kind: budget, limits: {tokens: 5}}",
        "{id: r, kind: request_guard, action: block, match: 'a[bc]+d'}",
        "{id: r, kind: tool_selector, action: deny_call, tool: {name: x, arguments: {/a: {regex: '[a-f]{7}'}}}}",
    ],
)
def test_a_rule_that_can_only_refuse_is_left_out_where_the_rest_holds_without_it(rule: str) -> None:
    """G51: less can run with such a rule than without it, so what cannot run without it cannot run."""
    proof = ask(f"{REFUSES}  - {rule}\n", "can shell run?")

    assert (proof.verdict, proof.reasons) == ("holds", ())
    assert proof.notes[-1] == "holds even without 'r', which can only refuse"


@pytest.mark.heavy
def test_what_holds_without_rules_that_only_refuse_holds_with_them() -> None:
    """G51: on random plans whose every rule can be searched, leaving such rules out never says more than the whole plan does."""
    held = 0
    for number in range(800):
        text, asked, world = random_plan(Random(number))
        plan = compiled(text)
        question = replace(parse_question(asked.line()), calls=world.calls)
        for easier, _, left_out in lenient(plan, plan.models["m"], question):
            if prove(easier, question).verdict == "holds":
                held += 1
                assert prove(plan, question).verdict == "holds", (number, left_out, text)

    assert held > 5


def test_what_only_such_a_rule_refuses_stays_unknown() -> None:
    """Without it there is a way, and whether the rule closes it is not known."""
    assert ask(f"{REFUSES}{INTENT}", "can browser run?").verdict == "unknown"


@pytest.mark.parametrize(
    ("plan", "question"),
    [
        (f"{HEAD}{ENTER}    until: {{user_turn: true}}\n{BLOCK}{INTENT}", f"{SHELL_AFTER_PAGE} without user"),
        (
            f"{REFUSES}{INTENT}  - {{id: few, kind: tool_sequence, after: {{tool: {{namespace: browser}}}}, "
            "then: {tool: {namespace: mail}, action: deny_call}, within: {events: 3}}\n",
            "can shell run?",
        ),
        (f"{REFUSES}{INTENT}", "can shell run after namespace=browser,phase=planning?"),
        (
            f"{REFUSES}{INTENT.replace('tool:', 'transition_to: b, tool:')}state_machine: {{initial_state: a, states: [a, b]}}\n",
            "can shell run?",
        ),
    ],
    ids=["a state moves", "a window of events", "asked after a call", "it moves a state itself"],
)
def test_where_something_remembers_a_refusal_nothing_is_left_out(plan: str, question: str) -> None:
    """A refusal that moves a state, fills a window or is itself what happened could open something."""
    assert ask(plan, question).verdict == "unknown"


def test_a_search_that_stops_early_says_so() -> None:
    """A bound that was reached is a reason, not an answer."""
    proof = ask(SEQUENCE, f"{SHELL_AFTER_PAGE} within 30 s", limit=20)

    assert proof.verdict == "unknown"
    assert proof.reasons[-1].startswith("stopped after ")


def test_times_without_a_measure_are_not_said_to_hold() -> None:
    """Windows of 30 s and 45,001 ms have no small common measure, so not every moment is tried."""
    rule = (
        "  - {id: r, kind: history_threshold, action: deny_call, threshold: 1, tool: {name: y}, within: {ms: 45001}}\n"
    )
    proof = ask(SEQUENCE + rule, f"{SHELL_AFTER_PAGE} within 30 s", limit=300)

    assert proof.verdict == "unknown"
    assert "times without a common measure (30000, 45001 ms)" in proof.reasons


def test_an_answer_about_something_that_never_happens_says_so() -> None:
    """A tool that is always refused never runs after anything, and that is worth a word."""
    rule = "  - {id: r, kind: tool_selector, action: deny_call, tool: {namespace: shell}}\n"

    assert ask(HEAD + rule, SHELL_AFTER_PAGE).notes == ("no call of the tool asked about is ever released",)


def test_the_answer_says_what_it_is_about() -> None:
    """What clients and models are taken to do stands with every answer."""
    assert ask(SEQUENCE, SHELL_AFTER_PAGE).assumes == (
        "one session, and a client that sends what it was given and every result",
        "at most 2 calls in one reply",
        "what requests declare is not asked about",
        "providers run no tools of their own but those that the plan speaks of",
        "nobody approves what waits for an approval",
    )


# questions


def test_a_question_in_yaml_is_the_same_question() -> None:
    """One line and YAML say the same."""
    (written,) = load_questions(
        "- question: can shell/exec run after browser without user within 30 s?\n"
        "  run: {namespace: shell, name: exec}\n"
        "  after: {namespace: browser}\n"
        "  without: {user_turn: true}\n"
        "  within: {ms: 30000}\n"
    )

    assert written == parse_question("can shell/exec run after browser without user within 30 s?")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("- {question: q, run: {namespac: shell}}\n", "unknown key 'namespac' (did you mean 'namespace'?)"),
        ("- {question: q, run: {risk_class: bad}}\n", "'bad' is not one of read_only"),
        ("- {question: q}\n", "missing key 'run'"),
        ("- {question: q, run: {name: x}, within: {}}\n", "an empty window; give turns, events or milliseconds"),
        ("- {question: q, run: {name: x}, without: {}}\n", "says nothing: give 'tool' or 'user_turn'"),
    ],
)
def test_a_question_that_says_nothing_sensible_is_refused(source: str, message: str) -> None:
    """Unknown keys, words and empty windows are problems with a place."""
    with pytest.raises(ConfigError) as caught:
        load_questions(source)

    assert message in "\n".join(problem.message for problem in caught.value.problems)


def test_what_a_plans_own_sequences_promise_is_asked_by_itself() -> None:
    """Within the window and ever, for a rule that has one."""
    questions = standard_questions(compiled(SEQUENCE).models["coding"])
    start = "can what 'block-shell-while-reviewing' refuses run after what 'enter-untrusted-review' waits for"

    assert [one.text for one in questions] == [f"{start}, within its window?", f"{start}, ever?"]
    assert [prove(compiled(SEQUENCE), one).verdict for one in questions] == ["holds", "counter_example"]


# the command


def test_check_proves_the_questions_beside_the_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G51: a question that is answered otherwise than expected is a problem with its place; `expect` says what is wanted."""
    (tmp_path / "plan.yaml").write_text(SEQUENCE, "utf-8")
    held = "- {question: soon, run: {namespace: shell, risk_class: irreversible}, after: {namespace: browser}, within: {ms: 30000}}\n"
    found = "- {question: late, run: {namespace: shell, risk_class: irreversible}, after: {namespace: browser}%s}\n"
    questions = tmp_path / "questions.yaml"
    questions.write_text(held + found % ", expect: counter_example", "utf-8")
    with pytest.raises(SystemExit) as good:
        main(["check", str(tmp_path / "plan.yaml"), str(tmp_path)])
    first = capsys.readouterr()
    questions.write_text(held + found % "", "utf-8")
    with pytest.raises(SystemExit) as bad:
        main(["check", str(tmp_path / "plan.yaml"), str(questions)])

    assert (good.value.code, bad.value.code) == (0, 1)
    assert first.out.endswith("2 rules for coding, 2 questions answered\n")
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"{questions}:2:1: late: expected holds, got counter_example: the user speaks; the model calls browser_x; "
        "browser_x answers; the model calls shell_exec"
    )


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(SEQUENCE, "utf-8")
    return str(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["prove", *arguments])
    code = caught.value.code
    return code if isinstance(code, int) else 0


def test_the_command_says_no_and_ends_with_0(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot happen is told in one line."""
    code = run("--config", plan, "--question", "can shell/exec run after browser within 30 s?")

    assert code == 0
    assert capsys.readouterr().out == "can shell/exec run after browser within 30 s?\n  no: every way was tried\n"


def test_the_command_shows_the_way_and_ends_with_1(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counter-example is told, written down as a case, and `check` plays it to the same end."""
    cases = tmp_path / "found.yaml"
    code = run("--config", plan, "--question", "can shell/exec run after browser?", "--cases", str(cases))

    assert code == 1
    assert capsys.readouterr().out == (
        "can shell/exec run after browser?\n"
        "  yes:\n"
        "    1. request: the user speaks (allow)\n"
        "    2. reply: the model calls browser_x (allow)\n"
        "    3. request: browser_x answers (allow)\n"
        "       30001 ms pass\n"
        "    4. reply: the model calls shell_exec (allow)\n"
    )
    with pytest.raises(SystemExit) as caught:
        main(["check", plan, str(cases)])
    assert caught.value.code == 0
    assert "1 of 1 cases hold" in capsys.readouterr().out


def test_the_command_ends_with_2_when_it_cannot_say(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """G61: unknown is neither yes nor no."""
    assert run("--config", plan, "--question", "shell/exec after browser within 30 s", "--limit", "20") == 2
    assert re.fullmatch(
        "shell/exec after browser within 30 s\n  unknown: no way was found, but\n    stopped after [0-9]+ gates\n"
        "  note: .*\n",
        capsys.readouterr().out,
        re.DOTALL,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--question", "is it safe to go out today?"), "<question>:1:1: $: cannot be read: ask as 'can TOOL run"),
        (("--question", "shell within 3 days"), "<question>:1:1: within: unknown unit"),
        (("--file", "missing.yaml"), "missing.yaml:1:1: $: cannot be read"),
        (("--model", "other"), "wardwright: no model 'other'"),
    ],
)
def test_bad_input_ends_with_2(
    arguments: tuple[str, ...], message: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read is told on standard error."""
    assert run("--config", plan, *arguments) == 2
    assert message in capsys.readouterr().err


def test_the_command_speaks_json(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer with its steps, and the counter-example as a case."""
    code = run("--config", plan, "--json")
    held, found = orjson.loads(capsys.readouterr().out)["proofs"]

    assert code == 1
    assert (held["verdict"], held["steps"], held["case"]) == ("holds", [], None)
    assert found["verdict"] == "counter_example"
    assert found["steps"][-1]["what"] == ["the model calls shell_exec"]
    assert found["case"]["expect"]["ruling"] == "allow"


def test_a_plan_without_sequences_has_nothing_to_ask_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then a question has to be given."""
    path = tmp_path / "plan.yaml"
    path.write_text("model_id: m\ngovernance: []\n", "utf-8")

    assert run("--config", str(path)) == 2
    assert capsys.readouterr().err == "wardwright: the plan has no sequence to ask about; give --question\n"
