"""Where the values of a call came from: indexed when a gate sees them, looked up when a call is judged.

Invariants (tests cite the numbers; docs/decisions/0026 says why):
 V1. Equal facts, equal classes. Nothing here reads a clock or the outside.
 V2. Text of an outsider never gives a value a class that a payee, address, secret or posting sink accepts.
 V3. A result that repeats an argument of its call, or a typed value that a writing call carried before, raises nothing.
 V4. What is forged, altered, failed, or answers a denied call is text, whatever its fields say.
 V5. Unlabelled is untrusted: a field without a class is text, an argument without a sink takes the user's own values only.
 V6. A decision looks up and never scans.
 V7. What cannot be read is refused, or text.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from wardwright.catalog import Catalog, FieldLabel, Identity, SinkType, compile_value_glob
from wardwright.facts import ToolFact
from wardwright.history import RegisterKey, RegisterValue
from wardwright.policy.intent import Lexicon, asked, asked_about, default_lexicon
from wardwright.policy.values import (
    MAX_TOKENS,
    MAX_TYPED,
    Atom,
    Kind,
    Leaf,
    base_name,
    compact,
    leaves,
    listed,
    mixed,
    path_of,
    plain,
    simple,
    tokens,
    typed_as_whole,
    typed_in,
    windows,
    words,
)
from wardwright.wire.linear import Pattern

RULE: Final = "provenance"
"""Rule key of the registers. They depend on what was seen, not on a rule."""
INTENT: Final = "intent"
"""Rule key of the effects that the user has asked for so far, by lexicon."""

LEVELS: Final = 5
FIRST: Final = 256
"""A level holds four times what the one below it does."""
DIGEST: Final = 16
SHORT: Final = 8
"""Characters of a digest inside an entry: names of a record, role words."""
WIDTH: Final[Mapping[str, int]] = {"u": 17, "t": 18, "s": 106, "c": 50, "n": 18, "x": 16}
CAPACITY: Final[Mapping[str, int]] = {"u": 16_384, "t": 32_768, "s": 32_768, "c": 4_096, "n": 16_384, "x": 4_096}
"""Entries kept per family; what comes later is not kept, so it is text or unknown."""
MAX_SAID: Final = 1_500
"""Tokens of one text of the user that are indexed; what is behind them is text."""
GRAM: Final = 6
"""Tokens in a row that are kept of what the user said."""
MAX_NAMES: Final = 6
MAX_ROLES: Final = 4
MAX_PLACES: Final = 1_295
MAX_FOUND: Final = 16
MAX_INNER: Final = 200
"""Typed values of one free text that are judged; with more it is refused."""
MIN_RUN: Final = 6
MAX_RUN: Final = 40
"""Letters and digits of a confidential value that is looked for whatever stands between them."""
MAX_READ: Final = 4_000
"""Tokens of an argument in which confidential values are looked for; with more it is refused where there are any."""

ACCEPTS: Final[Mapping[SinkType, frozenset[str]]] = {
    "secret": frozenset({"user"}),
    "payee": frozenset({"user", "self", "payee", "system+named", "system+selected"}),
    "address": frozenset({"user", "self", "system+named", "system+role", "system+selected", "endorsed+named"}),
    "url_post": frozenset({"user"}),
    "url_fetch": frozenset(
        {
            "user",
            "user_repeated",
            "self",
            "created",
            "system",
            "directory",
            "payee",
            "system+named",
            "system+titled",
            "system+selected",
            "system+role",
            "member_text",
            "endorsed+author",
            "endorsed+link",
            "same_site",
        }
    ),
    "object": frozenset(
        {
            "user",
            "user_repeated",
            "self",
            "created",
            "system",
            "directory",
            "payee",
            "system+named",
            "system+titled",
            "system+role",
            "system+selected",
        }
    ),
    "path": frozenset(
        {
            "user",
            "user_repeated",
            "self",
            "created",
            "system",
            "system+named",
            "system+titled",
            "system+role",
            "system+selected",
        }
    ),
    "date": frozenset(),
    "text": frozenset(),
    "any": frozenset(),
}
"""What a sink takes unless the rule says otherwise. For dates, and for what stands inside free text, see `_dates` and `_inside`."""

UNLABELLED: Final[frozenset[str]] = frozenset({"user", "self", "created"})
"""V5: what an argument takes that the catalog says nothing of."""

CLASSES: Final[tuple[str, ...]] = (
    "user",
    "user_repeated",
    "self",
    "created",
    "payee",
    "directory",
    "system",
    "system+named",
    "system+titled",
    "system+role",
    "system+selected",
    "system+other",
    "label",
    "member_text",
    "endorsed_text",
    "endorsed+author",
    "endorsed+named",
    "endorsed+link",
    "same_site",
    "text",
    "echo",
    "unknown",
)
"""user: said by the user before anybody else
user_repeated: said by the user after a text had held it
self: the principal's own
created: made in this session
payee, directory, system: a field of that class holds it
system+named: and it, or the name of its record, is in what the user said
system+titled: the same by a name that outsiders can choose, such as a subject
system+role: and the user said the word for that field
system+selected: and it was read through a locator that the user named
system+other: an id, while the user's words fit another record
label: a name that outsiders can choose
member_text: members wrote it
endorsed_text: text of a place that the user named
endorsed+author: text of an author whom the user named
endorsed+named: the only address of such a place, and the user named it
endorsed+link: the only link of authors whom the user named, and the user said a word for a link
same_site: under a host that the user named
text: outsiders can write it
echo: a call carried it before any trusted field did
unknown: nobody has said it"""

NEEDS: Final[Mapping[str, str]] = {
    "secret": "the user must say it in their own words",
    "payee": "it must be an account that the user says, that the owner saved, or that belongs to somebody the user names",
    "address": "it must be an address that the user says, or that belongs to a contact or sender whom the user names",
    "url_post": "it must be on a host that the user names",
    "url_fetch": "it must be a link that the user says, or that a trusted field holds",
    "object": "it must be one that the user names, that was made here, or that a trusted field shows",
    "path": "it must be a path that the user names, that was made here, or that a trusted field shows",
    "date": "it must be a date that the user says or that a trusted field shows",
    "text": "links, addresses and account numbers in it must be the user's or come from a trusted field",
    "": "the catalog does not say what goes in there, so the user must say it",
    "protected": "the path is protected: the user must say exactly this path",
    "confidential": "it is confidential: the user must name the field",
    "unreadable": "the arguments must be JSON that can be read",
}

_ROWS: Final[Mapping[str, tuple[RegisterKey, ...]]] = {
    family: tuple((RULE, f"{family}{level}") for level in range(LEVELS)) for family in WIDTH
}
_LETTERS: Final[Mapping[str, str]] = {
    "s": "system",
    "d": "directory",
    "p": "payee",
    "l": "label",
    "o": "self",
    "k": "created",
    "m": "member_text",
    "e": "endorsed_text",
    "A": "endorsed+author",
    "E": "endorsed_text",
    "W": "endorsed+link",
}
_LETTER: Final[Mapping[str, str]] = {
    "system": "s",
    "directory": "d",
    "payee": "p",
    "label": "l",
    "self": "o",
    "created": "k",
}
_INNER: Final[frozenset[str]] = frozenset(
    {
        "user",
        "self",
        "created",
        "system",
        "directory",
        "payee",
        "system+named",
        "system+titled",
        "system+role",
        "system+selected",
        "system+other",
        "endorsed+link",
    }
)
"""What addresses, links and account numbers inside free text may be."""
_BAD_MARKS: Final[frozenset[str]] = frozenset({"forged", "altered", "result_for_denied_call"})
_BAD_STATUS: Final[frozenset[str]] = frozenset({"error", "timeout", "rejected"})
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SPOKEN: Final[re.Pattern[str]] = re.compile(r"[^\W_]+")
_ODD: Final[re.Pattern[str]] = re.compile(r"[^\w./:\[\]-]", re.ASCII)
_WAYS: Final = frozenset(
    {
        "search",
        "q",
        "query",
        "page",
        "p",
        "s",
        "index",
        "html",
        "htm",
        "php",
        "home",
        "about",
        "contact",
        "contacts",
        "news",
        "blog",
        "login",
        "lang",
        "en",
        "id",
        "us",
        "www",
        "site",
        "docs",
        "help",
        "faq",
        "pricing",
        "products",
        "product",
        "team",
        "careers",
    }
)
"""Words in links that anybody would guess."""
_PATHS: Final[re.Pattern[str]] = re.compile(r"(?:[~.]{0,2}[/\\]|[A-Za-z]:[/\\])?[\w.@+-]+(?:[/\\][\w.@+-]+)*[/\\]?")
_FILE: Final[re.Pattern[str]] = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}\Z")
_NO_NAMES: Final[list[str]] = []
_NAMES_WIDTH: Final = MAX_NAMES * (SHORT + 1)
_NAMELESS: Final = frozenset({"", "/[]", "/{}"})
_PARTS: Final = frozenset({"user", "team", "contact", "admin", "support", "office"})
"""Common words that are words for a part all the same, where the catalog says so."""
_GLUED: Final[re.Pattern[str]] = re.compile(r"(?<=[a-z/])\.(?=[A-Z][a-z]*(?:[\s,!?']|\Z))")
_QUOTES: Final = frozenset("\"'“”‘’`«»#@")
_KINDS: Final[Mapping[str, str]] = {"a": "an address", "u": "a link", "n": "an account number", "d": "a date"}


class Scope(Protocol):
    """The registers of the session while a gate is judged."""

    def get(self, key: RegisterKey) -> RegisterValue | None: ...
    def put(self, key: RegisterKey, value: RegisterValue | None) -> None: ...


class Labels:
    """What the catalog says of one tool, ready to be looked up."""

    __slots__ = (
        "authors",
        "by_end",
        "by_key",
        "by_letters",
        "by_path",
        "keyed",
        "labelled",
        "locators",
        "names",
        "namespace",
        "sinks",
        "tool",
        "writes",
    )

    def __init__(self, identity: Identity) -> None:
        self.tool = f"{identity.namespace}.{identity.name}"
        self.namespace = identity.namespace
        self.by_path: dict[str, FieldLabel] = {}
        self.by_key: dict[str, FieldLabel] = {}
        for label in identity.fields:
            (self.by_path if label.field.startswith("/") or not label.field else self.by_key)[label.field] = label
        self.labelled = bool(identity.fields)
        self.keyed = "{}" in self.by_key
        self.by_letters = {_letters(key): label for key, label in self.by_key.items() if not key.startswith("*")}
        """However a key is written: `passportNumber`, `Passport Number`."""
        self.by_end = [(key[1:], label) for key, label in self.by_key.items() if key.startswith("*")]
        self.sinks: dict[str, SinkType] = dict(identity.sinks)
        self.names = frozenset(identity.names)
        self.locators = frozenset(identity.locators)
        self.authors = frozenset(identity.authors)
        self.writes = bool(identity.effects) or identity.risk_class != "read_only"

    def field(self, path: str) -> FieldLabel | None:
        """By its path, else by its key; but nothing inside a text is more than text, whatever its keys are called."""
        found = self.by_path.get(path)
        if found is not None or not path:
            return found
        head, _, key = path.rpartition("/")
        while head:
            above = self.by_path.get(head) or self.by_key.get(head.rpartition("/")[2])
            if above is not None and above.field_class in ("text", "member_text", "label"):
                return above
            head = head.rpartition("/")[0]
        found = self.by_key.get(key) or self.by_letters.get(_letters(key))
        if found is None:
            key = key.replace(" ", "_").replace("-", "_")
            found = next((label for end, label in self.by_end if key.endswith(end)), None)
        return found

    def sink(self, path: str) -> SinkType | None:
        """By the whole path, then by the nearest key, from the inside out."""
        sinks = self.sinks
        found = sinks.get(path)
        while found is None and path:
            head, _, key = path.rpartition("/")
            found = sinks.get(key) or sinks.get(head)
            path = head
        return found


def _letters(key: str) -> str:
    return key.replace("_", "").replace(" ", "").replace("-", "") or key


def _is(path: str, wanted: frozenset[str]) -> bool:
    if not wanted:
        return False
    key = path.rpartition("/")[2]
    return path in wanted or key in wanted or _letters(key) in {_letters(one) for one in wanted}


@dataclass(slots=True)
class Watch:
    """What a plan with such rules looks for at every gate. Made once per plan; its memo is bounded."""

    catalog: Catalog
    lexicons: tuple[Lexicon, ...] = ()
    untrusted: tuple[Pattern, ...] = ()
    """Texts in the user's role that match are no words of the user."""
    common: frozenset[str] = frozenset()
    memo: dict[str, Labels] = field(default_factory=dict[str, Labels])
    _kinds: frozenset[str] | None = None
    _links: frozenset[str] | None = None
    _secretive: bool | None = None

    @property
    def links(self) -> frozenset[str]:
        """What users call a link."""
        if self._links is None:
            self._links = frozenset(word for one in self.lexicons or (default_lexicon(),) for word in one.links)
        return self._links

    @property
    def secretive(self) -> bool:
        """Whether the catalog has confidential fields at all."""
        if self._secretive is None:
            given = (
                cast("tuple[FieldLabel, ...]", entry.attributes.get("fields", ())) for entry in self.catalog.entries
            )
            self._secretive = any(
                "confidential" in (label.field_class, *(one for _, one in label.when))
                for labels in given
                for label in labels
            )
        return self._secretive

    def tells(self, word: str) -> bool:
        """Whether a word without a capital may be what one thing is called: "the dentist", and not "the meeting"."""
        if len(word) < 4 or word in self.common:
            return False
        if self._kinds is None:
            self._kinds = frozenset(word for lexicon in self.lexicons for word in lexicon.vocabulary)
        return word not in self._kinds and word.removesuffix("s") not in self._kinds

    def labels(self, raw_name: str) -> Labels:
        found = self.memo.get(raw_name)
        if found is None:
            found = Labels(self.catalog.resolve(raw_name))
            if len(self.memo) >= 4_096:
                self.memo.clear()
            if len(raw_name) <= 256:
                self.memo[raw_name] = found
        return found


