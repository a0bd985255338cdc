"""The operator's catalog: raw tool names to namespace, name, risk class, effects and trust of results.

Identity entries (with `match`) are read first, the first that fits names the tool; then attribute entries (with `namespace`
and `name` globs only) fill in what it left open, the first that says something wins. What a caller says about its own tools is
never read here. Names are compared after folding, so that a name which only looks different is the same tool.
"""

from __future__ import annotations

import importlib.resources
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import orjson

from wardwright.config import Node, Problems, parse_yaml
from wardwright.wire.linear import BadPattern, Pattern, compile_pattern

RiskClass: TypeAlias = Literal["read_only", "write", "irreversible", "external_side_effect", "unknown"]
"""read_only: changes nothing
write: changes something that can be changed back
irreversible: cannot be undone
external_side_effect: reaches people or systems outside
unknown: the catalog does not say"""

ResultStatus: TypeAlias = Literal["success", "error", "timeout", "rejected", "unknown"]
"""success: the wire or the catalog's extractor says it worked
error: it failed
timeout: it took too long
rejected: it was refused before it ran (also: denied by us)
unknown: nobody said"""

Trust: TypeAlias = Literal["untrusted", "trusted"]
"""untrusted: an outsider may have written the result (the default)
trusted: the operator vouches for the source"""

FieldClass: TypeAlias = Literal[
    "system", "directory", "payee", "self", "created", "label", "member_text", "text", "confidential"
]
"""system: set by the service (ids, dates, the address a mail came from)
directory: contacts and members, kept by the owner
payee: accounts the owner chose
self: the principal's own identifiers
created: made by the call that shows it
label: an outsider can name it (a title, a file name): it counts only when the user says all of it
member_text: text that members write
text: what anybody can write (the default: bodies, reviews, pages)
confidential: leaves only if the user names the field"""

SinkType: TypeAlias = Literal[
    "secret", "payee", "address", "url_post", "url_fetch", "object", "path", "date", "text", "any"
]
"""secret: a password, a code
payee: who gets money
address: who gets a message, an invitation, access
url_post: where something is sent to
url_fetch: what is read from the web
object: which record, file, channel or event
path: a file's place
date: when
text: free text; addresses, links and account numbers in it are judged
any: may hold anything"""

FIELD_CLASSES: Final[tuple[str, ...]] = get_args(FieldClass)
SINK_TYPES: Final[tuple[str, ...]] = get_args(SinkType)

RISK_CLASSES: Final[tuple[str, ...]] = get_args(RiskClass)
RESULT_STATUSES: Final[tuple[str, ...]] = get_args(ResultStatus)
LOCATIONS: Final[tuple[str, ...]] = ("client", "wardwright", "provider", "remote_mcp", "unknown")

MEMO_LIMIT: Final = 4096
"""Callers choose names: what is remembered about them is bounded …"""
MEMO_LENGTH: Final = 256
"""… in number and in length."""

ENTRY_KEYS: Final[tuple[str, ...]] = (
    "match",
    "namespace",
    "name",
    "risk_class",
    "effects",
    "results",
    "execution_location",
    "result_status",
    "unwrap",
    "arguments",
    "fields",
    "names",
    "locators",
    "authors",
    "redact",
)
STATUS_KEYS: Final[tuple[str, ...]] = ("pattern", "pointer", "equals", "status", "invalid_arguments")

PLACEHOLDER: Final[re.Pattern[str]] = re.compile(r"\{([a-z_]+)\}")
_PREFIX: Final[re.Pattern[str]] = re.compile(r"[*?{]")
"""Where the literal beginning of a pattern ends, at the latest."""


MAX_UNWRAPPED: Final = 4
"""Wrappers taken off one name."""

