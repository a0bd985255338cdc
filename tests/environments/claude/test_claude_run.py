"""What the SDK's loop makes different from ours, with the real CLI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import claude_agent_sdk
import pytest

from weakincentives.adapters import ClaudeAgentSDKAdapter, Retry, TextDelta, ToolCalled
from weakincentives.adapters.claude_agent_sdk import ClaudeSession
from weakincentives.clock import FakeClock
from weakincentives.errors import PromptEvaluationError, ThrottledError
from weakincentives.prompt import (
    CompletionChecked,
    FeedbackGiven,
    GuardContext,
    ImageBlock,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import MainLoop, Session, ToolCall, ToolInvoked
from weakincentives.testing.adapter_kit import Answer, Desk, Page, ScriptTurn, desk, writes

from .claude_harness import ClaudeHarness


def asking(tools: Sequence[Tool[Any, Any]] = (), **more: Any) -> Prompt[None]:
    return Prompt(
        PromptTemplate(sections=[MarkdownSection(title="Work", template="Do it.", tools=list(tools))], **more)
    )


def outcomes(session: Session) -> list[tuple[str, str]]:
    return [(event.tool_name, event.outcome) for event in session[ToolInvoked]]


def told(claude: ClaudeHarness, words: str, at: int = -1) -> bool:
    return any(words in text for text in claude.texts(at))


@tool
def mark(name: str) -> str:
    """Make a mark."""
    return f"marked {name}"


def marks(*names: str) -> list[ToolCall]:
    return [ToolCall("mark", {"name": name}) for name in names]


# --- guards -----------------------------------------------------------------------------------------------------------


def test_feedback_reaches_the_model_after_its_calls(claude: ClaudeHarness) -> None:
    """A guard's words are in the request that follows the calls."""

    def nag(context: GuardContext) -> str:
        return f"{context.calls} calls so far."

    session = Session()
    script = [ScriptTurn(calls=marks("a", "b")), ScriptTurn("Done.")]

    claude.adapter(script).evaluate(asking([mark], feedback=[nag]), session)

    assert told(claude, "2 calls so far.")
    assert [event.turn for event in session[FeedbackGiven]] == [1]


def test_a_completion_check_sends_the_model_back_to_work(claude: ClaudeHarness) -> None:
    """An answer that misses something is not the last one."""

    def marked(context: GuardContext) -> str | None:
        return None if context.calls else "Nothing was marked."

    session = Session()
    script = [ScriptTurn("Done."), ScriptTurn(calls=marks("a")), ScriptTurn("Now it is.")]

    response = claude.adapter(script).evaluate(asking([mark], completion=[marked]), session)

    assert (response.text, response.turns, response.unfinished) == ("Now it is.", 3, ())
    assert told(claude, "Nothing was marked.", 1)
    assert [event.complete for event in session[CompletionChecked]] == [False, True]


# --- conversations ----------------------------------------------------------------------------------------------------


def test_the_conversation_of_claude_code_can_be_found_again(claude: ClaudeHarness) -> None:
    """Its id is recorded, and a run that resumes it goes on where it ended."""
    session = Session()
    claude.adapter([ScriptTurn("I remember 42.")]).evaluate(asking(), session)
    (kept,) = session[ClaudeSession]

    resumed = claude.adapter([ScriptTurn("It was 42.")], resume=kept.claude_session_id).evaluate(asking(), session)

    assert told(claude, "I remember 42.")
    assert resumed.usage.total_tokens == 15


def test_the_response_holds_the_whole_conversation(claude: ClaudeHarness) -> None:
    """Prompt, words and calls, results, answer: in this order."""
    script = [ScriptTurn("Let me.", marks("a", "b")), ScriptTurn("Done.")]

    response = claude.adapter(script).evaluate(asking([mark]), Session())

    assert [message.role for message in response.messages] == ["system", "assistant", "tool", "tool", "assistant"]
    assert [message.text for message in response.messages[1:]] == ["Let me.", "marked a", "marked b", "Done."]
    assert [call.name for call in response.messages[1].tool_calls] == ["mark", "mark"]


