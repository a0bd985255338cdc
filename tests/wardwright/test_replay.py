"""Claims about replaying stored receipts: the same plan says the same, and what cannot be known is named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from wardwright import compile_plan, load_config, receipts
from wardwright.gateway import govern
from wardwright.history import Registers, apply
from wardwright.receipts import Judged, Outcome
from wardwright.replay import replay, walk
from wardwright.simulate import read_transcript, simulate
from wardwright.wire import Caller, CallItem, DeclaredTool, ResultItem, TextItem, Turn, Usage

from .conversations import WIRES, conversation

FACTUAL = """
targets: [{model: a}, {model: b}]
state_machines:
  - {id: default, initial_state: active, states: [active, reviewing]}
  - {id: cost, initial_state: cheap, states: [cheap, dear], expires_ms: 50, expires_to: cheap}
governance:
  - {id: review, kind: tool_sequence, transition_to: reviewing, within: {events: 6},
     after: {tool: {namespace: browser, phase: result_interpretation}}}
  - {id: no-shell, kind: tool_selector, action: deny_call, state_scope: reviewing, tool: {namespace: shell}}
  - {id: loops, kind: tool_loop_threshold, action: deny_call, threshold: 2, tool: {name: '*'}}
  - {id: same, kind: tool_loop_threshold, action: block, threshold: 2, equal: tool+arguments, within: {turns: 9},
     tool: {namespace: [mail, files]}}
  - {id: many, kind: history_threshold, action: switch_model, target_model: b, threshold: 3, tool: {name: '*'}}
  - {id: dear, kind: tool_selector, action: transition, state_machine_id: cost, transition_to: dear, tool: {namespace: mail}}
  - {id: after, kind: tool_sequence, after: {tool: {namespace: shell}}, before: {tool: {namespace: mail}}, action: block}
  - {id: few, kind: budget, limits: {calls: 5}, action: deny_call}
  - {id: listed, kind: allowed_tools, phase: result_interpretation, mode: filter,
     allowed_tools: [{name: '*', namespace: browser}, {name: '*', namespace: shell}, {name: '*', namespace: unknown}]}
