"""An upstream stream of one wire as a stream of another, for a provider that does not speak the client's.

Words pass as they come; all else is told once the reply is whole, as `translate.reply` says it. What was passed must be how the
translated reply begins, or the stream is refused. Nothing is judged here: the relay of the client's wire reads what comes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from wardwright.errors import WireError
from wardwright.streaming.relay import written
from wardwright.streaming.relay_anthropic import AnthropicRelay
from wardwright.streaming.relay_chat import ChatRelay
from wardwright.streaming.relay_responses import ResponsesRelay, begun, part_events
from wardwright.wire import anthropic, chat_completions, responses, translate
from wardwright.wire.body import Json, Object
from wardwright.wire.edits import objects
from wardwright.wire.sse import ReplyAssembler
from wardwright.wire.turn import WireName

_DIFFERENT: Final = "the translated reply does not begin with what was passed of it"
_THOUGHTS: Final = ("reasoning", "reasoning_content")


class StreamTranslator:
    """Translates one streamed reply. Lives as long as that reply."""

    __slots__ = ("_assembler", "_errors", "_heard", "_live", "_over", "_source", "_teller", "_to", "_words")

    def __init__(self, source: WireName, to: WireName, *, passing: Collection[str] = ()) -> None:
        if source not in _SOURCES or to not in _TELLERS:
            raise WireError(f"streams of the wire {source!r} are not translated to {to!r}")
        assemble, words = _SOURCES[source]
        self._source: WireName = source
        self._to: WireName = to
        self._assembler = assemble(passing=passing)
        self._heard = self._assembler.heard = []
        self._words = words()
        self._teller = _TELLERS[to](hold_text=True)
        self._live = False
        self._over = False
        self._errors = 0

    def feed(self, data: bytes) -> bytes:
        """Upstream bytes, cut anywhere -> bytes of the other wire."""
        self._assembler.feed(data)
        return self._told()

    def close(self) -> bytes:
        """The upstream connection ended. A reply that broke off has no end in the other wire either."""
        self._assembler.close()
        return self._told()

    def _told(self) -> bytes:
        for _, said in self._heard:
            piece = self._words.of(said)
            if piece:
                if not self._live:
                    self._live = True
                    self._teller.begin(self._translated(True))
                self._teller.word(piece)
        self._heard.clear()
        if not self._over and self._assembler.complete:
            self._over = True
            if self._live:
                self._teller.rest(self._translated(False), self._later())
            else:
                self._teller.whole(self._translated(False))
        out = self._teller.given()
        for error in self._assembler.errors[self._errors :]:
            self._errors += 1
            out += _failed(self._to, error)
        return out

    def _translated(self, partial: bool) -> Object:
        body: Object = self._assembler.body()
        if partial:  # how it will end is not known yet, and not told
            body = {**body, **_ENDED[self._source]}
            for choice in objects(body.get("choices")):
                choice["finish_reason"] = "stop"
        if self._live:
            _message(body).update(self._words.thoughts)
            if body.get("stop_reason") == "refusal":
                return self._refused(body)
        return translate.reply(body, self._source, self._to)

    def _refused(self, body: Object) -> Object:
        """A refusal that is known only at the end: its words were told as words and stay so, but it ends as a refusal."""
        told = translate.reply({**body, **_ENDED[self._source]}, self._source, self._to)
        ended = translate.reply(body, self._source, self._to)
        told.update((key, ended[key]) for key in ("status", "incomplete_details") if key in ended)
        for choice, end in zip(objects(told.get("choices")), objects(ended.get("choices")), strict=True):
            choice["finish_reason"] = end.get("finish_reason")
        return told

    def _later(self) -> Object:
        """A reply of the thoughts alone that came behind the first words."""
        later = self._words.later
        if not later:
            return {}
        message: Object = {"role": "assistant", "content": None, "reasoning_content": later}
        choice: Object = {"index": 0, "message": message, "finish_reason": "stop"}
        return translate.reply({**self._assembler.body(), "choices": [choice]}, self._source, self._to)


def _failed(wire: WireName, error: Object) -> bytes:
    """What the provider said of itself, where the relay looks for it."""
    if wire == "chat_completions":
        return written("", {"error": error})
    return written("error", {"type": "error", "error": error})


# Words, as each wire brings them. Only the first text passes at once, and only when all before it is whole.


class _Words(ABC):
    __slots__ = ("later", "thoughts")

    def __init__(self) -> None:
        self.thoughts: dict[str, Json] = {}
        """Where thoughts have no place among the words: those that came before the first of them, by field."""
        self.later = ""
        """And those that came behind it."""

    @abstractmethod
    def of(self, said: Object) -> str:
        """The words of one event that may pass at once."""


class _ChatWords(_Words):
    __slots__ = ("_spoken",)

    def __init__(self) -> None:
        super().__init__()
        self._spoken = False

    def of(self, said: Object) -> str:
        words = ""
        for choice in objects(said.get("choices")):
            delta = choice.get("delta")
            if choice.get("index", 0) != 0 or not isinstance(delta, dict):
                continue
            for name in _THOUGHTS:
                thought = delta.get(name)
                if isinstance(thought, str) and thought:
                    self._thought(name, thought)
            content = delta.get("content")
            if isinstance(content, str) and content:
                words += content
                self._spoken = True
        return words

    def _thought(self, name: str, piece: str) -> None:
        if not self._spoken:
            self.thoughts[name] = f"{self.thoughts.get(name, '')}{piece}"
        else:
            self.thoughts.setdefault(name, "")
            if name == next(iter(self.thoughts)):  # providers that use both fields say the same in both
                self.later += piece


class _NumberedWords(_Words):
    """Of wires whose texts are numbered: follows the first one."""

    __slots__ = ("_ended", "_follows")

    def __init__(self) -> None:
        super().__init__()
        self._ended = 0
        self._follows: int | None = None
        """Number of that text; -1 when it may not pass at once."""

    def _begins(self, index: Json, text: bool) -> None:
        if text and self._follows is None:
            self._follows = index if isinstance(index, int) and index == self._ended else -1


class _AnthropicWords(_NumberedWords):
    __slots__ = ()

    def of(self, said: Object) -> str:
        kind, index = said["type"], said.get("index")
        if kind == "content_block_delta":
            delta = said.get("delta")
            if index == self._follows and isinstance(delta, dict) and delta.get("type") == "text_delta":
                return str(delta.get("text") or "")
        elif kind == "content_block_start":
            block = said.get("content_block")
            if isinstance(block, dict):
                self._begins(index, block.get("type") == "text")
                if index == self._follows:
                    return str(block.get("text") or "")
        elif kind == "content_block_stop":
            self._ended += 1
        return ""


class _ResponsesWords(_NumberedWords):
    __slots__ = ()

    def of(self, said: Object) -> str:
        kind, index = said["type"], said.get("output_index")
        if kind == "response.output_text.delta":
            if index == self._follows and said.get("content_index", 0) == 0:
                return str(said.get("delta") or "")
        elif kind == "response.output_item.added":
            item = said.get("item")
            if isinstance(item, dict):
                # An item that begins with words already is told as a whole.
                self._begins(index if not item.get("content") else None, item.get("type") == "message")
        elif kind == "response.content_part.added":
            part = said.get("part")
            if index == self._follows and said.get("content_index", 0) == 0 and isinstance(part, dict):
                return str(part.get("text") or "")
        elif kind == "response.output_item.done":
            self._ended += 1
        return ""


# What comes out, as each wire tells it.


class _Teller(Protocol):
    def begin(self, body: Object) -> None:
        """Tells what stands before the first text of a reply, and that this text begins."""
        ...

    def word(self, text: str) -> None:
        """Tells a piece of that text."""
        ...

    def rest(self, body: Object, later: Object) -> None:
        """Tells the rest of the reply, and its end. `later`: a reply of thoughts that came behind the first words."""
        ...

    def whole(self, body: Object) -> None:
        """Tells a reply of which nothing was told."""
        ...

    def given(self) -> bytes:
        """What was told since it was last asked."""
        ...


def _behind(text: Json, sent: list[str]) -> str:
    """What is left of a text."""
    passed = "".join(sent)
    if not isinstance(text, str) or not text.startswith(passed):
        raise WireError(_DIFFERENT)
    return text[len(passed) :]


class _ChatTeller(ChatRelay):
    __slots__ = ("_sent", "_thoughts")

    def begin(self, body: Object) -> None:
        self._sent: list[str] = []
        self._learn(body)
        message = _message(body)
        self._thoughts: Object = {name: message[name] for name in _THOUGHTS if message.get(name)}
        if self._thoughts:
            self._chunk(0, dict(self._thoughts))

    def word(self, text: str) -> None:
        self._sent.append(text)
        self._chunk(0, {"content": text})

    def rest(self, body: Object, later: Object) -> None:
        if later:  # thoughts are a field of their own here, and so never behind the words
            raise WireError(_DIFFERENT)
        message = _message(body)
        message["content"] = _behind(message.get("content"), self._sent)
        for name, told in self._thoughts.items():
            message[name] = _behind(message.get(name), [str(told)])
        self.whole(body)

    def whole(self, body: Object) -> None:
        self._usage = body.get("usage")
        self._tell(body)

    def given(self) -> bytes:
        return self._given()


def _message(body: Object) -> Object:
    for choice in objects(body.get("choices")):
        message = choice.get("message")
        if isinstance(message, dict):
            return message
    return {}


class _AnthropicTeller(AnthropicRelay):
    __slots__ = ("_lead", "_sent")

    def begin(self, body: Object) -> None:
        self._sent: list[str] = []
        self._lead = _before(objects(body.get("content")), "text")
        self._tell_start(body)
        for block in self._lead:
            self._block(block)
        first: Object = {"type": "text", "text": ""}
        self._emit({"type": "content_block_start", "index": self._next, "content_block": first})

    def word(self, text: str) -> None:
        self._sent.append(text)
        self._piece({"type": "text_delta", "text": text})

    def _piece(self, delta: Object) -> None:
        self._emit({"type": "content_block_delta", "index": self._next, "delta": delta})

    def rest(self, body: Object, later: Object) -> None:
        text, behind = _split(objects(body.get("content")), self._lead, "text")
        left = _behind(text.get("text"), self._sent)
        if left:
            self._piece({"type": "text_delta", "text": left})
        for citation in objects(text.get("citations")):
            self._piece({"type": "citations_delta", "citation": citation})
        self._emit({"type": "content_block_stop", "index": self._next})
        self._next += 1
        self._usage = body.get("usage")
        thoughts = [block for block in objects(later.get("content")) if block.get("type") != "text"]
        self._finish({**body, "content": [*thoughts, *behind]})

    def whole(self, body: Object) -> None:
        self._usage = body.get("usage")
        self._tell(body)

    def given(self) -> bytes:
        return self._given()


class _ResponsesTeller(ResponsesRelay):
    __slots__ = ("_item_id", "_lead", "_sent")

    def begin(self, body: Object) -> None:
        self._sent: list[str] = []
        output = objects(body.get("output"))
        self._lead = _before(output, "message")
        self._learn(body)
        self._opening = begun(body)
        for item in self._lead:
            named: Object = {**item, "id": self._name(item)}
            self._item(named)
            self._output.append(named)
        text: Object = {"type": "message", "role": "assistant"}
        if len(output) > len(self._lead):
            text = output[len(self._lead)]
        self._item_id = self._name(text)
        first: Object = {**text, "id": self._item_id, "status": "in_progress", "content": []}
        self._emit({"type": "response.output_item.added", "output_index": len(self._output), "item": first})
        part: Object = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._emit({"type": "response.content_part.added", **self._at(), "part": part})

    def _at(self) -> Object:
        return {"item_id": self._item_id, "output_index": len(self._output), "content_index": 0}

    def word(self, text: str) -> None:
        self._sent.append(text)
        self._emit({"type": "response.output_text.delta", **self._at(), "delta": text, "logprobs": []})

    def rest(self, body: Object, later: Object) -> None:
        item, behind = _split(objects(body.get("output")), self._lead, "message")
        item["id"] = self._item_id
        parts = objects(item.get("content"))
        first = parts[0] if parts else {}
        left = _behind(first.get("text"), self._sent)
        if left:
            self.word(left)
        # The part was begun and its words are told; its notes and its end are not.
        for event in part_events(self._at(), first)[2:]:
            self._emit(event)
        for place, part in enumerate(parts[1:], 1):
            for event in part_events({**self._at(), "content_index": place}, part):
                self._emit(event)
        self._emit({"type": "response.output_item.done", "output_index": len(self._output), "item": item})
        self._output.append(item)
        thoughts = [item for item in objects(later.get("output")) if item.get("type") != "message"]
        self.whole({**body, "output": [*thoughts, *behind]})

    def whole(self, body: Object) -> None:
        self._usage = body.get("usage")
        self._tell(body)

    def given(self) -> bytes:
        return self._given()


def _before(units: list[Object], kind: str) -> list[Object]:
    """The blocks or items before the first text."""
    for index, unit in enumerate(units):
        if unit.get("type") == kind:
            return units[:index]
    return units


def _split(units: list[Object], lead: list[Object], kind: str) -> tuple[Object, list[Json]]:
    """The first text, and what stands behind it; what stands before it was told and must be the same still."""
    before = _before(units, kind)
    if len(before) == len(units) or [_plain(unit) for unit in before] != [_plain(unit) for unit in lead]:
        raise WireError(_DIFFERENT)
    return dict(units[len(before)]), list(units[len(before) + 1 :])


def _plain(unit: Object) -> Object:
    """Without ids that are made anew."""
    return {key: value for key, value in unit.items() if key != "id"}


class _Assemble(Protocol):
    def __call__(self, *, passing: Collection[str]) -> ReplyAssembler: ...


class _MakeWords(Protocol):
    def __call__(self) -> _Words: ...


class _MakeTeller(Protocol):
    def __call__(self, *, hold_text: bool) -> _Teller: ...


_SOURCES: Final[Mapping[str, tuple[_Assemble, _MakeWords]]] = {
    "anthropic": (anthropic.StreamAssembler, _AnthropicWords),
    "chat_completions": (chat_completions.StreamAssembler, _ChatWords),
    "responses": (responses.StreamAssembler, _ResponsesWords),
}
_TELLERS: Final[Mapping[str, _MakeTeller]] = {
    "anthropic": _AnthropicTeller,
    "chat_completions": _ChatTeller,
    "responses": _ResponsesTeller,
}
_ENDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "anthropic": {"stop_reason": "end_turn"},
    "chat_completions": {},
    "responses": {"status": "completed"},
}
