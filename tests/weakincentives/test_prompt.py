"""Claims about prompts: what is refused, what binding means, which tool a name finds, and resources."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from weakincentives.errors import PromptValidationError, ToolValidationError, VisibilityExpansionRequired
from weakincentives.prompt.policies import PolicyDecision, SequentialDependencyPolicy
from weakincentives.prompt.prompt import Prompt, PromptTemplate, ToolBinding
from weakincentives.prompt.section import MarkdownSection, Section
from weakincentives.prompt.tool import Tool, ToolContext
from weakincentives.prompt.tool_result import ToolResult
from weakincentives.prompt.visibility import (
    OpenSections,
    ReadSection,
    SectionVisibility,
    SetVisibilityOverride,
    apply_visibility,
)
from weakincentives.resources import Binding, ResourceCloseError, ResourceRegistry, Scope
from weakincentives.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Person:
    name: str


@dataclass(frozen=True)
class Guest(Person):
    room: int = 1


@dataclass(frozen=True)
class Options:
    tone: str = "kind"


@dataclass(frozen=True)
class Answer:
    text: str


class Allow:
    """A policy that allows everything."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            self.name = name

    def check(self, tool: Any, params: Any, *, context: ToolContext) -> PolicyDecision:
        return PolicyDecision.allow()


class Database:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class BrokenDatabase(Database):
    def close(self) -> None:
        raise OSError("disk")


class Suite(Section[None]):
    """A suite that brings a database along."""

    def __init__(self, key: str, database: Database) -> None:
        super().__init__(key=key)
        self.database = database

    def resources(self) -> Mapping[Any, object]:
        return {Database: self.database}


def named(name: str) -> Tool[None, None]:
    return Tool[None, None](name=name, description=f"Does {name}.")


def prompt_of(*sections: Section[Any], policies: tuple[Any, ...] = ()) -> Prompt[None]:
    return Prompt(PromptTemplate(sections=sections, policies=policies))


def places(binding: ToolBinding | None) -> list[str]:
    assert binding is not None
    return [policy.place for policy in binding.policies]


class TestTemplate:
    def test_needs_neither_names_nor_sections(self) -> None:
        """S51: a template without any argument is fine."""
        template = PromptTemplate()

        assert (template.ns, template.key, template.name, template.output_type) == (None, None, None, None)

    def test_keeps_its_output_type(self) -> None:
        """`PromptTemplate[Answer]` asks for an Answer, and so do the prompts made of it."""
        prompt = Prompt(PromptTemplate[Answer](sections=[], name="ask"))

        assert (prompt.output_type, prompt.render().output_type, prompt.name) == (Answer, Answer, "ask")

    def test_refuses_equal_tool_names(self) -> None:
        """One name means one tool, wherever in the prompt the two are."""
        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(
                sections=[
                    MarkdownSection(key="a", tools=[named("t")]),
                    MarkdownSection(key="b", children=[MarkdownSection(key="c", tools=[named("t")])]),
                ]
            )

        assert str(refused.value) == "Section 'b/c': there is a tool named 't' in section 'a' already."

    def test_refuses_what_is_no_tool(self) -> None:
        """A plain function must be wrapped first."""
        tools: list[Any] = [len]

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection(key="a", tools=tools)])

        assert str(refused.value) == "Section 'a': tools= takes Tool objects, got builtin_function_or_method."

    def test_refuses_what_is_no_policy(self) -> None:
        """A policy is an object with a check method; its class is not."""
        policies: list[Any] = [Allow]

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(policies=policies)
        with pytest.raises(PromptValidationError, match=r"^Section 'a': a policy needs a check method, got str\.$"):
            MarkdownSection(key="a", policies=["no"])  # pyright: ignore[reportArgumentType]

        assert str(refused.value) == "PromptTemplate: a policy needs a check method, got the class Allow."

    def test_refuses_a_tool_named_like_an_opener(self) -> None:
        """The names of the tools that open summaries are taken where there are summaries."""
        own = MarkdownSection(key="a", tools=[named("read_section")])

        PromptTemplate(sections=[own])
        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[own, MarkdownSection(key="b", summary="s")])

        assert str(refused.value) == (
            "The tool name 'read_section' is taken: a prompt with summarised sections has a tool of that name."
        )

    def test_refuses_two_policies_at_one_place(self) -> None:
        """A policy's record is kept under its place, so a name may not imitate another place."""
        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection(key="a", policies=[Allow("p")])], policies=[Allow("a/p")])

        assert str(refused.value) == "Two policies have the same place. Give them different names."

    def test_prompt_takes_a_template(self) -> None:
        """A section alone is not a prompt."""
        wrong: Any = MarkdownSection()

        with pytest.raises(PromptValidationError, match=r"^Prompt takes a PromptTemplate, got MarkdownSection\.$"):
            Prompt(wrong)