def test_a_loop_starts_over_when_a_section_is_opened(claude: ClaudeHarness) -> None:
    """`MainLoop` does with Claude what it does with every adapter."""
    folded = MarkdownSection(
        title="Archive",
        key="archive",
        template="Old marks.",
        summary="Marks.",
        visibility=SectionVisibility.SUMMARY,
        tools=[mark],
    )

    class Loop(MainLoop[str]):
        def prepare(self, request: str) -> Prompt[None]:
            return Prompt(PromptTemplate(sections=[folded]))

    opening = ToolCall("open_sections", {"section_keys": ["archive"], "reason": "to mark"})
    script = [ScriptTurn(calls=[opening]), ScriptTurn(calls=marks("a")), ScriptTurn("Marked.")]

    response, session = Loop(adapter=claude.adapter(script)).execute("go")

    assert response.text == "Marked."
    assert outcomes(session) == [("open_sections", "interrupted"), ("mark", "ok")]


def test_a_tool_may_ask_claude_itself(claude: ClaudeHarness) -> None:
    """A sub-agent's calls are part of the call that asked it, and are taken back with it."""

    def delegate(params: Page, *, context: ToolContext) -> ToolResult[str]:
        context.adapter.evaluate(desk_inside.prompt, context.session)
        return ToolResult.error("It was all in vain.")

    desk_inside = desk()
    tools = [Tool[Page, str](name="delegate", description="Let somebody else do it.", handler=delegate)]
    session = Session()
    script = [
        ScriptTurn(calls=[ToolCall("delegate", {"path": "a"})]),
        ScriptTurn(calls=[writes("a")]),
        ScriptTurn("Done inside."),
        ScriptTurn("Done."),
    ]

    response = claude.adapter(script).evaluate(asking(tools), session)

    assert response.text == "Done."
    assert outcomes(session) == [("write_note", "ok"), ("delegate", "failed")]
    assert not desk_inside.files.exists("a")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_turns_are_limited(claude: ClaudeHarness) -> None:
    """The request that would be one too many is not sent."""
    adapter = claude.adapter([ScriptTurn(calls=marks("a")), ScriptTurn(calls=marks("b"))])
    adapter.max_turns = 2

    with pytest.raises(PromptEvaluationError, match="did not come to an answer within 2 turns"):
        adapter.evaluate(asking([mark]), Session())

    assert len(claude.requests()) == 2


def test_turns_that_the_options_limit_are_told(claude: ClaudeHarness) -> None:
    """Claude Code counts them itself; what it says of it is told as we do."""
    adapter = claude.adapter([ScriptTurn(calls=marks("a"))], max_turns=1)

    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(asking([mark]), Session())

    assert str(caught.value) == (
        "The model did not come to an answer within the turns that the SDK's options allow. "
        "The run cannot go on; start a new one with a smaller task or a larger max_turns."
    )


def test_a_run_that_claude_code_gives_up_is_told(claude: ClaudeHarness) -> None:
    """In its own words."""
    with pytest.raises(PromptEvaluationError) as caught:
        claude.adapter([ScriptTurn("No such model.", status=400)]).evaluate(asking(), Session())

    assert str(caught.value) == "Claude Code gave up: API Error: 400 No such model.\nThe run cannot go on."


def test_a_provider_that_becomes_busy_is_asked_again_by_claude_code(claude: ClaudeHarness) -> None:
    """In the middle of a run, with the same conversation."""
    script = [ScriptTurn(calls=marks("a")), ScriptTurn(status=529, retry_after=0), ScriptTurn("Done.")]

    response = claude.adapter(script).evaluate(asking([mark]), Session())

    assert (response.text, response.turns) == ("Done.", 2)
    assert claude.requests()[1]["messages"] == claude.requests()[2]["messages"]


def test_a_provider_that_asks_for_too_long_a_wait_is_not_waited_for(claude: ClaudeHarness) -> None:
    """In the middle of a run, too."""
    adapter = claude.adapter([ScriptTurn(calls=marks("a")), ScriptTurn(status=429, retry_after=7)])
    adapter.retry = Retry(longest=5)

    with pytest.raises(ThrottledError, match=r"Claude is too busy to answer: status 429\.") as caught:
        adapter.evaluate(asking([mark]), Session())

    assert caught.value.retry_after == 7
    assert len(claude.requests()) == 2


