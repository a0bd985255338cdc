"""Claims about the projection: it says nothing the engine does not do, and the engine does nothing it does not say."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from wardwright import compile_plan, govern, load_config
from wardwright.errors import ConfigError
from wardwright.history import Registers, apply
from wardwright.policy.compile import KINDS, RuleSet
from wardwright.policy.rules import GATES
from wardwright.policy.states import enter
from wardwright.policy.windows import Position
from wardwright.projection import Projection, project
from wardwright.simulate import read_transcript, simulate

from .conversations import WIRES, conversation

EVERYTHING = """
targets: [{model: a}, {model: b}, {model: c}]
state_machines:
  - {id: default, initial_state: active, states: [active, reviewing]}
  - {id: cost, initial_state: cheap, states: [cheap, dear], expires_ms: 50}
policy_bundles:
  strict: [{id: schema, kind: argument_schema, tool: {name: '*'}, schema: {type: object, required: [zz]}}]
governance:
  - {id: review, kind: tool_sequence, transition_to: reviewing, until: {user_turn: true},
     after: {tool: {namespace: browser, phase: result_interpretation}}}
  - {id: calm, kind: tool_selector, action: transition, transition_to: active, tool: {namespace: browser}}
  - {id: no-shell, kind: tool_selector, action: deny_call, state_scope: reviewing, tool: {namespace: shell}}
  - {id: loops, kind: tool_loop_threshold, action: switch_model, target_model: b, threshold: 2, tool: {name: '*'}}
  - {id: same, kind: tool_loop_threshold, action: alert_async, threshold: 2, equal: tool+arguments, within: {turns: 9},
     tool: {namespace: [mail, files, unknown]}}
  - {id: many, kind: history_threshold, action: restrict_routes, routes: [a, c], threshold: 2, tool: {name: '*'}}
  - {id: prefer, kind: tool_selector, action: reroute, target_model: c, tool: {namespace: files}}
  - {id: dear, kind: tool_selector, action: transition, state_machine_id: cost, transition_to: dear, tool: {name: '*send'}}
  - {id: after, kind: tool_sequence, after: {tool: {namespace: shell}}, before: {tool: {name: '*'}}, action: annotate,
     until: {state: reviewing}}
  - {id: few, kind: budget, limits: {calls: 2}, action: deny_call, mode: observe}
  - {id: tokens, kind: budget, limits: {tokens: 100000}, action: block}
  - {id: listed, kind: allowed_tools, phase: result_interpretation, mode: filter, state_machine_id: cost, state_scope: dear,
     allowed_tools: [{name: '*', namespace: browser}, {name: '*', namespace: shell}]}
  - {id: secrets, kind: request_guard, action: transition, match: secret, transition_to: reviewing, attach_policy_bundle: strict}
  - {id: private, kind: route_gate, action: restrict_routes, match: customer, routes: [b, c]}
  - {id: leak, kind: stream_guard, action: annotate, match: final}
  - {id: shape, kind: structured_output, action: annotate, schema: {type: object}}
  - {id: ask, kind: tool_selector, action: require_approval, mode: observe, tool: {source: provider_event}}
  - {id: tell, kind: alert, match: budget}