class TestParams:
    def test_missing_params_are_refused_when_bound(self) -> None:
        """Not when the prompt is made, and with the section's path."""
        prompt = prompt_of(MarkdownSection(key="a", children=[MarkdownSection[Person](key="b")]))

        with pytest.raises(PromptValidationError) as refused:
            prompt.bind()

        assert str(refused.value) == "Section 'a/b' needs params of type Person. Pass them: bind(Person(...))."

    def test_missing_params_are_refused_when_used_unbound(self) -> None:
        """A prompt that was never bound is checked at its first use."""
        prompt = prompt_of(MarkdownSection[Person](key="a"))

        with pytest.raises(PromptValidationError, match="needs params of type Person"):
            prompt.render()

    def test_default_params_need_not_be_passed(self) -> None:
        """A section's default params serve until others are bound."""
        prompt = prompt_of(MarkdownSection[Person](template="${name}", default_params=Person("Ada")))

        assert prompt.render().text == "Ada"
        assert prompt.bind(Person("Bob")).render().text == "Bob"

    def test_params_with_defaults_need_not_be_passed(self) -> None:
        """A dataclass whose fields all have defaults is made when it is missing."""
        prompt = prompt_of(MarkdownSection[Options](template="${tone}"))

        assert prompt.render().text == "kind"

    def test_one_instance_serves_many_sections(self) -> None:
        """Sections that share a params type get the same params."""
        prompt = prompt_of(
            MarkdownSection[Person](key="a", template="1 ${name}"),
            MarkdownSection[Person](key="b", template="2 ${name}"),
        )

        assert prompt.bind(Person("Ada")).render().text == "1 Ada\n\n2 Ada"

    def test_instance_of_a_subclass_serves_too(self) -> None:
        """Params may be more than the section asks for."""
        assert prompt_of(MarkdownSection[Person](template="${name}")).bind(Guest("Ada")).render().text == "Ada"

    def test_unused_params_are_refused(self) -> None:
        """Params no section asks for are a mistake."""
        with pytest.raises(PromptValidationError) as refused:
            prompt_of(MarkdownSection(template="x")).bind(Person("Ada"))

        assert str(refused.value) == "Params of type Person are used by no section."

    @pytest.mark.parametrize(("wrong", "got"), [(3, "int"), (Person, "the class Person"), ({"name": "x"}, "dict")])
    def test_only_dataclass_instances_are_params(self, wrong: object, got: str) -> None:
        """Anything else is refused, saying what was got."""
        with pytest.raises(PromptValidationError) as refused:
            prompt_of().bind(wrong)

        assert str(refused.value) == f"bind takes instances of params dataclasses, got {got}."

    def test_two_of_a_type_are_refused(self) -> None:
        """In one call, one of them would be lost."""
        with pytest.raises(PromptValidationError) as refused:
            prompt_of(MarkdownSection[Person]()).bind(Person("a"), Person("b"))

        assert str(refused.value) == "bind got two params of type Person. Pass one."


