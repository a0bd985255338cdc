"""Builds the wheel in which what reads, rules and records is machine code: `HATCH_BUILD_HOOKS_ENABLE=1 pip wheel .`

The very same sources, compiled by mypyc; whatever waits (sockets, providers, requests under way) stays Python. Without that
variable the wheel is Python alone. Nothing is written beside the sources: a module compiled yesterday would be imported instead of
the one that was edited today.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "src/wardwright"
GROUP = "wardwright"


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        built = Path(self.root, "build", "compiled")
        for one in _compile(self.config["modules"], built):
            build_data["force_include"][str(one)] = str(one.relative_to(built / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _compile(modules: list[str], built: Path) -> list[Path]:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    # Packages of others are not looked at: what is built must not depend on what happens to be installed.
    checks = ["--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases"]
    checks += ["--allow-redefinition-new", "--local-partial-types", f"--cache-dir={built / 'types'}"]
    os.environ["MYPYPATH"] = str(Path(PACKAGE).parent)
    shutil.rmtree(built / "lib", ignore_errors=True)  # a module that is no longer listed
    extensions = mypycify(
        [*checks, *(f"{PACKAGE}/{one}" for one in modules)],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir=str(built / "c"),
    )
    command = build_ext(Distribution({"name": GROUP, "ext_modules": extensions}))
    command.build_lib = str(built / "lib")
    command.build_temp = str(built / "o")
    command.ensure_finalized()
    command.run()
    return sorted((built / "lib").rglob("*.so"))
