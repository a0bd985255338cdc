"""Edits behave alike in every wire: what a body's turn says before and after them is the same wherever it is carried."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest

from wardwright.errors import WireError
from wardwright.facts import canonical
from wardwright.wire import (
    CallItem,
    DeclaredTool,
    HostedResultItem,
    Item,
    ResultItem,
    TextItem,
    ToolChoice,
    Turn,
    Usage,
    anthropic,
    chat_completions,
    edit,
    responses,
)
from wardwright.wire.edit import Splice, SplicedCall, ToolAnswer, ToolSpec
from wardwright.wire.refusal import Refusal
from wardwright.wire.turn import WireName

from .conversations import WIRES, Conversation, Wire, conversation

MODULES: dict[str, Any] = {"chat_completions": chat_completions, "responses": responses, "anthropic": anthropic}
NUMBERS = range(80)
every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


@dataclass
class Judged:
    """A ruling on one call."""

    item: int
    call_id: str
    provider_id: str
    status: str = "allow"


def edits_of(wire: Wire) -> edit.Edits:
    return edit.of(cast("WireName", wire.name))


def copy(body: Any) -> Any:
    return orjson.loads(orjson.dumps(body))


def request_turn(wire: Wire, body: Any) -> Turn:
    return MODULES[wire.name].parse_request(orjson.dumps(body))


def reply_turn(wire: Wire, body: Any) -> Turn:
    return MODULES[wire.name].parse_reply(orjson.dumps(body))


def talks(wire: Wire) -> Iterator[tuple[Conversation, int, random.Random]]:
    """Conversations that the wire can carry, each up to every round."""
    for number in NUMBERS:
        talk = conversation(number)
        if talk.searches and wire.name == "chat_completions":
            continue
        for upto in range(len(talk.rounds)):
            yield talk, upto, random.Random(number * 10 + upto)


def requests(wire: Wire) -> Iterator[dict[str, Any]]:
    for talk, upto, dice in talks(wire):
        yield wire.request(talk, upto, dice)


def replies(wire: Wire) -> Iterator[dict[str, Any]]:
    for talk, upto, dice in talks(wire):
        yield wire.reply(talk, upto, dice)


def judged(turn: Turn) -> list[Judged]:
    """All calls of a reply, allowed as they are."""
    return [Judged(at, item.id, item.id) for at, item in enumerate(turn.items) if isinstance(item, CallItem)]


def said(turn: Turn) -> list[Item]:
    """The items that every wire carries alike."""
    return [replace(item, is_error=None) if isinstance(item, ResultItem) else item for item in turn.items]


def simple(wire: Wire, **changes: Any) -> dict[str, Any]:
    """A request with a question, two tools and nothing else."""
    talk = conversation(0)
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"name": name, "description": f"About {name}.", "schema": schema} for name in ("one", "two")]
    plain: dict[str, Any] = {
        "model": "m",
        "system": "Be kind.",
        "tools": tools,
        "searches": False,
        "tool_choice": None,
        "output": None,
        "claim": None,
    }
    first = replace(talk.rounds[0], user="Hello", results=[])
    return wire.request(replace(talk, **{**plain, "rounds": [first], **changes}), 0, random.Random(3))


# Refusals


REFUSED = Refusal(403, "policy_violation", "blocked", "Ask the operator.", "r1", "rcp_1", ("shell.exec",))


@every_wire
def test_a_refusal_says_its_rule_receipt_and_tools(wire: Wire) -> None:
    """G34: code, message, rule, receipt and blocked tools stand in the wire's own error object."""
    error: Any = edits_of(wire).refusal(REFUSED)["error"]
    told = {key: error[key] for key in ("code", "message", "rule_id", "receipt_id", "blocked_tools")}
    assert told == {
        "code": "blocked",
        "message": "Ask the operator.",
        "rule_id": "r1",
        "receipt_id": "rcp_1",
        "blocked_tools": ["shell.exec"],
    }