def test_an_answer_that_was_cut_off_is_asked_for_again_if_it_has_a_form(claude: ClaudeHarness) -> None:
    """Claude Code's own attempt to go on is stopped; the model is told to be brief."""
    at = Desk(PromptTemplate[Answer](sections=[MarkdownSection(title="Notebook", template="Count the pages.")]))
    claude.server.unanswered = "Output token limit hit"
    script = [ScriptTurn('{"total": ', cut=True), ScriptTurn('{"total": 4}')]

    response = claude.adapter(script).evaluate(at.prompt, at.session)

    assert response.output == Answer(4)
    assert told(claude, "It was cut off because it was too long; be brief.")


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_left_ends_the_run(claude: ClaudeHarness) -> None:
    """Nobody listens: the call that was about to run does not, and Claude Code is gone."""
    session = Session()
    stream = claude.adapter([ScriptTurn("Let me.", marks("a")), ScriptTurn("Done.")]).stream(asking([mark]), session)

    for event in stream:
        if isinstance(event, ToolCalled):
            break
    stream.close()

    assert outcomes(session) == []
    assert len(claude.requests()) == 1


def test_a_listener_hears_native_calls_too(claude: ClaudeHarness) -> None:
    """By the names that Claude gives them."""
    script = [ScriptTurn(calls=[ToolCall("Glob", {"pattern": "*"})]), ScriptTurn("Nothing there.")]

    events = list(claude.adapter(script, tools=["Glob"]).stream(asking(), Session()))

    assert [event.call.name for event in events if isinstance(event, ToolCalled)] == ["Glob"]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Nothing there."


# --- beside what the user brings ----------------------------------------------------------------------------------------