_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""Control characters and those that Unicode tells to ignore by default: nobody sees them, and lenient clients drop them."""


def caseless(text: str) -> str:
    """Compatibility form without case: how values are compared with globs."""
    # ASCII is its own compatibility form.
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _visible(text: str) -> str:
    """A name as it is read: compatibility form without what cannot be seen."""
    if text.isascii() and text.isprintable():
        return text.strip()
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).strip()


def fold(text: str) -> str:
    """How names are compared: what can be seen of them, without case."""
    return _fold_short(text) if len(text) <= MEMO_LENGTH else _visible(text).casefold()


@lru_cache(maxsize=MEMO_LIMIT)
def _fold_short(text: str) -> str:
    return _visible(text).casefold()


def glob_to_regex(glob: str) -> str:
    """A folded glob with `*` and `?` as a regular expression for a whole string."""
    return "".join(".*" if one == "*" else "." if one == "?" else re.escape(one) for one in glob)


@lru_cache(maxsize=MEMO_LIMIT)
def compile_glob(glob: str) -> Callable[[str], bool]:
    """A test of folded names."""
    return _glob(fold(glob))


@lru_cache(maxsize=MEMO_LIMIT)
def compile_value_glob(glob: str) -> Callable[[str], bool]:
    """A test of values. Only their case and form do not matter: a path with an invisible character is another path."""
    fits = _glob(caseless(glob))
    return lambda value: fits(value.lower() if value.isascii() else caseless(value))  # as `caseless` does it


def _glob(folded: str) -> Callable[[str], bool]:
    """Plain comparisons where they do, else the linear-time engine."""
    inner = folded.strip("*")
    if "?" not in folded and "*" not in inner:
        if inner == folded:
            return folded.__eq__
        if not inner:
            return lambda _text: True
        head, tail = not folded.startswith("*"), not folded.endswith("*")
        if head:
            return lambda text: text.startswith(inner)
        if tail:
            return lambda text: text.endswith(inner)
        return lambda text: inner in text
    pattern = _linear(glob_to_regex(folded))
    return lambda text: pattern.fullmatch(text) is not None


def _linear(regex: str) -> Pattern:
    return compile_pattern(regex, dot_nl=True)


@dataclass(frozen=True, slots=True)
class StatusTest:
    """One way to tell from a result's content how the call went."""

    status: ResultStatus
    invalid_arguments: bool
    pattern: Pattern | None = None
    pointer: tuple[str, ...] | None = None
    equals: Any = None

    def holds(self, content: str, parsed: Any) -> bool:
        if self.pattern is not None and self.pattern.search(content) is None:
            return False
        if self.pointer is not None:
            found, value = look_up(parsed, self.pointer)
            return found and value == self.equals and isinstance(value, bool) == isinstance(self.equals, bool)
        return self.pattern is not None


def look_up(document: Any, pointer: Sequence[str]) -> tuple[bool, Any]:
    """The value a JSON pointer names, and whether there is one."""
    for part in pointer:
        if isinstance(document, dict):
            mapping = cast("dict[str, Any]", document)
            if part not in mapping:
                return False, None
            document = mapping[part]
        elif isinstance(document, list):
            entries = cast("list[Any]", document)
            if not part.isdecimal() or int(part) >= len(entries):
                return False, None
            document = entries[int(part)]
        else:
            return False, None
    return True, document


def parse_pointer(text: str) -> tuple[str, ...] | None:
    """The parts of a JSON pointer, or None when it is none."""
    if text == "":
        return ()
    if not text.startswith("/") or re.search("~(?![01])", text):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


@dataclass(frozen=True, slots=True)
class FieldLabel:
    """What the operator says of one field of a tool's results."""

    field: str
    """A key (wherever it stands), a path of keys behind slashes, or empty: a result that is no record."""
    field_class: FieldClass
    roles: tuple[str, ...] = ()
    """Words that name the field's part: "sender", "organizer"."""
    when: tuple[tuple[str, FieldClass], ...] = ()
    """Glob over the locator of the call → the class instead."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the catalog knows of one raw name."""

    namespace: str
    name: str
    risk_class: RiskClass = "unknown"
    effects: tuple[str, ...] = ()
    trust: Trust = "untrusted"
    trusted_fields: tuple[str, ...] = ()
    """JSON pointers of fields that are trusted in an otherwise untrusted result."""
    execution_location: str = ""
    """Empty: the gate knows."""
    status_tests: tuple[StatusTest, ...] = ()
    confidence: Literal["exact", "inferred", "ambiguous"] = "exact"
    plain: str = ""
    """The folded name inside all wrappers: two names that share it are one tool."""
    sinks: tuple[tuple[str, SinkType], ...] = ()
    """Argument (a key, or a path of keys behind slashes) → what goes in there."""
    fields: tuple[FieldLabel, ...] = ()
    names: tuple[str, ...] = ()
    """Fields that name their record."""
    locators: tuple[str, ...] = ()
    """Arguments that say what is read."""
    authors: tuple[str, ...] = ()
    """Fields that say who wrote a record."""
    redact: tuple[str, ...] = ()
    """What nobody is shown of arguments and results: keys at any depth, or paths of keys behind slashes (`*`: any)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a catalog. `match` None: an attribute entry."""

    match: str | None
    pattern: Pattern | None
    namespace: str
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    line: int = 0
    unwrap: str = ""
    """The name inside a wrapper such as `functions.{name}`; the tool is the one of that name."""


