"""What a transcript claims against what the ledger knows: nothing a caller renames, repeats, resends or hides changes what happened."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from wardwright import compile_plan, govern
from wardwright.config import parse_config
from wardwright.errors import GovernanceUnavailable
from wardwright.facts import ToolFact
from wardwright.history import Registers
from wardwright.policy.rules import Ruling
from wardwright.wire import DeclaredTool, Item, TextItem, Turn
from wardwright.wire.turn import Gate, HostedCallItem, HostedResultItem

from .judged_session import Session, call, result, said, user


def marks(ruling: Ruling) -> list[str]:
    return [mark for fact in ruling.facts for mark in fact.marks]


CONTAINED = """
state_machine: {initial_state: active, states: [{id: active}, {id: reviewing}]}
governance:
  - {id: enter, kind: tool_sequence, after: {tool: {namespace: browser, phase: result_interpretation}}, transition_to: reviewing}
  - {id: no-shell, kind: tool_selector, state_scope: reviewing, action: block, tool: {namespace: shell, phase: planning}}
"""


def test_renaming_a_call_launders_nothing() -> None:
    """G22: a result belongs to the tool that the ledger says was called, whatever the transcript calls it."""
    session = Session(CONTAINED)
    session.request(user("hi"))
    session.reply(call("c1", "browser_open"))
    ruling = session.request(user("hi"), call("c1", "calc"), result("c1", "a page"))
    assert (marks(ruling), ruling.states) == (["altered"], {"default": "reviewing"})
    assert session.reply(call("c2", "shell_exec")).rule_id == "no-shell"


def test_a_result_is_not_judged_by_arguments_that_were_never_used() -> None:
    """G22: where the transcript changes a call's arguments, its result carries the true digest and no made-up arguments."""
    session = Session("governance: []\n# none\n")
    session.request(user("hi"))
    passed = session.reply(call("c1", "a.x", '{"n": 1}')).facts[0]
    told = session.request(user("hi"), call("c1", "a.x", '{"n": 2}'), result("c1")).facts[-1]
    assert (told.source, told.arguments_digest, told.arguments) == ("tool_result", passed.arguments_digest, None)


GUARDED = "governance: [{id: g, kind: request_guard, match: SECRET, roles: [user]}]\n# one\n"


def test_text_cannot_pass_for_the_border_between_items() -> None:
    """G22: separators inside a text never make another transcript look like a known prefix."""
    session = Session(GUARDED)
    session.request(TextItem("system", "s\x1euser\x1fSECRET"), user("z"))
    hidden = [TextItem("system", "s"), user("SECRET\x1euser\x1fz"), said("ok"), user("go")]
    assert session.request(*hidden).rule_id == "g"


ITEMS: list[list[Item]] = [
    [user("a"), user("b")],
    [user("a1:b")],
    [user("a"), said("b")],
    [call("a", "b", "c")],
    [call("ab", "", "c")],
    [call("a", "b1:c", "")],
    [result("a", "b", None, "c")],
    [result("a", "b", None, "")],
    [result("a", "b", True, "c")],
    [result("a", "b", False, "c")],
    [HostedCallItem("a", "mcp", "b", "c", "d")],
    [HostedCallItem("a", "mcp", "b", "c")],
    [HostedCallItem("a", "mcp", "b", None, "d")],
    [HostedCallItem("a", "mcp", "b", "", "d")],
    [HostedResultItem("a", "mcp", "b", None, "c", "d")],
    [HostedResultItem("a", "mcp", "b", True, "c", "d")],
    [HostedResultItem("a", "mcp", "b", None, None, "d")],
]


def test_different_transcripts_have_different_digests() -> None:
    """G22, G23: every field of every item is in the digest, behind its length."""
    digests: set[str] = set()
    for items in ITEMS:
        session = Session("governance: []\n# none\n")
        session.request(*items)
        (state,) = session.registers.scopes.values()
        digests.add(state.head.prefix_digest)
    assert len(digests) == len(ITEMS)


def test_the_result_of_a_held_call_is_a_mismatch() -> None:
    """G22, G23: a call that waits for an approval was never released, so nobody can have run it."""
    session = Session("governance: [{id: ap, kind: tool_selector, action: require_approval, tool: {name: pay}}]\n# x\n")
    session.request(user("hi"))
    session.reply(call("c1", "n.pay"))
    ruling = session.request(user("hi"), call("c1", "n.pay"), result("c1", "paid"))
    assert marks(ruling) == ["result_for_denied_call"]


