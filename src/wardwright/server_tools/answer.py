"""What a server tool gives back: the text that the model reads, and beside it what may be kept on the receipt.

Decides how a result becomes text and what its author may say about it in `receipt_metadata`. Results themselves are never kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from weakincentives.prompt import ToolResult

MAX_METADATA: Final = 4_096
"""Bytes of `receipt_metadata` that are kept of one call."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of a successful call."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def render(self) -> str:
        return self.text


def answer_of(value: object, output_chars: int) -> ToolResult[Answer]:
    """The result of what a tool returned: a JSON value, or a pair of one and a mapping for the receipt."""
    result: Any = value
    metadata: Mapping[str, Any] = {}
    if isinstance(value, tuple):
        pair = cast("tuple[object, ...]", value)
        if len(pair) == 2 and isinstance(pair[1], Mapping):
            result, metadata = pair[0], kept_metadata(cast("Mapping[str, Any]", pair[1]))
    text = result if isinstance(result, str) else "" if result is None else _json(result)
    return ToolResult.ok(Answer(cut(text, output_chars), metadata))


def cut(text: str, most: int) -> str:
    """At most so many characters, and a note when there were more."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[Cut: the first {most} of {len(text)} characters are shown. Ask for less.]"


def kept_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of what may stand on a receipt; only a note of its size when it is too much."""
    data = _dump(dict(metadata), "receipt_metadata")
    if len(data) > MAX_METADATA:
        return {"omitted": f"{len(data)} bytes; at most {MAX_METADATA} are kept"}
    return cast("dict[str, Any]", orjson.loads(data))


def _json(value: Any) -> str:
    return _dump(value, "result").decode()


def _dump(value: object, what: str) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the {what} of a server tool must be JSON: {error}") from error