class TestBind:
    def test_leaves_the_prompt_alone(self) -> None:
        """Binding makes a new prompt."""
        prompt = prompt_of(MarkdownSection[Options](template="${tone}"))

        bound = prompt.bind(Options("harsh"), sections=[MarkdownSection(template="more")])

        assert (prompt.render().text, bound.render().text) == ("kind", "harsh\n\nmore")
        assert (prompt.params, bound.params) == ((), (Options("harsh"),))

    def test_again_merges_and_the_later_wins(self) -> None:
        """Params by type, sections by key, tools by name and resources by type are replaced; the rest stays."""
        first = prompt_of(MarkdownSection[Options](template="${tone}")).bind(
            Options("a"),
            sections=[MarkdownSection(key="x", template="x1"), MarkdownSection(template="nameless")],
            extra_tools=[named("t"), named("u")],
            resources={Database: Database("1"), str: "kept"},
        )

        second = first.bind(
            Options("b"),
            sections=[MarkdownSection(key="x", template="x2")],
            extra_tools=[named("t")],
            resources={Database: Database("2")},
        )

        rendered = second.render()
        assert rendered.text == "b\n\nnameless\n\nx2"
        assert [tool.name for tool in rendered.tools] == ["u", "t"]
        with second.resources as resources:
            assert (resources.get(Database).name, resources.get(str)) == ("2", "kept")

    def test_section_with_a_key_of_the_template_is_refused(self) -> None:
        """Bound sections stand beside the template's, they do not replace them."""
        prompt = prompt_of(MarkdownSection(key="a"))

        with pytest.raises(PromptValidationError, match="Two sections of the prompt have the key 'a'"):
            prompt.bind(sections=[MarkdownSection(key="a")])

    def test_extra_tool_with_a_name_of_a_section_is_refused(self) -> None:
        """An extra tool cannot shadow a governed one."""
        prompt = prompt_of(MarkdownSection(key="a", tools=[named("t")]))

        with pytest.raises(PromptValidationError) as refused:
            prompt.bind(extra_tools=[named("t")])

        assert str(refused.value) == "extra_tools: there is a tool named 't' in section 'a' already."

    def test_two_extra_tools_of_a_name_are_refused(self) -> None:
        """In one call, one of them would be lost."""
        with pytest.raises(PromptValidationError) as refused:
            prompt_of().bind(extra_tools=[named("t"), named("t")])

        assert str(refused.value) == "extra_tools: there is a tool named 't' in extra_tools already."

    def test_extra_tool_must_be_a_tool(self) -> None:
        """A name is not a tool."""
        wrong: list[Any] = ["t"]

        with pytest.raises(PromptValidationError, match=r"^extra_tools: tools= takes Tool objects, got str\.$"):
            prompt_of().bind(extra_tools=wrong)

    def test_checks_policies_against_the_tools(self) -> None:
        """S33: a required tool the prompt does not have is refused when the prompt is bound."""
        policy = SequentialDependencyPolicy(dependencies={"deploy": frozenset({"build"})})
        prompt = prompt_of(MarkdownSection(key="ops", tools=[named("deploy")], policies=[policy]))

        with pytest.raises(PromptValidationError, match="build"):
            prompt.bind()
        prompt.bind(extra_tools=[named("build")])

    def test_tells_policies_tools_and_place(self) -> None:
        """The hook gets every tool name of the prompt, hidden ones too, and the policy's place."""
        told: list[object] = []

        class Curious(Allow):
            def validate(self, tool_names: frozenset[str], place: str) -> None:
                told.append((tool_names, place))

        hidden = MarkdownSection(key="h", tools=[named("b")], enabled=lambda: False)
        folded = MarkdownSection(key="f", tools=[named("c")], summary="s", visibility=SUMMARY)
        prompt_of(MarkdownSection(key="a", tools=[named("a")], policies=[Curious()]), hidden, folded).bind()

        assert told == [(frozenset({"a", "b", "c", "open_sections"}), "a/Curious#0")]


