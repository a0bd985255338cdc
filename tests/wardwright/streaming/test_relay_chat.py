"""Claims about Chat Completions streams: what passes when, and what the client makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from wardwright.errors import WireError
from wardwright.streaming import Relay, relay_for, render
from wardwright.wire import CallItem, TextItem
from wardwright.wire.refusal import Refusal

from .rulings import assembled, events, fed, rulings, sse

DONE = b"data: [DONE]\n\n"
REFUSAL = Refusal(403, "policy_violation", "tool_denied", "ask the owner", "no-shell", "rcp_1", ("shell",))


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def call(index: int, name: str, arguments: str = "{}", call_id: str = "") -> dict[str, Any]:
    return {
        "tool_calls": [
            {
                "index": index,
                "id": call_id or f"call_{name}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        ]
    }


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 2}}
OPENING = chunk({"role": "assistant", "content": ""})
CALLS = (
    sse(
        OPENING,
        chunk({"content": "Look"}),
        chunk(call(0, "shell")),
        chunk(call(1, "read")),
        chunk(call(2, "write")),
        chunk({}, "tool_calls"),
        chunk(usage=USAGE),
    )
    + DONE
)


def relay(hold_text: bool = False, **more: Any) -> Relay:
    return relay_for("chat_completions", hold_text=hold_text, **more)


def said(data: bytes) -> str:
    return "".join(
        choice["delta"].get("content") or "" for one in events(data) if one != "[DONE]" for choice in one["choices"]
    )


def test_words_pass_with_the_event_that_brings_them() -> None:
    """Each piece of text is given out by the very feed that brought its last byte."""
    one = relay()
    assert one.feed(sse(OPENING)) == b""
    assert events(one.feed(sse(chunk({"content": "Hel"})))) == [chunk({"role": "assistant", "content": "Hel"})]
    assert events(one.feed(sse(chunk({"content": "lo"})))) == [chunk({"content": "lo"})]


def test_an_opening_alone_releases_nothing() -> None:
    """Until there are words, the answer may still become a refusal with its own status."""
    one = relay()
    one.feed(sse(OPENING, chunk(call(0, "shell"))))
    assert not one.released
    one.feed(sse(chunk({"content": "x"})))
    assert one.released


def test_calls_the_end_and_the_usage_wait() -> None:
    """Before the ruling the client has the words and nothing else."""
    one = relay()
    out = fed(one, CALLS)
    assert events(out) == [chunk({"role": "assistant", "content": "Look"})]
    assert one.complete


def test_released_calls_come_whole_and_in_order() -> None:
    """After the ruling come the calls, the finish reason, the usage and the end."""
    one = relay()
    fed(one, CALLS)
    out = events(one.release(rulings(one.turn())))
    assert [one["choices"][0]["delta"] for one in out[:3]] == [call(0, "shell"), call(1, "read"), call(2, "write")]
    assert out[3:] == [chunk({}, "tool_calls"), chunk(usage=USAGE), "[DONE]"]


def test_a_denied_call_leaves_no_gap() -> None:
    """G2: the calls that are left are numbered from nought, and renamed to the ids that the caller sees."""
    one = relay()
    out = fed(one, CALLS) + one.release(rulings(one.turn(), lambda call: call.name != "read", "ww_"))
    assert b"read" not in out
    assert [delta["tool_calls"][0] | {"function": None} for delta in _deltas(out) if "tool_calls" in delta] == [
        {"index": 0, "id": "ww_call_shell", "type": "function", "function": None},
        {"index": 1, "id": "ww_call_write", "type": "function", "function": None},
    ]
    assert assembled("chat_completions", out).complete


def _deltas(data: bytes) -> list[dict[str, Any]]:
    return [choice["delta"] for one in events(data) if one != "[DONE]" for choice in one["choices"]]


def test_without_a_call_the_answer_stops() -> None:
    """A finish reason that promises calls is mended when none is left."""
    one = relay()
    out = fed(one, CALLS) + one.release(rulings(one.turn(), lambda _: False))
    assert not any("tool_calls" in delta for delta in _deltas(out))
    assert assembled("chat_completions", out).body()["choices"][0]["finish_reason"] == "stop"


def test_a_call_that_nobody_judged_stays() -> None:
    """No ruling is no permission."""
    one = relay()
    out = fed(one, CALLS) + one.release(rulings(one.turn())[1:])
    assert b"shell" not in out and b"write" in out


def test_calls_are_told_apart_by_place() -> None:
    """Two calls with one id are two calls: the ruling goes by item."""
    one = relay()
    twice = sse(chunk(call(0, "read", '{"a":1}', "x")), chunk(call(1, "read", '{"b":2}', "x")), chunk({}, "tool_calls"))
    out = fed(one, twice + DONE)
    judged = rulings(one.turn())
    judged[0].status = "deny_call"
    judged[1].call_id = "y"
    out += one.release(judged)
    assert b'\\"a\\"' not in out
    assert assembled("chat_completions", out).turn().items == [CallItem("y", "read", '{"b":2}')]


def test_a_legacy_call_is_held_too() -> None:
    """`function_call` is a call by another name."""
    pieces = sse(
        chunk({"function_call": {"name": "shell", "arguments": ""}}),
        chunk({"function_call": {"arguments": "{}"}}),
        chunk({}, "function_call"),
    )
    denied, allowed = relay(), relay()
    assert fed(denied, pieces + DONE) == fed(allowed, pieces + DONE) == b""
    assert b"shell" not in denied.release(rulings(denied.turn(), lambda _: False))
    assert assembled("chat_completions", allowed.release(rulings(allowed.turn()))).turn().items == [
        CallItem("", "shell", "{}")
    ]


def test_words_beside_a_call_pass_without_it() -> None:
    """One event with words and a call is cut in two: probabilities and unknown fields stay with the call."""
    one = relay()
    mixed = chunk({"content": "now", **call(0, "shell")})
    mixed["choices"][0]["logprobs"] = {"content": [{"token": "shell"}]}
    mixed["choices"][0]["raw"] = mixed["echo"] = "shell"
    out = one.feed(sse(mixed))
    assert events(out) == [chunk({"role": "assistant", "content": "now"})]
    assert one.held_bytes > 0


def test_fields_nobody_knows_stay_unless_they_are_let_through() -> None:
    """What the operator named passes; what nobody named does not."""
    one = relay(passing=("mood",))
    with pytest.raises(WireError, match="field 'hidden' is not known"):
        one.feed(sse(chunk({"content": "x", "mood": "calm"}, trace="t"), chunk({"hidden": 1})))
    assert events(one.refuse(REFUSAL))[0] == chunk({"role": "assistant", "content": "x", "mood": "calm"})


def test_probabilities_of_words_pass_with_them() -> None:
    """A client that asked for log probabilities gets those of the text."""
    one = relay()
    words = chunk({"role": "assistant", "content": "hi"}, obfuscation="xyz")
    words["choices"][0]["logprobs"] = {"content": [{"token": "hi", "logprob": -0.1}]}
    assert events(one.feed(sse(words))) == [words]


def test_reasoning_passes_while_text_is_held() -> None:
    """A rule on text does not read reasoning, so it does not wait."""
    one = relay(hold_text=True)
    out = one.feed(sse(OPENING, chunk({"reasoning_content": "hm"}), chunk({"content": "secret"})))
    assert events(out) == [chunk({"role": "assistant", "reasoning_content": "hm"})]
    assert one.held_bytes > 0


def test_held_text_can_be_changed() -> None:
    """What the client reads is what `change` made of it, told by the item's index; calls come after it."""
    one = relay(hold_text=True)
    assert fed(one, CALLS) == b""
    asked: list[tuple[int, str]] = []

    def change(index: int, text: str) -> str:
        asked.append((index, text))
        return "[gone]"

    out = one.release(rulings(one.turn(), lambda call: call.name == "read"), change)
    assert asked == [(0, "Look")]
    assert assembled("chat_completions", out).turn().items == [
        TextItem("assistant", "[gone]"),
        CallItem("call_read", "read", "{}"),
    ]