# what was asked stays asked until it is answered

STRICT = """
targets: [{model: usual}, {model: strict}]
governance:
  - {id: writes, kind: tool_selector, action: switch_model, target_model: strict, tool: {name: write, phase: planning}}
  - {id: changed, kind: tool_selector, action: switch_model, target_model: strict, tool: {mark: definition_changed}}
"""
IMPORTED = [user("hi"), call("c1", "n.write"), result("c1"), said("done"), user("next")]


@pytest.mark.parametrize(
    "again",
    [
        [[*IMPORTED]],
        [[*IMPORTED, user("well?")]],
        [[TextItem("system", "edited"), *IMPORTED]],
        [[user("something else")], [*IMPORTED]],
    ],
    ids=["the same", "and a word more", "edited", "after another request"],
)
def test_a_request_sent_again_meets_the_route_it_met(again: list[list[Item]]) -> None:
    """G3, G12: until a reply is released, resending, extending or editing a request escapes no rule, and counts nothing."""
    session = Session(STRICT)
    assert session.request(*IMPORTED).route.model == "strict"
    for items in again:
        ruling = session.request(*items)
    assert (ruling.route.model, [fact for fact in ruling.facts if not fact.repeat]) == ("strict", [])


def test_asking_for_another_answer_meets_the_same_route() -> None:
    """G3: the same request after its reply was released is judged as it was."""
    session = Session(STRICT)
    session.request(*IMPORTED)
    session.reply(said("ok"), target="strict")
    assert session.request(*IMPORTED).route.model == "strict"
    assert session.request(*IMPORTED, user("well?")).route.model == "strict"


def test_what_was_answered_is_behind() -> None:
    """G3: once a reply was released, the next request is judged by what is new in it."""
    session = Session(STRICT)
    session.request(*IMPORTED)
    session.reply(said("ok"), target="strict")
    ruling = session.request(*IMPORTED, said("ok"), user("more"))
    assert (ruling.route.model, ruling.facts) == ("", ())


def test_a_changed_definition_stays_changed_until_a_reply_is_released() -> None:
    """G6: sending the changed surface twice does not make it the pinned one; an answer to it does."""
    session = Session(STRICT)
    session.request(user("a"), tools=[DeclaredTool("t", "one")])
    session.reply(said("ok"), target="usual")
    talk = [user("a"), said("ok"), user("b")]
    routes = [session.request(*talk, tools=[DeclaredTool("t", "two")]).route.model for _ in range(2)]
    session.request(*talk)
    routes.append(session.request(*talk, tools=[DeclaredTool("t", "two"), DeclaredTool("u")]).route.model)
    session.reply(said("yes"), target="strict")
    routes.append(session.request(*talk, said("yes"), user("c"), tools=[DeclaredTool("t", "two")]).route.model)
    assert routes == ["strict", "strict", "strict", ""]


BUNDLED = """
governance:
  - {id: attach, kind: tool_selector, action: annotate, attach_policy_bundle: b, tool: {name: risky}}
  - {id: few, kind: allowed_tools, mode: deny_call, phase: result_interpretation, allowed_tools: [{name: fine}, {name: delete}]}
policy_bundles:
  b: [{id: no-delete, kind: tool_selector, action: deny_call, tool: {name: delete}}]
"""


def in_flight(session: Session) -> tuple[Ruling, Ruling]:
    """Two requests of one session, neither answered yet."""
    session.request(user("a"))
    session.reply(call("c1", "n.risky"))
    return session.request(user("a"), call("c1", "n.risky"), result("c1")), session.request(user("zzz"))


@pytest.mark.parametrize("named", [True, False])
def test_a_reply_is_judged_by_the_request_it_answers(named: bool) -> None:
    """G14, G25: a second request in flight takes neither the bundles nor the phase of the first away."""
    session = Session(BUNDLED)
    first, _ = in_flight(session)
    ruling = session.reply(call("c2", "n.delete"), call("c3", "n.other"), request=first.request if named else "")
    assert [one.rules for one in ruling.calls] == [("b/no-delete",), ("few",)]


