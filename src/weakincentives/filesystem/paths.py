"""The only normaliser and escape check: decides which file a text names, without asking any disk.

The canonical form has no leading slash, no `.`, no `..`, no empty part and no trailing slash, and is NFC, so that two
spellings which look alike name one file; the root alone is "/". `..` is resolved by text and may not climb above the
root. Nothing is decoded, expanded or repaired: `~`, `%2e` and `$HOME` are plain characters. Refused: empty text,
backslashes (they would be separators elsewhere), control and direction characters, names over 255 bytes and paths over
4096 (no disk takes them). Never follows a link: a backend that has links checks them itself.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from .errors import InvalidPathError, PathEscapeError

ROOT = "/"
MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255

# What nearly every path looks like: one match instead of a walk over its parts.
_plain = re.compile(r"/?([\w\-][\w.\-]*(?:/[\w\-][\w.\-]*)*)", re.ASCII).fullmatch
# C0, DEL, C1, line separators, direction marks and overrides: they forge what a reader sees.
unprintable = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# A call names the same few files over and over; bounded, because models pick the names.
@lru_cache(maxsize=512)
def normalize(path: str) -> str:
    """The canonical form of `path`; raises `InvalidPathError` or `PathEscapeError`."""
    if not isinstance(path, str):
        raise TypeError(f"A path is text, got {type(path).__name__}. Pass str(path).")
    if len(path) <= MAX_NAME_BYTES and (plain := _plain(path)) is not None:
        return plain[1]
    return _resolve(path)


def _resolve(path: str) -> str:
    if not path:
        raise InvalidPathError.because(path, "it is empty", 'Name a file, or "/" for the top directory')
    given = path
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    check_characters(path)
    if _size(path) > MAX_PATH_BYTES:
        raise InvalidPathError.because(given, f"longer than {MAX_PATH_BYTES} bytes", "Use a shorter path")
    parts: list[str] = []
    for part in path.split("/"):
        if part in {"", "."}:
            continue
        if part == "..":
            if not parts:
                raise PathEscapeError.at(given)
            parts.pop()
            continue
        if _size(part) > MAX_NAME_BYTES:
            raise InvalidPathError.because(
                given, f"a name in it is longer than {MAX_NAME_BYTES} bytes", "Use shorter names"
            )
        parts.append(part)
    return "/".join(parts) or ROOT


def check_characters(path: str) -> None:
    """Refuse characters that no name may hold; for patterns too."""
    if "\\" in path:
        raise InvalidPathError.because(path, "it has a backslash", "Separate directories with /")
    if (found := unprintable.search(path)) is not None:
        raise InvalidPathError.because(path, f"it has the control character U+{ord(found[0]):04X}", "Remove it")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPathError.because(path, f"character {error.start} has no UTF-8 form", "Remove it") from None


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def join(directory: str, name: str) -> str:
    """The canonical path of a name inside a canonical directory."""
    return name if directory == ROOT else f"{directory}/{name}"


def split(path: str) -> tuple[str, str]:
    """Directory and name of a canonical path that is not the root."""
    directory, _, name = path.rpartition("/")
    return directory or ROOT, name


def is_inside(path: str, directory: str) -> bool:
    """True when canonical `path` is `directory` or lies anywhere below it."""
    return directory == ROOT or path == directory or path.startswith(directory + "/")