"""


def plan(text: str) -> Any:
    return compile_plan(load_config(text))


def rule(text: str) -> str:
    return f"governance:\n  - {{id: r, {text}}}\n"


def exchange(
    governing: Any, registers: Registers, turns: list[Turn], number: int, *, capture: bool = False
) -> tuple[Any, Registers]:
    """One receipt made by ruling on turns, as live serving makes it."""
    judged: list[Judged] = []
    for turn in turns:
        ruling, delta = govern(governing, registers, turn, number * 1000)
        registers = apply(registers, delta)
        judged.append(Judged(turn, ruling, number * 1000, 7))
    rules = receipts.rules_of(governing.model(turns[0].model))
    built = receipts.build(f"r{number}", judged, Outcome("released"), rules, b"k", capture=capture)
    return receipts.load(receipts.record(built).body), registers


CALLER = Caller(session_id="s")


def calls(*names: str, arguments: str = "{}", **fields: Any) -> list[Turn]:
    """A request and a reply with these calls."""
    items = [CallItem(f"{name}-{index}", name, arguments) for index, name in enumerate(names)]
    return [
        Turn("request", "chat_completions", "m", [TextItem("user", "go")], caller=CALLER),
        Turn("reply", "chat_completions", "m", items, caller=CALLER, **fields),
    ]


def recorded(governing: Any, *exchanges: list[Turn], capture: bool = False) -> list[Any]:
    registers = Registers(key=b"k")
    found: list[Any] = []
    for number, turns in enumerate(exchanges, 1):
        receipt, registers = exchange(governing, registers, turns, number, capture=capture)
        found.append(receipt)
    return found


ALLOW = plan("governance:\n  - {id: note, kind: tool_selector, action: annotate, tool: {name: nothing}}\n")


@pytest.mark.parametrize("number", range(60))
def test_the_plan_that_ruled_rules_the_same_again(number: int) -> None:
    """From kept facts alone every kind that needs no text gives the recorded ruling."""
    governing = plan(FACTUAL)
    talk = replace(conversation(number), claim=None)
    body = WIRES[number % len(WIRES)].request(talk, len(talk.rounds) - 1, random.Random(number))
    body["model"] = "m"
    made = simulate(governing, read_transcript(body), now=1000, step_ms=20)
    stored = [receipts.load(receipts.record(receipt).body) for receipt in made.receipts]

    again = replay(governing, stored)

    assert again.gates == len(made.steps)
    assert [(one.before, one.after) for one in again.changes] == []
    assert again.counts == {"same": len(made.steps), "changed": 0, "unknown": 0}
    assert again.unreplayable == ()


def test_a_walk_shows_what_was_remembered_after_each_gate() -> None:
    """Step by step, with the counters and states of that moment; what is judged otherwise is said to be."""
    governing = plan(FACTUAL)
    made = recorded(governing, calls("mail_send"), calls("mail_send"))

    walked = walk(governing, made)
    narrow = walk(plan(rule("kind: tool_selector, action: block, tool: {name: '*'}")), made)

    counted = [
        value
        for step in walked.steps
        for state in step.scopes.values()
        for (key, of), value in state.registers.items()
        if (key, of) == (receipts.rules_of(governing.model("m"))["loops"].key, "unknown\x1fmail_send")
    ]
    assert [(step.receipt["id"], step.gate["gate"], step.same) for step in walked.steps] == [
        ("r1", "request", True),
        ("r1", "reply", True),
        ("r2", "request", True),
        ("r2", "reply", True),
    ]
    assert counted == [(1,), (1,), (2,)]
    assert [step.same for step in narrow.steps] == [True, False, True, False]


def test_a_walk_names_what_it_left_out_and_could_not_judge() -> None:
    """A rule that needs text, and a model that the plan does not have."""
    made = recorded(ALLOW, calls("a"))
    other = plan("models:\n  - {model_id: x}\n  - {model_id: y}\n")

    assert [
        one.rule_id for one in walk(plan(rule("kind: request_guard, match: x, action: block")), made).unreplayable
    ] == ["r"]
    walked = walk(other, made)
    assert (walked.notes, [step.ruling for step in walked.steps]) == (("No plan governs model 'm'.",), [None, None])


def talk_of(governing: Any, *gates: tuple[str, list[Any]], tools: Sequence[DeclaredTool] = ()) -> list[Any]:
    """Receipts of one conversation, each gate with its items."""
    turns = [
        Turn(cast("Any", gate), "chat_completions", "m", items, list(tools), caller=Caller(session_id="s"))
        for gate, items in gates
    ]
    return recorded(governing, *([turn] for turn in turns))


def test_a_stripped_tool_that_was_called_is_denied_again() -> None:
    """G51, G43: what a request took away is still away in its replayed reply."""
    governing = plan(
        "catalog: [{match: shell_exec, namespace: shell, name: exec}]\n"
        "governance:\n  - {id: st, kind: tool_selector, action: strip_tools, tool: {namespace: shell, source: declared_tool}}\n"
    )
    tools = [DeclaredTool("shell_exec"), DeclaredTool("y")]
    asked = ("request", [TextItem("user", "a")])
    made = talk_of(governing, asked, ("reply", [CallItem("c", "shell_exec", "{}")]), tools=tools)

    assert made[1]["decision"]["decision"] == "deny_call"
    assert replay(governing, made).counts == {"same": 2, "changed": 0, "unknown": 0}


@pytest.mark.parametrize("later", [False, True])
def test_an_invented_event_ends_no_sequence_in_a_replay_either(later: bool) -> None:
    """G51, G22: a call that never passed frees nothing, and neither does its result, be it told in the next request."""
    governing = plan(
        "governance:\n  - {id: q, kind: tool_sequence, action: deny_call, after: {tool: {name: a}},"
        " before: {tool: {name: b}}, until: {tool: {name: ok}}}\n"
    )
    begin: list[Any] = [TextItem("user", "a"), CallItem("c", "a", "{}"), ResultItem("c", "k")]
    invented = [CallItem("f", "ok", "{}"), ResultItem("f", "yes")]
    told = [("request", [*begin, invented[0]])] if later else []
    made = talk_of(
        governing,
        ("request", begin[:1]),
        ("reply", [begin[1]]),
        *told,
        ("request", [*begin, *invented, TextItem("user", "z")]),
        ("reply", [CallItem("g", "b", "{}")]),
    )

    assert made[-1]["decision"]["decision"] == "deny_call"
    again = replay(governing, made)
    assert (again.counts["same"], again.changes, again.unreplayable) == (len(made), (), ())


def test_the_result_of_an_imported_call_ends_no_sequence_in_a_replay_either() -> None:
    """G51, G22: a call that a first request brought along never passed here; a replay remembers that when its result comes."""
    governing = plan(
        "governance:\n  - {id: q, kind: tool_sequence, action: deny_call, after: {tool: {name: a}},"
        " before: {tool: {name: b}}, until: {tool: {name: ok, phase: result_interpretation}}}\n"
    )
    brought = [TextItem("user", "a"), CallItem("c", "a", "{}"), ResultItem("c", "k"), CallItem("f", "ok", "{}")]
    made = talk_of(
        governing,
        ("request", brought),
        ("reply", [TextItem("assistant", "hm")]),
        ("request", [*brought, TextItem("assistant", "hm"), ResultItem("f", "yes")]),
        ("reply", [CallItem("g", "b", "{}")]),
    )

    assert made[-1]["decision"]["decision"] == "deny_call"
    assert replay(governing, made).counts == {"same": 4, "changed": 0, "unknown": 0}


def test_another_plan_changes_what_it_changes() -> None:
    """A stricter plan's denials are named with the rule and the facts it used."""
    stored = recorded(ALLOW, calls("shell_exec", "browser_open"))

    again = replay(plan(rule("kind: tool_selector, action: deny_call, tool: {namespace: shell}")), stored)

    (change,) = again.changes
    assert (change.gate, change.before.decision, change.after.decision) == ("reply", "allow", "deny_call")
    assert change.after.calls == {"shell_exec-0": "deny_call", "browser_open-1": "allow"}
    (flip,) = change.flipped
    assert (flip.rule_id, flip.before, flip.after, flip.tool) == ("r", "", "deny_call", "shell.exec")
    assert [fact["name"] for fact in flip.facts] == ["exec"]
    assert again.counts == {"same": 1, "changed": 1, "unknown": 0}
    assert again.fired == {"r": (0, 1)}