class Catalog:
    """Resolves raw names. Entries of earlier layers come first: the model's, the deployment's, the default ones."""

    def __init__(self, layers: Sequence[Sequence[Entry]]) -> None:
        self.entries: tuple[Entry, ...] = tuple(entry for layer in layers for entry in layer)
        self._identity = [entry for entry in self.entries if entry.pattern is not None]
        self._literal: dict[str, int] = {}
        for index, entry in enumerate(self._identity):
            if entry.match is not None and not _is_pattern(entry.match):
                self._literal.setdefault(fold(entry.match), index)
        self._patterns = [
            (index, entry, _seen(_PREFIX.split(entry.match.strip(), maxsplit=1)[0]))
            for index, entry in enumerate(self._identity)
            if entry.match and _is_pattern(entry.match)
        ]
        self._attributes = [
            (compile_glob(entry.namespace or "*"), compile_glob(entry.name or "*"), entry)
            for entry in self.entries
            if entry.pattern is None
        ]
        self._memo: dict[str, Identity] = {}

    def resolve(self, raw_name: str) -> Identity:
        """The identity of a caller's tool."""
        known = self._memo.get(raw_name)
        if known is None:
            known = self._resolve(raw_name)
            if len(raw_name) > MEMO_LENGTH:
                return known
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[raw_name] = known
        return known

    def resolve_hosted(self, kind: str, server: str | None = None, name: str = "") -> Identity:
        """The identity of a provider-hosted tool: namespace `provider.<kind>`."""
        namespace = f"provider.{kind}" if server is None else f"provider.{kind}.{server}"
        memo_key = f"\x00{namespace}\x00{name}"
        known = self._memo.get(memo_key)
        if known is None:
            known = self.identify(namespace, name or kind, {}, "exact")
            if len(memo_key) > MEMO_LENGTH:
                return known
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[memo_key] = known
        return known

    def _resolve(self, raw_name: str, unwrapped: int = 0) -> Identity:
        folded = fold(raw_name)
        normal = _visible(raw_name) or raw_name
        literal = self._literal.get(folded)
        for index, entry, prefix in self._patterns:
            if literal is not None and literal < index:
                break
            pattern = entry.pattern
            if pattern is None or not folded.startswith(prefix):
                continue
            found = pattern.fullmatch(folded)
            if found is not None:
                # Captures keep the case of the raw name where folding kept its length.
                source = normal if len(normal) == len(folded) else folded
                captured = {
                    key: source[found.start(group) : found.end(group)]
                    for group, key in enumerate(PLACEHOLDER.findall(entry.match or ""), 1)
                }
                if entry.unwrap:
                    if unwrapped >= MAX_UNWRAPPED:
                        break
                    inner = self._resolve(_fill(entry.unwrap, captured), unwrapped + 1)
                    return replace(inner, confidence="inferred") if inner.confidence == "exact" else inner
                namespace = _fill(entry.namespace, captured) or captured.get("namespace", "unknown")
                name = _fill(entry.name, captured) or captured.get("name", source)
                if fold(namespace).startswith("provider."):
                    break  # a caller's tool never gets the name of one that a provider runs
                return self.identify(namespace, name, entry.attributes, "inferred", folded)
        if literal is not None:
            entry = self._identity[literal]
            name = entry.name or normal
            return self.identify(entry.namespace or "unknown", name, entry.attributes, "exact", folded)
        if "-" in folded:
            # Lenient clients take a hyphen for an underscore: what nothing names is looked up that way too.
            other = self._resolve(normal.replace("-", "_"), unwrapped)
            if other.confidence != "ambiguous":
                return replace(other, confidence="inferred", plain=folded)
        return self.identify("unknown", normal, {}, "ambiguous", folded)

    def identify(
        self,
        namespace: str,
        name: str,
        own: Mapping[str, Any],
        confidence: Literal["exact", "inferred", "ambiguous"],
        plain: str = "",
    ) -> Identity:
        """A named tool with every attribute that an entry knows of it; `own` ones come first."""
        attributes = dict(own)
        folded_namespace, folded_name = fold(namespace), fold(name)
        for namespace_fits, name_fits, entry in self._attributes:
            if namespace_fits(folded_namespace) and name_fits(folded_name):
                for key, value in entry.attributes.items():
                    if key == "redact":  # what any entry hides is hidden
                        value = tuple(dict.fromkeys((*attributes.get(key, ()), *value)))
                        attributes[key] = value
                    attributes.setdefault(key, value)
        return Identity(namespace, name, confidence=confidence, plain=plain, **attributes)


