"""Claims about overrides: what they change, when they are out of date, and how they are kept."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.prompt.overrides import (
    LocalPromptOverridesStore,
    PromptOverride,
    TextOverride,
    ToolOverride,
    text_hash,
)
from weakincentives.prompt.prompt import Prompt, PromptTemplate
from weakincentives.prompt.section import MarkdownSection, Section
from weakincentives.prompt.tool import Tool, ToolContext
from weakincentives.prompt.visibility import ReadSection, SectionVisibility
from weakincentives.session import Session


@dataclass(frozen=True)
class Person:
    name: str = "Ada"
    tone: str = "kind"


@dataclass(frozen=True)
class Query:
    text: str
    """What to look for."""
    limit: int = 10


class Computed(Section[None]):
    def render_body(self, params: None, *, session: Session | None = None) -> str:
        return "computed"


def template_of(body: str = "Dear ${name}.", description: str = "Search.") -> PromptTemplate[None]:
    return PromptTemplate(
        ns="shop",
        key="greet",
        sections=[
            MarkdownSection(
                key="a",
                children=[
                    MarkdownSection[Person](
                        key="b", template=body, tools=[Tool[Query, None](name="search", description=description)]
                    )
                ],
            ),
            MarkdownSection(key="fixed", template="Fixed.", accepts_overrides=False),
            Computed(key="computed"),
            MarkdownSection(
                key="more", tools=[Tool[None, None](name="stop", description="Stop.", accepts_overrides=False)]
            ),
        ],
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalPromptOverridesStore:
    return LocalPromptOverridesStore(tmp_path)


@pytest.fixture
def prompt() -> Prompt[None]:
    return Prompt(template_of())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class TestApplying:
    def test_body_is_replaced(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """A section's body is the override's, with its placeholders filled; without the store it is the original."""
        store.save(prompt.texts.override(sections={"a/b": "Hi ${name}, I am ${tone}."}))

        assert prompt.render(overrides=store).text == "Hi Ada, I am kind.\n\nFixed.\n\ncomputed"
        assert prompt.render().text == "Dear Ada.\n\nFixed.\n\ncomputed"

    def test_descriptions_are_replaced(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """A tool tells the model the override's words about itself and its parameters."""
        store.save(
            prompt.texts.override(tools={"search": "Find."}, params={"search": {"text": "Words.", "limit": "Most."}})
        )

        tool = prompt.render(overrides=store).tools[0]
        assert tool.description == "Find."
        properties = tool.schema()["properties"]
        assert (properties["text"]["description"], properties["limit"]["description"]) == ("Words.", "Most.")

    def test_parameters_alone_may_be_described(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """The tool's own description stays."""
        store.save(prompt.texts.override(params={"search": {"text": "Words."}}))

        tool = prompt.render(overrides=store).tools[0]
        assert (tool.description, tool.schema()["properties"]["text"]["description"]) == ("Search.", "Words.")

    def test_prompt_may_hold_its_store_and_tag(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """A prompt made with a store uses it at each rendering, also after bind."""
        store.save(prompt.texts.override(tag="v2", sections={"a/b": "Two."}))
        holding = Prompt(prompt.template, overrides_store=store, overrides_tag="v2")

        assert holding.bind(Person("Bob")).render().text.startswith("Two.")
        assert holding.render(tag="latest").text.startswith("Dear Ada.")

    def test_edit_shows_at_the_next_rendering(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """A changed file needs no new prompt."""
        store.save(prompt.texts.override(sections={"a/b": "One."}))
        assert prompt.render(overrides=store).text.startswith("One.")

        store.save(prompt.texts.override(sections={"a/b": "Two."}))
        assert prompt.render(overrides=store).text.startswith("Two.")

    def test_read_section_reads_the_override(self, store: LocalPromptOverridesStore) -> None:
        """A summarised section that is read in place shows the store's text."""
        folded = MarkdownSection(key="a", template="Long.", summary="S.", visibility=SectionVisibility.SUMMARY)
        template = PromptTemplate(key="p", sections=[folded])
        store.save(Prompt(template).texts.override(sections={"a": "Other."}))
        found = Prompt(template, overrides_store=store).find_tool("read_section")

        assert found is not None
        handler: Any = found.tool.handler
        assert handler(ReadSection("a"), context=ToolContext(session=Session())).value == "Other."

    def test_bound_sections_can_be_overridden(self, store: LocalPromptOverridesStore) -> None:
        """What is bound is part of the prompt."""
        bound = Prompt(PromptTemplate(key="p")).bind(sections=[MarkdownSection(key="x", template="Old.")])
        store.save(bound.texts.override(sections={"x": "New."}))

        assert bound.render(overrides=store).text == "New."


class TestOutOfDate:
    def test_override_of_a_changed_body_is_ignored(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An override written for another text is left out, with a warning."""
        store.save(prompt.texts.override(sections={"a/b": "Hi."}))

        assert Prompt(template_of(body="Dearest ${name}.")).render(overrides=store).text.startswith("Dearest Ada.")
        assert warnings_of(caplog) == [
            "Override shop/greet tag latest ignored: section 'a/b' has changed since the override was written"
        ]

    def test_override_of_a_changed_description_is_ignored(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The same holds for tools and, by itself, for each parameter."""
        store.save(prompt.texts.override(tools={"search": "Find."}, params={"search": {"text": "Words."}}))

        tool = Prompt(template_of(description="Seek.")).render(overrides=store).tools[0]

        assert (tool.description, tool.schema()["properties"]["text"]["description"]) == ("Seek.", "Words.")
        assert warnings_of(caplog) == [
            "Override shop/greet tag latest ignored: tool 'search' has changed since the override was written"
        ]

    def test_warning_is_said_once(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A prompt rendered at each turn does not repeat itself."""
        store.save(PromptOverride("shop", "greet", sections={"a/b": TextOverride("0", "Hi.")}))

        prompt.render(overrides=store)
        prompt.render(overrides=store)

        assert len(warnings_of(caplog)) == 1

    def test_what_is_closed_or_gone_is_ignored(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An override cannot reach what does not accept it, whatever the file says."""
        sections = {
            name: TextOverride(text_hash(text), "Hacked.")
            for name, text in {"fixed": "Fixed.", "computed": "computed", "gone": ""}.items()
        }
        tools = {
            "stop": ToolOverride(TextOverride(text_hash("Stop."), "Hacked.")),
            "gone": ToolOverride(),
            "search": ToolOverride(params={"gone": TextOverride(text_hash(""), "Hacked.")}),
        }
        store.save(PromptOverride("shop", "greet", sections=sections, tools=tools))

        rendered = prompt.render(overrides=store)

        assert "Hacked." not in rendered.text
        assert [tool.description for tool in rendered.tools] == ["Search.", "Stop."]
        assert warnings_of(caplog) == [
            f"Override shop/greet tag latest ignored: {why}"
            for why in (
                "section 'computed' computes its text",
                "section 'fixed' does not accept overrides",
                "section 'gone' does not exist",
                "tool 'gone' does not exist",
                "parameter 'gone' of tool 'search' does not exist",
                "tool 'stop' does not accept overrides",
            )
        ]


class TestWriting:
    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ({"sections": {"gone": "x"}}, "Cannot override section 'gone': it does not exist."),
            ({"sections": {"fixed": "x"}}, "Cannot override section 'fixed': it does not accept overrides."),
            ({"sections": {"computed": "x"}}, "Cannot override section 'computed': it computes its text."),
            ({"tools": {"gone": "x"}}, "Cannot override tool 'gone': it does not exist."),
            ({"tools": {"stop": "x"}}, "Cannot override tool 'stop': it does not accept overrides."),
            (
                {"params": {"search": {"gone": "x"}}},
                "Cannot override parameter 'gone' of tool 'search': it does not exist.",
            ),
            (
                {"sections": {"a/b": "${nam}"}},
                "Override of section 'a/b': unknown placeholder ${nam}. Fields of Person: name, tone.",
            ),
            (
                {"sections": {"a": "${name}"}},
                "Override of section 'a': unknown placeholder ${name}. The section has: none.",
            ),
        ],
    )
    def test_impossible_override_is_refused(self, prompt: Prompt[None], given: dict[str, Any], why: str) -> None:
        """Writing an override of what cannot be overridden says why."""
        with pytest.raises(PromptValidationError) as refused:
            prompt.texts.override(**given)

        assert str(refused.value) == why

    def test_description_must_be_one_a_tool_may_have(self, prompt: Prompt[None]) -> None:
        """The limits of descriptions hold for overrides too."""
        with pytest.raises(PromptValidationError, match="200"):
            prompt.texts.override(tools={"search": "x" * 201})

    def test_unknown_placeholder_in_a_file_is_refused(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore
    ) -> None:
        """A file edited by hand is checked when it is used."""
        change = TextOverride(text_hash("Dear ${name}."), "${nobody}")
        store.save(PromptOverride("shop", "greet", sections={"a/b": change}))

        with pytest.raises(PromptValidationError, match="unknown placeholder"):
            prompt.render(overrides=store)

    def test_prompt_without_a_key_has_no_overrides(self, store: LocalPromptOverridesStore) -> None:
        """There would be no name to keep them under; said when the store is given."""
        with pytest.raises(PromptValidationError) as refused:
            Prompt(PromptTemplate(), overrides_store=store)

        assert str(refused.value) == (
            "Overrides are kept under the prompt's names. Give the PromptTemplate a key= (and ns=)."
        )

    def test_namespace_is_optional(self, store: LocalPromptOverridesStore, tmp_path: Path) -> None:
        """A prompt with a key but no namespace is kept under `default`."""
        prompt = Prompt(PromptTemplate(key="p", sections=[MarkdownSection(key="a", template="x")]))
        store.save(prompt.texts.override(sections={"a": "y"}))

        assert (tmp_path / "default" / "p" / "latest.json").is_file()
        assert prompt.render(overrides=store).text == "y"


class TestLocalStore:
    def test_gives_back_what_was_saved(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """Nothing is lost on the way through the file."""
        override = prompt.texts.override(
            sections={"a/b": "Grüße ${name}"}, tools={"search": "Find."}, params={"search": {"text": "Words."}}
        )
        store.save(override)

        assert store.resolve("shop", "greet", "latest") == override

    def test_keeps_tags_apart(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """Each tag has its own file."""
        store.save(prompt.texts.override(tag="v1", sections={"a/b": "One."}))

        assert store.resolve("shop", "greet", "latest") is None
        assert store.resolve("shop", "greet", "v1") is not None

    def test_deletes(self, prompt: Prompt[None], store: LocalPromptOverridesStore) -> None:
        """A deleted override is gone; deleting it again does nothing."""
        store.save(prompt.texts.override())

        store.delete("shop", "greet", "latest")
        store.delete("shop", "greet", "latest")

        assert store.resolve("shop", "greet", "latest") is None

    def test_replaces_the_file_at_once(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, tmp_path: Path
    ) -> None:
        """Saving leaves one file, and no draft beside it."""
        store.save(prompt.texts.override(sections={"a/b": "One."}))
        store.save(prompt.texts.override(sections={"a/b": "Two."}))

        assert [path.name for path in (tmp_path / "shop" / "greet").iterdir()] == ["latest.json"]

    def test_failed_write_keeps_the_old_file(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, tmp_path: Path
    ) -> None:
        """What cannot be written leaves everything as it was."""
        good = prompt.texts.override(sections={"a/b": "One."})
        store.save(good)

        with pytest.raises(UnicodeEncodeError):
            store.save(replace(good, sections={"a/b": TextOverride("0", "\ud800")}))

        assert store.resolve("shop", "greet", "latest") == good
        assert [path.name for path in (tmp_path / "shop" / "greet").iterdir()] == ["latest.json"]

    @pytest.mark.parametrize("word", ["", "..", "a/b", ".hidden", "a\\b", "a\n"])
    def test_refuses_names_that_leave_the_folder(self, store: LocalPromptOverridesStore, word: str) -> None:
        """Namespace, key and tag are parts of a file name and nothing more."""
        for what, names in {"ns": (word, "k", "t"), "key": ("n", word, "t"), "tag": ("n", "k", word)}.items():
            with pytest.raises(PromptValidationError) as refused:
                store.resolve(*names)
            assert str(refused.value) == (
                f"Overrides cannot be kept under {what} {word!r}: "
                "it must match [A-Za-z0-9][A-Za-z0-9._-]*, as part of a file name."
            )

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", '{"ns": "shop"}', '{"ns": "shop", "key": "greet", "sections": {"a": {"text": 1}}, "x": 1}'],
    )
    def test_bad_file_is_named(self, store: LocalPromptOverridesStore, tmp_path: Path, text: str) -> None:
        """A file that cannot be used is an error with its name, never silently skipped."""
        path = tmp_path / "shop" / "greet" / "latest.json"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")

        with pytest.raises(PromptValidationError) as refused:
            store.resolve("shop", "greet", "latest")

        assert str(refused.value).startswith(f"The overrides file {path} cannot be used. ")

    def test_bad_file_names_every_problem(self, store: LocalPromptOverridesStore, tmp_path: Path) -> None:
        """All problems are told at once, with their places."""
        path = tmp_path / "shop" / "greet" / "latest.json"
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({"ns": "shop", "key": 1, "tools": {"t": {"description": {"text": "x"}}}}), encoding="utf-8"
        )

        with pytest.raises(PromptValidationError) as refused:
            store.resolve("shop", "greet", "latest")

        assert "key: Expected type string, got integer 1" in str(refused.value)
        assert "expected_hash: Missing required field" in str(refused.value)

    def test_file_at_the_wrong_place_is_refused(
        self, prompt: Prompt[None], store: LocalPromptOverridesStore, tmp_path: Path
    ) -> None:
        """A copied file still says what it was made for."""
        store.save(prompt.texts.override())
        path = tmp_path / "shop" / "greet" / "v2.json"
        path.write_bytes((tmp_path / "shop" / "greet" / "latest.json").read_bytes())

        with pytest.raises(PromptValidationError) as refused:
            store.resolve("shop", "greet", "v2")

        assert str(refused.value) == (
            f"The overrides file {path} cannot be used. "
            "It says it is for shop/greet tag latest, but lies where shop/greet tag v2 belongs."
        )
