"""Anything doubtful refuses activation, with place, path and the nearest right word; what is odd is a warning."""

from __future__ import annotations

import pytest

from wardwright import compile_plan
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.policy.compile import ACTION_KEYS, KINDS
from wardwright.policy.rules import GATES

RULE = "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: a}}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compile_plan(parse_config(text, "f"))
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str) -> list[str]:
    return [str(problem) for problem in compile_plan(parse_config(text, "f")).warnings]


def one(rule: str, before: str = "") -> list[str]:
    """Problems of a plan with this one rule, without their place."""
    return [problem.split(": ", 1)[1] for problem in problems(f"{before}governance:\n  - {rule}\n")]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "{id: r, kind: tool_selecter, action: block}",
            "governance[0].kind: unknown kind 'tool_selecter' (did you mean 'tool_selector'?)",
        ),
        ("{id: r, kind: intent}", "governance[0].kind: unknown kind 'intent'"),
        ("{id: r, kind: argument_provenance}", "governance[0].kind: unknown kind 'argument_provenance'"),
        ("{kind: tool_selector, action: block, tool: {name: a}}", "governance[0]: missing key 'id'"),
        ("{id: r, action: block, tool: {name: a}}", "governance[0]: missing key 'kind'"),
        (
            "{id: r, kind: tool_selector, tool: {name: a}}",
            "governance[0].kind: missing key 'action': kind 'tool_selector' has no default",
        ),
        (
            "{id: r, kind: tool_selector, action: bloc, tool: {name: a}}",
            "governance[0].action: unknown action 'bloc' (did you mean 'block'?)",
        ),
        ("{id: r, kind: tool_selector, action: block}", "governance[0]: missing key 'tool'"),
        (
            "{id: r, kind: tool_selector, action: block, tol: {}, tool: {name: a}}",
            "governance[0].tol: unknown key 'tol' (did you mean 'tool'?)",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {}}",
            "governance[0].tool: an empty matcher would match every tool; say what it matches",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {namespace: []}}",
            "governance[0].tool.namespace: must not be an empty list",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {phase: planing}}",
            "governance[0].tool.phase: 'planing' is not one of planning, argument_repair, result_interpretation, loop_governance, unknown (did you mean 'planning'?)",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {risk_class: wirte}}",
            "governance[0].tool.risk_class: 'wirte' is not one of",
        ),
        (
            "{id: r, kind: tool_selector, action: switch_model, tool: {name: a}}",
            "governance[0]: missing key 'target_model'",
        ),
        (
            "{id: r, kind: tool_selector, action: restrict_routes, routes: [], tool: {name: a}}",
            "governance[0].routes: must not be an empty list",
        ),
        (
            "{id: r, kind: tool_selector, action: block, state_scope: activ, tool: {name: a}}",
            "governance[0].state_scope: unknown state 'activ' (did you mean 'active'?)",
        ),
        (
            "{id: r, kind: tool_selector, action: block, state_machine_id: x, tool: {name: a}}",
            "governance[0].state_machine_id: unknown state machine 'x'",
        ),
        (
            "{id: r, kind: tool_selector, action: transition, transition_to: gone, tool: {name: a}}",
            "governance[0].transition_to: unknown state 'gone'",
        ),
        (
            "{id: r, kind: tool_selector, action: block, attach_policy_bundle: write_tool_validation, tool: {name: a}}",
            "governance[0].attach_policy_bundle: unknown policy bundle 'write_tool_validation' (did you mean 'write_tool_validation_v1'?)",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {arguments: {path: {equals: x}}}}",
            "governance[0].tool.arguments.path: 'path' is not a JSON pointer; write '/path'",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {arguments: {/p: {regex: '(?=a)'}}}}",
            "governance[0].tool.arguments./p.regex: bad regular expression '(?=a)': invalid perl operator: (?=",
        ),
        (
            "{id: r, kind: tool_selector, action: block, mode: shadow, tool: {name: a}}",
            "governance[0].mode: 'shadow' is not one of enforce, observe",
        ),
        ("{id: r, kind: request_guard, match: '('}", "governance[0].match: bad regular expression '(': missing ): ("),
        ("{id: r, kind: request_guard, match: 'a*'}", "governance[0].match: 'a*' matches everything"),
        (
            "{id: r, kind: request_guard, match: a, action: deny_call}",
            "governance[0].action: kind 'request_guard' cannot have action 'deny_call'; it can have block",
        ),
        ("{id: r, kind: request_guard, match: a, roles: [usr]}", "governance[0].roles[0]: 'usr' is not one of"),
        ("{id: r, kind: route_gate, match: a, action: restrict_routes}", "governance[0]: missing key 'routes'"),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 0, tool: {name: a}}",
            "governance[0].threshold: must be at least 1, got 0",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: true, tool: {name: a}}",
            "governance[0].threshold: expected a whole number, got true",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 2, within: {}, tool: {name: a}}",
            "governance[0].within: an empty window; give turns, events or milliseconds",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 2, within: {ms: 1, milliseconds: 1}, tool: {name: a}}",
            "governance[0].within.ms: 'ms' and 'milliseconds' are the same; give one",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 2, cache_scope: user, tool: {name: a}}",
            "governance[0].cache_scope: scope 'user' is wider than a run: declare retention and purpose under scopes.user",
        ),
        ("{id: r, kind: tool_sequence, after: {tool: {name: a}}}", "governance[0]: missing key 'transition_to'"),
        (
            "{id: r, kind: tool_sequence, after: {tool: {name: a}}, then: {tool: {name: b}}}",
            "governance[0].id: missing key 'action': what happens to the later event",
        ),
        (
            "{id: r, kind: tool_sequence, after: {tool: {name: a}}, action: block}",
            "governance[0]: action 'block' needs a later event: 'then.tool' or 'before.tool'",
        ),
        (
            "{id: r, kind: tool_sequence, after: {tool: {name: a}}, action: block, then: {tool: {name: b}, action: block}}",
            "governance[0].action: the action is given twice: here and under 'then'",
        ),
        (
            "{id: r, kind: tool_sequence, after: {tool: {name: a}}, before: {tool: {name: b}}, then: {tool: {name: b}, action: block}}",
            "governance[0].before: the later event is given twice: 'before' and 'then.tool'",
        ),
        (
            "{id: r, kind: tool_sequence, after: {tool: {name: a}}, until: {}, then: {tool: {name: b}, action: block}}",
            "governance[0].until: must not be empty: state, tool, user_turn or clean_turn",
        ),
        ("{id: r, kind: allowed_tools, allowed_tools: [{name: a}]}", "governance[0]: missing key 'phase'"),
        (
            "{id: r, kind: allowed_tools, phase: planning, allowed_tools: []}",
            "governance[0].allowed_tools: must not be an empty list; to allow nothing, block with a tool_selector",
        ),
        (
            "{id: r, kind: allowed_tools, phase: planning, allowed_tools: [{namespace: a}]}",
            "governance[0].allowed_tools[0]: missing key 'name'",
        ),
        (
            "{id: r, kind: allowed_tools, phase: planning, mode: observe, allowed_tools: [{name: a}]}",
            "governance[0].mode: here 'mode' is block, filter or deny_call; use 'enforcement: observe' to only watch",
        ),
        ("{id: r, kind: budget, limits: {}}", "governance[0].limits: needs one of calls, tokens, seconds, price"),
        (
            "{id: r, kind: budget, limits: {tokens: 5}, within: {turns: 2}}",
            "governance[0].within: a budget's window is in milliseconds",
        ),
        (
            "{id: r, kind: budget, limits: {tokens: 5}, action: deny_call}",
            "governance[0]: deny_call fits a budget of calls only; use block for tokens, seconds and price",
        ),
        ("{id: r, kind: alert}", "governance[0]: an alert needs either 'tool' or 'match'"),
        (
            "{id: r, kind: tool_selector, action: set_controls, controls: {x: true}, tool: {name: a}}",
            "governance[0].controls.x: 'x' cannot be clamped: give a number, a list, or false",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {name: a}, exceptions: [{expires: soon, tool: {name: b}}]}",
            "governance[0].exceptions[0].expires: expected a date (2026-12-31) or a time (2026-12-31T18:00:00Z)",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {name: a}, exceptions: [{expires: 2030-01-01}]}",
            "governance[0].exceptions[0]: an exception needs 'tool' or 'caller'",
        ),
        ("just text", "governance[0]: expected a rule: a mapping with id and kind"),
        (
            "{id: r, kind: allowed_tools, action: block, mode: filter, phase: planning, allowed_tools: [{name: a}]}",
            "governance[0].action: 'mode: filter' blocks nothing; leave the action out, or say 'mode: block'",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {arguments: {/a~2b: {equals: 1}}}}",
            "governance[0].tool.arguments./a~2b: '/a~2b' is not a JSON pointer; after '~' comes 0 or 1",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {arguments: {/a: {minimum: 5, maximum: 1}}}}",
            "governance[0].tool.arguments./a.maximum: no value can hold: minimum is 5, maximum is 1",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {arguments: {/a: {min_length: 5, max_length: 1}}}}",
            "governance[0].tool.arguments./a.max_length: no value can hold: min_length is 5, max_length is 1",
        ),
        (
            "{id: r, kind: budget, limits: {tokens: 10}, reserve: {tokens: 100}}",
            "governance[0].reserve.tokens: more than the limit of 10: every request would be refused",
        ),
        (
            "{id: r, kind: budget, limits: {calls: 1.5}}",
            "governance[0].limits.calls: expected a whole number, got number 1.5",
        ),
        (
            "{id: r, kind: tool_selector, action: set_controls, controls: {x: -1}, tool: {name: a}}",
            "governance[0].controls.x: must be at least 0, got -1: providers take less for no limit",
        ),
        (
            "{id: r, kind: tool_selector, action: set_controls, controls: {x: .nan}, tool: {name: a}}",
            "governance[0].controls.x: expected a finite number",
        ),
        (
            "{id: r, kind: tool_selector, action: block, tool: {name: a}, exceptions: []}",
            "governance[0].exceptions: must not be an empty list",
        ),
        (
            "{id: r, kind: argument_schema, tool: {name: a}, schema: {properties: {b: {type: strng}}}}",
            "governance[0].schema.properties.b.type: unknown type 'strng'",
        ),
        (
            "{id: r, kind: structured_output, schema: {allOf: [{}, {pattern: '(?=x)'}]}}",
            "governance[0].schema.allOf[1].pattern: pattern '(?=x)' cannot be checked: invalid perl operator: (?=",
        ),
        (
            "{id: write_tool_validation_v1/no-identical-writes, kind: request_guard, match: a}",
            "governance[0].id: 'write_tool_validation_v1/no-identical-writes' is how rule 'no-identical-writes'"
            " of bundle 'write_tool_validation_v1' is called",
        ),
        (
            "{id: r, kind: tool_loop_threshold, action: block, threshold: 99999999999999999999999, tool: {name: a}}",
            "governance[0].threshold: a whole number beyond 64 bits",
        ),
    ],
)
def test_a_doubtful_rule_is_refused(rule: str, message: str) -> None:
    """G10: each mistake is refused by a message that says where and what."""
    assert any(found.startswith(message) for found in one(rule)), one(rule)