def test_images_are_images(claude: ClaudeHarness) -> None:
    """A result made of content blocks is sent as such."""

    @tool
    def draw() -> ImageBlock:
        """Draw something."""
        return ImageBlock(PIXEL)

    claude.adapter([ScriptTurn(calls=[ToolCall("draw")]), ScriptTurn("Nice.")]).evaluate(asking([draw]), Session())

    (result,) = [
        block
        for message in claude.requests()[-1]["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]
    assert result["content"][0]["source"]["media_type"] == "image/png"


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def test_tools_of_other_servers_are_governed(claude: ClaudeHarness) -> None:
    """A policy sees them by the name that Claude calls them."""

    @claude_agent_sdk.tool("greet", "Greet somebody.", {"name": str})
    async def greet(arguments: dict[str, Any]) -> dict[str, Any]:
        greeted.append(arguments["name"])
        return {"content": [{"type": "text", "text": "Hello!"}]}

    class NotBob:
        def check(self, tool_name: str, params: Any, *, context: ToolContext) -> str | None:
            return "Bob is not greeted." if params.get("name") == "bob" else None

    greeted: list[str] = []
    session = Session()
    server = claude_agent_sdk.create_sdk_mcp_server("manners", tools=[greet])
    calls = [ToolCall("greet", {"name": "bob"}), ToolCall("greet", {"name": "ann"})]
    adapter = claude.adapter([ScriptTurn(calls=calls), ScriptTurn("Done.")], mcp_servers={"manners": server})

    adapter.evaluate(asking(policies=[NotBob()]), session)

    assert greeted == ["ann"]
    assert outcomes(session) == [("mcp__manners__greet", "denied"), ("mcp__manners__greet", "ok")]
    assert told(claude, "Bob is not greeted.")


def test_hooks_of_the_user_are_called_beside_ours(claude: ClaudeHarness) -> None:
    """Options are taken as they are given; ours stand beside them."""
    seen: list[str] = []

    async def see(data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        seen.append(data["tool_name"])
        return {}

    hooks = {"PreToolUse": [claude_agent_sdk.HookMatcher(hooks=[see])]}
    session = Session()

    claude.adapter([ScriptTurn(calls=marks("a")), ScriptTurn("Done.")], hooks=hooks).evaluate(asking([mark]), session)

    assert seen == ["mcp__wink__mark"]
    assert outcomes(session) == [("mark", "ok")]


def test_calls_of_claudes_own_sub_agents_are_governed(claude: ClaudeHarness) -> None:
    """They come by the same hooks: each is judged and recorded, in a transaction of its own."""
    session = Session()
    agent = {
        "description": "mark",
        "prompt": "Mark it.",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    script = [
        ScriptTurn(calls=[ToolCall("Agent", agent)]),
        ScriptTurn(calls=marks("inside")),
        ScriptTurn("Marked inside."),
        ScriptTurn("Done."),
    ]

    response = claude.adapter(script, tools=["Agent"]).evaluate(asking([mark]), session)

    assert response.text == "Done."
    assert outcomes(session) == [("Agent", "ok"), ("mark", "ok")]
    assert [event.rendered_output for event in session[ToolInvoked]] == ["Agent was started.", "marked inside"]
    assert response.usage.total_tokens == 60


def test_a_sub_agent_that_calls_what_is_not_there_is_answered(claude: ClaudeHarness) -> None:
    """Its mistakes are recorded as such, and end nothing."""
    session = Session()
    agent = {
        "description": "mark",
        "prompt": "Mark it.",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    script = [
        ScriptTurn(calls=[ToolCall("Agent", agent)]),
        ScriptTurn(calls=[ToolCall("marc", {"name": "a"})]),
        ScriptTurn("I cannot."),
        ScriptTurn("Done."),
    ]

    response = claude.adapter(script, tools=["Agent"]).evaluate(asking([mark]), session)

    assert response.text == "Done."
    assert outcomes(session) == [("Agent", "ok"), ("marc", "unknown_tool")]
    assert [message.role for message in response.messages] == ["system", "assistant", "tool", "assistant"]


def test_a_tool_called_by_its_own_name_is_answered_with_the_right_one(claude: ClaudeHarness) -> None:
    """The prompt's text may name tools without Claude's prefix."""
    session = Session()
    claude.server.renames = False
    script = [ScriptTurn(calls=marks("a")), ScriptTurn("I see.")]

    claude.adapter(script).evaluate(asking([mark]), session)

    assert outcomes(session) == [("mark", "failed")]
    assert told(claude, "The tool 'mark' is called 'mcp__wink__mark' here. Retry with that name.")


# --- what cannot be -----------------------------------------------------------------------------------------------------


def test_a_claude_code_that_does_not_start_is_named(claude: ClaudeHarness) -> None:
    """The caller reads what was tried."""
    adapter = claude.adapter([], cli_path="/nowhere/claude")

    with pytest.raises(PromptEvaluationError, match=r"Claude Code could not be run: .*/nowhere/claude"):
        adapter.evaluate(asking(), Session())


def test_a_provider_that_is_not_there_is_asked_again(claude: ClaudeHarness) -> None:
    """As one that is too busy: as often as `Retry` says."""
    adapter = claude.adapter([], environment={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"})
    adapter.clock, adapter.retry = FakeClock(), Retry(attempts=1)

    with pytest.raises(ThrottledError, match=r"^Claude cannot be reached\.$"):
        adapter.evaluate(asking(), Session())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mcp_servers": "servers.json"}, ValueError, "options.mcp_servers must be a dict here"),
        ({"mcp_servers": {"wink": {}}}, ValueError, "options.mcp_servers has a server 'wink'"),
    ],
)
def test_options_that_leave_no_room_are_refused(
    claude: ClaudeHarness, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Before anything is started."""
    with pytest.raises(error, match=words):
        claude.adapter([], **options).evaluate(asking(), Session())


def test_other_options_are_refused() -> None:
    """A mix-up is named before anything is started."""
    with pytest.raises(TypeError, match=r"options must be the SDK's ClaudeAgentOptions, got dict\."):
        ClaudeAgentSDKAdapter(options={"model": "x"}).evaluate(asking(), Session())
