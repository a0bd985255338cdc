"""The edits of each wire that carries a whole conversation, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wardwright.errors import WireError
from wardwright.wire import edit_anthropic, edit_chat, edit_responses
from wardwright.wire.edits import Change, Edits, JudgedCall, Splice, SplicedCall, ToolAnswer, ToolSpec
from wardwright.wire.turn import WireName

_EDITS: Final[Mapping[str, Edits]] = {
    "anthropic": edit_anthropic,
    "chat_completions": edit_chat,
    "responses": edit_responses,
}


def of(wire: WireName) -> Edits:
    """The edits of this wire."""
    edits = _EDITS.get(wire)
    if edits is None:
        raise WireError(f"bodies of the wire {wire!r} are not edited")
    return edits


__all__ = ["Change", "Edits", "JudgedCall", "Splice", "SplicedCall", "ToolAnswer", "ToolSpec", "of"]