def test_all_problems_come_at_once_in_file_order() -> None:
    """G10: one run tells everything, sorted by line."""
    text = "targts: []\ngovernance:\n  - {id: a, kind: nope}\n  - {id: b, kind: request_guard}\n  - {id: b, kind: request_guard, match: x}\n"
    assert [problem.split(": ")[0] for problem in problems(text)] == ["f:1:1", "f:3:13", "f:4:5", "f:5:5"]


def test_duplicate_ids_are_refused() -> None:
    """G10: the second rule with an id names the first."""
    assert problems(RULE + "  - {id: r, kind: request_guard, match: x}\n") == [
        "f:3:5: governance[1]: rule id 'r' is already used at line 2"
    ]


def test_models_and_providers_must_be_known_when_targets_are() -> None:
    """G10: routes are checked against targets, providers against what is declared or built in."""
    text = (
        "targets: [{model: m1, provider: scriptd}]\n"
        "governance:\n  - {id: r, kind: route_gate, match: x, action: restrict_routes, routes: [m2]}\n"
        "  - {id: s, kind: route_gate, match: x, action: switch_model, target_model: m11}\n"
    )
    assert problems(text) == [
        "f:1:23: targets[0].provider: unknown provider 'scriptd' (did you mean 'scripted'?)",
        "f:3:75: governance[0].routes[0]: unknown model 'm2': not among targets",
        "f:4:63: governance[1].target_model: unknown model 'm11' (did you mean 'm1'?): not among targets",
    ]


