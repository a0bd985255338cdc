"""docs/provenance.md says what is true: the plan it shows compiles, and has nothing odd about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wardwright import compile_plan, load_config

PAGE = Path(__file__).parents[2] / "docs" / "provenance.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+) ?\S*\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("body", [body for _, body in BLOCKS], ids=range(len(BLOCKS)))
def test_every_plan_of_the_page_compiles_without_a_word(body: str) -> None:
    """What a reader copies is accepted as it stands."""
    assert compile_plan(load_config(body)).warnings == ()


def test_every_fence_of_the_page_is_a_plan() -> None:
    """Nothing else is shown that would need a test."""
    assert {language for language, _ in BLOCKS} == {"yaml"}
    assert TEXT.count("```") == 2 * len(BLOCKS)
