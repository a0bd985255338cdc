"""Reads the string under a field, and the class's own docstring, as descriptions for a JSON Schema.

Each module is read once. When source is not to be had the description is left out; nothing is ever guessed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys

_Strings = dict[str, str]


def field_descriptions(cls: type) -> _Strings:
    """Field name → the string under it; inherited fields keep theirs unless a subclass says another."""
    found: _Strings = {}
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        path = getattr(module, "__file__", None)
        annotations = inspect.get_annotations(base)
        if not isinstance(path, str) or not annotations:
            continue
        # A qualified name can be defined twice in one file; the definition with the same fields is the one meant.
        candidates = _strings_in(path).get(base.__qualname__, ())
        matching = [strings for names, strings in candidates if names == frozenset(annotations)]
        if matching:
            found.update(matching[-1])
    return found


def class_description(cls: type) -> str:
    """The class's docstring, unless `@dataclass` wrote it."""
    text = cls.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


@functools.lru_cache(maxsize=256)
def _strings_in(path: str) -> dict[str, list[tuple[frozenset[str], _Strings]]]:
    source = "".join(linecache.getlines(path))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, list[tuple[frozenset[str], _Strings]]] = {}
    _visit(tree, "", found)
    return found


def _visit(node: ast.AST, prefix: str, found: dict[str, list[tuple[frozenset[str], _Strings]]]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            found.setdefault(prefix + child.name, []).append(_read(child))
            _visit(child, f"{prefix}{child.name}.", found)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            _visit(child, f"{prefix}{child.name}.<locals>.", found)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            _visit(child, prefix, found)


def _read(node: ast.ClassDef) -> tuple[frozenset[str], _Strings]:
    names: set[str] = set()
    strings: _Strings = {}
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        names.add(statement.target.id)
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            strings[statement.target.id] = inspect.cleandoc(following.value.value)
    return frozenset(names), strings
