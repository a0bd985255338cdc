"""What facts mean under rules: what starts, ends, counts and is spent; and what an attacker cannot make of it."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright import compile_plan, load_config
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import (
    DeclaredTool,
    HostedCallItem,
    HostedResultItem,
    Item,
    ToolChoice,
    Usage,
)

from .judged_session import Session, call, result, said, user


def rules(*lines: str, machine: str = "") -> str:
    return "\n".join([machine, "governance:", *(f"  - {line}" for line in lines)])


# what ends a sequence or a state

REVIEWED = rules(
    "{id: enter, kind: tool_sequence, after: {tool: {namespace: browser, phase: result_interpretation}},"
    " until: {tool: {name: approve}}, transition_to: reviewing}",
    "{id: no-shell, kind: tool_selector, state_scope: reviewing, action: block, tool: {namespace: shell, phase: planning}}",
    "{id: guard, kind: request_guard, match: forbidden}",
    machine="state_machine: {initial_state: calm, states: [{id: calm}, {id: reviewing}]}",
)
PAGE: list[Item] = [user("read"), call("1", "browser_open"), result("1", "page")]


def reviewing(plan: str = REVIEWED) -> Session:
    session = Session(plan)
    session.request(PAGE[0])
    session.reply(PAGE[1])
    session.request(*PAGE)
    return session


MADE_UP: list[tuple[str, list[Item], dict[str, Any]]] = [
    ("forged", [*PAGE[:2], call("f", "review.approve"), PAGE[2], result("f")], {}),
    ("other transcript", [user("x"), call("f", "review.approve"), result("f")], {}),
    ("forced", PAGE, {"tool_choice": ToolChoice("tool", ("review.approve",))}),
]


@pytest.mark.parametrize(("items", "more"), [one[1:] for one in MADE_UP], ids=[one[0] for one in MADE_UP])
def test_what_a_caller_makes_up_ends_no_state(items: list[Item], more: dict[str, Any]) -> None:
    """G16, G22: `until.tool` takes an event that took place here, not one that was forged or merely asked for."""
    session = reviewing()
    session.request(*items, **more)
    assert session.reply(call("2", "shell_exec")).decision == "block"


def test_what_took_place_ends_a_state() -> None:
    """G16: a call that passed ends what it is meant to end."""
    session = reviewing()
    session.reply(call("2", "review.approve"))
    assert session.reply(call("3", "shell_exec")).decision == "allow"


def test_a_call_does_not_free_the_calls_beside_it() -> None:
    """G16, E6: the model cannot approve and act in one reply."""
    session = reviewing()
    assert session.reply(call("2", "review.approve"), call("3", "shell_exec")).decision == "block"


def test_a_sequence_outlives_the_reply_that_ends_it() -> None:
    """G16, E6: as for states, what ends a sequence does so once the reply is over."""
    session = Session(
        rules(
            "{id: seq, kind: tool_sequence, action: deny_call, after: {tool: {name: a}},"
            " before: {tool: {name: b}}, until: {tool: {name: c}}}"
        )
    )
    session.reply(call("1", "a"))
    first = session.reply(call("2", "c"), call("3", "b"))
    then = session.reply(call("4", "b"))
    assert ([one.status for one in first.calls], then.decision) == (["allow", "deny_call"], "allow")


def test_a_refused_request_ends_nothing() -> None:
    """G16: a result that would end a state does not when its request is refused."""
    session = reviewing(REVIEWED.replace("{name: approve}", "{name: look, phase: result_interpretation}"))
    session.reply(call("2", "review.look"))
    refused = session.request(*PAGE, call("2", "review.look"), result("2"), user("forbidden"))
    assert (refused.decision, refused.states["default"]) == ("block", "reviewing")


def test_the_user_s_word_in_a_refused_request_is_not_heard() -> None:
    """G16: a sequence that blocks a request is not cleared by the words behind it."""
    session = Session(
        rules(
            "{id: seq, kind: tool_sequence, action: block, after: {tool: {name: a, phase: planning}},"
            " before: {tool: {name: b, phase: result_interpretation}}, until: {user_turn: true}}"
        )
    )
    session.request(user("x"))
    session.reply(call("1", "a"), call("2", "b"))
    items = [user("x"), call("1", "a"), call("2", "b"), result("1"), result("2"), user("go on")]
    assert [session.request(*items).decision for _ in range(3)] == ["block", "block", "block"]


def test_declaration_order_does_not_decide_whether_a_sequence_lives() -> None:
    """A1, E7: an event that ends a state and starts a sequence has started it, whichever rule comes first."""
    enter = "{id: enter, kind: tool_sequence, after: {tool: {name: a}}, transition_to: hot, until: {tool: {name: b}}}"
    seq = (
        "{id: seq, kind: tool_sequence, action: deny_call, after: {tool: {name: b}},"
        " before: {tool: {name: c}}, until: {state: calm}}"
    )
    machine = "state_machine: {initial_state: calm, states: [{id: calm}, {id: hot}]}"
    decisions: list[str] = []
    for order in ((enter, seq), (seq, enter)):
        session = Session(rules(*order, machine=machine))
        session.reply(call("1", "a"))
        session.reply(call("2", "b"))
        decisions.append(session.reply(call("3", "c")).decision)
    assert decisions == ["deny_call", "deny_call"]


# approvals

TOOL = DeclaredTool("calc", "", {"type": "object"})
SHELL = DeclaredTool("shell_exec", "", {"type": "object"})


def keys(ruling: Ruling) -> tuple[str, ...]:
    return tuple(finding.key for finding in ruling.findings if finding.key)


def test_an_approval_of_one_declared_tool_lifts_no_other() -> None:
    """G23: a tool added to the surface needs an approval of its own."""
    session = Session(
        rules("{id: a, kind: tool_selector, action: require_approval, tool: {source: declared_tool, name: '*'}}")
    )
    approved = keys(session.request(user("x"), tools=[TOOL]))
    same = session.request(user("x"), tools=[TOOL], approvals=approved)
    more = session.request(user("x"), tools=[TOOL, SHELL], approvals=approved)
    assert (same.decision, more.decision) == ("allow", "require_approval")


def test_an_approval_of_one_answer_lifts_no_other() -> None:
    """G18, G23: what is approved is this text, not the rule."""
    session = Session(rules("{id: g, kind: stream_guard, action: require_approval, match: secret}"))
    approved = keys(session.reply(said("a secret")))
    same = session.reply(said("a secret"), approvals=approved)
    other = session.reply(said("another secret"), approvals=approved)
    assert (same.decision, other.decision) == ("allow", "require_approval")


def test_an_approved_answer_is_released_under_the_ids_the_caller_sees() -> None:
    """G3, G23: a reply whose repeated id was replaced comes back with the new one, and is the reply that was approved."""
    session = Session(rules("{id: g, kind: stream_guard, action: require_approval, match: secret}"))
    session.reply(call("1", "w"))
    held = session.reply(said("secret"), call("1", "w"))
    released = session.reply(said("secret"), call(held.calls[0].call_id, "w"), approvals=keys(held))
    assert (held.decision, released.decision) == ("require_approval", "allow")


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [SHELL]},
        {"tool_choice": ToolChoice("required")},
        {"response_format": {"type": "object"}},
    ],
)
def test_an_approval_of_a_request_covers_all_it_says(more: dict[str, Any]) -> None:
    """G23: other tools, another choice or another form of answer is another request."""
    session = Session(rules("{id: g, kind: request_guard, action: require_approval, match: secret}"))
    approved = keys(session.request(user("secret")))
    assert session.request(user("secret"), approvals=approved, **more).decision == "require_approval"


# budgets

RESERVING = rules("{id: b, kind: budget, limits: {tokens: 1000}, reserve: {tokens: 600}}")


def test_requests_side_by_side_reserve_side_by_side() -> None:
    """G11: a second request of the session does not stand on the first one's reservation; a retry does."""
    session = Session(RESERVING)
    decisions = [session.request(user(text)).decision for text in ("a", "a", "b")]
    assert decisions == ["allow", "allow", "block"]