def test_a_window_longer_than_retention_is_refused() -> None:
    """G10: what is forgotten cannot be counted."""
    text = (
        "scopes: {user: {retention: 1h, purpose: limits}}\ngovernance:\n"
        "  - {id: r, kind: tool_loop_threshold, action: block, threshold: 2, cache_scope: user, within: {ms: 3600001}, tool: {name: a}}\n"
    )
    assert problems(text) == [
        "f:3:97: governance[0].within.ms: a window of 3600001 ms is longer than the retention of user (3600000 ms)"
    ]


def test_bundles_do_not_nest() -> None:
    """G25: a bundle that attaches a bundle is refused."""
    text = "policy_bundles:\n  b:\n    - {id: x, kind: request_guard, match: a, attach_policy_bundle: write_tool_validation_v1}\n"
    assert problems(text) == ["f:2:3: policy_bundles.b: rule 'b/x' attaches a bundle; bundles do not nest"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "state_machine: {initial_state: a, states: [a, a]}\n",
            "f:1:47: state_machine.states[1]: state 'a' is declared twice",
        ),
        (
            "state_machine: {initial_state: a, states: [a, '']}\n",
            "f:1:47: state_machine.states[1]: must not be empty",
        ),
        (
            "scopes: {user: {retention: 1s, purpose: x}}\n"
            "state_machine: {scope: user, initial_state: a, states: [a, {id: b, expires_ms: 1001}]}\n",
            "f:2:68: state_machine.states[1].expires_ms: a window of 1001 ms is longer than the retention of user (1000 ms)",
        ),
        ("server_tools: {a: 1}\n", "f:1:1: server_tools: expected a list, got a mapping"),
        ("server_tools: [a]\n", "f:1:16: server_tools[0]: expected a mapping, got text 'a'"),
        ("tool_mediation: 7\n", "f:1:1: tool_mediation: expected a mapping, got number 7"),
        ("providers: 3\n", "f:1:1: providers: expected a mapping or a list, got number 3"),
        ("providers: {a: {}}\n", "f:1:13: providers.a: expected a mapping, got an empty one"),
        ("auth: [1]\n", "f:1:1: auth: expected a mapping, got a list"),
        (
            "scopes: {user: {retention: ²d, purpose: x}}\n",
            "f:1:17: scopes.user.retention: expected a duration such as 30d, 12h, 15m, 10s or 250ms",
        ),
    ],
)
def test_a_doubtful_section_is_refused(text: str, message: str) -> None:
    """G10: so is every section around the rules, also those that other parts of the gateway read."""
    assert problems(text) == [message]


