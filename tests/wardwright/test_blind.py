"""What a plan cannot see is said: each kind of blindness where it is, and not where it is not; every sentence as people read it."""

from __future__ import annotations

import pytest

from wardwright import compile_plan, load_config
from wardwright.blind import blind
from wardwright.plans import names, ready_made

from .test_cli import Shell, shell

__all__ = ["shell"]

PROVENANCE = "  - {id: from, kind: argument_provenance, tool: {name: '*'}}\n"
INTENT = "  - {id: asked, kind: intent, tool: {name: '*'}}\n"
MACHINE = "state_machine: {initial_state: a, states: [a, b]}\n"
TARGET = "targets: [{model: m, provider: scripted, tools: true, capabilities: %s}]\n"
STRIP = "  - {id: strip, kind: tool_selector, action: strip_tools, tool: {namespace: 'provider.*', source: declared_tool}}\n"
NOTHING = "  - {id: note, kind: tool_selector, action: annotate, tool: {name: x}}\n"


def seen(text: str, kind: str) -> list[tuple[str, str, str]]:
    """(what, why, what to do) of one kind."""
    lines = blind(compile_plan(load_config(f"model_id: m\n{text}")))
    return [(line.what, line.why, line.remedy) for line in lines if line.kind == kind]


CASES = [
    pytest.param(
        "catalog: [{match: tidy, namespace: files}]\ngovernance:\n  - {id: n, kind: tool_selector, action: deny_call, tool: {name: '*'}}\n",
        "tools_unlabelled",
        (
            "the risk of 'tidy'",
            "the catalog names them and says no risk_class, so a rule that asks for one sees 'unknown'",
            "give each a risk_class; rules that refuse should list 'unknown' too",
        ),
        id="a tool without risk",
    ),
    pytest.param(
        f"governance:\n{NOTHING}",
        "tools_unlabelled",
        (
            "tools that nobody described",
            "a tool that stands in no catalog has risk 'unknown', and no rule refuses or holds that in every state",
            "add 'unknown' to risk_class of a rule that refuses, or list what is allowed with allowed_tools",
        ),
        id="a tool nobody described",
    ),
    pytest.param(
        f"catalog: [{{match: get, namespace: x, risk_class: read_only}}]\ngovernance:\n{PROVENANCE}",
        "fields_unlabelled",
        (
            "which fields of 'get' can be trusted",
            "no 'fields': all that they return counts as text that anybody may have written",
            "say the class of each field (system, directory, payee, label, text, …); what is left out stays text",
        ),
        id="fields",
    ),
    pytest.param(
        f"catalog: [{{match: put, namespace: x, risk_class: write}}]\ngovernance:\n{PROVENANCE}",
        "arguments_unlabelled",
        (
            "what goes into the arguments of 'put'",
            "no 'arguments': each takes only what the user said, and everything else is held",
            "say the sink of each argument (address, payee, url_post, object, text, …)",
        ),
        id="arguments",
    ),
    pytest.param(
        f"catalog: [{{match: put, namespace: x, risk_class: write}}]\ngovernance:\n{INTENT}",
        "effects_unlabelled",
        (
            "what 'put' would do",
            "no 'effects': a rule on intent cannot tell which words ask for it, and refuses it",
            "say what each does (send, pay, delete, …), or an instrumental effect such as draft",
        ),
        id="effects",
    ),
    pytest.param(
        f"governance:\n{NOTHING}",
        "unguarded",
        (
            "a person's judgement",
            "no rule holds anything for an approval: what the rules let pass, passes",
            "use require_approval where a refusal would be too much and passing too little",
        ),
        id="no approvals",
    ),
    pytest.param(
        f"governance:\n{NOTHING}",
        "hosted",
        (
            "what a provider runs by itself ('provider.web_search', 'provider.file_search', 'provider.web_fetch', "
            "'provider.code_interpreter', 'provider.code_execution', 'provider.image_generation', 'provider.computer', "
            "'provider.computer_use', 'provider.*')",
            "the plan names no targets, so whether a provider reports it, and what can be set, is not known",
            "name your targets with their capabilities, or take hosted tools away: strip_tools on namespace 'provider.*'",
        ),
        id="no targets",
    ),
    pytest.param(
        f"{TARGET % '{}'}governance:\n{NOTHING}",
        "hosted",
        (
            "hosted tools that no capability record names at 'm'",
            "what no record mentions may run unseen",
            "take it away (strip_tools), or say in the target's capabilities what the provider shows and takes",
        ),
        id="no record",
    ),
    pytest.param(
        f"{TARGET % '{web_search: {events: false, controls: []}}'}governance:\n{NOTHING}",
        "hosted",
        (
            "'provider.web_search' at 'm'",
            "its record says neither events nor controls: it is not reported, and nothing of it can be set",
            "take it away (strip_tools), or say in the target's capabilities what the provider shows and takes",
        ),
        id="opaque",
    ),
    pytest.param(
        f"{TARGET % '{web_search: {events: true, controls: []}}'}governance:\n{NOTHING}",
        "hosted",
        (
            "'provider.web_search' at 'm'",
            "the provider reports it after it ran; nothing of it can be set before",
            "take it away (strip_tools) where seeing it afterwards is too late",
        ),
        id="only afterwards",
    ),
    pytest.param(
        f"{TARGET % '{web_search: {events: false, controls: [max_uses]}}'}governance:\n{NOTHING}",
        "hosted",
        (
            "'provider.web_search' at 'm'",
            "it can be bounded before the call (max_uses), but its calls and results are not reported",
            "bound it with set_controls; rules that count or wait for its results never see any",
        ),
        id="only before",
    ),
    pytest.param(
        f"{TARGET % '{web_search: {events: false, controls: [max_uses]}}'}governance:\n"
        "  - {id: set, kind: tool_selector, action: set_controls, controls: {allowed_domains: [a.test]}, tool: {namespace: provider.web_search, source: declared_tool}}\n",
        "never_fires",
        (
            "controls that 'set' would set on 'provider.web_search' at 'm'",
            "the target does not take them, so the rule does nothing there",
            "route such requests to a target that takes them, or take the tool away",
        ),
        id="controls nobody takes",
    ),
    pytest.param(
        f"governance:\n{NOTHING.replace('annotate', 'block, mode: observe')}",
        "observes",
        (
            "what 'note' would refuse passes all the same",
            "mode: observe finds and counts, and lets everything pass",
            "read what they would have done (wardwright report), then set mode: enforce",
        ),
        id="observes",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {phase: planning, source: tool_result}}\n",
        "never_fires",
        (
            "what governance[0].tool asks for (line 3)",
            "a tool_result has phase result_interpretation",
            "correct the rule, or take it out",
        ),
        id="a matcher that nothing fits",
    ),
    pytest.param(
        f"{MACHINE}governance:\n  - {{id: r, kind: tool_selector, action: block, state_scope: b, tool: {{name: x}}}}\n",
        "never_fires",
        (
            "rule 'r'",
            "it acts only in state 'b', which nothing enters",
            "let a rule enter the state (transition_to), or leave out state_scope",
        ),
        id="a state nobody enters",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: warehouse}}\n",
        "never_fires",
        (
            "what 'tool' of rule 'r' waits for",
            "no entry of the catalog gives a tool the namespace 'warehouse'; only a tool that a caller names so fits",
            "name your tools so in the catalog, or correct the rule",
        ),
        id="a namespace nobody has",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {namespace: [shell, warehouse]}}\n",
        "never_fires",
        (
            "a part of what 'tool' of rule 'r' waits for",
            "no entry of the catalog gives a tool the namespace 'warehouse'; only a tool that a caller names so fits",
            "name your tools so in the catalog, or correct the rule",
        ),
        id="one namespace of two that nobody has",
    ),
    pytest.param(
        f"{MACHINE}governance:\n  - {{id: loop, kind: tool_loop_threshold, action: block, threshold: 2, tool: {{name: x}}}}\n",
        "session",
        (
            "what happened in another session of the same caller ('loop', 'machine default')",
            "they remember one session; who begins a new one, without known call ids, starts from nothing",
            "where that matters: cache_scope (or a machine's scope) user, agent, application or tenant, which the key of a caller "
            "pins; declare retention and purpose under scopes",
        ),
        id="sessions",
    ),
    pytest.param(
        f"governance:\n{INTENT}",
        "no_user",
        (
            "the user's words on MCP, and in process unless they are given ('asked')",
            "MCP carries calls and results only: rules that wait for the user's words never hear any there",
            "let these rules judge at the model's gate, or give the words in process (GovernancePolicy.user_turn)",
        ),
        id="no user",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_loop_threshold, action: block, threshold: 2, within: {ms: 90000}, tool: {name: x}}\n",
        "expires",
        (
            "what 'r' saw longer ago than 90 s",
            "a window can be waited out",
            "if that matters use a state that only 'until' ends, or a longer window",
        ),
        id="a window of time",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_loop_threshold, action: block, threshold: 2, within: {turns: 4, events: 9}, tool: {name: x}}\n",
        "expires",
        (
            "what 'r' saw longer ago than 4 turns or 9 events",
            "a window can be flushed by harmless calls",
            "if that matters use a state that only 'until' ends, or a longer window",
        ),
        id="a window of turns",
    ),
    pytest.param(
        f"{MACHINE}governance:\n  - {{id: r, kind: tool_sequence, after: {{tool: {{name: x}}}}, transition_to: b, until: {{user_turn: true}}}}\n",
        "expires",
        (
            "what 'r' saw before the last text in the user's role",
            "any such text ends it, also a note that a client puts there by itself",
            "if your client does that, let a tool end it: until: {tool: …}",
        ),
        id="a user's word",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: x}, exceptions: [{caller: {tenant: t}, expires: '2030-01-01'}]}\n",
        "expires",
        (
            "what rule 'r' would find of tenant t",
            "an exception lets it pass until its date",
            "take the exception out when its reason is gone",
        ),
        id="an exception",
    ),
    pytest.param(
        "state_machine: {initial_state: a, states: [{id: a}, {id: b, expires_ms: 7200000, expires_to: a}]}\n"
        "governance:\n  - {id: r, kind: tool_selector, action: transition, transition_to: b, tool: {name: x}}\n",
        "expires",
        (
            "that state 'b' was entered longer than 2 h ago",
            "it ends by itself, in 'a'",
            "if the state holds something back, let only 'until' or a rule end it",
        ),
        id="a state that ends",
    ),
    pytest.param(
        "governance:\n  - {id: r, kind: request_guard, match: secret}\n",
        "words",
        (
            "the same thing said in other words, another language or an encoding ('r')",
            "these rules look for a pattern in the text",
            "use them for fixed forms (keys, names); for tools use rules on tools, provenance and intent",
        ),
        id="words",
    ),
    pytest.param(
        f"governance:\n{PROVENANCE}",
        "pasted",
        (
            "summaries, retrieved documents and tool results that a client pastes into the user's role",
            "what stands there counts as the user's own words",
            "name the look of such texts: untrusted_text of the rule",
        ),
        id="pasted",
    ),
    pytest.param(
        f"governance:\n{PROVENANCE}",
        "pasted",
        (
            "which addresses and accounts are the principal's own",
            "neither 'self' of the rule nor a field of class 'self' says so: they are held like a stranger's",
            "list them under self",
        ),
        id="nobody's own",
    ),
]


