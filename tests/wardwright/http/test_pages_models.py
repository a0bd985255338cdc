"""Models: what each may reach (G44), without source or paths; switches that are audited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wardwright import receipts
from wardwright.store import ReceiptQuery

from .desk import Desk
from .visitor import Visitor


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.close()


def test_a_model_is_shown_with_its_tools_and_targets(desk: Desk) -> None:
    """G44: engine, limits, keys, counts, mediation, targets that can receive tools."""
    text = Visitor(desk, "viewer").get("/models").text

    assert "0 guaranteed, 1 conditional ( intersection )" in text
    assert "mode patch , 1 rule" in text
    assert "Can receive tools big" in text
    assert "lookup on engine snippet, source inline" in text
    assert "Parameters word Fixed input limit Limits 2 s, 100 characters" in text


def test_neither_source_nor_values_are_shown(desk: Desk) -> None:
    """G44: names of keys only."""
    assert "secret_source" not in Visitor(desk).get("/models").html


def test_a_switch_works_both_ways_and_is_recorded(desk: Desk) -> None:
    """With who did it and why."""
    visitor = Visitor(desk)

    off = visitor.follow(visitor.send(visitor.get("/models").form("/models/switch"), note="odd results"))
    switched = desk.overlay.off("coding")
    visitor.send(off.form("/models/switch"))

    assert "lookup of coding is off. Recorded as rcpt_" in off.text
    assert "0 guaranteed, 0 conditional" in off.text
    assert (switched, desk.overlay.off("coding")) == (frozenset({"lookup"}), frozenset())
    told = [receipts.load(one.row.body)["admin"] for one in desk.store.receipts(ReceiptQuery()).receipts]
    assert [(one["action"], one["details"].get("note")) for one in told] == [
        ("switch_on", ""),
        ("switch_off", "odd results"),
    ]


@pytest.mark.parametrize("role", ["viewer", "approver"])
def test_only_operators_see_the_switches(desk: Desk, role: str) -> None:
    """Controls that one may not use are not shown."""
    assert {form.action for form in Visitor(desk, role).get("/models").forms} == {"/signout"}


def test_a_tool_that_is_not_there_cannot_be_switched(desk: Desk) -> None:
    """It is told, with what was sent."""
    visitor = Visitor(desk)

    seen = visitor.send(visitor.get("/models").form("/models/switch"), tool="none", note="why")

    assert seen.status == 404
    assert seen.form("/models/switch").fields["note"] == "why"
