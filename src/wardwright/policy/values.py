"""Values in normal form: what a result says as leaves, and what two spellings of one value have in common.

Matching is equality of normal forms of one kind, never a search inside raw text. Nothing here decides whether a value is trusted,
and nothing here keeps one: callers make keyed digests of what comes out. What cannot be parsed is text.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import orjson
import yaml

Kind: TypeAlias = Literal["w", "a", "u", "h", "n", "d"]
"""w: tokens in a row
a: an address, local@host
u: a URL, host and path
h: a host
n: an account number
d: a date"""

Atom: TypeAlias = tuple[Kind, str]

MAX_LEAVES: Final = 20_000
"""Leaves of one result. One with more is text."""
MAX_DEPTH: Final = 32
MAX_YAML: Final = 131_072
MAX_LITERAL: Final = 131_072
"""Characters of a result that are read as YAML, or as a literal; what is longer is JSON or text."""
MAX_TOKENS: Final = 12
"""Tokens of a value that is kept as a whole."""
MAX_TYPED: Final = 8_192
"""Typed values taken from one text. Those beyond are not kept: unknown, and refused like text."""

_TOKEN: Final[re.Pattern[str]] = re.compile(r"[^\W_]+")
_UNSEEN: Final[re.Pattern[str]] = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_EMAIL: Final[re.Pattern[str]] = re.compile(r"[\w.+'%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_DISPLAYED: Final[re.Pattern[str]] = re.compile(r"[^<>@]*<([^<>\s]+)>")
_URL: Final[re.Pattern[str]] = re.compile(
    r"(?:https?|ftp|wss?)://[^\s<>\"'`{}|\\^\[\]]{1,2000}|(?<![\w@.-])www\.[^\s<>\"'`{}|\\^\[\]]{1,2000}"
)
_REST: Final[re.Pattern[str]] = re.compile(r"[^\s<>\"'`{}|\\^\[\]]{1,2000}")
_INSIDE: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789@.-_/")
"""Before `www.`: it is part of something longer, which was found already."""
_ENDING: Final[re.Pattern[str]] = re.compile(
    r"\.(?:com|org|net|io|co|dev|app|ai|info|biz|edu|gov|eu|uk|de|fr|ch|ru|cn|xyz|site|online)(?![\w@-])(?!\.\w)"
)
"""Where a bare host ends; only endings that are no usual words or file names."""
_PATH_AFTER: Final[re.Pattern[str]] = re.compile(r"/[^\s<>\"'`{}|\\^\[\]]{0,2000}")
_LOCAL: Final[re.Pattern[str]] = re.compile(r"[\w.+'%-]+")
_HOST: Final[re.Pattern[str]] = re.compile(r"[\w.-]+")
_HOST_END: Final[re.Pattern[str]] = re.compile(r"[/?\\]")
_HOST_AFTER: Final[re.Pattern[str]] = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_NUMBER: Final[re.Pattern[str]] = re.compile(r"[0-9](?:[0-9 ./-]*[0-9])?")
"""Digits and what stands between digits: everything that has a number in it is looked for around these."""
_ACCOUNT: Final[re.Pattern[str]] = re.compile(
    r"[a-z]{2}[0-9]{2}(?:[a-z0-9]{8,30}|[ -][a-z0-9]{4}(?:[ -](?=[a-z]*[0-9])[a-z0-9]{4}){1,6}(?:[ -][0-9][a-z0-9]{0,2})?)(?!\w)"
)
_DIGITS: Final[re.Pattern[str]] = re.compile(r"(?<!\d)[0-9](?:[ .-]?[0-9]){7,33}(?!\d)")
_ISO: Final[re.Pattern[str]] = re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_NUMERIC: Final[re.Pattern[str]] = re.compile(r"(?<!\d)(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?!\d)")
"""`5/15/2024`, `15.05.2024`: where both readings are a date, it is both."""
_DATE: Final[re.Pattern[str]] = re.compile(f"{_ISO.pattern}|{_NUMERIC.pattern.replace(chr(92) + '2', chr(92) + '5')}")
_MONTHS: Final[Mapping[str, int]] = {
    name: number
    for number, names in enumerate(
        (
            "january jan",
            "february feb",
            "march mar",
            "april apr",
            "may",
            "june jun",
            "july jul",
            "august aug",
            "september sep sept",
            "october oct",
            "november nov",
            "december dec",
        ),
        1,
    )
    for name in names.split()
}
_MONTH: Final = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DAY_BEFORE: Final[re.Pattern[str]] = re.compile(
    rf"(?:st|nd|rd|th)?\s+(?:of\s+)?({_MONTH})(?!\w)\.?(?:,?\s+([0-9]{{4}})(?!\d))?"
)
"""Behind a number: it is the day of this month …"""
_MONTH_BEFORE: Final[re.Pattern[str]] = re.compile(rf"(?<!\w)({_MONTH})\.?\s+\Z")
"""… or before it."""
_AFTER_DAY: Final = frozenset(" \t\n\u00a0snrt")
_YEAR_AFTER: Final[re.Pattern[str]] = re.compile(r"(?:st|nd|rd|th)?,?\s+([0-9]{4})(?!\d)")
_MONTH_START: Final[re.Pattern[str]] = re.compile(rf"(?:{_MONTH})\b")
_DAY_START: Final[re.Pattern[str]] = re.compile(rf"[0-9]{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?(?:{_MONTH})\b")
_BAD_ESCAPE: Final[re.Pattern[str]] = re.compile(r"\\[^\\'\"abfnrtvx0-7uUN\n]")
_YAML_START: Final[re.Pattern[str]] = re.compile(r"\A(?:- |-\n|[\w\"'][^\n]{0,200}?:(?: |\n|\Z))")


def plain(text: str) -> str:
    """As it reads, without case: compatibility form, without what cannot be seen."""
    if text.isascii():
        return text.lower()
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).casefold()


def tokens(text: str) -> list[str]:
    """Letters and digits, in a row, of a text that is `plain`."""
    return _TOKEN.findall(text)


def words(text: str) -> str:
    """The normal form of any value: its tokens with one space between them."""
    return " ".join(_TOKEN.findall(plain(text)))


def address_of(found: str) -> str:
    """Without what a mailbox's owner may add behind a plus sign: it is the same mailbox."""
    local, _, host = found.strip(".'%-+").partition("@")
    return f"{local.partition('+')[0] or local}@{host}"