def _is_pattern(match: str) -> bool:
    return "*" in match or "?" in match or "{" in match


def _fill(template: str, captured: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: captured.get(found[1], ""), template)


def _match_to_regex(match: str) -> Pattern:
    """`mcp__{server}__{name}` and globs; a capture takes at least one character, `{namespace}` and `{name}` as much as they can."""
    parts: list[str] = []
    position = 0
    match = match.strip()
    for found in PLACEHOLDER.finditer(match):
        parts.append(glob_to_regex(_seen(match[position : found.start()])))
        greedy = found[1] in ("namespace", "name")
        parts.append(f"(?P<{found[1]}>.+{'' if greedy else '?'})")
        position = found.end()
    parts.append(glob_to_regex(_seen(match[position:])))
    return _linear("".join(parts))


def _seen(part: str) -> str:
    """Part of a pattern, folded but for white space: at its ends it may stand inside the whole."""
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", part)).casefold()


def _sample(match: str) -> str:
    """A string only this pattern, and patterns that cover it, can match."""
    return fold(PLACEHOLDER.sub("\ue000\ue001", match)).replace("*", "\ue002\ue003").replace("?", "\ue004")


def compile_catalog(node: Node, problems: Problems) -> tuple[Entry, ...]:
    """Entries of one layer; unreachable ones, unknown words and clashing keys are problems."""
    entries: list[Entry] = []
    for child in problems.sequence(node):
        given = problems.mapping(child, (), ENTRY_KEYS)
        if not given:
            if isinstance(child.value, dict) and not child.value:
                problems.error(child, "an empty entry names nothing")
            continue
        match = problems.text(given["match"]) if "match" in given else None
        namespace = problems.text(given["namespace"]) if "namespace" in given else ""
        name = problems.text(given["name"]) if "name" in given else ""
        attributes = _attributes(given, problems)
        if match is None and not namespace and not name:
            problems.error(child, "needs 'match' (identity) or 'namespace' or 'name' (attributes)")
            continue
        unwrap = problems.text(given["unwrap"]) if "unwrap" in given else ""
        if "unwrap" in given:
            if match is None or not PLACEHOLDER.search(match):
                problems.error(given["unwrap"], "needs a 'match' with a placeholder for the name inside")
                continue
            for key in given:
                if key not in ("match", "unwrap"):
                    problems.error(
                        given[key], f"the tool inside has its own entry: '{key}' cannot stand beside 'unwrap'"
                    )
        if match is None and not attributes:
            problems.error(
                child,
                "says nothing: give risk_class, effects, results, execution_location, result_status, arguments, fields or redact",
            )
            continue
        pattern: Pattern | None = None
        if match is not None:
            captures = PLACEHOLDER.findall(match)
            if len(set(captures)) != len(captures):
                problems.error(given["match"], "a placeholder occurs twice")
                continue
            for key, template in (("namespace", namespace), ("name", name), ("unwrap", unwrap)):
                for used in PLACEHOLDER.findall(template):
                    if used not in captures:
                        problems.error(given[key], f"'{{{used}}}' does not occur in match '{match}'")
            if unwrap and not PLACEHOLDER.search(unwrap):
                problems.error(given["unwrap"], f"names no placeholder of match '{match}'")
            if not namespace and "namespace" not in captures and "unwrap" not in given:
                problems.error(child, "needs 'namespace', or '{namespace}' in match")
            pattern = _match_to_regex(match)
            for earlier in entries:
                if earlier.pattern is not None and earlier.pattern.fullmatch(_sample(match)):
                    problems.error(child, f"unreachable: '{earlier.match}' at line {earlier.line} matches first")
                    break
        elif PLACEHOLDER.search(namespace + name):
            problems.error(child, "placeholders need a 'match'")
        else:
            for earlier in entries:
                if (
                    earlier.pattern is None
                    and set(attributes) <= set(earlier.attributes)
                    and compile_glob(earlier.namespace or "*")(_sample(namespace or "*"))
                    and compile_glob(earlier.name or "*")(_sample(name or "*"))
                ):
                    problems.error(child, f"unreachable: the entry at line {earlier.line} says the same first")
                    break
        entries.append(Entry(match, pattern, namespace, name, attributes, child.line, unwrap))
    return tuple(entries)


