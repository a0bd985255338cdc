"""Digests tell different values apart and equal ones together; facts keep no prompt text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardwright.facts import STORED_FIELDS, ToolFact, canonical, digest, stored, text_digest, tool_context

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.sampled_from([None, 2]), st.booleans(), st.booleans())
def test_layout_does_not_change_a_digest(value: Any, indent: int | None, ascii_only: bool, compact: bool) -> None:
    """G8, G24: the same value gives the same canonical form however a wire wrote it."""
    separators = (",", ":") if compact else None
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators)
    assert canonical(text)[0] == canonical(json.dumps(value))[0]


@given(values, values)
def test_different_values_have_different_forms(left: Any, right: Any) -> None:
    """G23: an approval for one value is none for another."""
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    if not same and left != right:
        assert canonical(json.dumps(left))[0] != canonical(json.dumps(right))[0]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"a": 123456789012345678901234567890}', '{"a": 123456789012345678901234567891}'),
        ('{"a": 0.12345678901234567890}', '{"a": 0.12345678901234567891}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"to": "eve", "to": "bob"}', '{"to":"bob"}'),
        ("{broken", '"{broken"'),
        ("[1e400]", "[1e401]"),
        ("[NaN]", "[null]"),
    ],
)
def test_what_a_fast_parser_blurs_is_kept_apart(left: str, right: str) -> None:
    """G23: duplicate keys and numbers out of range cannot borrow another value's approval."""
    assert canonical(left)[0] != canonical(right)[0]


def test_a_digest_needs_its_key() -> None:
    """G8: another key, another digest; 128 bits in hexadecimal."""
    assert digest(b"a", "{}") != digest(b"b", "{}")
    assert [len(digest(b"a", "{}")), len(text_digest(b"a", "x"))] == [32, 32]


def test_what_is_stored_holds_no_arguments_and_no_content() -> None:
    """G8: transient fields stay out of receipts."""
    fact = ToolFact(
        "n", "x", "n.x", "write", "planning", "assistant_tool_call", arguments='{"secret": 1}', content="secret"
    )
    assert "secret" not in json.dumps(stored(fact))
    assert set(stored(fact)) == set(STORED_FIELDS)


def test_tool_context_has_the_shape_of_the_receipt() -> None:
    """G3: the latest event is the primary tool; declared tools are the available ones."""
    call = ToolFact("n", "x", "n.x", "write", "planning", "assistant_tool_call")
    offered = ToolFact("n", "y", "n.y", "unknown", "planning", "declared_tool")
    context = tool_context([call, offered], "planning")
    assert (context["phase"], context["primary_tool"]["name"], len(context["facts"])) == ("planning", "x", 1)
    assert [tool["name"] for tool in context["available_tools"]] == ["y"]


def test_no_text_passes_for_a_number_beyond_the_parser_s_range() -> None:
    """G8: which of two fields holds a number shows in the digest."""
    left = '{"a":18446744073709551616,"b":"~int:18446744073709551617"}'
    right = '{"a":"~int:18446744073709551616","b":18446744073709551617}'
    assert digest(b"k", left) != digest(b"k", right)