def test_rules_count_anew_over_the_whole_record() -> None:
    """A threshold of the new plan is reached by calls of earlier receipts."""
    stored = recorded(ALLOW, *[calls("search", arguments=f'{{"n": {number}}}') for number in range(4)])

    again = replay(
        plan(rule("kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: search}")), stored
    )

    assert [change.receipt_id for change in again.changes] == ["r3", "r4"]
    assert again.changes[0].flipped[0].values == {"observed_count": (None, 3)}


def test_gates_before_the_asked_time_count_and_are_not_compared() -> None:
    """`since_ms` narrows the answer, not the history it rests on."""
    stored = recorded(ALLOW, *[calls("search") for _ in range(4)])
    strict = plan(rule("kind: tool_loop_threshold, action: deny_call, threshold: 3, tool: {name: search}"))

    again = replay(strict, stored, since_ms=4000)

    assert [change.receipt_id for change in again.changes] == ["r4"]
    assert again.gates == 2


def test_facts_are_named_by_the_new_plans_catalog() -> None:
    """A tool the operator has learned to call dangerous is judged as such."""
    stored = recorded(ALLOW, calls("frobnicate"))
    named = "catalog:\n  - {match: frobnicate, namespace: db, name: drop, risk_class: irreversible}\n" + rule(
        "kind: tool_selector, action: deny_call, tool: {risk_class: irreversible}"
    )

    again = replay(plan(named), stored)

    assert again.changes[0].flipped[0].facts[0]["namespace"] == "db"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("kind: request_guard, action: block, match: secret", "text is not kept"),
        ("kind: stream_guard, action: block, match: secret", "text is not kept"),
        ("kind: structured_output, schema: {type: object}", "text is not kept"),
        ("kind: argument_schema, tool: {namespace: shell}", "the declared schema is not kept"),
        (
            "kind: argument_schema, tool: {namespace: shell}, schema: {type: object, required: [x]}",
            "arguments were not captured",
        ),
        (
            "kind: tool_selector, action: block, tool: {namespace: shell, arguments: {/cmd: {glob: 'rm *'}}}",
            "arguments were not captured",
        ),
        ("kind: budget, limits: {seconds: 1}", "the time a provider took is not kept"),
        (
            "kind: tool_sequence, action: block, until: {user_turn: true}, after: {tool: {name: a}}, before: {tool: {name: b}}",
            "user turns are not kept",
        ),
        (
            "kind: tool_sequence, action: block, after: {tool: {source: declared_tool}}, before: {tool: {name: b}}",
            "changes of the declared tools are not kept",
        ),
        ("kind: tool_selector, action: block, tool: {mark: definition_changed}", "tool definitions are not kept"),
    ],
)
def test_a_rule_that_needs_what_was_not_kept_is_named(text: str, missing: str) -> None:
    """It is left out and listed with the missing fact, never guessed at."""
    stored = recorded(ALLOW, calls("shell_exec", arguments='{"cmd": "rm -r x"}'))

    again = replay(plan(rule(text)), stored)

    assert [(one.rule_id, one.missing) for one in again.unreplayable] == [("r", missing)]
    assert again.changes == ()