class Shelves:
    """The index of one session during one gate: families of fixed-width entries, each in a few sorted strings."""

    __slots__ = ("_at", "_found", "_kept", "_keyed", "_packs", "_places", "_spoken", "_tokens", "scope")

    def __init__(self, scope: Scope, key: bytes) -> None:
        self.scope = scope
        self._keyed = hashlib.blake2b(digest_size=8, key=key[:64])
        self._kept: tuple[str, ...] | None = None
        self._tokens: dict[str, str] = {}
        self._spoken: dict[str, str] | None = None
        """What the user said, ready for many questions: beginning of a digest → flags."""
        self._packs: dict[str, list[str]] = {}
        self._found: dict[tuple[str, str], list[str]] = {}
        """What was looked up at this gate."""
        self._places: Sequence[str] | None = None
        self._at: dict[tuple[str, str], str] = {}

    def digest(self, kind: str, normal: str) -> str:
        made = self._keyed.copy()
        made.update(f"{kind}:{normal}".encode("utf-8", "surrogatepass"))
        return made.hexdigest()

    def token(self, word: str) -> str:
        """The digest of a word that may come again at this gate."""
        known = self._tokens.get(word)
        if known is None:
            known = self._tokens[word] = self.digest("w", word)
        return known

    def unfold(self, questions: int) -> None:
        """Many questions about what the user said will follow: they are answered from a mapping, if that is less work."""
        packed = self.packs("u")
        width = WIDTH["u"]
        if self._spoken is None and questions * 4 > sum(map(len, packed)) // width:
            found: dict[str, str] = {}
            for one in packed:
                for at in range(0, len(one), width):
                    start = one[at : at + SHORT]
                    found[start] = found.get(start, "") + one[at + DIGEST]
            self._spoken = found

    def packs(self, family: str) -> list[str]:
        found = self._packs.get(family)
        if found is None:
            get = self.scope.get
            found = ["" if (value := get(key)) is None else cast("str", value[0]) for key in _ROWS[family]]
            self._packs[family] = found
        return found

    def empty(self, family: str) -> bool:
        known = self._packs.get(family)
        if known is None and family not in self.kept():
            return True
        return not any(self.packs(family))

    def kept(self) -> tuple[str, ...]:
        """Families that hold something: most sessions never fill all of them."""
        if self._kept is None:
            self._kept = self.flags("kept")
        return self._kept

    def find(self, family: str, start: str) -> list[str]:
        """What stands behind each entry that begins so."""
        if family not in (self._kept if self._kept is not None else self.kept()):
            return []
        known = self._found.get((family, start))
        if known is not None:
            return known
        width, size = WIDTH[family], len(start)
        found: list[str] = []
        self._found[family, start] = found
        for packed in self._packs.get(family) or self.packs(family):
            if not packed:
                continue
            low, high = 0, len(packed) // width
            while low < high:
                middle = (low + high) >> 1
                at = middle * width
                if packed[at : at + size] < start:
                    low = middle + 1
                else:
                    high = middle
            at = low * width
            while packed.startswith(start, at) and len(found) < MAX_FOUND:
                found.append(packed[at + DIGEST : at + width])
                at += width
        return found

    def add(self, family: str, entries: Iterable[str]) -> None:
        """New entries, as many as still fit; small levels are merged into greater ones as they fill."""
        fresh = sorted(set(entries))
        if not fresh:
            return
        if family == "u":
            self._spoken = None
        self._found.clear()
        packs, width = self.packs(family), WIDTH[family]
        room = CAPACITY[family] - sum(len(packed) for packed in packs) // width
        if len(fresh) > room:
            self.flag("full", family)
            fresh = fresh[: max(0, room)]
        if not fresh:
            return
        for level, packed in enumerate(packs):
            if packed:
                fresh.extend([packed[at : at + width] for at in range(0, len(packed), width)])
            if len(fresh) <= FIRST * 4**level or level == LEVELS - 1:
                packs[level] = "".join(sorted(set(fresh)))
                if family not in self.kept():
                    self.flag("kept", family)
                    self._kept = None
                self.scope.put(_ROWS[family][level], (packs[level],))
                return
            if packed:
                packs[level] = ""
                self.scope.put(_ROWS[family][level], None)

    # places

    def places(self) -> Sequence[str]:
        if self._places is None:
            self._places = cast("Sequence[str]", self.scope.get((RULE, "places")) or ())
        return self._places

    def place(self, tool: str, path: str) -> str:
        """Two characters for a place, so that a denial can say where a value came from."""
        known = self._at.get((tool, path))
        if known is None:
            known = self._at[tool, path] = self._place(tool, path)
        return known

    def _place(self, tool: str, path: str) -> str:
        places = self.places()
        name = f"{_shown(tool, 96)} {_shown(path, 64)}".rstrip()
        try:
            number = places.index(name)
        except ValueError:
            number = len(places)
            if number >= MAX_PLACES:
                return "zz"
            self._places = (*places, name)
            self.scope.put((RULE, "places"), self._places)
        return _DIGITS[number // 36] + _DIGITS[number % 36]

    def named(self, place: str) -> str:
        number = _DIGITS.index(place[0]) * 36 + _DIGITS.index(place[1])
        places = self.places()
        return places[number] if number < len(places) else "a result"

    # small sets

    def flags(self, name: str) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.scope.get((RULE, name)) or ())

    def flag(self, name: str, word: str) -> None:
        known = self.flags(name)
        if word not in known and len(known) < 256:
            self.scope.put((RULE, name), (*known, word))

    def said(self, digest: str) -> str:
        """How the user said a value: the flags of its entries; empty when not at all."""
        if self._spoken is not None and len(digest) == SHORT:
            return self._spoken.get(digest, "")
        return "".join(self.find("u", digest))

    def names_fit(self, names: str, owned: Container[str] = ()) -> str:
        """How the user said one of the names of an entry: `n`, `t` for a name that outsiders can choose, `a` for that of its author, or
        not at all.

        What is `owned` names the owner's contacts: nobody else goes by it."""
        titled = ""
        for at in range(0, len(names), SHORT + 1):
            how = names[at]
            if how == ".":
                break
            name = names[at + 1 : at + 1 + SHORT]
            said = self.said(name)
            if "p" in said if how in "pPQ" else said:
                if how == "Q":
                    titled = "a"
                elif how in "PG":
                    titled = titled or "t"
                elif name not in owned:
                    return "n"
        return titled

    def roles_fit(self, roles: str, *, leaving: bool = False) -> bool:
        """Whether the user said one of the words. Leaving: in a sentence that may ask for the value to be used, not only to be told."""
        for at in range(0, len(roles), SHORT):
            if roles[at] == ".":
                break
            said = self.said(roles[at : at + SHORT])
            if "o" in said if leaving else said:
                return True
        return False


