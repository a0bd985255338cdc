"""Mediation: what the provider sees of a request that was ruled on, what is denied when it comes back, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.catalog import Catalog, default_entries
from wardwright.config import Problems, parse_yaml
from wardwright.errors import ToolNameCollision, WireError
from wardwright.facts import ToolFact
from wardwright.mediation import (
    Advertisement,
    Mediation,
    Prepared,
    advertise,
    compile_advertisement,
    compile_mediation,
    deny_hidden,
    prepare,
)
from wardwright.policy.rules import Action, CallRuling, Finding, Ruling
from wardwright.wire import anthropic, chat_completions, responses
from wardwright.wire.edit import ToolSpec
from wardwright.wire.turn import DeclaredTool, TextItem, Turn, WireName

WIRES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
EACH_WIRE = pytest.mark.parametrize("wire", list(WIRES))

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
OWN = ToolSpec("own_clock", "Tell the time.", {"type": "object", "properties": {}})
NOTHING = Mediation()


def mediation(text: str) -> Mediation:
    problems = Problems("f")
    compiled = compile_mediation(parse_yaml(text, problems), problems)
    assert problems.errors == []
    return compiled


def problems_of(text: str) -> list[str]:
    problems = Problems("f")
    compile_mediation(parse_yaml(text, problems), problems)
    return [str(problem) for problem in problems.found]


def request(wire: str, *names: str, choice: str = "", **more: Any) -> dict[str, Any]:
    """A request that says `hello` and declares tools, perhaps forcing one."""
    if wire == "chat_completions":
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        tools = [
            {"type": "function", "function": {"name": name, "description": f"Do {name}.", "parameters": SCHEMA}}
            for name in names
        ]
        forced: Any = {"type": "function", "function": {"name": choice}}
    elif wire == "responses":
        body = {"model": "m", "input": "hello"}
        tools = [
            {"type": "function", "name": name, "description": f"Do {name}.", "parameters": SCHEMA, "strict": False}
            for name in names
        ]
        forced = {"type": "function", "name": choice}
    else:
        body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
        tools = [{"name": name, "description": f"Do {name}.", "input_schema": SCHEMA} for name in names]
        forced = {"type": "tool", "name": choice}
    if tools:
        body["tools"] = tools
    if choice:
        body["tool_choice"] = forced
    return deepcopy({**body, **more})


def turn_of(wire: str, body: Mapping[str, Any]) -> Turn:
    return WIRES[wire].parse_request(deepcopy(dict(body)))


def ruling(**changes: Any) -> Ruling:
    made = Ruling("request", "allow", "hash")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def prepared(
    wire: WireName | str,
    body: dict[str, Any],
    mediation: Mediation = NOTHING,
    ruled: Ruling | None = None,
    *,
    server_tools: Sequence[ToolSpec] = (),
    tools_ok: bool = True,
    off: Sequence[str] = (),
    **more: Any,
) -> Prepared:
    return prepare(
        body,
        wire,  # pyright: ignore[reportArgumentType]
        turn_of(wire, body),
        ruled or ruling(),
        mediation=mediation,
        tools_ok=tools_ok,
        server_tools=server_tools,
        off=off,
        **more,
    )


def seen(wire: str, found: Prepared) -> dict[str, DeclaredTool]:
    """The tools that the provider reads in the body."""
    return {tool.name: tool for tool in turn_of(wire, found.body).tools}


# --- nothing to do -----------------------------------------------------------------------------------------------------


@EACH_WIRE
def test_a_request_without_anything_to_do_is_left_alone(wire: str) -> None:
    """No rules, no server tools, a plain ruling: same body, empty record."""
    body = request(wire, "shell_exec")
    found = prepared(wire, body)

    assert found.body is body
    assert body == request(wire, "shell_exec")
    assert (found.injected, found.hidden, found.record) == (frozenset(), frozenset(), {})


# --- the ruling --------------------------------------------------------------------------------------------------------


@EACH_WIRE
def test_stripped_tools_are_gone(wire: str) -> None:
    """What policy takes away the provider does not see, and a choice of it is mended."""
    found = prepared(
        wire, request(wire, "shell_exec", "notes", choice="shell_exec"), ruled=ruling(stripped=("shell_exec",))
    )

    assert list(seen(wire, found)) == ["notes"]
    assert "shell_exec" not in json.dumps(found.body)
    assert found.record["original_hash"] != found.record["final_hash"]


@EACH_WIRE
def test_the_last_tool_takes_the_choice_with_it(wire: str) -> None:
    """A request without tools has no choice of them either."""
    found = prepared(wire, request(wire, "shell_exec", choice="shell_exec"), ruled=ruling(stripped=("shell_exec",)))

    assert not {"tools", "tool_choice"} & found.body.keys()


def test_controls_of_hosted_tools_are_set() -> None:
    """G12: a clamped parameter reaches the provider."""
    body = request("anthropic")
    body["tools"] = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 9}]
    found = prepared("anthropic", body, ruled=ruling(controls={"web_search": {"max_uses": 2}}))

    assert found.body["tools"] == [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]


@EACH_WIRE
def test_transforms_change_the_text(wire: str) -> None:
    """What a rule replaces is replaced before the provider reads it."""
    finding = Finding("r", "request_guard", Action("transform", pattern="hel+o", text="[gone]"), "transform", "")
    found = prepared(wire, request(wire), ruled=ruling(transforms=(finding,)))

    assert turn_of(wire, found.body).items == [TextItem("user", "[gone]")]
    assert found.record == {}


@EACH_WIRE
def test_reminders_stand_with_the_instructions(wire: str) -> None:
    """A reminder is an instruction, not a word of the user's."""
    found = prepared(wire, request(wire), ruled=ruling(reminders=("Be careful.", "Ask first.")))
    first, *_ = turn_of(wire, found.body).items

    assert isinstance(first, TextItem)
    assert (first.role in ("system", "developer"), first.text) == (True, "Be careful.\n\nAsk first.")


