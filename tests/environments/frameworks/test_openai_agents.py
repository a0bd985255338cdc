"""Our tools inside the OpenAI Agents SDK's runner, with a scripted model of its interface."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from environments.frameworks.governed import Note, make_prompt
from weakincentives.adapters.bridges import as_openai_agents_tools
from weakincentives.filesystem import Filesystem
from weakincentives.runtime import Session, ToolInvoked


class ScriptedModel(Model):
    """Plays its turns, then says that it is done; keeps what it was told."""

    def __init__(self, turns: Sequence[Sequence[tuple[str, str]]]) -> None:
        self._turns = iter(turns)
        self._number = 0
        self.told: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.told = list(input)
        calls = next(self._turns, None)
        if calls is None:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            said: list[Any] = [
                ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            ]
        else:
            said = []
            for name, arguments in calls:
                self._number += 1
                call_id = f"c{self._number}"
                said.append(
                    ResponseFunctionToolCall(name=name, arguments=arguments, call_id=call_id, type="function_call")
                )
        return ModelResponse(output=said, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def run(session: Session, *turns: Sequence[tuple[str, str]], prompt: Any = None) -> list[str]:
    """Let the agent play these turns; what it was told of its calls."""
    model = ScriptedModel(turns)
    agent = Agent(name="a", model=model, tools=as_openai_agents_tools(prompt or make_prompt(), session))
    result = asyncio.run(Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True)))
    assert result.final_output == "done"
    return [item["output"] for item in model.told if item.get("type") == "function_call_output"]


def test_a_call_is_a_recorded_transaction() -> None:
    """The framework's call is our call: its id, its state, one event."""
    session = Session()

    (text,) = run(session, [("keep_note", '{"text": "a"}')])

    assert session[Note].all() == (Note("a"),)
    assert [(event.call_id, event.outcome) for event in session[ToolInvoked].all()] == [("c1", "ok")]
    assert text.startswith("Kept.")


def test_a_failing_call_rolls_back_and_the_run_goes_on() -> None:
    """State and files are as before, and the model reads what happened."""
    session, prompt = Session(), make_prompt()

    texts = run(session, [("half_done", '{"text": "a"}')], [("keep_note", '{"text": "b"}')], prompt=prompt)

    assert session[Note].all() == (Note("b"),)
    assert not prompt.resources.get(Filesystem).exists("half.txt")
    assert "the disk went away" in texts[0]


def test_a_policy_denies_inside_the_foreign_loop() -> None:
    """What was never tested is not deployed, whoever runs the loop."""
    session = Session()

    texts = run(session, [("deploy", "{}")], [("run_tests", "{}")], [("deploy", "")])

    assert [event.outcome for event in session[ToolInvoked].all()] == ["denied", "ok", "ok"]
    assert "run_tests" in texts[0]


def test_bad_json_and_bad_arguments_come_back_as_text() -> None:
    """The model can correct itself within the run."""
    session = Session()

    texts = run(session, [("keep_note", "{oops")], [("keep_note", '{"txt": 1}')], [("keep_note", '{"text": "a"}')])

    assert [event.outcome for event in session[ToolInvoked].all()] == ["invalid_params", "invalid_params", "ok"]
    assert "txt" in texts[1]


def test_parallel_calls_lose_no_update() -> None:
    """Calls that the framework runs at the same time take turns on the session."""
    session = Session()

    run(session, [("keep_note", f'{{"text": "{n}"}}') for n in range(8)])

    assert sorted(note.text for note in session[Note].all()) == [str(n) for n in range(8)]
