"""What a tool gives back and what the model reads of it."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import enum
import logging
import pathlib
import pickle
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import pytest

from weakincentives.dbc import ensure, require
from weakincentives.prompt.tool_context import ToolContext
from weakincentives.prompt.tool_result import (
    FileBlock,
    ImageBlock,
    TextBlock,
    ToolResult,
    content_blocks,
    render_text,
    render_value,
    text_or_awaitable,
)
from weakincentives.serde import Secret


@dataclass(frozen=True, slots=True)
class Match:
    path: str

    def render(self) -> str:
        return f"* {self.path}"


@dataclass(frozen=True, slots=True)
class LateMatch:
    path: str

    async def render(self) -> str:
        await asyncio.sleep(0)
        return f"* {self.path}"


class Colour(enum.Enum):
    RED = "red"


class Mood(enum.StrEnum):
    CALM = "calm"


async def awaited(text: str | Awaitable[str]) -> str:
    return text if isinstance(text, str) else await text


class TestToolResult:
    def test_ok_is_a_success_with_a_value(self) -> None:
        """`ok` takes the value first and a message that may be left out."""
        assert ToolResult.ok(1) == ToolResult(message="", value=1, success=True, exclude_value_from_context=False)
        assert ToolResult.ok(1, message="one").message == "one"

    def test_error_is_a_failure_without_a_value(self) -> None:
        """`error` takes what the model is to read."""
        assert ToolResult.error("No such file") == ToolResult("No such file", None, False, False)

    def test_it_never_changes(self) -> None:
        """A result is frozen."""
        result = ToolResult.ok(1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.message = "other"  # type: ignore[misc]

    def test_it_is_a_dataclass_of_four_fields(self) -> None:
        """The fields stand in the documented order, though the constructor is written by hand."""
        names = [field.name for field in dataclasses.fields(ToolResult)]
        assert names == ["message", "value", "success", "exclude_value_from_context"]

    def test_value_must_be_given(self) -> None:
        """Only the two flags have defaults."""
        with pytest.raises(TypeError):
            ToolResult("message only")  # type: ignore[call-arg]

    def test_replace_makes_a_changed_copy(self) -> None:
        """`dataclasses.replace` works as on any dataclass."""
        assert dataclasses.replace(ToolResult.ok(1), message="m") == ToolResult("m", 1)

    def test_equal_results_have_equal_hashes(self) -> None:
        """A result with a hashable value can stand in a set."""
        assert len({ToolResult.ok(1, "m"), ToolResult.ok(1, "m"), ToolResult.ok(2, "m")}) == 2

    def test_repr_shows_all_fields(self) -> None:
        """The usual dataclass form."""
        assert repr(ToolResult.ok(1, "m")) == (
            "ToolResult(message='m', value=1, success=True, exclude_value_from_context=False)"
        )

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
    def test_it_can_be_copied_and_pickled(self, copied: Any) -> None:
        """A copy equals its original."""
        result = ToolResult("m", (1, 2), False, True)
        assert copied(result) == result

    def test_it_has_no_room_for_other_attributes(self) -> None:
        """Slots keep it small."""
        assert not hasattr(ToolResult.ok(1), "__dict__")


class TestRenderText:
    def test_message_blank_line_value(self) -> None:
        """A success with both parts shows both, a blank line between."""
        assert render_text(ToolResult.ok(Match("a.py"), "Found 1")) == "Found 1\n\n* a.py"

    def test_only_the_value_when_the_message_is_empty(self) -> None:
        """No blank lines in front of a lonely value."""
        assert render_text(ToolResult.ok(Match("a.py"))) == "* a.py"

    @pytest.mark.parametrize("value", [None, "", [], ()])
    def test_only_the_message_when_the_value_renders_empty(self, value: object) -> None:
        """No blank lines after a lonely message."""
        assert render_text(ToolResult.ok(value, "Done")) == "Done"

    def test_only_the_message_when_the_value_is_excluded(self) -> None:
        """A large payload stays out of the model's text."""
        assert render_text(ToolResult("Read 9 MB", "x" * 9, True, True)) == "Read 9 MB"

    def test_an_excluded_value_is_not_even_rendered(self) -> None:
        """Hiding a value also saves the work of rendering it."""
        assert render_text(ToolResult("m", {"bad": object()}, True, True)) == "m"

    def test_only_the_message_of_a_failure(self) -> None:
        """The value of a failed result is for the event alone."""
        assert render_text(ToolResult("Failed", {"code": 1}, False)) == "Failed"