def test_an_unread_status_is_named_when_the_catalog_would_read_it() -> None:
    """A rule on result_status cannot be replayed where an extractor would need the content."""
    text = (
        "catalog:\n  - {match: run, namespace: ci, name: run, result_status: [{pattern: FAILED, status: error}]}\n"
        + rule("kind: tool_selector, action: block, tool: {namespace: ci, result_status: error}")
    )
    turns = [
        *calls("run"),
        Turn(
            "request",
            "chat_completions",
            "m",
            [TextItem("user", "go"), CallItem("run-0", "run", "{}"), ResultItem("run-0", "FAILED")],
            caller=CALLER,
        ),
    ]

    again = replay(plan(text), recorded(ALLOW, turns))

    assert [one.missing for one in again.unreplayable] == [
        "the catalog reads the status from results, and their content was not captured"
    ]


def test_clamped_controls_are_not_replayed() -> None:
    """What a caller asked of a hosted tool is not kept, so what a limit would have made of it cannot be known."""
    text = rule(
        "kind: tool_selector, action: set_controls, controls: {max_uses: 1}, tool: {namespace: provider.web_search}"
    )

    again = replay(plan(text), recorded(ALLOW, calls("browser_open")))

    assert [(one.rule_id, one.missing) for one in again.unreplayable] == [
        ("r", "the controls of declared tools are not kept")
    ]


def test_captured_arguments_are_replayed() -> None:
    """With capture switched on, predicates and given schemas see what the tool would have seen."""
    stored = recorded(ALLOW, calls("shell_exec", arguments='{"cmd": "rm -r x"}'), capture=True)
    text = rule("kind: tool_selector, action: deny_call, tool: {namespace: shell, arguments: {/cmd: {glob: 'rm *'}}}")

    again = replay(plan(text), stored)

    assert again.unreplayable == ()
    assert again.counts["changed"] == 1


def test_predicates_on_tools_that_never_came_are_no_gap() -> None:
    """A rule is named only when a fact it could match lacks what it reads."""
    stored = recorded(ALLOW, calls("browser_open"))
    text = rule("kind: tool_selector, action: deny_call, tool: {namespace: shell, arguments: {/cmd: {glob: 'rm *'}}}")

    assert replay(plan(text), stored).unreplayable == ()


