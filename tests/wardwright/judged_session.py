"""One caller under one plan, gate after gate, and the items of which such a caller's transcripts are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wardwright import compile_plan, govern, load_config
from wardwright.history import Registers, apply
from wardwright.policy.compile import Plan
from wardwright.policy.rules import Ruling
from wardwright.wire.turn import Caller, CallItem, Gate, Item, ResultItem, TextItem, Turn


class Session:
    def __init__(self, text: str) -> None:
        self.plan: Plan = compile_plan(load_config(text))
        self.registers = Registers(key=b"k")
        self.now = 1_000_000_000

    def go(self, gate: Gate, items: Sequence[Item], session: str = "s", person: str = "", **more: Any) -> Ruling:
        turn = Turn(gate, "chat_completions", "m", items, caller=Caller(session_id=session, user=person), **more)
        ruling, delta = govern(self.plan, self.registers, turn, self.now)
        self.registers = apply(self.registers, delta)
        return ruling

    def request(self, *items: Item, **more: Any) -> Ruling:
        return self.go("request", items, **more)

    def reply(self, *items: Item, **more: Any) -> Ruling:
        return self.go("reply", items, **more)


def user(text: str) -> TextItem:
    return TextItem("user", text)


def said(text: str) -> TextItem:
    return TextItem("assistant", text)


def call(call_id: str, name: str, arguments: str = "{}") -> CallItem:
    return CallItem(call_id, name, arguments)


def result(call_id: str, content: str = "ok", is_error: bool | None = None, name: str = "") -> ResultItem:
    return ResultItem(call_id, content, is_error, name)
