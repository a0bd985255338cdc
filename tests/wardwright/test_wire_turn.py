"""Claims about the wire-neutral form itself."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from wardwright.wire import TextItem, Turn
from wardwright.wire.turn import again


@pytest.mark.interpreted
def test_a_turn_again_is_the_same_but_for_its_items() -> None:
    """Every field is taken over, the very object; only the items are the new ones."""
    values: dict[str, Any] = {field.name: object() for field in fields(Turn)}
    turn, items = Turn(**values), [TextItem("user", "Hello")]
    other = again(turn, items)
    assert {name: getattr(other, name) for name in values} == {**values, "items": items}
    assert turn.items is values["items"]
