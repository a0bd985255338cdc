"""Long outputs: the model reads the beginning, the rest waits in the session to be read by handle.

Decides how an output is cut, and the built-in tool that reads on. A prompt has that tool when one of its tools has an
`output_limit`; see `prompt.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Final

from ..errors import ToolValidationError
from ..frozen import frozen
from ..session import Session, keyed_slice
from .tool import Tool
from .tool_context import ToolContext
from .tool_result import ToolResult

READ_ARTIFACT: Final = "read_artifact"
_PAGE: Final = 4_000
_LONGEST_PAGE: Final = 20_000
_NAMED: Final = 20


@keyed_slice(lambda artifact: artifact.handle)
@frozen
class Artifact:
    """The whole output of one call. Rolled back with it."""

    handle: str
    text: str


def spill(session: Session, call_id: str, text: str, limit: int) -> str:
    """Keep the whole text under a handle and give back what fits, with word of how to read on."""
    session[Artifact].append(Artifact(call_id, text))
    return (
        f"{text[:limit]}\n\n[output cut: {limit} of {len(text)} characters shown. "
        f'Read on with {READ_ARTIFACT}(handle="{call_id}", offset={limit})]'
    )


class _Within:
    """Bounds, as serde reads them. WHY NOT annotated_types: nothing else here would load it before the first parse."""

    __slots__ = ("ge", "le")

    def __init__(self, ge: int, le: int | None = None) -> None:
        self.ge = ge
        self.le = le


@frozen
class ReadArtifact:
    """Which part of a long output to read."""

    handle: str
    """The handle that stands where the output was cut."""
    offset: Annotated[int, _Within(0)] = 0
    """How many characters to skip."""
    limit: Annotated[int, _Within(1, _LONGEST_PAGE)] = _PAGE
    """How many characters to read at most."""


def _read(params: ReadArtifact, *, context: ToolContext) -> ToolResult[str]:
    artifact = context.session[Artifact].get(params.handle)
    if artifact is None:
        raise ToolValidationError(f"Unknown artifact '{params.handle}'. {_known(context.session, params.handle)}")
    size = len(artifact.text)
    end = min(params.offset + params.limit, size)
    if params.offset >= end:
        raise ToolValidationError(
            f"Offset {params.offset} is beyond the end: artifact '{params.handle}' has {size} characters. "
            f"Retry with an offset below {size}."
        )
    more = f'Read on with {READ_ARTIFACT}(handle="{params.handle}", offset={end})' if end < size else "This is the end"
    return ToolResult.ok(
        f"{artifact.text[params.offset : end]}\n\n[characters {params.offset} to {end} of {size}. {more}]"
    )


def _known(session: Session, wanted: str) -> str:
    import difflib

    handles = [artifact.handle for artifact in session[Artifact]]
    if not handles:
        return "No output was cut so far; do not retry."
    near = difflib.get_close_matches(wanted, handles, n=_NAMED, cutoff=0.0)
    more = f" and {len(handles) - len(near)} more" if len(handles) > len(near) else ""
    return f"Artifacts: {', '.join(near)}{more}. Retry with one of these."


@cache
def read_artifact_tool() -> Tool[ReadArtifact, str]:
    """The tool that reads on, the same for every prompt. WHY NOT a constant: checking its types loads pydantic."""
    return Tool[ReadArtifact, str](
        name=READ_ARTIFACT,
        description="Read on in an output that was cut because it was too long.",
        handler=_read,
        accepts_overrides=False,
        effects="none",
    )