class TestFindTool:
    def test_unknown_name_is_not_found(self) -> None:
        """There is no such tool, and no exception."""
        assert prompt_of(MarkdownSection(tools=[named("t")])).find_tool("x") is None

    def test_finds_the_tool_and_its_section(self) -> None:
        """The binding holds the very tool and the path of its section."""
        tool = named("t")
        found = prompt_of(MarkdownSection(key="a", children=[MarkdownSection(key="b", tools=[tool])])).find_tool("t")

        assert found is not None
        assert (found.tool, found.path, found.policies) == (tool, ("a", "b"), ())

    def test_policies_come_outer_first_then_the_prompts(self) -> None:
        """S31: order and places of the policies that govern a tool; siblings' policies do not."""
        prompt = prompt_of(
            MarkdownSection(
                key="a",
                policies=[Allow(), Allow("named")],
                children=[MarkdownSection(key="b", tools=[named("t")], policies=[Allow()])],
            ),
            MarkdownSection(key="c", policies=[Allow()]),
            policies=(Allow(), Allow()),
        )

        assert places(prompt.find_tool("t")) == ["a/Allow#0", "a/named#1", "a/b/Allow#0", "Allow#0", "Allow#1"]

    def test_extra_tools_are_governed_by_the_prompts_policies(self) -> None:
        """A tool without a section has no section's policies."""
        prompt = prompt_of(MarkdownSection(key="a", policies=[Allow()]), policies=(Allow("p"),))

        assert places(prompt.bind(extra_tools=[named("t")]).find_tool("t")) == ["p#0"]

    def test_all_policies_are_in_document_order(self) -> None:
        """S32: every policy of the prompt, each once, sections first."""
        prompt = prompt_of(
            MarkdownSection(key="a", policies=[Allow()], children=[MarkdownSection(key="b", policies=[Allow()])]),
            MarkdownSection(key="c", policies=[Allow()], enabled=lambda: False),
            policies=(Allow(),),
        )

        assert [policy.place for policy in prompt.all_policies] == ["a/Allow#0", "a/b/Allow#0", "c/Allow#0", "Allow#0"]

    def test_disabled_section_hides_its_tools(self) -> None:
        """A tool below a disabled section is not found, and found again when the session enables it."""
        prompt = prompt_of(
            MarkdownSection(
                enabled=lambda *, session: session is not None,
                tools=[named("t")],
                children=[MarkdownSection(tools=[named("u")])],
            )
        )

        assert (prompt.find_tool("t"), prompt.find_tool("u"), prompt.tool_names()) == (None, None, ())
        assert prompt.find_tool("u", Session()) is not None
        assert prompt.tool_names(Session()) == ("t", "u")

    def test_folded_section_hides_its_tools_until_opened(self) -> None:
        """A tool of a summarised section is found when the session has opened it; the opener is found before."""
        session = Session()
        prompt = prompt_of(MarkdownSection(key="a", summary="s", visibility=SUMMARY, tools=[named("t")]))

        assert (prompt.find_tool("t", session), prompt.tool_names(session)) == (None, ("open_sections",))
        assert prompt.find_tool("open_sections", session) is not None

        apply_visibility(session, {("a",): FULL})
        assert prompt.find_tool("t", session) is not None
        assert (prompt.find_tool("open_sections", session), prompt.tool_names(session)) == (None, ("t",))

    def test_openers_are_governed_by_the_prompts_policies(self) -> None:
        """Opening a section is a tool call like any other."""
        prompt = prompt_of(MarkdownSection(key="a", summary="s", visibility=SUMMARY), policies=(Allow("p"),))

        assert places(prompt.find_tool("read_section")) == ["p#0"]

    def test_names_are_those_of_the_rendered_tools(self) -> None:
        """What a model is told to be available is what it was shown."""
        prompt = prompt_of(
            MarkdownSection(key="a", tools=[named("a")], enabled=lambda: False),
            MarkdownSection(key="b", tools=[named("b")], summary="s", visibility=SUMMARY),
            MarkdownSection(key="c", tools=[named("c")], summary="s"),
            MarkdownSection(key="d", summary="s", visibility=SUMMARY),
        ).bind(extra_tools=[named("x")])

        assert prompt.tool_names() == tuple(tool.name for tool in prompt.render().tools)
        assert prompt.tool_names() == ("c", "x", "open_sections", "read_section")