class TestRender:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, ""),
            ("as\nis ", "as\nis "),
            (True, "true"),
            (12, "12"),
            (1.5, "1.5"),
            ({"name": "Zoë", "n": [1, 2]}, '{"name": "Zoë", "n": [1, 2]}'),
            (MappingProxyType({"a": 1}), '{"a": 1}'),
            (["a", "b"], "a\nb"),
            (("a", 2, True), "a\n2\ntrue"),
            ([{"a": 1}, {"b": 2}], '{"a": 1}\n{"b": 2}'),
            ([Match("a"), Match("b")], "* a\n* b"),
            ([[1, 2], [3]], "[1, 2]\n[3]"),
            (["a", None, "b"], "a\n\nb"),
            (range(3), "0\n1\n2"),
            (frozenset({"b", "a"}), "a\nb"),
            (Colour.RED, "red"),
            (Mood.CALM, "calm"),
            (pathlib.PurePosixPath("a/b"), "a/b"),
            (datetime.date(2026, 1, 31), "2026-01-31"),
        ],
    )
    def test_each_kind_of_value_has_its_text(self, value: object, text: str) -> None:
        """The table of value kinds, one row each."""
        assert ToolResult.ok(value).render() == text

    def test_a_dataclass_without_render_is_json(self) -> None:
        """The model still gets everything, if less readably."""

        @dataclass(frozen=True)
        class Plain:
            name: str
            at: datetime.date

        value = Plain("Zoë", datetime.date(2026, 1, 31))
        assert ToolResult.ok(value).render() == '{"name": "Zoë", "at": "2026-01-31"}'

    def test_a_dataclass_without_render_warns_once_per_type(self, caplog: pytest.LogCaptureFixture) -> None:
        """One line in the log per type, however often it is rendered."""

        @dataclass(frozen=True)
        class Silent:
            n: int

        with caplog.at_level(logging.WARNING):
            ToolResult.ok([Silent(1), Silent(2)]).render()
            ToolResult.ok(Silent(3)).render()
        name = Silent.__qualname__
        assert [record.getMessage() for record in caplog.records] == [
            f"{name} has no render(): the model reads it as JSON; give it a render() method that returns text"
        ]

    def test_a_secret_field_is_not_shown_by_itself(self) -> None:
        """Only a render() of its own can show a secret to the model."""

        @dataclass(frozen=True)
        class Account:
            user: str
            token: Annotated[str, Secret]

        assert ToolResult.ok(Account("ann", "s3cret")).render() == '{"user": "ann", "token": "[redacted]"}'

    def test_render_must_return_text(self) -> None:
        """Anything else is the author's mistake and says so."""

        @dataclass(frozen=True)
        class Wrong:
            def render(self) -> Any:
                return 3

        with pytest.raises(TypeError, match=r"Wrong\.render\(\) must return text, got int$"):
            ToolResult.ok(Wrong()).render()

    def test_an_exception_of_render_comes_through(self) -> None:
        """The pipeline decides what a raising render means; it is not hidden here."""

        @dataclass(frozen=True)
        class Broken:
            def render(self) -> str:
                raise RuntimeError("no text")

        with pytest.raises(RuntimeError, match="no text"):
            render_text(ToolResult.ok([LateMatch("a"), Broken()]))

    def test_what_cannot_be_written_is_an_error(self) -> None:
        """A value of a kind nobody knows raises rather than showing its address."""
        with pytest.raises((TypeError, ValueError)):
            ToolResult.ok(object()).render()


