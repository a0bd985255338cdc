"""Our tools inside LangChain's agent and LangGraph's tool node, with LangChain's own scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from environments.frameworks.governed import Note, make_prompt
from weakincentives.adapters.bridges import as_langchain_tools
from weakincentives.filesystem import Filesystem
from weakincentives.runtime import Session, ToolInvoked


class ScriptedModel(GenericFakeChatModel):
    """LangChain's fake, which takes tools as well."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def run(session: Session, *turns: Sequence[dict[str, Any]], prompt: Any = None, wait: bool = True) -> list[ToolMessage]:
    """Let the agent play these turns; what it was told of its calls."""
    number = 0
    messages: list[AIMessage] = []
    for calls in turns:
        told = []
        for call in calls:
            number += 1
            told.append({"id": f"c{number}", "type": "tool_call", **call})
        messages.append(AIMessage("", tool_calls=told))
    messages.append(AIMessage("done"))
    agent = create_agent(
        ScriptedModel(messages=iter(messages)), tools=as_langchain_tools(prompt or make_prompt(), session)
    )
    given: Any = {"messages": [("user", "go")]}
    result = agent.invoke(given) if not wait else asyncio.run(agent.ainvoke(given))
    assert result["messages"][-1].content == "done"
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


@pytest.mark.parametrize("wait", [True, False], ids=["async", "sync"])
def test_a_call_is_a_recorded_transaction(wait: bool) -> None:
    """The framework's call is our call: its id, its state, one event."""
    session = Session()

    (message,) = run(session, [{"name": "keep_note", "args": {"text": "a"}}], wait=wait)

    assert session[Note].all() == (Note("a"),)
    assert [(event.call_id, event.outcome) for event in session[ToolInvoked].all()] == [("c1", "ok")]
    assert (message.status, message.artifact.success) == ("success", True)
    assert str(message.content).startswith("Kept.")


@pytest.mark.parametrize("wait", [True, False], ids=["async", "sync"])
def test_a_failing_call_rolls_back_and_the_run_goes_on(wait: bool) -> None:
    """State and files are as before, and the model reads what happened, as an error."""
    session, prompt = Session(), make_prompt()

    messages = run(
        session,
        [{"name": "half_done", "args": {"text": "a"}}],
        [{"name": "keep_note", "args": {"text": "b"}}],
        prompt=prompt,
        wait=wait,
    )

    assert session[Note].all() == (Note("b"),)
    assert not prompt.resources.get(Filesystem).exists("half.txt")
    assert messages[0].status == "error"
    assert "the disk went away" in str(messages[0].content)


def test_a_policy_denies_inside_the_foreign_loop() -> None:
    """What was never tested is not deployed, whoever runs the loop."""
    session = Session()

    messages = run(
        session,
        [{"name": "deploy", "args": {}}],
        [{"name": "run_tests", "args": {}}],
        [{"name": "deploy", "args": {}}],
    )

    assert [event.outcome for event in session[ToolInvoked].all()] == ["denied", "ok", "ok"]
    assert [message.status for message in messages] == ["error", "success", "success"]


def test_bad_arguments_come_back_with_every_problem() -> None:
    """The model can correct itself within the run."""
    session = Session()

    messages = run(
        session,
        [{"name": "keep_note", "args": {"txt": 1}}],
        [{"name": "keep_note", "args": {"text": "a"}}],
    )

    assert [event.outcome for event in session[ToolInvoked].all()] == ["invalid_params", "ok"]
    assert "text" in str(messages[0].content)
    assert "txt" in str(messages[0].content)


@pytest.mark.parametrize("wait", [True, False], ids=["async", "sync"])
def test_parallel_calls_lose_no_update(wait: bool) -> None:
    """Calls that the framework runs at the same time take turns on the session."""
    session = Session()

    run(session, [{"name": "keep_note", "args": {"text": str(n)}} for n in range(8)], wait=wait)

    assert sorted(note.text for note in session[Note].all()) == [str(n) for n in range(8)]


def test_a_tool_can_be_called_without_an_agent() -> None:
    """Plain arguments give plain text."""
    session = Session()
    tools = {tool.name: tool for tool in as_langchain_tools(make_prompt(), session)}

    assert tools["keep_note"].invoke({"text": "a"}).startswith("Kept.")
    assert session[Note].all() == (Note("a"),)
