"""The picture of a plan shows what the plan has: every state, every way between states, every rule where it acts."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from wardwright.config import parse_config
from wardwright.policy.compile import compile_plan
from wardwright.ui.picture import Arrow, ModelPicture, duration_words, matcher_words, picture

PLAN = """\
model_id: coding
targets: [{model: big}, {model: small}]
state_machine:
  initial_state: idle
  expires_ms: 60000
  states: [idle, reading, {id: locked, expires_ms: 1500, expires_to: reading}]
governance:
  - {id: read, kind: tool_sequence, transition_to: reading, after: {tool: {namespace: browser, phase: result_interpretation}},
     until: {user_turn: true}}
  - {id: lock, kind: tool_selector, action: block, transition_to: locked, state_scope: reading, tool: {namespace: shell, phase: planning}}
  - {id: watch, kind: tool_selector, action: require_approval, mode: observe, tool: {risk_class: [write, unknown]}}
  - {id: loops, kind: tool_loop_threshold, action: deny_call, threshold: 3, within: {turns: 2}, tool: {name: '*'}}
  - {id: large, kind: route_gate, action: switch_model, target_model: big, match: secret}
  - {id: little, kind: route_gate, action: switch_model, target_model: small, match: public}
  - {id: few, kind: allowed_tools, phase: planning, mode: filter, state_scope: [reading, locked], allowed_tools: [{namespace: fs, name: read}]}
