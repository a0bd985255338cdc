"""Claims about Responses streams: numbers, identities, reasoning, and a final response that repeats only what was given."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.errors import WireError
from wardwright.streaming import Relay, relay_for
from wardwright.wire import CallItem, TextItem
from wardwright.wire.refusal import Refusal

from .rulings import assembled, events, fed, rulings, sse

HEAD: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
USAGE = {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 8}
CREATED: dict[str, Any] = {"type": "response.created", "response": {**HEAD, "status": "in_progress", "output": []}}


def message(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [part]}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{name}",
        "call_id": f"call_{name}",
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def reasoning(item_id: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [{"type": "summary_text", "text": "hm"}]}


def streamed(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    """An item as the events that bring it."""
    at = {"item_id": item["id"], "output_index": index}
    added = dict(item)
    pieces: list[dict[str, Any]] = []
    if item["type"] == "message":
        added["content"] = []
        part = item["content"][0]
        where = {**at, "content_index": 0}
        pieces = [
            {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **where, "delta": part["text"]},
            {"type": "response.output_text.done", **where, "text": part["text"]},
            {"type": "response.content_part.done", **where, "part": part},
        ]
    elif item["type"] == "function_call":
        added["arguments"] = ""
        pieces = [
            {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
            {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]},
        ]
    elif item["type"] == "reasoning":
        added["summary"] = []
        pieces = [{"type": "response.reasoning_summary_text.delta", **at, "summary_index": 0, "delta": "hm"}]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": added},
        *pieces,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def stream(*items: dict[str, Any], end: str = "completed", **more: Any) -> bytes:
    response = {**HEAD, "status": end, "output": list(items), "usage": USAGE, **more}
    said = [
        CREATED,
        {**CREATED, "type": "response.in_progress"},
        *(event for index, item in enumerate(items) for event in streamed(index, item)),
        {"type": f"response.{end}", "response": response},
    ]
    return sse(*({**event, "sequence_number": 100 + number} for number, event in enumerate(said)))


def relay(hold_text: bool = False, **more: Any) -> Relay:
    return relay_for("responses", hold_text=hold_text, **more)


def types(data: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events(data)]


def final(data: bytes) -> dict[str, Any]:
    return events(data)[-1]["response"]


def test_words_pass_with_the_event_that_brings_them() -> None:
    """The response begins with its first item, and not before; numbers count from nought."""
    one = relay()
    assert one.feed(sse(CREATED)) == b""
    added, part, delta, *_ = streamed(0, message("Hi"))
    out = events(one.feed(sse(added)))
    assert [(event["type"], event["sequence_number"]) for event in out] == [
        ("response.created", 0),
        ("response.output_item.added", 1),
    ]
    one.feed(sse(part))
    assert events(one.feed(sse(delta))) == [{**delta, "sequence_number": 3}]


def test_a_denied_call_is_not_in_the_final_response() -> None:
    """The final response repeats the items that the client was given, under the caller's ids, and no other."""
    one = relay()
    out = fed(one, stream(message("a"), call("shell", '{"rm":1}'), call("read")))
    out += one.release(rulings(one.turn(), lambda each: each.name == "read", "ww_"))
    assert b"shell" not in out and b"rm" not in out
    assert [item["type"] for item in final(out)["output"]] == ["message", "function_call"]
    assert final(out)["output"][1]["call_id"] == "ww_call_read"
    assert [event["output_index"] for event in events(out) if event["type"].endswith("item.done")] == [0, 1]
    assert [event["sequence_number"] for event in events(out)] == list(range(len(events(out))))


def test_a_released_call_is_told_by_all_its_events() -> None:
    """Clients wait for different events of a call; each of them comes."""
    one = relay()
    fed(one, stream(call("read", '{"a":1}')))
    out = one.release(rulings(one.turn()))
    assert types(out) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events(out)[2]["item"]["arguments"] == ""
    assert events(out)[4]["arguments"] == '{"a":1}'


def test_custom_calls_are_calls() -> None:
    """Free-form input is held and told like arguments."""
    custom = {"type": "custom_tool_call", "id": "ct", "call_id": "c", "name": "sql", "input": "select 1"}
    one = relay()
    fed(one, stream(custom))
    out = one.release(rulings(one.turn()))
    assert "custom_tool_call_input.done" in types(out)
    assert assembled("responses", out).turn().items == [CallItem("c", "sql", "select 1")]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"command": ["rm"]}},
        {"type": "shell_call", "id": "l", "call_id": "c", "action": {"commands": ["rm"]}},
        {"type": "apply_patch_call", "id": "l", "call_id": "c", "operation": {"type": "delete_file", "path": "rm"}},
        {"type": "computer_call", "id": "l", "call_id": "c", "action": {"type": "type", "text": "rm"}},
        {"type": "tool_search_call", "id": "l", "call_id": "c", "execution": "client", "arguments": {"q": "rm"}},
    ],
    ids=lambda item: item["type"],
)
def test_what_a_client_would_run_is_a_call(item: dict[str, Any]) -> None:
    """Every kind of item that a client acts on waits for the ruling, and stays when it is denied."""
    denied, allowed = relay(hold_hosted=False), relay(hold_hosted=False)
    assert b"rm" not in fed(denied, stream(item)) + denied.release([])
    fed(allowed, stream(item))
    out = allowed.release(rulings(allowed.turn()))
    assert assembled("responses", out).turn() == assembled("responses", stream(item)).turn()