@pytest.mark.parametrize(("plan", "kind", "line"), CASES)
def test_what_is_not_seen_is_said(plan: str, kind: str, line: tuple[str, str, str]) -> None:
    """What, why, and what to do about it."""
    assert line in seen(plan, kind)


def test_what_cannot_be_undone_and_nobody_is_asked_about_is_named() -> None:
    """Tools of one's own catalog and of the one that ships."""
    (line, _) = seen(
        f"catalog: [{{match: launch, namespace: x, risk_class: irreversible}}]\ngovernance:\n{NOTHING}", "unguarded"
    )

    assert line[0].startswith("whether anybody wants 'launch', 'bash', ")
    assert line[1:] == (
        "they cannot be undone or reach outside, and no rule refuses them, holds them for approval or asks for the user's words "
        "in every state",
        "add a tool_selector with require_approval for risk_class [irreversible, external_side_effect, unknown], or intent",
    )


def test_what_no_gateway_can_know_is_said_of_every_plan() -> None:
    """The four limits of provenance, and a client's word."""
    assert seen(f"governance:\n{PROVENANCE}", "limit") == [
        (
            "an answer that misleads in words only",
            "no tool is called, so there is nothing to judge",
            "tell people where an answer comes from; stream_guard finds fixed forms only",
        ),
        (
            "harm in 'do what that text says'",
            "the user has asked for it, in so many words",
            "require approval for what cannot be undone",
        ),
        (
            "a target that exists only in text that outsiders can write",
            "nothing else says whose it is, so it can be refused or held, not told right from wrong",
            "keep contacts and payees in a directory that the catalog labels",
        ),
        (
            "the same effect on another object of the owner's",
            "it is the owner's too, and the words fit both",
            "name records in the catalog (names), so that words choose one of them",
        ),
        (
            "whether a client's tool did what its result says",
            "it runs at the client; the result is the client's word, and untrusted",
            "let tools that matter run here (server_tools), or behind the MCP proxy",
        ),
    ]


