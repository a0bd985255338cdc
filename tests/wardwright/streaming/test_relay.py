"""Claims about relays of every wire: whatever the provider sends, however it is cut, the client gets what was judged."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.streaming import Relay, relay_for, render
from wardwright.wire import CallItem, Item, edit
from wardwright.wire.refusal import Refusal

from ..conversations import WIRES, Wire, conversation
from .rulings import MODULES, assembled, cut, events, fed, rulings

REPLIES = 100
REFUSAL = Refusal(403, "policy_violation", "tool_denied", "ask the owner", "no-shell", "rcp_1", ("shell",))
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
HOLDS = pytest.mark.parametrize("hold_text", [False, True], ids=["passing", "held"])


def streams(wire: Wire, count: int = REPLIES) -> list[tuple[random.Random, dict[str, Any], bytes]]:
    """Replies of the wire with the bytes of their streams, and the dice that made them."""
    made: list[tuple[random.Random, dict[str, Any], bytes]] = []
    for number in range(count):
        dice = random.Random(number)
        talk = conversation(number)
        reply = wire.reply(talk, dice.randrange(len(talk.rounds)), dice)
        made.append((dice, reply, wire.stream(reply, dice)))
    return made


def relay(wire: Wire, hold_text: bool, **more: Any) -> Relay:
    return relay_for(wire.name, hold_text=hold_text, **more)  # type: ignore[arg-type]


def named(items: list[Item] | Any, prefix: str = "") -> list[Item]:
    return [replace(item, id=prefix + item.id) if isinstance(item, CallItem) else item for item in items]


@EVERY_WIRE
@HOLDS
@pytest.mark.parametrize("hold_hosted", [False, True], ids=["hosted passing", "hosted held"])
def test_with_every_call_allowed_nothing_is_changed(wire: Wire, hold_text: bool, hold_hosted: bool) -> None:
    """G2: what the client puts together equals what came: items, usage, model and how it ended, cut anywhere."""
    for dice, _, data in streams(wire):
        one = relay(wire, hold_text, hold_hosted=hold_hosted)
        out = fed(one, cut(data, dice))
        out += one.release(rulings(one.turn()))
        theirs, ours = assembled(wire.name, data), assembled(wire.name, out)
        assert ours.turn() == theirs.turn()
        assert ours.complete
        for key in ("stop_reason", "status", "id", "usage", "model"):
            assert ours.body().get(key) == theirs.body().get(key)


@EVERY_WIRE
@HOLDS
def test_bytes_out_do_not_depend_on_how_bytes_came_in(wire: Wire, hold_text: bool) -> None:
    """Cut anywhere, the same events come out."""
    for dice, _, data in streams(wire, 40):
        whole, pieces = relay(wire, hold_text), relay(wire, hold_text)
        first = fed(whole, data) + whole.release(rulings(whole.turn()))
        assert fed(pieces, cut(data, dice)) + pieces.release(rulings(pieces.turn())) == first


@EVERY_WIRE
@HOLDS
def test_a_denied_call_is_nowhere(wire: Wire, hold_text: bool) -> None:
    """G2: of calls that are denied, neither id nor arguments are in any byte; the others are there under the caller's ids."""
    for dice, _, data in streams(wire):
        one = relay(wire, hold_text)
        out = fed(one, cut(data, dice))
        turn = one.turn()
        judged = rulings(turn, lambda _, dice=dice: dice.random() < 0.5, "ww_")
        out += one.release(judged)
        denied = {ruling.item for ruling in judged if ruling.status != "allow"}
        expected = [item for index, item in enumerate(turn.items) if index not in denied]
        ours = assembled(wire.name, out)
        assert ours.turn().items == named(expected, "ww_")
        assert ours.complete
        for ruling in judged:
            if ruling.item in denied:
                assert ruling.provider_id.encode() not in out


