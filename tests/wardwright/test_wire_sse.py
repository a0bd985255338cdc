"""Claims about server-sent events: what the standard says, and what a cut stream leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.errors import WireError
from wardwright.wire import sse
from wardwright.wire.sse import Event, EventReader


def events(*parts: bytes) -> list[Event]:
    reader = EventReader()
    return [event for part in parts for event in reader.feed(part)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_three_line_ends_mean_the_same(end: bytes) -> None:
    """CR, LF and CRLF all end a line, and an empty line ends an event."""
    assert events(end.join((b"event: a", b"data: 1", b"", b"data: 2", b"", b""))) == [Event("a", b"1"), Event("", b"2")]


def test_data_lines_are_joined_by_line_breaks() -> None:
    """An event of several data lines has them all."""
    assert events(b"data: {\ndata\ndata:  1}\n\n") == [Event("", b"{\n\n 1}")]


def test_comments_and_other_fields_mean_nothing() -> None:
    """Keep-alives, ids, retry times and unknown fields leave no trace."""
    assert events(b": ping\n\nid: 1\nretry: 5\nfoo: bar\ndata: x\n\n") == [Event("", b"x")]


def test_a_byte_order_mark_is_dropped_once() -> None:
    """A BOM at the start is no part of the first field; a later one is."""
    assert events(b"\xef", b"\xbb", b"\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n") == [Event("", b"x")]


def test_an_event_is_given_as_soon_as_it_ends() -> None:
    """A final CR already ends the line; the LF that may follow is part of it."""
    reader = EventReader()
    assert reader.feed(b"data: x\r\n\r") == [Event("", b"x")]
    assert reader.feed(b"\ndata: y\n\n") == [Event("", b"y")]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    """The LF of a CRLF that arrives later is no empty line."""
    assert events(b"data: x\r", b"\ndata: y\n\n") == [Event("", b"x\ny")]


def test_close_gives_the_event_the_stream_ended_in() -> None:
    """Lenient clients read an event without its empty line, so it is given too."""
    reader = EventReader()
    assert reader.feed(b"data: x\n\ndata: y") == [Event("", b"x")]
    assert reader.close() == [Event("", b"y")]


@pytest.mark.interpreted
def test_an_endless_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than are ever read are refused, however they are cut."""
    monkeypatch.setattr(sse, "MAX_BYTES", 20)
    reader = EventReader()
    reader.feed(b"data: 0123456789")
    with pytest.raises(WireError) as caught:
        reader.feed(b"0123456789")
    assert str(caught.value) == "the stream has more than 20 bytes; no more are read"


@given(
    st.lists(st.sampled_from([b"data: x", b"event: e", b":", b"\r", b"\n", b"\r\n", b"\xc3\xa9", b"data"])), st.data()
)
def test_cuts_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    """However bytes are cut, the same events come out."""
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    other = data.draw(st.integers(cut, len(whole)))
    assert events(whole[:cut], whole[cut:other], whole[other:]) == events(whole)
