"""Which session a request joins, when its header tells one and the newest call is known: nobody is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from wardwright.gates import Gates
from wardwright.sessions import REMEMBERED, Sessions
from wardwright.wire.turn import Caller, CallItem, Item, ResultItem, TextItem, Turn

CALLER = Caller(tenant="t", session_id="mine")


class EmptyStore:
    """Knows no session, and keeps the ids that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.store = self

    async def ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        return question(*arguments)

    def sessions_of(self, tenant: str, call_ids: Sequence[str]) -> dict[str, str]:
        self.asked += call_ids
        return {}


def joined(items: Sequence[Item], *remembered: str) -> tuple[Caller, list[str]]:
    """The caller that a transcript makes, and the ids that the store was asked for; `remembered` passed in the claimed session."""
    store = EmptyStore()
    sessions = Sessions(cast("Gates", store))
    sessions.remember("t", "mine", remembered)
    return asyncio.run(sessions.join(CALLER, Turn("request", "chat_completions", "m", items))), store.asked


def call(name: str) -> CallItem:
    return CallItem(name, "look", "{}")


@pytest.mark.parametrize(
    "items",
    [
        [TextItem("user", "hello")],
        [call("old"), ResultItem("old", "r"), call("new"), ResultItem("new", "r")],
        [call("a"), call("new"), ResultItem("new", "r"), ResultItem("a", "r"), TextItem("user", "and?")],
    ],
    ids=["no call", "one by one", "parallel"],
)
def test_the_newest_call_tells_without_asking(items: Sequence[Item]) -> None:
    """G20: what passed in the claimed session, and in no other, needs no look at the rest."""
    assert joined(items, "new") == (CALLER, [])


@pytest.mark.parametrize(
    "items",
    [
        [call("other"), ResultItem("other", "r")],
        [call("new"), ResultItem("new", "r"), ResultItem("other", "r")],
    ],
    ids=["call", "result alone"],
)
def test_a_newer_call_that_is_not_known_is_asked_for(items: Sequence[Item]) -> None:
    """G20: it may have passed in another session."""
    assert joined(items, "new") == (CALLER, ["other"])


def test_what_is_remembered_is_bounded_and_the_newest_stay() -> None:
    """However many calls pass, the store is asked for the oldest again, not for the newest."""
    names = [str(number) for number in range(REMEMBERED + 1)]
    newest = joined([call(names[-1])], *names)[1]
    oldest = joined([call(names[0])], *names)[1]
    assert (newest, oldest) == ([], ["0"])