def test_texts_are_counted_as_they_were_judged() -> None:
    """A reminder before the conversation does not shift which text a transform is about."""
    body = request("chat_completions")
    body["messages"].append({"role": "user", "content": "again"})
    fact = ToolFact("a", "b", "a.b", "unknown", "planning", "inferred", item=1)
    finding = Finding("r", "request_guard", Action("transform", text="[gone]"), "transform", "", facts=(0,))
    found = prepared(
        "chat_completions", body, ruled=ruling(transforms=(finding,), facts=(fact,), reminders=("Careful.",))
    )

    assert [message["content"] for message in found.body["messages"]] == ["Careful.", "hello", "[gone]"]


# --- hide, augment, replace --------------------------------------------------------------------------------------------


@EACH_WIRE
def test_a_hidden_tool_is_not_seen(wire: str) -> None:
    """G43: neither its definition nor a choice of it is left, and calls to it will be denied."""
    rules = mediation("mode: patch\nrules: [{id: no-shell, action: hide, match: {name: 'shell_*'}}]")
    found = prepared(wire, request(wire, "shell_exec", "notes", choice="shell_exec"), rules)

    assert list(seen(wire, found)) == ["notes"]
    assert "shell_exec" not in json.dumps(found.body)
    assert (found.hidden, found.shown) == ({"shell_exec"}, {"notes"})
    assert found.record["rules"] == [{"id": "no-shell", "action": "hide", "tools": ["shell_exec"]}]


@EACH_WIRE
def test_an_augmented_tool_says_more(wire: str) -> None:
    """G43: words are added to its description and properties to its schema; nothing of its own is lost."""
    rules = mediation("""
mode: patch
rules:
  - id: say-why
    action: augment
    match: {name: shell_exec}
    description_append: Say why.
    parameters: {properties: {reason: {type: string}}, required: [reason]}
""")
    tool = seen(wire, prepared(wire, request(wire, "shell_exec"), rules))["shell_exec"]

    assert tool.description == "Do shell_exec.\nSay why."
    assert tool.schema == {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["cmd", "reason"],
    }