class TestOpeningSummaries:
    def run(self, prompt: Prompt[Any], name: str, params: object, session: Session | None = None) -> ToolResult[Any]:
        found = prompt.find_tool(name, session)
        assert found is not None
        handler: Any = found.tool.handler
        return handler(params, context=ToolContext(session=session or Session()))

    def folded(self) -> Prompt[None]:
        return prompt_of(
            MarkdownSection(
                key="ops",
                summary="Deploying.",
                visibility=SUMMARY,
                tools=[named("deploy")],
                children=[MarkdownSection(key="deep", summary="Deeper.", visibility=SUMMARY, tools=[named("dig")])],
            ),
            MarkdownSection(
                title="Guide",
                template="Long.",
                summary="Short.",
                visibility=SUMMARY,
                children=[
                    MarkdownSection(title="Tone", template="Kind.", summary="Tone.", visibility=SUMMARY),
                    MarkdownSection(title="Secret", template="Hidden.", enabled=lambda: False),
                ],
            ),
        )

    def test_open_sections_asks_for_an_expansion(self) -> None:
        """The loop is told which sections to show in full, and why."""
        with pytest.raises(VisibilityExpansionRequired) as asked:
            self.run(self.folded(), "open_sections", OpenSections(("ops",), "to deploy"))

        assert asked.value.requested_overrides == {("ops",): FULL}
        assert (asked.value.section_keys, asked.value.reason) == (("ops",), "to deploy")

    def test_open_sections_opens_those_around(self) -> None:
        """A section inside a folded one is seen only when that one is opened too."""
        with pytest.raises(VisibilityExpansionRequired) as asked:
            self.run(self.folded(), "open_sections", OpenSections(("ops/deep",)))

        assert asked.value.requested_overrides == {("ops",): FULL, ("ops", "deep"): FULL}

    def test_applying_the_expansion_shows_the_section(self) -> None:
        """Recording what was asked for is all it takes."""
        prompt, session = self.folded(), Session()

        with pytest.raises(VisibilityExpansionRequired) as asked:
            self.run(prompt, "open_sections", OpenSections(("ops",)), session)
        apply_visibility(session, asked.value.requested_overrides)

        assert prompt.tool_names(session) == ("deploy", "open_sections", "read_section")

    def test_open_sections_refuses_unknown_keys(self) -> None:
        """The model is told which sections there are."""
        with pytest.raises(ToolValidationError) as refused:
            self.run(self.folded(), "open_sections", OpenSections(("ops", "opps")))

        assert str(refused.value) == "Unknown section 'opps'. Summarised sections: ops, guide."

    def test_open_sections_refuses_no_keys(self) -> None:
        """Opening nothing is a mistake to correct."""
        with pytest.raises(ToolValidationError) as refused:
            self.run(self.folded(), "open_sections", OpenSections(()))

        assert str(refused.value) == "No section named. Summarised sections: ops, guide."

    def test_open_sections_says_what_is_open_already(self) -> None:
        """Opening an open section changes nothing and says so."""
        prompt, session = self.folded(), Session()
        apply_visibility(session, {("guide",): FULL})

        result = self.run(prompt, "open_sections", OpenSections(("guide",)), session)

        assert result.message == "Already open: 'guide'. Read the prompt above and use the tools it names."

    def test_read_section_gives_the_text(self) -> None:
        """The section is read in place, with what is shown of its children; disabled ones stay hidden."""
        result = self.run(self.folded(), "read_section", ReadSection("guide"))

        assert result.value == (
            "# Guide\n\nLong.\n\n## Tone\n\nTone.\n\n"
            '[Summary only. Call read_section with section_key "guide/tone" to read this section.]'
        )

    def test_read_section_reads_below_a_folded_section(self) -> None:
        """A key that reading revealed can be read in turn, slashes around it or not."""
        assert self.run(self.folded(), "read_section", ReadSection("/guide/tone/")).value == "## Tone\n\nKind."

    def test_read_section_refuses_a_section_with_tools(self) -> None:
        """Reading would not bring its tools."""
        with pytest.raises(ToolValidationError) as refused:
            self.run(self.folded(), "read_section", ReadSection("ops"))

        assert str(refused.value) == (
            "Section 'ops' cannot be read here because it has tools. "
            'Call open_sections with section_keys ["ops"] instead.'
        )

    def test_read_section_does_not_know_disabled_sections(self) -> None:
        """What is disabled does not exist for the model."""
        with pytest.raises(ToolValidationError, match=r"^Unknown section 'guide/secret'"):
            self.run(self.folded(), "read_section", ReadSection("guide/secret"))

    def test_without_summaries_the_model_is_told_not_to_retry(self) -> None:
        """A late call of an opener, when nothing is folded any more, is answered plainly."""
        prompt, session = self.folded(), Session()
        found = prompt.find_tool("read_section", session)
        assert found is not None
        apply_visibility(session, dict.fromkeys((("ops",), ("ops", "deep"), ("guide",), ("guide", "tone")), FULL))

        handler: Any = found.tool.handler
        with pytest.raises(ToolValidationError) as refused:
            handler(ReadSection("x"), context=ToolContext(session=session))

        assert str(refused.value) == "Unknown section 'x'. No section is summarised now; do not retry."

    def test_reading_has_no_effects(self) -> None:
        """read_section may run beside others; open_sections ends the turn and runs alone."""
        prompt = self.folded()
        effects = {name: found.tool.effects for name in prompt.tool_names() if (found := prompt.find_tool(name))}

        assert effects == {"open_sections": "local", "read_section": "none"}

    def test_descriptions_say_what_they_do(self) -> None:
        """S57: what a model reads about the two tools."""
        assert {tool.name: tool.description for tool in self.folded().render().tools} == {
            "open_sections": "Open summarised sections: their full text and their tools are there from the next turn on.",
            "read_section": "Read the full text of a summarised section that has no tools.",
        }