def test_a_provider_that_reports_no_usage_has_used_what_was_set_aside() -> None:
    """G11: a budget fills with upstreams that say nothing."""
    session = Session(RESERVING)
    decisions: list[str] = []
    for number in range(3):
        decisions.append(session.request(user(str(number))).decision)
        session.reply(said("x"))
    assert decisions == ["allow", "block", "block"]


def test_negative_usage_gives_nothing_back() -> None:
    """G11: a budget that is used up stays so."""
    session = Session(RESERVING)
    session.request(user("a"))
    session.reply(said("x"), usage=Usage(2000, 0))
    session.reply(said("x"), usage=Usage(-5000, 0))
    assert session.request(user("b")).decision == "block"


def test_a_crowd_of_reservations_is_settled_by_nobody() -> None:
    """G11, G30: beyond the cap reservations are added up; settling the first does not take them back."""
    session = Session(rules("{id: b, kind: budget, cache_scope: run_id, limits: {tokens: 700}, reserve: {tokens: 10}}"))
    asked = [session.request(user("x"), session=f"s{number}") for number in range(70)]
    for number in range(64):
        session.reply(said("x"), session=f"s{number}", usage=Usage(1, 0), request=asked[number].request)
    ruling = session.request(user("y"), session="last", tools=[])
    held = [
        value
        for scope in session.registers.scopes.values()
        for key, value in scope.registers.items()
        if "reserve" in key[1]
    ]
    assert (ruling.decision, sum(value[index] for value in held for index in range(1, len(value), 3))) == ("allow", 70)


