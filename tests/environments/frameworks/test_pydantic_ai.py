"""Our tools inside Pydantic AI's own loop, with its own scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from environments.frameworks.governed import Note, make_prompt
from weakincentives.adapters.bridges import as_pydantic_ai_tools
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolInvoked


def run(session: Session, *turns: Sequence[ToolCallPart], prompt=None) -> list[ModelMessage]:
    """Let the agent play these turns, then say that it is done."""
    script = iter(turns)

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = next(script, None)
        return ModelResponse(parts=[TextPart("done")] if calls is None else list(calls))

    prompt = prompt or make_prompt()
    agent = Agent(FunctionModel(model), tools=as_pydantic_ai_tools(prompt, session))
    result = asyncio.run(agent.run("go"))
    assert result.output == "done"
    return result.all_messages()


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def test_a_call_is_a_recorded_transaction() -> None:
    """The framework's call is our call: its id, its state, one event."""
    session = Session()

    messages = run(session, [ToolCallPart("keep_note", {"text": "a"}, tool_call_id="c1")])

    assert session[Note].all() == (Note("a"),)
    (event,) = session[ToolInvoked].all()
    assert (event.call_id, event.outcome) == ("c1", "ok")
    (returned,) = returns(messages)
    assert returned.content.startswith("Kept.")
    assert returned.metadata.success is True


def test_a_failing_call_rolls_back_and_the_run_goes_on() -> None:
    """State and files are as before, and the model reads what happened."""
    session, prompt = Session(), make_prompt()

    messages = run(
        session,
        [ToolCallPart("half_done", {"text": "a"})],
        [ToolCallPart("keep_note", {"text": "b"})],
        prompt=prompt,
    )

    assert session[Note].all() == (Note("b"),)
    assert not prompt.resources.get(Filesystem).exists("half.txt")
    assert [event.outcome for event in session[ToolInvoked].all()] == ["failed", "ok"]
    assert "the disk went away" in returns(messages)[0].content


def test_a_policy_denies_inside_the_foreign_loop() -> None:
    """What was never tested is not deployed, whoever runs the loop."""
    session = Session()

    messages = run(session, [ToolCallPart("deploy", {})], [ToolCallPart("run_tests", {})], [ToolCallPart("deploy", {})])

    assert [event.outcome for event in session[ToolInvoked].all()] == ["denied", "ok", "ok"]
    assert "run_tests" in returns(messages)[0].content


def test_bad_arguments_come_back_with_every_problem() -> None:
    """The model can correct itself within the run."""
    session = Session()

    messages = run(
        session,
        [ToolCallPart("keep_note", {"txt": 1})],
        [ToolCallPart("keep_note", {"text": "a"})],
    )

    assert [event.outcome for event in session[ToolInvoked].all()] == ["invalid_params", "ok"]
    assert "text" in returns(messages)[0].content
    assert "txt" in returns(messages)[0].content


@pytest.mark.parametrize("arguments", ["[1]", "7", '{"text":', "null"])
def test_arguments_that_are_no_object_do_not_end_the_run(arguments: str) -> None:
    """The framework asks the model to correct them."""
    session = Session()

    run(session, [ToolCallPart("keep_note", arguments)], [ToolCallPart("keep_note", {"text": "a"})])

    assert session[Note].all() == (Note("a"),)


def test_a_parameter_may_have_any_name() -> None:
    """Names of the bridge's own do not get in the way."""

    @dataclass(frozen=True)
    class Odd:
        context: str
        self: str

    def odd(params: Odd, *, context: ToolContext) -> ToolResult[str]:
        """Say both."""
        return ToolResult.ok(params.context + params.self)

    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="Odd", template="Odd.", tools=[Tool.wrap(odd)])]))

    messages = run(Session(), [ToolCallPart("odd", {"context": "a", "self": "b"})], prompt=prompt)

    assert [part.content for part in returns(messages)] == ["ab"]


def test_parallel_calls_lose_no_update() -> None:
    """Calls that the framework runs at the same time take turns on the session."""
    session = Session()

    run(session, [ToolCallPart("keep_note", {"text": str(n)}) for n in range(8)])

    assert sorted(note.text for note in session[Note].all()) == [str(n) for n in range(8)]


def test_the_model_is_told_the_schema_of_our_parser() -> None:
    """What the framework declares is what we accept."""
    tools = {tool.name: tool for tool in as_pydantic_ai_tools(make_prompt(), Session())}

    definition = tools["keep_note"].tool_def
    assert definition.description == "Keep a note."
    assert definition.parameters_json_schema["required"] == ["text"]
    assert definition.parameters_json_schema["additionalProperties"] is False
