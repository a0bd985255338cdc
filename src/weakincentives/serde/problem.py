"""Says what is wrong with an argument, in words a model can act on: one entry per bad field, keyed by its path.

Follows the shape of the type to the place of each error, so that a union speaks with one voice and a secret
value is never shown. Decides texts only; what is an error is decided by the parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from weakincentives.serde.shape import AnyNode, Array, Choice, Link, OneOf, Record, Row, Scalar, Shape, Table

Fault = Mapping[str, Any]
"""One error as the engine reports it: type, loc, input, ctx, msg."""

_TYPE_NAMES: dict[str, str] = {
    "any": "JSON value",
    "path": "string",
    "datetime": "date-time (text like 2026-01-31T12:30:00Z)",
    "date": "date (text like 2026-01-31)",
    "time": "time (text like 12:30:00)",
    "duration": "duration (text like PT1H30M)",
    "uuid": "uuid (text like 123e4567-e89b-12d3-a456-426614174000)",
    "decimal": "decimal (number or text like 12.50)",
    "bytes": "bytes (base64 text)",
}
_SHOWN = 60


class ParseError(ValueError):
    """The value does not fit the type. `details` has one entry per bad field, keyed by path (`$` is the whole)."""

    def __init__(self, details: Mapping[str, str]) -> None:
        self.details: dict[str, str] = dict(details)
        super().__init__(self.details)

    def __str__(self) -> str:
        return "; ".join(f"{path}: {text}" for path, text in self.details.items())


def union_label(at: int) -> str:
    """How the parser marks the members of a union in an error's location; no field can be called so."""
    return f"\0{at}"


def explain(shape: Shape, faults: Iterable[Fault]) -> dict[str, str]:
    """All problems at once, in the order of the type's fields."""
    explainer = _Explainer(shape)
    explainer.explain(shape.root, [(tuple(fault["loc"]), fault) for fault in faults], (), secret=False)
    return explainer.details


def path_text(path: Sequence[str | int]) -> str:
    """`limit`, `items[2].name`, `labels["a b"]`; `$` for the whole body."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text or "$"


def got(value: object, *, secret: bool = False) -> str:
    """What was received: its JSON type and, unless secret or nested, the value, shortened."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "array"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, bool):
        name, shown = "boolean", "true" if value else "false"
    elif isinstance(value, int | float):
        name, shown = "number" if isinstance(value, float) else "integer", _number(value)
    elif isinstance(value, str):
        name, shown = "string", repr(_shorten(value))
    else:
        return type(value).__name__
    return name if secret else f"{name} {shown}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else "of more than 60 digits"
    if math.isnan(value):
        return "NaN"
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else repr(value)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


_Located = tuple[tuple[str | int, ...], Fault]
_Path = tuple[str | int, ...]