def test_a_clock_that_goes_back_does_not_grow_a_budget() -> None:
    """G30: the register keeps its few parts, and what was spent stays spent."""
    session = Session(rules("{id: b, kind: budget, limits: {tokens: 10}, within: {ms: 80}}"))
    session.reply(said("x"), usage=Usage(6, 0))
    session.now -= 3_600_000
    session.reply(said("x"), usage=Usage(6, 0))
    longest = max(len(value) for scope in session.registers.scopes.values() for value in scope.registers.values())
    assert (session.request(user("a")).decision, longest < 12) == ("block", True)


# arguments


@pytest.mark.parametrize(("arguments", "problem"), [("not json", "was not declared"), ("{}", "was not declared")])
def test_an_undeclared_tool_has_no_schema_to_satisfy(arguments: str, problem: str) -> None:
    """G11: argument_schema denies a tool nobody declared, also when nothing was declared at all."""
    session = Session(rules("{id: a, kind: argument_schema, tool: {namespace: shell}}"))
    ruling = session.reply(call("1", "shell_exec", arguments))
    assert (ruling.decision, problem in ruling.message) == ("deny_call", True)


def test_a_key_given_twice_satisfies_no_schema() -> None:
    """G11, G13: the tool may read the other one."""
    schema = {"type": "object", "properties": {"n": {"maximum": 10}}}
    session = Session(rules("{id: a, kind: argument_schema, tool: {namespace: shell}}"))
    ruling = session.reply(
        call("1", "shell_exec", '{"n":1000000,"n":1}'), tools=[DeclaredTool("shell_exec", "", schema)]
    )
    assert (
        ruling.message
        == "Tool shell.exec has arguments or output that do not fit (rule 'a'). Problems: $: a key is given twice. Correct them and try again."
    )


# allow-lists


def test_every_current_event_is_compared_with_the_list() -> None:
    """G14: of two results side by side the unlisted one is found wherever it stands."""
    session = Session(
        rules("{id: l, kind: allowed_tools, phase: result_interpretation, allowed_tools: [{name: good}]}")
    )
    items = [user("x"), call("1", "n.bad"), call("2", "n.good"), result("1"), result("2")]
    assert session.request(*items).blocked_tools == ("n.bad",)


def test_an_exception_reaches_declared_tools() -> None:
    """G28: a tool that an exception names is neither stripped nor missing from a list."""
    exceptions = "exceptions: [{tool: {name: calc}, expires: 2100-01-01T00:00:00Z}]"
    session = Session(
        rules(
            f"{{id: s, kind: tool_selector, action: strip_tools, tool: {{name: '*'}}, {exceptions}}}",
            f"{{id: l, kind: allowed_tools, phase: planning, mode: filter, allowed_tools: [{{name: x}}], {exceptions}}}",
        )
    )
    assert session.request(user("x"), tools=[TOOL, SHELL]).stripped == ("shell_exec",)


