"""Which session a transcript joins when its provider repeats call ids (G20): its own, or none, and never somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wardwright.sessions import Sessions
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Answer, Running, asked, goes_on, running, said
from .test_exchange import WIRES

WIRE: WireName = "chat_completions"
CONFIG = """
model_id: m
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets: [{model: first, provider: double, context_window: 100000}]
state_machine: {initial_state: active, states: [{id: active}, {id: reviewing}]}
governance:
  - {id: enter, kind: tool_sequence, after: {tool: {name: browse, phase: result_interpretation}}, transition_to: reviewing}
  - {id: no-shell, kind: tool_selector, state_scope: reviewing, action: block, tool: {namespace: shell, phase: planning}}
"""
TOOLS = ["look", "browse", "shell"]


async def begin(
    gateway: Running, text: str, name: str, arguments: Any, wire: WireName = WIRE, session: str = ""
) -> tuple[str, dict[str, Any]]:
    """A conversation whose first reply calls a tool under the id `call_0`; its session, and what its caller sends next."""
    body = asked(wire, text, TOOLS)
    gateway.provider.replies = [said(wire, "", ("call_0", name, arguments))]
    answer = await gateway.post(PATH[wire], body, session=session)
    assert answer.status == 200, answer.body
    return named(answer), goes_on(wire, body, answer.json, {"call_0": f"result of {text}"})


async def goes(gateway: Running, body: dict[str, Any], wire: WireName = WIRE, session: str = "") -> Answer:
    gateway.provider.replies = [said(wire, "Done.")]
    answer = await gateway.post(PATH[wire], body, session=session)
    assert answer.status == 200, answer.body
    return answer


def named(answer: Answer) -> str:
    return answer.headers["x-wardwright-session-id"]


def forget(gateway: Running) -> None:
    """As another process, or this one started again."""
    gateway.service.gateway.sessions = Sessions(gateway.service.gateway.gates)


@pytest.fixture(params=[False, True], ids=["remembered", "stored"])
def stored(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.parametrize("wire", WIRES)
def test_callers_with_the_same_id_stay_apart(tmp_path: Path, wire: WireName, stored: bool) -> None:
    """G20: each transcript joins the session that holds its call, and not the newest with that id."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "ann asks", "look", {"x": "1"}, wire)
        bob, next_bob = await begin(gateway, "bob asks", "look", {"x": "2"}, wire)
        assert ann != bob
        if stored:
            forget(gateway)
        assert named(await goes(gateway, next_ann, wire)) == ann
        assert named(await goes(gateway, next_bob, wire)) == bob

    running(tmp_path, CONFIG, story)