@EACH_WIRE
def test_a_replaced_tool_keeps_its_name(wire: str) -> None:
    """G43: another description, another schema, and the choice of it still holds."""
    rules = mediation("""
mode: patch
rules:
  - id: safer
    action: replace
    match: {name: shell_exec}
    tool: {name: shell_exec, description: Run a safe command., parameters: {type: object, properties: {safe: {}}}}
""")
    found = prepared(wire, request(wire, "shell_exec", choice="shell_exec"), rules)
    tool = seen(wire, found)["shell_exec"]
    choice = turn_of(wire, found.body).tool_choice

    assert (tool.description, tool.schema) == ("Run a safe command.", {"type": "object", "properties": {"safe": {}}})
    assert choice is not None
    assert choice.names == ("shell_exec",)


@EACH_WIRE
def test_one_part_may_be_replaced_alone(wire: str) -> None:
    """What the replacement does not say stays the tool's own."""
    rules = mediation(
        "mode: patch\nrules: [{id: a, action: replace, match: {name: a}, tool: {parameters: {properties: {b: {}}}}}]"
    )
    tool = seen(wire, prepared(wire, request(wire, "a"), rules))["a"]

    assert tool.description == "Do a."
    assert tool.schema is not None
    assert tool.schema["properties"] == {"b": {}}


@EACH_WIRE
def test_rules_apply_in_order(wire: str) -> None:
    """The second rule works on what the first has made; what is hidden stays hidden."""
    rules = mediation("""
mode: patch
rules:
  - {id: one, action: replace, match: {name: a}, tool: {description: New.}}
  - {id: two, action: augment, match: {name: [a, b]}, description_append: Really.}
  - {id: three, action: hide, match: {name: b}}
  - {id: four, action: augment, match: {name: b}, description_append: Never.}
""")
    found = prepared(wire, request(wire, "a", "b"), rules)

    assert {name: tool.description for name, tool in seen(wire, found).items()} == {"a": "New.\nReally."}
    assert [(one["id"], one["tools"]) for one in found.record["rules"]] == [
        ("one", ["a"]),
        ("two", ["a", "b"]),
        ("three", ["b"]),
    ]


@EACH_WIRE
def test_observing_changes_nothing_and_tells_what_it_would(wire: str) -> None:
    """G43: in observe mode only the record knows of the rules."""
    rules = mediation("rules: [{id: no-shell, action: hide, match: {name: shell_exec}}]")
    body = request(wire, "shell_exec")
    found = prepared(wire, body, rules)

    assert body == request(wire, "shell_exec")
    assert found.hidden == frozenset()
    assert (found.record["mode"], found.record["rules"]) == (
        "observe",
        [{"id": "no-shell", "action": "hide", "tools": ["shell_exec"]}],
    )
    assert found.record["original_hash"] == found.record["final_hash"]


def test_what_only_the_provider_can_describe_is_left_alone() -> None:
    """A hosted tool can be hidden, not described otherwise; the record says why a rule did nothing."""
    rules = mediation("""
mode: patch
rules:
  - {id: more, action: augment, match: {name: web_search}, description_append: More.}
  - {id: typed, action: augment, match: {name: bash}, description_append: More.}
""")
    body = request("anthropic")
    body["tools"] = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    found = prepared("anthropic", deepcopy(body), rules)

    assert found.body == body
    assert found.record["rules"] == [
        {"id": "more", "action": "augment", "tools": [], "skipped": {"web_search": "the provider describes it"}},
        {"id": "typed", "action": "augment", "tools": [], "skipped": {"bash": "it declares no parameters"}},
    ]


def test_a_hosted_tool_can_be_hidden() -> None:
    """Hiding needs no description."""
    rules = mediation("mode: patch\nrules: [{id: offline, action: hide, match: {name: web_search}}]")
    body = request("responses", "notes")
    body["tools"].append({"type": "web_search"})

    assert list(seen("responses", prepared("responses", body, rules))) == ["notes"]


# --- server tools ------------------------------------------------------------------------------------------------------


@EACH_WIRE
def test_server_tools_stand_beside_the_callers(wire: str) -> None:
    """G42, G43: the provider sees both; the receipt says whose each is and who sees it."""
    found = prepared(wire, request(wire, "notes"), server_tools=[OWN])

    assert list(seen(wire, found)) == ["notes", "own_clock"]
    assert found.injected == {"own_clock"}
    assert found.record["tools"] == [
        {
            "names": ["notes"],
            "declared_by": "caller",
            "executed_by": "client",
            "visible_to_provider": True,
            "visible_to_agent": True,
        },
        {
            "names": ["own_clock"],
            "declared_by": "wardwright",
            "executed_by": "wardwright",
            "visible_to_provider": True,
            "visible_to_agent": False,
        },
    ]