def url_of(found: str) -> tuple[str, str]:
    """(host, host and path) of a URL that is `plain`; credentials, port, fragment and `www.` left out."""
    rest = found.partition("://")[2] or found
    if ")" in rest and rest.count("(") < rest.count(")"):
        rest = _closed(rest)
    rest = rest.rstrip(".,;:!?('\"*").partition("#")[0]
    end = _HOST_END.search(rest)
    at = len(rest) if end is None else end.start()
    host, path = rest[:at], rest[at:]
    # What stands before an @ is no host, however much it looks like one.
    host = host.rpartition("@")[2].partition(":")[0].removeprefix("www.").strip(".")
    if path.startswith("\\"):
        path = "/" + path[1:]
    return host, host + path.rstrip("/")


def _closed(found: str) -> str:
    """Up to the bracket that was opened before it: `[here](https://a.example/b)and on`."""
    opened = 0
    for at, one in enumerate(found):
        opened += (one == "(") - (one == ")")
        if opened < 0:
            return found[:at]
    return found


def account_of(found: str) -> str:
    return "".join([one for one in found if one.isalnum()]).upper()


def dates_in(text: str) -> Iterator[str]:
    """Every date of a text that is `plain`, as year-month-day; without a year the year is empty."""
    return (normal for kind, normal in _numbers(text, True) if kind == "d")


def _numbers(text: str, dates: bool) -> Iterator[Atom]:
    """Account numbers and dates."""
    done = 0
    for run in _NUMBER.finditer(text):
        start, end = run.span()
        if start < done:
            continue
        long = end - start >= 8
        if start >= 2 and text[start - 1].isalpha():
            account = _ACCOUNT.match(text, start - 2) if start == 2 or not text[start - 3].isalnum() else None
            if account is not None:
                done = account.end()
                yield "n", account_of(account[0])
        elif long:
            found, rest = _written(text[start:end])
            if dates:
                yield from found
            # A date and a time of day; with more digits it may be a number that is made to look like a date.
            if rest > 2 or not found:
                for number in _DIGITS.findall(text, start, end):
                    yield "n", account_of(number)
        if dates and (end == len(text) or not long):
            yield from _spelt(text, start, end)