# routes


def test_every_kind_of_rule_binds_the_next_request() -> None:
    """G12: a route that a reply asked for too late holds for the next request, also from a rule that reads replies only."""
    session = Session(
        rules("{id: o, kind: structured_output, action: switch_model, target_model: big, schema: {type: object}}")
    )
    session.request(user("x"))
    late = session.reply(said("[1]"), target="small", released=True)
    assert (late.binds_next, session.request(user("y")).route.model) == (True, "big")


def test_a_rule_of_a_bundle_binds_the_next_request() -> None:
    """G12, G25: also when the bundle is not attached to it."""
    session = Session(
        "policy_bundles:\n  b:\n    - {id: o, kind: tool_selector, action: switch_model, target_model: big, tool: {name: w}}\n"
        + rules("{id: a, kind: request_guard, action: annotate, match: x, attach_policy_bundle: b}")
    )
    session.request(user("x"))
    session.reply(call("1", "w"), target="small", released=True)
    assert session.request(user("y")).route.model == "big"


def test_a_refused_reply_is_not_asked_again() -> None:
    """G18: block is block, whatever routes say."""
    session = Session(
        rules(
            "{id: b, kind: tool_selector, action: block, tool: {name: w}}",
            "{id: r, kind: tool_selector, action: switch_model, target_model: big, tool: {name: w}}",
        )
    )
    ruling = session.reply(call("1", "w"), target="small")
    assert (ruling.decision, ruling.reask, ruling.binds_next) == ("block", False, False)


# counting


def test_a_forced_call_counts_once() -> None:
    """G15: choosing a tool and calling it is one occurrence."""
    session = Session(rules("{id: l, kind: tool_loop_threshold, action: block, threshold: 2, tool: {name: w}}"))
    asked = session.request(user("x"), tool_choice=ToolChoice("tool", ("w",)))
    called = session.reply(call("1", "w"))
    again = session.reply(call("2", "w"))
    assert [asked.decision, called.decision, again.decision] == ["allow", "allow", "block"]


def test_a_long_loop_in_a_window_is_told_by_one_position() -> None:
    """G15, E9: only what is inside the window counts, whatever the threshold."""
    session = Session(
        rules(
            "{id: l, kind: tool_loop_threshold, action: deny_call, threshold: 200, within: {turns: 210}, tool: {name: w}}"
        )
    )
    decisions = [session.reply(call(str(number), "w")).decision for number in range(201)]
    assert (decisions.index("deny_call"), decisions[-1]) == (199, "deny_call")


def test_keys_outside_the_window_make_room() -> None:
    """G30: a windowed loop does not take different calls for equal because of keys that count for nothing any more."""
    session = Session(
        rules(
            "{id: l, kind: tool_loop_threshold, action: deny_call, threshold: 2, equal: tool+arguments, within: {turns: 3}, tool: {name: w}}"
        )
    )
    decisions = {session.reply(call(str(n), "w", f'{{"n":{n}}}')).decision for n in range(600)}
    assert decisions == {"allow"}


def test_calls_counted_together_say_so() -> None:
    """G30, S57: beyond the cap the evidence and the message tell that calls were not told apart."""
    session = Session(
        rules(
            "{id: l, kind: tool_loop_threshold, action: deny_call, threshold: 2, equal: tool+arguments, message: Twice., tool: {name: w}}"
        )
    )
    for first in range(0, 5000, 1000):
        session.reply(*(call(str(n), "w", f'{{"n":{n}}}') for n in range(first, first + 1000)))
    ruling = session.reply(call("x", "w", '{"n":-1}'))
    assert (
        ruling.message == "Twice. (Too many different calls to tell apart: this one was counted together with others.)"
    )


# states


