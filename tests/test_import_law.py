"""The parts of the import law that import-linter cannot see; the layers themselves are in .importlinter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
OURS = {"weakincentives", "wardwright"}
# Small packages that the runtime always has; pydantic is not one of them, it is loaded when first used.
LIGHT = {"annotated_types", "immutables", "orjson", "typing_extensions"}
# The standard library's slow ones, which most programs never need: docs/decisions/0005-import-time.md says what each costs.
LATE = {"asyncio", "ctypes", "decimal", "difflib", "fractions", "pathlib", "pickle", "uuid"}

LOADED_BY_PROMPT = """
import sys
before = set(sys.modules)
import weakincentives.prompt
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level package of each import below a node; a relative import is one of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "weakincentives" if node.level else (node.module or "").partition(".")[0]


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def test_importing_prompt_loads_no_optional_package() -> None:
    """A user who only defines tools pays for nothing but the small core."""
    run = subprocess.run([sys.executable, "-c", LOADED_BY_PROMPT], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())

    assert "weakincentives" in loaded
    assert loaded - set(sys.stdlib_module_names) - OURS - LIGHT == set()


def test_importing_prompt_loads_no_slow_module() -> None:
    """What a function loads when it first needs it is not loaded before."""
    run = subprocess.run([sys.executable, "-c", LOADED_BY_PROMPT], capture_output=True, text=True, check=True)

    assert (LATE - {"uuid"}) & set(run.stdout.split()) == set()  # orjson loads uuid by itself


def test_functions_import_only_what_is_slow_or_may_be_missing() -> None:
    """An import inside a function is for packages that may be missing or are slow to load, never a way around the layers."""
    quick = set(sys.stdlib_module_names) - LATE
    hidden = {
        f"{name}:{line} imports {package}"
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for line, package in imports(node)
        if package in OURS or package in quick
    }

    assert hidden == set()


def test_no_import_hides_behind_type_checking() -> None:
    """What the type checker sees is what runs."""
    hidden = {
        f"{name}:{node.lineno}"
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) == "TYPE_CHECKING"
    }

    assert hidden == set()