def test_reasoning_passes_with_the_message_it_led_to() -> None:
    """Reasoning comes before its message, in order, and is not told twice."""
    one = relay()
    assert one.feed(sse(CREATED, *streamed(0, reasoning()))) == b""
    held = one.held_bytes
    out = one.feed(sse(*streamed(1, message("a"))))
    assert held > 0 and one.held_bytes == 0
    assert [event["output_index"] for event in events(out) if event["type"].endswith("added") and "item" in event] == [
        0,
        1,
    ]


def test_reasoning_stays_with_the_call_it_led_to() -> None:
    """A provider refuses reasoning without what followed it, so it is not given to a client that would send it back."""
    one = relay()
    out = fed(one, stream(reasoning(), call("shell"), reasoning("rs_2"), message("a"))) + one.release([])
    assert [item["id"] for item in final(out)["output"]] == ["rs_2", "msg_1"]


def test_reasoning_may_be_let_through_at_once() -> None:
    """An operator may prefer to see it as it comes."""
    one = relay(hold_thoughts=False)
    assert types(one.feed(sse(CREATED, *streamed(0, reasoning())))) == [
        "created",
        "output_item.added",
        "reasoning_summary_text.delta",
        "output_item.done",
    ]


def test_rounds_are_one_response() -> None:
    """G41: one id, one beginning, numbers that go on, usage summed, and every item of every round in the end."""
    one = relay()
    out = fed(one, stream(message("a"), call("search")))
    one.next_round()
    second = stream(message("b", "msg_2"), call("read")).replace(b"resp_1", b"resp_2")
    out += fed(one, second) + one.release(rulings(one.turn()))
    assert types(out).count("created") == 1
    assert b"resp_2" not in out
    assert [item["id"] for item in final(out)["output"]] == ["msg_1", "msg_2", "fc_read"]
    assert final(out)["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert [event["sequence_number"] for event in events(out)] == list(range(len(events(out))))
    assert assembled("responses", out).complete


def test_a_round_of_calls_alone_still_names_the_response() -> None:
    """The id is that of the first round, though nothing of it was given out."""
    one = relay()
    fed(one, stream(call("search")))
    one.next_round()
    out = fed(one, stream(message("b")).replace(b"resp_1", b"resp_2")) + one.release([])
    assert types(out)[:2] == ["created", "in_progress"]
    assert {event["response"]["id"] for event in events(out) if "response" in event} == {"resp_1"}


def test_items_of_two_rounds_never_share_an_id() -> None:
    """Some providers give every reply the same ids; the client would take two items for one."""
    one = relay()
    out = fed(one, stream(message("a"), call("search")))
    one.next_round()
    out += fed(one, stream(message("b"))) + one.release([])
    assert [item["id"] for item in final(out)["output"]] == ["msg_1", "msg_1_2"]
    assert {event["item_id"] for event in events(out) if "item_id" in event} == {"msg_1", "msg_1_2"}


def test_held_text_can_be_changed() -> None:
    """What the client reads, in pieces, in items and in the final response, is what `change` made of it."""
    one = relay(hold_text=True)
    assert fed(one, stream(message("secret"), call("read"))) == b""
    out = one.release(rulings(one.turn()), lambda index, text: "[gone]")
    assert b"secret" not in out
    assert assembled("responses", out).turn().items == [
        TextItem("assistant", "[gone]"),
        CallItem("call_read", "read", "{}"),
    ]


def test_an_incomplete_response_ends_as_one() -> None:
    """A reply that hit the token limit says so."""
    one = relay()
    out = fed(one, stream(message("a"), end="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    out += one.release([])
    assert types(out)[-1] == "incomplete"
    assert final(out)["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_failed_response_is_not_passed_on() -> None:
    """The failure is an error for the gateway to word, not an event for the client."""
    one = relay()
    failed = {"type": "response.failed", "response": {**HEAD, "status": "failed", "error": {"message": "sk-123"}}}
    assert one.feed(sse(CREATED, failed)) == b""
    assert one.errors == [{"message": "sk-123"}] and not one.complete


def test_the_gateway_may_speak_of_the_request_instead() -> None:
    """Responses repeat the request; `head` puts back what the client itself had asked."""
    one = relay(head={"model": "public", "tools": [], "instructions": None})
    out = fed(one, stream(message("a"), tools=[{"name": "injected"}], instructions="reminder", trace="shell"))
    out += one.release([])
    assert b"injected" not in out and b"reminder" not in out and b"trace" not in out
    assert all(event["response"]["model"] == "public" for event in events(out) if "response" in event)


def test_a_final_response_that_left_something_out_is_refused() -> None:
    """When the final response has other items than the stream, nobody can say which the client was given."""
    one = relay()
    response = {**HEAD, "status": "completed", "output": [message("b", "msg_2")], "usage": USAGE}
    fed(
        one,
        sse(
            CREATED,
            *streamed(0, message("", "msg_1")),
            *streamed(1, message("b", "msg_2")),
            {"type": "response.completed", "response": response},
        ),
    )
    with pytest.raises(WireError, match="the streamed items and the final response disagree"):
        one.release([])


def test_a_reply_told_only_by_its_end_is_told_in_full() -> None:
    """A provider that sends the final response alone is read, and the client gets every event."""
    response = {**HEAD, "status": "completed", "output": [message("a"), call("read")], "usage": USAGE}
    one = relay()
    assert fed(one, sse({"type": "response.completed", "response": response})) == b""
    out = one.release(rulings(one.turn()))
    assert types(out)[:2] == ["created", "in_progress"]
    assert assembled("responses", out).body() == response


def test_items_without_numbers_are_the_only_ones() -> None:
    """A provider that leaves `output_index` out of a single item is understood."""
    one = relay()
    bare = [
        {key: value for key, value in event.items() if key != "output_index"} for event in streamed(0, message("a"))
    ]
    out = one.feed(sse(CREATED, *bare))
    assert {event["output_index"] for event in events(out)[1:]} == {0}


def test_annotations_and_refusals_are_told_again() -> None:
    """Held parts keep their notes, and a refusal stays a refusal."""
    note = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": 1, "title": "t"}
    item = message("a")
    item["content"][0]["annotations"] = [note]
    item["content"].append({"type": "refusal", "refusal": "no"})
    response = {**HEAD, "status": "completed", "output": [item], "usage": USAGE}
    one = relay()
    fed(one, sse({"type": "response.completed", "response": response}))
    out = one.release([])
    assert {"output_text.annotation.added", "refusal.delta", "refusal.done"} <= set(types(out))
    assert final(out)["output"] == [item]


def test_a_refusal_is_an_event_with_an_error_in_it() -> None:
    """G34: the event has the fields of the wire, and the error itself, on which clients raise."""
    one = relay()
    fed(one, stream(call("shell")))
    refusal = Refusal(403, "policy_violation", "tool_denied", "ask the owner", "r", "rcp_1")
    assert events(one.refuse(refusal)) == [
        {
            "type": "error",
            "sequence_number": 0,
            "code": "tool_denied",
            "message": "ask the owner",
            "param": None,
            "error": {
                "type": "policy_violation",
                "param": None,
                "code": "tool_denied",
                "message": "ask the owner",
                "rule_id": "r",
                "receipt_id": "rcp_1",
                "blocked_tools": [],
            },
        }
    ]


@pytest.mark.parametrize(
    "kind", ["function_call_arguments.done", "custom_tool_call_input.delta", "shell_call_command.delta"]
)
@pytest.mark.parametrize("item", [message("a"), reasoning()], ids=["message", "reasoning"])
def test_events_of_a_call_stand_at_no_other_item(kind: str, item: dict[str, Any]) -> None:
    """Some clients act on such an event alone, so it may not slip through with a message."""
    one = relay(hold_thoughts=False)
    odd = {"type": f"response.{kind}", "item_id": "x", "output_index": 0, "arguments": "", "input": "", "delta": ""}
    with pytest.raises(WireError, match="does not belong to an item"):
        one.feed(sse(CREATED, *streamed(0, item)[:1], odd))
    assert kind.encode() not in one.close()
    with pytest.raises(WireError, match="the reply is not whole"):
        one.release([])


def test_no_event_tells_a_call_beside_what_it_says() -> None:
    """A call in a field where no event has one, in the beginning, in pieces, in parts and in items, is not passed on."""
    told = {"item": call("shell"), "arguments": "shell", "name": "shell"}
    item = {**message("a"), "name": "shell", "tool_calls": [call("shell")]}
    item["content"] = [{**item["content"][0], "tool_calls": [call("shell")]}]
    said = [{**told, **event} for event in (CREATED, *streamed(0, item))]
    said.append({"type": "response.completed", "response": {**HEAD, "status": "completed", "output": [item]}})
    one = relay()
    assert b"shell" not in fed(one, sse(*said)) + one.release([])


def test_held_rounds_come_out_in_order() -> None:
    """What a round said that was held comes before what a later round says, though that could pass at once by itself."""
    one = relay(hold_text=True, hold_thoughts=False)
    out = fed(one, stream(message("a"), call("search")))
    one.next_round()
    out += fed(one, stream(reasoning(), message("b", "msg_2")))
    assert out == b""
    assert [item["id"] for item in final(one.release([]))["output"]] == ["msg_1", "rs_1", "msg_2"]