def test_the_type_of_a_refusal_is_a_word_of_its_wire() -> None:
    """G34: OpenAI's wires say policy_violation; Anthropic's has only its own types, so it says permission_error."""
    bodies: list[Any] = [edits_of(wire).refusal(REFUSED) for wire in WIRES]
    assert [(body.get("type"), body["error"]["type"]) for body in bodies] == [
        (None, "policy_violation"),
        (None, "policy_violation"),
        ("error", "permission_error"),
    ]


@every_wire
def test_a_refusal_that_waits_for_approval_carries_its_handle(wire: Wire) -> None:
    """G23: the handle of the held reply is in the body; without one the field is absent."""
    errors: list[Any] = [edits_of(wire).refusal(replace(REFUSED, approval=handle))["error"] for handle in ("apr_1", "")]
    assert [error.get("approval") for error in errors] == ["apr_1", None]


@every_wire
def test_a_refusal_without_policy_says_nothing_of_rules(wire: Wire) -> None:
    """A body that cannot be read has no rule, no receipt and no tools to tell."""
    error: Any = edits_of(wire).refusal(Refusal(400, "invalid_request_error", "invalid_request", "No JSON."))["error"]
    assert (error["type"], sorted(set(error) & {"rule_id", "receipt_id", "blocked_tools", "approval"})) == (
        "invalid_request_error",
        [],
    )


def test_wires_without_whole_conversations_are_not_edited() -> None:
    """MCP and the in-process policy have no body to edit."""
    with pytest.raises(WireError, match="bodies of the wire 'mcp' are not edited"):
        edit.of("mcp")


# What is ours


@every_wire
def test_forgetting_takes_only_the_claim(wire: Wire) -> None:
    """G7: the claim goes; other metadata stays, and empty metadata goes with it."""
    edits = edits_of(wire)
    bodies: list[Any] = [{"metadata": {"tool_context": {}, "user_id": "u"}}, {"metadata": {"tool_context": "{}"}}, {}]
    for body in bodies:
        edits.forget(body)
    assert bodies == [{"metadata": {"user_id": "u"}}, {}, {}]


@every_wire
def test_the_model_can_be_named_anew(wire: Wire) -> None:
    """The turn of the changed body says the other model and nothing else has changed."""
    body = simple(wire)
    before = request_turn(wire, body)
    edits_of(wire).set_model(body, "other")
    assert request_turn(wire, body) == replace(before, model="other")


# Tools