@EVERY_WIRE
@HOLDS
def test_nothing_of_a_call_passes_before_the_ruling(wire: Wire, hold_text: bool) -> None:
    """G2: until `release` no byte names a call, however long the stream goes on."""
    for dice, _, data in streams(wire):
        one = relay(wire, hold_text, hold_hosted=False)
        out = fed(one, cut(data, dice))
        for item in one.turn().items:
            if isinstance(item, CallItem):
                assert item.id.encode() not in out


@EVERY_WIRE
@HOLDS
def test_streamed_and_whole_the_client_gets_the_same(wire: Wire, hold_text: bool) -> None:
    """G2, G24: a client that streams has in the end what a client that does not would have been sent, also over rounds."""
    made = streams(wire)
    edits = edit.of(wire.name)  # type: ignore[arg-type]
    for (dice, first_reply, first), (_, reply, second) in zip(made[::2], made[1::2], strict=True):
        one = relay(wire, hold_text)
        out = fed(one, cut(first, dice))
        one.next_round()
        out += fed(one, cut(second, dice))
        judged = rulings(one.turn(), lambda _, dice=dice: dice.random() < 0.7, "ww_")
        out += one.release(judged)
        ours = assembled(wire.name, out)
        assert ours.complete
        edits.keep_calls(first_reply, [])
        edits.keep_calls(reply, judged)
        assert _shown(ours.body()) == _shown(edits.join(first_reply, reply))


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    """A reply without what is written in several ways: ids of items that came twice, and no text or none."""
    body = orjson.loads(orjson.dumps(body))
    for item in body.get("output", ()):
        item.pop("id", None)
    for choice in body.get("choices", ()):
        choice["message"]["content"] = choice["message"].get("content") or ""
    return body


@EVERY_WIRE
@HOLDS
def test_a_reply_that_breaks_off_anywhere_is_never_released(wire: Wire, hold_text: bool) -> None:
    """A stream cut short gives out words at most; its calls never pass."""
    for dice, _, data in streams(wire, 60):
        one = relay(wire, hold_text)
        out = one.feed(data[: dice.randrange(len(data) - 20)]) + one.close()
        if not one.complete:
            with pytest.raises(WireError):
                one.release(rulings(one.turn()))
        for item in one.turn().items:
            if isinstance(item, CallItem) and item.id:
                assert item.id.encode() not in out


@EVERY_WIRE
def test_a_refusal_gives_out_nothing_that_was_held(wire: Wire) -> None:
    """After a refusal the client has an error it can show, and no call."""
    for dice, _, data in streams(wire, 60):
        one = relay(wire, dice.random() < 0.5)
        out = fed(one, data) + one.refuse(REFUSAL)
        ours = assembled(wire.name, out)
        assert not ours.complete
        assert ours.errors[0]["message"] == "ask the owner"
        assert ours.errors[0]["rule_id"] == "no-shell"
        for item in one.turn().items:
            if isinstance(item, CallItem):
                assert item.id.encode() not in out


@EVERY_WIRE
def test_a_rendered_reply_is_the_reply(wire: Wire) -> None:
    """A whole reply as a stream is put together to the same turn, the same thinking and the same end."""
    for _, reply, _ in streams(wire):
        ours = assembled(wire.name, render(wire.name, reply))  # type: ignore[arg-type]
        assert ours.complete
        assert ours.turn() == MODULES[wire.name].parse_reply(reply)
        for key in ("content", "output", "stop_reason", "status", "usage"):
            assert ours.body().get(key) == reply.get(key)


@EVERY_WIRE
def test_words_are_not_held_for_nothing(wire: Wire) -> None:
    """G2: a reply of one text passes as it comes; only its end waits."""
    for _, _, data in streams(wire):
        one = relay(wire, False)
        out = fed(one, data)
        turn = one.turn()
        if b"thinking" not in data and b"reasoning" not in data and all(hasattr(item, "text") for item in turn.items):
            assert assembled(wire.name, out).turn().items == turn.items
            assert not assembled(wire.name, out).complete


