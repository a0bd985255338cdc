"""Claims about sections: keys, params types, templates, predicates and their place in a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from weakincentives.errors import PromptEvaluationError, PromptValidationError
from weakincentives.prompt.prompt import Prompt, PromptTemplate
from weakincentives.prompt.section import MarkdownSection, Section
from weakincentives.prompt.visibility import SectionVisibility
from weakincentives.session import Session


@dataclass(frozen=True)
class Person:
    name: str
    tone: str = "kind"


@dataclass(frozen=True)
class Tour:
    city: str = "Rome"
    name: str = "tour"


def text_of(*sections: Section[Any], params: tuple[object, ...] = (), session: Session | None = None) -> str:
    return Prompt(PromptTemplate(sections=sections)).bind(*params).render(session).text


def paths_of(*sections: Section[Any]) -> list[str]:
    rendered = Prompt(PromptTemplate(sections=sections)).render()
    return ["/".join(section.path) for section in rendered.sections]


class TestKeys:
    def test_key_is_kept(self) -> None:
        """An explicit key is the section's key."""
        assert paths_of(MarkdownSection(title="The Guide", key="g.1_a-b")) == ["g.1_a-b"]

    @pytest.mark.parametrize(
        ("title", "key"),
        [("File Operations", "file-operations"), ("  What's new?  ", "what-s-new"), ("Über Café 2", "uber-cafe-2")],
    )
    def test_key_defaults_to_the_titles_slug(self, title: str, key: str) -> None:
        """Without a key, the title in lower case with dashes is the key."""
        assert paths_of(MarkdownSection(title=title)) == [key]

    def test_key_falls_back_to_the_position(self) -> None:
        """Without title and key, the position among the siblings is the key, counting from one."""
        sections = (
            MarkdownSection(title="A"),
            MarkdownSection(),
            MarkdownSection(title="日本", children=[MarkdownSection()]),
        )

        assert paths_of(*sections) == ["a", "section-2", "section-3", "section-3/section-1"]

    def test_position_belongs_to_the_prompt(self) -> None:
        """One section without a key may stand at different positions in different prompts."""
        section = MarkdownSection(template="x")

        assert paths_of(section) == ["section-1"]
        assert paths_of(MarkdownSection(title="A"), section) == ["a", "section-2"]

    @pytest.mark.parametrize("key", ["", "A", "-a", "a b", "a/b", "a\n", "ä"])
    def test_bad_key_is_refused(self, key: str) -> None:
        """A key is lower case letters and digits, then also dots, underscores and dashes."""
        with pytest.raises(PromptValidationError) as refused:
            MarkdownSection(title="Guide", key=key)

        assert str(refused.value) == (
            f"Section {key or 'Guide'!r}: the key must match [a-z0-9][a-z0-9._-]*: "
            "lower case letters and digits, then also . _ and -."
        )

    def test_equal_keys_of_siblings_are_refused(self) -> None:
        """Two sections at one place cannot share a key, because a path names one section."""
        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection(title="A"), MarkdownSection(key="a")])

        assert str(refused.value) == (
            "Two sections of the prompt have the key 'a'. Give one of them another key= or title."
        )

    def test_equal_keys_below_a_section_name_its_path(self) -> None:
        """The refusal says where the two siblings are."""
        twins = [MarkdownSection(key="x"), MarkdownSection(key="x")]

        with pytest.raises(PromptValidationError, match="Two sections of section 'a/b' have the key 'x'"):
            PromptTemplate(sections=[MarkdownSection(key="a", children=[MarkdownSection(key="b", children=twins)])])

    def test_equal_keys_at_different_places_are_fine(self) -> None:
        """Only siblings must differ."""
        inner = MarkdownSection(key="a")

        assert paths_of(MarkdownSection(key="a", children=[inner])) == ["a", "a/a"]

    def test_title_of_several_lines_is_refused(self) -> None:
        """A heading is one line."""
        with pytest.raises(PromptValidationError, match=r"^Section 'a': a title is one line\.$"):
            MarkdownSection(title="A\nB", key="a")

    def test_non_section_is_refused(self) -> None:
        """What is not a section cannot stand in a prompt."""
        sections: list[Any] = ["text"]

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=sections)

        assert str(refused.value) == "A section of the prompt must be a Section, got str."

    def test_section_class_is_refused(self) -> None:
        """Passing the class instead of an instance is said as such."""
        children: list[Any] = [MarkdownSection]

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection(key="a", children=children)])

        assert str(refused.value) == "A section of section 'a' must be a Section, got the class MarkdownSection."


