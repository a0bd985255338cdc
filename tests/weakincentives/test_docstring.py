"""What a tool learns from its function's docstring."""

from __future__ import annotations

from typing import Any

import pytest

from weakincentives.prompt.tool import Tool


def google(name: str, limit: int, other: bool) -> str:
    """Look something up.

    A longer story: with a colon.

    Args:
        name (str): What to look for,
            in any case.
        limit: How many at most.
        other:

    Returns:
        limit: not a parameter.
    """
    return ""


def numpy(name: str, limit: int, other: bool) -> str:
    """
    Look something up.

    Parameters
    ----------
    name : str
        What to look for,
        in any case.
    limit : int, optional
        How many at most.
    other

    Returns
    -------
    limit : int
        Not a parameter.
    """
    return ""


def sphinx(name: str, limit: int, other: bool) -> str:
    """Look something up.

    :param name: What to look for,
        in any case.
    :param int limit: How many at most.
    :type other: bool
    :returns: Nothing.
    """
    return ""


def plain(name: str, limit: int, other: bool) -> str:
    """Look something up.

    name: not in a list of parameters.
    """
    return ""


def descriptions(function: Any) -> dict[str, str | None]:
    return {name: each.get("description") for name, each in Tool.wrap(function).schema()["properties"].items()}


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_parameters_are_described_in_three_styles(function: Any) -> None:
    """Continuation lines are joined; what is not said is not invented."""
    assert descriptions(function) == {
        "name": "What to look for, in any case.",
        "limit": "How many at most.",
        "other": None,
    }


def test_a_docstring_in_no_style_describes_no_parameter() -> None:
    """Prose is left alone."""
    assert descriptions(plain) == {"name": None, "limit": None, "other": None}


@pytest.mark.parametrize("function", [google, numpy, sphinx, plain])
def test_the_first_line_is_the_description(function: Any) -> None:
    """Wherever the text begins."""
    assert Tool.wrap(function).description == "Look something up."


def test_several_parameters_may_share_a_description() -> None:
    """NumPy style names them together."""

    def add(a: int, b: int) -> int:
        """Add.

        Parameters
        ----------
        a, b : int
            A summand.
        """
        return a + b

    assert descriptions(add) == {"a": "A summand.", "b": "A summand."}