def test_without_rules_on_provenance_the_limits_say_what_would_help() -> None:
    """Labels alone do nothing: the rules that read them are named."""
    limits = [remedy for _, _, remedy in seen(f"governance:\n{NOTHING}", "limit")]

    assert limits[2:4] == [
        "keep contacts and payees in a directory that the catalog labels (rules argument_provenance and intent)",
        "name records in the catalog (names), so that words choose one of them (rules argument_provenance and intent)",
    ]


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (
            "  - {id: r, kind: tool_selector, action: require_approval, tool: {risk_class: [irreversible, external_side_effect, unknown]}}\n",
            "unguarded",
        ),
        ("  - {id: r, kind: tool_selector, action: deny_call, tool: {risk_class: unknown}}\n", "tools_unlabelled"),
        (
            "  - {id: r, kind: allowed_tools, phase: planning, allowed_tools: [{name: '*', risk_class: read_only}]}\n",
            "tools_unlabelled",
        ),
        (STRIP, "hosted"),
        ("  - {id: r, kind: tool_selector, action: block, tool: {namespace: [unknown, shell]}}\n", "never_fires"),
        ("  - {id: r, kind: tool_selector, action: block, tool: {namespace: 'mcp.*'}}\n", "never_fires"),
        (PROVENANCE.replace("tool:", "self: [me@a.test], untrusted_text: ['^<doc'], tool:"), "pasted"),
    ],
)
def test_what_is_seen_to_is_not_complained_of(plan: str, kind: str) -> None:
    """A rule that sees to it takes the line away."""
    assert seen(f"governance:\n{plan}", kind) == []