def test_states_that_expire_in_a_circle_keep_going_round() -> None:
    """G17: after a pause of any length the state is the one the clock says."""
    session = Session(
        rules(
            "{id: t, kind: tool_selector, action: transition, transition_to: a, tool: {name: w}}",
            machine="state_machine: {initial_state: i, states: [{id: i}, {id: a, expires_ms: 10, expires_to: b},"
            " {id: b, expires_ms: 30, expires_to: a}]}",
        )
    )
    session.reply(call("1", "w"))
    session.now += 40 * 1000 + 5
    first = session.request(user("x")).states["default"]
    session.now += 20
    assert (first, session.request(user("y")).states["default"]) == ("a", "b")


# what a provider was not shown


@pytest.mark.parametrize("name", ["shell_exec", "SHELL_EXEC"])
def test_a_tool_that_was_stripped_cannot_be_called(name: str) -> None:
    """G12, G43: a model that calls it all the same is denied, by the rule that took it away."""
    session = Session(rules("{id: s, kind: tool_selector, action: strip_tools, tool: {namespace: shell}}"))
    session.request(user("x"), tools=[TOOL, SHELL])
    ruling = session.reply(call("1", name), call("2", "calc"), tools=[TOOL])
    assert [(one.status, one.rules) for one in ruling.calls] == [("deny_call", ("s",)), ("allow", ())]


def test_a_stripped_tool_stays_denied_when_its_rule_is_gone() -> None:
    """G12, G30: a change of plan between request and reply shows nothing to the provider after the fact."""
    session = Session(rules("{id: s, kind: tool_selector, action: strip_tools, tool: {namespace: shell}}"))
    session.request(user("x"), tools=[TOOL, SHELL])
    session.plan = compile_plan(load_config(rules("{id: n, kind: tool_selector, action: annotate, tool: {name: zz}}")))
    ruling = session.reply(call("1", "shell_exec"))
    assert (ruling.rule_id, ruling.message) == (
        "s",
        "Tool shell.exec is not allowed here (rule 's'). Use another tool, or ask the operator for an exception.",
    )


# text

GUARD = rules("{id: g, kind: request_guard, match: secret}")


@pytest.mark.parametrize(
    "item",
    [
        user("\uff53\uff45\uff43\uff52\uff45\uff54"),
        user("se\u200bcr\u00adet"),
        call("1", "w", '{"a":"s\\u0065cret"}'),
        call("1", "w", '{"s\\u0065cret":[1]}'),
    ],
)
def test_text_is_read_as_it_reads(item: Item) -> None:
    """G11: full-width letters, characters that show nothing and JSON escapes do not hide a word."""
    assert Session(GUARD).request(item).decision == "block"


def test_a_word_split_between_blocks_of_an_answer_is_found() -> None:
    """G11: the blocks of one answer are read on end."""
    session = Session(rules("{id: g, kind: stream_guard, match: secret}"))
    assert session.reply(said("a sec"), said("ret")).decision == "block"


BUNDLED = (
    "policy_bundles:\n  b:\n    - {id: n, kind: alert, match: old}\n    - {id: w, kind: request_guard, action: inject_reminder, text: Hm., match: old}\n"
    "    - {id: r, kind: tool_selector, action: block, tool: {name: w, phase: result_interpretation}}\n"
    + rules("{id: a, kind: request_guard, action: inject_reminder, text: Hi., match: x, attach_policy_bundle: b}")
)


def test_a_bundle_alerts_once_for_one_text() -> None:
    """G11, G25: what a bundle has read in the last request is no news in the next; its other rules hold while the text is there."""
    session = Session(BUNDLED)
    first = session.request(user("x old"))
    session.reply(said("k"))
    then = session.request(user("x old"), said("k"), user("new"))
    assert [(len(one.alerts), one.reminders) for one in (first, then)] == [(1, ("Hi.", "Hm.")), (0, ("Hi.", "Hm."))]


def test_a_bundle_judges_the_results_of_its_request() -> None:
    """G25: a result that a tool run by us gives is judged by the bundles of the request that led to it."""
    session = Session(BUNDLED)
    session.request(user("x"))
    session.reply(call("1", "w"))
    assert session.go("result", [call("1", "w"), result("1")]).decision == "block"


def test_hosted_calls_are_calls() -> None:
    """G11: a budget of calls counts what a provider runs, too."""
    session = Session(rules("{id: b, kind: budget, action: deny_call, limits: {calls: 2}}"))
    session.reply(HostedCallItem("1", "web_search", "{}"), HostedResultItem("1", "web_search", "x"), said("k"))
    session.reply(HostedCallItem("2", "web_search", "{}"), said("k"))
    assert session.reply(call("3", "w")).decision == "deny_call"


