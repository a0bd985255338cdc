"""Values in normal form: spellings of one value that have one form, and what is of no type."""

from __future__ import annotations

import pytest

from wardwright.policy.values import leaves, mixed, plain, simple, typed_as_whole, typed_in


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("on 5/15/2024", {"2024-05-15"}),
        ("am 15.05.2024", {"2024-05-15"}),
        ("3/4/2024", {"2024-03-04", "2024-04-03"}),
        ("May 15th, 2024", {"2024-05-15"}),
        ("the 15th of May", {"-05-15"}),
        ("2024-05-15T10:00", {"2024-05-15"}),
        ("version 1.2.3", set[str]()),
    ],
)
def test_dates_have_one_form(text: str, dates: set[str]) -> None:
    """P3: where a date can be read in two ways it is both."""
    assert {normal for kind, normal in typed_in(plain(text)) if kind == "d"} == dates


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("due 2024-05-20", []),
        ("2024-05-20 - 2024-05-25", []),
        ("2024-05-20 10:00", []),
        ("15.05.2024", []),
        ("acct 12345678 2024-05-20", ["1234567820240520"]),
        ("1234-56-78 9012", ["123456789012"]),
        ("12-34-5678", ["12345678"]),
    ],
)
def test_dates_are_no_account_numbers(text: str, numbers: list[str]) -> None:
    """P7: a date in a free text is not refused as a number, and hides none."""
    assert [normal for kind, normal in typed_in(text, dates=False) if kind == "n"] == numbers


@pytest.mark.parametrize(
    ("text", "atom"),
    [
        ("Bob <bob+x@corp.com>", ("a", "bob@corp.com")),
        ("GB29 NWBK 6016 1331 9268 19", ("n", "GB29NWBK60161331926819")),
        ("079 555 01 02", ("n", "0795550102")),
        ("https://www.a.example/b/", ("u", "a.example/b")),
        ("15.05.2024", ("d", "2024-05-15")),
    ],
)
def test_a_value_has_one_type_as_a_whole(text: str, atom: tuple[str, str]) -> None:
    """P3: spacing, case, tags of a mailbox and decoration do not matter."""
    assert atom in typed_as_whole(plain(text))


def test_a_link_ends_with_the_bracket_that_was_opened_before_it() -> None:
    """P3: links of markdown are found without what stands behind them."""
    found = [normal for kind, normal in typed_in("see [here](https://a.example/b(c))and on") if kind == "u"]
    assert found == ["a.example/b(c)"]


@pytest.mark.parametrize("text", ["open", "bob smith", "item-17", "7"])
def test_what_is_simple_has_no_type(text: str) -> None:
    """The quick answer agrees with the thorough one."""
    assert simple(text)
    assert typed_as_whole(text) == ()


@pytest.mark.parametrize("text", ["a@b.com", "2024-05-15", "12345678", "a.com", "may 5", "x/y"])
def test_what_may_have_a_type_is_not_simple(text: str) -> None:
    """No typed value slips through the quick answer."""
    assert not simple(text)


def test_scripts_that_look_alike_are_told_within_one_label() -> None:
    """A Greek word beside a Latin one is fine; inside one label it is not."""
    assert mixed("l\u0430rk.com")
    assert not mixed("\u03b1\u03b2\u03b3.com")
    assert not mixed("m\u00fcller.de")


def test_keys_that_name_records_are_leaves() -> None:
    """P1: the key and what stands behind it are one record."""
    found = leaves('{"Sea View": {"price": 1}, "Old Mill": 2}', keyed=True)
    assert found is not None
    assert [(leaf.path, leaf.record, leaf.value) for leaf in found] == [
        ("/{}", 1, "Sea View"),
        ("/sea view/price", 1, "1"),
        ("/{}", 2, "Old Mill"),
        ("/old mill", 2, "2"),
    ]
