"""Templates and files: whatever is put in is escaped, what is missing is an error, and texts of time and number."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from wardwright import ui

FOLDER = Path(str(resources.files("wardwright.ui")))
TEMPLATES = sorted(path.name for path in (FOLDER / "templates").glob("*.html"))
SCRIPTS = sorted(path.name for path in (FOLDER / "static").glob("*.js"))


def test_what_is_put_in_is_escaped() -> None:
    """In text and in attributes."""
    text = ui.render("signin.html", visit=None, nav=(), here="", notice="", next='"><b>', problem="<i>&", kept="")

    assert 'value="&#34;&gt;&lt;b&gt;"' in text
    assert "&lt;i&gt;&amp;" in text


def test_a_value_that_is_missing_is_an_error() -> None:
    """Not an empty place that nobody notices."""
    with pytest.raises(Exception, match="'next' is undefined"):
        ui.render("signin.html", visit=None, nav=(), here="", notice="", problem="", kept="")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_keeps_to_the_content_policy(name: str) -> None:
    """No inline script, style or handler, nothing from elsewhere, nothing unescaped."""
    text = (FOLDER / "templates" / name).read_text("utf-8")

    assert re.findall(r"\sstyle=|\son\w+=|<style|<script(?! src=)|https?://|javascript:|\|\s*safe", text) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_markup_of_text(name: str) -> None:
    """What came from a receipt must not become part of a page by way of a script."""
    text = (FOLDER / "static" / name).read_text("utf-8")

    assert re.findall(r"\.innerHTML|\.outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []


@pytest.mark.parametrize("name", ["page.js", "style.css", "icon.svg"])
def test_a_file_has_an_address_by_its_content(name: str) -> None:
    """So that browsers may keep it for ever."""
    found = ui.static(name)

    assert found is not None
    assert ui.asset(name) == f"/static/{name}?v={found.digest}"


def test_a_file_that_is_missing_is_told_at_once() -> None:
    """A page with a broken address is not sent."""
    with pytest.raises(LookupError, match=r"no file 'none\.css'"):
        ui.asset("none.css")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "—"),
        (0, "0 ms"),
        (1.5, "1.5 ms"),
        (950, "950 ms"),
        (1500, "1.5 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (90_000_000, "1 d 1 h"),
        (-2000, "-2 s"),
    ],
)
def test_a_duration_is_said_in_two_units(ms: float | None, text: str) -> None:
    """Nobody counts milliseconds."""
    assert ui.duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(1_700_000_000_000, "2023-11-14 22:13:20 UTC"), (0, "—"), (None, "—"), (10**30, f"{10**30} ms")]
)
def test_a_moment_is_said_in_utc(ms: int | None, text: str) -> None:
    """Whatever a receipt holds."""
    assert ui.moment(ms) == text


def test_numbers_are_said_with_their_noun() -> None:
    """One, or many."""
    assert [ui.plural(1, "receipt"), ui.plural(4120, "receipt"), ui.plural(2, "try", "tries")] == [
        "1 receipt",
        "4,120 receipts",
        "2 tries",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [('{"a":1}', '{\n  "a": 1\n}'), ("not json", "not json"), ({"ü": 1}, '{\n  "ü": 1\n}')]
)
def test_json_is_made_readable(value: object, text: str) -> None:
    """Arguments as an approver wants to see them; what is no JSON stays as it is."""
    assert ui.readable(value) == text


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"n": 1e2}', '{"n": 1.00000000000000000001}', '{"n": NaN}', "[-0]"]
)
def test_json_that_readers_take_differently_is_shown_as_it_was_written(text: str) -> None:
    """An approver must not see `a` as 2 where the caller's reader takes 1."""
    assert ui.readable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm \u202egpj.exe", "rm \\u202egpj.exe"),
        ("pay\u200bpal", "pay\\u200bpal"),
        ("a\x1b[2Kb\x00", "a\\x1b[2Kb\\x00"),
        ("\u3164", "\\u3164"),
        ("two\n\tlines, größer, 猫", "two\n\tlines, größer, 猫"),
    ],
)
def test_what_would_hide_itself_is_written_out(text: str, shown: str) -> None:
    """Whoever decides by a name or an argument sees all of it, in the order in which it stands."""
    page = ui.render("signin.html", visit=None, nav=(), here="", notice="", next="/", problem=text, kept="")

    assert f'id="problem">{shown}</p>' in page


def test_a_field_that_is_sent_back_holds_its_text_exactly() -> None:
    """Also what is written out elsewhere."""
    page = ui.render("signin.html", visit=None, nav=(), here="", notice="", next="/", problem="", kept="a\u202e\x1bb")

    assert 'name="kept" value="a\u202e\x1bb"' in page


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_field_that_is_sent_back_is_exact(name: str) -> None:
    """But for numbers and what the gateway itself made of letters."""
    text = (FOLDER / "templates" / name).read_text("utf-8")
    fields = re.findall(r'value="\{\{ (.*?) \}\}"|\{\{ (.*?) \}\}</textarea>', text)

    own = {"visit.csrf", "one.digest", "epoch", "one.epoch", "row.position", "'false' if enabled else 'true'"}
    assert {one or other for one, other in fields} <= own | {
        one or other for one, other in fields if (one or other).endswith("|exact")
    }


def test_files_that_are_not_there_are_not_remembered() -> None:
    """Whoever asks for names that nobody has must not fill the memory, nor reach a path."""
    names = ["x" * 5000 + ".css", "../templates/layout.html", "..", "", "\x00.js", "page.js/", "Page.js"]

    assert [ui.static(name) for name in names] == [None] * len(names)