def _attributes(given: Mapping[str, Node], problems: Problems) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if "risk_class" in given:
        attributes["risk_class"] = problems.choice(given["risk_class"], RISK_CLASSES)
    if "effects" in given:
        attributes["effects"] = problems.texts(given["effects"])
    if "execution_location" in given:
        attributes["execution_location"] = problems.choice(given["execution_location"], LOCATIONS)
    if "results" in given:
        node = given["results"]
        if isinstance(node.value, dict):
            parts = problems.mapping(node, ("trust",), ("fields",))
            if "trust" in parts:
                attributes["trust"] = problems.choice(parts["trust"], ("untrusted", "trusted"))
            fields: Mapping[str, Node] = parts["fields"].items() if "fields" in parts else {}
            if "fields" in parts and not fields:
                problems.error(parts["fields"], "expected a mapping of JSON pointers to untrusted or trusted")
            trusted: list[str] = []
            for pointer, child in fields.items():
                if parse_pointer(pointer) is None:
                    problems.error(child, f"'{pointer}' is not a JSON pointer")
                if problems.choice(child, ("untrusted", "trusted")) == "trusted":
                    trusted.append(pointer)
            attributes["trusted_fields"] = tuple(trusted)
        else:
            attributes["trust"] = problems.choice(node, ("untrusted", "trusted"))
    if "arguments" in given:
        attributes["sinks"] = tuple(
            (fold(name), cast("SinkType", problems.choice(child, SINK_TYPES)))
            for name, child in _entries(given["arguments"], problems, "arguments to sink types").items()
        )
    if "fields" in given:
        attributes["fields"] = tuple(
            _field(fold(name), child, problems)
            for name, child in _entries(given["fields"], problems, "fields to classes").items()
        )
    for key in ("names", "locators", "authors"):
        if key in given:
            attributes[key] = tuple(fold(one) for one in problems.texts(given[key]))
    if "redact" in given:
        attributes["redact"] = tuple(fold(one) for one in problems.texts(given["redact"]))
        for one in attributes["redact"]:
            if one.startswith("/") and parse_pointer(one) is None:
                problems.error(given["redact"], f"'{one}' is not a JSON pointer")
    if "result_status" in given:
        attributes["status_tests"] = tuple(
            test
            for test in (_status_test(child, problems) for child in problems.sequence(given["result_status"]))
            if test is not None
        )
    return attributes


def _entries(node: Node, problems: Problems, what: str) -> Mapping[str, Node]:
    if not isinstance(node.value, dict) or not node.value:
        problems.error(node, f"expected a mapping of {what}")
    return node.items()


def _field(name: str, node: Node, problems: Problems) -> FieldLabel:
    if not isinstance(node.value, dict):
        return FieldLabel(name, cast("FieldClass", problems.choice(node, FIELD_CLASSES)))
    given = problems.mapping(node, ("class",), ("roles", "when"))
    field_class = problems.choice(given["class"], FIELD_CLASSES) if "class" in given else "text"
    roles = problems.texts(given["roles"]) if "roles" in given else ()
    when: Mapping[str, Node] = {}
    if "when" in given:
        when = _entries(given["when"], problems, "globs over the locator to classes")
    return FieldLabel(
        name,
        cast("FieldClass", field_class),
        roles,
        tuple((glob, cast("FieldClass", problems.choice(child, FIELD_CLASSES))) for glob, child in when.items()),
    )


