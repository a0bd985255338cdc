"""Claims about edit_file: it changes what it was asked to and no byte besides, or says why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolOutcome
from weakincentives.testing import run_tool

EDIT = next(each for each in VfsToolsSection().tools if each.name == "edit_file")
CRLF = " Line endings were made CRLF, as they are in the file."


def edit(content: str | bytes, old: str, new: str, **more: object) -> tuple[ToolOutcome, bytes]:
    """The outcome of one edit of `a.txt`, and the file afterwards."""
    fs = InMemoryFilesystem({"a.txt": content})
    outcome = run_tool(EDIT, {"path": "a.txt", "old_string": old, "new_string": new, **more}, fs=fs)
    return outcome, fs.read_bytes("a.txt")


def refusal(content: str | bytes, old: str, new: str = "new", **more: object) -> str:
    """The text of a refused edit, which must have left the file alone."""
    outcome, after = edit(content, old, new, **more)
    assert outcome.outcome == "failed"
    assert after == (content.encode() if isinstance(content, str) else content)
    return outcome.text


class TestReplacing:
    def test_one_place(self) -> None:
        """It says where."""
        outcome, after = edit("one\ntwo\nthree\n", "two", "2")

        assert outcome.text == "Edited a.txt: 1 replacement, on line 2."
        assert after == b"one\n2\nthree\n"

    def test_removing(self) -> None:
        """An empty new text removes the old."""
        assert edit("one\ntwo\n", "two\n", "")[1] == b"one\n"

    def test_all_places(self) -> None:
        """Counted, with the lines they began on."""
        outcome, after = edit("a b\nc\na\na\n", "a", "x", replace_all=True)

        assert outcome.text == "Edited a.txt: 3 replacements, on lines 1, 3 and 4."
        assert after == b"x b\nc\nx\nx\n"

    def test_very_many_places(self) -> None:
        """The first ten lines are named."""
        outcome, after = edit("a\n" * 50, "a", "b", replace_all=True)

        assert (
            outcome.text == "Edited a.txt: 50 replacements, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and perhaps others."
        )
        assert after == b"b\n" * 50

    def test_replacing_all_of_one(self) -> None:
        """Asking for all does not need several."""
        assert edit("a", "a", "b", replace_all=True)[1] == b"b"

    @pytest.mark.parametrize(
        ("content", "old", "new", "after"),
        [
            (b"\xef\xbb\xbfone\ntwo", "one", "1", b"\xef\xbb\xbf1\ntwo"),
            (b"caf\xe9 one\ntwo \xff\n", "one", "1", b"caf\xe9 1\ntwo \xff\n"),
            (b"one\r\ntwo\nthree\r\n", "two", "2", b"one\r\n2\nthree\r\n"),
            (b"one \t \ntwo", "two", "2", b"one \t \n2"),
            (b"one\rtwo\rthree", "two", "2", b"one\r2\rthree"),
            ("e\u0301 one".encode(), "one", "\u00e9", "e\u0301 \u00e9".encode()),
        ],
        ids=["bom", "not-utf8", "mixed-endings", "trailing-space", "old-mac", "nfd"],
    )
    def test_every_other_byte_stays(self, content: bytes, old: str, new: str, after: bytes) -> None:
        """Endings, marks, stray bytes, white space and Unicode forms outside the text are left alone."""
        assert edit(content, old, new)[1] == after

    def test_dollars_and_backslashes_are_text(self) -> None:
        """Nothing in either text is a pattern."""
        assert edit("a.b", "a.b", r"\1 $0 \g<0>")[1] == rb"\1 $0 \g<0>"
        assert refusal("axb", "a.b").startswith("Cannot edit a.txt: old_string was not found\n")

    @given(
        st.binary(max_size=60).filter(lambda raw: b"\0" not in raw),
        st.text("ab\n\ré", min_size=1, max_size=5),
        st.text("xy\n", max_size=5),
        st.binary(max_size=60).filter(lambda raw: b"\0" not in raw),
    )
    def test_a_success_is_exactly_one_splice(self, before: bytes, old: str, new: str, behind: bytes) -> None:
        """Whatever surrounds the text: one span is exchanged, up to the file's own line endings."""
        content = before + old.encode() + behind
        outcome, after = edit(content, old, new)
        if not outcome.success:
            assert after == content
            return
        assert after in {
            content.replace(was, now, 1)
            for was, now in (
                (old.encode(), new.encode()),
                (old.encode(), new.replace("\n", "\r\n").encode()),
                (old.replace("\r\n", "\n").replace("\n", "\r\n").encode(), new.replace("\n", "\r\n").encode()),
            )
        }


