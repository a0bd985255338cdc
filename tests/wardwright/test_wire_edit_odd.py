"""Claims about edits of bodies with odd shapes: whatever has a turn can be edited, and the edit does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import orjson
import pytest

from wardwright.wire import CallItem, ResultItem, TextItem, Turn, anthropic, chat_completions, edit, responses
from wardwright.wire.edit import Splice, SplicedCall, ToolAnswer, ToolSpec
from wardwright.wire.turn import WireName

from .odd_bodies import odd_body
from .test_wire_edit import Judged

MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
SPEC = ToolSpec("ours", "Ours.", {"type": "object"})

every_wire = pytest.mark.parametrize("wire", sorted(MODULES))


def asked(turn: Turn) -> dict[int, str]:
    return {
        at: item.text if isinstance(item, TextItem) else item.content
        for at, item in enumerate(turn.items)
        if isinstance(item, (TextItem, ResultItem))
    }


def read(wire: str, body: Any, gate: str) -> Turn:
    parse = MODULES[wire].parse_request if gate == "request" else MODULES[wire].parse_reply
    return parse(orjson.dumps(body))


def odd(wire: str, gate: str) -> Iterator[tuple[Any, Turn]]:
    """Odd bodies and their turns."""
    for number in range(150):
        body = odd_body(wire, gate, number)
        yield body, read(wire, body, gate)


@every_wire
@pytest.mark.parametrize("gate", ["request", "reply"])
def test_every_text_and_result_of_any_body_is_offered_under_its_number(wire: str, gate: str) -> None:
    """The change is asked of exactly the texts and results of the turn; when it changes nothing, the turn stays."""

    for body, turn in odd(wire, gate):
        offered: dict[int, str] = {}

        def change(item: int, text: str, offered: dict[int, str] = offered) -> str:
            offered.setdefault(item, text)
            return text

        edit.of(cast("WireName", wire)).rewrite(body, change)
        assert offered == asked(turn)
        assert read(wire, body, gate) == turn


@every_wire
@pytest.mark.parametrize("gate", ["request", "reply"])
def test_no_text_of_any_body_survives_its_change(wire: str, gate: str) -> None:
    """After every text was changed, the turn of the body says no old word, only new ones."""

    for body, _ in odd(wire, gate):
        edit.of(cast("WireName", wire)).rewrite(body, lambda item, text: "new")
        after = read(wire, body, gate)
        # A picture is no text; and a list of found tools can be emptied, not worded.
        assert {word for text in asked(after).values() for word in text.split("\n")} <= {"new", ""}


@every_wire
def test_no_call_of_any_reply_passes_unjudged(wire: str) -> None:
    """Without a ruling no call is left, with one under its number it is."""

    for body, turn in odd(wire, "reply"):
        edits = edit.of(cast("WireName", wire))
        calls = [Judged(at, f"id{at}", one.id) for at, one in enumerate(turn.items) if isinstance(one, CallItem)]
        copy = orjson.loads(orjson.dumps(body))
        edits.keep_calls(copy, calls)
        kept = read(wire, copy, "reply")
        assert [item.name for item in kept.items if isinstance(item, CallItem)] == [
            item.name for item in turn.items if isinstance(item, CallItem)
        ]
        edits.keep_calls(body, [])
        left = read(wire, body, "reply")
        assert not [item for item in left.items if isinstance(item, CallItem)]


@every_wire
def test_no_dropped_tool_of_any_request_is_declared(wire: str) -> None:
    """When all declared tools are dropped, none is left, nor a choice of one."""

    for body, turn in odd(wire, "request"):
        names = {one.name if one.server is None else f"{one.name}:{one.server}" for one in turn.tools}
        edit.of(cast("WireName", wire)).drop_tools(body, names)
        after = read(wire, body, "request")
        assert not after.tools
        assert after.tool_choice is None or after.tool_choice.mode != "tool" or not names


@every_wire
def test_any_request_can_be_edited(wire: str) -> None:
    """Every other edit of a request that has a turn leaves one that has a turn."""

    for body, turn in odd(wire, "request"):
        edits = edit.of(cast("WireName", wire))
        ids = [item.id for item in turn.items if isinstance(item, CallItem)]
        edits.forget(body)
        edits.relax(body)
        edits.set_controls(body, {tool.name: {"max_uses": 1} for tool in turn.tools if tool.server is None})
        for tool in turn.tools[:1]:
            edits.describe_tool(body, tool.name, "More.", {})
            edits.replace_tool(body, tool.name, SPEC)
        edits.add_tools(body, [ToolSpec("more", "", {})])
        edits.remind(body, ["Remember."])
        edits.splice(body, [Splice(tuple(ids), (SplicedCall("s", "more", "{", "no", True),))])
        edits.rename_ids(body, {one: f"{one}_" for one in ids})
        after = read(wire, body, "request")
        assert after.tool_choice is None or after.tool_choice.mode != "required"
        assert "more" in {tool.name for tool in after.tools}


@every_wire
def test_any_reply_can_be_answered_and_joined(wire: str) -> None:
    """Whatever was called, the next request has the calls and their results; two rounds of it are one reply."""

    for body, turn in odd(wire, "reply"):
        edits = edit.of(cast("WireName", wire))
        results = {
            at: ToolAnswer(f"id{at}", "no", True) for at, one in enumerate(turn.items) if isinstance(one, CallItem)
        }
        request: Any = {"input": "hi"} if wire == "responses" else {"messages": []}
        written = edits.answered(request, body, results)
        assert written.keys() == request.keys()
        joined = read(wire, edits.join(body, orjson.loads(orjson.dumps(body))), "reply")
        assert [one.name for one in joined.items if isinstance(one, CallItem)] == [
            one.name for one in turn.items if isinstance(one, CallItem)
        ]
