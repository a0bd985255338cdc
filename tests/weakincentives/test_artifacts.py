"""Claims about long outputs (S24): what the model reads at once, and how it reads on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import (
    MarkdownSection,
    PolicyDecision,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolCall, ToolInvoked, execute_tool, execute_tools

TEXT = "".join(f"line {number:04}\n" for number in range(1000))  # 10,000 characters


@dataclass(frozen=True)
class Dump:
    size: int = len(TEXT)
    fail: bool = False


def _dump(params: Dump, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.error("no") if params.fail else ToolResult.ok(TEXT[: params.size])


def dump_tool(name: str = "dump", limit: int | None = 100, **more: Any) -> Tool[Dump, str]:
    return Tool[Dump, str](name=name, description="Dump.", handler=_dump, output_limit=limit, **more)


PROMPT = Prompt(PromptTemplate()).bind(extra_tools=[dump_tool()])


def call(session: Session, name: str, prompt: Prompt[Any] = PROMPT, call_id: str | None = None, **args: object) -> Any:
    return execute_tool(ToolCall(name, args, call_id), prompt=prompt, session=session)


def test_a_long_output_is_cut_and_says_how_to_read_on() -> None:
    """The model gets the beginning and the handle; the event keeps the whole value."""
    session = Session()
    outcome = call(session, "dump", call_id="c1")

    assert outcome.text == (
        TEXT[:100]
        + '\n\n[output cut: 100 of 10000 characters shown. Read on with read_artifact(handle="c1", offset=100)]'
    )
    assert session[ToolInvoked].all()[0].value == TEXT


def test_an_output_that_fits_is_left_alone() -> None:
    """Exactly the limit fits, and nothing is kept."""
    session = Session()

    assert call(session, "dump", size=100).text == TEXT[:100]
    assert call(session, "read_artifact", handle="c1").text == (
        "Unknown artifact 'c1'. No output was cut so far; do not retry."
    )


def test_reading_on_gives_the_next_page() -> None:
    """Each page says where it is from and how to go on; the last one says that it is the last."""
    session = Session()
    call(session, "dump", call_id="c1", size=5000)
    pages = [
        call(session, "read_artifact", handle="c1", offset=100, limit=900).text,
        call(session, "read_artifact", handle="c1", offset=1000).text,
    ]

    assert pages == [
        TEXT[100:1000] + '\n\n[characters 100 to 1000 of 5000. Read on with read_artifact(handle="c1", offset=1000)]',
        TEXT[1000:5000] + "\n\n[characters 1000 to 5000 of 5000. This is the end]",
    ]


def test_a_page_begins_at_the_start_and_has_a_usual_length() -> None:
    """Handle alone is enough."""
    session = Session()
    call(session, "dump", call_id="c1")

    assert call(session, "read_artifact", handle="c1").text.startswith(TEXT[:4000] + "\n\n[characters 0 to 4000 of")


def test_an_unknown_handle_names_the_known_ones() -> None:
    """Nearest first, so that a slip can be mended."""
    session = Session()
    for call_id in ("call-17", "other", "call-2"):
        call(session, "dump", call_id=call_id)
    outcome = call(session, "read_artifact", handle="call-1")

    assert (outcome.outcome, outcome.text) == (
        "failed",
        "Unknown artifact 'call-1'. Artifacts: call-17, call-2, other. Retry with one of these.",
    )


def test_very_many_handles_are_not_all_named() -> None:
    """The message stays short however many outputs were cut."""
    session = Session()
    for number in range(25):
        call(session, "dump", call_id=f"c{number}")

    assert call(session, "read_artifact", handle="x").text.endswith(" and 5 more. Retry with one of these.")


def test_an_offset_beyond_the_end_is_refused() -> None:
    """The message says how long the output is."""
    session = Session()
    call(session, "dump", call_id="c1", size=500)

    assert call(session, "read_artifact", handle="c1", offset=500).text == (
        "Offset 500 is beyond the end: artifact 'c1' has 500 characters. Retry with an offset below 500."
    )


@pytest.mark.parametrize(("field", "value"), [("offset", -1), ("limit", 0), ("limit", 20_001)])
def test_pages_have_bounds(field: str, value: int) -> None:
    """A page cannot be so long that it defeats the limit."""
    outcome = call(Session(), "read_artifact", handle="c1", **{field: value})

    assert outcome.outcome == "invalid_params"
    assert list(json.loads(outcome.text)["details"]) == [field]


def test_a_failed_call_leaves_no_artifact() -> None:
    """An artifact is rolled back with the call that made it."""
    session = Session()
    with pytest.raises(ValueError, match="no"), session.transaction():
        call(session, "dump", call_id="c1")
        raise ValueError("no")

    assert "No output was cut so far" in call(session, "read_artifact", handle="c1").text


def test_a_read_only_tool_may_be_cut_too() -> None:
    """Outputs of calls that ran at the same time are each kept."""
    session = Session()
    prompt = Prompt(PromptTemplate()).bind(extra_tools=[dump_tool(effects="none")])
    execute_tools([ToolCall("dump", {}, "a"), ToolCall("dump", {}, "b")], prompt=prompt, session=session)

    for handle in ("a", "b"):
        assert call(session, "read_artifact", prompt, handle=handle, offset=9_999).text.startswith("\n\n\n[characters")


def test_the_prompt_offers_the_tool_when_an_output_may_be_cut() -> None:
    """It is found, named and rendered, behind the tools that need it; it only reads."""
    session = Session()
    binding = PROMPT.find_tool("read_artifact", session)

    assert binding is not None
    assert binding.tool.effects == "none"
    assert PROMPT.tool_names(session) == ("dump", "read_artifact")
    assert [tool.name for tool in PROMPT.render(session).tools] == ["dump", "read_artifact"]


def test_the_prompt_does_not_offer_the_tool_without_need() -> None:
    """No limit, nothing to read on."""
    prompt = Prompt(PromptTemplate()).bind(extra_tools=[dump_tool(limit=None)])

    assert prompt.find_tool("read_artifact") is None
    assert prompt.tool_names() == ("dump",)
    assert [tool.name for tool in prompt.render().tools] == ["dump"]


def test_a_limit_in_a_section_counts() -> None:
    """Tools of sections have limits too; the built-in tool stands before those that open sections."""
    folded = MarkdownSection(
        title="Logs",
        template="All of them.",
        summary="Logs.",
        visibility=SectionVisibility.SUMMARY,
        tools=[dump_tool()],
    )
    prompt = Prompt(PromptTemplate(sections=[folded]))

    assert prompt.tool_names(Session()) == ("read_artifact", "open_sections")
    assert [tool.name for tool in prompt.render(Session()).tools] == ["read_artifact", "open_sections"]


def test_the_prompts_policies_govern_the_tool() -> None:
    """Like every tool of the prompt itself."""

    class Never:
        def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
            return PolicyDecision.deny(f"never {tool.name}")

    prompt = Prompt(PromptTemplate(policies=[Never()])).bind(extra_tools=[dump_tool()])

    assert call(Session(), "read_artifact", prompt, handle="c1").text == "never read_artifact"


@pytest.mark.parametrize("own_limit", [None, 100])
def test_the_name_is_taken(own_limit: int | None) -> None:
    """A tool of the user's with that name would shadow the way to read on."""
    with pytest.raises(PromptValidationError) as refused:
        Prompt(PromptTemplate()).bind(extra_tools=[dump_tool(), dump_tool("read_artifact", own_limit)])

    assert str(refused.value) == (
        "The tool name 'read_artifact' is taken: a prompt with an output_limit has a tool of that name."
    )


def test_the_name_is_free_without_limits() -> None:
    """Where nothing is cut, the name means what the user says."""
    prompt = Prompt(PromptTemplate()).bind(extra_tools=[dump_tool("read_artifact", None)])

    assert call(Session(), "read_artifact", prompt, size=10).text == TEXT[:10]