def test_calls_are_counted_in_whole_numbers() -> None:
    """G18: a receipt tells of 2 calls, not of 2.0."""
    session = Session(rules("{id: b, kind: budget, action: deny_call, limits: {calls: 2}}"))
    session.reply(call("1", "w"), call("2", "w"))
    (finding,) = session.reply(call("3", "w")).findings
    assert repr(finding.evidence["used"]) == "2"


# what a change of plan keeps


def loop(rule_id: str, threshold: int, tool: str = "name: w", action: str = "deny_call", more: str = "") -> str:
    return f"{{id: {rule_id}, kind: tool_loop_threshold, action: {action}, threshold: {threshold}, tool: {{{tool}}}{more}}}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([loop("deny", 3)], [loop("note", 9, action="annotate"), loop("deny", 3)]),
        ([loop("deny", 3)], [loop("soon", 9), loop("deny", 3)]),
        ([loop("deny", 3)], [loop("deny", 3, tool="name: [W]")]),
        ([loop("deny", 5, more=", within: {turns: 50}")], [loop("deny", 3, more=", within: {turns: 50}")]),
    ],
    ids=["a note before it", "a twin before it", "written differently", "a lower threshold in a window"],
)
def test_a_plan_change_keeps_the_count(first: list[str], second: list[str]) -> None:
    """G30: what still applies goes on counting from where it was."""
    session = Session(rules(*first))
    session.reply(call("1", "w"))
    session.reply(call("2", "w"))
    session.plan = compile_plan(load_config(rules(*second)))
    assert session.reply(call("3", "w")).rule_id == "deny"


def test_twins_count_once() -> None:
    """G15, G30: two rules over one register each see the true count, in any order and with any threshold."""
    for window in ("", ", within: {turns: 50}"):
        session = Session(rules(loop("late", 4, more=window), loop("soon", 2, more=window)))
        found = [session.reply(call(str(number), "w")).calls[0].rules for number in range(4)]
        assert found == [(), ("soon",), ("soon",), ("late", "soon")]


def test_twin_budgets_spend_once() -> None:
    """G11, G30: what is used is used once, whoever watches."""
    twin = "{{id: {}, kind: budget, action: deny_call, limits: {{calls: {}}}, tool: {{name: w}}}}"
    session = Session(rules(twin.format("a", 3), twin.format("b", 2)))
    found = [session.reply(call(str(number), "w")).decision for number in range(3)]
    assert found == ["allow", "allow", "deny_call"]


def test_a_route_of_a_twin_binds_at_its_own_threshold() -> None:
    """G12, G15: a loop that refuses early does not bind the route of one that waits longer."""
    more = ", target_model: big"
    session = Session(rules(loop("soon", 1, action="alert_async"), loop("route", 2, action="switch_model", more=more)))
    session.reply(call("1", "w"), target="big")
    before = session.request(user("x")).route.model
    session.reply(call("2", "w"), target="big")
    assert (before, session.request(user("x"), said("y")).route.model) == ("", "big")


@pytest.mark.parametrize(
    ("exception", "routed"),
    [
        ("tool: {name: w}, expires: 2100-01-01", ""),
        ("tool: {name: w}, expires: 1970-01-02", "big"),
        ("tool: {name: v}, expires: 2100-01-01", "big"),
        ("tool: {name: w}, caller: {user: eve}, expires: 2100-01-01", "big"),
    ],
    ids=["stands", "ran out", "of another tool", "of another caller"],
)
def test_an_excepted_loop_binds_no_later_request(exception: str, routed: str) -> None:
    """G12, G28: what an exception by tool lifts from the reply, it lifts from the requests that the count would bind."""
    more = f", target_model: big, exceptions: [{{{exception}}}]"
    session = Session(rules(loop("route", 2, action="switch_model", more=more)))
    for number in range(3):
        session.reply(call(str(number), "w"), target="big")

    assert session.request(user("x")).route.model == routed