"""


def drawn(source: str = PLAN) -> ModelPicture:
    return picture(compile_plan(parse_config(source)))[0]


def test_every_way_between_states_is_an_arrow() -> None:
    """What a rule enters, what ends a state and what runs out are told apart."""
    assert drawn().machines[0].arrows == (
        Arrow("", "reading", "rule", ("read",), "read"),
        Arrow("reading", "idle", "until", ("read",), "until a word of the user"),
        Arrow("reading", "locked", "rule", ("lock",), "lock"),
        Arrow("reading", "idle", "expiry", (), "runs out after 1 min"),
        Arrow("locked", "reading", "expiry", (), "runs out after 1500 ms"),
    )


def test_the_drawing_of_a_machine_holds_its_states_and_says_the_same_in_words() -> None:
    """Whoever does not see the drawing reads what it shows."""
    machine = drawn().machines[0]
    root = ElementTree.fromstring(str(machine.svg))
    space = "{http://www.w3.org/2000/svg}"

    assert root.get("role") == "img"
    named = {one.get("id"): one.text for one in root.iter() if one.get("id")}
    told = [named[name] for name in root.get("aria-labelledby", "").split()]
    assert told == ["State machine default", machine.summary]
    shown = {one.text for one in root.iter(f"{space}text") if one.get("class") == "name"}
    assert shown == {"idle", "reading", "locked"}
    assert machine.summary.startswith(
        "Machine default begins in idle and has 3 states. From every state to reading: read."
    )


def test_a_rule_in_observe_mode_moves_nothing_in_the_picture() -> None:
    """It does not move the machine, so no arrow says that it does."""
    source = PLAN.replace("kind: tool_sequence,", "kind: tool_sequence, mode: observe,")

    assert not [arrow for arrow in drawn(source).machines[0].arrows if "read" in arrow.rules]


def test_nothing_sticks_out_of_a_drawing() -> None:
    """All of a drawing lies inside its frame, with many states as with one."""
    names = [f"state_number_{number}" for number in range(7)]
    rules = "\n".join(
        f"  - {{id: rule-{a}-{b}-with-a-long-name-indeed, kind: tool_selector, action: annotate, state_scope: {names[a]}, "
        f"transition_to: {names[b]}, tool: {{name: t{a}{b}}}}}"
        for a, b in ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 0), (0, 4), (5, 5), (4, 3))
    )
    many = f"state_machine: {{initial_state: {names[0]}, states: [{', '.join(names)}]}}\ngovernance:\n{rules}\n"
    for source in (many, PLAN, "model_id: bare\ngovernance: []\n"):
        for machine in drawn(source).machines:
            root = ElementTree.fromstring(str(machine.svg))
            width, height = float(root.get("width", 0)), float(root.get("height", 0))
            for one in root.iter("{http://www.w3.org/2000/svg}rect"):
                assert 0 <= float(one.get("x", -1)) <= width - float(one.get("width", 0))
                assert 0 <= float(one.get("y", -1)) <= height - float(one.get("height", 0))
            for one in root.iter("{http://www.w3.org/2000/svg}text"):
                half = len(one.text or "") * 3
                assert half <= float(one.get("x", 0)) <= width - half
                assert 0 < float(one.get("y", -1)) < height


def test_rules_stand_in_the_grid_where_they_act() -> None:
    """Down the phases, across the states; a rule without either stands under every."""
    grid = drawn().grid

    assert [column.title for column in grid.columns] == ["every state", "idle", "reading", "locked"]
    assert {row.title: [[rule.id for rule in cell] for cell in row.cells] for row in grid.rows} == {
        "every phase": [["watch", "large", "little"], [], [], []],
        "planning (argument_repair too)": [["loops"], [], ["lock", "few"], ["few"]],
        "argument_repair": [["loops"], [], [], []],
        "result_interpretation": [["read"], [], [], []],
    }


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (
            "read",
            "After namespace browser, phase result_interpretation, until a word of the user: default enters reading.",
        ),
        ("lock", "In reading: when namespace shell, phase planning: block and default enters locked."),
        ("watch", "When risk_class write or unknown: observe only, would require_approval."),
        ("loops", "The 3rd equal fact (tool) of name *, phase planning or argument_repair within 2 turns: deny_call."),
        (
            "large",
            "Text of system, developer, user, assistant or tool that matches “secret”: switch_model to big.",
        ),
        ("few", "In reading or locked: only the listed tools in planning, else filter."),
    ],
)
def test_a_rule_is_told_in_one_sentence(rule: str, sentence: str) -> None:
    """The words are those of the YAML."""
    found = next(one for one in drawn().rules if one.id == rule)

    assert found.sentence == sentence


def test_what_rules_share_is_shown_with_who_writes_and_who_reads_it() -> None:
    """A state that one rule moves and others look at ties them together; what a rule counts for itself does not."""
    found = drawn()

    assert [(one.words, one.writers, one.readers) for one in found.shared] == [
        ("the state of default", ("read", "lock"), ("lock", "few"))
    ]
    assert "the state of default: written by read, lock; read by lock, few." in str(found.flow)


def test_conflicts_stand_with_the_rules_and_by_themselves() -> None:
    """Two hard switches to different models are seen before they meet."""
    found = drawn()

    assert [(one.kind, one.rules) for one in found.conflicts] == [
        ("routes", ("large", "little")),
        ("transition", ("read", "lock")),
    ]
    assert {rule.id: rule.conflicts for rule in found.rules if rule.conflicts} == {
        "read": ("lock",),
        "lock": ("read",),
        "large": ("little",),
        "little": ("large",),
    }


def test_names_are_escaped_in_drawings() -> None:
    """A name that looks like markup is text."""
    source = "state_machine: {initial_state: '<b>&', states: ['<b>&']}\ngovernance: []\n"

    assert "<b>" not in str(drawn(source).machines[0].svg)
    assert "&lt;b&gt;&amp;" in str(drawn(source).machines[0].svg)


def test_every_model_has_places_of_its_own() -> None:
    """Two models on one page do not share a name of a place."""
    source = "models:\n" + "".join(
        f"  - {{model_id: {name}, governance: [{{id: a, kind: tool_selector, action: block, tool: {{name: x}}}}]}}\n"
        for name in ("one", "two")
    )
    found = picture(compile_plan(parse_config(source)))

    assert [model.rules[0].anchor for model in found] == ["rule-0-0", "rule-1-0"]
    assert [model.anchors for model in found] == [{"a": "rule-0-0"}, {"a": "rule-1-0"}]


@pytest.mark.parametrize(
    ("ms", "words"), [(1500, "1500 ms"), (2000, "2 s"), (90_000, "90 s"), (3_600_000, "1 h"), (172_800_000, "2 d")]
)
def test_a_length_of_time_is_exact(ms: int, words: str) -> None:
    """Nothing is rounded: a window is told as it is."""
    assert duration_words(ms) == words


def test_a_matcher_is_told_with_its_negation_and_arguments() -> None:
    """Every part of a matcher is in its words."""
    words = matcher_words(
        {"namespace": ["fs"], "arguments": ['{"/path": {"glob": "x"}}'], "not": {"name": ["read", "list"]}}
    )

    assert words == 'namespace fs, arguments {"/path": {"glob": "x"}}, but not (name read or list)'