def _written(run: str) -> tuple[list[Atom], int]:
    """Dates in digits of a run of digits and signs, and how many digits are none of theirs."""
    found: list[Atom] = []
    taken = 0
    for one in _DATE.finditer(run):
        if one[1] is not None:
            readings = [(one[1], int(one[2]), int(one[3]))]
        else:
            first, second = int(one[4]), int(one[6])
            readings = [(one[7], first, second), (one[7], second, first)]
        known = [
            ("d", f"{year}-{month:02}-{day:02}")
            for year, month, day in readings
            if "1900" <= year <= "2199" and 0 < month <= 12 and 0 < day <= 31
        ]
        if known:
            found.extend(cast("list[Atom]", dict.fromkeys(known)))
            taken += sum(sign.isdecimal() for sign in one[0])
    return found, sum(sign.isdecimal() for sign in run) - taken


def _spelt(text: str, start: int, end: int) -> Iterator[Atom]:
    """A date with the name of its month, at the number there: `15 May 2024`, `May 15, 2024`."""
    number = text[start:end]
    # The run may go on into what is no part of the day: `15. 2024`.
    day = number[: 2 if number[1:2].isdecimal() else 1]
    if len(number) > 2 and number[len(day) : len(day) + 1].isdecimal():
        return
    place = start + len(day)
    after = _DAY_BEFORE.match(text, place) if text[place : place + 1] in _AFTER_DAY else None
    if after is not None:
        yield "d", f"{after[2] or ''}-{_MONTHS[after[1]]:02}-{int(day):02}"
        return
    if start < 4 or not text[start - 1].isspace() or not (text[start - 2].isalpha() or text[start - 2] == "."):
        return
    before = _MONTH_BEFORE.search(text, max(0, start - 12), start)
    if before is not None:
        year = _YEAR_AFTER.match(text, start + len(day))
        yield "d", f"{'' if year is None else year[1]}-{_MONTHS[before[1]]:02}-{int(day):02}"


def _before(text: str, end: int, most: int, runs: re.Pattern[str]) -> str:
    """The characters of a kind that stand right before a place."""
    start = max(0, end - most)
    found = runs.findall(text, max(start, text.rfind(" ", start, end) + 1), end)
    return found[-1] if found and text.endswith(found[-1], 0, end) else ""


def typed_in(text: str, *, dates: bool = True) -> Iterator[Atom]:
    """Addresses, URLs with their hosts, account numbers and dates in a text that is `plain`."""
    at = text.find("@")
    hosts: set[int] = set()
    """Where hosts of addresses end: they are not found again as such."""
    while at >= 0:
        # From the sign outwards: looking for an address at every letter would take as long as the letters before it.
        host = _HOST_AFTER.match(text, at + 1)
        if host is not None and (local := _before(text, at, 64, _LOCAL)):
            hosts.add(host.end())
            yield "a", address_of(f"{local}@{host[0]}")
        at = text.find("@", at + 1)
    for mark in ("://", "www."):
        at = text.find(mark)
        while at >= 0:
            rest = _REST.match(text, at + 3 if mark == "://" else at)
            if rest is not None and (mark == "://" or at == 0 or text[at - 1] not in _INSIDE):
                host, whole = url_of(rest[0])
                if host:
                    yield "h", host
                    yield "u", whole
            at = text.find(mark, at + 3)
    for end in _ENDING.finditer(text) if "." in text else ():
        if end.end() in hosts:
            continue
        before = _before(text, end.start(), 100, _HOST)
        place = end.start() - len(before)
        if before and (place == 0 or text[place - 1] not in "@/:"):
            after = _PATH_AFTER.match(text, end.end())
            host, whole = url_of(f"{before}{end[0]}{'' if after is None else after[0]}")
            yield "h", host
            yield "u", whole
    if _DIGIT.search(text) is not None:
        yield from _numbers(text, dates)


_DIGIT: Final[re.Pattern[str]] = re.compile("[0-9]")
_SIMPLE: Final[re.Pattern[str]] = re.compile(r"[^0-9.@/]*|[a-z_-]{0,12}[0-9]{1,7}")
"""Without a digit, a dot and the signs of links and addresses, or a short number: of no type."""