def _status_test(node: Node, problems: Problems) -> StatusTest | None:
    given = problems.mapping(node, ("status",), tuple(key for key in STATUS_KEYS if key != "status"))
    if "status" not in given:
        return None
    status = cast("ResultStatus", problems.choice(given["status"], RESULT_STATUSES))
    invalid = problems.boolean(given["invalid_arguments"]) if "invalid_arguments" in given else False
    pattern = compile_regex(given["pattern"], problems) if "pattern" in given else None
    pointer: tuple[str, ...] | None = None
    if "pointer" in given:
        text = problems.text(given["pointer"], empty=True)
        pointer = parse_pointer(text)
        if pointer is None:
            problems.error(given["pointer"], f"'{text}' is not a JSON pointer")
        if "equals" not in given:
            problems.error(node, "'pointer' needs 'equals'")
    if pattern is None and pointer is None:
        problems.error(node, "needs 'pattern', or 'pointer' and 'equals'")
        return None
    return StatusTest(status, invalid, pattern, pointer, given["equals"].plain() if "equals" in given else None)


def compile_regex(node: Node, problems: Problems, *, ignore_case: bool = False) -> Pattern | None:
    """A linear-time pattern, or None after reporting why it is none."""
    text = problems.text(node)
    try:
        return compile_pattern(text, ignore_case=ignore_case)
    except BadPattern as error:
        problems.error(node, f"bad regular expression '{text}': {error}")
        return None


def result_status(identity: Identity, content: str) -> tuple[ResultStatus, bool]:
    """What the catalog's extractors say of a result, and whether the call's arguments were to blame."""
    if not identity.status_tests:
        return "unknown", False
    parsed: Any = None
    if any(test.pointer is not None for test in identity.status_tests):
        try:
            parsed = orjson.loads(content)
        except orjson.JSONDecodeError:
            parsed = None
    for test in identity.status_tests:
        if test.holds(content, parsed):
            return test.status, test.invalid_arguments
    return "unknown", False


REDACTED: Final = "[redacted]"


def redacted(paths: Sequence[str], text: str) -> str:
    """Arguments or a result without what these paths (`Identity.redact`) name. What cannot be read is not shown at all."""
    if not paths or not text:
        return text
    keys = frozenset(one for one in paths if not one.startswith("/"))
    places = [place for one in paths if one.startswith("/") and (place := parse_pointer(one)) is not None]
    try:
        value = orjson.loads(text)
        if not isinstance(value, (dict, list)):
            return REDACTED
        hidden, raw = orjson.dumps(_redacted(value, keys, places)), text.encode()
        # A key that stands twice is read once, so nothing but a document as it is written is left as it came.
        as_it_came = hidden == raw or hidden == raw.replace(b'": ', b'":').replace(b', "', b',"')
        return text if as_it_came else hidden.decode()
    except (ValueError, TypeError, RecursionError):
        return REDACTED


def _redacted(value: Any, keys: frozenset[str], places: Sequence[tuple[str, ...]]) -> Any:
    """`places`: what is left of the paths that lead through here."""
    if isinstance(value, dict):
        members = [(fold(key), key, one) for key, one in cast("dict[str, Any]", value).items()]
        return {key: _member(folded, one, keys, places) for folded, key, one in members}
    if isinstance(value, list):
        return [_member(str(place), one, keys, places) for place, one in enumerate(cast("list[Any]", value))]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        # A document within a text: its keys are keys too.
        try:
            inner = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
        hidden = _redacted(inner, keys, places)
        return value if hidden == inner else orjson.dumps(hidden).decode()
    return value


def _member(name: str, value: Any, keys: frozenset[str], places: Sequence[tuple[str, ...]]) -> Any:
    if name in keys:
        return REDACTED
    below = [place[1:] for place in places if place and (place[0] == name or place[0] == "*")]
    return REDACTED if () in below else _redacted(value, keys, below)


@lru_cache(maxsize=1)
def default_entries() -> tuple[Entry, ...]:
    """The catalog that ships, last in every lookup."""
    text = importlib.resources.files("wardwright").joinpath("default_catalog.yaml").read_text("utf-8")
    problems = Problems("default_catalog.yaml")
    entries = compile_catalog(parse_yaml(text, problems), problems)
    if problems.found:
        raise AssertionError("\n".join(str(problem) for problem in problems.found))
    return entries