# seeing


def hear(shelves: Shelves, watch: Watch, text: str) -> None:
    """A text of the user."""
    whole = shelves.digest("T", text)
    if shelves.find("u", whole):
        return
    entries = [f"{whole}T"]
    if any(pattern.search(text) is not None for pattern in watch.untrusted):
        shelves.add("u", entries)
        _see_text(shelves, plain(text), shelves.place("pasted text", ""))
        return
    spoken = unicodedata.normalize("NFKC", text)
    if _GLUED.search(spoken) is not None:
        # A sentence that begins right behind the dot of the last one is no part of its link.
        spoken = f"{spoken}\n{_GLUED.sub('. ', spoken)}"
    said: list[tuple[str, bool]] = []
    end = 0
    for found in _SPOKEN.finditer(spoken):
        if len(said) >= MAX_SAID:
            break
        end = found.end()
        word = found[0]
        said.append((plain(word), _proper(spoken, word, found.start(), watch.common)))
    digest = shelves.digest
    proper: list[str] = []
    for place, (word, is_proper) in enumerate(said):
        unigram = digest("w", word)
        entries.append(unigram + ("p" if is_proper else "w"))
        if is_proper or watch.tells(word):
            proper.append(unigram)
        if is_proper and place + 1 < len(said) and said[place + 1][1]:
            # "Paper Corner" is at home at papercorner.example.
            entries.append(digest("w", word + said[place + 1][0]) + "p")
        if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
            # "the users", "all senders": the word for a field, or a name, in the plural.
            entries.append(digest("w", word[:-1]) + ("p" if is_proper else "w"))
        gram = word
        for other, _ in said[place + 1 : place + GRAM]:
            gram = f"{gram} {other}"
            made = digest("w", gram)
            entries.append(f"{made}g")
            proper.append(made)
    lowered = plain(spoken if end == 0 or len(said) < MAX_SAID else spoken[:end])
    for found in _PATHS.finditer(lowered):
        whole = path_of(found[0].rstrip(".")).strip("/")
        last = words(whole.rpartition("/")[2])
        if "/" in whole or "." in whole or found[0][:1] in "/~":
            entries.append(digest("f", whole) + "g")
        if last and " " not in last:
            entries.append(digest("b", last) + "w")
    dated = False
    full = shelves.flags("full")
    for count, (kind, normal) in enumerate(typed_in(lowered)):
        if count >= MAX_TYPED:
            break
        made = digest(kind, normal)
        dated = dated or kind == "d"
        # Lowest trust wins: what a text or a call held before is no word of the user's own.
        held = "t" in full or "x" in full or bool(shelves.find("t", made) or shelves.find("x", made))
        late = held and kind != "d" and not shelves.find("u", made)
        entries.append(made + ("r" if late else "v"))
        if not late and kind == "a":
            # The user knows whose address it is.
            entries.extend(
                f"{digest('w', one)}p" for one in tokens(normal.partition("@")[0]) if one not in watch.common
            )
    if watch.secretive:
        entries.extend(digest("w", one) + "o" for one in asked_about(spoken, watch.lexicons or (default_lexicon(),)))
    shelves.add("u", entries)
    if any(word in watch.links or word.removesuffix("s") in watch.links for word, _ in said):
        shelves.flag("links", "links")
    if dated:
        shelves.flag("dates", "1")
    if not shelves.empty("n"):
        for made in dict.fromkeys(proper):
            for place in shelves.find("n", made):
                shelves.flag("matched", shelves.named(place).partition(" ")[0])
    for lexicon in watch.lexicons:
        before = wanted_effects(shelves.scope, lexicon)
        wanted = asked(text, lexicon) - set(before)
        if wanted:
            shelves.scope.put((INTENT, lexicon.name), (*before, *sorted(wanted)))


