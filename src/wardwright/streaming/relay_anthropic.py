"""Anthropic Messages streams on their way to the client.

Blocks have an order that means something, so they pass as long as all before them passed: the first that must wait holds back those
behind it. The client's numbers have no gaps, over all rounds. Thinking passes untouched, with its signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wardwright.streaming.relay import Relay, copied, written
from wardwright.wire import anthropic
from wardwright.wire.body import Json, Object, dumped
from wardwright.wire.edits import objects
from wardwright.wire.turn import Turn

_THOUGHT: Final = frozenset({"thinking", "redacted_thinking"})
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
_DELTAS: Final[Mapping[str, str]] = {
    "citations_delta": "citation",
    "compaction_delta": "content",
    "input_json_delta": "partial_json",
    "signature_delta": "signature",
    "text_delta": "text",
    "thinking_delta": "thinking",
}
"""Of each delta the one field with the piece."""
_HOSTED: Final = frozenset({"server_tool_use", "mcp_tool_use"})
_BEGINS: Final = frozenset({"id", "type", "role", "model", "content", "usage"})
"""Of a message: what its beginning says, or what is said in a place of its own."""
_ENDS: Final = frozenset(
    {"stop_reason", "stop_sequence", "stop_details", "container", "context_management", "diagnostics"}
)
"""What its end may say. A field on neither list stays here, unless the operator lets it through: it may tell a call once more."""

# Type of a block -> fields that are told in pieces: (field, the delta's type, the delta's field).
_PIECES: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "text": (("text", "text_delta", "text"),),
    "thinking": (("thinking", "thinking_delta", "thinking"), ("signature", "signature_delta", "signature")),
    "compaction": (("content", "compaction_delta", "content"),),
}


class AnthropicRelay(Relay):
    """As `Relay`."""

    __slots__ = ("_further", "_next", "_numbers", "_start", "_started")

    wire = "anthropic"

    def _begin(self) -> None:
        self._start: Object = {}
        """The message as it begins; the first round's."""
        self._started = False
        self._next: int = 0
        self._numbers: dict[int, int] = {}
        """Blocks of the current reply that passed: the provider's number -> the client's. Always the first ones."""
        self._further: Object = {}
        """What the provider says beside the end of a message."""

    def _assemble(self) -> anthropic.StreamAssembler:
        return anthropic.StreamAssembler(passing=self._passing)

    def _parsed(self, body: Object) -> Turn:
        return anthropic.parse_reply(body, passing=self._passing)

    def _pass(self, said: Object) -> bool:
        kind = said["type"]
        if kind == "content_block_delta" or kind == "content_block_stop":
            number = self._numbers.get(_number(said))
            if number is None:
                return False
            event: Object = {"type": kind, "index": number}
            delta = said.get("delta")
            if isinstance(delta, dict):
                field = _DELTAS[str(delta["type"])]
                if delta.get(field) is None:  # a piece of nothing, at which clients stumble
                    return True
                event["delta"] = {"type": delta["type"], field: delta[field]}
            self._out.append(written(str(kind), event))
        elif kind == "content_block_start":
            return self._open(said)
        elif kind == "message_start":
            if not self._start:
                self._start = self._opened(said.get("message"))
        elif kind == "message_delta":
            self._further.update((key, value) for key, value in said.items() if self._ends(key))
            return False
        return True

    def _open(self, said: Object) -> bool:
        block = said.get("content_block")
        index = _number(said)
        if self._kept or index != len(self._numbers) or not isinstance(block, dict) or not self._may(block.get("type")):
            return False
        self._numbers[index] = self._next
        self._emit({"type": "content_block_start", "index": self._next, "content_block": self._clean(block)})
        self._next += 1
        return True

    def _may(self, kind: Json) -> bool:
        """Whether a block passes before the ruling."""
        if kind == "text":
            return not self._hold_text
        if kind in _THOUGHT:
            return True
        hosted = kind in _HOSTED or (isinstance(kind, str) and kind.endswith("_tool_result"))
        return hosted and not self._hold_hosted

    def _clean(self, block: Object) -> Object:
        """A block of words without the fields that no such block has."""
        known = _WORDS.get(str(block.get("type")))
        if known is None or known.issuperset(block):
            return block
        return {key: value for key, value in block.items() if key in known or key in self._passing}

    def _opened(self, message: Json) -> Object:
        start: Object = {"type": "message", "role": "assistant"}
        if isinstance(message, dict):
            start.update((key, message[key]) for key in message if key in _BEGINS or self._ends(key))
        return {**start, **self._head, "content": []}

    def _ends(self, key: str) -> bool:
        return key in _ENDS or key in self._passing

    def _emit(self, event: Object) -> None:
        if not self._started:
            self._started = True
            self._start = self._start or self._opened(None)
            self._out.append(written("message_start", {"type": "message_start", "message": self._start}))
        self._out.append(written(str(event["type"]), event))

    def _held(self, body: Object) -> Object:
        blocks = objects(body.get("content"))[len(self._numbers) :]
        return {**body, "content": copied(list(blocks))}

    def _go_on(self, body: Object) -> None:
        for block in objects(body.get("content")):
            self._block(block)

    def _again(self) -> None:
        self._numbers = {}
        self._further = {}

    def _finish(self, body: Object) -> None:
        for block in objects(body.get("content")):
            self._block(block)
        delta: Object = {"stop_reason": body.get("stop_reason"), "stop_sequence": body.get("stop_sequence")}
        for key, value in body.items():
            if self._ends(key) and value != self._start.get(key):
                delta[key] = value
        usage: Json = {"output_tokens": 0} if self._usage is None else self._usage
        self._emit({"type": "message_delta", "delta": delta, **self._further, "usage": usage})
        self._emit({"type": "message_stop"})

    def _block(self, block: Object) -> None:
        """A whole block, as the events that bring it."""
        index = self._next
        self._next += 1
        block = self._clean(block)
        begun = dict(block)
        deltas: list[Object] = []
        if block.get("type") == "text":
            cited: Json = begun.pop("citations", None)
            deltas.extend({"type": "citations_delta", "citation": citation} for citation in objects(cited))
        for field, kind, source in _PIECES.get(str(block.get("type")), ()):
            if isinstance(block.get(field), str):
                begun[field] = ""
                if block[field]:
                    deltas.append({"type": kind, source: block[field]})
        if str(block.get("type")).endswith("tool_use"):
            given = block.get("input")
            begun["input"] = {}
            # What is no JSON at all passes as the model wrote it; what says nothing says so.
            text = given if isinstance(given, str) else dumped({} if given is None else given, "input")
            deltas.append({"type": "input_json_delta", "partial_json": text})
        self._emit({"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            self._emit({"type": "content_block_delta", "index": index, "delta": delta})
        self._emit({"type": "content_block_stop", "index": index})

    def _tell(self, body: Object) -> None:
        self._tell_start(body)
        self._finish(body)

    def _tell_start(self, body: Object) -> None:
        self._start = self._opened({**body, "stop_reason": None, "stop_sequence": None})
        usage = body.get("usage")
        if isinstance(usage, dict):
            self._start["usage"] = {**usage, "output_tokens": 0}

    def _refused(self, error: Object) -> bytes:
        return written("error", error)


def _number(said: Object) -> int:
    index = said.get("index")
    return index if isinstance(index, int) else -1
