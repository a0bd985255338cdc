"""Chat Completions streams on their way to the client.

Words and calls stand in different fields of a chunk, so words always pass, whatever is held. Only fields that are known pass, and those
the operator lets through: a chunk may say the same call in several places. One id, one role and one end per choice, over all rounds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from wardwright.streaming.relay import Relay, written
from wardwright.wire import chat_completions
from wardwright.wire.body import Json, Object, write
from wardwright.wire.edits import objects
from wardwright.wire.turn import Turn

_HEAD: Final = ("id", "created", "model", "system_fingerprint", "service_tier")
_TEXT: Final = ("content", "refusal", "annotations", "audio")
_THOUGHT: Final = ("reasoning", "reasoning_content", "reasoning_details")
_NEVER: Final = frozenset({"role", "tool_calls", "function_call"})
_END: Final = b"data: [DONE]\n\n"


class ChatRelay(Relay):
    """As `Relay`."""

    __slots__ = ("_apart", "_before", "_begun", "_lead", "_named", "_now", "_opening")

    wire = "chat_completions"

    def _begin(self) -> None:
        self._now = frozenset((*_THOUGHT, *_TEXT, *self._passing)) - _NEVER
        if self._hold_text:
            self._now -= frozenset(_TEXT)
        """Fields of a delta that pass at once."""
        self._begun: set[int] = set()
        """Choices the client has heard of."""
        self._before: dict[int, int] = {}
        """Characters that earlier rounds said, by choice."""
        self._named = False
        self._apart = True
        """The usage comes in a chunk of its own."""
        self._lead: Object = {**self._head, "object": "chat.completion.chunk"}
        """What every chunk begins with …"""
        self._opening = b""
        """… and how that is written."""

    def _assemble(self) -> chat_completions.StreamAssembler:
        return chat_completions.StreamAssembler(passing=self._passing)

    def _parsed(self, body: Object) -> Turn:
        return chat_completions.parse_reply(body, passing=self._passing)

    def _pass(self, said: Object) -> bool:
        if not self._named:
            self._learn(said)
        whole = True
        choices = said.get("choices")
        if said.get("usage") is not None:
            self._apart = not choices
        if not isinstance(choices, list):
            return whole
        if len(choices) == 1 and self._named and "obfuscation" not in said and self._words(choices[0]):
            return whole
        passed: list[Json] = []
        now = self._now
        for position, choice in enumerate(choices):
            if not isinstance(choice, dict):
                continue
            if choice.get("finish_reason") is not None:
                whole = False
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                continue
            words: Object = {}
            only_words = True
            for name, value in delta.items():
                if not value:  # null and an empty text say nothing
                    continue
                if name in now:
                    words[name] = value
                elif name != "role":
                    only_words = whole = False
            if words:
                index = choice.get("index", position)
                # Probabilities of a call's tokens would tell the call.
                probable = choice.get("logprobs") if only_words and ("content" in words or "refusal" in words) else None
                passed.append(self._choice(index if isinstance(index, int) else position, words, probable))
        if passed:
            chunk: Object = {**self._lead, "choices": passed}
            if "obfuscation" in said:
                chunk["obfuscation"] = said["obfuscation"]
            self._out.append(b"data: %b\n\n" % write(chunk))
        return whole

    def _words(self, choice: Json) -> bool:
        """Passes a chunk on that only adds a word to a choice the client has heard of, as nearly every chunk does. False: it is
        another one."""
        if (
            not isinstance(choice, dict)
            or choice.get("finish_reason") is not None
            or choice.get("logprobs") is not None
        ):
            return False
        delta, index = choice.get("delta"), choice.get("index")
        if not isinstance(delta, dict) or len(delta) != 1 or index not in self._begun:
            return False
        word = delta.get("content")
        if not word or not isinstance(word, str) or "content" not in self._now:
            return False
        self._out.append(
            b'%b,"choices":[{"index":%d,"delta":%b,"finish_reason":null}]}\n\n' % (self._opening, index, write(delta))
        )
        return True

    def _choice(self, index: int, words: Object, probable: Json = None) -> Object:
        before = self._before.get(index)
        if before and "annotations" in words:
            words["annotations"] = [_moved(note, before) for note in objects(words["annotations"])]
        if index not in self._begun:
            self._begun.add(index)
            words = {"role": "assistant", **words}
        choice: Object = {"index": index, "delta": words, "finish_reason": None}
        if probable is not None:
            choice["logprobs"] = probable
        return choice

    def _learn(self, said: Object) -> None:
        """Who speaks, from the first event that says so. Some providers begin with an event that leaves it empty."""
        for key in _HEAD:
            value = said.get(key)
            if value is not None and not self._lead.get(key):
                self._lead[key] = value
        self._named = bool(self._lead.get("id"))
        self._opening = b"data: %b" % write(self._lead)[:-1]

    def _chunk(self, index: int, words: Object, probable: Json = None) -> None:
        self._out.append(written("", {**self._lead, "choices": [self._choice(index, words, probable)]}))

    def _text(self, choice: Object) -> None:
        """What was held of a choice, but for its calls."""
        words = _fields(choice, _TEXT)
        if words:
            self._chunk(_index(choice), words, choice.get("logprobs"))

    def _held(self, body: Object) -> Object:
        return body

    def _go_on(self, body: Object) -> None:
        for choice in objects(body.get("choices")):
            if self._hold_text:
                self._text(choice)
            words = _message(choice).get("content")
            if isinstance(words, str):
                self._before[_index(choice)] = self._before.get(_index(choice), 0) + len(words)

    def _finish(self, body: Object) -> None:
        ends: list[Object] = []
        for choice in objects(body.get("choices")):
            index = _index(choice)
            if self._hold_text:
                self._text(choice)
            message = _message(choice)
            for number, call in enumerate(objects(message.get("tool_calls"))):
                self._chunk(index, {"tool_calls": [{**call, "index": number}]})
            if message.get("function_call") is not None:
                self._chunk(index, {"function_call": message["function_call"]})
            if index not in self._begun:
                self._chunk(index, {"content": ""})
            end: Object = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
            ends.append({**self._lead, "choices": [end]})
        if self._tell_usage and self._usage is not None:
            if self._apart:
                ends.append({**self._lead, "choices": [], "usage": self._usage})
            elif ends:
                ends[-1]["usage"] = self._usage
        self._out += [written("", end) for end in ends]
        self._out.append(_END)

    def _tell(self, body: Object) -> None:
        self._learn(body)
        for choice in objects(body.get("choices")):
            thoughts = _fields(choice, _THOUGHT)
            if thoughts:
                self._chunk(_index(choice), thoughts)
        self._finish(body)

    def _refused(self, error: Object) -> bytes:
        # WHY NOT the usual last event behind it: a client that overlooks the error must not take the answer for a whole one.
        return written("", error)


def _index(choice: Object) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _message(choice: Object) -> Object:
    message = choice.get("message")
    return message if isinstance(message, dict) else {}


def _fields(choice: Object, names: Collection[str]) -> Object:
    message = _message(choice)
    return {name: message[name] for name in names if message.get(name)}


def _moved(note: Object, by: int) -> Object:
    """A note on a text that began in an earlier round."""
    cited = note.get("url_citation")
    if not isinstance(cited, dict):
        return note
    places = {key: place + by for key in ("start_index", "end_index") if isinstance(place := cited.get(key), int)}
    return {**note, "url_citation": {**cited, **places}}
