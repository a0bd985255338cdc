"""A receipt in words: every sentence that a person reads, pinned; and nothing that a receipt holds is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wardwright.ui import words

CALL: dict[str, Any] = {
    "source": "assistant_tool_call",
    "namespace": "shell",
    "name": "exec",
    "risk_class": "irreversible",
    "phase": "planning",
    "confidence": "exact",
}


def receipt(status: str = "blocked", *, decision: str = "block", **finding: Any) -> dict[str, Any]:
    """An exchange whose reply a rule acted on."""
    acted = {"rule_id": "r", "kind": "tool_selector", "effect": decision, "facts": [0], "enforced": True, **finding}
    gate = {"gate": "reply", "decision": decision, "rule_id": "r", "facts": [CALL], "findings": [acted]}
    if decision == "deny_call":
        gate["calls"] = [{"call_id": "a", "status": "deny_call"}]
    return {
        "kind": "exchange",
        "id": "rcpt_1",
        "decision": {"decision": decision, "rule_id": "r", "gates": [gate]},
        "final": {"status": status},
    }


def released(**final: Any) -> dict[str, Any]:
    return {
        "kind": "exchange",
        "decision": {"decision": "allow", "gates": [{"gate": "reply", "decision": "allow"}]},
        "final": {"status": "released", **final},
    }


@pytest.mark.parametrize(
    ("finding", "sentence"),
    [
        ({}, "Blocked because rule r blocks shell.exec."),
        (
            {
                "kind": "tool_loop_threshold",
                "evidence": {"observed_count": 3, "threshold": 3, "equal": "tool+arguments"},
            },
            "Blocked because rule r counted 3 equal calls of shell.exec, and acts from 3 on.",
        ),
        (
            {"kind": "tool_loop_threshold", "evidence": {"observed_count": 4, "threshold": 3, "equal": "tool"}},
            "Blocked because rule r counted 4 calls of shell.exec, and acts from 3 on.",
        ),
        (
            {
                "kind": "tool_loop_threshold",
                "evidence": {"observed_count": 4, "threshold": 3, "equal": "tool+arguments+result"},
            },
            "Blocked because rule r counted 4 equal calls and results of shell.exec, and acts from 3 on.",
        ),
        (
            {"kind": "history_threshold", "evidence": {"observed_count": 9, "threshold": 8}},
            "Blocked because rule r counted 9 matching events, and acts from 8 on.",
        ),
        (
            {"kind": "tool_sequence", "evidence": {"distance": {"turns": 1, "events": 4, "ms": 9}}},
            "Blocked because rule r stands against shell.exec now, 1 turn and 4 events after what began it.",
        ),
        (
            {
                "kind": "allowed_tools",
                "evidence": {"blocked_tools": [{"namespace": "a", "name": "b"}, {"namespace": "c", "name": "d"}]},
            },
            "Blocked because rule r allows other tools only, not a.b, c.d.",
        ),
        (
            {"kind": "argument_schema", "evidence": {"problems": ["$.x: missing"]}},
            "Blocked because rule r finds the arguments of shell.exec wrong: $.x: missing.",
        ),
        (
            {"kind": "argument_provenance", "evidence": {"problems": ["x came from a page"]}},
            "Blocked because rule r does not take the arguments of shell.exec from there: x came from a page.",
        ),
        (
            {"kind": "intent", "evidence": {"problems": ["nobody asked for delete"]}},
            "Blocked because rule r finds that the user did not ask for shell.exec: nobody asked for delete.",
        ),
        (
            {"kind": "structured_output", "evidence": {"problems": ["$: expected object"]}},
            "Blocked because rule r finds the answer wrong: $: expected object.",
        ),
        (
            {"kind": "budget", "evidence": {"dimension": "tokens", "used": 12, "limit": 10}},
            "Blocked because rule r allows 10 tokens, and 12 are used.",
        ),
        ({"kind": "request_guard"}, "Blocked because rule r found in the text what it looks for."),
        ({"error": "KeyError"}, "Blocked because rule r failed, and a rule that fails blocks."),
        ({"facts": []}, "Blocked because rule r blocks this."),
        ({"effect": "odd"}, "Blocked because rule r says so."),
    ],
)
def test_a_refusal_says_why_by_the_kind_of_its_rule(finding: dict[str, Any], sentence: str) -> None:
    """What was counted, what was wrong, what it came after."""
    assert words.headline(receipt(**finding)) == sentence


@pytest.mark.parametrize(
    ("effect", "sentence"),
    [
        ("strip_tools", "Rule r takes away shell.exec."),
        ("restrict_routes", "Rule r limits the models for shell.exec."),
        ("switch_model", "Rule r switches the model for shell.exec."),
        ("reroute", "Rule r prefers another model for shell.exec."),
        ("transform", "Rule r changes text of shell.exec."),
        ("inject_reminder", "Rule r adds a reminder to shell.exec."),
        ("set_controls", "Rule r bounds shell.exec."),
        ("alert_async", "Rule r tells somebody about shell.exec."),
        ("annotate", "Rule r notes shell.exec."),
        ("transition", "Rule r moves a state on shell.exec."),
        ("require_approval", "Rule r asks for an approval of shell.exec."),
    ],
)
def test_what_a_rule_did_is_said_by_its_effect(effect: str, sentence: str) -> None:
    """Also what refuses nothing."""
    gate = words.explain(receipt(effect=effect)).gates[0]

    assert gate.findings[0].sentence == sentence


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            receipt("held", decision="require_approval"),
            "Held for an approval because rule r asks for an approval of shell.exec.",
        ),
        (receipt("released", decision="deny_call"), "Released without a call because rule r denies shell.exec."),
        (released(), "Released; no rule stood against it."),
        (released(selected_model="big"), "Released, answered by big; no rule stood against it."),
        ({"final": {"status": "failed", "error": "timeout"}}, "Failed: timeout."),
        ({"final": {"status": "failed"}}, "Failed: the provider gave no answer."),
        ({"final": {"status": "failed", "error": "The caller went away."}}, "Failed: The caller went away."),
        ({"final": {"status": "blocked", "error": "An operator says no."}}, "Blocked: An operator says no."),
        ({"final": {"status": "unavailable"}}, "Refused because nothing could be judged or recorded."),
        ({"final": {"status": "open"}}, "The request passed; there is no answer yet."),
        ({"final": {"status": "blocked"}}, "Blocked because policy refused it."),
        ({"final": {"status": "held"}}, "Held for an approval because a rule asks for one."),
        ({}, "Ended as nothing that is told."),
        ({"kind": "admin", "admin": {"action": "stop", "target": "tool:x"}}, "an operator: stop tool:x."),
    ],
)
def test_every_ending_has_its_sentence(made: dict[str, Any], sentence: str) -> None:
    """Whatever the status."""
    assert words.headline(made) == sentence


def test_what_passes_tells_which_rules_acted_or_would_have() -> None:
    """Shadow rules are named as such."""
    made = released()
    made["decision"]["gates"][0]["findings"] = [
        {"rule_id": "a", "effect": "annotate", "enforced": True},
        {"rule_id": "b", "effect": "block", "enforced": False},
        {"rule_id": "c", "effect": "block", "enforced": False},
        {"rule_id": "d", "effect": "block", "enforced": True, "lifted": "approval"},
    ]

    assert words.headline(made) == (
        "Released; rule a acted without refusing anything; rule d stood against it, lifted by approval; "
        "the rules b, c would have acted (observe)."
    )


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        (CALL, "the model called shell.exec (irreversible, planning)"),
        ({**CALL, "source": "declared_tool"}, "the request offers shell.exec (irreversible, planning)"),
        ({**CALL, "source": "tool_choice"}, "the request forces shell.exec (irreversible, planning)"),
        ({**CALL, "source": "caller_metadata"}, "the caller attests shell.exec (irreversible, planning)"),
        ({**CALL, "source": "inferred"}, "the gateway concluded that shell.exec is in use (irreversible, planning)"),
        ({**CALL, "source": "provider_event"}, "the provider reports shell.exec (irreversible, planning)"),
        (
            {"source": "tool_result", "name": "open", "result_status": "error", "trust": "untrusted", "repeat": True},
            "open answered with error (untrusted, seen before)",
        ),
        ({"raw_name": "x", "confidence": "ambiguous"}, "x was seen (ambiguous name)"),
        ({**CALL, "marks": ["forged"]}, "the model called shell.exec (irreversible, planning); it never passed here"),
        ({"name": "x", "marks": ["definition_changed"]}, "x was seen; its definition has changed"),
        ({"name": "x", "marks": ["altered"]}, "x was seen; it came back altered"),
        ({"name": "x", "marks": ["result_for_denied_call"]}, "x was seen; it answers a call that was denied"),
        ({"name": "x", "marks": ["session_rotated"]}, "x was seen; it belongs to another session"),
        ({"name": "x", "marks": ["claim_contradicted"]}, "x was seen; the caller claims less than was seen"),
        ({"name": "x", "marks": ["undeclared"]}, "x was seen; the request did not declare it"),
    ],
)
def test_a_fact_is_a_sentence(fact: dict[str, Any], sentence: str) -> None:
    """Who did what, how risky it is, and what is odd about it."""
    assert words.fact_words(fact) == sentence


@pytest.mark.parametrize(
    ("gate", "sentence"),
    [
        ({"gate": "request", "decision": "allow"}, "The request passed."),
        ({"gate": "reply", "decision": "block", "rule_id": "r"}, "The model's reply was blocked by rule r."),
        (
            {"gate": "reply", "decision": "deny_call", "rule_id": "r"},
            "Calls of the model's reply were denied by rule r.",
        ),
        ({"gate": "result", "decision": "require_approval"}, "The tool result was held for an approval."),
        ({}, "The gate was judged."),
    ],
)
def test_a_gate_is_a_sentence(gate: dict[str, Any], sentence: str) -> None:
    """What was judged, and how."""
    assert words.gate_words(gate).sentence == sentence


@pytest.mark.parametrize(
    ("gate", "route"),
    [
        ({"route": {"model": "big"}}, "only big may answer"),
        ({"route": {"allowed": ["a", "b"], "prefer": ["b"]}}, "only a, b may answer; b first"),
        ({"reask": True, "binds_next": True}, "another model is asked; it binds the next request"),
        ({}, ""),
    ],
)
def test_a_route_is_said(gate: dict[str, Any], route: str) -> None:
    """Who may answer."""
    assert words.gate_words(gate).route == route


@pytest.mark.parametrize(
    ("finding", "badge"),
    [
        ({"error": "x"}, words.Badge("failed", "bad")),
        ({"lifted": "exception"}, words.Badge("lifted by exception", "note")),
        ({"enforced": False}, words.Badge("observed", "note")),
        ({}, words.Badge("block", "bad")),
        ({"effect": "strip_tools"}, words.Badge("strip_tools", "warn")),
    ],
)
def test_what_became_of_a_finding_is_a_word(finding: dict[str, Any], badge: words.Badge) -> None:
    """Enforced, lifted, only observed, or failed."""
    assert words.explain(receipt(**finding)).gates[0].findings[0].badge == badge


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        ({"model": "m", "reason": "route"}, "m was left out: the ruling does not allow it."),
        ({"model": "m", "reason": "context_window"}, "m was left out: the request is longer than it can read."),
        ({"model": "m", "reason": "breaker_open"}, "m was left out: its provider failed too often and rests."),
        ({"model": "m"}, "m was left out: not said why."),
        (
            {"model": "m", "provider": "p", "status": "timeout", "elapsed_ms": 5, "reason": "r"},
            "m at p: timeout after 5 ms (r).",
        ),
    ],
)
def test_an_attempt_is_a_sentence(attempt: dict[str, Any], sentence: str) -> None:
    """Tried, or left out and why."""
    assert words.explain({"final": {"attempts": [attempt]}}).attempts == (sentence,)


def test_mediation_that_changed_nothing_says_so() -> None:
    """In observe mode what would be done is only recorded."""
    record = {"mode": "observe", "original_hash": "a", "final_hash": "a", "unavailable": {"git": "refused"}}
    made = {"final": {"provider_metadata": {"wardwright_tool_mediation": record}}}

    assert words.explain(made).mediation == (
        "Mode observe: what rules say of tools is only recorded.",
        "The provider saw the tools as they were declared.",
        "MCP server git was not there: refused.",
    )


@pytest.mark.parametrize(
    ("fact", "label", "why"),
    [
        ({"execution_location": "client"}, "controllable", "the caller runs it, and its calls pass here"),
        ({"execution_location": "wardwright"}, "controllable", "the gateway runs it"),
        (
            {"execution_location": "remote_mcp"},
            "controllable",
            "a remote MCP server runs it, and its calls pass here",
        ),
        (
            {"execution_location": "provider", "visibility_level": "provider_attested"},
            "observable",
            "the provider runs it",
        ),
        ({"execution_location": "provider", "namespace": "provider.known"}, "controllable", "the provider runs it"),
        ({"execution_location": "provider"}, "opaque", "the provider runs it"),
        ({}, "opaque", "nobody can say who runs it"),
    ],
)
def test_a_tool_is_labelled_by_what_rules_can_reach(fact: dict[str, Any], label: str, why: str) -> None:
    """G26: the plan's word counts for a provider's own tools; without one, what was seen."""
    made = {"decision": {"gates": [{"facts": [{"name": "t", **fact}]}]}}

    (region,) = words.explain(made, {"provider.known": "controllable"}).regions

    assert (region.label, region.why) == (label, why)


def test_an_answer_tells_what_it_used() -> None:
    """Status, HTTP and tokens."""
    made = released(http_status=200, usage={"input_tokens": 12, "output_tokens": 3})

    assert words.explain(made).ending == "Status released, HTTP 200, 12 tokens in, 3 out."


def test_a_believed_claim_is_told() -> None:
    """G7: from a trusted path."""
    assert words.explain({"request": {"claims": {"trusted": True}}}).claims == (
        "The caller said something about its tools. It was believed.",
    )


FULL: dict[str, Any] = {
    **receipt("released", decision="deny_call", evidence={"problems": ["x"], "distance": {"turns": 1}}, message="m"),
    "caller": {"session_id": "s"},
    "request": {"model": "m", "claims": {"trusted": False}},
    "admin": {"action": "stop", "target": "t", "details": {"note": "n"}},
    "final": {
        "status": "released",
        "http_status": 200,
        "selected_model": "big",
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "attempts": [{"model": "m", "status": "ok", "elapsed_ms": 1}],
        "provider_metadata": {
            "wardwright_server_tools": [{"name": "t", "elapsed_ms": 1}],
            "wardwright_tool_mediation": {
                "mode": "patch",
                "rules": [{"id": "r", "tools": ["t"]}],
                "original_hash": "a",
                "not_injected": {"t": "off"},
                "unavailable": {"s": "gone"},
                "advertisement": {"guaranteed": 1},
            },
        },
    },
}
FULL["decision"]["gates"][0].update(
    {
        "candidates": [{"rule_id": "q", "verdict": "no_match"}],
        "conflicts": [{"rules": ["a"], "message": "m"}],
        "withheld": [{"name": "t", "rules": ["r"]}],
        "route": {"allowed": ["a"], "prefer": ["b"]},
        "states": {"default": "s"},
        "notes": ["claim_refused:tenant"],
    }
)
ODD: tuple[Any, ...] = ("redacted:0", "", 5, -1.5, None, True, [], [5, None, "x", {}], {}, {"a": 1, "b": ["c"]})


def changed(value: Any, odd: Any) -> Iterator[Any]:
    """The value with one place in it, each in turn, holding something else."""
    yield odd
    if isinstance(value, dict):
        for name, inner in value.items():
            for other in changed(inner, odd):
                yield {**value, name: other}
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            for other in changed(inner, odd):
                yield [*value[:place], other, *value[place + 1 :]]


@pytest.mark.parametrize("kind", ["exchange", "admin"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_nothing_that_a_receipt_may_hold_is_an_error(odd: Any, kind: str) -> None:
    """Redacted, cut or of another version: what is not understood is left out."""
    tried = 0
    for made in changed({**FULL, "kind": kind}, odd):
        if isinstance(made, dict):
            assert words.explain(made).because == words.headline(made)
            tried += 1

    assert tried > 90


@pytest.mark.parametrize(
    ("finding", "sentence"),
    [
        ({"enforced": False}, "Were it enforced: rule r blocks shell.exec."),
        ({"lifted": "approval"}, "Rule r blocks shell.exec; lifted by approval."),
    ],
)
def test_what_a_rule_did_not_do_is_not_said_of_it(finding: dict[str, Any], sentence: str) -> None:
    """A rule that only observes has denied nothing, and neither has one that was lifted."""
    assert words.explain(receipt(**finding)).gates[0].findings[0].sentence == sentence


def test_a_stop_is_told_as_the_caller_was_told() -> None:
    """Whatever rules say of it besides."""
    made = receipt(message="No shell.")
    made["final"] = {"status": "blocked", "error": "An operator has stopped this session."}

    assert words.explain(made).message == "An operator has stopped this session."