class _Explainer:
    """Collects the texts of one failed parse."""

    def __init__(self, shape: Shape) -> None:
        self.details: dict[str, str] = {}
        self._records = shape.records

    def explain(self, node: AnyNode, faults: list[_Located], path: _Path, *, secret: bool, null: bool = False) -> None:
        secret = secret or node.secret
        if isinstance(node, OneOf):
            if node.only is not None:
                self.explain(node.only, faults, path, secret=secret, null=True)
            else:
                self._union(node, faults, path, secret=secret)
            return
        for loc, fault in faults:
            if not loc:
                # Of a value that should hold a secret, even the wrong form may be the secret.
                hidden = secret or self._holds_secret(node, ())
                self._add(path, self._text(node, fault, path, secret=hidden, null=null))
        for step, below in _by_first(faults).items():
            self._child(node, step, below, (*path, step), secret=secret)

    def _add(self, path: _Path, text: str) -> None:
        self.details.setdefault(path_text(path), text)

    def _holds_secret(self, node: AnyNode, seen: tuple[str, ...]) -> bool:
        if node.secret:
            return True
        match node:
            case Array():
                return self._holds_secret(node.item, seen)
            case Row():
                return any(self._holds_secret(item, seen) for item in node.items)
            case Table():
                return self._holds_secret(node.key, seen) or self._holds_secret(node.value, seen)
            case OneOf():
                return any(self._holds_secret(member, seen) for member in node.members)
            case Link() if node.to not in seen:
                members = self._records[node.to].members.values()
                return any(self._holds_secret(member.node, (*seen, node.to)) for member in members)
            case _:
                return False

    def _child(self, node: AnyNode, step: str | int, below: list[_Located], path: _Path, *, secret: bool) -> None:
        child: AnyNode | None = None
        match node:
            case Link():
                record = self._records[node.to]
                if step not in record.members:
                    self._add(path, _unknown(str(step), record))
                    return
                child = record.members[str(step)].node
            case Array():
                child = node.item
            case Row() if isinstance(step, int) and step < len(node.items):
                child = node.items[step]
            case Table():
                if any(loc[:1] == ("[key]",) for loc, _ in below):
                    self._add(path, self._key_text(node.key, str(step)))
                    return
                child = node.value
            case _:
                pass
        if child is not None:
            self.explain(child, below, path, secret=secret)
        else:  # the engine named a place the type does not have; keep its own words
            for _, fault in below:
                self._add(path, str(fault["msg"]))

    def _key_text(self, key: AnyNode, step: str) -> str:
        if isinstance(key, Choice):
            return f"Key must be one of: {_listing(key)}"
        return f"Expected a key of type {self._expected(key)}, got {got(step)}"

    def _union(self, node: OneOf, faults: list[_Located], path: _Path, *, secret: bool) -> None:
        secret = secret or node.secret
        hidden = secret or self._holds_secret(node, ())
        by_member: dict[int, list[_Located]] = {}
        for step, below in _by_first(faults).items():
            if isinstance(step, str) and step.startswith("\0"):
                by_member[int(step[1:])] = below
        value = next((fault["input"] for _, fault in faults), None)
        # A member that failed below its top, or on a constraint, has the right type: its problems are the useful ones.
        near = {at: below for at, below in by_member.items() if not _type_mismatch(below)}
        if len(near) > 1:
            near = self._tagged(node, near, path)
            if not near:
                return
        if len(near) == 1:
            ((at, below),) = near.items()
            self.explain(node.members[at], below, path, secret=secret)
            return
        if near:
            forms: list[str] = []
            for at, below in near.items():
                inner = _Explainer(Shape(node, self._records))
                inner.explain(node.members[at], below, (), secret=secret)
                problems = "; ".join(text if key == "$" else f"{key}: {text}" for key, text in inner.details.items())
                forms.append(f"{self._form(node.members[at])} ({problems})")
            self._add(path, f"Fits none of: {', '.join(forms)}")
            return
        self._add(path, self._mismatch(node, value, path, secret=hidden))

    def _tagged(self, node: OneOf, near: dict[int, list[_Located]], path: _Path) -> dict[int, list[_Located]]:
        """Members told apart by a Literal field: keeps the one that was meant, or says which tags there are."""
        tags: dict[int, str] = {}
        for at, below in near.items():
            member = node.members[at]
            if isinstance(member, Link):
                members = self._records[member.to].members
                wrong = [
                    str(loc[0])
                    for loc, fault in below
                    if len(loc) == 1 and loc[0] in members and isinstance(members[str(loc[0])].node, Choice)
                    if fault["type"] != "missing"
                ]
                if wrong:
                    tags[at] = wrong[0]
        meant = {at: below for at, below in near.items() if at not in tags}
        if meant:
            return meant
        if len(set(tags.values())) == 1:
            tag = next(iter(tags.values()))
            choices: list[str] = []
            for at in tags:
                choice = self._records[cast("Link", node.members[at]).to].members[tag].node
                choices.extend(_choices(cast("Choice", choice)))
            self._add((*path, tag), f"{tag} must be one of: {', '.join(dict.fromkeys(choices))}")
            return {}
        return near

    def _mismatch(self, node: OneOf, value: object, path: _Path, *, secret: bool) -> str:
        choices = [member for member in node.members if isinstance(member, Choice)]
        names = list(dict.fromkeys(self._expected(member) for member in node.members if not isinstance(member, Choice)))
        if choices:
            listing = ", ".join(_listing(choice) for choice in choices)
            alternative = f", or of type {_either(names)}" if names else ""
            return f"{_field_name(path)} must be one of: {listing}{alternative}"
        return f"Expected type {_either(names)}, got {got(value, secret=secret)}"

    def _form(self, node: AnyNode) -> str:
        return self._records[node.to].cls.__name__ if isinstance(node, Link) else self._expected(node)

    def _expected(self, node: AnyNode, *, null: bool = False) -> str:
        match node:
            case Scalar():
                name = _TYPE_NAMES.get(node.kind, node.kind)
            case Array() | Row():
                name = "array"
            case Table() | Link():
                name = "object"
            case OneOf():
                name = _either([self._expected(member) for member in node.members])
            case Choice():
                name = _listing(node)
        return f"{name} or null" if null else name

    def _text(self, node: AnyNode, fault: Fault, path: _Path, *, secret: bool, null: bool) -> str:
        kind, value = fault["type"], fault["input"]
        context = cast("Mapping[str, Any]", fault.get("ctx") or {})
        if kind == "missing":
            return "Missing required item" if path and isinstance(path[-1], int) else "Missing required field"
        if kind == "refused":
            return str(context["message"])
        if kind == "json_invalid":
            return f"Not valid JSON: {context['error']}; send one JSON {self._expected(node)}"
        if kind == "string_unicode":
            return f"Not valid JSON: it holds half of a surrogate pair; send one JSON {self._expected(node)}"
        if kind == "json_type":
            return f"Expected JSON text, got {type(value).__name__}"
        received = "" if secret else f", got {_bare(value)}"
        if kind == "rule":
            return str(context["text"]) + ("" if isinstance(value, list | dict) else received)
        if kind == "finite_number":
            return f"must be a finite number{received}"
        if kind in _BOUND_TEXTS:
            sign, name = _BOUND_TEXTS[kind]
            return f"must be {sign} {context[name]}{received}"
        if kind in _LENGTH_TEXTS:
            phrase, name = _LENGTH_TEXTS[kind]
            length = context.get("actual_length", len(value) if hasattr(value, "__len__") else None)
            unit = "character" if isinstance(node, Scalar) else "field" if isinstance(node, Table) else "item"
            plural = "" if context[name] == 1 else "s"
            return f"must have {phrase} {context[name]} {unit}{plural}" + ("" if secret else f", got {length}")
        if isinstance(node, Choice):
            listing = _listing(node) + (", null" if null else "")
            return f"{_field_name(path)} must be one of: {listing}"
        return f"Expected type {self._expected(node, null=null)}, got {got(value, secret=secret)}"