def wanted_effects(scope: Scope, lexicon: Lexicon) -> tuple[str, ...]:
    """What the user has asked for so far; several turns add up."""
    return cast("tuple[str, ...]", scope.get((INTENT, lexicon.name)) or ())


def _proper(text: str, word: str, start: int, common: frozenset[str]) -> bool:
    """A name by its look: a capital inside a sentence, digits among letters, or a word in quotes."""
    if len(word) < 2 or plain(word) in common:
        return False
    if start and text[start - 1] in _QUOTES and not (start > 1 and text[start - 2].isalnum()):
        return True
    if any(one.isdecimal() for one in word) and any(one.isalpha() for one in word):
        return True
    return word[0].isupper()


def see(shelves: Shelves, watch: Watch, fact: ToolFact) -> None:
    """A result, field by field."""
    content = fact.content
    if not content:
        return
    if fact.source != "tool_result":
        _see_text(shelves, plain(content), shelves.place(f"{fact.namespace}.{fact.name}", ""))
        return
    labels = watch.labels(fact.raw_name)
    doubtful = any(mark in _BAD_MARKS for mark in fact.marks) or fact.result_status in _BAD_STATUS
    if doubtful or not (labels.labelled or labels.locators):
        _see_text(shelves, plain(content), shelves.place(labels.tool, ""))
        return
    # A tool that hands out plain text is never read as records: whoever writes the text would choose the fields.
    read = leaves(content, keyed=labels.keyed) if labels.labelled and "" not in labels.by_path else None
    if read is None:
        whole = labels.by_path.get("")
        trusted = whole is not None and whole.field_class not in ("text", "member_text") and not whole.when
        read = (listed(content) if trusted else None) or [Leaf("", 0, content)]
    called = leaves(fact.arguments) if fact.arguments else None
    echoes: set[Atom] = set()
    located: list[str] = []
    for leaf in called or ():
        echoes.update(_forms(leaf.value))
        if _is(leaf.path, labels.locators):
            located.append(leaf.value)
    selected = bool(located) and all(_told(one, watch.common) and _said(shelves, one) for one in located)
    _Result(shelves, watch, labels, echoes, located, selected, content).see(read)


@dataclass(slots=True)
class _Spot:
    """What the catalog says of one path, and what was seen there in this result."""

    label: FieldLabel | None
    field_class: str
    named: bool
    wrote: bool
    place: str
    roles: str
    seen: dict[str, list[tuple[Kind, str, str]]] = field(default_factory=dict[str, list[tuple[Kind, str, str]]])
    """Value → its forms and their digests …"""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """… and how often it came again: more than are ever looked at are not kept."""


