"""Anything doubtful refuses activation, with place, path and the nearest right word; what is odd is a warning."""

from __future__ import annotations

import pytest

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.errors import ConfigError
from wardwright.history import Registers, apply
from wardwright.policy.compile import ACTION_KEYS, KINDS
from wardwright.policy.rules import GATES
from wardwright.wire import Caller, CallItem, TextItem, Turn

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
        ("{id: r, kind: intend}", "governance[0].kind: unknown kind 'intend'"),
        ("{id: r, kind: argument_origin}", "governance[0].kind: unknown kind 'argument_origin'"),
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
            "targets: [{model: m}]\ngovernance:\n  - {id: r, kind: tool_loop_threshold, action: switch_model, target_model: m, threshold: 2, tool: {name: a*},"
            " exceptions: [{expires: 2090-01-01, tool: {name: ab}, caller: {user: eve}}]}\n",
            "does not lift the route of later requests while the count stands; except the tool, or the caller, alone",
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
            "targets: [{model: x}, {model: y}]\ngovernance:\n  - {id: r, kind: route_gate, match: a, action: restrict_routes, routes: [x]}\n  - {id: s, kind: route_gate, match: b, action: switch_model, target_model: y}\n",
            "possible route conflict: 's' and 'r' allow no model together; when both match, the request is blocked",
        ),
        (
            "governance:\n  - {id: r, kind: tool_sequence, after: {tool: {name: a}}, within: {turns: 2}, then: {action: block, tool: {name: b}}}\n",
            "a window can be flushed by waiting or by harmless calls; a state cleared by 'until' alone cannot",
        ),
        (
            "governance:\n  - {id: r, kind: tool_sequence, after: {tool: {name: a}}, until: {user_turn: true}, then: {action: block, tool: {name: b}}}\n",
            "any text in the user's role clears it, also a note that a client puts behind the result itself",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: X, not: {name: x}}}\n",
            "can never match: 'not' takes away all that is left",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: [ab, ac], not: {name: 'a*'}}}\n",
            "can never match: 'not' takes away all that is left",
        ),
        (
            "governance:\n  - {id: r, kind: tool_loop_threshold, action: block, threshold: 5, within: {events: 3}, tool: {name: x}}\n",
            "can never match: a window of 3 events holds 4, not 5",
        ),
        (
            "governance:\n  - {id: r, kind: history_threshold, action: block, threshold: 9, within: {events: 3}, tool: {name: x}}\n",
            "can never match: a window of 3 events holds 4, not 9",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {result_status: error, source: assistant_tool_call}}\n",
            "can never match: only results have a result_status",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {mark: forged, source: declared_tool}}\n",
            "can never match: no declared_tool is ever forged",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: provider.web_search, source: assistant_tool_call}}\n",
            "can never match: what a provider runs is a provider_event",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: x}, exceptions: [{expires: 2999-01-01, caller: {user: 'a*'}}]}\n",
            "'a*' is compared as it stands: not a glob",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: x, arguments: {/p: {equals: 1, one_of: [2]}}}}\n",
            "can never match: no value holds under all of these conditions",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: x, arguments: {/p: {one_of: [a, b], glob: 'c*'}}}}\n",
            "can never match: no value holds under all of these conditions",
        ),
        (
            "governance:\n  - {id: r, kind: tool_selector, action: switch_model, target_model: nosuch, tool: {name: x}}\n"
            "  - {id: s, kind: tool_selector, action: restrict_routes, routes: [nosuch], tool: {name: x}}\n",
            "nobody can tell whether 'nosuch' exists: this artifact has no 'targets'",
        ),
    ],
)
def test_what_is_merely_odd_is_a_warning(text: str, message: str) -> None:
    """G10, G16, G18: odd plans load, and say what is odd."""
    assert [warning.split(": ", 2)[2] for warning in warnings(text)] == [message]


@pytest.mark.parametrize(
    "tool",
    [
        "name: 'a*', not: {name: ab}",
        "name: x, not: {name: x, risk_class: write}",
        "name: x, not: {arguments: {/p: {equals: 1}}}",
        "mark: [forged, altered], not: {mark: forged}",
        "mark: [forged, definition_changed], source: declared_tool",
        "namespace: [shell, provider.web_search], source: assistant_tool_call",
        "result_status: [error, unknown], source: assistant_tool_call",
        "name: x, arguments: {/p: {one_of: [a, b], glob: 'a*'}}",
    ],
)
def test_a_matcher_that_can_match_is_not_called_odd(tool: str) -> None:
    """G10: no warning where an event is left that fits."""
    assert warnings(f"governance:\n  - {{id: r, kind: tool_selector, action: annotate, tool: {{{tool}}}}}\n") == []