def simple(text: str) -> bool:
    """Whether a value that is `plain` is surely no address, link, number or date as a whole."""
    return _SIMPLE.fullmatch(text) is not None


def typed_as_whole(text: str) -> tuple[Atom, ...]:
    """What a value that is `plain` is as a whole: an address, a URL, an account number or a date; else nothing."""
    text = text.strip()
    inner = _DISPLAYED.fullmatch(text) if text.endswith(">") else None
    if inner is not None:
        text = inner[1]
    if "@" in text and _EMAIL.fullmatch(text):
        return (("a", address_of(text)),)
    if "." in text and (_URL.fullmatch(text) or _bare_host(text)):
        host, whole = url_of(text)
        return (("u", whole), ("h", host))
    if len(text) > 64 or _SIMPLE.fullmatch(text):
        return ()
    if _NUMERIC.match(text):
        return tuple(("d", one) for one in dates_in(text))
    if _DIGITS.fullmatch(text) and not _ISO.fullmatch(text):
        return (("n", account_of(text)),)
    if _ACCOUNT.fullmatch(text):
        return (("n", account_of(text)),)
    if _ISO.match(text) or _MONTH_START.match(text) or _DAY_START.match(text):
        return tuple(("d", one) for one in dates_in(text))
    return ()


def _bare_host(text: str) -> bool:
    host = text.partition("/")[0]
    end = _ENDING.search(host)
    return end is not None and end.end() == len(host) and " " not in text


def compact(text: str) -> str:
    """Letters and digits only."""
    return "".join(_TOKEN.findall(plain(text)))


def windows(said: list[str], lengths: list[int]) -> Iterator[str]:
    """Runs of such lengths in short tokens that follow one another and have digits: "C 0 1 X 0 0", "4539 1488"."""
    start = 0
    for at in range(len(said) + 1):
        if at < len(said) and len(said[at]) <= 4:
            continue
        run = "".join(said[start:at])
        if at - start > 1 and sum(one.isdecimal() for one in run) > 1:
            for length in lengths:
                for place in range(len(run) - length + 1):
                    yield run[place : place + length]
        start = at + 1


def mixed(text: str) -> bool:
    """Whether a part of an address or a link has letters of Latin and of a script that looks like it."""
    if text.isascii():
        return False
    for label in re.split(r"[^\w-]", text):
        scripts = {unicodedata.name(one, "").partition(" ")[0] for one in label if one.isalpha()}
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}:
            return True
    return False


def base_name(text: str) -> str:
    """The last part of a path, as words."""
    return words(text.replace("\\", "/").rstrip("/").rpartition("/")[2])


def path_of(text: str) -> str:
    """A path with what a file system would make of it: dots walked, slashes one way. For globs."""
    parts: list[str] = []
    text = plain(text).replace("\\", "/")
    for part in text.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return ("/" if text.startswith("/") else "") + "/".join(parts)


@dataclass(slots=True)
class Leaf:
    """One value of a result."""

    path: str
    """Keys from the root, each behind a slash; lists leave no trace, but for `/[]`: a plain value in a list that is the whole."""
    record: int
    """Number of the record it belongs to: an entry of a list, else the whole."""
    value: str


def leaves(content: str, *, keyed: bool = False) -> list[Leaf] | None:
    """A result as leaves, or None when it is text. Keyed: its keys name records, and are leaves at `/{}` themselves."""
    read = parse(content)
    if keyed and isinstance(read, dict):
        return _keyed(cast("dict[Any, Any]", read))
    return leaves_of(read) if isinstance(read, (dict, list, tuple)) else None


def listed(content: str) -> list[Leaf] | None:
    """A text that the service writes, as what it lists: each line, what stands behind its heading, and what commas part."""
    read = leaves(content) if content.lstrip()[:1] in ("[", "{") else None
    if read is not None:
        return [Leaf("", leaf.record, leaf.value) for leaf in read]
    found: list[Leaf] = []
    for number, line in enumerate(content.splitlines(), 1):
        parts = [line]
        head, colon, rest = line.partition(": ")
        if colon:
            parts += [head, rest]
        if "," in (rest or line):
            parts += (rest or line).split(",")
        found += [Leaf("", number, one.strip(" \t-*•")) for one in parts if one.strip()]
        if len(found) > MAX_LEAVES:
            return None
    return found