def test_the_same_call_of_another_conversation_is_not_its_own(tmp_path: Path, stored: bool) -> None:
    """G20: name, arguments and id alike, other words before them: each goes on from its own."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "ann asks", "look", {"x": "1"})
        bob, next_bob = await begin(gateway, "bob asks", "look", {"x": "1"})
        if stored:
            forget(gateway)
        assert named(await goes(gateway, next_ann)) == ann
        assert named(await goes(gateway, next_bob)) == bob

    running(tmp_path, CONFIG, story)


def test_an_id_that_is_somebody_else_s_alone_joins_nobody(tmp_path: Path, stored: bool) -> None:
    """G20: a transcript from elsewhere whose call has a known id and is another call is a session of its own."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "ann asks", "look", {"x": "1"})
        if stored:
            forget(gateway)
        next_ann["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"x": "other"}'
        answer = await goes(gateway, next_ann)
        assert named(answer) != ann and named(answer).startswith("ses_")
        next_ann["messages"][1]["tool_calls"][0]["function"].update(name="browse", arguments='{"x": "1"}')
        assert named(await goes(gateway, next_ann)) != ann

    running(tmp_path, CONFIG, story)


def test_conversations_that_were_alike_so_far_go_on_in_two_sessions(tmp_path: Path) -> None:
    """G20: alike in every word and id, either session will do; from the first word that differs each has one of its own."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "the same", "look", {"x": "1"})
        bob, next_bob = await begin(gateway, "the same", "look", {"x": "1"})
        next_ann["messages"][-1]["content"] = "what ann sees"
        next_bob["messages"][-1]["content"] = "what bob sees"
        first = [named(await goes(gateway, one)) for one in (next_ann, next_bob)]
        assert sorted(first) == sorted((ann, bob))
        for one in (next_ann, next_bob):
            one["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
        assert [named(await goes(gateway, one)) for one in (next_ann, next_bob)] == first

    running(tmp_path, CONFIG, story)


def test_an_edited_transcript_that_may_be_of_several_joins_none(tmp_path: Path) -> None:
    """G20: two sessions have the call and neither what stands before it: joining one of them would be a guess."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "ann asks", "look", {"x": "1"})
        bob, _ = await begin(gateway, "bob asks", "look", {"x": "1"})
        next_ann["messages"][0]["content"] = "a summary of what was said"
        assert named(await goes(gateway, next_ann)) not in (ann, bob)

    running(tmp_path, CONFIG, story)


def test_changing_a_call_to_leave_its_session_escapes_nothing(tmp_path: Path) -> None:
    """G20, attacked: the transcript that joins nobody is judged whole, so what it holds contains it as before."""

    async def story(gateway: Running) -> None:
        _, following = await begin(gateway, "ann asks", "browse", {"x": "1"})
        following["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"x": "other"}'
        gateway.provider.replies = [said(WIRE, "", ("call_1", "shell", {"x": "rm"}))]
        answer = await gateway.post(PATH[WIRE], following)
        assert answer.status == 403 and answer.json["error"]["rule_id"] == "no-shell"

    running(tmp_path, CONFIG, story)


def test_another_header_does_not_lead_out_of_a_session_though_its_ids_are_everywhere(tmp_path: Path) -> None:
    """G20, attacked: a clean session with the same id, named in the header, is not where the transcript belongs."""

    async def story(gateway: Running) -> None:
        tainted, following = await begin(gateway, "ann asks", "browse", {"x": "1"}, session="tainted")
        await begin(gateway, "harmless", "look", {"x": "1"}, session="clean")
        answer = await goes(gateway, following, session="clean")
        assert named(answer) == tainted == "tainted"
        forget(gateway)
        assert named(await goes(gateway, following, session="clean")) == "tainted"

    running(tmp_path, CONFIG, story)


def test_of_a_transcript_from_two_sessions_the_newest_call_tells(tmp_path: Path) -> None:
    """G20: put together by a caller from two conversations of its own, with words before them that neither had."""

    async def story(gateway: Running) -> None:
        body = asked(WIRE, "one", TOOLS)
        transcript = {**body, "messages": [{"role": "user", "content": "both"}]}
        names = list[str]()
        for call_id in ("a", "b"):
            gateway.provider.replies = [said(WIRE, "", (call_id, "look", {"x": call_id}))]
            answer = await gateway.post(PATH[WIRE], body)
            names.append(named(answer))
            transcript["messages"] += goes_on(WIRE, body, answer.json, {call_id: "seen"})["messages"][1:]
        assert named(await goes(gateway, transcript)) == names[1] != names[0]

    running(tmp_path, CONFIG, story)


def test_one_altered_call_of_several_still_joins_and_is_told(tmp_path: Path) -> None:
    """G22: what the session holds otherwise is a mismatch there, as long as one call says whose transcript it is."""

    async def story(gateway: Running) -> None:
        body = asked(WIRE, "two", TOOLS)
        gateway.provider.replies = [said(WIRE, "", ("a", "look", {"x": "1"}), ("b", "look", {"x": "2"}))]
        answer = await gateway.post(PATH[WIRE], body)
        following = goes_on(WIRE, body, answer.json, {"a": "1", "b": "2"})
        following["messages"][1]["tool_calls"][1]["function"]["arguments"] = '{"x": "other"}'
        after = await goes(gateway, following)
        assert named(after) == named(answer)
        facts = gateway.receipt(after)["decision"]["gates"][0]["facts"]
        assert any("altered" in fact.get("marks", ()) for fact in facts)

    running(tmp_path, CONFIG, story)


def test_an_edited_transcript_joins_the_only_session_that_has_its_call(tmp_path: Path, stored: bool) -> None:
    """G20: compaction and edit-and-retry keep their session: the call is there, and nobody else has it."""

    async def story(gateway: Running) -> None:
        ann, next_ann = await begin(gateway, "ann asks", "look", {"x": "1"})
        await begin(gateway, "bob asks", "look", {"x": "2"})
        if stored:
            forget(gateway)
        next_ann["messages"][0]["content"] = "a summary of what was said"
        assert named(await goes(gateway, next_ann)) == ann

    running(tmp_path, CONFIG, story)