def test_text_changed_to_nothing_moves_no_ruling() -> None:
    """When a text vanishes, the items behind it move up, but each ruling stays with its call."""
    one = relay(hold_text=True)
    fed(one, CALLS)
    out = one.release(rulings(one.turn(), lambda call: call.name == "read"), lambda index, text: "")
    assert assembled("chat_completions", out).turn().items == [CallItem("call_read", "read", "{}")]


def test_text_that_passed_cannot_be_changed() -> None:
    """A change after the fact is a mistake of the program, not of the provider."""
    one = relay()
    fed(one, CALLS)
    with pytest.raises(ValueError, match="make the relay with hold_text"):
        one.release([], lambda index, text: "")


def test_rounds_are_one_message() -> None:
    """G41: one id, one role, one end; the usage is the sum, and calls of the first round never show."""
    one = relay()
    out = fed(one, CALLS)
    one.next_round()
    second = [{**each, "id": "c2", "created": 2} for each in (OPENING, chunk({"content": "!"}), chunk({}, "stop"))]
    out += fed(one, sse(*second, {**chunk(usage=USAGE), "id": "c2"}) + DONE)
    out += one.release([])
    assert said(out) == "Look!"
    assert {one["id"] for one in events(out)[:-1]} == {"c1"}
    assert [delta for delta in _deltas(out) if "role" in delta] == [{"role": "assistant", "content": "Look"}]
    assert b"shell" not in out
    assert events(out)[-2]["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert assembled("chat_completions", out).complete


def test_held_text_of_an_earlier_round_waits_for_the_end() -> None:
    """With text held, nothing passes before the last ruling, and then everything in order."""
    one = relay(hold_text=True)
    out = fed(one, CALLS)
    one.next_round(lambda index, text: text.upper())
    assert one.held_bytes > 0
    out += fed(one, sse(chunk({"content": "!"}), chunk({}, "stop")) + DONE)
    assert out == b"" and not one.released
    assert said(one.release([])) == "LOOK!"


def test_notes_on_a_later_round_are_moved() -> None:
    """A citation counts characters from the beginning of the message that the client has."""
    one = relay()
    fed(one, CALLS)
    one.next_round()
    note = {"type": "url_citation", "url_citation": {"url": "u", "start_index": 0, "end_index": 1}}
    out = one.feed(sse(chunk({"annotations": [note]})))
    assert events(out)[0]["choices"][0]["delta"]["annotations"][0]["url_citation"] == {
        "url": "u",
        "start_index": 4,
        "end_index": 5,
    }


def test_usage_goes_where_the_provider_put_it() -> None:
    """Usage beside the finish reason makes no chunk without choices, at which simple clients stumble."""
    one = relay()
    out = fed(one, sse(chunk({"content": "x"}), chunk({}, "stop", usage=USAGE)) + DONE) + one.release([])
    assert events(out)[-2] == chunk({}, "stop", usage=USAGE)


def test_usage_nobody_asked_for_is_not_told() -> None:
    """The gateway may ask for the usage on its own behalf."""
    one = relay(usage=False)
    assert b"usage" not in fed(one, CALLS) + one.release(rulings(one.turn()))


def test_the_gateway_names_the_model() -> None:
    """`head` speaks instead of the provider, in every chunk."""
    one = relay(head={"model": "public"})
    out = fed(one, CALLS) + one.release([])
    assert {each["model"] for each in events(out)[:-1]} == {"public"}


def test_an_empty_first_chunk_names_nobody() -> None:
    """Azure begins with a chunk without id and choices; the id is that of the first chunk that has one."""
    one = relay()
    out = one.feed(sse({**chunk(), "id": "", "model": "", "created": 0}, chunk({"content": "x"})))
    assert events(out) == [chunk({"role": "assistant", "content": "x"})]


def test_every_choice_ends() -> None:
    """With several choices each has its own role, calls and finish reason."""
    both = [
        {**chunk(), "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
        for index in (0, 1)
        for delta, finish in (({"content": f"c{index}"}, None), (call(0, f"tool{index}"), None), ({}, "tool_calls"))
    ]
    one = relay()
    out = fed(one, sse(*both) + DONE)
    out += one.release(rulings(one.turn(), lambda call: call.name == "tool1"))
    choices = assembled("chat_completions", out).body()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls"]
    assert [choice["message"]["content"] for choice in choices] == ["c0", "c1"]


def test_an_answer_that_says_nothing_is_still_an_answer() -> None:
    """All calls denied and no text: a role, an empty text and an end."""
    one = relay()
    fed(one, sse(chunk(call(0, "shell")), chunk({}, "tool_calls")) + DONE)
    out = events(one.release([]))
    assert out == [chunk({"role": "assistant", "content": ""}), chunk({}, "stop"), "[DONE]"]


def test_an_answer_that_broke_off_is_not_released() -> None:
    """Without the end there is nothing to judge as a whole, so nothing more passes."""
    one = relay()
    one.feed(sse(chunk({"content": "x"}), chunk(call(0, "shell"))))
    one.close()
    with pytest.raises(WireError, match="the reply is not whole"):
        one.release([])


def test_a_refusal_is_an_error_and_no_end() -> None:
    """G34: clients raise on the error; one that overlooks it must not take the answer for a whole one."""
    one = relay()
    fed(one, CALLS)
    assert events(one.refuse(REFUSAL)) == [
        {
            "error": {
                "type": "policy_violation",
                "param": None,
                "code": "tool_denied",
                "message": "ask the owner",
                "rule_id": "no-shell",
                "receipt_id": "rcp_1",
                "blocked_tools": ["shell"],
            }
        }
    ]


def test_an_error_of_the_provider_is_kept_back() -> None:
    """What the provider says of itself is the gateway's to word."""
    one = relay()
    assert one.feed(sse({"error": {"message": "key sk-123 is bad"}})) == b""
    assert one.errors == [{"message": "key sk-123 is bad"}]
    assert not one.complete


def test_nothing_follows_the_end() -> None:
    """A message that was ended is not gone on with."""
    one = relay()
    fed(one, CALLS)
    one.release([])
    with pytest.raises(WireError, match="nothing more of it passes"):
        one.release([])


def test_a_whole_reply_becomes_a_stream() -> None:
    """Rendered and put together again, a reply is the same: words, thoughts, calls, end and usage."""
    reply: dict[str, Any] = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": USAGE,
    }
    assert assembled("chat_completions", render("chat_completions", reply)).body() == reply


def test_a_keep_alive_is_no_event() -> None:
    """G2: comments keep a connection open and mean nothing."""
    one = relay()
    assert events(one.keep_alive() + one.start()) == []
    assert not one.released


def test_usage_in_every_chunk_holds_nothing() -> None:
    """Some providers count along; words with a count beside them pass whole."""
    one = relay()
    one.feed(sse(chunk({"content": "x"}, usage=USAGE), chunk({"content": "y"}, usage=USAGE)))
    assert one.held_bytes == 0


def test_letting_a_field_through_lets_no_held_text_through() -> None:
    """What a rule must read is held, whatever names the operator listed."""
    one = relay(hold_text=True, passing=("content", "tool_calls"))
    assert one.feed(sse(chunk({"content": "secret", **call(0, "shell")}))) == b""