def _keyed(read: dict[Any, Any]) -> list[Leaf] | None:
    found: list[Leaf] = []
    count = [0]
    try:
        for key, one in read.items():
            count[0] += 1
            found.append(Leaf("/{}", count[0], str(key)))
            _walk(one, f"/{plain(str(key))}", count[0], 1, found, count)
    except _TooMuch:
        return None
    return found


def argument_leaves(value: Any) -> list[Leaf] | None:
    """Arguments as leaves. Keys below the first level are the model's to choose: they are values too, where they look like some."""
    found = leaves_of(value)
    if found is None or not isinstance(value, dict):
        return found
    keys = [
        Leaf(f"/{plain(name)}", 0, key)
        for name, one in cast("dict[str, Any]", value).items()
        if isinstance(one, (dict, list))
        for key in _inner_keys(one, 0)
        if next(typed_in(plain(key), dates=False), None) is not None
    ]
    return [*found, *keys] if keys else found


def _inner_keys(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, one in cast("dict[str, Any]", value).items():
            yield key
            yield from _inner_keys(one, depth + 1)
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _inner_keys(one, depth + 1)


def leaves_of(value: Any) -> list[Leaf] | None:
    """The same of arguments that are read already. None: too many of them."""
    found: list[Leaf] = []
    try:
        _walk(value, "", 0, 0, found, [0])
    except _TooMuch:
        return None
    return found


class _TooMuch(Exception):
    pass


def _walk(value: Any, path: str, record: int, depth: int, found: list[Leaf], count: list[int]) -> None:
    if depth > MAX_DEPTH or len(found) > MAX_LEAVES:
        raise _TooMuch
    if isinstance(value, dict):
        shallow = depth < MAX_DEPTH
        for key, one in cast("dict[Any, Any]", value).items():
            place = f"{path}/{plain(str(key))}"
            if shallow and isinstance(one, str) and len(found) <= MAX_LEAVES:  # as below, without the call
                found.append(Leaf(place, record, one))
            else:
                _walk(one, place, record, depth + 1, found, count)
    elif isinstance(value, (list, tuple)):
        for one in cast("list[Any]", value):
            own = record
            inner = isinstance(one, (dict, list, tuple))
            if inner or not path:
                count[0] += 1
                own = count[0]
            _walk(one, path if path or inner else "/[]", own, depth + 1, found, count)
    elif value is not None and not isinstance(value, bool):
        found.append(Leaf(path, record, value if isinstance(value, str) else str(value)))


def parse(content: str) -> Any:
    """JSON, a Python literal or YAML; None for text. A mapping that has a key twice is text: who knows which one counts."""
    text = content.strip()
    if not text:
        return None
    first = text[0]
    if first in "{[":
        try:
            value = orjson.loads(text)
            return value if text.count(":") == _keys(value) else json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            return _literal(text) or _yaml(text)
    if first == "(":
        return _literal(text)
    return _yaml(text)


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return len(mapping) + sum([_keys(one) for one in mapping.values() if isinstance(one, (dict, list))])
    if isinstance(value, list):
        return sum([_keys(one) for one in cast("list[Any]", value)])
    return 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _literal(text: str) -> Any:
    if len(text) > MAX_LITERAL or _BAD_ESCAPE.search(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                if len(set(names)) != len(node.keys):
                    return None
        return ast.literal_eval(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _yaml(text: str) -> Any:
    if len(text) > MAX_YAML or not _YAML_START.match(text):
        return None
    try:
        node = cast("yaml.Node | None", cast("Any", yaml).compose(text, Loader=yaml.CSafeLoader))
        return None if node is None else _plain_node(node, set(), 0)
    except (yaml.YAMLError, _TooMuch, RecursionError, ValueError):
        return None


def _plain_node(node: yaml.Node, met: set[int], depth: int) -> Any:
    """A composed node as plain values, scalars as they are written. One that is shared, or has a key twice, is none."""
    if id(node) in met or len(met) > 4 * MAX_LEAVES or depth > MAX_DEPTH:
        raise _TooMuch
    met.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        tag: str = node.tag
        return None if tag.endswith(":null") else cast("str", node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain_node(one, met, depth + 1) for one in cast("list[yaml.Node]", node.value)]
    pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    return _once([(str(_plain_node(key, met, depth + 1)), _plain_node(one, met, depth + 1)) for key, one in pairs])
