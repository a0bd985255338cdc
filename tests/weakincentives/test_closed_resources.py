"""A resource that was closed inside a transaction is not put back when that rolls back (S7, S41)."""

from __future__ import annotations

from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.session import Session


class Connection:
    """Can be restored only while it is open, as a real one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def snapshot(self) -> str:
        return "taken"

    def restore(self, snapshot: str) -> None:
        if "close" in self.calls:
            raise RuntimeError("the connection is closed")
        self.calls.append("restore")

    def close(self) -> None:
        self.calls.append("close")


def _rolled_back(*, close_inside: bool) -> Connection:
    session = Session()
    resources = ResourceRegistry.of(Binding(Connection, lambda _: Connection())).open()
    with session.transaction(resources) as block:
        connection = resources.get(Connection)
        if close_inside:
            resources.close()
        block.rollback()
    session[Connection].append(connection)  # a poisoned session would refuse
    return connection


def test_a_closed_resource_is_forgotten_and_poisons_nothing() -> None:
    """Its restore is never called, and the session goes on."""
    assert _rolled_back(close_inside=True).calls == ["close"]


def test_an_open_resource_is_still_put_back() -> None:
    """Forgetting is for closed ones only."""
    assert _rolled_back(close_inside=False).calls == ["restore"]
