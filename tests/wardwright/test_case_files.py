"""Claims about the format of case files: whatever is misspelt has a place, and nothing that is loaded can crash or prove nothing."""

from __future__ import annotations

import pytest

from wardwright import compile_plan, load_config
from wardwright.cases import load_cases, play
from wardwright.errors import ConfigError

PLAN = compile_plan(load_config("governance:\n  - {id: r, kind: tool_selector, action: block, tool: {name: foo}}\n"))
CALL = "reply: {tool_calls: [{id: a, name: bar}]}"


def problems(given: str, expect: str = "{ruling: allow}") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_cases(f"- case: x\n  given: {given}\n  expect: {expect}\n")
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def failures(given: str, expect: str = "{ruling: allow}") -> list[str]:
    (case,) = load_cases(f"- case: x\n  given: {given}\n  expect: {expect}\n")
    return play(PLAN, case).failures


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "{reply: {tool_calls: [{id: a, nme: foo}]}}",
            "[0].given.reply.tool_calls[0].nme: unknown key 'nme' (did you mean 'name'?)",
        ),
        (
            "{reply: {tool_calls: [{id: a, name: foo, argumnts: {}}]}}",
            "[0].given.reply.tool_calls[0].argumnts: unknown key 'argumnts' (did you mean 'arguments'?)",
        ),
        ("{reply: {tool_calls: {id: a}}}", "[0].given.reply.tool_calls: expected a list, got a mapping"),
        ("{reply: {hosted: [{id: a}]}}", "[0].given.reply.hosted[0]: missing key 'kind'"),
        (
            f"{{{CALL}, usage: {{input: 5}}}}",
            "[0].given.usage.input: unknown key 'input'",
        ),
        (f"{{{CALL}, at: soon}}", "[0].given.at: expected a whole number, got text 'soon'"),
        ("{tools: [{nam: foo}], transcript: []}", "[0].given.tools[0].nam: unknown key 'nam' (did you mean 'name'?)"),
        ("{tools: [{description: x}]}", "[0].given.tools[0]: missing key 'name' (or 'hosted')"),
        (
            "{transcript: [{role: tool, tool_call_id: z, is_error: 'no', content: x}]}",
            "[0].given.transcript[0].is_error: expected true or false, got text 'no'",
        ),
        (
            "{reply: {tool_calls: [{id: no, name: foo}]}}",
            "[0].given.reply.tool_calls[0].id: expected text, got false; quote it",
        ),
        ("{facts: [{namespace: a, name: b, phase: plannning}]}", "[0].given.facts[0].phase: 'plannning' is not one of"),
        ("{facts: [{namespace: a, name: b, marks: [forgd]}]}", "[0].given.facts[0].marks[0]: 'forgd' is not one of"),
        ("{}", "[0].given: nothing happens: give one of transcript, body, reply, reply_body, result, facts, tools"),
        ("{steps: []}", "[0].given.steps: must not be an empty list"),
        ("{steps: [{}]}", "[0].given.steps[0]: nothing happens"),
        ("{claims: [1], transcript: []}", "[0].given.claims: expected a mapping, got a list"),
        (
            "{wire: chat, body: {messages: []}}",
            "[0].given.wire: 'chat' is not one of chat_completions, responses, anthropic, mcp",
        ),
        ("{body: [1]}", "[0].given.body: expected a mapping, got a list"),
        ("{body: {messages: []}, transcript: []}", "[0].given.body: a request is either a 'transcript' or a 'body'"),
        (f"{{{CALL}, reply_body: {{}}}}", "[0].given.reply_body: a reply is either a 'reply' or a 'reply_body'"),
    ],
)
def test_what_is_misspelt_in_a_story_is_refused_with_its_path(given: str, message: str) -> None:
    """G62: unknown keys are refused at every depth, and so are values a story cannot have."""
    assert any(found.startswith(message) for found in problems(given))


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("{ruling: blok}", "[0].expect.ruling: 'blok' is not one of allow, block"),
        (
            "{ruling: allow, facts: [{sorce: tool_result}]}",
            "[0].expect.facts[0].sorce: unknown key 'sorce' (did you mean 'source'?)",
        ),
        ("{ruling: allow, calls: [a]}", "[0].expect.calls: expected a mapping, got a list"),
        ("{ruling: allow, rules: r}", "[0].expect.rules: expected a list, got text 'r'"),
        ("{ruling: allow, evidence: {r: 4}}", "[0].expect.evidence.r: expected a mapping, got number 4"),
    ],
)
def test_an_expectation_that_could_never_be_met_is_refused(expect: str, message: str) -> None:
    """G62: a word that no ruling has is a mistake of the case, not of the plan."""
    assert any(found.startswith(message) for found in problems(f"{{{CALL}}}", expect))


def test_approving_a_rule_that_is_not_there_fails_the_case() -> None:
    """G62: an approval for a misspelt rule would prove nothing."""
    assert failures(f"{{{CALL}, approve: [rr]}}") == ["approve: the plan has no rule 'rr'"]


def test_a_body_that_cannot_be_read_fails_the_case_with_its_code() -> None:
    """G62: a story in a wire's own form is read by that wire's parser, which refuses what it does not know."""
    assert failures("{body: {messages: [], wizardry: 1}}", "{error: invalid_request}") == []


def test_the_answer_to_a_call_that_did_not_pass_never_comes() -> None:
    """G62: of JSON-RPC messages only those are judged that would have been sent."""
    call = '{jsonrpc: "2.0", id: 1, method: tools/call, params: {name: foo, arguments: {}}}'
    answer = '{jsonrpc: "2.0", id: 1, result: {content: [{type: text, text: x}]}}'
    assert failures(f"{{wire: mcp, body: [{call}, {answer}]}}", "{ruling: block, rules: [r]}") == []