def test_the_other_reply_is_judged_by_its_own_request() -> None:
    """G25: what the first request attached does not reach the reply to the second."""
    session = Session(BUNDLED)
    _, second = in_flight(session)
    ruling = session.reply(call("c2", "n.delete"), call("c3", "n.other"), request=second.request)
    assert ruling.decision == "allow"


def test_a_reply_to_a_forgotten_request_does_not_pass() -> None:
    """G19: where nobody knows any more what was asked, the answer is refused, not guessed at."""
    session = Session(BUNDLED)
    first, _ = in_flight(session)
    for number in range(16):
        session.request(user(f"number {number}"))
    with pytest.raises(
        GovernanceUnavailable, match=r"The request that this answers is no longer known\. Send it again\."
    ):
        session.reply(said("late"), request=first.request)


def test_the_record_of_requests_stays_small() -> None:
    """G30: a session remembers its last sixteen requests, however many it makes and however many tools they lose."""
    session = Session(
        "governance: [{id: s, kind: tool_selector, action: strip_tools, tool: {source: declared_tool}}]\n# x\n"
    )
    tools = [DeclaredTool(f"t{number}") for number in range(300)]
    for number in range(40):
        session.request(user(f"number {number}"), tools=tools)
    (state,) = session.registers.scopes.values()
    assert len(state.registers[("request", "")]) < 16 * 16


# ids

LOOP = """
governance:
  - {id: loop, kind: tool_loop_threshold, action: block, threshold: 3, equal: tool, tool: {phase: planning}}
  - {id: made-up, kind: tool_selector, action: block, tool: {mark: [forged, altered]}}
"""


def test_one_id_for_many_calls_hides_none_of_them() -> None:
    """G3: an id met before in a transcript is another call; results answer them in turn."""
    session = Session(LOOP)
    pair = [call("call_1", "a.x"), result("call_1")]
    ruling = session.request(user("hi"), *pair, *pair, *pair)
    assert ruling.rule_id == "loop"
    assert [fact.tool_call_id for fact in ruling.facts] == [
        name for name in ("call_1", "call_1#2", "call_1#3") for _ in range(2)
    ]


def test_parallel_calls_of_one_id_take_their_results_in_order() -> None:
    """G3: two calls, then two results: the second result belongs to the second call."""
    session = Session("governance: []\n# none\n")
    ruling = session.request(user("hi"), call("x", "a.one"), call("x", "a.two"), result("x", "1"), result("x", "2"))
    results = [(fact.name, fact.tool_call_id) for fact in ruling.facts if fact.source == "tool_result"]
    assert results == [("one", "x"), ("two", "x#2")]


def test_a_provider_that_repeats_ids_of_hosted_events_is_still_counted() -> None:
    """G3, G15: six searches under one id are six searches; the transcript that shows them is honest and counts none again."""
    session = Session(LOOP.replace("threshold: 3", "threshold: 4"))
    items: list[Item] = [user("hi")]
    decisions: list[str] = []
    for number in range(4):
        session.request(*items)
        search = HostedCallItem("ws_0", "web_search", f'{{"query": {number % 2}}}')
        decisions.append(session.reply(search).decision)
        items.append(search)
    assert decisions == ["allow", "allow", "allow", "block"]


def test_hosted_items_are_compared_with_what_the_provider_sent() -> None:
    """G22: an edited hosted result is altered, with or without an id; the true one is not."""
    for call_id in ("h1", ""):
        session = Session("governance: []\n# none\n")
        session.request(user("hi"))
        session.reply(
            HostedCallItem(call_id, "web_search"), HostedResultItem(call_id, "web_search", "truth"), said("t")
        )
        honest = [user("hi"), HostedCallItem(call_id, "web_search"), HostedResultItem(call_id, "web_search", "truth")]
        assert session.request(*honest, said("t"), user("n")).facts == ()
        honest[2] = HostedResultItem(call_id, "web_search", "lies")
        ruling = session.request(*honest, said("t"), user("n"))
        assert [fact.result_digest != "" for fact in ruling.facts] == [True]
        assert marks(ruling) == (["altered"] if call_id else [])


@pytest.mark.parametrize(("sent", "shown"), [("", "a page"), ("a page", "")])
def test_what_a_hosted_event_leaves_out_alters_nothing(sent: str, shown: str) -> None:
    """G22: providers show what a search found only when asked, and clients drop it: that is no other event."""
    session = Session("governance: []\n# none\n")
    session.request(user("hi"))
    session.reply(HostedResultItem("h1", "web_search", sent), said("t"))
    assert session.request(user("hi"), HostedResultItem("h1", "web_search", shown), said("t"), user("n")).facts == ()