def test_what_depends_on_an_unreplayable_rule_is_named_too() -> None:
    """A state that a text rule moves cannot be known, nor can rules inside it, nor a bundle it attaches."""
    text = """
state_machine: {initial_state: active, states: [active, alarmed]}
policy_bundles:
  strict: [{id: no-shell, kind: tool_selector, action: block, tool: {namespace: shell}}]
governance:
  - {id: alarm, kind: request_guard, action: transition, match: help, transition_to: alarmed, attach_policy_bundle: strict}
  - {id: stop, kind: tool_selector, action: block, state_scope: alarmed, tool: {name: '*'}}
  - {id: free, kind: tool_selector, action: annotate, tool: {name: '*'}}
"""

    again = replay(plan(text), recorded(ALLOW, calls("shell_exec")))

    assert {one.rule_id: one.missing for one in again.unreplayable} == {
        "alarm": "text is not kept",
        "stop": "its state is moved by 'alarm', which cannot be replayed",
        "strict/no-shell": "its bundle is attached by 'alarm', which cannot be replayed",
    }


def test_a_recorded_refusal_by_a_text_rule_is_unknown_not_changed() -> None:
    """The rule acted then; whether it would again cannot be said."""
    guarded = plan(rule("kind: request_guard, action: block, match: go"))
    stored = recorded(guarded, calls("open")[:1])

    again = replay(guarded, stored)

    assert again.counts == {"same": 0, "changed": 0, "unknown": 1}
    assert again.changes[0].verdict == "unknown"


def test_an_approval_stays_given() -> None:
    """What an operator approved then is not held again."""
    asking = plan(rule("kind: tool_selector, action: require_approval, tool: {namespace: shell}"))
    turns = calls("shell_exec")
    registers = Registers(key=b"k")
    ruling, _ = govern(asking, registers, turns[1], 1000)
    approved = replace(turns[1], approvals=(ruling.findings[0].key,))

    again = replay(asking, recorded(asking, [turns[0], approved]))

    assert again.counts == {"same": 2, "changed": 0, "unknown": 0}


def test_token_budgets_are_settled_from_the_kept_usage() -> None:
    """What a reply used is on its receipt, so that a budget of tokens can be replayed."""
    stored = recorded(ALLOW, *[calls("open", usage=Usage(40, 20)) for _ in range(3)])

    again = replay(plan(rule("kind: budget, limits: {tokens: 100}")), stored)

    assert [(change.receipt_id, change.gate) for change in again.changes] == [("r3", "request")]


def test_an_exchange_on_record_twice_counts_once() -> None:
    """A receipt written when the request passed, and again when the exchange ended, holds the same request."""
    (ended,) = recorded(ALLOW, calls("search"))
    opened = {
        **ended,
        "id": "r0",
        "decision": {**ended["decision"], "gates": ended["decision"]["gates"][:1]},
        "final": {**ended["final"], "status": "open"},
    }

    assert replay(ALLOW, [opened, ended]).gates == 2


def test_operators_actions_and_unknown_models_are_passed_over() -> None:
    """Admin receipts hold no gate; a model no plan governs is noted."""
    two = "models:\n  - {model_id: x}\n  - {model_id: y}\n"
    admin = receipts.build_admin("a1", 5, CALLER, "activate", "plan")

    again = replay(plan(two), [admin, *recorded(ALLOW, calls("search"))])

    assert (again.receipts, again.gates) == (1, 0)
    assert again.notes == ("No plan governs model 'm'.",)


def test_the_json_form_is_complete() -> None:
    """What `--json` prints holds counts, changes with what flipped them, and the rules left out."""
    stored = recorded(ALLOW, calls("shell_exec"))
    told = replay(plan(rule("kind: tool_selector, action: block, tool: {namespace: shell}")), stored).as_json()

    keys = {"plan_hash", "receipts", "gates", "counts", "changes", "left_off", "unreplayable", "fired", "notes"}
    assert set(told) == keys
    assert told["changes"][0]["after"]["decision"] == "block"
    assert told["changes"][0]["flipped"][0]["facts"][0]["namespace"] == "shell"
