"""Claims about the scripted model: what a turn may be, and how a script that does not fit fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters import Message, ModelReply, ScriptedAdapter, ScriptError
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session, ToolCall, ToolInvoked


@dataclass(frozen=True)
class Word:
    text: str


def shout(params: Word, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(params.text.upper())


SHOUT = Tool[Word, str](name="shout", description="Shout.", handler=shout, effects="none")
SECTION = MarkdownSection(title="Voice", template="Speak.", tools=[SHOUT])


def prompt() -> Prompt[Any]:
    return Prompt(PromptTemplate(sections=[SECTION]))


def shouted(text: str) -> ToolCall:
    return ToolCall("shout", {"text": text})


def loud(messages: Sequence[Message]) -> str:
    return f"I said {messages[-1].text}"


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        (["Done."], "Done."),
        ([shouted("a"), "Done."], "Done."),
        ([[shouted("a"), shouted("b")], "Done."], "Done."),
        ([(shouted("a"),), "Done."], "Done."),
        ([shouted("a"), loud], "I said A"),
        ([lambda messages: shouted("b"), loud], "I said B"),
        ([lambda messages: [shouted("b"), shouted("c")], loud], "I said C"),
        ([ModelReply("Well.", usage=TokenUsage(1, 1))], "Well."),
    ],
)
def test_a_turn_has_many_forms(turns: list[Any], text: str) -> None:
    """Answer, call, calls, reply, or a function of the messages that returns one (S53)."""
    with ScriptedAdapter(turns) as adapter:
        assert adapter.evaluate(prompt(), Session()).text == text


def test_a_script_that_is_too_short_fails_at_once() -> None:
    """The error says how far it got and what the model was last told (S53)."""
    with pytest.raises(ScriptError) as caught:
        ScriptedAdapter([shouted("a")]).evaluate(prompt(), Session())
    assert str(caught.value) == (
        "The script is over: the model was asked for turn 2, and the script has 1. It was last told: A"
    )


def test_running_out_is_a_failed_test_and_the_end_of_the_run() -> None:
    """A test sees an assertion; the pipeline sees an error it may not swallow."""
    assert issubclass(ScriptError, AssertionError)
    assert issubclass(ScriptError, PromptEvaluationError)


def test_a_sub_agent_that_runs_out_fails_the_whole_run() -> None:
    """The error is not turned into a failed result on its way out."""

    def delegate(params: None, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult.ok(context.adapter.evaluate(prompt(), context.session).text)

    tool = Tool[None, str](name="delegate", description="Delegate.", handler=delegate)
    outer = Prompt(PromptTemplate(sections=[MarkdownSection(title="Outer", tools=[tool])]))
    session = Session()

    with pytest.raises(ScriptError, match="The script is over"):
        ScriptedAdapter([ToolCall("delegate")]).evaluate(outer, session)
    assert [event.outcome for event in session[ToolInvoked].all()] == ["interrupted"]


def test_turns_that_are_left_over_fail_the_block() -> None:
    """A run that ended early is noticed (S53)."""
    with pytest.raises(ScriptError) as caught, ScriptedAdapter(["Done.", "More.", shouted("a")]) as adapter:
        adapter.evaluate(prompt(), Session())
    assert str(caught.value) == "2 of 3 turns were not used. The next would have been: 'More.'"


def test_assert_done_says_the_same_without_a_block() -> None:
    """It passes once everything was said."""
    adapter = ScriptedAdapter(["Done."])

    with pytest.raises(ScriptError, match=r"^1 of 1 turns were not used\."):
        adapter.assert_done()
    adapter.evaluate(prompt(), Session())
    assert adapter.assert_done() is None


def test_leftover_turns_do_not_hide_an_error() -> None:
    """What ended the block is what the test reports."""
    with pytest.raises(ZeroDivisionError), ScriptedAdapter(["Done."]):
        _ = 1 / 0


@pytest.mark.parametrize("turn", [3, None, ["text"], lambda messages: 3])
def test_a_turn_that_is_none_is_refused(turn: Any) -> None:
    """The error names the turn and the forms it may have."""
    with pytest.raises(ScriptError) as caught:
        ScriptedAdapter([turn]).evaluate(prompt(), Session())
    assert str(caught.value).startswith("Turn 1 of the script is ")
    assert str(caught.value).endswith(
        ". Use a string, a ToolCall, a list of them, a ModelReply, or a function that returns one of these."
    )


def test_a_text_is_no_script() -> None:
    """Its letters are not meant as turns."""
    with pytest.raises(TypeError, match=r"^turns is a list of turns, got text\. Put it into a list: "):
        ScriptedAdapter("Done.")


def test_a_long_text_is_shortened_in_errors() -> None:
    """An error stays readable."""
    with pytest.raises(ScriptError) as caught:
        ScriptedAdapter([shouted("a" * 500)]).evaluate(prompt(), Session())
    assert str(caught.value).endswith(f"It was last told: {'A' * 200}…")


def test_the_conversation_can_be_read() -> None:
    """What the model was told and said is there, also before the first turn."""
    adapter = ScriptedAdapter([shouted("a"), "Done."])
    before = adapter.messages
    adapter.evaluate(prompt(), Session())

    assert before == ()
    assert [(message.role, message.text) for message in adapter.messages] == [
        ("system", "# Voice\n\nSpeak."),
        ("assistant", ""),
        ("tool", "A"),
        ("assistant", "Done."),
    ]


def test_what_the_model_could_call_can_be_read() -> None:
    """The last turn says which tools were shown."""
    adapter = ScriptedAdapter(["Done."])
    adapter.evaluate(prompt(), Session())

    assert adapter.last_turn is not None
    assert adapter.last_turn.tools == (SHOUT,)


def test_a_script_serves_several_evaluations() -> None:
    """Its turns go on where the last run left off; the messages are the latest run's."""
    with ScriptedAdapter(["One.", "Two."]) as adapter:
        texts = [adapter.evaluate(prompt(), Session()).text for _ in range(2)]

    assert texts == ["One.", "Two."]
    assert len(adapter.messages) == 2


def test_it_serves_an_event_loop() -> None:
    """The async twin plays the same script."""
    with ScriptedAdapter([shouted("a"), loud]) as adapter:
        assert asyncio.run(adapter.aevaluate(prompt(), Session())).text == "I said A"


def test_a_script_has_no_limit_but_its_length() -> None:
    """Long scripts need no further setting."""
    with ScriptedAdapter([*[shouted("a")] * 150, "Done."]) as adapter:
        assert adapter.evaluate(prompt(), Session()).turns == 151