"""
NUMBERS = range(40)


def compiled(text: str = EVERYTHING) -> Any:
    return compile_plan(load_config(text))


def projected(text: str = EVERYTHING) -> Projection:
    return project(compiled(text))[0]


PLAN = compiled()
PART = PLAN.models["default"]
NODES = {node.id: node for node in project(PLAN)[0].nodes}


def steps(number: int) -> Any:
    talk = conversation(number)
    body = WIRES[number % len(WIRES)].request(talk, len(talk.rounds) - 1, random.Random(number))
    return simulate(PLAN, read_transcript({**body, "model": "default"}), now=1000, step_ms=20, as_recorded=True).steps


@pytest.mark.parametrize("number", NUMBERS)
def test_every_finding_is_announced_by_its_node(number: int) -> None:
    """No rule acts at a gate, or asks for an effect, that its node does not show."""
    for step in steps(number):
        for finding in step.ruling.findings:
            assert finding.effect in NODES[finding.rule_id].effects.get(step.gate, ()), finding


@pytest.mark.parametrize("number", NUMBERS)
def test_every_register_that_changes_is_announced(number: int) -> None:
    """What a gate writes is written by a rule whose node says so."""
    announced = {write for node in NODES.values() for write in node.writes}
    registers = Registers(key=b"k")
    for step in steps(number):
        _, delta = govern(PLAN, registers, step.turn, step.at_ms)
        registers = apply(registers, delta)
        for scope in delta.scopes:
            for name, _ in scope.registers:
                if name not in ("surface", "bind", "request"):
                    assert (name if name.startswith("state:") else f"register:{name}") in announced
                elif name == "bind":
                    assert "bind" in announced


@pytest.mark.parametrize("number", NUMBERS)
def test_conflicts_at_run_time_were_shown_beforehand(number: int) -> None:
    """Whatever rules turn out to contradict each other, the projection had them as a possible conflict."""
    known = {frozenset(one.rules) for one in project(PLAN)[0].conflicts}
    for step in steps(number):
        for conflict in step.ruling.conflicts:
            subsets = [frozenset(group) for size in (2, 3) for group in combinations(conflict.rules, size)]
            preferring = {finding.rule_id for finding in step.ruling.findings if finding.effect == "reroute"}
            subsets += [frozenset((left, right)) for left in preferring for right in conflict.rules]
            assert known.intersection(subsets), conflict


def acted(ruling: Any) -> set[str]:
    return {finding.rule_id for finding in ruling.findings}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_state_moves_only_those_who_say_they_read_it(number: int) -> None:
    """Put a machine into another state: rules whose nodes read neither it nor what others refuse act as before."""
    registers = Registers(key=b"k")
    checked = 0
    for step in steps(number):
        plain, delta = govern(PLAN, registers, step.turn, step.at_ms)
        for machine, state in (("default", "reviewing"), ("default", "active"), ("cost", "dear")):
            value = enter(PART.machines[machine], state, Position(0, 0, step.at_ms))
            scopes = {
                key: scope._replace(registers=scope.registers.set((f"state:{machine}", ""), value))
                for key, scope in registers.scopes.items()
            }
            moved, _ = govern(PLAN, replace(registers, scopes=scopes), step.turn, step.at_ms)
            changed = acted(plain) ^ acted(moved)
            checked += 1
            reading = {f"state:{machine}", "refusals"}
            assert all(reading.intersection(NODES[rule].reads) for rule in changed), (machine, state, changed)
        registers = apply(registers, delta)
    assert checked


@pytest.mark.parametrize("rule_id", sorted(NODES))
def test_taking_a_rule_away_takes_its_node_away_and_nothing_else(rule_id: str) -> None:
    """Nodes are the rules of the compiled plan, one each; conflicts go with their rules."""

    def without(rules: RuleSet) -> RuleSet:
        return RuleSet([rule for rule in rules.rules if rule.id != rule_id])

    mutated = replace(
        PART, rules=without(PART.rules), bundles={name: without(bundle) for name, bundle in PART.bundles.items()}
    )
    (left,) = project(replace(PLAN, models={"default": mutated}))

    assert {node.id for node in left.nodes} == set(NODES) - {rule_id}
    assert all(rule_id not in node.conflicts for node in left.nodes)


def test_matchers_are_shown_as_the_engine_tests_them() -> None:
    """Defaults that compiling fills in are visible: a loop without a phase counts calls."""
    assert NODES["loops"].matchers == {"tool": {"name": ["*"], "phase": ["planning", "argument_repair"]}}
    assert NODES["review"].matchers["after"] == {"namespace": ["browser"], "phase": ["result_interpretation"]}
    assert NODES["private"].matchers["text"]["match"] == "customer"
    assert NODES["listed"].matchers["allowed"]["tools"][0] == {"namespace": "browser", "name": "*", "risk_class": "*"}


def test_a_node_says_where_it_stands() -> None:
    """State scope, phase, scope of history, gates, mode and line are those of the compiled rule."""
    node = NODES["no-shell"]

    assert (node.machine, node.state_scope, node.gates, node.mode) == (
        "default",
        ("reviewing",),
        ("reply", "result"),
        "enforce",
    )
    assert (NODES["listed"].phases, NODES["few"].mode, node.line) == (("result_interpretation",), "observe", 12)
    assert NODES["strict/schema"].bundle == "strict"


def test_reads_and_writes_name_registers_states_text_and_arguments() -> None:
    """What a rule depends on, and what depends on it, can be followed from node to node."""
    assert {"state:default", "fact.namespace"} <= set(NODES["no-shell"].reads)
    assert f"register:{NODES['loops'].key}" in NODES["loops"].writes
    assert {"state:default", f"register:{NODES['after'].key}", "bundle:strict"} <= set(NODES["secrets"].writes)
    assert NODES["private"].reads[0] == "text:system"
    assert {"clock", "usage.tokens"} <= {*NODES["tokens"].reads, *NODES["listed"].reads}
    assert "arguments:/" in NODES["strict/schema"].reads


def test_a_rule_in_observe_mode_writes_no_state() -> None:
    """A shadow rule counts and changes nothing else."""
    text = """