@every_wire
def test_dropped_tools_are_not_declared_and_the_others_are_as_before(wire: Wire) -> None:
    """Whatever is dropped, the turn declares exactly the rest, and its choice names none of the dropped."""
    edits = edits_of(wire)
    for body in requests(wire):
        before = request_turn(wire, body)
        names = {tool.name for tool in random.Random(1).sample(list(before.tools), (len(before.tools) + 1) // 2)}
        edits.drop_tools(body, names)
        after = request_turn(wire, body)
        assert list(after.tools) == [tool for tool in before.tools if tool.name not in names]
        assert after.items == before.items
        assert after.tool_choice is None or not names & set(after.tool_choice.names)


@every_wire
def test_without_tools_nothing_speaks_of_tools(wire: Wire) -> None:
    """When the last tool is dropped, neither tools nor a choice nor a parallel flag stay behind."""
    for choice in (None, "auto", "none", "required", "tool"):
        body = {**simple(wire, tool_choice=choice)}
        if wire.name != "anthropic":
            body["parallel_tool_calls"] = False
        edits_of(wire).drop_tools(body, ["one", "two"])
        assert not set(body) & {"tools", "tool_choice", "parallel_tool_calls"}


@every_wire
def test_dropping_the_forced_tool_leaves_the_choice_to_the_model(wire: Wire) -> None:
    """A choice that names a dropped tool is no choice any more; one that names another stays."""
    gone, kept = simple(wire, tool_choice="tool"), simple(wire, tool_choice="tool")
    edits_of(wire).drop_tools(gone, ["one"])
    edits_of(wire).drop_tools(kept, ["two"])
    choices = [request_turn(wire, body).tool_choice for body in (gone, kept)]
    assert choices == [ToolChoice("auto"), ToolChoice("tool", ("one",))]


@every_wire
def test_a_hosted_tool_is_dropped_by_its_kind(wire: Wire) -> None:
    """The provider's search is gone, the caller's tools stay."""
    body = simple(wire, searches=True)
    edits_of(wire).drop_tools(body, ["web_search"])
    assert [tool.name for tool in request_turn(wire, body).tools] == ["one", "two"]


@every_wire
def test_controls_of_a_hosted_tool_are_set(wire: Wire) -> None:
    """G12: clamped parameters stand on the hosted tool, beside those that nobody touched."""
    body = simple(wire, searches=True)
    edits_of(wire).set_controls(body, {"web_search": {"max_uses": 2}})
    edits_of(wire).set_controls(body, {"web_search": {"blocked_domains": ["a.test"]}, "other": {"x": 1}})
    (search,) = [tool for tool in request_turn(wire, body).tools if tool.hosted]
    assert search.controls == {"max_uses": 2, "blocked_domains": ["a.test"]}


SPEC = ToolSpec("lookup", "Looks things up.", {"type": "object", "properties": {"q": {"type": "string"}}})


@every_wire
def test_added_tools_come_last_and_are_declared_like_a_callers(wire: Wire) -> None:
    """G42: the turn declares the caller's tools and then ours, with name, description and schema."""
    for body in requests(wire):
        before = request_turn(wire, body)
        edits_of(wire).add_tools(body, [SPEC])
        expected = DeclaredTool("lookup", SPEC.description, dict(SPEC.parameters))
        assert list(request_turn(wire, body).tools) == [*before.tools, expected] or before.tools[-1].hosted
        assert expected in request_turn(wire, body).tools


@every_wire
def test_tools_are_added_to_a_request_without_any(wire: Wire) -> None:
    """A request that declares nothing gets the list too."""
    body = simple(wire)
    del body["tools"]
    edits_of(wire).add_tools(body, [SPEC])
    assert [tool.name for tool in request_turn(wire, body).tools] == ["lookup"]


@every_wire
def test_a_schema_without_a_type_is_an_object(wire: Wire) -> None:
    """Providers demand that the arguments of a tool are an object."""
    body = simple(wire, tools=[])
    edits_of(wire).add_tools(body, [ToolSpec("ping", "", {})])
    assert request_turn(wire, body).tools[-1].schema == {"type": "object", "properties": {}}


@every_wire
def test_a_replaced_tool_stands_in_its_place_and_the_choice_follows(wire: Wire) -> None:
    """G43: another definition in the same place; a choice that forced the one forces the other."""
    body = simple(wire, tool_choice="tool")
    edits_of(wire).replace_tool(body, "one", SPEC)
    turn = request_turn(wire, body)
    assert [tool.name for tool in turn.tools] == ["lookup", "two"]
    assert turn.tool_choice is not None
    assert turn.tool_choice.names == ("lookup",)


@every_wire
def test_a_description_is_added_to(wire: Wire) -> None:
    """G43: what the caller says of its tool stays, ours stands behind it; a schema, if given, takes the place of its own."""
    body = simple(wire)
    schema = {"type": "object", "properties": {"z": {"type": "integer"}}}
    edits_of(wire).describe_tool(body, "one", "Read only.")
    edits_of(wire).describe_tool(body, "two", "Read only.", schema)
    one, two = request_turn(wire, body).tools
    assert (one.description, two.description) == ("About one.\nRead only.", "About two.\nRead only.")
    assert (one.schema != schema, two.schema) == (True, schema)


@every_wire
def test_a_forced_choice_is_relaxed(wire: Wire) -> None:
    """G27, G41: forced and required become auto; what forces nothing stays as it was."""
    modes: list[Any] = []
    for choice in ("tool", "required", "auto", "none", None):
        body = simple(wire, tool_choice=choice)
        edits_of(wire).relax(body)
        turn = request_turn(wire, body)
        modes.append(turn.tool_choice and turn.tool_choice.mode)
    assert modes == ["auto", "auto", "auto", "none", None]


# Texts


@every_wire
def test_a_reminder_is_a_system_text_before_the_conversation(wire: Wire) -> None:
    """The turn has the same items, and among the leading system texts the reminder, after the caller's own."""
    for body in requests(wire):
        before = request_turn(wire, body)
        edits_of(wire).remind(body, ["First do no harm.", "Ask."])
        after = request_turn(wire, body)
        leading = [item for item in after.items if isinstance(item, TextItem) and item.role == "system"]
        own = [item for item in before.items if isinstance(item, TextItem) and item.role == "system"]
        assert "".join(item.text for item in leading).endswith("First do no harm.\n\nAsk.")
        assert all(item.text in "\n".join(one.text for one in leading) for item in own)
        assert after.items[len(leading) :] == before.items[len(own) :]


@every_wire
def test_no_reminder_changes_nothing(wire: Wire) -> None:
    """Nothing to say, nothing added."""
    body = simple(wire)
    before = copy(body)
    edits_of(wire).remind(body, [])
    assert body == before


def changed_items(items: list[Item], change: Callable[[int, str], str]) -> list[Item]:
    out: list[Item] = []
    for at, item in enumerate(items):
        if isinstance(item, TextItem):
            out.append(replace(item, text=change(at, item.text)))
        elif isinstance(item, ResultItem):
            out.append(replace(item, content=change(at, item.content)))
        else:
            out.append(item)
    return out


def sealed(wire: Wire, body: dict[str, Any]) -> dict[str, Any]:
    """Without thinking, which wires that seal it cannot keep when its words change."""
    entries: Any = body.get("input", body.get("output", []))
    if wire.name == "responses" and entries and not isinstance(entries, str):
        entries[:] = [one for one in entries if one.get("type") != "reasoning"]
    if wire.name == "anthropic":
        for one in body.get("messages", [body]):
            if isinstance(one["content"], list):
                one["content"][:] = [block for block in one["content"] if block["type"] != "thinking"]
    return body


@every_wire
@pytest.mark.parametrize("kind", ["request", "reply"])
def test_every_text_and_result_is_rewritten_under_its_own_number(wire: Wire, kind: str) -> None:
    """The changed body gives the turn of the old one with exactly the texts that the change made of each item."""
    parse = request_turn if kind == "request" else reply_turn
    for body in requests(wire) if kind == "request" else replies(wire):
        sealed(wire, body)
        before = parse(wire, body)

        def change(item: int, text: str) -> str:
            return f"[{item}] {text.upper()}"

        edits_of(wire).rewrite(body, change)
        assert parse(wire, body) == replace(before, items=changed_items(list(before.items), change))


@every_wire
@pytest.mark.parametrize("kind", ["request", "reply"])
def test_a_change_that_changes_nothing_leaves_the_body_alone(wire: Wire, kind: str) -> None:
    """Byte for byte, thinking and signatures too; and the change was asked of every text and result, under its number."""
    parse = request_turn if kind == "request" else reply_turn
    for body in requests(wire) if kind == "request" else replies(wire):
        before = copy(body)
        asked: dict[int, str] = {}

        def change(item: int, text: str, asked: dict[int, str] = asked) -> str:
            asked.setdefault(item, text)
            return text

        edits_of(wire).rewrite(body, change)
        assert body == before
        items = parse(wire, body).items
        assert asked == {
            at: item.text if isinstance(item, TextItem) else item.content
            for at, item in enumerate(items)
            if isinstance(item, (TextItem, ResultItem))
        }


@every_wire
def test_one_item_can_be_rewritten_and_the_others_stay(wire: Wire) -> None:
    """Only what the change changes is changed."""
    for body in requests(wire):
        sealed(wire, body)
        before = request_turn(wire, body)
        target = max(at for at, item in enumerate(before.items) if isinstance(item, (TextItem, ResultItem)))

        def change(item: int, text: str, target: int = target) -> str:
            return "gone" if item == target else text

        edits_of(wire).rewrite(body, change)
        assert request_turn(wire, body).items == changed_items(list(before.items), change)


@every_wire
def test_a_word_cut_in_two_by_parts_is_found(wire: Wire) -> None:
    """Models read parts on end, so a change that finds a word only in that reading is made."""
    body = simple(wire)
    parts = [
        {"type": "input_text" if wire.name == "responses" else "text", "text": text} for text in ("a sec", "ret b")
    ]
    if wire.name == "responses":
        body["input"] = [{"role": "user", "content": parts}]
    else:
        body["messages"][-1]["content"] = parts
    edits_of(wire).rewrite(body, lambda _, text: text.replace("secret", "word"))
    assert request_turn(wire, body).items[-1] == TextItem("user", "a word b")


@every_wire
def test_a_text_can_be_emptied(wire: Wire) -> None:
    """No part with empty text stays behind, which some providers refuse; an empty result stays a result."""
    for body in requests(wire):
        before = request_turn(wire, body)
        edits_of(wire).rewrite(body, lambda _, text: "")
        after = request_turn(wire, body)
        results = [replace(item, content="") for item in before.items if isinstance(item, ResultItem)]
        assert [item for item in after.items if isinstance(item, ResultItem)] == results
        assert not [item for item in after.items if isinstance(item, TextItem)]
        assert b'"type":"text","text":""' not in orjson.dumps(body)


# Calls of a reply


@every_wire
def test_allowed_calls_leave_the_reply_as_it_is(wire: Wire) -> None:
    """Nothing is touched when everything may pass under its own id."""
    for body in replies(wire):
        before = copy(body)
        edits_of(wire).keep_calls(body, judged(reply_turn(wire, body)))
        assert body == before


@every_wire
def test_denied_calls_are_taken_out_and_everything_else_stays(wire: Wire) -> None:
    """Whichever calls are denied, the turn of the reply has the rest, in order."""
    for body in replies(wire):
        before = reply_turn(wire, body)
        calls = judged(before)
        dice = random.Random(len(calls))
        for call in calls:
            call.status = dice.choice(("allow", "deny_call", "block", "require_approval"))
        gone = {call.item for call in calls if call.status != "allow"}
        edits_of(wire).keep_calls(body, calls)
        assert list(reply_turn(wire, body).items) == [item for at, item in enumerate(before.items) if at not in gone]


FINISH: dict[str, Callable[[Any], Any]] = {
    "chat_completions": lambda body: body["choices"][0]["finish_reason"],
    "responses": lambda body: body["status"],
    "anthropic": lambda body: body["stop_reason"],
}
ENDS = {
    "chat_completions": ("tool_calls", "stop"),
    "responses": ("completed",) * 2,
    "anthropic": ("tool_use", "end_turn"),
}


def two_calls(wire: Wire) -> dict[str, Any]:
    """A reply with a text and two calls."""
    return next(body for body in replies(wire) if len(judged(reply_turn(wire, body))) == 2)


@every_wire
def test_a_reply_that_lost_all_its_calls_ends_like_one_without(wire: Wire) -> None:
    """G2: no client waits for calls that do not come; with one left it still does."""
    ends: list[Any] = []
    for statuses in (("deny_call", "allow"), ("deny_call", "deny_call")):
        body = two_calls(wire)
        calls = judged(reply_turn(wire, body))
        for call, status in zip(calls, statuses, strict=True):
            call.status = status
        edits_of(wire).keep_calls(body, calls)
        ends.append(FINISH[wire.name](body))
    assert tuple(ends) == ENDS[wire.name]


@every_wire
def test_calls_get_the_ids_that_the_caller_sees(wire: Wire) -> None:
    """G3: ids are set by place, so missing and doubled ones are told apart."""
    body = two_calls(wire)
    calls = judged(reply_turn(wire, body))
    for number, call in enumerate(calls):
        call.call_id = f"seen_{number}"
    edits_of(wire).keep_calls(body, calls, {"seen_1": "other"})
    assert [call.call_id for call in judged(reply_turn(wire, body))] == ["seen_0", "other"]


@every_wire
def test_a_call_that_nobody_judged_does_not_pass(wire: Wire) -> None:
    """Closed: what has no ruling is not released."""
    body = two_calls(wire)
    first, second = judged(reply_turn(wire, body))
    edits_of(wire).keep_calls(body, [second])
    assert [call.call_id for call in judged(reply_turn(wire, body))] == [second.call_id]
    assert first.call_id != second.call_id


@every_wire
def test_texts_and_calls_are_judged_by_the_numbers_of_one_turn(wire: Wire) -> None:
    """A text that is emptied is an item less; the calls behind it are still those that were judged."""
    for body in replies(wire):
        before = reply_turn(wire, body)
        calls = judged(before)
        for call, status in zip(calls, ("allow", "deny_call", "allow"), strict=False):
            call.status, call.call_id = status, f"seen_{call.item}"
        edits_of(wire).keep_calls(body, calls, change=lambda item, text: "" if item == 0 else f"{item}{text}")
        expected: list[Item] = []
        for at, item in enumerate(before.items):
            ruled = {call.item: call for call in calls}.get(at)
            if isinstance(item, CallItem) and ruled is not None and ruled.status == "allow":
                expected.append(replace(item, id=f"seen_{at}"))
            elif isinstance(item, TextItem) and at:
                expected.append(replace(item, text=f"{at}{item.text}"))
            elif not isinstance(item, (CallItem, TextItem)):
                expected.append(item)
        assert list(reply_turn(wire, body).items) == expected


# The next request of the gateway itself


@every_wire
def test_an_answered_request_continues_with_the_reply_and_its_results(wire: Wire) -> None:
    """G27: the next request is the old transcript, then what the model said, then one result per call, in order."""
    for talk, upto, dice in talks(wire):
        request, reply = wire.request(talk, upto, dice), wire.reply(talk, upto, dice)
        asked, answer = request_turn(wire, request), reply_turn(wire, reply)
        calls = judged(answer)
        results = {call.item: ToolAnswer(call.call_id, f"no {call.item}", True) for call in calls}
        after = request_turn(wire, edits_of(wire).answered(request, reply, results))
        new = [item for item in said(after)[len(asked.items) :] if isinstance(item, (CallItem, ResultItem))]
        expected = [
            *(item for item in answer.items if isinstance(item, CallItem)),
            *(ResultItem(call.call_id, f"no {call.item}") for call in calls),
        ]
        assert new == expected
        assert said(after)[: len(asked.items)] == said(asked)
        spoken = [item for item in answer.items if isinstance(item, TextItem)]
        assert all(item in after.items[len(asked.items) :] for item in spoken)
        assert replace(after, items=()) == replace(asked, items=())


@every_wire
def test_an_answered_request_keeps_what_the_model_thought(wire: Wire) -> None:
    """G2: thinking and its signature go back as they came."""
    for talk, upto, dice in talks(wire):
        thinking = talk.rounds[upto].said.thinking
        if not thinking:
            continue
        request, reply = wire.request(talk, upto, dice), wire.reply(talk, upto, dice)
        calls = judged(reply_turn(wire, reply))
        results = {call.item: ToolAnswer(call.call_id, "no") for call in calls}
        written = edits_of(wire).answered(request, reply, results)
        before = len(request_turn(wire, request).items)
        assert TextItem("assistant", thinking) in request_turn(wire, written).items[before:]
        seal = {"chat_completions": "reasoning_content", "responses": '"sealed"', "anthropic": '"signed"'}[wire.name]
        assert seal in orjson.dumps(written).decode()


@every_wire
def test_answers_give_nameless_calls_their_ids(wire: Wire) -> None:
    """G3: a call without an id gets, in the next request, the one its answer has."""
    request, reply = simple(wire), two_calls(wire)
    calls = judged(reply_turn(wire, reply))
    results = {call.item: ToolAnswer(f"minted_{call.item}", "no") for call in calls}
    turn = request_turn(wire, edits_of(wire).answered(request, reply, results))
    minted = [f"minted_{call.item}" for call in calls]
    assert [item.id for item in turn.items if isinstance(item, CallItem)] == minted
    assert [item.call_id for item in turn.items if isinstance(item, ResultItem)] == minted


@every_wire
def test_an_answer_does_not_change_the_request_it_continues(wire: Wire) -> None:
    """Fallback to another target may need the request as it was."""
    request, reply = simple(wire), two_calls(wire)
    before = copy([request, reply])
    results = {call.item: ToolAnswer(f"x{call.item}", "no") for call in judged(reply_turn(wire, reply))}
    edits_of(wire).answered(request, reply, results)
    assert [request, reply] == before


# What was taken out of a reply


def spliced(wire: Wire, talk: Conversation, upto: int, dice: random.Random) -> Iterator[tuple[Any, Any, Splice]]:
    """Pairs of a request and the same with some calls of one round and their results taken out, with the splice between them."""
    for at, one in enumerate(talk.rounds[:upto]):
        calls = one.said.calls
        if len(calls) < 2 or at + 1 > upto:
            continue
        out = calls[-1:]
        rounds = list(talk.rounds)
        rounds[at] = replace(one, said=replace(one.said, calls=calls[:-1]))
        answers = rounds[at + 1].results
        rounds[at + 1] = replace(rounds[at + 1], results=[result for result in answers if result.call not in out])
        (gone,) = [result for result in answers if result.call in out]
        call = SplicedCall(
            gone.call.id, gone.call.name, orjson.dumps(gone.call.arguments).decode(), gone.text, gone.failed
        )
        seed = dice.random()
        whole = wire.request(talk, upto, random.Random(seed))
        yield (
            whole,
            wire.request(replace(talk, rounds=rounds), upto, random.Random(seed)),
            Splice(tuple(call.id for call in calls[:-1]), (call,)),
        )


def canonical_items(turn: Turn) -> list[Item]:
    items: list[Item] = []
    for item in said(turn):
        if isinstance(item, CallItem):
            items.append(replace(item, arguments=canonical(item.arguments)[0].decode()))
        elif not isinstance(item, HostedResultItem):  # the generator writes them in more than one way
            items.append(item)
    return items


@every_wire
def test_spliced_calls_stand_where_they_stood(wire: Wire) -> None:
    """G27: with what we took out of a reply put back, the transcript is the one that the model knows."""
    seen = 0
    for talk, upto, dice in talks(wire):
        for whole, body, splice in spliced(wire, talk, upto, dice):
            seen += 1
            edits_of(wire).splice(body, [splice])
            assert canonical_items(request_turn(wire, body)) == canonical_items(request_turn(wire, whole))
    assert seen > 20


@every_wire
def test_a_splice_without_its_siblings_changes_nothing(wire: Wire) -> None:
    """G27: a transcript that does not hold the turn gets nothing from it."""
    for talk, upto, dice in talks(wire):
        for _, body, splice in spliced(wire, talk, upto, dice):
            before = copy(body)
            edits_of(wire).splice(body, [replace(splice, siblings=("another",))])
            assert body == before


@every_wire
def test_what_is_there_already_is_not_spliced_again(wire: Wire) -> None:
    """Splicing twice is splicing once."""
    for talk, upto, dice in talks(wire):
        for _, body, splice in spliced(wire, talk, upto, dice):
            edits_of(wire).splice(body, [splice])
            before = copy(body)
            edits_of(wire).splice(body, [splice])
            assert body == before


@every_wire
def test_results_are_spliced_before_what_the_user_says(wire: Wire) -> None:
    """Every wire wants results right behind the calls, whatever the client sent with or instead of its own."""
    request = simple(wire)
    reply = two_calls(wire)
    first, second = judged(reply_turn(wire, reply))
    results = {call.item: ToolAnswer(call.call_id, "fine") for call in (first, second)}
    body = edits_of(wire).answered(request, reply, results)
    more: Any = {"role": "user", "content": "Go on."}
    entries: Any = body["input" if wire.name == "responses" else "messages"]
    entries.append(more)
    extra = SplicedCall("extra", "two", "{}", "denied", True)
    edits_of(wire).splice(body, [Splice((first.call_id,), (extra,))])
    items = said(request_turn(wire, body))
    assert [item.id for item in items if isinstance(item, CallItem)] == [first.call_id, second.call_id, "extra"]
    assert items[-4:] == [
        ResultItem(first.call_id, "fine"),
        ResultItem(second.call_id, "fine"),
        ResultItem("extra", "denied"),
        TextItem("user", "Go on."),
    ]


# Rounds of one answer


@every_wire
def test_joined_rounds_say_what_both_said_and_call_what_the_later_called(wire: Wire) -> None:
    """G41: one reply with the texts in order, the calls and the end of the later round, and the usage of both."""
    bodies = list(replies(wire))
    for first, later in pairwise(bodies):
        before, after = reply_turn(wire, first), reply_turn(wire, later)
        end = FINISH[wire.name](later)
        whole = edits_of(wire).join(first, later)
        turn = reply_turn(wire, whole)
        texts = [item.text for one in (before, after) for item in one.items if isinstance(item, TextItem)]
        words = "".join(item.text for item in turn.items if isinstance(item, TextItem))
        assert words.replace("\n", "") == "".join(texts).replace("\n", "")
        assert judged_ids(turn) == judged_ids(after)
        assert FINISH[wire.name](whole) == end
        assert turn.usage == Usage(60, 24)


def judged_ids(turn: Turn) -> list[str]:
    return [call.call_id for call in judged(turn)]


@every_wire
def test_joined_rounds_have_the_name_of_the_first(wire: Wire) -> None:
    """G41: to the client it is one message, so it keeps the id that it began with."""
    first, later = two_calls(wire), {**two_calls(wire), "id": "later", "created": 9, "created_at": 9}
    whole = edits_of(wire).join(first, later)
    names = (
        ("id", "created")
        if wire.name == "chat_completions"
        else ("id", "created_at")
        if wire.name == "responses"
        else ("id",)
    )
    assert [whole[name] for name in names] == [first[name] for name in names]


# Ids


@every_wire
def test_ids_are_renamed_in_calls_and_results(wire: Wire) -> None:
    """G24: another provider's ids, in every call and in the result that answers it; all else stays."""
    for body in requests(wire):
        before = request_turn(wire, body)
        names = {item.id: f"toolu_{at}" for at, item in enumerate(before.items) if isinstance(item, CallItem)}
        edits_of(wire).rename_ids(body, names)
        expected = [
            replace(item, id=names[item.id])
            if isinstance(item, CallItem)
            else replace(item, call_id=names[item.call_id])
            if isinstance(item, ResultItem)
            else item
            for item in before.items
        ]
        assert request_turn(wire, body) == replace(before, items=expected)