@pytest.mark.parametrize(
    "rule",
    [
        "{id: r, kind: tool_selector, action: deny_call, mode: observe, tool: {risk_class: unknown}}",
        "{id: r, kind: tool_selector, action: deny_call, tool: {risk_class: unknown, arguments: {/a: {equals: 1}}}}",
        "{id: r, kind: tool_selector, action: deny_call, state_scope: b, tool: {risk_class: unknown}}",
        "{id: r, kind: tool_selector, action: deny_call, tool: {risk_class: unknown, phase: result_interpretation}}",
        "{id: r, kind: alert, tool: {risk_class: unknown}}",
    ],
)
def test_a_rule_that_sees_to_it_only_sometimes_takes_nothing_away(rule: str) -> None:
    """Observing, some arguments, some states, too late, or telling somebody: none of these refuses."""
    assert "tools that nobody described" in [
        one[0] for one in seen(f"{MACHINE}governance:\n  - {rule}\n", "tools_unlabelled")
    ]


def test_states_that_together_are_all_states_see_to_it() -> None:
    """One rule per state is as good as one for all."""
    rules = "".join(
        f"  - {{id: r{state}, kind: tool_selector, action: deny_call, state_scope: {state}, tool: {{risk_class: unknown}}}}\n"
        for state in "ab"
    )

    assert seen(f"{MACHINE}governance:\n{rules}", "tools_unlabelled") == []


def test_many_names_are_counted() -> None:
    """A line stays a line; JSON has all of them."""
    catalog = ", ".join(f"{{match: t{number}, namespace: x}}" for number in range(20))
    plan = compile_plan(load_config(f"catalog: [{catalog}]\ngovernance:\n{NOTHING}"))
    line = next(one for one in blind(plan) if one.kind == "tools_unlabelled")

    assert line.what.endswith("'t11' and 8 more")
    assert len(line.as_json()["tools"]) == 20


@pytest.mark.parametrize("name", names())
def test_a_ready_made_plan_names_no_tool_that_is_not_there(name: str) -> None:
    """Nothing in it can never fire, and its own catalog is labelled."""
    kinds = {line.kind for line in blind(compile_plan(load_config(ready_made(name).files["plan.yaml"])))}

    assert (
        kinds & {"never_fires", "observes", "fields_unlabelled", "arguments_unlabelled", "effects_unlabelled"} == set()
    )


# the command


def test_check_says_what_a_plan_cannot_see(shell: Shell) -> None:
    """Three lines each, after the problems; the exit code is that of the check."""
    plan = shell.file("plan.yaml", f"model_id: m\ngovernance:\n{NOTHING}")
    shell.file("cases.yaml", "[")

    code, out, err = shell("check", "--blind", plan)

    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        "m: tools_unlabelled: tools that nobody described",
        "  why: a tool that stands in no catalog has risk 'unknown', and no rule refuses or holds that in every state",
        "  do:  add 'unknown' to risk_class of a rule that refuses, or list what is allowed with allowed_tools",
    ]
    assert out.splitlines()[-1] == "plan.yaml: 1 rules for m"


def test_check_says_it_as_json(shell: Shell) -> None:
    """Under the key `blind`, and only when it is asked for."""
    plan = shell.file("plan.yaml", f"model_id: m\ngovernance:\n{NOTHING}")

    assert set(shell.json("check", "--blind", plan)["blind"][0]) == {
        "kind",
        "what",
        "why",
        "do",
        "model",
        "rules",
        "tools",
    }
    assert "blind" not in shell.json("check", plan)