state_machine: {initial_state: x, states: [x, y]}
governance: [{id: r, kind: tool_selector, action: transition, transition_to: y, mode: observe, tool: {name: a}}]
"""
    found = projected(text)

    assert found.node("r").writes == ()
    assert found.machines[0].moved_by == {}


def test_machines_show_who_moves_and_who_reads_them() -> None:
    """The way through the states is there to draw."""
    (default, cost) = project(PLAN)[0].machines

    assert default.moved_by == {"reviewing": ("review", "secrets"), "active": ("calm",)}
    assert set(default.read_by) == {"no-shell", "after"}
    assert (cost.initial_state, cost.states, cost.read_by) == ("cheap", ("cheap", "dear"), ("listed",))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["restrict_routes, routes: [a]", "restrict_routes, routes: [b]"], [("routes", ("r0", "r1"))]),
        (["restrict_routes, routes: [a]", "restrict_routes, routes: [a, b]"], []),
        (["switch_model, target_model: a", "switch_model, target_model: b"], [("routes", ("r0", "r1"))]),
        (["switch_model, target_model: a", "reroute, target_model: b"], [("preference", ("r1", "r0"))]),
        (
            ["restrict_routes, routes: [a, b]", "restrict_routes, routes: [b, c]", "restrict_routes, routes: [a, c]"],
            [("routes", ("r0", "r1", "r2"))],
        ),
        (["restrict_routes, routes: [a]", "restrict_routes, routes: [b], mode: observe"], []),
    ],
)
def test_route_conflicts_are_found_in_the_compiled_actions(rules: list[str], expected: list[Any]) -> None:
    """Empty intersections, by two or only by three together, and preferences that cannot be met."""
    text = "targets: [{model: a}, {model: b}, {model: c}]\ngovernance:\n" + "".join(
        f"  - {{id: r{index}, kind: tool_selector, tool: {{name: '*'}}, action: {action}}}\n"
        for index, action in enumerate(rules)
    )

    assert [(one.kind, one.rules) for one in projected(text).conflicts] == expected


@pytest.mark.parametrize(("extra", "gates"), [("", ()), ("move", ("request", "reply"))])
def test_rules_in_different_states_meet_only_where_the_state_can_move(extra: str, gates: tuple[str, ...]) -> None:
    """Within one message a transition takes effect for the next event, so a mover brings them together."""
    mover = "  - {id: m, kind: tool_selector, action: transition, transition_to: y, tool: {name: a}}\n" if extra else ""
    text = (
        "targets: [{model: a}, {model: b}]\nstate_machine: {initial_state: x, states: [x, y]}\ngovernance:\n"
        "  - {id: r0, kind: tool_selector, state_scope: x, action: switch_model, target_model: a, tool: {name: '*'}}\n"
        "  - {id: r1, kind: tool_selector, state_scope: y, action: switch_model, target_model: b, tool: {name: '*'}}\n"
        + mover
    )

    assert [one.gates for one in projected(text).conflicts] == ([gates] if gates else [])


def test_effects_stay_inside_what_gates_and_kinds_permit() -> None:
    """A node's effects are those of the tables the compiler checks against, deny_call's escalation apart."""
    for node in NODES.values():
        for gate, effects in node.effects.items():
            assert gate in KINDS[node.kind].gates
            assert all(gate in GATES[effect] for effect in effects)


def test_the_json_form_is_plain() -> None:
    """It can be drawn by anything that reads JSON."""
    told = project(PLAN)[0].as_json()

    assert told["nodes"][0]["id"] == "review"
    assert {"model_id", "plan_hash", "targets", "machines", "nodes", "conflicts", "regions"} == set(told)
    assert {"id", "state_scope", "phases", "matchers", "reads", "writes", "effects", "conflicts"} <= set(
        told["nodes"][0]
    )


HOSTED = """
targets:
  - {model: a, capabilities: {web_search: {events: true, controls: [max_uses]}, code: {events: true}, memory: {}}}
  - {model: b, tools: false, capabilities: {web_search: {events: true}}}
governance:
  - {id: few, kind: tool_selector, action: set_controls, controls: {max_uses: 1}, tool: {namespace: provider.web_search}}
  - {id: near, kind: tool_selector, action: set_controls, controls: {country: [x]}, tool: {namespace: "provider.*"}}
"""


def test_regions_say_how_far_hosted_tools_can_be_governed() -> None:
    """G26: what can be set is controllable, what is only reported observable, all else opaque; no tools, no region."""
    assert [(one.target, one.tools, one.label) for one in projected(HOSTED).regions] == [
        ("a", "*", "controllable"),
        ("a", "provider.web_search", "controllable"),
        ("a", "provider.code", "observable"),
        ("a", "provider.memory", "opaque"),
        ("a", "provider.*", "opaque"),
    ]


def test_a_region_names_the_rules_whose_controls_it_does_not_take() -> None:
    """G26: a limit that no provider reads is no limit, and the operator can see that."""
    found = {one.tools: one.unset for one in projected(HOSTED).regions}

    assert found["provider.web_search"] == ("near",)
    assert found["provider.code"] == ("near",)
    assert found["*"] == ()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[x]", "expected a mapping of hosted tools to `events` and `controls`"),
        ("{web_search: {event: true}}", "unknown key 'event'"),
        ("{web_search: {events: 1}}", "expected true or false"),
    ],
)
def test_a_capability_record_that_cannot_be_read_is_refused(written: str, message: str) -> None:
    """G10, G26: nothing in a record is ignored."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        compiled(f"targets: [{{model: a, capabilities: {written}}}]\n")
