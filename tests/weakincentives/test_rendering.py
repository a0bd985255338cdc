"""Claims about the text and the tools a model is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from weakincentives.prompt.prompt import Prompt, PromptTemplate
from weakincentives.prompt.section import MarkdownSection, Section
from weakincentives.prompt.tool import Tool, ToolExample
from weakincentives.prompt.visibility import SectionVisibility, VisibilityOverrides, apply_visibility
from weakincentives.serde import Secret
from weakincentives.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Query:
    text: str
    limit: int = 10


@dataclass(frozen=True)
class Login:
    user: str
    password: Annotated[str, Secret]


@dataclass(frozen=True)
class Found:
    lines: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Slow:
    text: str

    async def render(self) -> str:
        return self.text


def named(name: str) -> Tool[None, None]:
    return Tool[None, None](name=name, description=f"Does {name}.")


def prompt_of(*sections: Section[Any]) -> Prompt[None]:
    return Prompt(PromptTemplate(sections=sections))


def names(prompt: Prompt[Any], session: Session | None = None) -> list[str]:
    return [tool.name for tool in prompt.render(session).tools]


class TestText:
    def test_empty_prompt_is_empty(self) -> None:
        """A prompt without sections has no text and no tools."""
        rendered = Prompt(PromptTemplate()).render()

        assert (rendered.text, rendered.tools, rendered.sections) == ("", (), ())

    def test_sections_come_in_order_with_nested_headings(self) -> None:
        """Each title is a heading as deep as its section; blocks are parted by a blank line."""
        prompt = prompt_of(
            MarkdownSection(
                title="Guide",
                template="Read this.",
                children=[
                    MarkdownSection(title="Style", template="Be brief.", children=[MarkdownSection(title="Deep")]),
                    MarkdownSection(title="Tone", template="Be kind."),
                ],
            ),
            MarkdownSection(title="End", template="Stop."),
        )

        assert prompt.render().text == (
            "# Guide\n\nRead this.\n\n## Style\n\nBe brief.\n\n### Deep\n\n## Tone\n\nBe kind.\n\n# End\n\nStop."
        )

    def test_section_without_title_has_no_heading(self) -> None:
        """Its text stands alone, and its children's headings are as deep as if it were not there."""
        prompt = prompt_of(MarkdownSection(template="Hello.", children=[MarkdownSection(title="A", template="a")]))

        assert prompt.render().text == "Hello.\n\n# A\n\na"

    def test_headings_go_six_deep(self) -> None:
        """Markdown has six levels; what is deeper stays at the sixth."""
        section = MarkdownSection(title="L8")
        for level in range(7, 0, -1):
            section = MarkdownSection(title=f"L{level}", children=[section])

        assert prompt_of(section).render().text.splitlines()[-5:] == ["###### L6", "", "###### L7", "", "###### L8"]

    def test_rendering_is_pure(self) -> None:
        """The same prompt renders the same, as often as one likes, and leaves the session as it was."""
        session = Session()
        prompt = prompt_of(
            MarkdownSection(template="x", summary="s", visibility=SUMMARY), MarkdownSection(tools=[named("a")])
        )

        assert prompt.render(session) == prompt.render(session)
        assert session[VisibilityOverrides].all() == ()

    def test_tells_what_is_shown_and_how(self) -> None:
        """The rendered prompt lists its sections with path, title and visibility."""
        rendered = prompt_of(
            MarkdownSection(title="A", children=[MarkdownSection(title="B", summary="s", visibility=SUMMARY)]),
            MarkdownSection(title="C", enabled=lambda: False),
        ).render()

        assert [(s.path, s.title, s.visibility) for s in rendered.sections] == [
            (("a",), "A", FULL),
            (("a", "b"), "B", SUMMARY),
        ]
        assert rendered.summarised == (("a", "b"),)


class TestTools:
    def test_are_in_order_of_the_sections(self) -> None:
        """Tools come as their sections do, outer before inner, then the extra ones."""
        prompt = prompt_of(
            MarkdownSection(key="a", tools=[named("t1"), named("t2")], children=[MarkdownSection(tools=[named("t3")])]),
            MarkdownSection(key="b", tools=[named("t4")]),
        ).bind(extra_tools=[named("t5")])

        assert names(prompt) == ["t1", "t2", "t3", "t4", "t5"]

    def test_of_disabled_sections_are_not_there(self) -> None:
        """A disabled section takes its tools and its children's tools along."""
        inner = MarkdownSection(tools=[named("t2")])
        prompt = prompt_of(MarkdownSection(tools=[named("t1")], enabled=lambda: False, children=[inner]))

        assert names(prompt) == []