@EACH_WIRE
def test_a_request_without_tools_gets_the_server_s(wire: str) -> None:
    """A caller need not know of tools at all."""
    assert list(seen(wire, prepared(wire, request(wire), server_tools=[OWN]))) == ["own_clock"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"off": ["own_clock"]}, "switched off"),
        ({"tools_ok": False}, "the target cannot use tools"),
        ({"ruled": ruling(withheld_server_tools=("own_clock",))}, "withheld by policy"),
        (
            {"mediation": mediation("mode: patch\nrules: [{id: hush, action: hide, match: {name: own_*}}]")},
            "hidden by rule 'hush'",
        ),
    ],
)
def test_a_server_tool_that_is_not_injected_says_why(how: dict[str, Any], reason: str) -> None:
    """G42: the provider does not see it, a call to it is denied, the receipt has the reason."""
    found = prepared("chat_completions", request("chat_completions"), server_tools=[OWN], **how)

    assert "tools" not in found.body
    assert (found.injected, found.hidden) == (frozenset(), {"own_clock"})
    assert found.record["not_injected"] == {"own_clock": reason}


def test_rules_describe_server_tools_too() -> None:
    """Mediation does not ask who declared a tool."""
    rules = mediation(
        "mode: patch\nrules: [{id: a, action: augment, match: {name: own_clock}, description_append: UTC.}]"
    )
    found = prepared("chat_completions", request("chat_completions"), rules, server_tools=[OWN])

    assert seen("chat_completions", found)["own_clock"].description == "Tell the time.\nUTC."


def test_tools_of_an_mcp_server_are_run_there() -> None:
    """The record does not claim what happens elsewhere."""
    found = prepared("chat_completions", request("chat_completions"), server_tools=[OWN], remote=["own_clock"])

    assert found.record["tools"][0]["executed_by"] == "remote_mcp"


@EACH_WIRE
@pytest.mark.parametrize("name", ["own_clock", "OWN_CLOCK"])
def test_a_caller_s_tool_with_the_name_of_a_server_tool_is_refused(wire: str, name: str) -> None:
    """G41: calls to either could not be told apart; not even when the server tool is off."""
    with pytest.raises(ToolNameCollision) as caught:
        prepared(wire, request(wire, name), server_tools=[OWN], off=["own_clock"])

    assert str(caught.value) == (
        f"the tool name '{name}' belongs to a tool that the gateway itself runs for this model; give yours another name - "
        "at `$.tools`"
    )
    assert caught.value.status == 400


def test_several_choices_cannot_use_server_tools() -> None:
    """G41: rounds of different choices could not be one answer."""
    with pytest.raises(WireError) as caught:
        prepared("chat_completions", request("chat_completions", n=2), server_tools=[OWN])

    assert str(caught.value) == "`n` above 1 cannot be used with server tools: ask for one choice - at `$.n`"


def test_several_choices_without_server_tools_are_fine() -> None:
    """Where none is injected nothing stands in the way."""
    body = request("chat_completions", n=2)

    assert prepared("chat_completions", body, server_tools=[OWN], tools_ok=False).injected == frozenset()


NAMES = ("a", "b", "shell_exec", "web")
RULES = st.lists(
    st.tuples(st.sampled_from(["hide", "augment", "replace"]), st.sampled_from([*NAMES, "*", "s*", "own_*"])),
    max_size=4,
)