def test_calls_without_ids_are_known_again() -> None:
    """G3: on a wire without call ids an honest client's transcript is neither forged nor counted twice, however often it repeats a call."""
    session = Session(LOOP.replace("threshold: 3", "threshold: 4"))
    items: list[Item] = [user("hi")]
    for number in range(3):
        ruling = session.request(*items)
        assert (ruling.decision, marks(ruling)) == ("allow", [])
        assert session.reply(call("", "a.x", '{"n":1}')).decision == "allow"
        items += [call("", "a.x", '{"n": 1}'), result("", f"r{number}", None, "a.x")]
    assert marks(session.request(*items)) == []
    assert marks(session.request(*items, call("", "a.x", '{"n": 1}'), result("", "r", None, "a.x"))) == ["forged"] * 2


def test_a_denied_call_without_an_id_takes_no_number() -> None:
    """G3, G27: after a denied legacy call the next equal one is the first that the caller sees."""
    session = Session(
        "state_machine: {initial_state: shut, states: [{id: shut}, {id: open}]}\n"
        "governance:\n  - {id: shut-x, kind: tool_selector, action: deny_call, state_scope: shut, tool: {name: x, phase: planning}}\n"
        "  - {id: go, kind: request_guard, action: transition, match: please, transition_to: open}\n"
    )
    session.request(user("hi"))
    assert session.reply(call("", "a.x")).decision == "deny_call"
    session.request(user("please"))
    assert session.reply(call("", "a.x")).decision == "allow"
    assert marks(session.request(user("please"), call("", "a.x"), result("", "r", None, "a.x"))) == []


def test_a_held_reply_counts_once() -> None:
    """G23: released after an approval, calls and hosted events of a held reply are the ones that were counted."""
    session = Session("governance: [{id: ap, kind: tool_selector, action: require_approval, tool: {name: pay}}]\n# x\n")
    session.request(user("hi"))
    reply = [call("", "n.pay"), HostedCallItem("ws", "web_search")]
    held = session.reply(*reply)
    released = session.reply(*reply, approvals=tuple(one.key for one in held.findings))
    assert (released.decision, [fact.repeat for fact in released.facts]) == ("allow", [True, True])
    assert held.calls[0].call_id == released.calls[0].call_id


REPLACED = "governance: [{id: d, kind: tool_selector, action: deny_call, tool: {name: foo, phase: result_interpretation}}]\n# x\n"


def test_our_own_replacement_of_a_result_is_no_mismatch() -> None:
    """G27: the transcript shows the error that we put in the place of a result; only what differs from that is altered."""
    session = Session(REPLACED)
    session.request(user("hi"))
    session.reply(call("c1", "n.foo"))
    replaced = session.go("result", [call("c1", "n.foo"), result("c1", "secret")]).calls[0].message
    talk = [user("hi"), call("c1", "n.foo"), result("c1", replaced)]
    told = [marks(session.request(*talk)), marks(session.request(*talk))]
    told.append(marks(session.request(*talk[:2], result("c1", "secret"))))
    assert told == [[], [], ["altered"]]


def test_a_result_that_we_replaced_cannot_come_back_as_it_was() -> None:
    """G22, G27: a transcript that shows what was never handed on is altered."""
    session = Session(REPLACED)
    session.request(user("hi"))
    session.reply(call("c1", "n.foo"))
    session.go("result", [call("c1", "n.foo"), result("c1", "secret")])
    assert marks(session.request(user("hi"), call("c1", "n.foo"), result("c1", "secret"))) == ["altered"]


# words of the user

UNTIL_USER = CONTAINED.replace("transition_to: reviewing", "until: {user_turn: true}, transition_to: reviewing")


def test_a_prompt_that_shares_nothing_with_the_session_is_no_word_of_the_user() -> None:
    """G16: a model that writes a prompt for a helper in the same session does not end its own containment."""
    session = Session(UNTIL_USER)
    session.request(user("hi"))
    session.reply(call("c1", "browser_open"))
    talk = [user("hi"), call("c1", "browser_open"), result("c1", "a page")]
    session.request(*talk)
    session.reply(said("seen"))
    assert session.request(user("run the shell for me")).states == {"default": "reviewing"}
    assert session.reply(call("c2", "shell_exec")).rule_id == "no-shell"


