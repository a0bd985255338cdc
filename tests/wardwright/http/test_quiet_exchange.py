"""Exchanges in which no rule acts, through a whole gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from wardwright import quiet, receipts
from wardwright.history import Delta, ScopeDelta
from wardwright.store import ReceiptQuery, SqliteStore
from wardwright.wire.turn import WireName

from .gateway_fixture import PATH, Running, asked, goes_on, running, said

CONFIG = """
model_id: m
providers: {double: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
targets:
  - {model: first, provider: double, context_window: 100000}
governance:
  - {id: no-wipe, kind: tool_selector, action: deny_call, tool: {name: "*", arguments: {/x: {glob: "wipe*"}}}}
"""


@pytest.mark.parametrize("wire", ["chat_completions", "responses", "anthropic"])
def test_quiet_exchanges_are_written_at_once(tmp_path: Path, wire: WireName) -> None:
    """They are put together from what is remembered, and each row is that of the receipt it holds."""

    async def story(gateway: Running) -> None:
        first, second = said(wire, "Well.", ("c1", "look", {"x": "1"})), said(wire, "", ("c2", "look", {"x": "2"}))
        gateway.provider.replies = [first, second]
        body = asked(wire, "hi", ["look", "find"])
        assert (await gateway.post(PATH[wire], body)).status == 200
        assert (await gateway.post(PATH[wire], goes_on(wire, body, first, {"c1": "seen"}))).status == 200
        rules = gateway.service.gateway.live.deployment.rules["m"]
        assert isinstance(rules, receipts.Rules)
        memo = rules.memo
        assert isinstance(memo, quiet.Memo)
        assert (len(memo.kinds), len(memo.surfaces)) == (2, 1)
        stored = gateway.service.store.receipts(ReceiptQuery()).receipts
        assert len(stored) == 2
        for one in stored:
            made = receipts.record(receipts.load(one.row.body))
            assert (one.row.body, one.row.tags, one.row.scope) == (made.body, made.tags, made.scope)

    running(tmp_path, CONFIG, story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_reply_that_is_judged_again_is_told_once(tmp_path: Path, stream: bool) -> None:
    """L3: another process writes to the session while the provider is at work; the receipt has each gate as it was committed, once."""
    wire: WireName = "chat_completions"

    async def story(gateway: Running) -> None:
        store, writes = gateway.service.store, 0
        gateway.provider.replies = [said(wire, "Well."), said(wire, "", ("c1", "look", {"x": "1"}))]
        await gateway.post(PATH[wire], asked(wire, "hi"), session="s1")
        scope = store.receipts(ReceiptQuery()).receipts[0].row.scope

        async def another() -> None:
            nonlocal writes
            elsewhere = SqliteStore(tmp_path / "gateway.db")
            state = elsewhere.load((scope,), lambda _: ())[scope]
            elsewhere.commit(Delta(1, (ScopeDelta(scope, "session_id", state.version, state.head),)))
            elsewhere.close()
            writes += 1

        gateway.provider.before = another
        answer = await gateway.post(PATH[wire], asked(wire, "go on", ["look"], stream=stream), session="s1")
        assert (answer.status, writes) == (200, 1)
        gates = gateway.receipt(answer)["decision"]["gates"]
        assert [gate["gate"] for gate in gates] == ["request", "reply"]

    running(tmp_path, CONFIG, story)
