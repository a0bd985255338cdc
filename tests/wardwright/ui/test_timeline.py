"""A counter-example is drawn gate by gate, and the same stands in words."""

from __future__ import annotations

from xml.etree import ElementTree

from wardwright.config import parse_config
from wardwright.policy.compile import compile_plan
from wardwright.prove import parse_question, prove
from wardwright.ui.timeline import Timeline, timeline

PLAN = """\
model_id: coding
catalog: [{match: 'page_{name}', namespace: page}, {match: 'sh', namespace: shell, name: sh}]
state_machine: {initial_state: clean, states: [clean, tainted]}
governance:
  - {id: taint, kind: tool_sequence, transition_to: tainted, within: {ms: 30000},
     after: {tool: {namespace: page, phase: result_interpretation}}}
  - {id: no-shell, kind: tool_selector, action: deny_call, state_scope: tainted, tool: {namespace: shell, phase: planning}}
"""
SPACE = "{http://www.w3.org/2000/svg}"


def found() -> Timeline:
    question = parse_question("can shell run after page?")
    proof = prove(compile_plan(parse_config(PLAN)), question)
    assert proof.verdict == "counter_example"
    return timeline(proof.as_json()["steps"], question.text)


def test_every_gate_of_the_counter_example_is_an_entry() -> None:
    """Who speaks, what happens, how it was ruled and by whom, and the wait that flushes the window."""
    entries = found().entries

    assert [(one.number, one.gate, one.who, one.decision, one.pause) for one in entries] == [
        (1, "request", "client", "allow", ""),
        (2, "reply", "model", "allow", ""),
        (3, "request", "client", "allow", ""),
        (4, "reply", "model", "allow", "30001 ms pass"),
    ]
    assert [one.states for one in entries] == [("clean",), ("clean",), ("tainted",), ("clean",)]
    assert [one.moved for one in entries] == [False, False, True, True]
    assert entries[2].rules == ("taint",)


def test_the_drawing_holds_every_gate_and_its_words() -> None:
    """One numbered dot per gate, and the whole story in the text of the drawing."""
    made = found()
    root = ElementTree.fromstring(str(made.svg))

    numbers = [one.text for one in root.iter(f"{SPACE}text") if one.get("class") == "number"]
    assert numbers == ["1", "2", "3", "4"]
    told = [one.text for one in root.iter(f"{SPACE}desc")]
    assert told == [made.summary]
    assert "30001 ms pass. 4. reply: " in made.summary
    assert "(allow by taint, state tainted)." in made.summary


def test_long_texts_are_cut_in_the_drawing_and_whole_in_words() -> None:
    """What does not fit a box stands in the list."""
    step = {
        "gate": "reply",
        "at_ms": 5,
        "waited_ms": 0,
        "what": [f"the model calls a tool with quite a long name and number {number}" for number in range(9)],
        "decision": "deny_call",
        "rules": ["<i>"],
        "states": {"default": "on", "other": "off"},
    }
    made = timeline([step], "why?")
    root = ElementTree.fromstring(str(made.svg))

    assert "and 6 more" in [one.text for one in root.iter(f"{SPACE}text")]
    assert made.entries[0].what[-1].endswith("number 8")
    assert made.entries[0].states == ("default: on", "other: off")
    assert "<i>" not in str(made.svg)
