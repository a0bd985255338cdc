"""A JSON Schema given from outside (MCP, OpenAPI, a file), checked whole when built and then used to judge arguments.

Knows Draft 2020-12 without `unevaluated*`, `$dynamicRef`, anchors and remote references; `format` stays a remark, as
the draft has it by default. Must never judge by half: a keyword it does not know is refused, not skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

from ..errors import PromptValidationError
from ..serde.parsing import ecma_pattern
from ..serde.problem import got, path_text

_Path = tuple[str | int, ...]
_Problem = tuple[_Path, str]
_Schema = Mapping[str, Any] | bool

_TYPES: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or cast("float", value).is_integer()),
}
_REMARKS = {
    *("$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "format", "contentMediaType", "contentEncoding", "contentSchema"),
}
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "must be >= {}"),
    "maximum": (lambda value, bound: value <= bound, "must be <= {}"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "must be > {}"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "must be < {}"),
}
_COUNTS: dict[str, tuple[type, int, str]] = {
    "minLength": (str, 1, "must have at least {} characters, got {}"),
    "maxLength": (str, -1, "must have at most {} characters, got {}"),
    "minItems": (list, 1, "must have at least {} items, got {}"),
    "maxItems": (list, -1, "must have at most {} items, got {}"),
    "minProperties": (dict, 1, "must have at least {} fields, got {}"),
    "maxProperties": (dict, -1, "must have at most {} fields, got {}"),
}
_SUBSCHEMA = ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SUBSCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_OTHER = ("$ref", "type", "enum", "const", "multipleOf", "pattern", "required", "dependentRequired", "uniqueItems")
_CONTAINS_COUNTS = ("minContains", "maxContains")
_KNOWN = {*_BOUNDS, *_COUNTS, *_SUBSCHEMA, *_SUBSCHEMA_MAPS, *_SUBSCHEMA_LISTS, *_OTHER, *_CONTAINS_COUNTS}


class JsonSchema:
    """The schema of a JSON object; refuses at construction what it could not judge."""

    __slots__ = ("_root", "_verified")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root: dict[str, Any] = deepcopy(dict(schema))
        self._verified: set[int] = set()
        self._verify(self._root, "#")
        if self._root.get("type") != "object":
            raise PromptValidationError("the schema must describe an object: its type must be 'object'")

    def document(self) -> dict[str, Any]:
        """A copy of the schema as it was given."""
        return deepcopy(self._root)

    def check(self, value: object) -> dict[str, str]:
        """Every problem of a JSON value, keyed by path; empty when it fits."""
        problems: dict[str, str] = {}
        for path, text in self._problems(self._root, value, ()):
            problems.setdefault(path_text(path), text)
        return problems

    # --- the schema itself -------------------------------------------------------------------------------------

    def _verify(self, schema: object, where: str) -> None:
        if isinstance(schema, bool) or id(schema) in self._verified:
            return
        if not isinstance(schema, dict):
            raise PromptValidationError(f"{where} must be an object or a boolean")
        self._verified.add(id(cast("object", schema)))
        for keyword, given in cast("dict[str, Any]", schema).items():
            self._verify_keyword(keyword, given, where)

    def _verify_keyword(self, keyword: str, given: Any, where: str) -> None:
        place = f"{where}/{keyword}"
        if keyword in _SUBSCHEMA:
            self._verify(given, place)
        elif keyword in _SUBSCHEMA_MAPS:
            _must(_is_dict(given), place, "must be an object")
            for name, inner in given.items():
                if keyword == "patternProperties":
                    _pattern(name, place)
                self._verify(inner, f"{place}/{name}")
        elif keyword in _SUBSCHEMA_LISTS:
            _must(_is_filled_list(given), place, "must be a list with at least one schema")
            for at, inner in enumerate(given):
                self._verify(inner, f"{place}/{at}")
        elif keyword == "$ref":
            self._verify(self._target(given, place), cast("str", given))
        elif keyword == "type":
            names = cast("list[object]", given if isinstance(given, list) else [given])
            _must(bool(names) and all(isinstance(name, str) and name in _TYPES for name in names), place, _TYPE_RULE)
        elif keyword == "enum":
            _must(_is_filled_list(given), place, "must be a list with at least one value")
        elif keyword == "required":
            _must(_is_names(given), place, "must be a list of names")
        elif keyword == "dependentRequired":
            _must(
                _is_dict(given) and all(map(_is_names, given.values())),
                place,
                "must map names to lists of names",
            )
        elif keyword == "pattern":
            _pattern(given, place)
        elif keyword in _BOUNDS:
            _must(_is_number(given), place, "must be a number")
        elif keyword == "multipleOf":
            _must(_is_number(given) and given > 0, place, "must be a number above 0")
        elif keyword in _COUNTS or keyword in _CONTAINS_COUNTS:
            _must(_TYPES["integer"](given) and given >= 0, place, "must be a whole number from 0")
        elif keyword == "uniqueItems":
            _must(isinstance(given, bool), place, "must be true or false")
        elif keyword == "$id" and where != "#":
            raise PromptValidationError(f"{place} is not supported: an inner schema cannot have an address of its own")
        elif keyword not in _KNOWN and keyword not in _REMARKS and not keyword.startswith("x-"):
            raise PromptValidationError(
                f"{place} is not supported: leave the keyword out or say the same in another way; "
                f"understood are {', '.join(sorted(_KNOWN))}"
            )

    def _target(self, reference: object, place: str) -> object:
        _must(isinstance(reference, str), place, "must be text")
        text = cast("str", reference)
        if text != "#" and not text.startswith("#/"):
            raise PromptValidationError(
                f"{place} is not supported: only references into the same schema (#/…), got {text!r}"
            )
        found: Any = self._root
        for step in text.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[step] if _is_dict(found) else found[int(step)]
            except (LookupError, TypeError, ValueError):
                raise PromptValidationError(f"{place} points to nothing: {text!r}") from None
        return found

    # --- a value -----------------------------------------------------------------------------------------------

    def _fits(self, schema: _Schema, value: object) -> bool:
        return next(self._problems(schema, value, ()), None) is None

    def _problems(self, schema: _Schema, value: object, path: _Path) -> Iterator[_Problem]:
        if isinstance(schema, bool):
            if not schema:
                yield path, "Not allowed here"
            return
        if "$ref" in schema:
            yield from self._problems(cast("_Schema", self._target(schema["$ref"], "#")), value, path)
        yield from _plain_problems(schema, value, path)
        yield from self._combined(schema, value, path)
        if isinstance(value, dict):
            yield from self._object(schema, cast("dict[str, object]", value), path)
        elif isinstance(value, list):
            yield from self._array(schema, cast("list[object]", value), path)

    def _combined(self, schema: Mapping[str, Any], value: object, path: _Path) -> Iterator[_Problem]:
        for inner in schema.get("allOf", ()):
            yield from self._problems(inner, value, path)
        if "anyOf" in schema and not any(self._fits(inner, value) for inner in schema["anyOf"]):
            yield path, self._misfit(schema["anyOf"], value)
        if "oneOf" in schema:
            fitting = sum(self._fits(inner, value) for inner in schema["oneOf"])
            if fitting == 0:
                yield path, self._misfit(schema["oneOf"], value)
            elif fitting > 1:
                yield path, f"Fits {fitting} of the forms allowed here, must fit exactly one"
        if "not" in schema and self._fits(schema["not"], value):
            yield path, "Has a form that is not allowed here"
        if "if" in schema:
            branch = "then" if self._fits(schema["if"], value) else "else"
            yield from self._problems(schema.get(branch, True), value, path)

    def _misfit(self, members: Sequence[_Schema], value: object) -> str:
        """One text for a union: what each member finds first, said once."""
        texts: dict[str, None] = {}
        for member in members:
            at, text = next(self._problems(member, value, ()))
            texts[f"{path_text(at)}: {text}" if at else text] = None
        return " or ".join(texts)

    def _object(self, schema: Mapping[str, Any], value: dict[str, object], path: _Path) -> Iterator[_Problem]:
        for name in schema.get("required", ()):
            if name not in value:
                yield (*path, name), "Missing required field"
        for name, needed in schema.get("dependentRequired", {}).items():
            if name in value:
                for other in needed:
                    if other not in value:
                        yield (*path, other), f"Missing field, required when {name} is given"
        for name, inner in schema.get("dependentSchemas", {}).items():
            if name in value:
                yield from self._problems(inner, value, path)
        properties = cast("Mapping[str, _Schema]", schema.get("properties", {}))
        patterns = cast("Mapping[str, _Schema]", schema.get("patternProperties", {}))
        others = cast("_Schema", schema.get("additionalProperties", True))
        names = cast("_Schema", schema.get("propertyNames", True))
        for name, item in value.items():
            place = (*path, name)
            for _, text in self._problems(names, name, ()):
                yield place, f"Name not allowed: {text}"
            known = name in properties
            if known:
                yield from self._problems(properties[name], item, place)
            for pattern, inner in patterns.items():
                if _pattern_of(pattern).search(name):
                    known = True
                    yield from self._problems(inner, item, place)
            if not known:
                if others is False:
                    yield place, f"Unknown field; known are: {', '.join(properties) or 'none'}"
                else:
                    yield from self._problems(others, item, place)

    def _array(self, schema: Mapping[str, Any], value: list[object], path: _Path) -> Iterator[_Problem]:
        prefix = cast("list[_Schema]", schema.get("prefixItems", []))
        rest = cast("_Schema", schema.get("items", True))
        for at, item in enumerate(value):
            yield from self._problems(prefix[at] if at < len(prefix) else rest, item, (*path, at))
        if schema.get("uniqueItems", False) and len({_identity(item) for item in value}) != len(value):
            yield path, "Has the same item twice"
        if "contains" in schema:
            found = sum(self._fits(schema["contains"], item) for item in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", math.inf)
            if not least <= found <= most:
                bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
                yield path, f"must contain {bounds} items of the required form, has {found}"


_pattern_of = lru_cache(maxsize=256)(ecma_pattern)
_TYPE_RULE = f"must name JSON types: {', '.join(_TYPES)}"


def _plain_problems(schema: Mapping[str, Any], value: object, path: _Path) -> Iterator[_Problem]:
    """What can be said of a value without looking into it."""
    if "type" in schema:
        names = cast("list[str]", schema["type"] if isinstance(schema["type"], list) else [schema["type"]])
        if not any(_TYPES[name](value) for name in names):
            yield path, f"Expected type {' or '.join(names)}, got {got(value)}"
            return
    choices = cast("list[object]", [schema["const"]] if "const" in schema else schema.get("enum", [value]))
    if _identity(value) not in map(_identity, choices):
        name = next((step for step in reversed(path) if isinstance(step, str)), "value")
        yield path, f"{name} must be one of: {', '.join(map(_shown, choices))}"
    if "const" in schema and "enum" in schema and _identity(value) not in map(_identity, schema["enum"]):
        yield path, "Has a value that is not allowed here"
    if _is_number(value):
        for keyword, (holds, text) in _BOUNDS.items():
            if keyword in schema and not holds(value, schema[keyword]):
                yield path, f"{text.format(schema[keyword])}, got {value}"
        if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
            yield path, f"must be a multiple of {schema['multipleOf']}, got {value}"
    if isinstance(value, str) and "pattern" in schema and not _pattern_of(schema["pattern"]).search(value):
        yield path, f"must match the pattern {schema['pattern']}, got {got(value)}"
    if isinstance(value, str | list | dict):
        count = len(cast("Sequence[object]", value))
        for keyword, (kind, sign, text) in _COUNTS.items():
            if keyword in schema and isinstance(value, kind) and sign * count < sign * schema[keyword]:
                yield path, text.format(schema[keyword], count)


def _must(holds: bool, place: str, rule: str) -> None:
    if not holds:
        raise PromptValidationError(f"{place} {rule}")


def _pattern(given: object, place: str) -> None:
    _must(isinstance(given, str), place, "must be a regular expression")
    try:
        _pattern_of(cast("str", given))
    except re.error as error:
        raise PromptValidationError(f"{place} is not a regular expression we can use: {error}") from error


def _is_dict(given: object) -> bool:
    return isinstance(given, dict)


def _is_filled_list(given: object) -> bool:
    return isinstance(given, list) and bool(cast("list[object]", given))


def _is_names(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(name, str) for name in cast("list[object]", given))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_multiple(value: Any, step: Any) -> bool:
    from fractions import Fraction

    # Exactly, on the decimals as they are written: 0.3 is a multiple of 0.1.
    return (Fraction(str(value)) / Fraction(str(step))).denominator == 1


def _identity(value: object) -> object:
    """Equal for values that JSON calls equal: 1 is 1.0 but not true, and order matters in arrays only."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value), value
    if isinstance(value, dict):
        return dict, frozenset((name, _identity(item)) for name, item in cast("dict[str, object]", value).items())
    if isinstance(value, list):
        return list, tuple(map(_identity, cast("list[object]", value)))
    return float, value


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
