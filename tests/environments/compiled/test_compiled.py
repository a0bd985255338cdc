"""The compiled build is what runs, and all of it. (That it does what the sources do is what the gateway's own tests show, which
`make test-compiled` runs beside this.)"""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
MODULES = tomllib.loads(PROJECT.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]


@pytest.mark.parametrize("path", MODULES)
def test_a_module_is_machine_code(path: str) -> None:
    """What is tested here is not the source."""
    module = importlib.import_module("wardwright." + path.removesuffix(".py").replace("/", "."))
    assert Path(str(module.__file__)).suffix == ".so"


@pytest.mark.parametrize("path", MODULES)
def test_what_waits_is_python(path: str) -> None:
    """No coroutine is compiled: one that is cancelled while it waits breaks the process, not only itself."""
    tree = ast.parse((PROJECT.parent / "src" / "wardwright" / path).read_text())
    assert not [one for one in ast.walk(tree) if isinstance(one, (ast.AsyncFunctionDef, ast.Await))]
