"""`python -m docs.site FOLDER`: writes the pages of the site to FOLDER/docs, llms.txt among them, and FOLDER/mkdocs.yml to build them.

`--html` also builds FOLDER/site, strictly; it needs Zensical. `--check` writes nothing. Exit code 1: a link leads nowhere, or no contents
list a page; every such place is told.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import llms, reference
from .pages import ROOT, Site, SiteError, collect

TABS = {"index.md": "Home", "tutorial.md": "Tutorial"}
"""Shorter than the titles of their pages."""


def main(arguments: list[str]) -> int:
    options = {one for one in arguments if one.startswith("-")}
    folders = [Path(one) for one in arguments if one not in options]
    if options not in (set(), {"--html"}, {"--check"}) or len(folders) != ("--check" not in options):
        print(__doc__, file=sys.stderr)
        return 2
    site = collect(reference.pages())
    for problem in site.problems:
        print(problem, file=sys.stderr)
    if site.problems:
        return 1
    for folder in folders:
        write(site, folder)
    print(f"{len(site.pages)} pages", flush=True)
    return build(folders[0]) if "--html" in options else 0


def build(folder: Path) -> int:
    """The pages as HTML, and beside each its text, which is what llms.txt points to."""
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    code = subprocess.run(zensical, check=False).returncode
    if code == 0:
        shutil.copytree(folder / "docs", folder / "site", dirs_exist_ok=True)
    return code


def write(site: Site, folder: Path) -> None:
    if site.problems:
        raise SiteError("\n".join(site.problems))
    pages = folder / "docs"
    shutil.rmtree(pages, ignore_errors=True)  # a page that is gone must not stay
    texts = {**site.pages, "llms.txt": llms.index(site), "llms-full.txt": llms.full(site)}
    for name, text in texts.items():
        path = pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (folder / "mkdocs.yml").write_text(config(site, folder), "utf-8")


def config(site: Site, folder: Path) -> str:
    """What is decided in mkdocs.yml, and the contents. JSON is YAML too."""
    contents: list[object] = []
    for section in site.sections:
        entries = [{TABS.get(name) or site.title(name): name} for name in section.pages]
        contents += entries if not section.title else [{section.title: entries}]
    base = os.path.relpath(ROOT / "mkdocs.yml", folder)
    return (
        json.dumps(
            {"INHERIT": base, "docs_dir": "docs", "site_dir": "site", "nav": contents}, indent=1, ensure_ascii=False
        )
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