class TestInstall:
    def test_reaches_every_section(self) -> None:
        """Sections register their reducers on the session, children included."""
        installed: list[tuple[str | None, Session]] = []

        class Stateful(Section[None]):
            def install(self, session: Session) -> None:
                installed.append((self.key, session))

        session = Session()
        prompt_of(Stateful(key="a", children=[Stateful(key="b")])).install(session)

        assert installed == [("a", session), ("b", session)]

    def test_lets_the_session_open_sections(self) -> None:
        """After it, the event alone opens a summarised section."""
        session = Session()
        prompt = prompt_of(MarkdownSection(key="a", template="All.", summary="Some.", visibility=SUMMARY))

        prompt.install(session)
        session.dispatch(SetVisibilityOverride(("a",), FULL))

        assert prompt.render(session).text == "All."


class TestResources:
    def test_block_closes_what_it_built(self) -> None:
        """A singleton lives as long as the block, and is one for all."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: Database())})

        with prompt.resources as resources:
            database = resources.get(Database)
            assert resources.get(Database) is database
            assert database.closed == 0

        assert database.closed == 1

    def test_blocks_nest(self) -> None:
        """Only the outermost block closes."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: Database())})

        with prompt.resources as outer:
            database = outer.get(Database)
            with prompt.resources as inner:
                assert inner.get(Database) is database
            assert database.closed == 0

        assert (database.closed, prompt.resources.is_open) == (1, False)

    def test_access_without_a_block_opens_until_closed(self) -> None:
        """S42: leaving the block out works; what an access opened stays open, also through blocks, until close."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: Database())})

        database = prompt.resources.get(Database)
        with prompt.resources as resources:
            assert resources.get(Database) is database
        assert (database.closed, prompt.resources.is_open) == (0, True)

        prompt.resources.close()
        assert (database.closed, prompt.resources.is_open) == (1, False)

    def test_close_waits_for_open_blocks(self) -> None:
        """Closing inside a block leaves the closing to the block."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: Database())})

        with prompt.resources as resources:
            database = resources.get(Database)
            prompt.resources.close()
            assert database.closed == 0

        assert database.closed == 1

    def test_closing_what_is_not_open_does_nothing(self) -> None:
        """Close may be called in any case."""
        prompt = prompt_of()

        prompt.resources.close()

        assert not prompt.resources.is_open

    def test_may_be_opened_again(self) -> None:
        """Each opening builds its own singletons."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: Database())})

        with prompt.resources as resources:
            first = resources.get(Database)
        with prompt.resources as resources:
            second = resources.get(Database)

        assert first is not second

    def test_failure_to_close_is_raised_at_the_end_of_the_block(self) -> None:
        """Nobody would hear of it otherwise."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: BrokenDatabase())})

        with pytest.raises(ResourceCloseError), prompt.resources as resources:
            resources.get(Database)

    def test_failure_to_close_never_hides_an_error(self) -> None:
        """An error on its way out stays the error, with a note."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: BrokenDatabase())})

        with pytest.raises(KeyError) as raised, prompt.resources as resources:
            resources.get(Database)
            raise KeyError

        assert "disk" in raised.value.__notes__[-1]

    def test_async_block_closes_on_the_callers_loop(self) -> None:
        """A resource with only `aclose` is awaited where it was used."""
        loops: list[object] = []

        class Client:
            async def aclose(self) -> None:
                loops.append(asyncio.get_running_loop())

        prompt = prompt_of().bind(resources={Client: Binding(Client, lambda _: Client())})

        async def main() -> object:
            async with prompt.resources as resources:
                resources.get(Client)
            prompt.resources.get(Client)
            await prompt.resources.aclose()
            return asyncio.get_running_loop()

        loop = asyncio.run(main())
        assert loops == [loop, loop]

    def test_async_block_keeps_the_error(self) -> None:
        """An error in an async block stays the error, with a note of what failed to close."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: BrokenDatabase())})

        async def main() -> None:
            async with prompt.resources as resources:
                resources.get(Database)
                raise KeyError

        with pytest.raises(KeyError) as raised:
            asyncio.run(main())
        assert "Closing the prompt's resources failed as well: " in raised.value.__notes__[-1]

    def test_async_blocks_nest_and_raise_failures_to_close(self) -> None:
        """The outermost async block closes, and nobody misses that it failed."""
        prompt = prompt_of().bind(resources={Database: Binding(Database, lambda _: BrokenDatabase())})

        async def main() -> None:
            async with prompt.resources:
                async with prompt.resources as resources:
                    resources.get(Database)
                assert prompt.resources.is_open

        with pytest.raises(ResourceCloseError):
            asyncio.run(main())

    def test_section_brings_resources(self) -> None:
        """S42: a section's resource is the section's own: the same for every prompt and never closed."""
        database = Database("suite")
        suite = Suite("s", database)

        for prompt in (prompt_of(suite), prompt_of().bind(sections=[suite])):
            with prompt.resources as resources:
                assert resources.get(Database) is database

        assert database.closed == 0

    def test_bind_goes_over_sections_and_requests_over_bind(self) -> None:
        """S43: section, bind, run, request: the later layer wins, whatever was called first."""
        prompt = prompt_of(Suite("s", Database("section")))
        run = prompt.with_resources({Database: Database("run"), str: "run"})

        assert prompt.bind(resources={Database: Database("bind")}).resources.get(Database).name == "bind"
        assert run.bind(resources={Database: Database("bind")}).resources.get(Database).name == "run"
        request = run.with_resources(ResourceRegistry.build({Database: Database("request")}))
        assert (request.resources.get(Database).name, request.resources.get(str)) == ("request", "run")

    def test_two_sections_with_different_resources_of_a_type_are_refused(self) -> None:
        """One suite's tools would work on the other's resource; the author must say which is meant."""
        prompt = prompt_of(Suite("a", Database()), Suite("b", Database()))

        with pytest.raises(PromptValidationError) as refused:
            prompt.bind()

        assert str(refused.value) == (
            "Sections 'a' and 'b' both bring a Database. Say which is meant: bind(resources={Database: ...})."
        )
        chosen = Database("chosen")
        assert prompt.bind(resources={Database: chosen}).resources.get(Database) is chosen

    def test_two_sections_may_share_a_resource(self) -> None:
        """The same object brought twice is no conflict."""
        shared = Database()

        assert prompt_of(Suite("a", shared), Suite("b", shared)).resources.get(Database) is shared

    def test_gives_access_to_the_open_context(self) -> None:
        """Optional resources, tool scopes, what is built and word of what is built later are all there."""
        prompt = prompt_of().bind(
            resources={
                Database: Binding(Database, lambda _: Database()),
                Answer: Binding(Answer, lambda _: Answer("call"), scope=Scope.TOOL_CALL),
            }
        )
        heard: list[object] = []

        with prompt.resources as resources:
            stop = resources.observe(heard.append)
            database = resources.get(Database)
            stop()
            with resources.tool_scope() as scope:
                assert scope.get(Answer) == Answer("call")
            assert (resources.built, heard) == ((database,), [database])
            assert resources.get_optional(int) is None
            assert (Database in resources, int in resources) == (True, False)


