"""Checks a JSON value against the JSON Schema a request declared, and tells every problem.

Covers the 2020-12 keywords that tools use, and `definitions`-style references inside the document. A keyword that would need more
(`unevaluatedProperties`, dynamic or remote references), a schema that is none and one that costs too much raise `SchemaUnsupported`,
and nothing else does: a check we cannot make is never a pass. Callers choose schema and value, so all work is paid from a budget.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import orjson

from wardwright.errors import WardwrightError
from wardwright.wire.linear import BadPattern, Pattern, compile_foreign

MAX_DEPTH: Final = 64
MAX_PROBLEMS: Final = 50
MIN_STEPS: Final = 10_000
MAX_STEPS: Final = 30_000
"""What one check may cost: the least, more for longer texts, up to the most. A step is one schema met by one value, or about as
much elsewhere: some microseconds."""
SHARED_STEPS: Final = 3_000
"""What checks that share a `Work` may cost together."""
MAX_PATTERNS: Final = 32
"""Different regular expressions that checks may use together: compiling one costs thousands of steps."""
MAX_SHOWN: Final = 80
"""Characters of a key in a message."""

T = TypeVar("T")


class SchemaUnsupported(WardwrightError, ValueError):
    """A schema that cannot be checked faithfully."""


_UNSUPPORTED: Final = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


class Work:
    """What is left to spend. Lives for one check, or for all the checks that are given it."""

    __slots__ = ("left", "patterns")

    def __init__(self, steps: int = SHARED_STEPS) -> None:
        self.left = steps
        self.patterns: set[str] = set()

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise SchemaUnsupported("the check costs too much")

    def pattern(self, text: Any) -> Pattern:
        if not isinstance(text, str):
            raise SchemaUnsupported("a pattern must be text")
        try:
            compiled = compile_foreign(text)
        except BadPattern as error:
            raise SchemaUnsupported(f"pattern '{_short(text)}' cannot be checked: {_short(str(error))}") from error
        if text not in self.patterns:
            if len(self.patterns) >= MAX_PATTERNS:
                raise SchemaUnsupported("the schema has too many patterns")
            self.patterns.add(text)
            self.spend(compiled.programsize // 8)
        return compiled

    def found(self, pattern: Pattern, text: str) -> bool:
        # A big pattern can visit every one of its instructions at every character.
        self.spend(1 + len(text) * pattern.programsize // 1024)
        return pattern.search(text) is not None


def check(value: Any, schema: Any, work: Work | None = None) -> list[str]:
    """Every way `value` breaks `schema`, each with its path. Empty: it holds."""
    problems: list[str] = []
    try:
        _Check(schema, problems, work or Work(MAX_STEPS)).visit(value, schema, "$", 0)
    except RecursionError as error:
        raise SchemaUnsupported("the value nests too deeply") from error
    return problems[:MAX_PROBLEMS]


def examine(schema: Any) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with a schema itself, whatever it will check: the keys that lead to the place, and a message."""
    found: list[tuple[tuple[str, ...], str]] = []
    _examine(schema, schema, (), found, 0)
    return found[:MAX_PROBLEMS]