class _Result:
    """One result while it is indexed."""

    def __init__(
        self,
        shelves: Shelves,
        watch: Watch,
        labels: Labels,
        echoes: set[Atom],
        located: Sequence[str],
        selected: bool,
        content: str,
    ) -> None:
        self.shelves = shelves
        self.watch = watch
        self.labels = labels
        self.content = content
        self.echoes = echoes
        self.located = located
        self.selected = selected
        self.names: dict[int, list[str]] = {}
        """Record → the names it goes by, as they stand in entries."""
        self.known_authors: set[int] = set()
        self.called: list[str] = []
        self.wrote: dict[int, list[str]] = {}
        """Record → names of its author, for its ids: "the mail from Priya"."""
        self.matched: set[int] = set()
        """Records that the user's words fit."""
        self.clean = shelves.empty("x")
        self.trusted: list[str] = []
        self.secret: list[str] = []
        self.texts: list[tuple[Leaf, _Spot]] = []
        self.full = "x" in shelves.flags("full")
        self.spots: dict[str, _Spot] = {}
        self.owned: set[str] = set()
        """Addresses in trusted fields."""
        self.mixed: list[str] = []
        """Values that are made to look like others."""

    def see(self, read: Sequence[Leaf]) -> None:
        shelves, spots = self.shelves, self.spots
        shelves.unfold(len(read))
        for leaf in read:
            spot = spots.get(leaf.path)
            if spot is None:
                spot = spots[leaf.path] = self._spot(leaf.path)
            if spot.named:
                self._name(leaf, spot)
            if spot.wrote and self._named(leaf.value):
                self.known_authors.add(leaf.record)
                self._match(leaf.record)
                self.wrote.setdefault(leaf.record, []).extend(self._author_names(leaf.value))
        for leaf in read:
            spot = spots[leaf.path]
            if spot.label is None or spot.field_class in ("text", "member_text"):
                self.texts.append((leaf, spot))
            else:
                self._value(leaf, spot)
        self._text()
        shelves.add("t", self.mixed)
        shelves.add("n", self.called)
        shelves.add("s", self.trusted)
        shelves.add("c", self.secret)

    def _spot(self, path: str) -> _Spot:
        labels, shelves = self.labels, self.shelves
        label = labels.field(path)
        field_class = "text" if label is None else self._class_of(label)
        # Who writes a text names neither its record nor its author.
        says = field_class not in ("text", "member_text", "confidential")
        role_words: Sequence[str] = () if label is None else label.roles
        if not role_words and field_class == "confidential":
            role_words = (path.rpartition("/")[2],)
        said_so = [shelves.digest("w", one)[:SHORT] for one in _role_words(role_words, self.watch.common)]
        return _Spot(
            label,
            field_class,
            # What a service lists in its own text are names of what it lists.
            says and (not path or _is(path, labels.names)),
            says and field_class != "label" and _is(path, labels.authors),
            # Keys that the catalog does not name are an outsider's words: a denial does not repeat them.
            shelves.place(labels.tool, "" if label is None else path),
            "".join(said_so[:MAX_ROLES]).ljust(MAX_ROLES * SHORT, "."),
        )

    def _class_of(self, label: FieldLabel) -> str:
        for glob, instead in label.when:
            if self.located and all(".." not in one and compile_value_glob(glob)(one) for one in self.located):
                return instead
        return label.field_class

    def _name(self, leaf: Leaf, spot: _Spot) -> None:
        """What a record is called. A name that outsiders can choose must be said as a whole."""
        shelves, common, field_class = self.shelves, self.watch.common, spot.field_class
        said = tokens(plain(leaf.value))
        if not said or len(said) > MAX_TOKENS:
            return
        names = self.names.setdefault(leaf.record, [])
        made: list[str] = []
        if len(said) <= GRAM and not (len(said) == 1 and (said[0] in common or len(said[0]) < 2)):
            whole = shelves.digest("w", " ".join(said))
            made.append(whole)
            # One word that outsiders chose must look like a name where the user says it.
            how = "p" if len(said) == 1 and not (field_class == "label" and self.watch.tells(said[0])) else "g"
            if field_class == "label":
                names.append(f"{how.upper()}{whole[:SHORT]}")
                if len(said) > 2 and _FILE.search(leaf.value):
                    # "The grocery list" is grocery-list.docx.
                    stem = shelves.digest("w", " ".join(said[:-1]))
                    made.append(stem)
                    names.append(f"G{stem[:SHORT]}")
            else:
                # Names that the owner or the service gave come first: titles are the first to be left out.
                names.insert(0, f"{how}{whole[:SHORT]}")
        if field_class in ("directory", "payee"):
            for one in said:
                if len(one) > 1 and one not in common:
                    token = shelves.token(one)
                    made.append(token)
                    names.append(f"g{token[:SHORT]}")  # the owner chose it: "bob" will do
        place = spot.place
        self.called.extend([one + place for one in made])
        if leaf.record not in self.matched and shelves.names_fit("".join(names)):
            if field_class in ("directory", "payee"):
                shelves.flag("matched", self.labels.tool)  # people are named along with things, not instead of them
            else:
                self._match(leaf.record)

    def _match(self, record: int) -> None:
        """The user's words fit this record: ids of others, here or from a tool beside this one, need more than to be known."""
        if not self.matched:
            self.shelves.flag("matched", self.labels.tool)
        self.matched.add(record)

    def _named(self, value: str) -> bool:
        """Whether the user named this author: all of it, or a name in it."""
        if _said(self.shelves, value):
            return True
        lowered = plain(value)
        typed = typed_as_whole(lowered)
        if typed and typed[0][0] == "a":
            shelves = self.shelves
            # Who goes by the name of a contact but writes from elsewhere is not whom the user named.
            known = any(one[0] == "d" for one in shelves.find("s", shelves.digest("a", typed[0][1])))
            owned = () if known else shelves.flags("owned")
            return shelves.names_fit("".join(self._own_names("a", typed[0][1])), owned) == "n"
        common = self.watch.common
        return any(
            "p" in self.shelves.said(self.shelves.digest("w", one))
            for one in tokens(lowered)[:MAX_TOKENS]
            if len(one) > 1 and one not in common
        )

    def _author_names(self, value: str) -> list[str]:
        typed = typed_as_whole(plain(value))
        kind: Kind = "a" if typed and typed[0][0] == "a" else "w"
        return self._own_names(kind, typed[0][1] if kind == "a" else words(value), "Q")

    def _own_names(self, kind: Kind, normal: str, how: str = "p") -> list[str]:
        common = self.watch.common
        if kind == "u":
            normal = _owner(normal.partition("/")[0])
        elif kind == "a":
            local, _, host = normal.partition("@")
            normal = f"{local} {_owner(host)}"
        own = [one for one in dict.fromkeys(tokens(normal)) if len(one) > 2 and one not in common]
        return [how + self.shelves.token(one)[:SHORT] for one in own]

    def _value(self, leaf: Leaf, spot: _Spot) -> None:
        shelves, field_class, place = self.shelves, spot.field_class, spot.place
        forms = spot.seen.get(leaf.value)
        if forms is None:
            forms = [(kind, normal, shelves.digest(kind, normal)) for kind, normal in _forms(leaf.value)]
            if self.echoes and field_class not in ("self", "confidential"):
                forms = [one for one in forms if one[:2] not in self.echoes]
            spot.seen[leaf.value] = forms
        else:
            count = spot.counts[leaf.value] = spot.counts.get(leaf.value, 1) + 1
            if count > MAX_FOUND and leaf.record not in self.matched:
                return
        if field_class == "confidential":
            self.secret.extend([f"{made}{place}{spot.roles}" for _, _, made in forms])
            run = compact(leaf.value)
            if MIN_RUN <= len(run) <= MAX_RUN:
                # With other signs between its letters it is the same secret.
                self.secret.append(f"{shelves.digest('k', run)}{place}{spot.roles}")
                shelves.flag("runs", str(len(run)))
            return
        letter = _LETTER[field_class]
        for kind, normal, made in forms:
            if kind in ("a", "u") and mixed(normal):
                self.mixed.append(made + place)
                continue
            if kind == "a":
                self.owned.add(normal)
            if kind != "w" and not self.clean and (self.full or shelves.find("x", made)):
                continue
            if field_class == "label":
                said = kind == "w" and normal.count(" ") < GRAM and len(normal) > 1 and normal not in self.watch.common
                names = [f"{'G' if ' ' in normal else 'P'}{made[:SHORT]}"] if said else []
            else:
                names = self.names.get(leaf.record, _NO_NAMES)
                if kind in ("a", "u"):
                    names = [*self._own_names(kind, normal)[:3], *names]
                elif kind == "w":
                    if field_class in ("directory", "payee"):
                        names = [*self._own_names(kind, normal, "g")[:3], *names]
                    if self.wrote and leaf.record in self.wrote:
                        names = [*self.wrote[leaf.record][:3], *names]
            packed = "".join(names[:MAX_NAMES])
            if kind == "a" and packed and shelves.names_fit(packed) == "n":
                shelves.flag("matched", "@address")
                if field_class == "directory":
                    for one in names[:MAX_NAMES]:
                        if shelves.names_fit(one):
                            shelves.flag("owned", one[1:])
            if kind == "w" and letter == "s" and leaf.record in self.matched and leaf.path not in _NAMELESS:
                key = f"{self.labels.namespace} {leaf.path.rpartition('/')[2]}"
                shelves.flag("matched", key)
                if leaf.record in self.wrote:
                    shelves.flag("matched", f"{key} by")
            # Whoever writes in a channel that the user named would select himself; mail is put into a folder by its owner.
            chosen = "L" if self.selected and field_class != "label" and not (letter == "d" and spot.wrote) else "."
            self.trusted.append(f"{made}{letter}{chosen}{place}{spot.roles}{packed:.<{_NAMES_WIDTH}}")

    def _text(self) -> None:
        """Typed values of text. In a place, or by an author, that the user named they are endorsed, which is not trusted."""
        shelves = self.shelves
        found: list[tuple[str, str, Kind, str, int, str]] = []
        endorsed = self.selected or bool(self.known_authors)
        blank = "." * (MAX_ROLES * SHORT)
        kept: list[str] = []
        for leaf, spot in self.texts:
            place, field_class = spot.place, spot.field_class
            atoms: dict[Atom, None] = {}
            for atom in typed_in(plain(leaf.value)):
                atoms[atom] = None
                if len(atoms) >= MAX_TYPED:
                    shelves.flag("full", "t")
                    break
            for kind, normal in atoms:
                made = shelves.digest(kind, normal)
                kept.append(f"{made}{place}")
                if field_class == "member_text" or self.selected or leaf.record in self.known_authors:
                    found.append((made, place, kind, normal, leaf.record, field_class))
        shelves.add("t", kept)
        # Candidates are counted in all that the result says, keys included: whoever writes the text may break its form.
        addresses = (
            {normal for kind, normal in typed_in(plain(self.content)) if kind == "a"} if endorsed else set[str]()
        )
        addresses -= self.owned
        nameless = "." * (MAX_NAMES * (SHORT + 1))
        posted = {normal for _, _, kind, normal, record, _ in found if kind == "u" and record in self.known_authors}
        for made, place, kind, normal, record, field_class in found:
            if (kind, normal) in self.echoes or kind in ("h", "d"):
                continue
            if field_class == "member_text":
                self.trusted.append(f"{made}m.{place}{blank}{nameless}")
            if record in self.known_authors:
                self.trusted.append(f"{made}A.{place}{blank}{nameless}")
                if kind == "u" and len(posted) == 1:
                    self.trusted.append(f"{made}W.{place}{blank}{nameless}")
            if kind == "a" and len(addresses) == 1:
                local = normal.partition("@")[0]
                names = "".join(self._own_names("w", local)[:MAX_NAMES]).ljust(MAX_NAMES * (SHORT + 1), ".")
                self.trusted.append(f"{made}E.{place}{blank}{names}")
            elif self.selected:
                self.trusted.append(f"{made}e.{place}{blank}{nameless}")