def test_a_prompt_in_which_nothing_is_computed_is_rendered_once() -> None:
    """A loop that renders at every turn pays once."""
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="Task", template="Do it.")]))

    assert prompt.render(Session()) is prompt.render(Session())


def test_a_text_that_is_computed_is_computed_for_every_rendering() -> None:
    """What a section says of the session is what the session says now."""

    class Counter(Section[None]):
        def render_body(self, params: None, *, session: Session | None = None) -> str:
            return f"{0 if session is None else len(session[Noted].all())} notes"

    session = Session()
    prompt = Prompt(PromptTemplate(sections=[Counter(title="State")]))
    before = prompt.render(session).text
    session[Noted].append(Noted("a"))

    assert (before, prompt.render(session).text) == ("# State\n\n0 notes", "# State\n\n1 notes")


class _Clocked(MarkdownSection[None]):
    """Computes what others write down."""

    said: ClassVar[Iterator[int]] = itertools.count()
    template: Any = property(lambda self: f"at {next(self.said)}", lambda self, text: None)


def _with_body() -> Section[Any]:
    said = itertools.count()

    def body(params: None, *, session: Session | None = None) -> str:
        return f"at {next(said)}"

    section = MarkdownSection(title="Task", template="Do it.")
    section.render_body = body
    return section