@EACH_WIRE
@given(
    names=st.lists(st.sampled_from(NAMES), unique=True),
    stripped=st.sets(st.sampled_from(NAMES)),
    rules=RULES,
    mode=st.sampled_from(["observe", "patch"]),
    forced=st.integers(0, 3),
    tools_ok=st.booleans(),
)
def test_what_is_taken_away_is_never_seen(
    wire: str, names: list[str], stripped: set[str], rules: Any, mode: str, forced: int, tools_ok: bool
) -> None:
    """Whatever the rules are: the body can be read again, says what it said, and shows exactly what the record claims."""
    written = [
        {"id": f"r{at}", "action": action, "match": {"name": name}}
        | ({"description_append": "More."} if action == "augment" else {})
        | ({"tool": {"description": "Other."}} if action == "replace" else {})
        for at, (action, name) in enumerate(rules)
    ]
    choice = names[forced] if forced < len(names) else ""
    body = request(wire, *names, choice=choice)
    before = turn_of(wire, body)
    found = prepared(
        wire,
        body,
        mediation(json.dumps({"mode": mode, "rules": written})),
        ruling(stripped=tuple(sorted(stripped))),
        server_tools=[OWN],
        tools_ok=tools_ok,
    )
    after = turn_of(wire, found.body)
    visible = {tool.name for tool in after.tools}
    chosen = set() if after.tool_choice is None else set(after.tool_choice.names)

    assert after.items == before.items
    assert visible.isdisjoint(stripped | found.hidden)
    assert (
        visible
        == found.shown
        == {name for one in found.record["tools"] if one["visible_to_provider"] for name in one["names"]}
    )
    assert visible - found.injected == set(names) - stripped - found.hidden
    assert chosen <= visible


# --- what comes back ---------------------------------------------------------------------------------------------------


def call(name: str, status: Any = "allow") -> CallRuling:
    return CallRuling(0, "c", "p", name, status)


@pytest.mark.parametrize("name", ["shell_exec", "Shell_Exec", "shell\u200b_exec"])
def test_a_call_to_a_hidden_tool_is_denied(name: str) -> None:
    """G43: however it is spelled; the model reads that it must do without."""
    (denied,) = deny_hidden((call(name),), {"shell_exec"})

    assert (denied.status, denied.rules) == ("deny_call", ("tool_mediation",))
    assert denied.message == f"Tool '{name}' is not available here. Use another tool."


def test_other_calls_pass_as_they_were() -> None:
    """Nothing else is touched, and what was refused more strongly stays so."""
    calls = (call("notes"), call("shell_exec", "block"))

    assert deny_hidden(calls, {"shell_exec"}) == calls


def test_an_approval_does_not_bring_a_hidden_tool_back() -> None:
    """A denial is stronger than a question."""
    (denied,) = deny_hidden((call("shell_exec", "require_approval"),), {"shell_exec"})

    assert denied.status == "deny_call"


def test_another_name_of_a_hidden_tool_is_denied_too() -> None:
    """By the catalog both mean the same tool; a name that the provider was shown may be called."""
    catalog, hidden = Catalog([default_entries()]), {"mcp__github__create_issue"}
    other = "functions.mcp__github__create_issue"

    assert [one.status for one in deny_hidden((call(other),), hidden, catalog=catalog)] == ["deny_call"]
    assert [one.status for one in deny_hidden((call(other),), hidden, catalog=catalog, shown={other})] == ["allow"]


# --- what a caller can count on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "counts"),
    [((True, True), (2, 0)), ((True, False), (0, 2)), ((False, False), (0, 0)), ((), (0, 0))],
)
def test_only_what_every_target_can_use_is_guaranteed(targets: tuple[bool, ...], counts: tuple[int, int]) -> None:
    """G42: what some can use is conditional; what none can use is not offered."""
    told = advertise(Advertisement(), ("a", "b"), targets).record()

    assert (told["guaranteed"], told["conditional"]) == counts


def test_the_advertisement_is_on_the_record() -> None:
    """A receipt says what the caller could count on."""
    told = advertise(Advertisement("conditional_union"), ("own_clock",), (True, False))
    found = prepared("chat_completions", request("chat_completions"), server_tools=[OWN], advertised=told)

    assert found.record["advertisement"] == {"mode": "conditional_union", "guaranteed": 0, "conditional": 1}


@pytest.mark.parametrize("mode", ["intersection", "conditional_union"])
def test_both_modes_of_advertisement_load(mode: str) -> None:
    """As operators write them."""
    problems = Problems("f")

    assert compile_advertisement(parse_yaml(f"mode: {mode}", problems), problems) == Advertisement(mode)  # pyright: ignore[reportArgumentType]
    assert problems.found == []