def test_a_rule_is_not_called_like_one_of_a_bundle() -> None:
    """G25: on a receipt an id names one rule."""
    text = "policy_bundles: {b: [{id: x, kind: request_guard, match: a}]}\ngovernance:\n  - {id: b/x, kind: request_guard, match: a}\n"
    assert problems(text) == ["f:3:6: governance[0].id: 'b/x' is how rule 'x' of bundle 'b' is called"]


def test_an_exception_that_has_run_out_is_told_when_the_time_is_known() -> None:
    """G28: an operator who checks a plan learns which exceptions are over."""
    text = (
        "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: a},"
        " exceptions: [{expires: 2001-01-01, tool: {name: b}}]}\n"
    )
    config = parse_config(text, "f")
    assert [str(one) for one in compile_plan(config, now_ms=2_000_000_000_000).warnings] == [
        "f:2:80: governance[0].exceptions[0].expires: has already expired: the exception has no effect"
    ]
    assert compile_plan(config, now_ms=0).warnings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "governance:\n  - {id: r, kind: allowed_tools, phase: loop_governance, allowed_tools: [{name: a}]}\n",
            "can never match: no tool is offered or called in phase loop_governance",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: deny_call, tool: {mark: forged}}\n",
            "never acts: deny_call answers calls, what is forged comes with a request; use block",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: deny_call, tool: {source: [tool_choice, declared_tool]}}\n",
            "never acts: deny_call answers calls, a tool_choice or declared_tool comes with a request; use block",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {source: declared_tool, arguments: {/a: {equals: 1}}}}\n",
            "can never match: no declared_tool has arguments yet",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: require_approval, tool: {source: tool_result}}\n",
            "results of tools that the gateway runs are not held: approval is asked when a request carries them",
        ),
        (
            "governance:\n  - {id: r, kind: argument_schema, tool: {source: tool_result}}\n",
            "can never match: only an assistant_tool_call is checked against a schema",
        ),
        (
            "governance:\n  - {id: r, kind: request_guard, match: x, exceptions: [{expires: 2090-01-01, tool: {name: a}}]}\n",
            "has no effect: this rule is about no single tool; except a caller instead",
        ),
        (
            "governance:\n  - {id: r, kind: tool_loop_threshold, action: switch_model, target_model: m, threshold: 2, tool: {name: a*},"
            " exceptions: [{expires: 2090-01-01, tool: {name: ab}}]}\n",
            "does not lift the route of later requests while the count stands; except a caller for that",
        ),
        (
            "state_machine: {initial_state: a, states: [{id: a, expires_ms: 5}]}\n",
            "an initial state expires only after a rule has entered it, not from the start of a session",
        ),
        (
            "state_machine: {initial_state: a, states: [{id: a, expires_to: a}]}\n",
            "state 'a' has no expires_ms: it never expires",
        ),
        (
            "state_machine: {initial_state: a, states: [a, b]}\n",
            "state 'b' of machine 'default' is never entered by a rule",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: annotate, tool: {source: tool_result, phase: planning}}\n",
            "can never match: a tool_result has phase result_interpretation",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: annotate, tool: {phase: loop_governance}}\n",
            "can never match: only a loop rule looks at phase loop_governance",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: annotate, tool: {result_status: error, phase: planning}}\n",
            "can never match: only results have a result_status",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {risk_class: write}}\n",
            "tools whose risk_class the catalog does not know escape this rule; add 'unknown', or label them",
        ),
        (
            "governance:\n  - {id: r, kind: route_gate, match: a, action: restrict_routes, routes: [x]}\n  - {id: s, kind: route_gate, match: b, action: switch_model, target_model: y}\n",
            "possible route conflict: 's' and 'r' allow no model together; when both match, the request is blocked",
        ),
        (
            "governance:\n  - {id: r, kind: tool_sequence, after: {tool: {name: a}}, within: {turns: 2}, then: {action: block, tool: {name: b}}}\n",
            "a window can be flushed by waiting or by harmless calls; a state cleared by 'until' alone cannot",
        ),
    ],
)
def test_what_is_merely_odd_is_a_warning(text: str, message: str) -> None:
    """G10, G16, G18: odd plans load, and say what is odd."""
    assert [warning.split(": ", 2)[2] for warning in warnings(text)] == [message]


