"""Checks a JSON value against the JSON Schema a request declared, and tells every problem.

Covers the 2020-12 keywords that tools use, and `definitions`-style references inside the document. A keyword that would need more
(`unevaluatedProperties`, dynamic or remote references) raises `SchemaUnsupported`: a check we cannot make is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from wardwright.errors import WardwrightError
from wardwright.wire.linear import BadPattern, Pattern, compile_pattern

MAX_DEPTH: Final = 64
MAX_PROBLEMS: Final = 50


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


def check(value: Any, schema: Any) -> list[str]:
    """Every way `value` breaks `schema`, each with its path. Empty: it holds."""
    problems: list[str] = []
    _Check(schema, problems).visit(value, schema, "$", 0)
    return problems[:MAX_PROBLEMS]


def check_text(text: str, schema: Any) -> list[str]:
    """As `check`, for JSON text. Empty text counts as an empty object, as providers send it for tools without parameters."""
    try:
        value: Any = orjson.loads(text) if text.strip() else cast("dict[str, Any]", {})
    except orjson.JSONDecodeError as error:
        return [f"$: not valid JSON: {error}"]
    return check(value, schema)


class _Check:
    def __init__(self, root: Any, problems: list[str]) -> None:
        self.root = root
        self.problems = problems

    def ok(self, value: Any, schema: Any, depth: int) -> bool:
        found: list[str] = []
        _Check(self.root, found).visit(value, schema, "$", depth)
        return not found

    def say(self, path: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{path}: {message}")

    def visit(self, value: Any, schema: Any, path: str, depth: int) -> None:
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
        if "enum" in rules and not any(_same(value, entry) for entry in rules["enum"]):
            self.say(path, f"must be one of: {', '.join(_show(entry) for entry in rules['enum'])}")
        if "const" in rules and not _same(value, rules["const"]):
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
            raise SchemaUnsupported(f"reference {reference!r} leaves the document")
        document = self.root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(document, dict) and key in document:
                document = cast("dict[str, Any]", document)[key]
            elif isinstance(document, list) and key.isdecimal() and int(key) < len(cast("list[Any]", document)):
                document = cast("list[Any]", document)[int(key)]
            else:
                raise SchemaUnsupported(f"reference {reference!r} names nothing")
        return document

    def typed(self, value: Any, wanted: Any) -> bool:
        names = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
        for name in names:
            if name == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
                return True
            if name == "integer" and not isinstance(value, bool):
                if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
                    return True
            elif name in _TYPES:
                if isinstance(value, _TYPES[name]):
                    return True
            elif name not in ("number", "integer"):
                raise SchemaUnsupported(f"unknown type {name!r}")
        return False

    def mapping(self, value: dict[str, Any], rules: dict[str, Any], path: str, depth: int) -> None:
        properties: dict[str, Any] = rules.get("properties", {})
        for key in rules.get("required", ()):
            if key not in value:
                self.say(path, f"missing '{key}'")
        patterns: list[tuple[Any, Any]] = [
            (_regex(pattern), schema) for pattern, schema in rules.get("patternProperties", {}).items()
        ]
        extra = rules.get("additionalProperties", True)
        names = rules.get("propertyNames")
        for key, entry in value.items():
            inner = f"{path}.{key}"
            known = key in properties
            if known:
                self.visit(entry, properties[key], inner, depth + 1)
            for pattern, schema in patterns:
                if pattern.search(key):
                    known = True
                    self.visit(entry, schema, inner, depth + 1)
            if not known and extra is not True:
                if extra is False:
                    self.say(path, f"unknown '{key}'")
                else:
                    self.visit(entry, extra, inner, depth + 1)
            if names is not None:
                self.visit(key, names, inner, depth + 1)
        if len(value) < rules.get("minProperties", 0):
            self.say(path, f"needs at least {rules['minProperties']} entries")
        if len(value) > rules.get("maxProperties", math.inf):
            self.say(path, f"at most {rules['maxProperties']} entries")
        for key, needed in rules.get("dependentRequired", {}).items():
            if key in value:
                for other in needed:
                    if other not in value:
                        self.say(path, f"'{key}' needs '{other}'")
        for key, schema in rules.get("dependentSchemas", {}).items():
            if key in value:
                self.visit(value, schema, path, depth + 1)

    def sequence(self, value: list[Any], rules: dict[str, Any], path: str, depth: int) -> None:
        first: Sequence[Any] = rules.get("prefixItems", ())
        items = rules.get("items")
        if isinstance(items, list):
            first, items = cast("list[Any]", items), rules.get("additionalItems")
        for index, entry in enumerate(value):
            if index < len(first):
                self.visit(entry, first[index], f"{path}[{index}]", depth + 1)
            elif items is not None:
                self.visit(entry, items, f"{path}[{index}]", depth + 1)
        if len(value) < rules.get("minItems", 0):
            self.say(path, f"needs at least {rules['minItems']} items, got {len(value)}")
        if len(value) > rules.get("maxItems", math.inf):
            self.say(path, f"at most {rules['maxItems']} items, got {len(value)}")
        if rules.get("uniqueItems") is True:
            seen = [orjson.dumps(_normal(entry), option=orjson.OPT_SORT_KEYS) for entry in value]
            if len(set(seen)) != len(seen):
                self.say(path, "items must differ from each other")
        if "contains" in rules:
            hits = sum(1 for entry in value if self.ok(entry, rules["contains"], depth + 1))
            if hits < rules.get("minContains", 1) or hits > rules.get("maxContains", math.inf):
                self.say(path, "does not contain what it must")

    def string(self, value: str, rules: dict[str, Any], path: str) -> None:
        if len(value) < rules.get("minLength", 0):
            self.say(path, f"needs at least {rules['minLength']} characters")
        if len(value) > rules.get("maxLength", math.inf):
            self.say(path, f"at most {rules['maxLength']} characters")
        if "pattern" in rules and not _regex(rules["pattern"]).search(value):
            self.say(path, f"does not match '{rules['pattern']}'")

    def number(self, value: float, rules: dict[str, Any], path: str) -> None:
        if "minimum" in rules and value < rules["minimum"]:
            self.say(path, f"must be at least {rules['minimum']}")
        if "maximum" in rules and value > rules["maximum"]:
            self.say(path, f"must be at most {rules['maximum']}")
        if "exclusiveMinimum" in rules and value <= rules["exclusiveMinimum"]:
            self.say(path, f"must be greater than {rules['exclusiveMinimum']}")
        if "exclusiveMaximum" in rules and value >= rules["exclusiveMaximum"]:
            self.say(path, f"must be less than {rules['exclusiveMaximum']}")
        step = rules.get("multipleOf")
        if step:
            quotient = value / step
            if not math.isfinite(quotient) or abs(quotient - round(quotient)) > 1e-9:
                self.say(path, f"must be a multiple of {step}")

    def combined(self, value: Any, rules: dict[str, Any], path: str, depth: int) -> None:
        for schema in rules.get("allOf", ()):
            self.visit(value, schema, path, depth + 1)
        if "anyOf" in rules and not any(self.ok(value, schema, depth + 1) for schema in rules["anyOf"]):
            self.say(path, "fits none of the permitted forms")
        if "oneOf" in rules:
            fits = sum(1 for schema in rules["oneOf"] if self.ok(value, schema, depth + 1))
            if fits != 1:
                self.say(path, f"must fit exactly one of the permitted forms, fits {fits}")
        if "not" in rules and self.ok(value, rules["not"], depth + 1):
            self.say(path, "has a form that is not allowed")
        if "if" in rules:
            branch = "then" if self.ok(value, rules["if"], depth + 1) else "else"
            if branch in rules:
                self.visit(value, rules[branch], path, depth + 1)


def _regex(pattern: Any) -> Pattern:
    try:
        return compile_pattern(str(pattern))
    except BadPattern as error:
        raise SchemaUnsupported(f"pattern {pattern!r} cannot be checked in linear time") from error


def _normal(value: Any) -> Any:
    """Integral floats as integers, so that 1 and 1.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(entry) for entry in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _normal(entry) for key, entry in cast("dict[str, Any]", value).items()}
    return value


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(_normal(left) == _normal(right))


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
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