def _role_words(role_words: Iterable[str], common: frozenset[str]) -> Iterator[str]:
    """The words for a field that say something: "from" is in every other sentence."""
    for one in role_words:
        said = words(one)
        if said and (said in _PARTS or said not in common):
            yield said


def _see_text(shelves: Shelves, text: str, place: str) -> None:
    digest = shelves.digest
    made: dict[Atom, None] = {}
    for atom in typed_in(text):
        made[atom] = None
        if len(made) >= MAX_TYPED:
            shelves.flag("full", "t")
            break
    shelves.add("t", [f"{digest(kind, normal)}{place}" for kind, normal in made])


def carry(shelves: Shelves, watch: Watch, fact: ToolFact) -> None:
    """A writing call that passes: what it carries without a trusted source is no more trusted when it comes back."""
    labels = watch.labels(fact.raw_name)
    if not fact.arguments or not labels.writes:
        return
    made: list[str] = []
    for kind, normal in typed_in(plain(fact.arguments), dates=False):
        if kind == "h":
            continue
        one = shelves.digest(kind, normal)
        if not shelves.find("u", one) and not shelves.find("s", one):
            made.append(one)
    shelves.add("x", made)


# judging


@dataclass(frozen=True, slots=True)
class Refusal:
    """One argument that does not fit. Says what it holds without showing it."""

    argument: str
    sink: str
    holds: str
    classes: tuple[str, ...]
    origin: str
    needs: str

    def sentence(self) -> str:
        seen = f"last seen in {self.origin}" if self.origin else "never seen before"
        return f"{self.argument} holds {self.holds}, {seen} ({', '.join(self.classes)}): {self.needs}"


