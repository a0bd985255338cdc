"""What a tool call gives back, and the one place that turns it into the text a model reads.

Decides how each kind of value is rendered and how message and value are joined; every adapter sends this text.
Must never show the value of a failed result, nor a secret field of a dataclass that does not render itself.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence, Set
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from .. import dbc, serde
from ..frozen import frozen

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger(__name__)
_told: weakref.WeakSet[type] = weakref.WeakSet()
_to_json = json.JSONEncoder(ensure_ascii=False).encode


@frozen
class ToolResult(Generic[T_co]):
    """What a handler returns: a message for the model and a typed value; made once, never changed."""

    message: str
    """Text the model reads."""
    value: T_co | None
    """Typed payload: dataclass, mapping, sequence, text, content block or None."""
    success: bool = True
    """False rolls the call back; the model reads the message alone."""
    exclude_value_from_context: bool = False
    """Keeps the value out of the model's text; it stays in the recorded event."""

    @staticmethod
    def ok(value: T, message: str = "") -> ToolResult[T]:
        """A success."""
        return ToolResult(message, value)

    @staticmethod
    def error(message: str) -> ToolResult[Any]:
        """A failure: says what was wrong, why, and what to do next."""
        return ToolResult(message, None, False)

    def render(self) -> str:
        """What the model reads of the value alone; a value whose `render` is async needs `render_value`."""
        return _text_now(render_value(self.value), self.value)


@frozen
class TextBlock:
    """Text among other content blocks."""

    text: str

    def render(self) -> str:
        return self.text


@frozen
class ImageBlock:
    """An image, by its bytes or by its address; a model that takes no images reads a placeholder."""

    data: bytes | None = None
    url: str | None = None
    media_type: str = "image/png"

    def __post_init__(self) -> None:
        _one_source("ImageBlock", self.data, self.url)

    def render(self) -> str:
        return f"[image: {_source(self.data, self.url, self.media_type)}]"


@frozen
class FileBlock:
    """A file, by its bytes or by its address; a model that takes no files reads a placeholder."""

    data: bytes | None = None
    url: str | None = None
    media_type: str = "application/octet-stream"
    name: str = ""

    def __post_init__(self) -> None:
        _one_source("FileBlock", self.data, self.url)

    def render(self) -> str:
        return f"[file: {self.name + ', ' if self.name else ''}{_source(self.data, self.url, self.media_type)}]"


ContentBlock = TextBlock | ImageBlock | FileBlock


def content_blocks(value: object) -> tuple[ContentBlock, ...]:
    """The blocks of a value, for an adapter whose provider takes them; empty when the value is not made of blocks."""
    if isinstance(value, ContentBlock):
        return (value,)
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        blocks = tuple(item for item in items if isinstance(item, ContentBlock))
        if len(blocks) == len(items):
            return blocks
    return ()


def render_text(result: ToolResult[object]) -> str:
    """What the model reads of a result: the message, a blank line, the rendered value."""
    text = text_or_awaitable(result)
    return text if isinstance(text, str) else _text_now(text, result.value)


def text_or_awaitable(result: ToolResult[object]) -> str | Awaitable[str]:
    """The same text for a caller that can await: an awaitable comes back when the value's `render` is async."""
    if not result.success or result.exclude_value_from_context or result.value is None:
        return result.message
    return _join(result.message, render_value(result.value))


def render_value(value: object) -> str | Awaitable[str]:
    """The value as text, by its kind; an awaitable when a dataclass in it has an async `render`."""
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)  # an Enum of texts shows its text
    if value is None:
        return ""
    cls = type(value)
    if hasattr(cls, "__dataclass_fields__"):
        return _render_dataclass(cls, value)
    if isinstance(value, Mapping):
        return _to_json(serde.dump(cast("object", value), redact=True))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return _render_items(cast("Sequence[object]", value))
    if isinstance(value, Set):
        return _render_items(serde.dump(cast("object", value), redact=True))
    # Numbers and booleans become JSON; dates, paths, ids and enums are text and need no quotes.
    plain = serde.dump(cast("object", value), redact=True)
    return plain if isinstance(plain, str) else _to_json(plain)


class _Later(Awaitable[str]):
    """Text that still has to be awaited; the coroutine is made at the await, so that giving up leaves none behind."""

    __slots__ = ("_parts", "_run")

    def __init__(self, run: Callable[[], Coroutine[Any, Any, str]], *parts: object) -> None:
        self._run = run
        self._parts = parts

    def __await__(self) -> Generator[Any, Any, str]:
        return self._run().__await__()

    def close(self) -> None:
        for part in self._parts:
            if isinstance(part, _Later | Coroutine):
                part.close()


def _render_dataclass(cls: type, value: Any) -> str | Awaitable[str]:
    if not callable(getattr(cls, "render", None)):
        if cls not in _told:
            _told.add(cls)
            _log.warning(
                "%s has no render(): the model reads it as JSON; give it a render() method that returns text",
                cls.__qualname__,
            )
        return _to_json(serde.dump(value, redact=True))
    rendered: Any = value.render()
    if isinstance(rendered, str):
        return rendered
    if isawaitable(rendered):

        async def checked() -> str:
            return _checked(cls, await rendered)

        return _Later(checked, rendered)
    return _checked(cls, rendered)


def _checked(cls: type, rendered: object) -> str:
    if isinstance(rendered, str):
        return rendered
    raise TypeError(f"{cls.__qualname__}.render() must return text, got {type(rendered).__name__}")


def _render_items(items: Sequence[object]) -> str | Awaitable[str]:
    lines: list[str | Awaitable[str]] = []

    async def joined() -> str:
        done: list[str] = []
        try:
            for line in lines:
                text = line if isinstance(line, str) else await line
                done.append(text)
        finally:
            _Later(joined, *lines[len(done) + 1 :]).close()
        return "\n".join(done)

    later = False
    try:
        for item in items:
            # A sequence inside a sequence stays on one line, so that a line is an item.
            nested = isinstance(item, list | tuple | Set)
            line = _to_json(serde.dump(cast("object", item), redact=True)) if nested else render_value(item)
            later = later or not isinstance(line, str)
            lines.append(line)
    except BaseException:
        _Later(joined, *lines).close()
        raise
    return _Later(joined, *lines) if later else "\n".join(cast("list[str]", lines))


def _join(message: str, rendered: str | Awaitable[str]) -> str | Awaitable[str]:
    if not isinstance(rendered, str):

        async def joined() -> str:
            return cast("str", _join(message, await rendered))

        return _Later(joined, rendered)
    if not rendered:
        return message
    return f"{message}\n\n{rendered}" if message else rendered


def _text_now(rendered: str | Awaitable[str], value: object) -> str:
    if isinstance(rendered, str):
        return rendered
    if isinstance(rendered, _Later):
        rendered.close()
    raise TypeError(
        f"The render() of this {type(value).__qualname__} is async: run the tool through execute_tool, "
        "or await render_value(value)"
    )


def _one_source(name: str, data: bytes | None, url: str | None) -> None:
    if (data is None) == (url is None):
        raise ValueError(f"{name} takes either data or url")


def _source(data: bytes | None, url: str | None, media_type: str) -> str:
    return f"{media_type}, {len(data)} bytes" if data is not None else f"{media_type}, {url}"


# A failed contract on a handler becomes a failed result; dbc stands below this package and cannot know the class.
dbc.set_failure_factory(ToolResult.error)
