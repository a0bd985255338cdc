"""Every numbered requirement of the governance engine is shown by a case file or a test, and the page that says so is true."""

from __future__ import annotations

import pytest

from .requirements import CITED, ELSEWHERE, OWNED, PROBLEMS, PROJECT, case_texts, citing, claim_texts, page, telling

TOLD, TESTED = list(case_texts()), list(claim_texts())


@pytest.mark.parametrize("number", OWNED)
def test_every_number_is_cited(number: str) -> None:
    """A requirement that nothing cites is a promise nobody keeps."""
    assert citing(number, TOLD) or citing(number, TESTED)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_has_stories_and_a_plan_to_take(problem: str) -> None:
    """The five problems are told in case files of our own, and each has a ready-made plan."""
    assert {path.relative_to(PROJECT).parts[0] for path in telling(problem, TOLD)} == {"src", "tests"}


def test_no_number_is_made_up() -> None:
    """A citation of a number that is in neither list is a slip."""
    cited = {number for _, text in [*TOLD, *TESTED] for number in CITED.findall(text)}

    assert cited - OWNED.keys() - ELSEWHERE.keys() == set()


def test_the_page_is_in_step() -> None:
    """What docs/requirements.md lists is what a scan of the cases and tests finds today."""
    written = (PROJECT / "docs" / "requirements.md").read_text("utf-8")
    assert written == page(), "write it anew: python tests/wardwright/requirements.py docs/requirements.md"
