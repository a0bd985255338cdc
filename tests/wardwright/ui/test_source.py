"""Problems of a text are told at their lines, each with what to do about it."""

from __future__ import annotations

import pytest

from wardwright.errors import Problem
from wardwright.ui.source import ELSE, ODD, annotate, fix


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("unknown key 'acton' (did you mean 'action'?)", "Write 'action' instead of 'acton', or take it out."),
        ("unknown key 'colour'", "Take 'colour' out; docs/policy lists the keys of every kind."),
        ("missing key 'tool'", "Add 'tool:' to it."),
        ("unknown kind 'tool_lop' (did you mean 'tool_loop'?); known: x", "Write 'tool_loop'."),
        ("'odd' is not one of info, low", "Choose one of info, low."),
        ("duplicate key 'id', first at line 4", "Keep one of the two: the other stands at line 4."),
        ("target 'big' is already used at line 2", "Give one of them another name: the other stands at line 2."),
        ("state 'a' is declared twice", "Take one of them out, or give it another name."),
        (
            "not valid YAML: mapping values are not allowed here",
            "Look at this line and the one above it: indentation, quotes, brackets, a missing colon.",
        ),
        ("the file is empty", "Begin with 'model_id:' and 'governance:'."),
        ("expected a whole number, got text 'x'", "Write a whole number here."),
        ("must be at least 1, got 0", "Write 1 or more."),
        (
            "can never match: only results have a result_status",
            "Change the matcher, or take the rule out: as it stands it does nothing.",
        ),
        ("must not be an empty list", "Write something here, or take the key out."),
        ("unknown state 'there'", "Declare 'there' first, or name one that there is."),
        ("a window of 9 ms is longer than the retention of user (3 ms)", ELSE),
    ],
)
def test_every_problem_comes_with_what_to_do(message: str, words: str) -> None:
    """The sentence names the words of the problem where it has any."""
    assert fix(message) == words


def test_a_warning_need_not_be_acted_on() -> None:
    """It merely looks odd."""
    assert fix("a window can be flushed", "warning") == ODD


def test_problems_stand_in_the_order_of_lines_with_the_place_marked() -> None:
    """The line itself, with a mark below the column."""
    found = annotate(
        "a: 1\nbad: x\n",
        [
            Problem("f", 2, 6, "bad", "wrong"),
            Problem("f", 1, 1, "a", "odd", "warning"),
            Problem("f", 2, 1, "b", "odd", "warning"),
        ],
    )

    assert [(one.line, one.excerpt) for one in found.problems] == [
        (1, "a: 1\n^"),
        (2, "bad: x\n^"),
        (2, "bad: x\n     ^"),
    ]
    assert found.marks == {1: "warning", 2: "error"}
    assert (len(found.errors), len(found.warnings), found.lines) == (1, 2, 3)


def test_a_long_line_is_shown_around_its_problem() -> None:
    """The mark stands below the place also where the line is cut."""
    line = "x" * 300 + "!" + "x" * 300
    shown, mark = annotate(line, [Problem("f", 1, 301, "$", "wrong")]).problems[0].excerpt.split("\n")

    assert shown[mark.index("^")] == "!"
    assert len(shown) <= 160


def test_a_problem_beyond_the_text_has_no_line_to_show() -> None:
    """Nothing is invented for it."""
    assert annotate("a\n", [Problem("f", 9, 1, "$", "wrong")]).problems[0].excerpt == ""
