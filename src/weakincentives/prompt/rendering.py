"""From placed sections to the text and tools a model is given. Pure: nothing is recorded, opened or written.

Decides the order, the headings and how summaries and tool examples look. Never decides who may call a tool.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from .. import serde
from ..frozen import frozen
from ..session import Session
from .overrides import AppliedOverrides
from .section import PlacedSection, expand
from .tool import Tool, ToolExample
from .tool_result import render_value
from .visibility import SectionPath, SectionVisibility, hint, overrides_of

OutputT = TypeVar("OutputT", default=None)

_DEEPEST_HEADING = 6


@frozen
class RenderedSection:
    """One section that is in the text, and how."""

    path: SectionPath
    title: str | None
    visibility: SectionVisibility


@frozen
class RenderedPrompt(Generic[OutputT]):
    """What the model is given, once: made by `Prompt.render` for each turn, never changed."""

    text: str
    tools: tuple[Tool[Any, Any], ...]
    """The tools of the sections shown in full, in order, then extra ones, then those that open summaries."""
    sections: tuple[RenderedSection, ...]
    """What is shown, in order; a summarised section hides those below it."""
    params: tuple[object, ...] = ()
    output_type: type[OutputT] | None = None
    """The type the final answer must have, or None for free text."""

    @property
    def summarised(self) -> tuple[SectionPath, ...]:
        """The sections shown as a summary."""
        return tuple(section.path for section in self.sections if section.visibility is SectionVisibility.SUMMARY)


class View:
    """The sections as one session sees them now. Lives for one rendering or one look-up."""

    __slots__ = ("_applied", "_overrides", "_session", "_values")

    def __init__(
        self,
        values: Mapping[SectionPath, Any],
        session: Session | None,
        applied: AppliedOverrides | None = None,
    ) -> None:
        self._values = values
        self._session = session
        self._overrides = overrides_of(session)
        self._applied = applied

    def is_enabled(self, placed: PlacedSection) -> bool:
        return placed.is_enabled(self._values[placed.path], self._session)

    def visibility(self, placed: PlacedSection) -> SectionVisibility:
        return placed.visibility(self._values[placed.path], self._session, self._overrides)

    def is_open(self, placed: PlacedSection) -> bool:
        return self.is_enabled(placed) and self.visibility(placed) is SectionVisibility.FULL

    def shown(self, roots: Sequence[PlacedSection]) -> Iterator[tuple[PlacedSection, SectionVisibility]]:
        """What is in the text, in order: enabled sections, and nothing below one that is summarised."""
        for placed in roots:
            if self.is_enabled(placed):
                visibility = self.visibility(placed)
                yield placed, visibility
                if visibility is SectionVisibility.FULL:
                    yield from self.shown(placed.children)

    def block(self, placed: PlacedSection, visibility: SectionVisibility) -> str:
        """Heading and text of one section, without its children."""
        section = placed.section
        heading = "" if section.title is None else f"{'#' * min(placed.level, _DEEPEST_HEADING)} {section.title}"
        if visibility is SectionVisibility.SUMMARY:
            summary = section.render_summary(self._values[placed.path], session=self._session).strip()
            return join_blocks(heading, summary, hint(placed.name, has_tools=placed.has_tools))
        return join_blocks(heading, self._body(placed), examples_text(section.tools))

    def whole(self, placed: PlacedSection) -> str:
        """A section in full, with what is shown of its children, as if it had been opened."""
        below = (self.block(*shown) for shown in self.shown(placed.children))
        return join_blocks(self.block(placed, SectionVisibility.FULL), *below)

    def _body(self, placed: PlacedSection) -> str:
        params = self._values[placed.path]
        override = None if self._applied is None else self._applied.bodies.get(placed.path)
        if override is not None:
            return expand(override, params).strip()
        return placed.section.render_body(params, session=self._session).strip()


def join_blocks(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def examples_text(tools: Sequence[Tool[Any, Any]]) -> str:
    """How the tools are used, by their examples."""
    return join_blocks(*map(_examples_of, tools))


_known: weakref.WeakKeyDictionary[Tool[Any, Any], str] = weakref.WeakKeyDictionary()
"""A tool never changes, so its examples are written once."""


def _examples_of(tool: Tool[Any, Any]) -> str:
    if not tool.examples:
        return ""
    text = _known.get(tool)
    if text is None:
        text = _known[tool] = join_blocks(*(_example_text(tool.name, example) for example in tool.examples))
    return text


def _example_text(name: str, example: ToolExample[Any, Any]) -> str:
    arguments: object = {} if example.input is None else serde.dump(example.input, redact=True)
    return join_blocks(
        f"Example of `{name}`: {example.description}",
        "Input:\n" + _fenced(json.dumps(arguments, ensure_ascii=False), "json"),
        "Output:\n" + _fenced(_output_text(example.output)),
    )


def _output_text(output: object) -> str:
    rendered = render_value(output)
    if isinstance(rendered, str):
        return rendered
    # Rendering never waits, so a value that renders itself asynchronously is shown as its data.
    getattr(rendered, "close", lambda: None)()
    return json.dumps(serde.dump(output, redact=True), ensure_ascii=False)


def _fenced(text: str, language: str = "") -> str:
    ticks = max((len(run) for run in re.findall(r"`{3,}", text)), default=2) + 1
    return f"{'`' * ticks}{language}\n{text}\n{'`' * ticks}"
