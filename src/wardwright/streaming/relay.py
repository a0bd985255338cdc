"""How a streamed reply reaches the client: words at once, calls when they are judged, the end when all is committed.

What is given out is never the provider's bytes: events are read, taken into the reply that policy judges, and written again. Calls,
the end and the usage are written from the reply as it was judged, so nothing can be in a held event that no rule has seen. Holds what
all wires share; numbers, ids and the shape of events belong to the relay of each wire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeAlias

from wardwright.errors import WireError
from wardwright.policy.rules import CallRuling
from wardwright.wire import edit
from wardwright.wire.body import Json, Object, write
from wardwright.wire.edits import summed
from wardwright.wire.refusal import Refusal
from wardwright.wire.sse import Event, ReplyAssembler
from wardwright.wire.turn import CallItem, Turn, WireName

Change: TypeAlias = Callable[[int, str], str]
"""Index of a text in `Turn.items`, and the text -> what the client reads instead."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
NOTHING: Final[Mapping[str, Json]] = {}


def written(name: str, value: Json) -> bytes:
    """One event as bytes; without a name where the wire has none."""
    if name:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), write(value))
    return b"data: %b\n\n" % write(value)


class Relay(ABC):
    """Passes one answer on to the client. Lives as long as that answer, which may take several upstream replies (rounds)."""

    __slots__ = ("_assembler", "_broken", "_first", "_given_now", "_head", "_heard", "_hold_hosted", "_hold_text", "_hold_thoughts", "_kept", "_out", "_over",
                 "_passing", "_size", "_tell_usage", "_usage", "_whole", "held_bytes", "released")  # fmt: skip

    wire: ClassVar[WireName]

    def __init__(
        self,
        *,
        hold_text: bool,
        passing: Collection[str] = (),
        hold_hosted: bool = True,
        hold_thoughts: bool = True,
        head: Mapping[str, Json] = NOTHING,
        usage: bool = True,
    ) -> None:
        self._hold_text = hold_text
        self._hold_hosted = hold_hosted
        self._hold_thoughts = hold_thoughts
        self._passing = passing
        self._head: Object = dict(head)
        """Fields of the reply itself that the gateway says instead of the provider (`model` …)."""
        self._out: list[bytes] = []
        self._kept: list[bytes] = []
        """What earlier rounds said that was held and may pass, but not before the whole answer may."""
        self._tell_usage = usage
        """Where the wire lets the caller choose: whether it asked for the usage."""
        self._usage: Json = None
        self._over = False
        self._broken = False
        """An event was refused, so nobody can say any more what the reply is."""
        self._first = True
        """No earlier upstream reply is part of the answer."""
        self._given_now = False
        """Something of the current upstream reply was passed on."""
        self._size = 0
        """Of the event that is looked at."""
        self.held_bytes = 0
        """Of events that came and were not passed on whole."""
        self.released = False
        """Something reached the client; comments do not count."""
        self._heard: list[tuple[Event, Object]] = []
        self._whole: tuple[Object, Turn] | None = None
        """The current upstream reply and what policy read of it, from the time it was whole until it is given out."""
        self._begin()
        self._assembler = self._listen()

    @property
    def complete(self) -> bool:
        """The current upstream reply said that it ended, and no error came."""
        return self._assembler.complete

    @property
    def errors(self) -> list[Object]:
        """What the provider reported as an error inside the current upstream reply. None of it was passed on."""
        return self._assembler.errors

    def body(self) -> dict[str, Any]:
        """The current upstream reply as it would have come in one piece; the caller's own to change."""
        body = copied(self._assembler.body())
        assert isinstance(body, dict)
        return body

    def turn(self) -> Turn:
        """What the policy reads of the current upstream reply."""
        if not self.complete:
            return self._assembler.turn()
        return self._read()[1]

    @classmethod
    def render(cls, body: Object, *, usage: bool = True) -> bytes:
        """A whole reply, judged elsewhere, as a stream."""
        relay = cls(hold_text=True, usage=usage)
        relay._usage = body.get("usage")
        relay._tell(body)
        return relay._given()

    def start(self) -> bytes:
        """What may go out before anything came: nothing, so that a refusal can still be an answer of its own."""
        return b""

    def keep_alive(self) -> bytes:
        """A comment, which no client shows."""
        return KEEP_ALIVE

    def feed(self, data: bytes) -> bytes:
        """Upstream bytes, cut anywhere -> what the client may get now."""
        self._going()
        try:
            self._assembler.feed(data)
        except WireError:
            self._broken = True
            raise
        finally:  # what came before the bad event passes however the bytes are cut
            self._take_in()
        return self._given()

    def close(self) -> bytes:
        """The upstream connection ended."""
        if not self._broken:
            try:
                self._assembler.close()
            except WireError:
                self._broken = True
                raise
            finally:
                self._take_in()
        return self._given()

    def restart(self) -> None:
        """Forgets the current upstream reply, of which nothing was passed on, whole or broken: another takes its place."""
        if self._over:
            raise WireError("the message has ended, so no other reply takes its place")
        if self._given_now:
            raise ValueError("the client has a part of this reply; it can be gone on with or refused, not replaced")
        self._broken = False
        if self._first:
            self._begin()
        self._again()
        self.held_bytes = sum(map(len, self._kept))
        self._assembler = self._listen()

    def next_round(self, change: Change | None = None) -> None:
        """The calls of the current upstream reply stay here; the next one continues the same message.

        `change`: of texts of the current reply, as in `release`.
        """
        body = self._judged((), change)
        self._usage = summed(self._usage, body.get("usage"))
        given, self._out = self._out, []
        self._go_on(body)
        self._again()
        self._first = self._given_now = False
        self._kept += self._out
        self._out = given
        if not self._hold_text:
            self._out += self._kept
            self._kept = []
        self.held_bytes = sum(map(len, self._kept))
        self._assembler = self._listen()

    def release(self, calls: Sequence[CallRuling], change: Change | None = None) -> bytes:
        """The end: what was held, of the calls those that may pass, and whatever ends the message.

        A call that nobody judged does not pass. `change` needs `hold_text`: what was given out cannot be changed.
        """
        body = self._judged(calls, change)
        self._over = True
        self._usage = summed(self._usage, body.get("usage"))
        self._out += self._kept
        self._kept = []
        self._finish(body)
        self.held_bytes = 0
        return self._given()

    def refuse(self, refusal: Refusal) -> bytes:
        """The end: nothing that was held passes, and the client's library raises. After the end it says nothing."""
        if self._over:
            return b""
        self._over = True
        self._kept = []
        self.held_bytes = 0
        self._out.append(self._refused(edit.of(self.wire).refusal(refusal)))
        return self._given()

    def _listen(self) -> ReplyAssembler:
        assembler = self._assemble()
        self._heard = assembler.heard = []
        self._whole = None
        return assembler

    def _read(self) -> tuple[Object, Turn]:
        """The current upstream reply, which is whole, and what policy reads of it."""
        if self._whole is None:
            said = self._assembler.body()
            self._whole = said, self._parsed(said)
        return self._whole

    def _going(self) -> None:
        if self._over or self._broken:
            raise WireError("the reply has ended or cannot be read, so nothing more of it is")

    def _take_in(self) -> None:
        heard = self._heard
        if not heard:
            return
        out, pass_on = self._out, self._pass
        before = len(out)
        for event, said in heard:
            self._size = len(event.data)
            if not pass_on(said):
                self.held_bytes += self._size
        heard.clear()
        if len(out) > before:
            self._given_now = True

    def _given(self) -> bytes:
        if not self._out:
            return b""
        self.released = True
        given = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return given

    def _judged(self, calls: Sequence[CallRuling], change: Change | None) -> Object:
        """What was held of the current reply, without the calls that may not pass."""
        if self._over or self._broken or not self.complete:
            raise WireError("the reply is not whole, so nothing more of it passes")
        if change is not None and not self._hold_text:
            raise ValueError("a text can be changed only where it is held; make the relay with hold_text")
        said, whole = self._read()
        self._whole = None  # what follows changes it
        body = self._held(said)
        held = whole if body is said else self._parsed(body)
        rulings = {ruling.item: ruling for ruling in calls}
        theirs = _calls(whole)
        ours = _calls(held)
        if len(ours) != len(theirs):
            raise WireError("a call was not held")
        if change is not None and len(held.items) < len(whole.items):
            # Where text is held none was passed, so no text stands on both sides of the cut: numbers differ by what was passed.
            change = _shifted(change, len(whole.items) - len(held.items))
        left: list[CallRuling] = []
        for item, before in zip(ours, theirs, strict=True):
            ruling = rulings.get(before)
            call = whole.items[before]
            name, call_id = (call.name, call.id) if isinstance(call, CallItem) else ("", "")
            if ruling is None:
                left.append(CallRuling(item, call_id, call_id, name, "deny_call"))
            else:
                left.append(ruling if ruling.item == item else replace(ruling, item=item))
        edit.of(self.wire).keep_calls(body, left, change=change)
        return body

    @abstractmethod
    def _begin(self) -> None:
        """Makes ready for the first upstream reply."""

    def _again(self) -> None:
        """Makes ready for the next upstream reply."""
        return

    @abstractmethod
    def _assemble(self) -> ReplyAssembler:
        """Puts the next upstream reply together."""

    @abstractmethod
    def _parsed(self, body: Object) -> Turn:
        """What the policy reads of a reply."""

    @abstractmethod
    def _pass(self, said: Object) -> bool:
        """Writes to `_out` what may pass of one event; says whether that was all of it."""

    @abstractmethod
    def _held(self, body: Object) -> Object:
        """Of the whole reply what was not passed on yet."""

    @abstractmethod
    def _go_on(self, body: Object) -> None:
        """Writes to `_out` what was held of a reply that another follows."""

    @abstractmethod
    def _finish(self, body: Object) -> None:
        """Writes to `_out` what was held of the last reply, and the end."""

    @abstractmethod
    def _tell(self, body: Object) -> None:
        """Writes to `_out` a whole reply, from its beginning to its end."""

    @abstractmethod
    def _refused(self, error: Object) -> bytes:
        """The event that says an error, and the end."""


def copied(value: Json) -> Json:
    """`value`, free to be changed."""
    if isinstance(value, dict):
        return {key: copied(one) if isinstance(one, (dict, list)) else one for key, one in value.items()}
    if isinstance(value, list):
        return [copied(one) if isinstance(one, (dict, list)) else one for one in value]
    return value


def _calls(turn: Turn) -> list[int]:
    return [index for index, item in enumerate(turn.items) if isinstance(item, CallItem)]


def _shifted(change: Change, first: int) -> Change:
    return lambda index, text: change(index + first, text)
