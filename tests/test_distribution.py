"""The wheel holds both packages, their typing markers and the licence, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as pip builds it from the tree, with the build backend of this environment."""
    target = tmp_path_factory.mktemp("wheel")
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--wheel-dir",
        str(target),
    ]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    return zipfile.ZipFile(next(target.glob("weakincentives-*.whl")))


@pytest.mark.heavy
def test_the_wheel_holds_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """What is installed is two import packages and the metadata."""
    folders = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}

    assert folders == {"weakincentives", "wardwright"}


@pytest.mark.heavy
def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    """A user's type checker trusts both packages, and the licence travels with them."""
    names = {name.rpartition("dist-info/")[2] for name in wheel.namelist()}

    assert {"weakincentives/py.typed", "wardwright/py.typed", "licenses/LICENSE"} <= names