class TestTemplates:
    def test_everything_but_keywords_is_optional(self) -> None:
        """A section without any argument is an empty section."""
        assert text_of(MarkdownSection()) == ""

    def test_placeholder_is_replaced(self) -> None:
        """`${name}` is the field of the params."""
        section = MarkdownSection[Person](template="Dear ${name}, be ${tone}.")

        assert text_of(section, params=(Person("Ada"),)) == "Dear Ada, be kind."

    @pytest.mark.parametrize(
        "text", ["$$", "$name", "{name}", "{}", "${}", "${ name }", "${name", "${1}", "${a.b}", "%s"]
    )
    def test_other_dollars_and_braces_are_text(self, text: str) -> None:
        """Only `${name}` is a placeholder."""
        assert text_of(MarkdownSection[Person](template=text), params=(Person("Ada"),)) == text

    def test_values_are_not_templates(self) -> None:
        """What a value contains is text, also when it looks like a placeholder."""
        section = MarkdownSection[Person](template="${name} ${tone}")

        assert text_of(section, params=(Person("${tone}", "$$"),)) == "${tone} $$"

    def test_common_indentation_is_removed(self) -> None:
        """A template may be indented with the program around it."""
        section = MarkdownSection(
            template="""
            One
              two
            """
        )

        assert text_of(section) == "One\n  two"

    def test_unknown_placeholder_is_refused(self) -> None:
        """A placeholder that is no field of the params type is refused when the prompt is built, with the path."""
        inner = MarkdownSection[Person](key="b", template="${nam} and ${nam} ${x}")

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection(key="a", children=[inner])])

        assert str(refused.value) == "Section 'a/b': unknown placeholder ${nam}, ${x}. Fields of Person: name, tone."

    def test_params_type_must_be_a_dataclass(self) -> None:
        """Fields can only be looked up in a dataclass."""
        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection[int](key="a")])

        assert str(refused.value) == "Section 'a': its params type must be a dataclass, got <class 'int'>."

    def test_default_params_must_fit(self) -> None:
        """Default params of another type than the section's are refused."""
        wrong: Any = Tour()

        with pytest.raises(PromptValidationError) as refused:
            PromptTemplate(sections=[MarkdownSection[Person](key="a", default_params=wrong)])

        assert str(refused.value) == "Section 'a': default_params must be a Person, got Tour."


class TestParamsType:
    def test_comes_from_the_subscript(self) -> None:
        """`MarkdownSection[Params]` knows its params type."""
        assert MarkdownSection[Person]().params_type is Person

    def test_is_none_without_a_subscript(self) -> None:
        """A section that names no type has none."""
        assert MarkdownSection().params_type is None
        assert MarkdownSection[None]().params_type is None

    def test_comes_from_the_base_class(self) -> None:
        """A suite that subclasses `Section[Params]` has that params type."""

        class Suite(Section[Person]):
            pass

        class Special(Suite):
            pass

        assert Special().params_type is Person

    def test_comes_through_a_generic_subclass(self) -> None:
        """A generic suite passes its argument on, wherever it stands in its own list."""
        A = TypeVar("A")
        B = TypeVar("B")

        class Pair(MarkdownSection[B], Generic[A, B]):
            pass

        assert Pair[int, Person]().params_type is Person

    def test_comes_from_default_params(self) -> None:
        """Without a subscript, the type of the default params counts."""
        assert text_of(MarkdownSection(template="${city}", default_params=Tour())) == "Rome"


class TestUntypedPlaceholders:
    def test_come_from_the_bound_params_with_that_field(self) -> None:
        """Without a subscript each placeholder is the one bound field of that name."""
        section = MarkdownSection(template="${tone} in ${city}")

        assert text_of(section, params=(Person("Ada"), Tour())) == "kind in Rome"

    def test_without_such_a_field_are_refused_when_bound(self) -> None:
        """A placeholder nobody can fill is refused with the section's path."""
        template = PromptTemplate(sections=[MarkdownSection(key="a", template="${age}")])

        with pytest.raises(PromptValidationError) as refused:
            Prompt(template).bind()

        assert str(refused.value) == (
            "Section 'a' needs a value for ${age}. Bind a params dataclass with a field of that name."
        )

    def test_of_two_owners_are_refused(self) -> None:
        """A field that two bound params have is ambiguous; the subscript settles it."""
        template = PromptTemplate(sections=[MarkdownSection(key="a", template="${name} ${city}")])

        with pytest.raises(PromptValidationError) as refused:
            Prompt(template).bind(Person("Ada"), Tour())

        assert str(refused.value) == (
            "Section 'a': ${name} is a field of Person and Tour. Write MarkdownSection[Person] to say which is meant."
        )