class TestLineEndings:
    def test_lf_from_the_model_matches_crlf(self) -> None:
        """Lines are shown without their endings, so LF is what the model can know; the file stays CRLF."""
        outcome, after = edit(b"one\r\ntwo\r\nthree\r\n", "one\ntwo\n", "1\n2\n")

        assert outcome.text == "Edited a.txt: 1 replacement, on line 1." + CRLF
        assert after == b"1\r\n2\r\nthree\r\n"

    def test_new_lines_in_a_crlf_file_are_crlf(self) -> None:
        """Also when the old text had none."""
        assert edit(b"one\r\ntwo\r\n", "two", "2\n3")[1] == b"one\r\n2\r\n3\r\n"

    def test_crlf_from_the_model_is_not_doubled(self) -> None:
        """What is right already is left alone, and nothing is said."""
        outcome, after = edit(b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2")

        assert (outcome.text, after) == ("Edited a.txt: 1 replacement, on line 1.", b"1\r\n2\r\n")

    def test_in_a_mixed_file_each_place_keeps_its_own(self) -> None:
        """Where the lines end in LF they stay so, where in CRLF too."""
        mixed = b"a\nb\nc\r\nd\r\n"

        assert edit(mixed, "a\nb", "1\n2")[1] == b"1\n2\nc\r\nd\r\n"
        assert edit(mixed, "c\nd", "3\n4")[1] == b"a\nb\n3\r\n4\r\n"

    def test_a_text_across_both_is_refused(self) -> None:
        """There is no telling which ending the new text should have."""
        assert refusal(b"a\r\nb\nc\n", "a\nb\nc") == (
            "Cannot edit a.txt: old_string was not found\n"
            "On lines 1-3 it is the same but for line endings; replace one line at a time, without its ending, then retry.\n"
            "Line 1: 'a'\nLine 2: 'b'\nLine 3: 'c'"
        )

    def test_endings_alone_cannot_be_changed(self) -> None:
        """In a file of CRLF the two texts are the same."""
        assert refusal(b"a\r\nb\r\n", "a\r\nb", "a\nb") == (
            "Cannot edit a.txt: old_string and new_string are the same but for line endings, and the file has CRLF\n"
            "Nothing would change; correct one, then retry."
        )


class TestRefusing:
    def test_several_places(self) -> None:
        """How many and where, and both ways out."""
        assert refusal("x\na\nx\nx x\n", "x") == (
            "Cannot edit a.txt: old_string was found 4 times, on lines 1, 3 and 4\n"
            "Add text around it so that it matches once, or set replace_all=true, then retry."
        )

    def test_several_places_on_one_line(self) -> None:
        """The line is named once."""
        assert "was found 2 times, on line 1\n" in refusal("x x", "x")

    def test_very_many_places_on_one_line(self) -> None:
        """Not all of them are looked up."""
        assert "was found 50 times, on line 1 and perhaps others\n" in refusal("x" * 50, "x")

    def test_overlapping_places(self) -> None:
        """Two places that share text are two places."""
        assert "was found 2 times, on line 1\n" in refusal("aaa", "aa")

    def test_an_empty_old_text(self) -> None:
        """It is everywhere and nowhere."""
        assert refusal("x", "") == (
            "Cannot edit a.txt: old_string is empty\nGive the text to replace, then retry; write_file creates files."
        )

    def test_no_change(self) -> None:
        """An edit that changes nothing is a mistake."""
        assert refusal("x", "x", "x") == (
            "Cannot edit a.txt: old_string and new_string are the same\nNothing would change; correct one, then retry."
        )

    def test_a_binary_file(self) -> None:
        """It is not text."""
        assert refusal(b"x\0", "x") == "Cannot edit a.txt: it is a binary file (2 bytes)\nChoose a text file."

    def test_a_missing_file(self) -> None:
        """The filesystem's words."""
        outcome = run_tool(EDIT, {"path": "b", "old_string": "x", "new_string": "y"})

        assert outcome.text.startswith("File not found: b\n")


class TestHints:
    @pytest.mark.parametrize(
        ("content", "old", "hint"),
        [
            (
                b"caf\xe9 au lait",
                "caf\ufffd",
                "It has \ufffd, which stands for bytes that are not UTF-8; choose text without it, then retry.",
            ),
            (
                "one\ntwo\n",
                "     1\tone\n     2\ttwo\n",
                "It begins with line numbers, which are not part of the file; leave them out, then retry.",
            ),
            (
                "one\ntwo\n",
                "one\r\ntwo",
                "On lines 1-2 it is the same but for line endings; replace one line at a time, without its ending, "
                "then retry.\nLine 1: 'one'\nLine 2: 'two'",
            ),
            (
                "x\ncafe\u0301\n",
                "caf\u00e9",
                "On line 2 it is the same in another Unicode form (accents composed or apart); choose text without "
                "accents, then retry.\nLine 2: 'cafe\u0301'",
            ),
            (
                "def f():\n\treturn 1  \n",
                "def f():\n    return 1\n",
                "On lines 1-2 it is the same but for spaces and tabs; copy them as they are, then retry.\n"
                "Line 1: 'def f():'\nLine 2: '\\treturn 1  '",
            ),
            (
                "Hello World\n",
                "hello world",
                "On line 1 it is the same but for capital letters or spaces; copy them as they are, then retry.\n"
                "Line 1: 'Hello World'",
            ),
            (
                "first\nreturn compute(a, b)\n",
                "return compute(a, c)",
                "The line most like it is line 2; read the file again, then retry with text copied from it.\n"
                "Line 2: 'return compute(a, b)'",
            ),
            (
                "first\n",
                "something else altogether",
                "Nothing like it is in the file; read it again, then retry with text copied from it.",
            ),
            ("", "x", "Nothing like it is in the file; read it again, then retry with text copied from it."),
            ("x", "\n\n", "Nothing like it is in the file; read it again, then retry with text copied from it."),
        ],
        ids=["stray", "numbers", "endings", "unicode", "spaces", "case", "near", "nothing", "empty-file", "blank"],
    )
    def test_why_nothing_was_found(self, content: str | bytes, old: str, hint: str) -> None:
        """The usual mistakes are told apart, each with what to do; a near match is never taken."""
        assert refusal(content, old) == f"Cannot edit a.txt: old_string was not found\n{hint}"

    def test_a_huge_file_is_not_compared(self) -> None:
        """The hint costs no more than the file is worth."""
        assert refusal("abc\n" * 1_000_001, "ABC") == (
            "Cannot edit a.txt: old_string was not found\n"
            "Find the place with grep_files and read it again, then retry with text copied from it."
        )

    def test_a_long_line_is_shown_in_part(self) -> None:
        """A refusal stays short."""
        assert len(refusal("x " * 3000, "x  " * 2)) < 500
