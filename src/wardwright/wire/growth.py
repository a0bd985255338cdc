"""Of a conversation that goes on, only what is new is read.

An agent sends its whole transcript with every request: the bytes of the one before, with some more where the list of messages ended.
Where that is so, the messages before are what they were, and only the new ones are parsed, lowered and written for the provider: a
request costs what it adds, not what it repeats. Whatever is not exactly so is read as a whole. Chat Completions only: the other wires'
messages cannot be read one by one.

Invariants (tests cite the numbers):
 W1. What is given is what reading the whole body gives: the same fields, the same items, the same refusal.
 W2. All bytes are compared, and only with those that the same caller sent under the same name.
 W3. What is remembered is bounded; who was not heard of for longest is forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import orjson

from wardwright.errors import WireError
from wardwright.wire import chat_completions, edits
from wardwright.wire.body import MAX_BYTES, Json, Object, read, write
from wardwright.wire.turn import CallItem, Item, Repeated, ResultItem, Turn, again

_TRANSCRIPT: Final = "messages"
_BLANK: Final = b" \t\r\n"
_COMMA: Final = ord(",")
_END: Final = 64
"""Bytes at the end of a body in which its messages mostly end."""
ROOM: Final = 40 * 1024 * 1024
"""Bytes of bodies that are remembered, over all conversations; about twice as much is kept of what was made of them."""
APIECE: Final = 4096
"""What each of them is counted as beside its length …"""
PARSED: Final = 4
"""… and how often every byte that stands beside the messages is counted again: of those all is kept as it was parsed."""


class Given:
    """The body of one request."""

    __slots__ = ("_body", "_heads", "beside", "head", "ids", "raw", "said")

    def __init__(
        self,
        raw: bytes,
        head: Object,
        ids: list[str],
        body: Object | None,
        said: tuple[bytes, ...] | None,
        heads: dict[str, bytes],
    ) -> None:
        self.raw = raw
        self.ids = ids
        """Of the calls and results it shows."""
        self.head = head
        """Its fields but for the transcript. Shared with the requests that go on from here, so nobody changes it, nor what is in it."""
        self.beside = 0
        """How many bytes they are, or a few more. Only of what is remembered."""
        self._body = body
        self.said = said
        """The messages, written anew, without the brackets around them: what each request added, so that nothing is copied twice."""
        self._heads = heads
        """The fields beside them, written anew, by the model that is asked."""

    @classmethod
    def whole(cls, raw: bytes, body: Object, items: Sequence[Item]) -> Given:
        """One that nobody goes on from. Whoever asks for `own` changes this very body, and what is in its head with it."""
        return cls(raw, _beside(body), _ids(items), body, None, {})

    @classmethod
    def first(cls, raw: bytes, body: Object, items: Sequence[Item]) -> Given | None:
        """One that others may go on from; None: it cannot be written, so it will be refused."""
        try:
            said = write(body[_TRANSCRIPT])[1:-1]
        except WireError:
            return None
        # WHY NOT `body` for the asker of `own`: what it changes in it would stand in the head that later requests share.
        given = cls(raw, _beside(body), _ids(items), None, (said,), {})
        given.beside = max(0, len(raw) - len(said))
        return given

    def own(self) -> Object:
        """All of it, for the asker to change."""
        body, self._body = self._body, None
        return read(self.raw) if body is None else body

    def written(self, model: str) -> bytes:
        """What a provider of Chat Completions is sent when nothing but the model is another one."""
        head = self._heads.get(model)
        if head is None:
            fields = dict(self.head)
            edits.forget(fields)
            edits.set_model(fields, model)
            head = self._heads[model] = write(fields)[:-1]
        said = self.said
        if said is None:
            said = self.said = (write(self.own()[_TRANSCRIPT])[1:-1],)
        return b"".join([head, b',"messages":[', *said, b"]}"])

    def grown(self, raw: bytes, added: list[Json], items: Sequence[Item]) -> Given:
        """The request that adds these messages to this one, and these items with them."""
        assert self.said is not None  # it is one that others may go on from
        said = (*self.said, b",", write(added)[1:-1])
        given = Given(raw, self.head, self.ids + _ids(items), None, said, self._heads)
        given.beside = self.beside
        return given


class Transcripts:
    """The last request of each conversation, within bounds. Belongs to one event loop."""

    __slots__ = ("_known", "_room")

    def __init__(self, room: int = ROOM) -> None:
        self._known: dict[Hashable, _Last] = {}
        self._room = room

    def read(self, name: Hashable, raw: bytes) -> tuple[Given, Turn]:
        """A request's body and turn. `name` is that of its caller and conversation; WireError as `chat_completions` raises it."""
        known = self._known
        last = known.pop(name, None)
        if last is not None:
            self._room += last.weight
        if last is None or not last.grows(raw):
            body = read(raw)
            turn = chat_completions.parse_request(body)
            given = Given.first(raw, body, turn.items)
            if given is None:
                return Given.whole(raw, body, turn.items), turn
            turn.repeated = Repeated()
            last = _Last(given, turn)
        known[name] = last
        self._room -= last.weight
        while self._room < 0:
            self._room += known.pop(next(iter(known))).weight
        return last.given, again(last.first, last.items)