def test_a_window_that_just_holds_its_threshold_is_not_called_odd() -> None:
    """G16: a window of three events holds four, the current one and three before it; and the fourth fires."""
    text = "governance:\n  - {id: r, kind: tool_loop_threshold, action: deny_call, threshold: 4, within: {events: 3}, tool: {name: x}}\n"
    plan = compile_plan(parse_config(text, "f"))
    registers = Registers(key=b"k")
    decisions: list[str] = []
    for number in range(4):
        turn = Turn(
            "reply", "chat_completions", "m", [CallItem(f"c{number}", "x", "{}")], caller=Caller(session_id="s")
        )
        ruling, delta = govern(plan, registers, turn, number)
        registers = apply(registers, delta)
        decisions.append(ruling.decision)

    assert plan.warnings == ()
    assert decisions == ["allow", "allow", "allow", "deny_call"]


@pytest.mark.parametrize("name", ['"d\\ne"', "' d'", "'d '", "'  '", '"d\\u200be"'])
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("governance:\n  - {id: %s, kind: tool_selector, action: block, tool: {name: x}}\n", "governance[0].id"),
        ("model_id: %s\ngovernance: []\n", "model_id"),
        ("targets: [{model: %s}]\ngovernance: []\n", "targets[0].model"),
        ("state_machine: {initial_state: a, states: [a, {id: %s}]}\n", "state_machine.states[1].id"),
        ("state_machines:\n  - {id: %s, initial_state: a, states: [a]}\n", "state_machines[0].id"),
    ],
)
def test_a_name_is_one_line_as_it_looks(text: str, path: str, name: str) -> None:
    """G10: names go to headers, logs and notes, so none may break a line or hide anything."""
    with pytest.raises(ConfigError) as caught:
        compile_plan(parse_config(text % name, "f"))

    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.message.endswith("cannot be a name: it has spaces around it, or what cannot be printed")


def test_a_machine_without_states_lists_none() -> None:
    """G10: there is nothing to list behind an unknown state where none is declared."""
    with pytest.raises(ConfigError) as caught:
        compile_plan(parse_config("state_machine: {initial_state: a, states: []}\n", "f"))

    assert [problem.message for problem in caught.value.problems] == [
        "unknown state 'a'",
        "a machine needs at least one state",
    ]


def test_a_rule_id_holds_no_comma() -> None:
    """G10: notes list rule ids with commas between them."""
    with pytest.raises(ConfigError, match="must hold no comma: notes list several rules with commas between them"):
        compile_plan(
            parse_config("governance:\n  - {id: 'a,b', kind: tool_selector, action: block, tool: {name: x}}\n")
        )


def test_a_bundle_is_named_like_everything_else() -> None:
    """G10: its name is part of the ids of its rules."""
    text = 'policy_bundles:\n  "a\\nb": [{id: r, kind: tool_selector, action: block, tool: {name: x}}]\n'
    with pytest.raises(ConfigError, match="cannot be a name"):
        compile_plan(parse_config(text))


@pytest.mark.parametrize("namespace", ["provider.web_search", "Provider", "provider.{name}"])
def test_no_entry_makes_a_callers_tool_a_providers(namespace: str) -> None:
    """G4, G6: the namespace of what providers run is not for operators to give away."""
    with pytest.raises(
        ConfigError, match="'provider' is the namespace of tools that providers run; choose another one"
    ):
        compile_plan(parse_config(f"catalog:\n  - {{match: 'a{{name}}', namespace: '{namespace}'}}\n"))


@pytest.mark.parametrize("kind", ["request_guard, roles: [user]", "alert, roles: [user]"])
def test_a_line_break_hides_nothing_from_a_text_rule(kind: str) -> None:
    """G11: a dot matches a line break too, as the star of a glob does."""
    plan = compile_plan(parse_config(f"governance:\n  - {{id: r, kind: {kind}, match: 'secret.*plan'}}\n"))
    turn = Turn("request", "chat_completions", "m", [TextItem("user", "secret\nplan")], caller=Caller(session_id="s"))

    assert [one.rule_id for one in govern(plan, Registers(key=b"k"), turn, 1)[0].findings] == ["r"]


def test_a_line_break_hides_nothing_from_an_argument_rule() -> None:
    """G13: the same holds for the regex of an argument."""
    text = "governance:\n  - {id: r, kind: tool_selector, action: deny_call, tool: {name: sh, arguments: {/cmd: {regex: 'rm.*-rf'}}}}\n"
    call = CallItem("c", "sh", '{"cmd": "rm \\n -rf x"}')
    turn = Turn("reply", "chat_completions", "m", [call], caller=Caller(session_id="s"))

    assert govern(compile_plan(parse_config(text)), Registers(key=b"k"), turn, 1)[0].decision == "deny_call"


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