class TestEnabled:
    def test_false_hides_section_and_children(self) -> None:
        """A disabled section and all below it are not there."""
        section = MarkdownSection(template="a", enabled=lambda: False, children=[MarkdownSection(template="b")])

        assert text_of(section, MarkdownSection(template="c")) == "c"

    def test_gets_the_params(self) -> None:
        """A predicate that takes a positional argument is asked with the section's params."""
        section = MarkdownSection[Person](template="hi", enabled=lambda person: person.name == "Ada")

        assert text_of(section, params=(Person("Ada"),)) == "hi"
        assert text_of(section, params=(Person("Bob"),)) == ""

    def test_gets_the_session_by_keyword(self) -> None:
        """A predicate that takes `session` is asked with it."""
        seen: list[object] = []

        def enabled(*, session: Session | None) -> bool:
            seen.append(session)
            return True

        session = Session()
        text_of(MarkdownSection(template="x", enabled=enabled), session=session)

        assert seen == [session]

    def test_session_may_stand_first(self) -> None:
        """A parameter called session gets the session even where params could stand."""
        section = MarkdownSection[Person](template="x", enabled=lambda session: session is None)

        assert text_of(section, params=(Person("Ada"),)) == "x"

    def test_gets_both(self) -> None:
        """A predicate may take params and session."""
        section = MarkdownSection[Person](
            template="x", enabled=lambda p, session: session is not None and p.name == "A"
        )

        assert text_of(section, params=(Person("A"),), session=Session()) == "x"

    def test_gets_none_where_a_section_has_no_params(self) -> None:
        """A predicate that wants params of a section without any gets None."""
        assert text_of(MarkdownSection(template="x", enabled=lambda params: params is None)) == "x"

    def test_builtin_predicate_gets_the_params(self) -> None:
        """A function that does not tell its signature is asked with the params."""
        assert text_of(MarkdownSection[Person](template="x", enabled=bool), params=(Person("A"),)) == "x"

    def test_raising_predicate_names_the_section(self) -> None:
        """A predicate that raises is an error with the section's path, not an open door."""

        def broken() -> bool:
            raise KeyError("plan")

        prompt = Prompt(
            PromptTemplate(sections=[MarkdownSection(key="a", children=[MarkdownSection(key="b", enabled=broken)])])
        )

        with pytest.raises(PromptEvaluationError) as raised:
            prompt.render()

        assert str(raised.value) == "Section 'a/b': enabled raised KeyError: 'plan'"

    def test_async_predicate_is_refused(self) -> None:
        """A coroutine would always be true, so an async predicate is refused."""

        async def enabled() -> bool:
            return False

        wrong: Any = enabled
        with pytest.raises(
            PromptValidationError, match=r"^Section 'a': enabled= cannot be async: rendering never waits\.$"
        ):
            MarkdownSection(key="a", enabled=wrong)

    def test_non_callable_predicate_is_refused(self) -> None:
        """A flag is not a predicate."""
        wrong: Any = True
        with pytest.raises(PromptValidationError, match=r"^Section 'a': enabled= is not callable: True\.$"):
            MarkdownSection(key="a", enabled=wrong)


class TestVisibilityOfASection:
    def test_summary_visibility_needs_a_summary(self) -> None:
        """A section that can be folded must have something to show instead."""
        with pytest.raises(PromptValidationError) as refused:
            MarkdownSection(key="a", visibility=SectionVisibility.SUMMARY)

        assert str(refused.value) == "Section 'a': a section that can be shown as a summary needs summary=."

    def test_function_decides(self) -> None:
        """A visibility function is asked like a predicate."""

        def fold_for_bob(person: Person) -> SectionVisibility:
            return SectionVisibility.SUMMARY if person.name == "Bob" else SectionVisibility.FULL

        section = MarkdownSection[Person](template="All.", summary="Some.", visibility=fold_for_bob)

        assert text_of(section, params=(Person("Ada"),)) == "All."
        assert text_of(section, params=(Person("Bob"),)).startswith("Some.")

    def test_function_must_answer_a_visibility(self) -> None:
        """Any other answer is an error with the section's path."""
        wrong: Any = lambda: "summary"  # noqa: E731
        prompt = Prompt(PromptTemplate(sections=[MarkdownSection(key="a", summary="s", visibility=wrong)]))

        with pytest.raises(PromptEvaluationError) as raised:
            prompt.render()

        assert str(raised.value) == "Section 'a': visibility must answer a SectionVisibility, got 'summary'."


class TestSuites:
    def test_body_may_be_computed(self) -> None:
        """A suite writes its text in render_body, from params and session."""

        class Suite(Section[Person]):
            def render_body(self, params: Person, *, session: Session | None = None) -> str:
                return f"{params.name} {'in' if session else 'outside'}"

        assert text_of(Suite(title="S"), params=(Person("Ada"),), session=Session()) == "# S\n\nAda in"

    def test_plain_section_has_no_body(self) -> None:
        """A section may be nothing but a heading with tools."""
        assert text_of(Section(title="Tools")) == "# Tools"