def check_text(text: str, schema: Any, work: Work | None = None) -> list[str]:
    """As `check`, for JSON text. Empty text counts as an empty object, as providers send it for tools without parameters."""
    try:
        value: Any = orjson.loads(text) if text.strip() else cast("dict[str, Any]", {})
    except orjson.JSONDecodeError as error:
        return [f"$: not valid JSON: {error}"]
    return check(value, schema, work or Work(min(MAX_STEPS, MIN_STEPS + len(text) // 4)))


def _part(rules: Mapping[str, Any], keyword: str, kind: type[T], default: T) -> T:
    """A keyword's value, if it has the form the standard asks for."""
    value = rules.get(keyword, default)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise SchemaUnsupported(f"'{keyword}' must be {_FORMS[kind]}")
    return value


def _limit(rules: Mapping[str, Any], keyword: str, default: float) -> float:
    """A keyword's number."""
    value = rules.get(keyword, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise SchemaUnsupported(f"'{keyword}' must be a number")
    return value


_NOTHING: Final[dict[str, Any]] = {}
_NONE: Final[list[Any]] = []
_FORMS: Final[Mapping[type, str]] = {dict: "an object", list: "an array", str: "text", bool: "true or false"}


class _Check:
    def __init__(self, root: Any, problems: list[str], work: Work) -> None:
        self.root = root
        self.problems = problems
        self.work = work

    def ok(self, value: Any, schema: Any, depth: int) -> bool:
        found: list[str] = []
        _Check(self.root, found, self.work).visit(value, schema, "$", depth)
        return not found

    def say(self, path: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{path}: {message}")

    def visit(self, value: Any, schema: Any, path: str, depth: int) -> None:
        self.work.spend(1)
        if schema is True:
            return
        if schema is False:
            self.say(path, "not allowed here")
            return
        if not isinstance(schema, dict):
            raise SchemaUnsupported("a schema must be an object or a boolean")
        if depth > MAX_DEPTH:
            raise SchemaUnsupported("the schema nests too deeply")
        rules = cast("dict[str, Any]", schema)
        for keyword in _UNSUPPORTED:
            if keyword in rules:
                raise SchemaUnsupported(f"'{keyword}' is not supported")
        if "$ref" in rules:
            self.visit(value, self.resolve(rules["$ref"]), path, depth + 1)
        if "type" in rules and not self.typed(value, rules["type"]):
            wanted = rules["type"]
            names = " or ".join(cast("list[str]", wanted)) if isinstance(wanted, list) else str(wanted)
            self.say(path, f"expected {names}, got {_name(value)}")
            return
        if "enum" in rules:
            options = _part(rules, "enum", list, _NONE)
            if not self.listed(value, options):
                self.work.spend(1 + min(len(options), MAX_PROBLEMS) // 4)
                self.say(path, f"must be one of: {_listed(options)}")
        if "const" in rules and not self.same(value, rules["const"]):
            self.say(path, f"must be {_show(rules['const'])}")
        if isinstance(value, dict):
            self.mapping(cast("dict[str, Any]", value), rules, path, depth)
        elif isinstance(value, list):
            self.sequence(cast("list[Any]", value), rules, path, depth)
        elif isinstance(value, str):
            self.string(value, rules, path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            self.number(value, rules, path)
        self.combined(value, rules, path, depth)

    def resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaUnsupported(f"reference {_short(str(reference))!r} leaves the document")
        self.work.spend(len(reference) // 64)
        document = self.root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(document, dict) and key in document:
                document = cast("dict[str, Any]", document)[key]
            elif isinstance(document, list) and _INDEX.fullmatch(key) and int(key) < len(cast("list[Any]", document)):
                document = cast("list[Any]", document)[int(key)]
            else:
                raise SchemaUnsupported(f"reference {_short(reference)!r} names nothing")
        return document

    def same(self, left: Any, right: Any) -> bool:
        """Equal as JSON: 1 and 1.0 are, 1 and true are not."""
        if isinstance(left, bool) or isinstance(right, bool):
            return left is right
        if isinstance(left, str):
            if len(left) > 1024:
                self.work.spend(len(left) // 1024)
            return left == right
        if isinstance(left, dict):
            mine, other = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
            self.work.spend(1 + len(mine))
            return (
                isinstance(right, dict)
                and mine.keys() == other.keys()
                and all(self.same(entry, other[key]) for key, entry in mine.items())
            )
        if isinstance(left, list):
            entries, others = cast("list[Any]", left), cast("list[Any]", right)
            self.work.spend(1 + len(entries))
            return (
                isinstance(right, list)
                and len(entries) == len(others)
                and all(self.same(one, two) for one, two in zip(entries, others, strict=True))
            )
        return bool(left == right)

    def listed(self, value: Any, options: list[Any]) -> bool:
        if isinstance(value, str):
            self.work.spend(len(options) // 16 + len(options) * len(value) // 16_384)
            return value in options
        self.work.spend(len(options) // 4)
        return any(self.same(value, entry) for entry in options)

    def typed(self, value: Any, wanted: Any) -> bool:
        names = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
        if len(names) > len(_TYPES) + 2:
            raise SchemaUnsupported("'type' names too many types")
        for name in names:
            if not isinstance(name, str):
                raise SchemaUnsupported("'type' must be text, or an array of texts")
            if name == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
                return True
            if name == "integer" and not isinstance(value, bool):
                if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
                    return True
            elif name in _TYPES:
                if isinstance(value, _TYPES[name]):
                    return True
            elif name not in ("number", "integer"):
                raise SchemaUnsupported(f"unknown type {_short(name)!r}")
        return False

    def mapping(self, value: dict[str, Any], rules: dict[str, Any], path: str, depth: int) -> None:
        work = self.work
        properties = _part(rules, "properties", dict, _NOTHING)
        required = _part(rules, "required", list, _NONE)
        work.spend(len(required) // 4)
        for key in required:
            if not isinstance(key, str):
                raise SchemaUnsupported("'required' must be an array of texts")
            if key not in value:
                self.say(path, f"missing '{_short(key)}'")
        patterns = [
            (work.pattern(pattern), schema)
            for pattern, schema in _part(rules, "patternProperties", dict, _NOTHING).items()
        ]
        extra = rules.get("additionalProperties", True)
        names = rules.get("propertyNames")
        work.spend(len(value) // 4)
        for key, entry in value.items():
            inner = f"{path}.{_short(key)}"
            known = key in properties
            if known:
                self.visit(entry, properties[key], inner, depth + 1)
            for pattern, schema in patterns:
                if work.found(pattern, key):
                    known = True
                    self.visit(entry, schema, inner, depth + 1)
            if not known and extra is not True:
                if extra is False:
                    self.say(path, f"unknown '{_short(key)}'")
                else:
                    self.visit(entry, extra, inner, depth + 1)
            if names is not None:
                self.visit(key, names, inner, depth + 1)
        if len(value) < _limit(rules, "minProperties", 0):
            self.say(path, f"needs at least {rules['minProperties']} entries")
        if len(value) > _limit(rules, "maxProperties", math.inf):
            self.say(path, f"at most {rules['maxProperties']} entries")
        for key, needed in _part(rules, "dependentRequired", dict, _NOTHING).items():
            work.spend(1)
            if key in value:
                others = _part({"dependentRequired": needed}, "dependentRequired", list, _NONE)
                work.spend(len(others) // 4)
                for other in others:
                    if not isinstance(other, str):
                        raise SchemaUnsupported("'dependentRequired' must hold arrays of texts")
                    if other not in value:
                        self.say(path, f"'{_short(key)}' needs '{_short(other)}'")
        for key, schema in _part(rules, "dependentSchemas", dict, _NOTHING).items():
            work.spend(1)
            if key in value:
                self.visit(value, schema, path, depth + 1)

    def sequence(self, value: list[Any], rules: dict[str, Any], path: str, depth: int) -> None:
        first: Sequence[Any] = _part(rules, "prefixItems", list, _NONE)
        items = rules.get("items")
        if isinstance(items, list):
            first, items = cast("list[Any]", items), rules.get("additionalItems")
        for index, entry in enumerate(value) if first or items is not None else ():
            if index < len(first):
                self.visit(entry, first[index], f"{path}[{index}]", depth + 1)
            elif items is not None:
                self.visit(entry, items, f"{path}[{index}]", depth + 1)
        if len(value) < _limit(rules, "minItems", 0):
            self.say(path, f"needs at least {rules['minItems']} items, got {len(value)}")
        if len(value) > _limit(rules, "maxItems", math.inf):
            self.say(path, f"at most {rules['maxItems']} items, got {len(value)}")
        if _part(rules, "uniqueItems", bool, False):
            seen = [_key(entry, self.work) for entry in value]
            if len(set(seen)) != len(seen):
                self.say(path, "items must differ from each other")
        if "contains" in rules:
            hits = sum(1 for entry in value if self.ok(entry, rules["contains"], depth + 1))
            if hits < _limit(rules, "minContains", 1) or hits > _limit(rules, "maxContains", math.inf):
                self.say(path, "does not contain what it must")

    def string(self, value: str, rules: dict[str, Any], path: str) -> None:
        if len(value) < _limit(rules, "minLength", 0):
            self.say(path, f"needs at least {rules['minLength']} characters")
        if len(value) > _limit(rules, "maxLength", math.inf):
            self.say(path, f"at most {rules['maxLength']} characters")
        if "pattern" in rules and not self.work.found(self.work.pattern(rules["pattern"]), value):
            self.say(path, f"does not match '{rules['pattern']}'")

    def number(self, value: float, rules: dict[str, Any], path: str) -> None:
        if value < _limit(rules, "minimum", -math.inf):
            self.say(path, f"must be at least {rules['minimum']}")
        if value > _limit(rules, "maximum", math.inf):
            self.say(path, f"must be at most {rules['maximum']}")
        if "exclusiveMinimum" in rules and value <= _limit(rules, "exclusiveMinimum", 0):
            self.say(path, f"must be greater than {rules['exclusiveMinimum']}")
        if "exclusiveMaximum" in rules and value >= _limit(rules, "exclusiveMaximum", 0):
            self.say(path, f"must be less than {rules['exclusiveMaximum']}")
        step = _limit(rules, "multipleOf", 0)
        if step:
            quotient = _quotient(value, step)
            if not math.isfinite(quotient) or abs(quotient - round(quotient)) > 1e-9:
                self.say(path, f"must be a multiple of {step}")

    def combined(self, value: Any, rules: dict[str, Any], path: str, depth: int) -> None:
        for schema in _part(rules, "allOf", list, _NONE):
            self.visit(value, schema, path, depth + 1)
        if "anyOf" in rules and not any(
            self.ok(value, schema, depth + 1) for schema in _part(rules, "anyOf", list, _NONE)
        ):
            self.say(path, "fits none of the permitted forms")
        if "oneOf" in rules:
            fits = sum(1 for schema in _part(rules, "oneOf", list, _NONE) if self.ok(value, schema, depth + 1))
            if fits != 1:
                self.say(path, f"must fit exactly one of the permitted forms, fits {fits}")
        if "not" in rules and self.ok(value, rules["not"], depth + 1):
            self.say(path, "has a form that is not allowed")
        if "if" in rules:
            branch = "then" if self.ok(value, rules["if"], depth + 1) else "else"
            if branch in rules:
                self.visit(value, rules[branch], path, depth + 1)


def _examine(
    schema: Any, root: Any, path: tuple[str, ...], found: list[tuple[tuple[str, ...], str]], depth: int
) -> None:
    """Meets every subschema with a value of every type, so that whatever a check would stumble over is told beforehand."""
    if depth > MAX_DEPTH:
        found.append((path, "the schema nests too deeply"))
        return
    if not isinstance(schema, dict):
        if not isinstance(schema, bool):
            found.append((path, "a schema must be an object or a boolean"))
        return
    children: list[tuple[tuple[str, ...], Any]] = []
    own: dict[str, Any] = {}
    for keyword, entry in cast("dict[str, Any]", schema).items():
        inside = (*path, keyword)
        if keyword in _MANY and isinstance(entry, list):
            entries = cast("list[Any]", entry)
            children.extend(((*inside, str(index)), one) for index, one in enumerate(entries))
        elif keyword in _NAMED and isinstance(entry, dict):
            named = cast("dict[str, Any]", entry)
            children.extend(((*inside, key), one) for key, one in named.items())
            if keyword == "patternProperties":
                own[keyword] = dict.fromkeys(named, True)
        elif keyword in _ONE:
            children.append((inside, entry))
        else:
            own[keyword] = entry
    for keyword, entry in own.items():
        message = _stumbles(root, keyword, entry)
        if message:
            found.append(((*path, keyword), message))
    for where, child in children:
        if len(found) >= MAX_PROBLEMS:
            break
        _examine(child, root, where, found, depth + 1)


def _stumbles(root: Any, keyword: str, entry: Any) -> str:
    """Why a check would give up at this keyword; empty when it would not."""
    check = _Check(root, [], Work(MAX_STEPS))
    try:
        if keyword == "$ref":
            check.resolve(entry)
        elif keyword == "type":
            check.typed(_PROBE, entry)
        else:
            needed = cast("dict[str, Any]", entry) if keyword == "dependentRequired" and isinstance(entry, dict) else {}
            probes: list[Any] = [dict.fromkeys(needed), [], "", 0, None]
            for probe in probes:
                check.visit(probe, {keyword: entry}, "$", 0)
    except SchemaUnsupported as error:
        return str(error)
    return ""


_ONE: Final = frozenset(
    ("additionalProperties", "propertyNames", "items", "additionalItems", "contains", "not", "if", "then", "else")
)
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED: Final = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
_PROBE: Final = object()
_INDEX: Final = re.compile("[0-9]{1,6}")


def _quotient(value: float, step: float) -> float:
    try:
        return value / step
    except OverflowError:
        return math.inf


def _key(value: Any, work: Work) -> Any:
    """A hashable form that is equal for values that are the same in JSON."""
    work.spend(1)
    if isinstance(value, bool):
        return ("b", value)
    if isinstance(value, str):
        work.spend(len(value) // 1024)
        return value
    if isinstance(value, list):
        return ("l", *[_key(entry, work) for entry in cast("list[Any]", value)])
    if isinstance(value, dict):
        return ("d", frozenset((key, _key(entry, work)) for key, entry in cast("dict[str, Any]", value).items()))
    return value


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _listed(options: list[Any]) -> str:
    shown = ", ".join(_show(entry) for entry in options[:MAX_PROBLEMS])
    return shown if len(options) <= MAX_PROBLEMS else f"{shown}, ..."


def _show(value: Any) -> str:
    if isinstance(value, (dict, list)):
        inside = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        if len(inside) > 8 or any(isinstance(entry, (dict, list)) or len(str(entry)) > 60 for entry in inside):
            return "{...}" if isinstance(value, dict) else "[...]"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= 60 else text[:57] + "..."


def _name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "integer" if isinstance(value, int) else "number"
