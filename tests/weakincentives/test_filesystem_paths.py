"""Claims about the one normaliser: every trick we know is one file, or refused with a reason."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import InvalidPathError, PathEscapeError, normalize

LONG_NAME = "n" * 255
LONG_UMLAUTS = "ü" * 127  # 254 bytes


@pytest.mark.parametrize(
    ("given", "canonical", "reason"),
    [
        ("a.txt", "a.txt", "already canonical"),
        ("workspace/a.txt", "workspace/a.txt", "already canonical"),
        ("/workspace/a.txt", "workspace/a.txt", "absolute means from the root of this filesystem"),
        ("./workspace/a.txt", "workspace/a.txt", "a leading dot says nothing"),
        ("././a.txt", "a.txt", "nor do several"),
        ("a/./b", "a/b", "nor does one inside"),
        ("a/.", "a", "nor does one at the end"),
        ("a//b", "a/b", "empty parts say nothing"),
        ("//a", "a", "a double slash is no network share here"),
        ("///a///b///", "a/b", "however many there are"),
        ("a/", "a", "a trailing slash says nothing"),
        ("/", "/", "the root keeps its slash"),
        ("//", "/", "the root again"),
        (".", "/", "the root again"),
        ("./", "/", "the root again"),
        ("/.", "/", "the root again"),
        ("a/..", "/", "back to the root, not above it"),
        ("a/../b", "b", "inside the root `..` is fine"),
        ("a/b/../../c", "c", "as often as there are parts"),
        ("a/b/../c/../d", "a/d", "in any order"),
        ("/a/./../b/", "b", "mixed with the other forms"),
        ("...", "...", "three dots are a name"),
        (".../a", ".../a", "three dots are a directory, too"),
        ("..a", "..a", "a name may begin with two dots"),
        ("a..", "a..", "or end with them"),
        (".hidden", ".hidden", "a dotfile is a file"),
        (".. /a", ".. /a", "dots and a space are a name; nothing is trimmed"),
        (" a", " a", "nor is a leading space"),
        ("a b/c d.txt", "a b/c d.txt", "spaces are characters"),
        ("~/a", "~/a", "nobody's home is looked up"),
        ("~root", "~root", "nobody's home is looked up"),
        ("$HOME/a", "$HOME/a", "no variable is expanded"),
        ("%2e%2e/a", "%2e%2e/a", "nothing is decoded"),
        ("..%2fa", "..%2fa", "nothing is decoded"),
        ("file:///etc/passwd", "file:/etc/passwd", "a URL is a path below the root"),
        ("C:/Windows", "C:/Windows", "a drive is a directory name"),
        ("/etc/passwd", "etc/passwd", "there is no other root"),
        ("a*b?[c]", "a*b?[c]", "glob characters are characters outside of globs"),
        ("-rf", "-rf", "an option is a name"),
        ("a;rm b|c&d", "a;rm b|c&d", "no shell reads this"),
        ("cafe\u0301.txt", "caf\u00e9.txt", "two spellings that look alike are one file (NFC)"),
        ("\u212bngstrom", "\u00c5ngstrom", "the Ångström sign is the letter"),
        ("．．/a", "．．/a", "full-width dots are no dots"),
        ("a／b", "a／b", "a full-width slash is no slash"),
        ("a\u2215b", "a\u2215b", "a division slash is no slash"),
        ("\u2024\u2024/a", "\u2024\u2024/a", "dot leaders are no dots"),
        ("名前/ファイル.txt", "名前/ファイル.txt", "names may be in any script"),
        ("👩\u200d💻.txt", "👩\u200d💻.txt", "a joiner inside an emoji is fine"),
        ("CON", "CON", "device names of other systems are names"),
        (LONG_NAME, LONG_NAME, "a name of 255 bytes"),
        (LONG_UMLAUTS, LONG_UMLAUTS, "counted in bytes"),
        ("/".join(["a" * 200] * 20), "/".join(["a" * 200] * 20), "a path of 4019 bytes"),
    ],
)
def test_normalised(given: str, canonical: str, reason: str) -> None:
    """Each spelling names this file, for this reason; the canonical form stays as it is."""
    assert normalize(given) == canonical, reason
    assert normalize(canonical) == canonical


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("..", "the parent of the root"),
        ("../", "with a slash"),
        ("/..", "an absolute path is not clamped either"),
        ("/../etc/passwd", "absolute, then out"),
        ("../workspace/a.txt", "out and perhaps in again"),
        ("a/../..", "in and out"),
        ("a/../../a", "out and in: where it was meanwhile counts"),
        ("./../a", "behind a dot"),
        (".//..//a", "behind empty parts"),
        ("a/b/../../../c", "one too many"),
        ("/a/../../b", "absolute, in and out"),
        ("a/./.././../b", "between dots"),
        ("é/../../a", "among other letters"),
    ],
)
def test_escapes_are_refused(given: str, reason: str) -> None:
    """A path that climbs above the root is refused, never clamped."""
    with pytest.raises(PathEscapeError) as caught:
        normalize(given)
    assert str(caught.value) == (
        f"Path leads outside: {given}\nOnly paths below the top directory exist here; use one without the extra '..'."
    ), reason


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", 'Invalid path: it is empty\nName a file, or "/" for the top directory, then retry.'),
        ("a\\b", "Invalid path a\\b: it has a backslash\nSeparate directories with /, then retry."),
        ("..\\..\\a", "Invalid path ..\\..\\a: it has a backslash\nSeparate directories with /, then retry."),
        ("C:\\a", "Invalid path C:\\a: it has a backslash\nSeparate directories with /, then retry."),
        ("\\\\host\\a", "Invalid path \\\\host\\a: it has a backslash\nSeparate directories with /, then retry."),
        ("a\0b", "Invalid path 'a\\x00b': it has the control character U+0000\nRemove it, then retry."),
        ("a.txt\0.png", "Invalid path 'a.txt\\x00.png': it has the control character U+0000\nRemove it, then retry."),
        ("a\nb", "Invalid path 'a\\nb': it has the control character U+000A\nRemove it, then retry."),
        ("a.txt\n", "Invalid path 'a.txt\\n': it has the control character U+000A\nRemove it, then retry."),
        ("a\r", "Invalid path 'a\\r': it has the control character U+000D\nRemove it, then retry."),
        ("a\tb", "Invalid path 'a\\tb': it has the control character U+0009\nRemove it, then retry."),
        ("\x1b[2J", "Invalid path '\\x1b[2J': it has the control character U+001B\nRemove it, then retry."),
        ("a\x7f", "Invalid path 'a\\x7f': it has the control character U+007F\nRemove it, then retry."),
        ("a\x85", "Invalid path 'a\\x85': it has the control character U+0085\nRemove it, then retry."),
        ("a\u2028b", "Invalid path 'a\\u2028b': it has the control character U+2028\nRemove it, then retry."),
        ("txt.\u202eexe", "Invalid path 'txt.\\u202eexe': it has the control character U+202E\nRemove it, then retry."),
        ("a\u2066b", "Invalid path 'a\\u2066b': it has the control character U+2066\nRemove it, then retry."),
        ("\ud800a", "Invalid path '\\ud800a': character 0 has no UTF-8 form\nRemove it, then retry."),
        (
            "n" * 256,
            f"Invalid path {'n' * 200!r}: a name in it is longer than 255 bytes\nUse shorter names, then retry.",
        ),
        (
            "d/" + "ü" * 128,
            f"Invalid path d/{'ü' * 128}: a name in it is longer than 255 bytes\nUse shorter names, then retry.",
        ),
        ("a/" * 2049, f"Invalid path {'a/' * 100!r}: longer than 4096 bytes\nUse a shorter path, then retry."),
        ("a/../" * 1000, f"Invalid path {'a/../' * 40!r}: longer than 4096 bytes\nUse a shorter path, then retry."),
    ],
)
def test_impossible_paths_are_refused(given: str, message: str) -> None:
    """What cannot name a file says why, and what to do; unprintable characters are shown as escapes."""
    with pytest.raises(InvalidPathError) as caught:
        normalize(given)
    assert str(caught.value) == message


def test_a_path_object_is_no_path() -> None:
    """Only text names a file; whoever has a path object is told how to pass it."""
    with pytest.raises(TypeError, match=r"^A path is text, got PurePosixPath\. Pass str\(path\)\.$"):
        normalize(PurePosixPath("a"))  # type: ignore[arg-type]


@given(st.text(alphabet=st.sampled_from("ab./é\u0301~ \\\0\n*-"), max_size=12))
def test_canonical_form(path: str) -> None:
    """Whatever is accepted comes out with nothing left to normalise, and inside."""
    try:
        canonical = normalize(path)
    except FilesystemError:
        return
    parts = canonical.split("/")
    assert canonical == "/" or not {"", ".", ".."} & set(parts)
    assert normalize(canonical) == normalize("/" + path) == canonical == unicodedata.normalize("NFC", canonical)
