"""Claims about texts that come up only off the beaten track (S57); the common ones are pinned where they are made."""

from __future__ import annotations

import enum
import re
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, Literal

import annotated_types
import pytest

from weakincentives.adapters import ScriptedAdapter
from weakincentives.errors import FencedWriteError, PromptValidationError, TransactionError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadBeforeWritePolicy,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall, execute_tool
from weakincentives.testing import make_context, run_tool


@dataclass(frozen=True)
class Note:
    text: str


def nod(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult.ok(None)


NOD = Tool[None, None](name="nod", description="Nod.", handler=nod)


class Odd(enum.Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Odd, "the choice (1, 2) is not text, a number or a boolean"),
        (Literal[b"x"], "the choice b'x' is not text, a number or a boolean"),
        (Annotated[str, annotated_types.Ge(1)], "the constraint ge=1 does not apply to its type"),
        (
            Annotated[int, annotated_types.MultipleOf(2), annotated_types.MultipleOf(3)],
            "more than one multiple_of",
        ),
        (Annotated[str, re.compile("a", re.IGNORECASE)], "a pattern with flags cannot be written in JSON Schema"),
    ],
)
def test_params_that_have_no_schema_are_refused_with_the_field(hint: Any, why: str) -> None:
    """The author of a tool learns which field cannot be used, and why."""
    params = make_dataclass("Params", [("field", hint)])

    with pytest.raises(PromptValidationError) as caught:
        Tool[params, None](name="odd", description="Odd.")  # type: ignore[valid-type]

    assert str(caught.value) == f"Tool 'odd': Cannot use Params.field: {why}"


@pytest.mark.parametrize(
    ("example", "why"),
    [
        (ToolExample("Say it", Note("a"), 5), "examples[0].output must be of type Note, got int"),
        (ToolExample("Say it", 5, Note("a")), "examples[0].input must be of type Note, got int"),
        ("Say it", "examples[0] must be a ToolExample, got str"),
    ],
)
def test_an_example_that_does_not_fit_says_where(example: Any, why: str) -> None:
    """An example of other types would teach the model a call that cannot succeed."""
    with pytest.raises(PromptValidationError) as caught:
        Tool[Note, Note](name="say", description="Say.", examples=(example,))

    assert str(caught.value) == f"Tool 'say': {why}"


def test_a_policy_without_check_is_refused_at_the_prompt() -> None:
    """A mistaken policy would let everything pass."""
    with pytest.raises(PromptValidationError) as caught:
        Prompt(PromptTemplate(policies=[5]))  # type: ignore[list-item]

    assert str(caught.value) == "PromptTemplate: a policy needs a check method, got int."


def test_a_tool_that_names_no_file_cannot_be_checked() -> None:
    """A governed tool without a path parameter is denied, not waved through."""

    def write(params: Note, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None)

    tool = Tool[Note, None](name="write_file", description="Write.", handler=write)
    outcome = run_tool(tool, {"text": "a"}, policies=[ReadBeforeWritePolicy()])

    assert (outcome.outcome, outcome.text) == (
        "denied",
        "Cannot tell which file 'write_file' would write, so it cannot be checked against what was read.",
    )


def test_a_message_that_is_no_text_is_an_internal_error() -> None:
    """What the model reads is text, whatever the handler put there."""

    def count(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult(message=5, value=None)  # type: ignore[arg-type]

    outcome = run_tool(Tool[None, None](name="count", description="Count.", handler=count))

    assert outcome.text == "Internal error: the message of tool 'count' must be text, got int"


def test_a_context_made_by_hand_has_no_end_to_wait_for() -> None:
    """`on_end` says that it needs a call."""
    with pytest.raises(TransactionError) as caught:
        make_context().on_end(lambda: None)

    assert str(caught.value) == "on_end works inside a tool call only; this context was made by hand."


def test_a_context_cannot_call_tools_after_its_call() -> None:
    """A handler that left its context to somebody else has no call to be part of any more."""
    kept: list[ToolContext] = []

    def keep(params: None, *, context: ToolContext) -> ToolResult[None]:
        kept.append(context)
        return ToolResult.ok(None)

    run_tool(Tool[None, None](name="keep", description="Keep.", handler=keep))

    with pytest.raises(FencedWriteError) as caught:
        NOD(None, context=kept[0])
    assert str(caught.value) == "Cannot call 'nod': the tool call around it has ended."


def test_a_keyword_that_does_not_exist_is_told_with_those_that_do() -> None:
    """A misspelt limit must not be a limit that silently does not hold."""
    prompt = Prompt(PromptTemplate())

    with pytest.raises(TypeError) as caught:
        execute_tool(ToolCall("nod", {}), prompt=prompt, session=Session(), deadlin=1)

    assert str(caught.value) == (
        "execute_tool has no parameter 'deadlin'; there are: adapter, budget_tracker, deadline, filesystem, "
        "heartbeat, rendered_prompt, resources, run_context"
    )


@pytest.mark.parametrize(
    ("prompt", "session", "text"),
    [
        (
            PromptTemplate(),
            Session(),
            "prompt must be a Prompt, got PromptTemplate. Wrap a template: Prompt(template).",
        ),
        (Prompt(PromptTemplate()), None, "session must be a Session, got NoneType."),
    ],
)
def test_an_adapter_names_arguments_that_are_mixed_up(prompt: Any, session: Any, text: str) -> None:
    """A template for a prompt is the likeliest slip, one turn at a time or not."""
    adapter = ScriptedAdapter(["Hello."])
    for evaluate in (adapter.evaluate, adapter.stepwise().evaluate):
        with pytest.raises(TypeError) as caught:
            evaluate(prompt, session)
        assert str(caught.value) == text


def test_a_turn_is_answered_with_outcomes_not_results() -> None:
    """What `execute_tool` returned goes back to the model, not the result inside it."""
    prompt, session = Prompt(PromptTemplate()).bind(extra_tools=[NOD]), Session()
    steps = ScriptedAdapter([ToolCall("nod", {})]).stepwise()
    outcome = execute_tool(steps.evaluate(prompt, session).tool_calls[0], session=session)

    with pytest.raises(TypeError) as caught:
        steps.evaluate(prompt, session, tool_results=[outcome.result])  # type: ignore[list-item]

    assert str(caught.value) == "tool_results takes what execute_tool returned, a ToolOutcome, got ToolResult."


def test_what_a_failing_assertion_shows_can_be_told_apart() -> None:
    """Prompts, sections and scripts say what they are when pytest prints them."""
    section = MarkdownSection(title="Work", template="Work.", children=[MarkdownSection(template="More.")])
    template, adapter = PromptTemplate(sections=[section]), ScriptedAdapter(["Hello."])

    assert repr(section) == "<MarkdownSection Work>"
    assert repr(section.children[0]) == "<MarkdownSection without title>"
    assert repr(Prompt(template)) == "<Prompt of <PromptTemplate: work>>"
    assert repr(PromptTemplate()) == "<PromptTemplate: no sections>"
    assert repr(adapter) == "<ScriptedAdapter: turn 0 of 1>"


def test_a_tool_called_without_the_runtime_says_what_to_import() -> None:
    """`weakincentives.prompt` alone knows no pipeline."""
    program = """
from weakincentives.prompt import Tool, ToolContext, ToolResult

tool = Tool[None, None](name="nod", description="Nod.", handler=lambda params, *, context: ToolResult.ok(None))
try:
    tool(None, context=ToolContext())
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)

    assert done.stdout == "Import weakincentives.runtime before calling a tool directly.\n"