def refusals(
    shelves: Shelves,
    watch: Watch,
    raw_name: str,
    arguments: Sequence[Leaf] | None,
    accepts: Mapping[str, frozenset[str]],
    own: frozenset[Atom],
    protected: Sequence[str],
) -> list[Refusal]:
    """Every argument of a call that holds what its sink does not take. None for arguments: they cannot be read (V7)."""
    if arguments is None:
        return [Refusal("$", "", "something unreadable", ("unknown",), "", NEEDS["unreadable"])]
    labels = watch.labels(raw_name)
    judge = _Judge(shelves, watch, accepts, own, protected)
    found: list[Refusal] = []
    for leaf in arguments:
        refused = judge.refuse(leaf, labels.sink(leaf.path))
        if refused is not None:
            found.append(refused)
    return found


class _Judge:
    def __init__(
        self,
        shelves: Shelves,
        watch: Watch,
        accepts: Mapping[str, frozenset[str]],
        own: frozenset[Atom],
        protected: Sequence[str],
    ) -> None:
        self.shelves = shelves
        self.watch = watch
        self.accepts = accepts
        self.own = own
        self.protected = protected
        self.matched: tuple[str, ...] | None = None
        self.owned: tuple[str, ...] | None = None
        self.reaches = False
        """Whether the value at hand says whom a call reaches."""

    def refuse(self, leaf: Leaf, sink: SinkType | None) -> Refusal | None:
        value = leaf.value
        self.reaches = sink in ("address", "payee")
        if not value.strip():
            return None
        if self.protected and sink in ("path", "object", "url_fetch", None):
            literal = path_of(value)
            if any(compile_value_glob(glob)(one) for glob in self.protected for one in (value, literal)) and (
                "user" not in self.standing([("w", words(value))])
            ):
                return self._refusal(leaf, sink or "", "protected", {"unknown": ""}, "w")
        if not self.shelves.empty("c"):
            leaked = self._confidential(leaf, sink or "")
            if leaked is not None:
                return leaked
        if sink == "any":
            return None
        if sink == "date":
            return self._dates(leaf)
        if sink == "text":
            return self._inside(leaf)
        refused = self._whole(leaf, sink)
        if refused is None or sink not in ("address", "payee") or not ("," in value or ";" in value):
            return refused
        for part in re.split("[,;]", value):
            refused = self._whole(Leaf(leaf.path, leaf.record, part), sink) if part.strip() else None
            if refused is not None:
                return refused
        return None

    def _whole(self, leaf: Leaf, sink: SinkType | None) -> Refusal | None:
        lowered = plain(leaf.value)
        typed = [one for one in typed_as_whole(lowered) if one[0] != "h"]
        site = ""
        forms: list[Atom] = typed
        if sink in ("url_post", "url_fetch"):
            host = next((normal for kind, normal in typed_as_whole(lowered) if kind == "h"), "")
            site = host
            if not host:
                forms = [("w", words(leaf.value))]
        elif sink in ("object", "path", None) or not typed or typed[0][0] == "d":
            forms = [("w", words(leaf.value)), *typed]
        found = self.standing(forms)
        if sink == "path":
            self._path(leaf.value, found)
        if site and (sink == "url_post" or found or self._tells_nothing(typed[0][1])):
            if self._host(site):
                found["user"] = "the user"
            elif sink == "url_fetch" and any(self._host(one) for one in _parents(site)):
                found["same_site"] = "the user"
        taken = UNLABELLED if sink is None else self.accepts.get(sink, ACCEPTS[sink])
        if not found:
            found["unknown"] = ""
        if any(one in taken for one in found):
            return None
        return self._refusal(leaf, sink or "", sink or "", found, forms[0][0] if forms else "w")

    def _path(self, value: str, found: dict[str, str]) -> None:
        """A path must be said as one: who names `/work/team/plan.md` does not name `/work`. Base names may be said alone."""
        shelves = self.shelves
        literal = path_of(value)
        if "/" in literal and "user" in found and not shelves.said(shelves.digest("f", literal.strip("/"))):
            del found["user"]
        if "user" in found:
            return
        last = base_name(value)
        stem = last.rpartition(" ")[0]
        if " " in last:
            # "The vendor list" is vendor-list.csv.
            said = _said(shelves, last) or (" " in stem and _said(shelves, stem))
        else:
            said = bool(shelves.said(shelves.digest("b", last)))
        if said or shelves.said(shelves.digest("f", literal.strip("/"))):
            found["user"] = "the user"

    def _tells_nothing(self, url: str) -> bool:
        """Whether a link that nobody has shown carries no word but the user's own: what was read cannot leave in it."""
        host, _, rest = url.replace("?", "/", 1).partition("/")
        del host
        said = tokens(rest)
        return len(said) <= MAX_TOKENS and all(
            one in _WAYS or (one.isdecimal() and len(one) < 3) or self.shelves.said(self.shelves.digest("w", one))
            for one in said
        )

    def _host(self, host: str) -> bool:
        said = self.shelves.said(self.shelves.digest("h", host))
        return "v" in said or ("h", host) in self.own

    def _dates(self, leaf: Leaf) -> Refusal | None:
        """If the user gave dates, a date that only text has is refused."""
        if not self.shelves.flags("dates"):
            return None
        for kind, normal in typed_in(plain(leaf.value)):
            if kind != "d":
                continue
            found = self.standing([("d", normal), ("d", normal[normal.index("-") :])])
            if ("text" in found or "t" in self.shelves.flags("full")) and not any(
                one in _INNER or one == "user_repeated" for one in found
            ):
                return self._refusal(leaf, "date", "date", found, "d")
        return None

    def _inside(self, leaf: Leaf) -> Refusal | None:
        """Links, addresses and account numbers inside free text."""
        for count, (kind, normal) in enumerate(typed_in(plain(leaf.value), dates=False)):
            if count >= MAX_INNER:
                return self._refusal(leaf, "text", "text", {"unknown": ""}, "w")
            if kind == "h":
                continue
            found = self.standing([(kind, normal)])
            if kind == "u" and "user" not in found and self._host(normal.partition("/")[0].partition("?")[0]):
                found["user"] = "the user"
            if not any(one in _INNER for one in found):
                return self._refusal(leaf, "text", "text", found or {"unknown": ""}, kind)
        return None

    def _confidential(self, leaf: Leaf, sink: str) -> Refusal | None:
        """A confidential value, or one inside a text, whose field the user did not name."""
        shelves = self.shelves
        lowered = plain(leaf.value)
        said = tokens(lowered)
        if len(said) > MAX_READ:
            return self._refusal(leaf, sink, "confidential", {"unknown": ""}, "w")
        forms: dict[Atom, None] = dict.fromkeys(_forms(leaf.value))
        forms.update(dict.fromkeys(typed_in(lowered)))
        for place, one in enumerate(said):
            forms["w", one] = None
            gram = one
            for other in said[place + 1 : place + 4]:
                gram = f"{gram} {other}"
                forms["w", gram] = None
        checked: Iterable[tuple[str, str]] = forms
        lengths = [int(one) for one in shelves.flags("runs")]
        if lengths:
            checked = [*forms, *(("k", one) for one in dict.fromkeys(windows(said, lengths)))]
        for kind, normal in checked:
            made = shelves.digest(kind, normal)
            for entry in shelves.find("c", made):
                if not shelves.said(made) and not shelves.roles_fit(entry[2:], leaving=True):
                    return self._refusal(leaf, sink, "confidential", {"confidential": shelves.named(entry[:2])}, kind)
        return None

    def standing(self, forms: Iterable[Atom]) -> dict[str, str]:
        """Every class of a value, and where it was seen in it."""
        shelves = self.shelves
        found: dict[str, str] = {}
        for kind, normal in forms:
            if not normal:
                continue
            made = shelves.digest(kind, normal)
            said = shelves.said(made)
            if not said and kind == "w" and normal.count(" ") >= GRAM:
                said = "g" if _covered(shelves, normal) else ""
            if said.strip("r"):
                found["user"] = "the user"
            elif said:
                found["user_repeated"] = "the user"
            if (kind, normal) in self.own:
                found["self"] = "the rule"
            for entry in shelves.find("s", made):
                self._entry(entry, found)
            for entry in shelves.find("c", made):
                if shelves.roles_fit(entry[2:], leaving=True):
                    found["self"] = shelves.named(entry[:2])
            for entry in shelves.find("t", made):
                found["text"] = shelves.named(entry)
                break
            if shelves.find("x", made):
                found["echo"] = found.get("text", "an earlier call")
        return found

    def _entry(self, entry: str, found: dict[str, str]) -> None:
        shelves = self.shelves
        letter, chosen, origin = entry[0], entry[1], shelves.named(entry[2:4])
        roles, names = entry[4 : 4 + MAX_ROLES * SHORT], entry[4 + MAX_ROLES * SHORT :]
        if letter == "W":
            if "links" in shelves.flags("links"):
                found["endorsed+link"] = origin
        elif letter == "E":
            found["endorsed_text"] = origin
            if "@address" not in self._matched() and shelves.names_fit(names) == "n":
                found["endorsed+named"] = origin
        elif letter in "sdp":
            better = chosen == "L"
            if better:
                found["system+selected"] = origin
            fits = shelves.names_fit(names, self._owned() if letter == "s" and self.reaches else ())
            if fits == "t" and self._elsewhere(origin, " by"):
                fits = ""  # the user named the author of such a thing: a title that somebody else chose is not enough
            if fits:
                found["system+named" if fits == "n" else "system+titled"] = origin
                better = True
            elsewhere = not better and self._elsewhere(origin)
            # "The sender" is the one of the record that the user's words fit, if they fit one.
            if shelves.roles_fit(roles) and not (elsewhere and letter == "s"):
                found["system+role"] = origin
                elsewhere = False
            found["system+other" if elsewhere else _LETTERS[letter]] = origin
        elif letter == "l":
            found["label"] = origin
            if shelves.names_fit(names):
                found["system+titled"] = origin
        else:
            found[_LETTERS[letter]] = origin

    def _matched(self) -> tuple[str, ...]:
        if self.matched is None:
            self.matched = self.shelves.flags("matched")
        return self.matched

    def _elsewhere(self, origin: str, how: str = "") -> bool:
        """Whether the user's words fit a record of that tool, or one with such an id of a tool beside it."""
        tool, _, path = origin.partition(" ")
        if not how and tool in self._matched():
            return True
        key = f"{tool.rpartition('.')[0]} {path.rpartition('/')[2]}{how}"
        return path not in _NAMELESS and key in self._matched()

    def _owned(self) -> tuple[str, ...]:
        """Names of contacts that the user said: an outsider who goes by one of them is not who was meant."""
        if self.owned is None:
            self.owned = self.shelves.flags("owned")
        return self.owned

    def _refusal(self, leaf: Leaf, sink: str, why: str, found: Mapping[str, str], kind: str) -> Refusal:
        origin = next((one for one in found.values() if one), "")
        classes = tuple(one for one in (*CLASSES, "confidential") if one in found)
        return Refusal(_shown(leaf.path, 64) or "$", sink, _masked(leaf.value, kind, sink), classes, origin, NEEDS[why])


