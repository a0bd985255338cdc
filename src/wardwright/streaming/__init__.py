"""Streamed replies on their way to the client: `relay_for` passes one on as it is judged, `render` makes a stream of a whole reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from wardwright.errors import WireError
from wardwright.streaming.relay import NOTHING, Change, Relay
from wardwright.streaming.relay_anthropic import AnthropicRelay
from wardwright.streaming.relay_chat import ChatRelay
from wardwright.streaming.relay_responses import ResponsesRelay
from wardwright.streaming.translated import StreamTranslator
from wardwright.wire.body import Json, Object
from wardwright.wire.turn import WireName

_RELAYS: Final[Mapping[str, type[Relay]]] = {
    "anthropic": AnthropicRelay,
    "chat_completions": ChatRelay,
    "responses": ResponsesRelay,
}


def relay_for(
    wire: WireName,
    *,
    hold_text: bool,
    passing: Collection[str] = (),
    hold_hosted: bool = True,
    hold_thoughts: bool = True,
    head: Mapping[str, Json] = NOTHING,
    usage: bool = True,
) -> Relay:
    """A relay for one answer on the client's wire.

    `hold_text`: a rule must read the whole text first. `hold_hosted`: also what the provider's own tools did waits for the ruling, and
    all that follows it. `hold_thoughts`: on Responses, reasoning waits for what it led to, because a provider refuses reasoning
    that comes back without it; elsewhere it passes at once anyway. `head`: fields of the reply itself that the client reads instead of the provider's, as `model`. `usage`: the
    client asked for the usage, where the wire lets it choose (Chat Completions).
    """
    return _relay(wire)(
        hold_text=hold_text,
        passing=passing,
        hold_hosted=hold_hosted,
        hold_thoughts=hold_thoughts,
        head=head,
        usage=usage,
    )


def render(wire: WireName, body: Object, *, usage: bool = True) -> bytes:
    """A whole reply, which may pass, as a stream of the wire."""
    return _relay(wire).render(body, usage=usage)


def _relay(wire: WireName) -> type[Relay]:
    relay = _RELAYS.get(wire)
    if relay is None:
        raise WireError(f"the wire {wire!r} has no streamed replies")
    return relay


__all__ = ["Change", "Relay", "StreamTranslator", "relay_for", "render"]