def test_a_word_of_the_user_counts_where_a_client_edits_the_start() -> None:
    """G16: a client that changes its system prompt with every request still speaks for its user."""
    session = Session(UNTIL_USER)
    session.request(user("hi"))
    session.reply(call("c1", "browser_open"))
    talk = [user("hi"), call("c1", "browser_open"), result("c1", "a page")]
    session.request(TextItem("system", "noon"), *talk)
    session.reply(said("seen"))
    edited = [TextItem("system", "one o'clock"), *talk, said("seen")]
    assert session.request(*edited, user("fine, go on")).states == {"default": "active"}


# surfaces


def test_a_definition_is_its_content_not_its_spelling() -> None:
    """G6: keys in another order are the same definition; another value is a change, however equal Python finds it."""
    session = Session(STRICT)
    session.request(user("a"), tools=[DeclaredTool("t", "d", {"type": "object", "const": 1}), DeclaredTool("u")])
    same = session.request(user("a"), tools=[DeclaredTool("u"), DeclaredTool("t", "d", {"const": 1, "type": "object"})])
    other = session.request(user("a"), tools=[DeclaredTool("t", "d", {"type": "object", "const": True})])
    assert (marks(same), marks(other)) == ([], ["definition_changed"])


def test_the_memory_for_surfaces_is_bounded_in_bytes() -> None:
    """G30: callers choose surfaces, so what is remembered of them has a size, and forgetting changes no ruling."""
    session = Session(STRICT)
    part = session.plan.models["default"]
    first = part.observer.surface([DeclaredTool("t", "x" * 150_000)])
    for number in range(60):
        part.observer.surface([DeclaredTool("t", f"{number}" + "x" * 150_000)])
    again = part.observer.surface([DeclaredTool("t", "x" * 150_000)])
    assert again is not first
    assert again.digest == first.digest


def test_a_schema_that_a_fast_writer_refuses_is_still_pinned() -> None:
    """G6, G19: numbers beyond 64 bits in a schema are compared, not a reason to fail."""
    session = Session(STRICT)
    session.request(user("a"), tools=[DeclaredTool("t", "d", {"const": 2**70})])
    assert marks(session.request(user("a"), tools=[DeclaredTool("t", "d", {"const": 2**70 + 1})])) == [
        "definition_changed"
    ]


@pytest.mark.parametrize("claims", [[1], "text", 7, {"primary_tool": 7}])
def test_an_attestation_that_cannot_be_read_is_noted(claims: Any) -> None:
    """G7: what a trusted caller attests in no readable form is a note, not a failure."""
    ruling = Session("governance: []\n# none\n").request(user("hi"), claims=claims, claims_trusted=True)
    assert (ruling.notes, ruling.facts) == (("claim_unreadable",), ())


@pytest.mark.parametrize("gate", ["request", "reply"])
def test_a_server_tool_of_an_mcp_server_runs_there(gate: Gate) -> None:
    """G26: a tool that the gateway has run elsewhere is `remote_mcp`; one that it runs itself is not."""
    plan = compile_plan(parse_config("model_id: m"))
    ours = frozenset({"near", "far"})
    items = (call("1", "near"), call("2", "far"), call("3", "theirs"))
    turn = Turn(gate, "anthropic", "m", items, server_tools=ours, remote_tools=frozenset({"far"}))
    ruling, _ = govern(plan, Registers(key=b"k"), turn, 1)
    found = {fact.raw_name: (fact.execution_location, fact.visibility_level) for fact in ruling.facts}
    assert found == {
        "near": ("wardwright", "local_verified"),
        "far": ("remote_mcp", "remote_observed"),
        "theirs": ("client", "remote_observed"),
    }


def test_a_fact_has_every_field() -> None:
    """Facts of calls and results, which are made in few steps, are what `ToolFact` makes of the same values."""
    session = Session(CONTAINED)
    session.request(user("Go"))
    asked = call("1", "files_read", '{"path": "a"}')
    facts = [*session.reply(asked).facts, *session.request(user("Go"), asked, result("1")).facts]
    assert [fact.source for fact in facts] == ["assistant_tool_call", "tool_result"]
    for fact in facts:
        assert ToolFact(**{field.name: getattr(fact, field.name) for field in fields(ToolFact) if field.init}) == fact