class TestAsyncRender:
    def test_an_async_render_is_awaited(self) -> None:
        """`render_value` hands out an awaitable when the value needs one."""
        assert asyncio.run(awaited(render_value(LateMatch("a")))) == "* a"

    def test_the_whole_text_can_be_awaited(self) -> None:
        """Message and value are joined after the await, too."""
        result = ToolResult.ok([LateMatch("a"), Match("b"), LateMatch("c")], "Found")
        assert asyncio.run(awaited(text_or_awaitable(result))) == "Found\n\n* a\n* b\n* c"

    def test_without_an_async_render_there_is_nothing_to_await(self) -> None:
        """The usual value costs no coroutine."""
        assert text_or_awaitable(ToolResult.ok(Match("a"), "Found")) == "Found\n\n* a"

    def test_an_async_render_that_raises_leaves_no_other_waiting(self) -> None:
        """The items after it are given up cleanly."""

        @dataclass(frozen=True)
        class LateBroken:
            async def render(self) -> str:
                raise RuntimeError("no text")

        with pytest.raises(RuntimeError, match="no text"):
            asyncio.run(awaited(render_value([LateBroken(), LateMatch("a")])))

    def test_async_render_must_return_text(self) -> None:
        """The same rule as for a sync one."""

        @dataclass(frozen=True)
        class LateWrong:
            async def render(self) -> Any:
                return 3

        with pytest.raises(TypeError, match=r"LateWrong\.render\(\) must return text, got int$"):
            asyncio.run(awaited(render_value(LateWrong())))

    @pytest.mark.parametrize("value", [LateMatch("a"), [LateMatch("a"), Match("b")]])
    def test_the_sync_form_says_what_to_do(self, value: object) -> None:
        """Asking for text now, where only an awaitable can be had, is refused without leaving a coroutine behind."""
        kind = type(value).__qualname__
        with pytest.raises(TypeError) as caught:
            render_text(ToolResult.ok(value, "Found"))
        assert str(caught.value) == (
            f"The render() of this {kind} is async: run the tool through execute_tool, or await render_value(value)"
        )


class TestContentBlocks:
    @pytest.mark.parametrize(
        ("block", "text"),
        [
            (TextBlock("hello"), "hello"),
            (ImageBlock(data=b"12345"), "[image: image/png, 5 bytes]"),
            (ImageBlock(url="https://a/b.jpg", media_type="image/jpeg"), "[image: image/jpeg, https://a/b.jpg]"),
            (FileBlock(data=b"123", name="a.bin"), "[file: a.bin, application/octet-stream, 3 bytes]"),
            (
                FileBlock(url="https://a/r.pdf", media_type="application/pdf"),
                "[file: application/pdf, https://a/r.pdf]",
            ),
        ],
    )
    def test_a_block_has_a_placeholder(self, block: object, text: str) -> None:
        """A provider that takes text only still says what was there."""
        assert ToolResult.ok(block).render() == text

    def test_blocks_in_a_row_render_line_by_line(self) -> None:
        """A sequence of blocks is a sequence like any other."""
        assert ToolResult.ok((TextBlock("see"), ImageBlock(data=b"1"))).render() == "see\n[image: image/png, 1 bytes]"

    @pytest.mark.parametrize("source", [{}, {"data": b"1", "url": "https://a"}])
    @pytest.mark.parametrize("kind", [ImageBlock, FileBlock])
    def test_a_block_has_one_source(self, kind: Any, source: Mapping[str, Any]) -> None:
        """Bytes or an address, not both and not neither."""
        with pytest.raises(ValueError, match=rf"^{kind.__name__} takes either data or url$"):
            kind(**source)

    def test_an_adapter_can_have_the_blocks_themselves(self) -> None:
        """A block, or a sequence of nothing but blocks, can be sent as blocks."""
        text, image = TextBlock("a"), ImageBlock(data=b"1")
        assert content_blocks(text) == (text,)
        assert content_blocks([text, image]) == (text, image)

    @pytest.mark.parametrize("value", ["a", None, [], [TextBlock("a"), "b"], {"a": TextBlock("a")}])
    def test_other_values_have_no_blocks(self, value: object) -> None:
        """Mixed and other values go as text."""
        assert content_blocks(value) == ()


class TestContracts:
    def test_a_failed_contract_on_a_handler_is_a_failed_result(self) -> None:
        """A broken precondition or postcondition is told to the model instead of raised."""

        @require(lambda params: params > 0, "must be positive")
        def before(params: int, *, context: ToolContext) -> ToolResult[int]:
            return ToolResult.ok(params)

        @ensure(lambda result: result.value > 9, "must be large")
        def after(params: int, *, context: ToolContext) -> ToolResult[int]:
            return ToolResult.ok(params)

        context: Any = None
        assert before(0, context=context) == ToolResult.error("Precondition failed: must be positive")
        assert after(1, context=context) == ToolResult.error("Postcondition failed: must be large")