class _Last:
    """The last request of a conversation, which another may go on from."""

    __slots__ = ("_opening", "_rest", "first", "given", "items", "weight")

    def __init__(self, given: Given, first: Turn) -> None:
        self.given = given
        self.weight = len(given.raw) + PARSED * given.beside + APIECE
        self.first = first
        """That of the request that was read as a whole: all but the items is the same. No exchange has it, for they write into theirs."""
        self.items = first.items
        self._opening: bytes | memoryview = b""
        self._rest = b""
        """The body up to the end of its last message, and from there on; empty until another request has shown where that is."""

    def grows(self, raw: bytes) -> bool:
        """Becomes the request that goes on from here. False, and all is as it was: this one does not, or nobody can say so cheaply."""
        before = self.given
        longer = len(raw) - len(before.raw)
        if longer <= 0 or len(raw) > MAX_BYTES or not (self._opening or self._part(raw)):
            return False
        opening, rest = self._opening, self._rest
        if not raw.startswith(opening) or not raw.endswith(rest):
            return False
        start = len(opening)
        end = start + longer
        if raw[start] != _COMMA:
            start = end - len(raw[start:end].lstrip(_BLANK))
            if raw[start] != _COMMA:
                return False
        items: list[Item] = []
        try:
            messages: list[Json] = orjson.loads(b"[" + raw[start + 1 : end] + b"]")
            if not messages:
                return False  # a comma with nothing behind it
            chat_completions.add_messages(messages, items)
            self.given = before.grown(raw, messages, items)
        except (orjson.JSONDecodeError, WireError):
            return False  # told as it stands in the whole body
        self.items = [*self.items, *items]
        self.weight += longer
        self._opening = memoryview(raw)[:end]  # no copy of what may be long
        return True

    def _part(self, raw: bytes) -> bool:
        """Finds where the messages of this request end: where the next one goes on otherwise."""
        given = self.given
        before = given.raw
        end = _alike(before, raw)
        opening, rest = memoryview(before)[:end], before[end:]  # no copy of what may be long
        if not rest.lstrip(_BLANK).startswith(b"]") or not raw[end:].lstrip(_BLANK).startswith(b","):
            return False  # no list goes on here, so there is nothing to prove
        try:
            # CAUTION: this is the proof. If a value put here becomes the last message and changes nothing else, a reader stands
            # behind a message here, and behind that value again, so whatever is put here does the same. Inside a string, in another
            # list or in a field that stands twice it would not.
            body: Object = orjson.loads(b"".join((opening, b",null", rest)))
            messages = body.get(_TRANSCRIPT)
            if not isinstance(messages, list) or not messages or messages.pop() is not None:
                return False
            # Different messages are never written alike.
            if _beside(body) != given.head or (write(messages)[1:-1],) != given.said:
                return False
        except (orjson.JSONDecodeError, RecursionError, WireError):
            return False  # more levels can be read than compared, or written
        self._opening, self._rest = opening, rest
        return True


def _beside(body: Object) -> Object:
    return {name: body[name] for name in body if name != _TRANSCRIPT}


def _ids(items: Sequence[Item]) -> list[str]:
    found: list[str] = []
    for item in items:
        if type(item) is CallItem:
            found.append(item.id)
        elif type(item) is ResultItem:
            found.append(item.call_id)
    return found


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    if other.startswith(memoryview(one)[: max(0, high - _END)]):  # as mostly
        low = max(0, high - _END)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


__all__ = ["APIECE", "PARSED", "Given", "Transcripts"]