def test_an_unknown_mode_of_advertisement_is_told() -> None:
    """With the word that was meant."""
    problems = Problems("f")
    compile_advertisement(parse_yaml("mode: conditional_onion", problems), problems)

    assert [str(problem) for problem in problems.found] == [
        "f:1:1: mode: 'conditional_onion' is not one of intersection, conditional_union (did you mean 'conditional_union'?)"
    ]


def test_sections_that_are_not_there_mean_nothing_to_do() -> None:
    """Both have defaults."""
    problems = Problems("f")

    assert compile_mediation(None, problems) == Mediation("observe", ())
    assert compile_advertisement(None, problems) == Advertisement("intersection")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mode: pach", "1:1: mode: 'pach' is not one of observe, patch (did you mean 'patch'?)"),
        ("mood: patch", "1:1: mood: unknown key 'mood' (did you mean 'mode'?)"),
        ("rules: {a: 1}", "1:1: rules: expected a list, got a mapping"),
        ("rules: [{id: a, action: hide}]", "1:9: rules[0]: missing key 'match'"),
        ("rules: [{id: a, action: hid, match: {name: a}}]", "1:17: rules[0].action: 'hid' is not one of hide, augment, replace (did you mean 'hide'?)"),
        ("rules: [{id: a, action: hide, match: {nam: a}}]", "1:39: rules[0].match.nam: unknown key 'nam' (did you mean 'name'?)"),
        ("rules: [{id: a, action: hide, match: {name: a}, tool: {}}]", "1:49: rules[0].tool: is not for action 'hide'"),
        ("rules: [{id: a, action: augment, match: {name: a}}]", "1:9: rules[0]: augment needs 'description_append' or 'parameters'"),
        ("rules: [{id: a, action: replace, match: {name: a}}]", "1:9: rules[0]: replace needs 'tool'"),
        ("rules: [{id: a, action: replace, match: {name: a}, tool: {}}]", "1:52: rules[0].tool: needs 'description' or 'parameters'"),
        ("rules: [{id: a, action: replace, match: {name: a}, tool: {name: b, description: c}}]", "1:59: rules[0].tool.name: must be the name in 'match': the caller knows the tool by no other"),
        ("rules: [{id: a, action: augment, match: {name: a}, parameters: {type: array}}]", "1:65: rules[0].parameters.type: parameters are an object: the type must be 'object'"),
        ("rules: [{id: a, action: augment, match: {name: a}, parameters: 3}]", "1:52: rules[0].parameters: expected a mapping, got number 3"),
        ("rules: [{id: a, action: hide, match: {name: a}}, {id: a, action: hide, match: {name: b}}]", "1:51: rules[1].id: id 'a' is already used at line 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, problem: str) -> None:
    """Each mistake once, at the key that makes it."""
    found = problems_of(text)

    assert [one for one in found if "missing key 'name'" not in one] == [f"f:{problem}"]


def test_a_rule_about_hidden_tools_is_odd() -> None:
    """What can never apply is told, and loads."""
    problems = Problems("f")
    text = "rules: [{id: a, action: hide, match: {name: 'shell_*'}}, {id: b, action: hide, match: {name: shell_exec}}]"
    compiled = compile_mediation(parse_yaml(text, problems), problems)

    assert len(compiled.rules) == 2
    assert [(str(one), one.severity) for one in problems.found] == [
        ("f:1:58: rules[1]: can never apply: rule 'a' hides what it is about", "warning")
    ]


def test_servers_that_are_not_there_are_on_the_record() -> None:
    """A receipt says why tools were missing."""
    found = prepared(
        "chat_completions", request("chat_completions"), server_tools=[OWN], unavailable={"words": "no answer"}
    )

    assert found.record["unavailable"] == {"words": "no answer"}


def test_a_schema_that_cannot_be_read_is_told_inside() -> None:
    """The place is that of the wrong keyword."""
    found = problems_of(
        "rules:\n  - id: a\n    action: augment\n    match: {name: a}\n    parameters:\n      properties:\n        b: {type: 7}\n"
    )

    assert len(found) == 1
    assert found[0].startswith("f:7:")
