"""Server-sent events from bytes cut anywhere, by the rules of the HTML standard.

A line ends with CR, LF or CRLF; an event ends with an empty line; comments keep a connection alive and mean nothing. The one
difference: `close` gives up the event that a stream ended in, because lenient clients read it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from wardwright.errors import WireError
from wardwright.wire.body import MAX_BYTES, Json, Object, is_json, text_of
from wardwright.wire.turn import Turn

DONE: Final = b"[DONE]"
"""The last event of OpenAI's streams; no JSON."""
_BOM: Final = b"\xef\xbb\xbf"
# CAUTION: numbers, because to look for b"\r" in bytes costs ten times as much.
_CR: Final = 13
_LF: Final = 10


class Event(NamedTuple):
    """One event. `name` is empty when the stream did not say."""

    name: str
    data: bytes


_made = cast("Callable[[type[Event], tuple[str, bytes]], Event]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""Makes an event without a Python call: a stream has many."""


class Assembler(ABC):
    """What the assemblers of all wires share: takes bytes, hands every event that says something to `_take`. Lives one stream."""

    __slots__ = ("_reader", "errors")

    def __init__(self) -> None:
        self._reader = EventReader()
        self.errors: list[Object] = []
        """What the provider reported as an error inside the stream."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes, cut anywhere."""
        for event in self._reader.feed(data):
            if event.data.strip():
                self._take(event)

    def close(self) -> None:
        """The connection ended."""
        for event in self._reader.close():
            # What was cut short is no event: the stream is incomplete, not wrong.
            if event.data.strip() == DONE or is_json(event.data):
                self._take(event)

    @abstractmethod
    def _take(self, event: Event) -> None:
        """What one event adds; each wire has its own."""

    def _kind(self, event: Event, said: Object) -> str:
        """The type inside an event, else its name. Clients go by either, so they must not contradict each other."""
        inside = said.get("type")
        if inside and isinstance(inside, str) and inside == event.name:
            return inside
        inside = text_of(said, "type", "")
        if inside and event.name and event.name not in (inside, "message"):
            raise WireError(f"an event named {event.name!r} says that it is {inside!r}")
        if not inside:
            said["type"] = inside = event.name
        return inside

    def _failed(self, error: Json, event: Object) -> None:
        self.errors.append(error if isinstance(error, dict) else event)


class ReplyAssembler(Assembler):
    """Puts one streamed reply together again. Lives one reply."""

    __slots__ = ("heard",)

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Event, Object]] | None = None
        """Set to a list, it is given every event that became part of the reply, with what it says: nobody need read it twice."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """The stream said that it ended, and no error came."""

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The reply as it would have come in one piece, as far as it came."""

    @abstractmethod
    def turn(self) -> Turn:
        """What the policy reads of that reply."""

    def _hear(self, event: Event, said: Object) -> None:
        if self.heard is not None:
            self.heard.append((event, said))


class EventReader:
    """Collects bytes and hands out whole events. Lives as long as one stream."""

    __slots__ = ("_after_cr", "_between", "_data", "_first", "_name", "_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Pieces of the line that has not ended yet; joined once, so that a long line costs no more byte by byte."""
        self._data: list[bytes] = []
        self._name = ""
        self._first = True
        self._after_cr = False
        self._between = False
        """All that came so far were whole events."""
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that end in `data`."""
        if not data:
            return []
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise WireError(f"the stream has more than {MAX_BYTES} bytes; no more are read")
        if self._between and data[-2:] == b"\n\n" and _CR not in data:
            return self._whole(data)
        after_cr = self._after_cr
        self._after_cr = data.endswith(b"\r")
        if after_cr and data.startswith(b"\n"):
            data = data[1:]
        if _CR in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if _LF not in data:
            self._rest.append(data)
            self._between = False
            return []
        lines = data.split(b"\n")
        if self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        last = lines.pop()
        if last:
            self._rest.append(last)
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        self._between = not (self._rest or self._data or self._name or self._after_cr)
        return events

    def _whole(self, data: bytes) -> list[Event]:
        """The events in bytes that hold whole ones alone, as they usually come: one line of data, perhaps one before it with a name."""
        events: list[Event] = []
        for lines in data[:-2].split(b"\n\n"):
            name, _, line = lines.rpartition(b"\n")
            told = line[:6] == b"data: "
            if told and not name:
                events.append(_made(Event, ("", line[6:])))
            elif told and name[:7] == b"event: " and _LF not in name:
                events.append(_made(Event, (name[7:].decode("utf-8", "replace"), line[6:])))
            else:
                for one in (*lines.split(b"\n"), b""):
                    self._line(one, events)
        return events

    def close(self) -> list[Event]:
        """The event the stream ended in, if any."""
        events: list[Event] = []
        if self._rest:
            line = b"".join(self._rest)
            self._rest = []
            self._line(line, events)
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(Event(self._name, b"\n".join(self._data)))
                self._data = []
            self._name = ""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        # `id`, `retry`, comments (an empty field name) and unknown fields carry nothing that a client acts on.