def test_a_known_namespace_does_not_escape() -> None:
    """G6: no warning where the catalog knows the risk of every tool of the namespace."""
    assert (
        warnings(
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: shell, risk_class: irreversible}}\n"
        )
        == []
    )


def test_tool_names_need_not_be_in_the_catalog() -> None:
    """G10: a matcher may name tools nobody has declared yet."""
    assert (
        warnings("governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: mars, name: land}}\n")
        == []
    )


def test_every_action_of_every_kind_has_a_gate() -> None:
    """G12: the tables offer no action that a kind could never take."""
    assert [
        (kind, action) for kind, spec in KINDS.items() for action in spec.actions if not spec.gates & GATES[action]
    ] == []


def test_the_action_tables_name_the_same_actions() -> None:
    """G12: every action has a gate table and a key table."""
    assert set(ACTION_KEYS) == set(GATES)


def test_rules_keep_their_registers_over_edits_that_do_not_matter() -> None:
    """G30: id, message, action and an unwindowed threshold are not part of what a rule counts."""
    rule = "governance:\n  - {id: %s, kind: tool_loop_threshold, action: %s, threshold: %d, tool: {name: %s}}\n"

    def key(*words: object) -> str:
        plan = compile_plan(parse_config(rule % words)).model("")
        assert plan is not None
        return plan.rules.rules[0].key

    assert key("a", "block", 4, "x") == key("b", "deny_call", 5, "x")
    assert key("a", "block", 4, "x") != key("a", "block", 4, "y")


def test_two_rules_that_count_the_same_do_not_count_twice() -> None:
    """G30: equal content in one plan is one register, and its rules know that they share it."""
    text = "governance:\n" + "".join(
        f"  - {{id: r{n}, kind: tool_loop_threshold, action: annotate, threshold: {n}, tool: {{name: x}}}}\n"
        for n in (3, 5)
    )
    plan = compile_plan(parse_config(text)).model("")
    assert plan is not None
    assert [getattr(rule, "shared", False) for rule in plan.rules.rules] == [True, True]