class TestExamples:
    def test_stand_below_their_section(self) -> None:
        """S27: examples of a section's tools follow its text, before its children."""
        search = Tool[Query, Found](
            name="search",
            description="Search.",
            examples=[ToolExample("Find reports", Query("réport"), Found(("1. a", "2. b")))],
        )
        prompt = prompt_of(
            MarkdownSection(title="S", template="Body.", tools=[search], children=[MarkdownSection(template="Child.")])
        )

        assert prompt.render().text == (
            "# S\n\nBody.\n\n"
            "Example of `search`: Find reports\n\n"
            'Input:\n```json\n{"text": "réport", "limit": 10}\n```\n\n'
            "Output:\n```\n1. a\n2. b\n```\n\n"
            "Child."
        )

    def test_of_extra_tools_stand_at_the_end(self) -> None:
        """A tool without a section shows its examples after all sections."""
        ping = Tool[None, str](name="ping", description="Ping.", examples=[ToolExample("Say hello", None, "pong")])

        assert prompt_of(MarkdownSection(template="Body.")).bind(extra_tools=[ping]).render().text == (
            "Body.\n\nExample of `ping`: Say hello\n\nInput:\n```json\n{}\n```\n\nOutput:\n```\npong\n```"
        )

    def test_fence_is_longer_than_any_in_the_output(self) -> None:
        """An output that contains a code fence cannot end its own."""
        show = Tool[None, str](name="show", description="Show.", examples=[ToolExample("Code", None, "````\nx\n````")])

        assert prompt_of(MarkdownSection(tools=[show])).render().text.endswith("Output:\n`````\n````\nx\n````\n`````")

    def test_do_not_show_secrets(self) -> None:
        """A secret field of an example's input is redacted, as everywhere."""
        login = Tool[Login, None](
            name="login", description="Log in.", examples=[ToolExample("Log in", Login("ada", "hunter2"), None)]
        )

        text = prompt_of(MarkdownSection(tools=[login])).render().text
        assert '{"user": "ada", "password": "[redacted]"}' in text
        assert "hunter2" not in text

    def test_output_that_renders_asynchronously_is_shown_as_data(self) -> None:
        """Rendering never waits; such a value is JSON in an example."""
        slow = Tool[None, Slow](name="slow", description="Slow.", examples=[ToolExample("Wait", None, Slow("done"))])

        assert '```\n{"text": "done"}\n```' in prompt_of(MarkdownSection(tools=[slow])).render().text

    def test_of_summarised_sections_are_not_there(self) -> None:
        """A summary hides the examples with the tools."""
        ping = Tool[None, str](name="ping", description="Ping.", examples=[ToolExample("Say hello", None, "pong")])

        assert "pong" not in prompt_of(MarkdownSection(tools=[ping], summary="s", visibility=SUMMARY)).render().text


class TestSummaries:
    def test_show_the_summary_and_how_to_read_the_rest(self) -> None:
        """A summarised section without tools can be read in place."""
        prompt = prompt_of(
            MarkdownSection(
                title="Guide",
                template="Long text.",
                summary="About style.",
                visibility=SUMMARY,
                children=[MarkdownSection(title="Hidden")],
            )
        )

        assert prompt.render().text == (
            "# Guide\n\nAbout style.\n\n"
            '[Summary only. Call read_section with section_key "guide" to read this section.]'
        )
        assert names(prompt) == ["read_section"]

    def test_hide_tools_until_opened(self) -> None:
        """A summarised section with tools, its own or below, must be opened."""
        inner = MarkdownSection(key="inner", tools=[named("deploy")])
        prompt = prompt_of(
            MarkdownSection(key="ops", summary="Deploying.", visibility=SUMMARY, children=[inner]),
            MarkdownSection(key="other", tools=[named("look")]),
        )

        assert prompt.render().text == (
            "Deploying.\n\n"
            '[Summary only. Call open_sections with section_keys ["ops"] to open this section and its tools.]'
        )
        assert names(prompt) == ["look", "open_sections"]

    def test_of_both_kinds_bring_both_tools(self) -> None:
        """open_sections comes before read_section, both at the end."""
        prompt = prompt_of(
            MarkdownSection(key="a", summary="s", visibility=SUMMARY),
            MarkdownSection(key="b", summary="s", visibility=SUMMARY, tools=[named("t")]),
        ).bind(extra_tools=[named("x")])

        assert names(prompt) == ["x", "open_sections", "read_section"]

    def test_session_opens_a_section(self) -> None:
        """What the session's overrides open is shown in full, with its tools; the openers go when unneeded."""
        session = Session()
        prompt = prompt_of(
            MarkdownSection(key="ops", template="All.", summary="Some.", visibility=SUMMARY, tools=[named("deploy")])
        )

        apply_visibility(session, {("ops",): FULL})

        assert (prompt.render(session).text, names(prompt, session)) == ("All.", ["deploy"])
        assert names(prompt) == ["open_sections"]

    def test_session_folds_a_section(self) -> None:
        """A section with a summary that is shown in full by default can be folded by the session."""
        session = Session()
        prompt = prompt_of(MarkdownSection(key="a", template="All.", summary="Some.", tools=[named("t")]))

        apply_visibility(session, {("a",): SUMMARY})

        assert names(prompt, session) == ["open_sections"]

    def test_section_without_summary_cannot_be_folded(self) -> None:
        """There would be nothing to show, so the override is without effect."""
        session = Session()
        prompt = prompt_of(MarkdownSection(key="a", template="All."))

        apply_visibility(session, {("a",): SUMMARY})

        assert prompt.render(session).text == "All."

    @pytest.mark.parametrize("enabled", [True, False])
    def test_disabled_section_stays_away_even_if_opened(self, enabled: bool) -> None:
        """Opening a section does not enable it."""
        session = Session()
        apply_visibility(session, {("a",): FULL})
        prompt = prompt_of(MarkdownSection(key="a", template="All.", summary="Some.", enabled=lambda: enabled))

        assert prompt.render(session).text == ("All." if enabled else "")
