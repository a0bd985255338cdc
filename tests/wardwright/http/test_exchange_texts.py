"""Words that a rule changes are changed wherever they reach the caller: whole or streamed, in every round, held or not.

And ids that a provider would refuse are other ones wherever they reach it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from wardwright.providers.response import Canned, Response
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Running, asked, called, goes_on, running, said
from .test_exchange import decide, read

CONFIG = """
model_id: m
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets:
  - {model: first, provider: double, context_window: 100000}
governance:
  - {id: hush, kind: stream_guard, match: hunter2, action: transform, pattern: "hunter2", replacement: "XXX"}
  - {id: empty, kind: stream_guard, match: nothing, action: transform, pattern: "nothing", replacement: ""}
  - {id: no-wipe, kind: tool_selector, action: deny_call, message: No wiping here., tool: {name: wipe, source: assistant_tool_call}}
  - {id: ask-first, kind: tool_selector, action: require_approval, tool: {name: deploy, source: assistant_tool_call}}
"""


def test_words_of_an_answer_are_changed(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G12: the caller gets the changed words and the call."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "It is hunter2.", ("c1", "look", {}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["look"], stream=stream))
        assert answer.status == 200, answer.body
        assert (b"hunter2" in answer.body, b"It is XXX." in answer.body) == (False, True)
        assert called(wire, read(wire, answer, stream)) == ["c1"]

    running(tmp_path, CONFIG, story)


def test_words_of_an_earlier_round_are_changed(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G12, G41: rounds of one answer are one message, and no round of it passes as it was."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "It is hunter2.", ("c1", "wipe", {})), said(wire, "Done.")]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["wipe"], stream=stream))
        assert answer.status == 200, answer.body
        assert (b"hunter2" in answer.body, b"It is XXX." in answer.body) == (False, True)

    running(tmp_path, CONFIG, story)


def test_words_of_a_held_reply_are_changed(tmp_path: Path, wire: WireName, stream: bool) -> None:
    """G12, G23: an approval releases the call, not the words that another rule changes."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "It is hunter2.", ("c1", "deploy", {}))]
        body = asked(wire, "hi", ["deploy"], stream=stream)
        refused = await gateway.post(PATH[wire], body, session="s")
        assert refused.status == 403, refused.body
        await decide(gateway, refused.json["error"]["approval"], "approve")
        answer = await gateway.post(PATH[wire], body, session="s")
        assert answer.status == 200, answer.body
        assert (b"hunter2" in answer.body, b"It is XXX." in answer.body) == (False, True)
        assert called(wire, read(wire, answer, stream)) == ["c1"]

    running(tmp_path, CONFIG, story)


def test_no_denied_call_passes_when_the_words_before_it_are_emptied(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G12, G27: a text that is gone is an item less, and the calls behind it are still those that were judged."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "nothing", ("c1", "look", {}), ("c2", "wipe", {}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["look", "wipe"], stream=stream))
        assert answer.status == 200, answer.body
        assert called(wire, read(wire, answer, stream)) == ["c1"]
        assert b"wipe" not in answer.body

    running(tmp_path, CONFIG, story)


def other_ids(call_ids: Iterable[str]) -> dict[str, str]:
    return {one: f"fits_{one}" for one in call_ids if not one.startswith("fits_")}


def test_ids_of_calls_that_were_put_back_fit_the_provider_too(tmp_path: Path, wire: WireName) -> None:
    """G24, G27: the spliced call and its result have other ids like their siblings."""

    async def story(gateway: Running) -> None:
        gateway.provider.ids = other_ids
        body = asked(wire, "hi", ["look", "wipe"])
        gateway.provider.replies = [said(wire, "", ("c1", "look", {}), ("c2", "wipe", {})), said(wire, "Done.")]
        answer = await gateway.post(PATH[wire], body, session="s")
        following = goes_on(wire, body, read(wire, answer, False), {"c1": "seen"})
        assert (await gateway.post(PATH[wire], following, session="s")).status == 200
        sent = orjson.dumps(gateway.provider.sent[-1])
        assert [sent.count(f'"{name}"'.encode()) for name in ("fits_c1", "fits_c2", "c1", "c2")] == [2, 2, 0, 0]

    running(tmp_path, CONFIG, story)


def test_ids_of_an_earlier_round_fit_the_provider_too(tmp_path: Path, wire: WireName) -> None:
    """G24, G41: another provider may be asked in the next round."""

    async def story(gateway: Running) -> None:
        gateway.provider.ids = other_ids
        gateway.provider.replies = [said(wire, "", ("c1", "wipe", {})), said(wire, "Done.")]
        assert (await gateway.post(PATH[wire], asked(wire, "hi", ["wipe"]))).status == 200
        sent = orjson.dumps(gateway.provider.sent[-1])
        assert [sent.count(f'"{name}"'.encode()) for name in ("fits_c1", "c1")] == [2, 0]

    running(tmp_path, CONFIG, story)


ROUTED = CONFIG.replace(
    "governance:\n",
    "  - {model: second, provider: other, context_window: 100000}\n"
    "governance:\n"
    "  - {id: away, kind: tool_selector, action: switch_model, target_model: second, tool: {name: look, source: assistant_tool_call}}\n",
).replace("providers: {double:", 'providers: {other: {kind: openai, base_url: "http://127.0.0.1:9/v1"}, double:')


def test_nothing_of_a_reply_that_is_asked_again_elsewhere_is_released(
    tmp_path: Path, wire: WireName, stream: bool
) -> None:
    """G12: after a round of ours too, the words of the reply that another model answers again do not pass."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "One.", ("c1", "wipe", {})), said(wire, "Two.", ("c2", "look", {}))]
        gateway.other.replies = [said(wire, "Three.", ("c3", "look", {}))]
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["wipe", "look"], stream=stream))
        assert answer.status == 200, answer.body
        assert [word in answer.body for word in (b"One.", b"Two.", b"Three.")] == [True, False, True]
        assert called(wire, read(wire, answer, stream)) == ["c3"]

    running(tmp_path, ROUTED, story)


def test_a_stream_that_breaks_in_a_later_round_leaves_nothing_behind(tmp_path: Path, wire: WireName) -> None:
    """Half a reply of one provider is no part of what another one answers in its place."""

    async def story(gateway: Running) -> None:
        gateway.provider.replies = [said(wire, "One.", ("c1", "wipe", {})), said(wire, "Two is cut.")]
        gateway.other.replies = [said(wire, "Three.")]
        whole = gateway.provider.send

        async def send(wire: WireName, body: bytes, **options: Any) -> Response:
            response = await whole(wire, body, **options)
            if len(gateway.provider.sent) == 1:
                return response
            data = b"".join([piece async for piece in response.chunks()])
            return Canned(200, "text/event-stream", [data[: data.index(b"Two is cut.") + 40]])

        gateway.provider.send = send
        answer = await gateway.post(PATH[wire], asked(wire, "hi", ["wipe"], stream=True))
        assert answer.status == 200, answer.body
        assert [word in answer.body for word in (b"One.", b"Two", b"Three.")] == [True, False, True]

    running(tmp_path, ROUTED, story)