@EVERY_WIRE
def test_held_bytes_are_counted_and_let_go(wire: Wire) -> None:
    """G2: the budget sees what is held, and nothing once it is released."""
    for _, _, data in streams(wire, 30):
        one = relay(wire, True)
        fed(one, data)
        assert 0 < one.held_bytes <= len(data)
        one.release(rulings(one.turn()))
        assert one.held_bytes == 0


@EVERY_WIRE
def test_the_gateway_speaks_of_the_model(wire: Wire) -> None:
    """No event names another model than `head` says."""
    _, _, data = streams(wire, 1)[0]
    one = relay(wire, False, head={"model": "public"})
    out = fed(one, data) + one.release(rulings(one.turn()))
    assert assembled(wire.name, out).body()["model"] == "public"
    assert all(_models(event) <= {"public"} for event in events(out))


def _models(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["model"]} if "model" in value else set[str]()
        return own.union(*(_models(one) for one in value.values()))
    return set()


@EVERY_WIRE
@HOLDS
def test_a_reply_that_failed_can_be_replaced(wire: Wire, hold_text: bool) -> None:
    """As long as the client has nothing of a reply, another can take its place, in any round, and no trace is left of it."""
    made = streams(wire)
    (_, _, first), (_, _, second) = made[0], made[1]
    for dice, _, failed in made[2:40]:
        once, again = relay(wire, hold_text), relay(wire, hold_text)
        expected, out = b"", b""
        for number, data in enumerate((first, second)):
            if again.feed(failed[: dice.randrange(len(failed))]) == b"":
                again.restart()
            else:
                with pytest.raises(ValueError, match="the client has a part of this reply"):
                    again.restart()
                break
            expected += fed(once, data)
            out += fed(again, data)
            if number == 0:
                once.next_round()
                again.next_round()
        else:
            expected += once.release(rulings(once.turn()))
            out += again.release(rulings(again.turn()))
        assert out == expected


@EVERY_WIRE
def test_a_reply_that_could_not_be_read_can_be_replaced(wire: Wire) -> None:
    """A bad event ends the reply it stands in, not the answer."""
    _, _, data = streams(wire, 1)[0]
    one, other = relay(wire, False), relay(wire, False)
    with pytest.raises(WireError):
        one.feed(b"data: {\n\n")
    one.restart()
    assert fed(one, data) + one.release(rulings(one.turn())) == fed(other, data) + other.release(rulings(other.turn()))
    with pytest.raises(WireError, match="has ended"):
        one.restart()


@EVERY_WIRE
@HOLDS
def test_the_body_that_is_given_out_is_a_copy(wire: Wire, hold_text: bool) -> None:
    """Whoever edits the reply to ask again changes nothing of what the client is given."""
    edits = edit.of(wire.name)  # type: ignore[arg-type]
    for _, _, data in streams(wire, 30):
        one, other = relay(wire, hold_text), relay(wire, hold_text)
        out, expected = fed(one, data), fed(other, data)
        edits.keep_calls(one.body(), rulings(one.turn(), prefix="again_"))
        assert out + one.release(rulings(one.turn())) == expected + other.release(rulings(other.turn()))


@EVERY_WIRE
def test_after_a_bad_event_nothing_is_released(wire: Wire) -> None:
    """A reply with an event that nobody could read is not whole, whatever follows it."""
    _, _, data = streams(wire, 1)[0]
    one = relay(wire, False)
    with pytest.raises(WireError):
        one.feed(b'data: {"type": "surprise", "choices": [{"delta": {"surprise": 1}}]}\n\n')
    with pytest.raises(WireError, match="cannot be read"):
        one.feed(data)
    with pytest.raises(WireError, match="not whole"):
        one.release([])


@EVERY_WIRE
def test_a_refusal_after_the_end_says_nothing(wire: Wire) -> None:
    """One message ends once."""
    _, _, data = streams(wire, 1)[0]
    one = relay(wire, False)
    fed(one, data)
    one.release([])
    assert one.refuse(REFUSAL) == b""