def _shown(text: str, most: int) -> str:
    """A name as it may stand in a message: short, and nothing but letters, digits and a few signs."""
    return _ODD.sub("_", text[:most])


def _masked(value: str, kind: str, sink: str) -> str:
    """What a value is like, without saying it."""
    what = _KINDS.get(kind, "a value")
    if sink in ("secret", "text") or kind not in _KINDS:
        return what if sink == "text" and kind in _KINDS else f"a value of {len(value)} characters"
    return f"{what} of {len(value)} characters beginning with '{value.strip()[:1]}'"


def _forms(value: str) -> list[Atom]:
    """The normal forms of a value that is kept as a whole; of several addresses in one text, those of each."""
    if len(value) > 400:
        return []
    lowered = plain(value)
    said = tokens(lowered)
    typed = [] if simple(lowered) else [one for one in typed_as_whole(lowered) if one[0] != "h"]
    forms: list[Atom] = []
    if said and len(said) <= MAX_TOKENS and (not typed or typed[0][0] == "d"):
        forms.append(("w", " ".join(said)))
    if typed:
        return [*forms, *typed]
    if "@" in lowered and ("," in lowered or ";" in lowered):
        for part in re.split("[,;]", lowered):
            forms.extend(one for one in typed_as_whole(part) if one[0] == "a")
    return forms


def _said(shelves: Shelves, value: str) -> bool:
    """Whether the user said the whole value before any text did."""
    lowered = plain(value)
    typed = typed_as_whole(lowered)
    if typed and typed[0][0] != "d":
        return any("v" in shelves.said(shelves.digest(kind, normal)) for kind, normal in typed[:1])
    normal = words(value)
    if not normal or len(normal) < 2:
        return False
    if normal.count(" ") >= GRAM:
        return _covered(shelves, normal)
    if shelves.said(shelves.digest("w", normal)):
        return True
    last = base_name(value)
    return last != normal and " " in last and bool(shelves.said(shelves.digest("w", last)))


def _told(value: str, common: frozenset[str]) -> bool:
    """Whether a locator tells one place from others: "inbox" does not."""
    return any(one not in common for one in tokens(plain(value)))


def _covered(shelves: Shelves, normal: str) -> bool:
    """Whether every run of tokens of a long value was said."""
    said = normal.split(" ")
    if len(said) > MAX_SAID:
        return False
    return all(
        bool(shelves.said(shelves.digest("w", " ".join(said[at : at + GRAM])))) for at in range(len(said) - GRAM + 1)
    )


def _owner(host: str) -> str:
    """The part of a host that somebody had to buy: what stands before it is free to choose."""
    parts = host.split(".")
    short = len(parts) > 2 and len(parts[-1]) == 2 and len(parts[-2]) <= 3
    return parts[-3] if short else parts[-2] if len(parts) > 1 else ""


def _parents(host: str) -> Iterator[str]:
    parts = host.split(".")
    for at in range(1, len(parts) - 1):
        yield ".".join(parts[at:])