def _conditional() -> Section[Any]:
    said = itertools.count()
    inner = MarkdownSection(title="Inner", template="In.", enabled=lambda: next(said) % 2 == 0)
    return MarkdownSection(title="Task", template="Do it.", children=[inner])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: _Clocked(title="Task"), id="template computed"),
        pytest.param(_with_body, id="body of one instance"),
        pytest.param(_conditional, id="conditional child"),
    ],
)
def test_nothing_that_may_change_is_rendered_once(make: Callable[[], Section[Any]]) -> None:
    """Only what is written down is kept from one rendering to the next."""
    prompt = Prompt(PromptTemplate(sections=[make()]))

    assert prompt.render(Session()).text != prompt.render(Session()).text


def test_a_summary_is_computed_for_every_rendering() -> None:
    """A section that can be folded is asked each time, for its summary too."""
    said = itertools.count()

    class Folded(MarkdownSection[None]):
        def render_summary(self, params: None, *, session: Session | None = None) -> str:
            return f"at {next(said)}"

    section = Folded(title="Task", template="Do it.", summary="-", visibility=SectionVisibility.SUMMARY)
    prompt = Prompt(PromptTemplate(sections=[section]))

    assert prompt.render(Session()).text != prompt.render(Session()).text


def test_words_that_are_set_later_are_shown() -> None:
    """A section is not meant to be changed; one that is changed does not say what it said before."""
    section = MarkdownSection[None](title="Task", template="Do it.")
    prompt = Prompt(PromptTemplate(sections=[section]))
    prompt.render()
    section.template = "Do it now."

    assert prompt.render().text == "# Task\n\nDo it now."


def test_what_is_bound_later_is_shown() -> None:
    """A rendering is kept by the prompt that gave it, not by those derived from it."""
    prompt = Prompt(PromptTemplate(sections=[MarkdownSection(title="Task", template="Do it.")]))
    prompt.render()

    bound = prompt.bind(sections=[MarkdownSection(title="More", template="And this.")])

    assert bound.render().text == "# Task\n\nDo it.\n\n# More\n\nAnd this."
    assert prompt.render().text == "# Task\n\nDo it."


@dataclass(frozen=True)
class Noted:
    text: str