_BOUND_TEXTS = {
    "greater_than_equal": (">=", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("<=", "le"),
    "less_than": ("<", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_LENGTH_TEXTS = {
    "string_too_short": ("at least", "min_length"),
    "string_too_long": ("at most", "max_length"),
    "too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
}
_CONSTRAINTS = {*_BOUND_TEXTS, *_LENGTH_TEXTS, "rule", "refused", "finite_number", "string_pattern_mismatch"}


def _by_first(faults: list[_Located]) -> dict[str | int, list[_Located]]:
    found: dict[str | int, list[_Located]] = {}
    for loc, fault in faults:
        if loc:
            found.setdefault(loc[0], []).append((loc[1:], fault))
    return found


def _type_mismatch(faults: list[_Located]) -> bool:
    return all(not loc and fault["type"] not in _CONSTRAINTS for loc, fault in faults)


def _bare(value: object) -> str:
    """A value without its type, for texts whose constraint already tells the type."""
    if isinstance(value, str):
        return repr(_shorten(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = _number(value)
        return f"an integer {shown}" if shown.startswith("of") else shown
    return got(value)


def _choices(node: Choice) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value, _ in node.values]


def _listing(node: Choice) -> str:
    return ", ".join(_choices(node))


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _field_name(path: _Path) -> str:
    """The last field of a path with what follows it: `kind` of `items[2].kind`, `tags[1]` of `tags[1]`."""
    start = max((at for at, step in enumerate(path) if isinstance(step, str)), default=0)
    return path_text(path[start:]) if path else "value"


def _unknown(name: str, record: Record) -> str:
    import difflib

    known = list(record.members)
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"Unknown field; did you mean '{nearest[0]}'?"
    return f"Unknown field; known fields: {', '.join(known)}" if known else "Unknown field; no fields are accepted"
